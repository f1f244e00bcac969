//! Storage of packets in flight: a pool of slots, FIFOs threaded through it, and the results of queueing.
//!
//! A packet stays in its slot from the sender's NIC to the receiver; queues and links pass a 4-byte [`PacketRef`]
//! along. The pool grows to the largest number of packets that were ever in flight and keeps that size, so there is no
//! allocation per packet.

use crate::packet::{Header, Packet};
use crate::prefetch::prefetch;
use crate::time::Time;

/// The index of a slot in a [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PacketRef(u32);

impl PacketRef {
    /// Returns the number of the slot, for tables of packets in the order of their slots.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Ends a list: the index that no packet has.
const NONE: u32 = u32::MAX;

/// A packet, aligned to a cache line of its own.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Slot<H>(Packet<H>);

/// The fields of a packet that queues and links use, stored apart from the packet. Four fit a cache line, and the
/// packet itself is accessed only where it is created, routed and received.
#[derive(Clone, Copy, Debug)]
struct Link {
    at: Time,
    next: u32,
    wire_bytes: u16,
    priority: u8,
}

impl Link {
    #[inline]
    const fn from_packet<H>(packet: &Packet<H>) -> Self {
        let Packet { wire_bytes, priority, .. } = *packet;
        Self { at: Time::ZERO, next: NONE, wire_bytes, priority }
    }
}

/// The slots of all packets in flight.
#[derive(Debug)]
pub struct Pool<H> {
    slots: Vec<Slot<H>>,
    links: Vec<Link>,
    free: u32,
    live: u32,
}

impl<H: Header> Default for Pool<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Header> Pool<H> {
    /// Bytes of memory for each packet in flight.
    pub const BYTES_PER_PACKET: usize = size_of::<Slot<H>>() + size_of::<Link>();

    /// Creates an empty pool.
    #[must_use]
    pub const fn new() -> Self {
        Self { slots: Vec::new(), links: Vec::new(), free: NONE, live: 0 }
    }

    /// Stores a packet in a free slot.
    ///
    /// # Panics
    /// If 2^32 - 1 packets are already in flight.
    #[inline]
    pub fn insert(&mut self, packet: Packet<H>) -> PacketRef {
        self.live += 1;
        let link = Link::from_packet(&packet);
        let slot = Slot(packet);
        if self.free == NONE {
            let index = u32::try_from(self.slots.len()).ok().filter(|i| *i != NONE);
            let index = index.expect("fewer than 2^32 packets under way");
            self.slots.push(slot);
            self.links.push(link);
            PacketRef(index)
        } else {
            let index = self.free;
            self.free = self.links[index as usize].next;
            self.links[index as usize] = link;
            self.slots[index as usize] = slot;
            PacketRef(index)
        }
    }

    /// Inserts a copy of a packet.
    #[inline]
    pub fn duplicate(&mut self, packet: PacketRef) -> PacketRef {
        if self.free == NONE {
            return self.insert(self.slots[packet.0 as usize].0);
        }
        self.live += 1;
        let (index, from) = (self.free as usize, packet.0 as usize);
        self.free = self.links[index].next;
        self.links[index] = Link { next: NONE, ..self.links[from] };
        self.slots.copy_within(from..=from, index);
        PacketRef(index as u32)
    }

    /// Removes a packet and frees its slot.
    #[inline]
    pub fn remove(&mut self, packet: PacketRef) -> Packet<H> {
        self.live -= 1;
        self.links[packet.0 as usize].next = self.free;
        self.free = packet.0;
        self.slots[packet.0 as usize].0
    }

    /// Returns the packet in a slot.
    #[must_use]
    #[inline]
    pub fn get(&self, packet: PacketRef) -> &Packet<H> {
        &self.slots[packet.0 as usize].0
    }

    /// Calls `change` with the packet in a slot, and returns its result.
    #[inline]
    pub fn modify<R>(&mut self, packet: PacketRef, change: impl FnOnce(&mut Packet<H>) -> R) -> R {
        let slot = &mut self.slots[packet.0 as usize].0;
        let result = change(slot);
        let link = &mut self.links[packet.0 as usize];
        (link.wire_bytes, link.priority) = (slot.wire_bytes, slot.priority);
        result
    }

    /// Returns the bytes that a packet occupies on a link.
    #[must_use]
    #[inline]
    pub fn wire_bytes(&self, packet: PacketRef) -> u32 {
        u32::from(self.links[packet.0 as usize].wire_bytes)
    }

    /// Returns a packet's priority.
    #[must_use]
    #[inline]
    pub fn priority(&self, packet: PacketRef) -> u8 {
        self.links[packet.0 as usize].priority
    }

    /// Returns the packet after this one in its list, or `None` if it is the last.
    #[must_use]
    #[inline]
    pub fn after(&self, packet: PacketRef) -> Option<PacketRef> {
        let next = self.links[packet.0 as usize].next;
        (next != NONE).then_some(PacketRef(next))
    }

    /// Returns the time stored with a packet. For a packet on a link it is the time of arrival.
    #[must_use]
    #[inline]
    pub fn time(&self, packet: PacketRef) -> Time {
        self.links[packet.0 as usize].at
    }

    /// Requests the cache lines of a packet.
    #[inline]
    pub fn prefetch(&self, packet: PacketRef) {
        prefetch(&self.slots[packet.0 as usize]);
        self.prefetch_link(packet);
    }

    /// Requests the cache line with the packet's place in its list.
    #[inline]
    pub fn prefetch_link(&self, packet: PacketRef) {
        prefetch(&self.links[packet.0 as usize]);
    }

    /// Returns the number of packets in flight.
    #[must_use]
    pub const fn live(&self) -> u32 {
        self.live
    }

    /// Returns the largest number of packets that were in flight at the same time.
    #[must_use]
    pub fn capacity_used(&self) -> usize {
        self.slots.len()
    }
}

/// A first-in, first-out list of packets, threaded through the pool. It takes 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Fifo {
    head: u32,
    tail: u32,
}

impl Default for Fifo {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Fifo {
    /// The empty list.
    pub const EMPTY: Self = Self { head: NONE, tail: NONE };

    /// Returns whether the list has no packets.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Returns the first packet without removing it.
    #[must_use]
    #[inline]
    pub const fn front(&self) -> Option<PacketRef> {
        if self.head == NONE { None } else { Some(PacketRef(self.head)) }
    }

    /// Returns the last packet without removing it.
    #[must_use]
    #[inline]
    pub const fn back(&self) -> Option<PacketRef> {
        if self.head == NONE { None } else { Some(PacketRef(self.tail)) }
    }

    /// Appends a packet, which must not be in any list.
    #[inline]
    pub fn push<H: Header>(&mut self, pool: &mut Pool<H>, packet: PacketRef) {
        pool.links[packet.0 as usize].next = NONE;
        if self.head == NONE {
            self.head = packet.0;
        } else {
            pool.links[self.tail as usize].next = packet.0;
        }
        self.tail = packet.0;
    }

    /// As [`Self::push`], and stores a time with the packet.
    #[inline]
    pub fn push_timed<H: Header>(&mut self, pool: &mut Pool<H>, packet: PacketRef, at: Time) {
        let link = &mut pool.links[packet.0 as usize];
        (link.at, link.next) = (at, NONE);
        if self.head == NONE {
            self.head = packet.0;
        } else {
            pool.links[self.tail as usize].next = packet.0;
        }
        self.tail = packet.0;
    }

    /// Removes the first packet and returns it.
    #[inline]
    pub fn pop<H: Header>(&mut self, pool: &Pool<H>) -> Option<PacketRef> {
        if self.head == NONE {
            return None;
        }
        let packet = self.head;
        self.head = pool.links[packet as usize].next;
        Some(PacketRef(packet))
    }
}

/// Why a packet was dropped. The discriminants index counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[repr(u8)]
pub enum DropReason {
    /// The port's own buffer was full.
    QueueFull,
    /// The share of the switch's shared buffer that this port may use was full.
    SharedBufferFull,
    /// The packet was trimmed, and the header queue was full too.
    HeaderQueueFull,
    /// There is no working path to the destination.
    NoRoute,
    /// An injected fault lost the packet.
    FaultLoss,
    /// An injected fault damaged the packet, and the receiver's checksum rejected it.
    Corrupted,
    /// The packet was on a link, or waiting for it, when the link went down.
    LinkDown,
    /// The host was down.
    HostDown,
    /// The host was paused and its receive ring was full.
    HostPaused,
    /// No transport at the host handles the packet's protocol.
    WrongProtocol,
    /// A switch program dropped it.
    Program,
    /// There was no room in the switch for the payload of a copy or of a packet that a program created.
    NoBuffer,
    /// The packet was on a link, waited for it or was to enter it while an optical circuit switch had no circuit for it.
    Reconfiguration,
    /// The queue was above the threshold of selective dropping, and the packet is not ECN-capable (Aeolus).
    Selective,
}

impl DropReason {
    /// All reasons, in the order of their discriminants.
    pub const ALL: [Self; 14] = [
        Self::QueueFull,
        Self::SharedBufferFull,
        Self::HeaderQueueFull,
        Self::NoRoute,
        Self::FaultLoss,
        Self::Corrupted,
        Self::LinkDown,
        Self::HostDown,
        Self::HostPaused,
        Self::WrongProtocol,
        Self::Program,
        Self::NoBuffer,
        Self::Reconfiguration,
        Self::Selective,
    ];

    /// Returns the name that results use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::SharedBufferFull => "shared_buffer_full",
            Self::HeaderQueueFull => "header_queue_full",
            Self::NoRoute => "no_route",
            Self::FaultLoss => "fault_loss",
            Self::Corrupted => "corrupted",
            Self::LinkDown => "link_down",
            Self::HostDown => "host_down",
            Self::HostPaused => "host_paused",
            Self::WrongProtocol => "wrong_protocol",
            Self::Program => "program",
            Self::NoBuffer => "no_buffer",
            Self::Reconfiguration => "lost_in_reconfiguration",
            Self::Selective => "selective_drop",
        }
    }
}

/// The result of putting a packet into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The packet waits in the queue.
    Queued,
    /// The packet waits in the queue and carries a new ECN mark.
    Marked,
    /// This packet, or one already waiting, was trimmed to its header; both wait.
    Trimmed,
    /// The packet named here, either the new one or one already waiting, left the queue and must be returned to its
    /// sender.
    ReturnedToSender(PacketRef),
    /// The packet waits in a queue in the order of remaining size, which now holds more bytes than it may: the caller
    /// removes packets from it.
    Overfull,
    /// The packet was dropped, and its slot is free.
    Dropped(DropReason),
}
