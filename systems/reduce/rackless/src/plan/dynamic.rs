//! The dynamic program over a list of configurations: exact if the list has all of them.
//!
//! `V_t(c) = min over c' of V_(t-1)(c') + T_t(c' -> c)`, where the last term is the cost of period `t` after the change. With
//! all ports dark it is `T_t(c) + delay`, so that only the best `c'` matters. With only the moved ports dark it
//! depends on the pair, but is at least `T_t(c)`: predecessors are tried in the order of `V`, until none can be better.

use rackweave_core::Span;

use crate::config::Configuration;
use crate::cost::{Loads, Reconfiguration, Scope, plus};
use crate::demand::Period;
use crate::fabric::Fabric;

/// The costs of the periods (rows) under each candidate (columns), when it is in place.
pub(crate) fn costs(
    fabric: &Fabric,
    periods: &[Period],
    candidates: &[Configuration],
) -> Vec<Vec<Span>> {
    let mut loads = Loads::default();
    let mut row = |period| {
        let cost = candidates.iter().map(|it| fabric.cost_with(period, it, &mut loads).time);
        cost.collect()
    };
    periods.iter().map(&mut row).collect()
}

/// The most costs after a change that are kept.
const MOST_KNOWN: usize = 1 << 20;

/// Costs of periods after a change of circuits that have been computed, for lists of candidates that grow.
pub(crate) struct Transitions {
    /// By period, the candidate after the change, and that before it.
    known: Vec<Vec<Vec<Option<Span>>>>,
    loads: Loads,
}

impl Transitions {
    pub(crate) fn new(periods: usize) -> Self {
        Self { known: vec![Vec::new(); periods], loads: Loads::default() }
    }

    fn grow(&mut self, candidates: usize) {
        let entries = candidates.saturating_mul(candidates).saturating_mul(self.known.len());
        if entries > MOST_KNOWN {
            self.known.iter_mut().for_each(Vec::clear);
            return;
        }
        for period in &mut self.known {
            period.resize_with(candidates, Vec::new);
            period.iter_mut().for_each(|row| row.resize(candidates, None));
        }
    }
}

/// Returns the best sequence of candidates, as indices, one for each period. The fabric starts with the candidate `first`.
pub(crate) fn best_sequence(
    fabric: &Fabric,
    periods: &[Period],
    candidates: &[Configuration],
    first: usize,
    (reconfiguration, transitions): (Reconfiguration, &mut Transitions),
    costs: &[Vec<Span>],
) -> Vec<usize> {
    if reconfiguration.scope == Scope::Moved {
        transitions.grow(candidates.len());
    }
    let Transitions { known, loads } = transitions;
    let mut values = vec![Span::MAX; candidates.len()];
    values[first] = Span::ZERO;
    let mut from: Vec<Vec<u32>> = Vec::with_capacity(periods.len());
    for ((period, costs), known) in periods.iter().zip(costs).zip(known) {
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|&before| (values[before], before));
        let mut next = Vec::with_capacity(candidates.len());
        let mut parents = Vec::with_capacity(candidates.len());
        for (now, &cost) in costs.iter().enumerate() {
            // A candidate that costs as much as another after a move stays.
            let (mut best, mut parent) = (plus(values[now], cost), now);
            match reconfiguration.scope {
                Scope::All => {
                    let moved = plus(plus(values[order[0]], cost), reconfiguration.delay);
                    if order[0] != now && moved < best {
                        (best, parent) = (moved, order[0]);
                    }
                }
                Scope::Moved => {
                    for &before in &order {
                        if plus(values[before], cost) >= best {
                            break;
                        }
                        let slot = known.get_mut(now).and_then(|row| row.get_mut(before));
                        let after = slot.as_deref().copied().flatten().unwrap_or_else(|| {
                            let (a, b) = (&candidates[before], &candidates[now]);
                            fabric.cost_after_with(period, a, b, reconfiguration, loads).time
                        });
                        if let Some(slot) = slot {
                            *slot = Some(after);
                        }
                        let value = plus(values[before], after);
                        if value < best {
                            (best, parent) = (value, before);
                        }
                    }
                }
            }
            next.push(best);
            parents.push(parent as u32);
        }
        values = next;
        from.push(parents);
    }
    // Among equals, the one that ends where it would without moves.
    let last = (0..candidates.len()).min_by_key(|&it| (values[it], it != first, it));
    let mut at = last.unwrap_or(first);
    let mut sequence = Vec::with_capacity(periods.len());
    for parents in from.iter().rev() {
        sequence.push(at);
        at = parents[at] as usize;
    }
    sequence.reverse();
    sequence
}
