//! Polo: receivers drive senders as fast as marks allow, lost packets are found by gaps and by an
//! epoch clock, and of many concurrent flows most are paused; switches need strict priorities and ECN.
//!
//! Source: Ruan, Wang, Jiang and Zhang, *Polo: Receiver-Driven Congestion Control for Low Latency
//! over Commodity Network Fabric*, ICPP'20, of which the slides are known. Rules without a slide are
//! marked "ours".
//!
//! - [`config`]: the parameters, and switches for the slides' variants.
//! - `drives`: the rules of D. `sender`: the first window, and what is sent on request. `receiver`: arriving
//!   packets, and what is missing. `flows`: active and inactive flows, epochs, who is driven.
//!
//! Each message is a flow. D counts what was asked for and has not come, for all flows of the receiver
//! together; first windows come on top of it, and it follows their marks.
//!
//! # Paused senders
//! A flow that begins while flows are paused is told so at its first packet, data or adjoint. Its sender
//! stops, even within the first window, says how much it has sent, and is quiet but for a question now
//! and then. The receiver wakes it by asking for data, and asks again if none comes: so a lost
//! packet costs a timeout (all ours).
//!
//! # Completion
//! The answer to a message's last missing packet says so, as does every answer after it: only that
//! ends the message at its sender (for a request, the first packet of the response does too, which
//! [`Config::complete_delay`] waits for). A client that
//! waits for its response asks now and then whether the server still knows of it (ours).
//!
//! # At most once
//! A finished exchange is remembered for [`Config::finished_for`], so that packets that come late
//! or twice are not taken for a new one. A peer that restarts has forgotten this: a message that it
//! had half of is sent anew.

pub mod config;
mod drives;
mod flows;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use rackweave_core::{
    Event, FailReason, Framing, HostId, Kind, MessageId, Node, Packet, Placement, Refused, Submit,
    Time, Transport,
};
use rackweave_wire::Id64;
use rackweave_wire::polo::{Body, Header};

use crate::common::{CLIENT_PORT, Exchanges, Heap, Limits, List, SERVER_PORT, Scatter, State};
pub use config::{Config, DriveOrder, InvalidConfig};
use drives::Drives;
use receiver::Incoming;
use sender::Outgoing;

type ExchangeState = State<Outgoing, Incoming>;

/// No flow is active, so that there are no epochs.
const NO_CLOCK: Time = Time::MAX;

/// A deadline that has become earlier (because more is expected of the peer now) may have passed.
fn after(now: Time, deadline: Time) -> Time {
    deadline.max(Time(now.0.saturating_add(1)))
}

/// Polo at one host.
#[derive(Debug)]
pub struct Host {
    id: HostId,
    config: Arc<Config>,
    exchanges: Exchanges<Outgoing, Incoming>,
    /// Messages that may send a new packet, and those that send one again, by turns.
    ready: List,
    resend: List,
    /// What waits for the link, before all data.
    control: VecDeque<(HostId, Header)>,
    timers: Heap<Time>,
    events: VecDeque<Event>,

    /// Flows that may be driven, and those that are paused, oldest first.
    active: Vec<u32>,
    inactive: List,
    /// Active flows that have something to be asked for: fewest packets missing first, then oldest.
    wanting: Heap<(u32, u64)>,
    /// New flows are paused.
    pausing: bool,
    drives: Drives,
    /// Packets of all flows that were asked for and have not come, as far as is known.
    in_flight: u32,
    /// Counts how often all of them were given up.
    generation: u32,
    /// The flow whose adjoint packet delimits epochs, which epoch it is, and when the packet counts as lost.
    clock: Option<u32>,
    epoch: u32,
    clock_until: Time,
    /// When the epoch began; its adjoint packet has come back (or its flow has ended), and `clock_until` is its end.
    epoch_began: Time,
    clock_back: bool,
    /// Whether data of an active flow came in this epoch, and in how many before none did.
    active_data: bool,
    quiet_epochs: u32,
}

impl Host {
    /// Polo at host `id`, without any message. Hosts share their configuration, which
    /// [`Config::check`] must have passed.
    #[must_use]
    pub fn new(id: HostId, config: Arc<Config>) -> Self {
        let limits = Limits {
            live: config.max_exchanges,
            finished: config.max_finished,
            finished_for: config.finished_for,
        };
        Self {
            id,
            config,
            exchanges: Exchanges::new(limits),
            ready: List::default(),
            resend: List::default(),
            control: VecDeque::new(),
            timers: Heap::default(),
            events: VecDeque::new(),
            active: Vec::new(),
            inactive: List::default(),
            wanting: Heap::default(),
            pausing: false,
            drives: Drives::new(),
            in_flight: 0,
            generation: 0,
            clock: None,
            epoch: 1,
            clock_until: NO_CLOCK,
            epoch_began: Time::ZERO,
            clock_back: false,
            active_data: false,
            quiet_epochs: 0,
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

    /// Checks that no part of the state has outgrown the configuration, and that counts agree.
    #[cfg(test)]
    fn check_bounds(&self) {
        self.exchanges.check_bounds();
        assert!(self.control.len() <= self.config.max_control as usize);
        assert!(self.drives.d() <= self.config.max_drives);
        let (mut active, mut on_way) = (0, 0);
        for exchange in self.exchanges.iter() {
            match &exchange.state {
                State::Sending(outgoing) => assert!(outgoing.backlog() <= 64),
                State::Receiving(incoming) => {
                    active += usize::from(incoming.place.is_some());
                    if incoming.generation == self.generation {
                        on_way += incoming.on_way;
                    }
                }
                _ => {}
            }
        }
        assert_eq!((active, on_way), (self.active.len(), self.in_flight));
        assert!(self.inactive.is_empty() || !self.active.is_empty(), "someone wakes the inactive");
        assert_eq!(self.active.is_empty(), self.clock_until == NO_CLOCK);
        if self.exchanges.live() == 0 {
            assert!(self.ready.is_empty() && self.resend.is_empty() && self.timers.is_empty());
            assert!(self.active.is_empty() && self.inactive.is_empty() && self.wanting.is_empty());
        }
    }

    /// Queues a control packet; with too many waiting it is lost, as any packet may be.
    #[inline]
    fn send_control(&mut self, dst: HostId, id: u64, one_way: bool, body: Body) {
        if self.control.len() < self.config.max_control as usize {
            self.control.push_back((dst, Header { id: Id64::new(id), one_way, body }));
        }
    }

    #[inline]
    fn packet(&self, dst: HostId, l3_bytes: u32, priority: u8, header: Header) -> Packet<Header> {
        // Messages to the server and their answers have the same two ports.
        let with_message =
            matches!(header.body, Body::Data { .. } | Body::Adjoint { .. } | Body::Ask);
        let from_client = with_message == (header.id.get() & 1 == 0);
        let (source, destination) =
            if from_client { (CLIENT_PORT, SERVER_PORT) } else { (SERVER_PORT, CLIENT_PORT) };
        Packet::new(self.id, dst, l3_bytes, header)
            .with_priority(priority)
            .with_ports(source, destination)
            .sprayed(self.config.spray)
    }

    fn leave_lists(&mut self, slot: u32) {
        self.ready.remove(slot);
        self.resend.remove(slot);
        self.timers.remove(slot);
    }

    /// Ends an exchange without an event. `finished`: packets of it that still come are answered
    /// as those of a finished one.
    fn remove(&mut self, now: Time, slot: u32, finished: bool) {
        self.leave_lists(slot);
        self.end_flow(now, slot);
        self.exchanges.remove(now, slot, finished);
    }

    /// Tells the application that an exchange will not complete, and forgets it.
    fn fail(&mut self, now: Time, slot: u32, reason: FailReason) {
        let exchange = self.exchanges.get(slot);
        let (peer, is_client) = (exchange.peer, exchange.is_client());
        let failing = self.exchanges.failing(slot);
        // A server that has begun to answer must not execute the request again.
        self.remove(now, slot, !is_client && failing.is_some());
        if let Some(id) = failing {
            self.events.push_back(Event::Failed { peer, id, reason });
        }
    }

    /// A deadline of this exchange may have come.
    fn due(&mut self, now: Time, slot: u32) {
        if let State::InService = self.exchanges.get(slot).state {
            return self.complete_due(slot);
        }
        let (deadline, forget_at) = match &self.exchanges.get(slot).state {
            State::Sending(outgoing) => (outgoing.deadline(&self.config), Time::MAX),
            State::Awaiting(awaiting) => (awaiting.ask_at, Time::MAX),
            State::Receiving(incoming) => {
                let forget_at = incoming.heard_at.saturating_add(self.config.patience);
                (incoming.deadline(&self.config), forget_at)
            }
            State::InService | State::Free(_) => (Time::MAX, Time::MAX),
        };
        if deadline == Time::MAX {
            return self.timers.remove(slot);
        }
        if deadline > now {
            return self.timers.set(slot, deadline);
        }
        match self.exchanges.get(slot).state {
            State::Sending(_) => self.sender_due(now, slot),
            State::Awaiting(_) => self.awaiting_due(now, slot),
            // Its sender has given up long ago.
            _ if forget_at <= now => self.fail(now, slot, FailReason::PeerSilent),
            _ => self.receiver_due(now, slot),
        }
    }
}

impl Node for Host {
    type Header = Header;
    type Event = Event;
    type Placement = Placement;

    #[inline]
    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let (from, id) = (packet.src, header.id.get());
        if from == self.id || packet.dst != self.id {
            return Placement::Discard;
        }
        match header.body {
            Body::Data { .. } => return self.handle_data(now, packet),
            Body::Adjoint { .. } => self.handle_adjoint(now, from, header),
            Body::AdjointAck { epoch, paused, tick } => {
                self.handle_adjoint_ack(now, from, id, (epoch, paused, tick));
            }
            Body::Drive { upto } => self.handle_drive(now, from, id, upto),
            Body::Loss { first, count } => self.handle_loss(now, from, id, first, count),
            Body::Complete => self.handle_complete(now, from, id),
            Body::Ask => self.handle_ask(from, id),
            Body::Unknown => self.handle_unknown(now, from, id),
        }
        Placement::Discard
    }

    fn handle_timeout(&mut self, now: Time) {
        self.clock_due(now);
        while let Some((at, slot)) = self.timers.first()
            && at <= now
        {
            self.due(now, slot);
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now: Time, _port: u8) -> Option<Packet<Header>> {
        if let Some((dst, header)) = self.control.pop_front() {
            let (bytes, priority) = (self.config.control_bytes, self.config.control_priority);
            return Some(self.packet(dst, bytes, priority, header));
        }
        self.next_packet(now)
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        let timer = self.timers.first().map_or(Time::MAX, |(at, _)| at).min(self.clock_until);
        (timer < Time::MAX).then_some(timer)
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

impl Transport for Host {
    fn submit(&mut self, now: Time, message: Submit) -> Result<(), Refused> {
        let response_in = self.exchanges.check(&message, self.config.max_message_bytes)?;
        let scatter = Scatter::new(self.id, message.id.0);
        let outgoing = Outgoing::new(now, message.bytes as u32, scatter, &self.config);
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
        self.ready.push_back(slot);
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
        self.config.framing()
    }
}
