//! Packets: `Copy`, without allocation; they name the bytes of a message instead of holding them.

use crate::frame;
use crate::ids::{HostId, MessageId};

/// A range of a message's bytes: the driver owns the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The message, by the id with which it was submitted at its sender.
    pub message: MessageId,
    /// First byte within the message.
    pub offset: u32,
    /// Number of bytes.
    pub len: u32,
}

/// The two ECN bits of the IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// The transport does not react to marks: a full queue drops instead.
    #[default]
    NotCapable,
    /// May be marked.
    Capable,
    /// Was marked: congestion experienced.
    Marked,
}

/// A protocol's typed header. The simulator carries it as it is; Linux encodes it.
pub trait Header: Copy + core::fmt::Debug {
    /// The message bytes that the packet carries, if any.
    fn payload(&self) -> Option<Slice>;

    /// The number of the path that its sender has picked, of as many as the fabric has between two
    /// hosts. Switches follow it if the packet is sprayed; without one they pick for themselves.
    #[inline]
    fn path(&self) -> Option<u16> {
        None
    }

    /// Bytes of payload: the length of [`Header::payload`].
    fn payload_bytes(&self) -> u32 {
        self.payload().map_or(0, |slice| slice.len)
    }
}

/// A packet: 16 bytes and the header, together at most 64 (asserted where the
/// headers are known), so that it fills one cache line and costs no allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<H> {
    /// The host that sent it.
    pub src: HostId,
    /// The host that it is for.
    pub dst: HostId,
    /// Source port (high half) and destination port (low half): with the two hosts, what ECMP
    /// hashes, so that packets with equal ports take the same path.
    pub ports: u32,
    /// Bytes it takes on a link, Ethernet header, checksum, preamble and gap included.
    pub wire_bytes: u16,
    /// Queue in each switch: 0 (lowest) to 7 (highest).
    pub priority: u8,
    flags: u8,
    /// The protocol's header.
    pub header: H,
}

const ECN_CAPABLE: u8 = 1;
const ECN_MARKED: u8 = 2;
const SPRAY: u8 = 4;
const TRIMMABLE: u8 = 8;
/// With [`TRIMMABLE`]: returned to its sender.
const TRIMMED: u8 = 16;
/// The three highest bits number the transport at the host.
const INSTANCE_SHIFT: u32 = 5;

impl<H: Header> Packet<H> {
    /// A packet of `l3_bytes` (from the IP header on) at priority 0: not ECN-capable, not sprayed,
    /// not trimmable.
    #[must_use]
    #[inline]
    pub const fn new(src: HostId, dst: HostId, l3_bytes: u32, header: H) -> Self {
        let wire_bytes = frame::wire_bytes(l3_bytes) as u16;
        Self { src, dst, ports: 0, wire_bytes, priority: 0, flags: 0, header }
    }

    /// The same packet in this queue of each switch.
    #[must_use]
    #[inline]
    pub const fn with_priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// The same packet between these ports.
    #[must_use]
    #[inline]
    pub const fn with_ports(mut self, source: u16, destination: u16) -> Self {
        self.ports = (source as u32) << 16 | destination as u32;
        self
    }

    /// The same packet, sprayed: each switch chooses a path for this packet by itself.
    #[must_use]
    #[inline]
    pub const fn sprayed(mut self, spray: bool) -> Self {
        self.flags = if spray { self.flags | SPRAY } else { self.flags & !SPRAY };
        self
    }

    /// The same packet, which a full queue may trim to its header instead of dropping it.
    #[must_use]
    #[inline]
    pub const fn trimmable(mut self) -> Self {
        self.flags |= TRIMMABLE;
        self
    }

    /// The same packet with these ECN bits.
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

    /// Its ECN bits.
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

    /// Marks it, if its transport reacts to marks; returns whether it did.
    #[inline]
    pub const fn mark(&mut self) -> bool {
        let capable = self.flags & ECN_CAPABLE != 0;
        if capable {
            self.flags |= ECN_MARKED;
        }
        capable
    }

    /// Whether each switch chooses a path for this packet by itself.
    #[must_use]
    #[inline]
    pub const fn is_sprayed(&self) -> bool {
        self.flags & SPRAY != 0
    }

    /// Whether a full queue may trim it.
    #[must_use]
    #[inline]
    pub const fn is_trimmable(&self) -> bool {
        self.flags & (TRIMMED | TRIMMABLE) == TRIMMABLE
    }

    /// Whether it was trimmed to its header.
    #[must_use]
    #[inline]
    pub const fn is_trimmed(&self) -> bool {
        self.flags & TRIMMED != 0
    }

    /// The same packet, of the `instance`-th transport of its hosts (0 to 7): drivers that run several
    /// transports side by side distinguish them by it, as real hosts do by protocol and port.
    ///
    /// # Panics
    /// If `instance` is above 7.
    #[must_use]
    #[inline]
    pub const fn of_instance(mut self, instance: u8) -> Self {
        assert!(instance < 8, "a host has at most 8 transports");
        self.flags = self.flags & !(7 << INSTANCE_SHIFT) | instance << INSTANCE_SHIFT;
        self
    }

    /// The transport of its hosts that it belongs to.
    #[must_use]
    #[inline]
    pub const fn instance(&self) -> u8 {
        self.flags >> INSTANCE_SHIFT
    }

    /// The source port: the high half of [`Packet::ports`].
    #[must_use]
    pub const fn source_port(&self) -> u16 {
        (self.ports >> 16) as u16
    }

    /// The destination port: the low half of [`Packet::ports`].
    #[must_use]
    pub const fn destination_port(&self) -> u16 {
        self.ports as u16
    }

    /// The same packet under another header type.
    #[must_use]
    #[inline]
    pub fn map<G>(self, f: impl FnOnce(H) -> G) -> Packet<G> {
        let Self { src, dst, ports, wire_bytes, priority, flags, header } = self;
        Packet { src, dst, ports, wire_bytes, priority, flags, header: f(header) }
    }

    /// Removes the payload, as NDP's switches do: a minimum frame remains.
    pub const fn trim(&mut self) {
        self.flags = self.flags & !TRIMMABLE | TRIMMED;
        self.wire_bytes = frame::wire_bytes(frame::MIN_PAYLOAD) as u16;
    }

    /// The same packet after a switch has trimmed its payload and, if `returned`, returned it to its sender; the
    /// addresses are not changed. For drivers that decode packets.
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

    /// Whether a switch has returned it: its source is the host that it was for.
    #[must_use]
    #[inline]
    pub const fn is_returned(&self) -> bool {
        self.flags & (TRIMMED | TRIMMABLE) == TRIMMED | TRIMMABLE
    }

    /// The bytes that the packet carries: none once it was trimmed.
    pub fn payload(&self) -> Option<Slice> {
        if self.is_trimmed() { None } else { self.header.payload() }
    }
}
