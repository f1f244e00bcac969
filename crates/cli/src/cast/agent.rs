//! `rackweave cast agent`.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use miette::miette;
use rackweave_cast::door::stream::DoorSink;
use rackweave_cast::door::{
    Door, ReceiveWish, Records, Request, SendWish, dismiss, fingerprint, has_left,
};
use rackweave_cast::engine::{
    Accept, Admission, Decision, Engine, EngineEvent, FabricPlace, Offer, ReceiverProgress,
};
use rackweave_cast::sink::{PipeSink, Sink};
use rackweave_cast::source::Pipe;
use rackweave_core::{Bytes, HostId, Span, Time};
use rackweave_group::orca::host::Spread;
use rackweave_group::orca::parity::MAX_CELLS;
use rackweave_wire::orca::{Reason, Session};
use serde_json::json;

use super::fabric::RackArgs;
use super::send::{FlowArgs, Outcome, is_complete, state};
use super::{CommonArgs, host, interrupted, say};
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
    /// Keep no more of what an application sends than this; it waits when a receiver lacks more.
    #[arg(long, value_name = "SIZE")]
    spool_limit: Option<Bytes>,
}

/// What the door's requests are held against.
struct House {
    /// [`fingerprint`] of the key.
    key: Option<String>,
    admission: Admission,
    /// Where the host is, if its switch follows labels.
    place: Option<FabricPlace>,
}

/// An application that waits for a stream.
struct Waiting {
    stream: UnixStream,
    wish: ReceiveWish,
}

/// An application that sends one.
struct Reply {
    stream: UnixStream,
    spread: Spread,
    began: Time,
    link_bytes: u64,
    /// Those that had everything when others had to begin anew.
    finished: Vec<ReceiverProgress>,
}

pub(crate) fn agent(args: &AgentArgs) -> miette::Result<u8> {
    let admitted: Vec<IpAddr> = args.from.iter().flatten().copied().collect();
    let mut config = args.common.engine(args.listen, admitted)?;
    args.rack.apply(&mut config)?;
    config.in_group = args.listen.is_ipv4() && !args.listen.ip().is_loopback();
    let house = House {
        key: config.secret.as_deref().map(fingerprint),
        admission: config.admission.clone(),
        place: config.fabric.clone().filter(|place| place.tor),
    };
    // Applications that wait for a stream, first come first served.
    let waiting: Arc<Mutex<VecDeque<Waiting>>> = Arc::default();
    let theirs = Arc::clone(&waiting);
    let keyed = house.key.is_some();
    let accept: Accept = Box::new(move |offer| {
        let mut theirs = theirs.lock().unwrap_or_else(PoisonError::into_inner);
        theirs.retain(|waiting| !has_left(&waiting.stream));
        let wanted = theirs.iter().position(|waiting| wants(&waiting.wish, offer, keyed));
        match wanted.and_then(|at| theirs.remove(at)) {
            Some(waiting) => hand(waiting, *offer),
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
    let mut serving = Serving { args, house, waiting, replies: BTreeMap::new() };
    loop {
        let until = engine.turn().map_err(|error| miette!("the socket has failed: {error}"))?;
        while let Some(event) = engine.poll_event() {
            serving.hear(&engine, event);
        }
        // After the turn, which forgets that it was woken: whoever knocks from here on wakes the wait.
        if interrupted.is_set() {
            break;
        }
        let mut asked = false;
        while let Some(request) = door.poll() {
            asked = true;
            serving.answer(&mut engine, request);
        }
        if asked {
            continue;
        }
        engine.wait(until).map_err(|error| miette!("cannot wait: {error}"))?;
    }
    engine.leave_all();
    for session in serving.replies.keys() {
        engine.abort(*session);
    }
    let _ = engine.turn();
    engine.settle(Span::from_secs(1));
    Ok(exit::DONE)
}

/// An agent at work.
struct Serving<'a> {
    args: &'a AgentArgs,
    house: House,
    waiting: Arc<Mutex<VecDeque<Waiting>>>,
    replies: BTreeMap<Session, Reply>,
}

impl Serving<'_> {
    /// Something has come of a stream.
    fn hear(&mut self, engine: &Engine, event: EngineEvent) {
        match event {
            EngineEvent::Sent { session, mut view, error } => {
                let Some(mut reply) = self.replies.remove(&session) else { return };
                for done in reply.finished {
                    view.receivers.retain(|it| it.host != done.host);
                    view.receivers.push(done);
                }
                view.receivers.sort_by_key(|it| it.host);
                let good = error.is_none() && view.receivers.iter().all(is_complete);
                let outcome = Outcome {
                    view,
                    seconds: engine.clock().now().since(reply.began).as_secs_f64(),
                    spread: reply.spread,
                    link_bytes: engine.stats().sent_bytes - reply.link_bytes,
                };
                let mut document = outcome.json();
                document["complete"] = json!(good);
                document["error"] = json!(error.map(|error| error.to_string()));
                dismiss(&mut reply.stream, &document);
            }
            EngineEvent::Renewed { old, session, view } => {
                if let Some(mut reply) = self.replies.remove(&old) {
                    reply.finished.extend(view.receivers.into_iter().filter(is_complete));
                    self.replies.insert(session, reply);
                }
            }
            EngineEvent::ReceiveFailed { from, error, reason, .. } => {
                let why = error.map_or_else(|| format!("{reason:?}"), |it| it.to_string());
                say(&format!("a stream from {from} broke off: {why}\n"));
            }
            _ => {}
        }
    }

    /// An application wants something.
    fn answer(&mut self, engine: &mut Engine, request: Request) {
        match request {
            Request::Receive { wish, mut stream } => match self.house.receives(&wish) {
                Ok(()) => queue(&self.waiting, Waiting { stream, wish }),
                Err(error) => dismiss(&mut stream, &json!({ "error": error })),
            },
            Request::Sessions { mut stream } => {
                let mut document = sessions(engine, self.replies.keys().copied());
                let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let there = waiting.iter().filter(|waiting| !has_left(&waiting.stream));
                document["waiting"] = json!(there.count());
                dismiss(&mut stream, &document);
            }
            Request::Send { wish, mut stream } => {
                let (began, link_bytes) = (engine.clock().now(), engine.stats().sent_bytes);
                match open(self.args, &self.house, engine, &wish, &stream) {
                    Ok((session, spread)) => {
                        let finished = Vec::new();
                        let reply = Reply { stream, spread, began, link_bytes, finished };
                        self.replies.insert(session, reply);
                    }
                    Err(error) => dismiss(&mut stream, &json!({ "error": error })),
                }
            }
        }
    }
}

/// Most applications that wait for a stream.
const MAX_WAITING: usize = 256;

fn queue(waiting: &Mutex<VecDeque<Waiting>>, mut next: Waiting) {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.retain(|waiting| !has_left(&waiting.stream));
    if waiting.len() >= MAX_WAITING {
        return dismiss(&mut next.stream, &json!({ "error": "too many wait for streams" }));
    }
    waiting.push_back(next);
}

/// Whether an application wants a stream from there.
fn wants(wish: &ReceiveWish, offer: &Offer, keyed: bool) -> bool {
    let from = offer.from.ip().to_canonical();
    keyed || wish.from.is_empty() || from.is_loopback() || wish.from.contains(&from)
}

fn hand(waiting: Waiting, offer: Offer) -> Decision {
    let Waiting { stream, wish } = waiting;
    Decision::Take(Box::new(move || {
        Ok(match wish.records {
            true => Box::new(DoorSink::new(stream, offer.stream, offer.from)?) as Box<dyn Sink>,
            false => Box::new(PipeSink::new(stream)),
        })
    }))
}

impl House {
    fn has_key(&self, key: Option<&String>) -> Result<(), String> {
        match (key, &self.key) {
            (None, _) => Ok(()),
            (Some(wanted), Some(key)) if wanted == key => Ok(()),
            (Some(_), Some(_)) => Err("the agent was started with another --key".to_owned()),
            (Some(_), None) => Err("the agent was started without --key".to_owned()),
        }
    }

    /// Whether what is wished for can come at all.
    fn receives(&self, wish: &ReceiveWish) -> Result<(), String> {
        self.has_key(wish.key.as_ref())?;
        let known = |from: &&IpAddr| {
            let of_fabric = self.place.iter().flat_map(|place| &place.hosts);
            self.admission.anybody
                || self.admission.addresses.contains(from)
                || from.is_loopback()
                || of_fabric.clone().any(|(_, address)| address.ip() == **from)
        };
        match wish.from.iter().find(|from| !known(from)) {
            None => Ok(()),
            Some(from) => Err(format!("the agent was started without `--from {from}`")),
        }
    }
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
    house: &House,
    engine: &mut Engine,
    wish: &SendWish,
    stream: &UnixStream,
) -> Result<(Session, Spread), String> {
    house.has_key(wish.key.as_ref())?;
    let hosts: Vec<HostId> = wish.to.iter().map(|to| engine.add_peer(*to)).collect();
    let place = house.place.as_ref();
    if place.is_some_and(|place| hosts.contains(&place.me)) {
        return Err("this host itself is among the receivers".to_owned());
    }
    let in_fabric = |host: &HostId| place.is_some_and(|place| host.0 < place.layout.hosts());
    let stranger = hosts.iter().position(|host| !in_fabric(host));
    let spread = match (wish.spread, stranger) {
        (Some(Spread::Labels), _) if place.is_none() => {
            return Err("the agent was started without --fabric and --controller".to_owned());
        }
        (Some(Spread::Labels), Some(at)) => {
            return Err(format!("{} is not among the --fabric's hosts", wish.to[at]));
        }
        (Some(spread), _) => spread,
        _ if hosts.len() == 1 => Spread::Unicast,
        (None, None) => Spread::Labels,
        (None, Some(_)) => engine.probe(&hosts).map_err(|error| error.to_string())?.0,
    };
    let words = match spread {
        Spread::Labels => place.map_or(0, |place| place.layout.words()),
        _ => 0,
    };
    let flow = FlowArgs { mtu: wish.mtu, rate: wish.rate, fec: MAX_CELLS };
    let flow = flow.flow(&wish.to, house.key.is_some(), words)?;
    let input = Box::new(stream.try_clone().map_err(|error| error.to_string())?);
    let number = rackweave_linux::random();
    let (batch, limit) = (args.batch as usize, args.spool_limit.map(|limit| limit.0));
    let pipe = match wish.records {
        None => Pipe::new(&wish.name, input, &args.spool, number, batch, limit),
        Some(Records { stream, length, content }) => {
            let (name, sizes) = ((stream, number), (length, content));
            Pipe::records(input, &args.spool, name, sizes, batch, limit)
        }
    };
    let pipe = pipe.map_err(|error| error.to_string())?;
    let session = engine.open(Box::new(pipe), &hosts, spread, flow);
    Ok((session.map_err(|error| error.to_string())?, spread))
}
