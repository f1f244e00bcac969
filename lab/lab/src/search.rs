//! Runs variants of a scenario, for searches that vary some of its keys until something holds.
//!
//! A [`Search`] runs batches of variants, each a list of arguments of `--set`, on all cores. Which variants come next decides its user,
//! such as [`crate::tune`], by the results alone, so that a search takes the same steps with any number of jobs. Another thread can watch
//! and stop it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::ScenarioError;
use crate::results::PointSummary;
use crate::run::{Batch, Progress, RunError};
use crate::scenario::{Scenario, ScenarioText, World};

/// The arguments of `--set` that make a variant of the scenario.
pub type Variant = Vec<String>;

/// Why a search cannot go on.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum SearchError {
    /// A variant is no scenario.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Scenario(#[from] ScenarioError),
    /// A variant cannot be run.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Run(#[from] RunError),
    /// [`Search::cancel`] was called.
    #[error("interrupted")]
    Interrupted,
}

/// A search over variants of a scenario.
#[derive(Debug)]
pub struct Search {
    text: ScenarioText,
    sets: Vec<String>,
    seed: Option<u64>,
    jobs: Option<usize>,
    /// The batch that is running.
    batch: Mutex<Option<Arc<Batch>>>,
    /// The results of each transport in each variant that was run.
    known: Mutex<BTreeMap<(String, Variant), Vec<PointSummary>>>,
    runs: AtomicUsize,
    cancelled: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Search {
    /// A search that has run nothing, over a scenario with these arguments of `--set`.
    #[must_use]
    pub fn new(
        text: ScenarioText,
        sets: &[String],
        seed: Option<u64>,
        jobs: Option<usize>,
    ) -> Self {
        Self {
            text,
            sets: sets.to_vec(),
            seed,
            jobs,
            batch: Mutex::default(),
            known: Mutex::default(),
            runs: AtomicUsize::new(0),
            cancelled: AtomicBool::new(false),
        }
    }

    /// Reads a variant.
    ///
    /// # Errors
    /// If it is no scenario.
    pub fn read(&self, variant: &[String]) -> Result<Scenario, ScenarioError> {
        let sets: Vec<String> = self.sets.iter().chain(variant).cloned().collect();
        self.text.read(World::Simulator, &sets, self.seed)
    }

    /// Reads the points of a variant that measure a transport. Those of other transports are not checked: what is varied need not go with
    /// them.
    ///
    /// # Errors
    /// If it is no scenario.
    pub fn read_of(&self, transport: &str, variant: &[String]) -> Result<Scenario, ScenarioError> {
        let sets: Vec<String> = self.sets.iter().chain(variant).cloned().collect();
        let mut scenario = self.text.read_of(transport, &sets, self.seed)?;
        scenario.points.retain(|point| point.transport == transport);
        Ok(scenario)
    }

    /// Returns the scenario as TOML, with its arguments of `--set` and these cases in place of its own and of its transports.
    ///
    /// # Errors
    /// If it is no scenario.
    pub fn with_cases(&self, cases: &str) -> Result<String, ScenarioError> {
        self.text.with_cases(&self.sets, self.seed, cases)
    }

    /// Runs the points of each variant that measure a transport, all in one batch, and returns what they measured in the order of the
    /// variants and their points. Points that were run before are not run again. Points in which the simulator fails are missing.
    ///
    /// # Errors
    /// See [`SearchError`].
    pub fn run(
        &self,
        variants: &[Variant],
        transport: &str,
    ) -> Result<Vec<Vec<PointSummary>>, SearchError> {
        let key = |variant: &Variant| (transport.to_owned(), variant.clone());
        let mut new: Vec<&Variant> = Vec::new();
        for variant in variants {
            if !lock(&self.known).contains_key(&key(variant)) && !new.contains(&variant) {
                new.push(variant);
            }
        }
        let (mut all, mut owner) = (None::<Scenario>, Vec::new());
        for (index, variant) in new.iter().enumerate() {
            let scenario = self.read_of(transport, variant)?;
            owner.extend(scenario.points.iter().map(|_| index));
            match &mut all {
                None => all = Some(scenario),
                Some(all) => all.points.extend(scenario.points),
            }
        }
        if let Some(all) = all {
            let batch = Arc::new(Batch::new(all));
            *lock(&self.batch) = Some(Arc::clone(&batch));
            // Whoever cancels sees either the batch or what is checked here.
            if self.cancelled.load(Ordering::Relaxed) {
                batch.cancel();
            }
            let results = batch.run(self.jobs)?;
            let mut found: Vec<Vec<PointSummary>> = new.iter().map(|_| Vec::new()).collect();
            self.runs.fetch_add(results.points.len(), Ordering::Relaxed);
            for point in results.points {
                found[owner[point.index]].push(point.summary);
            }
            let is_whole = |index: &usize| {
                found[*index].len() == owner.iter().filter(|owner| **owner == *index).count()
            };
            // Variants without some of their points are nothing that can be compared.
            let kept = (0..new.len()).filter(|index| !batch.is_cancelled() || is_whole(index));
            let kept = kept.map(|index| (key(new[index]), found[index].clone()));
            lock(&self.known).extend(kept.collect::<Vec<_>>());
            if batch.is_cancelled() {
                return Err(SearchError::Interrupted);
            }
        }
        let found = self.found(variants, transport);
        Ok(found.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Returns what the points of each variant measured, for variants that were run to their end.
    #[must_use]
    pub fn found(&self, variants: &[Variant], transport: &str) -> Vec<Option<Vec<PointSummary>>> {
        let known = lock(&self.known);
        let of = |variant: &Variant| known.get(&(transport.to_owned(), variant.clone())).cloned();
        variants.iter().map(of).collect()
    }

    /// The number of points that were run to their end.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.runs.load(Ordering::Relaxed)
    }

    /// Stops the search at the next opportunity.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        if let Some(batch) = &*lock(&self.batch) {
            batch.cancel();
        }
    }

    /// The progress of the present batch.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let batch = lock(&self.batch).as_ref().map(|batch| batch.progress()).unwrap_or_default();
        Progress { is_open_ended: true, ..batch }
    }
}
