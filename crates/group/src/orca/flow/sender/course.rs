//! One course of packets: the one to everyone, or the one to a receiver that is alone.

use std::collections::VecDeque;

use rackweave_core::{Span, Time};

use super::super::FlowConfig;
use super::super::congestion::Congestion;
use super::cells::Cells;

/// Most departures that are remembered, for round trips.
const DEPARTURES: usize = 4096;

/// Most time and doublings of it in which a repetition counts as under way.
const HOLD_MOST: Span = Span::from_ms(500);
const STRAIN_MOST: u8 = 10;
/// So few lost repetitions of a round mean nothing.
const FEW: u32 = 4;

/// What is on one way.
#[derive(Clone, Debug)]
pub(super) struct Course {
    /// The next byte to send for the first time.
    pub(super) head: u64,
    pub(super) control: Congestion,
    pub(super) cells: Cells,
    /// Ends of packets, or of runs of packets that left at the same time.
    departures: VecDeque<(u64, Time)>,
    /// No round trip is measured below: packets were repeated (Karn's rule).
    repeated: u64,
    /// Repetitions under way: when they left, their bytes.
    repeats: VecDeque<(Time, u32)>,
    repeated_bytes: u64,
    /// Doublings of the time in which a repetition counts as under way: repetitions were lost, and no round trip has been
    /// measured since. What is repeated says nothing of round trips, so a queue that grows meanwhile is not seen; without
    /// this the same packets would fill it again and again (Karn's rule, its second half).
    strain: u8,
    /// Packets repeated, and reported lost once more, since the last look; the next look.
    round: (u32, u32),
    round_ends: Time,
    /// When data was last sent, or the receivers' reports last told of something new.
    pub(super) moved: Time,
    /// When anything was last sent to all who are on this course.
    pub(super) sent: Time,
    /// Since when nothing but probes has left, and no report told of anything new.
    pub(super) stalled: Option<Time>,
    /// Doublings of the time between probes.
    pub(super) probes: u8,
}

impl Course {
    pub(super) fn new(now: Time, at: u64, config: &FlowConfig) -> Self {
        Self {
            head: at,
            control: Congestion::new(now, at, config),
            cells: Cells::default(),
            departures: VecDeque::new(),
            repeated: 0,
            repeats: VecDeque::new(),
            repeated_bytes: 0,
            strain: 0,
            round: (0, 0),
            round_ends: now,
            moved: now,
            sent: now,
            stalled: None,
            probes: 0,
        }
    }

    /// New bytes up to `end` leave.
    pub(super) fn departs(&mut self, now: Time, end: u64) {
        self.head = end;
        self.moves(now);
        self.sent = now;
        match self.departures.back_mut() {
            Some(back) if back.1 == now => back.0 = end,
            _ => {
                if self.departures.len() >= DEPARTURES {
                    self.departures.pop_front();
                }
                self.departures.push_back((end, now));
            }
        }
    }

    /// Data leaves, or a report tells of something new.
    pub(super) const fn moves(&mut self, now: Time) {
        (self.moved, self.stalled, self.probes) = (now, None, 0);
    }

    /// After so long a report tells of what was sent. `reports`: how long reports wait on their way.
    pub(super) fn hold_off(&self, reports: Span) -> Span {
        let hold = self.control.timeout() + reports;
        Span(hold.0 << self.strain).min(HOLD_MOST.max(hold))
    }

    /// So many repetitions were lost.
    pub(super) const fn lost_again(&mut self, packets: u32) {
        self.round.1 = self.round.1.saturating_add(packets);
    }

    /// Most repetitions of the last rounds were lost.
    pub(super) const fn is_strained(&self) -> bool {
        self.strain > 0
    }

    /// Looks what became of the repetitions of the last round.
    fn look(&mut self, now: Time, hold: Span) {
        let (repeated, lost) = self.round;
        if now < self.round_ends {
            return;
        }
        if u64::from(lost) * 4 > u64::from(repeated) * 3 && lost > FEW {
            // Once may be chance.
            if self.strain > 0 {
                self.control.cut();
            }
            self.strain = (self.strain + 1).min(STRAIN_MOST);
        } else if lost <= repeated / 2 {
            self.strain = self.strain.saturating_sub(1);
        }
        self.round = (0, 0);
        self.round_ends = now.saturating_add(hold);
    }

    /// A round trip was measured.
    pub(super) fn sample(&mut self, rtt: Span) {
        self.control.sample(rtt);
        self.strain = 0;
    }

    /// Bytes up to `end` leave once more.
    pub(super) fn repeats(&mut self, now: Time, hold: Span, end: u64, len: u16) {
        self.look(now, hold);
        self.round.0 = self.round.0.saturating_add(1);
        self.repeated = self.repeated.max(end);
        self.repeats.push_back((now, u32::from(len)));
        self.repeated_bytes += u64::from(len);
    }

    /// Repeated bytes that may still be under way.
    pub(super) fn repeated_bytes(&mut self, now: Time, hold: Span) -> u64 {
        while let Some(&(left, len)) = self.repeats.front()
            && left.saturating_add(hold) <= now
        {
            self.repeats.pop_front();
            self.repeated_bytes -= u64::from(len);
        }
        self.repeated_bytes
    }

    /// When the oldest repetition under way will count as arrived.
    pub(super) fn repeats_until(&self, hold: Span) -> Option<Time> {
        self.repeats.front().map(|(left, _)| left.saturating_add(hold))
    }

    /// The round trip that a report tells of which was held so long after the packet that ended at `seen`.
    pub(super) fn round_trip(&self, now: Time, seen: u64, held_us: u32) -> Option<Span> {
        if seen <= self.repeated || seen > self.head {
            return None;
        }
        let at = self.departures.partition_point(|departure| departure.0 < seen);
        let &(end, left) = self.departures.get(at)?;
        let first = self.departures.front()?;
        // In a run that left together any end will do; before the first that is remembered nothing is known.
        if at == 0 && end != seen && first.0 != end {
            return None;
        }
        let span = now.since(left);
        let held = Span::from_us(u64::from(held_us));
        (span > held).then(|| span - held)
    }

    /// All have seen what is below.
    pub(super) fn arrived(&mut self, progress: u64) {
        while self.departures.len() > 1 && self.departures[1].0 <= progress {
            self.departures.pop_front();
        }
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 4] {
        let (ring, queue) = self.cells.sizes();
        [ring, queue, self.departures.len(), self.repeats.len()]
    }
}
