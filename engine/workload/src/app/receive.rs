//! Application threads, which model the time that a host takes to process arrivals.
//!
//! A host has one thread for each stream of messages whose application takes time. The thread processes one
//! item after the other, in the order of arrival: a complete message, or some bytes of a stream. Applications
//! that take no time have no threads.

use std::collections::VecDeque;

use rackweave_core::{HostId, Kind, MessageId, Span, Time};

use super::App;
use super::channel::Direction;
use super::message::MessageKey;
use crate::application::Application;

/// Maximum number of bytes of a stream that a thread processes at once: a page of Homa's receive buffers
/// (`HOMA_BPAGE_SIZE` of HomaModule), and a common buffer size of a `read`.
const READ_BYTES: u64 = 64 << 10;

/// An item for an application to process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A message that has arrived completely.
    Message(ReceivedMessage),
    /// The next bytes of a stream of bytes.
    Bytes { direction: Direction, bytes: u64 },
}

/// A message that has arrived, as far as its receiver knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceivedMessage {
    pub(super) peer: HostId,
    pub(super) id: MessageId,
    pub(super) bytes: u64,
    pub(super) kind: Kind,
    pub(super) key: MessageKey,
    /// The direction of the stream of bytes that carried it; `None` without streams.
    pub(super) direction: Option<Direction>,
    /// Its number in a collective.
    pub(super) number: u64,
}

/// One thread of a host's application.
#[derive(Debug, Default)]
pub(super) struct Thread {
    queue: VecDeque<Work>,
    /// The end of the current item's processing, and the item.
    current: Option<(Time, Option<Work>)>,
}

impl Thread {
    /// Drops a message that its sender has given up. The time that the thread has spent on it is lost.
    pub(super) fn forget(&mut self, peer: HostId, id: MessageId) {
        let is_it = |work: &Work| match work {
            Work::Message(message) => (message.peer, message.id) == (peer, id),
            Work::Bytes { .. } => false,
        };
        self.queue.retain(|work| !is_it(work));
        if let Some((_, work)) = &mut self.current {
            work.take_if(|work| is_it(work));
        }
    }

    /// The items that were not processed, in order.
    pub(super) fn into_works(self) -> impl Iterator<Item = Work> {
        self.current.and_then(|(_, work)| work).into_iter().chain(self.queue)
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.current.as_ref().map(|(at, _)| *at)
    }
}

impl App {
    /// Handles an arrival for the application of a stream of messages.
    pub(super) fn enqueue_work(&mut self, now: Time, stream: u16, work: Work) {
        if self.application(stream).is_instant() {
            return self.work_done(now, stream, work);
        }
        let thread = &mut self.threads[usize::from(stream)];
        match (thread.queue.back_mut(), work) {
            (
                Some(Work::Bytes { direction: last, bytes: waiting }),
                Work::Bytes { direction, bytes },
            ) if *last == direction => *waiting += bytes,
            _ => thread.queue.push_back(work),
        }
        if thread.current.is_none() {
            self.start_work(now, stream);
        }
    }

    fn application(&self, stream: u16) -> Application {
        self.streams[usize::from(stream)].application
    }

    /// Starts the next item of a thread that is idle.
    fn start_work(&mut self, now: Time, stream: u16) {
        let application = self.application(stream);
        while let Some(mut work) = self.threads[usize::from(stream)].queue.pop_front() {
            let cost = match &mut work {
                Work::Message(message) => {
                    self.is_wanted(message).then(|| whole_message_cost(application, message.bytes))
                }
                Work::Bytes { direction, bytes } => {
                    let arrived = *bytes;
                    let cost = self.read_cost(application, *direction, bytes);
                    if cost.is_some() && arrived > *bytes {
                        let (direction, bytes) = (*direction, arrived - *bytes);
                        let rest = Work::Bytes { direction, bytes };
                        self.threads[usize::from(stream)].queue.push_front(rest);
                    }
                    cost
                }
            };
            // What has failed in the meantime costs nothing.
            let Some(cost) = cost else { continue };
            let at = now.saturating_add(cost);
            self.threads[usize::from(stream)].current = Some((at, Some(work)));
            return;
        }
    }

    /// The time to read from a stream. Limits `bytes` to what is read at once: not beyond the end of a
    /// message, so that it is complete as soon as possible.
    fn read_cost(
        &self,
        application: Application,
        direction: Direction,
        bytes: &mut u64,
    ) -> Option<Span> {
        let (is_first, left) = self.channels.next_read(direction)?;
        *bytes = (*bytes).min(left).min(READ_BYTES);
        let per_rpc = if is_first { application.per_rpc } else { Span::ZERO };
        let per_message = if *bytes == left { application.per_message } else { Span::ZERO };
        Some(per_rpc + per_message + application.copying(*bytes))
    }

    /// Ends the work of one thread that is due.
    pub(super) fn finish_due_work(&mut self, now: Time) {
        let is_due = |thread: &Thread| thread.due().is_some_and(|at| at <= now);
        let Some(stream) = self.threads.iter().position(is_due) else { return };
        let work = self.threads[stream].current.take().and_then(|(_, work)| work);
        if let Some(work) = work {
            self.work_done(now, stream as u16, work);
        }
        self.start_work(now, stream as u16);
    }

    /// Handles an item that the application has processed.
    fn work_done(&mut self, now: Time, stream: u16, work: Work) {
        match work {
            Work::Message(message) => self.processed(now, stream, message),
            Work::Bytes { direction, bytes } => self.consumed(now, stream, direction, bytes),
        }
    }
}

fn whole_message_cost(application: Application, bytes: u64) -> Span {
    application.per_rpc + application.per_message + application.copying(bytes)
}
