//! Explains why no receiver answers.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use rackweave_linux::sys::{connect_to_own, ethtool, route_to};
use rackweave_wire::orca::{GROUP, PORT};

/// How long to wait for an ICMP error from the receiver's system.
const WAIT: Duration = Duration::from_millis(300);

/// What this host knows about the path to a receiver.
struct Facts {
    /// The source address, interface and MTU of packets to it, or why there is no route.
    route: Result<(IpAddr, Option<String>, u32), String>,
    /// Source address and interface for the multicast group, or why there is no route.
    group: Result<(IpAddr, Option<String>), String>,
    /// Interfaces of this host on which some program has joined the group.
    joined: Vec<String>,
    /// The path of the agent's control socket, and whether an agent answers there.
    agent: (String, bool),
}

impl Facts {
    fn gather(to: SocketAddr) -> Self {
        let by = |ip: IpAddr| (ip, interface_of(ip));
        let route = route_to(to).map_err(|error| error.to_string()).map(|(from, mtu)| {
            let (ip, name) = by(from.ip());
            (ip, name, mtu)
        });
        let group = route_to(SocketAddr::from((GROUP, PORT)));
        let group = group.map(|route| by(route.0.ip())).map_err(|error| error.to_string());
        let igmp = std::fs::read_to_string("/proc/net/igmp").unwrap_or_default();
        let agent = match super::agent_socket() {
            Ok(path) => (path.display().to_string(), connect_to_own(&path).is_ok()),
            Err(error) => (error.to_string(), false),
        };
        Self { route, group, joined: joined(&igmp), agent }
    }

    /// Returns one paragraph; `why` is the result of the probe.
    fn paragraph(&self, why: &str) -> String {
        let by = |name: &Option<String>| match name {
            Some(name) => format!(" through interface {name}"),
            None => String::new(),
        };
        let route = match &self.route {
            Ok((from, name, mtu)) => {
                format!("{why}. Packets to it leave from {from}{} (MTU {mtu})", by(name))
            }
            Err(error) => format!("no route to this host: {error}"),
        };
        let group = Ipv4Addr::from(GROUP);
        let multicast = match &self.group {
            Ok((from, name)) => format!("Multicast to {group} leaves from {from}{}", by(name)),
            Err(error) => format!("This host has no route for multicast to {group} ({error})"),
        };
        let joined = match &self.joined[..] {
            [] => "no program of this host has joined the group".to_owned(),
            names => format!("programs of this host have joined it on {}", names.join(", ")),
        };
        let agent = match &self.agent {
            (path, true) => format!("an agent of this host answers at {path}"),
            (path, false) => format!("no agent of this host answers at {path}"),
        };
        format!("{route}. {multicast}; {joined}; {agent}")
    }
}

/// The name of the interface with this address.
fn interface_of(address: IpAddr) -> Option<String> {
    let names = std::fs::read_dir("/sys/class/net").ok()?;
    let mut names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let v4 = match address {
        IpAddr::V4(v4) => v4,
        IpAddr::V6(v6) => {
            let wanted: String = v6.octets().iter().map(|byte| format!("{byte:02x}")).collect();
            let table = std::fs::read_to_string("/proc/net/if_inet6").ok()?;
            let line = table.lines().find(|line| line.starts_with(&wanted))?;
            return line.split_whitespace().last().map(str::to_owned);
        }
    };
    names.find(|name| ethtool::address_of(name).is_ok_and(|it| it == v4))
}

/// Interfaces on which the group is joined, from the text of `/proc/net/igmp`, which prints addresses in host byte order.
fn joined(igmp: &str) -> Vec<String> {
    let group = format!("{:08X}", u32::from_ne_bytes(GROUP));
    let (mut found, mut interface) = (Vec::new(), "");
    for line in igmp.lines().skip(1) {
        let mut words = line.split_whitespace();
        if line.starts_with(char::is_whitespace) {
            if words.next() == Some(&group) && !found.iter().any(|it| it == interface) {
                found.push(interface.to_owned());
            }
        } else {
            interface = words.nth(1).unwrap_or_default().trim_end_matches(':');
        }
    }
    found
}

/// Returns one paragraph about a group in which no member answers.
pub(super) fn no_members(name: &str, keyed: bool) -> String {
    let facts = Facts::gather(SocketAddr::from((GROUP, PORT)));
    let admit = match keyed {
        true => "and the same --key",
        false => "and `--from` this host (or, at both ends, --key FILE)",
    };
    let why = format!(
        "no member of `{name}` answered: start `rackweave cast receive --group {name}` there, {admit}; \
         --interface selects another interface, and --to HOST,... works without multicast"
    );
    facts.paragraph(&why)
}

/// What came back although no receiver could be served.
pub(super) struct Answered<'a> {
    /// The receiver has shown that it has another key.
    pub(super) other_key: bool,
    /// Addresses that were not asked and sent something.
    pub(super) from: &'a [SocketAddr],
}

/// Returns one paragraph about a receiver that has never answered.
pub(super) fn silent(to: SocketAddr, keyed: bool, answered: &Answered<'_>) -> String {
    let facts = Facts::gather(to);
    let Ok((from, ..)) = &facts.route else { return facts.paragraph("") };
    // A system that answers for all its addresses does it from the one of the route back.
    let others = answered.from.iter().map(|it| SocketAddr::new(it.ip().to_canonical(), it.port()));
    if let Some(other) = others.into_iter().find(|it| it.port() == to.port() && it.ip() != to.ip())
    {
        return facts.paragraph(&format!(
            "datagrams came from {other} instead: if that is the same host, name this address in --to, or start the receiver with \
             --listen {to}"
        ));
    }
    if answered.other_key {
        return facts.paragraph(
            "it answered that it has another key, or that only one of the two has one: \
             give both ends the same --key FILE, or neither",
        );
    }
    let why = match refused(to) {
        Ok(true) => format!(
            "nothing listens at its UDP port {}: start `rackweave cast receive` there",
            to.port()
        ),
        Ok(false) => {
            let admit = if keyed {
                "it was not started with the same --key".to_owned()
            } else {
                format!("it was not started with `--from {from}` (or, at both ends, --key FILE)")
            };
            format!(
                "nothing came back: the host is down, a firewall drops UDP port {}, or {admit}",
                to.port()
            )
        }
        Err(error) => format!("the network reports: {error}"),
    };
    facts.paragraph(&why)
}

/// Returns whether the host's system answers with "port unreachable".
fn refused(to: SocketAddr) -> std::io::Result<bool> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(WAIT))?;
    // The datagram is shorter than any valid packet, so a receiver drops it.
    socket.send(&[0])?;
    match socket.recv(&mut [0; 16]) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Ok(false)
        }
        Err(error) => Err(error),
        Ok(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_in_the_group_are_read_from_proc() {
        let group = format!("{:08X}", u32::from_ne_bytes(GROUP));
        let table = format!(
            "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
             1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n\
             2\teth0      :     2      V3\n\t\t\t\t{group}     1 0:00000000\t\t0\n\
             \t\t\t\t010000E0     1 0:00000000\t\t0\n\
             7\twlan0:     1      V3\n\t\t\t\t{group}     2 0:00000000\t\t0\n"
        );
        assert_eq!(joined(&table), ["eth0", "wlan0"]);
        assert!(joined("").is_empty() && joined("x\n\n\t\n9").is_empty());
    }

    #[test]
    fn a_paragraph_names_the_route_the_group_and_the_agent() {
        let mut facts = Facts {
            route: Ok(("192.0.2.1".parse().unwrap(), Some("eth0".into()), 1500)),
            group: Err("no route".into()),
            joined: Vec::new(),
            agent: ("/tmp/cast.sock".into(), false),
        };
        assert_eq!(
            facts.paragraph("why"),
            "why. Packets to it leave from 192.0.2.1 through interface eth0 (MTU 1500). This host has no \
             route for multicast to 239.255.67.22 (no route); no program of this host has joined the group; no agent of \
             this host answers at /tmp/cast.sock"
        );
        facts.group = Ok(("192.0.2.1".parse().unwrap(), Some("eth1".into())));
        (facts.joined, facts.agent.1) = (vec!["eth1".into()], true);
        let text = facts.paragraph("why");
        assert!(
            text.contains(
                "leaves from 192.0.2.1 through interface eth1; programs of this host have"
            )
        );
        assert!(text.contains("an agent of this host answers"));
        facts.route = Err("unreachable".into());
        assert!(facts.paragraph("").contains("no route to this host: unreachable."));
    }

    #[test]
    fn loopback_is_found_by_its_address() {
        let facts = Facts::gather("127.0.0.1:9".parse().unwrap());
        let (from, name, _) = facts.route.unwrap();
        assert!(from.is_loopback());
        // In a namespace whose loopback interface is down there is none.
        assert!(name.is_none_or(|name| name == "lo"));
    }
}
