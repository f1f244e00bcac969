//! Homa's implementation of the interface that all transports' parameters have.

use std::sync::Arc;

#[cfg(any(test, feature = "testkit"))]
use rackweave_core::Rate;
use rackweave_core::frame::{MTU, wire_bytes};
use rackweave_core::{Framing, HostId, Span};
use rackweave_wire::homa::{Layout, size};

use super::{Config, HeaderBytes, Host, InvalidConfig};
use crate::profile::{Control, Profile, Surroundings, UDP_FRONT};

/// Maximum number of finished messages that are remembered to allow for a longer patience.
const MAX_FINISHED: u64 = 1 << 20;

impl Config {
    /// The wire layout of its headers.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        if self.leverage.measure_rtt { Layout::Leverage } else { self.layout }
    }
}

impl Profile for Config {
    type Host = Host;
    type Error = InvalidConfig;

    const NAMES: &'static [&'static str] = &["homa"];

    #[cfg(any(test, feature = "testkit"))]
    fn examples(link: Rate) -> Vec<Self> {
        vec![Self::fabric(link, 10_000), Self::linux(link), Self::leverage(link)]
    }

    fn host(self: Arc<Self>, id: HostId) -> Self::Host {
        Host::new(id, self)
    }

    fn check(&self) -> Result<(), InvalidConfig> {
        self.check()
    }

    fn framing(&self) -> Framing {
        self.framing()
    }

    fn max_message_bytes(&self) -> u64 {
        u64::from(self.max_message_bytes)
    }

    /// One grant for each packet of scheduled data. Acknowledgements travel with data (docs/protocols/homa.md#homa-loss).
    fn control(&self, bytes: u64, _: &Surroundings) -> Control {
        let scheduled = bytes.saturating_sub(u64::from(self.unscheduled_bytes));
        let back = scheduled.div_ceil(u64::from(self.max_payload)) as f64;
        Control { there: 0.0, back, wire_bytes: wire_bytes(self.header_bytes.grant) }
    }

    fn counts_feedback(&self) -> bool {
        true
    }

    fn has_streams(&self) -> bool {
        true
    }

    fn over_udp(mut self) -> Self {
        let (data, grant, ack) = match self.layout() {
            Layout::Head => (size::DATA_HEAD, size::GRANT_HEAD, size::ACK_HEAD),
            Layout::Talk => (size::DATA_TALK, size::GRANT_TALK, size::ACK_TALK),
            Layout::Leverage => (size::DATA_LEVERAGE, size::GRANT_LEVERAGE, size::ACK_TALK),
        };
        self.header_bytes = HeaderBytes {
            data: UDP_FRONT + data,
            grant: UDP_FRONT + grant,
            resend: UDP_FRONT + size::RESEND,
            common: UDP_FRONT + size::COMMON,
            cutoffs: UDP_FRONT + size::CUTOFFS,
            ack: UDP_FRONT + ack,
        };
        self.max_payload = MTU - self.header_bytes.data;
        self.streams.stream_header = UDP_FRONT + size::STREAM;
        self.streams.credit = UDP_FRONT + size::CREDIT;
        self.streams.missing = UDP_FRONT + size::MISSING;
        self.streams.reset = UDP_FRONT + size::RESET;
        self
    }

    fn patience(&self) -> Span {
        self.tick.saturating_mul(u64::from(self.patience()))
    }

    /// Adds RESENDs and NEED_ACKs at the same intervals. The first tick may come at once, and does not count.
    fn patient(mut self, at_least: Span) -> Self {
        let ticks = at_least.ticks().div_ceil(self.tick.ticks().max(1)).saturating_add(1);
        let asking = ticks.saturating_sub(u64::from(self.resend_ticks));
        let resends = asking.div_ceil(u64::from(self.resend_interval.max(1)));
        let resends = resends.min(u64::from(u16::MAX)) as u16;
        if resends <= self.timeout_resends {
            return self;
        }
        let before = self.finished_ticks.max(1);
        let margin = before.saturating_sub(self.remembered_for()).max(1);
        self.timeout_resends = resends;
        self.finished_ticks = before.max(self.remembered_for().saturating_add(margin));
        let more =
            u64::from(self.max_finished) * u64::from(self.finished_ticks) / u64::from(before);
        self.max_finished = self.max_finished.max(more.min(MAX_FINISHED) as u32);
        self
    }
}
