//! TCP's implementation of the interface that all transports' parameters have.

use core::convert::Infallible;
use std::sync::Arc;

#[cfg(any(test, feature = "testkit"))]
use rackweave_core::Rate;
use rackweave_core::frame::MTU;
use rackweave_core::{Framing, HostId, Span};
use rackweave_wire::tcp as wire;

use super::{Config, CongestionControl, Host};
use crate::profile::{Feedback, Profile, UDP_FRONT};

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

    fn feedback(&self) -> Feedback {
        // Every message is acknowledged, and of a long one every second segment.
        Feedback { free_bytes: 0, packets: 0.6 }
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
