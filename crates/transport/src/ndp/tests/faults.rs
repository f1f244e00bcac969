//! Networks that lose, double, reorder and delay, and hosts that restart.

use std::sync::Arc;

use proptest::prelude::*;
use rackweave_core::Span;

use super::robust::any_packet;
use super::{Config, Host, LINK};
use crate::common::chaos;

fn config(polo: bool) -> Config {
    if polo { Config::polo_slides(LINK) } else { Config::paper(LINK) }
}

proptest! {
    #[test]
    fn each_message_arrives_once_or_fails(schedule in chaos::schedules(), polo: bool) {
        let config = Arc::new(config(polo));
        let idle = |host: &Host| {
            host.check_bounds();
            host.is_idle()
        };
        chaos::run(&schedule, |id| Host::new(id, Arc::clone(&config)), idle)?;
    }
}

#[test]
fn moderate_faults_fail_nothing() {
    for polo in [false, true] {
        let config = Arc::new(config(polo));
        chaos::moderate_faults_fail_nothing(|id| Host::new(id, Arc::clone(&config)));
    }
}

fn idle(host: &Host) -> bool {
    host.check_bounds();
    host.is_idle()
}

fn held(host: &Host) -> usize {
    host.exchanges_under_way() as usize
}

#[test]
fn packets_later_than_all_timers_do_no_harm() {
    for polo in [false, true] {
        let config = Arc::new(config(polo));
        let new = |id| Host::new(id, Arc::clone(&config));
        chaos::late_packets_do_no_harm(new, idle, Span::from_ms(60));
    }
}

#[test]
fn a_silent_peer_leaves_nothing_behind() {
    for polo in [false, true] {
        let config = Arc::new(config(polo));
        chaos::silent_peer(|id| Host::new(id, Arc::clone(&config)), idle, held);
    }
}

#[test]
fn sources_without_number_leave_nothing_behind() {
    let config = Arc::new(Config { max_exchanges: 5_000, ..config(false) });
    let new = |id| Host::new(id, Arc::clone(&config));
    chaos::spoofed_sources(new, held, 5_000, config.patience * 3);
}

#[test]
fn forged_packets_of_all_types_leave_nothing_behind() {
    let limits =
        Config { max_exchanges: 200, max_control: 100, max_finished: 100, ..config(false) };
    let config = Arc::new(limits);
    let new = |id| Host::new(id, Arc::clone(&config));
    let forge = |rng: &mut _, from: super::HostId| any_packet(rng, from.0);
    chaos::flood(new, forge, Host::check_bounds, held, Span::from_secs(2));
}
