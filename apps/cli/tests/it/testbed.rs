//! `rackweave testbed`: scenarios with real processes. Without privileges only the overlay is tested.

mod calibrate;
mod images;
mod jobs;

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::common::{PATIENCE, nap, now, processor_time, status_of, until};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use rackweave_core::{HostId, MessageId, RangeSet, Slice};
use rackweave_wire::frame;
use serde_json::Value;
use tempfile::TempDir;

const INCAST: &str = r#"
fabric = { topology = "single-switch", hosts = 4, host_link = "200 Mbps" }
transport = { name = "homa", homa = { tick = "10 ms" } } # a machine with too much to do is no dead peer
workload = { arrivals = "incast", sizes = "10 KB", messages_per_sender = 4 }
measure = { verify = true, sample_every = "10 ms" }
"#;

/// A scenario that runs until it is stopped.
const ENDLESS: &str = r#"
fabric = { topology = "single-switch", hosts = 3, host_link = "50 Mbps" }
transport.name = "homa"
workload = { arrivals = "closed-loop", sizes = "5 KB", exchange = "rpc" }
measure = { messages = "unlimited", time_limit = "300 s" }
"#;

/// A folder for one test and its share of the machine.
struct Place {
    folder: TempDir,
    _machine: Share,
}

/// What a test of a testbed has of the machine. Two testbeds together can need more than two processors: a test that judges times has it alone.
enum Share {
    Alone { _machine: RwLockWriteGuard<'static, ()> },
    WithOthers { _machine: RwLockReadGuard<'static, ()> },
}

static MACHINE: RwLock<()> = RwLock::new(());

/// Whether util-linux's `setpriv`, which can end a process with its parent, is installed.
fn has_setpriv() -> bool {
    static HAS: LazyLock<bool> = LazyLock::new(|| {
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "true"])
            .output()
            .is_ok_and(|o| o.status.success())
    });
    *HAS
}

impl Place {
    fn new(scenario: &str) -> Self {
        // A test that failed leaves nothing behind that another could find.
        let machine = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
        Self::with(scenario, Share::WithOthers { _machine: machine })
    }

    /// For a test that judges how long something takes.
    fn alone(scenario: &str) -> Self {
        let machine = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
        Self::with(scenario, Share::Alone { _machine: machine })
    }

    fn with(scenario: &str, machine: Share) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("x.toml"), scenario).unwrap();
        Self { folder, _machine: machine }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn command(&self, args: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_rackweave");
        // A testbed disturbs the whole machine, so it ends with the thread of its test, even if that is killed.
        let mut command = Command::new(if has_setpriv() { "setpriv" } else { program });
        if has_setpriv() {
            command.args(["--pdeathsig", "KILL", program]);
        }
        command.args(args).current_dir(self.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut child = self.start(args);
        wait(&mut child);
        child.wait_with_output().unwrap()
    }

    fn start(&self, args: &[&str]) -> Child {
        self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn summary(&self, folder: &str) -> Value {
        let text = std::fs::read_to_string(self.path().join(folder).join("summary.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

fn wait(child: &mut Child) {
    let began = now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("the command does not end");
        }
        nap();
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns a message without miette's frames and line breaks.
fn words(text: &str) -> String {
    let kept = text.chars().map(|c| if "│╰─▶×╭·".contains(c) { ' ' } else { c });
    kept.collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn may_make_namespaces() -> bool {
    let effective = status_of(std::process::id(), "CapEff:").unwrap_or_default();
    let bits = u64::from_str_radix(&effective, 16).unwrap_or(0);
    let ip = Command::new("ip").arg("-Version").stdout(Stdio::null()).status();
    bits >> 12 & 1 == 1 && bits >> 21 & 1 == 1 && ip.is_ok_and(|status| status.success())
}

/// Returns the journal entry of a coordinator, and its file.
fn entry_of(coordinator: u32) -> Option<(PathBuf, Value)> {
    let files = std::fs::read_dir(rackweave_linux::sys::runtime_folder().ok()?).ok()?.flatten();
    files.map(|file| file.path()).find_map(|path| {
        let entry: Value = serde_json::from_str(&std::fs::read_to_string(&path).ok()?).ok()?;
        (entry["coordinator"]["pid"] == coordinator).then_some((path, entry))
    })
}

/// Returns the processes of a run: the switch, then the hosts.
fn processes_of(entry: &Value) -> Vec<u32> {
    let parts = entry["parts"].as_array().unwrap();
    parts.iter().map(|part| part["pid"].as_u64().unwrap() as u32).collect()
}

fn is_alive(pid: u32) -> bool {
    status_of(pid, "State:").is_some_and(|state| !state.starts_with('Z'))
}

/// Waits until a run of three hosts is under load; returns its journal file and processes.
fn under_load(child: &Child) -> (PathBuf, Value, Vec<u32>) {
    let mut found = None;
    until("all parts have been started", || {
        found = entry_of(child.id()).filter(|(_, entry)| processes_of(entry).len() == 4);
        found.is_some()
    });
    let (path, entry) = found.unwrap();
    let parts = processes_of(&entry);
    // A host that has a socket and sends has used some processor time.
    let busy = |pid: u32| processor_time(pid) > Duration::from_millis(200);
    until("there is load", || busy(parts[0]) || !is_alive(parts[0]));
    (path, entry, parts)
}

fn signal(pid: u32, name: &str) {
    let done = Command::new("kill").args([name, &pid.to_string()]).status().unwrap();
    assert!(done.success());
}

fn namespaces(entry: &Value) -> Vec<String> {
    let prefix = format!("rw-{}-", entry["id"].as_str().unwrap());
    let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    names
        .filter_map(|name| name.file_name().into_string().ok())
        .filter(|name| name.starts_with(&prefix))
        .collect()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn an_incast_over_four_transports_gives_what_the_simulator_gives() {
    let place = Place::new(INCAST);
    let cases = "sweep.cases=[{ transport.name = 'homa' }, { transport.name = 'polo' }, \
                 { transport.name = 'ndp', fabric.switch.trim = true }, { transport.name = 'tcp' }]";
    let real = place.run(&["testbed", "x.toml", "--overlay", "--set", cases, "--out", "real"]);
    assert_eq!(code(&real), 0, "{}", stderr(&real));
    assert!(stderr(&real).contains("tcp and dctcp are Rackweave's machines"));
    let table = String::from_utf8_lossy(&real.stdout).into_owned();
    assert!(table.contains("homa") && table.contains("report.html"), "{table}");
    let simulated = place.run(&["run", "x.toml", "--set", cases, "--out", "simulated"]);
    assert_eq!(code(&simulated), 0);
    let (real, simulated) = (place.summary("real"), place.summary("simulated"));
    assert_eq!(keys(&real), keys(&simulated));
    for (real, simulated) in
        real["points"].as_array().unwrap().iter().zip(simulated["points"].as_array().unwrap())
    {
        assert_eq!(real["messages"], simulated["messages"], "{real:#}");
        assert_eq!(real["messages"]["completed"], 12);
        // Each message is verified, and greetings are not counted.
        assert_eq!(real["verified_messages"], 12);
        assert_eq!(real["end"], "all done");
        assert!(real["packet_hops"].as_u64().unwrap() >= 12 * 7, "the switch counts");
        assert!(real["slowdown"]["p50"].as_f64().unwrap() >= 1.0);
        // Only real hosts share a machine and are in doubt, and only simulated switches count drops before the statistics begin.
        let plain = |key: &&str| !["doubts", "machine", "warmup_drops"].contains(key);
        let (ours, theirs) = (keys(real), keys(simulated));
        let same = ours.into_iter().filter(plain).eq(theirs.into_iter().filter(plain));
        assert!(same, "the same fields");
    }
    for file in ["report.html", "points.csv", "links.csv", "queues.csv", "scenario.resolved.toml"] {
        assert!(place.path().join("real").join(file).exists(), "{file}");
    }
    let again = place.run(&["testbed", "real/scenario.resolved.toml", "--overlay", "--quiet"]);
    assert_eq!(code(&again), 0, "{}", stderr(&again));
}

/// The measured messages in a `messages.csv`: transport, stream, source, destination, bytes and start; and the outcomes.
fn measured(place: &Place, folder: &str) -> Vec<(Vec<String>, String)> {
    let text = std::fs::read_to_string(place.path().join(folder).join("messages.csv")).unwrap();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |name: &str| names.iter().position(|other| *other == name).unwrap();
    let kept = ["point", "transport", "stream", "source", "destination", "bytes", "start_us"];
    let (kept, outcome) = (kept.map(column), column("outcome"));
    let row = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        (kept.iter().map(|at| fields[*at].to_owned()).collect(), fields[outcome].to_owned())
    };
    let mut rows: Vec<(Vec<String>, String)> = lines.map(row).collect();
    rows.sort();
    rows
}

const LOAD: &str = r#"
seed = 11
fabric = { topology = "single-switch", hosts = 3, host_link = "100 Mbps" }
transport = { name = "homa", over = "udp", homa = { tick = "20 ms" } }
workload = { arrivals = "poisson", sizes = "W3", load = 0.3, exchange = "rpc" }
# A machine with too much to do may take long.
measure = { messages = 150, warmup = "20 ms", time_limit = "120 s", messages_csv = true, verify = true }
"#;

#[test]
fn what_is_sent_is_what_the_simulator_sends() {
    let place = Place::new(LOAD);
    for args in [
        &["testbed", "x.toml", "--overlay", "--out", "real", "-q"][..],
        &["run", "x.toml", "--out", "simulated", "-q"],
    ] {
        let output = place.run(args);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    let simulated = measured(&place, "simulated");
    assert_eq!(simulated.len(), 150);
    assert_eq!(measured(&place, "real"), simulated, "sources, destinations, lengths and times");
}

#[test]
fn streams_carry_what_the_simulator_offers_them() {
    let place = Place::new(LOAD);
    let cases = "sweep.cases=[{ transport.name = 'homa', workload.streams_per_pair = 2 }, \
                 { transport.name = 'homa', workload.response = 'none' }, \
                 { transport.name = 'homa', workload.stream = 'unary' }, \
                 { transport.name = 'homa', workload.stream = 'unary', workload.response = 'none' }, \
                 { transport.name = 'tcp' }, \
                 { transport.name = 'tcp', workload.response = 'none' }]";
    let stream = "workload.exchange='stream'";
    for args in [&["testbed", "--overlay", "--out", "real"][..], &["run", "--out", "simulated"]] {
        let args = [args, &["x.toml", "-q", "--set", stream, "--set", cases]].concat();
        let output = place.run(&args);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    let simulated = measured(&place, "simulated");
    assert_eq!(simulated.len(), 6 * 150);
    assert!(simulated.iter().all(|(_, outcome)| outcome == "completed"));
    assert_eq!(measured(&place, "real"), simulated);
    let (real, simulated) = (place.summary("real"), place.summary("simulated"));
    let points = |summary: &Value| summary["points"].as_array().unwrap().clone();
    for (number, (real, simulated)) in points(&real).iter().zip(points(&simulated)).enumerate() {
        assert_eq!(real["end"], "all done");
        // Every byte was compared: of responses too, where there are some.
        let answered = ![1, 3, 5].contains(&number);
        let checked = real["verified_messages"].as_u64().unwrap();
        assert!(checked >= if answered { 300 } else { 150 }, "{real:#}");
        // The load is the same: what is measured ends later at most.
        let goodput = |point: &Value| point["goodput_gbps"].as_f64().unwrap();
        let (here, there) = (goodput(real), goodput(&simulated));
        assert!(here > 0.0 && here < 1.1 * there, "{here} and {there}");
    }
}

/// A capture: the names of its interfaces; by packet its interface, its time in nanoseconds, and its first bytes.
type Captured = (Vec<String>, Vec<(u32, u128, Vec<u8>)>);

fn capture(place: &Place, file: &str) -> Captured {
    let bytes = std::fs::read(place.path().join(file)).unwrap();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            assert!(packet.original_len as usize >= packet.data.len());
            let at = packet.timestamp.as_nanos();
            packets.push((packet.interface_id, at, packet.data.into_owned()));
        }
    }
    assert!(packets.is_sorted_by_key(|(_, at, _)| *at));
    let name = |interface: &InterfaceDescriptionBlock<'_>| {
        let names = interface.options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
            _ => None,
        });
        names.unwrap()
    };
    (reader.interfaces().iter().map(name).collect(), packets)
}

#[test]
fn captures_hold_the_packets_of_the_measured_messages() {
    let place = Place::new(INCAST);
    let cases = "sweep.cases=[{ transport.name = 'homa' }, { transport.name = 'polo' }, \
                 { transport.name = 'tcp' }, { transport.name = 'homa', measure.capture_limit = 7 }]";
    let ports = "measure.capture=['host 2 sends', 'host 0 receives']";
    for args in [&["testbed", "--overlay", "--out", "real"][..], &["run", "--out", "simulated"]] {
        let args = [args, &["x.toml", "-q", "--set", ports, "--set", cases]].concat();
        let output = place.run(&args);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    let file = |folder: &str, point: u32| {
        let (names, packets) = capture(&place, &format!("{folder}/capture-{point}.pcapng"));
        assert_eq!(names.len(), 2);
        (names, packets)
    };
    for point in 0..3 {
        let (names, packets) = file("real", point);
        assert_eq!(names, file("simulated", point).0);
        // By interface, sender and message: the bytes that packets had.
        let mut stored: BTreeMap<(u32, HostId, MessageId), RangeSet> = BTreeMap::new();
        for (interface, _, bytes) in &packets {
            let packet = frame::decode(bytes).unwrap();
            match interface {
                0 => assert_eq!(packet.src, HostId(2)),
                _ => assert_eq!(packet.dst, HostId(0)),
            }
            if let Some(Slice { message, offset, len }) = packet.payload() {
                let (start, len) = (u64::from(offset), u64::from(len));
                let of = stored.entry((*interface, packet.src, message)).or_default();
                of.insert(start..start + len);
            }
        }
        let whole = |of: u32, from: u32| {
            let its = stored.iter().filter(|((interface, src, _), ranges)| {
                (*interface, *src) == (of, HostId(from)) && ranges.contains_range(0..10_000)
            });
            its.count()
        };
        assert_eq!([1, 2, 3].map(|from| whole(1, from)), [4; 3], "point {point}");
        assert_eq!([1, 2, 3].map(|from| whole(0, from)), [0, 4, 0], "point {point}");
        let first = |interface: u32| {
            let of_host_2 = |(its, _, bytes): &&(u32, u128, Vec<u8>)| {
                *its == interface && frame::decode(bytes).unwrap().src == HostId(2)
            };
            packets.iter().find(of_host_2).unwrap().1
        };
        assert!(first(0) < first(1), "a packet crosses its sender's link first");
    }
    assert_eq!((file("real", 3).1.len(), file("simulated", 3).1.len()), (7, 7));
}

#[test]
fn channels_of_a_host_that_crashes_fail_and_new_ones_open() {
    let scenario = r#"
        fabric = { topology = "single-switch", hosts = 3, host_link = "100 Mbps" }
        transport = { name = "homa" }
        workload = { arrivals = "poisson", sizes = "2 KB", load = 0.1, exchange = "stream" }
        faults = [{ kind = "crash", place = "host 1", from = "500 ms", until = "1000 ms" }]
        measure = { messages = "unlimited", time_limit = "2500 ms", messages_csv = true, verify = true }
    "#;
    let place = Place::alone(scenario);
    let cases = "sweep.transport.name=['homa', 'tcp']";
    let output = place.run(&["testbed", "x.toml", "--overlay", "--out", "o", "-q", "--set", cases]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(!stderr(&output).contains("error:"), "{}", stderr(&output));
    let all = measured(&place, "o");
    for transport in ["homa", "tcp"] {
        let of = |from: &str, to: &str, outcome: &str, since: f64, until: f64| {
            let fits = |(row, its): &&(Vec<String>, String)| {
                let start: f64 = row[6].parse().unwrap();
                (&*row[1], &*row[3], &*row[4]) == (transport, from, to)
                    && its == outcome
                    && (since..until).contains(&start)
            };
            all.iter().filter(fits).count()
        };
        assert!(of("0", "1", "completed", 0.0, 400e3) > 10, "{transport}");
        assert!(of("1", "0", "host crashed", 600e3, 950e3) > 10, "{transport}: while it is down");
        assert!(
            of("0", "1", "peer forgot", 400e3, 1200e3) > 10,
            "{transport}: what was sent to it"
        );
        assert!(of("0", "1", "completed", 1500e3, 2400e3) > 10, "{transport}: on new channels");
        assert!(of("1", "0", "completed", 1500e3, 2400e3) > 10, "{transport}: from its next life");
        assert!(of("0", "2", "completed", 600e3, 950e3) > 10, "{transport}: between the others");
    }
}

#[test]
fn hosts_pause_crash_and_come_back() {
    let scenario = r#"
        fabric = { topology = "single-switch", hosts = 3, host_link = "100 Mbps" }
        transport = { name = "homa" }
        workload = { arrivals = "poisson", sizes = "2 KB", load = 0.1, exchange = "rpc" }
        faults = [{ kind = "crash", place = "host 1", from = "500 ms", until = "1000 ms" },
                  { kind = "pause", place = "host 2", from = "1300 ms", until = "1400 ms" }]
        measure = { messages = "unlimited", time_limit = "2500 ms", messages_csv = true }
    "#;
    let place = Place::alone(scenario);
    let output = place.run(&["testbed", "x.toml", "--overlay", "--out", "o", "-q"]);
    // Messages fail, which the exit code shows; the testbed itself does not fail.
    assert_eq!(code(&output), 1);
    assert!(!stderr(&output).contains("error:"), "{}", stderr(&output));
    let text = std::fs::read_to_string(place.path().join("o/messages.csv")).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split(',').collect()).collect();
    let of = |host: &str, outcome: &str, from: f64, until: f64| {
        let fits = |row: &&Vec<&str>| {
            let start: f64 = row[7].parse().unwrap();
            row[4] == host && row[11] == outcome && start >= from && start < until
        };
        rows.iter().filter(fits).count()
    };
    assert!(of("1", "completed", 0.0, 490e3) > 10);
    assert!(of("1", "host crashed", 600e3, 950e3) > 10, "what starts while it is down");
    assert_eq!(of("1", "completed", 700e3, 950e3), 0);
    assert!(of("1", "completed", 1500e3, 2400e3) > 10, "its next life");
    assert!(of("0", "completed", 1500e3, 2400e3) > 10);
    assert!(of("2", "completed", 1500e3, 2400e3) > 10, "it goes on after the pause");
}

#[test]
fn a_killed_part_is_named_and_nothing_stays() {
    let place = Place::new(ENDLESS);
    for (part, name) in [(0, "the switch"), (2, "host 1")] {
        let mut child = place.start(&["testbed", "x.toml", "--overlay", "--out", "o"]);
        let (path, _, parts) = under_load(&child);
        signal(parts[part], "-KILL");
        wait(&mut child);
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 1);
        let message = stderr(&output);
        let process = parts[part];
        let expected = format!("{name} (process {process}) was killed by signal 9");
        assert!(message.contains(&expected), "{message}");
        assert!(parts.iter().all(|part| !is_alive(*part)));
        assert!(!path.exists());
        assert!(!place.path().join("o/summary.json").exists());
    }
}

#[test]
fn parts_die_with_their_coordinator() {
    let place = Place::new(ENDLESS);
    let mut child = place.start(&["testbed", "x.toml", "--overlay"]);
    let (path, _, parts) = under_load(&child);
    // This host stops reacting to anything.
    signal(parts[3], "-STOP");
    child.kill().unwrap();
    child.wait().unwrap();
    until("all parts are gone", || parts.iter().all(|part| !is_alive(*part)));
    drop(place);
    let place = Place::new(INCAST);
    let output = place.run(&["testbed", "x.toml", "--overlay", "-q"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(!path.exists(), "the next run, if none before, has removed it");
}

#[test]
fn ctrl_c_keeps_what_is_finished() {
    let sweep = "sweep.measure.time_limit=['100 ms', '300 s']";
    let place = Place::new(ENDLESS);
    let args = ["testbed", "x.toml", "--overlay", "--out", "o", "--set", sweep];
    // As a job of a terminal has, so that a signal reaches all of its processes.
    let mut command = place.command(&args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap();
    let mut found = None;
    let (first, _, _) = under_load(&child);
    until("the second point", || {
        found = entry_of(child.id())
            .filter(|(path, entry)| *path != first && processes_of(entry).len() == 4);
        found.is_some()
    });
    let group = format!("-{}", child.id());
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    wait(&mut child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 130, "{}", stderr(&output));
    assert!(!stderr(&output).contains("error:"), "{}", stderr(&output));
    let summary = place.summary("o");
    assert_eq!(summary["interrupted"], true);
    assert!(summary["failures"].as_array().is_none_or(Vec::is_empty), "{summary:#}");
    assert_eq!(summary["points"].as_array().unwrap().len(), 1);
    let (path, entry) = found.unwrap();
    assert!(!path.exists() && processes_of(&entry).iter().all(|part| !is_alive(*part)));
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_made() {
    let place = Place::new(INCAST);
    let refused = |sets: &[&str], says: &str| {
        let mut args = vec!["testbed", "x.toml", "--overlay", "--out", "o"];
        args.extend(sets.iter().flat_map(|set| ["--set", set]));
        let output = place.run(&args);
        let message = words(&stderr(&output));
        assert!(message.contains(says), "{sets:?}: {message}");
        assert_eq!(code(&output), 2);
        assert!(!place.path().join("o").exists());
    };
    let unary = ["workload.exchange='stream'", "workload.stream='unary'"];
    let longest = ["transport={ name = 'homa', profile = 'linux' }", "workload.sizes='1 MB'"];
    refused(&[unary, longest].concat(), "28 bytes more here");
    refused(&["workload.application.per_rpc='1 us'"], "real applications take the time they take");
    refused(&["transport={ name = 'tcp', congestion = 'bbr' }"], "BBR is the kernel's");
    refused(&["fabric.hosts=65"], "65 hosts are 65 processes: the testbed takes 64 at most");
    refused(&["fabric.host_link='100 Gbps'"], "packets a second on the fabric's links");
    refused(&["workload.sizes='1 GB'"], "the testbed takes 134217728 at most");
    refused(&["transport.name='ndp'"], "NDP needs switches that trim");
    refused(&["testbed.tpc='kernel'"], "unknown key `tpc`");
    let background =
        "background=[{ transport = { name = 'tcp' }, arrivals = 'permutation', sizes = '1 KB' }]";
    refused(&[background], "in the overlay all streams must use the same transport");
    let other =
        place.run(&["run", "x.toml", "--set", "transport={ name = 'tcp', congestion = 'bbr' }"]);
    assert_eq!(code(&other), 2);
    assert!(words(&stderr(&other)).contains("only the kernel has BBR"), "{}", stderr(&other));
    if !may_make_namespaces() {
        let output = place.run(&["testbed", "x.toml"]);
        assert_eq!(code(&output), 2);
        assert!(words(&stderr(&output)).contains("--overlay"), "{}", stderr(&output));
    }
}

#[test]
fn namespaces_carry_kernel_tcp_beside_homa_and_are_gone_afterwards() {
    rackweave_testing::needs!(NetAdmin);
    let place = Place::new(INCAST);
    let cases = "sweep.cases=[{ transport.name = 'homa' }, \
                 { transport = { name = 'homa', label = 'fair' }, testbed.nic = 'fair' }, \
                 { transport = { name = 'tcp', congestion = 'bbr' } }]";
    let background =
        "background=[{ transport = { name = 'tcp' }, arrivals = 'closed-loop', sizes = '3 KB' }]";
    let args = ["testbed", "x.toml", "--set", cases, "--set", background, "--out", "o", "-q"];
    let output = place.run(&args);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let summary = place.summary("o");
    for point in summary["points"].as_array().unwrap() {
        assert_eq!(point["messages"]["completed"], 12, "{point:#}");
        assert!(point["background"][0]["messages"]["completed"].as_u64().unwrap() > 0);
    }
}

#[test]
fn namespaces_carry_streams_over_kernel_tcp_beside_homa() {
    rackweave_testing::needs!(NetAdmin);
    let place = Place::new(LOAD);
    let sets = [
        "transport={ name = 'tcp' }",
        "workload.exchange='stream'",
        "background=[{ transport = { name = 'homa' }, arrivals = 'closed-loop', sizes = '3 KB', \
         exchange = 'stream', response = 'none' }]",
        "measure.capture=['host 1 sends']",
    ];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let args: Vec<&str> =
        ["testbed", "x.toml", "--out", "o", "-q"].into_iter().chain(sets).collect();
    let output = place.run(&args);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let point = &place.summary("o")["points"][0];
    assert_eq!(point["messages"]["completed"], 150, "{point:#}");
    assert!(point["background"][0]["messages"]["completed"].as_u64().unwrap() > 0, "{point:#}");
    let measured: u64 = measured(&place, "o")
        .iter()
        .filter(|(row, _)| row[2] == "0" && row[3] == "1")
        .map(|(row, _)| row[5].parse::<u64>().unwrap())
        .sum();
    let (names, packets) = capture(&place, "o/capture-0.pcapng");
    assert_eq!(names.len(), 1);
    // Segments of the kernel's, and Homa's packets as the simulator writes them.
    let (mut segments, mut homa) = (0, 0);
    const ICMP: u8 = 1;
    const TCP: u8 = 6;
    for (_, _, bytes) in &packets {
        let ip = &bytes[14..];
        assert_eq!(ip[12..16], [10, 0, 0, 1]);
        if ip[9] == ICMP {
            // A port of a process that has ended is unreachable.
        } else if ip[9] == TCP {
            let header = u64::from(ip[0] & 15) * 4 + u64::from(ip[32] >> 4) * 4;
            segments += u64::from(u16::from_be_bytes([ip[2], ip[3]])) - header;
        } else {
            homa += u64::from(frame::decode(bytes).unwrap().payload().is_some());
        }
    }
    assert!(measured > 10_000 && segments >= measured, "{segments} of {measured}");
    assert!(homa > 10, "{homa}");
    let transport = "transport={ name = 'tcp' }";
    let workload = "workload={ arrivals = 'closed-loop', sizes = '1 KB', exchange = 'stream', response = 'none' }";
    let output = place.run(&["testbed", "x.toml", "--set", transport, "--set", workload]);
    assert_eq!(code(&output), 2);
    let said = words(&stderr(&output));
    assert!(said.contains("a sender does not learn when a one-way message has arrived"), "{said}");
}

#[test]
fn namespaces_of_a_killed_run_are_removed_by_the_next() {
    rackweave_testing::needs!(NetAdmin);
    let place = Place::new(ENDLESS);
    let mut child = place.start(&["testbed", "x.toml"]);
    let (path, entry, parts) = under_load(&child);
    assert_eq!(namespaces(&entry).len(), 4);
    child.kill().unwrap();
    child.wait().unwrap();
    until("all parts are gone", || parts.iter().all(|part| !is_alive(*part)));
    let mut next = place.start(&["testbed", "x.toml"]);
    let (next_path, next_entry, _) = under_load(&next);
    assert!(!path.exists() && namespaces(&entry).is_empty());
    signal(next.id(), "-INT");
    wait(&mut next);
    assert!(!next_path.exists() && namespaces(&next_entry).is_empty());
}

const CAST: &str = r#"
fabric = { topology = "single-switch", hosts = 5, host_link = "100 Mbps" }
workload.cast = { receivers = 4, files = "300 KB" }
transport = { name = "orca", orca = { spread = "multicast", patience = "60 s" } }
measure = { time_limit = "120 s" }
"#;

#[test]
fn files_reach_all_receivers_over_every_scheme() {
    rackweave_testing::needs!(NetAdmin);
    let place = Place::new(CAST);
    let cases = "sweep.cases=[\
                 { transport.name = 'orca', workload.cast.files = ['300 KB', '1 B', '70 KB'] }, \
                 { transport.name = 'orca', transport.orca.spread = 'unicast' }, \
                 { transport.name = 'orca', transport.orca.spread = 'relay', workload.cast.receivers = [1, 4] }, \
                 { transport.name = 'cast-tcp' }, \
                 { transport.name = 'cast-chain' }]";
    let output = place.run(&["testbed", "x.toml", "--set", cases, "--out", "real", "-q"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let points = place.summary("real")["points"].clone();
    let points = points.as_array().unwrap();
    for (point, (files, receivers, bytes)) in points.iter().zip([
        (3, 4, 370_001.0),
        (1, 4, 300_000.0),
        (1, 2, 300_000.0),
        (1, 4, 300_000.0),
        (1, 4, 300_000.0),
    ]) {
        let cast = &point["cast"];
        assert_eq!(point["end"], "all done", "{point:#}");
        assert_eq!(
            (&cast["missing_bytes"], &cast["wrong_bytes"]),
            (&0.into(), &0.into()),
            "{point:#}"
        );
        assert_eq!(point["messages"]["completed"], files * receivers, "{point:#}");
        let took = cast["execution_us"].as_f64().unwrap();
        for receiver in cast["receivers"].as_array().unwrap() {
            assert_eq!(receiver["files"], files);
            assert!(receiver["completed_us"].as_f64().unwrap() > 0.0);
        }
        // The transfer is no faster than the link, apart from the burst that the token bucket admits.
        assert!(took >= (bytes - 20_000.0) * 8.0 / 100.0, "{took}");
    }
    // The number of retransmissions depends on the machine's load: only the bytes that must cross the link once are
    // certain.
    let copies = |nth: usize| points[nth]["cast"]["copies"].as_f64().unwrap();
    assert!(copies(0) >= 1.0 && copies(1) >= 4.0 && copies(3) >= 4.0 && copies(4) >= 1.0);
    assert!(copies(4) < copies(3), "a chain's sender sends one copy");
    let refused = |sets: &[&str], says: &str| {
        let mut args = vec!["testbed", "x.toml", "--out", "o"];
        args.extend(sets.iter().flat_map(|set| ["--set", set]));
        let output = place.run(&args);
        let message = words(&stderr(&output));
        assert!(message.contains(says), "{sets:?}: {message}");
        assert_eq!(code(&output), 2);
    };
    let labels = "transport={ name = 'orca', spread = 'labels' }";
    refused(&[labels, "workload.cast.receivers=3"], "the testbed's hosts have no labels");
    refused(&["transport.name='cast-unicast'"], "the testbed has no cast-unicast");
    refused(&["workload.cast.cpu.copy_rate='8 Gbps'"], "[workload.cast.cpu] is simulated");
    refused(&["workload.cast.files='1 GB'"], "the testbed takes 134217728 at most");
    refused(&["workload.cast.processes=2"], "one port and one process");
    refused(&["measure.messages=2"], "`messages` has no meaning with [workload.cast]");
    let beside =
        "background=[{ transport = { name = 'homa' }, arrivals = 'permutation', sizes = '1 KB' }]";
    refused(&[beside], "no [[background]] streams with files to many");
}

/// The same casts in both worlds: by the shared definitions they take what the links need.
#[test]
fn casts_take_as_long_as_in_the_simulator() {
    rackweave_testing::needs!(NetAdmin);
    let place = Place::alone(CAST);
    let sets = "sweep.cases=[\
                { transport.name = 'orca', workload.cast.files = ['600 KB', '300 KB', '600 KB'] }, \
                { transport.name = 'cast-chain', workload.cast.files = '1.5 MB', \
                  transport.cast-chain.handshake = true }]";
    let mut args = vec!["run", "x.toml", "-q", "--set", "workload.cast.receivers=2", "--set", sets];
    args.extend(["--out", "simulated"]);
    assert_eq!(code(&place.run(&args)), 0);
    (args[0], *args.last_mut().unwrap()) = ("testbed", "real");
    let output = place.run(&args);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let (simulated, real) = (place.summary("simulated"), place.summary("real"));
    for point in 0..2 {
        let (simulated, real) = (&simulated["points"][point], &real["points"][point]);
        for exact in ["files", "total_bytes", "missing_bytes", "wrong_bytes", "lost"] {
            assert_eq!(simulated["cast"][exact], real["cast"][exact], "{exact}: {real:#}");
        }
        assert_eq!(simulated["messages"], real["messages"], "{real:#}");
        // A busy machine makes it slower; the links do not let it be much faster.
        for (time, most) in [("execution_us", 3.0), ("wait_us", 6.0)] {
            let mean = |world: &Value| {
                let time = &world["cast"][time];
                time.as_f64().or_else(|| time["mean"].as_f64())
            };
            let (Some(simulated), Some(real)) = (mean(simulated), mean(real)) else { continue };
            let ratio = real / simulated;
            assert!((0.9..most).contains(&ratio), "{time}: {simulated} {real}");
        }
        let slowdown = |world: &Value| world["slowdown"]["p50"].as_f64().unwrap();
        assert!(slowdown(simulated) >= 1.0 && slowdown(real) >= 0.9);
    }
}

#[test]
fn the_overlay_carries_no_files_to_many() {
    let place = Place::new(CAST);
    let output = place.run(&["testbed", "x.toml", "--overlay", "--out", "o"]);
    assert_eq!(code(&output), 2);
    let message = words(&stderr(&output));
    assert!(message.contains("the overlay carries no files to many"), "{message}");
}
