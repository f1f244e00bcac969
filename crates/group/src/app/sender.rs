//! The sender of casts.

use rackweave_core::{FailReason, HostId, Time};

use super::writers::{Cost, Write, Writers};
use super::{ACK_BYTES, Record, Report};

/// What a sender casts, to whom, and what the work costs it.
#[derive(Clone, Debug)]
pub struct SenderConfig {
    /// The lengths of the casts in bytes, in their order.
    pub casts: Vec<u64>,
    /// The receivers of all casts.
    pub receivers: Vec<HostId>,
    /// Whether a cast waits until the one before has ended for all receivers, as in the evaluation (section III.A.1). Otherwise
    /// casts follow each other as fast as they are written.
    pub closed_loop: bool,
    /// No cast starts earlier.
    pub begins_at: Time,
    /// Whether the first cast waits until every receiver has joined, or has failed.
    pub awaits_receivers: bool,
    /// The number of sockets that it writes: one if the carrier makes the copies.
    pub sockets: usize,
    /// The length of the buffers that its processes write.
    pub buffer: u64,
    /// The number of processes, which share the sockets.
    pub processes: usize,
    /// The cost of their work.
    pub cost: Cost,
}

impl SenderConfig {
    /// A closed loop over one socket that begins at once, in which a cast is written as a whole and without cost.
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
    /// The number of casts that it has acknowledged.
    acknowledged: u32,
    /// The number of casts that have ended for it.
    ended: u32,
    failed: Option<FailReason>,
}

/// The application of the host that sends casts. See the [module](super).
#[derive(Clone, Debug)]
pub struct Sender {
    casts: Vec<u64>,
    closed_loop: bool,
    begins_at: Time,
    /// The time to begin has come, and the driver has asked since.
    has_begun: bool,
    members: Vec<Member>,
    started: u32,
    /// Casts and receivers for which these have not ended.
    open: usize,
    writers: Writers,
    written: u64,
    records: Vec<Record>,
    detached: u64,
}

impl Sender {
    /// An application that has started nothing.
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

    /// The carrier reaches a receiver.
    pub fn joined(&mut self, host: HostId) {
        if let Some(receiver) = self.member(host) {
            self.members[receiver].joined = true;
        }
    }

    /// A receiver is served by unicast from now on, because it is too slow for the others. It still counts for every cast.
    pub fn detached(&mut self, host: HostId) {
        self.detached += 1;
        self.joined(host);
    }

    /// A receiver has acknowledged this many casts in all. An acknowledgement implies those before it.
    pub fn acknowledged(&mut self, now: Time, host: HostId, casts: u64) {
        let Some(receiver) = self.member(host) else { return };
        let member = &mut self.members[receiver];
        let casts = casts.min(self.casts.len() as u64) as u32;
        member.acknowledged = member.acknowledged.max(casts);
        self.end(now, receiver);
    }

    /// The bytes of acknowledgements that have arrived from a receiver in all.
    pub fn acknowledged_bytes(&mut self, now: Time, host: HostId, bytes: u64) {
        self.acknowledged(now, host, bytes / u64::from(ACK_BYTES));
    }

    /// A receiver will acknowledge nothing more, and is no longer waited for.
    pub fn failed(&mut self, now: Time, host: HostId, reason: FailReason) {
        let Some(receiver) = self.member(host) else { return };
        self.members[receiver].failed.get_or_insert(reason);
        self.end(now, receiver);
    }

    /// All receivers have failed.
    pub fn all_failed(&mut self, now: Time, reason: FailReason) {
        for receiver in 0..self.members.len() {
            self.members[receiver].failed.get_or_insert(reason);
            self.end(now, receiver);
        }
    }

    /// Ends the started casts that a receiver has acknowledged, or will not acknowledge.
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

    /// The next buffer that is written by `now`, for the driver to pass on. To be called until `None` after anything that may
    /// have made room, or has been reported; `room` says whether a socket takes a buffer without blocking.
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

    /// When [`Sender::poll_write`] is to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.has_begun { self.writers.poll_timeout() } else { Some(self.begins_at) }
    }

    /// The number of bytes written, to all sockets together.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Whether every buffer of all casts is written.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.started as usize == self.casts.len() && self.writers.is_idle()
    }

    /// Whether every cast has ended for every receiver, or all receivers have failed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        (self.started as usize == self.casts.len() && self.open == 0)
            || self.members.iter().all(|member| member.failed.is_some())
    }

    /// What happened at this host, for the [`Collector`](super::Collector).
    #[must_use]
    pub fn report(&self) -> Report {
        Report { records: self.records.clone(), detached: self.detached, ..Report::default() }
    }
}
