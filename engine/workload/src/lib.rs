//! Workloads: the sizes, times and destinations of messages. The simulator and the testbed use the same generators.
//!
//! - [`sizes`]: [`SizeDist`], distributions of message sizes: published, from a file, or simple ones.
//! - [`pattern`]: [`WorkloadConfig`] and [`Pattern`], which determine senders, receivers and arrivals.
//! - [`load`]: the mean gap between messages at a given load of the hosts' links.
//! - [`generator`]: [`Generator`], which draws the messages of each host from its own random streams.
//! - [`trace`]: [`Trace`], messages read from a file.
//! - [`collective`]: [`Collective`], what each rank of an all-reduce and others sends, and when.
//! - [`text`]: a synthetic text, by how often each of its words occurs.
//! - [`app`]: [`App`](app::App), the application of a host, which starts messages, answers requests and records how
//!   each message ended; and [`Collector`](app::Collector), which combines the records of all hosts.
//!
//! ```
//! use rackweave_core::{Framing, HostId, Rate};
//! use rackweave_workload::{
//!     Generator, LoadCounts, Pattern, SizeDist, WorkloadConfig, open_loop_gap,
//! };
//!
//! let (sizes, load, counts) = (SizeDist::named("W4")?, 0.8, LoadCounts::Wire);
//! let framing = Framing { max_payload: 1460, header_bytes: 40, spray_above_bytes: u32::MAX };
//! let gap = open_loop_gap(&sizes, load, counts, Rate::from_gbps(10), framing, |_| 0.0)?;
//! let config = WorkloadConfig::new(Pattern::OpenLoop { sizes, load, counts });
//! let mut generator = Generator::new(&config, 144, Some(gap), 1, 0, 0)?;
//! let first = generator.next(HostId(7)).expect("an open loop has no end");
//! assert_ne!(first.dst, HostId(7));
//! # Ok::<(), rackweave_workload::WorkloadError>(())
//! ```

pub mod app;
mod application;
pub mod collective;
pub mod error;
pub mod generator;
pub mod load;
pub mod pattern;
mod rows;
pub mod sizes;
mod tables;
pub mod text;
pub mod trace;

pub use application::{Application, StreamMode, Streaming};
pub use collective::Collective;
pub use error::{LineProblem, SizesError, TraceError, WorkloadError};
pub use generator::{Generator, HostGenerator};
pub use load::{mean_gap, open_loop_gap};
pub use pattern::{Arrival, Exchange, LoadCounts, Pattern, WorkloadConfig};
pub use sizes::{Interpolation, MAX_MESSAGE_BYTES, SizeDist};
pub use trace::{Trace, TraceEntry};
