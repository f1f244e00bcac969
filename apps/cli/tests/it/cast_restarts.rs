//! `rackweave cast` while its processes are killed and started again, and over links that drop large packets. What the
//! user was told is compared with what is on the disk.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rackweave_core::Rng;
use serde_json::Value;

use crate::casts::{Receiver, content, json, rackweave};
use crate::common::{now, until};

/// The number of receivers of a cast.
const RECEIVERS: usize = 4;

fn at(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// An address for a receiver that may be started again.
fn free() -> String {
    rackweave_testing::free_address().to_string()
}

fn start(folder: &Path, address: &str) -> Receiver {
    start_with(folder, address, &[])
}

fn start_with(folder: &Path, address: &str, options: &[&str]) -> Receiver {
    let mut command = rackweave(&["receive", "--listen", address, "--dir", at(folder)]);
    command.args(options);
    Receiver::spawn(command)
}

#[expect(clippy::disallowed_methods, reason = "processes are killed at certain times")]
fn wait(span: Duration) {
    std::thread::sleep(span);
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A sender, which is killed on drop.
struct Sender(Option<Child>);

impl Sender {
    fn start(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    /// Waits for its end.
    fn output(mut self) -> Output {
        until("the cast has ended", || {
            self.0.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some())
        });
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // Killing fails if the process has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What happens to a process, and when.
#[derive(Clone, Copy, Debug)]
enum Action {
    Kill(usize),
    Start(usize),
    KillSender,
    StartSender,
}

/// Returns the events of one cast in the order of their times, and the receivers that do not come back.
fn fates(rng: &mut Rng) -> (Vec<(u64, Action)>, Vec<usize>) {
    let (mut events, mut gone) = (Vec::new(), Vec::new());
    for number in 0..RECEIVERS {
        let mut at = rng.below(700);
        for _ in 0..rng.below(3) {
            events.push((at, Action::Kill(number)));
            if rng.below(8) == 0 {
                gone.push(number);
                break;
            }
            at += rng.below(1500);
            events.push((at, Action::Start(number)));
            at += 300 + rng.below(500);
        }
    }
    if rng.below(2) == 0 {
        let at = rng.below(1200);
        events.push((at, Action::KillSender));
        events.push((at + rng.below(1000), Action::StartSender));
    }
    events.sort_by_key(|event| event.0);
    (events, gone)
}

/// A receiver's end, and whether the sender that was there had reached it.
#[derive(Clone, Copy)]
struct Killed {
    at: Instant,
    had_joined: bool,
}

/// The bytes that a receiver has in files.
fn received(place: &Path) -> u64 {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
}

/// Sends two files to four receivers while processes are killed and started again; every second cast has a key.
fn cast(number: u64) {
    let mut rng = Rng::stream(number, 0, 0, "restarts");
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, [7; 32]).unwrap();
    let options: &[&str] = if number / 4 % 2 == 1 { &["--key", at(&key)] } else { &[] };
    let files = [("big", 24_000_000), ("small", 5000)].map(|(name, len)| {
        let path = folder.path().join(name);
        std::fs::write(&path, content(len)).unwrap();
        path
    });
    let places: Vec<PathBuf> =
        (0..RECEIVERS).map(|number| folder.path().join(number.to_string())).collect();
    let mut receivers: Vec<Option<Receiver>> =
        places.iter().map(|place| Some(start_with(place, &free(), options))).collect();
    let addresses: Vec<String> =
        receivers.iter().flatten().map(|receiver| receiver.address.clone()).collect();
    let send = || {
        let mut command = rackweave(&["send", "--json", "--rate", "300 Mbps", "--retry", "10"]);
        command.args(["--to", &addresses.join(",")]).args(options).args(&files);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Sender::start(&mut command)
    };
    let (events, gone) = fates(&mut rng);
    let mut late = Vec::new();
    let began = now();
    let mut sender: Option<Sender> = Some(send());
    let mut sender_began = began;
    let received =
        || -> [u64; RECEIVERS] { std::array::from_fn(|number| received(&places[number])) };
    let mut before_sender = received();
    let mut killed: [Option<Killed>; RECEIVERS] = [None; RECEIVERS];
    for (time, event) in &events {
        if let Some(left) = ms(*time).checked_sub(began.elapsed()) {
            wait(left);
        }
        match *event {
            Action::Kill(number) => {
                receivers[number] = None;
                let had_joined = received()[number] > before_sender[number];
                killed[number] = Some(Killed { at: now(), had_joined });
            }
            Action::Start(number) => {
                receivers[number] = Some(start_with(&places[number], &addresses[number], options));
                // The promise to who was there is `--retry`, to others three seconds from the sender's start. The machine
                // may be late by half of that.
                let Some(last) = killed[number] else { continue };
                let is_late = if last.had_joined {
                    last.at.elapsed() > ms(8000)
                } else {
                    sender_began.elapsed() > ms(1500)
                };
                if is_late {
                    late.push(number);
                }
            }
            Action::KillSender => sender = None,
            Action::StartSender => {
                // It invites all of them.
                late.clear();
                before_sender = received();
                sender_began = now();
                sender = Some(send());
            }
        }
    }
    let output = sender.unwrap().output();
    let what = format!("cast {number}: {events:?}; {late:?} came late");
    let may_be_absent = [gone, late].concat();
    check(&output, &addresses, &files, &places, &may_be_absent, &what);
}

/// Compares what the sender said with the disks.
fn check(
    output: &Output,
    addresses: &[String],
    files: &[PathBuf],
    places: &[PathBuf],
    may_be_absent: &[usize],
    what: &str,
) {
    let errors = String::from_utf8_lossy(&output.stderr);
    let document = json(output);
    let said = document["receivers"].as_array().unwrap();
    let mut all = true;
    for (number, address) in addresses.iter().enumerate() {
        let of: Vec<&Value> = said.iter().filter(|it| it["host"] == **address).collect();
        assert_eq!(of.len(), 1, "{what}: {document}");
        let complete = of[0]["state"] == "complete";
        let same = |file: &PathBuf| {
            let copy = std::fs::read(places[number].join(file.file_name().unwrap()));
            copy.is_ok_and(|copy| copy == std::fs::read(file).unwrap())
        };
        let whole = files.iter().all(same);
        assert!(whole || !complete, "{what}: {address} is called complete");
        assert_eq!(of[0]["error"].is_null(), complete, "{what}: {document}");
        assert!(complete || errors.contains(address), "{what}: {address} is not named: {errors}");
        assert!(
            complete || may_be_absent.contains(&number),
            "{what}: {address} came back: {errors}"
        );
        all &= complete;
    }
    assert_eq!(output.status.code(), Some(i32::from(!all)), "{what}: {errors}");
}

/// The number of casts is that of the variable `RACKWEAVE_CASTS`, or 20.
#[test]
fn a_cast_ends_complete_or_names_who_is_not_whatever_is_killed() {
    let casts = std::env::var("RACKWEAVE_CASTS").ok().and_then(|it| it.parse().ok()).unwrap_or(20);
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..4_u64)
            .map(|lane| scope.spawn(move || (lane..casts).step_by(4).for_each(cast)))
            .collect();
        for lane in lanes {
            lane.join().unwrap();
        }
    });
}

#[test]
fn who_failed_before_a_session_was_renewed_is_still_named() {
    let folder = tempfile::tempdir().unwrap();
    let big = folder.path().join("big");
    std::fs::write(&big, content(24_000_000)).unwrap();
    let places = [0, 1, 2].map(|number| folder.path().join(number.to_string()));
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 2000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_rackweave")]);
    limited.args(["cast", "receive", "--listen", "127.0.0.1:0", "--dir", at(&places[0])]);
    let (full, good) = (Receiver::spawn(limited), start(&places[1], &free()));
    let killed = start(&places[2], &free());
    let to = [&full, &good, &killed].map(|it| it.address.clone());
    let mut command = rackweave(&["send", "--json", "--rate", "200 Mbps", "--to", &to.join(",")]);
    let sender = command.arg(&big).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let part = places[2].join("big.part");
    until("the third receives", || part.metadata().is_ok_and(|meta| meta.len() > 3_000_000));
    drop(killed);
    until("the second has all", || places[1].join("big").exists());
    // The session ends three seconds after the third was last heard of.
    wait(ms(3500));
    let _again = start(&places[2], &to[2]);
    let output = sender.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let document = json(&output);
    let states: Vec<_> = document["receivers"].as_array().unwrap().iter().collect();
    let state = |host: &str| states.iter().find(|it| it["host"] == host).map(|it| &it["state"]);
    assert_eq!(state(&to[0]), Some(&Value::from("refused")), "{document}");
    assert_eq!(state(&to[1]), Some(&Value::from("complete")), "{document}");
    assert_eq!(state(&to[2]), Some(&Value::from("complete")), "{document}");
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains(&to[0]), "{errors}");
}

#[test]
fn a_receiver_that_returns_with_another_key_is_named_with_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let [big, place, one, other] = ["big", "to", "one", "other"].map(|it| folder.path().join(it));
    std::fs::write(&big, content(24_000_000)).unwrap();
    std::fs::write(&one, [7; 32]).unwrap();
    std::fs::write(&other, [8; 32]).unwrap();
    let first = start_with(&place, &free(), &["--key", at(&one)]);
    let to = first.address.clone();
    let mut command = rackweave(&["send", "--json", "--rate", "100 Mbps", "--retry", "5"]);
    command.args(["--key", at(&one), "--to", &to]).arg(&big);
    let sender = Sender::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let part = place.join("big.part");
    until("it receives", || part.metadata().is_ok_and(|meta| meta.len() > 3_000_000));
    drop(first);
    let _second = start_with(&place, &to, &["--key", at(&other)]);
    let output = sender.output();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains(&to) && errors.contains("that it has another key"), "{errors}");
    assert_eq!(json(&output)["receivers"][0]["state"], "silent");
    assert!(!place.join("big").exists());
}

#[test]
fn receive_once_takes_a_sender_that_is_killed_and_started_again() {
    for pause in [0, 1000, 4000] {
        let folder = tempfile::tempdir().unwrap();
        let (big, place) = (folder.path().join("big"), folder.path().join("to"));
        std::fs::write(&big, content(24_000_000)).unwrap();
        let mut receiver = Receiver::into(&place, &["--once"]);
        let send = || {
            let mut command = rackweave(&["send", "--rate", "200 Mbps", "--to", &receiver.address]);
            command.arg(&big).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let mut first = send();
        let part = place.join("big.part");
        until("it receives", || part.metadata().is_ok_and(|meta| meta.len() > 3_000_000));
        first.kill().unwrap();
        first.wait().unwrap();
        wait(ms(pause));
        let output = send().wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "after {pause} ms: {output:?}");
        assert_eq!(receiver.child.wait().unwrap().code(), Some(0), "after {pause} ms");
        assert!(std::fs::read(place.join("big")).unwrap() == content(24_000_000));
    }
}

/// Namespaces of a bridge, a sender and receivers, which are removed in the end.
struct Spaces(String);

impl Spaces {
    fn name(&self, host: &str) -> String {
        format!("{}-{host}", self.0)
    }

    /// Creates the namespaces; the link to the last receiver has this MTU, and drops larger packets without a report.
    fn make(test: &str, receivers: usize, mtu: u32) -> Self {
        let this = Self(format!("rw{test}{}", std::process::id()));
        let bridge = this.name("b");
        let ip = |args: &str| {
            let status = Command::new("ip").args(args.split(' ')).status().unwrap();
            assert!(status.success(), "ip {args}");
        };
        ip(&format!("netns add {bridge}"));
        ip(&format!("-n {bridge} link add br0 type bridge mcast_snooping 0"));
        ip(&format!("-n {bridge} link set br0 up"));
        for host in 0..=receivers {
            let space = this.name(&host.to_string());
            ip(&format!("netns add {space}"));
            ip(&format!("-n {space} link add eth0 type veth peer name p{host} netns {bridge}"));
            ip(&format!("-n {bridge} link set p{host} master br0"));
            ip(&format!("-n {bridge} link set p{host} up"));
            if host == receivers {
                // A token bucket drops packets that are larger than the bucket, and divides trains of others.
                let bucket = format!("burst {} limit 1000000", mtu + 14);
                let tc = format!("-n {bridge} qdisc add dev p{host} root tbf rate 1gbit {bucket}");
                assert!(Command::new("tc").args(tc.split(' ')).status().unwrap().success(), "{tc}");
            }
            ip(&format!("-n {space} addr add 10.9.0.{}/24 dev eth0", host + 1));
            ip(&format!("-n {space} link set eth0 up"));
            ip(&format!("-n {space} link set lo up"));
            ip(&format!("-n {space} route add 224.0.0.0/4 dev eth0"));
        }
        this
    }

    fn run(&self, host: usize, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(&host.to_string())]);
        command.args([env!("CARGO_BIN_EXE_rackweave"), "cast"]).args(args);
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        for host in ["b", "0", "1", "2", "3", "4", "5"] {
            // Not every test has all of them.
            let _ = Command::new("ip").args(["netns", "del", &self.name(host)]).output();
        }
    }
}

/// The number of casts is that of the variable `RACKWEAVE_MTU_CASTS`, or 2.
#[test]
fn a_receiver_behind_a_smaller_mtu_gets_smaller_packets_and_the_user_is_told() {
    rackweave_testing::needs!(NetAdmin);
    let spaces = Spaces::make("m", 3, 1400);
    let folder = tempfile::tempdir().unwrap();
    let big = folder.path().join("big");
    std::fs::write(&big, content(10_000_000)).unwrap();
    let casts = std::env::var("RACKWEAVE_MTU_CASTS").ok().and_then(|it| it.parse().ok());
    let spreads = ["multicast", "unicast"].into_iter().cycle().take(casts.unwrap_or(2));
    for (round, spread) in spreads.enumerate() {
        let places: Vec<PathBuf> =
            (1..=3).map(|host| folder.path().join(format!("{round}-{host}"))).collect();
        let receivers: Vec<Receiver> = (1..=3)
            .map(|host| {
                let args = ["receive", "--from", "10.9.0.1", "--dir", at(&places[host - 1])];
                Receiver::spawn(spaces.run(host, &args))
            })
            .collect();
        let to = "10.9.0.2,10.9.0.3,10.9.0.4";
        let mut command = spaces.run(0, &["send", "--json", "--spread", spread, "--to", to]);
        command.arg(&big).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = Sender::start(&mut command).output();
        drop(receivers);
        let document = json(&output);
        assert_eq!(output.status.code(), Some(0), "{spread}: {output:?}");
        for place in &places {
            assert!(std::fs::read(place.join("big")).unwrap() == content(10_000_000), "{spread}");
        }
        let mtus: Vec<_> =
            document["receivers"].as_array().unwrap().iter().map(|it| &it["mtu"]).collect();
        assert_eq!(mtus, [&Value::Null, &Value::Null, &Value::from(1400)], "{document}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("10.9.0.4") && errors.contains("--mtu 1400"), "{errors}");
    }
}

#[test]
fn an_absent_host_does_not_turn_multicast_into_copies_for_the_others() {
    rackweave_testing::needs!(NetAdmin);
    let spaces = Spaces::make("a", 3, 1500);
    let folder = tempfile::tempdir().unwrap();
    let big = folder.path().join("big");
    std::fs::write(&big, content(2_000_000)).unwrap();
    let place = |host: usize| folder.path().join(host.to_string());
    let receivers: Vec<Receiver> = (1..=2)
        .map(|host| {
            let place = place(host);
            let args = ["receive", "--from", "10.9.0.1", "--dir", at(&place)];
            Receiver::spawn(spaces.run(host, &args))
        })
        .collect();
    let hosts = folder.path().join("hosts.txt");
    std::fs::write(&hosts, "10.9.0.2\n# the third is down\n10.9.0.3:6722\n10.9.0.4\n").unwrap();
    let to = format!("@{}", at(&hosts));
    let output = spaces.run(0, &["send", "--json", "--to", &to, at(&big)]).output().unwrap();
    drop(receivers);
    let document = json(&output);
    assert_eq!(document["spread"], "multicast", "{document}");
    let states: Vec<_> =
        document["receivers"].as_array().unwrap().iter().map(|it| &it["state"]).collect();
    assert_eq!(states, ["complete", "complete", "silent"], "{document}");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("10.9.0.4"), "{output:?}");
}

#[test]
fn a_host_without_multicast_does_not_turn_it_into_copies_for_the_others() {
    rackweave_testing::needs!(NetAdmin);
    let spaces = Spaces::make("u", 5, 1500);
    let folder = tempfile::tempdir().unwrap();
    let big = folder.path().join("big");
    std::fs::write(&big, content(8_000_000)).unwrap();
    let place = |host: usize| folder.path().join(host.to_string());
    let receivers: Vec<Receiver> = (1..=4)
        .map(|host| {
            let place = place(host);
            let mut args = vec!["receive", "--from", "10.9.0.1", "--dir", at(&place)];
            if host == 4 {
                // It joins the group on another interface than the one that the packets arrive at.
                args.extend(["--interface", "127.0.0.1"]);
            }
            Receiver::spawn(spaces.run(host, &args))
        })
        .collect();
    let to = "10.9.0.2,10.9.0.3,10.9.0.4,10.9.0.5";
    let output = spaces.run(0, &["send", "--json", "--to", to, at(&big)]).output().unwrap();
    drop(receivers);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let document = json(&output);
    assert_eq!(document["spread"], "multicast", "{document}");
    let receivers = document["receivers"].as_array().unwrap();
    let multicast: Vec<_> = receivers.iter().map(|it| it["multicast"].as_bool()).collect();
    assert_eq!(multicast, [Some(true), Some(true), Some(true), Some(false)], "{document}");
    assert!(receivers.iter().all(|it| it["state"] == "complete"), "{document}");
    for host in 1..=4 {
        assert!(std::fs::read(place(host).join("big")).unwrap() == content(8_000_000));
    }
    // One copy for three, and one for the fourth; some packets are repaired.
    let copies = document["link_bytes"].as_u64().unwrap() as f64 / 8e6;
    assert!((1.9..3.0).contains(&copies), "{copies}: {document}");
    let notes = String::from_utf8_lossy(&output.stderr);
    assert!(notes.contains("10.9.0.5:6722: multicast does not reach it"), "{notes}");
}

/// They answer no probe before the cast, and are probed when they are in its group.
#[test]
fn a_host_without_multicast_that_comes_late_gets_copies_of_its_own() {
    rackweave_testing::needs!(NetAdmin);
    let spaces = Spaces::make("w", 5, 1500);
    let folder = tempfile::tempdir().unwrap();
    let place = |host: usize| folder.path().join(host.to_string());
    let receive = |host: usize, more: &[&str]| {
        let place = place(host);
        let mut args = vec!["receive", "--from", "10.9.0.1", "--dir", at(&place)];
        args.extend(more);
        Receiver::spawn(spaces.run(host, &args))
    };
    let early = [receive(1, &[]), receive(2, &[])];
    let to = "10.9.0.2,10.9.0.3,10.9.0.4,10.9.0.5";
    let mut command = spaces.run(0, &["send", "--json", "--name", "log", "--to", to, "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut sender = command.spawn().unwrap();
    let mut input = sender.stdin.take().unwrap();
    let (all, mut late) = (content(30_000_000), None);
    // It lasts for five seconds; the late ones miss the first half second.
    for (nth, part) in all.chunks(300_000).enumerate() {
        if nth == 10 {
            late = Some([receive(3, &["--interface", "127.0.0.1"]), receive(4, &[])]);
        }
        input.write_all(part).unwrap();
        wait(Duration::from_millis(50));
    }
    drop(input);
    let output = sender.wait_with_output().unwrap();
    drop((early, late));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let document = json(&output);
    assert_eq!(document["spread"], "multicast", "{document}");
    let receivers = document["receivers"].as_array().unwrap();
    let multicast: Vec<_> = receivers.iter().map(|it| it["multicast"].as_bool()).collect();
    assert_eq!(multicast, [Some(true), Some(true), Some(false), Some(true)], "{document}");
    for host in 1..=4 {
        assert!(std::fs::read(place(host).join("log")).unwrap() == all, "host {host}");
    }
    let notes = String::from_utf8_lossy(&output.stderr);
    assert!(notes.contains("10.9.0.4:6722: multicast does not reach it"), "{notes}");
    assert!(!notes.contains("10.9.0.5:6722: multicast"), "{notes}");
}

#[test]
fn the_same_send_again_succeeds_and_sends_only_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("d");
    std::fs::create_dir(&source).unwrap();
    for name in ["a", "b", "c"] {
        std::fs::write(source.join(name), content(20_000_000)).unwrap();
    }
    let places = [0, 1].map(|number| folder.path().join(number.to_string()));
    let receivers = places.each_ref().map(|place| Receiver::into(place, &[]));
    let to = receivers.each_ref().map(|it| it.address.clone()).join(",");
    let send = || {
        let mut command = rackweave(&["send", "--json", "--rate", "400 Mbps", "--to", &to]);
        let output = command.arg(&source).output().unwrap();
        (output.status.code(), json(&output)["link_bytes"].as_u64().unwrap(), output)
    };
    let same = |name: &str| {
        let file = std::fs::read(source.join(name)).unwrap();
        places.iter().all(|place| std::fs::read(place.join("d").join(name)).unwrap() == file)
    };
    let (code, first, output) = send();
    assert_eq!(code, Some(0), "{output:?}");
    let (code, again, output) = send();
    assert_eq!(code, Some(0), "{output:?}");
    assert!(again < first / 3, "{again} of {first}");
    // One more file.
    std::fs::write(source.join("d"), content(5000)).unwrap();
    let (code, more, output) = send();
    assert_eq!(code, Some(0), "{output:?}");
    assert!(more < first / 3 && same("d"), "{more} of {first}");
    // Another content needs the receiver's consent.
    std::fs::write(source.join("b"), content(20_000_001)).unwrap();
    let (code, _, output) = send();
    assert_eq!(code, Some(1), "{output:?}");
    assert!(!same("b"));
    drop(receivers);
    let receivers = places.each_ref().map(|place| Receiver::into(place, &["--overwrite"]));
    let to = receivers.each_ref().map(|it| it.address.clone()).join(",");
    let mut command = rackweave(&["send", "--json", "--rate", "400 Mbps", "--to", &to]);
    let output = command.arg(&source).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let last = json(&output)["link_bytes"].as_u64().unwrap();
    assert!(last < first * 2 / 3, "{last} of {first}");
    assert!(["a", "b", "c", "d"].into_iter().all(same));
}

/// A receiver whose file differs begins again. The other one keeps the session alive, to which it is invited once more.
#[test]
fn a_receiver_that_begins_again_is_served_beside_one_that_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("set");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("a"), content(20_000_000)).unwrap();
    std::fs::write(source.join("b"), content(60_000_000)).unwrap();
    let places = [folder.path().join("x"), folder.path().join("y")];
    // The second receiver has a file of the same length with other bytes.
    std::fs::create_dir_all(places[1].join("set")).unwrap();
    std::fs::write(places[1].join("set/a"), vec![7; 20_000_000]).unwrap();
    let receivers = places.each_ref().map(|place| Receiver::into(place, &["--overwrite"]));
    let to = receivers.each_ref().map(|it| it.address.clone()).join(",");
    let mut command = rackweave(&["send", "--json", "--rate", "200 Mbps", "--to", &to]);
    let output = command.arg(&source).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for place in &places {
        for name in ["a", "b"] {
            let (found, sent) = (place.join("set").join(name), source.join(name));
            assert!(std::fs::read(found).unwrap() == std::fs::read(sent).unwrap(), "{name}");
        }
    }
}
