//! DCQCN's parameters.

use rackweave_core::{Rate, Span};
use rackweave_wire::dcqcn::size;

use crate::common::Parameters;
use crate::exchange::{self, InvalidConfig, in_order, rule};
use crate::profile::Surroundings;
use crate::rdma::{Repair, check_min_rate, min_rate};

/// Parameters of RoCEv2 with DCQCN. Sections are those of its paper (SIGCOMM'15); HPCC's are those of SIGCOMM'19 and of the scripts of
/// its simulator.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What it has in common with other transports.
    pub common: exchange::Config,
    /// The rate of the host's link, at which a message begins.
    pub link: Rate,
    /// The least rate of a message.
    pub min_rate: Rate,
    /// A receiver sends at most one CNP for a message in this interval (section 3.1: 50 us).
    pub cnp_interval: Span,
    /// The weight g of a new observation in the estimate of congestion, alpha.
    pub gain: f64,
    /// The interval of updates of alpha.
    pub alpha_interval: Span,
    /// The rate is cut at most once in this interval.
    pub cut_interval: Span,
    /// Whether each cut makes the rate before it the target (the paper's equation 1), or only one after an increase
    /// (`CLAMP_TARGET_RATE` 0 of HPCC's simulator).
    pub clamp_target: bool,
    /// The rate is raised after this interval without a cut, and again after each further one.
    pub raise_interval: Span,
    /// The increases that halve the distance to the rate before the cut, before the target grows (F).
    pub fast_recovery: u32,
    /// By how much the target then grows once.
    pub additive: Rate,
    /// By how much it grows from then on.
    pub hyper: Rate,
    /// The most packets of a message in flight (HPCC, section 5.1: DCQCN+win); `u32::MAX` for no window.
    pub window: u32,
    /// Repair and acknowledgements.
    pub repair: Repair,
    /// Interval at which a client that awaits its response asks the server for it.
    pub ask_interval: Span,
}

impl Config {
    /// The values of HPCC's evaluation for a link of this rate (section 5.1 and `simulation/run.py`, "dcqcn"): a vendor's values.
    #[must_use]
    pub const fn hpcc(link: Rate) -> Self {
        Self {
            // In order, by one path for each pair of hosts. The timeout and the bounds of memory are our choice.
            common: exchange::Config { spray: false, ..exchange::Config::USUAL },
            link,
            min_rate: min_rate(link),
            // In the simulator the acknowledgement of each marked packet tells of it.
            cnp_interval: Span::ZERO,
            gain: 1.0 / 256.0,
            alpha_interval: Span::from_us(1),
            cut_interval: Span::from_us(4),
            clamp_target: false,
            raise_interval: Span::from_us(300),
            fast_recovery: 1,
            // 5 and 50 Mbps at 25 Gbps, and in proportion.
            additive: Rate(link.0 / 5_000),
            hyper: Rate(link.0 / 500),
            window: u32::MAX,
            repair: Repair::HPCC,
            ask_interval: Span::from_ms(8),
        }
    }

    /// The values of DCQCN's paper (sections 3.1 and 5) for a link of this rate, without its byte counter. The least rate is that of
    /// [`Config::hpcc`].
    #[must_use]
    pub const fn paper(link: Rate) -> Self {
        Self {
            cnp_interval: Span::from_us(50),
            alpha_interval: Span::from_us(55),
            cut_interval: Span::from_us(50),
            clamp_target: true,
            raise_interval: Span::from_us(55),
            fast_recovery: 5,
            // 40 and 200 Mbps at 40 Gbps.
            additive: Rate(link.0 / 1_000),
            hyper: Rate(link.0 / 200),
            ..Self::hpcc(link)
        }
    }

    /// These parameters with timeouts for processes, which may have to wait for a processor for milliseconds (our choice).
    #[must_use]
    pub const fn for_hosts(mut self) -> Self {
        self.repair = self.repair.for_hosts();
        self
    }
}

impl Parameters for Config {
    type Scheme = super::Dcqcn;

    const NAMES: &'static [&'static str] = &["dcqcn"];
    const DATA_BYTES: u32 = size::DATA;
    const CONTROL_BYTES: u32 = size::ACK;

    #[inline]
    fn common(&self) -> &exchange::Config {
        &self.common
    }

    fn common_mut(&mut self) -> &mut exchange::Config {
        &mut self.common
    }

    fn ask_interval(&self) -> Span {
        self.ask_interval
    }

    /// The acknowledgements that are asked for, and that of the whole.
    fn control_packets(&self, _: f64, packets: f64, _: &Surroundings) -> [f64; 2] {
        [0.0, (packets / f64::from(self.repair.ack_every)).ceil().max(1.0)]
    }

    fn validate(&self) -> Result<(), InvalidConfig> {
        let own = [
            ("link", self.link.0 > 0),
            ("min_rate", self.min_rate.0 > 0),
            ("alpha_interval", self.alpha_interval > Span::ZERO),
            ("cut_interval", self.cut_interval > Span::ZERO),
            ("ask_interval", self.ask_interval > Span::ZERO),
        ];
        self.repair.check()?;
        self.common.check(&own, &[self.repair.data_priority])?;
        rule(self.gain > 0.0 && self.gain <= 1.0, "gain", || {
            "gain must be above 0 and at most 1".to_owned()
        })?;
        // Each increase that was due is made at the next look.
        rule(self.raise_interval >= Span::from_us(1), "raise_interval", || {
            "raise_interval must be at least 1 us".to_owned()
        })?;
        let full = self.common.header_bytes + self.common.max_payload;
        check_min_rate(self.min_rate, full, self.common.patience)?;
        in_order(("additive", self.additive), ("hyper", self.hyper))?;
        in_order(("ack_every", self.repair.ack_every), ("window", self.window))?;
        let longest = self.repair.longest_timeout().max(self.ask_interval);
        self.common.check_patience(longest, "eight times rto and ask_interval")
    }

    #[cfg(any(test, feature = "testkit"))]
    fn examples(link: Rate) -> Vec<Self> {
        let paper = Self::paper(link);
        let repair = Repair { selective: true, ..paper.repair };
        let selective = Self { repair, ..paper };
        vec![Self::hpcc(link).for_hosts(), selective.for_hosts()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile as _;

    #[test]
    fn invalid_parameters_are_refused() {
        let link = Rate::from_gbps(25);
        assert_eq!(Config::hpcc(link).check(), Ok(()));
        assert_eq!(Config::paper(link).check(), Ok(()));
        assert_eq!(Config::hpcc(link).additive, Rate(5_000_000));
        assert_eq!(Config::paper(Rate::from_gbps(40)).additive, Rate(40_000_000));
        let wrong = |change: fn(&mut Config)| {
            let mut config = Config::hpcc(Rate::from_gbps(25));
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(wrong(|c| c.gain = 0.0), "gain must be above 0 and at most 1");
        assert_eq!(wrong(|c| c.cut_interval = Span::ZERO), "cut_interval must be above zero");
        assert_eq!(wrong(|c| c.additive = c.link), "additive is above hyper");
        assert_eq!(
            wrong(|c| c.repair.rto = Span::from_ms(20)),
            "patience must be above eight times rto and ask_interval"
        );
    }
}
