//! Identifiers of hosts, ports and messages.

use core::fmt;

/// The number of a host, from 0 in the order of the fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct HostId(pub u32);

/// The number of a switch port, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(pub u16);

/// The id of a message, unique per client (the host that started the exchange).
///
/// As in Homa's packets, the low bit is the direction: even for a request
/// or a one-way message, odd for the response to the request below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

impl MessageId {
    /// Returns the id of the `n`-th request or one-way message of a client.
    #[must_use]
    pub const fn request(n: u64) -> Self {
        Self(n << 1)
    }
    /// Returns the id of the response to this request (or of this response itself).
    #[must_use]
    pub const fn response(self) -> Self {
        Self(self.0 | 1)
    }
    /// Returns whether the message travels from server to client.
    #[must_use]
    pub const fn is_response(self) -> bool {
        self.0 & 1 == 1
    }
    /// Returns the number that was passed to [`MessageId::request`].
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0 >> 1
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{}", self.0)
    }
}
impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.number(), if self.is_response() { "r" } else { "" })
    }
}
