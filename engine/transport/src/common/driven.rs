//! The host of a transport whose receivers acknowledge whole messages (NDP, pHost, Polo, pFabric, SIRD, Swift, dcPIM, UET): the parts
//! that do not depend on the protocol.
//!
//! In all these protocols a message goes through the same states. Its sender starts; further transmission is controlled by its
//! receiver, by *credits* (pulls, tokens, driving packets), or by a window at the sender (pFabric, Swift, NSCC of UET); its receiver
//! acknowledges the complete message; a client then waits for the response. [`Driven`] holds the exchanges, queued control packets, timers and
//! events, and performs these transitions. A [`Scheme`] supplies what is specific to a protocol: its headers,
//! the state of a message at either end, the order in which messages get credit or are sent, and the repair of losses.

use core::fmt::Debug;
use std::collections::VecDeque;
use std::sync::Arc;

use rackweave_core::{
    Event, FailReason, Framing, HostId, Kind, MessageId, Node, Packet, Placement, RecoveryCounters,
    Refused, Submit, Time, Transport, prefetch,
};
use rackweave_wire::{Exchange, Id64};

use super::{
    Awaiting, CLIENT_PORT, Exchanges, Heap, Jitter, Known, Limits, Outlet, Parameters, SERVER_PORT,
    State,
};

/// What is specific to one transport.
pub trait Scheme: Debug + Sized {
    /// The protocol's parameters.
    type Config: Parameters;
    /// The header of all its packets.
    type Header: Exchange;
    /// The sender's state of a message.
    type Outgoing: Debug;
    /// The receiver's state of a message.
    type Incoming: Debug;

    /// The protocol's state of a host without messages.
    fn new(id: HostId, config: &Self::Config) -> Self;

    /// Makes the header of a control packet.
    #[inline]
    fn header(
        &mut self,
        _config: &Self::Config,
        id: Id64,
        one_way: bool,
        body: Body<Self>,
    ) -> Self::Header {
        Self::Header::new(id, one_way, body)
    }

    /// Completes a control packet at the moment at which it leaves the host.
    #[inline]
    fn departs(_now: Time, _header: &mut Self::Header) {}

    /// The answer to a late packet of a message that is complete; `None` if the packet needs no answer.
    fn complete(header: &Self::Header) -> Option<Body<Self>>;

    /// Makes the sender's state of a submitted message.
    fn outgoing(
        &mut self,
        now: Time,
        bytes: u32,
        jitter: Jitter,
        config: &Self::Config,
    ) -> Self::Outgoing;

    /// Called after a message has been submitted; its state is in `slot`.
    fn submitted(host: &mut Driven<Self>, now: Time, slot: u32);

    /// Handles a packet from another host that is addressed to this one.
    fn on_packet(host: &mut Driven<Self>, now: Time, packet: &Packet<Self::Header>) -> Placement;

    /// The next data packet. Called only while no control packet is queued.
    fn next_data(host: &mut Driven<Self>, now: Time) -> Option<Packet<Self::Header>>;

    /// Handles the expiry of a message timer (`Driven::run_timers`) or of [`Scheme::poll_timeout`].
    fn on_timeout(host: &mut Driven<Self>, now: Time) {
        host.run_timers(now);
    }

    /// When [`Scheme::on_timeout`] is to be called, apart from message timers; [`Time::MAX`] if never.
    #[inline]
    fn poll_timeout(&self) -> Time {
        Time::MAX
    }

    /// When [`Scheme::sender_due`] is to be called for a message; [`Time::MAX`] if never.
    fn sender_deadline(outgoing: &Self::Outgoing, config: &Self::Config) -> Time;

    /// When [`Scheme::receiver_due`] is to be called for a message.
    fn receiver_deadline(
        &self,
        incoming: &Self::Incoming,
        now: Time,
        config: &Self::Config,
    ) -> Time;

    /// Handles the deadline of a message at its sender.
    fn sender_due(host: &mut Driven<Self>, now: Time, slot: u32);

    /// Handles the deadline of a message at its receiver: without further rules, its sender has fallen silent.
    fn receiver_due(host: &mut Driven<Self>, now: Time, slot: u32) {
        host.fail(now, slot, FailReason::PeerSilent);
    }

    /// Handles the timer of a request that was delivered and is not yet answered.
    fn in_service_due(host: &mut Driven<Self>, slot: u32) {
        host.timers.remove(slot);
    }

    /// Removes a message from the lists of the scheme.
    fn leave_lists(&mut self, slot: u32);

    /// Called before the state of an exchange is dropped: when the exchange ends, or when its request is
    /// complete.
    fn ended(_host: &mut Driven<Self>, _now: Time, _slot: u32) {}

    /// Takes back the state of a message that has been sent, so that its memory can be reused.
    fn recycle(&mut self, _outgoing: Self::Outgoing) {}

    /// Asserts that the scheme's state is within the configured bounds and that its counts are consistent.
    #[cfg(any(test, feature = "suite"))]
    fn check_bounds(_host: &Driven<Self>) {}
}

/// The packet types of a transport with their fields.
pub(crate) type Body<S> = <<S as Scheme>::Header as Exchange>::Body;

/// A message that a host sends, and what its scheme needs to send more of it.
#[derive(Debug)]
pub struct Sending<'a, S: Scheme> {
    /// The host that receives it.
    pub peer: HostId,
    /// Its id.
    pub id: Id64,
    /// Whether it expects no response.
    pub one_way: bool,
    /// The order in which the exchanges of a host were created.
    pub birth: u64,
    /// The scheme's state of it.
    pub outgoing: &'a mut S::Outgoing,
    /// The scheme's state of the host.
    pub scheme: &'a mut S,
    /// What the scheme counts.
    pub recovery: &'a mut RecoveryCounters,
    /// The parameters.
    pub config: &'a S::Config,
}

/// One host of such a transport.
#[derive(Debug)]
pub struct Driven<S: Scheme> {
    pub(crate) id: HostId,
    pub(crate) config: Arc<S::Config>,
    pub(crate) exchanges: Exchanges<S::Outgoing, S::Incoming>,
    /// Queued control packets, which take precedence over data.
    control: VecDeque<(HostId, S::Header)>,
    pub(crate) timers: Heap<Time>,
    pub(crate) events: VecDeque<Event>,
    /// Counted by the scheme.
    pub(crate) recovery: RecoveryCounters,
    /// See [`Transport::not_admitted`].
    not_admitted: u64,
    outlet: Outlet,
    pub(crate) scheme: S,
}

impl<S: Scheme> Driven<S> {
    /// Creates the transport of host `id`, without messages. Hosts share their configuration, which must have
    /// passed its `check`.
    #[must_use]
    pub fn new(id: HostId, config: Arc<S::Config>) -> Self {
        let common = config.common();
        let limits = Limits {
            live: common.max_exchanges,
            finished: common.max_finished,
            finished_for: common.finished_for,
        };
        Self {
            id,
            exchanges: Exchanges::new(limits),
            control: VecDeque::new(),
            timers: Heap::default(),
            events: VecDeque::new(),
            recovery: RecoveryCounters::default(),
            not_admitted: 0,
            outlet: Outlet::new(common.patience),
            scheme: S::new(id, &config),
            config,
        }
    }

    /// Number of exchanges in progress, in either direction.
    #[must_use]
    pub const fn exchanges_under_way(&self) -> u32 {
        self.exchanges.live()
    }

    /// Whether no exchange is in progress and nothing is queued.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.exchanges.live() == 0 && self.control.is_empty() && self.events.is_empty()
    }

    /// Asserts that all state is within the configured bounds.
    ///
    /// # Panics
    /// If it is not.
    #[cfg(any(test, feature = "suite"))]
    pub fn check_bounds(&self) {
        self.exchanges.check_bounds();
        assert!(self.control.len() <= self.config.common().max_control as usize);
        if self.exchanges.live() == 0 {
            assert!(self.timers.is_empty());
        }
        S::check_bounds(self);
    }

    /// Queues a control packet.
    #[inline]
    pub fn send_control(&mut self, dst: HostId, id: u64, one_way: bool, body: Body<S>) {
        let header = self.scheme.header(&self.config, Id64::new(id), one_way, body);
        self.queue_control(dst, header);
    }

    /// Queues a control packet. It is dropped if the queue is full, as the network may drop any packet.
    #[inline]
    pub(crate) fn queue_control(&mut self, dst: HostId, header: S::Header) {
        if self.control.len() < self.config.common().max_control as usize {
            self.control.push_back((dst, header));
        }
    }

    /// Makes a packet of `l3_bytes` from the IP header on.
    #[must_use]
    #[inline]
    pub fn packet(
        &self,
        dst: HostId,
        l3_bytes: u32,
        priority: u8,
        header: S::Header,
    ) -> Packet<S::Header> {
        // Requests and their responses use the same pair of ports.
        let from_client = header.is_from_sender() == (header.id().get() & 1 == 0);
        let (source, destination) =
            if from_client { (CLIENT_PORT, SERVER_PORT) } else { (SERVER_PORT, CLIENT_PORT) };
        Packet::new(self.id, dst, l3_bytes, header)
            .with_priority(priority)
            .with_ports(source, destination)
            .sprayed(self.config.common().spray)
    }

    /// The message that this host sends in a slot; `None` if it sends none there.
    #[inline]
    pub fn sending(&mut self, slot: u32) -> Option<Sending<'_, S>> {
        let exchange = self.exchanges.get_mut(slot);
        let State::Sending(outgoing) = &mut exchange.state else { return None };
        Some(Sending {
            peer: exchange.peer,
            id: Id64::new(exchange.local),
            one_way: exchange.one_way,
            birth: exchange.birth,
            outgoing,
            scheme: &mut self.scheme,
            recovery: &mut self.recovery,
            config: &self.config,
        })
    }

    /// Calls [`Scheme::sender_due`] or [`Scheme::receiver_due`] of a slot at its deadline, which is `at` or later.
    #[inline]
    pub fn wake(&mut self, slot: u32, at: Time) {
        self.timers.set_earlier(slot, at);
    }

    /// The parameters.
    #[must_use]
    pub fn config(&self) -> &S::Config {
        &self.config
    }

    /// The scheme's own state.
    #[must_use]
    pub const fn scheme(&self) -> &S {
        &self.scheme
    }

    /// The scheme's own state, for changes.
    pub const fn scheme_mut(&mut self) -> &mut S {
        &mut self.scheme
    }

    pub(crate) fn leave_lists(&mut self, slot: u32) {
        self.scheme.leave_lists(slot);
        self.timers.remove(slot);
    }

    /// Ends an exchange without an event. If `finished`, late packets of the exchange are answered as those of
    /// a finished one.
    fn remove(&mut self, now: Time, slot: u32, finished: bool) {
        self.leave_lists(slot);
        S::ended(self, now, slot);
        if let State::Sending(outgoing) = self.exchanges.remove(now, slot, finished) {
            self.scheme.recycle(outgoing);
        }
    }

    /// Reports to the application that an exchange has failed, and discards the exchange.
    pub fn fail(&mut self, now: Time, slot: u32, reason: FailReason) {
        let exchange = self.exchanges.get(slot);
        let (peer, is_client) = (exchange.peer, exchange.is_client());
        let failing = self.exchanges.failing(slot);
        // A server that has started its response must not execute the request again.
        self.remove(now, slot, !is_client && failing.is_some());
        if let Some(id) = failing {
            self.events.push_back(Event::Failed { peer, id, reason });
        }
    }

    // --- the sender's half of a message

    /// The slot of the exchange in which this host sends message `id`, or of the request `id` that awaits its
    /// response.
    #[must_use]
    #[inline]
    pub fn outgoing_slot(&self, from: HostId, id: u64) -> Option<u32> {
        match self.exchanges.find(from, id) {
            Known::Slot(slot) => Some(slot),
            Known::No | Known::Finished => None,
        }
    }

    /// Handles the acknowledgement of a complete message.
    pub fn handle_complete(&mut self, now: Time, from: HostId, id: u64) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let exchange = self.exchanges.get_mut(slot);
        let (one_way, is_client) = (exchange.one_way, exchange.is_client());
        match &mut exchange.state {
            State::Sending(_) if one_way || !is_client => {
                self.remove(now, slot, !is_client);
                self.events.push_back(Event::Sent { peer: from, id: MessageId(id) });
            }
            State::Sending(_) => self.await_response(now, slot),
            // The reply to an `ASK`.
            State::Awaiting(awaiting) => awaiting.last_received = now,
            _ => {}
        }
    }

    /// Makes a client wait for its response, after the request has been acknowledged.
    fn await_response(&mut self, now: Time, slot: u32) {
        let ask_at = now.saturating_add(self.config.ask_interval());
        self.leave_lists(slot);
        self.timers.set(slot, ask_at);
        self.replace_outgoing(slot, State::Awaiting(Awaiting { ask_at, last_received: now }));
    }

    /// Replaces the sender's state of an exchange whose message has been acknowledged.
    fn replace_outgoing(&mut self, slot: u32, state: State<S::Outgoing, S::Incoming>) {
        let exchange = self.exchanges.get_mut(slot);
        let (peer, id) = (exchange.peer, MessageId(exchange.local));
        let before = core::mem::replace(&mut exchange.state, state);
        if let State::Sending(outgoing) = before {
            self.events.push_back(Event::Sent { peer, id });
            self.scheme.recycle(outgoing);
        }
    }

    /// Handles the peer's report that it does not know the message.
    pub fn handle_unknown(&mut self, now: Time, from: HostId, id: u64) {
        if let Some(slot) = self.outgoing_slot(from, id)
            && matches!(self.exchanges.get(slot).state, State::Sending(_) | State::Awaiting(_))
        {
            self.fail(now, slot, FailReason::PeerForgot);
        }
    }

    /// Handles the server's reply that its response is still to come.
    pub fn handle_known(&mut self, now: Time, from: HostId, id: u64) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        if let State::Awaiting(awaiting) = &mut self.exchanges.get_mut(slot).state {
            awaiting.last_received = now;
        }
    }

    /// Handles the timer of a client that awaits its response: asks whether the server still knows the request.
    /// (Our choice: no protocol specifies this.)
    fn awaiting_due(&mut self, now: Time, slot: u32) {
        let exchange = self.exchanges.get_mut(slot);
        let State::Awaiting(awaiting) = &mut exchange.state else { return };
        awaiting.ask_at = now.saturating_add(self.config.ask_interval());
        if now.since(awaiting.last_received) >= self.config.common().patience {
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        let (peer, id, at) = (exchange.peer, exchange.local, awaiting.ask_at);
        self.timers.set(slot, at);
        self.send_control(peer, id, false, S::Header::ASK);
    }

    // --- the receiver's half of a message

    /// The slot of the exchange that receives this packet's message, and whether the exchange was just created.
    #[inline]
    pub(crate) fn receiving_slot(
        &mut self,
        now: Time,
        from: HostId,
        header: &S::Header,
        incoming: impl FnOnce(&Self) -> S::Incoming,
    ) -> Option<(u32, bool)> {
        let (id, one_way) = (header.id().get(), header.one_way());
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
                    // The first packet of a response acknowledges the request.
                    self.leave_lists(slot);
                    let state = State::Receiving(incoming(self));
                    self.replace_outgoing(slot, state);
                    return Some((slot, true));
                }
                // The server has the whole request, but its client does not know that yet.
                _ => self.answer_complete(from, header),
            },
            Known::Finished => self.answer_complete(from, header),
            // A response to a request that is unknown, or no longer known.
            Known::No if is_client => self.send_control(from, id, one_way, S::Header::UNKNOWN),
            Known::No => {
                let state = State::Receiving(incoming(self));
                let slot = self.exchanges.insert(now, from, local, one_way, state);
                self.not_admitted += u64::from(slot.is_none());
                return Some((slot?, true));
            }
        }
        None
    }

    fn answer_complete(&mut self, from: HostId, header: &S::Header) {
        let (id, one_way) = (header.id().get(), header.one_way());
        if let Some(body) = S::complete(header) {
            self.send_control(from, id, one_way, body);
        }
    }

    /// Delivers a message whose last missing packet has arrived.
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

    /// Answers a client that asks for its response; `known` is the answer if the response is still pending.
    pub fn handle_ask_for_response(&mut self, from: HostId, id: u64, known: Body<S>) {
        let local = id ^ 1;
        // This host is the server of the request.
        if local & 1 == 1 {
            let is_known = matches!(self.exchanges.find(from, local), Known::Slot(_));
            self.send_control(from, id, false, if is_known { known } else { S::Header::UNKNOWN });
        }
    }

    /// Handles expired message timers.
    pub fn run_timers(&mut self, now: Time) {
        while let Some((at, slot)) = self.timers.first()
            && at <= now
        {
            self.due(now, slot);
        }
    }

    /// Fails the messages that have waited for too long for a driver that takes no packets.
    fn check_outlet(&mut self, now: Time) {
        let closed = self.outlet.check(now);
        let mut next = 0;
        while let Some(since) = closed
            && let Some(slot) = self.exchanges.next_submitted(next, since)
        {
            self.fail(now, slot, FailReason::PeerSilent);
            next = slot + 1;
        }
        if self.exchanges.live() == 0 {
            self.outlet.rest();
        }
    }

    /// Handles the timer of an exchange, if its deadline has passed.
    fn due(&mut self, now: Time, slot: u32) {
        let deadline = match &self.exchanges.get(slot).state {
            State::Sending(outgoing) => S::sender_deadline(outgoing, &self.config),
            State::Awaiting(awaiting) => awaiting.ask_at,
            State::Receiving(incoming) => {
                self.scheme.receiver_deadline(incoming, now, &self.config)
            }
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
        if self.outlet.poll_timeout() <= now {
            self.check_outlet(now);
        }
        S::on_timeout(self, now);
    }

    #[inline]
    fn poll_transmit(&mut self, now: Time, _port: u8) -> Option<Packet<S::Header>> {
        self.outlet.polled(now);
        if let Some((dst, mut header)) = self.control.pop_front() {
            S::departs(now, &mut header);
            let common = self.config.common();
            return Some(self.packet(dst, common.control_bytes, common.control_priority, header));
        }
        S::next_data(self, now)
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        let timer = self.timers.first().map_or(Time::MAX, |(at, _)| at);
        let next = timer.min(self.scheme.poll_timeout()).min(self.outlet.poll_timeout());
        (next < Time::MAX).then_some(next)
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    #[inline]
    fn prefetch(&self) {
        prefetch(&self.exchanges);
        prefetch(&self.control);
        prefetch(&self.timers);
        prefetch(&self.events);
        prefetch(&self.scheme);
    }

    #[inline]
    fn prefetch_for(&self, packet: &Packet<S::Header>) {
        // The id of the packet's message is the local one at its sender, and its counterpart here.
        let id = packet.header.id().get();
        let from_sender = packet.header.is_from_sender();
        self.exchanges.prefetch(packet.src, if from_sender { id ^ 1 } else { id });
    }
}

impl<S: Scheme> Transport for Driven<S> {
    fn submit(&mut self, now: Time, message: Submit) -> Result<(), Refused> {
        let response_in = self.exchanges.check(&message, self.config.common().max_message_bytes)?;
        let jitter = Jitter::new(self.id, message.id.0);
        let outgoing = self.scheme.outgoing(now, message.bytes as u32, jitter, &self.config);
        let state = State::Sending(outgoing);
        let slot = if let Some(slot) = response_in {
            // A response acknowledges its request.
            self.timers.remove(slot);
            let exchange = self.exchanges.get_mut(slot);
            (exchange.state, exchange.since) = (state, now);
            slot
        } else {
            let one_way = message.kind == Kind::OneWay;
            let slot = self.exchanges.insert(now, message.peer, message.id.0, one_way, state);
            slot.ok_or(Refused::Busy)?
        };
        self.outlet.submitted(now);
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

    fn arrived_until(&mut self, at: Time) {
        self.exchanges.arrived_until(at);
    }

    fn framing(&self) -> Framing {
        self.config.common().framing()
    }

    fn not_admitted(&self) -> u64 {
        self.not_admitted
    }

    fn recovery_counters(&self) -> RecoveryCounters {
        self.recovery
    }
}
