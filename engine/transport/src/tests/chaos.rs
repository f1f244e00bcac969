//! Under any schedule of loss, duplication, reordering, outages and restarts, each message is delivered once
//! and complete, or fails with a reason.
#![allow(
    missing_docs,
    reason = "the names of tests, and of what they are made of, say what they are"
)]

use proptest::prelude::*;
use rackweave_core::{Event, HostId, Kind, MessageId, Rate, Rng, Span, Time, Transport};

use super::Network;
use crate::testkit::{Fates, Faults, Schedule};

/// How a schedule treats a transport.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Whether half of the messages are requests; otherwise all are one-way messages.
    pub requests: bool,
    /// Whether losses are repaired, so that a message reported as sent has arrived.
    pub repairs: bool,
}

impl Plan {
    fn kind(self, kind: Kind) -> Kind {
        if self.requests { kind } else { Kind::OneWay }
    }
}

pub fn schedules() -> impl Strategy<Value = Schedule> {
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

/// Runs a schedule over hosts made by `new`, until all of them are `idle`.
pub fn run<T: Transport>(
    schedule: &Schedule,
    plan: Plan,
    new: impl Fn(HostId) -> T,
    idle: impl Fn(&T) -> bool,
) -> Result<(), TestCaseError> {
    let hosts = (0..schedule.hosts).map(|id| new(HostId(id))).collect();
    let (link, delay) = (Rate::from_gbps(10), Span::from_us(3));
    let mut network = Network::with_faults(hosts, link, delay, schedule.seed, schedule.faults);
    let mut rng = Rng::stream(schedule.seed, 0, 0, "schedule");
    let mut fates = Fates::new(plan.repairs);
    // Number of events checked so far.
    let mut seen = 0;
    let mut note = |fates: &mut Fates, network: &Network<T>| {
        let fresh = &network.events[seen..];
        seen += fresh.len();
        fresh.iter().try_for_each(|(_, host, event)| fates.record_event(*host, event))
    };
    let mut number = 0;
    for step in 0..16 {
        for _ in 0..schedule.messages_in(step) {
            number += 1;
            let id = MessageId::request(number);
            let (from, to, kind, bytes) = schedule.message(&mut rng);
            let kind = plan.kind(kind);
            network.submit(from, to, id, bytes, kind).expect("taken");
            fates.submitted(from, to, id, kind);
        }
        let host = rng.below(u64::from(schedule.hosts)) as u32;
        if schedule.restarts >> step & 1 == 1 {
            note(&mut fates, &network).map_err(TestCaseError::fail)?;
            network.restart(host, new(HostId(host)));
            fates.restarted(host);
        }
        network.set_down(host, schedule.outages >> step & 1 == 1);
        network.run_until(network.now() + Span::from_us(rng.below(4_000)));
        network.set_down(host, false);
    }
    // Homa's questions to a host that does not answer have pauses of up to 64 ticks.
    let everything_ended = network.run_until(Time::ZERO + Span::from_secs(120));
    prop_assert!(
        everything_ended,
        "after two minutes hosts still send packets or set timers\n{}",
        network.unended()
    );
    let told = |error| TestCaseError::fail(format!("{error}\n{}", network.unended()));
    note(&mut fates, &network).and_then(|()| fates.check()).map_err(told)?;
    for (host, machine) in network.hosts.iter().enumerate() {
        prop_assert!(idle(machine), "h{host} has no timer and still has state");
    }
    prop_assert!(
        network.nothing_arrives(),
        "a host has no timer and still has a part of a message: receivers give up a silent sender"
    );
    Ok(())
}

/// Faults of all kinds, of a few percent each, make no message fail.
pub fn moderate_faults_fail_nothing<T: Transport>(plan: Plan, new: impl Fn(HostId) -> T) {
    let hosts = (0..5).map(|id| new(HostId(id))).collect();
    let loss = if plan.repairs { 0.02 } else { 0.0 };
    let faults = Faults { loss, duplication: 0.02, reordering: 0.5, lateness: Span::from_us(50) };
    let (link, delay) = (Rate::from_gbps(10), Span::from_us(3));
    let mut network = Network::with_faults(hosts, link, delay, 1, faults);
    for n in 1..=400 {
        let (from, to) = (n as u32 % 5, (n as u32 + 1 + n as u32 / 5 % 4) % 5);
        let kind = plan.kind(if n % 2 == 0 { Kind::Request } else { Kind::OneWay });
        network.submit(from, to, MessageId::request(n), 1 + n * n / 2, kind).unwrap();
    }
    let is_quiet = network.run_until(Time::ZERO + Span::from_secs(60));
    network.assert_ended();
    assert!(is_quiet, "all messages have ended, and hosts still send packets or set timers");
    let mut delivered = 0;
    for (_, host, event) in &network.events {
        match event {
            Event::Delivered { .. } => delivered += 1,
            Event::Failed { peer, id, reason } => panic!(
                "message {id} between {host} and {peer} failed ({reason}): of a few percent of lost, late and doubled packets none may"
            ),
            Event::Sent { .. } | Event::Stream(_) => {}
        }
    }
    assert_eq!(delivered, 400 + if plan.requests { 200 } else { 0 });
}

/// Packets are delayed longer than all timers of senders, and less than receivers remember messages: nothing is
/// delivered twice.
pub fn late_packets_do_no_harm<T: Transport>(
    plan: Plan,
    new: impl Fn(HostId) -> T,
    idle: impl Fn(&T) -> bool,
    lateness: Span,
) {
    for seed in 0..20 {
        let faults = Faults { loss: 0.1, duplication: 0.3, reordering: 0.3, lateness };
        let schedule = Schedule {
            seed,
            hosts: 3,
            messages: 40,
            longest: 30_000,
            faults,
            restarts: 0,
            outages: 0,
        };
        run(&schedule, plan, &new, &idle).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// A peer disappears while messages are in progress: messages submitted to it fail once, and messages that it had
/// started are discarded. `held` counts a machine's state of messages and connections.
pub fn silent_peer<T: Transport>(
    plan: Plan,
    new: impl Fn(HostId) -> T,
    idle: impl Fn(&T) -> bool,
    held: impl Fn(&T) -> usize,
) {
    for gone_after_us in [0, 3, 10, 40, 200, 1_000] {
        let hosts = (0..2).map(|id| new(HostId(id))).collect();
        let mut network = Network::new(hosts, Rate::from_gbps(10), Span::from_us(3));
        network.respond = Some(|bytes| bytes / 2 + 1);
        for n in 1..=30 {
            let kind = plan.kind(if n % 2 == 0 { Kind::Request } else { Kind::OneWay });
            for from in 0..2 {
                let id = MessageId::request(n + 100 * u64::from(from));
                network.submit(from, 1 - from, id, n * 3_000, kind).expect("taken");
            }
        }
        network.run_until(Time::ZERO + Span::from_us(gone_after_us));
        network.set_down(1, true);
        assert!(held(&network.hosts[0]) > 0, "gone after {gone_after_us} us: it was too late");
        network.run_until(Time::ZERO + Span::from_secs(60));
        let gone = format!("a minute after h1 was gone ({gone_after_us} us after the start)");
        let unended = network.unended();
        assert!(idle(&network.hosts[0]), "{gone}, h0 is not idle\n{unended}");
        assert_eq!(held(&network.hosts[0]), 0, "messages that h0 holds {gone}\n{unended}");
        assert_eq!(network.hosts[0].poll_timeout(), None, "h0's timer {gone}");
        network.restart(1, new(HostId(1)));
        assert!(network.nothing_arrives(), "gone after {gone_after_us} us");
        for n in 1..=30 {
            let id = MessageId::request(n);
            let ends = network.events_at(0).filter(|event| match *event {
                Event::Sent { id: sent, .. } => sent == id && (n % 2 == 1 || !plan.requests),
                Event::Delivered { id: answer, .. } => answer == id.response(),
                Event::Failed { id: failed, .. } => failed == id,
                Event::Stream(_) => false,
            });
            assert_eq!(
                ends.count(),
                1,
                "events at h0 that end message {id} to h1, {gone}: a sender gives up a silent receiver once"
            );
        }
    }
}

/// A large number of hosts each start a message and then are silent: the machine's state stays below `most`,
/// and is empty after `patience`.
pub fn spoofed_sources<T: Transport>(
    new: impl Fn(HostId) -> T,
    held: impl Fn(&T) -> usize,
    most: usize,
    patience: Span,
) {
    let mut host = new(HostId(0));
    let mut now = Time::ZERO;
    for source in 1..=100_000 {
        now += Span::from_ns(100);
        let mut sender = new(HostId(source));
        let id = MessageId::request(1);
        let kind = if source % 2 == 0 { Kind::Request } else { Kind::OneWay };
        let mut message = rackweave_core::Submit { id, peer: HostId(0), bytes: 50_000, kind };
        if sender.submit(now, message).is_err() {
            message.kind = Kind::OneWay;
            sender.submit(now, message).expect("taken");
        }
        let first = sender.poll_transmit(now, 0).expect("a packet of a message that was submitted");
        let _ = host.handle_packet(now, 0, &first);
        drive(&mut host, now);
        assert!(held(&host) <= most, "{} after {source} sources", held(&host));
    }
    assert!(held(&host) > 0, "the first packets of messages have started none");
    let until = now + patience;
    run_timers(&mut host, now, until);
    assert_eq!(
        held(&host),
        0,
        "messages of silent senders that a receiver still holds after {patience}: each needs a timer (`Scheme::receiver_deadline`)"
    );
}

/// A flood of forged packets of all types: the machine stays within the bounds of `check`, and becomes idle
/// afterwards.
pub fn flood<T: Transport>(
    new: impl Fn(HostId) -> T,
    mut forge: impl FnMut(&mut Rng, HostId) -> rackweave_core::Packet<T::Header>,
    check: impl Fn(&T),
    held: impl Fn(&T) -> usize,
    patience: Span,
) {
    for (seed, sources) in [(1, 3), (2, 40), (3, 1 << 30)] {
        let mut rng = Rng::stream(seed, 0, 0, "chaos flood");
        let mut host = new(HostId(0));
        let mut now = Time::ZERO;
        for n in 0..20_000_u64 {
            now += Span::from_us(rng.below(40));
            if n % 50 == 0 {
                let (id, peer) = (MessageId::request(n), HostId(1 + rng.below(sources) as u32));
                let kind = if rng.chance(0.5) { Kind::Request } else { Kind::OneWay };
                let bytes = 1 + rng.below(50_000);
                let _ = host.submit(now, rackweave_core::Submit { id, peer, bytes, kind });
            }
            let from = HostId(1 + rng.below(sources) as u32);
            let packet = forge(&mut rng, from);
            let _ = host.handle_packet(now, 0, &packet);
            if host.poll_timeout().is_some_and(|at| at <= now) {
                host.handle_timeout(now);
            }
            while let Some(event) = host.poll_event() {
                // A host that accepts a forged request answers it.
                if let Event::Delivered { peer, id, kind: Kind::Request, .. } = event {
                    let kind = Kind::Response;
                    let id = id.response();
                    let _ = host.submit(now, rackweave_core::Submit { id, peer, bytes: 900, kind });
                }
            }
            for _ in 0..rng.below(3) {
                let _ = host.poll_transmit(now, 0);
            }
            if n % 100 == 0 {
                check(&host);
            }
        }
        let until = now + patience;
        run_timers(&mut host, now, until);
        check(&host);
        assert_eq!(
            held(&host),
            0,
            "messages that forged packets began, or met, and that are held after {patience} (seed {seed}): \
             each needs a timer, whatever a packet has said"
        );
    }
}

/// Drives a host after a packet; the application answers no request.
fn drive<T: Transport>(host: &mut T, now: Time) {
    if host.poll_timeout().is_some_and(|at| at <= now) {
        host.handle_timeout(now);
    }
    while host.poll_event().is_some() {}
    while host.poll_transmit(now, 0).is_some() {}
}

/// Advances the time without any packet until no timer is armed, or to `until`.
fn run_timers<T: Transport>(host: &mut T, mut now: Time, until: Time) {
    drive(host, now);
    while let Some(next) = host.poll_timeout()
        && next <= until
    {
        now = now.max(next);
        drive(host, now);
    }
}
