//! pHost's parameters.

use rackweave_core::{Rate, Span, frame};
use rackweave_wire::phost::size;

use crate::common::Parameters;
use crate::exchange::{self, InvalidConfig, in_order};
use crate::profile::Surroundings;

/// The order in which messages get tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenOrder {
    /// The message with the fewest missing packets; the oldest of several.
    Srpt,
    /// Each message in turn, as in round-robin scheduling.
    RoundRobin,
}

/// pHost's parameters. See [`Config::paper`] and [`Config::polo_slides`] for the published sets.
///
/// The protocol measures time in transmissions of a full packet. The profiles convert that into time spans for
/// their link.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What it has in common with other transports.
    pub common: exchange::Config,
    /// Interval between two tokens of a receiver: the time of a full packet on its link.
    pub token_spacing: Span,
    /// Number of packets of a message that are sent without tokens.
    pub free_tokens: u16,
    /// Whether only messages of at most `free_tokens` packets have free packets (`docs/protocols/phost.md#phost-tokens`,
    /// `init_capa_size`); the first packet of a longer one then waits for a token.
    pub free_for_short_only: bool,
    /// Lifetime of a token. Free tokens expire this long after the time in which all of them can be used.
    pub token_expiry: Span,
    /// Maximum number of unused tokens of a message, free ones included. At more, the message is paused,
    /// because its sender is busy with other receivers.
    pub token_window: u32,
    /// Time after which a paused message gets a token nevertheless, to probe its sender. Prolonged like `resend_after`.
    pub window_timeout: Span,
    /// Time after the last packet got its token until tokens for missing packets are sent. It is prolonged by twice the mean time by which
    /// data arrives later than this (our choice: the paper's constants take packets in a long queue for lost).
    pub resend_after: Span,
    /// When a message arrives, its receiver pauses tokens for the time of the message's free packets, minus
    /// this. With the value of a round trip, the first token arrives just after the sender has sent its last
    /// free packet. (Our choice; the paper has zero.)
    pub token_lead: Span,
    /// The order in which messages get tokens.
    pub order: TokenOrder,
    /// Priority of data of messages that need no tokens.
    pub short_priority: u8,
    /// Priority of data of longer messages.
    pub long_priority: u8,

    /// Minimum interval after which a sender that receives nothing repeats its request to send; the interval
    /// doubles each time. (Our choice: the paper does not repair a lost request.)
    pub min_rts_interval: Span,
    /// Maximum of that interval.
    pub max_rts_interval: Span,
}

impl Config {
    /// The parameters of the authors' simulator, YAPS (`docs/protocols/phost.md#phost-tokens`), for a link of this
    /// rate.
    #[must_use]
    pub const fn paper(link: Rate) -> Self {
        let packet = link.span_of(frame::wire_bytes(frame::MTU) as u64);
        Self {
            common: exchange::Config::USUAL,
            token_spacing: packet,
            free_tokens: 8,
            free_for_short_only: false,
            token_expiry: Span::from_ticks(packet.ticks() + packet.ticks() / 2),
            token_window: 8,
            window_timeout: packet.saturating_mul(25),
            resend_after: packet.saturating_mul(9),
            token_lead: Span::ZERO,
            order: TokenOrder::Srpt,
            short_priority: 6,
            long_priority: 5,
            min_rts_interval: Span::from_ms(1),
            max_rts_interval: Span::from_ms(8),
        }
    }

    /// pHost as simulated for Homa's SIGCOMM'18 paper with YAPS (`docs/protocols/phost.md#phost-tokens`): 7 free tokens, which only
    /// messages of at most 7 packets have; the whole pause after a request to send; one level for all data.
    #[must_use]
    pub const fn yaps(link: Rate) -> Self {
        let paper = Self::paper(link);
        Self {
            free_tokens: 7,
            free_for_short_only: true,
            short_priority: paper.long_priority,
            ..paper
        }
    }

    /// The parameters of pHost in the comparison of Polo's slides (`docs/protocols/polo.md#polo-comparison`): 12 free
    /// tokens, round robin.
    #[must_use]
    pub const fn polo_slides(link: Rate) -> Self {
        let paper = Self::paper(link);
        Self { order: TokenOrder::RoundRobin, ..paper.with_free_tokens(12) }
    }

    /// Replaces the number of free tokens, and sets the token window to the same number.
    #[must_use]
    pub const fn with_free_tokens(mut self, free_tokens: u16) -> Self {
        self.free_tokens = free_tokens;
        self.token_window = free_tokens as u32;
        self
    }

    /// Adapts the parameters to a round trip (from a token to its data) of this length: the free tokens and the
    /// window cover it, tokens follow the free packets without a gap, a packet is not retransmitted before
    /// it can have arrived, and a sender that uses no tokens is tried again after three round trips and four packets, as in dcPIM's
    /// scripts for pHost (`docs/protocols/phost.md#phost-tokens`). (Our choice: the paper's numbers are for a fabric in which a round trip is shorter
    /// than 8 packets.)
    #[must_use]
    pub const fn for_round_trip(mut self, rtt: Span) -> Self {
        let packets = rtt.ticks().div_ceil(self.token_spacing.ticks()) + 1;
        if packets > self.free_tokens as u64 {
            let packets = if packets > 10_000 { 10_000 } else { packets as u16 };
            self = self.with_free_tokens(packets);
        }
        self.token_lead = rtt;
        let window_timeout = self.token_spacing.saturating_mul(3 * packets + 4);
        if window_timeout.ticks() > self.window_timeout.ticks() {
            self.window_timeout = window_timeout;
        }
        let resend_after = rtt.ticks().saturating_add(self.token_spacing.ticks());
        if resend_after > self.resend_after.ticks() {
            self.resend_after = Span::from_ticks(resend_after);
        }
        self
    }

    /// Adapts the parameters to processes on hosts, which wait for a CPU longer than a packet takes on its link. A
    /// token that expires after 1.5 packet times has expired before its sender runs, and each missing packet would get
    /// another one every nine packet times. (Our choice: the paper's hosts answer at once.)
    #[must_use]
    pub const fn for_hosts(mut self) -> Self {
        let turn = Span::from_ms(1);
        if self.token_expiry.ticks() < turn.ticks() {
            self.token_expiry = turn;
        }
        if self.window_timeout.ticks() < turn.ticks() {
            self.window_timeout = turn;
        }
        if self.resend_after.ticks() < turn.ticks() {
            self.resend_after = turn;
        }
        self
    }

    /// Time to wait for an answer after `tries` requests to send.
    pub(super) fn rts_interval(&self, tries: u32) -> Span {
        let interval = self.min_rts_interval.ticks().saturating_mul(1 << tries.min(20));
        Span::from_ticks(interval.min(self.max_rts_interval.ticks()))
    }

    /// Number of packets of a message of this many packets that need no token.
    pub(super) const fn free_packets(&self, packets: u32) -> u32 {
        let most = self.free_tokens as u32;
        if packets <= most {
            packets
        } else if self.free_for_short_only {
            0
        } else {
            most
        }
    }

    /// Time that `packets` full packets take on the link.
    pub(super) const fn span_of(&self, packets: u32) -> Span {
        self.token_spacing.saturating_mul(packets as u64)
    }
}

impl Parameters for Config {
    type Scheme = super::PHost;

    const NAMES: &'static [&'static str] = &["phost"];
    const DATA_BYTES: u32 = size::DATA;
    const CONTROL_BYTES: u32 = size::RTS;

    #[inline]
    fn common(&self) -> &exchange::Config {
        &self.common
    }

    fn common_mut(&mut self) -> &mut exchange::Config {
        &mut self.common
    }

    fn ask_interval(&self) -> Span {
        self.max_rts_interval
    }

    /// RTS; a token for each packet beyond the free ones, and ACK (docs/protocols/phost.md).
    fn control_packets(&self, _: f64, packets: f64, _: &Surroundings) -> [f64; 2] {
        [1.0, packets - f64::from(self.free_packets(packets as u32)) + 1.0]
    }

    fn validate(&self) -> Result<(), InvalidConfig> {
        let own = [
            ("token_spacing", self.token_spacing > Span::ZERO),
            ("token_expiry", self.token_expiry > Span::ZERO),
            ("token_window", self.token_window > 0),
            ("window_timeout", self.window_timeout > Span::ZERO),
            ("resend_after", self.resend_after > Span::ZERO),
            ("min_rts_interval", self.min_rts_interval > Span::ZERO),
        ];
        self.common.check(&own, &[self.short_priority, self.long_priority])?;
        in_order(
            ("min_rts_interval", self.min_rts_interval),
            ("max_rts_interval", self.max_rts_interval),
        )?;
        self.common.check_patience(self.max_rts_interval, "max_rts_interval")
    }

    #[cfg(any(test, feature = "testkit"))]
    fn examples(link: Rate) -> Vec<Self> {
        vec![Self::paper(link).for_hosts()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile as _;

    const LINK: Rate = Rate::from_gbps(10);

    #[test]
    fn the_profiles_make_sense() {
        let paper = Config::paper(LINK);
        assert_eq!(paper.check(), Ok(()));
        assert_eq!(Config::polo_slides(LINK).check(), Ok(()));
        let yaps = Config::yaps(LINK);
        assert_eq!(yaps.check(), Ok(()));
        assert_eq!((yaps.free_tokens, yaps.token_window, yaps.token_lead), (7, 8, Span::ZERO));
        assert_eq!(paper.token_spacing, Span::from_ps(1_230_400));
        assert_eq!(paper.resend_after, paper.token_spacing * 9);
        let far = paper.clone().for_round_trip(Span::from_us(20));
        assert_eq!((far.free_tokens, far.token_window), (18, 18));
        assert_eq!(far.resend_after, Span::from_us(20) + far.token_spacing);
        let hosts = far.clone().for_hosts();
        let turn = Span::from_ms(1);
        assert_eq!(hosts.check(), Ok(()));
        assert_eq!(
            (hosts.token_expiry, hosts.window_timeout, hosts.resend_after),
            (turn, turn, turn)
        );
        let near = paper.clone().for_round_trip(Span::from_us(5));
        assert_eq!(near, Config { token_lead: Span::from_us(5), ..paper });
    }

    #[test]
    fn invalid_parameters_are_refused() {
        let wrong = |change: fn(&mut Config)| {
            let mut config = Config::paper(LINK);
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(wrong(|c| c.token_window = 0), "token_window must be above zero");
        assert_eq!(
            wrong(|c| c.common.max_payload = 65_000),
            "a packet of 65040 bytes is longer than 65000"
        );
        assert_eq!(wrong(|c| c.long_priority = 8), "priority 8 is above 7");
        assert_eq!(
            wrong(|c| c.max_rts_interval = Span::from_us(4)),
            "min_rts_interval is above max_rts_interval"
        );
        assert_eq!(
            wrong(|c| c.common.patience = c.max_rts_interval),
            "patience must be above max_rts_interval"
        );
        assert_eq!(
            wrong(|c| c.common.finished_for = Span::from_ms(160)),
            "finished_for must be above 160 ms, the time for which a sender tries"
        );
    }
}
