//! What the tests of a plugin ask of its keys and rules.

use rackweave_core::Rate;
use rackweave_sim::Fabric;
use rackweave_sim::config::{FabricConfig, Topology};
use rackweave_transport::TransportConfig;
use rackweave_workload::{LoadCounts, Pattern, SizeDist, WorkloadConfig};

use super::Plugin;
use crate::START;
use crate::derived::Parameter;
use crate::keys::{Carried, Place};
use crate::tree::parse_document;

/// Values of every kind that a key may have. A key counts as used if one of them changes the configuration.
const VALUES: [&str; 14] = [
    "1",
    "3",
    "17",
    "100",
    "0.25",
    "0.75",
    "1.5",
    "true",
    "false",
    "\"3 KB\"",
    "\"77 KB\"",
    "\"7 us\"",
    "\"3 ms\"",
    "\"unlimited\"",
];

/// What is wrong with the keys or rules of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// A rule has a key that the transport does not have.
    #[error("RULES have `{key}`, which is none of the keys {keys}")]
    Rule {
        /// The key.
        key: String,
        /// The keys of the transport.
        keys: String,
    },
    /// A value that `rackweave tune` would try is refused.
    #[error("the grid of `{key}` has {value}, which is refused: {why}")]
    Grid {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// Why it is refused.
        why: String,
    },
    /// No value of a key changes the configuration.
    #[error("`{key}` is read, and changes nothing: `resolve` or `controller` ignores it")]
    Ignored {
        /// The key.
        key: String,
    },
    /// A value of a key changes the configuration, and not what its rule says about it.
    #[error("the rule of `{key}` has the same `of` whatever the key is")]
    Of {
        /// The key.
        key: String,
    },
    /// Without any key there is no configuration.
    #[error("the defaults are refused: {0}")]
    Default(String),
}

/// A place to resolve keys in.
struct Bench {
    plugin: Plugin,
    fabric: Fabric,
    workload: WorkloadConfig,
}

impl Bench {
    /// Returns the configuration and the parameters with the keys of a TOML text.
    fn resolve(&self, text: &str) -> Result<(TransportConfig, Vec<Parameter>), String> {
        let table = parse_document(text, 0).map_err(|error| error.message)?;
        let keys = self.plugin.read(&table, START).map_err(|error| error.to_string())?;
        let place = Place { path: "transport", name: self.plugin.about.name };
        let all = [&self.workload];
        let carried = Carried { path: "workload", workload: &self.workload, all: &all };
        let config = keys.resolve(place, &self.fabric, carried);
        let config = config.map_err(|problem| problem.message)?;
        let parameters = keys.parameters(place, &self.fabric, carried);
        Ok((config, parameters.map_err(|problem| problem.message)?))
    }
}

impl Plugin {
    /// Checks, for the tests of a crate with a transport, that rules have keys of the transport, that the values which `rackweave tune` tries
    /// are accepted, and that every key changes the configuration.
    ///
    /// # Errors
    /// See [`KeysError`].
    ///
    /// # Panics
    /// If the scenario of the check cannot be laid out, which is a bug.
    pub fn check(&self) -> Result<(), KeysError> {
        let [keys, rules] = (self.own)();
        if let Some(key) = rules.iter().find(|key| !keys.contains(key)) {
            return Err(KeysError::Rule { key: (*key).to_owned(), keys: keys.join(", ") });
        }
        let rate = Rate::from_gbps(25);
        let topology = Topology::LeafSpine {
            leaves: 3,
            hosts_per_leaf: 8,
            spines: 2,
            host_link: rate,
            core_link: Rate::from_gbps(100),
        };
        let sizes = SizeDist::fixed(10_000).expect("a usual size");
        let pattern = Pattern::OpenLoop { sizes, load: 0.5, counts: LoadCounts::Payload };
        let bench = Bench {
            plugin: *self,
            fabric: Fabric::new(&FabricConfig::new(topology)).expect("a usual fabric"),
            workload: WorkloadConfig::new(pattern),
        };
        let (default, parameters) = bench.resolve("").map_err(KeysError::Default)?;
        for key in keys {
            let path = format!("transport.{}.{key}", self.about.name);
            let rule = parameters.iter().find(|parameter| parameter.key == path);
            let grid = rule.map_or_else(Vec::new, Parameter::candidates);
            let (mut is_accepted, mut is_used, mut is_seen) = (false, false, false);
            for value in grid.iter().map(String::as_str).chain(VALUES) {
                match bench.resolve(&format!("{key} = {value}")) {
                    Ok((config, now)) => {
                        is_accepted = true;
                        is_used |= config != default;
                        let now = now.iter().find(|parameter| parameter.key == path);
                        is_seen |= now.map(|it| &it.value) != rule.map(|it| &it.value);
                    }
                    Err(why) if grid.iter().any(|other| other == value) => {
                        let (key, value) = (key.to_owned(), value.to_owned());
                        return Err(KeysError::Grid { key, value, why });
                    }
                    Err(_) => {}
                }
            }
            if is_accepted && !is_used {
                return Err(KeysError::Ignored { key: key.to_owned() });
            }
            if rule.is_some() && is_used && !is_seen {
                return Err(KeysError::Of { key: key.to_owned() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "`keys!` declares public types, as other crates need them")]
mod tests {
    use rackweave_transport::tcp::{AckInfo, CongestionEvent, Controller};

    use super::*;
    use crate::derived::{Amount, Far, Grid, Rule};
    use crate::item::About;
    use crate::problem::Problem;
    use crate::transport::Congestion;
    use crate::values::Share;

    #[derive(Clone, Debug)]
    pub struct Fixed {
        cut: f64,
    }

    impl Controller for Fixed {
        fn start(&mut self, _: u64, _: u64) {}
        fn on_ack(&mut self, _: &AckInfo) {}
        fn on_congestion_event(&mut self, _: &CongestionEvent) {}
        fn window(&self) -> u64 {
            3000
        }
    }

    const ABOUT: About = About { name: "fixed", description: "", profiles: &[], sources: &[] };

    const fn rule(key: &'static str, grid: Grid, of: fn(&Fixed) -> Option<Amount>) -> Rule<Fixed> {
        Rule { key, of, why: "", far: Far::NEVER, grid }
    }

    const fn cut(fixed: &Fixed) -> Option<Amount> {
        Some(Amount::Number(fixed.cut))
    }

    /// Declares keys with a rule, and what the controller does with the key.
    macro_rules! plugin {
        ($name:ident, $rule:expr, $used:expr) => {{
            mod $name {
                use super::*;
                crate::keys::keys! {
                    /// Keys.
                    struct Keys {
                        /// The share. Default: 0.5.
                        cut: Share,
                    }
                }
                impl Congestion for Keys {
                    type Controller = Fixed;
                    const ABOUT: About = ABOUT;
                    const RULES: &'static [Rule<Fixed>] = &[$rule];
                    fn controller(&self, _: Place<'_>, _: &Fabric) -> Result<Fixed, Problem> {
                        let used: fn(f64) -> f64 = $used;
                        Ok(Fixed { cut: used(self.cut.map_or(0.5, |share| share.0)) })
                    }
                }
            }
            Plugin::congestion::<$name::Keys>().check()
        }};
    }

    #[test]
    fn what_is_wrong_with_keys_and_rules_is_found() {
        let sound = plugin!(sound, rule("cut", Grid::Values(&["0.25", "1.0"]), cut), |cut| cut);
        assert_eq!(sound, Ok(()));
        let misspelt = plugin!(misspelt, rule("cuts", Grid::None, cut), |cut| cut);
        assert!(matches!(misspelt, Err(KeysError::Rule { key, .. }) if key == "cuts"));
        let grid = plugin!(grid, rule("cut", Grid::Factors(&[0.5, 4.0]), cut), |cut| cut);
        assert!(matches!(grid, Err(KeysError::Grid { value, .. }) if value == "2"));
        let ignored = plugin!(ignored, rule("cut", Grid::None, cut), |_| 0.5);
        assert_eq!(ignored, Err(KeysError::Ignored { key: "cut".to_owned() }));
        let of = plugin!(of, rule("cut", Grid::None, |_| Some(Amount::Number(1.0))), |cut| cut);
        assert_eq!(of, Err(KeysError::Of { key: "cut".to_owned() }));
    }
}
