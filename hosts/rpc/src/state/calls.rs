//! Outgoing calls and one-way messages.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::{HostId, Kind, MessageId, Refused, Time};
use rackweave_linux::SendError;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::{Due, Outcome, State, Wake};
use crate::error::{CallError, Refusal};
use crate::node::Peer;
use crate::trailer::{self, Status};

/// Options of a call.
#[derive(Debug)]
pub(crate) struct CallOptions {
    pub(crate) peer: Peer,
    pub(crate) kind: Kind,
    pub(crate) bytes: Bytes,
    /// `None`: the node's default deadline.
    pub(crate) deadline: Option<Duration>,
    /// Whether it may be executed a second time by a restarted server.
    pub(crate) idempotent: bool,
    /// Whether it may wait for room.
    pub(crate) waits: bool,
}

/// An outstanding call.
#[derive(Debug)]
struct Entry {
    peer: Peer,
    kind: Kind,
    /// The id of its message, once the endpoint has accepted it.
    id: Option<MessageId>,
    /// The bytes to send, kept for a retry.
    bytes: Option<Bytes>,
    idempotent: bool,
    /// The time of the next retry, if one is scheduled.
    retry_at: Option<Time>,
    due: Time,
    deadline: Duration,
    done: oneshot::Sender<Outcome>,
}

/// A response that waits for room.
#[derive(Debug)]
struct Answer {
    peer: Peer,
    request: MessageId,
    bytes: Bytes,
    done: Option<oneshot::Sender<Outcome>>,
}

/// Calls by token, and the queues of calls that wait for room.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    next: u64,
    entries: FxHashMap<u64, Entry>,
    by_message: FxHashMap<(HostId, MessageId), u64>,
    /// Calls that wait for room, in the order in which they were made.
    waiting: BTreeSet<u64>,
    /// Responses that wait; bounded by the number of admitted requests.
    answers: std::collections::VecDeque<Answer>,
}

impl Calls {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
    pub(super) fn waits_for_room(&self) -> bool {
        !self.waiting.is_empty() || !self.answers.is_empty()
    }
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.answers.is_empty()
    }
}

/// The delay before an idempotent call is retried.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Returns whether an error means that there is no room now, but will be later.
const fn is_full(error: SendError) -> bool {
    matches!(error, SendError::Full { .. } | SendError::Refused(Refused::Busy))
}

impl State {
    /// Starts a call. The token that it returns is for [`State::cancel_call`].
    pub(crate) fn start_call(
        &mut self,
        options: CallOptions,
        done: oneshot::Sender<Outcome>,
    ) -> Result<u64, CallError> {
        if let Some(error) = self.stopped() {
            return Err(error);
        }
        let deadline = options.deadline.unwrap_or(self.config.deadline);
        let due = self.after(deadline);
        let bytes = match options.kind {
            Kind::Request => {
                let left = u32::try_from(deadline.as_micros()).ok();
                trailer::request(options.bytes, left)
            }
            _ => trailer::answer(options.bytes, Status::Answer),
        };
        let entry = Entry {
            peer: options.peer,
            kind: options.kind,
            id: None,
            bytes: Some(bytes),
            idempotent: options.idempotent,
            retry_at: None,
            due,
            deadline,
            done,
        };
        let token = self.calls.next;
        self.calls.next += 1;
        self.calls.entries.insert(token, entry);
        // Calls that wait already come first.
        let sent = if self.calls.waiting.is_empty() { self.submit(token) } else { Ok(false) };
        match sent {
            Ok(true) => {}
            Ok(false)
                if options.waits && self.calls.waiting.len() < self.config.max_waiting_calls =>
            {
                self.calls.waiting.insert(token);
            }
            Ok(false) => {
                self.calls.entries.remove(&token);
                return Err(self.full());
            }
            Err(error) => {
                self.calls.entries.remove(&token);
                return Err(error);
            }
        }
        if due < Time::MAX {
            self.due.insert((due, Due::Call(token)));
        }
        self.submitted();
        Ok(token)
    }

    /// Passes a call to the endpoint; returns `false` if there is no room.
    fn submit(&mut self, token: u64) -> Result<bool, CallError> {
        let Some(entry) = self.calls.entries.get_mut(&token) else { return Ok(true) };
        let (peer, kind) = (entry.peer, entry.kind);
        let Some(bytes) = entry.bytes.clone() else { return Ok(true) };
        let len = bytes.len() as u64;
        let idempotent = entry.idempotent;
        let endpoint = self.endpoint()?;
        let sent = match idempotent {
            true => endpoint.send_idempotent(peer.host, kind, bytes),
            false => endpoint.send(peer.host, kind, bytes),
        };
        match sent {
            Ok(id) => {
                if let Some(entry) = self.calls.entries.get_mut(&token) {
                    entry.id = Some(id);
                    if !entry.idempotent {
                        entry.bytes = None;
                    }
                }
                self.calls.by_message.insert((peer.host, id), token);
                Ok(true)
            }
            Err(error) if is_full(error) => Ok(false),
            Err(error) => {
                let added = match kind {
                    Kind::Request => trailer::REQUEST_BYTES,
                    _ => trailer::ANSWER_BYTES,
                } as u64;
                Err(self.refused(peer, len - added, added, error))
            }
        }
    }

    /// Removes a call from all lists.
    fn take_call(&mut self, token: u64) -> Option<Entry> {
        let entry = self.calls.entries.remove(&token)?;
        match entry.id {
            Some(id) => drop(self.calls.by_message.remove(&(entry.peer.host, id))),
            None => drop(self.calls.waiting.remove(&token)),
        }
        self.due.remove(&(entry.due, Due::Call(token)));
        if let Some(at) = entry.retry_at {
            self.due.remove(&(at, Due::Retry(token)));
        }
        Some(entry)
    }

    fn end_call(&mut self, token: u64, outcome: Outcome) {
        let Some(entry) = self.take_call(token) else { return };
        match &outcome {
            Ok(_) => self.counted.answered += 1,
            Err(error) => {
                self.counted.failed += 1;
                let peer = self.peer_addr(entry.peer.host);
                tracing::debug!(node = self.number, %peer, %error, "call failed");
            }
        }
        self.wakes.push(Wake::Call(entry.done, outcome));
    }

    /// Cancels a call, so that its response is ignored.
    pub(crate) fn cancel_call(&mut self, token: u64) {
        let Some(entry) = self.take_call(token) else { return };
        if let Some(id) = entry.id {
            self.withdraw(entry.peer.host, id);
            self.room_made();
        }
    }

    /// Makes the transport forget a message.
    fn withdraw(&mut self, peer: HostId, id: MessageId) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.cancel(peer, id);
        }
    }

    pub(super) fn call_expired(&mut self, token: u64) {
        let Some(entry) = self.calls.entries.get(&token) else { return };
        let (peer, id) = (entry.peer, entry.id);
        let error = CallError::Deadline { peer: peer.address, deadline: entry.deadline };
        if let Some(id) = id {
            self.withdraw(peer.host, id);
        }
        self.end_call(token, Err(error));
    }

    pub(super) fn on_answer(&mut self, peer: HostId, id: MessageId, bytes: &Bytes) {
        let request = MessageId(id.0 & !1);
        let Some(&token) = self.calls.by_message.get(&(peer, request)) else { return };
        let peer = self.peer_addr(peer);
        let refused = |why| Err(CallError::Refused { peer, why });
        let outcome = match trailer::read_answer(bytes) {
            Some((body, Status::Answer)) => Ok(body),
            Some((_, Status::Unanswered)) => Err(CallError::Unanswered { peer }),
            Some((_, Status::Full)) => refused(Refusal::Full),
            Some((_, Status::NotServing)) => refused(Refusal::NotServing),
            Some((_, Status::Stopping)) => refused(Refusal::Stopping),
            Some((_, Status::Expired)) => refused(Refusal::Expired),
            None => {
                self.counted.malformed += 1;
                Err(CallError::Malformed { peer })
            }
        };
        self.end_call(token, outcome);
    }

    /// The receiver has acknowledged a message.
    pub(super) fn on_sent(&mut self, peer: HostId, id: MessageId) {
        if let Some(&token) = self.calls.by_message.get(&(peer, id))
            && let Some(entry) = self.calls.entries.get(&token)
            && entry.kind == Kind::OneWay
        {
            self.end_call(token, Ok(Bytes::new()));
        }
        self.wake_blocked();
    }

    /// Fails the call with this message; returns `false` if the message belongs to no call.
    pub(super) fn fail_call(&mut self, peer: HostId, id: MessageId, error: &CallError) -> bool {
        let Some(&token) = self.calls.by_message.get(&(peer, id)) else { return false };
        let at = self.after(RETRY_DELAY);
        let can_retry =
            matches!(error, CallError::PeerForgot { .. } | CallError::PeerSilent { .. });
        match self.calls.entries.get_mut(&token) {
            Some(entry) if entry.idempotent && can_retry => {
                entry.id = None;
                entry.retry_at = Some(at);
                self.calls.by_message.remove(&(peer, id));
                self.due.insert((at, Due::Retry(token)));
            }
            _ => self.end_call(token, Err(error.clone())),
        }
        true
    }

    /// The peer has restarted: idempotent calls are retried, others fail.
    pub(super) fn restart_calls(&mut self, peer: HostId) {
        let error = CallError::PeerRestarted { peer: self.peer_addr(peer) };
        self.end_calls(peer, &error, true);
    }

    /// All calls to a peer fail; idempotent ones are retried instead if `retry` is true.
    pub(super) fn end_calls(&mut self, peer: HostId, error: &CallError, retry: bool) {
        let mut tokens: Vec<u64> = self
            .calls
            .entries
            .iter()
            .filter_map(|(token, entry)| {
                (entry.peer.host == peer && entry.id.is_some()).then_some(*token)
            })
            .collect();
        tokens.sort_unstable();
        for token in tokens {
            let Some(entry) = self.calls.entries.get(&token) else { continue };
            if entry.idempotent && retry {
                self.retry_call(token);
                continue;
            }
            if let (Some(id), Some(endpoint)) = (entry.id, &mut self.endpoint) {
                endpoint.cancel(peer, id);
            }
            self.end_call(token, Err(error.clone()));
        }
    }

    /// Retries a call under a new id.
    pub(super) fn retry_call(&mut self, token: u64) {
        let Some(entry) = self.calls.entries.get_mut(&token) else { return };
        entry.retry_at = None;
        let peer = entry.peer.host;
        if let (Some(id), Some(endpoint)) = (entry.id.take(), &mut self.endpoint) {
            endpoint.cancel(peer, id);
            self.calls.by_message.remove(&(peer, id));
        }
        match self.submit(token) {
            Ok(true) => self.dirty = true,
            Ok(false) => drop(self.calls.waiting.insert(token)),
            Err(error) => self.end_call(token, Err(error)),
        }
    }

    pub(super) fn fail_all_calls(&mut self, error: &CallError) {
        let calls = std::mem::take(&mut self.calls);
        let answers = calls.answers.into_iter().filter_map(|answer| answer.done);
        // The order in which tasks are woken does not matter.
        #[expect(clippy::iter_over_hash_type, reason = "see above")]
        for (_, entry) in calls.entries {
            self.wakes.push(Wake::Call(entry.done, Err(error.clone())));
        }
        for done in answers {
            self.wakes.push(Wake::Call(done, Err(error.clone())));
        }
        self.calls.next = calls.next;
    }

    /// Answers a request. `Ok(false)` means that the response waits for room, and that `done` is notified later.
    pub(crate) fn answer(
        &mut self,
        peer: Peer,
        request: MessageId,
        bytes: Bytes,
        done: Option<oneshot::Sender<Outcome>>,
    ) -> Result<bool, CallError> {
        let len = bytes.len() as u64;
        let answer = Answer { peer, request, bytes, done };
        let sent = match self.calls.answers.is_empty() {
            true => self.endpoint()?.respond(peer.host, request, answer.bytes.clone()),
            false => Err(SendError::Full { waiting: 0 }),
        };
        self.dirty = true;
        match sent {
            Ok(()) => Ok(true),
            Err(error) if is_full(error) => {
                self.calls.answers.push_back(answer);
                Ok(false)
            }
            Err(error) => {
                let added = trailer::ANSWER_BYTES as u64;
                Err(self.refused(peer, len - added, added, error))
            }
        }
    }

    /// Sends calls and responses that wait for room, while there is some.
    pub(super) fn submit_waiting(&mut self) {
        while let Some(answer) = self.calls.answers.front() {
            let (peer, request, bytes) = (answer.peer, answer.request, answer.bytes.clone());
            let len = bytes.len() as u64;
            // Its caller has cancelled it.
            let given_up = answer.done.as_ref().is_some_and(oneshot::Sender::is_closed);
            let sent = match &mut self.endpoint {
                Some(endpoint) if !given_up => endpoint.respond(peer.host, request, bytes),
                _ => Ok(()),
            };
            let outcome = match sent {
                Err(error) if is_full(error) => return,
                Err(error) => Err(self.refused(peer, len - 1, 1, error)),
                Ok(()) => Ok(Bytes::new()),
            };
            self.dirty = true;
            if let Some(done) = self.calls.answers.pop_front().and_then(|answer| answer.done) {
                self.wakes.push(Wake::Call(done, outcome));
            }
        }
        while let Some(&token) = self.calls.waiting.first() {
            match self.submit(token) {
                Ok(false) => return,
                Ok(true) => {
                    self.calls.waiting.remove(&token);
                    self.dirty = true;
                }
                Err(error) => self.end_call(token, Err(error)),
            }
        }
    }

    /// Bytes that waited to be sent have been freed.
    pub(super) fn room_made(&mut self) {
        self.wake_blocked();
        if !self.calls.waiting.is_empty() || !self.calls.answers.is_empty() {
            self.submitted();
        }
    }

    /// The time left to a request, by its sender's trailer.
    pub(super) fn until(&self, left_us: Option<u32>) -> Time {
        left_us.map_or(Time::MAX, |us| self.after(Duration::from_micros(u64::from(us))))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::span;

    #[test]
    fn durations_without_end_are_no_deadline() {
        assert_eq!(span(Duration::MAX), rackweave_core::Span::MAX);
        assert_eq!(span(Duration::from_millis(2)), rackweave_core::Span::from_ms(2));
    }
}
