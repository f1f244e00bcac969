//! The charts of results over a swept key.

use std::collections::BTreeMap;

use rackweave_core::{Bytes, Rate, Span};

use super::charts::{
    MAX_LINES, Row, SMALL, Section, Statistic, capital, latency_axis, note_on, slowdown_axis,
    statistics,
};
use super::svg::{Axis, Chart, Choice, Look, Series};
use super::ticks::{Quantity, Scale};
use crate::results::{PointResult, PointSummary, Stats, short_key};

/// Returns a section for each swept key with at least three values, with results over the value.
pub(super) fn sweeps(points: &[PointResult]) -> Vec<Section> {
    let mut keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (key, value) in points.iter().flat_map(PointResult::variant) {
        let values = keys.entry(key).or_default();
        if !values.contains(&value) {
            values.push(value);
        }
    }
    keys.into_iter()
        // Another seed repeats the same experiment.
        .filter(|(key, values)| values.len() >= 3 && short_key(key) != "seed")
        .map(|(key, values)| sweep(points, key, &values))
        .collect()
}

/// A line of a sweep's charts: its name, and its points with their position on the x axis.
type SweepLine<'a> = (String, Vec<(f64, &'a PointResult)>);

fn sweep(points: &[PointResult], key: &str, values: &[&str]) -> Section {
    let (x, places) = sweep_axis(key, values);
    let mut lines: Vec<SweepLine<'_>> = Vec::new();
    for point in points {
        let Some(place) = point
            .variant()
            .find(|(k, _)| *k == key)
            .and_then(|(_, value)| values.iter().position(|v| *v == value))
        else {
            continue;
        };
        let others = point.variant().filter(|(k, _)| *k != key);
        let name = others.fold(point.summary.label.clone(), |name, (k, value)| {
            format!("{name}, {} {value}", short_key(k))
        });
        let entry = (places[place], point);
        match lines.iter_mut().find(|(n, _)| *n == name) {
            Some((_, line)) => line.push(entry),
            None => lines.push((name, vec![entry])),
        }
    }
    let note = if lines.len() > MAX_LINES {
        format!("The first {MAX_LINES} of {} lines are drawn.", lines.len())
    } else {
        String::new()
    };
    lines.truncate(MAX_LINES);
    for (_, line) in &mut lines {
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let chart =
        |what: String, y: Axis, choice: Option<Choice>, of: &dyn Fn(&PointResult) -> f64| Chart {
            title: what,
            x: x.clone(),
            y,
            series: lines
                .iter()
                .enumerate()
                .map(|(nth, (name, line))| Series {
                    label: name.clone(),
                    look: Look::nth(nth),
                    points: line.iter().map(|(x, point)| (*x, of(point))).collect(),
                    stroke: 2.0,
                    step: false,
                    marked: true,
                    notes: line.iter().map(|(_, p)| note_on(p, of(p))).collect(),
                })
                .collect(),
            size: SMALL,
            choice,
        };
    let by = |what: &str| format!("{what} by {}", short_key(key));
    let chosen = |(of, y): (fn(&PointSummary) -> &Stats, Axis)| -> Vec<Chart> {
        let draw = |(choice, value): (Choice, Statistic)| {
            let title = format!("{}, {}", by(&capital(&y.title)), choice.name);
            chart(title, y.clone(), Some(choice), &|point| value(of(&point.summary)))
        };
        statistics().map(draw).collect()
    };
    let mut charts = chosen((|it| &it.slowdown, slowdown_axis()));
    charts.extend(chosen((|it| &it.latency_us, latency_axis())));
    let goodput = Axis::new("Gbit/s", Scale::Linear, Quantity::Number).including(0.0);
    charts.push(chart(by("Goodput"), goodput, None, &|p| p.summary.goodput_gbps));
    Section {
        title: format!("The sweep over {}", short_key(key)),
        text: format!("All messages of a run together, against {key}."),
        legend: lines
            .iter()
            .enumerate()
            .map(|(nth, (name, _))| (name.clone(), Look::nth(nth), true))
            .collect(),
        rows: vec![Row { folded_as: None, charts }],
        note,
    }
}

/// Returns the axis of a swept key and the position of each of its values: to scale if all are numbers or quantities of
/// one kind, else at equal distances.
fn sweep_axis(key: &str, values: &[&str]) -> (Axis, Vec<f64>) {
    #[expect(clippy::cast_precision_loss, reason = "places along an axis")]
    let quantity = |text: &&str| -> Option<(f64, u8)> {
        if let Ok(number) = text.parse::<f64>() {
            return number.is_finite().then_some((number, 0));
        }
        let size = text.parse::<Bytes>().map(|v| (v.0 as f64, 1));
        let span = text.parse::<Span>().map(|v| (v.ticks() as f64, 2));
        let rate = text.parse::<Rate>().map(|v| (v.0 as f64, 3));
        size.or(span.map_err(drop)).or(rate.map_err(drop)).ok()
    };
    let parsed: Option<Vec<(f64, u8)>> = values.iter().map(quantity).collect();
    let title = key.to_owned();
    let named = |places: &[f64]| -> Vec<(f64, String)> {
        let mut names: Vec<(f64, String)> =
            places.iter().copied().zip(values.iter().map(|v| (*v).to_owned())).collect();
        names.sort_by(|a, b| a.0.total_cmp(&b.0));
        names
    };
    if let Some(parsed) = parsed.filter(|p| p.iter().all(|(_, kind)| *kind == p[0].1)) {
        let places: Vec<f64> = parsed.into_iter().map(|(value, _)| value).collect();
        let low = places.iter().copied().fold(f64::INFINITY, f64::min);
        let high = places.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let scale = if low > 0.0 && high / low > 20.0 { Scale::Log } else { Scale::Linear };
        return (Axis::new(title, scale, Quantity::Number).named(named(&places)), places);
    }
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    let places: Vec<f64> = (0..values.len()).map(|i| i as f64).collect();
    let last = places.last().copied().unwrap_or(0.0);
    let axis = Axis::new(title, Scale::Linear, Quantity::Number)
        .between(-0.3, last + 0.3)
        .named(named(&places));
    (axis, places)
}
