//! When a stream's peer is asked, and when it is given up.

use rackweave_core::{FailReason, Span, Time};
use rackweave_wire::homa::stream::flags;

use super::{Host, Stream};

/// Answers without news double the time until the next question so often: a stream that waits for its
/// peer's application costs little, and what was forgotten is still found out in time.
pub(super) const MAX_FRUITLESS: u8 = 3;

/// What a stream waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waits {
    /// Bytes that it has allowed have not come.
    missing: bool,
    /// The peer has not acknowledged or allowed.
    unacked: bool,
    /// When the peer is to be asked, if nothing comes.
    ask_at: Time,
}

impl Host {
    /// This many ticks.
    pub(super) fn ticks(&self, ticks: u32) -> Span {
        Span(self.config.tick.0.saturating_mul(u64::from(ticks)))
    }

    /// Has the stream looked at, at the latest at that time.
    pub(super) fn wake_stream(&mut self, slot: u32, at: Time) {
        if at < Time::MAX {
            self.stream_timers.set_earlier(slot, at);
        }
    }

    /// Has the stream looked at when something of it may be due.
    pub(super) fn wake_stream_for(&mut self, now: Time, slot: u32) {
        let Some(stream) = self.stream(slot) else { return };
        // Later questions are found when this comes up.
        let ask_at = now.saturating_add(self.ticks(u32::from(self.config.resend_ticks)));
        let at = ask_at.min(stream.credit_due);
        self.wake_stream(slot, at);
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
        let mut ask_at = stream.heard_at.saturating_add(self.ticks(self.ping_after(slot)));
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

    /// The client asks first; the server, whose client may be gone, half as much later. Not all at
    /// once: streams that were opened together do not ask together.
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
        self.wake_stream(slot, at);
    }

    fn ask_peer(&mut self, now: Time, slot: u32, waits: Waits) {
        let Some(stream) = self.stream_mut(slot) else { return };
        stream.asked += 1;
        stream.asked_at = now;
        if waits.missing {
            self.send_missing(slot);
        }
        if waits.unacked || !waits.missing {
            self.send_empty(now, slot, flags::ASK);
        }
    }
}
