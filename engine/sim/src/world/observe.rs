//! A caller that looks at a run while it goes on: the states of links, what is unfinished, and the packets of one message.
//!
//! A run is the same whether it is observed or not, and one that is not observed pays a branch for each 1024 events.

use std::fmt::{self, Debug, Display};

use rackweave_core::{Header as _, HostId, Packet, Time};
use rackweave_switch::net::{Counters, LinkState, TraceFilter, TraceStep};
use rackweave_workload::app::{MessageKey, MessageRecord, MessageStart};

use super::World;
use crate::model::Model;
use crate::result::{End, Goodput, Waiting};

/// Looks at a run between its events. See [`super::Control::observer`].
pub trait Observer: Debug + Send {
    /// Whether it wants to look before the time that it has asked for. It is called often.
    fn is_due(&mut self) -> bool;

    /// Looks at the run; the run waits until this returns.
    fn look(&mut self, view: &mut dyn View) -> Next;

    /// Looks at the run when it has ended.
    fn end(&mut self, view: &mut dyn View, end: End);
}

/// What a run does after an [`Observer`] has looked at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It handles all events up to this time, and is then looked at again.
    Until(Time),
    /// It ends as [`End::Cancelled`].
    Cancel,
}

/// A run at one time, after all events up to that time. (A run that is divided into windows is looked at
/// between two of them.)
pub trait View {
    /// The simulated time.
    fn now(&self) -> Time;

    /// The state of the run; at most `most` messages are named in it.
    fn state(&mut self, most: usize) -> State;

    /// The measured messages so far, in the order of their start.
    fn messages(&self) -> Vec<MessageRecord>;

    /// Traces the packets of the message that starts so, from now on: at most `limit` events. It must not have started yet.
    fn trace(&mut self, message: MessageStart, limit: usize);

    /// The trace so far; `None` before its message has started.
    fn traced(&self) -> Option<Traced>;

    /// When the message that is traced ended, if it has.
    fn trace_ended(&self) -> Option<Time>;
}

/// The state of a run.
#[derive(Clone, Debug)]
pub struct State {
    /// The links, in the fabric's order.
    pub links: Vec<LinkState>,
    /// When their statistics began.
    pub since: Time,
    /// Payload over time, by stream.
    pub goodput: Goodput,
    /// Measured messages of the first stream that have started, and that have ended.
    pub messages: (u64, u64),
    /// The number of measured messages; `None` if it is not known.
    pub wanted: Option<u64>,
    /// Messages that have started and not ended.
    pub unfinished: u64,
    /// Their bytes.
    pub backlog: u64,
    /// Those of them that have waited longest.
    pub waiting: Vec<Waiting>,
    /// Counts since the run began.
    pub counters: Counters,
    /// Packets in the network.
    pub packets: u32,
}

/// The trace of a message.
#[derive(Clone, Debug)]
pub struct Traced {
    /// What happened to its packets.
    pub events: Vec<Step>,
    /// When the message ended, if it has.
    pub ended: Option<Time>,
    /// Whether there were more events than are kept.
    pub is_cut: bool,
}

/// An event of a traced packet: see [`rackweave_switch::net::TraceEvent`].
#[derive(Clone, Debug)]
pub struct Step {
    /// When it happened.
    pub at: Time,
    /// The packet.
    pub packet: u32,
    /// The link on which it is or for which it waits.
    pub link: u32,
    /// What happened.
    pub step: TraceStep,
    /// The host that has sent the packet.
    pub src: HostId,
    /// The bytes that it occupies on a link.
    pub wire_bytes: u16,
    /// Its priority.
    pub priority: u8,
    /// Whether it carries bytes of the message.
    pub has_payload: bool,
    /// The protocol's name and the header's fields.
    pub text: String,
}

/// A message that is to be traced.
#[derive(Debug)]
pub(super) struct Tracing {
    message: MessageStart,
    limit: usize,
    key: Option<(HostId, MessageKey)>,
    ended: Option<Time>,
}

/// Prints a header.
struct Described<'a, H>(&'a Packet<H>);

impl<H: rackweave_core::Header> Display for Described<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.header.describe(f)
    }
}

/// An observer, and when it is to look again.
#[derive(Debug)]
pub(super) struct Observed {
    observer: Box<dyn Observer>,
    pub(super) until: Time,
}

impl Observed {
    pub(super) fn new(observer: Box<dyn Observer>) -> Self {
        Self { observer, until: Time::ZERO }
    }

    /// Looks at a run that has ended.
    pub(super) fn end(&mut self, view: &mut dyn View, end: End) {
        self.observer.end(view, end);
    }

    /// Looks at a run.
    pub(super) fn look(&mut self, view: &mut dyn View) -> Option<End> {
        match self.observer.look(view) {
            Next::Cancel => Some(End::Cancelled),
            Next::Until(until) => {
                self.until = until;
                None
            }
        }
    }

    /// Looks at a run whose time has come, or that it wants to look at now.
    pub(super) fn look_if_due(&mut self, view: &mut dyn View) -> Option<End> {
        if self.until <= view.now() || self.observer.is_due() { self.look(view) } else { None }
    }
}

impl<M: Model> World<'_, M> {
    /// As [`World::run_some`], with looks. The batches are the same.
    pub(super) fn run_some_observed(
        &mut self,
        limit: Time,
        observed: &mut Observed,
    ) -> Option<End> {
        if let Some(end) = observed.look_if_due(self) {
            return Some(end);
        }
        for _ in 0..Self::BATCH {
            loop {
                let until = observed.until.min(limit);
                if self.step(until) {
                    break;
                }
                if until == limit || self.net.is_quiet() {
                    return Some(self.end_of_events(limit));
                }
                self.net.advance(until);
                if let Some(end) = observed.look(self) {
                    return Some(end);
                }
            }
            if self.apps.may_be_done || self.hosts.nodes.may_be_done {
                break;
            }
        }
        self.apps.may_be_done = false;
        self.hosts.nodes.may_be_done = false;
        None
    }

    /// Notes the start of a message that is to be traced.
    #[cold]
    pub(super) fn trace_start(&mut self, host: HostId, key: MessageKey, start: MessageStart) {
        let Some(tracing) = &mut self.apps.tracing else { return };
        if tracing.key.is_some() || tracing.message != start {
            return;
        }
        tracing.key = Some((host, key));
        let limit = tracing.limit;
        let message = self.apps.id(host, start.stream, key);
        self.net.trace(TraceFilter { message, ends: (start.src, start.dst), limit });
    }

    /// Notes the end of a message that is traced.
    #[cold]
    pub(super) fn trace_end(&mut self, host: HostId, key: MessageKey, at: Time) {
        if let Some(tracing) = &mut self.apps.tracing
            && tracing.key == Some((host, key))
        {
            tracing.ended = Some(at);
        }
    }
}

impl<M: Model> View for World<'_, M> {
    fn now(&self) -> Time {
        self.net.now()
    }

    fn state(&mut self, most: usize) -> State {
        let links = self.net.link_states();
        let (unfinished, mut waiting) = self.apps.open(most);
        for message in &mut waiting {
            message.stream += self.first_stream;
        }
        let (wanted, ended) = self.apps.progress();
        State {
            links,
            since: self.net.since(),
            goodput: self.apps.timeline.result(),
            messages: (self.apps.started(), ended),
            wanted: (wanted < u64::MAX).then_some(wanted),
            unfinished,
            backlog: self.apps.backlog,
            waiting,
            counters: *self.net.counters(),
            packets: self.net.packets(),
        }
    }

    fn messages(&self) -> Vec<MessageRecord> {
        self.records()
    }

    fn trace(&mut self, mut message: MessageStart, limit: usize) {
        message.stream -= self.first_stream.min(message.stream);
        let tracing = Tracing { message, limit, key: None, ended: None };
        self.apps.tracing = Some(Box::new(tracing));
    }

    fn traced(&self) -> Option<Traced> {
        let tracing = self.apps.tracing.as_ref().filter(|tracing| tracing.key.is_some())?;
        let trace = self.net.traced()?;
        let events = trace.events().iter().map(|event| Step {
            at: event.at,
            packet: event.packet,
            link: event.link,
            step: event.step,
            src: event.content.src,
            wire_bytes: event.content.wire_bytes,
            priority: event.content.priority,
            has_payload: event.content.header.payload().is_some(),
            text: Described(&event.content).to_string(),
        });
        Some(Traced { events: events.collect(), ended: tracing.ended, is_cut: trace.is_cut() })
    }

    fn trace_ended(&self) -> Option<Time> {
        self.apps.tracing.as_ref()?.ended
    }
}

impl Traced {
    /// Whether its packets have all arrived or been dropped by a time.
    #[must_use]
    pub fn is_settled(&self, now: Time, is_last: impl Fn(u32) -> bool) -> bool {
        let mut settled = std::collections::BTreeMap::new();
        for event in &self.events {
            let is_settled = match event.step {
                TraceStep::Dropped(_) => true,
                TraceStep::Sent { arrival, .. } => is_last(event.link) && arrival <= now,
                _ => false,
            };
            settled.insert(event.packet, is_settled);
        }
        settled.values().all(|is_settled| *is_settled)
    }
}
