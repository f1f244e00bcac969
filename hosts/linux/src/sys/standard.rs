//! Standard input and output as files that carry data.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};

/// Which of the descriptors 0 to 2 were closed when the process began: one bit for each.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Rust's runtime opens `/dev/null` at standard descriptors that are closed, before `main`. Functions in `.init_array` run earlier
/// (System V ABI, "Initialization and Termination Functions").
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_CLOSED: extern "C" fn() = note_closed;

extern "C" fn note_closed() {
    for fd in 0..3 {
        // SAFETY: the call has no pointers, and changes nothing.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
}

/// Returns standard input as a file. [`io::stdin`] is not for data: it takes a descriptor that is closed (`<&-`), or that cannot be read,
/// for an input that is empty.
///
/// # Errors
/// If the process was started without standard input, or has no descriptors left.
pub fn standard_input() -> io::Result<File> {
    open(0, &io::stdin())
}

/// Returns standard output as a file, without a buffer. [`io::stdout`] is not for data: it reports what is written to a descriptor that is
/// closed (`>&-`), or that cannot be written, as written.
///
/// # Errors
/// If the process was started without standard output, or has no descriptors left.
pub fn standard_output() -> io::Result<File> {
    open(1, &io::stdout())
}

fn open(fd: u8, stream: &impl AsFd) -> io::Result<File> {
    if CLOSED.load(Ordering::Relaxed) >> fd & 1 == 1 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    Ok(stream.as_fd().try_clone_to_owned()?.into())
}
