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
use rackweave_image::{Format, ndz};
use rackweave_linux::sys::route_to;
use rackweave_swp2p::Shape;
use rackweave_swp2p::frisbee::{Layout, PaceConfig, Server, ServerConfig, ServerCounts};
use rackweave_swp2p::p2p::ChunkOf;
use rackweave_wire::frisbee::{BLOCK_BYTES, Body};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{spawn_blocking, spawn_local};
use tokio::time::sleep;

use super::catalog::Entry;
use super::frisbee::{FrisbeeChange, MemberCounts, Members};
use super::{Inner, ServeConfig, ServeError, ServeEvent};
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

/// Whom a session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum For {
    /// Hosts that have a connection for this image, which know its manifest: a chunk has the blocks that it needs.
    Guests,
    /// Emulab's Frisbee clients: a chunk has 1 MiB.
    Frisbee,
}

/// What is known of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    pub(super) group: Group,
    pub(super) counts: SessionCounts,
    /// Frisbee's clients.
    pub(super) members: MemberCounts,
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
    let mut drivers = Vec::new();
    if let Some(multicast) = &config.multicast {
        drivers.extend(sessions(For::Guests, multicast, config, inner, port)?);
    }
    if let Some(frisbee) = &config.frisbee {
        if config.key.is_some() {
            let why =
                "Frisbee's clients have no key: whoever reaches the group would have the image";
            return Err(ServeError::Multicast { group: frisbee.group, why: why.to_owned() });
        }
        drivers.extend(sessions(For::Frisbee, frisbee, config, inner, port)?);
    }
    Ok(drivers)
}

/// Opens the sessions of one kind.
fn sessions(
    whom: For,
    multicast: &MulticastConfig,
    config: &ServeConfig,
    inner: &Rc<Inner>,
    port: u16,
) -> Result<Vec<Driver>, ServeError> {
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
    let mut entries: Vec<_> = inner.catalog.iter().collect();
    if whom == For::Frisbee {
        // People tell clients which group is an image's.
        entries.sort_by_key(|(_, entry)| entry.name());
    }
    for (index, (number, entry)) in entries.into_iter().enumerate() {
        let manifest = entry.image.manifest();
        // An image without chunks is complete at once, everywhere.
        if manifest.chunks() == 0 {
            continue;
        }
        let layout = match layout(whom, entry) {
            Ok(layout) => layout,
            Err(why) => return refused(why),
        };
        let bits = multicast.group.to_bits().checked_add(index as u32);
        let address = bits.map(Ipv4Addr::from_bits).filter(|address| is_scoped(*address));
        let Some(address) = address else {
            return refused("not every image has a group in 239.0.0.0/8".to_owned());
        };
        let group = Group { address, port, server };
        if inner.multicast.borrow().values().any(|other| other.group == group) {
            return refused(format!(
                "{group} has the session of another image, or of other clients"
            ));
        }
        let channel = Channel::open(group, server, config.key, manifest.root()).map_err(failed)?;
        let pace = coarse(multicast.pace);
        let machine = Server::new(ServerConfig { image: layout.clone(), pace });
        let members = Members::new(config.receivers.as_ref().map(BTreeSet::len));
        let session = Session {
            group,
            counts: SessionCounts::default(),
            members: members.counts(),
            refused: 0,
            unsent: 0,
        };
        inner.multicast.borrow_mut().insert((number, whom), session);
        if whom == For::Frisbee {
            let (image, group) = (entry.name().to_owned(), group.to_string());
            inner.event(ServeEvent::FrisbeeSession { image, group });
        }
        let entry = Arc::clone(entry);
        let (read, reads) = unbounded_channel();
        let (chunks, reading) = (BTreeMap::new(), BTreeSet::new());
        let inner = Rc::clone(inner);
        drivers.push(Driver {
            inner,
            number,
            whom,
            members,
            entry,
            layout,
            channel,
            machine,
            chunks,
            reading,
            read,
            reads,
            hears_direct: false,
        });
    }
    if let [only] = &mut drivers[..] {
        only.hears_direct = whom == For::Frisbee;
    }
    Ok(drivers)
}

/// Returns the blocks of an image's chunks in a session, or why it can have none.
fn layout(whom: For, entry: &Entry) -> Result<Layout, String> {
    let (manifest, name) = (entry.image.manifest(), entry.name());
    if whom == For::Guests {
        let lengths = (0..manifest.chunks()).filter_map(|chunk| manifest.chunk(chunk));
        return Layout::of_lengths(lengths.map(|chunk| chunk.stored)).ok_or_else(|| {
            format!(
                "the image `{name}` has chunks of more than 1 MiB, which Frisbee's packets cannot name; pack it with smaller ones \
                 (--chunk-size)"
            )
        });
    }
    if manifest.head().format != Format::Ndz {
        return Err(format!(
            "the image `{name}` is not in Frisbee's format (.ndz), the only one that its clients read: unpack it, and pack the disk with \
             --format ndz"
        ));
    }
    let bytes = u64::from(manifest.chunks()) * ndz::CHUNK as u64;
    let most = i32::MAX as u64 * u64::from(BLOCK_BYTES);
    let shape = Shape::new(bytes, Shape::FRISBEE_CHUNK).filter(|_| bytes <= most);
    let shape = shape.ok_or_else(|| format!("the image `{name}` has more than 2 TiB"))?;
    Ok(Layout::even(shape))
}

/// The server of one image's session.
#[derive(Debug)]
pub(super) struct Driver {
    inner: Rc<Inner>,
    /// The number of the image.
    number: u32,
    whom: For,
    /// Frisbee's clients, if it is for them.
    members: Members,
    entry: Arc<Entry>,
    layout: Layout,
    channel: Channel,
    machine: Server,
    /// The bytes of chunks that are sent next.
    chunks: BTreeMap<u32, Bytes>,
    /// The chunks that are being read.
    reading: BTreeSet<u32>,
    read: UnboundedSender<(u32, Option<Bytes>)>,
    reads: UnboundedReceiver<(u32, Option<Bytes>)>,
    /// Whether requests may come to this host alone, as clients send them that a switch redirects. They do not name their session: it must be
    /// the only one.
    hears_direct: bool,
}

async fn receive(channel: &mut Channel, hears_direct: bool) -> io::Result<()> {
    if hears_direct {
        channel.receive_any().await?;
        return Ok(());
    }
    channel.receive().await
}

impl Driver {
    /// Runs for as long as the server. A session whose socket fails, or whose image cannot be read, ends, and its clients go on without
    /// multicast.
    pub(super) async fn run(mut self) {
        let ended = self.drive().await;
        self.inner.multicast.borrow_mut().remove(&(self.number, self.whom));
        if let Err(error) = ended {
            self.inner.event(ServeEvent::NoMulticast {
                image: self.entry.name().to_owned(),
                why: error.to_string(),
            });
        }
    }

    async fn drive(&mut self) -> io::Result<()> {
        loop {
            self.tidy();
            self.read_ahead();
            let wait = self.send()?;
            // What was sent makes room for the chunks after it.
            self.read_ahead();
            self.publish();
            tokio::select! {
                biased;
                received = receive(&mut self.channel, self.hears_direct) => {
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

    /// Handles what has arrived. Of hosts that have no connection for this image, only Frisbee's clients are listened to, in their own
    /// session: the addresses of others are validated.
    fn handle(&mut self) {
        let now = self.inner.clock.now();
        let mut changes = Vec::new();
        for (from, body, payload) in self.channel.messages() {
            let is_client = match self.whom {
                For::Guests => self
                    .inner
                    .guests
                    .borrow()
                    .get(&from)
                    .is_some_and(|guest| guest.session > 0 && guest.image == self.number),
                For::Frisbee => self.inner.admits(from),
            };
            if !is_client {
                self.inner.strangers.set(self.inner.strangers.get() + 1);
                continue;
            }
            self.machine.handle(now, &body, payload);
            if self.whom == For::Frisbee {
                let change = self.members.heard(now, from, &body);
                changes.extend(change.map(|change| (from, change)));
            }
        }
        for (client, change) in changes {
            if matches!(change, FrisbeeChange::Left { .. }) {
                self.inner.has(client, self.number);
            }
            self.report(client, change);
        }
    }

    fn report(&mut self, client: Ipv4Addr, change: FrisbeeChange) {
        if self.members.may_report() {
            let image = self.entry.name().to_owned();
            self.inner.event(ServeEvent::Frisbee { client, image, change });
        }
    }

    fn tidy(&mut self) {
        for client in self.members.tidy(self.inner.clock.now()) {
            self.report(client, FrisbeeChange::Silent);
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
            let (read, image, whom) = (self.read.clone(), self.number, self.whom);
            spawn_local(async move {
                let reading = Arc::clone(&entry);
                let read_chunk = move || match whom {
                    For::Guests => reading.read(chunk).map(|stored| stored.bytes().clone()),
                    For::Frisbee => reading.read_padded(chunk),
                };
                let bytes = match spawn_blocking(read_chunk).await {
                    Ok(Ok(bytes)) => Some(bytes),
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
        // Padding is no part of the image.
        let stored = self.entry.image.manifest().chunk(chunk).map_or(0, |chunk| chunk.stored);
        let bytes = u64::from(stored.saturating_sub(start as u32).min(BLOCK_BYTES));
        self.inner.sent.set(self.inner.sent.get() + bytes);
        let mut sent_of = self.inner.sent_of.borrow_mut();
        let (chunks, sent) = sent_of.entry(self.number).or_default();
        *sent += bytes;
        *chunks += u64::from(block + 1 == self.layout.blocks_of(chunk));
    }

    /// Shows what has been counted.
    fn publish(&self) {
        let key = (self.number, self.whom);
        if let Some(session) = self.inner.multicast.borrow_mut().get_mut(&key) {
            session.members = self.members.counts();
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
