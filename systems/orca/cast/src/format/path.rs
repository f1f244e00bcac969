//! Validation of paths in a stream.

use super::MAX_PATH;

/// The longest file name that Linux allows.
const MAX_NAME: usize = 255;

/// Receivers record the progress of streams in files next to the files of these streams. Their names begin with this, and so do those of
/// links that are not in their places yet. A sender that could write such a file could tell a receiver that it has the files of another
/// sender's stream, in any folder: that of one receiver may be below that of another.
pub const STATE_PREFIX: &[u8] = b".rackweave-cast-";

/// Why a path is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path is empty.
    #[error("an empty path")]
    Empty,
    /// The path or one of its components is longer than Linux allows.
    #[error("a path or a name in it is too long")]
    Long,
    /// The path begins with `/`.
    #[error("an absolute path")]
    Absolute,
    /// A component is empty, `.` or `..`.
    #[error("a path with `.`, `..` or an empty component")]
    Escapes,
    /// A component begins with [`STATE_PREFIX`].
    #[error("a name that is reserved for the progress of receivers")]
    Reserved,
    /// The path contains a zero byte.
    #[error("a path with a zero byte")]
    Zero,
}

/// Checks that a path stays below the directory that it is joined to.
///
/// # Errors
/// If the path could lead out of the directory, or is invalid.
pub fn check_path(path: &[u8]) -> Result<(), PathError> {
    if path.is_empty() {
        return Err(PathError::Empty);
    }
    if path.len() > MAX_PATH {
        return Err(PathError::Long);
    }
    if path[0] == b'/' {
        return Err(PathError::Absolute);
    }
    if path.contains(&0) {
        return Err(PathError::Zero);
    }
    for name in path.split(|byte| *byte == b'/') {
        if name.is_empty() || name == b"." || name == b".." {
            return Err(PathError::Escapes);
        }
        if name.starts_with(STATE_PREFIX) {
            return Err(PathError::Reserved);
        }
        if name.len() > MAX_NAME {
            return Err(PathError::Long);
        }
    }
    Ok(())
}
