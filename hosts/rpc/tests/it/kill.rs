//! Server processes that are killed and restarted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{PATIENCE, drained, node, transports};
use rackweave_rpc::{CallError, Client, Incoming, Node, NodeConfig, Peer};
use rackweave_testing::free_address;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// The environment variable with the argument of the server process: the transport's name and the address.
const ROLE: &str = "RACKWEAVE_RPC_TEST_SERVER";

/// The deadline of calls that are outstanding when their server is killed. The server must have received them before.
const KILLED_CALL: Duration = Duration::from_secs(8);

/// A server that is killed when this is dropped.
struct Server(Child);

impl Server {
    fn start(transport: &str, address: SocketAddr) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::server_process"])
            .env(ROLE, format!("{transport} {address}"))
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Server {
    fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test: this is the server, when this program is started as one.
#[tokio::test]
async fn server_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (name, address) = role.split_once(' ').unwrap();
    let (_, transport) = transports().into_iter().find(|(known, _)| *known == name).unwrap();
    let config = NodeConfig::new(transport, address.parse().unwrap());
    let node = Node::bind(config.allow("127.0.0.1".parse().unwrap())).unwrap();
    let server = node.server();
    let mut kept = Vec::new();
    let mut executed = BTreeMap::<Vec<u8>, u32>::new();
    while let Some(incoming) = server.next().await {
        match incoming {
            // This request is never answered.
            Incoming::Request(request) if request.bytes().starts_with(b"hold") => {
                kept.push(request);
            }
            Incoming::Request(request) if request.bytes().starts_with(b"held") => {
                request.respond(kept.len().to_string()).await.unwrap();
            }
            Incoming::Request(request) if request.bytes().starts_with(b"once") => {
                *executed.entry(request.bytes().to_vec()).or_default() += 1;
                request.respond("done").await.unwrap_or_default();
            }
            Incoming::Request(request) if request.bytes().starts_with(b"most") => {
                let most = executed.values().max().copied().unwrap_or_default();
                request.respond(format!("{most} {}", executed.len())).await.unwrap_or_default();
            }
            // Only the restarted server answers this request.
            Incoming::Request(request) if request.bytes().starts_with(b"pid") => {
                let pid = std::process::id().to_string();
                request.respond(pid).await.unwrap();
            }
            Incoming::Stream(mut stream) => {
                tokio::spawn(async move {
                    let mut buffer = [0; 1000];
                    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                        stream.write_all(&buffer[..read]).await.unwrap();
                    }
                });
            }
            _ => {}
        }
    }
}

/// Waits until the server has received this many calls, which it does not answer.
async fn until_held(client: &Client, peer: Peer, count: usize) {
    let waits = async {
        loop {
            let call = client.call(peer, "held").deadline(Duration::from_secs(2));
            if call.await.is_ok_and(|held| held == count.to_string()) {
                break;
            }
        }
    };
    timeout(PATIENCE, waits).await.unwrap();
}

/// Returns the server's process id, once it is running.
async fn pid(client: &Client, peer: Peer) -> String {
    let waits = async {
        loop {
            let call = client.call(peer, "pid").deadline(Duration::from_secs(2));
            if let Ok(pid) = call.await {
                return String::from_utf8(pid.to_vec()).unwrap();
            }
        }
    };
    timeout(PATIENCE, waits).await.unwrap()
}

#[tokio::test]
async fn a_killed_server_is_an_error_within_the_deadline_and_a_new_one_serves_again() {
    let mut all = JoinSet::new();
    for (name, transport) in transports() {
        all.spawn(async move {
            let address = free_address();
            let mut server = Server::start(name, address);
            let here = node(&transport);
            let (client, peer) = (here.client(), here.peer(address));
            let first = pid(&client, peer).await;

            // The server is killed and not restarted.
            let call = tokio::spawn(client.call(peer, "hold").deadline(KILLED_CALL).into_future());
            until_held(&client, peer, 1).await;
            server.kill();
            let began = Instant::now();
            let error = timeout(PATIENCE, call).await.unwrap().unwrap().unwrap_err();
            // The kernel reports immediately that the process has ended.
            let clear = matches!(
                error,
                CallError::Deadline { .. }
                    | CallError::PeerSilent { .. }
                    | CallError::PeerForgot { .. }
            );
            eprintln!("{name}: killed: {error} after {:?}", began.elapsed());
            assert!(clear, "{name}: {error}");
            assert!(!error.is_safe_to_retry());

            // A new server starts at the same address.
            let mut server = Server::start(name, address);
            let second = pid(&client, peer).await;
            assert_ne!(first, second, "{name}");

            // The server is killed and restarted in the middle of a call.
            let hold = client.call(peer, "hold").deadline(PATIENCE * 2);
            let hold = tokio::spawn(hold.into_future());
            let again = client.call(peer, "hold again").idempotent().deadline(KILLED_CALL);
            let again = tokio::spawn(again.into_future());
            until_held(&client, peer, 2).await;
            server.kill();
            let _server = Server::start(name, address);
            let error = timeout(PATIENCE, hold).await.unwrap().unwrap().unwrap_err();
            let clear = matches!(
                error,
                CallError::PeerRestarted { .. }
                    | CallError::PeerForgot { .. }
                    | CallError::PeerSilent { .. }
            );
            eprintln!("{name}: restarted: {error}");
            assert!(clear, "{name}: {error}");
            again.await.unwrap().unwrap_err();
            let third = pid(&client, peer).await;
            assert_ne!(second, third, "{name}");
            drained(&here).await;
        });
    }
    all.join_all().await;
}

#[tokio::test]
async fn a_call_that_may_be_made_again_is_answered_by_the_next_life() {
    let mut all = JoinSet::new();
    for (name, transport) in transports() {
        all.spawn(async move {
            let address = free_address();
            let here = node(&transport);
            let (client, peer) = (here.client(), here.peer(address));
            let mut server = Server::start(name, address);
            let first = pid(&client, peer).await;
            server.kill();
            // The call is sent while the server is down, and retried when it has restarted.
            let call = client.call(peer, "pid").idempotent().deadline(PATIENCE);
            let call = tokio::spawn(call.into_future());
            tokio::time::sleep(Duration::from_millis(50)).await;
            let _server = Server::start(name, address);
            let second = call.await.unwrap().unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_ne!(second, first, "{name}");
        });
    }
    all.join_all().await;
}

#[tokio::test]
async fn a_killed_server_fails_its_streams() {
    let mut all = JoinSet::new();
    for (name, transport) in crate::common::streaming() {
        all.spawn(async move {
            let address = free_address();
            let here = node(&transport);
            let (client, peer) = (here.client(), here.peer(address));
            let mut server = Server::start(name, address);
            pid(&client, peer).await;
            let mut stream = client.stream(peer).unwrap();
            stream.write_all(b"hello").await.unwrap();
            let mut back = [0; 5];
            stream.read_exact(&mut back).await.unwrap();
            server.kill();
            let _server = Server::start(name, address);
            // The client keeps writing until it learns of the failure.
            let failed = async {
                loop {
                    if let Err(error) = stream.write_all(b"hello?").await {
                        return error;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let error = timeout(PATIENCE, failed).await.unwrap();
            assert!(error.to_string().contains(&address.ip().to_string()), "{name}: {error}");
            drop(stream);
            drained(&here).await;
        });
    }
    all.join_all().await;
}

/// Longer than transports wait for a silent peer, and than they remember finished calls.
const STANDSTILL: Duration = Duration::from_secs(4);

#[tokio::test]
async fn a_server_that_stands_still_for_seconds_executes_no_call_twice_and_goes_on() {
    let mut all = JoinSet::new();
    for (name, transport) in transports() {
        all.spawn(async move {
            let address = free_address();
            let server = Server::start(name, address);
            let here = node(&transport);
            let (client, peer) = (here.client(), here.peer(address));
            let first = pid(&client, peer).await;
            let mut calls = JoinSet::<Result<rackweave_rpc::Bytes, CallError>>::new();
            for number in 0..300 {
                match number {
                    100 => {
                        while let Some(ended) = timeout(PATIENCE, calls.join_next()).await.unwrap()
                        {
                            assert!(ended.unwrap().is_ok(), "{name}");
                        }
                    }
                    // Some calls are under way, and others begin later.
                    120 => server.signal("STOP"),
                    _ => {}
                }
                let call = client.call(peer, format!("once {number}"));
                calls.spawn(call.deadline(Duration::from_secs(20)).into_future());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            tokio::time::sleep(STANDSTILL).await;
            server.signal("CONT");
            let (mut answered, mut failed) = (100, 0);
            while let Some(ended) = timeout(PATIENCE, calls.join_next()).await.unwrap() {
                match ended.unwrap() {
                    Ok(_) => answered += 1,
                    Err(error) => {
                        let may_be_executed = matches!(
                            error,
                            CallError::Deadline { .. }
                                | CallError::PeerSilent { .. }
                                | CallError::PeerForgot { .. }
                                | CallError::Refused { .. }
                        );
                        assert!(may_be_executed, "{name}: {error}");
                        failed += 1;
                    }
                }
            }
            // The peer is not put out: it answers, and as the same process.
            assert_eq!(pid(&client, peer).await, first, "{name}");
            let most = client.call(peer, "most").deadline(PATIENCE).await.unwrap();
            let most = String::from_utf8(most.to_vec()).unwrap();
            let (most, executed) = most.split_once(' ').unwrap();
            eprintln!("{name}: {answered} answered, {failed} failed, {executed} executed");
            assert_eq!(most, "1", "{name}");
            assert!(answered <= executed.parse().unwrap(), "{name}: {answered}");
            assert_eq!(answered + failed, 300, "{name}");
        });
    }
    while let Some(ended) = all.join_next().await {
        ended.unwrap();
    }
}
