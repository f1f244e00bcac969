//! Packets. They are `Copy` and need no allocation, because they refer to the bytes of a message instead of holding
//! them.

use core::fmt;

use crate::frame;
use crate::ids::{HostId, MessageId};
use crate::telemetry::Stamp;

/// A range of a message's bytes. The driver owns the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The message, by the id under which its sender submitted it.
    pub message: MessageId,
    /// Offset of the first byte within the message.
    pub offset: u32,
    /// Number of bytes.
    pub len: u32,
}

/// The two ECN bits of the IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Not ECN-capable: a congested queue drops the packet instead of marking it.
    #[default]
    NotCapable,
    /// ECN-capable, and not marked.
    Capable,
    /// Congestion experienced: a queue has marked the packet.
    Marked,
}

/// What a queue in the order of remaining size (pFabric, SIGCOMM'13, section 4.2) reads of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// The packet's message. Together with the packet's source it names the flow, whose packets keep their order.
    pub message: MessageId,
    /// Bytes of the message that its sender did not know to have arrived when it sent the packet: the less, the sooner
    /// the packet is sent.
    pub remaining: u32,
}

/// A protocol's typed header. The simulator carries it unencoded; Linux encodes it.
pub trait Header: Copy + fmt::Debug {
    /// Whether switches write into packets with such headers ([`Header::stamp`]).
    const STAMPED: bool = false;

    /// Returns the range of message bytes that the packet carries, if any.
    fn payload(&self) -> Option<Slice>;

    /// Returns the index of the path that the sender has chosen, among those of the fabric between the two hosts.
    /// Switches obey it if the packet is sprayed; without an index they choose themselves.
    #[inline]
    fn path(&self) -> Option<u16> {
        None
    }

    /// Returns the packet's rank in queues that are in the order of remaining size; `None` if the protocol has none. Such
    /// packets, and those of control, precede all others.
    #[inline]
    fn rank(&self) -> Option<Rank> {
        None
    }

    /// Returns the number of payload bytes: the length of [`Header::payload`].
    fn payload_bytes(&self) -> u32 {
        self.payload().map_or(0, |slice| slice.len)
    }

    /// Returns the units of a processor's work that the packet's content takes in addition to its bytes, such as the numbers to be
    /// added up; 0 for packets whose content is only stored.
    #[inline]
    fn work(&self) -> u32 {
        0
    }

    /// Returns the request or one-way message that the packet belongs to, whichever of the two hosts has sent it; `None` for
    /// protocols whose packets may carry bytes of several.
    fn exchange_id(&self) -> Option<MessageId> {
        None
    }

    /// Writes what a switch's port knows into the packet that leaves by it, if the packet has room. Called only if
    /// [`Header::STAMPED`].
    fn stamp(&mut self, _stamp: Stamp) {}

    /// Writes the protocol's name and the header's fields in one line.
    ///
    /// # Errors
    /// Those of the formatter.
    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A packet: 16 bytes and the header. Together they take at most 64 bytes (asserted where the headers are defined), so
/// that a packet fits one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<H> {
    /// The host that sent the packet.
    pub src: HostId,
    /// The host, switch or group that it is addressed to (see [`crate::Destination`]).
    pub dst: HostId,
    /// Source port (high half) and destination port (low half). ECMP hashes them together with the two hosts, so that
    /// packets with equal ports take the same path.
    pub ports: u32,
    /// Bytes that the packet occupies on a link, including Ethernet header, checksum, preamble and gap.
    pub wire_bytes: u16,
    /// The priority queue that it uses in each switch: 0 (lowest) to 7 (highest).
    pub priority: u8,
    flags: u8,
    /// The header of the protocol.
    pub header: H,
}

const ECN_CAPABLE: u8 = 1;
const ECN_MARKED: u8 = 2;
const SPRAY: u8 = 4;
const TRIMMABLE: u8 = 8;
/// Together with [`TRIMMABLE`], this bit means that the packet was returned to its sender.
const TRIMMED: u8 = 16;
/// The three highest bits hold the number of the transport at the host.
const INSTANCE_SHIFT: u32 = 5;

impl<H: Header> Packet<H> {
    /// Creates a packet of `l3_bytes` (from the IP header on) at priority 0 that is neither ECN-capable, sprayed nor
    /// trimmable.
    #[must_use]
    #[inline]
    pub const fn new(src: HostId, dst: HostId, l3_bytes: u32, header: H) -> Self {
        let wire_bytes = frame::wire_bytes(l3_bytes) as u16;
        Self { src, dst, ports: 0, wire_bytes, priority: 0, flags: 0, header }
    }

    /// Sets the priority: the queue that the packet uses in each switch.
    #[must_use]
    #[inline]
    pub const fn with_priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the source and destination port.
    #[must_use]
    #[inline]
    pub const fn with_ports(mut self, source: u16, destination: u16) -> Self {
        self.ports = (source as u32) << 16 | destination as u32;
        self
    }

    /// Sets whether each switch chooses a path for this packet separately.
    #[must_use]
    #[inline]
    pub const fn sprayed(mut self, spray: bool) -> Self {
        self.flags = if spray { self.flags | SPRAY } else { self.flags & !SPRAY };
        self
    }

    /// Lets a full queue trim the packet to its header instead of dropping it.
    #[must_use]
    #[inline]
    pub const fn trimmable(mut self) -> Self {
        self.flags |= TRIMMABLE;
        self
    }

    /// Sets the ECN bits.
    #[must_use]
    #[inline]
    pub const fn with_ecn(mut self, ecn: Ecn) -> Self {
        self.flags &= !(ECN_CAPABLE | ECN_MARKED);
        self.flags |= match ecn {
            Ecn::NotCapable => 0,
            Ecn::Capable => ECN_CAPABLE,
            Ecn::Marked => ECN_CAPABLE | ECN_MARKED,
        };
        self
    }

    /// Returns the ECN bits.
    #[must_use]
    #[inline]
    pub const fn ecn(&self) -> Ecn {
        if self.flags & ECN_MARKED != 0 {
            Ecn::Marked
        } else if self.flags & ECN_CAPABLE != 0 {
            Ecn::Capable
        } else {
            Ecn::NotCapable
        }
    }

    /// Marks the packet if it is ECN-capable, and returns whether it did.
    #[inline]
    pub const fn mark(&mut self) -> bool {
        let capable = self.flags & ECN_CAPABLE != 0;
        if capable {
            self.flags |= ECN_MARKED;
        }
        capable
    }

    /// Returns whether each switch chooses a path for this packet separately.
    #[must_use]
    #[inline]
    pub const fn is_sprayed(&self) -> bool {
        self.flags & SPRAY != 0
    }

    /// Returns whether a full queue may trim the packet.
    #[must_use]
    #[inline]
    pub const fn is_trimmable(&self) -> bool {
        self.flags & (TRIMMED | TRIMMABLE) == TRIMMABLE
    }

    /// Returns whether a switch has trimmed the packet to its header.
    #[must_use]
    #[inline]
    pub const fn is_trimmed(&self) -> bool {
        self.flags & TRIMMED != 0
    }

    /// The instance of packets that programs of switches make: they are for the node of a group system at their host, however many
    /// transports that has.
    pub const NODE_INSTANCE: u8 = 7;

    /// Assigns the packet to the `instance`-th transport of its hosts (0 to 7). Drivers that run several transports
    /// side by side distinguish them by this number, as real hosts do by protocol and port.
    ///
    /// # Panics
    /// If `instance` is above 7.
    #[must_use]
    #[inline]
    pub const fn with_instance(mut self, instance: u8) -> Self {
        assert!(instance < 8, "a host has at most 8 transports");
        self.flags = self.flags & !(7 << INSTANCE_SHIFT) | instance << INSTANCE_SHIFT;
        self
    }

    /// Returns the number of the transport, at both hosts, that the packet belongs to.
    #[must_use]
    #[inline]
    pub const fn instance(&self) -> u8 {
        self.flags >> INSTANCE_SHIFT
    }

    /// Returns the source port: the high half of [`Packet::ports`].
    #[must_use]
    pub const fn source_port(&self) -> u16 {
        (self.ports >> 16) as u16
    }

    /// Returns the destination port: the low half of [`Packet::ports`].
    #[must_use]
    pub const fn destination_port(&self) -> u16 {
        self.ports as u16
    }

    /// Converts the header and leaves the other fields as they are.
    #[must_use]
    #[inline]
    pub fn map<G>(self, f: impl FnOnce(H) -> G) -> Packet<G> {
        let Self { src, dst, ports, wire_bytes, priority, flags, header } = self;
        Packet { src, dst, ports, wire_bytes, priority, flags, header: f(header) }
    }

    /// Removes the payload, as NDP's switches do, and leaves a frame of minimum size.
    pub const fn trim(&mut self) {
        self.flags = self.flags & !TRIMMABLE | TRIMMED;
        self.wire_bytes = frame::wire_bytes(frame::MIN_PAYLOAD) as u16;
    }

    /// Returns the packet as it is after a switch has trimmed it and, if `returned`, sent it back. The addresses do not
    /// change. Drivers use this for packets that they decode.
    #[must_use]
    pub const fn trimmed(mut self, returned: bool) -> Self {
        self.trim();
        if returned {
            self.flags |= TRIMMABLE;
        }
        self
    }

    /// Returns a packet to its sender without its payload, as NDP's switches do when there is no room for its header
    /// either. A packet is returned only once.
    pub const fn return_to_sender(&mut self) {
        (self.src, self.dst) = (self.dst, self.src);
        self.trim();
        self.flags |= TRIMMABLE;
    }

    /// Returns whether a switch has returned the packet: its source is then the host that it was addressed to.
    #[must_use]
    #[inline]
    pub const fn is_returned(&self) -> bool {
        self.flags & (TRIMMED | TRIMMABLE) == TRIMMED | TRIMMABLE
    }

    /// Returns the range of message bytes that the packet carries; `None` after trimming.
    pub fn payload(&self) -> Option<Slice> {
        if self.is_trimmed() { None } else { self.header.payload() }
    }
}
