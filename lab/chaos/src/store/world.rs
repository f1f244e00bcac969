//! The machines of a run, the network between them, and what must hold.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rackweave_cast::format::{CHUNK, Extents, FileHeader, RecordKind};
use rackweave_cast::orca::Stats;
use rackweave_core::{Rng, Span, Time, frame};
use rackweave_wire::orca::{GROUP, PORT};

use super::super::platform::{Datagram, Simulated};
use super::disk::{Disk, Failing};
use super::draw::{Before, FAILURES_UNTIL, Failure, Fault, File, Host, Link, Scenario, Symlink};
use super::insider::Insider;
use super::process::{Process, Report, host_at, ip};
use super::source::{Reads, Streams};

/// Every run is over by then, long after the last failure.
const LIMIT: Span = Span::from_secs(300);

/// `cast send` is repeated this long after it has ended.
const SEND_AGAIN: Span = Span::from_ms(500);

/// A `send` that begins this long after the last failure must end with exit code 0: longer than a receiver's patience with a sender
/// that was killed, whose session may have its only place.
const RECOVERY: Span = Span::from_secs(5);

/// A switch drops what would make a host's queue longer than this.
const QUEUE_BYTES: u64 = 512 << 10;

/// Datagrams that wait for a process; more do not fit into its socket's buffer.
const SOCKET: usize = 2000;

/// Datagrams that the attacker remembers.
const RECORDED: usize = 500;

/// Headers of IP and UDP.
const IP_UDP_BYTES: usize = 28;

/// The time of day at the start, in nanoseconds since 1970.
const TODAY_NS: u64 = 1_790_000_000_000_000_000;

/// The time of the files that are sent, and of older ones.
const MODIFIED: (i64, u32) = (1_700_000_000, 5);
const OLDER: (i64, u32) = (1_600_000_000, 0);

enum Event {
    /// A datagram, and the port that it is for; `None` for one to the group.
    Arrival(usize, Option<u16>, Datagram),
    Attack,
    /// A receiver forges data.
    Forge,
    Failure(usize),
    /// The end of a failure of the disk.
    Healed(usize),
    Up(usize),
    /// The end of a pause.
    Awake(usize),
    Send,
}

struct Machine {
    platform: Simulated,
    disk: Disk,
    /// `None` while it is down.
    process: Option<Process>,
    started: Time,
    port: u16,
    /// When its engine has its next turn.
    wake: Option<Time>,
    /// When its link is free in each direction.
    up_free: Time,
    down_free: Time,
    asleep: u32,
    /// Until when its disk stands still.
    stalled: Time,
}

impl Machine {
    /// Returns when its process does something next.
    fn next(&self) -> Option<Time> {
        let process = self.process.as_ref().filter(|_| self.asleep == 0)?;
        let step = process.next_step().map(|at| at.max(self.stalled));
        [self.wake, step].into_iter().flatten().min()
    }

    fn wake_at(&mut self, at: Time) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }
}

/// What a run gave.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) packets: u64,
    pub(super) drops: u64,
    pub(super) events: u64,
    /// Receivers' reports that they have everything, and those of runs of `send` that did not end with exit code 0.
    pub(super) received: u64,
    pub(super) failed: u64,
    pub(super) digest: u64,
    /// The counters of all engines.
    pub(super) stats: Stats,
    pub(super) trace: Vec<String>,
    pub(super) verdict: Result<(), String>,
}

pub(super) struct World<'a> {
    scenario: &'a Scenario,
    now: Time,
    machines: Vec<Machine>,
    queue: BTreeMap<(Time, u64), Event>,
    number: u64,
    rng: Rng,
    attacker: Rng,
    insider: Option<Insider>,
    streams: Arc<Streams>,
    recorded: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
    contents: Vec<Vec<u8>>,
    hasher: DefaultHasher,
    /// Hosts whose complete files a power failure may have changed.
    unsure: Vec<bool>,
    /// When the last failure has ended.
    calm_at: Time,
    /// When the present `send` has begun.
    sent_at: Time,
    outcome: Outcome,
}

/// What receivers have and the sender has not: it is in the sender's folder, or it is not.
const OLD: &[u8] = b"old";
const KEPT: &[u8] = b"d.kept";

/// Bytes that depend on the seed and the file, with its holes.
fn content(seed: u64, file: u64, of: &File) -> Vec<u8> {
    let length = of.length;
    let mut rng = Rng::stream(seed, 0, file, "content");
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(length);
    for (number, chunk) in bytes.chunks_mut(CHUNK).enumerate() {
        if of.holes >> number & 1 != 0 {
            chunk.fill(0);
        }
    }
    bytes
}

/// A file without holes, or one with the chunks that are sent.
fn kind(file: &File) -> RecordKind {
    let chunks = file.length.div_ceil(CHUNK) as u64;
    let has_content = |chunk: &u64| file.holes >> chunk & 1 == 0;
    match (0..chunks).all(|chunk| has_content(&chunk)) {
        true => RecordKind::File,
        false => {
            let sent = (0..chunks).filter(has_content).map(|chunk| chunk..chunk + 1);
            RecordKind::WithHoles(Extents::new(sent))
        }
    }
}

/// The files as `cast send` lists them, and their content.
fn listed(scenario: &Scenario, contents: &[Vec<u8>]) -> Vec<(FileHeader, Vec<u8>)> {
    let header = |path: &str, kind, length: usize, mode| FileHeader {
        attributes: None,
        owner: None,
        path: path.as_bytes().to_vec(),
        kind,
        length: Some(length as u64),
        mode,
        mtime_s: MODIFIED.0,
        mtime_ns: MODIFIED.1,
    };
    let paths = scenario.files.iter().map(|file| &file.path);
    let symlinks = scenario.symlinks.iter().map(|link| &link.path);
    let mut paths = paths.chain(scenario.links.iter().map(|link| &link.path)).chain(symlinks);
    let nested = paths.any(|path| path.contains('/'));
    let folder = nested.then(|| (header("d", RecordKind::Directory, 0, 0o755), Vec::new()));
    let files = scenario.files.iter().zip(contents).map(|(file, bytes)| {
        (header(&file.path, kind(file), bytes.len(), file.mode), bytes.clone())
    });
    let links = scenario.links.iter().map(|Link { path, file, .. }| {
        let target = scenario.files[*file].path.as_bytes().to_vec();
        (header(path, RecordKind::HardLink(target), 0, 0), Vec::new())
    });
    let symlinks = scenario.symlinks.iter().map(|Symlink { path, target, .. }| {
        let kind = RecordKind::SymbolicLink(target.as_bytes().to_vec());
        (header(path, kind, 0, 0o777), Vec::new())
    });
    folder.into_iter().chain(files).chain(links).chain(symlinks).collect()
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Self {
        let contents: Vec<Vec<u8>> =
            (0..).zip(&scenario.files).map(|(n, file)| content(scenario.seed, n, file)).collect();
        let machines: Vec<Machine> = (0..)
            .zip(&scenario.hosts)
            .map(|(number, host)| machine(scenario, number, host, &contents))
            .collect();
        let calm_at = scenario.failures.iter().map(|it| it.at + it.lasts).max();
        let mut world = Self {
            scenario,
            now: Time::ZERO,
            unsure: scenario.hosts.iter().map(|host| host.unsynced).collect(),
            machines,
            queue: BTreeMap::new(),
            number: 0,
            rng: Rng::stream(scenario.seed, 0, 0, "network"),
            attacker: Rng::stream(scenario.seed, 0, 0, "attacker"),
            insider: None,
            streams: Arc::new(Streams::new(scenario.seed, listed(scenario, &contents))),
            recorded: Vec::new(),
            contents,
            hasher: DefaultHasher::new(),
            calm_at: Time::ZERO + calm_at.unwrap_or_default(),
            sent_at: Time::ZERO,
            outcome: Outcome {
                packets: 0,
                drops: 0,
                events: 0,
                received: 0,
                failed: 0,
                digest: 0,
                stats: Stats::default(),
                trace: Vec::new(),
                verdict: Ok(()),
            },
        };
        for (index, failure) in scenario.failures.iter().enumerate() {
            debug_assert!(failure.at <= FAILURES_UNTIL);
            world.at(Time::ZERO + failure.at, Event::Failure(index));
        }
        for host in 1..world.machines.len() {
            world.at(Time::ZERO, Event::Up(host));
        }
        world.at(Time::ZERO, Event::Send);
        if scenario.key && scenario.attack > Span::ZERO {
            world.at(Time::ZERO, Event::Attack);
        }
        if scenario.key && scenario.insider > Span::ZERO {
            world.at(Time::ZERO, Event::Forge);
        }
        world
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

    /// The time on the clock of a host's process.
    fn local(&self, host: usize) -> Time {
        self.scenario.hosts[host].clock + self.now.since(self.machines[host].started)
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
        loop {
            let next = self.queue.first_key_value().map(|((at, _), _)| *at);
            let next = self.machines.iter().filter_map(Machine::next).chain(next).min();
            let Some(next) = next else { return Err("nothing happens any more".into()) };
            self.now = self.now.max(next);
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
                if self.proceed(host)? {
                    return Ok(());
                }
            }
        }
    }

    /// Lets a process do what is due. Returns whether the run is over.
    fn proceed(&mut self, host: usize) -> Result<bool, String> {
        let now = self.now;
        while self.machines[host].next().is_some_and(|at| at <= now) {
            let machine = &mut self.machines[host];
            let Some(process) = &mut machine.process else { break };
            if machine.stalled <= now && process.step(now) {
                if machine.disk.is_dead() {
                    self.trace(host, "is killed in an operation of its disk");
                    let lasts = Span::from_ps(self.rng.below(1_000_000_000_000));
                    self.kill(host, now + lasts, false)?;
                    break;
                }
                machine.wake_at(now);
                self.poll_sinks(host);
            } else if self.turn(host)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn poll_sinks(&mut self, host: usize) {
        let machine = &mut self.machines[host];
        if let Some(process) = &mut machine.process
            && process.poll_sinks(self.now, &self.scenario.hosts[host])
        {
            machine.wake_at(self.now);
        }
    }

    /// One turn of a process, as its command's loop makes it. Returns whether the run is over.
    fn turn(&mut self, host: usize) -> Result<bool, String> {
        let local = self.local(host);
        let Host { rate, send_buffer, turn, .. } = self.scenario.hosts[host];
        let machine = &mut self.machines[host];
        let Some(process) = &mut machine.process else { return Ok(false) };
        let waiting = rate.bytes_in(machine.up_free.since(self.now)) as usize;
        {
            let mut state = machine.platform.state();
            (state.now, state.room) = (local, send_buffer.saturating_sub(waiting));
        }
        let next = process.turn(local).map_err(|error| format!("host {host}: {error}"))?;
        let soon = self.now + turn;
        // The clocks of the process and of the world have one rate.
        let next = next.map(|at| soon.max(self.now.saturating_add(at.since(local))));
        let blocked = process.is_blocked().then(|| soon.max(self.now + rate.span_of(9000)));
        machine.wake = [next, blocked].into_iter().flatten().min();
        let sent = std::mem::take(&mut machine.platform.state().sent);
        for datagram in sent {
            self.send(host, datagram);
        }
        self.poll_sinks(host);
        self.after(host)
    }

    fn send(&mut self, host: usize, (to, class, bytes): Datagram) {
        let Host { mtu, rate, delay, .. } = self.scenario.hosts[host];
        let machine = &mut self.machines[host];
        machine.up_free = machine.up_free.max(self.now) + rate.span_of(wire_bytes(&bytes));
        let at_switch = machine.up_free + delay;
        let from = SocketAddr::new(ip(host), machine.port);
        self.outcome.packets += 1;
        if bytes.len() + IP_UDP_BYTES > mtu as usize {
            self.outcome.drops += 1;
            return;
        }
        self.record(from, to, &bytes);
        if to.ip() == IpAddr::V4(Ipv4Addr::from(GROUP)) {
            for other in (0..self.machines.len()).filter(|other| *other != host) {
                let platform = &self.machines[other].platform;
                if platform.state().in_group {
                    self.forward(at_switch, other, None, (from, class, bytes.clone()));
                }
            }
        } else if let Some(other) = host_at(to.ip()).filter(|it| *it < self.machines.len()) {
            self.forward(at_switch, other, Some(to.port()), (from, class, bytes));
        }
    }

    /// Passes a datagram from the switch to a host.
    fn forward(&mut self, at_switch: Time, to: usize, port: Option<u16>, datagram: Datagram) {
        let Scenario { loss, duplication, .. } = *self.scenario;
        let Host { mtu, rate, delay, .. } = self.scenario.hosts[to];
        let machine = &mut self.machines[to];
        let start = at_switch.max(machine.down_free);
        let is_full = start.since(at_switch) > rate.span_of(QUEUE_BYTES);
        let is_long = datagram.2.len() + IP_UDP_BYTES > mtu as usize;
        if is_long || is_full || self.rng.chance(loss) {
            self.outcome.drops += 1;
            return;
        }
        machine.down_free = start + rate.span_of(wire_bytes(&datagram.2));
        let arrival = machine.down_free + delay;
        if self.rng.chance(duplication) {
            self.arrive(arrival, to, port, datagram.clone());
        }
        self.arrive(arrival, to, port, datagram);
    }

    fn arrive(&mut self, at: Time, to: usize, port: Option<u16>, datagram: Datagram) {
        let late = self.rng.chance(self.scenario.reordering);
        let late = if late { self.rng.below(2_000_000_000) } else { 0 };
        self.at(at + Span::from_ps(late), Event::Arrival(to, port, datagram));
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrival(host, port, datagram) => {
                (self.now.as_ps(), host, datagram.2.len()).hash(&mut self.hasher);
                let machine = &mut self.machines[host];
                let mut state = machine.platform.state();
                if machine.process.is_some()
                    && port.is_none_or(|port| port == machine.port)
                    && state.inbox.len() < SOCKET
                {
                    state.inbox.push_back(datagram);
                    drop(state);
                    machine.wake_at(self.now);
                } else {
                    self.outcome.drops += 1;
                }
            }
            Event::Attack => self.attack(),
            Event::Forge => self.forge(),
            Event::Failure(index) => self.fail(self.scenario.failures[index], index)?,
            Event::Healed(host) => {
                self.machines[host].disk.set_failing(Failing::default());
                self.trace(host, "the disk works again");
            }
            Event::Up(0) => self.at(self.now, Event::Send),
            Event::Up(host) => {
                if self.machines[host].process.is_none() {
                    self.start(host)?;
                }
            }
            Event::Awake(host) => self.machines[host].asleep -= 1,
            Event::Send => self.begin()?,
        }
        Ok(())
    }

    /// Starts a process.
    fn start(&mut self, host: usize) -> Result<(), String> {
        let machine = &mut self.machines[host];
        (machine.started, machine.wake) = (self.now, Some(self.now));
        // The system gives each sender another port. That of a fabric's host is known to the others.
        if host == 0 && !self.scenario.fabric {
            machine.port = machine.port.wrapping_add(1).max(40_000);
        }
        let realtime_ns = TODAY_NS + self.now.as_ns();
        {
            let mut state = machine.platform.state();
            (state.now, state.realtime_ns) = (self.scenario.hosts[host].clock, realtime_ns);
        }
        let Machine { platform, disk, port, .. } = machine;
        let files = (&*disk, &self.streams);
        machine.process = Some(Process::start(host, *port, platform, files, self.scenario)?);
        self.trace(host, "is started");
        Ok(())
    }

    /// Begins a `send`, unless one is under way.
    fn begin(&mut self) -> Result<(), String> {
        let process = self.machines[0].process.as_ref();
        if process.is_some_and(Process::is_sending) {
            return Ok(());
        }
        if process.is_none() {
            self.start(0)?;
        }
        let local = self.local(0);
        let machine = &mut self.machines[0];
        machine.platform.state().now = local;
        if let Some(process) = &mut machine.process {
            process.send(local, &self.streams, self.scenario);
        }
        machine.wake_at(self.now);
        self.sent_at = self.now;
        self.trace(0, "sends");
        Ok(())
    }

    fn record(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        if self.scenario.key && self.scenario.attack > Span::ZERO && self.attacker.chance(0.5) {
            let recorded = (from, to, bytes.to_vec());
            if self.recorded.len() < RECORDED {
                self.recorded.push(recorded);
            } else {
                let index = self.attacker.below(RECORDED as u64) as usize;
                self.recorded[index] = recorded;
            }
        }
    }

    /// Sends a datagram of somebody who has recorded others.
    fn attack(&mut self) {
        let ports: Vec<u16> = self.machines.iter().map(|machine| machine.port).collect();
        let rng = &mut self.attacker;
        let gap = rng.exponential(self.scenario.attack.as_ps() as f64) as u64;
        let next = self.now + Span::from_ps(gap + 1);
        let count = self.recorded.len() as u64;
        if count > 0 {
            let (from, to, mut bytes) = self.recorded[rng.below(count) as usize].clone();
            let any = |rng: &mut Rng| {
                let host = rng.below(ports.len() as u64) as usize;
                SocketAddr::new(ip(host), ports[host])
            };
            let to = if host_at(to.ip()).is_none() { any(rng) } else { to };
            let (from, to) = match rng.below(6) {
                // A replay from its own address, from any, or to its sender.
                0 | 1 => (from, to),
                2 => (any(rng), to),
                3 => (to, from),
                4 => {
                    let bit = rng.below(bytes.len().max(1) as u64 * 8) as usize;
                    if let Some(byte) = bytes.get_mut(bit / 8) {
                        *byte ^= 1 << (bit % 8);
                    }
                    (from, to)
                }
                _ => {
                    bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
                    (from, to)
                }
            };
            if from != to
                && let Some(host) = host_at(to.ip())
            {
                self.at(self.now, Event::Arrival(host, Some(to.port()), (from, 0, bytes)));
            }
        }
        self.at(next, Event::Attack);
    }

    /// Sends data of a receiver that has the key of the sender's present session to a receiver.
    fn forge(&mut self) {
        let rng = &mut self.attacker;
        let gap = rng.exponential(self.scenario.insider.as_ps() as f64) as u64;
        let next = self.now + Span::from_ps(gap + 1);
        let sealer = self.machines[0].process.as_ref().and_then(Process::sealer);
        if let Some((session, sealer)) = sealer {
            if self.insider.as_ref().is_none_or(|insider| insider.session() != session) {
                self.insider = Some(Insider::new(session, sealer, rng));
            }
            // Data is not bound to an address.
            let hosts = self.machines.len() as u64;
            let to = 1 + rng.below(hosts - 1);
            let from = ((to + 1 + rng.below(hosts - 1)) % hosts) as usize;
            let from = SocketAddr::new(ip(from), self.machines[from].port);
            if let Some(bytes) = self.insider.as_mut().and_then(|it| it.forge(self.streams.all())) {
                self.at(self.now, Event::Arrival(to as usize, None, (from, 0, bytes)));
            }
        }
        self.at(next, Event::Forge);
    }

    fn fail(&mut self, failure: Failure, index: usize) -> Result<(), String> {
        let host = failure.host as usize;
        let until = self.now + failure.lasts;
        self.trace(host, &format!("failure {index}: {:?}, {}", failure.fault, failure.lasts));
        let machine = &mut self.machines[host];
        let fails_with = |failing: Failing| machine.disk.set_failing(failing);
        match failure.fault {
            Fault::Kill { operations: None } => return self.kill(host, until, false),
            Fault::Kill { operations } => {
                if machine.process.is_some() {
                    machine.disk.kill_after(operations);
                    if machine.disk.is_dead() {
                        return self.kill(host, until, false);
                    }
                }
            }
            Fault::PowerFailure => return self.kill(host, until, true),
            Fault::Pause => {
                machine.asleep += 1;
                self.at(until, Event::Awake(host));
            }
            Fault::DiskStalls => machine.stalled = machine.stalled.max(until),
            Fault::DiskFull => fails_with(Failing { full: true, ..Failing::default() }),
            Fault::DiskErrors => fails_with(Failing { error: 0.01, ..Failing::default() }),
            Fault::ShortWrites => fails_with(Failing { short: 0.3, ..Failing::default() }),
        }
        if matches!(failure.fault, Fault::DiskFull | Fault::DiskErrors | Fault::ShortWrites) {
            self.at(until, Event::Healed(host));
        }
        Ok(())
    }

    /// Ends a process, or takes the power from its machine, until it is started again.
    fn kill(&mut self, host: usize, until: Time, power: bool) -> Result<(), String> {
        // Nothing that its memory's end causes reaches the disk.
        self.machines[host].disk.kill_after(Some(0));
        self.stop(host);
        let disk = &self.machines[host].disk;
        disk.release();
        if power {
            disk.lose_power();
            self.unsure[host] |= !self.scenario.sync;
        }
        // Some operations of a disk can take long to come.
        self.calm_at = self.calm_at.max(until);
        self.at(until, Event::Up(host));
        self.check_names(host, &self.machines[host].disk)
    }

    /// Ends a process: its memory is gone.
    fn stop(&mut self, host: usize) {
        self.count(host);
        let machine = &mut self.machines[host];
        (machine.process, machine.wake) = (None, None);
        let mut state = machine.platform.state();
        state.in_group = false;
        state.inbox.clear();
        let started = std::mem::take(&mut state.started);
        drop(state);
        drop(started);
    }

    fn count(&mut self, host: usize) {
        let Some(process) = &self.machines[host].process else { return };
        let (all, its) = (&mut self.outcome.stats, process.stats());
        all.malformed += its.malformed;
        all.replayed += its.replayed;
        all.forged += its.forged;
        all.challenged += its.challenged;
    }

    /// Handles what a process reports; returns whether the run is over.
    fn after(&mut self, host: usize) -> Result<bool, String> {
        let mut is_over = false;
        let process = self.machines[host].process.as_mut();
        let reports = process.map(|it| std::mem::take(&mut it.reports)).unwrap_or_default();
        for report in reports {
            match report {
                Report::Note(text) => self.trace(host, &text),
                Report::Wrong(text) => return Err(format!("host {host}: {text}")),
                Report::Received => {
                    self.outcome.received += 1;
                    self.trace(host, "reports that it has everything");
                    self.check_complete(host, "it has reported all files as received")?;
                }
                Report::Exit(done) => {
                    let code = u8::from(!done);
                    self.trace(host, &format!("`send` ends with exit code {code}"));
                    self.outcome.failed += u64::from(!done);
                    if done {
                        // Without `--sync`, a power failure may take what a receiver had when it reported: the next `send` finds that.
                        let lost: Vec<bool> = self.unsure.clone();
                        for receiver in (1..lost.len()).filter(|receiver| !lost[*receiver]) {
                            self.check_complete(receiver, "`send` has ended with exit code 0")?;
                            self.check_deleted(receiver)?;
                        }
                        is_over = self.now >= self.calm_at && !lost.contains(&true);
                    } else if self.must_succeed() {
                        return Err("`send` ends with exit code 1 and nothing has failed".into());
                    }
                    if !is_over && !self.scenario.agent {
                        // The last turn of the command sends the closing packets.
                        self.turn(host)?;
                        self.stop(host);
                    }
                    self.at(self.now + SEND_AGAIN, Event::Send);
                }
            }
        }
        Ok(is_over)
    }

    /// Whether the present `send` must have reached every receiver: no failure has preceded it lately. A pipe with a limit may have given
    /// back what a receiver needs that has missed the start, and whoever repeats packets that a receiver has not got makes a sender that was
    /// killed seem alive.
    fn must_succeed(&self) -> bool {
        let Scenario { key, attack, ref failures, ref reads, .. } = *self.scenario;
        let is_gone = matches!(reads, Reads::Pipe { limit: Some(_), .. });
        match failures.is_empty() {
            true => !is_gone,
            false => {
                let is_attacked = key && attack > Span::ZERO;
                self.sent_at >= self.calm_at + RECOVERY && !is_gone && !is_attacked
            }
        }
    }

    /// Checks that a host has every file, also if the power fails now.
    fn check_complete(&mut self, host: usize, why: &str) -> Result<(), String> {
        self.unsure[host] = false;
        let disk = self.machines[host].disk.clone();
        let mut disks = vec![(disk.clone(), "")];
        if self.scenario.sync {
            disks.push((disk.after_a_power_failure(), " after a power failure"));
        }
        for (disk, when) in disks {
            for (file, bytes) in self.scenario.files.iter().zip(&self.contents) {
                let path = &file.path;
                let found = match disk.read(path.as_bytes()) {
                    None => "is not there",
                    Some((found, ..)) if found != *bytes => "has other bytes than were sent",
                    Some((_, mode, time))
                        if (mode, time) != (file.mode.into(), MODIFIED) && when.is_empty() =>
                    {
                        "has another mode or time than was sent"
                    }
                    Some(_) => continue,
                };
                return Err(format!("host {host}: {why}, and {path} {found}{when}"));
            }
            for Link { path, file, .. } in &self.scenario.links {
                let target = &self.scenario.files[*file].path;
                if !disk.is_one(path.as_bytes(), target.as_bytes()) {
                    return Err(format!("host {host}: {why}, and {path} is not {target}{when}"));
                }
            }
            for Symlink { path, target, .. } in &self.scenario.symlinks {
                let found = disk.link(path.as_bytes());
                let is_right = found.as_ref().is_some_and(|(text, time)| {
                    text == target.as_str() && (*time == MODIFIED || !when.is_empty())
                });
                if !is_right {
                    return Err(format!(
                        "host {host}: {why}, and {path} is {found:?} and not a link to {target}{when}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that nothing is in the sender's folder that the sender has not.
    fn check_deleted(&self, host: usize) -> Result<(), String> {
        let is_there = |path: &&String| self.machines[host].disk.read(path.as_bytes()).is_some();
        match self.scenario.deletes.iter().find(is_there) {
            Some(path) => Err(format!(
                "host {host}: `send --delete` has ended with exit code 0, and {path} is there"
            )),
            None => Ok(()),
        }
    }

    /// Checks that files with their final names are the sent ones, or the ones from before.
    fn check_names(&self, host: usize, disk: &Disk) -> Result<(), String> {
        if host == 0 {
            return Ok(());
        }
        if disk.read(KEPT).is_none_or(|(found, ..)| found != OLD) {
            return Err(format!("host {host}: what is in no folder of the sender is not there"));
        }
        if self.unsure[host] {
            return Ok(());
        }
        for (number, (file, bytes)) in self.scenario.files.iter().zip(&self.contents).enumerate() {
            let Some((found, ..)) = disk.read(file.path.as_bytes()) else { continue };
            let before = self.scenario.hosts[host].before;
            let is_older = number == 0
                && matches!(before, Before::Older | Before::Alike)
                && found.iter().zip(bytes).all(|(found, byte)| *found == byte ^ 1);
            if found != *bytes && !is_older {
                let path = &file.path;
                return Err(format!(
                    "host {host}: {path} has its name and other bytes than were sent"
                ));
            }
        }
        for Symlink { path, target, before } in &self.scenario.symlinks {
            let found = disk.link(path.as_bytes()).map(|(text, _)| text);
            let is_right = found.as_ref().is_none_or(|text| {
                text == target.as_str() || before.as_ref().is_some_and(|it| text == it.as_str())
            });
            if !is_right || before.is_some() && found.is_none() {
                return Err(format!("host {host}: the link {path} leads to {found:?}"));
            }
        }
        for Link { path, file, .. } in &self.scenario.links {
            let found = disk.read(path.as_bytes());
            if found.is_some_and(|(found, ..)| found != self.contents[*file]) {
                return Err(format!("host {host}: the link {path} has other bytes than were sent"));
            }
        }
        Ok(())
    }

    fn unfinished(&self) -> String {
        let mut text =
            String::from("`send` has not ended with exit code 0 though all hosts can be reached;");
        for (number, machine) in self.machines.iter().enumerate().skip(1) {
            let has = |disk: &Disk| {
                let files = self.scenario.files.iter().zip(&self.contents);
                files
                    .filter(|(file, bytes)| {
                        disk.read(file.path.as_bytes()).is_some_and(|found| found.0 == **bytes)
                    })
                    .count()
            };
            let (has, of) = (has(&machine.disk), self.contents.len());
            // Writing to a string does not fail.
            let _ = write!(text, " host {number} has {has} of {of} files;");
        }
        text.pop();
        text
    }
}

/// A machine whose disk has what its host has before.
fn machine(scenario: &Scenario, number: u64, host: &Host, contents: &[Vec<u8>]) -> Machine {
    let disk = Disk::new(Rng::stream(scenario.seed, 0, number, "disk"));
    let (path, mode) = (scenario.files[0].path.as_bytes(), scenario.files[0].mode.into());
    let first = &contents[0];
    let other: Vec<u8> = first.iter().map(|byte| byte ^ 1).collect();
    match host.before {
        Before::Nothing => {}
        Before::Same => disk.put(path, first, mode, MODIFIED),
        Before::Alike => disk.put(path, &other, mode, MODIFIED),
        Before::Older => disk.put(path, &[&other[..], b"more"].concat(), 0o600, OLDER),
    }
    if host.unsynced {
        disk.lose_pages(path);
    }
    if number > 0 {
        for Symlink { path, before, .. } in &scenario.symlinks {
            before.iter().for_each(|text| disk.put_link(path.as_bytes(), text, OLDER));
        }
        for Link { path, file, .. } in scenario.links.iter().filter(|link| link.before) {
            let mode = scenario.files[*file].mode.into();
            disk.put(path.as_bytes(), &contents[*file], mode, MODIFIED);
        }
        for path in &scenario.deletes {
            disk.put(path.as_bytes(), OLD, 0o444, OLDER);
        }
        disk.put(KEPT, OLD, 0o644, OLDER);
    }
    let rng = Rng::stream(scenario.seed, 0, number, "platform");
    Machine {
        platform: Simulated::new(rng, 0, host.has_aes),
        disk,
        process: None,
        started: Time::ZERO,
        port: PORT,
        wake: None,
        up_free: Time::ZERO,
        down_free: Time::ZERO,
        asleep: 0,
        stalled: Time::ZERO,
    }
}

/// The bytes on the wire.
fn wire_bytes(datagram: &[u8]) -> u64 {
    u64::from(frame::wire_bytes((datagram.len() + IP_UDP_BYTES) as u32))
}
