//! When a client reports which chunks it has.

use std::collections::BTreeSet;

use rackweave_core::Time;
use rackweave_wire::frisbee::REPORT_CHUNKS;

use super::Config;

/// The reports of a client that are due.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
    /// Windows with chunks that are not reported.
    dirty: BTreeSet<u32>,
    /// The number of these chunks, and when the first of them arrived.
    unreported: u16,
    since: Option<Time>,
    /// Windows whose reports are due.
    due: BTreeSet<u32>,
    /// When a report was sent last.
    last: Option<Time>,
    /// The number of windows of the image, and the one whose turn it is when nothing else is reported.
    windows: u32,
    turn: u32,
}

impl Reports {
    /// A chunk has been verified.
    pub(super) fn add(&mut self, now: Time, chunk: u32, config: &Config) {
        self.dirty.insert(chunk / REPORT_CHUNKS);
        self.unreported = self.unreported.saturating_add(1);
        self.since.get_or_insert(now);
        if self.unreported >= config.report_every {
            self.flush();
        }
    }

    /// A chunk is no longer offered.
    pub(super) fn changed(&mut self, chunk: u32) {
        self.dirty.insert(chunk / REPORT_CHUNKS);
        self.flush();
    }

    /// All windows are due, even those without a chunk.
    pub(super) fn all(&mut self, now: Time, chunks: u32) {
        self.windows = chunks.div_ceil(REPORT_CHUNKS);
        self.dirty.extend(0..self.windows);
        self.last = Some(now);
        self.flush();
    }

    fn flush(&mut self) {
        self.due.append(&mut self.dirty);
        (self.unreported, self.since) = (0, None);
    }

    pub(super) fn tick(&mut self, now: Time, config: &Config) {
        if self.since.is_some_and(|since| now >= since.saturating_add(config.report_interval)) {
            self.flush();
        }
        let is_quiet = self.last.is_some_and(|last| now >= last.saturating_add(config.keepalive));
        if is_quiet && self.due.is_empty() && self.windows > 0 {
            self.turn = (self.turn + 1) % self.windows;
            self.due.insert(self.turn);
        }
    }

    pub(super) fn poll(&mut self, now: Time) -> Option<u32> {
        let window = self.due.pop_first()?;
        self.last = Some(now);
        Some(window)
    }

    pub(super) fn poll_timeout(&self, config: &Config) -> Option<Time> {
        let flush = self.since.map(|since| since.saturating_add(config.report_interval));
        let keepalive = self.last.map(|last| last.saturating_add(config.keepalive));
        [flush, keepalive].into_iter().flatten().min()
    }
}
