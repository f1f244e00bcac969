//! The state of one job in a switch.

use core::ops::Range;

use rackweave_core::{HostId, Time};
use rackweave_wire::reduce::{Header, Open};

/// A packet of a worker's window, as the switch remembers it.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// The sequence number plus 1; 0 for none.
    next: u32,
    /// The pairs that found no slot.
    rest: u64,
}

/// What a switch knows of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It has not arrived before.
    New,
    /// It has been added up but for these pairs.
    Seen(u64),
    /// A packet that is a window later has arrived: this one was acknowledged.
    Passed,
}

/// A job that has slots.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) token: u64,
    pub(super) attempt: u16,
    pub(super) master: HostId,
    /// The number of the reservation, by which its master recognizes it.
    pub(super) instance: u32,
    pub(super) open: Open,
    pub(super) workers: Vec<HostId>,
    /// Its slots: one or two copies of equal length.
    pub(super) region: Range<u32>,
    pub(super) expires: Time,
    /// The first epoch that is not finished. It and the next ones, one for each copy, are open.
    first: u16,
    records: Vec<Record>,
}

impl Job {
    pub(super) fn new(
        header: &Header,
        (master, instance): (HostId, u32),
        open: Open,
        region: Range<u32>,
        workers: Vec<HostId>,
        expires: Time,
    ) -> Self {
        let records = usize::from(open.window) * usize::from(open.workers);
        Self {
            token: header.token.get(),
            attempt: header.attempt,
            master,
            instance,
            open,
            workers,
            region,
            expires,
            first: open.first_epoch,
            records: vec![Record::default(); records],
        }
    }

    /// Begins another attempt with empty slots.
    pub(super) fn restart(&mut self, attempt: u16, open: Open, workers: Vec<HostId>) {
        (self.attempt, self.open, self.workers) = (attempt, open, workers);
        self.first = open.first_epoch;
        self.records.fill(Record::default());
    }

    /// Whether a message is of this job and attempt.
    pub(super) const fn is(&self, header: &Header) -> bool {
        self.token == header.token.get() && self.attempt == header.attempt
    }

    pub(super) const fn slots(&self) -> u32 {
        self.region.end - self.region.start
    }

    /// The number of packets that it records.
    pub(super) const fn entries(&self) -> u32 {
        self.records.len() as u32
    }

    /// Returns the slots of an epoch.
    pub(super) fn copy_of(&self, epoch: u16) -> Range<u32> {
        let copies = u32::from(self.open.copies);
        let len = self.slots() / copies;
        let start = self.region.start + u32::from(epoch) % copies * len;
        start..start + len
    }

    /// Whether pairs of an epoch can be added up now.
    pub(super) fn is_open(&self, epoch: u16) -> bool {
        (0..u16::from(self.open.copies)).contains(&epoch.wrapping_sub(self.first))
            && epoch >= self.first
    }

    /// Whether the slots of an epoch have been emptied.
    pub(super) const fn is_finished(&self, epoch: u16) -> bool {
        epoch < self.first
    }

    /// Whether an epoch is the first open one: epochs finish in order.
    pub(super) const fn is_next_to_finish(&self, epoch: u16) -> bool {
        epoch == self.first
    }

    /// The master has all sums of the first open epoch.
    pub(super) const fn finish(&mut self) {
        self.first = self.first.saturating_add(1);
    }

    /// Whether another attempt with these fields has as many records and copies.
    pub(super) const fn has_shape_of(&self, open: &Open) -> bool {
        let Open { workers, window, copies, .. } = self.open;
        workers == open.workers && window == open.window && copies == open.copies
    }

    fn index(&self, worker: u8, seq: u32) -> usize {
        let window = usize::from(self.open.window);
        usize::from(worker) * window + seq as usize % window
    }

    /// Returns what is known of a packet; `None` if its number is impossible.
    pub(super) fn entry(&self, worker: u8, seq: u32) -> Option<Entry> {
        let next = seq.checked_add(1)?;
        let record = self.records.get(self.index(worker, seq))?;
        Some(match record.next.cmp(&next) {
            core::cmp::Ordering::Less => Entry::New,
            core::cmp::Ordering::Equal => Entry::Seen(record.rest),
            core::cmp::Ordering::Greater => Entry::Passed,
        })
    }

    /// Remembers which pairs of a packet found no slot.
    pub(super) fn record(&mut self, worker: u8, seq: u32, rest: u64) {
        let index = self.index(worker, seq);
        if let Some(record) = self.records.get_mut(index) {
            *record = Record { next: seq.saturating_add(1), rest };
        }
    }
}
