//! Incoming requests, messages and streams.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use bytes::Bytes;
use rackweave_core::{HostId, MessageId, Time};
use rackweave_linux::addresses::party;
use rustc_hash::FxHashSet;

use super::{Lifecycle, State, StreamKey, Wake};
use crate::node::Peer;
use crate::trailer::{self, Status};

/// Work that waits for a server.
#[derive(Debug)]
pub(crate) enum Arrived {
    Request {
        peer: HostId,
        id: MessageId,
        bytes: Bytes,
        /// The time at which its client gives up.
        until: Time,
    },
    OneWay {
        peer: HostId,
        bytes: Bytes,
    },
    Stream(StreamKey),
}

/// Incoming work that has not ended.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// The number of server handles.
    servers: usize,
    /// With the party that it has come from.
    waiting: VecDeque<(IpAddr, Arrived)>,
    /// The number of bytes of the waiting work.
    waiting_bytes: u64,
    /// The pieces of waiting work of each party, and their bytes.
    held: BTreeMap<IpAddr, (usize, u64)>,
    /// Requests that wait for a server, or that the application has taken and not answered.
    known: FxHashSet<(HostId, MessageId)>,
}

impl Arrived {
    const fn peer(&self) -> HostId {
        match self {
            Self::Request { peer, .. } | Self::OneWay { peer, .. } => *peer,
            Self::Stream(key) => key.peer,
        }
    }

    const fn bytes(&self) -> u64 {
        match self {
            Self::Request { bytes, .. } | Self::OneWay { bytes, .. } => bytes.len() as u64,
            Self::Stream(_) => 0,
        }
    }
}

impl Requests {
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
    pub(super) fn known(&self) -> usize {
        self.known.len()
    }
    pub(super) fn serving(&self) -> usize {
        let waiting =
            self.waiting.iter().filter(|(_, arrived)| matches!(arrived, Arrived::Request { .. }));
        self.known.len().saturating_sub(waiting.count())
    }
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.known.is_empty()
    }
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.held.clear();
        self.known.clear();
    }

    /// A piece of work of this party and length waits no longer.
    fn left(&mut self, from: IpAddr, bytes: u64) {
        self.waiting_bytes -= bytes;
        if let Some(held) = self.held.get_mut(&from) {
            *held = (held.0 - 1, held.1 - bytes);
            if held.0 == 0 {
                self.held.remove(&from);
            }
        }
    }
}

impl State {
    pub(crate) const fn add_server(&mut self) {
        self.requests.servers += 1;
    }

    /// When the last server is dropped, waiting work is refused.
    pub(crate) fn remove_server(&mut self) {
        self.requests.servers -= 1;
        if self.requests.servers == 0 {
            self.refuse_waiting();
            self.submitted();
        }
    }

    /// Returns why nothing can be accepted now; `None` if it can, as far as there is room.
    const fn refusal(&self) -> Option<Status> {
        if !matches!(self.life, Lifecycle::Running) {
            Some(Status::Stopping)
        } else if self.requests.servers == 0 {
            Some(Status::NotServing)
        } else {
            None
        }
    }

    /// Returns why a peer's work of this length is not accepted. If there is no room, the party that holds most of it loses what it
    /// sent last, unless this peer's would then hold as much: no party's flood keeps the others out.
    fn admission(&mut self, peer: HostId, bytes: usize) -> Option<Status> {
        if let Some(why) = self.refusal() {
            return Some(why);
        }
        let (from, bytes) = (party(self.peer_addr(peer).ip()), bytes as u64);
        loop {
            let requests = &self.requests;
            let is_full = requests.waiting.len() >= self.config.max_waiting_requests;
            let sum = requests.waiting_bytes.saturating_add(bytes);
            if !is_full && (requests.waiting.is_empty() || sum <= self.config.receive_bytes) {
                return None;
            }
            let share = |held: &(usize, u64)| if is_full { held.0 as u64 } else { held.1 };
            let own = requests.held.get(&from).map_or(0, share);
            let own = own.saturating_add(if is_full { 1 } else { bytes });
            let largest = requests.held.iter().max_by_key(|(_, held)| share(held));
            let Some((&largest, _)) = largest.filter(|(_, held)| share(held) > own) else {
                return Some(Status::Full);
            };
            let index = requests.waiting.iter().rposition(|(from, _)| *from == largest);
            let Some((_, gone)) = index.and_then(|index| self.requests.waiting.remove(index))
            else {
                return Some(Status::Full);
            };
            self.requests.left(largest, gone.bytes());
            self.refuse_arrived(&gone, Status::Full);
            self.dirty = true;
        }
    }

    fn arrived(&mut self, arrived: Arrived) {
        let from = party(self.peer_addr(arrived.peer()).ip());
        let held = self.requests.held.entry(from).or_default();
        *held = (held.0 + 1, held.1 + arrived.bytes());
        self.requests.waiting_bytes += arrived.bytes();
        self.requests.waiting.push_back((from, arrived));
        self.wakes.push(Wake::Arrival);
    }

    pub(super) fn on_request(&mut self, peer: HostId, id: MessageId, bytes: &Bytes) {
        self.counted.received += 1;
        let Some((bytes, left_us)) = trailer::read_request(bytes) else {
            self.counted.malformed += 1;
            if let Some(endpoint) = &mut self.endpoint {
                endpoint.cancel(peer, id);
            }
            return;
        };
        let until = self.until(left_us);
        self.requests.known.insert((peer, id));
        match self.admission(peer, bytes.len()) {
            Some(why) => self.refuse(peer, id, why),
            None => self.arrived(Arrived::Request { peer, id, bytes, until }),
        }
    }

    pub(super) fn on_one_way(&mut self, peer: HostId, bytes: &Bytes) {
        self.counted.received += 1;
        let Some((bytes, Status::Answer)) = trailer::read_answer(bytes) else {
            self.counted.malformed += 1;
            return;
        };
        if self.admission(peer, bytes.len()).is_some() {
            self.counted.dropped_messages += 1;
            let address = self.peer_addr(peer);
            tracing::debug!(node = self.number, peer = %address, "one-way message dropped");
        } else {
            self.arrived(Arrived::OneWay { peer, bytes });
        }
    }

    pub(super) fn on_opened(&mut self, peer: HostId, id: MessageId) {
        self.counted.received += 1;
        let key = StreamKey::server(peer, id);
        if self.admission(peer, 0).is_some() {
            self.counted.refused += 1;
            if let Some(endpoint) = &mut self.endpoint {
                endpoint.cancel(peer, id);
            }
            self.dirty = true;
        } else {
            self.add_stream(key);
            self.arrived(Arrived::Stream(key));
        }
    }

    /// Returns the next piece of work for a server, skipping requests whose clients have given up. `Err` means that no
    /// more will come.
    pub(crate) fn next_arrived(&mut self) -> Result<Option<(Arrived, Peer)>, ()> {
        let (mut now, mut found, mut refused) = (None, None, false);
        while let Some((from, arrived)) = self.requests.waiting.pop_front() {
            self.requests.left(from, arrived.bytes());
            let peer = match &arrived {
                Arrived::Request { peer, id, until, .. } => {
                    if !self.requests.known.contains(&(*peer, *id)) {
                        continue;
                    }
                    if *until <= *now.get_or_insert_with(|| self.now()) {
                        self.refuse(*peer, *id, Status::Expired);
                        refused = true;
                        continue;
                    }
                    *peer
                }
                Arrived::OneWay { peer, .. } => *peer,
                Arrived::Stream(key) => key.peer,
            };
            found = Some((arrived, self.peer(peer)));
            break;
        }
        if refused {
            self.submitted();
        }
        match found {
            None if !matches!(self.life, Lifecycle::Running) => Err(()),
            found => Ok(found),
        }
    }

    fn peer(&self, host: HostId) -> Peer {
        Peer { node: self.number, host, address: self.peer_addr(host) }
    }

    /// Notifies a client that its request will not be executed, or not be answered.
    pub(crate) fn refuse(&mut self, host: HostId, id: MessageId, why: Status) {
        if !self.requests.known.remove(&(host, id)) {
            return;
        }
        if why != Status::Unanswered {
            self.counted.refused += 1;
            let peer = self.peer_addr(host);
            tracing::debug!(node = self.number, %peer, ?why, "request refused");
        }
        let answer = trailer::answer(Bytes::new(), why);
        // If the transport has forgotten the request, its client no longer waits.
        let _ = self.answer(self.peer(host), id, answer, None);
    }

    /// Returns whether a request's client still waits, as far as this node knows.
    pub(crate) fn is_known(&self, host: HostId, id: MessageId) -> bool {
        self.requests.known.contains(&(host, id))
    }

    /// How long a request's client still waits.
    pub(crate) fn time_left(&self, until: Time) -> std::time::Duration {
        super::duration(until.since(self.now()))
    }

    /// A request has ended, or its client has disappeared.
    pub(crate) fn forget_request(&mut self, host: HostId, id: MessageId) {
        self.requests.known.remove(&(host, id));
    }

    /// Forgets all requests of a peer that has restarted.
    pub(super) fn forget_requests(&mut self, host: HostId) {
        let gone: Vec<_> =
            self.requests.known.extract_if(|(peer, _)| *peer == host).map(|(_, id)| id).collect();
        for id in gone {
            if let Some(endpoint) = &mut self.endpoint {
                endpoint.cancel(host, id);
            }
        }
    }

    /// Refuses all waiting work.
    pub(super) fn refuse_waiting(&mut self) {
        let why = self.refusal().unwrap_or(Status::Stopping);
        self.requests.waiting_bytes = 0;
        self.requests.held.clear();
        for (_, arrived) in std::mem::take(&mut self.requests.waiting) {
            self.refuse_arrived(&arrived, why);
        }
        self.dirty = true;
    }

    /// Refuses work that has waited.
    fn refuse_arrived(&mut self, arrived: &Arrived, why: Status) {
        match arrived {
            Arrived::Request { peer, id, .. } => self.refuse(*peer, *id, why),
            Arrived::OneWay { .. } => self.counted.dropped_messages += 1,
            Arrived::Stream(key) => {
                self.counted.refused += 1;
                self.drop_stream(*key);
            }
        }
    }
}
