//! The marks of an axis and their labels.

use serde::{Deserialize, Serialize};

use super::number;

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Values are placed linearly.
    Linear,
    /// Values are placed by their logarithm; values of zero and less cannot be shown.
    Log,
}

/// The quantity along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantity {
    /// A number without a unit.
    Number,
    /// A number of bytes.
    Bytes,
    /// A duration in microseconds.
    Micros,
    /// A fraction of one, shown in percent.
    Fraction,
}

/// The leading digits of the marks in a decade, from coarse to fine.
const DECADE_STEPS: [&[f64]; 4] =
    [&[1.0], &[1.0, 3.0], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0]];

/// The tolerance for rounding errors in sums and quotients of ticks, relative to the range.
const SLACK: f64 = 1e-9;

/// Returns the step of 1, 2 or 5 times a power of ten that divides `span` into at most `most` steps.
fn nice_step(span: f64, most: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    let raw = span / most.max(1) as f64;
    let magnitude = libm::exp10(libm::floor(libm::log10(raw)));
    for factor in [1.0, 2.0, 5.0] {
        if raw <= factor * magnitude * (1.0 + SLACK) {
            return factor * magnitude;
        }
    }
    10.0 * magnitude
}

/// Returns evenly spaced round numbers within `[low, high]`, at most `most + 1` of them.
#[must_use]
pub fn linear(low: f64, high: f64, most: usize) -> Vec<f64> {
    if !(low.is_finite() && high.is_finite() && low < high && (high - low).is_finite()) {
        return Vec::new();
    }
    let step = nice_step(high - low, most);
    // A range whose ends differ only by a few bits contains no round numbers.
    if step <= low.abs().max(high.abs()) * 1e-12 || !step.is_normal() {
        return Vec::new();
    }
    let first = libm::ceil(low / step - SLACK);
    let last = libm::floor(high / step + SLACK);
    let mut ticks = Vec::new();
    let mut index = first;
    while index <= last {
        // Repeated addition would turn 0.3 into 0.30000000000000004.
        ticks.push(if step < 1.0 { index / libm::round(1.0 / step) } else { index * step });
        index += 1.0;
    }
    ticks
}

/// Returns at most `most + 1` round numbers within `[low, high]` for a logarithmic axis: powers of ten, with steps
/// between them where there is room.
#[must_use]
pub fn log(low: f64, high: f64, most: usize) -> Vec<f64> {
    if !(low.is_finite() && high.is_finite() && low > 0.0 && low < high) {
        return Vec::new();
    }
    for digits in DECADE_STEPS.iter().rev() {
        let ticks = decades(low, high, 1, digits);
        if ticks.len() >= 2 && ticks.len() <= most + 1 {
            return ticks;
        }
    }
    let whole = decades(low, high, 1, &[1.0]);
    if whole.len() < 2 {
        return linear(low, high, most); // too narrow to hold even one step of a decade
    }
    let stride = whole.len().div_ceil(most.max(1));
    decades(low, high, stride, &[1.0])
}

/// Returns `digits` times every `stride`th power of ten within the range.
fn decades(low: f64, high: f64, stride: usize, digits: &[f64]) -> Vec<f64> {
    #[expect(clippy::cast_possible_truncation, reason = "log10 of an f64 is below 309")]
    let (first, last) =
        (libm::floor(libm::log10(low)) as i32 - 1, libm::ceil(libm::log10(high)) as i32);
    let inside = |tick: &f64| *tick >= low * (1.0 - SLACK) && *tick <= high * (1.0 + SLACK);
    // A stride begins at the first power of ten in the range.
    let first = if stride == 1 {
        first
    } else {
        (first..=last).find(|e| inside(&libm::exp10((*e).into()))).unwrap_or(first)
    };
    (first..=last)
        .step_by(stride)
        .flat_map(|exponent| digits.iter().map(move |digit| digit * libm::exp10(exponent.into())))
        .filter(inside)
        .collect()
}

/// Returns the range of an axis that shows `[low, high]`: widened to round numbers, and never empty.
#[must_use]
pub fn widen(low: f64, high: f64, scale: Scale, most: usize) -> (f64, f64) {
    match scale {
        Scale::Linear => {
            if low >= high {
                let around = if low == 0.0 { 1.0 } else { low.abs() * 0.5 };
                return (if low == 0.0 { 0.0 } else { low - around }, high + around);
            }
            let step = nice_step(high - low, most);
            (libm::floor(low / step + SLACK) * step, libm::ceil(high / step - SLACK) * step)
        }
        Scale::Log => {
            let below = decades(low / 10.0, low, 1, DECADE_STEPS[2]).pop().unwrap_or(low);
            let above = decades(high, high * 10.0, 1, DECADE_STEPS[2]);
            let above = above.first().copied().unwrap_or(high);
            if below < above { (below, above) } else { (below, below * 2.0) }
        }
    }
}

/// Returns the labels of an axis, and the unit for its title if all labels have the same unit.
#[must_use]
pub fn labels(ticks: &[f64], scale: Scale, quantity: Quantity) -> (Vec<String>, &'static str) {
    match (scale, quantity) {
        (_, Quantity::Number) => (ticks.iter().map(|t| plain(*t)).collect(), ""),
        (_, Quantity::Fraction) => (ticks.iter().map(|t| percent(*t)).collect(), ""),
        (Scale::Log, Quantity::Bytes) => (ticks.iter().map(|t| size(*t)).collect(), ""),
        (Scale::Log, Quantity::Micros) => (ticks.iter().map(|t| duration(*t)).collect(), ""),
        (Scale::Linear, Quantity::Bytes) => {
            in_one_unit(ticks, &[(1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B")])
        }
        (Scale::Linear, Quantity::Micros) => {
            in_one_unit(ticks, &[(1e6, "s"), (1e3, "ms"), (1.0, "\u{b5}s"), (1e-3, "ns")])
        }
    }
}

fn in_one_unit(ticks: &[f64], units: &[(f64, &'static str)]) -> (Vec<String>, &'static str) {
    let largest = ticks.iter().fold(0.0_f64, |max, t| max.max(t.abs()));
    let (scale, unit) = units
        .iter()
        .find(|(scale, _)| largest >= *scale)
        .or(units.last())
        .copied()
        .unwrap_or((1.0, ""));
    (ticks.iter().map(|t| plain(t / scale)).collect(), unit)
}

/// Formats a round number: "0.02", "1.5", "200", "5k", "1e-7".
fn plain(value: f64) -> String {
    let size = value.abs();
    let tidy = |value: f64| number::trim_zeros(&format!("{value:.6}")).to_owned();
    if value == 0.0 {
        "0".to_owned()
    } else if !(1e-4..1e12).contains(&size) {
        format!("{value:e}")
    } else if size >= 1e9 {
        tidy(value / 1e9) + "G"
    } else if size >= 1e6 {
        tidy(value / 1e6) + "M"
    } else if size >= 1e4 {
        tidy(value / 1e3) + "k"
    } else {
        tidy(value)
    }
}

/// Formats a fraction in percent, with all digits of small ones: "0.01 %".
fn percent(fraction: f64) -> String {
    plain(fraction * 100.0) + " %"
}

/// Formats a size in few characters: "390", "1.4K", "86K", "10M".
#[must_use]
pub fn size(value: f64) -> String {
    let text = number::bytes(value);
    let (digits, unit) = text.split_once(' ').unwrap_or((&text, ""));
    let Ok(digits) = digits.parse::<f64>() else { return text };
    let decimals = usize::from(digits < 10.0);
    let digits = format!("{digits:.decimals$}");
    number::trim_zeros(&digits).to_owned() + unit.trim_end_matches('B')
}

/// Formats a round duration: "10 µs".
fn duration(micros: f64) -> String {
    let text = number::micros(micros);
    let (digits, unit) = text.split_once(' ').unwrap_or((&text, ""));
    format!("{} {}", number::trim_zeros(digits), unit.replace('u', "\u{b5}"))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden() {
        let mut text = String::new();
        for (low, high, scale, quantity) in [
            (0.0, 1.0, Scale::Linear, Quantity::Fraction),
            (0.0, 0.7, Scale::Linear, Quantity::Number),
            (-3.0, 17.0, Scale::Linear, Quantity::Number),
            (0.0, 2_300.0, Scale::Linear, Quantity::Micros),
            (0.0, 0.4, Scale::Linear, Quantity::Micros),
            (0.0, 640_000.0, Scale::Linear, Quantity::Bytes),
            (0.0, 90_000.0, Scale::Linear, Quantity::Number),
            (1.0, 1.05, Scale::Log, Quantity::Number),
            (1.0, 4.0, Scale::Log, Quantity::Number),
            (1.0, 60.0, Scale::Log, Quantity::Number),
            (1.0, 3_000.0, Scale::Log, Quantity::Number),
            (3.3, 84_000.0, Scale::Log, Quantity::Micros),
            (0.0001, 1.0, Scale::Log, Quantity::Fraction),
            (64.0, 30_000_000.0, Scale::Log, Quantity::Bytes),
            (1e-12, 1e12, Scale::Log, Quantity::Number),
        ] {
            let ticks = match scale {
                Scale::Linear => linear(low, high, 6),
                Scale::Log => log(low, high, 6),
            };
            let (labels, unit) = labels(&ticks, scale, quantity);
            let unit = if unit.is_empty() { String::new() } else { format!(" [{unit}]") };
            writeln!(text, "{low} to {high}, {scale:?} {quantity:?}: {}{unit}", labels.join(" | "))
                .unwrap();
        }
        insta::assert_snapshot!(text);
    }

    #[test]
    fn sizes_are_compact() {
        for (bytes, text) in [
            (64.0, "64"),
            (999.0, "999"),
            (1_000.0, "1K"),
            (1_442.0, "1.4K"),
            (86_000.0, "86K"),
            (315_432.0, "315K"),
            (10_000_000.0, "10M"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    fn check(ticks: &[f64], low: f64, high: f64, most: usize) -> Result<(), TestCaseError> {
        prop_assert!(ticks.len() <= most + 1, "{ticks:?}");
        prop_assert!(ticks.windows(2).all(|w| w[0] < w[1]), "{ticks:?}");
        let slack = 1e-6 * (high - low).abs() + 1e-6 * low.abs();
        prop_assert!(ticks.iter().all(|t| *t >= low - slack && *t <= high + slack), "{ticks:?}");
        Ok(())
    }

    proptest! {
        #[test]
        fn linear_ticks_are_even_and_inside(
            low in -1e9..1e9_f64, exponent in -2.0..9.0_f64, most in 2..12_usize,
        ) {
            let high = low + libm::exp10(exponent);
            let ticks = linear(low, high, most);
            check(&ticks, low, high, most)?;
            // With steps of 1, 2 and 5 there are at least a third of the requested marks.
            prop_assert!(ticks.len() + 1 >= most.div_ceil(3), "{ticks:?}");
        }

        #[test]
        fn log_ticks_are_inside(
            exponent in -9.0..9.0_f64, decades in 0.001..15.0_f64, most in 2..12_usize,
        ) {
            let (low, high) = (libm::exp10(exponent), libm::exp10(exponent + decades));
            let ticks = log(low, high, most);
            check(&ticks, low, high, most)?;
            prop_assert!(decades < 2.0 || ticks.len() >= 2, "{ticks:?}");
        }

        #[test]
        fn widening_covers(
            low in 1e-6..1e6_f64, factor in 1.0..1e6_f64, is_log in any::<bool>(),
        ) {
            let high = low * factor;
            let scale = if is_log { Scale::Log } else { Scale::Linear };
            let (from, to) = widen(low, high, scale, 5);
            prop_assert!(from < to && from <= low * (1.0 + 1e-6) && to >= high * (1.0 - 1e-6));
        }

        #[test]
        fn arbitrary_bits_are_handled(low in any::<f64>(), high in any::<f64>(), most in 0..9_usize) {
            for ticks in [linear(low, high, most), log(low, high, most)] {
                prop_assert!(ticks.len() <= most.max(1) + 1, "{ticks:?}");
                prop_assert!(ticks.iter().all(|t| t.is_finite()), "{ticks:?}");
            }
        }
    }
}
