//! The Frisbee session of an image: the driver of a server's machine.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::time::TICKS_PER_SECOND;
use rackweave_core::{Rate, Span};
use rackweave_linux::sys::route_to;
use rackweave_swp2p::frisbee::{Layout, PaceConfig, Server, ServerConfig, ServerCounts};
use rackweave_swp2p::p2p::ChunkOf;
use rackweave_wire::frisbee::{BLOCK_BYTES, Body};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{spawn_blocking, spawn_local};
use tokio::time::sleep;

use super::catalog::Entry;
use super::{Inner, ServeConfig, ServeError};
use crate::multicast::{Channel, Group, is_scoped};

/// How images are multicast, for clients that want it.
#[derive(Clone, Copy, Debug)]
pub struct MulticastConfig {
    /// The IPv4 group of the first image, in 239.0.0.0/8. Each further image has the next address.
    pub group: Ipv4Addr,
    /// The UDP port of all sessions; `None` for the one after the server's.
    pub port: Option<u16>,
    /// When blocks are sent.
    pub pace: PaceConfig,
}

/// The length of a block on the link, from the preamble to the gap.
const BLOCK_ON_LINK: u32 = 1114;
/// The gap between bursts: that of the authors, which is also as short as timers of the runtime permit.
const GAP: Span = Span::from_ms(2);

impl MulticastConfig {
    /// The rate at which blocks are sent, at most, unless another one is given. Rackweave's choice: with a link of 1 Gbps, half of it
    /// is left for others.
    pub const RATE: Rate = Rate(500_000_000);

    /// Returns the pacing that sends blocks at this rate on the link, at most. The rate adapts to loss.
    #[must_use]
    pub fn paced(rate: Rate) -> PaceConfig {
        let bits = u128::from(rate.0) * u128::from(GAP.ticks()) / u128::from(TICKS_PER_SECOND);
        let burst = u32::try_from(bits / u128::from(BLOCK_ON_LINK * 8)).unwrap_or(u32::MAX).max(1);
        PaceConfig { burst, gap: GAP, dynamic: true }.with_rate(rate, BLOCK_ON_LINK)
    }
}

/// Makes bursts so long that timers, whose resolution is a millisecond, keep the rate: a burst that begins late does not delay the
/// next one, unless it is later than the gap.
fn coarse(pace: PaceConfig) -> PaceConfig {
    if pace.gap == Span::ZERO || pace.gap >= GAP {
        return pace;
    }
    let times = GAP.ticks().div_ceil(pace.gap.ticks());
    let burst = u32::try_from(times).map_or(u32::MAX, |times| pace.burst.saturating_mul(times));
    PaceConfig { burst, gap: pace.gap * times, ..pace }
}

/// What a server has counted in a Frisbee session.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionCounts {
    /// What its machine has counted.
    pub counts: ServerCounts,
    /// The time from the first to the last message of a client.
    pub service: Span,
}

/// What is known of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    pub(super) group: Group,
    pub(super) counts: SessionCounts,
    pub(super) refused: u64,
    pub(super) unsent: u64,
}

/// The number of chunks that are read ahead: the next ones to be sent.
const READ_AHEAD: usize = 4;
/// Messages that wait to be sent, at most, besides those of a burst.
const MOST_WAITING: usize = 1024;
/// How long it is waited for room in the send buffer.
const RETRY: Duration = Duration::from_millis(1);
/// How long nothing is due, at most.
const TICK: Duration = Duration::from_secs(1);

/// Opens the sessions of all images.
pub(super) fn open(
    config: &ServeConfig,
    inner: &Rc<Inner>,
    port: u16,
) -> Result<Vec<Driver>, ServeError> {
    let Some(multicast) = &config.multicast else { return Ok(Vec::new()) };
    let refused = |why: String| Err(ServeError::Multicast { group: multicast.group, why });
    if !is_scoped(multicast.group) {
        return refused("groups of 239.0.0.0/8 stay within a site; choose one of them".to_owned());
    }
    let port = match multicast.port.or(port.checked_add(1)).filter(|port| *port > 0) {
        Some(session) if session != port => session,
        _ => {
            return refused(format!("the session needs a UDP port of its own, besides {port}"));
        }
    };
    let failed =
        |error: io::Error| ServeError::Multicast { group: multicast.group, why: error.to_string() };
    let server = match *config.listen.ip() {
        any if any.is_unspecified() => {
            let route = route_to((multicast.group, port).into()).map_err(|error| {
                let why = format!(
                    "{error}: there is no route to it; choose the interface by its address (--listen)"
                );
                ServeError::Multicast { group: multicast.group, why }
            })?;
            crate::ipv4(route.0).unwrap_or(any)
        }
        own => own,
    };
    let mut drivers = Vec::new();
    for (index, (number, entry)) in inner.catalog.iter().enumerate() {
        let manifest = entry.image.manifest();
        let lengths = (0..manifest.chunks()).filter_map(|chunk| manifest.chunk(chunk));
        // An image without chunks is complete at once, everywhere.
        if manifest.chunks() == 0 {
            continue;
        }
        let Some(layout) = Layout::of_lengths(lengths.map(|chunk| chunk.stored)) else {
            return refused(format!(
                "the image `{}` has chunks of more than 1 MiB, which Frisbee's packets cannot name; pack it with smaller ones \
                 (--chunk-size)",
                entry.name()
            ));
        };
        let bits = multicast.group.to_bits().checked_add(index as u32);
        let address = bits.map(Ipv4Addr::from_bits).filter(|address| is_scoped(*address));
        let Some(address) = address else {
            return refused("not every image has a group in 239.0.0.0/8".to_owned());
        };
        let group = Group { address, port, server };
        let channel = Channel::open(group, server, config.key, manifest.root()).map_err(failed)?;
        let pace = coarse(multicast.pace);
        let machine = Server::new(ServerConfig { image: layout.clone(), pace });
        let session = Session { group, counts: SessionCounts::default(), refused: 0, unsent: 0 };
        inner.multicast.borrow_mut().insert(number, session);
        let entry = Arc::clone(entry);
        let (read, reads) = unbounded_channel();
        let (chunks, reading) = (BTreeMap::new(), BTreeSet::new());
        let inner = Rc::clone(inner);
        drivers.push(Driver {
            inner,
            number,
            entry,
            layout,
            channel,
            machine,
            chunks,
            reading,
            read,
            reads,
        });
    }
    Ok(drivers)
}

/// The server of one image's session.
#[derive(Debug)]
pub(super) struct Driver {
    inner: Rc<Inner>,
    /// The number of the image.
    number: u32,
    entry: Arc<Entry>,
    layout: Layout,
    channel: Channel,
    machine: Server,
    /// The stored bytes of chunks that are sent next.
    chunks: BTreeMap<u32, Bytes>,
    /// The chunks that are being read.
    reading: BTreeSet<u32>,
    read: UnboundedSender<(u32, Option<Bytes>)>,
    reads: UnboundedReceiver<(u32, Option<Bytes>)>,
}

impl Driver {
    /// Runs for as long as the server. A session whose socket fails, or whose image cannot be read, ends, and its clients go on without
    /// multicast.
    pub(super) async fn run(mut self) {
        let ended = self.drive().await;
        self.inner.multicast.borrow_mut().remove(&self.number);
        if let Err(error) = ended {
            self.inner.event(super::ServeEvent::NoMulticast {
                image: self.entry.name().to_owned(),
                why: error.to_string(),
            });
        }
    }

    async fn drive(&mut self) -> io::Result<()> {
        loop {
            self.read_ahead();
            let wait = self.send()?;
            self.publish();
            tokio::select! {
                biased;
                received = self.channel.receive() => {
                    received?;
                    self.handle();
                }
                Some((chunk, bytes)) = self.reads.recv() => {
                    self.reading.remove(&chunk);
                    // Why it cannot be read was reported, and the image is not served any more.
                    let Some(bytes) = bytes else { return Ok(()) };
                    self.chunks.insert(chunk, bytes);
                }
                () = sleep(wait) => {}
            }
        }
    }

    /// Handles what has arrived. Only hosts with a session over TCP, for this image, are listened to: their addresses are validated.
    fn handle(&mut self) {
        let now = self.inner.clock.now();
        let guests = self.inner.guests.borrow();
        for (from, body, payload) in self.channel.messages() {
            let is_client = guests
                .get(&from)
                .is_some_and(|guest| guest.session > 0 && guest.image == self.number);
            if is_client {
                self.machine.handle(now, &body, payload);
            } else {
                self.inner.strangers.set(self.inner.strangers.get() + 1);
            }
        }
    }

    /// Has the chunks read that are sent next, and forgets others.
    fn read_ahead(&mut self) {
        let next: Vec<u32> = self.machine.upcoming().take(READ_AHEAD).collect();
        self.chunks.retain(|chunk, _| next.contains(chunk));
        for chunk in next {
            if self.chunks.contains_key(&chunk) || !self.reading.insert(chunk) {
                continue;
            }
            let (inner, entry) = (Rc::clone(&self.inner), Arc::clone(&self.entry));
            let (read, image) = (self.read.clone(), self.number);
            spawn_local(async move {
                let reading = Arc::clone(&entry);
                let bytes = match spawn_blocking(move || reading.read(chunk)).await {
                    Ok(Ok(stored)) => Some(stored.bytes().clone()),
                    Ok(Err(error)) => {
                        let what = ChunkOf { image, chunk };
                        inner.read_failed(what, entry.image.path(), error.to_string());
                        None
                    }
                    Err(_) => None,
                };
                let _ = read.send((chunk, bytes));
            });
        }
    }

    /// Sends what is due, and returns how long to wait if nothing arrives.
    fn send(&mut self) -> io::Result<Duration> {
        let now = self.inner.clock.now();
        let mut is_due_later = true;
        // What the system has not accepted goes first.
        while self.channel.waiting() < MOST_WAITING {
            if let Some(reply) = self.machine.poll_reply() {
                self.channel.push(reply.body, &[]);
                continue;
            }
            let next = self.machine.upcoming().next();
            if next.is_some_and(|chunk| !self.chunks.contains_key(&chunk)) {
                is_due_later = false;
                break;
            }
            let Some(message) = self.machine.poll(now) else { break };
            if let Body::Block { chunk, block, .. } = message.body {
                self.push(chunk, block, message.body);
            }
        }
        let has_room = self.channel.waiting() < MOST_WAITING;
        if !self.channel.flush()? {
            self.machine.not_sent();
            return Ok(RETRY);
        }
        if !has_room {
            return Ok(Duration::ZERO);
        }
        let due = self.machine.poll_timeout().filter(|_| is_due_later);
        Ok(due.map_or(TICK, |at| Duration::from_nanos(at.since(now).as_ns_ceil()).min(TICK)))
    }

    fn push(&mut self, chunk: u32, block: u32, body: Body) {
        let Some(bytes) = self.chunks.get(&chunk) else { return };
        let start = (block * BLOCK_BYTES) as usize;
        let end = bytes.len().min(start + BLOCK_BYTES as usize);
        let piece = bytes.get(start..end).unwrap_or(&[]);
        self.channel.push(body, piece);
        self.inner.sent.set(self.inner.sent.get() + piece.len() as u64);
        let mut sent_of = self.inner.sent_of.borrow_mut();
        let (chunks, sent) = sent_of.entry(self.number).or_default();
        *sent += piece.len() as u64;
        *chunks += u64::from(block + 1 == self.layout.blocks_of(chunk));
    }

    /// Shows what has been counted.
    fn publish(&self) {
        if let Some(session) = self.inner.multicast.borrow_mut().get_mut(&self.number) {
            session.counts = SessionCounts {
                counts: *self.machine.counts(),
                service: self.machine.service_time().unwrap_or_default(),
            };
            (session.refused, session.unsent) = (self.channel.refused(), self.channel.unsent());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_becomes_bursts_that_timers_can_keep() {
        let rate = |pace: PaceConfig| {
            let bits = u64::from(pace.burst) * u64::from(BLOCK_ON_LINK) * 8;
            bits as f64 / pace.gap.as_secs_f64() / 1e6
        };
        for mbps in [1, 50, 200, 1000, 10_000] {
            let pace = MulticastConfig::paced(Rate(mbps * 1_000_000));
            assert!((rate(pace) / mbps as f64 - 1.0).abs() < 0.001, "{mbps}: {pace:?}");
            assert!(pace.gap >= Span::from_ms(1) && coarse(pace).gap >= GAP, "{mbps}: {pace:?}");
        }
        let fine = PaceConfig { burst: 16, gap: Span::from_us(700), dynamic: false };
        let made = coarse(fine);
        assert_eq!((made.burst, made.gap), (48, Span::from_us(2100)));
        assert_eq!(coarse(PaceConfig::default()), PaceConfig::default());
    }
}
