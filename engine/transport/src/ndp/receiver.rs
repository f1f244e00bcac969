//! The receiver: arriving packets, their answers, and the pull pacer.

use rackweave_core::rng::mix;
use rackweave_core::{Assembler, HostId, Packet, Placement, Slice, Time};
use rackweave_wire::Id64;
use rackweave_wire::ndp::{Body, Header};

use super::{Config, Host};
use crate::common::{Known, State};

/// A pull may be early by this fraction of the pull interval.
const EARLY: u64 = 4;

/// The receiver's state of a message, in packets.
#[derive(Debug)]
pub struct Incoming {
    length: u32,
    /// Number of packets that have not arrived.
    missing: u32,
    received: Assembler<u32>,
    /// Number of packets that the sender sends without pulls.
    window: u32,
    /// Number of arrivals, including trimmed packets and duplicates.
    arrivals: u32,
    /// Number of pulls that were sent.
    pulls: u32,
    /// Number of pulls that wait for the pacer.
    owed: u32,
    incarnation: u16,
    /// When a packet of the sender last arrived or a pull was last sent to it.
    last_received: Time,
}

impl Incoming {
    fn new(now: Time, length: u32, window: u16, config: &Config) -> Self {
        let packets = config.common.packets(length);
        Self {
            length,
            missing: packets,
            received: Assembler::default(),
            window: packets.min(u32::from(window)),
            arrivals: 0,
            pulls: 0,
            owed: 0,
            // A restarted host receives the message at another time, which gives another incarnation number.
            incarnation: mix(now.ticks()) as u16,
            last_received: now,
        }
    }

    /// When the sender is declared silent; this does not happen while it waits for pulls.
    pub(super) fn deadline(&self, now: Time, config: &Config) -> Time {
        let since = if self.owed > 0 { now } else { self.last_received };
        since.saturating_add(config.common.patience)
    }

    /// Whether the sender has packets that are neither in flight nor about to be pulled.
    ///
    /// In htsim each ACK and NACK triggers a pull, and the pulls of a message are cancelled once its last
    /// packet has arrived, because they would have no effect (`docs/protocols/ndp.md#ndp-pulls`). Here the receiver
    /// detects that earlier (our choice: it saves pulls). The packets in flight are those sent in the first window or
    /// pulled, minus the arrived ones. A lost packet counts as in flight until it is
    /// retransmitted after a timeout.
    #[inline]
    const fn wants_pull(&self) -> bool {
        let asked = self.window.saturating_add(self.pulls);
        let on_the_way = asked.saturating_sub(self.arrivals);
        self.missing > on_the_way.saturating_add(self.owed)
    }
}

impl Host {
    /// Handles a data packet, complete or trimmed.
    pub(super) fn handle_data(&mut self, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let Body::Data { message_length, offset, len, window } = header.body else {
            return Placement::Discard;
        };
        if !self.config.common.is_packet(message_length, offset, len) {
            return Placement::Discard;
        }
        let slot = self.receiving_slot(now, packet.src, header, |host| {
            Incoming::new(now, message_length, window, &host.config)
        });
        let Some((slot, new)) = slot else { return Placement::Discard };
        if new {
            self.timers.set(slot, now.saturating_add(self.config.common.patience));
        }
        let (number, trimmed) = (offset / self.config.common.max_payload, packet.is_trimmed());
        let max_gaps = usize::from(self.config.common.max_gaps);
        let exchange = self.exchanges.get_mut(slot);
        let (peer, one_way, id) = (exchange.peer, exchange.one_way, exchange.arriving());
        let State::Receiving(incoming) = &mut exchange.state else { return Placement::Discard };
        if incoming.length != message_length {
            return Placement::Discard;
        }
        incoming.last_received = now;
        incoming.arrivals = incoming.arrivals.saturating_add(1);
        let fresh = if trimmed {
            0
        } else {
            incoming.received.insert(number..number + 1, max_gaps).unwrap_or(0)
        };
        incoming.missing -= fresh;
        if incoming.missing == 0 {
            let incarnation = incoming.incarnation;
            self.deliver(now, slot, message_length);
            let body = Body::Ack { offset, pull: 0, incarnation, complete: true };
            self.answer_by(header.path, peer, id.0, one_way, body);
        } else {
            if incoming.wants_pull() {
                // The pull travels with the answer if the pacer permits one now; otherwise it is queued
                // (htsim). A pull that is almost due is sent early, and the next one correspondingly later (our
                // choice: it saves a packet).
                let early = self.scheme.pull_spacing / EARLY;
                if self.scheme.pulls.is_empty()
                    && now.saturating_add(early) >= self.scheme.pacer.next_at()
                {
                    incoming.pulls = incoming.pulls.saturating_add(1);
                    self.scheme.pacer.not_before(now);
                    self.scheme.pacer.spend(self.scheme.pull_spacing);
                } else {
                    incoming.owed += 1;
                    self.scheme.pulls.push_back(slot);
                }
            }
            let (pull, incarnation) = (incoming.pulls, incoming.incarnation);
            let known = fresh > 0 || incoming.received.contains(number);
            let body = if known {
                Body::Ack { offset, pull, incarnation, complete: false }
            } else {
                Body::Nack { offset, pull, incarnation }
            };
            self.answer_by(header.path, peer, id.0, one_way, body);
        }
        if fresh == 0 {
            return Placement::Discard;
        }
        Placement::Store(Slice { message: id, offset, len: u32::from(len) })
    }

    /// Queues an answer on the path of the packet that it answers.
    fn answer_by(&mut self, path: u16, dst: HostId, id: u64, one_way: bool, body: Body) {
        self.queue_control(dst, Header { id: Id64::new(id), one_way, path, body });
    }

    fn send_complete(&mut self, peer: HostId, id: u64, one_way: bool) {
        let body = Body::Ack { offset: 0, pull: 0, incarnation: 0, complete: true };
        self.send_control(peer, id, one_way, body);
    }

    /// Handles ASK: the peer asks for the state of a message.
    pub(super) fn handle_ask(&mut self, now: Time, from: HostId, id: u64, one_way: bool) {
        let local = id ^ 1;
        let is_client = local & 1 == 0;
        let slot = match self.exchanges.find(from, local) {
            Known::Slot(slot) => slot,
            // The client of a finished request asks for its response, which no longer exists.
            Known::Finished if one_way || is_client => {
                return self.send_complete(from, id, one_way);
            }
            Known::Finished | Known::No => {
                return self.send_control(from, id, one_way, Body::Unknown);
            }
        };
        match &mut self.exchanges.get_mut(slot).state {
            State::Receiving(incoming) => {
                incoming.last_received = now;
                // The sender has nothing in flight. If no pull is queued either, the count of pulls is wrong:
                // after a duplicated NACK the sender considers a packet trimmed that is then lost. One more
                // pull corrects it (our choice: the sources do not mention it).
                if incoming.owed == 0 {
                    let asked = incoming.window.saturating_add(incoming.pulls);
                    incoming.arrivals = incoming.arrivals.max(asked);
                    incoming.owed = 1;
                    if self.scheme.pulls.is_empty() {
                        self.scheme.pacer.not_before(now);
                    }
                    self.scheme.pulls.push_back(slot);
                }
                let (pull, incarnation) = (incoming.pulls, incoming.incarnation);
                self.send_control(from, id, one_way, Body::Pull { pull, incarnation });
            }
            State::InService | State::Sending(_) if !is_client => {
                self.send_complete(from, id, one_way);
            }
            _ => {}
        }
    }

    /// Sends the pulls that are due: one at a time for the whole host, in round-robin order of its messages
    /// (`docs/protocols/ndp.md#ndp-pulls`).
    pub(super) fn pace_pulls(&mut self, now: Time) {
        let spacing = self.scheme.pull_spacing;
        self.scheme.pacer.limit_overdue(now, spacing);
        while self.scheme.pacer.next_at() <= now {
            let Some(slot) = self.scheme.pulls.pop_front() else { return };
            let exchange = self.exchanges.get_mut(slot);
            let (peer, id, one_way) = (exchange.peer, exchange.arriving(), exchange.one_way);
            let State::Receiving(incoming) = &mut exchange.state else { continue };
            incoming.owed -= 1;
            incoming.last_received = now;
            incoming.pulls = incoming.pulls.saturating_add(1);
            let (pull, incarnation) = (incoming.pulls, incoming.incarnation);
            if incoming.owed > 0 {
                self.scheme.pulls.push_back(slot);
            }
            self.scheme.pacer.spend(spacing);
            self.send_control(peer, id.0, one_way, Body::Pull { pull, incarnation });
        }
    }
}
