//! Hosts as network namespaces: each has one interface, whose peer is a port in the switch's namespace.
//!
//! ```text
//!  namespace rw-ID-h0          namespace rw-ID-sw           namespace rw-ID-h1
//!  eth0 10.0.0.0/32 <──veth──> h0   (the switch)   h1 <──veth──> eth0 10.0.0.1/32
//! ```
//! A host's only route leads to a gateway that does not exist, with a permanent neighbour entry: there is no ARP, and every
//! frame has the gateway's MAC address until the switch writes the receiver's. Offloads are off, so that the pair carries
//! frames of at most one MTU with complete checksums. Token buckets pace them at the link's rate, so that the kernel's TCP
//! sees the backpressure of a NIC. IPv6 is off. All names contain the id of the run, so that a later run can remove them;
//! removing a namespace removes everything in it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rackweave_core::{HostId, Rate, Span, frame};
use rackweave_wire::frame::{ip_address, mac_address};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::capability::Capability;
use crate::sys::ethtool;

/// The name of a host's interface.
pub const HOST_INTERFACE: &str = "eth0";
/// The directory in which `ip` keeps named namespaces.
const FOLDER: &str = "/run/netns";
/// The gateway of all hosts, which does not exist.
const GATEWAY: &str = "169.254.1.1";
const GATEWAY_MAC: &str = "02:ff:00:00:00:01";
/// The largest IP packet.
const MTU: u32 = frame::MTU;

/// Why a network of namespaces cannot be created or entered.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields repeat their types or the message")]
pub enum NetnsError {
    /// The process lacks a capability.
    #[error(
        "network namespaces need the capabilities CAP_NET_ADMIN and CAP_SYS_ADMIN: run as root"
    )]
    NoRights,
    /// A program is not installed.
    #[error("the program `{0}` is missing: it is part of iproute2")]
    NoProgram(&'static str),
    /// A program has failed.
    #[error("`{program}` failed: {stderr}")]
    Failed { program: String, stderr: String },
    /// The namespace cannot be entered.
    #[error("cannot enter the network namespace `{name}`: {source}")]
    Enter { name: String, source: std::io::Error },
    /// A setting of a namespace cannot be made.
    #[error("cannot set {what} in the network namespace `{name}`: {source}")]
    Set { what: String, name: String, source: std::io::Error },
    /// The host's number is too large for an address.
    #[error("host {} has no address: its number is not below 2^24", .0.0)]
    NoAddress(HostId),
}

/// A network of hosts around a switch.
#[derive(Clone, Debug)]
pub struct Network {
    /// The prefix of all names.
    pub prefix: String,
    /// The number of hosts.
    pub hosts: u32,
    /// The rate of their links.
    pub link: Rate,
    /// The order in which frames leave a host.
    pub nic: Nic,
    /// The settings of the kernel's TCP in all namespaces.
    pub tcp: TcpSettings,
}

/// The order in which frames leave a host that sends more than its link carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nic {
    /// First in, first out: one queue, as in a plain NIC.
    #[default]
    Fifo,
    /// Fair queueing between UDP and everything else, as the simulator's hosts poll their transports in turn: each class has
    /// half of the link, and what the other does not use.
    Fair,
}

/// Settings of the kernel's TCP.
#[derive(Clone, Debug, Default)]
pub struct TcpSettings {
    /// The congestion control of connections that do not select one. It is set by the route, because a namespace cannot have
    /// every congestion control as its default.
    pub congestion: Option<String>,
    /// Whether connections use ECN.
    pub ecn: bool,
    /// The least retransmission timeout, rounded up to milliseconds.
    pub min_rto: Option<Span>,
}

/// Checks whether this process can create namespaces.
///
/// # Errors
/// If a program or a capability is missing.
pub fn check() -> Result<(), NetnsError> {
    for program in ["ip", "tc"] {
        let found = Command::new(program).arg("-Version").stdout(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            return Err(NetnsError::NoProgram(program));
        }
    }
    let both = Capability::NetAdmin.is_held() && Capability::SysAdmin.is_held();
    if both { Ok(()) } else { Err(NetnsError::NoRights) }
}

/// Moves the calling thread, and threads and processes that it starts afterwards, into a namespace.
///
/// # Errors
/// If there is no namespace of this name, or a capability is missing.
pub fn enter(name: &str) -> Result<(), NetnsError> {
    let failed = |source| NetnsError::Enter { name: name.to_owned(), source };
    let file = File::open(Path::new(FOLDER).join(name)).map_err(failed)?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| failed(error.into()))
}

/// The namespaces whose names have this prefix.
#[must_use]
pub fn named(prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort();
    names
}

/// Removes the namespaces whose names have this prefix, and everything in them.
///
/// # Errors
/// If one of them cannot be removed.
pub fn remove(prefix: &str) -> Result<(), NetnsError> {
    let names = named(prefix);
    if names.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = names.iter().map(|name| format!("netns del {name}")).collect();
    run("ip", &["-force", "-batch", "-"], &lines)
}

/// The switch's end of a host's pair, in the switch's namespace.
#[must_use]
pub fn switch_end(host: HostId) -> String {
    format!("h{}", host.0)
}

impl Network {
    /// The namespace of the switch.
    #[must_use]
    pub fn switch(&self) -> String {
        format!("{}-sw", self.prefix)
    }

    /// The namespace of a host.
    #[must_use]
    pub fn host(&self, host: HostId) -> String {
        format!("{}-h{}", self.prefix, host.0)
    }

    /// Creates the network. After an error, [`remove`] removes what was created.
    ///
    /// # Errors
    /// If a namespace, an interface or a setting cannot be created.
    pub fn make(&self) -> Result<(), NetnsError> {
        let hosts: Vec<HostId> = (0..self.hosts).map(HostId).collect();
        let switch = self.switch();
        let mut lines = vec![format!("netns add {switch}")];
        lines.extend(hosts.iter().map(|host| format!("netns add {}", self.host(*host))));
        run("ip", &["-batch", "-"], &lines)?;
        // Before any interface is up, so that IPv6 sends no packet.
        self.in_namespace(&switch, || disable_ipv6(&switch))?;
        for host in &hosts {
            let name = self.host(*host);
            self.in_namespace(&name, || {
                disable_ipv6(&name)?;
                self.tcp_settings(&name)
            })?;
        }
        let pairs: Vec<String> = hosts.iter().map(|host| self.pair(*host)).collect();
        run("ip", &["-batch", "-"], &pairs)?;
        for host in &hosts {
            let name = self.host(*host);
            self.in_namespace(&name, || no_offloads(&name, HOST_INTERFACE))?;
            run("ip", &["-n", &name, "-batch", "-"], &self.addresses(*host)?)?;
            run("tc", &["-n", &name, "-batch", "-"], &self.queues())?;
        }
        self.in_namespace(&switch, || {
            hosts.iter().try_for_each(|host| no_offloads(&switch, &switch_end(*host)))
        })?;
        let up: Vec<String> =
            hosts.iter().map(|host| format!("link set {} up", switch_end(*host))).collect();
        run("ip", &["-n", &switch, "-batch", "-"], &up)
    }

    fn pair(&self, host: HostId) -> String {
        let (end, switch, name) = (switch_end(host), self.switch(), self.host(host));
        let mac = mac_address(host).map(|byte| format!("{byte:02x}")).join(":");
        format!(
            "link add name {end} mtu {MTU} netns {switch} type veth \
             peer name {HOST_INTERFACE} mtu {MTU} address {mac} netns {name}"
        )
    }

    fn addresses(&self, host: HostId) -> Result<Vec<String>, NetnsError> {
        let ip = ip_address(host).ok_or(NetnsError::NoAddress(host))?;
        let ip = std::net::Ipv4Addr::from(ip);
        let min_rto = self.tcp.min_rto.map_or(String::new(), |rto| {
            format!(" rto_min {}ms", rto.as_ns_ceil().div_ceil(1_000_000).max(1))
        });
        let congestion = self.tcp.congestion.as_ref();
        let congestion = congestion.map_or(String::new(), |name| format!(" congctl {name}"));
        Ok(vec![
            "link set lo up".into(),
            format!("addr add {ip}/32 dev {HOST_INTERFACE}"),
            format!("link set {HOST_INTERFACE} up"),
            format!(
                "neigh replace {GATEWAY} lladdr {GATEWAY_MAC} dev {HOST_INTERFACE} nud permanent"
            ),
            format!("route add {GATEWAY} dev {HOST_INTERFACE} scope link"),
            format!(
                "route add default via {GATEWAY} dev {HOST_INTERFACE} src {ip}{min_rto}{congestion}"
            ),
        ])
    }

    /// Queueing disciplines that pace frames at the link's rate, counted with checksum, preamble and gap. The burst is half a
    /// millisecond of the link, because a timer for each frame would cost more than the frame; the switch paces the host's
    /// link too.
    fn queues(&self) -> Vec<String> {
        let full = u64::from(frame::wire_bytes(MTU));
        let burst = self.link.bytes_in(Span::from_us(500)).max(8 * full);
        let limit = 1000 * full;
        let rate = self.link.0;
        if self.nic == Nic::Fifo {
            return vec![format!(
                "qdisc add dev {HOST_INTERFACE} root tbf rate {rate}bit burst {burst} limit {limit} overhead 24"
            )];
        }
        let half = rate / 2;
        let bursts = format!("burst {burst} cburst {burst} overhead 24");
        let mut lines = vec![
            format!("qdisc add dev {HOST_INTERFACE} root handle 1: htb default 2"),
            format!(
                "class add dev {HOST_INTERFACE} parent 1: classid 1:1 htb rate {rate}bit quantum {MTU} {bursts}"
            ),
        ];
        for class in [2, 3] {
            lines.push(format!(
                "class add dev {HOST_INTERFACE} parent 1:1 classid 1:{class} htb rate {half}bit \
                 ceil {rate}bit quantum {MTU} {bursts}"
            ));
            lines.push(format!(
                "qdisc add dev {HOST_INTERFACE} parent 1:{class} handle {class}: bfifo limit {limit}"
            ));
        }
        lines.push(format!(
            "filter add dev {HOST_INTERFACE} parent 1: protocol ip prio 1 u32 \
             match ip protocol 17 0xff flowid 1:3"
        ));
        lines
    }

    fn tcp_settings(&self, name: &str) -> Result<(), NetnsError> {
        set(name, "net/ipv4/tcp_ecn", if self.tcp.ecn { "1" } else { "0" })?;
        // Metrics of a path must not be carried over from one run to the next.
        set(name, "net/ipv4/tcp_no_metrics_save", "1")
    }

    /// Calls a function on a new thread inside a namespace.
    fn in_namespace<T: Send>(
        &self,
        name: &str,
        what: impl FnOnce() -> Result<T, NetnsError> + Send,
    ) -> Result<T, NetnsError> {
        std::thread::scope(|threads| {
            let done = threads.spawn(|| {
                enter(name)?;
                what()
            });
            done.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Disables IPv6, so that the kernel sends no packets of its own. To be called inside the namespace.
fn disable_ipv6(name: &str) -> Result<(), NetnsError> {
    for which in ["all", "default"] {
        let path = format!("net/ipv6/conf/{which}/disable_ipv6");
        // A kernel without IPv6 has no such setting.
        if Path::new("/proc/sys").join(&path).exists() {
            set(name, &path, "1")?;
        }
    }
    Ok(())
}

/// Changes a sysctl. To be called inside the namespace.
fn set(name: &str, path: &str, value: &str) -> Result<(), NetnsError> {
    std::fs::write(Path::new("/proc/sys").join(path), value).map_err(|source| NetnsError::Set {
        what: format!("{} = {value}", path.replace('/', ".")),
        name: name.to_owned(),
        source,
    })
}

/// Turns the offloads of an interface off. To be called inside the namespace.
fn no_offloads(name: &str, interface: &str) -> Result<(), NetnsError> {
    ethtool::no_offloads(interface).map_err(|source| NetnsError::Set {
        what: format!("the offloads of {interface}"),
        name: name.to_owned(),
        source,
    })
}

/// Runs a program and passes lines to its standard input.
fn run(program: &'static str, arguments: &[&str], lines: &[String]) -> Result<(), NetnsError> {
    let shown = || {
        let words = arguments.iter().map(OsStr::new).map(|word| word.to_string_lossy());
        words.fold(program.to_owned(), |line, word| line + " " + &word)
    };
    let failed = |stderr: String| NetnsError::Failed { program: shown(), stderr };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => NetnsError::NoProgram(program),
            _ => failed(error.to_string()),
        })?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the program does not read its input, its error output has the reason.
        let _ = stdin.write_all((lines.join("\n") + "\n").as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(failed(stderr.split_whitespace().collect::<Vec<_>>().join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(nic: Nic) -> Vec<String> {
        let (link, tcp) = (Rate(200_000_000), TcpSettings::default());
        Network { prefix: "rwt".into(), hosts: 2, link, nic, tcp }.queues()
    }

    #[test]
    fn a_fair_nic_gives_udp_half_of_the_link_and_what_is_left() {
        assert_eq!(queues(Nic::Fifo).len(), 1);
        let lines = queues(Nic::Fair);
        let classes: Vec<_> = lines.iter().filter(|line| line.starts_with("class add")).collect();
        assert_eq!(classes.len(), 3);
        assert!(classes[0].contains("classid 1:1 htb rate 200000000bit "), "{}", classes[0]);
        for class in &classes[1..] {
            assert!(class.contains(" parent 1:1 "), "{class}");
            assert!(class.contains(" rate 100000000bit ceil 200000000bit "), "{class}");
        }
        assert!(lines[0].ends_with("default 2"));
        let filter = lines.last().unwrap();
        assert!(filter.ends_with("match ip protocol 17 0xff flowid 1:3"), "{filter}");
    }

    /// The kernel accepts the queueing disciplines and classifies frames by them.
    #[test]
    fn the_kernel_sorts_udp_from_all_else() {
        let network = Network {
            prefix: format!("rwt-nic-{}", std::process::id()),
            hosts: 2,
            link: Rate(200_000_000),
            nic: Nic::Fair,
            tcp: TcpSettings::default(),
        };
        /// Removes the network when it is dropped.
        struct RemoveOnDrop<'a>(&'a Network);
        impl Drop for RemoveOnDrop<'_> {
            fn drop(&mut self) {
                let _ = remove(&self.0.prefix);
            }
        }
        let _gone = RemoveOnDrop(&network);
        rackweave_testing::needs!(NetAdmin);
        check().and_then(|()| network.make()).unwrap();
        let name = network.host(HostId(0));
        let counted = || {
            let mut classes = Command::new("tc");
            classes.args(["-n", &name, "-s", "class", "show", "dev", HOST_INTERFACE]);
            let stdout = String::from_utf8(stdout_of(&mut classes)).unwrap();
            ["1:2", "1:3"].map(|class| -> u64 {
                let from = stdout.find(&format!("class htb {class} ")).expect("the class");
                let (_, rest) = stdout[from..].split_once(" bytes ").unwrap();
                rest.split(' ').next().unwrap().parse().unwrap()
            })
        };
        let send = |what: fn()| {
            let done = network.in_namespace(&name, || {
                what();
                Ok(())
            });
            done.unwrap();
        };
        // Datagrams are lost until the kernel has noticed that the interface is up.
        let mut packets = [0, 0];
        for _ in 0..10_000 {
            send(|| {
                let socket = std::net::UdpSocket::bind("10.0.0.0:0").unwrap();
                let _ = socket.send_to(&[0; 100], "10.0.0.1:9");
            });
            packets = counted();
            if packets != [0, 0] {
                break;
            }
        }
        assert_eq!(packets, [0, 1], "one datagram, and nothing else");
        send(|| {
            // There is no answer, but SYNs are sent.
            let to = "10.0.0.1:9".parse().unwrap();
            let patience = std::time::Duration::from_millis(50);
            assert!(std::net::TcpStream::connect_timeout(&to, patience).is_err());
        });
        let [others, datagrams] = counted();
        assert!(others >= 1 && datagrams == 1, "{others}, {datagrams}");
    }

    fn stdout_of(command: &mut Command) -> Vec<u8> {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }
}
