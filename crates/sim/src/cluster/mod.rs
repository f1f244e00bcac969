//! Group systems in the simulated world: hosts that are whole machines ([`Node`]) on a fabric whose switches run programs.
//!
//! [`World`](crate::World) runs transports that messages are submitted to; a [`Cluster`] runs nodes that know themselves
//! what to do, or are told through [`Cluster::node_mut`] between two [`Cluster::run_until`]. The fabric is that of the
//! user-space switch ([`rackweave_switch::net`]).
//!
//! # Hosts pull
//! A node is asked for a packet exactly when the port's link is free, and again whenever something has happened to
//! the node; nothing queues behind its back. So what it sends is decided at the last moment.

mod member;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::sync::atomic::Ordering;

use rackweave_core::{HostId, Node, Span, SwitchProgram, Time};
use rackweave_switch::net::{self, Happening, LinkStats, Net, NetConfig, Plain};

use crate::build::{BuildError, check_fabric, check_faults};
use crate::config::Fault;
use crate::fabric::Fabric;
use crate::result::End;
use crate::world::Control;

use member::Member;

/// Most ports of a node: they are numbered by a byte.
const MAX_PORTS: usize = 256;

/// A [`Node`] with its application, which takes its events and places its payloads, as a [`Cluster`] runs it.
pub trait ClusterNode: Node<Event = Infallible, Placement = ()> {
    /// Whether it has done all that it was to do: a run ends once all nodes have.
    #[must_use]
    fn is_done(&self) -> bool {
        true
    }

    /// Its host has crashed (`down`), or is back with an empty memory. In between nothing else is called.
    fn crash(&mut self, _now: Time, _down: bool) {}
}

/// What a cluster is made of.
pub struct ClusterSetup<'a, N, P> {
    /// Everything random follows from it.
    pub seed: u64,
    /// Repetition.
    pub run: u64,
    /// Switches and links.
    pub fabric: Fabric,
    /// The nodes. Hosts of the fabric that are none's swallow what they get.
    pub nodes: Vec<Attached<N>>,
    /// Makes the program of each switch, by its number.
    pub programs: Box<dyn FnMut(u32) -> P + 'a>,
    /// What goes wrong.
    pub faults: &'a [Fault],
    /// A run ends then, whatever is left to do.
    pub time_limit: Span,
}

/// A node and where it is attached.
#[derive(Clone, Debug)]
pub struct Attached<N> {
    /// The node.
    pub node: N,
    /// Its port `i` is this host of the fabric. Most nodes have one port; a sender with two uplinks has two.
    pub hosts: Vec<HostId>,
}

impl<N> Attached<N> {
    /// A node with one port.
    #[must_use]
    pub fn at(host: HostId, node: N) -> Self {
        Self { node, hosts: vec![host] }
    }
}

impl<N, P> std::fmt::Debug for ClusterSetup<'_, N, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterSetup").field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// Why a cluster can't be run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ClusterError {
    /// A fault that can't be, or an impossible switch.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A node at a host that the fabric does not have.
    #[error("node {node} is attached to {host}, but the fabric has {hosts} hosts")]
    NoSuchHost {
        /// The node.
        node: usize,
        /// The host.
        host: HostId,
        /// How many there are.
        hosts: u32,
    },
    /// Two ports at one host.
    #[error("{host} has two nodes, or twice the same one")]
    HostTaken {
        /// The host.
        host: HostId,
    },
    /// A node without a port, or with too many.
    #[error("node {node} has {ports} ports; 1 to {MAX_PORTS} are possible")]
    Ports {
        /// The node.
        node: usize,
        /// Its ports.
        ports: usize,
    },
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The fabric's counts.
    pub net: net::Counters,
    /// Packets that nodes were given.
    pub delivered: u64,
    /// Packets that reached a host without a node.
    pub swallowed: u64,
}

/// Nodes on a fabric, in virtual time. `P` is the switches' program.
#[derive(Debug)]
pub struct Cluster<
    N: ClusterNode,
    P: SwitchProgram<Header = <N as Node>::Header> = Plain<<N as Node>::Header>,
> {
    net: Net<P>,
    nodes: Vec<Member<N>>,
    /// For each host its node and port.
    places: Vec<Option<(u32, u8)>>,
    /// Nodes that were changed from outside.
    touched: Vec<u32>,
    /// Nodes that are not done.
    unfinished: usize,
    time_limit: Time,
    delivered: u64,
    swallowed: u64,
}

impl<N: ClusterNode, P: SwitchProgram<Header = N::Header>> Cluster<N, P> {
    /// A cluster at time 0.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn new(setup: ClusterSetup<'_, N, P>) -> Result<Self, ClusterError> {
        let ClusterSetup { seed, run, fabric, nodes, programs, faults, time_limit } = setup;
        check_fabric(fabric.config())?;
        check_faults(faults, &fabric)?;
        let hosts = fabric.hosts();
        let mut places = vec![None; hosts as usize];
        for (node, attached) in nodes.iter().enumerate() {
            let ports = attached.hosts.len();
            if !(1..=MAX_PORTS).contains(&ports) {
                return Err(ClusterError::Ports { node, ports });
            }
            for (port, &host) in attached.hosts.iter().enumerate() {
                let Some(place) = places.get_mut(host.0 as usize) else {
                    return Err(ClusterError::NoSuchHost { node, host, hosts });
                };
                if place.replace((node as u32, port as u8)).is_some() {
                    return Err(ClusterError::HostTaken { host });
                }
            }
        }
        let config = NetConfig {
            fabric,
            faults: faults.to_vec(),
            seed,
            run,
            nic_queue_bytes: 0,
            sample_every: Span::ZERO,
            wakes: nodes.len() as u32,
        };
        let nodes: Vec<_> = nodes.into_iter().map(Member::new).collect();
        Ok(Self {
            net: Net::new(config, (), programs),
            places,
            touched: (0..nodes.len() as u32).collect(),
            unfinished: nodes.len(),
            nodes,
            time_limit: Time(time_limit.0),
            delivered: 0,
            swallowed: 0,
        })
    }

    /// Runs until all nodes are done (a crashed one counts as done), nothing is left to happen, the time limit comes
    /// or `control` says so.
    pub fn run(&mut self, control: &Control) -> End {
        self.settle_touched();
        let end = loop {
            if self.unfinished == 0 {
                break End::AllDone;
            }
            // Looked at rarely: an atomic on every event would be felt.
            let mut left = 1024;
            while left > 0 && self.unfinished > 0 && self.step(self.time_limit) {
                left -= 1;
            }
            self.publish(control);
            if left > 0 && self.unfinished > 0 {
                break if self.net.next_due().is_some() { End::TimeLimit } else { End::Stalled };
            }
            if control.cancel.load(Ordering::Relaxed) {
                break End::Cancelled;
            }
        };
        self.publish(control);
        end
    }

    /// Everything that is due until this time happens, also if all nodes are done; then it is that time (unless it was
    /// later already). Says whether all nodes are done. The time limit is not looked at.
    pub fn run_until(&mut self, until: Time) -> bool {
        self.settle_touched();
        while self.step(until) {}
        self.unfinished == 0
    }

    fn publish(&self, control: &Control) {
        control.sim_time_ps.store(self.net.now().0, Ordering::Relaxed);
        control.events.store(self.net.counters().events, Ordering::Relaxed);
    }

    /// What time it is.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.net.now()
    }

    /// When something is due next; `None`: nothing ever will be.
    pub fn next_due(&mut self) -> Option<Time> {
        self.settle_touched();
        self.net.next_due()
    }

    /// A node, by its number in [`ClusterSetup::nodes`].
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn node(&self, node: usize) -> &N {
        &self.nodes[node].node
    }

    /// A node, to be given work or asked for events. It is asked for packets and timers again before time goes on.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn node_mut(&mut self, node: usize) -> &mut N {
        let member = &mut self.nodes[node];
        if !member.touched {
            member.touched = true;
            self.touched.push(node as u32);
        }
        &mut member.node
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &N> {
        self.nodes.iter().map(|member| &member.node)
    }

    /// Whether a node's host works: it has neither crashed nor paused.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn is_up(&self, node: usize) -> bool {
        self.nodes[node].is_up()
    }

    /// The fabric.
    #[must_use]
    pub const fn fabric(&self) -> &Fabric {
        self.net.fabric()
    }

    /// The program of a switch.
    ///
    /// # Panics
    /// If there is no such switch.
    #[must_use]
    pub fn program(&self, switch: u32) -> &P {
        self.net.program(switch)
    }

    /// What was counted since the cluster began.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters { net: *self.net.counters(), delivered: self.delivered, swallowed: self.swallowed }
    }

    /// Statistics of links begin at this time, or now if it has passed.
    pub fn measure_from(&mut self, at: Time) {
        self.net.measure_from(at);
    }

    /// All links, in the fabric's order: link `h` is host `h`'s way up.
    pub fn link_stats(&mut self) -> Vec<LinkStats> {
        self.net.link_stats()
    }

    /// The next thing that is due until then. False: there is none.
    #[inline]
    fn step(&mut self, until: Time) -> bool {
        let Some(happening) = self.net.step(until) else { return false };
        match happening {
            Happening::Inside => {}
            Happening::Arrived { host, packet } => self.receive(host, packet),
            Happening::Free(host) => {
                if let Some((node, _)) = self.places[host.0 as usize] {
                    self.settle(node);
                }
            }
            Happening::Wake(node) => self.on_timer(node),
            Happening::Faults => self.on_faults(),
        }
        true
    }
}
