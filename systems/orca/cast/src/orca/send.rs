//! Outgoing sessions, and the transmission of all packets.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use rackweave_core::{HostId, Node as _, Packet, Span, Time};
use rackweave_crypt::{GroupOpen, GroupSeal};
use rackweave_linux::sys::Path;
use rackweave_orca::flow::{FlowConfig, ReceiverStatus, SenderEvent};
use rackweave_orca::host::{Event, OpenError, Spread};
use rackweave_wire::orca::{
    self, Body, Control, Data, GROUP, Header, Reason, Session, TO_AGENT, TO_GROUP,
};

use smallvec::SmallVec;

use super::secure::{data_seal, is_for_switches, random_bytes};
use super::verify::HashCache;
use super::{Engine, EngineEvent, EnginePlatform, ReceiverProgress, SendView, controller, parity};
use crate::source::{Payload, Source, SourceError};

/// The number of packets in one batch for the kernel.
const SEND_BATCH: usize = 512;

/// The number of packets in one turn, after which receiving is served again.
const SEND_TURN: usize = 4096;

/// The bytes of an Ethernet frame in addition to the IP packet, with preamble and gap, which `FlowConfig::overhead`
/// includes.
const ETHERNET: u32 = 38;

/// The interval at which a receiver that fell silent is invited again.
const REINVITE_AFTER: Span = Span::from_ms(250);

/// For how long a receiver that answers that it does not have the session is invited again, at least.
const RETRY_ANSWERING: Span = Span::from_secs(1);

/// A session that this host sends.
pub(super) struct Sending {
    pub(super) source: Box<dyn Source>,
    pub(super) offered: u64,
    /// The offset below which data was sent.
    pub(super) sent: u64,
    pub(super) finished: bool,
    spread: Spread,
    pub(super) flow: FlowConfig,
    began: Time,
    pub(super) hosts: BTreeMap<HostId, Receiver>,
    pub(super) error: Option<SourceError>,
    released: u64,
    copies: usize,
    /// Whether the source has to work before it can be read further.
    pub(super) works: bool,
    /// The protection of the session's data; `None` without a key.
    pub(super) sealer: Option<GroupSeal>,
    /// The protection of data for receivers that have a key of their own, because another receiver has forged data for them.
    pub(super) own_sealers: BTreeMap<HostId, GroupSeal>,
    pub(super) hashes: HashCache,
    /// When receivers that do not verify are next looked for.
    pub(super) check_at: Time,
    /// If it is a manifest: the number of its entries.
    entries: Option<u32>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Receiver {
    from: u64,
    completed: Option<Time>,
    /// The time at which the receiver was lost, if no packet has come from it since.
    lost: Option<Time>,
    retry: Option<Time>,
    joined: bool,
    /// Whether it was in an earlier session of the same cast: if it is silent now, it may return.
    was_there: bool,
    /// Its state at the end of the last session that it was in, if the present one goes on without it.
    past: Option<ReceiverProgress>,
    /// Without a key, the last invitation to it, and the cookie that it wants to see before one.
    pub(super) invitation: Option<Control>,
    pub(super) cookie: Option<u64>,
    /// With a key, the offset below which it has verified all bytes.
    pub(super) verified: u64,
    /// The bytes that were read to answer its requests for hashes.
    pub(super) read_for_hashes: u64,
    /// If it has more bytes than that: `verified` at that time, and since when.
    pub(super) unverified: Option<(u64, Time)>,
}

impl Sending {
    /// Returns whether packets to a receiver go to the multicast group, if that reaches it.
    pub(super) fn is_to_group(&self, host: HostId) -> bool {
        self.spread == Spread::Multicast && self.hosts.contains_key(&host)
    }
}

impl Receiver {
    /// Returns whether it is in the session and not complete.
    pub(super) const fn takes_part(&self) -> bool {
        self.joined && self.completed.is_none() && self.lost.is_none()
    }
}

impl<P: EnginePlatform> Engine<P> {
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
        let now = self.driver.now();
        source.start(self.waker.clone());
        let session = loop {
            let session = Session(self.driver.platform().random() as u32);
            match self.host.open(now, session, source.stream(), hosts, spread, flow) {
                Err(OpenError::Exists(_)) => {}
                Err(error) => return Err(error),
                Ok(()) => break session,
            }
        };
        let sending = Sending {
            source,
            offered: 0,
            sent: 0,
            finished: false,
            spread,
            flow,
            began: now,
            hosts: hosts.iter().map(|host| (*host, Receiver::default())).collect(),
            error: None,
            released: 0,
            works: false,
            sealer: self.sealer(),
            own_sealers: BTreeMap::new(),
            hashes: HashCache::default(),
            check_at: now,
            entries: None,
            copies: match spread {
                Spread::Unicast => hosts.len(),
                _ => 1,
            },
        };
        self.sending.insert(session, sending);
        self.leave_hosts_apart(session);
        Ok(session)
    }

    /// Receivers of a new session that multicast does not reach get copies of their own, and the others do not wait for them.
    fn leave_hosts_apart(&mut self, session: Session) {
        let Some(sending) = self.sending.get(&session) else { return };
        for host in sending.hosts.keys().filter(|host| sending.is_to_group(**host)) {
            if self.probes.reaches(*host) == Some(false) {
                self.host.serve_by_unicast(session, *host);
            }
        }
    }

    /// As [`Self::open`], for a manifest with this many entries: each receiver that has it is asked what it lacks
    /// ([`EngineEvent::Answered`]).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_manifest(
        &mut self,
        manifest: Box<dyn Source>,
        entries: u32,
        hosts: &[HostId],
        spread: Spread,
        flow: FlowConfig,
    ) -> Result<Session, OpenError> {
        let session = self.open(manifest, hosts, spread, flow)?;
        if let Some(sending) = self.sending.get_mut(&session) {
            sending.entries = Some(entries);
        }
        Ok(session)
    }

    /// Returns the protection of a new session's data; `None` without a key.
    fn sealer(&mut self) -> Option<GroupSeal> {
        let Self { secure, driver, .. } = self;
        secure.as_ref().map(|secure| data_seal(secure, random_bytes(driver.platform())))
    }

    /// Records that these receivers of an outgoing session have answered in an earlier one: they are invited again as if they
    /// had joined this one.
    pub(super) fn expect_back(&mut self, session: Session, hosts: &[HostId]) {
        for host in hosts {
            if let Some(receiver) = self.receiver(session, *host) {
                receiver.was_there = true;
            }
        }
    }

    /// Aborts an outgoing session.
    pub fn abort(&mut self, session: Session) {
        let now = self.driver.now();
        if let Some(sending) = self.sending.get_mut(&session) {
            for receiver in sending.hosts.values_mut() {
                receiver.retry = None;
            }
        }
        self.host.abort(now, session, Reason::Left);
        self.handle_events(now);
    }

    /// Returns the protection of an outgoing session's data, whose key each of its receivers has; `None` without a key. Chaos tests
    /// forge data as a receiver could.
    #[must_use]
    pub fn data_seal(&self, session: Session) -> Option<&GroupSeal> {
        self.sending.get(&session)?.sealer.as_ref()
    }

    /// Returns the progress of an outgoing session.
    #[must_use]
    pub fn view(&self, session: Session) -> Option<SendView> {
        let sending = self.sending.get(&session)?;
        let source = &sending.source;
        let end = source.end();
        let headers = u32::from(sending.flow.overhead).saturating_sub(ETHERNET);
        let mut receivers: BTreeMap<HostId, ReceiverProgress> = BTreeMap::new();
        for (host, known) in &sending.hosts {
            let lost = ReceiverStatus::Lost(Reason::Unknown);
            let none = ReceiverProgress::new(*host, self.peers.address(*host), lost);
            receivers.insert(*host, known.past.unwrap_or(none));
        }
        receivers.extend(self.host.receivers(session).map(|view| {
            let known = sending.hosts.get(&view.host).copied().unwrap_or_default();
            // A receiver that has not returned since the stream was renewed has what it got before.
            let joined = match view.status {
                ReceiverStatus::Invited | ReceiverStatus::Preparing => false,
                ReceiverStatus::Lost(_) => view.have > 0,
                _ => true,
            };
            let had = known.past.filter(|_| !joined).map_or(0, |past| past.have);
            let address = self.peers.address(view.host);
            let progress = ReceiverProgress {
                have: view.have.max(had),
                of: end.unwrap_or(source.available()),
                from: known.from,
                bits_per_second: view.rate.0,
                repairs: view.repairs,
                slow_reason: view.slow_reason,
                multicast: self.probes.reaches(view.host),
                unlabelled: self.host.is_unlabelled(session, view.host),
                mtu: view.path_payload.map(|payload| u32::from(payload) + headers),
                seconds: known.completed.map(|at| at.since(sending.began).as_secs_f64()),
                ..ReceiverProgress::new(view.host, address, view.status)
            };
            (view.host, progress)
        }));
        Some(SendView {
            length: (end.unwrap_or(source.available()), end.is_some()),
            content: source.content(),
            packet: u32::from(sending.flow.payload) + headers,
            receivers: receivers.into_values().collect(),
            summary: self.host.summary(session).unwrap_or_default(),
            copies: sending.copies,
        })
    }

    /// Offers what the sources have read to the host, and lets the sources release what no receiver can need any more.
    pub(super) fn feed_sources(&mut self, now: Time) {
        let mut broken = Vec::new();
        for (session, sending) in &mut self.sending {
            if sending.works {
                sending.works = sending.source.work();
                self.host.hold(now, *session, sending.works);
            }
            if let Some(error) = sending.source.error() {
                sending.error = Some(error);
                broken.push(*session);
                continue;
            }
            // The end is read first: at least as many bytes are available afterwards.
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
            self.host.set_readable_from(*session, sending.source.readable_from());
            let released = self.host.released(*session).min(sending.verified());
            if released != u64::MAX && released > sending.released {
                sending.released = released;
                sending.source.released(released);
            }
        }
        for session in broken {
            self.host.abort(now, session, Reason::Refused);
        }
        self.lose_unverifying(now);
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

    /// Returns whether a source has to work before it can be read further.
    pub(super) fn has_work(&self) -> bool {
        self.sending.values().any(|sending| sending.works)
    }

    pub(super) fn next_retry(&self) -> Option<Time> {
        let hosts = self.sending.values().flat_map(|sending| sending.hosts.values());
        hosts.filter_map(|receiver| receiver.retry).min()
    }

    /// Handles the events of the Orca host.
    pub(super) fn handle_events(&mut self, now: Time) {
        while let Some(event) = self.host.poll_event() {
            match event {
                Event::Invited { session, from, stream, .. } => match self.peers.address(from) {
                    Some(address) => self.on_invitation(now, session, (from, address), stream),
                    None => self.host.refuse(now, session, Reason::Refused),
                },
                Event::Withdrawn { session } => self.on_withdrawn(session),
                Event::Sender(session, event) => self.handle_sender_event(now, session, event),
                Event::Receiver(session, event) => self.handle_receiver_event(now, session, event),
            }
        }
        // The remaining ones were repetitions.
        self.invited.clear();
    }

    fn handle_sender_event(&mut self, now: Time, session: Session, event: SenderEvent) {
        match event {
            SenderEvent::Failed { .. } | SenderEvent::Finished => {
                return self.on_session_end(now, session);
            }
            SenderEvent::Joined { host, at } => {
                if let Some(receiver) = self.receiver(session, host) {
                    (receiver.from, receiver.joined, receiver.verified) = (at, true, at);
                    receiver.unverified = None;
                    (receiver.lost, receiver.retry) = (None, None);
                }
            }
            SenderEvent::Completed { host } => {
                if let Some(receiver) = self.receiver(session, host) {
                    receiver.completed = Some(now);
                }
                let entries = self.sending.get(&session).and_then(|it| it.entries);
                if let Some(entries) = entries {
                    self.answers.ask(now, session, host, entries);
                }
            }
            SenderEvent::Lost { host, reason } => {
                let sending = self.sending.get(&session);
                let readable = sending.is_some_and(|it| it.source.readable_from() == 0);
                let patience = match reason {
                    // It answers: it begins again, or has been started again. That is not the silence for which `retry` is.
                    Reason::Unknown => self.config.retry.max(RETRY_ANSWERING),
                    _ => self.config.retry,
                };
                if let Some(receiver) = self.receiver(session, host) {
                    let lost = *receiver.lost.get_or_insert(now);
                    // A receiver that had joined may have been restarted and return. If it needs bytes that the session
                    // has released, the session that follows this one has them.
                    let back = (receiver.joined || receiver.was_there)
                        && match reason {
                            Reason::Silent | Reason::Unknown => true,
                            Reason::TooLate => readable,
                            _ => false,
                        }
                        && now.since(lost) < patience;
                    receiver.retry = back.then(|| now + REINVITE_AFTER);
                }
                self.abort_if_deserted(now, session);
            }
            // The time that a receiver may take to return does not run while it reads what it has.
            SenderEvent::Preparing { host } => {
                if let Some(lost) = self.receiver(session, host).and_then(|it| it.lost.as_mut()) {
                    *lost = now;
                }
            }
            SenderEvent::Attached { host } => {
                if self.sending.get(&session).is_some_and(|it| it.is_to_group(host)) {
                    self.probe_member(now, host);
                }
            }
            SenderEvent::Detached { host } => self.stop_probing(host),
        }
        self.events.push_back(EngineEvent::Sender(session, event));
    }

    /// Aborts a stream that is still being written but has lost all its receivers, so that its writer is notified.
    fn abort_if_deserted(&mut self, now: Time, session: Session) {
        let Some(sending) = self.sending.get(&session) else { return };
        let gone = |it: &Receiver| it.lost.is_some() && it.retry.is_none();
        if !sending.finished && sending.hosts.values().all(gone) {
            self.host.abort(now, session, Reason::Left);
        }
    }

    fn receiver(&mut self, session: Session, host: HostId) -> Option<&mut Receiver> {
        self.sending.get_mut(&session)?.hosts.get_mut(&host)
    }

    /// Reports a session that has ended, or replaces it by one for the receivers that may return.
    fn on_session_end(&mut self, now: Time, session: Session) {
        let Some(view) = self.view(session) else { return };
        let Some(mut sending) = self.sending.remove(&session) else { return };
        let waiting: Vec<HostId> = sending
            .hosts
            .iter()
            .filter(|(_, receiver)| receiver.retry.is_some())
            .map(|(host, _)| *host)
            .collect();
        if !waiting.is_empty() && sending.error.is_none() {
            let next = Session(self.driver.platform().random() as u32);
            let (stream, flow) = (sending.source.stream(), sending.flow);
            if self.host.open(now, next, stream, &waiting, sending.spread, flow).is_ok() {
                (sending.offered, sending.finished, sending.released) = (0, false, 0);
                sending.sent = 0;
                sending.sealer = self.sealer();
                sending.own_sealers.clear();
                for progress in &view.receivers {
                    if let Some(receiver) = sending.hosts.get_mut(&progress.host) {
                        receiver.past = Some(*progress);
                    }
                }
                for host in &waiting {
                    if let Some(receiver) = sending.hosts.get_mut(host) {
                        receiver.retry = None;
                        (receiver.invitation, receiver.cookie) = (None, None);
                    }
                }
                self.sending.insert(next, sending);
                self.leave_hosts_apart(next);
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

    /// Sends what may be sent; returns whether there is more.
    pub(super) fn send(&mut self, now: Time) -> io::Result<bool> {
        let mut sent = 0;
        loop {
            self.driver.flush()?;
            if self.driver.is_blocked() || sent >= SEND_TURN {
                return Ok(!self.driver.is_blocked());
            }
            while self.driver.batch().len() < SEND_BATCH
                && let Some(packet) = self.poll_packet(now)
            {
                self.push_packet(&packet);
                sent += 1;
            }
            if self.driver.batch().is_empty() {
                return Ok(false);
            }
            self.driver.batch().group();
        }
    }

    /// Appends a datagram to the batch: the bytes that `write` appends, then the payload.
    pub(super) fn push(
        &mut self,
        to: impl Into<Path>,
        write: impl FnOnce(&mut Vec<u8>),
        payload: Payload,
    ) {
        self.driver.batch().push(to, 0, write, payload);
    }

    fn push_packet(&mut self, packet: &Packet<Header>) {
        let to = match packet.dst {
            TO_GROUP | TO_AGENT => Some(self.group_address().into()),
            _ if controller::is_for_rack(&packet.header) => Some(self.group_address().into()),
            host => self.peers.path(host),
        };
        if let Header::Control(control) = &packet.header {
            let host = packet.dst;
            if self.secure.is_some() && !is_for_switches(control) {
                return self.seal_control(self.driver.last_now(), host, *control);
            }
            if let Body::Invite { .. } = control.body
                && let Some(receiver) = self.receiver(control.session, host)
            {
                receiver.invitation = Some(*control);
                if let (Some(cookie), Some(to)) = (receiver.cookie, to) {
                    self.stats.sent_bytes += u64::from(packet.wire_bytes);
                    return self.send_invitation(to, control, cookie);
                }
            }
        }
        let (words, key) = (self.words, self.key.as_ref());
        let (payload, check) = match &packet.header {
            Header::Control(_) => (Payload::new(), orca::check(&packet.header, key, &[])),
            Header::Data(data) => match self.payload(data, packet.dst) {
                Some(found) => found,
                None => return,
            },
        };
        let Some(to) = to else {
            self.stats.unroutable += 1;
            return;
        };
        self.stats.sent_bytes += u64::from(packet.wire_bytes);
        if let orca::Check::Sealed { .. } = check {
            self.stats.sent_bytes += u64::from(orca::SEALED_EXTRA_BYTES);
        }
        let key = self.key.as_ref();
        let write = |out: &mut Vec<u8>| match &packet.header {
            Header::Data(data) => orca::encode_relayed(data, words, check, out),
            Header::Control(_) => orca::encode_header(&packet.header, words, key, &[], out),
        };
        self.driver.batch().push(to, 0, write, payload);
    }

    /// Returns the payload of a data packet to a host or to the group, and its check.
    fn payload(&mut self, data: &Data, to: HostId) -> Option<(Payload, orca::Check)> {
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
        if data.parity.is_none() {
            sending.sent = sending.sent.max(data.offset + u64::from(data.len));
        }
        // Half of the window: a packet may be late for other reasons, too.
        let sealed = sending.sealer.as_ref().map_or(0, GroupSeal::sealed);
        let oldest = sealed.saturating_sub(GroupOpen::window() / 2);
        let own = sending.own_sealers.get_mut(&to);
        if own.is_none()
            && let Some(found) = self.memo.get(data, to, oldest)
        {
            return Some(found);
        }
        let mut payload = Payload::new();
        let read = match data.parity {
            None => sending.source.read(data.offset, usize::from(data.len), &mut payload),
            Some(of) => parity::encode(&mut *sending.source, data.offset, data.len, of)
                .map(|bytes| payload.push(bytes)),
        };
        if let Err(SourceError::NotYet(_)) = read {
            // The packet counts as lost, and is sent again when the source is ready.
            sending.works = true;
            return None;
        }
        if let Err(error) = read {
            // The session ends at the next turn.
            if sending.error.is_none() {
                sending.error = Some(error);
                let now = self.driver.last_now();
                self.host.abort(now, data.session, Reason::Refused);
            }
            return None;
        }
        let is_own = own.is_some();
        let check = match own.or(sending.sealer.as_mut()) {
            Some(sealer) => {
                let mut bytes = Vec::with_capacity(usize::from(data.len));
                payload.iter().for_each(|piece| bytes.extend_from_slice(piece));
                let clear = orca::associated(data);
                // A stream of 2^48 bytes ends before the counters do.
                let (counter, tag) = sealer.seal(clear.as_ref(), &mut bytes).ok()?;
                payload = Payload::from_iter([Bytes::from(bytes)]);
                orca::Check::Sealed { counter, tag }
            }
            None => {
                let pieces: SmallVec<[&[u8]; 2]> = payload.iter().map(|bytes| &bytes[..]).collect();
                orca::check(&Header::Data(*data), None, &pieces)
            }
        };
        if sending.copies > 1 && !is_own {
            self.memo.put(data, to, &payload, check);
        }
        Some((payload, check))
    }
}
