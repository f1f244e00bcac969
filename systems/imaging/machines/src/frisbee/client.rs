//! The client: it asks for chunks, collects their blocks, and expands them.

use std::collections::VecDeque;

use rackweave_core::{Rng, Span, Time};
use rackweave_wire::frisbee::{BLOCK_BYTES, Body};

use super::{Blocks, ClientConfig, Event, Layout, Outgoing, Run};
use crate::Shape;
use crate::intake::Stage;
use crate::order::Position;

/// What a client has counted: the statistics of LEAVE2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounts {
    /// Blocks that it has received.
    pub blocks: u64,
    /// Blocks of chunks that it had.
    pub duplicate_chunk_blocks: u64,
    /// Blocks that it had of incomplete chunks.
    pub duplicate_blocks: u64,
    /// Blocks that were dropped because all buffers were in use.
    pub no_buffer: u64,
    /// Attempts to join.
    pub joins: u64,
    /// Requests, partial ones included.
    pub requests: u64,
    /// Partial requests, which include repeated requests for whole chunks.
    pub partial_requests: u64,
    /// Requests for chunks that it had requested before.
    pub rerequests: u64,
    /// Those for whole chunks.
    pub full_rerequests: u64,
    /// Blocks in partial requests.
    pub lost_blocks: u64,
    /// How often it was idle for too long.
    pub idles: u64,
    /// Incomplete chunks that it gave up for lack of buffers.
    pub partial_drops: u64,
    /// Messages that were ignored because they cannot be right.
    pub ignored: u64,
}

/// A chunk of the image.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chunk {
    /// When this client or another last requested it, as far as is known.
    pub(super) stamped: Option<Time>,
    /// Whether this client has requested it.
    pub(super) ours: bool,
    /// The buffer that collects it, plus one; 0 if there is none.
    pub(super) buffer: u16,
    /// Whether all blocks have been received.
    pub(super) done: bool,
}

/// A buffer for one chunk.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    pub(super) state: State,
    pub(super) chunk: u32,
    have: Blocks,
    /// Blocks that are missing.
    left: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Empty,
    Filling,
    /// Its beginning was dropped for lack of buffers: it is given up if a chunk that begins needs its buffer.
    Dubious,
    /// Complete: it waits to be expanded, or is being expanded.
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting {
        from: Time,
    },
    Joining {
        again: Time,
    },
    Running,
    /// All chunks are received; they are expanded and written.
    Finishing,
    /// The image is written, and the client has sent LEAVE2.
    Left {
        at: Time,
        gone: bool,
    },
}

/// How long a client that has the image still exists, so that its last message leaves the host.
const EXIT: Span = Span::from_ms(10);

/// Messages that can wait to be sent: requests for all buffers, and what is requested ahead.
const MAX_OUTGOING: usize = 2048;

/// A Frisbee client: a state machine without I/O.
#[derive(Clone, Debug)]
pub struct Client {
    config: ClientConfig,
    pub(super) id: u32,
    rng: Rng,
    pub(super) start: Time,
    pub(super) phase: Phase,
    pub(super) image: Option<Layout>,
    pub(super) chunks: Vec<Chunk>,
    order: Vec<u32>,
    /// All chunks before this place of the order have been seen.
    pub(super) order_from: usize,
    pub(super) buffers: Vec<Buffer>,
    /// Incomplete chunks; with a driver, unverified ones.
    pub(super) missing: u32,
    /// The chunk whose last block found no buffer.
    no_room_for: Option<u32>,
    /// When the wait for the next message ends.
    receive_until: Time,
    idle: u32,
    back_off: u32,
    /// When a block was received last that this client needed, or it joined.
    useful_at: Time,
    /// Whether messages that do not help this client delay its requests: see [`ClientConfig::heed`].
    heeds: bool,
    stage: Option<Stage>,
    /// The buffer that is being expanded, and until when.
    expanding: Option<(usize, Time)>,
    written_at: Time,
    /// For each chunk, how often it was written.
    written: Vec<u8>,
    pub(super) received_at: Option<Time>,
    /// What is to be reported to the driver, if there is one.
    pub(super) events: VecDeque<Event>,
    outgoing: VecDeque<Outgoing>,
    counts: ClientCounts,
}

impl Client {
    /// A client that starts at this time. Its number and the order of its requests come from `rng`.
    #[must_use]
    pub fn new(config: ClientConfig, start: Time, mut rng: Rng) -> Self {
        Self {
            id: rng.next_u64() as u32,
            rng,
            start,
            phase: Phase::Waiting { from: start },
            image: None,
            chunks: Vec::new(),
            order: Vec::new(),
            order_from: 0,
            buffers: Vec::new(),
            missing: 0,
            no_room_for: None,
            receive_until: Time::MAX,
            idle: 1,
            back_off: 0,
            useful_at: start,
            heeds: true,
            stage: None,
            expanding: None,
            written_at: Time::ZERO,
            written: Vec::new(),
            received_at: None,
            events: VecDeque::new(),
            outgoing: VecDeque::new(),
            counts: ClientCounts::default(),
            config,
        }
    }

    /// Returns its parameters.
    #[must_use]
    pub const fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// Returns what has been counted.
    #[must_use]
    pub const fn counts(&self) -> &ClientCounts {
        &self.counts
    }

    /// Returns when it started.
    #[must_use]
    pub const fn started_at(&self) -> Time {
        self.start
    }

    /// Returns when it had received every block.
    #[must_use]
    pub const fn received_at(&self) -> Option<Time> {
        self.received_at
    }

    /// Returns when the whole image was written.
    #[must_use]
    pub const fn finished_at(&self) -> Option<Time> {
        match self.phase {
            Phase::Left { at, .. } => Some(at),
            _ => None,
        }
    }

    /// Returns whether it has sent LEAVE2 and no longer exists.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self.phase, Phase::Left { gone: true, .. })
    }

    /// Returns how many chunks are missing; all, before the reply to its join.
    #[must_use]
    pub const fn missing(&self) -> Option<u32> {
        if self.image.is_some() { Some(self.missing) } else { None }
    }

    /// Returns whether every chunk was written exactly once.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.image.is_some() && self.written.iter().all(|times| *times == 1)
    }

    /// Handles a message with its payload. Anything in it may be wrong. Returns whether the payload is a block that this client
    /// did not have, and that has a place in a buffer.
    pub fn handle(&mut self, now: Time, body: &Body, payload: &[u8]) -> bool {
        match self.phase {
            Phase::Joining { .. } => self.handle_reply(now, body),
            Phase::Running => return self.handle_running(now, body, payload),
            Phase::Waiting { .. } | Phase::Finishing | Phase::Left { .. } => {}
        }
        false
    }

    fn handle_reply(&mut self, now: Time, body: &Body) {
        // The number of blocks has taken the place of the client's, so the reply is for all.
        let Body::JoinReply { blocks } = *body else { return };
        if let Some(image) = &self.image {
            // A driver knows the image, and another one is not its.
            if image.blocks() != u64::from(blocks) {
                return self.counts.ignored += 1;
            }
            self.events.push_back(Event::Joined);
        } else {
            let bytes = u64::from(blocks) * u64::from(BLOCK_BYTES);
            let Some(image) = Shape::new(bytes, Shape::FRISBEE_CHUNK) else {
                return self.counts.ignored += 1;
            };
            self.chunks = vec![Chunk::default(); image.chunks() as usize];
            self.missing = image.chunks();
            self.image = Some(Layout::even(image));
        }
        self.begin(now);
    }

    /// Begins to request chunks of an image that is known.
    fn begin(&mut self, now: Time) {
        let chunks = self.chunks.len() as u32;
        self.written = vec![0; chunks as usize];
        let position = Position { index: 0, clients: None };
        self.order = self.config.order.of(chunks, position, &mut self.rng);
        // More buffers than chunks would be of no use.
        let buffers = u32::from(self.config.buffers.max(1)).min(chunks) as usize;
        let empty = Buffer { state: State::Empty, chunk: 0, have: Blocks::EMPTY, left: 0 };
        self.buffers = vec![empty; buffers];
        self.stage = self.config.expand.as_ref().map(|expand| Stage::new(expand, chunks));
        self.useful_at = now;
        self.phase = Phase::Running;
        self.receive_until = now + self.config.receive_timeout;
    }

    fn handle_running(&mut self, now: Time, body: &Body, payload: &[u8]) -> bool {
        let mut is_new = false;
        if now.since(self.useful_at) >= self.config.heed {
            self.heeds = false;
        }
        let snoops = self.config.snoop && self.heeds;
        if self.heeds {
            self.receive_until = now + self.config.receive_timeout;
        }
        match *body {
            Body::Block { chunk, block, len } => {
                if block >= self.blocks_of(chunk) || u32::from(len) != BLOCK_BYTES {
                    self.counts.ignored += 1;
                    return false;
                }
                self.counts.blocks += 1;
                self.back_off = 0;
                is_new = self.got_block(now, chunk, block);
                if is_new {
                    self.useful_at = now;
                    self.receive_until = now + self.config.receive_timeout;
                    self.idle = self.config.idle_timeouts;
                }
                // Its request may have been lost on the path to this client.
                self.stamp(now, chunk, Run { block, count: 1 }, true);
            }
            Body::Request { chunk, block, count } if snoops => {
                if count == 0 || block.saturating_add(count) > self.blocks_of(chunk) {
                    self.counts.ignored += 1;
                    return false;
                }
                if self.stamp(now, chunk, Run { block, count }, false) {
                    self.idle = self.config.idle_timeouts;
                }
            }
            Body::PartialRequest { chunk, .. } if snoops => {
                let mut blocks = Blocks::from_bytes(payload);
                blocks.truncate(self.blocks_of(chunk));
                while let Some(run) = blocks.take_run() {
                    self.stamp(now, chunk, run, false);
                }
            }
            _ => {}
        }
        is_new
    }

    /// The number of blocks of a chunk; 0 if it does not exist.
    pub(super) fn blocks_of(&self, chunk: u32) -> u32 {
        self.image.as_ref().map_or(0, |image| image.blocks_of(chunk))
    }

    /// Puts a block into its chunk's buffer; returns whether it was needed.
    fn got_block(&mut self, now: Time, chunk: u32, block: u32) -> bool {
        let state = self.chunks[chunk as usize];
        if state.done {
            self.counts.duplicate_chunk_blocks += 1;
            return false;
        }
        let index = match state.buffer {
            0 => match self.find_buffer(chunk, block) {
                Some(index) => index,
                None => {
                    self.no_room_for = Some(chunk);
                    self.counts.no_buffer += 1;
                    return false;
                }
            },
            number => usize::from(number) - 1,
        };
        let buffer = &mut self.buffers[index];
        if !buffer.have.insert(block) {
            self.counts.duplicate_blocks += 1;
            return false;
        }
        buffer.left -= 1;
        if buffer.left == 0 {
            buffer.state = State::Full;
            let state = &mut self.chunks[chunk as usize];
            (state.done, state.buffer) = (true, 0);
            if self.config.expand.is_none() {
                self.events.push_back(Event::Complete(chunk));
                self.request_chunks(now, false);
                return true;
            }
            self.missing -= 1;
            self.expand(now);
            if self.missing == 0 {
                self.received_at = Some(now);
                self.phase = Phase::Finishing;
            } else {
                self.request_chunks(now, false);
            }
        }
        true
    }

    /// Finds a buffer for a chunk that has none.
    fn find_buffer(&mut self, chunk: u32, block: u32) -> Option<usize> {
        let find = |state| self.buffers.iter().position(|buffer| buffer.state == state);
        let index = match find(State::Empty) {
            Some(index) => index,
            None if block == 0 => {
                let index = find(State::Dubious)?;
                let given_up = &mut self.chunks[self.buffers[index].chunk as usize];
                (given_up.buffer, given_up.stamped) = (0, None);
                self.order_from = 0;
                self.counts.partial_drops += 1;
                if self.config.expand.is_none() {
                    self.events.push_back(Event::Dropped(self.buffers[index].chunk));
                }
                self.no_room_for = None;
                index
            }
            None => return None,
        };
        let lacks_beginning = self.no_room_for == Some(chunk);
        self.no_room_for = None;
        self.chunks[chunk as usize].buffer = index as u16 + 1;
        self.buffers[index] = Buffer {
            state: if lacks_beginning { State::Dubious } else { State::Filling },
            chunk,
            have: Blocks::EMPTY,
            left: self.blocks_of(chunk),
        };
        Some(index)
    }

    /// Notes that blocks were requested or received now, if this client needs any of them. Returns whether it does.
    fn stamp(&mut self, now: Time, chunk: u32, run: Run, received: bool) -> bool {
        let all = Run { block: 0, count: self.blocks_of(chunk) };
        let Some(state) = self.chunks.get_mut(chunk as usize) else { return false };
        if self.config.redo_delay == Span::ZERO || state.done {
            return false;
        }
        if run != all && state.buffer > 0 {
            let buffer = &mut self.buffers[usize::from(state.buffer) - 1];
            if buffer.have.contains_run(run) {
                return false;
            }
            // Requested blocks will come, but a received block does not mean that the rest was requested.
            if !received {
                buffer.state = State::Filling;
            }
        }
        state.stamped = Some(now);
        true
    }

    /// Whether the last known request for a chunk is old enough for another one.
    fn may_request(&self, now: Time, chunk: u32) -> bool {
        let delay = self.config.redo_delay;
        let state = &self.chunks[chunk as usize];
        state.stamped.is_none_or(|at| now.since(at) >= delay)
    }

    /// Requests what is missing of incomplete chunks, then further chunks. After a timeout it does not matter when they were requested last.
    pub(super) fn request_chunks(&mut self, now: Time, timed_out: bool) {
        let (mut empty, mut filling) = (0, 0);
        for index in 0..self.buffers.len() {
            match self.buffers[index].state {
                State::Empty => empty += 1,
                State::Full => {}
                State::Filling | State::Dubious => {
                    filling += 1;
                    let chunk = self.buffers[index].chunk;
                    if timed_out || self.may_request(now, chunk) {
                        self.request_missing(now, chunk, self.buffers[index].have);
                        self.buffers[index].state = State::Filling;
                    }
                }
            }
        }
        if empty == 0 || filling >= u32::from(self.config.in_progress) {
            return;
        }
        let mut ahead = u32::from(self.config.read_ahead).min(empty);
        let is_seen = |chunk: &Chunk| chunk.done || chunk.buffer > 0;
        let seen = |client: &Self, at: usize| is_seen(&client.chunks[client.order[at] as usize]);
        // Seen chunks stay seen, except when they are given up.
        while self.order_from < self.order.len() && seen(self, self.order_from) {
            self.order_from += 1;
        }
        for at in self.order_from..self.order.len() {
            if ahead == 0 {
                break;
            }
            if seen(self, at) {
                continue;
            }
            let chunk = self.order[at];
            if timed_out || self.may_request(now, chunk) {
                self.request_all(now, chunk);
            }
            // If it is not requested here, another client has requested it, so it counts as well.
            ahead -= 1;
        }
    }

    /// Requests a chunk without any blocks so far. A repeated request is a partial one for all blocks.
    fn request_all(&mut self, now: Time, chunk: u32) {
        if self.chunks[chunk as usize].ours {
            return self.request_missing(now, chunk, Blocks::EMPTY);
        }
        let count = self.blocks_of(chunk);
        self.requested(now, chunk, Body::Request { chunk, block: 0, count }.into());
    }

    fn request_missing(&mut self, now: Time, chunk: u32, have: Blocks) {
        let again = self.chunks[chunk as usize].ours;
        let missing = have.missing(self.blocks_of(chunk));
        self.counts.partial_requests += 1;
        self.counts.lost_blocks += u64::from(missing.count());
        self.counts.rerequests += u64::from(again);
        self.counts.full_rerequests += u64::from(again && have == Blocks::EMPTY);
        let body = Body::PartialRequest { chunk, retries: u32::from(again) };
        self.requested(now, chunk, Outgoing { body, map: Some(missing) });
    }

    fn requested(&mut self, now: Time, chunk: u32, message: Outgoing) {
        self.counts.requests += 1;
        self.send(message);
        self.stamp(now, chunk, Run { block: 0, count: self.blocks_of(chunk) }, false);
        self.chunks[chunk as usize].ours = true;
    }

    pub(super) fn send(&mut self, message: Outgoing) {
        if self.outgoing.len() < MAX_OUTGOING {
            self.outgoing.push_back(message);
        }
    }

    /// Begins to expand the first complete chunk, if none is being expanded.
    fn expand(&mut self, now: Time) {
        let full = |buffer: &Buffer| buffer.state == State::Full;
        if self.expanding.is_some() {
            return;
        }
        let Some(index) = self.buffers.iter().position(full) else { return };
        let Some(stage) = &mut self.stage else { return };
        let (expanded, written) = stage.start(now);
        self.written_at = written;
        self.expanding = Some((index, expanded));
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if let Phase::Waiting { from: at } | Phase::Joining { again: at } = self.phase {
            if at <= now {
                self.counts.joins += 1;
                self.phase = Phase::Joining { again: now + ClientConfig::JOIN_INTERVAL };
                self.send(Body::Join { client: self.id }.into());
            }
            return;
        }
        while let Some((index, until)) = self.expanding.filter(|(_, until)| *until <= now) {
            self.expanding = None;
            let buffer = &mut self.buffers[index];
            buffer.state = State::Empty;
            let times = &mut self.written[buffer.chunk as usize];
            *times = times.saturating_add(1);
            self.expand(until);
        }
        match self.phase {
            Phase::Running if self.receive_until <= now => {
                self.receive_until = now + self.config.receive_timeout;
                self.receive_timed_out(now);
            }
            Phase::Finishing
                if self.config.expand.is_some()
                    && self.expanding.is_none()
                    && self.written_at <= now =>
            {
                self.left(now);
            }
            Phase::Left { at, .. } if now >= at + EXIT => {
                self.phase = Phase::Left { at, gone: true }
            }
            _ => {}
        }
    }

    /// Everything is written, so that the client leaves.
    pub(super) fn left(&mut self, now: Time) {
        self.phase = Phase::Left { at: now, gone: false };
        let elapsed_s = now.since(self.start).as_secs() as u32;
        self.send(Body::Leave2 { client: self.id, elapsed_s }.into());
    }

    /// Nothing was received for the receive timeout. After the idle time the client makes a request, and waits longer after each
    /// without an answer, up to about a second.
    fn receive_timed_out(&mut self, now: Time) {
        self.idle = self.idle.saturating_sub(1);
        if self.idle > 0 {
            return;
        }
        self.counts.idles += 1;
        self.request_chunks(now, true);
        self.idle = self.config.idle_timeouts;
        self.back_off += 1;
        if self.back_off > 1 {
            self.idle += self.back_off;
            let most = Span::from_secs(1).ticks() / self.config.receive_timeout.ticks().max(1);
            self.back_off = self.back_off.min(most as u32);
        }
    }

    /// Returns when [`Client::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let expanded = self.expanding.map(|(_, until)| until);
        match self.phase {
            Phase::Waiting { from: at } | Phase::Joining { again: at } => Some(at),
            Phase::Running => {
                Some(expanded.map_or(self.receive_until, |at| at.min(self.receive_until)))
            }
            // A driver reports when it has written the last chunk.
            Phase::Finishing if self.config.expand.is_none() => None,
            Phase::Finishing => Some(expanded.unwrap_or(self.written_at)),
            Phase::Left { at, gone } => (!gone).then(|| at + EXIT),
        }
    }

    /// Returns the next message.
    pub fn poll(&mut self) -> Option<Outgoing> {
        self.outgoing.pop_front()
    }
}
