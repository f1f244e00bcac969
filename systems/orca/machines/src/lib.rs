//! Orca: server-assisted multicast (Diab, Yassini and Hefeeda, NSDI '22; `docs/protocols/orca.md#orca`).
//!
//! - [`label`]: the layout of labels in a fabric; [`view`], [`switch`]: how switches forward by them.
//! - [`system`]: how switches recognise and read Orca's packets.
//! - [`agent`] with its [`table`]: labels for the packets of a rack; [`controller`] with its [`store`]: all sessions.
//! - [`flow`]: the reliable stream, which the paper does not have; [`parity`]: its erasure code; [`host`]: sender,
//!   receiver and agent in one [`Node`](rackweave_core::Node).
//! - [`scale`]: the size of all this state for a million sessions.
//! - [`app`]: the application of casts and what is measured of it, over any carrier; [`baseline`]: casts without assistance.
//!
//! The pilot label of an Orca packet from host 0 to two of the racks of a leaf-spine fabric:
//!
//! ```
//! use rackweave_core::{HostId, Rate};
//! use rackweave_orca::label::Layout;
//! use rackweave_switch::Fabric;
//! use rackweave_switch::config::FabricConfig;
//!
//! let fabric = FabricConfig::leaf_spine(4, 8, 2, Rate::from_gbps(10));
//! let layout = Layout::new(&Fabric::new(&fabric)?)?;
//! let pilot = layout.pilot(HostId(0), [1, 3].into_iter(), 0);
//! assert_eq!(layout.racks_of(HostId(0), pilot).collect::<Vec<_>>(), [1, 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod agent;
pub mod app;
pub mod baseline;
pub mod controller;
pub mod flow;
#[cfg(test)]
mod harness;
pub mod host;
pub mod label;
pub mod parity;
pub mod scale;
pub mod store;
pub mod switch;
pub mod system;
pub mod table;
pub mod view;
