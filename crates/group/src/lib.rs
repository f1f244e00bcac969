//! Group communication systems: one-to-many and many-to-one transfers that agents and switches assist. Each system has
//! a directory with its host, its switch program and its controller.
//!
//! - [`app`]: the application of one-to-many transfers and what is measured of it, over any carrier.
//! - [`orca`]: multicast with labels in packets and agents in racks.
//! - [`imaging`]: disk images for many hosts.
//! - [`reduce`]: pairs of key and value from many workers, added up on the way to one master.
//! - [`baseline`]: one-to-many transfers by applications without such assistance, for comparison.
//!
//! Switches run their programs by the contract of [`rackweave_switch::system`].
//!
//! The pilot label of an Orca packet from host 0 to two of the racks of a leaf-spine fabric:
//!
//! ```
//! use rackweave_core::{HostId, Rate};
//! use rackweave_group::orca::label::Layout;
//! use rackweave_switch::Fabric;
//! use rackweave_switch::config::FabricConfig;
//!
//! let fabric = FabricConfig::leaf_spine(4, 8, 2, Rate::from_gbps(10));
//! let layout = Layout::new(&Fabric::new(&fabric)?)?;
//! let pilot = layout.pilot(HostId(0), [1, 3].into_iter(), 0);
//! assert_eq!(layout.racks_of(HostId(0), pilot).collect::<Vec<_>>(), [1, 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod app;
pub mod baseline;
pub mod imaging;
pub mod orca;
pub mod reduce;
