//! Tests of `rackweave switch` as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rackweave_core::HostId;
use rackweave_testing::free_address;
use rackweave_wire::frisbee::{self, Auth, Body, Chunks, Direction, Header, Key, REPORT_MAP_BYTES};
use rackweave_wire::overlay;

use crate::common::now;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackweave"));
    command.arg("switch").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A switch process that is killed if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

fn refused(arguments: &[&str]) -> String {
    let Output { status, stderr, .. } = command(arguments).output().unwrap();
    let message = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{message}");
    // The message may be wrapped anywhere.
    message.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
}

#[test]
fn it_runs_shows_and_ends_with_a_summary() {
    let free = free_address();
    let metrics = free.to_string();
    let arguments = ["--listen", "127.0.0.1:0", "--hosts", "3", "--stats", "--metrics", &metrics];
    let mut running = Running(command(&arguments).spawn().unwrap());
    let mut message = BufReader::new(running.0.stderr.take().unwrap()).lines();
    let port: SocketAddr = message
        .next()
        .and_then(Result::ok)
        .and_then(|line| line.strip_prefix("host 0: ")?.parse().ok())
        .expect("it says where its ports are");
    let host = UdpSocket::bind("127.0.0.1:0").unwrap();
    host.send_to(b"nonsense", port).unwrap();

    let mut shown = BufReader::new(running.0.stdout.take().unwrap());
    let mut line = String::new();
    shown.read_line(&mut line).unwrap();
    assert!(line.contains("frames/s") && !line.contains('\x1b'), "{line}");

    // Clients that send nothing hold up no other, however many they are.
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(free).unwrap()).collect();
    let began = now();
    let mut asked = TcpStream::connect(free).unwrap();
    asked.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    asked.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(now() - began < Duration::from_secs(8), "{:?}", now() - began);
    drop(silent);
    let has = |text: &str| assert!(answer.contains(text), "{text} is missing in {answer}");
    has("\nrackweave_switch_edge_drops_total{reason=\"malformed\"} 1\n");
    has("\nrackweave_switch_link_bytes_total{link=\"switch0->h2\"} 0\n");
    let mut asked = TcpStream::connect(free).unwrap();
    asked.write_all(b"GET /secrets HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    asked.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");

    interrupt(&running.0);
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    shown.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("0 frames in, 0 out"), "{rest}");
    assert!(rest.contains("dropped at the edge: 1 (unreadable or damaged)"), "{rest}");
}

#[test]
fn a_scenarios_fabric_and_json() {
    let arguments = ["--listen", "127.0.0.1:0", "--fabric", "quickstart", "--json"];
    let mut running = Running(command(&arguments).spawn().unwrap());
    let mut message = BufReader::new(running.0.stderr.take().unwrap()).lines();
    assert!(message.next().unwrap().unwrap().starts_with("host 0: 127.0.0.1:"));
    interrupt(&running.0);
    let mut json = String::new();
    running.0.stdout.take().unwrap().read_to_string(&mut json).unwrap();
    let json = crate::common::result(&json);
    assert_eq!(json["counters"]["received"], 0);
    assert!(json["links"].as_array().unwrap().len() > 4);
}

#[test]
fn what_is_wrong_is_said() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let message = refused(&["--listen", &address, "--hosts", "2"]);
    assert!(message.contains(&format!("cannot bind UDP port {address} of h0")), "{message}");
    let message = refused(&["--interface", "rwt-none0", "--interface", "rwt-none1"]);
    assert!(message.contains("there is no interface `rwt-none0`"), "{message}");
    let message = refused(&["--listen", "127.0.0.1:0"]);
    assert!(message.contains("--listen requires --hosts N"), "{message}");
    let message = refused(&["--listen", "127.0.0.1:65535", "--hosts", "2"]);
    assert!(message.contains("need ports up to 65536"), "{message}");
    let message = refused(&["--listen", "127.0.0.1:0", "--hosts", "2", "--loss", "1.5"]);
    assert!(message.contains("must be between 0 and 1, not 1.5"), "{message}");
    let message = refused(&["--listen", "127.0.0.1:0", "--hosts", "2", "--host", "7=127.0.0.1:1"]);
    assert!(message.contains("h7 does not exist, there are 2 hosts"), "{message}");
    let two = ["--listen", "127.0.0.1:0", "--hosts", "2"];
    let message = refused(&[&two[..], &["--controller", "1"]].concat());
    assert!(message.contains("of use with --program orca only"), "{message}");
    let message = refused(&[&two[..], &["--server", "1"]].concat());
    assert!(message.contains("of use with --program swp2p only"), "{message}");
    let message = refused(&[&two[..], &["--key-file", "Cargo.toml"]].concat());
    assert!(message.contains("of use with --program orca and --program swp2p only"), "{message}");
    let message = refused(&[&two[..], &["--program", "swp2p"]].concat());
    assert!(message.contains("--program swp2p requires --server"), "{message}");
    let message = refused(&[&two[..], &["--program", "swp2p", "--server", "10.0.0.2"]].concat());
    assert!(message.contains("the server's host 2 does not exist"), "{message}");
    let message = refused(&[&two[..], &["--program", "swp2p", "--server", "192.0.2.1"]].concat());
    assert!(message.contains("expected a host's number, or its address"), "{message}");
    let bpf = ["--bpf", "--ports", "p0", "--hosts", "2:0:0:0:0:1,,0"];
    let message = refused(&[&bpf[..], &["--program", "swp2p", "--server", "0"]].concat());
    assert!(message.contains("--bpf requires --program orca"), "{message}");
    let message = refused(&[&bpf[..], &["--program", "orca", "--server", "0"]].concat());
    assert!(message.contains("of use with --program swp2p only"), "{message}");
    let message = refused(&[&two[..], &["--program", "orca", "--controller", "2"]].concat());
    assert!(message.contains("the controller's host 2 does not exist"), "{message}");
    let message = refused(&[&two[..], &["--program", "orca", "--key-file", "rwt-none"]].concat());
    assert!(message.contains("cannot read the key file rwt-none"), "{message}");
    let message = refused(&["--listen", "127.0.0.1:0", "--hosts", "2", "--buffer", "7 pounds"]);
    assert!(message.contains("the unit must be one of"), "{message}");
}

/// A host at a UDP port of the switch, which knows its address.
fn host(number: u32, port: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket.connect(port).unwrap();
    let mut hello = Vec::new();
    overlay::encode_hello(HostId(number), HostId(number), 1, 0, &mut hello);
    socket.send(&hello).unwrap();
    socket
}

#[test]
fn requests_for_chunks_go_to_their_holders() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, b"a secret of this test\n").unwrap();
    let key = Key::derive(b"a secret of this test\n");
    let arguments =
        ["--listen", "127.0.0.1:0", "--hosts", "3", "--program", "swp2p", "--server", "0"];
    let file = ["--key-file", file.to_str().unwrap()];
    let mut running =
        Running(command(&[&arguments[..], &file, &["--json"]].concat()).spawn().unwrap());
    let lines = BufReader::new(running.0.stderr.take().unwrap()).lines();
    let ports = lines.take(3).enumerate().map(|(number, line)| {
        let line = line.unwrap();
        line.strip_prefix(&format!("host {number}: ")).unwrap().parse().unwrap()
    });
    let hosts: Vec<UdpSocket> = (0..).zip(ports).map(|(number, port)| host(number, port)).collect();
    let send = |from: u32, body: Body, payload: &[u8], key: &Key| {
        let mut message = Vec::new();
        frisbee::encode(&Header::new(HostId(from), body), &mut message);
        message.extend_from_slice(payload);
        Auth::Key(*key).seal(&mut message, 0, 7, Direction::ToServer);
        let mut datagram = Vec::new();
        let length = message.len() as u16;
        overlay::encode_group(frisbee::KIND, HostId(from), HostId(0), length, &mut datagram);
        datagram.extend_from_slice(&message);
        hosts[from as usize].send(&datagram).unwrap();
        message
    };
    let receive = |host: u32| {
        let mut bytes = [0; 2048];
        let len = hosts[host as usize].recv(&mut bytes).unwrap();
        let envelope = overlay::decode_group(&bytes[..len]).unwrap();
        assert_eq!(envelope.dst, HostId(host));
        (envelope.src, bytes[overlay::BYTES as usize..len].to_vec())
    };
    let batch = Body::Batch(Chunks { image: 1, first: 8, count: 1, tries: 0 });
    let map = |byte: u8| [&[0, byte][..], &[0; REPORT_MAP_BYTES as usize - 2]].concat();
    let body = Body::Report { image: 1, window: 0 };
    // Datagrams to different ports may be read in any order, so each one waits for the one before.
    let report = send(1, body, &map(1), &key);
    assert_eq!(receive(0), (HostId(1), report));
    send(1, body, &map(0), &Key::derive(b"secret"));
    let exit = send(1, Body::Exit { client: 1, image: 2 }, &[], &key);
    assert_eq!(receive(0), (HostId(1), exit), "and not the report with another key");
    let request = send(2, batch, &[], &key);
    assert_eq!(receive(1), (HostId(2), request));
    interrupt(&running.0);
    let mut json = String::new();
    running.0.stdout.take().unwrap().read_to_string(&mut json).unwrap();
    let json = crate::common::result(&json);
    assert_eq!(
        (&json["program"]["redirected"], &json["program"]["not_authentic"]),
        (&1.into(), &1.into())
    );
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
}

#[test]
fn image_switch_is_the_same_switch_with_its_program() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rackweave"));
        let Output { status, stdout, stderr } =
            command.args(["image", "switch"]).args(arguments).output().unwrap();
        let text = String::from_utf8([stdout, stderr].concat()).unwrap();
        (
            status.code(),
            text.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" "),
        )
    };
    let interfaces = ["--interface", "rwt-none0", "rwt-none1"];
    let (code, text) = run(&[&interfaces[..], &["--server", "10.0.0.1"]].concat());
    assert_eq!(code, Some(2));
    assert!(text.contains("there is no interface `rwt-none0`"), "{text}");
    let (code, text) = run(&interfaces);
    assert_eq!(code, Some(2));
    assert!(text.contains("--server"), "{text}");
    let (code, text) = run(&["--help"]);
    assert_eq!(code, Some(0));
    assert!(
        text.starts_with("Run a switch that sends requests for chunks to hosts that have them."),
        "{text}"
    );
    for option in ["--link", "--buffer", "--stats", "--metrics", "--key-file", "--json"] {
        assert!(text.contains(option), "{option}");
    }
    let help = command(&["--help"]).output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    assert!(help.starts_with("Run a user-space switch with the simulator's queues"), "{help}");
}
