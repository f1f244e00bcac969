//! A client in a Frisbee session: the driver of its machine. What it lacks when the session does not work, it fetches without multicast.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::{Bitmap, Rng, Span, Time};
use rackweave_image::{Manifest, Progress, StoredChunk};
use rackweave_linux::{Clock, random};
use rackweave_swp2p::frisbee::{Client, ClientConfig, Event, Layout};
use rackweave_swp2p::node::statistics;
use rackweave_swp2p::p2p::client::Failure;
use rackweave_wire::frisbee::{BLOCK_BYTES, Body};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{spawn_blocking, spawn_local};
use tokio::time::sleep;

use super::disk::{Disk, Done};
use super::drive::{failed, thread_ended};
use super::session::Shared;
use super::{FetchConfig, FetchError, FetchEvent, Fetched, TICK};
use crate::buffers::{Buffer, Buffers};
use crate::multicast::{Channel, Group};
use crate::status::{Limit, Phase};

/// How long nothing may come by multicast, while the server is there over TCP, before the client goes on without. A client asks
/// again after a second at most, so that the network has lost several requests or their answers by then.
const SILENCE: Span = Span::from_secs(5);
/// How many damaged chunks in a row are too many: somebody sends blocks in the server's name.
const MOST_DAMAGED: u32 = 16;
/// The shortest time between two reports of damaged chunks.
const REPORT_EACH: Span = Span::from_secs(1);
/// After it has received, a client lets packets gather for this time: 110 of them at 1 Gbps, of 1800 for which the socket has room. It
/// would be woken for each of them otherwise, which costs more than all else that it does.
const GATHER: Span = Span::from_ms(1);
/// The interval over which rates are computed.
const RATES: Span = Span::from_secs(1);
/// How long a client that leaves waits until its last message is sent.
const LAST: Duration = Duration::from_millis(1);

/// What has become of a session.
pub(super) enum Outcome {
    /// Every byte is written and synced.
    Complete,
    /// Chunks are missing, for which the client needs another way.
    Unicast {
        disk: Disk,
        /// The chunks that are on the target.
        have: Bitmap<u32>,
        why: String,
    },
}

/// What a session needs from its client.
pub(super) struct Context<'a> {
    pub(super) config: &'a FetchConfig,
    pub(super) clock: Clock,
    pub(super) manifest: Arc<Manifest>,
    pub(super) shared: &'a Rc<Shared>,
    pub(super) progress: &'a Arc<Progress>,
    pub(super) fetched: &'a mut Fetched,
}

/// Fetches what is missing by multicast.
pub(super) async fn fetch(
    context: Context<'_>,
    channel: std::io::Result<Channel>,
    group: Group,
    disk: Disk,
    have: Bitmap<u32>,
    on_event: &mut dyn FnMut(FetchEvent),
) -> Result<Outcome, FetchError> {
    let manifest = &context.manifest;
    let lengths = (0..manifest.chunks()).filter_map(|chunk| manifest.chunk(chunk));
    let layout = Layout::of_lengths(lengths.map(|chunk| chunk.stored));
    let (layout, channel) = match (layout, channel) {
        (Some(layout), Ok(channel)) => (layout, channel),
        (None, _) => {
            let why = "its chunks do not fit Frisbee's packets".to_owned();
            return Ok(Outcome::Unicast { disk, have, why });
        }
        (_, Err(error)) => {
            let why = format!("{group} cannot be joined: {error}");
            return Ok(Outcome::Unicast { disk, have, why });
        }
    };
    on_event(FetchEvent::Multicast(group.to_string()));
    let chunk_bytes = manifest.head().chunk_size;
    let most = (context.config.memory / u64::from(chunk_bytes.max(1))).clamp(8, 1 << 15) as u16;
    let machine = context.config.session.clone();
    let machine = machine.unwrap_or_else(|| ClientConfig::driven(chunk_bytes));
    let machine = ClientConfig { buffers: machine.buffers.min(most), ..machine };
    let now = context.clock.now();
    let rng = Rng::stream(random() as u64, 0, 0, "frisbee client");
    let machine = Client::driven(machine, now, rng, layout, &have);
    let (verify, verified) = unbounded_channel();
    let driver = Driver {
        machine,
        channel,
        group,
        disk,
        written: have,
        incomplete: Incomplete::default(),
        waiting: BTreeMap::new(),
        verify,
        verified,
        useful: now,
        advanced: now,
        received: 0,
        damaged_since: 0,
        reported_damage: None,
        gathers_until: now,
        has_left: false,
        lost: false,
        complete: false,
        rates: (now, 0),
        context,
    };
    driver.run(on_event).await
}

/// The blocks of incomplete chunks. The machine limits how many chunks there are.
#[derive(Default)]
struct Incomplete {
    chunks: BTreeMap<u32, Buffer>,
    buffers: Buffers,
}

impl Incomplete {
    /// Stores a block that the machine has a place for. What is not overwritten yet has arbitrary content: a chunk is verified when all
    /// its blocks are here.
    fn store(&mut self, manifest: &Manifest, chunk: u32, block: u32, payload: &[u8]) {
        let len = super::stored(manifest, chunk) as usize;
        let buffer = self.chunks.entry(chunk).or_insert_with(|| {
            let mut buffer = self.buffers.take(len);
            buffer.resize(len, 0);
            buffer
        });
        let start = (block * BLOCK_BYTES) as usize;
        // The end of the last block is padding.
        let end = len.min(start + payload.len());
        if let Some(place) = buffer.get_mut(start..end) {
            place.copy_from_slice(&payload[..end - start]);
        }
    }
}

struct Driver<'a> {
    context: Context<'a>,
    machine: Client,
    channel: Channel,
    group: Group,
    disk: Disk,
    /// The chunks that are on the target.
    written: Bitmap<u32>,
    incomplete: Incomplete,
    /// Verified chunks that wait for the disk.
    waiting: BTreeMap<u32, StoredChunk>,
    verify: UnboundedSender<(u32, Option<StoredChunk>)>,
    verified: UnboundedReceiver<(u32, Option<StoredChunk>)>,
    /// When a block that was needed has arrived last, or nothing could be expected.
    useful: Time,
    /// When a chunk was verified last.
    advanced: Time,
    /// Stored bytes that have arrived and were verified.
    received: u64,
    /// Damaged chunks since the last one that was not.
    damaged_since: u32,
    reported_damage: Option<Time>,
    /// Until when packets gather in the socket.
    gathers_until: Time,
    has_left: bool,
    /// Whether the connection to the server is broken, as was last reported.
    lost: bool,
    complete: bool,
    /// When rates were computed last, and the bytes up to then.
    rates: (Time, u64),
}

impl Driver<'_> {
    async fn run(mut self, on_event: &mut dyn FnMut(FetchEvent)) -> Result<Outcome, FetchError> {
        let ended = self.drive(on_event).await;
        self.machine.leave(self.context.clock.now());
        let sent = self.send();
        self.count();
        let why = ended?;
        if self.complete {
            return Ok(Outcome::Complete);
        }
        // A last message that waits for room is not waited for longer.
        if !sent? {
            sleep(LAST).await;
            self.send()?;
        }
        // What was received is not received again.
        while self.disk.is_busy() || !self.waiting.is_empty() {
            self.pass_to_disk();
            match self.disk.done.recv().await {
                Some(done) => self.done(done, on_event)?,
                None => return Err(thread_ended()),
            }
        }
        self.count();
        Ok(Outcome::Unicast { disk: self.disk, have: self.written, why })
    }

    /// Runs until every byte is written, or returns why multicast does not work.
    async fn drive(&mut self, on_event: &mut dyn FnMut(FetchEvent)) -> Result<String, FetchError> {
        let shared = Rc::clone(self.context.shared);
        loop {
            let now = self.context.clock.now();
            self.pass_to_disk();
            if self.machine.poll_timeout().is_some_and(|at| at <= now) {
                self.machine.handle_timeout(now);
            }
            let is_sent = self.send()?;
            if self.complete {
                return Ok(String::new());
            }
            if self.context.progress.is_stopped() {
                return Err(FetchError::Interrupted);
            }
            if let Some(why) = self.judge(now)? {
                return Ok(why);
            }
            if now.since(self.rates.0) >= RATES {
                self.report(now);
            }
            let due = self
                .machine
                .poll_timeout()
                .map_or(TICK, |at| Duration::from_nanos(at.since(now).as_ns_ceil()).min(TICK));
            let gathers = now < self.gathers_until;
            let wait = if is_sent && !gathers { due } else { due.min(LAST) };
            tokio::select! {
                biased;
                Some(done) = self.disk.done.recv() => self.done(done, on_event)?,
                Some((chunk, stored)) = self.verified.recv() => self.judged(chunk, stored, on_event),
                received = self.channel.receive(), if !gathers => {
                    received.map_err(socket_failed)?;
                    self.handle();
                    if !self.channel.has_more() {
                        self.gathers_until = self.context.clock.now() + GATHER;
                    }
                }
                () = sleep(wait) => {}
                () = shared.wake.notified() => self.session_changed(on_event)?,
            }
        }
    }

    /// Sends what the machine has. Returns false if the send buffer has no room.
    fn send(&mut self) -> Result<bool, FetchError> {
        while let Some(message) = self.machine.poll() {
            match (message.map, message.body) {
                (Some(map), body) => self.channel.push(body, &map.to_bytes()),
                (None, body @ Body::Leave2 { .. }) => {
                    self.channel.push(body, &*statistics(&self.machine));
                }
                (None, body) => self.channel.push(body, &[]),
            }
        }
        self.channel.flush().map_err(socket_failed)
    }

    /// Handles what has arrived: blocks and replies of the server, and requests of others, which the machine does not repeat.
    fn handle(&mut self) {
        let now = self.context.clock.now();
        for (from, body, payload) in self.channel.messages() {
            let is_servers = matches!(
                body,
                Body::Block { .. } | Body::JoinReply { .. } | Body::Join2 { reply: true, .. }
            );
            if is_servers != (from == self.group.server) {
                continue;
            }
            let is_new = self.machine.handle(now, &body, payload);
            // Before the block is stored: its chunk may have been given up and begun again.
            let mut complete = None;
            while let Some(event) = self.machine.poll_event() {
                match event {
                    Event::Joined => self.useful = now,
                    Event::Dropped(chunk) => drop(self.incomplete.chunks.remove(&chunk)),
                    Event::Complete(chunk) => complete = Some(chunk),
                }
            }
            if let Body::Block { chunk, block, .. } = body
                && is_new
            {
                self.incomplete.store(&self.context.manifest, chunk, block, payload);
                self.useful = now;
            }
            if let Some(chunk) = complete
                && let Some(bytes) = self.incomplete.chunks.remove(&chunk)
            {
                verify(&self.context.manifest, &self.verify, chunk, bytes.freeze());
            }
        }
    }

    /// A chunk was verified, or is not the image's.
    fn judged(
        &mut self,
        chunk: u32,
        stored: Option<StoredChunk>,
        on_event: &mut dyn FnMut(FetchEvent),
    ) {
        let now = self.context.clock.now();
        let Some(stored) = stored else {
            self.context.fetched.damaged += 1;
            self.damaged_since += 1;
            self.machine.chunk_damaged(now, chunk);
            if self.reported_damage.is_none_or(|last| now.since(last) >= REPORT_EACH) {
                self.reported_damage = Some(now);
                on_event(FetchEvent::DamagedBlocks { chunk });
            }
            return;
        };
        let bytes = stored.bytes().len() as u64;
        self.received += bytes;
        self.context.progress.advance(bytes);
        self.context.fetched.fetched += 1;
        self.context.fetched.bytes += bytes;
        *self.context.fetched.from.entry(*self.context.config.server.ip()).or_insert(0) += 1;
        (self.advanced, self.damaged_since) = (now, 0);
        self.machine.chunk_verified(now, chunk);
        self.waiting.insert(chunk, stored);
        if self.machine.missing() == Some(0) {
            on_event(FetchEvent::Received);
        }
    }

    fn pass_to_disk(&mut self) {
        while self.disk.has_room()
            && let Some((_, stored)) = self.waiting.pop_first()
        {
            self.disk.write(stored);
        }
    }

    /// The disk's thread has done something.
    fn done(&mut self, done: Done, on_event: &mut dyn FnMut(FetchEvent)) -> Result<(), FetchError> {
        let now = self.context.clock.now();
        match done {
            Done::Written(chunk) => {
                self.disk.written();
                self.written.insert(chunk);
                self.machine.chunk_written(now, chunk);
                if self.machine.finished_at().is_some() && !self.has_left {
                    self.has_left = true;
                    if self.written.is_full() {
                        self.disk.finish();
                    }
                }
            }
            Done::Finished => {
                self.complete = true;
                self.count();
                on_event(FetchEvent::Written(self.context.fetched.clone()));
                self.report(now);
                self.context.shared.report.notify_one();
            }
            Done::Failed(error) => return Err(failed(error)),
        }
        Ok(())
    }

    /// Reports what has happened to the session over TCP.
    fn session_changed(&mut self, on_event: &mut dyn FnMut(FetchEvent)) -> Result<(), FetchError> {
        if let Some(source) = self.context.shared.failure.borrow_mut().take() {
            if self.written.is_full() {
                return Ok(());
            }
            return Err(FetchError::Session { server: self.context.config.server, source });
        }
        let problem = self.context.shared.problem.borrow();
        match (&*problem, self.lost) {
            (Some(why), false) => on_event(FetchEvent::ServerLost(why.clone())),
            (None, true) => {
                on_event(FetchEvent::ServerBack);
                // It knows nothing of what was asked before.
                self.useful = self.context.clock.now();
            }
            _ => {}
        }
        self.lost = problem.is_some();
        Ok(())
    }

    /// Returns why the client goes on without multicast, if it does.
    fn judge(&mut self, now: Time) -> Result<Option<String>, FetchError> {
        let missing = self.machine.missing().unwrap_or(0);
        let is_behind_disk = self.machine.is_full() || !self.waiting.is_empty();
        if missing == 0 || is_behind_disk {
            // Nothing is expected.
            (self.useful, self.advanced) = (now, now);
            return Ok(None);
        }
        if now.since(self.advanced) >= self.context.config.machine.give_up {
            let chunk = self.written.next_missing(0);
            let failure = match self.machine.has_joined() {
                true => Failure::Stalled { chunk: chunk.unwrap_or(0), missing },
                false => Failure::NoServer,
            };
            return Err(FetchError::Failed {
                failure,
                server: self.context.config.server,
                problem: self.context.shared.problem.borrow().clone(),
                obstacle: self.context.shared.obstacle.borrow().clone(),
            });
        }
        if self.damaged_since >= MOST_DAMAGED {
            return Ok(Some(format!(
                "{} chunks in a row were damaged: another host sends to {} in the server's name, or the network damages packets",
                self.damaged_since, self.group
            )));
        }
        // While the server is away, nothing can be expected.
        if self.context.shared.problem.borrow().is_some() {
            self.useful = now;
        }
        if now.since(self.useful) < SILENCE {
            return Ok(None);
        }
        let group = self.group;
        let seconds = SILENCE.as_secs();
        let what = if self.machine.has_joined() { "block" } else { "answer" };
        Ok(Some(format!("no {what} has come from {group} for {seconds} s")))
    }

    /// Takes over what the machine has counted.
    fn count(&mut self) {
        let counts = self.machine.counts();
        let int = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let fetched = &mut *self.context.fetched;
        (fetched.requests, fetched.retries) = (int(counts.requests), int(counts.rerequests));
        (fetched.refused, fetched.unsent) = (self.channel.refused(), self.channel.unsent());
        fetched.session = Some(*counts);
    }

    /// Brings the status up to date.
    fn report(&mut self, now: Time) {
        self.count();
        let (since, received) = self.rates;
        let micros = u128::from(now.since(since).as_us().max(1));
        let rate = (u128::from(self.received - received) * 1_000_000 / micros) as u64;
        let fetched = &*self.context.fetched;
        let mut status = self.context.shared.status.borrow_mut();
        status.multicast = true;
        let missing = self.machine.missing().unwrap_or(0);
        status.have = self.written.size() - missing;
        status.written = self.written.len();
        status.bytes = fetched.bytes;
        status.receive_rate = rate;
        status.from = crate::status::most(fetched.from.clone());
        (status.retries, status.damaged) = (fetched.retries, fetched.damaged);
        (status.refused, status.unsent) = (fetched.refused, fetched.unsent);
        status.phase = match (self.complete, missing) {
            // It does not stay.
            (true, _) => Phase::Done,
            (false, 0) => Phase::Writing,
            _ => Phase::Fetching,
        };
        status.limit = match status.phase {
            Phase::Fetching if self.machine.is_full() => Limit::Disk,
            Phase::Fetching if self.received == received => Limit::Silence,
            Phase::Fetching => Limit::Network,
            Phase::Writing => Limit::Disk,
            _ => Limit::None,
        };
        status.elapsed_ms = now.as_ms();
        self.rates = (now, self.received);
    }
}

fn socket_failed(source: std::io::Error) -> FetchError {
    FetchError::System { what: "the UDP socket of the multicast session has failed", source }
}

/// Has a chunk verified by another thread.
fn verify(
    manifest: &Arc<Manifest>,
    report: &UnboundedSender<(u32, Option<StoredChunk>)>,
    chunk: u32,
    bytes: Bytes,
) {
    let (manifest, report) = (Arc::clone(manifest), report.clone());
    spawn_local(async move {
        let verified = spawn_blocking(move || StoredChunk::verify(&manifest, chunk, bytes)).await;
        let _ = report.send((chunk, verified.ok().and_then(Result::ok)));
    });
}
