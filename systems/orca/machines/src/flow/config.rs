//! Settings of a session's stream.

use rackweave_core::{Rate, Span};

use super::sender::TICK;
use crate::parity::MAX_CELLS;

/// Settings of one session, used by both ends. The default is meant for local networks of 100 Mbps to 100 Gbps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// The payload of a full data packet in bytes. 1400 bytes fit into a frame of 1500 bytes with all headers and
    /// labels.
    pub payload: u16,
    /// The bytes of each data packet on the wire in addition to its payload; they count towards `max_rate`.
    pub overhead: u16,
    /// The largest distance in bytes from the lowest byte that an attached receiver lacks to the last byte sent.
    pub window: u64,
    /// The initial congestion window in bytes.
    pub initial_window: u64,
    /// The queueing delay that the sender aims at on the slowest path. As bytes it is kept between `min_queue` and
    /// `max_queue`. The measured jitter of round trips, which comes from scheduling, is added up to 5 ms.
    pub queue_delay: Span,
    /// Lower bound of the queueing target in bytes.
    pub min_queue: u64,
    /// Upper bound of the queueing target in bytes.
    pub max_queue: u64,
    /// The longest round trip of an empty path. A longer measured round trip counts as queueing even if the receiver
    /// never had a shorter one, so that a flow that starts late does not take the queue of earlier flows for
    /// propagation delay. On longer paths it must be at least their round trip.
    pub path: Span,
    /// The share of bytes lost by one receiver in a round above which loss counts as congestion, in percent.
    pub loss_percent: u8,
    /// The number of packets in a paced burst.
    pub quantum: u16,
    /// The largest rate of all data of a session that leaves the sender, each copy counted; `None` for no limit.
    pub max_rate: Option<Rate>,
    /// The time without a packet after which a peer is given up.
    pub patience: Span,
    /// How long the start waits for invited receivers that have not answered when others have joined.
    pub gather: Span,
    /// How long a short packet waits for more bytes of the application, unless nothing is in flight (as Nagle's algorithm,
    /// RFC 9293 section 3.7.4).
    pub flush_delay: Span,
    /// How receivers that delay the group are treated.
    pub slow: SlowPolicy,
    /// Whether hosts that were not invited may join.
    pub open: bool,
    /// The largest number of receivers.
    pub max_receivers: u32,
    /// A receiver reports after this many bytes, or after an eighth of the window if that is less.
    pub status_bytes: u32,
    /// The longest time after which a receiver reports bytes that it has not reported.
    pub status_interval: Span,
    /// A gap is reported once this many packets have arrived after it (TCP's duplicate ACK threshold, RFC 5681 section
    /// 3.2).
    pub reorder: u8,
    /// The time after which a gap is reported in any case.
    pub reorder_time: Span,
    /// The largest number of gaps that a receiver tracks. Data that would create more is not accepted or evicts the
    /// highest range. The default exceeds the number of packets in a window.
    pub max_gaps: u16,
    /// The number of cells in a block, at most 64; 0 disables parity. Only the sender uses it.
    pub fec_block: u8,
    /// Whether a receiver learns the length of the stream from [`Body::End`] and [`Receiver::end`] only, and ignores the mark of the
    /// last data packet. For data that others than the sender could have made, where control packets come from the sender.
    ///
    /// [`Body::End`]: rackweave_wire::orca::Body::End
    /// [`Receiver::end`]: super::Receiver::end
    pub ignore_end_mark: bool,
}

/// How a receiver that delays the group is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowPolicy {
    /// All receivers wait for it.
    Wait,
    /// It is detached and catches up by unicast.
    Detach {
        /// How long it must have delayed the group.
        after: Span,
        /// It is detached if it receives less than this percentage of what the median receiver can receive.
        below_percent: u8,
        /// The share of detached receivers while the group has data to send: all of them together get one byte for
        /// every `share` bytes of the group.
        share: u16,
    },
    /// It is removed from the session.
    Drop {
        /// How long it must have delayed the group.
        after: Span,
        /// It is removed if it receives less than this percentage of what the median receiver can receive.
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
            ignore_end_mark: false,
        }
    }
}

impl FlowConfig {
    /// The number of full packets in a window, plus one at either end for packets that are cut by its edges.
    pub(super) const fn window_packets(&self) -> usize {
        (self.window / self.payload as u64 + 2) as usize
    }

    /// The longest heartbeat timeout T of a controller. Meanwhile a failed agent's rack hears nothing, for twice T at most, and
    /// neither its receivers nor the sender may have lost their patience when another agent reports.
    #[must_use]
    pub const fn longest_agent_timeout(&self) -> Span {
        Span::from_ticks(self.patience.ticks() / 4)
    }

    /// Returns how long a report may wait before it is sent: one interval and what precedes it at the receiver, and
    /// with `via_agent` another interval at the agent.
    pub(super) fn report_delay(&self, via_agent: bool) -> Span {
        self.status_interval * if via_agent { 3 } else { 2 }
    }

    /// Returns the same settings with every value clamped to a range in which a session makes progress.
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
        self.status_interval = self.status_interval.clamp(Span::from_us(10), self.patience / 8);
        self.reorder_time = self.reorder_time.min(self.status_interval * 4);
        self.max_gaps = self.max_gaps.max(4);
        // A window holds several blocks. Otherwise the decision about one block would stop the stream.
        let most = (self.window / packet / 4).min(u64::from(MAX_CELLS)) as u8;
        self.fec_block = self.fec_block.min(most);
        self.max_receivers = self.max_receivers.max(1);
        // A sender judges its receivers at ticks, by reports that may be late.
        let least = self.report_delay(true).max(TICK * 2);
        match &mut self.slow {
            SlowPolicy::Wait => {}
            SlowPolicy::Detach { after, .. } | SlowPolicy::Drop { after, .. } => {
                *after = (*after).max(least);
            }
        }
        self
    }
}
