//! Polo's parameters.

use rackweave_core::{Rate, Span, frame};
use rackweave_wire::polo::size;

use crate::common::Parameters;
use crate::exchange::{self, InvalidConfig, in_order, rule};
use crate::profile::Surroundings;

/// The order in which flows get driving packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveOrder {
    /// The flow whose data packet has just arrived (slide 8: "the receiver feeds a driving packet back for the
    /// received data packet").
    Arrival,
    /// The active flow with the fewest missing packets (our choice, as an alternative).
    FewestLeft,
}

/// Polo's parameters. See [`Config::slides`] for the published set.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What it has in common with other transports.
    pub common: exchange::Config,
    /// Number of packets of a message that are sent at line rate, without driving packets (slide 8; slide 13:
    /// 12).
    pub first_window: u16,
    /// Recovery 1: a packet counts as lost when this number of later packets have arrived, beyond the first one
    /// (our choice; slide 11: at the first gap).
    pub reorder_margin: u32,
    /// Minimum of D (our choice: with D = 0 no data would ever be requested).
    pub min_drives: u32,
    /// Maximum of D (our choice: a sender that is slower than the network causes no marks, so that D would grow
    /// without bound).
    pub max_drives: u32,
    /// Maximum number of driving packets that one event may trigger (our choice: unused D does not cause a
    /// burst).
    pub burst: u32,
    /// The order of driving packets.
    pub order: DriveOrder,
    /// Recovery 1 of slide 11: a gap in the sequence is answered by a loss packet. Disabled in the slides'
    /// variant c.
    pub recovery_1: bool,
    /// Recovery 2 of slide 11: two epochs without data trigger a loss packet. Disabled in the slides' variant
    /// b.
    pub recovery_2: bool,
    /// Whether a driving packet for a flow with nothing left to send goes to another flow (slide 15). Disabled
    /// in the slides' variant a.
    pub wasted_driving_rule: bool,
    /// Whether an epoch without marks activates an inactive flow, if there are fewer active ones than D (our
    /// choice; on slide 12 only the end of a flow activates another).
    pub wake_in_quiet_epochs: bool,
    /// Whether a flow that arrives after a mark is paused only while there are at least D active flows, so that it
    /// could not get a packet in a round trip. (Our reading of slide 12's "highly concurrent flows" and slide 6's "a
    /// flow may not send an entire packet in a RTT".) Otherwise it is paused while any flow is active (slide 12,
    /// literally), and a receiver with few flows leaves its link idle.
    pub pause_only_if_full: bool,
    /// Minimum length, in packets, of a message whose first window is followed by an adjoint packet (slide 8:
    /// 1, so that all are). On hosts 2 is our choice: the adjoint packet of a single-packet message costs as
    /// much as the message and gives the receiver no information. If that message is lost, its sender's timeout
    /// repairs it.
    pub adjoint_from: u32,
    /// Time by which the server delays the acknowledgement of a complete request, because a response that
    /// starts within it is an acknowledgement too (our choice: it saves a packet). It must be below `rto`.
    pub complete_delay: Span,
    /// Minimum length of epochs after the first (our choice; on slide 9 an epoch lasts for the round trip of
    /// the adjoint packet). On hosts, adjoint packets at short round trips may cost as much CPU time as data,
    /// and a sender that waits for a CPU is silent for many round trips.
    pub min_epoch: Span,
    /// Timeout of recovery 3 (slide 11): a sender that receives nothing from its receiver repeats the adjoint
    /// packet. A receiver that gets no data from a flow that it drove requests packets by number (our choice).
    pub rto: Span,
    /// Maximum timeout, including exponential backoff.
    pub max_rto: Span,
    /// Time after which a paused sender first asks whether it is still paused; the interval doubles up to a
    /// quarter of `patience`. (Our choice: the packet that ends the pause may be lost.)
    pub pause_probe: Span,
    /// Priority of new data packets in switches, 0 (lowest) to 7. Retransmitted data has that of control packets (slide 7).
    pub data_priority: u8,
}

impl Config {
    /// The parameters of the slides: a first window of 12 packets of 1460 bytes and a timeout of 1 ms (slides
    /// 11 and 13). The others are our choice, because the slides do not give them.
    #[must_use]
    pub const fn slides() -> Self {
        Self {
            common: exchange::Config {
                // Packets of one priority must stay in order, as recovery 1 requires (`docs/protocols/polo.md#polo-mechanisms`).
                spray: false,
                patience: Span::from_ms(800),
                finished_for: Span::from_ms(1_000),
                ..exchange::Config::USUAL
            },
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
            pause_only_if_full: true,
            adjoint_from: 1,
            complete_delay: Span::ZERO,
            min_epoch: Span::ZERO,
            rto: Span::from_ms(1),
            max_rto: Span::from_ms(8),
            pause_probe: Span::from_ms(32),
            data_priority: 0,
        }
    }

    /// Adapts the parameters to a link of this rate and a round trip of this length: the first window covers
    /// the round trip, and timeouts are several times as long. (Our choice: the slides' numbers are for 4
    /// packets per round trip.)
    #[must_use]
    pub const fn for_path(mut self, link: Rate, rtt: Span) -> Self {
        let packet = link.span_of(frame::wire_bytes(frame::MTU) as u64);
        let packets = rtt.ticks().div_ceil(packet.ticks()) + 1;
        if packets > self.first_window as u64 {
            self.first_window = if packets > 10_000 { 10_000 } else { packets as u16 };
            self.max_drives = 4 * self.first_window as u32;
        }
        if rtt.ticks().saturating_mul(4) > self.rto.ticks() {
            self.rto = rtt.saturating_mul(4);
            if self.max_rto.ticks() < self.rto.ticks() {
                self.max_rto = self.rto;
            }
        }
        self
    }

    /// Adapts the parameters to processes on hosts. They wait for a CPU longer than any packet waits in a
    /// switch, so that 1 ms of silence does not indicate loss; and each packet costs some microseconds, so that
    /// packets without information are omitted. (Our choice: the slides cover simulations only.)
    #[must_use]
    pub const fn for_hosts(mut self) -> Self {
        let rto = Span::from_ms(10);
        if self.rto.ticks() < rto.ticks() {
            self.rto = rto;
        }
        if self.max_rto.ticks() < 4 * rto.ticks() {
            self.max_rto = rto.saturating_mul(4);
        }
        self.adjoint_from = 2;
        self.complete_delay = Span::from_ms(1);
        self.min_epoch = Span::from_ms(2);
        self
    }

    /// The timeout after `doublings` consecutive timeouts.
    pub(super) fn rto(&self, doublings: u32) -> Span {
        Span::from_ticks(
            self.rto.ticks().saturating_mul(1 << doublings.min(20)).min(self.max_rto.ticks()),
        )
    }

    /// Interval until a paused sender asks again, after `probes` earlier ones.
    pub(super) fn probe_interval(&self, probes: u32) -> Span {
        let interval = self.pause_probe.ticks().saturating_mul(1 << probes.min(20));
        Span::from_ticks(interval.min(self.common.patience.ticks() / 4))
    }
}

impl Parameters for Config {
    type Scheme = super::Polo;

    const NAMES: &'static [&'static str] = &["polo"];
    const DATA_BYTES: u32 = size::DATA;
    const CONTROL_BYTES: u32 = size::ADJOINT;

    #[inline]
    fn common(&self) -> &exchange::Config {
        &self.common
    }

    fn common_mut(&mut self) -> &mut exchange::Config {
        &mut self.common
    }

    fn ask_interval(&self) -> Span {
        self.pause_probe
    }

    /// The adjoint packet after the first window, and its acknowledgement; both once more for each epoch; a driving packet for each packet
    /// beyond the first window (slide 8); the answer to the last packet.
    ///
    /// An epoch is a round trip of the adjoint packet (slide 9). Epochs pass while data of a message comes whose adjoint packet has arrived:
    /// data beyond the first window, and all data that comes while the receiver has another message. An adjoint packet that comes after its
    /// message, as it does without queues if the first window is all of it, is not acknowledged.
    fn control_packets(&self, _: f64, packets: f64, at: &Surroundings) -> [f64; 2] {
        let driven = (packets - f64::from(self.first_window)).max(0.0);
        let packet = self.common.framing().packet_wire_bytes(self.common.max_payload);
        let packet = at.link.span_of(u64::from(packet)).as_secs_f64();
        let epoch = at.control_rtt.max(self.min_epoch).as_secs_f64();
        let epochs = (driven + at.busy * (packets - driven)) * packet / epoch;
        let adjoint = f64::from(u8::from(packets >= f64::from(self.adjoint_from)));
        let acknowledged = if driven > 0.0 { adjoint } else { adjoint * at.busy };
        [adjoint + epochs, acknowledged + epochs + driven + 1.0]
    }

    fn validate(&self) -> Result<(), InvalidConfig> {
        let own = [
            ("first_window", self.first_window > 0),
            ("min_drives", self.min_drives > 0),
            ("burst", self.burst > 0),
            ("rto", self.rto > Span::ZERO),
            ("pause_probe", self.pause_probe > Span::ZERO),
        ];
        self.common.check(&own, &[self.data_priority])?;
        in_order(("min_drives", self.min_drives), ("max_drives", self.max_drives))?;
        in_order(("rto", self.rto), ("max_rto", self.max_rto))?;
        // The adjoint packet would count as lost before the epoch may end, or the sender would ask before it is answered.
        for (name, span) in [("min_epoch", self.min_epoch), ("complete_delay", self.complete_delay)]
        {
            rule(span < self.rto, name, || format!("{name} must be below rto"))?;
        }
        // A quarter, as it is used, is rounded down.
        let longest = self.max_rto.max(self.pause_probe);
        InvalidConfig::unless(self.common.patience.ticks() / 4 > longest.ticks(), || {
            InvalidConfig::Patience("four times max_rto and pause_probe")
        })
    }

    #[cfg(any(test, feature = "testkit"))]
    fn examples(_: Rate) -> Vec<Self> {
        vec![Self::slides().for_hosts()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile as _;

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
        // With more patience, exchanges are remembered for longer, and as many of each second.
        let patient = hosts.clone().patient(Span::from_secs(2));
        let rate = |config: &Config| {
            f64::from(config.common.max_finished) / config.common.finished_for.as_secs_f64()
        };
        assert!(
            patient.common.finished_for > hosts.common.finished_for
                && rate(&patient) >= rate(&hosts)
        );
    }

    #[test]
    fn invalid_parameters_are_refused() {
        let wrong = |change: fn(&mut Config)| {
            let mut config = Config::slides();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(wrong(|c| c.first_window = 0), "first_window must be above zero");
        assert_eq!(
            wrong(|c| c.common.max_payload = 65_000),
            "a packet of 65040 bytes is longer than 65000"
        );
        assert_eq!(wrong(|c| c.data_priority = 8), "priority 8 is above 7");
        assert_eq!(wrong(|c| c.min_drives = 49), "min_drives is above max_drives");
        assert_eq!(wrong(|c| c.max_rto = Span::from_us(999)), "rto is above max_rto");
        assert_eq!(wrong(|c| c.min_epoch = c.rto), "min_epoch must be below rto");
        assert_eq!(wrong(|c| c.complete_delay = c.rto), "complete_delay must be below rto");
        assert_eq!(
            wrong(|c| c.pause_probe = c.common.patience),
            "patience must be above four times max_rto and pause_probe"
        );
        assert_eq!(
            wrong(|c| c.common.finished_for = c.common.patience),
            "finished_for must be above 800 ms, the time for which a sender tries"
        );
    }
}
