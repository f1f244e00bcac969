//! Agents that are receivers crash, and hosts join and leave, at any time of a transfer. Every receiver that stays gets
//! every byte.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::flow::SlowPolicy;

/// Three racks of four hosts. Host 0 is the controller, host 1 the sender; all others are agents and may be receivers.
const SENDER: u32 = 1;
const MOST: u64 = 20;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A host goes down and returns after this many microseconds without state.
    Crash(u32, u64),
    /// The controller loses its state.
    Forget(u64),
    Leave(u32),
    Join(u32),
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let host = 2..12_u32;
    let down = 100..20_000_u64;
    let step = prop_oneof![
        4 => (host.clone(), down.clone()).prop_map(|(host, down)| Step::Crash(host, down)),
        1 => down.prop_map(Step::Forget),
        2 => host.clone().prop_map(Step::Leave),
        2 => host.prop_map(Step::Join),
    ];
    proptest::collection::vec((0..15_000_u64, step), 1..10)
}

fn play(seed: u64, steps: &[(u64, Step)], slow: SlowPolicy, lossy: bool) {
    let faults = if lossy { faults() } else { Vec::new() };
    let mut net = started(leaf_spine(3, 4, 2), seed, &faults);
    let flow = FlowConfig { slow, ..FlowConfig::default() };
    let mut staying = [2, 4, 5, 6, 8, 9, 10].map(Some).to_vec();
    net.open(
        SENDER,
        9,
        &staying.iter().flatten().copied().collect::<Vec<_>>(),
        Spread::Labels,
        flow,
        6 * LENGTH,
    );
    let begin = net.now();
    let mut todo: Vec<_> = Vec::new();
    for (at, step) in steps {
        let at = begin + Span::from_us(*at);
        todo.push((at, Some(*step), 0));
        if let Step::Crash(host, down) = *step {
            todo.push((at + Span::from_us(down), None, host));
        }
        if let Step::Forget(down) = *step {
            todo.push((at + Span::from_us(down), None, 0));
        }
    }
    todo.sort_by_key(|(at, ..)| *at);
    let gone = |staying: &mut Vec<Option<u32>>, gone: u32| staying.retain(|it| *it != Some(gone));
    for (at, step, back) in todo {
        net.run_until(at);
        match step {
            None => net.crash(back, false),
            Some(Step::Forget(_)) => net.crash(0, true),
            Some(Step::Crash(host, _)) => {
                net.crash(host, true);
                gone(&mut staying, host);
            }
            Some(Step::Leave(host)) => {
                net.with_host(host, |now, host| host.leave(now, Session(9), Reason::Left));
                gone(&mut staying, host);
            }
            Some(Step::Join(host)) => {
                // No assertion for a host that was down: it may be about to be removed.
                if !net.stations()[host as usize].down && !net.is_finished(SENDER, 9) {
                    net.with_host(SENDER, |now, it| it.add(now, Session(9), HostId(host)));
                }
            }
        }
    }
    net.run_for(Span::from_secs(MOST), |net| net.is_finished(SENDER, 9));
    for host in staying.into_iter().flatten() {
        assert!(net.has_whole(host, 9, 6 * LENGTH), "h{host} {}", net.state());
    }
    // No session is left over.
    net.run_for(Span::from_secs(MOST), |net| net.controller().sessions().count() == 0);
}

/// The controller loses its state and makes the sender its rack's active agent before it knows that the sender sends.
#[test]
fn the_sender_becomes_the_active_agent() {
    use Step::{Crash, Forget, Leave};
    let steps = [
        (3811, Forget(3908)),
        (7133, Crash(4, 10494)),
        (7143, Crash(6, 12252)),
        (3822, Leave(10)),
        (6602, Crash(7, 14864)),
    ];
    play(1_038_413, &steps, SlowPolicy::Wait, false);
}

fn slow() -> impl Strategy<Value = SlowPolicy> {
    prop_oneof![Just(FlowConfig::default().slow), Just(SlowPolicy::Wait)]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..rackweave_testing::cases(24)
    })]

    #[test]
    fn receivers_that_stay_have_every_byte(seed in 0..1_u64 << 40, steps in steps(), slow in slow(), lossy in any::<bool>()) {
        play(seed, &steps, slow, lossy);
    }
}
