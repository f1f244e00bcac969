//! pHost: receivers give out tokens, one a packet time, each good for one packet for a short
//! while; switches need to do nothing but strict priorities.
//!
//! Sources: Gao et al., *pHost: distributed near-optimal datacenter transport over commodity
//! network fabric*, CoNEXT'15 ("the paper"), and its authors' simulator, YAPS. Rules without a
//! source are marked "ours".
//!
//! - [`config`]: the parameters.
//! - `sender`: which token is used next; `receiver`: who gets the next one.
//!
//! # Loss
//! A receiver repairs the loss of data and tokens by giving out new tokens for what is missing.
//! What it cannot know of (a request of which no packet has arrived, an acknowledgement that was
//! lost) its sender repairs: it repeats the request when it has heard nothing for long (ours).
//! A client that waits for its response asks now and then whether the server still knows of it
//! (ours).
//!
//! # At most once
//! A finished exchange is remembered for [`Config::finished_for`], so that packets that come late
//! or twice are not taken for a new one. A peer that restarts has forgotten this: a message that it
//! had half of is sent anew.
//!
//! # Memory
//! Whatever arrives, a host holds at most [`Config::max_exchanges`] exchanges (more are refused with
//! [`Refused::Busy`], or a peer's first packet of one is dropped) of up to [`Config::max_gaps`] ranges
//! each, [`Config::max_finished`] ids of finished ones for [`Config::finished_for`], and
//! [`Config::max_control`] packets that wait for the link. What a silent peer leaves is forgotten
//! after [`Config::patience`], and fails if the application waits for it ([`FailReason::PeerSilent`]).
//! A request stays until the application answers or cancels it.

pub mod config;
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
use rackweave_wire::phost::{Body, Header};

use crate::common::{CLIENT_PORT, Exchanges, Heap, Limits, SERVER_PORT, Scatter, State};
pub use config::{Config, InvalidConfig, TokenOrder};
use receiver::Incoming;
use sender::Outgoing;

type ExchangeState = State<Outgoing, Incoming>;

/// pHost at one host.
#[derive(Debug)]
pub struct Host {
    id: HostId,
    config: Arc<Config>,
    exchanges: Exchanges<Outgoing, Incoming>,
    /// Messages that may have a valid token: shortest first, then oldest.
    ready: Heap<(u32, u64)>,
    /// Messages that wait for tokens, in the order of [`Config::order`].
    waiting: Heap<(u64, u64)>,
    /// No token is sent before.
    next_token_at: Time,
    /// Tokens given out so far.
    turns: u64,
    /// What waits for the link, before all data.
    control: VecDeque<(HostId, Header)>,
    timers: Heap<Time>,
    events: VecDeque<Event>,
}

impl Host {
    /// pHost at host `id`, without any message. Hosts share their configuration, which
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
            ready: Heap::default(),
            waiting: Heap::default(),
            next_token_at: Time::ZERO,
            turns: 0,
            control: VecDeque::new(),
            timers: Heap::default(),
            events: VecDeque::new(),
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
    fn check_bounds(&self) {
        self.exchanges.check_bounds();
        assert!(self.control.len() <= self.config.max_control as usize);
        for exchange in self.exchanges.iter() {
            if let State::Sending(outgoing) = &exchange.state {
                assert!(outgoing.waiting_tokens() <= 64);
            }
        }
        if self.exchanges.live() == 0 {
            assert!(self.ready.is_empty() && self.waiting.is_empty() && self.timers.is_empty());
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
        let with_message = matches!(header.body, Body::Data { .. } | Body::Rts { .. } | Body::Ask);
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
        self.waiting.remove(slot);
        self.timers.remove(slot);
    }

    /// Ends an exchange without an event. `finished`: packets of it that still come are answered
    /// as those of a finished one.
    fn remove(&mut self, now: Time, slot: u32, finished: bool) {
        self.leave_lists(slot);
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
        let deadline = match &self.exchanges.get(slot).state {
            State::Sending(outgoing) => outgoing.deadline(&self.config),
            State::Awaiting(awaiting) => awaiting.ask_at,
            State::Receiving(incoming) => incoming.deadline(&self.config),
            State::InService | State::Free(_) => return self.timers.remove(slot),
        };
        if deadline > now {
            return self.timers.set(slot, deadline);
        }
        match self.exchanges.get(slot).state {
            State::Sending(_) => self.sender_due(now, slot),
            State::Awaiting(_) => self.awaiting_due(now, slot),
            // Its sender has given up long ago.
            State::Receiving(_) if self.forget_at(slot) <= now => {
                self.fail(now, slot, FailReason::PeerSilent);
            }
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
            Body::Rts { message_length, free } => {
                self.handle_rts(now, from, header, message_length, free);
            }
            Body::Token { packet, number, missing } => {
                self.handle_token(now, from, id, packet, number, missing);
            }
            Body::Ack => self.handle_ack(now, from, id),
            Body::Busy => self.handle_busy(now, from, id),
            Body::Unknown => self.handle_unknown(now, from, id),
            Body::Ask => self.handle_ask(from, id),
        }
        Placement::Discard
    }

    fn handle_timeout(&mut self, now: Time) {
        while let Some((at, slot)) = self.timers.first()
            && at <= now
        {
            self.due(now, slot);
        }
        self.pace_tokens(now);
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
        let timer = self.timers.first().map(|(at, _)| at);
        if self.waiting.is_empty() {
            return timer;
        }
        Some(timer.map_or(self.next_token_at, |timer| timer.min(self.next_token_at)))
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
        let (rts, left, deadline) =
            (outgoing.rts(), outgoing.left(), outgoing.deadline(&self.config));
        let (id, one_way) = (message.id.0, message.kind == Kind::OneWay);
        let state = State::Sending(outgoing);
        let slot = if let Some(slot) = response_in {
            self.exchanges.get_mut(slot).state = state;
            slot
        } else {
            let slot = self.exchanges.insert(now, message.peer, id, one_way, state);
            slot.ok_or(Refused::Busy)?
        };
        self.ready.set(slot, (left, self.exchanges.get(slot).birth));
        self.timers.set(slot, deadline);
        self.send_control(message.peer, id, one_way, rts);
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
