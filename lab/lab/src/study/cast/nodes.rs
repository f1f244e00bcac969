//! The interface between a cast run and its nodes.

use std::convert::Infallible;

use rackweave_core::{Node, Packet, Time};
use rackweave_orca::app::Report;
use rackweave_orca::baseline::{streams, unicast};
use rackweave_sim::GroupNode;

/// A node that may take part in the application of casts.
pub(super) trait Role {
    /// Returns the reports of its application and of the carrier at the end of the run.
    fn report(&self) -> Report;
    /// Returns whether its application has finished.
    fn is_done(&self) -> bool {
        true
    }
    /// Handles a crash of its host: a sender's casts fail, whether or not the host returns.
    fn crash(&mut self, _now: Time) {}
    /// Handles the return of its host after a crash: the protocol's state is lost, the application's records are kept.
    fn restart(&mut self, now: Time);
}

macro_rules! roles {
    ($($carrier:ident),*) => {$(
        impl Role for $carrier::Server {
            fn report(&self) -> Report {
                self.app().report()
            }
            fn is_done(&self) -> bool {
                self.app().is_done()
            }
            fn crash(&mut self, now: Time) {
                self.crash(now);
            }
            fn restart(&mut self, now: Time) {
                self.restart(now);
            }
        }
        impl Role for $carrier::Receiver {
            fn report(&self) -> Report {
                self.app().report()
            }
            fn restart(&mut self, now: Time) {
                self.restart(now);
            }
        }
    )*};
}

// Inherent methods come before those of the trait.
roles!(streams, unicast);

/// One of two kinds of nodes.
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
    fn crash(&mut self, now: Time, down: bool) {
        match down {
            true => Role::crash(self, now),
            false => Role::restart(self, now),
        }
    }
}

impl<S: Role, R: Role> Role for Either<S, R> {
    fn report(&self) -> Report {
        each!(self, node => node.report())
    }
    fn is_done(&self) -> bool {
        each!(self, node => node.is_done())
    }
    fn crash(&mut self, now: Time) {
        each!(self, node => Role::crash(node, now));
    }
    fn restart(&mut self, now: Time) {
        each!(self, node => Role::restart(node, now));
    }
}
