//! `rackweave cast` by labels, between namespaces that the test creates and removes: two racks and a spine in the
//! user-space switch, with one process per host. Skipped without privileges.

use std::process::{Command, Output};

use crate::common::racks::{CONTROLLER, World, content};
use crate::common::{now, until};
use serde_json::Value;

fn active(agent: u32) -> impl Fn(&Value) -> bool {
    move |event| {
        event["event"] == "promoted"
            && event["rack"] == 1
            && event["agent"] == format!("10.0.0.{agent}:6722")
    }
}

#[test]
fn another_agent_takes_over_when_the_active_one_is_killed() {
    let Some(world) = World::make("over") else { return };
    std::fs::write(world.path().join("big"), content(30_000_000)).unwrap();
    let _switch = world.switch();
    let control = world
        .cast(CONTROLLER, "control --json --timeout 200ms --socket control")
        .expect_line("controlling at");
    let door = world.path().join("door");
    let agent = format!("agent --controller 10.0.0.{CONTROLLER} --socket {}", door.display());
    let mut agent = world.cast(3, &agent).expect_line("agent at");
    control.event(active(3));
    let mut receivers = [4, 5].map(|host| world.receiver(host));
    let mut send =
        world.send(&format!("--to 10.0.0.4,10.0.0.5 --controller 10.0.0.{CONTROLLER} --json"));
    until("half of it is there", || world.part_len(4) > 10_000_000);
    let shown = world.command(&world.network.switch(), "cast sessions --socket control --json");
    let shown: Value = serde_json::from_slice(&{ shown }.output().unwrap().stdout).unwrap();
    assert_eq!(shown["sessions"][0]["members"], 2, "{shown:#}");
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
    for (receiver, host) in receivers.iter_mut().zip([4, 5]) {
        assert_eq!(receiver.end(), Some(0));
        let path = world.path().join(format!("r{host}/big"));
        assert!(std::fs::read(path).unwrap() == content(30_000_000));
    }
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
