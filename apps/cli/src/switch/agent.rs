//! The agent of a switch in a pod: a controller commands its circuits, and gets its counters.

use std::net::SocketAddr;
use std::sync::Arc;

use miette::miette;
use rackweave_core::Span;
use rackweave_linux::switch::Control;
use rackweave_pod::{AgentConfig, AgentEvent, Device, Key, run_agent};
use rackweave_rackless::controller::message::{Abilities, Counters, TorAbility, Wiring};
use rackweave_rackless::cost::Scope;
use rackweave_switch::Fabric;
use rackweave_switch::config::{Circuits, Dark};
use rackweave_switch::fabric::Node;
use rackweave_testbed::systems::ProgramName;
use rackweave_wire::reduce::address_of;

use super::args::SwitchArgs;
use crate::shell::{escaped, machine_name, status};

/// The slots of a switch that adds up, unless the command says otherwise.
const SLOTS: u32 = 1 << 16;

/// What an agent is to be.
pub(super) struct Plan {
    name: String,
    controllers: Vec<SocketAddr>,
    key: Option<Key>,
    /// Slots, if switches add up.
    slots: Option<u32>,
    aggregate_at: Vec<u32>,
    /// Whether hosts call switches by numbers.
    is_overlay: bool,
}

impl Plan {
    /// The agent that the arguments ask for.
    pub(super) fn of(args: &SwitchArgs) -> miette::Result<Option<Self>> {
        if args.pod.is_empty() {
            return Ok(None);
        }
        let secret = args.pod_key.as_deref().map(crate::secret::read).transpose()?;
        let key = secret.map(|secret| Key::derive(&secret)).transpose();
        let key = key.map_err(|error| miette!("{error}"))?;
        if key.is_none() && args.pod.iter().any(|at| !at.ip().is_loopback()) {
            return Err(miette!(
                "a controller on another machine needs --pod-key: any host could command this switch"
            ));
        }
        let name = args.pod_name.clone().or_else(machine_name);
        let name = name.ok_or_else(|| miette!("this machine has no name: use --pod-name"))?;
        let adds_up = args.program == ProgramName::Reduce;
        Ok(Some(Self {
            name,
            controllers: args.pod.clone(),
            key,
            slots: adds_up.then_some(args.slots.unwrap_or(SLOTS)),
            aggregate_at: args.aggregate_at.clone(),
            is_overlay: args.listen.is_some(),
        }))
    }

    /// Starts the agent in a thread, which ends with the switch.
    pub(super) fn start(self, fabric: &Fabric, control: &Arc<Control>) -> miette::Result<()> {
        let pod = fabric.pod().filter(|pod| matches!(pod.circuits, Circuits::Servers(_)));
        let Some(pod) = pod else {
            return Err(miette!("--pod needs a fabric with topology = \"rackless\""));
        };
        let tor = |(number, tor): (u32, &rackweave_switch::config::Tor)| TorAbility {
            tor: u16::try_from(number).unwrap_or(u16::MAX),
            ports: tor.server_ports,
            uplinks: tor.uplinks,
            uplink_bps: pod.core_link.0,
            slots: self.slots_of(number),
            address: self.address(number),
        };
        let abilities = Abilities {
            servers: fabric.hosts(),
            server_bps: pod.host_link.0,
            dark_ns: pod.dark_time().as_ns(),
            dark: match pod.ocs.dark {
                Dark::All => Scope::All,
                Dark::Moved => Scope::Moved,
            },
            tors: (0..).zip(&pod.tors).map(tor).collect(),
        };
        let Circuits::Servers(servers) = pod.circuits.clone() else { return Ok(()) };
        let config = AgentConfig {
            name: self.name,
            controllers: self.controllers,
            key: self.key,
            abilities,
            wiring: Some(Wiring { servers, tors: Vec::new() }),
        };
        let none = vec![0; fabric.hosts() as usize];
        let device = Emulated {
            control: Arc::clone(control),
            fabric: fabric.clone(),
            links: Vec::new(),
            counters: Counters { sent: none.clone(), received: none },
        };
        let control = Arc::clone(control);
        std::thread::spawn(move || {
            if let Err(error) = run_agent(config, device, &control.stop, &mut tell) {
                status(&format!("error: the agent of the pod has ended: {error}\n"));
            }
        });
        Ok(())
    }

    fn slots_of(&self, number: u32) -> u32 {
        let is_chosen = self.aggregate_at.is_empty() || self.aggregate_at.contains(&number);
        self.slots.filter(|_| is_chosen).unwrap_or(0)
    }

    /// What masters call a switch.
    fn address(&self, number: u32) -> String {
        if self.is_overlay {
            return number.to_string();
        }
        let host = rackweave_core::Destination::Switch(number).address();
        address_of(host).map_or_else(String::new, |address| address.to_string())
    }
}

fn tell(event: AgentEvent) {
    status(&match event {
        AgentEvent::Follows(holder) => {
            format!("follows controller {:016x}, term {}\n", holder.controller, holder.term)
        }
        AgentEvent::Unanswered => {
            "note: no controller has answered: check --pod, --pod-key and whether it runs\n"
                .to_owned()
        }
        AgentEvent::Changed(count) => format!("circuits have changed ({count})\n"),
        AgentEvent::Refused(why) => format!("circuits have not changed: {}\n", escaped(&why)),
    });
}

/// The emulated pod of this process.
struct Emulated {
    control: Arc<Control>,
    fabric: Fabric,
    /// The bytes of each link at the last count.
    links: Vec<u64>,
    counters: Counters,
}

impl Device for Emulated {
    fn change(&mut self, wiring: &Wiring) -> Result<Span, String> {
        let change = self.control.reconfigure(Circuits::Servers(wiring.servers.clone()));
        let change = change.map_err(|error| error.to_string())?;
        Ok(change.up.since(change.at))
    }

    /// Bytes to a server are those of the port that it has now: what passed just before a change may count for another one.
    fn count(&mut self) -> Option<Counters> {
        let report = self.control.report()?;
        let (_, circuits) = report.circuits.last()?;
        let present = self.fabric.with_circuits(circuits).ok()?;
        self.links.resize(report.links.len(), 0);
        let links = present.links().iter().zip(&report.links).zip(&mut self.links);
        for ((spec, link), before) in links {
            let bytes = link.bytes.saturating_sub(std::mem::replace(before, link.bytes));
            if let Node::Host(host) = spec.from {
                self.counters.sent[host as usize] += bytes;
            }
            if let Node::Host(host) = spec.to {
                self.counters.received[host as usize] += bytes;
            }
        }
        Some(self.counters.clone())
    }
}
