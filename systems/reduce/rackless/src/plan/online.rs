//! Planning without, or with little, knowledge of later periods.

use rackweave_core::{Rng, Span};

use super::pool::Pool;
use super::search::Prepared;
use super::{Options, dynamic};
use crate::config::Configuration;
use crate::cost::{Loads, plus};
use crate::demand::Period;
use crate::fabric::Fabric;

/// The most periods for which Eclipse keeps a configuration at a time.
const HORIZON: usize = 32;

/// Period by period: moves to the configuration with the least cost, delay included, and stays if that is the present one.
pub(crate) fn hysteresis(
    fabric: &Fabric,
    periods: &[Period],
    options: &Options,
    rng: &mut Rng,
) -> Vec<Configuration> {
    let mut at = fabric.clone();
    let mut sequence = Vec::with_capacity(periods.len());
    let mut loads = Loads::default();
    for period in periods {
        let prepared = [Prepared::new(&at, period)];
        let pool = Pool::new(&at, &prepared, options, rng);
        let mut best = (Span::MAX, 0);
        for (index, candidate) in pool.candidates.iter().enumerate() {
            let (from, how) = (at.initial(), options.reconfiguration);
            let time = at.cost_after_with(period, from, candidate, how, &mut loads).time;
            // The present configuration is the first, so that a move must gain something.
            if time < best.0 {
                best = (time, index);
            }
        }
        let chosen = pool.candidates[best.1].clone();
        sequence.push(chosen.clone());
        at = at.starting_from(chosen);
    }
    sequence
}

/// From the first period on: the candidate and number of periods with the most bytes per time, where a change adds its delay.
pub(crate) fn eclipse(
    fabric: &Fabric,
    periods: &[Period],
    options: &Options,
    rng: &mut Rng,
) -> Vec<Configuration> {
    let prepared: Vec<_> = periods.iter().map(|period| Prepared::new(fabric, period)).collect();
    let pool = Pool::new(fabric, &prepared, options, rng);
    let costs = dynamic::costs(fabric, periods, &pool.candidates);
    let mut loads = Loads::default();
    let mut sequence: Vec<usize> = Vec::with_capacity(periods.len());
    let mut current = 0;
    while sequence.len() < periods.len() {
        let start = sequence.len();
        let mut best: Option<(f64, usize, usize)> = None;
        // The present configuration is tried first, so that a move must gain something.
        let others = (0..pool.candidates.len()).filter(|&it| it != current);
        for candidate in std::iter::once(current).chain(others) {
            let (from, to) = (&pool.candidates[current], &pool.candidates[candidate]);
            let how = options.reconfiguration;
            let first = fabric.cost_after_with(&periods[start], from, to, how, &mut loads).time;
            let (mut bytes, mut time) = (0_u64, Span::ZERO);
            for index in start..periods.len().min(start + HORIZON) {
                let cost = if index == start { first } else { costs[index][candidate] };
                time = plus(time, cost);
                bytes = bytes.saturating_add(periods[index].bytes());
                let score = bytes as f64 / time.ticks().max(1) as f64;
                if best.is_none_or(|(most, _, _)| score > most * (1.0 + 1e-9)) {
                    best = Some((score, candidate, index + 1 - start));
                }
            }
        }
        let (_, candidate, count) = best.unwrap_or((0.0, current, 1));
        sequence.extend(std::iter::repeat_n(candidate, count));
        current = candidate;
    }
    sequence.into_iter().map(|index| pool.candidates[index].clone()).collect()
}
