//! The driver of a client's machine: passes on between the machine, the sockets, the connections and the disk what is due.

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use rackweave_core::{Bitmap, Span, Time};
use rackweave_image::ImageError;
use rackweave_swp2p::p2p::client::{Event, Failure};
use rackweave_swp2p::p2p::{Outgoing, Send};
use rackweave_wire::frisbee::{Body, Direction};
use tokio::time::sleep;

use super::disk::{Disk, Done};
use super::session::Shared;
use super::{FetchConfig, FetchError, FetchEvent, Fetched, Inner, LAST, TICK};
use crate::control::Sealing;
use crate::frames::Terms;
use crate::status::{Limit, Phase, most};
use crate::uploads::Peer;

/// The client, from its join to its end.
pub(super) struct Driver<'a> {
    config: &'a FetchConfig,
    inner: &'a Rc<Inner>,
    disk: Disk,
    shared: &'a Rc<Shared>,
    /// The chunks that were on the target.
    start: Bitmap<u32>,
    fetched: &'a mut Fetched,
    /// What was fetched by multicast.
    before: Fetched,
    /// Whether the target is complete: every byte is written and synced.
    complete: bool,
    /// Whether the connection to the server is broken, as was last reported.
    lost: bool,
    /// When rates were computed last, and the bytes up to then.
    rates: (Time, u64, u64),
    /// When a client that was stopped ends.
    until: Option<Time>,
    left: bool,
    /// Whether every byte is written and the target is being synced, or has been.
    finishing: bool,
    /// The terms by which messages are received.
    terms: Terms,
}

/// The interval over which rates are computed.
const RATES: Span = Span::from_secs(1);

/// Completes a target that has all chunks already.
pub(super) async fn finish_at_once(
    mut disk: Disk,
    fetched: &Fetched,
    on_event: &mut dyn FnMut(FetchEvent),
) -> Result<(), FetchError> {
    disk.finish();
    match disk.done.recv().await {
        Some(Done::Finished) => {
            on_event(FetchEvent::Received);
            on_event(FetchEvent::Written(fetched.clone()));
            Ok(())
        }
        Some(Done::Failed(error)) => Err(failed(error)),
        Some(Done::Written(_)) | None => Err(thread_ended()),
    }
}

pub(super) fn failed(error: ImageError) -> FetchError {
    match error {
        ImageError::Interrupted => FetchError::Interrupted,
        error => FetchError::Image(error),
    }
}

fn socket_failed(source: std::io::Error) -> FetchError {
    FetchError::System { what: "the UDP socket has failed", source }
}

pub(super) fn thread_ended() -> FetchError {
    let source = std::io::Error::other("the thread that writes it has ended");
    FetchError::System { what: "the target cannot be written", source }
}

/// What messages of a host must have. Where no switch redirects, only the server has a reason to send any.
fn expected(from: Ipv4Addr, server: Ipv4Addr, terms: Terms) -> Option<Sealing> {
    let Terms { session, is_switched } = terms;
    let is_server = from == server;
    let direction = if is_server { Direction::FromServer } else { Direction::ToServer };
    (is_server || is_switched).then_some(Sealing { session, direction })
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        config: &'a FetchConfig,
        inner: &'a Rc<Inner>,
        disk: Disk,
        shared: &'a Rc<Shared>,
        start: Bitmap<u32>,
        fetched: &'a mut Fetched,
    ) -> Self {
        Self {
            config,
            inner,
            disk,
            shared,
            start,
            before: fetched.clone(),
            fetched,
            complete: false,
            lost: false,
            rates: (inner.clock.now(), inner.received.get(), 0),
            until: None,
            left: false,
            finishing: false,
            terms: shared.terms.get(),
        }
    }

    /// Runs until the client has left, and counts what it has fetched in any case.
    pub(super) async fn run(
        mut self,
        on_event: &mut dyn FnMut(FetchEvent),
    ) -> Result<(), FetchError> {
        let result = self.drive(on_event).await;
        self.count();
        result
    }

    async fn drive(&mut self, on_event: &mut dyn FnMut(FetchEvent)) -> Result<(), FetchError> {
        let inner = Rc::clone(self.inner);
        self.listen()?;
        inner.machine.borrow_mut().handle_timeout(inner.clock.now());
        let mut buffer = Vec::new();
        loop {
            self.pump(on_event)?;
            for event in inner.events.take() {
                on_event(event);
            }
            let now = inner.clock.now();
            // A client that does not stay has left before a slow disk has synced the target.
            let has_left = self.left && (self.complete || !self.finishing);
            if has_left || self.until.is_some_and(|until| now >= until) {
                return if self.complete { Ok(()) } else { Err(FetchError::Interrupted) };
            }
            let due = inner.machine.borrow().poll_timeout();
            let wait =
                due.map_or(TICK, |at| Duration::from_nanos(at.since(now).as_ns_ceil()).min(TICK));
            let (server, terms) = (*self.config.server.ip(), self.terms);
            tokio::select! {
                biased;
                () = inner.wake.notified() => {}
                () = self.shared.wake.notified() => self.session_changed(on_event)?,
                Some(done) = self.disk.done.recv() => self.done(done, on_event)?,
                // Behind whatever a flood of messages must not delay.
                received = inner.control.receive(&mut buffer, |from| expected(from, server, terms)) => {
                    let received = received.map_err(socket_failed)?;
                    if let Some((from, body, _)) = received {
                        self.handle(from, body);
                    }
                }
                () = sleep(wait) => {}
            }
            self.tick();
        }
    }

    /// Receives by the terms of the present session.
    fn listen(&mut self) -> Result<(), FetchError> {
        self.terms = self.shared.terms.get();
        let only = (!self.terms.is_switched).then_some(*self.config.server.ip());
        self.inner.control.only_from(only).map_err(socket_failed)
    }

    fn handle(&self, from: Ipv4Addr, body: Body) {
        let inner = self.inner;
        // Nobody asks itself for chunks.
        let requester = match body {
            Body::Return { requester, .. } | Body::Redirect { requester, .. } => requester.into(),
            _ => from,
        };
        if requester == inner.own {
            return;
        }
        let host = inner.peers.borrow_mut().number(from);
        let body = inner.peers.borrow_mut().arrived(body);
        if let (Some(host), Some(body)) = (host, body) {
            inner.machine.borrow_mut().handle_control(inner.clock.now(), host, &body);
        }
    }

    /// Reports what has happened to the session.
    fn session_changed(&mut self, on_event: &mut dyn FnMut(FetchEvent)) -> Result<(), FetchError> {
        if let Some(source) = self.shared.failure.borrow_mut().take() {
            // All bytes are there, so that the client needs no server.
            if self.complete {
                self.stop();
                return Ok(());
            }
            return Err(FetchError::Session { server: self.config.server, source });
        }
        if self.shared.terms.get() != self.terms {
            self.listen()?;
        }
        self.report_loss(on_event);
        Ok(())
    }

    fn report_loss(&mut self, on_event: &mut dyn FnMut(FetchEvent)) {
        let problem = self.shared.problem.borrow();
        match (&*problem, self.lost) {
            // One that only lingers needs no server.
            (Some(_), false) if self.complete && self.shared.server_ended.get() => return,
            (Some(why), false) => on_event(FetchEvent::ServerLost(why.clone())),
            (None, true) => on_event(FetchEvent::ServerBack),
            _ => return,
        }
        self.lost = problem.is_some();
    }

    fn stop(&mut self) {
        if self.until.is_none() {
            let now = self.inner.clock.now();
            self.inner.machine.borrow_mut().leave(now);
            self.until = Some(now + Span::from_ms(LAST.as_millis() as u64));
        }
    }

    /// Checks whether to stop, runs timers, and reports the status.
    fn tick(&mut self) {
        let now = self.inner.clock.now();
        if self.inner.progress.is_stopped() {
            self.stop();
        }
        let mut machine = self.inner.machine.borrow_mut();
        if machine.poll_timeout().is_some_and(|at| at <= now) {
            machine.handle_timeout(now);
        }
        drop(machine);
        if now.since(self.rates.0) >= RATES {
            self.report(now);
        }
    }

    /// Passes on whatever the machine has.
    fn pump(&mut self, on_event: &mut dyn FnMut(FetchEvent)) -> Result<(), FetchError> {
        let inner = Rc::clone(self.inner);
        let now = inner.clock.now();
        loop {
            let event = inner.machine.borrow_mut().poll_event();
            if let Some(event) = event {
                self.event(now, event, on_event)?;
                continue;
            }
            if self.disk.has_room() {
                let expand = inner.machine.borrow_mut().poll_expand();
                if let Some(chunk) = expand {
                    if let Some(stored) = inner.cache.borrow().get(chunk) {
                        self.disk.write(stored.clone());
                    }
                    continue;
                }
            }
            break;
        }
        loop {
            let send = inner.machine.borrow_mut().poll_send(now);
            let Some(Send { peer, what }) = send else { break };
            let Some(address) = inner.peers.borrow().address(peer) else { continue };
            inner.uploads.push(&inner, inner.own, Peer { host: peer, address }, what);
        }
        loop {
            let outgoing = inner.machine.borrow_mut().poll_control(now);
            let Some(Outgoing { to, body }) = outgoing else { break };
            let peers = inner.peers.borrow();
            if let (Some(address), Some(wire)) = (peers.address(to), peers.departing(body)) {
                let append = |out: &mut Vec<u8>| inner.machine.borrow().payload(&body, out);
                let (session, direction) = (self.terms.session, Direction::ToServer);
                inner.control.send(
                    inner.own,
                    address,
                    Sealing { session, direction },
                    wire,
                    append,
                );
            }
        }
        Ok(())
    }

    fn event(
        &mut self,
        now: Time,
        event: Event,
        on_event: &mut dyn FnMut(FetchEvent),
    ) -> Result<(), FetchError> {
        let inner = self.inner;
        match event {
            Event::Joined { image, shape } => {
                if shape.chunks() != inner.manifest.chunks() {
                    return Err(self.failed(Failure::Changed));
                }
                inner.image.set(image);
                let mut machine = inner.machine.borrow_mut();
                if !self.config.serve {
                    machine.withhold_all();
                }
                machine.start(now, &self.start, &self.start);
            }
            Event::Received => on_event(FetchEvent::Received),
            Event::Written => {
                self.finishing = true;
                self.disk.finish();
            }
            Event::Damaged { holder, chunk } => {
                if let Some(holder) = inner.peers.borrow().address(holder) {
                    on_event(FetchEvent::Damaged { holder, chunk });
                }
            }
            Event::Left => self.left = true,
            Event::Failed(failure) => return Err(self.failed(failure)),
        }
        Ok(())
    }

    fn failed(&self, failure: Failure) -> FetchError {
        let problem = self.shared.problem.borrow().clone();
        let obstacle = self.shared.obstacle.borrow().clone();
        FetchError::Failed { failure, server: self.config.server, problem, obstacle }
    }

    /// The disk's thread has done something.
    fn done(&mut self, done: Done, on_event: &mut dyn FnMut(FetchEvent)) -> Result<(), FetchError> {
        match done {
            Done::Written(chunk) => {
                self.disk.written();
                self.inner.machine.borrow_mut().written(self.inner.clock.now(), chunk);
                self.inner.cache.borrow_mut().written(chunk);
            }
            Done::Finished => {
                self.complete = true;
                self.count();
                on_event(FetchEvent::Written(self.fetched.clone()));
                self.report(self.inner.clock.now());
                self.shared.report.notify_one();
            }
            Done::Failed(error) => return Err(failed(error)),
        }
        Ok(())
    }

    /// Takes over what the machine has counted.
    fn count(&mut self) {
        let (machine, peers) = (self.inner.machine.borrow(), self.inner.peers.borrow());
        let counters = machine.counters();
        let name = |(host, chunks): (&_, &u32)| Some((peers.address(*host)?, *chunks));
        let fetched = &mut *self.fetched;
        fetched.fetched = counters.received.values().sum();
        fetched.bytes = self.inner.received.get();
        fetched.from = counters.received.iter().filter_map(name).collect();
        fetched.to = self.inner.sent_to.borrow().iter().filter_map(name).collect();
        fetched.retries = counters.retries;
        fetched.damaged = counters.damaged;
        fetched.requests = counters.requests;
        (fetched.duplicates, fetched.returned) = (counters.duplicates, counters.returned);
        fetched.refused = self.inner.control.refused();
        fetched.unsent = self.inner.control.unsent();
        fetched.add(&self.before);
    }

    /// Brings the status up to date.
    fn report(&mut self, now: Time) {
        self.count();
        let (since, received, sent) = self.rates;
        let (received_now, sent_now) = (self.inner.received.get(), self.inner.sent.get());
        let per_second = |bytes: u64| {
            let micros = now.since(since).as_us().max(1);
            (u128::from(bytes) * 1_000_000 / u128::from(micros)) as u64
        };
        let machine = self.inner.machine.borrow();
        let mut status = self.shared.status.borrow_mut();
        let fetched = &*self.fetched;
        status.have = machine.have().len();
        status.written = machine.written_chunks();
        status.kept = fetched.kept;
        status.bytes = received_now;
        status.receive_rate = per_second(received_now - received);
        status.send_rate = per_second(sent_now - sent);
        status.from = most(fetched.from.clone());
        status.to = most(fetched.to.clone());
        (status.retries, status.damaged) = (fetched.retries, fetched.damaged);
        (status.refused, status.unsent) = (fetched.refused, fetched.unsent);
        status.phase = match (self.complete, machine.have().is_full()) {
            (true, _) => Phase::Lingering,
            (false, true) => Phase::Writing,
            _ => Phase::Fetching,
        };
        status.limit = match status.phase {
            Phase::Fetching if machine.is_behind_disk() => Limit::Disk,
            Phase::Fetching if received_now == received => Limit::Silence,
            Phase::Fetching => Limit::Network,
            Phase::Writing => Limit::Disk,
            _ => Limit::None,
        };
        status.elapsed_ms = now.as_ms();
        self.rates = (now, received_now, sent_now);
    }
}
