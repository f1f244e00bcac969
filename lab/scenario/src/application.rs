//! `[workload.application]`, and the keys of exchange = "stream".

use rackweave_core::{Bytes, Rate, Span};
use rackweave_workload::{Application, Exchange, StreamMode};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::problem::Problem;
use super::values::Unit;

/// The keys of `[workload.application]`: the CPU costs of receiving data.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ApplicationKeys {
    /// Rate of copying bytes, such as `"40 Gbps"`. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    copy_rate: Option<Unit<Rate>>,
    /// Time per message or response. Default: `"0 s"`.
    per_message: Unit<Span>,
    /// Time to create and reclaim an RPC, at either end; on a one-id stream per direction. Default:
    /// `"0 s"`.
    per_rpc: Unit<Span>,
}

impl Default for ApplicationKeys {
    fn default() -> Self {
        Self { copy_rate: None, per_message: Unit(Span::ZERO), per_rpc: Unit(Span::ZERO) }
    }
}

impl ApplicationKeys {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the configuration; `path` is that of the workload's table.
    pub(crate) fn resolve(&self, path: &str) -> Result<Application, Problem> {
        if self.copy_rate == Some(Unit(Rate(0))) {
            let key = format!("{path}.application.copy_rate");
            return Err(Problem::new(key, "`copy_rate` must be above 0")
                .with_help("without `copy_rate`, bytes take no time"));
        }
        Ok(Application {
            copy_rate: self.copy_rate.map(|rate| rate.0),
            per_message: self.per_message.0,
            per_rpc: self.per_rpc.0,
        })
    }
}

/// How the transport carries a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StreamName {
    OneId,
    Unary,
}

impl From<StreamName> for StreamMode {
    fn from(name: StreamName) -> Self {
        match name {
            StreamName::OneId => Self::OneId,
            StreamName::Unary => Self::Unary,
        }
    }
}

/// The size of the responses, which streams may omit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    None,
    Bytes(Unit<Bytes>),
}

impl From<Response> for Exchange {
    fn from(response: Response) -> Self {
        match response {
            Response::None => Self::OneWay,
            Response::Bytes(Unit(Bytes(bytes))) => Self::Respond(bytes),
        }
    }
}

impl<'de> Deserialize<'de> for Response {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Response;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a size with its unit, such as \"100 B\", or \"none\"")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Response, E> {
                if text.trim() == "none" {
                    return Ok(Response::None);
                }
                text.parse().map(|bytes| Response::Bytes(Unit(bytes))).map_err(E::custom)
            }
        }
        from.deserialize_str(Text)
    }
}

impl Serialize for Response {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => to.serialize_str("none"),
            Self::Bytes(bytes) => bytes.serialize(to),
        }
    }
}
