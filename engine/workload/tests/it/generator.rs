//! The senders, receivers and times of each pattern.

use core::ops::Range;

use proptest::prelude::*;
use rackweave_core::{HostId, Rate, Span, Time};
use rackweave_workload::{
    Arrival, Exchange, Generator, HostGenerator, LoadCounts, Pattern, SizeDist, WorkloadConfig,
    WorkloadError,
};

const GAP: Span = Span::from_us(10);

fn sizes() -> SizeDist {
    SizeDist::named("W4").unwrap()
}

fn open_loop() -> WorkloadConfig {
    let pattern = Pattern::OpenLoop { sizes: sizes(), load: 0.8, counts: LoadCounts::Wire };
    WorkloadConfig::new(pattern)
}

fn closed_loop(outstanding: u32) -> WorkloadConfig {
    let think = Span::from_us(1);
    WorkloadConfig::new(Pattern::ClosedLoop {
        sizes: sizes(),
        outstanding,
        think,
        ramp: Span::ZERO,
    })
}

fn incast(senders: Option<u32>, messages_per_sender: u64, spread: Span) -> WorkloadConfig {
    WorkloadConfig::new(Pattern::Incast {
        senders,
        receiver: HostId(2),
        sizes: sizes(),
        messages_per_sender,
        at: Span::from_us(5),
        spread,
    })
}

fn permutation(messages_per_host: u64) -> WorkloadConfig {
    WorkloadConfig::new(Pattern::Permutation { sizes: sizes(), messages_per_host })
}

fn all_to_all(messages_per_pair: u64) -> WorkloadConfig {
    WorkloadConfig::new(Pattern::AllToAll { sizes: sizes(), messages_per_pair })
}

fn generator(config: &WorkloadConfig, hosts: u32) -> Generator {
    Generator::new(config, hosts, Some(GAP), 1, 0, 0).unwrap()
}

fn refused(config: &WorkloadConfig, hosts: u32) -> String {
    Generator::new(config, hosts, Some(GAP), 1, 0, 0).unwrap_err().to_string()
}

/// Returns the next messages of a host, at most `limit`.
fn drain(generator: &mut Generator, host: u32, limit: usize) -> Vec<Arrival> {
    std::iter::from_fn(|| generator.next(HostId(host))).take(limit).collect()
}

#[test]
fn poisson_gaps_have_their_mean_and_variance() {
    let mut generator = generator(&open_loop(), 4);
    let n = 100_000;
    let times: Vec<f64> = drain(&mut generator, 1, n).iter().map(|m| m.at.as_ps() as f64).collect();
    let gaps: Vec<f64> =
        times.windows(2).map(|pair| (pair[1] - pair[0]) / GAP.as_ps() as f64).collect();
    let count = gaps.len() as f64;
    let mean = gaps.iter().sum::<f64>() / count;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / count;
    // The gaps are exponential, in units of their mean; the bound is four standard errors.
    assert!((mean - 1.0).abs() < 4.0 / count.sqrt(), "{mean}");
    assert!((variance - 1.0).abs() < 4.0 * (8.0 / count).sqrt(), "{variance}");
    // The process is memoryless: a gap is uncorrelated with the next one.
    let products = gaps.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean));
    let correlation = products.sum::<f64>() / count / variance;
    assert!(correlation.abs() < 4.0 / count.sqrt(), "{correlation}");
}

#[test]
fn destinations_are_uniform_among_the_others() {
    let mut generator = generator(&open_loop(), 8);
    let mut counts = [0_u32; 8];
    for message in drain(&mut generator, 3, 70_000) {
        counts[message.dst.0 as usize] += 1;
    }
    assert_eq!(counts[3], 0);
    let others = counts.iter().enumerate().filter(|(i, _)| *i != 3);
    assert!(others.into_iter().all(|(_, c)| (9_600..10_400).contains(c)), "{counts:?}");
}

#[test]
fn same_seed_same_messages() {
    let draw = |seed, run, stream| {
        let mut generator = Generator::new(&open_loop(), 4, Some(GAP), seed, run, stream).unwrap();
        drain(&mut generator, 2, 100)
    };
    assert_eq!(draw(1, 0, 0), draw(1, 0, 0));
    for other in [draw(2, 0, 0), draw(1, 1, 0), draw(1, 0, 1)] {
        assert_ne!(draw(1, 0, 0), other);
    }
}

/// The values are fixed: a change of them would change every result and must not go unnoticed.
#[test]
fn messages_are_portable() {
    let drawn = drain(&mut generator(&open_loop(), 4), 2, 3);
    let drawn: Vec<_> = drawn.iter().map(|m| (m.at.as_ps(), m.dst.0, m.bytes)).collect();
    assert_eq!(drawn, [(1_125_130, 3, 189_618), (44_247_440, 0, 671), (47_039_040, 0, 491)]);
}

#[test]
fn hosts_do_not_disturb_each_other() {
    let mut single = generator(&open_loop(), 4);
    let single = drain(&mut single, 2, 100);
    let mut among = generator(&open_loop(), 4);
    let among: Vec<_> = (0..100)
        .map(|_| {
            (0..2).for_each(|host| assert!(among.next(HostId(host)).is_some()));
            among.next(HostId(2)).unwrap()
        })
        .collect();
    assert_eq!(single, among);
    // With more hosts, destinations change, but times and sizes do not.
    let mut more = generator(&open_loop(), 400);
    let more = drain(&mut more, 2, 100);
    let times = |messages: &[Arrival]| messages.iter().map(|m| (m.at, m.bytes)).collect::<Vec<_>>();
    assert_eq!(times(&single), times(&more));
    // Other senders have no effect either.
    let mut config = open_loop();
    config.senders = Some(2..3);
    assert_eq!(drain(&mut generator(&config, 4), 2, 100), single);
}

#[test]
fn messages_start_in_the_workloads_time() {
    let mut config = open_loop();
    config.start = Span::from_us(100);
    config.stop = Span::from_us(1100);
    let messages = drain(&mut generator(&config, 4), 0, 10_000);
    assert!((50..200).contains(&messages.len()), "{}", messages.len());
    assert!(messages[0].at >= Time::from_ps(100_000_000));
    assert!(messages.last().unwrap().at <= Time::from_ps(1_100_000_000));
}

#[test]
fn a_hosts_own_generator_gives_what_the_whole_one_gives() {
    for config in [open_loop(), closed_loop(3)] {
        let mut whole = generator(&config, 4);
        for host in 0..4 {
            let mut own = whole.of_host(HostId(host));
            for n in 0..20 {
                let (own, all) = match own.next_arrival() {
                    Some(arrival) => (Some(arrival), whole.next(HostId(host))),
                    None => (
                        own.completed(Time::from_ps(n)),
                        whole.completed(HostId(host), Time::from_ps(n)),
                    ),
                };
                assert_eq!((own.is_some(), own), (true, all));
            }
        }
    }
}

#[test]
fn a_limit_of_bytes_shortens_the_last_message() {
    for config in [open_loop(), closed_loop(3)] {
        let whole = generator(&config, 4).of_host(HostId(1));
        let draw = |mut own: HostGenerator| {
            let next = || own.next_arrival().or_else(|| own.completed(Time::from_ps(1)));
            std::iter::from_fn(next).take(50).collect::<Vec<_>>()
        };
        let all = draw(whole.clone());
        let (nine, tenth) = (all[..9].iter().map(|arrival| arrival.bytes).sum::<u64>(), all[9]);
        for bytes in [1, tenth.bytes] {
            let limited = draw(whole.clone().limited_to(nine + bytes));
            assert_eq!(limited[..9], all[..9]);
            assert_eq!(limited[9..], [Arrival { bytes, ..tenth }]);
        }
        assert_eq!(draw(whole.clone().limited_to(nine)), all[..9]);
        assert_eq!(draw(whole.limited_to(0)), []);
    }
}

#[test]
fn a_closed_loop_goes_on_when_messages_end() {
    let mut config = closed_loop(3);
    config.stop = Span::from_us(50);
    let mut generator = generator(&config, 4);
    let first = drain(&mut generator, 1, 100);
    assert_eq!(first.len(), 3);
    assert!(first.iter().all(|m| m.at == Time::ZERO && m.dst != HostId(1)));
    let next = generator.completed(HostId(1), Time::from_ps(40_000_000)).unwrap();
    assert_eq!(next.at, Time::from_ps(41_000_000));
    assert_ne!(next.dst, HostId(1));
    assert_eq!(generator.completed(HostId(1), Time::from_ps(49_000_010)), None);
    assert_eq!(generator.next(HostId(1)), None);
    assert_eq!(generator.total(), None);
}

#[test]
fn a_ramp_spaces_the_first_messages_of_all_senders() {
    let with_ramp = |ramp| {
        let mut config = closed_loop(4);
        if let Pattern::ClosedLoop { ramp: of_config, .. } = &mut config.pattern {
            *of_config = ramp;
        }
        config.start = Span::from_us(5);
        config
    };
    let mut generator = generator(&with_ramp(Span::from_us(16)), 4);
    for host in 0..4 {
        let at = |message: &Arrival| message.at.as_ps() / 1_000_000;
        let first = generator.next(HostId(host)).unwrap();
        // The end of a message does not change when the others start.
        let following = generator.completed(HostId(host), first.at).unwrap();
        let turn = u64::from(host);
        assert_eq!([at(&first), at(&following)], [5 + turn, 6 + turn]);
        let others = drain(&mut generator, host, 100);
        assert_eq!(others.iter().map(at).collect::<Vec<_>>(), [9, 13, 17].map(|us| us + turn));
    }
    let mut config = with_ramp(Span::from_us(20));
    config.stop = Span::from_us(24);
    assert!(refused(&config, 4).contains("stops at 24"), "{}", refused(&config, 4));
    // Sizes and destinations are those of a loop without a ramp.
    let drawn = |ramp| {
        let mut generator = self::generator(&with_ramp(ramp), 4);
        drain(&mut generator, 1, 100).iter().map(|m| (m.dst, m.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(drawn(Span::from_us(20)), drawn(Span::ZERO));
}

#[test]
fn an_open_loop_does_not_wait_for_the_end_of_messages() {
    let mut generator = generator(&open_loop(), 4);
    assert_eq!(generator.completed(HostId(1), Time::from_ticks(5)), None);
}

#[test]
fn incast_from_all_others_at_once() {
    let mut generator = generator(&incast(None, 2, Span::ZERO), 5);
    assert_eq!(generator.total(), Some(8));
    for host in 0..5 {
        let messages = drain(&mut generator, host, 100);
        assert_eq!(messages.len(), if host == 2 { 0 } else { 2 });
        assert!(messages.iter().all(|m| m.at == Time::from_ps(5_000_000) && m.dst == HostId(2)));
    }
}

#[test]
fn incast_of_more_senders_than_hosts_goes_round_robin() {
    let spread = Span::from_us(1);
    let mut generator = generator(&incast(Some(4002), 1, spread), 5);
    assert_eq!(generator.total(), Some(4002));
    let mut counts = Vec::new();
    for host in 0..5 {
        let messages = drain(&mut generator, host, 10_000);
        assert!(messages.is_sorted_by_key(|m| m.at));
        assert!(messages.iter().all(|m| (5_000_000..=6_000_000).contains(&m.at.as_ps())));
        if let Some(last) = messages.last() {
            // A thousand uniform delays nearly fill the spread.
            assert!(messages[0].at.as_ps() < 5_050_000 && last.at.as_ps() > 5_950_000);
        }
        counts.push(messages.len());
    }
    assert_eq!(counts, [1001, 1001, 0, 1000, 1000]);
}

#[test]
fn all_to_all_sends_to_each_and_starts_at_different_ones() {
    let mut generator = generator(&all_to_all(2), 4);
    assert_eq!(generator.total(), Some(24));
    let mut firsts = Vec::new();
    for host in 0..4 {
        let to: Vec<u32> = drain(&mut generator, host, 100).iter().map(|m| m.dst.0).collect();
        let expected: Vec<u32> = (1..4).chain(1..4).map(|i| (host + i) % 4).collect();
        assert_eq!(to, expected);
        firsts.push(to[0]);
    }
    assert_eq!(firsts, [1, 2, 3, 0]);
}

#[test]
fn ranges_restrict_who_sends_to_whom() {
    let restrict = |mut config: WorkloadConfig, senders: Range<u32>, receivers: Range<u32>| {
        config.senders = Some(senders);
        config.receivers = Some(receivers);
        config
    };
    for config in [open_loop(), closed_loop(50), all_to_all(10)] {
        let mut generator = generator(&restrict(config, 2..6, 5..9), 10);
        for host in 0..10 {
            let messages = drain(&mut generator, host, 50);
            assert_eq!(messages.is_empty(), !(2..6).contains(&host), "{host}");
            for to in 5..9 {
                let found = messages.iter().any(|m| m.dst.0 == to);
                assert_eq!(found, (2..6).contains(&host) && to != host, "{host} to {to}");
            }
            assert!(messages.iter().all(|m| (5..9).contains(&m.dst.0)));
        }
    }
    let mut config = incast(Some(6), 1, Span::ZERO);
    config.senders = Some(1..4);
    let mut generator = generator(&config, 10);
    let counts: Vec<usize> = (0..10).map(|host| drain(&mut generator, host, 99).len()).collect();
    assert_eq!(counts, [0, 3, 0, 3, 0, 0, 0, 0, 0, 0]);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn what_cannot_be_run_is_refused() {
    assert_eq!(refused(&open_loop(), 0), "the workload has no hosts");
    assert_eq!(refused(&open_loop(), 1), "host 0 has no destination other than itself");
    assert_eq!(refused(&permutation(1), 1), "host 0 has no destination other than itself");
    assert_eq!(refused(&all_to_all(1), 1), "host 0 has no destination other than itself");
    for load in [0.0, 1.5, f64::NAN] {
        let pattern = Pattern::OpenLoop { sizes: sizes(), load, counts: LoadCounts::Payload };
        let message = refused(&WorkloadConfig::new(pattern), 4);
        assert!(message.starts_with("the load must be above 0 and at most 1"), "{message}");
    }
    for gap in [None, Some(Span::ZERO)] {
        let error = Generator::new(&open_loop(), 4, gap, 1, 0, 0).unwrap_err();
        assert_eq!(error, WorkloadError::NoGap);
    }
    assert_eq!(refused(&closed_loop(0), 4), "a closed loop needs at least 1 outstanding message");
    assert_eq!(
        refused(&incast(None, 1, Span::ZERO), 2),
        "host 2 (the receiver) does not exist: the fabric has hosts 0 to 1"
    );
    let mut config = incast(None, 1, Span::ZERO);
    config.senders = Some(2..3);
    assert_eq!(refused(&config, 4), "the only sender of the incast is its receiver, host 2");
    config = incast(None, 1, Span::ZERO);
    config.receivers = Some(2..3);
    assert_eq!(refused(&config, 4), "`receivers` cannot be restricted for the pattern `incast`");
    assert_eq!(
        refused(&incast(Some(0), 1, Span::ZERO), 4),
        "the number of senders must be at least 1"
    );
    assert_eq!(
        refused(&incast(Some(u32::MAX), 1, Span::ZERO), 4),
        "the number of senders is 4294967295, above the maximum of 16777216"
    );
    assert_eq!(refused(&permutation(0), 4), "the number of messages per host must be at least 1");
    assert_eq!(
        refused(&all_to_all(u64::MAX), 4),
        "the number of messages per pair is 18446744073709551615, above the maximum of \
         1537228672809129301"
    );
    config = incast(None, 1, Span::from_us(10));
    config.stop = Span::from_us(14);
    assert_eq!(
        refused(&config, 4),
        "the workload stops at 14 us, before its messages start at 15 us"
    );
    config = open_loop();
    config.start = Span::from_us(2);
    config.stop = Span::from_us(1);
    assert_eq!(
        refused(&config, 4),
        "the workload stops at 1 us, before its messages start at 2 us"
    );
    config = open_loop();
    config.senders = Some(3..5);
    assert_eq!(refused(&config, 4), "host 4 (senders) does not exist: the fabric has hosts 0 to 3");
    config.senders = Some(3..3);
    assert_eq!(refused(&config, 4), "the range of senders, 3..3, is empty");
    config = permutation(1);
    config.receivers = Some(0..3);
    assert_eq!(
        refused(&config, 4),
        "a permutation requires equal numbers of senders and receivers, not 4 and 3"
    );
    config = open_loop();
    config.exchange = Exchange::Respond(0);
    assert_eq!(refused(&config, 4), "a message size must be from 1 to 1099511627776 bytes, not 0");
}

proptest! {
    #[test]
    fn a_permutation_has_no_fixed_point(
        hosts in 2_u32..60,
        seed in any::<u64>(),
        shift in 0_u32..60,
    ) {
        // With a shift, senders and receivers overlap in part or not at all.
        let mut config = permutation(2);
        config.senders = Some(0..hosts);
        config.receivers = Some(shift..shift + hosts);
        let mut generator = Generator::new(&config, 120, None, seed, 0, 0).unwrap();
        prop_assert_eq!(generator.total(), Some(2 * u64::from(hosts)));
        let mut received = vec![0; 120];
        for host in 0..hosts {
            let messages = drain(&mut generator, host, 10);
            prop_assert_eq!(messages.len(), 2);
            prop_assert_eq!(messages[0].dst, messages[1].dst);
            prop_assert_ne!(messages[0].dst.0, host);
            received[messages[0].dst.0 as usize] += 1;
        }
        for (host, count) in received.into_iter().enumerate() {
            let receives = (shift as usize..(shift + hosts) as usize).contains(&host);
            prop_assert_eq!(count, u32::from(receives));
        }
    }

    #[test]
    fn arrivals_are_sorted_possible_and_as_many_as_said(
        kind in 0..5,
        hosts in 3_u32..12,
        count in 1_u32..20,
        spread in 0_u64..10_000,
        seed in any::<u64>(),
    ) {
        let mut config = match kind {
            0 => open_loop(),
            1 => closed_loop(count),
            2 => incast(Some(count), 2, Span::from_ps(spread)),
            3 => permutation(count.into()),
            _ => all_to_all(count.into()),
        };
        config.stop = Span::from_us(100);
        let mut generator = Generator::new(&config, hosts, Some(GAP), seed, 0, 7).unwrap();
        let mut total = 0;
        for host in 0..hosts {
            let messages = drain(&mut generator, host, 10_000);
            prop_assert!(messages.is_sorted_by_key(|m| m.at));
            for m in &messages {
                prop_assert!(m.dst.0 < hosts && m.dst.0 != host);
                prop_assert!(m.bytes > 0 && m.at <= Time::from_ps(100_000_000));
            }
            prop_assert_eq!(generator.next(HostId(host)), None);
            total += messages.len() as u64;
        }
        prop_assert_eq!(generator.next(HostId(hosts)), None);
        prop_assert!(generator.total().is_none_or(|said| said == total));
    }
}

#[test]
fn a_constant_rate_is_kept_to_the_tick() {
    let sizes = SizeDist::fixed(1_250).unwrap();
    // 1250 bytes in 50 us.
    let pattern = Pattern::Periodic { sizes, rate: Rate(200_000_000) };
    let config = WorkloadConfig { start: Span::from_ms(1), ..WorkloadConfig::new(pattern) };
    let mut generator = Generator::new(&config, 4, None, 1, 0, 0).unwrap();
    assert_eq!(generator.total(), None);
    let mut firsts = Vec::new();
    for host in 0..4 {
        let first = generator.next(HostId(host)).unwrap().at;
        assert!((Span::from_ms(1)..=Span::from_us(1_050)).contains(&first.since(Time::ZERO)));
        for n in 1..1_000 {
            let next = generator.next(HostId(host)).unwrap();
            assert_eq!(next.at, first + Span::from_us(50) * n);
            assert!(next.dst != HostId(host) && next.bytes == 1_250);
        }
        firsts.push(first);
    }
    firsts.dedup();
    assert_eq!(firsts.len(), 4, "nobody is in step");
    // For any sizes, the mean is exact: 1 Gbps for ten seconds is 1.25 GB.
    let sizes = SizeDist::named("W3").unwrap();
    let pattern = Pattern::Periodic { sizes, rate: Rate::from_gbps(1) };
    let config = WorkloadConfig::new(pattern);
    let mut generator = Generator::new(&config, 2, None, 1, 0, 0).unwrap();
    let until = Time::ZERO + Span::from_secs(10);
    let messages = std::iter::from_fn(|| generator.next(HostId(0)).filter(|next| next.at < until));
    let bytes: u64 = messages.map(|next| next.bytes).sum();
    assert!((1_249_000_000..1_260_000_000).contains(&bytes), "{bytes}");
    let none = Pattern::Periodic { sizes: SizeDist::fixed(1).unwrap(), rate: Rate(0) };
    let error = Generator::new(&WorkloadConfig::new(none), 2, None, 1, 0, 0).unwrap_err();
    assert_eq!(error.to_string(), "a constant rate must be above 0");
}

fn recurring(senders: Option<u32>, receiver: Option<u32>) -> WorkloadConfig {
    WorkloadConfig::new(Pattern::RecurringIncast {
        senders,
        receiver: receiver.map(HostId),
        sizes: SizeDist::fixed(1000).unwrap(),
        messages_per_sender: 2,
        every: Span::from_us(50),
    })
}

/// Returns the messages of each of the first `incasts` incasts: the receiver, and how many each host sends.
fn by_incast(config: &WorkloadConfig, hosts: u32, incasts: u64) -> Vec<(HostId, Vec<u32>)> {
    let mut generator = generator(config, hosts);
    let mut found: Vec<Option<(HostId, Vec<u32>)>> = vec![None; incasts as usize];
    for host in 0..hosts {
        while let Some(message) = generator.next(HostId(host)) {
            assert_eq!(message.at.as_ns() % 50_000, 0, "incasts are at regular times");
            let number = (message.at.as_ns() / 50_000) as usize;
            let Some(incast) = found.get_mut(number) else { break };
            let (receiver, sent) =
                incast.get_or_insert_with(|| (message.dst, vec![0; hosts as usize]));
            assert_eq!(*receiver, message.dst, "an incast has one receiver");
            sent[host as usize] += 1;
        }
    }
    found.into_iter().map(|incast| incast.expect("every incast has messages")).collect()
}

#[test]
fn recurring_incasts_have_their_number_of_distinct_senders() {
    let incasts = by_incast(&recurring(Some(5), None), 16, 400);
    let mut received = [0_u32; 16];
    let mut sent = [0_u32; 16];
    for (receiver, of) in &incasts {
        assert_eq!(of.iter().filter(|n| **n == 2).count(), 5, "{of:?}");
        assert_eq!(of.iter().sum::<u32>(), 10);
        assert_eq!(of[receiver.0 as usize], 0, "no host sends to itself");
        received[receiver.0 as usize] += 1;
        of.iter().zip(&mut sent).for_each(|(n, sent)| *sent += n);
    }
    // 400 / 16 = 25 and 4000 / 16 = 250, within five standard deviations.
    assert!(received.iter().all(|n| (5..=50).contains(n)), "{received:?}");
    assert!(sent.iter().all(|n| (140..=360).contains(n)), "{sent:?}");
}

#[test]
fn recurring_incasts_to_one_host_are_of_all_others_or_as_many_as_given() {
    for (receiver, sent) in by_incast(&recurring(None, Some(3)), 6, 20) {
        assert_eq!((receiver, sent), (HostId(3), vec![2, 2, 2, 0, 2, 2]));
    }
    // Twelve senders on five hosts: each has two, and two of them have a third.
    for (_, mut sent) in by_incast(&recurring(Some(12), Some(3)), 6, 20) {
        sent.sort_unstable();
        assert_eq!(sent, [0, 4, 4, 4, 6, 6]);
    }
}

#[test]
fn recurring_incasts_end_with_the_workload_and_need_time_and_senders() {
    let mut config = recurring(Some(3), None);
    config.start = Span::from_us(10);
    config.stop = Span::from_us(110);
    let mut generator = generator(&config, 4);
    let all: Vec<Arrival> = (0..4).flat_map(|host| drain(&mut generator, host, 100)).collect();
    // At 10, 60 and 110 us.
    assert_eq!(all.len(), 3 * 3 * 2);
    let mut none = recurring(None, None);
    if let Pattern::RecurringIncast { every, .. } = &mut none.pattern {
        *every = Span::ZERO;
    }
    assert_eq!(refused(&none, 4), "the time between incasts must be above 0");
    let mut only = recurring(None, Some(1));
    only.senders = Some(1..2);
    assert_eq!(refused(&only, 4), "the only sender of the incast is its receiver, host 1");
}
