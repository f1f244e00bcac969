//! The job handler: numbers of jobs, and the phases that each has announced.

use std::collections::BTreeMap;

use rackweave_core::{Rate, Span};

use crate::demand::{DemandError, JobId, Upload};

/// How the master distributes the input in the map phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// Every worker gets an equal part.
    #[default]
    Scatter,
    /// Every worker gets all of it, in a separate copy.
    Unicast,
    /// Every worker gets all of it, and switches replicate it.
    Multicast,
}

/// Bytes that a worker sends to another in the local shuffle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shuffle {
    /// The index of the sending worker in [`Job::workers`].
    pub from: usize,
    /// The index of the receiving worker.
    pub to: usize,
    /// The bytes.
    pub bytes: u64,
}

/// A MapReduce job as it registers: the durations of its phases of computation, and the bytes of its phases of
/// communication (P4-ORDC paper, section 2).
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The server of the master.
    pub master: u32,
    /// The servers of the workers. A server can have several. Empty as long as they are not known: nothing of the job can be
    /// planned then.
    pub workers: Vec<u32>,
    /// The bytes of the input, which the master distributes.
    pub input: u64,
    /// How it does so.
    pub distribution: Distribution,
    /// The time that a worker computes after it has its input.
    pub map: Span,
    /// The bytes between workers after that. Most jobs shuffle inside each worker only, and have none.
    pub shuffle: Vec<Shuffle>,
    /// The time that a worker computes before its upload: sorting and combining.
    pub combine: Span,
    /// The bytes that each worker uploads, in the order of the workers.
    pub upload: Vec<u64>,
    /// The bytes that are left of all uploads when they are aggregated; `None` if unknown, to be estimated.
    pub distinct: Option<u64>,
    /// The time that the master computes after the upload.
    pub reduce: Span,
    /// The rate at which the master handles what reaches it; `None`: as fast as its link.
    pub reduce_rate: Option<Rate>,
}

/// Why a job is not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// No job has this number.
    #[error("there is no {0}")]
    NoSuchJob(JobId),
    /// All numbers are in use.
    #[error("all {} job numbers are in use", u16::MAX)]
    NoJobId,
    /// The lists of workers and uploads differ.
    #[error("the job has {workers} workers, but sizes of {uploads} uploads")]
    Uploads {
        /// The number of workers.
        workers: usize,
        /// The number of sizes.
        uploads: usize,
    },
    /// A shuffle names a worker that is not there.
    #[error("the shuffle names worker {worker}, but the job has {workers}")]
    NoSuchWorker {
        /// The index.
        worker: usize,
        /// The number of workers.
        workers: usize,
    },
    /// The job's transfers are impossible.
    #[error(transparent)]
    Demand(#[from] DemandError),
}

/// Assigns numbers to jobs and keeps what they have registered.
#[derive(Clone, Debug)]
pub struct JobHandler {
    servers: u32,
    jobs: BTreeMap<JobId, Job>,
    next: u16,
}

impl JobHandler {
    /// Creates a handler without jobs for a pod with `servers` servers.
    #[must_use]
    pub const fn new(servers: u32) -> Self {
        Self { servers, jobs: BTreeMap::new(), next: 1 }
    }

    /// Registers a job under a number that no other has. Numbers are used in turn, so that a released one rests as long as possible
    /// while packets of its job may still be on the way.
    ///
    /// # Errors
    /// If the job is impossible, or all numbers are in use.
    pub fn register(&mut self, job: Job) -> Result<JobId, JobError> {
        let id = self.free()?;
        self.check(id, &job)?;
        self.jobs.insert(id, job);
        self.next = id.0.checked_add(1).unwrap_or(1);
        Ok(id)
    }

    /// Takes a job that was registered before a restart under its number.
    ///
    /// # Errors
    /// If the job is impossible in this pod.
    pub fn restore(&mut self, id: JobId, job: Job) -> Result<(), JobError> {
        self.check(id, &job)?;
        self.jobs.insert(id, job);
        Ok(())
    }

    /// Replaces what a registered job has announced.
    ///
    /// # Errors
    /// If the job is impossible or not registered; then nothing changes.
    pub fn announce(&mut self, id: JobId, job: Job) -> Result<(), JobError> {
        if !self.jobs.contains_key(&id) {
            return Err(JobError::NoSuchJob(id));
        }
        self.restore(id, job)
    }

    /// Returns the number from which on the next free one is looked for.
    #[must_use]
    pub const fn next(&self) -> u16 {
        self.next
    }

    /// Looks for the next free number from this one on, after a restart.
    #[must_use]
    pub fn starting_at(mut self, next: u16) -> Self {
        self.next = next.max(1);
        self
    }

    /// Releases a number, and returns its job. The switch must have cleared the job's slots before.
    pub fn release(&mut self, id: JobId) -> Option<Job> {
        self.jobs.remove(&id)
    }

    /// Returns a registered job.
    #[must_use]
    pub fn get(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id)
    }

    /// Returns the registered jobs in the order of their numbers.
    pub fn jobs(&self) -> impl Iterator<Item = (JobId, &Job)> {
        self.jobs.iter().map(|(&id, job)| (id, job))
    }

    fn free(&self) -> Result<JobId, JobError> {
        // The first gap in the numbers from `next` on, then in those before it.
        let gap = |from: u16, to: u16| {
            let mut expected = from;
            for (id, _) in self.jobs.range(JobId(from)..=JobId(to)) {
                if id.0 != expected {
                    return Some(JobId(expected));
                }
                expected = expected.checked_add(1)?;
            }
            (expected <= to).then_some(JobId(expected))
        };
        let wrapped = || (self.next > 1).then(|| gap(1, self.next - 1)).flatten();
        gap(self.next, u16::MAX).or_else(wrapped).ok_or(JobError::NoJobId)
    }

    fn check(&self, id: JobId, job: &Job) -> Result<(), JobError> {
        let workers = job.workers.len();
        if job.upload.len() != workers {
            return Err(JobError::Uploads { workers, uploads: job.upload.len() });
        }
        for &server in job.workers.iter().chain([&job.master]) {
            if server >= self.servers {
                return Err(DemandError::NoSuchServer { server, servers: self.servers }.into());
            }
        }
        let long = job.shuffle.iter().map(|it| it.bytes).chain([job.input]);
        let copies = workers as u64;
        for bytes in long {
            if bytes.saturating_mul(copies) > crate::demand::MAX_TRANSFER_BYTES {
                return Err(DemandError::TooLong(bytes).into());
            }
        }
        for worker in job.shuffle.iter().flat_map(|it| [it.from, it.to]) {
            if worker >= workers {
                return Err(JobError::NoSuchWorker { worker, workers });
            }
        }
        if job.upload.iter().any(|&bytes| bytes > 0) {
            job.upload_of(id)?;
        }
        Ok(())
    }
}

impl Job {
    /// Returns the job's upload.
    ///
    /// # Errors
    /// If no worker has data, one has too much, or the distinct bytes are impossible.
    pub fn upload_of(&self, id: JobId) -> Result<Upload, DemandError> {
        let workers = self.workers.iter().copied().zip(self.upload.iter().copied()).collect();
        let upload = match self.distinct {
            Some(distinct) => Upload::new(id, self.master, workers, distinct),
            None => Upload::estimated(id, self.master, workers, Upload::ENGLISH),
        };
        Ok(upload?.with_master_rate(self.reduce_rate))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn job(master: u32, workers: &[u32]) -> Job {
        Job {
            master,
            workers: workers.to_vec(),
            input: 80_000_000,
            distribution: Distribution::Scatter,
            map: Span::from_ms(100),
            shuffle: Vec::new(),
            combine: Span::from_ms(50),
            upload: vec![10_000_000; workers.len()],
            distinct: None,
            reduce: Span::from_ms(20),
            reduce_rate: None,
        }
    }

    #[test]
    fn numbers_are_reused_after_release_only_and_as_late_as_possible() {
        let mut handler = JobHandler::new(8);
        let mut ids = Vec::new();
        for _ in 0..u16::MAX {
            ids.push(handler.register(job(0, &[1])).unwrap());
        }
        let expected: Vec<_> = (1..=u16::MAX).map(JobId).collect();
        assert_eq!(ids, expected);
        assert_eq!(handler.register(job(0, &[1])), Err(JobError::NoJobId));
        assert!(handler.release(JobId(7)).is_some() && handler.release(JobId(3)).is_some());
        assert!(handler.release(JobId(3)).is_none());
        assert_eq!(handler.register(job(0, &[1])), Ok(JobId(3)));
        handler.release(JobId(3));
        assert_eq!(handler.register(job(0, &[1])), Ok(JobId(7)), "3 has just been released");
        assert_eq!(handler.register(job(0, &[1])), Ok(JobId(3)));
    }

    #[test]
    fn impossible_jobs_are_refused_and_take_no_number() {
        let mut handler = JobHandler::new(8);
        let mut refused = |change: fn(&mut Job)| {
            let mut job = job(0, &[1, 2]);
            change(&mut job);
            handler.register(job).unwrap_err().to_string()
        };
        assert_eq!(
            refused(|job| job.workers.clear()),
            "the job has 0 workers, but sizes of 2 uploads"
        );
        assert_eq!(
            refused(|job| job.master = 8),
            "server 8 does not exist: the pod has servers 0 to 7"
        );
        let sizes = refused(|job| job.upload = vec![1]);
        assert_eq!(sizes, "the job has 2 workers, but sizes of 1 uploads");
        let shuffle = refused(|job| job.shuffle = vec![Shuffle { from: 0, to: 2, bytes: 1 }]);
        assert_eq!(shuffle, "the shuffle names worker 2, but the job has 2");
        assert!(refused(|job| job.distinct = Some(1)).contains("distinct bytes"));
        assert!(refused(|job| job.input = u64::MAX).contains("2^50"));
        assert_eq!(handler.jobs().count(), 0);
        assert_eq!(handler.register(job(0, &[1])), Ok(JobId(1)));
    }
}
