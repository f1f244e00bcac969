//! Maximum-weight matching in general graphs (Edmonds; the primal-dual algorithm with blossoms in O(n^3)).

/// Finds a matching of the largest weight among `n` vertices. `weight` is symmetric; pairs without weight are not
/// matched. Returns the partner of each vertex.
///
/// Weights must be below 2^60.
#[must_use]
pub fn max_weight_matching(n: usize, weight: impl Fn(usize, usize) -> u64) -> Vec<Option<usize>> {
    if n == 0 {
        return Vec::new();
    }
    let mut solver = Blossoms::new(n, weight);
    while solver.augment() {}
    (1..=n).map(|u| solver.mate[u].checked_sub(1)).collect()
}

/// An edge of the contracted graph, by its ends in the original one.
#[derive(Clone, Copy, Debug, Default)]
struct Edge {
    u: usize,
    v: usize,
    weight: i64,
}

/// Vertices are `1..=n`, blossoms above; zero is none. Labels are twice the dual variables.
struct Blossoms {
    n: usize,
    /// The highest number in use.
    top: usize,
    size: usize,
    edges: Vec<Edge>,
    label: Vec<i64>,
    mate: Vec<usize>,
    slack: Vec<usize>,
    /// The outermost blossom of each vertex and blossom.
    outer: Vec<usize>,
    parent: Vec<usize>,
    /// For a blossom and an original vertex, the child that contains it.
    child_of: Vec<usize>,
    /// 0 for an even vertex of the forest, 1 for an odd one, -1 for one outside.
    side: Vec<i8>,
    visited: Vec<usize>,
    visit: usize,
    children: Vec<Vec<usize>>,
    queue: std::collections::VecDeque<usize>,
}

impl Blossoms {
    fn new(n: usize, weight: impl Fn(usize, usize) -> u64) -> Self {
        let size = 2 * n + 2;
        let mut edges = vec![Edge::default(); size * size];
        let mut largest = 0;
        for u in 1..=n {
            for v in 1..=n {
                let weight =
                    if u == v { 0 } else { weight(u - 1, v - 1).min((1 << 60) - 1) as i64 };
                largest = largest.max(weight);
                edges[u * size + v] = Edge { u, v, weight };
            }
        }
        let mut label = vec![0; size];
        label[1..=n].fill(largest);
        let mut this = Self {
            n,
            top: n,
            size,
            edges,
            label,
            mate: vec![0; size],
            slack: vec![0; size],
            outer: (0..size).map(|u| if u <= n { u } else { 0 }).collect(),
            parent: vec![0; size],
            child_of: vec![0; size * (n + 1)],
            side: vec![-1; size],
            visited: vec![0; size],
            visit: 0,
            children: vec![Vec::new(); size],
            queue: std::collections::VecDeque::new(),
        };
        for u in 1..=n {
            this.child_of[u * (n + 1) + u] = u;
        }
        this
    }

    fn edge(&self, u: usize, v: usize) -> Edge {
        self.edges[u * self.size + v]
    }

    fn child(&self, blossom: usize, vertex: usize) -> usize {
        self.child_of[blossom * (self.n + 1) + vertex]
    }

    /// The slack of an edge, by the labels of its original ends.
    fn reduced(&self, edge: Edge) -> i64 {
        self.label[edge.u] + self.label[edge.v] - 2 * self.edge(edge.u, edge.v).weight
    }

    fn update_slack(&mut self, u: usize, x: usize) {
        let best = self.slack[x];
        if best == 0 || self.reduced(self.edge(u, x)) < self.reduced(self.edge(best, x)) {
            self.slack[x] = u;
        }
    }

    fn set_slack(&mut self, x: usize) {
        self.slack[x] = 0;
        for u in 1..=self.n {
            let even_outside = self.outer[u] != x && self.side[self.outer[u]] == 0;
            if self.edge(u, x).weight > 0 && even_outside {
                self.update_slack(u, x);
            }
        }
    }

    fn enqueue(&mut self, x: usize) {
        if x <= self.n {
            self.queue.push_back(x);
        } else {
            for child in self.children[x].clone() {
                self.enqueue(child);
            }
        }
    }

    fn set_outer(&mut self, x: usize, blossom: usize) {
        self.outer[x] = blossom;
        if x > self.n {
            for child in self.children[x].clone() {
                self.set_outer(child, blossom);
            }
        }
    }

    /// Rotates a blossom so that the path from its base to the child is even, and returns the child's position.
    fn position(&mut self, blossom: usize, child: usize) -> usize {
        let children = &mut self.children[blossom];
        let position = children.iter().position(|&it| it == child).unwrap_or(0);
        if position % 2 == 1 {
            children[1..].reverse();
            children.len() - position
        } else {
            position
        }
    }

    fn set_mate(&mut self, u: usize, v: usize) {
        let edge = self.edge(u, v);
        self.mate[u] = edge.v;
        if u <= self.n {
            return;
        }
        let child = self.child(u, edge.u);
        let position = self.position(u, child);
        for index in 0..position {
            let (a, b) = (self.children[u][index], self.children[u][index ^ 1]);
            self.set_mate(a, b);
        }
        self.set_mate(child, v);
        self.children[u].rotate_left(position);
    }

    fn flip(&mut self, mut u: usize, mut v: usize) {
        loop {
            let next = self.outer[self.mate[u]];
            self.set_mate(u, v);
            if next == 0 {
                return;
            }
            let above = self.outer[self.parent[next]];
            self.set_mate(next, above);
            (u, v) = (above, next);
        }
    }

    fn common_ancestor(&mut self, mut u: usize, mut v: usize) -> usize {
        self.visit += 1;
        while u != 0 || v != 0 {
            if u != 0 {
                if self.visited[u] == self.visit {
                    return u;
                }
                self.visited[u] = self.visit;
                u = self.outer[self.mate[u]];
                if u != 0 {
                    u = self.outer[self.parent[u]];
                }
            }
            std::mem::swap(&mut u, &mut v);
        }
        0
    }

    fn add_blossom(&mut self, u: usize, base: usize, v: usize) {
        let free = (self.n + 1..=self.top).find(|&it| self.outer[it] == 0);
        let blossom = free.unwrap_or(self.top + 1);
        self.top = self.top.max(blossom);
        self.label[blossom] = 0;
        self.side[blossom] = 0;
        self.mate[blossom] = self.mate[base];
        let mut children = vec![base];
        for (start, reversed) in [(u, true), (v, false)] {
            if !reversed {
                children[1..].reverse();
            }
            let mut x = start;
            while x != base {
                let y = self.outer[self.mate[x]];
                children.extend([x, y]);
                self.enqueue(y);
                x = self.outer[self.parent[y]];
            }
        }
        self.children[blossom].clone_from(&children);
        self.set_outer(blossom, blossom);
        let size = self.size;
        for x in 1..=self.top {
            self.edges[blossom * size + x].weight = 0;
            self.edges[x * size + blossom].weight = 0;
        }
        for x in 1..=self.n {
            self.child_of[blossom * (self.n + 1) + x] = 0;
        }
        for child in children {
            for x in 1..=self.top {
                let tighter = self.edge(blossom, x).weight == 0
                    || self.reduced(self.edge(child, x)) < self.reduced(self.edge(blossom, x));
                if tighter {
                    self.edges[blossom * size + x] = self.edge(child, x);
                    self.edges[x * size + blossom] = self.edge(x, child);
                }
            }
            for x in 1..=self.n {
                if self.child(child, x) != 0 {
                    self.child_of[blossom * (self.n + 1) + x] = child;
                }
            }
        }
        self.set_slack(blossom);
    }

    fn expand_blossom(&mut self, blossom: usize) {
        for child in self.children[blossom].clone() {
            self.set_outer(child, child);
        }
        let entry = self.edge(blossom, self.parent[blossom]).u;
        let root = self.child(blossom, entry);
        let position = self.position(blossom, root);
        let children = self.children[blossom].clone();
        for pair in (0..position).step_by(2) {
            let (odd, even) = (children[pair], children[pair + 1]);
            self.parent[odd] = self.edge(even, odd).u;
            self.side[odd] = 1;
            self.side[even] = 0;
            self.slack[odd] = 0;
            self.set_slack(even);
            self.enqueue(even);
        }
        self.side[root] = 1;
        self.parent[root] = self.parent[blossom];
        for &child in &children[position + 1..] {
            self.side[child] = -1;
            self.set_slack(child);
        }
        self.outer[blossom] = 0;
    }

    /// Follows a tight edge; true if the matching has been augmented.
    fn found_edge(&mut self, edge: Edge) -> bool {
        let (u, v) = (self.outer[edge.u], self.outer[edge.v]);
        match self.side[v] {
            -1 => {
                self.parent[v] = edge.u;
                self.side[v] = 1;
                let next = self.outer[self.mate[v]];
                self.slack[v] = 0;
                self.slack[next] = 0;
                self.side[next] = 0;
                self.enqueue(next);
                false
            }
            0 => {
                let base = self.common_ancestor(u, v);
                if base == 0 {
                    self.flip(u, v);
                    self.flip(v, u);
                    return true;
                }
                self.add_blossom(u, base, v);
                false
            }
            _ => false,
        }
    }

    /// Finds an augmenting path; false if the matching has the largest weight.
    fn augment(&mut self) -> bool {
        self.side.fill(-1);
        self.slack.fill(0);
        self.queue.clear();
        for x in 1..=self.top {
            if self.outer[x] == x && self.mate[x] == 0 {
                self.parent[x] = 0;
                self.side[x] = 0;
                self.enqueue(x);
            }
        }
        if self.queue.is_empty() {
            return false;
        }
        loop {
            while let Some(u) = self.queue.pop_front() {
                if self.side[self.outer[u]] == 1 {
                    continue;
                }
                for v in 1..=self.n {
                    if self.edge(u, v).weight == 0 || self.outer[u] == self.outer[v] {
                        continue;
                    }
                    if self.reduced(self.edge(u, v)) == 0 {
                        if self.found_edge(self.edge(u, v)) {
                            return true;
                        }
                    } else {
                        let outer = self.outer[v];
                        self.update_slack(u, outer);
                    }
                }
            }
            if !self.adjust_labels() {
                return false;
            }
            for x in 1..=self.top {
                let best = self.slack[x];
                if self.outer[x] == x
                    && best != 0
                    && self.outer[best] != x
                    && self.reduced(self.edge(best, x)) == 0
                    && self.found_edge(self.edge(best, x))
                {
                    return true;
                }
            }
            for blossom in self.n + 1..=self.top {
                if self.outer[blossom] == blossom
                    && self.side[blossom] == 1
                    && self.label[blossom] == 0
                {
                    self.expand_blossom(blossom);
                }
            }
        }
    }

    /// Changes the labels until another edge is tight; false if an even vertex's label is zero, when the matching is the best.
    fn adjust_labels(&mut self) -> bool {
        let mut step = i64::MAX;
        for blossom in self.n + 1..=self.top {
            if self.outer[blossom] == blossom && self.side[blossom] == 1 {
                step = step.min(self.label[blossom] / 2);
            }
        }
        for x in 1..=self.top {
            if self.outer[x] == x && self.slack[x] != 0 {
                let slack = self.reduced(self.edge(self.slack[x], x));
                match self.side[x] {
                    -1 => step = step.min(slack),
                    0 => step = step.min(slack / 2),
                    _ => {}
                }
            }
        }
        if (1..=self.n).any(|u| self.side[self.outer[u]] == 0 && self.label[u] <= step) {
            return false;
        }
        for u in 1..=self.n {
            match self.side[self.outer[u]] {
                0 => self.label[u] -= step,
                1 => self.label[u] += step,
                _ => {}
            }
        }
        for blossom in self.n + 1..=self.top {
            if self.outer[blossom] == blossom {
                match self.side[blossom] {
                    0 => self.label[blossom] += 2 * step,
                    1 => self.label[blossom] -= 2 * step,
                    _ => {}
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rng;

    use super::*;

    /// The largest weight of a matching of these vertices, by trying all.
    fn brute(weights: &[Vec<u64>], left: u32) -> u64 {
        if left == 0 {
            return 0;
        }
        let u = left.trailing_zeros() as usize;
        let rest = left & !(1 << u);
        let mut best = brute(weights, rest);
        for (v, weight) in weights[u].iter().enumerate() {
            if rest & 1 << v != 0 {
                best = best.max(weight + brute(weights, rest & !(1 << v)));
            }
        }
        best
    }

    #[test]
    fn it_equals_a_search_of_all_matchings() {
        for seed in 0..3000 {
            let mut rng = Rng::stream(seed, 0, 0, "matching");
            let n = 1 + rng.below(9) as usize;
            let (range, share) = (1 + rng.below(20), rng.unit());
            let mut weights = vec![vec![0; n]; n];
            for (u, v) in (0..n).flat_map(|u| (0..u).map(move |v| (u, v))) {
                let weight = if rng.chance(share) { rng.below(range) } else { 0 };
                (weights[u][v], weights[v][u]) = (weight, weight);
            }
            let matching = max_weight_matching(n, |u, v| weights[u][v]);
            let mut sum = 0;
            for (u, &partner) in matching.iter().enumerate() {
                if let Some(v) = partner {
                    assert_eq!(matching[v], Some(u), "seed {seed}");
                    sum += weights[u][v];
                }
            }
            assert_eq!(sum / 2, brute(&weights, (1 << n) - 1), "seed {seed}: {weights:?}");
        }
    }
}
