//! The control plane of P4-ORDC as a service: a [`Controller`] behind HTTP for masters of jobs, and encrypted messages for the agents
//! of switches.
//!
//! - [`Service`]: the controller, its database, its page. North: HTTP with JSON ([`api`]); south: [`rackweave_rpc`].
//! - [`run_agent`]: the agent of a switch, which is a [`Device`].
//! - [`Client`]: requests of masters and operators; [`Link`]: the place of a master at its controller, kept by a thread.
//! - [`Database`]: the store of a controller: one file, which survives kills.
//!
//! [`Controller`]: rackweave_rackless::controller::Controller

mod agent;
pub mod api;
mod client;
mod core;
mod link;
mod metrics;
mod north;
mod service;
mod south;
mod status;
mod store;
mod tenants;

pub use agent::{AgentConfig, AgentEvent, Device, run_agent};
pub use client::{Client, ClientError};
pub use link::{Grant, Link, LinkError, Uploads};
pub use rackweave_rpc::{Key, ShortSecret};
pub use service::{PodError, Service, ServiceConfig};
pub use store::{Database, DatabaseError};
pub use tenants::{Tenants, TenantsError};
