//! What a host knows of each exchange (a request with its response, or a one-way message), and the
//! slab that holds them.

use rackweave_core::{HostId, Kind, MessageId, Refused, Span, Submit, Time};
use rustc_hash::FxHashMap;

use super::Finished;

/// An exchange. Of its two directions only one is under way at a time, because the response says
/// that the request has arrived.
#[derive(Debug)]
pub(crate) struct Exchange<O, I> {
    /// The id at this host: even if this host is the client, else odd.
    pub(crate) local: u64,
    /// The other host.
    pub(crate) peer: HostId,
    /// The order in which exchanges came to be.
    pub(crate) birth: u64,
    /// No response is expected.
    pub(crate) one_way: bool,
    /// What is under way.
    pub(crate) state: State<O, I>,
}

impl<O, I> Exchange<O, I> {
    /// Whether this host began it.
    #[inline]
    pub(crate) const fn is_client(&self) -> bool {
        self.local & 1 == 0
    }

    /// The message that arrives or has arrived here.
    pub(crate) const fn arriving(&self) -> MessageId {
        MessageId(self.local ^ 1)
    }

    /// What that message is.
    pub(crate) const fn arriving_kind(&self) -> Kind {
        match (self.is_client(), self.one_way) {
            (true, _) => Kind::Response,
            (false, true) => Kind::OneWay,
            (false, false) => Kind::Request,
        }
    }
}

/// What of an exchange is under way.
#[derive(Debug)]
pub(crate) enum State<O, I> {
    /// The slot is free; the next free one.
    Free(u32),
    /// A request or one-way message at the client, a response at the server.
    Sending(O),
    /// The client's request has arrived; nothing of the response has.
    Awaiting(Awaiting),
    /// A response at the client, a request or one-way message at the server.
    Receiving(I),
    /// The server's application has the request.
    InService,
}

/// A client that waits for its server's application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaiting {
    /// When the server is asked next.
    pub(crate) ask_at: Time,
    /// When the server last answered.
    pub(crate) last_received: Time,
}

/// What the host knows of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing.
    No,
    /// It is under way, in this slot.
    Slot(u32),
    /// It is finished.
    Finished,
}

/// "No slot".
const NONE: u32 = u32::MAX;

/// What bounds the memory for exchanges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Exchanges under way.
    pub(crate) live: u32,
    /// Finished ones that are remembered; while that many are, no new one begins.
    pub(crate) finished: u32,
    /// For how long they are remembered at least, so that packets that come late or twice are not taken for
    /// a new one.
    pub(crate) finished_for: Span,
}

/// The exchanges of a host.
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

    /// What is known of the exchange with this local id.
    #[inline]
    pub(crate) fn find(&self, peer: HostId, local: u64) -> Known {
        match self.index.get(&(peer, local)) {
            Some(&slot) => Known::Slot(slot),
            None if self.finished.contains(peer, local) => Known::Finished,
            None => Known::No,
        }
    }

    /// Checks a message that is to be sent. A response's exchange is returned.
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

    /// Adds an exchange that is not known; `None` if there is no room for it, or to remember it.
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
        let exchange = Exchange { local, peer, birth, one_way, state };
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

    /// Frees a slot. If the exchange is `finished`, it is remembered as such.
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

    /// The exchange that the application means by this message, if it is under way: one that it
    /// submitted, or one that arrives.
    pub(crate) fn find_message(&self, peer: HostId, id: MessageId) -> Option<u32> {
        let live = |local| match self.find(peer, local) {
            Known::Slot(slot) => Some((slot, matches!(self.get(slot).state, State::Sending(_)))),
            Known::No | Known::Finished => None,
        };
        // Submitted here: the local id is the message's. Arriving: it is the other one, and not yet
        // (or not any more) the way on which something is sent.
        let submitted = live(id.0).filter(|(_, sends)| *sends || !id.is_response());
        let arriving = || live(id.0 ^ 1).filter(|(_, sends)| !*sends || id.is_response());
        submitted.or_else(arriving).map(|(slot, _)| slot)
    }

    /// Whether this message arrives here.
    pub(crate) fn is_arriving(&self, peer: HostId, id: MessageId) -> bool {
        match self.find(peer, id.0 ^ 1) {
            Known::Slot(slot) => matches!(self.get(slot).state, State::Receiving(_)),
            Known::No | Known::Finished => false,
        }
    }

    /// The message of the [`Failed`](rackweave_core::Event::Failed) event if the exchange fails. (A server's
    /// application does not know a request that did not arrive whole.)
    pub(crate) fn failing(&self, slot: u32) -> Option<MessageId> {
        let exchange = self.get(slot);
        match exchange.state {
            State::Sending(_) | State::Awaiting(_) => Some(MessageId(exchange.local)),
            State::Receiving(_) => exchange.is_client().then_some(MessageId(exchange.local)),
            State::InService => Some(exchange.arriving()),
            State::Free(_) => None,
        }
    }

    /// How many are under way.
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

    /// Exchanges under way.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Exchange<O, I>> {
        self.slots.iter().filter(|exchange| !matches!(exchange.state, State::Free(_)))
    }

    /// Checks the counts against each other and against the limits.
    #[cfg(test)]
    pub(crate) fn check_bounds(&self) {
        assert_eq!(self.iter().count(), self.live as usize);
        assert_eq!(self.index.len(), self.live as usize);
        assert!(self.slots.len() <= self.limits.live as usize);
        assert!(self.finished.len() <= (self.limits.finished + self.limits.live) as usize);
    }
}
