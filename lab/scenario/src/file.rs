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

/// [`read_at_most`] of a file that a scenario names, such as one of a page: a pipe that nobody writes would block for ever.
///
/// # Errors
/// If it cannot be read, or is not a regular file.
pub fn read_named(path: &Path, most: u64) -> std::io::Result<Option<Vec<u8>>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    read_at_most(path, most)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_and_a_device_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [pipe.as_path(), Path::new("/dev/zero"), folder.path()] {
            let error = read_named(path, 100).unwrap_err().to_string();
            assert_eq!(error, "it is not a regular file", "{}", path.display());
        }
        let file = folder.path().join("file");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(read_named(&file, 4).unwrap().as_deref(), Some(&b"text"[..]));
        assert_eq!(read_named(&file, 3).unwrap(), None);
    }
}
