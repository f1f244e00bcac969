//! Status reports: when a receiver sends one, and what it contains.
//!
//! The paper has no such reports, and the intervals are our choice. They play the role of TCP's delayed
//! acknowledgements (RFC 9293, section 3.8.6.3) but are longer, because the reports of all receivers arrive at one
//! sender.

use core::ops::Range;

use rackweave_core::ranges::Assembler;
use rackweave_core::{Span, Time};
use rackweave_wire::orca::{GAPS, Gap, Place, Status};

use super::super::FlowConfig;
use super::parity::Parities;

/// The largest number of packets in one report. Further gaps wait for the next report.
const MAX_PACKETS: usize = 8;
/// The shortest interval between reports, except for the first bytes and the end of the stream.
const MIN_INTERVAL: Span = Span::from_us(100);
/// The interval before the first repetition of a report with gaps; it doubles up to [`GAPS_MAX`].
const GAPS_FIRST: Span = Span::from_ms(2);
const GAPS_MAX: Span = Span::from_ms(64);
/// The interval before the first repetition of a report without gaps; it doubles up to a sixth of
/// [`FlowConfig::patience`].
const IDLE_FIRST: Span = Span::from_ms(16);

/// The state of a receiver's reports.
#[derive(Clone, Debug)]
pub(super) struct Report {
    bytes: u32,
    interval: Span,
    reorder: u64,
    reorder_time: Span,
    idle_max: Span,

    /// The highest end offset of a packet that has arrived.
    seen: u64,
    seen_at: Time,
    /// For a detached receiver, the end offset and arrival time of the last packet; packets of the group do not count.
    latest: Option<(u64, Time)>,
    /// The offset up to which the stream is known to have been sent. Missing bytes below are lost or in flight.
    horizon: u64,
    /// Gaps that end at or below this offset are reported, because they are not due to reordering.
    lost_below: u64,
    /// The time at which `lost_below` is raised, and its new value.
    reorder_timer: Option<(Time, u64)>,
    /// Gaps that end at or below this offset have been reported at least once.
    reported_gaps: u64,
    reported_limit: u64,

    /// The number of bytes that arrived since the last report.
    unreported: u64,
    due: Time,
    last_report: Option<Time>,
    /// How often the interval between repetitions has doubled.
    backoff: u8,
    /// If a report has further packets, the number of gaps in its earlier ones.
    continue_at: Option<usize>,
}

impl Report {
    pub(super) fn new(at: u64, limit: u64, config: &FlowConfig) -> Self {
        Self {
            bytes: config.status_bytes,
            interval: config.status_interval,
            reorder: u64::from(config.reorder) * u64::from(config.payload),
            reorder_time: config.reorder_time,
            idle_max: config.patience / 6,
            seen: at,
            seen_at: Time::ZERO,
            latest: None,
            horizon: at,
            lost_below: at,
            reorder_timer: None,
            reported_gaps: at,
            reported_limit: limit,
            unreported: 0,
            due: Time::MAX,
            last_report: None,
            backoff: 0,
            continue_at: None,
        }
    }

    pub(super) const fn seen(&self) -> u64 {
        self.seen
    }

    pub(super) fn poll_timeout(&self) -> Time {
        let reorder_timer = self.reorder_timer.map_or(Time::MAX, |(at, _)| at);
        if self.continue_at.is_some() { Time::ZERO } else { self.due.min(reorder_timer) }
    }

    /// Switches between the unicast channel of a detached receiver, whose state the group's packets do not show, and
    /// the group's channel.
    pub(super) fn set_detached(&mut self, now: Time, detached: bool, prefix: u64) {
        self.latest = detached.then_some((prefix, now));
    }

    /// Requests a report by this time, but not earlier than [`MIN_INTERVAL`] after the last one.
    fn request_by(&mut self, at: Time) {
        let earliest =
            self.last_report.map_or(Time::ZERO, |last| last.saturating_add(MIN_INTERVAL));
        self.due = self.due.min(at.max(earliest));
    }

    /// Records that the bytes below an offset are not needed, which is reported at once.
    pub(super) fn on_skip(&mut self, now: Time, upto: u64) {
        self.seen = self.seen.max(upto);
        self.horizon = self.horizon.max(upto);
        self.lost_below = self.lost_below.max(upto);
        self.reported_gaps = self.reported_gaps.max(upto);
        if let Some((latest, _)) = &mut self.latest {
            *latest = (*latest).max(upto);
        }
        self.request_now(now);
    }

    pub(super) fn request_now(&mut self, now: Time) {
        self.due = self.due.min(now);
    }

    /// Handles a packet of `len` bytes that ends at `end`. `new` is whether any of its bytes is new, `repair` whether
    /// it is a retransmission.
    pub(super) fn on_data(
        &mut self,
        now: Time,
        (end, len): (u64, u64),
        new: bool,
        repair: bool,
        ranges: &Assembler,
    ) {
        self.unreported = self.unreported.saturating_add(len);
        self.backoff = 0;
        if let Some(latest) = &mut self.latest {
            *latest = (end, now);
        }
        if end > self.seen {
            (self.seen, self.seen_at) = (end, now);
            self.horizon = self.horizon.max(end);
            // Enough packets arrived after gaps this far below.
            self.lost_below = self.lost_below.max(end.saturating_sub(self.reorder));
            if repair {
                // It is a probe: what lies below was sent at least a round trip earlier.
                self.lost_below = self.lost_below.max(end);
            }
        }
        if self.last_report.is_none() || self.unreported >= u64::from(self.bytes) {
            // It is reported at once, because the first packet samples the round trip without the stream's own queue.
            self.request_by(now);
        } else if new || self.due > now.saturating_add(self.interval) {
            self.request_by(now.saturating_add(self.interval));
        }
        if ranges.prefix() < self.horizon {
            self.check_gaps(now, ranges);
        } else {
            self.reorder_timer = None;
        }
    }

    fn check_gaps(&mut self, now: Time, ranges: &Assembler) {
        // Only the highest gaps are new, so in most cases this takes one step.
        let mut undecided = false;
        let gap_ends = ranges.above().iter().rev().map(|range| range.start);
        for end in gap_ends.take_while(|end| *end > self.reported_gaps) {
            if end <= self.lost_below {
                self.request_by(now);
                break;
            }
            undecided = true;
        }
        if !undecided {
            self.reorder_timer = None;
        } else if self.reorder_timer.is_none() {
            self.reorder_timer = Some((now.saturating_add(self.reorder_time), self.horizon));
        }
    }

    /// Records the length of the stream; all of it has been sent.
    pub(super) fn on_end(&mut self, now: Time, length: u64) {
        self.horizon = self.horizon.max(length);
        self.lost_below = self.horizon;
        self.reorder_timer = None;
        self.request_now(now);
    }

    /// Handles a parity of a block that ends at `end`: all data of the block was sent before.
    pub(super) fn on_parity(&mut self, now: Time, end: u64, ranges: &Assembler) {
        self.horizon = self.horizon.max(end);
        self.lost_below = self.lost_below.max(end);
        self.check_gaps(now, ranges);
    }

    /// Records that missing bytes were recovered from parity.
    pub(super) fn on_recovered(&mut self, now: Time, bytes: u64) {
        self.backoff = 0;
        self.unreported += bytes;
        let wait =
            if self.unreported >= u64::from(self.bytes) { Span::ZERO } else { self.interval };
        self.request_by(now.saturating_add(wait));
    }

    /// Records that the application consumed bytes: reports the window if it opened by a quarter or was nearly closed.
    pub(super) fn on_window(&mut self, now: Time, limit: u64, room: u64, ranges: &Assembler) {
        let grown = limit.saturating_sub(self.reported_limit);
        let left = self.reported_limit.saturating_sub(ranges.prefix());
        if grown >= room / 4 || (grown > 0 && left < room / 8) {
            self.backoff = 0;
            self.request_by(now);
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Time, ranges: &Assembler) {
        if let Some((at, edge)) = self.reorder_timer
            && now >= at
        {
            self.lost_below = self.lost_below.max(edge);
            self.reorder_timer = None;
            self.check_gaps(now, ranges);
        }
    }

    pub(super) fn poll(
        &mut self,
        now: Time,
        ranges: &Assembler,
        parities: &Parities,
        limit: u64,
        place: Place,
    ) -> Option<Status> {
        self.handle_timeout(now, ranges);
        if self.continue_at.is_none() && now < self.due {
            return None;
        }
        let skip = self.continue_at.take().unwrap_or(0);
        let who = 1 << place.port;
        let mut gaps = [Gap::default(); GAPS];
        let edge = self.lost_below.min(limit);
        let recoverable = parities.recoverable(ranges);
        // The range that arrived last may have been evicted. The gap before it then ends at `horizon`.
        let (horizon, lost_below) = (self.horizon, self.lost_below);
        let clip = move |gap: Range<u64>| {
            (gap.start, if gap.end == horizon { gap.end.min(lost_below) } else { gap.end })
        };
        let gaps_here = ranges.gaps(horizon).map(clip).filter(|(from, to)| from < to);
        let open = gaps_here.flat_map(|gap| without(gap, &recoverable));
        let mut reportable = open.filter(|gap| gap.1 <= self.lost_below).skip(skip);
        let mut count = 0;
        for gap in &mut gaps {
            let Some((from, to)) = reportable.next().filter(|(from, _)| *from < edge) else {
                break;
            };
            *gap = Gap {
                offset: from,
                len: (to.min(edge) - from).min(u64::from(u32::MAX)) as u32,
                who,
            };
            count += 1;
        }
        let more = count == GAPS && reportable.next().is_some_and(|(from, _)| from < edge);
        if more && skip + GAPS < MAX_PACKETS * GAPS {
            self.continue_at = Some(skip + GAPS);
        }
        self.on_reported(now, limit, count > 0 || skip > 0);
        let (seen, seen_at) = self.latest.unwrap_or((self.seen, self.seen_at));
        Some(Status {
            rack: place.rack,
            who,
            have: ranges.prefix(),
            slowest: place.port,
            seen,
            held_us: now.since(seen_at).as_us().min(u64::from(u32::MAX)) as u32,
            limit,
            gaps,
        })
    }

    fn on_reported(&mut self, now: Time, limit: u64, gaps: bool) {
        self.reported_gaps = self.reported_gaps.max(self.lost_below);
        self.reported_limit = limit;
        self.unreported = 0;
        self.last_report = Some(now);
        let (first, most) = if gaps { (GAPS_FIRST, GAPS_MAX) } else { (IDLE_FIRST, self.idle_max) };
        let wait = (first * (1 << self.backoff.min(12))).min(most).min(self.idle_max);
        self.backoff = self.backoff.saturating_add(1);
        self.due = now.saturating_add(wait);
    }
}

/// Returns what remains of a gap outside these sorted ranges.
fn without(gap: (u64, u64), recoverable: &[(u64, u64)]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let first = recoverable.partition_point(|range| range.1 <= gap.0);
    let mut within = recoverable[first..].iter().take_while(move |range| range.0 < gap.1);
    let mut from = Some(gap.0);
    core::iter::from_fn(move || {
        let at = from?;
        let next = within.next();
        from = next.map(|range| range.1);
        Some((at, next.map_or(gap.1, |range| range.0)))
    })
    .filter(|(from, to)| from < to)
}
