//! Limits of the process.

use std::io;

/// Makes a write beyond `ulimit -f` fail with an error, as on a full disk, instead of ending the process by SIGXFSZ.
///
/// # Errors
/// If the system refuses to ignore the signal.
pub fn outlive_file_limit() -> io::Result<()> {
    // SAFETY: ignoring a signal installs no code, and there is no other handler of this one.
    let result = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if result == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}
