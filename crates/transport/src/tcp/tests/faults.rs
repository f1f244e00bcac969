//! What every transport must survive: the same networks and peers as the other machines.

use std::sync::Arc;

use proptest::prelude::*;
use rackweave_core::Span;

use super::chaos::forge;
use crate::tcp::{Config, Host};
use crate::tests::chaos;

fn config(which: u8) -> Config {
    match which {
        0 => Config::tcp(),
        1 => Config::dctcp(),
        _ => Config { handshake: true, sack: false, ..Config::new_reno() },
    }
}

fn idle(host: &Host) -> bool {
    host.backlog() == [0; 6]
}

/// Connections and pools of them, messages, and what waits to be sent or told.
fn held(host: &Host) -> usize {
    host.connections() as usize + host.pools() + host.backlog().iter().sum::<usize>()
}

proptest! {
    #[test]
    fn each_message_arrives_once_or_fails(schedule in chaos::schedules(), which in 0_u8..3) {
        let config = Arc::new(config(which));
        chaos::run(&schedule, |id| Host::new(id, Arc::clone(&config)), idle)?;
    }
}

#[test]
fn moderate_faults_fail_nothing() {
    for which in 0..3 {
        let config = Arc::new(config(which));
        chaos::moderate_faults_fail_nothing(|id| Host::new(id, Arc::clone(&config)));
    }
}

#[test]
fn packets_later_than_all_timers_do_no_harm() {
    for which in 0..3 {
        let config = Arc::new(config(which));
        let new = |id| Host::new(id, Arc::clone(&config));
        chaos::late_packets_do_no_harm(new, idle, Span::from_ms(60));
    }
}

#[test]
fn a_silent_peer_leaves_nothing_behind() {
    for which in 0..3 {
        let config = Arc::new(config(which));
        chaos::silent_peer(|id| Host::new(id, Arc::clone(&config)), idle, held);
    }
}

#[test]
fn sources_without_number_leave_nothing_behind() {
    for which in 0..3 {
        let config = Arc::new(Config { max_connections: 5_000, ..config(which) });
        let new = |id| Host::new(id, Arc::clone(&config));
        chaos::spoofed_sources(new, held, 2 * 5_000, config.idle_timeout * 3);
    }
}

#[test]
fn forged_segments_of_all_kinds_leave_nothing_behind() {
    for which in 0..3 {
        let limits = Config { max_connections: 50, max_messages: 100, ..config(which) };
        let config = Arc::new(Config { initial_sequence: Some(7), ..limits });
        let new = |id| Host::new(id, Arc::clone(&config));
        let forge = |rng: &mut _, from| {
            let mut packet = forge(rng, 7, &[5001 << 16 | 40_000]);
            packet.src = from;
            packet
        };
        let check = |host: &Host| {
            let [control, data, submitted, _, strays, _] = host.backlog();
            assert!(host.connections() <= 50 && submitted <= 100);
            assert!(control <= 50 && data <= 50 && strays <= 256);
        };
        chaos::flood(new, forge, check, held, config.idle_timeout * 3);
    }
}
