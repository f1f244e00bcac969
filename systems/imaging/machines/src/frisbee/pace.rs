//! When the server sends blocks: bursts with gaps, and a dynamic rate.

use rackweave_core::{Rate, Span, Time};

/// The parameters of a server's pacing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaceConfig {
    /// The number of blocks in a burst, at least 1: 16. With the dynamic rate, the most.
    pub burst: u32,
    /// The time from the start of a burst to the start of the next: 2 ms. Zero means that blocks are not paced.
    pub gap: Span,
    /// Whether the size of bursts adapts to loss (option `-D`).
    pub dynamic: bool,
}

impl Default for PaceConfig {
    fn default() -> Self {
        Self { burst: 16, gap: Span::from_ms(2), dynamic: false }
    }
}

impl PaceConfig {
    /// Returns the same configuration with the gap at which blocks of `wire_bytes` have this rate on the link.
    #[must_use]
    pub const fn with_rate(self, rate: Rate, wire_bytes: u32) -> Self {
        let gap = rate.span_of(self.burst as u64 * wire_bytes as u64);
        Self { gap, ..self }
    }
}

/// The interval after which the dynamic rate changes.
const LOSS_INTERVAL: Span = Span::from_ms(500);

/// The pacing of one server: after every burst, it sleeps until a gap after the start of the burst. A server that is late for
/// this time continues at once, and the next gap counts from then: it does not send faster later to compensate.
#[derive(Clone, Debug)]
pub struct Pace {
    config: PaceConfig,
    /// The present size of bursts.
    burst: u32,
    /// Blocks sent in this burst.
    sent: u32,
    /// When this burst may begin.
    ready: Time,
    /// When the next one may.
    next: Time,
    /// Whether there was nothing to send, so that the next block begins a new interval.
    idle: bool,
    /// The end of the interval in which losses are counted; `None` before the first burst.
    adapts_at: Option<Time>,
    lost: bool,
}

impl Pace {
    /// A server that has not sent anything.
    #[must_use]
    pub const fn new(config: PaceConfig) -> Self {
        Self {
            burst: if config.burst == 0 { 1 } else { config.burst },
            config,
            sent: 0,
            ready: Time::ZERO,
            next: Time::ZERO,
            idle: true,
            adapts_at: None,
            lost: false,
        }
    }

    /// Returns when the next block may be sent; a time that has passed means now.
    #[must_use]
    pub const fn ready_at(&self) -> Time {
        self.ready
    }

    /// Returns the present size of bursts in blocks.
    #[must_use]
    pub const fn burst(&self) -> u32 {
        self.burst
    }

    /// The work queue is empty.
    pub const fn idle(&mut self) {
        self.idle = true;
    }

    /// A block is sent.
    pub fn sent(&mut self, now: Time) {
        if self.config.gap == Span::ZERO {
            return;
        }
        if std::mem::take(&mut self.idle) {
            self.sent = 0;
            self.next = now.saturating_add(self.config.gap);
        }
        self.sent += 1;
        if self.sent < self.burst {
            return;
        }
        self.sent = 0;
        self.ready = self.next.max(now);
        self.next = self.ready.saturating_add(self.config.gap);
        if self.config.dynamic {
            self.adapt(now);
        }
    }

    /// A client has asked again for blocks that were not queued.
    pub const fn lost(&mut self) {
        self.lost = true;
    }

    /// After loss the burst shrinks by a tenth (by at least one, down to one), else it grows by one.
    fn adapt(&mut self, now: Time) {
        let Some(at) = self.adapts_at else {
            self.adapts_at = Some(now.saturating_add(LOSS_INTERVAL));
            return;
        };
        if now < at {
            return;
        }
        self.burst = if std::mem::take(&mut self.lost) {
            (self.burst * 9 / 10).min(self.burst - 1).max(1)
        } else {
            (self.burst + 1).min(self.config.burst)
        };
        self.adapts_at = Some(at.saturating_add(LOSS_INTERVAL));
    }
}
