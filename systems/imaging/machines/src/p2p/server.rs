//! The server: answers joins, sends the chunks of the requests that reach it, and redirects requests itself if it has a
//! directory.
//!
//! Without a directory it is SWP2P's server: switches redirect what they can, and it serves the rest. With one it needs no
//! switch (Rackweave's choice: so the system works on a network that one does not control). It then asks holders to serve by
//! [`Body::Redirect`].
//!
//! Requests are accepted only from hosts that have joined: a host with a forged address never gets the answer to its
//! join, so that it must guess nothing, but its chunks go to whom it pretends to be. A driver on a real network therefore
//! authenticates control messages. The state is soft: after a restart, clients join and report again.

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::frisbee::{Body, Chunks};
use rackweave_wire::{Id64, frame};

use super::serve::{Requests, Serving};
use super::{ChunkOf, Outgoing, Send, Serve};
use crate::Shape;
use crate::directory::{self, Ask, Directory, Run};

/// How a server behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// How it serves.
    pub serve: Serve,
    /// Its own directory, if it redirects without a switch.
    pub directory: Option<directory::Config>,
    /// The number of clients that it expects for each image, which it announces to them; 0 if it does not know.
    pub expected: u16,
}

/// Maximum number of clients of one image. Those silent for [`FORGET`] make room.
const MOST_CLIENTS: usize = 65_535;
const FORGET: Span = Span::from_secs(600);
/// Chunks of one request that are considered; a requester repeats the rest. It is the most that a directory remembers of a client.
const MOST_ASKED: u16 = 512;
/// A client's number changes at most once in this time. A new one costs the directory a walk over all that it knows of the client.
const RENEW: Span = Span::from_ms(250);

/// Counts of a server, in chunks unless stated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Chunks that clients have received from here.
    pub sent: u64,
    /// Chunks whose sending has started.
    pub started: u64,
    /// Requests that have arrived here, each for a batch.
    pub requests: u64,
    /// Reports that have arrived here.
    pub reports: u64,
    /// Chunks that clients have returned.
    pub returned: u64,
    /// Chunks that clients have named as damaged.
    pub damaged: u64,
    /// Messages from hosts that have not joined, or for images that do not exist.
    pub unknown: u64,
    /// Chunks that were refused because a queue was full.
    pub refused: u64,
    /// The largest number of chunks that were queued or being sent.
    pub most_queued: u64,
}

#[derive(Clone, Copy, Debug)]
struct Joined {
    number: u32,
    index: u16,
    /// When its number was new.
    since: Time,
    seen: Time,
}

#[derive(Clone, Debug)]
struct Image {
    name: Vec<u8>,
    shape: Shape,
    clients: BTreeMap<HostId, Joined>,
    joins: u16,
}

/// The machine of a server, for any number of images.
#[derive(Clone, Debug)]
pub struct Server {
    config: Config,
    images: BTreeMap<u32, Image>,
    serving: Serving,
    directory: Option<Directory>,
    /// With a directory: requests that are queued here, and go to a client as soon as one has the chunk. So the client that asks
    /// first for many chunks does not become the one from which all others get them.
    deferred: Requests,
    outgoing: VecDeque<Outgoing>,
    counters: Counters,
}

impl Server {
    /// Creates a server without images.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            images: BTreeMap::new(),
            serving: Serving::new(config.serve),
            directory: config.directory.map(Directory::new),
            deferred: Requests::default(),
            outgoing: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Serves an image under a number, which is not 0 and should depend on its content, so that a restarted server
    /// uses it again.
    pub fn add(&mut self, image: u32, name: &[u8], shape: Shape) {
        let entry = Image { name: name.to_vec(), shape, clients: BTreeMap::new(), joins: 0 };
        self.images.insert(image, entry);
    }

    /// The server's process has restarted: it knows its images, and nobody who has joined. What it has counted is kept.
    pub fn restart(&mut self) {
        for image in self.images.values_mut() {
            image.clients.clear();
            image.joins = 0;
        }
        self.serving = Serving::new(self.config.serve);
        self.deferred.clear();
        self.directory = self.config.directory.map(Directory::new);
        self.outgoing.clear();
    }

    /// Returns what has been counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the server's own directory.
    #[must_use]
    pub const fn directory(&self) -> Option<&Directory> {
        self.directory.as_ref()
    }

    /// Returns the number of clients that have joined and not left.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.images.values().map(|image| image.clients.len()).sum()
    }

    /// Handles a control message from a host, with the message's bytes behind its fields.
    pub fn handle_control(&mut self, now: Time, from: HostId, body: &Body, payload: &[u8]) {
        match *body {
            Body::Enter { client, .. } => self.enter(now, from, client, payload),
            Body::Exit { client, image } => self.exit(from, client, image),
            Body::Report { image, window } if self.knows(now, from, image) => {
                self.counters.reports += 1;
                // What is not in the image must not take memory and time.
                let chunks = self.images.get(&image).map_or(0, |image| image.shape.chunks());
                let first = u64::from(window) * payload.len() as u64 * 8;
                if first >= u64::from(chunks) {
                    return;
                }
                if let Some(directory) = &mut self.directory {
                    directory.report(now, image, from, window, payload);
                }
                self.redirect_deferred(now, image);
            }
            Body::Batch(chunks) if self.knows(now, from, chunks.image) => {
                self.counters.requests += 1;
                self.batch(now, from, chunks);
            }
            Body::Return { chunks, requester } => {
                // Whoever returns it may have left meanwhile.
                if let Some(requester) = frame::host_at(requester) {
                    self.returned(now, from, requester, chunks);
                }
            }
            Body::Damaged { image, chunk, holder } => {
                if let Some(holder) = frame::host_at(holder)
                    && self.knows(now, from, image)
                {
                    self.counters.damaged += 1;
                    if let Some(directory) = &mut self.directory {
                        directory.accuse(now, image, from, holder, chunk);
                    }
                }
            }
            _ => {}
        }
        self.counters.most_queued = self.counters.most_queued.max(self.serving.len() as u64);
    }

    fn enter(&mut self, now: Time, from: HostId, number: u32, name: &[u8]) {
        let named = self.images.iter_mut().find(|(_, image)| image.name == name);
        let Some((&id, image)) = named else {
            self.counters.unknown += 1;
            return;
        };
        let (index, since) = match image.clients.get(&from) {
            Some(joined) if joined.number == number => (joined.index, joined.since),
            Some(joined) if now.since(joined.since) < RENEW => return,
            before => {
                // A client that has crashed and returned keeps its place in the order.
                let index = before.map(|joined| joined.index);
                if image.clients.len() >= MOST_CLIENTS {
                    image.clients.retain(|_, joined| now.since(joined.seen) <= FORGET);
                    if image.clients.len() >= MOST_CLIENTS {
                        return;
                    }
                }
                let index = index.unwrap_or_else(|| {
                    image.joins = image.joins.wrapping_add(1);
                    image.joins.wrapping_sub(1)
                });
                self.serving.forget(from);
                self.deferred.forget(from);
                if let Some(directory) = &mut self.directory {
                    directory.join(now, id, from);
                }
                (index, now)
            }
        };
        image.clients.insert(from, Joined { number, index, since, seen: now });
        let body = Body::Entered {
            client: number,
            image: id,
            index,
            clients: self.config.expected,
            chunk_bytes: image.shape.chunk_bytes(),
            bytes: Id64::new(image.shape.bytes()),
        };
        self.outgoing.push_back(Outgoing { to: from, body });
    }

    fn exit(&mut self, from: HostId, number: u32, id: u32) {
        let Some(image) = self.images.get_mut(&id) else { return };
        if image.clients.get(&from).is_some_and(|joined| joined.number == number) {
            image.clients.remove(&from);
            if let Some(directory) = &mut self.directory {
                directory.leave(id, from);
            }
        }
    }

    /// A client is gone without a word: its driver has noticed that its process has ended.
    pub fn client_gone(&mut self, host: HostId) {
        for (id, image) in &mut self.images {
            if image.clients.remove(&host).is_some()
                && let Some(directory) = &mut self.directory
            {
                directory.leave(*id, host);
            }
        }
        self.peer_forgotten(host);
    }

    fn peer_forgotten(&mut self, host: HostId) {
        self.serving.forget(host);
        self.deferred.forget(host);
    }

    /// Passes on the queued requests for chunks that the last report has added.
    fn redirect_deferred(&mut self, now: Time, image: u32) {
        let Some(directory) = &self.directory else { return };
        if self.deferred.is_empty() {
            return;
        }
        for chunk in directory.new_chunks().to_vec() {
            let what = ChunkOf { image, chunk };
            for (_, peer) in self.deferred.take_chunk(what) {
                if self.serving.take(peer, what) {
                    self.batch(now, peer, Chunks { image, first: chunk, count: 1, tries: 0 });
                }
            }
        }
    }

    /// Whether the host has joined the image. If not, it is asked to join: the server may have restarted.
    fn knows(&mut self, now: Time, from: HostId, image: u32) -> bool {
        let entry = self.images.get_mut(&image);
        if let Some(joined) = entry.and_then(|entry| entry.clients.get_mut(&from)) {
            joined.seen = now;
            return true;
        }
        self.counters.unknown += 1;
        self.outgoing.push_back(Outgoing { to: from, body: Body::Exit { client: 0, image } });
        false
    }

    fn batch(&mut self, now: Time, from: HostId, chunks: Chunks) {
        if self.serving.ignores(now, from) {
            return;
        }
        let chunks = Chunks { count: chunks.count.min(MOST_ASKED), ..chunks };
        let mut runs = Vec::new();
        let all = Run { first: chunks.first, count: u32::from(chunks.count), to: None };
        match &mut self.directory {
            Some(directory) if chunks.tries == 0 => {
                directory.choose_now(now, ask(from, chunks), |run| runs.push(run));
            }
            Some(directory) => directory.choose(now, ask(from, chunks), |run| runs.push(run)),
            None => runs.push(all),
        }
        for run in runs {
            if self.directory.is_some() && chunks.tries == 0 && run.to.is_none() {
                let chunks_of = self.images.get(&chunks.image).map_or(0, |it| it.shape.chunks());
                let end = run.first.saturating_add(run.count).min(chunks_of);
                for chunk in run.first..end {
                    let what = ChunkOf { image: chunks.image, chunk };
                    self.deferred.insert(from, what);
                }
            }
            self.follow(from, chunks, run);
        }
    }

    /// Serves a run of chunks, or has it served.
    fn follow(&mut self, requester: HostId, chunks: Chunks, run: Run) {
        let Chunks { image, tries, .. } = chunks;
        let Run { first, count, to } = run;
        let Some(entry) = self.images.get(&image) else { return };
        let end = first.saturating_add(count).min(entry.shape.chunks());
        if let Some(to) = to {
            let count = end.saturating_sub(first).min(u32::from(u16::MAX)) as u16;
            let requester = frame::ip_address(requester).unwrap_or_default();
            let chunks = Chunks { image, first, count, tries };
            let body = Body::Redirect { chunks, requester };
            return self.outgoing.push_back(Outgoing { to, body });
        }
        for chunk in first..end {
            let what = ChunkOf { image, chunk };
            if !self.serving.push(requester, what) {
                self.counters.refused += 1;
                self.deferred.remove(requester, what);
            }
        }
    }

    fn returned(&mut self, now: Time, holder: HostId, requester: HostId, chunks: Chunks) {
        self.counters.returned += u64::from(chunks.count);
        let Some(image) = self.images.get(&chunks.image) else { return };
        if !image.clients.contains_key(&requester) || self.serving.ignores(now, requester) {
            return;
        }
        let chunks = Chunks { count: chunks.count.min(MOST_ASKED), ..chunks };
        match &mut self.directory {
            Some(directory) => {
                let mut runs = Vec::new();
                let ask = ask(requester, chunks);
                directory.returned(now, holder, ask, |run| runs.push(run));
                for run in runs {
                    self.follow(requester, chunks, run);
                }
            }
            // The switch that redirected it has restarted, or is not on the path.
            None => {
                let run = Run { first: chunks.first, count: u32::from(chunks.count), to: None };
                self.follow(requester, chunks, run);
            }
        }
    }

    /// A client has received a chunk from here.
    pub fn chunk_sent(&mut self, now: Time, to: HostId, what: ChunkOf) {
        self.counters.sent += u64::from(self.serving.sent(to, what));
        self.serving.judged(now, to, true);
    }

    /// The last bytes of a chunk are on their way to a client. A driver whose own work between two chunks takes time calls this, so that the
    /// next one can follow at once.
    pub fn chunk_ending(&mut self, to: HostId, what: ChunkOf) {
        self.serving.ending(to, what);
    }

    /// A client did not want the chunk that was sent to it. If this happens again and again, somebody else has asked in its name, and it
    /// gets nothing for a time.
    pub fn chunk_unwanted(&mut self, now: Time, to: HostId, what: ChunkOf) {
        self.serving.sent(to, what);
        self.serving.judged(now, to, false);
    }

    /// A chunk could not be read, so that it is not sent.
    pub fn chunk_unavailable(&mut self, to: HostId, what: ChunkOf) {
        self.serving.sent(to, what);
    }

    /// A client may not serve others, so that no request is redirected to it.
    pub fn bar(&mut self, host: HostId) {
        if let Some(directory) = &mut self.directory {
            directory.bar(host);
        }
    }

    /// A peer takes no bytes of a chunk at present: chunks for others are sent meanwhile.
    pub fn chunk_stalled(&mut self, to: HostId, what: ChunkOf) {
        self.serving.stalled(to, what);
    }

    /// The connection to a client has failed: what it asked for is forgotten.
    pub fn peer_failed(&mut self, _now: Time, peer: HostId) {
        self.peer_forgotten(peer);
    }

    /// Returns the next control message to send.
    #[must_use]
    pub fn poll_control(&mut self, _now: Time) -> Option<Outgoing> {
        self.outgoing.pop_front()
    }

    /// Returns the next chunk to send to a client.
    #[must_use]
    pub fn poll_send(&mut self, now: Time) -> Option<Send> {
        loop {
            let send = self.serving.poll()?;
            let Send { peer, what } = send;
            if self.deferred.remove(peer, what).is_some()
                && let Some(directory) = &mut self.directory
            {
                let ChunkOf { image, chunk } = what;
                let chunks = Chunks { image, first: chunk, count: 1, tries: 0 };
                let mut to = None;
                directory.choose_now(now, ask(peer, chunks), |run| to = run.to);
                if to.is_some() {
                    self.serving.sent(peer, what);
                    self.follow(peer, chunks, Run { first: chunk, count: 1, to });
                    continue;
                }
                directory.sending(now, image, peer, chunk);
            }
            self.counters.started += 1;
            return Some(send);
        }
    }
}

fn ask(from: HostId, chunks: Chunks) -> Ask {
    let Chunks { image, first, count, tries } = chunks;
    let tries = u8::try_from(tries).unwrap_or(u8::MAX);
    Ask { image, from, first, count: u32::from(count), tries }
}
