//! How much memory a server keeps for a peer that has made one call and is idle.
//!
//! `cargo bench -p rackweave-rpc --bench idle_peers --config profile.bench.lto=false` starts a server of each kind as a
//! process of its own, and makes one call from each of 100, 1,000 and 10,000 peers (addresses 127.1.0.0 and up). It
//! prints the resident memory of the server that no file backs, for each peer beyond the first 100.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rackweave_rpc::{Incoming, Key, Node, NodeConfig, Rate, Transport};
use tokio::task::JoinSet;

const STEPS: [u32; 3] = [100, 1_000, 10_000];

/// Peers that call at a time.
const AT_ONCE: u32 = 50;

/// A call's length, and that of its response.
const BYTES: usize = 100;

fn kinds() -> Vec<(&'static str, Transport, bool)> {
    let link = Rate::from_gbps(10);
    vec![
        ("homa", Transport::homa(link), false),
        ("homa, key", Transport::homa(link), true),
        ("polo", Transport::polo(link), false),
        ("tcp", Transport::tcp(link), false),
    ]
}

fn config(kind: usize, address: SocketAddr) -> NodeConfig {
    let (_, transport, has_key) = kinds().swap_remove(kind);
    let config =
        NodeConfig::new(transport, address).allow("127.0.0.0/8".parse().expect("a network"));
    if has_key { config.key(Key::derive(&[7; 32]).expect("a key")) } else { config }
}

/// Answers calls until the parent has gone.
fn serve(kind: usize) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let node = Node::bind(config(kind, SocketAddr::from(([127, 0, 0, 1], 0)))).expect("a node");
        println!("{}", node.local_addr());
        std::io::stdout().flush().expect("somebody reads");
        let server = node.server();
        while let Some(incoming) = server.next().await {
            if let Incoming::Request(mut request) = incoming {
                let bytes = request.take_bytes();
                let _ = request.respond(bytes).await;
            }
        }
    });
}

struct Server(Child, SocketAddr);

impl Server {
    fn start(kind: usize) -> Self {
        let program = std::env::current_exe().expect("a path");
        let mut child = Command::new(program)
            .args(["--serve", &kind.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("an address");
        Self(child, line.trim().parse().expect("an address"))
    }

    /// Its resident memory that no file backs, in KiB.
    fn kib(&self) -> i64 {
        let path = format!("/proc/{}/status", self.0.id());
        let status = std::fs::read_to_string(path).expect("a process");
        let line = status.lines().find(|line| line.starts_with("RssAnon")).expect("RssAnon");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("KiB")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn call(kind: usize, number: u32, server: SocketAddr) {
    let ip = Ipv4Addr::from_bits(0x7f01_0000 + number);
    let node = Node::bind(config(kind, SocketAddr::from((ip, 0)))).expect("a node");
    let peer = node.peer(server);
    // A machine with much else to do may leave the server without a turn for longer than a transport waits.
    let call = node.client().call(peer, vec![1; BYTES]).idempotent();
    call.deadline(Duration::from_secs(60)).await.expect("a response");
    node.shutdown().await;
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1)?.parse::<u64>().ok()
    };
    if let Some(kind) = value("--serve") {
        return serve(kind as usize);
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for (kind, (name, ..)) in kinds().into_iter().enumerate() {
        let server = Server::start(kind);
        println!("{name}: {} KiB before the first peer", server.kib());
        let (mut first, mut done) = (0, 0);
        for peers in STEPS {
            runtime.block_on(async {
                for first in (done..peers).step_by(AT_ONCE as usize) {
                    let mut calls = JoinSet::new();
                    for number in first..peers.min(first + AT_ONCE) {
                        calls.spawn(call(kind, number, server.1));
                    }
                    calls.join_all().await;
                }
            });
            done = peers;
            // The last acknowledgements, and what the server does after them.
            runtime.block_on(async { tokio::time::sleep(Duration::from_secs(3)).await });
            let kib = server.kib();
            if peers == STEPS[0] {
                first = kib;
                println!("  {peers} peers: {kib} KiB");
            } else {
                let each = (kib - first) * 1024 / i64::from(peers - STEPS[0]);
                println!(
                    "  {peers} peers: {kib} KiB, {each} bytes for each beyond the first {}",
                    STEPS[0]
                );
            }
        }
    }
}
