//! The section of the page on all-reduces, with the rate of a worker by the number of workers, compared with the most
//! that the link allows.

use std::collections::BTreeMap;

use super::tables::{ALLREDUCE, ALLREDUCE_STEP};
use super::{AllreduceConfig, AllreduceSummary};
use crate::report::charts::{Row, Section};
use crate::report::html::KindSection;
use crate::report::number;
use crate::report::svg::{Axis, Chart, Look, Series};
use crate::report::ticks::{Quantity, Scale};
use crate::results::PointResult;

/// Width and height in pixels of a chart; two fit side by side.
const SIZE: (f64, f64) = (520.0, 300.0);
/// The largest number of schemes that are drawn.
const MAX_LINES: usize = 8;

/// A line of a chart: its name, and the points that it consists of.
type Line<'a> = (&'a str, Vec<(&'a PointResult, &'a AllreduceSummary)>);

pub(super) fn write(section: &mut KindSection<'_, AllreduceConfig>) {
    section.head(
        "All-reduce",
        "A step ends when the last worker has the sums of all vectors. The rate of a \
         worker counts the bytes of its vectors; that of the bus is <i>2 (n - 1) / n</i> times as much. At most: the rate \
         of the link without the headers.",
    );
    section.table(ALLREDUCE);
    if let Some(charts) = rates(section.points()) {
        section.legend(&charts);
        section.charts(&charts);
    }
    section.each("Each step", ALLREDUCE_STEP, |allreduce| &allreduce.steps);
}

/// Returns the charts of rates; `None` if fewer than two numbers of workers have been run.
fn rates(points: &[PointResult]) -> Option<Section> {
    let with = |point| -> Option<(&PointResult, &AllreduceSummary)> {
        let point: &PointResult = point;
        Some((point, point.summary.of::<AllreduceConfig>()?))
    };
    let all: Vec<_> = points.iter().filter_map(with).collect();
    let numbers: BTreeMap<u64, ()> = all.iter().map(|(_, summary)| (summary.workers, ())).collect();
    if numbers.len() < 2 {
        return None;
    }
    let has_losses = |point: &PointResult| point.summary.drops_by_reason.contains_key("fault_loss");
    let mut legend = Vec::new();
    let mut charts = Vec::new();
    for (title, lossy) in [("Rate of a worker", false), ("Rate of a worker, with losses", true)] {
        let mut lines: Vec<Line<'_>> = Vec::new();
        for (point, summary) in all.iter().filter(|(point, _)| has_losses(point) == lossy) {
            let label = point.summary.label.as_str();
            match lines.iter_mut().find(|(name, _)| *name == label) {
                Some((_, line)) => line.push((point, summary)),
                None => lines.push((label, vec![(point, summary)])),
            }
        }
        lines.truncate(MAX_LINES);
        if lines.is_empty() {
            continue;
        }
        let mut series = Vec::new();
        // Schemes are in the same order, and so have the same colours, in both charts.
        for (colour, (label, line)) in lines.iter_mut().enumerate() {
            line.sort_by_key(|(_, summary)| summary.workers);
            let drawn = |dash: usize, name: String, of: fn(&AllreduceSummary) -> f64| {
                let note = |(_, summary): &(&PointResult, &AllreduceSummary)| {
                    format!("{name}, {} workers: {}", summary.workers, number::short(of(summary)))
                };
                #[expect(clippy::cast_precision_loss, reason = "at most 64")]
                let place = |(_, summary): &(&PointResult, &AllreduceSummary)| {
                    (summary.workers as f64, of(summary))
                };
                Series {
                    look: Look { colour, dash },
                    points: line.iter().map(place).collect(),
                    stroke: if dash == 0 { 2.0 } else { 1.0 },
                    step: false,
                    marked: dash == 0,
                    notes: line.iter().map(note).collect(),
                    label: name,
                }
            };
            series.push(drawn(0, (*label).to_owned(), |summary| summary.worker_gbps));
            series.push(drawn(1, format!("{label}, at most"), |summary| summary.bound_gbps));
        }
        for line in &series {
            legend.push((line.label.clone(), line.look, line.marked));
        }
        charts.push(Chart {
            title: title.to_owned(),
            x: Axis::new("workers", Scale::Linear, Quantity::Number),
            y: Axis::new("Gbit/s", Scale::Linear, Quantity::Number).including(0.0),
            series,
            size: SIZE,
            choice: None,
        });
    }
    Some(Section {
        title: String::new(),
        text: String::new(),
        legend,
        rows: vec![Row { folded_as: None, charts }],
        note: String::new(),
    })
}
