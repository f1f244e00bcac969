//! Streams that come in.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use rackweave_core::{Span, Time};
use rackweave_group::orca::flow::ReceiverEvent;
use rackweave_wire::orca::{GROUP, Reason, Session};

use super::parity::Parities;
use super::{Decision, Engine, EngineEvent, Offer, Progress};
use crate::sink::{Drain, MakeSink};

/// A part of a block waits so long for the rest.
const FLUSH_AFTER: Span = Span::from_ms(2);

/// A stream that comes in.
pub(super) struct Incoming {
    pub(super) drain: Drain,
    from: SocketAddr,
    stream: u128,
    stage: Stage,
    readable: u64,
    ended: Option<u64>,
    consumed: u64,
    flushed: Time,
    pub(super) parities: Parities,
    /// Gets its bytes apart from the others.
    alone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The sink looks what it has.
    Preparing,
    Taking,
    /// All is there and right, which has been told; the sender is to know, too.
    Complete,
    /// It can't go on, and the sender is being told.
    Leaving,
}

impl Engine {
    /// Streams that come in.
    #[must_use]
    pub fn incoming(&self) -> Vec<Progress> {
        let progress = |(session, incoming): (&Session, &Incoming)| Progress {
            session: *session,
            bytes: incoming.readable,
            content: incoming.drain.content(),
        };
        let open = self.incoming.iter().filter(|(_, incoming)| incoming.stage != Stage::Complete);
        open.map(progress).collect()
    }

    /// Whether a sender has not said yet that it knows that all is here. Its last word may be lost: nobody needs to wait long for it.
    #[must_use]
    pub fn is_lingering(&self) -> bool {
        self.incoming.values().any(|incoming| incoming.stage == Stage::Complete)
    }

    /// From now on all offers are refused.
    pub fn accept_no_more(&mut self) {
        self.accept = None;
    }

    /// Leaves all streams that come in. What is in order is still written.
    pub fn leave_all(&mut self) {
        let now = self.now();
        for (session, incoming) in &mut self.incoming {
            if incoming.stage == Stage::Complete {
                continue;
            }
            incoming.drain.advance(incoming.readable, true);
            incoming.drain.close();
            incoming.stage = Stage::Leaving;
            self.host.leave(now, *session, Reason::Left);
        }
    }

    pub(super) fn invited(&mut self, now: Time, session: Session, from: SocketAddr, stream: u128) {
        // The sender has been started anew: what is with the sink is noted, and it goes on there.
        let old: Vec<Session> = self
            .incoming
            .iter()
            .filter(|(_, incoming)| incoming.stream == stream)
            .map(|(session, _)| *session)
            .collect();
        let mut before = Vec::new();
        for old in old {
            if let Some(mut incoming) = self.incoming.remove(&old) {
                incoming.drain.advance(incoming.readable, true);
                incoming.drain.close();
                before.push(incoming.drain);
            }
            // Not for good: was the new invitation an old one that somebody has replayed, the sender invites again.
            self.host.leave(now, old, Reason::Unknown);
        }
        // Nor may one that has been given up still write when the next one begins.
        let (same, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.closing).into_iter().partition(|(of, _)| *of == stream);
        self.closing = others;
        before.extend(same.into_iter().map(|(_, drain)| drain));
        let full = self.incoming.len() >= self.config.max_sessions as usize;
        let decision = match &mut self.accept {
            Some(_) if full => Decision::Refuse(Reason::Busy),
            Some(accept) => accept(&Offer { from, session, stream }),
            None => Decision::Refuse(Reason::Refused),
        };
        let make = match decision {
            Decision::Refuse(reason) => {
                self.closing.extend(before.into_iter().map(|drain| (stream, drain)));
                return self.host.refuse(now, session, reason);
            }
            Decision::Take(make) => make,
        };
        // Two sinks must not write the same files. The old one may wait for a disk or a reader: not in this thread.
        let make: MakeSink = match before.is_empty() {
            true => make,
            false => Box::new(move || {
                before.iter_mut().for_each(Drain::stop);
                make()
            }),
        };
        let Ok(drain) = Drain::start(make, self.config.room, self.waker.clone()) else {
            return self.host.refuse(now, session, Reason::Busy);
        };
        self.incoming.insert(
            session,
            Incoming {
                drain,
                from,
                stream,
                stage: Stage::Preparing,
                readable: 0,
                ended: None,
                consumed: 0,
                flushed: now,
                parities: Parities::default(),
                alone: false,
            },
        );
        self.choose_group();
    }

    /// Who gets its bytes alone, because its link is too slow for what goes to all, does not want the latter as well. (Agents
    /// stay in the group: there, switches go by labels.)
    fn choose_group(&mut self) {
        let wanted = self.config.fabric.as_ref().is_some_and(|fabric| fabric.tor)
            || self.incoming.is_empty()
            || self.incoming.values().any(|incoming| !incoming.alone);
        if wanted == self.grouped || !self.config.in_group || !self.config.bind.is_ipv4() {
            return;
        }
        let socket = self.group.as_ref().unwrap_or(&self.socket);
        let address = Ipv4Addr::from(GROUP);
        let done = match wanted {
            true => socket.join(address, self.interface),
            false => socket.leave(address, self.interface),
        };
        // An interface that has gone: what is missing is repaired by unicast.
        if done.is_ok() {
            self.grouped = wanted;
        }
    }

    pub(super) fn handle_receiver_event(
        &mut self,
        now: Time,
        session: Session,
        event: ReceiverEvent,
    ) {
        match event {
            ReceiverEvent::Readable { upto } => {
                if let Some(incoming) = self.incoming.get_mut(&session) {
                    if !incoming.drain.lags(incoming.readable) {
                        incoming.flushed = now;
                    }
                    incoming.readable = upto;
                    incoming.parities.forget_below(upto);
                }
            }
            ReceiverEvent::Recover(recovery) => self.recover(now, session, &recovery),
            ReceiverEvent::Ended { length } => {
                if let Some(incoming) = self.incoming.get_mut(&session) {
                    incoming.readable = length;
                    incoming.ended = Some(length);
                }
            }
            ReceiverEvent::Detached | ReceiverEvent::Rejoined => {
                if let Some(incoming) = self.incoming.get_mut(&session) {
                    incoming.alone = event == ReceiverEvent::Detached;
                }
                self.choose_group();
            }
            ReceiverEvent::Failed { reason } => self.fail(session, reason),
            ReceiverEvent::Closed => {
                let Some(mut incoming) = self.incoming.remove(&session) else { return };
                if incoming.stage != Stage::Complete {
                    self.incoming.insert(session, incoming);
                    return self.fail(session, Reason::Left);
                }
                incoming.drain.close();
                self.closing.push((incoming.stream, incoming.drain));
            }
        }
    }

    fn fail(&mut self, session: Session, reason: Reason) {
        let Some(mut incoming) = self.incoming.remove(&session) else { return };
        // The sender went away between our completion and its answer: the files are there all the same.
        if incoming.stage != Stage::Complete {
            incoming.drain.advance(incoming.readable, true);
            let (error, _) = incoming.drain.outcome();
            let from = incoming.from;
            self.events.push_back(EngineEvent::ReceiveFailed { session, from, reason, error });
        }
        incoming.drain.close();
        self.closing.push((incoming.stream, incoming.drain));
    }

    /// Hands on what is in order, and tells the machines what the sinks have taken. When to do so again.
    pub(super) fn drain(&mut self, now: Time, idle: bool) -> Option<Time> {
        let mut again: Option<Time> = None;
        let mut failed = Vec::new();
        for (session, incoming) in &mut self.incoming {
            let Incoming { drain, stage, .. } = incoming;
            if *stage == Stage::Preparing && drain.is_ready() {
                *stage = Stage::Taking;
                let at = drain.begins_at();
                (incoming.readable, incoming.consumed) = (at, at);
                self.host.join(now, *session, at, drain_room(self.config.room));
                let from = incoming.from;
                self.events.push_back(EngineEvent::Receiving { session: *session, from, at });
            }
            if drain.is_failed() && (*stage == Stage::Preparing || *stage == Stage::Taking) {
                let preparing = *stage == Stage::Preparing;
                *stage = Stage::Leaving;
                let (error, _) = drain.outcome();
                let damaged = error.as_ref().is_some_and(crate::sink::SinkError::is_damage);
                let reason = if damaged { Reason::Damaged } else { Reason::Refused };
                if preparing {
                    self.host.refuse(now, *session, reason);
                } else {
                    self.host.leave(now, *session, reason);
                }
                let (session, from) = (*session, incoming.from);
                self.events.push_back(EngineEvent::ReceiveFailed { session, from, reason, error });
                failed.push(session);
                continue;
            }
            if *stage != Stage::Taking {
                continue;
            }
            let due = incoming.flushed + FLUSH_AFTER;
            let flush = incoming.ended.is_some() || (idle && now >= due);
            drain.advance(incoming.readable, flush);
            if flush {
                incoming.flushed = now;
            } else if drain.lags(incoming.readable) {
                // What is full is woken by the sink.
                let due = if now >= due { now + FLUSH_AFTER } else { due };
                again = Some(again.map_or(due, |again| again.min(due)));
            }
            let consumed = drain.consumed();
            if consumed > incoming.consumed {
                incoming.consumed = consumed;
                self.host.consume(now, *session, consumed);
            }
            if let Some(length) = incoming.ended
                && consumed >= length
            {
                if drain.is_complete() {
                    *stage = Stage::Complete;
                    self.host.complete(now, *session);
                    drain.close();
                    let (_, files) = drain.outcome();
                    let bytes = length - drain.begins_at().min(length);
                    let (session, from) = (*session, incoming.from);
                    self.events.push_back(EngineEvent::Received { session, from, bytes, files });
                } else if !drain.is_failed() {
                    // A stream that ends before its end record.
                    *stage = Stage::Leaving;
                    self.host.leave(now, *session, Reason::Damaged);
                }
            }
        }
        for session in failed {
            if let Some(mut incoming) = self.incoming.remove(&session) {
                incoming.drain.close();
                self.closing.push((incoming.stream, incoming.drain));
            }
        }
        again
    }

    /// Forgets sinks that have ended.
    pub(super) fn reap(&mut self) {
        self.closing.retain(|(_, drain)| !drain.has_ended());
    }

    /// Waits for sinks that still write what they were given, but no longer than `limit`: one may wait for who reads a pipe.
    pub fn settle(&mut self, limit: Span) {
        let until = self.now() + limit;
        loop {
            self.reap();
            if self.closing.is_empty() || self.now() >= until {
                return;
            }
            #[expect(
                clippy::disallowed_methods,
                reason = "threads that write to disks are waited for"
            )]
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// What a window holds besides is for bytes that are handed on and not consumed.
const fn drain_room(room: u64) -> u64 {
    room
}
