//! Polo: receivers drive senders at the rate that ECN marks permit. Lost packets are detected by gaps and by an
//! epoch clock. Of many concurrent flows most are paused. Switches need strict priorities and ECN.
//!
//! Source: Ruan, Wang, Jiang and Zhang, *Polo: Receiver-Driven Congestion Control for Low Latency over
//! Commodity Network Fabric*, ICPP'20, whose slides are public (`docs/protocols/polo.md#polo-mechanisms`). Rules
//! without a slide are marked "our choice".
//!
//! - [`config`]: the parameters, including the slides' variants.
//! - `drives`: the rules of D. `sender`: the first window, and transmission on request. `receiver`: arriving
//!   packets, and loss detection. `flows`: active and inactive flows, epochs, driving packets. `timing`: how late
//!   data is.
//!
//! Each message is a flow. D limits the packets that are requested and have not arrived, over all flows of the
//! receiver. First windows are not included in D, but D reacts to their marks.
//!
//! # Paused senders
//! While flows are paused, the first packet of a new flow, data or adjoint, is answered with a pause. Its
//! sender stops, even within the first window, reports how much it has sent, and then only sends occasional
//! probes. The receiver ends the pause by requesting data, and repeats the request if none arrives, so that a
//! lost packet costs a timeout. (All of this is our choice: the slides pause flows, and do not describe the
//! packets.)
//!
//! # Late data
//! The slides' timeout and recovery 2 assume that data which is not there after 1 ms, or after two epochs, is lost. In
//! longer queues it is late, and requesting it again makes the queue longer. The receiver measures by how much data is
//! later than the timeout, and waits for as long in addition before it counts anything as lost. Where no data is later
//! than the timeout, this changes nothing. (Our choice.)
//!
//! # Completion
//! The answer to a message's last missing packet carries a completion flag, as does every later answer. Only
//! this flag ends the message at its sender; for a request, the first packet of the response does so too, for
//! which [`Config::complete_delay`] delays the answer. A client that awaits its response periodically asks
//! whether the server still knows the request (our choice).
//!
//! # At most once, memory
//! As for all transports of [`crate::exchange`].

pub mod config;
mod drives;
mod flows;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;
mod timing;

use rackweave_core::{HostId, Packet, Placement, Span, Time};
use rackweave_wire::polo::{Body, Header};

use crate::common::{Driven, Heap, Jitter, List, Scheme};
pub use config::{Config, DriveOrder};
use drives::Drives;
use receiver::Incoming;
use sender::Outgoing;
use timing::Delays;

/// The clock's timer is not armed: no flow is active, so that there are no epochs.
const NO_CLOCK: Time = Time::MAX;

/// A deadline in the past, which occurs when it moves to an earlier time, is replaced by the current time.
fn after(now: Time, deadline: Time) -> Time {
    deadline.max(now.saturating_add(Span::TICK))
}

/// Polo at one host.
pub type Host = Driven<Polo>;

/// Polo's state of a host, besides its exchanges.
#[derive(Debug)]
pub struct Polo {
    /// Messages that may send a new packet, in round-robin order.
    ready: List,
    /// Messages with packets to retransmit, in round-robin order.
    resend: List,
    /// Active flows, which may be driven, in no particular order.
    active: Vec<u32>,
    /// Inactive flows, which are paused, oldest first.
    inactive: List,
    /// Active flows that need driving packets: fewest missing packets first, then oldest.
    wanting: Heap<(u32, u64)>,
    /// Those of them none of whose packets is outstanding: who has waited longest first.
    waiting: List,
    /// Whether new flows are paused.
    pausing: bool,
    drives: Drives,
    /// Estimated number of packets of all flows that were requested and have not arrived.
    in_flight: u32,
    /// Number of times that all outstanding packets were given up.
    generation: u32,
    /// The flow whose adjoint packet delimits epochs; `None` if there is no clock.
    clock: Option<u32>,
    /// The number of the current epoch.
    epoch: u32,
    /// When the clock's adjoint packet counts as lost, or when the epoch ends if the packet has returned.
    clock_until: Time,
    /// When the current epoch began.
    epoch_began: Time,
    /// Whether the adjoint packet of the epoch has returned, or its flow has ended.
    clock_returned: bool,
    /// Whether data of an active flow arrived in this epoch.
    active_data: bool,
    /// Number of consecutive epochs without such data, before this one.
    quiet_epochs: u32,
    /// When such data last arrived, or the first active flow started.
    active_data_at: Time,
    /// How much later than [`Config::rto`] data arrives after its request.
    lateness: Delays,
}

impl Scheme for Polo {
    type Config = Config;
    type Header = Header;
    type Outgoing = Outgoing;
    type Incoming = Incoming;

    fn new(_: HostId, _: &Config) -> Self {
        Self {
            ready: List::default(),
            resend: List::default(),
            active: Vec::new(),
            inactive: List::default(),
            wanting: Heap::default(),
            waiting: List::default(),
            pausing: false,
            drives: Drives::new(),
            in_flight: 0,
            generation: 0,
            clock: None,
            epoch: 1,
            clock_until: NO_CLOCK,
            epoch_began: Time::ZERO,
            clock_returned: false,
            active_data: false,
            quiet_epochs: 0,
            active_data_at: Time::ZERO,
            lateness: Delays::default(),
        }
    }

    /// An adjoint packet that follows its window needs no answer: one is in flight already.
    fn complete(header: &Header) -> Option<Body> {
        let needs_none = matches!(header.body, Body::Adjoint { timeout: false, .. });
        (!needs_none).then_some(Body::Complete)
    }

    fn outgoing(&mut self, now: Time, bytes: u32, jitter: Jitter, config: &Config) -> Outgoing {
        Outgoing::new(now, bytes, jitter, config)
    }

    fn submitted(host: &mut Host, _: Time, slot: u32) {
        host.scheme.ready.push_back(slot);
    }

    #[inline]
    fn on_packet(host: &mut Host, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let (from, id) = (packet.src, header.id.get());
        match header.body {
            Body::Data { .. } => return host.handle_data(now, packet),
            Body::Adjoint { .. } => host.handle_adjoint(now, from, header),
            Body::AdjointAck { epoch, paused, tick } => {
                host.handle_adjoint_ack(now, from, id, (epoch, paused, tick));
            }
            Body::Drive { upto } => host.handle_drive(now, from, id, upto),
            Body::Loss { first, count } => host.handle_loss(now, from, id, first, count),
            Body::Complete => host.handle_complete(now, from, id),
            Body::Ask => host.handle_ask_for_response(from, id, Body::Complete),
            Body::Unknown => host.handle_unknown(now, from, id),
        }
        Placement::Discard
    }

    #[inline]
    fn next_data(host: &mut Host, now: Time) -> Option<Packet<Header>> {
        host.next_packet(now)
    }

    fn on_timeout(host: &mut Host, now: Time) {
        host.clock_due(now);
        host.run_timers(now);
    }

    #[inline]
    fn poll_timeout(&self) -> Time {
        self.clock_until
    }

    fn sender_deadline(outgoing: &Outgoing, config: &Config) -> Time {
        outgoing.deadline(config)
    }

    fn receiver_deadline(&self, incoming: &Incoming, _: Time, config: &Config) -> Time {
        incoming.deadline(self.lateness, config)
    }

    fn sender_due(host: &mut Host, now: Time, slot: u32) {
        host.sender_due(now, slot);
    }

    fn receiver_due(host: &mut Host, now: Time, slot: u32) {
        host.receiver_due(now, slot);
    }

    fn in_service_due(host: &mut Host, slot: u32) {
        host.complete_due(slot);
    }

    fn leave_lists(&mut self, slot: u32) {
        self.ready.remove(slot);
        self.resend.remove(slot);
    }

    fn ended(host: &mut Host, now: Time, slot: u32) {
        host.end_flow(now, slot);
    }

    #[cfg(test)]
    fn check_bounds(host: &Host) {
        use crate::common::State;

        let polo = &host.scheme;
        assert!(polo.drives.d() <= host.config.max_drives);
        let (mut active, mut in_flight, mut waiting) = (0, 0, 0);
        for exchange in host.exchanges.iter() {
            match &exchange.state {
                State::Sending(outgoing) => assert!(outgoing.backlog() <= 64),
                State::Receiving(incoming) => {
                    active += usize::from(incoming.place.is_some());
                    let outstanding = incoming.outstanding_in(polo.generation);
                    in_flight += outstanding;
                    let waits =
                        incoming.place.is_some() && incoming.want().is_some() && outstanding == 0;
                    waiting += usize::from(waits);
                }
                _ => {}
            }
        }
        assert_eq!((active, in_flight), (polo.active.len(), polo.in_flight));
        assert_eq!(waiting, polo.waiting.len() as usize);
        assert!(polo.inactive.is_empty() || !polo.active.is_empty(), "someone wakes the inactive");
        assert_eq!(polo.active.is_empty(), polo.clock_until == NO_CLOCK);
        if host.exchanges.live() == 0 {
            assert!(polo.ready.is_empty() && polo.resend.is_empty());
            assert!(polo.active.is_empty() && polo.inactive.is_empty() && polo.wanting.is_empty());
            assert!(polo.waiting.is_empty());
        }
    }
}
