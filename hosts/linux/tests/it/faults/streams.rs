//! Streams under faults: the bytes read are those written, in order, and each stream ends at both ends, normally or
//! with a reason.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::{FailReason, HostId, MessageId, Rng, Span, Time};
use rackweave_linux::{Clock, Endpoint, EndpointConfig, Event, Peers};
use rackweave_transport::TransportConfig;
use rackweave_transport::testkit::Faults;

use super::relay::Relay;
use crate::common::{PATIENCE, local, transports};

/// Returns the byte at an offset of a direction.
fn byte(id: MessageId, at: u64) -> u8 {
    (rackweave_core::rng::mix(id.0) ^ at ^ at >> 8) as u8
}

fn piece(id: MessageId, from: u64, len: u64) -> Bytes {
    (from..from + len).map(|at| byte(id, at)).collect()
}

/// The test's state of one end of a stream.
#[derive(Debug, Default)]
struct End {
    /// Whether its application knows of the stream.
    open: bool,
    cancelled: bool,
    closed: u32,
    failed: Vec<FailReason>,
    written: u64,
    acked: u64,
    finished: bool,
    read: u64,
    unconsumed: u64,
    peer_finished: bool,
}

impl End {
    fn is_over(&self) -> bool {
        self.cancelled || self.closed > 0 || !self.failed.is_empty()
    }
}

struct World {
    name: String,
    clock: Clock,
    begun: Time,
    relay: Relay,
    hosts: [Endpoint; 2],
    rng: Rng,
    /// The two ends of each stream: at host 0, which opens all of them, and at host 1.
    streams: BTreeMap<MessageId, [End; 2]>,
    steps: u32,
}

const OTHER: [HostId; 2] = [HostId(1), HostId(0)];

impl World {
    fn new(name: &str, transport: &TransportConfig, seed: u64, faults: Faults) -> Self {
        let clock = Clock::start();
        let mut relay = Relay::new(seed, faults);
        let port = relay.socket.local_addr();
        let hosts = [0, 1].map(|host| {
            let peers = Peers::Switch { port, hosts: 2 };
            let config = EndpointConfig::new(HostId(host), local(), peers, transport);
            Endpoint::new(EndpointConfig { clock, ..config }).unwrap()
        });
        relay.hosts = hosts.iter().map(Endpoint::local_addr).collect();
        let rng = Rng::stream(seed, 0, 0, "streams");
        let (begun, name) = (clock.now(), format!("{name}, seed {seed}"));
        Self { name, clock, begun, relay, hosts, rng, streams: BTreeMap::new(), steps: 0 }
    }

    /// Performs a random action at both ends of each stream. After the last round, everything is written and read to
    /// the end.
    fn act(&mut self) {
        let chaos = self.steps < 200;
        self.steps += 1;
        let rng = &mut self.rng;
        if chaos && self.streams.len() < 5 && rng.chance(0.3) {
            let id = self.hosts[0].open(OTHER[0], Time::MAX).unwrap();
            self.streams.insert(id, [End { open: true, ..End::default() }, End::default()]);
        }
        for (&id, ends) in &mut self.streams {
            for (host, end) in ends.iter_mut().enumerate().filter(|(_, e)| e.open && !e.is_over()) {
                let (endpoint, peer) = (&mut self.hosts[host], OTHER[host]);
                let (own, other) = [(id, id.response()), (id.response(), id)][host];
                if !end.finished && (rng.chance(0.3) || !chaos) {
                    let len = if chaos { rng.below(20_000) } else { 0 };
                    let last = !chaos || rng.chance(0.03);
                    if len > 0 || last {
                        let bytes = piece(own, end.written, len);
                        endpoint.write(peer, own, bytes, last).unwrap();
                        end.written += len;
                        end.finished = last;
                    }
                }
                assert_eq!(endpoint.unacknowledged(peer, own), end.written - end.acked);
                if rng.chance(0.4) || !chaos {
                    let most = if chaos { rng.below(80_000) } else { u64::MAX };
                    let bytes = end.unconsumed.min(most);
                    {
                        endpoint.consume(peer, other, bytes);
                    }
                    end.unconsumed -= bytes;
                }
                if chaos && rng.chance(0.002) {
                    endpoint.cancel(peer, id);
                    end.cancelled = true;
                }
            }
        }
    }

    fn take_events(&mut self) {
        for host in 0..2 {
            while let Some(event) = self.hosts[host].poll_event() {
                let context = format!("{}: h{host}: {event:?}", self.name);
                let (Event::Opened { id, .. }
                | Event::Readable { id, .. }
                | Event::Written { id, .. }
                | Event::Closed { id, .. }
                | Event::Failed { id, .. }) = event
                else {
                    panic!("{context}");
                };
                let ends = self.streams.get_mut(&MessageId(id.0 & !1)).expect("one of ours");
                let written = ends[1 - host].written;
                let finished = ends[1 - host].finished;
                let end = &mut ends[host];
                assert!(!end.is_over(), "{context}: {end:?}");
                match event {
                    Event::Opened { .. } => {
                        assert!(host == 1 && !end.open, "{context}");
                        end.open = true;
                    }
                    Event::Readable { pieces, end: last, .. } => {
                        for piece in pieces {
                            let right = (end.read..).zip(&piece).all(|(at, b)| *b == byte(id, at));
                            assert!(right, "{}: {id} at {}", self.name, end.read);
                            end.read += piece.len() as u64;
                            end.unconsumed += piece.len() as u64;
                        }
                        assert!(end.read <= written && !end.peer_finished, "{end:?}");
                        assert!(!last || finished && end.read == written, "{end:?}");
                        end.peer_finished = last;
                    }
                    Event::Written { bytes, .. } => {
                        end.acked += bytes;
                        assert!(end.acked <= end.written);
                    }
                    Event::Closed { .. } => {
                        end.closed += 1;
                        assert!(end.finished && end.peer_finished && end.acked == end.written);
                    }
                    Event::Failed { reason, .. } => end.failed.push(reason),
                    _ => {}
                }
            }
        }
    }

    fn turn(&mut self) -> bool {
        let now = self.clock.now();
        if now.since(self.begun) >= PATIENCE {
            let open = self.streams.iter().filter(|(_, ends)| !ends.iter().all(End::is_over));
            panic!("{}: {:?}", self.name, open.collect::<Vec<_>>());
        }
        self.act();
        self.relay.turn(now);
        for end in &mut self.hosts {
            end.turn().unwrap();
        }
        self.take_events();
        // The server may never have learnt of a stream that failed.
        let over = |ends: &[End; 2]| {
            ends[0].is_over() && (ends[1].is_over() || !ends[1].open && ends[0].closed == 0)
        };
        self.steps > 200 && self.streams.values().all(over)
    }

    fn check(&self) {
        for (id, ends) in &self.streams {
            let cancelled = ends.iter().any(|end| end.cancelled);
            for end in ends {
                let context = format!("{}: {id}: {ends:?}", self.name);
                assert!(end.closed as usize + end.failed.len() <= 1, "{context}");
                for reason in &end.failed {
                    let possible = match reason {
                        FailReason::Cancelled => cancelled,
                        // An end that gives up tells the other that the stream no longer exists.
                        FailReason::PeerSilent | FailReason::PeerForgot => true,
                        FailReason::Deadline | FailReason::HostCrashed => false,
                    };
                    assert!(possible, "{context}");
                }
            }
        }
    }
}

#[test]
fn streams_arrive_in_order_or_fail() {
    let mut worlds = Vec::new();
    for (name, transport) in transports() {
        if !name.contains("homa") && !name.contains("tcp") {
            continue;
        }
        for seed in 0..3 {
            let share = seed as f64 / 2.0;
            let (loss, duplication, reordering) = (0.1 * share, 0.2 * share, 0.5 * share);
            let faults = Faults { loss, duplication, reordering, lateness: Span::from_ms(2) };
            worlds.push(World::new(name, &transport, seed, faults));
        }
    }
    let mut closed = 0;
    while !worlds.is_empty() {
        worlds.retain_mut(|world| {
            let over = world.turn();
            if over {
                world.check();
                let ends = world.streams.values().flatten();
                closed += ends.map(|end| end.closed).sum::<u32>();
            }
            !over
        });
    }
    assert!(closed > 60, "{closed}");
}
