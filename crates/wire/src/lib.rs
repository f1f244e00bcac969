//! Every header: a typed struct that the machines use, and its bytes.

pub mod homa;
pub mod tcp;

use rackweave_core::{Header as HeaderTrait, Packet, Slice};

/// A header of any protocol: what a fabric with several transports carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Homa.
    Homa(homa::Header),
    /// TCP and DCTCP.
    Tcp(tcp::Header),
}

impl HeaderTrait for Header {
    #[inline]
    fn payload(&self) -> Option<Slice> {
        match self {
            Self::Homa(header) => header.payload(),
            Self::Tcp(header) => header.payload(),
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

/// A packet of the mixed fabric fills one cache line (DESIGN, core).
const _: () = assert!(size_of::<Packet<Header>>() <= 64);

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
