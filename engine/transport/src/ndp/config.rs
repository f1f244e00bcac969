//! NDP's parameters.

use rackweave_core::{Rate, Span};
use rackweave_wire::ndp::size;

use crate::common::{Parameters, RtoBounds};
use crate::exchange::{self, InvalidConfig, in_order, rule};
use crate::profile::Surroundings;

/// Maximum number of paths that a sender can choose among: those of a fat-tree of 128-port switches.
pub const MAX_PATHS: u16 = 4096;

/// NDP's parameters. See [`Config::paper`] and [`Config::polo_slides`] for the published sets.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What it has in common with other transports.
    pub common: exchange::Config,
    /// Rate of the receiver's link. Pulls are paced so that the data they trigger fills it.
    pub link: Rate,
    /// Number of paths between two hosts of the fabric. The sender chooses one for each packet. 0:
    /// switches choose at random.
    pub paths: u16,
    /// Number of packets of a message that are sent at line rate, without pulls. To keep the link busy it must
    /// cover a round trip.
    pub initial_window: u16,
    /// Share of the receiver's link that pulls may fill, in 1/100. The rest is for acknowledgements of the data
    /// that the receiver itself sends (htsim: 99).
    pub pull_percent: u32,
    /// Minimum retransmission timeout. A packet without an answer is retransmitted without a pull after the
    /// smoothed RTT plus four times its deviation (RFC 6298 without its rounding), but not before this time.
    /// Only the timeout repairs the loss of a trimmed header, an ACK or a NACK.
    pub min_rto: Span,
    /// Maximum retransmission timeout, including exponential backoff.
    pub max_rto: Span,
    /// Maximum number of consecutive probes that a peer may answer without a pull. After these the message is
    /// considered forgotten. (Our choice: NDP has no such limit, and the message would never end.)
    pub max_stalls: u32,
    /// Priority of data packets in switches, 0 (lowest) to 7.
    pub data_priority: u8,
}

impl Config {
    /// The parameters of htsim's NDP (`docs/protocols/ndp.md#ndp-sender`), written by the paper's authors, with
    /// packets of 1500 bytes: headers of 64 bytes, a window of 15 packets, a minimum timeout of 5 ms.
    #[must_use]
    pub const fn paper(link: Rate) -> Self {
        Self {
            common: exchange::Config {
                max_payload: 1436,
                header_bytes: 64,
                control_bytes: 46,
                ..exchange::Config::USUAL
            },
            link,
            paths: 0,
            initial_window: 15,
            pull_percent: 99,
            min_rto: Span::from_ms(5),
            max_rto: Span::from_ms(10),
            max_stalls: 64,
            data_priority: 0,
        }
    }

    /// The parameters of NDP in the comparison of Polo's slides (`docs/protocols/polo.md#polo-comparison`): a window
    /// of 12 packets of 1460 bytes, a minimum timeout of 1 ms.
    #[must_use]
    pub const fn polo_slides(link: Rate) -> Self {
        Self {
            common: exchange::Config::USUAL,
            initial_window: 12,
            min_rto: Span::from_ms(1),
            max_rto: Span::from_ms(8),
            ..Self::paper(link)
        }
    }

    #[inline]
    pub(super) const fn rto_bounds(&self) -> RtoBounds {
        RtoBounds { min: self.min_rto, max: self.max_rto, patience: self.common.patience }
    }

    /// Interval between two pulls (`docs/protocols/ndp.md#ndp-pulls`: the time of a full packet / 0.99).
    pub(super) fn pull_spacing(&self) -> Span {
        let packet = self
            .link
            .span_of(u64::from(self.common.framing().packet_wire_bytes(self.common.max_payload)));
        Span::from_ticks(packet.ticks() * 100 / u64::from(self.pull_percent.clamp(1, 100)))
    }
}

impl Parameters for Config {
    type Scheme = super::Ndp;

    const NAMES: &'static [&'static str] = &["ndp"];
    const DATA_BYTES: u32 = size::DATA;
    const CONTROL_BYTES: u32 = size::PULL;

    #[inline]
    fn common(&self) -> &exchange::Config {
        &self.common
    }

    fn common_mut(&mut self) -> &mut exchange::Config {
        &mut self.common
    }

    fn ask_interval(&self) -> Span {
        self.max_rto
    }

    /// An acknowledgement for each packet, and a pull for each one beyond the window, unless it travels with an acknowledgement
    /// (docs/protocols/ndp.md#ndp-pulls).
    fn control_packets(&self, _: f64, packets: f64, _: &Surroundings) -> [f64; 2] {
        let window = f64::from(self.initial_window);
        [0.0, packets + (packets - window).max(0.0)]
    }

    fn validate(&self) -> Result<(), InvalidConfig> {
        let own = [
            ("link", self.link.0 > 0),
            ("initial_window", self.initial_window > 0),
            ("min_rto", self.min_rto > Span::ZERO),
            ("max_stalls", self.max_stalls > 0),
        ];
        self.common.check(&own, &[self.data_priority])?;
        rule(self.paths <= MAX_PATHS, "paths", || {
            format!("a sender can choose among at most {MAX_PATHS} paths, not {}", self.paths)
        })?;
        rule((1..=100).contains(&self.pull_percent), "pull_percent", || {
            format!("pull_percent must be 1 to 100, not {}", self.pull_percent)
        })?;
        in_order(("min_rto", self.min_rto), ("max_rto", self.max_rto))?;
        self.common.check_patience(self.max_rto, "max_rto")
    }

    #[cfg(any(test, feature = "testkit"))]
    fn examples(link: Rate) -> Vec<Self> {
        vec![Self::paper(link)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile as _;

    const LINK: Rate = Rate::from_gbps(10);

    #[test]
    fn the_profiles_make_sense() {
        assert_eq!(Config::paper(LINK).check(), Ok(()));
        assert_eq!(Config::polo_slides(LINK).check(), Ok(()));
        // 1538 bytes take 1230.4 ns; at 99 % the interval is longer.
        assert_eq!(Config::paper(LINK).pull_spacing(), Span::from_ps(1_242_828));
    }

    #[test]
    fn invalid_parameters_are_refused() {
        let wrong = |change: fn(&mut Config)| {
            let mut config = Config::paper(LINK);
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(wrong(|c| c.initial_window = 0), "initial_window must be above zero");
        assert_eq!(
            wrong(|c| c.common.max_payload = 65_000),
            "a packet of 65064 bytes is longer than 65000"
        );
        assert_eq!(wrong(|c| c.data_priority = 8), "priority 8 is above 7");
        assert_eq!(
            wrong(|c| c.paths = 5000),
            "a sender can choose among at most 4096 paths, not 5000"
        );
        assert_eq!(wrong(|c| c.pull_percent = 101), "pull_percent must be 1 to 100, not 101");
        assert_eq!(wrong(|c| c.max_rto = Span::from_ms(4)), "min_rto is above max_rto");
        assert_eq!(wrong(|c| c.common.patience = c.max_rto), "patience must be above max_rto");
        assert_eq!(
            wrong(|c| c.common.finished_for = Span::from_ms(160)),
            "finished_for must be above 160 ms, the time for which a sender tries"
        );
    }
}
