//! SWP2P's machines as nodes of a network. Control messages are datagrams, and a chunk is one message of a [`Carrier`].
//! That is a transport, usually TCP, whose machine runs in the node, or a flow of the simulator, for runs with more
//! packets than can be simulated.
//!
//! Chunks have no bytes in the simulator. What a receiver would find in them, which chunk it is and whether it is damaged, is in
//! the id of the message.

use core::convert::Infallible;
use std::collections::VecDeque;

use rackweave_core::{
    Bitmap, Event as Carried, HostId, Kind, MessageId, Mixed, Node, Packet, Placement, Rng,
    Schedule, Submit, Time, Transport as _,
};
use rackweave_transport::{Machine, TransportConfig};

use super::client::{self, Client, Event, Failure};
use super::server::Server;
use super::{CONTROL_PRIORITY, Check, ChunkOf, Outgoing, Send};
use crate::Shape;
use crate::intake::{Expand, Stage};
use crate::packet::{Header, packet};

/// The header of SWP2P's packets on a network: a control message, or a packet of the carrier.
pub type NodeHeader = Mixed<rackweave_wire::Header, Header>;

/// What carries chunks.
#[derive(Clone, Debug)]
pub enum Carrier {
    /// A transport, packet by packet.
    Transport(TransportConfig),
    /// Flows without packets: the driver takes them from [`P2pNode::poll_transfer`].
    Fluid,
}

/// The carrier of a node.
#[derive(Debug)]
enum Carrying {
    Transport { config: TransportConfig, machine: Box<Machine> },
    Fluid { transfers: VecDeque<Submit> },
}

impl Carrying {
    fn new(carrier: &Carrier, host: HostId) -> Self {
        match carrier {
            Carrier::Transport(config) => {
                Self::Transport { config: config.clone(), machine: Box::new(config.machine(host)) }
            }
            Carrier::Fluid => Self::Fluid { transfers: VecDeque::new() },
        }
    }

    /// The host has crashed, or restarts.
    fn reset(&mut self, host: HostId) {
        match self {
            Self::Transport { config, machine } => **machine = config.machine(host),
            Self::Fluid { transfers } => transfers.clear(),
        }
    }

    /// Returns whether the carrier takes the chunk.
    fn submit(&mut self, now: Time, chunk: Submit) -> bool {
        match self {
            Self::Transport { machine, .. } => machine.submit(now, chunk).is_ok(),
            Self::Fluid { transfers } => {
                transfers.push_back(chunk);
                true
            }
        }
    }

    fn machine(&mut self) -> Option<&mut Machine> {
        match self {
            Self::Transport { machine, .. } => Some(machine),
            Self::Fluid { .. } => None,
        }
    }
}

/// What a client's node needs to run.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The client's behaviour.
    pub client: client::Config,
    /// The server's host.
    pub server: HostId,
    /// The name of the image.
    pub name: Vec<u8>,
    /// When the client starts.
    pub start: Time,
    /// How fast chunks are expanded and written; `None` if that takes no time.
    pub expand: Option<Expand>,
    /// Whether it sends damaged chunks, as a fault.
    pub corrupts: bool,
}

/// When a client got how far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When all chunks had been received.
    pub received: Option<Time>,
    /// When all chunks were written.
    pub written: Option<Time>,
    /// When it left.
    pub left: Option<Time>,
    /// Why it failed.
    pub failed: Option<Failure>,
    /// The number of its crashes.
    pub crashes: u32,
}

/// The client at a host.
#[derive(Debug)]
struct ClientSide {
    config: ClientConfig,
    rng: Rng,
    client: Option<Box<Client>>,
    shape: Option<Shape>,
    stage: Option<Stage>,
    /// When the expansion of the next chunk may begin.
    free: Time,
    writes: Schedule<u32>,
    record: Record,
}

#[derive(Debug)]
enum Role {
    Client(Box<ClientSide>),
    Server { server: Box<Server>, images: Vec<Served> },
}

/// An image of a server, and the beginning of what was sent of it.
#[derive(Debug)]
struct Served {
    number: u32,
    shape: Shape,
    /// Chunks sent, up to the number of chunks that the image has.
    sent: u32,
    /// The different chunks among them.
    first: Bitmap<u32>,
}

impl Served {
    fn note(&mut self, chunk: u32) {
        if self.sent < self.shape.chunks() {
            self.sent += 1;
            self.first.insert(chunk);
        }
    }
}

/// A host with SWP2P's client or server and a carrier.
#[derive(Debug)]
pub struct P2pNode {
    host: HostId,
    carrier: Carrying,
    role: Role,
    control: VecDeque<Outgoing>,
    /// The payload of the packet that was polled last.
    payload: Vec<u8>,
    /// The number of chunks submitted to the carrier.
    submitted: u64,
    down: bool,
}

const CHUNK_BITS: u32 = 31;
const IMAGE_BITS: u32 = 4;
const DAMAGED: u64 = 1 << (CHUNK_BITS + IMAGE_BITS);
const SEQUENCE_SHIFT: u32 = CHUNK_BITS + IMAGE_BITS + 1;

/// The id of the message that carries a chunk. Images are numbered below 16 here.
fn message_of(sequence: u64, what: ChunkOf, damaged: bool) -> MessageId {
    let image = u64::from(what.image) & ((1 << IMAGE_BITS) - 1);
    let flag = if damaged { DAMAGED } else { 0 };
    let low = flag | image << CHUNK_BITS | u64::from(what.chunk);
    MessageId::request(sequence << SEQUENCE_SHIFT | low)
}

fn chunk_of(id: MessageId) -> (ChunkOf, Check) {
    let number = id.number();
    let chunk = (number & ((1 << CHUNK_BITS) - 1)) as u32;
    let image = (number >> CHUNK_BITS) as u32 & ((1 << IMAGE_BITS) - 1);
    let check = if number & DAMAGED == 0 { Check::Verified } else { Check::Damaged };
    (ChunkOf { image, chunk }, check)
}

impl P2pNode {
    /// Returns the node of a client, which starts at its time.
    #[must_use]
    pub fn client(host: HostId, carrier: &Carrier, config: ClientConfig, rng: Rng) -> Self {
        let side = ClientSide {
            config,
            rng,
            client: None,
            shape: None,
            stage: None,
            free: Time::ZERO,
            writes: Schedule::default(),
            record: Record::default(),
        };
        Self::new(host, carrier, Role::Client(Box::new(side)))
    }

    /// Returns the node of a server of these images, whose numbers are below 16.
    #[must_use]
    pub fn server(
        host: HostId,
        carrier: &Carrier,
        config: super::server::Config,
        images: &[(u32, Vec<u8>, Shape)],
    ) -> Self {
        let mut server = Server::new(config);
        for (number, name, shape) in images {
            server.add(*number, name, *shape);
        }
        let served = |(number, _, shape): &(u32, Vec<u8>, Shape)| Served {
            number: *number,
            shape: *shape,
            sent: 0,
            first: Bitmap::new(shape.chunks()),
        };
        let images = images.iter().map(served).collect();
        Self::new(host, carrier, Role::Server { server: Box::new(server), images })
    }

    fn new(host: HostId, carrier: &Carrier, role: Role) -> Self {
        Self {
            host,
            carrier: Carrying::new(carrier, host),
            role,
            control: VecDeque::new(),
            payload: Vec::new(),
            submitted: 0,
            down: false,
        }
    }

    /// Returns the client, once it has started.
    #[must_use]
    pub fn as_client(&self) -> Option<&Client> {
        match &self.role {
            Role::Client(side) => side.client.as_deref(),
            Role::Server { .. } => None,
        }
    }

    /// Returns when the client at this host got how far.
    #[must_use]
    pub const fn record(&self) -> Option<&Record> {
        match &self.role {
            Role::Client(side) => Some(&side.record),
            Role::Server { .. } => None,
        }
    }

    /// Returns the server.
    #[must_use]
    pub const fn as_server(&self) -> Option<&Server> {
        match &self.role {
            Role::Client(_) => None,
            Role::Server { server, .. } => Some(&**server),
        }
    }

    /// Returns the number of different chunks among the first N that the server sent of an image, which has N: it is N if the
    /// first chunks are one whole copy. `None` at clients, and for an image that is not served here.
    #[must_use]
    pub fn first_copy(&self, image: u32) -> Option<u32> {
        let Role::Server { images, .. } = &self.role else { return None };
        images.iter().find(|served| served.number == image).map(|served| served.first.len())
    }

    /// Returns whether the client has written the image or failed. A server is always done.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        match &self.role {
            Role::Client(side) => side.record.written.is_some() || side.record.failed.is_some(),
            Role::Server { .. } => true,
        }
    }

    /// Returns whether its host is down.
    #[must_use]
    pub const fn is_down(&self) -> bool {
        self.down
    }

    /// The payload of the packet that was polled last.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The host crashes (`down`), or restarts: the memory of its machines is lost. A client that had not written the image
    /// starts from the beginning; a server forgets who has joined.
    pub fn crash(&mut self, now: Time, down: bool) {
        self.down = down;
        self.control.clear();
        self.carrier.reset(self.host);
        match &mut self.role {
            Role::Client(side) => {
                side.client = None;
                side.stage = None;
                side.writes.clear();
                side.free = Time::ZERO;
                side.record.crashes += u32::from(down);
                side.record.received = None;
                side.config.start = side.config.start.max(now);
            }
            Role::Server { server, .. } => server.restart(),
        }
    }

    /// Returns the next chunk that is sent as a flow ([`Carrier::Fluid`]).
    pub fn poll_transfer(&mut self) -> Option<Submit> {
        match &mut self.carrier {
            Carrying::Transport { .. } => None,
            Carrying::Fluid { transfers } => transfers.pop_front(),
        }
    }

    /// Handles the end of a flow: of a chunk that has arrived, or that a peer has received from here.
    pub fn handle_transfer(&mut self, now: Time, event: Carried) {
        if !self.down {
            self.carried(now, event);
            self.pump(now);
        }
    }

    /// Handles a packet with its payload.
    pub fn receive(&mut self, now: Time, packet: &Packet<NodeHeader>, payload: &[u8]) {
        if self.down {
            return;
        }
        match packet.header {
            Mixed::Transport(header) => {
                let Some(machine) = self.carrier.machine() else { return };
                let placed = machine.handle_packet(now, 0, &packet.map(|_| header));
                if let (Placement::Store(slice), Role::Client(side)) = (placed, &mut self.role)
                    && let Some(client) = &mut side.client
                {
                    client.chunk_progress(now, packet.src, chunk_of(slice.message).0);
                }
            }
            Mixed::Group(Header { message, .. }) => {
                if message.is_from(packet.src) {
                    match &mut self.role {
                        Role::Client(side) => {
                            if let Some(client) = &mut side.client {
                                client.handle_control(now, packet.src, &message.body);
                            }
                        }
                        Role::Server { server, .. } => {
                            server.handle_control(now, packet.src, &message.body, payload);
                        }
                    }
                }
            }
        }
        self.pump(now);
    }

    /// Passes on between the machine, the carrier and the disk whatever is due.
    fn pump(&mut self, now: Time) {
        while let Some(event) = self.carrier.machine().and_then(Machine::poll_event) {
            self.carried(now, event);
        }
        if let Role::Client(side) = &mut self.role {
            side.work(now);
        }
        while let Some(Send { peer, what }) = self.poll_send(now) {
            let (bytes, damaged) = match &mut self.role {
                Role::Client(side) => {
                    (side.shape.map_or(0, |shape| shape.len_of(what.chunk)), side.config.corrupts)
                }
                Role::Server { images, .. } => {
                    let served = images.iter_mut().find(|served| served.number == what.image);
                    let bytes = served.map_or(0, |served| {
                        served.note(what.chunk);
                        served.shape.len_of(what.chunk)
                    });
                    (bytes, false)
                }
            };
            self.submitted += 1;
            let id = message_of(self.submitted, what, damaged);
            let submit = Submit { id, peer, bytes: u64::from(bytes), kind: Kind::OneWay };
            if !self.carrier.submit(now, submit) {
                self.peer_failed(now, peer);
            }
        }
        while let Some(outgoing) = match &mut self.role {
            Role::Client(side) => side.client.as_mut().and_then(|client| client.poll_control(now)),
            Role::Server { server, .. } => server.poll_control(now),
        } {
            self.control.push_back(outgoing);
        }
    }

    fn poll_control(&mut self) -> Option<Packet<NodeHeader>> {
        let Outgoing { to, body } = self.control.pop_front()?;
        if let Role::Client(side) = &self.role
            && let Some(client) = &side.client
        {
            client.payload(&body, &mut self.payload);
        }
        Some(packet(self.host, to, body).map(Mixed::Group).with_priority(CONTROL_PRIORITY))
    }

    fn poll_carrier(&mut self, now: Time) -> Option<Packet<NodeHeader>> {
        Some(self.carrier.machine()?.poll_transmit(now, 0)?.map(Mixed::Transport))
    }

    fn poll_send(&mut self, now: Time) -> Option<Send> {
        match &mut self.role {
            Role::Client(side) => side.client.as_mut()?.poll_send(now),
            Role::Server { server, .. } => server.poll_send(now),
        }
    }

    fn peer_failed(&mut self, now: Time, peer: HostId) {
        match &mut self.role {
            Role::Client(side) => {
                if let Some(client) = &mut side.client {
                    client.peer_failed(now, peer);
                }
            }
            Role::Server { server, .. } => server.peer_failed(now, peer),
        }
    }

    fn carried(&mut self, now: Time, event: Carried) {
        match event {
            Carried::Delivered { peer, id, .. } => {
                if let Role::Client(side) = &mut self.role
                    && let Some(client) = &mut side.client
                {
                    let (what, check) = chunk_of(id);
                    client.chunk_received(now, peer, what, check);
                }
            }
            Carried::Sent { peer, id } => {
                let (what, _) = chunk_of(id);
                match &mut self.role {
                    Role::Client(side) => {
                        if let Some(client) = &mut side.client {
                            client.chunk_sent(now, peer, what);
                        }
                    }
                    Role::Server { server, .. } => server.chunk_sent(now, peer, what),
                }
            }
            Carried::Failed { peer, .. } => self.peer_failed(now, peer),
            Carried::Stream(_) => {}
        }
    }
}

impl ClientSide {
    /// Starts the client, expands and writes chunks, and takes the client's events.
    fn work(&mut self, now: Time) {
        if self.client.is_none() && now >= self.config.start && self.record.written.is_none() {
            let ClientConfig { client, server, name, .. } = &self.config;
            let rng = Rng::stream(self.rng.next_u64(), 0, 0, "client");
            let mut client = Client::new(*client, now, *server, name, rng);
            client.handle_timeout(now);
            self.client = Some(Box::new(client));
        }
        let Some(client) = &mut self.client else { return };
        loop {
            while let Some((_, chunk)) = self.writes.pop_due(now) {
                client.written(now, chunk);
            }
            if let Some(event) = client.poll_event() {
                match event {
                    Event::Joined { shape, .. } => {
                        self.shape = Some(shape);
                        self.stage =
                            self.config.expand.map(|expand| Stage::new(&expand, shape.chunks()));
                        let none = Bitmap::new(shape.chunks());
                        client.start(now, &none, &none);
                    }
                    Event::Received => self.record.received = Some(now),
                    Event::Written => self.record.written = Some(now),
                    Event::Left => self.record.left = Some(now),
                    Event::Failed(failure) => self.record.failed = Some(failure),
                    Event::Damaged { .. } => {}
                }
                continue;
            }
            if now >= self.free
                && let Some(chunk) = client.poll_expand()
            {
                let written = match &mut self.stage {
                    Some(stage) => {
                        let (expanded, written) = stage.start(now);
                        self.free = expanded;
                        written
                    }
                    None => now,
                };
                self.writes.push(written, chunk);
                continue;
            }
            return;
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        let Some(client) = &self.client else {
            return self.record.written.is_none().then_some(self.config.start);
        };
        let expand = (self.stage.is_some() && client.has_to_expand()).then_some(self.free);
        [client.poll_timeout(), self.writes.next_time(), expand].into_iter().flatten().min()
    }
}

impl Node for P2pNode {
    type Header = NodeHeader;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<NodeHeader>) {
        self.receive(now, packet, &[]);
    }

    fn handle_timeout(&mut self, now: Time) {
        if self.down {
            return;
        }
        if let Some(machine) = self.carrier.machine() {
            machine.handle_timeout(now);
        }
        if let Role::Client(side) = &mut self.role
            && let Some(client) = &mut side.client
            && client.poll_timeout().is_some_and(|at| at <= now)
        {
            client.handle_timeout(now);
        }
        self.pump(now);
    }

    fn poll_transmit(&mut self, now: Time, _port: u8) -> Option<Packet<NodeHeader>> {
        if self.down {
            return None;
        }
        self.payload.clear();
        if let Some(packet) = self.poll_control().or_else(|| self.poll_carrier(now)) {
            return Some(packet);
        }
        // A transport may have events after it was polled, which may lead to packets.
        self.carrier.machine()?;
        self.pump(now);
        self.poll_control().or_else(|| self.poll_carrier(now))
    }

    fn poll_timeout(&self) -> Option<Time> {
        if self.down {
            return None;
        }
        let own = match &self.role {
            Role::Client(side) => side.poll_timeout(),
            Role::Server { .. } => None,
        };
        let carrier = match &self.carrier {
            Carrying::Transport { machine, .. } => machine.poll_timeout(),
            Carrying::Fluid { .. } => None,
        };
        [carrier, own].into_iter().flatten().min()
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}
