//! Rates and sizes, which are parsed from and printed as "10 Gbps" or "86 KB".

use core::fmt;
use core::str::FromStr;

use crate::time::{Span, TICKS_PER_SECOND};

/// The bits of a byte, times the ticks of a second.
const BIT_TICKS_PER_BYTE: u128 = 8 * TICKS_PER_SECOND as u128;

/// A link rate in bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Rate(pub u64);

/// A number of bytes. "KB" means 1000 bytes and "KiB" 1024.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Bytes(pub u64);

impl Rate {
    /// Creates a rate of `n` gigabits per second.
    #[must_use]
    pub const fn from_gbps(n: u64) -> Self {
        Self(n * 1_000_000_000)
    }

    /// Returns the time to transmit `bytes` at this rate, rounded up to a tick.
    ///
    /// # Panics
    /// If the rate is zero.
    #[must_use]
    pub const fn span_of(self, bytes: u64) -> Span {
        Span::from_ticks((bytes as u128 * BIT_TICKS_PER_BYTE).div_ceil(self.0 as u128) as u64)
    }

    /// Returns how many whole bytes are transmitted in `span`.
    #[must_use]
    pub const fn bytes_in(self, span: Span) -> u64 {
        (span.ticks() as u128 * self.0 as u128 / BIT_TICKS_PER_BYTE) as u64
    }

    /// Returns the gigabits per second, for printing and statistics.
    #[must_use]
    pub fn as_gbps_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

/// Why a quantity could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseUnitError {
    /// The text does not begin with a number.
    #[error("`{text}` is not {what}: it needs a number and a unit, as in \"{example}\"")]
    NoNumber {
        /// The text to be parsed.
        text: String,
        /// The kind of quantity, for the message.
        what: &'static str,
        /// A valid example.
        example: &'static str,
    },
    /// The unit is missing or unknown.
    #[error("`{text}` is not {what}: the unit must be one of {units}, as in \"{example}\"")]
    UnknownUnit {
        /// The text to be parsed.
        text: String,
        /// The kind of quantity, for the message.
        what: &'static str,
        /// The known units, as a list.
        units: String,
        /// A valid example.
        example: &'static str,
    },
    /// The value is too large, or not a whole number of the smallest unit.
    #[error("`{text}` is out of range for {what}")]
    OutOfRange {
        /// The text to be parsed.
        text: String,
        /// The kind of quantity, for the message.
        what: &'static str,
    },
}

/// Parses "12.5 unit" exactly (without floating point), where `units` gives the value of each unit in the smallest one.
pub(crate) fn parse_scaled(
    text: &str,
    what: &'static str,
    example: &'static str,
    units: &[(&str, u64)],
) -> Result<u64, ParseUnitError> {
    let trimmed = text.trim();
    let split = trimmed
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    let bad_number =
        whole.is_empty() || whole.len() > 20 || fraction.contains('.') || fraction.len() > 18;
    if bad_number {
        return Err(ParseUnitError::NoNumber { text: text.into(), what, example });
    }
    let unit = unit.trim();
    let Some(&(_, scale)) = units.iter().find(|(name, _)| *name == unit) else {
        let units = units.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        return Err(ParseUnitError::UnknownUnit { text: text.into(), what, units, example });
    };
    let out_of_range = || ParseUnitError::OutOfRange { text: text.into(), what };
    let whole: u128 = whole.parse().map_err(|_| out_of_range())?;
    let mut value = whole * u128::from(scale);
    if !fraction.is_empty() {
        let digits: u128 = fraction.parse().map_err(|_| out_of_range())?;
        let denominator = 10_u128.pow(fraction.len() as u32);
        value += digits * u128::from(scale) / denominator;
    }
    u64::try_from(value).map_err(|_| out_of_range())
}

/// Writes `value` in the largest unit that gives a number of at least one, with up to three decimals.
pub(crate) fn write_scaled(
    f: &mut fmt::Formatter<'_>,
    value: u64,
    units: &[(&str, u64)],
    zero: &str,
) -> fmt::Result {
    let Some(&(unit, scale)) = units.iter().find(|(_, scale)| value >= *scale) else {
        return f.pad(zero);
    };
    let thousandths = (u128::from(value) * 1000 + u128::from(scale) / 2) / u128::from(scale);
    let (whole, part) = (thousandths / 1000, thousandths % 1000);
    let text = if part == 0 {
        format!("{whole} {unit}")
    } else {
        let part = format!("{part:03}");
        format!("{whole}.{} {unit}", part.trim_end_matches('0'))
    };
    f.pad(&text)
}

const RATE_UNITS: [(&str, u64); 5] = [
    ("Tbps", 1_000_000_000_000),
    ("Gbps", 1_000_000_000),
    ("Mbps", 1_000_000),
    ("kbps", 1_000),
    ("bps", 1),
];
const RATE_UNITS_READ: [(&str, u64); 10] = [
    ("Gbps", 1_000_000_000),
    ("Tbps", 1_000_000_000_000),
    ("Mbps", 1_000_000),
    ("kbps", 1_000),
    ("bps", 1),
    ("Gb/s", 1_000_000_000),
    ("Tb/s", 1_000_000_000_000),
    ("Mb/s", 1_000_000),
    ("kb/s", 1_000),
    ("Kbps", 1_000),
];
/// Units that are read too, and that errors do not suggest.
const RATE_UNITS_SHORT: [(&str, u64); 6] = [
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("M", 1_000_000),
    ("gbps", 1_000_000_000),
    ("tbps", 1_000_000_000_000),
    ("mbps", 1_000_000),
];
const BYTE_UNITS: [(&str, u64); 5] =
    [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000), ("B", 1)];
const BYTE_UNITS_READ: [(&str, u64); 10] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("bytes", 1),
];

impl FromStr for Rate {
    type Err = ParseUnitError;
    /// Parses "10 Gbps", "800Mbps", "2.5 Gb/s" or "25G".
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let read = |units: &[(&str, u64)]| parse_scaled(text, "a rate", "10 Gbps", units).map(Self);
        read(&RATE_UNITS_READ).or_else(|error| read(&RATE_UNITS_SHORT).map_err(|_| error))
    }
}

impl FromStr for Bytes {
    type Err = ParseUnitError;
    /// Parses "86 KB", "1.5 MB", "64 KiB" or "1000 B".
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        parse_scaled(text, "a size", "86 KB", &BYTE_UNITS_READ).map(Self)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, &RATE_UNITS, "0 bps")
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, &BYTE_UNITS, "0 B")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        assert_eq!("10 Gbps".parse(), Ok(Rate(10_000_000_000)));
        assert_eq!("2.5Gbps".parse(), Ok(Rate(2_500_000_000)));
        assert_eq!("25G".parse(), Ok(Rate::from_gbps(25)));
        assert_eq!("25 gbps".parse(), Ok(Rate::from_gbps(25)));
        assert_eq!("86 KB".parse(), Ok(Bytes(86_000)));
        assert_eq!("64 KiB".parse(), Ok(Bytes(65_536)));
        assert_eq!("1_000 B".parse(), Ok(Bytes(1000)));
        assert_eq!("250 ns".parse(), Ok(Span::from_ns(250)));
        assert_eq!("1.5 µs".parse(), Ok(Span::from_ns(1_500)));
        assert_eq!("0 us".parse(), Ok(Span::ZERO));
        assert_eq!("10min".parse(), Ok(Span::from_secs(600)));
        assert_eq!("1.5 h".parse(), Ok(Span::from_secs(5400)));
    }

    #[test]
    fn refuses_what_is_not_a_quantity() {
        for text in ["", "Gbps", "10", "10 Gbp", "1.2.3 Gbps", "-1 Gbps", "99999999999999 Tbps"] {
            assert!(text.parse::<Rate>().is_err(), "{text:?} was read as a rate");
        }
        let error = "10 KB".parse::<Rate>().unwrap_err().to_string();
        assert!(error.contains("`10 KB` is not a rate"), "{error}");
    }

    #[test]
    fn prints_what_it_reads() {
        for text in ["10 Gbps", "2.5 Gbps", "100 Mbps"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        for text in ["86 KB", "1.442 KB", "973 B"] {
            assert_eq!(text.parse::<Bytes>().unwrap().to_string(), text);
        }
        for text in ["250 ns", "1.5 us", "2 ms", "0 s"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn serialisation_is_exact_at_ethernet_rates() {
        for (gbps, ps) in [(10, 800), (25, 320), (40, 200), (100, 80), (200, 40), (400, 20)] {
            assert_eq!(Rate::from_gbps(gbps).span_of(1), Span::from_ps(ps));
        }
        assert_eq!(Rate(3).span_of(1).ticks(), (8 * TICKS_PER_SECOND).div_ceil(3), "rounded up");
        assert_eq!(Rate::from_gbps(10).bytes_in(Span::from_us(8)), 10_000);
    }
}
