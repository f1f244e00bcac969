//! Homa: receiver-driven, connectionless, with shortest remaining processing time first (SRPT) at both ends.
//!
//! A sender sends the first bytes of a message without grants ("unscheduled"), at a priority that depends on
//! the length. The receiver grants the rest, to few messages at a time, each at a priority of its own.
//!
//! Sources: Montazeri et al., *Homa: a receiver-driven low-latency transport protocol using network
//! priorities*, SIGCOMM'18 ("the paper"); Ousterhout, *A Linux kernel implementation of the Homa transport
//! protocol*, ATC'21, and its code, `HomaModule`; draft-ousterhout-tsvwg-homa-00 ("the draft"). Rules without a
//! source are marked "our choice".
//!
//! - [`config`]: the parameters; [`cutoffs`]: priorities of unscheduled bytes.
//! - `sender`: transmission, and the handling of receivers' packets; `srpt`: the send queue.
//! - `receiver`: arriving data; `grants`: which messages are granted.
//! - `timers`: ticks and timeouts; `repair`: when and how fast lost bytes are requested; `rpc`, `peer`: the
//!   state.
//! - [`leverage`]: the extensions of Leverage Homa; `rtt`, `windows`, `pacer`: their implementation.
//!
//! # Events
//! A response implies that its request has arrived, so that a request has no [`Event::Sent`] of its own.
//! One-way messages are acknowledged as responses are (our choice: Homa has none; a flag in the common header
//! marks them).
//!
//! # At most once
//! A finished RPC is remembered for [`Config::finished_ticks`], so that late or duplicate packets do not start
//! it again (the known gap of Homa: docs/protocols/homa.md#homa-loss). If there is no room to remember it, ids of that
//! peer up to it are refused for that time: their messages fail with a reason rather than being delivered
//! twice. A request is refused by an acknowledgement, a one-way message by a bit of UNKNOWN, after which its sender waits
//! [`Config::resend_ticks`] for an acknowledgement that may be on its way. A call whose response the client has acknowledged is not sent again, and raises that limit only for as long as the
//! network may delay a packet: a request may wait at its client behind any number of later ones. A restarted peer has lost this
//! memory.
//!
//! # Memory
//! For any input, a host holds at most [`Config::max_rpcs`] RPCs of up to [`Config::max_gaps`] ranges each. Further
//! RPCs are refused with [`Refused::Busy`], or dropped if a peer starts them. It holds at most as many peers, with
//! [`Config::max_acks_queued`] ids each; idle peers make room for new ones. It holds at most [`Config::max_finished`]
//! ids of finished RPCs, for [`Config::finished_ticks`], and [`Config::max_control`] control packets, besides a GRANT
//! for each RPC. State of a silent peer is discarded after [`Config::patience`], with a failure if the application
//! waits for it ([`FailReason::PeerSilent`]); an arriving response is kept up to four times as long if many others are
//! repaired first. A delivered request stays until the application answers or cancels it.

pub mod config;
pub mod cutoffs;
mod finished;
mod grantable;
mod grants;
pub mod leverage;
mod pacer;
mod peer;
mod profile;
mod receiver;
mod repair;
mod rpc;
mod rtt;
mod sender;
mod srpt;
pub mod stream;
#[cfg(test)]
mod tests;
mod timers;
mod windows;

use core::mem::offset_of;
use std::collections::VecDeque;
use std::sync::Arc;

use rackweave_core::{
    Event, FailReason, Framing, HostId, Kind, MessageId, Node, Open, Packet, Placement,
    RecoveryCounters, Refused, RoundTrip, Submit, Time, Transport, prefetch,
};
use rackweave_wire::Id64;
use rackweave_wire::homa::{Body, Header};

use crate::common::InlineHeap;
pub use config::{Config, FifoGrants, HeaderBytes, InvalidConfig, PriorityBy};
pub use cutoffs::Cutoffs;
use finished::{Finished, FinishedQueue};
use grants::{Fifo, Grants, Key};
pub use leverage::{Detection, Leverage};
use peer::Peers;
use repair::Repairs;
use rpc::{Known, Memory, Outgoing, Rpcs, State};
use srpt::{Ready, SendQueue};

/// The client's port in all packets. With [`SERVER_PORT`], it is what ECMP hashes.
const CLIENT_PORT: u16 = 0x8000;
/// The server's port in all packets.
const SERVER_PORT: u16 = 99;

/// A queued control packet.
#[derive(Clone, Copy, Debug)]
enum Control {
    /// A GRANT. Its fields are determined when it is sent, so that a newer grant replaces it.
    Grant {
        slot: u32,
        host: HostId,
        id: u64,
        /// When the grant was decided.
        decided: Time,
    },
    Other {
        dst: HostId,
        header: Header,
    },
}

/// Homa at one host. What packets read lies together: in a large fabric each cache line of a host is a miss.
#[derive(Debug)]
#[repr(C)]
pub struct Host {
    config: Arc<Config>,
    next_tick: Option<Time>,
    control: VecDeque<Control>,
    events: VecDeque<Event>,
    rpcs: Rpcs,
    /// When the timer of each stream expires.
    stream_timers: InlineHeap<Time>,
    id: HostId,
    /// Whether the driver has polled for a packet since the last tick, after which it does so if the link takes one.
    polled: bool,
    recovery: RecoveryCounters,
    queue: SendQueue,
    peers: Peers,
    leverage: Box<windows::State>,
    /// Ticks that passed without a timer, because this host stood still.
    missed_ticks: u64,
    /// The tick of the last timer, or of its start.
    last_tick: u64,
    grants: Grants,
    repairs: Repairs,
    finished: FinishedQueue,
    /// See [`Transport::not_admitted`].
    not_admitted: u64,
    fifo: Fifo,
}

/// Where a host begins in a cache line in the simulator, whose fabrics have thousands of them: behind the simulator's own state of
/// the host and the tag of [`crate::Machine`].
const BEGINS_AT: usize = 40;

/// What most packets read is in eight cache lines, which [`Node::prefetch`] requests. Where pointers are not of
/// 64 bits, it may be in more.
const _: () = if size_of::<usize>() == 8 {
    assert!((BEGINS_AT + offset_of!(Host, control)).is_multiple_of(64));
    assert!((BEGINS_AT + offset_of!(Host, rpcs)).is_multiple_of(64));
    assert!((BEGINS_AT + offset_of!(Host, queue) + SendQueue::HOT).is_multiple_of(64));
    assert!((BEGINS_AT + offset_of!(Host, grants) + Grants::HOT) % 64 <= 8);
    assert!((BEGINS_AT + offset_of!(Host, repairs)).is_multiple_of(64));
};

impl Host {
    /// Creates Homa at host `id`, without messages. Hosts share their configuration, which must have passed
    /// [`Config::check`].
    #[must_use]
    pub fn new(id: HostId, config: Arc<Config>) -> Self {
        let queue = SendQueue::new(config.pacer_fifo_fraction);
        Self {
            id,
            polled: false,
            config,
            rpcs: Rpcs::default(),
            peers: Peers::default(),
            control: VecDeque::new(),
            queue,
            grants: Grants::default(),
            repairs: Repairs::default(),
            finished: FinishedQueue::default(),
            events: VecDeque::new(),
            recovery: RecoveryCounters::default(),
            not_admitted: 0,
            fifo: Fifo::default(),
            next_tick: None,
            last_tick: 0,
            missed_ticks: 0,
            leverage: Box::default(),
            stream_timers: InlineHeap::default(),
        }
    }

    /// Number of RPCs and one-way messages in progress, in either direction.
    #[must_use]
    pub fn rpcs_under_way(&self) -> u32 {
        self.rpcs.live()
    }

    /// Asserts that all state is within the configured bounds.
    #[cfg(test)]
    fn check_bounds(&self) {
        let config = &self.config;
        assert!(self.rpcs.live() <= config.max_rpcs);
        assert!(self.rpcs.slots() <= config.max_rpcs);
        assert!(self.control.len() <= (config.max_control + config.max_rpcs) as usize);
        assert!(self.finished.len() <= config.max_finished as usize);
        assert!(self.peers.len() <= (config.max_rpcs as usize).max(256));
        self.rpcs.check(self.finished.len());
        if self.rpcs.live() == 0 {
            assert!(self.grants.is_empty());
            assert_eq!((self.grants.incoming, self.repairs.outstanding()), (0, 0));
            assert!(self.queue.is_empty());
            assert!(self.stream_timers.is_empty());
        }
    }

    /// Whether nothing is in progress and nothing is queued.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.rpcs.live() == 0 && self.control.is_empty() && self.events.is_empty()
    }

    /// The number of the tick at this time. 32 bits would last for 50 days with ticks of a millisecond.
    fn tick(&self, now: Time) -> u64 {
        now.ticks() / self.config.tick.ticks().max(1)
    }

    /// Starts the timer, which stops at a tick that finds no RPC.
    fn start_timer(&mut self, now: Time) {
        if self.next_tick.is_none() {
            self.next_tick = Some(now.saturating_add(self.config.tick));
            self.last_tick = self.tick(now);
        }
    }

    /// Adds an RPC; `None` if there is no room for it.
    fn add_rpc(
        &mut self,
        now: Time,
        host: HostId,
        id: u64,
        one_way: bool,
        state: State,
    ) -> Option<u32> {
        if self.rpcs.live() >= self.config.max_rpcs {
            return None;
        }
        let tick = self.tick(now);
        let (idle, max) = (self.config.finished_ticks, self.config.max_rpcs as usize);
        let peer = self.peers.get_or_insert(host, tick, idle, max)?;
        let entry = self.peers.get_mut(peer);
        entry.rpcs += 1;
        entry.used = tick;
        self.start_timer(now);
        let slot = self.rpcs.insert(host, peer, id, one_way, self.config.resend_ticks, state);
        self.rpcs.get_mut(slot).missed_before = self.missed_ticks;
        self.rpcs.get_mut(slot).resent_at = tick;
        Some(slot)
    }

    /// Ends an RPC in any state without an event. Late packets of one that is remembered are answered as those of a
    /// finished one.
    fn remove_rpc(&mut self, now: Time, slot: u32, memory: Memory) {
        let (host, id, peer) = {
            let rpc = self.rpcs.get(slot);
            (rpc.host, rpc.id, rpc.peer)
        };
        self.leave_state(slot);
        self.rpcs.remove(slot, memory);
        let tick = self.tick(now);
        let entry = self.peers.get_mut(peer);
        entry.rpcs -= 1;
        entry.used = tick;
        if memory != Memory::None {
            self.remember_finished(Finished { tick, host, id });
        }
    }

    /// Removes an RPC from the queues of its current state.
    fn leave_state(&mut self, slot: u32) {
        let rpc = self.rpcs.get(slot);
        match &rpc.state {
            State::Sending(outgoing) => {
                if outgoing.is_ready() || outgoing.needs_resend() {
                    self.queue.remove(slot);
                }
            }
            State::Receiving(incoming) => {
                self.grants.incoming -= u64::from(incoming.counted());
                self.repairs.release(incoming.asked);
                if incoming.granted < incoming.length {
                    let key = Key { left: incoming.left, birth: rpc.birth, slot };
                    let list = &mut self.peers.get_mut(rpc.peer).grantable;
                    self.grants.remove(&self.rpcs, list, key);
                }
            }
            State::InService | State::Free(_) => {}
            State::Stream(_) => self.leave_stream(slot),
        }
    }

    fn remember_finished(&mut self, entry: Finished) {
        self.finished.push(entry);
        let keep = u64::from(self.config.finished_ticks);
        let delay = u64::from(self.config.network_ticks());
        while let Some(Finished { tick, host, id }) = self.finished.front() {
            let age = entry.tick.saturating_sub(tick);
            let expired = age >= keep;
            if !expired && self.finished.len() <= self.config.max_finished as usize {
                break;
            }
            self.finished.pop();
            // A client that has acknowledged its response does not send the request again. Without this rule, a large request that
            // waited at its client behind many short ones (SRPT) would be refused here, though it was never sent.
            let is_over = self.rpcs.forget(host, id) && age >= delay;
            // Only servers refuse ids.
            if !expired
                && !is_over
                && id & 1 == 1
                && let Some(peer) = self.peers.find(host)
            {
                peer.floor = peer.floor.max(id);
                peer.floor_until = entry.tick.saturating_add(keep);
            }
        }
    }

    /// Queues a control packet. It is dropped if the queue is full, as the network may drop any packet.
    fn send_control(&mut self, dst: HostId, id: u64, one_way: bool, body: Body) {
        if self.control.len() < self.config.max_control as usize {
            let header = Header { id: Id64::new(id), one_way, body };
            self.control.push_back(Control::Other { dst, header });
        }
    }

    /// Makes a packet to `dst` with this header, of the given size and priority.
    fn packet(&self, dst: HostId, l3_bytes: u32, priority: u8, header: Header) -> Packet<Header> {
        let (source, destination) = if header.id.get() & 1 == 0 {
            (CLIENT_PORT, SERVER_PORT)
        } else {
            (SERVER_PORT, CLIENT_PORT)
        };
        Packet::new(self.id, dst, l3_bytes, header)
            .with_priority(priority)
            .with_ports(source, destination)
            .sprayed(self.config.spray)
    }

    /// Reports to the application that an RPC has failed, and discards the RPC.
    fn fail(&mut self, now: Time, slot: u32, reason: FailReason) {
        let rpc = self.rpcs.get(slot);
        let (peer, local) = (rpc.host, rpc.id);
        let is_client = local & 1 == 0;
        let (id, executed) = match rpc.state {
            // The client's request or one-way message, or the server's response.
            State::Sending(_) => (Some(local), !is_client),
            State::InService => (Some(local ^ 1), true),
            // A response that the client waits for. The server's application has not seen a request that is
            // incomplete.
            State::Receiving(_) => (is_client.then_some(local), false),
            State::Free(_) => return,
            State::Stream(_) => return self.fail_stream(now, slot, reason),
        };
        let memory = if executed { Memory::Finished } else { Memory::None };
        self.remove_rpc(now, slot, memory);
        if let Some(id) = id {
            self.events.push_back(Event::Failed { peer, id: MessageId(id), reason });
        }
        self.issue_grants(now);
    }

    fn submit_outgoing(&mut self, now: Time, message: Submit, length: u32) -> Result<(), Refused> {
        let id = message.id.0;
        let unscheduled = self.unscheduled_to(message.peer);
        let unscheduled = self.config.whole_packets(unscheduled, length);
        let outgoing = Outgoing {
            length,
            granted: unscheduled,
            unscheduled,
            next: 0,
            sent_to: 0,
            resend_from: 0,
            resend_to: 0,
            priority: 0,
        };
        let state = State::Sending(outgoing);
        let slot = match (message.kind, self.rpcs.find(message.peer, id)) {
            (Kind::Response, Known::Slot(slot)) => {
                let rpc = self.rpcs.get_mut(slot);
                match rpc.state {
                    State::InService => {}
                    State::Sending(_) => return Err(Refused::DuplicateId),
                    _ => return Err(Refused::UnknownRequest),
                }
                rpc.note_alive(self.config.resend_ticks);
                rpc.state = state;
                slot
            }
            (Kind::Response, _) => return Err(Refused::UnknownRequest),
            (_, Known::No) => {
                let one_way = message.kind == Kind::OneWay;
                self.add_rpc(now, message.peer, id, one_way, state).ok_or(Refused::Busy)?
            }
            (_, Known::Slot(_) | Known::Finished) => return Err(Refused::DuplicateId),
        };
        self.start_timer(now);
        self.note_submitted(now, unscheduled, length);
        let birth = self.rpcs.get(slot).birth;
        self.queue.push(Ready { left: length, slot, birth });
        Ok(())
    }

    /// Handles a packet from the network.
    #[inline]
    fn handle_header(&mut self, now: Time, packet: &Packet<Header>) -> Placement {
        let header = packet.header;
        let (from, id) = (packet.src, header.local_id());
        if let Body::Data { .. } = header.body {
            return self.handle_data(now, packet);
        }
        if let Body::Stream(stream) = header.body {
            return self.handle_stream(now, packet, stream);
        }
        if self.config.one_resend_per_peer
            && let Some(peer) = self.peers.find(from)
        {
            peer.asked = 0;
        }
        match header.body {
            Body::Data { .. } | Body::Stream(_) => {}
            Body::Grant { offset, priority, resend_all, .. } => {
                self.handle_grant(from, id, offset, priority, resend_all);
            }
            Body::Resend { offset, length, .. } => {
                self.handle_resend(from, &header, offset, length);
            }
            Body::Unknown { refused } => self.handle_unknown(now, from, id, refused),
            Body::Busy => self.handle_busy(from, id),
            Body::Cutoffs { cutoffs, version } => self.handle_cutoffs(from, cutoffs, version),
            Body::NeedAck => self.handle_need_ack(now, from, &header),
            Body::Ack { count, others } => {
                self.handle_ack(now, from, id);
                for other in others.iter().take(usize::from(count)) {
                    self.handle_ack(now, from, other.get() ^ 1);
                }
            }
        }
        Placement::Discard
    }
}

impl Node for Host {
    type Header = Header;
    type Event = Event;
    type Placement = Placement;

    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<Header>) -> Placement {
        if packet.src == self.id || packet.dst != self.id {
            return Placement::Discard;
        }
        let placement = self.handle_header(now, packet);
        if self.config.leverage.measure_rtt {
            self.note_stamps(now, packet);
        }
        placement
    }

    fn handle_timeout(&mut self, now: Time) {
        if let Some(due) = self.next_tick.filter(|at| *at <= now) {
            self.note_lateness(due, now);
            self.handle_tick(now);
        }
        self.handle_pacer_timeout(now);
        self.handle_stream_timers(now);
    }

    #[inline]
    fn poll_transmit(&mut self, now: Time, _port: u8) -> Option<Packet<Header>> {
        self.polled = true;
        while let Some(control) = self.control.pop_front() {
            if self.control.is_empty() {
                // The next one begins at the buffer's start, so that a queue that is mostly empty uses one cache line.
                self.control.clear();
            }
            if let Some(packet) = self.control_packet(now, control) {
                return Some(packet);
            }
        }
        if let Some(packet) = self.next_retransmission(now) {
            return Some(packet);
        }
        if self.backs_off(now) {
            return None;
        }
        let packet = self.next_packet(now);
        if packet.is_none() {
            self.arm_trickle(now);
        }
        packet
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        let stream = self.stream_timers.first().map(|(at, _)| at);
        [self.next_tick, self.pacer_timeout(), stream].into_iter().flatten().min()
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    #[inline]
    fn prefetch(&self) {
        prefetch(&self.config);
        prefetch(&self.control);
        prefetch(&self.rpcs);
        prefetch(&self.stream_timers);
        self.queue.prefetch();
        prefetch(&self.peers);
        self.grants.prefetch();
        prefetch(&self.repairs);
    }

    #[inline]
    fn prefetch_transmit(&self) {
        if let Some(slot) = self.queue.shortest()
            && let Some(peer) = self.rpcs.prefetch_slot(slot)
        {
            self.peers.prefetch(peer);
        }
    }

    #[inline]
    fn prefetch_for(&self, packet: &Packet<Header>) {
        if let Some(peer) = self.rpcs.prefetch(packet.src, packet.header.local_id()) {
            self.peers.prefetch(peer);
        }
        // Where the GRANT for the packet is put.
        prefetch(self.control.as_slices().0);
    }
}

impl Transport for Host {
    fn submit(&mut self, now: Time, message: Submit) -> Result<(), Refused> {
        let max = u64::from(self.config.max_message_bytes);
        if message.bytes > max {
            return Err(Refused::TooLong { max });
        }
        if message.bytes == 0 {
            return Err(Refused::Empty);
        }
        if message.id.is_response() != (message.kind == Kind::Response) {
            return Err(Refused::WrongId);
        }
        self.submit_outgoing(now, message, message.bytes as u32)
    }

    fn cancel(&mut self, now: Time, peer: HostId, id: MessageId) {
        if let Some(slot) =
            self.find_stream(peer, id.0).or_else(|| self.find_stream(peer, id.0 ^ 1))
        {
            return self.cancel_stream(now, slot);
        }
        // The local id of a submitted message is the message's own id; that of an arriving message is its
        // counterpart.
        let submitted = match self.rpcs.find(peer, id.0) {
            Known::Slot(slot) => {
                let mine =
                    !id.is_response() || matches!(self.rpcs.get(slot).state, State::Sending(_));
                mine.then_some(slot)
            }
            Known::No | Known::Finished => None,
        };
        let arriving = match self.rpcs.find(peer, id.0 ^ 1) {
            Known::Slot(slot) => match self.rpcs.get(slot).state {
                State::Receiving(_) | State::InService => Some(slot),
                // A response that the client waits for.
                State::Sending(_) => id.is_response().then_some(slot),
                State::Free(_) | State::Stream(_) => None,
            },
            Known::No | Known::Finished => None,
        };
        if let Some(slot) = submitted.or(arriving) {
            let is_server = self.rpcs.get(slot).id & 1 == 1;
            let memory = if is_server { Memory::Finished } else { Memory::None };
            self.remove_rpc(now, slot, memory);
            self.issue_grants(now);
        }
    }

    fn is_arriving(&self, peer: HostId, id: MessageId) -> bool {
        match self.rpcs.find(peer, id.0 ^ 1) {
            Known::Slot(slot) => self.rpcs.get(slot).incoming().is_some(),
            Known::No | Known::Finished => false,
        }
    }

    fn framing(&self) -> Framing {
        self.config.framing()
    }

    fn round_trips(&self) -> Vec<RoundTrip> {
        self.measured_round_trips()
    }

    fn not_admitted(&self) -> u64 {
        self.not_admitted
    }

    fn recovery_counters(&self) -> RecoveryCounters {
        self.recovery
    }

    fn open(&mut self, now: Time, stream: Open) -> Result<(), Refused> {
        self.open_stream(now, stream)
    }

    fn write(
        &mut self,
        now: Time,
        peer: HostId,
        id: MessageId,
        bytes: u64,
        end: bool,
    ) -> Result<(), Refused> {
        self.write_stream(now, peer, id.0, bytes, end)
    }

    fn consume(&mut self, now: Time, peer: HostId, id: MessageId, bytes: u64) {
        self.consume_stream(now, peer, id.0 ^ 1, bytes);
    }
}
