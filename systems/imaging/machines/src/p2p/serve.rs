//! What a host does with the requests that it serves: a queue for each requester, from which chunks are sent by turns, and
//! the requests that wait for chunks which have not arrived here yet.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use rackweave_core::{HostId, Span, Time};
use smallvec::SmallVec;

/// How a host serves, and its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serve {
    /// Maximum number of chunks that are being sent at a time, to all peers; 0 for no limit, as SWP2P's sender threads,
    /// one for each peer, have none.
    pub uploads: u16,
    /// Maximum number of chunks that are being sent to one peer at a time. With two, the connection never idles between
    /// chunks.
    pub per_peer: u8,
    /// Maximum number of peers with queued chunks.
    pub peers: u16,
    /// Maximum number of chunks queued for one peer.
    pub queue: u16,
    /// Maximum number of requests that wait for chunks which have not arrived.
    pub waiting: u16,
    /// How long a request waits for a chunk before it is returned.
    pub wait: Span,
}

/// Rackweave's choice, found by the sweep of [`super::client::Config`]: with one chunk for each peer at a time a chunk completes
/// earlier, and can be served on; two cost 7 % of the time at a simultaneous start.
impl Default for Serve {
    fn default() -> Self {
        Self {
            uploads: 8,
            per_peer: 1,
            peers: 1024,
            queue: 1024,
            waiting: 4096,
            wait: Span::from_secs(6),
        }
    }
}

/// A chunk of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkOf {
    /// The image.
    pub image: u32,
    /// The number of the chunk in it.
    pub chunk: u32,
}

/// A chunk to be sent to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    /// The host that asked for it.
    pub peer: HostId,
    /// The chunk.
    pub what: ChunkOf,
}

/// Requests in the order of their arrival, each once, found by peer or chunk in logarithmic time: whoever floods a host with requests must not
/// have it search long lists.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    /// The number of the next request.
    next: u64,
    by_chunk: BTreeMap<(ChunkOf, u64), HostId>,
    numbers: BTreeMap<(HostId, ChunkOf), u64>,
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    pub(super) fn contains(&self, peer: HostId, what: ChunkOf) -> bool {
        self.numbers.contains_key(&(peer, what))
    }

    /// Adds a request. Returns its number, or `None` if it is there already.
    pub(super) fn insert(&mut self, peer: HostId, what: ChunkOf) -> Option<u64> {
        let number = self.next;
        match self.numbers.entry((peer, what)) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(entry) => entry.insert(number),
        };
        self.next += 1;
        self.by_chunk.insert((what, number), peer);
        Some(number)
    }

    /// Removes a request. Returns its number.
    pub(super) fn remove(&mut self, peer: HostId, what: ChunkOf) -> Option<u64> {
        let number = self.numbers.remove(&(peer, what))?;
        self.by_chunk.remove(&(what, number));
        Some(number)
    }

    /// Removes all requests of a chunk, and returns who made them with the numbers, in order.
    pub(super) fn take_chunk(&mut self, what: ChunkOf) -> SmallVec<[(u64, HostId); 4]> {
        let range = (what, 0)..=(what, u64::MAX);
        let found = self.by_chunk.range(range).map(|((_, number), peer)| (*number, *peer));
        let found: SmallVec<[(u64, HostId); 4]> = found.collect();
        for (_, peer) in &found {
            self.remove(*peer, what);
        }
        found
    }

    /// Removes all requests of a peer, and returns their numbers.
    pub(super) fn forget(&mut self, peer: HostId) -> Vec<u64> {
        let most = ChunkOf { image: u32::MAX, chunk: u32::MAX };
        let range = (peer, ChunkOf { image: 0, chunk: 0 })..=(peer, most);
        let all: Vec<ChunkOf> = self.numbers.range(range).map(|((_, what), _)| *what).collect();
        all.into_iter().filter_map(|what| self.remove(peer, what)).collect()
    }

    /// Whether a peer has requests.
    fn has(&self, peer: HostId) -> bool {
        let least = ChunkOf { image: 0, chunk: 0 };
        let next = self.numbers.range((peer, least)..).next();
        next.is_some_and(|((first, _), _)| *first == peer)
    }

    pub(super) fn clear(&mut self) {
        self.by_chunk.clear();
        self.numbers.clear();
    }
}

#[derive(Clone, Debug, Default)]
struct Peer {
    /// The queued chunks by the order of their requests.
    queue: BTreeMap<u64, ChunkOf>,
    sending: SmallVec<[ChunkOf; 2]>,
    /// Those of them that are not counted: they make no progress, or are ending.
    uncounted: SmallVec<[ChunkOf; 2]>,
    /// The one whose last bytes are on their way.
    ending: Option<ChunkOf>,
    /// The one after that, if its last bytes are on their way too.
    ending_next: Option<ChunkOf>,
    /// Whether it is in the ring.
    is_ready: bool,
}

/// What speaks against serving a peer.
#[derive(Clone, Copy, Debug, Default)]
struct Unwanted {
    /// Chunks that it did not want, minus chunks that it did.
    excess: u32,
    /// How often this was too many.
    times: u32,
    /// Chunks in a row that it did want.
    good: u32,
    /// It gets nothing until then.
    until: Time,
}

/// After this many more chunks that a peer had already than others, requests in its name are ignored for a time. Requests that were repeated lead
/// to a few such chunks; more means that somebody else asks in its name.
const MOST_UNWANTED: u32 = 8;
/// After this many chunks in a row that a peer wanted, the next time is half as long.
const MANY_GOOD: u32 = 32;
/// How long they are ignored at first; each time doubles it, up to 64 s. The peer's own requests are repeated elsewhere meanwhile.
const IGNORE: Span = Span::from_secs(1);
const MOST_DOUBLED: u32 = 6;

/// The requests of all peers.
#[derive(Clone, Debug)]
pub(super) struct Serving {
    config: Serve,
    peers: BTreeMap<HostId, Peer>,
    /// The queues of all peers.
    queued: Requests,
    /// The peers that have a queued chunk and may be sent one, in turn.
    ring: VecDeque<HostId>,
    /// The number of chunks that are being sent, without uncounted ones.
    sending: usize,
    waiting: Requests,
    /// When requests have waited long enough, by their number.
    expiries: BTreeMap<u64, (Time, ChunkOf, HostId)>,
    unwanted: BTreeMap<HostId, Unwanted>,
}

impl Serving {
    pub(super) fn new(config: Serve) -> Self {
        Self {
            config,
            peers: BTreeMap::new(),
            queued: Requests::default(),
            ring: VecDeque::new(),
            sending: 0,
            waiting: Requests::default(),
            expiries: BTreeMap::new(),
            unwanted: BTreeMap::new(),
        }
    }

    /// Queues a chunk that is here. Returns false if a bound refuses it; a chunk that is queued already is not queued
    /// twice.
    pub(super) fn push(&mut self, peer: HostId, what: ChunkOf) -> bool {
        let is_known = self.peers.contains_key(&peer);
        if !is_known && self.peers.len() >= usize::from(self.config.peers) {
            return false;
        }
        let entry = self.peers.entry(peer).or_default();
        if entry.sending.contains(&what) || self.queued.contains(peer, what) {
            return true;
        }
        if entry.queue.len() >= usize::from(self.config.queue) {
            return false;
        }
        if let Some(number) = self.queued.insert(peer, what) {
            entry.queue.insert(number, what);
        }
        self.make_ready(peer);
        true
    }

    /// Takes a chunk out of a peer's queue; false if it is not in it.
    pub(super) fn take(&mut self, peer: HostId, what: ChunkOf) -> bool {
        let Some(number) = self.queued.remove(peer, what) else { return false };
        if let Some(entry) = self.peers.get_mut(&peer) {
            entry.queue.remove(&number);
            if entry.queue.is_empty() && entry.sending.is_empty() && !entry.is_ready {
                self.peers.remove(&peer);
            }
        }
        true
    }

    /// Lets a request wait for a chunk. Returns false if a bound refuses it.
    pub(super) fn wait(&mut self, now: Time, peer: HostId, what: ChunkOf) -> bool {
        if self.waiting.contains(peer, what) {
            return true;
        }
        if self.waiting.len() >= usize::from(self.config.waiting) {
            return false;
        }
        if let Some(number) = self.waiting.insert(peer, what) {
            let until = now.saturating_add(self.config.wait);
            self.expiries.insert(number, (until, what, peer));
        }
        true
    }

    /// Whether a peer's requests wait, are queued, or are being served.
    pub(super) fn has(&self, peer: HostId) -> bool {
        self.peers.contains_key(&peer) || self.waiting.has(peer)
    }

    /// A chunk has arrived: queues it for the peers that wait for it. Returns those for which there is no room.
    pub(super) fn arrived(&mut self, what: ChunkOf) -> SmallVec<[HostId; 4]> {
        let mut refused = SmallVec::new();
        for (number, peer) in self.waiting.take_chunk(what) {
            self.expiries.remove(&number);
            if !self.push(peer, what) {
                refused.push(peer);
            }
        }
        refused
    }

    /// Returns a request that has waited too long, and forgets it.
    pub(super) fn expired(&mut self, now: Time) -> Option<Send> {
        let (_, (at, ..)) = self.expiries.first_key_value()?;
        if *at > now {
            return None;
        }
        let (_, (_, what, peer)) = self.expiries.pop_first()?;
        self.waiting.remove(peer, what);
        Some(Send { peer, what })
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.expiries.first_key_value().map(|(_, (at, ..))| *at)
    }

    /// Returns the next chunk to send, by turns of the peers.
    pub(super) fn poll(&mut self) -> Option<Send> {
        let most = usize::from(self.config.uploads);
        if most > 0 && self.sending >= most {
            return None;
        }
        loop {
            let peer = self.ring.pop_front()?;
            let Some(entry) = self.peers.get_mut(&peer) else { continue };
            entry.is_ready = false;
            let Some((_, what)) = entry.queue.pop_first() else {
                if entry.sending.is_empty() {
                    self.peers.remove(&peer);
                }
                continue;
            };
            self.queued.remove(peer, what);
            entry.sending.push(what);
            self.sending += 1;
            self.make_ready(peer);
            return Some(Send { peer, what });
        }
    }

    fn make_ready(&mut self, peer: HostId) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let sending = entry.sending.len() - usize::from(entry.ending.is_some());
        let has_room = sending < usize::from(self.config.per_peer.max(1));
        if !entry.is_ready && has_room && !entry.queue.is_empty() {
            entry.is_ready = true;
            self.ring.push_back(peer);
        }
    }

    /// A peer has received a chunk. Returns whether it was being sent.
    pub(super) fn sent(&mut self, peer: HostId, what: ChunkOf) -> bool {
        let Some(entry) = self.peers.get_mut(&peer) else { return false };
        let Some(at) = entry.sending.iter().position(|other| *other == what) else { return false };
        entry.sending.remove(at);
        match entry.uncounted.iter().position(|other| *other == what) {
            Some(at) => drop(entry.uncounted.remove(at)),
            None => self.sending -= 1,
        }
        let mut next = None;
        if entry.ending == Some(what) {
            (entry.ending, next) = (None, entry.ending_next.take());
        }
        entry.ending_next = entry.ending_next.filter(|other| *other != what);
        if entry.sending.is_empty() && entry.queue.is_empty() {
            self.peers.remove(&peer);
        } else {
            self.make_ready(peer);
        }
        if let Some(next) = next {
            self.ending(peer, next);
        }
        true
    }

    /// A chunk that was sent to a peer was wanted there, or not.
    pub(super) fn judged(&mut self, now: Time, peer: HostId, is_wanted: bool) {
        if is_wanted {
            let Some(entry) = self.unwanted.get_mut(&peer) else { return };
            entry.excess = entry.excess.saturating_sub(1);
            entry.good += 1;
            if entry.good >= MANY_GOOD {
                (entry.good, entry.times) = (0, entry.times.saturating_sub(1));
            }
            if (entry.excess, entry.times) == (0, 0) {
                self.unwanted.remove(&peer);
            }
            return;
        }
        if !self.unwanted.contains_key(&peer)
            && self.unwanted.len() >= usize::from(self.config.peers)
        {
            self.unwanted.pop_first();
        }
        let entry = self.unwanted.entry(peer).or_default();
        (entry.excess, entry.good) = (entry.excess + 1, 0);
        if entry.excess >= MOST_UNWANTED {
            let doubled = entry.times.min(MOST_DOUBLED);
            entry.until = now.saturating_add(IGNORE * (1 << doubled));
            (entry.excess, entry.times) = (0, entry.times.saturating_add(1));
            self.unqueue(peer);
        }
    }

    /// Whether requests in the name of a peer are ignored at present.
    pub(super) fn ignores(&self, now: Time, peer: HostId) -> bool {
        self.unwanted.get(&peer).is_some_and(|entry| now < entry.until)
    }

    /// The peer takes no bytes of a chunk at present. Until it has the chunk, another one may be sent in its place: a few peers that are
    /// slow, or do not answer at all, must not use up [`Serve::uploads`].
    pub(super) fn stalled(&mut self, peer: HostId, what: ChunkOf) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        if entry.sending.contains(&what) && !entry.uncounted.contains(&what) {
            entry.uncounted.push(what);
            self.sending -= 1;
        }
    }

    /// The last bytes of a chunk are on their way to a peer. The next one may be sent to it before the peer has replied, so that the path
    /// does not idle meanwhile. One chunk of a peer is ending at a time.
    pub(super) fn ending(&mut self, peer: HostId, what: ChunkOf) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        if !entry.sending.contains(&what) {
            return;
        }
        if entry.ending.is_some() {
            entry.ending_next = Some(what);
            return;
        }
        entry.ending = Some(what);
        self.stalled(peer, what);
        self.make_ready(peer);
    }

    /// Forgets what is queued for a peer, and what it waits for.
    fn unqueue(&mut self, peer: HostId) {
        self.queued.forget(peer);
        if let Some(entry) = self.peers.get_mut(&peer) {
            entry.queue.clear();
        }
        for number in self.waiting.forget(peer) {
            self.expiries.remove(&number);
        }
    }

    /// Forgets a peer that is gone.
    pub(super) fn forget(&mut self, peer: HostId) {
        self.unqueue(peer);
        if let Some(entry) = self.peers.remove(&peer) {
            self.sending -= entry.sending.len() - entry.uncounted.len();
            if entry.is_ready {
                self.ring.retain(|other| *other != peer);
            }
        }
    }

    /// Takes out all requests that are not being sent.
    pub(super) fn drain(&mut self) -> Vec<Send> {
        let mut all = Vec::new();
        for (peer, entry) in &mut self.peers {
            let queue = std::mem::take(&mut entry.queue).into_values();
            all.extend(queue.map(|what| Send { peer: *peer, what }));
            entry.is_ready = false;
        }
        self.queued.clear();
        self.ring.clear();
        self.peers.retain(|_, entry| !entry.sending.is_empty());
        let waiting = &self.waiting.by_chunk;
        all.extend(waiting.iter().map(|((what, _), peer)| Send { peer: *peer, what: *what }));
        self.waiting.clear();
        self.expiries.clear();
        all
    }

    /// The number of chunks that are queued, waited for or being sent.
    pub(super) fn len(&self) -> usize {
        self.queued.len() + self.waiting.len() + self.sending
    }

    /// Returns whether nothing is being sent, except to peers that make no progress.
    pub(super) fn is_idle(&self) -> bool {
        self.sending == 0 && self.peers.values().all(|peer| peer.ending.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(chunk: u32) -> ChunkOf {
        ChunkOf { image: 1, chunk }
    }

    fn polled(serving: &mut Serving) -> Vec<(u32, u32)> {
        std::iter::from_fn(|| serving.poll().map(|send| (send.peer.0, send.what.chunk))).collect()
    }

    #[test]
    fn peers_take_turns_and_none_has_more_than_its_share_in_flight() {
        let mut serving = Serving::new(Serve { per_peer: 2, ..Serve::default() });
        for number in 0..3 {
            assert!(serving.push(HostId(1), chunk(number)));
        }
        assert!(serving.push(HostId(1), chunk(1)), "queued already");
        assert!(serving.push(HostId(2), chunk(0)));
        assert_eq!(polled(&mut serving), [(1, 0), (2, 0), (1, 1)]);
        assert!(serving.push(HostId(1), chunk(0)), "being sent");
        assert!(serving.sent(HostId(1), chunk(0)) && !serving.sent(HostId(1), chunk(0)));
        assert_eq!(polled(&mut serving), [(1, 2)]);
        assert_eq!(serving.len(), 3);
        serving.forget(HostId(1));
        serving.sent(HostId(2), chunk(0));
        assert!(serving.is_idle() && serving.peers.is_empty() && serving.ring.is_empty());
    }

    #[test]
    fn uploads_are_limited_for_all_peers_together() {
        let mut serving = Serving::new(Serve { uploads: 2, per_peer: 2, ..Serve::default() });
        for peer in 1..4 {
            serving.push(HostId(peer), chunk(0));
            serving.push(HostId(peer), chunk(1));
        }
        assert_eq!(polled(&mut serving), [(1, 0), (2, 0)]);
        serving.sent(HostId(2), chunk(0));
        assert_eq!(polled(&mut serving), [(3, 0)]);
        serving.sent(HostId(1), chunk(0));
        assert_eq!(polled(&mut serving), [(1, 1)]);
    }

    #[test]
    fn peers_that_take_nothing_do_not_use_up_the_uploads() {
        let mut serving = Serving::new(Serve { uploads: 2, ..Serve::default() });
        for peer in 1..5 {
            serving.push(HostId(peer), chunk(0));
        }
        assert_eq!(polled(&mut serving), [(1, 0), (2, 0)]);
        serving.stalled(HostId(1), chunk(0));
        serving.stalled(HostId(1), chunk(0));
        serving.stalled(HostId(1), chunk(7));
        assert_eq!(polled(&mut serving), [(3, 0)]);
        assert!(serving.sent(HostId(1), chunk(0)));
        assert_eq!(polled(&mut serving), [], "two others are being sent to");
        serving.stalled(HostId(2), chunk(0));
        serving.forget(HostId(2));
        assert_eq!(polled(&mut serving), [(4, 0)]);
        assert!(serving.sent(HostId(3), chunk(0)) && serving.sent(HostId(4), chunk(0)));
        assert!(serving.is_idle() && serving.peers.is_empty());
    }

    #[test]
    fn the_next_chunk_begins_while_one_is_ending() {
        let mut serving = Serving::new(Serve { uploads: 1, ..Serve::default() });
        for number in 0..3 {
            serving.push(HostId(1), chunk(number));
        }
        assert_eq!(polled(&mut serving), [(1, 0)]);
        serving.ending(HostId(1), chunk(1));
        assert_eq!(polled(&mut serving), [], "that one is not being sent");
        serving.ending(HostId(1), chunk(0));
        assert_eq!(polled(&mut serving), [(1, 1)]);
        serving.ending(HostId(1), chunk(1));
        assert_eq!(polled(&mut serving), [], "two wait for replies");
        assert!(serving.sent(HostId(1), chunk(0)));
        assert_eq!(polled(&mut serving), [(1, 2)], "the other one was ending too");
        serving.push(HostId(2), chunk(0));
        serving.forget(HostId(1));
        assert_eq!(polled(&mut serving), [(2, 0)]);
        assert!(serving.sent(HostId(2), chunk(0)));
        assert!(serving.is_idle() && serving.peers.is_empty());
    }

    #[test]
    fn requests_wait_for_a_chunk_and_are_returned_in_time() {
        let mut serving = Serving::new(Serve { waiting: 3, ..Serve::default() });
        for peer in [1, 2] {
            assert!(serving.wait(Time::ZERO, HostId(peer), chunk(7)));
        }
        assert!(serving.wait(Time::from_ticks(5), HostId(1), chunk(8)));
        assert!(serving.wait(Time::from_ticks(5), HostId(1), chunk(8)), "waits already");
        assert!(!serving.wait(Time::from_ticks(5), HostId(1), chunk(9)), "three are the most");
        assert_eq!(serving.arrived(chunk(7)).len(), 0);
        assert_eq!(polled(&mut serving), [(1, 7), (2, 7)]);
        let late = Time::from_ticks(5) + Span::from_secs(6);
        assert_eq!(serving.expired(Time::from_ticks(late.ticks() - 1)), None);
        assert_eq!(serving.expired(late), Some(Send { peer: HostId(1), what: chunk(8) }));
        assert_eq!((serving.expired(late), serving.waiting.len()), (None, 0));
        assert!(serving.expiries.is_empty());
    }

    #[test]
    fn queues_are_bounded() {
        let mut serving = Serving::new(Serve { peers: 2, queue: 2, ..Serve::default() });
        assert!(serving.push(HostId(1), chunk(0)) && serving.push(HostId(1), chunk(1)));
        assert!(!serving.push(HostId(1), chunk(2)));
        assert!(serving.push(HostId(2), chunk(0)) && !serving.push(HostId(3), chunk(0)));
        assert_eq!(serving.drain().len(), 3);
        assert_eq!(serving.len(), 0);
    }

    #[test]
    fn a_peer_that_wants_nothing_is_ignored_for_longer_each_time() {
        let mut serving = Serving::new(Serve { uploads: 0, ..Serve::default() });
        let mut now = Time::ZERO;
        for seconds in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert!(!serving.ignores(now, HostId(1)));
            for number in 0..MOST_UNWANTED {
                serving.push(HostId(1), chunk(number));
                assert!(!serving.ignores(now, HostId(1)));
                let sent = serving.poll().unwrap();
                serving.sent(HostId(1), sent.what);
                serving.push(HostId(1), chunk(number + 100));
                serving.wait(now, HostId(1), chunk(number + 200));
                serving.judged(now, HostId(1), false);
            }
            assert_eq!(serving.len(), 0, "nothing is left of what was asked in its name");
            assert!(!serving.ignores(now, HostId(2)));
            now += Span::from_secs(seconds);
            assert!(serving.ignores(Time::from_ticks(now.ticks() - 1), HostId(1)), "{seconds}");
        }
        // Chunks that it wants among them count for it, and in the end all is forgotten.
        (1..MOST_UNWANTED).for_each(|_| serving.judged(now, HostId(1), false));
        serving.judged(now, HostId(1), true);
        serving.judged(now, HostId(1), false);
        assert!(!serving.ignores(now, HostId(1)));
        serving.judged(now, HostId(1), false);
        assert!(serving.ignores(now, HostId(1)));
        (0..1000).for_each(|_| serving.judged(now, HostId(1), true));
        assert!(serving.unwanted.is_empty());
    }

    #[test]
    fn what_is_taken_out_is_queued_again_at_the_end() {
        let mut serving = Serving::new(Serve { queue: 3, per_peer: 9, ..Serve::default() });
        (0..3).for_each(|number| assert!(serving.push(HostId(1), chunk(number))));
        for _ in 0..100 {
            assert!(serving.take(HostId(1), chunk(0)) && !serving.take(HostId(1), chunk(0)));
            assert!(serving.push(HostId(1), chunk(0)) && !serving.push(HostId(1), chunk(9)));
        }
        assert_eq!(polled(&mut serving), [(1, 1), (1, 2), (1, 0)]);
        assert!(serving.queued.is_empty());
    }
}
