//! Sending files and byte streams to many hosts at once: Orca ([`rackweave_orca`]) over sockets.
//!
//! A [`source`] is read as one stream of records ([`mod@format`]): files, their chunks, and hashes of both. An
//! [`orca::Engine`] carries the stream to any number of receivers, and each writes it to a [`sink`]. After an
//! interruption, receivers keep the parts of files that were verified ([`store`]).
//!
//! ```
//! use rackweave_cast::orca::{Accept, Decision, Engine, EngineConfig, EngineEvent};
//! use rackweave_cast::sink::{Folder, FolderConfig, Sink};
//! use rackweave_cast::source::Files;
//! use rackweave_orca::flow::FlowConfig;
//! use rackweave_orca::host::Spread;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (from, to) = (tempfile::tempdir()?, tempfile::tempdir()?);
//! # let folder = to.path().to_owned();
//! // The receiver writes every stream that it is offered into a directory.
//! let accept: Accept = Box::new(move |offer| {
//!     let config = FolderConfig { folder: folder.clone(), ..FolderConfig::default() };
//!     let stream = offer.stream;
//!     Decision::Accept(Box::new(move |cancel| {
//!         // Files that are there already are hashed until the transfer ends.
//!         let config = FolderConfig { cancel: cancel.clone(), ..config };
//!         Ok(Box::new(Folder::new(config, stream)?) as Box<dyn Sink>)
//!     }))
//! });
//! let mut receiver = Engine::new(EngineConfig::new("127.0.0.1:0".parse()?), Some(accept))?;
//!
//! let path = from.path().join("greeting");
//! std::fs::write(&path, "hello")?;
//! let mut sender = Engine::new(EngineConfig::new("127.0.0.1:0".parse()?), None)?;
//! let host = sender.add_peer(receiver.local_addr());
//! let files = Box::new(Files::new(&[path])?);
//! sender.open(files, &[host], Spread::Unicast, FlowConfig::default())?;
//!
//! let files = loop {
//!     sender.turn()?;
//!     receiver.turn()?;
//!     match receiver.poll_event() {
//!         Some(EngineEvent::Received { files, .. }) => break files,
//!         Some(EngineEvent::ReceiveFailed { reason, .. }) => panic!("{reason:?}"),
//!         _ => {}
//!     }
//! };
//! assert_eq!(std::fs::read(&files[0].path)?, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! Local applications use the engine of another process through [`control`]. For comparison, [`baseline`] sends the
//! same streams over TCP.

pub mod baseline;
pub mod control;
pub mod excludes;
pub mod format;
pub mod orca;
pub mod sink;
pub mod source;
pub mod store;
mod wake;

pub use wake::Waker;
