//! `rackweave cast agent`.

use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use miette::miette;
use rackweave_cast::control::stream::{BlockSink, Blocks, GiveBack, StreamSink};
use rackweave_cast::control::{
    ControlSocket, KeyProof, ReceiveRequest, Records, Request, SendRequest, dismiss,
    is_disconnected,
};
use rackweave_cast::orca::{Accept, Admission, Decision, Engine, EngineEvent, FabricPlace, Offer};
use rackweave_cast::sink::{PipeSink, Sink, SinkError};
use rackweave_cast::source::Pipe;
use rackweave_cast::store::Cancel;
use rackweave_core::{Bytes, HostId, Span, Time};
use rackweave_linux::sys::{connect_to_own, make_runtime_folder};
use rackweave_orca::host::Spread;
use rackweave_orca::parity::MAX_CELLS;
use rackweave_wire::orca::{Reason, Session};
use serde_json::json;

use super::fabric::RackArgs;
use super::flow::FlowArgs;
use super::outcome::{Outcome, is_complete, state};
use super::{AGENT_SOCKET, CommonArgs, host, interrupted};
use crate::shell::{escaped, exit, status};

/// Serve applications of this host: streams in and out through a Unix socket.
///
/// One connection is one stream. Its first line is JSON, {"send": {"to": ["192.0.2.7:6722"], "name": "log"}} or
/// {"receive": {}}; then bytes follow, framed in blocks (docs/ops/cast.md). Nothing is dropped: the agent waits for slow readers. With --fabric and --controller it
/// is also an Orca agent, which labels packets for its rack.
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
    /// Control socket of applications (default: cast.sock in /run/rackweave for root, for others in
    /// $XDG_RUNTIME_DIR/rackweave, /run/user/UID/rackweave or ~/.rackweave).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Address and UDP port to listen on.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:6722")]
    listen: SocketAddr,
    /// Accept streams from this host; may be repeated.
    #[arg(long = "from", value_name = "HOST", value_parser = host)]
    from: Vec<Vec<IpAddr>>,
    /// Directory of data for late receivers, in unnamed files.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    spool: PathBuf,
    /// Bytes read from an application at a time.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 16, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    batch: u32,
    /// Bytes of an application's stream to keep; it waits while receivers lack more.
    #[arg(long, value_name = "SIZE")]
    spool_limit: Option<Bytes>,
}

/// The state against which requests at the control socket are checked.
struct AgentState {
    /// The secret that the agent was started with, if any.
    secret: Option<Vec<u8>>,
    admission: Admission,
    /// This host's place in the fabric, if its switch follows labels.
    place: Option<FabricPlace>,
}

/// An application waiting for a stream.
struct Waiting {
    stream: UnixStream,
    request: ReceiveRequest,
    /// The stream that it has received in part, and that begins again.
    again: Option<u128>,
}

/// The applications that receive streams.
#[derive(Default)]
struct Applications {
    /// The waiting ones, in the order of their requests.
    waiting: VecDeque<Waiting>,
    /// The streams that others are receiving.
    receiving: Vec<u128>,
}

/// The same, for the threads of sinks.
type Shared = Arc<Mutex<Applications>>;

fn lock(applications: &Mutex<Applications>) -> MutexGuard<'_, Applications> {
    applications.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An application that is sending a stream.
struct Reply {
    stream: UnixStream,
    spread: Spread,
    began: Time,
    link_bytes: u64,
}

pub(crate) fn agent(args: &AgentArgs) -> miette::Result<u8> {
    let admitted: Vec<IpAddr> = args.from.iter().flatten().copied().collect();
    let mut config = args.common.engine(args.listen, admitted)?;
    args.rack.apply(&mut config)?;
    config.in_group = args.listen.is_ipv4() && !args.listen.ip().is_loopback();
    let state = AgentState {
        secret: config.secret.clone(),
        admission: config.admission.clone(),
        place: config.fabric.clone().filter(|place| place.tor),
    };
    let applications: Shared = Arc::default();
    let shared = Arc::clone(&applications);
    let keyed = state.secret.is_some();
    let accept: Accept = Box::new(move |offer| decide(&shared, *offer, keyed));
    let path = match &args.socket {
        Some(path) => path.clone(),
        None => match make_runtime_folder() {
            Ok(folder) => folder.join(AGENT_SOCKET),
            Err(error) => {
                status(&format!("error: {error}; give --socket\n"));
                return Ok(exit::FAILED);
            }
        },
    };
    let mut engine = match Engine::new(config, Some(accept)) {
        Ok(engine) => engine,
        Err(error) => {
            let other = match connect_to_own(&path) {
                Ok(_) => format!("; another agent answers at {}", path.display()),
                Err(_) => String::new(),
            };
            status(&format!("error: {error}{other}\n"));
            return Ok(exit::FAILED);
        }
    };
    let control = match ControlSocket::open(&path, engine.waker()) {
        Ok(control) => control,
        Err(error) => {
            status(&format!("error: {error}\n"));
            return Ok(exit::FAILED);
        }
    };
    let interrupted = interrupted(engine.waker())?;
    status(&format!("agent at {}, control socket at {}\n", engine.local_addr(), path.display()));
    let mut serving = Serving { args, state, applications, replies: BTreeMap::new() };
    loop {
        let until = engine.turn().map_err(|error| miette!("the socket failed: {error}"))?;
        while let Some(event) = engine.poll_event() {
            serving.on_event(&engine, event);
        }
        // This is checked after `turn`, which clears the waker: any later request wakes `wait`.
        if interrupted.is_set() {
            break;
        }
        let mut asked = false;
        while let Some((request, stream)) = control.poll() {
            asked = true;
            serving.on_request(&mut engine, request, stream);
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
    engine.wait_for_sinks(Span::from_secs(1));
    Ok(exit::DONE)
}

/// A running agent.
struct Serving<'a> {
    args: &'a AgentArgs,
    state: AgentState,
    applications: Shared,
    replies: BTreeMap<Session, Reply>,
}

impl Serving<'_> {
    /// Handles an event of a stream.
    fn on_event(&mut self, engine: &Engine, event: EngineEvent) {
        match event {
            EngineEvent::Sent { session, view, error } => {
                let Some(mut reply) = self.replies.remove(&session) else { return };
                let good = error.is_none() && view.receivers.iter().all(is_complete);
                let outcome = Outcome {
                    view: view.into(),
                    seconds: engine.clock().now().since(reply.began).as_secs_f64(),
                    spread: reply.spread,
                    link_bytes: engine.stats().sent_bytes - reply.link_bytes,
                };
                let mut document = outcome.json();
                document["complete"] = json!(good);
                document["error"] = json!(error.map(|error| error.to_string()));
                dismiss(&mut reply.stream, &document);
            }
            EngineEvent::Renewed { old, session, .. } => {
                if let Some(reply) = self.replies.remove(&old) {
                    self.replies.insert(session, reply);
                }
            }
            EngineEvent::ReceiveFailed { from, error, reason, .. } => {
                let why = error.map_or_else(|| format!("{reason:?}"), |it| it.to_string());
                status(&format!("a stream from {from} failed: {}\n", escaped(&why)));
            }
            _ => {}
        }
    }

    /// Handles a request from the control socket.
    fn on_request(&mut self, engine: &mut Engine, request: Request, mut stream: UnixStream) {
        match request {
            Request::Receive(request) => match self.state.check_receive(&request) {
                Ok(()) => queue(&self.applications, Waiting { stream, request, again: None }),
                Err(error) => dismiss(&mut stream, &json!({ "error": error })),
            },
            Request::Sessions => {
                let mut document = sessions(engine, self.replies.keys().copied());
                let applications = lock(&self.applications);
                let waiting = applications.waiting.iter();
                let there = waiting.filter(|waiting| !is_disconnected(&waiting.stream));
                document["waiting"] = json!(there.count());
                dismiss(&mut stream, &document);
            }
            Request::Send(request) => {
                let (began, link_bytes) = (engine.clock().now(), engine.stats().sent_bytes);
                match open(self.args, &self.state, engine, &request, &stream) {
                    Ok((session, spread)) => {
                        let reply = Reply { stream, spread, began, link_bytes };
                        self.replies.insert(session, reply);
                    }
                    Err(error) => dismiss(&mut stream, &json!({ "error": error })),
                }
            }
        }
    }
}

/// The largest number of applications that wait for a stream.
const MAX_WAITING: usize = 256;

fn queue(applications: &Mutex<Applications>, mut next: Waiting) {
    let waiting = &mut lock(applications).waiting;
    waiting.retain(|waiting| !is_disconnected(&waiting.stream));
    if waiting.len() >= MAX_WAITING {
        return dismiss(
            &mut next.stream,
            &json!({ "error": "too many applications are waiting for streams" }),
        );
    }
    waiting.push_back(next);
}

impl Applications {
    /// Returns the application that gets a stream: the one that has received a part of it, or else the first one that waits for any; the last
    /// choice is one that waits for another stream to begin again.
    fn choose(&mut self, offer: &Offer, keyed: bool) -> Option<Waiting> {
        self.waiting.retain(|waiting| !is_disconnected(&waiting.stream));
        let rank = |waiting: &Waiting| match waiting.again {
            Some(stream) if stream == offer.stream => 0,
            None => 1,
            Some(_) => 2,
        };
        let all = self.waiting.iter().enumerate();
        let all = all.filter(|(_, waiting)| accepts(&waiting.request, offer, keyed));
        let at = all.min_by_key(|(_, waiting)| rank(waiting)).map(|it| it.0)?;
        self.waiting.remove(at)
    }
}

/// Decides about a stream that is offered to the applications.
fn decide(shared: &Shared, offer: Offer, keyed: bool) -> Decision {
    // Applications get whole streams: the sender goes on without an answer.
    if offer.is_manifest() {
        return Decision::Refuse(Reason::Refused);
    }
    let mut applications = lock(shared);
    // Its sender was started again: the application that receives it waits for it by the time at which the new sink is created.
    let chosen = match applications.receiving.contains(&offer.stream) {
        true => None,
        false => match applications.choose(&offer, keyed) {
            Some(waiting) => Some(waiting),
            None => return Decision::Refuse(Reason::Busy),
        },
    };
    let shared = Arc::clone(shared);
    Decision::Accept(Box::new(move |cancel| {
        let chosen = chosen.or_else(|| lock(&shared).choose(&offer, keyed));
        let nobody = || SinkError::application("no application waits for it any more");
        assign(&shared, chosen.ok_or_else(nobody)?, offer, cancel)
    }))
}

/// Whether an application accepts a stream from this sender.
fn accepts(request: &ReceiveRequest, offer: &Offer, keyed: bool) -> bool {
    let from = offer.from.ip().to_canonical();
    keyed || request.from.is_empty() || request.from.contains(&from)
}

/// A stream that an application receives.
struct Receiving {
    shared: Shared,
    stream: u128,
    sink: StreamSink,
}

impl Drop for Receiving {
    fn drop(&mut self) {
        forget(&self.shared, self.stream);
    }
}

/// Records that an application does not receive a stream any more.
fn forget(shared: &Shared, stream: u128) {
    let receiving = &mut lock(shared).receiving;
    if let Some(at) = receiving.iter().position(|it| *it == stream) {
        receiving.swap_remove(at);
    }
}

impl Sink for Receiving {
    fn begins_at(&self) -> u64 {
        self.sink.begins_at()
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        self.sink.put(bytes)
    }

    fn needs_from(&self) -> Option<u64> {
        self.sink.needs_from()
    }

    fn omit_rest(&mut self) {
        self.sink.omit_rest();
    }

    fn interrupted(&mut self, reason: Reason) {
        self.sink.interrupted(reason);
    }

    fn is_complete(&self) -> bool {
        self.sink.is_complete()
    }
}

/// Gives the offered stream to the application.
fn assign(
    shared: &Shared,
    waiting: Waiting,
    offer: Offer,
    cancel: &Cancel,
) -> Result<Box<dyn Sink>, SinkError> {
    let Waiting { stream, request, .. } = waiting;
    if !request.records {
        return Ok(match request.blocks {
            true => Box::new(BlockSink::new(stream)?) as Box<dyn Sink>,
            false => Box::new(PipeSink::new(stream)),
        });
    }
    let (back, again) = (Arc::clone(shared), Some(offer.stream));
    let give_back: GiveBack = Box::new(move |stream| {
        let waiting = &mut lock(&back).waiting;
        // Applications that nobody has sent to again for longest make room.
        while waiting.len() >= MAX_WAITING
            && let Some(at) = waiting.iter().position(|it| it.again.is_some())
        {
            waiting.remove(at);
        }
        waiting.push_back(Waiting { stream, request, again });
    });
    lock(shared).receiving.push(offer.stream);
    match StreamSink::new(stream, offer.stream, offer.from, cancel, give_back) {
        Ok(sink) => {
            let shared = Arc::clone(shared);
            Ok(Box::new(Receiving { shared, stream: offer.stream, sink }))
        }
        Err(error) => {
            forget(shared, offer.stream);
            Err(error)
        }
    }
}

impl AgentState {
    fn check_key(&self, key: Option<&KeyProof>) -> Result<(), String> {
        match (key, &self.secret) {
            (None, _) => Ok(()),
            (Some(wanted), Some(secret)) if wanted.is_of(secret) => Ok(()),
            (Some(_), Some(_)) => Err("the agent was started with another --key".to_owned()),
            (Some(_), None) => Err("the agent was started without --key".to_owned()),
        }
    }

    /// Refuses a request that this agent could never fulfil.
    fn check_receive(&self, request: &ReceiveRequest) -> Result<(), String> {
        self.check_key(request.key.as_ref())?;
        let accepted = |from: &&IpAddr| {
            let of_fabric = self.place.iter().flat_map(|place| &place.hosts);
            self.admission.everyone
                || self.admission.addresses.contains(from)
                || (self.admission.loopback && from.is_loopback())
                || of_fabric.clone().any(|(_, address)| address.ip() == **from)
        };
        match request.from.iter().find(|from| !accepted(from)) {
            None => Ok(()),
            Some(from) => Err(format!("the agent was started without `--from {from}`")),
        }
    }
}

/// Returns the JSON document of incoming and outgoing sessions.
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
    state: &AgentState,
    engine: &mut Engine,
    request: &SendRequest,
    stream: &UnixStream,
) -> Result<(Session, Spread), String> {
    state.check_key(request.key.as_ref())?;
    let hosts: Vec<HostId> = request.to.iter().map(|to| engine.add_peer(*to)).collect();
    let place = state.place.as_ref();
    if place.is_some_and(|place| hosts.contains(&place.me)) {
        return Err("this host itself is among the receivers".to_owned());
    }
    let in_fabric = |host: &HostId| place.is_some_and(|place| host.0 < place.layout.hosts());
    let outsider = hosts.iter().position(|host| !in_fabric(host));
    let spread = match (request.spread, outsider) {
        (Some(Spread::Labels), _) if place.is_none() => {
            return Err("the agent was started without --fabric and --controller".to_owned());
        }
        (Some(Spread::Labels), Some(at)) => {
            return Err(format!("{} is not among the --fabric's hosts", request.to[at]));
        }
        (Some(spread), _) => {
            engine.forget_reach(&hosts);
            spread
        }
        _ if hosts.len() == 1 => Spread::Unicast,
        (None, None) => Spread::Labels,
        (None, Some(_)) => engine.probe(&hosts).map_err(|error| error.to_string())?.spread,
    };
    let words = match spread {
        Spread::Labels => place.map_or(0, |place| place.layout.words()),
        _ => 0,
    };
    let flow = FlowArgs { mtu: request.mtu, rate: request.rate, fec: MAX_CELLS };
    let flow = flow.flow(&request.to, state.secret.is_some(), words)?;
    let input = stream.try_clone().map_err(|error| error.to_string())?;
    let input: Box<dyn Read + Send> = match request.blocks {
        true => Box::new(Blocks::new(input)),
        false => Box::new(input),
    };
    let number = rackweave_linux::random();
    let (batch, limit) = (args.batch as usize, args.spool_limit.map(|limit| limit.0));
    let pipe = match request.records {
        None => Pipe::new(&request.name, input, &args.spool, number, batch, limit),
        Some(Records { stream, length, content }) => {
            let (name, sizes) = ((stream, number), (length, content));
            Pipe::records(input, &args.spool, name, sizes, batch, limit)
        }
    };
    let pipe = pipe.map_err(|error| error.to_string())?;
    let session = engine.open(Box::new(pipe), &hosts, spread, flow);
    let session = session.map_err(|error| error.to_string())?;
    Ok((session, spread))
}
