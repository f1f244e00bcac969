//! A fixed number of calls between two endpoints on loopback, both turned by one thread: work for counting instructions, not time.
//!
//! `cargo bench -p rackweave-linux --bench calls -- homa 20000`, with `key` at the end for hosts with a key; `bench/instructions` runs it
//! under Valgrind.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;
use rackweave_core::{HostId, Kind, Rate};
use rackweave_crypt::Key;
use rackweave_linux::{Clock, Endpoint, EndpointConfig, Event, Peers};
use rackweave_transport::{TransportConfig, homa, polo, tcp};

/// Calls that are outstanding at a time: enough that several leave in one system call.
const OUTSTANDING: usize = 64;
const BYTES: usize = 100;

fn transport(name: &str) -> Option<TransportConfig> {
    let link = Rate::from_gbps(10);
    Some(match name {
        "homa" => TransportConfig::Homa(Arc::new(homa::Config::linux(link))),
        "polo" => TransportConfig::Polo(Arc::new(polo::Config::slides().for_hosts())),
        "tcp" => TransportConfig::Tcp(Arc::new(tcp::Config::tcp())),
        _ => return None,
    })
}

fn endpoint(host: u32, transport: &TransportConfig, clock: Clock, key: Option<&Key>) -> Endpoint {
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let allow = vec!["127.0.0.1".parse().expect("an address")];
    let peers = Peers::Direct { hosts: BTreeMap::new(), allow };
    let config = EndpointConfig::new(HostId(host), local, peers, transport);
    let (key, link) = (key.cloned(), Rate::from_gbps(10));
    let config = EndpointConfig { clock, link, key, ..config };
    Endpoint::new(config).expect("loopback is there")
}

/// Makes `calls` calls and returns how often both endpoints were turned for them.
fn run(transport: &TransportConfig, calls: u64, key: Option<&Key>) -> u64 {
    let clock = Clock::start();
    let mut server = endpoint(1, transport, clock, key);
    let mut client = endpoint(0, transport, clock, key);
    let peer = client.add_peer(server.local_addr());
    let payload = Bytes::from(vec![7; BYTES]);
    let (mut begun, mut done, mut turns) = (0, 0, 0);
    while done < calls {
        while begun < calls && begun - done < OUTSTANDING as u64 {
            client.send(peer, Kind::Request, payload.clone()).expect("there is room");
            begun += 1;
        }
        client.turn().expect("the socket works");
        server.turn().expect("the socket works");
        turns += 1;
        while let Some(event) = server.poll_event() {
            if let Event::Message { peer, id, kind: Kind::Request, bytes } = event {
                server.respond(peer, id, bytes).expect("there is room");
            }
        }
        while let Some(event) = client.poll_event() {
            match event {
                Event::Message { .. } => done += 1,
                Event::Failed { reason, .. } => panic!("{reason}"),
                _ => {}
            }
        }
    }
    turns
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    let name = args.next().unwrap_or_else(|| "homa".to_owned());
    let calls = args.next().map_or(Ok(10_000), |calls| calls.parse());
    let (Some(transport), Ok(calls)) = (transport(&name), calls) else {
        eprintln!("calls (homa|polo|tcp) NUMBER [key]");
        return ExitCode::from(2);
    };
    let key = args.next().filter(|it| it == "key").and_then(|_| Key::derive(&[7; 32]).ok());
    println!(
        "{name}: {calls} calls, {} turns of both endpoints",
        run(&transport, calls, key.as_ref())
    );
    ExitCode::SUCCESS
}
