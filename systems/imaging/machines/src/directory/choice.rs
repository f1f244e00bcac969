//! The choice of a holder for one chunk.

use rackweave_core::{HostId, Time};

use super::image::Image;
use super::{Config, Policy};

/// The client that will serve a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) slot: u16,
    pub(super) host: HostId,
    /// Whether it does not have the chunk yet.
    pub(super) is_pending: bool,
}

/// The load that waiting at a pending holder is worth: with equal loads, a client that has the chunk is chosen.
const PENDING_COST: u32 = 1;

/// What speaks against a holder: its load, and then how many chunks it has. Whoever has fewer can serve fewer others, while a client that
/// has most is the only holder of what the second one needs. Without it, each client that starts later slows the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    load: u32,
    held: u32,
}

impl Image {
    /// Chooses a holder of a chunk for the client in `slot`; `None` is the server. `previous` is the holder of the
    /// preceding chunk of the same request, which is preferred. A retry excludes the holder that was chosen last.
    pub(super) fn choose(
        &mut self,
        now: Time,
        config: &Config,
        slot: u16,
        chunk: u32,
        previous: Option<u16>,
        is_retry: bool,
    ) -> Option<Chosen> {
        let row = self.row(chunk)?;
        let before = if is_retry { self.assigned(slot, chunk).flatten() } else { None };
        let judge = |candidate: u16| -> Option<(Chosen, Cost)> {
            let client = self.client(candidate)?;
            let is_silent = now.since(client.seen) > config.silence;
            if candidate == slot || Some(candidate) == before || is_silent {
                return None;
            }
            let is_pending =
                self.have[row + usize::from(candidate) / 64] >> (candidate % 64) & 1 == 0;
            let is_usable = self.trusts(now, config, slot, client)
                && !self.is_late(now, slot, candidate)
                && (!is_pending || self.is_sound(candidate, chunk, slot, config.pending));
            let load = client.load + if is_pending { PENDING_COST } else { 0 };
            let cost = Cost { load, held: client.has.len() };
            is_usable.then_some((Chosen { slot: candidate, host: client.host, is_pending }, cost))
        };
        let holds = |candidate: u16| {
            let word = row + usize::from(candidate) / 64;
            let pending = if config.pending > 0 { self.pending[word] } else { 0 };
            (self.have[word] | pending) >> (candidate % 64) & 1 == 1
        };
        if let Some(previous) = previous
            && holds(previous)
            && let Some((chosen, _)) = judge(previous)
        {
            return Some(chosen);
        }
        let rack = self.client(slot).map_or(0, |client| client.rack);
        let own_rack = config.hosts_per_rack.and_then(|_| self.racks.get(&rack));
        let chosen = own_rack
            .and_then(|mask| self.best(config, row, Some(mask), judge))
            .or_else(|| self.best(config, row, None, judge))?;
        self.last = chosen.slot;
        Some(chosen)
    }

    /// The best holder in `mask` by the policy, beginning behind the one that was chosen last.
    fn best(
        &self,
        config: &Config,
        row: usize,
        mask: Option<&Vec<u64>>,
        judge: impl Fn(u16) -> Option<(Chosen, Cost)>,
    ) -> Option<Chosen> {
        let select = |rows: &[u64], word: usize| {
            let bits = rows[row + word];
            mask.map_or(bits, |mask| bits & mask.get(word).copied().unwrap_or(0))
        };
        let has = |word| select(&self.have, word);
        let about_to = |word| if config.pending > 0 { select(&self.pending, word) } else { 0 };
        match config.policy {
            Policy::RoundRobin => {
                let first = |bits: &dyn Fn(usize) -> u64| {
                    Members::behind(self.last, self.words, bits).find_map(&judge)
                };
                let (chosen, _) = first(&has).or_else(|| first(&about_to))?;
                Some(chosen)
            }
            Policy::LeastLoaded => {
                let either = |word| has(word) | about_to(word);
                let members = Members::behind(self.last, self.words, &either);
                // The first of equals is the one whose turn it is.
                members.filter_map(judge).min_by_key(|(_, cost)| *cost).map(|(chosen, _)| chosen)
            }
        }
    }

    /// Whether a pending holder will get the chunk without `requester`: its own request leads to the server, or to a
    /// client that has the chunk, over at most `most` pending holders.
    fn is_sound(&self, candidate: u16, chunk: u32, requester: u16, most: u8) -> bool {
        let mut at = candidate;
        for _ in 0..most {
            match self.assigned(at, chunk) {
                None => return false,
                Some(None) => return true,
                Some(Some(next)) if next == requester => return false,
                Some(Some(next)) => at = next,
            }
            let Some(row) = self.row(chunk) else { return false };
            if self.have[row + usize::from(at) / 64] >> (at % 64) & 1 == 1 {
                return true;
            }
        }
        false
    }
}

/// The members of a row in order, from the slot behind `last` on and around.
struct Members<'a> {
    bits: &'a dyn Fn(usize) -> u64,
    words: usize,
    word: usize,
    /// What is left of the current word.
    rest: u64,
    /// Words still to be read after the current one.
    left: usize,
    /// The bits of the first word that come last.
    wrapped: u64,
}

impl<'a> Members<'a> {
    fn behind(last: u16, words: usize, bits: &'a dyn Fn(usize) -> u64) -> Self {
        if words == 0 {
            return Self { bits, words, word: 0, rest: 0, left: 0, wrapped: 0 };
        }
        let next = (usize::from(last) + 1) % (words * 64);
        let word = next / 64;
        let from_here = u64::MAX << (next % 64);
        let rest = bits(word) & from_here;
        Self { bits, words, word, rest, left: words, wrapped: !from_here }
    }
}

impl Iterator for Members<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        while self.rest == 0 {
            self.left = self.left.checked_sub(1)?;
            self.word = (self.word + 1) % self.words;
            self.rest = (self.bits)(self.word);
            if self.left == 0 {
                self.rest &= self.wrapped;
            }
        }
        let slot = self.word * 64 + self.rest.trailing_zeros() as usize;
        self.rest &= self.rest - 1;
        Some(slot as u16)
    }
}
