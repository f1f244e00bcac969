//! `rackweave cast` where something outside of it is in the way: devices, full disks behind standard output, hosts without a route or with
//! several addresses, and applications of an agent that are interrupted or killed.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::UdpSocket;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::casts::{Receiver, content, fifo, rackweave};
use crate::common::{now, until};

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("every Linux has it").into()
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn send(file: &Path, to: &str) -> Command {
    let mut command = rackweave(&["send", "--to", to]);
    command.arg(file);
    command
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

/// The receiver would have replaced the pipe by a regular file and reported success, without a byte in the pipe.
#[test]
fn a_device_or_pipe_is_not_replaced_by_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    fifo(&path);
    for more in [&[][..], &["--overwrite"]] {
        let mut command = rackweave(&["receive", "--listen", "127.0.0.1:0", "--once", "--out"]);
        let output = command.arg(&path).args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(message(&output).contains("is a device, a pipe or a socket"), "{output:?}");
    }
    assert!(path.symlink_metadata().unwrap().file_type().is_fifo());
    let output = rackweave(&["receive", "--once", "--out", "/dev/null", "--overwrite"]).output();
    assert_eq!(output.unwrap().status.code(), Some(2));
}

/// What is written to standard output is a report of the work, and not the work.
#[test]
fn a_receiver_outlives_a_full_disk_behind_its_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
    std::fs::write(&one, content(100_000)).unwrap();
    std::fs::write(&two, content(200_000)).unwrap();
    let place = folder.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let mut command = rackweave(&["receive", "--listen", "127.0.0.1:0", "--dir"]);
    command.arg(&place).stdout(full()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("receiving at ").unwrap().to_owned();
    for file in [&one, &two] {
        let output = send(file, &address).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let mut note = String::new();
        stderr.read_line(&mut note).unwrap();
        assert!(note.starts_with("error: cannot write to standard output"), "{note}");
    }
    assert!(std::fs::read(place.join("two")).unwrap() == content(200_000));
    // The sender's report is lost: it ends with 1, and not as if it had been used wrongly.
    let again = send(&two, &address).stdout(full()).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(message(&again).contains("cannot write to standard output"), "{again:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// No host has the address of all hosts of a network, so there is never a route to it.
#[test]
fn a_host_without_a_route_costs_the_others_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, content(100_000)).unwrap();
    let place = folder.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let receiver = Receiver::into(&place, &["--once"]);
    let to = format!("{},255.255.255.255:6722", receiver.address);
    let output = send(&file, &to).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let errors = message(&output);
    let errors: Vec<&str> = errors.lines().filter(|line| line.starts_with("error")).collect();
    assert_eq!(errors.len(), 1, "{output:?}");
    assert!(errors[0].contains("255.255.255.255:6722: no route to this host"), "{errors:?}");
    assert!(std::fs::read(place.join("file")).unwrap() == content(100_000));
    let output = send(&file, "255.255.255.255:6722").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(message(&output).contains("no route to this host"), "{output:?}");
}

/// A receiver at all addresses of its host answers from the one that it was addressed by, which is not that of the route back.
#[test]
fn every_address_of_a_receiver_answers() {
    let folder = tempfile::tempdir().unwrap();
    let [file, key] = ["file", "key"].map(|name| folder.path().join(name));
    std::fs::write(&file, content(3_000_000)).unwrap();
    std::fs::write(&key, "sixteen bytes and more").unwrap();
    for with_key in [false, true] {
        for any in ["0.0.0.0:0", "[::]:0"] {
            let place = folder.path().join("place");
            std::fs::create_dir(&place).unwrap();
            let protect = |command: &mut Command| {
                if with_key {
                    command.arg("--key").arg(&key);
                }
            };
            let mut command = rackweave(&["receive", "--listen", any, "--from", "127.0.0.1"]);
            command.arg("--dir").arg(&place);
            protect(&mut command);
            let receiver = Receiver::spawn(command);
            let port = receiver.address.rsplit(':').next().unwrap();
            // The second time it is there already.
            for last in [2, 3] {
                let mut command = send(&file, &format!("127.0.0.{last}:{port}"));
                protect(&mut command);
                let output = command.output().unwrap();
                assert_eq!(output.status.code(), Some(0), "{any} {with_key}: {output:?}");
            }
            drop(receiver);
            assert!(std::fs::read(place.join("file")).unwrap() == content(3_000_000));
            std::fs::remove_dir_all(&place).unwrap();
        }
    }
}

/// As a host behind an address translation, or an earlier version at all addresses of its host.
#[test]
fn an_answer_from_another_address_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, content(1000)).unwrap();
    // At the same port: another program of the machine may have it at one of the addresses.
    let pair = || {
        let asked = UdpSocket::bind("127.0.0.2:0").unwrap();
        let other = UdpSocket::bind(("127.0.0.1", asked.local_addr().unwrap().port())).ok()?;
        Some([asked, other])
    };
    let [asked, other] = std::iter::repeat_with(pair).flatten().next().unwrap();
    let [to, from] = [&asked, &other].map(|socket| socket.local_addr().unwrap());
    asked.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let sender = send(&file, &to.to_string()).stderr(Stdio::piped()).spawn().unwrap();
    let done = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; 2048];
            while !done.load(Ordering::Relaxed) {
                if let Ok((len, sender)) = asked.recv_from(&mut bytes) {
                    other.send_to(&bytes[..len], sender).unwrap();
                }
            }
        });
        let output = sender.wait_with_output();
        done.store(true, Ordering::Relaxed);
        output.unwrap()
    });
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let expected = format!("datagrams came from {from} instead");
    assert!(message(&output).contains(&expected), "{output:?}");
}

/// A file of a tebibyte, which takes little room, and minutes to hash.
fn sparse(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(1 << 40).unwrap();
    // Holes are not sent, and the end of a file not before they are hashed.
    file.write_all_at(&content(1_000_000), 0).unwrap();
}

/// The receiver hashes a file that may be the one that is sent. It would have gone on for ten seconds after a signal.
#[test]
#[expect(clippy::disallowed_methods, reason = "processes are timed")]
fn a_signal_ends_hosts_of_which_one_hashes() {
    let folder = tempfile::tempdir().unwrap();
    let [from, place] = ["from", "place"].map(|name| folder.path().join(name));
    for at in [&from, &place] {
        std::fs::create_dir(at).unwrap();
        sparse(&at.join("big"));
    }
    // Length and time alone would tell that it is there.
    let old = File::options().write(true).open(place.join("big")).unwrap();
    old.set_modified(std::time::UNIX_EPOCH).unwrap();
    // Ten seconds are the time that what has arrived gets to be written. A machine with much else to do may take long without that, but
    // not each time.
    let ends_at_once = |is_receiver: bool, name: &str| {
        let mut receiver = Receiver::into(&place, &["--once"]);
        let mut sender = send(&from.join("big"), &receiver.address);
        let mut sender = sender.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let pid = receiver.child.id();
        until("the receiver hashes", || processor_ticks(pid) > 20);
        let child = if is_receiver { &mut receiver.child } else { &mut sender };
        signal(child, name);
        let began = Instant::now();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(130), "{name}");
        let took = began.elapsed();
        if !is_receiver {
            // Its cast is over, so that the receiver need not hash for it.
            let ticks = || processor_ticks(pid);
            until("the receiver is idle", || {
                let before = ticks();
                std::thread::sleep(Duration::from_millis(200));
                ticks() <= before + 1
            });
        }
        let _ = sender.kill();
        sender.wait().unwrap();
        took < Duration::from_secs(8)
    };
    for (is_receiver, name) in [(true, "INT"), (true, "TERM"), (false, "INT")] {
        assert!((0..5).any(|_| ends_at_once(is_receiver, name)), "{is_receiver} {name}");
    }
}

/// With `--checksum` the sender reads all files before it turns to anything else.
#[test]
fn a_signal_ends_a_sender_that_hashes_for_its_manifest() {
    let folder = tempfile::tempdir().unwrap();
    sparse(&folder.path().join("big"));
    for name in ["INT", "TERM"] {
        let mut command = send(&folder.path().join("big"), "127.0.0.1:1");
        let mut sender = command.arg("--checksum").stderr(Stdio::null()).spawn().unwrap();
        until("it hashes", || processor_ticks(sender.id()) > 20);
        signal(&sender, name);
        let began = now();
        until("it ends", || sender.try_wait().unwrap().is_some());
        assert_eq!(sender.wait().unwrap().code(), Some(130), "{name}");
        assert!(began.elapsed() < Duration::from_secs(5), "{name}");
    }
}

/// The time that a process has used of processors, in hundredths of a second.
fn processor_ticks(pid: u32) -> u64 {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return 0 };
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn a_key_file_without_an_end_is_refused() {
    let output = rackweave(&["receive", "--listen", "127.0.0.1:0", "--key", "/dev/zero"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(message(&output).contains("more than 64 KiB"), "{output:?}");
}

/// Runs a command by a shell that closes or changes standard streams.
fn with(redirection: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("exec \"$0\" \"$@\" {redirection}"));
    shell.arg(command.get_program()).args(command.get_args());
    shell
}

/// A file would have been empty, and a sum without its values, with exit code 0.
#[test]
fn input_that_cannot_be_read_is_not_an_empty_one() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::into(folder.path(), &[]);
    let cast = rackweave(&["send", "-", "--to", &receiver.address]);
    let reduce = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rackweave"));
        command.arg("reduce").args(args);
        command
    };
    let vector = ["allreduce", "worker", "--master", "127.0.0.1:9", "--worker", "0", "--type"];
    let vector = reduce(&[&vector[..], &["f32", "-"]].concat());
    for closed in ["<&-", "0>/dev/null"] {
        for command in [&cast, &vector] {
            let output = with(closed, command).output().unwrap();
            assert!(matches!(output.status.code(), Some(1 | 2)), "{closed}: {output:?}");
            assert!(message(&output).contains("Bad file descriptor"), "{closed}: {output:?}");
        }
    }
    // A receiver that was invited before the sender found it out has begun the file.
    until("nothing is kept of it", || std::fs::read_dir(folder.path()).unwrap().count() == 0);
}

/// Nothing would have been written anywhere, and both ends would have reported success.
#[test]
fn output_that_cannot_be_written_is_not_received() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, content(100_000)).unwrap();
    let receive = rackweave(&["receive", "--listen", "127.0.0.1:0", "--once", "--out", "-"]);
    let receive = |redirection: &str| {
        let mut command = with(redirection, &receive);
        command.stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        (child, line, stderr)
    };
    let (mut child, line, _stderr) = receive(">&-");
    let sent = line.trim().strip_prefix("receiving at ").map(|to| send(&file, to).output());
    assert!(sent.is_none(), "{sent:?}");
    assert_eq!(child.wait().unwrap().code(), Some(2));
    let (mut child, line, _stderr) = receive("1</dev/null");
    let output = send(&file, line.trim().strip_prefix("receiving at ").unwrap()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let mut words = Command::new(env!("CARGO_BIN_EXE_rackweave"));
    words.args(["reduce", "wordcount"]).arg(&file);
    let output = with(">&-", &words).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// It would have run without an end.
#[test]
fn a_rate_of_zero_is_refused() {
    let rate = ["--rate", "0 Mbps"];
    for (command, args) in [
        ("cast", &["send", "/dev/null", "--to", "127.0.0.1:9"][..]),
        ("image", &["serve", "golden.rwi"]),
        ("image", &["fetch", "golden", "--from", "127.0.0.1", "--to", "copy"]),
    ] {
        let mut rackweave = Command::new(env!("CARGO_BIN_EXE_rackweave"));
        let output = rackweave.arg(command).args(args).args(rate).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(message(&output).contains("above zero"), "{output:?}");
    }
}

#[test]
fn a_list_of_receivers_without_an_end_is_refused() {
    let output = rackweave(&["send", "/dev/null", "--to", "@/dev/zero"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(message(&output).contains("more than 16 MiB"), "{output:?}");
}

/// Sends an unfinished standard input through an agent to a receiver with `--once`, ends the sender in the middle by a signal, and
/// returns its exit code, and the receiver's with what it printed.
fn ended_in_the_middle(name: &str) -> (Option<i32>, Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let place = folder.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let mut agent = rackweave(&["agent", "--listen", "127.0.0.1:0", "--socket"]);
    let mut agent = agent.arg(&socket).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(agent.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let mut receiver = Receiver::into(&place, &["--once"]);
    let mut sender = rackweave(&["send", "-", "--to", &receiver.address, "--socket"]);
    sender.arg(&socket).stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut sender = sender.spawn().unwrap();
    let mut input = sender.stdin.take().unwrap();
    input.write_all(&content(1_000_000)).unwrap();
    until("the receiver has something", || {
        std::fs::read_dir(&place)
            .unwrap()
            .flatten()
            .any(|it| it.metadata().unwrap().len() > 500_000)
    });
    signal(&sender, name);
    let code = sender.wait().unwrap().code();
    drop(input);
    let mut printed = String::new();
    receiver.stderr.read_to_string(&mut printed).unwrap();
    let received = receiver.child.wait().unwrap().code();
    assert!(!place.join("stdin").exists(), "{printed}");
    agent.kill().unwrap();
    agent.wait().unwrap();
    (code, received, printed)
}

#[test]
fn an_interrupted_application_of_an_agent_has_sent_nothing_complete() {
    let (code, received, printed) = ended_in_the_middle("INT");
    assert_eq!((code, received), (Some(130), Some(1)), "{printed}");
    let (code, received, printed) = ended_in_the_middle("TERM");
    assert_eq!((code, received), (Some(130), Some(1)), "{printed}");
}

#[test]
fn a_killed_application_of_an_agent_has_sent_nothing_complete() {
    let (code, received, printed) = ended_in_the_middle("KILL");
    assert_eq!((code, received), (None, Some(1)), "{printed}");
}
