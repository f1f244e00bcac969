//! The names of points in tables, legends and charts.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{MissingPoint, PointResult, PointSummary};

/// The prefix of the keys that a transport's `label` summarizes.
const OF_TRANSPORT: &str = "transport.";

/// Sets the labels and variants of points.
pub(super) fn name(points: &mut [PointResult]) {
    let named: Vec<_> = labels(points).into_iter().zip(variants(points)).collect();
    for (point, (label, variant)) in points.iter_mut().zip(named) {
        point.label = label;
        point.variant = variant;
    }
}

impl PointResult {
    /// Returns the swept keys and values that the label of its transport does not already include.
    pub fn variant(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variant.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Returns [`PointResult::variant`] in words: "load 0.8, buffer 500 KB"; empty if there is none.
    #[must_use]
    pub fn variant_label(&self) -> String {
        let parts = self.variant().map(|(key, value)| format!("{} {value}", short_key(key)));
        parts.collect::<Vec<_>>().join(", ")
    }
}

/// Marks the points that would be compared with one that has no results: those of the same values of what is swept besides the
/// transports, or all points of the only transport. A point is there if some of its seeds have results.
pub(super) fn mark(points: &mut [PointResult], missing: &[MissingPoint]) {
    let is_there =
        |it: &MissingPoint| points.iter().any(|point| it.is_repetition_of(&point.summary));
    let missing: Vec<&MissingPoint> = missing.iter().filter(|it| !is_there(it)).collect();
    if missing.is_empty() {
        return;
    }
    let known: BTreeSet<String> = points.iter().map(|it| it.summary.label.clone()).collect();
    let labels: BTreeSet<&str> = known
        .iter()
        .map(String::as_str)
        .chain(missing.iter().map(|it| it.label.as_str()))
        .collect();
    let mut by_class: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for point in &*points {
        by_class.entry(point.variant_label()).or_default().insert(point.summary.label.clone());
    }
    for point in points {
        point.lacks_rivals =
            labels.len() == 1 || by_class[&point.variant_label()].len() < labels.len();
    }
}

/// Returns the last segment of a dotted key, which names "workload.load" in labels.
#[must_use]
pub fn short_key(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// Returns a value without the quotes of JSON.
#[must_use]
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the keys whose values vary among points with the same label.
fn varying_keys(points: &[PointResult]) -> BTreeSet<String> {
    let mut values: BTreeMap<(&str, &str), BTreeSet<Option<String>>> = BTreeMap::new();
    for key in points.iter().flat_map(|point| point.summary.set.keys()).collect::<BTreeSet<_>>() {
        for PointResult { summary, .. } in points {
            let value = summary.set.get(key).map(plain);
            values.entry((key, &summary.label)).or_default().insert(value);
        }
    }
    let varies = values.iter().filter(|(_, values)| values.len() > 1);
    varies.map(|((key, _), _)| (*key).to_owned()).collect()
}

/// Returns the keys and values that are compared, for each point. Keys of `[measure]`, keys that a transport's label
/// summarizes, and keys that follow from the label (such as `fabric.switch.trim` where only NDP has it) count only if
/// nothing else distinguishes the points.
fn variants(points: &[PointResult]) -> Vec<Vec<(String, String)>> {
    let labelled = are_labelled(points);
    let is_of_labels =
        |key: &str| key.starts_with("measure.") || labelled && key.starts_with(OF_TRANSPORT);
    let varies = varying_keys(points);
    let variants = |is_compared: &dyn Fn(&str) -> bool| -> Vec<Vec<(String, String)>> {
        let variant = |point: &PointResult| {
            let summary = &point.summary;
            let swept = summary.set.iter().filter(|(key, _)| *key != "transport.label");
            swept
                .filter(|(key, _)| is_compared(key))
                .map(|(key, value)| (key.clone(), plain(value)))
                .filter(|(_, value)| *value != summary.transport && *value != summary.label)
                .collect()
        };
        points.iter().map(variant).collect()
    };
    let distinguish = |variants: &Vec<Vec<(String, String)>>| {
        let names = points.iter().map(|point| &point.summary.label).zip(variants);
        names.collect::<BTreeSet<_>>().len() == points.len()
    };
    Some(variants(&|key| !is_of_labels(key) && varies.contains(key)))
        .filter(distinguish)
        .or_else(|| Some(variants(&|key| !is_of_labels(key))).filter(distinguish))
        .unwrap_or_else(|| variants(&|_| true))
}

/// Returns labels such as "homa" or "homa, load 0.8", with as many of the swept keys as it takes to distinguish the
/// points.
///
/// Keys that follow from the label of a transport, such as faults that some cases of a sweep have and name, are left out if the others
/// suffice.
fn labels(points: &[PointResult]) -> Vec<String> {
    let most = points.iter().map(|point| point.summary.set.len()).max().unwrap_or(0);
    let with = |keys: usize, all: bool| -> Vec<String> {
        points.iter().map(|point| label(&point.summary, keys, all)).collect()
    };
    let differ =
        |labels: &Vec<String>| labels.iter().collect::<BTreeSet<_>>().len() == labels.len();
    let varying: Vec<PointSummary> = {
        let varies = varying_keys(points);
        let only_varying = |point: &PointResult| {
            let (label, transport) = (&point.summary.label, &point.summary.transport);
            let mut set = point.summary.set.clone();
            set.retain(|key, _| varies.contains(key));
            PointSummary {
                label: label.clone(),
                transport: transport.clone(),
                set,
                ..PointSummary::default()
            }
        };
        points.iter().map(only_varying).collect()
    };
    let short = |keys: usize| -> Vec<String> {
        varying.iter().map(|summary| label(summary, keys, false)).collect()
    };
    let shorts = (0..=most).map(short);
    let longer = [!are_labelled(points), true]
        .into_iter()
        .flat_map(|all| (0..=most).map(move |keys| (keys, all)))
        .map(|(keys, all)| with(keys, all));
    shorts.chain(longer).find(differ).unwrap_or_else(|| with(most, true))
}

/// Returns whether the scenario sets labels for the transports that it compares.
fn are_labelled(points: &[PointResult]) -> bool {
    points.iter().any(|point| point.summary.label != point.summary.transport)
}

/// Returns the label with this many of the swept keys, including those of the transport only if `all`.
pub(super) fn label(point: &PointSummary, keys: usize, all: bool) -> String {
    let mut parts = vec![point.label.clone()];
    let wanted = |key: &str| all || !key.starts_with(OF_TRANSPORT);
    for (key, value) in point.set.iter().filter(|(key, _)| wanted(key)).take(keys) {
        let value = plain(value);
        if value != point.transport && value != point.label {
            parts.push(format!("{} {value}", short_key(key)));
        }
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(label: &str, set: &[(&str, Value)]) -> PointResult {
        let set = set.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        let (transport, label) = (label.to_owned(), label.to_owned());
        let summary = PointSummary { transport, label, set, ..PointSummary::default() };
        PointResult { summary, ..PointResult::default() }
    }

    #[test]
    fn keys_that_follow_from_the_transport_are_not_compared() {
        let load = |x: f64| ("workload.load", Value::from(x));
        let trim = || ("fabric.switch.trim", Value::from(true));
        let mut points = [
            point("homa", &[load(0.3)]),
            point("homa", &[load(0.5)]),
            point("ndp", &[trim(), load(0.3)]),
            point("ndp", &[trim(), load(0.5)]),
        ];
        name(&mut points);
        let variants = points.each_ref().map(PointResult::variant_label);
        assert_eq!(variants, ["load 0.3", "load 0.5", "load 0.3", "load 0.5"]);
    }

    #[test]
    fn keys_of_measure_are_compared_if_nothing_else_varies() {
        let verify = |on: bool| ("measure.verify", Value::from(on));
        let mut points = [point("homa", &[verify(true)]), point("homa", &[verify(false)])];
        name(&mut points);
        let variants = points.each_ref().map(PointResult::variant_label);
        assert_eq!(variants, ["verify true", "verify false"]);
    }
}
