//! Places of connections, by merit.
//!
//! Whoever connects gets a place. If all are taken, the stranger with the most places loses that of its connection that has been silent
//! for longest, so that no number of connections of one party keeps anybody out, or ends anybody's. Strangers have a share of the places
//! only: the others are for parties that are known.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// How many places there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Of all.
    pub most: usize,
    /// Of one party.
    pub of_one: usize,
    /// Places that strangers never have.
    pub kept: usize,
}

/// The places. Clones are the same ones. `P` names a party, such as an address or a tenant.
#[derive(Clone, Debug)]
pub struct Places<P>(Arc<Mutex<Taken<P>>>);

#[derive(Debug)]
struct Taken<P> {
    bounds: Bounds,
    next: u64,
    /// Whoever was silent for longest first.
    holders: VecDeque<Holder<P>>,
}

#[derive(Debug)]
struct Holder<P> {
    number: u64,
    party: P,
    is_known: bool,
    evicted: Arc<Notify>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub struct Place<P> {
    places: Places<P>,
    number: u64,
    evicted: Arc<Notify>,
}

impl<P: Clone + Ord> Places<P> {
    /// Places that nobody has.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        let bounds = Bounds { most: bounds.most.max(1), of_one: bounds.of_one.max(1), ..bounds };
        Self(Arc::new(Mutex::new(Taken { bounds, next: 0, holders: VecDeque::new() })))
    }

    /// Gives a party a place: a free one, or that of its own most silent connection, or that of the most silent one of the stranger with
    /// the most places. Only without strangers does the known party with the most places lose one.
    #[must_use]
    pub fn take(&self, party: P, is_known: bool) -> Place<P> {
        let mut taken = self.lock();
        let Bounds { most, kept, .. } = taken.bounds;
        taken.shrink(&party, 1);
        let strangers = taken.holders.iter().filter(|it| !it.is_known).count();
        if taken.holders.len() >= most || !is_known && strangers >= (most - kept.min(most)).max(1) {
            taken.make_room(&party, is_known);
        }
        let (number, evicted) = (taken.next, Arc::new(Notify::new()));
        taken.next += 1;
        taken.holders.push_back(Holder { number, party, is_known, evicted: Arc::clone(&evicted) });
        drop(taken);
        Place { places: self.clone(), number, evicted }
    }
}

impl<P> Places<P> {
    fn lock(&self) -> MutexGuard<'_, Taken<P>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Clone + Ord> Taken<P> {
    fn evict(&mut self, which: Option<usize>) {
        if let Some(gone) = which.and_then(|it| self.holders.remove(it)) {
            gone.evicted.notify_one();
        }
    }

    /// A party that is to have this many places more keeps no more than it may have. Its strangers go first.
    fn shrink(&mut self, party: &P, more: usize) {
        while self.holders.iter().filter(|it| it.party == *party).count() + more
            > self.bounds.of_one
        {
            let oldest = |known: bool| {
                self.holders.iter().position(|it| it.party == *party && (known || !it.is_known))
            };
            let which = oldest(false).or_else(|| oldest(true));
            self.evict(which);
        }
    }

    /// Among strangers, or known ones if there are none, the party that has the most places together with this one's next loses one.
    fn make_room(&mut self, newcomer: &P, is_known: bool) {
        let are_known = self.holders.iter().all(|it| it.is_known);
        let next = (is_known == are_known).then_some(newcomer);
        let mut counts = BTreeMap::<&P, usize>::new();
        let holders = self.holders.iter().filter(|it| it.is_known == are_known);
        for party in holders.clone().map(|it| &it.party).chain(next) {
            *counts.entry(party).or_insert(0) += 1;
        }
        let count = |it: &Holder<P>| counts.get(&it.party).copied();
        let most = holders.filter_map(count).max();
        let is_largest = |it: &Holder<P>| it.is_known == are_known && count(it) == most;
        let which = self.holders.iter().position(is_largest);
        self.evict(which);
    }
}

impl<P: Clone + Ord> Place<P> {
    /// Its holder has shown who it is: this party loses the places that it now has too many.
    pub fn prove(&self, party: &P, is_known: bool) {
        self.renew(|taken, holder| {
            if holder.party != *party {
                taken.shrink(party, 1);
                holder.party = party.clone();
            }
            holder.is_known |= is_known;
        });
    }
}

impl<P> Place<P> {
    /// Its holder has asked for something, or taken what it is sent: all others have been silent for longer.
    pub fn touch(&self) {
        self.renew(|_, _| {});
    }

    fn renew(&self, change: impl FnOnce(&mut Taken<P>, &mut Holder<P>)) {
        let mut taken = self.places.lock();
        if let Some(index) = taken.holders.iter().position(|it| it.number == self.number)
            && let Some(mut holder) = taken.holders.remove(index)
        {
            change(&mut taken, &mut holder);
            taken.holders.push_back(holder);
        }
    }

    /// Returns when somebody else has the place.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl<P> Drop for Place<P> {
    fn drop(&mut self) {
        self.places.lock().holders.retain(|it| it.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(places: &Places<u32>) -> Vec<u32> {
        places.lock().holders.iter().map(|it| it.party).collect()
    }

    #[test]
    fn the_stranger_that_is_silent_for_longest_makes_room() {
        let places = Places::new(Bounds { most: 16, of_one: 3, kept: 2 });
        let take = |number: u32, is_known| places.take(number, is_known);
        let mut held: Vec<_> = (0..14).map(|number| take(number, false)).collect();
        held.push(take(14, false));
        assert_eq!(numbers(&places), (1..15).collect::<Vec<_>>(), "two places are kept");
        held.extend([take(100, true), take(101, true)]);
        assert_eq!(numbers(&places).len(), 16);
        // The third known one takes a stranger's place, and a stranger none of a known one.
        held.extend([take(102, true), take(15, false)]);
        let expected: Vec<u32> = (3..15).chain([100, 101, 102, 15]).collect();
        assert_eq!(numbers(&places), expected);
        // Whoever has asked for something is silent from now on only.
        held[3].touch();
        held.push(take(16, false));
        let expected: Vec<u32> = (5..15).chain([100, 101, 102, 15, 3, 16]).collect();
        assert_eq!(numbers(&places), expected);
        // Places that are lost are not given back twice, and others are.
        drop(held);
        assert_eq!(numbers(&places), [0; 0]);
    }

    #[test]
    fn a_stranger_with_many_places_takes_no_others() {
        let places = Places::new(Bounds { most: 16, of_one: 12, kept: 8 });
        let few: Vec<_> = [1, 1, 1, 2].map(|number| places.take(number, false)).into();
        let many: Vec<_> = (0..20).map(|_| places.take(7, false)).collect();
        assert_eq!(numbers(&places), [1, 1, 1, 2, 7, 7, 7, 7]);
        let others: Vec<_> = (3..6).map(|number| places.take(number, false)).collect();
        assert_eq!(numbers(&places), [1, 1, 2, 7, 7, 3, 4, 5], "the largest lose one each");
        drop((few, many, others));
    }

    #[test]
    fn a_party_has_few_places_and_loses_its_oldest() {
        let places = Places::new(Bounds { most: 16, of_one: 3, kept: 2 });
        let held: Vec<_> = (0..5).map(|_| places.take(7, false)).collect();
        let kept: Vec<u64> = places.lock().holders.iter().map(|it| it.number).collect();
        assert_eq!(kept, [2, 3, 4]);
        drop(held);
    }

    #[test]
    fn who_has_proved_himself_is_kept_from_strangers_and_not_from_other_known_ones() {
        let places = Places::new(Bounds { most: 4, of_one: 3, kept: 2 });
        let mut held: Vec<_> = (0..3).map(|number| places.take(number, false)).collect();
        assert_eq!(numbers(&places), [1, 2]);
        held[1].prove(&50, true);
        held.extend((3..9).map(|number| places.take(number, false)));
        assert_eq!(numbers(&places), [50, 7, 8]);
        // All are known ones: whoever has the most places loses one.
        let known: Vec<_> = [60, 60, 61].map(|number| places.take(number, true)).into();
        assert_eq!(numbers(&places), [50, 60, 60, 61]);
        let stranger = places.take(9, false);
        assert_eq!(numbers(&places), [50, 60, 61, 9]);
        // A party that shows itself on one connection more loses its oldest.
        let others: Vec<_> = (0..2).map(|_| places.take(61, true)).collect();
        assert_eq!(numbers(&places), [50, 60, 61, 61]);
        held[1].prove(&61, true);
        assert_eq!(numbers(&places), [60, 61, 61, 61]);
        known[1].prove(&61, true);
        assert_eq!(numbers(&places), [61, 61, 61]);
        drop((known, stranger, others, held));
    }

    #[tokio::test]
    async fn whoever_loses_a_place_hears_of_it() {
        let places = Places::new(Bounds { most: 1, of_one: 1, kept: 0 });
        let first = places.take(1, false);
        let second = places.take(2, false);
        first.evicted().await;
        drop(first);
        assert_eq!(numbers(&places), [2]);
        drop(second);
    }
}
