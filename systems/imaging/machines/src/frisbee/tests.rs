//! Golden tables of pacing; a client against a script; and clients with a server on a network that loses, repeats and reorders.

use proptest::prelude::{prop_assert, prop_assert_eq, proptest};
use rackweave_core::{Bitmap, Rate, Rng, Schedule, Span, Time};
use rackweave_wire::frisbee::{Body, CHUNK_BLOCKS};

use super::*;
use crate::Shape;
use crate::intake::Expand;

const MIB: u64 = 1 << 20;

fn ms(n: u64) -> Time {
    Time::ZERO + Span::from_ms(n)
}

fn fast() -> Expand {
    let rate = Rate::from_gbps(100);
    Expand { expanded_bytes: MIB, expand_rate: rate, disk_rate: rate, write_buffer: 64 * MIB }
}

/// Sends as fast as the pacing allows from `start` on; each block takes `cost`. Returns the times of the first blocks of bursts.
fn bursts(pace: &mut Pace, start: Time, cost: Span, blocks: u32) -> Vec<u64> {
    let (mut now, mut starts) = (start, Vec::new());
    for block in 0..blocks {
        now = now.max(pace.ready_at());
        if block % pace.burst() == 0 {
            starts.push(now.since(Time::ZERO).as_ps() / 1_000_000);
        }
        pace.sent(now);
        now += cost;
    }
    starts
}

/// Microseconds at which bursts of 4 blocks with a gap of 2 ms begin.
#[test]
fn bursts_follow_the_gap_and_an_overrun_resets_the_base_time() {
    let config = PaceConfig { burst: 4, gap: Span::from_ms(2), dynamic: false };
    let mut pace = Pace::new(config);
    assert_eq!(bursts(&mut pace, ms(10), Span::from_us(100), 16), [10_000, 12_000, 14_000, 16_000]);
    // After being idle, the interval starts with the next block.
    pace.idle();
    assert_eq!(bursts(&mut pace, ms(50), Span::from_us(100), 8), [50_000, 52_000]);
    // Blocks that take longer than the gap are sent without a pause, and later blocks are not sent faster to compensate.
    pace.idle();
    assert_eq!(bursts(&mut pace, ms(100), Span::from_ms(1), 8), [100_000, 104_000]);
    let next = bursts(&mut pace, ms(108), Span::from_us(100), 12);
    assert_eq!(next, [108_000, 109_000, 111_000]);
    let unpaced = PaceConfig { gap: Span::ZERO, ..config };
    assert_eq!(bursts(&mut Pace::new(unpaced), ms(1), Span::from_us(1), 8), [1_000, 1_004]);
}

#[test]
fn a_rate_is_a_gap_between_bursts() {
    let config = PaceConfig::default().with_rate(Rate(71_296_000), 1114);
    assert_eq!(config.gap, Span::from_ms(2));
}

#[test]
fn the_dynamic_rate_shrinks_after_loss_and_grows_again() {
    let config = PaceConfig { burst: 16, gap: Span::from_ms(2), dynamic: true };
    let mut pace = Pace::new(config);
    let mut now = Time::ZERO;
    assert_eq!(run_until(&mut pace, &mut now, ms(490)), 16);
    let mut sizes = Vec::new();
    for interval in 1..=8 {
        if interval < 5 {
            pace.lost();
        }
        sizes.push(run_until(&mut pace, &mut now, ms(510 * interval)));
    }
    assert_eq!(sizes, [14, 12, 10, 9, 10, 11, 12, 13]);
    for _ in 0..40 {
        pace.lost();
        let until = now + Span::from_ms(501);
        run_until(&mut pace, &mut now, until);
    }
    assert_eq!(pace.burst(), 1, "one is the least");
}

/// Sends as many blocks as the pacing allows, and returns the size of bursts then.
fn run_until(pace: &mut Pace, now: &mut Time, until: Time) -> u32 {
    while *now < until {
        *now = pace.ready_at().max(*now);
        pace.sent(*now);
    }
    pace.burst()
}

/// A client that has joined an image with this number of chunks, at 0 ms.
fn joined(chunks: u32, config: ClientConfig) -> Client {
    let mut client = Client::new(config, Time::ZERO, Rng::stream(1, 0, 0, "client"));
    client.handle_timeout(Time::ZERO);
    assert!(matches!(client.poll().unwrap().body, Body::Join { .. }));
    client.handle(Time::ZERO, &Body::JoinReply { blocks: chunks * CHUNK_BLOCKS }, &[]);
    client
}

fn in_order() -> ClientConfig {
    ClientConfig { order: crate::order::Order::InOrder, ..ClientConfig::new(fast()) }
}

/// What the client sends: chunk, `None` for a full request, else the missing blocks and whether it is repeated.
fn sent(client: &mut Client) -> Vec<(u32, Option<(u32, bool)>)> {
    core::iter::from_fn(|| client.poll())
        .filter_map(|message| match message.body {
            Body::Request { chunk, .. } => Some((chunk, None)),
            Body::PartialRequest { chunk, retries } => {
                Some((chunk, Some((message.map?.count(), retries > 0))))
            }
            _ => None,
        })
        .collect()
}

fn blocks(client: &mut Client, now: Time, chunk: u32, range: core::ops::Range<u32>) {
    for block in range {
        client.handle(now, &Body::Block { chunk, block, len: 1024 }, &[]);
    }
}

#[test]
fn a_client_asks_every_500_ms_to_join() {
    let mut client = Client::new(in_order(), ms(100), Rng::stream(1, 0, 0, "client"));
    for attempt in 0..3 {
        assert_eq!(client.poll_timeout(), Some(ms(100 + 500 * attempt)));
        client.handle_timeout(ms(100 + 500 * attempt));
        assert!(matches!(client.poll().unwrap().body, Body::Join { .. }));
        assert_eq!(client.poll(), None);
    }
    blocks(&mut client, ms(1_200), 0, 0..10);
    assert_eq!(client.counts().blocks, 0, "data is of no use before the reply");
}

#[test]
fn requests_follow_silence_and_completed_chunks() {
    let mut client = joined(10, in_order());
    // The first after 30 ms of silence: two chunks ahead.
    assert_eq!(client.poll_timeout(), Some(ms(30)));
    client.handle_timeout(ms(30));
    assert_eq!(sent(&mut client), [(0, None), (1, None)]);
    // A complete chunk: chunk 1 was requested a moment ago, and counts as one of two.
    blocks(&mut client, ms(40), 0, 0..1024);
    assert_eq!(sent(&mut client), [(2, None)]);
    // Part of chunk 1 arrives; after more than a second, its rest is requested when chunk 2 is complete.
    blocks(&mut client, ms(50), 1, 0..1000);
    blocks(&mut client, ms(1_060), 2, 0..1024);
    assert_eq!(sent(&mut client), [(1, Some((24, true))), (3, None), (4, None)]);
    // Idle: 3 times 30 ms after the last useful block, whatever was requested when.
    for tick in 1..=3 {
        assert_eq!(sent(&mut client), []);
        client.handle_timeout(ms(1_060 + 30 * tick));
    }
    assert_eq!(
        sent(&mut client),
        [(1, Some((24, true))), (3, Some((1024, true))), (4, Some((1024, true)))]
    );
    assert_eq!(client.counts().idles, 2);
}

#[test]
fn repeated_timeouts_back_off_to_about_a_second() {
    let mut client = joined(10, in_order());
    let mut at = Vec::new();
    while let Some(now) = client.poll_timeout().filter(|now| *now < ms(60_000)) {
        client.handle_timeout(now);
        if !sent(&mut client).is_empty() {
            at.push(now.as_ps() / 30_000_000_000);
        }
    }
    let gaps: Vec<u64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(at[0], 1);
    assert_eq!(gaps[..5], [3, 5, 6, 7, 8]);
    assert!(gaps.iter().all(|gap| *gap <= 37), "{gaps:?}");
    assert!(gaps.last().is_some_and(|gap| *gap >= 36), "{gaps:?}");
}

#[test]
fn the_requests_of_others_are_not_repeated() {
    let mut client = joined(10, in_order());
    client.handle(ms(10), &Body::Request { chunk: 0, block: 0, count: 1024 }, &[]);
    client.handle_timeout(ms(40));
    assert_eq!(sent(&mut client), [], "a snooped request restarts the idle time");
    blocks(&mut client, ms(50), 5, 0..1024);
    // Chunk 0 is on its way, so that only chunk 1 is requested.
    assert_eq!(sent(&mut client), [(1, None)]);
    // Others ask for what this client lacks of chunk 2, which it has in part: it waits a second from then.
    blocks(&mut client, ms(60), 2, 0..1023);
    let last = Blocks::of(Run { block: 1023, count: 1 });
    client.handle(ms(900), &Body::PartialRequest { chunk: 2, retries: 0 }, &last.to_bytes());
    blocks(&mut client, ms(1_800), 6, 0..1024);
    assert!(!sent(&mut client).iter().any(|(chunk, _)| *chunk == 2));
    // What it has is of no use to it.
    let have = Blocks::of(Run { block: 0, count: 9 });
    client.handle(ms(1_850), &Body::PartialRequest { chunk: 2, retries: 0 }, &have.to_bytes());
    blocks(&mut client, ms(1_950), 7, 0..1024);
    assert!(sent(&mut client).contains(&(2, Some((1, false)))));
}

#[test]
fn without_buffers_blocks_are_dropped_and_dubious_chunks_give_way() {
    let slow = Expand { expand_rate: Rate(8 * MIB), expanded_bytes: 10 * MIB, ..fast() };
    let mut client = joined(10, ClientConfig { buffers: 2, expand: Some(slow), ..in_order() });
    blocks(&mut client, ms(1), 0, 0..1024);
    blocks(&mut client, ms(2), 1, 0..1024);
    // Both buffers are full; expanding the first takes a second.
    blocks(&mut client, ms(3), 2, 0..500);
    assert_eq!(client.counts().no_buffer, 500);
    client.handle_timeout(ms(1_001));
    blocks(&mut client, ms(1_002), 2, 500..600);
    assert_eq!(client.counts().no_buffer, 500, "its end is collected");
    // The middle of another chunk does not displace it, the beginning does.
    blocks(&mut client, ms(1_003), 3, 7..8);
    assert_eq!((client.counts().no_buffer, client.counts().partial_drops), (501, 0));
    blocks(&mut client, ms(1_004), 4, 0..1);
    assert_eq!((client.counts().no_buffer, client.counts().partial_drops), (501, 1));
    blocks(&mut client, ms(1_005), 5, 0..1);
    assert_eq!(client.counts().no_buffer, 502, "chunk 4 is not dubious");
}

/// The world of the property: the group's messages reach each machine late, twice or not at all.
struct Lossy {
    server: Server,
    clients: Vec<Client>,
    /// To the machine (the server is the last), a message and its payload.
    network: Schedule<(usize, Body, Vec<u8>)>,
    rng: Rng,
    loss: f64,
    now: Time,
    longest: usize,
}

impl Lossy {
    fn new(seed: u64, clients: usize, chunks: u64, buffers: u16, loss: f64, snoop: bool) -> Self {
        let image = Shape::new(chunks * MIB, Shape::FRISBEE_CHUNK).unwrap();
        let pace =
            PaceConfig { burst: 16, gap: Span::from_us(200), dynamic: seed.is_multiple_of(2) };
        let mut rng = Rng::stream(seed, 0, 0, "lossy");
        let expand =
            Expand { expand_rate: Rate(800 * MIB), expanded_bytes: 2 * chunks * MIB, ..fast() };
        let config = ClientConfig { buffers, snoop, ..ClientConfig::new(expand) };
        let client = |number: usize| {
            let start = Time::from_ps(rng.below(Span::from_ms(300).as_ps()));
            let own = Rng::stream(seed, 0, number as u64, "client");
            Client::new(config.clone(), start, own)
        };
        Self {
            clients: (0..clients).map(client).collect(),
            server: Server::new(ServerConfig { image: Layout::even(image), pace }),
            network: Schedule::default(),
            rng,
            loss,
            now: Time::ZERO,
            longest: 0,
        }
    }

    /// Sends to all others.
    fn send(&mut self, from: usize, message: Outgoing) {
        let payload = message.map.map_or_else(Vec::new, |map| map.to_bytes().to_vec());
        for to in (0..=self.clients.len()).filter(|to| *to != from) {
            let copies = match self.rng.unit() {
                x if x < self.loss => 0,
                x if x < self.loss * 1.2 => 2,
                _ => 1,
            };
            for _ in 0..copies {
                let late =
                    if self.rng.chance(self.loss) { Span::from_ms(3).as_ps() } else { 1_000 };
                let at = self.now + Span::from_us(1) + Span::from_ps(self.rng.below(late));
                self.network.push(at, (to, message.body, payload.clone()));
            }
        }
    }

    /// Runs until all clients have the image; returns whether they have it in time.
    fn run(&mut self, limit: Time) -> bool {
        while self.clients.iter().any(|client| client.finished_at().is_none()) {
            let timers = self.clients.iter().filter_map(Client::poll_timeout);
            let due =
                timers.chain(self.server.poll_timeout()).chain(self.network.next_time()).min();
            let Some(due) = due.filter(|due| *due <= limit) else { return false };
            self.now = self.now.max(due);
            while let Some((_, (to, body, payload))) = self.network.pop_due(self.now) {
                match self.clients.get_mut(to) {
                    Some(client) => drop(client.handle(self.now, &body, &payload)),
                    None => self.server.handle(self.now, &body, &payload),
                }
            }
            for number in 0..self.clients.len() {
                let client = &mut self.clients[number];
                if client.poll_timeout().is_some_and(|at| at <= self.now) {
                    client.handle_timeout(self.now);
                }
                let mut length = 0;
                while let Some(message) = self.clients[number].poll() {
                    length += 1;
                    self.send(number, message);
                }
                self.longest = self.longest.max(length);
            }
            while let Some(message) = self.server.poll(self.now) {
                self.send(self.clients.len(), message);
            }
        }
        true
    }
}

proptest! {
    #![proptest_config(rackweave_testing::cases(24))]
    #[test]
    fn every_client_gets_every_block_and_writes_it_once(
        seed in 0_u64..1 << 32,
        clients in 1_usize..5,
        chunks in 1_u64..7,
        buffers in 1_u16..6,
        loss in 0_u32..4,
        snoop: bool,
    ) {
        let loss = f64::from(loss) * 0.05;
        let mut world = Lossy::new(seed, clients, chunks, buffers, loss, snoop);
        prop_assert!(world.run(ms(120_000)), "at {}: {:?}", world.now, world.server.counts());
        for client in &world.clients {
            prop_assert!(client.is_exact());
            prop_assert_eq!(client.missing(), Some(0));
        }
        let counts = world.server.counts();
        prop_assert!(counts.max_queue <= chunks + 1);
        prop_assert!(world.longest <= usize::from(buffers) + 3, "{}", world.longest);
        if loss == 0.0 && clients == 1 {
            prop_assert_eq!(counts.blocks_sent, chunks * 1024);
        }
    }
}

#[test]
fn what_cannot_be_right_is_ignored() {
    let image = Shape::new(2 * MIB, Shape::FRISBEE_CHUNK).unwrap();
    let mut server =
        Server::new(ServerConfig { image: Layout::even(image), pace: PaceConfig::default() });
    let full = Blocks::of(Run { block: 0, count: CHUNK_BLOCKS }).to_bytes();
    for (body, map) in [
        (Body::Request { chunk: 2, block: 0, count: 1024 }, &[][..]),
        (Body::Request { chunk: 1, block: 1, count: 1024 }, &[]),
        (Body::Request { chunk: 1, block: u32::MAX, count: 2 }, &[]),
        (Body::Request { chunk: 1, block: 3, count: 0 }, &[]),
        (Body::PartialRequest { chunk: 0, retries: 0 }, &[]),
        (Body::PartialRequest { chunk: u32::MAX, retries: 0 }, &full),
        (Body::Block { chunk: 0, block: 0, len: 1024 }, &[]),
    ] {
        server.handle(ms(1), &body, map);
        assert_eq!(server.poll(ms(1)), None, "{body:?}");
    }
    assert_eq!(server.counts().ignored, 7);
    let mut client = joined(2, in_order());
    for body in [
        Body::Block { chunk: 2, block: 0, len: 1024 },
        Body::Block { chunk: 0, block: 1024, len: 1024 },
        Body::Block { chunk: 0, block: 0, len: 512 },
        Body::Request { chunk: 9, block: 0, count: 1 },
        Body::Request { chunk: 0, block: u32::MAX, count: 9 },
        Body::PartialRequest { chunk: 9, retries: 0 },
    ] {
        client.handle(ms(1), &body, &full);
    }
    assert_eq!((client.counts().blocks, client.counts().ignored), (0, 5));
    // An image that is not of whole chunks needs the second form of joining.
    let image = Shape::new(2 * MIB - 1, Shape::FRISBEE_CHUNK).unwrap();
    let mut server =
        Server::new(ServerConfig { image: Layout::even(image), pace: PaceConfig::default() });
    server.handle(ms(1), &Body::Join { client: 1 }, &[]);
    assert_eq!((server.poll(ms(1)), server.counts().ignored), (None, 1));
}

/// A client of an image with chunks of 2, 0, 1 and 1 blocks, after its join. It has the last chunk.
fn driven(config: ClientConfig) -> Client {
    let layout = Layout::of_lengths([2048, 0, 1, 1024].into_iter()).unwrap();
    let mut have = Bitmap::new(4);
    have.insert(3);
    let rng = Rng::stream(1, 0, 0, "driven");
    let mut client = Client::driven(config, Time::ZERO, rng, layout, &have);
    client.handle_timeout(Time::ZERO);
    assert!(matches!(client.poll().unwrap().body, Body::Join { .. }));
    client.handle(ms(1), &Body::JoinReply { blocks: 5 }, &[]);
    assert!(!client.has_joined() && client.counts().ignored == 1, "it is another image");
    client.handle(ms(1), &Body::JoinReply { blocks: 4 }, &[]);
    assert_eq!(client.poll_event(), Some(Event::Joined));
    client
}

fn give(client: &mut Client, at: Time, chunk: u32, block: u32) -> bool {
    client.handle(at, &Body::Block { chunk, block, len: 1024 }, &[])
}

/// The requests until a time, as chunk and number of blocks.
fn requests(client: &mut Client, until: Time) -> Vec<(u32, u32)> {
    let mut requests = Vec::new();
    while let Some(now) = client.poll_timeout().filter(|now| *now <= until) {
        client.handle_timeout(now);
        while let Some(message) = client.poll() {
            match message.body {
                Body::Request { chunk, count, .. } => requests.push((chunk, count)),
                Body::PartialRequest { chunk, .. } => {
                    requests.push((chunk, message.map.unwrap().count()));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    requests.sort_unstable();
    requests
}

#[test]
fn a_chunk_of_a_driven_client_counts_when_it_is_verified_and_is_requested_again_when_it_is_not() {
    let mut client = driven(ClientConfig::driven(1 << 20));
    assert_eq!(client.missing(), Some(2), "one is empty, and one is there");
    assert_eq!(requests(&mut client, ms(40)), [(0, 2), (2, 1)]);
    assert!(give(&mut client, ms(41), 0, 0) && !give(&mut client, ms(41), 0, 0));
    assert!(give(&mut client, ms(41), 0, 1) && !give(&mut client, ms(41), 1, 0));
    assert_eq!((client.poll_event(), client.poll_event()), (Some(Event::Complete(0)), None));
    assert!(!give(&mut client, ms(42), 0, 0), "it is complete");
    client.chunk_damaged(ms(43), 0);
    assert_eq!(
        (client.missing(), client.poll().map(|it| it.body)),
        (Some(2), Some(Body::PartialRequest { chunk: 0, retries: 1 }))
    );
    for block in [1, 0] {
        assert!(give(&mut client, ms(50), 0, block));
    }
    assert_eq!(client.poll_event(), Some(Event::Complete(0)));
    client.chunk_verified(ms(51), 0);
    client.chunk_written(ms(52), 0);
    assert!(give(&mut client, ms(53), 2, 0));
    client.chunk_verified(ms(54), 2);
    assert_eq!(
        (client.missing(), client.received_at(), client.finished_at()),
        (Some(0), Some(ms(54)), None)
    );
    client.chunk_verified(ms(55), 7);
    client.chunk_written(ms(55), 2);
    assert_eq!(client.finished_at(), Some(ms(55)));
    let mut last = None;
    while let Some(message) = client.poll() {
        last = Some(message.body);
    }
    assert!(matches!(last, Some(Body::Leave2 { .. })), "{last:?}");
}

/// A neighbour asks for all chunks and sends blocks that are there, every 10 ms. The server answers only this client.
#[test]
fn messages_that_bring_nothing_delay_requests_for_a_limited_time() {
    let busy = |config: ClientConfig| {
        let mut client = driven(config);
        (1..400).find(|tick| {
            let now = ms(10 * tick);
            client.handle(now, &Body::Request { chunk: 0, block: 0, count: 2 }, &[]);
            client.handle(now, &Body::PartialRequest { chunk: 2, retries: 0 }, &[0xff; 128]);
            assert!(!give(&mut client, now, 3, 0));
            !requests(&mut client, now).is_empty()
        })
    };
    let authors = ClientConfig { heed: Span::from_ps(u64::MAX), ..ClientConfig::driven(1 << 20) };
    assert_eq!(busy(authors.clone()), None);
    // Two seconds, and then the idle time.
    let first = busy(ClientConfig { heed: Span::from_secs(2), ..authors }).unwrap();
    assert!((200..215).contains(&first), "{first}");
}
