//! The decoder of file records.

use super::super::extents::EXTENT_BYTES;
use super::super::{
    Attribute, CHUNK, Extents, FileHeader, MAX_ATTRIBUTES, MAX_EXTENTS, MAX_PATH, MAX_TARGET,
    PathError, RecordKind, check_path, file_record_bytes, kind, tag,
};
use super::DecodeError;

/// The length in bytes of the numbers of a user and a group.
const OWNER: usize = 8;

/// Returns the length of the file record that begins with these bytes; `None` if more of it is needed.
pub(in super::super) fn record_len(
    record: &[u8],
    begins: u64,
) -> Option<Result<usize, DecodeError>> {
    let wrong = || Some(Err(DecodeError::Length { bytes: begins }));
    let front = file_record_bytes(0);
    let path = number(record.get(front - 2..front)?) as usize;
    if path > MAX_PATH {
        return Some(Err(DecodeError::Path(PathError::Long)));
    }
    let mut len = front + path;
    match kind::plain(record[1]) {
        kind::WITH_HOLES => match runs_bytes(record.get(len..len + 4)?) {
            Some(runs) => len += runs,
            None => return wrong(),
        },
        kind @ (kind::HARD_LINK | kind::SYMBOLIC_LINK) => {
            let most = if kind == kind::SYMBOLIC_LINK { MAX_TARGET } else { MAX_PATH };
            match number(record.get(len..len + 2)?) as usize {
                target if target <= most => len += 2 + target,
                _ => return Some(Err(DecodeError::Path(PathError::Long))),
            }
        }
        _ => {}
    }
    if record[1] & kind::WITH_ATTRIBUTES != 0 {
        match number(record.get(len..len + 4)?) as usize {
            attributes if attributes <= MAX_ATTRIBUTES => len += 4 + attributes,
            _ => return wrong(),
        }
    }
    if record[1] & kind::WITH_OWNER != 0 {
        len += OWNER;
    }
    Some(Ok(len))
}

/// Decodes extended attributes; `None` if they are malformed.
fn attributes(mut bytes: &[u8]) -> Option<Vec<Attribute>> {
    let mut attributes = Vec::new();
    while let Some((len, rest)) = bytes.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(*len))?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        if name.is_empty() || name.contains(&0) {
            return None;
        }
        attributes.push(Attribute { name: name.to_vec(), value: value.to_vec() });
        bytes = rest;
    }
    Some(attributes)
}

/// Returns the length in bytes of the runs of a file whose number this is, the number included; `None` if it is too large.
fn runs_bytes(count: &[u8]) -> Option<usize> {
    let count = usize::try_from(number(count)).ok().filter(|count| *count <= MAX_EXTENTS);
    count.map(|count| 4 + count * EXTENT_BYTES)
}

pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Decodes a file record whose length has been checked.
pub(in super::super) fn file_header(record: &[u8], begins: u64) -> Result<FileHeader, DecodeError> {
    let front = file_record_bytes(0);
    let wrong = DecodeError::Length { bytes: begins };
    let (path, rest) = record[front..].split_at(number(&record[front - 2..front]) as usize);
    let path = path.to_vec();
    check_path(&path)?;
    let kind = kind::plain(record[1]);
    let is_known = kind <= kind::SYMBOLIC_LINK;
    if record[0] != tag::FILE || !is_known {
        let found = if is_known { record[0] } else { record[1] };
        return Err(DecodeError::OutOfPlace { found, bytes: begins });
    }
    let special = match kind {
        kind::WITH_HOLES => runs_bytes(rest.get(..4).ok_or(wrong)?).ok_or(wrong)?,
        kind::HARD_LINK | kind::SYMBOLIC_LINK => 2 + number(rest.get(..2).ok_or(wrong)?) as usize,
        _ => 0,
    };
    let (special, rest) = rest.split_at_checked(special).ok_or(wrong)?;
    let (owner, rest) = match record[1] & kind::WITH_OWNER {
        0 => (None, rest),
        _ => {
            let (rest, owner) = rest.split_last_chunk::<OWNER>().ok_or(wrong)?;
            let (user, group) = owner.split_at(OWNER / 2);
            let (user, group) = (number(user) as u32, number(group) as u32);
            // The system takes it for none.
            if user == u32::MAX || group == u32::MAX {
                return Err(wrong);
            }
            (Some((user, group)), rest)
        }
    };
    let attributes = match record[1] & kind::WITH_ATTRIBUTES {
        0 => None,
        _ => Some(rest.get(4..).and_then(attributes).ok_or(wrong)?),
    };
    let length = number(&record[16..24]);
    let length = (length != u64::MAX).then_some(length);
    let target = || special[2..].to_vec();
    let kind = match kind {
        kind::FILE => RecordKind::File,
        kind::DIRECTORY => RecordKind::Directory,
        kind::WITH_HOLES => {
            let chunks = length.map(|length| length.div_ceil(CHUNK as u64));
            let extents = chunks.and_then(|chunks| Extents::decode(&special[4..], chunks));
            RecordKind::WithHoles(extents.ok_or(wrong)?)
        }
        kind::HARD_LINK => {
            check_path(&special[2..])?;
            RecordKind::HardLink(target())
        }
        _ => match special[2..].is_empty() || special[2..].contains(&0) {
            true => return Err(DecodeError::Target),
            false => RecordKind::SymbolicLink(target()),
        },
    };
    // Offsets in a stream have 48 bits.
    let is_wrong = |length: u64| match kind {
        RecordKind::File | RecordKind::WithHoles(_) => length >= 1 << 47,
        _ => length > 0,
    };
    let is_link = matches!(kind, RecordKind::HardLink(_) | RecordKind::SymbolicLink(_));
    if length.is_some_and(is_wrong) || is_link && length.is_none() {
        return Err(wrong);
    }
    Ok(FileHeader {
        path,
        kind,
        length,
        attributes,
        owner,
        mode: (number(&record[2..4]) & 0o777) as u16,
        mtime_s: number(&record[4..12]) as i64,
        mtime_ns: (number(&record[12..16]) as u32).min(999_999_999),
    })
}
