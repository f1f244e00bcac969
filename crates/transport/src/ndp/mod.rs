//! NDP: first a window at line rate, then what the receiver pulls; switches trim what they cannot
//! hold, so that the receiver learns of every packet at once.
//!
//! NDP is that of Handley et al., *Re-architecting datacenter networks and stacks for low latency and
//! high performance*, SIGCOMM'17. The rules here are those of its authors' simulator, `htsim` (facts
//! 4); those without a source are marked "ours". Switches must trim ([`rackweave_core::Packet::trimmable`]); where
//! they drop instead, only the timeout repairs.
//!
//! - [`config`]: the parameters.
//! - `sender`: what is sent next, and what sent again; `paths`: on which way; `receiver`: answers, and the
//!   pacer of pulls.
//!
//! Each message is a flow of its own, as in `htsim`. An answer goes back the way its packet came,
//! so that the path in its header says which it was.
//!
//! # Completion
//! The answer to a message's last missing packet says so, as does every answer after it: only
//! that ends the message at its sender ([`Event::Sent`]; for a request, the first packet of the
//! response does too). A client that waits for its response asks now and then whether the server
//! still knows of it (ours).
//!
//! # At most once
//! A finished exchange is remembered for [`Config::finished_for`], so that packets that come late
//! or twice are not taken for a new one. A peer that restarts has forgotten this; a sender sees by
//! the incarnation in the answers that its receiver has lost the first part of a message.
//!
//! # Memory
//! Whatever arrives, a host holds at most [`Config::max_exchanges`] exchanges (more are refused with
//! [`Refused::Busy`], or a peer's first packet of one is dropped) of up to [`Config::max_gaps`] ranges
//! each, [`Config::max_finished`] ids of finished ones for [`Config::finished_for`], and
//! [`Config::max_control`] packets that wait for the link. What a silent peer leaves is forgotten
//! after [`Config::patience`], and fails if the application waits for it ([`FailReason::PeerSilent`]).
//! A request stays until the application answers or cancels it.

pub mod config;
mod paths;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use rackweave_core::rng::mix;
use rackweave_core::{
    Event, FailReason, Framing, HostId, Kind, MessageId, Node, Packet, Placement, Refused, Span,
    Submit, Time, Transport,
};
use rackweave_wire::Id64;
use rackweave_wire::ndp::{Body, Header};

use crate::common::{CLIENT_PORT, Exchanges, Heap, Limits, List, SERVER_PORT, Scatter, State};
pub use config::{Config, InvalidConfig, MAX_PATHS};
use paths::Paths;
use receiver::Incoming;
use sender::{Outgoing, Piece};

type ExchangeState = State<Outgoing, Incoming>;

/// States of ended messages that are kept for their memory.
const MAX_SPARE: usize = 64;

/// NDP at one host.
#[derive(Debug)]
pub struct Host {
    id: HostId,
    config: Arc<Config>,
    exchanges: Exchanges<Outgoing, Incoming>,
    /// Messages that may send a packet, by turns.
    ready: List,
    /// Messages that are owed pulls, by turns.
    pulls: List,
    pull_spacing: Span,
    /// No pull is sent before.
    next_pull_at: Time,
    /// What waits for the link, before all data.
    control: VecDeque<(HostId, Header)>,
    /// The paths of those that answer no packet.
    control_paths: Paths,
    timers: Heap<Time>,
    spare: Vec<Outgoing>,
    events: VecDeque<Event>,
}

impl Host {
    /// NDP at host `id`, without any message. Hosts share their configuration, which
    /// [`Config::check`] must have passed.
    #[must_use]
    pub fn new(id: HostId, config: Arc<Config>) -> Self {
        let limits = Limits {
            live: config.max_exchanges,
            finished: config.max_finished,
            finished_for: config.finished_for,
        };
        let mut control_paths = Paths::default();
        control_paths.restart(mix(u64::from(id.0)));
        Self {
            id,
            exchanges: Exchanges::new(limits),
            ready: List::default(),
            pulls: List::default(),
            pull_spacing: config.pull_spacing(),
            next_pull_at: Time::ZERO,
            control: VecDeque::new(),
            control_paths,
            timers: Heap::default(),
            spare: Vec::new(),
            events: VecDeque::new(),
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
    fn check_bounds(&self) {
        self.exchanges.check_bounds();
        assert!(self.control.len() <= self.config.max_control as usize);
        assert!(self.spare.len() <= MAX_SPARE);
        for exchange in self.exchanges.iter() {
            if let State::Sending(outgoing) = &exchange.state {
                assert!(outgoing.backlog() < 100_000);
            }
        }
        if self.exchanges.live() == 0 {
            assert!(self.ready.is_empty() && self.pulls.is_empty() && self.timers.is_empty());
        }
    }

    /// Queues a control packet; with too many waiting it is lost, as any packet may be.
    #[inline]
    fn send_control(&mut self, dst: HostId, id: u64, one_way: bool, body: Body) {
        let path = self.control_paths.next(self.config.paths);
        self.send_control_by(path, dst, id, one_way, body);
    }

    #[inline]
    fn send_control_by(&mut self, path: u16, dst: HostId, id: u64, one_way: bool, body: Body) {
        if self.control.len() < self.config.max_control as usize {
            self.control.push_back((dst, Header { id: Id64::new(id), one_way, path, body }));
        }
    }

    #[inline]
    fn packet(&self, dst: HostId, l3_bytes: u32, priority: u8, header: Header) -> Packet<Header> {
        // Messages to the server and their answers have the same two ports.
        let from_client =
            matches!(header.body, Body::Data { .. } | Body::Ask) == (header.id.get() & 1 == 0);
        let (source, destination) =
            if from_client { (CLIENT_PORT, SERVER_PORT) } else { (SERVER_PORT, CLIENT_PORT) };
        Packet::new(self.id, dst, l3_bytes, header)
            .with_priority(priority)
            .with_ports(source, destination)
            .sprayed(self.config.spray)
    }

    fn leave_lists(&mut self, slot: u32) {
        self.ready.remove(slot);
        self.pulls.remove(slot);
        self.timers.remove(slot);
    }

    /// Ends an exchange without an event. `finished`: packets of it that still come are answered
    /// as those of a finished one.
    fn remove(&mut self, now: Time, slot: u32, finished: bool) {
        self.leave_lists(slot);
        let state = self.exchanges.remove(now, slot, finished);
        self.recycle(state);
    }

    fn recycle(&mut self, state: ExchangeState) {
        if let State::Sending(outgoing) = state
            && self.spare.len() < MAX_SPARE
        {
            self.spare.push(outgoing);
        }
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
            State::Receiving(incoming) => incoming.deadline(now, &self.config),
            State::InService | State::Free(_) => Time::MAX,
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
            _ => self.fail(now, slot, FailReason::PeerSilent),
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
            Body::Data { offset, .. } if packet.is_turned_back() => {
                self.handle_turned_back(now, from, id, offset);
            }
            Body::Data { .. } => return self.handle_data(now, packet),
            Body::Ack { complete: true, .. } => self.handle_complete(now, from, id),
            Body::Ack { offset, pull, incarnation, .. } => {
                let piece = Piece { offset, trimmed: false, path: header.path };
                self.handle_answer(now, from, id, Some(piece), pull, incarnation);
            }
            Body::Nack { offset, pull, incarnation } => {
                let piece = Piece { offset, trimmed: true, path: header.path };
                self.handle_answer(now, from, id, Some(piece), pull, incarnation);
            }
            Body::Pull { pull, incarnation } => {
                self.handle_answer(now, from, id, None, pull, incarnation);
            }
            Body::Ask => self.handle_ask(now, from, id, header.one_way),
            Body::Unknown => self.handle_unknown(now, from, id),
        }
        Placement::Discard
    }

    fn handle_timeout(&mut self, now: Time) {
        if !self.pulls.is_empty() && self.next_pull_at <= now {
            self.pace_pulls(now);
        }
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
        let timer = self.timers.first().map(|(at, _)| at);
        if self.pulls.is_empty() {
            return timer;
        }
        Some(timer.map_or(self.next_pull_at, |timer| timer.min(self.next_pull_at)))
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

impl Transport for Host {
    fn submit(&mut self, now: Time, message: Submit) -> Result<(), Refused> {
        let response_in = self.exchanges.check(&message, self.config.max_message_bytes)?;
        let mut outgoing = self.spare.pop().unwrap_or_default();
        let scatter = Scatter::new(self.id, message.id.0);
        outgoing.reset(message.bytes as u32, scatter, &self.config);
        let state = State::Sending(outgoing);
        let slot = if let Some(slot) = response_in {
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
