//! RoCEv2 with DCQCN: senders with a rate for each message, which congestion notification packets (CNPs) of its
//! receiver cut, over switches that pause instead of dropping (`PfcConfig` of the crate `switch`). Without such switches it works, and
//! repairs losses as RDMA NICs do.
//!
//! Sources: Zhu et al., *Congestion control for large-scale RDMA deployments*, SIGCOMM'15 ("the paper"); Li et al., *HPCC*,
//! SIGCOMM'19, whose simulator has the rules and the parameters of a vendor's NIC. `docs/protocols/dcqcn.md` lists them; rules without
//! a source are marked "our choice".
//!
//! - [`config`]: the parameters; `rate`: the sender's rate (the paper's reaction point). Pacing, repair and acknowledgements are those of
//!   [`crate::rdma`].
//!
//! # At most once, memory
//! As for all transports of [`crate::exchange`].

pub mod config;
mod rate;
#[cfg(test)]
mod tests;

use rackweave_core::{Ecn, HostId, Packet, Placement, Rate, Time};
use rackweave_wire::dcqcn::{Body, Header, Sack};

use crate::common::{Arriving, Driven, Jitter, Place, Scheme, State};
use crate::rdma::{Limit as _, Nic, Outgoing, Rdma, Repair};
pub use config::Config;
use rate::ReactionPoint;

/// DCQCN at one host.
pub type Host = Driven<Dcqcn>;

/// The state of a host that is specific to DCQCN.
#[derive(Debug, Default)]
pub struct Dcqcn {
    nic: Nic,
}

impl Rdma for Dcqcn {
    type Limit = ReactionPoint;

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
        Body::Data { message_length, offset, len, asks }
    }

    fn answer(_: &Header, next: u32, sack: Sack, is_missing: bool) -> Body {
        if is_missing { Body::Nack { next, sack } } else { Body::Ack { next, sack } }
    }
}

impl Scheme for Dcqcn {
    type Config = Config;
    type Header = Header;
    type Outgoing = Outgoing<ReactionPoint>;
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
    ) -> Outgoing<ReactionPoint> {
        Outgoing::new(now, bytes, config.common.packets(bytes), jitter, ReactionPoint::new(config))
    }

    fn submitted(host: &mut Host, _: Time, slot: u32) {
        host.make_ready(slot);
    }

    #[inline]
    fn on_packet(host: &mut Host, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let (from, id) = (packet.src, header.id.get());
        match header.body {
            Body::Data { message_length, offset, len, asks } => {
                if packet.is_trimmed() {
                    return Placement::Discard;
                }
                let place = Place { message_length, offset, len };
                let placement = host.handle_data(now, packet, place, asks);
                if packet.ecn() == Ecn::Marked {
                    host.send_cnp(now, from, header);
                }
                return placement;
            }
            Body::Ack { next, sack } => host.handle_ack(now, from, id, next, sack, false),
            Body::Nack { next, sack } => host.handle_ack(now, from, id, next, sack, true),
            Body::Cnp => host.handle_cnp(now, from, id),
            Body::Complete => host.handle_complete(now, from, id),
            Body::Busy => host.handle_known(now, from, id),
            Body::Unknown => host.handle_unknown(now, from, id),
            Body::Ask => host.handle_ask_for_response(from, id, Body::Busy),
        }
        Placement::Discard
    }

    #[inline]
    fn next_data(host: &mut Host, now: Time) -> Option<Packet<Header>> {
        host.next_packet(now).map(|packet| packet.with_ecn(Ecn::Capable))
    }

    fn on_timeout(host: &mut Host, now: Time) {
        host.run_timers(now);
        host.scheme.nic.woken(now);
    }

    #[inline]
    fn poll_timeout(&self) -> Time {
        self.nic.poll_timeout()
    }

    fn sender_deadline(outgoing: &Outgoing<ReactionPoint>, _: &Config) -> Time {
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
    /// Tells the sender of a mark, unless it was told a moment ago (section 3.1, the notification point).
    fn send_cnp(&mut self, now: Time, from: HostId, header: &Header) {
        let interval = self.config.cnp_interval;
        if self.may_tell_mark(now, from, header, interval) {
            self.send_control(from, header.id.get(), header.one_way, Body::Cnp);
        }
    }

    /// Handles a congestion notification.
    fn handle_cnp(&mut self, now: Time, from: HostId, id: u64) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        if let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state {
            outgoing.limit.on_cnp(now, &self.config);
            // It may be all that comes through for a while.
            outgoing.heard();
        }
    }
}
