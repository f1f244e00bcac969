//! Processes that die, return, stutter, or have no room.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;

use socket2::{Domain, Protocol, Socket, Type};

use super::{COMMAND, Place, Process, SERVER, chunks};
use crate::common::{nap, until};

/// The rate that makes the transfer of an image of 16 MiB last for seconds, so that faults come in its middle.
const SLOW: [&str; 2] = ["--rate", "40 Mbps"];

/// Waits until a client has this many chunks on its disk.
fn has_written(place: &Place, client: u8, at_least: u64) {
    let record = place.path(&format!("copy{client}.part.chunks"));
    // Each chunk has 16 bytes behind a header.
    until("chunks are written", || {
        fs::metadata(&record).is_ok_and(|found| found.len() >= 96 + 16 * at_least)
    });
}

#[test]
fn a_client_that_is_killed_goes_on_where_it_was_and_the_others_do_not_wait_for_it() {
    let place = Place::new(256);
    let server = place.serve(&SLOW);
    let mut clients: Vec<Process> = (2..5).map(|client| place.fetch(client, &[])).collect();
    has_written(&place, 2, 30);
    clients[0].signal("-KILL");
    clients[0].end();
    assert!(!place.path("copy2").exists(), "an incomplete file has another name");
    let mut again = place.fetch(2, &[]);
    for client in clients.iter_mut().skip(1).chain([&mut again]) {
        assert_eq!(client.end(), 0, "{:?}", client.events);
    }
    let written = again.found("written").unwrap();
    assert!(chunks(&written, "kept") >= 30, "{written}");
    assert_eq!(chunks(&written, "kept") + chunks(&written, "fetched"), 256);
    assert!((2..5).all(|client| place.is_complete(client, "disk")));
    server.interrupted();
}

#[test]
fn a_holder_that_disappears_is_replaced() {
    let place = Place::new(256);
    let server = place.serve(&SLOW);
    let mut clients: Vec<Process> = (2..5).map(|client| place.fetch(client, &[])).collect();
    has_written(&place, 3, 20);
    clients[1].signal("-KILL");
    clients[1].end();
    for client in [2, 4] {
        let process = &mut clients[client - 2];
        assert_eq!(process.end(), 0, "{:?}", process.events);
        assert!(place.is_complete(client as u8, "disk"));
    }
    let ended = server.interrupted();
    let phases: Vec<_> =
        ended["clients"].as_array().unwrap().iter().map(|it| &it["phase"]).collect();
    assert_eq!(phases, ["done", "gone", "done"]);
}

#[test]
fn clients_go_on_when_their_server_returns() {
    let place = Place::new(256);
    let mut server = place.serve(&SLOW);
    let mut clients: Vec<Process> = (2..4).map(|client| place.fetch(client, &[])).collect();
    has_written(&place, 2, 20);
    server.signal("-KILL");
    server.end();
    clients[0].event("server-lost");
    let server = place.serve(&[]);
    for (client, process) in [2, 3].into_iter().zip(&mut clients) {
        assert_eq!(process.end(), 0, "{:?}", process.events);
        assert!(process.found("server-back").is_some());
        assert!(place.is_complete(client, "disk"));
    }
    let sent = chunks(&server.interrupted(), "chunks_sent");
    // The client that returns first may be done, and gone, before the other one returns.
    assert!(sent <= 2 * 256 - 20, "what was there was not fetched a second time: {sent}");
}

#[test]
fn a_server_that_returns_with_another_image_is_noticed() {
    let place = Place::new(256);
    let mut server = place.serve(&SLOW);
    let mut client = place.fetch(2, &[]);
    has_written(&place, 2, 5);
    server.signal("-KILL");
    server.end();
    place.write_disk("disk2", 256 * (super::MIB / 16), 2);
    place.pack("disk2", "golden.rwi");
    let server = place.serve(&[]);
    assert_eq!(client.end(), 1);
    let failed = client.found("failed").unwrap();
    let why = failed["error"].as_str().unwrap();
    assert!(why.contains("it now serves another image under this name"), "{why}");
    assert!(!place.path("copy2").exists());
    server.interrupted();
}

#[test]
fn a_server_that_stays_away_is_named() {
    let place = Place::new(256);
    let mut server = place.serve(&SLOW);
    let mut client = place.fetch(2, &["--give-up", "2 s"]);
    has_written(&place, 2, 5);
    server.signal("-KILL");
    server.end();
    assert_eq!(client.end(), 1);
    let failed = client.found("failed").unwrap();
    let why = failed["error"].as_str().unwrap();
    assert!(why.contains("no chunk has arrived for too long"), "{why}");
    assert!(why.contains(&format!("the connection to the server {SERVER}")), "{why}");
    // Without a server from the beginning.
    let mut client = place.fetch(3, &["--give-up", "1 s"]);
    assert_eq!(client.end(), 1);
    let failed = client.found("failed").unwrap();
    assert!(failed["error"].as_str().unwrap().contains("cannot be used"), "{failed}");
}

#[test]
fn a_stopped_client_is_late_and_not_lost() {
    let place = Place::new(256);
    let server = place.serve(&SLOW);
    let mut clients: Vec<Process> = (2..4).map(|client| place.fetch(client, &[])).collect();
    has_written(&place, 2, 20);
    clients[0].signal("-STOP");
    assert_eq!(clients[1].end(), 0, "the other one does not wait: {:?}", clients[1].events);
    clients[0].signal("-CONT");
    assert_eq!(clients[0].end(), 0, "{:?}", clients[0].events);
    assert!(place.is_complete(2, "disk") && place.is_complete(3, "disk"));
    server.interrupted();
}

#[test]
fn an_interrupted_client_says_so_and_can_go_on() {
    let place = Place::new(256);
    let server = place.serve(&SLOW);
    let mut client = place.fetch(2, &[]);
    has_written(&place, 2, 10);
    client.signal("-INT");
    assert_eq!(client.end(), 130);
    let failed = client.found("failed").unwrap();
    assert!((10..256).contains(&chunks(&failed, "fetched")), "{failed}");
    assert!(chunks(&failed, "bytes") >= 10 << 16, "{failed}");
    assert!(!place.path("copy2").exists());
    server.interrupted();
    let server = place.serve(&[]);
    let mut client = place.fetch(2, &[]);
    assert_eq!(client.end(), 0);
    assert!(chunks(&client.found("written").unwrap(), "kept") >= 10);
    assert!(place.is_complete(2, "disk"));
    server.interrupted();
}

#[test]
fn a_client_whose_file_is_removed_meanwhile_says_so() {
    let place = Place::new(256);
    let server = place.serve(&SLOW);
    let mut client = place.fetch(2, &[]);
    has_written(&place, 2, 10);
    fs::remove_file(place.path("copy2.part")).unwrap();
    assert_eq!(client.end(), 1, "{:?}", client.events);
    let failed = client.found("failed").unwrap();
    let why = failed["error"].as_str().unwrap();
    assert!(why.contains("copy2.part: it, or its folder, was removed or renamed"), "{why}");
    assert!(!place.path("copy2").exists());
    // What is recorded of the file that is gone does not count.
    let mut client = place.fetch(2, &[]);
    assert_eq!(client.end(), 0, "{:?}", client.events);
    assert!(place.is_complete(2, "disk"));
    server.interrupted();
}

#[test]
fn a_client_whose_folder_is_renamed_meanwhile_says_so() {
    let place = Place::new(256);
    let server = place.serve(&SLOW);
    fs::create_dir(place.path("here")).unwrap();
    let mut client = place.fetch_to(2, "here/copy");
    until("a part", || place.path("here/copy.part.chunks").exists());
    fs::rename(place.path("here"), place.path("there")).unwrap();
    assert_eq!(client.end(), 1, "{:?}", client.events);
    let failed = client.found("failed").unwrap();
    let why = failed["error"].as_str().unwrap();
    assert!(why.contains("copy.part: it, or its folder, was removed or renamed"), "{why}");
    assert!(!place.path("there/copy").exists());
    server.interrupted();
}

#[test]
fn a_full_disk_ends_a_client_and_nobody_else() {
    rackweave_testing::needs!(SysAdmin);
    let place = Place::new(256);
    let server = place.serve(&[]);
    let from = format!("{SERVER}:{}", place.port);
    fs::create_dir(place.path("small")).unwrap();
    // A file system with room for a third of the image, which only this process sees.
    let script = format!(
        "mount -t tmpfs -o size=6m none small && exec {COMMAND} image fetch golden --from {from} --bind 127.0.0.2 \
         --to small/copy --json"
    );
    let mut limited = Command::new("unshare");
    limited.args(["-m", "sh", "-c", &script]).current_dir(place.folder.path());
    let mut limited = Process::start(limited);
    let mut other = place.fetch(3, &[]);
    assert_eq!(limited.end(), 1);
    let failed = limited.found("failed").unwrap();
    assert!(failed["error"].as_str().unwrap().contains("the disk is full"), "{failed}");
    assert_eq!(other.end(), 0);
    assert!(place.is_complete(3, "disk"));
    server.interrupted();
}

#[test]
fn a_file_that_would_be_too_large_is_refused_at_once() {
    let place = Place::new(256);
    let server = place.serve(&[]);
    let from = format!("{SERVER}:{}", place.port);
    // No file may have more than 4 MiB.
    let script = format!(
        "ulimit -f 4096; exec {COMMAND} image fetch golden --from {from} --bind 127.0.0.2 --to copy2 --json"
    );
    let mut limited = Command::new("bash");
    limited.args(["-c", &script]).current_dir(place.folder.path());
    let mut limited = Process::start(limited);
    assert_eq!(limited.end(), 1);
    let failed = limited.found("failed").unwrap();
    assert!(failed["error"].as_str().unwrap().contains("`ulimit -f` allows"), "{failed}");
    assert!(place.is_clean(2));
    assert_eq!(place.fetch(2, &[]).end(), 0);
    assert!(place.is_complete(2, "disk"));
    server.interrupted();
}

#[test]
fn a_damaged_image_file_is_reported_by_its_server() {
    let place = Place::new(64);
    let mut server = place.serve(&SLOW);
    // The file is damaged after it was opened.
    let mut bytes = fs::read(place.path("golden.rwi")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(place.path("golden.rwi"), &bytes).unwrap();
    let mut client = place.fetch(2, &[]);
    assert_eq!(client.end(), 1);
    let failed = client.found("failed").unwrap();
    assert!(failed["error"].as_str().unwrap().contains("golden.rwi"), "{failed}");
    server.event("failed");
    assert!(!place.path("copy2").exists());
    nap();
    server.interrupted();
}

/// Starts a command below a limit of open files, which `limit` sets in a shell.
fn limited(place: &Place, limit: &str, mut command: Command) -> Process {
    let arguments = command.get_args().map(|it| format!("'{}'", it.to_str().unwrap()));
    let script = format!("{limit}; exec {COMMAND} {}", arguments.collect::<Vec<_>>().join(" "));
    command = Command::new("bash");
    command.args(["-c", &script]).current_dir(place.folder.path());
    Process::start(command)
}

#[test]
fn a_process_that_may_not_open_more_files_says_so_and_goes_on() {
    let place = Place::new(16);
    let listen = format!("{SERVER}:{}", place.port);
    let serve = ["serve", "golden.rwi", "--listen", &listen, "--status", "none", "--json"];
    let mut server = limited(&place, "ulimit -n 32", place.command(&serve));
    server.event("listening");
    let fetch = place.fetch_command(2, &["--linger", "600 s"]);
    let mut client = limited(&place, "ulimit -n 32", fetch);
    client.event("written");
    for (process, host) in [(&mut server, 1), (&mut client, 2)] {
        let address = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, host), place.port);
        // From many hosts: of one, few connections are taken.
        let connections: Vec<_> = (1..=40)
            .map(|from| {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
                let from = SocketAddrV4::new(Ipv4Addr::new(127, 0, 9, from), 0);
                socket.bind(&from.into()).unwrap();
                socket.connect(&address.into()).unwrap();
                socket
            })
            .collect();
        let failed = process.event("not-accepted");
        assert!(failed["error"].as_str().unwrap().contains("open files"), "{failed}");
        drop(connections);
    }
    assert_eq!(place.fetch(3, &[]).end(), 0);
    assert!(place.is_complete(3, "disk"));
    for process in [&mut server, &mut client] {
        process.signal("-INT");
        assert_eq!(process.end(), 0);
        let reports = process.events.iter().filter(|it| it["event"] == "not-accepted").count();
        assert!((1..=2).contains(&reports), "at most one each minute: {reports}");
    }
}

#[test]
fn the_limit_of_open_files_is_raised_to_what_the_system_permits() {
    let place = Place::new(16);
    let listen = format!("{SERVER}:{}", place.port);
    let serve = ["serve", "golden.rwi", "--listen", &listen, "--status", "none", "--json"];
    let mut server = limited(&place, "ulimit -Sn 32", place.command(&serve));
    server.event("listening");
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<_> = files.split_whitespace().skip(3).take(2).collect();
    assert!(numbers[0] == numbers[1] && numbers[0] != "32", "{files}");
    server.interrupted();
}

#[test]
fn a_client_that_the_server_cannot_connect_to_names_the_cause() {
    rackweave_testing::needs!(NetAdmin);
    let place = Place::new(16);
    let (port, from) = (place.port, format!("{SERVER}:{}", place.port));
    // Addresses of loopback are found by the table `local`, so the rule must precede that.
    let script = format!(
        "set -e; ip link set lo up; ip rule add pref 100 lookup local; ip rule del pref 0; \
         ip rule add pref 10 to 127.0.0.2 ipproto tcp dport {port} unreachable; \
         {COMMAND} image serve golden.rwi --listen {from} --status none --json > served & \
         server=$!; while ! grep -q listening served; do sleep 0.1; done; \
         code=0; {COMMAND} image fetch golden --from {from} --bind 127.0.0.2 --to copy2 --give-up '4 s' --json || code=$?; \
         kill -INT $server; wait $server; exit $code"
    );
    let mut command = Command::new("unshare");
    // In a namespace of processes, none of them outlives the test.
    let namespaces = ["--net", "--pid", "--fork", "--kill-child"];
    command.args(namespaces).args(["sh", "-c", &script]).current_dir(place.folder.path());
    let mut client = Process::start(command);
    assert_eq!(client.end(), 1, "{:?}", client.events);
    let failed = client.found("failed").unwrap();
    let why = failed["error"].as_str().unwrap();
    let cause = format!("cannot connect to TCP port {port} of 127.0.0.2: Network is unreachable");
    assert!(why.contains("no chunk has arrived") && why.contains(&cause), "{why}");
    let served = fs::read_to_string(place.path("served")).unwrap();
    assert!(served.lines().last().unwrap().contains(&cause), "the client's last words: {served}");
}

/// Interposes what syncs a file, so that it takes half a second. `File::sync_all` is fsync.
const SLOW_SYNC: &str = "\
unsigned usleep(unsigned);
int fdatasync(int);
int fsync(int file) { usleep(500000); return fdatasync(file); }
";

#[test]
fn a_disk_that_syncs_slowly_is_waited_for() {
    let place = Place::new(16);
    fs::write(place.path("slow.c"), SLOW_SYNC).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "slow.c", "-o", "slow.so"]).current_dir(place.path("."));
    match compiler.output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => {
            println!("not tested, because the C compiler `cc` cannot be run: {error}");
            return;
        }
    }
    let server = place.serve(&[]);
    let mut command = place.fetch_command(2, &[]);
    command.env("LD_PRELOAD", place.path("slow.so"));
    let mut client = Process::start(command);
    assert_eq!(client.end(), 0, "{:?}", client.events);
    let time_of = |event: Option<serde_json::Value>| event.unwrap()["time_s"].as_f64().unwrap();
    let [received, written, left] =
        ["received", "written", "left"].map(|name| time_of(client.found(name)));
    assert!(place.is_complete(2, "disk"));
    assert!(left >= 0.5 && written >= received + 0.5, "{received} {written} {left}");
    server.interrupted();
}

#[test]
fn a_manifest_that_comes_a_byte_at_a_time_is_given_up() {
    let place = Place::new(16);
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, place.port);
    let listener = std::net::TcpListener::bind(address).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 32]).unwrap();
        stream.write_all(&[&b"RWimage2"[..], &[0; 40]].concat()).unwrap();
        stream.read_exact(&mut [0; 16]).unwrap();
        stream.write_all(&[0]).unwrap();
        stream.read_exact(&mut [0; 11]).unwrap();
        // Length and kind of the frame; the length of the manifest, the terms, and the tag.
        let frame = [&33_u32.to_le_bytes()[..], &[2], &1000_u64.to_le_bytes(), &[0; 25]].concat();
        stream.write_all(&frame).unwrap();
        let mut sent = 0;
        while stream.write_all(b"R").is_ok() {
            sent += 1;
            nap();
        }
        sent
    });
    let mut client = place.fetch(2, &["--give-up", "2 s"]);
    assert_eq!(client.end(), 1);
    let failed = client.found("failed").unwrap();
    let why = failed["error"].as_str().unwrap();
    assert!(why.contains("of the 1000 bytes of its manifest have arrived within 2 s"), "{why}");
    assert!(server.join().unwrap() < 1000);
    assert!(!place.path("copy2.part").exists());
}
