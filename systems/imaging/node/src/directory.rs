//! The holders of chunks: the directory of SWP2P, for nodes that ask it by HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use rackweave_core::{HostId, Span, Time};
use rackweave_swp2p::directory::{self, Config, Directory};
use serde::{Deserialize, Serialize};

use crate::blob::LARGEST;
use crate::digest::Digest;

/// The most blobs.
const MOST_BLOBS: u16 = 8192;
/// The most nodes.
const MOST_NODES: usize = 4096;
/// The most racks.
const MOST_RACKS: usize = 1024;
/// The most nodes of one address.
const MOST_OF_ADDRESS: usize = 64;
/// The longest name of a rack.
const LONGEST_RACK: usize = 64;
/// After which silence a node is not asked. Nodes report each third of it.
pub(crate) const SILENCE: Span = Span::from_secs(30);

/// A node and a blob.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct About {
    /// The port at which the node serves others; its address is that of the connection.
    pub(crate) port: u16,
    /// Where the node is.
    #[serde(default)]
    pub(crate) rack: String,
    pub(crate) digest: String,
    pub(crate) size: u64,
}

/// Where these chunks are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    #[serde(flatten)]
    pub(crate) about: About,
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) tries: u8,
}

/// Consecutive chunks that one node has or is about to have; the registry's without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) node: Option<SocketAddr>,
}

/// A blob that a node has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) digest: String,
    pub(crate) size: u64,
    /// The words of its chunks; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) words: Option<Vec<u64>>,
}

/// What a node has, at least each third of [`SILENCE`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Reported {
    pub(crate) port: u16,
    #[serde(default)]
    pub(crate) rack: String,
    pub(crate) blobs: Vec<Held>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("a digest is `sha256:` and 64 digits of lower-case hexadecimal")]
    Digest,
    #[error("a blob has 1 byte to 1 TiB")]
    Size,
    #[error("a rack's name has at most {LONGEST_RACK} bytes")]
    Rack,
    #[error("it names chunks that its blob does not have")]
    Chunks,
    #[error(
        "the directory has {MOST_NODES} nodes, {MOST_RACKS} racks, or {MOST_OF_ADDRESS} nodes of this address, which is the limit"
    )]
    Full,
}

/// The directory with the names of blobs and nodes.
#[derive(Debug)]
pub(crate) struct Index {
    machine: Directory,
    /// The numbers of blobs, and when they were used last.
    blobs: BTreeMap<(Digest, u64), (u32, Time)>,
    next_blob: u32,
    nodes: BTreeMap<SocketAddr, (HostId, Time)>,
    addresses: BTreeMap<HostId, SocketAddr>,
    racks: BTreeMap<String, u32>,
    next_node: u32,
}

impl Index {
    pub(crate) fn new() -> Self {
        let machine = Directory::new(Config {
            hosts_per_rack: Some(MOST_NODES as u32),
            silence: SILENCE,
            images: MOST_BLOBS,
            clients: MOST_NODES as u16,
            ..Config::default()
        });
        Self {
            machine,
            blobs: BTreeMap::new(),
            next_blob: 0,
            nodes: BTreeMap::new(),
            addresses: BTreeMap::new(),
            racks: BTreeMap::new(),
            next_node: 0,
        }
    }

    /// The number of nodes that have been heard of lately.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn forget_silent_nodes(&mut self, now: Time) {
        self.nodes.retain(|_, (_, seen)| now.since(*seen) < SILENCE);
        let nodes = &self.nodes;
        self.addresses.retain(|_, address| nodes.contains_key(address));
        let used: BTreeSet<u32> =
            nodes.values().map(|(host, _)| host.0 / MOST_NODES as u32).collect();
        self.racks.retain(|_, number| used.contains(number));
    }

    fn node(&mut self, now: Time, at: SocketAddr, rack: &str) -> Result<HostId, Refused> {
        if let Some((host, seen)) = self.nodes.get_mut(&at) {
            *seen = now;
            return Ok(*host);
        }
        if rack.len() > LONGEST_RACK {
            return Err(Refused::Rack);
        }
        self.forget_silent_nodes(now);
        let of_address = self.nodes.keys().filter(|it| it.ip() == at.ip()).count();
        if self.nodes.len() >= MOST_NODES
            || of_address >= MOST_OF_ADDRESS
            || !self.racks.contains_key(rack) && self.racks.len() >= MOST_RACKS
        {
            return Err(Refused::Full);
        }
        let taken: BTreeSet<u32> = self.racks.values().copied().collect();
        let free = (0..).find(|number| !taken.contains(number)).unwrap_or(0);
        let rack = *self.racks.entry(rack.to_owned()).or_insert(free);
        let mut host = None;
        while host.is_none_or(|it| self.addresses.contains_key(&it)) {
            host = Some(HostId(rack * MOST_NODES as u32 + self.next_node % MOST_NODES as u32));
            self.next_node = self.next_node.wrapping_add(1);
        }
        let host = host.unwrap_or(HostId(0));
        self.nodes.insert(at, (host, now));
        self.addresses.insert(host, at);
        Ok(host)
    }

    fn blob(&mut self, now: Time, digest: &str, size: u64) -> Result<u32, Refused> {
        let digest: Digest = digest.parse().map_err(|_| Refused::Digest)?;
        if size == 0 || size > LARGEST {
            return Err(Refused::Size);
        }
        if let Some((number, used)) = self.blobs.get_mut(&(digest, size)) {
            *used = now;
            return Ok(*number);
        }
        if self.blobs.len() >= usize::from(MOST_BLOBS)
            && let Some(oldest) = self.blobs.iter().min_by_key(|(_, it)| it.1).map(|it| *it.0)
            && let Some((number, _)) = self.blobs.remove(&oldest)
        {
            self.nodes.values().for_each(|(host, _)| self.machine.leave(number, *host));
        }
        self.next_blob = self.next_blob.wrapping_add(1);
        self.blobs.insert((digest, size), (self.next_blob, now));
        Ok(self.next_blob)
    }

    /// The size of a blob that somebody has. If two are said, the one with more holders counts.
    pub(crate) fn size(&self, digest: &Digest) -> Option<u64> {
        let known = self.blobs.iter().filter(|((it, _), _)| it == digest);
        let held =
            known.map(|((_, size), (number, _))| (self.machine.holders(*number, 0).len(), *size));
        held.filter(|(holders, _)| *holders > 0).max().map(|(_, size)| size)
    }

    pub(crate) fn ask(
        &mut self,
        now: Time,
        at: SocketAddr,
        asked: &Asked,
    ) -> Result<Vec<Run>, Refused> {
        let About { rack, digest, size, .. } = &asked.about;
        let Asked { first, count, tries, .. } = *asked;
        let image = self.blob(now, digest, *size)?;
        if count == 0 || u64::from(first) + u64::from(count) > size.div_ceil(crate::CHUNK) {
            return Err(Refused::Chunks);
        }
        let from = self.node(now, at, rack)?;
        let mut runs = Vec::new();
        let ask = directory::Ask { image, from, first, count, tries };
        self.machine.choose(now, ask, |run| runs.push(run));
        let named = |run: directory::Run| Run {
            first: run.first,
            count: run.count,
            node: run.to.and_then(|host| self.addresses.get(&host)).copied(),
        };
        Ok(runs.into_iter().map(named).collect())
    }

    pub(crate) fn report(
        &mut self,
        now: Time,
        at: SocketAddr,
        reported: &Reported,
    ) -> Result<(), Refused> {
        let from = self.node(now, at, &reported.rack)?;
        for held in &reported.blobs {
            let image = self.blob(now, &held.digest, held.size)?;
            let chunks = held.size.div_ceil(crate::CHUNK);
            let words = usize::try_from(chunks.div_ceil(64)).unwrap_or(usize::MAX);
            let last = u64::MAX >> (63 - (chunks - 1) % 64);
            let mut all = match &held.words {
                Some(said) if said.len() > words => return Err(Refused::Chunks),
                Some(said) => said.clone(),
                None => vec![u64::MAX; words],
            };
            all.resize(words, 0);
            match all.last_mut() {
                Some(word) if held.words.is_some() && *word & !last != 0 => {
                    return Err(Refused::Chunks);
                }
                Some(word) => *word &= last,
                None => {}
            }
            let map: Vec<u8> = all.iter().flat_map(|word| word.to_le_bytes()).collect();
            // What does not fit is not recorded, and is fetched from others.
            let _ = self.machine.report(now, image, from, 0, &map);
        }
        Ok(())
    }

    /// A node does not have a blob any more, or ends without one.
    pub(crate) fn leave(&mut self, at: SocketAddr, blob: Option<(Digest, u64)>) {
        let Some((host, _)) = self.nodes.get(&at).copied() else { return };
        match blob {
            Some(blob) => {
                if let Some((number, _)) = self.blobs.get(&blob) {
                    self.machine.leave(*number, host);
                }
            }
            None => {
                self.blobs.values().for_each(|(number, _)| self.machine.leave(*number, host));
                self.nodes.remove(&at);
                self.addresses.remove(&host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CHUNK;

    fn about(size: u64) -> About {
        let digest = Digest::of(b"x").to_string();
        About { port: 1, rack: String::new(), digest, size }
    }

    fn at(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 5001).into()
    }

    #[test]
    fn one_node_asks_the_registry_and_others_ask_it() {
        let mut index = Index::new();
        let asked = Asked { about: about(10 * CHUNK - 1), first: 0, count: 8, tries: 0 };
        let from = |index: &mut Index, last| index.ask(Time::ZERO, at(last), &asked).unwrap();
        assert_eq!(from(&mut index, 1), [Run { first: 0, count: 8, node: None }]);
        assert_eq!(from(&mut index, 2), [Run { first: 0, count: 8, node: Some(at(1)) }]);
        assert_eq!(index.size(&Digest::of(b"x")), None, "nobody has it");
        let held = Held { digest: about(0).digest, size: 10 * CHUNK - 1, words: None };
        let reported = Reported { port: 1, rack: String::new(), blobs: vec![held.clone()] };
        index.report(Time::ZERO, at(3), &reported).unwrap();
        assert_eq!(index.size(&Digest::of(b"x")), Some(10 * CHUNK - 1));
        index.leave(at(3), None);
        assert_eq!(index.size(&Digest::of(b"x")), None);
        let words = Some(vec![1 << 10]);
        let reported = Reported { blobs: vec![Held { words, ..held }], ..reported };
        assert_eq!(index.report(Time::ZERO, at(3), &reported), Err(Refused::Chunks));
        let wrong = Asked { about: about(1), first: 16_000_000, count: 1, tries: 0 };
        assert_eq!(index.ask(Time::ZERO, at(1), &wrong), Err(Refused::Chunks));
        let wrong = Asked { about: about(0), ..asked };
        assert_eq!(index.ask(Time::ZERO, at(1), &wrong), Err(Refused::Size));
    }

    #[test]
    fn bounds_hold() {
        let mut index = Index::new();
        for number in 0..u32::from(MOST_BLOBS) + 100 {
            let digest = Digest::of(&number.to_le_bytes()).to_string();
            let blobs = vec![Held { digest, size: 1, words: None }];
            let node = SocketAddr::from((std::net::Ipv4Addr::from(number % 6000), 1));
            let report = Reported { port: 1, rack: String::new(), blobs };
            let now = Time::ZERO.saturating_add(Span::from_ms(u64::from(number)));
            let _ = index.report(now, node, &report);
        }
        assert!(index.nodes() <= MOST_NODES && index.blobs.len() <= usize::from(MOST_BLOBS));
        assert!(index.machine.clients() <= usize::from(MOST_BLOBS));
    }
}
