//! Leverage Homa: the extensions of Lu and Zhang, *Leverage Homa: Enhancing Homa Linux for Efficient RPC
//! Transportation*, netdev 0x17 (2023; "the slides"; docs/protocols/leverage-homa.md#leverage-homa). With all of them disabled,
//! Homa is unchanged.
//!
//! - `rtt`: round-trip measurement per peer, by time stamps.
//! - `windows`: congestion detection, windows and the unscheduled ratio, which depend on round trips.
//! - `pacer`: the pacer that the slides propose as future work.

use rackweave_core::{Rate, Span, frame};
use rackweave_wire::homa::size;

use super::config::{Config, HeaderBytes, InvalidConfig};

/// How congestion is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detection {
    /// By the last round trip: it exceeds [`Leverage::congestion_factor`] times the minimum (slide "RTT
    /// Informed Congestion Detection").
    Recent,
    /// By the average: it exceeds the middle, which is [`Leverage::scheduled_factor`] times the minimum, by
    /// more than [`Leverage::average_deviation`] of the middle (slide "Future Improvements": the deviation of
    /// `rtt_avg` from `RTT_mid`; the slides give no threshold, so the value is our choice).
    Average,
}

/// The extensions that are enabled, and their parameters. See [`Leverage::OFF`] and [`Leverage::talk`].
#[derive(Clone, Debug, PartialEq)]
pub struct Leverage {
    /// Whether DATA and GRANT carry time stamps, by which each host measures the round trip to each peer. All
    /// other extensions but the ratio require it.
    pub measure_rtt: bool,
    /// Time for which a minimum round trip is used, so that a path that has become longer is noticed. (Our
    /// choice: on the slides the minimum never grows.)
    pub min_rtt_window: Span,
    /// Whether the receiver grants each peer [`Leverage::scheduled_factor`] times the minimum round trip at
    /// link rate, and all peers [`Config::overcommit`] times that (slide "Receiver - Scheduled Window").
    pub scheduled_window: bool,
    /// `peer_rtt_grant` in units of `peer_rtt_min`; 3 on the slides.
    pub scheduled_factor: u32,
    /// Whether the sender's unscheduled bytes follow the minimum round trip and congestion, per peer (slide
    /// "Sender - Dynamic adjusting unscheduled window").
    pub unscheduled_window: bool,
    /// Rate of the peers' links, as far as it limits the unscheduled window; `None` if equal to this host's.
    pub peer_link: Option<Rate>,
    /// How congestion is detected; `None` if it is not.
    pub congestion: Option<Detection>,
    /// `peer_rtt_high` in units of `peer_rtt_min`; 8 on the slides.
    pub congestion_factor: u32,
    /// Weight of each round trip in the average, as a shift: 3 means 1/8. Our choice, as in TCP (RFC 6298).
    pub average_shift: u32,
    /// With [`Detection::Average`]: how far above the middle the average indicates congestion, in 1/1000 of the
    /// middle. Our choice: 500 is four and a half times the minimum, well below the factor of eight of the
    /// other rule, because an average lags.
    pub average_deviation: u32,
    /// Whether unscheduled windows are halved when few of the bytes are unscheduled anyway and the sender has
    /// more to send than its link carries (slide "Unscheduled Ratio").
    pub unscheduled_ratio: bool,
    /// Threshold of that share, in 1/1000; 400 on the slides.
    pub ratio_threshold: u32,
    /// Period over which bytes are counted, after which the rule is applied once. Our choice: 1 ms is dozens of
    /// round trips, so that single messages do not determine the share.
    pub ratio_period: Span,
    /// Whether round trips exclude the time that GRANTs wait in the peer's host, and none is measured while a
    /// host's software is late (slide "Future Improvements": more accurate measurement).
    pub host_delay: bool,
    /// Whether the pacer uses the round trip (slide "Future Improvements": optimize pacer).
    pub rtt_pacer: bool,
    /// Share of the link, in 1/1000, that may be used without grants while round trips are short. Our choice:
    /// 50 is the share that Homa gives the oldest message.
    pub trickle_share: u32,
    /// Idle time after each packet to a congested peer, in packet times. Our choice: 1 halves the rate.
    pub back_off_packets: u32,
}

impl Leverage {
    /// All extensions disabled, with the slides' parameters for when they are enabled.
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

    /// The extensions that the talk reports as implemented; those of its future work are disabled.
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
    /// Leverage Homa: the kernel module's defaults at the time of the talk, with the extensions of the talk.
    #[must_use]
    pub fn leverage(link: Rate) -> Self {
        Self::linux(link).with_leverage(Leverage::talk())
    }

    /// The same parameters with these extensions. Time stamps reduce the payload of the packets that carry
    /// them.
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

    /// Bytes of a full packet on a link.
    pub(super) const fn full_wire_bytes(&self) -> u32 {
        frame::wire_bytes(self.header_bytes.data.saturating_add(self.max_payload))
    }
}
