//! What of a controller survives a restart.

use serde::{Deserialize, Serialize};

use super::job::{Declared, Phase};
use super::message::Wiring;

/// What a controller knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Its number, which no other controller has.
    pub identity: u64,
    /// Its term.
    pub term: u64,
    /// The version of the circuits that it has commanded last.
    pub version: u64,
    /// These circuits; `None` if it has not changed any.
    pub wiring: Option<Wiring>,
    /// The number from which on the next free job number is looked for.
    pub next_job: u16,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Its number.
    pub job: u16,
    /// Whose it is.
    pub tenant: String,
    /// The number under which its master has registered it, so that a repeated registration is recognised.
    pub nonce: u64,
    /// What it has declared.
    pub declared: Declared,
    /// How far it has come.
    pub phase: Phase,
    /// How long the phases took that have ended.
    pub measured: Measured,
    /// The order in which it became ready to upload.
    pub ready: u64,
    /// The slots that it has been granted.
    pub grant: Option<Grant>,
}

/// How long the phases of a job took, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// The distribution of the input.
    pub map_ns: Option<u64>,
    /// From there until the workers were ready to upload.
    pub shuffle_ns: Option<u64>,
    /// The upload.
    pub upload_ns: Option<u64>,
    /// The reduction after it.
    pub reduce_ns: Option<u64>,
}

/// An upload may go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// What the master calls the switch that adds up; empty: none.
    pub switch: String,
    /// The slots to ask it for.
    pub slots: u32,
    /// The `ToR` of the slots.
    pub tor: u16,
}

/// What was learned from earlier jobs of a name: averages in which the newest counts a quarter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learned {
    /// The number of jobs.
    pub runs: u64,
    /// The phases.
    pub measured: Measured,
    /// The bytes of all workers' uploads.
    pub upload: u64,
    /// The bytes that were left of them.
    pub distinct: u64,
}

impl Learned {
    /// Takes in a job that has ended.
    pub(super) fn add(&mut self, measured: &Measured, upload: u64, distinct: u64) {
        let is_first = self.runs == 0;
        let mean = |old: u64, new: u64| match (is_first || old == 0, new) {
            (_, 0) => old,
            (true, new) => new,
            (false, new) => old - old / 4 + new / 4,
        };
        let optional = |old: Option<u64>, new: Option<u64>| match (old, new) {
            (Some(old), Some(new)) => Some(mean(old, new)),
            (old, new) => new.or(old),
        };
        self.measured = Measured {
            map_ns: optional(self.measured.map_ns, measured.map_ns),
            shuffle_ns: optional(self.measured.shuffle_ns, measured.shuffle_ns),
            upload_ns: optional(self.measured.upload_ns, measured.upload_ns),
            reduce_ns: optional(self.measured.reduce_ns, measured.reduce_ns),
        };
        self.upload = mean(self.upload, upload);
        self.distinct = mean(self.distinct, distinct);
        self.runs = self.runs.saturating_add(1);
    }
}

/// What has changed and must be stored.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The controller itself.
    Head(Head),
    /// A job.
    Job(Box<JobRecord>),
    /// A job is over: its record can go.
    NoJob(u16),
    /// What was learned of the jobs of a name.
    Learned(String, Learned),
    /// That is too old to be kept.
    NotLearned(String),
}

/// What a controller has stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Saved {
    /// The controller; `None` if it is new.
    pub head: Option<Head>,
    /// Its jobs.
    pub jobs: Vec<JobRecord>,
    /// What it has learned.
    pub learned: Vec<(String, Learned)>,
}

/// Where a controller stores what must survive a restart.
pub trait Store {
    /// Why it does not.
    type Error;

    /// Stores all of these changes, or none. They have survived when this returns.
    ///
    /// # Errors
    /// If the storage fails.
    fn write(&mut self, changes: &[Change]) -> Result<(), Self::Error>;
}

impl Saved {
    /// Takes in changes, as a store does.
    pub fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            match change.clone() {
                Change::Head(head) => self.head = Some(head),
                Change::Job(record) => {
                    self.jobs.retain(|it| it.job != record.job);
                    self.jobs.push(*record);
                }
                Change::NoJob(job) => self.jobs.retain(|it| it.job != job),
                Change::Learned(name, learned) => {
                    self.learned.retain(|(it, _)| *it != name);
                    self.learned.push((name, learned));
                }
                Change::NotLearned(name) => self.learned.retain(|(it, _)| *it != name),
            }
        }
    }
}
