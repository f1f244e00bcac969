//! The sender's half of the matching: requests of receivers, offers of channels, and what receivers accept.

use rackweave_core::{HostId, Time};
use rackweave_wire::dcpim::{Body, Channels, Header};

use super::Host;
use crate::common::{List, State};

/// What a receiver requests, as stored with the message that its request names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// The receiver's epoch.
    pub(super) epoch: u32,
    /// Missing packets of the shortest message that the receiver expects from this host.
    pub(super) missing: u32,
    pub(super) channels: Channels,
}

/// A host's state as a sender in the matching.
#[derive(Debug)]
pub(super) struct Offers {
    /// Messages with a request that has not been handled.
    requests: List,
    /// Reused by each stage: missing packets, age and slot of the messages with a request.
    candidates: Vec<(u32, u64, u32)>,
    /// The next stage, while there are requests.
    stage: u64,
    stage_at: Time,
    /// The epoch in which `matched` counts.
    epoch: u64,
    /// Channels that receivers have accepted for the data phase after this epoch.
    matched: u8,
    /// Channels that are in use in the current data phase: those of the last epoch.
    previous: u8,
    /// Channels of `matched` that are in use already.
    prompt: u8,
}

impl Default for Offers {
    fn default() -> Self {
        Self {
            requests: List::default(),
            candidates: Vec::new(),
            stage: 0,
            stage_at: Time::MAX,
            epoch: 0,
            matched: 0,
            previous: 0,
            prompt: 0,
        }
    }
}

impl Offers {
    /// When the next stage is; [`Time::MAX`] if there are no requests.
    pub(super) const fn next_at(&self) -> Time {
        self.stage_at
    }

    pub(super) fn leave(&mut self, slot: u32) {
        self.requests.remove(slot);
    }

    /// Counts in this epoch from now on.
    fn begin_epoch(&mut self, epoch: u64) {
        if epoch == self.epoch {
            return;
        }
        self.previous = if epoch == self.epoch + 1 { self.matched } else { 0 };
        (self.epoch, self.matched, self.prompt) = (epoch, 0, 0);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    #[cfg(test)]
    pub(super) fn check(&self, channels: u8) {
        assert!(self.matched <= channels && self.previous <= channels);
        assert!(self.prompt <= self.matched && self.candidates.is_empty());
        assert!(self.requests.is_empty() || self.stage_at < Time::MAX);
    }
}

impl Host {
    /// Handles RTS: the receiver's request is answered at the next stage.
    ///
    /// (docs/protocols/dcpim.md#dcpim-clocks: a request of a round that is over counts in the next one, as in the authors' DPDK implementation; their
    /// simulator, whose clocks are equal, drops it.)
    pub(super) fn handle_rts(&mut self, now: Time, from: HostId, id: u64, request: Request) {
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state else { return };
        outgoing.heard(now);
        outgoing.request = Some(request);
        let offers = &mut self.scheme.offers;
        if offers.requests.is_empty() {
            offers.stage = self.scheme.clock.next_sender_stage(now).max(offers.stage);
            offers.stage_at = self.scheme.clock.sender_stage_at(offers.stage);
        }
        offers.requests.push_back(slot);
    }

    /// Makes the offers that are due.
    pub(super) fn run_offers(&mut self, now: Time) {
        if self.scheme.offers.stage_at > now {
            return;
        }
        let clock = self.scheme.clock;
        let stage = self.scheme.offers.stage;
        self.scheme.offers.begin_epoch(clock.epoch_at(now));
        self.offer(clock.sender_stage_index(stage) < u64::from(self.config.srpt_rounds));
        let offers = &mut self.scheme.offers;
        (offers.stage, offers.stage_at) = (stage + 1, Time::MAX);
    }

    /// Offers the free channels to those who request them: to the shortest messages, or at random
    /// (docs/protocols/dcpim.md#dcpim-matching).
    fn offer(&mut self, shortest: bool) {
        let channels = self.config.channels;
        let offers = &mut self.scheme.offers;
        let mut candidates = core::mem::take(&mut offers.candidates);
        while let Some(slot) = offers.requests.pop_front() {
            let exchange = self.exchanges.get(slot);
            if let State::Sending(outgoing) = &exchange.state
                && let Some(request) = outgoing.request
            {
                candidates.push((request.missing, exchange.birth, slot));
            }
        }
        if shortest {
            candidates.sort_unstable_by(|a, b| b.cmp(a));
        }
        let mut free = channels - offers.matched;
        let mut idle = channels.saturating_sub(offers.previous).saturating_sub(offers.prompt);
        let sender_epoch = offers.epoch as u32;
        while free > 0 && !candidates.is_empty() {
            let next = candidates.len();
            let next = if shortest { next - 1 } else { self.scheme.draws.below(next) };
            let (_, _, slot) = candidates.swap_remove(next);
            let exchange = self.exchanges.get_mut(slot);
            let (peer, id, one_way) = (exchange.peer, exchange.local, exchange.one_way);
            let State::Sending(outgoing) = &mut exchange.state else { continue };
            let Some(Request { epoch, channels, .. }) = outgoing.request.take() else { continue };
            let total = channels.total.min(free);
            let prompt = channels.prompt.min(total).min(idle);
            if total == 0 {
                continue;
            }
            (free, idle) = (free - total, idle - prompt);
            let channels = Channels { total, prompt };
            let body = Body::Grant { epoch, sender_epoch, channels };
            self.send_control(peer, id, one_way, body);
        }
        candidates.clear();
        self.scheme.offers.candidates = candidates;
    }

    /// Handles ACCEPT: the channels are in use from the next data phase on. Channels that are no longer free are
    /// released; with equal clocks, a stage sees all that was accepted of the last one, and there are none.
    pub(super) fn handle_accept(
        &mut self,
        now: Time,
        from: HostId,
        header: &Header,
        epoch: u32,
        sender_epoch: u32,
        channels: Channels,
    ) {
        let id = header.id.get();
        let Some(slot) = self.outgoing_slot(from, id) else { return };
        let State::Sending(outgoing) = &mut self.exchanges.get_mut(slot).state else { return };
        outgoing.heard(now);
        let now_epoch = self.scheme.clock.epoch_at(now);
        let most = self.config.channels;
        let offers = &mut self.scheme.offers;
        offers.begin_epoch(now_epoch);
        // The last round of an epoch is accepted when the next one has begun. What comes even later counts in the present epoch: with a
        // round trip above an epoch, nothing would be matched otherwise.
        let is_last = sender_epoch == (now_epoch as u32).wrapping_sub(1);
        let counted = if is_last { &mut offers.previous } else { &mut offers.matched };
        let total = channels.total.min(most - *counted);
        *counted += total;
        let prompt = channels.prompt.min(total);
        if !is_last {
            offers.prompt += prompt;
        }
        if total < channels.total {
            let excess = Channels {
                total: channels.total - total,
                prompt: channels.prompt.saturating_sub(prompt),
            };
            self.send_control(from, id, header.one_way, Body::Release { epoch, channels: excess });
        }
    }
}
