//! Processing of a host's packets: received ones are dispatched to sessions and agent, and sessions are polled for
//! packets to send.

use super::sending::Copy;
use super::*;
use crate::switch::is_newer;

impl Host {
    pub(super) fn handle_data(&mut self, now: Time, port: u8, src: HostId, data: &Data) -> Handled {
        let session = data.session;
        let store = match self.receiving.get_mut(&session) {
            Some(receiving) => {
                if data.labelled != Labelled::Host {
                    receiving.data_at = now;
                }
                let store = receiving.flow.handle_data(now, data);
                self.mark_ready(now, Key::Receive(session));
                store
            }
            None => None,
        };
        let relays = self.forward_data(now, port, src, data);
        if data.labelled != Labelled::Pilot
            && store.is_none()
            && !self.receiving.contains_key(&session)
        {
            self.counters.ignored += 1;
        }
        Handled { store, relays }
    }

    /// Handles data of the group as an agent only, not as a receiver of its session. Returns the number of packets that the agent will
    /// forward, as [`Handled::relays`].
    pub fn forward_data(&mut self, now: Time, port: u8, src: HostId, data: &Data) -> u16 {
        if data.labelled != Labelled::Pilot {
            return 0;
        }
        if let Some(sending) = self.sending.get_mut(&data.session) {
            sending.on_own_data();
            return 0;
        }
        let relay = self.agent.handle_unlabelled(now, data.session, src);
        if relay.ports == 0 { 0 } else { self.relay(port, data, relay.ports) }
    }

    /// Puts copies into the outbox: one for the ToR to replicate, or one for each of these ports. Returns their number.
    fn relay(&mut self, port: u8, data: &Data, ports: u64) -> u16 {
        let layout = &self.config.layout;
        let copy = |labelled, label, dst| {
            self.packet_of(dst, Data { labelled, label, ..*data }).with_priority(0)
        };
        let mut copies = smallvec::SmallVec::<[Packet<Header>; 4]>::new();
        match self.config.tor {
            Tor::Switch => copies.push(copy(Labelled::Rack, layout.rack_label(ports), TO_GROUP)),
            Tor::None => {
                // Packets go only to higher ports, so that no label can make a packet circulate.
                let above = self.agent.bit().wrapping_sub(1) | self.agent.bit();
                let ports = ports & !above;
                for other in (0..64).filter(|other| ports >> other & 1 == 1) {
                    let place = Place { rack: self.place.rack, port: other };
                    if let Some(host) = layout.host(place) {
                        copies.push(copy(Labelled::Pilot, data.label, host));
                    }
                }
            }
        }
        let mut relays = 0;
        for packet in copies {
            if self.outbox.len() >= OUTBOX {
                self.counters.relays_dropped += 1;
            } else {
                self.outbox.push_back((port, packet));
                self.counters.relayed += 1;
                relays += 1;
            }
        }
        relays
    }

    pub(super) fn handle_control(&mut self, now: Time, port: u8, control: &Control) {
        let Control { from, to, session, ref body } = *control;
        if self.links.len() > 1 && self.last_port.len() < 1 << 16 {
            self.last_port.insert(from, port);
        }
        let from_controller = self.config.controller == Some(from);
        if from_controller {
            self.agent.on_controller(now);
        }
        match *body {
            Body::Status(ref status) if to == TO_AGENT => {
                if !self.agent.handle_status(now, session, status) {
                    self.counters.ignored += 1;
                }
            }
            Body::Pong { number } if from_controller => self.agent.handle_pong(number),
            Body::Sync { rack, ports, version } => {
                self.handle_sync(from, session, rack, ports, version);
            }
            Body::Labels { .. } | Body::Denied { .. } if from_controller => {
                self.with_sending(now, session, |sending, _| sending.handle_controller(now, body));
            }
            Body::Served { rack, agent, epoch } if from_controller => {
                self.handle_rack_status(now, rack, agent, epoch);
            }
            Body::Invite { stream, place, payload, via_agent } => {
                let heard = now;
                let invitation = Invitation { from, stream, place, payload, via_agent, heard };
                self.handle_invitation(now, session, invitation, body);
            }
            Body::End { .. } | Body::Mode { .. } => {
                let known = self.deliver_to_receiver(now, session, from, body);
                // This host was in the session before it restarted.
                if !known
                    && !self.ended.contains(&session)
                    && !self.invitations.contains_key(&session)
                {
                    self.send_control(Some(from), session, Body::Bye { reason: Reason::Unknown });
                }
            }
            Body::Bye { .. } => {
                if !self.deliver_to_receiver(now, session, from, body) {
                    let pending = self.invitations.get(&session);
                    if pending.is_some_and(|invitation| invitation.from == from) {
                        self.invitations.remove(&session);
                        self.events.push_back(Event::Withdrawn { session });
                    }
                    self.with_sending(now, session, |sending, _| {
                        sending.handle_control(now, from, body);
                    });
                }
            }
            Body::Join { .. }
            | Body::Preparing
            | Body::Status(_)
            | Body::Complete { .. }
            | Body::SyncDone { .. } => {
                self.handle_receiver_packet(now, from, session, body);
            }
            _ => self.counters.ignored += 1,
        }
    }

    /// Handles a packet from a receiver of a session that this host sends or has sent.
    fn handle_receiver_packet(&mut self, now: Time, from: HostId, session: Session, body: &Body) {
        if self.sending.contains_key(&session) {
            self.with_sending(now, session, |sending, _| sending.handle_control(now, from, body));
            return;
        }
        let reason = match body {
            Body::Complete { .. } => Reason::Left,
            // A late answer to an invitation.
            Body::SyncDone { .. } | Body::Preparing => return,
            _ => Reason::Unknown,
        };
        self.send_control(Some(from), session, Body::Bye { reason });
    }

    fn handle_sync(&mut self, from: HostId, session: Session, rack: u16, ports: u64, version: u32) {
        // Labels come from the controller, or without label switches from the session's sender.
        let trusted = match self.config.tor {
            Tor::Switch => self.config.controller == Some(from),
            Tor::None => {
                let receiving = self.receiving.get(&session);
                receiving.is_some_and(|receiving| receiving.flow.sender() == from)
            }
        };
        if !trusted || rack != self.place.rack && rack != ANY_RACK {
            self.counters.ignored += 1;
            return;
        }
        if let Some(done) = self.agent.handle_sync(session, ports, version) {
            self.send_control(Some(from), session, done);
        }
    }

    /// Handles the controller's report that a rack has lost its last agent, or has one again.
    fn handle_rack_status(&mut self, now: Time, rack: u16, agent: bool, epoch: u32) {
        if rack >= self.config.layout.racks() {
            self.counters.ignored += 1;
            return;
        }
        let known = self.served.get(&rack);
        if known.is_none_or(|known| is_newer(epoch, *known)) {
            self.served.insert(rack, epoch);
            for sending in self.sending.values_mut() {
                sending.set_rack_served(now, rack, agent, &self.config.layout);
            }
            let sessions: Vec<_> = self.sending.keys().copied().collect();
            for session in sessions {
                self.mark_ready(now, Key::Send(session));
            }
        }
        // Old messages are answered too, so that the controller stops repeating them.
        self.send_control(None, Session(0), Body::SyncDone { place: self.place, version: epoch });
    }

    fn handle_invitation(
        &mut self,
        now: Time,
        session: Session,
        invitation: Invitation,
        body: &Body,
    ) {
        let Invitation { from, stream, payload, .. } = invitation;
        if self.deliver_to_receiver(now, session, from, body) || self.ended.contains(&session) {
            return;
        }
        if self.receiving.contains_key(&session) || self.sending.contains_key(&session) {
            self.send_control(Some(from), session, Body::Bye { reason: Reason::Busy });
            return;
        }
        if let Some(pending) = self.invitations.get_mut(&session) {
            if pending.from == from {
                pending.heard = now;
                self.send_control(Some(from), session, Body::Preparing);
            }
            return;
        }
        if self.invitations.len() >= MAX_INVITATIONS {
            self.send_control(Some(from), session, Body::Bye { reason: Reason::Busy });
            return;
        }
        self.invitations.insert(session, invitation);
        self.events.push_back(Event::Invited { session, from, stream, payload });
    }

    /// Passes a control packet to the session's receiver if it comes from the session's sender. Returns whether it
    /// does.
    fn deliver_to_receiver(
        &mut self,
        now: Time,
        session: Session,
        from: HostId,
        body: &Body,
    ) -> bool {
        match self.receiving.get_mut(&session) {
            Some(receiving) if receiving.flow.sender() == from => {
                receiving.flow.handle_control(now, body);
                self.mark_ready(now, Key::Receive(session));
                true
            }
            _ => false,
        }
    }

    /// Polls a session's events and queues it to be polled for packets. To be called after any change of the session.
    pub(super) fn mark_ready(&mut self, now: Time, key: Key) {
        match key {
            Key::Send(session) => self.take_sender_events(now, session),
            Key::Receive(session) => self.take_receiver_events(session),
        }
        if self.is_ready.insert(key) {
            self.ready.push_back(key);
        }
    }

    fn take_sender_events(&mut self, now: Time, session: Session) {
        let Some(sending) = self.sending.get_mut(&session) else { return };
        let layout = &self.config.layout;
        let mut over = false;
        while let Some(event) = sending.flow.poll_event() {
            match event {
                SenderEvent::Joined { .. } | SenderEvent::Preparing { .. } => {}
                SenderEvent::Attached { host } => sending.attach(now, host, layout, true),
                SenderEvent::Detached { host }
                | SenderEvent::Lost { host, .. }
                | SenderEvent::Completed { host } => sending.attach(now, host, layout, false),
                SenderEvent::Finished | SenderEvent::Failed { .. } => over = true,
            }
            self.events.push_back(Event::Sender(session, event));
        }
        if over && sending.over_at.is_none() {
            sending.close(now);
            sending.over_at = Some(now.saturating_add(self.config.flow.patience));
        }
        sending.update_progress(now);
    }

    fn take_receiver_events(&mut self, session: Session) {
        let Some(receiving) = self.receiving.get_mut(&session) else { return };
        while let Some(event) = receiving.flow.poll_event() {
            if let ReceiverEvent::Readable { upto } = event
                && let Some(Event::Receiver(last, ReceiverEvent::Readable { upto: waiting })) =
                    self.events.back_mut()
                && *last == session
            {
                *waiting = upto;
                continue;
            }
            if event == ReceiverEvent::Closed && !receiving.returns {
                if self.ended.len() >= MAX_ENDED {
                    self.ended.pop_front();
                }
                self.ended.push_back(session);
            }
            self.events.push_back(Event::Receiver(session, event));
        }
    }

    /// Returns the next packet for a port: control packets first, then what the agent forwards, then the host's own
    /// data.
    pub(super) fn poll_port(&mut self, now: Time, port: u8) -> Option<Packet<Header>> {
        self.poll_agent(now);
        let at = usize::from(port);
        loop {
            let link = self.links.get_mut(at)?;
            if let Some(packet) = link.controls.pop_front() {
                return Some(packet);
            }
            if let Some((_, packet)) = self.outbox.pop_front_if(|(to, _)| *to == port) {
                return Some(packet);
            }
            if let Some(packet) = link.data.pop_front() {
                return Some(packet);
            }
            if self.links.iter().any(|link| link.data.len() >= MAX_PORT_LAG) {
                return None; // Another port lags too far behind this one.
            }
            let key = *self.ready.front()?;
            if !self.poll_session(now, key) {
                self.ready.pop_front();
                self.is_ready.remove(&key);
                self.park(now, key);
            } else if self.ready.len() > 1 {
                // The next session is served first the next time (round robin).
                self.ready.rotate_left(1);
            }
        }
    }

    /// Sends the agent's packets. It is called even while no link has room, because `poll_timeout` must not return a
    /// time in the past.
    pub(super) fn poll_agent(&mut self, now: Time) {
        if self.agent.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        let mut packets = smallvec::SmallVec::<[(Option<HostId>, Session, Body); 4]>::new();
        self.agent.poll(now, |to, session, body| packets.push((to, session, body)));
        for (to, session, body) in packets {
            self.send_control(to, session, body);
        }
    }

    /// Lets a session put packets into the queues of the links. Returns false if it has none now.
    fn poll_session(&mut self, now: Time, key: Key) -> bool {
        match key {
            Key::Send(session) => self.poll_sending(now, session),
            Key::Receive(session) => {
                let Some(receiving) = self.receiving.get_mut(&session) else { return false };
                let Some((to, body)) = receiving.flow.poll(now) else { return false };
                let stuck = now.since(receiving.data_at) > AGENT_TIMEOUT;
                let to = if to == TO_AGENT && stuck { receiving.flow.sender() } else { to };
                self.send_control(Some(to), session, body);
                true
            }
        }
    }

    fn poll_sending(&mut self, now: Time, session: Session) -> bool {
        // Timers are armed when nothing is left to send. A session whose link is always full does not come to that, and would
        // neither give up a receiver nor try smaller packets.
        if let Some(sending) = self.sending.get_mut(&session)
            && sending.flow.poll_timeout().is_some_and(|at| at <= now)
        {
            sending.handle_timeout(now);
            self.take_sender_events(now, session);
        }
        let Some(sending) = self.sending.get_mut(&session) else { return false };
        if let Some((to, body)) = sending.poll_control_plane(now) {
            self.send_control(to, session, body);
            return true;
        }
        // Copies are computed before the flow is polled, because the flow's decisions depend on their number.
        let me = self.config.me;
        let copies = sending.copies(now, me, &self.config.layout, self.config.ports).len();
        let mut run = smallvec::SmallVec::<[flow::Piece; BURST]>::new();
        let mut other = None;
        while run.len() < if copies > 1 { BURST } else { 1 } {
            match sending.flow.poll(now) {
                Some(flow::Outgoing::Everyone(piece)) => run.push(piece),
                outgoing => {
                    other = outgoing;
                    break;
                }
            }
        }
        if run.is_empty() && other.is_none() {
            return false;
        }
        let copies = sending.copies(now, me, &self.config.layout, self.config.ports).to_vec();
        let is_pilot = |copy: &Copy| copy.to.is_none() && copy.labelled == Labelled::Pilot;
        if copies.iter().any(is_pilot)
            && let Some(sending) = self.sending.get_mut(&session)
        {
            sending.on_pilot_sent(run.len() as u32);
        }
        for copy in copies {
            for piece in &run {
                let data =
                    Data { labelled: copy.labelled, label: copy.label, ..data_of(session, *piece) };
                self.send_data(copy.to, data);
            }
        }
        match other {
            Some(flow::Outgoing::One(host, piece)) => {
                self.send_data(Some(host), data_of(session, piece));
            }
            Some(flow::Outgoing::Control(host, body)) => {
                self.send_control(Some(host), session, body)
            }
            _ => {}
        }
        true
    }

    /// Arms the timer of a session that has nothing to send now, or removes the session if it is over.
    fn park(&mut self, now: Time, key: Key) {
        let next = match key {
            Key::Send(session) => match self.sending.get_mut(&session) {
                Some(sending) => {
                    sending.update_progress(now);
                    let over = sending.over_at.is_some_and(|at| at <= now);
                    if over && !sending.is_closing() {
                        self.sending.remove(&session);
                        None
                    } else {
                        sending.poll_timeout()
                    }
                }
                None => None,
            },
            Key::Receive(session) => match self.receiving.get_mut(&session) {
                Some(receiving) if receiving.flow.is_over() => {
                    self.receiving.remove(&session);
                    None
                }
                Some(receiving) => receiving.flow.poll_timeout(),
                None => None,
            },
        };
        if let Some(before) = self.armed.remove(&key) {
            self.timers.remove(&(before, key));
        }
        if let Some(at) = next {
            self.armed.insert(key, at);
            self.timers.insert((at, key));
        }
    }

    /// Queues a control packet for a host, or for the controller if `to` is `None`.
    pub(super) fn send_control(&mut self, to: Option<HostId>, session: Session, body: Body) {
        let Some(to) = to.or(self.config.controller) else { return };
        let control = Control { from: self.config.me, to, session, body };
        let packet = self.packet(to, Header::Control(control)).with_priority(CONTROL_PRIORITY);
        let by = self.last_port.get(&to).copied();
        let mut dropped = 0;
        for (port, link) in self.links.iter_mut().enumerate() {
            if by.is_none_or(|by| usize::from(by) == port) {
                if link.controls.len() < MAX_CONTROLS {
                    link.controls.push_back(packet);
                } else {
                    dropped += 1;
                }
            }
        }
        self.counters.controls_dropped += dropped;
    }

    /// Queues data for a host, or for the group at all ports.
    pub(super) fn send_data(&mut self, to: Option<HostId>, data: Data) {
        if to.is_none() && data.labelled == Labelled::Pilot && self.places.len() > 1 {
            self.send_per_port(data);
            return;
        }
        let packet = self.packet_of(to.unwrap_or(TO_GROUP), data);
        let by = to.and_then(|to| self.last_port.get(&to).copied());
        for (port, link) in self.links.iter_mut().enumerate() {
            if by.is_none_or(|by| usize::from(by) == port) {
                link.data.push_back(packet);
            }
        }
    }

    /// Queues data with a pilot label, at each port with the label for the racks next to that port.
    fn send_per_port(&mut self, data: Data) {
        let known = |(session, label, _): &(Session, Label, Vec<Label>)| {
            (*session, *label) == (data.session, data.label)
        };
        let labels = match self.split.take().filter(known) {
            Some((_, _, labels)) => labels,
            None => self.config.layout.split(&self.places, data.label, data.session.0),
        };
        for (port, label) in labels.iter().enumerate().filter(|(_, label)| label.0 != 0) {
            let packet = self.packet_of(TO_GROUP, Data { label: *label, ..data });
            self.links[port].data.push_back(packet);
        }
        self.split = Some((data.session, data.label, labels));
    }

    fn packet_of(&self, dst: HostId, data: Data) -> Packet<Header> {
        self.packet(dst, Header::Data(data))
    }

    fn packet(&self, dst: HostId, header: Header) -> Packet<Header> {
        packet(self.config.me, dst, self.words, header)
    }
}

/// Returns a packet with its size on the wire, including IPv4 and UDP headers.
pub(crate) fn packet(me: HostId, dst: HostId, words: u8, header: Header) -> Packet<Header> {
    let (payload, session) = match &header {
        Header::Data(data) => (u32::from(data.len), data.session),
        Header::Control(control) => (0, control.session),
    };
    let l3_bytes = 20 + 8 + orca::header_bytes(&header, words, false) + payload;
    Packet::new(me, dst, l3_bytes, header).with_ports(session.0 as u16, PORT)
}

/// Returns the data packet of a piece for a single host.
const fn data_of(session: Session, piece: flow::Piece) -> Data {
    let flow::Piece { offset, len, repair, end, parity } = piece;
    let label = Label(0);
    Data { labelled: Labelled::Host, label, session, offset, len, repair, end, parity }
}
