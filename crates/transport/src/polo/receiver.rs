//! The receiver's half of a message: arriving packets, what is missing, and its answers.

use rackweave_core::{
    Assembler, Ecn, Event, HostId, Kind, MessageId, Packet, Placement, Slice, Span, Time,
};
use rackweave_wire::polo::{Body, Header};

use super::{Config, ExchangeState, Host, after};
use crate::common::{Known, State};

/// A message on its way in (the slides' flow), in packets.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) length: u32,
    pub(super) packets: u32,
    /// Packets that have not arrived.
    pub(super) missing: u32,
    pub(super) received: Assembler<u32>,
    /// Packets that its sender sends without being driven.
    pub(super) window: u32,
    /// The first packet that was neither sent unasked nor asked for.
    pub(super) limit: u32,
    /// One past the last packet that arrived in order.
    max_seen: u32,
    /// What is missing before this packet is lost ...
    pub(super) horizon: u32,
    /// ... and was asked for again before this one.
    pub(super) cursor: u32,
    /// Packets that were asked for and have not come, as far as is known; only in the host's present
    /// generation.
    pub(super) on_way: u32,
    pub(super) generation: u32,
    /// It was asked for packets.
    pub(super) asked: bool,
    /// Where it is among the active flows; `None`: it is inactive.
    pub(super) place: Option<u32>,
    /// When the sender was last heard of, and when data last came or was asked for.
    pub(super) heard_at: Time,
    pub(super) quiet_since: Time,
    /// Timeouts since data last came.
    pub(super) tries: u32,
}

/// What a flow is to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// This packet, by name.
    Named(u32),
    /// The next new one.
    New,
}

impl Incoming {
    /// What to ask for next. Lost packets come first. What a sender that was paused has not sent of its
    /// first window is asked for by name (ours).
    #[inline]
    pub(super) fn want(&self) -> Option<Want> {
        let lost = self.received.first_missing(self.cursor);
        if lost < self.horizon {
            Some(Want::Named(lost))
        } else if self.limit >= self.packets {
            None
        } else if self.limit < self.window {
            Some(Want::Named(self.limit))
        } else {
            Some(Want::New)
        }
    }

    /// Whether packets that were sent or asked for have not come.
    const fn expects_some(&self) -> bool {
        self.packets - self.missing < self.limit
    }

    /// When something has to be done about it.
    pub(super) fn deadline(&self, config: &Config) -> Time {
        let forget_at = self.heard_at.saturating_add(config.patience);
        if self.place.is_some() && self.expects_some() {
            forget_at.min(self.quiet_since.saturating_add(config.rto(self.tries)))
        } else {
            forget_at
        }
    }

    /// A packet has come in order: those before it are lost (recovery 1, slide 11). Returns how many of
    /// those that were driven are.
    #[inline]
    fn in_order(&mut self, number: u32, config: &Config) -> u32 {
        self.max_seen = self.max_seen.max(number + 1);
        let horizon = self.max_seen.saturating_sub(config.reorder_margin);
        if !config.recovery_1 || horizon <= self.horizon {
            return 0;
        }
        let mut gap = self.received.first_missing(self.horizon.max(self.window));
        let mut lost = 0;
        while gap < horizon && lost < self.on_way {
            lost += 1;
            gap = self.received.first_missing(gap + 1);
        }
        self.horizon = horizon;
        lost
    }
}

impl Host {
    /// DATA.
    pub(super) fn handle_data(&mut self, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let Body::Data { message_length, offset, len, window, driven, again } = header.body else {
            return Placement::Discard;
        };
        let max_payload = self.config.max_payload;
        let whole = offset % max_payload == 0
            && offset < message_length
            && u32::from(len) == max_payload.min(message_length - offset);
        if !whole || message_length > self.config.max_message_bytes || packet.is_trimmed() {
            return Placement::Discard;
        }
        let marked = packet.ecn() == Ecn::Marked;
        // Slide 12: "before the receiver receives any packet with ECN mark".
        self.pausing |= marked;
        let slot = self.receiving_slot(now, packet.src, header, message_length, window);
        let Some((slot, new)) = slot else {
            // A late copy, of flows that are gone: the next flows begin anew.
            self.pausing &= !self.active.is_empty();
            return Placement::Discard;
        };
        let number = offset / max_payload;
        let exchange = self.exchanges.get_mut(slot);
        let id = exchange.arriving();
        let State::Receiving(incoming) = &mut exchange.state else { return Placement::Discard };
        if incoming.length != message_length {
            return Placement::Discard;
        }
        (incoming.heard_at, incoming.quiet_since, incoming.tries) = (now, now, 0);
        let max_gaps = usize::from(self.config.max_gaps);
        let fresh = incoming.received.insert(number..number + 1, max_gaps).unwrap_or(0);
        incoming.missing -= fresh;
        incoming.limit = incoming.limit.max(number + 1);
        let mut back = u32::from(driven);
        if !again {
            back += incoming.in_order(number, &self.config);
        }
        if !incoming.expects_some() {
            back = u32::MAX;
        }
        let (is_active, missing) = (incoming.place.is_some(), incoming.missing);
        self.active_data |= is_active;
        self.off_the_way(slot, back);
        self.drives.data(marked, &self.config);
        if missing == 0 {
            self.arrived(now, slot);
        } else {
            if new && !is_active {
                self.send_standing(slot, false);
            }
            self.appraise(slot);
            self.arm(now, slot);
            self.drive_flows(now, Some(slot));
        }
        if fresh == 0 {
            return Placement::Discard;
        }
        Placement::Store(Slice { message: id, offset, len: u32::from(len) })
    }

    /// ADJOINT.
    pub(super) fn handle_adjoint(&mut self, now: Time, from: HostId, header: &Header) {
        let Body::Adjoint { message_length, sent, epoch, window, timeout } = header.body else {
            return;
        };
        if message_length == 0 || message_length > self.config.max_message_bytes {
            return;
        }
        let slot = self.receiving_slot(now, from, header, message_length, window);
        let Some((slot, new)) = slot else { return };
        let State::Receiving(incoming) = &mut self.exchanges.get_mut(slot).state else { return };
        if incoming.length != message_length {
            return;
        }
        incoming.heard_at = now;
        let sent = sent.min(incoming.packets);
        // A sender that was paused in its first window has not sent all of it.
        incoming.limit =
            if incoming.asked { incoming.limit.max(sent) } else { incoming.max_seen.max(sent) };
        let is_active = incoming.place.is_some();
        if timeout {
            // All that was sent was sent a timeout ago.
            self.take_as_lost(slot, sent);
        }
        self.arm(now, slot);
        let is_clock = self.clock == Some(slot);
        if is_clock && epoch == self.epoch && !timeout {
            self.clock_came_back(now);
        } else if is_active && self.clock.is_none() {
            self.set_clock(now, slot);
        } else if timeout || new || epoch == 0 {
            self.send_standing(slot, is_clock && timeout);
        }
        if timeout && is_active {
            self.ask_at_once(now, slot);
            self.drive_flows(now, None);
        }
    }

    /// Tells a flow's sender whether it is paused, and whether the adjoint packet is wanted back.
    pub(super) fn send_standing(&mut self, slot: u32, tick: bool) {
        let exchange = self.exchanges.get(slot);
        let State::Receiving(incoming) = &exchange.state else { return };
        let (peer, id, one_way) = (exchange.peer, exchange.arriving(), exchange.one_way);
        let body = Body::AdjointAck { epoch: self.epoch, paused: incoming.place.is_none(), tick };
        self.send_control(peer, id.0, one_way, body);
    }

    /// The exchange that receives this message, and whether it is new: then it begins.
    #[inline]
    fn receiving_slot(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        length: u32,
        window: u16,
    ) -> Option<(u32, bool)> {
        let (id, one_way) = (header.id.get(), header.one_way);
        let local = id ^ 1;
        let is_client = local & 1 == 0;
        let known = self.exchanges.find(from, local);
        if let Known::Slot(slot) = known
            && let State::Receiving(_) = self.exchanges.get(slot).state
        {
            return Some((slot, false));
        }
        // An adjoint packet that follows its window needs no answer: one is on its way.
        let answer = !matches!(header.body, Body::Adjoint { timeout: false, .. });
        match known {
            Known::Slot(slot) => match self.exchanges.get(slot).state {
                State::Sending(_) | State::Awaiting(_) if is_client => {
                    if self.exchanges.get(slot).one_way {
                        return None;
                    }
                }
                // The server has the request, and its client does not know it yet.
                _ => {
                    if answer {
                        self.send_control(from, id, one_way, Body::Complete);
                    }
                    return None;
                }
            },
            Known::Finished => {
                if answer {
                    self.send_control(from, id, one_way, Body::Complete);
                }
                return None;
            }
            // A response to no request (any more).
            Known::No if is_client => {
                self.send_control(from, id, one_way, Body::Unknown);
                return None;
            }
            Known::No => {}
        }
        let packets = self.config.packets(length);
        let window = packets.min(u32::from(window));
        let incoming = Incoming {
            length,
            packets,
            missing: packets,
            received: Assembler::default(),
            window,
            limit: window,
            max_seen: 0,
            horizon: 0,
            cursor: 0,
            on_way: 0,
            generation: self.generation,
            asked: false,
            place: None,
            heard_at: now,
            quiet_since: now,
            tries: 0,
        };
        let slot = if let Known::Slot(slot) = known {
            self.response_begins(slot, State::Receiving(incoming));
            slot
        } else {
            self.exchanges.insert(now, from, local, one_way, State::Receiving(incoming))?
        };
        self.begin_flow(now, slot);
        Some((slot, true))
    }

    /// The first packet of a response: so the request has arrived.
    fn response_begins(&mut self, slot: u32, state: ExchangeState) {
        self.leave_lists(slot);
        let exchange = self.exchanges.get_mut(slot);
        let (peer, id) = (exchange.peer, MessageId(exchange.local));
        if let State::Sending(_) = core::mem::replace(&mut exchange.state, state) {
            self.events.push_back(Event::Sent { peer, id });
        }
    }

    /// The last packet of a message has arrived.
    fn arrived(&mut self, now: Time, slot: u32) {
        let exchange = self.exchanges.get(slot);
        let State::Receiving(incoming) = &exchange.state else { return };
        let (peer, id, kind) = (exchange.peer, exchange.arriving(), exchange.arriving_kind());
        let (bytes, one_way) = (u64::from(incoming.length), exchange.one_way);
        self.events.push_back(Event::Delivered { peer, id, bytes, kind });
        let later = kind == Kind::Request && self.config.complete_delay > Span::ZERO;
        if !later {
            self.send_control(peer, id.0, one_way, Body::Complete);
        }
        if kind == Kind::Request {
            self.leave_lists(slot);
            self.end_flow(now, slot);
            self.exchanges.get_mut(slot).state = State::InService;
            if later {
                self.timers.set(slot, now.saturating_add(self.config.complete_delay));
            }
        } else {
            self.remove(now, slot, true);
        }
    }

    /// The response to a request has not begun: its client is told now that the request has arrived.
    pub(super) fn complete_due(&mut self, slot: u32) {
        self.timers.remove(slot);
        let exchange = self.exchanges.get(slot);
        let (peer, id, one_way) = (exchange.peer, exchange.arriving(), exchange.one_way);
        self.send_control(peer, id.0, one_way, Body::Complete);
    }

    /// ASK: is there still a response to come?
    pub(super) fn handle_ask(&mut self, from: HostId, id: u64) {
        let local = id ^ 1;
        // The server's side of a request.
        if local & 1 == 1 {
            let known = matches!(self.exchanges.find(from, local), Known::Slot(_));
            let body = if known { Body::Complete } else { Body::Unknown };
            self.send_control(from, id, false, body);
        }
    }

    /// Makes sure that the flow comes up no later than at its deadline.
    pub(super) fn arm(&mut self, now: Time, slot: u32) {
        if let State::Receiving(incoming) = &self.exchanges.get(slot).state {
            let deadline = after(now, incoming.deadline(&self.config));
            self.timers.set_earlier(slot, deadline);
        }
    }

    /// Nothing has come for too long of an active flow that should send: what was asked for is lost
    /// (ours; it repairs a driving packet that was to wake a paused sender, too).
    pub(super) fn receiver_due(&mut self, now: Time, slot: u32) {
        let State::Receiving(incoming) = &mut self.exchanges.get_mut(slot).state else { return };
        incoming.tries = incoming.tries.saturating_add(1);
        incoming.quiet_since = now;
        let (limit, deadline) = (incoming.limit, after(now, incoming.deadline(&self.config)));
        self.timers.set(slot, deadline);
        self.take_as_lost(slot, limit);
        self.ask_at_once(now, slot);
        self.drive_flows(now, None);
    }
}
