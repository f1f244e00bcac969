//! The types of a run: the transports of its hosts, the nodes of a group system, and the programs of its switches,
//! which share one network and so one type of header.

use core::convert::Infallible;
use core::fmt::Debug;
use core::marker::PhantomData;

use rackweave_core::carried::{Carried, Carrier};
use rackweave_core::{
    Event, Framing, Header, HostId, MessageId, Mixed, Node, Packet, PayloadStore, Placement,
    Refused, Submit, SwitchProgram, Time, Transport,
};
use rackweave_switch::ForwardOnly;

/// The set of types that one run uses.
pub trait Model {
    /// The header of all packets on the network.
    type Header: Header;
    /// The message transports of the hosts.
    type Transport: Transport<Header = Self::Header> + Debug;
    /// The nodes of group systems.
    type Group: GroupNode<Header = Self::Header> + Debug;
    /// The programs of the switches.
    type Program: SwitchProgram<Header = Self::Header>;
    /// The store of the bytes that packets carry: `()`, which holds none, unless hosts or programs read them.
    type Payloads: PayloadStore<Self::Header> + Default;
}

/// A [`Node`] of a group system together with its application, which takes its events and places its payload.
pub trait GroupNode: Node<Event = Infallible, Placement = ()> {
    /// False for [`NoGroup`], so that the code for nodes folds away in runs without them.
    const EXISTS: bool = true;

    /// Whether its application has finished: a run ends once all of them have.
    #[must_use]
    fn is_done(&self) -> bool {
        true
    }

    /// Handles a packet together with its payload, which is empty unless the run's [`Model::Payloads`] holds bytes.
    #[inline]
    fn handle_payload(
        &mut self,
        now: Time,
        port: u8,
        packet: &Packet<Self::Header>,
        _payload: &[u8],
    ) {
        self.handle_packet(now, port, packet);
    }

    /// The payload of the packet that [`Node::poll_transmit`] returned last. The network keeps a copy.
    #[inline]
    fn payload(&self) -> &[u8] {
        &[]
    }

    /// Returns the units of work that the node has done since the last call for what it is going to send: its host pays
    /// [`Costs::work`](crate::config::Costs::work) of sending for each, before it sends anything else. Polled only if hosts have costs.
    fn poll_prepared_work(&mut self) -> u32 {
        0
    }

    /// Called when its host crashes (`down`), or restarts with an empty memory. No other method is called in
    /// between.
    fn crash(&mut self, _now: Time, _down: bool) {}
}

/// A node that sends some messages as [flows](crate::fluid) instead of packets: see
/// [`World::carry_transfers`](crate::World::carry_transfers).
pub trait Transfers: GroupNode {
    /// Returns the next message that the node sends as a flow. Polled after each of its other methods.
    #[must_use]
    fn poll_transfer(&mut self) -> Option<Submit>;

    /// Handles the end of a transfer: of one that has arrived here, or that this node has sent.
    fn handle_transfer(&mut self, now: Time, event: Event);
}

/// Runs with message transports only.
#[derive(Debug)]
pub struct TransportsOnly<T>(PhantomData<T>, Infallible);

impl<T: Transport + Debug> Model for TransportsOnly<T> {
    type Header = T::Header;
    type Transport = T;
    type Group = NoGroup<T::Header>;
    type Program = ForwardOnly<T::Header>;
    type Payloads = ();
}

/// Runs with nodes of a group system and programs for it only.
#[derive(Debug)]
pub struct GroupsOnly<G, P, B = ()>(PhantomData<(G, P, B)>, Infallible);

impl<G, P, B> Model for GroupsOnly<G, P, B>
where
    G: GroupNode + Debug,
    P: SwitchProgram<Header = G::Header>,
    B: PayloadStore<G::Header> + Default,
{
    type Header = G::Header;
    type Transport = NoTransport<G::Header>;
    type Group = G;
    type Program = P;
    type Payloads = B;
}

/// Runs with transports, nodes of a group system and programs for it.
#[derive(Debug)]
pub struct Both<T, G, P, B = ()>(PhantomData<(T, G, P, B)>, Infallible);

impl<T, G, P, B> Model for Both<T, G, P, B>
where
    B: PayloadStore<T::Header> + Default,
    T: Transport + Debug,
    G: GroupNode<Header = T::Header> + Debug,
    P: SwitchProgram<Header = T::Header>,
{
    type Header = T::Header;
    type Transport = T;
    type Group = G;
    type Program = P;
    type Payloads = B;
}

/// The packets of a transport among those of a group system.
#[derive(Debug)]
pub struct BesideGroup<G>(PhantomData<G>, Infallible);

impl<T: Transport, G: Header> Carrier<T> for BesideGroup<G> {
    type Header = Mixed<T::Header, G>;

    #[inline]
    fn handle_packet(
        transport: &mut T,
        now: Time,
        port: u8,
        packet: &Packet<Self::Header>,
    ) -> Placement {
        match packet.header {
            Mixed::Transport(header) => transport.handle_packet(now, port, &packet.map(|_| header)),
            Mixed::Group(_) => Placement::Discard,
        }
    }

    #[inline]
    fn poll_transmit(transport: &mut T, now: Time, port: u8) -> Option<Packet<Self::Header>> {
        Some(transport.poll_transmit(now, port)?.map(Mixed::Transport))
    }

    #[inline]
    fn prefetch_for(transport: &T, packet: &Packet<Self::Header>) {
        if let Mixed::Transport(header) = packet.header {
            transport.prefetch_for(&packet.map(|_| header));
        }
    }
}

/// A transport on a network whose packets it shares with a group system's.
pub type MixedTransport<T, G> = Carried<T, BesideGroup<G>>;

/// A group system's node on a network whose packets it shares with transports.
#[derive(Debug)]
pub struct MixedGroup<T, G>(G, PhantomData<T>);

impl<T, G> MixedGroup<T, G> {
    /// Puts a node on the mixed network.
    #[must_use]
    pub const fn new(node: G) -> Self {
        Self(node, PhantomData)
    }

    /// The wrapped node.
    #[must_use]
    pub const fn node(&self) -> &G {
        &self.0
    }

    /// Mutable access to the wrapped node.
    pub const fn node_mut(&mut self) -> &mut G {
        &mut self.0
    }
}

impl<T: Header, G: GroupNode> Node for MixedGroup<T, G> {
    type Header = Mixed<T, G::Header>;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<Self::Header>) {
        if let Mixed::Group(header) = packet.header {
            self.0.handle_packet(now, port, &packet.map(|_| header));
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        self.0.handle_timeout(now);
    }

    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<Self::Header>> {
        Some(self.0.poll_transmit(now, port)?.map(Mixed::Group))
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.0.poll_timeout()
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        self.0.poll_event()
    }
}

impl<T: Header, G: GroupNode> GroupNode for MixedGroup<T, G> {
    fn is_done(&self) -> bool {
        self.0.is_done()
    }

    fn handle_payload(
        &mut self,
        now: Time,
        port: u8,
        packet: &Packet<Self::Header>,
        payload: &[u8],
    ) {
        if let Mixed::Group(header) = packet.header {
            self.0.handle_payload(now, port, &packet.map(|_| header), payload);
        }
    }

    fn payload(&self) -> &[u8] {
        self.0.payload()
    }

    fn poll_prepared_work(&mut self) -> u32 {
        self.0.poll_prepared_work()
    }

    fn crash(&mut self, now: Time, down: bool) {
        self.0.crash(now, down);
    }
}

impl<T: Header, G: Transfers> Transfers for MixedGroup<T, G> {
    #[inline]
    fn poll_transfer(&mut self) -> Option<Submit> {
        self.0.poll_transfer()
    }

    fn handle_transfer(&mut self, now: Time, event: Event) {
        self.0.handle_transfer(now, event);
    }
}

/// The group node of runs that have none: it has no values.
#[derive(Debug)]
pub struct NoGroup<H>(Infallible, PhantomData<H>);

impl<H: Header> Node for NoGroup<H> {
    type Header = H;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, _now: Time, _port: u8, _packet: &Packet<H>) {
        match self.0 {}
    }

    fn handle_timeout(&mut self, _now: Time) {
        match self.0 {}
    }

    fn poll_transmit(&mut self, _now: Time, _port: u8) -> Option<Packet<H>> {
        match self.0 {}
    }

    fn poll_timeout(&self) -> Option<Time> {
        match self.0 {}
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        match self.0 {}
    }
}

impl<H: Header> GroupNode for NoGroup<H> {
    const EXISTS: bool = false;
}

/// The transport of runs that have none: it has no values.
#[derive(Debug)]
pub struct NoTransport<H>(Infallible, PhantomData<H>);

impl<H: Header> Node for NoTransport<H> {
    type Header = H;
    type Event = Event;
    type Placement = Placement;

    fn handle_packet(&mut self, _now: Time, _port: u8, _packet: &Packet<H>) -> Placement {
        match self.0 {}
    }

    fn handle_timeout(&mut self, _now: Time) {
        match self.0 {}
    }

    fn poll_transmit(&mut self, _now: Time, _port: u8) -> Option<Packet<H>> {
        match self.0 {}
    }

    fn poll_timeout(&self) -> Option<Time> {
        match self.0 {}
    }

    fn poll_event(&mut self) -> Option<Event> {
        match self.0 {}
    }
}

impl<H: Header> Transport for NoTransport<H> {
    fn submit(&mut self, _now: Time, _message: Submit) -> Result<(), Refused> {
        match self.0 {}
    }

    fn cancel(&mut self, _now: Time, _peer: HostId, _id: MessageId) {
        match self.0 {}
    }

    fn is_arriving(&self, _peer: HostId, _id: MessageId) -> bool {
        match self.0 {}
    }

    fn framing(&self) -> Framing {
        match self.0 {}
    }
}
