//! When a receiver reports, and what.

use rackweave_core::{Span, Time};
use rackweave_wire::orca::{GAPS, Gap, Place, Status};

use super::super::FlowConfig;
use super::super::ranges::Ranges;
use super::parity::Parities;

/// Most packets of one report: more gaps are told with the next.
const PACKETS: usize = 8;
/// Reports are never closer than this, except at the first bytes and the end.
const CLOSEST: Span = Span::from_us(100);
/// Gaps are told again after this, and then at intervals that double up to [`GAPS_MOST`].
const GAPS_FIRST: Span = Span::from_ms(2);
const GAPS_MOST: Span = Span::from_ms(64);
/// Without gaps the first repetition comes after this; intervals double up to a sixth of the patience.
const IDLE_FIRST: Span = Span::from_ms(16);

/// A receiver's reports.
#[derive(Clone, Debug)]
pub(super) struct Report {
    bytes: u32,
    interval: Span,
    reorder: u64,
    reorder_time: Span,
    idle_most: Span,

    /// The highest end of a packet that came.
    seen: u64,
    seen_at: Time,
    /// For a receiver that is alone: the end of the packet that came last, whatever else it has seen.
    latest: Option<(u64, Time)>,
    /// The stream goes on to here at least: what is missing below is lost or under way.
    horizon: u64,
    /// Gaps that end at or below are taken for lost.
    ripe: u64,
    /// What of `horizon` becomes ripe at this time.
    ripens: Option<(Time, u64)>,
    /// Gaps that end at or below have been told at least once.
    told_gaps: u64,
    told_limit: u64,

    /// Bytes that came since the last report.
    unreported: u64,
    due: Time,
    last: Option<Time>,
    /// Doublings of the idle interval.
    quiet: u8,
    /// What remains to be sent of a report: the gaps to pass over.
    rest: Option<usize>,
}

impl Report {
    pub(super) fn new(at: u64, limit: u64, config: &FlowConfig) -> Self {
        Self {
            bytes: config.status_bytes,
            interval: config.status_interval,
            reorder: u64::from(config.reorder) * u64::from(config.payload),
            reorder_time: config.reorder_time,
            idle_most: Span(config.patience.0 / 6),
            seen: at,
            seen_at: Time::ZERO,
            latest: None,
            horizon: at,
            ripe: at,
            ripens: None,
            told_gaps: at,
            told_limit: limit,
            unreported: 0,
            due: Time::MAX,
            last: None,
            quiet: 0,
            rest: None,
        }
    }

    pub(super) const fn seen(&self) -> u64 {
        self.seen
    }

    pub(super) fn next(&self) -> Time {
        let ripens = self.ripens.map_or(Time::MAX, |(at, _)| at);
        if self.rest.is_some() { Time::ZERO } else { self.due.min(ripens) }
    }

    /// From now on the receiver has a course of its own, on which what it has seen of the others' tells nothing; or it has
    /// theirs again.
    pub(super) fn set_detached(&mut self, now: Time, detached: bool, prefix: u64) {
        self.latest = detached.then_some((prefix, now));
    }

    /// A report is due by this time, but not too close to the last.
    fn by(&mut self, at: Time) {
        let earliest = self.last.map_or(Time::ZERO, |last| last.saturating_add(CLOSEST));
        self.due = self.due.min(at.max(earliest));
    }

    pub(super) fn soon(&mut self, now: Time) {
        self.due = self.due.min(now);
    }

    /// A packet that ends at `end` came, with something new or not.
    /// `again`: it was sent before.
    pub(super) fn arrived(
        &mut self,
        now: Time,
        (end, len): (u64, u64),
        new: bool,
        again: bool,
        ranges: &Ranges,
    ) {
        self.unreported = self.unreported.saturating_add(len);
        self.quiet = 0;
        if let Some(latest) = &mut self.latest {
            *latest = (end, now);
        }
        if end > self.seen {
            (self.seen, self.seen_at) = (end, now);
            self.horizon = self.horizon.max(end);
            // Enough came after what ends so far below.
            self.ripe = self.ripe.max(end.saturating_sub(self.reorder));
            if again {
                // A probe: what is below was sent at least a round trip before.
                self.ripe = self.ripe.max(end);
            }
        }
        if self.last.is_none() || self.unreported >= u64::from(self.bytes) {
            // The first packet's round trip has no queue of ours in it.
            self.by(now);
        } else if new || self.due > now.saturating_add(self.interval) {
            self.by(now.saturating_add(self.interval));
        }
        if ranges.prefix() < self.horizon {
            self.look_for_gaps(now, ranges);
        } else {
            self.ripens = None;
        }
    }

    fn look_for_gaps(&mut self, now: Time, ranges: &Ranges) {
        // Only the highest gaps are news: most of the time this is one step.
        let mut unripe = false;
        for end in ranges.gap_ends().take_while(|end| *end > self.told_gaps) {
            if end <= self.ripe {
                self.by(now);
                break;
            }
            unripe = true;
        }
        if !unripe {
            self.ripens = None;
        } else if self.ripens.is_none() {
            self.ripens = Some((now.saturating_add(self.reorder_time), self.horizon));
        }
    }

    /// The stream is so long, and all of it has been sent.
    pub(super) fn ends(&mut self, now: Time, length: u64) {
        self.horizon = self.horizon.max(length);
        self.ripe = self.horizon;
        self.ripens = None;
        self.soon(now);
    }

    /// A parity of what ends at `end` came: all of it was sent before.
    pub(super) fn parity(&mut self, now: Time, end: u64, ranges: &Ranges) {
        self.horizon = self.horizon.max(end);
        self.ripe = self.ripe.max(end);
        self.look_for_gaps(now, ranges);
    }

    /// So many bytes were computed.
    pub(super) fn recovered(&mut self, now: Time, bytes: u64) {
        self.quiet = 0;
        self.unreported += bytes;
        let wait =
            if self.unreported >= u64::from(self.bytes) { Span::ZERO } else { self.interval };
        self.by(now.saturating_add(wait));
    }

    /// The application made room.
    pub(super) fn room(&mut self, now: Time, limit: u64, room: u64, ranges: &Ranges) {
        let grown = limit.saturating_sub(self.told_limit);
        let left = self.told_limit.saturating_sub(ranges.prefix());
        if grown >= room / 4 || (grown > 0 && left < room / 8) {
            self.quiet = 0;
            self.by(now);
        }
    }

    pub(super) fn tick(&mut self, now: Time, ranges: &Ranges) {
        if let Some((at, edge)) = self.ripens
            && now >= at
        {
            self.ripe = self.ripe.max(edge);
            self.ripens = None;
            self.look_for_gaps(now, ranges);
        }
    }

    pub(super) fn poll(
        &mut self,
        now: Time,
        ranges: &Ranges,
        parities: &Parities,
        limit: u64,
        place: Place,
    ) -> Option<Status> {
        self.tick(now, ranges);
        if self.rest.is_none() && now < self.due {
            return None;
        }
        let skip = self.rest.take().unwrap_or(0);
        let who = 1 << place.port;
        let mut gaps = [Gap::default(); GAPS];
        let edge = self.ripe.min(limit);
        let hidden = parities.hidden(ranges);
        // What came last may have been forgotten: there, the gap ends nowhere.
        let (horizon, ripe) = (self.horizon, self.ripe);
        let clip =
            move |(from, to): (u64, u64)| (from, if to == horizon { to.min(ripe) } else { to });
        let gaps_here = ranges.gaps(horizon).map(clip).filter(|(from, to)| from < to);
        let open = gaps_here.flat_map(|gap| without(gap, &hidden));
        let mut ripe = open.filter(|gap| gap.1 <= self.ripe).skip(skip);
        let mut count = 0;
        for gap in &mut gaps {
            let Some((from, to)) = ripe.next().filter(|(from, _)| *from < edge) else { break };
            *gap = Gap {
                offset: from,
                len: (to.min(edge) - from).min(u64::from(u32::MAX)) as u32,
                who,
            };
            count += 1;
        }
        let more = count == GAPS && ripe.next().is_some_and(|(from, _)| from < edge);
        if more && skip + GAPS < PACKETS * GAPS {
            self.rest = Some(skip + GAPS);
        }
        self.told(now, limit, count > 0 || skip > 0);
        let (seen, seen_at) = self.latest.unwrap_or((self.seen, self.seen_at));
        Some(Status {
            rack: place.rack,
            who,
            have: ranges.prefix(),
            slowest: place.port,
            seen,
            held_us: (now.since(seen_at).0 / 1_000_000).min(u64::from(u32::MAX)) as u32,
            limit,
            gaps,
        })
    }

    fn told(&mut self, now: Time, limit: u64, gaps: bool) {
        self.told_gaps = self.told_gaps.max(self.ripe);
        self.told_limit = limit;
        self.unreported = 0;
        self.last = Some(now);
        let (first, most) =
            if gaps { (GAPS_FIRST, GAPS_MOST) } else { (IDLE_FIRST, self.idle_most) };
        let wait = Span(first.0 << self.quiet.min(12)).min(most).min(self.idle_most);
        self.quiet = self.quiet.saturating_add(1);
        self.due = now.saturating_add(wait);
    }
}

/// What is left of a gap without these ranges, which are sorted.
fn without(gap: (u64, u64), hidden: &[(u64, u64)]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let first = hidden.partition_point(|range| range.1 <= gap.0);
    let mut within = hidden[first..].iter().take_while(move |range| range.0 < gap.1);
    let mut from = Some(gap.0);
    core::iter::from_fn(move || {
        let at = from?;
        let next = within.next();
        from = next.map(|range| range.1);
        Some((at, next.map_or(gap.1, |range| range.0)))
    })
    .filter(|(from, to)| from < to)
}
