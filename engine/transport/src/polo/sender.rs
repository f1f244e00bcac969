//! The sender: the first window and its adjoint packet, driven packets and retransmissions; and the handling of
//! the receiver's packets.

use std::collections::VecDeque;

use rackweave_core::{Ecn, FailReason, HostId, Packet, Time};
use rackweave_wire::Id64;
use rackweave_wire::polo::{Body, Header};

use super::config::Config;
use super::{Host, after};
use crate::common::{Jitter, State};

/// Maximum number of stored ranges to retransmit. An honest receiver does not request that many at once.
const MAX_RESENDS: usize = 64;

/// The sender's state of a message, in packets.
#[derive(Debug)]
pub struct Outgoing {
    length: u32,
    packets: u32,
    jitter: Jitter,
    /// Number of packets that are sent without driving packets.
    window: u32,
    /// The first packet that was never sent.
    next: u32,
    /// The first packet that must not be sent yet.
    limit: u32,
    /// The first packet that is sent on request.
    driven_from: u32,
    /// Ranges of packets to retransmit.
    resends: VecDeque<(u32, u32)>,
    adjoint_sent: bool,
    /// Whether the receiver has paused this flow.
    paused: bool,
    /// Whether the receiver has ever driven this flow.
    driven: bool,
    /// When a packet of the peer last arrived.
    last_received: Time,
    /// When a packet of the peer last arrived, or this message last sent one.
    quiet_since: Time,
    /// Number of timeouts, or probes of a paused sender, since the receiver last let it send.
    doublings: u32,
}

impl Outgoing {
    pub(super) fn new(now: Time, length: u32, jitter: Jitter, config: &Config) -> Self {
        let packets = config.common.packets(length);
        let window = packets.min(u32::from(config.first_window));
        Self {
            length,
            packets,
            jitter,
            window,
            next: 0,
            limit: window,
            driven_from: window,
            resends: VecDeque::new(),
            adjoint_sent: packets < config.adjoint_from,
            paused: false,
            driven: false,
            last_received: now,
            quiet_since: now,
            doublings: 0,
        }
    }

    /// Whether a new packet may be sent.
    #[inline]
    const fn is_ready(&self) -> bool {
        self.next < self.limit
    }

    fn take_resend(&mut self) -> Option<u32> {
        let (packet, end) = self.resends.pop_front()?;
        if packet + 1 < end {
            self.resends.push_front((packet + 1, end));
        }
        Some(packet)
    }

    /// Permits new packets before `upto`, limited to what an honest receiver drives ahead.
    fn allow(&mut self, upto: u32, config: &Config) {
        let most = self.next.saturating_add(config.max_drives).min(self.packets);
        self.limit = self.limit.max(upto.min(most));
    }

    const fn adjoint(&self, epoch: u32, timeout: bool) -> Body {
        Body::Adjoint {
            message_length: self.length,
            sent: self.next,
            epoch,
            window: self.window as u16,
            timeout,
        }
    }

    /// Records that the receiver knows the message.
    const fn note_alive(&mut self, now: Time) {
        (self.last_received, self.quiet_since) = (now, now);
    }

    /// Records that the receiver has requested packets.
    const fn note_requested(&mut self, now: Time) {
        self.note_alive(now);
        (self.paused, self.driven, self.doublings) = (false, true, 0);
    }

    /// When the message's timer expires.
    pub(super) fn deadline(&self, config: &Config) -> Time {
        if self.is_ready() || !self.resends.is_empty() {
            return Time::MAX;
        }
        let interval = if self.paused {
            config.probe_interval(self.doublings)
        } else {
            config.rto(self.doublings)
        };
        self.quiet_since.saturating_add(self.jitter.apply(interval, self.doublings))
    }

    #[cfg(test)]
    pub(super) fn backlog(&self) -> usize {
        self.resends.len()
    }
}

impl Host {
    /// The next data packet: retransmissions before new packets, messages in round-robin order (our choice).
    #[inline]
    pub(super) fn next_packet(&mut self, now: Time) -> Option<Packet<Header>> {
        loop {
            let (slot, retransmit) = match self.scheme.resend.pop_front() {
                Some(slot) => (slot, true),
                None => (self.scheme.ready.pop_front()?, false),
            };
            let exchange = self.exchanges.get_mut(slot);
            let State::Sending(outgoing) = &mut exchange.state else { continue };
            let packet = if retransmit {
                let Some(packet) = outgoing.take_resend() else { continue };
                if !outgoing.resends.is_empty() {
                    self.scheme.resend.push_back(slot);
                }
                packet
            } else {
                if !outgoing.is_ready() {
                    continue;
                }
                if outgoing.next == 0 {
                    outgoing.last_received = now;
                }
                outgoing.next += 1;
                if outgoing.is_ready() {
                    self.scheme.ready.push_back(slot);
                }
                outgoing.next - 1
            };
            self.recovery.retransmissions += u64::from(retransmit);
            outgoing.quiet_since = now;
            let driven = retransmit || packet >= outgoing.driven_from;
            let offset = packet * self.config.common.max_payload;
            let len = self.config.common.max_payload.min(outgoing.length - offset) as u16;
            let (message_length, window) = (outgoing.length, outgoing.window as u16);
            let body = Body::Data { message_length, offset, len, window, driven, retransmit };
            let (peer, id, one_way) = (exchange.peer, exchange.local, exchange.one_way);
            let adjoint = (!outgoing.adjoint_sent && outgoing.next == outgoing.window).then(|| {
                // Slide 8: the adjoint packet follows the first window, with high priority.
                outgoing.adjoint_sent = true;
                outgoing.adjoint(0, false)
            });
            let deadline = outgoing.deadline(&self.config);
            if deadline < Time::MAX {
                self.timers.set_earlier(slot, deadline);
            }
            if let Some(adjoint) = adjoint {
                self.send_control(peer, id, one_way, adjoint);
            }
            // Slide 7: lost packets are retransmitted in the queue of high priority.
            let priority = if retransmit {
                self.config.common.control_priority
            } else {
                self.config.data_priority
            };
            let header = Header { id: Id64::new(id), one_way, body };
            let bytes = self.config.common.header_bytes + u32::from(len);
            return Some(self.packet(peer, bytes, priority, header).with_ecn(Ecn::Capable));
        }
    }

    /// Updates the lists and the timer after a change of the message.
    fn outgoing_changed(&mut self, now: Time, slot: u32) {
        let State::Sending(outgoing) = &self.exchanges.get(slot).state else { return };
        if outgoing.is_ready() {
            self.scheme.ready.push_back(slot);
        } else {
            self.scheme.ready.remove(slot);
        }
        if !outgoing.resends.is_empty() {
            self.scheme.resend.push_back(slot);
        }
        let deadline = outgoing.deadline(&self.config);
        if deadline < Time::MAX {
            self.timers.set_earlier(slot, after(now, deadline));
        }
    }

    /// Handles an ADJOINT-ACK packet, the answer to an adjoint packet.
    pub(super) fn handle_adjoint_ack(
        &mut self,
        now: Time,
        from: HostId,
        id: u64,
        (epoch, paused, tick): (u32, bool, bool),
    ) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let exchange = self.exchanges.get_mut(slot);
        let (peer, one_way) = (exchange.peer, exchange.one_way);
        let outgoing = match &mut exchange.state {
            State::Sending(outgoing) => outgoing,
            State::Awaiting(awaiting) => {
                awaiting.last_received = now;
                return;
            }
            _ => return,
        };
        outgoing.note_alive(now);
        let mut adjoint = None;
        // A flow that was driven is not paused again, so the packet is an old one (our choice).
        if paused && !outgoing.driven && !outgoing.paused {
            // Slide 12: transmission is suspended, within the first window too (our choice). The adjoint packet
            // reports how much was sent.
            (outgoing.paused, outgoing.doublings) = (true, 0);
            outgoing.limit = outgoing.next;
            outgoing.driven_from = outgoing.next;
            if !outgoing.adjoint_sent {
                outgoing.adjoint_sent = true;
                adjoint = Some(outgoing.adjoint(0, false));
            }
        } else if !paused {
            outgoing.paused = false;
        }
        if tick {
            // Slide 9: the adjoint packet returns and delimits the epoch.
            adjoint = Some(outgoing.adjoint(epoch, false));
        }
        self.outgoing_changed(now, slot);
        if let Some(adjoint) = adjoint {
            self.send_control(peer, id, one_way, adjoint);
        }
    }

    /// Handles DRIVE. A number below what was sent indicates a receiver that has lost its state: an adjoint
    /// packet reports what was sent (our choice).
    #[inline]
    pub(super) fn handle_drive(&mut self, now: Time, from: HostId, id: u64, upto: u32) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let exchange = self.exchanges.get_mut(slot);
        let (peer, one_way) = (exchange.peer, exchange.one_way);
        let State::Sending(outgoing) = &mut exchange.state else { return };
        outgoing.note_requested(now);
        if upto < outgoing.next {
            let adjoint = outgoing.adjoint(0, false);
            self.send_control(peer, id, one_way, adjoint);
        } else {
            outgoing.allow(upto, &self.config);
        }
        self.outgoing_changed(now, slot);
    }

    /// Handles LOSS. Packets of an interrupted first window that were never sent are sent as new ones.
    pub(super) fn handle_loss(&mut self, now: Time, from: HostId, id: u64, first: u32, count: u16) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state else { return };
        if first >= outgoing.packets {
            return;
        }
        outgoing.note_requested(now);
        let end = first.saturating_add(u32::from(count).min(self.config.max_drives));
        let end_sent = end.min(outgoing.next);
        if first < end_sent && outgoing.resends.len() < MAX_RESENDS {
            outgoing.resends.push_back((first, end_sent));
        }
        if end > outgoing.next {
            outgoing.allow(end, &self.config);
        }
        self.outgoing_changed(now, slot);
    }

    /// Recovery 3 (slide 11): handles the timeout of a message whose receiver has sent nothing. The adjoint
    /// packet is repeated (our choice): it reports what was sent, and the receiver requests what it lacks.
    pub(super) fn sender_due(&mut self, now: Time, slot: u32) {
        let exchange = self.exchanges.get_mut(slot);
        let State::Sending(outgoing) = &mut exchange.state else { return };
        if now.since(outgoing.last_received) >= self.config.common.patience {
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        outgoing.doublings += 1;
        outgoing.quiet_since = now;
        outgoing.adjoint_sent = true;
        let (peer, id, one_way) = (exchange.peer, exchange.local, exchange.one_way);
        let (adjoint, deadline) =
            (outgoing.adjoint(0, true), after(now, outgoing.deadline(&self.config)));
        self.timers.set(slot, deadline);
        self.send_control(peer, id, one_way, adjoint);
    }
}
