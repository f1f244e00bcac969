//! Any schedule of loss, duplication, reordering, outages and restarts: each message is delivered
//! once and whole, or fails with a reason.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rackweave_core::{Event, HostId, Kind, MessageId, Rate, Rng, Span, Time, Transport};

use crate::testkit::{Faults, Network};

/// What a message's sender was told in the end.
#[derive(Debug, Default)]
struct Fate {
    sent: u32,
    answered: u32,
    failed: u32,
    delivered: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    seed: u64,
    hosts: u32,
    messages: u64,
    longest: u64,
    faults: Faults,
    /// Of 16 steps, which restart a host or cut it off.
    restarts: u16,
    outages: u16,
}

pub(crate) fn schedules() -> impl Strategy<Value = Schedule> {
    let faults = (0.0..0.4, 0.0..0.4, 0.0..0.9, 0_u64..3_000).prop_map(
        |(loss, duplication, reordering, us)| Faults {
            loss,
            duplication,
            reordering,
            lateness: Span::from_us(us),
        },
    );
    let size = (2_u32..5, 1_u64..40, 1_u64..60_000);
    (any::<u64>(), size, faults, any::<u16>(), any::<u16>(), any::<u16>()).prop_map(
        |(seed, (hosts, messages, longest), faults, restarts, outages, rare)| Schedule {
            seed,
            hosts,
            messages,
            longest,
            faults,
            restarts: restarts & outages & rare,
            outages: outages & !restarts & rare,
        },
    )
}

/// Runs a schedule over hosts that `new` makes, until all of them are `idle`.
pub(crate) fn run<T: Transport>(
    schedule: &Schedule,
    new: impl Fn(HostId) -> T,
    idle: impl Fn(&T) -> bool,
) -> Result<(), TestCaseError> {
    let hosts = (0..schedule.hosts).map(|id| new(HostId(id))).collect();
    let mut network = Network::new(hosts, Rate::from_gbps(10), Span::from_us(3), schedule.seed);
    network.faults = schedule.faults;
    let mut rng = Rng::stream(schedule.seed, 0, 0, "schedule");
    let mut submitted = BTreeMap::<(u32, u32, MessageId), Kind>::new();
    let mut restarted = vec![false; schedule.hosts as usize];
    let mut number = 0;
    for step in 0..16 {
        for _ in 0..schedule.messages / 16 + u64::from(step < schedule.messages % 16) {
            number += 1;
            let id = MessageId::request(number);
            let from = rng.below(u64::from(schedule.hosts)) as u32;
            let to = (from + 1 + rng.below(u64::from(schedule.hosts - 1)) as u32) % schedule.hosts;
            let kind = if rng.chance(0.5) { Kind::Request } else { Kind::OneWay };
            let bytes = 1 + rng.below(schedule.longest);
            network.submit(from, to, id, bytes, kind).expect("taken");
            submitted.insert((from, to, id), kind);
        }
        let host = rng.below(u64::from(schedule.hosts)) as u32;
        if schedule.restarts >> step & 1 == 1 {
            network.restart(host, new(HostId(host)));
            restarted[host as usize] = true;
        }
        network.set_down(host, schedule.outages >> step & 1 == 1);
        network.run_until(network.now() + Span::from_us(rng.below(4_000)));
        network.set_down(host, false);
    }
    let everything_ended = network.run_until(Time::ZERO + Span::from_secs(60));
    prop_assert!(everything_ended, "the hosts go on and on");
    prop_assert!(network.hosts.iter().all(idle));

    let mut fates = BTreeMap::<_, Fate>::new();
    for (_, host, event) in &network.events {
        match *event {
            Event::Delivered { peer, id, kind: Kind::Response, .. } => {
                fates.entry((host.0, peer.0, MessageId(id.0 ^ 1))).or_default().answered += 1;
            }
            Event::Delivered { peer, id, kind, .. } => {
                prop_assert_eq!(submitted.get(&(peer.0, host.0, id)), Some(&kind));
                fates.entry((peer.0, host.0, id)).or_default().delivered += 1;
            }
            Event::Sent { peer, id } if !id.is_response() => {
                fates.entry((host.0, peer.0, id)).or_default().sent += 1;
            }
            Event::Failed { peer, id, .. } if submitted.contains_key(&(host.0, peer.0, id)) => {
                fates.entry((host.0, peer.0, id)).or_default().failed += 1;
            }
            Event::Sent { .. } | Event::Failed { .. } | Event::Stream(_) => {}
        }
    }
    for ((from, to, id), kind) in submitted {
        let fate = fates.entry((from, to, id)).or_default();
        let ended = match kind {
            Kind::Request => fate.answered + fate.failed,
            _ => fate.sent + fate.failed,
        };
        prop_assert!(ended <= 1 && fate.sent <= 1, "{from}>{to} {id}: {fate:?}");
        prop_assert!(ended == 1 || restarted[from as usize], "{from}>{to} {id}: {fate:?}");
        if fate.answered + fate.sent > 0 {
            prop_assert!(fate.delivered > 0, "{from}>{to} {id}: {fate:?}");
        }
        // The kit has checked that no incarnation of the receiver had it twice.
        prop_assert!(fate.delivered <= 1 || restarted[to as usize], "{from}>{to} {id}: {fate:?}");
    }
    Ok(())
}

/// A few percent of everything going wrong fails no message.
pub(crate) fn moderate_faults_fail_nothing<T: Transport>(new: impl Fn(HostId) -> T) {
    let hosts = (0..5).map(|id| new(HostId(id))).collect();
    let mut network = Network::new(hosts, Rate::from_gbps(10), Span::from_us(3), 1);
    network.faults =
        Faults { loss: 0.02, duplication: 0.02, reordering: 0.5, lateness: Span::from_us(50) };
    for n in 1..=400 {
        let (from, to) = (n as u32 % 5, (n as u32 + 1 + n as u32 / 5 % 4) % 5);
        let kind = if n % 2 == 0 { Kind::Request } else { Kind::OneWay };
        network.submit(from, to, MessageId::request(n), 1 + n * n / 2, kind).unwrap();
    }
    assert!(network.run_until(Time::ZERO + Span::from_secs(10)));
    let mut delivered = 0;
    for (_, host, event) in &network.events {
        match event {
            Event::Delivered { .. } => delivered += 1,
            Event::Failed { .. } => panic!("{host}: {event:?}"),
            Event::Sent { .. } | Event::Stream(_) => {}
        }
    }
    assert_eq!(delivered, 400 + 200);
}
