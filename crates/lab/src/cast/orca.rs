//! Orca's hosts in a run: each is an agent, and some have a part of the application.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use rackweave_core::ranges::RangeSet;
use rackweave_core::{HostId, Mixed, Node, Packet, Span, Time};
use rackweave_group::baseline::{ACK_BYTES, Deliveries, Rounds, Write, Writers};
use rackweave_group::orca::controller::{Controller, ControllerConfig, ControllerEvent};
use rackweave_group::orca::flow::{FlowConfig, Placement, ReceiverEvent, SenderEvent};
use rackweave_group::orca::host::{Event, Host, HostConfig, Spread, Tor};
use rackweave_group::orca::label::Layout;
use rackweave_group::orca::switch::Program;
use rackweave_group::system::Simulated;
use rackweave_sim::{Attached, Fabric};
use rackweave_wire::Header as WireHeader;
use rackweave_wire::orca::{Header, Reason, Session};

use super::OrcaScheme;
use super::nodes::{Either, Role};
use super::run::{CastError, CastRun, Scene};

/// The session of the files; those of the acknowledgements have numbers from this on.
const FILES: Session = Session(1);
/// Sessions are set up before the first file begins, as in the evaluation: agents have pinged, labels are there.
const SETUP: Span = Span::from_ms(20);
/// What a receiver has room for beyond what its application has taken: it takes everything at once.
const ROOM: u64 = 1 << 40;
const MAX_SESSIONS: u32 = 4096;

const fn acks_of(client: usize) -> Session {
    Session(FILES.0 + 1 + client as u32)
}

pub(super) fn run(
    scene: &Scene<'_>,
    scheme: &OrcaScheme,
    fabric: Fabric,
) -> Result<CastRun, CastError> {
    let cast = scene.cast;
    let layout = Arc::new(Layout::new(&fabric)?);
    let flow = flow_config(scheme);
    let spread = scheme.spread;
    let host = |me: HostId, ports: usize| {
        Host::new(HostConfig {
            me,
            layout: Arc::clone(&layout),
            ports: ports as u8,
            controller: scheme.controller,
            tor: if spread == Spread::Labels { Tor::Switch } else { Tor::None },
            heartbeat: Some(scheme.heartbeat),
            flow,
            max_sessions: MAX_SESSIONS,
            status_interval: scheme.status_interval.unwrap_or(Span::from_us(100)),
        })
    };
    let member = |host: Host, part: Part| Either::Server(Member { host, part, timed_at: None });
    let server = cast.senders[0];
    let mut sending = host(server, cast.senders.len());
    sending
        .open(Time::ZERO, FILES, 1, &cast.receivers, spread, flow)
        .map_err(|error| CastError::Session(error.to_string()))?;
    if cast.senders.len() > 1 {
        // The evaluation's racks are joined by nothing but the sender; here they are.
        sending = sending.with_places(cast.senders.clone());
    }
    let part = Part::Server(Box::new(Server {
        rounds: scene.rounds(),
        writers: Writers::new(cast.cost, cast.buffer, 1, 1),
        clients: cast.receivers.clone(),
        attached: vec![false; cast.receivers.len()],
        acks: BTreeMap::new(),
        offered: 0,
        total: cast.bytes(),
        ahead: 2 * flow.window,
        set_up: false,
        started: false,
        detached: 0,
    }));
    let mut nodes = vec![Attached { node: member(sending, part), hosts: cast.senders.clone() }];
    nodes.extend(cast.receivers.iter().enumerate().map(|(nth, &me)| {
        let part = Part::Client(Box::new(Client {
            server,
            acks: acks_of(nth),
            flow,
            total: cast.bytes(),
            acknowledged: 0,
            ranges: RangeSet::default(),
            deliveries: scene.deliveries(),
            wrong: 0,
        }));
        Attached::at(me, member(host(me, 1), part))
    }));
    // The other hosts are agents: any of them may be a rack's active one.
    let taken = |host: &HostId| {
        cast.senders.contains(host)
            || cast.receivers.contains(host)
            || scheme.controller == Some(*host)
    };
    let others = (0..fabric.hosts()).map(HostId).filter(|host| !taken(host));
    nodes.extend(others.map(|me| Attached::at(me, member(host(me, 1), Part::Agent))));
    if let Some(me) = scheme.controller {
        let config = ControllerConfig::new(me, Arc::clone(&layout), scheme.timeout);
        let controller = Controller::new(config);
        nodes.push(Attached::at(me, Either::Receiver(Control { controller, silent: 0 })));
    }
    let switches = Fabric::new(fabric.config())?;
    scene.run(fabric, nodes, |switch| {
        let program = Program::new(Arc::clone(&layout), &switches, switch)?;
        Ok(Simulated::<_, Mixed<WireHeader, Header>>::new(match scheme.controller {
            Some(controller) => program.with_controller(controller),
            None => program,
        }))
    })
}

/// The streams' parameters.
pub(crate) fn flow_config(scheme: &OrcaScheme) -> FlowConfig {
    let default = FlowConfig::default();
    FlowConfig {
        payload: scheme.payload,
        window: scheme.window.unwrap_or(default.window),
        patience: scheme.patience.unwrap_or(default.patience),
        max_rate: scheme.max_rate,
        fec_block: scheme.fec_block.unwrap_or(default.fec_block),
        // A file's last packet does not wait for the next file.
        flush_delay: Span::ZERO,
        ..default
    }
}

/// A host with its part of the application.
#[derive(Debug)]
struct Member {
    host: Host,
    part: Part,
    /// When it was last called for a timeout.
    timed_at: Option<Time>,
}

/// A host whose timer is due again at once (a stream that may send, but whose other port is behind) is called again so much
/// later, unless something else happens before.
const TICK: Span = Span::from_us(1);

#[derive(Debug)]
enum Part {
    Server(Box<Server>),
    Client(Box<Client>),
    /// None.
    Agent,
}

/// The application that sends.
#[derive(Debug)]
struct Server {
    rounds: Rounds,
    /// One process with one socket, whatever the number of receivers.
    writers: Writers,
    clients: Vec<HostId>,
    attached: Vec<bool>,
    /// Which client acknowledges over a session.
    acks: BTreeMap<Session, usize>,
    offered: u64,
    total: u64,
    /// Bytes that it writes ahead of what all have.
    ahead: u64,
    /// The time for setting up is over; then it waits for the receivers.
    set_up: bool,
    started: bool,
    detached: u64,
}

/// The application that receives.
#[derive(Debug)]
struct Client {
    server: HostId,
    /// Its session to the server.
    acks: Session,
    flow: FlowConfig,
    total: u64,
    acknowledged: u32,
    ranges: RangeSet,
    deliveries: Deliveries,
    wrong: u64,
}

impl Server {
    fn client(&self, host: HostId) -> Option<usize> {
        self.clients.iter().position(|client| *client == host)
    }

    fn handle(&mut self, now: Time, host: &mut Host, event: Event) {
        match event {
            Event::Invited { session, from, .. } => match self.client(from) {
                Some(client) if session == acks_of(client) => {
                    self.acks.insert(session, client);
                    host.join(now, session, 0, ROOM);
                }
                _ => host.refuse(now, session, Reason::Refused),
            },
            Event::Receiver(session, ReceiverEvent::Readable { upto }) => {
                host.consume(now, session, upto);
                if let Some(client) = self.acks.get(&session) {
                    let files = (upto / u64::from(ACK_BYTES)) as u32;
                    self.rounds.acknowledge(now, *client, files);
                }
            }
            Event::Receiver(session, ReceiverEvent::Recover(recovery)) => {
                host.recovered(now, session, recovery.block, true);
            }
            Event::Sender(FILES, SenderEvent::Attached { host }) => {
                if let Some(client) = self.client(host) {
                    self.attached[client] = true;
                }
            }
            Event::Sender(FILES, SenderEvent::Detached { .. }) => self.detached += 1,
            Event::Sender(FILES, SenderEvent::Lost { host, .. }) => {
                if let Some(client) = self.client(host) {
                    self.attached[client] = true;
                    self.rounds.lose(now, client);
                }
            }
            Event::Sender(FILES, SenderEvent::Failed { .. }) => {
                (0..self.clients.len()).for_each(|client| self.rounds.lose(now, client));
            }
            _ => {}
        }
    }

    fn work(&mut self, now: Time, host: &mut Host) {
        self.set_up |= now.since(Time::ZERO) >= SETUP;
        self.started |= self.set_up && self.attached.iter().all(|is| *is);
        if !self.started {
            return;
        }
        loop {
            while let Some(bytes) = self.rounds.start_next(now, self.writers.is_idle()) {
                self.writers.start(bytes);
            }
            let waits = self.offered.saturating_sub(host.released(FILES));
            let Some(Write { bytes, .. }) = self.writers.advance(now, |_| waits < self.ahead)
            else {
                break;
            };
            self.offered += bytes;
            host.offer(now, FILES, self.offered);
            if self.offered == self.total {
                host.finish(now, FILES);
            }
        }
    }
}

impl Client {
    fn handle(&mut self, now: Time, host: &mut Host, event: Event) {
        match event {
            Event::Invited { session: FILES, from, .. } if from == self.server => {
                host.join(now, FILES, 0, ROOM);
                // An error would be a session of that number: then nothing is ever acknowledged, which the run shows.
                let _ = host.open(now, self.acks, 2, &[from], Spread::Unicast, self.flow);
            }
            Event::Invited { session, .. } => host.refuse(now, session, Reason::Refused),
            Event::Receiver(FILES, ReceiverEvent::Readable { upto }) => {
                // What is told to be here was stored, byte by byte.
                self.wrong += upto.saturating_sub(self.ranges.first_missing(0));
                host.consume(now, FILES, upto);
                if let Some(files) = self.deliveries.readable(now, upto) {
                    self.acknowledged = files;
                    host.offer(now, self.acks, u64::from(files) * u64::from(ACK_BYTES));
                }
            }
            Event::Receiver(session, ReceiverEvent::Recover(recovery)) => {
                if session == FILES {
                    let (block, end) = (recovery.block, recovery.end);
                    if self.ranges.insert(block..end) > 0 {
                        self.deliveries.arrived(now);
                    }
                }
                host.recovered(now, session, recovery.block, true);
            }
            Event::Receiver(FILES, ReceiverEvent::Ended { length }) => {
                self.wrong += length.abs_diff(self.total);
                host.complete(now, FILES);
            }
            _ => {}
        }
    }

    /// A packet's bytes are stored where they belong.
    fn store(&mut self, now: Time, packet: &Packet<Header>, placement: Option<Placement>) {
        let Some(Placement::Store { session: FILES, offset, skip, len }) = placement else {
            return;
        };
        let Header::Data(data) = packet.header else { return };
        let fits = u32::from(skip) + u32::from(len) <= u32::from(data.len);
        if data.session != FILES || !fits || offset != data.offset + u64::from(skip) {
            self.wrong += u64::from(len);
        } else if self.ranges.insert(offset..offset + u64::from(len)) > 0 {
            self.deliveries.arrived(now);
        }
    }
}

impl Member {
    fn events(&mut self, now: Time) {
        while let Some(event) = self.host.poll_event() {
            match &mut self.part {
                Part::Server(server) => server.handle(now, &mut self.host, event),
                Part::Client(client) => client.handle(now, &mut self.host, event),
                Part::Agent => {}
            }
        }
        if let Part::Server(server) = &mut self.part {
            server.work(now, &mut self.host);
        }
    }
}

impl Node for Member {
    type Header = Header;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<Header>) {
        let handled = self.host.handle_packet(now, port, packet);
        if let Part::Client(client) = &mut self.part {
            client.store(now, packet, handled.store);
        }
        self.events(now);
    }

    fn handle_timeout(&mut self, now: Time) {
        self.timed_at = Some(now);
        self.host.handle_timeout(now);
        self.events(now);
    }

    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<Header>> {
        let packet = self.host.poll_transmit(now, port);
        self.events(now);
        // What has only now been offered leaves by a link that is free.
        packet.or_else(|| self.host.poll_transmit(now, port))
    }

    fn poll_timeout(&self) -> Option<Time> {
        let own = match &self.part {
            Part::Server(server) if !server.set_up => Some(Time::ZERO.saturating_add(SETUP)),
            Part::Server(server) => server.writers.poll_timeout(),
            _ => None,
        };
        let soonest = self.timed_at.map_or(Time::ZERO, |at| at.saturating_add(TICK));
        let host = self.host.poll_timeout().map(|at| at.max(soonest));
        [host, own].into_iter().flatten().min()
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

impl Role for Member {
    fn rounds(&self) -> Option<&Rounds> {
        match &self.part {
            Part::Server(server) => Some(&server.rounds),
            _ => None,
        }
    }

    fn deliveries(&self) -> Option<&Deliveries> {
        match &self.part {
            Part::Client(client) => Some(&client.deliveries),
            _ => None,
        }
    }

    fn repaired_bytes(&self) -> u64 {
        match &self.part {
            Part::Server(_) => self.host.summary(FILES).map_or(0, |sent| {
                sent.repaired_all + sent.repaired_one + sent.parity + sent.catch_up
            }),
            _ => 0,
        }
    }

    fn detached(&self) -> u64 {
        match &self.part {
            Part::Server(server) => server.detached,
            _ => 0,
        }
    }

    fn wrong_bytes(&self) -> u64 {
        match &self.part {
            Part::Client(client) => client.wrong,
            _ => 0,
        }
    }

    fn restart(&mut self) {
        self.host = self.host.restarted();
    }
}

/// The controller, and what it has decided.
#[derive(Debug)]
struct Control {
    controller: Controller,
    silent: u64,
}

impl Control {
    fn events(&mut self) {
        while let Some(event) = self.controller.poll_event() {
            self.silent += u64::from(matches!(event, ControllerEvent::Silent { .. }));
        }
    }
}

impl Node for Control {
    type Header = Header;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<Header>) {
        self.controller.handle_packet(now, port, packet);
        self.events();
    }

    fn handle_timeout(&mut self, now: Time) {
        self.controller.handle_timeout(now);
        self.events();
    }

    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<Header>> {
        self.controller.poll_transmit(now, port)
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.controller.poll_timeout()
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

impl Role for Control {
    fn silent_agents(&self) -> u64 {
        self.silent
    }

    fn restart(&mut self) {
        self.controller = self.controller.restarted();
    }
}
