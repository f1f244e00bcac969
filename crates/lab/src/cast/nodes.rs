//! What a run asks its nodes afterwards.

use std::convert::Infallible;

use rackweave_core::{Node, Packet, Time};
use rackweave_group::baseline::{Deliveries, Rounds, streams, unicast};
use rackweave_sim::GroupNode;

/// A sender's or a receiver's part of the application.
pub(super) trait Role {
    /// The sender's files.
    fn rounds(&self) -> Option<&Rounds> {
        None
    }
    /// A receiver's.
    fn deliveries(&self) -> Option<&Deliveries> {
        None
    }
    /// Bytes of payload that the sender has sent again.
    fn repaired_bytes(&self) -> u64 {
        0
    }
    /// How often receivers were served alone because they were too slow.
    fn detached(&self) -> u64 {
        0
    }
    /// Bytes that came where they should not be.
    fn wrong_bytes(&self) -> u64 {
        0
    }
    /// Agents that fell silent, as their controller sees it.
    fn silent_agents(&self) -> u64 {
        0
    }
    /// Whether a sender has sent all of its files; others are always done.
    fn is_done(&self) -> bool {
        self.rounds().is_none_or(Rounds::is_done)
    }
    /// Its host is back after a crash: the protocol's state is lost, what the application has recorded is not.
    fn restart(&mut self) {}
}

impl Role for unicast::Server {
    fn rounds(&self) -> Option<&Rounds> {
        Some(self.rounds())
    }
}
impl Role for unicast::Receiver {
    fn deliveries(&self) -> Option<&Deliveries> {
        Some(self.deliveries())
    }
}
impl Role for streams::Server {
    fn rounds(&self) -> Option<&Rounds> {
        Some(self.rounds())
    }
}
impl Role for streams::Receiver {
    fn deliveries(&self) -> Option<&Deliveries> {
        Some(self.deliveries())
    }
}

/// Either of two kinds of nodes.
#[derive(Debug)]
pub(super) enum Either<S, R> {
    Server(S),
    Receiver(R),
}

macro_rules! each {
    ($self:expr, $node:ident => $call:expr) => {
        match $self {
            Either::Server($node) => $call,
            Either::Receiver($node) => $call,
        }
    };
}

impl<S, R> Node for Either<S, R>
where
    S: Node<Event = Infallible, Placement = ()>,
    R: Node<Header = S::Header, Event = Infallible, Placement = ()>,
{
    type Header = S::Header;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<S::Header>) {
        each!(self, node => node.handle_packet(now, port, packet));
    }
    fn handle_timeout(&mut self, now: Time) {
        each!(self, node => node.handle_timeout(now));
    }
    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<S::Header>> {
        each!(self, node => node.poll_transmit(now, port))
    }
    fn poll_timeout(&self) -> Option<Time> {
        each!(self, node => node.poll_timeout())
    }
    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

impl<S: Role, R: Role> GroupNode for Either<S, R>
where
    Self: Node<Event = Infallible, Placement = ()>,
{
    fn is_done(&self) -> bool {
        Role::is_done(self)
    }
    fn crash(&mut self, _now: Time, down: bool) {
        if !down {
            self.restart();
        }
    }
}

impl<S: Role, R: Role> Role for Either<S, R> {
    fn rounds(&self) -> Option<&Rounds> {
        each!(self, node => node.rounds())
    }
    fn deliveries(&self) -> Option<&Deliveries> {
        each!(self, node => node.deliveries())
    }
    fn repaired_bytes(&self) -> u64 {
        each!(self, node => node.repaired_bytes())
    }
    fn detached(&self) -> u64 {
        each!(self, node => node.detached())
    }
    fn wrong_bytes(&self) -> u64 {
        each!(self, node => node.wrong_bytes())
    }
    fn silent_agents(&self) -> u64 {
        each!(self, node => node.silent_agents())
    }
    fn is_done(&self) -> bool {
        each!(self, node => node.is_done())
    }
    fn restart(&mut self) {
        each!(self, node => node.restart());
    }
}
