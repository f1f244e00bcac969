use rackweave_core::{FailReason, HostId, Rate, Span, Time};

use super::generate::{ALGORITHMS, Algorithm, GenerateError, Operation, Shape};
use super::goal::{Goal, parse};
use super::*;

fn hosts(n: u32) -> Vec<HostId> {
    (0..n).map(HostId).collect()
}

fn shape(ranks: u32, bytes: u64) -> Shape<'static> {
    Shape { ranks, bytes, groups: &[], compute: None, skew: 0.0 }
}

fn named(operation: Operation, name: &str) -> &'static Algorithm {
    let mut all = ALGORITHMS.iter();
    all.find(|it| it.operation == operation && it.name == name).unwrap()
}

fn once(schedule: Schedule) -> Collective {
    let ranks = schedule.ranks();
    Collective::new(schedule, hosts(ranks), 1, Span::ZERO).unwrap()
}

/// A message takes a tick and one for each byte.
fn time_of(operation: Operation, name: &str, shape: &Shape<'_>) -> u64 {
    let schedule = named(operation, name).schedule(shape).unwrap();
    ideal(&once(schedule), |_, _, bytes| Span::from_ticks(1 + bytes)).ticks()
}

/// Groups of this many ranks.
fn groups(ranks: u32, each: u32) -> Vec<Vec<u32>> {
    (0..ranks / each).map(|group| (group * each..(group + 1) * each).collect()).collect()
}

#[test]
fn times_are_those_of_theory() {
    use Operation::*;
    let (n, s) = (8_u64, 8_000);
    let log = u64::from(n.ilog2());
    let eight = shape(n as u32, s);
    assert_eq!(time_of(AllReduce, "ring", &eight), 2 * (n - 1) * (1 + s / n));
    assert_eq!(time_of(AllReduce, "halving-doubling", &eight), 2 * (log + s * (n - 1) / n));
    assert_eq!(time_of(AllReduce, "tree", &eight), 2 * log * (1 + s));
    let racks = groups(8, 4);
    let of_racks = Shape { groups: &racks, ..eight };
    let hierarchical = 2 * 3 * (1 + s / 4) + 2 * (1 + s / 8);
    assert_eq!(time_of(AllReduce, "hierarchical", &of_racks), hierarchical);
    assert_eq!(time_of(AllGather, "ring", &eight), (n - 1) * (1 + s / n));
    assert_eq!(time_of(AllGather, "recursive-doubling", &eight), log + s * (n - 1) / n);
    assert_eq!(time_of(ReduceScatter, "ring", &eight), (n - 1) * (1 + s / n));
    assert_eq!(time_of(ReduceScatter, "halving", &eight), log + s * (n - 1) / n);
    assert_eq!(time_of(AllToAll, "pairwise", &eight), (n - 1) * (1 + s / n));
    assert_eq!(time_of(AllToAll, "direct", &eight), 1 + s / n, "all at once");
    assert_eq!(time_of(Broadcast, "binomial", &eight), log * (1 + s));
    assert_eq!(time_of(Broadcast, "flat", &eight), 1 + s);
    assert_eq!(time_of(Broadcast, "chain", &eight), (2 * n - 2) * (1 + s / n));
    assert_eq!(time_of(Gather, "binomial", &eight), log + s * (n - 1) / n);
    assert_eq!(time_of(Gather, "flat", &eight), 1 + s / n);
    let shuffle = (n - 1) * (1 + s / n / n);
    assert_eq!(time_of(MapReduce, "direct", &eight), 2 * (1 + s / n) + shuffle);
}

#[test]
fn adding_up_takes_time_at_each_step() {
    // A byte for each tick.
    let rate = Rate(8 * 100_000_000_000);
    let slow = Shape { compute: Some(rate), ..shape(4, 4_000) };
    assert_eq!(rate.span_of(1_000).ticks(), 1_000);
    assert_eq!(time_of(Operation::AllReduce, "ring", &slow), 6 * 1_001 + 3 * 1_000);
    assert_eq!(time_of(Operation::AllReduce, "tree", &slow), 4 * 4_001 + 2 * 4_000);
}

#[test]
fn every_algorithm_moves_the_bytes_that_it_must_for_any_number_of_ranks() {
    for algorithm in ALGORITHMS {
        for ranks in 2..=33 {
            let one = groups(ranks, 1);
            let bytes = u64::from(ranks) * 96 + 5;
            let shape = Shape { groups: &one, ..shape(ranks, bytes) };
            let schedule = algorithm.schedule(&shape).unwrap_or_else(|error| {
                panic!("{algorithm:?} of {ranks}: {error}");
            });
            let (n, s) = (u64::from(ranks), bytes);
            // What all ranks together must receive at least.
            let least = match algorithm.operation {
                Operation::AllReduce => 2 * (n - 1) * s,
                Operation::AllGather | Operation::ReduceScatter => (n - 1) * s,
                Operation::AllToAll => (n - 1) * s,
                Operation::Broadcast => (n - 1) * s,
                Operation::Gather => (n - 1) * (s / n),
                Operation::MapReduce => 3 * (n - 1) * (s / n),
            };
            assert!(schedule.bytes() + n * n >= least, "{algorithm:?} of {ranks}");
            let run = Collective::new(schedule, hosts(ranks), 3, Span::from_ticks(7)).unwrap();
            let all = ideal(&run, |_, _, bytes| Span::from_ticks(1 + bytes)).ticks();
            let first = ideal(&run.once(), |_, _, bytes| Span::from_ticks(1 + bytes)).ticks();
            assert!(first > 0 && (first..=3 * first + 14).contains(&all), "{algorithm:?}");
        }
    }
}

#[test]
fn shapes_that_are_none_are_refused() {
    let ring = named(Operation::AllReduce, "ring");
    assert_eq!(ring.schedule(&shape(1, 10)).unwrap_err(), GenerateError::Ranks(1));
    let small = ring.schedule(&shape(8, 7)).unwrap_err();
    assert_eq!(small.to_string(), "7 bytes are fewer than one for each of 8 ranks");
    let uneven = [vec![0, 1], vec![2]];
    let shape = Shape { groups: &uneven, ..shape(3, 100) };
    let error = named(Operation::AllReduce, "hierarchical").schedule(&shape).unwrap_err();
    assert_eq!(error, GenerateError::Groups(1, 2));
}

#[test]
fn a_schedule_is_read_and_written() {
    let text = "num_ranks 2 // two\n/* of\nfour */ rank 0 { l1: calc 0.5 cpu 1 l2: send 10b to 1 tag 7 nic 0\n\
        l2 requires l1 l3: send 0b to 1 cpu 0\nl3 irequires l2 }\nrank 1 { recv 1b from 0 recv 10b from 0 tag 7 }";
    let schedule = parse(text).unwrap();
    assert_eq!((schedule.sends(), schedule.bytes()), (2, 11));
    let printed = Goal(&schedule).to_string();
    assert_eq!(
        printed,
        "num_ranks 2\n\nrank 0 {\nl1: calc 0.50 cpu 1\nl2: send 10b to 1 tag 7\nl2 requires l1\n\
         l3: send 1b to 1 tag 0\nl3 irequires l2\n}\n\nrank 1 {\nl1: recv 1b from 0 tag 0\n\
         l2: recv 10b from 0 tag 7\n}\n"
    );
    let again = parse(&printed).unwrap();
    assert_eq!((&again, again.digest()), (&schedule, schedule.digest()));
    for algorithm in ALGORITHMS {
        let all = groups(6, 3);
        let rate = Some(Rate::from_gbps(17));
        let shape = Shape { groups: &all, compute: rate, ..shape(6, 1_001) };
        let schedule = algorithm.schedule(&shape).unwrap();
        assert_eq!(parse(Goal(&schedule).to_string()).unwrap(), schedule, "{algorithm:?}");
    }
}

#[test]
fn what_is_wrong_with_a_schedule_is_said_with_line_and_column() {
    let rank = |text: &str| format!("num_ranks 2\nrank 0 {{\n{text}\n}}");
    for (text, expected) in [
        ("ranks 2".to_owned(), "line 1, column 1: `num_ranks` is expected here, not `ranks`"),
        ("num_ranks 0".to_owned(), "line 1, column 11: there are 1 to 1048576 ranks"),
        ("num_ranks 2\nrank 2 {}".to_owned(), "line 2, column 6: there are ranks 0 to 1"),
        ("num_ranks 2".to_owned(), "line 1, column 1: there are no operations"),
        (rank("a: calc x"), "line 3, column 9: a time in nanoseconds is expected here, not `x`"),
        (rank("a: calc 1\n b requires a"), "line 4, column 2: rank 0 has no `b`"),
        (rank("a: calc 1 a: calc 1"), "line 3, column 11: `a` is there twice"),
        (
            rank("send 4b to 0"),
            "line 3, column 1: `send` of rank 0 (line 3): a rank sends nothing to itself",
        ),
        (
            rank("s: send 4b to 9"),
            "line 3, column 1: `s` of rank 0 (line 3): there is no rank 9, only 0 to 1",
        ),
        (
            rank("s: send 4b to 1 tag 3"),
            "line 3, column 1: `s` of rank 0 (line 3): rank 1 receives no such message (tag 3)",
        ),
        (
            rank("r: recv 4b from 1"),
            "line 3, column 1: `r` of rank 0 (line 3): rank 1 sends no such message (tag 0)",
        ),
        (
            rank("s: send 4b to 1") + "rank 1 { r: recv 5b from 0 }",
            "line 4, column 11: `r` of rank 1 (line 4) takes 5 bytes, and `s` of rank 0 (line 3) sends 4",
        ),
        (
            rank("a: calc 1\nb: calc 1\na requires b\nb irequires a"),
            "line 3, column 1: `a` of rank 0 (line 3) waits for `b` of rank 0 (line 4) waits for `a` of rank 0 (line 3): \
             none of them can begin",
        ),
        (rank("/* no"), "line 3, column 1: this comment has no end"),
        (rank("calc 1").replace('}', ""), "line 4, column 1: `}` is expected here, not the end"),
    ] {
        assert_eq!(parse(&text).unwrap_err().to_string(), expected, "{text}");
    }
    // Each rank waits for the other's message before it sends its own.
    let knot = "num_ranks 2\nrank 0 { r: recv 1b from 1\ns: send 1b to 1\ns requires r }\n\
        rank 1 { r: recv 1b from 0\ns: send 1b to 0\ns requires r }";
    let error = parse(knot).unwrap_err().to_string();
    assert!(error.contains("none of them can begin") && error.contains("of rank 1"), "{error}");
}

#[test]
fn what_waits_for_the_begin_of_a_receive_does_not_wait_for_its_message() {
    // Both post a receive, and send once it is posted.
    let of = |peer| format!("{{ r: recv 1b from {peer} s: send 1b to {peer} s irequires r }}");
    let text = format!("num_ranks 2 rank 0 {} rank 1 {}", of(1), of(0));
    let collective = once(parse(text).unwrap());
    assert_eq!(ideal(&collective, |_, _, bytes| Span::from_ticks(bytes)), Span::from_ticks(1));
    // A receive that begins after what waits for its message never does.
    for text in [
        "num_ranks 2 rank 0 { r: recv 1b from 1 c: calc 1 c requires r r irequires c } rank 1 { send 1b to 0 }",
        "num_ranks 2 rank 0 { c: calc 1 r: recv 1b from 1 c irequires r r irequires c } rank 1 { send 1b to 0 }",
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains("waits for `c`") && error.contains("waits for `r`"), "{error}");
        assert!(error.contains("none of them can begin"), "{error}");
    }
    let error = parse("num_ranks 1 rank 0 { c: calc 1 c requires c }").unwrap_err().to_string();
    let itself = "`c` of rank 0 (line 1) waits for `c` of rank 0 (line 1): none of them can begin";
    assert!(error.ends_with(itself), "{error}");
}

#[test]
fn any_bytes_are_read_or_refused() {
    let good = Goal(&named(Operation::AllReduce, "tree").schedule(&shape(4, 99)).unwrap());
    let good = good.to_string();
    for cut in 0..good.len() {
        let mut bytes = good.clone().into_bytes();
        let _ = parse(&bytes[..cut]);
        bytes[cut] ^= 1 << (cut % 8);
        let _ = parse(&bytes);
    }
}

#[test]
fn a_rank_says_what_it_waits_for() {
    let text = "num_ranks 2 rank 0 { a: calc 1 s: send 9b to 1 tag 4 s requires a r: recv 8b from 1 }\
        rank 1 { r: recv 9b from 0 tag 4 s: send 8b to 0 s requires r c: calc 0 c requires s }";
    let collective = once(parse(text).unwrap());
    let mut ranks = [0, 1].map(|host| Rank::new(&collective, HostId(host), Time::ZERO).unwrap());
    let at = Time::from_ticks;
    for rank in &mut ranks {
        assert_eq!(rank.handle_timeout(at(0)), None);
    }
    let reason = |rank: &Rank| rank.report().waits.map(|wait| wait.reason);
    let receive = WaitReason::Receive { from: 1, bytes: 8, tag: 0 };
    assert_eq!(reason(&ranks[0]), Some(receive));
    let message = ranks[0].handle_timeout(at(100)).unwrap();
    assert_eq!((message.dst, message.bytes), (HostId(1), 9));
    ranks[1].received(at(200), HostId(0), message.number);
    ranks[0].sent(at(200), message.number);
    let back = ranks[1].handle_timeout(at(200)).unwrap();
    assert_eq!(reason(&ranks[1]), Some(WaitReason::Send { to: 0, bytes: 8, tag: 0 }));
    let mut other = Rank::new(&collective, HostId(0), Time::ZERO).unwrap();
    other.crash();
    assert_eq!((reason(&other), other.poll_timeout()), (Some(WaitReason::Crashed), None));
    ranks[1].failed(back.number, FailReason::PeerSilent);
    let failed = WaitReason::Failed { to: 0, bytes: 8, tag: 0, reason: FailReason::PeerSilent };
    assert_eq!(reason(&ranks[1]), Some(failed));
    ranks[0].received(at(300), HostId(1), back.number);
    assert!(ranks[0].has_ended() && !ranks[1].has_ended());
    assert_eq!(ranks[0].report().iterations, [(at(0), at(300))]);
}

#[test]
fn calculations_share_a_processor_and_messages_may_come_early() {
    let text = "num_ranks 2 rank 0 { calc 1 calc 1 calc 1 cpu 1 s: send 5b to 1 }\
        rank 1 { c: calc 9 r: recv 5b from 0 r requires c d: calc 1 d requires r }";
    let run = Collective::new(parse(text).unwrap(), hosts(2), 2, Span::ZERO).unwrap();
    // 9 ns, then 1 ns, twice: the messages have come before, the second one two iterations early.
    assert_eq!(ideal(&run, |_, _, _| Span::from_ticks(1)), Span::from_ns(20));
    let text = "num_ranks 1 rank 0 { calc 2 calc 3 calc 4 cpu 1 }";
    assert_eq!(ideal(&once(parse(text).unwrap()), |_, _, _| Span::ZERO), Span::from_ns(5));
}

#[test]
fn one_host_has_one_rank() {
    let schedule = || named(Operation::Broadcast, "flat").schedule(&shape(3, 9)).unwrap();
    let of = |hosts: &[u32]| {
        let hosts = hosts.iter().copied().map(HostId).collect();
        Collective::new(schedule(), hosts, 1, Span::ZERO)
    };
    let placed = of(&[5, 0, 3]).unwrap();
    assert_eq!(
        [0, 1, 3, 5, 9].map(|host| placed.rank_of(HostId(host))),
        [Some(1), None, Some(2), Some(0), None]
    );
    let twice = of(&[5, 0, 5]).unwrap_err().to_string();
    assert_eq!(twice, "host 5 has rank 0 and rank 2: a host has one");
    let fewer = of(&[5, 0]).unwrap_err().to_string();
    assert_eq!(fewer, "3 ranks need as many hosts, not 2");
}
