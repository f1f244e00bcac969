//! The sender's state of a message whose packets leave in order and are acknowledged up to a number: what has arrived, what is
//! repeated after a timeout, and when a silent receiver is asked.

use rackweave_core::{Span, Time};

use crate::exchange::Config;

/// A message as a sequence of packets. The scheme decides how many of them are in flight.
#[derive(Clone, Debug)]
pub struct Sequence {
    bytes: u32,
    packets: u32,
    /// Packets below this number have arrived.
    acked: u32,
    next: u32,
    /// One more than the largest number sent.
    sent_to: u32,
    /// The number of timeouts since the last progress.
    timeouts: u32,
    resend_at: Time,
    ask_at: Time,
    /// When the first packet was sent that has had no answer.
    silent_since: Option<Time>,
}

/// The payload of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its first byte.
    pub offset: u32,
    /// Its length in bytes.
    pub len: u16,
    /// Whether it was sent before.
    pub is_repeated: bool,
}

/// What is due at a [deadline](Sequence::deadline).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The receiver has been silent for the patience: the message has failed.
    pub is_silent: bool,
    /// All packets that have not arrived are sent again.
    pub has_timed_out: bool,
    /// The receiver is to be asked what has arrived.
    pub asks: bool,
}

impl Sequence {
    /// Returns a message of this many bytes.
    #[must_use]
    pub fn new(bytes: u32, config: &Config) -> Self {
        Self {
            bytes,
            packets: config.packets(bytes),
            acked: 0,
            next: 0,
            sent_to: 0,
            timeouts: 0,
            resend_at: Time::MAX,
            ask_at: Time::MAX,
            silent_since: None,
        }
    }

    /// Returns the length of the message in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns how many packets have not arrived.
    #[must_use]
    pub const fn left(&self) -> u32 {
        self.packets - self.acked
    }

    /// Returns whether there is a packet to send with this many in flight at most.
    #[must_use]
    pub fn may_send(&self, window: u32) -> bool {
        self.next < self.packets.min(self.acked.saturating_add(window))
    }

    /// Returns when something is [due](Self::due).
    #[must_use]
    pub fn deadline(&self) -> Time {
        self.resend_at.min(self.ask_at)
    }

    /// Takes the next packet, which is sent again if nothing arrives for `timeout`. Not to be called unless [`Self::may_send`].
    pub fn send(&mut self, now: Time, timeout: Span, config: &Config) -> Piece {
        let offset = self.next * config.max_payload;
        let len = config.max_payload.min(self.bytes - offset) as u16;
        let is_repeated = self.next < self.sent_to;
        self.next += 1;
        self.sent_to = self.sent_to.max(self.next);
        self.resend_at = self.resend_at.min(now.saturating_add(timeout));
        self.sends(now, config);
        Piece { offset, len, is_repeated }
    }

    /// Handles that all packets below a number have arrived, and returns whether that is progress. A number that cannot be is ignored: a
    /// receiver that has the whole message says so otherwise. A lower number than before is late, or after two timeouts that of a receiver
    /// that has restarted.
    pub fn acknowledge(&mut self, now: Time, acked: u32, timeout: Span) -> bool {
        if acked > self.sent_to || acked >= self.packets {
            return false;
        }
        self.silent_since = None;
        let has_restarted = acked < self.acked && self.timeouts > 1;
        if acked <= self.acked && !has_restarted {
            return false;
        }
        (self.acked, self.next, self.timeouts) = (acked, self.next.max(acked), 0);
        let in_flight = self.next > acked;
        self.resend_at = if in_flight { now.saturating_add(timeout) } else { Time::MAX };
        true
    }

    /// Returns what is due, and counts it as done.
    pub fn due(&mut self, now: Time, config: &Config) -> Due {
        let is_silent = self.silent_since.is_some_and(|since| now.since(since) >= config.patience);
        let has_timed_out = !is_silent && self.resend_at <= now;
        if has_timed_out {
            (self.next, self.timeouts) = (self.acked, self.timeouts.saturating_add(1));
            self.resend_at = Time::MAX;
        }
        let asks = !is_silent && self.ask_at <= now;
        if asks {
            self.sends(now, config);
        }
        Due { is_silent, has_timed_out, asks }
    }

    fn sends(&mut self, now: Time, config: &Config) {
        self.silent_since.get_or_insert(now);
        self.ask_at = now.saturating_add(config.patience / 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Span = Span::from_ms(1);

    fn ms(n: u64) -> Time {
        Time::ZERO + Span::from_ms(n)
    }

    fn sequence(packets: u32) -> (Sequence, Config) {
        let config = Config::USUAL;
        (Sequence::new(packets * config.max_payload - 1, &config), config)
    }

    #[test]
    fn packets_leave_in_order_and_the_last_one_is_shorter() {
        let (mut it, config) = sequence(2);
        assert!(it.may_send(1) && it.left() == 2);
        let piece = |offset, len: u32, is_repeated| Piece { offset, len: len as u16, is_repeated };
        let full = config.max_payload;
        assert_eq!(it.send(ms(0), TIMEOUT, &config), piece(0, full, false));
        assert!(!it.may_send(1) && it.may_send(2));
        assert_eq!(it.send(ms(0), TIMEOUT, &config), piece(full, full - 1, false));
        assert!(!it.may_send(9));
        assert!(it.due(ms(1), &config).has_timed_out);
        assert_eq!(it.send(ms(1), TIMEOUT, &config), piece(0, full, true));
    }

    #[test]
    fn only_progress_opens_the_window() {
        let (mut it, config) = sequence(9);
        for _ in 0..4 {
            let _ = it.send(ms(0), TIMEOUT, &config);
        }
        assert!(!it.acknowledge(ms(0), 5, TIMEOUT), "not sent");
        assert!(!it.acknowledge(ms(0), 0, TIMEOUT) && it.acknowledge(ms(0), 3, TIMEOUT));
        assert!(!it.acknowledge(ms(0), 2, TIMEOUT), "late");
        assert_eq!((it.left(), it.deadline()), (6, ms(1)));
        assert!(it.acknowledge(ms(0), 4, TIMEOUT), "nothing is in flight");
        assert!(it.deadline() > ms(1));
    }

    #[test]
    fn a_restarted_receiver_is_believed_after_two_timeouts() {
        let (mut it, config) = sequence(9);
        for _ in 0..4 {
            let _ = it.send(ms(0), TIMEOUT, &config);
        }
        assert!(it.acknowledge(ms(0), 3, TIMEOUT));
        for n in 1..3 {
            assert!(!it.acknowledge(ms(n), 1, TIMEOUT), "after {} timeouts", n - 1);
            assert!(it.due(ms(n), &config).has_timed_out);
            let _ = it.send(ms(n), TIMEOUT, &config);
        }
        assert!(it.acknowledge(ms(3), 1, TIMEOUT) && it.left() == 8);
    }

    #[test]
    fn a_silent_receiver_is_asked_and_then_given_up() {
        let (mut it, config) = sequence(2);
        let _ = it.send(ms(0), TIMEOUT, &config);
        let after = |part: u64| Time::ZERO + config.patience / 4 * part;
        let early = it.due(after(1), &config);
        assert!(early.asks && !early.is_silent);
        // An answer without progress is one.
        assert!(!it.acknowledge(after(1), 0, TIMEOUT));
        assert!(!it.due(after(4), &config).is_silent);
        assert!(it.due(after(8), &config).is_silent);
    }
}
