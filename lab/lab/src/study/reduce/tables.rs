//! The tables of jobs, in files and in the report.

use super::{JobSummary, ReduceConfig, ReduceSummary};
use crate::results::PointResult;
use crate::results::columns::Kind::{Count, Real};
use crate::results::columns::{Column, MICROS, PLAIN, Shown, Unit, Value, column, reported, shown};
use crate::tables::{Sink, rows_of};

pub(super) fn write<S: Sink>(points: &[PointResult], sink: &mut S) -> Result<(), S::Error> {
    rows_of::<ReduceConfig, _, _>("reduce_jobs", points, sink, REDUCE_JOB, |reduce| &reduce.jobs)
}

/// The columns for jobs in the report.
pub(super) const REDUCE: &[Column<ReduceSummary>] = &[
    reported(Shown { name: "mean", group: "completion", ..MICROS }, |r| r.jct_us.mean.into()),
    reported(Shown { name: "first", group: "completion", rank: 2, ..MICROS }, |r| {
        r.jct_us.min.into()
    }),
    reported(Shown { name: "last", group: "completion", rank: 2, ..MICROS }, |r| {
        r.jct_us.max.into()
    }),
    reported(Shown { name: "upload", ..MICROS }, |r| r.upload_us.mean.into()),
    reported(Shown { name: "pairs to masters", ..PLAIN }, |r| r.to_master.into()),
    reported(Shown { name: "at least", ..PLAIN }, |r| r.to_master_bound.into()),
    reported(Shown { name: "trunks", unit: Unit::Bytes, rank: 1, ..PLAIN }, |r| {
        r.trunk_bytes.into()
    }),
    reported(Shown { name: "moves", unit: Unit::Count, rank: 1, ..PLAIN }, |r| {
        r.reconfigurations.into()
    }),
    reported(Shown { name: "exact", unit: Unit::Count, rank: 1, ..PLAIN }, |r| r.exact.into()),
    reported(Shown { name: "finished", unit: Unit::Count, rank: 2, ..PLAIN }, |r| {
        r.finished.into()
    }),
    reported(Shown { name: "unfinished", unit: Unit::Count, rank: 1, ..PLAIN }, |r| {
        r.unfinished.into()
    }),
];

/// The columns for a job, for `reduce_jobs.csv` and the report.
pub(super) const REDUCE_JOB: &[Column<JobSummary>] = &[
    shown("job", Count, Shown { name: "job", ..PLAIN }, |j| Value::Count(u64::from(j.job))),
    shown("master", Count, Shown { name: "master", ..PLAIN }, |j| {
        Value::Count(u64::from(j.master))
    }),
    shown("workers", Count, Shown { name: "workers", unit: Unit::Count, ..PLAIN }, |j| {
        j.workers.into()
    }),
    shown("bytes", Count, Shown { name: "data", unit: Unit::Bytes, ..PLAIN }, |j| j.bytes.into()),
    shown("start_us", Real, Shown { name: "start", ..MICROS }, |j| j.start_us.into()),
    shown("ready_us", Real, Shown { name: "ready", ..MICROS }, |j| j.ready_us.into()),
    shown("granted_us", Real, Shown { name: "upload begins", ..MICROS }, |j| j.granted_us.into()),
    shown("uploaded_us", Real, Shown { name: "uploaded", ..MICROS }, |j| j.uploaded_us.into()),
    shown("finished_us", Real, Shown { name: "finished", ..MICROS }, |j| j.finished_us.into()),
    shown("words", Count, Shown { name: "words", unit: Unit::Count, ..PLAIN }, |j| j.words.into()),
    shown("pairs", Count, Shown { name: "pairs", unit: Unit::Count, ..PLAIN }, |j| j.pairs.into()),
    shown("received", Count, Shown { name: "to the master", unit: Unit::Count, ..PLAIN }, |j| {
        j.received.into()
    }),
    shown("epochs", Count, Shown { name: "epochs", unit: Unit::Count, ..PLAIN }, |j| {
        j.epochs.into()
    }),
    column("slots", Count, |j| j.slots.into()),
    column("missing", Count, |j| j.missing.into()),
    column("wrong", Count, |j| j.wrong.into()),
    column("exact", Count, |j| u64::from(j.exact).into()),
];
