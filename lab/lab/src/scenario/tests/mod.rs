//! Tables of keys, read with the rest of a scenario.

mod follows;
mod host;
mod hpcc;
mod oracle;
mod streams;
