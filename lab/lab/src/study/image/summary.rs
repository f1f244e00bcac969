//! The results of an image in `summary.json`.

use std::collections::BTreeMap;

use rackweave_core::FailReason;
use rackweave_core::{HostId, Span, Time};
use rackweave_sim::Fabric;
use rackweave_sim::result::{MessageRecord, Outcome, RunResult};
use rackweave_swp2p::{frisbee, switch};
use rackweave_wire::frisbee::BLOCK_BYTES;
use serde::{Deserialize, Serialize};

use super::ImageConfig;
use crate::results::Range;

/// What a client reports at the end of a run, whatever the scheme.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct ClientReport {
    /// When the last byte was received.
    pub received: Option<Time>,
    /// When the last byte was written.
    pub finished: Option<Time>,
    /// Whether every chunk was written exactly once.
    pub exact: bool,
    /// The bytes of the image that it received, repeated ones included.
    pub received_bytes: u64,
    /// Received bytes that it had already.
    pub duplicate_bytes: u64,
    /// Received bytes that it dropped because all its buffers were in use, or because they were damaged.
    pub dropped_bytes: u64,
    /// The bytes that it received from other clients; SWP2P counts whole chunks.
    pub from_peers_bytes: u64,
    /// The bytes that it sent to other clients.
    pub served_bytes: u64,
    /// Its requests.
    pub requests: u64,
    /// Requests for chunks that it had requested before.
    pub rerequests: u64,
    /// Requested chunks that it returned because it does not have them.
    pub returned: u64,
}

/// The bytes of blocks.
const fn of_blocks(blocks: u64) -> u64 {
    blocks * BLOCK_BYTES as u64
}

impl ClientReport {
    /// Returns the report of a client of a Frisbee session, which has received and written everything at these times.
    pub const fn of_session(
        counts: &frisbee::ClientCounts,
        (received, finished): (Option<Time>, Option<Time>),
        exact: bool,
    ) -> Self {
        Self {
            received,
            finished,
            exact,
            received_bytes: of_blocks(counts.blocks),
            duplicate_bytes: of_blocks(counts.duplicate_chunk_blocks + counts.duplicate_blocks),
            dropped_bytes: of_blocks(counts.no_buffer),
            from_peers_bytes: 0,
            served_bytes: 0,
            requests: counts.requests,
            rerequests: counts.rerequests,
            returned: 0,
        }
    }
}

impl ServerReport {
    /// Returns the report of the server of a Frisbee session, which has served for this time.
    pub const fn of_session(counts: &frisbee::ServerCounts, service: Span) -> Self {
        Self {
            sent_bytes: of_blocks(counts.blocks_sent),
            first_copy_chunks: None,
            messages: counts.messages,
            requests: counts.requests,
            merged: counts.merged,
            partial_requests: counts.partial_requests,
            service,
            max_queue: counts.max_queue,
            returned: 0,
        }
    }
}

/// What the server reports at the end of a run, whatever the scheme.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct ServerReport {
    /// The bytes of the image that it has sent.
    pub sent_bytes: u64,
    /// The number of different chunks among the first N that it sent of an image of N chunks. `None` with Frisbee, whose server
    /// sends blocks.
    pub first_copy_chunks: Option<u32>,
    /// The messages of clients that it has received.
    pub messages: u64,
    /// The requests among them.
    pub requests: u64,
    /// The requests that asked for nothing that was not queued or being sent.
    pub merged: u64,
    /// The requests for less than a chunk.
    pub partial_requests: u64,
    /// The time from the first to the last message.
    pub service: Span,
    /// The most requests that waited; with SWP2P the most chunks.
    pub max_queue: u64,
    /// Requested chunks that clients returned to it.
    pub returned: u64,
}

/// What the switches of SWP2P have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SwitchReport {
    /// The control packets that they have handled. One that crosses two switches counts twice.
    pub handled: u64,
    /// The requests among them.
    pub requests: u64,
    /// The packets sent to a client in place of the server.
    pub redirected: u64,
    /// The longest queue in front of a switch's processor.
    pub max_queue: u64,
    /// The longest time from a packet's arrival at a switch until its processor had handled it.
    pub max_wait_us: u64,
    /// The packets for which the queue had no room.
    pub dropped: u64,
}

impl SwitchReport {
    /// Adds what one switch has counted.
    pub(super) fn add(&mut self, counts: &switch::Counters) {
        self.handled += counts.lifted;
        self.requests += counts.requests;
        self.redirected += counts.redirected;
        self.max_queue = self.max_queue.max(counts.most_queued);
        self.max_wait_us = self.max_wait_us.max(counts.most_wait_us);
        self.dropped += counts.dropped;
    }

    /// Returns what the programs of real switches have counted by name. These have no processor apart from the data plane, and no queue in
    /// front of it.
    pub fn of_program(counts: &BTreeMap<String, u64>) -> Self {
        let count = |name: &str| counts.get(name).copied().unwrap_or(0);
        Self {
            handled: count("lifted"),
            requests: count("requests"),
            redirected: count("redirected"),
            dropped: count("dropped"),
            ..Self::default()
        }
    }
}

/// The results of an image.
#[derive(Clone, Debug)]
pub struct ImageResult {
    /// The clients, in the order of the configuration.
    pub clients: Vec<ClientReport>,
    /// What the server has sent and handled.
    pub server: ServerReport,
    /// The switches.
    pub switches: SwitchReport,
    /// The bytes that the server's link has carried, including Ethernet's preamble and gap.
    pub server_link_bytes: u64,
    /// The bytes on links between switches.
    pub trunk_bytes: u64,
}

impl ImageResult {
    /// Inserts the image for each client before the other messages of a run, as its first stream.
    pub fn put_into(&self, config: &ImageConfig, fabric: &Fabric, run: &mut RunResult) {
        let framing = rackweave_core::Framing::UDP;
        let bytes = config.image.bytes();
        let message = |((host, start), client): (&(HostId, Time), &ClientReport)| MessageRecord {
            stream: 0,
            src: config.server,
            dst: *host,
            bytes,
            start: *start,
            ideal: fabric.ideal(config.server, *host, bytes, framing),
            outcome: match client.finished {
                Some(at) => Outcome::Completed(at),
                None if config.crashed.contains(host) => Outcome::Failed(FailReason::HostCrashed),
                None => Outcome::Unfinished,
            },
        };
        let images: Vec<_> = config.clients.iter().zip(&self.clients).map(message).collect();
        let whole = self.clients.iter().filter(|client| client.finished.is_some()).count() as u64;
        run.delivered_bytes.insert(0, whole * bytes);
        run.delivered_by_sender.clear();
        run.messages.splice(0..0, images);
        let first = config.clients.iter().map(|(_, start)| *start).min();
        let last = self.clients.iter().filter_map(|client| client.finished).max();
        if let (Some(first), Some(last)) = (first, last) {
            run.measured = last.since(first);
        }
    }
}

/// The object `image` of a point in `summary.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ImageSummary {
    /// The length of the image in bytes.
    pub bytes: u64,
    /// The number of its chunks.
    pub chunks: u64,
    /// The time from a client's start until it has written the image.
    pub run_us: Range,
    /// The time from a client's start until it has received the image.
    pub receive_us: Range,
    /// The time from the start of the first client until all have written the image.
    pub makespan_us: f64,
    /// The bytes of the image that the server sent, per byte of the image.
    pub copies: f64,
    /// The same in chunks.
    pub server_chunks: f64,
    /// The length of the image per byte of it that the server sent: B/T in the slides of SWP2P.
    pub efficiency: f64,
    /// The number of different chunks among the first N that the server sent, where the image has N; `null` with Frisbee.
    pub first_copy_chunks: Option<u32>,
    /// The same as a share of N.
    pub first_copy_share: Option<f64>,
    /// The number of clients.
    pub client_count: u64,
    /// The clients that run in parallel with another one for at least nine tenths of their run.
    pub concurrent_clients: u64,
    /// The bytes that clients received from other clients.
    pub from_peers_bytes: u64,
    /// The share of the bytes sent by the server that it had sent before.
    pub duplicate_share: f64,
    /// The bytes on the server's link, headers included.
    pub server_link_bytes: u64,
    /// The bytes on links between switches, headers included.
    pub trunk_bytes: u64,
    /// The messages of clients that the server received.
    pub messages: u64,
    /// The same, per second between the first and the last.
    pub messages_per_s: f64,
    /// The requests among them.
    pub requests: u64,
    /// The share of requests that asked for nothing that was not queued or being sent.
    pub redundant_share: f64,
    /// The requests for less than a chunk.
    pub partial_requests: u64,
    /// The time from the first to the last message at the server.
    pub service_us: f64,
    /// The most requests that waited at the server.
    pub max_queue: u64,
    /// The bytes that clients dropped because all their buffers were in use, or because they were damaged.
    pub dropped_bytes: u64,
    /// The chunks that clients requested again.
    pub retries: u64,
    /// The requested chunks that clients did not have and returned.
    pub returned: u64,
    /// The switches; zero unless they redirect.
    pub switches: SwitchReport,
    /// The clients that have not written the image.
    pub incomplete: u64,
    /// The clients that have written the image, but not every chunk exactly once.
    pub wrong: u64,
    /// Each client.
    pub clients: Vec<ClientSummary>,
}

/// The results of one client.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ClientSummary {
    /// Its host.
    pub host: u32,
    /// When it started.
    pub start_us: f64,
    /// The time from its start until it had received the image.
    pub receive_us: f64,
    /// The time from its start until it had written the image.
    pub run_us: f64,
    /// The share of its run during which at least one other client runs too.
    pub concurrency: f64,
    /// The bytes of the image that it received.
    pub received_bytes: u64,
    /// Received bytes that it had already.
    pub duplicate_bytes: u64,
    /// Received bytes that it dropped because all its buffers were in use, or because they were damaged.
    pub dropped_bytes: u64,
    /// The bytes that it received from other clients; SWP2P counts whole chunks.
    pub from_peers_bytes: u64,
    /// The bytes that it sent to other clients.
    pub served_bytes: u64,
    /// Its requests.
    pub requests: u64,
    /// Requests for chunks that it had requested before.
    pub rerequests: u64,
    /// Requested chunks that it returned because it does not have them.
    pub returned: u64,
}

/// Returns the share of each run during which at least one of the others runs too; NaN for one without an end or duration.
fn concurrency(runs: &[(Time, Option<Time>)]) -> Vec<f64> {
    let share = |(nth, &(start, end)): (usize, &(Time, Option<Time>))| {
        let Some(end) = end.filter(|end| *end > start) else { return f64::NAN };
        let mut others: Vec<(Time, Time)> = runs
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != nth)
            .map(|(_, (from, until))| ((*from).max(start), until.unwrap_or(Time::MAX).min(end)))
            .filter(|(from, until)| from < until)
            .collect();
        others.sort_unstable();
        let (mut covered, mut reached) = (Span::ZERO, start);
        for (from, until) in others {
            if until > reached {
                covered += until.since(from.max(reached));
                reached = until;
            }
        }
        covered.as_secs_f64() / end.since(start).as_secs_f64()
    };
    runs.iter().enumerate().map(share).collect()
}

/// A client counts as concurrent from this share on: the slides count clients with 90 to 100 %.
const CONCURRENT: f64 = 0.9;

impl ImageSummary {
    /// Computes the results of a run.
    #[must_use]
    pub fn new(config: &ImageConfig, result: &ImageResult) -> Self {
        let server = &result.server;
        let bytes = config.image.bytes();
        let since =
            |at: Option<Time>, start: Time| at.map_or(f64::NAN, |at| at.since(start).as_us_f64());
        let starts = config.clients.iter().map(|(_, start)| *start);
        let runs: Vec<_> =
            starts.zip(result.clients.iter().map(|client| client.finished)).collect();
        let clients: Vec<ClientSummary> = config
            .clients
            .iter()
            .zip(&result.clients)
            .zip(concurrency(&runs))
            .map(|(((host, start), client), concurrency)| ClientSummary {
                concurrency,
                host: host.0,
                start_us: start.as_us_f64(),
                receive_us: since(client.received, *start),
                run_us: since(client.finished, *start),
                received_bytes: client.received_bytes,
                duplicate_bytes: client.duplicate_bytes,
                dropped_bytes: client.dropped_bytes,
                from_peers_bytes: client.from_peers_bytes,
                served_bytes: client.served_bytes,
                requests: client.requests,
                rerequests: client.rerequests,
                returned: client.returned,
            })
            .collect();
        let count = |is: fn(&ClientReport) -> bool| {
            result.clients.iter().filter(|client| is(client)).count() as u64
        };
        let sum = |of: fn(&ClientReport) -> u64| result.clients.iter().map(of).sum::<u64>();
        let known = |time: &f64| time.is_finite();
        let first = config.clients.iter().map(|(_, start)| *start).min().unwrap_or_default();
        let last = result.clients.iter().map(|client| client.finished).max().flatten();
        let repeated = server.sent_bytes.saturating_sub(bytes);
        Self {
            bytes,
            chunks: u64::from(config.image.chunks()),
            run_us: Range::of(clients.iter().map(|client| client.run_us).filter(known)),
            receive_us: Range::of(clients.iter().map(|client| client.receive_us).filter(known)),
            makespan_us: since(last, first),
            copies: server.sent_bytes as f64 / bytes as f64,
            server_chunks: server.sent_bytes as f64 / f64::from(config.image.chunk_bytes()),
            efficiency: bytes as f64 / server.sent_bytes as f64,
            first_copy_chunks: server.first_copy_chunks,
            first_copy_share: server
                .first_copy_chunks
                .map(|chunks| f64::from(chunks) / f64::from(config.image.chunks())),
            client_count: clients.len() as u64,
            concurrent_clients: clients.iter().filter(|it| it.concurrency >= CONCURRENT).count()
                as u64,
            from_peers_bytes: sum(|client| client.from_peers_bytes),
            duplicate_share: repeated as f64 / server.sent_bytes as f64,
            server_link_bytes: result.server_link_bytes,
            trunk_bytes: result.trunk_bytes,
            messages: server.messages,
            messages_per_s: server.messages as f64 / server.service.as_secs_f64(),
            requests: server.requests,
            redundant_share: server.merged as f64 / server.requests as f64,
            partial_requests: server.partial_requests,
            service_us: server.service.as_us_f64(),
            max_queue: server.max_queue,
            dropped_bytes: sum(|client| client.dropped_bytes),
            retries: sum(|client| client.rerequests),
            returned: sum(|client| client.returned),
            switches: result.switches,
            incomplete: count(|client| client.finished.is_none()),
            wrong: count(|client| client.finished.is_some() && !client.exact),
            clients,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrency_is_the_share_of_a_run_beside_others() {
        let at = |s: u64| Time::ZERO + Span::from_secs(s);
        let run = |from, until| (at(from), Some(at(until)));
        // Two of the others overlap each other, and one ends before the first starts.
        let runs = [run(10, 20), run(8, 12), run(11, 13), run(18, 30), run(0, 8)];
        let shares = concurrency(&runs);
        assert!((shares[0] - 0.5).abs() < 1e-9, "{shares:?}");
        assert_eq!((shares[2], shares[4]), (1.0, 0.0));
        // One without an end runs on in parallel with the others, and has no share itself.
        let shares = concurrency(&[run(0, 4), (at(3), None)]);
        assert!((shares[0] - 0.25).abs() < 1e-9 && shares[1].is_nan(), "{shares:?}");
        assert_eq!(concurrency(&[run(0, 4)]), [0.0]);
    }
}
