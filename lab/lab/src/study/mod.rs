//! What a point measures: ordinary messages, or one of the kinds of workload that have tables, runs and results of their own.
//!
//! - [`Study`]: the checked workload of a point. [`StudySummary`]: its object in `summary.json`.
//! - [`cast`]: transfers of files from one host to many.
//! - [`image`]: disk images for many hosts.
//! - [`reduce`]: jobs of MapReduce whose pairs are added up on the way. [`allreduce`]: vectors of many workers, the same.
//! - [`plan`]: plans of circuits for random demand.
//!
//! A kind is a folder and a line of the registry below. The folder implements two traits: `Kind`, what is known before there is a
//! scenario (keys, schemes, tables, the section of the page), and `Configured`, what a checked scenario does (its run, its size). All code
//! that lists or dispatches kinds follows from the registry, and so does the JSON schema of results. How the testbed runs a kind is in
//! `rackweave-testbed`, which refuses the kinds that it does not know.

pub mod allreduce;
pub mod cast;
mod hosts;
pub mod image;
mod kind;
pub mod plan;
#[cfg(test)]
pub(crate) mod probe;
pub mod reduce;
mod setting;

use std::collections::BTreeMap;
use std::sync::Arc;

use rackweave_scenario::de::DeError;
use rackweave_scenario::problem::SweptKeys;
use rackweave_scenario::tree::{self, Node, Table, Value};
use rackweave_sim::oracle::Rules;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) use self::hosts::{Receivers, numbers, racks, spread};
pub use self::kind::Listed;
pub(crate) use self::kind::{
    Configured, Done, Entry, Ground, Kind, Resolved, TerminalTable, unknown_scheme,
};
pub(crate) use self::setting::Setting;
pub use self::setting::StudyError;
use crate::null::Nullable;
use crate::results::PointResult;
use crate::tables::Sink;

/// Makes the types that have a case for each kind. A line is the kind's name, its module, which is the name of its table too, and the types of
/// its configuration, its summary and, if it has any, the details that only files and charts show.
macro_rules! studies {
    ($($(#[$meta:meta])* $Kind:ident => $module:ident::{
        $Config:ident, $Summary:ident $(, $Detail:ident)?
    },)+) => {
        /// What a point measures.
        #[derive(Clone, Debug)]
        pub enum Study {
            /// The messages of the first stream, over its transport, or by a central scheduler with these rules.
            Messages(Option<Rules>),
            $(
                #[doc = concat!("The workload of `[workload.", stringify!($module), "]`; all streams are background streams.")]
                $(#[$meta])*
                $Kind(Arc<$module::$Config>),
            )+
        }

        /// The results that only the workload's kind has: an object of a point in `summary.json`.
        #[derive(Clone, Debug, Default)]
        pub enum StudySummary {
            /// There are none: messages have the results that every point has.
            #[default]
            Messages,
            $(
                #[doc = concat!("The object `", stringify!($module), "`.")]
                $(#[$meta])*
                $Kind($module::$Summary),
            )+
        }

        /// The details of a run that only files and charts show.
        #[derive(Clone, Debug, Deserialize, Serialize)]
        pub enum StudyDetail {
            $($(
                #[doc = concat!("Those of `[workload.", stringify!($module), "]`.")]
                $Kind($module::$Detail),
            )?)+
        }

        /// The keys of `[workload.KIND]`, not yet checked against each other.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(rename_all = "lowercase")]
        pub(crate) enum Keys {
            $($(#[$meta])* $Kind(<$module::$Config as Kind>::Keys),)+
        }

        /// All kinds, in the order in which files and the page have them.
        pub(crate) const KINDS: &[Entry] = &[$($(#[$meta])* Entry::of::<$module::$Config>(),)+];

        $(
            $(#[$meta])*
            impl Listed for $module::$Config {
                const TABLE: &'static str = stringify!($module);
                type Summary = $module::$Summary;

                fn of(summary: &StudySummary) -> Option<&Self::Summary> {
                    if let StudySummary::$Kind(summary) = summary { Some(summary) } else { None }
                }

                fn into_study(self) -> Study {
                    Study::$Kind(Arc::new(self))
                }
            }
        )+

        impl Study {
            /// Returns what can be asked of every kind; `None` of messages.
            pub(crate) fn kind(&self) -> Option<&dyn Configured> {
                match self {
                    Self::Messages(_) => None,
                    $($(#[$meta])* Self::$Kind(config) => Some(&**config),)+
                }
            }

            /// Returns the name of the kind; `None` of messages.
            #[must_use]
            pub const fn table(&self) -> Option<&'static str> {
                match self {
                    Self::Messages(_) => None,
                    $($(#[$meta])* Self::$Kind(_) => Some(stringify!($module)),)+
                }
            }
        }

        impl Keys {
            /// Reads `[workload]` if it has the table of a kind, which is its only key then.
            pub(crate) fn read(workload: &tree::Entry) -> Result<Option<Self>, DeError> {
                let Value::Table(table) = &workload.node.value else { return Ok(None) };
                $(
                    $(#[$meta])*
                    if let Some(entry) = table.get(stringify!($module)) {
                        only_key(table, entry)?;
                        let keys = serde::Deserialize::deserialize(&entry.node);
                        return Ok(Some(Self::$Kind(keys.map_err(|error: DeError| error.of_key(entry))?)));
                    }
                )+
                Ok(None)
            }

            /// Checks the keys, and the scheme that carries out what they say.
            pub(crate) fn resolve(
                &self,
                transport: &Node,
                swept: &SweptKeys,
                ground: &Ground<'_>,
            ) -> Result<Resolved, DeError> {
                match self {
                    $($(#[$meta])* Self::$Kind(keys) => {
                        kind::resolve::<$module::$Config>(keys, transport, swept, ground)
                    })+
                }
            }
        }

        /// Passes the tables that only kinds of workload have to a sink.
        pub(crate) fn tables<S: Sink>(points: &[PointResult], sink: &mut S) -> Result<(), S::Error> {
            $($(#[$meta])* { $module::$Config::tables(points, sink)?; })+
            Ok(())
        }

        /// The fields of a point's object in `summary.json`.
        #[derive(Default, Deserialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        #[serde(default)]
        struct Fields {
            $(
                #[doc = concat!("The results of the workload of `[workload.", stringify!($module), "]`.")]
                $(#[$meta])*
                #[serde(skip_serializing_if = "Option::is_none")]
                $module: Option<$module::$Summary>,
            )+
        }

        impl From<Fields> for StudySummary {
            fn from(fields: Fields) -> Self {
                $(
                    $(#[$meta])*
                    if let Some(summary) = fields.$module {
                        return Self::$Kind(summary);
                    }
                )+
                Self::Messages
            }
        }

        /// As a map with the object of its kind, or without any.
        impl Serialize for StudySummary {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let mut map = to.serialize_map(None)?;
                match self {
                    Self::Messages => {}
                    $($(#[$meta])* Self::$Kind(summary) => {
                        map.serialize_entry(stringify!($module), summary)?;
                    })+
                }
                map.end()
            }
        }
    };
}

studies! {
    Cast => cast::{CastConfig, CastSummary, CastDetail},
    Image => image::{ImageConfig, ImageSummary},
    Reduce => reduce::{ReduceConfig, ReduceSummary},
    Plan => plan::{PlanConfig, PlanSummary},
    Allreduce => allreduce::{AllreduceConfig, AllreduceSummary},
    #[cfg(test)]
    Probe => probe::{ProbeConfig, ProbeSummary},
}

/// The names of the kinds: those of their tables below `[workload]`, and of their objects in `summary.json`.
pub fn names() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.table)
}

/// The keys of all kinds that determine how much is run, and not what is compared.
pub fn sizes() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|kind| kind.sizes).copied()
}

impl Study {
    /// Returns the bytes of its data; 0 if its kind has none, and for messages.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.kind().map_or(0, Configured::data_bytes)
    }
}

impl Default for Study {
    fn default() -> Self {
        Self::Messages(None)
    }
}

impl Study {
    /// Returns whether the measured messages are those of the configuration's first stream.
    #[must_use]
    pub const fn is_messages(&self) -> bool {
        matches!(self, Self::Messages(_))
    }
}

/// As its fields; a point has one at most.
#[cfg(test)]
impl schemars::JsonSchema for StudySummary {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        Fields::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Fields::json_schema(generator)
    }
}

impl<'de> Deserialize<'de> for StudySummary {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // These fields are flattened among those of a point: what has read the others does not see their types.
        Fields::deserialize(Nullable(from)).map(Self::from)
    }
}

impl Keys {
    /// Returns whether both are of the same kind.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// Refuses other keys next to the table of a kind.
fn only_key(table: &Table, kind: &tree::Entry) -> Result<(), DeError> {
    let Some(other) = table.0.iter().find(|other| other.key != kind.key) else { return Ok(()) };
    let message = format!("`{}` has no meaning with [workload.{}]", other.key, kind.key);
    Err(DeError::new(message, "of workloads of messages").at(other.key_origin))
}

/// Adds the rows of a table to the points that they are of, if charts of a kind are drawn from it.
///
/// # Errors
/// If the table has no column that its rows need, with the name of the column.
pub(crate) fn restore(
    table: &crate::tables::Table,
    points: &mut BTreeMap<u64, &mut PointResult>,
) -> Result<(), String> {
    let drawn = KINDS.iter().find(|kind| kind.drawn.contains(&table.name.as_str()));
    drawn.map_or(Ok(()), |kind| (kind.restore)(table, points))
}
