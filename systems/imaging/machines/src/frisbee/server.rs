//! The server: it answers joins, queues requests and sends blocks.

use std::collections::{BTreeSet, VecDeque};

use rackweave_core::{Bitmap, Time};
use rackweave_wire::Id64;
use rackweave_wire::frisbee::{BLOCK_BYTES, Body, CHUNK_BLOCKS};

use super::{Blocks, Enqueued, Outgoing, Pace, Run, ServerConfig, WorkQueue};

/// What a server has counted, in the terms of the authors' log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Messages of clients.
    pub messages: u64,
    /// Requests to join.
    pub joins: u64,
    /// Messages of clients that leave.
    pub leaves: u64,
    /// Requests for blocks.
    pub requests: u64,
    /// Requests that were merged in the queue, or were dropped because the chunk was being sent.
    pub merged: u64,
    /// Requests for less than a chunk.
    pub partial_requests: u64,
    /// Blocks in those.
    pub lost_blocks: u64,
    /// Full chunks that were queued although they had been queued before.
    pub duplicate_chunks: u64,
    /// Repeated requests that were not in the queue.
    pub client_lost: u64,
    /// Blocks that were sent.
    pub blocks_sent: u64,
    /// Messages that were ignored: they were invalid, or did not come from a client.
    pub ignored: u64,
    /// The largest number of elements in the work queue.
    pub max_queue: u64,
    /// The number of clients that have joined and not left, at most.
    pub max_clients: u64,
}

/// Replies to joins that can wait: more clients than this ask again, after 500 ms.
const MAX_REPLIES: usize = 1024;
/// Clients that are remembered. This is for statistics only.
const MAX_CLIENTS: usize = 65_536;

/// A Frisbee server: a state machine without I/O.
#[derive(Clone, Debug)]
pub struct Server {
    config: ServerConfig,
    queue: WorkQueue,
    pace: Pace,
    /// Whether a block waits for the end of a gap.
    paced: bool,
    /// What is being sent.
    sending: Option<(u32, Run)>,
    replies: VecDeque<Body>,
    clients: BTreeSet<u32>,
    /// Chunks that were queued in full.
    queued: Bitmap<u32>,
    first_request: Option<Time>,
    last_request: Option<Time>,
    counts: ServerCounts,
}

impl Server {
    /// A server of one image.
    #[must_use]
    pub fn new(config: ServerConfig) -> Self {
        Self {
            queue: WorkQueue::default(),
            pace: Pace::new(config.pace),
            paced: false,
            sending: None,
            replies: VecDeque::new(),
            clients: BTreeSet::new(),
            queued: Bitmap::new(config.image.chunks()),
            first_request: None,
            last_request: None,
            counts: ServerCounts::default(),
            config,
        }
    }

    /// Returns what has been counted.
    #[must_use]
    pub const fn counts(&self) -> &ServerCounts {
        &self.counts
    }

    /// Returns the time from the first to the last message of a client, which the authors call the service time.
    #[must_use]
    pub fn service_time(&self) -> Option<rackweave_core::Span> {
        Some(self.last_request?.since(self.first_request?))
    }

    /// Returns the number of blocks of a chunk.
    fn blocks_of(&self, chunk: u32) -> u32 {
        self.config.image.blocks_of(chunk)
    }

    /// Handles a message with its payload. Anything in it may be wrong.
    pub fn handle(&mut self, now: Time, body: &Body, payload: &[u8]) {
        self.counts.messages += 1;
        match *body {
            Body::Join { client } => {
                let blocks = self.config.image.blocks();
                match u32::try_from(blocks).ok().filter(|blocks| *blocks <= i32::MAX as u32) {
                    // A client that joins in this manner assumes that all chunks are full.
                    Some(blocks) if self.config.image.is_plain() => {
                        self.join(client, Body::JoinReply { blocks });
                    }
                    _ => return self.counts.ignored += 1,
                }
            }
            Body::Join2 { reply: false, client, .. } => {
                let reply = Body::Join2 {
                    reply: true,
                    client,
                    blocks: 0,
                    chunk_blocks: CHUNK_BLOCKS,
                    block_bytes: BLOCK_BYTES,
                    bytes: Id64::new(self.config.image.bytes()),
                };
                self.join(client, reply);
            }
            Body::Leave { client, .. } | Body::Leave2 { client, .. } => {
                self.counts.leaves += 1;
                self.clients.remove(&client);
            }
            Body::Request { chunk, block, count } => {
                let end = block.saturating_add(count);
                if count == 0 || end > self.blocks_of(chunk) {
                    return self.counts.ignored += 1;
                }
                self.request(chunk, &Blocks::of(Run { block, count }), false);
            }
            Body::PartialRequest { chunk, retries } => {
                let mut blocks = Blocks::from_bytes(payload);
                blocks.truncate(self.blocks_of(chunk));
                if blocks.first().is_none() {
                    return self.counts.ignored += 1;
                }
                self.request(chunk, &blocks, retries > 0);
            }
            _ => return self.counts.ignored += 1,
        }
        self.first_request.get_or_insert(now);
        self.last_request = Some(now);
    }

    fn join(&mut self, client: u32, reply: Body) {
        self.counts.joins += 1;
        if self.clients.len() < MAX_CLIENTS {
            self.clients.insert(client);
        }
        self.counts.max_clients = self.counts.max_clients.max(self.clients.len() as u64);
        // One reply is for all that wait for the same: those to JOIN do not name their client.
        if self.replies.len() < MAX_REPLIES && !self.replies.contains(&reply) {
            self.replies.push_back(reply);
        }
    }

    fn request(&mut self, chunk: u32, blocks: &Blocks, is_retry: bool) {
        self.counts.requests += 1;
        let count = blocks.count();
        let full = self.blocks_of(chunk);
        let is_full = count == full;
        if !is_full {
            self.counts.partial_requests += 1;
            self.counts.lost_blocks += u64::from(count);
        }
        if self.queue.enqueue(chunk, blocks, full) == Enqueued::New {
            if is_full && !self.queued.insert(chunk) {
                self.counts.duplicate_chunks += 1;
            }
            // The repetition of a request that is still in the queue is no sign of loss.
            if is_retry {
                self.counts.client_lost += 1;
                self.pace.lost();
            }
        } else {
            self.counts.merged += 1;
        }
        self.counts.max_queue = self.counts.max_queue.max(self.queue.len() as u64);
    }

    /// Returns the chunks whose blocks [`Server::poll`] will return next, in this order: the driver has them read meanwhile.
    pub fn upcoming(&self) -> impl Iterator<Item = u32> {
        self.sending.iter().map(|(chunk, _)| *chunk).chain(self.queue.upcoming())
    }

    /// The system did not accept a message for sending, which counts as loss for the dynamic rate.
    pub const fn not_sent(&mut self) {
        self.pace.lost();
    }

    /// Returns the next reply, which needs no bytes of the image.
    pub fn poll_reply(&mut self) -> Option<Outgoing> {
        self.replies.pop_front().map(Outgoing::from)
    }

    /// Returns the next message. Replies come first and are not paced.
    pub fn poll(&mut self, now: Time) -> Option<Outgoing> {
        if let Some(reply) = self.poll_reply() {
            return Some(reply);
        }
        self.paced = now < self.pace.ready_at();
        if self.paced {
            return None;
        }
        if self.sending.is_none() {
            self.sending = self.queue.dequeue();
        }
        let Some((chunk, run)) = &mut self.sending else {
            self.pace.idle();
            return None;
        };
        let body = Body::Block { chunk: *chunk, block: run.block, len: BLOCK_BYTES as u16 };
        run.block += 1;
        run.count -= 1;
        if run.count == 0 {
            self.sending = None;
        }
        self.counts.blocks_sent += 1;
        self.pace.sent(now);
        Some(body.into())
    }

    /// Returns when to poll the server again that had no message because of its pacing; `None` if it waits for requests.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.paced.then(|| self.pace.ready_at())
    }
}
