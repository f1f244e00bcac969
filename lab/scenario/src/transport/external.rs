//! Transports of other crates, which a command has besides the built-in ones.

mod check;

use std::sync::OnceLock;

use rackweave_sim::Fabric;
use rackweave_sim::config::Marking;
use rackweave_transport::external::{self, Machine};
use rackweave_transport::tcp::{self, Controller};
use rackweave_transport::{Profile, TransportConfig};
use serde::de::DeserializeOwned;

pub use self::check::KeysError;
use super::{Name, TcpKeys};
use crate::de::{self, DeError};
use crate::derived::{self, Parameter, Rule};
use crate::item::About;
use crate::keys::{Carried, Choice as _, Declared, Place, divide};
use crate::problem::Problem;
use crate::tree::{Origin, Table};

/// A transport of another crate, as scenarios see it: its keys (see [`keys!`](crate::keys!)), and what follows from them.
pub trait External: Declared + DeserializeOwned + Default + 'static {
    /// The transport's parameters.
    type Config;

    /// Its name in scenarios, and what `rackweave list` says about it. The first source is the crate that has it.
    const ABOUT: About;

    /// The parameters that follow from the fabric or that the paper names.
    const RULES: &'static [Rule<Self::Config>] = &[];

    /// Returns the configuration, with defaults for the keys that are not given. That it is valid, and that no message is too long for it,
    /// is checked afterwards.
    ///
    /// # Errors
    /// If a value is invalid ([`Place::bad`], [`Place::invalid`]).
    fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<Self::Config, Problem>;

    /// Which packets switches mark, unless the scenario says; `None` if it does not react to marks.
    fn marking(&self) -> Option<Marking> {
        None
    }
}

/// A congestion control of another crate, as scenarios see it: TCP with this controller, under a name of its own. Its table has the
/// keys of TCP, too, but for those of TCP's own controllers.
pub trait Congestion: Declared + DeserializeOwned + Default + 'static {
    /// The controller.
    type Controller: Controller + Clone + core::fmt::Debug + Send + Sync + 'static;

    /// Its name in scenarios, and what `rackweave list` says about it. The first source is the crate that has it.
    const ABOUT: About;

    /// Whether data is ECN-capable and every mark is reported, as with DCTCP.
    const COUNTS_MARKS: bool = false;

    /// The parameters of the controller that its paper names.
    const RULES: &'static [Rule<Self::Controller>] = &[];

    /// Returns the controller with which each connection begins.
    ///
    /// # Errors
    /// If a value is invalid ([`Place::bad`]).
    fn controller(&self, place: Place<'_>, fabric: &Fabric) -> Result<Self::Controller, Problem>;
}

/// The keys of an external transport, of whichever type.
pub trait Erased {
    fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<TransportConfig, Problem>;

    fn parameters(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<Vec<Parameter>, Problem>;

    fn marking(&self) -> Option<Marking>;
}

struct Keys<T: External> {
    keys: T,
    wrap: fn(T::Config) -> TransportConfig,
}

impl<T: External> Erased for Keys<T> {
    fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<TransportConfig, Problem> {
        let config = (self.wrap)(self.keys.resolve(place, fabric, carried)?);
        config.check().map_err(|error| place.bad("name", error.to_string()))?;
        let longest = u32::try_from(config.max_message_bytes()).unwrap_or(u32::MAX);
        place.refuse_longer_messages(carried, longest)?;
        Ok(config)
    }

    fn parameters(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<Vec<Parameter>, Problem> {
        let path = format!("{}.{}", place.path, place.name);
        let config = self.keys.resolve(place, fabric, carried)?;
        let default = T::default().resolve(place, fabric, carried)?;
        Ok(derived::compare(&path, T::RULES, (&config, &default), |key| self.keys.is_given(key)))
    }

    fn marking(&self) -> Option<Marking> {
        self.keys.marking()
    }
}

/// Reads the keys of one.
type Read = fn(&Table, Origin) -> Result<Box<dyn Erased>, DeError>;

struct CongestionKeys<T> {
    keys: T,
    tcp: TcpKeys,
}

/// The keys of TCP that choose and tune its own controllers.
const CONTROLLERS: [&str; 3] = ["congestion", "hystart", "dctcp_gain_shift"];

/// The keys that a congestion control has besides its own.
fn keys_of_tcp() -> Vec<&'static str> {
    TcpKeys::NAMES.iter().copied().filter(|key| !CONTROLLERS.contains(key)).collect()
}

impl<T: Congestion> CongestionKeys<T> {
    fn config(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<tcp::Config, Problem> {
        let first = self.keys.controller(place, fabric)?;
        let control = tcp::External::new(T::ABOUT.name, T::COUNTS_MARKS, first);
        let tcp = self.tcp.resolve(place, fabric, carried)?;
        Ok(tcp::Config { congestion_control: tcp::CongestionControl::External(control), ..tcp })
    }
}

impl<T: Congestion> Erased for CongestionKeys<T> {
    fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<TransportConfig, Problem> {
        Ok(self.config(place, fabric, carried)?.into())
    }

    fn parameters(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<Vec<Parameter>, Problem> {
        let path = format!("{}.{}", place.path, place.name);
        let config = self.tcp.resolve(place, fabric, carried)?;
        let default = TcpKeys::default().resolve(place, fabric, carried)?;
        let configs = (&config, &default);
        let tcp = derived::compare(&path, TcpKeys::RULES, configs, |key| self.tcp.is_given(key));
        let own = self.keys.controller(place, fabric)?;
        let by_default = T::default().controller(place, fabric)?;
        let is_given = |key: &str| self.keys.is_given(key);
        let own = derived::compare(&path, T::RULES, (&own, &by_default), is_given);
        Ok(own.into_iter().chain(tcp).collect())
    }

    fn marking(&self) -> Option<Marking> {
        (T::COUNTS_MARKS || self.tcp.is_ecn_capable()).then_some(Marking::DCTCP)
    }
}

/// A transport that a command has besides the built-in ones.
#[derive(Clone, Copy, Debug)]
pub struct Plugin {
    about: &'static About,
    keys: fn() -> Vec<&'static str>,
    /// Those of the plugin itself, and the keys of its rules.
    own: fn() -> [Vec<&'static str>; 2],
    read: Read,
}

fn keys_of<C>(rules: &[Rule<C>]) -> Vec<&'static str> {
    rules.iter().map(|rule| rule.key).collect()
}

impl Plugin {
    /// A transport with a state machine of its own.
    #[must_use]
    pub fn transport<T>() -> Self
    where
        T: External,
        T::Config:
            Profile<Host: Machine + 'static> + core::fmt::Debug + PartialEq + Send + Sync + 'static,
    {
        let read = |table: &Table, origin| {
            let keys: T = de::from_table(table, origin)?;
            let wrap = |config| external::Config::new(config).into();
            Ok(Box::new(Keys { keys, wrap }) as Box<dyn Erased>)
        };
        let own = || [T::KEYS.to_vec(), keys_of(T::RULES)];
        Self { about: const { &T::ABOUT }, keys: || T::KEYS.to_vec(), own, read }
    }

    /// TCP with a congestion control of its own.
    #[must_use]
    pub fn congestion<T: Congestion>() -> Self {
        let read = |table: &Table, origin| {
            let [own, tcp] = divide(table, [T::KEYS, &keys_of_tcp()])?;
            let keys: T = de::from_table(&own, origin)?;
            let tcp = de::from_table(&tcp, origin)?;
            Ok(Box::new(CongestionKeys { keys, tcp }) as Box<dyn Erased>)
        };
        let keys = || [T::KEYS, &keys_of_tcp()].concat();
        let own = || [T::KEYS.to_vec(), keys_of(T::RULES)];
        Self { about: const { &T::ABOUT }, keys, own, read }
    }

    /// The name in scenarios, and what `rackweave list` says.
    #[must_use]
    pub const fn about(&self) -> &'static About {
        self.about
    }

    pub(super) fn keys(&self) -> Vec<&'static str> {
        (self.keys)()
    }

    pub(super) fn read(&self, table: &Table, origin: Origin) -> Result<Box<dyn Erased>, DeError> {
        (self.read)(table, origin)
    }
}

/// Names are unique.
impl PartialEq for Plugin {
    fn eq(&self, other: &Self) -> bool {
        self.about.name == other.about.name
    }
}

impl Eq for Plugin {}

/// The plugins of this process. They are what the list of built-in transports is, which every function that reads a name knows
/// without being handed it: constant from the start of the command on, and the same for all scenarios.
static PLUGINS: OnceLock<Vec<Plugin>> = OnceLock::new();

/// Why plugins are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlugInError {
    /// The name is no name, or is a built-in transport's or another plugin's.
    Name(&'static str, &'static str),
    /// A rule has a key that the transport does not have.
    Rule(&'static str, &'static str),
    /// Plugins were added before.
    Twice,
}

impl std::fmt::Display for PlugInError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name, why) => write!(f, "the plugin `{name}` {why}"),
            Self::Rule(name, key) => {
                write!(f, "RULES of the plugin `{name}` have `{key}`, which is none of its keys")
            }
            Self::Twice => f.write_str("plugins are added once, when the command starts"),
        }
    }
}

impl std::error::Error for PlugInError {}

/// The congestion controls of TCP that Rackweave or Linux has.
const CONTROLS: [&str; 16] = [
    "bbr",
    "bic",
    "cdg",
    "cubic",
    "highspeed",
    "htcp",
    "hybla",
    "illinois",
    "lp",
    "newreno",
    "nv",
    "reno",
    "vegas",
    "veno",
    "westwood",
    "yeah",
];

/// Returns why this cannot be the name of a transport: it is not in kebab case, or a built-in one has it.
#[must_use]
pub fn refused_name(name: &str) -> Option<&'static str> {
    let is_part = |part: &str| {
        let mut chars = part.chars();
        chars.next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
            && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
    if !starts || !name.split('-').all(is_part) {
        return Some(
            "is not lower-case letters, digits and single hyphens, such as `fixed-window`",
        );
    }
    if CONTROLS.contains(&name) {
        return Some(
            "is the name of a congestion control of TCP, and results would be taken for its",
        );
    }
    if Name::COMMON.contains(&name) {
        return Some("is the name of a key of every transport");
    }
    let built_in = Name::ALL.iter();
    let mut taken = built_in.flat_map(|known| [known.as_str()].into_iter().chain(known.keys()));
    taken
        .any(|it| it == name)
        .then_some("is the name of a built-in transport, or of one of its keys")
}

/// Adds transports to the built-in ones, for all scenarios that this process reads from now on.
///
/// # Errors
/// If a name is taken, or this was called before.
pub fn plug_in(plugins: &[Plugin]) -> Result<(), PlugInError> {
    for (place, plugin) in plugins.iter().enumerate() {
        let name = plugin.about.name;
        if let Some(why) = refused_name(name) {
            return Err(PlugInError::Name(name, why));
        }
        let [keys, rules] = (plugin.own)();
        if let Some(key) = rules.into_iter().find(|key| !keys.contains(key)) {
            return Err(PlugInError::Rule(name, key));
        }
        if plugins[..place].contains(plugin) {
            return Err(PlugInError::Name(name, "is there twice"));
        }
    }
    PLUGINS.set(plugins.to_vec()).map_err(|_| PlugInError::Twice)
}

/// The transports that were added.
pub fn plugins() -> &'static [Plugin] {
    PLUGINS.get().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn plugin(about: &'static About) -> Plugin {
        let own = || [Vec::new(), Vec::new()];
        Plugin { about, keys: Vec::new, own, read: |_, _| Err(DeError::new("", "")) }
    }

    const fn about(name: &'static str) -> About {
        About { name, description: "", profiles: &[], sources: &[] }
    }

    #[test]
    fn names_of_congestion_controls_are_refused() {
        for name in ["cubic", "bbr", "reno", "vegas"] {
            assert!(refused_name(name).is_some_and(|why| why.contains("congestion control")));
        }
        assert_eq!(refused_name("cubic-2"), None);
    }

    #[test]
    fn a_plugin_has_a_name_of_its_own() {
        const DCTCP: Plugin = plugin(&about("dctcp"));
        const OWN: Plugin = plugin(&about("own"));
        let refused = |plugins: &[Plugin]| plug_in(plugins).unwrap_err().to_string();
        assert!(refused(&[OWN, DCTCP]).contains("`dctcp` is the name of a built-in transport"));
        assert_eq!(refused(&[OWN, OWN]), "the plugin `own` is there twice");
        // Not even the valid ones of such a list are there.
        assert_eq!(plugins(), []);
    }
}
