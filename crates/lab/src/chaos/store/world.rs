//! The machines of a run, the network between them, and what must hold.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use rackweave_cast::format::tree::{TreeHash, chunk_hash};
use rackweave_cast::format::{self, CHUNK, FileHeader, StreamDigest};
use rackweave_core::{HostId, Rng, Span, Time, frame};
use rackweave_wire::orca::{TO_AGENT, TO_GROUP};

use super::disk::{Disk, Failing};
use super::draw::{Before, FAILURES_UNTIL, Failure, Fault, Scenario};
use super::process::{Process, Report, Stream};
use super::secure::{Carried, IP_UDP_BYTES, Insider, Refused};

/// Every run is over by then, long after the last failure.
const LIMIT: Span = Span::from_secs(300);

/// `cast send` is repeated this long after it has ended.
const SEND_AGAIN: Span = Span::from_ms(500);

/// A switch drops what would make a host's queue longer than this.
const QUEUE_BYTES: u64 = 512 << 10;

/// Datagrams that wait for a process that stutters; more do not fit into its socket's buffer.
const SOCKET: usize = 2000;

/// Datagrams that the attacker remembers.
const RECORDED: usize = 500;

/// More events at one instant than a run can need.
const MOST_AT_ONCE: u32 = 1_000_000;

/// The time of the files that are sent, and of older ones.
const MODIFIED: (i64, u32) = (1_700_000_000, 5);
const OLDER: (i64, u32) = (1_600_000_000, 0);

enum Event {
    Arrival(usize, Box<Carried>),
    Attack,
    /// A receiver forges data.
    Forge,
    Failure(usize),
    /// The end of a failure of the disk.
    Healed(usize),
    Up(usize),
    /// The end of a stutter.
    Awake(usize),
    Send,
}

struct Machine {
    process: Process,
    clock: Time,
    /// When its link is free in each direction.
    up_free: Time,
    down_free: Time,
    /// Whether it has nothing to send until something happens.
    is_idle: bool,
    asleep: u32,
    inbox: VecDeque<Carried>,
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
    pub(super) refused: Refused,
    /// How often receivers have found bytes that were not the sender's.
    pub(super) forged: u64,
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
    stream: Arc<Stream>,
    recorded: Vec<(HostId, HostId, Vec<u8>)>,
    contents: Vec<Vec<u8>>,
    hasher: DefaultHasher,
    /// Hosts whose complete files a power failure may have changed.
    unsure: Vec<bool>,
    /// When the last failure has ended.
    calm_at: Time,
    outcome: Outcome,
}

/// Bytes that depend on the seed and the file.
fn content(seed: u64, file: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::stream(seed, 0, file, "content");
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn stream(scenario: &Scenario, contents: &[Vec<u8>]) -> Stream {
    let mut out = Vec::new();
    format::start(&mut out);
    let header = |path: &str, directory, length: usize, mode| FileHeader {
        path: path.as_bytes().to_vec(),
        directory,
        length: Some(length as u64),
        mode,
        mtime_s: MODIFIED.0,
        mtime_ns: MODIFIED.1,
    };
    let nested = scenario.files.iter().any(|file| file.path.contains('/'));
    let mut digest = StreamDigest::default();
    let begin = |header: &FileHeader, digest: &mut StreamDigest, out: &mut Vec<u8>| {
        format::file(header, out);
        digest.file(header);
    };
    if nested {
        begin(&header("d", true, 0, 0o755), &mut digest, &mut out);
    }
    for (file, bytes) in scenario.files.iter().zip(contents) {
        begin(&header(&file.path, false, bytes.len(), 0o640), &mut digest, &mut out);
        let mut tree = TreeHash::default();
        for (number, chunk) in bytes.chunks(CHUNK).enumerate() {
            let (hash, single) = chunk_hash(number as u64, chunk);
            out.extend_from_slice(&format::chunk_front(chunk.len() as u32));
            out.extend_from_slice(chunk);
            out.extend_from_slice(&hash);
            tree.push(hash, single);
        }
        let hash = tree.finish();
        format::file_end(bytes.len() as u64, &hash, &mut out);
        digest.file_end(&hash);
    }
    let total = contents.iter().map(|bytes| bytes.len() as u64).sum();
    format::digest(&digest, &mut out);
    // Directories count as files.
    format::end(contents.len() as u64 + u64::from(nested), total, &mut out);
    Stream { number: u128::from(scenario.seed) << 64 | 1, bytes: out }
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Self {
        let contents: Vec<Vec<u8>> = (0..)
            .zip(&scenario.files)
            .map(|(n, file)| content(scenario.seed, n, file.length))
            .collect();
        let stream = Arc::new(stream(scenario, &contents));
        let machines = (0..).zip(&scenario.hosts).map(|(number, host)| {
            let disk = Disk::new(Rng::stream(scenario.seed, 0, number, "disk"));
            let (path, bytes) = (scenario.files[0].path.as_bytes(), &contents[0]);
            let other: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
            match host.before {
                Before::Nothing => {}
                Before::Same => disk.put(path, bytes, 0o640, MODIFIED),
                Before::Alike => disk.put(path, &other, 0o640, MODIFIED),
                Before::Older => disk.put(path, &[&other[..], b"more"].concat(), 0o600, OLDER),
            }
            Machine {
                process: Process::new(number as u32, disk, Arc::clone(&stream), scenario),
                clock: host.clock,
                up_free: Time::ZERO,
                down_free: Time::ZERO,
                is_idle: true,
                asleep: 0,
                inbox: VecDeque::new(),
            }
        });
        let machines: Vec<Machine> = machines.collect();
        let calm_at = scenario.failures.iter().map(|it| it.at + it.lasts).max();
        let mut world = Self {
            scenario,
            now: Time::ZERO,
            unsure: vec![false; machines.len()],
            machines,
            queue: BTreeMap::new(),
            number: 0,
            rng: Rng::stream(scenario.seed, 0, 0, "network"),
            attacker: Rng::stream(scenario.seed, 0, 0, "attacker"),
            insider: None,
            stream,
            recorded: Vec::new(),
            contents,
            hasher: DefaultHasher::new(),
            calm_at: Time::ZERO + calm_at.unwrap_or_default(),
            outcome: Outcome {
                packets: 0,
                drops: 0,
                events: 0,
                received: 0,
                failed: 0,
                digest: 0,
                refused: Refused::default(),
                forged: 0,
                trace: Vec::new(),
                verdict: Ok(()),
            },
        };
        for (index, failure) in scenario.failures.iter().enumerate() {
            debug_assert!(failure.at <= FAILURES_UNTIL);
            world.at(Time::ZERO + failure.at, Event::Failure(index));
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

    fn local(&self, host: usize) -> Time {
        Time::from_ticks(self.machines[host].clock.ticks() + self.now.ticks())
    }

    /// Runs it, and returns what it gave.
    pub(super) fn run(mut self) -> Outcome {
        let verdict = self.advance();
        if let Err(why) = &verdict {
            let line = format!("{:>14.3} us  {why}", self.now.as_us_f64());
            self.outcome.trace.push(line);
        }
        for machine in &self.machines {
            let Refused { forged, replayed } = machine.process.refused();
            self.outcome.refused.forged += forged;
            self.outcome.refused.replayed += replayed;
            self.outcome.forged += machine.process.forged;
        }
        self.outcome.digest = self.hasher.finish();
        self.outcome.verdict = verdict;
        self.outcome
    }

    fn advance(&mut self) -> Result<(), String> {
        let mut at_once = 0;
        loop {
            for host in 0..self.machines.len() {
                self.transmit(host);
            }
            let Some(next) = self.next() else { return Err("nothing happens any more".into()) };
            at_once = if next > self.now { 0 } else { at_once + 1 };
            if at_once > MOST_AT_ONCE {
                return Err("time stands still".to_owned());
            }
            self.now = self.now.max(next);
            if self.now > Time::ZERO + LIMIT {
                return Err(self.unfinished());
            }
            self.outcome.events += 1;
            for host in 0..self.machines.len() {
                let now = self.local(host);
                let machine = &mut self.machines[host];
                let runs = machine.process.is_up && machine.asleep == 0;
                if runs && machine.process.poll_timeout().is_some_and(|at| at <= now) {
                    machine.process.handle_timeout(now);
                    machine.is_idle = false;
                    if self.after(host)? {
                        return Ok(());
                    }
                }
            }
            while let Some(entry) = self.queue.first_entry()
                && entry.key().0 <= self.now
            {
                let event = entry.remove();
                if self.handle(event)? {
                    return Ok(());
                }
            }
        }
    }

    /// When something happens next.
    fn next(&self) -> Option<Time> {
        let mut next = self.queue.first_key_value().map(|((at, _), _)| *at);
        for machine in &self.machines {
            if !machine.process.is_up || machine.asleep > 0 {
                continue;
            }
            let timer = machine.process.poll_timeout();
            let timer = timer.map(|at| Time::ZERO + at.since(machine.clock));
            let link = (!machine.is_idle).then_some(machine.up_free);
            next = [next, timer, link].into_iter().flatten().min();
        }
        next
    }

    /// Sends what a host's link has room for.
    fn transmit(&mut self, host: usize) {
        let now = self.local(host);
        while self.machines[host].up_free <= self.now {
            let machine = &mut self.machines[host];
            if !machine.process.is_up || machine.asleep > 0 {
                return;
            }
            let Some(packet) = machine.process.poll_transmit(now) else {
                machine.is_idle = true;
                return;
            };
            let config = &self.scenario.hosts[host];
            machine.up_free = self.now + config.rate.span_of(wire_bytes(&packet));
            let at_switch = machine.up_free + config.delay;
            self.outcome.packets += 1;
            if l3_bytes(&packet) > config.mtu {
                self.outcome.drops += 1;
                continue;
            }
            self.record(&packet);
            let group = [TO_GROUP, TO_AGENT].contains(&packet.to());
            for to in 0..self.machines.len() {
                if to != host && (group || packet.to() == HostId(to as u32)) {
                    self.forward(at_switch, to, &packet);
                }
            }
        }
    }

    /// Passes a packet from the switch to a host.
    fn forward(&mut self, at_switch: Time, to: usize, packet: &Carried) {
        let Scenario { loss, duplication, reordering, .. } = *self.scenario;
        let config = &self.scenario.hosts[to];
        let machine = &mut self.machines[to];
        let start = at_switch.max(machine.down_free);
        let is_full = start.since(at_switch) > config.rate.span_of(QUEUE_BYTES);
        if l3_bytes(packet) > config.mtu || is_full || self.rng.chance(loss) {
            self.outcome.drops += 1;
            return;
        }
        machine.down_free = start + config.rate.span_of(wire_bytes(packet));
        let arrival = machine.down_free + config.delay;
        let copies = 1 + u64::from(self.rng.chance(duplication));
        for _ in 0..copies {
            let late = if self.rng.chance(reordering) { self.rng.below(2_000_000_000) } else { 0 };
            self.at(arrival + Span::from_ps(late), Event::Arrival(to, Box::new(packet.clone())));
        }
    }

    fn handle(&mut self, event: Event) -> Result<bool, String> {
        match event {
            Event::Arrival(host, packet) => {
                (self.now, host, wire_bytes(&packet)).hash(&mut self.hasher);
                let machine = &mut self.machines[host];
                if !machine.process.is_up {
                    return Ok(false);
                }
                if machine.asleep > 0 {
                    if machine.inbox.len() < SOCKET {
                        machine.inbox.push_back(*packet);
                    }
                    return Ok(false);
                }
                self.arrive(host, &packet)
            }
            Event::Attack => {
                self.attack();
                Ok(false)
            }
            Event::Forge => {
                self.forge();
                Ok(false)
            }
            Event::Failure(index) => self.fail(self.scenario.failures[index], index),
            Event::Healed(host) => {
                self.machines[host].process.disk.set_failing(Failing::default());
                self.trace(host, "the disk works again");
                Ok(false)
            }
            Event::Up(host) => {
                let process = &mut self.machines[host].process;
                if !process.is_up {
                    process.is_up = true;
                    self.trace(host, "is started");
                    if host == 0 {
                        self.at(self.now, Event::Send);
                    }
                }
                Ok(false)
            }
            Event::Awake(host) => {
                let machine = &mut self.machines[host];
                machine.asleep -= 1;
                machine.is_idle = false;
                while self.machines[host].asleep == 0
                    && self.machines[host].process.is_up
                    && let Some(packet) = self.machines[host].inbox.pop_front()
                {
                    if self.arrive(host, &packet)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Event::Send => {
                let to: Vec<_> = (1..self.machines.len() as u32).map(HostId).collect();
                let now = self.local(0);
                let machine = &mut self.machines[0];
                if machine.process.is_up && !machine.process.is_sending() {
                    machine.is_idle = false;
                    machine.process.send(now, &to);
                    self.trace(0, "sends");
                }
                self.after(0)
            }
        }
    }

    fn record(&mut self, carried: &Carried) {
        if let Carried::Bytes { from, to, bytes } = carried
            && self.scenario.attack > Span::ZERO
            && self.attacker.chance(0.5)
        {
            let recorded = (*from, *to, bytes.clone());
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
        let hosts = self.machines.len() as u64;
        let rng = &mut self.attacker;
        let gap = rng.exponential(self.scenario.attack.as_ps() as f64) as u64;
        let next = self.now + Span::from_ps(gap + 1);
        let count = self.recorded.len() as u64;
        if count > 0 {
            let (from, to, mut bytes) = self.recorded[rng.below(count) as usize].clone();
            let any = |rng: &mut Rng| HostId(rng.below(hosts) as u32);
            let is_group = [TO_GROUP, TO_AGENT].contains(&to);
            let to = if is_group { any(rng) } else { to };
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
            if from != to {
                let forged = Carried::Bytes { from, to, bytes };
                self.at(self.now, Event::Arrival(to.0 as usize, Box::new(forged)));
            }
        }
        self.at(next, Event::Attack);
    }

    /// Sends data of a receiver that has the key of the sender's present session to a receiver.
    fn forge(&mut self) {
        let rng = &mut self.attacker;
        let gap = rng.exponential(self.scenario.insider.as_ps() as f64) as u64;
        let next = self.now + Span::from_ps(gap + 1);
        if let Some((session, sealer)) = self.machines[0].process.sealer() {
            if self.insider.as_ref().is_none_or(|insider| insider.session() != session) {
                self.insider = Some(Insider::new(session, sealer, rng));
            }
            // Data is not bound to an address.
            let hosts = self.machines.len() as u64;
            let to = HostId(1 + rng.below(hosts - 1) as u32);
            let from = HostId(((u64::from(to.0) + 1 + rng.below(hosts - 1)) % hosts) as u32);
            if let Some(bytes) = self.insider.as_mut().and_then(|it| it.forge(&self.stream)) {
                let forged = Carried::Bytes { from, to, bytes };
                self.at(self.now, Event::Arrival(to.0 as usize, Box::new(forged)));
            }
        }
        self.at(next, Event::Forge);
    }

    fn arrive(&mut self, host: usize, packet: &Carried) -> Result<bool, String> {
        let now = self.local(host);
        let machine = &mut self.machines[host];
        machine.process.receive(now, packet);
        machine.is_idle = false;
        self.after(host)
    }

    fn fail(&mut self, failure: Failure, index: usize) -> Result<bool, String> {
        let host = failure.host as usize;
        let until = self.now + failure.lasts;
        self.trace(host, &format!("failure {index}: {:?}, {}", failure.fault, failure.lasts));
        let disk = self.machines[host].process.disk.clone();
        match failure.fault {
            Fault::Kill { operations: None } => self.kill(host, until, false)?,
            Fault::Kill { operations } => {
                if self.machines[host].process.is_up {
                    disk.kill_after(operations);
                    if disk.is_dead() {
                        self.kill(host, until, false)?;
                    }
                }
            }
            Fault::PowerFailure => self.kill(host, until, true)?,
            Fault::Pause => {
                self.machines[host].asleep += 1;
                self.at(until, Event::Awake(host));
            }
            Fault::DiskFull => disk.set_failing(Failing { full: true, ..Failing::default() }),
            Fault::DiskErrors => disk.set_failing(Failing { error: 0.01, ..Failing::default() }),
            Fault::ShortWrites => disk.set_failing(Failing { short: 0.3, ..Failing::default() }),
        }
        if matches!(failure.fault, Fault::DiskFull | Fault::DiskErrors | Fault::ShortWrites) {
            self.at(until, Event::Healed(host));
        }
        Ok(false)
    }

    /// Ends a process, or takes the power from its machine, until it is started again.
    fn kill(&mut self, host: usize, until: Time, power: bool) -> Result<(), String> {
        let machine = &mut self.machines[host];
        machine.process.kill();
        machine.inbox.clear();
        machine.is_idle = true;
        if power {
            machine.process.disk.lose_power();
            self.unsure[host] = !self.scenario.sync;
        }
        self.at(until, Event::Up(host));
        self.check_names(host, &self.machines[host].process.disk)
    }

    /// Handles what a process reports; returns whether the run is over.
    fn after(&mut self, host: usize) -> Result<bool, String> {
        let mut is_over = false;
        while let Some(report) = self.machines[host].process.reports.pop_front() {
            match report {
                Report::Note(text) => self.trace(host, &text),
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
                        }
                        is_over = self.now >= self.calm_at && !lost.contains(&true);
                    }
                    let again = self.now + SEND_AGAIN;
                    self.at(again, Event::Send);
                }
            }
        }
        if self.machines[host].process.disk.is_dead() {
            self.trace(host, "is killed in an operation of its disk");
            let lasts = Span::from_ps(self.rng.below(1_000_000_000_000));
            self.kill(host, self.now + lasts, false)?;
        }
        Ok(is_over)
    }

    /// Checks that a host has every file, also if the power fails now.
    fn check_complete(&mut self, host: usize, why: &str) -> Result<(), String> {
        self.unsure[host] = false;
        let disk = self.machines[host].process.disk.clone();
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
                        if (mode, time) != (0o640, MODIFIED) && when.is_empty() =>
                    {
                        "has another mode or time than was sent"
                    }
                    Some(_) => continue,
                };
                return Err(format!("host {host}: {why}, and {path} {found}{when}"));
            }
        }
        Ok(())
    }

    /// Checks that files with their final names are those that were sent, or those that were there before.
    fn check_names(&self, host: usize, disk: &Disk) -> Result<(), String> {
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
            let (has, of) = (has(&machine.process.disk), self.contents.len());
            // Writing to a string does not fail.
            let _ = write!(text, " host {number} has {has} of {of} files;");
        }
        text.pop();
        text
    }
}

/// The bytes on the wire.
fn wire_bytes(carried: &Carried) -> u64 {
    match carried {
        Carried::Plain(packet) => u64::from(packet.wire_bytes),
        Carried::Bytes { bytes, .. } => {
            u64::from(frame::wire_bytes((bytes.len() + IP_UDP_BYTES) as u32))
        }
    }
}

fn l3_bytes(carried: &Carried) -> u32 {
    (wire_bytes(carried) as u32).saturating_sub(frame::wire_bytes(1500) - 1500)
}
