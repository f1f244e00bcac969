//! What a comparison looks like: a table for the terminal, and a page that needs no other file.
//!
//! Everything reads [`PointResult`](crate::results::PointResult)s. Each step is a module of plain
//! functions:
//!
//! - [`number`]: how numbers and units are written;
//! - [`ticks`]: where an axis has its marks;
//! - [`svg`]: charts, as text;
//! - [`charts`]: which charts a comparison gets, and what is left out when there are many points;
//! - [`html`]: the page;
//! - [`table`]: the terminal's table.
//!
//! Nothing here does I/O or asks a terminal or a clock, so that equal input gives equal bytes.

pub mod charts;
mod compare;
pub mod html;
pub mod number;
pub mod svg;
pub mod table;
pub mod ticks;

#[cfg(test)]
mod demo;
#[cfg(test)]
mod tests;

/// What a page says about a comparison, beside its points.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// Headline.
    pub title: String,
    /// What the scenario is about, in a sentence or two; may be empty.
    pub description: String,
    /// The scenario as it was run, with all defaults.
    pub scenario_toml: String,
    /// The command that reproduces the numbers.
    pub command: String,
    /// Version of Rackweave.
    pub version: String,
    /// Seed of everything random.
    pub seed: u64,
    /// Further lines for the head of the page, as (name, value): hosts, links, workload...
    pub facts: Vec<(String, String)>,
}
