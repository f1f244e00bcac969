//! The chunks that a worker has in flight: one for each slot of the pool.

use std::collections::VecDeque;

use rackweave_core::{RttEstimator, Span, Time};

use super::layout::Lead;
use super::worker::FixedTimer;

/// The backoff stops here: a worker that waits for others still asks twice a second.
const LONGEST_RTO: Span = Span::from_ms(500);

/// How long the timeout grows where answers show that it was too short: a host that gets a hundredth of a processor takes seconds.
const LONGEST_BACKOFF: Span = Span::from_secs(8);

/// The most chunks that may be sent a third time or more without an answer in between. Without a bound, workers whose aggregator handles fewer
/// packets than they repeat keep its socket full of copies, and its master never hears them: a congestion collapse (RFC 8085, section 3.1).
/// One for each answer keeps the number of packets on the way as it is (packet conservation, RFC 6675, section 2).
const MOST_PERMITS: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// Not sent yet.
    Due,
    InFlight,
    Lost,
    /// The slot has no chunk any longer.
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    chunk: u64,
    status: Status,
    at: Time,
    /// How often it has timed out.
    tries: u8,
    is_repeated: bool,
    /// Whether the chunk before it in this slot was sent more than once.
    was_repeated: bool,
    /// The aggregator has it and waits for others, so that it is not lost if later ones are complete.
    is_held: bool,
}

/// The slots of an attempt.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    slots: Vec<Slot>,
    /// The number of chunks of all steps.
    end: u64,
    /// Slots whose chunk has not been sent.
    due: VecDeque<u16>,
    /// Slots whose chunk is of a step that has not been offered.
    later: Vec<u16>,
    /// Slots whose chunk waits for the exponent of its block, and the chunks that do.
    waiting: Vec<u16>,
    leads: VecDeque<Lead>,
    lost: VecDeque<u16>,
    in_flight: u32,
    /// Chunks below have been offered.
    offered: u64,
    /// When the latest of the chunks that are complete was sent: those sent earlier were overtaken (RFC 8985, RACK).
    newest: Time,
    rtt: RttEstimator,
    min_rto: Span,
    /// The longest timeout, however long sums have taken: answers are to come several times within a worker's patience.
    max_rto: Span,
    /// How often the timeout has been doubled since the last measurement, and when. If every chunk is repeated before its sum is
    /// there, none gives a measurement (Karn's rule). Then sums come twice, which shows that the timeout was too short.
    backoff: u8,
    backed_off: Time,
    /// How many chunks may be sent for the third time or more. If it is 0, another one may at this time.
    permits: u32,
    permit_at: Time,
    fixed: Option<Fixed>,
}

/// The state of a [`FixedTimer`].
#[derive(Clone, Copy, Debug)]
struct Fixed {
    timer: FixedTimer,
    /// The time at present, the number of timeouts since it was doubled, and that after which it is doubled.
    timeout: Span,
    timeouts: u32,
    threshold: u32,
}

impl Flight {
    /// Slots that begin at a chunk; those below `offered` can be sent, in the order of `leads`.
    pub(super) fn new(
        pool: u16,
        first: u64,
        (offered, leads): (u64, VecDeque<Lead>),
        end: u64,
        min_rto: Span,
    ) -> Self {
        let size = u64::from(pool);
        let slot = |index: u64| {
            // The first chunk from `first` on that is in this slot.
            let chunk = first.saturating_add((index + size - first % size) % size);
            let (at, tries) = (Time::ZERO, 0);
            let status = Status::Done;
            let (is_repeated, was_repeated, is_held) = (false, false, false);
            Slot { chunk, status, at, tries, is_repeated, was_repeated, is_held }
        };
        let mut flight = Self {
            slots: (0..size).map(slot).collect(),
            end,
            due: VecDeque::new(),
            later: Vec::new(),
            waiting: Vec::new(),
            leads,
            lost: VecDeque::new(),
            in_flight: 0,
            offered,
            newest: Time::ZERO,
            rtt: RttEstimator::new(),
            min_rto,
            max_rto: Span::MAX,
            backoff: 0,
            backed_off: Time::ZERO,
            permits: 1,
            permit_at: Time::ZERO,
            fixed: None,
        };
        for chunk in first..first.saturating_add(size) {
            flight.enter((chunk % size) as u16);
        }
        flight
    }

    /// The same with a timer that does not follow the round-trip time.
    pub(super) fn with_fixed_timer(mut self, timer: Option<FixedTimer>) -> Self {
        self.fixed = timer.map(|timer| {
            let FixedTimer { timeout, threshold } = timer;
            Fixed { timer, timeout, timeouts: 0, threshold }
        });
        self
    }

    /// The same with a timeout that is an eighth of a patience at most: a measured time also has waits for other workers in it.
    pub(super) fn with_patience(mut self, patience: Span) -> Self {
        self.max_rto = (patience / 8).max(self.min_rto);
        self
    }

    /// Makes the chunk of a slot the next one to be sent, as soon as its step is offered.
    fn enter(&mut self, index: u16) {
        let slot = &mut self.slots[usize::from(index)];
        if slot.chunk >= self.end {
            slot.status = Status::Done;
            return;
        }
        (slot.status, slot.tries) = (Status::Due, 0);
        (slot.is_repeated, slot.is_held) = (false, false);
        if slot.chunk < self.offered {
            self.make_due(index);
        } else {
            self.later.push(index);
        }
    }

    /// The chunk for whose sum a chunk waits, unless it is there.
    fn awaited(&self, chunk: u64) -> Option<u64> {
        let lead = self.leads.iter().find(|lead| lead.chunks.contains(&chunk))?;
        let before = chunk - lead.by;
        let slot = self.slots.get(before.checked_rem(self.slots.len() as u64)? as usize)?;
        (slot.chunk <= before).then_some(before)
    }

    /// The chunk of a slot, whose step is offered, is sent when nothing is missing for it.
    fn make_due(&mut self, index: u16) {
        if self.awaited(self.slots[usize::from(index)].chunk).is_some() {
            self.waiting.push(index);
        } else {
            self.due.push_back(index);
        }
    }

    /// Chunks below can be sent from now on. Those of `lead` wait for others.
    pub(super) fn offer(&mut self, offered: u64, lead: Option<Lead>) {
        if let Some(lead) = lead {
            let first = self.first();
            while self.leads.front().is_some_and(|lead| lead.chunks.end <= first) {
                self.leads.pop_front();
            }
            self.leads.push_back(lead);
        }
        self.offered = self.offered.max(offered);
        if let Some(fixed) = &mut self.fixed {
            fixed.timeout = fixed.timer.timeout;
        }
        let later = core::mem::take(&mut self.later);
        let (now, later) = later
            .into_iter()
            .partition(|index| self.slots[usize::from(*index)].chunk < self.offered);
        self.later = later;
        let mut now: Vec<u16> = now;
        now.sort_by_key(|index| self.slots[usize::from(*index)].chunk);
        now.into_iter().for_each(|index| self.make_due(index));
    }

    /// Returns the first chunk of all slots.
    pub(super) fn first(&self) -> u64 {
        self.slots.iter().map(|slot| slot.chunk).min().unwrap_or(self.end)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight == 0 && self.lost.is_empty()
    }

    /// Takes a chunk that is sent now; whether it is sent again.
    pub(super) fn next(&mut self, now: Time) -> Option<(u64, bool)> {
        while let Some(index) = self.lost.pop_front() {
            let slot = &mut self.slots[usize::from(index)];
            if slot.status == Status::Lost {
                (slot.status, slot.at, slot.is_repeated) = (Status::InFlight, now, true);
                self.in_flight += 1;
                return Some((slot.chunk, true));
            }
        }
        let slot = &mut self.slots[usize::from(self.due.pop_front()?)];
        (slot.status, slot.at) = (Status::InFlight, now);
        self.in_flight += 1;
        Some((slot.chunk, false))
    }

    fn sent(&mut self, chunk: u64) -> Option<(u16, &mut Slot)> {
        let index = chunk.checked_rem(self.slots.len() as u64)? as u16;
        let slot = self.slots.get_mut(usize::from(index))?;
        let is_sent = matches!(slot.status, Status::InFlight | Status::Lost);
        (slot.chunk == chunk && is_sent).then_some((index, slot))
    }

    /// Whether a chunk has been sent and its sum has not come.
    pub(super) fn is_outstanding(&mut self, chunk: u64) -> bool {
        self.sent(chunk).is_some()
    }

    /// The aggregator has answered.
    fn permit(&mut self) {
        self.permits = (self.permits + 1).min(MOST_PERMITS);
    }

    /// The sum of an outstanding chunk has come: its slot goes on.
    pub(super) fn complete(&mut self, now: Time, chunk: u64) {
        self.permit();
        let Some((index, slot)) = self.sent(chunk) else { return };
        let Slot { at, status, is_repeated, .. } = *slot;
        let in_flight = u32::from(status == Status::InFlight);
        // A chunk that was overtaken waited for somebody's repetition, which is no measure of the path.
        if !is_repeated && at >= self.newest {
            self.newest = at;
            self.rtt.sample(now.since(at));
            self.backoff = 0;
        }
        self.in_flight -= in_flight;
        let size = self.slots.len() as u64;
        let slot = &mut self.slots[usize::from(index)];
        (slot.chunk, slot.was_repeated) = (chunk.saturating_add(size), is_repeated);
        self.enter(index);
        for index in core::mem::take(&mut self.waiting) {
            self.make_due(index);
        }
    }

    /// The sum of a chunk has come a second time. If it was sent again, that was in vain; otherwise the network has repeated the sum.
    pub(super) fn come_again(&mut self, now: Time, chunk: u64) {
        self.permit();
        let size = self.slots.len() as u64;
        let Some(index) = chunk.checked_rem(size) else { return };
        let slot = &self.slots[index as usize];
        // Once for all chunks that were sent with the same timeout.
        let is_since =
            slot.was_repeated && slot.status != Status::Due && slot.at >= self.backed_off;
        if chunk.checked_add(size) == Some(slot.chunk) && is_since {
            (self.backoff, self.backed_off) = (self.backoff.saturating_add(1).min(16), now);
        }
    }

    /// The aggregator has an outstanding chunk, and waits for others.
    pub(super) fn hold(&mut self, chunk: u64) {
        self.permit();
        if let Some((_, slot)) = self.sent(chunk) {
            slot.is_held = true;
        }
    }

    /// How long a chunk may be overtaken before it counts as lost: the timeout without its lower bound, and at least a quarter of the
    /// round-trip time more than that (as RFC 8985), because the chunks of other workers arrive in other orders.
    fn loss_delay(&self) -> Option<Span> {
        if self.fixed.is_some() {
            return None;
        }
        let (rto, smoothed) = (self.rtt.rto()?, self.rtt.smoothed()?);
        Some(rto.max(Span::from_ticks(smoothed.ticks() + smoothed.ticks() / 4)))
    }

    fn rto(&self, tries: u8) -> Span {
        if let Some(fixed) = &self.fixed {
            return fixed.timeout;
        }
        let measured = self.rtt.rto().unwrap_or_default().max(self.min_rto);
        let rto = measured.saturating_mul(1 << self.backoff).min(LONGEST_BACKOFF.max(measured));
        rto.saturating_mul(1 << tries.min(16)).min(LONGEST_RTO.max(rto)).min(self.max_rto)
    }

    /// Whether the chunk of a slot, which counts as lost at this time, needs a permit to be sent again. One that was overtaken does not: the sums
    /// of others are its permit.
    fn needs_permit(&self, slot: &Slot, deadline: Time) -> bool {
        let is_late = deadline == slot.at.saturating_add(self.rto(slot.tries));
        is_late && slot.tries > 0 && self.fixed.is_none()
    }

    fn deadline(&self, slot: &Slot, loss_delay: Option<Span>) -> Time {
        let late = slot.at.saturating_add(self.rto(slot.tries));
        match loss_delay {
            Some(delay) if slot.at < self.newest && !slot.is_held => {
                late.min(slot.at.saturating_add(delay))
            }
            _ => late,
        }
    }

    /// Marks as lost what is overtaken or late. Returns the number of timeouts among them.
    pub(super) fn find_lost(&mut self, now: Time) -> u64 {
        if self.in_flight == 0 {
            return 0;
        }
        let delay = self.loss_delay();
        let (mut late, mut waiting) = (0, Vec::new());
        for index in 0..self.slots.len() {
            let slot = self.slots[index];
            let deadline = self.deadline(&slot, delay);
            if slot.status != Status::InFlight || deadline > now {
                continue;
            }
            let is_late = now >= slot.at.saturating_add(self.rto(slot.tries));
            if self.needs_permit(&slot, deadline) {
                waiting.push((slot.at, index));
                continue;
            }
            late += u64::from(is_late);
            if let Some(fixed) = &mut self.fixed {
                fixed.timeouts += 1;
                if fixed.timeouts >= fixed.threshold {
                    fixed.timeouts = 0;
                    fixed.threshold = fixed.threshold.saturating_add(fixed.timer.threshold);
                    fixed.timeout = fixed.timeout.saturating_mul(2);
                }
            }
            self.lose(index, is_late);
        }
        if !waiting.is_empty() && self.permits == 0 && now >= self.permit_at {
            self.permits = 1;
        }
        // The first sent is first.
        waiting.sort_unstable();
        for (_, index) in waiting.into_iter().take(self.permits as usize) {
            self.permits -= 1;
            self.permit_at = now.saturating_add(self.rto(self.slots[index].tries));
            late += 1;
            self.lose(index, true);
        }
        late
    }

    fn lose(&mut self, index: usize, is_late: bool) {
        let slot = &mut self.slots[index];
        slot.tries = slot.tries.saturating_add(u8::from(is_late));
        slot.status = Status::Lost;
        self.in_flight -= 1;
        self.lost.push_back(index as u16);
    }

    /// Returns when [`Flight::find_lost`] is to be called.
    pub(super) fn timer(&self) -> Option<Time> {
        if self.in_flight == 0 {
            return None;
        }
        let delay = self.loss_delay();
        let permit_at = if self.permits == 0 { self.permit_at } else { Time::ZERO };
        let due = |slot: &Slot| {
            let deadline = self.deadline(slot, delay);
            if self.needs_permit(slot, deadline) { deadline.max(permit_at) } else { deadline }
        };
        let in_flight = self.slots.iter().filter(|slot| slot.status == Status::InFlight);
        in_flight.map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_RTO: Span = Span::from_ticks(1_000);

    #[test]
    fn a_slot_goes_on_when_its_sum_has_come_and_its_step_is_offered() {
        let mut flight = Flight::new(3, 4, (8, VecDeque::new()), 10, MIN_RTO);
        let sent: Vec<_> = std::iter::from_fn(|| flight.next(Time::from_ticks(1))).collect();
        assert_eq!(sent, [(4, false), (5, false), (6, false)]);
        flight.complete(Time::from_ticks(2), 5);
        assert!(!flight.is_outstanding(5) && flight.is_outstanding(4));
        assert_eq!(flight.next(Time::from_ticks(2)), None, "chunk 8 is not offered");
        flight.complete(Time::from_ticks(3), 4);
        assert_eq!(flight.next(Time::from_ticks(3)), Some((7, false)));
        flight.offer(10, None);
        assert_eq!(flight.next(Time::from_ticks(4)), Some((8, false)));
        for chunk in [6, 7, 8, 9] {
            let _ = flight.next(Time::from_ticks(5));
            flight.complete(Time::from_ticks(6), chunk);
        }
        assert!(flight.is_empty() && flight.next(Time::from_ticks(7)).is_none());
        assert_eq!(flight.timer(), None);
    }

    #[test]
    fn a_chunk_waits_for_the_exponent_of_its_block() {
        let mut flight = Flight::new(4, 0, (0, VecDeque::new()), u64::MAX, MIN_RTO);
        assert_eq!(flight.next(Time::from_ticks(1)), None);
        // Two exponents, and two blocks: all four have room at once.
        flight.offer(4, Some(Lead { chunks: 2..4, by: 2 }));
        assert_eq!(flight_next(&mut flight, 1), [0, 1]);
        flight.complete(Time::from_ticks(2), 1);
        assert_eq!(flight_next(&mut flight, 2), [3]);
        flight.complete(Time::from_ticks(3), 0);
        assert_eq!(flight_next(&mut flight, 3), [2]);
        // An attempt that begins where the exponents are there.
        let leads = VecDeque::from([Lead { chunks: 2..4, by: 2 }]);
        let mut flight = Flight::new(4, 1, (4, leads), u64::MAX, MIN_RTO);
        assert_eq!(flight_next(&mut flight, 1), [1, 2]);
        flight.complete(Time::from_ticks(2), 1);
        assert_eq!(flight_next(&mut flight, 2), [3]);
    }

    fn flight_next(flight: &mut Flight, at: u64) -> Vec<u64> {
        std::iter::from_fn(|| flight.next(Time::from_ticks(at))).map(|(chunk, _)| chunk).collect()
    }

    #[test]
    fn what_is_overtaken_or_late_is_sent_again_but_not_what_is_held() {
        let mut flight = Flight::new(4, 0, (100, VecDeque::new()), 100, MIN_RTO);
        for at in 0..3 {
            let _ = flight.next(Time::from_ticks(at * 10));
        }
        assert_eq!(flight.timer(), Some(Time::from_ticks(1_000)));
        flight.hold(0);
        flight.complete(Time::from_ticks(60), 2);
        // A sample of 40: overtaken by 120 from the time of sending.
        assert_eq!(flight.timer(), Some(Time::from_ticks(130)));
        assert_eq!(flight.find_lost(Time::from_ticks(130)), 0);
        assert_eq!(flight.next(Time::from_ticks(131)), Some((1, true)));
        assert_eq!(flight.find_lost(Time::from_ticks(1_000)), 1);
        assert_eq!(flight.next(Time::from_ticks(1_001)), Some((0, true)));
        // It is not asked for twice as often.
        let _ = flight.next(Time::from_ticks(1_001));
        assert_eq!(flight.find_lost(Time::from_ticks(2_132)), 2);
    }

    #[test]
    fn a_fixed_timer_ignores_the_path_and_doubles_after_enough_timeouts() {
        let timer = FixedTimer { timeout: Span::from_ticks(1_000), threshold: 2 };
        let mut flight = Flight::new(3, 0, (100, VecDeque::new()), 200, Span::from_ticks(10))
            .with_fixed_timer(Some(timer));
        while flight.next(Time::from_ticks(0)).is_some() {}
        flight.complete(Time::from_ticks(40), 2);
        assert_eq!(flight.find_lost(Time::from_ticks(999)), 0, "it is not overtaken");
        assert_eq!(flight.find_lost(Time::from_ticks(1_000)), 2);
        assert_eq!(flight.next(Time::from_ticks(1_000)), Some((0, true)));
        assert_eq!(flight.timer(), Some(Time::from_ticks(3_000)), "two timeouts: doubled");
        // The next step begins with the first time again; it then takes four timeouts to double it.
        flight.offer(200, None);
        assert_eq!(flight.timer(), Some(Time::from_ticks(2_000)));
        assert_eq!(flight.find_lost(Time::from_ticks(2_000)), 1);
        assert_eq!(flight.next(Time::from_ticks(2_000)), Some((1, true)));
        assert_eq!(flight.timer(), Some(Time::from_ticks(3_000)));
    }

    #[test]
    fn waits_for_others_do_not_make_a_timeout_as_long_as_the_patience() {
        let mut flight = Flight::new(1, 0, (100, VecDeque::new()), 100, MIN_RTO)
            .with_patience(Span::from_ticks(80_000));
        let _ = flight.next(Time::ZERO);
        flight.complete(Time::from_ticks(9_000), 0);
        let _ = flight.next(Time::from_ticks(9_000));
        assert_eq!(flight.timer(), Some(Time::from_ticks(19_000)), "three times 9,000 without it");
    }

    #[test]
    fn a_timeout_that_is_shorter_than_the_path_grows_until_it_is_not() {
        let mut flight = Flight::new(1, 0, (100, VecDeque::new()), 100, MIN_RTO);
        let _ = flight.next(Time::from_ticks(0));
        assert_eq!(flight.find_lost(Time::from_ticks(1_000)), 1);
        let _ = flight.next(Time::from_ticks(1_000));
        flight.complete(Time::from_ticks(1_500), 0);
        let _ = flight.next(Time::from_ticks(1_500));
        assert_eq!(flight.timer(), Some(Time::from_ticks(2_500)));
        // The answer to the repetition.
        flight.come_again(Time::from_ticks(2_400), 0);
        assert_eq!(flight.timer(), Some(Time::from_ticks(3_500)));
        flight.come_again(Time::from_ticks(2_400), 0);
        assert_eq!(flight.timer(), Some(Time::from_ticks(3_500)), "once for what was sent before");
        flight.complete(Time::from_ticks(3_000), 1);
        let _ = flight.next(Time::from_ticks(3_000));
        assert_eq!(
            flight.timer(),
            Some(Time::from_ticks(3_000 + 4_500)),
            "measured: 1,500 and twice as much"
        );
        // Chunk 1 was sent once, so that the network has repeated its sum.
        flight.come_again(Time::from_ticks(3_100), 1);
        assert_eq!(flight.timer(), Some(Time::from_ticks(3_000 + 4_500)));
    }
}
