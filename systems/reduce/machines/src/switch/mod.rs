//! The program of an aggregating switch.
//!
//! A job has a region of the table, its workers' addresses, and for each worker a record of the packets of its window: which pairs of a
//! packet found no slot. A packet is added up once, however often it arrives; a repetition is answered as the first copy was, with an
//! acknowledgement or with the same rest for the master. State is made only for a master that has proved its address, and only packets
//! from the workers that it named are added up, so the memory is bounded by the configuration.
//!
//! ASK (ASPLOS 2023) has the same window of seen packets with their rest; that a switch acknowledges what it has taken is there too. The
//! attempts, the cookies and the lease are our own: the papers do not treat a worker or a switch that returns.

mod job;
mod pool;
mod vector;

use std::collections::BTreeMap;

use rackweave_core::rng::mix;
use rackweave_core::{
    Destination, DropReason, Ecn, Header as AnyHeader, HostId, Packet, PayloadStore, Port, Span,
    Time, Verdict,
};
use rackweave_switch::system::{Outgoing, SystemProgram};
use rackweave_wire::Id64;
use rackweave_wire::reduce::{
    ADDRESS_BYTES, Body, FETCH_SLOTS, Header, KEY_BYTES, MAX_PAIRS, Open, PAIR_BYTES, Pairs,
    Refusal, Rule,
};

use self::job::{Entry, Job};
use self::vector::VectorJob;
use super::key::Key;
use super::table::Table;

/// The limits of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of slots for all jobs.
    pub slots: u32,
    /// The number of slots of a bucket.
    pub ways: u8,
    /// The largest number of jobs.
    pub max_jobs: u16,
    /// The largest number of packets whose rest is recorded, in the windows of all workers of all jobs.
    pub max_entries: u32,
    /// The percentage of the slots, of the jobs and of the recorded packets that masters at one address can have together, so that no host
    /// takes all of them. The rule is our own.
    pub share: u8,
    /// How long a job keeps its slots after the last message of its master.
    pub lease: Span,
    /// A random number of this life of the switch, from which it also makes cookies.
    pub secret: u64,
}

/// The share of one address in a switch that serves hosts which do not know one another.
pub const SHARE: u8 = 50;

/// What a new job can have, of what is free and of the share of its master's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Allowance {
    slots: u32,
    entries: u32,
    has_job: bool,
}

impl Config {
    /// A switch with this number of slots: buckets of 8, 64 jobs, windows of 256 packets for 256 workers in all, a lease of 10 s. One
    /// address can have all of them.
    #[must_use]
    pub const fn new(slots: u32, secret: u64) -> Self {
        let (max_jobs, max_entries) = (64, 256 * 256);
        let lease = Span::from_secs(10);
        Self { slots, ways: 8, max_jobs, max_entries, share: 100, lease, secret }
    }
}

/// What a switch has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets of pairs that were added up or forwarded for the first time.
    pub packets: u64,
    /// Pairs in them.
    pub pairs: u64,
    /// Pairs in them that were added to a sum.
    pub absorbed: u64,
    /// Pairs that were sent to a master because they found no slot, repetitions included.
    pub residual: u64,
    /// Packets of pairs that had been handled before.
    pub duplicates: u64,
    /// Sums that were read by masters, repetitions included.
    pub fetched: u64,
    /// Messages of a job, an attempt or an epoch that the switch does not have, or with a wrong token or sender.
    pub stale: u64,
    /// Requests for slots that were refused.
    pub refused: u64,
    /// Words that P4-ORDC's rule has sent to the master.
    pub emitted: u64,
    /// Chunks of vectors that were added up for the first time.
    pub chunks: u64,
    /// Chunks of vectors that had been added up before.
    pub chunk_duplicates: u64,
    /// Sums of chunks that were complete and sent to all workers.
    pub chunk_sums: u64,
}

/// What the switch sends next.
#[derive(Clone, Copy, Debug)]
struct Reply {
    src: HostId,
    dst: HostId,
    header: Header,
    marked: bool,
}

/// The program of a switch.
#[derive(Clone, Debug)]
pub struct Program {
    me: HostId,
    config: Config,
    table: Table,
    jobs: BTreeMap<u16, Job>,
    /// Jobs that add up vectors. A number is used by one job of either kind.
    vectors: BTreeMap<u16, VectorJob>,
    /// The number of packets recorded by the windows of all jobs.
    entries: u32,
    /// The number of reservations in this life of the switch.
    reservations: u64,
    reply: Option<Reply>,
    /// The workers that get the reply too, in reverse order.
    others: Vec<(u8, HostId)>,
    payload: Vec<u8>,
    counters: Counters,
}

impl Program {
    /// The program of this switch.
    #[must_use]
    pub fn new(switch: u32, config: Config) -> Self {
        Self::at(Destination::Switch(switch).address(), config)
    }

    /// The program at an address, for instance that of a host that adds up where no switch does.
    #[must_use]
    pub fn at(address: HostId, config: Config) -> Self {
        Self {
            me: address,
            config,
            table: Table::new(config.slots, config.ways),
            jobs: BTreeMap::new(),
            vectors: BTreeMap::new(),
            entries: 0,
            reservations: 0,
            reply: None,
            others: Vec::new(),
            payload: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Returns what the switch has done.
    #[must_use]
    pub const fn counts(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of jobs that have slots.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.jobs.len() + self.vectors.len()
    }

    /// Returns the number of slots that hold a sum.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.table.used(0..self.table.slots())
    }

    /// Empties the switch as a restart does. Its new secret makes the restart visible.
    pub fn restart(&mut self, secret: u64) {
        self.config.secret = secret;
        self.table = Table::new(self.config.slots, self.config.ways);
        self.jobs.clear();
        self.vectors.clear();
        self.entries = 0;
        self.reply = None;
        self.others.clear();
    }

    const fn instance(&self) -> u32 {
        (mix(self.config.secret) >> 32) as u32
    }

    /// The instance of a new reservation. A job that has lapsed and is reserved again under the same attempt has lost its sums, which the
    /// master must notice.
    fn new_reservation(&mut self) -> u32 {
        self.reservations += 1;
        (mix(mix(self.config.secret) ^ self.reservations) >> 32) as u32
    }

    /// The cookie by which a master proves that it receives at its address.
    const fn cookie(&self, master: HostId, header: &Header) -> u64 {
        let about = (master.0 as u64) << 16 | header.job as u64;
        mix(mix(self.config.secret ^ about) ^ header.token.get())
    }

    fn answer(&mut self, to: HostId, header: Header) {
        self.reply = Some(Reply { src: self.me, dst: to, header, marked: false });
    }

    /// Handles a message for this address, and returns false if it is to be dropped without an answer. The answers must be polled
    /// before the next message.
    pub fn handle(
        &mut self,
        now: Time,
        from: HostId,
        header: Header,
        marked: bool,
        bytes: &[u8],
    ) -> bool {
        self.payload.clear();
        self.others.clear();
        match header.body {
            Body::Data(pairs) => self.data(from, header, pairs, marked, bytes),
            Body::Open(open) => self.open(now, from, header, open, bytes),
            Body::Fetch { epoch, reservation, first } => {
                self.fetch(now, from, header, (epoch, reservation), first)
            }
            Body::Clear { epoch, reservation } => self.clear(now, from, header, epoch, reservation),
            Body::Close => {
                if self.job_of_master(now, from, &header).is_some()
                    || self.is_vector_of_master(from, &header)
                {
                    self.remove(header.job);
                }
                false
            }
            Body::OpenVector(open) => self.open_vector(now, from, header, open, bytes),
            Body::Chunk(chunk) => self.chunk(from, header, chunk, bytes),
            _ => false,
        }
    }

    fn stale(&mut self) -> bool {
        self.counters.stale += 1;
        false
    }

    /// Adds up a packet, or answers its repetition.
    fn data(
        &mut self,
        from: HostId,
        header: Header,
        pairs: Pairs,
        marked: bool,
        bytes: &[u8],
    ) -> bool {
        let Self { jobs, table, counters, payload, .. } = self;
        let Some(job) = jobs.get_mut(&header.job).filter(|job| job.is(&header)) else {
            return self.stale();
        };
        if job.workers.get(usize::from(header.worker)) != Some(&from)
            || bytes.len() != usize::from(pairs.count) * PAIR_BYTES
        {
            return self.stale();
        }
        let (seed, operator, master) = (job.token, job.open.operator, job.master);
        let range = job.copy_of(pairs.epoch);
        if job.open.rule == Rule::Counter {
            counters.packets += 1;
            counters.pairs += u64::from(pairs.count);
            let workers = job.open.workers;
            let mut count = 0;
            for pair in bytes.chunks_exact(PAIR_BYTES) {
                let (key, value) = split(pair);
                // The published program hashes JobID and key to a register, adds the value, increments the register's counter,
                // and sends the sum when the counter equals the number of workers (section 2). The key of the slot is not
                // used by the rule; its first bytes are the counter here, whose 32 bits are our choice, as the paper has none.
                let Some(slot) = table.register(range.clone(), key.hash(seed)) else { continue };
                slot.value = slot.value.wrapping_add(u64::from(value));
                let [a, b, c, d, ..] = slot.key.0;
                let arrived = u32::from_le_bytes([a, b, c, d]).wrapping_add(1);
                slot.key.0[..4].copy_from_slice(&arrived.to_le_bytes());
                if arrived == u32::from(workers) {
                    payload.extend_from_slice(&key.0);
                    payload.extend_from_slice(&(slot.value as u32).to_be_bytes());
                    count += 1;
                }
            }
            counters.emitted += u64::from(count);
            counters.absorbed += u64::from(pairs.count - count);
            self.forward_rest(from, header, Pairs { count, ..pairs }, master, marked);
            return true;
        }
        let Some(entry) = job.entry(header.worker, pairs.seq) else { return self.stale() };
        let rest = match entry {
            // A packet of an earlier window: its worker has had the acknowledgement, or it could not have gone on.
            Entry::Passed => {
                counters.duplicates += 1;
                return false;
            }
            // Another packet under the same number: its pairs are not the counted ones.
            Entry::Seen(rest) if 64 - rest.leading_zeros() > u32::from(pairs.count) => {
                return self.stale();
            }
            Entry::Seen(rest) => {
                counters.duplicates += 1;
                rest
            }
            Entry::New => {
                if !job.is_open(pairs.epoch) {
                    return self.stale();
                }
                counters.packets += 1;
                counters.pairs += u64::from(pairs.count);
                let mut hashes = [0; MAX_PAIRS as usize];
                for (hash, pair) in hashes.iter_mut().zip(bytes.chunks_exact(PAIR_BYTES)) {
                    *hash = split(pair).0.hash(seed);
                    table.load(range.clone(), *hash);
                }
                let mut rest = 0_u64;
                let pairs_of = bytes.chunks_exact(PAIR_BYTES).zip(hashes);
                for (index, (pair, hash)) in pairs_of.enumerate() {
                    let (key, value) = split(pair);
                    let is_added = key != Key::EMPTY
                        && table.add(range.clone(), hash, key, operator, u64::from(value));
                    rest |= u64::from(!is_added) << index;
                }
                counters.absorbed += u64::from(u32::from(pairs.count) - rest.count_ones());
                job.record(header.worker, pairs.seq, rest);
                rest
            }
        };
        counters.residual += u64::from(rest.count_ones());
        for (index, pair) in bytes.chunks_exact(PAIR_BYTES).enumerate() {
            if rest >> index & 1 == 1 {
                payload.extend_from_slice(pair);
            }
        }
        let count = rest.count_ones() as u8;
        self.forward_rest(from, header, Pairs { count, ..pairs }, master, marked);
        true
    }

    /// Sends the rest of a packet to the master, as if its worker had sent it, or acknowledges a packet without a rest.
    fn forward_rest(
        &mut self,
        worker: HostId,
        header: Header,
        rest: Pairs,
        master: HostId,
        marked: bool,
    ) {
        if rest.count == 0 {
            let body = Body::Ack { seq: rest.seq, marked };
            return self.answer(worker, Header { body, ..header });
        }
        let header = Header { body: Body::Residual(rest), ..header };
        self.reply = Some(Reply { src: worker, dst: master, header, marked });
    }

    /// Reserves slots, renews a reservation, or starts its next attempt.
    fn open(&mut self, now: Time, from: HostId, header: Header, open: Open, bytes: &[u8]) -> bool {
        if bytes.len() != usize::from(open.workers) * ADDRESS_BYTES {
            return self.stale();
        }
        let cookie = self.cookie(from, &header);
        if open.cookie.get() != cookie {
            // The answer is shorter than the request, so that it amplifies nothing.
            let body = Body::Challenge { instance: self.instance(), cookie: Id64::new(cookie) };
            self.answer(from, Header { body, ..header });
            return true;
        }
        if let Some(job) = self.jobs.get(&header.job)
            && (job.master != from || job.token != header.token.get())
        {
            if now < job.expires {
                return self.refuse(from, header, Refusal::InUse);
            }
            self.remove(header.job);
        }
        if let Some(job) = self.vectors.get(&header.job) {
            if now < job.expires {
                return self.refuse(from, header, Refusal::InUse);
            }
            self.remove(header.job);
        }
        let lease = self.config.lease;
        if let Some(job) = self.jobs.get_mut(&header.job) {
            if header.attempt < job.attempt {
                return self.stale();
            }
            let is_next = header.attempt > job.attempt;
            if is_next && !job.has_shape_of(&open) {
                return self.refuse(from, header, Refusal::Invalid);
            }
            job.expires = now.saturating_add(lease);
            if is_next {
                self.table.clear(job.region.clone());
                job.restart(header.attempt, open, addresses(bytes));
            }
            let body = Body::Opened { slots: job.slots(), instance: job.instance };
            self.answer(from, Header { body, ..header });
            return true;
        }
        self.expire(now);
        let entries = u32::from(open.window) * u32::from(open.workers);
        let unit = self.table.ways() * u32::from(open.copies);
        let allowed = self.allowance(from);
        let Some(region) = self.free_region(unit, open.slots.min(allowed.slots)) else {
            return self.refuse(from, header, Refusal::Full);
        };
        if !allowed.has_job || entries > allowed.entries {
            return self.refuse(from, header, Refusal::Full);
        }
        self.entries += entries;
        self.table.clear(region.clone());
        let expires = now.saturating_add(self.config.lease);
        let instance = self.new_reservation();
        let job = Job::new(&header, (from, instance), open, region, addresses(bytes), expires);
        let body = Body::Opened { slots: job.slots(), instance };
        self.jobs.insert(header.job, job);
        self.answer(from, Header { body, ..header });
        true
    }

    fn refuse(&mut self, to: HostId, header: Header, reason: Refusal) -> bool {
        self.counters.refused += 1;
        self.answer(to, Header { body: Body::Refused { reason }, ..header });
        true
    }

    /// Returns what a master at this address can still have. Its address is its own: it has returned a cookie.
    fn allowance(&self, master: HostId) -> Allowance {
        let of_pairs = self.jobs.values().map(|job| (job.master, &job.region, job.entries()));
        let of_vectors = self.vectors.values().map(|job| (job.master, &job.region, job.entries()));
        let held = of_pairs.chain(of_vectors).filter(|(other, ..)| *other == master);
        let (slots, entries, jobs) =
            held.fold((0, 0, 0), |(slots, entries, jobs), (_, region, own)| {
                (slots + (region.end - region.start), entries + own, jobs + 1)
            });
        let Config { max_jobs, max_entries, share, .. } = self.config;
        let of = |all: u32| (u64::from(all) * u64::from(share) / 100) as u32;
        let free = max_entries.saturating_sub(self.entries);
        Allowance {
            slots: of(self.table.slots()).saturating_sub(slots),
            entries: of(max_entries).saturating_sub(entries).min(free),
            has_job: self.jobs() < usize::from(max_jobs) && jobs < of(max_jobs.into()).max(1),
        }
    }

    /// Returns the largest free region up to what is wanted, as a multiple of `unit`, for instance of a bucket for each copy; `None` if
    /// there is no room for one.
    fn free_region(&self, unit: u32, wanted: u32) -> Option<core::ops::Range<u32>> {
        let of_pairs = self.jobs.values().map(|job| job.region.clone());
        let of_vectors = self.vectors.values().map(|job| job.region.clone());
        let mut taken: Vec<_> = of_pairs.chain(of_vectors).collect();
        taken.sort_by_key(|region| region.start);
        let ends = taken.iter().map(|region| region.start).chain([self.table.slots()]);
        let starts = [0].into_iter().chain(taken.iter().map(|region| region.end));
        let gaps = starts.zip(ends).map(|(start, end)| (start, end.saturating_sub(start)));
        let wanted = wanted.min(self.table.slots());
        let (start, len) = gaps.max_by_key(|(start, len)| {
            // The first gap that is long enough, else the longest.
            ((*len).min(wanted), core::cmp::Reverse(*start))
        })?;
        let len = len.min(wanted);
        let len = len - len % unit;
        (len > 0).then_some(start..start + len)
    }

    fn remove(&mut self, number: u16) {
        if let Some(job) = self.jobs.remove(&number) {
            self.entries -= job.entries();
        }
        if let Some(job) = self.vectors.remove(&number) {
            self.entries -= job.entries();
        }
    }

    /// Frees the slots of jobs whose masters have been silent for the lease.
    fn expire(&mut self, now: Time) {
        let of_pairs = self.jobs.iter().map(|(number, job)| (*number, job.expires));
        let of_vectors = self.vectors.iter().map(|(number, job)| (*number, job.expires));
        let over: Vec<_> = of_pairs.chain(of_vectors).filter(|(_, at)| *at <= now).collect();
        for (number, _) in over {
            self.remove(number);
        }
    }

    /// Returns the job of a message from its master, and renews its lease.
    fn job_of_master(&mut self, now: Time, from: HostId, header: &Header) -> Option<&mut Job> {
        let job = self.jobs.get_mut(&header.job)?;
        if job.master != from || !job.is(header) {
            return None;
        }
        job.expires = now.saturating_add(self.config.lease);
        Some(job)
    }

    /// A message of a job that the switch does not have: its sender has to know. A wrong token gets no answer from a job that exists.
    fn unknown(&mut self, from: HostId, header: Header) -> bool {
        let is_there =
            self.jobs.contains_key(&header.job) || self.vectors.contains_key(&header.job);
        self.counters.stale += 1;
        if !is_there {
            self.answer(from, Header { body: Body::Unknown, ..header });
        }
        !is_there
    }

    /// The master has another reservation in mind than that of the job's slots, whose sums are not all of its job's.
    fn other_reservation(&mut self, from: HostId, header: Header) -> bool {
        self.counters.stale += 1;
        self.answer(from, Header { body: Body::Unknown, ..header });
        true
    }

    fn fetch(
        &mut self,
        now: Time,
        from: HostId,
        header: Header,
        (epoch, reservation): (u16, u16),
        first: u32,
    ) -> bool {
        let Some(job) = self.job_of_master(now, from, &header) else {
            return self.unknown(from, header);
        };
        if job.instance as u16 != reservation {
            return self.other_reservation(from, header);
        }
        let copy = job.copy_of(epoch);
        if !job.is_open(epoch) || first >= copy.end - copy.start {
            return self.stale();
        }
        let start = copy.start + first;
        let end = copy.end.min(start.saturating_add(FETCH_SLOTS));
        let sums = self.table.read(start..end, &mut self.payload);
        self.counters.fetched += u64::from(sums);
        self.answer(from, Header { body: Body::Values { epoch, first, sums }, ..header });
        true
    }

    fn clear(
        &mut self,
        now: Time,
        from: HostId,
        header: Header,
        epoch: u16,
        reservation: u16,
    ) -> bool {
        let Some(job) = self.job_of_master(now, from, &header) else {
            return self.unknown(from, header);
        };
        if job.instance as u16 != reservation {
            return self.other_reservation(from, header);
        }
        if job.is_next_to_finish(epoch) {
            let copy = job.copy_of(epoch);
            job.finish();
            self.table.clear(copy);
        } else if !job.is_finished(epoch) {
            return self.stale();
        }
        self.answer(from, Header { body: Body::Cleared { epoch }, ..header });
        true
    }
}

/// Returns the key and the value of a pair.
#[inline]
fn split(pair: &[u8]) -> (Key, u32) {
    let (key, value) = pair.split_at(KEY_BYTES);
    let key = Key(key.try_into().expect("a pair begins with a key"));
    (key, u32::from_be_bytes(value.try_into().expect("a pair ends with a value")))
}

fn addresses(bytes: &[u8]) -> Vec<HostId> {
    let (addresses, _) = bytes.as_chunks::<ADDRESS_BYTES>();
    addresses.iter().map(|bytes| HostId(u32::from_be_bytes(*bytes))).collect()
}

impl SystemProgram for Program {
    type View = Header;
    type Made = Header;

    #[inline]
    fn handle_packet<H: AnyHeader, S: PayloadStore<H>>(
        &mut self,
        now: Time,
        _port: Port,
        view: Header,
        packet: &mut Packet<H>,
        payloads: &mut S,
    ) -> Verdict {
        if packet.dst != self.me {
            return Verdict::Route;
        }
        let marked = packet.ecn() == Ecn::Marked;
        // Ethernet pads short frames.
        let bytes = payloads.read(packet).get(..view.payload_len() as usize).unwrap_or_default();
        if self.handle(now, packet.src, view, marked, bytes) {
            Verdict::Consume
        } else {
            Verdict::Drop(DropReason::Program)
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        self.expire(now);
    }

    #[inline]
    fn poll_transmit(&mut self, _now: Time) -> Option<Outgoing<'_, Header>> {
        let Reply { src, dst, header, marked } = self.reply.take()?;
        if let Some((worker, dst)) = self.others.pop() {
            self.reply = Some(Reply { src, dst, header: Header { worker, ..header }, marked });
        }
        // What is small and ends a wait goes first; pairs and sums wait in the queues, which mark them.
        let packet = Outgoing::new(src, dst, header);
        let packet = if self.payload.is_empty() {
            Outgoing { priority: 7, ..packet }
        } else {
            let ecn = if marked { Ecn::Marked } else { Ecn::Capable };
            Outgoing { ecn, ..packet }
        };
        Some(packet.with_payload(&self.payload))
    }

    fn poll_timeout(&self) -> Option<Time> {
        let of_vectors = self.vectors.values().map(|job| job.expires);
        self.jobs.values().map(|job| job.expires).chain(of_vectors).min()
    }

    fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Counters { packets, pairs, absorbed, residual, duplicates, .. } = self.counters;
        let Counters { fetched, stale, refused, emitted, .. } = self.counters;
        let Counters { chunks, chunk_duplicates, chunk_sums, .. } = self.counters;
        [
            ("packets_added", packets),
            ("pairs", pairs),
            ("pairs_absorbed", absorbed),
            ("pairs_residual", residual),
            ("duplicates", duplicates),
            ("sums_fetched", fetched),
            ("stale", stale),
            ("jobs_refused", refused),
            ("words_emitted", emitted),
            ("chunks_added", chunks),
            ("chunk_duplicates", chunk_duplicates),
            ("chunk_sums", chunk_sums),
        ]
        .into_iter()
    }
}
