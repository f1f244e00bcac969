//! Limits of the process.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Makes a write beyond `ulimit -f` fail with an error, as on a full disk, instead of ending the process by SIGXFSZ.
///
/// # Errors
/// If the system refuses to ignore the signal.
pub fn outlive_file_limit() -> io::Result<()> {
    // SAFETY: ignoring a signal installs no code, and there is no other handler of this one.
    let result = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if result == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the number of files and sockets that the process may have open at a time; `None` if there is no limit.
#[must_use]
pub fn open_file_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Raises the number of files and sockets that the process may have open at a time (`ulimit -Sn`) to the most that it may choose
/// (`ulimit -Hn`). Systems set the former to 1024 because select(2) permits no more, which nothing here uses.
///
/// # Errors
/// If the system refuses.
pub fn raise_open_file_limit() -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}
