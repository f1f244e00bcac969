//! The grantable messages of one peer, in order.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::grants::Key;

/// Messages in the order of [`Key`]. The first few, which nearly all operations concern, are in a list; a
/// backlog of many thousand streams behind them is in a tree.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Grantable {
    first: SmallVec<[Key; 1]>,
    /// The other messages, all after those in `first`; empty unless `first` is full.
    rest: BTreeSet<Key>,
}

/// How an operation has changed the first few messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// The message that has become one of them.
    pub(super) joins: Option<Key>,
    /// The message that is no longer one of them.
    pub(super) leaves: Option<Key>,
}

impl Grantable {
    /// Adds a message. The first `limit` messages are in the list.
    pub(super) fn insert(&mut self, key: Key, limit: usize) -> Change {
        if self.first.len() >= limit && self.first.last().is_some_and(|last| *last < key) {
            self.rest.insert(key);
            return Change::default();
        }
        let at = self.first.partition_point(|other| *other < key);
        self.first.insert(at, key);
        let leaves = if self.first.len() > limit { self.first.pop() } else { None };
        self.rest.extend(leaves);
        Change { joins: Some(key), leaves }
    }

    /// Removes a message, if it is present.
    pub(super) fn remove(&mut self, key: Key) -> Change {
        let Ok(at) = self.first.binary_search(&key) else {
            self.rest.remove(&key);
            return Change::default();
        };
        self.first.remove(at);
        let joins = self.rest.pop_first();
        self.first.extend(joins);
        Change { joins, leaves: Some(key) }
    }

    /// Replaces `old` by `new` if that message is and remains one of the first; otherwise does nothing. Returns
    /// whether it did.
    pub(super) fn moves_within_first(&mut self, old: Key, new: Key) -> bool {
        let Ok(from) = self.first.binary_search(&old) else { return false };
        if self.rest.first().is_some_and(|next| *next < new) {
            return false;
        }
        let to = self.first.partition_point(|other| *other < new);
        if to <= from {
            self.first[to..=from].rotate_right(1);
            self.first[to] = new;
        } else {
            self.first[from..to].rotate_left(1);
            self.first[to - 1] = new;
        }
        true
    }

    /// Whether this message is present.
    pub(super) fn contains(&self, key: Key) -> bool {
        self.first.binary_search(&key).is_ok() || self.rest.contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn apply(active: &mut BTreeSet<Key>, change: Change) {
        active.extend(change.joins);
        if let Some(key) = change.leaves {
            assert!(active.remove(&key));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Compared with a sorted list: `first` always holds the first `limit` messages.
        #[test]
        fn the_first_are_first(
            limit in 1_usize..4,
            steps in prop::collection::vec((0_u32..3, 0_u32..8, 0_u32..20), 1..100),
        ) {
            let mut grantable = Grantable::default();
            let mut table = BTreeSet::new();
            let mut active = BTreeSet::new();
            for (what, slot, left) in steps {
                let new = Key { left, birth: u64::from(slot), slot };
                let old = table.iter().find(|key: &&Key| key.slot == slot).copied();
                match (what, old) {
                    (0, Some(old)) => {
                        table.remove(&old);
                        apply(&mut active, grantable.remove(old));
                        prop_assert!(!grantable.contains(old));
                    }
                    (_, Some(old)) => {
                        table.remove(&old);
                        table.insert(new);
                        if grantable.moves_within_first(old, new) {
                            prop_assert!(active.remove(&old));
                            active.insert(new);
                        } else {
                            apply(&mut active, grantable.remove(old));
                            apply(&mut active, grantable.insert(new, limit));
                        }
                    }
                    (_, None) => {
                        table.insert(new);
                        apply(&mut active, grantable.insert(new, limit));
                    }
                }
                prop_assert!(table.iter().take(limit).eq(&active));
                prop_assert!(active.iter().eq(&grantable.first));
                prop_assert!(table.iter().all(|key| grantable.contains(*key)));
            }
        }
    }
}
