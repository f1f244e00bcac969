//! The machines of a run, the network between them, who attacks them, and what must hold.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;

use rackweave_core::{HostId, Rng, Span, Time};
use rackweave_linux::endpoint::{Network, Peers};
use rackweave_linux::{Endpoint, EndpointConfig, Key};
use rackweave_wire::{overlay, secure};

use super::super::platform::{Datagram, Simulated};
use super::app::{App, Report, Task};
use super::draw::{Call, Failure, Fault, Scenario, What};

/// All calls have ended by then, long after the last failure.
const LIMIT: Span = Span::from_secs(300);

/// How long it is quiet before what endpoints hold is looked at: longer than any transport remembers a silent peer. A server over TCP keeps
/// an incomplete message for 20 s after the last segment, if its client was killed or the client's reset was lost, and an endpoint frees what the
/// transport has dropped within 2 s.
const QUIET: Span = Span::from_secs(22);

/// A failure excuses what began this long after its end: transports have a patience of about two seconds.
const RECOVERY: Span = Span::from_secs(3);

/// A switch drops what would make a host's queue longer than this.
const QUEUE_BYTES: u64 = 512 << 10;

/// Datagrams that wait for a process; more do not fit into its socket's buffer.
const SOCKET: usize = 2000;

/// How long a turn takes.
const TURN: Span = Span::from_us(1);

/// Headers of IP and UDP, and of Ethernet with its preamble and gap.
const IP_UDP_BYTES: usize = 28;
const ETHERNET_BYTES: usize = 38;

/// Datagrams that the attacker remembers.
const RECORDED: usize = 500;

/// The time of day at the start, in nanoseconds since 1970.
const TODAY_NS: u64 = 1_790_000_000_000_000_000;

/// The address of a host.
pub(super) const fn address(host: usize) -> SocketAddr {
    let number = host as u16 + 1;
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, number as u8)), number)
}

enum Event {
    Arrival(usize, Datagram),
    Failure(usize),
    Up(usize),
    /// The end of a pause.
    Awake(usize),
    /// Work of the process that was started as this one.
    Task(usize, u32, Task),
    Attack,
}

struct Machine {
    platform: Simulated,
    /// `None` while the process is down.
    app: Option<App>,
    starts: u32,
    started: Time,
    realtime_jumps_s: i64,
    /// When it has its next turn.
    wake: Option<Time>,
    asleep: u32,
    /// When its link is free in each direction.
    up_free: Time,
    down_free: Time,
    /// When it was down or asleep.
    faulty: Vec<(Time, Time)>,
    /// As which start it knows each other host.
    knows: Vec<u32>,
}

/// How a call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    No,
    Done,
    Failed,
    Cancelled,
    /// Its client was killed.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct State {
    begun: Option<Time>,
    executed: u32,
    end: End,
}

/// How often things have happened, so that a test can say that they do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) restarts: u64,
    pub(super) forged: u64,
    pub(super) replayed: u64,
    pub(super) reflected: u64,
    pub(super) unproven: u64,
    pub(super) cancelled: u64,
    /// How often a host found that datagrams of some length do not arrive, or do again.
    pub(super) narrow: u64,
    /// Datagrams that were sent in fragments.
    pub(super) fragmented: u64,
}

impl Counters {
    pub(super) const fn add(&mut self, other: &Self) {
        self.restarts += other.restarts;
        self.forged += other.forged;
        self.replayed += other.replayed;
        self.reflected += other.reflected;
        self.unproven += other.unproven;
        self.cancelled += other.cancelled;
        self.narrow += other.narrow;
        self.fragmented += other.fragmented;
    }
}

/// What a run gave.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) packets: u64,
    pub(super) drops: u64,
    pub(super) events: u64,
    pub(super) done: u64,
    pub(super) failed: u64,
    pub(super) digest: u64,
    pub(super) counters: Counters,
    pub(super) trace: Vec<String>,
    pub(super) verdict: Result<(), String>,
}

pub(super) struct World<'a> {
    scenario: &'a Scenario,
    key: Option<Key>,
    now: Time,
    machines: Vec<Machine>,
    queue: BTreeMap<(Time, u64), Event>,
    number: u64,
    rng: Rng,
    attacker: Rng,
    recorded: Vec<(usize, usize, Datagram)>,
    calls: Vec<State>,
    open: usize,
    hasher: DefaultHasher,
    outcome: Outcome,
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Result<Self, String> {
        let machines = (0..).zip(&scenario.hosts).map(|(number, host)| Machine {
            platform: Simulated::new(
                Rng::stream(scenario.seed, 0, number, "platform"),
                0,
                host.has_aes,
            ),
            app: None,
            starts: 0,
            started: Time::ZERO,
            realtime_jumps_s: 0,
            wake: None,
            asleep: 0,
            up_free: Time::ZERO,
            down_free: Time::ZERO,
            faulty: Vec::new(),
            knows: vec![1; scenario.hosts.len()],
        });
        let key = Key::derive(
            &Rng::stream(scenario.seed, 0, 0, "key").next_u64().to_be_bytes().repeat(4),
        );
        let mut world = Self {
            scenario,
            key: key.ok().filter(|_| scenario.key),
            now: Time::ZERO,
            machines: machines.collect(),
            queue: BTreeMap::new(),
            number: 0,
            rng: Rng::stream(scenario.seed, 0, 0, "network"),
            attacker: Rng::stream(scenario.seed, 0, 0, "attacker"),
            recorded: Vec::new(),
            calls: vec![State { begun: None, executed: 0, end: End::No }; scenario.calls.len()],
            open: scenario.calls.len(),
            hasher: DefaultHasher::new(),
            outcome: Outcome {
                packets: 0,
                drops: 0,
                events: 0,
                done: 0,
                failed: 0,
                digest: 0,
                counters: Counters::default(),
                trace: Vec::new(),
                verdict: Ok(()),
            },
        };
        for host in 0..world.machines.len() {
            world.start(host)?;
        }
        for (index, failure) in scenario.failures.iter().enumerate() {
            world.at(Time::ZERO + failure.at, Event::Failure(index));
        }
        for (number, call) in scenario.calls.iter().enumerate() {
            // A process that is down begins nothing: `run_task` tries again.
            world.at(Time::ZERO + call.at, Event::Task(call.client, 0, Task::Begin(number)));
        }
        if scenario.attack > Span::ZERO {
            world.at(Time::ZERO, Event::Attack);
        }
        Ok(world)
    }

    fn at(&mut self, at: Time, event: Event) {
        self.number += 1;
        self.queue.insert((at, self.number), event);
    }

    fn trace(&mut self, host: usize, text: &str) {
        let mut line = String::new();
        // Writing to a string does not fail.
        let _ = write!(line, "{:>14.3} us  host {host}: {text}", self.now.as_us_f64());
        line.hash(&mut self.hasher);
        self.outcome.trace.push(line);
    }

    fn start(&mut self, host: usize) -> Result<(), String> {
        let Scenario { known, protocol, link, .. } = self.scenario;
        let others = (0..self.machines.len()).filter(|it| *it != host);
        let hosts = others.map(|it| (HostId(it as u32), address(it)));
        let (hosts, allow) = match known {
            true => (hosts.collect(), Vec::new()),
            false => {
                let network: Network = "10.0.0.0/8".parse().map_err(|error| format!("{error}"))?;
                (BTreeMap::new(), vec![network])
            }
        };
        let transport = protocol.transport(*link);
        let Some((transport, link)) = transport.parameters() else {
            return Err("the transport is the kernel's".to_owned());
        };
        let peers = Peers::Direct { hosts, allow };
        let mut config = EndpointConfig::new(HostId(host as u32), address(host), peers, transport);
        config.link = link;
        config.key.clone_from(&self.key);
        let starts: Vec<u32> = self.machines.iter().map(|machine| machine.starts.max(1)).collect();
        let draw = &self.scenario.hosts[host];
        let machine = &mut self.machines[host];
        machine.starts += 1;
        machine.started = self.now;
        machine.knows = starts;
        if machine.starts > 1 {
            machine.realtime_jumps_s += draw.realtime_jump_s;
        }
        machine.wake = Some(self.now);
        let realtime_ns = (TODAY_NS + self.now.as_ns())
            .saturating_add_signed(machine.realtime_jumps_s * 1_000_000_000);
        {
            let mut state = machine.platform.state();
            (state.now, state.realtime_ns) = (draw.clock, realtime_ns);
            state.inbox.clear();
            state.sent.clear();
        }
        let endpoint =
            Endpoint::on(config, machine.platform.clone()).map_err(|error| error.to_string())?;
        machine.app = Some(App::new(host, machine.starts, endpoint));
        self.trace(host, "is started");
        Ok(())
    }

    /// Runs it, and returns what it gave.
    pub(super) fn run(mut self) -> Outcome {
        let verdict = self.advance();
        if let Err(why) = &verdict {
            let line = format!("{:>14.3} us  {why}", self.now.as_us_f64());
            self.outcome.trace.push(line);
        }
        for host in 0..self.machines.len() {
            self.count(host);
        }
        self.outcome.digest = self.hasher.finish();
        self.outcome.verdict = verdict;
        self.outcome
    }

    fn advance(&mut self) -> Result<(), String> {
        let mut quiet_at = None;
        loop {
            let wakes = self.machines.iter().filter(|it| it.app.is_some() && it.asleep == 0);
            let wake = wakes.filter_map(|machine| machine.wake).min();
            let next = self.queue.first_key_value().map(|((at, _), _)| *at);
            let Some(next) = [wake, next].into_iter().flatten().min() else {
                return if self.open == 0 { self.check_memory() } else { Err(self.unfinished()) };
            };
            self.now = self.now.max(next);
            if self.open == 0 {
                let end = *quiet_at.get_or_insert(self.now + QUIET);
                if self.now >= end {
                    return self.check_memory();
                }
            }
            if self.now > Time::ZERO + LIMIT {
                return Err(self.unfinished());
            }
            self.outcome.events += 1;
            while let Some(entry) = self.queue.first_entry()
                && entry.key().0 <= self.now
            {
                let event = entry.remove();
                self.handle(event)?;
            }
            for host in 0..self.machines.len() {
                let machine = &self.machines[host];
                if machine.asleep == 0 && machine.wake.is_some_and(|at| at <= self.now) {
                    self.turn(host)?;
                }
            }
        }
    }

    /// One turn of a process, as its driver's loop makes it.
    fn turn(&mut self, host: usize) -> Result<(), String> {
        let Scenario { hosts, link, calls, .. } = self.scenario;
        let config = &hosts[host];
        let machine = &mut self.machines[host];
        let Some(app) = &mut machine.app else { return Ok(()) };
        let local = config.clock + self.now.since(machine.started);
        let waiting = link.bytes_in(machine.up_free.since(self.now)) as usize;
        {
            let mut state = machine.platform.state();
            state.now = local;
            state.room = config.send_buffer.saturating_sub(waiting);
        }
        let next = app.endpoint.turn().map_err(|error| format!("host {host}: {error}"))?;
        app.poll(calls)?;
        let soon = self.now + TURN;
        // The clocks of the process and of the world have one rate.
        let next = next.map(|at| soon.max(self.now.saturating_add(at.since(local))));
        let blocked = app.endpoint.is_blocked().then(|| soon.max(self.now + link.span_of(9000)));
        let reports = std::mem::take(&mut app.reports);
        let acted = (!reports.is_empty()).then_some(soon);
        machine.wake = [next, blocked, acted].into_iter().flatten().min();
        let sent = std::mem::take(&mut machine.platform.state().sent);
        for datagram in sent {
            self.send(host, datagram);
        }
        self.on_reports(host, reports)
    }

    fn send(&mut self, host: usize, datagram: Datagram) {
        let Scenario { hosts, link, .. } = self.scenario;
        let config = &hosts[host];
        let machine = &mut self.machines[host];
        let bytes = datagram.2.len();
        machine.up_free = machine.up_free.max(self.now)
            + link.span_of((bytes + IP_UDP_BYTES + ETHERNET_BYTES) as u64);
        let at_switch = machine.up_free + config.delay;
        self.outcome.packets += 1;
        let to = usize::from(datagram.0.port()).wrapping_sub(1);
        if bytes + IP_UDP_BYTES > config.mtu || to >= hosts.len() {
            self.outcome.drops += 1;
            return;
        }
        self.record(host, to, &datagram);
        self.forward(at_switch, address(host), to, datagram);
    }

    /// Passes a datagram from the switch to a host.
    fn forward(&mut self, at_switch: Time, from: SocketAddr, to: usize, datagram: Datagram) {
        let Scenario { hosts, link, loss, duplication, reordering, .. } = self.scenario;
        let config = &hosts[to];
        let machine = &mut self.machines[to];
        let bytes = datagram.2.len() + IP_UDP_BYTES;
        let start = at_switch.max(machine.down_free);
        let is_full = start.since(at_switch) > link.span_of(QUEUE_BYTES);
        if bytes > config.mtu || is_full || self.rng.chance(*loss) {
            self.outcome.drops += 1;
            return;
        }
        machine.down_free = start + link.span_of((bytes + ETHERNET_BYTES) as u64);
        let arrival = machine.down_free + config.delay;
        let copies = 1 + u64::from(self.rng.chance(*duplication));
        let datagram = (from, datagram.1, datagram.2);
        for _ in 0..copies {
            let most = if self.rng.chance(0.1) { 20_000 } else { 2000 };
            let late = if self.rng.chance(*reordering) { self.rng.below(most) } else { 0 };
            self.at(arrival + Span::from_us(late), Event::Arrival(to, datagram.clone()));
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrival(host, datagram) => {
                (self.now.as_ps(), host, datagram.2.len()).hash(&mut self.hasher);
                let machine = &mut self.machines[host];
                let mut state = machine.platform.state();
                if machine.app.is_some() && state.inbox.len() < SOCKET {
                    state.inbox.push_back(datagram);
                    machine.wake = Some(machine.wake.map_or(self.now, |at| at.min(self.now)));
                } else {
                    self.outcome.drops += 1;
                }
            }
            Event::Failure(index) => {
                let Failure { host, fault, lasts, .. } = self.scenario.failures[index];
                let until = self.now + lasts;
                self.trace(host, &format!("failure {index}: {fault:?}, {lasts}"));
                self.machines[host].faulty.push((self.now, until));
                match fault {
                    Fault::Pause => {
                        self.machines[host].asleep += 1;
                        self.at(until, Event::Awake(host));
                    }
                    Fault::Kill => {
                        self.kill(host);
                        self.at(until, Event::Up(host));
                    }
                }
            }
            Event::Up(host) => {
                if self.machines[host].app.is_none() {
                    self.start(host)?;
                }
            }
            Event::Awake(host) => {
                let machine = &mut self.machines[host];
                machine.asleep -= 1;
                machine.wake = Some(self.now);
            }
            Event::Task(host, start, task) => self.run_task(host, start, task)?,
            Event::Attack => self.attack(),
        }
        Ok(())
    }

    fn run_task(&mut self, host: usize, start: u32, task: Task) -> Result<(), String> {
        let soon = self.now + Span::from_ms(1);
        let machine = &mut self.machines[host];
        let is_ready = machine.app.is_some() && machine.asleep == 0;
        if let Task::Begin(number) = task {
            if !is_ready {
                self.at(soon, Event::Task(host, start, task));
                return Ok(());
            }
            let call = &self.scenario.calls[number];
            let state = &mut self.calls[number];
            if state.begun.is_none() {
                state.begun = Some(self.now);
                let start = machine.starts;
                if let Some(after) = call.cancel {
                    self.at(self.now + after, Event::Task(host, start, Task::Cancel(number)));
                }
            } else if state.end != End::No {
                return Ok(());
            }
        } else {
            if machine.starts != start || machine.app.is_none() {
                return Ok(());
            }
            if !is_ready {
                self.at(soon, Event::Task(host, start, task));
                return Ok(());
            }
        }
        let machine = &mut self.machines[host];
        let local = self.scenario.hosts[host].clock + self.now.since(machine.started);
        machine.platform.state().now = local;
        let Some(app) = &mut machine.app else { return Ok(()) };
        app.work(task, &self.scenario.calls)?;
        machine.wake = Some(self.now);
        let reports = std::mem::take(&mut app.reports);
        if let Task::Cancel(number) = task
            && self.calls[number].end == End::No
        {
            self.outcome.counters.cancelled += 1;
            self.end(number, End::Cancelled, "is cancelled");
        }
        self.on_reports(host, reports)
    }

    fn end(&mut self, number: usize, end: End, how: &str) {
        self.calls[number].end = end;
        self.open -= 1;
        match end {
            End::Done => self.outcome.done += 1,
            _ => self.outcome.failed += 1,
        }
        let host = self.scenario.calls[number].client;
        self.trace(host, &format!("call {number} {how}"));
    }

    fn on_reports(&mut self, host: usize, reports: Vec<Report>) -> Result<(), String> {
        for report in reports {
            match report {
                Report::Executed(number) => {
                    let state = &mut self.calls[number];
                    state.executed += 1;
                    if state.executed > 1 {
                        return Err(format!("call {number} is executed twice"));
                    }
                    self.trace(host, &format!("executes call {number}"));
                }
                Report::Done(number) => {
                    if self.calls[number].executed != 1 {
                        return Err(format!("call {number} is answered and was never executed"));
                    }
                    if self.calls[number].end != End::No {
                        return Err(format!("call {number} ends twice"));
                    }
                    self.end(number, End::Done, "is answered");
                }
                Report::Failed(number, why) => {
                    self.excuse(number, why)?;
                    if self.calls[number].end == End::No {
                        self.end(number, End::Failed, &format!("fails: {why}"));
                    }
                }
                Report::PeerRestarted(peer) => {
                    self.trace(host, &format!("learns that host {peer} has restarted"));
                    let starts = self.machines.get(peer).map_or(0, |machine| machine.starts);
                    let Some(knows) = self.machines[host].knows.get_mut(peer) else {
                        return Err(format!("host {host}: an unknown peer has restarted"));
                    };
                    *knows += 1;
                    if *knows > starts {
                        return Err(format!(
                            "host {host} believes that host {peer} has restarted, which has not"
                        ));
                    }
                }
                Report::KeyMismatch(peer) => {
                    self.trace(host, &format!("believes that host {peer} has another key"));
                }
                Report::PathMtu(peer, change) => {
                    self.trace(host, &format!("finds on the path to host {peer}: {change}"));
                    self.outcome.counters.narrow += 1;
                }
                Report::Later(after, task) => {
                    let start = self.machines[host].starts;
                    self.at(self.now + after, Event::Task(host, start, task));
                }
            }
        }
        Ok(())
    }

    /// Checks that a call may fail.
    fn excuse(&self, number: usize, why: &str) -> Result<(), String> {
        let call = &self.scenario.calls[number];
        let Call { client, server, .. } = *call;
        let begun = self.calls[number].begun.unwrap_or_default();
        let was_faulty = |host: usize| {
            let spans = self.machines[host].faulty.iter();
            spans.clone().any(|(from, until)| *from <= self.now && *until + RECOVERY >= begun)
        };
        // It was started again while the client knew an earlier start of it.
        let is_new =
            |peer: usize, of: usize| self.machines[of].knows[peer] < self.machines[peer].starts;
        if was_faulty(client) || was_faulty(server) || is_new(server, client) {
            return Ok(());
        }
        Err(format!("call {number} fails ({why}) though both hosts could be reached"))
    }

    fn kill(&mut self, host: usize) {
        self.count(host);
        let machine = &mut self.machines[host];
        let Some(app) = machine.app.take() else { return };
        machine.wake = None;
        {
            let mut state = machine.platform.state();
            state.inbox.clear();
            state.sent.clear();
        }
        for number in app.outstanding() {
            if self.calls[number].end == End::No {
                self.end(number, End::Lost, "is lost with its client");
            }
        }
    }

    fn count(&mut self, host: usize) {
        let Some(app) = &self.machines[host].app else { return };
        let stats = app.endpoint.stats();
        self.outcome.counters.add(&Counters {
            restarts: stats.restarts,
            forged: stats.forged,
            replayed: stats.replayed,
            reflected: stats.reflected,
            unproven: stats.unproven,
            fragmented: stats.fragmented,
            ..Counters::default()
        });
    }

    fn record(&mut self, from: usize, to: usize, datagram: &Datagram) {
        if self.scenario.attack == Span::ZERO || self.attacker.chance(0.5) {
            return;
        }
        let recorded = (from, to, datagram.clone());
        if self.recorded.len() < RECORDED {
            self.recorded.push(recorded);
        } else {
            let index = self.attacker.below(RECORDED as u64) as usize;
            self.recorded[index] = recorded;
        }
    }

    /// Sends a datagram of the attacker's.
    fn attack(&mut self) {
        let hosts = self.machines.len() as u64;
        let rng = &mut self.attacker;
        let host = |rng: &mut Rng| rng.below(hosts) as usize;
        let (mut from, mut to) = (host(rng), host(rng));
        let mut class = 0;
        let mut bytes = Vec::new();
        let count = self.recorded.len() as u64;
        match rng.below(8) {
            // Whoever has seen nothing cannot know an incarnation.
            _ if self.key.is_none() => {
                let (ours, theirs) = (rng.next_u64() as u32, rng.next_u64() as u32);
                overlay::encode_hello(
                    HostId(from as u32),
                    HostId(to as u32),
                    ours,
                    theirs,
                    &mut bytes,
                );
            }
            kind @ 0..=5 if count > 0 => {
                let recent = rng.below(count);
                let (its_from, its_to, datagram) = &self.recorded[recent as usize];
                (class, bytes) = (datagram.1, datagram.2.clone());
                match kind {
                    // A replay from its own address, from any, or to its sender.
                    0 | 1 => (from, to) = (*its_from, *its_to),
                    2 => to = *its_to,
                    3 => (from, to) = (*its_to, *its_from),
                    4 => {
                        (from, to) = (*its_from, *its_to);
                        let bit = rng.below(bytes.len().max(1) as u64 * 8) as usize;
                        if let Some(byte) = bytes.get_mut(bit / 8) {
                            *byte ^= 1 << (bit % 8);
                        }
                    }
                    _ => bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize),
                }
            }
            6 => {
                let notices =
                    [secure::Notice::NoKey, secure::Notice::NeedsKey, secure::Notice::OtherKey];
                secure::encode_notice(notices[rng.below(3) as usize], &mut bytes);
            }
            _ => {
                let clear =
                    secure::Clear { session: rng.next_u64() as u32, counter: rng.below(1 << 20) };
                match rng.chance(0.5) {
                    true => secure::encode_sealed(clear, &mut bytes),
                    false => secure::encode_lost(clear, &mut bytes),
                }
                bytes.extend((0..rng.below(100)).map(|_| rng.next_u64() as u8));
            }
        }
        let gap = rng.exponential(self.scenario.attack.as_ps() as f64) as u64;
        if from != to {
            self.at(self.now, Event::Arrival(to, (address(from), class, bytes)));
        }
        if self.open > 0 {
            self.at(self.now + Span::from_ps(gap + 1), Event::Attack);
        }
    }

    /// Nothing of calls that have ended is kept.
    fn check_memory(&self) -> Result<(), String> {
        for (host, machine) in self.machines.iter().enumerate() {
            let Some(app) = &machine.app else { continue };
            let (sending, receiving) = app.endpoint.memory();
            if sending + receiving > 0 {
                let arriving = app.endpoint.arriving();
                return Err(format!(
                    "host {host} still has {sending} bytes to send and {receiving} that it receives ({arriving:?}), and all calls have ended"
                ));
            }
        }
        Ok(())
    }

    fn unfinished(&self) -> String {
        let mut text = format!("{} calls have not ended:", self.open);
        for (number, state) in self.calls.iter().enumerate() {
            if state.end == End::No {
                let call = &self.scenario.calls[number];
                let what = match call.what {
                    What::Call => "call",
                    What::OneWay => "message",
                    What::Stream { .. } => "stream",
                };
                // Writing to a string does not fail.
                let _ =
                    write!(text, " {what} {number} from host {} to {};", call.client, call.server);
            }
        }
        text.pop();
        text
    }
}
