//! Calls and casts between hosts whose links carry longer packets than a link on the way.
//!
//! With reports, two routers with a link of a smaller MTU between them return ICMP "fragmentation needed", from which the
//! kernels learn the path's MTU; without, a bridge drops what is longer.

use std::io::{BufRead as _, BufReader, Lines, Read};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// Namespaces that are removed in the end.
struct Path {
    prefix: String,
    spaces: Vec<String>,
}

impl Path {
    /// Two hosts, 10.8.1.1 and 10.8.2.1, with links of 1500 bytes, and one of 1400 on the way.
    fn make(test: &str, reports: bool) -> Self {
        let mut this =
            Self { prefix: format!("rw{test}{}", std::process::id()), spaces: Vec::new() };
        this.space("a");
        this.space("b");
        if reports {
            this.space("r");
            this.space("s");
            this.link(("a", "10.8.1.1/24"), ("r", "10.8.1.2/24"), 1500);
            this.link(("r", "10.8.9.1/24"), ("s", "10.8.9.2/24"), 1400);
            this.link(("s", "10.8.2.2/24"), ("b", "10.8.2.1/24"), 1500);
            let routes =
                [("a", "10.8.1.2"), ("b", "10.8.2.2"), ("r", "10.8.9.2"), ("s", "10.8.9.1")];
            for (space, via) in routes {
                this.ip(&format!("-n {} route add default via {via}", this.name(space)));
            }
            for space in ["r", "s"] {
                let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
                assert!(this.inside(space, "sh").args(["-c", forward]).status().unwrap().success());
            }
        } else {
            this.space("r");
            let bridge = this.name("r");
            this.ip(&format!("-n {bridge} link add br0 type bridge mcast_snooping 0"));
            this.ip(&format!("-n {bridge} link set br0 up"));
            for (host, address) in [("a", "10.8.1.1/16"), ("b", "10.8.2.1/16")] {
                let space = this.name(host);
                this.ip(&format!(
                    "-n {space} link add eth0 type veth peer name p{host} netns {bridge}"
                ));
                this.ip(&format!("-n {bridge} link set p{host} master br0 up"));
                // A token bucket drops packets that are larger than the bucket, and divides trains of others.
                let bucket = "tbf rate 1gbit burst 1414 limit 1000000";
                let tc = format!("-n {bridge} qdisc add dev p{host} root {bucket}");
                assert!(Command::new("tc").args(tc.split(' ')).status().unwrap().success(), "{tc}");
                this.ip(&format!("-n {space} addr add {address} dev eth0"));
                this.ip(&format!("-n {space} link set eth0 up"));
            }
        }
        this
    }

    fn name(&self, space: &str) -> String {
        format!("{}-{space}", self.prefix)
    }

    fn ip(&self, args: &str) {
        let output = Command::new("ip").args(args.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {args}: {output:?}");
    }

    fn space(&mut self, space: &str) {
        let name = self.name(space);
        self.ip(&format!("netns add {name}"));
        self.spaces.push(name.clone());
        self.ip(&format!("-n {name} link set lo up"));
    }

    fn link(&self, one: (&str, &str), other: (&str, &str), mtu: u32) {
        let [a, b] = [one.0, other.0].map(|space| self.name(space));
        let [to, back] = [other.0, one.0].map(|space| format!("to-{space}"));
        self.ip(&format!(
            "-n {a} link add {to} mtu {mtu} type veth peer name {back} mtu {mtu} netns {b}"
        ));
        for (space, interface, address) in [(&a, &to, one.1), (&b, &back, other.1)] {
            self.ip(&format!("-n {space} addr add {address} dev {interface}"));
            self.ip(&format!("-n {space} link set {interface} up"));
        }
    }

    fn inside(&self, space: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(space), program]).stdin(Stdio::null());
        command
    }

    fn rackweave(&self, space: &str, args: &[&str]) -> Command {
        let mut command = self.inside(space, env!("CARGO_BIN_EXE_rackweave"));
        command.args(args);
        command
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        for name in &self.spaces {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// A process that is killed on drop, and what it prints.
struct Server(Child, Lines<BufReader<Box<dyn Read>>>);

impl Server {
    /// Waits until it prints a line with this text.
    fn start(command: &mut Command, until: &str) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        // A cast's status is on stderr.
        let status = child.stderr.take().map(|stderr| Box::new(stderr) as Box<dyn Read>);
        let printed = status.unwrap_or_else(|| Box::new(child.stdout.take().unwrap()));
        let mut lines = BufReader::new(printed).lines();
        assert!(lines.any(|line| line.unwrap().contains(until)), "it has ended");
        Self(child, lines)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// TCP over UDP, which `--transport` does not have.
const TCP: &str = r#"
fabric = { topology = "single-switch", hosts = 2, host_link = "10 Gbps" }
workload = { arrivals = "poisson", sizes = "W3", load = 0.5 }
transport.name = "tcp"
"#;

#[test]
fn calls_are_answered_behind_a_smaller_mtu_with_and_without_reports_of_it() {
    rackweave_testing::needs!(NetAdmin);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (key, tcp) = (file("key", &[7; 32]), file("tcp.toml", TCP.as_bytes()));
    for reports in [false, true] {
        let path = Path::make("p", reports);
        let transports: [&[&str]; 3] =
            [&["--transport", "homa"], &["--transport", "polo"], &["--scenario", &tcp]];
        for (number, transport) in transports.into_iter().enumerate() {
            for with_key in [false, true] {
                let key_args = ["--key", key.as_str()];
                let key_args = if with_key { &key_args[..] } else { &[] };
                let setup = [transport, key_args].concat();
                let listen = format!("10.8.2.1:{}", 4000 + 2 * number + usize::from(with_key));
                let serve = ["rpc", "serve", "--listen", &listen, "--allow", "10.8.0.0/16"];
                let mut serve = path.rackweave("b", &[&serve[..], &setup].concat());
                let _server = Server::start(serve.stderr(Stdio::null()), &listen);
                // Each direction has full packets, and several calls are outstanding.
                let bench = ["rpc", "bench", "--server", &listen, "--workload", "50000"];
                let more = ["--total", "2 MB", "--outstanding", "4", "--check", "--json"];
                let mut bench = path
                    .rackweave("a", &[&bench[..], &more, &["--deadline", "30"], &setup].concat());
                let output = bench.env("RACKWEAVE_LOG", "warn").output().unwrap();
                let errors = String::from_utf8_lossy(&output.stderr);
                let what = format!("reports: {reports}, {setup:?}: {errors}");
                assert_eq!(output.status.code(), Some(0), "{what}");
                let result: Value = serde_json::from_slice(&output.stdout).unwrap();
                assert_eq!(
                    (&result["calls"], &result["corrupt"]),
                    (&40.into(), &0.into()),
                    "{what}"
                );
                // The size is named where the kernel does not know it (1500, or 1492 with TCP).
                let named = "bytes do not arrive, and shorter ones do";
                assert!(reports || errors.contains(named), "{what}");
            }
        }
    }
}

#[test]
fn a_cast_arrives_behind_routers_that_report_their_mtu() {
    rackweave_testing::needs!(NetAdmin);
    let path = Path::make("q", true);
    let folder = tempfile::tempdir().unwrap();
    let (big, place) = (folder.path().join("big"), folder.path().join("place"));
    let content: Vec<u8> = (0..5_000_000_u32).map(|n| (n ^ n >> 8 ^ n >> 16) as u8).collect();
    std::fs::write(&big, &content).unwrap();
    let receive =
        ["cast", "receive", "--once", "--from", "10.8.1.1", "--dir", place.to_str().unwrap()];
    let mut receiver = path.rackweave("b", &receive);
    let mut receiver = Server::start(receiver.stderr(Stdio::piped()), "receiving at");
    let send = ["cast", "send", "--json", "--to", "10.8.2.1", big.to_str().unwrap()];
    let output = path.rackweave("a", &send).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    receiver.1.by_ref().for_each(drop);
    assert_eq!(receiver.0.wait().unwrap().code(), Some(0));
    assert!(std::fs::read(place.join("big")).unwrap() == content);
}
