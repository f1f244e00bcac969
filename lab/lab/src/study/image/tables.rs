//! The tables of images, in files and in the report.

use super::{ClientSummary, ImageConfig, ImageSummary};
use crate::results::PointResult;
use crate::results::columns::Kind::{Count, Real};
use crate::results::columns::{Column, MICROS, PLAIN, Shown, Unit, Value, column, reported, shown};
use crate::tables::{Sink, rows_of};

pub(super) fn write<S: Sink>(points: &[PointResult], sink: &mut S) -> Result<(), S::Error> {
    rows_of::<ImageConfig, _, _>("image_clients", points, sink, IMAGE_CLIENT, |image| {
        &image.clients
    })
}

/// The columns for an image in the report.
pub(super) const IMAGE: &[Column<ImageSummary>] = &[
    reported(Shown { name: "mean", group: "run time", ..MICROS }, |i| i.run_us.mean.into()),
    reported(Shown { name: "first", group: "run time", ..MICROS }, |i| i.run_us.min.into()),
    reported(Shown { name: "last", group: "run time", ..MICROS }, |i| i.run_us.max.into()),
    reported(Shown { name: "makespan", ..MICROS }, |i| i.makespan_us.into()),
    reported(Shown { name: "copies", ..PLAIN }, |i| i.copies.into()),
    reported(Shown { name: "duplicate share", ..PLAIN }, |i| i.duplicate_share.into()),
    reported(Shown { name: "trunks", unit: Unit::Bytes, ..PLAIN }, |i| i.trunk_bytes.into()),
    reported(Shown { name: "messages", unit: Unit::Count, ..PLAIN }, |i| i.messages.into()),
    reported(Shown { name: "messages/s", ..PLAIN }, |i| i.messages_per_s.into()),
    reported(Shown { name: "from clients", unit: Unit::Bytes, ..PLAIN }, |i| {
        i.from_peers_bytes.into()
    }),
    reported(Shown { name: "longest queue", group: "switches", unit: Unit::Count, ..PLAIN }, |i| {
        i.switches.max_queue.into()
    }),
    reported(Shown { name: "dropped", unit: Unit::Bytes, ..PLAIN }, |i| i.dropped_bytes.into()),
    reported(Shown { name: "incomplete", unit: Unit::Count, ..PLAIN }, |i| i.incomplete.into()),
];

/// The columns for a client of an image, for `image_clients.csv` and the report.
pub(super) const IMAGE_CLIENT: &[Column<ClientSummary>] = &[
    shown("host", Count, Shown { name: "host", ..PLAIN }, |c| Value::Count(u64::from(c.host))),
    shown("start_us", Real, Shown { name: "start", ..MICROS }, |c| c.start_us.into()),
    shown("receive_us", Real, Shown { name: "received after", ..MICROS }, |c| c.receive_us.into()),
    shown("run_us", Real, Shown { name: "run time", ..MICROS }, |c| c.run_us.into()),
    shown("concurrency", Real, Shown { name: "concurrency", ..PLAIN }, |c| c.concurrency.into()),
    shown("received_bytes", Count, Shown { name: "received", unit: Unit::Bytes, ..PLAIN }, |c| {
        c.received_bytes.into()
    }),
    shown(
        "from_peers_bytes",
        Count,
        Shown { name: "from clients", unit: Unit::Bytes, ..PLAIN },
        |c| c.from_peers_bytes.into(),
    ),
    shown("served_bytes", Count, Shown { name: "served", unit: Unit::Bytes, ..PLAIN }, |c| {
        c.served_bytes.into()
    }),
    shown("duplicate_bytes", Count, Shown { name: "again", unit: Unit::Bytes, ..PLAIN }, |c| {
        c.duplicate_bytes.into()
    }),
    shown("dropped_bytes", Count, Shown { name: "dropped", unit: Unit::Bytes, ..PLAIN }, |c| {
        c.dropped_bytes.into()
    }),
    shown("requests", Count, Shown { name: "requests", unit: Unit::Count, ..PLAIN }, |c| {
        c.requests.into()
    }),
    column("rerequests", Count, |c| c.rerequests.into()),
];
