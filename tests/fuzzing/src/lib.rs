//! What the fuzz targets of `fuzz/` check that are about more than one decoder: state machines under any packets, commands and times, and
//! everything else that reads bytes of others. The ordinary tests of this crate replay `fuzz/corpus`, and some changes of it.
//!
//! A target is a function of bytes that panics if a property does not hold. It reads its choices from the bytes (`input`): the configuration,
//! then one action after the other. [`docs/reliability.md`](../../../docs/reliability.md) says how to run them.

mod control_socket;
mod imaging;
mod input;
mod mesh;
mod node;
mod orca;
mod reduce;
mod state;
mod switch;
mod texts;
mod transports;
mod vectors;

pub use control_socket::control_socket;
pub use imaging::{frisbee, swp2p};
pub use orca::orca;
pub use reduce::reduce;
pub use state::state;
pub use switch::switch;
pub use texts::scenario;
pub use transports::transports;
pub use vectors::vectors;

/// Any bytes as the frames of a gRPC call; the first byte chooses the longest head.
pub fn grpc(bytes: &[u8]) {
    let Some((limit, bytes)) = bytes.split_first() else { return };
    let _frames = rackweave_grpc::direct::checks::frames(bytes, 1 << (limit % 20));
}

/// A target.
pub type Target = fn(&[u8]);

/// All targets of this crate, by the names that they have in `fuzz/`.
pub const TARGETS: [(&str, Target); 11] = [
    ("control_socket", control_socket),
    ("frisbee", frisbee),
    ("grpc", grpc),
    ("orca", orca),
    ("reduce", reduce),
    ("scenario", scenario),
    ("state", state),
    ("switch", switch),
    ("swp2p", swp2p),
    ("transports", transports),
    ("vectors", vectors),
];
