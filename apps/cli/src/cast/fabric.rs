//! `--fabric`: the hosts that relays and labels reach, and how they are connected.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;

use miette::miette;
use rackweave_cast::orca::{EngineConfig, FabricPlace};
use rackweave_core::{HostId, Span};
use rackweave_lab::scenario::Hosts;
use rackweave_orca::flow::FlowConfig;
use rackweave_orca::label::Layout;
use rackweave_switch::fabric::Fabric;

use super::address;

/// The interval of heartbeats of an agent that is not given another.
const HEARTBEAT: Span = Span::from_ms(40);

/// Options of an Orca agent.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RackArgs {
    /// Be an agent of a rack, under the controller at this address (default: no agent).
    #[arg(long, value_name = "ADDR", value_parser = address, requires = "fabric")]
    pub(super) controller: Option<SocketAddr>,
    /// Interval of heartbeats to the controller.
    #[arg(long, value_name = "TIME", default_value_t = HEARTBEAT, requires = "controller")]
    heartbeat: Span,
}

impl RackArgs {
    /// Makes the engine an agent, if there is a controller.
    pub(super) fn apply(&self, config: &mut EngineConfig) -> miette::Result<()> {
        let (Some(address), Some(fabric)) = (self.controller, &mut config.fabric) else {
            return Ok(());
        };
        let controller = find(fabric, address)?;
        if self.heartbeat == Span::ZERO {
            return Err(miette!("--heartbeat 0: must be above zero"));
        }
        fabric.controller = Some(controller);
        fabric.tor = true;
        fabric.heartbeat = Some(self.heartbeat);
        check(&fabric.layout)
    }
}

/// A rack label has a bit per host, which limits racks to 64 hosts.
pub(super) fn check(layout: &Layout) -> miette::Result<()> {
    if !layout.reaches_other_racks() && layout.racks() > 1 {
        return Err(miette!(
            help = "write TOML with `hosts` and a table [fabric], as in docs/ops/cast.md",
            "a rack has at most 64 hosts: for {} hosts, labels need the topology",
            layout.hosts()
        ));
    }
    Ok(())
}

/// The host at an address.
pub(super) fn find(fabric: &FabricPlace, address: SocketAddr) -> miette::Result<HostId> {
    let found = fabric.hosts.iter().find(|(_, known)| *known == address);
    found
        .map(|(host, _)| *host)
        .ok_or_else(|| miette!("{address} is not among the --fabric's hosts"))
}

/// The address of a host of the fabric.
pub(super) fn place(fabric: &FabricPlace, host: HostId) -> Option<SocketAddr> {
    fabric.hosts.iter().find(|(known, _)| *known == host).map(|(_, address)| *address)
}

/// Reads the fabric's file. `me` is this host's index; without it, the entry with an address of this machine.
pub(super) fn read(path: &Path, me: Option<u32>) -> miette::Result<FabricPlace> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| miette!("cannot read the list of hosts {shown}: {error}"))?;
    let lines =
        || text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let is_list = lines().all(|line| !line.contains(['=', '"', '\'']));
    let (names, layout) = if is_list {
        let names: Vec<String> = lines().map(str::to_owned).collect();
        let layout = Layout::flat(names.len() as u32);
        (names, layout)
    } else {
        let Hosts { addresses, fabric } = Hosts::parse(&shown, &text)?;
        let layout = match fabric {
            None => Layout::flat(addresses.len() as u32),
            Some(config) => {
                let fabric = Fabric::new(&config).map_err(|error| miette!("{shown}: {error}"))?;
                Layout::new(&fabric).map_err(|error| miette!("{shown}: {error}"))?
            }
        };
        (addresses, layout)
    };
    let mut hosts = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let address = address(name).map_err(|error| miette!("{shown}: {error}"))?;
        if hosts.iter().any(|(_, known)| *known == address) {
            return Err(miette!("{shown} names {address} twice"));
        }
        hosts.push((HostId(number as u32), address));
    }
    let me = match me {
        Some(me) if me as usize >= hosts.len() => {
            let most = hosts.len().saturating_sub(1);
            return Err(miette!("--me {me}: {shown} has hosts 0 to {most}"));
        }
        Some(me) => HostId(me),
        None => local_host(&hosts, &shown)?,
    };
    let layout = Arc::new(layout);
    let (controller, heartbeat, control) = (None, None, None);
    Ok(FabricPlace { me, layout, hosts, controller, tor: false, heartbeat, control })
}

/// The only one of these hosts that has an address of this machine.
fn local_host(hosts: &[(HostId, SocketAddr)], shown: &str) -> miette::Result<HostId> {
    let is_here = |address: SocketAddr| UdpSocket::bind((address.ip(), 0)).is_ok();
    let mut mine = hosts.iter().filter(|(_, address)| is_here(*address));
    match (mine.next(), mine.next()) {
        (Some((host, _)), None) => Ok(*host),
        (None, _) => Err(miette!("none of the hosts in {shown} has an address of this machine")),
        (Some((one, _)), Some((other, _))) => Err(miette!(
            help = "choose one with --me N",
            "hosts {} and {} in {shown} have addresses of this machine",
            one.0,
            other.0
        )),
    }
}

/// Checks a controller's heartbeat timeout.
pub(super) fn check_timeout(timeout: Span) -> miette::Result<()> {
    let longest = FlowConfig::default().longest_agent_timeout();
    let shortest = HEARTBEAT * 2;
    if timeout < shortest {
        return Err(miette!(
            "--timeout: at least {shortest}: agents send a heartbeat each {HEARTBEAT}, and one may be lost"
        ));
    }
    if timeout > longest {
        return Err(miette!(
            "--timeout: at most {longest}: receivers lose their patience before an agent is replaced"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_outlasts_a_lost_heartbeat_and_no_patience() {
        for (ms, ends) in
            [(0, false), (10, false), (79, false), (80, true), (750, true), (751, false)]
        {
            assert_eq!(check_timeout(Span::from_ms(ms)).is_ok(), ends, "{ms} ms");
        }
        let refused = check_timeout(Span::from_ms(1)).unwrap_err().to_string();
        assert!(refused.starts_with("--timeout: at least 80 ms: "), "{refused}");
    }
}
