//! What is transferred in each period: the matrix server x server x period, the uploads that a switch can aggregate, and
//! the broadcasts that switches replicate.

use std::fmt;

use rackweave_core::Rate;

/// The most bytes of one transfer.
pub const MAX_TRANSFER_BYTES: u64 = 1 << 50;
/// The most bytes of one period, so that no sum of them overflows.
pub const MAX_PERIOD_BYTES: u64 = 1 << 60;

/// The number of a job, by which switches and hosts distinguish the jobs of a pod. Zero is never assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u16);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {}", self.0)
    }
}

/// Bytes from one server to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// The sending server.
    pub src: u32,
    /// The receiving server.
    pub dst: u32,
    /// The bytes on the wire, headers included.
    pub bytes: u64,
}

/// The upload of a job: its workers send key-value pairs to the master, and a programmable `ToR` can aggregate them.
#[derive(Clone, Debug, PartialEq)]
pub struct Upload {
    job: JobId,
    master: u32,
    workers: Vec<(u32, u64)>,
    distinct: u64,
    total: u64,
    exponent: f64,
    master_rate: Option<Rate>,
}

/// The same bytes from one server to several. Switches replicate them, so that no link carries them twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broadcast {
    job: JobId,
    src: u32,
    dsts: Vec<u32>,
    bytes: u64,
}

/// Why a demand is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DemandError {
    /// A server is not in the pod.
    #[error("server {server} does not exist: the pod has servers 0 to {}", servers.saturating_sub(1))]
    NoSuchServer {
        /// The number of the server.
        server: u32,
        /// The servers of the pod.
        servers: u32,
    },
    /// A server sends to itself.
    #[error("server {0} sends to itself")]
    ToItself(u32),
    /// A transfer is too long.
    #[error("a transfer has {0} bytes, above the maximum of 2^50")]
    TooLong(u64),
    /// The transfers of a period are too long.
    #[error("the transfers of one period have more than 2^60 bytes")]
    PeriodTooLong,
    /// An upload has no worker, or only empty ones.
    #[error("the upload of {0} has no worker with data")]
    NoWorkers(JobId),
    /// The number of distinct bytes cannot be right.
    #[error(
        "the distinct bytes of {job}'s upload must be from {low} (its largest worker) to {high} (all workers together), \
         not {distinct}"
    )]
    Distinct {
        /// The job.
        job: JobId,
        /// The distinct bytes.
        distinct: u64,
        /// The bytes of the largest worker.
        low: u64,
        /// The bytes of all workers.
        high: u64,
    },
    /// A job has two uploads in one period.
    #[error("{0} has two uploads in one period")]
    TwoUploads(JobId),
}

impl Upload {
    /// The exponent of Heaps' law for the distinct words of English text. On the text of `dict-gcide` it is 0.64 with the text
    /// in shuffled blocks and 0.67 with contiguous ones, both for 3 and for 7 workers (docs/ops/reduce-plan.md).
    pub const ENGLISH: f64 = 0.65;

    /// Creates an upload of these bytes per worker (a server can have several); `distinct` of them remain when all have
    /// been aggregated. A worker on the master's server sends nothing over the network.
    ///
    /// # Errors
    /// If no worker has data, one has too much, or `distinct` is less than the largest worker's data or more than the sum.
    pub fn new(
        job: JobId,
        master: u32,
        mut workers: Vec<(u32, u64)>,
        distinct: u64,
    ) -> Result<Self, DemandError> {
        workers.retain(|&(_, bytes)| bytes > 0);
        workers.sort_unstable();
        let (low, high) = Self::bounds(job, &workers)?;
        if !(low..=high).contains(&distinct) {
            return Err(DemandError::Distinct { job, distinct, low, high });
        }
        let count = workers.len() as f64;
        let mean = high as f64 / count;
        let exponent = match workers.len() {
            1 => 1.0,
            _ => (libm::log(distinct as f64 / mean) / libm::log(count)).clamp(0.0, 1.0),
        };
        Ok(Self { job, master, workers, distinct, total: high, exponent, master_rate: None })
    }

    /// Creates an upload whose distinct bytes are estimated by Heaps' law: `n` workers have `n^exponent` times the
    /// distinct bytes of one.
    ///
    /// # Errors
    /// If no worker has data, or one has too much.
    pub fn estimated(
        job: JobId,
        master: u32,
        mut workers: Vec<(u32, u64)>,
        exponent: f64,
    ) -> Result<Self, DemandError> {
        workers.retain(|&(_, bytes)| bytes > 0);
        let (low, high) = Self::bounds(job, &workers)?;
        let count = workers.len() as f64;
        let distinct = high as f64 / count * libm::pow(count, exponent);
        Self::new(job, master, workers, (distinct as u64).clamp(low, high))
    }

    /// Returns the bytes of the largest worker, and of all.
    fn bounds(job: JobId, workers: &[(u32, u64)]) -> Result<(u64, u64), DemandError> {
        let Some(low) = workers.iter().map(|&(_, bytes)| bytes).max() else {
            return Err(DemandError::NoWorkers(job));
        };
        if low > MAX_TRANSFER_BYTES {
            return Err(DemandError::TooLong(low));
        }
        let sum: u128 = workers.iter().map(|&(_, bytes)| u128::from(bytes)).sum();
        let high = u64::try_from(sum).ok().filter(|&sum| sum <= MAX_PERIOD_BYTES);
        Ok((low, high.ok_or(DemandError::PeriodTooLong)?))
    }

    /// The same upload to a master that handles what reaches it at this rate, if that is less than its link's: an aggregation spares
    /// it work.
    #[must_use]
    pub const fn with_master_rate(mut self, rate: Option<Rate>) -> Self {
        self.master_rate = rate;
        self
    }

    /// Returns the bytes that take as long on a link of this rate as these take the master, if that is longer than the link
    /// itself takes.
    #[must_use]
    pub fn at_master(&self, bytes: u64, link: Rate) -> u64 {
        let Some(rate) = self.master_rate.filter(|rate| rate.0 > 0 && rate.0 < link.0) else {
            return bytes;
        };
        let stretched = u128::from(bytes) * u128::from(link.0) / u128::from(rate.0);
        u64::try_from(stretched).unwrap_or(u64::MAX).min(MAX_TRANSFER_BYTES).max(bytes)
    }

    /// Returns the job.
    #[must_use]
    pub const fn job(&self) -> JobId {
        self.job
    }

    /// Returns the server to which the workers upload.
    #[must_use]
    pub const fn master(&self) -> u32 {
        self.master
    }

    /// Returns the server and the bytes of each worker, in the order of servers.
    #[must_use]
    pub fn workers(&self) -> &[(u32, u64)] {
        &self.workers
    }

    /// Returns the number of servers that take part.
    #[must_use]
    pub fn servers(&self) -> usize {
        let others = self.workers.iter().filter(|it| it.0 != self.master);
        let mut last = None;
        1 + others.filter(|it| last.replace(it.0) != Some(it.0)).count()
    }

    /// Returns the bytes that remain when the pairs of all workers have been aggregated.
    #[must_use]
    pub const fn distinct(&self) -> u64 {
        self.distinct
    }

    /// Returns the bytes that remain of some workers' data when it has been aggregated: by Heaps' law, a power of
    /// the share of the data, with the exponent that gives all workers' distinct bytes. `sum` is the data of these workers, and
    /// `max` that of the largest.
    #[must_use]
    pub fn union(&self, sum: u64, max: u64) -> u64 {
        if sum >= self.total {
            return self.distinct;
        }
        if sum <= max {
            return sum;
        }
        let share = libm::pow(sum as f64 / self.total as f64, self.exponent);
        let bytes = self.distinct as f64 * share;
        ((bytes + 0.5) as u64).clamp(max.min(self.distinct), sum.min(self.distinct))
    }
}

impl Broadcast {
    /// Creates a broadcast. The source and repeated servers are ignored among `dsts`.
    ///
    /// # Errors
    /// If it is too long.
    pub fn new(job: JobId, src: u32, mut dsts: Vec<u32>, bytes: u64) -> Result<Self, DemandError> {
        if bytes > MAX_TRANSFER_BYTES {
            return Err(DemandError::TooLong(bytes));
        }
        dsts.sort_unstable();
        dsts.dedup();
        dsts.retain(|&dst| dst != src);
        Ok(Self { job, src, dsts, bytes })
    }

    /// Returns the job.
    #[must_use]
    pub const fn job(&self) -> JobId {
        self.job
    }

    /// Returns the sending server.
    #[must_use]
    pub const fn src(&self) -> u32 {
        self.src
    }

    /// Returns the receiving servers, in ascending order.
    #[must_use]
    pub fn dsts(&self) -> &[u32] {
        &self.dsts
    }

    /// Returns the bytes that each of them receives.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The demand of one period.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Period {
    flows: Vec<Flow>,
    uploads: Vec<Upload>,
    broadcasts: Vec<Broadcast>,
    bytes: u64,
}

impl Period {
    /// Creates a period in a pod with `servers` servers. Flows between the same servers are added up.
    ///
    /// # Errors
    /// If a server does not exist or sends to itself, a job uploads twice, or there are too many bytes.
    pub fn new(
        servers: u32,
        mut flows: Vec<Flow>,
        mut uploads: Vec<Upload>,
        broadcasts: Vec<Broadcast>,
    ) -> Result<Self, DemandError> {
        let exists = |server| match server < servers {
            true => Ok(()),
            false => Err(DemandError::NoSuchServer { server, servers }),
        };
        let mut bytes = 0_u128;
        for flow in &flows {
            exists(flow.src)?;
            exists(flow.dst)?;
            if flow.src == flow.dst {
                return Err(DemandError::ToItself(flow.src));
            }
            if flow.bytes > MAX_TRANSFER_BYTES {
                return Err(DemandError::TooLong(flow.bytes));
            }
            bytes += u128::from(flow.bytes);
        }
        uploads.sort_by_key(|upload| upload.job);
        for pair in uploads.windows(2) {
            if pair[0].job == pair[1].job {
                return Err(DemandError::TwoUploads(pair[0].job));
            }
        }
        for upload in &uploads {
            exists(upload.master)?;
            for &(server, _) in &upload.workers {
                exists(server)?;
            }
            bytes += u128::from(upload.total);
        }
        for broadcast in &broadcasts {
            exists(broadcast.src)?;
            for &server in &broadcast.dsts {
                exists(server)?;
            }
            bytes += u128::from(broadcast.bytes) * broadcast.dsts.len() as u128;
        }
        let bytes = u64::try_from(bytes).ok().filter(|&bytes| bytes <= MAX_PERIOD_BYTES);
        let bytes = bytes.ok_or(DemandError::PeriodTooLong)?;
        flows.retain(|flow| flow.bytes > 0);
        flows.sort_unstable();
        flows.dedup_by(|next, kept| {
            let same = (next.src, next.dst) == (kept.src, kept.dst);
            if same {
                kept.bytes += next.bytes;
            }
            same
        });
        Ok(Self { flows, uploads, broadcasts, bytes })
    }

    /// Returns the flows in the order of sender and receiver, each pair of servers once.
    #[must_use]
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Returns the uploads, in the order of their jobs.
    #[must_use]
    pub fn uploads(&self) -> &[Upload] {
        &self.uploads
    }

    /// Returns the broadcasts.
    #[must_use]
    pub fn broadcasts(&self) -> &[Broadcast] {
        &self.broadcasts
    }

    /// Returns the bytes that servers receive if nothing is aggregated.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_master_takes_as_long_as_its_rate_says() {
        let upload = Upload::new(JobId(1), 0, vec![(1, 1000), (2, 1000)], 1500).unwrap();
        let link = Rate::from_gbps(10);
        let of = |gbps| upload.clone().with_master_rate(Some(Rate::from_gbps(gbps)));
        assert_eq!(upload.at_master(1500, link), 1500);
        assert_eq!(of(2).at_master(1500, link), 7500);
        assert_eq!(of(20).at_master(1500, link), 1500, "its link is slower");
        assert_eq!(of(0).at_master(1500, link), 1500, "no rate");
    }

    #[test]
    fn heaps_law_predicts_the_distinct_words_of_fewer_workers() {
        // dict-gcide in shuffled blocks, in pairs (facts of docs/ops/reduce-plan.md): 7 workers have 443,422 pairs, 3 of other
        // sizes 327,046, and both 219,512 distinct ones. 3 of 7 workers are predicted from the ends of the curve.
        let workers = |n: u32, pairs: u64| (0..n).map(|w| (w, pairs / u64::from(n))).collect();
        let seven = Upload::new(JobId(1), 9, workers(7, 443_422), 219_512).unwrap();
        let three = Upload::new(JobId(1), 9, workers(3, 327_046), 219_512).unwrap();
        assert!((seven.exponent - three.exponent).abs() < 0.03);
        let estimated =
            Upload::estimated(JobId(1), 9, workers(7, 443_422), Upload::ENGLISH).unwrap();
        assert!(estimated.distinct().abs_diff(219_512) < 219_512 / 20, "{estimated:?}");
        assert_eq!(seven.union(443_422, 63_346), 219_512);
        assert_eq!(seven.union(63_346, 63_346), 63_346, "a worker's keys are distinct");
    }

    #[test]
    fn impossible_demands_are_refused() {
        let upload = |distinct| Upload::new(JobId(7), 0, vec![(1, 10), (2, 30)], distinct);
        assert!(upload(30).is_ok() && upload(40).is_ok());
        assert_eq!(
            upload(41).unwrap_err().to_string(),
            "the distinct bytes of job 7's upload must be from 30 (its largest worker) to 40 (all workers together), not 41"
        );
        assert!(upload(29).is_err());
        assert_eq!(
            Upload::new(JobId(7), 0, vec![(1, 0)], 0),
            Err(DemandError::NoWorkers(JobId(7)))
        );
        let flow = |src, dst, bytes| Period::new(4, vec![Flow { src, dst, bytes }], vec![], vec![]);
        assert_eq!(flow(1, 1, 5), Err(DemandError::ToItself(1)));
        assert_eq!(flow(1, 4, 5), Err(DemandError::NoSuchServer { server: 4, servers: 4 }));
        assert_eq!(flow(1, 2, u64::MAX), Err(DemandError::TooLong(u64::MAX)));
        let twice = vec![upload(30).unwrap(), upload(30).unwrap()];
        let twice = Period::new(4, vec![], twice, vec![]);
        assert_eq!(twice, Err(DemandError::TwoUploads(JobId(7))));
        let flows = vec![Flow { src: 0, dst: 1, bytes: MAX_TRANSFER_BYTES }; 1025];
        assert_eq!(Period::new(4, flows, vec![], vec![]), Err(DemandError::PeriodTooLong));
    }

    #[test]
    fn flows_of_the_same_servers_are_one() {
        let flow = |src, dst, bytes| Flow { src, dst, bytes };
        let flows = vec![flow(1, 0, 3), flow(0, 1, 5), flow(1, 0, 4), flow(2, 0, 0)];
        let period = Period::new(3, flows, vec![], vec![]).unwrap();
        assert_eq!(period.flows(), [flow(0, 1, 5), flow(1, 0, 7)]);
        assert_eq!(period.bytes(), 12);
    }
}
