//! Timers of streams: when the peer is asked, and when the stream fails.

use rackweave_core::{FailReason, Span, Time};
use rackweave_wire::homa::stream::flags;

use super::{Host, Stream};

/// Maximum number of times that the interval between requests is doubled, once for each answer without
/// progress. Our choice: a stream that waits for its peer's application then costs an eighth of the packets,
/// and a peer that has lost its state is still detected soon.
pub(super) const MAX_FRUITLESS: u8 = 3;

/// What a stream waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waits {
    /// Whether bytes that this end has allowed have not arrived.
    missing: bool,
    /// Whether the peer has not acknowledged bytes, or not allowed them.
    unacked: bool,
    /// When the peer is asked, if no packet arrives before.
    ask_at: Time,
}

impl Host {
    /// The duration of this number of ticks.
    pub(super) fn ticks(&self, ticks: u32) -> Span {
        self.config.tick.saturating_mul(u64::from(ticks))
    }

    /// Arms the stream's timer for `at`, unless it is armed for an earlier time.
    pub(super) fn arm_stream_timer(&mut self, slot: u32, at: Time) {
        if at < Time::MAX {
            self.stream_timers.set_earlier(slot, at);
        }
    }

    /// Arms the stream's timer for its next possible packet.
    pub(super) fn rearm_stream_timer(&mut self, now: Time, slot: u32) {
        let Some(stream) = self.stream(slot) else { return };
        // If the request is due later, that is found when this timer expires.
        let ask_at = now.saturating_add(self.ticks(u32::from(self.config.resend_ticks)));
        let at = ask_at.min(stream.credit_due);
        self.arm_stream_timer(slot, at);
    }

    pub(in crate::homa) fn handle_stream_timers(&mut self, now: Time) {
        while let Some((at, slot)) = self.stream_timers.first()
            && at <= now
        {
            self.stream_timers.remove(slot);
            self.stream_timeout(now, slot);
        }
    }

    fn waits(&self, slot: u32, stream: &Stream) -> Option<Waits> {
        if !stream.started {
            return None;
        }
        let config = &self.config;
        let missing = stream.receive.incoming.in_flight() > 0;
        let unacked = stream.send.waits();
        let patience = self.ticks(u32::from(config.resend_ticks));
        let mut ask_at = stream.last_received.saturating_add(self.ticks(self.ping_after(slot)));
        if missing {
            ask_at = ask_at.min(stream.receive.moved_at.saturating_add(patience));
        }
        if unacked {
            ask_at = ask_at.min(stream.send.moved_at.saturating_add(patience));
        }
        if stream.asked_at > Time::ZERO {
            let id = self.rpcs.get(slot).id;
            let interval = u32::from(config.resend_interval.max(1)) << stream.fruitless;
            let gap = interval.saturating_add(u32::from(config.spread(id, stream.asked)));
            ask_at = ask_at.max(stream.asked_at.saturating_add(self.ticks(gap)));
        }
        Some(Waits { missing, unacked, ask_at })
    }

    /// Number of silent ticks after which an idle stream's peer is asked. At the server it is longer by half,
    /// so that the client usually asks first, and the server asks only if its client may be gone. A
    /// pseudo-random addend keeps streams that were opened together from asking together.
    fn ping_after(&self, slot: u32) -> u32 {
        let id = self.rpcs.get(slot).id;
        let ticks = self.config.streams.ping_ticks;
        let spread = (rackweave_core::rng::mix(id & !1) % (u64::from(ticks) / 4 + 1)) as u32;
        let server = if id & 1 == 1 { ticks / 2 } else { 0 };
        ticks.saturating_add(spread).saturating_add(server)
    }

    fn stream_timeout(&mut self, now: Time, slot: u32) {
        let Some(stream) = self.stream(slot) else { return };
        if stream.deadline <= now {
            return self.fail_stream(now, slot, FailReason::Deadline);
        }
        if stream.credit_due <= now {
            self.queue_credit(now, slot);
            if let Some(stream) = self.stream_mut(slot) {
                stream.credit_due = Time::MAX;
            }
        }
        let Some(stream) = self.stream(slot) else { return };
        let (deadline, credit_due) = (stream.deadline, stream.credit_due);
        let mut at = deadline.min(credit_due);
        if let Some(mut waits) = self.waits(slot, stream) {
            if waits.ask_at <= now {
                if stream.asked >= self.config.timeout_resends {
                    return self.fail_stream(now, slot, FailReason::PeerSilent);
                }
                self.ask_peer(now, slot, waits);
                let Some(stream) = self.stream(slot) else { return };
                if let Some(next) = self.waits(slot, stream) {
                    waits = next;
                }
            }
            at = at.min(waits.ask_at);
        }
        self.arm_stream_timer(slot, at);
    }

    fn ask_peer(&mut self, now: Time, slot: u32, waits: Waits) {
        let Some(stream) = self.stream_mut(slot) else { return };
        stream.asked += 1;
        stream.asked_at = now;
        if waits.missing {
            self.recovery.timeouts += 1;
            self.send_missing(slot);
        }
        if waits.unacked || !waits.missing {
            self.send_empty(now, slot, flags::ASK);
        }
    }
}
