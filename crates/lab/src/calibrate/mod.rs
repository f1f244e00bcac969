//! `rackweave calibrate`: measures what hosts cost on this machine, for the `[host]` table of a scenario.
//!
//! The costs are those of the testbed's own processes, on loads that belong to no scenario: two hosts and the switch process
//! run as in `rackweave testbed`, and each process counts its work and the processor time that the kernel accounts to it. The costs
//! of each kind of work follow from several loads by least squares. Processor time hardly depends on what else runs, where elapsed
//! time would; a machine that is too busy nevertheless shows in the spread over rounds, and is refused.

mod clocks;
mod fit;

use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde::Serialize;

use self::fit::{Observation, median, non_negative_costs, quantile, spread};
use crate::error::{OutputError, ScenarioError};
use crate::scenario::ScenarioText;
use crate::scenario::host::{
    HostTable, Microseconds, Nanoseconds, ProcessorsKey, QuantileKey, SwitchTable,
};
use crate::testbed::{HostWork, PointWork, SwitchWork, Testbed, TestbedError, WorkerCommand};

/// The largest spread over rounds of the cost of a packet with which figures can be used. It is our choice: the rules of
/// `two-worlds` allow 15 %, and half of the quartiles' distance is as far as the median is off in one case of two.
pub const LARGEST_SPREAD: f64 = 0.3;

/// The samples of timers and of wake-ups in each round.
const SAMPLES: usize = 400;

/// A load on two hosts, of which host 1 sends and host 0 receives.
struct Load {
    name: &'static str,
    workload: &'static str,
}

/// The loads differ in what a packet, a message and a system call carry. None is of a built-in scenario.
const LOADS: [Load; 7] = [
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

/// The load of a process takes so long in each round.
const LOAD_MS: u32 = 600;

fn scenario_text(load: &Load) -> ScenarioText {
    let text = format!(
        "name = 'calibrate'\n\
         [fabric]\ntopology = 'single-switch'\nhosts = 2\nhost_link = '1 Gbps'\n\
         host_send_delay = '45 us'\nhost_receive_delay = '100 us'\n\
         [transport]\nname = 'homa'\npatience = '2 s'\n\
         [workload]\n{}\nsenders = '1-1'\nreceivers = '0-0'\n\
         [measure]\nwarmup = '0 s'\nmessages = 'unlimited'\ntime_limit = '{LOAD_MS} ms'\n",
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
    /// The system refused to wait or to send.
    #[error("cannot measure timers and wake-ups: {0}")]
    Clocks(std::io::Error),
    /// The figures differ too much from round to round.
    #[error("{0}")]
    #[diagnostic(help(
        "other work keeps this machine busy: stop it, or repeat the measurement with more `--rounds`"
    ))]
    Spread(String),
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
    /// How large the spread of the cost of a packet was over rounds: the distance of the quartiles as a share of the median, at the
    /// load where it is largest.
    pub spread: f64,
    /// What could not be measured, and why.
    pub missing: Vec<String>,
}

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

    /// Stops the measurement, of which nothing remains.
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
        let steps = self.request.rounds as usize * (LOADS.len() + 1);
        let step = done % (LOADS.len() + 1);
        let name = LOADS.get(step).map_or("timers and wake-ups", |load| load.name);
        (done as f64 / steps as f64, name)
    }

    /// Measures; `None` if it was stopped.
    ///
    /// # Errors
    /// If the testbed cannot run here, or the figures cannot be used.
    pub fn run(&self) -> Result<Option<Measured>, CalibrateError> {
        let mut missing = Vec::new();
        let overlay = self.request.overlay
            || match crate::testbed::can_use_namespaces() {
                Ok(()) => false,
                Err(error) => {
                    missing.push(format!(
                        "costs in network namespaces, because {error}: those of UDP on loopback are in their place"
                    ));
                    true
                }
            };
        let mut works: Vec<Vec<PointWork>> = vec![Vec::new(); LOADS.len()];
        let (mut timers, mut wakes, mut clock_grain_ns) = (Vec::new(), Vec::new(), f64::MAX);
        for _ in 0..self.request.rounds {
            for (load, works) in LOADS.iter().zip(&mut works) {
                let Some(work) = self.measure(load, overlay)? else { return Ok(None) };
                works.push(work);
                self.done.fetch_add(1, Ordering::Relaxed);
            }
            let times =
                clocks::measure(SAMPLES, &self.cancelled).map_err(CalibrateError::Clocks)?;
            timers.extend(times.timers_us);
            wakes.extend(times.wakes_us);
            clock_grain_ns = clock_grain_ns.min(times.clock_grain_ns);
            self.done.fetch_add(1, Ordering::Relaxed);
            if self.is_cancelled() {
                return Ok(None);
            }
        }
        let mut measured = evaluate(&works, missing)?;
        let host = &mut measured.host;
        host.timer_grain_us = Microseconds(rounded(median(&timers)));
        host.clock_grain_ns = Some(Nanoseconds(clock_grain_ns));
        let shares = [0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0];
        host.wake_us = shares
            .map(|share| QuantileKey(share, Microseconds(rounded(quantile(&wakes, share)))))
            .into();
        measured.host.measured = Some(self.circumstances(overlay, &measured));
        Ok(Some(measured))
    }

    fn measure(&self, load: &Load, overlay: bool) -> Result<Option<PointWork>, CalibrateError> {
        let text = scenario_text(load);
        let testbed = Testbed::of_text(&text, overlay, self.request.command.clone())?;
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
        let entries: [(&str, toml::Value); 6] = [
            ("by", format!("rackweave calibrate {}", env!("CARGO_PKG_VERSION")).into()),
            ("in", place.into()),
            ("kernel", kernel.trim().to_owned().into()),
            ("rounds", i64::from(self.request.rounds).into()),
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

fn of_host(work: &HostWork) -> OfHost {
    let sent = [work.send_calls, work.submitted, work.sent, work.sent_bytes];
    let received = [work.receive_batches, work.delivered, work.received, work.received_bytes];
    let mut row = [0.0; 9];
    row[0] = work.seconds;
    for (at, count) in sent.into_iter().chain(received).enumerate() {
        row[at + 1] = count as f64;
    }
    Observation { work: row, time_ns: work.cpu_s * 1e9 }
}

fn of_switch(work: &SwitchWork) -> OfSwitch {
    let row = [work.seconds, work.turns as f64, work.packets as f64, work.bytes as f64];
    Observation { work: row, time_ns: work.cpu_s * 1e9 }
}

/// Of observations of one load, the one whose packets cost the median; and the spread of that cost.
fn typical<const N: usize>(
    mut rounds: Vec<Observation<N>>,
    packets: impl Fn(&Observation<N>) -> f64,
) -> Option<(Observation<N>, f64)> {
    let cost = |it: &Observation<N>| it.time_ns / packets(it).max(1.0);
    rounds.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
    let costs: Vec<f64> = rounds.iter().map(cost).collect();
    let middle = rounds.len().checked_sub(1)? / 2;
    Some((rounds.swap_remove(middle), spread(&costs)))
}

/// Derives the costs from the work of all rounds of all loads.
fn evaluate(works: &[Vec<PointWork>], missing: Vec<String>) -> Result<Measured, CalibrateError> {
    let (mut hosts, mut switches) = (Vec::new(), Vec::new());
    let mut worst = (0.0, String::new());
    let mut note = |spread: f64, of: &str, load: &Load| {
        if spread > worst.0 {
            worst = (spread, format!("{of} under {}", load.name));
        }
    };
    for (load, rounds) in LOADS.iter().zip(works) {
        for host in 0..2 {
            let of_rounds = rounds.iter().map(|work| of_host(&work.hosts[host])).collect();
            if let Some((row, spread)) = typical(of_rounds, |it| it.work[3] + it.work[7]) {
                note(spread, ["the receiving host", "the sending host"][host], load);
                hosts.push(row);
            }
        }
        let of_rounds = rounds.iter().map(|work| of_switch(&work.switch)).collect();
        if let Some((row, spread)) = typical(of_rounds, |it| it.work[2]) {
            note(spread, "the switch process", load);
            switches.push(row);
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
    let [_, send_system_call, send_call, send_packet, send_byte, system_call, call, packet, byte] =
        non_negative_costs(&hosts);
    let [_, turn, of_packet, of_byte] = non_negative_costs(&switches);
    let ns = |x: f64| Nanoseconds(rounded(x));
    let testbed = crate::scenario::TestbedConfig::default();
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
            send_ahead_us: Microseconds(testbed.run_ahead.as_us_f64()),
            switch: Some(SwitchTable {
                system_call_ns: ns(turn),
                packet_ns: ns(of_packet),
                byte_ns: ns(of_byte),
                window_us: Microseconds(testbed.switch_window.as_us_f64()),
            }),
            ..HostTable::default()
        },
        spread,
        missing,
    })
}

impl Measured {
    /// The file with the table.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let table = toml::Table::try_from(&self.host).unwrap_or_default();
        let mut root = toml::Table::new();
        root.insert("host".to_owned(), toml::Value::Table(table));
        let head = "# What hosts cost on one machine, measured by `rackweave calibrate`. `rackweave run SCENARIO --host FILE`\n\
                    # simulates them; the keys are in docs/scenario.md.\n\n";
        format!("{head}{}", toml::to_string(&root).unwrap_or_default())
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
        ];
        for (name, send, receive) in rows {
            text += &format!("{name:<22}{:>12}{:>12}\n", send.0, receive.0);
        }
        if let Some(switch) = &host.switch {
            text += &format!(
                "switch process: {} ns a turn, {} a packet, {} a byte\n",
                switch.system_call_ns.0, switch.packet_ns.0, switch.byte_ns.0
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
    #[must_use]
    pub fn to_json(&self) -> String {
        format!("{:#}\n", serde_json::to_value(self).unwrap_or_default())
    }

    /// Writes the file under another name, and renames it when it is complete.
    ///
    /// # Errors
    /// If the file cannot be written; then an earlier one is unchanged.
    pub fn write(&self, path: &Path) -> Result<(), OutputError> {
        use std::os::unix::fs::PermissionsExt as _;
        let failed = |source| OutputError::File { path: path.to_owned(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut file = tempfile::Builder::new()
            .permissions(std::fs::Permissions::from_mode(0o644))
            .tempfile_in(folder.unwrap_or(Path::new(".")))
            .map_err(failed)?;
        file.write_all(self.to_toml().as_bytes()).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(path).map(drop).map_err(|error| failed(error.error))
    }
}
