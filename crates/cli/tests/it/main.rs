//! The command as users and scripts run it. One binary: each would link everything once more.

mod cast;
mod cast_edges;
mod casts;
mod command;
mod common;
mod labels;
mod labels_ways;
mod paper;
mod rpc;
mod switch;
mod testbed;
