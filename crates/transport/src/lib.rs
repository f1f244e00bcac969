//! The transports: one state machine a host, without I/O, clock or randomness.

pub mod homa;
pub mod tcp;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;

/// Which transport, and its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum TransportConfig {
    /// Homa.
    Homa(homa::Config),
    /// TCP (NewReno or CUBIC) and DCTCP.
    Tcp(tcp::Config),
}
