//! The delay of data after its request, by which Polo's timeouts are prolonged. (All of this is our choice: the slides
//! give one timeout, and no queue of theirs is longer.)

use rackweave_core::{Span, Time};

use super::Config;
use crate::common::Lateness;

/// How much later than [`Config::rto`] data arrives. Retransmissions have their own priority in switches, and so their own
/// delay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delays {
    first: Lateness,
    retransmit: Lateness,
}

impl Delays {
    /// Records the delay of a transmission.
    pub(super) fn sample(&mut self, delay: Span, retransmit: bool, config: &Config) {
        let lateness = if retransmit { &mut self.retransmit } else { &mut self.first };
        lateness.sample(delay, config.rto);
    }

    /// The time by which timeouts are prolonged.
    pub(super) fn allowance(self) -> Span {
        self.first.allowance().max(self.retransmit.allowance())
    }

    /// A timeout of the slides, prolonged.
    pub(super) fn prolong(self, timeout: Span) -> Span {
        timeout.saturating_add(self.allowance())
    }
}

/// A packet whose transmission is timed: for each flow at most one first transmission and one retransmission.
///
/// Data carries a flag that distinguishes the two. A packet has exactly one first transmission, triggered by the driving
/// packet, or by a loss packet if the driving packet was lost. Only in the former case the time since the driving
/// packet is a delay. This is known if no loss packet was sent, or if the sender has confirmed that it had sent the
/// packet when the loss packet arrived: by retransmitting it, or by an adjoint packet before. Retransmissions arrive in
/// the order of the loss packets that triggered them. If there were several of these, the first retransmission to
/// arrive belongs to the first of them if another one follows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    number: u32,
    since: Time,
    /// Whether the retransmission is timed, and not the first transmission.
    retransmit: bool,
    /// Whether a loss packet has requested it after that.
    requested_again: bool,
    /// Whether the sender had sent it before a loss packet requested it.
    confirmed: bool,
    /// The delay of the transmission, which has arrived and is not confirmed.
    delay: Option<Span>,
}

impl Timed {
    /// A packet for which a driving packet is sent now.
    pub(super) const fn driven(now: Time, number: u32) -> Self {
        let (retransmit, requested_again, confirmed) = (false, false, false);
        Self { number, since: now, retransmit, requested_again, confirmed, delay: None }
    }

    /// A packet for which a loss packet is sent now.
    pub(super) const fn lost(now: Time, number: u32) -> Self {
        Self { retransmit: true, ..Self::driven(now, number) }
    }

    /// Whether the retransmission is timed.
    pub(super) const fn is_retransmission(&self) -> bool {
        self.retransmit
    }

    /// How long ago the timing began.
    pub(super) const fn age(&self, now: Time) -> Span {
        now.since(self.since)
    }

    /// A packet that the sender had sent when it sent an adjoint packet, which arrives now: with its priority it overtakes the
    /// data.
    pub(super) const fn announced(now: Time, number: u32) -> Self {
        Self { confirmed: true, ..Self::driven(now, number) }
    }

    /// Handles a loss packet for this range of packets.
    pub(super) fn requested(&mut self, first: u32, count: u32) {
        self.requested_again |= (first..first.saturating_add(count)).contains(&self.number);
    }

    /// Handles an adjoint packet, which reports the number of sent packets.
    pub(super) const fn sent(&mut self, sent: u32) {
        self.confirmed |= sent > self.number && !self.requested_again;
    }

    /// Handles an arriving packet: returns the delay, if it is known now, and whether the timing is over. First
    /// transmissions are sent in order, so that one with a number higher by more than `reordering` indicates a loss.
    pub(super) fn arrived(
        &mut self,
        now: Time,
        number: u32,
        retransmit: bool,
        reordering: u32,
    ) -> (Option<Span>, bool) {
        if number != self.number {
            let overtaken = number > self.number.saturating_add(reordering);
            return (None, overtaken && !retransmit && !self.retransmit);
        }
        if retransmit && (!self.retransmit || self.delay.is_some()) {
            self.confirmed = true;
            return (self.delay, self.delay.is_some());
        }
        if retransmit != self.retransmit || self.delay.is_some() {
            // A first transmission says nothing of a retransmission, or the network has duplicated it.
            return (None, false);
        }
        let delay = now.since(self.since);
        if self.confirmed || !self.requested_again {
            return (Some(delay), true);
        }
        self.delay = Some(delay);
        (None, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(us: u64) -> Time {
        Time::from_ns(us * 1_000)
    }

    /// What is known of packet 5 after events at 10, 20, ... us. `d`: the first transmission arrives; `r`: a
    /// retransmission. `L`: a loss packet is sent for it; `l`: one for other packets. `A`: an adjoint packet arrives by
    /// which it was sent; `a`: one by which it was not. `n`: a later packet arrives; `z`: a much later one.
    /// The result is the delay in us, `-` if the timing ended without one, `?` if it has not ended.
    fn result(mut timed: Timed, events: &str) -> String {
        for (n, event) in (1..).zip(events.chars()) {
            let now = at(10 * n);
            let (delay, over) = match event {
                'd' => timed.arrived(now, 5, false, 8),
                'r' => timed.arrived(now, 5, true, 8),
                'n' => timed.arrived(now, 13, false, 8),
                'z' => timed.arrived(now, 14, false, 8),
                'L' => {
                    timed.requested(4, 2);
                    continue;
                }
                'l' => {
                    timed.requested(6, 2);
                    continue;
                }
                event => {
                    timed.sent(if event == 'A' { 6 } else { 5 });
                    continue;
                }
            };
            if let Some(delay) = delay {
                assert!(over);
                return delay.as_us().to_string();
            }
            if over {
                return "-".to_owned();
            }
        }
        "?".to_owned()
    }

    #[test]
    fn only_unambiguous_delays_are_known() {
        for (events, expected) in [
            ("d", "10"),
            ("nd", "20"),
            ("ld", "20"),
            ("zd", "-"),
            // The loss packet may have triggered the first transmission.
            ("Ld", "?"),
            ("aLd", "?"),
            ("LAd", "?"),
            ("LLd", "?"),
            // It has not, as the sender had sent the packet before.
            ("Lrd", "30"),
            ("Ldr", "20"),
            ("ALd", "30"),
            ("LLrd", "40"),
            // The first transmission is lost.
            ("Lrz", "-"),
            ("Lr", "?"),
            // Duplicates by the network.
            ("Lddr", "20"),
            ("Lrrd", "40"),
        ] {
            assert_eq!(result(Timed::driven(at(0), 5), events), expected, "{events}");
        }
        for (events, expected) in [("d", "10"), ("Ld", "20"), ("Lrd", "30"), ("z", "-")] {
            assert_eq!(result(Timed::announced(at(0), 5), events), expected, "{events}");
        }
        for (events, expected) in [
            ("r", "10"),
            ("dzr", "30"),
            // Either loss packet may have triggered the retransmission.
            ("Lr", "?"),
            ("Lrd", "?"),
            // Both have arrived.
            ("Lrr", "20"),
            ("rr", "10"),
        ] {
            assert_eq!(result(Timed::lost(at(0), 5), events), expected, "{events}");
        }
    }
}
