//! Storage of packets in flight: a pool of slots, FIFOs threaded through it, and the results of queueing.
//!
//! A packet stays in its slot from the sender's NIC to the receiver; queues and
//! links pass a 4-byte [`PacketRef`] on. The pool grows to the largest number of
//! packets that were ever under way and stays there: no allocation per packet.

use crate::packet::{Header, Packet};
use crate::time::Time;

/// The number of a slot in a [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRef(u32);

/// "No packet": the end of a list.
const NONE: u32 = u32::MAX;

/// A packet on its own cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Slot<H>(Packet<H>);

/// The fields of a packet that queues and links use, outside of the packet: four fit a cache line, and the packet
/// itself is accessed only where it is created, routed and received.
#[derive(Clone, Copy, Debug)]
struct Link {
    at: Time,
    next: u32,
    wire_bytes: u16,
    priority: u8,
}

impl Link {
    #[inline]
    const fn of<H>(packet: &Packet<H>) -> Self {
        let Packet { wire_bytes, priority, .. } = *packet;
        Self { at: Time::ZERO, next: NONE, wire_bytes, priority }
    }
}

/// Slots for packets in flight.
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
    /// Bytes of memory of one packet in flight.
    pub const BYTES_PER_PACKET: usize = size_of::<Slot<H>>() + size_of::<Link>();

    /// An empty pool.
    #[must_use]
    pub const fn new() -> Self {
        Self { slots: Vec::new(), links: Vec::new(), free: NONE, live: 0 }
    }

    /// Puts a packet into a slot.
    ///
    /// # Panics
    /// With 2^32 - 1 packets under way.
    #[inline]
    pub fn insert(&mut self, packet: Packet<H>) -> PacketRef {
        self.live += 1;
        let link = Link::of(&packet);
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

    /// Puts in a copy of a packet.
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

    /// Takes a packet out; its slot is free again.
    #[inline]
    pub fn remove(&mut self, packet: PacketRef) -> Packet<H> {
        self.live -= 1;
        self.links[packet.0 as usize].next = self.free;
        self.free = packet.0;
        self.slots[packet.0 as usize].0
    }

    /// The packet in a slot.
    #[must_use]
    #[inline]
    pub fn get(&self, packet: PacketRef) -> &Packet<H> {
        &self.slots[packet.0 as usize].0
    }

    /// Changes the packet in a slot.
    #[inline]
    pub fn modify<R>(&mut self, packet: PacketRef, change: impl FnOnce(&mut Packet<H>) -> R) -> R {
        let slot = &mut self.slots[packet.0 as usize].0;
        let result = change(slot);
        let link = &mut self.links[packet.0 as usize];
        (link.wire_bytes, link.priority) = (slot.wire_bytes, slot.priority);
        result
    }

    /// Bytes that a packet takes on a link.
    #[must_use]
    #[inline]
    pub fn wire_bytes(&self, packet: PacketRef) -> u32 {
        u32::from(self.links[packet.0 as usize].wire_bytes)
    }

    /// A packet's priority.
    #[must_use]
    #[inline]
    pub fn priority(&self, packet: PacketRef) -> u8 {
        self.links[packet.0 as usize].priority
    }

    /// The packet after this one in its list, if it is not the last.
    #[must_use]
    #[inline]
    pub fn after(&self, packet: PacketRef) -> Option<PacketRef> {
        let next = self.links[packet.0 as usize].next;
        (next != NONE).then_some(PacketRef(next))
    }

    /// The time noted beside a packet: on a link, when it arrives.
    #[must_use]
    #[inline]
    pub fn at(&self, packet: PacketRef) -> Time {
        self.links[packet.0 as usize].at
    }

    /// Notes a time beside a packet.
    #[inline]
    pub fn set_at(&mut self, packet: PacketRef, at: Time) {
        self.links[packet.0 as usize].at = at;
    }

    /// The number of packets in flight.
    #[must_use]
    pub const fn live(&self) -> u32 {
        self.live
    }

    /// The most packets that were in flight at one time.
    #[must_use]
    pub fn capacity_used(&self) -> usize {
        self.slots.len()
    }
}

/// A first-in first-out list of packets, threaded through the pool: 8 bytes.
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

    /// Whether nothing waits.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// The first packet.
    #[must_use]
    #[inline]
    pub const fn front(&self) -> Option<PacketRef> {
        if self.head == NONE { None } else { Some(PacketRef(self.head)) }
    }

    /// The last packet.
    #[must_use]
    #[inline]
    pub const fn back(&self) -> Option<PacketRef> {
        if self.head == NONE { None } else { Some(PacketRef(self.tail)) }
    }

    /// Appends a packet that is in no list.
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

    /// Takes the first packet.
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
    /// The switch's shared buffer left this port no more room.
    SharedBufferFull,
    /// Trimmed, and the header queue was full too.
    HeaderQueueFull,
    /// No working path to the destination.
    NoRoute,
    /// Lost by an injected fault.
    FaultLoss,
    /// Damaged by an injected fault and thrown away by the receiver's checksum.
    Corrupted,
    /// On a link, or before one, when it went down.
    LinkDown,
    /// The host was down.
    HostDown,
    /// A paused host's receive ring was full.
    HostPaused,
    /// No transport at the host handles the packet's protocol.
    WrongProtocol,
    /// A switch program dropped it.
    Program,
    /// A copy, or a packet of a program's own, found no room for its bytes in the switch.
    NoBuffer,
}

impl DropReason {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 12] = [
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
    ];

    /// Its name in results.
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
        }
    }
}

/// The result of putting a packet into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It waits in the queue.
    Queued,
    /// It waits in the queue, with an ECN mark.
    Marked,
    /// It, or one that waited, was trimmed to its header; both wait.
    Trimmed,
    /// This packet, the new one or one that waited, left the queue and is to be returned to its sender.
    ReturnedToSender(PacketRef),
    /// It was dropped, and its slot is free.
    Dropped(DropReason),
}
