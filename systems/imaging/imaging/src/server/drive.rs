//! The driver of a server's machine.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rackweave_core::{Span, Time};
use rackweave_image::Progress;
use rackweave_swp2p::p2p::{Outgoing, Send};
use rackweave_wire::frisbee::{Body, Direction};
use tokio::sync::watch;
use tokio::time::sleep;

use super::view::View;
use super::{Inner, ServeConfig, ServeError, ServeEvent, Served};
use crate::control::Sealing;
use crate::status::ServerStatus;
use crate::uploads::Peer;

/// How often it is checked whether to end.
const TICK: Duration = Duration::from_millis(100);
/// How often what is shown is brought up to date.
const VIEW: Span = Span::from_ms(500);
/// How long clients that linger may still serve after all receivers are done.
const LAST: Span = Span::from_ms(300);

pub(super) async fn run(
    config: &ServeConfig,
    inner: &Rc<Inner>,
    progress: &Progress,
    shown: &watch::Sender<Option<Arc<ServerStatus>>>,
    on_event: &mut dyn FnMut(ServeEvent),
) -> Result<Served, ServeError> {
    let mut buffer = Vec::new();
    let mut view = View::new();
    let mut next_view = Time::ZERO;
    let mut end: Option<Time> = None;
    loop {
        pump(inner);
        for event in inner.events.take() {
            on_event(event);
        }
        let now = inner.clock.now();
        if now >= next_view && !shown.is_closed() {
            shown.send_replace(Some(Arc::new(view.take(inner))));
            next_view = now + VIEW;
        }
        let missing = missing(inner);
        let interrupted = progress.is_stopped();
        let is_late = config.time_limit.is_some_and(|limit| now >= Time::ZERO + limit);
        if config.receivers.is_some() && missing.is_empty() {
            end.get_or_insert(now + LAST);
        }
        if interrupted || is_late || end.is_some_and(|end| now >= end) {
            let status = view.take(inner);
            shown.send_replace(Some(Arc::new(status.clone())));
            let interrupted = interrupted && !missing.is_empty();
            let counters = *inner.machine.borrow().counters();
            let sessions = inner.multicast.borrow();
            let sessions = sessions.values().map(|session| session.counts).collect();
            return Ok(Served { status, counters, sessions, missing, interrupted });
        }
        tokio::select! {
            biased;
            () = inner.wake.notified() => {}
            received = inner.control.receive(&mut buffer, |from| expected(inner, from)) => {
                let what = "the UDP socket has failed";
                let received = received.map_err(|source| ServeError::System { what, source })?;
                if let Some((from, body, payload)) = received {
                    handle(inner, from, body, payload);
                }
            }
            () = sleep(TICK) => {}
        }
    }
}

/// The receivers that do not have every image.
fn missing(inner: &Inner) -> Vec<std::net::Ipv4Addr> {
    let complete = inner.complete.borrow();
    let has = |address: &&std::net::Ipv4Addr| {
        inner.catalog.iter().all(|(image, _)| complete.contains(&(**address, image)))
    };
    inner.receivers.iter().flatten().filter(|address| !has(address)).copied().collect()
}

/// What control messages of a host must have. Only hosts with a session are listened to: their addresses are validated.
fn expected(inner: &Inner, from: std::net::Ipv4Addr) -> Option<Sealing> {
    let guests = inner.guests.borrow();
    let guest = guests.get(&from).filter(|guest| guest.session > 0)?;
    Some(Sealing { session: guest.number, direction: Direction::ToServer })
}

/// Handles a control message of a host with a session.
fn handle(inner: &Inner, from: std::net::Ipv4Addr, body: Body, payload: &[u8]) {
    let mut peers = inner.peers.borrow_mut();
    let Some(host) = peers.known(from) else { return };
    // A message about a host that this one does not know is about one that is gone.
    if let Body::Return { requester: named, .. } | Body::Damaged { holder: named, .. } = body
        && peers.known(named.into()).is_none()
    {
        return;
    }
    let Some(body) = peers.arrived(body) else { return };
    drop(peers);
    // Others are not sent to a host that may not serve.
    let is_holder = inner.holders.as_ref().is_none_or(|holders| holders.contains(&from));
    if matches!(body, Body::Report { .. }) && !is_holder {
        return;
    }
    let mut machine = inner.machine.borrow_mut();
    if !is_holder {
        // Before its requests make it a pending holder. Its first message only creates what is barred.
        machine.bar(host);
    }
    machine.handle_control(inner.clock.now(), host, &body, payload);
    if !is_holder {
        machine.bar(host);
    }
}

/// Passes on whatever the machine has.
fn pump(inner: &Rc<Inner>) {
    let now = inner.clock.now();
    let guest_at = |address| {
        let guests = inner.guests.borrow();
        let (session, direction) = (guests.get(&address)?.number, Direction::FromServer);
        Some((guests.get(&address)?.own, Sealing { session, direction }))
    };
    loop {
        let send = inner.machine.borrow_mut().poll_send(now);
        let Some(Send { peer, what }) = send else { break };
        let address = inner.peers.borrow().address(peer);
        if let Some(address) = address
            && let Some((own, _)) = guest_at(address)
        {
            inner.uploads.push(inner, own, Peer { host: peer, address }, what);
        } else {
            inner.machine.borrow_mut().peer_failed(now, peer);
        }
    }
    loop {
        let outgoing = inner.machine.borrow_mut().poll_control(now);
        let Some(Outgoing { to, body }) = outgoing else { break };
        let peers = inner.peers.borrow();
        if let (Some(address), Some(wire)) = (peers.address(to), peers.departing(body))
            && let Some((own, sealing)) = guest_at(address)
        {
            inner.control.send(own, address, sealing, wire, |_| {});
        }
    }
}
