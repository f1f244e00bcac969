//! One header type for networks that message transports and group systems share.

use core::fmt;

use crate::ids::MessageId;
use crate::packet::{Header, Rank, Slice};

/// The header of a network that packets of transports and of group systems share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixed<T, G> {
    /// The header of a packet that a transport sent.
    Transport(T),
    /// The header of a packet that a node of a group system sent.
    Group(G),
}

impl<T: Header, G: Header> Header for Mixed<T, G> {
    #[inline]
    fn payload(&self) -> Option<Slice> {
        match self {
            Self::Transport(header) => header.payload(),
            Self::Group(header) => header.payload(),
        }
    }

    #[inline]
    fn payload_bytes(&self) -> u32 {
        match self {
            Self::Transport(header) => header.payload_bytes(),
            Self::Group(header) => header.payload_bytes(),
        }
    }

    #[inline]
    fn path(&self) -> Option<u16> {
        match self {
            Self::Transport(header) => header.path(),
            Self::Group(header) => header.path(),
        }
    }

    #[inline]
    fn rank(&self) -> Option<Rank> {
        match self {
            Self::Transport(header) => header.rank(),
            Self::Group(header) => header.rank(),
        }
    }

    #[inline]
    fn work(&self) -> u32 {
        match self {
            Self::Transport(header) => header.work(),
            Self::Group(header) => header.work(),
        }
    }

    fn exchange_id(&self) -> Option<MessageId> {
        match self {
            Self::Transport(header) => header.exchange_id(),
            Self::Group(header) => header.exchange_id(),
        }
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport(header) => header.describe(f),
            Self::Group(header) => header.describe(f),
        }
    }
}
