//! TCP and DCTCP.

/// TCP's parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {}
