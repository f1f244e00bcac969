//! The contract of a switch program, and of the store that holds the payload of packets in a switch.

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
    /// The number of ports that a set can name: ports from this one on are never members.
    pub const CAPACITY: u16 = 64;

    /// The set without members.
    pub const EMPTY: Self = Self(0);

    /// The set of one port, or the empty set if the port is beyond [`PortSet::CAPACITY`].
    #[must_use]
    #[inline]
    pub const fn of(port: Port) -> Self {
        if port.0 < Self::CAPACITY { Self(1 << port.0) } else { Self::EMPTY }
    }

    /// The ports `0..count`, as far as a set can name them.
    #[must_use]
    #[inline]
    pub const fn first(count: u16) -> Self {
        if count < Self::CAPACITY { Self((1 << count) - 1) } else { Self(u64::MAX) }
    }

    /// The set whose member `n` is bit `n` of `bits`.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Bit `n` is set if port `n` is a member.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether the set has no members.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of members.
    #[must_use]
    #[inline]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether a port is a member.
    #[must_use]
    #[inline]
    pub const fn contains(self, port: Port) -> bool {
        Self::of(port).0 & self.0 != 0
    }

    /// The members of either set.
    #[must_use]
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The members of both sets.
    #[must_use]
    #[inline]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The members except one port.
    #[must_use]
    #[inline]
    pub const fn without(self, port: Port) -> Self {
        Self(self.0 & !Self::of(port).0)
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
        ports.into_iter().fold(Self::EMPTY, |set, port| set.union(Self::of(port)))
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
/// Hosts, switches and multicast groups share one address space, so that a packet's destination stays a plain
/// [`HostId`]: hosts are numbered from 0, switches from 2^31, and the rest belongs to groups, whose meaning is up to
/// the programs of the switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The host with this number.
    Host(HostId),
    /// The switch with this number: its program gets the packet.
    Switch(u32),
    /// A group of a group system; switches without a program for it have no route.
    Group(u32),
}

const FIRST_SWITCH: u32 = 1 << 31;
const FIRST_GROUP: u32 = FIRST_SWITCH | 1 << 30;

impl Destination {
    /// What an address names.
    #[must_use]
    #[inline]
    pub const fn of(address: HostId) -> Self {
        match address.0 {
            number @ FIRST_GROUP.. => Self::Group(number - FIRST_GROUP),
            number @ FIRST_SWITCH.. => Self::Switch(number - FIRST_SWITCH),
            _ => Self::Host(address),
        }
    }

    /// The address that names it, for [`Packet::dst`].
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
/// Each packet in the network owns what its header names. The network copies and releases it; switch programs read
/// and write it. Simulated packets usually name bytes that stay at the hosts: their store is `()`, and has none.
pub trait PayloadStore<H: Header> {
    /// False if packets carry no bytes at all: [`PayloadStore::make`] always fails then.
    const CARRIES_BYTES: bool = true;

    /// The packet is gone: its payload can be reused.
    fn release(&mut self, packet: &Packet<H>);

    /// The packet is a copy of another and names the same payload: gives it a payload of its own. `false`: there is no
    /// room, and the copy is discarded.
    fn duplicate(&mut self, packet: &mut Packet<H>) -> bool;

    /// Damages the payload, as an injected fault does. `false`: damage cannot be represented, and the network drops
    /// the packet instead.
    fn damage(&mut self, packet: &mut Packet<H>, rng: &mut Rng) -> bool;

    /// The payload's bytes: empty if there are none.
    fn read(&self, packet: &Packet<H>) -> &[u8];

    /// The payload's bytes, to be changed in place: empty if there are none.
    fn write(&mut self, packet: &Packet<H>) -> &mut [u8];

    /// Gives `combine` the payload of `into` to change and that of `from` to read; false if they are the same.
    fn combine(
        &mut self,
        into: &Packet<H>,
        from: &Packet<H>,
        combine: impl FnOnce(&mut [u8], &[u8]),
    ) -> bool;

    /// Makes a payload of `len` zero bytes and returns `header` with its name. `None`: there is no room, or this store
    /// carries none.
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
    /// The switch's own forwarding decides.
    Route,
    /// Send the packet out of this port.
    Forward(Port),
    /// Send a copy out of each of these ports.
    Replicate(PortSet),
    /// The program has taken what it needs: the packet ends here.
    Consume,
    /// Drop the packet.
    Drop(DropReason),
}

/// Where a packet that a program has made leaves the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// By this port.
    Port(Port),
    /// Wherever the switch's own forwarding sends its destination.
    Route,
}

/// A switch program: a state machine with the verbs of a [`crate::Node`], which sees every packet that crosses the
/// switch.
pub trait SwitchProgram {
    /// The header that it understands.
    type Header: Header;

    /// False for a program that never does anything but [`Verdict::Route`]: the network then does not call it at all.
    const ACTIVE: bool = true;

    /// Decides about a packet that came in at `port`. It may rewrite the packet and its payload.
    fn handle_packet<S: PayloadStore<Self::Header>>(
        &mut self,
        now: Time,
        port: Port,
        packet: &mut Packet<Self::Header>,
        payloads: &mut S,
    ) -> Verdict;

    /// The time that [`SwitchProgram::poll_timeout`] named has come.
    fn handle_timeout(&mut self, _now: Time) {}

    /// The next packet that the program has made, with its payload from `payloads` if it has one.
    #[must_use]
    fn poll_transmit<S: PayloadStore<Self::Header>>(
        &mut self,
        _now: Time,
        _payloads: &mut S,
    ) -> Option<(Egress, Packet<Self::Header>)> {
        None
    }

    /// When [`SwitchProgram::handle_timeout`] wants to be called.
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
        assert_eq!(set.without(Port(3)), PortSet::of(Port(0)).union(PortSet::of(Port(63))));
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
            assert_eq!(Destination::of(destination.address()), destination);
        }
        assert_eq!(Destination::of(HostId(u32::MAX)), Destination::Group((1 << 30) - 1));
    }
}
