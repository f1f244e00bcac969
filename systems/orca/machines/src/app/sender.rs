//! The sender of casts.

use rackweave_core::{FailReason, HostId, Time};

use super::writers::{Cost, Write, Writers};
use super::{ACK_BYTES, Record, Report};

/// What a sender casts, to which receivers, and what the work costs it.
#[derive(Clone, Debug)]
pub struct SenderConfig {
    /// The length of each cast in bytes, in the order in which they are sent.
    pub casts: Vec<u64>,
    /// The hosts that receive all casts.
    pub receivers: Vec<HostId>,
    /// Whether a cast waits until the one before has ended for all receivers, as in the evaluation (section III.A.1). Otherwise
    /// casts follow each other as fast as they are written.
    pub closed_loop: bool,
    /// The time before which no cast starts.
    pub begins_at: Time,
    /// Whether the first cast waits until every receiver has joined or failed.
    pub awaits_receivers: bool,
    /// The number of sockets that it writes to; 1 if the carrier replicates the data.
    pub sockets: usize,
    /// The length in bytes of the buffers that its processes write.
    pub buffer: u64,
    /// The number of processes that share the sockets.
    pub processes: usize,
    /// The CPU cost of writing a buffer.
    pub cost: Cost,
}

impl SenderConfig {
    /// Returns a closed loop over one socket that starts at time zero and writes each cast as a whole at no cost.
    #[must_use]
    pub fn new(casts: Vec<u64>, receivers: Vec<HostId>) -> Self {
        Self {
            casts,
            receivers,
            closed_loop: true,
            begins_at: Time::ZERO,
            awaits_receivers: false,
            sockets: 1,
            buffer: u64::MAX,
            processes: 1,
            cost: Cost::default(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Member {
    host: HostId,
    joined: bool,
    /// The number of casts that the receiver has acknowledged.
    acknowledged: u32,
    /// The number of casts that have ended for the receiver.
    ended: u32,
    failed: Option<FailReason>,
}

/// The application of the host that sends casts. See the [module](super).
#[derive(Clone, Debug)]
pub struct Sender {
    casts: Vec<u64>,
    closed_loop: bool,
    begins_at: Time,
    /// Whether the start time has been reached at a call of `poll_write`.
    has_begun: bool,
    members: Vec<Member>,
    started: u32,
    /// The number of pairs of cast and receiver that have not ended.
    open: usize,
    writers: Writers,
    written: u64,
    records: Vec<Record>,
    detached: u64,
}

impl Sender {
    /// Returns an application that has not started a cast.
    #[must_use]
    pub fn new(config: SenderConfig) -> Self {
        let SenderConfig { casts, receivers, closed_loop, begins_at, awaits_receivers, .. } =
            config;
        let joined = !awaits_receivers;
        let member = |host| Member { host, joined, acknowledged: 0, ended: 0, failed: None };
        Self {
            casts,
            closed_loop,
            begins_at,
            has_begun: false,
            members: receivers.into_iter().map(member).collect(),
            started: 0,
            open: 0,
            writers: Writers::new(config.cost, config.buffer, config.sockets, config.processes),
            written: 0,
            records: Vec::new(),
            detached: 0,
        }
    }

    fn member(&self, host: HostId) -> Option<usize> {
        self.members.iter().position(|member| member.host == host)
    }

    /// Records that the carrier reaches a receiver.
    pub fn joined(&mut self, host: HostId) {
        if let Some(receiver) = self.member(host) {
            self.members[receiver].joined = true;
        }
    }

    /// Records that a receiver is served by unicast because it is too slow for the group. Casts still wait for its
    /// acknowledgements.
    pub fn detached(&mut self, host: HostId) {
        self.detached += 1;
        self.joined(host);
    }

    /// Records that a receiver has acknowledged this many casts in total. An acknowledgement covers all earlier casts.
    pub fn acknowledged(&mut self, now: Time, host: HostId, casts: u64) {
        let Some(receiver) = self.member(host) else { return };
        let member = &mut self.members[receiver];
        let casts = casts.min(self.casts.len() as u64) as u32;
        member.acknowledged = member.acknowledged.max(casts);
        self.end(now, receiver);
    }

    /// Records the total number of acknowledgement bytes that have arrived from a receiver.
    pub fn acknowledged_bytes(&mut self, now: Time, host: HostId, bytes: u64) {
        self.acknowledged(now, host, bytes / u64::from(ACK_BYTES));
    }

    /// Records that a receiver will acknowledge nothing more. The sender stops waiting for it.
    pub fn failed(&mut self, now: Time, host: HostId, reason: FailReason) {
        let Some(receiver) = self.member(host) else { return };
        self.members[receiver].failed.get_or_insert(reason);
        self.end(now, receiver);
        self.end_unstarted(now);
    }

    /// Records that all receivers have failed.
    pub fn all_failed(&mut self, now: Time, reason: FailReason) {
        for receiver in 0..self.members.len() {
            self.members[receiver].failed.get_or_insert(reason);
            self.end(now, receiver);
        }
        self.end_unstarted(now);
    }

    /// If there is no receiver left, the casts that have not started end too: without that, a report would not mention them.
    fn end_unstarted(&mut self, now: Time) {
        if self.members.iter().any(|member| member.failed.is_none()) {
            return;
        }
        while (self.started as usize) < self.casts.len() {
            self.records.push(Record::Started { cast: self.started, at: now });
            self.started += 1;
            self.open += self.members.len();
            (0..self.members.len()).for_each(|receiver| self.end(now, receiver));
        }
    }

    /// Ends the started casts that a receiver has acknowledged or will not acknowledge.
    fn end(&mut self, at: Time, receiver: usize) {
        let member = &mut self.members[receiver];
        while member.ended < self.started {
            let (cast, receiver) = (member.ended, receiver as u32);
            let record = match member.failed {
                Some(reason) => Record::Failed { cast, receiver, at, reason },
                None if cast < member.acknowledged => Record::Acknowledged { cast, receiver, at },
                None => break,
            };
            self.records.push(record);
            member.ended += 1;
            self.open -= 1;
        }
    }

    /// Returns the next buffer whose writing is complete at `now`, for the driver to pass to the carrier. The driver
    /// calls it until it returns `None` after every event and whenever room may have become free; `room` returns
    /// whether a socket takes a buffer without blocking.
    pub fn poll_write(&mut self, now: Time, room: impl FnMut(usize) -> bool) -> Option<Write> {
        self.has_begun |= now >= self.begins_at;
        while self.may_start() {
            let bytes = self.casts[self.started as usize];
            self.records.push(Record::Started { cast: self.started, at: now });
            self.started += 1;
            self.open += self.members.len();
            self.writers.start(bytes);
            (0..self.members.len()).for_each(|receiver| self.end(now, receiver));
        }
        let write = self.writers.advance(now, room)?;
        self.written += write.bytes;
        Some(write)
    }

    fn may_start(&self) -> bool {
        let is_first = self.started == 0;
        self.has_begun
            && (self.started as usize) < self.casts.len()
            && self.writers.is_idle()
            && !(self.closed_loop && self.open > 0)
            && !self.members.iter().all(|member| member.failed.is_some())
            && !(is_first && self.members.iter().any(|m| !m.joined && m.failed.is_none()))
    }

    /// Returns the time at which [`Sender::poll_write`] must be called next, if no event comes before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.has_begun { self.writers.poll_timeout() } else { Some(self.begins_at) }
    }

    /// Returns the number of bytes written to all sockets together.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Returns whether every buffer of all casts is written.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.started as usize == self.casts.len() && self.writers.is_idle()
    }

    /// Returns whether every cast has ended for every receiver, or all receivers have failed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        (self.started as usize == self.casts.len() && self.open == 0)
            || self.members.iter().all(|member| member.failed.is_some())
    }

    /// Returns this host's report for the [`Collector`](super::Collector).
    #[must_use]
    pub fn report(&self) -> Report {
        Report { records: self.records.clone(), detached: self.detached, ..Report::default() }
    }
}
