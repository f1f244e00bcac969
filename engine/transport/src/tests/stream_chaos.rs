//! Under any interleaving of applications' actions and any faults, the bytes read are the bytes written, and each
//! stream ends at both ends, regularly or with a reason.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rackweave_core::{
    Event, FailReason, HostId, MessageId, Rate, Rng, Span, StreamEvent, Time, Transport,
};

use super::Network;
use crate::testkit::Faults;

#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    seed: u64,
    hosts: u32,
    streams: u64,
    longest: u64,
    /// The window that the hosts have.
    window: u64,
    faults: Faults,
    /// Bit `i` is set if a host restarts in step `i` of 32.
    restarts: u32,
    outages: u32,
    /// Share of streams that are cancelled.
    cancels: f64,
    deadlines: f64,
}

/// Draws schedules for hosts with this window.
pub(crate) fn schedules(window: u64) -> impl Strategy<Value = Schedule> {
    let faults = (0.0..0.4, 0.0..0.4, 0.0..0.9, 0_u64..3_000).prop_map(
        |(loss, duplication, reordering, us)| Faults {
            loss,
            duplication,
            reordering,
            lateness: Span::from_us(us),
        },
    );
    let size = (2_u32..5, 1_u64..16, 1_u64..60_000);
    let rare = any::<(u32, u32, u32, u32)>();
    (any::<u64>(), size, faults, rare, 0.0..0.3, 0.0..0.3).prop_map(
        move |(seed, (hosts, streams, longest), faults, rare, cancels, deadlines)| Schedule {
            seed,
            hosts,
            streams,
            longest,
            window,
            faults,
            restarts: rare.0 & rare.1 & rare.2 & rare.3,
            outages: !rare.0 & rare.1 & rare.2 & rare.3,
            cancels,
            deadlines,
        },
    )
}

/// One stream as the test drives it.
#[derive(Debug)]
struct Driven {
    client: u32,
    server: u32,
    id: MessageId,
    /// Whether it was cancelled at the client and at the server.
    cancelled: [bool; 2],
    has_deadline: bool,
}

impl Driven {
    fn ends(&self) -> [(u32, u32, MessageId); 2] {
        [(self.client, self.server, self.id), (self.server, self.client, self.id.response())]
    }
}

/// Runs a schedule over hosts made by `new`, until all of them are `idle`. `check` is called at each step.
pub(crate) fn run<T: Transport>(
    schedule: &Schedule,
    new: impl Fn(HostId) -> T,
    idle: impl Fn(&T) -> bool,
    check: impl Fn(&T),
) -> Result<(), TestCaseError> {
    let hosts = (0..schedule.hosts).map(|id| new(HostId(id))).collect();
    let (link, delay) = (Rate::from_gbps(10), Span::from_us(3));
    let mut network = Network::with_faults(hosts, link, delay, schedule.seed, schedule.faults);
    network.stream_window = Some(schedule.window);
    network.consume = false;
    let mut rng = Rng::stream(schedule.seed, 0, 0, "streams");
    let mut streams: Vec<Driven> = Vec::new();
    let mut restarted = vec![false; schedule.hosts as usize];
    for step in 0..32 {
        if (streams.len() as u64) < schedule.streams && rng.chance(0.7) {
            let client = rng.below(u64::from(schedule.hosts)) as u32;
            let others = u64::from(schedule.hosts - 1);
            let server = (client + 1 + rng.below(others) as u32) % schedule.hosts;
            let id = MessageId::request(streams.len() as u64 + 1);
            let has_deadline = rng.chance(schedule.deadlines);
            let deadline = if has_deadline {
                network.now() + Span::from_us(1 + rng.below(30_000))
            } else {
                Time::MAX
            };
            network.open(client, server, id, deadline).expect("taken");
            let cancelled = [false; 2];
            streams.push(Driven { client, server, id, cancelled, has_deadline });
        }
        for stream in &mut streams {
            for (end, (at, peer, id)) in stream.ends().into_iter().enumerate() {
                let (bytes, last) = (rng.below(schedule.longest), rng.chance(0.1));
                // Refused if the stream does not exist yet, or no longer.
                if rng.chance(0.4) {
                    let _ = network.write(at, peer, id, bytes, last);
                }
                if rng.chance(0.5) {
                    let most = rng.below(2 * schedule.longest);
                    network.consume(at, peer, MessageId(id.0 ^ 1), most);
                }
                if rng.chance(schedule.cancels / 20.0) && network.is_open(at, peer, stream.id) {
                    network.cancel_stream(at, peer, stream.id);
                    stream.cancelled[end] = true;
                }
            }
        }
        // Messages between the same hosts, which share grants and queues with the streams.
        if rng.chance(0.3) {
            let id = MessageId::request(1_000 + step);
            let bytes = 1 + rng.below(schedule.longest);
            network.submit(0, 1, id, bytes, rackweave_core::Kind::Request).expect("taken");
        }
        let host = rng.below(u64::from(schedule.hosts)) as u32;
        if schedule.restarts >> step & 1 == 1 {
            network.restart(host, new(HostId(host)));
            restarted[host as usize] = true;
        }
        network.set_down(host, schedule.outages >> step & 1 == 1);
        network.run_until(network.now() + Span::from_us(rng.below(4_000)));
        network.set_down(host, false);
        network.hosts.iter().for_each(&check);
    }
    // All streams that are still open are written to their end and read to the end.
    network.consume = true;
    for _ in 0..40 {
        for stream in &streams {
            for (at, peer, id) in stream.ends() {
                network.consume(at, peer, MessageId(id.0 ^ 1), u64::MAX);
                // Refused if the direction has ended; a restarted server does not know of the end.
                let _ = network.write(at, peer, id, 0, true);
            }
        }
        network.run_until(network.now() + Span::from_ms(100));
        network.hosts.iter().for_each(&check);
    }
    let everything_ended = network.run_until(network.now() + Span::from_secs(60));
    prop_assert!(everything_ended, "the hosts go on and on");
    prop_assert!(network.hosts.iter().all(idle));

    check_fates(schedule, &network, &streams, &restarted)
}

/// Checks that each stream ended once at each end, for a reason that occurred.
fn check_fates<T: Transport>(
    schedule: &Schedule,
    network: &Network<T>,
    streams: &[Driven],
    restarted: &[bool],
) -> Result<(), TestCaseError> {
    let mut closed = BTreeMap::new();
    let mut failed = BTreeMap::new();
    for (_, host, event) in &network.events {
        match *event {
            Event::Stream(StreamEvent::Closed { peer, id }) => {
                *closed.entry((host.0, peer.0, id)).or_insert(0) += 1;
            }
            Event::Failed { peer, id, reason } => {
                failed.entry((host.0, peer.0, id)).or_insert(Vec::new()).push(reason);
            }
            _ => {}
        }
    }
    for stream in streams {
        let Driven { client, server, id, cancelled, has_deadline, .. } = *stream;
        for ((at, peer), cancelled_here) in [((client, server), 0), ((server, client), 1)] {
            let closed = closed.get(&(at, peer, id)).copied().unwrap_or(0);
            let failed = failed.get(&(at, peer, id)).map_or(&[][..], Vec::as_slice);
            let ends = closed + failed.len() as u32 + u32::from(cancelled[cancelled_here]);
            let case = format!("{stream:?} at h{at}: closed {closed}, failed {failed:?}");
            if !restarted[at as usize] {
                prop_assert!(ends <= 1, "{case}");
                // The server may never have received a packet of it.
                prop_assert!(ends == 1 || at == server && !opened(network, at, peer, id), "{case}");
            }
            for reason in failed {
                let possible = match reason {
                    FailReason::Deadline => has_deadline,
                    FailReason::Cancelled => cancelled[0] || cancelled[1],
                    FailReason::PeerSilent => schedule.faults.loss > 0.0 || schedule.outages > 0,
                    FailReason::PeerForgot | FailReason::HostCrashed => true,
                };
                prop_assert!(possible, "{case}");
            }
        }
    }
    Ok(())
}

fn opened<T: Transport>(network: &Network<T>, at: u32, peer: u32, id: MessageId) -> bool {
    let opened = Event::Stream(StreamEvent::Opened { peer: HostId(peer), id });
    network.events_at(at).any(|event| event == opened)
}
