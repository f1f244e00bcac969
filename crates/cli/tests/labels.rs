//! `rackweave cast` by labels, between namespaces that the test makes and removes: two racks and a spine in the user-space
//! switch, with a process for each host. Without rights nothing is tested.

mod common;

use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};

use common::{PATIENCE, now, until};
use rackweave_core::{HostId, Rate};
use rackweave_linux::netns::{self, Network, Nic, TcpSettings, switch_end};
use serde_json::Value;

/// Hosts 0 to 2 are a rack, 3 to 5 the other.
const HOSTS: u32 = 6;
const SENDER: u32 = 0;
const CONTROLLER: u32 = 1;

/// The namespaces, and a folder for all files.
struct World {
    network: Network,
    folder: tempfile::TempDir,
}

/// A process that is killed when it is no longer looked at, and its lines.
struct Part {
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // Nobody has to listen.
            let _ = tell.send(line);
        }
    });
    told
}

impl Part {
    /// Waits for a line on standard error that begins so.
    fn says(self, begin: &str) -> Self {
        loop {
            let line = self.stderr.recv_timeout(PATIENCE).expect("it says so in time");
            if line.starts_with(begin) {
                return self;
            }
        }
    }

    /// Waits for an event of a controller.
    fn event(&self, what: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = self.stdout.recv_timeout(PATIENCE).expect("it happens in time");
            let event: Value = serde_json::from_str(&line).unwrap();
            if what(&event) {
                return event;
            }
        }
    }

    fn end(&mut self) -> Option<i32> {
        until("a process has ended", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Those that have ended have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // What stays is seen by the next who looks.
        let _ = netns::remove(&format!("{}-", self.network.prefix));
    }
}

impl World {
    /// `None`: it may not be made here.
    fn make(test: &str) -> Option<Self> {
        let prefix = format!("rwl-{}-{test}", std::process::id());
        let (link, tcp) = (Rate(100_000_000), TcpSettings::default());
        let network = Network { prefix, hosts: HOSTS, link, nic: Nic::Fifo, tcp };
        let world = Self { network, folder: tempfile::tempdir().unwrap() };
        if netns::check().is_err() {
            println!("skipped: needs CAP_NET_ADMIN");
            return None;
        }
        world.network.make().unwrap();
        let addresses: Vec<String> = (0..HOSTS).map(|host| format!("'10.0.0.{host}'")).collect();
        let text = format!(
            "hosts = [{}]\n[fabric]\ntopology = 'leaf-spine'\nleaves = 2\nhosts_per_leaf = 3\nspines = 1\n\
             host_link = '100 Mbps'\ncore_link = '1 Gbps'\n",
            addresses.join(", ")
        );
        std::fs::write(world.path().join("fabric.toml"), text).unwrap();
        Some(world)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn command(&self, space: &str, args: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", space, env!("CARGO_BIN_EXE_rackweave")]);
        command.args(args.split(' ')).current_dir(self.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, space: &str, args: &str) -> Part {
        let mut child = self.command(space, args).spawn().unwrap();
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        Part { child, stdout, stderr }
    }

    fn switch(&self) -> Part {
        let ports: Vec<String> =
            (0..HOSTS).map(|host| format!("--interface {}", switch_end(HostId(host)))).collect();
        let ports = ports.join(" ");
        let args =
            format!("switch {ports} --fabric fabric.toml --program orca --controller {CONTROLLER}");
        self.start(&self.network.switch(), &args).says("host 5")
    }

    /// A process of `rackweave cast` on a host.
    fn cast(&self, host: u32, args: &str) -> Part {
        let args = format!("cast {args} --fabric fabric.toml");
        self.start(&self.network.host(HostId(host)), &args)
    }

    fn receiver(&self, host: u32) -> Part {
        let args = format!("receive --controller 10.0.0.{CONTROLLER} --once --dir r{host}");
        self.cast(host, &args).says("receiving at")
    }

    fn send(&self, args: &str) -> Part {
        self.cast(SENDER, &format!("send big --spread labels {args}"))
    }

    fn part_len(&self, host: u32) -> u64 {
        let path = self.path().join(format!("r{host}/big.part"));
        path.metadata().map_or(0, |meta| meta.len())
    }
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 13) as u8 ^ (i / 70_000) as u8).collect()
}

fn active(agent: u32) -> impl Fn(&Value) -> bool {
    move |event| {
        event["event"] == "promoted"
            && event["rack"] == 1
            && event["agent"] == format!("10.0.0.{agent}:6722")
    }
}

#[test]
fn another_agent_takes_over_when_the_active_one_is_killed() {
    let Some(world) = World::make("over") else { return };
    std::fs::write(world.path().join("big"), content(30_000_000)).unwrap();
    let _switch = world.switch();
    let control = world
        .cast(CONTROLLER, "control --json --timeout 200ms --socket control")
        .says("controlling at");
    let door = world.path().join("door");
    let agent = format!("agent --controller 10.0.0.{CONTROLLER} --socket {}", door.display());
    let mut agent = world.cast(3, &agent).says("agent at");
    control.event(active(3));
    let mut receivers = [4, 5].map(|host| world.receiver(host));
    let mut send =
        world.send(&format!("--to 10.0.0.4,10.0.0.5 --controller 10.0.0.{CONTROLLER} --json"));
    until("half of it is there", || world.part_len(4) > 10_000_000);
    let shown = world.command(&world.network.switch(), "cast sessions --socket control --json");
    let shown: Value = serde_json::from_slice(&{ shown }.output().unwrap().stdout).unwrap();
    assert_eq!(shown["sessions"][0]["members"], 2, "{shown:#}");
    assert_eq!(shown["racks"][1]["active"], "10.0.0.3:6722", "{shown:#}");
    let killed = now();
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    let event = control.event(|event| {
        event["event"] == "promoted" && event["rack"] == 1 && !event["agent"].is_null()
    });
    let after = now() - killed;
    println!("T is 200 ms; {} took over after {} ms", event["agent"], after.as_millis());
    assert!(!active(3)(&event), "{event}");
    assert_eq!(send.end(), Some(0));
    let text: String = send.stdout.iter().collect();
    let document: Value = serde_json::from_str(&text).unwrap();
    println!("{document:#}");
    assert_eq!(document["spread"], "labels");
    for (receiver, host) in receivers.iter_mut().zip([4, 5]) {
        assert_eq!(receiver.end(), Some(0));
        let path = world.path().join(format!("r{host}/big"));
        assert!(std::fs::read(path).unwrap() == content(30_000_000));
    }
}

#[test]
fn receivers_of_a_killed_sender_say_so_and_keep_what_they_have() {
    let Some(world) = World::make("dead") else { return };
    std::fs::write(world.path().join("big"), content(30_000_000)).unwrap();
    let _switch = world.switch();
    let _control = world.cast(CONTROLLER, "control").says("controlling at");
    let mut receivers = [3, 4].map(|host| world.receiver(host));
    let controller = format!("--controller 10.0.0.{CONTROLLER}");
    let to = "--to 10.0.0.3,10.0.0.4";
    let mut send = world.send(&format!("{to} {controller}"));
    until("half of it is there", || world.part_len(3) > 10_000_000 && world.part_len(4) > 0);
    send.child.kill().unwrap();
    send.child.wait().unwrap();
    for (receiver, host) in receivers.iter_mut().zip([3, 4]) {
        assert_eq!(receiver.end(), Some(1));
        let said: Vec<String> = receiver.stderr.iter().collect();
        assert!(said.iter().any(|line| line.contains("nothing was heard")), "{said:?}");
        assert!(world.part_len(host) > 0);
    }
    // And the same goes on there.
    let mut receivers = [3, 4].map(|host| world.receiver(host));
    let mut send = world.send(&format!("{to} {controller}"));
    assert_eq!(send.end(), Some(0));
    for (receiver, host) in receivers.iter_mut().zip([3, 4]) {
        assert_eq!(receiver.end(), Some(0));
        let path = world.path().join(format!("r{host}/big"));
        assert!(std::fs::read(path).unwrap() == content(30_000_000));
    }
}

#[test]
fn what_labels_need_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &str| -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rackweave"));
        command.args(args.split(' ')).current_dir(folder.path()).output().unwrap()
    };
    std::fs::write(folder.path().join("x"), "x").unwrap();
    std::fs::write(folder.path().join("two"), "127.0.0.1:7001\n127.0.0.1:7002\n").unwrap();
    let cases = [
        ("cast send x --to 127.0.0.1 --spread labels", "needs --fabric"),
        ("cast send x --to 127.0.0.1:7002 --spread labels --fabric two", "--me N"),
        ("cast send x --to 127.0.0.1:7003 --spread labels --fabric two --me 0", "not among"),
        ("cast control --fabric two --me 2", "hosts 0 to 1"),
        ("cast control", "needs --fabric"),
        ("switch --program orca --bpf --ports p0 --hosts 1", "MAC,IP,PORT"),
        ("switch --bpf --ports p0 --hosts 02:0:0:0:0:1,,0", "--program orca"),
    ];
    for (args, said) in cases {
        let output = run(args);
        let text = String::from_utf8_lossy(&output.stderr);
        let text: String =
            text.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
        assert!(text.contains(said), "{args}: {text}");
        assert_eq!(output.status.code(), Some(2), "{args}: {text}");
    }
}
