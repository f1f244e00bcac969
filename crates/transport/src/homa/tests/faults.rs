//! Networks that lose, double, reorder and delay, hosts that restart, and peers that are silent.

use std::sync::Arc;

use proptest::prelude::*;
use rackweave_core::Span;

use super::robust::any_header;
use super::{Config, Host, LINK, PROFILES, packet, profile};
use crate::tests::chaos;

/// All profiles, and the kernel module's own way of repairing.
fn config(which: usize) -> Config {
    match which {
        PROFILES => Config { max_restarts: 0, ..Config::linux(LINK) },
        _ => profile(which),
    }
}

fn idle(host: &Host) -> bool {
    host.check_bounds();
    host.is_idle()
}

fn held(host: &Host) -> usize {
    host.rpcs_under_way() as usize
}

proptest! {
    #[test]
    fn each_message_arrives_once_or_fails(schedule in chaos::schedules(), which in 0..=PROFILES) {
        let config = Arc::new(config(which));
        chaos::run(&schedule, |id| Host::new(id, Arc::clone(&config)), idle)?;
    }
}

#[test]
fn moderate_faults_fail_nothing() {
    for which in 0..PROFILES {
        let config = Arc::new(config(which));
        chaos::moderate_faults_fail_nothing(|id| Host::new(id, Arc::clone(&config)));
    }
}

#[test]
fn packets_later_than_all_timers_do_no_harm() {
    for which in 0..PROFILES {
        let config = Arc::new(config(which));
        let new = |id| Host::new(id, Arc::clone(&config));
        chaos::late_packets_do_no_harm(new, idle, Span::from_ms(60));
    }
}

#[test]
fn a_silent_peer_leaves_nothing_behind() {
    for which in 0..=PROFILES {
        let config = Arc::new(config(which));
        chaos::silent_peer(|id| Host::new(id, Arc::clone(&config)), idle, held);
    }
}

#[test]
fn sources_without_number_leave_nothing_behind() {
    for which in 0..=PROFILES {
        let config = Config { max_rpcs: 5_000, ..config(which) };
        let patience = config.tick.0 * u64::from(2 * config.patience());
        let config = Arc::new(config);
        let new = |id| Host::new(id, Arc::clone(&config));
        chaos::spoofed_sources(new, held, 5_000, Span(patience));
    }
}

#[test]
fn forged_packets_of_all_types_leave_nothing_behind() {
    for which in 0..=PROFILES {
        let mut config = config(which);
        config.max_rpcs = 200;
        config.max_control = 100;
        config.max_finished = 100;
        let config = Arc::new(config);
        let new = |id| Host::new(id, Arc::clone(&config));
        let forge = |rng: &mut _, from: super::HostId| packet(from.0, 0, any_header(rng));
        chaos::flood(new, forge, Host::check_bounds, held, Span::from_secs(2));
    }
}
