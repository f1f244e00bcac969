//! How many bytes a server keeps for a peer that has made one call: at once, and after it was idle for ten minutes and more.
//!
//! `cargo bench -p rackweave-linux --bench idle_peers --profile dev` runs a server's endpoint and those of its peers over a simulated
//! network whose clock is advanced, and counts what is allocated. The bytes are the same in each run of one build.
#![allow(unsafe_code, reason = "an allocator counts what is allocated")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rackweave_core::rng::mix;
use rackweave_core::{HostId, Kind, Rate, Span, Time};
use rackweave_linux::sys::{ReceiveBatch, SendBatch};
use rackweave_linux::{Clock, Endpoint, EndpointConfig, Event, Key, Peers, Platform};
use rackweave_transport::{TransportConfig, homa, polo, tcp};

/// Peers after which bytes are counted, and after which they are counted again.
const STEPS: [u32; 2] = [100, 10_100];

/// A call's length, and that of its response.
const BYTES: usize = 100;

/// The time of a datagram between two hosts, and between two turns of a host.
const TURN: Span = Span::from_us(20);

/// The system's allocator, which counts.
struct Counting;

/// Bytes that are allocated.
static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A datagram with the address of its sender or receiver, and its traffic class.
type Datagram = (SocketAddr, u8, Vec<u8>);

#[derive(Default)]
struct State {
    now: Time,
    random: u64,
    inbox: VecDeque<Datagram>,
    sent: VecDeque<Datagram>,
}

/// The machine below an endpoint.
#[derive(Clone)]
struct Simulated(Arc<Mutex<State>>);

impl Simulated {
    fn new(now: Time, random: u64) -> Self {
        Self(Arc::new(Mutex::new(State { now, random, ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Platform for Simulated {
    fn send(&mut self, batch: &mut SendBatch) -> io::Result<u64> {
        let mut state = self.state();
        while let Some(datagram) = batch.pop() {
            state.sent.push_back(datagram);
        }
        Ok(0)
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> io::Result<()> {
        batch.fill(&mut self.state().inbox);
        Ok(())
    }

    fn now(&self, _: Clock) -> Time {
        self.state().now
    }

    fn random(&mut self) -> u128 {
        let mut state = self.state();
        state.random += 2;
        u128::from(mix(state.random)) << 64 | u128::from(mix(state.random + 1))
    }

    fn realtime_ns(&self) -> u64 {
        1_800_000_000_000_000_000 + self.state().now.as_ns()
    }

    fn has_aes(&self) -> bool {
        true
    }
}

/// A host with its endpoint.
struct Machine {
    address: SocketAddr,
    platform: Simulated,
    endpoint: Endpoint<Simulated>,
}

impl Machine {
    fn new(address: SocketAddr, transport: &TransportConfig, key: bool, now: Time) -> Self {
        let SocketAddr::V4(v4) = address else { unreachable!("addresses are of IPv4") };
        let number = v4.ip().to_bits();
        let platform = Simulated::new(now, u64::from(number) << 32);
        let allow = vec!["10.0.0.0/8".parse().expect("a network")];
        let peers = Peers::Direct { hosts: BTreeMap::new(), allow };
        let config = EndpointConfig::new(HostId(number & 0xf_ffff), address, peers, transport);
        let config = if key { config.key(Key::derive(&[7; 32]).expect("a key")) } else { config };
        let endpoint = Endpoint::on(config, platform.clone()).expect("a valid configuration");
        Self { address, platform, endpoint }
    }

    /// Makes a turn, and answers requests; returns whether a response has arrived, and when the next turn is due.
    fn turn(&mut self, now: Time) -> (bool, Option<Time>) {
        self.platform.state().now = now;
        let mut next = self.endpoint.turn().expect("the network works");
        let mut answered = false;
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Message { peer, id, kind: Kind::Request, bytes } => {
                    self.endpoint.respond(peer, id, bytes).expect("there is room");
                    next = Some(now);
                }
                Event::Message { kind: Kind::Response, .. } => answered = true,
                Event::Failed { reason, .. } => panic!("a call has failed: {reason}"),
                _ => {}
            }
        }
        (answered, next)
    }
}

/// Makes one call of a new peer, which is gone afterwards; returns the time.
fn call(server: &mut Machine, number: u32, kind: &(TransportConfig, bool), start: Time) -> Time {
    let address = SocketAddr::from((Ipv4Addr::from_bits(0x0a01_0000 + number), 9));
    let mut client = Machine::new(address, &kind.0, kind.1, start);
    let host = client.endpoint.add_peer(server.address);
    client.endpoint.send(host, Kind::Request, Bytes::from(vec![1; BYTES])).expect("there is room");
    let (mut now, mut end) = (start, None);
    // What is sent after the response: acknowledgements.
    while end.is_none_or(|end| now < end) {
        assert!(now < start + Span::from_secs(1), "the call has no answer");
        let (answered, _) = client.turn(now);
        server.turn(now);
        if answered {
            end = Some(now + Span::from_ms(20));
        }
        let mut states = [client.platform.state(), server.platform.state()];
        let [client_state, server_state] = &mut states;
        for (to, class, bytes) in client_state.sent.drain(..) {
            assert_eq!(to, server.address);
            server_state.inbox.push_back((address, class, bytes));
        }
        for (to, class, bytes) in server_state.sent.drain(..) {
            if to == address {
                client_state.inbox.push_back((server.address, class, bytes));
            }
        }
        // While nothing happens, time is advanced in larger steps.
        let quiet = states.iter().all(|state| state.inbox.is_empty());
        now += if quiet { Span::from_us(500) } else { TURN };
    }
    now
}

/// Advances the server's clock, on which it makes the turns that it asks for.
fn wait(server: &mut Machine, mut now: Time, until: Time) {
    while let (_, Some(next)) = server.turn(now)
        && next <= until
    {
        now = next.max(now + TURN);
        server.platform.state().sent.clear();
    }
    server.platform.state().sent.clear();
}

#[expect(clippy::cast_precision_loss, reason = "numbers of bytes are far below 2^53")]
fn main() {
    let link = Rate::from_gbps(10);
    let homa = TransportConfig::Homa(Arc::new(homa::Config::linux(link)));
    let polo = TransportConfig::Polo(Arc::new(polo::Config::slides().for_hosts()));
    let tcp = TransportConfig::Tcp(Arc::new(tcp::Config::tcp()));
    println!("bytes for each of {} peers:", STEPS[1] - STEPS[0]);
    for (name, transport, key) in [
        ("homa", &homa, false),
        ("homa, key", &homa, true),
        ("polo", &polo, false),
        ("tcp", &tcp, false),
    ] {
        let kind = (transport.clone(), key);
        let at = SocketAddr::from(([10, 0, 0, 1], 9));
        let mut server = Machine::new(at, transport, key, Time::ZERO);
        let mut now = Time::ZERO;
        let mut number = 0;
        let mut counts = Vec::new();
        for peers in STEPS {
            while number < peers {
                now = call(&mut server, number, &kind, now);
                number += 1;
            }
            counts.push(LIVE.load(Relaxed));
        }
        let each = |live: usize| (live as f64 - counts[0] as f64) / f64::from(STEPS[1] - STEPS[0]);
        let mut report = format!("{name:<10} {:7.0} at once", each(counts[1]));
        for (after, words) in [(3, "after 3 s"), (630, "after 10.5 min"), (1260, "after 21 min")] {
            let until = now.max(Time::ZERO + Span::from_secs(after) + Span::from_secs(300));
            wait(&mut server, now, until);
            // An idle server makes no turn. One peer, which is not idle, calls.
            now = call(&mut server, 0, &kind, until);
            report += &format!(", {:6.0} {words}", each(LIVE.load(Relaxed)));
        }
        println!("{report}");
    }
}
