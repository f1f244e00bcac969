//! Group communication systems: one-to-many and many-to-one transfers that agents and switches assist. The folder of a system has
//! its host, its switch program and its controller side by side.
//!
//! - [`orca`]: multicast with labels in packets and agents in racks.
//! - [`system`]: what switches must know of a system.
//! - [`baseline`]: one-to-many transfers of applications without such assistance, for comparison.

pub mod baseline;
pub mod orca;
pub mod system;
