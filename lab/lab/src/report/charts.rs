//! The selection of charts for a comparison.
//!
//! A few points share a chart. Many points, from a sweep of several transports, get a small chart for each value of the
//! sweep, so that each chart shows the transports side by side on the same axes. Many points of one kind cannot be
//! distinguished in a chart. Of those a subset is shown, evenly chosen, and a note explains this.

use rackweave_sim::result::QueueSample;

use super::number;
use super::svg::{Axis, Chart, Choice, LIGHT, Look, Series};
use super::sweeps::sweeps;
use super::ticks::{self, Quantity, Scale};
use crate::results::stats::cdf;
use crate::results::{PointResult, Stats, StreamSummary, TrafficSeries};

/// The heading of the section on latency.
pub(super) const LATENCY_TITLE: &str = "Latency";

/// The number of lines that a reader can distinguish in one chart.
pub(super) const MAX_LINES: usize = 8;
/// The number of lines above which lines that come in groups are divided among small charts.
const MAX_LINES_OF_GROUPS: usize = 6;
/// The largest number of small charts of one kind.
const MAX_FACETS: usize = 12;
/// The number of points above which the points of a line are not marked.
const MAX_MARKS: usize = 40;
/// The share of the height of a chart below which a line cannot be read.
const LOW: f64 = 0.1;
/// The number of columns to which a series over time is reduced.
const COLUMNS: usize = 240;
/// Width and height in pixels of a chart on the page; two charts fit side by side.
const SIZE: (f64, f64) = (520.0, 300.0);
/// Width and height in pixels of a small chart with text of the same size; three fit side by side.
pub(super) const SMALL: (f64, f64) = (380.0, 250.0);

/// Charts that belong together, under one heading and one legend.
#[derive(Clone, Debug)]
pub struct Section {
    /// The heading of the section.
    pub title: String,
    /// A text that explains what the charts show and how to read them.
    pub text: String,
    /// The name and look of each line, and whether its points are marked.
    pub legend: Vec<(String, Look, bool)>,
    /// The rows of charts, one for each measure.
    pub rows: Vec<Row>,
    /// A note on what is left out; empty if nothing is.
    pub note: String,
}

/// The charts of one measure.
#[derive(Clone, Debug)]
pub struct Row {
    /// The title under which the row is collapsed; `None` if the row is shown.
    pub folded_as: Option<String>,
    /// The charts of the row, one for each facet.
    pub charts: Vec<Chart>,
}

/// A percentile of the slowdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Percentile {
    /// The median (50th percentile).
    P50,
    /// The 99th percentile.
    P99,
}

/// Returns all sections of a comparison.
#[must_use]
pub fn sections(points: &[PointResult]) -> Vec<Section> {
    let layout = Layout::of(points);
    let mut sections = sweeps(points);
    let tail_first = layout.facets.len() > 1;
    let mut add = |title: &str,
                   text: &str,
                   marked: bool,
                   tail: (Vec<Chart>, &str),
                   body: (Vec<Chart>, &str)| {
        let rows = if tail_first {
            vec![
                Row { folded_as: None, charts: tail.0 },
                Row { folded_as: Some(body.1.to_owned()), charts: body.0 },
            ]
        } else {
            vec![Row { folded_as: None, charts: body.0.into_iter().chain(tail.0).collect() }]
        };
        sections.push(Section {
            title: title.to_owned(),
            text: text.to_owned(),
            legend: layout.legend(marked),
            rows,
            note: layout.note.clone(),
        });
    };
    let facets = |build: &dyn Fn(&Facet) -> Chart| -> Vec<Chart> {
        let mut charts: Vec<Chart> = layout.facets.iter().map(build).collect();
        share_axes(&mut charts);
        charts
    };

    let axis = size_axis(points);
    let has_sizes = points.iter().any(has_several_sizes);
    let by_count = matches!(axis, SizeAxis::ByCount { .. });
    if has_sizes {
        add(
            "Slowdown by message size",
            if by_count {
                "Message sizes along the bottom are spaced by how many messages are at most as large: \
             each tenth of the width stands for a tenth of all messages. Lower is better; 1 is \
             the best possible."
            } else {
                "Lower is better; 1 is the best possible."
            },
            true,
            (facets(&|f| slowdown(points, f, &axis, Percentile::P99)), "99th percentile"),
            (facets(&|f| slowdown(points, f, &axis, Percentile::P50)), "Median"),
        );
    }
    add(
        LATENCY_TITLE,
        "From the moment a message is submitted until its last byte has arrived, over all \
         messages: the share of them that takes longer than the time below. Further left is better. \
         The whole distribution shows the share that takes at most that time.",
        false,
        (facets(&|f| latency(points, f, true)), "Tail of the distribution"),
        (facets(&|f| latency(points, f, false)), "Whole distribution"),
    );
    add(
        "Queues in the switches",
        "Bytes waiting in the longest queue of any switch port, and in all queues together, over \
         simulated time. Where samples are denser than the picture, the largest is drawn.",
        false,
        (facets(&|f| queue(points, f, true)), "Longest queue"),
        (facets(&|f| queue(points, f, false)), "All queues together"),
    );
    sections
}

/// Returns the chart of slowdown by message size, larger and with a `title`, for a file. For a sweep that would be
/// divided among several charts, it shows the first value.
#[must_use]
pub fn slowdown_chart(points: &[PointResult], percentile: Percentile, title: &str) -> Chart {
    let layout = Layout::of(points);
    // A layout has at least one facet, which has no lines if there are no points.
    let mut chart = slowdown(points, &layout.facets[0], &size_axis(points), percentile);
    title.clone_into(&mut chart.title);
    chart.size = (720.0, 360.0);
    chart
}

/// Returns the look of each point's line; `None` for points that are not drawn.
pub(super) fn looks(points: &[PointResult]) -> Vec<Option<Look>> {
    let mut looks = vec![None; points.len()];
    for line in Layout::of(points).facets.iter().flat_map(|f| &f.lines) {
        looks[line.point] = Some(line.look);
    }
    looks
}

/// In which chart each point is drawn, and its look.
struct Layout {
    facets: Vec<Facet>,
    note: String,
}

/// The points of one chart.
struct Facet {
    /// The values that the points have in common; empty if there is only one facet.
    title: String,
    lines: Vec<Line>,
}

struct Line {
    point: usize,
    label: String,
    look: Look,
}

impl Layout {
    fn of(points: &[PointResult]) -> Self {
        let groups = distinct(points.iter().map(|p| p.summary.label.clone()));
        let variants = distinct(points.iter().map(PointResult::variant_label));
        let group_of =
            |p: &PointResult| groups.iter().position(|g| *g == p.summary.label).unwrap_or(0);
        let variant_of =
            |p: &PointResult| variants.iter().position(|v| *v == p.variant_label()).unwrap_or(0);
        let crossed = groups.len() > 1 && variants.len() > 1;

        if crossed && points.len() > MAX_LINES_OF_GROUPS {
            let shown_variants = spread(variants.len(), MAX_FACETS);
            let shown_groups = groups.len().min(MAX_LINES);
            let mut note = String::new();
            if shown_variants.len() < variants.len() {
                note = format!(
                    "{} of {} values of the sweep are shown, evenly chosen. ",
                    shown_variants.len(),
                    variants.len()
                );
            }
            if shown_groups < groups.len() {
                note += &format!("The first {shown_groups} of {} are shown.", groups.len());
            }
            let facets = shown_variants
                .into_iter()
                .map(|v| Facet {
                    title: variants[v].clone(),
                    lines: (0..points.len())
                        .filter(|i| variant_of(&points[*i]) == v)
                        .map(|i| (i, group_of(&points[i])))
                        .filter(|(_, group)| *group < shown_groups)
                        .map(|(point, group)| Line {
                            point,
                            label: groups[group].clone(),
                            look: Look::nth(group),
                        })
                        .collect(),
                })
                .collect();
            return Self { facets, note: note.trim_end().to_owned() };
        }

        let shown = spread(points.len(), MAX_LINES);
        let note = if shown.len() < points.len() {
            format!(
                "{} of {} points are drawn, evenly chosen; the tables have all of them.",
                shown.len(),
                points.len()
            )
        } else {
            String::new()
        };
        let unique =
            distinct(points.iter().map(|p| format!("{}\n{}", p.summary.label, p.variant_label())))
                .len()
                == points.len();
        let lines = shown
            .into_iter()
            .enumerate()
            .map(|(nth, point)| Line {
                point,
                label: points[point].label.clone(),
                look: if crossed && unique {
                    Look { colour: group_of(&points[point]), dash: variant_of(&points[point]) }
                } else {
                    Look::nth(nth)
                },
            })
            .collect();
        Self { facets: vec![Facet { title: String::new(), lines }], note }
    }

    /// Returns each name once, in the order of the facets.
    fn legend(&self, marked: bool) -> Vec<(String, Look, bool)> {
        let mut legend: Vec<(String, Look, bool)> = Vec::new();
        for line in self.facets.iter().flat_map(|f| &f.lines) {
            if !legend.iter().any(|(label, look, _)| *label == line.label && *look == line.look) {
                legend.push((line.label.clone(), line.look, marked));
            }
        }
        legend
    }
}

impl Facet {
    fn named(&self, what: &str) -> String {
        if self.title.is_empty() { what.to_owned() } else { format!("{what}, {}", self.title) }
    }

    fn chart(
        &self,
        points: &[PointResult],
        what: &str,
        (x, y): (Axis, Axis),
        of: impl Fn(&PointResult) -> Vec<(f64, f64)>,
    ) -> Chart {
        let series = self
            .lines
            .iter()
            .map(|line| Series {
                label: line.label.clone(),
                look: line.look,
                points: of(&points[line.point]),
                stroke: 2.0,
                step: false,
                marked: false,
                notes: Vec::new(),
            })
            .collect();
        let size = if self.title.is_empty() { SIZE } else { SMALL };
        Chart { title: self.named(what), x, y, series, size, choice: None }
    }
}

/// Returns each value once, in the order of first appearance.
fn distinct(values: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

/// Returns at most `most` of `0..count`, evenly chosen, including both ends.
pub(super) fn spread(count: usize, most: usize) -> Vec<usize> {
    if count <= most {
        return (0..count).collect();
    }
    (0..most).map(|i| (i * (count - 1) + (most - 1) / 2) / (most - 1)).collect()
}

/// Gives charts of one kind the same axes, so that they can be compared.
fn share_axes(charts: &mut [Chart]) {
    if charts.len() < 2 {
        return;
    }
    let union =
        |ranges: Vec<(f64, f64)>| ranges.into_iter().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    let x = union(charts.iter().filter_map(Chart::x_range).collect());
    let y = union(charts.iter().filter_map(Chart::y_range).collect());
    for chart in charts {
        chart.x.ends = x;
        chart.y.ends = y.map(|(low, high)| ticks::widen(low, high, chart.y.scale, 5));
    }
}

/// The x axis of a chart by message size.
enum SizeAxis {
    /// Messages by rank of their size, as in the figures of the Homa paper (SIGCOMM'18, figure 12), with the sizes at
    /// every tenth of the messages.
    ByCount {
        /// The share of messages at which the first curve begins.
        begin: f64,
        names: Vec<(f64, String)>,
        /// The sizes at every step of the first curve.
        sizes: Vec<(f64, u64)>,
    },
    /// The logarithm of the size, for points whose workloads differ.
    BySize,
}

fn size_axis(points: &[PointResult]) -> SizeAxis {
    let at = |point: &PointResult, fraction: f64| {
        point
            .slowdown_curve
            .iter()
            .find(|step| step.count_fraction >= fraction)
            .or(point.slowdown_curve.last())
            .map(|step| step.size_bytes as f64)
    };
    let mut curves = points.iter().filter(|p| !p.slowdown_curve.is_empty());
    let Some(first) = curves.next() else { return SizeAxis::BySize };
    let tenths = || (0..=10).map(|tenth| f64::from(tenth) / 10.0);
    let begin =
        points.iter().filter_map(|point| Some(point.slowdown_curve.first()?.count_fraction));
    let begin = begin.filter(|share| (0.0..0.95).contains(share)).reduce(f64::min).unwrap_or(0.0);
    // The ends of a sampled distribution differ between runs of one workload.
    let alike = curves.all(|other| {
        tenths().skip(1).take(9).all(|f| match (at(first, f), at(other, f)) {
            (Some(a), Some(b)) => a <= b * 1.3 && b <= a * 1.3,
            _ => false,
        })
    });
    if !alike {
        return SizeAxis::BySize;
    }
    // The axis begins where the curves do, and names a size once, at the first mark that has it.
    let marks = std::iter::once(begin).chain(tenths().filter(|tenth| *tenth > begin));
    let mut names: Vec<(f64, String)> =
        marks.filter_map(|f| Some((f, ticks::size(at(first, f)?)))).collect();
    names.dedup_by(|mark, before| mark.1 == before.1);
    let sizes = first.slowdown_curve.iter().map(|step| (step.count_fraction, step.size_bytes));
    SizeAxis::ByCount { begin, names, sizes: sizes.collect() }
}

fn slowdown(
    points: &[PointResult],
    facet: &Facet,
    axis: &SizeAxis,
    percentile: Percentile,
) -> Chart {
    let (what, short) = match percentile {
        Percentile::P50 => ("Median slowdown", "median"),
        Percentile::P99 => ("99th-percentile slowdown", "p99"),
    };
    let x = match axis {
        SizeAxis::ByCount { begin, names, sizes } => {
            let axis = Axis::new("message size in bytes", Scale::Linear, Quantity::Number);
            Axis { sizes: sizes.clone(), ..axis.between(*begin, 1.0).named(names.clone()) }
        }
        SizeAxis::BySize => Axis::new("message size in bytes", Scale::Log, Quantity::Bytes),
    };
    let mut chart = facet.chart(points, what, (x, slowdown_axis()), |point| {
        point
            .slowdown_curve
            .iter()
            .map(|step| {
                let x = match axis {
                    SizeAxis::ByCount { .. } => step.count_fraction,
                    SizeAxis::BySize => step.size_bytes as f64,
                };
                (x, if percentile == Percentile::P50 { step.p50 } else { step.p99 })
            })
            .collect()
    });
    for (series, line) in chart.series.iter_mut().zip(&facet.lines) {
        let point = &points[line.point];
        series.marked = series.points.len() <= MAX_MARKS;
        series.notes = point
            .slowdown_curve
            .iter()
            .zip(&series.points)
            .map(|(step, (_, value))| {
                format!(
                    "{}: up to {} ({:.0} % of messages), {short} {}",
                    point.label,
                    number::bytes(step.size_bytes as f64),
                    step.count_fraction * 100.0,
                    number::short(*value)
                )
            })
            .collect();
    }
    chart
}

fn latency(points: &[PointResult], facet: &Facet, tail: bool) -> Chart {
    let x = Axis::new("latency", Scale::Log, Quantity::Micros);
    let (what, y) = if tail {
        let y = Axis::new("share of messages that take longer", Scale::Log, Quantity::Fraction);
        ("Tail of latency", y.including(1.0))
    } else {
        let y = Axis::new("share of messages", Scale::Linear, Quantity::Fraction);
        ("Latency", y.between(0.0, 1.0))
    };
    let mut chart = facet.chart(points, what, (x, y), |point| {
        let value = |fraction: f64| if tail { 1.0 - fraction } else { fraction };
        point.latency_cdf.iter().map(|(us, fraction)| (*us, value(*fraction))).collect()
    });
    for series in &mut chart.series {
        series.step = true;
    }
    chart
}

/// A distribution that is compared: its name, what its shares are of, and its values of a point in microseconds.
pub(crate) type Distribution<'a> = (&'a str, &'a str, &'a dyn Fn(&PointResult) -> Vec<f64>);

/// Returns charts of cumulative distributions, a row for each.
pub(crate) fn cumulative(points: &[PointResult], distributions: &[Distribution<'_>]) -> Section {
    let layout = Layout::of(points);
    let row = |distribution: &Distribution<'_>| {
        let facets = layout.facets.iter();
        let mut charts: Vec<Chart> =
            facets.map(|facet| shares(points, facet, *distribution)).collect();
        share_axes(&mut charts);
        Row { folded_as: None, charts }
    };
    Section {
        title: String::new(),
        text: String::new(),
        legend: layout.legend(false),
        rows: distributions.iter().map(row).collect(),
        note: layout.note,
    }
}

/// Returns the chart of the 99th percentile of slowdown of the background streams, larger and with a `title`, for a file.
/// `None` if there are no streams, or too many runs or streams for a chart.
#[must_use]
pub fn streams_chart(points: &[PointResult], title: &str) -> Option<Chart> {
    let mut charts = streams_section(points)?.rows.pop()?.charts.into_iter();
    let mut chart = charts.find(|chart| chart.choice.as_ref().is_some_and(|it| it.first))?;
    title.clone_into(&mut chart.title);
    chart.size = (720.0, 360.0);
    Some(chart)
}

/// Returns the section on what the background streams experience in each run: a line for each stream. `None` if
/// there are no streams, or too many runs or streams for a chart.
pub(super) fn streams_section(points: &[PointResult]) -> Option<Section> {
    let streams = points.first().map_or(0, |point| point.summary.background.len());
    let is_alike = points.iter().all(|point| point.summary.background.len() == streams);
    if !is_alike || !(2..=MAX_LINES).contains(&points.len()) || !(1..=MAX_LINES).contains(&streams)
    {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    let places: Vec<f64> = (0..points.len()).map(|nth| nth as f64).collect();
    let names = places.iter().copied().zip(points.iter().map(|point| point.label.clone()));
    let x = Axis::new("run", Scale::Linear, Quantity::Number)
        .between(-0.3, points.len() as f64 - 0.7)
        .named(names.collect());
    let labels: Vec<&String> = points[0].summary.background.iter().map(|it| &it.label).collect();
    let name = |stream: usize| match labels.iter().filter(|it| **it == labels[stream]).count() {
        1 => labels[stream].clone(),
        _ => format!("{} ({stream})", labels[stream]),
    };
    let mut measured: Vec<&String> = points.iter().map(|point| &point.summary.label).collect();
    measured.sort_unstable();
    measured.dedup();
    let chart =
        |(of, y): (fn(&StreamSummary) -> &Stats, Axis), choice: Choice, value: Statistic| Chart {
            title: format!("{} of background streams, {}", capital(&y.title), choice.name),
            x: x.clone(),
            y,
            // A line joins runs of one transport: from one transport to another there is nothing between.
            series: (0..streams)
                .flat_map(|stream| measured.iter().map(move |label| (stream, *label)))
                .map(|(stream, label)| {
                    let value = |point: &PointResult| value(of(&point.summary.background[stream]));
                    let own = || {
                        let all = places.iter().copied().zip(points);
                        all.filter(|(_, point)| point.summary.label == *label)
                    };
                    Series {
                        label: name(stream),
                        look: Look::nth(stream),
                        points: own().map(|(place, point)| (place, value(point))).collect(),
                        stroke: 1.0,
                        step: false,
                        marked: true,
                        notes: own().map(|(_, point)| note_on(point, value(point))).collect(),
                    }
                })
                .collect(),
            size: SIZE,
            choice: Some(choice),
        };
    let slowdown =
        || -> (fn(&StreamSummary) -> &Stats, Axis) { (|it| &it.slowdown, slowdown_axis()) };
    let latency =
        || -> (fn(&StreamSummary) -> &Stats, Axis) { (|it| &it.latency_us, latency_axis()) };
    let of_slowdown = statistics().map(|(choice, value)| chart(slowdown(), choice, value));
    let of_latency = statistics().map(|(choice, value)| chart(latency(), choice, value));
    let charts = of_slowdown.chain(of_latency).collect();
    Some(Section {
        title: String::new(),
        text: String::new(),
        legend: (0..streams).map(|stream| (name(stream), Look::nth(stream), true)).collect(),
        rows: vec![Row { folded_as: None, charts }],
        note: String::new(),
    })
}

/// Returns the text with a capital.
pub(super) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// A statistic of a distribution.
pub(super) type Statistic = fn(&Stats) -> f64;

/// The statistics that a page offers, and their names.
pub(super) const STATISTICS: [(&str, Statistic); 5] = [
    ("p50", |stats| stats.p50),
    ("p99", |stats| stats.p99),
    ("p99.9", |stats| stats.p999),
    ("max", |stats| stats.max),
    ("mean", |stats| stats.mean),
];

/// Returns the statistics among which readers of a chart choose; the 99th percentile is shown first.
pub(super) fn statistics() -> impl Iterator<Item = (Choice, Statistic)> {
    let choice = |name| Choice { of: "statistic", name, first: name == "p99" };
    STATISTICS.into_iter().map(move |(name, of)| (choice(name), of))
}

/// Returns the vertical axis of slowdowns.
pub(super) fn slowdown_axis() -> Axis {
    Axis::new("slowdown", Scale::Log, Quantity::Number).including(1.0)
}

/// Returns the vertical axis of latencies.
pub(super) fn latency_axis() -> Axis {
    Axis::new("latency", Scale::Log, Quantity::Micros)
}

/// Returns whether messages of a point differ in size: over a single size, a curve would be a dot.
fn has_several_sizes(point: &PointResult) -> bool {
    let mut sizes = point.slowdown_curve.iter().map(|step| step.size_bytes);
    let first = sizes.next();
    sizes.any(|size| Some(size) != first)
}

/// Returns the looks that a line of a page may have.
pub(super) fn all_looks() -> impl Iterator<Item = Look> {
    let crossed =
        (0..LIGHT.len()).flat_map(|colour| (0..MAX_LINES).map(move |dash| Look { colour, dash }));
    let mut looks: Vec<Look> = (0..MAX_LINES).map(Look::nth).collect();
    for look in crossed {
        if !looks.contains(&look) {
            looks.push(look);
        }
    }
    looks.into_iter()
}

/// Returns the section on the goodput of the streams over time: a chart for each point. `None` if none is known.
pub(super) fn goodput_section(points: &[PointResult]) -> Option<Section> {
    let is_known = |point: &&PointResult| point.goodput_series().next().is_some();
    let first = points.iter().find(is_known)?;
    let all = points.iter().filter(is_known).count();
    let shown: Vec<&PointResult> = points.iter().filter(is_known).take(MAX_FACETS).collect();
    let size = if shown.len() > 1 { SMALL } else { SIZE };
    let chart = |point: &&PointResult, from: usize| {
        let line = |(nth, (name, samples)): (usize, (String, Vec<(f64, f64)>))| Series {
            label: name,
            look: Look::nth(nth),
            points: samples,
            stroke: 1.4,
            step: true,
            marked: false,
            notes: Vec::new(),
        };
        Chart {
            title: point.label.clone(),
            x: Axis::new("time", Scale::Linear, Quantity::Micros).including(0.0),
            y: Axis::new("Gbit/s", Scale::Linear, Quantity::Number).including(0.0),
            series: point
                .goodput_series()
                .enumerate()
                .skip(from)
                .map(line)
                .take(MAX_LINES)
                .collect(),
            size,
            choice: None,
        }
    };
    let charts: Vec<Chart> = shown.iter().map(|point| chart(point, 0)).collect();
    let mut rows = vec![Row { folded_as: None, charts }];
    if rows[0].charts.iter().any(is_first_much_higher) {
        let charts = shown.iter().map(|point| chart(point, 1)).collect();
        let title = "Without the measured messages, at the scale of the other streams".to_owned();
        rows.push(Row { folded_as: Some(title), charts });
    }
    let note = match all - shown.len() {
        0 => String::new(),
        _ => format!("The first {} of {all} points are shown.", shown.len()),
    };
    // A stream that takes the transport that is compared has another name in each chart: the legend has what they have in common.
    let common = |nth: usize, name: String| {
        let of_point = |point: &&PointResult| point.goodput_series().nth(nth);
        let is_same = shown.iter().filter_map(of_point).all(|(other, _)| other == name);
        if is_same { name } else { name.split(" (").next().unwrap_or_default().to_owned() }
    };
    let names = first.goodput_series().enumerate().take(MAX_LINES);
    Some(Section {
        title: "Goodput over time".to_owned(),
        text: "Payload that arrived at all hosts together, by stream, from the start of the run to its end, warm-up included. Each \
               chart has its own time axis, because runs differ in length."
            .to_owned(),
        legend: names.map(|(nth, (name, _))| (common(nth, name), Look::nth(nth), false)).collect(),
        rows,
        note,
    })
}

/// Returns whether some line stays so low compared with the first one that it looks like the axis.
fn is_first_much_higher(chart: &Chart) -> bool {
    let highest = |series: &Series| series.points.iter().map(|point| point.1).fold(0.0, f64::max);
    let mut heights = chart.series.iter().map(highest);
    let first = heights.next().unwrap_or(0.0);
    heights.any(|height| height > 0.0 && height < LOW * first)
}

/// Returns the section on the traffic that scenarios count over time: a chart for each point. `None` if there is none.
pub(super) fn traffic_section(points: &[PointResult]) -> Option<Section> {
    let with = |point: &&PointResult| !point.traffic.is_empty();
    let first = points.iter().find(with)?;
    let shown: Vec<&PointResult> = points.iter().filter(with).take(MAX_FACETS).collect();
    let size = if shown.len() > 1 { SMALL } else { SIZE };
    let mut charts: Vec<Chart> =
        shown.iter().map(|point| traffic(point, point.label.clone(), size)).collect();
    share_axes(&mut charts);
    let all = points.iter().filter(with).count();
    let note = match all - shown.len() {
        0 => String::new(),
        _ => format!("The first {} of {all} points are shown.", shown.len()),
    };
    Some(Section {
        title: "Traffic over time".to_owned(),
        text: "The bytes on the links that the scenario counts, as a rate in each interval.".into(),
        legend: (first.traffic.iter().enumerate())
            .map(|(nth, series)| (series.name.clone(), Look::nth(nth), false))
            .collect(),
        rows: vec![Row { folded_as: None, charts }],
        note,
    })
}

/// Returns the chart of a point's traffic over time.
pub fn traffic(point: &PointResult, title: String, size: (f64, f64)) -> Chart {
    let line = |(nth, traffic): (usize, &TrafficSeries)| {
        let samples: Vec<(f64, f64)> =
            traffic.samples().map(|sample| (sample.at.as_us_f64(), sample.gbps)).collect();
        // Traffic ends after its last interval.
        let end = samples.last().map(|(at, _)| (at + traffic.interval.as_us_f64(), 0.0));
        Series {
            label: traffic.name.clone(),
            look: Look::nth(nth),
            points: samples.into_iter().chain(end).collect(),
            stroke: 1.4,
            step: true,
            marked: false,
            notes: Vec::new(),
        }
    };
    Chart {
        title,
        x: Axis::new("time", Scale::Linear, Quantity::Micros).including(0.0),
        y: Axis::new("Gbit/s", Scale::Linear, Quantity::Number).including(0.0),
        series: point.traffic.iter().enumerate().map(line).collect(),
        size,
        choice: None,
    }
}

fn shares(points: &[PointResult], facet: &Facet, distribution: Distribution<'_>) -> Chart {
    let (what, share, values) = distribution;
    let x = Axis::new("time", Scale::Log, Quantity::Micros);
    let y = Axis::new(share, Scale::Linear, Quantity::Fraction).between(0.0, 1.0);
    let mut chart = facet.chart(points, what, (x, y), |point| cdf(&mut values(point)));
    for series in &mut chart.series {
        series.step = true;
    }
    chart
}

fn queue(points: &[PointResult], facet: &Facet, longest: bool) -> Chart {
    let what = if longest { "Longest queue" } else { "All queues together" };
    let x = Axis::new("time", Scale::Linear, Quantity::Micros);
    let y = Axis::new("bytes waiting", Scale::Linear, Quantity::Bytes).including(0.0);
    let mut chart = facet.chart(points, what, (x, y), |point| {
        envelope(&point.queue_series, |q| if longest { q.max_bytes } else { q.total_bytes })
    });
    for series in &mut chart.series {
        series.stroke = 1.2;
    }
    chart
}

/// Returns at most [`COLUMNS`] points: the largest value of each interval of the series, at its time.
fn envelope(series: &[QueueSample], of: impl Fn(&QueueSample) -> u64) -> Vec<(f64, f64)> {
    series
        .chunks(series.len().div_ceil(COLUMNS).max(1))
        .filter_map(|chunk| chunk.iter().max_by_key(|sample| of(sample)))
        .map(|sample| (sample.at.as_us_f64(), of(sample) as f64))
        .collect()
}

/// What is shown next to a point of a chart: where it is from, and its value.
pub(super) fn note_on(point: &PointResult, value: f64) -> String {
    let missing = if point.summary.is_complete() { "" } else { " (messages are missing)" };
    format!("{}: {}{missing}", point.label, number::short(value))
}
