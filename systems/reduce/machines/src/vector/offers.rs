//! Whether the workers of an open job add up the same vector.
//!
//! Chunks have a tag that follows from the vector ([`Offer::tag`]), and those with different tags are not added up. So a difference ends
//! in a wait, and the master, which hears from each worker what it adds up, can say who waits for what.

use rackweave_core::{Span, Time};
use rackweave_wire::reduce::{Difference, Offer};

/// What each worker has said last.
#[derive(Clone, Debug)]
pub(super) struct Offers {
    all: Vec<Option<Offer>>,
    /// Since when it is known that vectors differ.
    since: Option<Time>,
}

impl Offers {
    pub(super) fn new(workers: u8) -> Self {
        Self { all: vec![None; usize::from(workers)], since: None }
    }

    /// A worker says what it adds up.
    pub(super) fn note(&mut self, worker: u8, offer: Offer) {
        let Some(known) = self.all.get_mut(usize::from(worker)) else { return };
        // A message may be older than one before.
        if known.is_none_or(|known| (known.step, known.is_last) <= (offer.step, offer.is_last)) {
            *known = Some(offer);
        }
    }

    /// Returns how vectors differ, as soon as it is clear who differs: all workers have said what they have, or some have not within
    /// `patience`.
    pub(super) fn difference(&mut self, now: Time, patience: Span) -> Option<Difference> {
        let offers = || (0_u8..).zip(&self.all).filter_map(|(n, offer)| Some((n, (*offer)?)));
        // Who has no vector of this number will have none, or has not begun it.
        let step = offers().filter(|(_, it)| it.length > 0).map(|(_, it)| it.step).max()?;
        let awaited = |offer: &Offer| offer.length > 0 && offer.step == step;
        let has_ended = |offer: &Offer| offer.is_last && offer.step <= step;
        let counts: Vec<(u8, Offer)> = offers()
            .filter(|(_, offer)| awaited(offer) || has_ended(offer))
            .map(|(n, offer)| (n, if awaited(&offer) { offer } else { Offer::nothing(step, true) }))
            .collect();
        let like = |offer: &Offer| counts.iter().filter(|(_, other)| other == offer).count();
        // Of two that are equally frequent, that of the worker with the lowest number.
        let (_, expected) = *counts.iter().rev().max_by_key(|(_, offer)| like(offer))?;
        let others = || counts.iter().filter(|(_, offer)| *offer != expected);
        let Some(&(_, found)) = others().next() else {
            self.since = None;
            return None;
        };
        let has_majority = 2 * like(&expected) > counts.len();
        // Who is right is not known without a majority.
        let named = counts.iter().filter(|(_, offer)| !has_majority || *offer != expected);
        let workers = named.fold(0, |all, (n, _)| all | 1 << n);
        let is_clear = counts.len() == self.all.len();
        let since = *self.since.get_or_insert(now);
        (is_clear || now >= since.saturating_add(patience)).then_some(Difference {
            workers,
            found,
            expected,
            has_majority,
        })
    }

    /// Returns the workers that do not have the vector for whose sum this one waits, as a bitmap, as far as they have said so.
    pub(super) fn behind(&self, worker: u8) -> u64 {
        let waiting = self.all.get(usize::from(worker)).copied().flatten();
        let Some(waiting) = waiting.filter(|offer| offer.length > 0) else { return 0 };
        let is_behind = |offer: &Offer| {
            offer.step < waiting.step || offer.step == waiting.step && offer.length == 0
        };
        let behind =
            (0_u8..).zip(&self.all).filter(|(_, offer)| offer.as_ref().is_some_and(is_behind));
        behind.fold(0, |all, (n, _)| all | 1 << n)
    }
}

#[cfg(test)]
mod tests {
    use rackweave_wire::reduce::Format;

    use super::*;

    const PATIENCE: Span = Span::from_secs(1);

    fn vector(step: u32, length: u64) -> Offer {
        Offer { step, length, format: Format::BlockFloat, label: 4, is_last: false }
    }

    fn offers(all: &[Offer]) -> Offers {
        let mut offers = Offers::new(3);
        all.iter().zip(0..).for_each(|(offer, worker)| offers.note(worker, *offer));
        offers
    }

    fn after(all: &[Offer], seconds: u64) -> Option<Difference> {
        let mut offers = offers(all);
        let found = offers.difference(Time::ZERO, PATIENCE);
        found.or_else(|| offers.difference(Time::ZERO + Span::from_secs(seconds), PATIENCE))
    }

    #[test]
    fn those_that_differ_from_most_are_named() {
        let (expected, found) = (vector(7, 10), vector(7, 11));
        let difference =
            |workers, found| Some(Difference { workers, found, expected, has_majority: true });
        let tie =
            |workers, found| Some(Difference { workers, found, expected, has_majority: false });
        assert_eq!(after(&[expected, expected, expected], 5), None);
        assert_eq!(after(&[expected, found, expected], 0), difference(0b10, found));
        assert_eq!(after(&[found, expected, expected], 0), difference(0b1, found));
        let label = Offer { label: 5, ..expected };
        let format = Offer { format: Format::I64, ..expected };
        assert_eq!(after(&[expected, label, format], 0), tie(0b111, label));
        // One that has not begun may be on either side.
        let none = Offer::nothing(7, false);
        assert_eq!(after(&[expected, none, found], 0), None);
        assert_eq!(after(&[expected, none, found], 1), tie(0b101, found));
        assert_eq!(after(&[expected, vector(6, 3), none], 9), None, "one waits for its sum");
    }

    #[test]
    fn who_has_no_further_vector_differs_from_who_has_one() {
        let (expected, last) = (vector(7, 10), Offer::nothing(7, true));
        let found = Some(Difference { workers: 0b100, found: last, expected, has_majority: true });
        assert_eq!(after(&[expected, expected, last], 0), found);
        // These have the sum that the first one waits for.
        assert_eq!(after(&[expected, Offer::nothing(8, true), Offer::nothing(8, true)], 9), None);
        assert_eq!(after(&[last, last, last], 9), None);
    }

    #[test]
    fn those_that_a_worker_waits_for_are_known() {
        let (waiting, ready) = (vector(7, 10), Offer::nothing(8, true));
        let offers = offers(&[waiting, Offer::nothing(7, false), ready]);
        assert_eq!([0, 1, 2, 9].map(|worker| offers.behind(worker)), [0b10, 0, 0, 0]);
    }

    #[test]
    fn what_is_late_does_not_count() {
        let mut offers = offers(&[vector(7, 1), vector(8, 2), vector(8, 2)]);
        offers.note(0, vector(8, 2));
        offers.note(0, vector(7, 1));
        assert_eq!(offers.difference(Time::ZERO, PATIENCE), None);
        offers.note(0, vector(8, 3));
        assert!(offers.difference(Time::ZERO, PATIENCE).is_some());
        offers.note(9, vector(8, 3));
    }
}
