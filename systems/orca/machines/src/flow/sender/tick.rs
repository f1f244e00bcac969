//! Timers: repetition of control packets, probes, silent receivers, and the detection of slow receivers.
//!
//! The Orca paper has no recovery, so all of these rules are our choice.

use rackweave_core::time::TICKS_PER_SECOND;
use rackweave_core::{Span, Time};
use rackweave_wire::orca::Reason;

use super::super::{SlowPolicy, SlowReason};
use super::peers::{Blocking, Peer, State, pending};
use super::{Sender, Stage};

/// The interval at which a sender checks its receivers while there is traffic.
pub(in super::super) const TICK: Span = Span::from_ms(5);
/// The time without progress after which the interval between ticks doubles each time.
const IDLE_AFTER: Span = Span::from_ms(200);
/// The interval before the first repetition of an unanswered control packet; it doubles up to the maximum.
const CONTROL_RETRY: Span = Span::from_ms(10);
const CONTROL_RETRY_MAX: Span = Span::from_ms(500);
/// How long a stall is probed at short intervals. Where no agent may have failed, their probes have no more bytes than all that was
/// sent: a short stream would be repeated many times to a host that is busy.
const PROBE_FAST_FOR: Span = Span::from_ms(50);
/// The part of its length after which a longer stall is probed again while an agent may be being replaced.
const PROBE_PART: u64 = 16;
/// The time without progress of a whole rack after which its agent may have failed: many intervals of reports.
const RACK_STUCK: Span = Span::from_ms(25);
/// Bounds of the interval between probes.
const PROBE_MIN: Span = Span::from_us(500);
const PROBE_MAX: Span = Span::from_ms(500);
/// The shortest time for which a receiver stays detached; it doubles each time, so that a receiver does not alternate.
const MIN_DETACHED: Span = Span::from_ms(200);

/// The times at which the sender has to act.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    /// The time at which the session was opened.
    pub(super) opened: Time,
    pub(super) next_tick: Time,
    /// The earliest time at which `poll` may have another packet; `Time::MAX` if that depends only on other calls.
    pub(super) next_poll: Time,
    /// The time of the next check whether the group channel has stalled.
    pub(super) probe_at: Time,
    /// How often the interval between ticks has doubled.
    pub(super) tick_backoff: u8,
}

impl Timers {
    pub(super) const fn new(now: Time) -> Self {
        Self {
            opened: now,
            next_tick: Time::MAX,
            next_poll: Time::MAX,
            probe_at: Time::MAX,
            tick_backoff: 0,
        }
    }
}

impl Sender {
    /// To be called at the time of [`Self::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Time) {
        if self.timers.next_poll <= now {
            self.timers.next_poll = Time::MAX;
        }
        if self.stage == Stage::Over {
            return;
        }
        if now >= self.timers.probe_at {
            self.probe_all(now);
        }
        if now < self.timers.next_tick {
            return;
        }
        let mut idle = now.since(self.group.last_progress) > IDLE_AFTER;
        for number in 0..self.peers.list.len() as u32 {
            idle &= self.tick_receiver(now, number);
        }
        if self.peers.dirty {
            self.peers.update_watermarks(self.source.released);
        }
        self.probe_all(now);
        self.find_slow(now);
        self.update(now);
        if self.stage == Stage::Over {
            return;
        }
        self.timers.tick_backoff =
            if idle { self.timers.tick_backoff.saturating_add(1) } else { 0 };
        let wait = (TICK * (1 << self.timers.tick_backoff.min(16))).min(self.config.patience / 8);
        self.timers.next_tick = now.saturating_add(wait.max(Span::from_us(100)));
        let gathered = self.timers.opened.saturating_add(self.config.gather);
        if self.stage == Stage::Gathering && gathered > now {
            self.timers.next_tick = self.timers.next_tick.min(gathered);
        }
    }

    /// Checks one receiver. Returns true if nothing has happened with it for some time.
    fn tick_receiver(&mut self, now: Time, number: u32) -> bool {
        let patience = self.config.patience;
        let peer = &self.peers.list[number as usize];
        if !peer.is_active() && peer.state != State::Invited {
            return true;
        }
        if now.since(peer.last_heard) >= patience {
            self.lose_receiver(now, number, Reason::Silent);
            self.peers.queue_control(number, pending::BYE);
            return false;
        }
        let wait =
            (CONTROL_RETRY * (1 << peer.attempts.min(10))).min(CONTROL_RETRY_MAX).min(patience / 4);
        let due = now >= peer.control_sent_at.saturating_add(wait);
        let (state, since) = (peer.state, peer.state_since);
        let tries = state != State::Invited && self.check_path(now, number);
        let peer = &self.peers.list[number as usize];
        if matches!(peer.state, State::Lost(_)) {
            return false;
        }
        if state == State::Invited {
            if due {
                self.peers.queue_control(number, pending::INVITE);
            }
            return now.since(since) > IDLE_AFTER;
        }
        let channel = peer.channel.as_deref().unwrap_or(&self.group);
        let (head, sent) = (channel.head, channel.last_sent.max(peer.last_sent));
        let idle = now.since(channel.last_progress) > IDLE_AFTER;
        if self.source.length == Some(head) {
            if due && now.since(sent) >= wait {
                self.peers.queue_control(number, pending::END);
            }
        } else if now.since(sent) >= patience / 6 {
            self.peers.queue_control(number, pending::MODE);
        }
        if state == State::Detached {
            self.tick_detached(now, number);
        }
        idle && !tries
    }

    /// Probes a detached receiver that has stalled, and attaches it once it has nearly caught up.
    fn tick_detached(&mut self, now: Time, number: u32) {
        let detach_count = self.peers.list[number as usize].detach_count;
        let peer = &mut self.peers.list[number as usize];
        let Some(channel) = peer.channel.as_deref_mut() else { return };
        let timeout = channel.rto(self.config.report_delay(false));
        let wait = (timeout * (1 << channel.probe_backoff.min(8))).min(Span::from_ms(500));
        if peer.have < channel.head && now.since(channel.last_progress) >= wait {
            let last = (channel.head - 1) / u64::from(self.config.payload);
            let max_cells = self.config.window_packets();
            let _ = channel.retransmit.report_missing(now, now, last, number, max_cells);
            channel.probe_backoff = channel.probe_backoff.saturating_add(1);
            channel.last_progress = now;
        }
        // It rejoins the group if it is close to the group's position and its window has room for what the group was
        // sent, unless all data has been sent already.
        let lead = self.group.head.saturating_sub(channel.head);
        let behind = self.group.head.saturating_sub(peer.have);
        let mut near =
            lead <= self.group.congestion.window() / 4 && behind <= self.config.window / 4;
        let mut least = match detach_count {
            0 => Span::ZERO,
            times => MIN_DETACHED * (1 << times.min(8)),
        };
        // A receiver that was silent and then answers was not slow: its host was busy. The first time, the group waits
        // until it has what it missed. By unicast it would never catch up, and all the rest would be sent twice.
        if detach_count == 1
            && peer.slow_reason == Some(SlowReason::Silent)
            && peer.last_heard > peer.state_since
        {
            near = behind <= self.config.window / 8 * 7;
            least = Span::ZERO;
        }
        near &= peer.limit >= self.group.head && peer.path.payload.is_none();
        near &= !peer.is_apart;
        if near
            && self.source.length != Some(self.group.head)
            && now.since(peer.state_since) >= least
        {
            peer.best_progress = peer.progress;
            self.attach(now, number);
        }
    }

    /// Returns the interval without progress after which the group channel is probed.
    pub(super) fn probe_wait(&self) -> Span {
        let group = &self.group;
        // A report waits for up to one interval at its receiver, and for another one at its agent.
        let report_delay = self.config.status_interval * if self.via_agent { 2 } else { 1 };
        let timeout = group.congestion.rto() + report_delay;
        match group.stalled_since {
            // Queues have drained by now, so two of the shortest round trips suffice.
            Some(since) if self.probes_often(group.last_progress.since(since)) => {
                let round_trips = group.congestion.min_rtt().saturating_mul(2);
                round_trips.max(PROBE_MIN).min(timeout.max(PROBE_MIN))
            }
            Some(since) if group.last_progress.since(since) < self.agent_wait => {
                group.last_progress.since(since) / PROBE_PART
            }
            // An agent may have failed. A queue would drain with progress, so two of the shortest round trips and the longest delay of
            // a report suffice.
            None if self.agent_wait > Span::ZERO => {
                let round_trips = group.congestion.min_rtt().saturating_mul(2);
                round_trips.saturating_add(report_delay).min(timeout).max(PROBE_MIN)
            }
            _ => (timeout * (1 << group.probe_backoff.min(8))).clamp(PROBE_MIN, PROBE_MAX),
        }
    }

    /// Returns whether a stall of this length is probed at short intervals.
    fn probes_often(&self, stalled: Span) -> bool {
        let is_cheap = self.group.probed < self.group.head;
        stalled < PROBE_FAST_FOR && (is_cheap || self.agent_wait > Span::ZERO)
    }

    /// If data is in flight but no report shows progress, retransmits the last packet. Its receivers answer with what
    /// they lack. It is a tail loss probe as in RFC 8985, section 7.
    fn probe_all(&mut self, now: Time) {
        let head = self.group.head;
        if self.peers.watermarks.attached == 0
            || self.peers.watermarks.min_have >= head
            || self.paused
        {
            self.timers.probe_at = Time::MAX;
            return;
        }
        // While the window is closed others may still report. That must not hide that an agent has failed.
        let last = match self.group.stalled_since {
            None if self.agent_wait > Span::ZERO => {
                self.group.last_progress.min(self.group.last_sent)
            }
            _ => self.group.last_progress,
        };
        let due = last.saturating_add(self.probe_wait());
        if now < due {
            self.timers.probe_at = due;
            return;
        }
        let since = *self.group.stalled_since.get_or_insert(self.group.last_progress);
        self.group.last_progress = now;
        let stalled = now.since(since);
        self.group.probed += u64::from(self.config.payload).min(head);
        if !self.probes_often(stalled) && stalled >= self.agent_wait {
            self.group.probe_backoff = self.group.probe_backoff.saturating_add(1);
        }
        self.timers.probe_at = now.saturating_add(self.probe_wait());
        let last = (head - 1) / u64::from(self.config.payload);
        let max_cells = self.config.window_packets();
        let lacking = |peer: &Peer| peer.state == State::Attached && peer.have < head;
        for number in 0..self.peers.list.len() as u32 {
            if lacking(&self.peers.list[number as usize]) {
                self.group.retransmit.probe(now, last, number, max_cells);
            }
        }
    }

    /// Finds receivers that delay the group: ones without which the sender could send, while the median receiver has
    /// room for half a window. `detach_slow` examines receivers that block in more checks than [`SlowPolicy::Detach`]
    /// allows.
    fn find_slow(&mut self, now: Time) {
        let (after, below) = match self.config.slow {
            SlowPolicy::Wait => return,
            SlowPolicy::Detach { after, below_percent, .. }
            | SlowPolicy::Drop { after, below_percent } => (after, u64::from(below_percent)),
        };
        let head = self.group.head;
        let window = self.group.congestion.window();
        let room = self.config.window;
        let send_limit = |peer: &Peer| {
            let have =
                if peer.best_progress > peer.progress { peer.best_progress } else { peer.have };
            (peer.best_progress + window).min(have + room).min(peer.limit)
        };
        let edge = head + u64::from(self.config.payload);
        let (lowest_limit, attached) = (
            (self.peers.watermarks.min_progress.saturating_add(window))
                .min(self.peers.watermarks.min_have.saturating_add(room))
                .min(self.peers.watermarks.min_limit),
            self.peers.watermarks.attached,
        );
        let blocked =
            attached >= 2 && head < self.source.offered && !self.paused && lowest_limit < edge;
        let mut others_can_receive = false;
        if blocked {
            let attached = self.peers.list.iter().filter(|peer| peer.state == State::Attached);
            self.scratch.clear();
            self.scratch.extend(attached.map(send_limit));
            let middle = self.scratch.len() / 2;
            let (_, median, _) = self.scratch.select_nth_unstable(middle);
            others_can_receive = *median >= head + window.min(room) / 2;
        }
        let enough = (after.ticks() / TICK.ticks()).max(1);
        let mut overdue = false;
        let mut stuck_rack = (None, false);
        for number in 0..self.peers.list.len() {
            let peer = &self.peers.list[number];
            if peer.state != State::Attached {
                continue;
            }
            let slow = others_can_receive && send_limit(peer) < edge;
            let (rack, has_room) = (peer.place.rack, peer.limit >= edge);
            if slow && stuck_rack.0 != Some(rack) {
                let is_slow = |peer: &Peer| send_limit(peer) < edge;
                stuck_rack = (Some(rack), self.may_lack_agent(now, rack, is_slow));
            }
            let may_lack_agent = slow && has_room && stuck_rack.1;
            let wait = self.agent_wait;
            let peer = &mut self.peers.list[number];
            let excused = if slow { peer.excuse(now, may_lack_agent, wait) } else { None };
            match &mut peer.blocking {
                // The time until its rack has another agent says nothing about it.
                Some(blocking) if excused.is_some() => {
                    blocking.since = blocking.since.saturating_add(excused.unwrap_or_default());
                }
                Some(blocking) if slow => {
                    blocking.strikes += 1;
                    overdue |= blocking.strikes > enough;
                }
                Some(blocking) if blocking.strikes > 0 => blocking.strikes -= 1,
                Some(_) => peer.blocking = None,
                None if slow => {
                    let (from, had) = (peer.best_progress, peer.have);
                    peer.blocking = Some(Blocking { since: now, from, had, strikes: 0 });
                }
                None => {}
            }
        }
        if overdue {
            self.detach_slow(now, enough, after, below);
        }
    }

    /// Returns whether all receivers of a rack delay the group, and none has made progress for some time, but for less than it takes to
    /// replace the rack's agent. A receiver that does not delay the group has its data from a live agent.
    fn may_lack_agent(&self, now: Time, rack: u16, delays: impl Fn(&Peer) -> bool) -> bool {
        if self.agent_wait == Span::ZERO {
            return false;
        }
        let ports = self.peers.rack(rack).into_iter().flatten();
        let attached = || {
            let peers = ports.clone().filter_map(|number| self.peers.get(*number));
            peers.filter(|peer| peer.state == State::Attached)
        };
        let last = attached().map(|peer| peer.progress_at).max();
        attached().all(delays)
            && last.is_some_and(|last| (RACK_STUCK..self.agent_wait).contains(&now.since(last)))
    }

    /// Detaches receivers that have delayed the group for too long, if they received less than the configured share of
    /// what the median receiver can receive.
    fn detach_slow(&mut self, now: Time, enough: u64, after: Span, below: u64) {
        let attached = self.peers.list.iter().filter(|peer| peer.state == State::Attached);
        self.scratch.clear();
        self.scratch.extend(attached.map(|peer| peer.peak));
        let middle = self.scratch.len() / 2;
        let (_, median, _) = self.scratch.select_nth_unstable(middle);
        let could = u128::from(*median);
        let mut any = false;
        for number in 0..self.peers.list.len() as u32 {
            let peer = &mut self.peers.list[number as usize];
            let Some(Blocking { since, from, had, .. }) =
                peer.blocking.filter(|blocking| blocking.strikes > enough)
            else {
                continue;
            };
            let span = now.since(since).ticks().max(1);
            let took = peer.best_progress.saturating_sub(from).max(peer.have.saturating_sub(had));
            let took = u128::from(took) * u128::from(TICKS_PER_SECOND);
            let rate = took / u128::from(span);
            peer.blocking = None;
            if rate * 100 >= could * u128::from(below) {
                continue;
            }
            let silent = now.since(peer.last_heard) >= after;
            let no_room = peer.limit < self.group.head + u64::from(self.config.payload);
            peer.slow_reason = Some(match (silent, no_room) {
                (true, _) => SlowReason::Silent,
                (false, true) => SlowReason::Window,
                (false, false) => SlowReason::Rate,
            });
            let host = peer.host;
            any = true;
            if matches!(self.config.slow, SlowPolicy::Drop { .. }) {
                self.lose_receiver(now, number, Reason::Silent);
                self.peers.queue_control(number, pending::BYE);
                continue;
            }
            peer.detach_count = peer.detach_count.saturating_add(1);
            self.detach(now, number, true);
            self.events.push_back(super::super::SenderEvent::Detached { host });
        }
        if any {
            self.peers.update_watermarks(self.source.released);
            self.group.congestion.restart(&self.config);
            self.tick_soon(now);
        }
    }
}
