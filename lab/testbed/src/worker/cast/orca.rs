//! A cast over Orca: the engine that `rackweave cast` runs, with the scenario's parameters.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use rackweave_cast::orca::Engine;
use rackweave_cast::orca::{Accept, Admission, Decision, EngineConfig, EngineEvent, FabricPlace};
use rackweave_cast::sink::{Sink, SinkError};
use rackweave_core::{HostId, Span, Time};
use rackweave_lab::study::cast::{OrcaScheme, fail_reason, flow_config};
use rackweave_orca::app::{ACK_BYTES, Report, Sender as App, SenderConfig};
use rackweave_orca::flow::{FlowConfig, SenderEvent, SenderSummary};
use rackweave_orca::host::Spread;
use rackweave_orca::label::Layout;
use rackweave_sim::Fabric;
use rackweave_wire::orca::{PORT, Reason, Session};

use super::content::{Content, FILES, Gate, GeneratedSource, SharedReceiver};
use super::{CastHost, Place};
use crate::worker::timeline::TimeLine;

/// Returns the address of a host's engine, in its namespace.
pub(super) fn address(host: HostId) -> Option<SocketAddr> {
    let ip = rackweave_wire::frame::ip_address(host)?;
    Some(SocketAddr::from((Ipv4Addr::from(ip), PORT)))
}

fn engine(place: &Place<'_>, scheme: &OrcaScheme, accept: Accept) -> Result<Engine, String> {
    let fabric = Fabric::new(&place.point.config.fabric).map_err(|error| error.to_string())?;
    let layout = Layout::new(&fabric).map_err(|error| error.to_string())?;
    let hosts = (0..fabric.hosts()).map(HostId);
    let mut config = EngineConfig::new(place.at);
    if let SocketAddr::V4(at) = place.at {
        config.interface = *at.ip();
    }
    let is_receiver = place.cast.receivers.contains(&place.this);
    config.in_group = is_receiver && scheme.spread == Spread::Multicast;
    config.admission = Admission::default();
    config.fabric = Some(FabricPlace {
        me: place.this,
        layout: Arc::new(layout),
        hosts: hosts.filter_map(|host| Some((host, address(host)?))).collect(),
        controller: None,
        tor: false,
        heartbeat: None,
        control: None,
    });
    config.flow = flow_config(scheme);
    // A lost receiver is not invited again, as in the simulator.
    config.retry = Span::ZERO;
    Engine::new(config, Some(accept)).map_err(|error| error.to_string())
}

fn broken(error: std::io::Error) -> String {
    format!("its socket failed: {error}")
}

/// Waits for the engine's sockets.
fn wait(engine: &mut Engine, until: Option<Time>, most: Span) -> Result<(), String> {
    let latest = engine.clock().now() + most;
    let until = until.map_or(latest, |until| until.min(latest));
    engine.wait(Some(until)).map_err(|error| format!("it cannot wait: {error}"))
}

/// The receiver that acknowledges over each session.
type Acknowledging = Arc<Mutex<BTreeMap<Session, HostId>>>;

/// A sink of acknowledgements; only their number matters.
struct CountingSink {
    left: u64,
}

impl Sink for CountingSink {
    fn begins_at(&self) -> u64 {
        0
    }
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        self.left = self.left.saturating_sub(bytes.len() as u64);
        Ok(())
    }
    fn is_complete(&self) -> bool {
        self.left == 0
    }
}

/// The host that sends the cast.
pub(super) struct Sender {
    engine: Engine,
    session: Option<Session>,
    spread: Spread,
    flow: FlowConfig,
    gate: Gate,
    source: Option<GeneratedSource>,
    app: App,
    clients: Vec<HostId>,
    acknowledging: Acknowledging,
    summary: SenderSummary,
    next: Option<Time>,
}

impl Sender {
    pub(super) fn new(place: &Place<'_>, scheme: &OrcaScheme) -> Result<Self, String> {
        if scheme.spread == Spread::Labels {
            return Err("the testbed has no labels".into());
        }
        let cast = place.cast;
        let (source, gate) = place.content.source(FILES);
        let app = App::new(SenderConfig { awaits_receivers: true, ..place.sender_app(1) });
        let acknowledging = Acknowledging::default();
        let (sessions, clients) = (Arc::clone(&acknowledging), cast.receivers.clone());
        let left = cast.files.len() as u64 * u64::from(ACK_BYTES);
        let accept: Accept = Box::new(move |offer| {
            let client = clients.iter().find(|host| address(**host) == Some(offer.from));
            let Some(client) = client else { return Decision::Refuse(Reason::Refused) };
            let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.insert(offer.session, *client);
            Decision::Accept(Box::new(
                move |_| Ok(Box::new(CountingSink { left }) as Box<dyn Sink>),
            ))
        });
        Ok(Self {
            engine: engine(place, scheme, accept)?,
            session: None,
            spread: scheme.spread,
            flow: flow_config(scheme),
            gate,
            source: Some(source),
            app,
            clients: cast.receivers.clone(),
            acknowledging,
            summary: SenderSummary::default(),
            next: None,
        })
    }

    fn acknowledged(&mut self, now: Time, session: Session, bytes: u64) {
        let sessions = self.acknowledging.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = sessions.get(&session) {
            self.app.acknowledged_bytes(now, *client, bytes);
        }
    }

    fn on_event(&mut self, now: Time, event: EngineEvent) -> Result<(), String> {
        match event {
            EngineEvent::Sender(_, SenderEvent::Attached { host }) => self.app.joined(host),
            EngineEvent::Sender(_, SenderEvent::Detached { host }) => self.app.detached(host),
            EngineEvent::Sender(_, SenderEvent::Lost { host, reason }) => {
                self.app.failed(now, host, fail_reason(reason));
            }
            EngineEvent::Received { session, bytes, .. } => self.acknowledged(now, session, bytes),
            EngineEvent::Sent { view, error, .. } => {
                if let Some(error) = error {
                    return Err(error.to_string());
                }
                self.summary = view.summary;
                self.session = None;
            }
            _ => {}
        }
        Ok(())
    }
}

impl CastHost for Sender {
    /// The session is set up before the load starts, as in the simulator.
    fn greet(&mut self) -> Result<(), String> {
        let Some(source) = self.source.take() else { return Ok(()) };
        let opened = self.engine.open(Box::new(source), &self.clients, self.spread, self.flow);
        self.session = Some(opened.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn turn(&mut self, now: Option<Time>) -> Result<(), String> {
        self.next = self.engine.turn().map_err(broken)?;
        let time = now.unwrap_or(Time::ZERO);
        while let Some(event) = self.engine.poll_event() {
            self.on_event(time, event)?;
        }
        for progress in self.engine.incoming() {
            self.acknowledged(time, progress.session, progress.bytes);
        }
        if now.is_none() {
            return Ok(());
        }
        while self.app.poll_write(time, |_| true).is_some() {
            self.gate.open(self.app.written());
        }
        Ok(())
    }

    fn wait(&mut self, most: Span) -> Result<(), String> {
        wait(&mut self.engine, self.next, most)
    }

    fn is_idle(&self) -> bool {
        self.app.is_done()
    }

    fn packets(&self) -> u64 {
        let stats = self.engine.stats();
        stats.sent + stats.received
    }

    fn report(&self) -> Report {
        let view = self.session.and_then(|session| self.engine.view(session));
        let sent = view.map_or(self.summary, |view| view.summary);
        Report { repaired_bytes: sent.repaired_bytes(), ..self.app.report() }
    }
}

/// A host that receives the cast.
pub(super) struct Receiver {
    engine: Engine,
    app: SharedReceiver,
    line: TimeLine,
    flow: FlowConfig,
    sender: HostId,
    /// The source of acknowledgements, until a session carries it.
    acks: Option<GeneratedSource>,
    gate: Gate,
    /// The session of the files, and the number of their bytes that have arrived in order.
    receiving: Option<Session>,
    have: u64,
    next: Option<Time>,
}

impl Receiver {
    pub(super) fn new(place: &Place<'_>, scheme: &OrcaScheme) -> Result<Self, String> {
        let app = SharedReceiver::new(place.cast);
        let (content, given) = (place.content.clone(), app.clone());
        let accept: Accept = Box::new(move |_| {
            let sink = content.sink(&given, None);
            Decision::Accept(Box::new(move |_| Ok(Box::new(sink) as Box<dyn Sink>)))
        });
        let acks = vec![0; place.cast.files.len() * ACK_BYTES as usize];
        let (acks, gate) = Content(Bytes::from(acks)).source(FILES + 1 + u128::from(place.this.0));
        Ok(Self {
            engine: engine(place, scheme, accept)?,
            app,
            line: place.line,
            flow: flow_config(scheme),
            sender: place.cast.senders[0],
            acks: Some(acks),
            gate,
            receiving: None,
            have: 0,
            next: None,
        })
    }

    /// Records that bytes of the files have arrived in order. The sink verifies them later.
    fn arrived(&mut self, upto: u64) {
        if upto <= self.have {
            return;
        }
        let now = self.line.since();
        let app = &mut self.app.lock().0;
        app.stored(now, self.have..upto);
        self.have = upto;
        if let Some(files) = app.readable(now, upto) {
            self.gate.open(u64::from(files) * u64::from(ACK_BYTES));
        }
    }
}

impl CastHost for Receiver {
    fn greet(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn turn(&mut self, _: Option<Time>) -> Result<(), String> {
        self.next = self.engine.turn().map_err(broken)?;
        while let Some(event) = self.engine.poll_event() {
            match event {
                EngineEvent::Receiving { session, .. } => {
                    self.receiving = Some(session);
                    if let Some(acks) = self.acks.take() {
                        let to = [self.sender];
                        let opened =
                            self.engine.open(Box::new(acks), &to, Spread::Unicast, self.flow);
                        opened.map_err(|error| error.to_string())?;
                        self.next = Some(Time::ZERO);
                    }
                }
                EngineEvent::Received { bytes, .. } => {
                    self.arrived(bytes);
                    self.receiving = None;
                }
                EngineEvent::ReceiveFailed { .. } => self.receiving = None,
                _ => {}
            }
        }
        for progress in self.engine.incoming() {
            if self.receiving == Some(progress.session) {
                self.arrived(progress.bytes);
            }
        }
        Ok(())
    }

    fn wait(&mut self, most: Span) -> Result<(), String> {
        wait(&mut self.engine, self.next, most)
    }

    fn is_idle(&self) -> bool {
        // Only the sender determines the end of the run.
        true
    }

    fn is_receiving(&self) -> bool {
        self.receiving.is_some()
    }

    fn packets(&self) -> u64 {
        let stats = self.engine.stats();
        stats.sent + stats.received
    }

    fn report(&self) -> Report {
        self.app.report()
    }
}
