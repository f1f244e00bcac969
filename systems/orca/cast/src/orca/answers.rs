//! Answers to manifests ([`Findings`]). The sender asks a receiver that has the whole manifest for one part of its answer after
//! another, and repeats what was not answered. The protocol is Rackweave's.
//!
//! ```text
//! 0: 0xB8   1: 0 ask, 1 answer   2: session (4 bytes)   6: part (4 bytes)   last 8: check
//! in an answer  10: length of all parts (4 bytes)   14: bytes of this part
//! ```
//!
//! With a key, what follows the first byte is sealed, without the check.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::Session;

use super::secure::SealedMessage;
use super::{Engine, EngineEvent, EnginePlatform, probe};
use crate::format::Findings;
use crate::sink::Answer;
use crate::source::Payload;

/// The first byte of a message, which differs from that of Orca packets and of other messages.
pub(super) const TAG: u8 = 0xb8;

/// The bytes of an answer in one part: it fits into packets of the smallest MTU.
const PART: usize = 192;

/// How long the first repetition of an ask waits; the wait doubles up to the maximum.
const RETRY: Span = Span::from_ms(10);
const RETRY_MAX: Span = Span::from_ms(500);

/// The most answers that a receiver keeps for senders that have not asked for all of them.
const MAX_KEPT: usize = 64;

const CHECK: usize = 8;

/// A sender's question, or a receiver's answer to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerMessage {
    /// The sender asks for a part.
    Ask {
        /// The session of the manifest.
        session: Session,
        /// The number of the part.
        part: u32,
    },
    /// The receiver answers.
    Answer {
        /// The session of the manifest.
        session: Session,
        /// The number of the part.
        part: u32,
        /// The length in bytes of all parts.
        length: u32,
        /// The bytes of the part.
        bytes: Bytes,
    },
}

impl AnswerMessage {
    /// Appends the message without the tag and the check.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (kind, session, part) = match self {
            Self::Ask { session, part } => (0, session, part),
            Self::Answer { session, part, .. } => (1, session, part),
        };
        out.push(kind);
        out.extend_from_slice(&session.0.to_be_bytes());
        out.extend_from_slice(&part.to_be_bytes());
        if let Self::Answer { length, bytes, .. } = self {
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(bytes);
        }
    }

    /// Decodes what [`Self::encode`] appends; `None` if it is malformed.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (front, bytes) = bytes.split_at_checked(9)?;
        let session = Session(front[1..5].try_into().ok().map(u32::from_be_bytes)?);
        let part = front[5..].try_into().ok().map(u32::from_be_bytes)?;
        match front[0] {
            0 if bytes.is_empty() => Some(Self::Ask { session, part }),
            1 => {
                let (length, bytes) = bytes.split_first_chunk()?;
                let (length, bytes) = (u32::from_be_bytes(*length), Bytes::copy_from_slice(bytes));
                (bytes.len() <= PART).then_some(Self::Answer { session, part, length, bytes })
            }
            _ => None,
        }
    }

    /// Encodes the message for hosts without a key.
    #[must_use]
    pub fn encode_plain(&self) -> Vec<u8> {
        let mut out = vec![TAG];
        self.encode(&mut out);
        let check = probe::check(&out, None);
        out.extend_from_slice(&check);
        out
    }

    /// Decodes a message of a host without a key; `None` if it is malformed.
    #[must_use]
    pub fn decode_plain(bytes: &[u8]) -> Option<Self> {
        let (front, check) = bytes.split_at_checked(bytes.len().checked_sub(CHECK)?)?;
        match front {
            [TAG, message @ ..] if probe::check(front, None) == check => Self::decode(message),
            _ => None,
        }
    }
}

/// An answer that is being asked for.
#[derive(Debug)]
struct Asking {
    entries: u32,
    /// The length of the answer, as its first part says.
    length: usize,
    got: Vec<u8>,
    /// When the receiver last said something new.
    heard: Time,
    next_at: Time,
    attempts: u8,
}

impl Asking {
    fn part(&self) -> u32 {
        (self.got.len() / PART) as u32
    }
}

/// An answer that this host has given.
#[derive(Debug)]
struct Kept {
    session: Session,
    host: HostId,
    bytes: Bytes,
    /// Whether the sender has asked for its last part.
    is_taken: bool,
}

/// The answers that this host asks for and gives.
#[derive(Debug, Default)]
pub(super) struct Answers {
    asking: BTreeMap<(Session, HostId), Asking>,
    kept: Vec<Kept>,
}

impl Answers {
    /// Returns when an ask is next due.
    pub(super) fn next_ask(&self) -> Option<Time> {
        self.asking.values().map(|asking| asking.next_at).min()
    }

    /// Returns whether a sender has not taken the whole answer yet.
    pub(super) fn has_untaken(&self) -> bool {
        self.kept.iter().any(|kept| !kept.is_taken)
    }

    pub(super) fn ask(&mut self, now: Time, session: Session, host: HostId, entries: u32) {
        let (length, got) = (0, Vec::new());
        let asking = Asking { entries, length, got, heard: now, next_at: now, attempts: 0 };
        self.asking.insert((session, host), asking);
    }

    pub(super) fn keep(&mut self, session: Session, host: HostId, answer: &Answer) {
        if self.kept.len() >= MAX_KEPT {
            self.kept.remove(0);
        }
        self.kept.push(Kept { session, host, bytes: answer.bytes.clone(), is_taken: false });
    }

    /// Returns the length of an answer that this host has given to another one, and a part of it.
    fn part_of(&mut self, session: Session, host: HostId, part: u32) -> Option<(u32, Bytes)> {
        let kept = self.kept.iter_mut().find(|it| (it.session, it.host) == (session, host))?;
        let from = (part as usize).checked_mul(PART)?;
        let to = from.saturating_add(PART).min(kept.bytes.len());
        if from > to {
            return None;
        }
        kept.is_taken |= to == kept.bytes.len();
        Some((kept.bytes.len() as u32, kept.bytes.slice(from..to)))
    }

    /// Takes a part of an answer. Returns whether it was expected, and the answer once it is whole. A part of another length
    /// than the next one has is not taken, nor is a malformed answer.
    fn take(
        &mut self,
        now: Time,
        key: (Session, HostId),
        (part, length): (u32, u32),
        bytes: &[u8],
    ) -> (bool, Option<Findings>) {
        let Some(asking) = self.asking.get_mut(&key) else { return (false, None) };
        let length = length as usize;
        let (least, most) = Findings::lengths(asking.entries);
        let is_same = part == 0 || length == asking.length;
        if part != asking.part() || !is_same || !(least..=most).contains(&length) {
            return (false, None);
        }
        if bytes.len() != (length - asking.got.len()).min(PART) {
            return (false, None);
        }
        asking.length = length;
        asking.got.extend_from_slice(bytes);
        if asking.got.len() < length {
            (asking.heard, asking.next_at, asking.attempts) = (now, now, 0);
            return (true, None);
        }
        let answer = Findings::decode(&asking.got, asking.entries);
        if answer.is_none() {
            asking.got.clear();
            return (false, None);
        }
        self.asking.remove(&key);
        (true, answer)
    }
}

impl<P: EnginePlatform> Engine<P> {
    /// Handles a message of a host without a key.
    pub(super) fn handle_plain_answer(&mut self, now: Time, from: Option<HostId>, bytes: &[u8]) {
        let message = AnswerMessage::decode_plain(bytes).filter(|_| self.secure.is_none());
        match (message, from) {
            (Some(message), Some(host)) => self.handle_answer(now, host, message),
            (Some(_), None) => self.stats.foreign += 1,
            (None, _) => self.stats.malformed += 1,
        }
    }

    pub(super) fn handle_answer(&mut self, now: Time, host: HostId, message: AnswerMessage) {
        match message {
            AnswerMessage::Ask { session, part } => {
                if let Some((length, bytes)) = self.answers.part_of(session, host, part) {
                    self.say(host, &AnswerMessage::Answer { session, part, length, bytes });
                }
            }
            AnswerMessage::Answer { session, part, length, bytes } => {
                let part = (part, length);
                let (taken, findings) = self.answers.take(now, (session, host), part, &bytes);
                self.stats.malformed += u64::from(!taken);
                if findings.is_some() {
                    self.events.push_back(EngineEvent::Answered { session, host, findings });
                }
            }
        }
    }

    fn say(&mut self, host: HostId, message: &AnswerMessage) {
        if self.secure.is_some() {
            self.send_sealed(host, |out| SealedMessage::encode_answer(message, out));
        } else if let Some(path) = self.peers.path(host) {
            let bytes = message.encode_plain();
            self.stats.sent_bytes += bytes.len() as u64 + 28;
            self.push(path, |out| out.extend_from_slice(&bytes), Payload::new());
        }
    }

    /// Asks what is due, and gives up receivers that have said nothing new for as long as the patience of a session.
    pub(super) fn poll_answers(&mut self, now: Time) {
        let patience = self.config.flow.patience;
        let due: Vec<(Session, HostId)> = (self.answers.asking.iter())
            .filter(|(_, asking)| asking.next_at <= now)
            .map(|(key, _)| *key)
            .collect();
        for key @ (session, host) in due {
            let Some(asking) = self.answers.asking.get_mut(&key) else { continue };
            if now.since(asking.heard) >= patience {
                self.answers.asking.remove(&key);
                self.events.push_back(EngineEvent::Answered { session, host, findings: None });
                continue;
            }
            let wait = (RETRY * (1 << asking.attempts.min(6))).min(RETRY_MAX);
            (asking.next_at, asking.attempts) = (now + wait, asking.attempts.saturating_add(1));
            let part = asking.part();
            self.say(host, &AnswerMessage::Ask { session, part });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::{Deletion, Lacking};

    proptest! {
        #[test]
        fn messages_come_back_and_any_bytes_are_harmless(
            session: u32, part: u32, length: u32, bytes in prop::collection::vec(any::<u8>(), 0..PART), at in any::<prop::sample::Index>()
        ) {
            let (session, noise) = (Session(session), bytes.clone());
            for message in [AnswerMessage::Ask { session, part }, AnswerMessage::Answer { session, part, length, bytes: bytes.into() }] {
                let mut plain = message.encode_plain();
                prop_assert_eq!(AnswerMessage::decode_plain(&plain), Some(message));
                let at = at.index(plain.len());
                plain[at] ^= 1;
                prop_assert_eq!(AnswerMessage::decode_plain(&plain), None);
            }
            let _ = AnswerMessage::decode(&noise);
            let _ = AnswerMessage::decode_plain(&noise);
        }
    }

    #[test]
    fn an_answer_of_another_length_or_place_is_not_taken() {
        let (now, host, session) = (Time::ZERO, HostId(3), Session(9));
        let entries = 8 * PART as u32 + 4;
        let mut lacking = Lacking::nothing(entries);
        lacking.add(8 * PART as u32 + 3);
        let deletion = Deletion::None;
        let findings = Findings { lacking, differences: None, deletion, obstacle: None };
        let bytes = findings.encode();
        let length = bytes.len() as u32;
        assert_eq!(length as usize, PART + 2);
        let mut answers = Answers::default();
        answers.ask(now, session, host, entries);
        let key = (session, host);
        let (first, last) = bytes.split_at(PART);
        let no = (false, None);
        assert_eq!(answers.take(now, (Session(8), host), (0, length), first), no);
        assert_eq!(answers.take(now, (session, HostId(4)), (0, length), first), no);
        assert_eq!(answers.take(now, key, (1, length), last), no);
        assert_eq!(answers.take(now, key, (0, length), &first[1..]), no);
        for wrong in [length - 1, u32::MAX] {
            assert_eq!(answers.take(now, key, (0, wrong), first), no);
        }
        assert_eq!(answers.take(now, key, (0, length), first), (true, None));
        assert_eq!(answers.take(now, key, (0, length), first), no);
        assert_eq!(answers.take(now, key, (1, length), &[0, 0, 0]), no);
        assert_eq!(answers.take(now, key, (1, length + 1), &[0, 0, 0]), no);
        // A bit of an entry that does not exist: the answer is asked for once more.
        assert_eq!(answers.take(now, key, (1, length), &[0, 0x10]), no);
        assert_eq!(answers.take(now, key, (0, length), first), (true, None));
        assert_eq!(answers.take(now, key, (1, length), last), (true, Some(findings)));
        assert_eq!(answers.take(now, key, (1, length), last), no, "it is over");
    }
}
