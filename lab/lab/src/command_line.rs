//! Commands that repeat a run, as reports print them.

use std::path::Path;

use rackweave_scenario::transport::plugins;

/// Returns the command that gives the results of a scenario with these `KEY=VALUE` arguments of `--set`, and with a seed in place of the
/// scenario's own.
#[must_use]
pub fn run(scenario: &str, sets: &[String], host: Option<&str>, seed: Option<u64>) -> String {
    let mut parts = vec![quoted(&program()), "run".into(), quoted(scenario)];
    for set in sets {
        parts.extend(["--set".into(), quoted(set)]);
    }
    if let Some(host) = host {
        parts.extend(["--host".into(), quoted(host)]);
    }
    parts.extend(seed.iter().flat_map(|seed| ["--seed".into(), seed.to_string()]));
    parts.join(" ")
}

/// Returns the command that shows the runs of `rackweave run` on a page; `None` for those of other commands.
#[must_use]
pub(crate) fn explore(command: &str) -> Option<String> {
    let (program, rest) = command.split_once(" run ")?;
    (program == self::program()).then(|| format!("{program} explore {rest}"))
}

/// The command with the transports of this process: `rackweave`, unless it has some of other crates.
fn program() -> String {
    let own = (!plugins().is_empty()).then(std::env::current_exe).and_then(Result::ok);
    let name = own.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy());
    name.map_or_else(|| "rackweave".to_owned(), |name| name.into_owned())
}

/// Quotes a text for a shell if necessary.
#[must_use]
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}
