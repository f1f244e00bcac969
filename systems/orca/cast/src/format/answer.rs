//! A receiver's answer to a manifest. The format is Rackweave's.
//!
//! ```text
//! kinds(1)  what is lacking: a bit for each entry  [differences]  [obstacle]  [entries(8) failed(8) hidden(8) deleted failures]
//! kinds: 16 times that of the obstacle, 0 for none, 8 with differences, and the deletion: 0 none, 1 refused, 2 done and 3 not done,
//!        with the numbers behind
//! differences: runs of entries with the same one, until all have one: difference(1) entries(2)
//! obstacle: entries(8) path length(2) path
//! deleted, failures: count(4), each path with its length(2)
//! ```

use rackweave_core::Bitmap;

use super::MAX_PATH;

/// The most bytes of paths in an answer.
const MAX_NAMED: usize = 256 << 10;

/// The length in bytes of what an answer has behind [`Lacking`], without paths.
const NUMBERS: usize = 8 + 8 + 8 + 4 + 4;

/// The length in bytes of a run of differences, and the most entries of one.
const RUN: usize = 3;
const LONGEST_RUN: usize = u16::MAX as usize;

/// The length in bytes of an obstacle without its path.
const OBSTACLE: usize = 8 + 2;

/// The bit of an answer's kinds that says that it has differences.
const DIFFERENCES: u8 = 8;

/// What a receiver has found when it compared a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Findings {
    /// What it lacks.
    pub lacking: Lacking,
    /// How what it has differs from each entry, if that was asked for.
    pub differences: Option<Vec<Difference>>,
    /// What it has deleted.
    pub deletion: Deletion,
    /// Why it takes nothing of the cast.
    pub obstacle: Option<Obstacle>,
}

/// How what a receiver has differs from an entry of a manifest: the first of these that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// In nothing.
    None,
    /// It has nothing of that name.
    New,
    /// It has something else than a file, a directory or a link, as which the entry is.
    Kind,
    /// A file has another length.
    Length,
    /// A file has other bytes, or bytes that it cannot read, or has not on its disk.
    Content,
    /// A symbolic link has another text.
    Target,
    /// Another name of a file is not a name of that file.
    Link,
    /// The time is another one. The bytes of a file were not compared, unless that was asked for.
    Time,
    /// The permission bits are others.
    Mode,
    /// Only the owner or the group is another one.
    Owner,
}

impl Difference {
    const ALL: [Self; 10] = [
        Self::None,
        Self::New,
        Self::Kind,
        Self::Length,
        Self::Content,
        Self::Target,
        Self::Link,
        Self::Time,
        Self::Mode,
        Self::Owner,
    ];

    fn encode_all(all: &[Self], out: &mut Vec<u8>) {
        for same in all.chunk_by(|one, other| one == other) {
            for run in same.chunks(LONGEST_RUN) {
                out.push(run[0] as u8);
                out.extend_from_slice(&(run.len() as u16).to_be_bytes());
            }
        }
    }

    /// Decodes the differences of this many entries, and returns what follows them. What [`Self::encode_all`] would write otherwise is
    /// refused.
    fn decode_all(mut bytes: &[u8], entries: u32) -> Option<(Vec<Self>, &[u8])> {
        let (mut all, mut last) = (Vec::new(), None);
        while all.len() < entries as usize {
            let (run, rest) = bytes.split_first_chunk::<RUN>()?;
            let difference = *Self::ALL.get(usize::from(run[0]))?;
            let len = usize::from(u16::from_be_bytes([run[1], run[2]]));
            let is_split = last.is_some_and(|last| last != (difference, LONGEST_RUN))
                && last.is_some_and(|(before, _)| before == difference);
            if len == 0 || is_split || len > entries as usize - all.len() {
                return None;
            }
            all.resize(all.len() + len, difference);
            (last, bytes) = (Some((difference, len)), rest);
        }
        Some((all, bytes))
    }
}

/// Why a receiver cannot take the entries of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// What is in the way of the first of them.
    pub kind: ObstacleKind,
    /// The path of that one.
    pub path: Vec<u8>,
    /// The number of entries that something is in the way of.
    pub entries: u64,
}

/// What is in the way of an entry of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObstacleKind {
    /// Another file, or a link, has its name and is not replaced.
    Exists,
    /// A directory has the name of a file.
    IsDirectory,
    /// Something else has the name of a directory.
    NotDirectory,
    /// The receiver takes one file, and this is not the only one.
    Several,
}

impl ObstacleKind {
    const ALL: [Self; 4] = [Self::Exists, Self::IsDirectory, Self::NotDirectory, Self::Several];

    fn code(kind: Self) -> u8 {
        Self::ALL.iter().position(|it| *it == kind).map_or(0, |at| at as u8 + 1)
    }
}

impl Obstacle {
    /// Counts an entry that something is in the way of; the first one is named.
    pub fn add(found: &mut Option<Self>, kind: ObstacleKind, path: &[u8]) {
        let obstacle = found.get_or_insert_with(|| Self { kind, path: path.to_vec(), entries: 0 });
        obstacle.entries += 1;
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.entries.to_be_bytes());
        out.extend_from_slice(&(self.path.len() as u16).to_be_bytes());
        out.extend_from_slice(&self.path);
    }

    /// Decodes an obstacle, and returns what follows it.
    fn decode(code: u8, bytes: &[u8]) -> Option<(Option<Self>, &[u8])> {
        let Some(at) = usize::from(code).checked_sub(1) else { return Some((None, bytes)) };
        let kind = *ObstacleKind::ALL.get(at)?;
        let (entries, bytes) = bytes.split_first_chunk()?;
        let (len, bytes) = bytes.split_first_chunk()?;
        let len = usize::from(u16::from_be_bytes(*len));
        let (path, bytes) = bytes.split_at_checked(len).filter(|_| len <= MAX_PATH)?;
        let (path, entries) = (path.to_vec(), u64::from_be_bytes(*entries));
        Some((Some(Self { kind, path, entries }), bytes))
    }
}

/// What a receiver has deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Deletion {
    /// It was not asked to, or not yet.
    #[default]
    None,
    /// It deletes nothing, and takes nothing of a cast that asks for it.
    Refused,
    /// What it has deleted, or in a dry run would.
    Done(Deleted),
    /// It lacks something again. Nothing is deleted any more; this was, in the way of entries.
    NotDone(Deleted),
}

impl Deletion {
    /// Adds what was deleted later.
    pub fn add(&mut self, later: Self) {
        let is_done = matches!(later, Self::Done(_));
        *self = match (std::mem::take(self), later) {
            (Self::Done(mut deleted), Self::Done(later) | Self::NotDone(later)) => {
                let entries = deleted.entries.saturating_add(later.entries);
                let failed = deleted.failed.saturating_add(later.failed);
                let hidden = deleted.hidden.saturating_add(later.hidden);
                later.paths.into_iter().for_each(|path| deleted.add(path));
                later.failures.into_iter().for_each(|path| deleted.fail(path));
                (deleted.entries, deleted.failed, deleted.hidden) = (entries, failed, hidden);
                if is_done { Self::Done(deleted) } else { Self::NotDone(deleted) }
            }
            (_, later) => later,
        };
    }
}

/// Files and directories that were deleted. Not all paths are named where there are many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Their number.
    pub entries: u64,
    /// The number of files and directories that should have been deleted, and could not be.
    pub failed: u64,
    /// The number of directories that a dry run has not looked into, because they are closed to their owner.
    pub hidden: u64,
    /// Paths of deleted ones. The path of a directory ends with a slash.
    pub paths: Vec<Vec<u8>>,
    /// Paths of files and directories that could not be deleted.
    pub failures: Vec<Vec<u8>>,
    /// The bytes of all paths.
    named: usize,
}

impl Deleted {
    /// Counts a path.
    pub fn add(&mut self, path: Vec<u8>) {
        self.entries += 1;
        if self.has_room(&path) {
            self.paths.push(path);
        }
    }

    /// Counts a path that could not be deleted.
    pub fn fail(&mut self, path: Vec<u8>) {
        self.failed += 1;
        if self.has_room(&path) {
            self.failures.push(path);
        }
    }

    /// Returns how many deleted ones have no path here.
    #[must_use]
    pub fn unnamed(&self) -> u64 {
        self.entries.saturating_sub(self.paths.len() as u64)
    }

    fn has_room(&mut self, path: &[u8]) -> bool {
        let bytes = 2 + path.len();
        let has_room = self.named + bytes <= MAX_NAMED && u16::try_from(path.len()).is_ok();
        self.named += if has_room { bytes } else { 0 };
        has_room
    }

    fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.entries, self.failed, self.hidden] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        for paths in [&self.paths, &self.failures] {
            out.extend_from_slice(&(paths.len() as u32).to_be_bytes());
            for path in paths {
                out.extend_from_slice(&(path.len() as u16).to_be_bytes());
                out.extend_from_slice(path);
            }
        }
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut numbers = [0; 3];
        for number in &mut numbers {
            let (first, rest) = bytes.split_first_chunk()?;
            (*number, bytes) = (u64::from_be_bytes(*first), rest);
        }
        let [entries, failed, hidden] = numbers;
        let mut this = Self { entries, failed, hidden, ..Self::default() };
        for paths in [&mut this.paths, &mut this.failures] {
            let (count, mut rest) = bytes.split_first_chunk::<4>()?;
            for _ in 0..u32::from_be_bytes(*count) {
                let (len, after) = rest.split_first_chunk::<2>()?;
                let (path, after) = after.split_at_checked(u16::from_be_bytes(*len).into())?;
                paths.push(path.to_vec());
                this.named += 2 + path.len();
                rest = after;
            }
            bytes = rest;
        }
        (bytes.is_empty() && this.named <= MAX_NAMED).then_some(this)
    }
}

impl Findings {
    /// Returns the smallest and the largest length in bytes of an answer about this many entries.
    #[must_use]
    pub const fn lengths(entries: u32) -> (usize, usize) {
        let least = 1 + Lacking::encoded_len(entries);
        let differences = RUN * entries as usize;
        (least, least + differences + OBSTACLE + MAX_PATH + NUMBERS + MAX_NAMED)
    }

    /// Encodes the answer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let deletion = match self.deletion {
            Deletion::None => 0,
            Deletion::Refused => 1,
            Deletion::Done(_) => 2,
            Deletion::NotDone(_) => 3,
        };
        let obstacle = self.obstacle.as_ref().map_or(0, |it| ObstacleKind::code(it.kind));
        let differences = if self.differences.is_some() { DIFFERENCES } else { 0 };
        let mut out = vec![obstacle << 4 | differences | deletion];
        out.extend_from_slice(&self.lacking.encode());
        self.differences.iter().for_each(|all| Difference::encode_all(all, &mut out));
        self.obstacle.iter().for_each(|obstacle| obstacle.encode(&mut out));
        if let Deletion::Done(deleted) | Deletion::NotDone(deleted) = &self.deletion {
            deleted.encode(&mut out);
        }
        out
    }

    /// Decodes an answer about this many entries; `None` if it is malformed.
    #[must_use]
    pub fn decode(bytes: &[u8], entries: u32) -> Option<Self> {
        let (kind, bytes) = bytes.split_first()?;
        let (lacking, rest) = bytes.split_at_checked(Lacking::encoded_len(entries))?;
        let lacking = Lacking::decode(lacking, entries)?;
        let (differences, rest) = match kind & DIFFERENCES {
            0 => (None, rest),
            _ => Difference::decode_all(rest, entries).map(|(all, rest)| (Some(all), rest))?,
        };
        let (obstacle, deleted) = Obstacle::decode(kind >> 4, rest)?;
        let deletion = match kind & !DIFFERENCES & 15 {
            0 if deleted.is_empty() => Deletion::None,
            1 if deleted.is_empty() => Deletion::Refused,
            2 => Deletion::Done(Deleted::decode(deleted)?),
            3 => Deletion::NotDone(Deleted::decode(deleted)?),
            _ => return None,
        };
        Some(Self { lacking, differences, deletion, obstacle })
    }
}

/// The entries of a manifest that a receiver lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lacking(Bitmap<u32>);

impl Lacking {
    /// Returns the set that nothing of this many entries is lacking.
    #[must_use]
    pub fn nothing(entries: u32) -> Self {
        Self(Bitmap::new(entries))
    }

    /// Returns the set of all entries.
    #[must_use]
    pub fn all(entries: u32) -> Self {
        let mut this = Self::nothing(entries);
        (0..entries).for_each(|entry| this.add(entry));
        this
    }

    /// Adds an entry.
    pub fn add(&mut self, entry: u32) {
        self.0.insert(entry);
    }

    /// Adds the entries of another set.
    pub fn unite(&mut self, other: &Self) {
        other.0.iter().for_each(|entry| self.add(entry));
    }

    /// Returns whether an entry is lacking.
    #[must_use]
    pub fn contains(&self, entry: u32) -> bool {
        self.0.contains(entry)
    }

    /// Returns whether no entry is lacking.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the entries that are lacking, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter()
    }

    /// Returns the length in bytes of a set about this many entries.
    #[must_use]
    pub const fn encoded_len(entries: u32) -> usize {
        entries.div_ceil(8) as usize
    }

    /// Encodes the set: a bit for each entry, the lowest one of a byte first.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; Self::encoded_len(self.0.size())];
        self.0.iter().for_each(|entry| out[entry as usize / 8] |= 1 << (entry % 8));
        out
    }

    /// Decodes a set about this many entries; `None` if it has another length, or bits of further entries.
    #[must_use]
    pub fn decode(bytes: &[u8], entries: u32) -> Option<Self> {
        let mut this = Self::nothing(entries);
        if bytes.len() != Self::encoded_len(entries) {
            return None;
        }
        for (byte, at) in bytes.iter().zip((0_u32..).step_by(8)) {
            for bit in (0..8).filter(|bit| byte >> bit & 1 != 0) {
                if !this.0.insert(at + bit) {
                    return None;
                }
            }
        }
        Some(this)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_answer_comes_back_and_no_other_length_is_taken(
            entries in 0_u32..100,
            lacking in prop::collection::vec(0_u32..100, 0..50),
            noise in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let mut answer = Lacking::nothing(entries);
            lacking.iter().for_each(|entry| answer.add(*entry));
            let bytes = answer.encode();
            prop_assert_eq!(Lacking::decode(&bytes, entries), Some(answer));
            prop_assert_eq!(Lacking::decode(&bytes, entries + 8), None);
            let taken = Lacking::decode(&noise, entries);
            let fits = noise.len() == entries.div_ceil(8) as usize
                && noise.last().is_none_or(|last| entries % 8 == 0 || last >> (entries % 8) == 0);
            prop_assert_eq!(taken.is_some(), fits);
        }

        #[test]
        fn findings_come_back_and_any_bytes_are_harmless(
            entries in 0_u32..100,
            deleted in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..9),
            kind in 0..4,
            obstacle in prop::option::of((0_usize..4, prop::collection::vec(any::<u8>(), 0..300))),
            differences in prop::option::of(prop::collection::vec(0_usize..10, 100)),
            noise in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let differences = differences.map(|all| {
                let all = all.into_iter().take(entries as usize);
                all.map(|it| Difference::ALL[it]).collect()
            });
            let mut done = Deleted::default();
            deleted.iter().for_each(|path| done.add(path.clone()));
            deleted.iter().skip(3).for_each(|path| done.fail(path.clone()));
            done.hidden = noise.len() as u64;
            let deletion = match kind {
                0 => Deletion::None,
                1 => Deletion::Refused,
                2 => Deletion::NotDone(done),
                _ => Deletion::Done(done),
            };
            let obstacle = obstacle.map(|(kind, path)| {
                Obstacle { kind: ObstacleKind::ALL[kind], path, entries: 7 }
            });
            let lacking = Lacking::all(entries);
            let findings = Findings { lacking, differences, deletion, obstacle };
            let bytes = findings.encode();
            let (least, most) = Findings::lengths(entries);
            prop_assert!((least..=most).contains(&bytes.len()));
            prop_assert_eq!(Findings::decode(&bytes, entries), Some(findings));
            prop_assert_eq!(Findings::decode(&bytes[..bytes.len() - 1], entries), None);
            if let Some(findings) = Findings::decode(&noise, entries) {
                prop_assert_eq!(findings.encode(), noise);
            }
        }
    }

    /// All of 600,000 entries have the same one, or each has another one than the one before.
    #[test]
    fn equal_differences_are_short_and_come_back() {
        for (changing, length) in [(false, 10 * RUN), (true, 600_000 * RUN)] {
            let of =
                |entry: usize| if changing { Difference::ALL[entry % 10] } else { Difference::New };
            let differences: Vec<_> = (0..600_000).map(of).collect();
            let lacking = Lacking::nothing(600_000);
            let (differences, deletion) = (Some(differences), Deletion::None);
            let findings = Findings { lacking, differences, deletion, obstacle: None };
            let bytes = findings.encode();
            let (least, most) = Findings::lengths(600_000);
            assert!(bytes.len() == least + length && bytes.len() <= most);
            assert_eq!(Findings::decode(&bytes, 600_000), Some(findings));
        }
    }

    #[test]
    fn many_paths_are_counted_and_not_all_named() {
        let mut deleted = Deleted::default();
        for number in 0..10_000 {
            deleted.add(format!("{number:0100}").into_bytes());
        }
        let (lacking, deletion) = (Lacking::nothing(3), Deletion::Done(deleted));
        let findings = Findings { lacking, differences: None, deletion, obstacle: None };
        let bytes = findings.encode();
        assert!(bytes.len() <= Findings::lengths(3).1);
        let Some(Findings { deletion: Deletion::Done(deleted), .. }) = Findings::decode(&bytes, 3)
        else {
            panic!()
        };
        let named = (256 << 10) / 102;
        assert_eq!((deleted.entries, deleted.paths.len()), (10_000, named));
        assert_eq!(deleted.unnamed(), 10_000 - named as u64);
    }
}
