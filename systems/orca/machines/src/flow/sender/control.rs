//! Handling of control packets from receivers and agents.

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Body, Gap, Place, Reason, Status};

use super::super::SenderEvent;
use super::peers::{Peer, State, pending};
use super::{Sender, Stage};

/// A receiver whose reports claim less than earlier ones for this long has restarted: no packet is delayed by as much.
pub(super) const RESTART_AFTER: Span = Span::from_ms(100);

/// What a receiver says when it joins; see [`Body::Join`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Join {
    pub(super) incarnation: u32,
    pub(super) at: u64,
    pub(super) limit: u64,
}

impl Sender {
    /// Handles a control packet of the session, from a receiver or from an agent for several of them. No field is trusted.
    pub fn handle_control(&mut self, now: Time, from: HostId, body: &Body) {
        match body {
            Body::Status(status) => self.handle_status(now, status),
            Body::Join { incarnation, stream, place, at, limit } => {
                if *stream == self.stream {
                    let join = Join { incarnation: *incarnation, at: *at, limit: *limit };
                    self.handle_join(now, from, *place, join, self.config.open);
                } else if let Some(number) = self.peers.find(from) {
                    self.lose_receiver(now, number, Reason::Unknown);
                    self.peers.queue_control(number, pending::BYE);
                }
            }
            Body::Preparing => self.handle_preparing(now, from),
            Body::Complete { .. } => self.handle_complete(now, from),
            Body::Bye { reason } => {
                if let Some(number) = self.peers.find(from) {
                    self.lose_receiver(now, number, *reason);
                    self.peers.queue_control(number, pending::BYE);
                }
            }
            _ => return,
        }
        self.update(now);
    }

    pub(super) fn handle_join(
        &mut self,
        now: Time,
        host: HostId,
        place: Place,
        join: Join,
        open: bool,
    ) {
        let Join { incarnation, at, .. } = join;
        let number = match self.peers.find(host) {
            Some(number) => number,
            None if !open
                || self.stage == Stage::Over
                || self.peers.list.len() >= self.config.max_receivers as usize =>
            {
                return;
            }
            None => self.peers.add(Peer::new(now, host, place)),
        };
        let peer = &mut self.peers.list[number as usize];
        let was_attached = peer.state == State::Attached;
        match peer.state {
            State::Invited => {}
            State::Attached | State::Detached if peer.incarnation != incarnation => {
                // The host has restarted, or the packet is a late one of an earlier start. Reports of the earlier start, which do not
                // say whose they are, may still be on their way.
                if !peer.has_restarted(now, incarnation) {
                    return;
                }
                self.catch_up.round_robin.retain(|detached| *detached != number);
            }
            State::Attached | State::Detached if at >= peer.have => {
                peer.last_heard = now;
                // What came of another start was a late packet: this one still answers.
                peer.restart = None;
                self.peers.queue_control(number, pending::MODE);
                return;
            }
            State::Attached | State::Detached => {
                // It is a delayed packet, or a late report of an earlier start was taken for one of this.
                let since = *peer.regressed_since.get_or_insert(now);
                if now.since(since) < RESTART_AFTER {
                    return;
                }
                self.catch_up.round_robin.retain(|detached| *detached != number);
            }
            State::Lost(_) if !open || now.since(peer.state_since) < RESTART_AFTER => {
                self.peers.queue_control(number, pending::BYE);
                return;
            }
            State::Lost(_) => {}
            State::Completed => {
                self.peers.queue_control(number, pending::BYE);
                return;
            }
        }
        if self.stage == Stage::Over {
            self.peers.queue_control(number, pending::BYE);
            return;
        }
        self.peers.set_place(number, place);
        let at = at.min(1 << 48);
        let peer = &mut self.peers.list[number as usize];
        peer.on_join(now, &Join { at, ..join });
        if at < self.source.released.min(self.source.readable_from) {
            peer.state = State::Invited; // It counts as lost, whatever its state was.
            self.lose_receiver(now, number, Reason::TooLate);
            self.peers.queue_control(number, pending::BYE);
            return;
        }
        self.events.push_back(SenderEvent::Joined { host, at });
        peer.pending_control &= !pending::INVITE;
        if at >= self.group.head && !peer.is_apart {
            self.attach(now, number);
        } else {
            self.detach(now, number, false);
            if was_attached {
                self.events.push_back(SenderEvent::Detached { host });
            }
        }
        if self.source.length == Some(at) {
            self.peers.queue_control(number, pending::END);
        }
        self.tick_soon(now);
    }

    /// Handles that an invited receiver cannot join yet. It is not silent, however long that takes: only its own host knows how much it has
    /// to read. The invitation is repeated as to one that has not answered, since the next answer shows that it is still there.
    fn handle_preparing(&mut self, now: Time, from: HostId) {
        let Some(number) = self.peers.find(from) else { return };
        let peer = &mut self.peers.list[number as usize];
        if peer.state == State::Invited {
            (peer.last_heard, peer.is_preparing) = (now, true);
            self.events.push_back(SenderEvent::Preparing { host: from });
        }
    }

    fn handle_complete(&mut self, now: Time, from: HostId) {
        let Some(number) = self.peers.find(from) else { return };
        let peer = &mut self.peers.list[number as usize];
        if let Some(length) = self.source.length
            && peer.is_active()
        {
            peer.state = State::Completed;
            peer.last_heard = now;
            peer.have = length;
            peer.state_since = now;
            peer.channel = None;
            peer.pending_control &= !(pending::END | pending::MODE);
            self.catch_up.round_robin.retain(|detached| *detached != number);
            self.peers.dirty = true;
            self.events.push_back(SenderEvent::Completed { host: from });
        }
        if matches!(self.peers.list[number as usize].state, State::Completed | State::Lost(_)) {
            self.peers.queue_control(number, pending::BYE);
        }
    }

    fn handle_status(&mut self, now: Time, status: &Status) {
        self.counters.statuses += 1;
        let Some(ports) = self.peers.rack(status.rack) else { return };
        let ports = *ports;
        // With a gap right after `have`, everything up to `seen` has arrived or is lost. Without one, the slowest
        // receiver has merely received less.
        let stopped = status.gaps.iter().any(|gap| gap.len > 0 && gap.offset == status.have);
        let progress = if stopped { status.seen.max(status.have) } else { status.have };
        let single = status.who.is_power_of_two();
        let mut progressed = false;
        for port in 0..64_u8 {
            if status.who >> port & 1 == 0 {
                continue;
            }
            let number = ports[usize::from(port)];
            let Some(peer) = self.peers.list.get_mut(number as usize) else { continue };
            match peer.state {
                State::Attached | State::Detached => {}
                State::Lost(_) if now.since(peer.state_since) > Span::from_ms(10) => {
                    peer.state_since = now; // It limits the rate of answers.
                    self.peers.queue_control(number, pending::BYE);
                    continue;
                }
                _ => continue,
            }
            peer.last_heard = now;
            let slowest = single || status.slowest == port;
            let mut restarted = false;
            if slowest && status.have < peer.have {
                let since = *peer.regressed_since.get_or_insert(now);
                restarted = now.since(since) >= RESTART_AFTER;
            } else if single {
                peer.regressed_since = None;
            }
            restarted |= peer.restart.is_some_and(|(_, since)| now.since(since) >= RESTART_AFTER);
            let (head, detached) = match &peer.channel {
                Some(channel) => (channel.head, true),
                None => (self.group.head, false),
            };
            let have = peer.have.max(status.have.min(self.source.offered));
            // It has bytes from elsewhere that were never sent, so they say nothing about its rate.
            let skipped = have > head;
            if skipped && let Some(channel) = &mut peer.channel {
                channel.head = have;
            }
            // A detached receiver may still see packets of the group, which give no information about its own channel.
            let reached = if status.seen > head { status.have } else { progress };
            let reached = peer.progress.max(reached.min(head)).max(have);
            let limit = peer.limit.max(status.limit);
            let watermarks = &self.peers.watermarks;
            let was_low = peer.have == watermarks.min_needed
                || !detached
                    && (peer.have == watermarks.min_have
                        || peer.progress == watermarks.min_progress
                        || peer.limit == watermarks.min_limit);
            let changed = have > peer.have || reached > peer.progress || limit > peer.limit;
            if changed && was_low {
                self.peers.dirty = true;
            }
            let have_more = have > peer.have;
            if have_more {
                peer.path.on_progress(now, have);
            } else if !slowest {
                // A summary shows the progress of its slowest receiver only.
                peer.path.since = now;
            }
            if changed {
                progressed = true;
                if let Some(channel) = &mut peer.channel {
                    channel.on_progress(now);
                }
            }
            (peer.have, peer.progress, peer.limit) = (have, reached, limit);
            let best = if slowest { reached } else { reached.max(status.seen.min(head)) };
            if have_more || best > peer.best_progress {
                peer.progress_at = now;
            }
            peer.best_progress = peer.best_progress.max(best);
            let channel = peer.channel.as_deref_mut().unwrap_or(&mut self.group);
            if slowest && let Some(rtt) = channel.rtt_sample(now, status.seen, status.held_us) {
                channel.on_rtt_sample(rtt);
                peer.on_rtt_sample(rtt);
            }
            let held = Span::from_us(u64::from(status.held_us));
            if skipped {
                peer.restart_rate(now);
            }
            peer.update_rate(now.saturating_sub(held));
            if restarted {
                // A packet that was meant for it before, such as `End`, has ended its joining. It joins again when it is invited.
                self.peers.queue_control(number, pending::INVITE);
            }
        }
        if progressed {
            self.group.on_progress(now);
            self.tick_soon(now);
        }
        for gap in &status.gaps {
            self.handle_gap(now, gap, gap.who & status.who, status.seen, &ports);
        }
        if self.peers.dirty {
            self.peers.update_watermarks(self.source.released);
        }
        self.end_periods(now, status.who, &ports);
    }

    /// Records for each receiver of a gap which cells it lacks.
    fn handle_gap(&mut self, now: Time, gap: &Gap, who: u64, seen: u64, ports: &[u32; 64]) {
        let payload = u64::from(self.config.payload);
        let max_cells = self.config.window_packets();
        let end = gap.offset.saturating_add(u64::from(gap.len));
        for (port, &number) in ports.iter().enumerate() {
            let Some(peer) = self.peers.list.get_mut(number as usize) else { continue };
            if who >> port & 1 == 0 || !peer.is_active() {
                continue;
            }
            let in_group = peer.channel.is_none();
            let channel = peer.channel.as_deref_mut().unwrap_or(&mut self.group);
            // A detached receiver may have seen packets of the group. On its own channel, data beyond the last packet
            // that it saw may be in flight.
            let edge = if in_group { channel.head } else { channel.head.min(seen) };
            let (from, end) = (gap.offset.max(peer.have), end.min(edge));
            if from >= end {
                continue;
            }
            if end > peer.loss_edge {
                peer.lost += end - from.max(peer.loss_edge);
                peer.loss_edge = end;
            }
            // Other receivers may lack it too: after a short delay one retransmission serves all of them.
            let wait = if in_group && self.peers.watermarks.attached > 1 {
                (channel.congestion.srtt() / 4).clamp(Span::from_us(50), Span::from_ms(1))
            } else {
                Span::ZERO
            };
            let due = now.saturating_add(wait);
            let mut lost_again = 0;
            for cell in from / payload..=(end - 1) / payload {
                lost_again += u32::from(match &mut self.peers.list[number as usize].channel {
                    None => self.report_missing(now, due, cell, number, max_cells),
                    Some(channel) => {
                        channel.retransmit.report_missing(now, due, cell, number, max_cells)
                    }
                });
            }
            let peer = &mut self.peers.list[number as usize];
            let channel = peer.channel.as_deref_mut().unwrap_or(&mut self.group);
            channel.on_retransmit_lost(lost_again);
            // Retransmissions are lost at random as often as other packets. Only those of a backed-off channel count as
            // additional loss.
            if channel.is_backed_off() {
                peer.lost += u64::from(lost_again) * payload;
            }
        }
    }

    /// Ends congestion control periods that are over, on the group channel and on the channels of the receivers that
    /// reported.
    fn end_periods(&mut self, now: Time, who: u64, ports: &[u32; 64]) {
        let progress = self.peers.watermarks.min_progress;
        if self.peers.watermarks.attached > 0 && self.group.congestion.period_over(now, progress) {
            let mut worst = super::super::congestion::Worst::default();
            let starting = self.group.congestion.is_starting();
            let fresh = Span::from_ms(50);
            for peer in &mut self.peers.list {
                if peer.state != State::Attached {
                    continue;
                }
                // What a receiver misses just after it was attached, before the labels reach it, is not lost through
                // congestion.
                if now.since(peer.state_since) > fresh || peer.detach_count == 0 {
                    worst.lost = worst.lost.max(peer.lost);
                }
                worst.queue = worst.queue.max(peer.end_period(starting, self.config.path));
            }
            let head = self.group.head;
            self.group.congestion.end_period(now, progress, head, worst);
        }
        for (port, &number) in ports.iter().enumerate() {
            if who >> port & 1 == 0 {
                continue;
            }
            let Some(peer) = self.peers.list.get_mut(number as usize) else { continue };
            let Some(mut channel) = peer.channel.take() else { continue };
            channel.on_acked(peer.progress);
            channel.retransmit.forget_below(peer.have / u64::from(self.config.payload));
            if channel.congestion.period_over(now, peer.progress) {
                let lost = peer.lost;
                let queue = peer.end_period(channel.congestion.is_starting(), self.config.path);
                let worst = super::super::congestion::Worst { queue, lost };
                channel.congestion.end_period(now, peer.progress, channel.head, worst);
            }
            peer.channel = Some(channel);
        }
    }
}
