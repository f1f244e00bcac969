//! The state of an RPC, and the slab that holds them.

use rackweave_core::{Assembler, HostId};
use rackweave_wire::homa::stream::Reason;
use rustc_hash::FxHashMap;

use super::stream::Stream;

/// An RPC, or a one-way message. Only one of its two directions is active at a time, because the response
/// implies that the request has arrived.
#[derive(Clone, Debug)]
pub(super) struct Rpc {
    /// The id at this host: even if this host is the client, else odd.
    pub(super) id: u64,
    /// The other host.
    pub(super) host: HostId,
    /// Its place among the peers.
    pub(super) peer: u32,
    /// The order in which RPCs were created.
    pub(super) birth: u64,
    /// No response is expected.
    pub(super) one_way: bool,
    /// Ticks without a sign of life from the peer.
    pub(super) silent: u16,
    /// RESENDs (and the like) since the last sign of life.
    pub(super) asked: u16,
    /// Ticks of silence at which the peer is asked (again).
    pub(super) next_ask: u16,
    /// BUSY packets in a row.
    pub(super) busy: u16,
    /// How often it was restarted because the peer did not know it.
    pub(super) restarts: u16,
    /// The peer's last packet was UNKNOWN.
    pub(super) unknown: bool,
    /// What is under way.
    pub(super) state: State,
}

impl Rpc {
    /// The peer has shown that it is alive and knows the RPC; the next question is due after `resend_ticks` of
    /// silence.
    #[inline]
    pub(super) const fn note_alive(&mut self, resend_ticks: u16) {
        self.restart_silence(resend_ticks);
        self.asked = 0;
        self.restarts = 0;
        self.unknown = false;
    }

    /// What arrives: a message, or the direction of a stream that this host receives.
    #[inline]
    pub(super) fn incoming(&self) -> Option<&Incoming> {
        match &self.state {
            State::Receiving(incoming) => Some(incoming),
            State::Stream(stream) => Some(&stream.receive.incoming),
            _ => None,
        }
    }

    /// As [`Rpc::incoming`], to be changed.
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

/// Which direction of an RPC is active.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// The slot is free; the next free one.
    Free(u32),
    /// OUTGOING: a request or one-way message at the client, a response at the server.
    Sending(Outgoing),
    /// INCOMING: a response at the client, a request or one-way message at the server.
    Receiving(Incoming),
    /// `IN_SERVICE`: the server's application has the request.
    InService,
    /// Both directions of a stream. Boxed, so that messages' entries stay small.
    Stream(Box<Stream>),
}

/// A message that this host sends.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub(super) length: u32,
    /// All bytes below may be sent.
    pub(super) granted: u32,
    /// The bytes that need no grant.
    pub(super) unscheduled: u32,
    /// The first byte that was not sent since the message was last begun.
    pub(super) next: u32,
    /// The first byte that was never sent: all of the message may have arrived once there is none.
    pub(super) sent_to: u32,
    /// The range to retransmit: from here ...
    pub(super) resend_from: u32,
    /// ... to here; empty if not below.
    pub(super) resend_to: u32,
    /// Priority of scheduled packets: of the newest grant.
    pub(super) priority: u8,
}

impl Outgoing {
    /// Whether there are bytes that may be sent and never were.
    pub(super) const fn is_ready(&self) -> bool {
        self.next < self.granted
    }
    /// Whether bytes are to be sent again.
    pub(super) const fn needs_resend(&self) -> bool {
        self.resend_from < self.resend_to
    }
}

/// A message that this host receives.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    /// The length of the message; of a stream, what has been written so far.
    pub(super) length: u32,
    /// The most that may be granted: the length, unless a stream's flow control limits it.
    pub(super) limit: u32,
    /// All bytes below may be sent by the peer.
    pub(super) granted: u32,
    /// Bytes that have not arrived.
    pub(super) left: u32,
    /// Priority of the newest grant.
    pub(super) priority: u8,
    /// A GRANT is queued: its fields will be looked up when it is sent.
    pub(super) grant_waits: bool,
    /// Bytes that RESENDs requested and that have not arrived (see [`super::repair`]).
    pub(super) asked: u32,
    /// Gaps up to here have been requested, those beyond not yet; 0: none, or all.
    pub(super) asked_to: u32,
    /// Where the gaps end that are being requested: what was granted when the first of them was requested.
    pub(super) ask_until: u32,
    /// The tick of the last RESEND.
    pub(super) asked_at: u32,
    pub(super) received: Assembler<u32>,
}

impl Incoming {
    /// Bytes granted and not received: what counts towards `max_incoming`.
    #[inline]
    pub(super) const fn in_flight(&self) -> u32 {
        self.granted.saturating_sub(self.length - self.left)
    }

    /// Whether there is something to grant.
    #[inline]
    pub(super) const fn is_grantable(&self) -> bool {
        self.granted < self.limit
    }
}

/// The end of the free list.
const NONE: u32 = u32::MAX;
/// In the index, instead of a slot: the RPC is finished.
const FINISHED: u32 = u32::MAX - 1;
/// Likewise: a stream that did not end well, and why.
const CANCELLED: u32 = u32::MAX - 2;
const DEADLINE: u32 = u32::MAX - 3;
const GIVEN_UP: u32 = u32::MAX - 4;

/// The state of an id at this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Unknown, or forgotten.
    No,
    /// It is under way, in this slot.
    Slot(u32),
    /// It is finished.
    Finished,
}

/// The RPCs of a host.
#[derive(Debug)]
pub(super) struct Rpcs {
    slots: Vec<Rpc>,
    free: u32,
    live: u32,
    births: u64,
    index: FxHashMap<(HostId, u64), u32>,
}

impl Default for Rpcs {
    fn default() -> Self {
        Self { slots: Vec::new(), free: NONE, live: 0, births: 0, index: FxHashMap::default() }
    }
}

impl Rpcs {
    /// The state of the RPC with this local id.
    #[inline]
    pub(super) fn find(&self, host: HostId, id: u64) -> Known {
        match self.index.get(&(host, id)) {
            None => Known::No,
            Some(&slot) if slot >= GIVEN_UP => Known::Finished,
            Some(&slot) => Known::Slot(slot),
        }
    }

    /// Adds an RPC that is not known.
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
            busy: 0,
            restarts: 0,
            unknown: false,
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
        self.index.insert((host, id), slot);
        slot
    }

    /// Frees a slot; whether the id is `finished` or forgotten.
    pub(super) fn remove(&mut self, slot: u32, finished: bool) {
        let rpc = &mut self.slots[slot as usize];
        let key = (rpc.host, rpc.id);
        rpc.state = State::Free(self.free);
        self.free = slot;
        self.live -= 1;
        if finished {
            self.index.insert(key, FINISHED);
        } else {
            self.index.remove(&key);
        }
    }

    /// Forgets that an RPC is finished.
    pub(super) fn forget(&mut self, host: HostId, id: u64) {
        if self.find(host, id) == Known::Finished {
            self.index.remove(&(host, id));
        }
    }

    /// Remembers of a finished stream how it ended.
    pub(super) fn set_ended(&mut self, host: HostId, id: u64, reason: Reason) {
        if let Some(slot) = self.index.get_mut(&(host, id)).filter(|slot| **slot >= GIVEN_UP) {
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
        match self.index.get(&(host, id)) {
            Some(&FINISHED) => Reason::Closed,
            Some(&CANCELLED) => Reason::Cancelled,
            Some(&DEADLINE) => Reason::Deadline,
            _ => Reason::Unknown,
        }
    }

    /// How many are under way.
    pub(super) const fn live(&self) -> u32 {
        self.live
    }

    /// One past the highest slot.
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

    /// Checks that the index holds what is live and `finished` others, and no gap list is long.
    #[cfg(test)]
    pub(super) fn check(&self, finished: usize) {
        assert!(self.index.len() <= self.live as usize + finished);
        let live = self.slots.iter().filter(|rpc| !matches!(rpc.state, State::Free(_)));
        assert_eq!(live.count(), self.live as usize);
    }
}
