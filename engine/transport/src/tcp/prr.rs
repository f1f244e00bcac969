//! Proportional rate reduction: how the window shrinks during a recovery (RFC 6937, RFC 9937).

/// The state of one reduction. While it lasts, its limit replaces the congestion window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prr {
    /// `RecoverFS`: bytes in flight at the start.
    before: u64,
    /// Number of bytes that have arrived since then.
    delivered: u64,
    /// Number of bytes that were sent since then.
    out: u64,
    /// Maximum number of bytes in flight.
    limit: u64,
}

impl Prr {
    /// Starts a reduction with this number of bytes in flight, without SACKed bytes (RFC 9937, section 6, `unverified`).
    pub(super) fn new(in_flight: u64, mss: u64) -> Self {
        Self { before: in_flight.max(mss), delivered: 0, out: 0, limit: 0 }
    }

    pub(super) const fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) const fn sent(&mut self, bytes: u64) {
        self.out += bytes;
    }

    /// Handles an acknowledgement of `delivered` bytes, after which `pipe` bytes are in flight. `target` is the window
    /// after the reduction. `safe` is whether the left edge has moved and no further loss was found (`SafeACK`).
    pub(super) fn acknowledged(
        &mut self,
        delivered: u64,
        pipe: u64,
        target: u64,
        mss: u64,
        safe: bool,
    ) {
        if delivered == 0 && self.out > 0 {
            return;
        }
        self.delivered += delivered;
        let send = if pipe > target {
            let share = u128::from(self.delivered) * u128::from(target);
            let share = share.div_ceil(u128::from(self.before));
            u64::try_from(share).unwrap_or(u64::MAX).saturating_sub(self.out)
        } else {
            // The slow start reduction bound, or without progress the conservative reduction bound.
            let bound = self.delivered.saturating_sub(self.out).max(delivered);
            (bound + if safe { mss } else { 0 }).min(target - pipe)
        };
        // The first retransmission is sent in any case.
        let send = if self.out == 0 { send.max(mss) } else { send };
        self.limit = pipe + send;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;

    /// RFC 6937, section 3.2: 20 segments in flight, the first one lost, and Reno's half. After the
    /// retransmission, which is not held back, one segment is sent for each second acknowledgement. When half of them
    /// are in flight, each acknowledgement sends one.
    #[test]
    fn half_of_the_acknowledgements_send_a_segment() {
        let (mut prr, mut pipe) = (Prr::new(20 * MSS, MSS), 19 * MSS);
        let mut sent = Vec::new();
        for ack in 0..19 {
            pipe -= MSS;
            prr.acknowledged(MSS, pipe, 10 * MSS, MSS, false);
            while pipe + MSS <= prr.limit() {
                pipe += MSS;
                prr.sent(MSS);
                sent.push(ack);
            }
        }
        assert_eq!(sent, [0, 3, 5, 7, 9, 11, 13, 16, 17, 18]);
        assert_eq!(pipe, 10 * MSS);
    }

    /// Half of the window was lost, so that less is in flight than the target: with progress, two segments are sent
    /// for each acknowledged one, otherwise one.
    #[test]
    fn below_the_target_progress_is_slow_start() {
        for (safe, expected) in [(false, 1), (true, 2)] {
            let mut prr = Prr::new(20 * MSS, MSS);
            prr.acknowledged(MSS, 4 * MSS, 10 * MSS, MSS, safe);
            prr.sent(MSS);
            prr.acknowledged(MSS, 4 * MSS, 10 * MSS, MSS, safe);
            assert_eq!(prr.limit(), (4 + expected) * MSS);
            prr.acknowledged(20 * MSS, 9 * MSS, 10 * MSS, MSS, safe);
            assert_eq!(prr.limit(), 10 * MSS, "not above the target");
        }
    }

    #[test]
    fn the_first_retransmission_is_never_held_back() {
        let mut prr = Prr::new(20 * MSS, MSS);
        prr.acknowledged(1, 19 * MSS, 10 * MSS, MSS, false);
        assert_eq!(prr.limit(), 20 * MSS);
    }
}
