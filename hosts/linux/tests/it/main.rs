//! Endpoints, the switch and the kernel's TCP on real sockets.

mod addresses;
mod common;
mod early;
mod faults;
mod homa_module;
mod hostile;
mod kernel;
mod loopback;
mod secure;
mod switch;
mod switch_circuits;
mod switch_netns;
mod switch_orca;
