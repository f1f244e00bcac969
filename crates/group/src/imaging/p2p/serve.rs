//! What a host does with the requests that it serves: a queue for each requester, from which chunks are sent by turns, and
//! the requests that wait for chunks which have not arrived here yet.

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

/// The choice is ours, found by the sweep of [`super::client::Config`]: with one chunk for each peer at a time a chunk completes
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

#[derive(Clone, Debug, Default)]
struct Peer {
    queue: VecDeque<ChunkOf>,
    sending: SmallVec<[ChunkOf; 2]>,
    /// Those of them that make no progress, and are not counted.
    stalled: SmallVec<[ChunkOf; 2]>,
    /// Whether it is in the ring.
    is_ready: bool,
}

/// The requests of all peers.
#[derive(Clone, Debug)]
pub(super) struct Serving {
    config: Serve,
    peers: BTreeMap<HostId, Peer>,
    /// The peers that have a queued chunk and may be sent one, in turn.
    ring: VecDeque<HostId>,
    /// The number of chunks that are being sent, without those that are stalled.
    sending: usize,
    waiting: BTreeMap<ChunkOf, SmallVec<[HostId; 4]>>,
    /// When requests have waited long enough. Entries of requests that no longer wait are skipped.
    expiries: VecDeque<(Time, ChunkOf, HostId)>,
    waits: usize,
}

impl Serving {
    pub(super) const fn new(config: Serve) -> Self {
        Self {
            config,
            peers: BTreeMap::new(),
            ring: VecDeque::new(),
            sending: 0,
            waiting: BTreeMap::new(),
            expiries: VecDeque::new(),
            waits: 0,
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
        if entry.sending.contains(&what) || entry.queue.contains(&what) {
            return true;
        }
        if entry.queue.len() >= usize::from(self.config.queue) {
            return false;
        }
        entry.queue.push_back(what);
        self.make_ready(peer);
        true
    }

    /// Takes a chunk out of a peer's queue; false if it is not in it.
    pub(super) fn take(&mut self, peer: HostId, what: ChunkOf) -> bool {
        let Some(entry) = self.peers.get_mut(&peer) else { return false };
        let Some(at) = entry.queue.iter().position(|other| *other == what) else { return false };
        entry.queue.remove(at);
        if entry.queue.is_empty() && entry.sending.is_empty() && !entry.is_ready {
            self.peers.remove(&peer);
        }
        true
    }

    /// Lets a request wait for a chunk. Returns false if a bound refuses it.
    pub(super) fn wait(&mut self, now: Time, peer: HostId, what: ChunkOf) -> bool {
        if self.waiting.get(&what).is_some_and(|peers| peers.contains(&peer)) {
            return true;
        }
        if self.waits >= usize::from(self.config.waiting) {
            return false;
        }
        self.waiting.entry(what).or_default().push(peer);
        self.waits += 1;
        self.expiries.push_back((now.saturating_add(self.config.wait), what, peer));
        true
    }

    /// A chunk has arrived: queues it for the peers that wait for it. Returns those for which there is no room.
    pub(super) fn arrived(&mut self, what: ChunkOf) -> SmallVec<[HostId; 4]> {
        let peers = self.waiting.remove(&what).unwrap_or_default();
        self.waits -= peers.len();
        peers.into_iter().filter(|peer| !self.push(*peer, what)).collect()
    }

    /// Returns a request that has waited too long, and forgets it.
    pub(super) fn expired(&mut self, now: Time) -> Option<Send> {
        while let Some((at, what, peer)) = self.expiries.front().copied() {
            if at > now {
                return None;
            }
            self.expiries.pop_front();
            if self.stop_waiting(what, peer) {
                return Some(Send { peer, what });
            }
        }
        None
    }

    fn stop_waiting(&mut self, what: ChunkOf, peer: HostId) -> bool {
        let Some(peers) = self.waiting.get_mut(&what) else { return false };
        let before = peers.len();
        peers.retain(|other| *other != peer);
        let stopped = before > peers.len();
        if peers.is_empty() {
            self.waiting.remove(&what);
        }
        self.waits -= usize::from(stopped);
        stopped
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.expiries.front().map(|(at, ..)| *at)
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
            let Some(what) = entry.queue.pop_front() else {
                if entry.sending.is_empty() {
                    self.peers.remove(&peer);
                }
                continue;
            };
            entry.sending.push(what);
            self.sending += 1;
            self.make_ready(peer);
            return Some(Send { peer, what });
        }
    }

    fn make_ready(&mut self, peer: HostId) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let has_room = entry.sending.len() < usize::from(self.config.per_peer.max(1));
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
        match entry.stalled.iter().position(|other| *other == what) {
            Some(at) => drop(entry.stalled.remove(at)),
            None => self.sending -= 1,
        }
        if entry.sending.is_empty() && entry.queue.is_empty() {
            self.peers.remove(&peer);
        } else {
            self.make_ready(peer);
        }
        true
    }

    /// The peer takes no bytes of a chunk at present. Until it has the chunk, another one may be sent in its place: a few peers that are
    /// slow, or do not answer at all, must not use up [`Serve::uploads`].
    pub(super) fn stalled(&mut self, peer: HostId, what: ChunkOf) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        if entry.sending.contains(&what) && !entry.stalled.contains(&what) {
            entry.stalled.push(what);
            self.sending -= 1;
        }
    }

    /// Forgets a peer that is gone.
    pub(super) fn forget(&mut self, peer: HostId) {
        if let Some(entry) = self.peers.remove(&peer) {
            self.sending -= entry.sending.len() - entry.stalled.len();
            if entry.is_ready {
                self.ring.retain(|other| *other != peer);
            }
        }
        let waits: Vec<ChunkOf> = self.waiting.keys().copied().collect();
        for what in waits {
            self.stop_waiting(what, peer);
        }
    }

    /// Takes out all requests that are not being sent.
    pub(super) fn drain(&mut self) -> Vec<Send> {
        let mut all = Vec::new();
        for (peer, entry) in &mut self.peers {
            all.extend(entry.queue.drain(..).map(|what| Send { peer: *peer, what }));
            entry.is_ready = false;
        }
        self.ring.clear();
        self.peers.retain(|_, entry| !entry.sending.is_empty());
        for (what, peers) in std::mem::take(&mut self.waiting) {
            all.extend(peers.into_iter().map(|peer| Send { peer, what }));
        }
        self.expiries.clear();
        self.waits = 0;
        all
    }

    /// The number of chunks that are queued, waited for or being sent.
    pub(super) fn len(&self) -> usize {
        let queued: usize = self.peers.values().map(|peer| peer.queue.len()).sum();
        queued + self.waits + self.sending
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.sending == 0
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
    fn requests_wait_for_a_chunk_and_are_returned_in_time() {
        let mut serving = Serving::new(Serve { waiting: 3, ..Serve::default() });
        for peer in [1, 2] {
            assert!(serving.wait(Time::ZERO, HostId(peer), chunk(7)));
        }
        assert!(serving.wait(Time(5), HostId(1), chunk(8)));
        assert!(serving.wait(Time(5), HostId(1), chunk(8)), "waits already");
        assert!(!serving.wait(Time(5), HostId(1), chunk(9)), "three are the most");
        assert_eq!(serving.arrived(chunk(7)).len(), 0);
        assert_eq!(polled(&mut serving), [(1, 7), (2, 7)]);
        let late = Time(5) + Span::from_secs(6);
        assert_eq!(serving.expired(Time(late.0 - 1)), None);
        assert_eq!(serving.expired(late), Some(Send { peer: HostId(1), what: chunk(8) }));
        assert_eq!((serving.expired(late), serving.waits), (None, 0));
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
}
