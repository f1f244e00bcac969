//! The receiver: requests, arriving packets, and the distribution of credit.

use std::collections::VecDeque;

use rackweave_core::{Assembler, Ecn, FailReason, HostId, Packet, Placement, Slice, Span, Time};
use rackweave_wire::sird::{Body, Header};

use super::Host;
use super::buckets::Buckets;
use super::config::{Config, CreditOrder};
use crate::common::{Grouped, Heap, State};

/// Maximum number of overdue credits that are given at once when the driver is late.
const CATCH_UP: u64 = 8;

/// A sender's number, of a message that has none.
const NOBODY: u32 = u32::MAX;

/// A host's state as a receiver, besides its messages.
#[derive(Debug, Default)]
pub(super) struct Giving {
    pub(super) buckets: Buckets,
    /// The messages that want credit, by sender, in the order of [`Config::order`].
    wanting: Grouped<u32, (u64, u64)>,
    /// The senders of these whose bucket has room, in the order of their first message.
    eligible: Heap<(u64, u64)>,
    /// The earliest time of the next credit.
    next_credit_at: Time,
    /// Whether the global bucket had no room for the next credit.
    is_empty: bool,
    /// Number of credits given, which is the order of round-robin scheduling.
    turns: u64,
    /// When data last arrived, of any message.
    last_data_at: Time,
}

impl Giving {
    /// When credit is to be given next; [`Time::MAX`] if it cannot be.
    #[inline]
    pub(super) fn next_at(&self) -> Time {
        if self.is_empty || self.eligible.is_empty() { Time::MAX } else { self.next_credit_at }
    }

    /// When something that is on its way since then counts as lost.
    ///
    /// All that is on its way needs its time on the receiver's link, and may wait in a queue for that long; unless nothing
    /// arrives at all, since then there is no queue. (Our choice: after an incast of data without credit the fixed interval would
    /// take most of what waits in the switch for lost.)
    fn lost_at(&self, since: Time, interval: Span, config: &Config) -> Time {
        let queue = config.credit_time(self.buckets.peak());
        let at_the_latest = since.saturating_add(interval).saturating_add(queue);
        let without_queue = since.max(self.last_data_at).saturating_add(interval);
        at_the_latest.min(without_queue)
    }

    /// Lets a message have no more credit.
    pub(super) fn stop(&mut self, slot: u32) {
        if let Some(sender) = self.wanting.remove(slot) {
            // The sender's next message keeps its place until it is its turn, when the place is corrected.
            if self.wanting.first_of(sender).is_none() {
                self.eligible.remove(sender);
            }
        }
    }

    /// Puts a sender where its first message belongs among the senders that can have credit.
    #[inline]
    fn place(&mut self, sender: u32, config: &Config) {
        match self.wanting.first_of(sender) {
            Some((key, _)) if self.buckets.sender(sender).has_room(config) => {
                self.eligible.set(sender, key);
            }
            _ => self.eligible.remove(sender),
        }
    }

    /// Takes credit back, or accounts for data that has arrived.
    #[inline]
    fn give_back(&mut self, now: Time, sender: u32, bytes: u64, config: &Config) {
        self.buckets.give_back(sender, bytes, config);
        let could_not = self.next_at() == Time::MAX;
        self.is_empty = false;
        self.place(sender, config);
        self.not_before(could_not, now);
    }

    /// Credit that could not be given until now is not given later in addition.
    fn not_before(&mut self, could_not: bool, now: Time) {
        if could_not {
            self.next_credit_at = self.next_credit_at.max(now);
        }
    }
}

/// A credit that was given, and whose packet has not arrived.
#[derive(Clone, Copy, Debug)]
struct Credit {
    packet: u32,
    given_at: Time,
}

/// The receiver's state of a message, in packets.
#[derive(Debug)]
pub struct Incoming {
    length: u32,
    packets: u32,
    /// Number of packets that have not arrived.
    missing: u32,
    received: Assembler<u32>,
    /// The sender's number in [`Buckets`].
    sender: u32,
    /// The credits that were given, in the order of time.
    credits: VecDeque<Credit>,
    /// The next credit is for the first missing packet at or after this one that has none.
    cursor: u32,
    /// One past the last packet that had credit, or needed none.
    credited: u32,
    /// Number of packets that need no credit.
    unscheduled: u32,
    /// The bytes of these that count as on their way.
    unscheduled_bytes: u64,
    /// When the receiver first heard of the message.
    began_at: Time,
    /// When a packet of the sender last arrived.
    last_received: Time,
    /// When data last arrived that was missing.
    progress_at: Time,
    /// How many times credit was withdrawn since then.
    tries: u32,
    /// Whether the sender has used no credit since the last was withdrawn: it gets one at a time.
    is_probed: bool,
    /// The number of the message's last credit, for round-robin scheduling.
    turn: u64,
}

impl Incoming {
    fn new(now: Time, length: u32, unscheduled: u16, config: &Config) -> Self {
        let packets = config.common.packets(length);
        // A sender that claims more than the protocol permits could empty the buckets.
        let unscheduled = packets.min(u32::from(unscheduled.min(config.unscheduled_packets)));
        Self {
            length,
            packets,
            missing: packets,
            received: Assembler::default(),
            sender: NOBODY,
            credits: VecDeque::new(),
            cursor: unscheduled,
            credited: unscheduled,
            unscheduled,
            unscheduled_bytes: config.bytes_of(length, unscheduled),
            began_at: now,
            last_received: now,
            progress_at: Time::ZERO,
            tries: 0,
            is_probed: false,
            turn: 0,
        }
    }

    /// When the message's timer expires: its next packet counts as lost, or its sender as silent.
    pub(super) fn deadline(&self, giving: &Giving, config: &Config) -> Time {
        let forget_at = self.last_received.saturating_add(config.common.patience);
        let interval = config.resend_interval(self.tries);
        let credit = self
            .credits
            .front()
            .map_or(Time::MAX, |credit| giving.lost_at(credit.given_at, interval, config));
        let unscheduled = if self.unscheduled_bytes > 0 {
            giving.lost_at(self.began_at, config.resend_after, config)
        } else {
            Time::MAX
        };
        credit.min(unscheduled).min(forget_at)
    }

    /// Bytes that are on their way.
    fn outstanding(&self, config: &Config) -> u64 {
        let bytes = |credit: &Credit| config.packet_bytes(self.length, credit.packet);
        self.credits.iter().map(bytes).sum::<u64>() + self.unscheduled_bytes
    }

    /// The packet that gets the next credit; `None` if each has arrived or is on its way.
    fn next_packet(&mut self) -> Option<u32> {
        if self.is_probed && !self.credits.is_empty() {
            return None;
        }
        loop {
            let packet = self.received.first_missing(self.cursor);
            if packet >= self.packets {
                return None;
            }
            // Below this one, credit was withdrawn from some packets, and others still have it.
            let has_credit =
                packet < self.credited && self.credits.iter().any(|credit| credit.packet == packet);
            self.cursor = if has_credit { packet + 1 } else { packet };
            if !has_credit {
                return Some(packet);
            }
        }
    }

    /// Accounts for a packet that has arrived; returns its bytes, if it was on its way by the receiver's account.
    fn arrived(&mut self, packet: u32, config: &Config) -> Option<u64> {
        let bytes = config.packet_bytes(self.length, packet);
        if let Some(at) = self.credits.iter().position(|credit| credit.packet == packet) {
            self.credits.remove(at);
            return Some(bytes);
        }
        if packet >= self.unscheduled || self.unscheduled_bytes == 0 {
            return None;
        }
        let bytes = bytes.min(self.unscheduled_bytes);
        self.unscheduled_bytes -= bytes;
        Some(bytes)
    }

    /// Takes back what counts as lost; returns its bytes.
    fn take_back(&mut self, now: Time, giving: &Giving, config: &Config) -> u64 {
        let mut bytes = 0;
        if self.unscheduled_bytes > 0
            && giving.lost_at(self.began_at, config.resend_after, config) <= now
        {
            bytes += core::mem::take(&mut self.unscheduled_bytes);
            self.cursor = 0;
            self.is_probed |= self.progress_at < self.began_at;
        }
        let interval = config.resend_interval(self.tries);
        while let Some(credit) = self.credits.front()
            && (self.is_probed || giving.lost_at(credit.given_at, interval, config) <= now)
        {
            // What arrived when the credit was given had been sent before. If nothing has arrived since, the sender uses no
            // credit, and has to give all of it back.
            self.is_probed |= self.progress_at <= credit.given_at;
            bytes += config.packet_bytes(self.length, credit.packet);
            self.cursor = self.cursor.min(credit.packet);
            self.credits.pop_front();
        }
        self.tries += u32::from(bytes > 0);
        bytes
    }

    /// The message's position among messages that want credit.
    const fn key(&self, birth: u64, order: CreditOrder) -> (u64, u64) {
        match order {
            CreditOrder::Srpt => (self.missing as u64, birth),
            CreditOrder::RoundRobin => (self.turn, birth),
        }
    }
}

impl Host {
    /// Handles REQUEST, which announces a message or asks for its state.
    pub(super) fn handle_request(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        length: u32,
        unscheduled: u16,
    ) {
        if length == 0 || length > self.config.common.max_message_bytes {
            return;
        }
        let Some((slot, new)) = self.receiving(now, from, header, length, unscheduled) else {
            return;
        };
        let State::Receiving(incoming) = &mut self.exchanges.get_mut(slot).state else { return };
        incoming.last_received = now;
        if !new && incoming.length == length {
            self.send_control(from, header.id.get(), header.one_way, Body::Busy);
        }
        self.pace_credit(now);
    }

    /// Handles a data packet.
    pub(super) fn handle_data(&mut self, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let Body::Data { message_length, offset, len, unscheduled, csn } = header.body else {
            return Placement::Discard;
        };
        let is_packet = self.config.common.is_packet(message_length, offset, len);
        if !is_packet || packet.is_trimmed() {
            return Placement::Discard;
        }
        let slot = self.receiving(now, packet.src, header, message_length, unscheduled);
        let Some((slot, _)) = slot else { return Placement::Discard };
        let number = offset / self.config.common.max_payload;
        let max_gaps = usize::from(self.config.common.max_gaps);
        let exchange = self.exchanges.get_mut(slot);
        let (peer, one_way, id) = (exchange.peer, exchange.one_way, exchange.arriving());
        let State::Receiving(incoming) = &mut exchange.state else { return Placement::Discard };
        if incoming.length != message_length {
            return Placement::Discard;
        }
        incoming.last_received = now;
        let sender = incoming.sender;
        let is_marked = packet.ecn() == Ecn::Marked;
        self.scheme.giving.last_data_at = now;
        self.scheme.giving.buckets.on_packet(sender, csn, is_marked, &self.config);
        let fresh = incoming.received.insert(number..number + 1, max_gaps).unwrap_or(0);
        incoming.missing -= fresh;
        if fresh > 0 {
            let waits_longer = incoming.tries > 0;
            (incoming.progress_at, incoming.tries, incoming.is_probed) = (now, 0, false);
            if let Some(bytes) = incoming.arrived(number, &self.config) {
                self.scheme.giving.give_back(now, sender, bytes, &self.config);
            }
            if waits_longer {
                let deadline = incoming.deadline(&self.scheme.giving, &self.config);
                self.timers.set_earlier(slot, deadline.max(now));
            }
        }
        if incoming.missing == 0 {
            self.deliver(now, slot, message_length);
            self.send_control(peer, id.0, one_way, Body::Ack);
        } else {
            self.want(now, slot);
        }
        self.pace_credit(now);
        if fresh == 0 {
            return Placement::Discard;
        }
        Placement::Store(Slice { message: id, offset, len: u32::from(len) })
    }

    /// The slot of the exchange that receives this message, and whether the exchange was just created.
    #[inline]
    fn receiving(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        length: u32,
        unscheduled: u16,
    ) -> Option<(u32, bool)> {
        let (slot, new) = self.receiving_slot(now, from, header, |host| {
            Incoming::new(now, length, unscheduled, &host.config)
        })?;
        if new && let State::Receiving(incoming) = &mut self.exchanges.get_mut(slot).state {
            let giving = &mut self.scheme.giving;
            incoming.sender = giving.buckets.join(from, &self.config);
            // docs/protocols/sird.md#sird-buckets: data without credit counts against both buckets.
            giving.buckets.take(incoming.sender, incoming.unscheduled_bytes);
            giving.place(incoming.sender, &self.config);
            let deadline = incoming.deadline(giving, &self.config);
            self.timers.set_earlier(slot, deadline);
            self.want(now, slot);
        }
        Some((slot, new))
    }

    /// Lets the message have credit, if it needs some, or corrects its place.
    #[inline]
    fn want(&mut self, now: Time, slot: u32) {
        let exchange = self.exchanges.get_mut(slot);
        let State::Receiving(incoming) = &mut exchange.state else { return };
        if incoming.next_packet().is_none() {
            return self.scheme.giving.stop(slot);
        }
        let key = incoming.key(exchange.birth, self.config.order);
        let giving = &mut self.scheme.giving;
        let could_not = giving.next_at() == Time::MAX;
        giving.wanting.set(slot, incoming.sender, key);
        giving.place(incoming.sender, &self.config);
        giving.not_before(could_not, now);
    }

    /// Handles overdue credit, or the silence of the sender.
    pub(super) fn receiver_due(&mut self, now: Time, slot: u32) {
        let State::Receiving(incoming) = &mut self.exchanges.get_mut(slot).state else { return };
        if incoming.last_received.saturating_add(self.config.common.patience) <= now {
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        let giving = &mut self.scheme.giving;
        let bytes = incoming.take_back(now, giving, &self.config);
        self.recovery.timeouts += u64::from(bytes > 0);
        giving.give_back(now, incoming.sender, bytes, &self.config);
        self.timers.set(slot, incoming.deadline(giving, &self.config).max(now));
        self.want(now, slot);
    }

    /// Gives back what is on its way of a message that is no longer received.
    pub(super) fn give_all_back(&mut self, now: Time, slot: u32) {
        let State::Receiving(incoming) = &self.exchanges.get(slot).state else { return };
        // Data that is still to come will find nobody: a small error of the bucket, for a round trip.
        let (sender, bytes) = (incoming.sender, incoming.outstanding(&self.config));
        if sender != NOBODY {
            self.scheme.giving.give_back(now, sender, bytes, &self.config);
            self.scheme.giving.buckets.leave(sender);
        }
    }

    /// Gives the credit that is due.
    #[inline]
    pub(super) fn pace_credit(&mut self, now: Time) {
        let late = self.config.credit_interval * CATCH_UP;
        let earliest = Time::from_ps(now.as_ps().saturating_sub(late.as_ps()));
        while self.scheme.giving.next_at() <= now {
            let Some(delay) = self.give_credit(now) else { return };
            let giving = &mut self.scheme.giving;
            giving.next_credit_at = giving.next_credit_at.max(earliest).saturating_add(delay);
        }
    }

    /// Gives a credit to the first message that may have one; returns the time that its packet takes on the link.
    fn give_credit(&mut self, now: Time) -> Option<Span> {
        let config = &*self.config;
        let giving = &mut self.scheme.giving;
        while let Some((_, sender)) = giving.eligible.first() {
            let first = giving.wanting.first_of(sender);
            let Some((key, slot)) =
                first.filter(|_| giving.buckets.sender(sender).has_room(config))
            else {
                giving.eligible.remove(sender);
                continue;
            };
            if giving.eligible.first() != Some((key, sender)) {
                giving.eligible.set(sender, key);
                continue;
            }
            let exchange = self.exchanges.get_mut(slot);
            let (peer, id, one_way) = (exchange.peer, exchange.arriving(), exchange.one_way);
            let birth = exchange.birth;
            let State::Receiving(incoming) = &mut exchange.state else {
                giving.stop(slot);
                continue;
            };
            let Some(packet) = incoming.next_packet() else {
                giving.stop(slot);
                continue;
            };
            let bytes = config.packet_bytes(incoming.length, packet);
            if !giving.buckets.has_room(bytes, config) {
                giving.is_empty = true;
                return None;
            }
            giving.buckets.take(sender, bytes);
            incoming.credits.push_back(Credit { packet, given_at: now });
            incoming.cursor = packet + 1;
            incoming.credited = incoming.credited.max(packet + 1);
            giving.turns += 1;
            incoming.turn = giving.turns;
            if incoming.next_packet().is_some() {
                giving.wanting.set(slot, sender, incoming.key(birth, config.order));
            } else {
                giving.wanting.remove(slot);
            }
            giving.place(sender, config);
            self.timers.set_earlier(slot, incoming.deadline(giving, config).max(now));
            let delay = config.credit_time(bytes);
            self.send_control(peer, id.0, one_way, Body::Credit { packet });
            return Some(delay);
        }
        None
    }

    /// Asserts that the buckets agree with the messages, and that credit is within the global bucket.
    #[cfg(test)]
    pub(super) fn check_credit(&self) {
        let (mut messages, mut credit, mut unscheduled) = (0, 0, 0);
        let mut senders = Vec::new();
        for exchange in self.exchanges.iter() {
            match &exchange.state {
                State::Receiving(incoming) => {
                    messages += 1;
                    unscheduled += incoming.unscheduled_bytes;
                    credit += incoming.outstanding(&self.config) - incoming.unscheduled_bytes;
                }
                State::Sending(outgoing) => senders.push((exchange.peer, outgoing)),
                _ => {}
            }
        }
        let giving = &self.scheme.giving;
        assert_eq!(giving.buckets.check(), messages, "messages with credit, and those under way");
        assert_eq!(
            giving.buckets.outstanding(),
            credit + unscheduled,
            "credit that is counted as given, and what messages under way have: one that ends gives it back"
        );
        assert!(credit <= self.config.global_bucket, "{credit}");
        if messages == 0 {
            assert!(giving.wanting.is_empty() && giving.eligible.is_empty());
        }
        self.scheme.using.check(&senders, &self.config);
    }
}
