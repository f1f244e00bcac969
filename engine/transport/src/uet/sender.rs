//! The sender: what a message may send, retransmissions, and the handling of answers.

use std::collections::VecDeque;

use rackweave_core::{Ecn, FailReason, HostId, Packet, Time};
use rackweave_wire::Id64;
use rackweave_wire::uet::{Body, Header, QUANTUM};

use super::config::{Config, Credit};
use super::entropy::{Entropy, Feedback};
use super::nscc::{Acked, Nscc, Params};
use super::{Host, after};
use crate::common::{Before, Jitter, Scoreboard, State, Timeout};

/// The sender's state of a message.
#[derive(Debug, Default)]
pub struct Outgoing {
    length: u32,
    packets: u32,
    entropy: Entropy,
    board: Scoreboard,
    timeout: Timeout,
    /// How often each packet of `tries_from..` was retransmitted.
    tries: VecDeque<u8>,
    tries_from: u32,
    /// Bytes that may be sent. A packet may be sent whenever there are any, so that they may be less than none after it.
    credit: i64,
    /// EQDS: what was left of the first window when speculation ended, in bytes. No packet may be sent for it. It takes from the window for
    /// which the message asks, and each attempt to send without other credit takes a packet of it away
    /// (`docs/protocols/uet.md#eqds-sender`).
    leftover: i64,
    /// Whether no answer has arrived: what is sent is speculative.
    speculates: bool,
    /// The highest pull number.
    pulled: u32,
    nscc: Nscc,
    /// Packets that have arrived by the receiver's count. It counts some before their acknowledgement has room for them.
    received: u32,
    /// The receiver's incarnation; `None` before its first answer.
    incarnation: Option<u16>,
    /// When a packet of the peer last arrived; at first, when the message's first packet was sent.
    last_received: Time,
    /// When the last RTS was sent.
    rts_at: Option<Time>,
}

/// An answer about packets.
#[derive(Clone, Copy, Debug)]
struct Answer {
    cumulative: u32,
    packet: u32,
    bitmap: u64,
    received: u32,
    ecn: bool,
    retransmitted: bool,
    of_rts: bool,
}

impl Outgoing {
    /// Resets this to the state of a new message, keeping its allocations.
    pub(super) fn reset(&mut self, length: u32, jitter: Jitter, config: &Config) {
        let Self { mut board, mut entropy, mut tries, .. } = core::mem::take(self);
        board.reset();
        entropy.restart(jitter.seed());
        tries.clear();
        *self = Self {
            length,
            packets: config.common.packets(length),
            entropy,
            board,
            timeout: Timeout::new(jitter),
            tries,
            // `docs/protocols/uet.md#eqds-sender`, `docs/protocols/uet.md#uet-sender`: credit for a window to begin with.
            credit: i64::try_from(config.max_window).unwrap_or(i64::MAX),
            speculates: true,
            nscc: Nscc::new(config),
            ..Self::default()
        };
    }

    /// Whether there is a packet to send.
    const fn has_packet(&self) -> bool {
        self.board.waiting() > 0 || self.board.next() < self.packets
    }

    /// Whether a packet may be sent.
    #[inline]
    pub(super) fn is_ready(&self, config: &Config) -> bool {
        self.has_packet()
            && (config.credit == Credit::None || self.credit > 0)
            && (!config.nscc
                || self.nscc.window() >= self.in_flight(config) + u64::from(config.packet_bytes()))
    }

    /// Whether the message takes its turn at the link: it may send, or it forfeits a packet of its leftover.
    #[inline]
    fn takes_turn(&self, config: &Config) -> bool {
        self.is_ready(config)
            || self.leftover > 0 && self.has_packet() && self.credit + self.leftover > 0
    }

    /// Bytes in flight, where the last packet counts as a full one (our choice).
    #[inline]
    fn in_flight(&self, config: &Config) -> u64 {
        let not_yet_acknowledged = self.received.saturating_sub(self.board.arrived_packets());
        let packets = self.board.in_flight().saturating_sub(not_yet_acknowledged);
        u64::from(packets) * u64::from(config.packet_bytes())
    }

    /// Bytes of packets that were never sent.
    fn unsent(&self, config: &Config) -> u64 {
        let next = self.board.next();
        let payload = u64::from(self.length)
            .saturating_sub(u64::from(next) * u64::from(config.common.max_payload));
        payload + u64::from(self.packets - next) * u64::from(config.common.header_bytes)
    }

    /// The pull number up to which this message asks for credit (`docs/protocols/uet.md#eqds-sender`, `docs/protocols/uet.md#uet-sender`); `active`
    /// is the number of the host's messages that could send now.
    fn pull_target(&self, config: &Config, active: u32) -> u32 {
        let (unsent, full) = (self.unsent(config), u64::from(config.packet_bytes()));
        let mut want = unsent;
        if config.credit == Credit::Rccc {
            // EQDS's receivers know from NACK and RTS what is to be retransmitted.
            want += u64::from(self.board.waiting()) * full;
            if config.nscc {
                want = want.min(self.nscc.window() + full);
            }
        }
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        // EQDS's leftover takes from the window for which a message asks. In its simulator it takes from what is unsent too, so that a
        // message of less than a window, which is not sent as a whole until the first answer, asks for nothing more and stops until its
        // timeout (our choice).
        let window = signed(config.max_window).saturating_sub(self.leftover);
        let mut want = signed(want).min(window).saturating_sub(self.credit);
        // UET asks for a packet at least, since the first answer ends speculation. EQDS's simulator has no such rule; EQDS asks here too.
        if self.speculates && unsent > 0 {
            want = want.max(signed(full));
        }
        if config.credit == Credit::Rccc && want > 0 {
            want /= i64::from(active.max(1));
        }
        let quantum = i64::from(QUANTUM);
        let total =
            i64::from(self.pulled).saturating_add(want.saturating_add(quantum - 1) / quantum);
        u32::try_from(total.max(0)).unwrap_or(u32::MAX)
    }

    /// Takes the next packet to send, and its header.
    #[inline]
    fn take_packet(&mut self, now: Time, config: &Config, active: u32) -> Option<Body> {
        if !self.is_ready(config) {
            self.leftover = (self.leftover - i64::from(config.packet_bytes())).max(0);
            return None;
        }
        if self.board.next() == 0 {
            self.last_received = now;
        }
        let is_new = self.board.waiting() == 0;
        let packet = self.board.take(now)?;
        if is_new {
            self.tries.push_back(0);
        } else if let Some(tries) = self.tries.get_mut((packet - self.tries_from) as usize) {
            *tries = tries.saturating_add(1);
        }
        let offset = packet * config.common.max_payload;
        let len = config.common.max_payload.min(self.length - offset) as u16;
        if config.credit != Credit::None {
            self.credit -= i64::from(config.common.header_bytes + u32::from(len));
        }
        let full = u64::from(config.packet_bytes());
        let is_last = self.board.next() == self.packets
            || config.credit != Credit::None && self.credit <= 0
            || config.nscc && self.in_flight(config) + full >= self.nscc.window();
        Some(Body::Data {
            message_length: self.length,
            offset,
            pull_target: match config.credit {
                Credit::None => 0,
                Credit::Eqds | Credit::Rccc => self.pull_target(config, active),
            },
            len,
            ack_request: !is_new || is_last,
            retransmitted: !is_new,
            speculative: self.speculates,
        })
    }

    /// Ends speculation: the receiver gives credit from now on.
    fn stop_speculating(&mut self, config: &Config) {
        if self.speculates {
            self.speculates = false;
            if config.credit == Credit::Eqds {
                self.leftover = self.credit.max(0);
            }
            self.credit = self.credit.min(0);
        }
    }

    /// The round trip of a packet, if it is certain which transmission was answered (`docs/protocols/uet.md#uet-sender`): the only one,
    /// or the second of two.
    fn round_trip(&mut self, now: Time, answer: &Answer) -> Option<rackweave_core::Span> {
        let sent = self.board.sent_at(answer.packet)?;
        let tries = self.tries.get(answer.packet.checked_sub(self.tries_from)? as usize)?;
        (*tries == u8::from(answer.retransmitted)).then(|| now.since(sent))
    }

    fn acknowledged(&mut self, now: Time, answer: &Answer, config: &Config, params: &Params) {
        let received = answer.received.clamp(self.received, self.packets);
        let fresh = u64::from(received - self.received);
        self.received = received;
        let rtt = if answer.of_rts { None } else { self.round_trip(now, answer) };
        if let Some(rtt) = rtt {
            self.timeout.rtt.sample(rtt);
            self.nscc.measured(rtt, config);
        }
        for packet in self.board.base()..answer.cumulative.min(self.board.next()) {
            self.arrived(packet);
        }
        let mut bitmap = answer.bitmap;
        while bitmap != 0 {
            let back = bitmap.trailing_zeros();
            bitmap &= bitmap - 1;
            if let Some(packet) = answer.packet.checked_sub(back) {
                self.arrived(packet);
            }
        }
        while self.tries_from < self.board.base() {
            self.tries.pop_front();
            self.tries_from += 1;
        }
        if config.nscc {
            let bytes = fresh * u64::from(config.packet_bytes());
            let in_flight = self.in_flight(config);
            self.nscc.acked(now, Acked { ecn: answer.ecn, rtt, bytes, in_flight }, params);
        }
    }

    fn arrived(&mut self, packet: u32) {
        if let Some(Before::InFlight(_) | Before::Waited) = self.board.arrive(packet) {
            self.timeout.acknowledged();
        }
    }

    /// Handles the NACK of a trimmed packet, which then waits to be retransmitted.
    fn trimmed(&mut self, now: Time, packet: u32, config: &Config, params: &Params) {
        let Some(sent) = self.board.sent_at(packet) else { return };
        if config.nscc {
            let tries = self.tries.get(packet.saturating_sub(self.tries_from) as usize);
            if tries == Some(&0) {
                self.nscc.measured(now.since(sent), config);
            }
            let in_flight = self.in_flight(config);
            self.nscc.trimmed(now, u64::from(config.packet_bytes()), in_flight, params);
        }
        self.board.lose(packet);
    }

    /// Handles a pull number. Unused credit is limited to a window (`docs/protocols/uet.md#uet-sender`).
    fn pull(&mut self, now: Time, pull: u32, config: &Config) {
        if pull > self.pulled {
            let credit = i64::from(pull - self.pulled) * i64::from(QUANTUM);
            let window = i64::try_from(config.max_window).unwrap_or(i64::MAX);
            self.credit = self.credit.saturating_add(credit).min(window);
            self.pulled = pull;
            self.timeout.pulled(now);
        }
    }

    /// When the message's timer expires.
    #[inline]
    pub(super) fn deadline(&self, config: &Config) -> Time {
        let bounds = config.rto_bounds();
        if let Some(at) = self.board.oldest() {
            self.timeout.lost_at(&bounds, at)
        } else if self.is_ready(config) {
            Time::MAX
        } else {
            self.timeout.ask_at(&bounds)
        }
    }

    /// Marks all overdue packets for retransmission.
    fn time_out(&mut self, now: Time, config: &Config, params: &Params) -> bool {
        let bounds = config.rto_bounds();
        let mut is_new = false;
        while let Some(at) = self.board.oldest()
            && self.timeout.lost_at(&bounds, at) <= now
        {
            self.board.lose_oldest();
            is_new |= self.timeout.expired(now, at);
            // What is left of the window is not for retransmissions (`docs/protocols/uet.md#uet-sender`). That it no longer takes from the
            // window either, so that the message asks for all that it needs, is our choice.
            self.stop_speculating(config);
            self.leftover = 0;
            if config.nscc {
                self.nscc.timed_out(u64::from(config.packet_bytes()), params);
            }
        }
        is_new
    }

    /// The RTS of a message that has no credit for what waits.
    fn rts(&self, config: &Config) -> Body {
        let backlog = u64::from(self.board.waiting()) * u64::from(config.packet_bytes());
        Body::Rts {
            message_length: self.length,
            pull_target: self.pull_target(config, 1),
            backlog: u32::try_from(backlog.div_ceil(u64::from(QUANTUM))).unwrap_or(u32::MAX),
        }
    }

    /// Asserts that queues and numbers are within their bounds.
    #[cfg(test)]
    pub(super) fn check_bounds(&self, config: &Config) {
        assert!(self.board.backlog() < 100_000);
        assert_eq!(self.tries_from + self.tries.len() as u32, self.board.next());
        assert!(self.credit <= config.max_window as i64);
        assert!((0..=config.max_window as i64).contains(&self.leftover));
    }
}

impl Host {
    /// The next packet of the message whose turn it is in the round robin.
    #[inline]
    pub(super) fn next_packet(&mut self, now: Time) -> Option<Packet<Header>> {
        while let Some(slot) = self.scheme.ready.pop_front() {
            let active = self.scheme.ready.len() + 1;
            let exchange = self.exchanges.get_mut(slot);
            let State::Sending(outgoing) = &mut exchange.state else { continue };
            let Some(body) = outgoing.take_packet(now, &self.config, active) else { continue };
            if let Body::Data { retransmitted: true, .. } = body {
                self.recovery.retransmissions += 1;
            }
            if outgoing.takes_turn(&self.config) {
                self.scheme.ready.push_back(slot);
            }
            self.timers.set_earlier(slot, after(now, outgoing.deadline(&self.config)));
            let id = Id64::new(exchange.local);
            let entropy = outgoing.entropy.next(&self.config);
            let header = Header { id, one_way: exchange.one_way, entropy, body };
            let payload = rackweave_core::Header::payload_bytes(&header);
            let (peer, bytes) = (exchange.peer, self.config.common.header_bytes + payload);
            let packet = self.packet(peer, bytes, self.config.data_priority, header);
            return Some(packet.trimmable().with_ecn(Ecn::Capable));
        }
        None
    }

    /// Lets `handle` use an answer from the current incarnation of the message's receiver.
    fn with_outgoing(
        &mut self,
        now: Time,
        from: HostId,
        id: u64,
        incarnation: u16,
        handle: impl FnOnce(&mut Outgoing, &Config, &Params),
    ) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state else { return };
        if *outgoing.incarnation.get_or_insert(incarnation) != incarnation {
            return self.fail(now, slot, FailReason::PeerForgot);
        }
        outgoing.last_received = now;
        outgoing.stop_speculating(&self.config);
        handle(outgoing, &self.config, &self.scheme.nscc);
        if outgoing.board.base() == outgoing.packets {
            // The final answer to a complete message has the flag `complete`. This receiver lacks packets that
            // it, or its previous incarnation, had acknowledged.
            return self.fail(now, slot, FailReason::PeerForgot);
        }
        self.resume(now, slot);
    }

    /// Lets a message send if it may, and sets its timer.
    fn resume(&mut self, now: Time, slot: u32) {
        let State::Sending(outgoing) = &self.exchanges.get(slot).state else { return };
        if outgoing.takes_turn(&self.config) {
            self.scheme.ready.push_back(slot);
        }
        let deadline = outgoing.deadline(&self.config);
        if deadline != Time::MAX {
            self.timers.set_earlier(slot, after(now, deadline));
        }
    }

    /// Handles ACK.
    pub(super) fn handle_ack(&mut self, now: Time, from: HostId, header: &Header) {
        let Body::Ack {
            cumulative,
            packet,
            bitmap,
            received,
            incarnation,
            ecn,
            retransmitted,
            of_rts,
            ..
        } = header.body
        else {
            return;
        };
        let bitmap = bitmap.get();
        let answer = Answer { cumulative, packet, bitmap, received, ecn, retransmitted, of_rts };
        let (id, entropy) = (header.id.get(), header.entropy);
        self.with_outgoing(now, from, id, incarnation, |outgoing, config, params| {
            outgoing.acknowledged(now, &answer, config, params);
            if !of_rts {
                let feedback = if ecn { Feedback::Marked } else { Feedback::Good };
                outgoing.entropy.answered(entropy, feedback, config);
            }
            outgoing.timeout.quiet_since = now;
        });
    }

    /// Handles NACK.
    pub(super) fn handle_nack(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        packet: u32,
        incarnation: u16,
    ) {
        let (id, entropy) = (header.id.get(), header.entropy);
        self.with_outgoing(now, from, id, incarnation, |outgoing, config, params| {
            outgoing.trimmed(now, packet, config, params);
            outgoing.entropy.answered(entropy, Feedback::Trimmed, config);
            outgoing.timeout.quiet_since = now;
        });
    }

    /// Handles PULL.
    pub(super) fn handle_pull(
        &mut self,
        now: Time,
        from: HostId,
        id: u64,
        pull: u32,
        incarnation: u16,
    ) {
        self.with_outgoing(now, from, id, incarnation, |outgoing, config, _| {
            outgoing.pull(now, pull, config);
        });
    }

    /// Handles a data packet of this host that a switch has returned, because it had room for neither its payload nor its header.
    /// The receiver does not know of it, so that the packet is lost. (Our choice: the simulators' switches return none here.)
    pub(super) fn handle_returned(&mut self, now: Time, from: HostId, id: u64, offset: u32) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state else { return };
        if outgoing.board.lose(offset / self.config.common.max_payload) {
            if self.config.nscc {
                let bytes = u64::from(self.config.packet_bytes());
                outgoing.nscc.timed_out(bytes, &self.scheme.nscc);
            }
            self.resume(now, slot);
        }
    }

    /// Handles the timer of a message at its sender.
    pub(super) fn sender_due(&mut self, now: Time, slot: u32) {
        let config = &self.config;
        let exchange = self.exchanges.get_mut(slot);
        let State::Sending(outgoing) = &mut exchange.state else { return };
        if now.since(outgoing.last_received) >= config.common.patience {
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        let mut asks = false;
        if outgoing.board.oldest().is_some() {
            let is_new = outgoing.time_out(now, config, &self.scheme.nscc);
            self.recovery.timeouts += u64::from(is_new);
            // Without credit, an RTS lets the receiver know of what waits, but not more often than this: otherwise all senders of an
            // incast would send them at once (`docs/protocols/uet.md#eqds-sender`).
            asks = outgoing.rts_at.is_none_or(|at| now.since(at) >= config.rts_interval());
        } else if !outgoing.is_ready(config) {
            // Nothing is in flight, and there is no credit: a PULL or RTS was lost, or the receiver serves many others.
            outgoing.timeout.quiet_since = now;
            outgoing.timeout.stalls += 1;
            outgoing.leftover = 0;
            if outgoing.timeout.stalls > config.max_stalls {
                return self.fail(now, slot, FailReason::PeerForgot);
            }
            asks = true;
        }
        let is_ready = outgoing.is_ready(config);
        let deadline = outgoing.deadline(config);
        if deadline == Time::MAX {
            self.timers.remove(slot);
        } else {
            self.timers.set(slot, after(now, deadline));
        }
        if is_ready {
            self.scheme.ready.push_back(slot);
        } else if asks && outgoing.has_packet() {
            outgoing.rts_at = Some(now);
            let body = outgoing.rts(config);
            let (peer, id, one_way) = (exchange.peer, exchange.local, exchange.one_way);
            self.send_control(peer, id, one_way, body);
        }
    }
}
