//! A client: requests chunks in the order of its index, verifies and reports them, serves them to others, and stays for a
//! while after it has them all.
//!
//! - *Requests*: as many chunks as [`Config::outstanding`] are on request at a time, in batches. A chunk is requested
//!   again when none has arrived for a timeout. It is that of RFC 6298, computed over the times between request and
//!   chunk, at most twice the smoothed time, and at least [`Config::retry`]. Although others arrive, a chunk is also
//!   requested again when these are four times as many as were on request. The number of tries is in the request, by
//!   which a directory chooses another holder. Frisbee's fixed delay of 1 s would repeat each request where a chunk
//!   takes longer than that.
//! - *Serving*: a request for a chunk that is itself on request waits for it; one for any other chunk is returned to the
//!   server through the switch ([`Body::Return`]), which thereby learns that the chunk is not here. SWP2P's slides do not
//!   say what happens to it; in LMS a replier returns it likewise. A switch may send the return to another client, which serves
//!   the requester that it names.
//! - *Damage*: a chunk that is not verified is discarded; [`Body::Damaged`] names its sender to directory and server.
//! - *Restart*: a server that does not know the client sends it an [`Body::Exit`]; the client joins again and goes on.

mod fetch;
mod reports;

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::{Bitmap, HostId, Rng, Span, Time};
use rackweave_wire::frame;
use rackweave_wire::frisbee::{Body, Chunks, REPORT_MAP_BYTES};

use self::fetch::Fetch;
use self::reports::Reports;
use super::serve::Serving;
use super::{Check, ChunkOf, Outgoing, Send, Serve};
use crate::Shape;
use crate::order::{Order, Position};

/// The words of a set of chunks that a report has.
const REPORT_WORDS: usize = REPORT_MAP_BYTES as usize / 8;

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The order in which chunks are requested.
    pub order: Order,
    /// Maximum number of consecutive chunks in one request.
    pub batch: u16,
    /// Maximum number of chunks that are on request and have not arrived.
    pub outstanding: u16,
    /// Maximum number of chunks that are on request, or have arrived and are not written: a bound of memory where the disk
    /// is slower than the network. 0 for no limit.
    pub backlog: u32,
    /// A report is sent after this many verified chunks. With 1, holders are known as early as possible; every report costs
    /// 1048 bytes of a datagram (1064 with the tag of a key) and the work of each switch on the path.
    pub report_every: u16,
    /// A chunk is reported after this time even if fewer have arrived.
    pub report_interval: Span,
    /// A report is sent if none was sent for this time, so that directories know that the client lives, and heal.
    pub keepalive: Span,
    /// The shortest time after which a chunk is requested again. Frisbee's re-request delay is 1 s; a request that is lost near the end of
    /// an image of 256 MiB would make its client half as late again.
    pub retry: Span,
    /// The interval at which the join is repeated: Frisbee's is 500 ms.
    pub join_every: Span,
    /// Without a new chunk for this time, or an answer to the join, the client fails.
    pub give_up: Span,
    /// How the client serves.
    pub serve: Serve,
    /// How long a client that has written everything stays to serve. SWP2P's slides leave it open; that clients leave at once is our
    /// inference (`docs/protocols/swp2p.md#swp2p`).
    pub linger: Span,
    /// The largest image that the client accepts, in bytes.
    pub most_bytes: u64,
}

/// The choice is Rackweave's, found by sweeps over 4, 8 and 30 clients that start at once, or 2 s apart. All clients work on the same window, so that holders and requesters meet. With less on request than half a window a
/// client waits for its neighbours; with more, holders have long queues, and clients that started earlier wait behind later ones.
impl Default for Config {
    fn default() -> Self {
        Self {
            order: Order::Windows(32),
            batch: 1,
            outstanding: 16,
            backlog: 0,
            report_every: 1,
            report_interval: Span::from_ms(100),
            keepalive: Span::from_secs(1),
            retry: Span::from_ms(250),
            join_every: Span::from_ms(500),
            give_up: Span::from_secs(60),
            serve: Serve::default(),
            linger: Span::ZERO,
            most_bytes: 1 << 44,
        }
    }
}

/// Why a client cannot complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The server has not answered the join.
    #[error("the server does not answer")]
    NoServer,
    /// The image changed while the client was away from the server.
    #[error("the server now serves another image under this name")]
    Changed,
    /// The image cannot be received.
    #[error(
        "the server announces an image of {bytes} bytes in chunks of {chunk_bytes}, which cannot be"
    )]
    Impossible {
        /// The length of the image.
        bytes: u64,
        /// The length of a chunk.
        chunk_bytes: u32,
    },
    /// Nothing has arrived for too long.
    #[error(
        "no chunk has arrived for too long; {missing} are missing, the first of them is {chunk}"
    )]
    Stalled {
        /// The first missing chunk.
        chunk: u32,
        /// The number of missing chunks.
        missing: u32,
    },
    /// The server itself sends damaged chunks.
    #[error("the server has sent chunk {chunk} damaged")]
    Damaged {
        /// The chunk.
        chunk: u32,
    },
}

/// What a client reports to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The server has accepted the client. The driver calls [`Client::start`] with the chunks that it has already.
    Joined {
        /// The image's number.
        image: u32,
        /// The image's length, and that of its chunks.
        shape: Shape,
    },
    /// All chunks have been received and verified.
    Received,
    /// All chunks are written as well. The client still serves until it leaves.
    Written,
    /// A peer has sent a damaged chunk.
    Damaged {
        /// The peer.
        holder: HostId,
        /// The chunk.
        chunk: u32,
    },
    /// The client has left, and does nothing any more.
    Left,
    /// The client has failed, and does nothing any more.
    Failed(Failure),
}

/// Counts of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Verified chunks received from each host.
    pub received: BTreeMap<HostId, u32>,
    /// Chunks that were here already when they arrived.
    pub duplicates: u32,
    /// Chunks that were not verified.
    pub damaged: u32,
    /// Requests sent, each for a batch.
    pub requests: u32,
    /// Chunks that were requested again.
    pub retries: u32,
    /// Reports sent.
    pub reports: u32,
    /// Chunks of requests that were returned.
    pub returned: u32,
    /// Chunks that peers have received from here.
    pub sent: u32,
    /// The largest number of chunks that were queued for others, waiting or being sent.
    pub most_queued: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits for the answer to its join.
    Joining {
        since: Time,
        next: Time,
    },
    /// Has joined; the driver looks for the chunks that it has.
    Checking,
    Fetching,
    /// Has all chunks, which are not all written.
    Writing,
    Lingering {
        until: Time,
    },
    /// Has left. Chunks are still being sent, and requests that were on their way are returned.
    Leaving {
        from: Time,
        until: Time,
    },
    Over,
}

/// For this time a client that has left returns the requests that still arrive.
const LAST_RETURNS: Span = Span::from_ms(200);
/// The time in which a client that leaves completes the chunks that it is sending.
const LAST_SENDS: Span = Span::from_secs(5);
/// A client fails after this many damaged chunks from the server itself.
const DAMAGED_BY_SERVER: u32 = 3;
/// Chunks of one request that are considered; a requester repeats the rest. One forged packet must not lead to
/// thousands of chunks. Rackweave's choice, the same as in the kernel's program.
const MOST_ASKED: u16 = 64;
/// The longest name of an image.
const MOST_NAME: usize = u8::MAX as usize;

/// The machine of a client, for one image.
#[derive(Clone, Debug)]
pub struct Client {
    config: Config,
    server: HostId,
    name: Vec<u8>,
    /// Its random number.
    number: u32,
    state: State,
    image: u32,
    shape: Option<Shape>,
    have: Bitmap<u32>,
    written: Bitmap<u32>,
    /// Chunks that are here but cannot be sent to others.
    withheld: Bitmap<u32>,
    fetch: Fetch,
    reports: Reports,
    serving: Serving,
    /// Chunks to be expanded.
    expand: VecDeque<u32>,
    outgoing: VecDeque<Outgoing>,
    events: VecDeque<Event>,
    /// When a chunk arrived last, or the client started.
    progress: Time,
    damaged_by_server: u32,
    rng: Rng,
    counters: Counters,
}

impl Client {
    /// Creates a client that joins for the image of this name, which is cut at 255 bytes. `rng` is its own stream: from it
    /// come the number that identifies this run of the client, and a random order.
    #[must_use]
    pub fn new(config: Config, now: Time, server: HostId, name: &[u8], mut rng: Rng) -> Self {
        Self {
            config,
            server,
            name: name[..name.len().min(MOST_NAME)].to_vec(),
            number: rng.next_u64() as u32,
            state: State::Joining { since: now, next: now },
            image: 0,
            shape: None,
            have: Bitmap::new(0),
            written: Bitmap::new(0),
            withheld: Bitmap::new(0),
            fetch: Fetch::new(&config),
            reports: Reports::default(),
            serving: Serving::new(config.serve),
            expand: VecDeque::new(),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            progress: now,
            damaged_by_server: 0,
            rng,
            counters: Counters::default(),
        }
    }

    /// Returns the chunks that are here and verified.
    #[must_use]
    pub const fn have(&self) -> &Bitmap<u32> {
        &self.have
    }

    /// Returns the number of chunks that are written.
    #[must_use]
    pub const fn written_chunks(&self) -> u32 {
        self.written.len()
    }

    /// Returns whether chunks are not requested because arrived ones must be written first.
    #[must_use]
    pub fn is_behind_disk(&self) -> bool {
        let unwritten = self.have.len() - self.written.len();
        self.config.backlog > 0 && unwritten >= self.config.backlog
    }

    /// Returns what has been counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns whether the client has left or failed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Starts fetching. `have` are the chunks that the driver has and has verified, of an earlier run; those of `written`
    /// among them need not be expanded.
    pub fn start(&mut self, now: Time, have: &Bitmap<u32>, written: &Bitmap<u32>) {
        if self.state != State::Checking {
            return;
        }
        for chunk in have.iter().filter(|chunk| *chunk < self.have.size()).collect::<Vec<_>>() {
            self.have.insert(chunk);
            self.reports.add(now, chunk, &self.config);
            if written.contains(chunk) {
                self.written.insert(chunk);
            } else {
                self.expand.push_back(chunk);
            }
        }
        self.progress = now;
        self.state = State::Fetching;
        // Directories thereby learn of the client, and forget what it had in an earlier run and has no more.
        self.reports.all(now, self.have.size());
        self.update(now);
    }

    /// Handles a control message from a host. `payload` are the message's bytes behind its fields.
    pub fn handle_control(&mut self, now: Time, from: HostId, body: &Body) {
        match *body {
            Body::Entered { client, image, index, clients, chunk_bytes, bytes }
                if from == self.server && client == self.number =>
            {
                let clients = (clients > 0).then_some(u32::from(clients));
                let position = Position { index: u32::from(index), clients };
                self.entered(now, image, position, bytes.get(), chunk_bytes);
            }
            Body::Exit { image, .. } if from == self.server && image == self.image => {
                if matches!(self.state, State::Fetching | State::Writing | State::Lingering { .. })
                {
                    self.fetch.rejoin = true;
                    self.reports.all(now, self.have.size());
                    self.join();
                }
            }
            Body::Batch(chunks) if from != self.server => self.asked(now, from, chunks),
            // The server redirects, or a switch that cannot make packets has sent on what another holder returned.
            Body::Redirect { chunks, requester } if from == self.server => {
                self.asked_by(now, requester, chunks);
            }
            Body::Return { chunks, requester } if from != self.server => {
                self.asked_by(now, requester, chunks);
            }
            _ => {}
        }
        self.update(now);
    }

    /// The driver has joined a session in which nothing answers [`Body::Enter`]: a server that knows Frisbee only. Called once, before
    /// anything else.
    pub fn joined(&mut self, now: Time, image: u32, position: Position, shape: Shape) {
        self.entered(now, image, position, shape.bytes(), shape.chunk_bytes());
    }

    /// Parts of a chunk arrive that this client has not asked for, as the server multicasts them. Returns whether the client needs them. If
    /// so, it counts as requested, and is requested if the rest does not come.
    pub fn chunk_arriving(&mut self, now: Time, from: HostId, what: ChunkOf) -> bool {
        let is_missing = self.state == State::Fetching
            && what.image == self.image
            && what.chunk < self.have.size()
            && !self.have.contains(what.chunk);
        is_missing && self.fetch.arriving(now, from, what.chunk)
    }

    /// Returns whether a chunk is on request, or its parts arrive.
    #[must_use]
    pub fn is_asked(&self, chunk: u32) -> bool {
        self.fetch.is_asked(chunk)
    }

    /// Returns whether a peer's requests wait or are being served.
    #[must_use]
    pub fn is_serving(&self, peer: HostId) -> bool {
        self.serving.has(peer)
    }

    /// A request of this client has come to nothing: a switch has sent it back here. It is repeated at once.
    pub fn request_came_back(&mut self, now: Time, chunks: Chunks) {
        if chunks.image == self.image {
            let count = u32::from(chunks.count.min(MOST_ASKED));
            for chunk in chunks.first..chunks.first.saturating_add(count) {
                self.fetch.due_now(now, chunk);
            }
            self.update(now);
        }
    }

    /// A chunk of unknown origin was damaged: it is requested again, and nobody is accused.
    pub fn chunk_damaged(&mut self, now: Time, chunk: u32) {
        self.counters.damaged += 1;
        self.fetch.due_now(now, chunk);
        self.update(now);
    }

    fn entered(&mut self, now: Time, image: u32, position: Position, bytes: u64, chunk_bytes: u32) {
        let shape = Shape::new(bytes, chunk_bytes).filter(|_| bytes <= self.config.most_bytes);
        if let State::Joining { .. } = self.state {
            let Some(shape) = shape else {
                return self.fail(Failure::Impossible { bytes, chunk_bytes });
            };
            (self.image, self.shape) = (image, Some(shape));
            self.have = Bitmap::new(shape.chunks());
            self.written = Bitmap::new(shape.chunks());
            self.withheld = Bitmap::new(shape.chunks());
            self.fetch.plan(self.config.order.of(shape.chunks(), position, &mut self.rng));
            self.state = State::Checking;
            self.events.push_back(Event::Joined { image, shape });
        } else if self.fetch.rejoin {
            self.fetch.rejoin = false;
            if shape != self.shape {
                return self.fail(Failure::Changed);
            }
            if image != self.image {
                self.image = image;
                self.return_all();
            }
            self.reports.all(now, self.have.size());
            // Requests to the server were lost with its memory.
            self.fetch.all_due(now);
        }
    }

    fn asked_by(&mut self, now: Time, requester: [u8; 4], chunks: Chunks) {
        if let Some(requester) = frame::host_at(requester) {
            self.asked(now, requester, chunks);
        }
    }

    /// Another client asks for chunks.
    fn asked(&mut self, now: Time, requester: HostId, chunks: Chunks) {
        let Chunks { image, first, count, tries } = chunks;
        let is_serving =
            matches!(self.state, State::Fetching | State::Writing | State::Lingering { .. });
        let count = u32::from(count.min(MOST_ASKED));
        let end = first.saturating_add(count).min(self.have.size());
        let is_ours = image == self.image && first < end && !matches!(self.state, State::Over);
        if !is_ours || requester == self.server || self.serving.ignores(now, requester) {
            return;
        }
        let mut lacking: Option<Chunks> = None;
        for chunk in first..end {
            let what = ChunkOf { image, chunk };
            let is_taken = is_serving
                && if self.have.contains(chunk) {
                    !self.withheld.contains(chunk) && self.serving.push(requester, what)
                } else {
                    self.fetch.is_asked(chunk) && self.serving.wait(now, requester, what)
                };
            if is_taken {
                continue;
            }
            self.counters.returned += 1;
            match &mut lacking {
                Some(run) if run.first + u32::from(run.count) == chunk => run.count += 1,
                _ => {
                    let next = Chunks { image, first: chunk, count: 1, tries };
                    if let Some(run) = lacking.replace(next) {
                        self.give_back(run, requester);
                    }
                }
            }
        }
        if let Some(run) = lacking {
            self.give_back(run, requester);
        }
        self.counters.most_queued = self.counters.most_queued.max(self.serving.len() as u32);
    }

    fn give_back(&mut self, chunks: Chunks, requester: HostId) {
        let requester = frame::ip_address(requester).unwrap_or_default();
        self.send(self.server, Body::Return { chunks, requester });
    }

    /// A whole chunk has arrived.
    pub fn chunk_received(&mut self, now: Time, from: HostId, what: ChunkOf, check: Check) {
        let chunk = what.chunk;
        let is_fetching = matches!(self.state, State::Fetching);
        if what.image != self.image || chunk >= self.have.size() {
            return;
        }
        if self.have.contains(chunk) || !is_fetching {
            self.counters.duplicates += u32::from(self.have.contains(chunk));
            return;
        }
        match check {
            Check::Verified => {
                *self.counters.received.entry(from).or_insert(0) += 1;
                self.have.insert(chunk);
                self.fetch.received(now, chunk);
                self.progress = now;
                self.expand.push_back(chunk);
                self.reports.add(now, chunk, &self.config);
                for peer in self.serving.arrived(what) {
                    self.counters.returned += 1;
                    self.give_back(
                        Chunks { image: what.image, first: chunk, count: 1, tries: 0 },
                        peer,
                    );
                }
            }
            Check::Damaged => {
                self.counters.damaged += 1;
                self.events.push_back(Event::Damaged { holder: from, chunk });
                if from == self.server {
                    self.damaged_by_server += 1;
                    if self.damaged_by_server >= DAMAGED_BY_SERVER {
                        return self.fail(Failure::Damaged { chunk });
                    }
                } else {
                    let holder = frame::ip_address(from).unwrap_or_default();
                    self.send(self.server, Body::Damaged { image: self.image, chunk, holder });
                }
                self.fetch.due_now(now, chunk);
            }
        }
        self.update(now);
    }

    /// Bytes of a chunk have arrived, so that it need not be requested again yet.
    pub fn chunk_progress(&mut self, now: Time, from: HostId, what: ChunkOf) {
        if what.image == self.image {
            self.fetch.progress(now, from, what.chunk);
        }
    }

    /// A chunk has been expanded and written.
    pub fn written(&mut self, now: Time, chunk: u32) {
        if self.have.contains(chunk) {
            self.written.insert(chunk);
            // While the disk is behind, no chunk is requested.
            self.progress = now;
            self.update(now);
        }
    }

    /// A peer has received a chunk from here.
    pub fn chunk_sent(&mut self, now: Time, to: HostId, what: ChunkOf) {
        self.counters.sent += u32::from(self.serving.sent(to, what));
        self.serving.judged(now, to, true);
        self.update(now);
    }

    /// The last bytes of a chunk are on their way to a peer. A driver whose own work between two chunks takes time calls this, so that the
    /// next one can follow at once.
    pub fn chunk_ending(&mut self, to: HostId, what: ChunkOf) {
        self.serving.ending(to, what);
    }

    /// A peer did not want the chunk that was sent to it: it has it already. If this happens again and again, somebody else has asked in
    /// its name, and it gets nothing for a time.
    pub fn chunk_unwanted(&mut self, now: Time, to: HostId, what: ChunkOf) {
        self.serving.sent(to, what);
        self.serving.judged(now, to, false);
        self.update(now);
    }

    /// A chunk that was to be sent is here, but no longer in the form in which it is sent: the request is returned, and the chunk
    /// is not reported any more.
    pub fn chunk_unavailable(&mut self, now: Time, to: HostId, what: ChunkOf) {
        if !self.serving.sent(to, what) {
            return;
        }
        self.counters.returned += 1;
        if what.image == self.image && self.withheld.insert(what.chunk) {
            self.reports.changed(what.chunk);
        }
        let chunks = Chunks { image: what.image, first: what.chunk, count: 1, tries: 0 };
        self.give_back(chunks, to);
        self.update(now);
    }

    /// The client serves nothing: its reports are empty, and it returns all requests. It is called after the client has joined.
    pub fn withhold_all(&mut self) {
        for chunk in 0..self.have.size() {
            self.withheld.insert(chunk);
        }
    }

    /// A peer takes no bytes of a chunk at present: chunks for others are sent meanwhile.
    pub fn chunk_stalled(&mut self, to: HostId, what: ChunkOf) {
        self.serving.stalled(to, what);
    }

    /// The connection to or from a peer has failed: what it asked for is forgotten, and what was arriving from it is
    /// requested again.
    pub fn peer_failed(&mut self, now: Time, peer: HostId) {
        self.serving.forget(peer);
        self.fetch.peer_failed(now, peer);
        self.update(now);
    }

    /// Stops serving, and leaves.
    pub fn leave(&mut self, now: Time) {
        if matches!(self.state, State::Leaving { .. } | State::Over) {
            return;
        }
        self.return_all();
        if self.shape.is_some() {
            self.send(self.server, Body::Exit { client: self.number, image: self.image });
        }
        let (from, until) = (now.saturating_add(LAST_RETURNS), now.saturating_add(LAST_SENDS));
        self.state = State::Leaving { from, until };
        self.update(now);
    }

    fn return_all(&mut self) {
        for Send { peer, what } in self.serving.drain() {
            self.counters.returned += 1;
            let ChunkOf { image, chunk } = what;
            self.give_back(Chunks { image, first: chunk, count: 1, tries: 0 }, peer);
        }
    }

    fn send(&mut self, to: HostId, body: Body) {
        self.outgoing.push_back(Outgoing { to, body });
    }

    fn join(&mut self) {
        let name_len = self.name.len() as u8;
        self.send(self.server, Body::Enter { client: self.number, name_len });
    }

    fn fail(&mut self, failure: Failure) {
        if !matches!(self.state, State::Over) {
            self.return_all();
            if self.shape.is_some() {
                self.send(self.server, Body::Exit { client: self.number, image: self.image });
            }
            self.state = State::Over;
            self.events.push_back(Event::Failed(failure));
        }
    }

    /// Follows up on a change: requests, and the transitions at the end.
    fn update(&mut self, now: Time) {
        if self.state == State::Fetching {
            if self.have.is_full() {
                self.state = State::Writing;
                self.events.push_back(Event::Received);
            } else {
                self.request(now);
            }
        }
        if self.state == State::Writing && self.written.is_full() {
            self.events.push_back(Event::Written);
            self.state = State::Lingering { until: now.saturating_add(self.config.linger) };
        }
        if let State::Lingering { until } = self.state
            && now >= until
        {
            self.leave(now);
        }
        if let State::Leaving { from, until } = self.state
            && (now >= until || now >= from && self.serving.is_idle())
        {
            self.state = State::Over;
            self.events.push_back(Event::Left);
        }
    }

    fn request(&mut self, now: Time) {
        let unwritten = self.have.len() - self.written.len();
        while let Some((first, count, tries)) =
            self.fetch.next(now, &self.have, unwritten, &self.config)
        {
            self.counters.requests += 1;
            self.counters.retries += if tries > 0 { u32::from(count) } else { 0 };
            let chunks = Chunks { image: self.image, first, count, tries };
            self.send(self.server, Body::Batch(chunks));
        }
    }

    /// Called when the time that [`Client::poll_timeout`] returned has come.
    pub fn handle_timeout(&mut self, now: Time) {
        match self.state {
            State::Joining { since, next } => {
                if now >= since.saturating_add(self.config.give_up) {
                    return self.fail(Failure::NoServer);
                }
                if now >= next {
                    self.join();
                    let next = now.saturating_add(self.config.join_every);
                    self.state = State::Joining { since, next };
                }
            }
            State::Fetching if now >= self.progress.saturating_add(self.config.give_up) => {
                let missing = self.have.size() - self.have.len();
                let chunk = self.have.next_missing(0).unwrap_or(0);
                return self.fail(Failure::Stalled { chunk, missing });
            }
            _ => {}
        }
        while let Some(Send { peer, what }) = self.serving.expired(now) {
            self.counters.returned += 1;
            let ChunkOf { image, chunk } = what;
            self.give_back(Chunks { image, first: chunk, count: 1, tries: 0 }, peer);
        }
        self.reports.tick(now, &self.config);
        self.update(now);
    }

    /// Returns when to call [`Client::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let serves = self.serving.poll_timeout();
        let state = match self.state {
            State::Joining { since, next } => {
                return Some(next.min(since.saturating_add(self.config.give_up)));
            }
            State::Checking | State::Over => return None,
            State::Fetching => {
                let give_up = self.progress.saturating_add(self.config.give_up);
                Some(self.fetch.poll_timeout().map_or(give_up, |at| at.min(give_up)))
            }
            State::Writing => None,
            State::Lingering { until } => Some(until),
            State::Leaving { from, .. } if self.serving.is_idle() => return Some(from),
            State::Leaving { until, .. } => return Some(until),
        };
        [state, serves, self.reports.poll_timeout(&self.config)].into_iter().flatten().min()
    }

    /// Returns the next control message to send.
    #[must_use]
    pub fn poll_control(&mut self, now: Time) -> Option<Outgoing> {
        if let Some(outgoing) = self.outgoing.pop_front() {
            return Some(outgoing);
        }
        if !matches!(self.state, State::Fetching | State::Writing | State::Lingering { .. }) {
            return None;
        }
        let window = self.reports.poll(now)?;
        self.counters.reports += 1;
        Some(Outgoing { to: self.server, body: Body::Report { image: self.image, window } })
    }

    /// Appends the payload of a control message that [`Client::poll_control`] has just returned.
    pub fn payload(&self, body: &Body, out: &mut Vec<u8>) {
        match *body {
            Body::Enter { .. } => out.extend_from_slice(&self.name),
            Body::Report { window, .. } => {
                let word = |set: &Bitmap<u32>, at| set.words().get(at).copied().unwrap_or(0);
                let first = (window as usize).saturating_mul(REPORT_WORDS);
                for at in first..first.saturating_add(REPORT_WORDS) {
                    let offered = word(&self.have, at) & !word(&self.withheld, at);
                    out.extend_from_slice(&offered.to_le_bytes());
                }
            }
            _ => {}
        }
    }

    /// Returns the next chunk to send to a peer.
    #[must_use]
    pub fn poll_send(&mut self, _now: Time) -> Option<Send> {
        self.serving.poll()
    }

    /// Returns the next chunk to be expanded and written.
    #[must_use]
    pub fn poll_expand(&mut self) -> Option<u32> {
        self.expand.pop_front()
    }

    /// Returns whether [`Client::poll_expand`] has a chunk.
    #[must_use]
    pub fn has_to_expand(&self) -> bool {
        !self.expand.is_empty()
    }

    /// Returns the next event.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
