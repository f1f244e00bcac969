//! Files over Orca: the engine that `rackweave cast` runs, with the scenario's parameters.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rackweave_cast::orca::Engine;
use rackweave_cast::orca::{Accept, Admission, Decision, EngineConfig, EngineEvent, FabricPlace};
use rackweave_cast::sink::Sink;
use rackweave_core::{HostId, Span, Time};
use rackweave_group::baseline::Rounds;
use rackweave_group::orca::flow::{FlowConfig, SenderEvent, SenderSummary};
use rackweave_group::orca::host::Spread;
use rackweave_group::orca::label::Layout;
use rackweave_sim::Fabric;
use rackweave_wire::orca::{PORT, Session};

use super::content::{Arrivals, Gate};
use super::{Member, Place};
use crate::cast::{OrcaScheme, flow_config};
use crate::testbed::protocol::CastEnd;

/// Where a host's engine is, in its namespace.
pub(super) fn address(host: HostId) -> Option<SocketAddr> {
    let ip = rackweave_wire::frame::ip_address(host)?;
    Some(SocketAddr::from((Ipv4Addr::from(ip), PORT)))
}

fn engine(
    place: &Place<'_>,
    scheme: &OrcaScheme,
    accept: Option<Accept>,
) -> Result<Engine, String> {
    let fabric = Fabric::new(&place.point.config.fabric).map_err(|error| error.to_string())?;
    let layout = Layout::new(&fabric).map_err(|error| error.to_string())?;
    let hosts = (0..fabric.hosts()).map(HostId);
    let mut config = EngineConfig::new(place.at);
    if let SocketAddr::V4(at) = place.at {
        config.interface = *at.ip();
    }
    config.in_group = accept.is_some() && scheme.spread == Spread::Multicast;
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
    // Who is lost stays so, as in the simulator.
    config.retry = Span::ZERO;
    Engine::new(config, accept).map_err(|error| error.to_string())
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

/// The host that sends.
pub(super) struct Sender {
    engine: Engine,
    session: Option<Session>,
    spread: Spread,
    flow: FlowConfig,
    gate: Gate,
    source: Option<super::content::Made>,
    rounds: Rounds,
    clients: Vec<HostId>,
    /// Where each file ends in the stream.
    ends: Vec<u64>,
    /// Clients that take part, or do not any more.
    ready: BTreeMap<HostId, bool>,
    summary: SenderSummary,
    detached: u64,
    next: Option<Time>,
}

impl Sender {
    pub(super) fn new(place: &Place<'_>, scheme: &OrcaScheme) -> Result<Self, String> {
        if scheme.spread == Spread::Labels {
            return Err("the testbed has no labels".into());
        }
        let cast = place.cast;
        let (source, gate) = place.content.source();
        let ends = cast.files.iter().scan(0_u64, |end, bytes| {
            *end += bytes;
            Some(*end)
        });
        Ok(Self {
            engine: engine(place, scheme, None)?,
            session: None,
            spread: scheme.spread,
            flow: flow_config(scheme),
            gate,
            source: Some(source),
            rounds: Rounds::new(cast.files.clone(), cast.receivers.len(), cast.wait),
            clients: cast.receivers.clone(),
            ends: ends.collect(),
            ready: cast.receivers.iter().map(|host| (*host, false)).collect(),
            summary: SenderSummary::default(),
            detached: 0,
            next: None,
        })
    }

    fn client(&self, host: HostId) -> Option<usize> {
        self.clients.iter().position(|client| *client == host)
    }

    fn lose(&mut self, now: Time, host: HostId) {
        self.ready.insert(host, true);
        if let Some(client) = self.client(host) {
            self.rounds.lose(now, client);
        }
    }

    fn on_event(&mut self, now: Time, event: EngineEvent) -> Result<(), String> {
        match event {
            EngineEvent::Sender(_, SenderEvent::Attached { host }) => {
                self.ready.insert(host, true);
            }
            EngineEvent::Sender(_, SenderEvent::Detached { host }) => {
                self.ready.insert(host, true);
                self.detached += 1;
            }
            EngineEvent::Sender(_, SenderEvent::Lost { host, .. }) => self.lose(now, host),
            EngineEvent::Sender(_, SenderEvent::Completed { host }) => {
                if let Some(client) = self.client(host) {
                    self.rounds.acknowledge(now, client, self.ends.len() as u32);
                }
            }
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

    /// What receivers report to have counts as their acknowledgements.
    fn acknowledgements(&mut self, now: Time) {
        let Some(view) = self.session.and_then(|session| self.engine.view(session)) else { return };
        self.summary = view.summary;
        for receiver in view.receivers {
            let files = self.ends.partition_point(|end| *end <= receiver.have);
            if let Some(client) = self.client(receiver.host) {
                self.rounds.acknowledge(now, client, files as u32);
            }
        }
    }
}

impl Member for Sender {
    /// The session is set up before load begins, as in the simulator.
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
        if now.is_none() || self.ready.values().any(|is| !is) {
            return Ok(());
        }
        self.acknowledgements(time);
        while let Some(bytes) = self.rounds.start_next(time, true) {
            self.gate.open(bytes);
            // The engine has not seen it yet.
            self.next = Some(Time::ZERO);
        }
        Ok(())
    }

    fn wait(&mut self, most: Span) -> Result<(), String> {
        wait(&mut self.engine, self.next, most)
    }

    fn is_idle(&self) -> bool {
        self.rounds.is_done()
    }

    fn packets(&self) -> u64 {
        let stats = self.engine.stats();
        stats.sent + stats.received
    }

    fn end(&self) -> CastEnd {
        let sent = &self.summary;
        let lost = self.clients.iter().enumerate().filter(|(nth, _)| self.rounds.is_lost(*nth));
        CastEnd {
            files: self.rounds.times().map(|(begun, end)| (begun.0, end.map(|at| at.0))).collect(),
            lost: lost.map(|(_, host)| host.0).collect(),
            repaired_bytes: sent.repaired_all + sent.repaired_one + sent.parity + sent.catch_up,
            detached: self.detached,
            ..CastEnd::default()
        }
    }
}

/// A host that receives.
pub(super) struct Receiver {
    engine: Engine,
    arrivals: Arrivals,
    receiving: bool,
    next: Option<Time>,
}

impl Receiver {
    pub(super) fn new(place: &Place<'_>, scheme: &OrcaScheme) -> Result<Self, String> {
        let arrivals = Arrivals::new(place.cast);
        let (content, given, line) = (place.content.clone(), arrivals.clone(), place.line);
        let accept: Accept = Box::new(move |_| {
            let sink = content.sink(&given, line);
            Decision::Accept(Box::new(move || Ok(Box::new(sink) as Box<dyn Sink>)))
        });
        let engine = engine(place, scheme, Some(accept))?;
        Ok(Self { engine, arrivals, receiving: false, next: None })
    }
}

impl Member for Receiver {
    fn greet(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn turn(&mut self, _: Option<Time>) -> Result<(), String> {
        self.next = self.engine.turn().map_err(broken)?;
        while let Some(event) = self.engine.poll_event() {
            match event {
                EngineEvent::Receiving { .. } => self.receiving = true,
                EngineEvent::Received { .. } | EngineEvent::ReceiveFailed { .. } => {
                    self.receiving = false;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn wait(&mut self, most: Span) -> Result<(), String> {
        wait(&mut self.engine, self.next, most)
    }

    fn is_idle(&self) -> bool {
        // The sender knows when all is over.
        true
    }

    fn is_receiving(&self) -> bool {
        self.receiving && !self.arrivals.lock().0.is_complete()
    }

    fn packets(&self) -> u64 {
        let stats = self.engine.stats();
        stats.sent + stats.received
    }

    fn end(&self) -> CastEnd {
        self.arrivals.end()
    }
}
