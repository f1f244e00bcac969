//! Transfers as fluid flows: instead of packets, a transfer is a rate on each link of its path, and rates are max-min fair.
//!
//! For runs whose packets are too many: an image of 8 GB for 1000 hosts is 5.7 billion packets, and each crosses two to
//! four links. Control messages stay packets of the network, with their own delays; flows and packets do not share
//! links.
//!
//! - `share`: max-min fair rates ("progressive filling": Bertsekas and Gallager, *Data Networks*, section 6.5.2).
//! - [`Fluid`]: flows that start and end, in virtual time.
//!
//! Time and bytes are integers: a flow that has carried `rate` bit/s for a number of ticks has carried exactly that product. So a
//! run is the same on every machine.
//!
//! What is left out: slow start, losses, acknowledgements and round-trip times. A flow begins at its fair rate at once.

mod engine;
mod share;
#[cfg(test)]
mod tests;

pub use self::engine::{Config, Fluid};
pub use self::share::{MaxMin, Path};
