//! Hosts in network namespaces, joined by a user-space switch that reads their interfaces.

use rackweave_core::{HostId, Rate};
use rackweave_linux::netns::{self, Network, Nic, TcpSettings, switch_end};

use super::*;

/// The namespaces of a switch and of its hosts, which are removed on drop. Host 0 is the master.
struct Rack {
    network: Network,
    texts: Texts,
}

impl Rack {
    fn make(test: &str, workers: u8, words: u32, seed: u64) -> Option<Self> {
        rackweave_testing::needs!(NetAdmin, None);
        let network = Network {
            prefix: format!("rwd-{}-{test}", std::process::id()),
            hosts: u32::from(workers) + 1,
            link: Rate::from_gbps(1),
            nic: Nic::Fifo,
            tcp: TcpSettings::default(),
        };
        let rack = Self { network, texts: Texts::new(workers, words, seed) };
        rack.network.make().unwrap();
        Some(rack)
    }

    fn start(&self, space: &str, arguments: &str) -> Process {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", space, COMMAND]).args(split(arguments));
        command.current_dir(self.texts.folder.path()).stdin(Stdio::null());
        Process::start(command)
    }

    fn switch(&self, more: &str) -> Process {
        let interfaces: Vec<String> = (0..self.network.hosts)
            .map(|host| format!("--interface {}", switch_end(HostId(host))))
            .collect();
        let arguments = format!("switch --program reduce --json {} {more}", interfaces.join(" "));
        let mut switch = self.start(&self.network.switch(), &arguments);
        switch.says("host 1:");
        switch
    }

    fn master(&self, more: &str) -> Process {
        let workers = self.network.hosts - 1;
        let how = format!("reduce master --workers {workers} --out counts --json {more}");
        let mut master = self.start(&self.network.host(HostId(0)), &how);
        master.says("ready at");
        master
    }

    fn worker(&self, number: u32) -> Process {
        let how = format!("reduce worker --master 10.0.0.0 --worker {number} text{number}");
        self.start(&self.network.host(HostId(number + 1)), &how)
    }

    fn workers(&self) -> Vec<Process> {
        (0..self.network.hosts - 1).map(|number| self.worker(number)).collect()
    }

    fn check(&self) {
        assert_eq!(self.texts.result("counts"), self.texts.expected());
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        let _ = netns::remove(&self.network.prefix);
    }
}

#[test]
fn a_switch_of_interfaces_adds_up_what_hosts_send_to_its_address() {
    let Some(rack) = Rack::make("add", 3, 15_000, 31) else { return };
    let mut switch = rack.switch("--slots 4096");
    let mut master = rack.master("--switch 172.16.0.0 --slots 4096 --require-switch");
    for worker in &mut rack.workers() {
        worker.done();
    }
    let stats = master.done();
    rack.check();
    let (reached, least) = (&stats["reached_percent"], &stats["least_percent"]);
    assert!(reached.as_f64().unwrap() < least.as_f64().unwrap() * 1.05, "{stats}");
    switch.signal("-INT");
    assert_eq!(switch.done()["program"]["sums_fetched"], stats["sums"]);
}

#[test]
fn interfaces_that_lose_damage_repeat_and_reorder_change_nothing() {
    let Some(rack) = Rack::make("bad", 3, 8_000, 32) else { return };
    let mut switch = rack.switch(&format!("--slots 1024 {FAULTS}"));
    for how in ["--switch 172.16.0.0 --slots 1024 --require-switch", ""] {
        let mut master = rack.master(how);
        for worker in &mut rack.workers() {
            worker.done();
        }
        master.done();
        rack.check();
        fs::remove_file(rack.texts.path("counts")).unwrap();
    }
    switch.signal("-INT");
    assert!(switch.done()["program"]["duplicates"].as_u64().unwrap() > 0);
}

#[test]
fn worker_and_switch_are_killed_and_started_again_between_interfaces() {
    let Some(rack) = Rack::make("die", 3, 12_000, 33) else { return };
    let slow = "--slots 1024 --link 4_Mbps";
    let mut switch = rack.switch(slow);
    let mut master = rack.master("--switch 172.16.0.0 --slots 1024");
    let mut workers = rack.workers();
    master.says("collected 1");
    workers[2].kill();
    workers[2] = rack.worker(2);
    master.says("worker 2 has been replaced");
    switch.kill();
    let _switch = rack.switch(slow);
    for worker in &mut workers {
        worker.done();
    }
    let stats = master.done();
    assert!(stats["restarts"].as_u64().unwrap() >= 2, "{stats}");
    rack.check();
}
