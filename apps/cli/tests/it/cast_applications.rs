//! Applications that receive through `rackweave cast agent`: they and their senders learn what they would learn without it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rackweave_cast::control::stream::read_stream;
use serde_json::Value;

use crate::casts::{content, json, rackweave};
use crate::common::until;

/// A running agent.
struct Agent {
    child: Child,
    address: String,
    socket: PathBuf,
}

impl Agent {
    fn start(folder: &Path) -> Self {
        let socket = folder.join("socket");
        let mut command = rackweave(&["agent", "--listen", "127.0.0.1:0", "--socket"]);
        let mut child = command.arg(&socket).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("agent at ").unwrap().split(',').next().unwrap();
        Self { address: address.to_owned(), child, socket }
    }

    /// Starts a receiver that takes one stream through the agent, and waits until the agent knows of it.
    fn receiver(&self, place: &Path, args: &[&str]) -> Child {
        let mut command = rackweave(&["receive", "--once", "--json", "--dir"]);
        command.arg(place).arg("--socket").arg(&self.socket).args(args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        self.until_waiting(1);
        child
    }

    fn until_waiting(&self, count: u64) {
        until("an application waits", || self.sessions()["waiting"] == count);
    }

    fn sessions(&self) -> Value {
        let mut command = rackweave(&["sessions", "--json", "--socket"]);
        json(&command.arg(&self.socket).output().unwrap())
    }

    /// Connects as an application that reads the content of one file.
    fn raw(&self) -> UnixStream {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.write_all(b"{\"receive\": {}}\n").unwrap();
        self.until_waiting(1);
        stream
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Killing fails if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(file: &Path, to: &str, args: &[&str]) -> Command {
    let mut command = rackweave(&["send", "--to", to]);
    command.arg(file).args(args);
    command
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

/// A file that differs and is longer than a window makes its receiver begin the stream again.
#[test]
fn files_that_differ_are_replaced_through_an_agent() {
    const LEN: usize = 9 << 20;
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(folder.path());
    let [from, place] = ["from", "place"].map(|name| folder.path().join(name));
    for (at, change) in [(&from, 0), (&place, 1)] {
        std::fs::create_dir_all(at.join("d")).unwrap();
        for name in ["a", "b"] {
            let mut bytes = content(LEN);
            bytes[5] ^= change;
            std::fs::write(at.join("d").join(name), bytes).unwrap();
        }
    }
    let receiver = agent.receiver(&place, &["--overwrite"]);
    let output = send(&from.join("d"), &agent.address, &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let received = receiver.wait_with_output().unwrap();
    assert_eq!(received.status.code(), Some(0), "{received:?}");
    let document = json(&received);
    assert_eq!(document["state"], "received", "{document:#}");
    assert_eq!(document["files"].as_array().unwrap().len(), 2, "{document:#}");
    for name in ["a", "b"] {
        assert!(std::fs::read(place.join("d").join(name)).unwrap() == content(LEN), "{name}");
    }
    // Without --overwrite they are refused, as without an agent.
    std::fs::write(place.join("d/a"), b"x").unwrap();
    let receiver = agent.receiver(&place, &[]);
    let output = send(&from.join("d"), &agent.address, &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(message(&output).contains("the receiver needs --overwrite"), "{output:?}");
    let received = receiver.wait_with_output().unwrap();
    assert_eq!(received.status.code(), Some(1), "{received:?}");
    let error = json(&received)["error"].as_str().unwrap().to_owned();
    assert!(error.contains("--overwrite"), "{error}");
}

/// A sender that is killed and started again finds the application that has a part of its files, whether its silence has been noticed or not.
#[test]
fn an_application_takes_a_sender_that_is_killed_and_started_again() {
    for is_noticed in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let agent = Agent::start(folder.path());
        let (file, place) = (folder.path().join("big"), folder.path().join("place"));
        std::fs::write(&file, content(40_000_000)).unwrap();
        std::fs::create_dir(&place).unwrap();
        let receiver = agent.receiver(&place, &[]);
        let mut first = send(&file, &agent.address, &["--rate", "200 Mbps"]);
        let mut first = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("a part is there", || {
            place.join("big.part").metadata().is_ok_and(|meta| meta.len() > 3_000_000)
        });
        first.kill().unwrap();
        first.wait().unwrap();
        if is_noticed {
            agent.until_waiting(1);
        }
        let output = send(&file, &agent.address, &["--json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(json(&output)["receivers"][0]["resumed_at"].as_u64().unwrap() > 2_000_000);
        let received = receiver.wait_with_output().unwrap();
        assert_eq!(received.status.code(), Some(0), "{received:?}");
        assert!(std::fs::read(place.join("big")).unwrap() == content(40_000_000));
    }
}

/// The sender learns it, instead of waiting on.
#[test]
#[expect(clippy::disallowed_methods, reason = "processes are timed")]
fn an_application_that_is_stopped_is_named_to_the_sender() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(folder.path());
    let (file, place) = (folder.path().join("file"), folder.path().join("place"));
    std::fs::write(&file, content(100_000)).unwrap();
    std::fs::create_dir(&place).unwrap();
    let mut receiver = agent.receiver(&place, &[]);
    signal(&receiver, "STOP");
    let began = Instant::now();
    let output = send(&file, &agent.address, &["--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(began.elapsed() < Duration::from_secs(90), "{:?}", began.elapsed());
    assert!(message(&output).contains("the application that takes the files"), "{output:?}");
    assert_eq!(json(&output)["receivers"][0]["state"], "unresponsive");
    receiver.kill().unwrap();
    receiver.wait().unwrap();
}

/// An application that reads bytes knows whether they are all.
#[test]
fn an_application_knows_whether_its_stream_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(folder.path());
    let file = folder.path().join("big");
    std::fs::write(&file, content(20_000_000)).unwrap();
    let reads = |stream: UnixStream| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            (read_stream(&stream, &mut bytes).unwrap(), bytes)
        })
    };
    let reader = reads(agent.raw());
    let output = send(&file, &agent.address, &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (result, bytes) = reader.join().unwrap();
    assert_eq!(result, Ok(20_000_000));
    assert!(bytes == content(20_000_000));
    // The sender is interrupted, or killed, in the middle.
    for (name, why) in [("INT", "the sender ended the transfer"), ("KILL", "stopped responding")] {
        let reader = reads(agent.raw());
        let mut sender = send(&file, &agent.address, &["--rate", "20 Mbps"]);
        let mut sender = sender.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("a part has arrived", || {
            agent.sessions()["incoming"][0]["bytes"].as_u64() > Some(100_000)
        });
        signal(&sender, name);
        sender.wait().unwrap();
        let (result, bytes) = reader.join().unwrap();
        assert!(result.as_ref().is_err_and(|it| it.contains(why)), "{name}: {result:?}");
        assert!(content(20_000_000).starts_with(&bytes) && bytes.len() < 20_000_000, "{name}");
    }
}
