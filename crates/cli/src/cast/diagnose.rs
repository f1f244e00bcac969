//! Why nobody answers.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use rackweave_linux::sys::{ethtool, route_to};
use rackweave_wire::orca::{GROUP, PORT};

/// How long an answer of the host's system is waited for.
const WAIT: Duration = Duration::from_millis(300);

/// What this host knows about the way.
struct Facts {
    to: SocketAddr,
    /// Where packets to it leave from, by which interface, and the largest; or why they can't.
    way: Result<(IpAddr, Option<String>, u32), String>,
    /// The same of the multicast group.
    group: Result<(IpAddr, Option<String>), String>,
    /// Interfaces of this host on which some program is in the group.
    joined: Vec<String>,
    /// Where an agent's socket is looked for, and whether one answers there.
    door: (&'static str, bool),
}

impl Facts {
    fn look(to: SocketAddr) -> Self {
        let by = |ip: IpAddr| (ip, interface_of(ip));
        let way = route_to(to).map_err(|error| error.to_string()).map(|(from, mtu)| {
            let (ip, name) = by(from.ip());
            (ip, name, mtu)
        });
        let group = route_to(SocketAddr::from((GROUP, PORT)));
        let group = group.map(|way| by(way.0.ip())).map_err(|error| error.to_string());
        let igmp = std::fs::read_to_string("/proc/net/igmp").unwrap_or_default();
        let door = super::agent::SOCKET;
        let answers = std::os::unix::net::UnixStream::connect(Path::new(door)).is_ok();
        Self { to, way, group, joined: joined(&igmp), door: (door, answers) }
    }

    /// One paragraph. `why` says what came back.
    fn tell(&self, why: &str) -> String {
        let by = |name: &Option<String>| match name {
            Some(name) => format!(" by interface {name}"),
            None => String::new(),
        };
        let way = match &self.way {
            Ok((from, name, mtu)) => {
                format!("packets to it leave from {from}{} (MTU {mtu}); {why}", by(name))
            }
            Err(error) => format!("this host knows no way there: {error}"),
        };
        let group = Ipv4Addr::from(GROUP);
        let multicast = match &self.group {
            Ok((from, name)) => format!("Multicast to {group} leaves from {from}{}", by(name)),
            Err(error) => format!("This host has no route for multicast to {group} ({error})"),
        };
        let joined = match &self.joined[..] {
            [] => "no program of this host is in the group".to_owned(),
            names => format!("programs of this host are in the group on {}", names.join(", ")),
        };
        let door = match self.door {
            (path, true) => format!("an agent of this host answers at {path}"),
            (path, false) => format!("no agent of this host answers at {path}"),
        };
        format!("{}: {way}. {multicast}; {joined}; {door}", self.to)
    }
}

/// The interface that has this address.
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

/// Interfaces on which the group is joined, of what `/proc/net/igmp` says: addresses are numbers as the machine has them.
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

/// What is known about multicast of this host, for a group of which nobody answers.
pub(super) fn nobody(name: &str, keyed: bool) -> String {
    let facts = Facts::look(SocketAddr::from((GROUP, PORT)));
    let admit = match keyed {
        true => "and the same --key",
        false => "and `--from` this host (or, at both ends, --key FILE)",
    };
    let why = format!(
        "no member of `{name}` has answered: start `rackweave cast receive --group {name}` there, {admit}; \
         --interface chooses another way, and --to HOST,... needs no multicast"
    );
    facts.tell(&why)
}

/// One paragraph about a receiver of which nothing was heard.
pub(super) fn silent(to: SocketAddr, keyed: bool, mismatches: u64) -> String {
    let facts = Facts::look(to);
    let Ok((from, ..)) = &facts.way else { return facts.tell("") };
    if mismatches > 0 {
        return facts.tell(
            "packets come back that were made with another key or without one: \
             give both ends the same --key FILE, or neither",
        );
    }
    let why = match refused(to) {
        Ok(true) => format!(
            "its system says that nothing listens at UDP port {}: start `rackweave cast receive` there",
            to.port()
        ),
        Ok(false) => {
            let admit = if keyed {
                "it was not started with the same --key".to_owned()
            } else {
                format!("it was not started with `--from {from}` (or, at both ends, --key FILE)")
            };
            format!(
                "nothing came back at all: the host is down, a firewall drops UDP port {}, or {admit}",
                to.port()
            )
        }
        Err(error) => format!("the network says: {error}"),
    };
    facts.tell(&why)
}

/// Whether the host's system refuses packets to the port.
fn refused(to: SocketAddr) -> std::io::Result<bool> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(WAIT))?;
    // No packet of ours is so short: whoever listens drops it.
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
    fn members_are_read_of_the_systems_table() {
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
    fn a_paragraph_names_the_way_the_group_and_the_door() {
        let mut facts = Facts {
            to: "192.0.2.7:6722".parse().unwrap(),
            way: Ok(("192.0.2.1".parse().unwrap(), Some("eth0".into()), 1500)),
            group: Err("no route".into()),
            joined: Vec::new(),
            door: ("/tmp/door", false),
        };
        assert_eq!(
            facts.tell("why"),
            "192.0.2.7:6722: packets to it leave from 192.0.2.1 by interface eth0 (MTU 1500); why. This host has no route \
             for multicast to 239.255.67.22 (no route); no program of this host is in the group; no agent of this host \
             answers at /tmp/door"
        );
        facts.group = Ok(("192.0.2.1".parse().unwrap(), Some("eth1".into())));
        (facts.joined, facts.door.1) = (vec!["eth1".into()], true);
        let text = facts.tell("why");
        assert!(
            text.contains("leaves from 192.0.2.1 by interface eth1; programs of this host are in")
        );
        assert!(text.contains("an agent of this host answers"));
        facts.way = Err("unreachable".into());
        assert!(facts.tell("").contains("knows no way there: unreachable."));
    }

    #[test]
    fn loopback_is_found_by_its_address() {
        let facts = Facts::look("127.0.0.1:9".parse().unwrap());
        let (from, name, _) = facts.way.unwrap();
        assert!(from.is_loopback());
        // A namespace whose loopback is down has none.
        assert!(name.is_none_or(|name| name == "lo"));
    }
}
