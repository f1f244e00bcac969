//! Points in time and durations, in whole ticks of 10 picoseconds.
//!
//! At every Ethernet rate up to 800 Gbps, one byte takes a whole number of ticks (10 Gbps: 80, 25: 32, 40: 20, 100: 8,
//! 400: 2), so that serialisation times add up without rounding. A `u64` of ticks covers 5.8 years, which a process of
//! a host is not expected to run for; picoseconds would cover 213 days.

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Div, Mul, Sub};
use core::str::FromStr;

use crate::units::{ParseUnitError, parse_scaled};

/// The picoseconds of a tick.
pub const PS_PER_TICK: u64 = 10;
/// The ticks of a nanosecond.
pub const TICKS_PER_NS: u64 = 1_000 / PS_PER_TICK;
/// The ticks of a second.
pub const TICKS_PER_SECOND: u64 = 1_000_000_000 * TICKS_PER_NS;

/// A point in time since the start of the run (or of the process).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Time(u64);

/// A duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Span(u64);

impl Time {
    /// The start of the run.
    pub const ZERO: Self = Self(0);
    /// The latest time, used as "never".
    pub const MAX: Self = Self(u64::MAX);

    /// Creates the time `n` ticks after the start.
    #[must_use]
    pub const fn from_ticks(n: u64) -> Self {
        Self(n)
    }
    /// Creates the time `n` picoseconds after the start, rounded down to a tick.
    #[must_use]
    pub const fn from_ps(n: u64) -> Self {
        Self(n / PS_PER_TICK)
    }
    /// Creates the time `n` nanoseconds after the start, or [`Time::MAX`] on overflow.
    #[must_use]
    pub const fn from_ns(n: u64) -> Self {
        Self(n.saturating_mul(TICKS_PER_NS))
    }

    /// Returns the ticks since the start, for arithmetic in which the unit cancels out.
    #[must_use]
    pub const fn ticks(self) -> u64 {
        self.0
    }
    /// Returns the picoseconds since the start, for printing and tests: `u64::MAX` from 213 days on, so nothing may be decided by it.
    #[must_use]
    pub const fn as_ps(self) -> u64 {
        self.0.saturating_mul(PS_PER_TICK)
    }
    /// Returns the whole nanoseconds since the start.
    #[must_use]
    pub const fn as_ns(self) -> u64 {
        self.0 / TICKS_PER_NS
    }

    /// Returns the whole milliseconds since the start.
    #[must_use]
    pub const fn as_ms(self) -> u64 {
        self.0 / (1_000_000 * TICKS_PER_NS)
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
    /// Returns `self - span`, or [`Time::ZERO`] if that would be before the start.
    #[must_use]
    pub const fn saturating_sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    /// Returns the microseconds since the start, for printing and statistics.
    #[must_use]
    pub fn as_us_f64(self) -> f64 {
        Span(self.0).as_us_f64()
    }
}

impl Span {
    /// The empty span.
    pub const ZERO: Self = Self(0);
    /// The shortest span that is not empty.
    pub const TICK: Self = Self(1);
    /// The longest span, used as "forever".
    pub const MAX: Self = Self(u64::MAX);

    /// Creates a span of `n` ticks.
    #[must_use]
    pub const fn from_ticks(n: u64) -> Self {
        Self(n)
    }
    /// Creates a span of `n` picoseconds, rounded down to a tick.
    #[must_use]
    pub const fn from_ps(n: u64) -> Self {
        Self(n / PS_PER_TICK)
    }
    /// Creates a span of `n` nanoseconds.
    #[must_use]
    pub const fn from_ns(n: u64) -> Self {
        Self(n * TICKS_PER_NS)
    }
    /// Creates a span of `n` microseconds.
    #[must_use]
    pub const fn from_us(n: u64) -> Self {
        Self(n * (1_000 * TICKS_PER_NS))
    }
    /// Creates a span of `n` milliseconds.
    #[must_use]
    pub const fn from_ms(n: u64) -> Self {
        Self(n * (1_000_000 * TICKS_PER_NS))
    }
    /// Creates a span of `n` seconds.
    #[must_use]
    pub const fn from_secs(n: u64) -> Self {
        Self(n * TICKS_PER_SECOND)
    }
    /// Creates the span nearest to `seconds`: zero if it is negative or not a number, [`Span::MAX`] if it is too long.
    #[must_use]
    pub const fn from_secs_f64(seconds: f64) -> Self {
        Self((seconds * TICKS_PER_SECOND as f64 + 0.5) as u64)
    }
    /// Returns the ticks, for arithmetic in which the unit cancels out.
    #[must_use]
    pub const fn ticks(self) -> u64 {
        self.0
    }
    /// Returns the picoseconds, or `u64::MAX` from 213 days on.
    #[must_use]
    pub const fn as_ps(self) -> u64 {
        self.0.saturating_mul(PS_PER_TICK)
    }
    /// Returns the whole nanoseconds.
    #[must_use]
    pub const fn as_ns(self) -> u64 {
        self.0 / TICKS_PER_NS
    }
    /// Returns the nanoseconds, rounded up.
    #[must_use]
    pub const fn as_ns_ceil(self) -> u64 {
        self.0.div_ceil(TICKS_PER_NS)
    }
    /// Returns the whole microseconds.
    #[must_use]
    pub const fn as_us(self) -> u64 {
        self.0 / (1_000 * TICKS_PER_NS)
    }
    /// Returns the whole milliseconds.
    #[must_use]
    pub const fn as_ms(self) -> u64 {
        self.0 / (1_000_000 * TICKS_PER_NS)
    }
    /// Returns the whole seconds.
    #[must_use]
    pub const fn as_secs(self) -> u64 {
        self.0 / TICKS_PER_SECOND
    }
    /// Returns the microseconds, for printing and statistics.
    #[must_use]
    pub fn as_us_f64(self) -> f64 {
        self.0 as f64 / (1_000 * TICKS_PER_NS) as f64
    }
    /// Returns the seconds, for printing and statistics.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / TICKS_PER_SECOND as f64
    }

    /// Returns `self + other`, or [`Span::MAX`] on overflow.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
    /// Returns `self - other`, or zero if `other` is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
    /// Returns `self * n`, or [`Span::MAX`] on overflow.
    #[must_use]
    pub const fn saturating_mul(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
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
impl Div<u64> for Span {
    type Output = Self;
    fn div(self, n: u64) -> Self {
        Self(self.0 / n)
    }
}
impl Sum for Span {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

/// The units in which a span is printed, largest first, with their picoseconds.
const SPAN_UNITS: [(&str, u64); 5] =
    [("s", 1_000_000_000_000), ("ms", 1_000_000_000), ("us", 1_000_000), ("ns", 1_000), ("ps", 1)];

/// The units that are read; the longest two are not used in print.
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
    /// Parses "250 ns", "1.5us", "2 ms", "3 s", "10 min" or "1 h", up to 213 days; "µs" is accepted too. Picoseconds
    /// are rounded down to a tick.
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let text = text.replace(['µ', 'μ'], "u");
        parse_scaled(&text, "a time", "250 ns", &PARSED_UNITS).map(Self::from_ps)
    }
}

impl fmt::Display for Span {
    /// Prints the largest unit that gives a number of at least one, with up to three decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::units::write_scaled(f, self.as_ps(), &SPAN_UNITS, "0 s")
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Span(self.0), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_can_run_for_five_years() {
        let five_years = Span::from_secs(5 * 365 * 86_400);
        assert_eq!((Time::ZERO + five_years).since(Time::ZERO), five_years);
        assert_eq!(five_years.as_secs(), 5 * 365 * 86_400);
    }

    #[test]
    fn conversions_agree() {
        let span = Span::from_us(1) + Span::from_ps(320);
        assert_eq!((span.as_ps(), span.as_ns()), (1_000_320, 1_000));
        assert_eq!(Span::from_secs_f64(2.5e-6), Span::from_ns(2_500));
        assert_eq!(Span::from_secs_f64(f64::NAN), Span::ZERO);
        assert_eq!(Span::from_secs_f64(1e300), Span::MAX);
        assert_eq!(Span::from_secs(3).as_secs_f64(), 3.0);
        assert_eq!(Span::from_us(3).as_us_f64(), 3.0);
        assert_eq!(Time::from_ns(7).as_ps(), 7_000);
        assert_eq!(Time::MAX.as_ps(), u64::MAX);
    }
}
