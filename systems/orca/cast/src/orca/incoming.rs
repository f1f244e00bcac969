//! Sessions that this host receives.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use rackweave_core::{HostId, Span, Time};
use rackweave_crypt::GroupOpen;
use rackweave_orca::flow::ReceiverEvent;
use rackweave_orca::host::Host;
use rackweave_wire::orca::{GROUP, Reason, Session};

use super::parity::Parities;
use super::verify::{BLOCK, Checked, Verifier};
use super::{Decision, Engine, EngineEvent, EnginePlatform, Offer, Progress, Stats};
use crate::format::{is_manifest, is_same_cast};
use crate::sink::{Drain, SinkError, Window};

/// How long received bytes may wait for the rest of their block before they are passed to the sink.
const FLUSH_AFTER: Span = Span::from_ms(2);

/// How long a sender may take to answer this host's `Join` before the place of its session is given to another one. It
/// is longer than any round trip; the sender of a recorded invitation never answers.
const ANSWER_TIMEOUT: Span = Span::from_ms(250);

/// A sender that has not been heard for this long does not keep a second one with the same stream out. Senders repeat invitations every
/// 500 ms, and send as often while they have no data.
const RIVAL_TIMEOUT: Span = Span::from_secs(1);

/// How long packets of a sender that was killed may be on their way.
const IN_FLIGHT: Span = Span::from_ms(50);

/// The smallest window of a session that is reduced because other sessions use memory.
const MIN_ROOM: u64 = 1 << 20;

/// The same with a key. A block is verified once all of it has arrived, so the window must hold one and the packet behind it: packets
/// are sent whole.
const MIN_VERIFIED_ROOM: u64 = 2 * BLOCK;

/// The number of manifests that may be received at a time, in addition to the sessions of content.
pub(super) const MANIFESTS: u32 = 16;

/// A session that this host receives.
pub(super) struct Incoming {
    pub(super) drain: Drain,
    /// The sender, and its address.
    host: HostId,
    from: SocketAddr,
    stream: u128,
    stage: Stage,
    pub(super) readable: u64,
    ended: Option<u64>,
    consumed: u64,
    flushed: Time,
    /// The time at which the host joined the session.
    joined: Time,
    pub(super) parities: Parities,
    /// The protection of the session's data; `None` without a key.
    pub(super) opener: Option<Box<GroupOpen>>,
    /// Which bytes come from the sender; `None` without a key.
    pub(super) verifier: Option<Verifier>,
    /// Whether the sender serves this host by unicast.
    detached: bool,
    /// [`Drain::progress`] while the sink is being created, and since when it is that.
    progress: (u64, Time),
    /// If another sender has invited this host to the same stream, or wants the place of this session: when it began to, and when it last
    /// did.
    rival: Option<(Time, Time)>,
}

/// Whether there is a place for one more session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contest {
    /// All sessions have senders that are there.
    Busy,
    /// It is not known yet whether one's is.
    Wait,
    /// This one's is gone.
    Free(Session),
}

/// What follows for a sender that invites this host to a stream that another one sends here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rivalry {
    /// The other one is there.
    Busy,
    /// It is not known yet whether the other one is there.
    Wait,
    /// There is no other one, or it is gone.
    Free,
}

/// Returns the earlier of two times, if there is one.
fn earlier(first: Option<Time>, second: Option<Time>) -> Option<Time> {
    first.into_iter().chain(second).min()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The sink is being created, which may include reading what it stored earlier.
    Preparing,
    Taking,
    /// The stream is complete and the application has been notified; the sender may not have acknowledged it yet.
    Complete,
    /// The session has failed, and the sender is being informed.
    Leaving,
}

impl Incoming {
    /// Returns the session's sender.
    pub(super) const fn host(&self) -> HostId {
        self.host
    }

    /// Returns the report that this host leaves the session, and why.
    fn give_up(
        &mut self,
        session: Session,
        reason: Reason,
        error: Option<SinkError>,
    ) -> EngineEvent {
        self.stage = Stage::Leaving;
        let bytes = self.passable().saturating_sub(self.drain.begins_at());
        EngineEvent::ReceiveFailed { session, from: self.from, reason, error, bytes }
    }

    /// Passes the end of the stream, as the sender has stated it, on to the host once all bytes have arrived. Returns whether there was
    /// one to pass on.
    fn end(
        &mut self,
        now: Time,
        session: Session,
        checked: &Checked,
        host: &mut Host,
        stats: &mut Stats,
    ) -> bool {
        let (Some(length), None) = (checked.ends_at, self.ended) else { return false };
        if !host.end(now, session, length) {
            // Data beyond the end has arrived.
            let mut checked = Checked::default();
            self.suspect(now, &mut checked);
            stats.forged += u64::from(checked.forged);
        }
        true
    }

    /// Starts the sink's work once those in `closing` that write the same stream have ended, and watches that creating the sink goes on.
    /// Returns when to look again.
    fn prepare(
        &mut self,
        now: Time,
        (patience, closing): (Span, &[(u128, Drain)]),
        platform: &mut impl EnginePlatform,
    ) -> Result<Option<Time>, SinkError> {
        let is_written =
            || closing.iter().any(|(of, it)| is_same_cast(*of, self.stream) && !it.has_ended());
        if self.drain.is_pending() && !is_written() {
            self.drain.begin(|work| platform.start(work)).map_err(SinkError::Thread)?;
        }
        if self.drain.is_ready() || self.drain.is_failed() {
            return Ok(None);
        }
        let progress = self.drain.progress();
        if progress != self.progress.0 {
            self.progress = (progress, now);
        }
        let due = self.progress.1 + patience;
        if now >= due { Err(SinkError::Stuck) } else { Ok(Some(due)) }
    }

    /// Joins the session once the sink has been created, and leaves it if the sink has failed. Returns when to look again, or the reason for
    /// which it was left. `sinks` are what [`Self::prepare`] needs.
    fn poll_sink(
        &mut self,
        now: Time,
        session: Session,
        sinks: (Span, &[(u128, Drain)]),
        platform: &mut impl EnginePlatform,
        host: &mut Host,
        events: &mut VecDeque<EngineEvent>,
    ) -> Result<Option<Time>, Reason> {
        let mut due = None;
        let mut error = None;
        if self.stage == Stage::Preparing {
            match self.prepare(now, sinks, platform) {
                Ok(at) => due = at,
                Err(stuck) => error = Some(stuck),
            }
            if self.drain.is_ready() {
                self.stage = Stage::Taking;
                let at = self.drain.begins_at();
                (self.readable, self.consumed, self.joined) = (at, at, now);
                self.verifier.iter_mut().for_each(|verifier| verifier.skip(at));
                if !host.join(now, session, at, self.drain.room()) {
                    return Err(Reason::Left);
                }
                events.push_back(EngineEvent::Receiving { session, from: self.from, at });
            }
        }
        let is_open = matches!(self.stage, Stage::Preparing | Stage::Taking);
        if error.is_none() && !(is_open && self.drain.is_failed()) {
            return Ok(due);
        }
        let error = error.or_else(|| self.drain.outcome().0);
        let reason = error.as_ref().map_or(Reason::Refused, SinkError::reason);
        host.leave(now, session, reason);
        // After `Again` the sender invites this host once more, and then sends what is missing.
        if reason != Reason::Unknown {
            events.push_back(self.give_up(session, reason, error));
        }
        Err(reason)
    }

    /// Ends the input of the sink, which gets everything that has arrived in order.
    fn end_input(&mut self, reason: Reason) {
        self.drain.end(self.passable(), reason);
    }

    /// Notes that a newcomer contests this session, and returns whether its sender is there: whether a packet of it has come since the
    /// newcomer began to. It is not known in the beginning.
    fn contest(&mut self, now: Time, heard: Time) -> Rivalry {
        if now.since(heard) >= RIVAL_TIMEOUT {
            return Rivalry::Free;
        }
        let rival = self.rival.filter(|(_, last)| now.since(*last) < RIVAL_TIMEOUT);
        let since = rival.map_or(now, |(since, _)| since);
        self.rival = Some((since, now));
        match heard >= since + IN_FLIGHT {
            true => Rivalry::Busy,
            false => Rivalry::Wait,
        }
    }

    /// Forgets what has arrived from an offset on.
    pub(super) fn begin_again(&mut self, at: u64) {
        (self.readable, self.ended, self.parities) = (at, None, Parities::default());
    }
}

impl<P: EnginePlatform> Engine<P> {
    /// Returns the progress of all sessions that this host receives.
    #[must_use]
    pub fn incoming(&self) -> Vec<Progress> {
        let progress = |(session, incoming): (&Session, &Incoming)| Progress {
            session: *session,
            bytes: incoming.passable(),
            content: incoming.drain.content(),
        };
        let open = self.incoming.iter().filter(|(_, incoming)| incoming.stage != Stage::Complete);
        open.map(progress).collect()
    }

    /// Returns whether a sender has not yet acknowledged that a stream is complete, or taken the answer to its manifest. The acknowledgement may have been
    /// lost, so a long wait for it is pointless.
    #[must_use]
    pub fn is_lingering(&self) -> bool {
        self.answers.has_untaken()
            || self.incoming.values().any(|incoming| incoming.stage == Stage::Complete)
    }

    /// Refuses all offers from now on.
    pub fn refuse_offers(&mut self) {
        self.accept = None;
    }

    /// Leaves all incoming sessions. Bytes that arrived in order are still written, for which [`Engine::wait_for_sinks`] waits.
    pub fn leave_all(&mut self) {
        let now = self.driver.now();
        let open = self.incoming.iter().filter(|(_, it)| it.stage != Stage::Complete);
        let open: Vec<Session> = open.map(|(session, _)| *session).collect();
        for session in open {
            self.host.leave(now, session, Reason::Left);
            self.close(session, Reason::Left);
        }
    }

    pub(super) fn on_invitation(
        &mut self,
        now: Time,
        session: Session,
        (host, from): (HostId, SocketAddr),
        stream: u128,
    ) {
        match self.rivalry(now, host, stream) {
            Rivalry::Free => {}
            Rivalry::Wait => return self.host.ignore(session),
            Rivalry::Busy => return self.host.refuse(now, session, Reason::Busy),
        }
        let opener = self.invited.remove(&session).filter(|(by, _)| *by == host);
        if opener.is_none() && self.secure.is_some() {
            // Invitations of two hosts to one session: the next repetition brings the key.
            return self.host.ignore(session);
        }
        // The sender has restarted the stream: the sink has recorded what it has, and the new session continues from
        // there.
        let old: Vec<Session> = self
            .incoming
            .iter()
            .filter(|(_, it)| {
                is_same_cast(it.stream, stream) || (it.stream, it.host) == (stream, host)
            })
            .map(|(session, _)| *session)
            .collect();
        for old in old {
            let stage = self.incoming.get(&old).map_or(Stage::Leaving, |incoming| incoming.stage);
            self.close(old, Reason::Unknown);
            self.part_with(now, old, stage);
        }
        if self.room(stream).is_none() {
            match self.contest(now) {
                Contest::Free(unanswered) => self.drop_unanswered(now, unanswered),
                // By the time of the next repetition it is known whether that sender is there.
                Contest::Wait => return self.host.ignore(session),
                Contest::Busy => {}
            }
        }
        let room = self.room(stream);
        let decision = match (&mut self.accept, room) {
            (Some(_), None) => Decision::Refuse(Reason::Busy),
            (Some(accept), Some(_)) => accept(&Offer { from, session, stream }),
            (None, _) => Decision::Refuse(Reason::Refused),
        };
        let make = match decision {
            Decision::Refuse(reason) => return self.host.refuse(now, session, reason),
            Decision::Accept(make) => make,
        };
        let mut drain = Drain::new(make, room.unwrap_or_default(), self.waker.clone());
        // Two sinks must not write the same files. The previous one may be blocked by a disk or a reader: the work of this one is started
        // when that has ended, so that there is never more than one for a stream.
        let is_written = self.is_written(stream);
        let platform = self.driver.platform();
        if !is_written && drain.begin(|work| platform.start(work)).is_err() {
            return self.host.refuse(now, session, Reason::Busy);
        }
        let nonce = self.driver.platform().random() as u64;
        let verifier = opener.is_some().then(|| Verifier::new(now, nonce));
        self.incoming.insert(
            session,
            Incoming {
                drain,
                host,
                from,
                stream,
                stage: Stage::Preparing,
                readable: 0,
                ended: None,
                consumed: 0,
                flushed: now,
                joined: now,
                parities: Parities::default(),
                opener: opener.map(|(_, opener)| opener),
                verifier,
                detached: false,
                progress: (0, now),
                rival: None,
            },
        );
        self.choose_group();
    }

    /// Returns the memory in bytes that the windows of all received sessions may need, sessions that are still being
    /// written included.
    #[must_use]
    pub fn receive_memory(&self) -> u64 {
        let open = self.incoming.values().map(|incoming| &incoming.drain);
        let closing = self.closing.iter().map(|(_, drain)| drain);
        open.chain(closing).map(|drain| Window::memory(drain.room())).sum()
    }

    /// Returns the window that a further session may have: as large as configured if that needs no more than an eighth of
    /// the memory that is left (our choice), or else smaller. `None` if there is no place, or no memory.
    fn room(&self, stream: u128) -> Option<u64> {
        // A manifest does not take the place of content, which often follows before the session of the manifest is closed.
        let kind = is_manifest(stream);
        let alike = self.incoming.values().filter(|it| is_manifest(it.stream) == kind).count();
        // A manifest of a sender that was killed must not keep its successor out.
        let most = if kind { MANIFESTS } else { self.config.max_sessions };
        if alike >= most as usize {
            return None;
        }
        let free = self.config.receive_memory.saturating_sub(self.receive_memory());
        let least = if self.secure.is_some() { MIN_VERIFIED_ROOM } else { MIN_ROOM };
        // Blocks are verified whole: a window of fewer than two of them would end within a packet.
        let mut room = match self.secure {
            Some(_) => self.config.room.max(least),
            None => self.config.room,
        };
        while room > least && Window::memory(room) > free / 8 {
            room = (room / 2).max(least);
        }
        (Window::memory(room) <= free).then_some(room)
    }

    /// Returns whether the sink of an ended session of a stream still writes.
    fn is_written(&self, stream: u128) -> bool {
        self.closing.iter().any(|(of, drain)| is_same_cast(*of, stream) && !drain.has_ended())
    }

    /// Returns whether a session keeps the place that another sender wants. A sender that has not answered this host's `Join`, or does not
    /// repeat its invitation while this host prepares, is not there any more: it has been killed, or somebody has recorded its invitation.
    fn contest(&mut self, now: Time) -> Contest {
        let Self { incoming, host, .. } = self;
        let mut result = Contest::Busy;
        for (session, incoming) in incoming {
            let rivalry = match incoming.stage {
                Stage::Preparing => {
                    let heard = host.last_heard(*session).unwrap_or(incoming.joined);
                    incoming.contest(now, heard)
                }
                Stage::Taking if host.is_unanswered(*session) => {
                    match now.since(incoming.joined) < ANSWER_TIMEOUT {
                        true => Rivalry::Wait,
                        false => Rivalry::Free,
                    }
                }
                _ => continue,
            };
            match rivalry {
                Rivalry::Free => return Contest::Free(*session),
                Rivalry::Wait => result = Contest::Wait,
                Rivalry::Busy => {}
            }
        }
        result
    }

    /// Drops an incoming session whose sender does not answer. If it is alive after all, it invites this host again.
    fn drop_unanswered(&mut self, now: Time, session: Session) {
        let Some(incoming) = self.incoming.get(&session) else { return };
        let stage = incoming.stage;
        self.close(session, Reason::Silent);
        self.part_with(now, session, stage);
    }

    /// Leaves a session such that its sender invites this host again if it is alive after all. One whose invitation has not been
    /// answered repeats that; one that this host had joined does so for this reason code.
    fn part_with(&mut self, now: Time, session: Session, stage: Stage) {
        match stage {
            Stage::Preparing => self.host.ignore(session),
            _ => self.host.leave(now, session, Reason::Unknown),
        }
    }

    /// Returns whether another sender than `from` sends this stream here. One that was killed and started again has another
    /// address, and must not wait for its predecessor, which says nothing more. Two that are alive would otherwise replace each other's
    /// sessions in turn.
    fn rivalry(&mut self, now: Time, from: HostId, stream: u128) -> Rivalry {
        let Self { incoming, host, .. } = self;
        for (session, incoming) in incoming {
            let is_open = matches!(incoming.stage, Stage::Preparing | Stage::Taking);
            let heard = host.last_heard(*session);
            let Some(heard) = heard.filter(|heard| now.since(*heard) < RIVAL_TIMEOUT) else {
                continue;
            };
            if !is_open || !is_same_cast(incoming.stream, stream) || incoming.host == from {
                continue;
            }
            return incoming.contest(now, heard);
        }
        Rivalry::Free
    }

    /// Drops a session whose sender has withdrawn its invitation while the sink was being created. Nothing was received.
    pub(super) fn on_withdrawn(&mut self, session: Session) {
        let is_preparing = |it: &Incoming| it.stage == Stage::Preparing;
        if self.incoming.get(&session).is_some_and(is_preparing) {
            self.close(session, Reason::Left);
            self.choose_group();
        }
    }

    /// Leaves the multicast group while all senders serve this host by unicast because its link is too slow for both,
    /// and joins it again afterwards. Agents always stay, since switches forward to them by labels.
    fn choose_group(&mut self) {
        let wanted = self.config.fabric.as_ref().is_some_and(|fabric| fabric.tor)
            || self.incoming.is_empty()
            || self.incoming.values().any(|incoming| !incoming.detached);
        if wanted == self.grouped || !self.config.in_group || !self.config.bind.is_ipv4() {
            return;
        }
        let Some(socket) = self.driver.sockets().last() else { return };
        let done = socket.set_member(Ipv4Addr::from(GROUP), self.interface, wanted);
        // If the interface is gone, missing packets are repaired by unicast.
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
                    incoming.detached = event == ReceiverEvent::Detached;
                }
                self.choose_group();
            }
            ReceiverEvent::Failed { reason } => self.fail(session, reason),
            ReceiverEvent::Closed => {
                let Some(incoming) = self.incoming.get(&session) else { return };
                match incoming.stage {
                    Stage::Complete => self.close(session, Reason::Left),
                    _ => self.fail(session, Reason::Left),
                }
            }
        }
    }

    fn fail(&mut self, session: Session, reason: Reason) {
        let Some(incoming) = self.incoming.get(&session) else { return };
        // If a sender vanishes between completion and its acknowledgement, nothing is lost: the files are complete.
        if incoming.stage != Stage::Complete {
            let (error, _) = incoming.drain.outcome();
            let from = incoming.from;
            let bytes = incoming.passable().saturating_sub(incoming.drain.begins_at());
            let event = EngineEvent::ReceiveFailed { session, from, reason, error, bytes };
            self.events.push_back(event);
        }
        self.close(session, reason);
    }

    /// Passes bytes that are in order to the sinks, and reports to the host what the sinks have consumed. Returns when
    /// it must be called again.
    pub(super) fn drain(&mut self, now: Time, idle: bool) -> Option<Time> {
        let mut next: Option<Time> = None;
        let mut failed = Vec::new();
        let mut requests = Vec::new();
        let mut answers = Vec::new();
        for (session, incoming) in &mut self.incoming {
            let sinks = (self.config.prepare, &self.closing[..]);
            let platform = self.driver.platform();
            let (host, events) = (&mut self.host, &mut self.events);
            match incoming.poll_sink(now, *session, sinks, platform, host, events) {
                Ok(due) => next = earlier(next, due),
                Err(reason) => {
                    failed.push((*session, reason));
                    continue;
                }
            }
            if incoming.stage != Stage::Taking {
                continue;
            }
            let due = incoming.flushed + FLUSH_AFTER;
            let flush = incoming.ended.is_some() || (idle && now >= due);
            let checked = incoming.verify(now, *session, flush);
            next = earlier(next, checked.next);
            self.stats.forged += u64::from(checked.forged);
            if checked.failed {
                self.host.leave(now, *session, Reason::Damaged);
                let error = Some(SinkError::Foreign(incoming.passable()));
                self.events.push_back(incoming.give_up(*session, Reason::Damaged, error));
                failed.push((*session, Reason::Damaged));
                continue;
            }
            if checked.request.is_some() || checked.key_request.is_some() {
                requests.push((incoming.host, checked));
            }
            if incoming.end(now, *session, &checked, &mut self.host, &mut self.stats) {
                next = Some(now);
            }
            let upto = incoming.passable();
            let (drain, stage) = (&mut incoming.drain, &mut incoming.stage);
            // Bytes within a block are verified only when they are to be passed on.
            let has_verifier = incoming.verifier.is_some();
            drain.advance(upto, flush || has_verifier && upto % BLOCK != 0);
            if flush {
                incoming.flushed = now;
            } else if drain.lags(incoming.readable) {
                // A full sink wakes the engine when it has room.
                let due = if now >= due { now + FLUSH_AFTER } else { due };
                next = earlier(next, Some(due));
            }
            let consumed = drain.consumed();
            if consumed > incoming.readable {
                // The sink has found that it has these bytes already.
                drain.skip(consumed);
                incoming.readable = consumed;
                incoming.verifier.iter_mut().for_each(|verifier| verifier.skip(consumed));
                incoming.parities.forget_below(consumed);
                self.host.skip(now, *session, consumed);
            }
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
                    self.events.push_back(match drain.answer() {
                        Some(answer) => {
                            let comparison = answer.comparison.clone();
                            answers.push((session, incoming.host, answer));
                            EngineEvent::Compared { session, from, comparison }
                        }
                        None => {
                            let caveats = drain.caveats();
                            EngineEvent::Received { session, from, bytes, files, caveats }
                        }
                    });
                } else if !drain.is_failed() {
                    // The stream ended without its end record.
                    self.host.leave(now, *session, Reason::Damaged);
                    self.events.push_back(incoming.give_up(*session, Reason::Damaged, None));
                    failed.push((*session, Reason::Damaged));
                }
            }
        }
        for (session, host, answer) in answers {
            self.answers.keep(session, host, &answer);
        }
        for (host, checked) in requests {
            self.send_requests(host, &checked);
        }
        for (session, reason) in failed {
            self.close(session, reason);
        }
        next
    }

    /// Ends the input of a session, whose sink still writes what has arrived.
    fn close(&mut self, session: Session, reason: Reason) {
        if let Some(mut incoming) = self.incoming.remove(&session) {
            incoming.end_input(reason);
            self.closing.push((incoming.stream, incoming.drain));
        }
    }

    /// Drops sinks whose work has ended.
    pub(super) fn reap(&mut self) {
        self.closing.retain(|(_, drain)| !drain.has_ended());
        // A host without sessions hears probes and queries of the group, whatever the last session was.
        self.choose_group();
    }
}

impl Engine {
    /// Waits for at most `limit` until the sinks have finished writing; one may be blocked by the reader of a pipe.
    pub fn wait_for_sinks(&mut self, limit: Span) {
        let until = self.driver.now() + limit;
        loop {
            self.reap();
            if self.closing.is_empty() || self.driver.now() >= until {
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
