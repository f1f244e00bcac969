//! Files of real hosts and the fabric that connects them: `hosts = [...]` and a scenario's `[fabric]`; and files with a `[fabric]` and nothing
//! else.

use rackweave_sim::Fabric as Layout;
use rackweave_sim::config::{FabricConfig, Move};
use serde::Deserialize;

use super::de::{self, DeError};
use super::fabric::Fabric;
use super::problem::Problem;
use super::source::Sources;
use super::tree::{Origin, parse_document};

use crate::error::ScenarioError;

/// Real hosts and their fabric.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// The address of each host, by host number.
    pub addresses: Vec<String>,
    /// The fabric that connects them; `None` if the file does not describe it.
    pub fabric: Option<FabricConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostsFile {
    /// Address of each host, by host number. Required.
    hosts: Vec<String>,
    /// Table: the fabric between them, with the keys of `[fabric]`. Default: none.
    fabric: Option<Fabric>,
}

impl Hosts {
    /// Reads hosts from a TOML text. Errors name it as `file`.
    ///
    /// # Errors
    /// The error says what is invalid and where. It is also an error if the fabric has a different number of hosts.
    pub fn parse(file: &str, text: &str) -> Result<Self, ScenarioError> {
        let sources = Sources::new(file, text);
        let root = parse_document(text, 0).map_err(|error| sources.not_toml(0, error))?;
        let start = Origin::new(0, 0..0);
        let read: HostsFile =
            de::from_table(&root, start).map_err(|error| sources.de_error(error))?;
        let said = |problem: Problem| {
            let error = ScenarioError::new(format!("{file}: {}", problem.message));
            match problem.help {
                Some(help) => error.with_help(help),
                None => error,
            }
        };
        let fabric = read.fabric.map(|fabric| fabric.resolve_for_hosts());
        let fabric = fabric.transpose().map_err(said)?;
        if let Some(fabric) = &fabric {
            let (room, named) = (fabric.topology.hosts() as usize, read.hosts.len());
            if room != named {
                return Err(ScenarioError::new(format!(
                    "{file}: the fabric has {room} hosts, but `hosts` names {named}"
                ))
                .with_help("name all of them, in the order of their numbers: rack by rack"));
            }
        }
        Ok(Self { addresses: read.hosts, fabric })
    }
}

/// The fabric of a file that has a scenario's `[fabric]` and nothing else.
#[derive(Clone, Debug)]
pub struct FabricFile {
    /// The fabric.
    pub fabric: FabricConfig,
    /// The changes of its circuits.
    pub moves: Vec<Move>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OnlyFabric {
    fabric: Fabric,
}

impl FabricFile {
    /// Reads a fabric from a TOML text. Errors name it as `file`. Returns `None` if the text has other keys too, or is no TOML: it may be
    /// a scenario.
    ///
    /// # Errors
    /// The error says what is invalid and where.
    pub fn parse(file: &str, text: &str) -> Result<Option<Self>, ScenarioError> {
        let sources = Sources::new(file, text);
        let Ok(root) = parse_document(text, 0) else { return Ok(None) };
        if root.get("fabric").is_none() || root.0.len() != 1 {
            return Ok(None);
        }
        let said = |problem: DeError| sources.de_error(problem.located_in(&root));
        let read: OnlyFabric = de::from_table(&root, Origin::new(0, 0..0)).map_err(said)?;
        let resolve = || {
            let fabric = read.fabric.resolve_for_hosts()?;
            let layout =
                Layout::new(&fabric).map_err(|error| Problem::new("fabric", error.to_string()))?;
            Ok(Self { moves: read.fabric.moves(&layout)?, fabric })
        };
        resolve().map(Some).map_err(|problem: Problem| said(problem.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fabric_is_as_large_as_its_hosts_are_many() {
        let text = "hosts = ['10.0.0.1', '10.0.0.2']\nfabric = { topology = 'dumbbell', left = 1, right = 1 }";
        let hosts = Hosts::parse("f.toml", text).unwrap();
        assert_eq!(hosts.addresses, ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(hosts.fabric.unwrap().topology.hosts(), 2);
        assert!(Hosts::parse("f", "hosts = ['10.0.0.1']").unwrap().fabric.is_none());
        let wrong = Hosts::parse("f.toml", &text.replace("right = 1", "right = 2")).unwrap_err();
        assert_eq!(wrong.message(), "f.toml: the fabric has 3 hosts, but `hosts` names 2");
        assert!(Hosts::parse("f", "hosts = ['a']\nracks = 2").is_err());
        assert!(Hosts::parse("f", "hosts = ").is_err());
    }

    #[test]
    fn a_file_may_have_a_fabric_and_nothing_else() {
        let text = "[fabric]\ntopology = 'rackless'\ntors = [2, 1]\nuplinks = 1\n\
                    [[fabric.moves]]\nat = '1 s'\ncircuits = [1, 0, 0]";
        let file = FabricFile::parse("f.toml", text).unwrap().unwrap();
        assert_eq!((file.fabric.topology.hosts(), file.moves.len()), (3, 1));
        let wrong = FabricFile::parse("f.toml", &text.replace("[1, 0, 0]", "[1, 1, 0]"));
        let expected = "ToR 1 has 1 ports at the optical circuit switch, and would need 2";
        assert_eq!(wrong.unwrap_err().message(), expected);
        assert!(FabricFile::parse("f", &text.replace("tors", "racks")).is_err());
        for other in ["seed = 1", "[transport]", "", "="] {
            let text = format!("{other}\n{}", if other.is_empty() { "" } else { text });
            assert!(FabricFile::parse("f", &text).unwrap().is_none(), "{other}");
        }
    }
}
