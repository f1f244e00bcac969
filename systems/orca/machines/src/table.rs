//! The agent's table: the rack label of each session with receivers in its rack.
//!
//! The authors' agent keeps it in a cuckoo hash table of 48-bit addresses and 32-bit labels (`docs/protocols/orca.md#orca-agent`).
//! Open addressing with session numbers needs less memory per session.

use rackweave_core::Bitmap;
use rackweave_core::rng::mix;
use rackweave_wire::orca::Session;

use super::switch::is_newer;

/// The rack label of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The ports of its receivers, 0 without any.
    pub ports: u64,
    /// The version of the `Sync` that set it.
    pub version: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    session: u32,
    version: u32,
    ports: u64,
    /// Whether the slot is in use. This is a separate field because every number is a valid session number.
    used: bool,
}

/// The slots, as separate arrays so that no memory is lost to alignment.
#[derive(Clone, Debug, Default)]
struct Slots {
    sessions: Vec<u32>,
    versions: Vec<u32>,
    ports: Vec<u64>,
    used: Bitmap<u64>,
}

/// The result of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updated {
    /// The table holds the new label.
    Held,
    /// The table holds a later version, and is unchanged.
    Old,
    /// The table is full and holds no label of the session.
    Full,
}

/// Rack labels of up to millions of sessions, in a hash table with open addressing.
#[derive(Clone, Debug, Default)]
pub struct SessionTable {
    slots: Slots,
    /// The number of slots in use, including those of sessions that no longer have receivers.
    used: usize,
    live: usize,
    limit: usize,
}

/// The load factor at which the table grows, in 64ths.
const MAX_LOAD_64: usize = 54;

impl SessionTable {
    /// Returns an empty table for up to `limit` sessions.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self { limit: limit as usize, ..Self::default() }
    }

    /// Returns the number of sessions with receivers.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.live
    }

    /// Returns whether there are no sessions with receivers.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Returns the memory of the table in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let Slots { sessions, versions, ports, used } = &self.slots;
        size_of::<Self>()
            + 4 * (sessions.capacity() + versions.capacity())
            + 8 * (ports.capacity() + used.words().len())
    }

    /// Returns the label of a session.
    #[must_use]
    pub fn get(&self, session: Session) -> Option<Entry> {
        let slot = self.slots.get(self.find(session).ok()?);
        Some(Entry { ports: slot.ports, version: slot.version })
    }

    /// Returns the ports of a session, 0 if it is unknown.
    #[must_use]
    pub fn ports(&self, session: Session) -> u64 {
        self.get(session).map_or(0, |entry| entry.ports)
    }

    /// Sets the label of a session, unless a later version is in the table.
    pub fn set(&mut self, session: Session, entry: Entry) -> Updated {
        let place = self.find(session);
        if let Ok(at) = place {
            let slot = self.slots.get(at);
            if is_newer(slot.version, entry.version) {
                return Updated::Old;
            }
            self.live -= usize::from(slot.ports != 0);
            self.live += usize::from(entry.ports != 0);
            self.put(at, session, entry);
            return Updated::Held;
        }
        if entry.ports == 0 {
            return Updated::Held; // An unknown session needs no empty entry.
        }
        if self.live >= self.limit {
            return Updated::Full;
        }
        if (self.used + 1) * 64 > self.slots.len() * MAX_LOAD_64 {
            self.grow();
        }
        let Err(Some(at)) = self.find(session) else { return Updated::Full };
        self.used += 1;
        self.live += 1;
        self.put(at, session, entry);
        Updated::Held
    }

    fn put(&mut self, at: usize, session: Session, entry: Entry) {
        let Entry { ports, version } = entry;
        self.slots.set(at, Slot { session: session.0, version, ports, used: true });
    }

    /// Returns the slot of a session, or the one where it would be inserted (`None` in a table without slots).
    fn find(&self, session: Session) -> Result<usize, Option<usize>> {
        let slots = self.slots.len();
        if slots == 0 {
            return Err(None);
        }
        // The high half of the product is uniform for any number of slots.
        let hash = mix(u64::from(session.0));
        let mut at = ((u128::from(hash) * slots as u128) >> 64) as usize;
        for _ in 0..slots {
            if !self.slots.is_used(at) {
                return Err(Some(at));
            }
            if self.slots.sessions[at] == session.0 {
                return Ok(at);
            }
            at = if at + 1 == slots { 0 } else { at + 1 };
        }
        Err(None)
    }

    /// Grows by a quarter, and removes sessions without receivers. Their versions guard against old `Sync` packets,
    /// which are no longer in flight by then.
    fn grow(&mut self) {
        let slots = (self.live + self.live / 4 + 16) * 64 / MAX_LOAD_64;
        let old = std::mem::replace(&mut self.slots, Slots::with(slots));
        self.used = 0;
        for at in (0..old.len()).filter(|at| old.is_used(*at)) {
            let slot = old.get(at);
            if slot.ports == 0 {
                continue;
            }
            if let Err(Some(place)) = self.find(Session(slot.session)) {
                self.slots.set(place, slot);
                self.used += 1;
            }
        }
    }
}

impl Slots {
    fn with(slots: usize) -> Self {
        Self {
            sessions: vec![0; slots],
            versions: vec![0; slots],
            ports: vec![0; slots],
            used: Bitmap::new(slots as u64),
        }
    }

    const fn len(&self) -> usize {
        self.sessions.len()
    }

    fn is_used(&self, at: usize) -> bool {
        self.used.contains(at as u64)
    }

    fn get(&self, at: usize) -> Slot {
        let (session, version, ports) = (self.sessions[at], self.versions[at], self.ports[at]);
        Slot { session, version, ports, used: self.is_used(at) }
    }

    fn set(&mut self, at: usize, slot: Slot) {
        (self.sessions[at], self.versions[at]) = (slot.session, slot.version);
        self.ports[at] = slot.ports;
        if slot.used {
            self.used.insert(at as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(
            changes in proptest::collection::vec((0..40_u32, 0..4_u64, 0..6_u32), 0..400)
        ) {
            let mut table = SessionTable::new(1000);
            let mut map = BTreeMap::new();
            let mut version = u32::MAX - 200;
            for (session, ports, late) in changes {
                // Most updates arrive in order, some are older.
                version = version.wrapping_add(1);
                let entry = Entry { ports, version: version.wrapping_sub(if late > 4 { 50 } else { 0 }) };
                let old = map.get(&session).is_some_and(|known: &Entry| is_newer(known.version, entry.version));
                let updated = table.set(Session(session), entry);
                if old {
                    // The entry may be missing only if it was evicted for lack of room.
                    if table.get(Session(session)) != Some(entry) {
                        continue;
                    }
                    prop_assert!(map[&session].ports == 0);
                }
                prop_assert_eq!(updated, Updated::Held);
                map.insert(session, entry);
                prop_assert_eq!(table.ports(Session(session)), ports);
            }
            prop_assert_eq!(table.len(), map.values().filter(|entry| entry.ports != 0).count());
            for (session, entry) in map {
                prop_assert_eq!(table.ports(Session(session)), entry.ports);
            }
        }
    }

    #[test]
    fn a_million_sessions_take_25_bytes_each_at_most() {
        let mut table = SessionTable::new(1_000_000);
        for n in 0..1_000_000_u64 {
            let entry = Entry { ports: n + 1, version: n as u32 };
            assert_eq!(table.set(Session(mix(n) as u32), entry), Updated::Held);
        }
        // Of a million random numbers of 32 bits, some are equal.
        assert!((999_000..=1_000_000).contains(&table.len()));
        assert!(table.bytes() <= 25 * table.len(), "{} bytes", table.bytes());
        assert_eq!(table.ports(Session(mix(77) as u32)), 78);
        let mut full = SessionTable::new(3);
        for n in 0..5 {
            let updated = full.set(Session(n), Entry { ports: 1, version: 0 });
            assert_eq!(updated, if n < 3 { Updated::Held } else { Updated::Full });
        }
        let _ = full.set(Session(0), Entry { ports: 0, version: 1 });
        assert_eq!(full.set(Session(9), Entry { ports: 1, version: 1 }), Updated::Held);
    }
}
