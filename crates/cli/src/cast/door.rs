//! `cast send` and `cast receive` on a host whose port is its agent's: through the agent's door.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use miette::miette;
use rackweave_cast::door::stream::{Offered, take, wait};
use rackweave_cast::door::{ReceiveWish, Records, SendWish};
use rackweave_cast::engine::EngineError;
use rackweave_cast::source::{Payload, Source};
use serde_json::Value;

use super::receive::{ReceiveArgs, Target, report};
use super::send::SendArgs;
use super::{agent, say, size};
use crate::{exit, print};

/// Bytes of a stream that are handed on at a time.
const PIECE: u64 = 1 << 16;

/// The door to go through instead: the one that was named, or, if the port is taken, that of the agent that may have it.
pub(super) fn instead(error: &EngineError, socket: Option<&Path>) -> Option<PathBuf> {
    let EngineError::Bind { address, source } = error else { return None };
    if source.kind() != ErrorKind::AddrInUse {
        return None;
    }
    let path = socket.unwrap_or(Path::new(agent::SOCKET));
    if UnixStream::connect(path).is_ok() {
        return Some(path.to_owned());
    }
    say(&format!(
        "error: UDP port {} is taken, and no agent of this host answers at {}: name the agent's --socket, or end \
         whatever has the port (one `cast receive` or `cast agent` a host and port)\n",
        address.port(),
        path.display()
    ));
    None
}

/// A connection that has said what it wants.
fn knock(path: &Path, line: &Value) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(format!("{line}\n").as_bytes())?;
    Ok(stream)
}

fn no_agent(path: &Path, error: &io::Error) -> u8 {
    say(&format!("error: no agent answers at {}: {error}\n", path.display()));
    exit::FAILED
}

/// Takes the streams that the agent is offered.
pub(super) fn receive(
    args: &ReceiveArgs,
    target: &Target,
    path: &Path,
    wish: &ReceiveWish,
) -> miette::Result<u8> {
    if !args.group.is_empty() {
        return Err(miette!(
            "--group: this host's port is its agent's, which is in no group; end the agent, or take another port with --listen"
        ));
    }
    let once = args.once;
    // What has come is on the disk, and the agent notices.
    ctrlc::set_handler(move || {
        std::process::exit(i32::from(if once { exit::INTERRUPTED } else { exit::DONE }));
    })
    .map_err(|error| miette!("cannot listen for Ctrl-C: {error}"))?;
    if !args.common.quiet && !args.common.json {
        say(&format!("receiving at {}, by the agent of this host\n", path.display()));
    }
    loop {
        let offered = match knock(path, &wish.line()).and_then(wait) {
            Ok(Ok(offered)) => offered,
            Ok(Err(error)) => {
                say(&format!("error: the agent at {} says: {error}\n", path.display()));
                return Ok(exit::FAILED);
            }
            Err(error) => return Ok(no_agent(path, &error)),
        };
        if once {
            return one(args, target, offered);
        }
        // The next one need not wait for this.
        let (args, target) = (args.clone(), target.clone());
        std::thread::spawn(move || {
            if let Err(error) = one(&args, &target, offered) {
                say(&format!("error: {error}\n"));
            }
        });
    }
}

fn one(args: &ReceiveArgs, target: &Target, offered: Offered) -> miette::Result<u8> {
    #[expect(clippy::disallowed_methods, reason = "a transfer over real sockets is timed")]
    let began = Instant::now();
    let from = offered.from;
    let taken = take(offered, |stream| target.sink(stream));
    let seconds = began.elapsed().as_secs_f64();
    match taken {
        Ok(sink) => report(args, from, sink.content().0, &sink.files(), seconds, None),
        Err(error) => {
            report(args, from, 0, &[], seconds, Some(&error.to_string()))?;
            Ok(exit::FAILED)
        }
    }
}

/// Hands a stream to the agent, and tells what came of it. `source`: files; else standard input.
pub(super) fn send(
    args: &SendArgs,
    path: &Path,
    mut wish: SendWish,
    source: Option<Box<dyn Source>>,
) -> miette::Result<u8> {
    if let Some(source) = &source {
        let length = source.end().unwrap_or(0);
        wish.records = Some(Records { stream: source.stream(), length, content: source.content() });
    }
    let mut stream = match knock(path, &wish.line()) {
        Ok(stream) => stream,
        Err(error) => return Ok(no_agent(path, &error)),
    };
    let given = match source {
        Some(mut source) => give(source.as_mut(), &mut stream)?,
        None => pour(&mut stream)?,
    };
    // An agent that reads no more has said why.
    if given.is_ok() {
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    let mut line = String::new();
    let answer = BufReader::new(stream).read_line(&mut line).and_then(|_| {
        let answer: Value = serde_json::from_str(&line)?;
        Ok(answer)
    });
    let answer = match (answer, given) {
        (Ok(answer), _) => answer,
        (Err(error), Ok(())) | (Err(_), Err(error)) => {
            say(&format!("error: the agent at {} has ended: {error}\n", path.display()));
            return Ok(exit::FAILED);
        }
    };
    if args.common.json {
        print(&format!("{answer:#}\n"))?;
    } else if !args.common.quiet {
        print(&text(&answer))?;
    }
    if let Some(error) = answer["error"].as_str() {
        say(&format!("error: {error}\n"));
    }
    for receiver in answer["receivers"].as_array().into_iter().flatten() {
        let (host, state) = (&receiver["host"], &receiver["state"]);
        if state != "complete" {
            let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
            say(&format!("error: {} has not everything: {}\n", word(host), word(state)));
        }
    }
    Ok(if answer["complete"] == true { exit::DONE } else { exit::FAILED })
}

/// All records. `Err` inside: the agent takes no more.
fn give(source: &mut dyn Source, stream: &mut UnixStream) -> miette::Result<io::Result<()>> {
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

fn pour(stream: &mut UnixStream) -> miette::Result<io::Result<()>> {
    let mut input = io::stdin().lock();
    let mut piece = vec![0; PIECE as usize];
    loop {
        let len = match input.read(&mut piece) {
            Ok(0) => return Ok(Ok(())),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(miette!("cannot read standard input: {error}")),
        };
        if let Err(error) = stream.write_all(&piece[..len]) {
            return Ok(Err(error));
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
        text += &format!("{} by {spread} in {seconds:.2} s, by the agent\n", size(bytes));
    }
    text
}
