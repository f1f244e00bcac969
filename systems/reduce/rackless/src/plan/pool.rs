//! The heuristic: candidates for windows of periods, and the dynamic program over them.

use std::collections::BTreeSet;

use rackweave_core::Rng;

use super::dynamic::{self, Transitions};
use super::search::{Known, Prepared, Search};
use super::{Options, Plan, circuits, greedy};
use crate::config::Configuration;
use crate::demand::Period;
use crate::fabric::{Fabric, Reach};

/// How often the dynamic program's result gives new candidates.
const ROUNDS: usize = 2;
/// Up to this number of servers each window is searched from all starting points, and again from disturbed results.
const SMALL: u32 = 32;

/// The candidates of a block of periods.
pub(crate) struct Pool {
    /// The first is the fabric's configuration before the block.
    pub(crate) candidates: Vec<Configuration>,
    known: BTreeSet<Configuration>,
    /// The best that has been found for each period by itself.
    best: Vec<Configuration>,
}

impl Pool {
    fn add(&mut self, fabric: &Fabric, configuration: &Configuration) {
        let aligned = configuration.aligned(fabric.pod(), fabric.initial());
        if self.known.insert(aligned.clone()) {
            self.candidates.push(aligned);
        }
    }

    /// Finds candidates for each period, and for windows of 2, 4, 8, ... periods, each starting from those of its halves.
    pub(crate) fn new(
        fabric: &Fabric,
        prepared: &[Prepared<'_>],
        options: &Options,
        rng: &mut Rng,
    ) -> Self {
        let initial = fabric.initial().clone();
        let mut this = Self {
            known: BTreeSet::from([initial.clone()]),
            candidates: vec![initial],
            best: Vec::new(),
        };
        if fabric.reach() == Reach::Rack {
            // Swaps of one server are no way to a rack that pays as a whole only.
            for prepared in prepared {
                for upload in prepared.period().uploads() {
                    greedy::gathered(fabric, upload).iter().for_each(|it| this.add(fabric, it));
                }
            }
        }
        let mut starts: Vec<Vec<Configuration>> = vec![Vec::new(); prepared.len()];
        let mut length = 1;
        loop {
            let mut found = Vec::new();
            for (window, starts) in prepared.chunks(length).zip(&starts) {
                let best = this.improve(fabric, window, starts, options, rng);
                found.push(best);
            }
            if length == 1 {
                this.best.clone_from(&found);
            }
            if length >= prepared.len() {
                return this;
            }
            starts = found.chunks(2).map(<[_]>::to_vec).collect();
            length *= 2;
        }
    }

    /// Finds a configuration for all periods of a window, and adds what it finds on the way.
    fn improve(
        &mut self,
        fabric: &Fabric,
        window: &[Prepared<'_>],
        starts: &[Configuration],
        options: &Options,
        rng: &mut Rng,
    ) -> Configuration {
        let periods: Vec<&Prepared<'_>> = window.iter().collect();
        if fabric.architecture().has_circuits() {
            let all = circuits::candidates(fabric, &periods);
            all.iter().for_each(|it| self.add(fabric, it));
            return all.into_iter().next().unwrap_or_else(|| fabric.initial().clone());
        }
        let small = fabric.pod().servers() <= SMALL;
        let mut all: Vec<Configuration> = starts.to_vec();
        if starts.is_empty() || small {
            all.push(greedy::heavy_edges(fabric, &periods));
            all.extend(greedy::pairs(fabric, &periods));
        }
        if small {
            // A search that begins at the racks in use finds what is near to them.
            all.push(fabric.initial().clone());
        } else {
            // In a large pod there is time for one search, from the best start.
            let objective =
                |it: &Configuration| Search::new(fabric, periods.clone(), it).objective();
            let objectives: Vec<f64> = all.iter().map(objective).collect();
            let least = (0..all.len()).min_by(|&a, &b| objectives[a].total_cmp(&objectives[b]));
            all = least.map(|index| all.swap_remove(index)).into_iter().collect();
        }
        let mut best: Option<(Configuration, f64)> = None;
        let mut known = Known::new();
        let swaps = (fabric.pod().servers() as usize / 8).max(2);
        let restarts = if small { options.restarts } else { 0 };
        let starts = all.into_iter().map(Some).chain((0..restarts).map(|_| None));
        for start in starts {
            let disturbed = start.is_none();
            let start = start.or_else(|| best.as_ref().map(|it| it.0.clone()));
            let start = start.unwrap_or_else(|| fabric.initial().clone());
            let mut search = Search::new(fabric, periods.clone(), &start).knowing(known);
            if disturbed {
                search.disturb(swaps, rng);
            }
            search.descend();
            let (configuration, objective) = (search.configuration(), search.objective());
            known = search.into_known();
            self.add(fabric, &configuration);
            if best.as_ref().is_none_or(|(_, least)| objective < *least) {
                best = Some((configuration, objective));
            }
        }
        best.map_or_else(|| fabric.initial().clone(), |(configuration, _)| configuration)
    }
}

/// Plans a block of periods.
pub(crate) fn plan(
    fabric: &Fabric,
    periods: &[Period],
    options: &Options,
    rng: &mut Rng,
) -> Vec<Configuration> {
    let prepared: Vec<_> = periods.iter().map(|period| Prepared::new(fabric, period)).collect();
    let mut pool = Pool::new(fabric, &prepared, options, rng);
    let mut costs = Vec::new();
    let mut sequence = Vec::new();
    let mut transitions = Transitions::new(periods.len());
    for round in 0..=ROUNDS {
        let known = costs.first().map_or(0, Vec::len);
        let new = dynamic::costs(fabric, periods, &pool.candidates[known..]);
        match costs.is_empty() {
            true => costs = new,
            false => costs.iter_mut().zip(new).for_each(|(row, more)| row.extend(more)),
        }
        let candidates = &pool.candidates;
        let reconfiguration = options.reconfiguration;
        let changes = (reconfiguration, &mut transitions);
        sequence = dynamic::best_sequence(fabric, periods, candidates, 0, changes, &costs);
        let before = pool.candidates.len();
        if round == ROUNDS || fabric.architecture().has_circuits() {
            break;
        }
        // The periods that share a configuration are a window that the next round searches.
        let mut start = 0;
        while start < sequence.len() {
            let run = sequence[start..].iter().take_while(|&&it| it == sequence[start]).count();
            let from = pool.candidates[sequence[start]].clone();
            pool.improve(fabric, &prepared[start..start + run], &[from], options, rng);
            start += run;
        }
        if pool.candidates.len() == before {
            break;
        }
    }
    let chosen: Vec<_> = sequence.iter().map(|&index| pool.candidates[index].clone()).collect();
    renamed(fabric, periods, chosen, options)
}

/// Exchanges equal racks so that fewer servers move from each period to the next, if that is no worse.
fn renamed(
    fabric: &Fabric,
    periods: &[Period],
    chosen: Vec<Configuration>,
    options: &Options,
) -> Vec<Configuration> {
    let mut aligned: Vec<Configuration> = Vec::with_capacity(chosen.len());
    for configuration in &chosen {
        let before = aligned.last().unwrap_or_else(|| fabric.initial());
        aligned.push(configuration.aligned(fabric.pod(), before));
    }
    let total = |sequence: &Vec<Configuration>| {
        Plan::evaluate(fabric, periods, sequence.clone(), options.reconfiguration).total
    };
    if total(&aligned) <= total(&chosen) { aligned } else { chosen }
}

/// The best configuration found for each period by itself.
pub(crate) fn best_of_each(
    fabric: &Fabric,
    periods: &[Period],
    options: &Options,
    rng: &mut Rng,
) -> Vec<Configuration> {
    let prepared: Vec<_> = periods.iter().map(|period| Prepared::new(fabric, period)).collect();
    let pool = Pool::new(fabric, &prepared, options, rng);
    let costs = dynamic::costs(fabric, periods, &pool.candidates);
    let least = |costs: &Vec<_>| (0..costs.len()).min_by_key(|&it| (costs[it], it)).unwrap_or(0);
    let chosen = costs.iter().map(|costs| pool.candidates[least(costs)].clone()).collect();
    renamed(fabric, periods, chosen, options)
}
