//! What two or more hosts say to each other.

mod bottleneck;
mod chaos;
pub(super) mod delay;
mod dialogue;
mod faults;
mod halves;
mod net;
mod pool;
mod streams;
