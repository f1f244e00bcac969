//! Orca's hosts in a run: each is an agent, and some run a side of the application.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use rackweave_core::{FailReason, HostId, Mixed, Node, Packet, Span, Time};
use rackweave_orca::app::{ACK_BYTES, Receiver, Report, Sender, SenderConfig};
use rackweave_orca::controller::{Controller, ControllerConfig, ControllerEvent};
use rackweave_orca::flow::{FlowConfig, Placement, ReceiverEvent, SenderEvent};
use rackweave_orca::host::{Event, Host, HostConfig, Spread, Tor};
use rackweave_orca::label::Layout;
use rackweave_orca::switch::Program;
use rackweave_sim::Attached;
use rackweave_switch::system::Simulated;
use rackweave_wire::Header as WireHeader;
use rackweave_wire::orca::{Header, Reason, Session};

use super::OrcaScheme;
use super::nodes::{Either, Role};
use super::run::{CastError, CastRun, RunContext};
use crate::study::StudyError;

/// The session of the files. The sessions of acknowledgements have the numbers after it.
const FILES: Session = Session(1);
/// The time for setting up sessions before the first file, as in the evaluation: by then agents have pinged, and labels
/// are installed.
const SETUP: Span = Span::from_ms(20);
/// The receive window in bytes. The application consumes all data at once, so it never fills.
const ROOM: u64 = 1 << 40;
const MAX_SESSIONS: u32 = 4096;
/// How often a receiver may forget the session in crashes and is invited again. The bound is Rackweave's: it only ends
/// runs in which a receiver answers and never joins.
const MAX_RETURNS: u32 = 8;

const fn acks_of(client: usize) -> Session {
    Session(FILES.0 + 1 + client as u32)
}

pub(super) fn run(context: &RunContext<'_>, scheme: &OrcaScheme) -> Result<CastRun, StudyError> {
    let (cast, fabric) = (context.cast, context.setting.fabric);
    let layout = Layout::new(fabric).and_then(|layout| layout.with_filter(scheme.filter_bits));
    let layout = Arc::new(layout.map_err(StudyError::of_kind)?);
    let flow = flow_config(scheme);
    let spread = scheme.spread;
    let host = |me: HostId, ports: usize| {
        Host::new(HostConfig {
            me,
            incarnation: 0,
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
    let member = |host: Host, side: Side| Either::Server(Member { host, side, timed_at: None });
    let server = cast.senders[0];
    let mut sending = host(server, cast.senders.len());
    sending
        .open(Time::ZERO, FILES, 1, &cast.receivers, spread, flow)
        .map_err(|error| CastError::Session(error.to_string()))?;
    sending.set_readable_from(FILES, 0);
    if cast.senders.len() > 1 {
        // In the evaluation, only the sender connects the racks. Here the fabric connects them too.
        sending = sending.with_places(cast.senders.clone());
    }
    // The sender has one process with one socket, whatever the number of receivers.
    let app = Sender::new(SenderConfig {
        begins_at: Time::ZERO.saturating_add(SETUP),
        awaits_receivers: true,
        processes: 1,
        ..cast.sender_app(1)
    });
    let clients = cast.receivers.clone();
    let side = Side::Server(Box::new(Server {
        app,
        clients,
        ahead: 2 * flow.window,
        returns: BTreeMap::new(),
    }));
    let mut nodes = vec![Attached { node: member(sending, side), hosts: cast.senders.clone() }];
    nodes.extend(cast.receivers.iter().enumerate().map(|(nth, &me)| {
        let side = Side::Client(Box::new(Client {
            server,
            clients: cast.receivers.len() as u32,
            acks: acks_of(nth),
            flow,
            app: cast.receiver_app(),
        }));
        Attached::at(me, member(host(me, 1), side))
    }));
    // All other hosts are agents, and any may become its rack's active agent.
    let taken = |host: &HostId| {
        cast.senders.contains(host)
            || cast.receivers.contains(host)
            || scheme.controller == Some(*host)
    };
    let others = (0..fabric.hosts()).map(HostId).filter(|host| !taken(host));
    nodes.extend(others.map(|me| Attached::at(me, member(host(me, 1), Side::Agent))));
    if let Some(me) = scheme.controller {
        let config = ControllerConfig::new(me, Arc::clone(&layout), scheme.timeout);
        let controller = Controller::new(config);
        nodes.push(Attached::at(me, Either::Receiver(Control { controller, silent: 0 })));
    }
    context.run(nodes, |switch| {
        let program = Program::new(Arc::clone(&layout), fabric, switch);
        let program = program.map_err(StudyError::of_kind)?;
        Ok(Simulated::<_, Mixed<WireHeader, Header>>::new(match scheme.controller {
            Some(controller) => program.with_controller(controller),
            None => program,
        }))
    })
}

/// Returns the parameters of the sessions' streams.
pub fn flow_config(scheme: &OrcaScheme) -> FlowConfig {
    let default = FlowConfig::default();
    FlowConfig {
        payload: scheme.payload,
        window: scheme.window.unwrap_or(default.window),
        patience: scheme.patience.unwrap_or(default.patience),
        max_rate: scheme.max_rate,
        fec_block: scheme.fec_block.unwrap_or(default.fec_block),
        // The last packet of a file is sent without waiting for the next file.
        flush_delay: Span::ZERO,
        ..default
    }
}

/// A host with its side of the application.
#[derive(Debug)]
struct Member {
    host: Host,
    side: Side,
    /// The time of its last call for a timeout.
    timed_at: Option<Time>,
}

/// The delay before a host whose timer is due at the present time is called again, unless something else happens
/// before. That is the case of a stream that may send while its other port lags behind.
const TICK: Span = Span::from_us(1);

#[derive(Debug)]
enum Side {
    Server(Box<Server>),
    Client(Box<Client>),
    /// The host is only an agent.
    Agent,
}

/// The sender's side of the application.
#[derive(Debug)]
struct Server {
    app: Sender,
    clients: Vec<HostId>,
    /// The number of bytes that it writes ahead of what all receivers have.
    ahead: u64,
    /// How often each receiver that had forgotten the session was invited again.
    returns: BTreeMap<HostId, u32>,
}

/// A receiver's side of the application.
#[derive(Debug)]
struct Client {
    server: HostId,
    /// The number of all receivers.
    clients: u32,
    /// Its session to the sender, for acknowledgements.
    acks: Session,
    flow: FlowConfig,
    app: Receiver,
}

/// Returns the reason recorded for a failed cast, from the one that the flow gives.
pub const fn fail_reason(reason: Reason) -> FailReason {
    match reason {
        Reason::Silent => FailReason::PeerSilent,
        Reason::Unknown => FailReason::PeerForgot,
        _ => FailReason::Cancelled,
    }
}

impl Server {
    /// Returns the client that acknowledges over a session.
    fn client(&self, session: Session) -> Option<HostId> {
        let session = session.0.checked_sub(acks_of(0).0)? as usize;
        // A receiver that has restarted has a further session.
        self.clients.get(session.checked_rem(self.clients.len())?).copied()
    }

    /// Returns whether a receiver that has forgotten the session is invited again, and counts that.
    fn may_return(&mut self, who: HostId) -> bool {
        let returns = self.returns.entry(who).or_default();
        *returns += 1;
        *returns <= MAX_RETURNS
    }

    fn handle(&mut self, now: Time, host: &mut Host, event: Event) {
        match event {
            Event::Invited { session, from, .. } if self.client(session) == Some(from) => {
                host.join(now, session, 0, ROOM);
            }
            Event::Invited { session, .. } => host.refuse(now, session, Reason::Refused),
            Event::Receiver(session, ReceiverEvent::Readable { upto }) => {
                host.consume(now, session, upto);
                if let Some(client) = self.client(session) {
                    self.app.acknowledged_bytes(now, client, upto);
                }
            }
            Event::Receiver(session, ReceiverEvent::Recover(recovery)) => {
                host.recovered(now, session, recovery.block, true);
            }
            Event::Sender(FILES, SenderEvent::Attached { host }) => self.app.joined(host),
            Event::Sender(FILES, SenderEvent::Detached { host }) => self.app.detached(host),
            // Its host is back after a crash. Like `cast send`, the sender still has all bytes.
            Event::Sender(FILES, SenderEvent::Lost { host: who, reason: Reason::Unknown })
                if self.may_return(who) =>
            {
                host.add(now, FILES, who);
            }
            Event::Sender(FILES, SenderEvent::Lost { host, reason }) => {
                self.app.failed(now, host, fail_reason(reason));
            }
            Event::Sender(FILES, SenderEvent::Failed { reason }) => {
                self.app.all_failed(now, fail_reason(reason));
            }
            _ => {}
        }
    }

    fn work(&mut self, now: Time, host: &mut Host) {
        loop {
            let waits = self.app.written().saturating_sub(host.released(FILES));
            if self.app.poll_write(now, |_| waits < self.ahead).is_none() {
                break;
            }
            host.offer(now, FILES, self.app.written());
            if self.app.is_written() {
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
                // The only error is a session with that number. Then nothing is ever acknowledged, which the run shows.
                let _ = host.open(now, self.acks, 2, &[from], Spread::Unicast, self.flow);
            }
            Event::Invited { session, .. } => host.refuse(now, session, Reason::Refused),
            Event::Receiver(FILES, ReceiverEvent::Readable { upto }) => {
                host.consume(now, FILES, upto);
                if let Some(files) = self.app.readable(now, upto) {
                    host.offer(now, self.acks, u64::from(files) * u64::from(ACK_BYTES));
                }
            }
            Event::Receiver(session, ReceiverEvent::Recover(recovery)) => {
                if session == FILES {
                    self.app.stored(now, recovery.block..recovery.end);
                }
                host.recovered(now, session, recovery.block, true);
            }
            Event::Receiver(FILES, ReceiverEvent::Ended { length }) => {
                self.app.ended(length);
                host.complete(now, FILES);
            }
            _ => {}
        }
    }

    /// Stores the bytes of a packet at their offset.
    fn store(&mut self, now: Time, packet: &Packet<Header>, placement: Option<Placement>) {
        let Some(Placement::Store { session: FILES, offset, skip, len }) = placement else {
            return;
        };
        let Header::Data(data) = packet.header else { return };
        let fits = u32::from(skip) + u32::from(len) <= u32::from(data.len);
        if data.session != FILES || !fits || offset != data.offset + u64::from(skip) {
            self.app.damaged(len.into());
        } else {
            self.app.stored(now, offset..offset + u64::from(len));
        }
    }
}

impl Member {
    fn events(&mut self, now: Time) {
        while let Some(event) = self.host.poll_event() {
            match &mut self.side {
                Side::Server(server) => server.handle(now, &mut self.host, event),
                Side::Client(client) => client.handle(now, &mut self.host, event),
                Side::Agent => {}
            }
        }
        if let Side::Server(server) = &mut self.side {
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
        if let Side::Client(client) = &mut self.side {
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
        // Data that was offered just now can leave at once if the link is free.
        packet.or_else(|| self.host.poll_transmit(now, port))
    }

    fn poll_timeout(&self) -> Option<Time> {
        let own = match &self.side {
            Side::Server(server) => server.app.poll_timeout(),
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
    fn report(&self) -> Report {
        match &self.side {
            Side::Server(server) => {
                let sent = self.host.summary(FILES);
                let repaired_bytes = sent.map_or(0, |sent| sent.repaired_bytes());
                Report { repaired_bytes, ..server.app.report() }
            }
            Side::Client(client) => client.app.report(),
            Side::Agent => Report::default(),
        }
    }

    fn is_done(&self) -> bool {
        !matches!(&self.side, Side::Server(server) if !server.app.is_done())
    }

    fn crash(&mut self, now: Time) {
        if let Side::Server(server) = &mut self.side {
            server.app.all_failed(now, FailReason::HostCrashed);
        }
    }

    fn restart(&mut self, _now: Time) {
        self.host = self.host.restarted();
        match &mut self.side {
            // Its casts have failed in the crash.
            Side::Server(_) => {}
            Side::Client(client) => {
                client.app.crashed();
                // The sender still has the session of the acknowledgements before the crash.
                client.acks.0 += client.clients;
            }
            Side::Agent => {}
        }
    }
}

/// The controller, and the events that it has reported.
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
    fn report(&self) -> Report {
        Report { silent_agents: self.silent, ..Report::default() }
    }

    fn restart(&mut self, _now: Time) {
        self.controller = self.controller.restarted();
    }
}
