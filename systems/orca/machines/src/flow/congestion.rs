//! Delay-based congestion control of a channel.
//!
//! The paper has no congestion control. This one is our choice, after TCP Vegas (Brakmo and Peterson, SIGCOMM '94),
//! Copa (Arun and Balakrishnan, NSDI '18) and Swift (Kumar et al., SIGCOMM '20). The standing queue of a path is the
//! lowest round trip of a period minus the lowest ever: host scheduling lengthens some samples, a queue lengthens all.
//! Every flow aims at the same number of queued bytes, so flows with a common bottleneck converge to equal rates. Loss
//! counts only above a share that random loss does not reach.

use rackweave_core::time::TICKS_PER_SECOND;
use rackweave_core::{RttEstimator, Span, Time};

use super::FlowConfig;

/// The shortest duration of a period, except at the start. It covers several reports of each receiver, so that the
/// lowest round trip among them is meaningful.
const PERIOD: Span = Span::from_ms(5);
/// The largest allowance for varying round trips that is added to the queueing target.
const MAX_JITTER: Span = Span::from_ms(5);
/// Fewer lost packets than this in a period do not count as congestion, whatever their share.
const LOSS_PACKETS: u64 = 10;

/// The congestion window of one flow.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    window: u64,
    max_window: u64,
    min_window: u64,
    payload: u64,
    /// Whether the flow is in slow start, where the path's capacity is not known yet.
    starting: bool,
    queue_delay: Span,
    min_queue: u64,
    max_queue: u64,
    loss_percent: u64,

    /// The time at which the period began, and the progress at that time.
    began: Time,
    began_at: u64,
    /// The period ends when all bytes below have arrived, which are those sent before it began.
    ends_at: u64,
    max_in_flight: u64,

    rtt: RttEstimator,
    last_rtt: Option<Span>,
    min_rtt: Span,
    jitter: Span,
    /// The recent rate of arriving bytes, in bytes per second.
    rate: u64,
}

/// The worst values that any receiver saw in a period.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Worst {
    /// The longest standing queue, as time; `None` without samples.
    pub(super) queue: Option<Span>,
    /// The largest number of bytes lost by one receiver.
    pub(super) lost: u64,
}

impl Congestion {
    pub(super) fn new(now: Time, at: u64, config: &FlowConfig) -> Self {
        Self {
            window: config.initial_window,
            max_window: config.window,
            min_window: (16 * u64::from(config.payload)).min(config.initial_window),
            payload: u64::from(config.payload),
            starting: true,
            queue_delay: config.queue_delay,
            min_queue: config.min_queue,
            max_queue: config.max_queue,
            loss_percent: u64::from(config.loss_percent),
            began: now,
            began_at: at,
            ends_at: at,
            max_in_flight: 0,
            rtt: RttEstimator::default(),
            last_rtt: None,
            min_rtt: Span::MAX,
            jitter: Span::ZERO,
            rate: 0,
        }
    }

    /// Returns whether the flow is in slow start, where the window grows exponentially.
    pub(super) const fn is_starting(&self) -> bool {
        self.starting
    }

    pub(super) const fn window(&self) -> u64 {
        self.window
    }

    /// Returns the smoothed round trip; zero without samples.
    pub(super) fn srtt(&self) -> Span {
        self.rtt.smoothed().unwrap_or_default()
    }

    /// Returns the shortest round trip sampled so far; `Span::MAX` without samples.
    pub(super) const fn min_rtt(&self) -> Span {
        self.min_rtt
    }

    /// Returns the recent rate of arriving data in bytes per second.
    pub(super) const fn rate(&self) -> u64 {
        self.rate
    }

    /// Returns the retransmission timeout without backoff (RFC 6298, rule 2.3) and without the RFC's lower bound of 1
    /// s, which is meant for wide area networks.
    pub(super) fn rto(&self) -> Span {
        self.rtt.rto().unwrap_or_default().min(Span::from_ms(200))
    }

    /// Restarts with the initial window, after the receiver whose path had determined the window was detached.
    pub(super) fn restart(&mut self, config: &FlowConfig) {
        self.window = self.window.max(config.initial_window);
        self.starting = true;
    }

    /// Reduces the window after loss that counts as congestion.
    pub(super) fn on_loss(&mut self) {
        self.starting = false;
        self.window = (self.window / 10 * 7).max(self.min_window);
    }

    pub(super) fn on_rtt_sample(&mut self, rtt: Span) {
        self.min_rtt = self.min_rtt.min(rtt);
        self.rtt.sample(rtt);
        // Jitter as in RFC 3550, section 6.4.1.
        if let Some(last) = self.last_rtt.replace(rtt) {
            self.jitter = Span::from_ticks(
                (15 * self.jitter.ticks() + last.ticks().abs_diff(rtt.ticks())) / 16,
            );
        }
    }

    pub(super) fn on_sent(&mut self, flight: u64) {
        self.max_in_flight = self.max_in_flight.max(flight);
    }

    /// Returns whether the period is over, given that all bytes below `progress` have arrived.
    pub(super) fn period_over(&self, now: Time, progress: u64) -> bool {
        progress > self.ends_at && (self.starting || now.since(self.began) >= PERIOD)
    }

    /// Ends a period and adapts the window. `head` is the next byte to be sent; `worst` is what the receivers saw.
    pub(super) fn end_period(&mut self, now: Time, progress: u64, head: u64, worst: Worst) {
        let bytes = progress.saturating_sub(self.began_at);
        let span = now.since(self.began);
        if span > Span::ZERO && bytes > 0 {
            let rate = u128::from(bytes) * u128::from(TICKS_PER_SECOND) / u128::from(span.ticks());
            let rate = rate.min(u128::from(u64::MAX >> 8)) as u64;
            self.rate = if self.rate == 0 { rate } else { (self.rate + rate) / 2 };
        }
        let limited = self.max_in_flight * 2 >= self.window;
        (self.began, self.began_at, self.ends_at, self.max_in_flight) = (now, progress, head, 0);
        let lost = worst.lost;
        if lost * 100 > self.loss_percent * (bytes + lost) && lost > LOSS_PACKETS * self.payload {
            return self.on_loss();
        }
        let Some(queue) = worst.queue else { return };
        let target = self.target();
        let queued = self.bytes_in(queue);
        if self.starting {
            if queued * 2 > target && queue.ticks() * 4 > self.queue_delay.ticks() {
                self.starting = false;
                self.window = self.window.saturating_sub(queued.saturating_sub(target));
            } else if limited && bytes * 2 >= self.window {
                self.window *= 2;
            }
        } else if queued > target {
            // The target never falls below the smallest queueing target, which would leave no room for late samples.
            let cut = ((queued - target) / 2).min(self.window / 4);
            self.window = (self.window - cut).max(self.min_queue.min(self.window));
        } else if limited {
            self.window += ((target - queued) / 2).max(self.payload);
        }
        self.window = self.window.clamp(self.min_window, self.max_window);
    }

    /// Returns the queueing target in bytes.
    fn target(&self) -> u64 {
        let steady = self.bytes_in(self.queue_delay).clamp(self.min_queue, self.max_queue);
        steady + self.bytes_in((self.jitter * 2).min(MAX_JITTER)).min(4 * self.max_queue)
    }

    fn bytes_in(&self, span: Span) -> u64 {
        let bytes = u128::from(self.rate) * u128::from(span.ticks()) / u128::from(TICKS_PER_SECOND);
        bytes.min(u128::from(self.max_window)) as u64
    }
}
