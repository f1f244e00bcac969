//! Tables of keys, read with the rest of a scenario.

mod host;
mod oracle;
mod streams;
