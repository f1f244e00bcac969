//! `rackweave calibrate`: measures what hosts cost on this machine, for the `[host]` table of a scenario.
//!
//! The costs are those of the testbed's own processes, on loads that belong to no scenario: two hosts and the switch process
//! run as in `rackweave testbed`, and each process counts its work and the processor time that the kernel accounts to it. The costs
//! of each kind of work follow from several loads by least squares. Processor time hardly depends on what else runs, where elapsed
//! time would. A machine that is too busy nevertheless shows in the spread over rounds, and is refused. More loads then show what the kernel's
//! TCP costs (`kernel_tcp`) and what pairs cost (`pairs`).

mod clocks;
mod fit;
mod kernel_tcp;
mod pairs;

use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rackweave_lab::error::{OutputError, ScenarioError};
use rackweave_lab::scenario::ScenarioText;
use rackweave_scenario::host::{
    HostTable, Microseconds, Nanoseconds, ProcessorsKey, QuantileKey, SwitchTable,
};
use serde::Serialize;

use self::fit::{Observation, median, non_negative_costs, quantile, spread};
use crate::{HostWork, PointWork, SwitchWork, Testbed, TestbedError, WorkerCommand};

/// The largest spread over rounds of the cost of a packet with which figures can be used. It is our choice: the rules of
/// `two-worlds` allow 15 %, and half of the quartiles' distance is as far as the median is off in one case of two.
pub const LARGEST_SPREAD: f64 = 0.3;

/// No machine handles a packet and its system call in less, so that figures which say so are wrong: a system call that does nothing takes about as long.
const LEAST_PACKET_NS: f64 = 100.0;

/// The bytes of a full packet, to which that limit applies.
const FULL_PACKET_BYTES: f64 = 1500.0;

/// The samples of timers and of wake-ups in each round.
const SAMPLES: usize = 400;

/// A load on two hosts: host 1 sends and host 0 receives.
struct Load {
    name: &'static str,
    workload: &'static str,
}

/// The loads differ in what a packet, a message and a system call carry. None is of a built-in scenario.
const LOADS: [Load; 8] = [
    Load {
        name: "hardly any messages",
        workload: "arrivals = 'periodic'\nsizes = '100 B'\nrate = '16 Kbps'",
    },
    Load {
        name: "single small packets",
        workload: "arrivals = 'periodic'\nsizes = '100 B'\nrate = '3.2 Mbps'",
    },
    Load {
        name: "single full packets",
        workload: "arrivals = 'periodic'\nsizes = '1300 B'\nrate = '41.6 Mbps'",
    },
    Load {
        name: "frequent full packets",
        workload: "arrivals = 'periodic'\nsizes = '1300 B'\nrate = '150 Mbps'",
    },
    Load {
        name: "trains of 7 packets",
        workload: "arrivals = 'periodic'\nsizes = '9 KB'\nrate = '72 Mbps'",
    },
    Load {
        name: "messages of 60 KB",
        workload: "arrivals = 'periodic'\nsizes = '60 KB'\nrate = '150 Mbps'",
    },
    Load {
        name: "8 calls at a time",
        workload: "arrivals = 'closed-loop'\nsizes = '100 B'\noutstanding = 8\nexchange = 'rpc'\nthink = '1 ms'",
    },
    Load {
        name: "32 calls at a time",
        workload: "arrivals = 'closed-loop'\nsizes = '200 B'\noutstanding = 32\nexchange = 'rpc'\nthink = '2 ms'",
    },
];

/// The transport of the loads. Timers of the protocol are long, so that a busy machine repeats nothing: what is to be measured is a known number of
/// packets.
const TRANSPORT: &str = "name = 'homa'\npatience = '2 s'\ntick = '100 ms'";

/// Queues are hardly sampled, because the switch process wakes up for every sample.
fn scenario_text(load: &Load, transport: &str, load_ms: u32) -> ScenarioText {
    let text = format!(
        "name = 'calibrate'\n\
         [fabric]\ntopology = 'single-switch'\nhosts = 2\nhost_link = '1 Gbps'\n\
         host_send_delay = '45 us'\nhost_receive_delay = '100 us'\n\
         [transport]\n{transport}\n\
         [workload]\n{}\nsenders = '1-1'\nreceivers = '0-0'\n\
         [measure]\nwarmup = '0 s'\nmessages = 'unlimited'\ntime_limit = '{load_ms} ms'\nsample_every = '50 ms'\n\
         [testbed]\nmax_packets_per_second = 'unlimited'\n",
        load.workload
    );
    ScenarioText { file: "calibrate.toml".to_owned(), text, folder: ".".into() }
}

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// Whether hosts are to be sockets of this machine even if namespaces are permitted.
    pub overlay: bool,
    /// The number of rounds, at least 3.
    pub rounds: u32,
    /// How long each load runs in a round, in milliseconds. Loads of pairs run until their job is done.
    pub load_ms: u32,
    /// Starts the processes of the testbed.
    pub command: WorkerCommand,
}

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum CalibrateError {
    /// The testbed could not be run.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Testbed(#[from] TestbedError),
    /// A load is not a valid scenario.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Scenario(#[from] ScenarioError),
    /// The table cannot be written as TOML.
    #[error("cannot write the table: {0}")]
    Toml(#[from] toml::ser::Error),
    /// The table cannot be written as JSON.
    #[error("cannot write the table: {0}")]
    Json(#[from] serde_json::Error),
    /// The file cannot be written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Output(#[from] OutputError),
    /// The system refused to wait or to send.
    #[error("cannot measure timers and wake-ups: {0}")]
    Clocks(std::io::Error),
    /// The figures differ too much from round to round.
    #[error("{0}")]
    #[diagnostic(help(
        "other work keeps this machine busy: stop it, or repeat the measurement with more `--rounds`"
    ))]
    Spread(String),
    /// The time of all work in one direction was charged to other work.
    #[error(
        "{0} costs nothing by these figures: the rounds differ too much from each other to tell this work from other work"
    )]
    #[diagnostic(help(
        "other work keeps this machine busy: stop it, or repeat the measurement with more `--rounds`"
    ))]
    Undivided(&'static str),
    /// A process did no work.
    #[error("the load of {0} was not carried: this machine is too busy to be measured")]
    NoWork(&'static str),
}

/// A measurement that other threads can watch and stop.
#[derive(Debug)]
pub struct Calibration {
    request: Request,
    cancelled: AtomicBool,
    /// The testbed that runs at present, so that it can be stopped.
    running: Mutex<Option<std::sync::Arc<Testbed>>>,
    done: AtomicU32,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The table, as it is written.
    host: HostTable,
    /// The costs before they were rounded.
    #[serde(skip)]
    fit: Fit,
    /// How large the spread of the cost of a packet was over rounds: the distance of the quartiles as a share of the median, at the
    /// load where it is largest.
    pub spread: f64,
    /// What could not be measured, and why.
    pub missing: Vec<String>,
}

/// The costs of the fit, in nanoseconds, for the kinds of work of [`OfHost`] and [`OfSwitch`], and those of a wake-up.
#[derive(Clone, Copy, Debug)]
struct Fit {
    host: [f64; 9],
    switch: [f64; 4],
    wake: f64,
    switch_wake: f64,
}

/// The number of loads in each round, and of the measurement of timers and wake-ups.
const STEPS: usize = LOADS.len() + kernel_tcp::LOADS.len() + pairs::LOADS.len() + 1;

impl Calibration {
    /// Prepares the measurement.
    #[must_use]
    pub const fn new(request: Request) -> Self {
        Self {
            request,
            cancelled: AtomicBool::new(false),
            running: Mutex::new(None),
            done: AtomicU32::new(0),
        }
    }

    /// Stops the measurement; nothing of it remains.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        if let Ok(running) = self.running.lock()
            && let Some(testbed) = running.as_ref()
        {
            testbed.cancel();
        }
    }

    /// Whether it was stopped.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// The share of the work that is done, and the load that is measured.
    #[must_use]
    pub fn progress(&self) -> (f64, &'static str) {
        let done = self.done.load(Ordering::Relaxed) as usize;
        let steps = self.request.rounds as usize * STEPS;
        let mut names =
            LOADS.iter().chain(&kernel_tcp::LOADS).chain(&pairs::LOADS).map(|load| load.name);
        let name = names.nth(done % STEPS).unwrap_or("timers and wake-ups");
        (done as f64 / steps as f64, name)
    }

    /// Measures; `None` if it was stopped.
    ///
    /// # Errors
    /// If the testbed cannot run here, or the figures cannot be used.
    pub fn run(&self) -> Result<Option<Measured>, CalibrateError> {
        let mut missing = Vec::new();
        let overlay = self.request.overlay
            || match crate::can_use_namespaces() {
                Ok(()) => false,
                Err(error) => {
                    missing.push(format!(
                        "costs in network namespaces, because {error}: those of UDP on loopback are in their place"
                    ));
                    true
                }
            };
        if overlay {
            missing
                .push("costs of the kernel's TCP, which only network namespaces have".to_owned());
        }
        let mut works: Vec<Vec<PointWork>> = vec![Vec::new(); LOADS.len()];
        let mut over_kernel_tcp: Vec<Vec<PointWork>> = vec![Vec::new(); kernel_tcp::LOADS.len()];
        let mut pair_rounds = pairs::Rounds::default();
        let (mut timers, mut wakes, mut switch_wakes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut wake_costs, mut switch_wake_costs) = (Vec::new(), Vec::new());
        let mut clock_grain_ns = f64::MAX;
        for _ in 0..self.request.rounds {
            for (load, works) in LOADS.iter().zip(&mut works) {
                let text = scenario_text(load, TRANSPORT, self.request.load_ms);
                let Some(work) = self.measure(load, &text, overlay)? else { return Ok(None) };
                works.push(work);
                self.done.fetch_add(1, Ordering::Relaxed);
            }
            for (load, works) in kernel_tcp::LOADS.iter().zip(&mut over_kernel_tcp) {
                if !overlay {
                    let text = scenario_text(load, kernel_tcp::TRANSPORT, self.request.load_ms);
                    let Some(work) = self.measure(load, &text, false)? else { return Ok(None) };
                    works.push(work);
                }
                self.done.fetch_add(1, Ordering::Relaxed);
            }
            for load in &pairs::LOADS {
                let work = self.measure(load, &pairs::scenario_text(load), overlay);
                if self.is_cancelled() {
                    return Ok(None);
                }
                pair_rounds.add(load, work);
                self.done.fetch_add(1, Ordering::Relaxed);
            }
            let times =
                clocks::measure(SAMPLES, &self.cancelled).map_err(CalibrateError::Clocks)?;
            timers.extend(times.timers_us);
            wakes.extend(times.wakes_us);
            switch_wakes.extend(times.switch_wakes_us);
            wake_costs.push(times.wake_cost_ns);
            switch_wake_costs.push(times.switch_wake_cost_ns);
            clock_grain_ns = clock_grain_ns.min(times.clock_grain_ns);
            self.done.fetch_add(1, Ordering::Relaxed);
            if self.is_cancelled() {
                return Ok(None);
            }
        }
        let wake_costs_ns = [median(&wake_costs), median(&switch_wake_costs)];
        let mut measured = evaluate(&works, wake_costs_ns, missing)?;
        pair_rounds.evaluate(&mut measured);
        let host = &mut measured.host;
        if !overlay {
            let turn_ns = host.switch.as_ref().map_or(0.0, |switch| switch.system_call_ns.0);
            host.kernel_tcp = kernel_tcp::costs(&over_kernel_tcp, wake_costs_ns, turn_ns);
            if host.kernel_tcp.is_none() {
                let message = "costs of the kernel's TCP, because by these figures a packet costs nothing: the rounds differ too much";
                measured.missing.push(message.to_owned());
            }
        }
        let host = &mut measured.host;
        host.timer_grain_us = Microseconds(rounded(median(&timers)));
        host.clock_grain_ns = Some(Nanoseconds(clock_grain_ns));
        host.wake_us = quantile_keys(&wakes);
        if let Some(switch) = &mut host.switch {
            switch.wake_us = quantile_keys(&switch_wakes);
        }
        measured.host.measured = Some(self.circumstances(overlay, &measured));
        Ok(Some(measured))
    }

    fn measure(
        &self,
        load: &Load,
        text: &ScenarioText,
        overlay: bool,
    ) -> Result<Option<PointWork>, CalibrateError> {
        let testbed = Testbed::of_text(text, overlay, self.request.command.clone())?;
        testbed.check()?;
        let testbed = std::sync::Arc::new(testbed);
        if let Ok(mut running) = self.running.lock() {
            *running = Some(std::sync::Arc::clone(&testbed));
        }
        if self.is_cancelled() {
            return Ok(None);
        }
        let work = testbed.measure_work(0)?;
        match work {
            Some(work) if work.is_complete() => Ok(Some(work)),
            Some(_) => Err(CalibrateError::NoWork(load.name)),
            None => Ok(None),
        }
    }

    /// How it was measured, for people.
    fn circumstances(&self, overlay: bool, measured: &Measured) -> toml::Table {
        let mut table = toml::Table::new();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let place = if overlay { "UDP on loopback" } else { "network namespaces" };
        let entries: [(&str, toml::Value); 7] = [
            ("by", format!("rackweave calibrate {}", env!("CARGO_PKG_VERSION")).into()),
            ("in", place.into()),
            ("kernel", kernel.trim().to_owned().into()),
            ("rounds", i64::from(self.request.rounds).into()),
            ("load_ms", i64::from(self.request.load_ms).into()),
            ("spread", rounded(measured.spread).into()),
            ("missing", measured.missing.clone().into()),
        ];
        table.extend(entries.map(|(key, value)| (key.to_owned(), value)));
        table
    }
}

/// The number of processors that the testbed's processes share.
fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

/// The distribution of these times.
fn quantile_keys(times_us: &[f64]) -> Vec<QuantileKey> {
    let shares = [0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0];
    let key = |share| QuantileKey(share, Microseconds(rounded(quantile(times_us, share))));
    shares.map(key).into()
}

/// Three significant digits are more than the spread justifies.
fn rounded(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return 0.0;
    }
    let digits = 3.0 - x.abs().log10().floor() - 1.0;
    let scale = 10_f64.powi(digits as i32);
    // Division by a power of ten gives the shortest decimal, where multiplication would not.
    (x * scale).round() / scale
}

/// What a host does: seconds, then system calls, messages, packets and bytes that it sends, then the same received.
type OfHost = Observation<9>;
/// What the switch process does: seconds, turns, packets, bytes.
type OfSwitch = Observation<4>;

/// What a host did, and its time without what waking up cost. Wake-ups are measured by themselves: under most loads a process sleeps
/// as often as it receives, and least squares cannot tell the two apart.
fn of_host(work: &HostWork, wake_cost_ns: f64) -> OfHost {
    let sent = [work.send_calls, work.submitted, work.sent, work.sent_bytes];
    let received = [work.receive_batches, work.delivered, work.received, work.received_bytes];
    let mut row = [0.0; 9];
    row[0] = work.seconds;
    for (at, count) in sent.into_iter().chain(received).enumerate() {
        row[at + 1] = count as f64;
    }
    Observation { work: row, time_ns: awake_ns(work.cpu_s, work.sleeps, wake_cost_ns) }
}

fn of_switch(work: &SwitchWork, wake_cost_ns: f64) -> OfSwitch {
    let [turns, packets, bytes] = [work.turns, work.packets, work.bytes].map(|count| count as f64);
    let row = [work.seconds, turns, packets, bytes];
    Observation { work: row, time_ns: awake_ns(work.cpu_s, work.sleeps, wake_cost_ns) }
}

/// The processor time in nanoseconds without that of wake-ups.
fn awake_ns(cpu_s: f64, sleeps: u64, wake_cost_ns: f64) -> f64 {
    (cpu_s * 1e9 - sleeps as f64 * wake_cost_ns).max(0.0)
}

/// Of the rounds of one load, the one whose packets cost the median; and the spread of that cost.
fn typical<W>(mut rounds: Vec<W>, cost: impl Fn(&W) -> f64) -> Option<(W, f64)> {
    rounds.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
    let costs: Vec<f64> = rounds.iter().map(cost).collect();
    let middle = rounds.len().checked_sub(1)? / 2;
    Some((rounds.swap_remove(middle), spread(&costs)))
}

/// The relative error of the median of rounds at a typical load, from the distances of the quartiles at each load: for normal
/// errors it is 0.93 of that distance over the root of the number of rounds.
fn noise(spreads: &[f64], rounds: usize) -> f64 {
    0.93 * median(spreads) / (rounds.max(1) as f64).sqrt()
}

/// Derives the costs from the work of all rounds of all loads.
fn evaluate(
    works: &[Vec<PointWork>],
    [wake_ns, switch_wake_ns]: [f64; 2],
    missing: Vec<String>,
) -> Result<Measured, CalibrateError> {
    let (mut hosts, mut switches) = (Vec::new(), Vec::new());
    let (mut of_hosts, mut of_switches) = (Vec::new(), Vec::new());
    let mut worst = (0.0, String::new());
    let mut note = |spread: f64, of: &str, load: &Load| {
        // The cost of a packet has no meaning where there are hardly any: this load shows what idle processes cost.
        if spread > worst.0 && load.name != LOADS[0].name {
            worst = (spread, format!("{of} under {}", load.name));
        }
    };
    for (load, rounds) in LOADS.iter().zip(works) {
        for host in 0..2 {
            let of_rounds: Vec<_> = rounds.iter().map(|work| &work.hosts[host]).collect();
            let cost = |work: &&HostWork| work.cpu_s / (work.sent + work.received).max(1) as f64;
            if let Some((work, spread)) = typical(of_rounds, cost) {
                note(spread, ["the receiving host", "the sending host"][host], load);
                hosts.push(of_host(work, wake_ns));
                of_hosts.push(spread);
            }
        }
        let of_rounds: Vec<_> = rounds.iter().map(|work| &work.switch).collect();
        let cost = |work: &&SwitchWork| work.cpu_s / work.packets.max(1) as f64;
        if let Some((work, spread)) = typical(of_rounds, cost) {
            note(spread, "the switch process", load);
            switches.push(of_switch(work, switch_wake_ns));
            of_switches.push(spread);
        }
    }
    let (spread, place) = worst;
    if spread > LARGEST_SPREAD {
        return Err(CalibrateError::Spread(format!(
            "the cost of a packet of {place} differs by {:.0} % from round to round (the quartiles, as a share of the median), and more than \
             {:.0} % cannot be used",
            spread * 100.0,
            LARGEST_SPREAD * 100.0
        )));
    }
    let rounds = works.iter().map(Vec::len).min().unwrap_or(0);
    let costs = non_negative_costs(&hosts, noise(&of_hosts, rounds));
    let [_, send_system_call, send_call, send_packet, send_byte, system_call, call, packet, byte] =
        costs;
    let of_switch = non_negative_costs(&switches, noise(&of_switches, rounds));
    let [_, turn, of_packet, of_byte] = of_switch;
    for (of, costs) in [
        ("sending", [send_system_call, send_call, send_packet, send_byte]),
        ("receiving", [system_call, call, packet, byte]),
        ("the switch process's work", [turn, 0.0, of_packet, of_byte]),
    ] {
        let [call, message, packet, byte] = costs;
        if byte.mul_add(FULL_PACKET_BYTES, call + message + packet) < LEAST_PACKET_NS {
            return Err(CalibrateError::Undivided(of));
        }
    }
    let ns = |x: f64| Nanoseconds(rounded(x));
    let testbed = rackweave_lab::scenario::TestbedConfig::default();
    Ok(Measured {
        host: HostTable {
            processors: ProcessorsKey::Shared(processors()),
            send_system_call_ns: ns(send_system_call),
            send_call_ns: ns(send_call),
            send_packet_ns: ns(send_packet),
            send_byte_ns: ns(send_byte),
            receive_system_call_ns: ns(system_call),
            receive_call_ns: ns(call),
            receive_packet_ns: ns(packet),
            receive_byte_ns: ns(byte),
            wake_cost_ns: ns(wake_ns),
            send_ahead_us: Microseconds(testbed.run_ahead.as_us_f64()),
            switch: Some(SwitchTable {
                system_call_ns: ns(turn),
                packet_ns: ns(of_packet),
                byte_ns: ns(of_byte),
                pair_ns: ns(0.0),
                wake_cost_ns: ns(switch_wake_ns),
                wake_us: Vec::new(),
                window_us: Microseconds(testbed.switch_window.as_us_f64()),
            }),
            ..HostTable::default()
        },
        fit: Fit { host: costs, switch: of_switch, wake: wake_ns, switch_wake: switch_wake_ns },
        spread,
        missing,
    })
}

impl Measured {
    /// The file with the table.
    ///
    /// # Errors
    /// If a figure cannot be written as TOML.
    pub fn to_toml(&self) -> Result<String, CalibrateError> {
        let table = toml::Table::try_from(&self.host)?;
        let mut root = toml::Table::new();
        root.insert("host".to_owned(), toml::Value::Table(table));
        let head = "# What hosts cost on one machine, measured by `rackweave calibrate`. `rackweave run SCENARIO --host FILE`\n\
                    # simulates them; the keys are in docs/reference/scenario.md.\n\n";
        Ok(format!("{head}{}", toml::to_string(&root)?))
    }

    /// A summary for people.
    #[must_use]
    pub fn to_text(&self) -> String {
        let host = &self.host;
        let mut text =
            format!("{:<22}{:>12}{:>12}\n", "processor time in ns", "sending", "receiving");
        let rows = [
            ("system call", host.send_system_call_ns, host.receive_system_call_ns),
            ("message", host.send_call_ns, host.receive_call_ns),
            ("packet", host.send_packet_ns, host.receive_packet_ns),
            ("byte", host.send_byte_ns, host.receive_byte_ns),
            ("pair", host.send_pair_ns, host.receive_pair_ns),
        ];
        for (name, send, receive) in rows {
            text += &format!("{name:<22}{:>12}{:>12}\n", send.0, receive.0);
        }
        if let Some(switch) = &host.switch {
            text += &format!(
                "to sleep and wake up: {} ns; the switch process: {} ns, {} a turn, {} a packet, {} a byte, {} a pair\n",
                host.wake_cost_ns.0,
                switch.wake_cost_ns.0,
                switch.system_call_ns.0,
                switch.packet_ns.0,
                switch.byte_ns.0,
                switch.pair_ns.0
            );
        }
        if let Some(tcp) = &host.kernel_tcp {
            text += &format!(
                "the kernel's TCP: {} ns a wake-up, {} a message and {} a byte sent, {} and {} received, {} a packet and {} a byte in the switch process\n",
                tcp.receive_system_call_ns.0,
                tcp.send_call_ns.0,
                tcp.send_byte_ns.0,
                tcp.receive_call_ns.0,
                tcp.receive_byte_ns.0,
                tcp.switch_packet_ns.0,
                tcp.switch_byte_ns.0
            );
        }
        let wake = |share: f64| {
            host.wake_us.iter().find(|wake| wake.0 == share).map_or(0.0, |wake| wake.1.0)
        };
        text += &format!(
            "wake-ups are {} us late at the median, {} in 1 of 100, {} at most; timers {} us\n",
            wake(0.5),
            wake(0.99),
            wake(1.0),
            host.timer_grain_us.0
        );
        text
    }

    /// The table and its circumstances as JSON.
    ///
    /// # Errors
    /// If a figure cannot be written as JSON.
    pub fn to_json(&self) -> Result<String, CalibrateError> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Writes the file under another name, and renames it when it is complete.
    ///
    /// # Errors
    /// If the file cannot be made or written; then an earlier one is unchanged.
    pub fn write(&self, path: &Path) -> Result<(), CalibrateError> {
        let text = self.to_toml()?;
        use std::os::unix::fs::PermissionsExt as _;
        let failed = |source| OutputError::File { path: path.to_owned(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut file = tempfile::Builder::new()
            .permissions(std::fs::Permissions::from_mode(0o644))
            .tempfile_in(folder.unwrap_or(Path::new(".")))
            .map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_lab::scenario::{Scenario, World};

    /// The costs that the processes of these tests have: a system call, a message, a packet, a byte.
    const SEND: [f64; 4] = [3000.0, 700.0, 900.0, 0.4];
    const RECEIVE: [f64; 4] = [5000.0, 400.0, 1100.0, 0.2];
    const SWITCH: [f64; 3] = [6000.0, 1500.0, 0.3];
    /// And going to sleep and waking up.
    const WAKE: f64 = 9000.0;
    const WAKES: [f64; 2] = [WAKE, WAKE];

    /// What the loads consist of: messages, packets for each, and messages for each system call.
    const WORK: [(u64, u64, u64); 8] = [
        (30, 1, 1),
        (2400, 1, 1),
        (2400, 1, 1),
        (8600, 1, 2),
        (600, 7, 1),
        (187, 42, 1),
        (4800, 1, 8),
        (9600, 1, 32),
    ];
    const BYTES: [u64; 8] = [190, 190, 1400, 1400, 1400, 1500, 190, 290];

    fn host(load: usize, sends: bool, slower: f64) -> HostWork {
        let (messages, packets, batch) = WORK[load];
        let packets = messages * packets;
        let (calls, bytes) = (messages / batch, packets * BYTES[load]);
        let cost = |[call, message, packet, byte]: [f64; 4]| {
            calls as f64 * call
                + messages as f64 * message
                + packets as f64 * packet
                + bytes as f64 * byte
        };
        let mut work = HostWork { seconds: 2.0, ..HostWork::default() };
        // Some turns follow each other without sleep, more of them under higher loads.
        work.sleeps = calls * (10 - load as u64) / 10 + 200;
        let idle = 2.0 * 1e6 + work.sleeps as f64 * WAKE;
        // Calls are answered.
        if sends || load >= 6 {
            work.cpu_s += slower * cost(SEND) / 1e9;
            (work.submitted, work.sent, work.send_calls, work.sent_bytes) =
                (messages, packets, calls, bytes);
        }
        if !sends || load >= 6 {
            work.cpu_s += slower * cost(RECEIVE) / 1e9;
            (work.delivered, work.received, work.receive_batches, work.received_bytes) =
                (messages, packets, calls, bytes);
        }
        work.cpu_s += idle / 1e9;
        work
    }

    fn round(load: usize, slower: f64) -> PointWork {
        let (messages, packets, batch) = WORK[load];
        let (packets, turns) = (messages * packets, 2 * messages / batch);
        let bytes = packets * BYTES[load];
        let [turn, packet, byte] = SWITCH;
        let ns = turns as f64 * turn + packets as f64 * packet + bytes as f64 * byte;
        let sleeps = turns * (10 - load as u64) / 10 + 200;
        let ns = ns + sleeps as f64 * WAKE;
        let switch = SwitchWork {
            seconds: 2.0,
            cpu_s: slower * ns / 1e9,
            turns,
            sleeps,
            packets,
            bytes,
            received: packets,
            pairs: 0,
        };
        PointWork { hosts: vec![host(load, false, slower), host(load, true, slower)], switch }
    }

    fn rounds(slower: &[f64]) -> Vec<Vec<PointWork>> {
        (0..LOADS.len())
            .map(|load| slower.iter().map(|slower| round(load, *slower)).collect())
            .collect()
    }

    #[test]
    fn known_costs_are_found_in_spite_of_one_slow_round() {
        let measured = evaluate(&rounds(&[1.0, 1.02, 0.99, 1.0, 4.0]), WAKES, Vec::new()).unwrap();
        let host = &measured.host;
        let near = |found: Nanoseconds, cost: f64| {
            // Rounds differ by 2 %, for which costs that are alike in all loads are evened out a little.
            assert!((found.0 / cost - 1.0).abs() < 0.1, "{} for {cost}", found.0);
        };
        for (found, cost) in [
            (host.wake_cost_ns, WAKE),
            (host.send_system_call_ns, SEND[0]),
            (host.send_call_ns, SEND[1]),
            (host.send_packet_ns, SEND[2]),
            (host.send_byte_ns, SEND[3]),
            (host.receive_system_call_ns, RECEIVE[0]),
            (host.receive_call_ns, RECEIVE[1]),
            (host.receive_packet_ns, RECEIVE[2]),
            (host.receive_byte_ns, RECEIVE[3]),
        ] {
            near(found, cost);
        }
        let switch = host.switch.as_ref().unwrap();
        near(switch.wake_cost_ns, WAKE);
        near(switch.system_call_ns, SWITCH[0]);
        near(switch.packet_ns, SWITCH[1]);
        near(switch.byte_ns, SWITCH[2]);
        assert!(measured.spread < 0.05, "{}", measured.spread);
    }

    #[test]
    fn figures_that_differ_from_round_to_round_are_refused_with_the_process_and_the_load() {
        let error = evaluate(&rounds(&[1.0, 1.5, 2.0, 2.5, 3.0]), WAKES, Vec::new())
            .unwrap_err()
            .to_string();
        assert!(error.contains("differs by") && error.contains("more than 30 %"), "{error}");
        assert!(error.contains("host") || error.contains("switch process"), "{error}");
    }

    /// What continuous integration once found on a busy machine: everything that receivers did was charged to waking up.
    #[test]
    fn figures_by_which_receiving_costs_nothing_are_refused() {
        let mut works = rounds(&[1.0, 1.0, 1.0]);
        for work in works.iter_mut().flatten() {
            let idle = |host: &HostWork| (2.0 * 1e6 + host.sleeps as f64 * WAKE) / 1e9;
            for host in &mut work.hosts {
                host.cpu_s = idle(host) + host.submitted as f64 * 1e-5;
            }
        }
        let error = evaluate(&works, WAKES, Vec::new()).unwrap_err().to_string();
        assert!(error.contains("receiving costs nothing"), "{error}");
    }

    #[test]
    fn the_file_replaces_an_earlier_one_and_a_run_takes_it() {
        let measured = evaluate(&rounds(&[1.0, 1.0, 1.0]), WAKES, vec!["this".into()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.toml");
        std::fs::write(&path, "earlier").unwrap();
        measured.write(&path).unwrap();
        let names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, ["host.toml"], "nothing else is left");
        let text = "host = 'host.toml'\nfabric = { topology = 'single-switch', hosts = 2 }\ntransport.name = 'homa'\n\
                    workload = { arrivals = 'permutation', sizes = '10 KB' }\n";
        let scenario = Scenario::parse("x.toml", text, folder.path(), &[], None).unwrap();
        let send = scenario.points[0].config.host.as_ref().unwrap().send;
        assert_eq!(send.packet.as_ns(), measured.host.send_packet_ns.0.round() as u64);
        assert!(measured.write(&folder.path().join("no/host.toml")).is_err());
        let json: serde_json::Value = serde_json::from_str(&measured.to_json().unwrap()).unwrap();
        assert_eq!(json["host"]["send_packet_ns"], measured.host.send_packet_ns.0);
        assert_eq!(json["missing"][0], "this");
    }

    #[test]
    fn every_load_is_a_scenario_that_the_testbed_takes() {
        for load in &LOADS {
            let text = scenario_text(load, TRANSPORT, 1000);
            let scenario = text.read(World::Testbed, &[], None).unwrap();
            assert_eq!(scenario.points.len(), 1, "{}", load.name);
            let command = WorkerCommand { program: "none".into(), arguments: Vec::new() };
            Testbed::of_text(&text, true, command).unwrap().check().unwrap();
        }
    }

    #[test]
    fn three_digits_are_kept() {
        assert_eq!(
            [1234.0, 0.012345, 99.96, 0.0, 5.0].map(rounded),
            [1230.0, 0.0123, 100.0, 0.0, 5.0]
        );
    }
}
