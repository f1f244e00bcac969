//! Two racks and a spine in network namespaces, which a test creates and removes, with one process per host.
#![allow(dead_code, reason = "each test uses some of it")]

use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rackweave_core::{HostId, Rate};
use rackweave_linux::netns::{self, Network, Nic, TcpSettings, switch_end};
use serde_json::Value;

use super::{PATIENCE, until};

/// Hosts 0 to 2 form one rack, hosts 3 to 5 the other.
pub(crate) const HOSTS: u32 = 6;
pub(crate) const SENDER: u32 = 0;
pub(crate) const CONTROLLER: u32 = 1;

/// The namespaces, and a directory for all files.
pub(crate) struct World {
    pub(crate) network: Network,
    pub(crate) folder: tempfile::TempDir,
}

/// A process that is killed on drop, and the lines that it prints.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) stdout: Receiver<String>,
    pub(crate) stderr: Receiver<String>,
}

pub(crate) fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (lines, printed) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // Sending fails if the test no longer reads the lines.
            let _ = lines.send(line);
        }
    });
    printed
}

impl Process {
    /// Waits for a line on standard error with this prefix.
    pub(crate) fn expect_line(self, begin: &str) -> Self {
        loop {
            let line = self.stderr.recv_timeout(PATIENCE).expect("it says so in time");
            if line.starts_with(begin) {
                return self;
            }
        }
    }

    /// Waits for an event of a controller for which `what` is true.
    pub(crate) fn event(&self, what: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = self.stdout.recv_timeout(PATIENCE).expect("it happens in time");
            let event: Value = serde_json::from_str(&line).unwrap();
            if what(&event) {
                return event;
            }
        }
    }

    pub(crate) fn end(&mut self) -> Option<i32> {
        until("a process has ended", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Killing fails if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The next test would notice leftover namespaces.
        let _ = netns::remove(&format!("{}-", self.network.prefix));
    }
}

impl World {
    /// Creates the namespaces; returns `None` if this process may not.
    pub(crate) fn make(test: &str) -> Option<Self> {
        Self::with_fabric(
            test,
            "topology = 'leaf-spine'\nleaves = 2\nhosts_per_leaf = 3\nspines = 1",
        )
    }

    /// Creates the same hosts with another topology.
    pub(crate) fn with_fabric(test: &str, topology: &str) -> Option<Self> {
        let prefix = format!("rwl-{}-{test}", std::process::id());
        let (link, tcp) = (Rate(100_000_000), TcpSettings::default());
        let network = Network { prefix, hosts: HOSTS, link, nic: Nic::Fifo, tcp };
        let world = Self { network, folder: tempfile::tempdir().unwrap() };
        rackweave_testing::needs!(NetAdmin, None);
        world.network.make().unwrap();
        let addresses: Vec<String> = (0..HOSTS).map(|host| format!("'10.0.0.{host}'")).collect();
        let text = format!(
            "hosts = [{}]\n[fabric]\nhost_link = '100 Mbps'\ncore_link = '1 Gbps'\n{topology}\n",
            addresses.join(", ")
        );
        std::fs::write(world.path().join("fabric.toml"), text).unwrap();
        Some(world)
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn command(&self, space: &str, args: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", space, env!("CARGO_BIN_EXE_rackweave")]);
        command.args(args.split(' ')).current_dir(self.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn start(&self, space: &str, args: &str) -> Process {
        let mut child = self.command(space, args).spawn().unwrap();
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        Process { child, stdout, stderr }
    }

    /// Starts the user-space switch.
    pub(crate) fn switch(&self) -> Process {
        self.switch_with("")
    }

    pub(crate) fn switch_with(&self, more: &str) -> Process {
        let ports: Vec<String> =
            (0..HOSTS).map(|host| format!("--interface {}", switch_end(HostId(host)))).collect();
        let ports = ports.join(" ");
        let args = format!(
            "switch {ports} --fabric fabric.toml --program orca --controller {CONTROLLER}{more}"
        );
        self.start(&self.network.switch(), &args).expect_line("host 5")
    }

    /// Starts `rackweave cast` on a host.
    pub(crate) fn cast(&self, host: u32, args: &str) -> Process {
        let args = format!("cast {args} --fabric fabric.toml");
        self.start(&self.network.host(HostId(host)), &args)
    }

    pub(crate) fn receiver(&self, host: u32) -> Process {
        let args = format!("receive --controller 10.0.0.{CONTROLLER} --once --dir r{host}");
        self.cast(host, &args).expect_line("receiving at")
    }

    pub(crate) fn send(&self, args: &str) -> Process {
        self.cast(SENDER, &format!("send big --spread labels {args}"))
    }

    pub(crate) fn part_len(&self, host: u32) -> u64 {
        let path = self.path().join(format!("r{host}/big.part"));
        path.metadata().map_or(0, |meta| meta.len())
    }
}

pub(crate) fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 13) as u8 ^ (i / 70_000) as u8).collect()
}
