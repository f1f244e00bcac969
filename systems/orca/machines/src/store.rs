//! The controller's store of sessions, packed so that a million of them with their members fit into tens of megabytes.

use rackweave_core::HostId;
use rackweave_core::rng::mix;
use rackweave_wire::orca::Session;

/// A session as it is stored.
#[derive(Clone, Debug)]
struct Stored {
    session: Session,
    sender: HostId,
    change: u32,
    mentioned_ms: u32,
    /// For each rack with members, in order: the rack (2 bytes), the number of members (1 byte), and their ports, as
    /// one byte each or, from [`BITMAP_FROM`] members on, as a bitmap of 8 bytes.
    members: Box<[u8]>,
}

/// The number of members of a rack from which their ports are stored as a bitmap.
const BITMAP_FROM: u32 = 8;

/// A session in the store, without its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The host that sends the session.
    pub sender: HostId,
    /// The number of the last change of members.
    pub change: u32,
    /// The time at which the sender last mentioned the session, in milliseconds modulo 2^32.
    pub mentioned_ms: u32,
}

impl Stored {
    const fn known(&self) -> Known {
        Known { sender: self.sender, change: self.change, mentioned_ms: self.mentioned_ms }
    }
}

/// A table of all sessions with their members.
#[derive(Clone, Debug, Default)]
pub struct Store {
    slots: Vec<Option<Stored>>,
    free: Vec<u32>,
    /// A hash index with open addressing, which holds slot numbers plus one, and 0 where it is empty.
    index: Vec<u32>,
    live: usize,
}

impl Store {
    /// Returns the number of sessions.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.live
    }

    /// Returns whether there are no sessions.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Returns the memory of all sessions in bytes, as requested from the allocator.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let members: usize = self.slots.iter().flatten().map(|stored| stored.members.len()).sum();
        size_of::<Self>()
            + self.slots.capacity() * size_of::<Option<Stored>>()
            + 4 * (self.free.capacity() + self.index.capacity())
            + members
    }

    /// Returns the session with this number.
    #[must_use]
    pub fn get(&self, session: Session) -> Option<Known> {
        let stored = self.stored(session)?;
        Some(stored.known())
    }

    /// Adds a session without members. Returns false if the number is taken.
    pub fn create(&mut self, session: Session, sender: HostId) -> bool {
        if self.find(session).is_ok() {
            return false;
        }
        if (self.live + 1) * 8 > self.index.len() * 7 {
            self.grow();
        }
        let stored =
            Stored { session, sender, change: 0, mentioned_ms: 0, members: Box::default() };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(stored);
                slot
            }
            None => {
                self.slots.push(Some(stored));
                self.slots.len() as u32 - 1
            }
        };
        if let Err(at) = self.find(session) {
            self.index[at] = slot + 1;
        }
        self.live += 1;
        true
    }

    /// Sets the number of the last change of members.
    pub fn set_change(&mut self, session: Session, change: u32) {
        if let Some(stored) = self.stored_mut(session) {
            stored.change = change;
        }
    }

    /// Sets the time at which the sender last mentioned the session.
    pub fn set_mentioned(&mut self, session: Session, mentioned_ms: u32) {
        if let Some(stored) = self.stored_mut(session) {
            stored.mentioned_ms = mentioned_ms;
        }
    }

    /// Removes a session and returns the racks that had members.
    pub fn remove(&mut self, session: Session) -> Vec<u16> {
        let Ok(at) = self.find(session) else { return Vec::new() };
        let racks = self.members(session).map(|(rack, _)| rack).collect();
        let slot = self.index[at] - 1;
        self.slots[slot as usize] = None;
        self.free.push(slot);
        self.live -= 1;
        // Entries behind the hole move up unless that takes them before their home slot (deletion by backward shift).
        let slots = self.index.len();
        let (mut hole, mut next) = (at, (at + 1) % slots);
        while let Some(number) = self.index[next].checked_sub(1) {
            let home = self.slots[number as usize].as_ref().map_or(next, |s| self.home(s.session));
            let (from_home, from_hole) =
                ((next + slots - home) % slots, (next + slots - hole) % slots);
            if from_home >= from_hole {
                self.index[hole] = number + 1;
                hole = next;
            }
            next = (next + 1) % slots;
        }
        self.index[hole] = 0;
        racks
    }

    /// Returns the racks with members of a session, each with the ports of these members.
    pub fn members(&self, session: Session) -> impl Iterator<Item = (u16, u64)> + '_ {
        let packed = self.stored(session).map_or(&[][..], |stored| &stored.members);
        Members(packed)
    }

    /// Returns the ports of a session's members in a rack.
    #[must_use]
    pub fn ports(&self, session: Session, rack: u16) -> u64 {
        self.members(session).find(|(r, _)| *r == rack).map_or(0, |(_, ports)| ports)
    }

    /// Sets the ports of a session's members in a rack.
    pub fn set_ports(&mut self, session: Session, rack: u16, ports: u64) {
        let mut racks: Vec<_> = self.members(session).filter(|(r, _)| *r != rack).collect();
        if ports != 0 {
            let at = racks.partition_point(|(r, _)| *r < rack);
            racks.insert(at, (rack, ports));
        }
        self.set_members(session, &racks);
    }

    /// Sets all members: distinct racks in order, each with at least one port.
    pub fn set_members(&mut self, session: Session, racks: &[(u16, u64)]) {
        let Some(stored) = self.stored_mut(session) else { return };
        let mut packed = Vec::with_capacity(racks.len() * 4);
        for (rack, ports) in racks {
            packed.extend_from_slice(&rack.to_le_bytes());
            packed.push(ports.count_ones() as u8);
            if ports.count_ones() < BITMAP_FROM {
                packed.extend((0..64_u8).filter(|port| ports >> port & 1 == 1));
            } else {
                packed.extend_from_slice(&ports.to_le_bytes());
            }
        }
        stored.members = packed.into_boxed_slice();
    }

    /// Returns the number of slots, for [`Store::slot`].
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the session in a slot, if there is one. Slots are in the order of creation as long as no session is
    /// removed.
    #[must_use]
    pub fn slot(&self, slot: usize) -> Option<(Session, Known)> {
        let stored = self.slots.get(slot)?.as_ref()?;
        Some((stored.session, stored.known()))
    }

    fn stored(&self, session: Session) -> Option<&Stored> {
        let at = self.find(session).ok()?;
        self.slots[self.index[at] as usize - 1].as_ref()
    }

    fn stored_mut(&mut self, session: Session) -> Option<&mut Stored> {
        let at = self.find(session).ok()?;
        self.slots[self.index[at] as usize - 1].as_mut()
    }

    fn home(&self, session: Session) -> usize {
        let hash = mix(u64::from(session.0));
        ((u128::from(hash) * self.index.len() as u128) >> 64) as usize
    }

    /// Returns the index position of a session, or the one where it would be inserted (0 in an empty index).
    fn find(&self, session: Session) -> Result<usize, usize> {
        let slots = self.index.len();
        if slots == 0 {
            return Err(0);
        }
        let mut at = self.home(session);
        loop {
            // The loop ends, since an eighth of the index is free.
            let Some(number) = self.index[at].checked_sub(1) else { return Err(at) };
            if self.slots[number as usize].as_ref().is_some_and(|s| s.session == session) {
                return Ok(at);
            }
            at = if at + 1 == slots { 0 } else { at + 1 };
        }
    }

    fn grow(&mut self) {
        self.index = vec![0; (self.live + self.live / 4 + 16) * 8 / 7];
        for slot in 0..self.slots.len() {
            let Some(session) = self.slots[slot].as_ref().map(|stored| stored.session) else {
                continue;
            };
            if let Err(at) = self.find(session) {
                self.index[at] = slot as u32 + 1;
            }
        }
    }
}

/// Iterates over packed members.
struct Members<'a>(&'a [u8]);

impl Iterator for Members<'_> {
    type Item = (u16, u64);

    fn next(&mut self) -> Option<(u16, u64)> {
        let (head, rest) = self.0.split_first_chunk::<3>()?;
        let rack = u16::from_le_bytes([head[0], head[1]]);
        let (ports, rest) = if u32::from(head[2]) < BITMAP_FROM {
            let (ports, rest) = rest.split_at_checked(usize::from(head[2]))?;
            (ports.iter().fold(0, |all, port| all | 1 << (port & 63)), rest)
        } else {
            let (ports, rest) = rest.split_first_chunk::<8>()?;
            (u64::from_le_bytes(*ports), rest)
        };
        self.0 = rest;
        Some((rack, ports))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_agrees_with_a_map(
            changes in proptest::collection::vec((0..50_u32, 0..5_u16, any::<u64>(), 0..4_u8), 0..300)
        ) {
            let mut store = Store::default();
            let mut map: BTreeMap<u32, BTreeMap<u16, u64>> = BTreeMap::new();
            for (session, rack, ports, what) in changes {
                let ports = ports & ports >> 13;
                if what == 0 {
                    let racks = store.remove(Session(session));
                    let known = map.remove(&session).unwrap_or_default();
                    prop_assert_eq!(racks, known.into_keys().collect::<Vec<_>>());
                    continue;
                }
                prop_assert_eq!(store.create(Session(session), HostId(7)), !map.contains_key(&session));
                let members = map.entry(session).or_default();
                store.set_ports(Session(session), rack, ports);
                store.set_change(Session(session), u32::from(rack));
                if ports == 0 { members.remove(&rack); } else { members.insert(rack, ports); }
            }
            prop_assert_eq!(store.len(), map.len());
            for session in 0..50 {
                let members: BTreeMap<_, _> = store.members(Session(session)).collect();
                prop_assert_eq!(store.get(Session(session)).is_some(), map.contains_key(&session));
                prop_assert_eq!(members, map.get(&session).cloned().unwrap_or_default());
            }
            prop_assert_eq!((0..store.slots()).filter_map(|slot| store.slot(slot)).count(), map.len());
        }
    }
}
