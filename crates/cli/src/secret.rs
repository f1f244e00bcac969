//! Key files: a secret that all hosts of a cast, of an image or of remote procedure calls share.

use std::path::Path;

use miette::miette;

/// The shortest secret. A guess at a shorter one can be checked against recorded packets without end.
const LEAST_BYTES: usize = 16;

/// Reads a key file, and rejects a secret that is too short.
pub(crate) fn read(path: &Path) -> miette::Result<Vec<u8>> {
    let bytes = std::fs::read(path)
        .map_err(|error| miette!("cannot read the key file {}: {error}", path.display()))?;
    if bytes.len() < LEAST_BYTES {
        return Err(miette!(
            "the key file {} has {} bytes; at least {LEAST_BYTES} are required. `head -c 32 /dev/urandom > FILE` creates a good one",
            path.display(),
            bytes.len()
        ));
    }
    Ok(bytes)
}
