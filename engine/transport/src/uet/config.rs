//! The parameters of EQDS and of UET's congestion control.

use rackweave_core::{Rate, Span};
use rackweave_wire::uet::{QUANTUM, size};

use crate::common::{Parameters, RtoBounds};
use crate::exchange::{self, InvalidConfig, in_order, rule};
use crate::profile::Surroundings;

/// Maximum number of entropy values of a message: every message keeps a list of penalties for them.
pub const MAX_ENTROPIES: u16 = 4096;

/// Full packets for which UET's windows have room at least.
pub(super) const MIN_WINDOW_PACKETS: u64 = 8;

/// The credit that a receiver gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credit {
    /// None: a sender follows its window (NSCC) only.
    None,
    /// As in EQDS: first to messages with trimmed packets, then to messages that ask for credit, then to idle ones.
    Eqds,
    /// UET's RCCC: to messages that ask for credit, not more than they ask for, then to idle ones.
    Rccc,
}

/// The choice of entropy values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balancing {
    /// As in EQDS: all values in turn; one with a mark or a trimmed packet is skipped once.
    Skip,
    /// UET's mixture: values whose packets arrived unmarked are used again first, then all others in turn, except those with
    /// penalties for marks and trimmed packets.
    Mixed,
}

/// The parameters of EQDS and UET. See [`Config::eqds`], [`Config::nscc`], [`Config::rccc`] and [`Config::uet`].
///
/// Credit and windows are bytes of packets from the IP header on, as in the authors' simulators.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What it has in common with other transports.
    pub common: exchange::Config,
    /// Rate of the receiver's link. Credit is paced so that the data that it triggers fills it.
    pub link: Rate,
    /// Number of entropy values among which a message's sender chooses one for each packet, a power of two. 0: switches choose at
    /// random.
    pub entropies: u16,
    /// How it chooses.
    pub balancing: Balancing,
    /// The credit that receivers give.
    pub credit: Credit,
    /// Whether senders have NSCC's window.
    pub nscc: bool,
    /// What a message may send before its receiver gives credit, the maximum of its unused credit and of what it asks for, and
    /// the credit that an idle message may get beyond that (EQDS: 50 packets; UET: 1.5 bandwidth-delay products). NSCC's largest
    /// window is as long, until a shorter round trip is measured.
    pub max_window: u64,
    /// The longest round trip of the idle network: NSCC's parameters are multiples of it, and UET's senders send an RTS at most
    /// once in this time.
    pub base_rtt: Span,
    /// NSCC's target for the time that packets wait in queues.
    pub target_delay: Span,
    /// Whether a trimmed packet shrinks NSCC's window by its size. UET's receivers report whether the last switch trimmed it, and
    /// with RCCC the window does not shrink then; here switches do not say where a packet was trimmed.
    pub shrink_on_trim: bool,
    /// Full packets for which a receiver gives credit at once.
    pub credit_packets: u16,
    /// Share of the receiver's link that credit may fill, in 1/100.
    pub pull_percent: u32,
    /// A receiver acknowledges after this many bytes, unless something asks for it at once.
    pub ack_bytes: u32,
    /// Minimum retransmission timeout. The sources have a fixed one; here it is longer if the measured round trips are, and doubles
    /// (our choice: with queues that drop instead of trimming, a fixed one takes what waits for lost, again and again).
    pub min_rto: Span,
    /// Maximum retransmission timeout.
    pub max_rto: Span,
    /// Maximum number of consecutive probes that a peer may answer without a pull. After these the message is considered
    /// forgotten. (Our choice, as for NDP.)
    pub max_stalls: u32,
    /// Priority of data packets in switches, 0 (lowest) to 7.
    pub data_priority: u8,
}

impl Config {
    /// EQDS with the parameters of its authors' simulator (`docs/protocols/uet.md#eqds-parameters`), for packets of 1500 bytes. Its timeout
    /// of 100 us is for 100 Gbps: on slower links, whose queues take longer, it is longer in proportion (our choice).
    #[must_use]
    pub const fn eqds(link: Rate) -> Self {
        let slower = Rate::from_gbps(100).0.div_ceil(if link.0 == 0 { 1 } else { link.0 });
        let slower = if slower > 80 { 80 } else { slower };
        Self {
            common: exchange::Config {
                max_payload: 1436,
                header_bytes: 64,
                control_bytes: 64,
                ..exchange::Config::USUAL
            },
            link,
            entropies: 0,
            balancing: Balancing::Skip,
            credit: Credit::Eqds,
            nscc: false,
            max_window: 50 * 1500,
            base_rtt: Span::from_us(12),
            target_delay: Span::from_us(9),
            shrink_on_trim: true,
            credit_packets: 1,
            pull_percent: 99,
            ack_bytes: 16_384,
            min_rto: Span::from_us(100 * slower),
            max_rto: Span::from_ms(8),
            max_stalls: 64,
            data_priority: 0,
        }
    }

    /// EQDS on a network with this round trip: its authors' window of 207 KB is 1.4 bandwidth-delay products of their fabric, 12 us at
    /// 100 Gbps, and has room for eight packets at least (our choice).
    #[must_use]
    pub fn eqds_for(link: Rate, base_rtt: Span) -> Self {
        let eqds = Self { base_rtt, ..Self::eqds(link) };
        let bdp = link.bytes_in(base_rtt);
        let least = MIN_WINDOW_PACKETS * u64::from(eqds.packet_bytes());
        Self { max_window: (bdp + bdp * 2 / 5).max(least), ..eqds }
    }

    /// UET with both NSCC and RCCC, with the parameters of the consortium's simulator (`docs/protocols/uet.md#uet-parameters`), for a
    /// network with this round trip.
    #[must_use]
    pub fn uet(link: Rate, base_rtt: Span) -> Self {
        Self {
            credit: Credit::Rccc,
            nscc: true,
            balancing: Balancing::Mixed,
            shrink_on_trim: false,
            credit_packets: 4,
            ..Self::eqds(link)
        }
        .for_round_trip(base_rtt)
    }

    /// UET with NSCC only.
    #[must_use]
    pub fn nscc(link: Rate, base_rtt: Span) -> Self {
        Self { credit: Credit::None, shrink_on_trim: true, ..Self::uet(link, base_rtt) }
    }

    /// UET with RCCC only.
    #[must_use]
    pub fn rccc(link: Rate, base_rtt: Span) -> Self {
        Self { nscc: false, ..Self::uet(link, base_rtt) }
    }

    /// Sets what UET derives from the network's round trip. In networks with short ones, windows have room for eight packets at least,
    /// and acknowledgements come after an eighth of a bandwidth-delay product (our choice: 16 KB are more than such a window).
    #[must_use]
    pub fn for_round_trip(mut self, base_rtt: Span) -> Self {
        let bdp = self.link.bytes_in(base_rtt);
        self.base_rtt = base_rtt;
        self.max_window = (bdp + bdp / 2).max(MIN_WINDOW_PACKETS * u64::from(self.packet_bytes()));
        self.ack_bytes = u32::try_from(bdp / 8).unwrap_or(u32::MAX).clamp(1, 16_384);
        self.target_delay = base_rtt * 3 / 4;
        // Six times the longest queue, which is a bandwidth-delay product.
        self.min_rto = Span::from_us(15).saturating_add(base_rtt * 6);
        self.max_rto = self.max_rto.max(self.min_rto * 8);
        self
    }

    /// Adapts the parameters to processes on hosts, which wait for a CPU for longer than a round trip, behind switches that drop
    /// what they have no room for. (Our choice: the sources have NICs in mind.)
    #[must_use]
    pub fn for_hosts(mut self) -> Self {
        if self.nscc {
            let base_rtt = self.base_rtt.max(Span::from_ms(1));
            self = self.for_round_trip(base_rtt);
        }
        self.min_rto = self.min_rto.max(Span::from_ms(5));
        self.max_rto = self.max_rto.max(Span::from_ms(20));
        self
    }

    /// Bytes of a full packet, from the IP header on.
    #[inline]
    pub(super) const fn packet_bytes(&self) -> u32 {
        self.common.max_payload.saturating_add(self.common.header_bytes)
    }

    #[inline]
    pub(super) const fn rto_bounds(&self) -> RtoBounds {
        RtoBounds { min: self.min_rto, max: self.max_rto, patience: self.common.patience }
    }

    /// The shortest time between two RTS of a message (`docs/protocols/uet.md#eqds-sender`, `docs/protocols/uet.md#uet-sender`).
    #[inline]
    pub(super) const fn rts_interval(&self) -> Span {
        if matches!(self.credit, Credit::Eqds) { self.min_rto } else { self.base_rtt }
    }

    /// The largest window, in quanta.
    #[inline]
    pub(super) fn window_quanta(&self) -> u32 {
        u32::try_from(self.max_window.div_ceil(u64::from(QUANTUM))).unwrap_or(u32::MAX)
    }

    /// The most credit for retransmissions that a message can wait for, in quanta: that of two windows of full packets, and of one more
    /// in each, since a sender sends as long as it has any credit. An honest sender has sent a window before the first answer, and may
    /// have been given what it asked for since, a window at most. Whoever forges trimmed packets can ask for more, without a limit
    /// (our choice).
    pub(super) fn most_retransmissions(&self) -> u32 {
        let full = u64::from(self.packet_bytes());
        let packets = 2 * (self.max_window.div_ceil(full).min(u64::from(u32::MAX)) + 1);
        let quanta = packets.saturating_mul(full.div_ceil(u64::from(QUANTUM)));
        u32::try_from(quanta).unwrap_or(u32::MAX)
    }

    /// The credit of one PULL, in quanta. It is rounded down to the payload, as in UET's simulator: the pace follows the quanta,
    /// so that the rate does not depend on it.
    #[inline]
    pub(super) fn credit_per_pull(&self) -> u32 {
        (self.common.max_payload.saturating_mul(u32::from(self.credit_packets)) / QUANTUM).max(1)
    }

    /// The time on the link of the data that this much credit triggers, at the share of the link that credit may fill
    /// (`docs/protocols/uet.md#eqds-pulls`).
    #[inline]
    pub(super) fn credit_span(&self, quanta: u32) -> Span {
        let on_link = u64::from(self.common.framing().packet_wire_bytes(self.common.max_payload));
        let bytes = u64::from(quanta) * u64::from(QUANTUM) * on_link;
        let span = self.link.span_of(bytes.div_ceil(u64::from(self.packet_bytes())));
        Span::from_ticks(span.ticks() * 100 / u64::from(self.pull_percent.clamp(1, 100)))
    }
}

impl Parameters for Config {
    type Scheme = super::Uet;

    const NAMES: &'static [&'static str] = &["uet"];
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
        self.max_rto
    }

    /// Acknowledgements (`docs/protocols/uet.md#eqds-receiver`): of the first packet, of the last, and of one after each `ack_bytes`; also of
    /// each beyond the first window that uses up its window or credit. EQDS gives credit for one packet, so that each does; otherwise
    /// windows have room for a message alone, so that those do that meet others. A pull for each packet (EQDS), or for each two,
    /// because one gives no more than is asked for (RCCC). A message of one packet needs no pull.
    fn control_packets(&self, _: f64, packets: f64, at: &Surroundings) -> [f64; 2] {
        let every = f64::from(self.ack_bytes.div_ceil(self.packet_bytes()));
        let window = (self.max_window / u64::from(self.packet_bytes())) as f64;
        let limits = if self.credit == Credit::Eqds { 1.0 } else { at.busy };
        let limited = limits * (packets - window).max(0.0);
        let acks =
            if packets > 1.0 { 2.0 + ((packets - limited - 2.0) / every).max(0.0) } else { 1.0 };
        let pulls = match self.credit {
            Credit::None => 0.0,
            Credit::Eqds => 1.0,
            Credit::Rccc => 0.5,
        };
        let pulls = if packets > 1.0 { pulls * packets } else { 0.0 };
        [0.0, acks + limited + pulls]
    }

    fn validate(&self) -> Result<(), InvalidConfig> {
        let own = [
            ("link", self.link.0 > 0),
            ("base_rtt", self.base_rtt > Span::ZERO),
            ("target_delay", self.target_delay > Span::ZERO),
            ("credit_packets", self.credit_packets > 0),
            ("ack_bytes", self.ack_bytes > 0),
            ("min_rto", self.min_rto > Span::ZERO),
            ("max_stalls", self.max_stalls > 0),
        ];
        self.common.check(&own, &[self.data_priority])?;
        let entropies = self.entropies;
        let are_usable =
            entropies <= MAX_ENTROPIES && (entropies == 0 || entropies.is_power_of_two());
        rule(are_usable, "entropies", || {
            format!(
                "the number of entropy values must be 0 or a power of two up to {MAX_ENTROPIES}, \
                 not {entropies}"
            )
        })?;
        rule(self.max_window >= u64::from(self.packet_bytes()), "max_window", || {
            "max_window has no room for a full packet".to_owned()
        })?;
        rule((1..=100).contains(&self.pull_percent), "pull_percent", || {
            format!("pull_percent must be 1 to 100, not {}", self.pull_percent)
        })?;
        rule(self.credit != Credit::None || self.nscc, "nscc", || {
            "without credit a sender needs the window of nscc".to_owned()
        })?;
        in_order(("min_rto", self.min_rto), ("max_rto", self.max_rto))?;
        self.common.check_patience(self.max_rto, "max_rto")
    }

    #[cfg(any(test, feature = "testkit"))]
    fn examples(link: Rate) -> Vec<Self> {
        let rtt = Span::from_us(50);
        let all = [Self::uet(link, rtt), Self::eqds(link), Self::nscc(link, rtt)];
        all.map(Self::for_hosts).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile as _;

    const LINK: Rate = Rate::from_gbps(100);
    const RTT: Span = Span::from_us(12);

    #[test]
    fn the_profiles_make_sense() {
        for config in [
            Config::eqds(LINK),
            Config::uet(LINK, RTT),
            Config::nscc(LINK, RTT),
            Config::rccc(LINK, RTT),
            Config::uet(Rate::from_gbps(1), Span::from_us(1)),
        ] {
            assert_eq!(config.check(), Ok(()));
            assert_eq!(config.for_hosts().check(), Ok(()));
        }
        // 100 Gbps times 12 us are 150 KB.
        let uet = Config::uet(LINK, RTT);
        assert_eq!((uet.max_window, uet.target_delay), (225_000, Span::from_us(9)));
        assert_eq!(uet.min_rto, Span::from_us(87));
    }

    #[test]
    fn credit_is_paced_at_99_percent_of_the_link_whatever_its_unit_is() {
        for config in [Config::eqds(LINK), Config::uet(LINK, RTT)] {
            let quanta = config.credit_per_pull();
            let bytes = u64::from(quanta * QUANTUM);
            // 1538 bytes on the link for 1500 of a packet.
            let ideal = LINK.span_of(bytes * 1538 / 1500).as_ps() as f64 / 0.99;
            let paced = config.credit_span(quanta).as_ps() as f64;
            assert!((paced / ideal - 1.0).abs() < 1e-3, "{paced} {ideal}");
        }
        assert_eq!(Config::eqds(LINK).credit_per_pull(), 5);
        assert_eq!(Config::uet(LINK, RTT).credit_per_pull(), 22);
    }

    #[test]
    fn invalid_parameters_are_refused() {
        let wrong = |change: fn(&mut Config)| {
            let mut config = Config::uet(LINK, RTT);
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(wrong(|c| c.target_delay = Span::ZERO), "target_delay must be above zero");
        assert_eq!(wrong(|c| c.common.control_priority = 8), "priority 8 is above 7");
        for entropies in [3, 8192] {
            let error = Config { entropies, ..Config::eqds(LINK) }.check().unwrap_err();
            let usable = "0 or a power of two up to 4096";
            let expected =
                format!("the number of entropy values must be {usable}, not {entropies}");
            assert_eq!(error.to_string(), expected);
        }
        assert_eq!(wrong(|c| c.max_window = 1499), "max_window has no room for a full packet");
        assert_eq!(wrong(|c| c.pull_percent = 0), "pull_percent must be 1 to 100, not 0");
        assert_eq!(wrong(|c| c.max_rto = Span::from_us(1)), "min_rto is above max_rto");
        assert_eq!(wrong(|c| c.common.patience = c.max_rto), "patience must be above max_rto");
        assert_eq!(
            wrong(|c| (c.credit, c.nscc) = (Credit::None, false)),
            "without credit a sender needs the window of nscc"
        );
        assert_eq!(
            wrong(|c| c.common.finished_for = c.common.patience),
            "finished_for must be above 160 ms, the time for which a sender tries"
        );
    }
}
