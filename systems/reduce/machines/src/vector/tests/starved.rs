//! Hosts that seldom run: starved of processor time, or stopped.

use super::*;

fn job(workers: u8) -> Job {
    let vectors = Vectors { pool: 64, ..vectors(3_000, Format::BlockFloat) };
    Job { has_switch: false, seed: 5, ..Job::new(workers, vectors) }
}

/// A socket has room for 8 MB of memory. The kernel counts 2304 bytes of it for a datagram of a chunk.
const ROOM: usize = 3_600;

#[test]
fn a_host_that_has_a_turn_every_four_seconds_is_not_silent_for_itself() {
    let mut world = World::new(job(3), Faults::default());
    let turns = Turns { interval: Span::from_secs(4), handled: 256, room: ROOM };
    world.run_in_turns(seconds(1_000), turns);
    world.run_to_end(seconds(1_000));
}

/// Eight workers with 64 chunks each, whose master handles 200 packets a second: what they repeat must not fill its socket.
#[test]
fn workers_do_not_keep_a_slow_master_busy_with_copies() {
    let mut world = World::new(job(8), Faults::default());
    let turns = Turns { interval: Span::from_ms(100), handled: 20, room: ROOM };
    world.run_in_turns(seconds(1_000), turns);
    world.run_to_end(seconds(1_000));
    let chunks = world.nodes[1].worker().unwrap().machine().layout().unwrap().end();
    assert!(world.packets < 10 * 8 * chunks, "{} packets for {chunks} chunks", world.packets);
}

#[test]
fn a_job_goes_on_after_all_of_its_hosts_stood_still_for_an_hour() {
    let mut world = World::new(job(3), Faults { delay: Span::from_us(300), ..Faults::default() });
    for step in 1.. {
        world.run(Time::ZERO + Span::from_us(100 * step));
        if world.packets > 200 {
            break;
        }
    }
    assert!(!world.master().has_ended());
    // What was on its way is lost meanwhile.
    while world.flights.pop_due(world.now + Span::from_secs(1)).is_some() {}
    world.now += Span::from_secs(3_600);
    for host in 0..world.nodes.len() {
        world.nodes[host].expire(world.now);
    }
    world.run_to_end(world.now + Span::from_secs(60));
}
