use proptest::prelude::*;

use super::*;

const CLIENTS: [HostId; 4] = [HostId(1), HostId(2), HostId(3), HostId(4)];

fn directory(policy: Policy, pending: u8) -> Directory {
    Directory::new(Config { policy, pending, ..Config::default() })
}

/// A report's map with these chunks.
fn map(chunks: &[u32]) -> [u8; 1024] {
    let mut map = [0; 1024];
    for chunk in chunks {
        map[*chunk as usize / 8] |= 1 << (chunk % 8);
    }
    map
}

fn ask(from: u32, first: u32, count: u32, tries: u8) -> Ask {
    Ask { image: 1, from: HostId(from), first, count, tries }
}

fn choose(directory: &mut Directory, now: Time, ask: Ask) -> Vec<(u32, u32, Option<u32>)> {
    let mut runs = Vec::new();
    directory.choose(now, ask, |run| runs.push((run.first, run.count, run.to.map(|to| to.0))));
    runs
}

#[test]
fn holders_take_turns() {
    let mut directory = directory(Policy::RoundRobin, 0);
    for client in CLIENTS {
        assert!(directory.report(Time::ZERO, 1, client, 0, &map(&[5])));
    }
    assert_eq!(directory.holders(1, 5), CLIENTS);
    let chosen = |directory: &mut Directory, from| {
        choose(directory, Time::from_ticks(1), ask(from, 5, 1, 0))[0].2
    };
    let turns: Vec<_> = (0..6).map(|_| chosen(&mut directory, 9)).collect();
    assert_eq!(turns, [2, 3, 4, 1, 2, 3].map(Some));
    assert_eq!(chosen(&mut directory, 4), Some(1), "a client is not sent to itself");
    directory.leave(1, HostId(2));
    assert_eq!(chosen(&mut directory, 9), Some(3), "nor to one that has left");
    assert_eq!(choose(&mut directory, Time::from_ticks(1), ask(9, 6, 1, 0)), [(6, 1, None)]);
    assert_eq!(directory.counters().to_holders, 8);
    assert_eq!(directory.counters().to_server, 1);
}

#[test]
fn a_batch_is_split_by_holder() {
    let mut directory = directory(Policy::RoundRobin, 0);
    directory.report(Time::ZERO, 1, HostId(1), 0, &map(&[10, 11, 12, 14]));
    directory.report(Time::ZERO, 1, HostId(2), 0, &map(&[12, 13]));
    let runs = choose(&mut directory, Time::from_ticks(1), ask(3, 9, 7, 0));
    assert_eq!(
        runs,
        [(9, 1, None), (10, 3, Some(1)), (13, 1, Some(2)), (14, 1, Some(1)), (15, 1, None)]
    );
}

#[test]
fn the_least_loaded_holder_is_chosen_until_reports_cover_its_requests() {
    let mut directory = directory(Policy::LeastLoaded, 0);
    for client in [1, 2] {
        directory.report(Time::ZERO, 1, HostId(client), 0, &map(&[0, 1, 2, 3]));
    }
    directory.report(Time::ZERO, 1, HostId(2), 0, &map(&[0, 1, 2, 3, 4, 5]));
    // Only host 2 has chunks 4 and 5.
    assert_eq!(choose(&mut directory, Time::from_ticks(1), ask(3, 4, 2, 0)), [(4, 2, Some(2))]);
    assert_eq!(choose(&mut directory, Time::from_ticks(1), ask(4, 0, 1, 0)), [(0, 1, Some(1))]);
    assert_eq!(choose(&mut directory, Time::from_ticks(1), ask(4, 1, 1, 0)), [(1, 1, Some(1))]);
    directory.report(Time::from_ticks(2), 1, HostId(3), 0, &map(&[4, 5]));
    assert_eq!(choose(&mut directory, Time::from_ticks(2), ask(4, 2, 1, 0)), [(2, 1, Some(2))]);
}

#[test]
fn requests_wait_at_a_client_that_is_about_to_have_the_chunk() {
    let mut directory = directory(Policy::LeastLoaded, 1);
    assert_eq!(choose(&mut directory, Time::from_ticks(1), ask(1, 7, 1, 0)), [(7, 1, None)]);
    assert_eq!(choose(&mut directory, Time::from_ticks(1), ask(2, 7, 1, 0)), [(7, 1, Some(1))]);
    // Host 2 waits for a pending holder itself, which is one too many.
    assert_eq!(choose(&mut directory, Time::from_ticks(1), ask(3, 7, 1, 0)), [(7, 1, Some(1))]);
    // A retry excludes the holder that was chosen last, and after three tries the server serves.
    assert_eq!(choose(&mut directory, Time::from_ticks(2), ask(2, 7, 1, 1)), [(7, 1, None)]);
    assert_eq!(choose(&mut directory, Time::from_ticks(2), ask(3, 7, 1, 3)), [(7, 1, None)]);
    assert_eq!(directory.counters().to_pending, 2);
}

#[test]
fn pending_holders_never_wait_for_each_other() {
    let mut directory = directory(Policy::LeastLoaded, 4);
    choose(&mut directory, Time::from_ticks(1), ask(1, 7, 1, 0));
    assert_eq!(choose(&mut directory, Time::from_ticks(1), ask(2, 7, 1, 0)), [(7, 1, Some(1))]);
    // Host 1 asks again: host 2 waits for it.
    assert_eq!(choose(&mut directory, Time::from_ticks(2), ask(1, 7, 1, 1)), [(7, 1, None)]);
}

#[test]
fn a_returned_request_goes_elsewhere_and_a_forged_return_nowhere() {
    let mut directory = directory(Policy::RoundRobin, 0);
    for client in [1, 2] {
        directory.report(Time::ZERO, 1, HostId(client), 0, &map(&[0]));
    }
    assert_eq!(choose(&mut directory, Time::from_ticks(1), ask(3, 0, 1, 0)), [(0, 1, Some(2))]);
    let mut runs = Vec::new();
    directory.returned(Time::from_ticks(1), HostId(1), ask(3, 0, 1, 0), |run| runs.push(run));
    assert_eq!(runs, [], "it was not redirected to host 1");
    directory.returned(Time::from_ticks(1), HostId(2), ask(3, 0, 1, 0), |run| runs.push(run));
    assert_eq!(runs, [Run { first: 0, count: 1, to: Some(HostId(1)) }]);
    assert_eq!(directory.holders(1, 0), [HostId(1)]);
    assert_eq!(directory.counters().returned, 1);
}

#[test]
fn a_request_returned_by_a_holder_that_has_left_goes_elsewhere() {
    let mut directory = directory(Policy::RoundRobin, 0);
    directory.report(Time::ZERO, 1, HostId(1), 0, &map(&[0]));
    assert_eq!(choose(&mut directory, Time::from_ticks(1), ask(3, 0, 1, 0)), [(0, 1, Some(1))]);
    directory.leave(1, HostId(1));
    let mut runs = Vec::new();
    directory.returned(Time::from_ticks(1), HostId(1), ask(3, 0, 2, 0), |run| runs.push(run));
    assert_eq!(runs, [Run { first: 0, count: 1, to: None }], "nobody has asked for chunk 1");
}

/// A client that has received a chunk of the server.
fn received(directory: &mut Directory, now: Time, client: u32, chunk: u32) {
    assert_eq!(choose(directory, now, ask(client, chunk, 1, 0)), [(chunk, 1, None)]);
    assert!(directory.report(now, 1, HostId(client), 0, &map(&[chunk])));
}

#[test]
fn damaged_chunks_bar_a_holder_for_the_accuser_and_after_two_accusers_for_all() {
    let mut directory = directory(Policy::RoundRobin, 0);
    directory.report(Time::ZERO, 1, HostId(1), 0, &map(&[0, 1]));
    directory.accuse(Time::from_ticks(1), 1, HostId(9), HostId(1), 0);
    assert_eq!(
        choose(&mut directory, Time::from_ticks(1), ask(9, 0, 1, 0)),
        [(0, 1, Some(1))],
        "no request, no damage"
    );
    directory.accuse(Time::from_ticks(1), 1, HostId(9), HostId(1), 0);
    assert_eq!(choose(&mut directory, Time::from_ticks(1), ask(9, 1, 1, 0)), [(1, 1, None)]);
    assert_eq!(choose(&mut directory, Time::from_ticks(1), ask(8, 0, 1, 0)), [(0, 1, Some(1))]);
    directory.accuse(Time::from_ticks(1), 1, HostId(8), HostId(1), 0);
    assert_eq!(directory.counters().barred, 0, "neither has received anything");
    for (client, chunk) in [(7, 70), (6, 60)] {
        received(&mut directory, Time::from_ticks(1), client, chunk);
        assert_eq!(
            choose(&mut directory, Time::from_ticks(1), ask(client, 0, 1, 0)),
            [(0, 1, Some(1))]
        );
    }
    for client in [7, 6] {
        directory.accuse(Time::from_ticks(1), 1, HostId(client), HostId(1), 0);
    }
    assert_eq!(choose(&mut directory, Time::from_ticks(1), ask(5, 0, 1, 0)), [(0, 1, None)]);
    assert_eq!(directory.counters().barred, 1);
    // It was long ago.
    let later = Time::from_ticks(1) + Config::default().accusation;
    directory.report(later, 1, HostId(1), 0, &map(&[0, 1]));
    for client in [5, 9] {
        assert_eq!(choose(&mut directory, later, ask(client, 1, 1, 0)), [(1, 1, Some(1))]);
    }
}

#[test]
fn two_clients_that_lie_leave_out_two_holders() {
    let mut directory = directory(Policy::RoundRobin, 0);
    for holder in 1..=5 {
        directory.report(Time::ZERO, 1, HostId(holder), 0, &map(&[holder]));
    }
    for liar in [8, 9] {
        received(&mut directory, Time::from_ticks(1), liar, 10 * liar);
        for holder in 1..=5 {
            let chosen = choose(&mut directory, Time::from_ticks(1), ask(liar, holder, 1, 0));
            assert_eq!(chosen, [(holder, 1, Some(holder))]);
            directory.accuse(Time::from_ticks(1), 1, HostId(liar), HostId(holder), holder);
        }
    }
    let served = |directory: &mut Directory, client| -> Vec<u32> {
        let of = |chunk| choose(directory, Time::from_ticks(1), ask(client, chunk, 1, 0))[0].2;
        (1..=5).filter_map(of).collect()
    };
    assert_eq!(served(&mut directory, 7), [3, 4, 5]);
    assert_eq!(served(&mut directory, 8), [], "they get nothing of those that they accuse");
    assert_eq!(directory.counters().barred, 2);
}

#[test]
fn a_silent_holder_is_left_out_for_longer_each_time_until_it_serves() {
    let mut directory = directory(Policy::RoundRobin, 0);
    let all: Vec<u32> = (0..200).collect();
    let mut now = Time::from_ticks(1);
    let mut next = 0;
    directory.report(now, 1, HostId(2), 0, &map(&all));
    // A request to the holder, or to the server, and its repetition.
    let mut request = |directory: &mut Directory, now| {
        next += 1;
        directory.report(now, 1, HostId(2), 0, &map(&all));
        let first = choose(directory, now, ask(3, next, 1, 0))[0].2;
        assert_eq!(choose(directory, now, ask(3, next, 1, 1))[0].2, None, "not the same again");
        first.is_some()
    };
    assert!(request(&mut directory, now), "one may have been lost");
    for seconds in [1, 2, 4, 8, 16, 32, 64, 64] {
        assert!(request(&mut directory, now), "{seconds}");
        let until = now + Span::from_secs(seconds);
        assert!(
            !request(&mut directory, now)
                && !request(&mut directory, Time::from_ticks(until.ticks() - 1))
        );
        now = until;
    }
    // Others are sent there, and so is this one when it has got a chunk in time.
    assert_eq!(choose(&mut directory, now, ask(4, 150, 1, 0)), [(150, 1, Some(2))]);
    assert_eq!(choose(&mut directory, now, ask(3, 150, 1, 0)), [(150, 1, Some(2))]);
    directory.report(now, 1, HostId(3), 0, &map(&[150]));
    assert!(request(&mut directory, now) && request(&mut directory, now));
    assert!(!request(&mut directory, now));
}

#[test]
fn holders_in_the_same_rack_come_first() {
    for policy in [Policy::RoundRobin, Policy::LeastLoaded] {
        let mut directory =
            Directory::new(Config { policy, hosts_per_rack: Some(4), ..Config::default() });
        for client in [1, 2, 5] {
            directory.report(Time::ZERO, 1, HostId(client), 0, &map(&[0]));
        }
        directory.report(Time::ZERO, 1, HostId(1), 0, &map(&[0, 1]));
        for _ in 0..3 {
            assert_eq!(
                choose(&mut directory, Time::from_ticks(1), ask(6, 0, 1, 0)),
                [(0, 1, Some(5))]
            );
        }
        assert_eq!(choose(&mut directory, Time::from_ticks(1), ask(6, 1, 1, 0)), [(1, 1, Some(1))]);
    }
}

#[test]
fn silent_clients_are_not_chosen_and_make_room() {
    let config = Config { clients: 2, ..Config::default() };
    let mut directory = Directory::new(config);
    directory.report(Time::ZERO, 1, HostId(1), 0, &map(&[0]));
    directory.report(Time::ZERO, 1, HostId(2), 0, &map(&[0]));
    assert!(!directory.report(Time::from_ticks(1), 1, HostId(3), 0, &map(&[0])));
    let later = Time::ZERO + config.silence + Span::from_ticks(1);
    directory.report(later, 1, HostId(2), 0, &map(&[0]));
    assert_eq!(choose(&mut directory, later, ask(2, 0, 1, 0)), [(0, 1, None)]);
    assert!(directory.report(later, 1, HostId(3), 0, &map(&[0])));
    assert_eq!((directory.clients(), directory.counters().silent), (2, 1));
}

#[test]
fn images_have_windows_beyond_8192_chunks_and_do_not_mix() {
    let mut directory = directory(Policy::RoundRobin, 0);
    directory.report(Time::ZERO, 1, HostId(1), 2, &map(&[3]));
    let chunk = 2 * 8192 + 3;
    assert_eq!(
        choose(&mut directory, Time::from_ticks(1), ask(2, chunk, 1, 0)),
        [(chunk, 1, Some(1))]
    );
    let other = Ask { image: 2, ..ask(2, chunk, 1, 0) };
    assert_eq!(choose(&mut directory, Time::from_ticks(1), other), [(chunk, 1, None)]);
    // A client that returns after a crash has nothing.
    directory.join(Time::from_ticks(2), 1, HostId(1));
    assert_eq!(
        choose(&mut directory, Time::from_ticks(2), ask(2, chunk, 1, 0)),
        [(chunk, 1, None)]
    );
}

#[test]
fn chunks_that_no_image_has_take_no_memory() {
    let mut directory = directory(Policy::LeastLoaded, 0);
    assert_eq!(choose(&mut directory, Time::ZERO, ask(1, 16_000_000, 1, 0)), []);
    assert!(directory.bytes() < 1 << 12, "{}", directory.bytes());
}

#[test]
fn more_than_64_clients_have_wider_rows() {
    let mut directory = directory(Policy::RoundRobin, 0);
    for client in 0..200 {
        directory.report(Time::ZERO, 1, HostId(client), 0, &map(&[client]));
    }
    for client in 0..200 {
        assert_eq!(directory.holders(1, client), [HostId(client)]);
        assert_eq!(
            choose(&mut directory, Time::from_ticks(1), ask(1000, client, 1, 0)),
            [(client, 1, Some(client))]
        );
    }
}

#[derive(Clone, Debug)]
enum Step {
    Report(u32, u32, u32, Vec<u8>),
    Ask(Ask),
    Return(u32, Ask),
    Accuse(u32, u32, u32, u32),
    Leave(u32, u32),
    Join(u32, u32),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let number = || prop_oneof![4 => 0_u32..200, 1 => any::<u32>()];
    let ask = || {
        (0_u32..3, 0_u32..6, number(), 0_u32..10, 0_u8..5).prop_map(
            |(image, from, first, count, tries)| Ask {
                image,
                from: HostId(from),
                first,
                count,
                tries,
            },
        )
    };
    let window = prop_oneof![4 => 0_u32..2, 1 => any::<u32>()];
    let bytes = prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        4 => (0_u32..3, 0_u32..6, window, bytes).prop_map(|(i, c, w, b)| Step::Report(i, c, w, b)),
        6 => ask().prop_map(Step::Ask),
        2 => (0_u32..6, ask()).prop_map(|(by, ask)| Step::Return(by, ask)),
        1 => (0_u32..3, 0_u32..6, 0_u32..6, number()).prop_map(|(i, a, b, c)| Step::Accuse(i, a, b, c)),
        1 => (0_u32..3, 0_u32..6).prop_map(|(i, c)| Step::Leave(i, c)),
        1 => (0_u32..3, 0_u32..6).prop_map(|(i, c)| Step::Join(i, c)),
        1 => (0_u64..4).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever arrives, bounds hold, each chunk of a request within the image's bounds has one destination, and nobody
    /// is sent to itself.
    #[test]
    fn forged_input_neither_grows_it_nor_panics(
        policy in prop::bool::ANY,
        pending in 0_u8..4,
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let policy = if policy { Policy::LeastLoaded } else { Policy::RoundRobin };
        let config = Config {
            policy,
            pending,
            images: 2,
            clients: 4,
            chunks: 300,
            requests: 8,
            most_bytes: 20_000,
            silence: Span::from_secs(3),
            ..Config::default()
        };
        let mut directory = Directory::new(config);
        let mut now = Time::ZERO;
        for step in steps {
            match step {
                Step::Report(image, from, window, map) => {
                    directory.report(now, image, HostId(from), window, &map);
                }
                Step::Ask(ask) => {
                    let mut next = ask.first;
                    let mut sum = 0;
                    directory.choose(now, ask, |run| {
                        assert!(run.first == next && run.to != Some(ask.from));
                        next += run.count;
                        sum += run.count;
                    });
                    prop_assert!(sum <= ask.count.min(8));
                    prop_assert!(sum == ask.count.min(8) || ask.first + sum >= 300);
                }
                Step::Return(by, ask) => directory.returned(now, HostId(by), ask, |run| {
                    assert!(run.to != Some(HostId(by)) || ask.from == HostId(by));
                }),
                Step::Accuse(image, by, holder, chunk) => {
                    directory.accuse(now, image, HostId(by), HostId(holder), chunk);
                }
                Step::Leave(image, from) => directory.leave(image, HostId(from)),
                Step::Join(image, from) => drop(directory.join(now, image, HostId(from))),
                Step::Wait(secs) => now += Span::from_secs(secs),
            }
            prop_assert!(directory.bytes() <= 20_000);
            prop_assert!(directory.clients() <= 8);
            directory.check();
        }
    }
}
