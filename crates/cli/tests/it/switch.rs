//! Tests of `rackweave switch` as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Output, Stdio};

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
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
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

    let mut asked = TcpStream::connect(free).unwrap();
    asked.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    asked.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
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
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
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
    let message = refused(&[&two[..], &["--program", "orca", "--controller", "2"]].concat());
    assert!(message.contains("the controller's host 2 does not exist"), "{message}");
    let message = refused(&[&two[..], &["--program", "orca", "--key-file", "rwt-none"]].concat());
    assert!(message.contains("cannot read rwt-none"), "{message}");
    let message = refused(&["--listen", "127.0.0.1:0", "--hosts", "2", "--buffer", "7 pounds"]);
    assert!(message.contains("the unit must be one of"), "{message}");
}
