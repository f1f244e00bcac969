//! What a fabric counts and tells.

use rackweave_core::{DropReason, Span, Time};

/// Samples of queues that are kept: beyond them none is taken.
pub(super) const MAX_SAMPLES: usize = 1 << 20;

/// What was counted since the fabric began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Counters {
    /// Events of the engine.
    pub events: u64,
    /// Packets that hosts have sent.
    pub received: u64,
    /// Packets transmitted over one link, summed over links, when they arrive at its end.
    pub packet_hops: u64,
    /// Dropped, by [`DropReason`].
    pub drops: [u64; DropReason::ALL.len()],
    /// Marked: congestion experienced.
    pub ecn_marks: u64,
    /// Cut to their headers.
    pub trims: u64,
    /// Of these, sent back to their senders.
    pub turned_back: u64,
    /// Damaged by a fault; they go on, for the receiver to find out. (Those that don't are among the drops.)
    pub corrupted: u64,
    /// Doubled by a fault.
    pub duplicated: u64,
    /// Delayed by a fault.
    pub reordered: u64,
    /// Packets that were told so late that they should have been in a queue already.
    pub clamped: u64,
    /// Copies that switch programs have made, beyond the packet itself.
    pub copied: u64,
    /// Packets that switch programs have kept.
    pub consumed: u64,
    /// Packets of switch programs' own making.
    pub made: u64,
}

impl Counters {
    /// All packets dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }
}

/// One direction of a cable, and the queue before it.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct LinkStats {
    /// From where to where: "leaf0->h3".
    pub name: String,
    /// Share of the time, since statistics began, in which it carried bits.
    pub utilisation: f64,
    /// Time-averaged bytes waiting for it, since then.
    pub mean_queue_bytes: f64,
    /// Most bytes that waited for it since then.
    pub max_queue_bytes: u64,
    /// Packets dropped before it or on it since then.
    pub drops: u64,
    /// Bytes that wait for it now. What hosts send ahead of their own links waits before the switch, and is
    /// not counted.
    pub queue_bytes: u64,
    /// Packets that it was given since the fabric began.
    pub frames: u64,
    /// Their bytes, as on Ethernet.
    pub bytes: u64,
}

/// One look at the switches' queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct QueueSample {
    /// When.
    pub at: Time,
    /// Bytes in the longest queue.
    pub max_bytes: u64,
    /// Bytes in all queues together.
    pub total_bytes: u64,
}

/// What is counted at the port before a link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortStats {
    /// Integral of waiting bytes over time, in byte picoseconds.
    pub(super) area: u128,
    changed_at: Time,
    pub(super) max_bytes: u64,
    pub(super) drops: u64,
    /// Time spent sending.
    pub(super) busy: Span,
}

impl PortStats {
    pub(super) fn since(now: Time, waiting: u64, busy: Span) -> Self {
        Self { changed_at: now, max_bytes: waiting, busy, ..Self::default() }
    }

    /// The queue goes from `before` to `after` bytes.
    #[inline]
    pub(super) fn queue_changes(&mut self, now: Time, before: u64, after: u64) {
        self.area += u128::from(before) * u128::from(now.since(self.changed_at).0);
        self.changed_at = now;
        self.max_bytes = self.max_bytes.max(after);
    }
}
