//! Points in time and durations, in whole picoseconds.
//!
//! At every Ethernet rate in use, one byte takes a whole number of picoseconds (10 Gbps: 800, 25: 320, 40: 200, 100:
//! 80, 400: 20), so that serialisation times add up without rounding. A `u64` covers 213 days.

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Mul, Sub};
use core::str::FromStr;

use crate::units::{ParseUnitError, parse_scaled};

/// A point in time: picoseconds since the start of the run (or of the process).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Time(pub u64);

/// A duration in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Span(pub u64);

impl Time {
    /// The start of the run.
    pub const ZERO: Self = Self(0);
    /// The latest time, used as "never".
    pub const MAX: Self = Self(u64::MAX);

    /// Creates the time `n` picoseconds after the start.
    #[must_use]
    pub const fn from_ps(n: u64) -> Self {
        Self(n)
    }

    /// Returns the picoseconds since the start.
    #[must_use]
    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// Returns the span from `earlier` to `self`, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// Returns `self + span`, or [`Time::MAX`] on overflow.
    #[must_use]
    pub const fn saturating_add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Returns the microseconds since the start, for printing and statistics.
    #[must_use]
    pub fn as_us_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Span {
    /// The empty span.
    pub const ZERO: Self = Self(0);
    /// The longest span, used as "forever".
    pub const MAX: Self = Self(u64::MAX);

    /// Creates a span of `n` picoseconds.
    #[must_use]
    pub const fn from_ps(n: u64) -> Self {
        Self(n)
    }
    /// Creates a span of `n` nanoseconds.
    #[must_use]
    pub const fn from_ns(n: u64) -> Self {
        Self(n * 1_000)
    }
    /// Creates a span of `n` microseconds.
    #[must_use]
    pub const fn from_us(n: u64) -> Self {
        Self(n * 1_000_000)
    }
    /// Creates a span of `n` milliseconds.
    #[must_use]
    pub const fn from_ms(n: u64) -> Self {
        Self(n * 1_000_000_000)
    }
    /// Creates a span of `n` seconds.
    #[must_use]
    pub const fn from_secs(n: u64) -> Self {
        Self(n * 1_000_000_000_000)
    }
    /// Returns the picoseconds.
    #[must_use]
    pub const fn as_ps(self) -> u64 {
        self.0
    }
    /// Returns the microseconds, for printing and statistics.
    #[must_use]
    pub fn as_us_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
    /// Returns the seconds, for printing and statistics.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e12
    }
}

impl Add<Span> for Time {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0 + span.0)
    }
}
impl AddAssign<Span> for Time {
    fn add_assign(&mut self, span: Span) {
        self.0 += span.0;
    }
}
impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}
impl AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}
impl Sub for Span {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}
impl Mul<u64> for Span {
    type Output = Self;
    fn mul(self, n: u64) -> Self {
        Self(self.0 * n)
    }
}
impl Sum for Span {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

/// The units in which a span is printed, largest first.
const SPAN_UNITS: [(&str, u64); 5] =
    [("s", 1_000_000_000_000), ("ms", 1_000_000_000), ("us", 1_000_000), ("ns", 1_000), ("ps", 1)];

/// The units that are read, of which the longest two are not used in print.
const PARSED_UNITS: [(&str, u64); 7] = [
    ("h", 3600 * SPAN_UNITS[0].1),
    ("min", 60 * SPAN_UNITS[0].1),
    SPAN_UNITS[0],
    SPAN_UNITS[1],
    SPAN_UNITS[2],
    SPAN_UNITS[3],
    SPAN_UNITS[4],
];

impl FromStr for Span {
    type Err = ParseUnitError;
    /// Parses "250 ns", "1.5us", "2 ms", "3 s", "10 min" or "1 h"; "µs" is accepted too.
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let text = text.replace(['µ', 'μ'], "u");
        parse_scaled(&text, "a time", "250 ns", &PARSED_UNITS).map(Self)
    }
}

impl fmt::Display for Span {
    /// Prints the largest unit that gives a number of at least one, with up to three decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::units::write_scaled(f, self.0, &SPAN_UNITS, "0 s")
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Span(self.0), f)
    }
}
