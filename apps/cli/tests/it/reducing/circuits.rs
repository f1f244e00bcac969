//! A rackless pod between real hosts: an emulated optical circuit switch moves servers from ToR to ToR in the middle of uploads.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;

use serde_json::json;

use super::*;

/// Four servers, and three ToRs with two server ports each. Uplinks are as fast as servers.
fn pod(texts: &Texts, link: &str, dark: &str, delay_ms: u64, moves: &str) -> PathBuf {
    let path = texts.path("pod.toml");
    let text = format!(
        "[fabric]\ntopology = 'rackless'\ntors = [2, 2, 2]\nhosts = 4\nuplinks = 1\ncircuits = [0, 0, 1, 1]\n\
         host_link = '{link}'\nswitching_delay = '{delay_ms} ms'\ndark = '{dark}'\n{moves}"
    );
    fs::write(&path, text).unwrap();
    path
}

/// All ways to connect four servers to ToRs with two ports each, in an order that differs from seed to seed.
fn circuits(seed: u64) -> Vec<String> {
    let mut all = Vec::new();
    for number in 0..81_u64 {
        let tors: Vec<u64> = (0..4).map(|server| number / 3_u64.pow(server) % 3).collect();
        if (0..3).all(|tor| tors.iter().filter(|it| **it == tor).count() <= 2) {
            all.push((rank(seed, number), tors));
        }
    }
    all.sort();
    let text = |tors: Vec<u64>| tors.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    all.into_iter().map(|(_, tors)| text(tors)).collect()
}

fn rank(seed: u64, number: u64) -> u64 {
    let mixed = (seed * 1000 + number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// A control channel, as a program sees it.
struct Channel {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Channel {
    fn new(path: &std::path::Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        Self { reader: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    fn send(&mut self, line: &[u8]) {
        self.stream.write_all(line).unwrap();
    }

    /// Reads an answer; nothing, if none comes.
    fn answer(&mut self) -> Value {
        let mut line = String::new();
        let _ = self.reader.read_line(&mut line);
        serde_json::from_str(&line).unwrap_or_default()
    }

    fn ask(&mut self, line: &str) -> Value {
        self.send(format!("{line}\n").as_bytes());
        self.answer()
    }
}

fn lost(counters: &Value) -> u64 {
    counters["circuits"]["lost"].as_u64().unwrap()
}

#[test]
fn counts_are_exact_while_circuits_change_in_the_middle_of_uploads() {
    let (mut moves, mut gone, mut duplicates) = (0, 0, 0);
    for seed in 0..24 {
        let texts = Texts::new(3, 3_000, 500 + seed);
        let dark = ["moved", "all"][seed as usize % 2];
        let file = pod(&texts, "3 Mbps", dark, 10 + seed % 5 * 10, "");
        let socket = texts.path("ocs.sock");
        let more = format!("--slots 512 --seed {seed} --control {} {FAULTS}", socket.display());
        let overlay = Overlay::fabric(4, &file, &more);
        // From a first move that finds the upload at its beginning; moves after its end are not made.
        let times = (0..6).map(|number| 5 + seed * 3 + number * 60);
        let schedule = times.zip(circuits(seed)).map(|(ms, tors)| format!("--move {ms}ms={tors}"));
        let schedule = schedule.collect::<Vec<_>>().join(" ");
        let how = if seed % 3 == 0 { "--no-quiesce" } else { "" };
        let mut master = texts.master(
            3,
            &format!(
                "{} --switch 0 --slots 512 --ocs {} {schedule} {how} --out counts --json",
                overlay.host(0),
                socket.display()
            ),
        );
        let mut workers = overlay.workers(&texts, "");
        let stats = master.done();
        workers.iter_mut().for_each(|worker| drop(worker.done()));
        assert_eq!(texts.result("counts"), texts.expected(), "seed {seed}");
        assert!(!master.stderr.contains("have not changed"), "{}", master.stderr);
        let counters = overlay.counters();
        let made = stats["moves"].as_u64().unwrap();
        // One may have begun when the job ended.
        let changes = counters["circuits"]["changes"].as_u64().unwrap();
        assert!(made >= 1 && changes >= made - 1, "seed {seed}: {made} of {changes}: {stats}");
        moves += made;
        gone += lost(&counters);
        duplicates += counters["program"]["duplicates"].as_u64().unwrap();
    }
    println!("{moves} moves, {gone} packets lost to them, {duplicates} duplicates");
    assert!(moves > 60 && gone > 100, "{moves} {gone}");
}

#[test]
fn a_job_that_is_stopped_for_a_move_loses_nothing_that_it_has_sent() {
    let mut all = Vec::new();
    for how in ["", "--no-quiesce"] {
        let texts = Texts::new(3, 8_000, 41);
        let file = pod(&texts, "4 Mbps", "all", 80, "");
        let socket = texts.path("ocs.sock");
        let overlay =
            Overlay::fabric(4, &file, &format!("--slots 1024 --control {}", socket.display()));
        let schedule = "--move 50ms=0,1,0,1 --move 250ms=2,1,0,0 --move 450ms=0,0,1,2";
        let more = format!("{} --switch 0 --slots 1024", overlay.host(0));
        let more = format!("{more} --ocs {} {schedule} {how}", socket.display());
        let mut master = texts.master(3, &format!("{more} --out counts --json"));
        let mut workers = overlay.workers(&texts, "");
        let stats = master.done();
        workers.iter_mut().for_each(|worker| drop(worker.done()));
        assert_eq!(texts.result("counts"), texts.expected());
        assert_eq!(stats["moves"], 3, "{}", master.stderr);
        assert!(master.stderr.contains("circuits have changed (3)"), "{}", master.stderr);
        let stopped = stats["stopped_s"].as_f64().unwrap();
        assert_eq!(stopped >= 0.24, how.is_empty(), "three dark times: {stats}");
        let counters = overlay.counters();
        assert_eq!(counters["circuits"]["changes"], 3);
        let history = counters["circuits"]["history"].as_array().unwrap();
        assert_eq!(history[3]["circuits"], json!([0, 0, 1, 2]));
        all.push((lost(&counters), counters["program"]["duplicates"].as_u64().unwrap()));
    }
    println!("packets lost and repeated, stopped and not: {all:?}");
    // In a stopped job only signs of life are lost, and second copies of packets whose first copy has arrived.
    assert!(all[1].0 > all[0].0 + 10, "{all:?}");
}

#[test]
fn a_schedule_in_the_file_is_followed_by_the_clock_of_the_switch() {
    let texts = Texts::new(3, 6_000, 42);
    let moves: String = (0..40)
        .zip(circuits(7).into_iter().cycle())
        .map(|(number, tors)| {
            format!("[[fabric.moves]]\nat = '{} ms'\ncircuits = [{tors}]\n", 200 + number * 100)
        })
        .collect();
    let file = pod(&texts, "3 Mbps", "moved", 15, &moves);
    let overlay = Overlay::fabric(4, &file, "--slots 512");
    let more = format!("{} --switch 0 --slots 512 --out counts --json", overlay.host(0));
    let mut master = texts.master(3, &more);
    let mut workers = overlay.workers(&texts, "");
    master.done();
    workers.iter_mut().for_each(|worker| drop(worker.done()));
    assert_eq!(texts.result("counts"), texts.expected());
    let counters = overlay.counters();
    let history = counters["circuits"]["history"].as_array().unwrap();
    assert!(history.len() > 2, "{}", history.len());
    assert!(lost(&counters) > 0);
    for (number, change) in (1..).zip(&history[1..]) {
        let at = change["since_s"].as_f64().unwrap();
        let expected = 0.1 + f64::from(number) * 0.1;
        assert!((at - expected).abs() < 1e-9, "{at} {expected}");
    }
}

#[test]
fn a_control_channel_is_its_users_and_refuses_what_it_does_not_understand() {
    let texts = Texts::new(1, 10, 43);
    let file = pod(&texts, "10 Mbps", "moved", 5, "");
    let socket = texts.path("ocs.sock");
    let overlay = Overlay::fabric(4, &file, &format!("--control {}", socket.display()));
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let mut channel = Channel::new(&socket);
    let shown = channel.ask(r#"{"show": "circuits"}"#);
    assert_eq!((&shown["circuits"], &shown["changes"]), (&json!([0, 0, 1, 1]), &json!(0)));
    assert_eq!((&shown["dark"], &shown["dark_us"]), (&json!("moved"), &json!(5000.0)));
    for (line, why) in [
        ("nonsense", "not JSON"),
        ("{}", "expected"),
        (r#"{"circuits": [0, 0, 1, 1], "more": 1}"#, "expected"),
        (r#"{"circuits": "0011"}"#, "expected the ToR of each server"),
        (r#"{"circuits": [0, 0, 1, -1]}"#, "expected the ToR of each server"),
        (r#"{"circuits": [0, 0, 0, 1]}"#, "ToR 0 has 2 ports"),
        (r#"{"circuits": [0, 0, 1]}"#, "the circuits are of 3 servers, and the pod has 4"),
        (r#"{"check": [0, 0, 1, 9]}"#, "there is no ToR 9"),
        ("\u{1F4A5}\0", "not JSON"),
    ] {
        let answer = channel.ask(line);
        assert_eq!(answer["ok"], false, "{line}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(why), "{line}: {answer}");
    }
    assert_eq!(channel.ask(r#"{"check": [2, 2, 1, 1]}"#)["ok"], true);
    let moved = channel.ask(r#"{"circuits": [0, 1, 0, 1]}"#);
    assert_eq!((&moved["ok"], &moved["dark_us"]), (&json!(true), &json!(5000.0)), "{moved}");
    // One that dies in the middle of a request has changed nothing, nor does its end.
    Channel::new(&socket).send(br#"{"circuits": [2, 2, "#);
    drop(channel);
    let mut endless = Channel::new(&socket);
    endless.send(&[b'x'; (1 << 16) + 1]);
    assert!(endless.answer()["error"].as_str().unwrap().contains("at most 65536 bytes"));
    let mut channel = Channel::new(&socket);
    let shown = channel.ask(r#"{"show": "circuits"}"#);
    assert_eq!((&shown["circuits"], &shown["changes"]), (&json!([0, 1, 0, 1]), &json!(1)));
    // More than a few at a time are refused, and room is there again once they are gone.
    drop(endless);
    let mut crowd = Vec::new();
    until("the crowd is complete", || {
        let mut another = Channel::new(&socket);
        // One that is refused may have been closed already.
        let _ = another.stream.write_all(b"{\"show\": \"circuits\"}\n");
        let answer = another.answer();
        let is_served = answer["ok"] == true;
        if is_served {
            crowd.push(another);
        }
        !is_served
            && answer["error"].as_str().unwrap_or_default().contains("8 others are connected")
    });
    assert!(crowd.len() <= 7, "beside the first");
    drop(crowd);
    until("there is room", || {
        let mut another = Channel::new(&socket);
        let _ = another.stream.write_all(b"{\"show\": \"circuits\"}\n");
        another.answer()["ok"] == true
    });
    assert_eq!(channel.ask(r#"{"check": [0, 0, 1, 1]}"#)["ok"], true, "the first is served still");
    drop(overlay.counters());
    assert!(!socket.exists(), "it is removed at the end");
}

#[test]
fn another_user_cannot_change_circuits() {
    rackweave_testing::needs!(SetUid);
    let texts = Texts::new(1, 10, 44);
    let file = pod(&texts, "10 Mbps", "moved", 5, "");
    fs::set_permissions(texts.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = texts.path("ocs.sock");
    let overlay = Overlay::fabric(4, &file, &format!("--control {}", socket.display()));
    // Even if its mode let others connect, they are not served.
    for (mode, code) in [(0o600, "denied"), (0o666, "")] {
        fs::set_permissions(&socket, fs::Permissions::from_mode(mode)).unwrap();
        let script = "import socket, sys\n\
             s = socket.socket(socket.AF_UNIX)\n\
             try: s.connect(sys.argv[1])\n\
             except PermissionError: sys.exit('denied')\n\
             try:\n\
             \x20   s.sendall(b'{\"circuits\": [2, 2, 1, 1]}\\n')\n\
             \x20   print(s.recv(100).decode())\n\
             except OSError: pass";
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(&socket).uid(65_534).gid(65_534);
        let Ok(output) = python.output() else {
            println!("skipped: needs python3");
            return;
        };
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.trim(), code);
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "");
    }
    assert_eq!(overlay.counters()["circuits"]["changes"], 0);
}

#[test]
fn wrong_schedules_and_channels_are_refused_before_anything_is_sent() {
    let texts = Texts::new(1, 10, 45);
    let refused = |arguments: &str| {
        let (code, said) = texts.start(arguments).end();
        assert_eq!(code, 2, "{said}");
        said
    };
    let wrong = "[[fabric.moves]]\nat = '1 s'\ncircuits = [0, 0, 0, 1]\n";
    let file = pod(&texts, "10 Mbps", "moved", 5, wrong);
    let said = refused("switch --listen 127.0.0.1:0 --fabric pod.toml");
    assert!(said.contains("ToR 0 has 2 ports at the optical circuit switch"), "{said}");
    assert!(said.contains("pod.toml") && said.contains("circuits = [0, 0, 0, 1]"), "{said}");
    fs::write(texts.path("plain.toml"), "fabric = { topology = 'single-switch', hosts = 2 }")
        .unwrap();
    let said = refused("switch --listen 127.0.0.1:0 --fabric plain.toml --control x.sock");
    assert!(said.contains("the fabric has no optical circuit switch"), "{said}");
    assert!(!texts.path("x.sock").exists());
    pod(&texts, "10 Mbps", "moved", 5, "");
    let said = refused("switch --listen 127.0.0.1:0 --fabric pod.toml --control pod.toml");
    assert!(said.contains("cannot listen for controllers at `pod.toml`"), "{said}");
    assert!(file.exists(), "a file that is no socket is not replaced");
    let said = refused("switch --listen 127.0.0.1:0 --fabric pod.toml --program orca");
    assert!(said.contains("run on fabrics with fixed racks"), "{said}");

    let socket = texts.path("ocs.sock");
    let overlay = Overlay::fabric(4, &file, &format!("--control {}", socket.display()));
    let said = refused("switch --listen 127.0.0.1:0 --fabric pod.toml --control ocs.sock");
    assert!(said.contains("another process listens there"), "{said}");
    let master = format!("reduce master --workers 1 {} --switch 0", overlay.host(0));
    for (more, why) in [
        ("--ocs ocs.sock --move 1s=0,0,0,1", "--move 1: ToR 0 has 2 ports"),
        (
            "--ocs ocs.sock --move 1s=0,0,1,1 --move 1s=0,0",
            "--move 2: the circuits are of 2 servers",
        ),
        ("--ocs ocs.sock --move soon=0,0", "expected a time from the start of the upload"),
        (
            "--ocs none.sock --move 1s=0,0,1,1",
            "cannot reach a switch's control channel at `none.sock`",
        ),
        ("--ocs ocs.sock", "--move"),
    ] {
        let said = refused(&format!("{master} {more}"));
        assert!(said.contains(why), "{more}: {said}");
    }
    assert_eq!(overlay.counters()["circuits"]["changes"], 0);
}

#[test]
fn a_job_goes_on_when_circuits_cannot_be_changed() {
    let texts = Texts::new(2, 20_000, 46);
    let socket = texts.path("ocs.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    // A switch that checks everything well, refuses the first change, and is gone at the second.
    let switch = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for answer in
            [r#"{"ok": true}"#, r#"{"ok": true}"#, r#"{"ok": false, "error": "a mirror is stuck"}"#]
        {
            lines.next().unwrap().unwrap();
            writeln!(&stream, "{answer}").unwrap();
        }
        lines.next().unwrap().unwrap()
    });
    let port = free_ports(1);
    let moves = "--ocs ocs.sock --move 0s=0,1 --move 0s=1,0";
    let mut master =
        texts.master(2, &format!("--listen 127.0.0.1:{port} {moves} --out counts --json"));
    let mut workers: Vec<_> = (0..2)
        .map(|number| {
            let to = format!("--master 127.0.0.1:{port} --worker {number} text{number}");
            texts.start(&format!("reduce worker {to}"))
        })
        .collect();
    workers.iter_mut().for_each(|worker| drop(worker.done()));
    let stats = master.done();
    assert_eq!(texts.result("counts"), texts.expected());
    assert_eq!(stats["moves"], 0);
    let said = &master.stderr;
    assert!(said.contains("note: circuits have not changed: a mirror is stuck"), "{said}");
    assert!(said.contains("the switch has closed its control channel"), "{said}");
    assert_eq!(switch.join().unwrap(), r#"{"circuits":[1,0]}"#);
}
