//! `[workload.application]`, and the keys of exchange = "stream".

use rackweave_core::{Bytes, Rate, Span};
use rackweave_sim::config::FabricConfig;
use rackweave_sim::has_streams;
use rackweave_transport::TransportConfig;
use rackweave_workload::{Application, Exchange, StreamMode, WorkloadConfig};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Problem;
use super::transport::{Chosen, Name};
use super::values::Unit;

/// What it costs to take in what arrives.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ApplicationKeys {
    #[serde(skip_serializing_if = "Option::is_none")]
    copy_rate: Option<Unit<Rate>>,
    per_message: Unit<Span>,
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

    /// `path` is that of the workload.
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

/// What a stream is to the transport.
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

/// The size of the answers; streams may do without.
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

/// Whether messages are spans of streams, which may be as long as they like.
pub(super) fn is_on_streams(workload: &WorkloadConfig) -> bool {
    workload.streaming.is_some_and(|streaming| streaming.mode == StreamMode::OneId)
}

/// Messages on streams need a transport that has some. `path` is that of the workload.
pub(super) fn check_streams(
    path: &str,
    transport: (Name, &TransportConfig),
    fabric: &FabricConfig,
    workload: &WorkloadConfig,
) -> Result<(), Problem> {
    let (name, config) = transport;
    if !is_on_streams(workload) || has_streams(config) {
        return Ok(());
    }
    let plain = |name: &Name| Chosen::plain(*name, fabric, workload);
    let having = Name::ALL.into_iter().filter(|name| plain(name).is_some_and(|c| has_streams(&c)));
    let having: Vec<_> = having.map(Name::as_str).collect();
    let message = format!("{} has no streams", name.as_str());
    Err(Problem::new(format!("{path}.exchange"), message).with_help(format!(
        "transports with streams: {}; with stream = \"unary\" they are made of RPCs, over any",
        having.join(", ")
    )))
}
