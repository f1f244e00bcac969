//! All-reduce: each worker has a vector, and all get the sum of all vectors.
//!
//! - [`worker`], [`master`]: the machines of hosts. What adds up is the program of [`super::switch`], in a switch or at a host.
//! - [`layout`]: how a vector is divided into blocks and chunks; [`block_float`]: how floats become integers whose sum is exact.
//! - [`node`]: the machines of a host with their vectors, for a driver; [`ring`]: the same sum without an aggregator, over a transport.
//!
//! ```text
//!  Worker 0 ─ Chunk c ─┐                       ┌─ ChunkSum c ─> Worker 0 ─ Chunk c + pool ─ ...
//!  Worker 1 ─ Chunk c ─┼─> slot c mod pool ────┼─ ChunkSum c ─> Worker 1
//!  Worker 2 ─ Chunk c ─┘   when all are there  └─ ChunkSum c ─> Worker 2
//! ```
//!
//! The pool of slots, their two versions and the exponents that chunks carry are those of SwitchML
//! (`docs/protocols/ordc.md#switchml`). That a host adds up where no switch can is taken from ATP
//! (`docs/protocols/ordc.md#atp`). ATP's host does so for single packets next to the switch; here it takes the switch's
//! place. What neither treats is Rackweave's, a worker, a switch or an aggregator that loses its memory: the master
//! ends the attempt, asks each worker for the first chunk whose sum it does not have, and begins the next attempt at
//! the least of them. Workers keep the values of two steps for that, which is enough: a worker that offers step k + 2
//! has all of step k + 1, so all have offered that step, and had all of step k.
//!
//! *Exact* means: every worker gets the same bits, and they are a function of the vectors only, whatever the order of arrival, the
//! losses, the aggregator and the attempts. With integers they are the sum modulo 2^64. With floats they are the sum of the workers'
//! rounded values, without any further rounding until it is a float again; see [`block_float`] for the bound of the error.

pub mod block_float;
mod flight;
pub mod layout;
pub mod master;
pub mod node;
mod offers;
mod reservation;
pub mod ring;
#[cfg(test)]
mod tests;
pub mod values;
pub mod worker;
