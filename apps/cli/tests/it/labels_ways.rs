//! `rackweave cast` by labels: through agents' control sockets, with a key, and with ToRs in the kernel. Skipped without
//! privileges.

use std::process::Command;

use crate::common::racks::{CONTROLLER, HOSTS, Process, SENDER, World, content};
use crate::common::{now, until};
use rackweave_core::HostId;
use serde_json::Value;

const LENGTH: usize = 30_000_000;

/// Starts an agent; it is ready when it has printed this.
fn agent(world: &World, host: u32, more: &str) -> Process {
    let args =
        format!("agent --controller 10.0.0.{CONTROLLER} --socket door{host} --spool .{more}");
    world.cast(host, &args).expect_line("agent at")
}

fn document(part: &mut Process) -> Value {
    ended(part).0
}

/// Returns the result, and the lines of standard error.
fn ended(part: &mut Process) -> (Value, Vec<String>) {
    let code = part.end();
    let text: String = part.stdout.iter().collect();
    let message: Vec<String> = part.stderr.iter().collect();
    assert_eq!(code, Some(0), "{text} {message:?}");
    (crate::common::result(&text), message)
}

fn assert_has(world: &World, host: u32) {
    let path = world.path().join(format!("r{host}/big"));
    assert!(std::fs::read(&path).unwrap() == content(LENGTH), "{}", path.display());
}

/// If an agent owns the port of a host, `send` and `receive` use its control socket; this includes labels, since the
/// agent knows the fabric.
#[test]
fn send_and_receive_go_through_agents() {
    let Some(world) = World::make("door") else { return };
    std::fs::write(world.path().join("big"), content(LENGTH)).unwrap();
    let _switch = world.switch();
    let control = world.cast(CONTROLLER, "control --json").expect_line("controlling at");
    let mut agents: Vec<Process> =
        [SENDER, 4].map(|host| agent(&world, host, " --spool-limit 4MB")).into();
    control.event(|event| event["event"] == "promoted" && event["agent"] == "10.0.0.4:6722");

    // The port is taken, and no agent answers at this machine's default socket, which is reported.
    let refused = world.cast(4, "receive --once --dir r4 --socket nowhere");
    let message: Vec<String> = { refused }.stderr.iter().collect();
    assert!(
        message.iter().any(|line| line.contains("or of root answers at nowhere")),
        "{message:?}"
    );
    // The agent refuses a request that it cannot fulfil.
    std::fs::write(world.path().join("key"), "0123456789abcdef").unwrap();
    let refused = world.cast(4, "receive --once --dir r4 --socket door4 --key key");
    let message: Vec<String> = { refused }.stderr.iter().collect();
    assert!(message.iter().any(|line| line.contains("started without --key")), "{message:?}");
    let refused = world.cast(4, "receive --once --dir r4 --socket door4 --from 192.0.2.1");
    let message: Vec<String> = { refused }.stderr.iter().collect();
    assert!(message.iter().any(|line| line.contains("without `--from 192.0.2.1`")), "{message:?}");

    let mut receivers = [
        world.cast(4, "receive --once --dir r4 --socket door4 --json --from 10.0.0.0"),
        world.receiver(5),
        world.receiver(2),
    ];
    // Once the second receiver waits, the agent no longer refuses streams as busy; until then the sender retries.
    let shown = |what: &str| {
        let args = format!("cast sessions --socket {what} --json");
        let mut command = world.command(&world.network.switch(), &args);
        let shown: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        shown
    };
    until("it waits for a stream", || shown("door4")["waiting"] == 1);
    let mut send =
        world.cast(SENDER, "send big --socket door0 --to 10.0.0.4,10.0.0.5,10.0.0.2 --json");
    let sent = document(&mut send);
    println!("{sent:#}");
    assert_eq!(sent["spread"], "labels", "the agent knows the fabric");
    assert_eq!(sent["complete"], true);
    for receiver in sent["receivers"].as_array().unwrap() {
        assert_eq!(receiver["state"], "complete", "{sent:#}");
    }
    // One copy was sent, not three (plus headers, repairs and pings).
    assert!(sent["link_bytes"].as_u64().unwrap() < 2 * LENGTH as u64, "{sent:#}");
    for (receiver, host) in receivers.iter_mut().zip([4, 5, 2]) {
        assert_eq!(receiver.end(), Some(0), "h{host}");
        assert_has(&world, host);
    }
    let received: String = receivers[0].stdout.iter().collect();
    let received = crate::common::result(&received);
    assert_eq!(
        (&received["state"], &received["from"]),
        (&"received".into(), &"10.0.0.0:6722".into())
    );

    // An application's bytes are sent by labels as well, and none are dropped if it writes faster than the link.
    let mut receivers = [3, 5].map(|host| {
        let args = format!("receive --controller 10.0.0.{CONTROLLER} --once --out big{host}");
        world.cast(host, &args).expect_line("receiving at")
    });
    let mut command = world.command(
        &world.network.host(HostId(SENDER)),
        "cast send - --socket door0 --to 10.0.0.3,10.0.0.5 --json --name app",
    );
    command.stdin(std::fs::File::open(world.path().join("big")).unwrap());
    let output = command.output().unwrap();
    let sent: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&sent["spread"], &sent["complete"]), (&"labels".into(), &true.into()), "{sent:#}");
    for (receiver, host) in receivers.iter_mut().zip([3, 5]) {
        assert_eq!(receiver.end(), Some(0), "h{host}");
        assert!(std::fs::read(world.path().join(format!("big{host}"))).unwrap() == content(LENGTH));
    }
    for agent in &mut agents {
        assert!(agent.child.try_wait().unwrap().is_none(), "agents stay");
    }
}

/// The last agent of a rack is killed: its receivers get copies, and every byte arrives.
fn a_rack_loses_its_agents(world: &World, key: &str) {
    std::fs::write(world.path().join("big"), content(LENGTH)).unwrap();
    let control =
        world.cast(CONTROLLER, &format!("control --json{key}")).expect_line("controlling at");
    let mut agents = [3, 5].map(|host| agent(world, host, key));
    control.event(|event| event["event"] == "promoted" && event["rack"] == 1);
    control.event(|event| event["event"] == "live" && event["host"] == "10.0.0.5:6722");
    // One receiver is not an agent, and one is in the sender's rack.
    let mut receivers = [4, 2].map(|host| {
        let args = format!("receive --from 10.0.0.{SENDER} --once --dir r{host}{key}");
        world.cast(host, &args).expect_line("receiving at")
    });
    let to = format!("--to 10.0.0.4,10.0.0.2 --controller 10.0.0.{CONTROLLER} --json{key}");
    let mut send = world.send(&to);
    for agent in &mut agents {
        let before = world.part_len(4);
        until("some of it is there", || world.part_len(4) > before + 5_000_000);
        let killed = now();
        agent.child.kill().unwrap();
        agent.child.wait().unwrap();
        let event = control.event(|event| event["event"] == "promoted" && event["rack"] == 1);
        println!("{} after {} ms", event["agent"], (now() - killed).as_millis());
    }
    let (sent, notes) = ended(&mut send);
    println!("{sent:#}");
    assert_eq!(sent["spread"], "labels");
    // Labels have reached one of them; the sender's rack never had an agent.
    let notes: Vec<_> = notes.iter().filter(|it| it.contains("no label reached it")).collect();
    assert!(notes.len() == 1 && notes[0].contains("10.0.0.2:6722"), "{notes:?}");
    for (receiver, host) in receivers.iter_mut().zip([4, 2]) {
        assert_eq!(receiver.end(), Some(0), "h{host}");
        assert_has(world, host);
    }
}

fn key(world: &World) -> &'static str {
    std::fs::write(world.path().join("key"), [7; 32]).unwrap();
    " --key key"
}

#[test]
fn with_a_key_through_the_switch_in_user_space() {
    let Some(world) = World::make("key") else { return };
    let key = key(&world);
    let _switch = world.switch_with(" --key-file key");
    a_rack_loses_its_agents(&world, key);
}

/// Creates two racks that are connected by a link, each with its `ToR` in the kernel.
fn tors(test: &str, more: &str) -> Option<(World, [Process; 2])> {
    rackweave_testing::needs!(Clang, None);
    let world = World::with_fabric(test, "topology = 'dumbbell'\nleft = 3\nright = 3")?;
    let space = world.network.switch();
    let ip = |args: &str| {
        let done = Command::new("ip").args(["-n", &space]).args(args.split(' ')).status();
        assert!(done.unwrap().success(), "{args}");
    };
    ip("link add u0 type veth peer name u1");
    ip("link set u0 up");
    ip("link set u1 up");
    std::fs::write(world.path().join("key"), [7; 32]).unwrap();
    let tor = |rack: u32| {
        let (mine, controller) = (3 * rack..3 * rack + 3, if rack == 0 { CONTROLLER } else { 3 });
        let ports: Vec<String> = mine.clone().map(|host| format!("h{host}")).collect();
        let hosts: Vec<String> = (0..HOSTS)
            .map(|host| {
                let port = if mine.contains(&host) { host - mine.start } else { 3 };
                format!("02:00:00:00:00:{host:02x},10.0.0.{host},{port}")
            })
            .collect();
        let (ports, hosts) = (ports.join(","), hosts.join(";"));
        let args = format!(
            "switch --program orca --bpf --ports {ports},u{rack} --hosts {hosts} --uplinks 3 --rack {rack} \
             --fabric fabric.toml --controller {controller}{more}"
        );
        world.start(&space, &args).expect_line("ready")
    };
    let tors = [0, 1].map(tor);
    Some((world, tors))
}

#[test]
fn tors_in_the_kernel_of_two_racks() {
    let Some((world, _tors)) = tors("tors", "") else { return };
    a_rack_loses_its_agents(&world, "");
}

#[test]
fn with_a_key_through_tors_in_the_kernel() {
    let Some((world, _tors)) = tors("ktors", " --key-file key") else { return };
    a_rack_loses_its_agents(&world, key(&world));
}
