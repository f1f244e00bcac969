//! An ordered set of slots in groups: the messages of a host by the peer that they come from or go to.

use core::ops::Bound;
use std::collections::BTreeSet;

/// Slots with a group and a key each, at most one entry per slot.
///
/// A change moves one entry of a tree, whose nodes hold several: in the steady state it allocates nothing.
#[derive(Debug)]
pub(crate) struct Grouped<G, K> {
    order: BTreeSet<(G, K, u32)>,
    /// The entry of each slot.
    entries: Vec<Option<(G, K)>>,
}

impl<G, K> Default for Grouped<G, K> {
    fn default() -> Self {
        Self { order: BTreeSet::new(), entries: Vec::new() }
    }
}

impl<G: Copy + Ord, K: Copy + Ord> Grouped<G, K> {
    /// Whether there are no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Adds a slot, or moves it to another group and key.
    #[inline]
    pub(crate) fn set(&mut self, slot: u32, group: G, key: K) {
        let index = slot as usize;
        if self.entries.len() <= index {
            self.entries.resize(index + 1, None);
        }
        let before = self.entries[index].replace((group, key));
        if before == Some((group, key)) {
            return;
        }
        if let Some((group, key)) = before {
            self.order.remove(&(group, key, slot));
        }
        self.order.insert((group, key, slot));
    }

    /// Removes a slot; returns the group in which it was.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) -> Option<G> {
        let (group, key) = self.entries.get_mut(slot as usize)?.take()?;
        self.order.remove(&(group, key, slot));
        Some(group)
    }

    /// The entry of this group with the lowest key, the lowest slot of several.
    #[inline]
    pub(crate) fn first_of(&self, group: G) -> Option<(K, u32)>
    where
        K: Bounded,
    {
        let (found, key, slot) = self.order.range((group, K::LEAST, 0)..).next()?;
        (*found == group).then_some((*key, *slot))
    }

    /// The entries of this group, by key and then by slot.
    pub(crate) fn of(&self, group: G) -> impl Iterator<Item = (K, u32)> + '_
    where
        K: Bounded,
    {
        let all = (group, K::LEAST, 0)..=(group, K::GREATEST, u32::MAX);
        self.order.range(all).map(|(_, key, slot)| (*key, *slot))
    }

    /// The next group with entries after this one, in a circle; without one, the first.
    #[inline]
    pub(crate) fn group_after(&self, group: Option<G>) -> Option<G>
    where
        K: Bounded,
    {
        let next = group.and_then(|group| {
            let last = (group, K::GREATEST, u32::MAX);
            self.order.range((Bound::Excluded(last), Bound::Unbounded)).next()
        });
        next.or_else(|| self.order.first()).map(|(group, ..)| *group)
    }
}

/// Keys with a least and a greatest value.
pub(crate) trait Bounded {
    const LEAST: Self;
    const GREATEST: Self;
}

impl Bounded for (u64, u64) {
    const LEAST: Self = (0, 0);
    const GREATEST: Self = (u64::MAX, u64::MAX);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_core::Rng;

    #[test]
    fn agrees_with_a_table() {
        let mut rng = Rng::stream(1, 0, 0, "grouped");
        let mut set = Grouped::default();
        let mut table: [Option<(u32, (u64, u64))>; 12] = [None; 12];
        for _ in 0..10_000 {
            let slot = rng.below(12) as u32;
            let (group, key) = (rng.below(4) as u32, (rng.below(5), rng.below(3)));
            if rng.chance(0.6) {
                set.set(slot, group, key);
                table[slot as usize] = Some((group, key));
            } else {
                let before = table[slot as usize].take();
                assert_eq!(set.remove(slot), before.map(|(group, _)| group));
            }
            let all = || table.iter().zip(0_u32..).filter_map(|(at, slot)| at.map(|at| (at, slot)));
            let of_group = all().filter(|((g, _), _)| *g == group);
            assert_eq!(set.first_of(group), of_group.map(|((_, key), slot)| (key, slot)).min());
            let mut of_group: Vec<_> = all()
                .filter(|((g, _), _)| *g == group)
                .map(|((_, key), slot)| (key, slot))
                .collect();
            of_group.sort_unstable();
            assert_eq!(set.of(group).collect::<Vec<_>>(), of_group);
            let groups = || all().map(|((group, _), _)| group);
            let next = groups().filter(|g| *g > group).min().or_else(|| groups().min());
            assert_eq!(set.group_after(Some(group)), next);
            assert_eq!(set.group_after(None), groups().min());
            assert_eq!(set.is_empty(), all().next().is_none());
        }
    }
}
