//! A pod whose controller decides alone: masters ask it before they upload, and it moves circuits; also while it is killed.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::*;
use crate::common::{PATIENCE, now};

/// The pod of the paper with slow links: for the switch, and for the controller.
fn files(texts: &Texts) -> (PathBuf, PathBuf) {
    let (fabric, pod) = (texts.path("fabric.toml"), texts.path("pod.toml"));
    let text = "[fabric]\ntopology = 'rackless'\ntors = [4, 2, 2]\nuplinks = 1\n\
                circuits = [0, 0, 0, 0, 1, 1, 2, 2]\nhost_link = '4 Mbps'\ncore_link = '4 Mbps'\n\
                switching_delay = '20 ms'\ndark = 'all'\n";
    fs::write(&fabric, text).unwrap();
    let text = "server_rate = '4 Mbps'\n\
                [[tor]]\nports = 4\nuplinks = 1\nuplink_rate = '4 Mbps'\nslots = 4096\n\
                [[tor]]\nports = 2\nuplink_rate = '4 Mbps'\n\
                [[tor]]\nports = 2\nuplink_rate = '4 Mbps'\n";
    fs::write(&pod, text).unwrap();
    (fabric, pod)
}

/// A controller that can be killed and started again at its ports.
struct Controlling {
    process: Process,
    arguments: String,
    http: u16,
    agents: u16,
}

impl Controlling {
    fn start(texts: &Texts, pod: &Path, more: &str) -> Self {
        let ports = free_ports(2);
        let (http, agents) = (ports, ports + 1);
        fs::write(texts.path("key"), "a secret that is long enough").unwrap();
        let arguments = format!(
            "pod control --pod {} --database pod.redb --listen 127.0.0.1:{http} --agents 127.0.0.1:{agents} \
             --key-file key {more}",
            pod.display()
        );
        let mut process = texts.start(&arguments);
        process.says("ready at");
        Self { process, arguments, http, agents }
    }

    fn restart(&mut self, texts: &Texts) {
        self.process.kill();
        self.process = texts.start(&self.arguments);
        self.process.says("ready at");
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    fn ask(&self, texts: &Texts, what: &str) -> Value {
        let text = texts.start(&format!("pod {what} --url {} --json", self.url())).printed();
        serde_json::from_str(&text).unwrap()
    }
}

/// The switch of the pod, with its agent.
fn switch(texts: &Texts, fabric: &Path, agents: u16) -> Overlay {
    let key = texts.path("key");
    let more =
        format!("--slots 4096 --share 100 --pod 127.0.0.1:{agents} --pod-key {}", key.display());
    Overlay::fabric(8, fabric, &more)
}

/// Counts words by a master at the first server of a group and three workers at the others.
fn count(texts: &Texts, port: u16, url: &str, first: u32, out: &str) -> (Value, String) {
    let at = |number: u32| format!("--overlay 127.0.0.1:{port} --me {number}");
    let host = at(first);
    let more = format!("{host} --pod {url} --pod-name words --out {out} --json");
    let mut master = texts.master(3, &more);
    let ready = master.event();
    assert_eq!((&ready["event"], &ready["workers"]), (&"ready".into(), &3.into()), "{ready}");
    let job = &ready["job"];
    let worker = |number: u32| {
        let host = at(first + 1 + number);
        let file = &texts.files[number as usize];
        texts.start(&format!(
            "reduce worker --master {first} --worker {number} --job {job} {host} {file}"
        ))
    };
    let mut workers: Vec<Process> = (0..3).map(worker).collect();
    let stats = master.done();
    workers.iter_mut().for_each(|worker| drop(worker.done()));
    (stats, master.stderr.clone())
}

#[test]
fn the_controller_alone_lets_two_groups_upload_by_turns() {
    let texts = Texts::new(3, 4_000, 71);
    let expected = texts.expected();
    let (fabric, pod) = files(&texts);
    let controller = Controlling::start(&texts, &pod, "--order alternating --json");
    let overlay = switch(&texts, &fabric, controller.agents);
    until("the controller commands", || {
        controller.ask(&texts, "top --once")["standing"] == "active"
    });
    let url = controller.url();
    std::thread::scope(|scope| {
        for first in [0, 4] {
            let (texts, port, url, expected) = (&texts, overlay.port, &url, &expected);
            scope.spawn(move || {
                for round in 0..3 {
                    let out = format!("counts{first}-{round}");
                    let (stats, said) = count(texts, port, url, first, &out);
                    assert_eq!(texts.result(&out), *expected);
                    assert_eq!(stats["slots"], 4096, "{said}");
                    assert!(said.contains("the upload begins, with 4096 slots"), "{said}");
                }
            });
        }
    });
    let circuits = controller.ask(&texts, "circuits");
    let changes = circuits["version"].as_u64().unwrap();
    assert!(changes >= 3, "circuits follow the groups: {circuits}");
    assert_eq!(controller.ask(&texts, "jobs"), json!([]), "all have ended");
    let counters = overlay.counters();
    assert_eq!(counters["circuits"]["changes"], changes);
    println!("{changes} changes, {}", counters["circuits"]);
}

#[test]
fn a_switch_that_is_described_otherwise_than_the_pod_commands_nothing() {
    let texts = Texts::new(0, 0, 0);
    let (fabric, pod) = files(&texts);
    let text = fs::read_to_string(&pod).unwrap().replace("server_rate = '4 Mbps'\n", "");
    fs::write(&pod, text).unwrap();
    let mut controller = Controlling::start(&texts, &pod, "");
    let _switch = switch(&texts, &fabric, controller.agents);
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    controller.process.says(&format!("switch {} is not believed", name.trim()));
    let status = controller.ask(&texts, "top --once");
    let why = "its servers' links have 4 Mbps, and the pod's 10 Gbps";
    assert_eq!(status["agents"][0]["problem"], why, "{status}");
    assert_eq!(status["standing"], "alone", "{status}");
}

#[test]
fn ctrl_c_ends_a_master_whose_controller_hangs() {
    let texts = Texts::new(0, 0, 0);
    let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", hangs.local_addr().unwrap());
    let listen = "--listen 127.0.0.1:0 --pod-servers 0,1";
    let mut master = texts.start(&format!("reduce master --workers 1 {listen} --pod {url}"));
    master.says("waiting for the pod's controller");
    master.signal("-INT");
    let (code, said) = master.end();
    assert_eq!(code, 130, "{said}");
}

#[test]
fn a_command_whose_controller_hangs_says_so_and_ends() {
    let texts = Texts::new(0, 0, 0);
    let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", hangs.local_addr().unwrap());
    let began = now();
    let mut asks = texts.start(&format!("pod jobs --url {url}"));
    asks.says(&format!("waiting for the pod's controller at {url}"));
    let (code, said) = asks.end();
    assert!(code == 1 && said.contains("cannot reach the pod's controller"), "{code}: {said}");
    assert!((5..40).contains(&began.elapsed().as_secs()), "{said}");
}

#[test]
fn a_database_that_is_cut_off_starts_no_controller() {
    let texts = Texts::new(0, 0, 0);
    let (_, pod) = files(&texts);
    let mut controller = Controlling::start(&texts, &pod, "");
    controller.process.kill();
    let path = texts.path("pod.redb");
    let half = fs::read(&path).unwrap();
    let half = &half[..half.len() / 2];
    fs::write(&path, half).unwrap();
    let (code, said) = texts.start(&controller.arguments).end();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("pod.redb is cut off") && !said.contains("panicked"), "{said}");
    assert_eq!(fs::read(&path).unwrap(), half, "it is as it was");
}

#[test]
fn twenty_kills_of_the_controller_lose_no_upload() {
    let texts = Texts::new(3, 4_000, 72);
    let expected = texts.expected();
    let (fabric, pod) = files(&texts);
    let mut controller = Controlling::start(&texts, &pod, "--order alternating");
    let overlay = switch(&texts, &fabric, controller.agents);
    let url = controller.url();
    let (is_over, jobs) = (AtomicBool::new(false), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for first in [0, 4] {
            let (texts, port, url, expected) = (&texts, overlay.port, &url, &expected);
            let (is_over, jobs) = (&is_over, &jobs);
            scope.spawn(move || {
                let mut round = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let out = format!("counts{first}-{round}");
                    let (stats, said) = count(texts, port, url, first, &out);
                    assert_eq!(texts.result(&out), *expected);
                    jobs.lock().unwrap().push((stats["slots"].as_u64().unwrap(), said));
                    round += 1;
                }
            });
        }
        for kill in 0..20_u64 {
            wait_ms(200 + kill * 7919 % 900);
            controller.restart(&texts);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let jobs = jobs.into_inner().unwrap();
    let with_switch = jobs.iter().filter(|(slots, _)| *slots > 0).count();
    let without = jobs.iter().filter(|(_, said)| said.contains("note:")).count();
    until("the last job has ended", || controller.ask(&texts, "jobs") == json!([]));
    let circuits = controller.ask(&texts, "circuits");
    let slots: Vec<u64> = jobs.iter().map(|(slots, _)| *slots).collect();
    println!("slots of jobs: {slots:?}, {without} noted, {circuits}");
    assert!(with_switch >= 4 && without == 0, "{jobs:?}");
    let counters = overlay.counters();
    // The switch has changed for each command once.
    assert_eq!(counters["circuits"]["changes"], circuits["version"], "{counters}");
}

#[test]
fn who_has_no_token_or_key_and_what_makes_no_sense_is_refused() {
    let texts = Texts::new(0, 0, 0);
    let (_, pod) = files(&texts);
    let tenants = "a 0123456789abcdef\nb fedcba9876543210\nc 0f1e2d3c4b5a6978 operator\n";
    fs::write(texts.path("tenants"), tenants).unwrap();
    fs::write(texts.path("c"), "0f1e2d3c4b5a6978\n").unwrap();
    fs::write(texts.path("a"), "0123456789abcdef\n").unwrap();
    fs::write(texts.path("b"), "fedcba9876543210\n").unwrap();
    let controller = Controlling::start(&texts, &pod, "--tenants tenants");
    let url = controller.url();
    let said = |arguments: &str| {
        let (code, said) = texts.start(arguments).end();
        assert_ne!(code, 0, "{arguments}");
        said
    };
    let said_to = said(&format!("pod jobs --url {url}"));
    assert!(said_to.contains("this needs the token of a tenant"), "{said_to}");
    for (job, why) in [
        ("{\"name\": \"x\", \"master\": 8}", "the pod has servers 0 to 7"),
        ("{\"name\": \"\", \"master\": 0}", "a name has 1 to 128 printable characters"),
        ("{\"name\": \"x\", \"map_ms\": 700000000}", "at most 7 days"),
        ("{\"name\": \"x\", \"nmae\": 1}", "unknown field `nmae`"),
    ] {
        fs::write(texts.path("job.json"), job).unwrap();
        let said = said(&format!("pod submit job.json --url {url} --token a"));
        assert!(said.contains(why), "{said}");
    }
    fs::write(texts.path("job.json"), "{\"name\": \"x\", \"master\": 0, \"workers\": [1, 2]}")
        .unwrap();
    let job = texts.start(&format!("pod submit job.json --url {url} --token a")).printed();
    assert_eq!(job, "1\n");
    let others = texts.start(&format!("pod jobs --url {url} --token b --json")).printed();
    assert_eq!(others, "[]\n", "of another tenant");
    let own = texts.start(&format!("pod jobs --url {url} --token a")).printed();
    assert!(own.contains("registered"), "{own}");
    let status = controller.ask(&texts, "top --once --token a");
    assert_eq!(status["events"][0]["text"], "job 1 of a: x", "{status}");
    let status = controller.ask(&texts, "top --once --token b");
    assert_eq!(status["events"][0]["text"], "job 1 of another tenant", "{status}");
    let other = &status["jobs"][0];
    assert_eq!((&other["declared"]["name"], &other["tenant"]), (&"".into(), &"".into()));
    assert_eq!(other["declared"]["workers"], json!([1, 2]), "who is where is no secret");
    let status = controller.ask(&texts, "top --once --token c");
    assert_eq!(status["events"][0]["text"], "job 1 of a: x", "an operator: {status}");
    assert_eq!(controller.ask(&texts, "jobs --token c")[0]["declared"]["name"], "x");
    let page =
        asked(controller.http, "GET", "/events", "Authorization: Bearer 0f1e2d3c4b5a6978\r\n");
    assert!(page.contains("job 1 of a: x"), "{page}");
    let page = asked(controller.http, "GET", "/events", "");
    assert!(page.contains("job 1 of another tenant") && !page.contains("job 1 of a:"), "{page}");
    let mut page = TcpStream::connect(("127.0.0.1", controller.http)).unwrap();
    let head = "GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
                Authorization: Bearer 0123456789abcdef\r\nOrigin: http://evil.example\r\n\r\n";
    page.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    page.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "a script of a foreign site: {answer}");
    let more = said("pod control --pod pod.toml --database other.redb --listen 0.0.0.0:0");
    assert!(more.contains("without tenants anybody"), "{more}");
    let more = said("pod control --pod pod.toml --database other.redb --agents 0.0.0.0:0");
    assert!(more.contains("without a key any host"), "{more}");
    let more = said(
        "pod control --pod pod.toml --database pod.redb --listen 127.0.0.1:0 --agents 127.0.0.1:0",
    );
    assert!(more.contains("cannot open the database"), "{more}");
}

/// Sends the head of a request, with these lines, and returns the answer: of a stream of events the first one.
fn asked(port: u16, method: &str, path: &str, lines: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{lines}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = String::new();
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        answer.push_str(std::str::from_utf8(&piece[..count]).unwrap());
        if path == "/events" && answer.contains("data: ") && answer.trim_end().ends_with('}') {
            break;
        }
    }
    answer
}

const TOKEN: &str = "Authorization: Bearer 0123456789abcdef\r\n";

#[test]
fn strangers_keep_no_tenant_out_however_many_connections_they_hold() {
    let texts = Texts::new(0, 0, 0);
    let (_, pod) = files(&texts);
    fs::write(texts.path("tenants"), "a 0123456789abcdef\n").unwrap();
    fs::write(texts.path("a"), "0123456789abcdef\n").unwrap();
    let mut controller = Controlling::start(&texts, &pod, "--tenants tenants");
    let port = controller.http;
    // What is asked without a token has its answer by its head, whatever is still to come.
    let began = now();
    let answer = asked(port, "POST", "/v1/jobs", "Content-Length: 1000\r\n");
    assert!(answer.starts_with("HTTP/1.1 401") && began.elapsed().as_secs() < 5, "{answer}");
    let answer = asked(port, "POST", "/v1/jobs", &format!("{TOKEN}Content-Length: 99999999\r\n"));
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let silent: Vec<TcpStream> = (0..1040)
        .map(|number: u32| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let head: &[u8] = match number % 3 {
                0 => b"",
                1 => b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n",
                _ => b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            };
            // One that has lost its place may be closed already.
            let _ = stream.write_all(head);
            stream
        })
        .collect();
    for _ in 0..3 {
        assert_eq!(controller.ask(&texts, "jobs --token a"), json!([]));
        assert!(asked(port, "GET", "/metrics", "").contains("rackweave_pod_active"));
    }
    // Nor does a tenant who sends nothing after the head of a request hold a place for longer.
    let began = now();
    let answer = asked(port, "POST", "/v1/jobs", &format!("{TOKEN}Content-Length: 9\r\n"));
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(
        answer.ends_with("{\"error\":\"the request was not complete within 10 s\"}"),
        "{answer}"
    );
    assert!(began.elapsed().as_secs() < 30);
    drop(silent);
    controller.process.signal("-INT");
    assert_eq!(controller.process.end().0, 0);
}

#[test]
fn each_refusal_is_a_sentence_in_json() {
    let texts = Texts::new(0, 0, 0);
    let (_, pod) = files(&texts);
    let controller = Controlling::start(&texts, &pod, "");
    for (method, path, status, why) in [
        ("GET", "/v1/jobs/abc", 400, "abc"),
        ("GET", "/v1/jobs/1?wait=300", 400, "wait"),
        ("GET", "/v1/jobs/1", 404, "has no job 1"),
        ("PUT", "/v1/jobs", 405, "no such method"),
        ("GET", "/v1/nothing", 404, "there is nothing here"),
        ("GET", "/v1", 404, "there is nothing here"),
        ("POST", "/v1/jobs", 400, "not understood"),
    ] {
        let answer = asked(controller.http, method, path, "");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{method} {path}: {answer}");
        let body: Value = serde_json::from_str(body).unwrap();
        assert!(body["error"].as_str().unwrap().contains(why), "{method} {path}: {body}");
    }
}
