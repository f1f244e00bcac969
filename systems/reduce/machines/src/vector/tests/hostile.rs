//! Neighbours that forge messages.

use proptest::prelude::*;
use rackweave_wire::Id64;
use rackweave_wire::reduce::{self, Body, Chunk, OpenVector, Phase};

use super::*;
use crate::packet::packet;

const STRANGER: HostId = HostId(40);

fn bodies() -> impl Strategy<Value = Body> {
    let chunk = (0_u64..400, 0_u16..17, any::<u8>(), any::<bool>(), 0_u32..2).prop_map(
        |(number, count, exponent, is_float, tag)| {
            let format = if is_float { Format::BlockFloat } else { Format::I64 };
            Chunk { number: Id64::new(number), count, exponent, format, tag }
        },
    );
    let open = (any::<u64>(), 1_u16..1025, 1_u16..170, 1_u8..65).prop_map(
        |(cookie, pool, elements, workers)| OpenVector {
            cookie: Id64::new(cookie),
            pool,
            elements,
            format: Format::I64,
            workers,
        },
    );
    prop_oneof![
        chunk.clone().prop_map(Body::Chunk),
        chunk.prop_map(Body::ChunkSum),
        open.prop_map(Body::OpenVector),
        (any::<u64>(), any::<u64>()).prop_map(|(number, missing)| Body::Waiting {
            number: Id64::new(number % 400),
            missing: Id64::new(missing)
        }),
        (any::<u32>(), any::<u64>()).prop_map(|(instance, cookie)| Body::JoinVector {
            instance,
            cookie: Id64::new(cookie),
            digest: Id64::new(cookie >> 1),
        }),
        (0_u32..10, 0_u32..10, 0_u8..5).prop_map(|(version, instance, phase)| {
            let phases = [Phase::Run, Phase::Done, Phase::Failed, Phase::Quiesce, Phase::Wait];
            Body::VectorState { version, instance, phase: phases[usize::from(phase)] }
        }),
        (0_u32..10, any::<u64>(), any::<bool>(), any::<bool>()).prop_map(
            |(version, low, is_known, has_offer)| Body::VectorProgress {
                version,
                low: Id64::new(low),
                is_known,
                has_offer,
            }
        ),
        (any::<u32>(), any::<u32>()).prop_map(|(slots, instance)| Body::Opened { slots, instance }),
        Just(Body::Refused { reason: reduce::Refusal::Full }),
        Just(Body::Close),
        Just(Body::Unknown),
    ]
}

const fn address(number: u32) -> HostId {
    if number == 5 { SWITCH } else { HostId(number) }
}

fn job(seed: u64) -> Job {
    Job { seed, ..Job::new(4, vectors(500, Format::BlockFloat)) }
}

proptest! {
    #![proptest_config(rackweave_testing::cases(64))]

    /// A neighbour that does not know the token changes nothing, whatever it sends and whoever it claims to be.
    #[test]
    fn without_the_token_messages_change_nothing(
        seed in any::<u64>(),
        forged in prop::collection::vec(
            (0_u64..2_000, bodies(), 0_u32..6, 0_u32..6, 0_u16..3, 0_u8..5, any::<u64>()),
            0..200,
        ),
    ) {
        let faults = Faults { delay: Span::from_us(50), ..Faults::default() };
        let mut world = World::new(job(seed), faults);
        for (at_us, body, src, dst, attempt, worker, token) in forged {
            // A master's state to a worker that has not joined carries no secret yet but the worker's instance, which the
            // neighbour does not know.
            if matches!(body, Body::VectorState { .. }) {
                continue;
            }
            let token = Id64::new(token);
            let header = reduce::Header { job: JOB, attempt, worker, token, body };
            let payload = vec![0x5a; header.payload_len() as usize];
            let packet = packet(address(src), address(dst), header);
            world.flights.push(Time::ZERO + Span::from_us(at_us), Flight::Packet(packet, payload));
        }
        world.run_to_end(seconds(60));
        prop_assert_eq!(world.master().attempt(), 0);
    }

    /// Even with the token no message makes a machine panic or its memory grow.
    #[test]
    fn no_message_panics(
        forged in prop::collection::vec((bodies(), 0_u32..6, 0_u32..6, 0_u16..2, 0_u8..5), 0..300),
    ) {
        let mut world = World::new(job(1), Faults::default());
        world.run(Time::ZERO + Span::from_us(100));
        // What is forged with the token may well end in wrong sums.
        world.job.seed = 1;
        for (body, src, dst, attempt, worker) in forged {
            let header = reduce::Header { job: JOB, attempt, worker, token: Id64::new(TOKEN), body };
            let payload = vec![0x5a; header.payload_len() as usize];
            let to = address(dst);
            if to == SWITCH {
                world.deliver(packet(address(src), to, header), &payload);
                continue;
            }
            let host = to.0 as usize;
            world.nodes[host].receive(world.now, address(src), &header, &payload);
            while let Some(side) = world.nodes[host].worker_mut()
                && let Some(event) = side.poll_event()
            {
                if let Event::Wanted { step } = event {
                    side.offer(step, world.job.vector(0, step));
                }
            }
            while world.nodes[host].poll(world.now).is_some() {}
        }
        prop_assert!(world.switch.as_ref().unwrap().program().jobs() <= 1);
    }
}

#[test]
fn a_stranger_gets_no_slots_without_proving_its_address() {
    let mut world = World::new(job(1), Faults::default());
    world.down.resize(41, true);
    let cookie = Id64::new(0);
    let open = OpenVector { cookie, pool: 8, elements: 16, format: Format::I64, workers: 1 };
    for job in 0..1_000 {
        let (token, body) = (Id64::new(5), Body::OpenVector(open));
        let header = reduce::Header { job, attempt: 0, worker: 0, token, body };
        world.deliver(packet(STRANGER, SWITCH, header), &[0; 4]);
    }
    assert_eq!(world.switch.as_ref().unwrap().program().jobs(), 0);
}

/// The room at a master's host is that of its own job: not even a question for the cookie is answered.
#[test]
fn a_master_adds_up_for_no_other_master() {
    let mut world = World::new(Job { has_switch: false, ..job(3) }, Faults::default());
    let cookie = Id64::new(0);
    let open = OpenVector { cookie, pool: 64, elements: 16, format: Format::I64, workers: 1 };
    let (attempt, worker, token, body) = (0, 0, Id64::new(7), Body::OpenVector(open));
    let header = reduce::Header { job: JOB, attempt, worker, token, body };
    let node = &mut world.nodes[MASTER.0 as usize];
    assert!(node.master().is_some() && node.aggregator().is_some());
    node.receive(Time::ZERO, STRANGER, &header, &STRANGER.0.to_be_bytes());
    while let Some((to, answer)) = node.poll(Time::ZERO) {
        assert_ne!(to, STRANGER, "{answer:?}");
    }
    world.run_to_end(seconds(10));
}
