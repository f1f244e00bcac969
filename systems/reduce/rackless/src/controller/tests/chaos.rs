//! Random runs: messages are lost, repeated and late; controllers are killed at any moment, also between storing and sending; stores
//! fail; another controller wants the pod. All jobs end, and never do two controllers command.

use std::collections::{BTreeMap, BTreeSet};

use super::rules::declared;
use super::*;
use crate::controller::message::{Command, Report};
use crate::controller::{Phase, Refusal, Standing};
use crate::demand::JobId;

/// When a run must be over.
const LIMIT: Time = Time::from_ticks(Span::from_secs(300).ticks());
/// How long a master waits for a grant before it uploads without.
const PATIENCE: Span = Span::from_secs(30);

enum Message {
    Command(Command),
    Report(usize, Box<Report>),
    Request(usize),
    /// What a master learns: its number, and the slots of its grant.
    Answer(usize, Result<(JobId, Option<u32>), Refusal>),
    Changed(Wiring),
}

/// A master, which repeats its requests.
struct Master {
    group: u32,
    id: Option<JobId>,
    at: Phase,
    /// When its phase ends.
    until: Time,
    granted: Option<u32>,
    since_ready: Option<Time>,
    is_over: bool,
    next: Time,
}

/// A controller's process.
struct Process {
    controller: Option<Controller>,
    store: Memory,
    identity: u64,
    back: Time,
}

struct World {
    rng: Rng,
    now: Time,
    agent: Agent,
    queue: BTreeMap<(Time, u64), Message>,
    sent: u64,
    processes: Vec<Process>,
    masters: Vec<Master>,
    kills: u64,
    moves: Vec<Wiring>,
    /// All masters may be over when the faults are.
    faults_until: Time,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::stream(seed, 0, 0, "chaos");
        let master = |number: u32, rng: &mut Rng| Master {
            group: number % 2,
            id: None,
            at: Phase::Registered,
            until: ms(0),
            granted: None,
            since_ready: None,
            is_over: false,
            next: ms(rng.below(3000)),
        };
        let count = 2 + rng.below(5) as u32;
        let masters = (0..count).map(|number| master(number, &mut rng)).collect();
        let process =
            |identity, back| Process { controller: None, store: Memory::default(), identity, back };
        let mut processes = vec![process(77, ms(0))];
        if rng.below(3) == 0 {
            processes.push(process(88, ms(rng.below(8000))));
        }
        Self {
            now: ms(0),
            agent: agent(1, ms(0)),
            queue: BTreeMap::new(),
            sent: 0,
            processes,
            masters,
            kills: 0,
            moves: Vec::new(),
            faults_until: ms(10_000 + rng.below(10_000)),
            rng,
        }
    }

    fn has_faults(&self) -> bool {
        self.now < self.faults_until
    }

    fn send(&mut self, message: impl Fn() -> Message) {
        let is_lost = self.has_faults() && self.rng.chance(0.15);
        let copies = if is_lost { 0 } else { 1 + u64::from(self.rng.chance(0.1)) };
        for _ in 0..copies {
            let most = if self.rng.chance(0.1) { 400_000 } else { 5_000 };
            let us = 100 + self.rng.below(most);
            self.later(Span::from_us(us), message());
        }
    }

    fn later(&mut self, after: Span, message: Message) {
        self.sent += 1;
        self.queue.insert((self.now.saturating_add(after), self.sent), message);
    }

    /// Stores and sends what a controller has to, unless it is killed meanwhile.
    fn turn(&mut self, number: usize) {
        let (has_faults, now) = (self.has_faults(), self.now);
        let process = &mut self.processes[number];
        let Some(mut controller) = process.controller.take() else { return };
        process.store.fails = has_faults && self.rng.chance(0.05);
        if has_faults && self.rng.chance(0.004) {
            self.kills += 1;
            let is_stored = self.rng.chance(0.5) && controller.commit(&mut process.store).is_ok();
            if is_stored {
                let sent: Vec<_> = std::iter::from_fn(|| controller.poll(now)).collect();
                let some = self.rng.below(2) as usize;
                for (_, command) in sent.into_iter().take(some) {
                    self.send(|| Message::Command(command.clone()));
                }
            }
            self.processes[number].back = now.saturating_add(Span::from_ms(self.rng.below(6000)));
            return;
        }
        let is_stored = controller.commit(&mut process.store).is_ok();
        assert!(is_stored || controller.poll(now).is_none());
        while let Some((_, command)) = controller.poll(now) {
            self.send(|| Message::Command(command.clone()));
        }
        self.processes[number].controller = Some(controller);
    }

    fn tick(&mut self) {
        for number in 0..self.processes.len() {
            let (now, process) = (self.now, &mut self.processes[number]);
            // The other controller goes for good, so that jobs of the first one end.
            if number == 1 && now >= self.faults_until {
                process.controller = None;
                continue;
            }
            if process.controller.is_none() && process.back <= now {
                let saved = process.store.saved.clone();
                let rng = Rng::stream(process.identity, self.sent, 0, "controller");
                let new = Controller::new(config(), saved, process.identity, rng, now);
                process.controller = Some(new);
            }
            if let Some(controller) = &mut process.controller {
                controller.handle_timeout(now);
                while controller.poll_event().is_some() {}
            }
            self.turn(number);
        }
        if let Some(report) = self.agent.poll_report(self.now, None) {
            for number in 0..self.processes.len() {
                self.send(|| Message::Report(number, Box::new(report.clone())));
            }
        }
        for number in 0..self.masters.len() {
            if !self.masters[number].is_over && self.masters[number].next <= self.now {
                self.masters[number].next = self.now.saturating_add(Span::from_ms(50));
                self.drive(number);
            }
        }
        let active = self.processes.iter().filter_map(|it| it.controller.as_ref());
        let active = active.filter(|it| it.standing(self.now) == Standing::Active).count();
        assert!(active < 2, "two controllers command");
    }

    /// What a master does every 50 ms.
    fn drive(&mut self, number: usize) {
        let took = Span::from_ms(200 + self.rng.below(800));
        let (now, master) = (self.now, &mut self.masters[number]);
        let is_due = master.until <= now;
        match master.at {
            Phase::Registered if master.id.is_some() => {
                (master.at, master.until) = (Phase::Map, now.saturating_add(took));
            }
            Phase::Map if is_due => {
                (master.at, master.until) = (Phase::Shuffle, now.saturating_add(took));
            }
            Phase::Shuffle if is_due => {
                (master.at, master.since_ready) = (Phase::Ready, Some(now));
            }
            Phase::Ready => {
                let is_late = master.since_ready.is_some_and(|at| now.since(at) > PATIENCE);
                if master.granted.is_some() || is_late {
                    (master.at, master.until) = (Phase::Upload, now.saturating_add(took));
                }
            }
            Phase::Upload if is_due => {
                (master.at, master.until) = (Phase::Reduce, now.saturating_add(took));
            }
            Phase::Reduce if is_due => master.is_over = true,
            _ => {}
        }
        self.send(|| Message::Request(number));
    }

    /// The request of a master says all that there is to be said at present, so that it can be repeated.
    fn request(&mut self, number: usize) {
        let now = self.now;
        let master = &self.masters[number];
        let Some(controller) = &mut self.processes[0].controller else { return };
        let (first, others) = match master.group {
            0 => (0, [1, 2, 3]),
            _ => (4, [5, 6, 7]),
        };
        let mut act = || {
            let id = match master.id {
                Some(id) => id,
                None => controller.register(now, "a", number as u64, declared(first, &others))?,
            };
            match master.at {
                Phase::Ready => controller.ready(now, "a", id, |_| {})?,
                _ if master.is_over => controller.end(now, "a", id)?,
                phase => controller.phase(now, "a", id, phase)?,
            }
            if master.is_over {
                return Ok((id, None));
            }
            let grant = controller.heard(now, "a", id)?.grant().map(|grant| grant.slots);
            Ok((id, grant))
        };
        let answer = act();
        self.turn(0);
        // A controller answers after it has stored only.
        let is_stored = self.processes[0].controller.as_ref().is_some_and(|it| !it.is_dirty());
        if is_stored {
            self.send(|| Message::Answer(number, answer.clone()));
        }
    }

    fn handle(&mut self, message: Message) {
        let now = self.now;
        match message {
            Message::Command(command) => {
                self.agent.handle(now, command);
                while let Some(wiring) = self.agent.poll_change() {
                    let after = Span::from_us(self.rng.below(20_000));
                    self.later(after, Message::Changed(wiring));
                }
            }
            Message::Changed(wiring) => {
                self.moves.push(wiring.clone());
                self.agent.changed(now, &wiring, Ok(Span::from_ms(25)));
            }
            Message::Report(number, report) => {
                if let Some(controller) = &mut self.processes[number].controller {
                    controller.handle(now, *report);
                }
                self.turn(number);
            }
            Message::Request(number) => self.request(number),
            Message::Answer(number, Ok((id, granted))) => {
                let master = &mut self.masters[number];
                assert!(master.id.is_none_or(|it| it == id), "another number");
                master.id = Some(id);
                if let Some(slots) = granted {
                    assert!(master.granted.is_none_or(|it| it == slots), "another grant");
                    master.granted = Some(slots);
                }
            }
            Message::Answer(..) => {}
        }
    }

    fn check(&self) {
        let living = self.masters.iter().filter(|it| !it.is_over).filter_map(|it| it.id);
        let mut seen = BTreeSet::new();
        assert!(living.clone().all(|id| seen.insert(id)), "two jobs have one number");
        if let Some(controller) = &self.processes[0].controller {
            let uploads = |it: &&crate::controller::Entry| {
                it.phase() == Phase::Upload && it.grant().is_some_and(|grant| grant.slots > 0)
            };
            assert!(controller.jobs().filter(uploads).count() < 2, "two have the switch");
        }
        for pair in self.moves.windows(2) {
            assert_ne!(pair[0], pair[1], "circuits have moved for nothing");
        }
    }

    fn run(mut self) -> (u64, usize) {
        while self.masters.iter().any(|it| !it.is_over) {
            assert!(self.now < LIMIT, "a job hangs");
            let end = self.now.saturating_add(Span::from_ms(2));
            while let Some(next) = self.queue.first_entry().filter(|it| it.key().0 <= end) {
                let ((at, _), message) = next.remove_entry();
                self.now = self.now.max(at);
                self.handle(message);
            }
            self.now = end;
            self.tick();
            self.check();
        }
        (self.kills, self.moves.len())
    }
}

fn runs_with_killed_controllers_end_well(seeds: core::ops::Range<u64>) {
    let (mut kills, mut moves) = (0, 0);
    let runs = seeds.end - seeds.start;
    for seed in seeds {
        let result = std::panic::catch_unwind(|| World::new(seed).run());
        let (of_run, moved) = result.unwrap_or_else(|_| panic!("seed {seed}"));
        (kills, moves) = (kills + of_run, moves + moved);
    }
    assert!(kills > 2 * runs && moves as u64 > runs * 3 / 4, "{kills} kills, {moves} moves");
}

// Two hundred runs; the tests run side by side.
#[test]
fn runs_with_killed_controllers_end_well_0_to_66() {
    runs_with_killed_controllers_end_well(0..67);
}

#[test]
fn runs_with_killed_controllers_end_well_67_to_133() {
    runs_with_killed_controllers_end_well(67..134);
}

#[test]
fn runs_with_killed_controllers_end_well_134_to_199() {
    runs_with_killed_controllers_end_well(134..200);
}
