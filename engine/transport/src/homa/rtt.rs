//! Round trips per peer, measured by time stamps (slide "Dynamic Peer RTT Detection").
//!
//! The method is our choice, because the slides do not give one. A full DATA packet carries the time at which
//! it was handed to the link. The next GRANT to its sender echoes this time, with the duration for which the
//! receiver has held it. The difference is the time in the network: of a full packet in one direction and a
//! GRANT in the other. The time of a GRANT is echoed by the next full DATA packet in the same manner, so that
//! the receiver measures too.
//!
//! - Short packets and retransmissions carry no time: short ones are faster through store-and-forward switches,
//!   and an echo of a retransmission is ambiguous.
//! - Each host remembers the few times that it has sent and that were not echoed, and accepts no others, so
//!   that forged or repeated echoes are ignored ([`Probes`]). A peer can still report a wrong holding time.
//!   That harms only itself, because the measurement is used for this peer only, and no round trip is taken to
//!   be shorter than a packet takes on this host's own link.

use rackweave_core::{Span, Time};

/// Maximum number of outstanding times per peer. Our choice: one is sent per quarter of the minimum round trip,
/// so that they cover a round trip four times as long.
const MAX_PROBES: usize = 16;

/// Time after which an echo is no longer expected. Our choice: far longer than a round trip in a data center.
const PROBE_LIFE: Span = Span::from_ms(100);

/// The time as in a time stamp: nanoseconds modulo 2^32. It is never 0, which means that there is none.
pub(super) fn stamp(now: Time) -> u32 {
    (now.as_ns() as u32).max(1)
}

/// Nanoseconds from stamp `earlier` to `later`.
pub(super) const fn between(earlier: u32, later: u32) -> u32 {
    later.wrapping_sub(earlier)
}

/// A time span in nanoseconds, as in a header field.
pub(super) fn field_ns(span: Span) -> u32 {
    u32::try_from(span.as_ns()).unwrap_or(u32::MAX)
}

/// The times that were sent to a peer and not echoed, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Probes {
    sent: [Time; MAX_PROBES],
    len: usize,
}

impl Probes {
    /// The time stamp for a packet that is sent now; 0 if it must carry none, because less than `interval` has
    /// passed since the last one or too many are outstanding.
    pub(super) fn send(&mut self, now: Time, interval: Span) -> u32 {
        if self.len == MAX_PROBES {
            self.forget_before(|sent| now.since(sent) < PROBE_LIFE);
        }
        let last = self.sent[..self.len].last();
        if self.len == MAX_PROBES || last.is_some_and(|last| now.since(*last) < interval) {
            return 0;
        }
        self.sent[self.len] = now;
        self.len += 1;
        stamp(now)
    }

    /// Handles an echo: returns the exact time if it is outstanding. That time and all before it are then no
    /// longer outstanding.
    pub(super) fn answered(&mut self, now: Time, echo: u32) -> Option<Time> {
        let index = self.sent[..self.len].iter().position(|sent| stamp(*sent) == echo)?;
        let sent = self.sent[index];
        self.drop_first(index + 1);
        (now.since(sent) < PROBE_LIFE).then_some(sent)
    }

    /// Handles the echo of a time that the peer has advanced by its holding time. Returns the nanoseconds since
    /// the advanced time, if that lies between the oldest outstanding time and `now`.
    pub(super) fn answered_later(&mut self, now: Time, echo: u32) -> Option<u32> {
        let elapsed = between(echo, stamp(now));
        let age = |sent: Time| u64::from(field_ns(now.since(sent)));
        let before = self.sent[..self.len]
            .iter()
            .take_while(|sent| age(**sent) >= u64::from(elapsed))
            .count();
        let oldest = *self.sent[..before].first()?;
        self.drop_first(before);
        (now.since(oldest) < PROBE_LIFE).then_some(elapsed)
    }

    fn forget_before(&mut self, keep: impl Fn(Time) -> bool) {
        let gone = self.sent[..self.len].iter().take_while(|sent| !keep(**sent)).count();
        self.drop_first(gone);
    }

    fn drop_first(&mut self, n: usize) {
        self.sent.copy_within(n..self.len, 0);
        self.len -= n;
    }
}

/// The newest time that a peer has sent, to be echoed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PendingEcho {
    held: Option<(u32, Time)>,
}

impl PendingEcho {
    /// Records the time in an arriving packet. A time older than the recorded one is from a reordered or
    /// duplicate packet, and is ignored.
    pub(super) fn note(&mut self, now: Time, sent_at: u32) {
        const HALF: u32 = 1 << 31;
        if sent_at == 0 {
            return;
        }
        if let Some((newest, arrived)) = self.held
            && (sent_at == newest || between(newest, sent_at) >= HALF)
            && now.since(arrived) < PROBE_LIFE
        {
            return;
        }
        self.held = Some((sent_at, now));
    }

    /// Takes the time and its arrival, so that it is echoed only once.
    pub(super) fn take(&mut self) -> Option<(u32, Time)> {
        self.held.take()
    }
}

/// The minimum round trip of a sliding window, kept for its current half and for the half before.
#[derive(Clone, Copy, Debug)]
struct Minimum {
    current: Span,
    before: Span,
    since: Time,
}

impl Minimum {
    fn sample(&mut self, now: Time, rtt: Span, window: Span) {
        let half = Span::from_ticks((window.ticks() / 2).max(1));
        let age = now.since(self.since);
        if age >= half {
            // After more than a whole window without a sample, the old minimum is outdated.
            self.before = if age >= window { rtt } else { self.current };
            self.current = rtt;
            self.since = now;
        }
        self.current = self.current.min(rtt);
    }

    fn get(&self) -> Span {
        self.current.min(self.before)
    }
}

/// Measurements of the round trip to one peer.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    minimum: Option<Minimum>,
    /// The last round trip, of either direction.
    pub(super) recent: Span,
    /// The last round trip of a DATA packet that this host sent.
    pub(super) sending: Span,
    /// When that one was measured.
    pub(super) sending_at: Time,
    /// The moving average of the round trips of DATA.
    pub(super) average: Span,
    /// Number of measurements in both directions.
    pub(super) samples: u64,
}

impl Measured {
    /// `peer_rtt_min`; `None` before the first measurement.
    pub(super) fn min(&self) -> Option<Span> {
        self.minimum.as_ref().map(Minimum::get)
    }

    fn sample(&mut self, now: Time, rtt: Span, window: Span) {
        let new = Minimum { current: rtt, before: rtt, since: now };
        self.minimum.get_or_insert(new).sample(now, rtt, window);
        self.recent = rtt;
        self.samples += 1;
    }

    /// Records the time from a GRANT to its echo.
    pub(super) fn receiving(&mut self, now: Time, rtt: Span, window: Span) {
        self.sample(now, rtt, window);
    }

    /// Records the time from a DATA packet to its echo.
    pub(super) fn sending(&mut self, now: Time, rtt: Span, window: Span, average_shift: u32) {
        self.sample(now, rtt, window);
        self.average = if self.sending_at == Time::ZERO {
            rtt
        } else {
            Span::from_ticks(
                self.average.ticks() - (self.average.ticks() >> average_shift)
                    + (rtt.ticks() >> average_shift),
            )
        };
        self.sending = rtt;
        self.sending_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(n: u64) -> Time {
        Time::ZERO + Span::from_us(n)
    }

    #[test]
    fn only_outstanding_times_are_accepted_and_once() {
        let mut probes = Probes::default();
        let first = probes.send(us(10), Span::ZERO);
        let second = probes.send(us(20), Span::ZERO);
        assert_eq!([first, second], [10_000, 20_000]);
        assert_eq!(probes.answered(us(30), 15_000), None, "never sent");
        assert_eq!(probes.answered(us(30), first), Some(us(10)));
        assert_eq!(probes.answered(us(30), first), None, "a second time");
        let third = probes.send(us(30), Span::ZERO);
        assert_eq!(probes.answered(us(40), third), Some(us(30)));
        assert_eq!(probes.answered(us(40), second), None, "older than what came back");
    }

    #[test]
    fn few_times_are_outstanding_and_lost_ones_expire() {
        let mut probes = Probes::default();
        let sent = |probes: &mut Probes, from: u64| {
            (0..100).filter(|i| probes.send(us(from + i), Span::ZERO) != 0).count()
        };
        assert_eq!(sent(&mut probes, 0), 16);
        assert_eq!(sent(&mut probes, 1_000), 0);
        assert_eq!(sent(&mut probes, 100_000), 16, "after their life");
        // At most one time stamp per interval.
        let mut probes = Probes::default();
        let every = Span::from_us(10);
        assert_eq!((0..100).filter(|i| probes.send(us(*i), every) != 0).count(), 10);
        // An echo that comes too late is ignored.
        let late = probes.send(us(200), every);
        assert_eq!(probes.answered(us(101_000), late), None);
    }

    #[test]
    fn a_time_put_later_lies_between_what_was_sent_and_now() {
        let mut probes = Probes::default();
        for t in [100, 200, 300] {
            probes.send(us(t), Span::ZERO);
        }
        assert_eq!(probes.answered_later(us(400), 99_999), None, "before the first");
        assert_eq!(probes.answered_later(us(400), 400_001), None, "in the future");
        assert_eq!(probes.answered_later(us(400), 250_000), Some(150_000));
        assert_eq!(probes.answered_later(us(400), 250_000), None, "both before it are answered");
        assert_eq!(probes.answered_later(us(400), 300_000), Some(100_000));
    }

    #[test]
    fn stamps_wrap() {
        let wrap = 1_u64 << 32;
        let before = Time::from_ns(wrap - 5_000);
        let mut probes = Probes::default();
        let first = probes.send(before, Span::ZERO);
        assert_eq!(first, u32::MAX - 4_999);
        let now = before + Span::from_us(8);
        assert_eq!(probes.answered(now, first), Some(before));
        probes.send(before, Span::ZERO);
        assert_eq!(probes.answered_later(now, first.wrapping_add(7_000)), Some(1_000));
        let mut kept = PendingEcho::default();
        kept.note(before, first);
        kept.note(now, 3_000);
        assert_eq!(kept.take(), Some((3_000, now)));
        assert_eq!(kept.take(), None);
        assert_eq!(stamp(Time::from_ns(wrap)), 1, "0 is none");
    }

    #[test]
    fn copies_and_overtaken_packets_do_not_replace_what_is_kept() {
        let mut kept = PendingEcho::default();
        kept.note(us(10), 500);
        kept.note(us(20), 500);
        kept.note(us(21), 400);
        kept.note(us(22), 0);
        assert_eq!(kept.take(), Some((500, us(10))));
        // A peer that has restarted, and its clock with it, is accepted after a while.
        kept.note(us(30), 500);
        kept.note(us(100_030), 400);
        assert_eq!(kept.take(), Some((400, us(100_030))));
    }

    #[test]
    fn the_minimum_ages() {
        let window = Span::from_secs(10);
        let mut measured = Measured::default();
        assert_eq!(measured.min(), None);
        let mut rows = Vec::new();
        // Seconds, and the round trip in us; the path becomes longer after 2 s.
        for (at, rtt) in [(0, 12), (1, 10), (2, 11), (3, 50), (5, 50), (7, 50), (9, 50), (10, 50)] {
            measured.sending(us(at * 1_000_000), Span::from_us(rtt), window, 3);
            rows.push(measured.min().unwrap().as_us());
        }
        assert_eq!(rows, [12, 10, 10, 10, 10, 10, 10, 50]);
        // A shorter round trip counts at once; after a long pause only new ones count.
        measured.receiving(us(11_000_000), Span::from_us(30), window);
        assert_eq!(measured.min(), Some(Span::from_us(30)));
        measured.receiving(us(40_000_000), Span::from_us(60), window);
        assert_eq!(measured.min(), Some(Span::from_us(60)));
        assert_eq!(measured.samples, 10);
    }

    #[test]
    fn the_average_follows_by_eighths() {
        let mut measured = Measured::default();
        let window = Span::from_secs(10);
        let averages: Vec<u64> = [8_u64, 8, 16, 16]
            .iter()
            .zip(1..)
            .map(|(rtt, at)| {
                measured.sending(us(at), Span::from_us(*rtt), window, 3);
                measured.average.as_ns()
            })
            .collect();
        assert_eq!(averages, [8_000, 8_000, 9_000, 9_875]);
    }
}
