//! The receiver: arriving packets, their acknowledgements, and the pacer of credit.

use rackweave_core::rng::mix;
use rackweave_core::{Assembler, Ecn, HostId, Packet, Placement, Slice, Time};
use rackweave_wire::Id64;
use rackweave_wire::uet::{Body, Header, QUANTUM};

use super::Host;
use super::config::{Config, Credit};
use crate::common::{Known, List, Pacer, State};

/// Quanta whose time passes before the next PULL at the least, even if a PULL gives none (`docs/protocols/uet.md#uet-credit`).
const MIN_PACED: u32 = 1024 / QUANTUM;

/// A host's state as a receiver, besides its messages: the messages that get credit, each list in round-robin order.
#[derive(Debug, Default)]
pub(super) struct Giving {
    /// EQDS: messages with packets to be retransmitted, which come first (`docs/protocols/uet.md#eqds-pulls`).
    retransmitting: List,
    /// Messages that have asked for more credit than they got.
    active: List,
    /// Messages that have got what they asked for: they get credit if no others want it, for up to a window.
    idle: List,
    pacer: Pacer,
}

/// The list that a message was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Retransmitting,
    Active,
    Idle,
}

impl Giving {
    /// When credit is to be given next; [`Time::MAX`] if none is.
    #[inline]
    pub(super) fn next_at(&self) -> Time {
        if self.is_idle() { Time::MAX } else { self.pacer.next_at() }
    }

    /// Whether no message wants credit.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.retransmitting.is_empty() && self.active.is_empty() && self.idle.is_empty()
    }

    pub(super) fn remove(&mut self, slot: u32) {
        self.retransmitting.remove(slot);
        self.active.remove(slot);
        self.idle.remove(slot);
    }

    fn next(&mut self) -> Option<(u32, From)> {
        let next = |list: &mut List, from| list.pop_front().map(|slot| (slot, from));
        next(&mut self.retransmitting, From::Retransmitting)
            .or_else(|| next(&mut self.active, From::Active))
            .or_else(|| next(&mut self.idle, From::Idle))
    }

    /// Lets a message get credit.
    fn want(&mut self, now: Time, slot: u32, retransmits: bool) {
        if self.is_idle() {
            self.pacer.not_before(now);
        }
        let list = if retransmits { &mut self.retransmitting } else { &mut self.active };
        list.push_back(slot);
    }
}

/// The receiver's state of a message, in packets.
#[derive(Debug)]
pub struct Incoming {
    length: u32,
    packets: u32,
    /// Number of packets that have not arrived.
    missing: u32,
    received: Assembler<u32>,
    /// The first packet that has not arrived.
    cumulative: u32,
    /// The highest packet that has arrived.
    highest: u32,
    /// Bytes that have arrived since the last acknowledgement.
    unacknowledged: u32,
    /// The sender asked for an acknowledgement, and gets another one when there is no gap.
    ack_requested: bool,
    /// The highest pull number that the sender asked for, in quanta.
    target: u32,
    /// All credit that was given, in quanta.
    pull: u32,
    /// EQDS: credit for retransmissions that is still to be given, in quanta.
    retransmissions: u32,
    /// Whether the message waits for credit that it needs.
    waits: bool,
    incarnation: u16,
    /// When a packet of the sender last arrived or credit was last given to it.
    last_received: Time,
}

/// The answer to a packet of a complete message.
pub(super) const fn completed() -> Body {
    Body::Ack {
        cumulative: 0,
        packet: 0,
        bitmap: Id64::new(0),
        received: 0,
        incarnation: 0,
        ecn: false,
        retransmitted: false,
        of_rts: false,
        complete: true,
    }
}

impl Incoming {
    fn new(now: Time, length: u32, config: &Config) -> Self {
        let packets = config.common.packets(length);
        Self {
            length,
            packets,
            missing: packets,
            received: Assembler::default(),
            cumulative: 0,
            highest: 0,
            unacknowledged: 0,
            ack_requested: false,
            target: 0,
            pull: 0,
            retransmissions: 0,
            waits: false,
            // A restarted host receives the message at another time, which gives another incarnation number.
            incarnation: mix(now.ticks()) as u16,
            last_received: now,
        }
    }

    /// When the sender is declared silent; this does not happen while it waits for credit.
    pub(super) fn deadline(&self, now: Time, config: &Config) -> Time {
        let since = if self.waits { now } else { self.last_received };
        since.saturating_add(config.common.patience)
    }

    const fn arrived(&self) -> u32 {
        self.packets - self.missing
    }

    /// Whether a packet has arrived after one that has not.
    const fn has_gap(&self) -> bool {
        self.arrived() > self.cumulative
    }

    /// Which of the 64 packets up to `packet` have arrived.
    fn bitmap(&self, packet: u32) -> u64 {
        let has = |back: u32| {
            packet.checked_sub(back).is_some_and(|packet| {
                packet < self.cumulative || self.has_gap() && self.received.contains(packet)
            })
        };
        (0..64).filter(|back| has(*back)).fold(0, |bits, back| bits | 1 << back)
    }

    fn ack(&self, packet: u32, ecn: bool, retransmitted: bool, of_rts: bool) -> Body {
        Body::Ack {
            cumulative: self.cumulative,
            packet,
            bitmap: Id64::new(self.bitmap(packet)),
            received: self.arrived(),
            incarnation: self.incarnation,
            ecn,
            retransmitted,
            of_rts,
            complete: false,
        }
    }

    /// Takes note of what the sender asks for; returns whether it wants credit. With EQDS it does if it asks for more
    /// than it had asked for, even if it got more than that while nobody else wanted credit
    /// (`docs/protocols/uet.md#eqds-pulls`). Otherwise it does if it asks for more than it got. An honest sender asks
    /// for a window at most, beyond what it has got.
    fn asked_for(&mut self, target: u32, window: u32, credit: Credit) -> bool {
        let before = self.target;
        self.target = before.max(target.min(self.pull.saturating_add(window)));
        self.target > self.pull || credit == Credit::Eqds && self.target > before
    }
}

impl Host {
    /// The state of the message that a packet belongs to, which may be its first one.
    fn incoming(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        message_length: u32,
    ) -> Option<(u32, &mut Incoming)> {
        let (slot, new) = self.receiving_slot(now, from, header, |host| {
            Incoming::new(now, message_length, &host.config)
        })?;
        if new {
            self.timers.set(slot, now.saturating_add(self.config.common.patience));
        }
        let State::Receiving(incoming) = &mut self.exchanges.get_mut(slot).state else {
            return None;
        };
        if incoming.length != message_length {
            return None;
        }
        incoming.last_received = now;
        Some((slot, incoming))
    }

    /// Handles a data packet, complete or trimmed.
    pub(super) fn handle_data(&mut self, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let Body::Data {
            message_length, offset, len, pull_target, ack_request, retransmitted, ..
        } = header.body
        else {
            return Placement::Discard;
        };
        if !self.config.common.is_packet(message_length, offset, len) {
            return Placement::Discard;
        }
        let (number, ecn) = (offset / self.config.common.max_payload, packet.ecn() == Ecn::Marked);
        let (max_gaps, ack_bytes) =
            (usize::from(self.config.common.max_gaps), self.config.ack_bytes);
        let (bytes, window) =
            (self.config.common.header_bytes + u32::from(len), self.config.window_quanta());
        let credit = self.config.credit;
        let Some((slot, incoming)) = self.incoming(now, packet.src, header, message_length) else {
            return Placement::Discard;
        };
        let fresh = if packet.is_trimmed() {
            0
        } else {
            incoming.received.insert(number..number + 1, max_gaps).unwrap_or(0)
        };
        incoming.missing -= fresh;
        let known = fresh > 0 || incoming.received.contains(number);
        let id = header.id;
        let answer = if incoming.missing == 0 {
            self.deliver(now, slot, message_length);
            Some(completed())
        } else if known {
            let first = incoming.arrived() == 1;
            if fresh > 0 {
                incoming.highest = incoming.highest.max(number);
                incoming.unacknowledged = incoming.unacknowledged.saturating_add(bytes);
                if number == incoming.cumulative {
                    incoming.cumulative = incoming.received.first_missing(number);
                }
                incoming.ack_requested |= ack_request;
            }
            let no_gap_left = incoming.ack_requested && !incoming.has_gap();
            incoming.ack_requested &= !no_gap_left;
            // A packet that is known already is acknowledged at once, because its sender took it for lost
            // (`docs/protocols/uet.md#eqds-receiver`).
            let at_once = fresh == 0 || first || ecn || ack_request || no_gap_left;
            let due = at_once || incoming.unacknowledged >= ack_bytes;
            if due {
                incoming.unacknowledged = 0;
            }
            let wants = incoming.asked_for(pull_target, window, credit);
            let ack = due.then(|| incoming.ack(number, ecn, retransmitted, false));
            self.let_ask(now, slot, wants, 0);
            ack
        } else {
            let wants = incoming.asked_for(pull_target, window, credit);
            let (received, incarnation) = (incoming.arrived(), incoming.incarnation);
            // EQDS gives credit for a packet more. With RCCC the message only has to be in a list.
            let per_packet = self.config.packet_bytes().div_ceil(QUANTUM);
            self.let_ask(now, slot, wants || self.config.credit == Credit::Rccc, per_packet);
            Some(Body::Nack { packet: number, received, incarnation, ecn })
        };
        if let Some(body) = answer {
            let (one_way, entropy) = (header.one_way, header.entropy);
            self.queue_control(packet.src, Header { id, one_way, entropy, body });
        }
        if fresh == 0 {
            return Placement::Discard;
        }
        Placement::Store(Slice {
            message: rackweave_core::MessageId(id.get()),
            offset,
            len: u32::from(len),
        })
    }

    /// Lets a message get credit if it `wants` some, or (EQDS) if it retransmits this much.
    fn let_ask(&mut self, now: Time, slot: u32, wants: bool, retransmits: u32) {
        if self.config.credit == Credit::None {
            return;
        }
        let retransmits = if self.config.credit == Credit::Eqds { retransmits } else { 0 };
        let State::Receiving(incoming) = &mut self.exchanges.get_mut(slot).state else { return };
        incoming.waits |= wants || retransmits > 0;
        if retransmits > 0 {
            let most = self.config.most_retransmissions();
            let all = incoming.retransmissions.saturating_add(retransmits);
            incoming.retransmissions = all.min(most);
        }
        if wants {
            self.scheme.giving.want(now, slot, false);
        }
        if retransmits > 0 {
            self.scheme.giving.want(now, slot, true);
        }
    }

    /// Handles RTS: the sender has no credit, or its packets were lost (`docs/protocols/uet.md#eqds-receiver`).
    pub(super) fn handle_rts(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        message_length: u32,
        pull_target: u32,
        backlog: u32,
    ) {
        if message_length == 0 || message_length > self.config.common.max_message_bytes {
            return;
        }
        let (window, credit) = (self.config.window_quanta(), self.config.credit);
        let Some((slot, incoming)) = self.incoming(now, from, header, message_length) else {
            return;
        };
        incoming.asked_for(pull_target, window, credit);
        // In EQDS each RTS adds a packet. Here it says how much waits, so that a window that was lost as a whole, by switches that
        // do not trim, does not take as many round trips as it has packets (our choice).
        let retransmits = backlog.min(window).saturating_sub(incoming.retransmissions);
        let ack = incoming.ack(incoming.highest, false, false, true);
        let (pull, incarnation) = (incoming.pull, incoming.incarnation);
        self.let_ask(now, slot, true, retransmits);
        let (id, one_way, entropy) = (header.id, header.one_way, header.entropy);
        self.queue_control(from, Header { id, one_way, entropy, body: ack });
        if self.config.credit != Credit::None {
            let body = Body::Pull { pull, incarnation };
            self.queue_control(from, Header { id, one_way, entropy, body });
        }
    }

    /// Handles ASK of a client that waits for its response.
    pub(super) fn handle_ask(&mut self, now: Time, from: HostId, id: u64, one_way: bool) {
        let local = id ^ 1;
        let is_client = local & 1 == 0;
        match self.exchanges.find(from, local) {
            Known::Slot(slot) => match &mut self.exchanges.get_mut(slot).state {
                State::Receiving(incoming) => incoming.last_received = now,
                State::InService | State::Sending(_) if !is_client => {
                    self.send_control(from, id, one_way, completed());
                }
                _ => {}
            },
            // The client of a finished request asks for its response, which no longer exists.
            Known::Finished if one_way || is_client => {
                self.send_control(from, id, one_way, completed());
            }
            Known::Finished | Known::No => self.send_control(from, id, one_way, Body::Unknown),
        }
    }

    /// Gives the credit that is due: one PULL at a time for the whole host (`docs/protocols/uet.md#eqds-pulls`,
    /// `docs/protocols/uet.md#uet-credit`).
    pub(super) fn pace_credit(&mut self, now: Time) {
        let per_pull = self.config.credit_per_pull();
        let window = self.config.window_quanta();
        self.scheme.giving.pacer.limit_overdue(now, self.config.credit_span(per_pull));
        while self.scheme.giving.pacer.next_at() <= now {
            let Some((slot, from_list)) = self.scheme.giving.next() else { return };
            let exchange = self.exchanges.get_mut(slot);
            let (peer, id, one_way) = (exchange.peer, exchange.arriving(), exchange.one_way);
            let State::Receiving(incoming) = &mut exchange.state else { continue };
            let asked = incoming.target.saturating_sub(incoming.pull);
            let credit = match from_list {
                From::Active if self.config.credit == Credit::Rccc => per_pull.min(asked),
                _ => per_pull,
            };
            incoming.pull = incoming.pull.saturating_add(credit);
            incoming.last_received = now;
            let (wants, beyond) =
                (incoming.target > incoming.pull, incoming.pull.saturating_sub(incoming.target));
            let giving = &mut self.scheme.giving;
            match from_list {
                From::Retransmitting => {
                    incoming.retransmissions = incoming.retransmissions.saturating_sub(credit);
                    if incoming.retransmissions > 0 {
                        giving.retransmitting.push_back(slot);
                    }
                }
                From::Active if wants => giving.active.push_back(slot),
                From::Active => giving.idle.push_back(slot),
                From::Idle if !wants && beyond < window => giving.idle.push_back(slot),
                From::Idle => {}
            }
            incoming.waits = giving.active.contains(slot) || giving.retransmitting.contains(slot);
            let (pull, incarnation) = (incoming.pull, incoming.incarnation);
            giving.pacer.spend(self.config.credit_span(credit.max(MIN_PACED)));
            self.send_control(peer, id.0, one_way, Body::Pull { pull, incarnation });
        }
    }
}
