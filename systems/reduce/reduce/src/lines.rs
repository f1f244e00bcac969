//! Pairs as lines of text: the key, a tab, the value. In keys, `\t`, `\n`, `\r` and `\\` stand for tab, line feed, carriage return and
//! backslash; all other bytes stand for themselves. A line `\.` ends the pairs: by it, what a writer that has died has left differs from all of
//! its pairs.

use std::io::{self, BufRead, Write};

/// Why a line is no pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLine {
    /// There is no tab.
    #[error("there is no tab between key and value")]
    NoTab,
    /// The value is not a number.
    #[error("the value is not a number from 0 to 2^64 - 1")]
    Value,
    /// A backslash is followed by another character.
    #[error("a backslash in a key must be written as \\\\")]
    Escape,
    /// The last line is not complete.
    #[error("the last line does not end with a line feed, so it may not be complete")]
    Cut,
    /// There is no line that ends the pairs.
    #[error("the pairs are not complete: they do not end with the line \\.")]
    NoEnd,
    /// Something follows the line that ends the pairs.
    #[error("a line follows the line \\., which ends the pairs")]
    BehindEnd,
    /// The line is too long.
    #[error("a key is longer than 16 MiB")]
    TooLong,
}

/// The longest key.
const MAX_KEY: usize = 16 << 20;

/// Writes a pair as a line.
///
/// # Errors
/// Those of the writer.
pub fn write_line(out: &mut impl Write, key: &[u8], value: u64) -> io::Result<()> {
    let mut rest = key;
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | b'\\'))
    {
        out.write_all(&rest[..at])?;
        out.write_all(match rest[at] {
            b'\t' => b"\\t",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            _ => b"\\\\",
        })?;
        rest = &rest[at + 1..];
    }
    out.write_all(rest)?;
    writeln!(out, "\t{value}")
}

/// Reads the pair of a line without its line feed; the key is written to `key`.
///
/// # Errors
/// See [`BadLine`].
pub fn read_line(line: &[u8], key: &mut Vec<u8>) -> Result<u64, BadLine> {
    key.clear();
    let tab = line.iter().position(|byte| *byte == b'\t').ok_or(BadLine::NoTab)?;
    let (text, value) = (&line[..tab], &line[tab + 1..]);
    let digits = std::str::from_utf8(value).map_err(|_| BadLine::Value)?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(BadLine::Value);
    }
    let value = digits.parse().map_err(|_| BadLine::Value)?;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        key.push(match byte {
            b'\\' => match bytes.next() {
                Some(b't') => b'\t',
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b'\\') => b'\\',
                _ => return Err(BadLine::Escape),
            },
            byte => *byte,
        });
    }
    if key.len() > MAX_KEY { Err(BadLine::TooLong) } else { Ok(value) }
}

/// The line that ends the pairs. No key is written as this.
pub const END: &[u8] = b"\\.";

/// Calls `pair` for each line, up to the end or the line [`END`], which must be there if `is_ended`. Returns the number of the line, from 1,
/// of an error in it.
///
/// # Errors
/// Those of the reader; [`io::ErrorKind::InvalidData`] with a [`BadLine`] for a line that is no pair, and for an end that is missing.
pub fn read_lines(
    mut reader: impl BufRead,
    is_ended: bool,
    mut pair: impl FnMut(&[u8], u64),
) -> Result<(), (u64, io::Error)> {
    let (mut line, mut key) = (Vec::new(), Vec::new());
    let invalid = |number, bad| (number, io::Error::new(io::ErrorKind::InvalidData, bad));
    let mut has_ended = false;
    for number in 1_u64.. {
        line.clear();
        // Twice the longest key, as each of its bytes may be escaped, and a value.
        let mut limited = io::Read::take(&mut reader, 2 * MAX_KEY as u64 + 64);
        let len = limited.read_until(b'\n', &mut line).map_err(|error| (number, error))?;
        if len == 0 {
            if is_ended && !has_ended {
                return Err(invalid(number, BadLine::NoEnd));
            }
            break;
        }
        if has_ended {
            return Err(invalid(number, BadLine::BehindEnd));
        }
        let is_whole = line.pop_if(|last| *last == b'\n').is_some();
        if line == END {
            has_ended = true;
            continue;
        }
        let value = read_line(&line, &mut key).map_err(|bad| invalid(number, bad))?;
        if !is_whole {
            return Err(invalid(number, BadLine::Cut));
        }
        pair(&key, value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_key_is_read_as_it_was_written() {
        let keys: [&[u8]; 7] = [
            b"",
            b"word",
            b"a\tb\nc\rd\\e",
            b"\\t",
            b"\\",
            "\u{e9}\u{a0}".as_bytes(),
            &[0, 255, 7],
        ];
        let mut out = Vec::new();
        for (value, key) in keys.iter().enumerate() {
            write_line(&mut out, key, u64::MAX - value as u64).unwrap();
        }
        assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), keys.len());
        let mut read = Vec::new();
        read_lines(&out[..], false, |key, value| read.push((key.to_vec(), value))).unwrap();
        let expected = keys.iter().enumerate().map(|(n, key)| (key.to_vec(), u64::MAX - n as u64));
        assert_eq!(read, expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_line_that_is_no_pair_is_named() {
        let wrong: [(&[u8], BadLine); 7] = [
            (b"word 1", BadLine::NoTab),
            (b"word\t", BadLine::Value),
            (b"word\t-1", BadLine::Value),
            (b"word\t+1", BadLine::Value),
            (b"word\t18446744073709551616", BadLine::Value),
            (b"wo\\rd\\x\t1", BadLine::Escape),
            (b"word\\\t1", BadLine::Escape),
        ];
        for (line, expected) in wrong {
            let text = [b"good\t1\n", line].concat();
            let (number, error) = read_lines(&text[..], false, |_, _| {}).unwrap_err();
            assert_eq!((number, error.to_string()), (2, expected.to_string()));
        }
    }

    #[test]
    fn an_end_that_is_missing_is_noticed() {
        let read = |text: &[u8], is_ended| {
            let mut read = 0;
            let result = read_lines(text, is_ended, |_, value| read += value);
            result.map(|()| read).map_err(|(number, error)| (number, error.to_string()))
        };
        let bad = |number, bad: BadLine| Err((number, bad.to_string()));
        assert_eq!(read(b"a\t1\nb\t2\n", false), Ok(3));
        assert_eq!(read(b"a\t1\nb\t2\n\\.\n", true), Ok(3));
        assert_eq!(read(b"\\.", true), Ok(0));
        assert_eq!(read(b"a\t1\nb\t2\n", true), bad(3, BadLine::NoEnd));
        assert_eq!(read(b"a\t1\nb\t2", false), bad(2, BadLine::Cut));
        assert_eq!(read(b"\\.\na\t1\n", false), bad(2, BadLine::BehindEnd));
    }
}
