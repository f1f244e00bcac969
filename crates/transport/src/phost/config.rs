//! pHost's parameters.

use rackweave_core::{Rate, Span, frame};
use rackweave_wire::phost::size;
use thiserror::Error;

use crate::common::shared_parameters;

/// Which message the next token goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenOrder {
    /// The one with the fewest packets missing; among equals the oldest.
    Srpt,
    /// Each in turn.
    RoundRobin,
}

/// pHost's parameters: plain numbers. See [`Config::paper`] and [`Config::polo_slides`].
///
/// The protocol counts time in transmissions of a full packet; the profiles turn that into spans
/// for their link.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Time between two tokens of a receiver: of one full packet on its link.
    pub token_spacing: Span,
    /// Payload bytes of a full packet. Every packet starts at a multiple of it.
    pub max_payload: u32,
    /// Bytes from the IP header to the payload of a data packet.
    pub header_bytes: u32,
    /// Bytes of every other packet, from the IP header on.
    pub control_bytes: u32,
    /// Whether switches pick a path for each packet.
    pub spray: bool,
    /// Packets of a message that need no token.
    pub free_tokens: u16,
    /// For how long a token may be used. Free ones are valid until as many packets could be sent,
    /// and this much longer.
    pub token_expiry: Span,
    /// A message with more unused tokens than this gets no further one: its sender is busy
    /// elsewhere. Free tokens count.
    pub token_window: u32,
    /// After so long it gets one nevertheless, and so on.
    pub window_timeout: Span,
    /// So long after its last packet had its token, a message gets tokens for what is missing.
    pub resend_after: Span,
    /// A receiver pauses its tokens for the time that the free packets of a new message take, less
    /// this (ours; the paper: zero): with a round trip, its first token comes when the sender has just
    /// sent the last free packet.
    pub token_lead: Span,
    /// Which message the next token goes to.
    pub order: TokenOrder,
    /// The queue of all but data in switches.
    pub control_priority: u8,
    /// The queue of messages that need no token.
    pub short_priority: u8,
    /// The queue of longer ones.
    pub long_priority: u8,

    /// A sender that receives nothing for this long sends its request again (ours), the interval
    /// doubling each time ...
    pub min_rts_interval: Span,
    /// ... up to this.
    pub max_rts_interval: Span,
    /// A peer that sends nothing for this long, while it should answer, counts as silent.
    pub patience: Span,

    /// The longest message, in bytes.
    pub max_message_bytes: u32,
    /// Exchanges (requests with their responses, one-way messages) that the host knows at one
    /// time: more are refused, or dropped if a peer begins them.
    pub max_exchanges: u32,
    /// Finished exchanges that are remembered. While that many are, no new one begins, because
    /// it could be an old one.
    pub max_finished: u32,
    /// For how long they are remembered at least: longer than `patience`, and than any packet is on its
    /// way besides.
    pub finished_for: Span,
    /// Control packets that wait for the link; more are lost.
    pub max_control: u32,
    /// Gaps between arrived packets that are remembered for a message. A packet that would make
    /// one more counts as lost.
    pub max_gaps: u16,
}

/// Why a configuration is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidConfig {
    /// A field must be above zero.
    #[error("{0} must be above zero")]
    Zero(&'static str),
    /// A packet must fit its 16-bit length.
    #[error("a packet of {0} bytes is longer than 65000")]
    TooLong(u32),
    /// A priority is above 7.
    #[error("priority {0} is above 7")]
    Priority(u8),
    /// The least is above the most.
    #[error("min_rts_interval is above max_rts_interval")]
    Interval,
    /// A peer would count as silent before it is asked again.
    #[error("patience must be above max_rts_interval")]
    Patience,
    /// A late copy of an old packet could begin the message a second time.
    #[error("finished_for must be above {0}, the time for which a sender tries")]
    FinishedFor(Span),
}

impl Config {
    /// The parameters of the authors' simulator, YAPS
    /// (`docs/sources.md#phost-tokens`), on this link.
    #[must_use]
    pub const fn paper(link: Rate) -> Self {
        let packet = link.span_of(frame::wire_bytes(frame::MTU) as u64);
        Self {
            token_spacing: packet,
            max_payload: 1460,
            header_bytes: 40,
            control_bytes: 40,
            spray: true,
            free_tokens: 8,
            token_expiry: Span(packet.0 + packet.0 / 2),
            token_window: 8,
            window_timeout: Span(packet.0 * 25),
            resend_after: Span(packet.0 * 9),
            token_lead: Span::ZERO,
            order: TokenOrder::Srpt,
            control_priority: 7,
            short_priority: 6,
            long_priority: 5,
            min_rts_interval: Span::from_ms(1),
            max_rts_interval: Span::from_ms(8),
            patience: Span::from_ms(160),
            max_message_bytes: u32::MAX,
            max_exchanges: 1 << 20,
            max_finished: 1 << 20,
            finished_for: Span::from_ms(200),
            max_control: 1 << 14,
            max_gaps: 1024,
        }
    }

    /// pHost as the slides of Polo compare with it (`docs/sources.md#polo-comparison`): 12 free tokens, round robin.
    #[must_use]
    pub const fn polo_slides(link: Rate) -> Self {
        let paper = Self::paper(link);
        Self { order: TokenOrder::RoundRobin, ..paper.with_free_tokens(12) }
    }

    /// With this number of free tokens, and a token window of the same size.
    #[must_use]
    pub const fn with_free_tokens(mut self, free_tokens: u16) -> Self {
        self.free_tokens = free_tokens;
        self.token_window = free_tokens as u32;
        self
    }

    /// For a round trip (of a token to its data) of this length (ours): the free tokens and the
    /// window cover it, tokens follow the free packets without a gap, and a packet is not sent
    /// again before it can have arrived. The paper's
    /// numbers are for a fabric in which a round trip is shorter than 8 packets.
    #[must_use]
    pub const fn for_round_trip(mut self, rtt: Span) -> Self {
        let packets = rtt.0.div_ceil(self.token_spacing.0) + 1;
        if packets > self.free_tokens as u64 {
            let packets = if packets > 10_000 { 10_000 } else { packets as u16 };
            self = self.with_free_tokens(packets);
        }
        self.token_lead = rtt;
        let resend_after = rtt.0.saturating_add(self.token_spacing.0);
        if resend_after > self.resend_after.0 {
            self.resend_after = Span(resend_after);
        }
        self
    }

    /// Whether the machine can work with these numbers.
    ///
    /// # Errors
    /// See [`InvalidConfig`].
    pub fn check(&self) -> Result<(), InvalidConfig> {
        self.check_shared(&[
            ("token_spacing", self.token_spacing > Span::ZERO),
            ("token_expiry", self.token_expiry > Span::ZERO),
            ("token_window", self.token_window > 0),
            ("window_timeout", self.window_timeout > Span::ZERO),
            ("resend_after", self.resend_after > Span::ZERO),
            ("min_rts_interval", self.min_rts_interval > Span::ZERO),
        ])?;
        if self.min_rts_interval > self.max_rts_interval {
            return Err(InvalidConfig::Interval);
        }
        if self.patience <= self.max_rts_interval {
            return Err(InvalidConfig::Patience);
        }
        Ok(())
    }

    /// The time to wait for an answer after `tries` requests.
    pub(super) fn rts_interval(&self, tries: u32) -> Span {
        let interval = self.min_rts_interval.0.saturating_mul(1 << tries.min(20));
        Span(interval.min(self.max_rts_interval.0))
    }

    /// The time that the first packets of a message take on the link.
    pub(super) const fn span_of(&self, packets: u32) -> Span {
        Span(self.token_spacing.0.saturating_mul(packets as u64))
    }
}

shared_parameters!(
    Config,
    name: "phost",
    ask_interval: max_rts_interval,
    free_packets: [free_tokens],
    packets_back: 1.0,
    priorities: [control_priority, short_priority, long_priority],
    header_bytes: size::DATA,
    control_bytes: size::RTS,
);

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Rate = Rate::from_gbps(10);

    #[test]
    fn the_profiles_make_sense() {
        let paper = Config::paper(LINK);
        assert_eq!(paper.check(), Ok(()));
        assert_eq!(Config::polo_slides(LINK).check(), Ok(()));
        assert_eq!(paper.token_spacing, Span::from_ns(1230) + Span(400));
        assert_eq!(paper.resend_after, paper.token_spacing * 9);
        let far = paper.clone().for_round_trip(Span::from_us(20));
        assert_eq!((far.free_tokens, far.token_window), (18, 18));
        assert_eq!(far.resend_after, Span::from_us(20) + far.token_spacing);
        let near = paper.clone().for_round_trip(Span::from_us(5));
        assert_eq!(near, Config { token_lead: Span::from_us(5), ..paper });
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let wrong = |change: fn(&mut Config)| {
            let mut config = Config::paper(LINK);
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(wrong(|c| c.token_window = 0), "token_window must be above zero");
        assert_eq!(
            wrong(|c| c.max_payload = 65_000),
            "a packet of 65040 bytes is longer than 65000"
        );
        assert_eq!(wrong(|c| c.long_priority = 8), "priority 8 is above 7");
        assert_eq!(
            wrong(|c| c.max_rts_interval = Span::from_us(4)),
            "min_rts_interval is above max_rts_interval"
        );
        assert_eq!(
            wrong(|c| c.patience = c.max_rts_interval),
            "patience must be above max_rts_interval"
        );
        assert_eq!(
            wrong(|c| c.finished_for = Span::from_ms(160)),
            "finished_for must be above 160 ms, the time for which a sender tries"
        );
    }
}
