//! The results of jobs in `summary.json`.

use rackweave_aggregation::switch;
use rackweave_core::{FailReason, Time};
use rackweave_sim::Fabric;
use rackweave_sim::result::{MessageRecord, Outcome, RunResult};
use serde::{Deserialize, Serialize};

use super::ReduceConfig;
use super::job::{Job, Record};
use super::turns::Turns;
use crate::results::Range;

/// The results of the jobs of a run.
#[derive(Clone, Debug, Default)]
pub struct ReduceResult {
    /// The jobs and how far they have come, by their starts.
    pub jobs: Vec<(Job, Record)>,
    /// What the switches have done, in total.
    pub switches: switch::Counters,
    /// The bytes on links between switches.
    pub trunk_bytes: u64,
    /// How often the control plane has changed circuits.
    pub reconfigurations: u64,
    /// The packets that were lost because ports were dark.
    pub lost_in_moves: u64,
    /// The number of groups of hosts that jobs run on by turns; 0 without groups.
    pub groups: usize,
    /// Times at which completed jobs are counted.
    pub marks: Vec<Time>,
}

impl ReduceResult {
    /// The results of a run in which nothing has happened yet.
    pub fn of(config: &ReduceConfig) -> Self {
        let marks = config.marks.iter().map(|mark| Time::ZERO + *mark).collect();
        Self { groups: config.groups.len(), marks, ..Self::default() }
    }

    /// Adds what one switch has counted.
    pub(super) fn add_switch(&mut self, counts: &switch::Counters) {
        let all = &mut self.switches;
        all.packets += counts.packets;
        all.pairs += counts.pairs;
        all.absorbed += counts.absorbed;
        all.residual += counts.residual;
        all.duplicates += counts.duplicates;
        all.fetched += counts.fetched;
        all.stale += counts.stale;
        all.refused += counts.refused;
        all.emitted += counts.emitted;
    }

    /// Inserts each job before the other messages of a run, as its first stream. The ideal time of a job is that of its data to one
    /// host.
    pub fn put_into(&self, fabric: &Fabric, run: &mut RunResult) {
        let framing = rackweave_core::Framing::UDP;
        let message = |(job, record): &(Job, Record)| {
            let dst = job.workers.iter().copied().find(|worker| *worker != job.master);
            let dst = dst.unwrap_or(job.master);
            MessageRecord {
                stream: 0,
                src: job.master,
                dst,
                bytes: job.bytes,
                start: job.start,
                ideal: fabric.ideal(job.master, dst, job.bytes, framing),
                outcome: match (record.finished, record.failed) {
                    (_, Some(_)) => Outcome::Failed(FailReason::PeerSilent),
                    (Some(at), None) => Outcome::Completed(at),
                    (None, None) => Outcome::Unfinished,
                },
            }
        };
        let jobs: Vec<_> = self.jobs.iter().map(message).collect();
        let finished = self.jobs.iter().filter(|(_, record)| record.finished.is_some());
        run.delivered_bytes.insert(0, finished.map(|(job, _)| job.bytes).sum());
        run.delivered_by_sender.clear();
        run.messages.splice(0..0, jobs);
        let first = self.jobs.iter().map(|(job, _)| job.start).min();
        let last = self.jobs.iter().filter_map(|(_, record)| record.finished).max();
        if let (Some(first), Some(last)) = (first, last) {
            run.measured = last.since(first);
        }
    }
}

/// The object `reduce` of a point in `summary.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReduceSummary {
    /// The time of a job from its start until its result is there: the job completion time.
    pub jct_us: Range,
    /// The time of a job's upload.
    pub upload_us: Range,
    /// The number of jobs that finished.
    pub finished: u64,
    /// The number of jobs that finished with a result equal to the text.
    pub exact: u64,
    /// Words that results do not have, for each distinct word of the texts. Not 0 only with the published rule.
    pub words_missing: f64,
    /// Words that results have with a wrong number, likewise.
    pub words_wrong: f64,
    /// Occurrences that results lack, for each of the texts.
    pub occurrences_missing: f64,
    /// The number of jobs that failed or were not finished at the end.
    pub unfinished: u64,
    /// Pairs and sums that reached masters, for each pair that workers had.
    pub to_master: f64,
    /// The least that could: distinct words for each pair.
    pub to_master_bound: f64,
    /// Pairs that switches added to a sum, for each pair that workers had.
    pub absorbed: f64,
    /// The bytes on links between switches.
    pub trunk_bytes: u64,
    /// Packets of pairs that switches had handled before.
    pub duplicates: u64,
    /// How often the control plane has changed circuits.
    pub reconfigurations: u64,
    /// The packets of jobs and of all else that were lost because ports were dark.
    pub lost_in_moves: u64,
    /// The share of the time of uploads in which more than one was under way.
    pub upload_overlap: f64,
    /// Of two uploads in succession, the share that are of different groups of hosts.
    pub turns: f64,
    /// The share of the time of uploads in which a job of another group was before its upload: in its map or local shuffle.
    pub beside_map: f64,
    /// The number of jobs that were finished at certain times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<MarkSummary>,
    /// The jobs.
    pub jobs: Vec<JobSummary>,
}

/// The number of jobs that were finished at a time.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MarkSummary {
    /// The time.
    pub at_us: f64,
    /// The number of jobs.
    pub finished: u64,
}

/// A job in `summary.json` and `reduce_jobs.csv`. Times that have not come are NaN (`null` in JSON).
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobSummary {
    /// The job's number.
    pub job: u16,
    /// The master's host.
    pub master: u32,
    /// The number of workers.
    pub workers: u64,
    /// Their hosts.
    pub hosts: Vec<u32>,
    /// The length of the data.
    pub bytes: u64,
    /// When it started.
    pub start_us: f64,
    /// When its workers were ready to upload.
    pub ready_us: f64,
    /// When the upload began.
    pub granted_us: f64,
    /// When the master had all sums.
    pub uploaded_us: f64,
    /// When the result was there.
    pub finished_us: f64,
    /// Whether the result was equal to the text.
    pub exact: bool,
    /// The number of distinct words of the text.
    pub words: u64,
    /// The words of the text that the result does not have.
    pub missing: u64,
    /// The words that the result has with a wrong number.
    pub wrong: u64,
    /// The number of pairs of all workers.
    pub pairs: u64,
    /// The pairs and sums that reached the master.
    pub received: u64,
    /// The number of epochs.
    pub epochs: u64,
    /// The number of slots.
    pub slots: u64,
}

fn us(time: Option<Time>) -> f64 {
    time.map_or(f64::NAN, Time::as_us_f64)
}

impl ReduceSummary {
    /// Summarises the results of a run.
    #[must_use]
    pub fn new(result: &ReduceResult) -> Self {
        let done = || result.jobs.iter().filter(|(_, record)| record.finished.is_some());
        let span = |from: Option<Time>, to: Option<Time>| us(to) - us(from);
        let total = |of: fn(&Record) -> u64| done().map(|(_, record)| of(record)).sum::<u64>();
        let pairs = total(|record| record.pairs) as f64;
        let words = total(|record| record.words) as f64;
        let turns = Turns::of(&result.jobs, result.groups);
        let finished_at = |mark: &Time| {
            let finished = done().filter(|(_, record)| record.finished <= Some(*mark)).count();
            MarkSummary { at_us: mark.as_us_f64(), finished: finished as u64 }
        };
        Self {
            jct_us: Range::of(done().map(|(job, record)| span(Some(job.start), record.finished))),
            upload_us: Range::of(done().map(|(_, record)| span(record.granted, record.uploaded))),
            finished: done().count() as u64,
            exact: done().filter(|(_, record)| record.exact).count() as u64,
            words_missing: total(|record| record.errors.missing) as f64 / words,
            words_wrong: total(|record| record.errors.wrong) as f64 / words,
            occurrences_missing: total(|record| record.errors.lost) as f64
                / total(|record| record.errors.occurrences) as f64,
            unfinished: (result.jobs.len() - done().count()) as u64,
            to_master: total(|record| record.received) as f64 / pairs,
            to_master_bound: words / pairs,
            absorbed: result.switches.absorbed as f64 / pairs,
            trunk_bytes: result.trunk_bytes,
            duplicates: result.switches.duplicates,
            reconfigurations: result.reconfigurations,
            lost_in_moves: result.lost_in_moves,
            upload_overlap: turns.overlap,
            turns: turns.alternation,
            beside_map: turns.beside_map,
            marks: result.marks.iter().map(finished_at).collect(),
            jobs: result.jobs.iter().map(|(job, record)| JobSummary::new(job, record)).collect(),
        }
    }
}

impl JobSummary {
    fn new(job: &Job, record: &Record) -> Self {
        Self {
            job: job.number,
            master: job.master.0,
            workers: job.workers.len() as u64,
            hosts: job.workers.iter().map(|host| host.0).collect(),
            bytes: job.bytes,
            start_us: job.start.as_us_f64(),
            ready_us: us(record.ready),
            granted_us: us(record.granted),
            uploaded_us: us(record.uploaded),
            finished_us: us(record.finished),
            exact: record.exact,
            words: record.words,
            missing: record.errors.missing,
            wrong: record.errors.wrong,
            pairs: record.pairs,
            received: record.received,
            epochs: u64::from(record.epochs),
            slots: u64::from(record.slots),
        }
    }
}
