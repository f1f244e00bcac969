//! pFabric's parameters.

use rackweave_core::{Rate, Span, frame};
use rackweave_wire::pfabric::size;

use crate::common::Parameters;
use crate::exchange::{self, InvalidConfig, in_order};
use crate::profile::Surroundings;

/// Parameters of pFabric. Sections are those of its paper (SIGCOMM'13); YAPS is the simulator that
/// `docs/protocols/pfabric.md#pfabric-rate-control` names.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What it has in common with other transports.
    pub common: exchange::Config,
    /// Packets that a message may have in flight at its start: a bandwidth-delay product (section 4.3).
    pub initial_window: u16,
    /// The largest window of a message, in packets.
    pub max_window: u16,
    /// Time without progress after which the first missing packet is sent again: three round trips (section 4.3). It is
    /// neither estimated nor backed off.
    pub rto: Span,
    /// Number of timeouts in succession after which a sender is in probe mode (section 4.3, `unverified`; 5 in Homa's study).
    pub probe_after: u8,
    /// The longest interval of probes. The first is `rto`, and each doubles it.
    pub max_probe_interval: Span,
    /// Priority of data in such switches.
    pub data_priority: u8,

    /// Interval at which a client that awaits its response asks the server for it.
    pub ask_interval: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self::paper()
    }
}

impl Config {
    /// The values of the paper's simulations (section 5.1), for its fabric: 10 Gbps and a round trip of 14.6 us. 12
    /// packets are the bandwidth-delay product, and 45 us three round trips.
    #[must_use]
    pub const fn paper() -> Self {
        Self {
            // YAPS: `mss` and `hdr_size`; paths as in section 5.1.
            common: exchange::Config::USUAL,
            initial_window: 12,
            // YAPS: `max_cwnd`. The paper names none.
            max_window: 15,
            rto: Span::from_us(45),
            probe_after: 5,
            // The paper sends probes "periodically" (our choice: the interval grows, so that many senders do not fill a
            // link with them).
            max_probe_interval: Span::from_ms(1),
            data_priority: 0,
            ask_interval: Span::from_ms(8),
        }
    }

    /// These parameters for a fabric whose longest round trip, of a full packet and an acknowledgement, is `rtt` at this
    /// rate (section 4.3): a window of a bandwidth-delay product, the largest one in YAPS' ratio (15 to 12), and a
    /// timeout of three round trips.
    #[must_use]
    pub const fn for_round_trip(mut self, link: Rate, rtt: Span) -> Self {
        let full = frame::wire_bytes(frame::MTU) as u64;
        let packets = link.bytes_in(rtt).div_ceil(full);
        let packets = if packets == 0 {
            1
        } else if packets > 32_000 {
            32_000
        } else {
            packets
        };
        self.initial_window = packets as u16;
        self.max_window = (packets + packets.div_ceil(4)) as u16;
        self.rto = rtt.saturating_mul(3);
        if self.max_probe_interval.ticks() < self.rto.ticks() {
            self.max_probe_interval = self.rto;
        }
        self
    }

    /// These parameters with timeouts for processes, which may have to wait for a processor for a millisecond and more
    /// (our choice).
    #[must_use]
    pub const fn for_hosts(mut self) -> Self {
        let turn = Span::from_ms(4);
        if self.rto.ticks() < turn.ticks() {
            self.rto = turn;
        }
        if self.max_probe_interval.ticks() < 4 * self.rto.ticks() {
            self.max_probe_interval = self.rto.saturating_mul(4);
        }
        self
    }

    /// The interval before the next probe, after this many.
    pub(super) fn probe_interval(&self, probes: u32) -> Span {
        let interval = self.rto.ticks().saturating_mul(1 << probes.min(20));
        Span::from_ticks(interval.min(self.max_probe_interval.ticks()))
    }
}

impl Parameters for Config {
    type Scheme = super::PFabric;

    const NAMES: &'static [&'static str] = &["pfabric"];
    const DATA_BYTES: u32 = size::DATA;
    const CONTROL_BYTES: u32 = size::ACK;
    // With messages of W1, whose mean is 187 bytes, acknowledgements of every packet are a quarter of all bytes
    // (docs/protocols/pfabric.md#pfabric-in-homas-study).
    const COUNTS_FEEDBACK: bool = true;

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

    /// An acknowledgement for each packet.
    fn control_packets(&self, _: f64, packets: f64, _: &Surroundings) -> [f64; 2] {
        [0.0, packets]
    }

    fn validate(&self) -> Result<(), InvalidConfig> {
        let own = [
            ("initial_window", self.initial_window > 0),
            ("rto", self.rto > Span::ZERO),
            ("probe_after", self.probe_after > 0),
            ("ask_interval", self.ask_interval > Span::ZERO),
        ];
        self.common.check(&own, &[self.data_priority])?;
        in_order(("initial_window", self.initial_window), ("max_window", self.max_window))?;
        in_order(("rto", self.rto), ("max_probe_interval", self.max_probe_interval))?;
        let longest = self.max_probe_interval.max(self.ask_interval);
        self.common.check_patience(longest, "max_probe_interval and ask_interval")
    }

    #[cfg(any(test, feature = "testkit"))]
    fn examples(_: Rate) -> Vec<Self> {
        vec![Self::paper().for_hosts()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile as _;

    const LINK: Rate = Rate::from_gbps(10);

    #[test]
    fn parameters_follow_from_the_round_trip() {
        let paper = Config::paper();
        assert_eq!(paper.check(), Ok(()));
        // 14.6 us of 10 Gbps are 18,250 bytes.
        let same = paper.clone().for_round_trip(LINK, Span::from_ns(14_600));
        assert_eq!((same.initial_window, same.max_window), (12, 15));
        assert_eq!(same.rto, Span::from_ns(43_800));
        assert_eq!(same.check(), Ok(()));
        let far = paper.clone().for_round_trip(LINK, Span::from_ms(5));
        assert_eq!(far.check(), Ok(()));
        assert_eq!((far.rto, far.max_probe_interval), (Span::from_ms(15), Span::from_ms(15)));
        let idle = paper.clone().for_round_trip(LINK, Span::ZERO);
        assert_eq!(idle.check().unwrap_err().to_string(), "rto must be above zero");
        let hosts = paper.for_hosts();
        assert_eq!(hosts.check(), Ok(()));
        assert_eq!((hosts.rto, hosts.max_probe_interval), (Span::from_ms(4), Span::from_ms(16)));
    }

    #[test]
    fn probes_become_rarer() {
        let paper = Config::paper();
        let intervals = [0, 1, 4, 5, 40].map(|probes| paper.probe_interval(probes));
        assert_eq!(intervals, [45, 90, 720, 1_000, 1_000].map(Span::from_us));
    }

    #[test]
    fn invalid_parameters_are_refused() {
        let wrong = |change: fn(&mut Config)| {
            let mut config = Config::paper();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(wrong(|c| c.initial_window = 0), "initial_window must be above zero");
        assert_eq!(wrong(|c| c.initial_window = 16), "initial_window is above max_window");
        assert_eq!(wrong(|c| c.rto = Span::from_ms(2)), "rto is above max_probe_interval");
        assert_eq!(
            wrong(|c| c.common.patience = c.ask_interval),
            "patience must be above max_probe_interval and ask_interval"
        );
        assert_eq!(wrong(|c| c.data_priority = 8), "priority 8 is above 7");
        assert_eq!(
            wrong(|c| c.common.finished_for = Span::from_ms(160)),
            "finished_for must be above 160 ms, the time for which a sender tries"
        );
    }
}
