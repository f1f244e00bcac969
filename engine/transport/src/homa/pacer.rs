//! A pacer that uses round trips (slide "Future Improvements": "when RTT is low, although GRANT is not
//! received, try to send some packets at a relatively low rate. When RTT is high, transmit less packets to
//! NIC"). Both rates are our choice, because no such pacer was published.

use rackweave_core::{Span, Time};

use super::Host;
use super::rpc::State;

/// The times at which the pacer permits packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pacer {
    /// When a packet may be sent without a grant; `None` if no message waits for one.
    trickle_at: Option<Time>,
    /// When the last packet was sent without a grant.
    trickled: Option<Time>,
    /// The earliest time of new data, after a packet to a congested peer.
    resume_at: Option<Time>,
}

impl Pacer {
    pub(super) fn next_timeout(&self) -> Option<Time> {
        match (self.trickle_at, self.resume_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

impl Host {
    /// When the pacer expires; without one its state is not read.
    #[inline]
    pub(super) fn pacer_timeout(&self) -> Option<Time> {
        if self.config.leverage.rtt_pacer { self.leverage.pacer.next_timeout() } else { None }
    }

    /// Whether new data must wait because the last packet was for a congested peer.
    #[inline]
    pub(super) fn backs_off(&mut self, now: Time) -> bool {
        if !self.config.leverage.rtt_pacer {
            return false;
        }
        match self.leverage.pacer.resume_at {
            Some(at) if at > now => true,
            Some(_) => {
                self.leverage.pacer.resume_at = None;
                false
            }
            None => false,
        }
    }

    /// Records that new data for this peer have been handed to the link.
    pub(super) fn note_sent(&mut self, now: Time, peer: u32, wire_bytes: u32) {
        let config = &self.config;
        if !config.leverage.rtt_pacer {
            return;
        }
        let packets = u64::from(config.leverage.back_off_packets);
        let congested = self.peers.get_mut(peer).path.as_deref().is_some_and(|path| path.congested);
        if congested && packets > 0 {
            let room = config.link.span_of(u64::from(wire_bytes).saturating_mul(packets + 1));
            self.leverage.pacer.resume_at = Some(now.saturating_add(room));
        }
    }

    /// Arms the pacer when there is nothing to send and a message that waits for a grant may continue without
    /// one.
    pub(super) fn arm_trickle(&mut self, now: Time) {
        if !self.config.leverage.rtt_pacer
            || self.leverage.pacer.trickle_at.is_some()
            || self.waiting_for_grant(now).is_none()
        {
            return;
        }
        // At `trickle_share` of the link.
        let bytes = u64::from(self.config.full_wire_bytes()) * 1000;
        let every = self.config.link.span_of(bytes / u64::from(self.config.leverage.trickle_share));
        let next = self.leverage.pacer.trickled.map_or(now, |last| last.saturating_add(every));
        // Not at `now`: a timeout must lie in the future, and a grant may arrive before.
        self.leverage.pacer.trickle_at = Some(next.max(now.saturating_add(every)));
    }

    /// Handles the pacer's timeouts.
    pub(super) fn handle_pacer_timeout(&mut self, now: Time) {
        if self.leverage.pacer.resume_at.is_some_and(|at| at <= now) {
            self.leverage.pacer.resume_at = None;
        }
        if self.leverage.pacer.trickle_at.is_some_and(|at| at <= now) {
            self.leverage.pacer.trickle_at = None;
            if let Some((slot, granted)) = self.waiting_for_grant(now) {
                self.leverage.pacer.trickled = Some(now);
                self.allow(slot, granted.saturating_add(self.config.max_payload), None);
            }
        }
    }

    /// The message with the fewest remaining bytes among messages that wait only for a grant on a path with a
    /// recent short round trip, and its current limit.
    ///
    /// It visits all RPCs, as a tick does, but only when the link is idle.
    fn waiting_for_grant(&mut self, now: Time) -> Option<(u32, u32)> {
        let factor = u64::from(self.config.leverage.scheduled_factor);
        let fresh = |at: Time| at > Time::ZERO && now.since(at) <= Span::from_ms(1);
        let mut best: Option<(u32, u32, u32)> = None;
        let mut next = 0;
        while let Some(slot) = self.rpcs.next_used(next) {
            next = slot + 1;
            let rpc = self.rpcs.get(slot);
            let State::Sending(outgoing) = &rpc.state else { continue };
            if outgoing.is_ready() || outgoing.needs_resend() || outgoing.next >= outgoing.length {
                continue;
            }
            let left = outgoing.length - outgoing.next;
            if best.is_some_and(|(least, ..)| least <= left) {
                continue;
            }
            let granted = outgoing.granted;
            let Some(path) = self.peers.get_mut(rpc.peer).path.as_deref() else { continue };
            let measured = &path.measured;
            let is_short = (measured.min())
                .is_some_and(|min| measured.sending.ticks() < min.ticks().saturating_mul(factor));
            if is_short && fresh(measured.sending_at) {
                best = Some((left, slot, granted));
            }
        }
        best.map(|(_, slot, granted)| (slot, granted))
    }
}
