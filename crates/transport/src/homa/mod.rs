//! Homa.

/// Homa's parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {}
