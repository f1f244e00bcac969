//! Message ids.

use rackweave_core::MessageId;

use crate::clock::realtime_ns;
use crate::driver::Platform;

/// 2020-01-01, in seconds since 1970.
const EPOCH_S: u64 = 1_577_836_800;

/// Random bits, the same in all ids since a start of the host.
const RANDOM_BITS: u32 = 13;

/// Bits for microseconds since 2020, which last until 2055.
const TIME_BITS: u32 = 50;

/// Generates message ids below 2^63 that increase, also across restarts of a host, and differ between hosts.
///
/// An id is a counter above 13 bits that are random and constant for one start of a host: two hosts whose bits differ never
/// use the same id. The counter begins with the microseconds since 2020, so that a host that sends fewer than a million
/// messages a second continues above its earlier ids after a restart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids {
    last: u64,
}

impl Ids {
    pub(crate) fn new() -> Self {
        Self { last: first_id() }
    }

    /// The same at any platform.
    pub(crate) fn at(platform: &mut impl Platform) -> Self {
        let random = platform.random() as u64;
        Self::starting_at(platform.realtime_ns(), random)
    }

    const fn starting_at(realtime_ns: u64, random: u64) -> Self {
        let us = (realtime_ns / 1000).saturating_sub(EPOCH_S * 1_000_000);
        let count = us & ((1 << TIME_BITS) - 1);
        Self { last: count << RANDOM_BITS | random & ((1 << RANDOM_BITS) - 1) }
    }

    pub(crate) const fn next(&mut self) -> MessageId {
        self.last += 1 << RANDOM_BITS;
        MessageId::request(self.last)
    }
}

/// A number that depends on the time of the start and is unlikely to be used by another host.
pub(crate) fn first_id() -> u64 {
    Ids::starting_at(realtime_ns(), crate::random() as u64).last
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_000_000_123_456_789;

    #[test]
    fn hosts_that_start_together_use_different_ids() {
        let mut ids: Vec<_> = (0..64).map(|random| Ids::starting_at(NOW, random * 77)).collect();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            for ids in &mut ids {
                assert!(seen.insert(ids.next().0));
            }
        }
        // Another host starts half a millisecond later, within the range of the others' counters.
        let mut late = Ids::starting_at(NOW + 500_000, 5);
        for _ in 0..1000 {
            assert!(seen.insert(late.next().0));
        }
    }

    #[test]
    fn a_restarted_host_continues_above_its_earlier_ids() {
        let mut before = Ids::starting_at(NOW, u64::MAX);
        let mut last = MessageId(0);
        for _ in 0..100_000 {
            let id = before.next();
            assert!(id > last && !id.is_response());
            last = id;
        }
        // It took a fifth of a second.
        let mut after = Ids::starting_at(NOW + 200_000_000, 0);
        assert!(after.next() > last);
    }

    #[test]
    fn numbers_stay_below_two_to_the_63() {
        // The end of the range, and a clock that was never set.
        let last = (EPOCH_S + 35 * 365 * 86_400) * 1_000_000_000;
        for ns in [last, 0, u64::MAX] {
            let mut ids = Ids::starting_at(ns, u64::MAX);
            assert!(ids.next().number() < 1 << 63);
        }
        assert!(Ids::starting_at(last, 0).next() > Ids::starting_at(NOW, 0).next());
    }
}
