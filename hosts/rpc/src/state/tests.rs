//! How many system calls sending and receiving take, and that whatever waits is sent.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rackweave_core::Rate;
use tokio::runtime::{Builder, Runtime, RuntimeFlavor};

use super::sending::MOST;
use crate::driver::{Driver, Timer, watch};
use crate::{
    Bytes, CallError, CallFuture, Incoming, Key, Node, NodeConfig, Peer, Request, Server, Transport,
};

/// The limit of every wait; a loaded machine may be slow.
const PATIENCE: Duration = Duration::from_secs(60);

fn transports() -> Vec<(&'static str, Transport)> {
    let link = Rate::from_gbps(10);
    vec![
        ("homa", Transport::homa(link)),
        ("leverage-homa", Transport::leverage_homa(link)),
        ("polo", Transport::polo(link)),
        ("tcp", Transport::tcp(link)),
    ]
}

fn homa() -> Transport {
    Transport::homa(Rate::from_gbps(10))
}

fn config(transport: &Transport) -> NodeConfig {
    NodeConfig::new(transport.clone(), ([127, 0, 0, 1], 0).into())
        .allow("127.0.0.1".parse().unwrap())
        .default_deadline(PATIENCE)
}

fn bind(config: NodeConfig) -> Node {
    let node = Node::bind(config).unwrap();
    node.owner.0.lock().sending.wait_forever();
    node
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn echo(node: Node) {
    let server = node.server();
    drop(node);
    while let Some(incoming) = server.next().await {
        if let Incoming::Request(mut request) = incoming {
            tokio::spawn(async move {
                let bytes = request.take_bytes();
                let _ = request.respond(bytes).await;
            });
        }
    }
}

async fn in_time<F: Future>(work: F) -> F::Output {
    tokio::time::timeout(PATIENCE, work).await.expect("done in time")
}

/// A node, a server in the same runtime, and the peer that this is; each has the other's incarnation.
async fn pair(config: impl Fn() -> NodeConfig) -> (Node, Node, Peer) {
    let (client, server) = (bind(config()), bind(config()));
    let peer = client.peer(server.local_addr());
    tokio::spawn(echo(server.clone()));
    for _ in 0..3 {
        in_time(client.client().call(peer, "hello").into_future()).await.unwrap();
    }
    (client, server, peer)
}

/// Calls to make in one poll.
fn calls(node: &Node, peer: Peer, count: usize) -> Vec<Pin<Box<CallFuture>>> {
    let client = node.client();
    (0..count).map(|n| Box::pin(client.call(peer, vec![n as u8; 100]).into_future())).collect()
}

fn poll_all(calls: &mut [Pin<Box<CallFuture>>], cx: &mut Context<'_>) {
    for call in calls {
        assert!(call.as_mut().poll(cx).is_pending(), "no answer can have come");
    }
}

/// Polls once without waiting.
fn poll_now(call: &mut Pin<Box<CallFuture>>) -> Poll<Result<Bytes, CallError>> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn sends(node: &Node) -> u64 {
    node.stats().datagrams.send_calls
}

#[test]
fn a_call_without_others_is_sent_by_the_poll_that_makes_it() {
    for (name, transport) in transports() {
        one_thread().block_on(async {
            let (client, _server, peer) = pair(|| config(&transport)).await;
            // What the transport still had to say of the calls before.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let before = client.stats().datagrams;
            let mut call = calls(&client, peer, 1).remove(0);
            assert!(poll_now(&mut call).is_pending());
            let after = client.stats().datagrams;
            assert_eq!(after.sent - before.sent, 1, "{name}");
            assert_eq!(after.send_calls - before.send_calls, 1, "{name}");
            assert_eq!(after.receive_calls, before.receive_calls, "{name}");
            in_time(call).await.unwrap();
        });
    }
}

/// One after the other, a call takes one system call to send and one to receive at each end, as long as the transport
/// adds no packets.
#[test]
fn a_call_takes_one_call_to_receive_at_each_end() {
    const CALLS: u64 = 100;
    for key in [None, Some([7; 32])] {
        one_thread().block_on(async {
            let (client, server, peer) = pair(|| {
                let config = config(&homa());
                match key {
                    Some(key) => config.key(Key::derive(&key).unwrap()),
                    None => config,
                }
            })
            .await;
            let before = (client.stats().datagrams, server.stats().datagrams);
            for call in calls(&client, peer, CALLS as usize) {
                in_time(call).await.unwrap();
            }
            for (node, before) in [(&client, before.0), (&server, before.1)] {
                let after = node.stats().datagrams;
                let received = after.received - before.received;
                assert!(received >= CALLS);
                let calls = after.receive_calls - before.receive_calls;
                assert!(calls <= received, "{calls} to receive {received} datagrams");
            }
        });
    }
}

#[test]
fn calls_of_one_poll_are_sent_in_batches() {
    const CALLS: usize = 150;
    for (name, transport) in transports() {
        for key in [false, true] {
            one_thread().block_on(async {
                let (client, server, peer) = pair(|| match key {
                    true => config(&transport).key(Key::derive(&[7; 32]).unwrap()),
                    false => config(&transport),
                })
                .await;
                tokio::time::sleep(Duration::from_millis(20)).await;
                let before = (sends(&client), sends(&server));
                let mut calls = calls(&client, peer, CALLS);
                // The first has no others to wait for, and the driver sends the last. What the transport has to say of calls before may
                // come between.
                poll_fn(|cx| {
                    poll_all(&mut calls, cx);
                    Poll::Ready(())
                })
                .await;
                tokio::task::yield_now().await;
                assert!(sends(&client) - before.0 <= 2 + (CALLS - 1).div_ceil(MOST) as u64);
                for (n, call) in calls.into_iter().enumerate() {
                    assert_eq!(in_time(call).await.unwrap(), vec![n as u8; 100]);
                }
                // Besides the responses, a transport sends acknowledgements, and responses wait only for those whose requests
                // came together.
                let served = sends(&server) - before.1;
                assert!(
                    served < CALLS as u64 / 4,
                    "{name}: {served} calls to send {CALLS} answers"
                );
            });
        }
    }
}

/// The tasks that a call waits for submit nothing: the driver sends it.
#[test]
fn a_call_that_waits_for_tasks_that_have_ended_is_sent() {
    one_thread().block_on(async {
        let (client, _server, peer) = pair(|| config(&homa())).await;
        let mut calls = calls(&client, peer, 2);
        assert!(poll_now(&mut calls[0]).is_pending());
        client.owner.0.lock().sending.woken(5);
        let before = client.stats().datagrams.sent;
        assert!(poll_now(&mut calls[1]).is_pending());
        assert_eq!(client.stats().datagrams.sent, before, "it waits for four more");
        tokio::task::yield_now().await;
        assert_eq!(client.stats().datagrams.sent, before + 1, "the driver has run");
        for call in calls {
            in_time(call).await.unwrap();
        }
    });
}

#[test]
fn a_call_that_is_dropped_while_it_waits_is_not_sent() {
    one_thread().block_on(async {
        let (client, _server, peer) = pair(|| config(&homa())).await;
        let mut calls = calls(&client, peer, 3);
        assert!(poll_now(&mut calls[0]).is_pending());
        let before = client.stats().datagrams.sent;
        assert!(poll_now(&mut calls[1]).is_pending());
        assert!(poll_now(&mut calls[2]).is_pending());
        drop(calls.remove(1));
        tokio::task::yield_now().await;
        assert_eq!(client.stats().datagrams.sent, before + 1);
        for call in calls {
            in_time(call).await.unwrap();
        }
        assert_eq!(client.stats().calls, 0);
    });
}

/// Two requests of a client; the response to the first waits, since more of them are expected.
async fn response_that_waits(node: &Node) -> (Vec<Pin<Box<CallFuture>>>, Node, (Server, Request)) {
    let (client, server) = (bind(config(&homa())), node.server());
    let peer = client.peer(node.local_addr());
    let mut calls = calls(&client, peer, 2);
    let mut requests = Vec::new();
    for call in &mut calls {
        assert!(poll_now(call).is_pending());
        match in_time(server.next()).await {
            Some(Incoming::Request(request)) => requests.push(request),
            other => panic!("{other:?}"),
        }
    }
    tokio::task::yield_now().await;
    node.owner.0.lock().sending.woken(5);
    let before = sends(node);
    let mut answered = pin!(requests.remove(0).respond("answer"));
    let polled = answered.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Ok(()))));
    assert_eq!(sends(node), before, "it waits");
    (calls, client, (server, requests.remove(0)))
}

#[test]
fn a_response_that_waits_is_sent_when_the_node_is_dropped() {
    one_thread().block_on(async {
        let node = bind(config(&homa()));
        let (mut calls, _client, request) = response_that_waits(&node).await;
        drop((node, request));
        assert_eq!(in_time(calls.remove(0)).await.unwrap(), "answer");
    });
}

#[test]
fn a_response_that_waits_is_sent_when_the_node_is_shut_down() {
    one_thread().block_on(async {
        let node = bind(config(&homa()));
        let (mut calls, _client, request) = response_that_waits(&node).await;
        let before = sends(&node);
        let mut shutdown = pin!(node.shutdown());
        assert!(shutdown.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(sends(&node), before + 1);
        assert_eq!(in_time(calls.remove(0)).await.unwrap(), "answer");
        drop(request);
        in_time(shutdown).await;
    });
}

/// A second driver of the node, which replaces the one that its runtime polls.
fn driver(node: &Node, flavor: RuntimeFlavor) -> Driver {
    let shared = Arc::clone(&node.owner.0);
    let (socket, timer) = {
        let state = shared.lock();
        let socket = std::os::fd::AsFd::as_fd(state.endpoint.as_ref().unwrap());
        (
            socket.try_clone_to_owned().unwrap(),
            Timer::new(state.endpoint.as_ref().unwrap().clock()).unwrap(),
        )
    };
    let watched = (
        watch(socket, tokio::io::Interest::READABLE).unwrap(),
        watch(timer, tokio::io::Interest::READABLE).unwrap(),
    );
    Driver::new(shared, watched.0, watched.1, flavor)
}

/// Counts how often it is woken.
#[derive(Debug, Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// On a runtime with several threads a task that another one wakes runs before ready ones. So the driver lets them
/// run first, once.
#[test]
fn with_several_threads_the_driver_lets_ready_tasks_run_before_it_sends() {
    for (flavor, yields) in [(RuntimeFlavor::CurrentThread, 0), (RuntimeFlavor::MultiThread, 1)] {
        one_thread().block_on(async {
            let (client, _server, peer) = pair(|| config(&homa())).await;
            let count = Arc::new(Count::default());
            let waker = Waker::from(Arc::clone(&count));
            let mut cx = Context::from_waker(&waker);
            let woken = || count.0.swap(0, Ordering::Relaxed);
            let mut driver = Box::pin(driver(&client, flavor).run());
            assert!(driver.as_mut().poll(&mut cx).is_pending());
            woken();
            let mut calls = calls(&client, peer, 3);
            assert!(poll_now(&mut calls[0]).is_pending());
            assert_eq!(woken(), 0, "it was sent");
            let before = client.stats().datagrams.sent;
            assert!(poll_now(&mut calls[1]).is_pending());
            assert_eq!(woken(), 1);
            assert!(poll_now(&mut calls[2]).is_pending());
            assert_eq!(woken(), 0, "once is enough");
            for _ in 0..yields {
                assert_eq!(client.stats().datagrams.sent, before);
                assert!(driver.as_mut().poll(&mut cx).is_pending());
                assert_eq!(woken(), 1);
            }
            assert_eq!(client.stats().datagrams.sent, before);
            assert!(driver.as_mut().poll(&mut cx).is_pending());
            assert_eq!(client.stats().datagrams.sent, before + 2);
            drop(driver);
            assert!(client.owner.0.lock().is_stopped());
        });
    }
}

#[test]
fn with_several_threads_every_call_is_answered() {
    const TASKS: usize = 40;
    const EACH: usize = 200;
    let runtime = Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    for (name, transport) in transports() {
        runtime.block_on(async {
            let (client, _server, peer) = pair(|| config(&transport)).await;
            let mut tasks = tokio::task::JoinSet::new();
            for task in 0..TASKS {
                let client = client.client();
                tasks.spawn(async move {
                    for n in 0..EACH {
                        let bytes = vec![task as u8; 50 + n];
                        let call = client.call(peer, bytes.clone()).into_future();
                        // Some are dropped after they were made.
                        if n % 7 == 3 {
                            let mut call = pin!(call);
                            let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                            continue;
                        }
                        assert_eq!(in_time(call).await.unwrap(), bytes, "{name}");
                    }
                });
            }
            while let Some(task) = tasks.join_next().await {
                task.unwrap();
            }
            in_time(client.shutdown()).await;
        });
    }
}

/// Messages of many reads: a turn makes a bounded number of them, and the socket is edge-triggered.
#[test]
fn long_calls_at_a_time_are_answered() {
    let kernel = ("kernel", Transport::kernel_tcp(None));
    for (name, transport) in transports().into_iter().chain([kernel]) {
        one_thread().block_on(async {
            let (client, _server, peer) = pair(|| config(&transport)).await;
            let mut tasks = tokio::task::JoinSet::new();
            for task in 0..8 {
                let client = client.client();
                tasks.spawn(async move {
                    let bytes = Bytes::from(vec![task; 1 << 20]);
                    for n in 0..12 {
                        let answer = client.call(peer, bytes.clone()).into_future();
                        assert!(in_time(answer).await.unwrap() == bytes, "{name} {n}");
                    }
                });
            }
            while let Some(task) = tasks.join_next().await {
                task.unwrap();
            }
        });
    }
}
