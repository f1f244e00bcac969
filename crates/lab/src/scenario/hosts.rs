//! Files of real hosts and the fabric that connects them: `hosts = [...]` and a scenario's `[fabric]`.

use rackweave_sim::config::FabricConfig;
use serde::Deserialize;

use super::de;
use super::fabric::Fabric;
use super::problem::{Problem, SweptKeys};
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
struct File {
    hosts: Vec<String>,
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
        let read: File = de::from_table(&root, start).map_err(|error| sources.de_error(error))?;
        let said = |problem: Problem| {
            let error = ScenarioError::new(format!("{file}: {}", problem.message));
            match problem.help {
                Some(help) => error.with_help(help),
                None => error,
            }
        };
        let fabric = read.fabric.map(|fabric| fabric.resolve(&SweptKeys::new()));
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
}
