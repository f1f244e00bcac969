//! TCP's implementation of the interface that all transports' parameters have.

use core::convert::Infallible;
use std::sync::Arc;

#[cfg(any(test, feature = "testkit"))]
use rackweave_core::Rate;
use rackweave_core::frame::{MTU, wire_bytes};
use rackweave_core::{Framing, HostId, Span};
use rackweave_wire::tcp as wire;

use super::{Config, CongestionControl, Host};
use crate::profile::{Control, Part, Profile, Surroundings, UDP_FRONT};

impl Config {
    /// The share of messages that find an acknowledgement waiting on their connection, if `waiting` start, at random, while one waits.
    ///
    /// A message takes a connection on which nothing waits, and only if there is none another one, whose acknowledgement is then sent at
    /// once. So the connections on which one waits are the servers of an Erlang loss system in which a call that finds none free
    /// frees one.
    fn shared_acknowledgements(&self, waiting: f64) -> f64 {
        let connections = self.connections_per_peer.max(1);
        let (mut sum, mut weight) = (0.0, 1.0);
        for used in 1..=connections {
            sum += weight;
            let freed = f64::from(used) + if used == connections { waiting } else { 0.0 };
            weight *= waiting / freed;
        }
        weight / (sum + weight)
    }
}

impl Profile for Config {
    type Host = Host;
    type Error = Infallible;

    const NAMES: &'static [&'static str] = &["tcp", "dctcp"];

    #[cfg(any(test, feature = "testkit"))]
    fn examples(_: Rate) -> Vec<Self> {
        vec![Self::tcp(), Self::dctcp()]
    }

    fn host(self: Arc<Self>, id: HostId) -> Self::Host {
        Host::new(id, self)
    }

    fn name(&self) -> &'static str {
        match &self.congestion_control {
            CongestionControl::Dctcp => "dctcp",
            CongestionControl::External(control) => control.name(),
            CongestionControl::NewReno | CongestionControl::Cubic => "tcp",
        }
    }

    fn check(&self) -> Result<(), Infallible> {
        Ok(())
    }

    fn framing(&self) -> Framing {
        self.framing()
    }

    fn max_message_bytes(&self) -> u64 {
        u64::from(u32::MAX)
    }

    /// Every second segment is acknowledged at once (RFC 5681, 4.2). The acknowledgement of a last one without a partner waits for
    /// [`Config::delayed_ack`]: a response at once carries it, or the next request, or the next message on the connection shares it.
    ///
    /// What is not counted: the first [`Config::quick_acks`] of a connection, and those at changes of DCTCP's marks, which are a
    /// tenth more at a load of 0.7.
    fn control(&self, bytes: u64, at: &Surroundings) -> Control {
        let segments = bytes.div_ceil(self.segment_bytes()).max(1);
        let every = u64::from(self.ack_every_segments.max(1));
        // Messages that come at random while an acknowledgement waits.
        let waiting = at.per_second * self.delayed_ack.as_secs_f64();
        let rest = match at.part {
            _ if segments.is_multiple_of(every) => 0.0,
            Part::Request => 0.0,
            Part::OneWay => 1.0 - self.shared_acknowledgements(waiting),
            Part::Response => (-waiting).exp(),
        };
        let back = (segments / every) as f64 + rest;
        Control { there: 0.0, back, wire_bytes: wire_bytes(self.header_bytes) }
    }

    fn has_streams(&self) -> bool {
        true
    }

    fn over_udp(mut self) -> Self {
        // The first segments carry data and the options of a SYN.
        let options = wire::MAPPING_BYTES + wire::SYN_OPTION_BYTES;
        self.header_bytes = UDP_FRONT + wire::HEADER_BYTES + options;
        self.mss = MTU - self.header_bytes;
        self
    }

    fn patience(&self) -> Span {
        self.patience()
    }

    /// Adds timeouts and keep-alives at the same intervals.
    fn patient(mut self, at_least: Span) -> Self {
        let mut rto = self.min_rto.max(Span::from_ticks(1));
        let mut waited = Span::ZERO;
        let mut timeouts = 0;
        while waited < at_least && timeouts < u32::from(u16::MAX) {
            waited = waited.saturating_add(rto);
            rto = rto.saturating_mul(2).min(self.max_rto.max(self.min_rto));
            timeouts += 1;
        }
        self.max_retries = self.max_retries.max(timeouts);
        let probes = at_least.ticks().div_ceil(self.keepalive_interval.ticks().max(1));
        self.keepalive_probes = self.keepalive_probes.max(probes.min(u64::from(u32::MAX)) as u32);
        self
    }
}
