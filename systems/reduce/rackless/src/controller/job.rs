//! A job as its master declares it, and how far it has come.

use rackweave_core::{Rate, Span, Time};
use serde::{Deserialize, Serialize};

use super::record::{Grant, JobRecord, Learned, Measured};
use crate::demand::JobId;
use crate::jobs::{Distribution, Job, Shuffle};

/// The most workers of a job.
const MOST_WORKERS: usize = 4096;
/// The longest name of a job or tenant.
pub const LONGEST_NAME: usize = 128;
/// The longest phase that a job can declare.
const LONGEST_MS: u64 = 7 * 24 * 3600 * 1000;

/// How far a job has come (P4-ORDC, section 1). A job passes these in order, and may leave some out.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It has its number.
    #[default]
    Registered,
    /// The master distributes the input.
    Map,
    /// Workers compute, and exchange data among them.
    Shuffle,
    /// The workers are ready to upload, and wait for a grant.
    Ready,
    /// They upload.
    Upload,
    /// The master computes the result.
    Reduce,
}

impl Phase {
    /// Returns the word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Map => "map",
            Self::Shuffle => "shuffle",
            Self::Ready => "ready",
            Self::Upload => "upload",
            Self::Reduce => "reduce",
        }
    }
}

/// What a master declares of its job. What is missing is taken from earlier jobs of the same name, or not planned for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Declared {
    /// The kind of the job: jobs of one name of a tenant are taken to be alike.
    pub name: String,
    /// The server of the master.
    pub master: u32,
    /// The servers of the workers; empty if they are not known yet.
    pub workers: Vec<u32>,
    /// The bytes of the input, which the master distributes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<u64>,
    /// How.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Distributed>,
    /// The time that workers compute after they have their input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map_ms: Option<u64>,
    /// The bytes that workers send one another: the sender's and receiver's place in the list of workers, and the bytes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shuffle: Vec<(usize, usize, u64)>,
    /// The time that workers compute before they upload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub combine_ms: Option<u64>,
    /// The bytes that each worker uploads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload: Option<Vec<u64>>,
    /// The bytes that are left of all uploads when they are added up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distinct: Option<u64>,
    /// The time that the master computes after the upload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduce_ms: Option<u64>,
    /// The rate at which the master handles what reaches it, in bit/s. Where it is below the link's, aggregation saves more time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduce_bps: Option<u64>,
}

/// How the input is distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distributed {
    /// Every worker gets an equal part.
    Scatter,
    /// Every worker gets all of it, in a separate copy.
    Unicast,
    /// Every worker gets all of it, and switches replicate it.
    Multicast,
}

/// Why a declaration makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeclarationError {
    /// The name cannot be shown, or is too long.
    #[error("a name has 1 to {LONGEST_NAME} printable characters and no `/`")]
    Name,
    /// There are too many workers.
    #[error("a job has at most {MOST_WORKERS} workers, not {0}")]
    Workers(usize),
    /// The same pair of workers is named too often.
    #[error("a shuffle has at most {MOST_WORKERS} transfers, not {0}")]
    Shuffle(usize),
    /// A phase takes too long.
    #[error("`{key}` is {ms} ms: a phase takes at most 7 days")]
    Duration {
        /// The field.
        key: &'static str,
        /// Its value.
        ms: u64,
    },
}

/// Checks a name of a job or tenant.
///
/// # Errors
/// If it is empty, too long or not printable, or has a `/`.
pub fn check_name(name: &str) -> Result<(), DeclarationError> {
    let is_good = |letter: char| !letter.is_control() && letter != '/';
    let fits = (1..=LONGEST_NAME).contains(&name.chars().count());
    if fits && name.chars().all(is_good) { Ok(()) } else { Err(DeclarationError::Name) }
}

impl Declared {
    /// Checks what does not depend on the pod.
    ///
    /// # Errors
    /// If a name, a list or a duration is out of bounds.
    pub fn check(&self) -> Result<(), DeclarationError> {
        check_name(&self.name)?;
        if self.workers.len() > MOST_WORKERS {
            return Err(DeclarationError::Workers(self.workers.len()));
        }
        if self.shuffle.len() > MOST_WORKERS {
            return Err(DeclarationError::Shuffle(self.shuffle.len()));
        }
        let durations = [
            ("map_ms", self.map_ms),
            ("combine_ms", self.combine_ms),
            ("reduce_ms", self.reduce_ms),
        ];
        for (key, ms) in durations {
            if let Some(ms) = ms.filter(|ms| *ms > LONGEST_MS) {
                return Err(DeclarationError::Duration { key, ms });
            }
        }
        Ok(())
    }

    /// The job, with what was learned in place of what is not declared.
    #[must_use]
    pub fn job(&self, learned: Option<&Learned>) -> Job {
        let learned = learned.copied().unwrap_or_default();
        let span = |ms: Option<u64>, ns: Option<u64>| match (ms, ns) {
            (Some(ms), _) => Span::from_ms(ms),
            (None, ns) => Span::from_ns(ns.unwrap_or(0)),
        };
        let workers = self.workers.len() as u64;
        let each = learned.upload.checked_div(workers).unwrap_or(0);
        let upload = self.upload.clone().unwrap_or_else(|| vec![each; self.workers.len()]);
        // Averages of other jobs may contradict this one's declaration.
        let sum = upload.iter().fold(0_u64, |sum, &bytes| sum.saturating_add(bytes));
        let low = upload.iter().max();
        let distinct = self.distinct.or_else(|| {
            let learned = Some(learned.distinct).filter(|bytes| *bytes > 0)?;
            Some(learned.clamp(*low?, sum.max(*low?)))
        });
        let shuffle =
            self.shuffle.iter().map(|&(from, to, bytes)| Shuffle { from, to, bytes }).collect();
        Job {
            master: self.master,
            workers: self.workers.clone(),
            input: self.input.unwrap_or(0),
            distribution: match self.distribution {
                None | Some(Distributed::Scatter) => Distribution::Scatter,
                Some(Distributed::Unicast) => Distribution::Unicast,
                Some(Distributed::Multicast) => Distribution::Multicast,
            },
            map: span(self.map_ms, learned.measured.shuffle_ns),
            shuffle,
            combine: span(self.combine_ms, None),
            upload,
            distinct,
            reduce: span(self.reduce_ms, learned.measured.reduce_ns),
            reduce_rate: self.reduce_bps.filter(|bps| *bps > 0).map(Rate),
        }
    }
}

/// A registered job.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its number.
    pub id: JobId,
    pub(super) tenant: String,
    pub(super) nonce: u64,
    pub(super) declared: Declared,
    pub(super) phase: Phase,
    /// When the phase began; `None` if that was before a restart.
    pub(super) since: Option<Time>,
    /// When its master was heard of for the last time.
    pub(super) heard: Time,
    pub(super) measured: Measured,
    /// The order in which it became ready.
    pub(super) ready: u64,
    /// Since when its circuits are being changed, and the version of them that it needs.
    pub(super) chosen: Option<(Time, u64)>,
    pub(super) grant: Option<Grant>,
}

impl Entry {
    /// Whose it is.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The number under which its master has registered it.
    #[must_use]
    pub const fn nonce(&self) -> u64 {
        self.nonce
    }

    /// What it has declared.
    #[must_use]
    pub const fn declared(&self) -> &Declared {
        &self.declared
    }

    /// How far it has come.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Since when; `None` if that was before the controller's start.
    #[must_use]
    pub const fn since(&self) -> Option<Time> {
        self.since
    }

    /// How long its phases took.
    #[must_use]
    pub const fn measured(&self) -> &Measured {
        &self.measured
    }

    /// What it may upload with, once it may.
    #[must_use]
    pub const fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// Its key among what is learned.
    pub(super) fn kind(&self) -> String {
        format!("{}/{}", self.tenant, self.declared.name)
    }

    /// The servers of its master and workers.
    pub(super) fn group(&self) -> Vec<u32> {
        let mut servers = self.declared.workers.clone();
        servers.push(self.declared.master);
        servers.sort_unstable();
        servers.dedup();
        servers
    }

    /// Goes on to a later phase. Returns whether that is one.
    pub(super) fn advance(&mut self, now: Time, phase: Phase) -> bool {
        if phase <= self.phase {
            return false;
        }
        let took = self.since.map(|since| now.since(since).as_ns());
        let place = match self.phase {
            Phase::Map => Some(&mut self.measured.map_ns),
            Phase::Shuffle => Some(&mut self.measured.shuffle_ns),
            Phase::Upload => Some(&mut self.measured.upload_ns),
            Phase::Reduce => Some(&mut self.measured.reduce_ns),
            Phase::Registered | Phase::Ready => None,
        };
        if let Some(place) = place {
            *place = took;
        }
        (self.phase, self.since) = (phase, Some(now));
        true
    }

    pub(super) fn record(&self) -> JobRecord {
        JobRecord {
            job: self.id.0,
            tenant: self.tenant.clone(),
            nonce: self.nonce,
            declared: self.declared.clone(),
            phase: self.phase,
            measured: self.measured,
            ready: self.ready,
            grant: self.grant.clone(),
        }
    }

    /// The job after a restart. Its master has the time to be heard of that all have.
    pub(super) fn restored(record: JobRecord, now: Time) -> Self {
        let JobRecord { job, tenant, nonce, declared, phase, measured, ready, grant } = record;
        let (id, since, chosen) = (JobId(job), None, None);
        let heard = now;
        Self { id, tenant, nonce, declared, phase, since, heard, measured, ready, chosen, grant }
    }
}
