//! Key files: a secret that all hosts of a cast, of an image or of remote procedure calls share.

use std::io::Read as _;
use std::path::Path;

use miette::miette;

/// The shortest secret. A guess at a shorter one can be checked against recorded packets without end.
const LEAST_BYTES: usize = 16;

/// The longest key file. A device without an end is not one.
const MOST_BYTES: usize = 1 << 16;

/// Reads a key file, and rejects a secret that is too short.
pub(crate) fn read(path: &Path) -> miette::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| miette!("cannot read the key file {}: {error}", path.display()))?;
    if bytes.len() > MOST_BYTES {
        return Err(miette!("{} is no key file: it has more than 64 KiB", path.display()));
    }
    if bytes.len() < LEAST_BYTES {
        return Err(miette!(
            "the key file {} has {} bytes; at least {LEAST_BYTES} are required. `head -c 32 /dev/urandom > FILE` creates a good one",
            path.display(),
            bytes.len()
        ));
    }
    Ok(bytes)
}
