//! HPCC's parameters.

use rackweave_core::{Rate, Span};
use rackweave_wire::hpcc::size;

use crate::common::Parameters;
use crate::exchange::{self, InvalidConfig, rule};
use crate::profile::Surroundings;
use crate::rdma::{Repair, check_min_rate, min_rate};

/// Parameters of HPCC. Sections are those of its paper (SIGCOMM'19).
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What it has in common with other transports.
    pub common: exchange::Config,
    /// The rate of the host's link, at which a message begins.
    pub link: Rate,
    /// T, the base round trip: that of a full packet between the hosts that are farthest apart, without load.
    pub base_rtt: Span,
    /// eta, the target of the utilisation (section 3.3).
    pub eta: f64,
    /// maxStage: round trips of additive increase before a multiplicative one.
    pub max_stage: u32,
    /// `W_AI`: what a window gains in a round trip, in bytes.
    pub additive_bytes: u32,
    /// The least rate of a message, to which its window corresponds.
    pub min_rate: Rate,
    /// Repair and acknowledgements.
    pub repair: Repair,
}

impl Config {
    /// The number of flows for which `W_AI` is made by default: with 100 Gbps and T = 13 us it is 81 bytes; the paper has 80.
    pub const FLOWS: u32 = 100;

    /// The values of the paper (section 5.1) for links of this rate and a base round trip.
    #[must_use]
    pub fn paper(link: Rate, base_rtt: Span) -> Self {
        let mut config = Self {
            // In order, by one path for each pair of hosts. Bounds of memory are our choice.
            common: exchange::Config {
                spray: false,
                // As long as a full packet of other transports, with the room for hops.
                max_payload: 1_460 - rackweave_core::telemetry::Stack::BYTES,
                header_bytes: 40 + rackweave_core::telemetry::Stack::BYTES,
                control_bytes: 40 + rackweave_core::telemetry::Stack::BYTES,
                // `simulation/run.py`: acknowledgements share the queues of data.
                control_priority: Repair::HPCC.data_priority,
                ..exchange::Config::USUAL
            },
            link,
            base_rtt,
            eta: 0.95,
            // The paper names 5. Its authors say that 0 is what their simulations have ("Settings" of their results).
            max_stage: 0,
            additive_bytes: 0,
            min_rate: min_rate(link),
            repair: Repair::HPCC,
        };
        config.additive_bytes = config.additive_for(Self::FLOWS);
        config
    }

    /// `W_AI` for this number of flows of a link (section 3.3): `W_init * (1 - eta) / N`, so that their increases together do not fill a
    /// queue. At least a byte.
    #[must_use]
    pub fn additive_for(&self, flows: u32) -> u32 {
        (self.initial_window() * (1.0 - self.eta) / f64::from(flows.max(1))).max(1.0) as u32
    }

    /// `W_init`, the bytes of the link in a base round trip.
    #[must_use]
    pub fn initial_window(&self) -> f64 {
        self.bytes_of(self.link)
    }

    /// The bytes that a rate sends in a base round trip.
    pub(super) fn bytes_of(&self, rate: Rate) -> f64 {
        rate.bytes_in(self.base_rtt) as f64
    }

    /// T in seconds.
    pub(super) fn base_seconds(&self) -> f64 {
        self.base_rtt.as_secs_f64()
    }

    /// These parameters with timeouts for processes, which may have to wait for a processor for milliseconds (our choice).
    #[must_use]
    pub const fn for_hosts(mut self) -> Self {
        self.repair = self.repair.for_hosts();
        self
    }
}

impl Parameters for Config {
    type Scheme = super::Hpcc;

    const NAMES: &'static [&'static str] = &["hpcc"];
    const DATA_BYTES: u32 = size::DATA;
    const CONTROL_BYTES: u32 = size::ACK;
    const READS_STAMPS: bool = true;

    #[inline]
    fn common(&self) -> &exchange::Config {
        &self.common
    }

    fn common_mut(&mut self) -> &mut exchange::Config {
        &mut self.common
    }

    fn ask_interval(&self) -> Span {
        self.repair.rto.saturating_mul(2)
    }

    /// The acknowledgements that are asked for, and that of the whole.
    fn control_packets(&self, _: f64, packets: f64, _: &Surroundings) -> [f64; 2] {
        [0.0, (packets / f64::from(self.repair.ack_every)).ceil().max(1.0)]
    }

    fn validate(&self) -> Result<(), InvalidConfig> {
        let own = [
            ("link", self.link.0 > 0),
            ("base_rtt", self.base_rtt > Span::ZERO),
            ("min_rate", self.min_rate.0 > 0),
            ("additive_bytes", self.additive_bytes > 0),
        ];
        self.repair.check()?;
        self.common.check(&own, &[self.repair.data_priority])?;
        rule(self.eta > 0.0 && self.eta <= 1.0, "eta", || {
            "eta must be above 0 and at most 1".to_owned()
        })?;
        let full = self.common.header_bytes + self.common.max_payload;
        check_min_rate(self.min_rate, full, self.common.patience)?;
        self.common.check_patience(self.repair.longest_timeout(), "eight times rto")
    }

    #[cfg(any(test, feature = "testkit"))]
    fn examples(link: Rate) -> Vec<Self> {
        let paper = Self::paper(link, Span::from_us(13));
        let selective = Repair { selective: true, ..paper.repair };
        vec![paper.clone().for_hosts(), Self { repair: selective, ..paper }.for_hosts()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile as _;

    #[test]
    fn invalid_parameters_are_refused() {
        let valid = || Config::paper(Rate::from_gbps(100), Span::from_us(13));
        assert_eq!(valid().check(), Ok(()));
        // The paper's 80 bytes, and its full packets on the link.
        assert_eq!(valid().additive_bytes, 81);
        assert_eq!(valid().framing().packet_wire_bytes(valid().common.max_payload), 1_538);
        let wrong = |change: fn(&mut Config)| {
            let mut config = valid();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(wrong(|c| c.eta = 1.5), "eta must be above 0 and at most 1");
        assert_eq!(wrong(|c| c.eta = f64::NAN), "eta must be above 0 and at most 1");
        assert_eq!(wrong(|c| c.base_rtt = Span::ZERO), "base_rtt must be above zero");
        assert_eq!(
            wrong(|c| c.min_rate = Rate(10_000)),
            "a packet at min_rate takes 1.23 s, after which a receiver has forgotten its message"
        );
        assert_eq!(wrong(|c| c.repair.ack_every = 0), "ack_every must be above zero");
        assert_eq!(
            wrong(|c| c.repair.rto = Span::from_ms(20)),
            "patience must be above eight times rto"
        );
    }
}
