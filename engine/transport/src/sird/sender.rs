//! The sender: the use of credit, and the handling of the receiver's packets.

use std::collections::VecDeque;

use rackweave_core::{Assembler, Ecn, FailReason, HostId, Packet, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::sird::{Body, Header};
use rustc_hash::FxHashMap;

use super::Host;
use super::config::Config;
use crate::common::{Grouped, Heap, Jitter, State, was_sent};

/// A host's state as a sender, besides its messages.
#[derive(Debug, Default)]
pub(super) struct Using {
    /// The messages that can send, by receiver; of one receiver in SRPT order, then by age.
    ready: Grouped<HostId, (u64, u64)>,
    /// The same messages, of all receivers.
    shortest: Heap<(u64, u64)>,
    /// Unused credit of all receivers, in bytes. Packets that need no credit count.
    unused: u64,
    /// The same, of each receiver that has any.
    unused_of: FxHashMap<HostId, u64>,
    /// Number of messages that have not been sent completely.
    unsent: u32,
    /// The receiver that was last sent to in its turn.
    last: Option<HostId>,
    /// Percent of a packet that the receiver of the shortest message has in advance.
    share: u32,
}

impl Using {
    /// Lets a message send nothing more.
    pub(super) fn stop(&mut self, slot: u32) {
        self.ready.remove(slot);
        self.shortest.remove(slot);
    }

    fn add_credit(&mut self, peer: HostId, bytes: u64) {
        self.unused += bytes;
        *self.unused_of.entry(peer).or_default() += bytes;
    }

    fn use_credit(&mut self, peer: HostId, bytes: u64) {
        self.unused -= bytes;
        if let Some(unused) = self.unused_of.get_mut(&peer) {
            *unused -= bytes;
            if *unused == 0 {
                self.unused_of.remove(&peer);
            }
        }
    }

    /// Drops the credit of a message that is no longer sent.
    pub(super) fn drop_credit(&mut self, outgoing: &Outgoing) {
        let Some(peer) = outgoing.peer else { return };
        self.use_credit(peer, outgoing.unused);
        self.unsent -= u32::from(!outgoing.is_sent());
    }

    /// The message that sends next (`docs/protocols/sird.md#sird-sender`): a part of the packets goes to the receiver of the shortest message,
    /// the rest to all receivers in turn.
    #[inline]
    fn choose(&mut self, config: &Config) -> Option<u32> {
        let (_, shortest) = self.shortest.first()?;
        self.share += config.srpt_percent;
        if self.share >= 100 {
            self.share -= 100;
            return Some(shortest);
        }
        self.last = self.ready.group_after(self.last);
        self.last.and_then(|peer| self.ready.first_of(peer)).map(|(_, slot)| slot)
    }

    #[cfg(test)]
    pub(super) fn nothing_is_ready(&self) -> bool {
        self.shortest.is_empty()
    }

    /// Unused credit of all receivers, in bytes.
    #[cfg(test)]
    pub(super) const fn unused(&self) -> u64 {
        self.unused
    }

    /// Asserts that the sums agree.
    #[cfg(test)]
    pub(super) fn check(&self, messages: &[(HostId, &Outgoing)], config: &Config) {
        let most = config.sender_bucket / config.full_packet() + 1;
        for (peer, outgoing) in messages {
            assert_eq!(outgoing.peer, Some(*peer));
            assert!(outgoing.credits.len() as u64 <= most);
            let bytes = |packet| config.packet_bytes(outgoing.length, packet);
            let credit: u64 = outgoing.credits.iter().map(|packet| bytes(*packet)).sum();
            let free: u64 = (outgoing.next_free..outgoing.unscheduled).map(bytes).sum();
            assert_eq!(outgoing.unused, credit + free);
        }
        let unused: u64 = messages.iter().map(|(_, outgoing)| outgoing.unused).sum();
        assert_eq!(self.unused, unused);
        let sum = |peer: &HostId| {
            let of_peer = messages.iter().filter(|(of, _)| of == peer);
            of_peer.map(|(_, outgoing)| outgoing.unused).sum::<u64>()
        };
        for (peer, _) in messages {
            assert_eq!(self.unused_of.get(peer).copied().unwrap_or(0), sum(peer));
        }
        assert!(self.unused_of.len() <= messages.len());
        let unsent = messages.iter().filter(|(_, outgoing)| !outgoing.is_sent()).count();
        assert_eq!(self.unsent as usize, unsent);
        if messages.is_empty() {
            assert!(self.ready.is_empty() && self.shortest.is_empty());
        }
    }
}

/// The sender's state of a message, in packets.
#[derive(Debug)]
pub struct Outgoing {
    length: u32,
    packets: u32,
    jitter: Jitter,
    /// The receiver; `None` before the message is submitted.
    peer: Option<HostId>,
    /// Number of packets that are sent without credit.
    unscheduled: u32,
    /// The first of these that was not sent.
    next_free: u32,
    /// The packets that have unused credit, in the order in which it arrived.
    credits: VecDeque<u32>,
    /// One past the last packet that had credit.
    credited: u32,
    /// One past the last packet that was sent.
    sent: u32,
    /// The packets that were sent. Credits that are lost leave gaps.
    sent_packets: Assembler<u32>,
    /// Unused credit, in bytes. Packets that need no credit count.
    unused: u64,
    /// When a packet of the peer last arrived.
    last_received: Time,
    /// When a packet of the peer last arrived, or a request was last sent.
    quiet_since: Time,
    /// When a request was last sent.
    announced_at: Time,
    /// Number of requests since the last credit.
    doublings: u32,
}

impl Outgoing {
    pub(super) fn new(now: Time, length: u32, jitter: Jitter, config: &Config) -> Self {
        Self {
            length,
            packets: config.common.packets(length),
            jitter,
            peer: None,
            unscheduled: 0,
            next_free: 0,
            credits: VecDeque::new(),
            credited: 0,
            sent: 0,
            sent_packets: Assembler::default(),
            unused: 0,
            last_received: now,
            quiet_since: now,
            announced_at: now,
            doublings: 0,
        }
    }

    /// Whether each packet has been sent once.
    const fn is_sent(&self) -> bool {
        self.sent >= self.packets
    }

    /// The next packet to send. Packets that need no credit are first.
    fn take_packet(&mut self) -> Option<u32> {
        if self.next_free < self.unscheduled {
            self.next_free += 1;
            return Some(self.next_free - 1);
        }
        self.credits.pop_front()
    }

    fn has_packet(&self) -> bool {
        self.next_free < self.unscheduled || !self.credits.is_empty()
    }

    /// The message's position among messages that can be sent.
    const fn key(&self, birth: u64) -> (u64, u64) {
        ((self.packets - self.sent) as u64, birth)
    }

    fn request(&self) -> Body {
        Body::Request { message_length: self.length, unscheduled: self.unscheduled as u16 }
    }

    pub(super) fn deadline(&self, config: &Config) -> Time {
        let most = config.common.patience.ticks() / 4;
        let interval = config.request_interval(self.doublings).ticks().min(most);
        let interval = Span::from_ticks(interval);
        let quiet = self.quiet_since.saturating_add(self.jitter.apply(interval, self.doublings));
        // A message that waits at its sender for shorter ones gets credit for longer than its receiver's patience.
        quiet.min(self.announced_at.saturating_add(Span::from_ticks(most)))
    }
}

impl Host {
    /// Starts to send a submitted message: by data that needs no credit, or by a request for credit.
    pub(super) fn begin_sending(&mut self, slot: u32) {
        let config = &*self.config;
        let exchange = self.exchanges.get_mut(slot);
        let (peer, birth) = (exchange.peer, exchange.birth);
        let State::Sending(outgoing) = &mut exchange.state else { return };
        let using = &mut self.scheme.using;
        outgoing.peer = Some(peer);
        using.unsent += 1;
        let unscheduled = config.unscheduled_of(outgoing.length);
        if unscheduled > 0 {
            // docs/protocols/sird.md#sird-sender: what can be sent to a receiver at once is limited to a bandwidth-delay product, of
            // all messages together, and to a packet of each.
            let unused = using.unused_of.get(&peer).copied().unwrap_or(0);
            let room = config.sender_bucket.saturating_sub(unused) / config.full_packet();
            outgoing.unscheduled =
                if config.bytes_of(outgoing.length, unscheduled) + unused <= config.sender_bucket {
                    unscheduled
                } else {
                    u32::try_from(room).unwrap_or(u32::MAX).clamp(1, unscheduled)
                };
            outgoing.unused = config.bytes_of(outgoing.length, outgoing.unscheduled);
            using.add_credit(peer, outgoing.unused);
            using.ready.set(slot, peer, outgoing.key(birth));
            using.shortest.set(slot, outgoing.key(birth));
        }
        let (id, one_way) = (exchange.local, exchange.one_way);
        let (request, deadline) = (outgoing.request(), outgoing.deadline(config));
        self.timers.set(slot, deadline);
        if unscheduled == 0 {
            self.send_control(peer, id, one_way, request);
        }
    }

    /// The next data packet.
    #[inline]
    pub(super) fn next_packet(&mut self) -> Option<Packet<Header>> {
        let config = &*self.config;
        let using = &mut self.scheme.using;
        let slot = using.choose(config)?;
        let exchange = self.exchanges.get_mut(slot);
        let (peer, birth) = (exchange.peer, exchange.birth);
        let State::Sending(outgoing) = &mut exchange.state else { return None };
        let packet = outgoing.take_packet()?;
        self.recovery.retransmissions += u64::from(was_sent(&mut outgoing.sent_packets, packet));
        let bytes = config.packet_bytes(outgoing.length, packet);
        outgoing.unused -= bytes;
        using.use_credit(peer, bytes);
        let unsent = using.unsent;
        if !outgoing.is_sent() {
            outgoing.sent = outgoing.sent.max(packet + 1);
            using.unsent -= u32::from(outgoing.is_sent());
        }
        if outgoing.has_packet() {
            using.ready.set(slot, peer, outgoing.key(birth));
            using.shortest.set(slot, outgoing.key(birth));
        } else {
            using.stop(slot);
        }
        // The paper, section 4: more unused credit than SThr. A sender's only message has nothing to yield to: the authors'
        // simulator does not mark it.
        let csn = unsent > 1 && using.unused > config.csn_threshold;
        let message_length = outgoing.length;
        let offset = packet * config.common.max_payload;
        let len = config.payload_of(message_length, packet) as u16;
        let priority = if packet < outgoing.unscheduled {
            config.unscheduled_priority
        } else {
            config.scheduled_priority
        };
        let unscheduled = outgoing.unscheduled as u16;
        let body = Body::Data { message_length, offset, len, unscheduled, csn };
        let header = Header { id: Id64::new(exchange.local), one_way: exchange.one_way, body };
        let l3_bytes = config.common.header_bytes + u32::from(len);
        Some(self.packet(peer, l3_bytes, priority, header).with_ecn(Ecn::Capable))
    }

    /// Handles CREDIT, which permits one data packet.
    #[inline]
    pub(super) fn handle_credit(&mut self, now: Time, from: HostId, id: u64, packet: u32) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let config = &*self.config;
        let exchange = self.exchanges.get_mut(slot);
        let birth = exchange.birth;
        let State::Sending(outgoing) = &mut exchange.state else { return };
        if packet >= outgoing.packets {
            return;
        }
        (outgoing.last_received, outgoing.quiet_since) = (now, now);
        outgoing.doublings = 0;
        // The receiver takes credit back from packets that wait here for too long, and gives it again.
        let waits = (outgoing.next_free..outgoing.unscheduled).contains(&packet)
            || packet < outgoing.credited && outgoing.credits.contains(&packet);
        // No receiver with these parameters gives more.
        let most = config.sender_bucket / config.full_packet() + 1;
        if waits || outgoing.credits.len() as u64 >= most {
            return;
        }
        outgoing.credited = outgoing.credited.max(packet + 1);
        outgoing.credits.push_back(packet);
        let bytes = config.packet_bytes(outgoing.length, packet);
        outgoing.unused += bytes;
        let using = &mut self.scheme.using;
        using.add_credit(from, bytes);
        using.ready.set(slot, from, outgoing.key(birth));
        using.shortest.set(slot, outgoing.key(birth));
    }

    /// Handles BUSY: the peer is alive and knows the message.
    pub(super) fn handle_busy(&mut self, now: Time, from: HostId, id: u64) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        match &mut self.exchanges.get_mut(slot).state {
            State::Sending(outgoing) => (outgoing.last_received, outgoing.quiet_since) = (now, now),
            State::Awaiting(awaiting) => awaiting.last_received = now,
            _ => {}
        }
    }

    /// Handles ACK: the message has arrived completely.
    pub(super) fn handle_ack(&mut self, now: Time, from: HostId, id: u64) {
        // A client that awaits its response knows that already.
        if let Some(slot) = self.outgoing_slot(from, id)
            && let State::Sending(_) = self.exchanges.get(slot).state
        {
            self.handle_complete(now, from, id);
        }
    }

    /// Handles the timer of a message whose receiver has sent nothing for too long.
    pub(super) fn sender_due(&mut self, now: Time, slot: u32) {
        let exchange = self.exchanges.get_mut(slot);
        let State::Sending(outgoing) = &mut exchange.state else { return };
        outgoing.doublings += 1;
        (outgoing.quiet_since, outgoing.announced_at) = (now, now);
        if now.since(outgoing.last_received) >= self.config.common.patience {
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        let (peer, id, one_way) = (exchange.peer, exchange.local, exchange.one_way);
        let (request, deadline) = (outgoing.request(), outgoing.deadline(&self.config));
        self.timers.set(slot, deadline);
        self.send_control(peer, id, one_way, request);
    }
}
