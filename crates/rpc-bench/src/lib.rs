//! Remote procedure calls over any transport, measured in the manner of HomaModule's `cp_node`: a server that
//! answers, and clients that ask in a closed or an open loop, with the published message sizes.
//!
//! - [`Server`]: threads that answer with what they were asked, or shortly, and that digest streams.
//! - [`Bench`]: threads that ask; [`Bench::tick`] tells what has happened since the last time.
//! - [`report`]: `cp_node`'s line, its dump of (length, round trip), and the summary.

mod client;
mod config;
mod measure;
pub mod report;
mod run;
mod server;
mod stream;

pub use rackweave_linux::endpoint::Network;

pub use config::{BenchConfig, BenchError, Load, Mode, NotASize, Profile, Setup, Sizes, Transport};
pub use measure::{Interval, Summary, Trouble};
pub use run::Bench;
pub use server::{ServeConfig, Served, Server};
