//! Exit codes, which scripts depend on.

/// The command succeeded.
pub(crate) const DONE: u8 = 0;
/// The command ran, and some part of it failed.
pub(crate) const FAILED: u8 = 1;
/// The arguments or a file are invalid.
pub(crate) const USAGE: u8 = 2;
/// Ctrl-C stopped the command.
pub(crate) const INTERRUPTED: u8 = 130;

/// Ends the process.
pub(crate) fn now(code: u8) -> ! {
    std::process::exit(i32::from(code))
}
