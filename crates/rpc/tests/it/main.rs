//! The library over real sockets. One binary, because each links everything once more; `big.rs`, which measures its process's
//! memory, is another.

mod calls;
mod common;
mod examples;
mod faults;
mod kill;
mod streams;
