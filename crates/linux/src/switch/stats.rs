//! What the switch counts and tells.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use rackweave_core::{DropReason, Span, Time};
use rackweave_switch::net::{self, LinkStats, QueueSample};

/// What was counted since the switch began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that came from hosts and were let in.
    pub received: u64,
    /// Frames handed to hosts.
    pub forwarded: u64,
    /// Their bytes, as on Ethernet with all that surrounds a frame.
    pub forwarded_bytes: u64,
    /// Dropped inside the fabric, by [`DropReason`].
    pub drops: [u64; DropReason::ALL.len()],
    /// Marked: congestion experienced.
    pub ecn_marks: u64,
    /// Cut to their headers.
    pub trims: u64,
    /// Of these, sent back to their senders.
    pub turned_back: u64,
    /// Damaged by a fault; they go on, for the receiver to find out.
    pub corrupted: u64,
    /// Doubled by a fault.
    pub duplicated: u64,
    /// Delayed by a fault.
    pub reordered: u64,
    /// Dropped on entry: not from the host of the port, or not from its address.
    pub foreign: u64,
    /// Dropped on entry: no frame that the switch can read, or damaged.
    pub malformed: u64,
    /// Dropped on entry: not IPv4 between hosts (ARP, IPv6, multicast).
    pub ignored: u64,
    /// Dropped on entry: larger than a frame can be. The host's segmentation offload is on; turn it
    /// off there (`ethtool -K DEV tso off gso off`).
    pub oversized: u64,
    /// Let in without a checksum, which the host has left to its NIC. The switch has worked it out, which takes
    /// time; better turn the host's checksum offload off (`ethtool -K DEV tx off`).
    pub unfinished_checksums: u64,
    /// Dropped on entry: all slots for frames were taken.
    pub no_memory: u64,
    /// Dropped by the kernel before the switch could read them.
    pub kernel_drops: u64,
    /// Dropped on the way out: the host's address is not known yet.
    pub no_address: u64,
    /// Dropped on the way out: the kernel did not take them.
    pub send_refused: u64,
    /// How often a host's address was learnt.
    pub learnt: u64,
    /// Frames that were read so late that they should have been in a queue already.
    pub clamped: u64,
    /// Copies that the switches' program has made, beyond the frame itself.
    pub copied: u64,
    /// Frames that the program has kept.
    pub consumed: u64,
    /// Frames of its own that the program has made.
    pub made: u64,
}

/// How much later than due frames were handed to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Frames.
    pub frames: u64,
    /// The median.
    pub p50: Span,
    /// Of 100, one was later.
    pub p99: Span,
    /// The latest.
    pub max: Span,
}

/// All that the switch has to tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// When it was made.
    pub at: Time,
    /// Since when links and lateness are measured.
    pub since: Time,
    /// Counts.
    pub counters: Counters,
    /// What the system's programs have counted, by name: the sums over all switches.
    pub program: BTreeMap<&'static str, u64>,
    /// Every link.
    pub links: Vec<LinkStats>,
    /// Queues over time, if they were asked for.
    pub queue_series: Vec<QueueSample>,
    /// Whether the switch kept up.
    pub lateness: Lateness,
    /// Frames in the fabric.
    pub frames_inside: u32,
}

impl Counters {
    /// All frames dropped inside the fabric.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// The sockets' counts with those of the fabric.
    pub(super) fn with(mut self, fabric: &net::Counters) -> Self {
        self.received = fabric.sent;
        for (drops, more) in self.drops.iter_mut().zip(fabric.drops) {
            *drops += more;
        }
        self.ecn_marks = fabric.ecn_marks;
        self.trims = fabric.trims;
        self.turned_back = fabric.turned_back;
        self.corrupted = fabric.corrupted;
        self.duplicated = fabric.duplicated;
        self.reordered = fabric.reordered;
        self.clamped = fabric.clamped;
        self.copied = fabric.copied;
        self.consumed = fabric.consumed;
        self.made = fabric.made;
        self
    }
}

/// The longest lateness that is told apart.
const LONGEST_NS: u64 = 60_000_000_000;

/// Collects [`Lateness`].
#[derive(Debug)]
pub(super) struct Late(Histogram<u64>);

impl Late {
    pub(super) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 2);
        Self(histogram.expect("the bounds are constants, and good"))
    }

    #[inline]
    pub(super) fn record(&mut self, late: Span) {
        self.0.saturating_record((late.0 / 1000).max(1));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn told(&self) -> Lateness {
        let at = |quantile| Span::from_ns(self.0.value_at_quantile(quantile));
        let frames = self.0.len();
        if frames == 0 {
            return Lateness::default();
        }
        Lateness { frames, p50: at(0.5), p99: at(0.99), max: Span::from_ns(self.0.max()) }
    }
}
