//! NDP's parameters.

use rackweave_core::{Rate, Span};
use rackweave_wire::ndp::size;
use thiserror::Error;

use crate::common::{RtoBounds, shared_parameters};

/// Maximum number of paths that a sender can choose among: those of a fat-tree of 128-port switches.
pub const MAX_PATHS: u16 = 4096;

/// NDP's parameters. See [`Config::paper`] and [`Config::polo_slides`] for the published sets.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Rate of the receiver's link. Pulls are paced so that the data they trigger fills it.
    pub link: Rate,
    /// Payload bytes of a full packet. All packets but the last of a message are full.
    pub max_payload: u32,
    /// Header bytes of a data packet, from the IP header to the payload.
    pub header_bytes: u32,
    /// Size of every other packet, from the IP header on.
    pub control_bytes: u32,
    /// Whether each packet takes a path of its own; otherwise all packets of a message take the same path.
    pub spray: bool,
    /// Number of paths between two hosts of the fabric, of which the sender chooses one for each packet. 0:
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
    /// Time without a packet from a peer that should answer after which the peer is declared silent.
    pub patience: Span,
    /// Maximum number of consecutive probes that a peer may answer without a pull. After these the message is
    /// considered forgotten. (Our choice: NDP has no such limit, and the message would never end.)
    pub max_stalls: u32,
    /// Priority of data packets in switches, 0 (lowest) to 7.
    pub data_priority: u8,
    /// Priority of all other packets. Switches move trimmed packets to the highest, 7.
    pub control_priority: u8,

    /// Maximum message length, in bytes.
    pub max_message_bytes: u32,
    /// Maximum number of exchanges (requests with their responses, one-way messages) in progress at the host.
    /// Further ones are refused, or dropped if a peer starts them.
    pub max_exchanges: u32,
    /// Maximum number of finished exchanges that are remembered. At this number no new exchange is accepted,
    /// because it could be a duplicate.
    pub max_finished: u32,
    /// Minimum time for which finished exchanges are remembered. It must exceed `patience` plus the lifetime of
    /// any packet.
    pub finished_for: Span,
    /// Maximum number of queued control packets. Further ones are dropped.
    pub max_control: u32,
    /// Maximum number of gaps between arrived packets of one message. A packet that would exceed it is answered
    /// as if it had been trimmed.
    pub max_gaps: u16,
}

/// Reasons why a configuration is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidConfig {
    /// A field must be above zero.
    #[error("{0} must be above zero")]
    Zero(&'static str),
    /// The packet exceeds its 16-bit length field.
    #[error("a packet of {0} bytes is longer than 65000")]
    TooLong(u32),
    /// Too many paths: every message keeps a list of them.
    #[error("a sender can choose among at most {MAX_PATHS} paths, not {0}")]
    Paths(u16),
    /// A priority above 7.
    #[error("priority {0} is above 7")]
    Priority(u8),
    /// Pulls would trigger more data than the link carries.
    #[error("pull_percent must be 1 to 100, not {0}")]
    PullPercent(u32),
    /// The minimum timeout exceeds the maximum.
    #[error("min_rto is above max_rto")]
    Rto,
    /// A peer would be declared silent before it is asked again.
    #[error("patience must be above max_rto")]
    Patience,
    /// A late duplicate could start a message a second time.
    #[error("finished_for must be above {0}, the time for which a sender tries")]
    FinishedFor(Span),
}

impl Config {
    /// The parameters of htsim's NDP (`docs/protocols/ndp.md#ndp-sender`), written by the paper's authors, with
    /// packets of 1500 bytes: headers of 64 bytes, a window of 15 packets, a minimum timeout of 5 ms.
    #[must_use]
    pub const fn paper(link: Rate) -> Self {
        Self {
            link,
            max_payload: 1436,
            header_bytes: 64,
            control_bytes: 46,
            spray: true,
            paths: 0,
            initial_window: 15,
            pull_percent: 99,
            min_rto: Span::from_ms(5),
            max_rto: Span::from_ms(10),
            patience: Span::from_ms(160),
            max_stalls: 64,
            data_priority: 0,
            control_priority: 7,
            max_message_bytes: u32::MAX,
            max_exchanges: 1 << 20,
            max_finished: 1 << 20,
            finished_for: Span::from_ms(200),
            max_control: 1 << 14,
            max_gaps: 1024,
        }
    }

    /// The parameters of NDP in the comparison of Polo's slides (`docs/protocols/polo.md#polo-comparison`): a window
    /// of 12 packets of 1460 bytes, a minimum timeout of 1 ms.
    #[must_use]
    pub const fn polo_slides(link: Rate) -> Self {
        Self {
            max_payload: 1460,
            header_bytes: 40,
            control_bytes: 40,
            initial_window: 12,
            min_rto: Span::from_ms(1),
            max_rto: Span::from_ms(8),
            ..Self::paper(link)
        }
    }

    /// Checks whether the state machine can run with these parameters.
    ///
    /// # Errors
    /// See [`InvalidConfig`].
    pub fn check(&self) -> Result<(), InvalidConfig> {
        self.check_shared(&[
            ("link", self.link.0 > 0),
            ("initial_window", self.initial_window > 0),
            ("min_rto", self.min_rto > Span::ZERO),
            ("max_stalls", self.max_stalls > 0),
        ])?;
        if self.paths > MAX_PATHS {
            return Err(InvalidConfig::Paths(self.paths));
        }
        if !(1..=100).contains(&self.pull_percent) {
            return Err(InvalidConfig::PullPercent(self.pull_percent));
        }
        if self.min_rto > self.max_rto {
            return Err(InvalidConfig::Rto);
        }
        if self.patience <= self.max_rto {
            return Err(InvalidConfig::Patience);
        }
        Ok(())
    }

    #[inline]
    pub(super) const fn rto_bounds(&self) -> RtoBounds {
        RtoBounds { min: self.min_rto, max: self.max_rto, patience: self.patience }
    }

    /// Interval between two pulls (`docs/protocols/ndp.md#ndp-pulls`: the time of a full packet / 0.99).
    pub(super) fn pull_spacing(&self) -> Span {
        let packet =
            self.link.span_of(u64::from(self.framing().packet_wire_bytes(self.max_payload)));
        Span::from_ticks(packet.ticks() * 100 / u64::from(self.pull_percent.clamp(1, 100)))
    }
}

shared_parameters!(
    Config,
    name: "ndp",
    example: |link| Self::paper(link),
    ask_interval: max_rto,
    // Each packet has its ACK, and beyond the window a pull as well.
    free_packets: [],
    packets_back: 2.0,
    priorities: [data_priority, control_priority],
    header_bytes: size::DATA,
    control_bytes: size::PULL,
);

#[cfg(test)]
mod tests {
    use super::*;

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
            wrong(|c| c.max_payload = 65_000),
            "a packet of 65064 bytes is longer than 65000"
        );
        assert_eq!(wrong(|c| c.data_priority = 8), "priority 8 is above 7");
        assert_eq!(
            wrong(|c| c.paths = 5000),
            "a sender can choose among at most 4096 paths, not 5000"
        );
        assert_eq!(wrong(|c| c.pull_percent = 101), "pull_percent must be 1 to 100, not 101");
        assert_eq!(wrong(|c| c.max_rto = Span::from_ms(4)), "min_rto is above max_rto");
        assert_eq!(wrong(|c| c.patience = c.max_rto), "patience must be above max_rto");
        assert_eq!(
            wrong(|c| c.finished_for = Span::from_ms(160)),
            "finished_for must be above 160 ms, the time for which a sender tries"
        );
    }
}
