//! The receiver's half of the matching: requests for channels, the acceptance of offers, and the tokens of matched channels.

use rackweave_core::{HostId, Time};
use rackweave_wire::dcpim::{Body, Channels, LIFETIME_UNIT_NS};

use super::Host;
use super::clock::Clock;
use super::config::Config;
use super::pace::Pace;
use super::receiver::Next;
use crate::common::{Grouped, Known, List, State};

/// Maximum number of overdue tokens of a match that are sent at once when the driver is late.
const CATCH_UP: u64 = 8;
/// Priority of tokens of channels that are used before their data phase (`docs/protocols/dcpim.md#dcpim-matching`).
const PROMPT_PRIORITY: u8 = 7;
/// Priority of tokens of the match with the shortest message; that of free packets is 1.
const FIRST_PRIORITY: u8 = 2;

/// What a sender offers, as stored with the message that its offer names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    /// The sender's epoch.
    pub(super) sender_epoch: u32,
    pub(super) channels: Channels,
}

/// Channels between this receiver and one sender.
#[derive(Clone, Copy, Debug)]
struct Match {
    peer: HostId,
    channels: Channels,
    /// Missing packets of the message for which it was made.
    shortest: u32,
    /// Priority of its tokens at the sender.
    priority: u8,
    /// When the next token may be sent; [`Time::MAX`] if no message of the sender wants one.
    token_at: Time,
    /// Whether it waits for the sender to use its tokens.
    is_waiting: bool,
}

/// A host's state as a receiver in the matching.
#[derive(Debug)]
pub(super) struct Matching {
    /// Messages that want tokens, by their senders; of one sender in SRPT order, then by age.
    wanting: Grouped<HostId, (u64, u64)>,
    /// Messages with an offer that has not been handled.
    offers: List,
    /// Reused by each stage: missing packets, age and slot of the messages with an offer.
    candidates: Vec<(u32, u64, u32)>,
    /// The next stage, and when it is; [`Time::MAX`] while there is nothing to do.
    stage: u64,
    stage_at: Time,
    /// The epoch whose matches `next` holds; `None` before the first stage.
    epoch: Option<u64>,
    /// The matches for the coming data phase.
    next: Vec<Match>,
    /// The matches of the current data phase.
    current: Vec<Match>,
    /// The end of the current data phase.
    phase_end: Time,
    /// When the earliest token is due.
    token_at: Time,
    /// No tokens are sent before this time.
    hold_until: Time,
    /// The last sender from which channels were requested.
    asked: Option<HostId>,
    /// How many requests are sent.
    pace: Pace,
}

impl Default for Matching {
    fn default() -> Self {
        Self {
            wanting: Grouped::default(),
            offers: List::default(),
            candidates: Vec::new(),
            stage: 0,
            stage_at: Time::MAX,
            epoch: None,
            next: Vec::new(),
            current: Vec::new(),
            phase_end: Time::ZERO,
            token_at: Time::MAX,
            hold_until: Time::ZERO,
            asked: None,
            pace: Pace::default(),
        }
    }
}

impl Matching {
    /// When the host has to act next.
    pub(super) fn next_at(&self) -> Time {
        self.stage_at.min(self.token_at)
    }

    pub(super) fn leave(&mut self, slot: u32) {
        self.wanting.remove(slot);
        self.offers.remove(slot);
    }

    /// Holds back all tokens for a time: the free packets of a message arrive then (`docs/protocols/dcpim.md#dcpim-tokens`).
    pub(super) fn hold(&mut self, until: Time) {
        self.hold_until = self.hold_until.max(until);
    }

    /// Adds a message that wants tokens, or moves it.
    pub(super) fn want(
        &mut self,
        clock: &Clock,
        now: Time,
        peer: HostId,
        slot: u32,
        key: (u64, u64),
    ) {
        self.wanting.set(slot, peer, key);
        self.wake(now, peer);
        if self.stage_at == Time::MAX {
            self.stage = clock.next_receiver_stage(now).max(self.stage);
            self.stage_at = clock.receiver_stage_at(self.stage);
        }
    }

    /// Moves a message that wants tokens after a packet of it has arrived. A match that waits for its sender tries again.
    pub(super) fn move_wanting(&mut self, now: Time, peer: HostId, slot: u32, key: (u64, u64)) {
        self.wanting.set(slot, peer, key);
        for matched in self.current.iter_mut().chain(&mut self.next) {
            if matched.peer == peer && matched.is_waiting {
                (matched.token_at, matched.is_waiting) = (now, false);
                self.token_at = now;
            }
        }
    }

    /// A message of this sender has come, or may have tokens again.
    fn wake(&mut self, now: Time, peer: HostId) {
        let is_next = |matched: &Match| matched.channels.prompt > 0;
        let next = self.next.iter_mut().filter(|matched| is_next(matched));
        for matched in self.current.iter_mut().chain(next) {
            let is_idle = matched.token_at == Time::MAX && matched.channels.total > 0;
            if matched.peer == peer && (is_idle || matched.is_waiting) {
                (matched.token_at, matched.is_waiting) = (now, false);
                self.token_at = now;
            }
        }
    }

    /// Channels that are matched for the current data phase, and for the coming one.
    fn matched(matches: &[Match]) -> u8 {
        matches.iter().map(|matched| matched.channels.total).sum()
    }

    /// Channels of the coming data phase that are in use already.
    fn prompt(&self) -> u8 {
        self.next.iter().map(|matched| matched.channels.prompt).sum()
    }

    /// Channels that could be used at once.
    fn idle(&self, config: &Config) -> u8 {
        if !config.prompt {
            return 0;
        }
        config.channels.saturating_sub(Self::matched(&self.current)).saturating_sub(self.prompt())
    }

    /// Starts the matching of an epoch.
    fn begin_epoch(&mut self, clock: &Clock, epoch: u64) {
        if self.epoch == Some(epoch) {
            return;
        }
        if self.epoch.is_none_or(|last| last + 1 != epoch) {
            self.current.clear();
        }
        self.next.clear();
        self.epoch = Some(epoch);
        self.phase_end = clock.data_phase_at(epoch);
    }

    /// Starts the data phase of the matches that were found in an epoch.
    fn begin_data_phase(&mut self, clock: &Clock, now: Time, epoch: u64) {
        core::mem::swap(&mut self.current, &mut self.next);
        self.next.clear();
        self.current.retain(|matched| matched.channels.total > 0);
        // docs/protocols/dcpim.md#dcpim-matching: the sender uses the tokens of the match with the shortest message first.
        self.current.sort_by_key(|matched| matched.shortest);
        let mut priority = FIRST_PRIORITY;
        for matched in &mut self.current {
            matched.priority = priority;
            priority = priority.saturating_add(matched.channels.total);
            (matched.token_at, matched.is_waiting) = (now, false);
        }
        self.phase_end = clock.data_phase_at(epoch + 1);
        self.find_token_at();
    }

    fn find_token_at(&mut self) {
        let all = self.current.iter().chain(&self.next);
        self.token_at = all.map(|matched| matched.token_at).min().unwrap_or(Time::MAX);
    }

    /// The match whose token is due first, if it is due.
    fn due(&mut self, now: Time) -> Option<(bool, usize)> {
        let first = |matches: &[Match]| {
            let due = matches.iter().enumerate().map(|(index, matched)| (matched.token_at, index));
            due.min()
        };
        let (current, next) = (first(&self.current), first(&self.next));
        let is_next = match (current, next) {
            (Some((current, _)), Some((next, _))) => next < current,
            (current, _) => current.is_none(),
        };
        let (at, index) = if is_next { next? } else { current? };
        (at <= now).then_some((is_next, index))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.wanting.is_empty() && self.offers.is_empty()
    }

    #[cfg(test)]
    pub(super) fn check(&self, channels: u8) {
        assert!(Self::matched(&self.current) <= channels && Self::matched(&self.next) <= channels);
        assert!(self.prompt() <= channels && self.candidates.is_empty());
        let all = || self.current.iter().chain(&self.next);
        assert!(all().all(|matched| matched.channels.prompt <= matched.channels.total));
        let first = all().map(|matched| matched.token_at).min().unwrap_or(Time::MAX);
        assert!(self.token_at <= first);
        assert!(self.wanting.is_empty() || self.stage_at < Time::MAX);
    }
}

impl Host {
    /// Handles GRANT: the offer is accepted, or not, at the next stage.
    ///
    /// (docs/protocols/dcpim.md#dcpim-clocks: as requests at senders, it counts in the round in which it arrives.)
    pub(super) fn handle_grant(
        &mut self,
        now: Time,
        from: HostId,
        id: u64,
        epoch: u32,
        offer: Offer,
    ) {
        let Known::Slot(slot) = self.exchanges.find(from, id ^ 1) else { return };
        let State::Receiving(incoming) = &mut self.exchanges.get_mut(slot).state else { return };
        incoming.last_received = now;
        let matching = &mut self.scheme.matching;
        if core::mem::take(&mut incoming.asked) {
            matching.pace.answered(self.scheme.clock.epoch_at(now), epoch, &self.config);
        }
        if matching.stage_at < Time::MAX {
            incoming.offer = Some(offer);
            matching.offers.push_back(slot);
        }
    }

    /// Handles RELEASE: the sender does not have channels that were accepted.
    pub(super) fn handle_release(&mut self, from: HostId, epoch: u32, channels: Channels) {
        let matching = &mut self.scheme.matching;
        let Some(matched_in) = matching.epoch else { return };
        let (next_epoch, _) = self.scheme.clock.receiver_stage(matching.stage);
        let is_next = next_epoch == matched_in;
        let matches = if matched_in as u32 == epoch && is_next {
            &mut matching.next
        } else if matched_in as u32 == epoch
            || is_next && (matched_in as u32).wrapping_sub(1) == epoch
        {
            &mut matching.current
        } else {
            return;
        };
        let Some(matched) = matches.iter_mut().find(|matched| matched.peer == from) else { return };
        matched.channels.total = matched.channels.total.saturating_sub(channels.total);
        let prompt = matched.channels.prompt.saturating_sub(channels.prompt);
        matched.channels.prompt = prompt.min(matched.channels.total);
        if matched.channels.total == 0 {
            (matched.token_at, matched.is_waiting) = (Time::MAX, false);
        }
    }

    /// Handles the stages and tokens that are due.
    pub(super) fn run_matching(&mut self, now: Time) {
        while self.scheme.matching.stage_at <= now {
            self.run_stage(now);
        }
        self.send_tokens(now);
    }

    /// Handles the next stage, which is due.
    fn run_stage(&mut self, now: Time) {
        let clock = self.scheme.clock;
        let latest = clock.last_receiver_stage(now);
        let matching = &mut self.scheme.matching;
        let stages = u64::from(self.config.rounds) + 1;
        if matching.stage + 2 * stages < latest {
            // The driver is so late that all matches are over.
            matching.stage = latest;
        }
        let stage = matching.stage;
        let at = clock.receiver_stage_at(stage);
        let (epoch, index) = clock.receiver_stage(stage);
        matching.begin_epoch(&clock, epoch);
        self.accept_offers(at, epoch, index <= u64::from(self.config.srpt_rounds));
        if index + 1 == stages {
            self.scheme.matching.begin_data_phase(&clock, at, epoch);
        } else if stage == latest {
            self.request_channels(epoch, index);
        }
        let matching = &mut self.scheme.matching;
        matching.stage = stage + 1;
        let is_over =
            matching.wanting.is_empty() && matching.next.is_empty() && matching.current.is_empty();
        matching.stage_at = if is_over { Time::MAX } else { clock.receiver_stage_at(stage + 1) };
    }

    /// Accepts offers of channels: for the shortest messages, or at random (docs/protocols/dcpim.md#dcpim-matching).
    fn accept_offers(&mut self, now: Time, epoch: u64, shortest: bool) {
        let matching = &mut self.scheme.matching;
        if matching.offers.is_empty() {
            return;
        }
        let mut candidates = core::mem::take(&mut matching.candidates);
        while let Some(slot) = matching.offers.pop_front() {
            let exchange = self.exchanges.get(slot);
            if let State::Receiving(incoming) = &exchange.state {
                candidates.push((incoming.missing(), exchange.birth, slot));
            }
        }
        if shortest {
            candidates.sort_unstable_by(|a, b| b.cmp(a));
        }
        let mut free = self.config.channels - Matching::matched(&matching.next);
        while free > 0 && !candidates.is_empty() {
            let next = candidates.len();
            let next = if shortest { next - 1 } else { self.scheme.draws.below(next) };
            let (missing, _, slot) = candidates.swap_remove(next);
            let exchange = self.exchanges.get_mut(slot);
            let (peer, id, one_way) = (exchange.peer, exchange.arriving(), exchange.one_way);
            let State::Receiving(incoming) = &mut exchange.state else { continue };
            let Some(Offer { sender_epoch, channels }) = incoming.offer.take() else { continue };
            let matching = &mut self.scheme.matching;
            let total = channels.total.min(free);
            let prompt = channels.prompt.min(total).min(matching.idle(&self.config));
            if total == 0 {
                continue;
            }
            free -= total;
            let channels = Channels { total, prompt };
            matching.add(now, peer, channels, missing);
            let body = Body::Accept { epoch: epoch as u32, sender_epoch, channels };
            self.send_control(peer, id.0, one_way, body);
        }
        candidates.clear();
        self.scheme.matching.candidates = candidates;
    }

    /// Requests the channels that the senders of messages need, from each sender as many as the missing packets of its
    /// messages take, beyond its matched ones.
    fn request_channels(&mut self, epoch: u64, round: u64) {
        let config = &*self.config;
        let each = config.channel_packets();
        let free = config.channels - Matching::matched(&self.scheme.matching.next);
        if free == 0 {
            return;
        }
        let idle = self.scheme.matching.idle(config);
        let mut first = None;
        for _ in 0..self.scheme.matching.pace.requests(epoch, round, config) {
            let matching = &mut self.scheme.matching;
            let Some(peer) = matching.wanting.group_after(matching.asked) else { return };
            if first == Some(peer) {
                return;
            }
            first.get_or_insert(peer);
            matching.asked = Some(peer);
            let has = |matches: &[Match]| {
                let of_peer = matches.iter().find(|matched| matched.peer == peer);
                of_peer.map_or(0, |matched| u64::from(matched.channels.total))
            };
            let has = has(&matching.current) + has(&matching.next);
            let most = (has + u64::from(free)) * each;
            // (The authors' simulator counts the shortest message of the sender only, so that it leaves the rest of the link
            // idle between two hosts with many messages of a few packets more than are free. Our choice is to count all.)
            let mut missing = 0;
            for ((packets, _), _) in matching.wanting.of(peer) {
                missing += packets;
                if missing >= most {
                    break;
                }
            }
            if missing <= has * each {
                continue;
            }
            let total = (missing.div_ceil(each) - has).min(u64::from(free)) as u8;
            let Some(((packets, _), slot)) = matching.wanting.first_of(peer) else { continue };
            let exchange = self.exchanges.get_mut(slot);
            let (id, one_way) = (exchange.arriving(), exchange.one_way);
            if let State::Receiving(incoming) = &mut exchange.state {
                incoming.asked = true;
            }
            let channels = Channels { total, prompt: total.min(idle) };
            matching.pace.sent();
            let body = Body::Rts { epoch: epoch as u32, missing: packets as u32, channels };
            self.send_control(peer, id.0, one_way, body);
        }
    }

    /// Sends the tokens that are due.
    pub(super) fn send_tokens(&mut self, now: Time) {
        if self.scheme.matching.token_at > now {
            return;
        }
        while let Some((is_next, index)) = self.scheme.matching.due(now) {
            self.send_token(now, is_next, index);
        }
        self.scheme.matching.find_token_at();
    }

    /// Sends a token to the sender of a match, for its message with the fewest missing packets, or finds out when to try again.
    fn send_token(&mut self, now: Time, is_next: bool, index: usize) {
        let config = &*self.config;
        let matching = &mut self.scheme.matching;
        let (hold_until, phase_end) = (matching.hold_until, matching.phase_end);
        let matched =
            if is_next { &mut matching.next[index] } else { &mut matching.current[index] };
        if hold_until > now {
            matched.token_at = hold_until;
            return;
        }
        let channels = if is_next { matched.channels.prompt } else { matched.channels.total };
        let slot = matching.wanting.first_of(matched.peer).filter(|_| channels > 0);
        let Some((_, slot)) = slot else {
            matched.token_at = Time::MAX;
            return;
        };
        let exchange = self.exchanges.get_mut(slot);
        let (peer, id, one_way) = (exchange.peer, exchange.arriving(), exchange.one_way);
        let State::Receiving(incoming) = &mut exchange.state else { return };
        let (window, lateness) = (config.window(channels), self.scheme.lateness);
        let (packet, number) = match incoming.next_token(now, window, lateness, config) {
            Next::Token { packet, number } => (packet, number),
            Next::Wait(until) => {
                (matched.token_at, matched.is_waiting) = (until, true);
                return;
            }
        };
        let interval = config.token_interval(channels);
        let late =
            Time::from_ticks(now.ticks().saturating_sub(interval.ticks().saturating_mul(CATCH_UP)));
        matched.token_at = matched.token_at.max(late).saturating_add(interval);
        matched.is_waiting = false;
        let priority = matched.priority;
        let rest = phase_end.since(now.min(phase_end)).saturating_add(config.token_slack);
        let lifetime = (rest.as_ns() / LIFETIME_UNIT_NS).min(u64::from(u16::MAX)) as u16;
        let missing = incoming.missing();
        if incoming.all_have_tokens() {
            // docs/protocols/dcpim.md#dcpim-tokens: it is matched again when its packets are late.
            matching.wanting.remove(slot);
            self.arm(slot);
        }
        let body = Body::Token { packet, number, missing, lifetime, priority };
        self.send_control(peer, id.0, one_way, body);
    }
}

impl Matching {
    /// Adds accepted channels.
    fn add(&mut self, now: Time, peer: HostId, channels: Channels, shortest: u32) {
        let token_at = if channels.prompt > 0 { now } else { Time::MAX };
        self.token_at = self.token_at.min(token_at);
        if let Some(matched) = self.next.iter_mut().find(|matched| matched.peer == peer) {
            matched.channels.total += channels.total;
            matched.channels.prompt += channels.prompt;
            if channels.prompt > 0 {
                (matched.token_at, matched.is_waiting) = (token_at, false);
            }
            return;
        }
        let priority = PROMPT_PRIORITY;
        self.next.push(Match { peer, channels, shortest, priority, token_at, is_waiting: false });
    }
}
