//! Values of JSON in which `null` is read as NaN where a number is wanted.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, IntoDeserializer, Visitor};
use serde_json::Value;

/// A value of `summary.json`. JSON has no NaN, so that statistics without values are `null` there.
#[derive(Clone, Copy)]
pub(super) struct Nullable<'de>(pub(super) &'de Value);

impl<'de> Deserializer<'de> for Nullable<'de> {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            Value::Object(fields) => {
                let fields = fields.iter().map(|(key, value)| (key.as_str(), Nullable(value)));
                visitor.visit_map(MapDeserializer::new(fields))
            }
            Value::Array(entries) => {
                visitor.visit_seq(SeqDeserializer::new(entries.iter().map(Nullable)))
            }
            other => other.deserialize_any(visitor),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        if self.0.is_null() { visitor.visit_f64(f64::NAN) } else { self.0.deserialize_f64(visitor) }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, serde_json::Error> for Nullable<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Sample {
        mean: f64,
        edge: Option<u64>,
        inner: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    struct Inner {
        x: Option<f64>,
        y: f64,
    }

    #[test]
    fn null_is_nan_for_numbers_and_none_for_options() {
        let value = serde_json::json!({
            "mean": null, "edge": null, "inner": [{ "x": null, "y": null }, { "x": 2, "y": 1.5 }],
        });
        let read = Sample::deserialize(Nullable(&value)).unwrap();
        assert!(read.mean.is_nan() && read.edge.is_none());
        assert!(read.inner[0].x.is_none() && read.inner[0].y.is_nan());
        assert_eq!((read.inner[1].x, read.inner[1].y), (Some(2.0), 1.5));
        let wrong = serde_json::json!({ "mean": "much", "edge": null, "inner": [] });
        assert!(Sample::deserialize(Nullable(&wrong)).is_err());
    }
}
