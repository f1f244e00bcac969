//! `rackweave rpc` with `--wire homa-module`: between two of its processes, and with a program that knows the module's headers alone.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rackweave_core::{HostId, Rate};
use rackweave_linux::netns::{self, Network, Nic, TcpSettings, switch_end};
use serde_json::{Value, json};

const COMMAND: &str = env!("CARGO_BIN_EXE_rackweave");

/// A program that is killed on drop, and what it prints.
struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    /// Starts it, and waits for a line that begins so.
    fn start(mut command: Command, begins: &str) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with(begins) {
            line.clear();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "it has ended before: {begins}");
        }
        Self { child, stdout }
    }

    /// The rest of what it prints, and whether it succeeds.
    fn end(mut self) -> (bool, String) {
        let printed = std::io::read_to_string(&mut self.stdout).unwrap();
        (self.child.wait().unwrap().success(), printed)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if the program has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two hosts in namespaces: behind a switch that loses packets, or at the ends of one link. They are removed on drop.
struct Hosts {
    network: Network,
    _switch: Option<Running>,
}

impl Hosts {
    fn named(test: &str) -> Network {
        Network {
            prefix: format!("rwm-{}-{test}", std::process::id()),
            hosts: 2,
            link: Rate::from_gbps(1),
            nic: Nic::Fifo,
            tcp: TcpSettings::default(),
        }
    }

    fn with_link(test: &str) -> Option<Self> {
        rackweave_testing::needs!(NetAdmin, None);
        let this = Self { network: Self::named(test), _switch: None };
        let [zero, one] = [0, 1].map(|host| this.network.host(HostId(host)));
        for line in [
            format!("netns add {zero}"),
            format!("netns add {one}"),
            format!("link add name eth0 netns {zero} type veth peer name eth0 netns {one}"),
            format!("-n {zero} addr add 10.0.0.0/31 dev eth0"),
            format!("-n {one} addr add 10.0.0.1/31 dev eth0"),
            format!("-n {zero} link set eth0 up"),
            format!("-n {one} link set eth0 up"),
        ] {
            assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "{line}");
        }
        Some(this)
    }

    fn with_switch(test: &str, faults: &str) -> Option<Self> {
        rackweave_testing::needs!(NetAdmin, None);
        let mut this = Self { network: Self::named(test), _switch: None };
        this.network.make().unwrap();
        let mut switch = in_space(&this.network.switch(), COMMAND);
        switch.args(["switch", "--json", "--interface", &switch_end(HostId(0))]);
        switch.args(["--interface", &switch_end(HostId(1))]).args(faults.split(' '));
        this._switch = Some(Running::start(switch, ""));
        Some(this)
    }

    /// A program at one of the hosts.
    fn at(&self, host: u32, program: &str) -> Command {
        in_space(&self.network.host(HostId(host)), program)
    }

    fn serve(&self) -> Running {
        let mut serve = self.at(1, COMMAND);
        let allow = ["--listen", "10.0.0.1:4000", "--allow", "10.0.0.0/24"];
        serve.args(["rpc", "serve", "--wire", "homa-module"]).args(allow);
        Running::start(serve, "homa-module server at 10.0.0.1:4000")
    }

    fn bench(&self, more: &str) -> Value {
        let mut bench = self.at(0, COMMAND);
        bench.args(["rpc", "bench", "--wire", "homa-module", "--server", "10.0.0.1:4000"]);
        let output = bench.args(["--check", "--json"]).args(more.split(' ')).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{more}: {stderr}");
        crate::common::result(&String::from_utf8(output.stdout).unwrap())
    }

    fn peer(&self, host: u32) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/homa_peer.py");
        let mut peer = self.at(host, "python3");
        peer.arg(script);
        peer
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = netns::remove(&self.network.prefix);
    }
}

fn in_space(space: &str, program: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", space, program]).stdin(Stdio::null());
    command
}

#[test]
fn two_processes_exchange_messages_of_every_length() {
    let Some(hosts) = Hosts::with_link("two") else { return };
    let _server = hosts.serve();
    for (len, calls) in [(1, 20), (100, 50), (1424, 20), (1425, 20), (10_000, 20), (1_000_000, 5)] {
        let result = hosts.bench(&format!("--workload {len} --unloaded {calls}"));
        assert_eq!(result["calls"], calls, "{result}");
        assert_eq!((&result["failed"], &result["corrupt"]), (&json!({}), &json!(0)), "{result}");
    }
    // Many at a time, of several threads with a port each.
    let result = hosts.bench("--workload W3 --truncate --outstanding 20 --ports 2 --seconds 1");
    assert!(result["calls"].as_u64().unwrap() > 100 && result["corrupt"] == 0, "{result}");
}

#[test]
fn lost_repeated_and_delayed_packets_change_no_message() {
    let faults = "--loss 0.03 --duplicate 0.02 --reorder 0.05";
    let Some(hosts) = Hosts::with_switch("lossy", faults) else { return };
    let _server = hosts.serve();
    for (len, calls) in [(100, 100), (10_000, 50), (1_000_000, 4)] {
        let result = hosts.bench(&format!("--workload {len} --unloaded {calls} --deadline 60"));
        assert_eq!(result["calls"], calls, "{result}");
        assert_eq!((&result["failed"], &result["corrupt"]), (&json!({}), &json!(0)), "{result}");
    }
}

#[test]
fn a_client_with_the_modules_headers_is_served() {
    rackweave_testing::needs!(Python);
    let Some(hosts) = Hosts::with_link("client") else { return };
    let _server = hosts.serve();
    let mut peer = hosts.peer(0);
    let peer = peer.args(["client", "10.0.0.1", "4000", "100", "10000", "60000", "100", "10000"]);
    let Output { status, stdout, stderr } = peer.output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{errors}");
    // DATA and GRANT.
    assert!(said.starts_with("done, with 0x10 0x11"), "{said}");
}

#[test]
fn a_server_with_the_modules_headers_serves() {
    rackweave_testing::needs!(Python);
    for (len, calls) in [(100, 20), (10_000, 20), (60_000, 10)] {
        let Some(hosts) = Hosts::with_link("server") else { return };
        let mut peer = hosts.peer(1);
        // The first call is that by which the client learns that there is a server.
        peer.args(["server", "4000", &(calls + 1).to_string()]);
        let peer = Running::start(peer, "ready");
        let result = hosts.bench(&format!("--workload {len} --unloaded {calls}"));
        assert_eq!((&result["calls"], &result["corrupt"]), (&json!(calls), &json!(0)), "{result}");
        let (good, said) = peer.end();
        assert!(good && said.starts_with("done, with 0x10"), "{said}");
    }
}

/// Runs this and returns its exit code and what it says.
fn refused(arguments: &str) -> (Option<i32>, String) {
    let arguments = arguments.split(' ');
    let output = Command::new(COMMAND).arg("rpc").args(arguments).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    // The command breaks lines to the terminal's width.
    (output.status.code(), said.replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" "))
}

#[test]
fn what_the_module_does_not_carry_is_refused_in_a_sentence() {
    let key = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(key.path(), [7; 32]).unwrap();
    let key = format!("bench --key {}", key.path().display());
    for (arguments, sentence) in [
        (&key[..], "it has no encryption"),
        ("bench --stream", "it has requests and full responses only"),
        ("bench --one-way", "it has requests and full responses only"),
        ("bench --transport polo", "it carries Homa only"),
        ("bench --max-message 1000001", "its messages have at most 1000000 bytes"),
        ("bench --workload 1000001", "homa-module is set to carry 1000000 at most"),
        ("bench --profile linux", "cannot be used with"),
        ("serve --listen 127.0.0.1:40000", "servers have ports below 32768"),
        ("serve --listen [::1]:4000", "IPv4 only"),
    ] {
        let (code, said) = refused(&format!("{arguments} --wire homa-module"));
        assert!(code == Some(2) && said.contains(sentence), "{arguments}: {code:?} {said}");
    }
}

#[test]
fn without_the_capability_the_error_names_it() {
    use std::os::unix::process::CommandExt as _;
    rackweave_testing::needs!(SetUid);
    let mut command = Command::new(COMMAND);
    command.args(["rpc", "serve", "--wire", "homa-module"]).uid(65_534).gid(65_534);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("CAP_NET_RAW"), "{said}");
}
