//! Any transport as one type: an enum, so that packets stay `Copy` and calls are direct.

use std::sync::Arc;

use rackweave_core::{
    Event, Framing, HostId, MessageId, Node, Open, Packet, Placement, Refused, RoundTrip, Submit,
    Time, Transport,
};
use rackweave_wire::Header;

use crate::{datagram, homa, ndp, phost, polo, tcp};

/// Which transport, and its parameters. Hosts share them.
#[derive(Clone, Debug, PartialEq)]
pub enum TransportConfig {
    /// Homa.
    Homa(Arc<homa::Config>),
    /// TCP (NewReno or CUBIC) and DCTCP.
    Tcp(Arc<tcp::Config>),
    /// NDP.
    Ndp(Arc<ndp::Config>),
    /// pHost.
    PHost(Arc<phost::Config>),
    /// Polo.
    Polo(Arc<polo::Config>),
    /// Datagrams.
    Datagram(Arc<datagram::Config>),
}

impl TransportConfig {
    /// This transport at a host.
    #[must_use]
    pub fn machine(&self, host: HostId) -> Machine {
        match self {
            Self::Homa(config) => Machine::Homa(homa::Host::new(host, Arc::clone(config))),
            Self::Tcp(config) => Machine::Tcp(tcp::Host::new(host, Arc::clone(config))),
            Self::Ndp(config) => Machine::Ndp(ndp::Host::new(host, Arc::clone(config))),
            Self::PHost(config) => Machine::PHost(phost::Host::new(host, Arc::clone(config))),
            Self::Polo(config) => Machine::Polo(polo::Host::new(host, Arc::clone(config))),
            Self::Datagram(config) => {
                Machine::Datagram(datagram::Host::new(host, Arc::clone(config)))
            }
        }
    }

    /// How it cuts messages into packets.
    #[must_use]
    pub fn framing(&self) -> Framing {
        match self {
            Self::Homa(config) => config.framing(),
            Self::Tcp(config) => config.framing(),
            Self::Ndp(config) => config.framing(),
            Self::PHost(config) => config.framing(),
            Self::Polo(config) => config.framing(),
            Self::Datagram(config) => config.framing(),
        }
    }
}

/// One host's instance of any transport.
#[derive(Debug)]
pub enum Machine {
    /// Homa.
    Homa(homa::Host),
    /// TCP and DCTCP.
    Tcp(tcp::Host),
    /// NDP.
    Ndp(ndp::Host),
    /// pHost.
    PHost(phost::Host),
    /// Polo.
    Polo(polo::Host),
    /// Datagrams.
    Datagram(datagram::Host),
}

/// Calls the same method of whichever machine it is.
macro_rules! each {
    ($self:expr, $machine:ident => $call:expr) => {
        match $self {
            Machine::Homa($machine) => $call,
            Machine::Tcp($machine) => $call,
            Machine::Ndp($machine) => $call,
            Machine::PHost($machine) => $call,
            Machine::Polo($machine) => $call,
            Machine::Datagram($machine) => $call,
        }
    };
}

impl Node for Machine {
    type Header = Header;
    type Event = Event;
    type Placement = Placement;

    #[inline]
    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<Header>) -> Placement {
        match (self, packet.header) {
            (Self::Homa(machine), Header::Homa(header)) => {
                machine.handle_packet(now, port, &packet.map(|_| header))
            }
            (Self::Tcp(machine), Header::Tcp(header)) => {
                machine.handle_packet(now, port, &packet.map(|_| header))
            }
            (Self::Ndp(machine), Header::Ndp(header)) => {
                machine.handle_packet(now, port, &packet.map(|_| header))
            }
            (Self::PHost(machine), Header::PHost(header)) => {
                machine.handle_packet(now, port, &packet.map(|_| header))
            }
            (Self::Polo(machine), Header::Polo(header)) => {
                machine.handle_packet(now, port, &packet.map(|_| header))
            }
            (Self::Datagram(machine), Header::Datagram(header)) => {
                machine.handle_packet(now, port, &packet.map(|_| header))
            }
            // Another transport's packet at this one's port: nothing to be done with it.
            _ => Placement::Discard,
        }
    }

    #[inline]
    fn handle_timeout(&mut self, now: Time) {
        each!(self, machine => machine.handle_timeout(now));
    }

    #[inline]
    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<Header>> {
        each!(self, machine => machine.poll_transmit(now, port).map(|packet| packet.map(Header::from)))
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        each!(self, machine => machine.poll_timeout())
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        each!(self, machine => machine.poll_event())
    }
}

impl Transport for Machine {
    fn submit(&mut self, now: Time, message: Submit) -> Result<(), Refused> {
        each!(self, machine => machine.submit(now, message))
    }

    fn cancel(&mut self, now: Time, peer: HostId, id: MessageId) {
        each!(self, machine => machine.cancel(now, peer, id));
    }

    fn is_arriving(&self, peer: HostId, id: MessageId) -> bool {
        each!(self, machine => machine.is_arriving(peer, id))
    }

    fn is_leaving(&self, peer: HostId, id: MessageId) -> bool {
        each!(self, machine => machine.is_leaving(peer, id))
    }

    fn framing(&self) -> Framing {
        each!(self, machine => machine.framing())
    }

    fn open(&mut self, now: Time, stream: Open) -> Result<(), Refused> {
        each!(self, machine => machine.open(now, stream))
    }

    fn write(
        &mut self,
        now: Time,
        peer: HostId,
        id: MessageId,
        bytes: u64,
        end: bool,
    ) -> Result<(), Refused> {
        each!(self, machine => machine.write(now, peer, id, bytes, end))
    }

    fn consume(&mut self, now: Time, peer: HostId, id: MessageId, bytes: u64) {
        each!(self, machine => machine.consume(now, peer, id, bytes));
    }

    fn peer_restarted(&mut self, now: Time, peer: HostId) {
        each!(self, machine => machine.peer_restarted(now, peer));
    }

    fn round_trips(&self) -> Vec<RoundTrip> {
        each!(self, machine => machine.round_trips())
    }
}
