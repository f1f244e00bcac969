//! Paths in a stream.

use super::MAX_PATH;

/// The longest name of a file in Linux.
const MAX_NAME: usize = 255;

/// Why a path is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Nothing is there.
    #[error("an empty path")]
    Empty,
    /// It would be refused by the system.
    #[error("a path or a name in it is too long")]
    Long,
    /// `/etc/passwd`.
    #[error("an absolute path")]
    Absolute,
    /// `..` or `.`
    #[error("a path with `.`, `..` or an empty component")]
    Escapes,
    /// A zero byte.
    #[error("a path with a zero byte")]
    Zero,
}

/// Checks that a path stays below the folder that it is put into.
///
/// # Errors
/// Says what is wrong with it.
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
        if name.len() > MAX_NAME {
            return Err(PathError::Long);
        }
    }
    Ok(())
}
