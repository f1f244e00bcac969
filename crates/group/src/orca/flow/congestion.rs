//! How many bytes may be under way (ours, after Vegas, Copa and Swift).
//!
//! Each path's standing queue is taken from the least round trip of a period against the least ever: scheduling of hosts
//! lengthens some samples, a queue lengthens all. Every flow aims at the same number of queued bytes, so that flows with
//! one bottleneck come to equal rates. Loss counts only above a share that random loss does not reach.

use rackweave_core::{Span, Time};

use super::FlowConfig;

/// A period is at least so long (except at the start): several reports of each receiver, so that the least of them means
/// something.
const PERIOD: Span = Span::from_ms(5);
/// Most that is added to the queue for round trips that vary.
const JITTER_MOST: Span = Span::from_ms(5);
/// Loss is no congestion below so many packets in a period, whatever their share.
const LOSS_PACKETS: u64 = 10;

/// The congestion window of one flow.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    window: u64,
    most: u64,
    least: u64,
    payload: u64,
    starting: bool,
    queue_delay: Span,
    min_queue: u64,
    max_queue: u64,
    loss_percent: u64,

    began: Time,
    began_at: u64,
    /// The period ends once what was sent until its beginning has arrived.
    ends_at: u64,
    most_flight: u64,

    srtt: Span,
    deviation: Span,
    last: Span,
    /// The least round trip.
    shortest: Span,
    jitter: Span,
    /// Bytes per second.
    rate: u64,
}

/// What a period's receivers saw at worst.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Worst {
    /// ReceiverStatus queue as time; `None`: no samples.
    pub(super) queue: Option<Span>,
    /// Bytes lost.
    pub(super) lost: u64,
}

impl Congestion {
    pub(super) fn new(now: Time, at: u64, config: &FlowConfig) -> Self {
        Self {
            window: config.initial_window,
            most: config.window,
            least: (16 * u64::from(config.payload)).min(config.initial_window),
            payload: u64::from(config.payload),
            starting: true,
            queue_delay: config.queue_delay,
            min_queue: config.min_queue,
            max_queue: config.max_queue,
            loss_percent: u64::from(config.loss_percent),
            began: now,
            began_at: at,
            ends_at: at,
            most_flight: 0,
            srtt: Span::ZERO,
            deviation: Span::ZERO,
            last: Span::ZERO,
            shortest: Span::MAX,
            jitter: Span::ZERO,
            rate: 0,
        }
    }

    /// Still finding out what the path takes.
    pub(super) const fn is_starting(&self) -> bool {
        self.starting
    }

    pub(super) const fn window(&self) -> u64 {
        self.window
    }

    pub(super) const fn srtt(&self) -> Span {
        self.srtt
    }

    /// The least round trip that was measured, without queues of ours; nothing is known: `Span::MAX`.
    pub(super) const fn shortest(&self) -> Span {
        self.shortest
    }

    /// Bytes per second that arrived lately.
    pub(super) const fn rate(&self) -> u64 {
        self.rate
    }

    /// After this much without an answer something was lost.
    pub(super) fn timeout(&self) -> Span {
        Span(self.srtt.0 + 4 * self.deviation.0).min(Span::from_ms(200))
    }

    /// A receiver that held the others up has gone: what is known of the path is of the wrong one.
    pub(super) fn restart(&mut self, config: &FlowConfig) {
        self.window = self.window.max(config.initial_window);
        self.starting = true;
    }

    /// Too much is lost.
    pub(super) fn cut(&mut self) {
        self.starting = false;
        self.window = (self.window / 10 * 7).max(self.least);
    }

    /// A round trip was measured (one receiver's last and this one's differ by `step`).
    pub(super) fn sample(&mut self, rtt: Span) {
        self.shortest = self.shortest.min(rtt);
        if self.srtt == Span::ZERO {
            (self.srtt, self.deviation, self.last) = (rtt, Span(rtt.0 / 2), rtt);
            return;
        }
        // RFC 6298 for repetitions; RFC 3550 for the jitter.
        let off = self.srtt.0.abs_diff(rtt.0);
        self.deviation = Span((3 * self.deviation.0 + off) / 4);
        self.srtt = Span((7 * self.srtt.0 + rtt.0) / 8);
        let step = self.last.0.abs_diff(rtt.0);
        self.jitter = Span((15 * self.jitter.0 + step) / 16);
        self.last = rtt;
    }

    pub(super) fn sent(&mut self, flight: u64) {
        self.most_flight = self.most_flight.max(flight);
    }

    /// Whether a period has ended, with all bytes below `progress` arrived.
    pub(super) fn period_over(&self, now: Time, progress: u64) -> bool {
        progress > self.ends_at && (self.starting || now.since(self.began) >= PERIOD)
    }

    /// Ends a period: `head` is the next byte to be sent, `worst` what its receivers saw.
    pub(super) fn end_period(&mut self, now: Time, progress: u64, head: u64, worst: Worst) {
        let bytes = progress.saturating_sub(self.began_at);
        let span = now.since(self.began);
        if span > Span::ZERO && bytes > 0 {
            let rate = u128::from(bytes) * 1_000_000_000_000 / u128::from(span.0);
            let rate = rate.min(u128::from(u64::MAX >> 8)) as u64;
            self.rate = if self.rate == 0 { rate } else { (self.rate + rate) / 2 };
        }
        let limited = self.most_flight * 2 >= self.window;
        (self.began, self.began_at, self.ends_at, self.most_flight) = (now, progress, head, 0);
        let lost = worst.lost;
        if lost * 100 > self.loss_percent * (bytes + lost) && lost > LOSS_PACKETS * self.payload {
            return self.cut();
        }
        let Some(queue) = worst.queue else { return };
        let target = self.target();
        let queued = self.bytes_in(queue);
        if self.starting {
            if queued * 2 > target && queue.0 * 4 > self.queue_delay.0 {
                self.starting = false;
                self.window = self.window.saturating_sub(queued.saturating_sub(target));
            } else if limited && bytes * 2 >= self.window {
                self.window *= 2;
            }
        } else if queued > target {
            // Less than the queue that is aimed at would leave no room for late samples.
            let cut = ((queued - target) / 2).min(self.window / 4);
            self.window = (self.window - cut).max(self.min_queue.min(self.window));
        } else if limited {
            self.window += ((target - queued) / 2).max(self.payload);
        }
        self.window = self.window.clamp(self.least, self.most);
    }

    /// Queued bytes to aim at.
    fn target(&self) -> u64 {
        let steady = self.bytes_in(self.queue_delay).clamp(self.min_queue, self.max_queue);
        steady + self.bytes_in(Span(2 * self.jitter.0).min(JITTER_MOST)).min(4 * self.max_queue)
    }

    fn bytes_in(&self, span: Span) -> u64 {
        let bytes = u128::from(self.rate) * u128::from(span.0) / 1_000_000_000_000;
        bytes.min(u128::from(self.most)) as u64
    }
}
