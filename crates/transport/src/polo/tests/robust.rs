//! Robust.
