//! Jobs that add up vectors: SwitchML's program, with the cookies, leases and attempts of the jobs that add up pairs.

use core::ops::Range;

use rackweave_core::{HostId, Time};
use rackweave_wire::Id64;
use rackweave_wire::reduce::{
    ADDRESS_BYTES, Body, Chunk, Header, MAX_WORKERS, OpenVector, Refusal,
};

use super::pool::{Added, Pool, registers};
use super::{Program, Reply, addresses};

/// A job that has a pool of slots.
#[derive(Clone, Debug)]
pub(super) struct VectorJob {
    /// The number of the reservation, by which its master recognizes it.
    instance: u32,
    token: u64,
    attempt: u16,
    pub(super) master: HostId,
    workers: Vec<HostId>,
    /// Its slots in the table.
    pub(super) region: Range<u32>,
    pub(super) expires: Time,
    pool: Pool,
}

impl VectorJob {
    /// The number of chunks that it records.
    pub(super) fn entries(&self) -> u32 {
        u32::from(self.pool.size()) * 2
    }
}

impl Program {
    /// Whether a message is of the master of a job that adds up vectors, and of its attempt.
    pub(super) fn is_vector_of_master(&self, from: HostId, header: &Header) -> bool {
        self.vectors.get(&header.job).is_some_and(|job| {
            job.master == from && job.token == header.token.get() && job.attempt == header.attempt
        })
    }

    /// Reserves a pool, renews the reservation, or starts its next attempt.
    pub(super) fn open_vector(
        &mut self,
        now: Time,
        from: HostId,
        header: Header,
        open: OpenVector,
        bytes: &[u8],
    ) -> bool {
        if bytes.len() != usize::from(open.workers) * ADDRESS_BYTES {
            return self.stale();
        }
        let cookie = self.cookie(from, &header);
        if open.cookie.get() != cookie {
            let body = Body::Challenge { instance: self.instance(), cookie: Id64::new(cookie) };
            self.answer(from, Header { body, ..header });
            return true;
        }
        let is_foreign = |job: &VectorJob| job.master != from || job.token != header.token.get();
        let in_use = match (self.jobs.get(&header.job), self.vectors.get(&header.job)) {
            (Some(job), _) => Some(job.expires),
            (None, Some(job)) if is_foreign(job) => Some(job.expires),
            _ => None,
        };
        if let Some(expires) = in_use {
            if now < expires {
                return self.refuse(from, header, Refusal::InUse);
            }
            self.remove(header.job);
        }
        let expires = now.saturating_add(self.config.lease);
        if let Some(job) = self.vectors.get_mut(&header.job) {
            if header.attempt < job.attempt {
                return self.stale();
            }
            if !job.pool.is(open.elements, open.format, open.workers) {
                return self.refuse(from, header, Refusal::Invalid);
            }
            job.expires = expires;
            if header.attempt > job.attempt {
                job.attempt = header.attempt;
                job.workers = addresses(bytes);
                // The registers are overwritten by the first chunk of each slot.
                job.pool.clear();
            }
            let instance = job.instance;
            let body = Body::Opened { slots: u32::from(job.pool.size()), instance };
            self.answer(from, Header { body, ..header });
            return true;
        }
        self.expire(now);
        let (each, ways) = (2 * registers(open.format, open.elements), self.table.ways());
        let wanted = (u32::from(open.pool) * each).next_multiple_of(ways);
        let allowed = self.allowance(from);
        let granted = self.free_region(ways, wanted.min(allowed.slots));
        let size = granted.as_ref().map_or(0, |free| (free.end - free.start) / each);
        let size = (size as u16).min(open.pool);
        let (Some(granted), entries) = (granted.filter(|_| size > 0), u32::from(size) * 2) else {
            return self.refuse(from, header, Refusal::Full);
        };
        if !allowed.has_job || entries > allowed.entries {
            return self.refuse(from, header, Refusal::Full);
        }
        self.entries += entries;
        let end = granted.start + (u32::from(size) * each).next_multiple_of(ways);
        let region = granted.start..end.min(granted.end);
        self.table.clear(region.clone());
        let instance = self.new_reservation();
        let job = VectorJob {
            instance,
            token: header.token.get(),
            attempt: header.attempt,
            master: from,
            workers: addresses(bytes),
            region,
            expires,
            pool: Pool::new(size, open.elements, open.format, open.workers),
        };
        self.vectors.insert(header.job, job);
        let body = Body::Opened { slots: u32::from(size), instance };
        self.answer(from, Header { body, ..header });
        true
    }

    /// Adds up a worker's chunk, and sends the sum to all workers when it is complete.
    pub(super) fn chunk(
        &mut self,
        from: HostId,
        header: Header,
        chunk: Chunk,
        bytes: &[u8],
    ) -> bool {
        let Some(job) = self.vectors.get_mut(&header.job) else { return self.stale() };
        if job.token != header.token.get()
            || job.attempt != header.attempt
            || job.workers.get(usize::from(header.worker)) != Some(&from)
            || bytes.len() != chunk.payload_len() as usize
        {
            return self.stale();
        }
        let range = job.pool.range(chunk.number.get());
        let (start, end) = (job.region.start + range.start, job.region.start + range.end);
        let registers = self.table.registers(start..end.min(job.region.end));
        let added = job.pool.add(header.worker, &chunk, bytes, registers);
        let body = match added {
            Added::Stale => return self.stale(),
            Added::Counted => {
                self.counters.chunks += 1;
                return true;
            }
            Added::Waiting(missing) => {
                self.counters.chunk_duplicates += 1;
                Body::Waiting { number: chunk.number, missing: Id64::new(missing) }
            }
            Added::Complete(sum) => {
                self.counters.chunks += 1;
                self.counters.chunk_sums += 1;
                job.pool.read(&sum, registers, &mut self.payload);
                // The worker whose chunk was the last is first; each other one gets a copy of its own.
                let others = (0..MAX_WORKERS).zip(job.workers.iter().copied());
                self.others.extend(others.filter(|(worker, _)| *worker != header.worker));
                Body::ChunkSum(sum)
            }
            Added::Again(sum) => {
                self.counters.chunk_duplicates += 1;
                job.pool.read(&sum, registers, &mut self.payload);
                Body::ChunkSum(sum)
            }
        };
        self.reply = Some(Reply {
            src: self.me,
            dst: from,
            header: Header { body, ..header },
            marked: false,
        });
        true
    }
}
