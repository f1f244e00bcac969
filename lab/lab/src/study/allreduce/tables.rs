//! The tables of all-reduces, in files and in the report.

use super::{AllreduceConfig, AllreduceSummary, StepSummary};
use crate::results::PointResult;
use crate::results::columns::Kind::{Count, Real};
use crate::results::columns::{Column, MICROS, PLAIN, Shown, Unit, reported, shown};
use crate::tables::{Sink, rows_of};

pub(super) fn write<S: Sink>(points: &[PointResult], sink: &mut S) -> Result<(), S::Error> {
    rows_of::<AllreduceConfig, _, _>("allreduce_steps", points, sink, ALLREDUCE_STEP, |it| {
        &it.steps
    })
}

/// The columns for an all-reduce in the report.
pub(super) const ALLREDUCE: &[Column<AllreduceSummary>] = &[
    reported(Shown { name: "workers", unit: Unit::Count, ..PLAIN }, |r| r.workers.into()),
    reported(Shown { name: "vector", unit: Unit::Bytes, ..PLAIN }, |r| r.vector_bytes.into()),
    reported(Shown { name: "mean", group: "step", ..MICROS }, |r| r.step_us.mean.into()),
    reported(Shown { name: "longest", group: "step", ..MICROS }, |r| r.step_us.max.into()),
    reported(Shown { name: "worker", group: "Gbit/s", ..PLAIN }, |r| r.worker_gbps.into()),
    reported(Shown { name: "bus", group: "Gbit/s", ..PLAIN }, |r| r.bus_gbps.into()),
    reported(Shown { name: "at most", group: "Gbit/s", ..PLAIN }, |r| r.bound_gbps.into()),
    reported(Shown { name: "sent again", unit: Unit::Count, ..PLAIN }, |r| r.retransmitted.into()),
    reported(Shown { name: "exact", unit: Unit::Count, ..PLAIN }, |r| r.exact.into()),
    reported(Shown { name: "finished", unit: Unit::Count, ..PLAIN }, |r| r.finished.into()),
    reported(Shown { name: "unfinished", unit: Unit::Count, ..PLAIN }, |r| r.unfinished.into()),
];

/// The columns for a step of an all-reduce, for `allreduce_steps.csv` and the report.
pub(super) const ALLREDUCE_STEP: &[Column<StepSummary>] = &[
    shown("step", Count, Shown { name: "step", ..PLAIN }, |s| s.step.into()),
    shown("start_us", Real, Shown { name: "start", ..MICROS }, |s| s.start_us.into()),
    shown("end_us", Real, Shown { name: "end", ..MICROS }, |s| s.end_us.into()),
    shown("step_us", Real, Shown { name: "time", ..MICROS }, |s| s.step_us.into()),
    shown("exact", Count, Shown { name: "exact at workers", unit: Unit::Count, ..PLAIN }, |s| {
        s.exact.into()
    }),
];
