//! Random scenarios. The same product and seed give the same text, which can be run by `rackweave run` too.

use std::fmt::Write as _;

use rackweave_core::Rng;

use super::Product;

/// A scenario, and what its faults permit.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    /// The scenario file.
    pub(super) text: String,
    /// Hosts that crash, whether or not they return.
    pub(super) crashed: Vec<u32>,
    /// Hosts that cannot be reached for some time, or stand still.
    pub(super) cut_off: Vec<u32>,
    /// Whether links between switches fail for some time.
    pub(super) partitioned: bool,
}

/// No fault lasts longer than this, and none begins later: what follows is time for recovery.
const FAULTS_UNTIL_US: u64 = 20_000;

/// The links of a fabric, as far as faults can name them.
struct Fabric {
    hosts: u32,
    core_links: u64,
}

/// Writes the lines of a scenario.
struct Draw {
    rng: Rng,
    /// What hosts cost, in a quarter of the scenarios, is drawn separately, so that it does not decide what else is drawn.
    of_hosts: Rng,
    has_costs: bool,
    drawn: Drawn,
}

impl Draw {
    fn new(product: Product, seed: u64) -> Self {
        let drawn = Drawn {
            text: String::new(),
            crashed: Vec::new(),
            cut_off: Vec::new(),
            partitioned: false,
        };
        let mut of_hosts = Rng::stream(seed, 1, 0, product.name());
        let has_costs = of_hosts.chance(0.25);
        let rng = Rng::stream(seed, 0, 0, product.name());
        let mut draw = Self { rng, of_hosts, has_costs, drawn };
        draw.line(format_args!("# Drawn by `rackweave chaos {} --seed {seed}`.", product.name()));
        draw.line(format_args!("name = \"chaos-{}-{seed}\"", product.name()));
        // The seeds of scenarios are positive numbers of TOML.
        draw.line(format_args!("seed = {}", seed & i64::MAX as u64));
        draw
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.drawn.text, "{text}");
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.below(of.len() as u64) as usize]
    }

    /// A number from `least` to `most`.
    fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.rng.below(most - least + 1)
    }

    /// A fabric with at least this many hosts, and at most a few more.
    fn fabric(&mut self, least: u64) -> Fabric {
        self.line(format_args!("\n[fabric]"));
        let link = self.pick(&["1 Gbps", "10 Gbps", "10 Gbps", "25 Gbps", "100 Gbps"]);
        let fabric = match self.rng.below(3) {
            0 => {
                let hosts = self.within(least, least + 4);
                self.line(format_args!("topology = \"single-switch\"\nhosts = {hosts}"));
                Fabric { hosts: hosts as u32, core_links: 0 }
            }
            1 => {
                let left = self.within(1, least);
                let right = self.within((least - left).max(1), least);
                self.line(format_args!("topology = \"dumbbell\"\nleft = {left}\nright = {right}"));
                Fabric { hosts: (left + right) as u32, core_links: 0 }
            }
            _ => {
                let leaves = self.within(2, 3);
                let hosts = self.within(least.div_ceil(leaves), least.div_ceil(leaves) + 2);
                let spines = self.within(1, 3);
                self.line(format_args!("topology = \"leaf-spine\"\nleaves = {leaves}"));
                self.line(format_args!("hosts_per_leaf = {hosts}\nspines = {spines}"));
                let oversubscription = self.pick(&[1, 1, 2, 4]);
                self.line(format_args!("oversubscription = {oversubscription}"));
                // With one spine, a link that is down parts the leaves.
                let core_links = if spines > 1 { leaves * spines } else { 0 };
                Fabric { hosts: (leaves * hosts) as u32, core_links }
            }
        };
        self.line(format_args!("host_link = \"{link}\""));
        if self.rng.chance(0.3) {
            let delay = self.pick(&["0 ns", "5 us", "50 us"]);
            self.line(format_args!("host_receive_delay = \"{delay}\""));
        }
        fabric
    }

    fn buffers(&mut self) {
        self.line(format_args!("\n[fabric.switch]"));
        if self.rng.chance(0.5) {
            let buffer = self.pick(&["30 KB", "100 KB", "500 KB", "unlimited"]);
            self.line(format_args!("buffer = \"{buffer}\""));
        }
    }

    /// Up to four faults, of the kinds that the product allows. `spared` are hosts that do not crash.
    fn faults(&mut self, fabric: &Fabric, kinds: &[&'static str], spared: impl Fn(u32) -> bool) {
        for _ in 0..self.rng.below(5) {
            let kind = self.pick(kinds);
            let from = self.rng.below(FAULTS_UNTIL_US / 2);
            let lasts = 1 + self.rng.below(FAULTS_UNTIL_US / 2);
            let host = self.rng.below(u64::from(fabric.hosts)) as u32;
            if kind == "crash" && spared(host) {
                continue;
            }
            let of_host = matches!(kind, "crash" | "pause");
            let place = if of_host {
                format!("host {host}")
            } else if kind == "down" && fabric.core_links > 0 && self.rng.chance(0.5) {
                self.drawn.partitioned = true;
                format!("core link {}", self.rng.below(fabric.core_links))
            } else if kind == "down" || self.rng.chance(0.3) {
                format!("link of host {host}")
            } else {
                "all links".to_owned()
            };
            match kind {
                "crash" => self.drawn.crashed.push(host),
                "pause" => self.drawn.cut_off.push(host),
                "down" if place.starts_with("link") => self.drawn.cut_off.push(host),
                _ => {}
            }
            self.line(format_args!("\n[[faults]]\nkind = \"{kind}\"\nplace = \"{place}\""));
            if matches!(kind, "loss" | "corruption" | "duplication" | "reordering") {
                let probability = self.pick(&[0.001, 0.01, 0.05]);
                self.line(format_args!("probability = {probability}"));
            }
            if kind == "reordering" {
                let delay = self.pick(&[1, 10, 100, 1000]);
                self.line(format_args!("delay = \"{delay} us\""));
            }
            self.line(format_args!("from = \"{from} us\"\nuntil = \"{} us\"", from + lasts));
        }
    }

    fn measure(&mut self, time_limit_s: u64) {
        self.line(format_args!("\n[measure]\nwarmup = \"0 s\"\ntime_limit = \"{time_limit_s} s\""));
        self.line(format_args!("sample_every = \"0 s\"\nmessages_csv = true\nverify = true"));
    }

    /// Processors that queue, with a switch process in half of the cases. The costs of the kernel's TCP hold where nothing else is used.
    fn host_costs(&mut self) {
        if !self.has_costs {
            return;
        }
        let processors = ["\"per-direction\"", "1", "2", "4"][self.of_hosts.below(4) as usize];
        self.line(format_args!("\n[host]\nprocessors = {processors}"));
        let mut cost = |most: u64| self.of_hosts.below(most + 1);
        let keys = [
            ("send_system_call_ns", cost(3000)),
            ("send_call_ns", cost(300)),
            ("send_packet_ns", cost(500)),
            ("receive_system_call_ns", cost(3000)),
            ("receive_call_ns", cost(300)),
            ("receive_packet_ns", cost(500)),
            ("send_batch", 1 + cost(127)),
            ("receive_batch", 1 + cost(63)),
            ("timer_grain_us", cost(60)),
            ("wake_cost_ns", cost(4000)),
        ];
        let kernel_tcp = [
            ("send_call_ns", cost(1000)),
            ("receive_system_call_ns", cost(5000)),
            ("receive_call_ns", cost(1000)),
            ("switch_packet_ns", cost(1000)),
        ];
        let wake = [cost(12), 12 + cost(100)];
        let switch = [
            ("system_call_ns", cost(5000)),
            ("packet_ns", cost(500)),
            ("wake_cost_ns", cost(4000)),
            ("window_us", cost(50)),
        ];
        for (key, value) in keys {
            self.line(format_args!("{key} = {value}"));
        }
        self.line(format_args!("wake_us = [[0.5, {}], [1, {}]]", wake[0], wake[1]));
        if self.of_hosts.chance(0.5) {
            self.line(format_args!("\n[host.switch]"));
            for (key, value) in switch {
                self.line(format_args!("{key} = {value}"));
            }
        }
        self.line(format_args!("\n[host.kernel_tcp]"));
        for (key, value) in kernel_tcp {
            self.line(format_args!("{key} = {value}"));
        }
    }
}

/// Draws the scenario of a seed.
pub(super) fn scenario(product: Product, seed: u64) -> Drawn {
    let mut draw = Draw::new(product, seed);
    match product {
        Product::Messages => messages(&mut draw),
        Product::Cast => cast(&mut draw),
        Product::Image => image(&mut draw),
        Product::Reduce => reduce(&mut draw),
        Product::Allreduce => allreduce(&mut draw),
        // Its scenarios are drawn by `store`.
        Product::Fetch | Product::Rpc | Product::Store => return draw.drawn,
    }
    draw.host_costs();
    draw.drawn
}

const ALL_FAULTS: [&str; 7] =
    ["loss", "corruption", "duplication", "reordering", "down", "pause", "crash"];

/// The keys of each transport that repairs losses.
const TRANSPORTS: [&str; 21] = [
    "name = \"homa\"",
    "name = \"homa\"\nprofile = \"linux\"",
    "name = \"homa\"\nprofile = \"leverage-homa\"",
    "name = \"polo\"",
    "name = \"ndp\"",
    "name = \"phost\"",
    "name = \"pfabric\"",
    "name = \"sird\"",
    "name = \"swift\"",
    "name = \"dcpim\"",
    "name = \"uet\"",
    "name = \"uet\"\nprofile = \"eqds\"",
    "name = \"uet\"\nprofile = \"uet-nscc\"",
    "name = \"dcqcn\"",
    "name = \"dcqcn\"\nselective_repeat = true\nspray = true",
    "name = \"hpcc\"",
    "name = \"hpcc\"\nselective_repeat = true\nspray = true",
    "name = \"tcp\"",
    "name = \"tcp\"\nhandshake = true",
    "name = \"dctcp\"",
    "name = \"dctcp\"\nhandshake = true",
];

fn messages(draw: &mut Draw) {
    let fabric = draw.fabric(3);
    draw.buffers();
    let transport = draw.pick(&TRANSPORTS);
    let needs_trimming = ["ndp", "name = \"uet\"", "eqds"];
    let trims = needs_trimming.iter().any(|name| transport.contains(name));
    // NSCC runs over both kinds of switches.
    if trims && (!transport.contains("nscc") || draw.rng.below(2) == 0) {
        draw.line(format_args!("trim = true"));
    }
    if transport.contains("pfabric") {
        draw.line(format_args!("pfabric = true"));
    }
    // Their receivers request at the rate of the link, whatever the processors can do, and repeat what is lost for that reason without an end.
    draw.has_costs &= !["phost", "dcpim"].iter().any(|name| transport.contains(name));
    draw.line(format_args!("\n[transport]\n{transport}"));
    if draw.has_costs {
        // Timers of the fabric's round trip would find hosts silent that wait for a processor, as docs/reliability.md says.
        draw.line(format_args!("patience = \"1 s\""));
    }
    let exchange = draw.pick(&["one-way", "rpc", "rpc"]);
    draw.line(format_args!("\n[workload]\nexchange = \"{exchange}\""));
    let sizes = draw.pick(&["\"100 B\"", "\"W1\"", "\"W2\"", "\"20 KB\"", "\"200 KB\""]);
    // The kernel module's messages have at most this length.
    draw.line(format_args!("sizes = {sizes}\ntruncate = \"1 MB\""));
    match draw.rng.below(3) {
        0 => {
            let (senders, each) = (draw.within(2, 40), draw.within(1, 4));
            draw.line(format_args!("arrivals = \"incast\"\nsenders = {senders}"));
            draw.line(format_args!("messages_per_sender = {each}"));
        }
        1 => {
            let each = draw.within(1, 12);
            draw.line(format_args!("arrivals = \"all-to-all\"\nmessages_per_sender = {each}"));
        }
        _ => {
            let (outstanding, stop) = (draw.within(1, 8), draw.within(1, 3));
            draw.line(format_args!("arrivals = \"closed-loop\"\noutstanding = {outstanding}"));
            draw.line(format_args!("think = \"200 us\"\nstop = \"{stop} ms\""));
        }
    }
    draw.measure(60);
    draw.line(format_args!("messages = \"unlimited\""));
    draw.faults(&fabric, &ALL_FAULTS, |_| false);
}

fn cast(draw: &mut Draw) {
    let fabric = draw.fabric(5);
    draw.buffers();
    let receivers = draw.within(1, 3);
    let scheme = draw.pick(&["orca", "orca", "orca", "cast-tcp", "cast-chain"]);
    draw.line(format_args!("\n[transport]\nname = \"{scheme}\""));
    if scheme == "orca" {
        let spread = draw.pick(&["labels", "labels", "relay", "multicast", "unicast"]);
        let parity = draw.pick(&[0, 8, 64]);
        draw.line(format_args!("spread = \"{spread}\"\nfec_block = {parity}"));
    }
    draw.line(format_args!("\n[workload.cast]\nreceivers = {receivers}"));
    let (files, bytes) = (draw.within(1, 4), draw.pick(&[1, 1000, 65_536, 500_000, 3_000_000]));
    let list = vec![format!("\"{bytes} B\""); files as usize].join(", ");
    let rounds = draw.rng.chance(0.5);
    draw.line(format_args!("files = [{list}]\nrounds = {rounds}"));
    draw.measure(120);
    let last = fabric.hosts - 1;
    // The sender is host 0, and the last host runs the controller. A chain has no repair: those behind a receiver that crashes wait for what
    // it has lost.
    let is_chain = scheme == "cast-chain";
    draw.faults(&fabric, &ALL_FAULTS, |host| is_chain || host == 0 || host == last);
}

fn image(draw: &mut Draw) {
    let fabric = draw.fabric(4);
    draw.buffers();
    let clients = draw.within(2, u64::from(fabric.hosts) - 1);
    let scheme = draw.pick(&["swp2p", "swp2p", "swp2p", "image-unicast", "frisbee"]);
    draw.line(format_args!("\n[transport]\nname = \"{scheme}\""));
    if scheme == "swp2p" {
        let assist = draw.pick(&["switch", "server"]);
        draw.line(format_args!("assist = \"{assist}\""));
    }
    draw.line(format_args!("\n[workload.image]\nclients = {clients}"));
    let (chunks, interval) = (draw.within(1, 12), draw.pick(&["0 s", "1 ms", "20 ms"]));
    draw.line(format_args!("groups = {clients}\ninterval = \"{interval}\""));
    if scheme == "frisbee" {
        draw.line(format_args!("size = \"{chunks} MiB\""));
    } else {
        draw.line(format_args!("size = \"{} KiB\"\nchunk_size = \"64 KiB\"", chunks * 64));
    }
    draw.measure(600);
    let kinds = ["loss", "duplication", "reordering", "down", "pause", "crash"];
    draw.faults(&fabric, &kinds, |host| host == 0);
}

fn reduce(draw: &mut Draw) {
    let fabric = draw.fabric(4);
    draw.buffers();
    let workers = draw.within(1, u64::from(fabric.hosts - 1).min(6));
    let scheme = draw.pick(&["reduce-switch", "reduce-switch", "reduce-master"]);
    draw.line(format_args!("\n[transport]\nname = \"{scheme}\""));
    if scheme == "reduce-switch" {
        let (slots, copies) = (draw.pick(&[16, 256, 4096]), draw.within(1, 2));
        draw.line(format_args!("slots = {slots}\ncopies = {copies}"));
    }
    let order = draw.pick(&["hash", "first-seen", "hot-first"]);
    draw.line(format_args!("order = \"{order}\""));
    let (jobs, size) = (draw.within(1, 3), draw.pick(&[1, 20, 200]));
    draw.line(format_args!("\n[workload.reduce]\njobs = {jobs}\nworkers = {workers}"));
    draw.line(format_args!("size = \"{size} KB\"\nmap = \"local\"\nmasters = [0]"));
    let interval = draw.pick(&["0 s", "1 ms", "5 ms"]);
    draw.line(format_args!("interval = \"{interval}\""));
    draw.measure(600);
    let kinds = ["loss", "duplication", "reordering", "down", "pause", "crash"];
    draw.faults(&fabric, &kinds, |host| host == 0);
}

fn allreduce(draw: &mut Draw) {
    let fabric = draw.fabric(3);
    draw.buffers();
    let workers = draw.within(2, u64::from(fabric.hosts - 1));
    let scheme = draw.pick(&["allreduce-switch", "allreduce-host", "allreduce-ring"]);
    draw.line(format_args!("\n[transport]\nname = \"{scheme}\""));
    draw.line(format_args!("\n[workload.allreduce]\nworkers = {workers}"));
    let (steps, size) = (draw.within(1, 4), draw.pick(&[8, 4096, 100_000, 1_000_000]));
    let elements = draw.pick(&["f32", "i64"]);
    draw.line(format_args!("steps = {steps}\nsize = \"{size} B\"\nelements = \"{elements}\""));
    draw.measure(600);
    draw.faults(&fabric, &["loss", "duplication", "reordering", "down", "pause"], |_| true);
}

#[cfg(test)]
mod tests {
    use rackweave_transport::TransportConfig;

    use super::*;

    #[test]
    fn messages_are_drawn_over_every_transport() {
        for name in TransportConfig::names().filter(|name| *name != "datagram") {
            let key = format!("name = \"{name}\"");
            assert!(TRANSPORTS.iter().any(|keys| keys.lines().any(|line| line == key)), "{name}");
        }
    }
}
