//! Hosts and a controller on a simulated fabric, for tests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rackweave_core::{DropReason, HostId, Node as _, Packet, RangeSet, Span, Time};
use rackweave_switch::Fabric;
use rackweave_switch::config::{BufferConfig, Fault, FaultKind, FaultPlace, Topology};
use rackweave_switch::net::{Edge, Net, NetConfig, NetEvent};
use rackweave_switch::system::Simulated;
use rackweave_wire::orca::{Data, Header, Session, TO_AGENT, TO_GROUP};

use super::controller::{Controller, ControllerConfig, ControllerEvent};
use super::flow::{FlowConfig, Placement, ReceiverEvent, Recovery, SenderEvent};
use super::host::{Event, Host, HostConfig, Spread, Tor};
use super::label::Layout;
use super::label::tests::fabric;
use super::switch::{Program, Register};

/// The receive window of every receiver, in bytes.
const WINDOW: u64 = 1 << 20;

/// The data that a receiver has of one session.
#[derive(Clone, Debug, Default)]
struct Received {
    stored: RangeSet<u64>,
    readable: u64,
    ended: Option<u64>,
}

/// Stores the bytes of a block that a receiver recovers, and asserts that it has all cells that it does not miss.
pub(crate) fn recover(stored: &mut RangeSet<u64>, recovery: &Recovery) {
    let payload = recovery.payload;
    let cells = (recovery.block..recovery.end).step_by(usize::from(payload));
    for (number, from) in cells.enumerate() {
        let is_missing = recovery.missing >> number & 1 == 1;
        let cell = from..recovery.end.min(from + u64::from(payload));
        assert!(is_missing || stored.contains_range(cell), "not missing, but not stored");
    }
    stored.insert(recovery.block..recovery.end);
}

/// A host with its application, which joins every session and consumes data at once.
pub(crate) struct Station {
    pub(crate) host: Host,
    /// The controller; if set, it uses the host's link instead of the host.
    controller: Option<Controller>,
    pub(crate) controller_events: Vec<(Time, ControllerEvent)>,
    pub(crate) down: bool,
    pub(crate) events: Vec<(Time, Event)>,
    received: BTreeMap<Session, Received>,
    /// The payloads that the agent has announced to forward.
    relays: VecDeque<(Session, u64, u16)>,
    sends: Vec<Session>,
    /// The time of its last call.
    called: Time,
}

impl Station {
    /// Records a call at this time and asserts that time never decreases.
    fn call(&mut self, now: Time) {
        debug_assert!(self.called <= now, "called as of {now} after {}", self.called);
        self.called = now;
    }

    /// Acts on each event as an application does. Returns whether there was an event.
    fn drain_events(&mut self, now: Time) -> bool {
        let before = self.events.len();
        if let Some(controller) = &mut self.controller {
            while let Some(event) = controller.poll_event() {
                self.controller_events.push((now, event));
            }
        }
        while let Some(event) = self.host.poll_event() {
            self.events.push((now, event));
            match event {
                Event::Invited { session, .. } => {
                    self.host.join(now, session, 0, WINDOW);
                    self.received.insert(session, Received::default());
                }
                Event::Receiver(session, event) => self.on_receiver_event(now, session, event),
                Event::Withdrawn { .. } | Event::Sender(..) => {}
            }
        }
        self.events.len() > before
    }

    fn on_receiver_event(&mut self, now: Time, session: Session, event: ReceiverEvent) {
        let received = self.received.entry(session).or_default();
        match event {
            ReceiverEvent::Readable { upto } => {
                let stored = received.stored.contains_range(received.readable..upto);
                assert!(stored, "readable but not stored");
                received.readable = upto;
                self.host.consume(now, session, upto);
            }
            ReceiverEvent::Recover(recovery) => {
                recover(&mut received.stored, &recovery);
                self.host.recovered(now, session, recovery.block, true);
            }
            ReceiverEvent::Ended { length } => {
                assert_eq!(received.readable, length);
                received.ended = Some(length);
                self.host.complete(now, session);
            }
            _ => {}
        }
    }

    fn handle_packet(&mut self, now: Time, me: HostId, packet: &Packet<Header>) {
        self.call(now);
        if let Some(controller) = &mut self.controller {
            return controller.handle_packet(now, 0, packet);
        }
        let for_us = [me, TO_GROUP, TO_AGENT].contains(&packet.dst);
        let is_control = matches!(packet.header, Header::Control(_));
        assert!(for_us || is_control, "{packet:?} at {me}");
        let handled = self.host.handle_packet(now, 0, packet);
        let Header::Data(data) = &packet.header else { return };
        let relay = (data.session, data.offset, data.len);
        self.relays.extend(std::iter::repeat_n(relay, usize::from(handled.relays)));
        if let Some(Placement::Store { session, offset, skip, len }) = handled.store {
            assert!(data.parity.is_none());
            assert_eq!(offset, data.offset + u64::from(skip));
            assert!(skip + len <= data.len);
            let received = self.received.entry(session).or_default();
            received.stored.insert(offset..offset + u64::from(len));
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        self.call(now);
        match &mut self.controller {
            Some(controller) => controller.handle_timeout(now),
            None => self.host.handle_timeout(now),
        }
    }

    fn poll_transmit(&mut self, now: Time) -> Option<Packet<Header>> {
        self.call(now);
        loop {
            let packet = match &mut self.controller {
                Some(controller) => controller.poll_transmit(now, 0),
                None => self.host.poll_transmit(now, 0),
            };
            // The application's reaction may be the reason for the next packet.
            if !self.drain_events(now) || packet.is_some() {
                return packet;
            }
        }
    }
}

/// All hosts: the edge of the network.
struct Stations(Vec<Station>);

impl Edge<Header> for Stations {
    fn poll_transmit(&mut self, host: HostId, at: Time) -> Option<Packet<Header>> {
        let station = &mut self.0[host.0 as usize];
        let packet = if station.down { None } else { station.poll_transmit(at) }?;
        if let Header::Data(Data { session, offset, len, .. }) = packet.header
            && !station.sends.contains(&session)
        {
            assert_eq!(station.relays.pop_front(), Some((session, offset, len)), "in order");
        }
        Some(packet)
    }

    fn poll_timeout(&self, host: HostId) -> Time {
        let station = &self.0[host.0 as usize];
        let at = match &station.controller {
            _ if station.down => None,
            Some(controller) => controller.poll_timeout(),
            None => station.host.poll_timeout(),
        };
        at.unwrap_or(Time::MAX)
    }
}

/// Hosts on a fabric whose switches run Orca's program.
pub(crate) struct Network {
    net: Net<Simulated<Program, Header>>,
    stations: Stations,
    pub(crate) layout: Arc<Layout>,
}

/// Returns the settings of a host with one port, without controller and label switches.
pub(crate) fn config(host: u32, layout: &Arc<Layout>) -> HostConfig {
    HostConfig {
        me: HostId(host),
        incarnation: 0,
        layout: Arc::clone(layout),
        ports: 1,
        controller: None,
        tor: Tor::None,
        heartbeat: None,
        flow: FlowConfig::default(),
        max_sessions: 1000,
        status_interval: Span::from_ms(1),
    }
}

/// A fault that lasts as long as the run.
pub(crate) const fn always(place: FaultPlace, kind: FaultKind) -> Fault {
    Fault { from: Time::ZERO, until: Time::MAX, place, kind }
}

impl Network {
    /// Hosts without a controller, on plain switches.
    pub(crate) fn new(topology: Topology, seed: u64, faults: &[Fault]) -> Self {
        Self::build(topology, seed, faults, None, |_| {})
    }

    /// Returns a network with a controller at host 0, and switches that accept control packets only from it. Of the
    /// other hosts, these are agents.
    pub(crate) fn with_agents(
        topology: Topology,
        seed: u64,
        faults: &[Fault],
        timeout: Span,
        is_agent: impl Fn(u32) -> bool,
    ) -> Self {
        let controller = HostId(0);
        let mut network = Self::build(topology, seed, faults, Some(controller), |config| {
            config.tor = Tor::Switch;
            config.controller = Some(controller);
            let pings = config.me != controller && is_agent(config.me.0);
            config.heartbeat = pings.then_some(timeout / 4);
        });
        let config = ControllerConfig::new(controller, Arc::clone(&network.layout), timeout);
        network.stations.0[0].controller = Some(Controller::new(config));
        network.wake_all();
        network
    }

    fn build(
        topology: Topology,
        seed: u64,
        faults: &[Fault],
        controller: Option<HostId>,
        change: impl Fn(&mut HostConfig),
    ) -> Self {
        let mut fabric_config = fabric(topology).config().clone();
        fabric_config.host_link_delay = Span::from_us(2);
        fabric_config.core_link_delay = Span::from_us(2);
        fabric_config.switch.buffer = BufferConfig::PerPort { bytes: 400 * 1538 };
        let fabric = Arc::new(Fabric::new(&fabric_config).expect("a fabric"));
        let layout = Arc::new(Layout::new(&fabric).expect("labels"));
        let station = |host| {
            let mut config = config(host, &layout);
            change(&mut config);
            Station {
                host: Host::new(config),
                controller: None,
                controller_events: Vec::new(),
                down: false,
                events: Vec::new(),
                received: BTreeMap::new(),
                relays: VecDeque::new(),
                sends: Vec::new(),
                called: Time::ZERO,
            }
        };
        let stations = Stations((0..fabric.hosts()).map(station).collect());
        let config = NetConfig {
            faults: faults.to_vec(),
            count_frames: true,
            ..NetConfig::new(Arc::clone(&fabric), seed, 0)
        };
        let net = Net::new(config, (), |switch| {
            let program = Program::new(Arc::clone(&layout), &fabric, switch).expect("a program");
            Simulated::new(match controller {
                Some(controller) => program.with_controller(controller),
                None => program,
            })
        });
        Self { net, stations, layout }
    }

    fn wake_all(&mut self) {
        for host in 0..self.stations.0.len() as u32 {
            self.net.wake(&mut self.stations, HostId(host));
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.net.now()
    }

    pub(crate) fn stations(&self) -> &[Station] {
        &self.stations.0
    }

    pub(crate) fn controller(&self) -> &Controller {
        self.stations.0[0].controller.as_ref().expect("host 0 is the controller")
    }

    /// Returns the register of a ToR.
    pub(crate) fn register(&self, switch: u32) -> Option<Register> {
        self.net.program(switch).program().register()
    }

    /// Returns the registers of all switches.
    pub(crate) fn registers(&self) -> Vec<Option<Register>> {
        (0..self.net.fabric().switches()).map(|switch| self.register(switch)).collect()
    }

    /// Calls a host, and then handles its output as a driver does.
    pub(crate) fn with_host<T>(&mut self, host: u32, work: impl FnOnce(Time, &mut Host) -> T) -> T {
        let now = self.now();
        self.net.flush(&mut self.stations, HostId(host));
        let station = &mut self.stations.0[host as usize];
        station.call(now);
        let result = work(now, &mut station.host);
        self.changed(host);
        result
    }

    fn changed(&mut self, host: u32) {
        let now = self.now();
        let station = &mut self.stations.0[host as usize];
        if !station.down {
            station.drain_events(now);
            self.net.wake(&mut self.stations, HostId(host));
        }
    }

    pub(crate) fn open(
        &mut self,
        host: u32,
        session: u32,
        receivers: &[u32],
        spread: Spread,
        flow: FlowConfig,
        length: u64,
    ) {
        self.open_unfinished(host, session, receivers, spread, flow, length);
        self.with_host(host, |now, host| host.finish(now, Session(session)));
    }

    /// The same as [`Network::open`] without the end of the stream.
    pub(crate) fn open_unfinished(
        &mut self,
        host: u32,
        session: u32,
        receivers: &[u32],
        spread: Spread,
        flow: FlowConfig,
        length: u64,
    ) {
        let receivers: Vec<_> = receivers.iter().copied().map(HostId).collect();
        let session = Session(session);
        self.stations.0[host as usize].sends.push(session);
        self.with_host(host, |now, host| {
            host.open(now, session, 7, &receivers, spread, flow).expect("opens");
            host.offer(now, session, length);
        });
    }

    /// Sends a forged packet over a host's link.
    pub(crate) fn inject(&mut self, host: u32, packet: Packet<Header>) {
        self.net.flush(&mut self.stations, HostId(host));
        self.net.arrive(self.now(), HostId(host), packet);
    }

    /// Stops a host, or restarts it without state.
    pub(crate) fn crash(&mut self, host: u32, down: bool) {
        self.net.flush(&mut self.stations, HostId(host));
        let station = &mut self.stations.0[host as usize];
        station.down = down;
        station.relays.clear();
        station.received.clear();
        if !down {
            station.host = station.host.restarted();
            station.controller = station.controller.as_ref().map(Controller::restarted);
            self.net.resume(&mut self.stations, HostId(host));
        }
    }

    /// Runs until this time, or until no event is left.
    pub(crate) fn run_until(&mut self, until: Time) {
        let (mut since, mut steps) = (self.now(), 0);
        while let Some(event) = self.net.step(&mut self.stations, until) {
            let now = self.now();
            (since, steps) = if now == since { (since, steps + 1) } else { (now, 0) };
            assert!(steps < 100_000, "time stands still: {}", self.state());
            match event {
                NetEvent::Arrived { host, packet } => {
                    if self.stations.0[host.0 as usize].down {
                        self.net.discard(packet, DropReason::HostDown);
                        continue;
                    }
                    self.net.flush(&mut self.stations, host);
                    let packet = self.net.take(packet);
                    self.stations.0[host.0 as usize].handle_packet(now, host, &packet);
                    self.changed(host.0);
                }
                NetEvent::Timer(host) if !self.stations.0[host.0 as usize].down => {
                    self.net.flush(&mut self.stations, host);
                    self.stations.0[host.0 as usize].handle_timeout(now);
                    self.changed(host.0);
                }
                _ => {}
            }
        }
        self.net.advance(until);
    }

    /// Runs until the condition holds and returns the elapsed time; panics if it does not hold within `most`.
    pub(crate) fn run_for(&mut self, most: Span, until: impl Fn(&Self) -> bool) -> Span {
        let start = self.now();
        while !until(self) {
            assert!(self.now().since(start) < most, "not within {most}: {}", self.state());
            self.run_until(self.now() + Span::from_us(100));
        }
        self.now().since(start)
    }

    /// Returns the state of all nodes, for messages of failed assertions.
    pub(crate) fn state(&self) -> String {
        let hosts = self.stations.0.iter().enumerate().map(|(number, station)| {
            let received = station.received.iter();
            let received: Vec<_> = received.map(|(s, r)| (s.0, r.readable, r.ended)).collect();
            let host = &station.host;
            let sends: Vec<_> = station.sends.iter().map(|s| host.summary(*s)).collect();
            let view: Vec<_> = station.sends.iter().flat_map(|s| host.receivers(*s)).collect();
            let (last, timeout) = (station.events.last(), host.poll_timeout());
            format!("h{number} {received:?} {last:?} {timeout:?} {sends:?} {view:?}\n")
        });
        let controller = self.stations.0[0].controller.as_ref().map(Controller::counters);
        let (registers, counters) = (self.registers(), self.net.counters());
        hosts.collect::<String>() + &format!("{controller:?} {registers:?} {counters:?}")
    }

    pub(crate) fn has_whole(&self, host: u32, session: u32, length: u64) -> bool {
        let received = self.stations.0[host as usize].received.get(&Session(session));
        received.is_some_and(|it| it.ended == Some(length) && it.readable == length)
    }

    pub(crate) fn is_finished(&self, host: u32, session: u32) -> bool {
        let finished = Event::Sender(Session(session), SenderEvent::Finished);
        self.stations.0[host as usize].events.iter().any(|(_, event)| *event == finished)
    }

    /// Returns the number of bytes that a host's link has carried upwards.
    pub(crate) fn sent_by(&mut self, host: u32) -> u64 {
        self.net.link_stats(&mut self.stations)[host as usize].bytes
    }
}
