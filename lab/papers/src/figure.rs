//! The papers' figures, drawn from measured numbers.

use std::collections::BTreeSet;

use rackweave_lab::report::svg::{Axis, Chart, Look, PodChart, Series, Theme};
use rackweave_lab::report::ticks::{Quantity, Scale};
use rackweave_lab::report::{charts, pods};
use rackweave_lab::results::{PointResult, cdf, plain};
use rackweave_lab::study::cast;
use rackweave_lab::study::reduce::ReduceConfig;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::claim::{Figure, FigureAxis, FigureKind, Fold, Reference};
use super::path::{Missing, Path};
use super::rule::{Points, refuse_unknown};
use super::select::{PointKey, known_keys, number};

/// Width and height of a picture in pixels.
const SIZE: (f64, f64) = (560.0, 320.0);

/// Checks that the points that the figure shows exist, without running anything.
pub(crate) fn check(figure: &Figure, keys: &[PointKey]) -> Result<(), String> {
    refuse_unknown(&figure.of, keys)?;
    let shown: Vec<&PointKey> = keys.iter().filter(|key| figure.of.matches(key)).collect();
    let known = || known_keys(keys).join(", ");
    if shown.is_empty() {
        return Err(format!("it shows no point; points differ in {}", known()));
    }
    let x = (figure.kind == FigureKind::Sweep).then_some(&figure.x.key);
    for key in &figure.series {
        if shown.iter().all(|point| point.get(key).is_none()) {
            return Err(format!("no point that it shows has a key `{key}`"));
        }
    }
    for key in [figure.for_each.as_ref(), x].into_iter().flatten() {
        if shown.iter().any(|point| point.get(key).is_none()) {
            return Err(format!(
                "a point that it shows has no key `{key}`; points differ in {}",
                known()
            ));
        }
    }
    if figure.kind == FigureKind::BySize {
        percentile(figure)?;
    }
    let place = |point: &&PointKey| {
        let value = |key: &String| point.get(key).map(plain);
        (line_of(figure, point), figure.for_each.as_ref().map(value), x.map(value))
    };
    for published in &figure.published {
        if let Some(of) = &published.of
            && shown.iter().all(|point| line_of(figure, point) != *of)
        {
            return Err(format!("`published` of {of:?}: it has no such line"));
        }
    }
    let places: BTreeSet<_> = shown.iter().map(place).collect();
    if places.len() < shown.len() && figure.over.is_none() {
        return Err(format!("`series` does not distinguish its points; there are {}", known()));
    }
    Ok(())
}

/// Returns the name of the line that a point belongs to. Keys that only some points have distinguish those.
fn line_of(figure: &Figure, point: &PointKey) -> String {
    let names: Vec<String> =
        figure.series.iter().filter_map(|key| point.get(key)).map(plain).collect();
    names.join(", ")
}

/// A picture of a figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Picture {
    Lines(Box<Chart>),
    Pod(PodChart),
}

impl Picture {
    pub(crate) fn render(&self, theme: Theme) -> String {
        match self {
            Self::Lines(chart) => chart.render(theme),
            Self::Pod(chart) => chart.render(theme),
        }
    }

    /// The lines that a legend outside the picture names.
    pub(crate) fn series(&self) -> &[Series] {
        match self {
            Self::Lines(chart) => &chart.series,
            Self::Pod(_) => &[],
        }
    }
}

/// Returns the pictures and the names of their files.
pub(crate) fn draw(
    figure: &Figure,
    points: &Points,
    results: &[Option<&PointResult>],
) -> Result<Vec<(String, Picture)>, String> {
    check(figure, &points.keys)?;
    let shown: Vec<usize> =
        (0..points.keys.len()).filter(|&i| figure.of.matches(&points.keys[i])).collect();
    if !figure.is_lines() {
        return Ok(of_points(figure, &shown, points, results));
    }
    let charts = draw_lines(figure, &shown, points, results)?;
    Ok(charts.into_iter().map(|(name, chart)| (name, Picture::Lines(Box::new(chart)))).collect())
}

/// Returns a picture for each point.
fn of_points(
    figure: &Figure,
    shown: &[usize],
    points: &Points,
    results: &[Option<&PointResult>],
) -> Vec<(String, Picture)> {
    let picture = |&i: &usize| {
        let result = results[i]?;
        let line = line_of(figure, &points.keys[i]);
        let title = match shown.len() {
            1 => figure.title.clone(),
            _ => format!("{}, {line}", figure.title),
        };
        let picture = match figure.kind {
            FigureKind::Traffic => Picture::Lines(Box::new(charts::traffic(result, title, SIZE))),
            _ => Picture::Pod(pods::chart(result, &title)?),
        };
        let name = match shown.len() {
            1 => figure.name.clone(),
            _ => format!("{}-{}", figure.name, safe(&line)),
        };
        Some((name, picture))
    };
    shown.iter().filter_map(picture).collect()
}

/// Returns a text as a part of a file's name.
fn safe(text: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    text.chars().map(safe).collect()
}

fn draw_lines(
    figure: &Figure,
    shown: &[usize],
    points: &Points,
    results: &[Option<&PointResult>],
) -> Result<Vec<(String, Chart)>, String> {
    let Some(key) = &figure.for_each else {
        let chart = chart(figure, None, shown, points, results)?;
        return Ok(vec![(figure.name.clone(), chart)]);
    };
    let mut charts = Vec::new();
    for value in distinct(shown, key, points) {
        let of: Vec<usize> =
            shown.iter().copied().filter(|&i| points.keys[i].get(key) == Some(&value)).collect();
        let chart = chart(figure, Some(&value), &of, points, results)?;
        charts.push((format!("{}-{}", figure.name, safe(&plain(&value))), chart));
    }
    Ok(charts)
}

/// Returns each value of a key once, in the order of the sweep.
fn distinct(shown: &[usize], key: &str, points: &Points) -> Vec<Value> {
    let mut values: Vec<Value> = Vec::new();
    for value in shown.iter().filter_map(|&i| points.keys[i].get(key)) {
        if !values.contains(value) {
            values.push(value.clone());
        }
    }
    values
}

fn chart(
    figure: &Figure,
    facet: Option<&Value>,
    shown: &[usize],
    points: &Points,
    results: &[Option<&PointResult>],
) -> Result<Chart, String> {
    let mut series = Vec::new();
    let categories = categories(figure, shown, points);
    let name_of = |i: usize| line_of(figure, &points.keys[i]);
    let mut names: Vec<String> = Vec::new();
    for name in shown.iter().map(|&i| name_of(i)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for name in names {
        let mut line = Vec::new();
        for &i in shown.iter().filter(|&&i| name_of(i) == name) {
            match figure.kind {
                FigureKind::Sweep => line.extend(swept(figure, &categories, i, points)?),
                _ => line.extend(results[i].map(|r| curve(figure, r)).unwrap_or_default()),
            }
        }
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
        if let Some(over) = figure.over {
            let together = line.chunk_by(|a, b| a.0 == b.0);
            line = together
                .map(|same| {
                    let values: Vec<f64> = same.iter().map(|point| point.1).collect();
                    (same[0].0, over.of(&values))
                })
                .collect();
        }
        let marked = figure.kind == FigureKind::Sweep;
        let step = matches!(
            figure.kind,
            FigureKind::Cdf | FigureKind::SendTimes | FigureKind::WaitTimes | FigureKind::JobsDone
        );
        series.push(series_of(name, Look::nth(series.len()), line, marked, step));
    }
    let span = |points: &[(f64, f64)]| {
        let xs = || points.iter().map(|point| point.0);
        (xs().fold(f64::INFINITY, f64::min), xs().fold(f64::NEG_INFINITY, f64::max))
    };
    let all: Vec<(f64, f64)> = series.iter().flat_map(|s| s.points.clone()).collect();
    let (low, high) = span(&all);
    for published in &figure.published {
        let here =
            published.value.as_deref().is_none_or(|of| facet.map(plain).as_deref() == Some(of));
        if here {
            let next = Look::nth(series.len());
            let of = series.iter().find(|line| Some(&line.label) == published.of.as_ref());
            let look = Look { colour: of.map_or(next.colour, |line| line.look.colour), ..next };
            series.push(series_of(
                published.name.clone(),
                look,
                published.points.clone(),
                true,
                false,
            ));
        }
    }
    for line in &figure.lines {
        let y = height(line, shown, points)?;
        let across = match y {
            Some(y) if low <= high => vec![(low, y), (high, y)],
            _ => Vec::new(),
        };
        let look = Look::nth(series.len());
        series.push(series_of(line.name.clone(), look, across, false, false));
    }
    let title = match facet {
        Some(value) => format!("{}, {}", figure.title, plain(value)),
        None => figure.title.clone(),
    };
    let (x, y) = axes(figure, categories);
    Ok(Chart { title, x, y, series, size: SIZE, choice: None })
}

/// Returns where a line across a picture is; `None` if no run has its number.
fn height(line: &Reference, shown: &[usize], points: &Points) -> Result<Option<f64>, String> {
    let Some(metric) = &line.metric else { return Ok(line.y) };
    let mut values = Vec::new();
    for summary in shown.iter().filter_map(|&i| points.summaries[i].as_ref()) {
        match metric.numbers(summary) {
            Ok(numbers) => values.extend(numbers),
            Err(Missing::NoNumber) => {}
            Err(Missing::Unknown(why)) => return Err(why),
        }
    }
    Ok((!values.is_empty()).then(|| Fold::Mean.of(&values)))
}

fn series_of(
    label: String,
    look: Look,
    points: Vec<(f64, f64)>,
    marked: bool,
    step: bool,
) -> Series {
    Series { label, look, points, stroke: 2.0, step, marked, notes: Vec::new() }
}

/// Returns the categories along the x axis if the swept values are not all numbers.
fn categories(figure: &Figure, shown: &[usize], points: &Points) -> Vec<Value> {
    if figure.kind != FigureKind::Sweep {
        return Vec::new();
    }
    let values = distinct(shown, &figure.x.key, points);
    if values.iter().all(|value| number(value).is_some()) { Vec::new() } else { values }
}

/// Returns a point of a sweep; `None` if the run has no number there.
fn swept(
    figure: &Figure,
    categories: &[Value],
    index: usize,
    points: &Points,
) -> Result<Option<(f64, f64)>, String> {
    let value = points.keys[index].get(&figure.x.key);
    let place = categories.iter().position(|name| Some(name) == value);
    let x = place.map(|place| place as f64).or_else(|| value.and_then(number));
    let (Some(x), Some(summary), Some(metric)) = (x, &points.summaries[index], &figure.y.metric)
    else {
        return Ok(None);
    };
    match metric.numbers(summary) {
        Ok(numbers) => Ok(Some((x, figure.y.each.map_or(numbers[0], |fold| fold.of(&numbers))))),
        Err(Missing::NoNumber) => Ok(None),
        Err(Missing::Unknown(why)) => Err(why),
    }
}

/// Returns whether the figure shows the 99th percentile, and not the median.
fn percentile(figure: &Figure) -> Result<bool, String> {
    match figure.y.metric.as_ref().map(Path::as_str) {
        Some("p99") => Ok(true),
        Some("p50") => Ok(false),
        _ => Err("by size, `y.metric` is \"p50\" or \"p99\"".into()),
    }
}

fn curve(figure: &Figure, result: &PointResult) -> Vec<(f64, f64)> {
    match figure.kind {
        FigureKind::Cdf => result.latency_cdf.clone(),
        FigureKind::Queue => result
            .queue_series
            .iter()
            .map(|sample| (sample.at.as_us_f64(), sample.max_bytes as f64))
            .collect(),
        FigureKind::BySize => {
            let p99 = percentile(figure).unwrap_or(false);
            let steps = result.slowdown_curve.iter();
            steps.map(|s| (s.size_bytes as f64, if p99 { s.p99 } else { s.p50 })).collect()
        }
        FigureKind::SendTimes => cdf(&mut cast::times_us(result, true).unwrap_or_default()),
        FigureKind::WaitTimes => cdf(&mut cast::times_us(result, false).unwrap_or_default()),
        FigureKind::JobsDone => jobs_done(result),
        FigureKind::Sweep | FigureKind::Traffic | FigureKind::Pod => Vec::new(),
    }
}

/// The number of completed jobs at each completion.
fn jobs_done(result: &PointResult) -> Vec<(f64, f64)> {
    let jobs = result.summary.of::<ReduceConfig>().into_iter().flat_map(|reduce| &reduce.jobs);
    let mut ends: Vec<f64> = jobs.map(|job| job.finished_us).filter(|at| at.is_finite()).collect();
    ends.sort_by(f64::total_cmp);
    let counted = ends.into_iter().zip(1_u32..).map(|(at, count)| (at, f64::from(count)));
    std::iter::once((0.0, 0.0)).chain(counted).collect()
}

fn axes(figure: &Figure, categories: Vec<Value>) -> (Axis, Axis) {
    let (mut x_quantity, mut y_quantity) = (Quantity::Number, Quantity::Number);
    let (mut x_title, mut y_title) = (figure.x.key.clone(), String::new());
    match figure.kind {
        FigureKind::Sweep => {
            if let Some(metric) = &figure.y.metric {
                y_title = metric.to_string();
                y_quantity = quantity(metric);
            }
        }
        FigureKind::Cdf => {
            (x_title, x_quantity) = ("latency".into(), Quantity::Micros);
            (y_title, y_quantity) = ("share of messages".into(), Quantity::Fraction);
        }
        FigureKind::SendTimes => {
            (x_title, x_quantity) = ("send time".into(), Quantity::Micros);
            (y_title, y_quantity) = ("share of files".into(), Quantity::Fraction);
        }
        FigureKind::WaitTimes => {
            (x_title, x_quantity) = ("wait time".into(), Quantity::Micros);
            (y_title, y_quantity) = ("share of waits".into(), Quantity::Fraction);
        }
        FigureKind::BySize => {
            (x_title, x_quantity) = ("message size".into(), Quantity::Bytes);
            y_title = "slowdown".into();
        }
        FigureKind::JobsDone => {
            (x_title, x_quantity) = ("time".into(), Quantity::Micros);
            y_title = "completed jobs".into();
        }
        // These have axes of their own.
        FigureKind::Traffic | FigureKind::Pod => {}
        FigureKind::Queue => {
            (x_title, x_quantity) = ("time".into(), Quantity::Micros);
            (y_title, y_quantity) = ("longest queue".into(), Quantity::Bytes);
        }
    }
    let names: Vec<(f64, String)> =
        categories.iter().enumerate().map(|(i, value)| (i as f64, plain(value))).collect();
    let categorical = !names.is_empty();
    let axis = |axis: &FigureAxis, default: String, quantity| {
        let title = if axis.title.is_empty() { default } else { axis.title.clone() };
        let scale = if axis.log { Scale::Log } else { Scale::Linear };
        let made = Axis::new(title, scale, quantity);
        match axis.from {
            Some(from) => made.including(from),
            None => made,
        }
    };
    let mut x = axis(&figure.x, x_title, x_quantity);
    if categorical {
        let last = names.len() as f64 - 1.0;
        x = x.named(names).between(-0.3, last + 0.3);
    }
    (x, axis(&figure.y, y_title, y_quantity))
}

fn quantity(metric: &Path) -> Quantity {
    match metric.as_str() {
        text if text.contains("_us") => Quantity::Micros,
        text if text.contains("_bytes") => Quantity::Bytes,
        _ => Quantity::Number,
    }
}
