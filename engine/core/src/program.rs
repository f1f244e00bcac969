//! The contract of a switch program, and of the store that holds the payload of packets inside a switch.

use core::fmt;

use crate::ids::{HostId, Port};
use crate::packet::{Header, Packet};
use crate::queue::DropReason;
use crate::rng::Rng;
use crate::time::Time;

/// A set of ports of one switch.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PortSet(u64);

impl PortSet {
    /// The number of ports that a set can contain. Ports from this number on are never members.
    pub const CAPACITY: u16 = 64;

    /// The set without members.
    pub const EMPTY: Self = Self(0);

    /// Returns the set of one port, or the empty set if the port is beyond [`PortSet::CAPACITY`].
    #[must_use]
    #[inline]
    pub const fn single(port: Port) -> Self {
        if port.0 < Self::CAPACITY { Self(1 << port.0) } else { Self::EMPTY }
    }

    /// Returns the set of the ports `0..count`, up to [`PortSet::CAPACITY`].
    #[must_use]
    #[inline]
    pub const fn first(count: u16) -> Self {
        if count < Self::CAPACITY { Self((1 << count) - 1) } else { Self(u64::MAX) }
    }

    /// Returns the set that contains port `n` if bit `n` of `bits` is set.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the set as a bitmap: bit `n` is set if port `n` is a member.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns whether the set has no members.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the number of members.
    #[must_use]
    #[inline]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns whether a port is a member.
    #[must_use]
    #[inline]
    pub const fn contains(self, port: Port) -> bool {
        Self::single(port).0 & self.0 != 0
    }

    /// Returns the ports that are members of either set.
    #[must_use]
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the ports that are members of both sets.
    #[must_use]
    #[inline]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the set without one port.
    #[must_use]
    #[inline]
    pub const fn without(self, port: Port) -> Self {
        Self(self.0 & !Self::single(port).0)
    }

    /// Removes the lowest member and returns it.
    #[inline]
    pub const fn pop(&mut self) -> Option<Port> {
        if self.0 == 0 {
            return None;
        }
        let port = Port(self.0.trailing_zeros() as u16);
        self.0 &= self.0 - 1;
        Some(port)
    }
}

impl FromIterator<Port> for PortSet {
    fn from_iter<I: IntoIterator<Item = Port>>(ports: I) -> Self {
        ports.into_iter().fold(Self::EMPTY, |set, port| set.union(Self::single(port)))
    }
}

impl fmt::Debug for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = *self;
        f.debug_set().entries(core::iter::from_fn(|| rest.pop().map(|port| port.0))).finish()
    }
}

/// Where a packet is going.
///
/// Hosts, switches and multicast groups share one address space, so that a packet's destination is a plain [`HostId`].
/// Hosts are numbered from 0 and switches from 2^31; the remaining addresses belong to groups, and the programs of the
/// switches give them their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The host with this number.
    Host(HostId),
    /// The switch with this number: its program receives the packet.
    Switch(u32),
    /// A group of a group system. A switch without a program for the group has no route to it.
    Group(u32),
}

const FIRST_SWITCH: u32 = 1 << 31;
const FIRST_GROUP: u32 = FIRST_SWITCH | 1 << 30;

impl Destination {
    /// Decodes an address.
    #[must_use]
    #[inline]
    pub const fn from_address(address: HostId) -> Self {
        match address.0 {
            number @ FIRST_GROUP.. => Self::Group(number - FIRST_GROUP),
            number @ FIRST_SWITCH.. => Self::Switch(number - FIRST_SWITCH),
            _ => Self::Host(address),
        }
    }

    /// Returns the address, for [`Packet::dst`].
    #[must_use]
    #[inline]
    pub const fn address(self) -> HostId {
        match self {
            Self::Host(host) => host,
            Self::Switch(number) => HostId(FIRST_SWITCH + number),
            Self::Group(number) => HostId(FIRST_GROUP + number),
        }
    }
}

/// Holds the payload of the packets that are inside a network.
///
/// Each packet in the network owns the bytes that its header refers to. The network copies and releases them; switch
/// programs read and write them. Simulated packets usually refer to bytes that stay at the hosts: their store is `()`,
/// which holds nothing.
pub trait PayloadStore<H: Header> {
    /// False if packets carry no bytes. [`PayloadStore::make`] then always fails.
    const CARRIES_BYTES: bool = true;

    /// Frees the payload of a packet that has left the network.
    fn release(&mut self, packet: &Packet<H>);

    /// The packet is a copy of another and names the same payload: gives it a payload of its own. `false`: there is no
    /// room, and the copy is discarded.
    fn duplicate(&mut self, packet: &mut Packet<H>) -> bool;

    /// Damages the payload, as an injected fault does. Returns `false` if the store cannot represent damage; the
    /// network then drops the packet instead.
    fn damage(&mut self, packet: &mut Packet<H>, rng: &mut Rng) -> bool;

    /// Returns the payload's bytes; empty if the store holds none.
    fn read(&self, packet: &Packet<H>) -> &[u8];

    /// Returns the payload's bytes for changes in place; empty if the store holds none.
    fn write(&mut self, packet: &Packet<H>) -> &mut [u8];

    /// Calls `combine` with the payload of `into`, which it may change, and that of `from`. Returns false, without
    /// calling it, if both are the same payload.
    fn combine(
        &mut self,
        into: &Packet<H>,
        from: &Packet<H>,
        combine: impl FnOnce(&mut [u8], &[u8]),
    ) -> bool;

    /// The first bytes of the packet as it travels, for captures: empty if its header is all that there is of it.
    fn head(&self, _packet: &Packet<H>) -> &[u8] {
        &[]
    }

    /// Allocates a payload of `len` zero bytes and returns `header` with a reference to it. Returns `None` if there is
    /// no room, or if this store holds no bytes.
    fn make(&mut self, header: H, len: usize) -> Option<H>;
}

impl<H: Header> PayloadStore<H> for () {
    const CARRIES_BYTES: bool = false;

    #[inline]
    fn release(&mut self, _packet: &Packet<H>) {}

    #[inline]
    fn duplicate(&mut self, _packet: &mut Packet<H>) -> bool {
        true
    }

    #[inline]
    fn damage(&mut self, _packet: &mut Packet<H>, _rng: &mut Rng) -> bool {
        false
    }

    #[inline]
    fn read(&self, _packet: &Packet<H>) -> &[u8] {
        &[]
    }

    #[inline]
    fn write(&mut self, _packet: &Packet<H>) -> &mut [u8] {
        &mut []
    }

    #[inline]
    fn combine(
        &mut self,
        _into: &Packet<H>,
        _from: &Packet<H>,
        _combine: impl FnOnce(&mut [u8], &[u8]),
    ) -> bool {
        false
    }

    #[inline]
    fn make(&mut self, _header: H, _len: usize) -> Option<H> {
        None
    }
}

/// A switch program's decision about one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Leave the decision to the switch's own forwarding.
    Route,
    /// Send the packet out of this port.
    Forward(Port),
    /// Send a copy out of each of these ports.
    Replicate(PortSet),
    /// End the packet here: the program has taken what it needs.
    Consume,
    /// Drop the packet.
    Drop(DropReason),
}

/// How a packet that a program has created leaves the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// Through this port.
    Port(Port),
    /// Through the port that the switch's own forwarding chooses for its destination.
    Route,
}

/// A switch program: a state machine with the methods of a [`crate::Node`], through which every packet that crosses the
/// switch passes.
pub trait SwitchProgram {
    /// The type of header that the program handles.
    type Header: Header;

    /// False for a program that always returns [`Verdict::Route`]; the network then does not call it at all.
    const ACTIVE: bool = true;

    /// Decides about a packet that came in at `port`. It may rewrite the packet and its payload.
    fn handle_packet<S: PayloadStore<Self::Header>>(
        &mut self,
        now: Time,
        port: Port,
        packet: &mut Packet<Self::Header>,
        payloads: &mut S,
    ) -> Verdict;

    /// Called when the time returned by [`SwitchProgram::poll_timeout`] has come.
    fn handle_timeout(&mut self, _now: Time) {}

    /// Returns the next packet that the program has created. Its payload, if it has one, is in `payloads`.
    #[must_use]
    fn poll_transmit<S: PayloadStore<Self::Header>>(
        &mut self,
        _now: Time,
        _payloads: &mut S,
    ) -> Option<(Egress, Packet<Self::Header>)> {
        None
    }

    /// Returns when to call [`SwitchProgram::handle_timeout`].
    #[must_use]
    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_set_holds_its_members_and_no_port_beyond_its_capacity() {
        let mut set: PortSet = [Port(3), Port(63), Port(64), Port(0)].into_iter().collect();
        assert_eq!((set.len(), set.bits()), (3, 1 << 63 | 0b1001));
        assert!(set.contains(Port(63)) && !set.contains(Port(64)) && !set.contains(Port(1)));
        assert_eq!(format!("{set:?}"), "{0, 3, 63}");
        assert_eq!(set.without(Port(3)), PortSet::single(Port(0)).union(PortSet::single(Port(63))));
        assert_eq!(set.intersection(PortSet::first(4)).bits(), 0b1001);
        assert_eq!(PortSet::first(64), PortSet::first(100));
        assert_eq!(
            [set.pop(), set.pop(), set.pop(), set.pop()].map(|port| port.map(|p| p.0)),
            [Some(0), Some(3), Some(63), None]
        );
    }

    #[test]
    fn an_address_names_one_destination() {
        let all = [
            Destination::Host(HostId(7)),
            Destination::Switch(0),
            Destination::Switch((1 << 30) - 1),
            Destination::Group(0),
            Destination::Group((1 << 30) - 1),
        ];
        for destination in all {
            assert_eq!(Destination::from_address(destination.address()), destination);
        }
        assert_eq!(Destination::from_address(HostId(u32::MAX)), Destination::Group((1 << 30) - 1));
    }
}
