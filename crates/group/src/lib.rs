//! Systems for many: one-to-many and many-to-one transfers with help from agents and switches. In each folder a system
//! has its host part, its switch program and its controller, side by side.
//!
//! - [`orca`]: multicast with labels in packets and agents in racks.
//! - [`system`]: what switches have to know of a system.
//! - [`baseline`]: one-to-many as applications do it without help, to compare with.

pub mod baseline;
pub mod orca;
pub mod system;
