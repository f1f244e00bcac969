//! pFabric's parameters.

use rackweave_core::{Rate, Span, frame};
use rackweave_wire::pfabric::size;
use thiserror::Error;

use crate::common::shared_parameters;

/// Parameters of pFabric. Sections are those of its paper (SIGCOMM'13); YAPS is the simulator that
/// `docs/protocols/pfabric.md#pfabric-rate-control` names.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Payload bytes of a full packet. All packets but the last of a message are full.
    pub max_payload: u32,
    /// Header bytes of a data packet, from the IP header to the payload.
    pub header_bytes: u32,
    /// Bytes of every other packet, from the IP header on.
    pub control_bytes: u32,
    /// Whether switches choose a path for each packet at random (section 5.1).
    pub spray: bool,
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
    /// Priority of control packets in switches that have priorities in place of pFabric's queue, 0 (lowest) to 7.
    pub control_priority: u8,
    /// Priority of data in such switches.
    pub data_priority: u8,

    /// Interval at which a client that awaits its response asks the server for it.
    pub ask_interval: Span,
    /// Time without any packet of the peer after which a message fails.
    pub patience: Span,

    /// Maximum message length, in bytes.
    pub max_message_bytes: u32,
    /// Maximum number of exchanges in progress.
    pub max_exchanges: u32,
    /// Maximum number of finished exchanges that are remembered.
    pub max_finished: u32,
    /// Minimum time for which a finished exchange is remembered. It must exceed `patience`.
    pub finished_for: Span,
    /// Maximum number of queued control packets.
    pub max_control: u32,
    /// Maximum number of gaps between arrived packets of one message. A packet that would exceed it is dropped.
    pub max_gaps: u16,
}

/// Reasons why a configuration is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidConfig {
    /// A field must be above zero.
    #[error("{0} must be above zero")]
    Zero(&'static str),
    /// The longest packet exceeds its 16-bit length field.
    #[error("a packet of {0} bytes is longer than 65000")]
    TooLong(u32),
    /// A priority above 7.
    #[error("priority {0} is above 7")]
    Priority(u8),
    /// The largest window is below the initial one.
    #[error("initial_window is above max_window")]
    Window,
    /// The interval of probes is shorter than the timeout.
    #[error("rto is above max_probe_interval")]
    ProbeInterval,
    /// A peer counts as dead before it is probed.
    #[error("patience must be above max_probe_interval and ask_interval")]
    Patience,
    /// Finished exchanges are forgotten while their packets may still arrive.
    #[error("finished_for must be above {0}, the time for which a sender tries")]
    FinishedFor(Span),
}

impl Default for Config {
    fn default() -> Self {
        Self::paper()
    }
}

impl Config {
    /// The values of the paper's simulations (section 5.1), for its fabric: 10 Gbps and a round trip of 14.6 us, of which
    /// 12 packets are the bandwidth-delay product and 45 us three times as much.
    #[must_use]
    pub const fn paper() -> Self {
        Self {
            // YAPS: `mss` and `hdr_size`.
            max_payload: 1460,
            header_bytes: 40,
            control_bytes: 40,
            spray: true,
            initial_window: 12,
            // YAPS: `max_cwnd`. The paper names none.
            max_window: 15,
            rto: Span::from_us(45),
            probe_after: 5,
            // The paper sends probes "periodically" (our choice: the interval grows, so that many senders do not fill a
            // link with them).
            max_probe_interval: Span::from_ms(1),
            control_priority: 7,
            data_priority: 0,
            ask_interval: Span::from_ms(8),
            patience: Span::from_ms(160),
            max_message_bytes: u32::MAX,
            max_exchanges: 1 << 20,
            max_finished: 1 << 20,
            finished_for: Span::from_ms(200),
            max_control: 1 << 14,
            max_gaps: 1024,
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

    /// Checks whether the state machine can run with these parameters.
    ///
    /// # Errors
    /// See [`InvalidConfig`].
    pub fn check(&self) -> Result<(), InvalidConfig> {
        self.check_shared(&[
            ("initial_window", self.initial_window > 0),
            ("rto", self.rto > Span::ZERO),
            ("probe_after", self.probe_after > 0),
            ("ask_interval", self.ask_interval > Span::ZERO),
        ])?;
        if self.initial_window > self.max_window {
            return Err(InvalidConfig::Window);
        }
        if self.rto > self.max_probe_interval {
            return Err(InvalidConfig::ProbeInterval);
        }
        if self.patience <= self.max_probe_interval.max(self.ask_interval) {
            return Err(InvalidConfig::Patience);
        }
        Ok(())
    }

    /// The interval before the next probe, after this many.
    pub(super) fn probe_interval(&self, probes: u32) -> Span {
        let interval = self.rto.ticks().saturating_mul(1 << probes.min(20));
        Span::from_ticks(interval.min(self.max_probe_interval.ticks()))
    }
}

shared_parameters!(
    Config,
    name: "pfabric",
    example: |_link| Self::paper().for_hosts(),
    ask_interval: ask_interval,
    free_packets: [],
    packets_back: 1.0,
    // Beside messages of W1, whose mean is 187 bytes, acknowledgements of every packet are a quarter of all bytes
    // (docs/protocols/pfabric.md#pfabric-in-homas-study).
    counts_packets_back_of: control_bytes,
    priorities: [control_priority, data_priority],
    header_bytes: size::DATA,
    control_bytes: size::ACK,
);

#[cfg(test)]
mod tests {
    use super::*;

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
            wrong(|c| c.patience = c.ask_interval),
            "patience must be above max_probe_interval and ask_interval"
        );
        assert_eq!(wrong(|c| c.data_priority = 8), "priority 8 is above 7");
        assert_eq!(
            wrong(|c| c.finished_for = Span::from_ms(160)),
            "finished_for must be above 160 ms, the time for which a sender tries"
        );
    }
}
