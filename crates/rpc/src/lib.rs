//! Calls and streams (draft).

mod client;
mod config;
mod driver;
mod error;
mod node;
mod server;
mod state;
mod stream;
mod trailer;

pub use bytes::Bytes;
pub use client::{Call, CallFuture, Client};
pub use config::{NodeConfig, Transport};
pub use error::{BindError, CallError, Refusal};
pub use node::{Node, Peer, Stats};
pub use rackweave_core::Rate;
pub use rackweave_linux::endpoint::Network;
pub use server::{Incoming, OneWay, Request, Server};
pub use stream::{ReadHalf, Stream, WriteHalf};
