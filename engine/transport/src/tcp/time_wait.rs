//! What is remembered of connections that have ended, for as long as segments of them may arrive: the purpose of
//! TIME-WAIT (RFC 9293, 3.6.1).

use core::hash::Hash;
use std::collections::VecDeque;

use rackweave_core::{Span, Time};
use rustc_hash::FxHashMap;

use super::config::Config;

/// Values that are kept for a time, within a limit of their number (as Linux's `tcp_max_tw_buckets`).
#[derive(Debug)]
pub(super) struct TimeWait<K, V> {
    values: FxHashMap<K, (Time, V)>,
    /// The keys with the times of their insertion, oldest first. A key that was inserted again is in it twice.
    by_age: VecDeque<(Time, K)>,
}

impl<K: Copy + Eq + Hash, V> TimeWait<K, V> {
    pub(super) fn new() -> Self {
        Self { values: FxHashMap::default(), by_age: VecDeque::new() }
    }

    /// The value of a key for which it is still kept.
    pub(super) fn get(&self, now: Time, key: &K, config: &Config) -> Option<&V> {
        let (at, value) = self.values.get(key)?;
        (now.since(*at) <= linger(config)).then_some(value)
    }

    pub(super) fn contains(&self, now: Time, key: &K, config: &Config) -> bool {
        self.get(now, key, config).is_some()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_age.len()
    }

    /// Keeps a value for [`linger`]. The oldest one goes if there are as many as a host may have connections. What has
    /// expired is removed here, so that its memory stays until the next connection ends, but it is not found any more. All
    /// segments that had arrived by `handled` were handled.
    pub(super) fn insert(
        &mut self,
        (now, handled): (Time, Time),
        key: K,
        value: V,
        config: &Config,
    ) {
        let kept = linger(config);
        while let Some(&(at, oldest)) = self.by_age.front()
            && (handled.since(at) > kept || self.by_age.len() >= config.max_connections as usize)
        {
            self.by_age.pop_front();
            if self.values.get(&oldest).is_some_and(|value| value.0 == at) {
                self.values.remove(&oldest);
            }
        }
        self.values.insert(key, (now, value));
        self.by_age.push_back((now, key));
    }
}

/// The time for which a connection is remembered: as long as its peer may retransmit. RFC 9293 has twice the maximum
/// lifetime of a segment, for an unknown network; in a data center, a peer's retransmissions last longer than that.
fn linger(config: &Config) -> Span {
    let longest = config.max_rto.max(config.min_rto).max(config.initial_rto);
    let all = u128::from(longest.ticks()) * u128::from(config.max_retries.saturating_add(1));
    Span::from_ticks(u64::try_from(all).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_for_a_time_and_within_a_limit() {
        let config = Config { max_connections: 3, ..Config::tcp() };
        let kept = linger(&config);
        assert_eq!(kept, Span::from_ms(16 * 100));
        let at = |ms| Time::ZERO + Span::from_ms(ms);
        let mut ended = TimeWait::new();
        ended.insert((at(0), at(0)), 1, 'a', &config);
        ended.insert((at(1), at(1)), 2, 'b', &config);
        ended.insert((at(2), at(2)), 1, 'c', &config);
        // The first entry goes, but not the key's second one.
        ended.insert((at(3), at(3)), 3, 'd', &config);
        assert_eq!(
            [1, 2, 3].map(|key| ended.get(at(3), &key, &config).copied()),
            [Some('c'), Some('b'), Some('d')]
        );
        ended.insert((at(4), at(4)), 4, 'e', &config);
        assert_eq!((ended.get(at(4), &2, &config), ended.len()), (None, 3));
        let now = at(4) + kept;
        ended.insert((now, now), 5, 'f', &config);
        assert_eq!((ended.get(now, &3, &config), ended.get(now, &4, &config)), (None, Some(&'e')));
        // Nothing is inserted when the time is over.
        let now = at(5) + kept;
        assert_eq!((ended.get(now, &4, &config), ended.get(now, &5, &config)), (None, Some(&'f')));
        ended.insert((now, now), 6, 'g', &config);
        assert_eq!((ended.get(now, &5, &config), ended.len()), (Some(&'f'), 2));
    }
}
