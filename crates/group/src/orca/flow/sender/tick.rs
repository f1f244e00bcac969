//! What time brings: repetitions, probes, silence; and who is too slow.

use rackweave_core::{Span, Time};
use rackweave_wire::orca::Reason;

use super::super::{SlowPolicy, SlowReason};
use super::peers::{Holds, Peer, State, tell};
use super::{Sender, Stage};

/// How often a sender looks at its receivers while something moves.
pub(super) const TICK: Span = Span::from_ms(5);
/// After so long without anything new, ticks become rarer.
const STILL: Span = Span::from_ms(200);
/// First repetition of what is told until it is answered, doubling up to the most.
const REPEAT: Span = Span::from_ms(10);
const REPEAT_MOST: Span = Span::from_ms(500);
/// A stall is probed often for so long, and no more often than this: it may be an agent that fails.
const PROBE_OFTEN: Span = Span::from_ms(50);
const PROBE_CLOSEST: Span = Span::from_us(500);
/// Then more and more rarely, up to this.
const PROBE_MOST: Span = Span::from_ms(500);
/// One that was detached is alone for at least so long, twice as long each time.
const ALONE_LEAST: Span = Span::from_ms(200);

impl Sender {
    /// The time that [`Self::poll_timeout`] named has come.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.wait <= now {
            self.wait = Time::MAX;
        }
        if self.stage == Stage::Over {
            return;
        }
        if now >= self.probe_at {
            self.probe_all(now);
        }
        if now < self.next_tick {
            return;
        }
        let mut still = now.since(self.group.moved) > STILL;
        for number in 0..self.peers.list.len() as u32 {
            still &= self.tick_one(now, number);
        }
        if self.stale {
            self.count();
        }
        self.probe_all(now);
        self.look_for_slow(now);
        self.settle(now);
        if self.stage == Stage::Over {
            return;
        }
        self.quiet = if still { self.quiet.saturating_add(1) } else { 0 };
        let wait = Span(TICK.0 << self.quiet.min(16)).min(Span(self.config.patience.0 / 8));
        self.next_tick = now.saturating_add(wait.max(Span::from_us(100)));
        let gathered = self.opened.saturating_add(self.config.gather);
        if self.stage == Stage::Gathering && gathered > now {
            self.next_tick = self.next_tick.min(gathered);
        }
    }

    /// True if nothing moves with this receiver.
    fn tick_one(&mut self, now: Time, number: u32) -> bool {
        let patience = self.config.patience;
        let peer = &self.peers.list[number as usize];
        if !peer.is_active() && peer.state != State::Invited {
            return true;
        }
        if now.since(peer.heard) >= patience {
            self.lose(now, number, Reason::Silent);
            self.tell(number, tell::BYE);
            return false;
        }
        let wait =
            Span(REPEAT.0 << peer.tellings.min(10)).min(REPEAT_MOST).min(Span(patience.0 / 4));
        let due = now >= peer.told_at.saturating_add(wait);
        let (state, since) = (peer.state, peer.since);
        if state == State::Invited {
            if due {
                self.tell(number, tell::INVITE);
            }
            return now.since(since) > STILL;
        }
        let course = peer.alone.as_deref().unwrap_or(&self.group);
        let (head, sent) = (course.head, course.sent.max(peer.sent));
        let still = now.since(course.moved) > STILL;
        if self.length == Some(head) {
            if due && now.since(sent) >= wait {
                self.tell(number, tell::END);
            }
        } else if now.since(sent) >= Span(patience.0 / 6) {
            self.tell(number, tell::MODE);
        }
        if state == State::Alone {
            self.tick_alone(now, number);
        }
        still
    }

    fn tick_alone(&mut self, now: Time, number: u32) {
        let hold_after = self.peers.list[number as usize].detached;
        let peer = &mut self.peers.list[number as usize];
        let Some(course) = peer.alone.as_deref_mut() else { return };
        let timeout = course.hold_off(Self::reports(&self.config, false));
        let wait = Span(timeout.0 << course.probes.min(8)).min(Span::from_ms(500));
        if peer.have < course.head && now.since(course.moved) >= wait {
            let last = (course.head - 1) / u64::from(self.config.payload);
            let most = (self.config.window / u64::from(self.config.payload) + 2) as usize;
            let _ = course.cells.missing(now, now, last, number, most);
            course.probes = course.probes.saturating_add(1);
            course.moved = now;
        }
        // Near enough to the others, with room for what they were sent, and unless all is sent already.
        let lead = self.group.head.saturating_sub(course.head);
        let behind = self.group.head.saturating_sub(peer.have);
        let mut near = lead <= self.group.control.window() / 4 && behind <= self.config.window / 4;
        let mut least = match hold_after {
            0 => Span::ZERO,
            times => Span(ALONE_LEAST.0 << times.min(8)),
        };
        // One that was silent and is heard again was not slow: its host had something else to do. Once, the others wait until
        // it has what it missed; alone it would never catch up with them, and all the rest would be sent twice.
        if hold_after == 1 && peer.slow == Some(SlowReason::Silent) && peer.heard > peer.since {
            near = behind <= self.config.window / 8 * 7;
            least = Span::ZERO;
        }
        near &= peer.limit >= self.group.head;
        if near && self.length != Some(self.group.head) && now.since(peer.since) >= least {
            peer.at_best = peer.progress;
            self.attach(now, number);
        }
    }

    /// After so long without anything new, the next probe.
    pub(super) fn probe_wait(&self) -> Span {
        let group = &self.group;
        // A receiver's report waits for an interval, and for another at its agent.
        let reports = self.config.status_interval * if self.via_agent { 2 } else { 1 };
        let timeout = group.control.timeout() + reports;
        match group.stalled {
            // Queues are empty by now.
            Some(since) if group.moved.since(since) < PROBE_OFTEN => {
                let round_trips = Span(group.control.shortest().0.saturating_mul(2));
                round_trips.max(PROBE_CLOSEST).min(timeout.max(PROBE_CLOSEST))
            }
            _ => Span(timeout.0 << group.probes.min(8)).clamp(PROBE_CLOSEST, PROBE_MOST),
        }
    }

    /// If nothing moves although something is under way, the last packet goes again: who gets it says what is missing.
    fn probe_all(&mut self, now: Time) {
        let head = self.group.head;
        if self.lows.attached == 0 || self.lows.have >= head || self.held {
            self.probe_at = Time::MAX;
            return;
        }
        let due = self.group.moved.saturating_add(self.probe_wait());
        if now < due {
            self.probe_at = due;
            return;
        }
        let since = *self.group.stalled.get_or_insert(self.group.moved);
        self.group.moved = now;
        if now.since(since) >= PROBE_OFTEN {
            self.group.probes = self.group.probes.saturating_add(1);
        }
        self.probe_at = now.saturating_add(self.probe_wait());
        let last = (head - 1) / u64::from(self.config.payload);
        let most = (self.config.window / u64::from(self.config.payload) + 2) as usize;
        let lacking = |peer: &Peer| peer.state == State::Attached && peer.have < head;
        for number in 0..self.peers.list.len() as u32 {
            if lacking(&self.peers.list[number as usize]) {
                self.group.cells.probe(now, last, number, most);
            }
        }
    }

    /// Detaches those who hold the others up.
    fn look_for_slow(&mut self, now: Time) {
        let (after, below) = match self.config.slow {
            SlowPolicy::Wait => return,
            SlowPolicy::Detach { after, below_percent, .. }
            | SlowPolicy::Drop { after, below_percent } => (after, u64::from(below_percent)),
        };
        let head = self.group.head;
        let window = self.group.control.window();
        let room = self.config.window;
        let gate = |peer: &Peer| {
            let have = if peer.at_best > peer.progress { peer.at_best } else { peer.have };
            (peer.at_best + window).min(have + room).min(peer.limit)
        };
        let edge = head + u64::from(self.config.payload);
        let (low_gate, attached) = (
            (self.lows.progress.saturating_add(window))
                .min(self.lows.have.saturating_add(room))
                .min(self.lows.limit),
            self.lows.attached,
        );
        let blocked = attached >= 2 && head < self.offered && !self.held && low_gate < edge;
        let mut free = false;
        if blocked {
            let attached = self.peers.list.iter().filter(|peer| peer.state == State::Attached);
            self.scratch.clear();
            self.scratch.extend(attached.map(gate));
            let middle = self.scratch.len() / 2;
            let (_, median, _) = self.scratch.select_nth_unstable(middle);
            free = *median >= head + window.min(room) / 2;
        }
        let enough = (after.0 / TICK.0).max(1);
        let mut overdue = false;
        for peer in self.peers.list.iter_mut().filter(|peer| peer.state == State::Attached) {
            let slow = free && gate(peer) < edge;
            match &mut peer.holds {
                Some(holds) if slow => {
                    holds.looks += 1;
                    overdue |= holds.looks > enough;
                }
                Some(holds) if holds.looks > 0 => holds.looks -= 1,
                Some(_) => peer.holds = None,
                None if slow => {
                    let (from, had) = (peer.at_best, peer.have);
                    peer.holds = Some(Holds { since: now, from, had, looks: 0 });
                }
                None => {}
            }
        }
        if overdue {
            self.part_with_slow(now, enough, after, below);
        }
    }

    fn part_with_slow(&mut self, now: Time, enough: u64, after: Span, below: u64) {
        let attached = self.peers.list.iter().filter(|peer| peer.state == State::Attached);
        self.scratch.clear();
        self.scratch.extend(attached.map(|peer| peer.peak));
        let middle = self.scratch.len() / 2;
        let (_, median, _) = self.scratch.select_nth_unstable(middle);
        let could = u128::from(*median);
        let mut parted = false;
        for number in 0..self.peers.list.len() as u32 {
            let peer = &mut self.peers.list[number as usize];
            let Some(Holds { since, from, had, .. }) =
                peer.holds.filter(|holds| holds.looks > enough)
            else {
                continue;
            };
            let span = now.since(since).0.max(1);
            let took = peer.at_best.saturating_sub(from).max(peer.have.saturating_sub(had));
            let took = u128::from(took) * 1_000_000_000_000;
            let rate = took / u128::from(span);
            peer.holds = None;
            if rate * 100 >= could * u128::from(below) {
                continue;
            }
            let silent = now.since(peer.heard) >= after;
            let no_room = peer.limit < self.group.head + u64::from(self.config.payload);
            peer.slow = Some(match (silent, no_room) {
                (true, _) => SlowReason::Silent,
                (false, true) => SlowReason::Window,
                (false, false) => SlowReason::Rate,
            });
            let host = peer.host;
            parted = true;
            if matches!(self.config.slow, SlowPolicy::Drop { .. }) {
                self.lose(now, number, Reason::Silent);
                self.tell(number, tell::BYE);
                continue;
            }
            peer.detached = peer.detached.saturating_add(1);
            self.detach(now, number, true);
            self.events.push_back(super::super::SenderEvent::Detached { host });
        }
        if parted {
            self.count();
            self.group.control.restart(&self.config);
            self.wake(now);
        }
    }
}
