//! Aggregation over sockets: workers send pairs of key and value to one master, and a switch on the way adds up the values of equal
//! keys, if there is one. The result is exact; which way was taken changes only how much reaches the master.
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//!
//! use rackweave_reduce::{Encoder, Master, MasterConfig, Operator, WorkerConfig, run_worker};
//!
//! let stop = AtomicBool::new(false);
//! let config = MasterConfig::new("127.0.0.1:0".parse().unwrap(), 2);
//! let master = Master::bind(config)?;
//! let address = master.local_addr();
//! let totals = std::thread::scope(|scope| {
//!     for number in 0..2 {
//!         let stop = &stop;
//!         scope.spawn(move || {
//!             let mut pairs = Encoder::new(Operator::Sum);
//!             pairs.add(b"both", 1);
//!             pairs.add(format!("worker {number}").as_bytes(), 10);
//!             run_worker(WorkerConfig::new(number, address), pairs, stop, &mut |_| {})
//!         });
//!     }
//!     master.run(&stop, &mut |_| {})
//! })?
//! .totals;
//! let expected = [("both", 2), ("worker 0", 10), ("worker 1", 10)];
//! assert!(totals.iter().map(|(key, sum)| (&key[..], *sum)).eq(expected.map(|(key, sum)| (key.as_bytes(), sum))));
//! # Ok::<(), rackweave_reduce::ReduceError>(())
//! ```
//!
//! - [`Encoder`]: the pairs of a worker, combined by an [`Operator`].
//! - [`run_worker`], [`Master`]: they drive the machines of [`rackweave_aggregation`], which also run in the simulator, over one UDP
//!   socket each, in the calling thread.
//! - [`AllReduce`], [`OpenGroup`], [`VectorMaster`]: the same for dense vectors, whose sum all workers get.
//! - [`words`], [`lines`]: the words of files, and pairs as lines of text.
//! - [`Moves`]: changes of an optical circuit switch in the middle of a job.
//! - [`Net`]: the socket of a host, on which any [`Machine`] runs that sends and receives such messages.
//! - [`Attachment`]: how a host is connected: by ordinary UDP, or by the overlay of a user-space switch.

mod encoder;
mod error;
pub mod lines;
mod master;
mod members;
mod moves;
mod net;
mod vector;
pub mod words;
mod worker;

pub use encoder::Encoder;
pub use error::ReduceError;
pub use master::{Coordinator, Master, MasterConfig, MasterEvent, Outcome, Stats};
pub use members::{MemberEvent, Waits};
pub use moves::{JobMove, Moves, OpticalSwitch};
pub use net::{Attachment, Machine, Net};
pub use rackweave_aggregation::master::{Absence, Aggregation, Epochs};
pub use rackweave_aggregation::source::Order;
pub use rackweave_aggregation::vector::master::Key;
pub use rackweave_wire::reduce::{
    Difference, Format, MAX_CHUNK_BYTES, MAX_POOL, MAX_WORKERS, Offer, Operator, PORT, Rejection,
    Shape,
};
pub use vector::{
    AllReduce, AllReduceConfig, AllReduceReport, Element, OpenGroup, VectorMaster,
    VectorMasterConfig, VectorMasterEvent, VectorStats, digest,
};
pub use worker::{MasterAt, WorkerConfig, WorkerReport, run_worker};
