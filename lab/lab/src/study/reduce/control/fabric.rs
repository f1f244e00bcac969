//! A run's pod as its control plane sees it.

use rackweave_core::Rate;
use rackweave_rackless::config::Configuration;
use rackweave_rackless::controller::message::{Abilities, TorAbility, Wiring};
use rackweave_rackless::cost::Scope;
use rackweave_rackless::fabric::{Architecture, Fabric, Reach};
use rackweave_rackless::pod::{MAX_PORTS, Pod, Tor};
use rackweave_sim::config::{Circuits, Dark, RunConfig, Topology};

use crate::study::reduce::{Control, ReduceConfig};

/// What there is to control.
pub(super) struct Plant {
    pub(super) fabric: Fabric,
    /// Those of the switches together.
    pub(super) abilities: Abilities,
    /// The circuits at the start.
    pub(super) wiring: Wiring,
}

impl Plant {
    pub(super) fn of(reduce: &ReduceConfig, how: &Control, config: &RunConfig) -> Self {
        let adds_up = reduce.switches.is_some();
        let Topology::Pod(pod) = &config.fabric.topology else {
            return Self::fixed(reduce, config);
        };
        let architecture = match (&pod.circuits, adds_up) {
            (Circuits::Servers(_), false) => Architecture::Ordc,
            (Circuits::Servers(_), true) => Architecture::P4Ordc,
            (Circuits::Tors(_), true) => Architecture::P4IncAoi,
            (Circuits::None, _) | (Circuits::Tors(_), false) => return Self::fixed(reduce, config),
        };
        let servers = config.fabric.topology.hosts();
        let slots = |number: u32| reduce.slots_at(number);
        let Some(fabric) = planned_fabric(pod, servers, architecture, slots) else {
            return Self::fixed(reduce, config);
        };
        // Circuits between ToRs are there for the detour.
        let reach = match architecture {
            _ if !adds_up => Reach::Path,
            _ if how.detour || architecture.has_circuits() => Reach::Detour,
            _ => Reach::Rack,
        };
        let dark = pod.ocs.switching_delay + pod.ocs.link_delay;
        let scope = if pod.ocs.dark == Dark::All { Scope::All } else { Scope::Moved };
        let tors = match &pod.circuits {
            Circuits::Tors(tors) => tors.clone(),
            _ => Vec::new(),
        };
        Self::with(fabric.with_reach(reach), dark.as_ns(), scope, tors)
    }

    /// A network without circuits to plan: uploads have turns at the slots of its switch, and how hosts are joined does not matter.
    fn fixed(reduce: &ReduceConfig, config: &RunConfig) -> Self {
        let servers = config.fabric.topology.hosts();
        let slots = reduce.switches.as_ref().map_or(0, |switch| u64::from(switch.slots));
        let uplink_rate = Rate::from_gbps(10);
        let tor = |slots| Tor { ports: MAX_PORTS, uplinks: 1, uplink_rate, slots };
        let count = servers.div_ceil(MAX_PORTS).max(1) as usize;
        let tors = (0..count).map(|number| tor(if number == 0 { slots } else { 0 }));
        // Scenarios have no more servers than a pod can have.
        let pod = Pod::new(servers, uplink_rate, tors.collect()).unwrap_or_else(|_| Pod::paper());
        Self::with(Fabric::new(pod, Architecture::FatTree), 0, Scope::All, Vec::new())
    }

    fn with(fabric: Fabric, dark_ns: u64, dark: Scope, tors: Vec<(u16, u16)>) -> Self {
        let pod = fabric.pod();
        let ability = |(number, tor): (u16, &Tor)| TorAbility {
            tor: number,
            ports: tor.ports,
            uplinks: tor.uplinks,
            uplink_bps: tor.uplink_rate.0,
            slots: u32::try_from(tor.slots).unwrap_or(u32::MAX),
            address: number.to_string(),
        };
        let abilities = Abilities {
            servers: pod.servers(),
            server_bps: pod.server_rate().0,
            dark_ns,
            dark,
            tors: (0..).zip(pod.tors()).map(ability).collect(),
        };
        let wiring = Wiring { servers: fabric.initial().tor_of().to_vec(), tors };
        Self { fabric, abilities, wiring }
    }
}

/// The circuits of an optical switch, as the network takes them.
pub(super) fn circuits(wiring: &Wiring) -> Circuits {
    match wiring.tors.is_empty() {
        true => Circuits::Servers(wiring.servers.clone()),
        false => Circuits::Tors(wiring.tors.clone()),
    }
}

/// A simulated pod as the planner sees it; `None` if the planner cannot have it. `slots` are those of each `ToR`.
pub(crate) fn planned_fabric(
    pod: &rackweave_sim::config::Pod,
    servers: u32,
    architecture: Architecture,
    slots: impl Fn(u32) -> u64,
) -> Option<Fabric> {
    let tor = |(number, tor): (u32, &rackweave_sim::config::Tor)| Tor {
        ports: tor.server_ports,
        uplinks: (tor.uplinks + tor.circuit_ports).max(1),
        uplink_rate: pod.core_link,
        slots: slots(number),
    };
    let tors = (0..).zip(&pod.tors).map(tor).collect();
    let planned = Pod::new(servers, pod.host_link, tors).ok()?;
    let initial = match &pod.circuits {
        Circuits::Servers(tor_of) => Configuration::new(&planned, tor_of).ok()?,
        _ => Configuration::in_order(&planned),
    };
    Some(Fabric::new(planned, architecture).starting_from(initial))
}
