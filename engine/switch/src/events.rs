//! The event queue: a wheel of buckets, each a list of events. Only the current bucket is sorted.
//!
//! Each component (a link, a source of messages) has at most one pending event. In small fabrics a bucket is a list
//! through an array indexed by component, and has at most about one event: a push allocates nothing and touches two or
//! three cache lines, which the cache holds. In large ones each step through such a list would be a cache miss that
//! waits for the one before. There a bucket is a list of chunks of 64 bytes with seven events each, so that it takes a few
//! misses, which can be prefetched. Freed chunks are used again, the last one first.
//!
//! Timers are few and far in the future, and may be pushed again with an earlier time. They wait in a heap and join the
//! bucket when its time comes.
//!
//! Ties are broken by a permutation of the components that depends on the time. So the order of events does not
//! depend on the order of pushes, and no component always comes first. Flows whose packets keep arriving at the
//! same time, as those of equal hosts with equal links do, would otherwise lock each other out of a full
//! queue permanently (the phase effects of Floyd and Jacobson, 1991).

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use rackweave_core::time::PS_PER_TICK;
use rackweave_core::{Span, Time, prefetch};

/// An event's subject: a number that the engine assigns.
pub type Component = u32;

const NONE: u32 = u32::MAX;

/// Number of components from which on their state does not fit the processor's caches.
pub const LARGE: usize = 8192;

/// log2 of the largest width of a bucket in ticks: times within a bucket are stored in 32 bits.
const MAX_SHIFT: u32 = 32;

/// A 32-bit hash of a time, in picoseconds, so that ties do not depend on the length of a tick.
#[inline]
const fn scramble(at: Time) -> u32 {
    (at.ticks().wrapping_mul(PS_PER_TICK).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// An event of a known bucket: its ticks since the bucket's start, above its component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    #[inline]
    const fn since_start(self) -> u64 {
        self.0 >> 32
    }

    #[inline]
    const fn component(self) -> Component {
        self.0 as u32
    }
}

/// Number of events in a chunk.
const ENTRIES: usize = 7;

/// Events of one bucket, in a cache line of their own.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Chunk {
    /// The next chunk of the bucket, or of the free list.
    next: u32,
    /// Number of events in this chunk.
    len: u32,
    entries: [Entry; ENTRIES],
}

/// The chunks of all buckets.
#[derive(Debug)]
struct Chunks {
    all: Vec<Chunk>,
    /// The chunk that was freed last.
    free: u32,
}

impl Chunks {
    /// Adds an event to the chunks of a bucket, whose first is `head`; returns the chunk that is first then.
    #[inline(never)]
    fn push(&mut self, head: u32, entry: Entry) -> u32 {
        if let Some(chunk) = self.all.get_mut(head as usize)
            && let Some(room) = chunk.entries.get_mut(chunk.len as usize)
        {
            *room = entry;
            chunk.len += 1;
            return head;
        }
        let number = self.free;
        if let Some(chunk) = self.all.get_mut(number as usize) {
            self.free = chunk.next;
            (chunk.next, chunk.len, chunk.entries[0]) = (head, 1, entry);
            return number;
        }
        let mut entries = [Entry::default(); ENTRIES];
        entries[0] = entry;
        let number = u32::try_from(self.all.len()).ok().filter(|number| *number != NONE);
        self.all.push(Chunk { next: head, len: 1, entries });
        number.expect("fewer than 2^32 chunks of events")
    }

    /// Frees a chunk and returns the next one of its bucket.
    #[inline]
    fn remove(&mut self, number: u32) -> u32 {
        let chunk = &mut self.all[number as usize];
        let next = std::mem::replace(&mut chunk.next, self.free);
        self.free = number;
        next
    }
}

/// Pending events, earliest first.
#[derive(Debug)]
pub struct EventQueue {
    /// log2 of a bucket's width in ticks.
    shift: u32,
    /// The bits of a time that count its ticks since the start of its bucket.
    within: u64,
    /// Number of buckets minus one. The number of buckets is a power of two.
    mask: u64,
    /// For each bucket its first component, or its first chunk in large fabrics. Only the first chunk may have room.
    heads: Vec<u32>,
    /// One bit per bucket that has events.
    occupied: Vec<u64>,
    /// One bit per word of `occupied` that is not zero.
    summary: Vec<u64>,
    /// For each component, the time of its event and the next component in its bucket; empty in large fabrics.
    pending: Vec<(Time, Component)>,
    /// The chunks of large fabrics.
    chunks: Chunks,
    is_large: bool,
    /// The absolute number of the current bucket.
    bucket: u64,
    /// The sort keys of the events of the current bucket, latest first: ticks since the bucket's start, and the
    /// component permuted by the event's time.
    current: Vec<u64>,
    /// Events from before the current bucket, with sort keys of the whole time: frames that external hosts have handed
    /// over late.
    late: BinaryHeap<Reverse<(Time, u32)>>,
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
        // horizon. In large ones it has sixteen, since the engine reads ahead by buckets.
        let is_large = components >= LARGE;
        let buckets = if is_large { components / 16 } else { components * 2 };
        let buckets = buckets.next_power_of_two().clamp(1 << 12, 1 << 20);
        let width = (horizon.ticks() / buckets as u64).max(1).next_power_of_two();
        let shift = width.trailing_zeros().min(MAX_SHIFT);
        Self {
            shift,
            within: (1 << shift) - 1,
            mask: buckets as u64 - 1,
            heads: vec![NONE; buckets],
            occupied: vec![0; buckets / 64],
            summary: vec![0; (buckets / 64).div_ceil(64)],
            pending: vec![(Time::ZERO, NONE); if is_large { 0 } else { components }],
            is_large,
            chunks: Chunks { all: Vec::new(), free: NONE },
            bucket: 0,
            current: Vec::new(),
            late: BinaryHeap::new(),
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

    /// The event in its bucket. Its time fits because a bucket has at most 2^32 ticks.
    #[inline]
    const fn entry(&self, at: Time, component: Component) -> Entry {
        Entry((at.ticks() & self.within) << 32 | component as u64)
    }

    /// The time of an event of this bucket.
    #[inline]
    const fn time_of(&self, bucket: u64, since_start: u64) -> Time {
        Time::from_ticks(bucket.wrapping_shl(self.shift) | since_start)
    }

    /// The sort key of an event of the current bucket.
    #[inline]
    const fn key(&self, at: Time, component: Component) -> u64 {
        self.entry(at, component ^ scramble(at)).0
    }

    /// The event of the current bucket with this sort key.
    #[inline]
    const fn unkey(&self, key: u64) -> (Time, Component) {
        let at = self.time_of(self.bucket, key >> 32);
        (at, key as u32 ^ scramble(at))
    }

    /// Adds an event of a component that has none pending. A time before that of the last popped event may be
    /// used too: the event is next.
    #[inline]
    pub fn push(&mut self, at: Time, component: Component) {
        let bucket = self.bucket_of(at);
        let ahead = bucket.wrapping_sub(self.bucket);
        if ahead.wrapping_sub(1) >= self.mask {
            return self.push_timer(at, component);
        }
        self.len += 1;
        let slot = (bucket & self.mask) as usize;
        let head = self.heads[slot];
        self.heads[slot] = if self.is_large {
            self.chunks.push(head, self.entry(at, component))
        } else {
            self.pending[component as usize] = (at, head);
            component
        };
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.summary[slot / 4096] |= 1 << (slot / 64 % 64);
    }

    /// Adds an event of a component that may have others pending.
    #[inline(never)]
    pub fn push_timer(&mut self, at: Time, component: Component) {
        self.len += 1;
        match self.bucket_of(at).cmp(&self.bucket) {
            Ordering::Less => self.late.push(Reverse((at, component ^ scramble(at)))),
            Ordering::Equal => self.insert_current(self.key(at, component)),
            Ordering::Greater => self.far.push(Reverse((at, component))),
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
        if let Some(Reverse((at, _))) = self.late.peek() {
            return Some(*at);
        }
        if let Some(next) = self.current.last() {
            return Some(self.unkey(*next).0);
        }
        let far = self.far.peek().map(|Reverse((at, _))| *at);
        let near = self.next_occupied().map(|bucket| {
            let mut first = Time::MAX;
            if self.is_large {
                for entry in self.entries(bucket) {
                    first = first.min(self.time_of(bucket, entry.since_start()));
                }
                return first;
            }
            let mut component = self.heads[(bucket & self.mask) as usize];
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

    /// The events of a bucket of a large fabric, in no order.
    fn entries(&self, bucket: u64) -> impl Iterator<Item = Entry> + '_ {
        let chunk = |number: u32| self.chunks.all.get(number as usize);
        let head = self.heads[(bucket & self.mask) as usize];
        let chunks = std::iter::successors(chunk(head), move |last| chunk(last.next));
        chunks.flat_map(|chunk| chunk.entries[..chunk.len as usize].iter().copied())
    }

    /// Removes and returns the earliest event if it is not later than `until`. Otherwise the queue does not
    /// advance beyond the bucket of `until`.
    // Otherwise it is a call where a program has several kinds of networks, which costs 1.5 % of the instructions of a hop.
    #[inline(always)]
    pub fn pop_until(&mut self, until: Time) -> Option<(Time, Component)> {
        if !self.late.is_empty() {
            return self.pop_late(until);
        }
        if self.current.is_empty()
            && let Some(only) = self.advance(until)
        {
            return Some(only);
        }
        let (at, component) = self.unkey(*self.current.last()?);
        if at > until {
            return None;
        }
        self.current.pop();
        self.len -= 1;
        Some((at, component))
    }

    #[cold]
    fn pop_late(&mut self, until: Time) -> Option<(Time, Component)> {
        let Reverse((at, _)) = *self.late.peek()?;
        if at > until {
            return None;
        }
        let Reverse((at, permuted)) = self.late.pop()?;
        self.len -= 1;
        Some((at, permuted ^ scramble(at)))
    }

    /// Requests the first chunk of the bucket at this distance after the current one, for [`Self::ahead`].
    #[inline]
    pub fn prefetch_ahead(&self, buckets: u64) {
        let head = self.heads[((self.bucket + buckets) & self.mask) as usize];
        if let Some(chunk) = self.chunks.all.get(head as usize) {
            prefetch(chunk);
        }
    }

    /// The components with events in the bucket at this distance after the current one, in no order.
    #[inline]
    pub fn ahead(&self, buckets: u64) -> impl Iterator<Item = Component> + '_ {
        self.entries(self.bucket + buckets).map(Entry::component)
    }

    /// Whether the queue has entered a bucket of several events since the last call.
    #[inline]
    pub const fn has_turned(&mut self) -> bool {
        std::mem::replace(&mut self.turned, false)
    }

    /// The components with events left in the current bucket, the next one first.
    #[inline]
    pub fn current(&self) -> impl Iterator<Item = Component> + '_ {
        self.current.iter().rev().map(|key| self.unkey(*key).1)
    }

    #[inline]
    fn insert_current(&mut self, key: u64) {
        // It is nearly always among the next few events, which are at the end.
        let mut at = self.current.len();
        while at > 0 && self.current[at - 1] < key {
            at -= 1;
        }
        self.current.insert(at, key);
    }

    /// Empties a slot of the wheel and returns what it begins with.
    #[inline]
    fn unlink(&mut self, slot: usize) -> u32 {
        let word = &mut self.occupied[slot / 64];
        *word &= !(1 << (slot % 64));
        if *word == 0 {
            self.summary[slot / 4096] &= !(1 << (slot / 64 % 64));
        }
        std::mem::replace(&mut self.heads[slot], NONE)
    }

    /// Advances to the next bucket that has events, if it is not after that of `until`. An event that has the bucket
    /// for itself, and is due by `until`, is removed and returned.
    // As above.
    #[inline(always)]
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
            let head = self.unlink((bucket & self.mask) as usize);
            if self.is_large {
                self.take_chunks(head);
            } else {
                let (at, next) = self.pending[head as usize];
                if next == NONE && far != Some(bucket) && at <= until {
                    self.len -= 1;
                    return Some((at, head));
                }
                let mut component = head;
                while component != NONE {
                    let (at, next) = self.pending[component as usize];
                    self.current.push(self.key(at, component));
                    component = next;
                }
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

    /// Moves the events of chunks to the current bucket, and frees the chunks.
    fn take_chunks(&mut self, mut number: u32) {
        let start = self.time_of(self.bucket, 0).ticks();
        while number != NONE {
            let chunk = &self.chunks.all[number as usize];
            self.current.extend(chunk.entries[..chunk.len as usize].iter().map(|entry| {
                entry.0 ^ u64::from(scramble(Time::from_ticks(start | entry.since_start())))
            }));
            number = self.chunks.remove(number);
        }
    }

    /// Moves the timers of the current bucket there.
    fn take_far(&mut self) {
        while let Some(&Reverse((at, component))) = self.far.peek()
            && self.bucket_of(at) == self.bucket
        {
            self.far.pop();
            self.current.push(self.key(at, component));
        }
    }

    /// The first bucket after the current one that has events.
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

    /// Random pushes and pops against a sorted reference: few and many events to a bucket, several scales of delay,
    /// buckets of the largest width, and events from before the current bucket.
    #[test]
    fn agrees_with_a_sorted_reference() {
        let scales = [1_000, 50_000, 5_000_000, 1 << 40, 1 << 45];
        for (case, horizon) in scales.into_iter().enumerate() {
            for components in [700, LARGE as u64 * 2] {
                let mut rng = Rng::stream(3, components, case as u64, "events");
                let mut queue = EventQueue::new(components as usize, Span::from_ticks(horizon));
                let mut reference = std::collections::BTreeSet::new();
                let mut pending = vec![false; components as usize];
                let mut now = 0;
                let mut largest = 0;
                for step in 0..150_000 {
                    // Many are pending in the first half of the run, few in the second.
                    if rng.below(100) < if step < 75_000 { 60 } else { 45 } {
                        let component = rng.below(components) as u32;
                        let at = match rng.below(20) {
                            0 | 1 => now,
                            2 | 3 => now + rng.below(horizon * 3),
                            4 => now + rng.below((horizon * 100).min(1 << 48)),
                            5 => now.saturating_sub(rng.below(horizon / 100)),
                            6 => now.saturating_sub(rng.below(horizon * 3)),
                            _ => now + rng.below(horizon),
                        };
                        if component.is_multiple_of(7) {
                            if reference.insert(order(at, component)) {
                                queue.push_timer(Time::from_ticks(at), component);
                            }
                        } else if !pending[component as usize] {
                            pending[component as usize] = true;
                            reference.insert(order(at, component));
                            queue.push(Time::from_ticks(at), component);
                        }
                    } else {
                        let expected =
                            reference.pop_first().map(|(at, _, component)| (at, component));
                        let next = expected.map(|(at, _)| Time::from_ticks(at));
                        assert_eq!(queue.next_at(), next);
                        if let Some(at) = next.map(Time::ticks).filter(|at| *at > 0) {
                            assert_eq!(queue.pop_until(Time::from_ticks(at - 1)), None);
                        }
                        let popped = queue.pop().map(|(at, component)| (at.ticks(), component));
                        assert_eq!(popped, expected);
                        if let Some((at, component)) = popped {
                            now = now.max(at);
                            pending[component as usize] = false;
                        }
                    }
                    assert_eq!(queue.len(), reference.len());
                    largest = largest.max(queue.len());
                }
                while let Some((at, _, component)) = reference.pop_first() {
                    assert_eq!(queue.pop(), Some((Time::from_ticks(at), component)));
                }
                assert!(queue.pop().is_none() && queue.is_empty());
                // Chunks are used again: a bucket wastes at most one.
                assert!(queue.chunks.all.len() <= largest, "{}", queue.chunks.all.len());
            }
        }
    }
}
