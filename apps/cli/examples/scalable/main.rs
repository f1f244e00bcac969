//! The `rackweave` command with the congestion control `scalable` next to the built-in transports.
#![allow(
    unreachable_pub,
    reason = "the traits of Rackweave are public, and so must be their types"
)]

mod congestion;

fn main() -> std::process::ExitCode {
    rackweave::main(&[rackweave::Plugin::congestion::<congestion::Keys>()])
}
