//! Integration tests: runs of the complete simulator.

mod circuits;
mod collectives;
mod common;
mod dcqcn;
mod examples;
mod hpcc;
mod leverage;
mod many_senders;
mod pfc;
mod receiver_driven;
mod recovery;
mod streams;
mod threads;
mod transports;
