//! The application of a process: what `rackweave_rpc` does with an endpoint, for the calls of a scenario.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::{HostId, Kind, MessageId, Span, Time};
use rackweave_linux::endpoint::PathChange;
use rackweave_linux::{Endpoint, Event, SendError};

use super::super::platform::Simulated;
use super::draw::{Call, What};

/// After how long what an endpoint had no room for is tried again.
const AGAIN: Span = Span::from_ms(10);

/// The pieces that a client writes a stream in.
const PIECES: usize = 8;

/// The bytes of a direction of a call: its number, the number of the server's start in answers, and a pattern that differs between calls,
/// directions and offsets.
pub(super) fn content(call: usize, start: Option<u32>, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 12);
    bytes.extend_from_slice(&(call as u64).to_be_bytes());
    bytes.extend(start.iter().flat_map(|start| start.to_be_bytes()));
    let salt = (call as u8).wrapping_mul(31) ^ if start.is_some() { 0xa5 } else { 0 };
    bytes.extend((0..length).map(|i| (i ^ i >> 8 ^ i >> 16) as u8 ^ salt));
    bytes
}

/// The number of the call that bytes belong to.
fn call_of(bytes: &[u8]) -> Option<usize> {
    Some(u64::from_be_bytes(*bytes.first_chunk()?) as usize)
}

/// What an application reports.
#[derive(Clone, Copy, Debug)]
pub(super) enum Report {
    /// A server has the whole request.
    Executed(usize),
    /// A client has the whole answer (of a message, that its receiver has it).
    Done(usize),
    Failed(usize, &'static str),
    /// This peer has restarted.
    PeerRestarted(usize),
    KeyMismatch(usize),
    PathMtu(usize, PathChange),
    /// Is to be passed back after this time.
    Later(Span, Task),
}

/// Work for later.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    /// Starts a call.
    Begin(usize),
    Cancel(usize),
    /// Writes a client's direction of a stream from this offset on.
    Write(usize, usize),
    /// Answers a request.
    Answer(HostId, MessageId, usize),
}

/// One direction of a stream that is being read.
#[derive(Debug, Default)]
struct Inflow {
    bytes: Vec<u8>,
    /// The call and all its bytes, once the first ones say which they are.
    expected: Option<(usize, Vec<u8>)>,
    /// How many bytes were compared.
    checked: usize,
}

#[derive(Debug)]
pub(super) struct App {
    pub(super) host: usize,
    /// How often the process was started.
    pub(super) start: u32,
    pub(super) endpoint: Endpoint<Simulated>,
    outstanding: BTreeMap<(HostId, MessageId), usize>,
    serving: BTreeMap<(HostId, MessageId), What>,
    inflows: BTreeMap<(HostId, MessageId), Inflow>,
    /// Streams of this client whose answer is complete.
    answered: Vec<usize>,
    pub(super) reports: Vec<Report>,
}

impl App {
    pub(super) fn new(host: usize, start: u32, endpoint: Endpoint<Simulated>) -> Self {
        Self {
            host,
            start,
            endpoint,
            outstanding: BTreeMap::new(),
            serving: BTreeMap::new(),
            inflows: BTreeMap::new(),
            answered: Vec::new(),
            reports: Vec::new(),
        }
    }

    /// The number of the host that a peer is.
    fn host_of(&self, peer: HostId) -> usize {
        match self.endpoint.peer_addr(peer) {
            Some(address) => usize::from(address.port()) - 1,
            None => usize::MAX,
        }
    }

    fn message(&self, call: usize) -> Option<(HostId, MessageId)> {
        self.outstanding.iter().find(|(_, it)| **it == call).map(|(message, _)| *message)
    }

    /// The calls that have neither ended nor failed.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = usize> {
        self.outstanding.values().copied()
    }

    fn later(&mut self, after: Span, task: Task) {
        self.reports.push(Report::Later(after, task));
    }

    pub(super) fn work(&mut self, task: Task, calls: &[Call]) -> Result<(), String> {
        match task {
            Task::Begin(number) => {
                let call = &calls[number];
                let server = self.endpoint.add_peer(super::world::address(call.server));
                let bytes = Bytes::from(content(number, None, call.request));
                let sent = match call.what {
                    What::Call => self.endpoint.send(server, Kind::Request, bytes),
                    What::OneWay => self.endpoint.send(server, Kind::OneWay, bytes),
                    What::Stream { .. } => self.endpoint.open(server, Time::MAX),
                };
                match sent {
                    Err(SendError::UnknownPeer(_)) => {
                        return Err("a peer that was added is unknown".to_owned());
                    }
                    Err(_) => self.later(AGAIN, task),
                    Ok(id) => {
                        if self.outstanding.insert((server, id), number).is_some() {
                            return Err(format!("the id {id} is used twice"));
                        }
                        if let What::Stream { gap } = call.what {
                            self.later(gap, Task::Write(number, 0));
                        }
                    }
                }
            }
            Task::Cancel(number) => {
                if let Some((peer, id)) = self.message(number) {
                    self.outstanding.remove(&(peer, id));
                    self.inflows.remove(&(peer, id.response()));
                    self.endpoint.cancel(peer, id);
                }
            }
            Task::Write(number, from) => {
                let call = &calls[number];
                let What::Stream { gap } = call.what else { return Ok(()) };
                let Some((peer, id)) = self.message(number) else { return Ok(()) };
                let all = content(number, None, call.request);
                let to = (from + all.len().div_ceil(PIECES)).min(all.len());
                let piece = Bytes::copy_from_slice(&all[from..to]);
                match self.endpoint.write(peer, id, piece, to == all.len()) {
                    Ok(()) if to < all.len() => self.later(gap, Task::Write(number, to)),
                    Ok(()) => {}
                    Err(_) => self.later(AGAIN, task),
                }
            }
            Task::Answer(peer, id, number) => {
                let Some(what) = self.serving.get(&(peer, id)) else { return Ok(()) };
                let bytes = Bytes::from(content(number, Some(self.start), calls[number].response));
                let sent = match what {
                    What::Stream { .. } => self.endpoint.write(peer, id.response(), bytes, true),
                    _ => self.endpoint.respond(peer, id, bytes),
                };
                match sent {
                    Err(SendError::Full { .. }) => self.later(AGAIN, task),
                    // The transport has ended it, or its client is gone.
                    Ok(()) | Err(_) => {
                        self.serving.remove(&(peer, id));
                    }
                }
            }
        }
        Ok(())
    }

    /// Handles the events of the endpoint.
    pub(super) fn poll(&mut self, calls: &[Call]) -> Result<(), String> {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Message { peer, id, kind: Kind::Response, bytes } => {
                    let request = MessageId(id.0 & !1);
                    let Some(number) = self.outstanding.remove(&(peer, request)) else {
                        return Err(format!("host {}: an answer to no call", self.host));
                    };
                    self.check_answer(number, &bytes, calls)?;
                    self.reports.push(Report::Done(number));
                }
                Event::Message { peer, id, kind, bytes } => {
                    let what = match kind {
                        Kind::Request => What::Call,
                        _ => What::OneWay,
                    };
                    let number = self.check_request(peer, &bytes, calls)?;
                    if calls[number].what != what {
                        return Err(format!("call {number} arrives as another kind"));
                    }
                    self.execute(peer, id, number, calls);
                }
                Event::Sent { peer, id } => {
                    if let Some(&number) = self.outstanding.get(&(peer, id))
                        && calls[number].what == What::OneWay
                    {
                        self.outstanding.remove(&(peer, id));
                        self.reports.push(Report::Done(number));
                    }
                }
                Event::Failed { peer, id, reason } => {
                    let request = MessageId(id.0 & !1);
                    self.serving.remove(&(peer, request));
                    self.inflows.remove(&(peer, request));
                    self.inflows.remove(&(peer, request.response()));
                    if let Some(number) = self.outstanding.remove(&(peer, id)) {
                        let reason = match reason {
                            rackweave_core::FailReason::PeerSilent => "the peer is silent",
                            rackweave_core::FailReason::PeerForgot => "the peer has forgotten it",
                            _ => "for another reason",
                        };
                        self.reports.push(Report::Failed(number, reason));
                    }
                }
                Event::Opened { peer, id } => {
                    self.inflows.insert((peer, id), Inflow::default());
                }
                Event::Readable { peer, id, pieces, end } => {
                    self.read(peer, id, &pieces, end, calls)?;
                }
                Event::Written { .. } => {}
                Event::Closed { peer, id } => {
                    let request = MessageId(id.0 & !1);
                    self.inflows.remove(&(peer, request));
                    self.inflows.remove(&(peer, request.response()));
                    if let Some(number) = self.outstanding.remove(&(peer, request)) {
                        if !self.answered.contains(&number) {
                            return Err(format!("stream {number} closes without its answer"));
                        }
                        self.reports.push(Report::Done(number));
                    }
                }
                Event::PeerRestarted { peer } => {
                    let host = self.host_of(peer);
                    self.give_up(peer, "the peer has restarted");
                    self.reports.push(Report::PeerRestarted(host));
                    self.serving.retain(|(of, _), _| *of != peer);
                    // As the library does: an end that only receives may wait for its peer without an end.
                    let of_peer: Vec<_> =
                        self.inflows.keys().filter(|(of, _)| *of == peer).copied().collect();
                    for (peer, id) in of_peer {
                        self.inflows.remove(&(peer, id));
                        self.endpoint.cancel(peer, MessageId(id.0 ^ 1));
                    }
                }
                Event::PathMtu { peer, change } => {
                    let host = self.host_of(peer);
                    self.reports.push(Report::PathMtu(host, change));
                }
                Event::KeyMismatch { peer, .. } => {
                    let host = self.host_of(peer);
                    self.reports.push(Report::KeyMismatch(host));
                    self.give_up(peer, "the peer's key differs");
                }
            }
        }
        Ok(())
    }

    /// Fails all calls to a peer.
    fn give_up(&mut self, peer: HostId, why: &'static str) {
        let of_peer: Vec<_> = self
            .outstanding
            .iter()
            .filter(|((of, _), _)| *of == peer)
            .map(|(m, n)| (*m, *n))
            .collect();
        for ((peer, id), number) in of_peer {
            self.outstanding.remove(&(peer, id));
            self.endpoint.cancel(peer, id);
            self.reports.push(Report::Failed(number, why));
        }
    }

    fn execute(&mut self, peer: HostId, id: MessageId, number: usize, calls: &[Call]) {
        let call = &calls[number];
        self.reports.push(Report::Executed(number));
        if call.what != What::OneWay {
            self.serving.insert((peer, id), call.what);
            self.later(call.work, Task::Answer(peer, id, number));
        }
    }

    fn check_request(&self, peer: HostId, bytes: &[u8], calls: &[Call]) -> Result<usize, String> {
        let number = call_of(bytes).filter(|number| *number < calls.len());
        let Some(number) = number else {
            return Err(format!("host {}: a request that nobody has sent", self.host));
        };
        let call = &calls[number];
        if (call.client, call.server) != (self.host_of(peer), self.host) {
            return Err(format!("call {number} arrives at host {} or from a wrong one", self.host));
        }
        if bytes != content(number, None, call.request) {
            return Err(format!("call {number}: the request has wrong bytes"));
        }
        Ok(number)
    }

    fn check_answer(&self, number: usize, bytes: &[u8], calls: &[Call]) -> Result<(), String> {
        let start =
            bytes.get(8..12).and_then(|bytes| Some(u32::from_be_bytes(*bytes.first_chunk()?)));
        if start.is_none() || bytes != content(number, start, calls[number].response) {
            return Err(format!("call {number}: the answer has wrong bytes"));
        }
        Ok(())
    }

    fn read(
        &mut self,
        peer: HostId,
        id: MessageId,
        pieces: &[Bytes],
        end: bool,
        calls: &[Call],
    ) -> Result<(), String> {
        let request = MessageId(id.0 & !1);
        let at_client = self.outstanding.get(&(peer, request)).copied();
        if id.is_response() && at_client.is_none() {
            return Err(format!("host {}: bytes of no stream", self.host));
        }
        let inflow = self.inflows.entry((peer, id)).or_default();
        pieces.iter().for_each(|piece| inflow.bytes.extend_from_slice(piece));
        let read: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        self.endpoint.consume(peer, id, read);
        if inflow.expected.is_none() {
            let Some(number) = call_of(&inflow.bytes) else { return Ok(()) };
            let Some(call) = calls.get(number) else {
                return Err(format!("host {}: bytes that nobody has sent", self.host));
            };
            let start =
                inflow.bytes.get(8..12).and_then(|it| Some(u32::from_be_bytes(*it.first_chunk()?)));
            let bytes = match (id.is_response(), start) {
                (false, _) => content(number, None, call.request),
                (true, Some(start)) => content(number, Some(start), call.response),
                (true, None) => return Ok(()),
            };
            inflow.expected = Some((number, bytes));
        }
        let Some((number, expected)) = &inflow.expected else { return Ok(()) };
        let (number, checked) = (*number, inflow.checked);
        inflow.checked = inflow.bytes.len();
        let is_right = expected.get(checked..inflow.checked) == Some(&inflow.bytes[checked..])
            && (!end || expected.len() == inflow.checked);
        if !is_right || id.is_response() && at_client != Some(number) {
            return Err(format!("stream {number}: the bytes are wrong"));
        }
        if end {
            let inflow = self.inflows.remove(&(peer, id)).unwrap_or_default();
            if id.is_response() {
                self.answered.push(number);
            } else {
                self.check_request(peer, &inflow.bytes, calls)?;
                self.execute(peer, id, number, calls);
            }
        }
        Ok(())
    }
}
