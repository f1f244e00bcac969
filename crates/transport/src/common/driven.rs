//! The host of a receiver-driven transport (NDP, pHost, Polo): everything that does not depend on which one it is.
//!
//! All three exchange messages of the same life: a sender begins, its receiver decides by *credits* (pulls, tokens,
//! driving packets) what is sent further, and says when the message is complete; a client then waits for its response.
//! [`Driven`] holds the exchanges, the control packets that wait for the link, the timers and the events, and goes
//! through that life. A [`Scheme`] supplies what makes a protocol: its headers, the state of a message at either end,
//! who is given credit next, and what is done about losses.

use core::fmt::Debug;
use std::collections::VecDeque;
use std::sync::Arc;

use rackweave_core::{
    Event, FailReason, Framing, Header, HostId, Kind, MessageId, Node, Packet, Placement, Refused,
    Submit, Time, Transport,
};
use rackweave_wire::Id64;

use super::{
    Awaiting, CLIENT_PORT, Exchanges, Heap, Known, Limits, Parameters, SERVER_PORT, Scatter, State,
};

/// The rules of one receiver-driven transport.
pub trait Scheme: Debug + Sized {
    /// Its parameters.
    type Config: Parameters;
    /// Its header.
    type Header: Header;
    /// The types of its packets.
    type Body;
    /// A message on its way out.
    type Outgoing: Debug;
    /// A message on its way in.
    type Incoming: Debug;

    /// Asks whether the peer still knows the message.
    const ASK: Self::Body;
    /// Says that the message is not known.
    const UNKNOWN: Self::Body;

    /// The state of a host without messages.
    fn new(id: HostId, config: &Self::Config) -> Self;

    /// The header of a control packet.
    fn header(
        &mut self,
        config: &Self::Config,
        id: Id64,
        one_way: bool,
        body: Self::Body,
    ) -> Self::Header;

    /// The message that a packet belongs to, and whether it expects no response.
    fn message_of(header: &Self::Header) -> (u64, bool);

    /// Whether a packet goes from the message's sender to its receiver.
    fn is_from_sender(header: &Self::Header) -> bool;

    /// The answer to this packet of a message that has arrived whole; `None`: it needs none.
    fn complete(header: &Self::Header) -> Option<Self::Body>;

    /// The state of a message that was submitted.
    fn outgoing(
        &mut self,
        now: Time,
        bytes: u32,
        scatter: Scatter,
        config: &Self::Config,
    ) -> Self::Outgoing;

    /// A message was submitted, and its state is in this slot.
    fn submitted(host: &mut Driven<Self>, now: Time, slot: u32);

    /// Takes a packet that is addressed to this host and comes from another one.
    fn on_packet(host: &mut Driven<Self>, now: Time, packet: &Packet<Self::Header>) -> Placement;

    /// The next data packet, when no control packet waits.
    fn next_data(host: &mut Driven<Self>, now: Time) -> Option<Packet<Self::Header>>;

    /// The time has come that was returned by [`Scheme::poll_timeout`], or that of a message's timer.
    fn on_timeout(host: &mut Driven<Self>, now: Time);

    /// When the scheme wants to be called itself, apart from the messages' timers; [`Time::MAX`]: never.
    fn poll_timeout(&self) -> Time;

    /// When something has to be done about a message that is being sent; [`Time::MAX`]: never.
    fn sender_deadline(outgoing: &Self::Outgoing, config: &Self::Config) -> Time;

    /// When something has to be done about a message that arrives.
    fn receiver_deadline(incoming: &Self::Incoming, now: Time, config: &Self::Config) -> Time;

    /// The deadline of a message that is being sent has come.
    fn sender_due(host: &mut Driven<Self>, now: Time, slot: u32);

    /// The deadline of a message that arrives has come.
    fn receiver_due(host: &mut Driven<Self>, now: Time, slot: u32);

    /// The timer of a request that the application has, and has not answered, has come.
    fn in_service_due(host: &mut Driven<Self>, slot: u32) {
        host.timers.remove(slot);
    }

    /// Takes a message out of the scheme's own lists.
    fn leave_lists(&mut self, slot: u32);

    /// An exchange ends, or its request has arrived whole: called before its state is dropped.
    fn ended(_host: &mut Driven<Self>, _now: Time, _slot: u32) {}

    /// Takes back the state of a message that is not sent any more, so that its memory can be used again.
    fn recycle(&mut self, _outgoing: Self::Outgoing) {}

    /// Checks that no state of the scheme has outgrown the configuration, and that counts agree.
    #[cfg(test)]
    fn check_bounds(host: &Driven<Self>);
}

/// A receiver-driven transport at one host.
#[derive(Debug)]
pub struct Driven<S: Scheme> {
    pub(crate) id: HostId,
    pub(crate) config: Arc<S::Config>,
    pub(crate) exchanges: Exchanges<S::Outgoing, S::Incoming>,
    /// Control packets that wait for the link; they are sent before all data.
    control: VecDeque<(HostId, S::Header)>,
    pub(crate) timers: Heap<Time>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) scheme: S,
}

impl<S: Scheme> Driven<S> {
    /// The transport at host `id`, without any message. Hosts share their configuration, which its `check` must have
    /// passed.
    #[must_use]
    pub fn new(id: HostId, config: Arc<S::Config>) -> Self {
        let shared = config.shared();
        let limits = Limits {
            live: shared.max_exchanges,
            finished: shared.max_finished,
            finished_for: shared.finished_for,
        };
        Self {
            id,
            exchanges: Exchanges::new(limits),
            control: VecDeque::new(),
            timers: Heap::default(),
            events: VecDeque::new(),
            scheme: S::new(id, &config),
            config,
        }
    }

    /// How many exchanges are under way, in either direction.
    #[must_use]
    pub const fn exchanges_under_way(&self) -> u32 {
        self.exchanges.live()
    }

    /// Whether nothing is under way and nothing waits to be sent.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.exchanges.live() == 0 && self.control.is_empty() && self.events.is_empty()
    }

    /// Checks that no part of the state has outgrown the configuration.
    #[cfg(test)]
    pub(crate) fn check_bounds(&self) {
        self.exchanges.check_bounds();
        assert!(self.control.len() <= self.config.shared().max_control as usize);
        if self.exchanges.live() == 0 {
            assert!(self.timers.is_empty());
        }
        S::check_bounds(self);
    }

    /// Queues a control packet.
    #[inline]
    pub(crate) fn send_control(&mut self, dst: HostId, id: u64, one_way: bool, body: S::Body) {
        let header = self.scheme.header(&self.config, Id64::new(id), one_way, body);
        self.queue_control(dst, header);
    }

    /// Queues a control packet; with too many waiting it is lost, as any packet may be.
    #[inline]
    pub(crate) fn queue_control(&mut self, dst: HostId, header: S::Header) {
        if self.control.len() < self.config.shared().max_control as usize {
            self.control.push_back((dst, header));
        }
    }

    #[inline]
    pub(crate) fn packet(
        &self,
        dst: HostId,
        l3_bytes: u32,
        priority: u8,
        header: S::Header,
    ) -> Packet<S::Header> {
        // Messages to the server and their answers have the same two ports.
        let from_client = S::is_from_sender(&header) == (S::message_of(&header).0 & 1 == 0);
        let (source, destination) =
            if from_client { (CLIENT_PORT, SERVER_PORT) } else { (SERVER_PORT, CLIENT_PORT) };
        Packet::new(self.id, dst, l3_bytes, header)
            .with_priority(priority)
            .with_ports(source, destination)
            .sprayed(self.config.shared().spray)
    }

    pub(crate) fn leave_lists(&mut self, slot: u32) {
        self.scheme.leave_lists(slot);
        self.timers.remove(slot);
    }

    /// Ends an exchange without an event. `finished`: packets of it that still come are answered as those of a
    /// finished one.
    fn remove(&mut self, now: Time, slot: u32, finished: bool) {
        self.leave_lists(slot);
        S::ended(self, now, slot);
        if let State::Sending(outgoing) = self.exchanges.remove(now, slot, finished) {
            self.scheme.recycle(outgoing);
        }
    }

    /// Tells the application that an exchange will not complete, and forgets it.
    pub(crate) fn fail(&mut self, now: Time, slot: u32, reason: FailReason) {
        let exchange = self.exchanges.get(slot);
        let (peer, is_client) = (exchange.peer, exchange.is_client());
        let failing = self.exchanges.failing(slot);
        // A server that has begun to answer must not execute the request again.
        self.remove(now, slot, !is_client && failing.is_some());
        if let Some(id) = failing {
            self.events.push_back(Event::Failed { peer, id, reason });
        }
    }

    // --- the sender of a message

    /// The exchange in which this host sends message `id`, or waits for what it brings about.
    #[inline]
    pub(crate) fn outgoing_slot(&self, from: HostId, id: u64) -> Option<u32> {
        match self.exchanges.find(from, id) {
            Known::Slot(slot) => Some(slot),
            Known::No | Known::Finished => None,
        }
    }

    /// The whole message has arrived at its receiver.
    pub(crate) fn handle_complete(&mut self, now: Time, from: HostId, id: u64) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let exchange = self.exchanges.get_mut(slot);
        let (one_way, is_client) = (exchange.one_way, exchange.is_client());
        match &mut exchange.state {
            State::Sending(_) if one_way || !is_client => {
                self.remove(now, slot, !is_client);
                self.events.push_back(Event::Sent { peer: from, id: MessageId(id) });
            }
            State::Sending(_) => self.await_response(now, slot),
            // The answer to a question.
            State::Awaiting(awaiting) => awaiting.last_received = now,
            _ => {}
        }
    }

    /// The client's request has arrived.
    fn await_response(&mut self, now: Time, slot: u32) {
        let ask_at = now.saturating_add(self.config.shared().ask_interval);
        self.leave_lists(slot);
        self.timers.set(slot, ask_at);
        self.replace_outgoing(slot, State::Awaiting(Awaiting { ask_at, last_received: now }));
    }

    /// The receiver has what was being sent in this exchange, whose state is now another one.
    fn replace_outgoing(&mut self, slot: u32, state: State<S::Outgoing, S::Incoming>) {
        let exchange = self.exchanges.get_mut(slot);
        let (peer, id) = (exchange.peer, MessageId(exchange.local));
        let before = core::mem::replace(&mut exchange.state, state);
        if let State::Sending(outgoing) = before {
            self.events.push_back(Event::Sent { peer, id });
            self.scheme.recycle(outgoing);
        }
    }

    /// The peer does not know the message.
    pub(crate) fn handle_unknown(&mut self, now: Time, from: HostId, id: u64) {
        if let Some(slot) = self.outgoing_slot(from, id)
            && matches!(self.exchanges.get(slot).state, State::Sending(_) | State::Awaiting(_))
        {
            self.fail(now, slot, FailReason::PeerForgot);
        }
    }

    /// The timer of a client that waits for its response: it asks whether the server still knows the request (ours).
    fn awaiting_due(&mut self, now: Time, slot: u32) {
        let shared = self.config.shared();
        let exchange = self.exchanges.get_mut(slot);
        let State::Awaiting(awaiting) = &mut exchange.state else { return };
        awaiting.ask_at = now.saturating_add(shared.ask_interval);
        if now.since(awaiting.last_received) >= shared.patience {
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        let (peer, id, at) = (exchange.peer, exchange.local, awaiting.ask_at);
        self.timers.set(slot, at);
        self.send_control(peer, id, false, S::ASK);
    }

    // --- the receiver of a message

    /// The exchange that receives the message of this packet, and whether it is new: then it begins.
    #[inline]
    pub(crate) fn receiving_slot(
        &mut self,
        now: Time,
        from: HostId,
        header: &S::Header,
        incoming: impl FnOnce(&Self) -> S::Incoming,
    ) -> Option<(u32, bool)> {
        let (id, one_way) = S::message_of(header);
        let local = id ^ 1;
        let is_client = local & 1 == 0;
        let known = self.exchanges.find(from, local);
        if let Known::Slot(slot) = known
            && let State::Receiving(_) = self.exchanges.get(slot).state
        {
            return Some((slot, false));
        }
        match known {
            Known::Slot(slot) => match self.exchanges.get(slot).state {
                State::Sending(_) | State::Awaiting(_) if is_client => {
                    if self.exchanges.get(slot).one_way {
                        return None;
                    }
                    // The first packet of a response says that the request has arrived.
                    self.leave_lists(slot);
                    let state = State::Receiving(incoming(self));
                    self.replace_outgoing(slot, state);
                    return Some((slot, true));
                }
                // The server has the request, and its client does not know it yet.
                _ => self.answer_complete(from, header),
            },
            Known::Finished => self.answer_complete(from, header),
            // A response to no request (any more).
            Known::No if is_client => self.send_control(from, id, one_way, S::UNKNOWN),
            Known::No => {
                let state = State::Receiving(incoming(self));
                return Some((self.exchanges.insert(now, from, local, one_way, state)?, true));
            }
        }
        None
    }

    fn answer_complete(&mut self, from: HostId, header: &S::Header) {
        let (id, one_way) = S::message_of(header);
        if let Some(body) = S::complete(header) {
            self.send_control(from, id, one_way, body);
        }
    }

    /// The last packet of a message has arrived.
    pub(crate) fn deliver(&mut self, now: Time, slot: u32, bytes: u32) {
        let exchange = self.exchanges.get(slot);
        let (peer, id, kind) = (exchange.peer, exchange.arriving(), exchange.arriving_kind());
        self.events.push_back(Event::Delivered { peer, id, bytes: u64::from(bytes), kind });
        if kind == Kind::Request {
            self.leave_lists(slot);
            S::ended(self, now, slot);
            self.exchanges.get_mut(slot).state = State::InService;
        } else {
            self.remove(now, slot, true);
        }
    }

    /// Answers a client that asks for its response: `known` says that it is still to come.
    pub(crate) fn handle_ask_for_response(&mut self, from: HostId, id: u64, known: S::Body) {
        let local = id ^ 1;
        // The server's side of a request.
        if local & 1 == 1 {
            let is_known = matches!(self.exchanges.find(from, local), Known::Slot(_));
            self.send_control(from, id, false, if is_known { known } else { S::UNKNOWN });
        }
    }

    /// Handles the messages' timers that are due.
    pub(crate) fn run_timers(&mut self, now: Time) {
        while let Some((at, slot)) = self.timers.first()
            && at <= now
        {
            self.due(now, slot);
        }
    }

    /// A deadline of this exchange may have come.
    fn due(&mut self, now: Time, slot: u32) {
        let deadline = match &self.exchanges.get(slot).state {
            State::Sending(outgoing) => S::sender_deadline(outgoing, &self.config),
            State::Awaiting(awaiting) => awaiting.ask_at,
            State::Receiving(incoming) => S::receiver_deadline(incoming, now, &self.config),
            State::InService => return S::in_service_due(self, slot),
            State::Free(_) => Time::MAX,
        };
        if deadline == Time::MAX {
            return self.timers.remove(slot);
        }
        if deadline > now {
            return self.timers.set(slot, deadline);
        }
        match self.exchanges.get(slot).state {
            State::Sending(_) => S::sender_due(self, now, slot),
            State::Awaiting(_) => self.awaiting_due(now, slot),
            _ => S::receiver_due(self, now, slot),
        }
    }
}

impl<S: Scheme> Node for Driven<S> {
    type Header = S::Header;
    type Event = Event;
    type Placement = Placement;

    #[inline]
    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<S::Header>) -> Placement {
        if packet.src == self.id || packet.dst != self.id {
            return Placement::Discard;
        }
        S::on_packet(self, now, packet)
    }

    fn handle_timeout(&mut self, now: Time) {
        S::on_timeout(self, now);
    }

    #[inline]
    fn poll_transmit(&mut self, now: Time, _port: u8) -> Option<Packet<S::Header>> {
        if let Some((dst, header)) = self.control.pop_front() {
            let shared = self.config.shared();
            return Some(self.packet(dst, shared.control_bytes, shared.control_priority, header));
        }
        S::next_data(self, now)
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        let timer = self.timers.first().map_or(Time::MAX, |(at, _)| at);
        let next = timer.min(self.scheme.poll_timeout());
        (next < Time::MAX).then_some(next)
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

impl<S: Scheme> Transport for Driven<S> {
    fn submit(&mut self, now: Time, message: Submit) -> Result<(), Refused> {
        let response_in = self.exchanges.check(&message, self.config.shared().max_message_bytes)?;
        let scatter = Scatter::new(self.id, message.id.0);
        let outgoing = self.scheme.outgoing(now, message.bytes as u32, scatter, &self.config);
        let state = State::Sending(outgoing);
        let slot = if let Some(slot) = response_in {
            // The response says that the request has arrived.
            self.timers.remove(slot);
            self.exchanges.get_mut(slot).state = state;
            slot
        } else {
            let one_way = message.kind == Kind::OneWay;
            let slot = self.exchanges.insert(now, message.peer, message.id.0, one_way, state);
            slot.ok_or(Refused::Busy)?
        };
        S::submitted(self, now, slot);
        Ok(())
    }

    fn cancel(&mut self, now: Time, peer: HostId, id: MessageId) {
        if let Some(slot) = self.exchanges.find_message(peer, id) {
            let is_server = !self.exchanges.get(slot).is_client();
            self.remove(now, slot, is_server);
        }
    }

    fn is_arriving(&self, peer: HostId, id: MessageId) -> bool {
        self.exchanges.is_arriving(peer, id)
    }

    fn framing(&self) -> Framing {
        self.config.shared().framing()
    }
}
