//! Lies.
