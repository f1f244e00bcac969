//! Helpers that tests of `rackweave cast` share.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;

pub(crate) fn rackweave(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackweave"));
    command.arg("cast").args(args).stdin(Stdio::null());
    command
}

/// A running receiver, and the address that it printed.
pub(crate) struct Receiver {
    pub(crate) child: Child,
    pub(crate) address: String,
    pub(crate) stderr: BufReader<ChildStderr>,
}

impl Receiver {
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut command = rackweave(&["receive", "--listen", "127.0.0.1:0"]);
        command.args(args);
        Self::spawn(command)
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut this = Self { child, address: String::new(), stderr };
        while this.address.is_empty() {
            let mut line = String::new();
            assert!(this.stderr.read_line(&mut line).unwrap() > 0, "it has ended");
            if let Some(address) = line.trim().strip_prefix("receiving at ") {
                this.address = address.to_owned();
            }
        }
        this
    }

    pub(crate) fn into(folder: &Path, args: &[&str]) -> Self {
        let mut all = vec!["--dir", folder.to_str().unwrap()];
        all.extend(args);
        Self::start(&all)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // Killing fails if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Writes a file with this modification time, in seconds since 1970.
pub(crate) fn write(path: &Path, bytes: &[u8], modified: u64) {
    std::fs::write(path, bytes).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(modified)).unwrap();
}

/// Makes a named pipe.
pub(crate) fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Sends something, which must succeed; returns the result.
pub(crate) fn sent(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

pub(crate) fn link_bytes(document: &Value) -> u64 {
    document["link_bytes"].as_u64().unwrap()
}

pub(crate) fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 11) as u8 ^ (i / 90_000) as u8).collect()
}
