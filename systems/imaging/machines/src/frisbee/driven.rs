//! A client whose driver stores blocks, and verifies and writes chunks: what a real host needs beyond the simulator's model of a
//! disk. A chunk counts once it is verified, and its buffer is free once it is written.

use rackweave_core::{Bitmap, Rng, Time};
use rackweave_wire::frisbee::Body;

use super::client::{Chunk, Phase, State};
use super::{Client, ClientConfig, Layout};

/// What a client reports to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The server has answered the join.
    Joined,
    /// All blocks of a chunk are there. The driver verifies it, and calls [`Client::chunk_verified`] or [`Client::chunk_damaged`].
    Complete(u32),
    /// The blocks of an incomplete chunk are given up, because another one needs the buffer.
    Dropped(u32),
}

impl Client {
    /// A client that knows its image and has some of its chunks. `config` has no [`ClientConfig::expand`].
    ///
    /// Chunks without blocks count as chunks that are there.
    #[must_use]
    pub fn driven(
        config: ClientConfig,
        start: Time,
        rng: Rng,
        image: Layout,
        have: &Bitmap<u32>,
    ) -> Self {
        let mut this = Self::new(ClientConfig { expand: None, ..config }, start, rng);
        let is_there = |chunk: u32| have.contains(chunk) || image.blocks_of(chunk) == 0;
        let chunk = |chunk| Chunk { done: is_there(chunk), ..Chunk::default() };
        this.chunks = (0..image.chunks()).map(chunk).collect();
        this.missing = this.chunks.iter().filter(|chunk| !chunk.done).count() as u32;
        this.image = Some(image);
        this
    }

    /// Returns whether the server has answered the join.
    #[must_use]
    pub const fn has_joined(&self) -> bool {
        !matches!(self.phase, Phase::Waiting { .. } | Phase::Joining { .. })
    }

    /// Returns whether no buffer is free, so that blocks of further chunks are dropped, and one waits for the disk, which is slower than the
    /// network. Chunks that only lack blocks wait for the server.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.buffers.iter().any(|buffer| buffer.state == State::Full)
            && self.buffers.iter().all(|buffer| buffer.state != State::Empty)
    }

    /// A chunk that was complete is verified.
    pub fn chunk_verified(&mut self, now: Time, chunk: u32) {
        if self.full_buffer(chunk).is_none() {
            return;
        }
        self.missing = self.missing.saturating_sub(1);
        if self.missing == 0 {
            self.received_at = Some(now);
            self.phase = Phase::Finishing;
        }
    }

    /// A chunk that was complete does not have the bytes of the image. It is requested again.
    pub fn chunk_damaged(&mut self, now: Time, chunk: u32) {
        let Some(index) = self.full_buffer(chunk) else { return };
        self.buffers[index].state = State::Empty;
        let state = &mut self.chunks[chunk as usize];
        (state.done, state.buffer, state.stamped) = (false, 0, None);
        self.order_from = 0;
        self.request_chunks(now, false);
    }

    /// A verified chunk is written. After the last one the client leaves.
    pub fn chunk_written(&mut self, now: Time, chunk: u32) {
        let Some(index) = self.full_buffer(chunk) else { return };
        self.buffers[index].state = State::Empty;
        let is_last = self.buffers.iter().all(|buffer| buffer.state != State::Full);
        if self.phase == Phase::Finishing && is_last {
            self.left(now);
        } else if self.phase == Phase::Running {
            self.request_chunks(now, false);
        }
    }

    fn full_buffer(&self, chunk: u32) -> Option<usize> {
        let is_it =
            |buffer: &super::client::Buffer| buffer.state == State::Full && buffer.chunk == chunk;
        self.buffers.iter().position(is_it)
    }

    /// The client is stopped before it has the image.
    pub fn leave(&mut self, now: Time) {
        if matches!(self.phase, Phase::Left { .. }) {
            return;
        }
        let elapsed_s = now.since(self.start).as_secs() as u32;
        self.phase = Phase::Left { at: now, gone: false };
        self.send(Body::Leave { client: self.id, elapsed_s }.into());
    }

    /// Returns what has happened. The driver calls this after each message, as a chunk whose blocks were given up may begin again.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
