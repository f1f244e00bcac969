//! Hosts in network namespaces at a Linux bridge, whose ports have the aggregating switch in the kernel.

use rackweave_linux::netns;

use super::*;

const WORKERS: u8 = 3;

/// The namespaces of a switch and of its hosts, which are removed on drop. Host 0 is the master.
struct Bridge {
    prefix: String,
    texts: Texts,
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    let verdict = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {verdict}");
}

impl Bridge {
    fn make(test: &str, words: u32, seed: u64) -> Option<Self> {
        rackweave_testing::needs!(NetAdmin, None);
        rackweave_testing::needs!(Clang, None);
        let prefix = format!("rwq-{}-{test}", std::process::id());
        let this = Self { prefix, texts: Texts::new(WORKERS, words, seed) };
        let switch = this.space("sw");
        ip(&format!("netns add {switch}"));
        ip(&format!("-n {switch} link add br0 type bridge"));
        ip(&format!("-n {switch} addr add 198.51.100.1/24 dev br0"));
        ip(&format!("-n {switch} link set br0 up"));
        for host in 0..=WORKERS {
            let space = this.space(&format!("h{host}"));
            ip(&format!("netns add {space}"));
            ip(&format!("link add p{host} netns {switch} type veth peer name eth0 netns {space}"));
            ip(&format!("-n {space} link set eth0 gso_max_segs 1"));
            ip(&format!("-n {space} addr add 198.51.100.{}/24 dev eth0", 10 + host));
            ip(&format!("-n {space} link set eth0 up"));
            ip(&format!("-n {switch} link set p{host} master br0 up"));
        }
        Some(this)
    }

    fn space(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn start(&self, space: &str, arguments: &str) -> Process {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(space), COMMAND]);
        command.args(arguments.split_whitespace());
        command.current_dir(self.texts.folder.path()).stdin(Stdio::null());
        Process::start(command)
    }

    fn switch(&self, more: &str) -> Process {
        let ports: Vec<_> = (0..=WORKERS).map(|host| format!("p{host}")).collect();
        let how = "switch --program reduce --bpf --json --address 198.51.100.1";
        let mut switch = self.start("sw", &format!("{how} --ports {} {more}", ports.join(",")));
        switch.says("ready");
        switch
    }

    fn master(&self, slots: u32) -> Process {
        let how = format!(
            "reduce master --workers {WORKERS} --out counts --json --switch 198.51.100.1 --slots {slots} --require-switch"
        );
        let mut master = self.start("h0", &how);
        master.says("ready at");
        master
    }

    fn worker(&self, number: u8) -> Process {
        let how = format!("reduce worker --master 198.51.100.10 --worker {number} text{number}");
        self.start(&format!("h{}", number + 1), &how)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = netns::remove(&self.prefix);
    }
}

#[test]
fn the_switch_in_the_kernel_leaves_little_to_the_master() {
    let Some(bridge) = Bridge::make("add", 15_000, 41) else { return };
    let mut switch = bridge.switch("--slots 4096");
    let mut master = bridge.master(4096);
    for worker in &mut (0..WORKERS).map(|number| bridge.worker(number)).collect::<Vec<_>>() {
        worker.done();
    }
    let stats = master.done();
    assert_eq!(bridge.texts.result("counts"), bridge.texts.expected());
    let (reached, least) = (&stats["reached_percent"], &stats["least_percent"]);
    assert!(reached.as_f64().unwrap() < least.as_f64().unwrap() * 1.05, "{stats}");
    switch.signal("-INT");
    assert_eq!(switch.done()["sums_fetched"], stats["sums"]);
}

#[test]
fn worker_and_switch_are_killed_and_started_again_at_a_bridge() {
    let Some(bridge) = Bridge::make("die", 60_000, 42) else { return };
    let mut switch = bridge.switch("--slots 512");
    let mut master = bridge.master(512);
    let mut workers: Vec<_> = (0..WORKERS).map(|number| bridge.worker(number)).collect();
    master.says("collected 1");
    workers[2].kill();
    workers[2] = bridge.worker(2);
    master.says("worker 2 has been replaced");
    switch.kill();
    let _switch = bridge.switch("--slots 512");
    for worker in &mut workers {
        worker.done();
    }
    let stats = master.done();
    assert!(stats["restarts"].as_u64().unwrap() >= 1, "{stats}");
    assert_eq!(bridge.texts.result("counts"), bridge.texts.expected());
}

#[test]
fn options_of_other_switches_are_refused() {
    let texts = Texts::new(1, 1, 1);
    for (arguments, expected) in [
        ("--program reduce --bpf --ports p0", "requires --address"),
        (
            "--program reduce --bpf --ports p0 --address 192.0.2.1 --hosts 3",
            "--hosts is not of use",
        ),
        ("--program reduce --bpf --ports p0 --address 224.0.0.1", "not the address of a switch"),
        ("--program orca --bpf --ports p0 --slots 16", "--slots is of use with --program reduce"),
        ("--program orca --bpf --ports p0", "requires --hosts"),
        ("--program swp2p --bpf --ports p0", "rackweave image switch --bpf"),
    ] {
        let (code, said) = texts.start(&format!("switch {arguments}")).end();
        assert_eq!(code, 2, "{arguments}: {said}");
        assert!(said.contains(expected), "{arguments}: {said}");
    }
}
