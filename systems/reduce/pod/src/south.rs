//! The messages of agents, over `rackweave_rpc`: one-way messages in both directions, each a whole state.

use std::collections::BTreeMap;
use std::time::Duration;

use rackweave_core::Span;
use rackweave_rackless::controller::message::Report;
use rackweave_rackless::controller::{Controller, Happening};
use rackweave_rpc::{Client, Incoming, Node, Peer};
use tokio::sync::oneshot;

use crate::core::{Shared, Turn};

/// How long a message may take: it is repeated, and the next one says more.
pub(crate) const DEADLINE: Duration = Duration::from_secs(1);
/// The longest time between two turns.
const LONGEST: Span = Span::from_ms(200);
/// The most agents whose addresses are kept. The controller keeps as many.
const MOST_PEERS: usize = 256;

/// Sends a message, and forgets it.
pub(crate) fn send(client: &Client, peer: Peer, bytes: Vec<u8>) {
    let sent = client.send(peer, bytes).deadline(DEADLINE).without_waiting();
    // What is lost is repeated.
    tokio::spawn(async move { sent.await.is_ok() });
}

/// Serves agents until `stop` is dropped or sent to.
pub(crate) async fn serve(
    shared: Shared,
    node: Node,
    mut stop: oneshot::Receiver<()>,
    mut report: impl FnMut(&Happening),
    mut fails: impl FnMut(&str),
) {
    let (server, client) = (node.server(), node.client());
    let mut peers: BTreeMap<String, Peer> = BTreeMap::new();
    let none = |_: &mut Controller, _| {};
    let mut turn = shared.turn(none);
    loop {
        let Turn { commands, news, problem, next, now } = turn;
        news.iter().for_each(&mut report);
        problem.iter().for_each(|it| fails(it));
        for (agent, command) in commands {
            if let (Some(peer), Ok(bytes)) = (peers.get(&agent), serde_json::to_vec(&command)) {
                send(&client, *peer, bytes);
            }
        }
        let wait = next.since(now).min(LONGEST).max(Span::from_ms(1));
        let wait = Duration::from_nanos(wait.as_ns());
        turn = tokio::select! {
            _ = &mut stop => break,
            () = tokio::time::sleep(wait) => shared.turn(none),
            () = shared.wake.notified() => shared.turn(none),
            incoming = server.next() => {
                let Some(incoming) = incoming else { break };
                // Calls and streams are for others.
                let Incoming::OneWay(message) = incoming else {
                    turn = shared.turn(none);
                    continue;
                };
                let Ok(read) = serde_json::from_slice::<Report>(message.bytes()) else {
                    turn = shared.turn(none);
                    continue;
                };
                let (agent, mut is_taken) = (read.agent.clone(), false);
                let turn = shared.turn(|controller, now| is_taken = controller.handle(now, read));
                let has_room = peers.len() < MOST_PEERS || peers.contains_key(&agent);
                if is_taken && has_room {
                    peers.insert(agent, message.peer());
                }
                turn
            }
        };
    }
    node.shutdown().await;
}
