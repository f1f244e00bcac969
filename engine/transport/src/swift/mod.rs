//! Swift: a sender-driven transport whose windows keep the measured delay at a target. It needs nothing of switches.
//!
//! Sources: Kumar et al., *Swift: delay is simple and effective for congestion control in the datacenter*, SIGCOMM'20
//! ("the paper"), and htsim, a simulator that has its congestion control. `docs/protocols/swift.md#swift-windows` lists their
//! rules; rules without a source are marked "our choice". The paper's text was not available: its section numbers, and what
//! htsim does not have (sections 3.1, 3.3 and the bitmap of 3.6), are `unverified`.
//!
//! - [`config`]: the parameters.
//! - `congestion`: Algorithm 1 and the target delay; `flow`: round trips, losses and windows of one pair of hosts.
//! - `sender`: messages and their packets; `receiver`: acknowledgements.
//!
//! # Flows
//! The window is one of all messages to a host, as in Pony Express, whose flows are between two hosts. A data packet has a
//! number; the sender remembers when it sent it, and the receiver answers each with the number and with the time that the
//! answer has waited at its own host. The clock of the peer is not used. A packet that is sent again has a new number.
//!
//! # Loss
//! A packet is sent again when the acknowledgement of one that was sent at least three later has arrived, or after a timeout
//! (section 3.6).
//!
//! # At most once, memory
//! As for all transports of [`crate::exchange`]. Besides, a host holds a flow for each peer that it sends to and for
//! [`Config::max_idle_flows`] others, with up to [`Config::max_window`] packets each.

pub mod config;
mod congestion;
mod flow;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use rackweave_core::{HostId, Packet, Placement, Time};
use rackweave_wire::Id64;
use rackweave_wire::swift::{Body, Header};
use rustc_hash::FxHashMap;

use crate::common::{Arriving, Driven, Heap, Jitter, List, Scheme};
pub use config::{Config, Distance};
use congestion::{Rules, Scaling};
use flow::Flow;
use sender::Outgoing;

/// Swift at one host.
pub type Host = Driven<Swift>;

type Exchanges = crate::common::Exchanges<Outgoing, Arriving>;

/// Marks, in [`Swift::queued_in`], a message that is in no flow's queue.
const NONE: u32 = u32::MAX;

/// The state of a host that is specific to Swift.
#[derive(Debug)]
pub struct Swift {
    rules: Rules,
    scaling: Scaling,
    /// The flows; those without a peer in `index` are free.
    flows: Vec<Flow>,
    free: Vec<u32>,
    index: FxHashMap<HostId, u32>,
    /// The flows without work whose windows are remembered, the longest idle one first.
    idle: List,
    idle_count: u32,
    /// The flows that may send a packet now.
    ready: List,
    /// When flows may send again, or count what is in flight as lost.
    timers: Heap<Time>,
    /// For each message, the flow whose queue it is in.
    queued_in: Vec<u32>,
    /// When the packet arrived that is being handled, in nanoseconds modulo 2^32.
    arrived_ns: u32,
}

impl Swift {
    fn flow(&self, index: u32) -> &Flow {
        &self.flows[index as usize]
    }

    fn flow_mut(&mut self, index: u32) -> &mut Flow {
        &mut self.flows[index as usize]
    }

    /// The flow to a peer, if it is known.
    fn find(&self, peer: HostId) -> Option<u32> {
        self.index.get(&peer).copied()
    }

    /// The flow to a peer, which is created if it is not known.
    fn flow_to(&mut self, host: HostId, peer: HostId, config: &Config) -> u32 {
        if let Some(index) = self.find(peer) {
            if self.idle.contains(index) {
                self.idle.remove(index);
                self.idle_count -= 1;
            }
            return index;
        }
        let flow = Flow::new(host, peer, config);
        let index = if let Some(index) = self.free.pop() {
            self.flows[index as usize] = flow;
            index
        } else {
            self.flows.push(flow);
            self.flows.len() as u32 - 1
        };
        self.index.insert(peer, index);
        index
    }

    /// Puts a flow without work among the flows that are only remembered; the oldest of them may be forgotten.
    fn rest(&mut self, index: u32, config: &Config) {
        self.timers.remove(index);
        // Nothing awaits an answer: an old silence does not count against what is sent later.
        self.flow_mut(index).on_answer();
        if !self.idle.contains(index) {
            self.idle.push_back(index);
            self.idle_count += 1;
        }
        if self.idle_count > config.max_idle_flows
            && let Some(oldest) = self.idle.pop_front()
        {
            self.idle_count -= 1;
            let peer = self.flow(oldest).peer;
            self.index.remove(&peer);
            self.ready.remove(oldest);
            self.free.push(oldest);
        }
    }

    /// Appends a message to the queue of its flow, unless it is there.
    fn enqueue(&mut self, flow: u32, slot: u32) {
        if self.queued_in.len() <= slot as usize {
            self.queued_in.resize(slot as usize + 1, NONE);
        }
        if self.queued_in[slot as usize] == NONE {
            self.queued_in[slot as usize] = flow;
            self.flow_mut(flow).queue.push_back(slot);
        }
    }

    /// Takes the message whose turn it is from the queue of a flow.
    fn dequeue(&mut self, flow: u32) -> Option<u32> {
        let slot = self.flow_mut(flow).queue.pop_front()?;
        self.queued_in[slot as usize] = NONE;
        Some(slot)
    }
}

impl Scheme for Swift {
    type Config = Config;
    type Header = Header;
    type Outgoing = Outgoing;
    type Incoming = Arriving;

    fn new(_: HostId, config: &Config) -> Self {
        Self {
            rules: Rules::new(config),
            scaling: Scaling::new(config),
            flows: Vec::new(),
            free: Vec::new(),
            index: FxHashMap::default(),
            idle: List::default(),
            idle_count: 0,
            ready: List::default(),
            timers: Heap::default(),
            queued_in: Vec::new(),
            arrived_ns: 0,
        }
    }

    /// Until an acknowledgement departs, its `wait_ns` is the time at which the packet arrived that it answers.
    #[inline]
    fn header(&mut self, _: &Config, id: Id64, one_way: bool, mut body: Body) -> Header {
        if let Body::Ack { wait_ns, .. } | Body::Complete { wait_ns, .. } = &mut body {
            *wait_ns = self.arrived_ns;
        }
        Header { id, one_way, body }
    }

    #[inline]
    fn departs(now: Time, header: &mut Header) {
        if let Body::Ack { wait_ns, .. } | Body::Complete { wait_ns, .. } = &mut header.body {
            *wait_ns = (now.as_ns() as u32).wrapping_sub(*wait_ns);
        }
    }

    fn complete(header: &Header) -> Option<Body> {
        let number = if let Body::Data { number, .. } = header.body { number } else { 0 };
        Some(Body::Complete { number, wait_ns: 0 })
    }

    fn outgoing(&mut self, now: Time, bytes: u32, _: Jitter, config: &Config) -> Outgoing {
        Outgoing::new(now, bytes, config)
    }

    fn submitted(host: &mut Host, now: Time, slot: u32) {
        host.begin_sending(now, slot);
    }

    #[inline]
    fn on_packet(host: &mut Host, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let (from, id) = (packet.src, header.id.get());
        host.scheme.arrived_ns = now.as_ns() as u32;
        match header.body {
            Body::Data { .. } => return host.handle_data(now, packet),
            Body::Probe { message_length } => host.handle_probe(now, from, header, message_length),
            Body::Ack { .. } => host.handle_ack(now, from, id, &header.body),
            Body::Complete { number, wait_ns } => {
                host.handle_last_ack(now, from, id, number, wait_ns);
            }
            Body::Busy => host.handle_known(now, from, id),
            Body::Unknown => host.handle_unknown(now, from, id),
            Body::Ask => host.handle_ask_for_response(from, id, Body::Busy),
        }
        Placement::Discard
    }

    #[inline]
    fn next_data(host: &mut Host, now: Time) -> Option<Packet<Header>> {
        host.next_packet(now)
    }

    fn on_timeout(host: &mut Host, now: Time) {
        host.run_timers(now);
        host.run_flow_timers(now);
    }

    #[inline]
    fn poll_timeout(&self) -> Time {
        self.timers.first().map_or(Time::MAX, |(at, _)| at)
    }

    fn sender_deadline(outgoing: &Outgoing, config: &Config) -> Time {
        outgoing.deadline(config)
    }

    fn receiver_deadline(&self, incoming: &Arriving, _: Time, config: &Config) -> Time {
        incoming.last_received().saturating_add(config.common.patience)
    }

    fn sender_due(host: &mut Host, now: Time, slot: u32) {
        host.sender_due(now, slot);
    }

    fn leave_lists(&mut self, slot: u32) {
        let flow = self.queued_in.get(slot as usize).copied().unwrap_or(NONE);
        if flow != NONE {
            self.queued_in[slot as usize] = NONE;
            self.flow_mut(flow).queue.retain(|queued| *queued != slot);
        }
    }

    #[cfg(test)]
    fn check_bounds(host: &Host) {
        use crate::common::State;

        for exchange in host.exchanges.iter() {
            match &exchange.state {
                State::Sending(outgoing) => outgoing.check_bounds(&host.config),
                State::Receiving(incoming) => {
                    incoming.check_bounds(
                        host.config.common.max_message_bytes,
                        host.config.common.max_gaps,
                    );
                }
                _ => {}
            }
        }
        let scheme = &host.scheme;
        let mut in_queues = 0;
        for (flow, index) in scheme.flows.iter().zip(0..) {
            if scheme.free.contains(&index) {
                assert!(flow.is_idle() && scheme.find(flow.peer) != Some(index));
                continue;
            }
            assert_eq!(scheme.find(flow.peer), Some(index));
            flow.check_bounds(&scheme.rules, &host.config);
            assert!(flow.queue.iter().all(|slot| scheme.queued_in[*slot as usize] == index));
            in_queues += flow.queue.len();
            // A flow with work sends now, or has a timer.
            let waits = scheme.ready.contains(index) || scheme.timers.contains(index);
            assert!(!flow.has_work() || waits, "{flow:?}");
        }
        let queued = scheme.queued_in.iter().filter(|flow| **flow != NONE).count();
        assert_eq!(queued, in_queues);
        assert_eq!(scheme.index.len() + scheme.free.len(), scheme.flows.len());
        assert!(scheme.idle_count <= host.config.max_idle_flows);
    }
}
