//! Nodes as their runtimes and their neighbours see them: real sockets, a registry that counts, and what goes wrong.

mod common;
mod faults;
mod pulls;
