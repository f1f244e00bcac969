//! A binary heap of slots whose keys can change: it records the position of each slot.

use smallvec::SmallVec;

const NOWHERE: u32 = u32::MAX;

/// A min-heap with at most one entry per slot. Ties are broken by slot number, lowest first.
#[derive(Debug)]
pub(crate) struct Heap<K> {
    heap: SmallVec<[(K, u32); 1]>,
    /// For each slot, the position of its entry in the heap.
    position: SmallVec<[u32; 4]>,
}

impl<K> Default for Heap<K> {
    fn default() -> Self {
        Self { heap: SmallVec::new(), position: SmallVec::new() }
    }
}

impl<K: Copy + Ord> Heap<K> {
    #[inline]
    pub(crate) fn first(&self) -> Option<(K, u32)> {
        self.heap.first().copied()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    #[inline]
    fn find(&self, slot: u32) -> Option<usize> {
        self.position.get(slot as usize).filter(|at| **at != NOWHERE).map(|at| *at as usize)
    }

    /// Whether the slot has an entry.
    #[inline]
    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.find(slot).is_some()
    }

    /// Sets the key of a slot, adding an entry if it has none.
    #[inline]
    pub(crate) fn set(&mut self, slot: u32, key: K) {
        match self.find(slot) {
            Some(at) if self.heap[at].0 == key => {}
            Some(at) => {
                self.heap[at].0 = key;
                let at = self.sift_up(at);
                self.sift_down(at);
            }
            None => self.insert(slot, key),
        }
    }

    /// As [`Heap::set`], but only if the new key is lower. A timer that moves to a later time keeps its entry
    /// until that expires, because most timers move with every packet.
    #[inline]
    pub(crate) fn set_earlier(&mut self, slot: u32, key: K) {
        match self.find(slot) {
            Some(at) => {
                if key < self.heap[at].0 {
                    self.heap[at].0 = key;
                    self.sift_up(at);
                }
            }
            None => self.insert(slot, key),
        }
    }

    /// Removes the entry of a slot, if it has one.
    pub(crate) fn remove(&mut self, slot: u32) {
        let Some(at) = self.find(slot) else { return };
        self.position[slot as usize] = NOWHERE;
        self.heap.swap_remove(at);
        if let Some(&(_, moved)) = self.heap.get(at) {
            self.position[moved as usize] = at as u32;
            let at = self.sift_up(at);
            self.sift_down(at);
        }
    }

    #[cold]
    fn insert(&mut self, slot: u32, key: K) {
        if self.position.len() <= slot as usize {
            self.position.resize(slot as usize + 1, NOWHERE);
        }
        let at = self.heap.len();
        self.heap.push((key, slot));
        self.position[slot as usize] = at as u32;
        self.sift_up(at);
    }

    fn sift_up(&mut self, mut at: usize) -> usize {
        let entry = self.heap[at];
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent] <= entry {
                break;
            }
            self.place(at, self.heap[parent]);
            at = parent;
        }
        self.place(at, entry);
        at
    }

    fn sift_down(&mut self, mut at: usize) {
        let entry = self.heap[at];
        loop {
            let mut child = 2 * at + 1;
            if child >= self.heap.len() {
                break;
            }
            if child + 1 < self.heap.len() && self.heap[child + 1] < self.heap[child] {
                child += 1;
            }
            if entry <= self.heap[child] {
                break;
            }
            self.place(at, self.heap[child]);
            at = child;
        }
        self.place(at, entry);
    }

    #[inline]
    fn place(&mut self, at: usize, entry: (K, u32)) {
        self.heap[at] = entry;
        self.position[entry.1 as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_core::Rng;

    #[test]
    fn agrees_with_a_table() {
        let mut rng = Rng::stream(1, 0, 0, "heap");
        let mut heap = Heap::default();
        let mut table = [None; 12];
        for _ in 0..10_000 {
            let (slot, key) = (rng.below(12) as u32, rng.below(50));
            let entry = &mut table[slot as usize];
            match rng.below(3) {
                0 => {
                    heap.set(slot, key);
                    *entry = Some(key);
                }
                1 => {
                    heap.set_earlier(slot, key);
                    *entry = Some(entry.map_or(key, |old: u64| old.min(key)));
                }
                _ => {
                    heap.remove(slot);
                    *entry = None;
                }
            }
            let entries =
                table.iter().zip(0..).filter_map(|(key, slot)| key.map(|key| (key, slot)));
            assert_eq!(heap.first(), entries.clone().min());
            assert_eq!(heap.heap.len(), entries.count());
            assert_eq!(heap.contains(slot), table[slot as usize].is_some());
        }
    }
}
