//! A limit to the public-key operations that datagrams of anybody can cause.

use core::fmt;

use rackweave_core::{Span, Time};

/// Token buckets. Addresses share them by a keyed hash, so that memory is bounded and a flood from a few addresses leaves the
/// others theirs, as in stochastic fair queueing (McKenney 1990). Their number is our choice.
const BUCKETS: usize = 256;

/// The interval at which a bucket gets a token. All buckets together: 8192 operations a second, a fraction of a processor's.
const INTERVAL: Span = Span::from_us(31_250);

/// Tokens of a full bucket. A handshake takes two, one for the offer and one for the acceptance.
const BURST: u64 = 64;

/// Token buckets by address, each kept as the time at which it is full again (the virtual scheduling algorithm of ITU-T I.371).
pub(crate) struct Limit {
    full_at: Box<[Time; BUCKETS]>,
}

impl Default for Limit {
    fn default() -> Self {
        Self { full_at: Box::new([Time::ZERO; BUCKETS]) }
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit").finish_non_exhaustive()
    }
}

impl Limit {
    /// Takes a token of the bucket of an address, if there is one. `secret` makes it unpredictable which addresses share a bucket.
    pub(crate) fn take(&mut self, now: Time, secret: &[u8; 32], address: &[u8]) -> bool {
        let hash = blake3::keyed_hash(secret, address);
        let full_at = &mut self.full_at[usize::from(hash.as_bytes()[0])];
        let after = (*full_at).max(now) + INTERVAL;
        let allowed = after <= now + INTERVAL * BURST;
        if allowed {
            *full_at = after;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let (mut limit, secret) = (Limit::default(), [1; 32]);
        let mut now = Time::ZERO + Span::from_secs(5);
        let mut burst = |now: Time, address: &[u8]| {
            (0..1000).filter(|_| limit.take(now, &secret, address)).count()
        };
        assert_eq!(burst(now, b"a"), 64);
        assert_eq!(burst(now, b"a"), 0);
        now += Span::from_ms(100);
        assert_eq!(burst(now, b"a"), 3);
        let others = (0..=255_u8).filter(|address| burst(now, &[*address]) > 0).count();
        assert!(others > 100, "{others} buckets are in use");
        now += Span::from_secs(3);
        assert_eq!(burst(now, b"a"), 64, "not more than a full bucket");
    }
}
