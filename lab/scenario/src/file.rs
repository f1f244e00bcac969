//! Files that scenarios name.

use std::io::Read as _;
use std::path::Path;

/// Reads a file, or returns `None` if it has more than this number of bytes. Its length is not asked for: a device such as `/dev/zero`
/// has the length 0 and no end.
///
/// # Errors
/// If it cannot be read.
pub fn read_at_most(path: &Path, most: u64) -> std::io::Result<Option<Vec<u8>>> {
    let file = std::fs::File::open(path)?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}
