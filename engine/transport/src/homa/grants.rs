//! Grants: the receiver grants few messages at a time, those with the fewest remaining bytes.

use core::mem::offset_of;
use std::collections::BTreeSet;

use rackweave_core::{Time, prefetch};
use smallvec::SmallVec;

use super::config::{Config, FifoGrants};
use super::grantable::{Change, Grantable};
use super::peer::Peers;
use super::rpc::{Incoming, Rpcs};

/// The order of grants: fewest bytes that have not arrived first, then the oldest message
/// (docs/protocols/homa.md#homa-grants, rule 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) left: u32,
    pub(super) birth: u64,
    pub(super) slot: u32,
}

/// A message that may be granted now, and the other inputs of the grant.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    granted: u32,
    length: u32,
    peer: u32,
    /// Maximum offset that may be granted: less than the length if a stream's flow control limits it.
    limit: u32,
}

/// Messages that are not completely granted.
///
/// Each peer has a list of its own, in [`super::peer::Peer`]. The first few of each (`max_rpcs_per_peer`) are
/// in the sorted list here, whose first few are granted. So a thousand messages of one peer cost no more than
/// one.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Grants {
    /// All messages by age, with their slots, if the oldest has a share.
    by_age: BTreeSet<(u64, u32)>,
    active: SmallVec<[Entry; 1]>,
    /// Bytes of all messages that are granted or unscheduled, and not received.
    pub(super) incoming: u64,
    /// Bytes granted in SRPT order since the last grant to the oldest message.
    since_fifo: u64,
}

/// A grant to make: the RPC's slot, the new limit, and the priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) slot: u32,
    pub(super) offset: u32,
    pub(super) priority: u8,
}

fn key_of(rpcs: &Rpcs, slot: u32, incoming: &Incoming) -> Key {
    Key { left: incoming.left, birth: rpcs.get(slot).birth, slot }
}

impl Grants {
    /// Where the fields begin that every packet of data reads.
    pub(super) const HOT: usize = offset_of!(Self, active);

    /// Requests the cache line of what each packet of data reads.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch(&self.active);
    }

    fn position(&self, key: Key) -> Result<usize, usize> {
        self.active.binary_search_by(|entry| entry.key.cmp(&key))
    }

    fn activate(&mut self, rpcs: &Rpcs, key: Key) {
        if let Some(incoming) = rpcs.get(key.slot).incoming()
            && let Err(at) = self.position(key)
        {
            let Incoming { granted, length, limit, .. } = *incoming;
            let peer = rpcs.get(key.slot).peer;
            self.active.insert(at, Entry { key, granted, length, limit, peer });
        }
    }

    fn deactivate(&mut self, key: Key) {
        if let Ok(at) = self.position(key) {
            self.active.remove(at);
        }
    }

    fn apply(&mut self, rpcs: &Rpcs, change: Change) {
        if let Some(key) = change.leaves {
            self.deactivate(key);
        }
        if let Some(key) = change.joins {
            self.activate(rpcs, key);
        }
    }

    /// Adds a message of the peer whose list is `list`.
    pub(super) fn add(
        &mut self,
        config: &Config,
        rpcs: &Rpcs,
        list: &mut Grantable,
        slot: u32,
        incoming: &Incoming,
    ) {
        let key = key_of(rpcs, slot, incoming);
        if config.grant_fifo_fraction > 0 {
            self.by_age.insert((key.birth, slot));
        }
        self.apply(rpcs, list.insert(key, config.max_rpcs_per_peer as usize));
    }

    /// Removes the message with this key.
    pub(super) fn remove(&mut self, rpcs: &Rpcs, list: &mut Grantable, key: Key) {
        self.by_age.remove(&(key.birth, key.slot));
        self.apply(rpcs, list.remove(key));
    }

    /// Updates the message under `old` when bytes of it have arrived, so that `left` remain, or when more of a
    /// stream has been written.
    pub(super) fn progress(
        &mut self,
        config: &Config,
        rpcs: &Rpcs,
        list: &mut Grantable,
        old: Key,
        left: u32,
    ) {
        let new = Key { left, ..old };
        if list.moves_within_first(old, new) {
            let Ok(from) = self.position(old) else { return };
            let to = self.active.partition_point(|entry| entry.key < new);
            if to <= from {
                self.active[to..=from].rotate_right(1);
                self.active[to].key = new;
            } else {
                self.active[from..to].rotate_left(1);
                self.active[to - 1].key = new;
            }
        } else if list.contains(old) {
            let change = list.remove(old);
            self.apply(rpcs, change);
            self.apply(rpcs, list.insert(new, config.max_rpcs_per_peer as usize));
        }
    }

    /// Updates the stream under `old` when more of it has been written, less of it remains, or more of it may
    /// be granted.
    pub(super) fn changed(
        &mut self,
        config: &Config,
        rpcs: &Rpcs,
        list: &mut Grantable,
        old: Key,
        incoming: &Incoming,
    ) {
        let new = Key { left: incoming.left, ..old };
        self.progress(config, rpcs, list, old, new.left);
        if let Ok(at) = self.position(new) {
            let Incoming { granted, length, limit, .. } = *incoming;
            let peer = self.active[at].peer;
            self.active[at] = Entry { key: new, granted, length, limit, peer };
        }
    }

    /// The places in `active` of the `n` messages that are granted, if these are not the first (docs/protocols/homa.md#homa-grants, rule 9):
    /// first the messages before which none of their peer stands, then those behind one, and so on.
    fn spread(&self, n: usize) -> SmallVec<[usize; 8]> {
        let mut peers: SmallVec<[(u32, usize); 8]> = SmallVec::new();
        // By the number of messages of the peer before it, and the place.
        let mut turns: SmallVec<[(usize, usize); 64]> = SmallVec::new();
        for (place, entry) in self.active.iter().enumerate() {
            let turn = match peers.iter_mut().find(|(peer, _)| *peer == entry.peer) {
                Some((_, messages)) => {
                    *messages += 1;
                    *messages
                }
                None => {
                    peers.push((entry.peer, 0));
                    0
                }
            };
            turns.push((turn, place));
            // Nothing that follows comes before these.
            if peers.len() == n {
                break;
            }
        }
        turns.sort_unstable();
        let mut granted: SmallVec<[usize; 8]> =
            turns.iter().take(n).map(|(_, place)| *place).collect();
        granted.sort_unstable();
        granted
    }

    /// The next grant in SRPT order at or after rank `from`, and the rank at which to continue
    /// (docs/protocols/homa.md#homa-grants, rules 2 to 6 and 9). `n` messages are granted at a time.
    pub(super) fn next(
        &self,
        config: &Config,
        peers: &Peers,
        from: usize,
    ) -> Option<(usize, Grant)> {
        let n = self.active.len().min(config.overcommit as usize);
        let measured = |entry: &Entry| match config.leverage.scheduled_window {
            true => peers.scheduled_window(entry.peer),
            false => 0,
        };
        let window_of = |entry: &Entry| match measured(entry) {
            0 => window(config, n),
            measured => measured,
        };
        let spread = (config.spread_over_peers && n < self.active.len()).then(|| self.spread(n));
        let place = |rank: usize| spread.as_ref().map_or(rank, |spread| spread[rank]);
        let granted_now = || (0..n).map(|rank| &self.active[place(rank)]);
        let max_incoming = if granted_now().any(|entry| measured(entry) > 0) {
            // "max_incomming = scheduled_window * max_overcommit" (Leverage Homa's slides). The windows of peers
            // differ, so each granted message contributes its own (our choice: docs/protocols/leverage-homa.md#leverage-homa).
            granted_now().map(|entry| u64::from(window_of(entry))).sum()
        } else {
            config.max_incoming
        };
        let available = max_incoming.saturating_sub(self.incoming);
        if available == 0 {
            return None;
        }
        for (rank, entry) in granted_now().enumerate().skip(from) {
            let received = entry.length - entry.key.left;
            let window = window_of(entry);
            let mut offset = config.whole_packets(received.saturating_add(window), entry.limit);
            if offset <= entry.granted {
                continue;
            }
            if u64::from(offset - entry.granted) > available {
                let clipped = entry.granted.saturating_add(available as u32);
                offset = config.whole_packets(clipped, entry.limit);
            }
            let priority = sched_priority(config, rank, n);
            return Some((rank, Grant { slot: entry.key.slot, offset, priority }));
        }
        None
    }

    /// Updates the message under `key` after a grant of `bytes` more bytes.
    pub(super) fn granted(&mut self, key: Key, offset: u32, bytes: u32) {
        self.since_fifo += u64::from(bytes);
        if let Ok(at) = self.position(key) {
            self.active[at].granted = offset;
        }
    }

    /// Whether no message may be granted.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }
}

/// The grants to the oldest message, which has a share of all.
#[derive(Debug, Default)]
pub(super) struct Fifo {
    /// The message, by birth and slot, that is granted by [`FifoGrants::ByTime`].
    oldest: Option<(u64, u32)>,
    /// When it is granted again.
    at: Time,
}

impl Fifo {
    /// Whether the next grant is for the oldest message (docs/protocols/homa.md#homa-grants, rules 7 and 8), which gets the
    /// configured share of all granted bytes, or of time. By time it is granted after another grant only.
    pub(super) fn is_due(
        &self,
        config: &Config,
        grants: &Grants,
        now: Time,
        has_granted: bool,
    ) -> bool {
        if config.grant_fifo_fraction == 0 {
            return false;
        }
        if config.fifo_grants == FifoGrants::ByTime {
            return has_granted && self.at <= now;
        }
        // Rounded up like the grant itself, so that the share is exact.
        let increment = u64::from(config.whole_packets(config.fifo_grant_increment, u32::MAX));
        let others =
            (1000 * increment / u64::from(config.grant_fifo_fraction)).saturating_sub(increment);
        grants.since_fifo >= others.max(1)
    }

    /// Restarts the count, and the interval, after a grant to the oldest message.
    pub(super) fn done(&mut self, config: &Config, grants: &mut Grants, now: Time) {
        grants.since_fifo = 0;
        self.at = now.saturating_add(config.fifo_interval());
    }

    /// The slot of the message that is granted: the oldest one that has at most `unscheduled_bytes` in flight
    /// (docs/protocols/homa.md#homa-grants, rule 7), or (rule 8) the same one again, and another only if a window and two increments are
    /// in flight, to which its sender does not respond.
    pub(super) fn oldest(&mut self, config: &Config, grants: &Grants, rpcs: &Rpcs) -> Option<u32> {
        let is_by_time = config.fifo_grants == FifoGrants::ByTime;
        let most = if is_by_time {
            let window = window(config, grants.active.len().min(config.overcommit as usize));
            window.saturating_add(config.fifo_grant_increment.saturating_mul(2)).saturating_sub(1)
        } else {
            config.unscheduled_bytes
        };
        let responds = |(_, slot): &(u64, u32)| {
            rpcs.get(*slot).incoming().is_some_and(|incoming| incoming.in_flight() <= most)
        };
        // A message that needs no grants has left. Older ones have many bytes in flight, so that there are few of them.
        let same = self.oldest.filter(|oldest| grants.by_age.contains(oldest) && responds(oldest));
        let oldest = same.or_else(|| grants.by_age.iter().copied().find(responds));
        self.oldest = oldest.filter(|_| is_by_time);
        oldest.map(|(_, slot)| slot)
    }
}

/// The window of each of `n` messages that are granted at a time (docs/protocols/homa.md#homa-grants, rule 4).
fn window(config: &Config, n: usize) -> u32 {
    match config.window {
        0 => u32::try_from(config.max_incoming / (n as u64 + 1)).unwrap_or(u32::MAX),
        window => window,
    }
}

/// The level of the message at this rank among `n`. The first message has the highest level. With fewer
/// messages than levels the lowest levels are used, so that a shorter message that arrives later gets a higher
/// one (SIGCOMM'18 section 3.4; docs/protocols/homa.md#homa-grants, rule 6).
fn sched_priority(config: &Config, rank: usize, n: usize) -> u8 {
    let highest = i64::from(config.max_sched_priority);
    let spare = (highest + 1 - n as i64).max(0);
    (highest - rank as i64 - spare).max(0) as u8
}
