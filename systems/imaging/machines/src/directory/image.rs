//! The clients and bitmaps of one image.

use std::collections::BTreeMap;

use rackweave_core::{Bitmap, HostId, Span, Time};
use smallvec::SmallVec;

use super::Config;

/// What is known of one client.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) host: HostId,
    pub(super) rack: u32,
    pub(super) seen: Time,
    /// Redirected requests that are not yet covered by a report.
    pub(super) load: u32,
    /// The chunks that it has reported.
    pub(super) has: Bitmap<u32>,
    /// Where its requests have gone: `None` is the server.
    requests: BTreeMap<u32, Option<u16>>,
    /// How many of its requests were covered by its reports: chunks that it has received and verified.
    received: u32,
    /// The holders that it did not get chunks from in time.
    late: SmallVec<[Late; 2]>,
    /// The requesters that received damaged chunks from it.
    accusers: SmallVec<[Accuser; 4]>,
    pub(super) is_barred: bool,
}

/// A requester that has named a holder as the sender of a damaged chunk.
#[derive(Clone, Copy, Debug)]
struct Accuser {
    by: u16,
    at: Time,
    /// Whether others do not get chunks of the holder either, if enough accuse it.
    counts: bool,
}

impl Accuser {
    fn is_valid(&self, now: Time, config: &Config) -> bool {
        now.since(self.at) < config.accusation
    }
}

/// A holder that a requester has waited for in vain.
#[derive(Clone, Copy, Debug)]
struct Late {
    holder: u16,
    strikes: u32,
    /// The requester is not sent there until then.
    until: Time,
}

/// Accusations of one requester that count for others at a time. Rackweave's choice: enough to name whoever damages chunks on a small fabric, and
/// too few to have all holders left out.
const MOST_ACCUSATIONS: usize = 2;
/// A holder is left out after this many requests in a row that were repeated: one may have been lost.
const STRIKES: u32 = 2;
/// The time for which it is left out is doubled this many times at most.
const MOST_DOUBLED: u32 = 6;
/// Late holders that are remembered for one requester.
const MOST_LATE: usize = 16;

/// The state of one image.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    pub(super) slots: Vec<Option<Client>>,
    by_host: BTreeMap<HostId, u16>,
    /// Words in a row of `have` and `pending`.
    pub(super) words: usize,
    /// For each chunk, the slots of the clients that have it.
    pub(super) have: Vec<u64>,
    /// For each chunk, the slots of the clients that have asked for it.
    pub(super) pending: Vec<u64>,
    /// The slots in each rack.
    pub(super) racks: BTreeMap<u32, Vec<u64>>,
    /// The slot that was chosen last.
    pub(super) last: u16,
}

const fn word_and_bit(slot: u16) -> (usize, u64) {
    (slot as usize / 64, 1 << (slot % 64))
}

impl Client {
    /// Whether enough requesters accuse it that nobody is sent there.
    fn is_accused(&self, now: Time, config: &Config) -> bool {
        let counts = |it: &&Accuser| it.counts && it.is_valid(now, config);
        self.accusers.iter().filter(counts).count() >= usize::from(config.accusers.max(1))
    }
}

impl Image {
    pub(super) fn slot(&self, host: HostId) -> Option<u16> {
        self.by_host.get(&host).copied()
    }

    pub(super) fn clients(&self) -> usize {
        self.by_host.len()
    }

    pub(super) fn client(&self, slot: u16) -> Option<&Client> {
        self.slots.get(usize::from(slot))?.as_ref()
    }

    fn client_mut(&mut self, slot: u16) -> Option<&mut Client> {
        self.slots.get_mut(usize::from(slot))?.as_mut()
    }

    pub(super) fn seen(&mut self, slot: u16, now: Time) {
        if let Some(client) = self.client_mut(slot) {
            client.seen = now;
        }
    }

    /// The number of chunks for which there are rows.
    pub(super) fn rows(&self) -> u32 {
        self.have.len().checked_div(self.words).unwrap_or(0) as u32
    }

    /// The memory of the bitmaps.
    pub(super) fn bytes(&self) -> usize {
        let clients: usize =
            self.slots.iter().flatten().map(|client| client.has.words().len()).sum();
        (self.have.len() * 2 + clients) * 8
    }

    pub(super) fn holders(&self, chunk: u32) -> Vec<HostId> {
        let Some(row) = self.row(chunk) else { return Vec::new() };
        let has = |slot: &usize| self.have[row + slot / 64] >> (slot % 64) & 1 == 1;
        let hosts = (0..self.slots.len()).filter(has).filter_map(|slot| self.slots[slot].as_ref());
        hosts.map(|client| client.host).collect()
    }

    /// The index of a chunk's first word.
    pub(super) fn row(&self, chunk: u32) -> Option<usize> {
        (chunk < self.rows()).then_some(chunk as usize * self.words)
    }

    /// Adds a client if the wider rows fit in `budget` bytes. Returns its slot and the additional bytes.
    pub(super) fn add(
        &mut self,
        now: Time,
        host: HostId,
        rack: u32,
        budget: usize,
    ) -> Option<(u16, usize)> {
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.slots.len());
        let words = slot / 64 + 1;
        let rows = self.rows() as usize;
        let grown = words.saturating_sub(self.words) * rows * 16;
        if grown > budget {
            return None;
        }
        if words > self.words {
            for rows_of in [&mut self.have, &mut self.pending] {
                let old = std::mem::take(rows_of);
                *rows_of = vec![0; rows * words];
                for (row, from) in old.chunks_exact(self.words.max(1)).enumerate() {
                    rows_of[row * words..][..from.len()].copy_from_slice(from);
                }
            }
            self.words = words;
        }
        let client = Client {
            host,
            rack,
            seen: now,
            load: 0,
            has: Bitmap::default(),
            received: 0,
            late: SmallVec::new(),
            requests: BTreeMap::new(),
            accusers: SmallVec::new(),
            is_barred: false,
        };
        if free.is_some() {
            self.slots[slot] = Some(client);
        } else {
            self.slots.push(Some(client));
        }
        let slot = slot as u16;
        self.by_host.insert(host, slot);
        let (word, bit) = word_and_bit(slot);
        let members = self.racks.entry(rack).or_default();
        members.resize(members.len().max(word + 1), 0);
        members[word] |= bit;
        Some((slot, grown))
    }

    /// Makes room for the rows up to `chunk` and for a client's own map, within `budget` bytes. Returns the additional
    /// bytes.
    pub(super) fn grow(&mut self, slot: u16, chunk: u32, budget: usize) -> Option<usize> {
        let words = self.words;
        let (rows, wanted) = (self.rows() as usize, (chunk as usize / 64 + 1) * 64);
        let more_rows = wanted.saturating_sub(rows) * words;
        let client = self.slots.get_mut(usize::from(slot))?.as_mut()?;
        let more_map = (wanted / 64).saturating_sub(client.has.words().len());
        let grown = (more_rows * 2 + more_map) * 8;
        if grown > budget {
            return None;
        }
        client.has.grow(u32::try_from(wanted).unwrap_or(u32::MAX));
        self.have.resize(self.have.len() + more_rows, 0);
        self.pending.resize(self.pending.len() + more_rows, 0);
        Some(grown)
    }

    /// Replaces the words of a client's map from `first` on. Chunks that the client did not have before are added to `new_chunks`.
    pub(super) fn report(
        &mut self,
        slot: u16,
        first: usize,
        map: &[u8],
        new_chunks: &mut Vec<u32>,
    ) {
        let Some(client) = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut) else {
            return;
        };
        let (at, bit) = word_and_bit(slot);
        let mut covered: SmallVec<[Option<u16>; 8]> = SmallVec::new();
        let words = map.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        client.has.replace_words(first, words, |chunk, is_new| {
            let row = chunk as usize * self.words + at;
            if !is_new {
                self.have[row] &= !bit;
                return;
            }
            self.have[row] |= bit;
            self.pending[row] &= !bit;
            new_chunks.push(chunk);
            if let Some(served_by) = client.requests.remove(&chunk) {
                client.received = client.received.saturating_add(1);
                client.late.retain(|late| Some(late.holder) != served_by);
                covered.push(served_by);
            }
        });
        for served_by in covered {
            self.unload(served_by);
        }
    }

    /// Records that a client lacks a chunk that it was expected to have.
    pub(super) fn lacks(&mut self, slot: u16, chunk: u32) {
        let Some(row) = self.row(chunk) else { return };
        let (word, bit) = word_and_bit(slot);
        self.have[row + word] &= !bit;
        self.pending[row + word] &= !bit;
        let Some(client) = self.client_mut(slot) else { return };
        client.has.remove(chunk);
    }

    /// Whether a client has asked for a chunk and not reported it.
    pub(super) fn is_pending(&self, slot: u16, chunk: u32) -> bool {
        let (word, bit) = word_and_bit(slot);
        self.row(chunk).is_some_and(|row| self.pending[row + word] & bit != 0)
    }

    fn unload(&mut self, served_by: Option<u16>) {
        if let Some(client) = served_by.and_then(|slot| self.client_mut(slot)) {
            client.load = client.load.saturating_sub(1);
        }
    }

    /// Where a request went: `Some(None)` is the server.
    pub(super) fn assigned(&self, slot: u16, chunk: u32) -> Option<Option<u16>> {
        self.client(slot)?.requests.get(&chunk).copied()
    }

    /// Records where a request has gone, and that the requester is about to have the chunk.
    pub(super) fn assign(&mut self, slot: u16, chunk: u32, to: Option<u16>, most: u16) {
        let Some(row) = self.row(chunk) else { return };
        let Some(client) = self.client_mut(slot) else { return };
        let before = client.requests.remove(&chunk);
        let has_room = client.requests.len() < usize::from(most);
        if has_room {
            client.requests.insert(chunk, to);
        }
        self.unload(before.flatten());
        if !has_room {
            return;
        }
        if let Some(holder) = to.and_then(|to| self.client_mut(to)) {
            holder.load += 1;
        }
        let (word, bit) = word_and_bit(slot);
        if self.have[row + word] & bit == 0 {
            self.pending[row + word] |= bit;
        }
    }

    /// Forgets where a request went.
    pub(super) fn unassign(&mut self, slot: u16, chunk: u32) {
        let (word, bit) = word_and_bit(slot);
        if let Some(row) = self.row(chunk) {
            self.pending[row + word] &= !bit;
        }
        let before = self.client_mut(slot).and_then(|client| client.requests.remove(&chunk));
        self.unload(before.flatten());
    }

    /// Records that `by` received a damaged chunk from `holder`. Returns whether nobody is sent there any more since now.
    pub(super) fn accuse(&mut self, now: Time, config: &Config, by: u16, holder: u16) -> bool {
        let of = |client: &Client| {
            let mut valid = client.accusers.iter().filter(|it| it.is_valid(now, config));
            valid.any(|it| it.by == by && it.counts)
        };
        let others = self.slots.iter().flatten().filter(|client| of(client)).count();
        let has_received = self.client(by).is_some_and(|client| client.received > 0);
        let counts = has_received && others < MOST_ACCUSATIONS;
        let Some(client) = self.client_mut(holder) else { return false };
        client.accusers.retain(|it| it.is_valid(now, config));
        if client.accusers.iter().any(|it| it.by == by) {
            return false;
        }
        let before = client.is_accused(now, config);
        client.accusers.push(Accuser { by, at: now, counts });
        !before && !client.is_barred && client.is_accused(now, config)
    }

    /// Records that a request to `holder` was repeated because it was not answered in time.
    pub(super) fn set_late(&mut self, now: Time, config: &Config, slot: u16, holder: u16) {
        let Some(client) = self.client_mut(slot) else { return };
        if config.late == Span::ZERO {
            return;
        }
        let known = client.late.iter().position(|late| late.holder == holder);
        let at = known.unwrap_or_else(|| {
            if client.late.len() >= MOST_LATE {
                client.late.remove(0);
            }
            client.late.push(Late { holder, strikes: 0, until: Time::ZERO });
            client.late.len() - 1
        });
        let late = &mut client.late[at];
        // Requests that were on their way before it was left out say nothing new.
        if now < late.until {
            return;
        }
        late.strikes = late.strikes.saturating_add(1);
        if let Some(more) = late.strikes.checked_sub(STRIKES) {
            let time = config.late.saturating_mul(1 << more.min(MOST_DOUBLED));
            late.until = now.saturating_add(time);
        }
    }

    /// Whether a requester is not sent to a holder because it has waited for that in vain.
    pub(super) fn is_late(&self, now: Time, slot: u16, holder: u16) -> bool {
        let of = |late: &Late| late.holder == holder && now < late.until;
        self.client(slot).is_some_and(|client| client.late.iter().any(of))
    }

    pub(super) fn bar(&mut self, host: HostId) {
        if let Some(client) = self.slot(host).and_then(|slot| self.client_mut(slot)) {
            client.is_barred = true;
        }
    }

    /// Whether `by` may be sent to this holder.
    pub(super) fn trusts(&self, now: Time, config: &Config, by: u16, holder: &Client) -> bool {
        let accuses = |it: &Accuser| it.by == by && it.is_valid(now, config);
        !holder.is_barred && !holder.accusers.iter().any(accuses) && !holder.is_accused(now, config)
    }

    /// Forgets a client, and returns the freed bytes.
    pub(super) fn remove(&mut self, slot: u16) -> usize {
        let Some(client) = self.slots.get_mut(usize::from(slot)).and_then(Option::take) else {
            return 0;
        };
        self.by_host.remove(&client.host);
        let (word, bit) = word_and_bit(slot);
        for row in (word..self.have.len()).step_by(self.words.max(1)) {
            self.have[row] &= !bit;
            self.pending[row] &= !bit;
        }
        if let Some(members) = self.racks.get_mut(&client.rack) {
            members[word] &= !bit;
            if members.iter().all(|word| *word == 0) {
                self.racks.remove(&client.rack);
            }
        }
        for served_by in client.requests.into_values() {
            self.unload(served_by);
        }
        // Its slot will belong to another client.
        for other in self.slots.iter_mut().flatten() {
            other.accusers.retain(|accuser| accuser.by != slot);
            other.late.retain(|late| late.holder != slot);
            other.requests.retain(|_, to| *to != Some(slot));
        }
        client.has.words().len() * 8
    }

    /// Forgets the clients from which nothing has arrived for `silence`. Returns their number and the freed bytes.
    pub(super) fn forget_silent(&mut self, now: Time, silence: Span) -> (u64, usize) {
        let (mut forgotten, mut freed) = (0, 0);
        for slot in 0..self.slots.len() as u16 {
            if self.client(slot).is_some_and(|client| now.since(client.seen) > silence) {
                freed += self.remove(slot);
                forgotten += 1;
            }
        }
        (forgotten, freed)
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        for (slot, client) in self.slots.iter().enumerate() {
            let Some(client) = client else { continue };
            let requests = self.slots.iter().flatten().flat_map(|other| other.requests.values());
            let load = requests.filter(|to| **to == Some(slot as u16)).count();
            assert_eq!(client.load as usize, load, "the load of {}", client.host);
            for chunk in 0..self.rows() {
                let row = self.row(chunk).unwrap() + slot / 64;
                let is_holder = self.have[row] >> (slot % 64) & 1 == 1;
                assert_eq!(is_holder, client.has.contains(chunk), "{} and {chunk}", client.host);
            }
        }
    }
}
