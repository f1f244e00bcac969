//! The event queue: a wheel of buckets threaded through the components.
//!
//! Each component (a link, a source of messages) has at most one pending event, so that a bucket is a list
//! through an array indexed by component: a push allocates nothing and touches two or three cache lines. Only
//! the current bucket is sorted. Timers are few and far in the future, and may be pushed again with an earlier
//! time. They wait in a heap and join the bucket when its time comes.
//!
//! Ties are broken by a permutation of the components that depends on the time. So the order of events does not
//! depend on the order of pushes, and no component always comes first. Flows whose packets keep arriving at the
//! same time, as those of equal hosts with equal links do, would otherwise lock each other out of a full
//! queue permanently (the phase effects of Floyd and Jacobson, 1991).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rackweave_core::time::PS_PER_TICK;
use rackweave_core::{Span, Time};

/// An event's subject: a number that the engine assigns.
pub type Component = u32;

const NONE: u32 = u32::MAX;

/// Number of components from which on their state does not fit the processor's caches.
pub const LARGE: usize = 8192;

/// A 32-bit hash of a time, in picoseconds, so that ties do not depend on the length of a tick.
#[inline]
const fn scramble(at: Time) -> u32 {
    (at.ticks().wrapping_mul(PS_PER_TICK).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// The sort key of an event: its time, then a permutation of the components that depends on the time.
#[inline]
const fn key(at: Time, component: Component) -> u128 {
    (at.ticks() as u128) << 32 | (component ^ scramble(at)) as u128
}

/// The event with this sort key.
#[inline]
const fn unkey(key: u128) -> (Time, Component) {
    let at = Time::from_ticks((key >> 32) as u64);
    (at, key as u32 ^ scramble(at))
}

/// Pending events, earliest first.
#[derive(Debug)]
pub struct EventQueue {
    /// log2 of a bucket's width in ticks.
    shift: u32,
    /// Number of buckets minus one. The number of buckets is a power of two.
    mask: u64,
    /// First component of each bucket.
    heads: Vec<u32>,
    /// One bit per bucket that has components.
    occupied: Vec<u64>,
    /// One bit per word of `occupied` that is not zero.
    summary: Vec<u64>,
    /// For each component, the time of its event and the next component in its bucket.
    pending: Vec<(Time, Component)>,
    /// The absolute number of the current bucket.
    bucket: u64,
    /// The sort keys of the events of the current bucket, latest first.
    current: Vec<u128>,
    far: BinaryHeap<Reverse<(Time, Component)>>,
    len: usize,
    /// Whether the queue has moved on to a new bucket since the last read-ahead.
    turned: bool,
}

impl EventQueue {
    /// A queue for components `0..components`, whose events are mostly within `horizon`.
    #[must_use]
    pub fn new(components: usize, horizon: Span) -> Self {
        // In small fabrics a bucket has at most about one event when every component has one within the
        // horizon. In large ones it has sixteen, since the engine reads ahead within a bucket.
        let buckets = if components < LARGE { components * 2 } else { components / 16 };
        let buckets = buckets.next_power_of_two().clamp(1 << 12, 1 << 20);
        let width = (horizon.ticks() / buckets as u64).max(1).next_power_of_two();
        Self {
            shift: width.trailing_zeros(),
            mask: buckets as u64 - 1,
            heads: vec![NONE; buckets],
            occupied: vec![0; buckets / 64],
            summary: vec![0; (buckets / 64).div_ceil(64)],
            pending: vec![(Time::ZERO, NONE); components],
            bucket: 0,
            current: Vec::new(),
            far: BinaryHeap::new(),
            len: 0,
            turned: false,
        }
    }

    /// Number of pending events, timers included.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether no event is pending.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The absolute number of a time's bucket.
    #[inline]
    const fn bucket_of(&self, at: Time) -> u64 {
        at.ticks().wrapping_shr(self.shift)
    }

    /// Adds an event of a component that has none pending. A time before that of the last popped event is
    /// assigned to the current bucket, so that the event is next.
    #[inline]
    pub fn push(&mut self, at: Time, component: Component) {
        let bucket = self.bucket_of(at);
        let ahead = bucket.wrapping_sub(self.bucket);
        if ahead.wrapping_sub(1) >= self.mask {
            return self.push_timer(at, component);
        }
        self.len += 1;
        let slot = (bucket & self.mask) as usize;
        self.pending[component as usize] = (at, self.heads[slot]);
        self.heads[slot] = component;
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.summary[slot / 4096] |= 1 << (slot / 64 % 64);
    }

    /// Adds an event of a component that may have others pending.
    #[inline(never)]
    pub fn push_timer(&mut self, at: Time, component: Component) {
        self.len += 1;
        if self.bucket_of(at) <= self.bucket {
            self.insert_current(key(at, component));
        } else {
            self.far.push(Reverse((at, component)));
        }
    }

    /// Removes the earliest event and returns it.
    #[inline]
    pub fn pop(&mut self) -> Option<(Time, Component)> {
        self.pop_until(Time::MAX)
    }

    /// The time of the earliest event. The queue does not advance, so that an earlier event may still be
    /// pushed.
    #[must_use]
    pub fn next_at(&self) -> Option<Time> {
        if let Some(next) = self.current.last() {
            return Some(unkey(*next).0);
        }
        let far = self.far.peek().map(|Reverse((at, _))| *at);
        let near = self.next_occupied().map(|bucket| {
            let mut component = self.heads[(bucket & self.mask) as usize];
            let mut first = Time::MAX;
            while component != NONE {
                let (at, next) = self.pending[component as usize];
                first = first.min(at);
                component = next;
            }
            first
        });
        match (near, far) {
            (Some(near), Some(far)) => Some(near.min(far)),
            (near, far) => near.or(far),
        }
    }

    /// Removes and returns the earliest event if it is not later than `until`. Otherwise the queue does not
    /// advance beyond the bucket of `until`.
    #[inline]
    pub fn pop_until(&mut self, until: Time) -> Option<(Time, Component)> {
        if self.current.is_empty()
            && let Some(only) = self.advance(until)
        {
            return Some(only);
        }
        let (at, component) = unkey(*self.current.last()?);
        if at > until {
            return None;
        }
        self.current.pop();
        self.len -= 1;
        Some((at, component))
    }

    /// The events after the popped one, if the popped one was the first of several in its bucket.
    #[inline]
    pub fn read_ahead(&mut self) -> Option<impl Iterator<Item = Component> + Clone + '_> {
        let turned = std::mem::replace(&mut self.turned, false);
        turned.then(|| self.current.iter().rev().map(|key| unkey(*key).1))
    }

    #[inline]
    fn insert_current(&mut self, key: u128) {
        // It is nearly always among the next few events, which are at the end.
        let mut at = self.current.len();
        while at > 0 && self.current[at - 1] < key {
            at -= 1;
        }
        self.current.insert(at, key);
    }

    /// Empties a slot of the wheel and returns its first component.
    #[inline]
    fn unlink(&mut self, slot: usize) -> Component {
        let word = &mut self.occupied[slot / 64];
        *word &= !(1 << (slot % 64));
        if *word == 0 {
            self.summary[slot / 4096] &= !(1 << (slot / 64 % 64));
        }
        std::mem::replace(&mut self.heads[slot], NONE)
    }

    /// Advances to the next bucket that has events, if it is not after that of `until`. An event that has the bucket
    /// for itself, and is due by `until`, is removed and returned.
    #[inline]
    fn advance(&mut self, until: Time) -> Option<(Time, Component)> {
        let near = self.next_occupied();
        let far = self.far.peek().map(|Reverse((at, _))| self.bucket_of(*at));
        let bucket = match (near, far) {
            (Some(near), Some(far)) => near.min(far),
            (near, far) => near.or(far)?,
        };
        if bucket > self.bucket_of(until) {
            return None;
        }
        self.bucket = bucket;
        if near == Some(bucket) {
            let mut component = self.unlink((bucket & self.mask) as usize);
            let (at, next) = self.pending[component as usize];
            if next == NONE && far != Some(bucket) && at <= until {
                self.len -= 1;
                return Some((at, component));
            }
            while component != NONE {
                let (at, next) = self.pending[component as usize];
                self.current.push(key(at, component));
                component = next;
            }
        }
        if far == Some(bucket) {
            self.take_far();
        }
        if self.current.len() > 1 {
            self.current.sort_unstable_by(|a, b| b.cmp(a));
            self.turned = true;
        }
        None
    }

    /// Moves the timers of the current bucket there.
    fn take_far(&mut self) {
        while let Some(&Reverse((at, component))) = self.far.peek()
            && self.bucket_of(at) <= self.bucket
        {
            self.far.pop();
            self.current.push(key(at, component));
        }
    }

    /// The first bucket after the current one that has components.
    #[inline]
    fn next_occupied(&self) -> Option<u64> {
        let from = self.bucket + 1;
        let slot = (from & self.mask) as usize;
        let bits = self.occupied[slot / 64] >> (slot % 64);
        if bits != 0 {
            return Some(from + u64::from(bits.trailing_zeros()));
        }
        // By summary words, 4096 buckets at a time, around the wheel; at the end the words up to this one.
        let mut group = slot / 4096;
        let mut words = self.summary[group] & !1 << (slot / 64 % 64);
        for _ in 0..=self.summary.len() {
            if words != 0 {
                let word = group * 64 + words.trailing_zeros() as usize;
                let slot = word * 64 + self.occupied[word].trailing_zeros() as usize;
                // Slots behind the current one belong to the next turn of the wheel.
                return Some(self.bucket + ((slot as u64).wrapping_sub(self.bucket) & self.mask));
            }
            group = if group + 1 < self.summary.len() { group + 1 } else { 0 };
            words = self.summary[group];
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rng;

    use super::*;

    /// The queue's order; the last number is the component itself.
    const fn order(at: u64, component: u32) -> (u64, u32, u32) {
        (at, component ^ scramble(Time::from_ticks(at)), component)
    }

    /// Random pushes and pops against a sorted reference, over several scales of delay.
    #[test]
    fn agrees_with_a_sorted_reference() {
        for (case, horizon) in [1_000, 50_000, 5_000_000, 1 << 40].into_iter().enumerate() {
            let mut rng = Rng::stream(3, 0, case as u64, "events");
            let components = 700;
            let mut queue = EventQueue::new(components as usize, Span::from_ticks(horizon));
            let mut reference = std::collections::BTreeSet::new();
            let mut pending = vec![false; components as usize];
            let mut now = 0;
            for _ in 0..200_000 {
                if rng.below(100) < 52 {
                    let component = rng.below(components) as u32;
                    let delay = match rng.below(10) {
                        0 => 0,
                        1 => rng.below(horizon * 3),
                        2 => rng.below(horizon * 100),
                        _ => rng.below(horizon),
                    };
                    if component.is_multiple_of(7) {
                        if reference.insert(order(now + delay, component)) {
                            queue.push_timer(Time::from_ticks(now + delay), component);
                        }
                    } else if !pending[component as usize] {
                        pending[component as usize] = true;
                        reference.insert(order(now + delay, component));
                        queue.push(Time::from_ticks(now + delay), component);
                    }
                } else {
                    let expected = reference.pop_first().map(|(at, _, component)| (at, component));
                    let next = expected.map(|(at, _)| Time::from_ticks(at));
                    assert_eq!(queue.next_at(), next);
                    if let Some(at) = next.map(Time::ticks).filter(|at| *at > 0) {
                        assert_eq!(queue.pop_until(Time::from_ticks(at - 1)), None);
                    }
                    let popped = queue.pop().map(|(at, component)| (at.ticks(), component));
                    assert_eq!(popped, expected);
                    if let Some((at, component)) = popped {
                        now = at;
                        pending[component as usize] = false;
                    }
                }
                assert_eq!(queue.len(), reference.len());
            }
            while let Some((at, _, component)) = reference.pop_first() {
                assert_eq!(queue.pop(), Some((Time::from_ticks(at), component)));
            }
            assert!(queue.pop().is_none() && queue.is_empty());
        }
    }
}
