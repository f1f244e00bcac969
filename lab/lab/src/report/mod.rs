//! Reports on a comparison: a table for the terminal, and a self-contained page.
//!
//! All input is [`PointResult`](crate::results::PointResult)s. Each step is a module of plain functions:
//!
//! - [`number`]: the format of numbers and units;
//! - [`ticks`]: the marks of an axis;
//! - [`svg`]: charts as text;
//! - [`charts`]: the selection of charts, and what is left out when there are many points;
//! - `pods`: the circuits of a run over time;
//! - `strips`: tables as columns of formatted cells;
//! - [`html`]: the page, with `grid` for its tables and [`figures`] for its charts;
//! - [`table`]: the terminal's tables, and [`wrap`]: lines of text that fit it.
//!
//! The modules do no I/O and read neither terminal nor clock, so that equal input gives equal bytes.

pub mod charts;
pub(crate) mod compare;
pub mod figures;
mod grid;
mod heat;
pub mod html;
pub mod number;
pub mod pods;
mod strips;
pub mod svg;
mod sweeps;
pub mod table;
pub mod ticks;
pub(crate) mod verdict;
pub mod wrap;

#[cfg(test)]
pub(crate) mod demo;
#[cfg(test)]
mod tests;

/// The text at the head of a page, as well as the results.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// The headline of the page.
    pub title: String,
    /// A description of the scenario in a sentence or two; may be empty.
    pub description: String,
    /// The scenario of the run, with all defaults, as TOML.
    pub scenario_toml: String,
    /// The command that reproduces the numbers.
    pub command: String,
    /// The version of Rackweave.
    pub version: String,
    /// The seed of all random streams.
    pub seed: u64,
    /// Further facts for the head of the page, as (name, value): hosts, links, workload...
    pub facts: Vec<(String, String)>,
    /// The names of the files with numbers next to the page, which it links to.
    pub files: Vec<String>,
    /// Which points have no results, in a sentence; `None` if all have.
    pub incomplete: Option<String>,
}
