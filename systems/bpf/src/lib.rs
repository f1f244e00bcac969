//! The switch programs of group systems as tc programs of the Linux kernel, for racks whose switch is a Linux machine.
//!
//! - [`orca`]: Orca's top-of-rack switch.
//! - [`swp2p`]: SWP2P's switch, which redirects requests for chunks of images.
//! - [`reduce`]: P4-ORDC's aggregating switch.
//! - [`tc`]: compiling, loading and attaching a program, which all of them share.
//!
//! Each makes the decisions of its program in Rust, and a test compares the two packet by packet. A
//! program is written in C, its source is part of this library, and `clang` compiles it when a `Tor` is attached.

use aya::maps::{Array, MapError, PerCpuArray};

use crate::tc::{Classifier, TcError};

pub mod orca;
pub mod reduce;
pub mod swp2p;
pub mod tc;

#[cfg(test)]
mod trial;

/// Why a switch in the kernel cannot be created or used.
#[derive(Debug, thiserror::Error)]
pub enum TorError {
    /// The program cannot run in the kernel.
    #[error(transparent)]
    Tc(#[from] TcError),
    /// The configuration is invalid, for this reason.
    #[error("{0}")]
    Config(String),
}

/// Defines the counters of a program, in the order of its C enumeration `COUNT_...`.
macro_rules! counters {
    (
        $(#[$meta:meta])*
        pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident,)+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$field_meta])* pub $field: u64,)+ }

        impl $name {
            fn read(classifier: &$crate::tc::Classifier) -> Result<Self, $crate::TorError> {
                let [$($field),+] = $crate::sums(classifier)?;
                Ok(Self { $($field),+ })
            }
        }
    };
}
use counters;

/// Reads the first `N` counters of a program, each summed over the processors.
fn sums<const N: usize>(classifier: &Classifier) -> Result<[u64; N], TorError> {
    let counters = PerCpuArray::<_, u64>::try_from(classifier.map("counters")?).map_err(state)?;
    let mut sums = [0; N];
    for (index, sum) in (0..).zip(&mut sums) {
        *sum = counters.get(&index, 0).map_err(state)?.iter().sum();
    }
    Ok(sums)
}

/// Writes `struct config` of a program.
fn configure<const N: usize>(classifier: &mut Classifier, words: [u32; N]) -> Result<(), TorError> {
    let map = classifier.map_mut("config")?;
    let mut map = Array::<_, [u32; N]>::try_from(map).map_err(state)?;
    map.set(0, words, 0).map_err(state)
}

/// Checks the number of ports of a switch, which the error calls `name`.
fn check_ports(ports: &[String], most: usize, name: &str) -> Result<(), TorError> {
    let count = ports.len();
    if (1..=most).contains(&count) {
        return Ok(());
    }
    Err(TorError::Config(format!("a {name} has 1 to {most} ports, not {count}")))
}

fn state(error: MapError) -> TorError {
    TcError::state(&error).into()
}
