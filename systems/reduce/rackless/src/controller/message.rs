//! What a controller and the agents of switches tell one another.
//!
//! Both directions carry a whole state and not a step: a [`Command`] says everything that an agent is to do, a [`Report`] everything that
//! it does. Repeating one changes nothing, the newest counts, and losing one delays at most.

use serde::{Deserialize, Serialize};

use rackweave_core::{Rate, Span};

use crate::config::{Circuits, Configuration, ConfigurationError};
use crate::cost::{Reconfiguration, Scope};
use crate::pod::Pod;

/// Longer times in which ports are dark are taken for this one.
const LONGEST_DARK: Span = Span::from_secs(3600);

/// The circuits of an optical switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wiring {
    /// The `ToR` of each server, in the order of their numbers.
    pub servers: Vec<u16>,
    /// The circuits between `ToR`s, once for each; empty if there is no optical switch above them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tors: Vec<(u16, u16)>,
}

impl Wiring {
    /// The circuits of a configuration.
    #[must_use]
    pub fn of(configuration: &Configuration) -> Self {
        let mut tors = Vec::new();
        if let Some(circuits) = configuration.circuits() {
            let count = u16::try_from(circuits.tors()).unwrap_or(u16::MAX);
            for a in 0..count {
                for b in a + 1..count {
                    let parallel = circuits.between(usize::from(a), usize::from(b));
                    tors.extend(std::iter::repeat_n((a, b), usize::from(parallel)));
                }
            }
        }
        Self { servers: configuration.tor_of().to_vec(), tors }
    }

    /// The configuration with these circuits.
    ///
    /// # Errors
    /// If the pod does not have one of the ports.
    pub fn configuration(&self, pod: &Pod) -> Result<Configuration, ConfigurationError> {
        let configuration = Configuration::new(pod, &self.servers)?;
        if self.tors.is_empty() {
            return Ok(configuration);
        }
        let count = pod.tors().len();
        let mut circuits = Circuits::none(count);
        for &(a, b) in &self.tors {
            let (a, b) = (usize::from(a), usize::from(b));
            if let Some(&tor) = [a, b].iter().find(|tor| **tor >= count) {
                return Err(ConfigurationError::NoTor { tor, last: count - 1 });
            }
            circuits.set(a, b, circuits.between(a, b).saturating_add(1));
        }
        Ok(configuration.with_circuits(circuits))
    }
}

/// Whose commands an agent follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The controller.
    pub controller: u64,
    /// Which start of it: two that run with copies of one database have the same number.
    pub start: u64,
    /// Its term. A later holder has a higher one, so that a late command of an earlier holder is recognised.
    pub term: u64,
}

/// A `ToR` in the report of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorAbility {
    /// Its number.
    pub tor: u16,
    /// Its ports for servers.
    pub ports: u32,
    /// Its links to the network above.
    pub uplinks: u32,
    /// The rate of each of them.
    pub uplink_bps: u64,
    /// The slots in which it adds up; 0 if it does not.
    pub slots: u32,
    /// What masters call it: the value of `reduce master --switch`.
    #[serde(default)]
    pub address: String,
}

/// What a switch can do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abilities {
    /// The number of servers whose circuits it changes; 0 if it changes none.
    pub servers: u32,
    /// The rate of the servers' links.
    pub server_bps: u64,
    /// The time for which ports are dark after a change.
    pub dark_ns: u64,
    /// Which ports are.
    pub dark: Scope,
    /// Its `ToR`s.
    pub tors: Vec<TorAbility>,
}

impl Abilities {
    /// Whether it changes circuits. The agent that does so lends the lease that makes a controller active.
    #[must_use]
    pub const fn has_circuits(&self) -> bool {
        self.servers > 0
    }

    /// What a change of its circuits costs.
    #[must_use]
    pub fn reconfiguration(&self) -> Reconfiguration {
        let delay = Span::from_ns(self.dark_ns.min(LONGEST_DARK.as_ns()));
        Reconfiguration { delay, scope: self.dark }
    }

    /// In what it contradicts the pod of its controller, for which an upload waits as long as `patience` for circuits.
    pub(super) fn contradiction(&self, pod: &Pod, patience: Span) -> Option<String> {
        let rates = |what: &str, own: u64, of_pod: Rate| {
            let own = Rate(own);
            (own != of_pod).then(|| format!("{what} have {own}, and the pod's {of_pod}"))
        };
        if self.has_circuits() {
            if self.servers != pod.servers() {
                let (own, of_pod) = (self.servers, pod.servers());
                return Some(format!("it has {own} servers, and the pod {of_pod}"));
            }
            let differs = rates("its servers' links", self.server_bps, pod.server_rate());
            if differs.is_some() {
                return differs;
            }
            let dark = self.reconfiguration().delay;
            if dark >= patience {
                return Some(format!(
                    "its ports are dark for {dark} after a change, and an upload waits {patience} for its circuits"
                ));
            }
        }
        self.tors.iter().find_map(|it| {
            let (number, last) = (it.tor, pod.tors().len() - 1);
            let Some(tor) = pod.tors().get(usize::from(number)) else {
                return Some(format!("the pod has no ToR {number}: it has ToRs 0 to {last}"));
            };
            let counts =
                [("server ports", it.ports, tor.ports), ("uplinks", it.uplinks, tor.uplinks)];
            let differs = counts.iter().find(|(_, own, of_pod)| own != of_pod);
            if let Some((what, own, of_pod)) = differs {
                return Some(format!("its ToR {number} has {own} {what}, and the pod's {of_pod}"));
            }
            let what = format!("the uplinks of its ToR {number}");
            rates(&what, it.uplink_bps, tor.uplink_rate)
        })
    }
}

/// Bytes that have passed since the switch started, by server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// From each server.
    pub sent: Vec<u64>,
    /// To each server.
    pub received: Vec<u64>,
}

/// What has become of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The term of its controller.
    pub term: u64,
    /// Its version.
    pub version: u64,
    /// For how long ports are still dark.
    pub dark_ns: u64,
    /// Why it was refused; nothing has changed then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// What an agent tells its controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The agent's name, one of its own in the pod.
    pub agent: String,
    /// Another number after each start.
    pub boot: u64,
    /// Grows with each report of a boot.
    pub sequence: u64,
    /// What the switch can do.
    pub abilities: Abilities,
    /// Whose commands it follows.
    pub holder: Option<Holder>,
    /// [`Command::sent_ns`] of the holder's last command that was followed.
    pub echo_ns: u64,
    /// What has become of the last command with a version.
    pub applied: Option<Applied>,
    /// Its present circuits.
    pub wiring: Option<Wiring>,
    /// What it has counted, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<Counters>,
}

/// The uplinks by which a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteEntry {
    /// The sending server; `None`: what the `ToR` has added up.
    pub src: Option<u32>,
    /// The receiving server; `None`: to be added up there.
    pub dst: Option<u32>,
    /// The `ToR` that it leaves.
    pub from: u16,
    /// The uplink by which it leaves.
    pub up: u16,
    /// The `ToR` that it enters.
    pub to: u16,
    /// The uplink by which it enters.
    pub down: u16,
}

/// What a controller tells an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// Who commands.
    pub holder: Holder,
    /// When it was sent, by the controller's clock.
    pub sent_ns: u64,
    /// The time from its receipt for which the agent follows nobody else.
    pub lease_ns: u64,
    /// Grows whenever the circuits change; 0: the controller only asks for the lease.
    pub version: u64,
    /// The circuits.
    pub wiring: Option<Wiring>,
    /// The routes of what is transferred.
    pub routes: Vec<RouteEntry>,
}
