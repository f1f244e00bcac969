//! The links, names and paths of a pod: see [`crate::pod`].
//!
//! Its switches are the `ToR`s and, if there are uplinks, the core switch. The ports of a `ToR` are those for servers, those
//! for circuits, and its uplinks. A port without a circuit leads back to its own switch, so that no path uses it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rackweave_core::{HostId, Span};

use super::{Fabric, FabricError, LinkSpec, Node, SwitchSpec};
use crate::config::{Circuits, FabricConfig, Pod, Topology};
use crate::pod::{CircuitError, MAX_SERVERS, MAX_TORS, Wiring};

/// The ports that packets may leave by, for each destination host.
type Table = Vec<Vec<u16>>;

/// The circuits of a pod and the paths over them.
#[derive(Debug)]
pub(super) struct PodLinks {
    wiring: Wiring,
    /// For each link, the one in the other direction.
    reverse: Vec<u32>,
    /// For each switch, its table while all links work.
    tables: Vec<Table>,
}

impl PodLinks {
    pub(super) const fn wiring(&self) -> &Wiring {
        &self.wiring
    }

    pub(super) fn reverse(&self, link: u32) -> u32 {
        self.reverse[link as usize]
    }

    pub(super) fn table(&self, switch: u32) -> &Table {
        &self.tables[switch as usize]
    }
}

/// The share of a message's packets that cross a link, in units of 2^-32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share(u64);

impl Share {
    const WHOLE: Self = Self(1 << 32);

    /// The mean time that each packet of the message occupies the link, if one packet occupies it for `span`.
    pub(super) fn of(self, span: Span) -> Span {
        Span::from_ticks(((u128::from(span.ticks()) * u128::from(self.0) + (1 << 31)) >> 32) as u64)
    }
}

/// What a link of a pod is.
enum Place {
    Host(u32),
    ServerPort {
        tor: usize,
        port: u32,
    },
    CircuitPort {
        tor: usize,
        port: u32,
    },
    /// The uplink of a `ToR` (`up`), or the core's link down to it.
    Uplink {
        tor: usize,
        number: u32,
        up: bool,
    },
}

impl Fabric {
    /// The pod that is the whole fabric, if the fabric is one.
    #[must_use]
    pub fn pod(&self) -> Option<&Pod> {
        match &self.config.topology {
            Topology::Pod(pod) => Some(pod),
            _ => None,
        }
    }

    /// Whether the fabric has an optical circuit switch.
    #[must_use]
    pub fn has_ocs(&self) -> bool {
        self.pod().is_some_and(Pod::has_ocs)
    }

    /// The same pod with other circuits. Links keep their numbers; those of ports at the OCS lead to other nodes.
    ///
    /// # Errors
    /// If the fabric has no OCS, or these circuits are impossible.
    pub fn with_circuits(&self, circuits: &Circuits) -> Result<Self, CircuitError> {
        match (self.pod(), &self.pod) {
            (Some(pod), Some(links)) if pod.has_ocs() => {
                self.rewired(pod.wire(circuits, Some(links.wiring()))?)
            }
            _ => Err(CircuitError::Kind(circuits.kind())),
        }
    }

    /// Whether a link leads to another node: a port at an OCS may have no circuit.
    #[must_use]
    pub fn is_connected(&self, link: u32) -> bool {
        let spec = &self.links[link as usize];
        spec.from != spec.to
    }

    /// Whether a link begins or ends at the optical circuit switch.
    #[must_use]
    pub fn is_at_ocs(&self, link: u32) -> bool {
        self.pod().is_some_and(|pod| self.pod_is_at_ocs(pod, link))
    }

    pub(super) fn of_pod(config: &FabricConfig, pod: &Arc<Pod>) -> Result<Self, FabricError> {
        check(pod)?;
        let wiring = pod.wire(&pod.circuits, None)?;
        let hosts = pod.servers();
        let core_ports: u32 = pod.tors.iter().map(|tor| tor.uplinks).sum();
        let spec = |role, index, downs, ups, first_link| SwitchSpec {
            role,
            index,
            first_host: 0,
            hosts_per_port: 1,
            downs: downs as u16,
            ups: ups as u16,
            first_link,
        };
        let mut first_link = hosts;
        let mut switches = Vec::with_capacity(pod.tors.len() + 1);
        for (index, tor) in (0..).zip(&pod.tors) {
            let ups = tor.circuit_ports + tor.uplinks;
            switches.push(spec("tor", index, tor.server_ports, ups, first_link));
            first_link += tor.server_ports + ups;
        }
        if core_ports > 0 {
            switches.push(spec("core", 0, core_ports, 0, first_link));
        }
        let (config, links) = (config.clone(), Vec::new());
        let fabric = Self { config, hosts, switches, links, hosts_per_group: 1, pod: None };
        Ok(fabric.rewired(wiring)?)
    }

    /// The same pod with other circuits.
    pub(super) fn rewired(&self, wiring: Wiring) -> Result<Self, CircuitError> {
        let Some(pod) = self.pod() else { return Err(CircuitError::Kind("a pod")) };
        let ports = self.switches.last().map_or(self.hosts, |last| {
            last.first_link + u32::from(last.downs) + u32::from(last.ups)
        });
        let mut reverse: Vec<u32> = (0..ports).collect();
        let mut join = |a: u32, b: u32| {
            reverse[a as usize] = b;
            reverse[b as usize] = a;
        };
        for (host, &(tor, port)) in (0..).zip(&wiring.servers) {
            join(host, self.switches[usize::from(tor)].first_link + u32::from(port));
        }
        for (tor, ends) in wiring.circuits.iter().enumerate() {
            for (port, end) in (0..).zip(ends) {
                if let Some((other, there)) = end {
                    let other = usize::from(*other);
                    join(self.circuit_port(tor, port), self.circuit_port(other, u32::from(*there)));
                }
            }
        }
        let mut down = self.switches.get(pod.tors.len()).map_or(0, |core| core.first_link);
        for (number, tor) in pod.tors.iter().enumerate() {
            for uplink in 0..tor.uplinks {
                join(self.circuit_port(number, tor.circuit_ports) + uplink, down);
                down += 1;
            }
        }
        let node = |link: u32| match self.place(pod, link) {
            Place::Host(host) => Node::Host(host),
            Place::ServerPort { tor, .. }
            | Place::CircuitPort { tor, .. }
            | Place::Uplink { tor, up: true, .. } => Node::Switch(tor as u32),
            Place::Uplink { .. } => Node::Switch(pod.tors.len() as u32),
        };
        let (config, core) = (&self.config, self.config.core_link_delay);
        let link = |link: u32| {
            let (from, to) = (node(link), node(reverse[link as usize]));
            let rate = match self.place(pod, link) {
                Place::Host(_) | Place::ServerPort { .. } => pod.host_link,
                _ => pod.core_link,
            };
            let delay = match (from, to) {
                (Node::Host(host), _) => config.delay_from(HostId(host)),
                (_, Node::Host(host)) => config.delay_to(HostId(host)),
                _ => core + config.switch.latency,
            };
            LinkSpec { from, to, rate, delay }
        };
        let links = (0..ports).map(link).collect();
        let (config, switches) = (self.config.clone(), self.switches.clone());
        let links_only = PodLinks { wiring, reverse, tables: Vec::new() };
        let mut fabric = Self {
            config,
            hosts: self.hosts,
            switches,
            links,
            hosts_per_group: 1,
            pod: Some(Arc::new(links_only)),
        };
        let tables = fabric.pod_tables(|_| true);
        if let Some(pod) = fabric.pod.as_mut().and_then(Arc::get_mut) {
            pod.tables = tables;
        }
        Ok(fabric)
    }

    /// The link of a `ToR`'s circuit port; its uplinks follow.
    fn circuit_port(&self, tor: usize, port: u32) -> u32 {
        let spec = &self.switches[tor];
        spec.first_link + u32::from(spec.downs) + port
    }

    fn place(&self, pod: &Pod, link: u32) -> Place {
        if link < self.hosts {
            return Place::Host(link);
        }
        let switch = self.switches.partition_point(|spec| spec.first_link <= link) - 1;
        let mut port = link - self.switches[switch].first_link;
        let Some(tor) = pod.tors.get(switch) else {
            let tor = (pod.tors.iter()).position(|tor| {
                let is_here = port < tor.uplinks;
                port = if is_here { port } else { port - tor.uplinks };
                is_here
            });
            return Place::Uplink { tor: tor.unwrap_or(0), number: port, up: false };
        };
        if port < tor.server_ports {
            return Place::ServerPort { tor: switch, port };
        }
        port -= tor.server_ports;
        if port < tor.circuit_ports {
            return Place::CircuitPort { tor: switch, port };
        }
        Place::Uplink { tor: switch, number: port - tor.circuit_ports, up: true }
    }

    pub(super) fn pod_is_at_ocs(&self, pod: &Pod, link: u32) -> bool {
        let rackless = matches!(pod.circuits, Circuits::Servers(_));
        match self.place(pod, link) {
            Place::Host(_) | Place::ServerPort { .. } => rackless,
            Place::CircuitPort { .. } => true,
            Place::Uplink { .. } => false,
        }
    }

    pub(super) fn pod_link_name(&self, pod: &Pod, link: u32) -> String {
        let rackless = matches!(pod.circuits, Circuits::Servers(_));
        let spec = &self.links[link as usize];
        match self.place(pod, link) {
            Place::Host(host) if rackless => format!("h{host}->ocs"),
            Place::ServerPort { tor, port } if rackless => format!("tor{tor}.{port}->ocs"),
            Place::CircuitPort { tor, port } => format!("tor{tor}.{port}->ocs"),
            Place::Uplink { tor, number, up } => {
                let ends = if up { format!("tor{tor}->core0") } else { format!("core0->tor{tor}") };
                let is_parallel = pod.tors[tor].uplinks > 1;
                if is_parallel { format!("{ends}#{number}") } else { ends }
            }
            Place::Host(host) => match spec.to {
                Node::Switch(tor) => format!("h{host}->tor{tor}"),
                Node::Host(other) => format!("h{host}->h{other}"),
            },
            Place::ServerPort { tor, port } => match spec.to {
                Node::Host(host) => format!("tor{tor}->h{host}"),
                Node::Switch(_) => format!("tor{tor}.{port}"),
            },
        }
    }

    /// The uplinks, then the circuits between `ToR`s.
    pub(super) fn pod_cables(&self, links: &PodLinks) -> Vec<(u32, u32)> {
        let Some(pod) = self.pod() else { return Vec::new() };
        let cable = |link: u32| (link, links.reverse(link));
        let of_switches = || self.hosts..self.links.len() as u32;
        let uplinks = of_switches()
            .filter(|link| matches!(self.place(pod, *link), Place::Uplink { up: true, .. }));
        let circuits = of_switches().filter(|link| {
            *link < links.reverse(*link)
                && matches!(self.place(pod, *link), Place::CircuitPort { .. })
        });
        uplinks.chain(circuits).map(cable).collect()
    }

    /// The ports on the shortest paths to each host over the working links between switches, switch by switch. The port to
    /// a server at its own `ToR` is in the table even while its link is down: there is no other way.
    pub(super) fn pod_tables(&self, works: impl Fn(u32) -> bool) -> Vec<Table> {
        let mut into = vec![Vec::new(); self.switches.len()];
        for number in 0..self.switches.len() as u32 {
            for link in self.ports(number).filter(|link| works(*link) && self.is_connected(*link)) {
                if let Node::Switch(to) = self.links[link as usize].to {
                    into[to as usize].push((number, (link - self.ports(number).start) as u16));
                }
            }
        }
        let mut tables = vec![vec![Vec::new(); self.hosts as usize]; self.switches.len()];
        let mut of_tor: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for host in 0..self.hosts {
            if let Node::Switch(tor) = self.links[host as usize].to {
                of_tor.entry(tor).or_default().push(host);
            }
        }
        for (&tor, hosts) in &of_tor {
            let mut distance = vec![u32::MAX; self.switches.len()];
            let mut ports = vec![Vec::new(); self.switches.len()];
            distance[tor as usize] = 0;
            let mut frontier = VecDeque::from([tor]);
            while let Some(switch) = frontier.pop_front() {
                let here = distance[switch as usize];
                for &(before, port) in &into[switch as usize] {
                    let there = &mut distance[before as usize];
                    if *there == u32::MAX {
                        *there = here + 1;
                        frontier.push_back(before);
                    }
                    if *there == here + 1 {
                        ports[before as usize].push(port);
                    }
                }
            }
            // Searched from the destination, ports come in the order of the switches that they lead to.
            ports.iter_mut().for_each(|ports| ports.sort_unstable());
            for &host in hosts {
                for (table, ports) in tables.iter_mut().zip(&ports) {
                    table[host as usize].clone_from(ports);
                }
                let port = self.downlink(HostId(host)) - self.ports(tor).start;
                tables[tor as usize][host as usize] = vec![port as u16];
            }
        }
        tables
    }

    /// The path with this number. A number is in mixed radix, its lowest digit for the first switch.
    pub(super) fn pod_path(
        &self,
        links: &PodLinks,
        src: HostId,
        dst: HostId,
        mut number: u32,
    ) -> Vec<u32> {
        let mut path = vec![src.0];
        let mut node = self.links[src.0 as usize].to;
        while let Node::Switch(switch) = node {
            let ports = &links.tables[switch as usize][dst.0 as usize];
            // Circuits that leave two hosts without a path are refused.
            let Some(ways) = (ports.len() as u32 > 0).then_some(ports.len() as u32) else { break };
            let link = self.ports(switch).start + u32::from(ports[(number % ways) as usize]);
            number /= ways;
            path.push(link);
            node = self.links[link as usize].to;
        }
        path
    }

    /// The share of a sprayed message's packets that cross each link of this path to a host, if every switch spreads them
    /// evenly over its shortest paths.
    pub(super) fn shares(&self, links: &PodLinks, path: &[u32], dst: HostId) -> Vec<Share> {
        let mut shares = vec![Share::WHOLE];
        let Node::Switch(first) = self.links[path[0] as usize].to else { return shares };
        // All paths are equally long, so that they reach a switch at the same hop.
        let mut at = BTreeMap::from([(first, Share::WHOLE.0)]);
        for &link in &path[1..] {
            let mut next: BTreeMap<u32, u64> = BTreeMap::new();
            for (&switch, share) in &at {
                let ports = &links.tables[switch as usize][dst.0 as usize];
                let each = share / (ports.len() as u64).max(1);
                for port in ports {
                    let out = self.ports(switch).start + u32::from(*port);
                    if out == link {
                        shares.push(Share(each));
                    }
                    if let Node::Switch(to) = self.links[out as usize].to {
                        *next.entry(to).or_default() += each;
                    }
                }
            }
            at = next;
        }
        shares
    }

    /// For each pair of `ToR`s, the hosts with the longest links, under the current circuits.
    pub(super) fn farthest_in_pod(&self) -> Vec<(HostId, HostId)> {
        let mut longest: BTreeMap<u32, Vec<HostId>> = BTreeMap::new();
        for host in (0..self.hosts).map(HostId) {
            if let Node::Switch(tor) = self.links[host.0 as usize].to {
                let hosts = longest.entry(tor).or_default();
                hosts.push(host);
                hosts.sort_by_key(|host| std::cmp::Reverse(self.config.link_delay_of(*host)));
                hosts.truncate(2);
            }
        }
        let mut pairs: Vec<_> =
            longest.values().filter_map(|hosts| Some((*hosts.first()?, *hosts.get(1)?))).collect();
        let of_tors: Vec<HostId> =
            longest.values().filter_map(|all| all.first().copied()).collect();
        for (number, one) in of_tors.iter().enumerate() {
            pairs.extend(of_tors[number + 1..].iter().map(|other| (*one, *other)));
        }
        if pairs.is_empty() {
            pairs.push((HostId(0), HostId(self.hosts - 1)));
        }
        pairs
    }
}

/// The rules of a pod that do not concern its circuits.
fn check(pod: &Pod) -> Result<(), FabricError> {
    match pod.tors.len() {
        0 => return Err(FabricError::Zero("ToRs")),
        tors if tors > MAX_TORS => return Err(FabricError::TooManyTors(tors)),
        _ => {}
    }
    let most = |ports: u64| {
        if ports > 65_535 { Err(FabricError::TooManyPorts(ports)) } else { Ok(()) }
    };
    let mut core_ports = 0;
    let mut hosts = 0;
    for tor in &pod.tors {
        let ports = [tor.server_ports, tor.circuit_ports, tor.uplinks].map(u64::from);
        most(ports.iter().sum())?;
        core_ports += ports[2];
        hosts += ports[0];
    }
    most(core_ports)?;
    let servers = hosts.max(u64::from(pod.servers()));
    if servers > u64::from(MAX_SERVERS) {
        return Err(FabricError::TooManyServers(servers));
    }
    if pod.servers() == 0 {
        return Err(FabricError::Zero("servers"));
    }
    for delay in [pod.ocs.switching_delay, pod.ocs.link_delay] {
        if delay > super::LONGEST_DELAY {
            return Err(FabricError::TooLong(delay));
        }
    }
    Ok(())
}
