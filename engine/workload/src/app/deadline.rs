//! Deadlines of messages ([`AppStream::deadline`](super::AppStream::deadline)).

use std::collections::VecDeque;

use rackweave_core::{FailReason, Span, Time};

use super::message::{MessageKey, Messages};
use super::{Action, App};

/// Number of entries of messages that have ended that are not worth a search for them.
const FEW: usize = 64;

/// The deadlines of a stream's messages at one host.
#[derive(Debug)]
pub(super) struct Deadlines {
    after: Span,
    /// In the order of time, because all messages have the same time. The first message has not ended; others may have.
    queue: VecDeque<(Time, MessageKey)>,
}

impl Deadlines {
    pub(super) const fn new(after: Span) -> Self {
        Self { after, queue: VecDeque::new() }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Removes messages that have ended from the front.
    pub(super) fn forget_ended(&mut self, messages: &Messages) {
        let has_ended = |entry: &mut (Time, MessageKey)| messages.get(entry.1).is_none();
        while self.queue.pop_front_if(has_ended).is_some() {}
    }
}

impl App {
    /// Starts the time that a message has, when it is first submitted.
    pub(super) fn start_deadline(&mut self, now: Time, stream: u16, key: MessageKey) {
        let state = &mut self.streams[usize::from(stream)];
        let Some(Deadlines { after, queue }) = &mut state.deadlines else { return };
        // One message that takes long must not keep the entries of all later ones.
        if queue.len() as u64 > state.alive.saturating_mul(2).saturating_add(FEW as u64) {
            queue.retain(|(_, key)| self.messages.get(*key).is_some());
        }
        queue.push_back((now.saturating_add(*after), key));
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        let all = self.streams.iter().filter_map(|stream| stream.deadlines.as_ref());
        all.filter_map(|deadlines| deadlines.queue.front()).map(|(at, _)| *at).min()
    }

    /// Fails one message whose deadline has passed; returns whether there was one.
    pub(super) fn expire(&mut self, now: Time) -> bool {
        let passed = |deadlines: &Deadlines| {
            deadlines.queue.front().filter(|(at, _)| *at <= now).map(|(_, key)| *key)
        };
        let all = self.streams.iter().filter_map(|stream| stream.deadlines.as_ref());
        let Some(key) = all.into_iter().find_map(passed) else { return false };
        let Some(&message) = self.messages.get(key) else { return false };
        if let (None, Some(id)) = (message.channel, message.id) {
            let instance = self.streams[usize::from(message.stream)].instance;
            self.push(Action::Cancel { instance, peer: message.dst, id });
        }
        self.fail(now, key, FailReason::Deadline);
        true
    }
}
