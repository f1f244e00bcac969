//! Any schedule of loss, duplication, reordering, outages and restarts: each message is delivered
//! once and whole, or fails with a reason.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use rackweave_core::{Event, Kind, MessageId, Rng, Span};

use super::{Host, HostId, PROFILES, at, id, network, profile};
use crate::testkit::Faults;

/// What a message's sender was told in the end.
#[derive(Debug, Default)]
struct Fate {
    sent: u32,
    answered: u32,
    failed: u32,
    delivered: u32,
}

#[derive(Clone, Debug)]
struct Schedule {
    seed: u64,
    profile: usize,
    hosts: u32,
    messages: u64,
    longest: u64,
    faults: Faults,
    /// Of 16 steps, which restart a host or cut it off.
    restarts: u16,
    outages: u16,
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let faults = (0.0..0.4, 0.0..0.4, 0.0..0.9, 0_u64..3_000).prop_map(
        |(loss, duplication, reordering, us)| Faults {
            loss,
            duplication,
            reordering,
            lateness: Span::from_us(us),
        },
    );
    let size = (2_u32..5, 1_u64..40, 1_u64..60_000);
    (any::<u64>(), 0..PROFILES, size, faults, any::<u16>(), any::<u16>(), any::<u16>()).prop_map(
        |(seed, profile, (hosts, messages, longest), faults, restarts, outages, rare)| Schedule {
            seed,
            profile,
            hosts,
            messages,
            longest,
            faults,
            restarts: restarts & outages & rare,
            outages: outages & !restarts & rare,
        },
    )
}

fn run(schedule: &Schedule) -> Result<(), TestCaseError> {
    let config = profile(schedule.profile);
    let shared = Arc::new(config.clone());
    let mut network = network(&config, schedule.hosts, Span::from_us(3));
    network.keep_packets = false;
    network.faults = schedule.faults;
    let mut rng = Rng::stream(schedule.seed, 0, 0, "schedule");
    let mut submitted = BTreeMap::<(u32, u32, MessageId), Kind>::new();
    let mut restarted = vec![false; schedule.hosts as usize];
    let mut number = 0;
    for step in 0..16 {
        for _ in 0..schedule.messages / 16 + u64::from(step < schedule.messages % 16) {
            number += 1;
            let from = rng.below(u64::from(schedule.hosts)) as u32;
            let to = (from + 1 + rng.below(u64::from(schedule.hosts - 1)) as u32) % schedule.hosts;
            let kind = if rng.chance(0.5) { Kind::Request } else { Kind::OneWay };
            let bytes = 1 + rng.below(schedule.longest);
            network.submit(from, to, id(number), bytes, kind).expect("taken");
            submitted.insert((from, to, id(number)), kind);
        }
        let host = rng.below(u64::from(schedule.hosts)) as u32;
        if schedule.restarts >> step & 1 == 1 {
            network.restart(host, Host::new(HostId(host), Arc::clone(&shared)));
            restarted[host as usize] = true;
        }
        let out = schedule.outages >> step & 1 == 1;
        network.set_down(host, out);
        network.run_until(network.now() + Span::from_us(rng.below(4_000)));
        network.set_down(host, false);
    }
    let everything_ended = network.run_until(at(Span::from_secs(30)));
    prop_assert!(everything_ended, "the hosts go on and on");
    prop_assert!(network.hosts.iter().all(Host::is_idle));
    for host in &network.hosts {
        host.check_bounds();
    }

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
        prop_assert!(ended <= 1, "{from}>{to} {id}: {fate:?}");
        prop_assert!(ended == 1 || restarted[from as usize], "{from}>{to} {id}: {fate:?}");
        if fate.answered + fate.sent > 0 {
            prop_assert!(fate.delivered > 0, "{from}>{to} {id}: {fate:?}");
        }
        // The kit has checked that no incarnation of the receiver had it twice.
        prop_assert!(fate.delivered <= 1 || restarted[to as usize], "{from}>{to} {id}: {fate:?}");
    }
    Ok(())
}

proptest! {
    #[test]
    fn each_message_arrives_once_or_fails(schedule in schedule()) {
        run(&schedule)?;
    }
}

#[test]
fn moderate_loss_fails_nothing() {
    for number in 0..PROFILES {
        let mut network = network(&profile(number), 5, Span::from_us(3));
        network.faults =
            Faults { loss: 0.02, duplication: 0.02, reordering: 0.5, lateness: Span::from_us(50) };
        for n in 1..=400 {
            let (from, to) = (n as u32 % 5, (n as u32 + 1 + n as u32 / 5 % 4) % 5);
            let kind = if n % 2 == 0 { Kind::Request } else { Kind::OneWay };
            network.submit(from, to, id(n), 1 + n * n / 2, kind).unwrap();
        }
        assert!(network.run_until(at(Span::from_secs(60))));
        let failed = |(.., event): &&(_, _, Event)| matches!(event, Event::Failed { .. });
        assert_eq!(network.events.iter().filter(failed).count(), 0);
        let delivered = |(.., event): &&(_, _, Event)| matches!(event, Event::Delivered { .. });
        assert_eq!(network.events.iter().filter(delivered).count(), 600);
    }
}
