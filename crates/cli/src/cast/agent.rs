//! `rackweave cast agent`.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use miette::miette;
use rackweave_cast::door::{Door, Request, dismiss, has_left};
use rackweave_cast::engine::{Accept, Decision, Engine, EngineEvent};
use rackweave_cast::sink::{PipeSink, Sink};
use rackweave_cast::source::Pipe;
use rackweave_core::{HostId, Span};
use rackweave_group::orca::host::Spread;
use rackweave_wire::orca::{Reason, Session};
use serde_json::json;

use super::fabric::RackArgs;
use super::send::{FlowArgs, is_complete, state};
use super::{CommonArgs, host, interrupted, random, say};
use crate::exit;

/// Where applications connect, if nothing else is said.
pub(super) const SOCKET: &str = "/tmp/rackweave-cast.sock";

/// Serve applications of this host: streams in and out by a Unix socket.
///
/// One connection is one stream. Its first line is JSON, {"send": {"to": ["192.0.2.7:6722"], "name": "log"}} or
/// {"receive": {}}; then bytes. Nothing is dropped: who reads slowly is waited for. With --fabric and --controller it also
/// relays for its rack, and puts labels on what comes for it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave cast agent --socket /run/cast.sock --key cast.key\n  \
    (echo '{\"send\": {\"to\": [\"192.0.2.7:6722\"]}}'; tail -f log) | socat - UNIX-CONNECT:/run/cast.sock\n\n\
    It serves until Ctrl-C.")]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    rack: RackArgs,
    /// Where applications connect.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    /// Where streams come in.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:6722")]
    listen: SocketAddr,
    /// Take streams from this host; may be repeated.
    #[arg(long = "from", value_name = "HOST", value_parser = host)]
    from: Vec<Vec<IpAddr>>,
    /// Where what applications send is kept for late receivers, in files without names.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    spool: PathBuf,
    /// Bytes that are read of an application at a time.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 16, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    batch: u32,
}

pub(crate) fn agent(args: &AgentArgs) -> miette::Result<u8> {
    let admitted: Vec<IpAddr> = args.from.iter().flatten().copied().collect();
    let mut config = args.common.engine(args.listen, admitted)?;
    args.rack.apply(&mut config)?;
    config.in_group = args.listen.is_ipv4() && !args.listen.ip().is_loopback();
    let keyed = config.secret.is_some();
    // Applications that wait for a stream, first come first served.
    let waiting: Arc<Mutex<VecDeque<UnixStream>>> = Arc::default();
    let theirs = Arc::clone(&waiting);
    let accept: Accept = Box::new(move |_| {
        let mut theirs = theirs.lock().unwrap_or_else(PoisonError::into_inner);
        theirs.retain(|stream| !has_left(stream));
        match theirs.pop_front() {
            Some(stream) => Decision::Take(Box::new(move || {
                Ok(Box::new(PipeSink::new(stream)) as Box<dyn Sink>)
            })),
            None => Decision::Refuse(Reason::Busy),
        }
    });
    let mut engine = match Engine::new(config, Some(accept)) {
        Ok(engine) => engine,
        Err(error) => {
            say(&format!("error: {error}\n"));
            return Ok(exit::FAILED);
        }
    };
    let door = match Door::open(&args.socket, engine.waker()) {
        Ok(door) => door,
        Err(error) => {
            say(&format!("error: {error}\n"));
            return Ok(exit::FAILED);
        }
    };
    let interrupted = interrupted(engine.waker())?;
    say(&format!("agent at {}, applications at {}\n", engine.local_addr(), args.socket.display()));
    let mut replies: BTreeMap<Session, UnixStream> = BTreeMap::new();
    loop {
        let until = engine.turn().map_err(|error| miette!("the socket has failed: {error}"))?;
        while let Some(event) = engine.poll_event() {
            match event {
                EngineEvent::Sent { session, view, error } => {
                    let receivers = view.receivers.iter().map(|receiver| {
                        json!({ "host": receiver.address.to_string(), "state": state(receiver) })
                    });
                    let good = error.is_none() && view.receivers.iter().all(is_complete);
                    let document = json!({
                        "complete": good, "error": error.map(|error| error.to_string()),
                        "receivers": receivers.collect::<Vec<_>>(),
                    });
                    if let Some(mut stream) = replies.remove(&session) {
                        dismiss(&mut stream, &document);
                    }
                }
                EngineEvent::Renewed { old, session, .. } => {
                    if let Some(stream) = replies.remove(&old) {
                        replies.insert(session, stream);
                    }
                }
                EngineEvent::ReceiveFailed { from, error, reason, .. } => {
                    let why = error.map_or_else(|| format!("{reason:?}"), |it| it.to_string());
                    say(&format!("a stream from {from} broke off: {why}\n"));
                }
                _ => {}
            }
        }
        // After the turn, which forgets that it was woken: whoever knocks from here on wakes the wait.
        if interrupted.is_set() {
            break;
        }
        let mut asked = false;
        while let Some(request) = door.poll() {
            asked = true;
            match request {
                Request::Receive { stream } => {
                    queue(&waiting, stream);
                }
                Request::Sessions { mut stream } => {
                    dismiss(&mut stream, &sessions(&engine, replies.keys().copied()));
                }
                Request::Send { to, name, mut stream } => {
                    match open(args, &mut engine, &to, &name, &stream, keyed) {
                        Ok(session) => {
                            replies.insert(session, stream);
                        }
                        Err(error) => dismiss(&mut stream, &json!({ "error": error })),
                    }
                }
            }
        }
        if asked {
            continue;
        }
        engine.wait(until).map_err(|error| miette!("cannot wait: {error}"))?;
    }
    engine.leave_all();
    for session in replies.keys() {
        engine.abort(*session);
    }
    let _ = engine.turn();
    engine.settle(Span::from_secs(1));
    Ok(exit::DONE)
}

/// Most applications that wait for a stream.
const MAX_WAITING: usize = 256;

fn queue(waiting: &Mutex<VecDeque<UnixStream>>, mut stream: UnixStream) {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.retain(|stream| !has_left(stream));
    if waiting.len() >= MAX_WAITING {
        return dismiss(&mut stream, &json!({ "error": "too many wait for streams" }));
    }
    waiting.push_back(stream);
}

/// What comes in and goes out.
fn sessions(engine: &Engine, outgoing: impl Iterator<Item = Session>) -> serde_json::Value {
    let incoming = engine.incoming().into_iter().map(|progress| {
        json!({ "session": format!("{:08x}", progress.session.0), "bytes": progress.bytes })
    });
    let outgoing = outgoing.filter_map(|session| {
        let view = engine.view(session)?;
        let receivers = view.receivers.iter().map(|receiver| {
            json!({ "host": receiver.address.to_string(), "state": state(receiver), "have": receiver.have })
        });
        Some(json!({
            "session": format!("{:08x}", session.0), "bytes": view.length.0,
            "receivers": receivers.collect::<Vec<_>>(),
        }))
    });
    json!({ "incoming": incoming.collect::<Vec<_>>(), "outgoing": outgoing.collect::<Vec<_>>() })
}

fn open(
    args: &AgentArgs,
    engine: &mut Engine,
    to: &[SocketAddr],
    name: &str,
    stream: &UnixStream,
    keyed: bool,
) -> Result<Session, String> {
    let flow = FlowArgs { mtu: None, rate: None }.flow(to, keyed, 0)?;
    let input = Box::new(stream.try_clone().map_err(|error| error.to_string())?);
    let number = random().map_err(|error| error.to_string())?;
    let pipe = Pipe::new(name, input, &args.spool, number, args.batch as usize, None)
        .map_err(|error| error.to_string())?;
    let hosts: Vec<HostId> = to.iter().map(|to| engine.add_peer(*to)).collect();
    let spread = match hosts.len() {
        1 => Spread::Unicast,
        _ => engine.probe(&hosts).map_err(|error| error.to_string())?.0,
    };
    engine.open(Box::new(pipe), &hosts, spread, flow).map_err(|error| error.to_string())
}
