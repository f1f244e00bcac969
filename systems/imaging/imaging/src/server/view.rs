//! What a server shows.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use rackweave_core::visible;
use rackweave_core::{Span, Time};

use super::frisbee::MemberCounts;
use super::multicast::{For, Session};
use super::{Guest, Inner};
use crate::status::{
    ClientView, FrisbeeView, ImageView, Limit, MulticastView, Phase, ServerStatus, hex,
};

/// Computes what is shown; it remembers what was sent, for rates.
#[derive(Debug)]
pub(super) struct View {
    at: Time,
    sent: u64,
    rate: u64,
}

/// Rates are those of at least this time.
const RATES: Span = Span::from_secs(1);

impl View {
    pub(super) const fn new() -> Self {
        Self { at: Time::ZERO, sent: 0, rate: 0 }
    }

    pub(super) fn take(&mut self, inner: &Inner) -> ServerStatus {
        let now = inner.clock.now();
        let sent = inner.sent.get();
        if now.since(self.at) >= RATES {
            let micros = u128::from(now.since(self.at).as_us().max(1));
            self.rate = (u128::from(sent - self.sent) * 1_000_000 / micros) as u64;
            (self.at, self.sent) = (now, sent);
        }
        let guests = inner.guests.borrow();
        let machine = inner.machine.borrow();
        let counters = machine.counters();
        let directory = machine.directory().map(rackweave_swp2p::directory::Directory::counters);
        let sent_of = inner.sent_of.borrow();
        let sessions = inner.multicast.borrow();
        let receivers = inner.receivers.iter().flatten();
        // Frisbee's clients are not among the guests.
        let complete = inner.complete.borrow();
        let was_here = |address: &Ipv4Addr| {
            guests.contains_key(address)
                || complete.range((*address, 0)..=(*address, u32::MAX)).next().is_some()
        };
        let mut clients: Vec<ClientView> =
            guests.iter().map(|(address, guest)| client(inner, now, *address, guest)).collect();
        compare(guests.values().zip(&mut clients));
        ServerStatus {
            elapsed_ms: now.as_ms(),
            images: inner
                .catalog
                .iter()
                .map(|(number, entry)| {
                    let manifest = entry.image.manifest();
                    let (chunks_sent, bytes_sent) =
                        sent_of.get(&number).copied().unwrap_or_default();
                    ImageView {
                        name: visible(entry.name()),
                        root: hex(manifest.root()),
                        chunks: manifest.chunks(),
                        bytes: manifest.head().size,
                        stored: entry.stored,
                        signed: manifest.signature().is_some(),
                        chunks_sent,
                        bytes_sent,
                        copies: bytes_sent as f64 / entry.stored.max(1) as f64,
                        multicast: sessions.get(&(number, For::Guests)).map(session),
                        frisbee: sessions.get(&(number, For::Frisbee)).map(frisbee),
                    }
                })
                .collect(),
            clients,
            absent: receivers.filter(|address| !was_here(address)).copied().collect(),
            chunks_sent: sent_of.values().map(|(chunks, _)| chunks).sum(),
            bytes_sent: sent,
            send_rate: self.rate,
            requests: counters.requests,
            redirected: directory.map_or(0, |it| it.to_holders + it.to_pending),
            returned: counters.returned,
            damaged: counters.damaged,
            barred: directory.map_or(0, |it| it.barred),
            refused: inner.control.refused() + inner.strangers.get(),
            unsent: inner.control.unsent(),
        }
    }
}

fn session(session: &Session) -> MulticastView {
    let counts = &session.counts.counts;
    MulticastView {
        group: session.group.to_string(),
        blocks_sent: counts.blocks_sent,
        requests: counts.requests,
        merged: counts.merged,
        partial_requests: counts.partial_requests,
        refused: session.refused,
        unsent: session.unsent,
    }
}

fn frisbee(of: &Session) -> FrisbeeView {
    let MemberCounts { present, joined, left, silent } = of.members;
    FrisbeeView { session: session(of), present, joined, left, silent }
}

fn client(inner: &Inner, now: Time, address: Ipv4Addr, guest: &Guest) -> ClientView {
    let age = now.since(guest.seen);
    let serves = inner.holders.as_ref().is_none_or(|holders| holders.contains(&address));
    ClientView {
        address,
        server: guest.own,
        image: inner.catalog.get(guest.image).map_or(String::new(), |it| visible(it.name())),
        status: Arc::clone(&guest.status),
        age_ms: age.as_ms(),
        serves,
        complete: inner.complete.borrow().contains(&(address, guest.image)),
        slow: slow(guest, now),
    }
}

/// The fewest clients whose rates are compared.
const COMPARED: usize = 4;
/// How many times slower than the median a client must be.
const SLOWER: u64 = 4;
/// A client that fetches is judged after this time.
const JUDGED_MS: u64 = 3000;

/// Names the clients that receive much less than others of their image. The numbers are Rackweave's: within a factor of
/// four, rates differ because clients start at different times and serve different numbers of others.
fn compare<'a>(clients: impl Iterator<Item = (&'a Guest, &'a mut ClientView)>) {
    let mut by_image: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for (guest, view) in clients {
        let is_compared = match view.status.phase {
            Phase::Fetching => guest.status.elapsed_ms >= JUDGED_MS,
            phase => phase == Phase::Writing || phase.is_complete(),
        };
        // One that had all chunks has received none.
        if is_compared && view.status.fetched() > 0 {
            by_image.entry(guest.image).or_default().push((guest.rate, view));
        }
    }
    for mut clients in by_image.into_values().filter(|clients| clients.len() >= COMPARED) {
        clients.sort_by_key(|(rate, _)| *rate);
        let median = clients[clients.len() / 2].0;
        for (rate, client) in clients.iter_mut().take_while(|(rate, _)| *rate < median / SLOWER) {
            if client.status.phase == Phase::Fetching && client.slow.is_none() {
                let mega = |rate: u64| rate as f64 / 1e6;
                client.slow = Some(format!(
                    "the network: it receives {:.1} MB/s on average, and half of the others at least {:.1} MB/s",
                    mega(*rate),
                    mega(median)
                ));
            }
        }
    }
}

/// A client that has not reported for this time is late.
const LATE: Span = Span::from_secs(3);

/// Why a client is slow, in half a sentence.
fn slow(guest: &Guest, now: Time) -> Option<String> {
    let age = now.since(guest.seen);
    let status = &guest.status;
    match status.phase {
        Phase::Failed => return status.failure.clone().or(Some("it has failed".to_owned())),
        Phase::Gone => return Some("its connection has broken".to_owned()),
        Phase::Done | Phase::Interrupted | Phase::Lingering => return None,
        _ if age > LATE => {
            return Some(format!("it has not reported for {} s", age.as_secs()));
        }
        _ => {}
    }
    if let Some(why) = guest.unsent(now).filter(|_| status.phase == Phase::Fetching) {
        return Some(format!("the server {why}"));
    }
    match status.limit {
        Limit::Disk => {
            let waiting = status.have - status.written;
            Some(format!("its disk: {waiting} chunks wait to be written"))
        }
        Limit::Silence => Some("no chunk has arrived for a second".to_owned()),
        Limit::Network if status.retries > status.have / 10 + 5 => {
            Some(format!("{} chunks were requested again", status.retries))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::client as shown;
    use crate::status::ClientStatus;

    /// Clients of one image that differ in phase and rate.
    fn compared(clients: &[(Phase, u64)]) -> Vec<Option<String>> {
        let of = |(phase, rate): &(Phase, u64)| {
            let status = ClientStatus {
                phase: *phase,
                chunks: 9,
                have: 5,
                elapsed_ms: 4000,
                ..ClientStatus::default()
            };
            let view = shown(Ipv4Addr::LOCALHOST, status);
            let status = Arc::clone(&view.status);
            let own = Ipv4Addr::LOCALHOST;
            let (rate, seen) = (*rate, Time::ZERO);
            (Guest { own, image: 1, status, rate, seen, session: 1, number: 1, unsent: None }, view)
        };
        let (guests, mut views): (Vec<_>, Vec<_>) = clients.iter().map(of).unzip();
        compare(guests.iter().zip(&mut views));
        views.into_iter().map(|view| view.slow).collect()
    }

    #[test]
    fn a_client_that_the_server_cannot_connect_to_is_named_with_the_cause() {
        let status = ClientStatus { phase: Phase::Fetching, chunks: 9, ..ClientStatus::default() };
        let unsent =
            Some((Time::ZERO, "cannot connect to TCP port 6723 of 192.0.2.7: no".to_owned()));
        let at = |seconds| Time::ZERO + Span::from_secs(seconds);
        let guest = |phase, seen| {
            let (own, status) =
                (Ipv4Addr::LOCALHOST, Arc::new(ClientStatus { phase, ..status.clone() }));
            Guest {
                own,
                image: 1,
                status,
                rate: 0,
                seen,
                session: 1,
                number: 1,
                unsent: unsent.clone(),
            }
        };
        let text = "the server cannot connect to TCP port 6723 of 192.0.2.7: no";
        assert_eq!(slow(&guest(Phase::Fetching, at(9)), at(10)).as_deref(), Some(text));
        assert_eq!(slow(&guest(Phase::Fetching, at(30)), at(30)), None, "that was long ago");
        assert_eq!(slow(&guest(Phase::Writing, at(9)), at(10)), None, "it needs no chunk any more");
    }

    #[test]
    fn a_client_that_is_much_slower_than_the_median_is_named_with_its_rate() {
        use Phase::{Done, Fetching, Lingering};
        let all = [
            (Fetching, 40_000_000),
            (Done, 50_000_000),
            (Fetching, 1_200_000),
            (Lingering, 44_000_000),
            (Fetching, 12_000_000),
        ];
        let slow = compared(&all);
        let text = "the network: it receives 1.2 MB/s on average, and half of the others at least 40.0 MB/s";
        assert_eq!(slow, [None, None, Some(text.to_owned()), None, None]);
        assert_eq!(compared(&all[..3]), [None, None, None], "too few to compare");
        let done = all.map(|(_, rate)| (Done, rate));
        assert!(compared(&done).iter().all(Option::is_none), "nobody waits for those");
    }
}
