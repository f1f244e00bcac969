//! Tests of the library over real sockets. They are one binary, because each links all dependencies; `big.rs`, which
//! measures the memory of its process, is another.

mod calls;
mod common;
mod examples;
mod faults;
mod keys;
mod kill;
mod stopped;
mod streams;
mod traces;
