//! Streams that go out, and packets.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use rackweave_core::{HostId, Node as _, Packet, Time};
use rackweave_group::orca::flow::{FlowConfig, ReceiverStatus, SenderEvent};
use rackweave_group::orca::host::{Event, OpenError, Spread};
use rackweave_wire::orca::{self, Data, GROUP, Header, Reason, Session, TO_AGENT, TO_GROUP};

use smallvec::SmallVec;

use super::{Engine, EngineEvent, ReceiverProgress, SendView, control, parity};
use crate::source::{Payload, Source, SourceError};

/// Packets that are handed to the kernel together.
const SEND_BATCH: usize = 512;

/// Packets of one turn, before what came in gets its turn.
const SEND_TURN: usize = 4096;

/// Someone who fell silent is invited again so often.
const AGAIN: rackweave_core::Span = rackweave_core::Span::from_ms(250);

/// A stream that goes out.
pub(super) struct Sending {
    source: Box<dyn Source>,
    offered: u64,
    finished: bool,
    spread: Spread,
    flow: FlowConfig,
    began: Time,
    hosts: BTreeMap<HostId, Receiver>,
    error: Option<SourceError>,
    released: u64,
    copies: usize,
}

#[derive(Clone, Copy, Default)]
struct Receiver {
    from: u64,
    completed: Option<Time>,
    /// First lost, and not heard of since.
    lost: Option<Time>,
    retry: Option<Time>,
    joined: bool,
}

impl Engine {
    /// Sends a stream to these hosts.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        &mut self,
        mut source: Box<dyn Source>,
        hosts: &[HostId],
        spread: Spread,
        flow: FlowConfig,
    ) -> Result<Session, OpenError> {
        let now = self.now();
        source.start(self.waker.clone());
        let session = loop {
            let session = Session(rackweave_linux::random() as u32);
            match self.host.open(now, session, source.stream(), hosts, spread, flow) {
                Err(OpenError::Exists(_)) => {}
                Err(error) => return Err(error),
                Ok(()) => break session,
            }
        };
        let sending = Sending {
            source,
            offered: 0,
            finished: false,
            spread,
            flow,
            began: now,
            hosts: hosts.iter().map(|host| (*host, Receiver::default())).collect(),
            error: None,
            released: 0,
            copies: match spread {
                Spread::Unicast => hosts.len(),
                _ => 1,
            },
        };
        self.sending.insert(session, sending);
        Ok(session)
    }

    /// Gives a stream up.
    pub fn abort(&mut self, session: Session) {
        let now = self.now();
        if let Some(sending) = self.sending.get_mut(&session) {
            for receiver in sending.hosts.values_mut() {
                receiver.retry = None;
            }
        }
        self.host.abort(now, session, Reason::Left);
        self.handle_events(now);
    }

    /// How far a stream is.
    #[must_use]
    pub fn view(&self, session: Session) -> Option<SendView> {
        let sending = self.sending.get(&session)?;
        let source = &sending.source;
        let end = source.end();
        let receivers = self.host.receivers(session).map(|view| {
            let known = sending.hosts.get(&view.host).copied().unwrap_or_default();
            let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            ReceiverProgress {
                host: view.host,
                address: self.peers.address(view.host).unwrap_or(unknown),
                have: view.have,
                from: known.from,
                standing: view.status,
                bits_per_second: view.rate.0,
                repairs: view.repairs,
                slow: view.slow_reason,
                seconds: known.completed.map(|at| at.since(sending.began).as_secs_f64()),
            }
        });
        Some(SendView {
            length: (end.unwrap_or(source.available()), end.is_some()),
            content: source.content(),
            receivers: receivers.collect(),
            summary: self.host.summary(session).unwrap_or_default(),
            copies: sending.copies,
        })
    }

    /// Tells the machines what the sources have, and the sources what nobody needs any more.
    pub(super) fn feed(&mut self, now: Time) {
        let mut broken = Vec::new();
        for (session, sending) in &mut self.sending {
            if let Some(error) = sending.source.error() {
                sending.error = Some(error);
                broken.push(*session);
                continue;
            }
            // The end first: what is available after it was read is not less.
            let end = sending.source.end();
            let available = sending.source.available();
            if available > sending.offered {
                sending.offered = available;
                self.host.offer(now, *session, available);
            }
            if end.is_some() && !sending.finished {
                sending.finished = true;
                self.host.finish(now, *session);
            }
            let released = self.host.released(*session);
            if released != u64::MAX && released > sending.released {
                sending.released = released;
                sending.source.released(released);
            }
        }
        for session in broken {
            self.host.abort(now, session, Reason::Refused);
        }
        self.invite_again(now);
    }

    fn invite_again(&mut self, now: Time) {
        let Self { sending, host, .. } = self;
        for (session, sending) in sending {
            for (who, receiver) in &mut sending.hosts {
                if receiver.retry.is_some_and(|at| at <= now) {
                    receiver.retry = None;
                    host.add(now, *session, *who);
                }
            }
        }
    }

    pub(super) fn next_retry(&self) -> Option<Time> {
        let hosts = self.sending.values().flat_map(|sending| sending.hosts.values());
        hosts.filter_map(|receiver| receiver.retry).min()
    }

    /// Takes what the machines have to tell.
    pub(super) fn handle_events(&mut self, now: Time) {
        while let Some(event) = self.host.poll_event() {
            match event {
                Event::Invited { session, from, stream, .. } => match self.peers.address(from) {
                    Some(from) => self.invited(now, session, from, stream),
                    None => self.host.refuse(now, session, Reason::Refused),
                },
                Event::Sender(session, event) => self.handle_sender_event(now, session, event),
                Event::Receiver(session, event) => self.handle_receiver_event(now, session, event),
            }
        }
    }

    fn handle_sender_event(&mut self, now: Time, session: Session, event: SenderEvent) {
        match event {
            SenderEvent::Failed { .. } | SenderEvent::Finished => {
                if self.sending.contains_key(&session) {
                    self.sent(now, session);
                }
            }
            SenderEvent::Joined { host, at } => {
                if let Some(receiver) = self.receiver(session, host) {
                    (receiver.from, receiver.joined) = (at, true);
                    (receiver.lost, receiver.retry) = (None, None);
                }
                self.events.push_back(EngineEvent::Joined { session, host, at });
            }
            SenderEvent::Attached { host } => {
                self.events.push_back(EngineEvent::Alone { session, host, alone: false });
            }
            SenderEvent::Detached { host } => {
                self.events.push_back(EngineEvent::Alone { session, host, alone: true });
            }
            SenderEvent::Completed { host } => {
                if let Some(receiver) = self.receiver(session, host) {
                    receiver.completed = Some(now);
                }
                self.events.push_back(EngineEvent::Completed { session, host });
            }
            SenderEvent::Lost { host, reason } => {
                let patience = self.config.retry;
                if let Some(receiver) = self.receiver(session, host) {
                    let lost = *receiver.lost.get_or_insert(now);
                    // Who was there once may have been started again; who never was is not.
                    let back = receiver.joined
                        && matches!(reason, Reason::Silent | Reason::Unknown)
                        && now.since(lost) < patience;
                    receiver.retry = back.then(|| now + AGAIN);
                }
                self.give_up_if_alone(now, session);
                self.events.push_back(EngineEvent::Lost { session, host, reason });
            }
        }
    }

    /// A stream that goes on, but to nobody, is given up: who writes it is to know, and not to write for ever.
    fn give_up_if_alone(&mut self, now: Time, session: Session) {
        let Some(sending) = self.sending.get(&session) else { return };
        let gone = |it: &Receiver| it.lost.is_some() && it.retry.is_none();
        if !sending.finished && sending.hosts.values().all(gone) {
            self.host.abort(now, session, Reason::Left);
        }
    }

    fn receiver(&mut self, session: Session, host: HostId) -> Option<&mut Receiver> {
        self.sending.get_mut(&session)?.hosts.get_mut(&host)
    }

    /// A session is over: those that may come back get another one.
    fn sent(&mut self, now: Time, session: Session) {
        let Some(view) = self.view(session) else { return };
        let Some(mut sending) = self.sending.remove(&session) else { return };
        let waiting: Vec<HostId> = sending
            .hosts
            .iter()
            .filter(|(_, receiver)| receiver.retry.is_some())
            .map(|(host, _)| *host)
            .collect();
        if !waiting.is_empty() && sending.error.is_none() {
            let next = Session(rackweave_linux::random() as u32);
            let (stream, flow) = (sending.source.stream(), sending.flow);
            if self.host.open(now, next, stream, &waiting, sending.spread, flow).is_ok() {
                (sending.offered, sending.finished) = (0, false);
                for host in &waiting {
                    if let Some(receiver) = sending.hosts.get_mut(host) {
                        receiver.retry = None;
                    }
                }
                self.sending.insert(next, sending);
                self.events.push_back(EngineEvent::Renewed { old: session, session: next, view });
                return;
            }
        }
        let error = sending.error.take();
        self.events.push_back(EngineEvent::Sent { session, view, error });
    }

    pub(super) fn group_address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::from(GROUP), self.config.group_port))
    }

    /// Sends what may be sent; whether there is more.
    pub(super) fn transmit(&mut self, now: Time) -> io::Result<bool> {
        let mut sent = 0;
        loop {
            if self.is_blocked() {
                self.hand_over()?;
                if self.is_blocked() {
                    return Ok(false);
                }
            }
            let mut idle = false;
            while self.staged.len() < SEND_BATCH {
                let Some(packet) = self.poll_packet(now) else {
                    idle = true;
                    break;
                };
                self.stage(&packet);
                sent += 1;
            }
            self.stats.sent += self.staged.len() as u64;
            self.staged.unload(&mut self.batch);
            self.hand_over()?;
            if idle {
                return Ok(false);
            }
            if sent >= SEND_TURN {
                return Ok(true);
            }
        }
    }

    fn hand_over(&mut self) -> io::Result<()> {
        if !self.batch.is_empty() {
            self.stats.refused += self.socket.send(&mut self.batch)?;
        }
        Ok(())
    }

    fn stage(&mut self, packet: &Packet<Header>) {
        let to = match packet.dst {
            TO_GROUP | TO_AGENT => Some(self.group_address()),
            _ if control::is_for_rack(&packet.header) => Some(self.group_address()),
            host => self.peers.address(host),
        };
        let (words, key) = (self.words, self.key.as_ref());
        let (payload, check) = match &packet.header {
            Header::Control(_) => (Payload::new(), orca::check(&packet.header, key, &[])),
            Header::Data(data) => match self.payload(data) {
                Some(found) => found,
                None => return,
            },
        };
        let Some(to) = to else {
            self.stats.nowhere += 1;
            return;
        };
        self.stats.sent_bytes += u64::from(packet.wire_bytes);
        let key = self.key.as_ref();
        let write = |out: &mut Vec<u8>| match &packet.header {
            Header::Data(data) => orca::encode_relayed(data, words, check, out),
            Header::Control(_) => orca::encode_header(&packet.header, words, key, &[], out),
        };
        self.staged.push(to, write, payload);
    }

    /// A packet's bytes and their check.
    fn payload(&mut self, data: &Data) -> Option<(Payload, orca::Check)> {
        let Some(sending) = self.sending.get_mut(&data.session) else {
            if self.host.summary(data.session).is_some() {
                return None;
            }
            let relayed = self.relayed.front_mut()?;
            let found = (Payload::from_iter([relayed.bytes.clone()]), relayed.check);
            relayed.left -= 1;
            if relayed.left == 0 {
                self.relayed.pop_front();
            }
            return Some(found);
        };
        if let Some(found) = self.memo.get(data) {
            return Some(found);
        }
        let mut payload = Payload::new();
        let read = match data.parity {
            None => sending.source.read(data.offset, usize::from(data.len), &mut payload),
            Some(of) => parity::encode(&mut *sending.source, data.offset, data.len, of)
                .map(|bytes| payload.push(bytes)),
        };
        if let Err(error) = read {
            // The session ends at the next turn.
            if sending.error.is_none() {
                sending.error = Some(error);
                let now = self.told;
                self.host.abort(now, data.session, Reason::Refused);
            }
            return None;
        }
        let check = {
            let pieces: SmallVec<[&[u8]; 2]> = payload.iter().map(|bytes| &bytes[..]).collect();
            orca::check(&Header::Data(*data), self.key.as_ref(), &pieces)
        };
        if sending.copies > 1 {
            self.memo.put(data, &payload, check);
        }
        Some((payload, check))
    }

    /// Whether anybody still takes part, or may.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Whether a receiver is done, one way or another.
    #[must_use]
    pub const fn is_over(standing: ReceiverStatus) -> bool {
        matches!(standing, ReceiverStatus::Completed | ReceiverStatus::Lost(_))
    }
}
