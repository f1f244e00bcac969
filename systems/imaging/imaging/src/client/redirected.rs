//! A client of Emulab's `frisbeed` behind a switch that redirects requests, as in SWP2P: it requests chunks from the server alone, and
//! the switch sends a request on to another such client that has the chunk, if there is one. That one sends it by TCP. What no
//! client has, the server multicasts, and all take it. The server and unmodified clients notice nothing.

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::{Bitmap, HostId, Rate, Rng, Span, Time};
use rackweave_image::{ImageError, IncomingNdz, Progress, ndz};
use rackweave_linux::{Clock, random};
use rackweave_swp2p::Shape;
use rackweave_swp2p::frisbee::{Blocks, ClientConfig};
use rackweave_swp2p::order::Position;
use rackweave_swp2p::p2p::client::{Client, Config, Event, Failure};
use rackweave_swp2p::p2p::{Check, ChunkOf, Outgoing, Send};
use rackweave_wire::frisbee::{Auth, BLOCK_BYTES, Body, CHUNK_BLOCKS, Chunks, SESSION_IMAGE};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinHandle, spawn_blocking, spawn_local};
use tokio::time::sleep;

use super::emulab::{
    FrisbeeFetchConfig, FrisbeeFetchError, FrisbeeFetchEvent, FrisbeeFetched, GATHER, MOST_DAMAGED,
    REPORT_EACH, RETRY, TICK, UNANSWERED, socket_failed,
};
use super::receive::{self, Taker};
use super::{LAST, MOST_BANNED, SERVER};
use crate::acceptor::Acceptor;
use crate::buffers::{Buffer, Buffers};
use crate::frames::ChunkHeader;
use crate::multicast::Channel;
use crate::peers::Peers;
use crate::rate::Limiter;
use crate::uploads::{Holder, Peer, UploadError, Uploads};

/// How clients of one session serve each other.
#[derive(Clone, Copy, Debug)]
pub struct RedirectedConfig {
    /// What is on request at a time, and how long the client lingers.
    pub machine: Config,
    /// A cap on what is sent to others.
    pub rate: Option<Rate>,
    /// Whether to serve others.
    pub serve: bool,
}

/// What the tasks of a client share.
struct Inner {
    clock: Clock,
    auth: Auth,
    own: Ipv4Addr,
    /// What clients of this session put in front of chunks: those of another one may have the same port.
    session: u32,
    peers: RefCell<Peers>,
    machine: RefCell<Client>,
    file: Arc<IncomingNdz>,
    progress: Arc<Progress>,
    buffers: Buffers,
    banned: RefCell<BTreeSet<Ipv4Addr>>,
    /// Chunks that may be in memory without having been judged.
    room: Semaphore,
    /// As many chunks are expanded at a time as there are processors: one takes up to 64 MiB.
    places: Arc<Semaphore>,
    uploads: Rc<Uploads>,
    sent_to: RefCell<BTreeMap<HostId, u32>>,
    /// The chunks whose SHA-1 was checked.
    with_sha1: RefCell<Bitmap<u32>>,
    /// What was wrong with the last damaged chunk.
    wrong: RefCell<String>,
    /// Why the file cannot be written.
    failure: RefCell<Option<ImageError>>,
    wake: Notify,
}

impl Inner {
    /// The number of a host that has sent a request, or is named by one.
    fn stranger(&self, address: Ipv4Addr) -> Option<HostId> {
        let (now, machine) = (self.clock.now(), self.machine.borrow());
        self.peers.borrow_mut().stranger(now, address, |host| machine.is_serving(host))
    }
}

impl Holder for Inner {
    fn image(&self, _image: u32) -> u32 {
        self.session
    }

    async fn chunk(&self, what: ChunkOf) -> Option<Bytes> {
        let file = Arc::clone(&self.file);
        let mut buffer = self.buffers.take(ndz::CHUNK);
        let read = move || file.read(what.chunk, &mut buffer).is_ok().then(|| buffer.freeze());
        spawn_blocking(read).await.ok()?
    }

    fn sent(&self, to: HostId, what: ChunkOf, bytes: u64) {
        let (now, mut machine) = (self.clock.now(), self.machine.borrow_mut());
        if bytes > 0 {
            let mut peers = self.peers.borrow_mut();
            // It is no stranger any more.
            let _named = peers.address(to).map(|address| peers.number(address));
            *self.sent_to.borrow_mut().entry(to).or_insert(0) += 1;
            machine.chunk_sent(now, to, what);
        } else {
            machine.chunk_unwanted(now, to, what);
        }
        self.wake.notify_one();
    }

    fn ending(&self, to: HostId, what: ChunkOf) {
        self.machine.borrow_mut().chunk_ending(to, what);
        self.wake.notify_one();
    }

    fn stalled(&self, to: HostId, what: ChunkOf) {
        self.machine.borrow_mut().chunk_stalled(to, what);
        self.wake.notify_one();
    }

    fn unavailable(&self, to: HostId, what: ChunkOf) {
        self.machine.borrow_mut().chunk_unavailable(self.clock.now(), to, what);
        self.wake.notify_one();
    }

    fn failed(&self, to: HostId, _why: &UploadError) {
        self.machine.borrow_mut().peer_failed(self.clock.now(), to);
        self.wake.notify_one();
    }
}

impl Taker for Inner {
    fn auth(&self) -> &Auth {
        &self.auth
    }

    /// Requests that lead to nothing are repeated, and the server answers in the end.
    fn not_accepted(&self, _why: String) {}

    fn bans(&self, from: Ipv4Addr) -> bool {
        self.banned.borrow().contains(&from)
    }

    fn ban(&self, from: Ipv4Addr) {
        let mut banned = self.banned.borrow_mut();
        if banned.len() < MOST_BANNED {
            banned.insert(from);
        }
    }

    fn expects(&self, header: ChunkHeader) -> Option<ChunkOf> {
        let ChunkHeader { image, chunk, len } = header;
        let machine = self.machine.borrow();
        let is_asked = machine.is_asked(chunk) || machine.have().contains(chunk);
        let is_right = image == self.session && len as usize == ndz::CHUNK;
        (is_right && is_asked).then_some(of(chunk))
    }

    fn number(&self, from: Ipv4Addr) -> Option<HostId> {
        self.peers.borrow_mut().number(from)
    }

    fn wants(&self, chunk: u32) -> bool {
        !self.machine.borrow().have().contains(chunk)
    }

    fn room(&self) -> &Semaphore {
        &self.room
    }

    fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    fn progress(&self, from: HostId, what: ChunkOf) {
        self.machine.borrow_mut().chunk_progress(self.clock.now(), from, what);
    }

    fn unwanted(&self, from: HostId, what: ChunkOf) {
        self.taken(from, what, Check::Verified);
    }

    async fn take(&self, what: ChunkOf, bytes: Bytes) -> std::io::Result<Check> {
        let _place = self.places.acquire().await.map_err(std::io::Error::other)?;
        let file = Arc::clone(&self.file);
        let written = spawn_blocking(move || file.write(what.chunk, &bytes)).await;
        match written.map_err(std::io::Error::other)? {
            Ok(written) => {
                if written.has_sha1 {
                    self.with_sha1.borrow_mut().insert(what.chunk);
                }
                Ok(Check::Verified)
            }
            Err(ImageError::Chunk { source, .. }) => {
                *self.wrong.borrow_mut() = source.to_string();
                Ok(Check::Damaged)
            }
            Err(error) => {
                *self.failure.borrow_mut() = Some(error);
                self.wake.notify_one();
                Err(std::io::ErrorKind::Other.into())
            }
        }
    }

    fn taken(&self, from: HostId, what: ChunkOf, check: Check) {
        if check == Check::Verified && self.wants(what.chunk) {
            self.progress.advance(ndz::CHUNK as u64);
        }
        self.machine.borrow_mut().chunk_received(self.clock.now(), from, what, check);
        self.wake.notify_one();
    }
}

/// The blocks of a chunk that the server multicasts. The machine limits how many such chunks there are.
struct Incomplete {
    bytes: Buffer,
    blocks: Blocks,
}

/// Joins the session, and fetches the image.
#[expect(clippy::too_many_arguments, reason = "they are what a client consists of")]
pub(super) async fn run(
    config: &FrisbeeFetchConfig,
    redirected: &RedirectedConfig,
    mut channel: Channel,
    own: Ipv4Addr,
    file: &Arc<IncomingNdz>,
    progress: &Arc<Progress>,
    clock: Clock,
    on_event: &mut dyn FnMut(FrisbeeFetchEvent),
) -> Result<FrisbeeFetched, FrisbeeFetchError> {
    let no_session = |source| FrisbeeFetchError::Socket {
        group: format!("TCP port {} of {own}", config.port),
        source,
    };
    let listener = crate::listen(SocketAddrV4::new(own, config.port)).map_err(no_session)?;
    let client = random() as u32;
    let (server, chunks) = join(config, client, &mut channel, progress, clock, on_event).await?;
    let wrong = |server, blocks| FrisbeeFetchError::NoImage { server, blocks };
    let bytes = u64::from(chunks) * ndz::CHUNK as u64;
    let shape = Shape::new(bytes, ndz::CHUNK as u32);
    let shape = shape.ok_or_else(|| wrong(server, chunks.saturating_mul(CHUNK_BLOCKS)))?;
    file.begin(chunks)?;
    progress.start(bytes);
    on_event(FrisbeeFetchEvent::Joined { server, chunks });
    let now = clock.now();
    let mut peers = Peers::new(None);
    peers.number(server);
    let rng = Rng::stream(random() as u64, 0, 0, "redirected client");
    let machine_config = Config { batch: 1, give_up: config.give_up, ..redirected.machine };
    let mut machine = Client::new(machine_config, now, SERVER, b"", rng);
    // Nobody counts the clients. Those of one network differ in the low bits, which are the first of a fraction of the image.
    machine.joined(now, SESSION_IMAGE, Position { index: own.to_bits(), clients: None }, shape);
    if !redirected.serve {
        machine.withhold_all();
    }
    let none = Bitmap::new(chunks);
    machine.start(now, &none, &none);
    let limiter = Limiter::new(redirected.rate, clock);
    let most = (config.memory / ndz::CHUNK as u64).clamp(8, 1 << 15) as usize;
    let inner = Rc::new(Inner {
        clock,
        auth: Auth::Number,
        own,
        session: session(config, chunks),
        peers: RefCell::new(peers),
        machine: RefCell::new(machine),
        file: Arc::clone(file),
        progress: Arc::clone(progress),
        buffers: Buffers::default(),
        banned: RefCell::default(),
        room: Semaphore::new(most),
        places: Arc::new(Semaphore::new(
            std::thread::available_parallelism().map_or(1, usize::from),
        )),
        uploads: Rc::new(Uploads::new(config.port, Auth::Number, limiter)),
        sent_to: RefCell::default(),
        with_sha1: RefCell::new(Bitmap::new(chunks)),
        wrong: RefCell::default(),
        failure: RefCell::default(),
        wake: Notify::new(),
    });
    let accepting = spawn_local(receive::accept(Acceptor::new(listener, clock), Rc::clone(&inner)));
    let (judge, judged) = unbounded_channel();
    let driver = Driver {
        inner,
        channel,
        client,
        server,
        started: now,
        incomplete: BTreeMap::new(),
        judging: BTreeSet::new(),
        judge,
        judged,
        damaged_since: 0,
        reported: None,
        gathers_until: now,
        finishing: None,
        complete: false,
        left: false,
        until: None,
    };
    let fetched = driver.run(on_event).await;
    accepting.abort();
    fetched
}

/// A number that differs between sessions.
fn session(config: &FrisbeeFetchConfig, chunks: u32) -> u32 {
    let group = u64::from(config.group.to_bits());
    Rng::stream(group, config.port.into(), chunks.into(), "frisbee session").next_u64() as u32
}

/// Joins the session. Returns the server, and the chunks of its image.
async fn join(
    config: &FrisbeeFetchConfig,
    client: u32,
    channel: &mut Channel,
    progress: &Progress,
    clock: Clock,
    on_event: &mut dyn FnMut(FrisbeeFetchEvent),
) -> Result<(Ipv4Addr, u32), FrisbeeFetchError> {
    let started = clock.now();
    let (mut next, mut has_waited, mut no_image) = (started, false, None);
    loop {
        let now = clock.now();
        if progress.is_stopped() {
            return Err(FrisbeeFetchError::Interrupted);
        }
        if now >= next {
            channel.push(Body::Join { client }, &[]);
            next = now + ClientConfig::JOIN_INTERVAL;
        }
        channel.flush().map_err(socket_failed)?;
        let waited = now.since(started);
        if waited >= UNANSWERED && !has_waited {
            has_waited = true;
            on_event(FrisbeeFetchEvent::Waiting);
        }
        if waited >= config.give_up {
            let group = format!("{}:{}", config.group, config.port);
            return Err(match no_image {
                Some((server, blocks)) => FrisbeeFetchError::NoImage { server, blocks },
                None => FrisbeeFetchError::NoServer { group, waited },
            });
        }
        tokio::select! {
            biased;
            received = channel.receive_any() => { received.map_err(socket_failed)?; },
            () = sleep(TICK) => continue,
        }
        for (from, body, _) in channel.messages() {
            let Body::JoinReply { blocks } = body else { continue };
            if config.server.is_some_and(|server| server != from) {
                continue;
            }
            if blocks > 0 && blocks.is_multiple_of(CHUNK_BLOCKS) {
                return Ok((from, blocks / CHUNK_BLOCKS));
            }
            if config.server.is_some() {
                return Err(FrisbeeFetchError::NoImage { server: from, blocks });
            }
            // Another host of the group may say so, and the server something else.
            no_image = Some((from, blocks));
        }
    }
}

struct Driver {
    inner: Rc<Inner>,
    channel: Channel,
    /// The random number of this client.
    client: u32,
    server: Ipv4Addr,
    started: Time,
    incomplete: BTreeMap<u32, Incomplete>,
    /// Complete chunks that came by multicast and are being judged.
    judging: BTreeSet<u32>,
    judge: UnboundedSender<(u32, Option<Check>)>,
    judged: UnboundedReceiver<(u32, Option<Check>)>,
    /// Damaged chunks since the last one that was not.
    damaged_since: u32,
    reported: Option<Time>,
    gathers_until: Time,
    /// The file is being completed.
    finishing: Option<JoinHandle<Result<(), ImageError>>>,
    complete: bool,
    left: bool,
    /// When a client that was stopped ends.
    until: Option<Time>,
}

const fn of(chunk: u32) -> ChunkOf {
    ChunkOf { image: SESSION_IMAGE, chunk }
}

impl Driver {
    async fn run(
        mut self,
        on_event: &mut dyn FnMut(FrisbeeFetchEvent),
    ) -> Result<FrisbeeFetched, FrisbeeFetchError> {
        let driven = self.drive(on_event).await;
        let elapsed_s = self.inner.clock.now().since(self.started).as_secs() as u32;
        if driven.is_err() {
            // Otherwise the switch would send requests here until its directory misses the reports.
            self.inner.machine.borrow_mut().leave(self.inner.clock.now());
            let _ = self.last_words();
        }
        if !self.complete {
            self.channel.push(Body::Leave { client: self.client, elapsed_s }, &[]);
            let _ = self.channel.flush();
        }
        driven.map(|()| self.fetched())
    }

    async fn drive(
        &mut self,
        on_event: &mut dyn FnMut(FrisbeeFetchEvent),
    ) -> Result<(), FrisbeeFetchError> {
        let inner = Rc::clone(&self.inner);
        loop {
            self.pump(on_event)?;
            let is_sent = self.channel.flush().map_err(socket_failed)?;
            if let Some(error) = inner.failure.take() {
                return Err(error.into());
            }
            let now = inner.clock.now();
            if inner.progress.is_stopped() && self.until.is_none() {
                inner.machine.borrow_mut().leave(now);
                self.until = Some(now + Span::from_ms(LAST.as_millis() as u64));
                continue;
            }
            let is_over = self.left && self.finishing.is_none();
            if is_over || self.until.is_some_and(|until| now >= until) {
                let stopped = Err(FrisbeeFetchError::Interrupted);
                return if self.complete { Ok(()) } else { stopped };
            }
            let due = inner.machine.borrow().poll_timeout();
            let due = due.map_or(TICK, |at| Duration::from_nanos(at.since(now).as_ns_ceil()));
            let gathers = now < self.gathers_until;
            let wait = if is_sent && !gathers { due.min(TICK) } else { due.min(RETRY) };
            tokio::select! {
                biased;
                () = inner.wake.notified() => {}
                Some((chunk, check)) = self.judged.recv() => self.judged(chunk, check, on_event)?,
                finished = async { self.finishing.as_mut()?.await.ok() }, if self.finishing.is_some() => {
                    self.finishing = None;
                    self.finished(finished, on_event)?;
                }
                received = self.channel.receive_any(), if !gathers => {
                    let is_direct = received.map_err(socket_failed)?;
                    if is_direct { self.asked() } else { self.heard() }
                    // Requests are answered at once.
                    if !is_direct && !self.channel.has_more() {
                        self.gathers_until = inner.clock.now() + GATHER;
                    }
                }
                () = sleep(wait) => {}
            }
            let now = inner.clock.now();
            let mut machine = inner.machine.borrow_mut();
            if machine.poll_timeout().is_some_and(|at| at <= now) {
                machine.handle_timeout(now);
            }
        }
    }

    /// Handles what was sent to this host alone: requests of other clients that a switch has redirected, and returned ones.
    fn asked(&self) {
        let inner = &self.inner;
        for (from, body, _) in self.channel.messages() {
            let body = match body {
                Body::Return { .. } | Body::Batch(_) => body,
                body => match body.session_chunks() {
                    Some(chunks) => Body::Batch(chunks),
                    None => continue,
                },
            };
            let now = inner.clock.now();
            if let Body::Return { chunks, requester } = body {
                let requester = requester.into();
                if requester == inner.own {
                    inner.machine.borrow_mut().request_came_back(now, chunks);
                    continue;
                }
                if inner.stranger(requester).is_none() {
                    continue;
                }
            }
            if inner.bans(from) {
                continue;
            }
            let host = inner.stranger(from);
            let body = inner.peers.borrow_mut().arrived(body);
            if let (Some(host), Some(body)) = (host, body) {
                inner.machine.borrow_mut().handle_control(now, host, &body);
            }
        }
    }

    /// Takes the blocks that the server multicasts.
    fn heard(&mut self) {
        let inner = Rc::clone(&self.inner);
        let now = inner.clock.now();
        let mut complete = Vec::new();
        for (from, body, payload) in self.channel.messages() {
            let Body::Block { chunk, block, .. } = body else { continue };
            let is_block = payload.len() == BLOCK_BYTES as usize && block < CHUNK_BLOCKS;
            if from != self.server || !is_block || self.judging.contains(&chunk) {
                continue;
            }
            if !inner.machine.borrow_mut().chunk_arriving(now, SERVER, of(chunk)) {
                // It may have come from another client meanwhile.
                self.incomplete.remove(&chunk);
                continue;
            }
            let incomplete = self.incomplete.entry(chunk).or_insert_with(|| {
                let mut bytes = inner.buffers.take(ndz::CHUNK);
                bytes.resize(ndz::CHUNK, 0);
                Incomplete { bytes, blocks: Blocks::EMPTY }
            });
            incomplete.blocks.insert(block);
            let start = (block * BLOCK_BYTES) as usize;
            if let Some(place) = incomplete.bytes.get_mut(start..start + payload.len()) {
                place.copy_from_slice(payload);
            }
            if incomplete.blocks.count() == CHUNK_BLOCKS
                && let Some(Incomplete { bytes, .. }) = self.incomplete.remove(&chunk)
            {
                self.judging.insert(chunk);
                complete.push((chunk, bytes.freeze()));
            }
        }
        for (chunk, bytes) in complete {
            let (inner, report) = (Rc::clone(&inner), self.judge.clone());
            spawn_local(async move {
                let check = inner.take(of(chunk), bytes).await;
                let _ = report.send((chunk, check.ok()));
            });
        }
    }

    /// A chunk that came by multicast is written, or is not one of an image.
    fn judged(
        &mut self,
        chunk: u32,
        check: Option<Check>,
        on_event: &mut dyn FnMut(FrisbeeFetchEvent),
    ) -> Result<(), FrisbeeFetchError> {
        let now = self.inner.clock.now();
        self.judging.remove(&chunk);
        match check {
            Some(Check::Verified) => {
                self.damaged_since = 0;
                self.inner.taken(SERVER, of(chunk), Check::Verified);
            }
            Some(Check::Damaged) => {
                let why = self.inner.wrong.borrow().clone();
                self.damaged_since += 1;
                if self.damaged_since >= MOST_DAMAGED {
                    return Err(FrisbeeFetchError::Damaged { count: self.damaged_since, why });
                }
                self.inner.machine.borrow_mut().chunk_damaged(now, chunk);
                if self.reported.is_none_or(|last| now.since(last) >= REPORT_EACH) {
                    self.reported = Some(now);
                    on_event(FrisbeeFetchEvent::Damaged { chunk, why });
                }
            }
            // Why it cannot be written is reported.
            None => {}
        }
        Ok(())
    }

    /// Passes on whatever the machine has.
    fn pump(
        &mut self,
        on_event: &mut dyn FnMut(FrisbeeFetchEvent),
    ) -> Result<(), FrisbeeFetchError> {
        let inner = Rc::clone(&self.inner);
        let now = inner.clock.now();
        loop {
            // What is verified was written with it.
            let expand = inner.machine.borrow_mut().poll_expand();
            if let Some(chunk) = expand {
                self.incomplete.remove(&chunk);
                inner.machine.borrow_mut().written(now, chunk);
                continue;
            }
            let event = inner.machine.borrow_mut().poll_event();
            let Some(event) = event else { break };
            self.event(event, on_event)?;
        }
        loop {
            let send = inner.machine.borrow_mut().poll_send(now);
            let Some(Send { peer, what }) = send else { break };
            let Some(address) = inner.peers.borrow().address(peer) else { continue };
            inner.uploads.push(&inner, inner.own, Peer { host: peer, address }, what);
        }
        loop {
            let outgoing = inner.machine.borrow_mut().poll_control(now);
            match outgoing {
                Some(Outgoing { body: Body::Batch(chunks), .. }) => self.request(chunks)?,
                Some(outgoing) => self.tell(outgoing)?,
                None => return Ok(()),
            }
        }
    }

    /// Sends what a client that has failed still has to say.
    fn last_words(&mut self) -> Result<(), FrisbeeFetchError> {
        loop {
            let outgoing = self.inner.machine.borrow_mut().poll_control(self.inner.clock.now());
            match outgoing {
                Some(Outgoing { body: Body::Batch(_), .. }) => {}
                Some(outgoing) => self.tell(outgoing)?,
                None => return Ok(()),
            }
        }
    }

    fn tell(&mut self, outgoing: Outgoing) -> Result<(), FrisbeeFetchError> {
        let Outgoing { to, body } = outgoing;
        let wire = self.inner.peers.borrow().departing(body);
        let address = self.inner.peers.borrow().address(to);
        let (Some(address), Some(wire)) = (address, wire) else { return Ok(()) };
        let mut payload = Vec::new();
        self.inner.machine.borrow().payload(&body, &mut payload);
        self.channel.send_to(address, wire, &payload).map_err(socket_failed)
    }

    /// Requests chunks in Frisbee's words. Where the server has multicast a part of a chunk, another client sends all of it, or else the
    /// server the missing blocks.
    fn request(&mut self, chunks: Chunks) -> Result<(), FrisbeeFetchError> {
        let Chunks { first, count, tries, .. } = chunks;
        for chunk in first..first + u32::from(count) {
            if self.judging.contains(&chunk) {
                continue;
            }
            let here = self.incomplete.get(&chunk).map_or(Blocks::EMPTY, |it| it.blocks);
            let missing = here.missing(CHUNK_BLOCKS).to_bytes();
            let (body, payload) = match tries {
                0 => (Body::Request { chunk, block: 0, count: CHUNK_BLOCKS }, &[][..]),
                _ => (Body::PartialRequest { chunk, retries: tries.into() }, &missing[..]),
            };
            self.channel.send_to(self.server, body, payload).map_err(socket_failed)?;
        }
        Ok(())
    }

    fn event(
        &mut self,
        event: Event,
        on_event: &mut dyn FnMut(FrisbeeFetchEvent),
    ) -> Result<(), FrisbeeFetchError> {
        match event {
            Event::Joined { .. } | Event::Received => {}
            Event::Written => {
                let inner = &self.inner;
                let (file, progress) = (Arc::clone(&inner.file), Arc::clone(&inner.progress));
                self.finishing =
                    Some(spawn_blocking(move || file.finish(&progress).map(|_image| ())));
            }
            Event::Damaged { chunk, .. } => {
                let why = self.inner.wrong.borrow().clone();
                on_event(FrisbeeFetchEvent::Damaged { chunk, why });
            }
            Event::Left => self.left = true,
            Event::Failed(failure) => return Err(self.failed(failure)),
        }
        Ok(())
    }

    fn failed(&self, failure: Failure) -> FrisbeeFetchError {
        let machine = self.inner.machine.borrow();
        let (chunks, have) = (machine.have().size(), machine.have().len());
        match failure {
            Failure::Damaged { .. } => {
                let (count, why) = (self.damaged_since, self.inner.wrong.borrow().clone());
                FrisbeeFetchError::Damaged { count, why }
            }
            _ => FrisbeeFetchError::Stalled {
                server: self.server,
                waited: self.inner.clock.now().since(self.started),
                missing: chunks - have,
                chunks,
            },
        }
    }

    /// The file is complete, or cannot be completed.
    fn finished(
        &mut self,
        finished: Option<Result<(), ImageError>>,
        on_event: &mut dyn FnMut(FrisbeeFetchEvent),
    ) -> Result<(), FrisbeeFetchError> {
        let ended = || ImageError::Write {
            path: PathBuf::new(),
            source: std::io::Error::other("the thread that completes the file has ended"),
        };
        finished.unwrap_or_else(|| Err(ended()))?;
        self.complete = true;
        // Only now it has the image, and says so, once, as Frisbee does.
        let elapsed_s = self.inner.clock.now().since(self.started).as_secs() as u32;
        self.channel.push(Body::Leave { client: self.client, elapsed_s }, &[]);
        on_event(FrisbeeFetchEvent::Written(Box::new(self.fetched())));
        Ok(())
    }

    fn fetched(&self) -> FrisbeeFetched {
        let (machine, peers) = (self.inner.machine.borrow(), self.inner.peers.borrow());
        let counters = machine.counters();
        let name = |(host, chunks): (&_, &u32)| Some((peers.address(*host)?, *chunks));
        FrisbeeFetched {
            server: self.server,
            chunks: machine.have().size(),
            with_sha1: self.inner.with_sha1.borrow().len(),
            damaged: counters.damaged,
            refused: self.channel.refused(),
            requests: u64::from(counters.requests),
            retries: u64::from(counters.retries),
            from: counters.received.iter().filter_map(name).collect(),
            to: self.inner.sent_to.borrow().iter().filter_map(name).collect(),
        }
    }
}
