//! What the page shows of a server's status: its size does not grow with the square of the number of clients, nor without a bound.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use serde::Serialize;

use crate::status::{ClientView, ImageView, Limit, Phase, ServerStatus};

/// The most clients that are listed. Slow and incomplete ones come first.
const MOST_CLIENTS: usize = 2000;
/// The most absent hosts that are listed.
const MOST_ABSENT: usize = 500;
/// The most images for which it is shown who serves whom: those with the most clients.
const MOST_FLOWS: usize = 4;
/// The most rows of one image's table of who serves whom. Above it a row is a group of hosts whose addresses share a prefix.
const MOST_GROUPS: usize = 60;

/// A [`ServerStatus`] for the page.
#[derive(Debug, Serialize)]
pub(super) struct Digest<'a> {
    elapsed_ms: u64,
    images: Vec<Image<'a>>,
    /// The number of clients in each phase.
    phases: BTreeMap<Phase, usize>,
    slow: usize,
    clients: Vec<Row<'a>>,
    /// The number of clients; `clients` may be a part of them.
    clients_total: usize,
    absent: &'a [Ipv4Addr],
    absent_total: usize,
    flows: Vec<Flows<'a>>,
    chunks_sent: u64,
    bytes_sent: u64,
    send_rate: u64,
    /// What all clients receive in a second.
    receive_rate: u64,
    requests: u64,
    redirected: u64,
    returned: u64,
    damaged: u64,
    barred: u64,
    refused: u64,
    unsent: u64,
}

#[derive(Debug, Serialize)]
struct Image<'a> {
    #[serde(flatten)]
    view: &'a ImageView,
    clients: usize,
    complete: usize,
    /// Clients that have ended without the image.
    without: usize,
    /// Chunks that are on targets.
    written: u64,
}

/// A client, without the lists of its peers.
#[derive(Debug, Serialize)]
struct Row<'a> {
    address: Ipv4Addr,
    image: &'a str,
    phase: Phase,
    chunks: u32,
    have: u32,
    kept: u32,
    empty: u32,
    written: u32,
    receive_rate: u64,
    send_rate: u64,
    /// The number of hosts, the server included, from which chunks have come.
    sources: usize,
    /// Chunks from the server.
    by_server: u32,
    /// Chunks sent to others.
    sent: u64,
    retries: u32,
    damaged: u32,
    limit: Limit,
    elapsed_ms: u64,
    age_ms: u64,
    serves: bool,
    slow: Option<&'a str>,
}

impl<'a> Row<'a> {
    fn new(client: &'a ClientView) -> Self {
        let status = &*client.status;
        Self {
            address: client.address,
            image: &client.image,
            phase: status.phase,
            chunks: status.chunks,
            have: status.have,
            kept: status.kept,
            empty: status.empty,
            written: status.written,
            receive_rate: status.receive_rate,
            send_rate: status.send_rate,
            sources: status.from.len(),
            by_server: status.from.get(&client.server).copied().unwrap_or(0),
            sent: status.to.values().map(|chunks| u64::from(*chunks)).sum(),
            retries: status.retries,
            damaged: status.damaged,
            limit: status.limit,
            elapsed_ms: status.elapsed_ms,
            age_ms: client.age_ms,
            serves: client.serves,
            slow: client.slow.as_deref(),
        }
    }
}

/// Who serves whom, for one image.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Flows<'a> {
    image: &'a str,
    /// The rows, and the columns 1.. of `cells`.
    groups: Vec<Group>,
    /// Receiving group, sending group and chunks. Sending group 0 is the server, and the one after the last is that of hosts that are no
    /// clients any more.
    cells: Vec<(usize, usize, u64)>,
}

/// Hosts whose addresses share a prefix; one host if the prefix is all of the address.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Group {
    address: Ipv4Addr,
    prefix: u32,
    hosts: usize,
}

impl<'a> Digest<'a> {
    pub(super) fn new(status: &'a ServerStatus) -> Self {
        let mut phases = BTreeMap::new();
        for client in &status.clients {
            *phases.entry(client.status.phase).or_insert(0) += 1;
        }
        let rates = status.clients.iter().filter(|client| !client.status.phase.is_over());
        let absent = &status.absent[..status.absent.len().min(MOST_ABSENT)];
        let mut by_image: BTreeMap<&str, Vec<&ClientView>> = BTreeMap::new();
        for client in &status.clients {
            by_image.entry(&client.image).or_default().push(client);
        }
        let mut largest: Vec<_> = by_image.iter().collect();
        largest.sort_by_key(|(name, clients)| (std::cmp::Reverse(clients.len()), **name));
        Self {
            elapsed_ms: status.elapsed_ms,
            images: status
                .images
                .iter()
                .map(|view| image(view, by_image.get(&*view.name)))
                .collect(),
            phases,
            slow: status.clients.iter().filter(|client| client.slow.is_some()).count(),
            clients: rows(&status.clients),
            clients_total: status.clients.len(),
            absent,
            absent_total: status.absent.len(),
            flows: largest.iter().take(MOST_FLOWS).map(|(name, all)| flows(name, all)).collect(),
            chunks_sent: status.chunks_sent,
            bytes_sent: status.bytes_sent,
            send_rate: status.send_rate,
            receive_rate: rates
                .fold(0, |sum, client| sum.saturating_add(client.status.receive_rate)),
            requests: status.requests,
            redirected: status.redirected,
            returned: status.returned,
            damaged: status.damaged,
            barred: status.barred,
            refused: status.refused,
            unsent: status.unsent,
        }
    }
}

fn image<'a>(view: &'a ImageView, clients: Option<&Vec<&ClientView>>) -> Image<'a> {
    let clients = clients.map_or(&[][..], Vec::as_slice);
    let in_phase = |is: fn(Phase) -> bool| clients.iter().filter(|it| is(it.status.phase)).count();
    Image {
        view,
        clients: clients.len(),
        complete: in_phase(Phase::is_complete),
        without: in_phase(|phase| phase.is_over() && !phase.is_complete()),
        written: clients.iter().map(|client| u64::from(client.status.written)).sum(),
    }
}

/// The clients that are listed, by address.
fn rows(clients: &[ClientView]) -> Vec<Row<'_>> {
    let mut listed: Vec<&ClientView> = clients.iter().collect();
    if listed.len() > MOST_CLIENTS {
        listed.sort_by_key(|it| (it.slow.is_none(), it.status.phase.is_complete(), it.address));
        listed.truncate(MOST_CLIENTS);
        listed.sort_by_key(|client| client.address);
    }
    listed.into_iter().map(Row::new).collect()
}

fn flows<'a>(image: &'a str, clients: &[&ClientView]) -> Flows<'a> {
    let mut addresses: Vec<u32> = clients.iter().map(|client| client.address.to_bits()).collect();
    addresses.sort_unstable();
    let prefix = prefix(&addresses);
    let key = |address: u32| address.checked_shr(32 - prefix).unwrap_or(0);
    let mut groups: BTreeMap<u32, usize> = BTreeMap::new();
    for address in &addresses {
        *groups.entry(key(*address)).or_insert(0) += 1;
    }
    let keys: Vec<u32> = groups.keys().copied().collect();
    let position = |address: Ipv4Addr| keys.binary_search(&key(address.to_bits())).ok();
    let mut cells: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for client in clients {
        let Some(row) = position(client.address) else { continue };
        for (from, chunks) in &client.status.from {
            let column = match position(*from) {
                _ if *from == client.server => 0,
                Some(group) => group + 1,
                None => keys.len() + 1,
            };
            *cells.entry((row, column)).or_insert(0) += u64::from(*chunks);
        }
    }
    let group = |(key, hosts): (u32, usize)| {
        let address = Ipv4Addr::from_bits(key.checked_shl(32 - prefix).unwrap_or(0));
        Group { address, prefix, hosts }
    };
    Flows {
        image,
        groups: groups.into_iter().map(group).collect(),
        cells: cells.into_iter().map(|((row, column), chunks)| (row, column, chunks)).collect(),
    }
}

/// The longest prefix that divides sorted addresses into at most [`MOST_GROUPS`] groups.
fn prefix(addresses: &[u32]) -> u32 {
    let groups = |prefix: u32| {
        let key = |address: u32| address.checked_shr(32 - prefix).unwrap_or(0);
        addresses.chunk_by(|one, next| key(*one) == key(*next)).count()
    };
    (0..=32).rev().find(|prefix| groups(*prefix) <= MOST_GROUPS).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::page::tests::{client, status};
    use crate::status::ClientStatus;

    fn many(number: u32) -> Vec<ClientView> {
        let first = Ipv4Addr::new(10, 0, 0, 0).to_bits();
        let at = |number: u32| Ipv4Addr::from_bits(first + number);
        (0..number)
            .map(|this| {
                let from = [
                    (Ipv4Addr::new(192, 0, 2, 1), 1),
                    (at((this + 1) % number), 2),
                    (Ipv4Addr::new(203, 0, 113, 9), 4),
                ];
                let from = from.into_iter().collect();
                let phase = if this % 2 == 0 { Phase::Done } else { Phase::Fetching };
                let status = ClientStatus { phase, chunks: 7, have: 7, from, ..Default::default() };
                client(at(this), status)
            })
            .collect()
    }

    #[test]
    fn few_hosts_have_a_row_each() {
        let clients = many(3);
        let flows = flows("golden", &clients.iter().collect::<Vec<_>>());
        assert_eq!(flows.groups.len(), 3);
        assert!(flows.groups.iter().all(|group| group.prefix == 32 && group.hosts == 1));
        assert_eq!(flows.groups[1].address, clients[1].address);
        let expected = [(0, 0, 1), (0, 2, 2), (0, 4, 4), (1, 0, 1), (1, 3, 2), (1, 4, 4)];
        assert_eq!(flows.cells[..6], expected);
        assert_eq!(flows.cells[6..], [(2, 0, 1), (2, 1, 2), (2, 4, 4)]);
    }

    #[test]
    fn many_hosts_are_grouped_by_prefix_and_no_chunk_is_lost() {
        let clients = many(1000);
        let flows = flows("golden", &clients.iter().collect::<Vec<_>>());
        assert_eq!(flows.groups.len(), 32);
        assert_eq!(flows.groups.iter().map(|group| group.hosts).sum::<usize>(), 1000);
        assert_eq!((flows.groups[1].address, flows.groups[1].prefix), ([10, 0, 0, 32].into(), 27));
        let column = |which: usize| -> u64 {
            flows.cells.iter().filter(|cell| cell.1 == which).map(|cell| cell.2).sum()
        };
        assert_eq!((column(0), column(33)), (1000, 4000), "of the server, and of strangers");
        assert_eq!(flows.cells.iter().map(|cell| cell.2).sum::<u64>(), 7000);
    }

    #[test]
    fn addresses_that_share_no_prefix_are_one_group() {
        let addresses: Vec<u32> = (0..=255).map(|first| first << 24 | 0x0102_0304).collect();
        assert_eq!(prefix(&addresses), 5);
        assert_eq!(prefix(&addresses[..60]), 32);
        assert_eq!(prefix(&[]), 32);
        let clients: Vec<_> = addresses
            .iter()
            .map(|it| client(Ipv4Addr::from_bits(*it), Default::default()))
            .collect();
        assert_eq!(flows("golden", &clients.iter().collect::<Vec<_>>()).groups.len(), 32);
    }

    #[test]
    fn the_list_has_a_limit_and_keeps_those_that_are_slow() {
        let mut clients = many(5000);
        clients[4998].slow = Some("its disk".to_owned());
        Arc::make_mut(&mut clients[4999].status).receive_rate = u64::MAX;
        Arc::make_mut(&mut clients[1].status).receive_rate = u64::MAX;
        let status = status(clients);
        let digest = Digest::new(&status);
        assert_eq!((digest.clients.len(), digest.clients_total, digest.slow), (2000, 5000, 1));
        assert!(digest.clients.is_sorted_by_key(|client| client.address));
        assert!(digest.clients.iter().any(|client| client.slow.is_some()));
        assert_eq!(digest.clients.iter().filter(|it| it.phase == Phase::Done).count(), 1);
        assert_eq!(digest.phases[&Phase::Done], 2500);
        assert_eq!((digest.images[0].clients, digest.images[0].complete), (5000, 2500));
        assert_eq!(digest.receive_rate, u64::MAX);
        let size = serde_json::to_vec(&digest).unwrap().len();
        assert!(size < 1 << 20, "{size} bytes");
    }
}
