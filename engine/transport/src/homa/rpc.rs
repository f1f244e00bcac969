//! The state of RPCs, and the slab that holds them.

use core::hash::{Hash, Hasher};

use rackweave_core::{Assembler, HostId, prefetch_two};
use rackweave_wire::homa::stream::Reason;
use rustc_hash::FxHashMap;

use super::stream::Stream;

/// An RPC or a one-way message. Only one of its two directions is active at a time, because the response
/// implies that the request has arrived.
///
/// What packets read comes first, in two cache lines.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Rpc {
    /// The id of the RPC at this host: even if this host is the client, otherwise odd.
    pub(super) id: u64,
    /// The other end of the RPC.
    pub(super) host: HostId,
    /// The slot of the peer.
    pub(super) peer: u32,
    /// The order in which the RPCs of a host were created.
    pub(super) birth: u64,
    /// Whether the message is one-way, without a response.
    pub(super) one_way: bool,
    /// Number of ticks without a packet from the peer.
    pub(super) silent: u16,
    /// Number of RESENDs and similar packets since the peer's last packet.
    pub(super) asked: u16,
    /// Number of silent ticks at which the peer is asked next.
    pub(super) next_ask: u16,
    /// Number of consecutive BUSY packets.
    pub(super) busy: u16,
    /// Number of restarts of the message because the peer did not know it.
    pub(super) restarts: u16,
    /// One more than the number of silent ticks at the peer's first refusal of this one-way message; 0 if it has not refused it.
    pub(super) refused: u16,
    /// Whether the peer's last packet was UNKNOWN.
    pub(super) unknown: bool,
    /// The active direction and its state.
    pub(super) state: State,
    /// The tick of the last RESEND; before the first, that in which the RPC was created.
    pub(super) resent_at: u64,
    /// The ticks that the host had missed when the present silence began.
    pub(super) missed_before: u64,
}

impl Rpc {
    /// Records that the peer is alive and knows the RPC. It is asked next after `resend_ticks` of silence.
    #[inline]
    pub(super) const fn note_alive(&mut self, resend_ticks: u16) {
        self.restart_silence(resend_ticks);
        self.asked = 0;
        self.restarts = 0;
        self.refused = 0;
        self.unknown = false;
    }

    /// The message that arrives, or the direction of a stream that this host receives.
    #[inline]
    pub(super) fn incoming(&self) -> Option<&Incoming> {
        match &self.state {
            State::Receiving(incoming) => Some(incoming),
            State::Stream(stream) => Some(&stream.receive.incoming),
            _ => None,
        }
    }

    /// As [`Rpc::incoming`], mutable.
    #[inline]
    pub(super) fn incoming_mut(&mut self) -> Option<&mut Incoming> {
        match &mut self.state {
            State::Receiving(incoming) => Some(incoming),
            State::Stream(stream) => Some(&mut stream.receive.incoming),
            _ => None,
        }
    }

    /// Restarts the count of silent ticks.
    #[inline]
    pub(super) const fn restart_silence(&mut self, next_ask: u16) {
        self.silent = 0;
        self.next_ask = next_ask;
    }
}

/// The active direction of an RPC.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// The slot is free; holds the next free slot.
    Free(u32),
    /// OUTGOING: this host sends, a client its request or one-way message, a server its response.
    Sending(Outgoing),
    /// INCOMING: this host receives, a client the response, a server the request or one-way message.
    Receiving(Incoming),
    /// `IN_SERVICE`: the request was delivered to the server's application.
    InService,
    /// A stream, with both directions active. Boxed, so that entries of messages stay small.
    Stream(Box<Stream>),
}

/// The sender's state of a message.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub(super) length: u32,
    /// Bytes before this offset may be sent.
    pub(super) granted: u32,
    /// Number of bytes that need no grant.
    pub(super) unscheduled: u32,
    /// The first byte that was not sent since the last restart of the message.
    pub(super) next: u32,
    /// The first byte that was never sent. At the message's length, all of the message may have arrived.
    pub(super) sent_to: u32,
    /// Start of the range to retransmit.
    pub(super) resend_from: u32,
    /// End of that range; the range is empty if it is not above the start.
    pub(super) resend_to: u32,
    /// Priority of scheduled packets, from the newest grant.
    pub(super) priority: u8,
}

impl Outgoing {
    /// Whether there are new bytes that may be sent.
    pub(super) const fn is_ready(&self) -> bool {
        self.next < self.granted
    }
    /// Whether there are bytes to retransmit.
    pub(super) const fn needs_resend(&self) -> bool {
        self.resend_from < self.resend_to
    }
}

/// The receiver's state of a message.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    /// Length of the message; for a stream, the number of bytes written so far.
    pub(super) length: u32,
    /// Maximum offset that may be granted: the length, unless a stream's flow control limits it.
    pub(super) limit: u32,
    /// The peer may send the bytes before this offset.
    pub(super) granted: u32,
    /// Number of bytes that have not arrived.
    pub(super) left: u32,
    /// Priority of the newest grant.
    pub(super) priority: u8,
    /// Whether a GRANT is queued. Its fields are determined when it is sent.
    pub(super) grant_waits: bool,
    /// Whether its bytes count in `max_incoming`.
    pub(super) counts: bool,
    /// Bytes that RESENDs have requested and that have not arrived (see [`super::repair`]).
    pub(super) asked: u32,
    /// Gaps before this offset have been requested in the current repair; 0 if none or all of them were.
    pub(super) asked_to: u32,
    /// End of the current repair: what was granted when it started.
    pub(super) ask_until: u32,
    /// The tick of the last RESEND.
    pub(super) asked_at: u64,
    pub(super) received: Assembler<u32>,
}

impl Incoming {
    /// Bytes granted and not received.
    #[inline]
    pub(super) const fn in_flight(&self) -> u32 {
        self.granted.saturating_sub(self.length - self.left)
    }

    /// What counts of them in `max_incoming`.
    #[inline]
    pub(super) const fn counted(&self) -> u32 {
        if self.counts { self.in_flight() } else { 0 }
    }

    /// Whether there is something to grant.
    #[inline]
    pub(super) const fn is_grantable(&self) -> bool {
        self.granted < self.limit
    }
}

/// The end of the free list.
const NONE: u32 = u32::MAX;
/// A value in the index in place of a slot: the RPC has finished.
const FINISHED: u32 = u32::MAX - 1;
/// Likewise: a stream that was cancelled.
const CANCELLED: u32 = u32::MAX - 2;
/// Likewise: a stream whose deadline has passed.
const DEADLINE: u32 = u32::MAX - 3;
/// Likewise: a stream that failed for another reason.
const GIVEN_UP: u32 = u32::MAX - 4;
/// Likewise: the client has acknowledged the response.
const ACKNOWLEDGED: u32 = u32::MAX - 5;

/// What is remembered of an RPC that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// Nothing: no late packet of it can start it again.
    None,
    /// That it has finished. The peer may still send its message again.
    Finished,
    /// Likewise, and the peer has acknowledged that it knows: only packets that the network has delayed can follow.
    Acknowledged,
}

/// The state of an RPC id at this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// The id is unknown, or was forgotten.
    No,
    /// The RPC is in progress, in this slot.
    Slot(u32),
    /// The RPC has finished and is remembered.
    Finished,
}

/// The peer and the local id of an RPC. The index has an entry for each RPC that is remembered; two halves of the id
/// keep it at 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    host: HostId,
    id: [u32; 2],
}

impl Key {
    #[inline]
    const fn new(host: HostId, id: u64) -> Self {
        Self { host, id: [id as u32, (id >> 32) as u32] }
    }
}

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.host.0);
        state.write_u64(u64::from(self.id[1]) << 32 | u64::from(self.id[0]));
    }
}

/// An RPC that is found without the index.
#[derive(Clone, Copy, Debug)]
struct Recent {
    key: Key,
    slot: u32,
    /// The slot of its peer.
    peer: u32,
}

/// No recent RPC.
const NOTHING: Recent = Recent { key: Key::new(HostId(0), 0), slot: NONE, peer: NONE };

/// The RPCs of a host.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Rpcs {
    slots: Vec<Rpc>,
    /// The RPCs for which a packet of a message has last arrived: one with this host as the client, and one with this
    /// host as the server. In large fabrics each lookup in the index is two cache misses, and nearly all packets belong
    /// to few messages.
    recent: [Recent; 2],
    free: u32,
    live: u32,
    index: FxHashMap<Key, u32>,
    births: u64,
    /// A bit for each slot that is in use, so that a tick need not read all slots that ever were.
    used: Vec<u64>,
}

impl Default for Rpcs {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            recent: [NOTHING; 2],
            free: NONE,
            live: 0,
            births: 0,
            index: FxHashMap::default(),
            used: Vec::new(),
        }
    }
}

impl Rpcs {
    /// Looks up the RPC with this local id.
    #[inline]
    pub(super) fn find(&self, host: HostId, id: u64) -> Known {
        if let Some(recent) = self.recent(host, id) {
            return Known::Slot(recent.slot);
        }
        match self.index.get(&Key::new(host, id)) {
            None => Known::No,
            Some(&slot) if slot >= ACKNOWLEDGED => Known::Finished,
            Some(&slot) => Known::Slot(slot),
        }
    }

    /// The RPC with this local id, if it is a recent one.
    #[inline]
    fn recent(&self, host: HostId, id: u64) -> Option<Recent> {
        let recent = self.recent[(id & 1) as usize];
        (recent.slot != NONE && recent.key == Key::new(host, id)).then_some(recent)
    }

    /// As [`Self::find`], for a packet that others of the same message will probably follow.
    #[inline]
    pub(super) fn find_often(&mut self, host: HostId, id: u64) -> Known {
        let known = self.find(host, id);
        if let Known::Slot(slot) = known {
            let peer = self.slots[slot as usize].peer;
            self.recent[(id & 1) as usize] = Recent { key: Key::new(host, id), slot, peer };
        }
        known
    }

    /// Requests the cache lines of the RPC with this local id; returns the slot of its peer, if that is known without
    /// waiting for them.
    #[inline]
    pub(super) fn prefetch(&self, host: HostId, id: u64) -> Option<u32> {
        match self.find(host, id) {
            Known::Slot(slot) => self.prefetch_slot(slot),
            _ => None,
        }
    }

    /// As [`Self::prefetch`], for the RPC in this slot.
    #[inline]
    pub(super) fn prefetch_slot(&self, slot: u32) -> Option<u32> {
        prefetch_two(&self.slots[slot as usize]);
        self.recent.iter().find(|recent| recent.slot == slot).map(|recent| recent.peer)
    }

    /// Adds an unknown RPC.
    pub(super) fn insert(
        &mut self,
        host: HostId,
        peer: u32,
        id: u64,
        one_way: bool,
        next_ask: u16,
        state: State,
    ) -> u32 {
        let birth = self.births;
        self.births += 1;
        self.live += 1;
        let rpc = Rpc {
            id,
            host,
            peer,
            birth,
            one_way,
            silent: 0,
            asked: 0,
            next_ask,
            resent_at: 0,
            busy: 0,
            restarts: 0,
            refused: 0,
            unknown: false,
            missed_before: 0,
            state,
        };
        let slot = if self.free == NONE {
            self.slots.push(rpc);
            self.slots.len() as u32 - 1
        } else {
            let slot = self.free;
            if let State::Free(next) = self.slots[slot as usize].state {
                self.free = next;
            }
            self.slots[slot as usize] = rpc;
            slot
        };
        self.index.insert(Key::new(host, id), slot);
        let word = slot as usize / 64;
        if word == self.used.len() {
            self.used.push(0);
        }
        self.used[word] |= 1 << (slot % 64);
        slot
    }

    /// The first slot in use from this one on.
    pub(super) fn next_used(&self, slot: u32) -> Option<u32> {
        let mut word = slot as usize / 64;
        let mut bits = self.used.get(word)? & u64::MAX << (slot % 64);
        while bits == 0 {
            word += 1;
            bits = *self.used.get(word)?;
        }
        Some(word as u32 * 64 + bits.trailing_zeros())
    }

    /// Frees a slot.
    pub(super) fn remove(&mut self, slot: u32, memory: Memory) {
        let rpc = &mut self.slots[slot as usize];
        let key = Key::new(rpc.host, rpc.id);
        let recent = &mut self.recent[(rpc.id & 1) as usize];
        if recent.slot == slot {
            *recent = NOTHING;
        }
        rpc.state = State::Free(self.free);
        self.free = slot;
        self.live -= 1;
        self.used[slot as usize / 64] &= !(1 << (slot % 64));
        match memory {
            Memory::None => drop(self.index.remove(&key)),
            Memory::Finished => drop(self.index.insert(key, FINISHED)),
            Memory::Acknowledged => drop(self.index.insert(key, ACKNOWLEDGED)),
        }
    }

    /// Forgets a finished RPC; returns whether its peer had acknowledged its end.
    pub(super) fn forget(&mut self, host: HostId, id: u64) -> bool {
        match self.index.get(&Key::new(host, id)) {
            Some(&slot) if slot >= ACKNOWLEDGED => {
                self.index.remove(&Key::new(host, id));
                slot == ACKNOWLEDGED
            }
            _ => false,
        }
    }

    /// Records how a finished stream ended.
    pub(super) fn set_ended(&mut self, host: HostId, id: u64, reason: Reason) {
        if let Some(slot) =
            self.index.get_mut(&Key::new(host, id)).filter(|slot| **slot >= ACKNOWLEDGED)
        {
            *slot = match reason {
                Reason::Closed => FINISHED,
                Reason::Cancelled => CANCELLED,
                Reason::Deadline => DEADLINE,
                Reason::Unknown => GIVEN_UP,
            };
        }
    }

    /// How a stream ended that is remembered as finished.
    pub(super) fn ended(&self, host: HostId, id: u64) -> Reason {
        match self.index.get(&Key::new(host, id)) {
            Some(&FINISHED) => Reason::Closed,
            Some(&CANCELLED) => Reason::Cancelled,
            Some(&DEADLINE) => Reason::Deadline,
            _ => Reason::Unknown,
        }
    }

    /// Number of RPCs in progress.
    pub(super) const fn live(&self) -> u32 {
        self.live
    }

    /// One past the highest slot.
    #[cfg(test)]
    pub(super) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> &Rpc {
        &self.slots[slot as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Rpc {
        &mut self.slots[slot as usize]
    }

    /// Asserts that the index holds the live RPCs and `finished` others, and that no list of gaps is too long.
    #[cfg(test)]
    pub(super) fn check(&self, finished: usize) {
        assert!(self.index.len() <= self.live as usize + finished);
        let live = self.slots.iter().filter(|rpc| !matches!(rpc.state, State::Free(_)));
        assert_eq!(live.count(), self.live as usize);
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rng;

    use super::*;

    #[test]
    fn an_rpc_that_has_ended_is_not_found_without_the_index() {
        let mut rpcs = Rpcs::default();
        let add = |rpcs: &mut Rpcs, host, id| {
            rpcs.insert(HostId(host), host, id, false, 0, State::InService)
        };
        let (client, server) = (add(&mut rpcs, 1, 2), add(&mut rpcs, 1, 3));
        for _ in 0..2 {
            assert_eq!(rpcs.find_often(HostId(1), 2), Known::Slot(client));
            assert_eq!(rpcs.find_often(HostId(1), 3), Known::Slot(server));
        }
        assert_eq!(rpcs.find(HostId(2), 2), Known::No, "the id of another peer");
        rpcs.remove(server, Memory::Finished);
        assert_eq!(rpcs.find(HostId(1), 3), Known::Finished);
        assert_eq!(rpcs.find(HostId(1), 2), Known::Slot(client));
        // Another one is in its slot.
        assert_eq!(add(&mut rpcs, 2, 5), server);
        assert_eq!(rpcs.find(HostId(1), 3), Known::Finished);
        assert_eq!(rpcs.find_often(HostId(2), 5), Known::Slot(server));
        rpcs.remove(client, Memory::None);
        assert_eq!(rpcs.find_often(HostId(1), 2), Known::No);
    }

    #[test]
    fn slots_in_use_are_found_in_order() {
        let mut rng = Rng::stream(8, 0, 0, "slots");
        let (mut rpcs, mut model) = (Rpcs::default(), std::collections::BTreeSet::new());
        for round in 0..20_000_u64 {
            // It grows to hundreds and shrinks to a few.
            let grows = round / 1_000 % 2 == 0;
            if rng.chance(if grows { 0.8 } else { 0.2 }) {
                let slot = rpcs.insert(HostId(1), 0, 2 * round, false, 0, State::InService);
                assert!(model.insert(slot));
            } else if let Some(slot) = rpcs.next_used(rng.below(u64::from(rpcs.slots()) + 1) as u32)
            {
                assert!(model.remove(&slot));
                rpcs.remove(slot, Memory::None);
            }
            if round % 50 == 0 {
                let first = rpcs.next_used(0);
                let found = std::iter::successors(first, |slot| rpcs.next_used(slot + 1));
                assert!(found.eq(model.iter().copied()), "round {round}");
            }
        }
        assert!(rpcs.slots() > 300, "the slots fill several words");
    }
}
