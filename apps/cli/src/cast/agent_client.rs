//! `cast send` and `cast receive` through the control socket of this host's agent, which owns the UDP port.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use miette::miette;
use rackweave_cast::control::stream::{self, Offered, ReceiveError, wait, write_block};
use rackweave_cast::control::{ReceiveRequest, Records, SendRequest};
use rackweave_cast::orca::EngineError;
use rackweave_cast::source::{Payload, Source};
use rackweave_linux::sys::{connect_to_own, standard_input};
use serde_json::Value;

use super::agent_socket;
use super::args::{ReceiveArgs, SendArgs, Target};
use super::outcome::report;
use super::receive::{SUCCESSOR_TIMEOUT, note_successor};
use crate::shell::signal::Interrupt;
use crate::shell::{escaped, events, exit, print, size, status};

/// The number of bytes that are written to the socket at a time.
const PIECE: u64 = 1 << 16;

/// Returns the default socket of this user's agent if `error` means that the UDP port is in use, and the agent answers there. An
/// agent of another user is not used: it could read what is sent, and choose what is received.
pub(super) fn fallback(error: &EngineError) -> Option<PathBuf> {
    let EngineError::Bind { address, source } = error else { return None };
    if source.kind() != ErrorKind::AddrInUse {
        return None;
    }
    let found = agent_socket().and_then(|path| connect_to_own(&path).map(|_| path));
    let why = match found {
        Ok(path) => return Some(path),
        Err(error) => no_agent(agent_socket().ok().as_deref(), &error),
    };
    status(&format!(
        "error: UDP port {} is in use, and {why}: give the agent's --socket, or stop the program that uses the port \
         (a host runs one `cast receive` or `cast agent` per port)\n",
        address.port(),
    ));
    None
}

/// Connects and sends the request.
pub(super) fn request(path: &Path, line: &Value) -> io::Result<UnixStream> {
    let mut stream = connect_to_own(path)?;
    match stream.write_all(format!("{line}\n").as_bytes()) {
        Ok(()) => Ok(stream),
        // An agent that refuses this user says so and hangs up, which can come before the request.
        Err(error) => Err(refusal(stream).map_or(error, io::Error::other)),
    }
}

/// Returns the reason that an agent has sent before it hung up.
fn refusal(stream: UnixStream) -> Option<String> {
    let mut line = String::new();
    BufReader::new(stream.take(1 << 16)).read_line(&mut line).ok()?;
    let answer: Value = serde_json::from_str(&line).ok()?;
    Some(answer["error"].as_str()?.to_owned())
}

/// Says that no agent answers at its socket; `None` if there is no folder for it.
fn no_agent(path: Option<&Path>, error: &io::Error) -> String {
    match path {
        Some(path) => {
            format!("no agent of this user or of root answers at {} ({error})", path.display())
        }
        None => format!("no agent can be found: {error}"),
    }
}

fn failed(path: &Path, error: &io::Error) -> u8 {
    status(&format!("error: {}\n", no_agent(Some(path), error)));
    exit::FAILED
}

/// Receives the streams that are offered to the agent.
pub(super) fn receive(
    args: &ReceiveArgs,
    target: &Target,
    path: &Path,
    receive: &ReceiveRequest,
) -> miette::Result<u8> {
    if !args.group.is_empty() {
        return Err(miette!(
            "--group: the agent of this host owns the port and is in no group; stop the agent, or choose another port with --listen"
        ));
    }
    let once = args.once;
    // Received data is on disk already, and the agent notices that the connection is gone.
    Interrupt::watch_with(move || exit::now(if once { exit::INTERRUPTED } else { exit::DONE }))?;
    if !args.common.quiet && !args.common.json {
        status(&format!("receiving at {}, through the agent of this host\n", path.display()));
    }
    loop {
        let offered = match request(path, &receive.line()).and_then(wait) {
            Ok(Ok(offered)) => offered,
            Ok(Err(error)) => {
                status(&format!("error: the agent at {}: {error}\n", path.display()));
                return Ok(exit::FAILED);
            }
            Err(error) => return Ok(failed(path, &error)),
        };
        if once {
            let again = || request(path, &receive.line());
            return one(args, target, offered, &again);
        }
        // Streams are received concurrently, one per thread.
        let (args, target) = (args.clone(), target.clone());
        std::thread::spawn(move || {
            let never = || Err(ErrorKind::Unsupported.into());
            if let Err(error) = one(&args, &target, offered, &never) {
                status(&format!("error: {error}\n"));
            }
        });
    }
}

/// Receives one stream. With `--once`, one whose sender has vanished is waited for at another connection, which `again` makes.
fn one(
    args: &ReceiveArgs,
    target: &Target,
    mut offered: Offered,
    again: &dyn Fn() -> io::Result<UnixStream>,
) -> miette::Result<u8> {
    loop {
        #[expect(clippy::disallowed_methods, reason = "a transfer over real sockets is timed")]
        let began = Instant::now();
        let taken = stream::receive(&mut offered, |stream, cancel| target.sink(stream, cancel));
        let from = offered.from;
        let seconds = began.elapsed().as_secs_f64();
        let error = match taken {
            Ok(sink) => return report(args, from, sink.content().0, &sink.files(), seconds, None),
            Err(error) => error,
        };
        if args.once && matches!(error, ReceiveError::Cut { is_silent: true, .. }) {
            note_successor(args, from, SUCCESSOR_TIMEOUT);
            // The agent waits for the end of this connection before it offers the same stream to another one.
            drop(offered);
            let next = again().and_then(|socket| {
                let limit = Duration::from_millis(SUCCESSOR_TIMEOUT.as_ms());
                socket.set_read_timeout(Some(limit))?;
                let next = wait(socket.try_clone()?)?;
                socket.set_read_timeout(None)?;
                Ok(next)
            });
            if let Ok(Ok(next)) = next {
                offered = next;
                continue;
            }
        }
        report(args, from, 0, &[], seconds, Some(&error.to_string()))?;
        return Ok(exit::FAILED);
    }
}

/// What is sent through the agent.
enum Input {
    Files(Box<dyn Source>),
    /// Standard input.
    Bytes(File),
}

/// Sends a stream through the agent and reports the result. Without a `source`, sends standard input.
pub(super) fn send(
    args: &SendArgs,
    path: &Path,
    mut send: SendRequest,
    source: Option<Box<dyn Source>>,
    interrupted: &Interrupt,
) -> miette::Result<u8> {
    if let Some(source) = &source {
        let length = source.end().unwrap_or(0);
        send.records = Some(Records { stream: source.stream(), length, content: source.content() });
    }
    send.blocks = source.is_none();
    let input = match source {
        Some(source) => Input::Files(source),
        None => Input::Bytes(
            standard_input().map_err(|error| miette!("cannot read standard input: {error}"))?,
        ),
    };
    // The agent takes a connection that is closed before the end for a stream that has failed.
    interrupted.on_first(|| {
        status("interrupted: unless the agent has all bytes already, it ends the transfer; receivers keep partial files\n");
        exit::now(exit::INTERRUPTED);
    });
    let mut stream = match request(path, &send.line()) {
        Ok(stream) => stream,
        Err(error) => return Ok(failed(path, &error)),
    };
    let written = match input {
        Input::Files(mut source) => write_records(source.as_mut(), &mut stream)?,
        Input::Bytes(input) => write_bytes(input, &mut stream)?,
    };
    // An agent that has stopped reading has sent the reason.
    if written.is_ok() {
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    let mut line = String::new();
    let answer = BufReader::new(stream).read_line(&mut line).and_then(|_| {
        let answer: Value = serde_json::from_str(&line)?;
        Ok(answer)
    });
    let answer = match (answer, written) {
        (Ok(answer), _) => answer,
        (Err(error), Ok(())) | (Err(_), Err(error)) => {
            status(&format!(
                "error: the agent at {} closed the connection: {error}\n",
                path.display()
            ));
            return Ok(exit::FAILED);
        }
    };
    let printed = if args.common.json {
        events::emit("result", answer.clone())?
    } else if args.common.quiet {
        exit::DONE
    } else {
        print(&text(&answer))?
    };
    if let Some(error) = answer["error"].as_str() {
        status(&format!("error: {}\n", escaped(error)));
    }
    for receiver in answer["receivers"].as_array().into_iter().flatten() {
        let (host, state) = (&receiver["host"], &receiver["state"]);
        if state != "complete" {
            let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
            status(&format!("error: {}: incomplete: {}\n", word(host), word(state)));
        }
    }
    Ok(if answer["complete"] == true { printed } else { exit::FAILED })
}

/// Writes all records. The inner `Err` means that the agent has stopped reading.
fn write_records(
    source: &mut dyn Source,
    stream: &mut UnixStream,
) -> miette::Result<io::Result<()>> {
    let (mut at, length) = (0, source.end().unwrap_or(0));
    while at < length {
        let len = PIECE.min(length - at);
        let mut payload = Payload::new();
        source.read(at, len as usize, &mut payload).map_err(|error| miette!("{error}"))?;
        for piece in payload {
            if let Err(error) = stream.write_all(&piece) {
                return Ok(Err(error));
            }
        }
        at += len;
    }
    Ok(Ok(()))
}

/// Copies standard input, in blocks. The inner `Err` means that the agent has stopped reading.
fn write_bytes(mut input: File, stream: &mut UnixStream) -> miette::Result<io::Result<()>> {
    let mut piece = vec![0; PIECE as usize];
    loop {
        let len = match input.read(&mut piece) {
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(miette!("cannot read standard input: {error}")),
        };
        // The empty block at the end of the input ends the stream.
        if let Err(error) = write_block(stream, &piece[..len]) {
            return Ok(Err(error));
        }
        if len == 0 {
            return Ok(Ok(()));
        }
    }
}

fn text(answer: &Value) -> String {
    let mut text = String::new();
    for receiver in answer["receivers"].as_array().into_iter().flatten() {
        let word = |key: &str| receiver[key].as_str().unwrap_or("?").to_owned();
        let bytes = size(receiver["bytes"].as_u64().unwrap_or(0));
        let seconds = receiver["wall_s"].as_f64().unwrap_or(0.0);
        text += &format!("{}  {}  {bytes} in {seconds:.2} s\n", word("host"), word("state"));
    }
    if let (Some(spread), Some(bytes)) = (answer["spread"].as_str(), answer["bytes"].as_u64()) {
        let seconds = answer["wall_s"].as_f64().unwrap_or(0.0);
        text += &format!("{} by {spread} in {seconds:.2} s, through the agent\n", size(bytes));
    }
    text
}
