//! Swift's parameters.

use rackweave_core::{HostId, Rate, Span, frame};
use rackweave_wire::swift::size;

use crate::common::Parameters;
use crate::exchange::{self, InvalidConfig, rule};
use crate::profile::Surroundings;

/// Parameters of Swift. Sections are those of its paper (SIGCOMM'20); htsim is the simulator that
/// `docs/protocols/swift.md#swift-windows` names.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What it has in common with other transports.
    pub common: exchange::Config,
    /// The window of a new flow, in packets.
    pub initial_window: u16,
    /// The smallest window (`min_cwnd`), in thousandths of a packet. From 1000 on, nothing is paced.
    pub min_window_millipackets: u32,
    /// The largest window (`max_cwnd`), in packets.
    pub max_window: u16,
    /// `ai` of Algorithm 1: growth of the window in a round trip, in thousandths of a packet.
    pub increase_millipackets: u32,
    /// beta of Algorithm 1: the share of the relative excess of the delay by which a window shrinks, in thousandths.
    pub beta_permille: u32,
    /// `max_mdf` of Algorithm 1: the largest share of a window that one decrease takes, in thousandths.
    pub max_mdf_permille: u32,
    /// The target of the fabric's delay without switches on the path and without flow-based scaling (section 3.5).
    pub base_target: Span,
    /// What each switch on the path adds to the target.
    pub per_hop: Span,
    /// The number of switches between two hosts. Hosts that are farther apart than all of these entries count as the last.
    pub distances: Vec<Distance>,
    /// `fs_range`: the most that flow-based scaling adds to the target; zero turns it off.
    pub scaling_range: Span,
    /// `fs_min_cwnd`, the window at which it adds all of that, in thousandths of a packet.
    pub scaling_min_millipackets: u32,
    /// `fs_max_cwnd`, the window at which it adds nothing, in thousandths of a packet.
    pub scaling_max_millipackets: u32,
    /// The target of the endpoints' delay (section 3.3, `unverified`).
    pub endpoint_target: Span,
    /// `RETX_RESET_THRESHOLD`: after as many timeouts in succession a window is the smallest.
    pub reset_after: u8,
    /// The retransmission timeout before the first measurement of the round trip.
    pub initial_rto: Span,
    /// The shortest retransmission timeout.
    pub min_rto: Span,
    /// The longest retransmission timeout to which it doubles. One that follows from measured round trips may be longer.
    pub max_rto: Span,
    /// Priority of data.
    pub data_priority: u8,

    /// Interval at which a client that awaits its response asks the server for it.
    pub ask_interval: Span,

    /// Maximum number of peers to which nothing is sent whose windows are remembered.
    pub max_idle_flows: u32,
}

/// The number of switches on a path, by the distance of the two hosts: they are in the same block of `hosts` consecutive
/// numbers, as the hosts of a rack or a pod are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distance {
    /// The size of the block.
    pub hosts: u32,
    /// The number of switches between hosts of the block.
    pub hops: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self::htsim()
    }
}

impl Config {
    /// The values of htsim, which names them as guesses, for a fabric with one switch. The paper has no table of its values.
    #[must_use]
    pub fn htsim() -> Self {
        let base = Span::from_us(20);
        Self {
            common: exchange::Config {
                // The paper's flows stay on one path.
                spray: false,
                // The paper names no separate priority, and measures the delay of acknowledgements with that of data.
                control_priority: 0,
                ..exchange::Config::USUAL
            },
            initial_window: 15,
            // htsim: 10 bytes of a packet of 1500 to 9000 (our choice: the round number below).
            min_window_millipackets: 1,
            max_window: 1000,
            increase_millipackets: 1000,
            beta_permille: 800,
            max_mdf_permille: 500,
            base_target: base,
            // htsim: a 6.55th of the base target.
            per_hop: Span::from_ticks(base.ticks() * 100 / 655),
            distances: vec![Distance { hosts: u32::MAX, hops: 1 }],
            scaling_range: base * 5,
            scaling_min_millipackets: 100,
            scaling_max_millipackets: 100_000,
            // The simulator's hosts have no such delay, and the paper gives no value (our choice: that of the fabric).
            endpoint_target: base,
            reset_after: 5,
            initial_rto: Span::from_ms(1),
            min_rto: Span::from_us(100),
            // htsim doubles without a limit (our choice: a sixteenth of `patience`).
            max_rto: Span::from_ms(10),
            data_priority: 0,
            ask_interval: Span::from_ms(8),
            max_idle_flows: 1 << 16,
        }
    }

    /// These parameters for a fabric whose hosts have links of this rate, with paths of `near` and `far` (the number of
    /// switches on the shortest and the longest one, and the unloaded round trip over it).
    ///
    /// The paper derives its targets from the fabric too, and gives no formula. Our choice: the target of a path is twice
    /// its unloaded round trip, so that a bandwidth-delay product may be queued, with which a window that is halved still
    /// covers the path. A new flow begins with one such product, as the other message transports here do.
    #[must_use]
    pub fn for_paths(mut self, link: Rate, near: (u8, Span), far: (u8, Span)) -> Self {
        let (hops, rtt) = (u64::from(near.0), near.1);
        let more_hops = u64::from(far.0.saturating_sub(near.0));
        let more = far.1.saturating_sub(rtt) * 2;
        self.per_hop = more.ticks().checked_div(more_hops).map_or(Span::ZERO, Span::from_ticks);
        self.base_target = (rtt * 2).saturating_sub(self.per_hop * hops);
        self.scaling_range = rtt * 10;
        self.endpoint_target = rtt * 2;
        let full = u64::from(frame::wire_bytes(frame::MTU));
        let packets = link.bytes_in(far.1).div_ceil(full);
        self.initial_window = packets.clamp(1, u64::from(self.max_window)) as u16;
        self
    }

    /// These parameters for processes, which may have to wait for a processor for a millisecond and more (our choice). The
    /// paper's hosts have timestamps of their NICs instead.
    #[must_use]
    pub fn for_hosts(mut self) -> Self {
        self.base_target = Span::from_us(500);
        self.per_hop = Span::from_us(50);
        self.scaling_range = self.base_target * 5;
        self.endpoint_target = Span::from_ms(1);
        self.initial_rto = Span::from_ms(10);
        self.min_rto = Span::from_ms(4);
        self.max_rto = Span::from_ms(32);
        self
    }

    /// The target of a path without flow-based scaling (section 3.5: topology-based scaling). The paper counts the
    /// switches by the time to live of arriving packets. Here the hosts' numbers determine them.
    #[must_use]
    pub(super) fn path_target(&self, from: HostId, to: HostId) -> Span {
        let same = |distance: &&Distance| from.0 / distance.hosts == to.0 / distance.hosts;
        let nearest = self.distances.iter().find(same).or_else(|| self.distances.last());
        let hops = nearest.map_or(1, |distance| distance.hops);
        self.base_target.saturating_add(self.per_hop.saturating_mul(u64::from(hops)))
    }
}

impl Parameters for Config {
    type Scheme = super::Swift;

    const NAMES: &'static [&'static str] = &["swift"];
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

    /// An acknowledgement for each packet.
    fn control_packets(&self, _: f64, packets: f64, _: &Surroundings) -> [f64; 2] {
        [0.0, packets]
    }

    fn validate(&self) -> Result<(), InvalidConfig> {
        let own = [
            ("initial_window", self.initial_window > 0),
            ("min_window", self.min_window_millipackets > 0),
            ("scaling_min", self.scaling_min_millipackets > 0),
            ("distances", self.distances.iter().all(|distance| distance.hosts > 0)),
            ("reset_after", self.reset_after > 0),
            ("initial_rto", self.initial_rto > Span::ZERO),
            ("min_rto", self.min_rto > Span::ZERO),
            ("ask_interval", self.ask_interval > Span::ZERO),
        ];
        self.common.check(&own, &[self.data_priority])?;
        let initial = u32::from(self.initial_window) * 1000;
        let is_between =
            initial >= self.min_window_millipackets && self.initial_window <= self.max_window;
        rule(is_between, "initial_window", || {
            "initial_window must be between min_window and max_window".to_owned()
        })?;
        let is_range = self.scaling_min_millipackets < self.scaling_max_millipackets;
        rule(is_range, "scaling_min", || "scaling_min must be below scaling_max".to_owned())?;
        for (name, permille) in [("beta", self.beta_permille), ("max_mdf", self.max_mdf_permille)] {
            rule(permille <= 1000, name, || format!("{name} must be at most 1"))?;
        }
        rule(self.min_rto <= self.max_rto, "min_rto", || {
            "min_rto must be at most max_rto".to_owned()
        })?;
        let longest = self.max_rto.saturating_mul(4).max(self.ask_interval);
        self.common.check_patience(longest, "four times max_rto, and above ask_interval")
    }

    #[cfg(any(test, feature = "testkit"))]
    fn examples(_: Rate) -> Vec<Self> {
        vec![Self::htsim().for_hosts()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile as _;

    #[test]
    fn parameters_follow_from_the_paths() {
        let htsim = Config::htsim();
        assert_eq!(htsim.check(), Ok(()));
        let link = Rate::from_gbps(100);
        let (near, far) = ((1, Span::from_us(4)), (3, Span::from_us(7)));
        let config = htsim.clone().for_paths(link, near, far);
        assert_eq!(config.check(), Ok(()));
        assert_eq!((config.base_target, config.per_hop), (Span::from_us(5), Span::from_us(3)));
        // 87.5 KB in 7 us.
        assert_eq!((config.initial_window, config.scaling_range), (57, Span::from_us(40)));
        let racks = [Distance { hosts: 8, hops: 1 }, Distance { hosts: u32::MAX, hops: 3 }];
        let config = Config { distances: racks.into(), ..config };
        let target = |to| config.path_target(HostId(1), HostId(to));
        assert_eq!([target(7), target(8)], [8, 14].map(Span::from_us), "twice the round trips");
        let one = htsim.clone().for_paths(link, near, near);
        assert_eq!((one.base_target, one.per_hop), (Span::from_us(8), Span::ZERO));
        assert_eq!(htsim.for_hosts().check(), Ok(()));
    }

    #[test]
    fn hosts_beyond_all_blocks_are_as_far_as_the_last() {
        let near = vec![Distance { hosts: 4, hops: 2 }];
        let config = Config { distances: near, ..Config::htsim() };
        let far = config.path_target(HostId(0), HostId(9));
        assert_eq!(far, config.base_target + config.per_hop * 2);
        let none = Config { distances: vec![], ..Config::htsim() };
        assert_eq!(none.path_target(HostId(0), HostId(9)), none.base_target + none.per_hop);
    }

    #[test]
    fn invalid_parameters_are_refused() {
        let wrong = |change: fn(&mut Config)| {
            let mut config = Config::htsim();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(wrong(|c| c.initial_window = 0), "initial_window must be above zero");
        let window = "initial_window must be between min_window and max_window";
        assert_eq!(wrong(|c| c.initial_window = 1001), window);
        assert_eq!(wrong(|c| c.min_window_millipackets = 15_001), window);
        assert_eq!(wrong(|c| c.min_window_millipackets = 0), "min_window must be above zero");
        assert_eq!(
            wrong(|c| c.scaling_min_millipackets = 100_000),
            "scaling_min must be below scaling_max"
        );
        assert_eq!(wrong(|c| c.max_mdf_permille = 1001), "max_mdf must be at most 1");
        assert_eq!(wrong(|c| c.min_rto = Span::from_ms(11)), "min_rto must be at most max_rto");
        assert_eq!(
            wrong(|c| c.max_rto = Span::from_ms(40)),
            "patience must be above four times max_rto, and above ask_interval"
        );
        assert_eq!(wrong(|c| c.distances[0].hosts = 0), "distances must be above zero");
        assert_eq!(wrong(|c| c.data_priority = 8), "priority 8 is above 7");
        assert_eq!(
            wrong(|c| c.common.finished_for = Span::from_ms(160)),
            "finished_for must be above 160 ms, the time for which a sender tries"
        );
    }
}
