//! A fabric in virtual time, for tests: real programs, hosts and a controller; links with a rate, a bounded queue and faults.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use rackweave_core::{HostId, Node as _, Packet, Port, Rng, Span, Time, Verdict};
use rackweave_switch::Forwarder;
use rackweave_switch::config::Topology;
use rackweave_switch::fabric::{Fabric, Node};
use rackweave_wire::orca::{Control, Data, Header, Session, TO_GROUP};

use super::controller::{Controller, ControllerConfig, ControllerEvent};
use super::flow::{FlowConfig, Placement, ReceiverEvent, SenderEvent};
use super::host::{Event, Host, HostConfig, Tor};
use super::label::Layout;
use super::label::tests::fabric;
use super::switch::Program;
use super::view::View;

/// The behaviour of a host's application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct App {
    /// Whether it joins when invited.
    pub(crate) joins: bool,
    /// Its receive window in bytes.
    pub(crate) room: u64,
}

/// The state of a receiver in one session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    /// The bytes that were stored.
    pub(crate) bytes: Vec<bool>,
    pub(crate) readable: u64,
    pub(crate) ended: Option<u64>,
    pub(crate) closed: bool,
}

/// A host with its application.
pub(crate) struct Station {
    pub(crate) host: Host,
    /// The controller on this host, which then uses the host's link.
    pub(crate) controller: Option<Controller>,
    pub(crate) told: Vec<(Time, ControllerEvent)>,
    pub(crate) down: bool,
    pub(crate) app: App,
    pub(crate) taken: BTreeMap<Session, Taken>,
    pub(crate) events: Vec<(Time, Event)>,
    /// Payloads that the agent has announced to forward.
    relays: VecDeque<(Session, u64, u16)>,
    timer: Time,
    sends: Vec<Session>,
}

#[derive(Default)]
struct Link {
    queue: VecDeque<Packet<Header>>,
    busy: bool,
    pub(crate) bytes: u64,
}

/// The probabilities of faults.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) data_loss: f64,
    pub(crate) control_loss: f64,
    pub(crate) control_twice: f64,
    /// The longest additional delay of control packets.
    pub(crate) control_late: Span,
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum Kind {
    Free(u32),
    Arrival(u32, u64),
    Timer(u32),
}

pub(crate) struct Net {
    pub(crate) now: Time,
    pub(crate) layout: Arc<Layout>,
    pub(crate) fabric: Fabric,
    pub(crate) programs: Vec<Program>,
    forwarders: Vec<Forwarder>,
    pub(crate) stations: Vec<Station>,
    links: Vec<Link>,
    events: BinaryHeap<std::cmp::Reverse<(Time, u64, Kind)>>,
    flying: BTreeMap<u64, Packet<Header>>,
    number: u64,
    rng: Rng,
    pub(crate) faults: Faults,
    pub(crate) queue_limit: usize,
    pub(crate) dropped: u64,
    /// Control packets on hosts' uplinks.
    pub(crate) controls: BTreeMap<&'static str, u64>,
}

pub(crate) fn config(host: u32, layout: &Arc<Layout>) -> HostConfig {
    HostConfig {
        me: HostId(host),
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

impl Net {
    pub(crate) fn new(topology: Topology, seed: u64, set: impl Fn(&mut HostConfig)) -> Self {
        let fabric = fabric(topology);
        let layout = Arc::new(Layout::new(&fabric).expect("labels"));
        let programs = (0..fabric.switches())
            .map(|switch| Program::new(Arc::clone(&layout), &fabric, switch).expect("a program"))
            .collect();
        let forwarders = (0..fabric.switches()).map(|s| fabric.forwarder(s, seed, 0)).collect();
        let stations = (0..fabric.hosts())
            .map(|host| {
                let mut config = config(host, &layout);
                set(&mut config);
                Station {
                    host: Host::new(config),
                    controller: None,
                    told: Vec::new(),
                    down: false,
                    app: App { joins: true, room: 1 << 20 },
                    taken: BTreeMap::new(),
                    events: Vec::new(),
                    relays: VecDeque::new(),
                    timer: Time::MAX,
                    sends: Vec::new(),
                }
            })
            .collect();
        let links = (0..fabric.links().len()).map(|_| Link::default()).collect();
        let mut net = Self {
            now: Time::ZERO,
            layout,
            programs,
            forwarders,
            stations,
            links,
            events: BinaryHeap::new(),
            flying: BTreeMap::new(),
            number: 0,
            rng: Rng::stream(seed, 0, 0, "kit"),
            faults: Faults::default(),
            queue_limit: 400,
            dropped: 0,
            controls: BTreeMap::new(),
            fabric,
        };
        for host in 0..net.stations.len() as u32 {
            net.serve(host);
        }
        net
    }

    /// With a controller in place of host 0, agents everywhere else, and switches that believe only the controller.
    pub(crate) fn with_labels(topology: Topology, seed: u64, timeout: Span) -> Self {
        Self::with_agents(topology, seed, timeout, |_| true)
    }

    /// The same, but of the other hosts only these are agents.
    pub(crate) fn with_agents(
        topology: Topology,
        seed: u64,
        timeout: Span,
        is_agent: impl Fn(u32) -> bool,
    ) -> Self {
        let mut net = Self::new(topology, seed, |config| {
            config.tor = Tor::Switch;
            config.controller = Some(HostId(0));
            let pings = config.me != HostId(0) && is_agent(config.me.0);
            config.heartbeat = pings.then_some(Span(timeout.0 / 4));
        });
        let config = ControllerConfig::new(HostId(0), Arc::clone(&net.layout), timeout);
        net.stations[0].controller = Some(Controller::new(config));
        net.programs = net.programs.into_iter().map(|p| p.with_controller(HostId(0))).collect();
        net
    }

    pub(crate) fn controller(&self) -> &Controller {
        self.stations[0].controller.as_ref().expect("host 0 is the controller")
    }

    fn push(&mut self, at: Time, kind: Kind) {
        self.number += 1;
        self.events.push(std::cmp::Reverse((at, self.number, kind)));
    }

    /// Works at a host, and then does for it what a driver does.
    pub(crate) fn at<T>(&mut self, host: u32, work: impl FnOnce(Time, &mut Host) -> T) -> T {
        let now = self.now;
        let result = work(now, &mut self.stations[host as usize].host);
        self.serve(host);
        result
    }

    pub(crate) fn open(
        &mut self,
        host: u32,
        session: u32,
        receivers: &[u32],
        spread: super::host::Spread,
        flow: FlowConfig,
        length: u64,
    ) {
        self.begin(host, session, receivers, spread, flow, length);
        self.at(host, |now, host| host.finish(now, Session(session)));
    }

    /// As [`Net::open`], without the end of the stream.
    pub(crate) fn begin(
        &mut self,
        host: u32,
        session: u32,
        receivers: &[u32],
        spread: super::host::Spread,
        flow: FlowConfig,
        length: u64,
    ) {
        let receivers: Vec<_> = receivers.iter().copied().map(HostId).collect();
        let session = Session(session);
        self.stations[host as usize].sends.push(session);
        self.at(host, |now, host| {
            host.open(now, session, 7, &receivers, spread, flow).expect("opens");
            host.offer(now, session, length);
        });
    }

    /// A forged packet leaves by a host's link.
    pub(crate) fn inject(&mut self, host: u32, packet: Packet<Header>) {
        self.number += 1;
        self.flying.insert(self.number, packet);
        let (at, number) = (self.now, self.number);
        self.push(at, Kind::Arrival(host, number));
    }

    pub(crate) fn crash(&mut self, host: u32, down: bool) {
        let station = &mut self.stations[host as usize];
        station.down = down;
        station.relays.clear();
        if down {
            station.taken.clear();
        } else {
            station.host = station.host.restarted();
            station.controller = station.controller.as_ref().map(Controller::restarted);
        }
        self.serve(host);
    }

    fn serve(&mut self, host: u32) {
        let now = self.now;
        let station = &mut self.stations[host as usize];
        if station.down {
            return;
        }
        if let Some(controller) = &mut station.controller {
            while let Some(event) = controller.poll_event() {
                station.told.push((now, event));
            }
        }
        while let Some(event) = station.host.poll_event() {
            station.events.push((now, event));
            match event {
                Event::Invited { session, .. } if station.app.joins => {
                    station.host.join(now, session, 0, station.app.room);
                    station.taken.insert(session, Taken::default());
                }
                Event::Receiver(session, ReceiverEvent::Readable { upto }) => {
                    let taken = station.taken.entry(session).or_default();
                    let new = taken.bytes.get(taken.readable as usize..upto as usize);
                    assert!(
                        new.is_some_and(|new| new.iter().all(|b| *b)),
                        "readable but not stored"
                    );
                    taken.readable = upto;
                    station.host.consume(now, session, upto);
                }
                Event::Receiver(session, ReceiverEvent::Recover(recovery)) => {
                    let taken = station.taken.entry(session).or_default();
                    let cells = taken.bytes.get_mut(recovery.block as usize..);
                    let cells = cells.expect("some of it is stored");
                    let len = (recovery.end - recovery.block) as usize;
                    let payload = usize::from(recovery.payload);
                    for cell in 0..len.div_ceil(payload) {
                        let from = cell * payload;
                        let here = recovery.missing >> cell & 1 == 0;
                        let stored = || cells[from..len.min(from + payload)].iter().all(|b| *b);
                        assert!(!here || stored(), "a cell that is here is stored");
                    }
                    let end = recovery.end as usize;
                    taken.bytes.resize(taken.bytes.len().max(end), false);
                    taken.bytes[recovery.block as usize..end].fill(true);
                    station.host.recovered(now, session, recovery.block, true);
                }
                Event::Receiver(session, ReceiverEvent::Ended { length }) => {
                    let taken = station.taken.entry(session).or_default();
                    assert_eq!(taken.readable, length);
                    taken.ended = Some(length);
                    station.host.complete(now, session);
                }
                Event::Receiver(session, ReceiverEvent::Closed) => {
                    station.taken.entry(session).or_default().closed = true
                }
                _ => {}
            }
        }
        self.send_from_host(host);
        let station = &mut self.stations[host as usize];
        let next = match &station.controller {
            Some(controller) => controller.poll_timeout(),
            None => station.host.poll_timeout(),
        };
        if let Some(at) = next
            && at < station.timer
        {
            station.timer = at.max(now);
            let at = station.timer;
            self.push(at, Kind::Timer(host));
        }
    }

    fn send_from_host(&mut self, host: u32) {
        if self.links[host as usize].busy {
            return;
        }
        let station = &mut self.stations[host as usize];
        let packet = match &mut station.controller {
            Some(controller) => controller.poll_transmit(self.now, 0),
            None => station.host.poll_transmit(self.now, 0),
        };
        let Some(packet) = packet else { return };
        if let Header::Data(Data { session, offset, len, .. }) = packet.header
            && !station.sends.contains(&session)
        {
            assert_eq!(station.relays.pop_front(), Some((session, offset, len)), "in order");
        }
        if let Header::Control(Control { body, .. }) = &packet.header {
            let text = format!("{body:?}");
            let end = text.find([' ', '(']).unwrap_or(text.len());
            let name: &'static str = match &text[..end] {
                "Sync" => "Sync",
                "SyncDone" => "SyncDone",
                "Status" => "Status",
                "SetActive" => "SetActive",
                "Ping" => "Ping",
                _ => "other",
            };
            *self.controls.entry(name).or_default() += 1;
        }
        self.start(host, packet);
    }

    fn start(&mut self, link: u32, packet: Packet<Header>) {
        let spec = self.fabric.links()[link as usize];
        let takes = spec.rate.span_of(u64::from(packet.wire_bytes));
        self.links[link as usize].busy = true;
        self.links[link as usize].bytes += u64::from(packet.wire_bytes);
        self.push(self.now + takes, Kind::Free(link));
        let mut at = self.now + takes + Span::from_us(2);
        let mut copies = 1;
        match packet.header {
            Header::Data(_) => copies -= u32::from(self.rng.chance(self.faults.data_loss)),
            Header::Control(_) => {
                copies -= u32::from(self.rng.chance(self.faults.control_loss));
                copies += u32::from(self.rng.chance(self.faults.control_twice));
                at += Span(self.rng.below(self.faults.control_late.0 + 1));
            }
        }
        for _ in 0..copies {
            self.number += 1;
            self.flying.insert(self.number, packet);
            let number = self.number;
            self.push(at, Kind::Arrival(link, number));
        }
    }

    fn enqueue(&mut self, link: u32, packet: Packet<Header>) {
        if !self.links[link as usize].busy {
            self.start(link, packet);
        } else if self.links[link as usize].queue.len() < self.queue_limit {
            self.links[link as usize].queue.push_back(packet);
        } else {
            self.dropped += 1;
        }
    }

    fn arrive(&mut self, link: u32, packet: Packet<Header>) {
        let spec = self.fabric.links()[link as usize];
        let switch = match spec.to {
            Node::Host(host) => return self.arrive_at_host(host, &packet),
            Node::Switch(switch) => switch,
        };
        let ports = self.fabric.ports(switch);
        let back =
            ports.clone().position(|port| self.fabric.links()[port as usize].to == spec.from);
        let port = Port(back.expect("cables have two directions") as u16);
        let verdict = self.programs[switch as usize].decide(
            port,
            packet.src,
            packet.dst,
            View::of(&packet.header),
        );
        match verdict {
            Verdict::Forward(Port(port)) => self.enqueue(ports.start + u32::from(port), packet),
            Verdict::Replicate(mut set) => {
                while let Some(Port(port)) = set.pop() {
                    self.enqueue(ports.start + u32::from(port), packet);
                }
            }
            Verdict::Route => match self.forwarders[switch as usize].route(&packet) {
                Some(Port(port)) => self.enqueue(ports.start + u32::from(port), packet),
                None => self.dropped += 1,
            },
            Verdict::Consume => {}
            Verdict::Drop(_) => self.dropped += 1,
        }
    }

    fn arrive_at_host(&mut self, host: u32, packet: &Packet<Header>) {
        let now = self.now;
        let station = &mut self.stations[host as usize];
        if station.down {
            return;
        }
        if let Some(controller) = &mut station.controller {
            controller.handle_packet(now, 0, packet);
            return self.serve(host);
        }
        let for_us =
            packet.dst == HostId(host) || packet.dst == TO_GROUP || packet.dst.0 > u32::MAX - 2;
        let is_sync = matches!(packet.header, Header::Control(_));
        assert!(for_us || is_sync, "{packet:?} at h{host}");
        let handled = station.host.handle_packet(now, 0, packet);
        if let Header::Data(data) = &packet.header {
            for _ in 0..handled.relays {
                station.relays.push_back((data.session, data.offset, data.len));
            }
            if let Some(Placement::Store { session, offset, skip, len }) = handled.store {
                assert!(data.parity.is_none());
                assert_eq!(offset, data.offset + u64::from(skip));
                assert!(skip + len <= data.len);
                let taken = station.taken.entry(session).or_default();
                let end = (offset + u64::from(len)) as usize;
                if taken.bytes.len() < end {
                    taken.bytes.resize(end, false);
                }
                taken.bytes[offset as usize..end].fill(true);
            }
        }
        self.serve(host);
    }

    /// Runs until then, or until nothing happens any more.
    pub(crate) fn run_until(&mut self, until: Time) {
        let mut same = 0;
        while let Some(std::cmp::Reverse((at, _, kind))) = self.events.peek().copied()
            && at <= until
        {
            self.events.pop();
            same = if at == self.now { same + 1 } else { 0 };
            assert!(same < 100_000, "time stands still: {}", self.state());
            self.now = at;
            match kind {
                Kind::Free(link) => {
                    self.links[link as usize].busy = false;
                    if (link as usize) < self.stations.len() {
                        self.serve(link);
                    } else if let Some(packet) = self.links[link as usize].queue.pop_front() {
                        self.start(link, packet);
                    }
                }
                Kind::Arrival(link, number) => {
                    if let Some(packet) = self.flying.remove(&number) {
                        self.arrive(link, packet);
                    }
                }
                Kind::Timer(host) => {
                    let now = self.now;
                    let station = &mut self.stations[host as usize];
                    if station.timer > now {
                        continue; // An earlier one was armed in its place.
                    }
                    station.timer = Time::MAX;
                    if !station.down {
                        match &mut station.controller {
                            Some(controller) => controller.handle_timeout(now),
                            None => station.host.handle_timeout(now),
                        }
                        self.serve(host);
                    }
                }
            }
        }
        self.now = self.now.max(until);
    }

    /// Runs until the condition holds; panics if it doesn't in so much virtual time.
    pub(crate) fn run_for(&mut self, most: Span, until: impl Fn(&Self) -> bool) -> Span {
        let start = self.now;
        while !until(self) {
            assert!(self.now.since(start) < most, "not within {most}: {}", self.state());
            self.run_until(self.now + Span::from_us(100));
        }
        self.now.since(start)
    }

    pub(crate) fn state(&self) -> String {
        let hosts = self.stations.iter().enumerate().map(|(n, station)| {
            let taken: Vec<_> = station
                .taken
                .iter()
                .map(|(s, t)| format!("{:x}: {} {:?} {}", s.0, t.readable, t.ended, t.closed))
                .collect();
            let sums: Vec<_> = station.sends.iter().map(|s| station.host.summary(*s)).collect();
            let view: Vec<_> =
                station.sends.iter().flat_map(|s| station.host.receivers(*s)).collect();
            format!(
                "h{n} {taken:?} {:?} {:?} {sums:?} {view:?}\n",
                station.events.last(),
                station.host.poll_timeout(),
            )
        });
        let controller = self.stations[0].controller.as_ref();
        let controller = controller.map(|c| (c.counters(), self.controls.clone(), self.dropped));
        let registers: Vec<_> = self.programs.iter().filter_map(Program::register).collect();
        hosts.collect::<String>() + &format!("{controller:?} {registers:?}")
    }

    pub(crate) fn has_whole(&self, host: u32, session: u32, length: u64) -> bool {
        self.stations[host as usize]
            .taken
            .get(&Session(session))
            .is_some_and(|taken| taken.ended == Some(length) && taken.readable == length)
    }

    pub(crate) fn is_finished(&self, host: u32, session: u32) -> bool {
        let finished = Event::Sender(Session(session), SenderEvent::Finished);
        self.stations[host as usize].events.iter().any(|(_, event)| *event == finished)
    }

    /// Bytes that a host's link has carried upwards.
    pub(crate) fn sent_by(&self, host: u32) -> u64 {
        self.links[host as usize].bytes
    }
}
