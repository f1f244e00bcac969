//! Client processes that are stopped in the middle of calls and streams, and continued after longer than their peers wait.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::common::{PATIENCE, drained, node, transports};
use rackweave_rpc::{Incoming, Node, NodeConfig, Server};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The environment variable with the argument of the client process: the transport's name and the server's address.
const ROLE: &str = "RACKWEAVE_RPC_TEST_CLIENT";

/// Longer than transports wait for a silent peer, and than they remember finished calls.
const STANDSTILL: Duration = Duration::from_secs(4);

/// The calls of a client. Half of them are answered after this time, in which the client is stopped.
const CALLS: u32 = 200;
const LATE: Duration = Duration::from_secs(1);

/// The length of a line that a stream carries.
const LINE: usize = 1000;

/// What the server has seen.
#[derive(Debug, Default)]
struct Seen {
    executed: BTreeMap<String, u32>,
    /// The bytes of the stream, and whether it has ended, or failed with this error.
    stream: u64,
    end: Option<Result<(), String>>,
}

type Shared = Arc<Mutex<Seen>>;

async fn serve(server: Server, seen: Shared) {
    let lock = |seen: &Shared, act: &dyn Fn(&mut Seen)| {
        act(&mut seen.lock().unwrap_or_else(PoisonError::into_inner));
    };
    while let Some(incoming) = server.next().await {
        match incoming {
            Incoming::Request(request) => {
                let name = String::from_utf8(request.bytes().to_vec()).unwrap();
                lock(&seen, &|seen| *seen.executed.entry(name.clone()).or_default() += 1);
                tokio::spawn(async move {
                    if name.starts_with("late") {
                        sleep(LATE).await;
                    }
                    // The client may have gone.
                    let _ = request.respond(name).await;
                });
            }
            Incoming::Stream(mut stream) => {
                let seen = Arc::clone(&seen);
                tokio::spawn(async move {
                    let mut buffer = vec![0; 1 << 16];
                    loop {
                        let read = stream.read(&mut buffer).await;
                        let end = match read {
                            Ok(0) => Ok(()),
                            Ok(count) => {
                                lock(&seen, &|seen| seen.stream += count as u64);
                                continue;
                            }
                            Err(error) => Err(error.to_string()),
                        };
                        lock(&seen, &|seen| seen.end = Some(end.clone()));
                        return;
                    }
                });
            }
            _ => {}
        }
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// Not a test: this is the client, when this program is started as one.
#[tokio::test]
async fn client_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (name, address) = role.split_once(' ').unwrap();
    let (_, transport) = transports().into_iter().find(|(known, _)| *known == name).unwrap();
    let here = Node::bind(NodeConfig::new(transport, "127.0.0.1:0".parse().unwrap())).unwrap();
    let (client, peer) = (here.client(), here.peer(address.parse().unwrap()));
    client.call(peer, "first").deadline(PATIENCE).await.unwrap();
    let written = name != "polo";
    let stream = written.then(|| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut stream = client.stream(peer).unwrap();
            let mut bytes = 0;
            let result: Result<(), std::io::Error> = async {
                for _ in 0..CALLS {
                    stream.write_all(&[7; LINE]).await?;
                    bytes += LINE;
                    sleep(Duration::from_millis(5)).await;
                }
                stream.shutdown().await?;
                stream.acknowledged().await.map_err(std::io::Error::other)
            }
            .await;
            match result {
                Ok(()) => say(&format!("stream {bytes} ok")),
                Err(error) => say(&format!("stream {bytes} failed {error}")),
            }
        })
    });
    let mut calls = JoinSet::new();
    for number in 0..CALLS {
        let name = format!("{} {number}", if number % 2 == 0 { "late" } else { "soon" });
        let call = client.call(peer, name.clone()).deadline(Duration::from_secs(20)).into_future();
        calls.spawn(async move { (name, call.await) });
        if number == CALLS / 2 {
            say("half");
        }
        sleep(Duration::from_millis(5)).await;
    }
    while let Some(ended) = calls.join_next().await {
        let (name, result) = ended.unwrap();
        let what = match &result {
            Ok(bytes) if *bytes == name.as_bytes() => "ok".to_owned(),
            Ok(_) => "wrong".to_owned(),
            Err(error) if error.is_safe_to_retry() => format!("unexecuted {error}"),
            Err(error) => format!("failed {error}"),
        };
        say(&format!("call {name} {what}"));
    }
    if let Some(stream) = stream {
        stream.await.unwrap();
    }
    let last = client.call(peer, "last").deadline(PATIENCE).await;
    say(&format!("last {}", last.map_or_else(|error| error.to_string(), |_| "ok".to_owned())));
    here.shutdown().await;
}

fn start(transport: &str, address: SocketAddr) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stopped::client_process", "--nocapture"])
        .env(ROLE, format!("{transport} {address}"))
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn signal(child: &Child, name: &str) {
    let id = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-s", name, &id]).status().await.unwrap().success());
}

#[tokio::test]
async fn what_a_client_that_stands_still_reports_is_so() {
    let mut all = JoinSet::new();
    for (name, transport) in transports() {
        all.spawn(async move {
            let here = node(&transport);
            let seen = Shared::default();
            tokio::spawn(serve(here.server(), Arc::clone(&seen)));
            let mut child = start(name, here.local_addr());
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let mut next = async || timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
            while next().await.unwrap() != "half" {}
            signal(&child, "STOP").await;
            sleep(STANDSTILL).await;
            signal(&child, "CONT").await;
            let (mut ok, mut failed, mut stream, mut last) = (Vec::new(), Vec::new(), None, None);
            while let Some(line) = next().await {
                if let Some(call) = line.strip_prefix("call ") {
                    let words: Vec<_> = call.splitn(4, ' ').collect();
                    let call = format!("{} {}", words[0], words[1]);
                    match words[2] {
                        "ok" => ok.push(call),
                        kind => failed.push((call, kind.to_owned(), words[3].to_owned())),
                    }
                } else if let Some(result) = line.strip_prefix("stream ") {
                    stream = Some(result.to_owned());
                } else if let Some(result) = line.strip_prefix("last ") {
                    last = Some(result.to_owned());
                }
            }
            assert!(child.wait().await.unwrap().success(), "{name}");
            // The server learns how the stream has ended, too.
            if stream.is_some() {
                let ended = async {
                    while seen.lock().unwrap().end.is_none() {
                        sleep(Duration::from_millis(20)).await;
                    }
                };
                timeout(PATIENCE, ended).await.unwrap_or_else(|_| panic!("{name}: {stream:?}"));
            }
            let seen = std::mem::take(&mut *seen.lock().unwrap());
            let sample: BTreeMap<_, _> = failed.iter().map(|(call, _, why)| (why, call)).collect();
            eprintln!(
                "{name}: {} ok, {} failed {sample:?}; stream {stream:?}, at the server {} {:?}",
                ok.len(),
                failed.len(),
                seen.stream,
                seen.end
            );
            assert!(seen.executed.values().all(|times| *times == 1), "{name}: {:?}", seen.executed);
            assert_eq!((ok.len() + failed.len()) as u32, CALLS, "{name}");
            for call in &ok {
                assert!(seen.executed.contains_key(call), "{name}: {call}");
            }
            for (call, kind, why) in &failed {
                assert!(["failed", "unexecuted"].contains(&&**kind), "{name}: {call} {kind}");
                assert!(!why.contains("is silent"), "{name}: the server was well: {why}");
                assert!(
                    kind != "unexecuted" || !seen.executed.contains_key(call),
                    "{name}: {call} {why}"
                );
            }
            assert_eq!(last.as_deref(), Some("ok"), "{name}");
            if let Some(stream) = stream {
                let is_complete = seen.stream == u64::from(CALLS) * LINE as u64;
                let ended_well = seen.end == Some(Ok(()));
                assert_eq!(ended_well, ended_well && is_complete, "{name}: a part is no whole");
                let is_ok = stream.ends_with(" ok");
                assert!(!is_ok || ended_well, "{name}: {stream}, {:?}", seen.end);
            }
            drained(&here).await;
        });
    }
    while let Some(ended) = all.join_next().await {
        ended.unwrap();
    }
}
