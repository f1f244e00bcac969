//! The tokens that a receiver has sent for one message: pHost and dcPIM.

use rackweave_core::{Span, Time};

/// Tokens are numbered in the order of their departure, and data carries the number of its token. Free packets count as the first ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens {
    /// The number of the next token.
    next: u32,
    /// One past the highest number that a packet carried.
    used: u32,
    /// A token whose data has not arrived: its number, and when it was sent.
    timed: Option<(u32, Time)>,
}

impl Tokens {
    /// Those of a message that may still send this number of packets without a token.
    pub(crate) const fn after_free(free: u32) -> Self {
        Self { next: free, used: 0, timed: None }
    }

    /// Number of tokens that are not known to have been used.
    pub(crate) const fn unused(&self) -> u32 {
        self.next.saturating_sub(self.used)
    }

    /// Counts all but the last `window` as used, so that one more may be sent, to see whether the sender uses it.
    pub(crate) const fn forgive(&mut self, window: u32) {
        self.used = self.next.saturating_sub(window);
    }

    /// Takes the number of a token that is sent now.
    pub(crate) fn send(&mut self, now: Time) -> u32 {
        let number = self.next;
        self.next = number.saturating_add(1);
        self.timed.get_or_insert((number, now));
        number
    }

    /// Notes the number of a token whose data has arrived; returns how long ago it was sent, if that is known. As data
    /// carries the number of its token, this is unambiguous for a packet that was sent several times, too.
    pub(crate) fn arrived(&mut self, now: Time, number: u32, window: u32) -> Option<Span> {
        // Numbers of tokens that were never sent are ignored.
        if number >= self.next {
            return None;
        }
        self.used = self.used.max(number + 1);
        let (timed, sent_at) = self.timed?;
        // Data of a token that is this much older was lost, or the token was.
        let is_lost = number > timed.saturating_add(window);
        if number == timed || is_lost {
            self.timed = None;
        }
        (number == timed).then(|| now.since(sent_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_used_in_any_order_and_one_is_timed() {
        let at = |us| Time::ZERO + Span::from_us(us);
        let mut tokens = Tokens::after_free(2);
        assert_eq!((tokens.unused(), tokens.arrived(at(1), 1, 4)), (2, None));
        assert_eq!(tokens.unused(), 0);
        assert_eq!([tokens.send(at(2)), tokens.send(at(3)), tokens.send(at(4))], [2, 3, 4]);
        assert_eq!((tokens.unused(), tokens.arrived(at(5), 5, 4)), (3, None), "it was never sent");
        assert_eq!((tokens.arrived(at(5), 3, 4), tokens.unused()), (None, 1), "a later one");
        assert_eq!(tokens.arrived(at(9), 2, 4), Some(Span::from_us(7)));
        // The next timed token is lost: a window later another is timed.
        for n in 5..10 {
            assert_eq!(tokens.send(at(n)), n as u32);
        }
        assert_eq!(tokens.arrived(at(11), 9, 3), None);
        assert_eq!(tokens.send(at(12)), 10);
        assert_eq!(tokens.arrived(at(14), 10, 3), Some(Span::from_us(2)));
        tokens.send(at(15));
        tokens.send(at(15));
        tokens.forgive(1);
        assert_eq!(tokens.unused(), 1);
    }
}
