//! dcPIM's parameters.

use rackweave_core::{Rate, Span, frame};
use rackweave_wire::dcpim::{LIFETIME_UNIT_NS, size};

use crate::common::Parameters;
use crate::exchange::{self, InvalidConfig, in_order, rule};
use crate::profile::Surroundings;

/// Packets of a message in the highest level of data; each further level is for messages this many times as long
/// (`docs/protocols/dcpim.md#dcpim-priorities`).
const LEVEL_FACTOR: u32 = 7;

/// Requests, offers and acceptances for the data of an epoch, without load. It was measured: 1.3 at 100 Gbps, 1.8 at 10 Gbps (`cargo test
/// -p rackweave-lab --lib control_packets_are_those_of_links -- --nocapture`).
const MATCHES: f64 = 1.5;

/// dcPIM's parameters. See [`Config::paper`] for the published set.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What it has in common with other transports.
    pub common: exchange::Config,
    /// Time of a full packet on the host's link: the interval between the tokens of a receiver that uses all its channels.
    pub packet_span: Span,
    /// r: the rounds of a matching.
    pub rounds: u8,
    /// k: the channels into which a host's link is divided, in each direction.
    pub channels: u8,
    /// The length of a round: beta times the round trip of a control packet.
    pub round: Span,
    /// The length of an epoch, which is that of its data phase; a matching, of `rounds` rounds, must fit.
    pub epoch: Span,
    /// Number of rounds, from the first, in which hosts choose the shortest messages; in the others they choose at random.
    pub srpt_rounds: u8,
    /// Whether channels that are idle in the current data phase are used as soon as they are matched.
    pub prompt: bool,
    /// Maximum number of senders from which a receiver requests channels in a round, in turn. (Rackweave's choice:
    /// requests to thousands of senders would take longer than a round.)
    pub requests_per_round: u32,
    /// Messages of at most this many packets are sent without tokens.
    pub free_packets: u16,
    /// Maximum number of unused tokens of a message whose receiver uses all its channels for it; with fewer channels it is less in
    /// proportion.
    pub token_window: u32,
    /// Time after the last token after which a message with that many unused ones gets another one.
    pub window_timeout: Span,
    /// Time after the last packet got its token until tokens for missing packets are sent. It is prolonged by twice the mean time by
    /// which data arrives later than this (our choice, as in pHost: the authors' constant takes packets in a long queue for lost).
    pub resend_after: Span,
    /// Time for which a token can be used after the data phase, as it is seen by the sender.
    pub token_slack: Span,
    /// Each host's clock is ahead of its driver's by a time that is specific to the host and below this one. With zero, and one clock for
    /// all drivers, the epochs of all hosts start at once, as in the authors' simulator.
    pub clock_skew: Span,
    /// Priority of data of the shortest messages.
    pub short_priority: u8,
    /// Number of priorities of data, from `short_priority` down.
    pub data_levels: u8,

    /// Minimum interval after which a sender whose announcement is not answered repeats it; the interval doubles each time.
    pub min_notify_interval: Span,
    /// Maximum of that interval, and the interval while an announced message waits and its sender receives nothing.
    pub max_notify_interval: Span,
}

/// The longest lifetime that a token can carry.
const MAX_LIFETIME: Span = Span::from_ns(u16::MAX as u64 * LIFETIME_UNIT_NS);

impl Config {
    /// beta, in thousandths: the length of a round in round trips of a control packet (`docs/protocols/dcpim.md#dcpim-parameters`).
    pub const BETA: u32 = 1300;

    /// The parameters of the authors' simulations (`docs/protocols/dcpim.md#dcpim-parameters`), for a link of this rate and a
    /// fabric whose longest unloaded round trips are `rtt`, for a full packet, and `control_rtt`, for a control packet.
    #[must_use]
    pub const fn paper(link: Rate, rtt: Span, control_rtt: Span) -> Self {
        let packet_bytes = frame::wire_bytes(frame::MTU) as u64;
        let packet_span = link.span_of(packet_bytes);
        // The bandwidth-delay product, in packets.
        let product = rtt.ticks().div_ceil(packet_span.ticks());
        let product = if product > 60_000 { 60_000 } else { product };
        let product = if product == 0 { 1 } else { product };
        let product_span = packet_span.saturating_mul(product);
        let paper = Self {
            common: exchange::Config::USUAL,
            packet_span,
            rounds: 4,
            channels: 4,
            round: Span::ZERO,
            epoch: Span::ZERO,
            srpt_rounds: 1,
            prompt: true,
            requests_per_round: 0,
            free_packets: product as u16,
            token_window: product as u32,
            window_timeout: Span::from_ticks(product_span.ticks() / 10 * 11),
            resend_after: product_span,
            token_slack: packet_span.saturating_mul(4),
            clock_skew: Span::ZERO,
            short_priority: 6,
            data_levels: 6,
            min_notify_interval: at_least_100_us(rtt.saturating_mul(10)),
            max_notify_interval: Span::from_ms(8),
        };
        let round = control_rtt.ticks().saturating_mul(Self::BETA as u64) / 1000;
        paper.with_rounds(link, 4, Span::from_ticks(round))
    }

    /// Replaces the number of rounds and their length. The epoch is as long as the rounds take (alpha = 1), but has time for a packet
    /// on each channel; a quarter of a round is enough for all requests of the round.
    #[must_use]
    pub const fn with_rounds(mut self, link: Rate, rounds: u8, round: Span) -> Self {
        let rounds = if rounds == 0 { 1 } else { rounds };
        let least = self.packet_span.ticks().saturating_mul(self.channels as u64);
        let shortest = least.div_ceil(rounds as u64);
        let round = if round.ticks() < shortest { shortest } else { round.ticks() };
        // Both halves of a round have the same length.
        let round = round.next_multiple_of(2);
        self.rounds = rounds;
        self.round = Span::from_ticks(round);
        self.epoch = self.round.saturating_mul(rounds as u64);
        let request = link.span_of(frame::wire_bytes(self.common.control_bytes) as u64).ticks();
        let requests = round / 4 / if request == 0 { 1 } else { request };
        let least = 4 * self.channels as u64;
        let requests = if requests < least { least } else { requests };
        self.requests_per_round = if requests > 1 << 20 { 1 << 20 } else { requests as u32 };
        self
    }

    /// Replaces the number of channels; tokens can be used for as many packets as there are channels after the data phase.
    #[must_use]
    pub const fn with_channels(mut self, link: Rate, channels: u8) -> Self {
        self.channels = if channels == 0 { 1 } else { channels };
        self.token_slack = self.packet_span.saturating_mul(self.channels as u64);
        let (rounds, round) = (self.rounds, self.round);
        self.with_rounds(link, rounds, round)
    }

    /// Adapts the parameters to processes on hosts, which wait for a CPU longer than a round trip: rounds of at least half a
    /// millisecond. (Our choice: the authors' hosts poll their network card.)
    #[must_use]
    pub const fn for_hosts(mut self, link: Rate) -> Self {
        let (turn, half) = (Span::from_ms(1), Span::from_us(500));
        self.window_timeout = longer(self.window_timeout, turn);
        self.resend_after = longer(self.resend_after, turn);
        self.token_slack = longer(self.token_slack, turn);
        self.min_notify_interval = longer(self.min_notify_interval, Span::from_ms(4));
        let (rounds, round) = (self.rounds, longer(self.round, half));
        self.with_rounds(link, rounds, round)
    }

    /// Number of packets that a channel carries in a data phase.
    pub(super) const fn channel_packets(&self) -> u64 {
        self.epoch.ticks() / self.packet_span.ticks() / self.channels as u64
    }

    /// Interval between two tokens on this many channels.
    pub(super) const fn token_interval(&self, channels: u8) -> Span {
        let channels = if channels == 0 { 1 } else { channels as u64 };
        Span::from_ticks(self.packet_span.ticks() * self.channels as u64 / channels)
    }

    /// Maximum number of unused tokens of a message that gets tokens on this many channels.
    pub(super) const fn window(&self, channels: u8) -> u32 {
        let window = self.token_window as u64 * channels as u64 / self.channels as u64;
        if window == 0 { 1 } else { window as u32 }
    }

    /// Time to wait for an answer after `tries` announcements.
    pub(super) fn notify_interval(&self, tries: u32) -> Span {
        let interval = self.min_notify_interval.ticks().saturating_mul(1 << tries.min(20));
        Span::from_ticks(interval.min(self.max_notify_interval.ticks()))
    }

    /// Number of packets of a message of this many packets that need no token.
    pub(super) const fn free_of(&self, packets: u32) -> u32 {
        if packets <= self.free_packets as u32 { packets } else { 0 }
    }

    /// Time that `packets` full packets take on the link.
    pub(super) const fn span_of(&self, packets: u32) -> Span {
        self.packet_span.saturating_mul(packets as u64)
    }

    /// The priority of data of a message of this many packets (`docs/protocols/dcpim.md#dcpim-priorities`).
    pub(super) const fn data_priority(&self, packets: u32) -> u8 {
        let (mut level, mut longest) = (1, LEVEL_FACTOR);
        while level < self.data_levels && packets > longest {
            longest = longest.saturating_mul(LEVEL_FACTOR);
            level += 1;
        }
        self.short_priority + 1 - level
    }
}

const fn longer(a: Span, b: Span) -> Span {
    if a.ticks() < b.ticks() { b } else { a }
}

/// Ten round trips, and no less than what a host's software may take.
const fn at_least_100_us(span: Span) -> Span {
    longer(span, Span::from_us(100))
}

impl Parameters for Config {
    type Scheme = super::DcPim;

    const NAMES: &'static [&'static str] = &["dcpim"];
    const DATA_BYTES: u32 = size::DATA;
    const CONTROL_BYTES: u32 = size::TOKEN;

    #[inline]
    fn common(&self) -> &exchange::Config {
        &self.common
    }

    fn common_mut(&mut self) -> &mut exchange::Config {
        &mut self.common
    }

    fn ask_interval(&self) -> Span {
        self.max_notify_interval
    }

    /// The announcement; its acknowledgement and that of the message. If it is longer than what is free, also a token for each packet, and
    /// requests, offers and acceptances: one of each for the data of an epoch, and `MATCHES` times as many, as channels are matched in
    /// parts. A message takes 1 / (1 - load) of its time alone, and is requested for as long; half of the load meets other offers.
    fn control_packets(&self, _: f64, packets: f64, at: &Surroundings) -> [f64; 2] {
        if packets <= f64::from(self.free_packets) {
            return [1.0, 2.0];
        }
        let epoch = (u64::from(self.channels) * self.channel_packets()) as f64;
        let matches = MATCHES * packets / epoch;
        let requests = matches / (1.0 - at.busy).max(0.1);
        let offers = matches * (1.0 + at.busy / 2.0);
        [1.0 + offers, 2.0 + packets + requests + offers]
    }

    fn validate(&self) -> Result<(), InvalidConfig> {
        let own = [
            ("packet_span", self.packet_span > Span::ZERO),
            ("rounds", self.rounds > 0),
            ("channels", self.channels > 0),
            ("round", self.round.ticks() > 1),
            ("requests_per_round", self.requests_per_round > 0),
            ("token_window", self.token_window > 0),
            ("window_timeout", self.window_timeout > Span::ZERO),
            ("resend_after", self.resend_after > Span::ZERO),
            ("data_levels", self.data_levels > 0),
            ("min_notify_interval", self.min_notify_interval > Span::ZERO),
        ];
        self.common.check(&own, &[self.short_priority])?;
        rule(self.data_levels <= self.short_priority + 1, "data_levels", || {
            let (levels, highest) = (self.data_levels, self.short_priority);
            format!("there are no {levels} priorities for data from {highest} down")
        })?;
        let matching = self.round.saturating_mul(u64::from(self.rounds));
        rule(self.epoch >= matching, "epoch", || {
            format!("an epoch of {} is shorter than its {} rounds", self.epoch, self.rounds)
        })?;
        // The lifetime of a token must fit its field.
        let lifetime = self.epoch.saturating_add(self.token_slack);
        rule(lifetime <= MAX_LIFETIME, "token_slack", || {
            format!("an epoch with its slack must be at most {MAX_LIFETIME}")
        })?;
        rule(self.channel_packets() > 0, "channels", || {
            let (epoch, channels) = (self.epoch, self.channels);
            format!("an epoch of {epoch} has no time for a packet of each of {channels} channels")
        })?;
        in_order(
            ("min_notify_interval", self.min_notify_interval),
            ("max_notify_interval", self.max_notify_interval),
        )?;
        self.common.check_patience(self.max_notify_interval, "max_notify_interval")
    }

    #[cfg(any(test, feature = "testkit"))]
    fn examples(link: Rate) -> Vec<Self> {
        vec![Self::paper(link, Span::from_us(50), Span::from_us(50)).for_hosts(link)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile as _;

    const LINK: Rate = Rate::from_gbps(100);

    /// `docs/protocols/dcpim.md#dcpim-parameters`: at 100 Gbps a product of 49 packets and epochs of 27 us.
    #[test]
    fn the_profile_makes_sense() {
        let paper = Config::paper(LINK, Span::from_ns(6_000), Span::from_ns(5_200));
        assert_eq!(paper.check(), Ok(()));
        assert_eq!((paper.free_packets, paper.token_window), (49, 49));
        assert_eq!(paper.round, Span::from_ns(6_760));
        assert_eq!(paper.epoch, Span::from_ns(27_040));
        assert_eq!(paper.channel_packets(), 54);
        assert_eq!(paper.token_slack, paper.packet_span * 4);
        assert_eq!((paper.window(4), paper.window(1)), (49, 12));
        assert_eq!(paper.token_interval(4), paper.packet_span);
        assert_eq!(paper.token_interval(1), paper.packet_span * 4);
        let eight = paper.clone().with_channels(LINK, 8);
        assert_eq!((eight.channel_packets(), eight.window(1)), (27, 6));
        let hosts = paper.for_hosts(LINK);
        assert_eq!(hosts.check(), Ok(()));
        assert_eq!((hosts.round, hosts.epoch), (Span::from_us(500), Span::from_ms(2)));
    }

    #[test]
    fn longer_messages_have_lower_priorities() {
        let paper = Config::paper(LINK, Span::from_us(6), Span::from_us(5));
        let priorities = [1, 7, 8, 49, 50, 343, 344, 2_401, 16_807, 16_808, u32::MAX];
        let expected = [6, 6, 5, 5, 4, 4, 3, 3, 2, 1, 1];
        assert_eq!(priorities.map(|packets| paper.data_priority(packets)), expected);
        let two = Config { data_levels: 2, ..paper };
        assert_eq!([7, 8, 344].map(|packets| two.data_priority(packets)), [6, 5, 5]);
    }

    #[test]
    fn short_round_trips_leave_time_for_a_packet_on_each_channel() {
        let config = Config::paper(Rate::from_gbps(1), Span::ZERO, Span::ZERO);
        assert_eq!(config.check(), Ok(()));
        assert_eq!((config.channel_packets(), config.free_packets), (1, 1));
    }

    #[test]
    fn invalid_parameters_are_refused() {
        let wrong = |change: fn(&mut Config)| {
            let mut config = Config::paper(LINK, Span::from_us(6), Span::from_us(5));
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(wrong(|c| c.channels = 0), "channels must be above zero");
        assert_eq!(
            wrong(|c| c.common.max_payload = 65_000),
            "a packet of 65040 bytes is longer than 65000"
        );
        assert_eq!(wrong(|c| c.short_priority = 8), "priority 8 is above 7");
        assert_eq!(wrong(|c| c.data_levels = 8), "there are no 8 priorities for data from 6 down");
        assert_eq!(
            wrong(|c| c.epoch = Span::from_us(20)),
            "an epoch of 20 us is shorter than its 4 rounds"
        );
        assert_eq!(
            wrong(|c| c.epoch = Span::from_ms(7)),
            "an epoch with its slack must be at most 6.554 ms"
        );
        assert_eq!(
            wrong(|c| c.channels = 255),
            "an epoch of 26 us has no time for a packet of each of 255 channels"
        );
        assert_eq!(
            wrong(|c| c.max_notify_interval = Span::from_us(4)),
            "min_notify_interval is above max_notify_interval"
        );
        assert_eq!(
            wrong(|c| c.common.patience = c.max_notify_interval),
            "patience must be above max_notify_interval"
        );
        assert_eq!(
            wrong(|c| c.common.finished_for = Span::from_ms(160)),
            "finished_for must be above 160 ms, the time for which a sender tries"
        );
    }
}
