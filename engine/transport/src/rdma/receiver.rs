//! The receiver: acknowledgements and NACKs.

use rackweave_core::{HostId, Packet, Placement, Span, Time};
use rackweave_wire::Exchange as _;

use super::Rdma;
use crate::common::{Driven, Known, Parameters as _, Place, State};

/// What a receiver has sent lately about the message in a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notes {
    /// The exchange that the rest is of.
    birth: u64,
    /// When the sender may be told again of a mark.
    mark_from: Time,
    /// The packet that the last NACK was for, and when the next NACK for it may be sent.
    expected: u32,
    nack_from: Time,
}

impl Notes {
    const fn new(birth: u64) -> Self {
        Self { birth, mark_from: Time::ZERO, expected: u32::MAX, nack_from: Time::ZERO }
    }
}

impl<S: Rdma> Driven<S> {
    /// Handles the data packet of a place in its message, and answers it. It counts as an answer that the message is complete.
    pub(crate) fn handle_data(
        &mut self,
        now: Time,
        packet: &Packet<S::Header>,
        place: Place,
        asks: bool,
    ) -> Placement {
        let (header, from) = (&packet.header, packet.src);
        // Without selective repeat nothing is kept behind a gap.
        let common = self.config.common();
        let gaps = if S::repair(&self.config).selective { common.max_gaps } else { 0 };
        let number = place.offset / common.max_payload;
        let Some(arrival) = self.arrived(now, from, header, place, gaps) else {
            self.send_nack(now, from, header, number);
            return Placement::Discard;
        };
        let answer = match arrival.acknowledged {
            None => S::complete(header),
            Some((next, sack)) if number > next => Some(S::answer(header, next, sack, true)),
            Some((next, sack)) => asks.then(|| S::answer(header, next, sack, false)),
        };
        if let Some(answer) = answer {
            self.send_control(arrival.peer, arrival.id, arrival.one_way, answer);
        }
        arrival.placement
    }

    /// The slot of the message that arrives with this packet, and its notes.
    fn notes(&mut self, from: HostId, header: &S::Header) -> Option<(u32, &mut Notes)> {
        let id = header.id().get() ^ 1;
        let Known::Slot(slot) = self.exchanges.find(from, id) else { return None };
        let exchange = self.exchanges.get(slot);
        let State::Receiving(_) = exchange.state else { return None };
        let (birth, at) = (exchange.birth, slot as usize);
        let notes = &mut self.scheme.nic_mut().notes;
        if notes.len() <= at {
            notes.resize(at + 1, Notes::new(u64::MAX));
        }
        if notes[at].birth != birth {
            notes[at] = Notes::new(birth);
        }
        Some((slot, &mut notes[at]))
    }

    /// Whether the sender of a message is to be told of a mark, at most once in an interval.
    pub(crate) fn may_tell_mark(
        &mut self,
        now: Time,
        from: HostId,
        header: &S::Header,
        interval: Span,
    ) -> bool {
        let Some((_, notes)) = self.notes(from, header) else { return false };
        let may = notes.mark_from <= now;
        if may {
            notes.mark_from = now.saturating_add(interval);
        }
        may
    }

    /// Tells the sender which packet is expected, once for each, after a packet that was discarded because it is a later one.
    fn send_nack(&mut self, now: Time, from: HostId, header: &S::Header, number: u32) {
        let interval = S::repair(&self.config).nack_interval;
        let Some((slot, _)) = self.notes(from, header) else { return };
        let State::Receiving(incoming) = &self.exchanges.get(slot).state else { return };
        let (next, sack) = incoming.acknowledged();
        let notes = &mut self.scheme.nic_mut().notes[slot as usize];
        let is_told = notes.expected == next && now < notes.nack_from;
        if number > next && !is_told {
            (notes.expected, notes.nack_from) = (next, now.saturating_add(interval));
            let nack = S::answer(header, next, sack, true);
            self.send_control(from, header.id().get(), header.one_way(), nack);
        }
    }
}
