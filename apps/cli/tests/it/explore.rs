//! `rackweave explore`: the page over HTTP, as a browser sees it, compared with `rackweave run`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::{PATIENCE, interrupt_after, until};

const SCENARIO: &str = "name = \"watched\"
fabric = { topology = \"leaf-spine\", leaves = 2, hosts_per_leaf = 4, spines = 2, host_link = \"10 Gbps\", core_link = \"20 Gbps\" }
transport.name = \"homa\"
workload = { arrivals = \"poisson\", sizes = \"W3\", load = 0.5, truncate = \"200 KB\" }
measure = { messages = 300, messages_csv = true }
";

fn rackweave() -> Command {
    Command::new(env!("CARGO_BIN_EXE_rackweave"))
}

/// The command, and its page.
struct Explored {
    child: Child,
    address: SocketAddr,
    token: String,
}

impl Explored {
    fn start(scenario: &Path) -> Self {
        let mut command = rackweave();
        let mut child =
            command.arg("explore").arg(scenario).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").and_then(|it| it.strip_suffix('/'));
        let (address, token) = address.and_then(|it| it.split_once('/')).expect(&line);
        let address: SocketAddr = address.parse().unwrap();
        assert!(address.ip().is_loopback());
        let explored = Self { child, address, token: token.to_owned() };
        let (code, page) = explored.get("/");
        assert_eq!(code, 200);
        assert!(page.contains(&format!("rackweave-token\" content=\"{token}\"")));
        explored
    }

    fn ask(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let request =
            format!("{head}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn get(&self, path: &str) -> (u16, String) {
        let Self { address, token, .. } = self;
        self.ask(&format!("GET /{token}{path} HTTP/1.0\r\nHost: {address}"), "")
    }

    fn post(&self, path: &str, body: &str) -> (u16, String) {
        let Self { address, token, .. } = self;
        let head = format!(
            "POST /{token}{path} HTTP/1.0\r\nHost: {address}\r\nX-Rackweave-Token: {token}"
        );
        self.ask(&head, body)
    }

    fn state(&self) -> Value {
        serde_json::from_str(&self.get("/state.json").1).unwrap()
    }

    fn wait(&self, mode: &str) -> Value {
        until(mode, || self.state()["mode"] == mode);
        self.state()
    }

    fn done(&self, path: &str, body: &str) {
        let (code, told) = self.post(path, body);
        assert_eq!(code, 204, "{told}");
    }
}

impl Drop for Explored {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

fn summary(text: &str) -> Value {
    let mut json: Value = serde_json::from_str(text).unwrap();
    json["wall_s"].take();
    json["peak_rss_bytes"].take();
    json["points"][0]["cpu_s"].take();
    json
}

fn run(folder: &Path, scenario: &str) -> Value {
    let mut command = rackweave();
    command.current_dir(folder).args(["run", scenario, "--out", "out", "--quiet", "--jobs", "1"]);
    assert!(command.status().unwrap().success());
    summary(&std::fs::read_to_string(folder.join("out/summary.json")).unwrap())
}

#[test]
fn a_watched_run_is_that_of_the_command_and_its_messages_are_those_of_messages_csv() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("watched.toml");
    std::fs::write(&file, SCENARIO).unwrap();
    let plain = run(folder.path(), "watched.toml");
    let messages = std::fs::read_to_string(folder.path().join("out/messages.csv")).unwrap();
    let report = std::fs::read_to_string(folder.path().join("out/report.html")).unwrap();
    assert!(report.contains("rackweave explore watched.toml"), "the report names the command");

    let mut explored = Explored::start(&file);
    assert_eq!(explored.wait("paused")["lanes"][0]["picture"]["at_ns"], 0.0);
    explored.done("/control", r#"{"do": "step", "ns": 100000}"#);
    assert_eq!(explored.wait("paused")["lanes"][0]["picture"]["at_ns"], 100_000.0);
    explored.done("/control", r#"{"do": "run", "speed": 1000}"#);
    explored.done("/control", r#"{"do": "pause"}"#);
    explored.wait("paused");
    explored.done("/control", r#"{"do": "run"}"#);
    explored.wait("over");
    let (code, ended) = explored.get("/summary.json");
    assert_eq!(code, 200);
    assert_eq!(summary(&ended), plain);

    for line in [1, 150, 300] {
        explored.done("/trace", &format!("{{\"number\": {line}}}"));
        until("the trace is there", || explored.state()["trace"]["state"] == "done");
        let trace: Value = serde_json::from_str(&explored.get("/trace.json").1).unwrap();
        let mut lines = messages.lines();
        let head: Vec<&str> = lines.next().unwrap().split(',').collect();
        let row: Vec<&str> = lines.nth(line - 1).unwrap().split(',').collect();
        let field = |name: &str| row[head.iter().position(|it| *it == name).unwrap()];
        let number = |name: &str| field(name).parse::<f64>().unwrap();
        // To a hundredth of a nanosecond.
        let same = |one: f64, other: f64| (one - other).abs() < 0.005;
        assert!(same(trace["start"].as_f64().unwrap(), number("start_us") * 1e3), "line {line}");
        let took = trace["end"].as_f64().unwrap() - trace["start"].as_f64().unwrap();
        assert!(same(took, number("latency_us") * 1e3), "line {line}: {took}");
        assert_eq!(trace["bytes"].as_f64().unwrap(), number("bytes"));
    }
    assert!(explored.get("/trace.csv").1.lines().count() > 2);

    // What is set is saved, and the file gives the same results.
    explored.done("/start", r#"{"sets": ["workload.load=0.3", "seed=9"]}"#);
    let (code, saved) = explored.get("/scenario.toml");
    assert_eq!(code, 200);
    std::fs::write(folder.path().join("saved.toml"), saved).unwrap();
    explored.done("/control", r#"{"do": "run"}"#);
    explored.wait("over");
    let explored_summary = summary(&explored.get("/summary.json").1);
    assert_eq!(run(folder.path(), "saved.toml"), explored_summary);
    assert_ne!(explored_summary["points"][0]["latency_us"], plain["points"][0]["latency_us"]);

    interrupt_after(&explored.child, Duration::ZERO);
    assert_eq!(explored.child.wait().unwrap().code(), Some(130));
}

#[test]
fn only_the_page_itself_changes_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("watched.toml");
    std::fs::write(&file, SCENARIO).unwrap();
    let explored = Explored::start(&file);
    let Explored { address, token, .. } = &explored;
    let before = explored.wait("paused");
    let step = r#"{"do": "step", "ns": 1000}"#;
    let post = |more: &str| {
        explored.ask(&format!("POST /{token}/control HTTP/1.0\r\nHost: {address}{more}"), step).0
    };
    assert_eq!(post(""), 403, "without a token");
    assert_eq!(post(&format!("\r\nX-Rackweave-Token: {}", token.replace(&token[..1], "z"))), 403);
    let own = format!("\r\nX-Rackweave-Token: {token}");
    assert_eq!(post(&format!("{own}\r\nOrigin: http://evil.example")), 403);
    assert_eq!(post(&format!("{own}\r\nSec-Fetch-Site: cross-site")), 403);
    let foreign = format!("GET /{token}/state.json HTTP/1.0\r\nHost: evil.example");
    assert_eq!(explored.ask(&foreign, "").0, 421);
    // Whoever does not know the address, such as another account of this machine, reads nothing.
    for path in ["/", "/state.json", "/session.json", "/0/state.json", "/control"] {
        let (code, told) = explored.ask(&format!("GET {path} HTTP/1.0\r\nHost: {address}"), "");
        assert!(code == 404 && !told.contains(token.as_str()), "{path}: {code} {told}");
    }
    for path in ["/control", "/start", "/trace"] {
        assert_eq!(explored.get(path).0, 405, "{path}: a GET changes nothing");
    }
    let long = format!("{{\"sets\": [\"{}\"]}}", "x".repeat(70_000));
    assert_eq!(explored.post("/start", &long).0, 413);
    assert_eq!(explored.post("/control", "{}").0, 400);
    assert_eq!(explored.state(), before, "nothing has happened");
    let (code, told) = explored.post("/start", r#"{"sets": ["workload.load = x"]}"#);
    assert!(code == 422 && told.contains("workload.load"), "{told}");
    assert_eq!(post(&own), 204);
    assert_eq!(explored.wait("paused")["lanes"][0]["picture"]["at_ns"], 1000.0);
}

#[test]
fn a_wrong_scenario_is_told_and_opens_no_page() {
    let output = rackweave().args(["explore", "quickstart", "--set", "fabric.spinez=2"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty() && String::from_utf8_lossy(&output.stderr).contains("spinez"));
}

/// Nobody can open a page whose address nobody has read.
#[test]
fn a_page_whose_address_cannot_be_written_ends() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("watched.toml");
    std::fs::write(&file, SCENARIO).unwrap();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    for stdout in [Stdio::from(full), Stdio::from(closed)] {
        let mut command = rackweave();
        command.arg("explore").arg(&file).stdout(stdout).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        until("the command ends", || child.try_wait().unwrap().is_some());
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("cannot write the page's address"), "{told}");
    }
}

#[test]
fn readers_who_read_nothing_and_strangers_stop_neither_the_page_nor_its_events() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("watched.toml");
    std::fs::write(&file, SCENARIO).unwrap();
    let explored = Explored::start(&file);
    let Explored { address, token, .. } = &explored;
    let events = format!("GET /{token}/events HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let silent = |head: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        // One that has lost its place may be closed already.
        let _ = stream.write_all(head.as_bytes());
        stream
    };
    let all: Vec<TcpStream> =
        (0..200).map(|number| silent([&*events, "GET / HT", ""][number % 3])).collect();
    explored.done("/control", r#"{"do": "step", "ns": 1000}"#);
    let mut latest = BufReader::new(silent(&events));
    latest.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(latest.read_line(&mut line).unwrap() > 0);
    }
    assert_eq!(explored.get("/state.json").0, 200);
    drop(all);
}
