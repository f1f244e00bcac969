//! Words of files, divided among workers.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// What a word is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Split {
    /// Bytes between spaces, tabs, line feeds, form feeds and carriage returns, as in the word count of Hadoop's examples.
    #[default]
    Space,
    /// Letters from A to Z, in lower case; all other bytes separate words.
    Letters,
}

impl Split {
    const fn is_part(self, byte: u8) -> bool {
        match self {
            Self::Space => !byte.is_ascii_whitespace(),
            Self::Letters => byte.is_ascii_alphabetic(),
        }
    }
}

/// A part of a file: the words that begin in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The file.
    pub path: PathBuf,
    /// Offset of the first byte.
    pub start: u64,
    /// Offset behind the last byte; `u64::MAX` if the piece ends where the file does.
    pub end: u64,
}

/// Why words cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WordsError {
    /// A file or a directory cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A word is too long for a key.
    #[error("{} has a word of more than 16 MiB: it is no text", path.display())]
    TooLong {
        /// The file's path.
        path: PathBuf,
    },
    /// The user has ended the work.
    #[error("interrupted")]
    Interrupted,
}

/// The longest key.
const MAX_WORD: usize = 16 << 20;
const BUFFER: usize = 1 << 18;

/// Returns the regular files at these paths with their lengths. In directories, files are in the order of their names; links in them are
/// not followed. What is named by the user itself may be anything that can be read, and its length is 0 if it has none.
///
/// # Errors
/// If a path or a directory cannot be read.
pub fn files(paths: &[PathBuf]) -> Result<Vec<(PathBuf, u64)>, WordsError> {
    let mut found = Vec::new();
    for path in paths {
        let failed = |source| WordsError::Read { path: path.clone(), source };
        let about = std::fs::metadata(path).map_err(failed)?;
        if about.is_dir() {
            inside(path, &mut found)?;
        } else {
            found.push((path.clone(), if about.is_file() { about.len() } else { 0 }));
        }
    }
    Ok(found)
}

fn inside(folder: &Path, found: &mut Vec<(PathBuf, u64)>) -> Result<(), WordsError> {
    let failed = |source| WordsError::Read { path: folder.to_owned(), source };
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut entries = entries.collect::<io::Result<Vec<_>>>().map_err(failed)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let failed = |source| WordsError::Read { path: path.clone(), source };
        let about = entry.metadata().map_err(failed)?;
        if about.is_dir() {
            inside(&path, found)?;
        } else if about.is_file() {
            found.push((path, about.len()));
        }
    }
    Ok(())
}

/// The bytes of a file in which [`not_text`] looks for a zero.
const LOOKED_AT: u64 = 4096;

/// Returns the number of files that are no text: their first 4 KB hold a zero byte, as compressed files and programs do. Only
/// regular files that can be read are looked at.
#[must_use]
pub fn not_text(files: &[(PathBuf, u64)]) -> usize {
    let has_zero = |path: &Path| {
        let mut start = Vec::new();
        let read = File::open(path).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut start));
        read.is_ok() && start.contains(&0)
    };
    files.iter().filter(|(path, len)| *len > 0 && has_zero(path)).count()
}

/// Divides files into parts of about equal length, one for each of `parts` workers.
#[must_use]
pub fn divide(files: &[(PathBuf, u64)], parts: u8) -> Vec<Vec<Piece>> {
    let mut pieces = vec![Vec::new(); usize::from(parts.max(1))];
    let total: u64 = files.iter().map(|(_, len)| len).sum();
    let share = total.div_ceil(pieces.len() as u64).max(1);
    let mut before = 0;
    for (path, len) in files {
        let mut start = 0;
        loop {
            let part = (((before + start) / share) as usize).min(pieces.len() - 1);
            let boundary = (part as u64 + 1) * share - before;
            let is_last = boundary >= *len || part + 1 == pieces.len();
            let end = if is_last { u64::MAX } else { boundary };
            pieces[part].push(Piece { path: path.clone(), start, end });
            if is_last {
                break;
            }
            start = end;
        }
        before += len;
    }
    pieces
}

/// Calls `word` for each word that begins in the piece.
///
/// # Errors
/// See [`WordsError`]; [`WordsError::Interrupted`] once `stop` is set.
pub fn words(
    piece: &Piece,
    split: Split,
    stop: &AtomicBool,
    mut word: impl FnMut(&[u8]),
) -> Result<(), WordsError> {
    let path = &piece.path;
    let failed = |source| WordsError::Read { path: path.clone(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mut is_inside = false;
    if piece.start > 0 {
        file.seek(SeekFrom::Start(piece.start - 1)).map_err(failed)?;
        let mut before = [0];
        // A file that has become shorter has no words here.
        if file.read(&mut before).map_err(failed)? == 0 {
            return Ok(());
        }
        is_inside = split.is_part(before[0]);
    }
    let limit = piece.end.saturating_sub(piece.start);
    let mut buffer = vec![0; BUFFER];
    // The bytes of a word that continues in the next buffer, and whether it began in front of the piece.
    let (mut begun, mut at) = (Vec::new(), 0_u64);
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(WordsError::Interrupted);
        }
        let len = match file.read(&mut buffer) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        let bytes = &mut buffer[..len];
        let mut next = 0;
        while next < len || len == 0 {
            let end = bytes[next..].iter().position(|byte| !split.is_part(*byte));
            let end_at = end.map_or(len, |end| next + end);
            let found = &mut bytes[next..end_at];
            if split == Split::Letters {
                found.make_ascii_lowercase();
            }
            let ends = end.is_some() || len == 0;
            if is_inside {
                is_inside = !ends;
            } else if begun.is_empty() && ends {
                if !found.is_empty() {
                    if at + next as u64 >= limit {
                        return Ok(());
                    }
                    word(found);
                }
            } else {
                if begun.is_empty() && !found.is_empty() && at + next as u64 >= limit {
                    return Ok(());
                }
                begun.extend_from_slice(found);
                if begun.len() > MAX_WORD {
                    return Err(WordsError::TooLong { path: path.clone() });
                }
                if ends {
                    word(&begun);
                    begun.clear();
                }
            }
            if len == 0 {
                return Ok(());
            }
            next = end_at + 1;
        }
        at += len as u64;
        if at >= limit && begun.is_empty() && !is_inside {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &[Vec<Piece>], split: Split) -> Vec<String> {
        let stop = AtomicBool::new(false);
        let mut found = Vec::new();
        for piece in pieces.iter().flatten() {
            let add = |word: &[u8]| found.push(String::from_utf8_lossy(word).into_owned());
            words(piece, split, &stop, add).unwrap();
        }
        found.sort();
        found
    }

    #[test]
    fn each_word_is_in_one_piece_however_files_are_divided() {
        let folder = tempfile::tempdir().unwrap();
        let text = "One two,three\n\n  four\tfive\x0bsix\r\nOne é \0 ".repeat(20);
        let long = "x".repeat(3 * BUFFER + 17);
        let texts = [text.clone(), String::new(), format!("{long} end"), "last".to_owned()];
        std::fs::create_dir(folder.path().join("d")).unwrap();
        for (number, text) in texts.iter().enumerate() {
            std::fs::write(folder.path().join(format!("d/{number}")), text).unwrap();
        }
        std::os::unix::fs::symlink("0", folder.path().join("d/9")).unwrap();
        let files = files(&[folder.path().join("d")]).unwrap();
        assert_eq!(files.len(), 4, "links are not followed");
        let by_space = |byte: char| byte.is_ascii_whitespace();
        let mut expected: Vec<String> = texts
            .iter()
            .flat_map(|text| text.split(by_space).filter(|word| !word.is_empty()))
            .map(str::to_owned)
            .collect();
        expected.sort();
        for parts in [1, 2, 3, 7, 64] {
            let pieces = divide(&files, parts);
            assert_eq!(pieces.len(), usize::from(parts));
            assert_eq!(all(&pieces, Split::Space), expected, "{parts}");
        }
        // Cuts at each byte of a short text.
        let path = folder.path().join("short");
        std::fs::write(&path, &texts[0][..80]).unwrap();
        let piece = |start, end| Piece { path: path.clone(), start, end };
        for split in [Split::Space, Split::Letters] {
            let whole = all(&[vec![piece(0, u64::MAX)]], split);
            assert!(whole.len() >= 8);
            for cut in 1..80 {
                let cut = [vec![piece(0, cut), piece(cut, u64::MAX)]];
                assert_eq!(all(&cut, split), whole);
            }
        }
        assert!(all(&[vec![piece(0, u64::MAX)]], Split::Letters).contains(&"three".to_owned()));
    }

    #[test]
    fn compressed_files_are_no_text() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let late = [b"x".repeat(5_000), vec![0]].concat();
        let paths = [
            write("gz", &[0x1f, 0x8b, 8, 0, 0, 0]),
            write("text", "One \u{e9}".as_bytes()),
            write("empty", b""),
            write("late", &late),
        ];
        assert_eq!(not_text(&files(&paths).unwrap()), 1);
    }
}
