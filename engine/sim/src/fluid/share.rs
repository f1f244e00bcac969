//! Max-min fair rates by progressive filling.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The links that a flow crosses, each once. Empty: the flow does not exist.
pub type Path = Vec<u32>;

/// Computes max-min fair rates. It keeps its memory from one computation to the next.
#[derive(Clone, Debug)]
pub struct MaxMin {
    /// Bits per second of each link.
    capacity: Vec<u64>,
    /// What is left of each link, and the flows on it that have no rate yet.
    left: Vec<u64>,
    open: Vec<u32>,
    /// The links with flows.
    used: Vec<u32>,
    /// The flows of link `l` are `members[first[l]..first[l + 1]]`.
    first: Vec<u32>,
    members: Vec<u32>,
    order: BinaryHeap<Reverse<(u64, u32)>>,
}

/// The rate of a flow that has none yet during a computation.
const OPEN: u64 = u64::MAX;

impl MaxMin {
    /// Links of these capacities, in bits per second.
    #[must_use]
    pub fn new(capacity: Vec<u64>) -> Self {
        let links = capacity.len();
        Self {
            left: capacity.clone(),
            open: vec![0; links],
            used: Vec::new(),
            first: vec![0; links + 1],
            members: Vec::new(),
            order: BinaryHeap::new(),
            capacity,
        }
    }

    /// Computes the rate of each flow: no link carries more than its capacity, and each flow has a bottleneck, a link without unused
    /// capacity on which no flow is faster.
    ///
    /// Rates are whole bits per second: on a bottleneck, less than one bit per second for each of its flows is unused. A flow has at least 1
    /// bit per second, so that it ends. What `rates` held before is overwritten; flows without links get 0.
    pub fn fill(&mut self, paths: &[Path], rates: &mut Vec<u64>) {
        self.count(paths);
        rates.clear();
        rates.extend(paths.iter().map(|path| if path.is_empty() { 0 } else { OPEN }));
        for &link in &self.used {
            self.order.push(Reverse((self.share(link), link)));
        }
        // The link with the lowest share is the bottleneck of its open flows. Shares of other links never fall by fixing them, so that
        // an entry of the heap is a lower bound, which is corrected when it is the lowest.
        while let Some(Reverse((share, link))) = self.order.pop() {
            if self.open[link as usize] == 0 {
                continue;
            }
            let now = self.share(link);
            if now > share {
                self.order.push(Reverse((now, link)));
                continue;
            }
            let rate = share.max(1);
            let members = self.first[link as usize]..self.first[link as usize + 1];
            for at in members {
                let flow = self.members[at as usize] as usize;
                if rates[flow] != OPEN {
                    continue;
                }
                rates[flow] = rate;
                for &crossed in &paths[flow] {
                    let crossed = crossed as usize;
                    self.left[crossed] = self.left[crossed].saturating_sub(rate);
                    self.open[crossed] -= 1;
                }
            }
        }
    }

    fn share(&self, link: u32) -> u64 {
        self.left[link as usize] / u64::from(self.open[link as usize].max(1))
    }

    /// Lists the flows of each link.
    fn count(&mut self, paths: &[Path]) {
        self.open.fill(0);
        self.left.copy_from_slice(&self.capacity);
        for &link in paths.iter().flatten() {
            self.open[link as usize] += 1;
        }
        self.used.clear();
        let mut sum = 0;
        for (link, &open) in self.open.iter().enumerate() {
            self.first[link] = sum;
            sum += open;
            if open > 0 {
                self.used.push(link as u32);
            }
        }
        self.members.clear();
        self.members.resize(sum as usize, 0);
        // Each `first` advances to its end, which is the next one's beginning, and is moved back by one place.
        for (flow, path) in paths.iter().enumerate() {
            for &link in path {
                let at = &mut self.first[link as usize];
                self.members[*at as usize] = flow as u32;
                *at += 1;
            }
        }
        let links = self.capacity.len();
        self.first.copy_within(0..links, 1);
        self.first[0] = 0;
        self.order.clear();
    }
}
