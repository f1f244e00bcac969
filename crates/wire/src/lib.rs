//! Every header: a typed struct that the machines use, and its bytes.
//!
//! - [`homa`], [`tcp`], [`ndp`], [`phost`], [`polo`], [`datagram`]: the headers of one protocol each; [`Codec`]: what
//!   each of them can do. [`transports!`] is the list of them.
//! - [`Header`]: any of them; [`frame`]: with Ethernet and IPv4 in front, as a NIC sends it;
//!   [`overlay`]: inside a UDP datagram.
//! - [`dump`]: a packet as one line of text; [`pcapng`]: packets as a file for Wireshark.
//!
//! `decode` takes any bytes at all: it returns a header or says in a [`Malformed`] what is wrong.
//! A machine may still find that a header's offsets and lengths make no sense to it.

mod codec;
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

pub use codec::Codec;
pub use malformed::Malformed;

/// The transports, of which this is the one list: calls a macro with the variant and the module of each. A crate with
/// such a module for each transport makes its own enum of them.
#[macro_export]
macro_rules! transports {
    ($define:ident) => {
        $define! {
            /// Homa, and Leverage Homa.
            Homa => homa,
            /// TCP (NewReno or CUBIC) and DCTCP.
            Tcp => tcp,
            /// NDP.
            Ndp => ndp,
            /// pHost.
            PHost => phost,
            /// Polo.
            Polo => polo,
            /// Datagrams, as UDP has them.
            Datagram => datagram,
        }
    };
}

macro_rules! define_header {
    ($($(#[$doc:meta])* $variant:ident => $module:ident,)+) => {
        /// A header of any protocol: what a fabric with several transports carries.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Header {
            $($(#[$doc])* $variant($module::Header),)+
        }

        $(impl From<$module::Header> for Header {
            #[inline]
            fn from(header: $module::Header) -> Self {
                Self::$variant(header)
            }
        })+

        /// Evaluates the same expression for whichever header it is.
        macro_rules! for_header {
            ($self:expr, $header:ident => $value:expr) => {
                match $self {
                    $(Header::$variant($header) => $value,)+
                }
            };
        }

        impl Header {
            /// Reads the header of a packet of this IP protocol, which for Homa also determines the layout.
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
                    $(if ip_protocol == <$module::Header as Codec>::ip_protocol(layout) {
                        let (header, ports) =
                            <$module::Header as Codec>::decode(layout, bytes, l4_bytes)?;
                        return Ok((Self::$variant(header), ports));
                    })+
                }
                Err(Malformed::Protocol(ip_protocol))
            }

            /// The number by which IP knows the protocol; Homa's depends on the layout.
            #[must_use]
            pub fn ip_protocol(&self, layout: homa::Layout) -> u8 {
                match self {
                    $(Self::$variant(_) => <$module::Header as Codec>::ip_protocol(layout),)+
                }
            }
        }
    };
}
transports!(define_header);

impl Header {
    /// Bytes of the header, without payload.
    #[must_use]
    pub fn header_bytes(&self, layout: homa::Layout) -> u32 {
        for_header!(self, header => Codec::header_bytes(header, layout))
    }

    /// The length of the message that the packet carries bytes of, as it says; `None`: it carries none, or
    /// bytes of a stream, whose length is not known.
    #[must_use]
    pub fn message_bytes(&self) -> Option<u32> {
        for_header!(self, header => header.message_bytes())
    }

    /// Appends the header's bytes.
    pub fn encode(&self, layout: homa::Layout, ports: Ports, out: &mut Vec<u8>) {
        for_header!(self, header => Codec::encode(header, layout, ports, out));
    }

    fn fmt_line(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for_header!(self, header => header.fmt_line(f))
    }
}

impl HeaderTrait for Header {
    #[inline]
    fn payload(&self) -> Option<Slice> {
        for_header!(self, header => HeaderTrait::payload(header))
    }

    #[inline]
    fn path(&self) -> Option<u16> {
        for_header!(self, header => HeaderTrait::path(header))
    }
}

// A packet fills at most one cache line: the simulator moves them by value.
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
