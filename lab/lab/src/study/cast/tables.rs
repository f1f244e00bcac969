//! The tables of casts, in files and in the report.

use rackweave_core::{HostId, Span, Time};
use rackweave_orca::app::CastTimes;

use super::{CastDetail, CastResult, CastSummary, ReceiverSummary};
use crate::results::PointResult;
use crate::results::columns::Kind::{Count, Real};
use crate::results::columns::{Column, MICROS, PLAIN, Shown, Unit, Value, column, reported};
use crate::study::StudyDetail;
use crate::tables::Sink;

/// The tables from which charts are drawn.
pub(super) const FILES: &str = "cast_files";
pub(super) const RECEIVERS: &str = "cast_receivers";

pub(super) fn write<S: Sink>(points: &[PointResult], sink: &mut S) -> Result<(), S::Error> {
    let wanted = points.iter().any(|point| run_of(point).is_some());
    sink.table(FILES, wanted, points, CAST_FILE, files)?;
    sink.table(RECEIVERS, wanted, points, CAST_RECEIVER, arrivals)
}

/// Returns the results of a cast that was run now.
fn run_of(point: &PointResult) -> Option<&CastResult> {
    match &point.detail {
        Some(StudyDetail::Cast(CastDetail::Run(result))) => Some(result),
        _ => None,
    }
}

/// The columns for a file of a cast.
const CAST_FILE: &[Column<CastTimes>] = &[
    column("file", Count, |file| u64::from(file.cast).into()),
    column("bytes", Count, |file| file.bytes.into()),
    column("begun_us", Real, |file| file.begun.into()),
    column("ended_us", Real, |file| file.ended.into()),
    column("send_us", Real, |file| file.ended.map(|at| at.since(file.begun)).into()),
];

/// The delivery of a file to one receiver of a cast.
struct Arrival {
    host: HostId,
    file: u64,
    completed: Time,
    /// The time since the delivery of the previous file; `None` for the first file.
    wait: Option<Span>,
}

const CAST_RECEIVER: &[Column<Arrival>] = &[
    column("host", Count, |arrival| arrival.host.into()),
    column("file", Count, |arrival| arrival.file.into()),
    column("completed_us", Real, |arrival| arrival.completed.into()),
    column("wait_us", Real, |arrival| arrival.wait.into()),
];

/// The columns for a cast in the report.
pub(super) const CAST: &[Column<CastSummary>] = &[
    reported(Shown { name: "copied by", ..PLAIN }, |cast| (&*cast.copied_by).into()),
    reported(Shown { name: "execution", ..MICROS }, |cast| cast.execution_us.into()),
    reported(Shown { name: "Gbit/s each", ..PLAIN }, |cast| cast.receiver_gbps.into()),
    reported(Shown { name: "copies", ..PLAIN }, |cast| cast.copies.into()),
    reported(Shown { name: "send p50", ..MICROS }, |cast| cast.send_us.p50.into()),
    reported(Shown { name: "send p99", ..MICROS }, |cast| cast.send_us.p99.into()),
    reported(Shown { name: "wait p50", ..MICROS }, |cast| cast.wait_us.p50.into()),
    reported(Shown { name: "wait p99", ..MICROS }, |cast| cast.wait_us.p99.into()),
    reported(Shown { name: "retransmitted", unit: Unit::Bytes, ..PLAIN }, |cast| {
        cast.repaired_bytes.into()
    }),
    reported(Shown { name: "detached", unit: Unit::Count, ..PLAIN }, |cast| cast.detached.into()),
    reported(Shown { name: "lost", unit: Unit::Count, ..PLAIN }, |cast| cast.lost.into()),
];

/// The columns for a receiver of a cast in the report.
pub(super) const RECEIVER: &[Column<ReceiverSummary>] = &[
    reported(Shown { name: "host", ..PLAIN }, |r| Value::Text(r.host.to_string().into())),
    reported(Shown { name: "completed", ..MICROS }, |r| r.completed_us.into()),
    reported(Shown { name: "longest gap", ..MICROS }, |r| r.longest_gap_us.into()),
];

/// Returns the rows of a point's cast, one for each file.
fn files(point: &PointResult) -> impl Iterator<Item = CastTimes> {
    run_of(point).into_iter().flat_map(|cast| &cast.app.casts).copied()
}

/// Returns the rows of a point's cast, one for each file at each receiver.
fn arrivals(point: &PointResult) -> impl Iterator<Item = Arrival> {
    run_of(point).into_iter().flat_map(|cast| &cast.app.receivers).flat_map(|receiver| {
        let before = std::iter::once(None).chain(receiver.completed.iter().map(Some));
        let completed = (0..).zip(receiver.completed.iter().copied()).zip(before);
        completed.map(|((file, completed), before)| Arrival {
            host: receiver.host,
            file,
            completed,
            wait: before.map(|before| completed.since(*before)),
        })
    })
}
