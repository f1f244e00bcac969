//! Which entries of a manifest are sent together.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use crate::format::{Lacking, Manifest, ManifestEntry};
use crate::store::{PART, part_name};

/// The entries of the manifest.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) bytes: Vec<u64>,
    /// The directory that an entry is in, if it is an entry too.
    parents: Vec<Option<u32>>,
    /// The file that an entry is a further name of.
    targets: BTreeMap<u32, u32>,
    /// The further names of a file.
    names: BTreeMap<u32, Vec<u32>>,
    /// The entry with the name that receivers may give to a file until it is complete.
    parts: BTreeMap<u32, u32>,
}

impl Entries {
    pub(super) fn new(manifest: &Manifest) -> Self {
        let mut directories = BTreeMap::new();
        let mut this = Self::default();
        for (number, ManifestEntry { header, .. }) in (0_u32..).zip(&manifest.entries) {
            let path = &header.path[..];
            let slash = path.iter().rposition(|byte| *byte == b'/');
            this.parents.push(slash.and_then(|slash| directories.get(&path[..slash]).copied()));
            this.bytes.push(header.length.unwrap_or(0));
            if header.is_directory() {
                directories.insert(path, number);
            }
        }
        let links = (0_u32..).zip(&manifest.entries);
        let links = links.filter_map(|(number, it)| Some((number, it.header.hard_link()?)));
        let links: Vec<(u32, &[u8])> = links.collect();
        if !links.is_empty() {
            let files = (0_u32..).zip(&manifest.entries).filter(|(_, it)| it.header.is_file());
            let files: BTreeMap<&[u8], u32> =
                files.map(|(number, it)| (&it.header.path[..], number)).collect();
            let target = |(link, target)| Some((link, *files.get(target)?));
            this.targets = links.into_iter().filter_map(target).collect();
            for (name, file) in &this.targets {
                this.names.entry(*file).or_default().push(*name);
            }
        }
        this.parts = parts(manifest);
        this
    }

    pub(super) fn count(&self) -> u32 {
        self.bytes.len() as u32
    }

    pub(super) fn bytes_of(&self, lacking: &Lacking) -> u64 {
        let bytes = lacking.iter().filter_map(|entry| self.bytes.get(entry as usize));
        bytes.fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Returns these entries and what has to be sent with them: the file that one is a further name of, and all names of a file, which a
    /// receiver may replace at the first one only; the file whose name a receiver
    /// may take for the rest of an interrupted transfer of one, and so lose; and the directories that all are in, whose times change
    /// when something is put into them.
    pub(super) fn with_needed(&self, lacking: &Lacking) -> Lacking {
        let mut all = lacking.clone();
        let mut open: Vec<u32> = lacking.iter().collect();
        while let Some(entry) = open.pop() {
            let target = self.targets.get(&entry).copied();
            let part = self.parts.get(&entry).copied();
            let parent = self.parents.get(entry as usize).copied().flatten();
            let names = self.names.get(&entry).into_iter().flatten().copied();
            for needed in [target, part, parent].into_iter().flatten().chain(names) {
                if !all.contains(needed) {
                    all.add(needed);
                    open.push(needed);
                }
            }
        }
        all
    }
}

/// Returns the entries with the names of incomplete files, by the files.
fn parts(manifest: &Manifest) -> BTreeMap<u32, u32> {
    let named = (0_u32..).zip(&manifest.entries);
    let named = named.filter(|(_, it)| !it.header.is_directory());
    let by_name: BTreeMap<&[u8], u32> = (named.clone())
        .filter(|(_, it)| it.header.path.ends_with(PART.as_bytes()))
        .map(|(number, it)| (&it.header.path[..], number))
        .collect();
    if by_name.is_empty() {
        return BTreeMap::new();
    }
    let part = |(number, it): (u32, &ManifestEntry)| {
        let path = &it.header.path;
        let name = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let part = part_name(OsStr::from_bytes(&path[name..]));
        let part = [&path[..name], part.as_bytes()].concat();
        Some((number, *by_name.get(&part[..])?))
    };
    named.filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{FileHeader, RecordKind};

    fn entry(path: &str, link: Option<&str>) -> ManifestEntry {
        let kind = match link {
            Some(target) => RecordKind::HardLink(target.into()),
            None if path.ends_with('/') => RecordKind::Directory,
            None => RecordKind::File,
        };
        let header = FileHeader {
            path: path.trim_end_matches('/').into(),
            kind,
            length: Some(0),
            attributes: None,
            owner: None,
            mode: 0o644,
            mtime_s: 0,
            mtime_ns: 0,
        };
        ManifestEntry { header, hash: None }
    }

    /// A receiver may have taken it for the rest of an interrupted transfer.
    #[test]
    fn a_file_that_is_called_as_the_part_of_another_one_is_sent_with_it() {
        let long = "n".repeat(253);
        let part_of_long = part_name(OsStr::new(&long)).into_string().unwrap();
        let paths = [
            ("d/", None),
            ("d/e/", None),
            ("d/e/x", None),
            ("d/e/x.part", None),
            ("d/e/x.part.part", Some("d/y")),
            ("d/e/z", None),
            ("d/x.part", None),
            ("d/y", None),
            ("d/y.part/", None),
            (&long, None),
            (&part_of_long, None),
        ];
        let entries = paths.iter().map(|(path, link)| entry(path, *link)).collect();
        let entries = Entries::new(&Manifest { entries, ..Manifest::default() });
        let needed = |path: &str| {
            let mut lacking = Lacking::nothing(paths.len() as u32);
            lacking.add(paths.iter().position(|it| it.0 == path).unwrap() as u32);
            let all = entries.with_needed(&lacking);
            all.iter().map(|entry| paths[entry as usize].0).collect::<Vec<_>>()
        };
        let family = ["d/", "d/e/", "d/e/x", "d/e/x.part", "d/e/x.part.part", "d/y"];
        assert_eq!(needed("d/e/x"), family);
        assert_eq!(needed("d/e/x.part.part"), needed("d/y"));
        assert_eq!(needed("d/e/z"), ["d/", "d/e/", "d/e/z"]);
        assert_eq!(needed("d/y"), ["d/", "d/e/", "d/e/x.part.part", "d/y"]);
        assert_eq!(needed(&long), [&long, &part_of_long]);
    }
}
