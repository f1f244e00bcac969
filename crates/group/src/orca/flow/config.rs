//! What can be set of a stream.

use rackweave_core::{Rate, Span};

use crate::orca::parity::MAX_CELLS;

/// Settings of one session, at both ends. The default is meant for local networks of 100 Mbps to 100 Gbps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// Bytes of a full data packet (1400 fits into frames of 1500 with all headers and labels).
    pub payload: u16,
    /// Bytes that each data packet has besides its payload on the wire, for `max_rate`.
    pub overhead: u16,
    /// Most bytes between the lowest byte that an attached receiver lacks and the last byte sent.
    pub window: u64,
    /// Bytes that may be under way before anything is known of the path.
    pub initial_window: u64,
    /// Queueing that the sender aims at on the slowest path, as time; as bytes it is kept between `min_queue` and
    /// `max_queue`. Where round trips vary by scheduling, as much again as they vary, up to 5 ms, is added.
    pub queue_delay: Span,
    /// See `queue_delay`.
    pub min_queue: u64,
    /// See `queue_delay`.
    pub max_queue: u64,
    /// The longest round trip without queues: what is measured beyond counts as a queue, even if it was never shorter.
    /// So one that comes late does not take the queue of those before it for the length of the path. On long paths it
    /// must be set to their round trip at least.
    pub path: Span,
    /// The share of lost bytes of one receiver in a round above which loss counts as congestion, in percent.
    pub loss_percent: u8,
    /// Packets sent in a row when pacing.
    pub quantum: u16,
    /// Never send faster (all of a session's data together).
    pub max_rate: Option<Rate>,
    /// A peer of which nothing is heard for so long is given up.
    pub patience: Span,
    /// How long the start waits for invited receivers while others are ready.
    pub gather: Span,
    /// A short packet waits so long for more bytes of the application, unless nothing is under way.
    pub flush_delay: Span,
    /// What becomes of receivers that hold the others up.
    pub slow: SlowPolicy,
    /// Hosts that were not invited may join.
    pub open: bool,
    /// Most receivers.
    pub max_receivers: u32,
    /// A receiver reports after so many bytes (or an eighth of the window),
    pub status_bytes: u32,
    /// and so long after bytes that it has not reported.
    pub status_interval: Span,
    /// A gap is reported once so many packets came after it,
    pub reorder: u8,
    /// or so much time has passed.
    pub reorder_time: Span,
    /// Most gaps that a receiver keeps track of; what would make more is not taken, or what comes last is forgotten. The
    /// default is more than a window of full packets can have.
    pub max_gaps: u16,
    /// Sender: packets of a block whose losses are repaired by parity where that is cheapest, at most 64; 0: no parity.
    pub fec_block: u8,
}

/// What becomes of a receiver that holds the others up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowPolicy {
    /// Everyone waits for it.
    Wait,
    /// It is detached and gets its bytes alone.
    Detach {
        /// After so long,
        after: Span,
        /// if it takes less than so many percent of what the median receiver could.
        below_percent: u8,
        /// While the others have something to get, all receivers that are alone together get one byte for each so many
        /// of theirs.
        share: u16,
    },
    /// It is put out of the session: conditions as in `Detach`.
    Drop {
        /// After so long,
        after: Span,
        /// if it takes less than so many percent of what the median receiver could.
        below_percent: u8,
    },
}

impl Default for FlowConfig {
    fn default() -> Self {
        Self {
            payload: 1400,
            overhead: 20 + 8 + 20 + 38,
            window: 8 << 20,
            initial_window: 256 << 10,
            queue_delay: Span::from_ms(1),
            min_queue: 64 << 10,
            max_queue: 160 << 10,
            path: Span::from_us(500),
            loss_percent: 5,
            quantum: 44,
            max_rate: None,
            patience: Span::from_secs(3),
            gather: Span::from_ms(100),
            flush_delay: Span::from_us(500),
            slow: SlowPolicy::Detach { after: Span::from_ms(50), below_percent: 50, share: 64 },
            open: true,
            max_receivers: 1 << 16,
            status_bytes: 64 << 10,
            status_interval: Span::from_ms(1),
            reorder: 3,
            reorder_time: Span::from_us(500),
            max_gaps: 8192,
            fec_block: 64,
        }
    }
}

impl FlowConfig {
    /// The same, with what makes no sense brought into range: so that no setting can stop a session.
    #[must_use]
    pub fn sane(mut self) -> Self {
        self.payload = self.payload.max(1);
        let packet = u64::from(self.payload);
        self.window = self.window.clamp(16 * packet, 1 << 32);
        self.initial_window = self.initial_window.clamp(4 * packet, self.window);
        self.min_queue = self.min_queue.clamp(4 * packet, self.window);
        self.max_queue = self.max_queue.clamp(self.min_queue, self.window);
        self.loss_percent = self.loss_percent.clamp(1, 100);
        self.quantum = self.quantum.max(1);
        self.max_rate = self.max_rate.map(|rate| Rate(rate.0.max(1000)));
        self.patience = self.patience.max(Span::from_ms(1));
        self.status_bytes =
            self.status_bytes.max(u32::from(self.payload)).min((self.window / 8) as u32);
        self.status_interval =
            self.status_interval.clamp(Span::from_us(10), Span(self.patience.0 / 8));
        self.reorder_time = self.reorder_time.min(self.status_interval * 4);
        self.max_gaps = self.max_gaps.max(4);
        // Blocks must be whole long before the window ends: otherwise repairs would hold it up.
        let most = (self.window / packet / 4).min(u64::from(MAX_CELLS)) as u8;
        self.fec_block = self.fec_block.min(most);
        self.max_receivers = self.max_receivers.max(1);
        self
    }
}
