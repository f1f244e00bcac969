//! NDP's parameters.

use rackweave_core::{Rate, Span};
use rackweave_wire::ndp::size;
use thiserror::Error;

use crate::common::shared_parameters;

/// Most paths that a sender can choose among: those of a fat-tree of 128-port switches.
pub const MAX_PATHS: u16 = 4096;

/// NDP's parameters: plain numbers. See [`Config::paper`] and [`Config::polo_slides`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The receiver's link: pulls are paced so that what they bring fills it.
    pub link: Rate,
    /// Payload bytes of a full packet. Every packet starts at a multiple of it.
    pub max_payload: u32,
    /// Bytes from the IP header to the payload of a data packet.
    pub header_bytes: u32,
    /// Bytes of every other packet, from the IP header on.
    pub control_bytes: u32,
    /// Whether each packet goes its own way; otherwise all of a message go the same.
    pub spray: bool,
    /// Paths between two hosts of the fabric, of which the sender picks one for each packet. 0: the
    /// switches pick, at random.
    pub paths: u16,
    /// Packets of a message that go at line rate, without being pulled. To keep the link busy it
    /// must cover a round trip.
    pub initial_window: u16,
    /// Pulls use this share of the receiver's link, in 1/100: the rest is for the acknowledgements
    /// of what it sends itself (htsim: 99).
    pub pull_percent: u32,
    /// A packet of which nothing is heard for this long is sent again, unasked. Only that repairs
    /// the loss of a header, an ACK or a NACK. The time is the smoothed RTT and four times its
    /// deviation (RFC 6298 without its rounding), but no less than this.
    pub min_rto: Span,
    /// The most that RTT and backing off (doubling at each timeout in a row) make of it.
    pub max_rto: Span,
    /// A peer that sends nothing for this long, while it should answer, counts as silent.
    pub patience: Span,
    /// Most consecutive questions that a peer answers without a pull (ours): after these the
    /// message counts as forgotten.
    pub max_stalls: u32,
    /// The queue of data packets in switches.
    pub data_priority: u8,
    /// The queue of all others. Switches put trimmed packets into the highest, 7.
    pub control_priority: u8,

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
    /// one more is answered as if it had been trimmed.
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
    /// Every message keeps a list of the paths.
    #[error("a sender can choose among at most {MAX_PATHS} paths, not {0}")]
    Paths(u16),
    /// A priority is above 7.
    #[error("priority {0} is above 7")]
    Priority(u8),
    /// More than the link can bring.
    #[error("pull_percent must be 1 to 100, not {0}")]
    PullPercent(u32),
    /// The least is above the most.
    #[error("min_rto is above max_rto")]
    Rto,
    /// A peer would count as silent before it is asked again.
    #[error("patience must be above max_rto")]
    Patience,
    /// A late copy of an old packet could begin the message a second time.
    #[error("finished_for must be above {0}, the time for which a sender tries")]
    FinishedFor(Span),
}

impl Config {
    /// htsim's NDP (`docs/sources.md#ndp-sender`), which is that of the paper's authors, with packets of 1500 bytes:
    /// 64 bytes of header, a window of 15 packets, RTO of 5 ms.
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

    /// NDP as the slides of Polo compare with it (`docs/sources.md#polo-comparison`): window of 12 packets of 1460 bytes,
    /// RTO of 1 ms.
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

    /// Whether the machine can work with these numbers.
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

    /// The time between two pulls (`docs/sources.md#ndp-pulls`: the time of a full packet / 0.99).
    pub(super) fn pull_spacing(&self) -> Span {
        let packet =
            self.link.span_of(u64::from(self.framing().packet_wire_bytes(self.max_payload)));
        Span(packet.0 * 100 / u64::from(self.pull_percent.clamp(1, 100)))
    }
}

shared_parameters!(
    Config,
    name: "ndp",
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
        // 1538 bytes in 1230.4 ns, at 99 %.
        assert_eq!(Config::paper(LINK).pull_spacing(), Span(1_242_828));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
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
