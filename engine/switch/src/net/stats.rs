//! Statistics of a network: counters, ports, queue samples and captures.

use rackweave_core::{
    DropReason, Header, Packet, PacketRef, PayloadStore, Span, SwitchProgram, Time,
};

use super::nic::Edge;
use super::{Link, Net, TAPPED};

/// Number of packets that captures hold beyond their limit before they are cut.
const CAPTURE_SLACK: usize = 1024;

/// Maximum number of queue samples that are kept.
const MAX_SAMPLES: usize = 1 << 20;

/// Counters of events since the network started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Counters {
    /// Events that the engine has handled.
    pub events: u64,
    /// Packets that hosts have sent.
    pub sent: u64,
    /// Packets transmitted over one link, summed over links, when they arrive at its end.
    pub packet_hops: u64,
    /// Packets dropped, by [`DropReason`] in the order of [`DropReason::ALL`].
    pub drops: [u64; DropReason::ALL.len()],
    /// Packets that switches have marked with Congestion Experienced.
    pub ecn_marks: u64,
    /// Packets trimmed to their headers.
    pub trims: u64,
    /// Trimmed packets that were returned to their senders.
    pub returned_to_sender: u64,
    /// Packets that a fault damaged and that were forwarded for the receiver to detect. (Other damaged packets
    /// are among the drops.)
    pub corrupted: u64,
    /// Packets duplicated by a fault.
    pub duplicated: u64,
    /// Packets delayed by a fault.
    pub reordered: u64,
    /// Packets that were handed over too late: they should already have been in a queue.
    pub clamped: u64,
    /// Copies that switch programs have requested, beyond the packet itself.
    pub copied: u64,
    /// Packets that switch programs have consumed.
    pub consumed: u64,
    /// Packets that switch programs have made.
    pub made: u64,
    /// Pauses by PFC, of ports and NICs.
    pub pauses: u64,
}

impl Counters {
    /// All packets dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Adds the counts of another shard of the fabric.
    pub fn add(&mut self, other: &Self) {
        let Self {
            events,
            sent,
            packet_hops,
            drops,
            ecn_marks,
            trims,
            returned_to_sender,
            corrupted,
            duplicated,
            reordered,
            clamped,
            copied,
            consumed,
            made,
            pauses,
        } = other;
        self.events += events;
        self.sent += sent;
        self.packet_hops += packet_hops;
        self.drops.iter_mut().zip(drops).for_each(|(all, more)| *all += more);
        self.ecn_marks += ecn_marks;
        self.trims += trims;
        self.returned_to_sender += returned_to_sender;
        self.corrupted += corrupted;
        self.duplicated += duplicated;
        self.reordered += reordered;
        self.clamped += clamped;
        self.copied += copied;
        self.consumed += consumed;
        self.made += made;
        self.pauses += pauses;
    }
}

/// Statistics of one direction of a cable and of the queue before it, since the measurement started.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct LinkStats {
    /// The nodes at its ends, such as "leaf0->h3".
    pub name: String,
    /// Share of the time in which the link was sending.
    pub utilisation: f64,
    /// Time-averaged bytes in the queue.
    pub mean_queue_bytes: f64,
    /// Maximum number of bytes in the queue.
    pub max_queue_bytes: u64,
    /// Packets dropped in the queue or on the link.
    pub drops: u64,
    /// Current number of bytes in the queue. Packets that hosts send ahead of their own links are not counted:
    /// they wait before the switch.
    pub queue_bytes: u64,
    /// Packets put on the link since the network started; 0 unless [`super::NetConfig::count_frames`] is set.
    pub frames: u64,
    /// Bytes of these packets on the link, preamble and gap included.
    pub bytes: u64,
    /// How often the port or NIC before it was paused by PFC.
    pub pauses: u64,
    /// Share of the time in which it was paused.
    pub paused: f64,
}

/// The present state of one direction of a cable and of the queue before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// The time for which it was sending since the statistics of ports began: see [`Net::since`].
    pub busy: Span,
    /// Bytes in the queue.
    pub queue_bytes: u64,
    /// Packets dropped in the queue or on the link since the statistics of ports began.
    pub drops: u32,
}

/// One sample of the switches' queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct QueueSample {
    /// The time of the sample.
    pub at: Time,
    /// Bytes in the longest queue.
    pub max_bytes: u64,
    /// Bytes in the queues of the switch that has most of them.
    pub max_switch_bytes: u64,
    /// Bytes in all queues together.
    pub total_bytes: u64,
}

/// A captured packet.
#[derive(Clone, Debug)]
pub struct Captured<H> {
    /// When its first bit was sent.
    pub at: Time,
    /// The number of the tap: see [`Net::tap`].
    pub interface: u32,
    /// The packet with the content that was sent.
    pub packet: Packet<H>,
    /// Its first bytes, in networks whose packets have bytes: see [`PayloadStore::head`].
    pub head: Box<[u8]>,
}

impl<H> Captured<H> {
    /// Converts the packet's header.
    #[must_use]
    pub fn map<G>(self, f: impl FnOnce(H) -> G) -> Captured<G>
    where
        H: Header,
    {
        let Self { at, interface, packet, head } = self;
        Captured { at, interface, packet: packet.map(f), head }
    }

    /// The sort key of the packet among all captured packets.
    const fn place(&self) -> (Time, u32) {
        (self.at, self.interface)
    }
}

/// Statistics of the port before a link, in half a cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
pub(super) struct PortStats {
    /// Integral of queued bytes over time, in bytes times ticks.
    area: u128,
    changed_at: Time,
    /// At most 2^32 - 1: a longer queue would be 3 million packets at one port.
    max_bytes: u32,
    drops: u32,
}

const _: () = assert!(size_of::<PortStats>() == 32);

impl PortStats {
    /// Records a change of the queue's length from `before` to `after` bytes.
    #[inline]
    pub(super) fn queue_changes(&mut self, now: Time, before: u64, after: u64) {
        self.area += u128::from(before) * u128::from(now.since(self.changed_at).ticks());
        self.changed_at = now;
        self.max_bytes = self.max_bytes.max(saturated(after));
    }

    /// Counts a dropped packet.
    #[inline]
    pub(super) const fn count_drop(&mut self) {
        self.drops = self.drops.saturating_add(1);
    }
}

fn saturated(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Frames and bytes that a link has carried.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkCounts {
    pub(super) frames: u64,
    pub(super) bytes: u64,
}

/// The links whose packets are captured, and the packets.
#[derive(Debug)]
pub(super) struct Taps<H> {
    links: Vec<u32>,
    from: Time,
    limit: usize,
    packets: Vec<Captured<H>>,
    /// The sort key of the last packet that can be among the first `limit`.
    last: Option<(Time, u32)>,
}

impl<H> Default for Taps<H> {
    fn default() -> Self {
        Self { links: Vec::new(), from: Time::ZERO, limit: 0, packets: Vec::new(), last: None }
    }
}

impl<H> Taps<H> {
    fn add(&mut self, packet: Captured<H>) {
        if self.last.is_none_or(|last| packet.place() < last) {
            self.packets.push(packet);
            if self.packets.len() >= self.limit.saturating_add(CAPTURE_SLACK) {
                self.cut();
            }
        }
    }

    /// Sorts the packets, since decisions are made lazily and not recorded in the order of time, and keeps the first.
    fn cut(&mut self) {
        self.packets.sort_by_key(Captured::place);
        if self.packets.len() > self.limit {
            self.packets.truncate(self.limit);
            self.last = self.packets.last().map(Captured::place);
        }
    }
}

impl<P: SwitchProgram, B: PayloadStore<P::Header>> Net<P, B> {
    /// Captures the packets of a link from now on, and returns the number of the tap, counted from 0.
    pub fn tap(&mut self, link: u32) -> u32 {
        self.links[link as usize].special |= TAPPED;
        self.taps.links.push(link);
        self.taps.links.len() as u32 - 1
    }

    /// Sets when captures begin, and the most packets that they hold, all taps together: the first ones in the order of
    /// [`Net::take_captures`].
    pub const fn limit_captures(&mut self, from: Time, packets: usize) {
        (self.taps.from, self.taps.limit) = (from, packets);
    }

    /// Takes the captured packets in the order in which they were sent; those of one time are ordered by tap.
    pub fn take_captures(&mut self) -> Vec<Captured<P::Header>> {
        self.taps.cut();
        self.taps.last = None;
        std::mem::take(&mut self.taps.packets)
    }

    /// Adds the captured packets of other shards of the fabric, in any order.
    pub fn add_captures(&mut self, packets: Vec<Captured<P::Header>>) {
        self.taps.packets.extend(packets);
    }

    /// Captures a packet that is put on a link.
    #[cold]
    pub(super) fn capture(&mut self, link: u32, packet: PacketRef, at: Time) {
        if at < self.taps.from {
            return;
        }
        for interface in 0..self.taps.links.len() {
            if self.taps.links[interface] == link {
                let (interface, packet) = (interface as u32, *self.pool.get(packet));
                let head = self.payloads.head(&packet).into();
                self.taps.add(Captured { at, interface, packet, head });
            }
        }
    }

    /// Starts the statistics of ports at this time, or now if the time has passed.
    pub fn measure_from(&mut self, at: Time) {
        self.events.push_timer(at.max(self.now), self.components.since);
    }

    /// Starts the statistics of ports now.
    pub fn measure_now<E: Edge<P::Header>>(&mut self, edge: &mut E) {
        let now = self.now;
        self.since = now;
        self.catch_up_all(edge);
        self.dropped_before = self.counters.dropped();
        for (link, stats) in self.links.iter_mut().zip(&mut self.stats) {
            let max_bytes = saturated(link.queue.bytes());
            *stats = PortStats { changed_at: now, max_bytes, ..PortStats::default() };
            link.busy = link.busy_until.since(now);
        }
        self.measure_pauses();
    }

    /// When the statistics of ports began.
    #[must_use]
    pub const fn since(&self) -> Time {
        self.since
    }

    /// The packets dropped before the statistics of ports began; 0 before that.
    #[must_use]
    pub const fn dropped_before(&self) -> u64 {
        self.dropped_before
    }

    /// Makes all decisions that are due by now.
    fn catch_up_all<E: Edge<P::Header>>(&mut self, edge: &mut E) {
        for host in 0..self.fabric.hosts() {
            self.flush(edge, rackweave_core::HostId(host));
        }
        for link in self.switch_links() {
            self.catch_up(link, self.now);
        }
    }

    /// Samples the queues of all switches.
    pub(super) fn on_sample<E: Edge<P::Header>>(&mut self) {
        self.uncount_common_event();
        self.will_sample = false;
        let mut sample =
            QueueSample { at: self.now, max_bytes: 0, max_switch_bytes: 0, total_bytes: 0 };
        // The links of a switch follow each other in the fabric's order.
        let (mut switch, mut switch_bytes) = (None, 0);
        for link in self.switch_links() {
            if !self.has_port(link) {
                continue;
            }
            self.catch_up(link, self.now);
            let bytes = self.links[link as usize].queue.bytes();
            let from = self.fabric.links()[link as usize].from;
            if switch.replace(from) != Some(from) {
                switch_bytes = 0;
            }
            switch_bytes += bytes;
            sample.max_bytes = sample.max_bytes.max(bytes);
            sample.max_switch_bytes = sample.max_switch_bytes.max(switch_bytes);
            sample.total_bytes += bytes;
        }
        self.series.push(sample);
        // Samples must not keep a run alive that has no other event.
        let goes_on = E::EXTERNAL || self.samples_when_idle || !self.events.is_empty();
        if self.series.len() < MAX_SAMPLES && goes_on {
            self.events.push_timer(self.now + self.sample_every, self.components.sample);
            self.will_sample = true;
        }
    }

    /// Adds the samples of another shard of the fabric, which have the same times.
    pub fn add_series(&mut self, series: &[QueueSample]) {
        for (all, more) in self.series.iter_mut().zip(series) {
            assert_eq!(all.at, more.at, "shards sample at the same times");
            all.max_bytes = all.max_bytes.max(more.max_bytes);
            all.max_switch_bytes = all.max_switch_bytes.max(more.max_switch_bytes);
            all.total_bytes += more.total_bytes;
        }
    }

    /// The queues over time.
    #[must_use]
    pub fn series(&self) -> &[QueueSample] {
        &self.series
    }

    /// The present states of all links, in the fabric's order: link `h` is the uplink of host `h`. Hosts are not polled for what they would
    /// have sent since their last packet, so that a run is the same whether its links are looked at or not.
    pub fn link_states(&mut self) -> Vec<LinkState> {
        let now = self.now;
        for link in self.switch_links() {
            self.catch_up(link, now);
        }
        let state = |(link, stats): (&Link, &PortStats)| LinkState {
            busy: link.busy_by(now),
            queue_bytes: link.queue.bytes(),
            drops: stats.drops,
        };
        self.links.iter().zip(&self.stats).map(state).collect()
    }

    /// All links, in the fabric's order: link `h` is the uplink of host `h`.
    pub fn link_stats<E: Edge<P::Header>>(&mut self, edge: &mut E) -> Vec<LinkStats> {
        self.catch_up_all(edge);
        let now = self.now;
        let observed = now.since(self.since).ticks().max(1) as f64;
        let links = self.links.iter().enumerate().map(|(number, link)| {
            let mut stats = self.stats[number];
            stats.queue_changes(now, link.queue.bytes(), link.queue.bytes());
            let busy = link.busy_by(now);
            let counts = self.counts.get(number).copied().unwrap_or_default();
            let (pauses, paused) = self.pauses_of(number as u32);
            LinkStats {
                name: self.fabric.link_name(number as u32),
                utilisation: busy.ticks() as f64 / observed,
                mean_queue_bytes: stats.area as f64 / observed,
                max_queue_bytes: u64::from(stats.max_bytes),
                drops: u64::from(stats.drops),
                queue_bytes: link.queue.bytes(),
                frames: counts.frames,
                bytes: counts.bytes,
                pauses,
                paused: paused.ticks() as f64 / observed,
            }
        });
        links.collect()
    }
}
