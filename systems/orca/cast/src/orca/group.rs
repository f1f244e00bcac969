//! Finds the members of a named group: a multicast query that each member answers by unicast. The protocol is our own.
//!
//! ```text
//!  0: 0xB6   1: 0 query, 1 answer     2: random number of the query (8 bytes)
//! 10: length of the name (1 to 64)      11: the name            then 8 bytes of BLAKE3 of all before, keyed if there is a key
//! ```

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;

use rackweave_core::Span;
use rackweave_linux::addresses::plain;
use rackweave_linux::sys::Path;
use rackweave_linux::{Driver, Platform as _};

use super::probe::check;
use super::{Engine, EnginePlatform};
use crate::source::Payload;

/// The first byte of a message, which differs from that of Orca packets and probes.
pub(super) const TAG: u8 = 0xb6;

/// The number of bytes before the name.
const FRONT: usize = 11;

/// The number of bytes of the check at the end.
const CHECK: usize = 8;

/// The longest name of a group in bytes.
pub const MAX_GROUP_NAME: usize = 64;

/// The largest number of members that a query collects.
const MAX_MEMBERS: usize = 4096;

/// The time until the first repetition of a query; it doubles after each.
const FIRST_RETRY: Span = Span::from_ms(8);

/// The longest time between repetitions of a query.
const MAX_RETRY: Span = Span::from_ms(250);

/// A query for the members of a group, or an answer to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMessage<'a> {
    /// Whether this is an answer.
    pub answer: bool,
    /// The random number of the query, which its answers repeat.
    pub nonce: u64,
    /// The name of the group.
    pub name: &'a str,
}

/// Returns whether a group can have this name: 1 to 64 bytes without control characters.
#[must_use]
pub fn is_group_name(name: &str) -> bool {
    (1..=MAX_GROUP_NAME).contains(&name.len()) && !name.chars().any(char::is_control)
}

impl<'a> GroupMessage<'a> {
    /// Encodes the message. An invalid name is encoded as an empty one, which every receiver rejects.
    #[must_use]
    pub fn encode(&self, secret: Option<&[u8; 32]>) -> Vec<u8> {
        let name = if is_group_name(self.name) { self.name.as_bytes() } else { b"" };
        let mut bytes = vec![TAG, u8::from(self.answer)];
        bytes.extend_from_slice(&self.nonce.to_be_bytes());
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(name);
        let check = check(&bytes, secret);
        bytes.extend_from_slice(&check);
        bytes
    }

    /// Decodes a message; `None` if it is malformed or was made with another key.
    #[must_use]
    pub fn decode(bytes: &'a [u8], secret: Option<&[u8; 32]>) -> Option<Self> {
        let (front, said) = bytes.split_at_checked(bytes.len().checked_sub(CHECK)?)?;
        let (fixed, name) = front.split_at_checked(FRONT)?;
        if fixed[0] != TAG || fixed[1] > 1 || name.len() != usize::from(fixed[10]) {
            return None;
        }
        let name = std::str::from_utf8(name).ok().filter(|name| is_group_name(name))?;
        if check(front, secret) != said {
            return None;
        }
        let nonce = fixed[2..10].try_into().ok().map(u64::from_be_bytes)?;
        Some(Self { answer: fixed[1] == 1, nonce, name })
    }
}

/// A query that collects answers.
#[derive(Debug)]
pub(super) struct Query {
    name: String,
    nonce: u64,
    members: BTreeSet<SocketAddr>,
}

impl<P: EnginePlatform> Engine<P> {
    /// Answers a query if this host is a member and the querier is admitted as a sender, and collects answers to this host's own query.
    pub(super) fn handle_group(&mut self, from: Path, bytes: &[u8], as_sender: bool) {
        let Some(message) = GroupMessage::decode(bytes, self.secret.as_ref()) else {
            self.stats.malformed += 1;
            return;
        };
        if message.answer {
            if let Some(query) = &mut self.query
                && (query.nonce, query.name.as_str()) == (message.nonce, message.name)
                && query.members.len() < MAX_MEMBERS
            {
                query.members.insert(plain(from.remote));
            }
            return;
        }
        if as_sender
            && self.accept.is_some()
            && self.config.groups.iter().any(|mine| mine == message.name)
        {
            let answer = GroupMessage { answer: true, ..message }.encode(self.secret.as_ref());
            self.reply(from, &answer);
        }
    }
}

impl Engine {
    /// Returns the addresses of a group's members. It waits for at most `wait`, and returns earlier once `expect`
    /// members have answered or `stop` returns true. Without a key, any host on the network can claim to be a member.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn members(
        &mut self,
        name: &str,
        expect: Option<usize>,
        wait: Span,
        stop: &dyn Fn() -> bool,
    ) -> io::Result<Vec<SocketAddr>> {
        let nonce = self.driver.platform().random() as u64;
        let question = GroupMessage { answer: false, nonce, name }.encode(self.secret.as_ref());
        self.query = Some(Query { name: name.to_owned(), nonce, members: BTreeSet::new() });
        let (mut now, mut pause) = (self.driver.now(), FIRST_RETRY);
        let (limit, mut next) = (now + wait, now);
        let found = |this: &Self| this.query.as_ref().map_or(0, |query| query.members.len());
        while now < limit && expect.is_none_or(|expect| found(self) < expect) && !stop() {
            if now >= next {
                let to = self.group_address();
                self.push(to, |out| out.extend_from_slice(&question), Payload::new());
                next = now + pause;
                pause = (pause * 2).min(MAX_RETRY);
            }
            self.waker.clear();
            self.send(now)?;
            if !Driver::receive(self)? {
                self.wait(Some(next.min(limit)))?;
            }
            now = self.driver.now();
        }
        Ok(self.query.take().map_or_else(Vec::new, |it| it.members.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_are_read_back_by_those_with_the_key_only(
            answer: bool,
            nonce: u64,
            name in "[^\\p{Cc}]{1,16}",
            place: prop::sample::Index,
        ) {
            let (mine, other) = ([1; 32], [2; 32]);
            let message = GroupMessage { answer, nonce, name: &name };
            for key in [None, Some(&mine)] {
                let bytes = message.encode(key);
                prop_assert_eq!(GroupMessage::decode(&bytes, key), Some(message));
                prop_assert_eq!(GroupMessage::decode(&bytes, Some(&other)), None);
                let mut bad = bytes.clone();
                bad[place.index(bytes.len())] ^= 1;
                prop_assert_eq!(GroupMessage::decode(&bad, key), None);
                prop_assert_eq!(GroupMessage::decode(&bytes[..place.index(bytes.len())], key), None);
            }
        }

        #[test]
        fn nothing_makes_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..100), tag: bool) {
            if tag && !bytes.is_empty() {
                bytes[0] = TAG;
            }
            if let Some(message) = GroupMessage::decode(&bytes, None) {
                prop_assert_eq!(message.encode(None), bytes);
            }
        }
    }

    #[test]
    fn names_have_bounds() {
        for name in ["", "a\nb", &"x".repeat(65)] {
            assert!(!is_group_name(name));
            let bytes = GroupMessage { answer: false, nonce: 1, name }.encode(None);
            assert_eq!(GroupMessage::decode(&bytes, None), None);
        }
        assert!(is_group_name(&"x".repeat(64)));
    }
}
