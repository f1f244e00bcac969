//! Leverage Homa: the switches of Lu and Zhang, *Leverage Homa: Enhancing Homa Linux for Efficient RPC
//! Transportation*, netdev 0x17 (2023; "the slides"; docs/sources.md#leverage-homa). With all of them off, Homa is unchanged.
//!
//! - `rtt`: round trips per peer, from time stamps.
//! - `windows`: congestion detection, windows and the unscheduled ratio, which depend on them.
//! - `pacer`: the slides' future pacer.

use rackweave_core::{Rate, Span, frame};
use rackweave_wire::homa::size;

use super::config::{Config, HeaderBytes, InvalidConfig};

/// How congestion is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detection {
    /// The last round trip above [`Leverage::congestion_factor`] times the smallest (slide "RTT
    /// Informed Congestion Detection").
    Recent,
    /// The average above the middle, which is [`Leverage::scheduled_factor`] times the smallest, by more
    /// than [`Leverage::average_deviation`] of it (slide "Future Improvements": the deviation of
    /// `rtt_avg` from `RTT_mid`; the slides give no threshold, so the value is ours).
    Average,
}

/// The switches, and their parameters. See [`Leverage::OFF`] and [`Leverage::talk`].
#[derive(Clone, Debug, PartialEq)]
pub struct Leverage {
    /// DATA and GRANT carry time stamps, and each host measures the round trip to each peer. All
    /// others but the ratio need it.
    pub measure_rtt: bool,
    /// How long a minimum round trip is used, so that a path that became longer is noticed (ours: on the slides the
    /// minimum never grows).
    pub min_rtt_window: Span,
    /// The receiver grants each peer [`Leverage::scheduled_factor`] times its smallest round trip at
    /// link rate, and [`Config::overcommit`] times that to all (slide "Receiver - Scheduled Window").
    pub scheduled_window: bool,
    /// `peer_rtt_grant` in units of `peer_rtt_min`: 3.
    pub scheduled_factor: u32,
    /// The sender's unscheduled bytes follow the smallest round trip and congestion, per peer
    /// (slide "Sender - Dynamic adjusting unscheduled window").
    pub unscheduled_window: bool,
    /// The links of peers, as far as they limit the unscheduled window: `None`: as this host's.
    pub peer_link: Option<Rate>,
    /// Whether congestion is detected, and how.
    pub congestion: Option<Detection>,
    /// `peer_rtt_high` in units of `peer_rtt_min`: 8.
    pub congestion_factor: u32,
    /// The weight of each round trip in the average, as a shift: 3 is 1/8. Ours, as in TCP (RFC 6298).
    pub average_shift: u32,
    /// With [`Detection::Average`]: how far above the middle the average means congestion, in 1/1000 of the
    /// middle. Ours: 500 is
    /// four and a half times the minimum, well below the other rule's eight, because an average lags.
    pub average_deviation: u32,
    /// When few of the bytes are unscheduled anyway and the sender has more to send than its link
    /// takes, unscheduled windows are halved (slide "Unscheduled Ratio").
    pub unscheduled_ratio: bool,
    /// The threshold of that share, in 1/1000: 400.
    pub ratio_threshold: u32,
    /// The period over which bytes are counted, after which the rule is applied once. Ours: 1 ms is dozens of round
    /// trips, so that the share is not that of single messages.
    pub ratio_period: Span,
    /// Round trips do not contain the time that GRANTs wait in the peer's host, and none is measured
    /// while a host's software is late (slide "Future Improvements": more accurate measurement).
    pub host_delay: bool,
    /// The pacer uses the round trip (slide "Future Improvements": optimize pacer).
    pub rtt_pacer: bool,
    /// The share of the link, in 1/1000, that is used without grants while round trips are short. Ours: 50 is the
    /// share that Homa gives the oldest message.
    pub trickle_share: u32,
    /// The room, in packets, that is left behind each packet to a peer with congestion. Ours: 1 halves the rate.
    pub back_off_packets: u32,
}

impl Leverage {
    /// All switches off, with the slides' parameters for when they are switched on.
    pub const OFF: Self = Self {
        measure_rtt: false,
        min_rtt_window: Span::from_secs(10),
        scheduled_window: false,
        scheduled_factor: 3,
        unscheduled_window: false,
        peer_link: None,
        congestion: None,
        congestion_factor: 8,
        average_shift: 3,
        average_deviation: 500,
        unscheduled_ratio: false,
        ratio_threshold: 400,
        ratio_period: Span::from_ms(1),
        host_delay: false,
        rtt_pacer: false,
        trickle_share: 50,
        back_off_packets: 1,
    };

    /// Everything that the talk reports as built; its future work is off.
    #[must_use]
    pub const fn talk() -> Self {
        Self {
            measure_rtt: true,
            scheduled_window: true,
            unscheduled_window: true,
            congestion: Some(Detection::Recent),
            unscheduled_ratio: true,
            ..Self::OFF
        }
    }

    pub(super) fn check(&self) -> Result<(), InvalidConfig> {
        let needs = [
            ("scheduled_window", self.scheduled_window),
            ("unscheduled_window", self.unscheduled_window),
            ("congestion", self.congestion.is_some()),
            ("host_delay", self.host_delay),
            ("rtt_pacer", self.rtt_pacer),
        ];
        if !self.measure_rtt
            && let Some((name, _)) = needs.into_iter().find(|(_, on)| *on)
        {
            return Err(InvalidConfig::NeedsRtt(name));
        }
        let at_least_one = [
            ("min_rtt_window", self.min_rtt_window > Span::ZERO),
            ("scheduled_factor", self.scheduled_factor > 0),
            ("peer_link", self.peer_link.is_none_or(|rate| rate.0 > 0)),
            ("congestion_factor", self.congestion_factor > 0),
            ("ratio_period", self.ratio_period > Span::ZERO),
            ("trickle_share", self.trickle_share > 0),
        ];
        if let Some((name, _)) = at_least_one.into_iter().find(|(_, right)| !right) {
            return Err(InvalidConfig::Zero(name));
        }
        let shares =
            [("ratio_threshold", self.ratio_threshold), ("trickle_share", self.trickle_share)];
        if let Some((name, _)) = shares.into_iter().find(|(_, share)| *share > 1000) {
            return Err(InvalidConfig::Share(name));
        }
        if self.average_shift > 16 {
            return Err(InvalidConfig::AverageShift(self.average_shift));
        }
        Ok(())
    }
}

impl Config {
    /// Leverage Homa: the kernel module's defaults at the time of the talk, and all that the talk
    /// added.
    #[must_use]
    pub fn leverage(link: Rate) -> Self {
        Self::linux(link).with_leverage(Leverage::talk())
    }

    /// The same with these switches. Time stamps take their room in the packets that carry them.
    #[must_use]
    pub fn with_leverage(mut self, leverage: Leverage) -> Self {
        const DATA: u32 = size::DATA_LEVERAGE - size::DATA_TALK;
        const GRANT: u32 = size::GRANT_LEVERAGE - size::GRANT_TALK;
        let HeaderBytes { data, grant, .. } = &mut self.header_bytes;
        match (self.leverage.measure_rtt, leverage.measure_rtt) {
            (false, true) => {
                (*data, *grant) = (data.saturating_add(DATA), grant.saturating_add(GRANT));
                self.max_payload = self.max_payload.saturating_sub(DATA).max(1);
            }
            (true, false) => {
                (*data, *grant) = (data.saturating_sub(DATA), grant.saturating_sub(GRANT));
                self.max_payload = self.max_payload.saturating_add(DATA);
            }
            _ => {}
        }
        self.leverage = leverage;
        self
    }

    /// Bytes that a full packet takes on a link.
    pub(super) const fn full_wire_bytes(&self) -> u32 {
        frame::wire_bytes(self.header_bytes.data.saturating_add(self.max_payload))
    }
}
