//! A pod as a TOML file (docs/ops/reduce-plan.md).

use rackweave_core::Rate;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::config::Configuration;
use crate::pod::{PAIR_BYTES, Pod, PodError, TableUse, Tor};

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {problem}")]
pub struct PodFileError {
    /// The number of the line, from 1.
    pub line: usize,
    /// The number of the character in the line, from 1.
    pub column: usize,
    /// What is wrong.
    pub problem: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    servers: Option<u32>,
    #[serde(default = "ten_gbps", deserialize_with = "rate")]
    server_rate: Rate,
    #[serde(default)]
    table: Table,
    pair_bytes: Option<Spanned<u64>>,
    racks: Option<Spanned<Vec<Vec<u32>>>>,
    tor: Vec<Spanned<TorTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TorTable {
    ports: u32,
    uplinks: Option<u32>,
    #[serde(default, deserialize_with = "some_rate")]
    uplink_rate: Option<Rate>,
    #[serde(default)]
    slots: u64,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Table {
    #[default]
    KeyRanges,
    FirstCome,
}

const fn ten_gbps() -> Rate {
    Rate::from_gbps(10)
}

fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Rate, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(serde::de::Error::custom)
}

fn some_rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Rate>, D::Error> {
    rate(deserializer).map(Some)
}

/// Reads a pod and, if the file has `racks`, its first configuration.
///
/// # Errors
/// If the text is not TOML, has an unknown key or value, or describes an impossible pod.
pub fn read(text: &str) -> Result<(Pod, Configuration), PodFileError> {
    let at = |offset: usize, problem: String| {
        let before = text.get(..offset).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&letter| letter != '\n').count() + 1;
        PodFileError { line, column, problem }
    };
    let file: File = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        at(offset, error.message().replace('\n', " "))
    })?;
    let places: Vec<usize> = file.tor.iter().map(|tor| tor.span().start).collect();
    let tors: Vec<Tor> =
        file.tor.into_iter().map(|tor| tor.into_inner().resolve(file.server_rate)).collect();
    let ports = tors.iter().map(|tor| u64::from(tor.ports)).sum::<u64>();
    let servers = file.servers.unwrap_or_else(|| u32::try_from(ports).unwrap_or(u32::MAX));
    let pod = Pod::new(servers, file.server_rate, tors).map_err(|error| {
        let place = match error {
            PodError::NoPorts(tor)
            | PodError::NoUplinks(tor)
            | PodError::TooManyPorts { tor, .. } => places.get(tor).copied().unwrap_or(0),
            _ => 0,
        };
        at(place, error.to_string())
    })?;
    let table = match file.table {
        Table::KeyRanges => TableUse::KeyRanges,
        Table::FirstCome => TableUse::FirstCome,
    };
    let place = file.pair_bytes.as_ref().map_or(0, |it| it.span().start);
    let pair_bytes = file.pair_bytes.map_or(PAIR_BYTES, Spanned::into_inner);
    let pod = pod.with_table(table, pair_bytes).map_err(|error| at(place, error.to_string()))?;
    let racks = match file.racks {
        None => Configuration::in_order(&pod),
        Some(racks) => Configuration::from_racks(&pod, racks.get_ref())
            .map_err(|error| at(racks.span().start, error.to_string()))?,
    };
    Ok((pod, racks))
}

impl TorTable {
    fn resolve(self, server_rate: Rate) -> Tor {
        let Self { ports, uplinks, uplink_rate, slots } = self;
        let uplink_rate = uplink_rate.unwrap_or(server_rate);
        Tor { ports, uplinks: uplinks.unwrap_or(ports.div_ceil(2)), uplink_rate, slots }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: &str =
        "[[tor]]\nports = 4\nslots = 65536\n[[tor]]\nports = 2\n[[tor]]\nports = 2\n";

    #[test]
    fn defaults_are_the_papers_pod() {
        let (pod, racks) = read(PAPER).unwrap();
        assert_eq!(pod, Pod::paper());
        assert_eq!(racks, Configuration::in_order(&pod));
        let all = format!(
            "servers = 7\nserver_rate = '25 Gbps'\ntable = 'first-come'\npair_bytes = 12\n\
             racks = [[6, 5, 4], [3, 2], [1, 0]]\n{PAPER}uplinks = 3\nuplink_rate = '40 Gbps'"
        );
        let (pod, racks) = read(&all).unwrap();
        assert_eq!((pod.servers(), pod.server_rate()), (7, Rate::from_gbps(25)));
        assert_eq!((pod.table(), pod.pair_bytes()), (TableUse::FirstCome, 12));
        assert_eq!(pod.tors()[2].uplink_capacity(), Rate::from_gbps(120));
        assert_eq!(pod.tors()[0].uplink_rate, Rate::from_gbps(25), "that of the servers' links");
        assert_eq!(racks.tor_of(), [2, 2, 1, 1, 0, 0, 0]);
    }

    #[test]
    fn errors_name_line_and_column() {
        let sentence = |text: &str| read(text).unwrap_err().to_string();
        assert!(sentence("[[tor]]\nports = 4\nuplink = 2\n").starts_with("3:1: unknown field"));
        let rate = sentence("[[tor]]\nports = 4\nuplink_rate = '10'\n");
        assert!(rate.starts_with("3:15: `10` is not a rate"), "{rate}");
        let ports = sentence("server_rate = '1 Gbps'\n[[tor]]\nports = 4\n[[tor]]\nports = 0\n");
        assert!(ports.starts_with("4:1: ToR 1 has no server port"), "{ports}");
        let racks = sentence(&format!("racks = [[9]]\n{PAPER}"));
        assert_eq!(racks, "1:9: server 9 must be in exactly one rack");
        assert!(sentence("tor = []").contains("at least 1 ToR"));
        assert!(sentence("servers = 9\n[[tor]]\nports = 4\n").contains("fewer than the 9"));
        assert!(sentence("pair_bytes = 0\n[[tor]]\nports = 4\n").starts_with("1:14: a key-value"));
        assert!(sentence("[[tor]\n").starts_with("1:"));
        assert!(sentence("[[tor]]\nports = 4294967295\n").contains("can have 512"));
    }
}
