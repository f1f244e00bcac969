//! `rackweave image serve` and `fetch` as operators use them, on addresses of this machine: what the commands print against what is on
//! the disk, also when processes die, return, or lie.

mod faults;
mod frisbee;
mod hostile;
mod kernel;
mod multicast;
mod status;
mod usage;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rackweave_testing::free_ports;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{PATIENCE, nap, until};

const COMMAND: &str = env!("CARGO_BIN_EXE_rackweave");
const MIB: usize = 1 << 20;
const SERVER: &str = "127.0.0.1";

/// A folder with images, a port of its own, and the next one, which a session of multicast has by default.
pub(super) struct Place {
    folder: TempDir,
    port: u16,
}

impl Place {
    /// With an image `golden` of a disk that no compression shortens, with this many chunks of 64 KiB.
    pub(super) fn new(chunks: usize) -> Self {
        let this = Self { folder: tempfile::tempdir().unwrap(), port: free_ports(2) };
        this.write_disk("disk", chunks * (MIB / 16), 1);
        this.pack("disk", "golden.rwi");
        this
    }

    pub(super) fn write_disk(&self, name: &str, bytes: usize, seed: u64) {
        let mut content = vec![0; bytes];
        let mut word = seed;
        for piece in content.chunks_mut(8) {
            word = word
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            piece.copy_from_slice(&(word ^ word >> 29).to_le_bytes()[..piece.len()]);
        }
        fs::write(self.path(name), content).unwrap();
    }

    fn pack(&self, disk: &str, image: &str) {
        let arguments = ["--name", "golden", "--chunk-size", "64KiB", "--overwrite", "-q"];
        let output = self
            .command(&[&["pack", disk, "--to", image][..], &arguments].concat())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(COMMAND);
        command.arg("image").args(arguments).current_dir(self.folder.path());
        command.stdin(Stdio::null());
        command
    }

    /// Starts a server, and waits until it can be reached.
    pub(super) fn serve(&self, more: &[&str]) -> Process {
        let listen = format!("{SERVER}:{}", self.port);
        let arguments = ["serve", "golden.rwi", "--listen", &listen, "--json"];
        // The page has one port by default, and servers of tests run at the same time.
        let status: &[&str] = if more.contains(&"--status") { &[] } else { &["--status", "none"] };
        let mut server = Process::start(self.command(&[&arguments, more, status].concat()));
        server.event("listening");
        server
    }

    fn fetch_command(&self, client: u8, more: &[&str]) -> Command {
        self.fetch_command_to(client, &format!("copy{client}"), more)
    }

    fn fetch_command_to(&self, client: u8, to: &str, more: &[&str]) -> Command {
        let (from, bind) = (format!("{SERVER}:{}", self.port), format!("127.0.0.{client}"));
        let arguments = ["fetch", "golden", "--from", &from, "--bind", &bind, "--to", to, "--json"];
        self.command(&[&arguments, more].concat())
    }

    /// Starts the client at 127.0.0.`client`, which writes `copyCLIENT`.
    pub(super) fn fetch(&self, client: u8, more: &[&str]) -> Process {
        Process::start(self.fetch_command(client, more))
    }

    /// As [`Place::fetch`], to another path.
    pub(super) fn fetch_to(&self, client: u8, to: &str) -> Process {
        Process::start(self.fetch_command_to(client, to, &[]))
    }

    /// Runs a client to its end.
    fn fetched(&self, client: u8, more: &[&str]) -> Output {
        self.fetch_command(client, more).output().unwrap()
    }

    pub(super) fn is_complete(&self, client: u8, disk: &str) -> bool {
        let (copy, disk) = (self.path(&format!("copy{client}")), self.path(disk));
        copy.exists() && fs::read(copy).unwrap() == fs::read(disk).unwrap()
    }

    /// Whether what exists of a client's file is complete, or has another name.
    pub(super) fn is_clean(&self, client: u8) -> bool {
        !self.path(&format!("copy{client}")).exists() || self.is_complete(client, "disk")
    }
}

/// Reads a process's output on a thread of its own, line by line.
fn lines_of(output: impl Read + Send + 'static) -> Receiver<String> {
    let (send, lines) = channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.for_each(|line| drop(send.send(line)));
    });
    lines
}

/// A running command whose JSON events are read. It is killed when it is dropped.
pub(super) struct Process {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
    pub(super) events: Vec<Value>,
}

impl Process {
    pub(super) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(child.stdout.take().unwrap());
        let errors = lines_of(child.stderr.take().unwrap());
        Self { child, lines, errors, events: Vec::new() }
    }

    /// Returns what the process has written to its standard error since the last call.
    fn errors(&self) -> String {
        self.errors.try_iter().collect::<Vec<_>>().join("\n")
    }

    fn read(&mut self) {
        while let Ok(line) = self.lines.try_recv() {
            self.events.push(serde_json::from_str(&line).unwrap());
        }
    }

    pub(super) fn found(&mut self, name: &str) -> Option<Value> {
        self.read();
        self.events.iter().find(|event| event["event"] == name).cloned()
    }

    /// Waits for an event.
    pub(super) fn event(&mut self, name: &str) -> Value {
        let mut found = None;
        until(name, || {
            found = self.found(name);
            found.is_some() || self.child.try_wait().unwrap().is_some()
        });
        // What it has printed before it ended.
        nap();
        found
            .or_else(|| self.found(name))
            .unwrap_or_else(|| panic!("{name}: {:?}\n{}", self.events, self.errors()))
    }

    pub(super) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Waits for the end, and returns the exit code.
    pub(super) fn end(&mut self) -> i32 {
        let mut code = None;
        until("the process ends", || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        // Its output is read to the end.
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.events.push(serde_json::from_str(&line).unwrap());
        }
        let code = code.unwrap().code().unwrap_or(-1);
        if code != 0 {
            // Shown as well as the assertion that this code may fail.
            eprintln!("exit code {code}: {}", self.errors());
        }
        code
    }

    /// Ends a server with Ctrl-C, and returns what it showed in the end.
    pub(super) fn interrupted(mut self) -> Value {
        self.signal("-INT");
        self.end();
        self.events.pop().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client's progress, as its server shows it in the events of statuses.
fn chunks(event: &Value, field: &str) -> u64 {
    event[field].as_u64().unwrap_or_else(|| panic!("{field} in {event}"))
}

#[test]
fn an_image_is_sent_about_once_and_clients_get_the_rest_from_each_other() {
    let place = Place::new(256);
    let server = place.serve(&["--expect", "4"]);
    let mut clients: Vec<Process> = (2..6).map(|client| place.fetch(client, &[])).collect();
    for client in &mut clients {
        assert_eq!(client.end(), 0, "{:?}", client.events);
        let written = client.found("written").unwrap();
        assert_eq!((chunks(&written, "fetched"), chunks(&written, "kept")), (256, 0));
    }
    assert!((2..6).all(|client| place.is_complete(client, "disk")));
    let ended = server.interrupted();
    let sent = chunks(&ended, "chunks_sent");
    // A request that is repeated on a busy machine is served again: 539 chunks were sent once, with 17 tasks waiting for two
    // processors. Clients that got nothing from each other would take 1024.
    assert!((256..=768).contains(&sent), "{sent} chunks for 4 clients with 256 each");
    let others: u64 = clients
        .iter()
        .flat_map(|client| client.events.iter().find(|it| it["event"] == "written"))
        .flat_map(|written| written["from"].as_object().unwrap().clone())
        .filter(|(address, _)| address != SERVER)
        .map(|(_, chunks)| chunks.as_u64().unwrap())
        .sum();
    assert!(others >= 4 * 256 - sent, "{others} chunks from other clients, {sent} by the server");
    let phases: Vec<_> =
        ended["clients"].as_array().unwrap().iter().map(|it| &it["phase"]).collect();
    assert_eq!(phases, ["done"; 4]);
}

#[test]
fn a_client_that_lingers_serves_one_that_comes_later() {
    let place = Place::new(64);
    let server = place.serve(&[]);
    // With so little memory, chunks are read back from the target.
    let mut first = place.fetch(2, &["--linger", "600 s", "--memory", "1 KiB"]);
    first.event("written");
    let mut second = place.fetch(3, &[]);
    assert_eq!(second.end(), 0);
    let from = &second.found("written").unwrap()["from"];
    assert_eq!(from["127.0.0.2"], 64, "{from}");
    first.signal("-INT");
    assert_eq!(first.end(), 0, "every byte is there");
    assert_eq!(chunks(&server.interrupted(), "chunks_sent"), 64);
}

#[test]
fn what_is_there_is_not_fetched_and_of_a_new_version_only_what_changed() {
    let place = Place::new(40);
    let server = place.serve(&[]);
    assert_eq!(place.fetch(2, &[]).end(), 0);
    let mut again = place.fetch(2, &[]);
    assert_eq!(again.end(), 0);
    let written = again.found("written").unwrap();
    assert_eq!((chunks(&written, "fetched"), chunks(&written, "kept")), (0, 40));
    server.interrupted();

    // The third and the last chunk change.
    fs::copy(place.path("disk"), place.path("disk2")).unwrap();
    let disk = File::options().write(true).open(place.path("disk2")).unwrap();
    for at in [2, 39] {
        disk.write_all_at(b"changed", at * (MIB as u64 / 16) + 100).unwrap();
    }
    place.pack("disk2", "golden.rwi");
    let server = place.serve(&[]);
    let refused = place.fetched(2, &[]);
    assert_eq!(refused.status.code(), Some(2), "it would replace a file: {refused:?}");
    assert!(place.is_complete(2, "disk"));
    let mut updated = place.fetch(2, &["--overwrite"]);
    assert_eq!(updated.end(), 0);
    let written = updated.found("written").unwrap();
    assert_eq!((chunks(&written, "fetched"), chunks(&written, "kept")), (2, 38));
    assert!(place.is_complete(2, "disk2"));
    assert_eq!(chunks(&server.interrupted(), "chunks_sent"), 2);
}

#[test]
fn a_server_for_certain_hosts_ends_when_they_have_the_image_and_names_the_others() {
    let place = Place::new(32);
    fs::write(place.path("hosts"), "127.0.0.2 # the first\n\n127.0.0.3\n").unwrap();
    let mut server = place.serve(&["--to", "@hosts"]);
    let output = place.fetched(4, &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("it refuses this host"), "{stderr}");
    let mut clients = [2, 3].map(|client| place.fetch(client, &[]));
    assert_eq!(clients.each_mut().map(Process::end), [0, 0]);
    assert_eq!(server.end(), 0);

    // A host that is not there delays nobody, and is named in the end.
    let port = free_ports(1);
    let place = Place { port, ..place };
    let mut server = place.serve(&["--to", "127.0.0.5,127.0.0.9", "--for", "3 s"]);
    assert_eq!(place.fetch(5, &[]).end(), 0);
    assert_eq!(server.end(), 1);
    let ended = server.events.pop().unwrap();
    assert_eq!(ended["absent"], serde_json::json!(["127.0.0.9"]));
}

#[test]
fn a_key_is_required_of_both_ends() {
    let place = Place::new(16);
    fs::write(place.path("key"), "a secret of this cluster").unwrap();
    fs::write(place.path("other"), "another secret of this cluster").unwrap();
    let server = place.serve(&["--key-file", "key"]);
    for (more, why) in [
        (&[][..], "it requires a key: use --key-file"),
        (&["--key-file", "other"], "it has another key"),
    ] {
        let output = place.fetched(2, more);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains(why), "{stderr}");
        assert!(!place.path("copy2.part").exists(), "nothing was written");
    }
    let mut clients = [2, 3].map(|client| place.fetch(client, &["--key-file", "key"]));
    assert_eq!(clients.each_mut().map(Process::end), [0, 0]);
    assert!(place.is_complete(2, "disk") && place.is_complete(3, "disk"));
    server.interrupted();
    let server = place.serve(&[]);
    let output = place.fetched(4, &["--key-file", "key"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("it has no key"));
    server.interrupted();
}

#[test]
fn signatures_and_names_are_checked_before_anything_is_written() {
    let place = Place::new(16);
    for name in ["good", "other"] {
        assert!(place.command(&["keygen", name]).output().unwrap().status.success());
    }
    let pack = ["pack", "disk", "--to", "golden.rwi", "--name", "golden", "--sign", "good.key"];
    let output = place.command(&[&pack[..], &["--overwrite", "-q"]].concat()).output().unwrap();
    assert!(output.status.success());
    let server = place.serve(&[]);
    let output = place.fetched(2, &["--signed-by", "other.pub"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("it is signed by another key"));
    assert!(!place.path("copy2").exists() && !place.path("copy2.part").exists());
    assert_eq!(place.fetch(2, &["--signed-by", "good.pub"]).end(), 0);
    let from = format!("{SERVER}:{}", place.port);
    let unknown = ["fetch", "silver", "--from", &from, "--bind", "127.0.0.3", "--to", "copy3"];
    let output = place.command(&unknown).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("there is no image `silver`; it has golden"), "{stderr}");
    server.interrupted();
    let bytes = fs::read(place.path("golden.rwi")).unwrap();
    fs::write(place.path("golden.rwi"), &bytes[..bytes.len() - 1000]).unwrap();
    let output = place.command(&["serve", "golden.rwi", "--listen", &from]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("truncated"), "{output:?}");
}

#[test]
fn an_empty_image_is_there_at_once() {
    let place = Place::new(1);
    fs::write(place.path("disk"), b"").unwrap();
    place.pack("disk", "golden.rwi");
    let mut server = place.serve(&["--to", "127.0.0.2,127.0.0.3"]);
    assert_eq!(place.fetch(2, &["--linger", "600 s"]).end(), 0);
    assert_eq!(place.fetch(3, &[]).end(), 0);
    assert!(place.is_complete(2, "disk") && place.is_complete(3, "disk"));
    assert_eq!(server.end(), 0);
}
