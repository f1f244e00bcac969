//! Selection of the points of a scenario that a rule or figure refers to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rackweave_core::{Bytes, Rate, Span};
use rackweave_lab::results::{plain, short_key};
use rackweave_lab::scenario::PointSpec;
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::Value;

/// The keys and values that identify a point of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct PointKey {
    set: BTreeMap<String, Value>,
}

/// The keys that every point has in addition to the swept ones.
const TRANSPORT: &str = "transport";
/// The name of the transport in results: `transport.label`, or else its name.
const LABEL: &str = "label";

impl PointKey {
    pub(crate) fn of(spec: &PointSpec) -> Self {
        let mut set: BTreeMap<String, Value> = spec.set.iter().cloned().collect();
        let label = spec.labels.first().unwrap_or(&spec.transport);
        set.insert(LABEL.into(), label.as_str().into());
        set.insert(TRANSPORT.into(), spec.transport.clone().into());
        Self { set }
    }

    pub(crate) fn insert(&mut self, key: &str, value: &str) {
        self.set.insert(key.to_owned(), value.into());
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.set.get(key)
    }
}

/// Returns the keys by which points of a scenario can be selected, for messages.
pub(crate) fn known_keys(points: &[PointKey]) -> Vec<&str> {
    let mut keys: Vec<&str> = points.iter().flat_map(|p| p.set.keys()).map(|k| &**k).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Returns what a quick run leaves out of these points, in words: the values of swept keys that it has no point of, and how many of the
/// points it lacks. `None` if it lacks none.
pub(crate) fn not_tried(whole: &[PointKey], tried: &[PointKey]) -> Option<String> {
    let missing = whole.len().checked_sub(tried.len()).filter(|missing| *missing > 0)?;
    let mut left_out = Vec::new();
    for key in known_keys(whole) {
        let value = |point: &PointKey| Some(plain(point.get(key)?));
        let some: BTreeSet<String> = tried.iter().filter_map(value).collect();
        // In the order of the sweep. A label may have commas.
        let mut missing: Vec<String> = Vec::new();
        for value in whole.iter().filter_map(value).filter(|value| !some.contains(value)) {
            let value = if value.contains(',') { format!("`{value}`") } else { value };
            if !missing.contains(&value) {
                missing.push(value);
            }
        }
        // A transport is named by its label.
        if !missing.is_empty() && !["transport", "transport.name", "transport.label"].contains(&key)
        {
            left_out.push(format!("{} {}", short_key(key), missing.join(", ")));
        }
    }
    let which =
        if left_out.is_empty() { String::new() } else { format!(": {}", left_out.join("; ")) };
    Some(format!("{missing} of {} points{which}", whole.len()))
}

/// A condition on the keys of points, as a table such as `{ label = "static *", workload.senders = ">= 10" }`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector(BTreeMap<String, Condition>);

/// The condition on one key's value.
#[derive(Clone, Debug)]
enum Condition {
    Any(Vec<Self>),
    Not(Box<Self>),
    Bound { relation: Relation, limit: f64 },
    Pattern(String),
    Exactly(Value),
}

/// A relation between two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
pub(crate) enum Relation {
    #[serde(rename = "<")]
    Below,
    #[serde(rename = "<=")]
    AtMost,
    #[serde(rename = "==")]
    Equal,
    #[serde(rename = ">=")]
    AtLeast,
    #[serde(rename = ">")]
    Above,
    /// Equal up to the rule's tolerance.
    #[serde(rename = "within")]
    Within,
    /// Of each two cases whose right sides differ by more than the rule's tolerance, the same one has the larger left side.
    #[serde(rename = "same-order")]
    SameOrder,
}

impl Relation {
    /// Returns whether the relation holds if `tolerance`, a share of the right side, is allowed.
    pub(crate) fn holds(self, left: f64, right: f64, tolerance: f64) -> bool {
        let slack = tolerance * right.abs();
        match self {
            Self::Below => left < right + slack,
            Self::AtMost => left <= right + slack,
            Self::Equal => left == right,
            Self::AtLeast => left >= right - slack,
            Self::Above => left > right - slack,
            // Its checks compare the left sides of two cases, without a tolerance.
            Self::SameOrder => left > right,
            Self::Within => (left - right).abs() <= slack,
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Below => "<",
            Self::AtMost => "<=",
            Self::Equal => "==",
            Self::AtLeast => ">=",
            Self::Above | Self::SameOrder => ">",
            Self::Within => "near",
        })
    }
}

/// Returns a swept value as a number, if it is one. Sizes, times and rates with units are numbers too.
pub(crate) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(n) => n.as_f64(),
        Value::String(text) => {
            let bytes = text.parse::<Bytes>().map(|b| b.0 as f64);
            let span = || text.parse::<Span>().map(Span::as_us_f64);
            let rate = || text.parse::<Rate>().map(|r| r.0 as f64 / 1e9);
            bytes.or_else(|_| span()).or_else(|_| rate()).ok().or_else(|| text.parse().ok())
        }
        _ => None,
    }
}

impl Condition {
    fn read(value: &toml::Value) -> Result<Self, String> {
        Ok(match value {
            toml::Value::Array(values) => {
                Self::Any(values.iter().map(Self::read).collect::<Result<_, _>>()?)
            }
            toml::Value::String(text) => return Self::text(text),
            toml::Value::Integer(n) => Self::Exactly((*n).into()),
            toml::Value::Float(x) => Self::Exactly((*x).into()),
            toml::Value::Boolean(b) => Self::Exactly((*b).into()),
            other => return Err(format!("{other} is no value of a swept key")),
        })
    }

    fn text(text: &str) -> Result<Self, String> {
        use Relation::{Above, AtLeast, AtMost, Below};
        // Longer signs come first, because ">=" begins with ">".
        for (sign, relation) in [(">=", AtLeast), ("<=", AtMost), (">", Above), ("<", Below)] {
            if let Some(limit) = text.strip_prefix(sign) {
                let limit = number(&Value::String(limit.trim().into()))
                    .ok_or_else(|| format!("{text:?} compares with no number"))?;
                return Ok(Self::Bound { relation, limit });
            }
        }
        if let Some(rest) = text.strip_prefix('!') {
            return Ok(Self::Not(Box::new(Self::text(rest)?)));
        }
        Ok(match text.strip_suffix('*') {
            Some(head) => Self::Pattern(head.into()),
            None => Self::Exactly(text.into()),
        })
    }

    fn matches(&self, value: &Value) -> bool {
        match self {
            Self::Any(wanted) => wanted.iter().any(|wanted| wanted.matches(value)),
            Self::Not(wanted) => !wanted.matches(value),
            Self::Bound { relation, limit } => {
                number(value).is_some_and(|value| relation.holds(value, *limit, 0.0))
            }
            Self::Pattern(head) => plain(value).starts_with(head),
            Self::Exactly(wanted) => {
                wanted == value || (wanted.is_number() && wanted.as_f64() == value.as_f64())
            }
        }
    }
}

impl Selector {
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(crate) fn matches(&self, point: &PointKey) -> bool {
        self.0.iter().all(|(key, wanted)| point.get(key).is_some_and(|value| wanted.matches(value)))
    }
}

/// Flattens nested tables to paths: `{ workload.senders = 4 }` is `{ "workload.senders" = 4 }`.
pub(crate) fn flatten(table: toml::Table) -> Vec<(String, toml::Value)> {
    let mut flat = Vec::new();
    for (key, value) in table {
        match value {
            toml::Value::Table(inner) => {
                let inner = flatten(inner).into_iter();
                flat.extend(inner.map(|(rest, value)| (format!("{key}.{rest}"), value)));
            }
            other => flat.push((key, other)),
        }
    }
    flat
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let table = toml::Table::deserialize(from)?;
        let wanted = flatten(table).into_iter().map(|(key, value)| {
            let wanted = Condition::read(&value).map_err(D::Error::custom)?;
            Ok((key, wanted))
        });
        wanted.collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
pub(crate) fn key(set: &[(&str, Value)], transport: &str) -> PointKey {
    let mut set: BTreeMap<String, Value> =
        set.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    set.entry(LABEL.into()).or_insert_with(|| transport.into());
    set.insert(TRANSPORT.into(), transport.into());
    PointKey { set }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_not_tried_is_in_the_order_of_the_sweep_and_labels_with_commas_are_quoted() {
        let whole: Vec<PointKey> = ["10 KB", "100 KB", "1 MB"]
            .into_iter()
            .flat_map(|size| ["a", "b, c"].map(|label| (size, label)))
            .map(|(size, label)| {
                key(&[("workload.sizes", json!(size)), ("label", json!(label))], "homa")
            })
            .collect();
        let words = not_tried(&whole, &[]).unwrap();
        assert_eq!(words, "6 of 6 points: label a, `b, c`; sizes 10 KB, 100 KB, 1 MB");
        let words = not_tried(&whole, &whole[..2]).unwrap();
        assert_eq!(words, "4 of 6 points: sizes 100 KB, 1 MB");
        assert_eq!(not_tried(&whole, &whole), None);
    }

    fn selects(selector: &str, set: &[(&str, Value)]) -> bool {
        #[derive(serde::Deserialize)]
        struct Holder {
            of: Selector,
        }
        let holder: Holder = toml::from_str(&format!("of = {selector}")).unwrap();
        holder.of.matches(&key(set, "homa"))
    }

    #[test]
    fn values_lists_patterns_and_bounds_select() {
        let set = [
            ("workload.senders", json!(20)),
            ("workload.sizes", json!("100 KB")),
            ("transport.label", json!("static 8")),
        ];
        for (selector, expected) in [
            ("{}", true),
            ("{ transport = 'homa' }", true),
            ("{ transport = ['ndp', 'homa'] }", true),
            ("{ transport = '!homa' }", false),
            ("{ workload.senders = 20.0 }", true),
            ("{ 'workload.senders' = '>= 20' }", true),
            ("{ workload.senders = '> 20' }", false),
            ("{ workload = { senders = 20, sizes = '100 KB' } }", true),
            ("{ workload.sizes = '>= 50 KB' }", true),
            ("{ workload.sizes = '< 50 KB' }", false),
            ("{ transport.label = 'static *' }", true),
            ("{ transport.label = '!static *' }", false),
            ("{ seed = 1 }", false),
        ] {
            assert_eq!(selects(selector, &set), expected, "{selector}");
        }
    }
}
