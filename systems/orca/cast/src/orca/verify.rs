//! Source authentication: which bytes of a session with a key come from its sender.
//!
//! All receivers of a session have the key of its data, so that each of them can seal data for the others. Hence a receiver passes
//! bytes to its sink only once it has their hash from the sender, in the session of the two hosts, whose keys no other host has. The
//! stream itself is unchanged. See `docs/ops/security.md#casts-with-a-key`.
//!
//! ```text
//!  receiver                                                      sender
//!    | HashRequest from, upto  ──────────────────────────────────> | reads and hashes the blocks of [from, upto) once for all receivers
//!    | <──────────────────────── BlockHashes from, upto, ended ─── |
//!    | a block differs, or authentic packets count as replays:     |
//!    | KeyRequest ───────────────────────────────────────────────> | unicast to this host from now on, with a key that only it has
//!    | <────────────────────────────────────────── a key of its own |
//!    | joins again at the first byte that is not verified          |
//! ```
//!
//! All requests are repeated until they are answered, and name a random number of the receiver, which the answers repeat.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use rackweave_core::{HostId, Span, Time};
use rackweave_crypt::GroupOpen;
use rackweave_wire::orca::{Reason, Session};

use super::incoming::Incoming;
use super::secure::{data_seal, random_bytes};
use super::send::Sending;
use super::{Engine, EnginePlatform};
use crate::source::{Payload, Source, SourceError};

/// The bytes of the stream that one hash covers at most; hashes end at multiples of it. It is the size of the blocks of a receiver's
/// window, so that a whole block is hashed where it lies.
pub(super) const BLOCK: u64 = 1 << 20;

/// The most hashes in one answer. With them it fits in the smallest packets that a path may need (an IP packet of 296 bytes).
pub(super) const MAX_HASHES: usize = 6;

/// The most blocks that are read and hashed for one request. A receiver that asks for more asks again, so that no request stops the
/// sender for long.
const FRESH_HASHES: usize = 2;

/// The bytes that a sender reads for the hashes of one receiver, in addition to [`READ_FACTOR`] times its stream. A
/// receiver whose requests are lost, or that starts again, needs some bytes more than once; one that asks for the same
/// bytes without end is answered no more.
const READ_MORE: u64 = 64 << 20;
const READ_FACTOR: u64 = 4;

/// The hashes that a sender keeps, of 4 GiB of its stream. Older ones are computed again.
const KEPT_HASHES: usize = 4096;

/// How many blocks a receiver asks for beyond the one that it is receiving, so that a hash is there before its block. The sender's
/// window is as long.
const BLOCKS_AHEAD: u64 = 8;

/// The most blocks that are verified in one turn of one session, after which packets are received again.
const BLOCKS_PER_TURN: usize = 4;

/// The time before the first repetition of a request, longer than a round trip with a busy sender; it doubles up to [`RETRY_MAX`].
const RETRY: Span = Span::from_ms(20);
const RETRY_MAX: Span = Span::from_ms(500);

/// The time before the next request after an answer without hashes.
const PAUSE: Span = Span::from_ms(2);

/// The time after which a receiver that has verified all that it has, and does not need another hash, tells its sender
/// so, by a request for no bytes. It does so at the end of the stream too, where its disk may take longer than the
/// sender has patience. Until then the sender's source keeps what the receiver may still have to ask for. Much shorter
/// than the time for which a receiver may be silent, and so long that a stream under way needs none.
const ACK_AFTER: Span = Span::from_ms(100);

/// Another receiver is taken to have used later numbers of packets than the sender if packets that count as replays
/// dominate a session. They do if they have brought more than [`STALLED_SHARE`] times the bytes that have become
/// readable, for this long and in this many packets. Networks duplicate packets, but not all of them as often and for
/// this long. Progress does not begin the count again: that receiver could send a few of the right bytes now and then.
/// The values are our choice.
const STALLED_AFTER: Span = Span::from_ms(500);
const STALLED_REPLAYS: u32 = 64;
const STALLED_SHARE: u64 = 4;
/// The same with fewer packets, for longer: to a receiver behind a small MTU only a few packets a second come that are small enough, and their
/// sender gives it up after ten seconds.
const STALLED_LONG: Span = Span::from_secs(2);
const STALLED_LONG_REPLAYS: u32 = 8;

fn block_end(offset: u64) -> u64 {
    (offset / BLOCK + 1) * BLOCK
}

/// Returns the pieces of a range that are hashed each on its own.
fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let piece = at..block_end(at).min(range.end);
        at = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// A receiver's request for hashes of a range of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashRequest {
    /// The session that carries the stream.
    pub session: Session,
    /// The random number of the receiver.
    pub nonce: u64,
    /// The offset below which the receiver has verified all bytes or has their hashes.
    pub from: u64,
    /// The end of the range.
    pub upto: u64,
    /// Whether the last hash may end within a block at `upto`. Otherwise only whole blocks are wanted, and the end of the stream.
    pub partial: bool,
}

impl HashRequest {
    /// Returns whether it asks for no bytes, and only acknowledges what is verified.
    const fn is_empty(&self) -> bool {
        self.from == self.upto
    }

    /// Appends the fields.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.session.0.to_be_bytes());
        for number in [self.nonce, self.from, self.upto] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.push(u8::from(self.partial));
    }

    /// Decodes what [`Self::encode`] has appended; `None` if it is malformed.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (fixed, flag) = bytes.split_first_chunk::<28>()?;
        let (session, nonce, from, upto) = fixed_fields(fixed)?;
        let [partial @ 0..=1] = flag else { return None };
        Some(Self { session, nonce, from, upto, partial: *partial == 1 })
    }
}

/// The hashes of a range of the stream, one for each block that the range touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockHashes {
    /// The session that carries the stream.
    pub session: Session,
    /// The random number of the receiver.
    pub nonce: u64,
    /// The offset of the first byte that the hashes cover.
    pub from: u64,
    /// The end of the bytes that the hashes cover.
    pub upto: u64,
    /// Whether the stream ends at `upto`.
    pub ended: bool,
    /// BLAKE3 of the bytes of each block within the range.
    pub hashes: Vec<[u8; 32]>,
}

impl BlockHashes {
    /// Appends the fields.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Self { session, nonce, from, upto, ended, .. } = *self;
        HashRequest { session, nonce, from, upto, partial: ended }.encode(out);
        out.extend_from_slice(self.hashes.as_flattened());
    }

    /// Decodes what [`Self::encode`] has appended; `None` if it is malformed.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_at_checked(29)?;
        let HashRequest { session, nonce, from, upto, partial } = HashRequest::decode(fixed)?;
        let (hashes, []) = rest.as_chunks::<32>() else { return None };
        let expected = pieces(from..upto).take(MAX_HASHES + 1).count();
        if hashes.len() != expected || expected > MAX_HASHES {
            return None;
        }
        Some(Self { session, nonce, from, upto, ended: partial, hashes: hashes.to_vec() })
    }
}

/// Decodes session, number and range.
fn fixed_fields(bytes: &[u8; 28]) -> Option<(Session, u64, u64, u64)> {
    let (session, numbers) = bytes.split_first_chunk::<4>()?;
    let ([nonce, from, upto], []) = numbers.as_chunks::<8>() else { return None };
    let [nonce, from, upto] = [nonce, from, upto].map(|bytes| u64::from_be_bytes(*bytes));
    (from <= upto && upto < 1 << 48).then_some((
        Session(u32::from_be_bytes(*session)),
        nonce,
        from,
        upto,
    ))
}

/// The sender's hashes of whole blocks of its stream.
#[derive(Debug, Default)]
pub struct HashCache {
    blocks: BTreeMap<u64, [u8; 32]>,
}

impl HashCache {
    /// Answers a request for hashes of a stream. Its bytes below `available` can be read; if `ended`, it ends there.
    /// Reads at most `may_read` bytes, and subtracts from it what was read. An error has shortened the answer.
    pub fn answer(
        &mut self,
        source: &mut dyn Source,
        request: &HashRequest,
        (available, ended): (u64, bool),
        may_read: &mut u64,
    ) -> (BlockHashes, Option<SourceError>) {
        let HashRequest { session, nonce, from, .. } = *request;
        let mut upto = request.upto.min(available);
        let whole = upto == request.upto && request.partial || upto == available && ended;
        if !whole {
            upto -= upto % BLOCK;
        }
        let mut answer =
            BlockHashes { session, nonce, from, upto: from, ended: false, hashes: Vec::new() };
        let (mut fresh, mut failed) = (0, None);
        for piece in pieces(from..upto.max(from)).take(MAX_HASHES) {
            let block = (piece.end - piece.start == BLOCK).then_some(piece.start);
            let known = block.and_then(|block| self.blocks.get(&block)).copied();
            let hash = match known {
                Some(hash) => hash,
                None if fresh == FRESH_HASHES || piece.end - piece.start > *may_read => break,
                None => match hash_of(source, piece.clone()) {
                    Ok(hash) => hash,
                    Err((error, read)) => {
                        *may_read = may_read.saturating_sub(read);
                        failed = Some(error);
                        break;
                    }
                },
            };
            if known.is_none() {
                fresh += 1;
                *may_read -= piece.end - piece.start;
                if let Some(block) = block {
                    self.keep(block, hash);
                }
            }
            answer.hashes.push(hash);
            answer.upto = piece.end;
        }
        answer.ended = ended && answer.upto == available;
        (answer, failed)
    }

    fn keep(&mut self, block: u64, hash: [u8; 32]) {
        self.blocks.insert(block, hash);
        if self.blocks.len() > KEPT_HASHES {
            self.blocks.pop_first();
        }
    }
}

/// Reads of this length seldom cross the boundaries of records, across which the source copies them together.
const READ: u64 = 64 << 10;

/// Reads and hashes bytes of a stream. An error comes with the bytes that were read or tried.
fn hash_of(source: &mut dyn Source, piece: Range<u64>) -> Result<[u8; 32], (SourceError, u64)> {
    let (mut hasher, mut bytes, mut at) = (blake3::Hasher::new(), Payload::new(), piece.start);
    while at < piece.end {
        let len = READ.min(piece.end - at);
        bytes.clear();
        // The read that fails counts in full, or else a receiver could ask without end for what cannot be read yet.
        // Each time may make the source work.
        let failed = |error| (error, at - piece.start + READ);
        source.read(at, len as usize, &mut bytes).map_err(failed)?;
        bytes.iter().for_each(|bytes| {
            hasher.update(bytes);
        });
        at += len;
    }
    Ok(*hasher.finalize().as_bytes())
}

/// A request that is repeated until it is answered.
#[derive(Clone, Copy, Debug)]
struct Retry {
    due: Time,
    attempts: u8,
}

impl Retry {
    const fn new(now: Time) -> Self {
        Self { due: now, attempts: 0 }
    }

    /// Returns whether the request is to be sent now.
    fn is_due(&mut self, now: Time) -> bool {
        if now < self.due {
            return false;
        }
        let wait = (RETRY * (1 << self.attempts.min(10))).min(RETRY_MAX);
        self.due = now + wait;
        self.attempts = self.attempts.saturating_add(1);
        true
    }
}

/// A receiver's state: which bytes are verified, and which hashes it has and needs.
#[derive(Debug)]
pub struct Verifier {
    nonce: u64,
    /// The offset below which all bytes are verified, or not needed.
    verified: u64,
    /// The hashes from there on: the end of the bytes that each one covers.
    known: VecDeque<(u64, [u8; 32])>,
    /// The length of the stream, once the sender has stated it.
    length: Option<u64>,
    request: Option<(HashRequest, Retry)>,
    /// The offset from which the last request was, below which the sender knows that all bytes are verified.
    acknowledged: u64,
    /// When bytes were last verified.
    verified_at: Time,
    /// The end of the last request whose answer had no hash yet.
    in_vain_upto: u64,
    /// When the next request may be sent.
    not_before: Time,
    /// The request for a key of its own.
    key_request: Option<Retry>,
    has_own_key: bool,
    replays: Replays,
}

/// The packets of the sender that were dropped as replays, weighed against the bytes that have become readable.
#[derive(Clone, Copy, Debug)]
struct Replays {
    /// The offset below which bytes were readable when they were last counted.
    readable: u64,
    /// The bytes in such packets, minus [`STALLED_SHARE`] times the bytes that have become readable.
    excess: u64,
    /// When there was last no excess, and the packets since.
    since: Time,
    packets: u32,
}

impl Replays {
    const fn new(now: Time, readable: u64) -> Self {
        Self { readable, excess: 0, since: now, packets: 0 }
    }

    const fn on_replay(&mut self, bytes: u64) {
        // The tag alone is more than nothing.
        self.excess = self.excess.saturating_add(bytes).saturating_add(1);
        self.packets = self.packets.saturating_add(1);
    }

    /// Returns whether the packets of the sender seem to be dropped as replays.
    fn is_stalled(&mut self, now: Time, readable: u64) -> bool {
        let progress = readable.saturating_sub(self.readable);
        self.readable = readable;
        self.excess = self.excess.saturating_sub(progress.saturating_mul(STALLED_SHARE));
        if self.excess == 0 {
            *self = Self::new(now, readable);
        }
        let lasts = now.since(self.since);
        self.packets >= STALLED_REPLAYS && lasts >= STALLED_AFTER
            || self.packets >= STALLED_LONG_REPLAYS && lasts >= STALLED_LONG
    }
}

impl Verifier {
    /// Begins at the start of a stream. `nonce` is random.
    #[must_use]
    pub const fn new(now: Time, nonce: u64) -> Self {
        Self {
            nonce,
            verified: 0,
            known: VecDeque::new(),
            length: None,
            request: None,
            acknowledged: 0,
            verified_at: now,
            in_vain_upto: 0,
            not_before: now,
            key_request: None,
            has_own_key: false,
            replays: Replays::new(now, 0),
        }
    }

    /// Begins at an offset below which no bytes are needed, or goes on there. Hashes that it has remain of use if none of them covers
    /// both sides of the offset.
    pub fn skip(&mut self, to: u64) {
        let mut at = self.verified;
        while at < to
            && let Some((end, _)) = self.known.front()
            && *end <= to
        {
            at = *end;
            self.known.pop_front();
        }
        if to > self.verified {
            if at != to {
                self.known.clear();
            }
            self.verified = to;
            (self.request, self.in_vain_upto) = (None, 0);
        }
    }

    /// Returns whether this host has a key of its own for the session.
    #[must_use]
    pub const fn has_own_key(&self) -> bool {
        self.has_own_key
    }

    /// Records that the sender has stated the length of the stream.
    pub const fn set_length(&mut self, length: u64) {
        self.length = Some(length);
    }

    fn known_upto(&self) -> u64 {
        self.known.back().map_or(self.verified, |last| last.0)
    }

    /// Handles an answer of the sender.
    pub fn handle_hashes(&mut self, now: Time, answer: &BlockHashes) {
        let Some((request, _)) = &self.request else { return };
        if answer.nonce != self.nonce || answer.from != request.from {
            return;
        }
        if answer.ended {
            self.length = Some(answer.upto);
        }
        if answer.from == self.known_upto() {
            let ends = pieces(answer.from..answer.upto).map(|piece| piece.end);
            self.known.extend(ends.zip(answer.hashes.iter().copied()).take(MAX_HASHES));
        }
        if request.is_empty() {
            // It was an acknowledgement.
        } else if answer.hashes.is_empty() {
            (self.in_vain_upto, self.not_before) = (request.upto, now + PAUSE);
        } else if !request.partial {
            self.in_vain_upto = 0;
        }
        self.request = None;
    }

    /// Returns the next bytes whose hash is known, of those below `readable`.
    fn next(&self, readable: u64) -> Option<(Range<u64>, [u8; 32])> {
        let (end, hash) = self.known.front()?;
        (*end <= readable).then_some((self.verified..*end, *hash))
    }

    fn accept(&mut self, now: Time) {
        if let Some((end, _)) = self.known.pop_front() {
            (self.verified, self.verified_at) = (end, now);
        }
    }

    /// Returns the request that is to be sent now. All bytes below `readable` have arrived; with `flush` those within a block are
    /// wanted too.
    fn poll(
        &mut self,
        now: Time,
        session: Session,
        readable: u64,
        flush: bool,
    ) -> Option<HashRequest> {
        let from = self.known_upto();
        let wanted = readable > from && self.length.is_none_or(|end| from < end);
        let is_free = self.request.is_none_or(|(request, _)| request.is_empty());
        if is_free && wanted && now >= self.not_before {
            let whole = readable >= block_end(from);
            let ahead = self.in_vain_upto < block_end(from);
            if whole || ahead || flush {
                let partial = flush && !whole;
                let upto = match partial {
                    true => readable,
                    false => block_end(readable - 1) + BLOCKS_AHEAD * BLOCK,
                };
                let upto = upto.min((1 << 48) - 1);
                let request = HashRequest { session, nonce: self.nonce, from, upto, partial };
                self.request = Some((request, Retry::new(now)));
            }
        }
        if self.request.is_none() && self.ack_due(readable).is_some_and(|at| at <= now) {
            let upto = from;
            let request = HashRequest { session, nonce: self.nonce, from, upto, partial: true };
            self.request = Some((request, Retry::new(now)));
        }
        let (request, retry) = self.request.as_mut()?;
        self.acknowledged = self.acknowledged.max(request.from);
        retry.is_due(now).then_some(*request)
    }

    /// Returns when an acknowledgement is due, if the sender does not know that all readable bytes are verified.
    fn ack_due(&self, readable: u64) -> Option<Time> {
        (self.verified == readable && self.acknowledged < self.verified)
            .then(|| self.verified_at + ACK_AFTER)
    }

    /// Returns when a request is due, at the earliest.
    fn poll_timeout(&self, now: Time, readable: u64) -> Option<Time> {
        let request = self.request.as_ref().map(|(_, retry)| retry.due);
        let pause = Some(self.not_before).filter(|at| *at > now);
        let other = pause.into_iter().chain(self.ack_due(readable)).min();
        self.key_request.map(|retry| retry.due).or(request).or(other)
    }

    /// Verifies bytes that have arrived, all of those below `readable`, and finds what is to be requested; with `flush` the hashes of
    /// bytes within a block too. `hash_of` returns the hash of bytes that have arrived.
    pub fn check(
        &mut self,
        now: Time,
        session: Session,
        readable: u64,
        flush: bool,
        mut hash_of: impl FnMut(Range<u64>) -> Option<[u8; 32]>,
    ) -> Checked {
        let (mut checked, mut forged) = (Checked::default(), false);
        if self.key_request.is_none() {
            let mut blocks = 0;
            while let Some((range, hash)) = self.next(readable) {
                if blocks == BLOCKS_PER_TURN {
                    checked.next = Some(now);
                    break;
                }
                blocks += 1;
                if hash_of(range) == Some(hash) {
                    self.accept(now);
                } else {
                    forged = true;
                    break;
                }
            }
            match self.length {
                Some(length) if readable > length => forged = true,
                Some(length) if readable == length => checked.ends_at = Some(length),
                _ => {}
            }
            forged |= !self.has_own_key && self.replays.is_stalled(now, readable);
        }
        if forged {
            self.suspect(now, &mut checked);
        }
        if let Some(retry) = &mut self.key_request {
            let request = KeyRequest { session, nonce: self.nonce };
            checked.key_request = retry.is_due(now).then_some(request);
        } else {
            checked.request = self.poll(now, session, readable, flush);
        }
        checked.next = checked.next.or(self.poll_timeout(now, readable));
        checked
    }

    /// Handles that data of the session was not the sender's: this host asks for a key of its own or, if it has one, gives up.
    pub fn suspect(&mut self, now: Time, checked: &mut Checked) {
        if self.has_own_key {
            checked.failed = true;
        } else if self.key_request.is_none() {
            self.key_request = Some(Retry::new(now));
            checked.forged = true;
        }
    }

    /// Handles the answer to the request for a key of its own. Returns the offset at which this host has to begin again with that key;
    /// `None` if it has not asked.
    pub fn handle_own_key(&mut self, answer: &KeyRequest) -> Option<u64> {
        if self.nonce != answer.nonce || self.key_request.is_none() {
            return None;
        }
        (self.key_request, self.has_own_key) = (None, true);
        (self.request, self.in_vain_upto) = (None, 0);
        Some(self.verified)
    }

    /// Returns the offset below which all bytes are verified, or not needed.
    #[must_use]
    pub const fn verified(&self) -> u64 {
        self.verified
    }

    /// Counts a packet that was dropped because its number was used before, or is far below the latest one. Its tag was
    /// right, and it has this many bytes of data, some of them missing.
    pub const fn on_replay(&mut self, bytes: u64) {
        self.replays.on_replay(bytes);
    }
}

/// What [`Verifier::check`] has found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checked {
    /// When it must be called again.
    pub next: Option<Time>,
    /// The request for hashes that is to be sent.
    pub request: Option<HashRequest>,
    /// The request for a key of this host's own that is to be sent.
    pub key_request: Option<KeyRequest>,
    /// Bytes that the sender has not sent were found although no other host has the key.
    pub failed: bool,
    /// Such bytes were found, for the first time in this session.
    pub forged: bool,
    /// All bytes of the stream have arrived, which ends here.
    pub ends_at: Option<u64>,
}

/// A receiver's request for a key of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRequest {
    /// The session that carries the stream.
    pub session: Session,
    /// The random number of the receiver.
    pub nonce: u64,
}

impl KeyRequest {
    /// Appends the fields.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.session.0.to_be_bytes());
        out.extend_from_slice(&self.nonce.to_be_bytes());
    }

    /// Decodes the fields; returns them with the bytes behind them.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (session, rest) = bytes.split_first_chunk::<4>()?;
        let (nonce, rest) = rest.split_first_chunk::<8>()?;
        let session = Session(u32::from_be_bytes(*session));
        Some((Self { session, nonce: u64::from_be_bytes(*nonce) }, rest))
    }
}

impl Incoming {
    /// Returns the offset below which bytes may be passed to the sink.
    pub(super) fn passable(&self) -> u64 {
        self.verifier.as_ref().map_or(self.readable, |it| it.verified.min(self.readable))
    }

    /// Verifies bytes that have arrived, and finds what is to be requested. No effect without a key.
    pub(super) fn verify(&mut self, now: Time, session: Session, flush: bool) -> Checked {
        let Self { verifier, drain, readable, .. } = self;
        let Some(verifier) = verifier else { return Checked::default() };
        verifier.check(now, session, *readable, flush, |bytes| {
            let bytes = drain.read(bytes.start, (bytes.end - bytes.start) as usize)?;
            Some(*blake3::hash(&bytes).as_bytes())
        })
    }

    /// Handles that data of the session was not the sender's.
    pub(super) fn suspect(&mut self, now: Time, checked: &mut Checked) {
        if let Some(verifier) = &mut self.verifier {
            verifier.suspect(now, checked);
        }
    }
}

impl Sending {
    /// Returns the offset below which all receivers that take part have verified the bytes that they have, so that the source may
    /// release them. `u64::MAX` without a key.
    pub(super) fn verified(&self) -> u64 {
        if self.sealer.is_none() {
            return u64::MAX;
        }
        let active = self.hosts.values().filter(|it| it.takes_part());
        active.map(|it| it.verified).min().unwrap_or(u64::MAX)
    }
}

impl<P: EnginePlatform> Engine<P> {
    /// Gives up receivers that acknowledge bytes and have not asked for their hashes for as long as a receiver may be silent. What a
    /// receiver acknowledges and does not verify stays in the source, so that it would hold up a pipe, and all other receivers, for ever.
    /// One that verifies asks again when it has used the hashes of one answer and, when it has all bytes that there are, says within
    /// [`ACK_AFTER`] that they are verified; it repeats both at least twice a second.
    pub(super) fn lose_unverifying(&mut self, now: Time) {
        let mut lost = Vec::new();
        for (session, sending) in &mut self.sending {
            let Sending { sealer, hosts, flow, works, check_at, offered, .. } = sending;
            if sealer.is_none() || now < *check_at {
                continue;
            }
            *check_at = now + flow.patience / 8;
            for view in self.host.receivers(*session) {
                let Some(receiver) = hosts.get_mut(&view.host) else { continue };
                let behind = view.have.saturating_sub(receiver.verified);
                let is_due =
                    behind > (MAX_HASHES as u64 + 1) * BLOCK || behind > 0 && view.have == *offered;
                // While the source works, what it has not read yet cannot be hashed.
                if !receiver.takes_part() || *works || !is_due {
                    receiver.unverified = None;
                    continue;
                }
                let (verified, since) =
                    *receiver.unverified.get_or_insert((receiver.verified, now));
                if receiver.verified > verified {
                    receiver.unverified = Some((receiver.verified, now));
                } else if now.since(since) >= flow.patience {
                    lost.push((*session, view.host));
                }
            }
        }
        for (session, host) in lost {
            // It is not invited again, as one that was restarted would be.
            self.host.remove(now, session, host);
        }
    }

    /// Answers a receiver's request for hashes.
    pub(super) fn handle_hash_request(&mut self, now: Time, host: HostId, request: &HashRequest) {
        let Some(sending) = self.sending.get_mut(&request.session) else { return };
        let Sending { source, hosts, hashes, offered, sent, finished, .. } = sending;
        let Some(receiver) = hosts.get_mut(&host) else { return };
        // A receiver needs no hash far beyond what was sent. The end of a file is readable only once all of the file was read, while
        // which nothing is sent to anyone.
        let near = sent.saturating_add((BLOCKS_AHEAD + 1) * BLOCK);
        let request = &HashRequest { upto: request.upto.min(near), ..*request };
        receiver.verified = receiver.verified.max(request.from.min(*offered));
        let most = offered.saturating_mul(READ_FACTOR).saturating_add(READ_MORE);
        let mut may_read = most.saturating_sub(receiver.read_for_hashes);
        let (answer, error) =
            hashes.answer(&mut **source, request, (*offered, *finished), &mut may_read);
        receiver.read_for_hashes = most - may_read;
        match error {
            None => {}
            // The receiver asks again.
            Some(SourceError::NotYet(_)) => sending.works = true,
            Some(error) if sending.error.is_none() => {
                sending.error = Some(error);
                self.host.abort(now, request.session, Reason::Refused);
            }
            Some(_) => {}
        }
        self.send_sealed(host, |out| super::SealedMessage::encode_hashes(&answer, out));
    }

    /// Gives a receiver a key of its own, with which this host sends to it from now on, by unicast. Nobody else has it.
    pub(super) fn handle_key_request(&mut self, host: HostId, request: &KeyRequest) {
        let Some(sending) = self.sending.get_mut(&request.session) else { return };
        let Some(secure) = self.secure.as_ref().filter(|_| sending.hosts.contains_key(&host))
        else {
            return;
        };
        let platform = self.driver.platform();
        let own = (sending.own_sealers.entry(host))
            .or_insert_with(|| data_seal(secure, random_bytes(platform)));
        let (cipher, key) = (own.key().0, *own.key().1);
        self.host.serve_by_unicast(request.session, host);
        self.send_sealed(host, |out| {
            super::SealedMessage::encode_key(request, (cipher, &key), out);
        });
    }

    fn incoming_of(&mut self, session: Session, host: HostId) -> Option<&mut Incoming> {
        let incoming = self.incoming.get_mut(&session)?;
        (incoming.host() == host).then_some(incoming)
    }

    /// Handles hashes of a host.
    pub(super) fn handle_hashes(&mut self, now: Time, host: HostId, hashes: &BlockHashes) {
        if let Some(incoming) = self.incoming_of(hashes.session, host)
            && let Some(verifier) = &mut incoming.verifier
        {
            verifier.handle_hashes(now, hashes);
        }
    }

    /// Handles that a host has stated the length of its stream.
    pub(super) fn handle_length(&mut self, host: HostId, session: Session, length: u64) {
        if let Some(incoming) = self.incoming_of(session, host)
            && let Some(verifier) = &mut incoming.verifier
        {
            verifier.set_length(length);
        }
    }

    /// Handles a key of this host's own, with which it begins to receive the session once more where its bytes are not verified.
    pub(super) fn handle_own_key(
        &mut self,
        now: Time,
        host: HostId,
        answer: &KeyRequest,
        opener: Box<GroupOpen>,
    ) {
        let Some(incoming) = self.incoming_of(answer.session, host) else { return };
        let Some(verifier) = &mut incoming.verifier else { return };
        let Some(at) = verifier.handle_own_key(answer) else { return };
        incoming.opener = Some(opener);
        // The answer may arrive after the last bytes were verified.
        if self.host.rejoin(now, answer.session, at)
            && let Some(incoming) = self.incoming_of(answer.session, host)
        {
            incoming.begin_again(at);
        }
    }
}
