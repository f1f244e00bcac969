//! Packet headers: typed structs that the state machines use, and their encodings.
//!
//! - [`homa`], [`tcp`], [`ndp`], [`phost`], [`polo`], [`pfabric`], [`sird`], [`swift`], [`dcpim`], [`uet`], [`dcqcn`], [`hpcc`], [`datagram`]: the headers of one
//!   protocol each; [`external`]: that of transports outside of the repository; [`Codec`]: their common interface, and [`Exchange`] that of most. [`transports!`] lists them.
//! - [`orca`], [`frisbee`], [`reduce`]: the packets of group systems.
//! - [`Header`]: the header of any transport; [`frame`]: with Ethernet and IPv4 in front; [`overlay`]: inside a UDP
//!   datagram; [`secure`]: the same between hosts that share a key.
//! - [`dump`]: a packet as one line of text; [`pcapng`]: packets as a file for Wireshark.
//!
//! `decode` accepts any bytes: it returns a header, or a [`Malformed`] with the reason. Offsets and lengths that
//! cannot be consistent are the state machine's to refuse.
//!
//! ```
//! use rackweave_core::{HostId, Packet};
//! use rackweave_wire::homa::{self, Body, Layout};
//! use rackweave_wire::{Header, Id64, frame};
//!
//! // A grant of Homa: the header, a packet with it, and the frame that a NIC would send.
//! let body = Body::Grant { offset: 60_000, priority: 5, resend_all: false, stamps: homa::GrantStamps::default() };
//! let header = Header::Homa(homa::Header { id: Id64::new(42), one_way: false, body });
//! let ip_bytes = frame::counted_ip_bytes(&header, Layout::Head);
//! let packet = Packet::new(HostId(3), HostId(7), ip_bytes, header).with_priority(7);
//!
//! let mut bytes = Vec::new();
//! frame::encode(&packet, Layout::Head, &mut bytes)?;
//! assert_eq!(frame::decode(&bytes)?, packet);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod codec;
pub mod datagram;
pub mod dcpim;
pub mod dcqcn;
pub mod dump;
mod exchange;
pub mod external;
pub mod frame;
pub mod frisbee;
pub mod homa;
pub mod hpcc;
mod malformed;
pub mod ndp;
pub mod orca;
pub mod overlay;
pub mod path;
pub mod pcapng;
pub mod pfabric;
pub mod phost;
pub mod polo;
pub mod reduce;
mod sack;
pub mod secure;
pub mod sird;
pub mod swift;
pub mod tcp;
pub mod uet;

use rackweave_core::{Header as HeaderTrait, MessageId, Packet, Rank, Slice};

pub use codec::Codec;
pub use exchange::Exchange;
pub use malformed::Malformed;

/// The one list of the transports: calls a macro with the variant and the module of each. A crate with such a module
/// for each transport makes its own enum of them.
#[macro_export]
macro_rules! transports {
    ($define:ident) => {
        $define! {
            /// Homa and Leverage Homa.
            Homa => homa,
            /// TCP (NewReno or CUBIC) and DCTCP.
            Tcp => tcp,
            /// NDP (SIGCOMM 2017), with trimming switches.
            Ndp => ndp,
            /// pHost (CoNEXT 2015), with tokens.
            PHost => phost,
            /// Polo, with driving packets.
            Polo => polo,
            /// pFabric (SIGCOMM 2013), with queues in the order of remaining size.
            PFabric => pfabric,
            /// SIRD (NSDI 2025), with buckets of credit.
            Sird => sird,
            /// Swift (SIGCOMM 2020), with windows that follow the measured delay.
            Swift => swift,
            /// dcPIM (SIGCOMM 2022), with rounds of matching.
            DcPim => dcpim,
            /// EQDS (NSDI 2022), and the congestion control of Ultra Ethernet.
            Uet => uet,
            /// RoCEv2 with DCQCN (SIGCOMM 2015), over switches that pause.
            Dcqcn => dcqcn,
            /// HPCC (SIGCOMM 2019), with windows that follow what switches write into packets.
            Hpcc => hpcc,
            /// Datagrams over UDP, without any reaction to congestion.
            Datagram => datagram,
            /// A transport that is not in this repository.
            External => external,
        }
    };
}

macro_rules! define_header {
    ($($(#[$doc:meta])* $variant:ident => $module:ident,)+) => {
        /// A header of any transport.
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

        /// Evaluates the same expression for the header of each variant.
        macro_rules! for_header {
            ($self:expr, $header:ident => $value:expr) => {
                match $self {
                    $(Header::$variant($header) => $value,)+
                }
            };
        }

        impl Header {
            /// Decodes the header of a packet with this IP protocol number, which for Homa also determines the
            /// layout. The packet has `l4_bytes` after the IP header, by IP's total length; `bytes` may have been
            /// truncated after the header.
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

            /// The IP protocol number; Homa's depends on the layout.
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

    /// The length of the message whose bytes the packet carries; `None` for packets without message bytes, and for
    /// streams, whose length is not known.
    #[must_use]
    pub fn message_bytes(&self) -> Option<u32> {
        for_header!(self, header => header.message_bytes())
    }

    /// Appends the header's bytes.
    pub fn encode(&self, layout: homa::Layout, ports: Ports, out: &mut Vec<u8>) {
        for_header!(self, header => Codec::encode(header, layout, ports, out));
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

    #[inline]
    fn rank(&self) -> Option<Rank> {
        for_header!(self, header => HeaderTrait::rank(header))
    }

    fn exchange_id(&self) -> Option<MessageId> {
        let id = for_header!(self, header => header.exchange())?;
        Some(MessageId(id.get() & !1))
    }

    fn describe(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for_header!(self, header => header.fmt_line(f))
    }
}

// A packet fills at most one cache line: the simulator moves them by value.
const _: () = assert!(size_of::<Packet<Header>>() <= 64);

/// The two ports of a packet, with which all headers begin; [`Packet`] holds them itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub destination: u16,
}

impl Ports {
    /// The ports of a packet.
    #[must_use]
    pub const fn of_packet<H: HeaderTrait>(packet: &Packet<H>) -> Self {
        Self { source: packet.source_port(), destination: packet.destination_port() }
    }
}

/// A `u64` aligned to 4 bytes, so that a header needs no padding around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(Rust, packed(4))]
pub struct Id64(u64);

impl Id64 {
    /// Wraps a number.
    #[must_use]
    #[inline]
    pub const fn new(value: u64) -> Self {
        Self(value)
    }
    /// Returns the wrapped number.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
}
