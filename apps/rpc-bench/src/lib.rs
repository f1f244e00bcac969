//! A benchmark of remote procedure calls over any transport, modelled on HomaModule's `cp_node`: a server that echoes,
//! and clients in a closed or an open loop, with the published message sizes.
//!
//! - [`Server`]: threads that echo requests or send short responses, and digest streams.
//! - [`Bench`]: client threads; [`Bench::tick`] returns the measurements since the last call. Each thread drives an
//!   application of scenarios (`rackweave_workload::app`), which starts and ends its calls.
//! - [`report`]: `cp_node`'s line, its dump of (length, round trip), and the summary.
//!
//! ```
//! use rackweave_rpc_bench::Sizes;
//!
//! let published: Sizes = "W4".parse().unwrap();
//! let single: Sizes = "64KiB".parse().unwrap();
//! assert!(published.0.max() > single.0.max());
//! assert!("neither".parse::<Sizes>().is_err());
//! ```

mod calls;
mod client;
mod config;
mod measure;
mod refused;
pub mod report;
mod run;
mod server;
mod stream;

pub use rackweave_linux::endpoint::{Network, Wire};

pub use config::{
    BenchConfig, BenchError, Custom, Load, Mode, NotASize, Profile, Setup, Sizes, Transport,
};
pub use measure::{Interval, Summary, Trouble};
pub use run::Bench;
pub use server::{ServeConfig, Served, Server};
