//! `rackweave reduce master`, `worker` and `wordcount` as users run them: what they write against `sort | uniq -c` of the same words, also
//! when processes die and return, and when the network damages, loses and repeats packets.

mod circuits;
mod commit;
mod faults;
mod hostile;
mod kernel;
mod pods;
mod silence;
mod spaces;
mod starved;
mod usage;
mod vectors;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rackweave_testing::free_ports;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{nap, until, wait_ms};

const COMMAND: &str = env!("CARGO_BIN_EXE_rackweave");

/// What is done to frames in the tests of a bad network.
const FAULTS: &str = "--loss 0.02 --corrupt 0.01 --duplicate 0.02 --reorder 0.05";

/// Words and how often each occurs.
type Counts = BTreeMap<Vec<u8>, u64>;

/// A folder with the text of each worker.
pub(super) struct Texts {
    folder: TempDir,
    files: Vec<String>,
}

impl Texts {
    /// Texts of about this many words each. A third of the words are frequent; some are longer than a slot, or no UTF-8.
    pub(super) fn new(workers: u8, words: u32, seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut random = seed;
        let mut next = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut files = Vec::new();
        for worker in 0..workers {
            let mut text = Vec::new();
            for _ in 0..words {
                match next(300) {
                    0 => text.extend_from_slice(b"counter-revolutionary\\ideas\xff"),
                    1..100 => text.extend_from_slice(format!("the{}", next(20)).as_bytes()),
                    _ => text.extend_from_slice(format!("w{}", next(u64::from(words))).as_bytes()),
                }
                text.push(b" \n\t\r\x0c"[next(5) as usize]);
            }
            let name = format!("text{worker}");
            fs::write(folder.path().join(&name), text).unwrap();
            files.push(name);
        }
        Self { folder, files }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Counts the words by the programs that a user has.
    pub(super) fn expected(&self) -> Counts {
        let script = "cat \"$@\" | tr -s ' \\t\\n\\r\\f' '\\n' | grep -av '^$' | sort | uniq -c";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).args(&self.files).env("LC_ALL", "C");
        let output = command.current_dir(self.folder.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let count = |line: &[u8]| {
            let line = line.trim_ascii_start();
            let at = line.iter().position(|byte| *byte == b' ').unwrap();
            let count = std::str::from_utf8(&line[..at]).unwrap().parse().unwrap();
            (line[at + 1..].to_vec(), count)
        };
        lines.map(count).collect()
    }

    /// Reads a result as a user reads it.
    pub(super) fn result(&self, name: &str) -> Counts {
        let text = fs::read(self.path(name)).unwrap();
        let lines: Vec<_> = text.split(|byte| *byte == b'\n').collect();
        let (last, lines) = lines.split_last().unwrap();
        assert!(last.is_empty(), "the last line ends");
        let mut keys = Vec::new();
        let mut counts = Counts::new();
        for line in lines {
            let at = line.iter().position(|byte| *byte == b'\t').unwrap();
            let value = std::str::from_utf8(&line[at + 1..]).unwrap().parse().unwrap();
            let (mut key, mut bytes) = (Vec::new(), line[..at].iter());
            while let Some(byte) = bytes.next() {
                key.push(match byte {
                    b'\\' => match bytes.next().unwrap() {
                        b't' => b'\t',
                        b'n' => b'\n',
                        b'r' => b'\r',
                        other => *other,
                    },
                    other => *other,
                });
            }
            keys.push(key.clone());
            assert_eq!(counts.insert(key, value), None, "each key once");
        }
        assert!(keys.is_sorted(), "by the bytes of keys");
        counts
    }

    /// Whether there is neither a result nor a part of one.
    pub(super) fn has_nothing(&self, name: &str) -> bool {
        let begins = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().contains(name);
        !fs::read_dir(self.folder.path()).unwrap().flatten().any(|entry| begins(&entry))
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(COMMAND);
        command.args(arguments.split_whitespace()).current_dir(self.folder.path());
        command.stdin(Stdio::null());
        command
    }

    pub(super) fn start(&self, arguments: &str) -> Process {
        Process::start(self.command(arguments))
    }

    /// Starts a master, and waits until it is ready.
    pub(super) fn master(&self, workers: u8, more: &str) -> Process {
        let mut master = self.start(&format!("reduce master --workers {workers} {more}"));
        master.says("ready at");
        master
    }
}

/// A running command, whose output is read. It is killed when it is dropped.
pub(crate) struct Process {
    pub(super) child: Child,
    lines: Receiver<String>,
    pub(super) stderr: String,
    stdout: Receiver<String>,
}

fn lines_of(output: impl Read + Send + 'static) -> Receiver<String> {
    let (send, lines) = channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(output);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
            let _ = send.send(String::from_utf8_lossy(&line).into_owned());
            line.clear();
        }
    });
    lines
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(child.stderr.take().unwrap());
        let stdout = lines_of(child.stdout.take().unwrap());
        Self { child, lines, stderr: String::new(), stdout }
    }

    fn read(&mut self) {
        self.stderr.extend(self.lines.try_iter());
    }

    /// Waits until it has said this.
    pub(crate) fn says(&mut self, text: &str) {
        until(text, || {
            let has_ended = self.child.try_wait().unwrap().is_some();
            self.read();
            assert!(!has_ended || self.stderr.contains(text), "{text}: {}", self.stderr);
            self.stderr.contains(text)
        });
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Kills a worker of an all-reduce, and returns whether it has said before that all workers have the sum. The job does not need it
    /// from then on.
    pub(crate) fn was_sure_when_killed(&mut self) -> bool {
        self.kill();
        self.stderr.extend(self.lines.iter());
        // With `--json` it says so there.
        self.stdout.iter().count() > 0 || self.stderr.contains("all workers have the sum;")
    }

    /// Waits for the end; returns the exit code, and what it has said with words separated by single spaces.
    pub(crate) fn end(&mut self) -> (i32, String) {
        let mut status = None;
        until("the process ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        self.stderr.extend(self.lines.iter());
        let words: Vec<_> =
            self.stderr.split_whitespace().filter(|word| !["│", "×"].contains(word)).collect();
        (status.unwrap().code().unwrap_or(-1), words.join(" "))
    }

    /// The next event that it prints.
    pub(crate) fn event(&self) -> Value {
        serde_json::from_str(&self.stdout.recv().unwrap()).unwrap()
    }

    /// Expects a good end, and returns the last event that it has printed: its result.
    pub(crate) fn done(&mut self) -> Value {
        let text = self.printed();
        // Without `--json` it prints text or nothing.
        if !text.starts_with('{') {
            return Value::Null;
        }
        let result = crate::common::events(&text).pop().unwrap();
        assert_eq!(result["event"], "result");
        result
    }

    /// Waits until the process has ended with 0, and returns what it has printed.
    pub(crate) fn printed(&mut self) -> String {
        let (code, said) = self.end();
        assert_eq!(code, 0, "{said}");
        self.stdout.iter().collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A user-space switch with UDP ports on loopback.
pub(super) struct Overlay {
    port: u16,
    arguments: String,
    switch: Option<Process>,
}

impl Overlay {
    pub(super) fn new(hosts: u16, more: &str) -> Self {
        let port = free_ports(hosts);
        let arguments = format!(
            "switch --listen 127.0.0.1:{port} --hosts {hosts} --program reduce {more} --json"
        );
        let mut this = Self { port, arguments, switch: None };
        this.start();
        this
    }

    /// A fabric of a file, in which switch 0 adds up.
    pub(super) fn fabric(hosts: u16, file: &std::path::Path, more: &str) -> Self {
        let port = free_ports(hosts);
        let file = file.display();
        let arguments = format!(
            "switch --listen 127.0.0.1:{port} --fabric {file} --program reduce --aggregate-at 0 {more} --json"
        );
        let mut this = Self { port, arguments, switch: None };
        this.start();
        this
    }

    pub(super) fn start(&mut self) {
        let mut command = Command::new(COMMAND);
        command.args(split(&self.arguments)).stdin(Stdio::null());
        let mut switch = Process::start(command);
        switch.says("host 1:");
        self.switch = Some(switch);
    }

    pub(super) fn kill(&mut self) {
        self.switch.as_mut().unwrap().kill();
    }

    pub(super) fn signal(&self, name: &str) {
        self.switch.as_ref().unwrap().signal(name);
    }

    /// The options of a host.
    pub(super) fn host(&self, number: u32) -> String {
        format!("--overlay 127.0.0.1:{} --me {number}", self.port)
    }

    /// Ends the switch, and returns its counters.
    pub(super) fn counters(mut self) -> Value {
        let mut switch = self.switch.take().unwrap();
        switch.signal("-INT");
        switch.done()
    }

    /// Starts the workers of a master at host 0; worker i is host i + 1.
    pub(super) fn workers(&self, texts: &Texts, more: &str) -> Vec<Process> {
        (0..texts.files.len()).map(|number| self.worker(texts, number as u32, more)).collect()
    }

    pub(super) fn worker(&self, texts: &Texts, number: u32, more: &str) -> Process {
        let (host, file) = (self.host(number + 1), &texts.files[number as usize]);
        texts.start(&format!("reduce worker --master 0 --worker {number} {host} {more} {file}"))
    }
}

/// Splits arguments at spaces; `_` stands for a space in one.
fn split(arguments: &str) -> Vec<String> {
    arguments.split_whitespace().map(|argument| argument.replace('_', " ")).collect()
}

#[test]
fn words_are_counted_exactly_with_and_without_a_switch() {
    let texts = Texts::new(3, 20_000, 1);
    let expected = texts.expected();
    let files = texts.files.join(" ");
    let mut reached = Vec::new();
    for (name, how) in [
        ("a", "--workers 3"),
        ("b", "--workers 3 --no-switch"),
        ("c", "--workers 7 --slots 1000"),
        ("d", "--workers 1"),
        ("e", "--workers 64 --slots 65536"),
    ] {
        let arguments = format!("reduce wordcount {files} {how} --out {name} --json");
        let stats = texts.start(&arguments).done();
        assert_eq!(texts.result(name), expected, "{how}");
        assert_eq!(stats["keys"], expected.len(), "{how}");
        assert_eq!(stats["slots"] == 0, name == "b", "{stats}");
        reached.push((stats["pairs_sent"].as_u64(), stats["pairs_reached"].as_u64()));
    }
    assert_eq!(reached[0].0, reached[1].0, "the same words at each worker");
    assert_eq!(reached[1].0, reached[1].1, "without a switch all pairs reach the master");
    let (sent, with_switch) = (reached[0].0.unwrap(), reached[0].1.unwrap());
    assert!(with_switch < sent * 9 / 10, "{with_switch} of {sent}");
}

#[test]
fn processes_at_any_ports_of_one_host_need_no_switch() {
    let texts = Texts::new(3, 5_000, 2);
    let port = free_ports(1);
    let mut master = texts.master(3, &format!("--listen 127.0.0.1:{port} --out counts --json"));
    let mut workers: Vec<Process> = (0..3)
        .map(|number| {
            let more = if number == 2 { "--bind 127.0.0.9:0" } else { "" };
            let to = format!("--master 127.0.0.1:{port} --worker {number} {more} text{number}");
            texts.start(&format!("reduce worker {to}"))
        })
        .collect();
    for worker in &mut workers {
        worker.done();
    }
    let stats = master.done();
    assert_eq!(texts.result("counts"), texts.expected());
    assert_eq!(stats["pairs_reached"], stats["pairs_sent"]);
    assert!(stats["least_percent"].as_f64().unwrap() < 100.0);
}

#[test]
fn processes_at_ports_of_a_switch_leave_little_to_the_master() {
    let texts = Texts::new(4, 10_000, 3);
    let overlay = Overlay::new(5, "--slots 4096 --ways 4");
    let more = format!("{} --switch 0 --slots 4096 --require-switch", overlay.host(0));
    let mut master = texts.master(4, &format!("{more} --out counts --json"));
    let mut workers = overlay.workers(&texts, "--json");
    for worker in &mut workers {
        assert!(worker.done()["pairs"].as_u64().unwrap() > 4_000);
    }
    let stats = master.done();
    assert_eq!(texts.result("counts"), texts.expected());
    // Within a twentieth of what is possible: some buckets overflow.
    let (reached, least) = (&stats["reached_percent"], &stats["least_percent"]);
    assert!(reached.as_f64().unwrap() < least.as_f64().unwrap() * 1.05, "{stats}");
    let counters = &overlay.counters()["program"];
    assert_eq!(counters["sums_fetched"], stats["sums"]);
    assert_eq!(
        counters["pairs"].as_u64(),
        Some(stats["pairs_sent"].as_u64().unwrap() - stats["long_keys"].as_u64().unwrap())
    );
}

#[test]
fn pairs_of_other_programs_are_combined_by_any_operator() {
    let texts = Texts::new(0, 0, 0);
    let pairs = "a\\tb\t5\nplain\t18446744073709551615\n\t7\na\\tb\t3\n";
    fs::write(texts.path("pairs"), pairs).unwrap();
    for (operator, expected) in [
        ("sum", "\t14\na\\tb\t16\nplain\t18446744073709551614\n"),
        ("min", "\t7\na\\tb\t3\nplain\t18446744073709551615\n"),
        ("max", "\t7\na\\tb\t5\nplain\t18446744073709551615\n"),
        ("count", "\t2\na\\tb\t4\nplain\t2\n"),
    ] {
        let overlay = Overlay::new(3, "");
        let how = format!("--operator {operator}");
        let more = format!("{} --switch 0 {how} --out {operator}", overlay.host(0));
        let mut master = texts.master(2, &more);
        let from_file = format!("reduce worker --master 0 --worker 0 {how} --pairs pairs");
        let mut first = texts.start(&format!("{from_file} {}", overlay.host(1)));
        let from_stdin = format!("reduce worker --master 0 --worker 1 {how} --pairs -");
        let mut command = texts.command(&format!("{from_stdin} {}", overlay.host(2)));
        command.stdin(fs::File::open(texts.path("pairs")).unwrap());
        let mut second = Process::start(command);
        first.done();
        second.done();
        master.done();
        assert_eq!(fs::read_to_string(texts.path(operator)).unwrap(), expected, "{operator}");
    }
}

/// Waits, so that a process is in the middle of what it does.
fn a_moment() {
    (0..5).for_each(|_| nap());
}
