//! Polo's parameters.

use rackweave_core::{Rate, Span, frame};
use rackweave_wire::polo::size;
use thiserror::Error;

use crate::common::shared_parameters;

/// Which flow the next driving packet goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveOrder {
    /// The one whose data packet has arrived (slide 8: "the receiver feeds a driving packet back for
    /// the received data packet").
    Arrival,
    /// The active one with the fewest packets missing (ours).
    FewestLeft,
}

/// Polo's parameters: plain numbers. See [`Config::slides`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Payload bytes of a full packet. Every packet starts at a multiple of it.
    pub max_payload: u32,
    /// Bytes from the IP header to the payload of a data packet.
    pub header_bytes: u32,
    /// Bytes of every other packet, from the IP header on.
    pub control_bytes: u32,
    /// Whether switches pick a path for each packet. If not, each pair of hosts has one path,
    /// on which packets of one priority stay in order, as recovery 1 wants
    /// (`docs/sources.md#polo-mechanisms`).
    pub spray: bool,
    /// Packets of a message that go at line rate, without being driven (slide 8; slide 13: 12).
    pub first_window: u16,
    /// Recovery 1: a packet counts as lost when this number of later packets have arrived, beyond the
    /// first one (ours; slide 11: at the first gap).
    pub reorder_margin: u32,
    /// D does not fall below this (ours): with none at all nothing would ever arrive.
    pub min_drives: u32,
    /// D does not grow beyond this (ours): a sender that is slower than the network marks
    /// nothing, and would be driven ever further ahead.
    pub max_drives: u32,
    /// Driving packets that one event may bring, at most (ours): D may have been unused for a
    /// while, and is not made up for at once.
    pub burst: u32,
    /// The order of driving packets.
    pub order: DriveOrder,
    /// Slide 11, recovery 1: a gap in the sequence is answered by a loss packet. Without: the
    /// slides' variant c.
    pub recovery_1: bool,
    /// Slide 11, recovery 2: two epochs without data bring a loss packet. Without: the slides' variant
    /// b.
    pub recovery_2: bool,
    /// A driving packet that would go to a flow with nothing left to send goes to another one. Without: the
    /// slides' variant a (slide 15).
    pub wasted_driving_rule: bool,
    /// An epoch without marks wakes an inactive flow, if there are fewer active ones than D
    /// (ours). Slide 12 has only: a finished flow is replaced.
    pub wake_in_quiet_epochs: bool,
    /// Packets of the shortest message whose first window an adjoint packet follows (slide 8: of all, 1).
    /// On hosts the adjoint packet of a message of one packet costs as much as the message, and says nothing new to the
    /// receiver (ours: 2). If the message is lost, its sender's timeout finds out.
    pub adjoint_from: u32,
    /// For how long the server keeps back the answer to a request's last packet: a response that begins
    /// meanwhile says the same (ours). Shorter than `rto`.
    pub complete_delay: Span,
    /// Epochs after the first last at least so long (ours; slide 9: as long as the adjoint packet is on its way). The
    /// ping-pong of short round trips may take a host as much time as its data, and a sender that waits for a
    /// processor is silent for many of them.
    pub min_epoch: Span,
    /// Slide 11, recovery 3: after so long without a word from its receiver a sender repeats the adjoint
    /// packet; a receiver that gets nothing of a flow that it drove asks for packets by name
    /// (ours).
    pub rto: Span,
    /// The most that doublings make of it.
    pub max_rto: Span,
    /// A paused sender asks after so long whether it still is paused (ours), the interval
    /// doubling up to a quarter of `patience`.
    pub pause_probe: Span,
    /// A peer that sends nothing for this long, while it should answer, counts as silent.
    pub patience: Span,
    /// The queue of new data packets in switches.
    pub data_priority: u8,
    /// The queue of all others, and of data that is sent again (slide 7).
    pub control_priority: u8,

    /// The longest message, in bytes.
    pub max_message_bytes: u32,
    /// Exchanges (requests with their responses, one-way messages) that the host knows at one
    /// time: more are refused, or dropped if a peer begins them.
    pub max_exchanges: u32,
    /// Finished exchanges that are remembered. While that many are, no new one begins, because
    /// it could be an old one.
    pub max_finished: u32,
    /// For how long they are remembered: longer than `patience`, and than any packet is on its
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
    #[error("min_drives is above max_drives")]
    Drives,
    /// The least is above the most.
    #[error("rto is above max_rto")]
    Rto,
    /// The adjoint packet would count as lost before the epoch may end.
    #[error("min_epoch must be below rto")]
    MinEpoch,
    /// A request's sender would ask before it is answered.
    #[error("complete_delay must be below rto")]
    CompleteDelay,
    /// A peer would count as silent before it is asked again.
    #[error("patience must be above four times max_rto and pause_probe")]
    Patience,
    /// A late copy of an old packet could begin the message a second time.
    #[error("finished_for must be above {0}, the time for which a sender tries")]
    FinishedFor(Span),
}

impl Config {
    /// The parameters of the slides: a first window of 12 packets of 1460 bytes, a timeout of 1 ms
    /// (slides 11 and 13); ours where they are silent.
    #[must_use]
    pub const fn slides() -> Self {
        Self {
            max_payload: 1460,
            header_bytes: 40,
            control_bytes: 40,
            spray: false,
            first_window: 12,
            reorder_margin: 0,
            min_drives: 1,
            max_drives: 48,
            burst: 2,
            order: DriveOrder::Arrival,
            recovery_1: true,
            recovery_2: true,
            wasted_driving_rule: true,
            wake_in_quiet_epochs: true,
            adjoint_from: 1,
            complete_delay: Span::ZERO,
            min_epoch: Span::ZERO,
            rto: Span::from_ms(1),
            max_rto: Span::from_ms(8),
            pause_probe: Span::from_ms(32),
            patience: Span::from_ms(800),
            data_priority: 0,
            control_priority: 7,
            max_message_bytes: u32::MAX,
            max_exchanges: 1 << 20,
            max_finished: 1 << 20,
            finished_for: Span::from_ms(1_000),
            max_control: 1 << 14,
            max_gaps: 1024,
        }
    }

    /// For a link of this rate and a round trip of this length (ours): the first window covers it, and
    /// timeouts are several times as long. The slides' numbers are for 4 packets in a round trip.
    #[must_use]
    pub const fn for_path(mut self, link: Rate, rtt: Span) -> Self {
        let packet = link.span_of(frame::wire_bytes(frame::MTU) as u64);
        let packets = rtt.0.div_ceil(packet.0) + 1;
        if packets > self.first_window as u64 {
            self.first_window = if packets > 10_000 { 10_000 } else { packets as u16 };
            self.max_drives = 4 * self.first_window as u32;
        }
        if rtt.0.saturating_mul(4) > self.rto.0 {
            self.rto = Span(rtt.0.saturating_mul(4));
            if self.max_rto.0 < self.rto.0 {
                self.max_rto = self.rto;
            }
        }
        self
    }

    /// For processes on hosts (ours): they wait for a processor longer than any packet waits in a switch, so
    /// that 1 ms is no sign of loss; and each packet costs them some microseconds, so that those go that say
    /// something.
    #[must_use]
    pub const fn for_hosts(mut self) -> Self {
        let rto = Span::from_ms(10);
        if self.rto.0 < rto.0 {
            self.rto = rto;
        }
        if self.max_rto.0 < 4 * rto.0 {
            self.max_rto = Span(4 * rto.0);
        }
        self.adjoint_from = 2;
        self.complete_delay = Span::from_ms(1);
        self.min_epoch = Span::from_ms(2);
        self
    }

    /// Whether the machine can work with these numbers.
    ///
    /// # Errors
    /// See [`InvalidConfig`].
    pub fn check(&self) -> Result<(), InvalidConfig> {
        self.check_shared(&[
            ("first_window", self.first_window > 0),
            ("min_drives", self.min_drives > 0),
            ("burst", self.burst > 0),
            ("rto", self.rto > Span::ZERO),
            ("pause_probe", self.pause_probe > Span::ZERO),
        ])?;
        if self.min_drives > self.max_drives {
            return Err(InvalidConfig::Drives);
        }
        if self.rto > self.max_rto {
            return Err(InvalidConfig::Rto);
        }
        if self.min_epoch >= self.rto {
            return Err(InvalidConfig::MinEpoch);
        }
        if self.complete_delay >= self.rto {
            return Err(InvalidConfig::CompleteDelay);
        }
        if self.patience.0 / 4 <= self.max_rto.max(self.pause_probe).0 {
            return Err(InvalidConfig::Patience);
        }
        Ok(())
    }

    /// The timeout after `doublings` of it in a row.
    pub(super) fn rto(&self, doublings: u32) -> Span {
        Span(self.rto.0.saturating_mul(1 << doublings.min(20)).min(self.max_rto.0))
    }

    /// How long a paused sender is quiet, after `probes` questions.
    pub(super) fn probe_interval(&self, probes: u32) -> Span {
        let interval = self.pause_probe.0.saturating_mul(1 << probes.min(20));
        Span(interval.min(self.patience.0 / 4))
    }
}

shared_parameters!(
    Config,
    name: "polo",
    ask_interval: pause_probe,
    // Beyond the first window each packet is driven, and clock packets go both ways.
    free_packets: [first_window],
    packets_back: 1.3,
    priorities: [data_priority, control_priority],
    header_bytes: size::DATA,
    control_bytes: size::ADJOINT,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profiles_make_sense() {
        let slides = Config::slides();
        assert_eq!(slides.check(), Ok(()));
        assert_eq!((slides.first_window, slides.rto), (12, Span::from_ms(1)));
        let near = slides.clone().for_path(Rate::from_gbps(1), Span::from_us(50));
        assert_eq!(near, slides);
        // 1538 bytes take 1.23 us.
        let fast = slides.clone().for_path(Rate::from_gbps(10), Span::from_us(20));
        assert_eq!((fast.first_window, fast.max_drives), (18, 72));
        let far = slides.for_path(Rate::from_gbps(10), Span::from_ms(3));
        assert_eq!((far.rto, far.max_rto), (Span::from_ms(12), Span::from_ms(12)));
        assert_eq!(far.check(), Ok(()));
        let hosts = fast.for_hosts();
        assert_eq!((hosts.first_window, hosts.rto), (18, Span::from_ms(10)));
        assert_eq!(hosts.check(), Ok(()));
        assert_eq!(far.for_hosts().rto, Span::from_ms(12));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let wrong = |change: fn(&mut Config)| {
            let mut config = Config::slides();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(wrong(|c| c.first_window = 0), "first_window must be above zero");
        assert_eq!(
            wrong(|c| c.max_payload = 65_000),
            "a packet of 65040 bytes is longer than 65000"
        );
        assert_eq!(wrong(|c| c.data_priority = 8), "priority 8 is above 7");
        assert_eq!(wrong(|c| c.min_drives = 49), "min_drives is above max_drives");
        assert_eq!(wrong(|c| c.max_rto = Span::from_us(999)), "rto is above max_rto");
        assert_eq!(wrong(|c| c.min_epoch = c.rto), "min_epoch must be below rto");
        assert_eq!(wrong(|c| c.complete_delay = c.rto), "complete_delay must be below rto");
        assert_eq!(
            wrong(|c| c.pause_probe = c.patience),
            "patience must be above four times max_rto and pause_probe"
        );
        assert_eq!(
            wrong(|c| c.finished_for = c.patience),
            "finished_for must be above 800 ms, the time for which a sender tries"
        );
    }
}
