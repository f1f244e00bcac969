//! The format of numbers: three significant digits, and a unit where there is one.

/// The text in place of a missing number.
pub const MISSING: &str = "-";

/// Returns `value` as a mantissa in [1, 1000) with three significant digits, and the exponent of the power of 1000 by
/// which it must be multiplied. Rounding comes first, so that 999.6 is 1.00 thousand.
fn engineering(value: f64) -> (String, i32) {
    let rounded = format!("{:.2e}", value.abs());
    let (digits, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let shift = exponent.rem_euclid(3);
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    let (whole, part) = digits.split_at((shift + 1).unsigned_abs() as usize);
    let sign = if value < 0.0 { "-" } else { "" };
    let text =
        if part.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part}") };
    (text, exponent.div_euclid(3))
}

/// Formats a number with three significant digits, and with a suffix from a thousand on: "0.0123", "1.20", "12.3k".
#[must_use]
pub fn short(value: f64) -> String {
    if !value.is_finite() {
        return MISSING.to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let (text, power) = engineering(value);
    match power {
        0 => text,
        1 => text + "k",
        2 => text + "M",
        3 => text + "G",
        -1 if value.abs() >= 0.001 => {
            let digits = if value.abs() >= 0.0995 {
                3
            } else if value.abs() >= 0.00995 {
                4
            } else {
                5
            };
            format!("{value:.digits$}")
        }
        _ => format!("{value:.2e}"),
    }
}

/// Formats a count: with all its digits below a million, else like [`short`].
#[must_use]
pub fn count(value: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    if value < 1_000_000 { grouped(value) } else { short(value as f64) }
}

/// Formats a count with all its digits in groups: "1,234,567".
#[must_use]
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a value in the largest of ascending `units` (each 1000 times the previous one) that leaves at least one.
/// Values below the first unit keep that unit.
fn with_unit(value: f64, units: &[&str]) -> String {
    if !value.is_finite() {
        return MISSING.to_owned();
    }
    if value == 0.0 {
        return format!("0 {}", units[0]);
    }
    let (text, power) = engineering(value);
    let Ok(power) = usize::try_from(power) else {
        return format!("{} {}", short(value), units[0]);
    };
    match units.get(power) {
        Some(unit) => format!("{text} {unit}"),
        None => format!("{value:.2e} {}", units[0]),
    }
}

/// Formats a number of bytes: "512 B", "86.0 KB"; a KB is 1000 bytes.
#[must_use]
pub fn bytes(value: f64) -> String {
    if value.is_finite() && value.abs() < 999.5 {
        return format!("{value:.0} B");
    }
    with_unit(value, &["B", "KB", "MB", "GB", "TB", "PB"])
}

/// Formats a rate in bits per second: "941 Mbps", "2.50 Gbps".
#[must_use]
pub fn rate(bits_per_second: f64) -> String {
    with_unit(bits_per_second, &["bps", "kbps", "Mbps", "Gbps", "Tbps"])
}

/// Formats a time on a processor as people say it.
#[must_use]
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 6000.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// Formats a duration in microseconds: "850 ns", "12.5 us", "1.20 ms".
#[must_use]
pub fn micros(value: f64) -> String {
    with_unit(value * 1000.0, &["ns", "us", "ms", "s"])
}

/// Names a size bucket by its largest size: "<= 1 KB"; "larger" without a limit.
#[must_use]
pub fn bucket(up_to_bytes: u64) -> String {
    if up_to_bytes == u64::MAX {
        return "larger".to_owned();
    }
    format!("<= {}", rackweave_core::Bytes(up_to_bytes))
}

/// Returns `text` without trailing zeros of its decimals: "10.0" becomes "10".
#[must_use]
pub(crate) fn trim_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1.00"),
            (1.2, "1.20"),
            (12.34, "12.3"),
            (123.4, "123"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (12_345.0, "12.3k"),
            (1_234_567.0, "1.23M"),
            (0.5, "0.500"),
            (0.0123, "0.0123"),
            (0.001_234, "0.00123"),
            (0.000_012, "1.20e-5"),
            (-12.34, "-12.3"),
            (f64::NAN, "-"),
            (f64::INFINITY, "-"),
        ] {
            assert_eq!(short(value), text, "{value}");
        }
    }

    #[test]
    fn units() {
        for (value, text) in
            [(0.0, "0 B"), (512.0, "512 B"), (86_000.0, "86.0 KB"), (999_999.0, "1.00 MB")]
        {
            assert_eq!(bytes(value), text);
        }
        for (value, text) in [
            (0.0, "0 ns"),
            (0.85, "850 ns"),
            (12.5, "12.5 us"),
            (1200.0, "1.20 ms"),
            (3_000_000.0, "3.00 s"),
            (0.0001, "0.100 ns"),
        ] {
            assert_eq!(micros(value), text);
        }
        assert_eq!(bytes(f64::NAN), "-");
        assert_eq!(
            (rate(941.4e6), rate(2.5e9), rate(0.0)),
            ("941 Mbps".to_owned(), "2.50 Gbps".to_owned(), "0 bps".to_owned())
        );
        assert_eq!(bucket(1_000), "<= 1 KB");
        assert_eq!(bucket(u64::MAX), "larger");
    }

    #[test]
    fn counts() {
        assert_eq!(count(999), "999");
        assert_eq!(count(12_345), "12,345");
        assert_eq!(count(12_345_678), "12.3M");
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(123_456), "123,456");
    }
}
