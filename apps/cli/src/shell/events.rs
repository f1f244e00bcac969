//! The machine output of commands for hosts: one JSON object a line, each with `event` and `time_s`.
//!
//! A command that prints only a result prints one line whose event is `result`.

use std::sync::LazyLock;

use rackweave_linux::Clock;
use serde_json::{Value, json};

use super::{json_text, print};

/// The start of the command, from which `time_s` counts.
static START: LazyLock<Clock> = LazyLock::new(Clock::start);

/// Starts to count the time.
pub(crate) fn start() {
    LazyLock::force(&START);
}

/// Seconds since the start of the command, to a millisecond.
pub(crate) fn seconds() -> f64 {
    START.now().as_ms() as f64 / 1e3
}

/// One line: the event, the time and these fields, with control characters of names escaped.
pub(crate) fn line(event: &str, mut fields: Value) -> String {
    let mut line = json!({ "event": event, "time_s": seconds() });
    if let (Some(line), Some(fields)) = (line.as_object_mut(), fields.as_object_mut()) {
        line.append(fields);
    }
    json_text(&line) + "\n"
}

/// Prints a line, and returns the exit code of that.
///
/// # Errors
/// None ([`print()`]).
pub(crate) fn emit(event: &str, fields: Value) -> miette::Result<u8> {
    print(&line(event, fields))
}
