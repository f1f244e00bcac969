//! Words of files, divided among workers.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rackweave_disk::{Stream, command, container};

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
    /// How the file is compressed; a piece of such a file is all of it.
    pub stream: Option<Stream>,
}

/// A file whose words are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The file.
    pub path: PathBuf,
    /// Its length in bytes; 0 if it has none, as a pipe.
    pub len: u64,
    /// How it is compressed: by gzip or zstd.
    pub stream: Option<Stream>,
}

impl Input {
    fn new(path: PathBuf, about: &Metadata) -> Result<Self, WordsError> {
        let len = if about.is_file() { about.len() } else { 0 };
        let mut stream = None;
        if len > 0 {
            let failed = |source| WordsError::Read { path: path.clone(), source };
            let file = File::open(&path).map_err(failed)?;
            if let Some(found) = container(&file, len).map_err(failed)? {
                if found.stream == Some(Stream::Other) {
                    let to = match path.extension() {
                        Some(_) => path.with_extension(""),
                        None => path.with_extension("txt"),
                    };
                    let (what, convert) = (found.name, command(found.convert, &path, &to));
                    return Err(WordsError::Compressed { path, what, convert });
                }
                stream = found.stream;
            }
        }
        Ok(Self { path, len, stream })
    }

    /// Returns all of the file as one piece.
    #[must_use]
    pub fn whole(self) -> Piece {
        Piece { path: self.path, start: 0, end: u64::MAX, stream: self.stream }
    }
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
    /// A file is compressed in a way that is not read.
    #[error("{} is {what}: expand it first, with `{convert}`", path.display())]
    Compressed {
        /// Its path.
        path: PathBuf,
        /// What it is, such as "compressed by xz".
        what: &'static str,
        /// The command that expands it.
        convert: String,
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

/// Returns the regular files at these paths. In directories, files are in the order of their names. Links in them are not
/// followed, and names that begin with `_` or `.` are left out, as by Hadoop's `FileInputFormat`: `_SUCCESS` is no input. What is
/// named by the user itself may be anything that can be read.
///
/// # Errors
/// If a path or a directory cannot be read, or a file is compressed by something else than gzip and zstd.
pub fn files(paths: &[PathBuf]) -> Result<Vec<Input>, WordsError> {
    let mut found = Vec::new();
    for path in paths {
        let failed = |source| WordsError::Read { path: path.clone(), source };
        let about = std::fs::metadata(path).map_err(failed)?;
        if about.is_dir() {
            inside(path, &mut found)?;
        } else {
            found.push(Input::new(path.clone(), &about)?);
        }
    }
    Ok(found)
}

fn inside(folder: &Path, found: &mut Vec<Input>) -> Result<(), WordsError> {
    let failed = |source| WordsError::Read { path: folder.to_owned(), source };
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut entries = entries.collect::<io::Result<Vec<_>>>().map_err(failed)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        if matches!(entry.file_name().as_encoded_bytes().first(), Some(b'_' | b'.')) {
            continue;
        }
        let path = entry.path();
        let failed = |source| WordsError::Read { path: path.clone(), source };
        let about = entry.metadata().map_err(failed)?;
        if about.is_dir() {
            inside(&path, found)?;
        } else if about.is_file() {
            found.push(Input::new(path, &about)?);
        }
    }
    Ok(())
}

/// The bytes of a file in which [`not_text`] looks for a zero.
const LOOKED_AT: u64 = 4096;

/// Returns the number of files that are no text: their first 4 KB hold a zero byte, as archives and programs do. Only regular
/// files that can be read, and are not expanded, are looked at.
#[must_use]
pub fn not_text(files: &[Input]) -> usize {
    let has_zero = |path: &Path| {
        let mut start = Vec::new();
        let read = File::open(path).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut start));
        read.is_ok() && start.contains(&0)
    };
    files.iter().filter(|it| it.len > 0 && it.stream.is_none() && has_zero(&it.path)).count()
}

/// Divides files into parts of about equal length, one for each of `parts` workers. A compressed file cannot be divided.
#[must_use]
pub fn divide(files: &[Input], parts: u8) -> Vec<Vec<Piece>> {
    let mut pieces = vec![Vec::new(); usize::from(parts.max(1))];
    let total: u64 = files.iter().map(|it| it.len).sum();
    let share = total.div_ceil(pieces.len() as u64).max(1);
    let mut before = 0;
    for Input { path, len, stream } in files {
        let mut start = 0;
        loop {
            let part = (((before + start) / share) as usize).min(pieces.len() - 1);
            let boundary = (part as u64 + 1) * share - before;
            let is_last = boundary >= *len || part + 1 == pieces.len() || stream.is_some();
            let end = if is_last { u64::MAX } else { boundary };
            pieces[part].push(Piece { path: path.clone(), start, end, stream: *stream });
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
    let mut file: Box<dyn Read> = match piece.stream {
        None => Box::new(file),
        Some(Stream::Gzip) => Box::new(flate2::read::MultiGzDecoder::new(file)),
        Some(_) => Box::new(zstd::Decoder::new(file).map_err(failed)?),
    };
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
    use std::io::Write as _;

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
        let piece = |start, end| Piece { path: path.clone(), start, end, stream: None };
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
    fn inputs_are_those_of_hadoop_and_compressed_ones_are_expanded() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str, bytes: &[u8]| std::fs::write(path(name), bytes).unwrap();
        for hidden in ["_SUCCESS", ".part-0.crc", "_logs/history", ".git/HEAD"] {
            std::fs::create_dir_all(path(hidden).parent().unwrap()).unwrap();
            write(hidden, b"hidden");
        }
        let gzip = |text: &str| {
            let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            to.write_all(text.as_bytes()).unwrap();
            to.finish().unwrap()
        };
        // Two members, as `cat` makes them, under any name.
        write("a", &[gzip("one two\n"), gzip("three")].concat());
        write("b.zst", &zstd::encode_all(&b"four five"[..], 3).unwrap());
        write("c", b"six");
        write("program", &[1, 0, 2]);
        let found = files(&[folder.path().to_owned()]).unwrap();
        assert_eq!(found.len(), 4);
        assert_eq!(not_text(&found), 1);
        for parts in [1, 3, 50] {
            let words = all(&divide(&found, parts), Split::Letters);
            assert_eq!(words, ["five", "four", "one", "six", "three", "two"], "{parts}");
        }
        // What a user names is no secret.
        assert_eq!(files(&[path("_SUCCESS")]).unwrap()[0].len, 6);
        // A stream that was cut is an error, and so is one that is not read.
        let whole = gzip("a word, and more of it");
        write("a", &whole[..whole.len() - 4]);
        let cut = files(&[path("a")]).unwrap().remove(0).whole();
        let read = words(&cut, Split::Space, &AtomicBool::new(false), |_| {});
        assert!(matches!(read, Err(WordsError::Read { .. })));
        write("d.xz", b"\xfd7zXZ\0\0\x04");
        let error = files(&[folder.path().to_owned()]).unwrap_err().to_string();
        assert!(error.contains("d.xz is compressed by xz: expand it first, with `unxz -c < "));
    }

    #[test]
    fn programs_are_no_text() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let late = [b"x".repeat(5_000), vec![0]].concat();
        let paths = [
            write("program", &[0x7f, b'E', b'L', b'F', 0, 0]),
            write("text", "One \u{e9}".as_bytes()),
            write("empty", b""),
            write("late", &late),
        ];
        assert_eq!(not_text(&files(&paths).unwrap()), 1);
    }
}
