//! The receiver: acknowledgements, NACKs, and CNPs for marked packets.

use rackweave_core::{Ecn, HostId, Packet, Placement, Time};
use rackweave_wire::dcqcn::{Body, Header};

use super::Host;
use crate::common::{Known, Place, State};

/// What a receiver has sent lately about the message in a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notes {
    /// The exchange that the rest is of.
    birth: u64,
    /// When the next CNP may be sent.
    cnp_from: Time,
    /// The packet that the last NACK was for, and when the next NACK for it may be sent.
    expected: u32,
    nack_from: Time,
}

impl Notes {
    const fn new(birth: u64) -> Self {
        Self { birth, cnp_from: Time::ZERO, expected: u32::MAX, nack_from: Time::ZERO }
    }
}

impl Host {
    /// Handles a data packet.
    pub(super) fn handle_data(&mut self, now: Time, packet: &Packet<Header>) -> Placement {
        let (header, from) = (&packet.header, packet.src);
        let Body::Data { message_length, offset, len, asks } = header.body else {
            return Placement::Discard;
        };
        if packet.is_trimmed() {
            return Placement::Discard;
        }
        // Without selective repeat nothing is kept behind a gap.
        let common = &self.config.common;
        let gaps = if self.config.selective_repeat { common.max_gaps } else { 0 };
        let number = offset / common.max_payload;
        let place = Place { message_length, offset, len };
        let arrival = self.arrived(now, from, header, place, gaps);
        if packet.ecn() == Ecn::Marked {
            self.send_cnp(now, from, header);
        }
        let Some(arrival) = arrival else {
            self.send_nack(now, from, header, number);
            return Placement::Discard;
        };
        let answer = match arrival.acknowledged {
            None => Some(Body::Complete),
            Some((next, sack)) if number > next => Some(Body::Nack { next, sack }),
            Some((next, sack)) => asks.then_some(Body::Ack { next, sack }),
        };
        if let Some(answer) = answer {
            self.send_control(arrival.peer, arrival.id, arrival.one_way, answer);
        }
        arrival.placement
    }

    /// The slot of the message that arrives with this packet, and its notes.
    fn notes(&mut self, from: HostId, header: &Header) -> Option<(u32, &mut Notes)> {
        let Known::Slot(slot) = self.exchanges.find(from, header.id.get() ^ 1) else { return None };
        let exchange = self.exchanges.get(slot);
        let State::Receiving(_) = exchange.state else { return None };
        let (birth, at) = (exchange.birth, slot as usize);
        let notes = &mut self.scheme.notes;
        if notes.len() <= at {
            notes.resize(at + 1, Notes::new(u64::MAX));
        }
        if notes[at].birth != birth {
            notes[at] = Notes::new(birth);
        }
        Some((slot, &mut notes[at]))
    }

    /// Tells the sender of a mark, unless it was told a moment ago (section 3.1).
    fn send_cnp(&mut self, now: Time, from: HostId, header: &Header) {
        let interval = self.config.cnp_interval;
        let Some((_, notes)) = self.notes(from, header) else { return };
        if notes.cnp_from <= now {
            notes.cnp_from = now.saturating_add(interval);
            self.send_control(from, header.id.get(), header.one_way, Body::Cnp);
        }
    }

    /// Tells the sender which packet is expected, once for each, after a packet that was discarded because it is a later one.
    fn send_nack(&mut self, now: Time, from: HostId, header: &Header, number: u32) {
        let interval = self.config.nack_interval;
        let Some((slot, _)) = self.notes(from, header) else { return };
        let State::Receiving(incoming) = &self.exchanges.get(slot).state else { return };
        let (next, sack) = incoming.acknowledged();
        let notes = &mut self.scheme.notes[slot as usize];
        let is_told = notes.expected == next && now < notes.nack_from;
        if number > next && !is_told {
            (notes.expected, notes.nack_from) = (next, now.saturating_add(interval));
            let nack = Body::Nack { next, sack };
            self.send_control(from, header.id.get(), header.one_way, nack);
        }
    }
}
