//! `rackweave rpc serve` and `rackweave rpc bench`, on loopback.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rackweave_testing::free_address;
use serde_json::Value;

const TRANSPORTS: [&str; 3] = ["homa", "polo", "tcp"];

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackweave"));
    command.arg("rpc").args(args).stdin(Stdio::null());
    command
}

/// A process that is killed on drop, and the lines that it prints.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(args: &[&str]) -> Self {
        Self::start_command(command(args))
    }

    fn start_command(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("the process has ended").unwrap()
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// Waits for the end of the process; returns its exit code and its output on stderr.
    fn end(mut self) -> (i32, String) {
        self.lines.by_ref().for_each(drop);
        let status = self.child.wait().unwrap();
        let mut stderr = String::new();
        let pipe = self.child.stderr.take().unwrap();
        for line in BufReader::new(pipe).lines() {
            stderr += &(line.unwrap() + "\n");
        }
        (status.code().unwrap_or(-1), stderr)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Killing fails if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server and returns the address that it listens on.
fn serve(transport: &str, listen: &str) -> (Running, String) {
    let mut server = Running::start(&["serve", "--transport", transport, "--listen", listen]);
    let line = server.line();
    let address = line.strip_prefix(&format!("{transport} server at ")).expect("where it is");
    (server, address.to_owned())
}

fn bench(transport: &str, server: &str, more: &[&str]) -> Output {
    let mut args = vec!["bench", "--transport", transport, "--server", server];
    args.extend(more);
    command(&args).output().unwrap()
}

fn json(output: &Output) -> Value {
    let (out, error) = (output.stdout.clone(), String::from_utf8_lossy(&output.stderr));
    assert!(!out.is_empty(), "no JSON: {error}");
    crate::common::result(&String::from_utf8(out).unwrap())
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Lines are printed every second, and in the first ones no call may have ended yet.
fn until_calls_end(running: &mut Running) {
    for _ in 0..60 {
        if numbers(&running.line())[0] > 0.0 {
            return;
        }
    }
    panic!("no call has ended for a minute");
}

/// Returns the numbers in a line.
fn numbers(line: &str) -> Vec<f64> {
    line.split([' ', '(', ')', ':', ',', '/']).filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn events_are_printed_on_request() {
    for (level, expected) in [(None, false), (Some("info"), true)] {
        let mut server = command(&["serve", "--listen", "127.0.0.1:0"]);
        server.env_remove("RACKWEAVE_LOG");
        server.envs(level.map(|level| ("RACKWEAVE_LOG", level)));
        let mut server = Running::start_command(server);
        let line = server.line();
        let address = line.strip_prefix("homa server at ").unwrap().to_owned();
        server.signal("INT");
        let (_, errors) = server.end();
        let event = errors.lines().find(|line| line.contains("rackweave_rpc_bench"));
        let says = event.is_some_and(|it| it.contains("serving") && it.contains(&address));
        assert_eq!(says, expected, "{errors}");
    }
}

#[test]
fn every_transport_is_served_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    for transport in TRANSPORTS {
        let (_server, address) = serve(transport, "127.0.0.1:0");
        let dump = folder.path().join(transport);
        let output = bench(
            transport,
            &address,
            &[
                "--workload",
                "20000",
                "--outstanding",
                "6",
                "--ports",
                "2",
                "--check",
                "--json",
                "--total",
                "4 MB",
                "--deadline",
                "30",
                "--dump",
                dump.to_str().unwrap(),
            ],
        );
        assert_eq!(output.status.code(), Some(0), "{transport}: {}", stderr(&output));
        let result = json(&output);
        assert_eq!(result["transport"], transport);
        assert_eq!(result["calls"], 200);
        assert_eq!(result["bytes_out"], 4_000_000);
        assert_eq!(result["bytes_in"], 4_000_000);
        assert_eq!(result["good"], true);
        assert_eq!(result["corrupt"], 0);
        for digests in result["blake3"].as_array().unwrap() {
            assert_eq!(digests["sent"], digests["back"]);
        }
        assert!(
            result["rtt_us"]["p99"].as_f64().unwrap() >= result["rtt_us"]["p50"].as_f64().unwrap()
        );
        assert!(result["rtt_us"]["min"].as_f64().unwrap() > 0.0);
        assert_eq!(result["by_size"][0]["max_bytes"], 100_000);
        assert_eq!(result["by_size"][0]["calls"], 200);
        // Two threads and a few hundred kilobytes of messages, far from the noise and the buffers.
        assert!(result["peak_rss_bytes"].as_u64().unwrap() < 200 << 20);
        let rows = std::fs::read_to_string(&dump).unwrap();
        let mut rows = rows.lines();
        assert_eq!(rows.next(), Some("# Length   RTT (usec)"));
        assert_eq!(rows.clone().count(), 200);
        for row in rows {
            let (length, rtt) = row.split_at(8);
            assert_eq!((length, row.len()), ("   20000", 21), "{row:?}");
            assert!(rtt.trim().parse::<f64>().unwrap() > 0.0 && rtt.starts_with(' '), "{row:?}");
        }
    }
}

#[test]
fn its_lines_are_cp_nodes() {
    let (_server, address) = serve("tcp", "127.0.0.1:0");
    let more = ["--workload", "W2", "--gbps", "0.002", "--outstanding", "50", "--seconds", "2.5"];
    let output = bench("tcp", &address, &more);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("Kops/sec")).expect("a line a second");
    assert!(line.starts_with("tcp clients: "), "{line}");
    // Everything but the numbers.
    let shape: String = line.chars().filter(|c| !c.is_ascii_digit() && *c != '.').collect();
    let expected =
        "tcp clients:  Kops/sec,  Gbps out,  Gbps in, RTT (us) P  P  P , avg req length  bytes";
    assert_eq!(shape, expected, "{line}");
    assert!(text.contains(" failed\n") && text.contains("up to 1 KB"), "{text}");
}

#[test]
fn short_responses_and_a_baseline() {
    let (_server, address) = serve("tcp", "127.0.0.1:0");
    let result = json(&bench(
        "tcp",
        &address,
        &["--workload", "5000", "--one-way", "--total", "500 KB", "--json"],
    ));
    assert_eq!((&result["calls"], &result["bytes_in"]), (&100.into(), &10_000.into()));
    let result = json(&bench("tcp", &address, &["--workload", "64", "--unloaded", "30", "--json"]));
    assert_eq!((&result["calls"], &result["bytes_in"]), (&30.into(), &1920.into()));
}

#[test]
fn a_stream_comes_back_as_a_digest() {
    for transport in ["homa", "tcp"] {
        let (_server, address) = serve(transport, "127.0.0.1:0");
        let more = ["--stream", "--total", "30 MB", "--ports", "2", "--json", "--deadline", "30"];
        let output = bench(transport, &address, &more);
        assert_eq!(output.status.code(), Some(0), "{transport}: {}", stderr(&output));
        let result = json(&output);
        let digests = result["blake3"].as_array().unwrap();
        assert_eq!(digests.len(), 2);
        let bytes: u64 = digests.iter().map(|digests| digests["bytes"].as_u64().unwrap()).sum();
        assert_eq!(bytes, 30_000_000);
        for digests in digests {
            assert_eq!(digests["sent"].as_str().unwrap().len(), 64);
            assert_eq!(digests["sent"], digests["back"]);
        }
    }
}

#[test]
fn a_server_that_is_killed_ends_the_run_with_a_sentence() {
    for transport in ["homa", "tcp"] {
        let (server, address) = serve(transport, &free_address().to_string());
        let mut clients = Running::start(&[
            "bench",
            "--transport",
            transport,
            "--server",
            &address,
            "--seconds",
            "600",
            "--deadline",
            "2",
            "--outstanding",
            "4",
        ]);
        until_calls_end(&mut clients);
        server.signal("KILL");
        let (code, stderr) = clients.end();
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.contains("error: no server has answered for"), "{stderr}");
    }
}

#[test]
fn a_restarted_server_is_served_again() {
    for transport in TRANSPORTS {
        let (server, address) = serve(transport, &free_address().to_string());
        let mut clients = Running::start(&[
            "bench",
            "--transport",
            transport,
            "--server",
            &address,
            "--seconds",
            "600",
            "--deadline",
            "20",
            "--outstanding",
            "2",
        ]);
        until_calls_end(&mut clients);
        server.signal("KILL");
        drop(server);
        let (mut server, again) = serve(transport, &address);
        assert_eq!(again, address);
        let served = server.line();
        assert!(served.contains(" servers: "), "{served}");
        if numbers(&served)[0] == 0.0 {
            until_calls_end(&mut server);
        }
        // Ctrl-C ends the client normally.
        clients.signal("INT");
        let mut all = String::new();
        while let Some(Ok(line)) = clients.lines.next() {
            all += &(line + "\n");
        }
        assert!(all.contains(" calls in "), "{all}");
        assert_eq!(clients.end().0, 130);
    }
}

#[test]
fn without_a_server_the_client_reports_what_to_check() {
    let address = free_address().to_string();
    for (transport, protocol) in [("homa", "UDP"), ("tcp", "TCP")] {
        let output = bench(transport, &address, &[]);
        assert_eq!(output.status.code(), Some(1));
        let message = stderr(&output);
        for part in [&address, "nobody answers", "--allow", "firewall", protocol, transport] {
            assert!(message.contains(part), "{message}");
        }
        // The host itself says that nobody listens, and that is passed on before anything is waited for.
        let first = message.lines().next().unwrap_or_default();
        assert!(first.contains(&format!("no process listens at {address}")), "{message}");
    }
}

#[test]
fn wrong_usage_runs_nothing() {
    for (more, part) in [
        (&["--workload", "W5"][..], "W5 has messages of up to"),
        (&["--workload", "2 MB", "--max-message", "1999999"], "set to carry 1999999"),
        (&["--workload", "W9"], "W9"),
        (&["--stream", "--transport", "polo"], "no streams"),
        (&["--check", "--one-way"], "--check"),
        (&["--gbps=-1"], "--gbps"),
        (&["--deadline", "0"], "--deadline"),
        (&["--stream", "--gbps", "1"], "--gbps"),
        (&["--transport", "carrier-pigeon"], "carrier-pigeon"),
    ] {
        let output = command(&[&["bench"][..], more].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{more:?}");
        assert!(stderr(&output).contains(part), "{more:?}: {}", stderr(&output));
    }
    let output = command(&["serve", "--allow", "everybody"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let output = command(&["serve", "--transport", "tcp", "--congestion", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("reno"), "{}", stderr(&output));
}

/// Makes a key file.
fn key_file(folder: &tempfile::TempDir, name: &str, byte: u8) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, [byte; 32]).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Starts a server with these further arguments and returns the address that it listens on.
fn serve_with(more: &[&str]) -> (Running, String) {
    let mut args = vec!["serve", "--listen", "127.0.0.1:0"];
    args.extend(more);
    let mut server = Running::start(&args);
    let line = server.line();
    let address = line.split(" server at ").nth(1).expect("where it is");
    (server, address.to_owned())
}

#[test]
fn with_the_same_key_everything_arrives() {
    let folder = tempfile::tempdir().unwrap();
    let key = key_file(&folder, "key", 1);
    for transport in ["homa", "polo"] {
        let (_server, address) = serve_with(&["--transport", transport, "--key", &key]);
        let run = ["--key", &key, "--workload", "20000", "--total", "2MB", "--check", "--json"];
        let output = bench(transport, &address, &run);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(json(&output)["calls"].as_u64(), Some(100), "{}", json(&output));
    }
}

#[test]
fn keys_that_differ_end_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let (key, other) = (key_file(&folder, "key", 1), key_file(&folder, "other", 2));
    let cases: [(&[&str], &[&str], &str); 3] = [
        (&["--key", &key], &[], "it requires a key, and this host has none"),
        (&[], &["--key", &key], "it has no key, and this host has one"),
        (&["--key", &key], &["--key", &other], "it has another key than this host"),
    ];
    for (server, client, expected) in cases {
        let (_server, address) = serve_with(server);
        let output = bench("homa", &address, &[client, &["--seconds", "5"]].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected) && said.contains(&address), "{said}");
        assert!(said.contains("the same --key FILE"), "{said}");
    }
}

#[test]
fn a_key_that_cannot_be_used_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let key = key_file(&folder, "key", 1);
    let short = folder.path().join("short");
    std::fs::write(&short, [1; 15]).unwrap();
    let short = short.to_str().unwrap();
    let refused = |args: &[&str], expected: &str| {
        let output = command(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        // Long sentences are wrapped, with a bar at the beginning of each line.
        let said = stderr(&output).replace('│', " ");
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(expected), "{said}");
    };
    refused(&["bench", "--key", short], "has 15 bytes; at least 16 are required");
    refused(&["serve", "--key", "/no/such/file"], "cannot read the key file /no/such/file");
    refused(&["bench", "--transport", "tcp", "--key", &key], "the kernel's TCP is not encrypted");
}

/// What won in the simulator is what is loaded: the scenario's transport, with its parameters, at both ends.
#[test]
fn the_transport_of_a_scenario_is_served_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("x.toml");
    std::fs::write(
        &scenario,
        r#"
fabric = { topology = "single-switch", hosts = 4, host_link = "25 Gbps", host_send_delay = "20 us", host_receive_delay = "20 us" }
workload = { arrivals = "poisson", sizes = "W3", load = 0.5 }
sweep.transport.name = ["sird", "dctcp"]
"#,
    )
    .unwrap();
    let scenario = scenario.to_str().unwrap();
    // Both transports are in the file: one must be chosen, and the message says how.
    let output = command(&["bench", "--scenario", scenario]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("several transports") && said.contains("transport.name"), "{said}");
    for name in ["sird", "dctcp"] {
        let set = format!("transport.name={name}");
        let chosen = ["--scenario", scenario, "--set", &set];
        let serving = ["serve", "--listen", "127.0.0.1:0"];
        let mut server = Running::start(&[&serving[..], &chosen].concat());
        let line = server.line();
        let address = line.strip_prefix(&format!("{name} server at ")).expect("where it is");
        let asked = ["bench", "--server", address, "--workload", "20000", "--total", "2 MB"];
        let more = ["--check", "--json", "--outstanding", "4"];
        let output = command(&[&asked[..], &more, &chosen].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(json(&output)["transport"], name);
    }
}
