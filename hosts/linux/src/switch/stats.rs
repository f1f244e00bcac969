//! Counters and reports of the switch.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use rackweave_core::{DropReason, Span, Time};
use rackweave_switch::config::Circuits;
use rackweave_switch::net::{self, LinkStats, QueueSample};

/// Counters since the switch was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames from hosts that entered the fabric.
    pub received: u64,
    /// Frames sent to hosts.
    pub forwarded: u64,
    /// Bytes of the forwarded frames on the wire, with preamble, checksum and gap.
    pub forwarded_bytes: u64,
    /// Frames dropped inside the fabric, by [`DropReason`].
    pub drops: [u64; DropReason::ALL.len()],
    /// Frames that were marked with ECN CE (congestion experienced).
    pub ecn_marks: u64,
    /// Frames trimmed to their headers.
    pub trims: u64,
    /// Trimmed frames that were returned to their senders.
    pub returned_to_sender: u64,
    /// Frames corrupted by a fault; they are forwarded, and the receiver's checksum detects it.
    pub corrupted: u64,
    /// Frames duplicated by a fault.
    pub duplicated: u64,
    /// Frames delayed, and so reordered, by a fault.
    pub reordered: u64,
    /// Dropped on entry: not sent by the host of the port, or not from its address.
    pub foreign: u64,
    /// Dropped on entry: not a frame that the switch can decode, or damaged.
    pub malformed: u64,
    /// Dropped on entry: not IPv4 between hosts (ARP, IPv6, multicast).
    pub ignored: u64,
    /// Dropped on entry: longer than the MTU. The host's segmentation offload is on; turn it
    /// off there (`ethtool -K DEV tso off gso off`).
    pub oversized: u64,
    /// Frames that entered without a checksum, because the host leaves it to its NIC. The switch computes it, which costs
    /// time: turn the host's checksum offload off (`ethtool -K DEV tx off`).
    pub unfinished_checksums: u64,
    /// Dropped on entry: all frame buffers were in use.
    pub no_memory: u64,
    /// Dropped by the kernel before the switch could read them.
    pub kernel_drops: u64,
    /// Dropped on exit: the host's address is not known yet.
    pub no_address: u64,
    /// Dropped on exit: the kernel refused them.
    pub send_refused: u64,
    /// How many times the address of a host was learnt.
    pub learnt: u64,
    /// How many times it was the address that the host had before: two processes are the same host, as far as the switch knows.
    pub contested: u64,
    /// Frames that were read later than they would have left their first queue, and that were handled as if they arrived at that time.
    pub clamped: u64,
    /// Copies that the switch program has made, in addition to the frames themselves.
    pub copied: u64,
    /// Frames that the switch program has consumed.
    pub consumed: u64,
    /// Frames of its own that the program has made.
    pub made: u64,
}

/// The distribution of the time by which frames were passed to the kernel later than they were due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// The number of frames that were measured.
    pub frames: u64,
    /// The median lateness.
    pub p50: Span,
    /// The 99th percentile.
    pub p99: Span,
    /// The greatest lateness.
    pub max: Span,
}

/// The statistics of a switch at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The time of the report.
    pub at: Time,
    /// The time since which links and lateness are measured.
    pub since: Time,
    /// The counters since the switch was created.
    pub counters: Counters,
    /// What the system's programs have counted, by name: the sums over all switches.
    pub program: BTreeMap<&'static str, u64>,
    /// Turns since the switch was created that have found something to do.
    pub turns: u64,
    /// The statistics of every link.
    pub links: Vec<LinkStats>,
    /// Samples of queue lengths over time, if sampling was configured.
    pub queue_series: Vec<QueueSample>,
    /// Whether the switch kept up with its links.
    pub lateness: Lateness,
    /// Frames that are in the fabric at present.
    pub frames_inside: u32,
    /// The circuits of a pod with an optical circuit switch since the switch was created, and the time from which on each of them
    /// was in force; the last are the present ones. Empty for other fabrics. Frames lost to changes are the drops for
    /// [`DropReason::Reconfiguration`].
    pub circuits: Vec<(Time, Circuits)>,
}

impl Counters {
    /// The number of frames dropped inside the fabric.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Combines the counters of the sockets with those of the fabric.
    pub(super) fn with(mut self, fabric: &net::Counters) -> Self {
        self.received = fabric.sent;
        for (drops, more) in self.drops.iter_mut().zip(fabric.drops) {
            *drops += more;
        }
        self.ecn_marks = fabric.ecn_marks;
        self.trims = fabric.trims;
        self.returned_to_sender = fabric.returned_to_sender;
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

/// The upper bound of the histogram; greater values are recorded as this one.
const LONGEST_NS: u64 = 60_000_000_000;

/// Records how late each frame is, for [`Lateness`].
#[derive(Debug)]
pub(super) struct LatenessHistogram(Histogram<u64>);

impl LatenessHistogram {
    pub(super) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 2);
        Self(histogram.expect("the bounds are valid constants"))
    }

    #[inline]
    pub(super) fn record(&mut self, late: Span) {
        self.0.saturating_record(late.as_ns().max(1));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn summary(&self) -> Lateness {
        let at = |quantile| Span::from_ns(self.0.value_at_quantile(quantile));
        let frames = self.0.len();
        if frames == 0 {
            return Lateness::default();
        }
        Lateness { frames, p50: at(0.5), p99: at(0.99), max: Span::from_ns(self.0.max()) }
    }
}
