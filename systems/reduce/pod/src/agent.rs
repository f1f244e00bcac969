//! The agent of a switch, in the switch's process.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rackweave_core::Span;
use rackweave_linux::Clock;
use rackweave_rackless::controller::Agent;
use rackweave_rackless::controller::message::{Abilities, Command, Counters, Holder, Wiring};
use rackweave_rpc::{Incoming, Key, Node, NodeConfig, Rate, Transport};
use tokio::sync::mpsc::unbounded_channel;

use crate::service::{PodError, anybody};
use crate::south::send;

/// How often the switch is asked what it has counted.
const COUNT_EVERY: Duration = Duration::from_millis(200);
/// After what time without a command it is said that no controller answers.
const SAID_AFTER: Span = Span::from_secs(5);
/// The longest time until the agent looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// A switch that an agent controls. Its functions are called by one thread, and may block.
pub trait Device: Send + 'static {
    /// Begins to change its circuits. Returns for how long ports are dark, or a sentence that says why nothing changes.
    ///
    /// # Errors
    /// If the switch refuses.
    fn change(&mut self, wiring: &Wiring) -> Result<Span, String>;

    /// What it has counted since its start, if it does.
    fn count(&mut self) -> Option<Counters>;
}

/// The configuration of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Its name in the pod.
    pub name: String,
    /// The controllers. All hear its reports.
    pub controllers: Vec<SocketAddr>,
    /// The key that agents and controllers share; `None` on one machine only.
    pub key: Option<Key>,
    /// What the switch can do.
    pub abilities: Abilities,
    /// Its circuits.
    pub wiring: Option<Wiring>,
}

/// What an agent reports to its operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentEvent {
    /// It follows a controller.
    Follows(Holder),
    /// Circuits have changed, for the nth time.
    Changed(u64),
    /// They have not.
    Refused(String),
    /// No controller has answered for five seconds since the start.
    Unanswered,
}

enum Asked {
    Change(Wiring),
    Count,
}

enum Answered {
    Changed(Wiring, Result<Span, String>),
    Counted(Option<Counters>),
}

/// Runs the agent of a switch in this thread until `stop` is set.
///
/// # Errors
/// If there is no socket for it.
pub fn run_agent(
    config: AgentConfig,
    mut device: impl Device,
    stop: &AtomicBool,
    report: &mut dyn FnMut(AgentEvent),
) -> Result<(), PodError> {
    let (ask, asked) = mpsc::channel::<Asked>();
    let (answer, mut answers) = unbounded_channel();
    std::thread::spawn(move || {
        for asked in asked {
            let answered = match asked {
                Asked::Change(wiring) => {
                    let result = device.change(&wiring);
                    Answered::Changed(wiring, result)
                }
                Asked::Count => Answered::Counted(device.count()),
            };
            if answer.send(answered).is_err() {
                return;
            }
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async move {
        let any = match config.controllers.iter().all(SocketAddr::is_ipv6) {
            true => SocketAddr::from(([0_u16; 8], 0)),
            false => SocketAddr::from(([0_u8; 4], 0)),
        };
        let mut node_config = anybody(NodeConfig::new(Transport::homa(Rate::from_gbps(1)), any));
        if let Some(key) = config.key {
            node_config = node_config.key(key);
        }
        let node = Node::bind(node_config)?;
        let (server, client) = (node.server(), node.client());
        let peers: Vec<_> = config.controllers.iter().map(|at| node.peer(*at)).collect();
        let clock = Clock::start();
        // Of two lives the later has the greater number, unless the machine has restarted.
        let boot = clock.boot_ns(clock.now());
        let mut agent = Agent::new(config.name, boot, config.abilities, config.wiring, clock.now());
        let mut counters = None;
        let mut follows = None;
        let mut says_at = Some(clock.now().saturating_add(SAID_AFTER));
        let mut changes = 0;
        let mut count = tokio::time::interval(COUNT_EVERY);
        while !stop.load(Ordering::Relaxed) {
            if let Some(report) = agent.poll_report(clock.now(), counters.clone())
                && let Ok(bytes) = serde_json::to_vec(&report)
            {
                peers.iter().for_each(|peer| send(&client, *peer, bytes.clone()));
            }
            let due = Duration::from_nanos(agent.poll_timeout().since(clock.now()).as_ns());
            tokio::select! {
                () = tokio::time::sleep(due.min(LOOK)) => {}
                _ = count.tick() => {
                    let _ = ask.send(Asked::Count);
                }
                answered = answers.recv() => match answered {
                    None => return Err(PodError::Device),
                    Some(Answered::Counted(new)) => counters = new,
                    Some(Answered::Changed(wiring, result)) => {
                        report(match &result {
                            Ok(_) => {
                                changes += 1;
                                AgentEvent::Changed(changes)
                            }
                            Err(why) => AgentEvent::Refused(why.clone()),
                        });
                        agent.changed(clock.now(), &wiring, result);
                    }
                },
                incoming = server.next() => {
                    let Some(incoming) = incoming else { break };
                    if let Incoming::OneWay(message) = incoming
                        && peers.contains(&message.peer())
                        && let Ok(command) = serde_json::from_slice::<Command>(message.bytes())
                    {
                        agent.handle(clock.now(), command);
                    }
                    while let Some(wiring) = agent.poll_change() {
                        let _ = ask.send(Asked::Change(wiring));
                    }
                }
            }
            if agent.holder().is_none() && says_at.is_some_and(|at| at <= clock.now()) {
                says_at = None;
                report(AgentEvent::Unanswered);
            }
            if follows != agent.holder() {
                follows = agent.holder();
                follows.map(AgentEvent::Follows).into_iter().for_each(&mut *report);
            }
        }
        Ok(())
    })
}
