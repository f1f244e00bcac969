//! Under any faults of network and hosts, each receiver that stays gets every byte once and in order, or its session
//! fails with a reason. No state grows without bound, and every session ends.

use proptest::prelude::*;
use rackweave_core::{Rate, Span, Time};
use rackweave_wire::orca::{
    Body, Data, Gap, Label, Labelled, Parity, Place, Reason, Session, Status,
};

use super::super::network::{Action, App, Link, Network};
use super::super::{FlowConfig, Receiver, ReceiverEvent, Sender, SenderEvent, SlowPolicy};
use rackweave_core::HostId;

fn link() -> impl Strategy<Value = Link> {
    let rate = prop_oneof![Just(10_u64), Just(100), Just(1000), Just(10_000)];
    let buffer = 20_000_u64..600_000;
    let faults =
        (0_u64..200_000, 0_u64..200_000, 0_u64..300_000, 0_u64..20, 0_u64..3000, any::<bool>());
    (rate, buffer, 1_u64..2000, faults).prop_map(
        |(rate, buffer, delay, (lost, twice, late, late_by, noise, clean))| {
            let link = Link { buffer, delay: Span::from_us(delay), ..Link::new(rate) };
            if clean {
                return link;
            }
            let late_by = Span::from_ms(late_by);
            Link { lost, twice, late, late_by, noise: Span::from_us(noise), ..link }
        },
    )
}

#[derive(Clone, Debug)]
enum Fate {
    Stays,
    Crashes(u64),
    /// It crashes at this time, and is back after this time, with at most this many bytes.
    Returns(u64, u64, u64),
    Leaves(u64),
    Removed(u64),
    JoinsLate(u64),
    Changes(u64, u64),
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        4 => Just(Fate::Stays),
        1 => (0_u64..500).prop_map(Fate::Crashes),
        2 => (0_u64..500, 1_u64..1500, prop_oneof![Just(0_u64), 0_u64..3_000_000])
            .prop_map(|(at, after, keeps)| Fate::Returns(at, after, keeps)),
        1 => (0_u64..500).prop_map(Fate::Leaves),
        1 => (0_u64..500).prop_map(Fate::Removed),
        1 => (0_u64..500).prop_map(Fate::JoinsLate),
        1 => (0_u64..300, 10_u64..2000).prop_map(|(at, rate)| Fate::Changes(at, rate)),
    ]
}

fn app() -> impl Strategy<Value = App> {
    let takes = prop_oneof![3 => Just(None), 1 => (50_u64..2000).prop_map(Some)];
    (1_u64..3_000_000, takes).prop_map(|(room, takes)| App {
        room,
        takes: takes.map(|mbps| Rate(mbps * 1_000_000)),
        ..App::default()
    })
}

fn config() -> impl Strategy<Value = FlowConfig> {
    let slow = prop_oneof![
        Just(SlowPolicy::Wait),
        Just(FlowConfig::default().slow),
        Just(SlowPolicy::Drop { after: Span::from_ms(50), below_percent: 50 }),
    ];
    let max_rate = prop_oneof![3 => Just(None), 1 => (20_u64..500).prop_map(Some)];
    let fec = prop_oneof![1 => Just(0_u8), 2 => Just(64), 2 => 1_u8..=64];
    (100_u16..1400, 50_000_u64..4_000_000, slow, max_rate, 4_u16..100, fec).prop_map(
        |(payload, window, slow, max_rate, max_gaps, fec_block)| FlowConfig {
            payload,
            window,
            slow,
            max_gaps,
            fec_block,
            max_rate: max_rate.map(|mbps| Rate(mbps * 1_000_000)),
            ..FlowConfig::default()
        },
    )
}

fn ms(n: u64) -> Time {
    Time::ZERO + Span::from_ms(n)
}

/// Runs until no receiver has made progress for longer than any patience: over a path that loses an eighth of its packets a stream takes
/// minutes, but never stands still.
fn run_to_the_end(net: &mut Network, mut now_ms: u64) {
    let read = |net: &Network| net.ends.iter().map(|end| end.read).sum::<u64>();
    let mut before = None;
    while before != Some(read(net)) {
        before = Some(read(net));
        now_ms += 12_000;
        net.run(ms(now_ms));
        net.check_bounds();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, ..rackweave_testing::cases(96)
    })]

    #[test]
    fn receivers_that_stay_get_every_byte(
        seed in any::<u64>(),
        config in config(),
        mbps in prop_oneof![Just(100_u64), Just(1000), Just(10_000)],
        ends in prop::collection::vec((link(), app(), fate()), 1..7),
        agents in prop_oneof![Just(None), Just(Some(Span::from_ms(1)))],
        writes in prop::collection::vec((0_u64..300, 0_u64..700_000), 1..5),
    ) {
        let mut net = Network::new(seed, mbps, config);
        net.agents = agents;
        net.source(None);
        net.sources[0].keeps_all = true;
        net.sources[0].machine.set_readable_from(0);
        let mut total = 0;
        for (after, bytes) in &writes {
            total += bytes;
            net.at(ms(*after), Action::Offer(total));
        }
        let last = writes.iter().map(|write| write.0).max().unwrap_or(0);
        net.at(ms(last + 1), Action::Finish);
        for (link, app, fate) in &ends {
            let end = net.end(0, *link, *app);
            match fate {
                Fate::JoinsLate(at) => net.at(ms(*at), Action::Join(end)),
                _ => net.invite(end),
            }
            match fate {
                Fate::Crashes(at) => net.at(ms(*at), Action::Crash(end)),
                Fate::Returns(at, after, keeps) => {
                    net.at(ms(*at), Action::Crash(end));
                    net.at(ms(*at + *after), Action::Return(end, *keeps));
                }
                Fate::Leaves(at) => net.at(ms(*at), Action::Leave(end, Reason::Refused)),
                Fate::Removed(at) => net.at(ms(*at), Action::Remove(end)),
                Fate::Changes(at, rate) => net.at(ms(*at), Action::SetRate(end, Rate(rate * 1_000_000))),
                Fate::Stays | Fate::JoinsLate(_) => {}
            }
        }
        for step in 1..=40 {
            net.run(ms(step * step * 60));
            net.check_bounds();
        }
        run_to_the_end(&mut net, 40 * 40 * 60);
        for (number, (_, _, fate)) in ends.iter().enumerate() {
            let end = &net.ends[number];
            let lost = net.sources[0].events.iter().find_map(|(_, event)| match event {
                SenderEvent::Lost { host, reason } if *host == end.host => Some(*reason),
                _ => None,
            });
            let drops = matches!(config.slow, SlowPolicy::Drop { .. });
            match fate {
                Fate::Stays | Fate::Changes(..) if !drops => {
                    prop_assert_eq!(lost, None, "receiver {}", number);
                    prop_assert!(end.ended.is_some() && end.closed.is_some(), "receiver {}", number);
                    prop_assert_eq!(end.read, total);
                }
                Fate::Returns(..) => {
                    prop_assert_ne!(lost, Some(Reason::TooLate), "receiver {}", number);
                    // Without it, the session may have ended before it was back.
                    prop_assert!(end.ended.is_some() || end.failed.is_some(), "receiver {}", number);
                    prop_assert!(end.ended.is_none() || end.read == total, "receiver {}", number);
                }
                Fate::Crashes(_) => prop_assert!(lost.is_some() || end.ended.is_some()),
                _ => {
                    let over = end.failed.is_some() || end.closed.is_some();
                    prop_assert!(over || !end.joined, "{:?} of receiver {} is left without an answer", fate, number);
                }
            }
        }
        let over = net.sources[0].events.iter().filter(|(_, event)| {
            matches!(event, SenderEvent::Finished | SenderEvent::Failed { .. })
        });
        let invited = ends.iter().any(|(_, _, fate)| !matches!(fate, Fate::JoinsLate(_)));
        if invited {
            prop_assert_eq!(over.count(), 1);
            prop_assert!(net.sources[0].machine.is_over());
            prop_assert_eq!(net.sources[0].machine.poll_timeout(), None);
        }
    }

    /// Arbitrary packets neither stop the machines nor make them grow.
    #[test]
    fn arbitrary_packets_are_handled(
        steps in prop::collection::vec((any::<(u64, u64, u64, u32)>(), 0_u8..12, 0_u64..50), 1..300),
        via_agent in any::<bool>(),
    ) {
        let config = FlowConfig { window: 300_000, max_gaps: 8, ..FlowConfig::default() };
        let mut now = Time::ZERO;
        let session = Session(1);
        let mut sender = Sender::new(now, session, 7, via_agent, config);
        let place = |n: u64| Place { rack: (n % 3) as u16, port: n as u8 };
        for host in 0..5_u32 {
            sender.invite(now, HostId(host), place(u64::from(host)));
        }
        sender.offer(now, 2_000_000);
        let mut receiver = Receiver::new(now, session, 1, 7, HostId(9), place(3), 0, 100_000, via_agent, config);
        for ((a, b, c, d), kind, wait) in steps {
            now += Span::from_us(wait * wait);
            let small = |x: u64| if d % 3 == 0 { x } else { x % 2_500_000 };
            let gap = Gap { offset: small(b), len: small(c) as u32, who: a };
            let status = Status {
                rack: (d % 3) as u16, who: a, have: small(b), slowest: c as u8, seen: small(c),
                held_us: d, limit: small(b).saturating_add(100_000), gaps: [gap; 3],
            };
            let body = match kind {
                0..=2 => Body::Status(status),
                3 => Body::Join { incarnation: 1, stream: 7, place: place(c), at: small(b), limit: small(a) },
                4 => Body::Complete { place: place(c) },
                5 => Body::Bye { reason: Reason::Left },
                6 => Body::End { length: small(b) },
                7 => Body::Mode { detached: d % 2 == 0 },
                8 => Body::Invite { stream: 7, place: place(c), payload: d as u16, via_agent },
                9 => { sender.finish(now); Body::Destroy }
                _ => Body::Create,
            };
            sender.handle_control(now, HostId(d % 7), &body);
            receiver.handle_control(now, &body);
            let data = Data {
                labelled: Labelled::Host, label: Label(0), session, offset: small(a) , len: d as u16,
                repair: kind > 6, end: kind == 11 && d % 5 == 0, parity: None,
            };
            let _ = receiver.handle_data(now, &data);
            let said = Parity { index: b as u8, data: c as u8, parity: (d >> 8) as u8, last: a as u16 };
            let near = Parity { index: b as u8 % 32, data: c as u8 % 65, parity: 32, last: a as u16 % 1401 };
            let parity = Some(if d % 3 == 0 { said } else { near });
            let (offset, len) = (data.offset / 89_600 * 89_600, if d % 7 == 0 { data.len } else { 1400 });
            let _ = receiver.handle_data(now, &Data { offset, len, parity, ..data });
            receiver.consume(now, small(c));
            sender.handle_timeout(now);
            receiver.handle_timeout(now);
            while sender.poll_event().is_some() {}
            while let Some(event) = receiver.poll_event() {
                if let ReceiverEvent::Recover(recovery) = event {
                    prop_assert!(recovery.missing.count_ones() <= recovery.parities.count_ones());
                    receiver.recovered(now, recovery.block, d % 2 == 0);
                }
            }
            // No recovery was requested.
            receiver.recovered(now, offset, true);
            let mut polls = 0;
            while sender.poll(now).is_some() {
                polls += 1;
                prop_assert!(polls < 10_000);
            }
            polls = 0;
            while receiver.poll(now).is_some() {
                polls += 1;
                prop_assert!(polls < 20);
            }
            sender.check_bounds();
            receiver.check_bounds();
            prop_assert!(sender.poll_timeout().is_none_or(|at| at > now));
            prop_assert!(receiver.poll_timeout().is_none_or(|at| at > now));
        }
    }
}

/// A receiver has had every byte, and is restarted with none of them. The sender repeats `End` until it hears that the
/// receiver is complete. `End` arrives before the sender accepts that it joins again: the receiver stops joining, and
/// reports what the sender does not expect.
#[test]
fn a_receiver_that_is_restarted_behind_the_last_byte_is_invited_again() {
    let config = FlowConfig {
        payload: 785,
        window: 401_928,
        max_gaps: 30,
        slow: SlowPolicy::Wait,
        ..FlowConfig::default()
    };
    // The seed is one with which `End` comes first.
    let mut net = Network::new(10_367_760_718_018_098_286, 100, config);
    net.agents = Some(Span::from_ms(1));
    net.source(None);
    net.sources[0].keeps_all = true;
    net.sources[0].machine.set_readable_from(0);
    let total = 695_818;
    net.at(ms(30), Action::Offer(total));
    net.at(ms(235), Action::Finish);
    let clean = Link { buffer: 20_000, delay: Span::from_us(49), ..Link::new(100) };
    let lossy = Link {
        buffer: 145_714,
        delay: Span::from_us(1325),
        lost: 62_406,
        twice: 54_779,
        late: 78_327,
        late_by: Span::from_ms(13),
        noise: Span::from_us(2931),
        ..Link::new(100)
    };
    let restarted = net.end(0, clean, App { room: 17_270, ..App::default() });
    let other = net.end(0, lossy, App { room: 2_909_831, ..App::default() });
    net.invite(restarted);
    net.invite(other);
    net.at(ms(163), Action::Crash(restarted));
    net.at(ms(516), Action::Return(restarted, 0));
    net.run(ms(5000));
    for end in [restarted, other] {
        assert!(net.ends[end].ended.is_some() && net.ends[end].closed.is_some(), "{end}");
        assert_eq!(net.ends[end].read, total);
    }
}

/// Behind an agent the reports show the slowest receiver of the rack. A receiver that is restarted to a position between that one's and
/// its own joins again at a byte that the sender does not know it to have had, as one would that repeats its `Join`.
#[test]
fn a_receiver_that_is_restarted_behind_an_agent_gets_what_it_lost() {
    let config = FlowConfig {
        payload: 100,
        window: 194_100,
        max_gaps: 5,
        fec_block: 18,
        ..FlowConfig::default()
    };
    let mut net = Network::new(4_132_576_400_318_244_313, 1000, config);
    net.agents = Some(Span::from_ms(1));
    net.source(None);
    net.sources[0].keeps_all = true;
    net.sources[0].machine.set_readable_from(0);
    let total = 92_951;
    net.at(ms(1), Action::Offer(total));
    net.at(ms(2), Action::Finish);
    let fast = Link { buffer: 20_000, delay: Span::from_us(226), ..Link::new(1000) };
    let slow = Link { buffer: 20_274, delay: Span::from_us(1), lost: 15_271, ..Link::new(10) };
    let restarted = net.end(0, fast, App { room: 63_900, ..App::default() });
    let other = net.end(0, slow, App { room: 83_050, ..App::default() });
    net.invite(restarted);
    net.invite(other);
    net.at(ms(28), Action::Crash(restarted));
    net.at(ms(31), Action::Return(restarted, 16_000));
    net.run(ms(5000));
    for end in [restarted, other] {
        assert!(net.ends[end].ended.is_some() && net.ends[end].closed.is_some(), "{end}");
        assert_eq!(net.ends[end].read, total);
    }
}
