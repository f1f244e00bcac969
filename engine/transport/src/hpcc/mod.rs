//! HPCC: senders whose windows follow what switches write into packets (in-band telemetry, [`rackweave_core::telemetry`]), over
//! switches that pause instead of dropping.
//!
//! Source: Li et al., *HPCC: High Precision Congestion Control*, SIGCOMM'19 ("the paper"), and its simulator. `docs/protocols/hpcc.md`
//! lists the rules; those without a source are marked "our choice".
//!
//! - [`config`]: the parameters; `window`: Algorithm 1. Pacing, repair and acknowledgements are those of `rdma`.
//!
//! Its machine has headers with the stack; those of [`Machine`](crate::Machine) have none. On networks that stamp packets,
//! [`StampedMachine`](crate::StampedMachine) takes its place. Elsewhere a window stays at the product of bandwidth and base round trip.
//!
//! # At most once, memory
//! As for all transports of [`crate::exchange`].

pub mod config;
#[cfg(test)]
mod tests;
mod window;

use rackweave_core::telemetry::Stack;
use rackweave_core::{HostId, Packet, Placement, Rate, Time};
use rackweave_wire::hpcc::Sack;
use rackweave_wire::hpcc::stamped::{Body, Header};

use crate::common::{Arriving, Driven, Jitter, Place, Scheme, State};
use crate::rdma::{Limit as _, Nic, Outgoing, Rdma, Repair};
pub use config::Config;
use window::Window;

/// HPCC at one host.
pub type Host = Driven<Hpcc>;

/// The state of a host that is specific to HPCC.
#[derive(Debug, Default)]
pub struct Hpcc {
    nic: Nic,
}

impl Rdma for Hpcc {
    type Limit = Window;

    #[inline]
    fn link(config: &Config) -> Rate {
        config.link
    }

    #[inline]
    fn repair(config: &Config) -> &Repair {
        &config.repair
    }

    #[cfg(test)]
    fn nic(&self) -> &Nic {
        &self.nic
    }

    #[inline]
    fn nic_mut(&mut self) -> &mut Nic {
        &mut self.nic
    }

    fn data(message_length: u32, offset: u32, len: u16, asks: bool) -> Body {
        Body::Data { message_length, offset, len, asks, stack: Stack::default() }
    }

    fn answer(to: &Header, next: u32, sack: Sack, is_missing: bool) -> Body {
        let stack = match to.body {
            Body::Data { stack, .. } => stack,
            _ => Stack::default(),
        };
        if is_missing { Body::Nack { next, sack, stack } } else { Body::Ack { next, sack, stack } }
    }
}

impl Scheme for Hpcc {
    type Config = Config;
    type Header = Header;
    type Outgoing = Outgoing<Window>;
    type Incoming = Arriving;

    fn new(_: HostId, _: &Config) -> Self {
        Self::default()
    }

    fn complete(_: &Header) -> Option<Body> {
        Some(Body::Complete)
    }

    fn outgoing(
        &mut self,
        now: Time,
        bytes: u32,
        jitter: Jitter,
        config: &Config,
    ) -> Outgoing<Window> {
        Outgoing::new(now, bytes, config.common.packets(bytes), jitter, Window::new(config))
    }

    fn submitted(host: &mut Host, _: Time, slot: u32) {
        host.make_ready(slot);
    }

    #[inline]
    fn on_packet(host: &mut Host, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let (from, id) = (packet.src, header.id.get());
        match header.body {
            Body::Data { message_length, offset, len, asks, .. } => {
                if packet.is_trimmed() {
                    return Placement::Discard;
                }
                return host.handle_data(now, packet, Place { message_length, offset, len }, asks);
            }
            Body::Ack { next, sack, stack } => {
                host.handle_stack(now, from, id, next, &stack);
                host.handle_ack(now, from, id, next, sack, false);
            }
            Body::Nack { next, sack, stack } => {
                host.handle_stack(now, from, id, next, &stack);
                host.handle_ack(now, from, id, next, sack, true);
            }
            Body::Complete => host.handle_complete(now, from, id),
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
        host.scheme.nic.woken(now);
    }

    #[inline]
    fn poll_timeout(&self) -> Time {
        self.nic.poll_timeout()
    }

    fn sender_deadline(outgoing: &Outgoing<Window>, _: &Config) -> Time {
        outgoing.deadline()
    }

    fn receiver_deadline(&self, incoming: &Arriving, _: Time, config: &Config) -> Time {
        incoming.last_received().saturating_add(config.common.patience)
    }

    fn sender_due(host: &mut Host, now: Time, slot: u32) {
        host.sender_due(now, slot);
    }

    fn leave_lists(&mut self, slot: u32) {
        self.nic.remove(slot);
    }

    #[cfg(test)]
    fn check_bounds(host: &Host) {
        crate::rdma::check_bounds(host);
    }
}

impl Host {
    /// Changes a message's window, and so its rate, by what switches had written into a packet that is acknowledged.
    fn handle_stack(&mut self, now: Time, from: HostId, id: u64, next: u32, stack: &Stack) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state else { return };
        // What was not sent cannot have been stamped.
        if next <= outgoing.sent_to() {
            let next_to_send = outgoing.next();
            outgoing.limit.on_ack(now, next, next_to_send, stack, &self.config);
            // `rdma-hw.cc`, `ChangeRate`: the new rate holds from the last packet on.
            outgoing.pace(now, &*self.config);
        }
    }
}
