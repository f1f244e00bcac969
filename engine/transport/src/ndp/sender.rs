//! The sender: the first window, pulled packets and retransmissions; and the handling of answers.

use rackweave_core::{FailReason, HostId, Packet, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::ndp::{Body, Header};

use super::Host;
use super::config::Config;
use super::paths::Paths;
use crate::common::{Before, Jitter, Scoreboard, State, Timeout};

/// The content of an answer about one packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Offset of the packet's first byte in the message.
    pub(super) offset: u32,
    /// Whether the packet arrived without its payload.
    pub(super) trimmed: bool,
    /// The path that the packet took.
    pub(super) path: u16,
}

/// The sender's state of a message, in packets.
#[derive(Debug, Default)]
pub struct Outgoing {
    length: u32,
    packets: u32,
    paths: Paths,
    board: Scoreboard,
    timeout: Timeout,
    /// Number of packets that may be sent.
    credit: u32,
    /// Number of lost packets for which there is no credit yet.
    withheld: u32,
    /// The highest pull number that was followed.
    pulled: u32,
    /// Number of packets sent, retransmissions included.
    transmissions: u32,
    /// The receiver's incarnation; `None` before its first answer.
    incarnation: Option<u16>,
    /// Number of answers. The receiver pulls once for each, unless all packets are in flight.
    answers: u32,
    /// When a packet of the peer last arrived; at first, when the message's first packet was sent.
    last_received: Time,
}

impl Outgoing {
    /// Resets this to the state of a new message, keeping its allocations.
    pub(super) fn reset(&mut self, length: u32, jitter: Jitter, config: &Config) {
        let Self { mut board, mut paths, .. } = core::mem::take(self);
        board.reset();
        paths.restart(jitter.seed());
        let packets = config.common.packets(length);
        let credit = packets.min(u32::from(config.initial_window));
        let timeout = Timeout::new(jitter);
        *self = Self { length, packets, paths, credit, board, timeout, ..Self::default() };
    }

    /// Whether a packet may be sent.
    #[inline]
    pub(super) const fn is_ready(&self) -> bool {
        self.credit > 0 && (self.board.waiting() > 0 || self.board.next() < self.packets)
    }

    /// Takes the next packet to send; returns it, and whether it was sent before.
    #[inline]
    fn take_packet(&mut self, now: Time) -> Option<(u32, bool)> {
        if !self.is_ready() {
            return None;
        }
        self.credit -= 1;
        if self.transmissions == 0 {
            self.last_received = now;
        }
        self.transmissions = self.transmissions.saturating_add(1);
        let is_again = self.board.waiting() > 0;
        Some((self.board.take(now)?, is_again))
    }

    /// Handles the acknowledgement of a packet.
    #[inline]
    fn arrived(&mut self, now: Time, packet: u32) {
        match self.board.arrive(packet) {
            Some(Before::InFlight(sent)) => self.timeout.rtt.sample(now.since(sent)),
            Some(Before::Waited) => {}
            None => return,
        }
        self.answers = self.answers.saturating_add(1);
        self.timeout.acknowledged();
        if self.withheld > 0 {
            self.withheld -= 1;
            self.credit = self.credit.saturating_add(1);
        }
    }

    /// Handles the NACK of a trimmed packet, which then waits to be pulled.
    #[inline]
    fn trimmed(&mut self, packet: u32) {
        if self.board.lose(packet) {
            self.answers = self.answers.saturating_add(1);
        }
    }

    /// Handles a packet returned by a switch, which had room for neither its payload nor its header. The
    /// receiver does not know of it, so that the packet counts as lost. It is retransmitted at once only if no
    /// other packet is in flight and no pull is expected; otherwise all senders of an incast would collide
    /// again (NDP, SIGCOMM'17, section 3.2.4; its further rule, to retransmit if most packets were acknowledged
    /// recently, is left out).
    fn returned(&mut self, packet: u32) {
        if self.board.lose(packet) {
            self.withheld = self.withheld.saturating_add(1);
            if self.board.oldest().is_none() && self.answers <= self.pulled {
                self.release_one();
            }
        }
    }

    /// Handles a cumulative pull number. Numbers beyond what an honest receiver can reach are reduced to that
    /// maximum.
    #[inline]
    fn pull(&mut self, now: Time, pull: u32, window: u32) {
        // A receiver pulls once for each packet that arrives. The network may duplicate some.
        let pull = pull.min(self.transmissions.saturating_add(window));
        if pull > self.pulled {
            self.credit = self.credit.saturating_add(pull - self.pulled);
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
        } else if self.is_ready() {
            Time::MAX
        } else {
            self.timeout.ask_at(&bounds)
        }
    }

    /// Marks all overdue packets for retransmission without a pull. Lost headers mean that there are too many
    /// senders for all of them to retransmit a window: so one packet is sent for each that arrives, and one at
    /// once if no pull is expected (our choice). Without this rule four thousand senders keep a receiver's link
    /// busy with nothing but headers. Returns whether this is a new timeout, and not one of packets that were sent before the last.
    fn time_out(&mut self, now: Time, config: &Config) -> bool {
        let bounds = config.rto_bounds();
        let mut new_round = false;
        while let Some(at) = self.board.oldest()
            && self.timeout.lost_at(&bounds, at) <= now
        {
            self.board.lose_oldest();
            self.withheld = self.withheld.saturating_add(1);
            new_round |= self.timeout.expired(now, at);
        }
        if (new_round || self.board.oldest().is_none()) && self.answers <= self.pulled {
            self.release_one();
        }
        new_round
    }

    /// Gives one lost packet a credit, if there is no other credit.
    fn release_one(&mut self) {
        if self.withheld > 0 && self.credit == 0 {
            self.withheld -= 1;
            self.credit = 1;
        }
    }

    /// Offset and length of a packet.
    #[inline]
    const fn piece(&self, packet: u32, config: &Config) -> (u32, u16) {
        let offset = packet * config.common.max_payload;
        let left = self.length - offset;
        (
            offset,
            if left < config.common.max_payload {
                left as u16
            } else {
                config.common.max_payload as u16
            },
        )
    }

    /// Number of queued entries, for tests of memory bounds.
    #[cfg(test)]
    pub(super) fn backlog(&self) -> usize {
        self.board.backlog()
    }
}

/// A deadline in the past, which occurs when it moves to an earlier time, is replaced by the current time.
fn after(now: Time, deadline: Time) -> Time {
    deadline.max(now.saturating_add(Span::TICK))
}

impl Host {
    /// The next packet of the message whose turn it is in the round robin.
    #[inline]
    pub(super) fn next_packet(&mut self, now: Time) -> Option<Packet<Header>> {
        while let Some(slot) = self.scheme.ready.pop_front() {
            let exchange = self.exchanges.get_mut(slot);
            let State::Sending(outgoing) = &mut exchange.state else { continue };
            let Some((packet, is_again)) = outgoing.take_packet(now) else { continue };
            self.recovery.retransmissions += u64::from(is_again);
            if outgoing.is_ready() {
                self.scheme.ready.push_back(slot);
            }
            self.timers.set_earlier(slot, after(now, outgoing.deadline(&self.config)));
            let (offset, len) = outgoing.piece(packet, &self.config);
            let window = outgoing.packets.min(u32::from(self.config.initial_window)) as u16;
            let body = Body::Data { message_length: outgoing.length, offset, len, window };
            let id = Id64::new(exchange.local);
            let path = outgoing.paths.next(self.config.paths);
            let header = Header { id, one_way: exchange.one_way, path, body };
            let (peer, bytes) = (exchange.peer, self.config.common.header_bytes + u32::from(len));
            let priority = self.config.data_priority;
            return Some(self.packet(peer, bytes, priority, header).trimmable());
        }
        None
    }

    /// Handles ACK, NACK and PULL. `piece` is the packet that was acknowledged or, if `trimmed`, reported as
    /// trimmed.
    pub(super) fn handle_answer(
        &mut self,
        now: Time,
        from: HostId,
        id: u64,
        piece: Option<Piece>,
        pull: u32,
        incarnation: u16,
    ) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state else { return };
        if *outgoing.incarnation.get_or_insert(incarnation) != incarnation {
            return self.fail(now, slot, FailReason::PeerForgot);
        }
        outgoing.last_received = now;
        if let Some(Piece { offset, trimmed, path }) = piece {
            let packet = offset / self.config.common.max_payload;
            outgoing.paths.answered(path, trimmed);
            if trimmed {
                outgoing.trimmed(packet);
            } else {
                outgoing.arrived(now, packet);
            }
            outgoing.timeout.quiet_since = now;
        }
        outgoing.pull(now, pull, u32::from(self.config.initial_window));
        if outgoing.board.base() == outgoing.packets {
            // The final answer to a complete message has the flag `complete`. This receiver lacks packets that
            // it, or its previous incarnation, had acknowledged.
            return self.fail(now, slot, FailReason::PeerForgot);
        }
        if outgoing.is_ready() {
            self.scheme.ready.push_back(slot);
        }
        let deadline = outgoing.deadline(&self.config);
        if deadline != Time::MAX {
            self.timers.set_earlier(slot, after(now, deadline));
        }
    }

    /// Handles a data packet of this host that a switch has returned.
    pub(super) fn handle_returned(&mut self, now: Time, from: HostId, id: u64, offset: u32) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state else { return };
        outgoing.returned(offset / self.config.common.max_payload);
        if outgoing.is_ready() {
            self.scheme.ready.push_back(slot);
        }
        let deadline = outgoing.deadline(&self.config);
        if deadline != Time::MAX {
            self.timers.set_earlier(slot, after(now, deadline));
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
        if outgoing.board.oldest().is_none() {
            // Nothing is in flight and nothing may be sent: the receiver counts lost packets as in flight, a
            // pull was lost, or the receiver is serving many others. A lost packet may be retransmitted;
            // otherwise ASK makes the receiver repeat its pull number (our choice: NDP specifies no probe).
            outgoing.timeout.quiet_since = now;
            outgoing.timeout.stalls += 1;
            outgoing.release_one();
            if outgoing.is_ready() {
                self.timers.remove(slot);
                return self.scheme.ready.push_back(slot);
            }
            if outgoing.timeout.stalls > config.max_stalls {
                return self.fail(now, slot, FailReason::PeerForgot);
            }
            let deadline = after(now, outgoing.deadline(config));
            let (peer, id, one_way) = (exchange.peer, exchange.local, exchange.one_way);
            self.timers.set(slot, deadline);
            return self.send_control(peer, id, one_way, Body::Ask);
        }
        self.recovery.timeouts += u64::from(outgoing.time_out(now, config));
        let deadline = outgoing.deadline(config);
        let ready = outgoing.is_ready();
        if deadline == Time::MAX {
            self.timers.remove(slot);
        } else {
            self.timers.set(slot, after(now, deadline));
        }
        if ready {
            self.scheme.ready.push_back(slot);
        }
    }
}
