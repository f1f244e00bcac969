//! A binary heap of slots whose keys can change: it records the position of each slot.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::DerefMut;

use smallvec::{Array, SmallVec};

const NOWHERE: u32 = u32::MAX;

/// A growable list, in an allocation or not.
pub trait Growable<T>: DerefMut<Target = [T]> + Default + Debug {
    /// As [`Vec::push`].
    fn push(&mut self, item: T);
    /// As [`Vec::swap_remove`].
    fn swap_remove(&mut self, at: usize) -> T;
    /// As [`Vec::resize`].
    fn resize(&mut self, len: usize, item: T);
}

impl<T: Clone + Debug> Growable<T> for Vec<T> {
    #[inline]
    fn push(&mut self, item: T) {
        self.push(item);
    }

    #[inline]
    fn swap_remove(&mut self, at: usize) -> T {
        self.swap_remove(at)
    }

    #[inline]
    fn resize(&mut self, len: usize, item: T) {
        self.resize(len, item);
    }
}

impl<A: Array<Item: Clone + Debug>> Growable<A::Item> for SmallVec<A> {
    #[inline]
    fn push(&mut self, item: A::Item) {
        self.push(item);
    }

    #[inline]
    fn swap_remove(&mut self, at: usize) -> A::Item {
        self.swap_remove(at)
    }

    #[inline]
    fn resize(&mut self, len: usize, item: A::Item) {
        self.resize(len, item);
    }
}

/// A min-heap with at most one entry per slot. Ties are broken by slot number, lowest first.
#[derive(Debug, Default)]
pub struct Heap<K, H = Vec<(K, u32)>, P = Vec<u32>> {
    heap: H,
    /// For each slot, the position of its entry in the heap.
    position: P,
    key: PhantomData<K>,
}

/// A heap whose first entries are in the struct itself: in a fabric of thousands of hosts that saves cache misses. Where it fits a cache, asking
/// for each access where the elements are costs one to two per cent of a packet's instructions.
pub(crate) type InlineHeap<K> = Heap<K, SmallVec<[(K, u32); 1]>, SmallVec<[u32; 4]>>;

impl<K: Copy + Ord + Debug, H: Growable<(K, u32)>, P: Growable<u32>> Heap<K, H, P> {
    /// The lowest key, and its slot.
    #[must_use]
    #[inline]
    pub fn first(&self) -> Option<(K, u32)> {
        self.heap.first().copied()
    }

    /// Whether no slot has an entry.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Number of slots that have an entry.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    #[inline]
    fn find(&self, slot: u32) -> Option<usize> {
        self.position.get(slot as usize).filter(|at| **at != NOWHERE).map(|at| *at as usize)
    }

    /// Whether the slot has an entry.
    #[must_use]
    #[inline]
    pub fn contains(&self, slot: u32) -> bool {
        self.find(slot).is_some()
    }

    /// The entries and the positions. Each access to a `SmallVec` asks where its elements are; this asks once.
    #[inline]
    fn slices(&mut self) -> Slices<'_, K> {
        Slices { heap: &mut self.heap, position: &mut self.position }
    }

    /// Sets the key of a slot, adding an entry if it has none.
    #[inline]
    pub fn set(&mut self, slot: u32, key: K) {
        let Some(at) = self.find(slot) else { return self.insert(slot, key) };
        let mut slices = self.slices();
        if slices.heap[at].0 != key {
            slices.heap[at].0 = key;
            slices.sift(at);
        }
    }

    /// As [`Heap::set`], but only if the new key is lower. A timer that moves to a later time keeps its entry
    /// until that expires, because most timers move with every packet.
    #[inline]
    pub fn set_earlier(&mut self, slot: u32, key: K) {
        let Some(at) = self.find(slot) else { return self.insert(slot, key) };
        let mut slices = self.slices();
        if key < slices.heap[at].0 {
            slices.heap[at].0 = key;
            slices.sift_up(at);
        }
    }

    /// Removes the entry of a slot, if it has one.
    pub fn remove(&mut self, slot: u32) {
        let Some(at) = self.find(slot) else { return };
        self.position[slot as usize] = NOWHERE;
        self.heap.swap_remove(at);
        let mut slices = self.slices();
        if let Some(&(_, moved)) = slices.heap.get(at) {
            slices.position[moved as usize] = at as u32;
            slices.sift(at);
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
        self.slices().sift_up(at);
    }
}

struct Slices<'a, K> {
    heap: &'a mut [(K, u32)],
    position: &'a mut [u32],
}

impl<K: Copy + Ord> Slices<'_, K> {
    /// Moves an entry whose key has changed to its place.
    #[inline]
    fn sift(&mut self, at: usize) {
        let at = self.sift_up(at);
        self.sift_down(at);
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
        compare_with_a_table(Heap::<u64>::default());
        compare_with_a_table(InlineHeap::default());
    }

    fn compare_with_a_table<H: Growable<(u64, u32)>, P: Growable<u32>>(mut heap: Heap<u64, H, P>) {
        let mut rng = Rng::stream(1, 0, 0, "heap");
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
