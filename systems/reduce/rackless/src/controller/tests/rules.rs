//! One rule after the other.

use super::*;
use crate::controller::message::{Command, Counters, Holder, Report};
use crate::controller::{Declared, Event, Phase, Refusal, Standing};
use crate::demand::JobId;
use crate::fabric::Reach;
use crate::inc::Order;

/// A controller, its store, and the agent of its switch, joined without loss or delay.
struct Bench {
    controller: Controller,
    store: Memory,
    agent: Agent,
    now: Time,
    /// Circuits that the switch has changed to.
    changes: Vec<Wiring>,
    events: Vec<Event>,
    reports: Vec<Report>,
}

impl Bench {
    fn new(config: Config) -> Self {
        let rng = Rng::stream(1, 0, 0, "controller");
        let controller = Controller::new(config, Saved::default(), 77, rng, Time::ZERO);
        let mut bench = Self {
            controller,
            store: Memory::default(),
            agent: agent(1, Time::ZERO),
            now: Time::ZERO,
            changes: Vec::new(),
            events: Vec::new(),
            reports: Vec::new(),
        };
        bench.run(50);
        bench
    }

    /// Lets some milliseconds pass.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now = self.now.saturating_add(Span::from_ms(1));
            let now = self.now;
            self.controller.handle_timeout(now);
            self.controller.commit(&mut self.store).unwrap();
            while let Some((_, command)) = self.controller.poll(now) {
                self.agent.handle(now, command);
            }
            while let Some(wiring) = self.agent.poll_change() {
                self.agent.changed(now, &wiring, Ok(Span::from_ms(25)));
                self.changes.push(wiring);
            }
            while let Some(report) = self.agent.poll_report(now, None) {
                self.controller.handle(now, report.clone());
                self.reports.push(report);
            }
            let events = std::iter::from_fn(|| self.controller.poll_event());
            self.events.extend(events.map(|it| it.what));
        }
    }

    fn restart(&mut self) {
        self.controller = controller(self.store.saved.clone(), self.now);
    }

    fn register(&mut self, nonce: u64, master: u32, workers: &[u32]) -> JobId {
        self.controller.register(self.now, "a", nonce, declared(master, workers)).unwrap()
    }

    fn ready(&mut self, id: JobId) {
        self.controller.ready(self.now, "a", id, |_| {}).unwrap();
    }

    fn phase(&self, id: JobId) -> Phase {
        self.controller.jobs().find(|it| it.id == id).unwrap().phase()
    }
}

/// A job that uploads 100 MB of each worker.
pub(super) fn declared(master: u32, workers: &[u32]) -> Declared {
    Declared {
        name: "words".to_owned(),
        master,
        workers: workers.to_vec(),
        upload: Some(vec![100_000_000; workers.len()]),
        distinct: (workers.len() > 1).then_some(150_000_000),
        ..Declared::default()
    }
}

#[test]
fn groups_have_the_switch_by_turns_and_circuits_follow_them() {
    let mut bench = Bench::new(config());
    assert_eq!(bench.controller.standing(bench.now), Standing::Active);
    let (a, b) = (bench.register(1, 0, &[1, 2, 3]), bench.register(2, 4, &[5, 6, 7]));
    assert_eq!(bench.register(1, 0, &[1, 2, 3]), a, "a repeated registration");
    bench.ready(a);
    bench.ready(b);
    bench.run(5);
    assert_eq!((bench.phase(a), bench.phase(b)), (Phase::Upload, Phase::Ready));
    assert_eq!(bench.changes.len(), 0, "the first group is there");
    let grant = bench.controller.jobs().next().unwrap().grant().unwrap().clone();
    assert_eq!((grant.slots, &grant.switch[..]), (65_536, "0"));
    bench.controller.phase(bench.now, "a", a, Phase::Reduce).unwrap();
    bench.run(10);
    assert_eq!(bench.phase(b), Phase::Ready, "its circuits are dark");
    assert_eq!(bench.changes.len(), 1);
    assert!(bench.changes[0].servers[4..].iter().all(|tor| *tor == 0), "{:?}", bench.changes);
    bench.run(30);
    assert_eq!(bench.phase(b), Phase::Upload);
    bench.controller.end(bench.now, "a", b).unwrap();
    bench.controller.end(bench.now, "a", a).unwrap();
    bench.run(1000);
    assert_eq!((bench.changes.len(), bench.controller.version()), (1, 1));
}

#[test]
fn a_restart_adopts_jobs_grants_and_circuits() {
    let mut bench = Bench::new(config());
    let b = bench.register(2, 4, &[5, 6, 7]);
    bench.ready(b);
    bench.run(40);
    let c = bench.register(3, 0, &[1, 2, 3]);
    bench.ready(c);
    bench.run(1);
    let before: Vec<_> = bench.controller.jobs().map(|it| (it.id, it.grant().cloned())).collect();
    assert_eq!((bench.phase(b), bench.changes.len()), (Phase::Upload, 1));
    bench.restart();
    bench.run(110);
    let is_confirmed = bench.agent.holder() == Some(Holder { controller: 77, start: 77, term: 2 });
    assert!(is_confirmed && bench.controller.standing(bench.now) == Standing::Active);
    bench.run(200);
    let applied = bench.reports.last().unwrap().applied.as_ref().unwrap();
    assert_eq!((applied.term, applied.version), (2, 1), "within a fraction of the lease");
    bench.run(300);
    let after: Vec<_> = bench.controller.jobs().map(|it| (it.id, it.grant().cloned())).collect();
    assert_eq!(before, after);
    assert_eq!((bench.phase(b), bench.phase(c)), (Phase::Upload, Phase::Ready));
    assert_eq!(bench.changes.len(), 1, "nothing moves");
    assert_eq!(bench.agent.holder(), Some(Holder { controller: 77, start: 77, term: 2 }));
    assert_eq!(bench.register(3, 0, &[1, 2, 3]), c);
    bench.controller.end(bench.now, "a", b).unwrap();
    bench.run(60);
    assert_eq!((bench.phase(c), bench.changes.len()), (Phase::Upload, 2));
    let learned = &bench.store.saved.learned;
    assert_eq!(
        (learned.len(), &learned[0].0[..], learned[0].1.upload),
        (1, "a/words", 300_000_000)
    );
}

#[test]
fn a_job_that_reduces_has_no_slots_after_a_restart_either() {
    let mut bench = Bench::new(config());
    let b = bench.register(2, 4, &[5, 6, 7]);
    bench.ready(b);
    bench.run(40);
    assert!(bench.controller.jobs().all(|it| it.grant().is_some_and(|grant| grant.slots > 0)));
    bench.controller.phase(bench.now, "a", b, Phase::Reduce).unwrap();
    bench.run(1);
    bench.restart();
    bench.run(110);
    let c = bench.register(3, 0, &[1, 2, 3]);
    bench.ready(c);
    bench.run(500);
    let job = bench.controller.jobs().find(|it| it.id == c).unwrap();
    assert!(job.grant().is_some_and(|grant| grant.slots > 0), "{:?}", job.grant());
}

#[test]
fn nothing_leaves_before_it_is_stored() {
    let mut bench = Bench::new(config());
    let b = bench.register(2, 4, &[5, 6, 7]);
    bench.ready(b);
    bench.store.fails = true;
    assert!(bench.controller.commit(&mut bench.store).is_err());
    assert_eq!(bench.controller.poll(bench.now), None);
    bench.store.fails = false;
    bench.controller.commit(&mut bench.store).unwrap();
    let (_, command) = bench.controller.poll(bench.now).unwrap();
    assert_eq!(command.wiring, bench.store.saved.head.as_ref().unwrap().wiring);
    assert_eq!(command.version, 1);
}

#[test]
fn an_agent_follows_one_controller_at_a_time() {
    let mut agent = agent(1, ms(0));
    let command = |controller, term, version, servers: [u16; 8]| Command {
        holder: Holder { controller, start: controller, term },
        sent_ns: version,
        lease_ns: 1_000_000_000,
        version,
        wiring: Some(Wiring { servers: servers.to_vec(), tors: Vec::new() }),
        routes: Vec::new(),
    };
    let (one, two) = ([1, 1, 2, 2, 0, 0, 0, 0], [2, 2, 1, 1, 0, 0, 0, 0]);
    agent.handle(ms(0), command(1, 5, 1, one));
    assert_eq!(agent.poll_change().map(|it| it.servers), Some(one.to_vec()));
    agent.handle(ms(10), command(2, 6, 9, two));
    assert_eq!(agent.poll_change(), None, "the lease of the first runs");
    agent.handle(ms(999), command(1, 5, 1, one));
    assert_eq!(agent.poll_change(), None, "repeated");
    agent.handle(ms(1500), command(2, 6, 9, two));
    assert_eq!(agent.poll_change(), None, "the repetition has prolonged the lease");
    agent.handle(ms(2100), command(2, 5, 9, two));
    assert_eq!(agent.poll_change(), None, "a term that was there");
    agent.handle(ms(2100), command(2, 6, 9, two));
    assert_eq!(agent.poll_change().map(|it| it.servers), Some(two.to_vec()));
    agent.handle(ms(9000), command(1, 5, 2, one));
    assert_eq!((agent.poll_change(), agent.refused()), (None, 4), "late");
}

/// Another controller that hears the agent of a bench.
struct Second {
    controller: Controller,
    store: Memory,
}

impl Second {
    fn new(saved: Saved, now: Time) -> Self {
        let rng = Rng::stream(2, 0, 0, "controller");
        let controller = Controller::new(config(), saved.clone(), 88, rng, now);
        Self { controller, store: Memory { saved, fails: false } }
    }

    fn turn(&mut self, bench: &mut Bench) -> Standing {
        let now = bench.now;
        for report in bench.reports.drain(..) {
            self.controller.handle(now, report);
        }
        self.controller.handle_timeout(now);
        self.controller.commit(&mut self.store).unwrap();
        while let Some((_, command)) = self.controller.poll(now) {
            bench.agent.handle(now, command);
        }
        self.controller.standing(now)
    }

    /// Lets it claim the pod of a controller that runs, and then of one that is gone.
    fn waits_for(&mut self, bench: &mut Bench) {
        for _ in 0..5000 {
            bench.run(1);
            assert_ne!(self.turn(bench), Standing::Active);
        }
        assert_eq!(bench.controller.standing(bench.now), Standing::Active);
        let refused = bench.agent.refused();
        assert!(refused > 3, "{refused}");
        let mut became = None;
        for at in 0..8000 {
            bench.now = bench.now.saturating_add(Span::from_ms(1));
            bench.reports.extend(bench.agent.poll_report(bench.now, None));
            let first = bench.controller.standing(bench.now);
            if self.turn(bench) == Standing::Active {
                assert_ne!(first, Standing::Active);
                became = became.or(Some(at));
            }
        }
        assert!(became.is_some_and(|at| (2000..5000).contains(&at)), "{became:?}");
    }
}

#[test]
fn a_second_controller_waits_until_the_first_is_gone() {
    let mut bench = Bench::new(config());
    Second::new(Saved::default(), Time::ZERO).waits_for(&mut bench);
}

#[test]
fn so_does_one_with_a_copy_of_the_firsts_database() {
    let mut bench = Bench::new(config());
    let copy = bench.store.saved.clone();
    bench.restart();
    bench.run(200);
    let now = bench.now;
    Second::new(copy, now).waits_for(&mut bench);
}

#[test]
fn a_switch_with_the_name_of_another_one_is_reported_and_displaces_it_not() {
    let mut bench = Bench::new(config());
    let mut earlier = agent(0, bench.now);
    let mut taken = 0;
    for _ in 0..5000 {
        bench.run(1);
        if let Some(report) = earlier.poll_report(bench.now, None) {
            taken += u32::from(bench.controller.handle(bench.now, report));
        }
    }
    bench.run(1);
    assert_eq!(taken, 0);
    let why = "another switch has this name".to_owned();
    let refused = Event::AgentRefused { agent: "pod".to_owned(), why };
    assert_eq!(bench.events.iter().filter(|it| **it == refused).count(), 1);
    assert_eq!(bench.controller.standing(bench.now), Standing::Active);
}

#[test]
fn nonsense_is_refused_with_a_sentence() {
    let mut bench = Bench::new(config());
    let mut refused = |change: fn(&mut Declared)| {
        let mut it = declared(0, &[1, 2]);
        change(&mut it);
        bench.controller.register(bench.now, "a", 9, it).unwrap_err().to_string()
    };
    let name = "a name has 1 to 128 printable characters and no `/`";
    assert_eq!(refused(|it| it.name.clear()), name);
    assert_eq!(refused(|it| it.name = "a\n".into()), name);
    assert!(refused(|it| it.master = 8).contains("the pod has servers 0 to 7"));
    assert!(refused(|it| it.workers = vec![1; 5000]).contains("at most 4096 workers"));
    assert!(refused(|it| it.upload = Some(vec![1])).contains("sizes of 1 uploads"));
    assert!(refused(|it| it.upload = Some(vec![u64::MAX; 2])).contains("2^50"));
    assert!(refused(|it| it.distinct = Some(7)).contains("distinct bytes"));
    assert!(refused(|it| it.map_ms = Some(u64::MAX)).contains("at most 7 days"));
    assert!(refused(|it| it.shuffle = vec![(0, 2, 1)]).contains("names worker 2"));
    assert!(refused(|it| it.input = Some(u64::MAX)).contains("2^50"));
    assert_eq!(bench.controller.jobs().count(), 0);
    assert_eq!(bench.register(1, 0, &[1]), JobId(1), "no number was used");
    let other = bench.controller.end(bench.now, "b", JobId(1));
    assert_eq!(other, Err(Refusal::NoSuchJob(JobId(1))), "of another tenant");
}

#[test]
fn a_thousand_jobs_at_once_are_bounded() {
    let mut bench = Bench::new(Config { most_jobs: 1000, most_of_tenant: 900, ..config() });
    for nonce in 0..900 {
        bench.register(nonce, 0, &[1, 2, 3]);
    }
    let one_more = bench.controller.register(bench.now, "a", 900, declared(0, &[1]));
    assert_eq!(one_more, Err(Refusal::TenantFull(900)));
    for nonce in 0..100 {
        bench.controller.register(bench.now, "b", nonce, declared(4, &[5])).unwrap();
    }
    let one_more = bench.controller.register(bench.now, "c", 0, declared(0, &[1]));
    assert_eq!(one_more, Err(Refusal::Full(1000)));
    let ids: Vec<_> = bench.controller.jobs().map(|it| it.id).collect();
    ids.iter().take(900).for_each(|id| bench.ready(*id));
    bench.run(3);
    let uploads = bench.controller.jobs().filter(|it| it.phase() == Phase::Upload).count();
    assert_eq!(uploads, 1);
}

#[test]
fn reports_that_cannot_be_right_are_not_believed() {
    let refused = |change: fn(&mut Report)| {
        let mut bench = Bench::new(config());
        let report = |sequence: u64, bytes: u64| {
            let mut report = agent(1, ms(0)).poll_report(ms(0), None).unwrap();
            report.sequence += 1000 + sequence;
            let each = vec![bytes; 8];
            report.counters = Some(Counters { sent: each.clone(), received: each });
            report
        };
        let (first, mut second) = (report(0, 10), report(1, 20));
        change(&mut second);
        bench.controller.handle(bench.now, first);
        bench.controller.handle(bench.now, second);
        std::iter::from_fn(|| bench.controller.poll_event()).find_map(|it| match it.what {
            Event::AgentRefused { why, .. } => Some(why),
            _ => None,
        })
    };
    assert_eq!(refused(|_| {}), None);
    let why = |change| refused(change).unwrap();
    assert_eq!(why(|it| it.counters.as_mut().unwrap().sent[3] = 9), "its counters run backwards");
    assert_eq!(why(|it| it.abilities.tors[2].tor = 3), "the pod has no ToR 3: it has ToRs 0 to 2");
    assert_eq!(
        why(|it| it.abilities.tors[0].ports = 5),
        "its ToR 0 has 5 server ports, and the pod's 4"
    );
    assert_eq!(
        why(|it| it.abilities.tors[1].uplinks = 2),
        "its ToR 1 has 2 uplinks, and the pod's 1"
    );
    assert_eq!(
        why(|it| it.abilities.tors[2].uplink_bps = 40_000_000_000),
        "the uplinks of its ToR 2 have 40 Gbps, and the pod's 10 Gbps"
    );
    assert_eq!(
        why(|it| it.abilities.server_bps = 100_000_000),
        "its servers' links have 100 Mbps, and the pod's 10 Gbps"
    );
    assert_eq!(
        why(|it| it.abilities.dark_ns = u64::MAX),
        "its ports are dark for 3600 s after a change, and an upload waits 2 s for its circuits"
    );
    assert_eq!(why(|it| it.abilities.servers = 9), "it has 9 servers, and the pod 8");
    let wiring = why(|it| it.wiring.as_mut().unwrap().servers = vec![1; 8]);
    assert_eq!(wiring, "ToR 1 has 2 server ports, too few for 8 servers");
    assert!(why(|it| it.agent = "other".to_owned()).contains("changes the circuits of this pod"));
}

#[test]
fn an_upload_waits_neither_for_an_absent_switch_nor_for_one_that_refuses() {
    let mut bench = Bench::new(config());
    let b = bench.register(2, 4, &[5, 6, 7]);
    bench.ready(b);
    // The switch refuses.
    for _ in 0..100 {
        bench.now = bench.now.saturating_add(Span::from_ms(1));
        let now = bench.now;
        bench.controller.handle_timeout(now);
        bench.controller.commit(&mut bench.store).unwrap();
        while let Some((_, command)) = bench.controller.poll(now) {
            bench.agent.handle(now, command);
        }
        while let Some(wiring) = bench.agent.poll_change() {
            bench.agent.changed(now, &wiring, Err("a mirror is stuck".to_owned()));
        }
        if let Some(report) = bench.agent.poll_report(now, None) {
            bench.controller.handle(now, report);
        }
    }
    bench.run(1);
    let refused = Event::NotMoved { why: "a mirror is stuck".to_owned() };
    assert!(bench.events.contains(&refused), "{:?}", bench.events);
    assert_eq!(bench.phase(b), Phase::Upload);
    assert_eq!(bench.controller.circuits(), Some(&Configuration::in_order(&Pod::paper())));
    // No agent at all.
    let mut alone = controller(Saved::default(), ms(0));
    let id = alone.register(ms(0), "a", 1, declared(4, &[5, 6, 7])).unwrap();
    alone.ready(ms(0), "a", id, |_| {}).unwrap();
    alone.handle_timeout(ms(1990));
    assert_eq!(alone.jobs().next().unwrap().phase(), Phase::Ready);
    alone.handle_timeout(ms(2010));
    let entry = alone.jobs().next().unwrap();
    assert_eq!((entry.phase(), entry.grant().unwrap().slots), (Phase::Upload, 0));
}

#[test]
fn a_silent_master_gives_its_place_to_the_next() {
    let mut bench = Bench::new(config());
    let (a, b) = (bench.register(1, 0, &[1, 2, 3]), bench.register(2, 0, &[1, 2, 3]));
    bench.ready(a);
    bench.run(10_000);
    bench.ready(b);
    bench.run(19_000);
    assert_eq!((bench.phase(a), bench.phase(b)), (Phase::Upload, Phase::Ready));
    bench.run(2_000);
    assert_eq!((bench.controller.jobs().count(), bench.phase(b)), (1, Phase::Upload));
}

#[test]
fn orders_choose_the_next_upload() {
    let sequence = |order| {
        let mut bench = Bench::new(Config { order, ..config() });
        // What was learned of a job is taken for all of its name.
        let group = |name: &str, workers: &[u32], each| Declared {
            name: name.to_owned(),
            upload: Some(vec![each; 3]),
            distinct: Some(each),
            ..declared(workers[0] - 1, workers)
        };
        let jobs = [
            group("first", &[1, 2, 3], 100_000_000),
            group("second", &[1, 2, 3], 100_000_000),
            group("other", &[5, 6, 7], 90_000_000),
            group("small", &[1, 2, 3], 50_000_000),
        ];
        let now = bench.now;
        let ids: Vec<_> = (0..)
            .zip(jobs)
            .map(|(nonce, it)| bench.controller.register(now, "a", nonce, it).unwrap())
            .collect();
        ids.iter().for_each(|id| bench.ready(*id));
        let mut sequence = Vec::new();
        while sequence.len() < 4 {
            bench.run(100);
            let upload = bench.controller.jobs().find(|it| it.phase() == Phase::Upload);
            let id = upload.unwrap().id;
            sequence.push(id.0);
            bench.controller.end(bench.now, "a", id).unwrap();
        }
        sequence
    };
    // The first one is alone when it becomes ready.
    assert_eq!(sequence(Order::FirstCome), [1, 2, 3, 4]);
    assert_eq!(sequence(Order::Alternating), [1, 3, 2, 4]);
    assert_eq!(sequence(Order::Shortest), [1, 4, 3, 2]);
}

#[test]
fn what_a_change_costs_is_what_the_switch_reports() {
    let moves = |dark_ms: u64| {
        let mut bench = Bench::new(config());
        let mut abilities = abilities();
        abilities.dark_ns = dark_ms * 1_000_000;
        let wiring = Wiring::of(&Configuration::in_order(&Pod::paper()));
        bench.agent = Agent::new("pod".to_owned(), 2, abilities, Some(wiring), bench.now);
        bench.run(50);
        let id = bench.register(1, 4, &[5, 6, 7]);
        bench.ready(id);
        bench.run(50);
        bench.changes.len()
    };
    assert_eq!(moves(25), 1);
    assert_eq!(moves(1900), 0, "it would take longer than it saves");
}

#[test]
fn an_upload_has_slots_if_its_group_is_a_rack_below_the_programmable_tor() {
    // One pair is less than a move costs, so that all servers stay where they are.
    let small = |master, workers: &[u32]| Declared {
        upload: Some(vec![20; workers.len()]),
        distinct: Some(20 + u64::from(workers.len() > 1)),
        ..declared(master, workers)
    };
    // Five servers are no rack below four ports.
    let jobs: [(u32, &[u32]); 5] =
        [(0, &[1, 2, 3]), (4, &[5, 6, 7]), (0, &[1, 4]), (4, &[0, 1]), (0, &[1, 2, 4, 5])];
    for (reach, expected) in
        [(Reach::Path, [true; 5]), (Reach::Rack, [true, false, false, false, true])]
    {
        let config = config();
        let fabric = config.fabric.clone().with_reach(reach);
        let mut bench = Bench::new(Config { fabric, ..config });
        let mut has_slots = Vec::new();
        for (nonce, (master, workers)) in (1..).zip(jobs) {
            let declared = small(master, workers);
            let id = bench.controller.register(bench.now, "a", nonce, declared).unwrap();
            bench.ready(id);
            bench.run(5);
            let entry = bench.controller.jobs().find(|it| it.id == id).unwrap();
            has_slots.push(entry.grant().unwrap().slots == 65_536);
            bench.controller.end(bench.now, "a", id).unwrap();
        }
        assert_eq!((&has_slots[..], bench.changes.len()), (&expected[..], 0), "{reach:?}");
    }
}

#[test]
fn a_group_becomes_a_rack_where_its_parts_would_gain_nothing() {
    let config = config();
    let fabric = config.fabric.clone().with_reach(Reach::Rack);
    let mut bench = Bench::new(Config { fabric, ..config });
    let id = bench.register(1, 4, &[5, 6, 1]);
    bench.ready(id);
    bench.run(40);
    let servers = &bench.changes.last().unwrap().servers;
    assert!([1, 4, 5, 6].iter().all(|it: &usize| servers[*it] == 0), "{servers:?}");
    let entry = bench.controller.jobs().next().unwrap();
    assert_eq!(entry.grant().unwrap().slots, 65_536);
}

#[test]
fn a_group_becomes_a_rack_while_another_job_keeps_a_link_busier() {
    let config = config();
    let fabric = config.fabric.clone().with_reach(Reach::Rack);
    let mut bench = Bench::new(Config { fabric, ..config });
    // It distributes more than the upload has, over the link of server 2.
    let other = Declared {
        input: Some(4_000_000_000),
        upload: Some(vec![20; 2]),
        distinct: Some(20),
        ..declared(2, &[3, 0])
    };
    let other = bench.controller.register(bench.now, "a", 9, other).unwrap();
    bench.controller.phase(bench.now, "a", other, Phase::Map).unwrap();
    bench.run(5);
    // At most 144 ms, of periods of 200 ms in which that link is always busy.
    let small = Declared {
        upload: Some(vec![60_000_000; 3]),
        distinct: Some(60_000_000),
        ..declared(4, &[5, 6, 7])
    };
    let id = bench.controller.register(bench.now, "a", 1, small).unwrap();
    bench.ready(id);
    bench.run(40);
    let entry = bench.controller.jobs().find(|it| it.id == id).unwrap();
    assert_eq!(entry.grant().map(|it| it.slots), Some(65_536));
    let servers = &bench.changes.last().unwrap().servers;
    assert!(servers[4..].iter().all(|tor| *tor == 0), "{servers:?}");
}
