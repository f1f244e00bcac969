//! Serde over the [tree](super::tree): errors know the place of the key or value they are about.

use std::fmt::Display;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, Expected, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};

use super::START;
use super::problem::Problem;
use super::tree::{Entry, Node, Origin, Table, Value};
use crate::error::nearest;

/// What is wrong in a scenario, and where: serde knows the place that it reads, and what is found later, when values
/// are checked against each other, has the paths of their keys.
#[derive(Clone, Debug, PartialEq)]
pub struct DeError {
    /// What is wrong.
    pub message: String,
    /// A few words at the place.
    pub label: String,
    /// What to do instead.
    pub help: Option<String>,
    /// Where it is.
    pub place: Place,
}

/// Where the value is that is wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// Serde has not said yet.
    Unknown,
    /// In a text.
    Origin(Origin),
    /// Paths at which it may be, best first.
    Keys(Vec<String>),
}

impl From<Problem> for DeError {
    fn from(problem: Problem) -> Self {
        let Problem { keys, message, help } = problem;
        Self { message, label: "here".into(), help, place: Place::Keys(keys) }
    }
}

impl DeError {
    /// Returns an error without a place.
    pub fn new(message: impl Into<String>, label: impl Into<String>) -> Self {
        let (message, label) = (message.into(), label.into());
        Self { message, label, help: None, place: Place::Unknown }
    }

    /// With this place, unless it has one.
    pub fn at(mut self, origin: Origin) -> Self {
        if self.place == Place::Unknown {
            self.place = Place::Origin(origin);
        }
        self
    }

    /// With a suggestion what to do instead.
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// With the place of the value in this tree: its key, or as much of the key's path as there is.
    pub fn located_in(mut self, whole: &Table) -> Self {
        if let Place::Keys(keys) = &self.place {
            let exact = keys.iter().find_map(|key| whole.find(key));
            let nearest = || keys.iter().find_map(|key| whole.find_nearest(key));
            let origin = exact.or_else(nearest).map_or(START, |node| node.origin);
            self.place = Place::Origin(origin);
        }
        self
    }

    /// An unknown key, with what was probably meant.
    pub fn unknown_key(key: &str, known: &[&str]) -> Self {
        Self::new(format!("unknown key `{key}`"), "unknown key").with_help(suggest(key, known))
    }

    /// Puts the key in front, once: the innermost key is the one to name.
    pub fn of_key(mut self, entry: &Entry) -> Self {
        if self.place == Place::Unknown {
            // What begins with a verb goes on from the key: "`tick` must be above 0".
            let is_verb = ["must ", "is "].iter().any(|verb| self.message.starts_with(verb));
            let colon = if is_verb { "" } else { ":" };
            self.message = format!("`{}`{colon} {}", entry.key, self.message);
            self.place = Place::Origin(entry.node.origin);
        }
        self
    }
}

impl Display for DeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DeError {}

/// "`a`, `b` or `c`".
pub fn one_of<S: AsRef<str>>(names: &[S]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{}`", name.as_ref())).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// "did you mean `x`?", or what there is.
pub fn suggest(name: &str, known: &[&str]) -> String {
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => "no keys are known here".into(),
        None => format!("known here: {}", known.join(", ")),
    }
}

impl serde::de::Error for DeError {
    fn custom<T: Display>(message: T) -> Self {
        Self::new(message.to_string(), "here")
    }
    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::unknown_key(field, expected)
    }
    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let error = Self::new(format!("unknown value `{variant}`"), "not one of the known values");
        match nearest(variant, expected.iter().copied()) {
            Some(near) => {
                error.with_help(format!("did you mean `{near}`? There are {}", expected.join(", ")))
            }
            None => error.with_help(format!("it must be {}", one_of(expected))),
        }
    }
    fn missing_field(field: &'static str) -> Self {
        Self::new(format!("`{field}` is missing"), format!("`{field}` is missing here"))
    }
    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = expectation(&expected.to_string());
        Self::new(
            format!("expected {expected}, found {}", describe(found)),
            format!("not {expected}"),
        )
    }
    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }
}

/// What serde expects, in words: it calls whole numbers by Rust's types.
fn expectation(expected: &str) -> String {
    match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" | "u64" => "a whole number of at least 0",
        "a nonzero u16" => "a whole number from 1 to 65535",
        "f64" => "a number",
        "a boolean" => "`true` or `false`",
        other => other,
    }
    .to_owned()
}

fn describe(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Str(text) => format!("the string {text:?}"),
        Unexpected::Signed(n) => n.to_string(),
        Unexpected::Unsigned(n) => n.to_string(),
        Unexpected::Float(x) => x.to_string(),
        Unexpected::Bool(b) => format!("`{b}`"),
        Unexpected::Seq => "a list".into(),
        Unexpected::Map => "a table".into(),
        other => other.to_string(),
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = DeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        match &self.value {
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Integer(n) => match u64::try_from(*n) {
                Ok(n) => visitor.visit_u64(n),
                Err(_) => visitor.visit_i64(*n),
            },
            Value::Float(x) => visitor.visit_f64(*x),
            Value::Boolean(b) => visitor.visit_bool(*b),
            Value::Datetime(_) => {
                Err(DeError::new("a scenario has no dates", "a date").at(self.origin))
            }
            Value::Array(items) => visitor.visit_seq(Items(items.iter())),
            Value::Table(table) => visitor
                .visit_map(Fields { entries: table.0.iter(), current: None })
                .map_err(|error| error.at(self.origin)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeError> {
        match &self.value {
            Value::String(text) => visitor.visit_enum(UnitVariant(text)),
            _ => Err(DeError::custom(format_args!("expected a name, found {}", self.describe()))),
        }
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        match self.value {
            // `1e6` is a float in TOML.
            Value::Float(x) if x.fract() == 0.0 && (0.0..=MAX_EXACT).contains(&x) => {
                visitor.visit_u64(x as u64)
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        self.deserialize_u64(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// Up to here every whole number is a float.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Reads a whole table as `T`.
pub fn from_table<'de, T: serde::Deserialize<'de>>(
    table: &'de Table,
    origin: Origin,
) -> Result<T, DeError> {
    T::deserialize(TableDe { table }).map_err(|error| error.at(origin))
}

struct TableDe<'de> {
    table: &'de Table,
}

impl<'de> Deserializer<'de> for TableDe<'de> {
    type Error = DeError;
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        visitor.visit_map(Fields { entries: self.table.0.iter(), current: None })
    }
    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any option
        newtype_struct enum
    }
}

struct Fields<'de> {
    entries: std::slice::Iter<'de, Entry>,
    current: Option<&'de Entry>,
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = DeError;
    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DeError> {
        self.current = self.entries.next();
        let Some(entry) = self.current else { return Ok(None) };
        let key: serde::de::value::StrDeserializer<'_, DeError> =
            entry.key.as_str().into_deserializer();
        seed.deserialize(key).map(Some).map_err(|error| error.at(entry.key_origin))
    }
    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, DeError> {
        let Some(entry) = self.current else {
            return Err(DeError::custom("a value without a key"));
        };
        seed.deserialize(&entry.node).map_err(|error| error.of_key(entry))
    }
}

struct Items<'de>(std::slice::Iter<'de, Node>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = DeError;
    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DeError> {
        let Some(node) = self.0.next() else { return Ok(None) };
        seed.deserialize(node).map(Some).map_err(|error| error.at(node.origin))
    }
}

struct UnitVariant<'de>(&'de str);

impl<'de> EnumAccess<'de> for UnitVariant<'de> {
    type Error = DeError;
    type Variant = Self;
    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), DeError> {
        let name: serde::de::value::StrDeserializer<'_, DeError> = self.0.into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de> VariantAccess<'de> for UnitVariant<'de> {
    type Error = DeError;
    fn unit_variant(self) -> Result<(), DeError> {
        Ok(())
    }
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _seed: T) -> Result<T::Value, DeError> {
        Err(DeError::custom("expected a plain name"))
    }
    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, _visitor: V) -> Result<V::Value, DeError> {
        Err(DeError::custom("expected a plain name"))
    }
    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, DeError> {
        Err(DeError::custom("expected a plain name"))
    }
}
