//! Whether the driver takes packets: a link that is down, or a NIC that backs up, must not keep messages for ever.

use rackweave_core::{Span, Time};

/// Checks in the time of one patience. A message fails at most one check late.
const CHECKS: u64 = 8;

/// The way out of a host. It is closed while the driver, which polls after each call if there is room, does not poll.
///
/// A message that waits for others of its host waits as long as it takes. One that nobody takes fails after the patience,
/// which counts from its submission, or from the first call after which the driver did not poll if that was later. (Our choice: no
/// protocol says so.)
#[derive(Debug)]
pub(crate) struct Outlet {
    patience: Span,
    polled_at: Time,
    /// The last call after which the driver would have polled.
    called_at: Time,
    /// The next check; [`Time::MAX`] if there is nothing to send.
    check_at: Time,
}

impl Outlet {
    pub(crate) const fn new(patience: Span) -> Self {
        Self { patience, polled_at: Time::ZERO, called_at: Time::ZERO, check_at: Time::MAX }
    }

    /// The driver polls for a packet.
    #[inline]
    pub(crate) const fn polled(&mut self, now: Time) {
        self.polled_at = now;
    }

    /// A message was submitted.
    #[inline]
    pub(crate) fn submitted(&mut self, now: Time) {
        if self.check_at == Time::MAX {
            self.called_at = now;
            self.check_at = now.saturating_add(self.interval());
        }
    }

    /// When [`Outlet::check`] is to be called.
    #[inline]
    pub(crate) const fn poll_timeout(&self) -> Time {
        self.check_at
    }

    /// Handles the timeout, if it is due. If the outlet has been closed for the patience, messages fail that have waited
    /// since the time that is returned, or for longer.
    pub(crate) fn check(&mut self, now: Time) -> Option<Time> {
        if now < self.check_at {
            return None;
        }
        // A driver that was stopped has not been refused meanwhile.
        let is_late = now.since(self.check_at) > self.interval();
        self.check_at = now.saturating_add(self.interval());
        if self.polled_at >= self.called_at || is_late {
            self.called_at = now;
            return None;
        }
        let since = Time::from_ticks(now.ticks().checked_sub(self.patience.ticks())?);
        (self.called_at <= since).then_some(since)
    }

    /// Ends the checks: there is nothing to send.
    pub(crate) const fn rest(&mut self) {
        self.check_at = Time::MAX;
    }

    fn interval(&self) -> Span {
        Span::from_ticks((self.patience.ticks() / CHECKS).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Span = Span::from_ms(80);

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_ms(ms)
    }

    /// Runs the checks up to `until`. The driver polls after each if the link is up.
    fn run(outlet: &mut Outlet, until: Time, is_up: impl Fn(Time) -> bool) -> Option<(Time, Time)> {
        while outlet.poll_timeout() <= until {
            let now = outlet.poll_timeout();
            if let Some(since) = outlet.check(now) {
                return Some((now, since));
            }
            if is_up(now) {
                outlet.polled(now);
            }
        }
        None
    }

    #[test]
    fn a_closed_outlet_is_found_after_the_patience_and_an_idle_one_is_not_closed() {
        let mut outlet = Outlet::new(PATIENCE);
        assert_eq!(outlet.poll_timeout(), Time::MAX);
        outlet.polled(at(5));
        // The driver polls once after each call, and nothing is sent for long.
        outlet.submitted(at(10));
        outlet.polled(at(10));
        assert_eq!(run(&mut outlet, at(500), |_| true), None);
        // Down from 505 ms on.
        assert_eq!(run(&mut outlet, at(10_000), |now| now < at(505)), Some((at(590), at(510))));
    }

    #[test]
    fn a_host_that_stood_still_has_not_been_refused() {
        let mut outlet = Outlet::new(PATIENCE);
        outlet.submitted(at(10));
        outlet.polled(at(10));
        assert_eq!(outlet.check(at(9_000)), None);
        outlet.polled(at(9_000));
        assert_eq!(run(&mut outlet, at(9_500), |_| true), None);
        // The link is full when the process is stopped for 20 s.
        assert_eq!(run(&mut outlet, at(9_530), |_| false), None);
        assert_eq!(outlet.check(at(29_500)), None);
        outlet.polled(at(29_500));
        assert_eq!(run(&mut outlet, at(29_800), |_| true), None);
        outlet.rest();
        assert_eq!(outlet.poll_timeout(), Time::MAX);
    }
}
