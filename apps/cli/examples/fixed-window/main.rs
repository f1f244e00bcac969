//! The `rackweave` command with the transport `fixed-window` next to the built-in ones.
#![allow(
    unreachable_pub,
    reason = "the traits of Rackweave are public, and so must be their types"
)]

mod transport;

fn main() -> std::process::ExitCode {
    rackweave::main(&[rackweave::Plugin::transport::<transport::Keys>()])
}
