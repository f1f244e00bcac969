//! Tables such as `[transport]`, whose key `name` determines their other keys.

use rackweave_core::Bytes;
use rackweave_transport::InvalidConfig;
use rackweave_workload::{Pattern, SizeDist, StreamMode, WorkloadConfig};

use super::de::{DeError, one_of};
use super::problem::{Problem, SweptKeys};
use super::tree::{Node, Origin, Table, Value};
use crate::item::About;

/// Declares the optional keys of a table: `key: Type`, or `key: Type => field` for a key that overrides that field of a
/// configuration. The type reads and checks the value. The doc comment of a key is its row in docs/reference/scenario.md, and
/// ends with its default (tests/docs/src/keys.rs).
#[macro_export]
macro_rules! keys {
    ($(#[$meta:meta])* struct $Keys:ident for $Config:ty {
        $($(#[$doc:meta])* $key:ident: $Type:ty $(=> $($field:ident).+)?,)*
    }) => {
        $crate::keys! { $(#[$meta])* struct $Keys { $($(#[$doc])* $key: $Type,)* } }

        impl $Keys {
            /// Overrides the fields whose keys are given.
            fn apply(&self, config: &mut $Config) {
                $($(
                    if let Some(value) = self.$key {
                        config.$($field).+ = value.into();
                    }
                )?)*
            }
        }
    };
    ($(#[$meta:meta])* struct $Keys:ident { $($(#[$doc:meta])* $key:ident: $Type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $Keys {
            $($(#[$doc])* $key: Option<$Type>,)*
        }

        impl $Keys {
            /// The names of the keys, in the order of their declaration.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($key)),*];
        }

        impl $crate::keys::Declared for $Keys {
            const KEYS: &'static [&'static str] = Self::NAMES;

            fn is_given(&self, key: &str) -> bool {
                $((key == stringify!($key) && self.$key.is_some()) ||)* false
            }
        }
    };
}
pub use keys;

/// The keys of a table, as [`keys!`] declares them.
pub trait Declared {
    /// The names of the keys, in the order of their declaration.
    const KEYS: &'static [&'static str];

    /// Returns whether the scenario gives this key.
    fn is_given(&self, key: &str) -> bool;
}

/// The set of names from which a table chooses by its key `name`.
pub trait Choice: Copy + PartialEq + Sized + 'static {
    /// The checked keys of a choice.
    type Keys;
    /// All choices that are built in.
    const ALL: &'static [Self];
    /// The keys that are valid for all choices.
    const COMMON: &'static [&'static str];

    /// All choices.
    fn all() -> Vec<Self> {
        Self::ALL.to_vec()
    }

    /// The name, and the text that `rackweave list` prints about it.
    fn about(self) -> &'static About;

    /// Its name in scenarios.
    fn as_str(self) -> &'static str {
        self.about().name
    }

    /// Returns the keys of this choice, without the common ones.
    fn keys(self) -> Vec<&'static str>;

    /// Reads the keys of this choice from a table without the common ones.
    fn read_keys(self, table: &Table, origin: Origin) -> Result<Self::Keys, DeError>;

    /// Returns the error for a name that no choice has.
    fn unknown(text: &str) -> DeError;

    /// Returns the choice with this name.
    fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|choice| choice.as_str() == name)
    }

    /// The names of all choices.
    fn names() -> Vec<&'static str> {
        Self::all().iter().map(|choice| choice.as_str()).collect()
    }
}

/// Makes the names of the schemes of a kind of workload from one list: for each, the groups of its keys and the text of `rackweave list`.
/// `Keys::read` reads them, and the last item is the error for another name.
#[macro_export]
macro_rules! schemes {
    ($(#[$meta:meta])* enum Name { $($Name:ident: [$($Keys:ident),+] = $about:expr;)+ } unknown: $unknown:expr) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Name {
            $($Name,)+
        }

        impl $crate::keys::Choice for Name {
            type Keys = Keys;
            const ALL: &'static [Self] = &[$(Self::$Name,)+];
            const COMMON: &'static [&'static str] = &["name", "label"];

            fn about(self) -> &'static $crate::item::About {
                match self {
                    $(Self::$Name => &$about,)+
                }
            }

            fn keys(self) -> Vec<&'static str> {
                match self {
                    $(Self::$Name => [$($Keys::NAMES),+].concat(),)+
                }
            }

            fn read_keys(
                self,
                table: &$crate::tree::Table,
                origin: $crate::tree::Origin,
            ) -> Result<Keys, $crate::de::DeError> {
                Keys::read(self, table, origin)
            }

            fn unknown(text: &str) -> $crate::de::DeError {
                $unknown(text)
            }
        }
    };
}
pub use schemes;

/// Divides a table among groups of keys; each group is read by itself.
pub fn divide<const N: usize>(
    table: &Table,
    groups: [&[&'static str]; N],
) -> Result<[Table; N], DeError> {
    let known = groups.concat();
    if let Some(entry) = table.0.iter().find(|entry| !known.contains(&entry.key.as_str())) {
        return Err(DeError::unknown_key(&entry.key, &known).at(entry.key_origin));
    }
    Ok(groups.map(|group| {
        let own = table.0.iter().filter(|entry| group.contains(&entry.key.as_str()));
        Table(own.cloned().collect())
    }))
}

/// The path of the table from which a kind of workload chooses its scheme.
const SCHEME_PATH: &str = "transport";

/// The scheme that a scenario chooses, with its keys.
pub struct Chosen<C: Choice> {
    /// The choice.
    pub name: C,
    /// Its name in results, if the scenario gives it one.
    pub label: Option<String>,
    /// Its keys.
    pub keys: C::Keys,
}

impl<C: Choice> Chosen<C> {
    /// Reads `[transport]`.
    pub fn read(node: &Node, swept: &SweptKeys) -> Result<Self, DeError> {
        let (name, keys, table) = read::<C>(node, SCHEME_PATH, swept)?;
        Ok(Self { name, label: read_label(table)?, keys })
    }

    /// Returns the scheme's name in results.
    pub fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| self.name.as_str().to_owned())
    }

    /// Returns an error about the value of a key.
    pub fn bad(&self, key: &str, message: impl Into<String>) -> Problem {
        Place { path: SCHEME_PATH, name: self.name.as_str() }.bad(key, message)
    }
}

/// Reads the table at `path`. Its keys belong to the chosen name. Subtables named after a choice hold keys that apply
/// only if that name is chosen, so that a sweep can vary the name.
pub fn read<'a, C: Choice>(
    node: &'a Node,
    path: &str,
    swept: &SweptKeys,
) -> Result<(C, C::Keys, &'a Table), DeError> {
    let Value::Table(table) = &node.value else {
        let message = format!("`transport` must be a table, not {}", node.describe());
        let example = format!("such as {{ name = \"{}\" }}", C::ALL[0].as_str());
        return Err(DeError::new(message, example).at(node.origin));
    };
    let name: C = read_name(node, table)?;
    let is_swept = swept.contains(&format!("{path}.name"));
    let mut merged = Table::default();
    let mut own = None;
    for entry in table.0.iter().filter(|entry| !C::COMMON.contains(&entry.key.as_str())) {
        let key = entry.key.as_str();
        if let Some(other) = C::named(key) {
            let Value::Table(inner) = &entry.node.value else {
                let message = format!("`{key}` must be a table, not {}", entry.node.describe());
                return Err(DeError::new(message, "not a table").at(entry.node.origin));
            };
            // A mistake is an error even where the subtable is not used.
            other.read_keys(inner, entry.node.origin)?;
            if other == name {
                own = Some(inner);
            }
        } else if name.keys().contains(&key) {
            merged.0.push(entry.clone());
        } else if let Some(message) = foreign(name, key) {
            if !is_swept {
                let (message, other) = message;
                return Err(DeError::new(message, format!("{} has no such key", name.as_str()))
                    .with_help(format!("what is only for {other} goes into [{path}.{other}]"))
                    .at(entry.key_origin));
            }
        } else {
            let known = [C::COMMON, &C::names(), &name.keys()].concat();
            return Err(DeError::unknown_key(key, &known).at(entry.key_origin));
        }
    }
    for entry in own.iter().flat_map(|table| &table.0) {
        merged.insert(entry.clone());
    }
    Ok((name, name.read_keys(&merged, node.origin)?, table))
}

/// Returns the error text for a key that only other choices have, and the first of these choices.
fn foreign<C: Choice>(name: C, key: &str) -> Option<(String, &'static str)> {
    let all = C::all();
    let others = all.iter().filter(|other| other.keys().contains(&key));
    let others: Vec<&str> = others.map(|other| other.as_str()).collect();
    let (last, before) = others.split_last()?;
    let all = match before {
        [] => (*last).to_owned(),
        before => format!("{} and {last}", before.join(", ")),
    };
    Some((format!("`{key}` is not a key of {}, but of {all}", name.as_str()), others[0]))
}

fn read_name<C: Choice>(node: &Node, table: &Table) -> Result<C, DeError> {
    let Some(entry) = table.get("name") else {
        return Err(DeError::new("the transport has no `name`", "`name` is missing here")
            .with_help(format!("it is {}", one_of(&C::names())))
            .at(node.origin));
    };
    let Some(text) = entry.node.as_str() else {
        let message = format!("a transport's name is a string, not {}", entry.node.describe());
        return Err(DeError::new(message, "not a name").at(entry.node.origin));
    };
    C::named(text).ok_or_else(|| C::unknown(text).at(entry.node.origin))
}

/// The largest length of a label, which must fit legends and columns.
const MAX_LABEL_CHARS: usize = 64;

/// Reads the key `label`, which names the choice in results.
pub fn read_label(table: &Table) -> Result<Option<String>, DeError> {
    let Some(entry) = table.get("label") else { return Ok(None) };
    let wrong = |message: String| DeError::new(message, "no label").at(entry.node.origin);
    let Some(text) = entry.node.as_str() else {
        return Err(wrong(format!("a label is a string, not {}", entry.node.describe())));
    };
    let is_wrong = |c: char| c.is_control();
    if text.trim().is_empty() || text.chars().count() > MAX_LABEL_CHARS || text.contains(is_wrong) {
        return Err(wrong(format!("a label is a line of 1 to {MAX_LABEL_CHARS} characters")));
    }
    Ok(Some(text.trim().to_owned()))
}

/// The position and the choice of a table, for messages about its keys.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The path of the table.
    pub path: &'a str,
    /// The name of the choice.
    pub name: &'static str,
}

/// The messages that a transport carries.
#[derive(Clone, Copy, Debug)]
pub struct Carried<'a> {
    /// The path of a stream's table.
    pub path: &'a str,
    /// Its messages.
    pub workload: &'a WorkloadConfig,
    /// Those of all streams over the same transport, in the scenario's order. A host has one machine for all of them.
    pub all: &'a [&'a WorkloadConfig],
}

impl Place<'_> {
    /// Returns an error about an invalid value, which is in the subtable of the choice or else in the table itself.
    pub fn bad(self, key: &str, message: impl Into<String>) -> Problem {
        Problem::new(format!("{}.{}.{key}", self.path, self.name), message)
            .or_at(format!("{}.{key}", self.path))
    }

    /// Returns an error for what a transport reports about its configuration: at the key, if that is a value which must be above 0;
    /// otherwise no key alone is wrong.
    pub fn invalid(self, error: &InvalidConfig) -> Problem {
        match error {
            InvalidConfig::Zero(key) => self.bad(key, format!("`{key}` must be above 0")),
            other => self.bad("name", other.to_string()),
        }
    }

    /// Returns an error if the workload has messages that are too long for the transport.
    pub fn refuse_longer_messages(self, carried: Carried<'_>, max: u32) -> Result<(), Problem> {
        let Carried { path: table, workload, .. } = carried;
        if is_on_streams(workload) {
            return Ok(());
        }
        let max = u64::from(max);
        let (key, longest) = match &workload.pattern {
            Pattern::Trace(trace) => ("file", trace.entries().iter().map(|e| e.bytes).max()),
            Pattern::Collective(it) => ("collective", it.schedule().sizes().into_keys().max()),
            other => ("sizes", other.sizes().map(SizeDist::max)),
        };
        let longest = longest.unwrap_or(0);
        let too_long = |key: &str, bytes: u64| {
            let (longest, max, name) = (Bytes(bytes), Bytes(max), self.name);
            let message = format!("messages of up to {longest}: this {name} takes {max} at most");
            Problem::new(format!("{table}.{key}"), message)
        };
        if longest > max {
            let problem = too_long(key, longest);
            return Err(match key {
                "sizes" => problem.with_help(format!(
                    "`truncate = \"{}\"` cuts the distribution there",
                    Bytes(max)
                )),
                _ => problem,
            });
        }
        match workload.exchange.response_bytes(longest) {
            Some(response) if response > max => Err(too_long("response", response)),
            _ => Ok(()),
        }
    }
}

/// Returns whether messages are spans of streams, whose length is not limited.
pub fn is_on_streams(workload: &WorkloadConfig) -> bool {
    workload.streaming.is_some_and(|streaming| streaming.mode == StreamMode::OneId)
}

#[cfg(test)]
mod tests {
    use super::super::transport::Name;
    use super::super::tree::parse_document;
    use super::*;

    #[test]
    fn the_names_of_keys_are_those_that_serde_knows() {
        let table = parse_document("zzzzzzzzzzzzzzz = 1", 0).ok().unwrap();
        for name in Name::ALL.iter().copied() {
            let error = name.read_keys(&table, Origin::new(0, 0..0)).map(drop).unwrap_err();
            assert_eq!(error.help.unwrap(), format!("known here: {}", name.keys().join(", ")));
        }
    }
}
