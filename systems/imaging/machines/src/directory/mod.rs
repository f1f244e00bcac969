//! The directory of chunks: which clients have each chunk of each image, which clients are about to have one, and the
//! choice of a holder for a request.
//!
//! The switch program and a server without a switch's help use the same directory. Its state is soft: clients refresh
//! it with reports, and a directory that has lost everything is complete again after one report of each client.
//!
//! - *Holders* have reported a chunk (SWP2P's chunk availability database).
//! - *Pending holders* have asked for a chunk, and the request was passed to the server or to a holder. Rackweave's
//!   choice: a request that is redirected to a pending holder waits there until the chunk has arrived, so that clients
//!   which start together do not each fetch the chunk from the server.
//! - *Load* is the number of requests that were redirected to a holder and not yet covered by a report of the requester.
//!
//! - *Accusations*: who has received a damaged chunk is not sent to its holder again, and if two clients say so, nobody is, for
//!   [`Config::accusation`]. For others, only what a client says counts that has reported chunks which it had
//!   requested, and about at most two holders at a time. So two clients that lie leave out at most two honest holders,
//!   for as long as they go on lying.
//! - *Late holders*: a request that is repeated reports that its holder was silent. The requester is not sent there for a time that doubles
//!   ([`Config::late`]), until a report covers a request that was. It is not held against a holder by others: whoever lies
//!   about a holder loses it for itself.
//!
//! A set of clients is a row of 64-bit words, so that a choice by round robin reads `clients / 64` words. Forged reports
//! and requests cannot make the directory grow beyond [`Config::most_bytes`].

mod choice;
mod image;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use rackweave_core::{HostId, Span, Time};

use self::image::Image;

/// The rule by which one of several holders is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Holders take turns, as in SWP2P (slides, "Chunk Availability Database").
    RoundRobin,
    /// The holder with the fewest redirected requests that are not yet covered by a report, and of several the one that has the fewest
    /// chunks; equals take turns.
    #[default]
    LeastLoaded,
}

/// What a directory may do, and its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How a holder is chosen.
    pub policy: Policy,
    /// How many pending holders may follow one another before one that has the chunk, or the server. 0 is SWP2P's
    /// behaviour: only clients that have reported a chunk are chosen. With 1 behind a switch, which cannot keep requests until later, the
    /// clients that ask first serve all others, and eight clients that start together take 1.40 times the ideal time in place of 1.14.
    pub pending: u8,
    /// If set, hosts are numbered by rack, with this many in each, and holders in the requester's rack are preferred.
    pub hosts_per_rack: Option<u32>,
    /// A client from which nothing has arrived for this time is not chosen and may be forgotten.
    pub silence: Span,
    /// A request with this many earlier tries goes to the server.
    pub max_tries: u8,
    /// A holder is not chosen while this many requesters say that they have received a damaged chunk from it.
    pub accusers: u8,
    /// How long such a statement counts.
    pub accusation: Span,
    /// A requester whose requests to a holder are repeated is not sent there for this time, which doubles each time, up to 64 times. 0 for
    /// no such rule: then only the repeated request itself goes elsewhere.
    pub late: Span,
    /// Maximum number of images.
    pub images: u16,
    /// Maximum number of clients of one image.
    pub clients: u16,
    /// Maximum number of chunks of one image.
    pub chunks: u32,
    /// Maximum number of requests of one client that are remembered.
    pub requests: u16,
    /// Maximum memory of all bitmaps, in bytes.
    pub most_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::LeastLoaded,
            pending: 2,
            hosts_per_rack: None,
            silence: Span::from_secs(5),
            max_tries: 3,
            accusers: 2,
            accusation: Span::from_secs(60),
            late: Span::from_secs(1),
            images: 64,
            clients: 1024,
            chunks: 1 << 20,
            requests: 512,
            most_bytes: 256 << 20,
        }
    }
}

/// A request for consecutive chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The image.
    pub image: u32,
    /// The client that wants the chunks.
    pub from: HostId,
    /// The first chunk.
    pub first: u32,
    /// The number of chunks.
    pub count: u32,
    /// How often the client has asked for them before.
    pub tries: u8,
}

/// Consecutive chunks of a request that go to the same holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first chunk.
    pub first: u32,
    /// The number of chunks.
    pub count: u32,
    /// The holder; `None` is the server.
    pub to: Option<HostId>,
}

/// Counts of what a directory has decided, in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Chunks redirected to a client that has them.
    pub to_holders: u64,
    /// Chunks redirected to a client that is about to have them.
    pub to_pending: u64,
    /// Chunks left to the server.
    pub to_server: u64,
    /// Chunks that a holder returned because it does not have them.
    pub returned: u64,
    /// Reports, requests and joins that were not recorded because a bound was reached.
    pub refused: u64,
    /// Clients that were forgotten because they were silent.
    pub silent: u64,
    /// Holders that are no longer chosen, because requesters received damaged chunks from them.
    pub barred: u64,
}

/// What becomes of chunks that no client can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unserved {
    /// The server sends them at once.
    ByServer,
    /// The server decides later.
    Later,
}

/// Who has which chunk. See the [module](self).
#[derive(Clone, Debug)]
pub struct Directory {
    config: Config,
    images: BTreeMap<u32, Image>,
    bytes: usize,
    /// Chunks that the last report has added.
    new_chunks: Vec<u32>,
    counters: Counters,
}

impl Directory {
    /// Creates an empty directory.
    #[must_use]
    pub const fn new(config: Config) -> Self {
        let counters = Counters {
            to_holders: 0,
            to_pending: 0,
            to_server: 0,
            returned: 0,
            refused: 0,
            silent: 0,
            barred: 0,
        };
        Self { config, images: BTreeMap::new(), bytes: 0, new_chunks: Vec::new(), counters }
    }

    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Returns what has been decided so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the memory of all bitmaps, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the clients of an image that have reported a chunk, ordered by slot.
    #[must_use]
    pub fn holders(&self, image: u32, chunk: u32) -> Vec<HostId> {
        self.images.get(&image).map_or(Vec::new(), |image| image.holders(chunk))
    }

    /// Returns the number of clients of all images.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.images.values().map(Image::clients).sum()
    }

    /// Records the chunks that a client has: `map` is the window that begins at chunk `window * 8 * map.len()`, with the
    /// chunk `8 * byte + bit` in each byte's bits, lowest first. A report is the whole state of its window, so that a
    /// lost one is healed by the next. Returns false if a bound refuses it.
    pub fn report(&mut self, now: Time, image: u32, from: HostId, window: u32, map: &[u8]) -> bool {
        self.new_chunks.clear();
        let chunks_per_window = map.len() as u64 * 8;
        let first = u64::from(window) * chunks_per_window;
        let last = map
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(first, |at| first + at as u64 * 8 + u64::from(7 - map[at].leading_zeros()));
        let is_aligned = map.len().is_multiple_of(8);
        if !is_aligned || last >= u64::from(self.config.chunks) {
            self.counters.refused += 1;
            return false;
        }
        let Some(slot) = self.client(now, image, from) else { return false };
        let Some(image) = self.images.get_mut(&image) else { return false };
        let budget = self.config.most_bytes.saturating_sub(self.bytes);
        let Some(grown) = image.grow(slot, last as u32, budget) else {
            self.counters.refused += 1;
            return false;
        };
        self.bytes += grown;
        image.report(slot, (first / 64) as usize, map, &mut self.new_chunks);
        true
    }

    /// Returns the chunks that the last report has added to what its client has.
    #[must_use]
    pub fn new_chunks(&self) -> &[u32] {
        &self.new_chunks
    }

    /// Forgets a client of an image.
    pub fn leave(&mut self, image: u32, from: HostId) {
        let Some(entry) = self.images.get_mut(&image) else { return };
        if let Some(slot) = entry.slot(from) {
            self.bytes -= entry.remove(slot);
        }
        self.drop_if_empty(image);
    }

    /// A client may not serve others: it is chosen neither for what it has nor for what it is about to have, until it leaves.
    pub fn bar(&mut self, host: HostId) {
        for image in self.images.values_mut() {
            image.bar(host);
        }
    }

    /// Records that a client joins an image, without a chunk: one that has crashed and returns has lost its memory.
    /// Returns false if a bound refuses it.
    pub fn join(&mut self, now: Time, image: u32, from: HostId) -> bool {
        self.leave(image, from);
        self.client(now, image, from).is_some()
    }

    /// Chooses a holder for each chunk of a request, and passes runs of chunks with the same one to `run`, in order. A
    /// holder serves as many consecutive chunks as it can, so that a batch leads to few messages.
    pub fn choose(&mut self, now: Time, ask: Ask, run: impl FnMut(Run)) {
        self.choose_as(now, ask, Unserved::ByServer, ask.tries > 0, run);
    }

    /// Chooses holders like [`Self::choose`], for a server that will not send the other chunks at once: it calls
    /// [`Self::sending`] when it does. Until then the client is not a pending holder.
    pub fn choose_now(&mut self, now: Time, ask: Ask, run: impl FnMut(Run)) {
        self.choose_as(now, ask, Unserved::Later, ask.tries > 0, run);
    }

    /// Records that the server sends a chunk to a client.
    pub fn sending(&mut self, now: Time, image: u32, to: HostId, chunk: u32) {
        self.counters.to_server += 1;
        let most = self.config.requests;
        if let Some(slot) = self.client(now, image, to)
            && let Some(image) = self.images.get_mut(&image)
        {
            image.assign(slot, chunk, None, most);
        }
    }

    fn choose_as(
        &mut self,
        now: Time,
        ask: Ask,
        unserved: Unserved,
        is_late: bool,
        mut run: impl FnMut(Run),
    ) {
        let Ask { first, tries, .. } = ask;
        let count = ask.count.min(u32::from(self.config.requests));
        let end = first.saturating_add(count).min(self.config.chunks).max(first);
        // Chunks that no image can have need no memory.
        let last = if end > first { end - 1 } else { 0 };
        let config = self.config;
        let slot = self.client(now, ask.image, ask.from);
        let image = self.images.get_mut(&ask.image);
        let budget = config.most_bytes.saturating_sub(self.bytes);
        let grown = slot
            .zip(image)
            .and_then(|(slot, image)| Some((slot, image.grow(slot, last, budget)?, image)));
        let Some((slot, grown, image)) = grown else {
            // It is served although it is not recorded.
            self.counters.refused += 1;
            self.counters.to_server += u64::from(count);
            return run(Run { first, count, to: None });
        };
        self.bytes += grown;
        let mut current: Option<Run> = None;
        let mut previous = None;
        for chunk in first..end {
            if is_late && let Some(Some(holder)) = image.assigned(slot, chunk) {
                image.set_late(now, &config, slot, holder);
            }
            let chosen = if tries >= config.max_tries {
                None
            } else {
                image.choose(now, &config, slot, chunk, previous, tries > 0)
            };
            let to = chosen.map(|chosen| chosen.host);
            match chosen {
                Some(chosen) if chosen.is_pending => self.counters.to_pending += 1,
                Some(_) => self.counters.to_holders += 1,
                None if unserved == Unserved::ByServer => self.counters.to_server += 1,
                None => {}
            }
            if chosen.is_none() && unserved == Unserved::Later {
                image.unassign(slot, chunk);
            } else {
                image.assign(slot, chunk, chosen.map(|chosen| chosen.slot), config.requests);
            }
            previous = chosen.map(|chosen| chosen.slot);
            match &mut current {
                Some(current) if current.to == to => current.count += 1,
                _ => {
                    if let Some(done) = current.replace(Run { first: chunk, count: 1, to }) {
                        run(done);
                    }
                }
            }
        }
        if let Some(done) = current {
            run(done);
        }
    }

    /// Handles a request that `holder` returned because it does not have the chunks: the directory forgets that it has
    /// them, and chooses again without it. Only chunks are chosen for that `ask.from` has asked for and that were redirected to this
    /// holder, or to one that has left; so a forged return sends nothing to anybody who does not want it.
    pub fn returned(&mut self, now: Time, holder: HostId, ask: Ask, mut run: impl FnMut(Run)) {
        let Some(image) = self.images.get_mut(&ask.image) else { return };
        let Some(slot) = image.slot(ask.from) else { return };
        let by = image.slot(holder);
        let end = ask.first.saturating_add(ask.count.min(u32::from(self.config.requests)));
        let mut again: Vec<u32> = Vec::new();
        for chunk in ask.first..end.min(image.rows()) {
            match (image.assigned(slot, chunk), by) {
                (Some(Some(to)), Some(by)) if to == by => image.lacks(by, chunk),
                (None, _) if image.is_pending(slot, chunk) => {}
                _ => continue,
            }
            again.push(chunk);
        }
        self.counters.returned += again.len() as u64;
        for chunk in again {
            let ask = Ask { first: chunk, count: 1, tries: ask.tries.max(1), ..ask };
            self.choose_as(now, ask, Unserved::ByServer, false, &mut run);
        }
    }

    /// Records that `from` received a damaged chunk from `holder`: it is not sent to this holder for [`Config::accusation`], and while
    /// [`Config::accusers`] requesters say so, nobody is. No requester excludes a holder for others by itself, and none counts that has not
    /// received a chunk.
    pub fn accuse(&mut self, now: Time, image: u32, from: HostId, holder: HostId, chunk: u32) {
        if self.client(now, image, from).is_none() {
            return;
        }
        let Some(image) = self.images.get_mut(&image) else { return };
        let (Some(by), Some(holder)) = (image.slot(from), image.slot(holder)) else { return };
        // Only an answer to a request can be damaged.
        if image.assigned(by, chunk) == Some(Some(holder))
            && image.accuse(now, &self.config, by, holder)
        {
            self.counters.barred += 1;
        }
    }

    /// The client's slot, which is created if the bounds permit it.
    fn client(&mut self, now: Time, image: u32, from: HostId) -> Option<u16> {
        if let Some(entry) = self.images.get_mut(&image)
            && let Some(slot) = entry.slot(from)
        {
            entry.seen(slot, now);
            return Some(slot);
        }
        let added = self.add(now, image, from);
        if added.is_none() {
            self.counters.refused += 1;
            self.drop_if_empty(image);
        }
        added
    }

    fn add(&mut self, now: Time, image: u32, from: HostId) -> Option<u16> {
        let most = usize::from(self.config.images);
        let is_known = self.images.contains_key(&image);
        if !is_known && self.images.len() >= most {
            self.forget_silent(now);
            if self.images.len() >= most {
                return None;
            }
        }
        let config = &self.config;
        let entry = self.images.entry(image).or_default();
        if entry.clients() >= usize::from(config.clients) {
            let (forgotten, freed) = entry.forget_silent(now, config.silence);
            self.counters.silent += forgotten;
            self.bytes -= freed;
            if entry.clients() >= usize::from(config.clients) {
                return None;
            }
        }
        let budget = config.most_bytes.saturating_sub(self.bytes);
        let rack = config.hosts_per_rack.map_or(0, |hosts| from.0 / hosts.max(1));
        let (slot, grown) = entry.add(now, from, rack, budget)?;
        self.bytes += grown;
        Some(slot)
    }

    fn forget_silent(&mut self, now: Time) {
        for image in self.images.values_mut() {
            let (forgotten, freed) = image.forget_silent(now, self.config.silence);
            self.counters.silent += forgotten;
            self.bytes -= freed;
        }
        let images: Vec<u32> = self.images.keys().copied().collect();
        for image in images {
            self.drop_if_empty(image);
        }
    }

    fn drop_if_empty(&mut self, image: u32) {
        if self.images.get(&image).is_some_and(|entry| entry.clients() == 0)
            && let Some(entry) = self.images.remove(&image)
        {
            self.bytes -= entry.bytes();
        }
    }

    /// Asserts that loads and memory agree with what they count.
    #[cfg(test)]
    fn check(&self) {
        self.images.values().for_each(Image::check);
        assert_eq!(self.bytes, self.images.values().map(Image::bytes).sum::<usize>());
    }
}
