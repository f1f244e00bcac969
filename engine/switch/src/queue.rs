//! The queue of one port: eight strict priorities or the order of remaining size, tail drop, ECN marking, trimming,
//! selective dropping.

use std::num::NonZeroU8;
use std::sync::Arc;

use rackweave_core::{
    Admission, DropReason, Fifo, Header, Packet, PacketRef, Pool, Rng, frame, prefetch,
};

use crate::PRIORITIES;
use crate::ranked::Ranked;

/// The highest priority, which control packets and trimmed packets use.
const TOP: usize = PRIORITIES - 1;

/// The bits of all priorities but the highest.
const DATA: u8 = (1 << TOP) - 1;

/// The rules of a port for packets that have to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Maximum number of bytes in the queue; a packet that does not fit is dropped. `u64::MAX` for no limit.
    pub limit_bytes: u64,
    /// A packet that finds more than this many bytes queued is marked, if its transport reacts to marks (DCTCP
    /// section 3.1: the instantaneous queue on arrival). `u64::MAX` for no marking.
    pub ecn_threshold_bytes: u64,
    /// Whether packets are queued by priority; otherwise in one FIFO.
    pub priorities: bool,
    /// NDP's trimming; `None` if a full queue drops the packet.
    pub trim: Option<Trim>,
    /// Rules that only some transports need.
    pub options: QueueOptions,
}

/// Rules of a queue that only some transports need. All are off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueOptions {
    /// pFabric's queue (SIGCOMM'13, section 4.2), in place of priorities: the message with the fewest remaining bytes
    /// ([`rackweave_core::Header::rank`]) is served first, and a full queue drops a packet of the one with the most.
    /// Trimming has no effect then.
    pub by_remaining: bool,
    /// Aeolus' selective dropping (SIGCOMM'20): a packet that finds more than the ECN threshold queued and is not ECN-capable is
    /// dropped, as commodity switches do that mark by RED (RFC 3168, section 5).
    pub selective_drop: bool,
    /// Above the ECN threshold, marks at random; `None` marks each packet.
    pub ramp: Option<Ramp>,
}

/// RED's marks by the instantaneous queue (DCQCN, SIGCOMM'15, section 3.1): from the ECN threshold (Kmin) on, the
/// probability grows in proportion to the queue, and beyond Kmax each packet is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ramp {
    /// Kmax, in bytes.
    pub full_bytes: u64,
    /// The probability at Kmax, in millionths.
    pub millionths: u32,
}

/// NDP's trimming: data packets beyond a short queue are trimmed to their headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// Maximum number of bytes of data packets in the queue (all priorities but the highest).
    pub data_limit_bytes: u64,
    /// Maximum number of bytes of control and trimmed packets in the queue (the highest priority).
    pub header_limit_bytes: u64,
    /// Whether a trimmed packet that finds no room is returned to its sender once (htsim's return to sender);
    /// otherwise it is dropped.
    pub return_to_sender: bool,
    /// Number of packets of the highest priority after which one packet of data is sent, if one waits (NDP, SIGCOMM'17,
    /// section 3.1: round robin weighted 10 to 1). `None`: strict priority, as in htsim by default.
    pub headers_per_packet: Option<NonZeroU8>,
}

/// The queue of one port. The fields that an empty queue needs come first, in 32 bytes.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct PortQueue {
    bytes: u64,
    /// Of these, bytes of the highest priority, modulo 2^32: only limits of trimming read it.
    top_bytes: u32,
    /// Bit `p` is set while priority `p` has packets.
    occupied: u8,
    /// [`Trim::headers_per_packet`]; 0 for strict priority.
    headers_per_packet: u8,
    /// Number of packets of the highest priority that were sent while data waited, since the last packet of data that
    /// was sent before them.
    headers: u8,
    config: Arc<QueueConfig>,
    /// In place of `fifos`, if packets leave by their remaining size: priority 0 is then occupied if it has packets.
    ranked: Option<Box<Ranked>>,
    fifos: [Fifo; PRIORITIES],
}

impl PortQueue {
    /// An empty queue with this configuration.
    #[must_use]
    pub fn new(config: Arc<QueueConfig>) -> Self {
        let ranked = config.options.by_remaining.then(Box::default);
        let headers_per_packet = config.trim.and_then(|trim| trim.headers_per_packet);
        Self {
            bytes: 0,
            top_bytes: 0,
            occupied: 0,
            headers_per_packet: headers_per_packet.map_or(0, NonZeroU8::get),
            headers: 0,
            config,
            ranked,
            fifos: [Fifo::EMPTY; PRIORITIES],
        }
    }

    /// Number of bytes in the queue.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the queue is empty.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.occupied == 0
    }

    /// Requests the cache line with the lists.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(&self.fifos);
    }

    /// The packet that is sent next.
    #[must_use]
    #[inline]
    pub fn front(&self) -> Option<PacketRef> {
        if self.occupied == 0 {
            return None;
        }
        if let Some(ranked) = &self.ranked {
            return ranked.front();
        }
        let lists = if self.is_turn_of_data() { self.occupied & DATA } else { self.occupied };
        self.fifos[TOP - lists.leading_zeros() as usize].front()
    }

    /// The last packet that waits with a priority.
    pub(crate) fn back(&self, priority: u8) -> Option<PacketRef> {
        self.fifos[self.list_of(priority)].back()
    }

    /// Whether headers and data wait, so that their weights decide.
    #[inline]
    const fn is_weighted(&self) -> bool {
        self.occupied > 1 << TOP && self.headers_per_packet != 0
    }

    /// Whether headers have to wait for a packet of data.
    #[inline]
    const fn is_turn_of_data(&self) -> bool {
        self.is_weighted() && self.headers >= self.headers_per_packet
    }

    /// The list of a packet with this priority.
    #[inline]
    fn list_of(&self, priority: u8) -> usize {
        if self.config.priorities { usize::from(priority).min(TOP) } else { 0 }
    }

    #[inline]
    fn append<H: Header>(&mut self, pool: &mut Pool<H>, packet: PacketRef) {
        let bytes = u64::from(pool.wire_bytes(packet));
        let priority = self.list_of(pool.priority(packet));
        self.fifos[priority].push(pool, packet);
        self.occupied |= 1 << priority;
        self.bytes += bytes;
        if priority == TOP {
            self.top_bytes = self.top_bytes.wrapping_add(bytes as u32);
        }
    }

    fn drop<H: Header>(pool: &mut Pool<H>, packet: PacketRef, reason: DropReason) -> Admission {
        pool.remove(packet);
        Admission::Dropped(reason)
    }

    /// Admits a packet by trimming: the data queue is full.
    fn trim<H: Header>(
        &mut self,
        pool: &mut Pool<H>,
        packet: PacketRef,
        trim: Trim,
        rng: &mut Rng,
    ) -> Admission {
        // htsim: with probability 1/2 the arriving packet is trimmed, otherwise the last one in the queue. The
        // latter keeps its place: the arriving packet moves into its slot of the queue.
        if rng.below(2) == 0
            && let Some(last) = self.last_trimmable(pool, pool.priority(packet))
        {
            let arriving = *pool.get(packet);
            let waiting = pool.modify(last, |last| core::mem::replace(last, arriving));
            self.bytes =
                self.bytes + u64::from(arriving.wire_bytes) - u64::from(waiting.wire_bytes);
            pool.modify(packet, |packet| *packet = waiting);
        }
        let header_bytes = u64::from(frame::wire_bytes(frame::MIN_PAYLOAD));
        if u64::from(self.top_bytes) + header_bytes > trim.header_limit_bytes {
            pool.modify(packet, Packet::trim);
            return Self::refuse_header(pool, packet, trim);
        }
        pool.modify(packet, |cut| {
            cut.trim();
            cut.priority = TOP as u8;
        });
        self.append(pool, packet);
        Admission::Trimmed
    }

    /// The header queue is full: a packet that was trimmed, here or at an earlier switch, is returned to its sender
    /// unless it has been returned before.
    #[cold]
    fn refuse_header<H: Header>(pool: &mut Pool<H>, packet: PacketRef, trim: Trim) -> Admission {
        let header = pool.get(packet);
        if !trim.return_to_sender || !header.is_trimmed() || header.is_returned() {
            return Self::drop(pool, packet, DropReason::HeaderQueueFull);
        }
        pool.modify(packet, |header| {
            header.return_to_sender();
            header.priority = TOP as u8;
        });
        Admission::ReturnedToSender(packet)
    }

    /// The last packet of this priority, if it may be trimmed.
    fn last_trimmable<H: Header>(&self, pool: &Pool<H>, priority: u8) -> Option<PacketRef> {
        let fifo = &self.fifos[usize::from(priority).min(TOP)];
        fifo.back().filter(|last| pool.get(*last).is_trimmable())
    }

    /// Queues a packet, or drops it and frees its slot. `rng` is used for the random decisions of the rules.
    #[inline]
    pub fn enqueue<H: Header>(
        &mut self,
        pool: &mut Pool<H>,
        packet: PacketRef,
        rng: &mut Rng,
    ) -> Admission {
        let bytes = u64::from(pool.wire_bytes(packet));
        let above_threshold = self.bytes > self.config.ecn_threshold_bytes;
        let marked = above_threshold && self.draws_a_mark(rng) && pool.modify(packet, Packet::mark);
        if above_threshold && !marked && self.config.options.selective_drop {
            return Self::drop(pool, packet, DropReason::Selective);
        }
        if self.ranked.is_some() {
            return self.enqueue_ranked(pool, packet, marked);
        }
        if let Some(trim) = self.config.trim {
            let is_top = usize::from(pool.priority(packet)) >= TOP;
            if is_top {
                if u64::from(self.top_bytes) + bytes > trim.header_limit_bytes {
                    return Self::refuse_header(pool, packet, trim);
                }
            } else if self.bytes - u64::from(self.top_bytes) + bytes > trim.data_limit_bytes {
                if pool.get(packet).is_trimmable() {
                    return self.trim(pool, packet, trim, rng);
                }
                return Self::drop(pool, packet, DropReason::QueueFull);
            }
        } else if self.bytes + bytes > self.config.limit_bytes {
            return Self::drop(pool, packet, DropReason::QueueFull);
        }
        self.append(pool, packet);
        if marked { Admission::Marked } else { Admission::Queued }
    }

    /// Whether a packet is marked that finds more than the ECN threshold.
    #[inline]
    fn draws_a_mark(&self, rng: &mut Rng) -> bool {
        let Some(ramp) = self.config.options.ramp else { return true };
        let from = self.config.ecn_threshold_bytes;
        if self.bytes > ramp.full_bytes {
            return true;
        }
        let (above, width) = (self.bytes - from, (ramp.full_bytes - from).max(1));
        let millionths = u128::from(ramp.millionths) * u128::from(above) / u128::from(width);
        u128::from(rng.below(1_000_000)) < millionths
    }

    fn enqueue_ranked<H: Header>(
        &mut self,
        pool: &Pool<H>,
        packet: PacketRef,
        marked: bool,
    ) -> Admission {
        let Some(ranked) = &mut self.ranked else { return Admission::Overfull };
        ranked.push(pool, packet);
        self.occupied = 1;
        self.bytes += u64::from(pool.wire_bytes(packet));
        match (self.bytes > self.config.limit_bytes, marked) {
            (true, _) => Admission::Overfull,
            (false, true) => Admission::Marked,
            (false, false) => Admission::Queued,
        }
    }

    /// Removes a packet after [`Admission::Overfull`]; `None` once the rest fits. The packet keeps its slot.
    pub fn evict<H: Header>(&mut self, pool: &Pool<H>) -> Option<PacketRef> {
        if self.bytes <= self.config.limit_bytes {
            return None;
        }
        let packet = self.ranked.as_mut()?.evict()?;
        self.left_ranked(pool, packet);
        Some(packet)
    }

    fn left_ranked<H: Header>(&mut self, pool: &Pool<H>, packet: PacketRef) {
        self.bytes -= u64::from(pool.wire_bytes(packet));
        if self.ranked.as_ref().is_none_or(|ranked| ranked.is_empty()) {
            self.occupied = 0;
        }
    }

    #[inline(never)]
    fn dequeue_ranked<H: Header>(&mut self, pool: &Pool<H>) -> Option<PacketRef> {
        let packet = self.ranked.as_mut()?.pop()?;
        self.left_ranked(pool, packet);
        Some(packet)
    }

    /// Counts a header, or a packet of data whose turn it is; returns the lists; the highest is served.
    #[inline(never)]
    const fn weigh(&mut self) -> u8 {
        if self.headers >= self.headers_per_packet {
            self.headers = 0;
            return self.occupied & DATA;
        }
        self.headers += 1;
        self.occupied
    }

    /// The list that packets of a priority wait in: the priority itself, or 0 without priorities.
    #[must_use]
    #[inline]
    pub fn class_of(&self, priority: u8) -> u8 {
        self.list_of(priority) as u8
    }

    /// Whether packets wait in one of these lists, a bit each.
    #[must_use]
    #[inline]
    pub const fn holds_any(&self, classes: u8) -> bool {
        self.occupied & classes != 0
    }

    /// As [`PortQueue::dequeue`], for a port that may only send packets of these lists, a bit each. Weights have no effect.
    pub(crate) fn dequeue_of<H: Header>(
        &mut self,
        pool: &Pool<H>,
        classes: u8,
    ) -> Option<PacketRef> {
        let lists = self.occupied & classes;
        if lists == 0 {
            return None;
        }
        self.pop(pool, TOP - lists.leading_zeros() as usize)
    }

    /// The packets that wait, and their lists.
    pub(crate) fn packets<'a, H: Header>(
        &'a self,
        pool: &'a Pool<H>,
    ) -> impl Iterator<Item = (u8, PacketRef)> + 'a {
        self.fifos.iter().zip(0..).flat_map(move |(fifo, class)| {
            let all = std::iter::successors(fifo.front(), |last| pool.after(*last));
            all.map(move |packet| (class, packet))
        })
    }

    /// Dequeues the packet that is sent next: the first of the highest priority, or of the highest one of data if that
    /// has waited for as many headers as may precede it.
    #[inline]
    pub fn dequeue<H: Header>(&mut self, pool: &mut Pool<H>) -> Option<PacketRef> {
        if self.occupied == 0 {
            return None;
        }
        if self.ranked.is_some() {
            return self.dequeue_ranked(pool);
        }
        let lists = if self.is_weighted() { self.weigh() } else { self.occupied };
        self.pop(pool, TOP - lists.leading_zeros() as usize)
    }

    #[inline]
    fn pop<H: Header>(&mut self, pool: &Pool<H>, priority: usize) -> Option<PacketRef> {
        let fifo = &mut self.fifos[priority];
        let packet = fifo.pop(pool)?;
        if fifo.is_empty() {
            self.occupied &= !(1 << priority);
        }
        let bytes = u64::from(pool.wire_bytes(packet));
        self.bytes -= bytes;
        if priority == TOP {
            self.top_bytes = self.top_bytes.wrapping_sub(bytes as u32);
        }
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::{Ecn, HostId, MessageId, Rank, Slice};

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Tag(u32);
    impl Header for Tag {
        fn payload(&self) -> Option<Slice> {
            None
        }

        /// Tags from 1000 on are packets of message `tag / 1000` with `tag % 1000` remaining bytes.
        fn rank(&self) -> Option<Rank> {
            let (message, remaining) = (MessageId(u64::from(self.0 / 1000)), self.0 % 1000);
            (message.0 > 0).then_some(Rank { message, remaining })
        }
    }

    const UNLIMITED: QueueConfig = QueueConfig {
        limit_bytes: u64::MAX,
        ecn_threshold_bytes: u64::MAX,
        priorities: true,
        trim: None,
        options: QueueOptions { by_remaining: false, selective_drop: false, ramp: None },
    };

    const BY_REMAINING: QueueConfig = QueueConfig {
        options: QueueOptions { by_remaining: true, selective_drop: false, ramp: None },
        ..UNLIMITED
    };

    struct Bench {
        pool: Pool<Tag>,
        queue: PortQueue,
        rng: Rng,
    }

    impl Bench {
        fn new(config: QueueConfig) -> Self {
            let rng = Rng::stream(1, 0, 0, "queue test");
            Self { pool: Pool::new(), queue: PortQueue::new(Arc::new(config)), rng }
        }
        fn put(&mut self, tag: u32, priority: u8, l3_bytes: u32, trimmable: bool) -> Admission {
            let mut packet = Packet::new(HostId(0), HostId(1), l3_bytes, Tag(tag))
                .with_priority(priority)
                .with_ecn(Ecn::Capable);
            if trimmable {
                packet = packet.trimmable();
            }
            let packet = self.pool.insert(packet);
            self.queue.enqueue(&mut self.pool, packet, &mut self.rng)
        }
        fn take(&mut self) -> Option<Packet<Tag>> {
            let packet = self.queue.dequeue(&mut self.pool)?;
            Some(self.pool.remove(packet))
        }
    }

    #[test]
    fn without_priorities_the_first_to_come_is_the_first_to_go() {
        for (priorities, order) in [(true, [7, 3, 0]), (false, [0, 7, 3])] {
            let mut bench = Bench::new(QueueConfig { priorities, ..UNLIMITED });
            for priority in [0_u8, 7, 3] {
                bench.put(u32::from(priority), priority, 1500, false);
            }
            let out: Vec<u32> = std::iter::from_fn(|| bench.take()).map(|p| p.header.0).collect();
            assert_eq!(out, order);
        }
    }

    #[test]
    fn higher_priorities_first_and_fifo_within() {
        let mut bench = Bench::new(UNLIMITED);
        for (tag, priority) in [(1, 0), (2, 5), (3, 7), (4, 5), (5, 200), (6, 0)] {
            assert_eq!(bench.put(tag, priority, 1500, false), Admission::Queued);
        }
        let order: Vec<u32> = std::iter::from_fn(|| bench.take()).map(|p| p.header.0).collect();
        assert_eq!(order, [3, 5, 2, 4, 1, 6], "200 counts as the highest");
        assert_eq!(bench.queue.bytes(), 0);
        assert_eq!(bench.pool.live(), 0);
    }

    #[test]
    fn drops_at_the_tail_and_frees_the_slot() {
        let mut bench = Bench::new(QueueConfig { limit_bytes: 3 * 1538, ..UNLIMITED });
        for tag in 0..3 {
            assert_eq!(bench.put(tag, 0, 1500, false), Admission::Queued);
        }
        assert_eq!(bench.put(3, 7, 1500, false), Admission::Dropped(DropReason::QueueFull));
        assert_eq!(bench.pool.live(), 3);
    }

    #[test]
    fn marks_what_finds_more_than_the_threshold() {
        let mut bench = Bench::new(QueueConfig { ecn_threshold_bytes: 2 * 1538, ..UNLIMITED });
        let admissions: Vec<_> = (0..4).map(|tag| bench.put(tag, 0, 1500, false)).collect();
        assert_eq!(admissions[..3], [Admission::Queued; 3], "the third finds exactly K");
        assert_eq!(admissions[3], Admission::Marked);
        let marks: Vec<_> =
            std::iter::from_fn(|| bench.take()).map(|p| p.ecn() == Ecn::Marked).collect();
        assert_eq!(marks, [false, false, false, true]);
    }

    #[test]
    fn trims_the_arriving_or_the_last_and_keeps_every_header() {
        let trim = Trim {
            data_limit_bytes: 4 * 1538,
            header_limit_bytes: 100 * 84,
            return_to_sender: false,
            headers_per_packet: None,
        };
        let mut bench = Bench::new(QueueConfig { trim: Some(trim), ..UNLIMITED });
        for tag in 0..50 {
            let admission = bench.put(tag, 0, 1500, true);
            let expected = if tag < 4 { Admission::Queued } else { Admission::Trimmed };
            assert_eq!(admission, expected);
        }
        let out: Vec<_> = std::iter::from_fn(|| bench.take()).collect();
        let (cut, whole): (Vec<&Packet<Tag>>, Vec<&Packet<Tag>>) =
            out.iter().partition(|p| p.is_trimmed());
        assert_eq!((cut.len(), whole.len()), (46, 4));
        assert!(cut.iter().all(|p| p.wire_bytes == 84 && p.priority == 7));
        assert!(out[..46].iter().all(Packet::is_trimmed), "headers overtake data");
        let mut tags: Vec<u32> = out.iter().map(|p| p.header.0).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..50).collect::<Vec<_>>(), "nothing is lost");
        assert!(whole.iter().any(|p| p.header.0 >= 4), "sometimes the last one waiting is cut");
        assert!(whole.iter().any(|p| p.header.0 < 4));
        assert_eq!(bench.queue.bytes(), 0);
    }

    #[test]
    fn a_packet_of_data_is_sent_after_as_many_headers_as_may_precede_it() {
        let trim = Trim {
            data_limit_bytes: 4 * 1538,
            header_limit_bytes: 100 * 84,
            return_to_sender: false,
            headers_per_packet: NonZeroU8::new(3),
        };
        let mut bench = Bench::new(QueueConfig { trim: Some(trim), ..UNLIMITED });
        for tag in 0..8 {
            bench.put(tag, 7, 64, false);
        }
        for tag in 10..13 {
            bench.put(tag, if tag == 11 { 1 } else { 0 }, 1500, false);
        }
        let mut order = Vec::new();
        while let Some(front) = bench.queue.front() {
            let expected = bench.pool.get(front).header;
            let packet = bench.take().expect("the packet in front");
            assert_eq!(packet.header, expected, "what is announced is what is sent");
            order.push(packet.header.0);
        }
        assert_eq!(order, [0, 1, 2, 11, 3, 4, 5, 10, 6, 7, 12]);
        assert_eq!((bench.queue.bytes(), bench.pool.live()), (0, 0));
    }

    #[test]
    fn a_full_header_queue_drops() {
        let trim = Trim {
            data_limit_bytes: 1538,
            header_limit_bytes: 2 * 84,
            return_to_sender: false,
            headers_per_packet: None,
        };
        let mut bench = Bench::new(QueueConfig { trim: Some(trim), ..UNLIMITED });
        let results: Vec<_> = (0..4).map(|tag| bench.put(tag, 0, 1500, true)).collect();
        assert_eq!(results[3], Admission::Dropped(DropReason::HeaderQueueFull));
        assert_eq!(bench.put(9, 0, 1500, false), Admission::Dropped(DropReason::QueueFull));
        assert_eq!(bench.pool.live(), 3);
    }

    #[test]
    fn a_full_header_queue_turns_a_packet_back_once() {
        let trim = Trim {
            data_limit_bytes: 1538,
            header_limit_bytes: 2 * 84,
            return_to_sender: true,
            headers_per_packet: None,
        };
        let mut bench = Bench::new(QueueConfig { trim: Some(trim), ..UNLIMITED });
        for tag in 0..3 {
            bench.put(tag, 0, 1500, true);
        }
        let Admission::ReturnedToSender(packet) = bench.put(3, 0, 1500, true) else {
            panic!("there is no room");
        };
        let back = *bench.pool.get(packet);
        assert!(back.is_returned() && back.is_trimmed() && !back.is_trimmable());
        assert_eq!((back.src, back.dst), (HostId(1), HostId(0)));
        assert_eq!((back.wire_bytes, back.priority), (84, 7));
        // The returned packet finds the queue full a second time.
        let admission = bench.queue.enqueue(&mut bench.pool, packet, &mut bench.rng);
        assert_eq!(admission, Admission::Dropped(DropReason::HeaderQueueFull));
        // A packet that another switch has trimmed is returned too; one that never carried data is not.
        let mut cut = Packet::new(HostId(0), HostId(1), 1500, Tag(5)).with_priority(7);
        cut.trim();
        let cut = bench.pool.insert(cut);
        let admission = bench.queue.enqueue(&mut bench.pool, cut, &mut bench.rng);
        assert_eq!(admission, Admission::ReturnedToSender(cut));
        bench.pool.remove(cut);
        let control = bench.put(4, 7, 64, false);
        assert_eq!(control, Admission::Dropped(DropReason::HeaderQueueFull));
        assert_eq!(bench.pool.live(), 3);
    }

    fn order(bench: &mut Bench) -> Vec<u32> {
        let order = std::iter::from_fn(|| bench.take()).map(|packet| packet.header.0).collect();
        assert_eq!((bench.queue.bytes(), bench.pool.live()), (0, 0));
        assert!(bench.queue.is_empty() && bench.queue.front().is_none());
        order
    }

    #[test]
    fn the_least_remaining_is_first_and_a_message_keeps_its_order() {
        let mut bench = Bench::new(BY_REMAINING);
        for tag in [1_900, 2_500, 1_400, 3_450, 7, 2_500] {
            assert_eq!(bench.put(tag, 7, 1500, false), Admission::Queued);
        }
        let front = bench.queue.front().expect("six packets");
        assert_eq!(bench.pool.get(front).header.0, 7, "without a rank: before all");
        // Message 1 has the packet with the least, 400, so that its earlier one is sent first; then 3 before 2.
        assert_eq!(order(&mut bench), [7, 1_900, 1_400, 3_450, 2_500, 2_500]);
    }

    #[test]
    fn messages_of_different_hosts_with_the_same_id_are_different_ones() {
        let mut bench = Bench::new(BY_REMAINING);
        for (source, tag) in [(3, 1_900), (4, 1_800), (4, 1_700)] {
            let packet = Packet::new(HostId(source), HostId(1), 1500, Tag(tag));
            let packet = bench.pool.insert(packet);
            bench.queue.enqueue(&mut bench.pool, packet, &mut bench.rng);
        }
        assert_eq!(order(&mut bench), [1_800, 1_700, 1_900]);
    }

    #[test]
    fn what_is_dropped_has_the_most_remaining_whether_it_arrives_or_waits() {
        let mut bench = Bench::new(QueueConfig { limit_bytes: 3 * 1538, ..BY_REMAINING });
        let put = |bench: &mut Bench, tag| {
            let admission = bench.put(tag, 0, 1500, false);
            let evicted = std::iter::from_fn(|| bench.queue.evict(&bench.pool));
            let evicted: Vec<PacketRef> = evicted.collect();
            let evicted = evicted.into_iter().map(|packet| bench.pool.remove(packet).header.0);
            (admission, evicted.collect::<Vec<_>>())
        };
        for tag in [1_300, 2_900, 3_500] {
            assert_eq!(put(&mut bench, tag), (Admission::Queued, vec![]));
        }
        assert_eq!(put(&mut bench, 4_950), (Admission::Overfull, vec![4_950]), "itself");
        assert_eq!(put(&mut bench, 5_100), (Admission::Overfull, vec![2_900]), "one that waits");
        assert_eq!(
            put(&mut bench, 3_500),
            (Admission::Overfull, vec![3_500]),
            "the last of equals"
        );
        assert_eq!(bench.queue.bytes(), 3 * 1538);
        assert_eq!(order(&mut bench), [5_100, 1_300, 3_500]);
    }

    #[test]
    fn a_packet_may_need_the_room_of_several() {
        let mut bench = Bench::new(QueueConfig { limit_bytes: 1538 + 84, ..BY_REMAINING });
        for tag in (0..19).map(|n| 1_900 + n) {
            bench.put(tag, 0, 46, false);
        }
        assert_eq!(bench.queue.bytes(), 19 * 84);
        assert_eq!(bench.put(2_100, 0, 1500, false), Admission::Overfull);
        let mut evicted = 0;
        while let Some(packet) = bench.queue.evict(&bench.pool) {
            bench.pool.remove(packet);
            evicted += 1;
        }
        assert_eq!((evicted, bench.queue.bytes()), (18, 1538 + 84));
        assert_eq!(order(&mut bench), [2_100, 1_900]);
    }

    #[test]
    fn selective_dropping_protects_what_is_ecn_capable() {
        let options = QueueOptions { selective_drop: true, ..QueueOptions::default() };
        let config = QueueConfig { ecn_threshold_bytes: 2 * 1538, options, ..UNLIMITED };
        let mut bench = Bench::new(config);
        let put = |bench: &mut Bench, ecn| {
            let packet = Packet::new(HostId(0), HostId(1), 1500, Tag(0)).with_ecn(ecn);
            let packet = bench.pool.insert(packet);
            bench.queue.enqueue(&mut bench.pool, packet, &mut bench.rng)
        };
        let dropped = Admission::Dropped(DropReason::Selective);
        for expected in [Admission::Queued, Admission::Queued, Admission::Queued, dropped, dropped]
        {
            assert_eq!(put(&mut bench, Ecn::NotCapable), expected);
        }
        assert_eq!(put(&mut bench, Ecn::Capable), Admission::Marked);
        assert_eq!(put(&mut bench, Ecn::Marked), Admission::Marked);
        assert_eq!((bench.queue.bytes(), bench.pool.live()), (5 * 1538, 5));
    }
}
