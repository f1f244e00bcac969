//! The sender: windows, timeouts and probes (section 4.3).

use rackweave_core::{Assembler, FailReason, HostId, Packet, Time};
use rackweave_wire::Id64;
use rackweave_wire::pfabric::{Body, Header, Sack};

use super::Host;
use super::config::Config;
use crate::common::{Jitter, State, note_acknowledged};

/// The number of timeouts in succession after which an acknowledgement of fewer packets than before is no late one: its
/// receiver has restarted (our choice).
const TIMEOUTS_OF_A_RESTART: u32 = 2;

/// The sender's state of a message, in packets.
#[derive(Debug)]
pub struct Outgoing {
    length: u32,
    packets: u32,
    jitter: Jitter,
    /// The packets that are known to have arrived.
    acked: Assembler<u32>,
    /// The next packet to send. After a timeout it is the first one that is not acknowledged.
    next: u32,
    /// One past the last packet that was ever sent.
    sent_to: u32,
    window: u32,
    /// The window at which slow start ends.
    slow_start_to: u32,
    /// Acknowledgements since the window last grew, beyond slow start.
    growth: u32,
    /// When the first packet that is not acknowledged counts as lost; [`Time::MAX`] while no packet is in flight.
    rto_at: Time,
    /// Timeouts since the last progress.
    timeouts: u32,
    /// The number of probes sent and the time of the next one, in probe mode.
    probing: Option<(u32, Time)>,
    /// When the first packet was sent to which no packet of the receiver is an answer; `None` if all are answered.
    silent_since: Option<Time>,
    /// When the last packet was sent.
    last_sent: Time,
}

impl Outgoing {
    pub(super) fn new(now: Time, length: u32, jitter: Jitter, config: &Config) -> Self {
        Self {
            length,
            packets: config.common.packets(length),
            jitter,
            acked: Assembler::default(),
            next: 0,
            sent_to: 0,
            window: u32::from(config.initial_window),
            // Slow start ends at the largest window, unless a loss ends it before.
            slow_start_to: u32::from(config.max_window),
            growth: 0,
            rto_at: Time::MAX,
            timeouts: 0,
            probing: None,
            silent_since: None,
            last_sent: now,
        }
    }

    /// The first packet that is not acknowledged.
    const fn first(&self) -> u32 {
        self.acked.prefix()
    }

    /// Number of acknowledged packets behind the first missing one. YAPS extends the window by them.
    fn sacked(&self) -> u32 {
        self.acked.above().covered()
    }

    /// The priority (section 4.1; in YAPS the size less all acknowledged bytes).
    fn remaining(&self, config: &Config) -> u32 {
        let acked = self.first() + self.sacked();
        self.length.saturating_sub(acked.saturating_mul(config.common.max_payload))
    }

    /// The packet to send next, if the window has room.
    fn sendable(&self) -> Option<u32> {
        if self.probing.is_some() {
            return None;
        }
        let packet = self.acked.first_missing(self.next);
        let end = self.first().saturating_add(self.window).saturating_add(self.sacked());
        (packet < self.packets.min(end)).then_some(packet)
    }

    /// Notes what an acknowledgement names. The number of the packet that it answers is below `next` if it answers a probe.
    #[inline]
    fn note(&mut self, next: u32, packet: u32, sack: Sack, max_gaps: usize) {
        let answered = (packet > next).then_some(packet);
        note_acknowledged(&mut self.acked, self.sent_to, (next, sack), answered, max_gaps);
    }

    /// Notes progress: the window grows as in YAPS, by a packet for each acknowledgement in slow start, else for each window.
    fn progress(&mut self, now: Time, config: &Config) {
        self.timeouts = 0;
        let most = u32::from(config.max_window);
        if self.window < self.slow_start_to {
            self.window += 1;
        } else {
            self.growth += 1;
            if self.growth >= self.window {
                self.growth = 0;
                self.window += 1;
            }
        }
        self.window = self.window.min(most);
        self.next = self.next.max(self.first());
        self.rto_at = self.timeout_from(now, config);
    }

    fn timeout_from(&self, now: Time, config: &Config) -> Time {
        let is_in_flight = self.next > self.first();
        if is_in_flight { now.saturating_add(config.rto) } else { Time::MAX }
    }

    /// Starts again at the first packet that is not acknowledged.
    fn restart(&mut self) {
        self.next = self.first();
        self.window = 1;
        self.growth = 0;
        self.rto_at = Time::MAX;
        self.probing = None;
    }

    /// Notes that a packet is sent.
    fn sends(&mut self, now: Time) {
        self.last_sent = now;
        self.silent_since.get_or_insert(now);
    }

    /// When a probe is due, in probe mode, or the first packet counts as lost.
    fn repair_at(&self) -> Time {
        self.probing.map_or(self.rto_at, |(_, at)| at)
    }

    /// When the message's timer expires. A message that waits for shorter ones is probed too, so that its receiver keeps
    /// what it has (our choice).
    pub(super) fn deadline(&self, config: &Config) -> Time {
        if self.sent_to == 0 {
            return self.repair_at();
        }
        self.repair_at().min(self.last_sent.saturating_add(config.common.patience / 4))
    }

    /// The rank of a probe: the message's, but none after a quarter of the patience without a packet of the receiver. A
    /// switch sends nothing of this message while it has shorter ones, also no probe, for longer than the patience, and
    /// the receiver would count as dead. (Our choice: the paper's senders never give up.)
    fn probe_rank(&self, now: Time, config: &Config) -> u32 {
        let is_starved =
            self.silent_since.is_some_and(|at| now.since(at) >= config.common.patience / 4);
        if is_starved { 0 } else { self.remaining(config) }
    }

    /// Whether the receiver counts as dead.
    fn is_given_up(&self, now: Time, config: &Config) -> bool {
        self.silent_since.is_some_and(|since| now.since(since) >= config.common.patience)
    }

    #[cfg(test)]
    pub(super) fn check_bounds(&self, config: &Config) {
        assert!(self.first() <= self.packets && self.next <= self.packets);
        assert!((1..=u32::from(config.max_window)).contains(&self.window));
        assert!(self.acked.above().len() <= usize::from(config.common.max_gaps));
    }
}

impl Host {
    /// Begins to send a submitted message.
    pub(super) fn begin_sending(&mut self, slot: u32) {
        self.make_ready(slot);
        self.arm(slot);
    }

    /// Puts a message among the sendable ones, if it is one.
    fn make_ready(&mut self, slot: u32) {
        let exchange = self.exchanges.get(slot);
        let State::Sending(outgoing) = &exchange.state else { return };
        if outgoing.sendable().is_some() {
            let key = (outgoing.remaining(&self.config), exchange.birth);
            self.scheme.ready.set(slot, key);
        } else {
            self.scheme.ready.remove(slot);
        }
    }

    fn arm(&mut self, slot: u32) {
        if let State::Sending(outgoing) = &self.exchanges.get(slot).state {
            let deadline = outgoing.deadline(&self.config);
            self.timers.set_earlier(slot, deadline);
        }
    }

    /// The next data packet: of the message with the fewest remaining bytes. (Section 4.3: a host's own queue has the
    /// order of a switch's. Rackweave's has no packets beyond the one on the link, and so drops none.)
    #[inline]
    pub(super) fn next_packet(&mut self, now: Time) -> Option<Packet<Header>> {
        let (_, slot) = self.scheme.ready.first()?;
        let exchange = self.exchanges.get_mut(slot);
        let State::Sending(outgoing) = &mut exchange.state else {
            self.scheme.ready.remove(slot);
            return None;
        };
        let Some(packet) = outgoing.sendable() else {
            self.scheme.ready.remove(slot);
            return None;
        };
        outgoing.sends(now);
        outgoing.next = packet + 1;
        self.recovery.retransmissions += u64::from(packet < outgoing.sent_to);
        outgoing.sent_to = outgoing.sent_to.max(packet + 1);
        if outgoing.rto_at == Time::MAX {
            outgoing.rto_at = now.saturating_add(self.config.rto);
            self.timers.set_earlier(slot, outgoing.deadline(&self.config));
        }
        if outgoing.sendable().is_none() {
            self.scheme.ready.remove(slot);
        }
        let offset = packet * self.config.common.max_payload;
        let len = self.config.common.max_payload.min(outgoing.length - offset) as u16;
        let (message_length, remaining) = (outgoing.length, outgoing.remaining(&self.config));
        let body = Body::Data { message_length, offset, len, remaining };
        let header = Header { id: Id64::new(exchange.local), one_way: exchange.one_way, body };
        let (peer, bytes) = (exchange.peer, self.config.common.header_bytes + u32::from(len));
        Some(self.packet(peer, bytes, self.config.data_priority, header))
    }

    /// Handles an acknowledgement of single packets.
    #[inline]
    pub(super) fn handle_ack(
        &mut self,
        now: Time,
        from: HostId,
        id: u64,
        next: u32,
        packet: u32,
        sack: Sack,
    ) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let max_gaps = usize::from(self.config.common.max_gaps);
        let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state else { return };
        // The last packet's acknowledgement is another packet; what was not sent cannot have arrived.
        if next >= outgoing.packets || next > outgoing.sent_to || packet >= outgoing.sent_to.max(1)
        {
            return;
        }
        outgoing.silent_since = None;
        let before = outgoing.first();
        let has_restarted = next < before && outgoing.timeouts >= TIMEOUTS_OF_A_RESTART;
        if !has_restarted {
            outgoing.note(next, packet, sack, max_gaps);
        }
        // A receiver that has all packets says so by another packet: these acknowledgements are of two receivers.
        if has_restarted || outgoing.first() >= outgoing.packets {
            outgoing.acked = Assembler::starting_at(next);
            outgoing.note(next, packet, sack, max_gaps);
            outgoing.timeouts = 0;
            outgoing.restart();
            self.make_ready(slot);
            return self.arm(slot);
        }
        if outgoing.probing.is_some() {
            // Section 4.3: the acknowledgement of a probe begins slow start.
            outgoing.timeouts = 0;
            outgoing.restart();
        }
        // YAPS: only the acknowledgement of the first missing packet opens the window.
        if outgoing.first() > before {
            outgoing.progress(now, &self.config);
        }
        self.make_ready(slot);
        self.arm(slot);
    }

    /// Handles the deadline of a message: a probe is due, or its first packet is lost, or it has been quiet for long.
    pub(super) fn sender_due(&mut self, now: Time, slot: u32) {
        let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state else { return };
        if outgoing.is_given_up(now, &self.config) {
            return self.fail(now, slot, FailReason::PeerSilent);
        }
        if outgoing.probing.is_none() && outgoing.rto_at <= now {
            // Section 4.3: half the window becomes the end of slow start, which begins again.
            outgoing.slow_start_to = (outgoing.window / 2).max(2);
            outgoing.timeouts = outgoing.timeouts.saturating_add(1);
            self.recovery.timeouts += 1;
            outgoing.restart();
            if outgoing.timeouts >= u32::from(self.config.probe_after) {
                outgoing.probing = Some((0, now));
            }
        }
        let is_quiet = outgoing.deadline(&self.config) <= now;
        if let Some((probes, at)) = outgoing.probing
            && at <= now
        {
            let interval = self.config.probe_interval(probes);
            let interval = outgoing.jitter.apply(interval, probes);
            outgoing.probing = Some((probes.saturating_add(1), now.saturating_add(interval)));
        }
        if is_quiet {
            self.send_probe(now, slot);
        }
        if let State::Sending(outgoing) = &self.exchanges.get(slot).state {
            let deadline = outgoing.deadline(&self.config);
            self.timers.set(slot, deadline);
        }
        self.make_ready(slot);
    }

    fn send_probe(&mut self, now: Time, slot: u32) {
        let exchange = self.exchanges.get_mut(slot);
        let (peer, id, one_way) = (exchange.peer, exchange.local, exchange.one_way);
        let State::Sending(outgoing) = &mut exchange.state else { return };
        let remaining = outgoing.probe_rank(now, &self.config);
        outgoing.sends(now);
        let body = Body::Probe { message_length: outgoing.length, remaining };
        self.send_control(peer, id, one_way, body);
    }
}
