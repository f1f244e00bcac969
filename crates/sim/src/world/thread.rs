//! Application threads: the time that hosts take for what arrives.
//!
//! A host has one thread for each stream of messages whose application takes time. It takes one
//! thing after the other, in the order in which they came: a whole message, or some bytes of a
//! stream as they arrive. Applications that take no time have no threads.

use std::collections::VecDeque;

use rackweave_core::{FailReason, HostId, Kind, MessageId, Schedule, Span};
use rackweave_workload::Application;

use super::app::Action;
use super::{World, wake};
use crate::model::Model;

/// Most bytes of a stream that a thread takes at once: a page of Homa's receive buffers
/// (`HOMA_BPAGE_SIZE`), and a usual buffer of a `read`.
const READ_BYTES: u64 = 64 << 10;

/// Something for an application to take in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A message that arrived whole.
    Message { peer: HostId, id: MessageId, bytes: u64, kind: Kind },
    /// The next bytes of a direction of a channel.
    Bytes { direction: MessageId, bytes: u64 },
}

#[derive(Debug, Default)]
struct Thread {
    queue: VecDeque<Work>,
    current: Option<Current>,
}

#[derive(Clone, Copy, Debug)]
struct Current {
    work: Work,
    /// The end that counts: see [`Due`].
    order: u64,
    /// It ended while the host was paused.
    overdue: bool,
}

/// The end of what a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Due {
    order: u64,
    thread: usize,
}

/// All application threads: those of the first stream of messages first, host by host.
#[derive(Debug, Default)]
pub(super) struct Threads {
    threads: Vec<Thread>,
    due: Schedule<Due>,
}

impl Threads {
    /// None at all if no application takes time.
    pub(super) fn new<'a>(mut all: impl Iterator<Item = &'a Application>, count: usize) -> Self {
        let takes_time = all.any(|application| !application.is_instant());
        let count = if takes_time { count } else { 0 };
        let threads = std::iter::repeat_with(Thread::default).take(count).collect();
        Self { threads, due: Schedule::default() }
    }
}

impl<M: Model> World<'_, M> {
    /// Something has arrived for the application of a stream of messages at `host`.
    pub(super) fn take_in(&mut self, stream: u16, host: HostId, work: Work) {
        if self.application(stream).is_instant() {
            return self.taken(host, work);
        }
        let index = usize::from(stream) * self.hosts.all.len() + host.0 as usize;
        let queue = &mut self.threads.threads[index].queue;
        match (queue.back_mut(), work) {
            (
                Some(Work::Bytes { direction: last, bytes: waiting }),
                Work::Bytes { direction, bytes },
            ) if *last == direction => *waiting += bytes,
            _ => queue.push_back(work),
        }
        if self.threads.threads[index].current.is_none() {
            self.start_work(index);
        }
    }

    fn application(&self, stream: u16) -> Application {
        self.streams[usize::from(stream)].config.workload.application
    }

    /// A thread without work takes up the next.
    fn start_work(&mut self, index: usize) {
        let application = self.application((index / self.hosts.all.len()) as u16);
        while let Some(mut work) = self.threads.threads[index].queue.pop_front() {
            let cost = match &mut work {
                Work::Message { id, bytes, .. } => {
                    self.is_under_way(*id).then(|| whole_cost(application, *bytes))
                }
                Work::Bytes { direction, bytes } => {
                    let arrived = *bytes;
                    let cost = self.read_cost(application, *direction, bytes);
                    if cost.is_some() && arrived > *bytes {
                        let (direction, bytes) = (*direction, arrived - *bytes);
                        let rest = Work::Bytes { direction, bytes };
                        self.threads.threads[index].queue.push_front(rest);
                    }
                    cost
                }
            };
            // What has failed in the meantime costs nothing.
            let Some(cost) = cost else { continue };
            let order = self.tally.next_order();
            let at = self.net.now().saturating_add(cost);
            self.threads.threads[index].current = Some(Current { work, order, overdue: false });
            self.threads.due.push(at, Due { order, thread: index });
            self.net.wake_at(at, wake::WORK);
            return;
        }
    }

    /// The time to read from a stream, and cuts `bytes` to what is read at once: not beyond the end of a
    /// message, so that it is complete as soon as it can be.
    fn read_cost(
        &self,
        application: Application,
        direction: MessageId,
        bytes: &mut u64,
    ) -> Option<Span> {
        let (is_first, left) = self.channels.next_read(direction)?;
        *bytes = (*bytes).min(left).min(READ_BYTES);
        let per_rpc = if is_first { application.per_rpc } else { Span::ZERO };
        let per_message = if *bytes == left { application.per_message } else { Span::ZERO };
        Some(per_rpc + per_message + application.copying(*bytes))
    }

    /// Threads whose work ends now.
    pub(super) fn on_work(&mut self) {
        while let Some((_, due)) = self.threads.due.pop_due(self.net.now()) {
            let Some(current) = &mut self.threads.threads[due.thread].current else { continue };
            if current.order != due.order {
                continue;
            }
            if self.hosts.all[due.thread % self.hosts.all.len()].is_up() {
                self.finish_work(due.thread);
            } else {
                current.overdue = true;
            }
        }
    }

    fn finish_work(&mut self, index: usize) {
        let Some(current) = self.threads.threads[index].current.take() else { return };
        let host = HostId((index % self.hosts.all.len()) as u32);
        // Before the transport learns what was consumed.
        self.flush(host);
        self.taken(host, current.work);
        self.start_work(index);
        self.changed(host);
    }

    /// An application has taken something in.
    fn taken(&mut self, host: HostId, work: Work) {
        match work {
            Work::Message { peer, id, kind, .. } => self.processed(host, peer, id, kind),
            Work::Bytes { direction, bytes } => self.consumed(host, direction, bytes),
        }
    }

    fn threads_of(&self, host: HostId) -> impl Iterator<Item = usize> + use<M> {
        (host.0 as usize..self.threads.threads.len()).step_by(self.hosts.all.len())
    }

    /// A host goes on after a pause: what its threads were at goes on with it. (Ours: the time of the
    /// pause counts as time worked, so that at most one thing a thread is done too early.)
    pub(super) fn resume_threads(&mut self, host: HostId) {
        for index in self.threads_of(host) {
            if self.threads.threads[index].current.is_some_and(|current| current.overdue) {
                self.finish_work(index);
            }
        }
    }

    /// A host has crashed: what had arrived and was not taken in is lost. The transport of the
    /// sender of a whole message may have been told that it arrived, and would never tell otherwise.
    pub(super) fn crash_threads(&mut self, host: HostId) {
        for index in self.threads_of(host) {
            let Thread { queue, current } = std::mem::take(&mut self.threads.threads[index]);
            let stream = index / self.hosts.all.len();
            let works = current.map(|current| current.work).into_iter().chain(queue);
            for work in works {
                // Bytes of a channel are lost with it.
                if let Work::Message { peer, id, .. } = work
                    && self.is_under_way(id)
                {
                    let instance = self.streams[stream].instance;
                    let (host, peer, id) = (peer, host, MessageId(id.0 & !1));
                    self.todo.push_back(Action::Cancel { host, peer, id, instance });
                    self.failed(id, FailReason::HostCrashed);
                }
            }
        }
    }
}

fn whole_cost(application: Application, bytes: u64) -> Span {
    application.per_rpc + application.per_message + application.copying(bytes)
}
