//! Parameters whose defaults follow from the fabric: what they are, why, and whether a scenario's own value is far from that.
//!
//! Next to its keys each transport has a list of [`Rule`]s, which `--explain`, warnings and `rackweave tune` go through.

use std::fmt::{self, Display};

use rackweave_core::{Bytes, Span};
use serde::Serialize;

use crate::values::FULL_PACKET;

/// The value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Full packets.
    Packets(u64),
    /// Bytes.
    Bytes(u64),
    /// A time.
    Time(Span),
    /// A number without a unit.
    Number(f64),
}

impl Amount {
    /// Returns the amount as a number, in its smallest unit.
    fn number(self) -> f64 {
        match self {
            Self::Packets(n) | Self::Bytes(n) => n as f64,
            Self::Time(span) => span.ticks() as f64,
            Self::Number(x) => x,
        }
    }

    /// Returns the amount multiplied by a factor, rounded as the key's values are.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        let whole = |n: u64| (n as f64 * factor).round().max(1.0) as u64;
        match self {
            Self::Packets(n) => Self::Packets(whole(n)),
            Self::Bytes(n) => Self::Bytes(whole(n)),
            // A time of whole nanoseconds is short to write.
            Self::Time(span) => {
                Self::Time(Span::from_ns((span.as_us_f64() * 1e3 * factor).round().max(1.0) as u64))
            }
            Self::Number(x) => Self::Number((x * factor * 1e3).round() / 1e3),
        }
    }

    /// Returns the amount as a value of TOML. Counts of packets are whole numbers there, except for limits of queues.
    #[must_use]
    pub fn to_toml(self) -> String {
        match self {
            Self::Packets(n) => n.to_string(),
            Self::Bytes(n) => format!("\"{n} B\""),
            Self::Time(span) => format!("\"{}\"", crate::values::write_exactly(span)),
            Self::Number(x) => x.to_string(),
        }
    }
}

impl Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Packets(1) => f.write_str("1 packet"),
            Self::Packets(n) => write!(f, "{n} packets"),
            Self::Bytes(n) if n == u64::from(u32::MAX) || n == u64::MAX => f.write_str("unlimited"),
            Self::Bytes(n) if n > 0 && n % FULL_PACKET == 0 => {
                Self::Packets(n / FULL_PACKET).fmt(f)
            }
            // Three digits tell enough.
            Self::Bytes(n) => {
                let unit = 10_u64.pow(n.max(1).ilog10().saturating_sub(2));
                Bytes((n + unit / 2) / unit * unit).fmt(f)
            }
            Self::Time(span) if span >= Span::from_us(1) => {
                let unit = 10_u64.pow(span.ticks().ilog10().saturating_sub(2));
                Span::from_ticks((span.ticks() + unit / 2) / unit * unit).fmt(f)
            }
            Self::Time(span) => span.fmt(f),
            Self::Number(x) => x.fmt(f),
        }
    }
}

/// How far from its default a value is worth a warning, as factors, and what it does then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Far {
    /// Below the default by more than this factor.
    pub below: (f64, &'static str),
    /// Above the default by more than this factor.
    pub above: (f64, &'static str),
}

impl Far {
    /// Of a window. With a quarter of a round trip's data a message alone uses a quarter of its link; of four windows at least three
    /// wait in queues.
    pub const WINDOW: Self = Self {
        below: (4.0, "a message alone cannot fill its link"),
        above: (4.0, "most of it waits in queues"),
    };
    /// Of a target for the delay. The default has room for one round trip of queueing, so that half of it has none.
    pub const TARGET: Self = Self {
        below: (2.0, "the idle path exceeds it, so that windows shrink without load"),
        above: (4.0, "queues may grow that long"),
    };
    /// Of a timer. Hosts wait ten times as long now and then, and packets in a long queue as well.
    pub const TIMER: Self = Self {
        below: (10.0, "what waits in a queue is taken for lost"),
        above: (10.0, "the 99th percentile measures this timer wherever packets are lost"),
    };
    /// Of a parameter that does not follow from the fabric.
    pub const NEVER: Self = Self { below: (f64::INFINITY, ""), above: (f64::INFINITY, "") };

    /// Returns what a value does that is too far from the default, and by which factor it is.
    fn tell(self, value: f64, default: f64) -> Option<(String, &'static str)> {
        let times = |factor: f64| match factor {
            x if x < 10.0 => format!("{x:.1}"),
            x => format!("{x:.0}"),
        };
        if value * self.below.0 < default {
            let part = if value > 0.0 { times(default / value) } else { "infinitely".to_owned() };
            Some((format!("{part} times below"), self.below.1))
        } else if value > default * self.above.0 && default > 0.0 {
            Some((format!("{} times", times(value / default)), self.above.1))
        } else {
            None
        }
    }
}

/// The values that `rackweave tune` tries for a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Grid {
    /// None: the search leaves the key alone.
    None,
    /// Multiples of the default.
    Factors(&'static [f64]),
    /// Values of TOML.
    Values(&'static [&'static str]),
}

/// A parameter of a transport with this configuration.
pub struct Rule<C: 'static> {
    /// The key in the transport's table.
    pub key: &'static str,
    /// Its value; `None` if the configuration has no use for it.
    pub of: fn(&C) -> Option<Amount>,
    /// What the default follows from.
    pub why: &'static str,
    /// How far a value may be from that.
    pub far: Far,
    /// What the search tries.
    pub grid: Grid,
}

/// A parameter of a point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameter {
    /// The path of the key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// The value that follows from the fabric.
    pub default: String,
    /// Why it has its value.
    pub why: String,
    /// Why the value is unsuitable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// The default, from which a search starts.
    #[serde(skip)]
    pub amount: Amount,
    /// What a search tries.
    #[serde(skip)]
    pub grid: Grid,
}

impl Parameter {
    /// Compares a value with its default. `set` is why it may differ.
    #[must_use]
    pub fn new(
        key: String,
        (value, default): (Amount, Amount),
        set: &str,
        why: &str,
        far: Far,
        grid: Grid,
    ) -> Self {
        let warning = far.tell(value.number(), default.number()).map(|(times, what)| {
            format!("{key} = {value} is {times} the value for this fabric, {default}: {what}")
        });
        let why = if value == default { why } else { set };
        let (value, default, amount) = (value.to_string(), default.to_string(), default);
        Self { key, value, default, why: why.to_owned(), warning, amount, grid }
    }
}

impl Parameter {
    /// The values of TOML that a search tries. The default is one of them, for scenarios that set another value.
    #[must_use]
    pub fn candidates(&self) -> Vec<String> {
        let mut all: Vec<String> = match self.grid {
            Grid::None => Vec::new(),
            Grid::Values(values) => values.iter().map(|&value| value.to_owned()).collect(),
            Grid::Factors(factors) => {
                let own = (self.value != self.default).then_some(&1.0);
                own.into_iter().chain(factors).map(|x| self.amount.times(*x).to_toml()).collect()
            }
        };
        all.dedup();
        all
    }
}

/// The keys of a transport whose parameters a scenario's own are compared with: none, so that all have their defaults. Keys whose profiles
/// are transports of their own have a method of this name that keeps the profile.
pub(crate) trait Baseline: Default {
    /// Returns these keys.
    fn baseline(&self) -> Self {
        Self::default()
    }
}

impl<K: Default> Baseline for K {}

/// Compares a transport's configuration with its [`Baseline`]. The keys are below `path`.
pub(crate) fn compare<C>(
    path: &str,
    rules: &[Rule<C>],
    (config, default): (&C, &C),
    is_given: impl Fn(&str) -> bool,
) -> Vec<Parameter> {
    let parameter = |rule: &Rule<C>| {
        let values = ((rule.of)(config)?, (rule.of)(default)?);
        let set = if is_given(rule.key) {
            "set by the scenario"
        } else {
            "follows from the scenario's other keys of this transport"
        };
        let key = format!("{path}.{}", rule.key);
        Some(Parameter::new(key, values, set, rule.why, rule.far, rule.grid))
    };
    rules.iter().filter_map(parameter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(value: u64, default: u64) -> Option<String> {
        let amounts = (Amount::Packets(value), Amount::Packets(default));
        let key = "transport.window".to_owned();
        Parameter::new(key, amounts, "set", "a round trip", Far::WINDOW, Grid::None).warning
    }

    #[test]
    fn only_values_far_from_the_default_are_told() {
        for near in [3, 10, 40] {
            assert_eq!(told(near, 10), None);
        }
        assert_eq!(
            told(41, 10).unwrap(),
            "transport.window = 41 packets is 4.1 times the value for this fabric, 10 packets: most of it \
             waits in queues"
        );
        let below = told(2, 10).unwrap();
        assert!(below.contains("5.0 times below") && below.contains("cannot fill"), "{below}");
        assert!(told(0, 10).unwrap().contains("infinitely times below"));
        assert_eq!(Far::NEVER.tell(1e9, 1.0), None);
    }

    #[test]
    fn amounts_have_three_digits_for_people_and_all_for_files() {
        assert_eq!(Amount::Bytes(12_345).to_string(), "12.3 KB");
        assert_eq!(Amount::Bytes(15_380).to_string(), "10 packets");
        assert_eq!(Amount::Bytes(u64::MAX).to_string(), "unlimited");
        assert_eq!(Amount::Time(Span::from_ns(14_346)).to_string(), "14.3 us");
        assert_eq!(Amount::Bytes(12_345).times(2.0).to_toml(), "\"24690 B\"");
        assert_eq!(Amount::Time(Span::from_ns(7_001)).times(0.5).to_toml(), "\"3.501 us\"");
        assert_eq!(Amount::Packets(1).times(0.25), Amount::Packets(1));
        assert_eq!(Amount::Number(0.8).times(0.5).to_toml(), "0.4");
    }
}
