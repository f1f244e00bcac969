//! Measures a 100-byte call and its 100-byte response on loopback, alternating in the same run with a plain tokio TCP
//! connection: with both ends in one process on a multi-thread runtime, and in two processes.
//!
//! `cargo bench -p rackweave-rpc --bench latency`

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rackweave_rpc::{Bytes, Client, Incoming, Node, NodeConfig, Peer, Rate, Server, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const BYTES: usize = 100;
const ROUNDS: usize = 10;
const CALLS: usize = 3_000;

fn transports() -> Vec<(&'static str, Transport)> {
    let link = Rate::from_gbps(10);
    vec![
        ("homa", Transport::homa(link)),
        ("leverage-homa", Transport::leverage_homa(link)),
        ("polo", Transport::polo(link)),
        ("tcp over UDP", Transport::tcp(link)),
    ]
}

fn node(transport: Transport) -> Node {
    let local: SocketAddr = ([127, 0, 0, 1], 0).into();
    let config = NodeConfig::new(transport, local).allow("127.0.0.1".parse().expect("a network"));
    Node::bind(config).expect("a node")
}

async fn echo(server: Server) {
    while let Some(incoming) = server.next().await {
        if let Incoming::Request(mut request) = incoming {
            let bytes = request.take_bytes();
            let _ = request.respond(bytes).await;
        }
    }
}

async fn tcp_echo(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            stream.set_nodelay(true).expect("no delay");
            let mut bytes = [0; BYTES];
            while stream.read_exact(&mut bytes).await.is_ok() {
                stream.write_all(&bytes).await.expect("an answer");
            }
        });
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// A client that makes round trips in sequence, over one of the compared systems.
enum System {
    Plain(TcpStream),
    Ours(Client, Peer),
}

impl System {
    async fn run(&mut self, times: &mut Vec<Duration>) {
        let body = Bytes::from(vec![1; BYTES]);
        for _ in 0..CALLS {
            let began = now();
            match self {
                Self::Plain(stream) => {
                    let mut answer = [0; BYTES];
                    stream.write_all(&body).await.expect("a request");
                    stream.read_exact(&mut answer).await.expect("an answer");
                }
                Self::Ours(client, peer) => {
                    client.call(*peer, body.clone()).await.expect("an answer");
                }
            }
            times.push(began.elapsed());
        }
    }
}

/// Measures all systems in turn, and prints each compared with plain TCP.
async fn compare(title: &str, addresses: &[SocketAddr]) {
    let plain = TcpStream::connect(addresses[0]).await.expect("a connection");
    plain.set_nodelay(true).expect("no delay");
    let mut ways = vec![("plain tokio TCP", System::Plain(plain), Vec::new())];
    for ((name, transport), address) in transports().into_iter().zip(&addresses[1..]) {
        let node = node(transport);
        let peer = node.peer(*address);
        ways.push((name, System::Ours(node.client(), peer), Vec::new()));
    }
    for round in 0..=ROUNDS {
        for (_, way, times) in &mut ways {
            if round == 1 {
                // The first round only warms up.
                times.clear();
            }
            way.run(times).await;
        }
    }
    println!("{title}: {} round trips of {BYTES} bytes each", ROUNDS * CALLS);
    let mut base = 0.0;
    for (name, _, times) in &mut ways {
        times.sort_unstable();
        let us = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e6;
        if base == 0.0 {
            base = us(0.5);
        }
        let ratio = us(0.5) / base;
        println!("  {name:16} p50 {:6.1} us  p99 {:6.1} us  {ratio:.2}", us(0.5), us(0.99));
    }
}

/// Starts the servers of all systems, and returns their addresses.
async fn serve() -> Vec<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut addresses = vec![listener.local_addr().expect("an address")];
    tokio::spawn(tcp_echo(listener));
    for (_, transport) in transports() {
        let node = node(transport);
        addresses.push(node.local_addr());
        tokio::spawn(echo(node.server()));
    }
    addresses
}

fn runtime(workers: usize) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(workers).enable_all().build().expect("a runtime")
}

fn main() {
    if std::env::args().any(|arg| arg == "--serve") {
        let runtime = runtime(2);
        let text: Vec<String> = runtime.block_on(serve()).iter().map(ToString::to_string).collect();
        println!("{}", text.join(" "));
        std::io::stdout().flush().expect("somebody reads");
        // Run until the parent has gone.
        let _ = std::io::stdin().read_line(&mut String::new());
        return;
    }
    let together = runtime(2);
    together.block_on(async {
        let addresses = serve().await;
        let main =
            tokio::spawn(async move { compare("one process, two threads", &addresses).await });
        main.await.expect("it ends");
    });
    drop(together);

    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .arg("--serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a second process");
    let mut line = String::new();
    let output = child.stdout.take().expect("its output");
    BufReader::new(output).read_line(&mut line).expect("its addresses");
    let addresses: Vec<SocketAddr> =
        line.split_whitespace().map(|text| text.parse().expect("an address")).collect();
    runtime(2).block_on(async {
        let main = tokio::spawn(async move { compare("two processes", &addresses).await });
        main.await.expect("it ends");
    });
    drop(child.stdin.take());
    child.wait().expect("it ends");
}
