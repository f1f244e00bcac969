//! The types of values in a scenario. Each reads what people write and refuses invalid values.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::str::FromStr;

use rackweave_core::frame;
use rackweave_core::{Bytes, ParseUnitError, Rate, Span};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

/// The bytes on the link of a full packet, the unit of values such as "65 packets".
pub const FULL_PACKET: u64 = frame::wire_bytes(frame::MTU) as u64;

/// A quantity with a unit, written as a string: "10 Gbps", "86 KB", "250 ns".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unit<T>(pub T);

/// The operations to read a quantity, and to write it without loss.
pub trait Quantity: Copy + PartialEq + Display + FromStr<Err = ParseUnitError> {
    /// What its text must be, in words.
    const EXPECTED: &'static str;
    /// Returns the quantity in its smallest unit, for values that [`Display`] would round.
    fn exact(self) -> String;
}

impl Quantity for Rate {
    const EXPECTED: &'static str = "a rate with its unit, such as \"10 Gbps\"";
    fn exact(self) -> String {
        format!("{} bps", self.0)
    }
}
impl Quantity for Bytes {
    const EXPECTED: &'static str = "a size with its unit, such as \"86 KB\"";
    fn exact(self) -> String {
        format!("{} B", self.0)
    }
}
impl Quantity for Span {
    const EXPECTED: &'static str = "a time with its unit, such as \"250 ns\"";
    fn exact(self) -> String {
        format!("{} ps", self.as_ps())
    }
}

/// Returns the quantity as people write it, if that loses nothing.
pub fn write_exactly<T: Quantity>(value: T) -> String {
    let text = value.to_string();
    if text.parse() == Ok(value) { text } else { value.exact() }
}

impl From<Unit<Self>> for Span {
    fn from(value: Unit<Self>) -> Self {
        value.0
    }
}

impl From<Unit<Self>> for Rate {
    fn from(value: Unit<Self>) -> Self {
        value.0
    }
}

impl From<Unit<Rate>> for Option<Rate> {
    fn from(value: Unit<Rate>) -> Self {
        Some(value.0)
    }
}

impl From<Unit<Bytes>> for Option<u64> {
    fn from(value: Unit<Bytes>) -> Self {
        Some(value.0.0)
    }
}

impl From<Unit<Span>> for Option<Span> {
    fn from(value: Unit<Span>) -> Self {
        Some(value.0)
    }
}

impl<T> From<AboveZero<T>> for Option<T> {
    fn from(value: AboveZero<T>) -> Self {
        Some(value.0)
    }
}

/// A quantity above 0, with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AboveZero<T>(pub T);

impl<'de, T: Quantity + Default> Deserialize<'de> for AboveZero<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Unit::<T>::deserialize(from)?.0 {
            zero if zero == T::default() => Err(D::Error::custom("must be above 0")),
            value => Ok(Self(value)),
        }
    }
}

impl From<AboveZero<Self>> for Span {
    fn from(value: AboveZero<Self>) -> Self {
        value.0
    }
}

/// A size that fits 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size32(pub u32);

impl<'de> Deserialize<'de> for Size32 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = Unit::<Bytes>::deserialize(from)?.0;
        let size = u32::try_from(bytes.0).map(Self);
        size.map_err(|_| D::Error::custom(format_args!("is too large: {bytes}")))
    }
}

impl From<Size32> for u32 {
    fn from(size: Size32) -> Self {
        size.0
    }
}

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole<const MIN: u32, const MAX: u32, T>(pub T);

/// A whole number of at least `MIN`.
pub type AtLeast<const MIN: u32, T = u32> = Whole<MIN, { u32::MAX }, T>;
/// A whole number of at most `MAX`.
pub type AtMost<const MAX: u32, T = u32> = Whole<0, MAX, T>;

impl<'de, const MIN: u32, const MAX: u32, T: TryFrom<u64>> Deserialize<'de> for Whole<MIN, MAX, T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Number<const MIN: u32, const MAX: u32, T>(PhantomData<T>);
        impl<const MIN: u32, const MAX: u32, T: TryFrom<u64>> Visitor<'_> for Number<MIN, MAX, T> {
            type Value = T;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match MAX {
                    u32::MAX => write!(f, "a whole number of at least {MIN}"),
                    _ => write!(f, "a whole number from {MIN} to {MAX}"),
                }
            }
            fn visit_u64<E: Error>(self, n: u64) -> Result<T, E> {
                if n < u64::from(MIN) {
                    return Err(E::custom(format_args!("must be at least {MIN}, not {n}")));
                }
                match T::try_from(n) {
                    Ok(whole) if n <= u64::from(MAX) => Ok(whole),
                    _ if MAX < u32::MAX => {
                        Err(E::custom(format_args!("must be at most {MAX}, not {n}")))
                    }
                    _ => Err(E::custom(format_args!("is too large: {n}"))),
                }
            }
        }
        from.deserialize_u64(Number::<MIN, MAX, T>(PhantomData)).map(Self)
    }
}

impl<const MIN: u32, const MAX: u32> Serialize for Whole<MIN, MAX, u32> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(self.0)
    }
}

impl<const MIN: u32, const MAX: u32> From<Whole<MIN, MAX, Self>> for u32 {
    fn from(n: Whole<MIN, MAX, Self>) -> Self {
        n.0
    }
}

impl<const MIN: u32, const MAX: u32> From<Whole<MIN, MAX, Self>> for u16 {
    fn from(value: Whole<MIN, MAX, Self>) -> Self {
        value.0
    }
}

impl<const MIN: u32, const MAX: u32> From<Whole<MIN, MAX, Self>> for u8 {
    fn from(n: Whole<MIN, MAX, Self>) -> Self {
        n.0
    }
}

impl<const MIN: u32, const MAX: u32, T> From<Whole<MIN, MAX, T>> for Option<T> {
    fn from(n: Whole<MIN, MAX, T>) -> Self {
        Some(n.0)
    }
}

/// A priority in a packet, from 0 (lowest) to 7.
pub type Priority = AtMost<7, u8>;

/// A number from 0 to `MAX`, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thousandths<const MAX: u32>(u32);

impl<'de, const MAX: u32> Deserialize<'de> for Thousandths<MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let x = f64::deserialize(from)?;
        if (0.0..=f64::from(MAX)).contains(&x) {
            Ok(Self((x * 1000.0).round() as u32))
        } else {
            Err(D::Error::custom(format_args!("must be from 0 to {MAX}, not {x}")))
        }
    }
}

impl<const MAX: u32> From<Thousandths<MAX>> for u32 {
    fn from(x: Thousandths<MAX>) -> Self {
        x.0
    }
}

struct Text<T> {
    expected: &'static str,
    read: fn(&str) -> Result<T, String>,
}

impl<T> Visitor<'_> for Text<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.read)(text).map_err(E::custom)
    }
}

fn read_unit<T: Quantity>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: ParseUnitError| error.to_string())
}

impl<'de, T: Quantity> Deserialize<'de> for Unit<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(Text { expected: T::EXPECTED, read: read_unit::<T> }).map(Self)
    }
}

impl<T: Quantity> Serialize for Unit<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&write_exactly(self.0))
    }
}

/// A number of bytes or of full packets, or a word for "no limit".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<u64>);

fn read_limit(text: &str) -> Result<Limit, String> {
    let trimmed = text.trim();
    if matches!(trimmed, "unlimited" | "never") {
        return Ok(Limit(None));
    }
    if let Some(number) = trimmed.strip_suffix("packets").or_else(|| trimmed.strip_suffix("packet"))
    {
        let packets: u32 =
            number.trim().replace('_', "").parse().map_err(|_| {
                format!("`{text}` is not a number of packets, as in \"65 packets\"")
            })?;
        return Ok(Limit(Some(u64::from(packets) * FULL_PACKET)));
    }
    let bytes: Bytes = trimmed.parse().map_err(|error: ParseUnitError| {
        format!("{error}; full packets are written as in \"65 packets\", no limit as \"unlimited\"")
    })?;
    Ok(Limit(Some(bytes.0)))
}

impl From<Limit> for u64 {
    fn from(limit: Limit) -> Self {
        limit.0.unwrap_or(Self::MAX)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let expected = "a size such as \"500 KB\" or \"65 packets\", or \"unlimited\"";
        from.deserialize_str(Text { expected, read: read_limit })
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            None => to.serialize_str("unlimited"),
            Some(bytes) if bytes > 0 && bytes % FULL_PACKET == 0 => {
                to.serialize_str(&format!("{} packets", bytes / FULL_PACKET))
            }
            Some(bytes) => to.serialize_str(&write_exactly(Bytes(bytes))),
        }
    }
}

/// A share, above 0 and at most 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Share(pub f64);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Share;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number above 0 and at most 1")
            }
            fn visit_f64<E: Error>(self, x: f64) -> Result<Share, E> {
                if x > 0.0 && x <= 1.0 {
                    Ok(Share(x))
                } else {
                    Err(E::custom(format_args!("must be above 0 and at most 1, not {x}")))
                }
            }
            fn visit_u64<E: Error>(self, n: u64) -> Result<Share, E> {
                self.visit_f64(n as f64)
            }
            fn visit_i64<E: Error>(self, n: i64) -> Result<Share, E> {
                self.visit_f64(n as f64)
            }
        }
        from.deserialize_any(Number)
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(self.0)
    }
}

/// A whole number of at least 1, or "unlimited".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub Option<u64>);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Count;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of at least 1, or \"unlimited\"")
            }
            fn visit_u64<E: Error>(self, n: u64) -> Result<Count, E> {
                if n == 0 { Err(E::custom("must be at least 1")) } else { Ok(Count(Some(n))) }
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Count, E> {
                match text {
                    "unlimited" | "all" => Ok(Count(None)),
                    _ => Err(E::custom(format_args!(
                        "`{text}` is neither a number nor \"unlimited\""
                    ))),
                }
            }
        }
        from.deserialize_u64(Number)
    }
}

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            None => to.serialize_str("unlimited"),
            Some(n) => to.serialize_u64(n),
        }
    }
}
