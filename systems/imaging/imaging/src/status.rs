//! What a client reports of itself, and what a server shows of all: for people, the live page and metrics. Machines do not depend on it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use rackweave_core::is_hidden;
use serde::{Deserialize, Serialize};

/// How far a client is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It reads its target for the chunks that are there.
    #[default]
    Checking,
    /// It requests chunks.
    Fetching,
    /// It has all chunks, and writes the last of them.
    Writing,
    /// Every byte is on the target, and it serves others.
    Lingering,
    /// Every byte is on the target, and it has left.
    Done,
    /// It has failed.
    Failed,
    /// It has been interrupted.
    Interrupted,
    /// The connection to it has broken before it was done. Only servers use this.
    Gone,
}

impl Phase {
    /// Whether every byte is on the target.
    #[must_use]
    pub const fn is_complete(self) -> bool {
        matches!(self, Self::Lingering | Self::Done)
    }

    /// Whether the client will get no further.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Interrupted | Self::Gone)
    }

    /// Its name, which is also that in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Checking => "checking",
            Self::Fetching => "fetching",
            Self::Writing => "writing",
            Self::Lingering => "lingering",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Gone => "gone",
        }
    }
}

/// What limits a client at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// Nothing, or it is not known.
    #[default]
    None,
    /// Chunks arrive, as fast as the network and their holders permit.
    Network,
    /// Chunks wait to be written, and no more are requested.
    Disk,
    /// No chunk has arrived for a second.
    Silence,
}

/// What a client reports each second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientStatus {
    /// How far it is.
    pub phase: Phase,
    /// The chunks of the image.
    pub chunks: u32,
    /// Chunks that are here and verified.
    pub have: u32,
    /// Chunks among them that were on the target when it started, and have stored bytes.
    pub kept: u32,
    /// Chunks among them without stored bytes: zeros, or unused. Nobody sends them.
    pub empty: u32,
    /// Chunks that are written.
    pub written: u32,
    /// Stored bytes that have arrived.
    pub bytes: u64,
    /// Bytes per second that arrived in the last second.
    pub receive_rate: u64,
    /// Bytes per second that were sent to others in the last second.
    pub send_rate: u64,
    /// Chunks received from each host, of the [`MOST_PEERS`] with the most.
    pub from: BTreeMap<Ipv4Addr, u32>,
    /// Chunks sent to each host, of the [`MOST_PEERS`] with the most.
    pub to: BTreeMap<Ipv4Addr, u32>,
    /// Chunks that were requested again.
    pub retries: u32,
    /// Chunks that did not have the right hash.
    pub damaged: u32,
    /// Control messages that were refused on arrival: malformed, with a wrong tag, or from another host than they say.
    pub refused: u64,
    /// Control messages that the system did not accept for sending.
    pub unsent: u64,
    /// Whether chunks come by multicast.
    pub multicast: bool,
    /// What limits it.
    pub limit: Limit,
    /// Why it has failed.
    pub failure: Option<String>,
    /// Milliseconds since it started.
    pub elapsed_ms: u64,
}

/// The most peers that a status names in each direction.
pub const MOST_PEERS: usize = 256;

impl ClientStatus {
    /// Chunks that have been sent to it.
    #[must_use]
    pub const fn fetched(&self) -> u32 {
        self.have.saturating_sub(self.kept).saturating_sub(self.empty)
    }

    /// Nothing moves any more: what was measured last does not go on.
    pub(crate) const fn rest(&mut self) {
        (self.receive_rate, self.send_rate, self.limit) = (0, 0, Limit::None);
    }

    /// Bytes per second that have arrived since it started.
    pub(crate) fn average_rate(&self) -> u64 {
        let rate = u128::from(self.bytes) * 1000 / u128::from(self.elapsed_ms.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// Makes what a client has sent safe to show: texts and lists have a limit, and counts agree.
    #[must_use]
    pub(crate) fn sanitized(mut self, chunks: u32) -> Self {
        self.chunks = chunks;
        self.have = self.have.min(chunks);
        self.kept = self.kept.min(self.have);
        self.empty = self.empty.min(self.have - self.kept);
        self.written = self.written.min(self.have);
        if self.phase.is_complete() && self.written < chunks {
            self.phase = Phase::Writing;
        }
        if self.phase == Phase::Gone {
            self.phase = Phase::Failed;
        }
        if self.phase.is_over() {
            self.rest();
        }
        for peers in [&mut self.from, &mut self.to] {
            *peers = most(std::mem::take(peers));
        }
        self.failure = self
            .failure
            .map(|text| text.chars().filter(|letter| !is_hidden(*letter)).take(500).collect());
        self
    }
}

/// Returns the [`MOST_PEERS`] peers with the most chunks.
pub(crate) fn most(peers: BTreeMap<Ipv4Addr, u32>) -> BTreeMap<Ipv4Addr, u32> {
    if peers.len() <= MOST_PEERS {
        return peers;
    }
    let mut all: Vec<_> = peers.into_iter().collect();
    all.sort_by_key(|(address, chunks)| (std::cmp::Reverse(*chunks), *address));
    all.truncate(MOST_PEERS);
    all.into_iter().collect()
}

/// A client as its server shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClientView {
    /// The client's address.
    pub address: Ipv4Addr,
    /// The server's address, as the client knows it.
    pub server: Ipv4Addr,
    /// The name of the image.
    pub image: String,
    /// Its last report.
    #[serde(flatten)]
    pub status: Arc<ClientStatus>,
    /// Milliseconds since the last report.
    pub age_ms: u64,
    /// Whether it is a holder that the server may name to others.
    pub serves: bool,
    /// Whether every byte of the image is on its target, or was after an earlier attempt of this host.
    pub complete: bool,
    /// Why it is slow, if it is: for people to read.
    pub slow: Option<String>,
}

/// An image as its server lists it for a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The name in its manifest, by which clients ask for it.
    pub name: String,
    /// Its root hash in hexadecimal digits.
    pub root: String,
    /// The number of its chunks.
    pub chunks: u32,
    /// The bytes of the disk.
    pub bytes: u64,
    /// The stored bytes of all chunks.
    pub stored: u64,
    /// Whether it is signed.
    pub signed: bool,
}

/// Images in one frame, so that the longest names, of 255 bytes, fit.
pub(crate) const LISTED_IN_FRAME: usize = 64;

/// An image as its server shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImageView {
    /// The name in its manifest, by which clients ask for it.
    pub name: String,
    /// Its root hash in hexadecimal digits.
    pub root: String,
    /// The number of its chunks.
    pub chunks: u32,
    /// The bytes of the disk.
    pub bytes: u64,
    /// The stored bytes of all chunks.
    pub stored: u64,
    /// Whether it is signed.
    pub signed: bool,
    /// Chunks that the server has sent and clients have taken, and chunks that it has multicast.
    pub chunks_sent: u64,
    /// Stored bytes of these.
    pub bytes_sent: u64,
    /// The same divided by the stored bytes of all chunks.
    pub copies: f64,
    /// Its Frisbee session, if it is multicast.
    pub multicast: Option<MulticastView>,
    /// The session that Emulab's Frisbee clients may join, if there is one.
    pub frisbee: Option<FrisbeeView>,
}

/// The Frisbee session of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MulticastView {
    /// The group's address and port.
    pub group: String,
    /// Blocks sent to the group.
    pub blocks_sent: u64,
    /// Requests for blocks that clients have sent to the group.
    pub requests: u64,
    /// Those among them that asked for nothing that was not queued.
    pub merged: u64,
    /// Those for less than a chunk: most of them because packets were lost.
    pub partial_requests: u64,
    /// Messages that were refused: malformed, from another host than they say, or with a wrong tag.
    pub refused: u64,
    /// Blocks that the system did not accept for sending.
    pub unsent: u64,
}

/// A session of Emulab's Frisbee clients, which report only that they come and go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FrisbeeView {
    /// The session.
    #[serde(flatten)]
    pub session: MulticastView,
    /// Clients that have joined and not left, at most 1024 unless a list says who may fetch.
    pub present: u32,
    /// How often one has joined.
    pub joined: u64,
    /// How often one has left, which it does when it has the image.
    pub left: u64,
    /// Clients that were forgotten after five minutes of silence.
    pub silent: u64,
}

/// All that a server shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerStatus {
    /// Milliseconds since the server started.
    pub elapsed_ms: u64,
    /// Its images.
    pub images: Vec<ImageView>,
    /// Its clients, present and past, since the server started. The oldest past ones are forgotten.
    pub clients: Vec<ClientView>,
    /// Hosts that the image is for and that have not been here.
    pub absent: Vec<Ipv4Addr>,
    /// Chunks that clients have taken.
    pub chunks_sent: u64,
    /// Stored bytes of these.
    pub bytes_sent: u64,
    /// Bytes per second in the last second.
    pub send_rate: u64,
    /// Requests that have arrived here, each for a batch of chunks.
    pub requests: u64,
    /// Chunks whose requests were redirected to clients.
    pub redirected: u64,
    /// Chunks that clients have returned because they do not have them.
    pub returned: u64,
    /// Chunks that clients have named as damaged.
    pub damaged: u64,
    /// Clients to which nobody is sent any more, because others have received damaged chunks from them.
    pub barred: u64,
    /// Control messages that were refused: malformed, with a wrong tag, or from hosts without a session.
    pub refused: u64,
    /// Control messages that the system did not accept for sending.
    pub unsent: u64,
}

/// Returns a hash in hexadecimal digits.
#[must_use]
pub fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_claims_is_limited() {
        let address = |number: u32| Ipv4Addr::from_bits(number);
        let claimed = ClientStatus {
            phase: Phase::Done,
            chunks: 7,
            have: 99,
            kept: 7,
            empty: 50,
            written: 9,
            from: (0..1000).map(|number| (address(number), number)).collect(),
            failure: Some("\u{1b}[2\u{202e}J".repeat(1000)),
            ..ClientStatus::default()
        };
        let seen = claimed.sanitized(10);
        assert_eq!((seen.chunks, seen.have, seen.kept, seen.written), (10, 10, 7, 9));
        assert_eq!((seen.empty, seen.fetched()), (3, 0));
        assert_eq!(seen.phase, Phase::Writing, "not all is written");
        assert_eq!(seen.from.len(), MOST_PEERS);
        assert!(seen.from.contains_key(&address(999)) && !seen.from.contains_key(&address(0)));
        assert!(seen.failure.is_some_and(|text| text.len() == 500 && !text.contains(is_hidden)));
    }

    #[test]
    fn a_client_that_has_ended_has_no_rates() {
        let status = ClientStatus {
            receive_rate: 5,
            send_rate: 6,
            limit: Limit::Network,
            ..ClientStatus::default()
        };
        let rates = |phase| {
            let seen = ClientStatus { phase, ..status.clone() }.sanitized(10);
            (seen.receive_rate, seen.send_rate, seen.limit)
        };
        assert_eq!(rates(Phase::Fetching), (5, 6, Limit::Network));
        for phase in [Phase::Done, Phase::Failed, Phase::Interrupted, Phase::Gone] {
            // One that claims to be done without all chunks still writes.
            let expected =
                if phase == Phase::Done { (5, 6, Limit::Network) } else { (0, 0, Limit::None) };
            assert_eq!(rates(phase), expected, "{phase:?}");
        }
    }

    #[test]
    fn a_status_of_another_version_is_read() {
        let status: ClientStatus =
            serde_json::from_str(r#"{"phase":"writing","have":3,"later":true}"#).unwrap();
        assert_eq!((status.phase, status.have), (Phase::Writing, 3));
    }
}
