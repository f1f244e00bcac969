//! `rackweave cast` by labels, between namespaces that the test creates and removes: two racks and a spine in the
//! user-space switch, with one process per host. Skipped without privileges.

use std::process::{Command, Output};

use crate::common::racks::{CONTROLLER, Process, World, content};
use crate::common::{now, until};
use serde_json::Value;

fn active(agent: u32) -> impl Fn(&Value) -> bool {
    move |event| {
        event["event"] == "promoted"
            && event["rack"] == 1
            && event["agent"] == format!("10.0.0.{agent}:6722")
    }
}

/// A file that is on its way to both racks.
struct Transfer {
    control: Process,
    /// The active agent of the second rack, which receives nothing itself.
    agent: Process,
    /// On hosts 2, 4 and 5.
    receivers: [Process; 3],
    send: Process,
}

impl Transfer {
    fn start(world: &World) -> Self {
        let control = world
            .cast(CONTROLLER, "control --json --timeout 200ms --socket control")
            .expect_line("controlling at");
        let door = world.path().join("door");
        let agent = format!("agent --controller 10.0.0.{CONTROLLER} --socket {}", door.display());
        let agent = world.cast(3, &agent).expect_line("agent at");
        control.event(active(3));
        let receivers = [2, 4, 5].map(|host| world.receiver(host));
        let to = "--to 10.0.0.2,10.0.0.4,10.0.0.5";
        let send = world.send(&format!("{to} --controller 10.0.0.{CONTROLLER} --json"));
        Self { control, agent, receivers, send }
    }
}

#[test]
fn another_agent_takes_over_when_the_active_one_is_killed() {
    let Some(world) = World::make("over") else { return };
    std::fs::write(world.path().join("big"), content(30_000_000)).unwrap();
    let _switch = world.switch();
    let Transfer { control, mut agent, mut receivers, mut send } = Transfer::start(&world);
    until("half of it is there", || world.part_len(4) > 10_000_000);
    let mut shown = Value::Null;
    // A receiver that started late joins while others receive.
    until("all three have joined", || {
        let mut sessions =
            world.command(&world.network.switch(), "cast sessions --socket control --json");
        shown = serde_json::from_slice(&sessions.output().unwrap().stdout).unwrap();
        shown["sessions"][0]["members"] == 3
    });
    assert_eq!(shown["racks"][1]["active"], "10.0.0.3:6722", "{shown:#}");
    let killed = now();
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    let event = control.event(|event| {
        event["event"] == "promoted" && event["rack"] == 1 && !event["agent"].is_null()
    });
    let after = now() - killed;
    println!("T is 200 ms; {} took over after {} ms", event["agent"], after.as_millis());
    assert!(!active(3)(&event), "{event}");
    assert_eq!(send.end(), Some(0));
    let text: String = send.stdout.iter().collect();
    let document = crate::common::result(&text);
    println!("{document:#}");
    assert_eq!(document["spread"], "labels");
    // The failed rack waits for its next agent. It does not get a copy of its own.
    let copies = document["link_bytes"].as_f64().unwrap() / 30_000_000.0;
    assert!(copies < 1.6, "{copies}");
    for (receiver, host) in receivers.iter_mut().zip([2, 4, 5]) {
        assert_eq!(receiver.end(), Some(0));
        let path = world.path().join(format!("r{host}/big"));
        assert!(std::fs::read(path).unwrap() == content(30_000_000));
    }
}

/// One transfer of 60 MB to both racks; with `kill` the active agent of the second rack is killed half way. Returns its seconds and the
/// copies that crossed the sender's link; `None` without privileges.
fn transfer(name: &str, kill: bool) -> Option<(f64, f64)> {
    const SIZE: usize = 60_000_000;
    let world = World::make(name)?;
    std::fs::write(world.path().join("big"), content(SIZE)).unwrap();
    let _switch = world.switch();
    let Transfer { control: _control, mut agent, mut receivers, mut send } =
        Transfer::start(&world);
    if kill {
        until("half of it is there", || world.part_len(4) > SIZE as u64 / 2);
        agent.child.kill().unwrap();
        agent.child.wait().unwrap();
    }
    assert_eq!(send.end(), Some(0));
    for (receiver, host) in receivers.iter_mut().zip([2, 4, 5]) {
        assert_eq!(receiver.end(), Some(0));
        let path = world.path().join(format!("r{host}/big"));
        assert!(std::fs::read(path).unwrap() == content(SIZE));
    }
    let text: String = send.stdout.iter().collect();
    let document = crate::common::result(&text);
    let number = |key: &str| document[key].as_f64().unwrap();
    Some((number("wall_s"), number("link_bytes") / SIZE as f64))
}

/// Prints each transfer as a line of JSON:
/// `cargo test -p rackweave --test it -- --ignored --nocapture ten_transfers`.
#[test]
#[ignore = "three minutes, on a machine without other load"]
fn ten_transfers_with_a_killed_agent_are_hardly_longer_than_ten_without() {
    let mut runs: [Vec<(f64, f64)>; 2] = [Vec::new(), Vec::new()];
    for nth in 0..10 {
        for kill in [false, true] {
            let Some(run) = transfer(&format!("t{nth}{}", u8::from(kill)), kill) else { return };
            println!(
                "{}",
                serde_json::json!({ "killed": kill, "seconds": run.0, "copies": run.1 })
            );
            runs[usize::from(kill)].push(run);
        }
    }
    let median = |of: &[(f64, f64)]| {
        let mut seconds: Vec<f64> = of.iter().map(|run| run.0).collect();
        seconds.sort_by(f64::total_cmp);
        f64::midpoint(seconds[4], seconds[5])
    };
    let copies = runs[1].iter().map(|run| run.1).fold(0.0, f64::max);
    let (without, with) = (median(&runs[0]), median(&runs[1]));
    println!("medians {without:.2} and {with:.2} s; at most {copies:.2} copies with a kill");
    assert!(copies <= 1.25, "{copies}");
    // T is 200 ms, as the claim `orca-failover` has it.
    assert!(with <= 1.3 * without + 0.2, "{with} against {without}");
}

#[test]
fn receivers_of_a_killed_sender_say_so_and_keep_what_they_have() {
    let Some(world) = World::make("dead") else { return };
    std::fs::write(world.path().join("big"), content(30_000_000)).unwrap();
    let _switch = world.switch();
    let _control = world.cast(CONTROLLER, "control").expect_line("controlling at");
    let mut receivers = [3, 4].map(|host| world.receiver(host));
    let controller = format!("--controller 10.0.0.{CONTROLLER}");
    let to = "--to 10.0.0.3,10.0.0.4";
    let mut send = world.send(&format!("{to} {controller}"));
    until("half of it is there", || world.part_len(3) > 10_000_000 && world.part_len(4) > 0);
    send.child.kill().unwrap();
    send.child.wait().unwrap();
    for (receiver, host) in receivers.iter_mut().zip([3, 4]) {
        assert_eq!(receiver.end(), Some(1));
        let message: Vec<String> = receiver.stderr.iter().collect();
        assert!(message.iter().any(|line| line.contains("stopped responding")), "{message:?}");
        assert!(world.part_len(host) > 0);
    }
    // The same transfer continues there.
    let mut receivers = [3, 4].map(|host| world.receiver(host));
    let mut send = world.send(&format!("{to} {controller}"));
    assert_eq!(send.end(), Some(0));
    for (receiver, host) in receivers.iter_mut().zip([3, 4]) {
        assert_eq!(receiver.end(), Some(0));
        let path = world.path().join(format!("r{host}/big"));
        assert!(std::fs::read(path).unwrap() == content(30_000_000));
    }
}

/// They got copies of their own, and nothing said why.
#[test]
fn receivers_whose_rack_has_no_agent_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let port = rackweave_testing::free_ports(4);
    let hosts: Vec<String> = (port..port + 4).map(|port| format!("\"127.0.0.1:{port}\"")).collect();
    let fabric = "{ topology = \"leaf-spine\", leaves = 2, hosts_per_leaf = 2, spines = 1 }";
    let text = format!("hosts = [{}]\nfabric = {fabric}\n", hosts.join(", "));
    std::fs::write(folder.path().join("fabric.toml"), text).unwrap();
    std::fs::write(folder.path().join("x"), vec![7; 3_000_000]).unwrap();
    let command = |args: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rackweave"));
        command.args(args.split(' ')).current_dir(folder.path());
        command
    };
    let receivers = [2, 3].map(|host| {
        let listen = format!("--listen 127.0.0.1:{} --once --dir r{host}", port + host);
        let args = format!("cast receive --fabric fabric.toml --me {host} {listen}");
        crate::casts::Receiver::spawn(command(&args))
    });
    let to = format!("127.0.0.1:{},127.0.0.1:{}", port + 2, port + 3);
    let args = format!("cast send x --fabric fabric.toml --me 0 --to {to} --spread labels");
    let output = command(&args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for receiver in &receivers {
        let note = format!("note: {}: no label reached it", receiver.address);
        assert!(text.contains(&note), "{text}");
    }
}

#[test]
fn what_labels_need_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &str| -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rackweave"));
        command.args(args.split(' ')).current_dir(folder.path()).output().unwrap()
    };
    std::fs::write(folder.path().join("x"), "x").unwrap();
    std::fs::write(folder.path().join("two"), "127.0.0.1:7001\n127.0.0.1:7002\n").unwrap();
    let cases = [
        ("cast send x --to 127.0.0.1 --spread labels", "needs --fabric"),
        ("cast send x --to 127.0.0.1:7002 --spread labels --fabric two", "--me N"),
        ("cast send x --to 127.0.0.1:7003 --spread labels --fabric two --me 0", "not among"),
        ("cast control --fabric two --me 2", "hosts 0 to 1"),
        ("cast control", "needs --fabric"),
        ("switch --program orca --bpf --ports p0 --hosts 1", "MAC,IP,PORT"),
        ("switch --bpf --ports p0 --hosts 02:0:0:0:0:1,,0", "--program orca"),
    ];
    for (args, message) in cases {
        let output = run(args);
        let text = String::from_utf8_lossy(&output.stderr);
        let text: String =
            text.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
        assert!(text.contains(message), "{args}: {text}");
        assert_eq!(output.status.code(), Some(2), "{args}: {text}");
    }
}
