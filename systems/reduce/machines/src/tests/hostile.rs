//! Neighbours that forge messages.

use proptest::prelude::*;
use rackweave_wire::Id64;
use rackweave_wire::reduce::{self, Open, Pairs as PairFields, Phase, Rejection, Rule, State};

use super::super::packet::packet;
use super::*;

const STRANGER: HostId = HostId(40);

fn bodies() -> impl Strategy<Value = Body> {
    let pairs = (any::<u32>(), 0_u16..20, 1_u8..65).prop_map(|(seq, epoch, count)| PairFields {
        seq,
        epoch,
        count,
    });
    let state = (any::<u32>(), 0_u32..10, any::<u32>(), 0_u16..20, 0_u16..20, 1_u8..3).prop_map(
        |(version, instance, aggregator, epochs, drained, copies)| {
            let phases = [Phase::Run, Phase::Done, Phase::Failed, Phase::Quiesce, Phase::Wait];
            let phase = phases[version as usize % 5];
            let (window, drained) = (32, drained.min(epochs));
            let aggregator = HostId(aggregator);
            let operator = Operator::Sum;
            State {
                version,
                instance,
                aggregator,
                epochs,
                drained,
                window,
                copies,
                phase,
                operator,
            }
        },
    );
    let open = (any::<u64>(), any::<u32>(), 1_u8..65, 1_u16..1025).prop_map(
        |(cookie, slots, workers, window)| Open {
            cookie: Id64::new(cookie),
            slots,
            first_epoch: 0,
            window,
            copies: 2,
            operator: Operator::Sum,
            workers,
            rule: Rule::Exact,
        },
    );
    prop_oneof![
        pairs.clone().prop_map(Body::Data),
        pairs.prop_map(Body::Residual),
        (any::<u32>(), 0_u16..20, any::<u16>(), 1_u16..1281).prop_map(
            |(seq, epoch, offset, len)| {
                Body::Long { seq, epoch, offset: u32::from(offset), len }
            }
        ),
        (any::<u32>(), 0_u16..20).prop_map(|(seq, epoch)| Body::Fin {
            seq,
            epoch,
            long_bytes: 0,
            pairs: 0
        }),
        (any::<u32>(), any::<bool>()).prop_map(|(seq, marked)| Body::Ack { seq, marked }),
        (any::<u32>(), any::<u64>()).prop_map(|(instance, cookie)| {
            let (cookie, digest) = (Id64::new(cookie), Id64::new(cookie));
            Body::Join { instance, cookie, digest }
        }),
        (0_u32..10, any::<u64>())
            .prop_map(|(instance, cookie)| Body::Challenge { instance, cookie: Id64::new(cookie) }),
        state.prop_map(Body::State),
        (any::<u32>(), any::<bool>()).prop_map(|(version, idle)| Body::Confirm { version, idle }),
        open.prop_map(Body::Open),
        (any::<u32>(), any::<u32>()).prop_map(|(slots, instance)| Body::Opened { slots, instance }),
        (0_u16..20, any::<u16>(), any::<u32>())
            .prop_map(|(epoch, reservation, first)| Body::Fetch { epoch, reservation, first }),
        (0_u16..20, any::<u32>(), 0_u8..53).prop_map(|(epoch, first, sums)| Body::Values {
            epoch,
            first,
            sums
        }),
        (0_u16..20, any::<u16>())
            .prop_map(|(epoch, reservation)| Body::Clear { epoch, reservation }),
        (0_u16..20).prop_map(|epoch| Body::Cleared { epoch }),
        (0_u32..10).prop_map(|instance| Body::Rejected { instance, why: Rejection::NoNumber }),
        Just(Body::Close),
        Just(Body::Unknown),
    ]
}

proptest! {
    #![proptest_config(rackweave_testing::cases(64))]

    /// A neighbour that does not know the token changes nothing, whatever it sends and whoever it claims to be.
    #[test]
    fn without_the_token_messages_change_nothing(
        seed in any::<u64>(),
        forged in prop::collection::vec(
            (0_u64..20_000, bodies(), 0_u32..6, 0_u32..6, 0_u16..3, 0_u8..5, any::<u64>()),
            0..200,
        ),
    ) {
        let aggregation = Some(Aggregation::new(SWITCH, 300));
        let job = Job::new(words(seed, 4, 300, 500), aggregation);
        let faults = Faults { delay: Span::from_us(500), ..Faults::default() };
        let mut world = World::new(job, 300, faults, seed);
        for (at_us, body, src, dst, attempt, worker, token) in forged {
            let address = |number| match number {
                5 => SWITCH,
                host => HostId(host),
            };
            // A spoofed source gets no answer, but a master's messages to a worker that has not joined carry no secret yet
            // but the worker's instance, which the neighbour does not know.
            if matches!(body, Body::State(_) | Body::Challenge { .. } | Body::Rejected { .. }) {
                continue;
            }
            let token = Id64::new(token);
            let header = reduce::Header { job: JOB, attempt, worker, token, body };
            let payload = vec![0x5a; header.payload_len() as usize];
            let packet = packet(address(src), address(dst), header);
            world.flights.push(Time::ZERO + Span::from_us(at_us), Flight::Packet(packet, payload));
        }
        world.run_to_end(seconds(60));
        prop_assert_eq!(world.master().machine().counters().restarts, 0);
    }

    /// Even with the token no message makes a machine panic or its memory grow.
    #[test]
    fn no_message_panics(
        forged in prop::collection::vec((bodies(), 0_u32..6, 0_u32..6, 0_u16..2, 0_u8..5), 0..300),
    ) {
        let aggregation = Some(Aggregation::new(SWITCH, 300));
        let job = Job::new(words(1, 4, 300, 500), aggregation);
        let mut world = World::new(job, 300, Faults::default(), 1);
        world.run(Time::ZERO + Span::from_us(100));
        for (body, src, dst, attempt, worker) in forged {
            let address = |number| if number == 5 { SWITCH } else { HostId(number) };
            let token = Id64::new(0x1234_5678_9abc);
            let header = reduce::Header { job: JOB, attempt, worker, token, body };
            let payload = vec![0x5a; header.payload_len() as usize];
            world.deliver(packet(address(src), address(dst), header), &payload);
            world.flush();
        }
        world.run(seconds(100));
        prop_assert!(world.switch.as_ref().unwrap().program().used() <= 300);
    }
}

#[test]
fn a_stranger_gets_no_slots_without_proving_its_address() {
    let config = switch::Config::new(100, 1);
    let mut world = World::new(Job::new(vec![Vec::new()], None), 0, Faults::default(), 1);
    world.switch = Some(Simulated::new(Program::new(0, config)));
    let open = Open {
        cookie: Id64::new(0),
        slots: 100,
        first_epoch: 0,
        window: 32,
        copies: 2,
        operator: Operator::Sum,
        workers: 1,
        rule: Rule::Exact,
    };
    for job in 0..1_000 {
        let (token, body) = (Id64::new(5), Body::Open(open));
        let header = reduce::Header { job, attempt: 0, worker: 0, token, body };
        world.down.resize(41, true);
        world.deliver(packet(STRANGER, SWITCH, header), &[0; 4]);
    }
    assert_eq!(world.switch.as_ref().unwrap().program().jobs(), 0);
}

/// A switch that masters request slots from.
struct Requests(Program);

impl Requests {
    /// Sends a request with this cookie.
    fn once(&mut self, now: Time, master: HostId, job: u16, open: Open) -> Option<Body> {
        use rackweave_switch::system::SystemProgram;
        let (token, body) = (Id64::new(5), Body::Open(open));
        let message = reduce::Header { job, attempt: 0, worker: 0, token, body };
        let mut packet = packet(master, SWITCH, message);
        let mut payloads = Slab::default();
        let addresses = vec![0; usize::from(open.workers) * 4];
        packet.header = packet.header.with_payload(payloads.insert(&addresses).unwrap());
        let view = message;
        let _ = self.0.handle_packet(now, Port(0), view, &mut packet, &mut payloads);
        self.0.poll_transmit(now).map(|made| made.header.body)
    }

    /// Requests slots for workers with windows of 32 packets, with the cookie that is required.
    fn open(&mut self, now: Time, master: HostId, job: u16, [slots, workers]: [u32; 2]) -> Body {
        let mut open = Open {
            cookie: Id64::new(0),
            slots,
            first_epoch: 0,
            window: 32,
            copies: 2,
            operator: Operator::Sum,
            workers: workers as u8,
            rule: Rule::Exact,
        };
        let Some(Body::Challenge { cookie, .. }) = self.once(now, master, job, open) else {
            panic!("no cookie")
        };
        open.cookie = cookie;
        self.once(now, master, job, open).unwrap()
    }
}

#[test]
fn jobs_end_with_the_lease_of_their_masters_and_never_exceed_the_limit() {
    let config = switch::Config { max_jobs: 3, ..switch::Config::new(1_000, 1) };
    let mut switch = Requests(Program::new(0, config));
    let mut open = |now, job| {
        let answer = switch.open(now, STRANGER, job, [100, 1]);
        (answer, switch.0.jobs())
    };
    for job in 0..3 {
        assert!(matches!(open(Time::ZERO, job), (Body::Opened { slots: 96, .. }, _)));
    }
    assert!(matches!(open(seconds(5), 3), (Body::Refused { .. }, 3)));
    assert!(matches!(open(seconds(5), 2), (Body::Opened { .. }, 3)));
    // Those of the first two masters are over, that of the third was renewed.
    assert!(matches!(open(seconds(11), 3), (Body::Opened { .. }, 2)));
}

#[test]
fn one_address_gets_no_more_than_its_share_of_slots_jobs_and_records() {
    let full = Body::Refused { reason: reduce::Refusal::Full };
    let slots_of = |body| match body {
        Body::Opened { slots, .. } => slots,
        other => panic!("{other:?}"),
    };
    let new = |max_entries| {
        let config = switch::Config::new(1_024, 1);
        let config = switch::Config { share: 50, max_jobs: 8, max_entries, ..config };
        Requests(Program::new(0, config))
    };
    let (now, other) = (Time::ZERO, HostId(41));
    // Slots: half of them in all, whatever is asked for and by how many jobs.
    let mut switch = new(65_536);
    assert_eq!(slots_of(switch.open(now, STRANGER, 0, [u32::MAX, 1])), 512);
    assert_eq!(switch.open(now, STRANGER, 1, [16, 1]), full);
    assert_eq!(slots_of(switch.open(now, other, 1, [1_024, 1])), 512);
    // A master that renews its reservation keeps it.
    assert_eq!(slots_of(switch.open(now, STRANGER, 0, [u32::MAX, 1])), 512);
    // Jobs.
    let mut switch = new(65_536);
    for job in 0..4 {
        assert_eq!(slots_of(switch.open(now, STRANGER, job, [16, 1])), 16);
    }
    assert_eq!(switch.open(now, STRANGER, 4, [16, 1]), full);
    assert_eq!(slots_of(switch.open(now, other, 4, [16, 1])), 16);
    // Recorded packets: 32 for each worker.
    let mut switch = new(32 * 8);
    assert_eq!(slots_of(switch.open(now, STRANGER, 0, [16, 3])), 16);
    assert_eq!(switch.open(now, STRANGER, 1, [16, 2]), full);
    assert_eq!(slots_of(switch.open(now, STRANGER, 1, [16, 1])), 16);
    assert_eq!(slots_of(switch.open(now, other, 2, [16, 4])), 16);
}

#[test]
fn a_state_that_divides_the_keys_in_another_way_is_ignored() {
    let job = Job::new(words(1, 1, 300, 500), Some(Aggregation::new(SWITCH, 300)));
    let mut world = World::new(job, 300, Faults::default(), 1);
    world.run(Time::ZERO + Span::from_us(100));
    let state = *world.nodes[1].workers()[0].machine().state().unwrap();
    assert!(state.epochs > 1);
    for (phase, epochs) in [(Phase::Wait, 0), (Phase::Run, state.epochs + 1)] {
        let body =
            Body::State(State { version: state.version + 9, epochs, drained: 0, phase, ..state });
        let token = Id64::new(0x1234_5678_9abc);
        let header = reduce::Header { job: JOB, attempt: 0, worker: 0, token, body };
        world.deliver(packet(MASTER, HostId(1), header), &[]);
        world.flush();
    }
    world.run_to_end(seconds(10));
}

/// A packet with fewer pairs under a number that was used has no rest that could be sent on.
#[test]
fn another_packet_under_a_used_number_gets_no_answer() {
    let config = switch::Config { ways: 1, ..switch::Config::new(2, 1) };
    let mut program = Program::new(0, config);
    let token = Id64::new(5);
    let mut send = |src: HostId, body: Body, payload: &[u8]| {
        use rackweave_switch::system::SystemProgram;
        let message = reduce::Header { job: 1, attempt: 0, worker: 0, token, body };
        let mut packet = packet(src, SWITCH, message);
        let mut payloads = Slab::default();
        packet.header = packet.header.with_payload(payloads.insert(payload).unwrap());
        let _ = program.handle_packet(Time::ZERO, Port(0), message, &mut packet, &mut payloads);
        program.poll_transmit(Time::ZERO).map(|made| (made.header.body, made.payload.len()))
    };
    let open = Open {
        cookie: Id64::new(0),
        slots: 2,
        first_epoch: 0,
        window: 32,
        copies: 1,
        operator: Operator::Sum,
        workers: 1,
        rule: Rule::Exact,
    };
    let worker = HostId(7).0.to_be_bytes();
    let Some((Body::Challenge { cookie, .. }, _)) = send(MASTER, Body::Open(open), &worker) else {
        panic!("no challenge")
    };
    let open = Body::Open(Open { cookie, ..open });
    assert!(matches!(send(MASTER, open, &worker), Some((Body::Opened { slots: 2, .. }, _))));
    let data = |count: u8| Body::Data(PairFields { seq: 0, epoch: 0, count });
    let pairs: Vec<u8> = (1..=64_u8)
        .flat_map(|number| {
            let mut pair = [0; reduce::PAIR_BYTES];
            (pair[0], pair[19]) = (number, 1);
            pair
        })
        .collect();
    let first = send(HostId(7), data(64), &pairs);
    assert!(matches!(first, Some((Body::Residual(rest), _)) if rest.count == 62), "{first:?}");
    assert_eq!(send(HostId(7), data(64), &pairs), first);
    assert_eq!(send(HostId(7), data(1), &pairs[..reduce::PAIR_BYTES]), None);
}
