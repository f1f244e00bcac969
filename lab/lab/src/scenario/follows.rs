//! Values that are no keys of a scenario because they follow from others: of them its resolved form has comments.

use rackweave_core::{Bytes, Rate};
use rackweave_scenario::values::{Limit, Unit};
use rackweave_sim::config::{BufferConfig, FabricConfig, Topology};

use super::PointSpec;

/// The comment above the values.
pub(crate) const HEADING: &str = "# What follows from these keys:";

/// Returns the values that all points share, as the keys with which they could be set, and TOML.
pub(crate) fn values(points: &[PointSpec]) -> Vec<(&'static str, toml::Value)> {
    let mut of_all = points.iter().map(|point| of(&point.config.fabric));
    let Some(first) = of_all.next() else { return Vec::new() };
    let mut shared = first;
    for other in of_all {
        shared.retain(|value| other.contains(value));
    }
    shared
}

/// Returns the values of a resolved scenario's comments.
pub(crate) fn read(resolved: &str) -> impl Iterator<Item = (&str, toml::Value)> {
    let lines = resolved.lines().skip_while(|line| *line != HEADING).skip(1);
    lines.filter_map(|line| {
        let (key, value) = line.strip_prefix("# ")?.split_once(" = ")?;
        Some((key, value.parse().ok()?))
    })
}

/// Returns the value of a key with dots.
pub(crate) fn value_at<'a>(table: &'a toml::Table, key: &str) -> Option<&'a toml::Value> {
    let mut parts = key.split('.');
    let first = table.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}

fn of(fabric: &FabricConfig) -> Vec<(&'static str, toml::Value)> {
    let buffer = match fabric.switch.buffer {
        BufferConfig::PerPort { bytes: u64::MAX } => Some(toml::Value::try_from(Limit(None))),
        BufferConfig::PerPort { bytes } => Some(toml::Value::try_from(Unit(Bytes(bytes)))),
        BufferConfig::Shared { .. } => None,
    };
    let link = |rate: Rate| Some(toml::Value::try_from(Unit(rate)));
    let (core, aggregation) = match fabric.topology {
        Topology::Dumbbell { core_link, .. } | Topology::LeafSpine { core_link, .. } => {
            (link(core_link), None)
        }
        Topology::FatTree { core_link, aggregation_link, .. } => {
            (link(core_link), link(aggregation_link))
        }
        Topology::SingleSwitch { .. } | Topology::Pod(_) => (None, None),
    };
    let all = [
        ("fabric.core_link", core),
        ("fabric.aggregation_link", aggregation),
        ("fabric.switch.buffer", buffer),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key, value?.ok()?))).collect()
}
