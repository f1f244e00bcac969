//! Limits of the process.

use std::io;

/// Has a file that grows beyond `ulimit -f` be an error of the write, as a full disk is, instead of the process's end.
///
/// # Errors
/// What the system says.
pub fn outlive_file_limit() -> io::Result<()> {
    // SAFETY: to ignore a signal installs no code, and nobody else handles this one.
    let result = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if result == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}
