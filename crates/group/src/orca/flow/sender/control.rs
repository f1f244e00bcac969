//! What receivers say.

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Body, Gap, Place, Reason, Status};

use super::super::SenderEvent;
use super::peers::{Peer, State, tell};
use super::{Sender, Stage};

/// A receiver that tells for so long of less than it had has begun anew: no packet is late by as much.
const ANEW: Span = Span::from_ms(100);

impl Sender {
    /// Takes a control packet of the session, from a receiver or from an agent for many. Any field may be wrong.
    pub fn handle_control(&mut self, now: Time, from: HostId, body: &Body) {
        match body {
            Body::Status(status) => self.status(now, status),
            Body::Join { stream, place, at, limit } => {
                if *stream == self.stream {
                    self.joins(now, from, *place, *at, *limit, self.config.open);
                } else if let Some(number) = self.peers.find(from) {
                    self.lose(now, number, Reason::Unknown);
                    self.tell(number, tell::BYE);
                }
            }
            Body::Complete { .. } => self.completes(now, from),
            Body::Bye { reason } => {
                if let Some(number) = self.peers.find(from) {
                    self.lose(now, number, *reason);
                    self.tell(number, tell::BYE);
                }
            }
            _ => return,
        }
        self.settle(now);
    }

    pub(super) fn joins(
        &mut self,
        now: Time,
        host: HostId,
        place: Place,
        at: u64,
        limit: u64,
        open: bool,
    ) {
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
        match peer.state {
            State::Invited => {}
            State::Attached | State::Alone if at >= peer.have => {
                peer.heard = now;
                self.tell(number, tell::MODE);
                return;
            }
            State::Attached | State::Alone => {
                // A packet that comes late, or a host that has begun anew?
                let since = *peer.less_since.get_or_insert(now);
                if now.since(since) < ANEW {
                    return;
                }
                self.turn.retain(|alone| *alone != number);
            }
            State::Gone(_) if !open || now.since(peer.since) < ANEW => {
                self.tell(number, tell::BYE);
                return;
            }
            State::Gone(_) => {}
            State::Done => {
                self.tell(number, tell::BYE);
                return;
            }
        }
        if self.stage == Stage::Over {
            self.tell(number, tell::BYE);
            return;
        }
        self.peers.moved(number, place);
        let at = at.min(1 << 48);
        let peer = &mut self.peers.list[number as usize];
        peer.begin(now, at, limit);
        if at < self.released {
            peer.state = State::Invited; // Whatever it was before.
            self.lose(now, number, Reason::TooLate);
            self.tell(number, tell::BYE);
            return;
        }
        self.events.push_back(SenderEvent::Joined { host, at });
        peer.tell &= !tell::INVITE;
        if at >= self.group.head {
            self.attach(now, number);
        } else {
            self.detach(now, number, false);
        }
        if self.length == Some(at) {
            self.tell(number, tell::END);
        }
        self.wake(now);
    }

    fn completes(&mut self, now: Time, from: HostId) {
        let Some(number) = self.peers.find(from) else { return };
        let peer = &mut self.peers.list[number as usize];
        if let Some(length) = self.length
            && peer.is_active()
        {
            peer.state = State::Done;
            peer.heard = now;
            peer.have = length;
            peer.since = now;
            peer.alone = None;
            peer.tell &= !(tell::END | tell::MODE);
            self.turn.retain(|alone| *alone != number);
            self.stale = true;
            self.events.push_back(SenderEvent::Completed { host: from });
        }
        if matches!(self.peers.list[number as usize].state, State::Done | State::Gone(_)) {
            self.tell(number, tell::BYE);
        }
    }

    fn status(&mut self, now: Time, status: &Status) {
        self.counters.statuses += 1;
        let Some(ports) = self.peers.rack(status.rack) else { return };
        let ports = *ports;
        // With a gap at its beginning, what was sent up to `seen` has come or is lost. Otherwise the slowest has simply
        // not got further.
        let stopped = status.gaps.iter().any(|gap| gap.len > 0 && gap.offset == status.have);
        let progress = if stopped { status.seen.max(status.have) } else { status.have };
        let single = status.who.is_power_of_two();
        let mut moved = false;
        for port in 0..64_u8 {
            if status.who >> port & 1 == 0 {
                continue;
            }
            let number = ports[usize::from(port)];
            let Some(peer) = self.peers.list.get_mut(number as usize) else { continue };
            match peer.state {
                State::Attached | State::Alone => {}
                State::Gone(_) if now.since(peer.since) > Span::from_ms(10) => {
                    peer.since = now; // Not more often.
                    self.tell(number, tell::BYE);
                    continue;
                }
                _ => continue,
            }
            peer.heard = now;
            if single {
                if status.have < peer.have {
                    peer.less_since.get_or_insert(now);
                } else {
                    peer.less_since = None;
                }
            }
            let (head, alone) = match &peer.alone {
                Some(course) => (course.head, true),
                None => (self.group.head, false),
            };
            let have = peer.have.max(status.have.min(self.offered));
            // One that is alone may see what goes to the others: that is no news of its own course.
            let reached = if status.seen > head { status.have } else { progress };
            let reached = peer.progress.max(reached.min(head)).max(have);
            let limit = peer.limit.max(status.limit);
            let lows = &self.lows;
            let was_low = peer.have == lows.needed
                || !alone
                    && (peer.have == lows.have
                        || peer.progress == lows.progress
                        || peer.limit == lows.limit);
            let changed = have > peer.have || reached > peer.progress || limit > peer.limit;
            if changed && was_low {
                self.stale = true;
            }
            if changed {
                moved = true;
                if let Some(course) = &mut peer.alone {
                    course.moves(now);
                }
            }
            (peer.have, peer.progress, peer.limit) = (have, reached, limit);
            let slowest = single || status.slowest == port;
            let best = if slowest { reached } else { reached.max(status.seen.min(head)) };
            peer.at_best = peer.at_best.max(best);
            let course = peer.alone.as_deref_mut().unwrap_or(&mut self.group);
            if slowest && let Some(rtt) = course.round_trip(now, status.seen, status.held_us) {
                course.sample(rtt);
                peer.sample(rtt);
            }
            let held = Span::from_us(u64::from(status.held_us));
            peer.measure(Time(now.0.saturating_sub(held.0)));
        }
        if moved {
            self.group.moves(now);
            self.wake(now);
        }
        for gap in &status.gaps {
            self.gap(now, gap, gap.who & status.who, status.seen, &ports);
        }
        if self.stale {
            self.count();
        }
        self.periods(now, status.who, &ports);
    }

    /// Some receivers miss something.
    fn gap(&mut self, now: Time, gap: &Gap, who: u64, seen: u64, ports: &[u32; 64]) {
        let payload = u64::from(self.config.payload);
        let most = (self.config.window / payload + 2) as usize;
        let end = gap.offset.saturating_add(u64::from(gap.len));
        for (port, &number) in ports.iter().enumerate() {
            let Some(peer) = self.peers.list.get_mut(number as usize) else { continue };
            if who >> port & 1 == 0 || !peer.is_active() {
                continue;
            }
            let together = peer.alone.is_none();
            let course = peer.alone.as_deref_mut().unwrap_or(&mut self.group);
            // One that is alone may have seen pieces of what went to the others: on its own course, what lies beyond its
            // last packet is under way.
            let edge = if together { course.head } else { course.head.min(seen) };
            let (from, end) = (gap.offset.max(peer.have), end.min(edge));
            if from >= end {
                continue;
            }
            if end > peer.loss_edge {
                peer.lost += end - from.max(peer.loss_edge);
                peer.loss_edge = end;
            }
            // Others may miss it too: a short wait makes one packet of several.
            let wait = if together && self.lows.attached > 1 {
                Span(course.control.srtt().0 / 4).clamp(Span::from_us(50), Span::from_ms(1))
            } else {
                Span::ZERO
            };
            let due = now.saturating_add(wait);
            let mut again = 0;
            for cell in from / payload..=(end - 1) / payload {
                again += u32::from(match &mut self.peers.list[number as usize].alone {
                    None => self.miss(now, due, cell, number, most),
                    Some(course) => course.cells.missing(now, due, cell, number, most),
                });
            }
            let peer = &mut self.peers.list[number as usize];
            let course = peer.alone.as_deref_mut().unwrap_or(&mut self.group);
            course.lost_again(again);
            // Of repetitions, as much is lost by chance as of anything else: that is counted already.
            if course.is_strained() {
                peer.lost += u64::from(again) * payload;
            }
        }
    }

    /// Ends periods of congestion control that are over.
    fn periods(&mut self, now: Time, who: u64, ports: &[u32; 64]) {
        let progress = self.lows.progress;
        if self.lows.attached > 0 && self.group.control.period_over(now, progress) {
            let mut worst = super::super::congestion::Worst::default();
            let starting = self.group.control.is_starting();
            let fresh = Span::from_ms(50);
            for peer in &mut self.peers.list {
                if peer.state != State::Attached {
                    continue;
                }
                // Until labels reach it, what one that was just attached misses is not lost by congestion.
                if now.since(peer.since) > fresh || peer.detached == 0 {
                    worst.lost = worst.lost.max(peer.lost);
                }
                worst.queue = worst.queue.max(peer.end_period(starting, self.config.path));
            }
            let head = self.group.head;
            self.group.control.end_period(now, progress, head, worst);
        }
        for (port, &number) in ports.iter().enumerate() {
            if who >> port & 1 == 0 {
                continue;
            }
            let Some(peer) = self.peers.list.get_mut(number as usize) else { continue };
            let Some(mut course) = peer.alone.take() else { continue };
            course.arrived(peer.progress);
            course.cells.forget_below(peer.have / u64::from(self.config.payload));
            if course.control.period_over(now, peer.progress) {
                let lost = peer.lost;
                let queue = peer.end_period(course.control.is_starting(), self.config.path);
                let worst = super::super::congestion::Worst { queue, lost };
                course.control.end_period(now, peer.progress, course.head, worst);
            }
            peer.alone = Some(course);
        }
    }
}
