//! The data of a chart as JSON, from which the script of a page draws it again.

use serde_json::{Value, json};

use super::{Axis, AxisLayout, Chart, DASHES};
use crate::report::ticks::{Quantity, Scale};

/// Returns a value with six significant digits, as many as the lines of a chart need.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// The points of a line as JSON: values have six significant digits, and one that is not finite is `null`.
pub(super) mod points {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    type Pair = (Option<f64>, Option<f64>);

    pub(in super::super) fn serialize<S: Serializer>(
        points: &[(f64, f64)],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let value = |value: f64| value.is_finite().then(|| super::rounded(value));
        let pairs: Vec<Pair> =
            points.iter().map(|point| (value(point.0), value(point.1))).collect();
        pairs.serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(f64, f64)>, D::Error> {
        let value = |value: Option<f64>| value.unwrap_or(f64::NAN);
        let pairs = Vec::<Pair>::deserialize(from)?.into_iter();
        Ok(pairs.map(|pair| (value(pair.0), value(pair.1))).collect())
    }
}

fn axis(axis: &Axis, laid: &AxisLayout) -> Value {
    let quantity = match axis.quantity {
        Quantity::Number => "number",
        Quantity::Bytes => "bytes",
        Quantity::Micros => "micros",
        Quantity::Fraction => "fraction",
    };
    let names: Vec<Value> =
        axis.names.iter().map(|(value, name)| json!([rounded(*value), text(name)])).collect();
    let sizes: Vec<Value> =
        axis.sizes.iter().map(|(place, bytes)| json!([rounded(*place), bytes])).collect();
    json!({
        "title": text(&axis.title),
        "sizes": sizes,
        "log": axis.scale == Scale::Log,
        "quantity": quantity,
        "include": axis.include,
        "ends": [rounded(laid.map.low), rounded(laid.map.high)],
        "names": names,
    })
}

/// Replaces characters that XML forbids.
fn text(text: &str) -> String {
    let is_forbidden = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|c| if is_forbidden(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

impl Chart {
    /// Returns the axes and the drawn points as JSON without characters that mean something in HTML or XML; `None` if nothing is drawn.
    #[must_use]
    pub fn data(&self) -> Option<String> {
        let (x, y) = self.layout(0.0, self.size.1)?;
        let lines: Vec<Value> = (self.series.iter())
            .map(|series| {
                let part = |part: &Vec<usize>| -> Vec<f64> {
                    let points = part.iter().map(|index| series.points[*index]);
                    points.flat_map(|(x, y)| [rounded(x), rounded(y)]).collect()
                };
                let parts = self.drawn(series, (x.map, y.map));
                json!({
                    "name": text(&series.label),
                    "colour": series.look.class(),
                    "look": series.look.line_class(),
                    "dash": DASHES[series.look.dash % DASHES.len()],
                    "width": series.stroke,
                    "step": series.step,
                    "parts": parts.iter().map(part).collect::<Vec<_>>(),
                })
            })
            .collect();
        let data = json!({ "x": axis(&self.x, &x), "y": axis(&self.y, &y), "lines": lines });
        let escaped = data.to_string().replace('<', "\\u003c").replace('>', "\\u003e");
        Some(escaped.replace('&', "\\u0026"))
    }
}
