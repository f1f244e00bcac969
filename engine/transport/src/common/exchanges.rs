//! The state of exchanges (a request with its response, or a one-way message), and the slab that holds them.

use rackweave_core::{HostId, Kind, MessageId, Refused, Span, Submit, Time, prefetch};
use rustc_hash::FxHashMap;

use super::Finished;

/// An exchange. Only one of its two directions is active at a time, because the response acknowledges the
/// request.
#[derive(Debug)]
pub(crate) struct Exchange<O, I> {
    /// The id of the exchange at this host: even if this host is the client, otherwise odd.
    pub(crate) local: u64,
    /// The other end of the exchange.
    pub(crate) peer: HostId,
    /// The order in which the exchanges of a host were created.
    pub(crate) birth: u64,
    /// Whether the message is one-way, without a response.
    pub(crate) one_way: bool,
    /// When this host submitted the message that it sends; for others, when the exchange began.
    pub(crate) since: Time,
    /// The active direction and its state.
    pub(crate) state: State<O, I>,
}

impl<O, I> Exchange<O, I> {
    /// Whether this host started the exchange.
    #[inline]
    pub(crate) const fn is_client(&self) -> bool {
        self.local & 1 == 0
    }

    /// The id of the message that this host receives in the exchange.
    pub(crate) const fn arriving(&self) -> MessageId {
        MessageId(self.local ^ 1)
    }

    /// The kind of that message.
    pub(crate) const fn arriving_kind(&self) -> Kind {
        match (self.is_client(), self.one_way) {
            (true, _) => Kind::Response,
            (false, true) => Kind::OneWay,
            (false, false) => Kind::Request,
        }
    }
}

/// The active direction of an exchange.
#[derive(Debug)]
pub(crate) enum State<O, I> {
    /// The slot is free; holds the next free slot.
    Free(u32),
    /// This host sends: a client its request or one-way message, a server its response.
    Sending(O),
    /// This host is a client whose request was acknowledged, and no packet of the response has arrived.
    Awaiting(Awaiting),
    /// This host receives: a client the response, a server the request or one-way message.
    Receiving(I),
    /// The request was delivered to the server's application, which has not answered yet.
    InService,
}

/// The timers of a client that awaits its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaiting {
    /// When the client next asks the server.
    pub(crate) ask_at: Time,
    /// When a packet of the server last arrived.
    pub(crate) last_received: Time,
}

/// The state of an exchange id at this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The id is unknown, or was forgotten.
    No,
    /// The exchange is in progress, in this slot.
    Slot(u32),
    /// The exchange has ended and is remembered.
    Finished,
}

/// The end of the free list.
const NONE: u32 = u32::MAX;

/// Bounds of the memory for exchanges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of exchanges in progress.
    pub(crate) live: u32,
    /// Maximum number of finished exchanges that are remembered. At this number no new exchange is accepted.
    pub(crate) finished: u32,
    /// Minimum time for which a finished exchange is remembered, so that late or duplicate packets do not start
    /// a new one.
    pub(crate) finished_for: Span,
}

/// The exchanges of a host: a slab of those in progress, with an index by peer and id, and the finished ones.
#[derive(Debug)]
pub(crate) struct Exchanges<O, I> {
    limits: Limits,
    slots: Vec<Exchange<O, I>>,
    free: u32,
    live: u32,
    births: u64,
    index: FxHashMap<(HostId, u64), u32>,
    finished: Finished,
}

impl<O, I> Exchanges<O, I> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            slots: Vec::new(),
            free: NONE,
            live: 0,
            births: 0,
            index: FxHashMap::default(),
            finished: Finished::new(limits.finished_for),
        }
    }

    /// See [`rackweave_core::Transport::arrived_until`].
    pub(crate) const fn arrived_until(&mut self, at: Time) {
        self.finished.arrived_until(at);
    }

    /// Looks up the exchange with this local id.
    #[inline]
    pub(crate) fn find(&self, peer: HostId, local: u64) -> Known {
        match self.index.get(&(peer, local)) {
            Some(&slot) => Known::Slot(slot),
            None if self.finished.contains(peer, local) => Known::Finished,
            None => Known::No,
        }
    }

    /// Requests the cache lines of the exchange with this local id.
    #[inline]
    pub(crate) fn prefetch(&self, peer: HostId, local: u64) {
        if let Some(&slot) = self.index.get(&(peer, local)) {
            let exchange = &self.slots[slot as usize];
            prefetch(exchange);
            prefetch(&exchange.state);
        }
    }

    /// Checks a message before its submission. For a response, returns the slot of its exchange.
    pub(crate) fn check(&self, message: &Submit, max: u32) -> Result<Option<u32>, Refused> {
        if message.bytes > u64::from(max) {
            return Err(Refused::TooLong { max: u64::from(max) });
        }
        if message.bytes == 0 {
            return Err(Refused::Empty);
        }
        if message.id.is_response() != (message.kind == Kind::Response) {
            return Err(Refused::WrongId);
        }
        match (message.kind, self.find(message.peer, message.id.0)) {
            (Kind::Response, Known::Slot(slot)) => match self.get(slot).state {
                State::InService => Ok(Some(slot)),
                State::Sending(_) => Err(Refused::DuplicateId),
                _ => Err(Refused::UnknownRequest),
            },
            (Kind::Response, _) => Err(Refused::UnknownRequest),
            (_, Known::No) => Ok(None),
            (_, Known::Slot(_) | Known::Finished) => Err(Refused::DuplicateId),
        }
    }

    /// Adds an unknown exchange; `None` if there is no room for it, or none to remember it after its end.
    pub(crate) fn insert(
        &mut self,
        now: Time,
        peer: HostId,
        local: u64,
        one_way: bool,
        state: State<O, I>,
    ) -> Option<u32> {
        self.finished.forget(now);
        if self.live >= self.limits.live || self.finished.len() >= self.limits.finished as usize {
            return None;
        }
        let birth = self.births;
        self.births += 1;
        self.live += 1;
        let exchange = Exchange { local, peer, birth, one_way, since: now, state };
        let slot = if self.free == NONE {
            self.slots.push(exchange);
            self.slots.len() as u32 - 1
        } else {
            let slot = self.free;
            if let State::Free(next) = self.slots[slot as usize].state {
                self.free = next;
            }
            self.slots[slot as usize] = exchange;
            slot
        };
        self.index.insert((peer, local), slot);
        Some(slot)
    }

    /// Frees a slot and returns its state. If `finished`, the exchange is remembered.
    pub(crate) fn remove(&mut self, now: Time, slot: u32, finished: bool) -> State<O, I> {
        let exchange = &mut self.slots[slot as usize];
        let key = (exchange.peer, exchange.local);
        let state = core::mem::replace(&mut exchange.state, State::Free(self.free));
        self.free = slot;
        self.live -= 1;
        self.index.remove(&key);
        if finished {
            self.finished.insert(now, key.0, key.1);
        }
        state
    }

    /// The slot of the exchange that the application means by this message, whether submitted or arriving;
    /// `None` if it is not in progress.
    pub(crate) fn find_message(&self, peer: HostId, id: MessageId) -> Option<u32> {
        let live = |local| match self.find(peer, local) {
            Known::Slot(slot) => Some((slot, matches!(self.get(slot).state, State::Sending(_)))),
            Known::No | Known::Finished => None,
        };
        // The local id of a submitted message is the message's own id. That of an arriving message is its
        // counterpart, and this host is not sending in that exchange.
        let submitted = live(id.0).filter(|(_, sends)| *sends || !id.is_response());
        let arriving = || live(id.0 ^ 1).filter(|(_, sends)| !*sends || id.is_response());
        submitted.or_else(arriving).map(|(slot, _)| slot)
    }

    /// Whether this message is arriving here.
    pub(crate) fn is_arriving(&self, peer: HostId, id: MessageId) -> bool {
        match self.find(peer, id.0 ^ 1) {
            Known::Slot(slot) => matches!(self.get(slot).state, State::Receiving(_)),
            Known::No | Known::Finished => false,
        }
    }

    /// The message to report in the [`Failed`](rackweave_core::Event::Failed) event if the exchange fails.
    /// `None` for a request that has not arrived completely: the server's application does not know it.
    pub(crate) fn failing(&self, slot: u32) -> Option<MessageId> {
        let exchange = self.get(slot);
        match exchange.state {
            State::Sending(_) | State::Awaiting(_) => Some(MessageId(exchange.local)),
            State::Receiving(_) => exchange.is_client().then_some(MessageId(exchange.local)),
            State::InService => Some(exchange.arriving()),
            State::Free(_) => None,
        }
    }

    /// Number of exchanges in progress.
    pub(crate) const fn live(&self) -> u32 {
        self.live
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> &Exchange<O, I> {
        &self.slots[slot as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Exchange<O, I> {
        &mut self.slots[slot as usize]
    }

    /// A message that this host sends and has submitted by `since`, from this slot on; returns its slot.
    pub(crate) fn next_submitted(&self, from: u32, since: Time) -> Option<u32> {
        let is_meant = |exchange: &Exchange<O, I>| {
            matches!(exchange.state, State::Sending(_)) && exchange.since <= since
        };
        let later = self.slots.get(from as usize..)?;
        later.iter().position(is_meant).map(|nth| from + nth as u32)
    }

    /// The exchanges in progress.
    #[cfg(any(test, feature = "suite"))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Exchange<O, I>> {
        self.slots.iter().filter(|exchange| !matches!(exchange.state, State::Free(_)))
    }

    /// Asserts that the counts agree with each other and with the limits.
    #[cfg(any(test, feature = "suite"))]
    pub(crate) fn check_bounds(&self) {
        assert_eq!(self.iter().count(), self.live as usize);
        assert_eq!(self.index.len(), self.live as usize);
        assert!(self.slots.len() <= self.limits.live as usize);
        assert!(self.finished.len() <= (self.limits.finished + self.limits.live) as usize);
    }
}
