//! What an endpoint keeps of peers that were called once: `RACKWEAVE_IDLE_PEERS=100000 cargo test -p rackweave-linux --test it
//! measure_idle_peers -- --nocapture` for a hundred thousand.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;

use rackweave_core::{Kind, Span, Time};
use rackweave_linux::{Clock, Endpoint, EndpointConfig, Event};

use crate::common::{PATIENCE, config, leverage};

/// The environment variable that makes this program measure with this many peers: other tests in the process would count too.
const MEASURE: &str = "RACKWEAVE_IDLE_PEERS";

/// The number without the variable.
const PEERS: u32 = 10_000;

/// Calls that are outstanding.
const WINDOW: u32 = 300;

/// The most bytes of memory for a peer, at the host that has called it and at the one that was called together.
const MOST: u64 = 2500;

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Not a test: this measures, when this program is started for it.
#[test]
fn measure_idle_peers() {
    let Ok(peers) = std::env::var(MEASURE) else { return };
    let peers: u32 = peers.parse().unwrap();
    let clock = Clock::start();
    let end = |host: u32| {
        let bind = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        Endpoint::new(EndpointConfig { bind, ..config(host, &leverage(), clock) }).unwrap()
    };
    // To each host that is called, the caller is a peer for each of its addresses, and there may be 65,536.
    let (mut client, mut servers) = (end(0), [end(1), end(2)]);
    let ports = [0, 1].map(|n: usize| servers[n].local_addr().port());
    let before = resident();
    let (mut begun, mut answered) = (0, 0);
    let mut progress = clock.now();
    while answered < peers {
        while begun < peers && begun - answered < WINDOW {
            let [_, high, middle, low] = begun.to_be_bytes();
            let address = IpAddr::from([127, 1 + high, middle, low]);
            let peer = client.add_peer((address, ports[begun as usize % 2]).into());
            if client.send(peer, Kind::Request, b"once".as_slice().into()).is_err() {
                break;
            }
            begun += 1;
        }
        let mut next = client.turn().unwrap().unwrap_or(Time::MAX);
        for server in &mut servers {
            next = next.min(server.turn().unwrap().unwrap_or(Time::MAX));
            while let Some(event) = server.poll_event() {
                if let Event::Message { peer, id, bytes, .. } = event {
                    server.respond(peer, id, bytes).unwrap();
                }
            }
            server.send_turn().unwrap();
        }
        let now = clock.now();
        while let Some(event) = client.poll_event() {
            match event {
                Event::Message { .. } => (answered, progress) = (answered + 1, now),
                Event::Failed { reason, .. } => panic!("{reason}"),
                _ => {}
            }
        }
        assert!(now.since(progress) < PATIENCE, "{answered} of {begun}: {:?}", client.stats());
        if next > now {
            client.wait(Some(next.min(now + Span::from_us(50)))).unwrap();
        }
    }
    let bytes = resident().saturating_sub(before) / u64::from(peers);
    println!("{bytes} bytes for each of {peers} peers, at both ends together");
    assert!(bytes < MOST, "{bytes}");
}

#[test]
fn peers_that_were_called_once_take_little_memory() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "idle::measure_idle_peers", "--nocapture"])
        .env(MEASURE, PEERS.to_string());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", said.lines().find(|line| line.contains("bytes for each")).unwrap());
}
