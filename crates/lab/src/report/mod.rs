//! What a comparison looks like: a table for the terminal, and a page that stands alone.
//!
//! The way from numbers to pictures, each step a module of plain functions:
//!
//! - [`model`]: the input, plain numbers that the caller fills from its results;
//! - [`number`]: how numbers and units are written, the same everywhere;
//! - [`ticks`]: where an axis has its marks;
//! - [`svg`]: charts, as text;
//! - [`charts`]: which charts a comparison gets, and what is left out when there are many points;
//! - [`html`]: the page;
//! - [`table`]: the terminal's table.
//!
//! Nothing here does I/O or asks a terminal or a clock, so that equal input gives equal bytes.

pub mod charts;
mod columns;
pub mod html;
pub mod model;
pub mod number;
pub mod svg;
pub mod table;
pub mod ticks;

pub use model::{CurvePoint, Point, QueueDepth, Report, SizeBucket, Stats, Totals};

#[cfg(test)]
mod demo;
#[cfg(test)]
mod tests;
