//! The window of a message's sender: Algorithm 1 of HPCC (SIGCOMM'19, section 3.2).

use rackweave_core::telemetry::{Hop, Stack};
use rackweave_core::{Rate, Span, Time};

use super::config::Config;
use crate::rdma::Limit;

/// Without an acknowledgement for longer than this, what is known is forgotten (our choice; the paper says nothing).
const FORGETS: Span = Span::from_ms(2);
/// The bytes that a port may have sent since: half of the range of their number.
const MOST_SENT: u64 = 64 << 20;
/// No port sends as many in this time.
const SOON: Span = Span::from_us(160);

/// Half of the range of a hop's time: a greater difference is that of an older packet.
const OLDER: u64 = 1 << 23;

/// The window of one message.
#[derive(Clone, Debug)]
pub struct Window {
    /// W, in bytes.
    window: f64,
    /// W^c: the window that each acknowledgement of a round trip begins with.
    reference: f64,
    /// U, the estimate of the bytes in flight over the product of bandwidth and base round trip, at the busiest link.
    utilisation: f64,
    /// incStage: additive increases since the last multiplicative change.
    stage: u32,
    /// lastUpdateSeq: an acknowledgement beyond this packet changes `reference`.
    updated_to: u32,
    /// L: what switches wrote into the last packet that was acknowledged, and when its acknowledgement came; `None` before.
    last: Option<(Stack, Time)>,
}

impl Window {
    /// Handles what switches had written into a packet: all before `next` have arrived, and `next_to_send` is sent next.
    pub(super) fn on_ack(
        &mut self,
        now: Time,
        next: u32,
        next_to_send: u32,
        stack: &Stack,
        config: &Config,
    ) {
        let Some(hops) = stack.hops().filter(|hops| !hops.is_empty()) else { return };
        let Some((last, told_at)) = self.last.replace((*stack, now)) else {
            // `rdma-hw.cc`: the first acknowledgement is only remembered.
            self.updated_to = next_to_send;
            return;
        };
        let since = now.since(told_at);
        let wraps = |hop: &Hop| since > SOON && since > hop.rate().span_of(MOST_SENT);
        let is_same_path =
            last.head() == stack.head() && since <= FORGETS && !hops.iter().any(wraps);
        let Some(before) = last.hops().filter(|_| is_same_path) else { return };
        let Some((utilisation, nanoseconds)) = busiest(hops, before, config) else {
            // An older packet than the last one: what is known is newer.
            self.last = Some((last, told_at));
            return;
        };
        let base = config.base_seconds() * 1e9;
        let weight = (nanoseconds as f64 / base).min(1.0);
        self.utilisation = (1.0 - weight) * self.utilisation + weight * utilisation;
        self.change(next > self.updated_to, config);
        if next > self.updated_to {
            self.updated_to = next_to_send;
        }
    }

    /// ComputeWind.
    fn change(&mut self, is_round_trip: bool, config: &Config) {
        let additive = f64::from(config.additive_bytes);
        let excess = self.utilisation / config.eta;
        let is_additive = excess < 1.0 && self.stage < config.max_stage;
        let base = if is_additive { self.reference } else { self.reference / excess };
        let least = config.bytes_of(config.min_rate).min(config.initial_window());
        self.window = (base + additive).clamp(least, config.initial_window());
        if is_round_trip {
            self.stage = if is_additive { self.stage + 1 } else { 0 };
            self.reference = self.window;
        }
    }
}

/// MeasureInflight before its average: u and tau of the busiest link, in nanoseconds. `None` if the packet left a port before the last
/// one, or at the same time.
fn busiest(hops: &[Hop], before: &[Hop], config: &Config) -> Option<(f64, u64)> {
    let mut busiest = None;
    for (hop, before) in hops.iter().zip(before) {
        let nanoseconds = hop.nanoseconds_since(*before);
        if nanoseconds == 0 || nanoseconds > OLDER {
            return None;
        }
        let bytes_a_second = hop.rate().0 as f64 / 8.0;
        let queue = hop.queue_bytes().min(before.queue_bytes()) as f64;
        let sent = hop.sent_since(*before) as f64 / (nanoseconds as f64 / 1e9);
        let part = queue / (bytes_a_second * config.base_seconds()) + sent / bytes_a_second;
        if busiest.is_none_or(|(most, _)| part > most) {
            busiest = Some((part, nanoseconds));
        }
    }
    busiest
}

impl Limit<Config> for Window {
    fn new(config: &Config) -> Self {
        let window = config.initial_window();
        Self { window, reference: window, utilisation: 1.0, stage: 0, updated_to: 0, last: None }
    }

    /// R = W / T.
    fn rate(&mut self, _: Time, config: &Config) -> Option<Rate> {
        // The first window is rounded, so that its rate is a little below that of the link.
        let rate = (self.window * 8.0 / config.base_seconds()) as u64;
        (self.window < config.initial_window()).then_some(Rate(rate.clamp(1, config.link.0)))
    }

    /// A packet may be sent while fewer bytes than the window are in flight.
    fn window(&self, config: &Config) -> u32 {
        ((self.window / f64::from(config.common.max_payload)).ceil() as u32).max(1)
    }

    #[cfg(test)]
    fn check_bounds(&self, config: &Config) {
        let least = config.bytes_of(config.min_rate).min(config.initial_window());
        for window in [self.window, self.reference] {
            assert!(window >= least && window <= config.initial_window(), "{window}");
        }
        assert!(self.utilisation.is_finite() && self.utilisation >= 0.0);
        assert!(self.stage <= config.max_stage);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rackweave_core::telemetry::{Stamp, rate_code};

    use super::*;

    const LINK: Rate = Rate::from_gbps(100);

    fn config() -> Config {
        Config::paper(LINK, Span::from_us(10))
    }

    /// A path of one port of 100 Gbps, as packet by packet leaves it.
    struct Port {
        at: Span,
        sent: u64,
    }

    impl Port {
        /// The stack of a packet that leaves `ns` after the last one, with so many bytes sent and waiting.
        fn leaves(&mut self, ns: u64, sent: u64, queue_bytes: u64) -> Stack {
            self.at += Span::from_ns(ns);
            self.sent += sent;
            let mut stack = Stack::default();
            stack.push(Stamp {
                port: 7,
                rate: rate_code(LINK).unwrap(),
                at: Time::ZERO + self.at,
                sent_bytes: self.sent,
                queue_bytes,
            });
            stack
        }
    }

    /// A window that has seen the first acknowledgement, with 100 packets sent.
    fn told() -> (Window, Port, Config) {
        let (config, mut port) = (config(), Port { at: Span::ZERO, sent: 0 });
        let mut window = Window::new(&config);
        window.on_ack(Time::ZERO, 1, 100, &port.leaves(0, 0, 0), &config);
        (window, port, config)
    }

    fn now(port: &Port) -> Time {
        Time::ZERO + port.at
    }

    #[test]
    fn the_first_acknowledgement_is_only_remembered() {
        let (window, _, config) = told();
        assert_eq!(window.window, 125_000.0);
        assert_eq!((window.updated_to, window.stage), (100, 0));
        window.check_bounds(&config);
    }

    /// U = queue / (B T) + rate / B: a full link with a queue of half a product is 1.5, after a whole round trip.
    #[test]
    fn the_window_becomes_what_fills_eta_of_the_link() {
        let (mut window, mut port, config) = told();
        port.leaves(0, 0, 0);
        let first = port.leaves(0, 0, 62_480);
        window.last = Some((first, now(&port)));
        // 10 us at 100 Gbps are 125 kB.
        let stack = port.leaves(10_000, 125_056, 62_480);
        window.on_ack(now(&port), 101, 200, &stack, &config);
        let utilisation = 125_056.0 / 125_000.0 + 62_480.0 / 125_000.0;
        assert!((window.utilisation - utilisation).abs() < 1e-9, "{}", window.utilisation);
        let expected = 125_000.0 / (utilisation / 0.95) + f64::from(config.additive_bytes);
        assert!((window.window - expected).abs() < 1e-6, "{}", window.window);
        assert_eq!((window.reference, window.updated_to), (window.window, 200));
        window.check_bounds(&config);
    }

    #[test]
    fn acknowledgements_of_one_round_trip_begin_with_the_same_window() {
        let (mut window, mut port, config) = told();
        for packet in 2..=100 {
            let stack = port.leaves(100, 1_250, 40_000);
            window.on_ack(now(&port), packet, 100 + packet, &stack, &config);
            assert_eq!(window.reference, 125_000.0, "{packet}");
        }
        // The link is full, and the queue is 0.32 of a product: U has moved by 1 - (1 - 1/100)^99 of the way.
        assert!(window.utilisation > 1.19 && window.utilisation < 1.22, "{}", window.utilisation);
        let before = window.window;
        window.on_ack(now(&port), 101, 201, &port.leaves(100, 1_250, 40_000), &config);
        assert!(window.reference < 100_000.0 && window.reference <= before + 1_000.0);
        window.check_bounds(&config);
    }

    #[test]
    fn a_link_with_room_gets_additive_increases_and_then_a_multiplicative_one() {
        let (mut window, mut port, config) = told();
        let config = Config { max_stage: 5, ..config };
        (window.window, window.reference, window.utilisation) = (10_000.0, 10_000.0, 0.0);
        let additive = f64::from(config.additive_bytes);
        for stage in 1..=5 {
            let (next, stack) = (window.updated_to + 1, port.leaves(10_000, 62_464, 0));
            window.on_ack(now(&port), next, next + 8, &stack, &config);
            assert_eq!(
                (window.stage, window.reference),
                (stage, 10_000.0 + additive * f64::from(stage))
            );
        }
        let (next, stack) = (window.updated_to + 1, port.leaves(10_000, 62_464, 0));
        let before = window.reference;
        window.on_ack(now(&port), next, next + 8, &stack, &config);
        let expected = before / (62_464.0 / 125_000.0 / 0.95) + additive;
        assert!((window.reference - expected).abs() < 1e-6, "{}", window.reference);
        assert_eq!(window.stage, 0);
    }

    #[test]
    fn another_path_and_a_long_silence_begin_anew() {
        let (mut window, mut port, config) = told();
        let mut other = port.leaves(100, 1_250, 4_000_000);
        other.push(Stamp { port: 8, rate: 2, at: now(&port), sent_bytes: 0, queue_bytes: 0 });
        window.on_ack(now(&port), 2, 101, &other, &config);
        assert_eq!((window.window, window.utilisation), (125_000.0, 1.0));
        window.on_ack(now(&port), 3, 102, &port.leaves(100, 1_250, 0), &config);
        let late = port.leaves(3_000_000, 1_250, 4_000_000);
        window.on_ack(now(&port), 4, 103, &late, &config);
        assert_eq!((window.window, window.utilisation), (125_000.0, 1.0));
    }

    #[test]
    fn without_stamps_the_window_stays() {
        let (mut window, port, config) = told();
        window.on_ack(now(&port), 2, 101, &Stack::default(), &config);
        assert_eq!(window.window, 125_000.0);
        assert_eq!(window.window(&config), 89);
    }

    proptest! {
        /// Whatever switches, or forgers, write.
        #[test]
        fn any_stacks_leave_the_window_within_its_bounds(
            stacks in proptest::collection::vec(any::<(u8, [u64; 5], u32, u32, u16)>(), 1..60),
        ) {
            let config = config();
            let mut window = Window::new(&config);
            let mut now = Time::ZERO;
            for (count, hops, next, sent, us) in stacks {
                now += Span::from_us(u64::from(us));
                let stack = Stack::from_parts(u16::from(count % 7), hops.map(Hop::from_bits));
                window.on_ack(now, next, sent, &stack, &config);
                window.check_bounds(&config);
                prop_assert!(window.window(&config) >= 1);
                let rate = window.rate(now, &config);
                prop_assert!(rate.is_none_or(|rate| rate >= Rate(999_000_000) && rate < LINK));
            }
        }
    }
}
