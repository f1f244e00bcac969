//! Helpers for tests of processes.
#![allow(dead_code, reason = "each test uses some of it")]

pub(crate) mod racks;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The limit of every wait; a loaded machine may be slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Returns the events that a command has printed, one line of JSON each.
pub(crate) fn events(text: &str) -> Vec<Value> {
    let event = |line: &str| {
        let event: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(event["event"].is_string() && event["time_s"].is_f64(), "{line}");
        event
    };
    text.lines().map(event).collect()
}

/// Returns the result that a command has printed as its only event.
pub(crate) fn result(text: &str) -> Value {
    let [result] = <[Value; 1]>::try_from(events(text)).expect("one line of JSON");
    result
}

#[expect(clippy::disallowed_methods, reason = "a test waits for processes")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn nap() {
    wait_ms(20);
}

#[expect(clippy::disallowed_methods, reason = "a test waits for processes")]
pub(crate) fn wait_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = now();
    while !is() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        nap();
    }
}

/// Returns the value of a key in a process's `/proc/PID/status`.
pub(crate) fn status_of(pid: u32, key: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned()))
}

/// Returns the processor time that a process has used. It measures progress independently of the machine's load.
pub(crate) fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok());
    // Linux counts in hundredths of a second.
    Duration::from_millis(ticks.sum::<u64>() * 10)
}

/// Sends SIGINT once the process has installed its handler and has used this much processor time.
pub(crate) fn interrupt_after(child: &Child, work: Duration) {
    const SIGINT: u32 = 2;
    let pid = child.id();
    let listens = || {
        let caught = status_of(pid, "SigCgt:").unwrap_or_default();
        u64::from_str_radix(&caught, 16).unwrap_or(0) >> (SIGINT - 1) & 1 == 1
    };
    until("it works and listens for Ctrl-C", || listens() && processor_time(pid) >= work);
    assert!(Command::new("kill").args(["-INT", &pid.to_string()]).status().unwrap().success());
}
