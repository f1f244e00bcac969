//! Every header: a typed struct that the machines use, and its bytes.
//!
//! - [`homa`], [`tcp`], [`ndp`], [`phost`], [`polo`], [`datagram`]: the headers of one protocol each, `encode` and `decode`.
//! - [`Header`]: any of them; [`frame`]: with Ethernet and IPv4 in front, as a NIC sends it;
//!   [`overlay`]: inside a UDP datagram.
//! - [`dump`]: a packet as one line of text; [`pcapng`]: packets as a file for Wireshark.
//!
//! `decode` takes any bytes at all: it returns a header or says in a [`Malformed`] what is wrong.
//! A machine may still find that a header's offsets and lengths make no sense to it.

pub mod datagram;
pub mod dump;
pub mod frame;
pub mod homa;
mod malformed;
pub mod ndp;
pub mod orca;
pub mod overlay;
pub mod pcapng;
pub mod phost;
pub mod polo;
pub mod tcp;

use rackweave_core::{Header as HeaderTrait, Packet, Slice};

pub use malformed::Malformed;

/// A header of any protocol: what a fabric with several transports carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Homa.
    Homa(homa::Header),
    /// TCP and DCTCP.
    Tcp(tcp::Header),
    /// NDP.
    Ndp(ndp::Header),
    /// pHost.
    PHost(phost::Header),
    /// Polo.
    Polo(polo::Header),
    /// Datagrams: UDP.
    Datagram(datagram::Header),
}

/// TCP's IP protocol number.
pub const IP_PROTOCOL_TCP: u8 = 6;

impl Header {
    /// The number by which IP knows the protocol; Homa's depends on the layout.
    #[must_use]
    pub const fn ip_protocol(&self, layout: homa::Layout) -> u8 {
        match self {
            Self::Homa(_) => layout.ip_protocol(),
            Self::Tcp(_) => IP_PROTOCOL_TCP,
            Self::Ndp(_) => ndp::IP_PROTOCOL,
            Self::PHost(_) => phost::IP_PROTOCOL,
            Self::Polo(_) => polo::IP_PROTOCOL,
            Self::Datagram(_) => datagram::IP_PROTOCOL,
        }
    }

    /// Bytes of the header, without payload.
    #[must_use]
    pub const fn header_bytes(&self, layout: homa::Layout) -> u32 {
        match self {
            Self::Homa(header) => header.header_bytes(layout),
            Self::Tcp(header) => header.header_bytes(),
            Self::Ndp(header) => header.header_bytes(),
            Self::PHost(header) => header.header_bytes(),
            Self::Polo(header) => header.header_bytes(),
            Self::Datagram(_) => datagram::HEADER_BYTES,
        }
    }

    /// The length of the message that the packet carries bytes of, as it says; `None`: it carries none, or
    /// bytes of a stream, whose length nobody knows.
    #[must_use]
    pub const fn message_bytes(&self) -> Option<u32> {
        match *self {
            Self::Homa(homa::Header { body: homa::Body::Data { message_length, .. }, .. })
            | Self::Ndp(ndp::Header { body: ndp::Body::Data { message_length, .. }, .. })
            | Self::PHost(phost::Header {
                body: phost::Body::Data { message_length, .. }, ..
            })
            | Self::Polo(polo::Header { body: polo::Body::Data { message_length, .. }, .. })
            | Self::Datagram(datagram::Header { message_length, .. }) => Some(message_length),
            // A stream's bytes are of a message of no length.
            Self::Tcp(tcp::Header {
                body: tcp::Body::Data { message_length: length @ 1.., .. },
                ..
            }) => Some(length),
            _ => None,
        }
    }

    /// Appends the header's bytes.
    pub fn encode(&self, layout: homa::Layout, ports: Ports, out: &mut Vec<u8>) {
        match self {
            Self::Homa(header) => header.encode(layout, ports, out),
            Self::Tcp(header) => header.encode(ports, out),
            Self::Ndp(header) => header.encode(ports, out),
            Self::PHost(header) => header.encode(ports, out),
            Self::Polo(header) => header.encode(ports, out),
            Self::Datagram(header) => header.encode(ports, out),
        }
    }

    /// Reads the header of a packet of this IP protocol, which for Homa also tells the layout.
    /// IP says that there are `l4_bytes`; `bytes` may have been cut behind the header.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn decode(
        ip_protocol: u8,
        bytes: &[u8],
        l4_bytes: usize,
    ) -> Result<(Self, Ports), Malformed> {
        for layout in homa::Layout::ALL {
            if ip_protocol == layout.ip_protocol() {
                let (header, ports) = homa::Header::decode(layout, bytes, l4_bytes)?;
                return Ok((Self::Homa(header), ports));
            }
        }
        match ip_protocol {
            IP_PROTOCOL_TCP => {
                let (header, ports) = tcp::Header::decode(bytes, l4_bytes)?;
                Ok((Self::Tcp(header), ports))
            }
            ndp::IP_PROTOCOL => {
                let (header, ports) = ndp::Header::decode(bytes, l4_bytes)?;
                Ok((Self::Ndp(header), ports))
            }
            phost::IP_PROTOCOL => {
                let (header, ports) = phost::Header::decode(bytes, l4_bytes)?;
                Ok((Self::PHost(header), ports))
            }
            polo::IP_PROTOCOL => {
                let (header, ports) = polo::Header::decode(bytes, l4_bytes)?;
                Ok((Self::Polo(header), ports))
            }
            datagram::IP_PROTOCOL => {
                let (header, ports) = datagram::Header::decode(bytes, l4_bytes)?;
                Ok((Self::Datagram(header), ports))
            }
            other => Err(Malformed::Protocol(other)),
        }
    }
}

impl HeaderTrait for Header {
    #[inline]
    fn payload(&self) -> Option<Slice> {
        match self {
            Self::Homa(header) => header.payload(),
            Self::Tcp(header) => header.payload(),
            Self::Ndp(header) => header.payload(),
            Self::PHost(header) => header.payload(),
            Self::Polo(header) => header.payload(),
            Self::Datagram(header) => Some(header.payload()),
        }
    }

    #[inline]
    fn path(&self) -> Option<u16> {
        match self {
            Self::Ndp(header) => header.path(),
            _ => None,
        }
    }
}

impl From<homa::Header> for Header {
    #[inline]
    fn from(header: homa::Header) -> Self {
        Self::Homa(header)
    }
}

impl From<tcp::Header> for Header {
    #[inline]
    fn from(header: tcp::Header) -> Self {
        Self::Tcp(header)
    }
}

impl From<ndp::Header> for Header {
    #[inline]
    fn from(header: ndp::Header) -> Self {
        Self::Ndp(header)
    }
}

impl From<phost::Header> for Header {
    #[inline]
    fn from(header: phost::Header) -> Self {
        Self::PHost(header)
    }
}

impl From<polo::Header> for Header {
    #[inline]
    fn from(header: polo::Header) -> Self {
        Self::Polo(header)
    }
}

impl From<datagram::Header> for Header {
    #[inline]
    fn from(header: datagram::Header) -> Self {
        Self::Datagram(header)
    }
}

/// A packet of the mixed fabric fills one cache line (DESIGN, core).
const _: () = assert!(size_of::<Packet<Header>>() <= 64);

/// The two ports of a packet; a [`Packet`] holds them itself, all headers begin with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// The sender's.
    pub source: u16,
    /// The receiver's.
    pub destination: u16,
}

impl Ports {
    /// A packet's.
    #[must_use]
    pub const fn of<H: HeaderTrait>(packet: &Packet<H>) -> Self {
        Self { source: packet.source_port(), destination: packet.destination_port() }
    }
}

/// A `u64` aligned to 4 bytes, so that a header needs no padding around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(Rust, packed(4))]
pub struct Id64(u64);

impl Id64 {
    /// Wraps.
    #[must_use]
    #[inline]
    pub const fn new(value: u64) -> Self {
        Self(value)
    }
    /// Unwraps.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
}
