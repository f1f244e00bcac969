//! Extended attributes, among them ACLs, and owners of what a sender keeps them of.

use std::io;

use crate::format::{Attribute, FileHeader};
use crate::store::disk::{DiskFile, Stat};
use crate::store::{Dir, Entry};

/// The attribute that the ACL of a file or directory is.
pub(crate) const ACL: &[u8] = b"system.posix_acl_access";

/// The attribute of a directory that the ACLs of what is created in it begin as.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Returns whether an attribute is sent and taken. All others may be rules of a security module or of the system, or bound to an inode.
pub(crate) fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.") || is_acl(name)
}

fn is_acl(name: &[u8]) -> bool {
    name == ACL || name == DEFAULT_ACL
}

/// Returns whether this process may give a file an attribute that a sender names.
fn may_set(name: &[u8], is_root: bool) -> bool {
    is_kept(name) && (is_root || !is_acl(name))
}

/// Returns the permission bits of a file that has lost its ACL. With an ACL, the bits of the group are the most that any named user or
/// group may do: without it, they are what the owning group could.
pub(crate) fn without_acl(mode: u32, acl: &[u8]) -> u32 {
    const GROUP: u16 = 4;
    const MASK: u16 = 16;
    // A version, then a tag, permissions and an identifier each, in the order of bytes of x86.
    let rights = |wanted: u16| {
        let mut entries = acl.get(4..).unwrap_or_default().chunks_exact(8);
        let found = entries.find(|it| u16::from_le_bytes([it[0], it[1]]) == wanted);
        found.map(|it| u32::from(it[2]) & 7)
    };
    match rights(GROUP) {
        Some(group) => mode & !0o070 | (group & rights(MASK).unwrap_or(7)) << 3,
        None => mode,
    }
}

/// Returns the permission bits where the ACL among some attributes is lost.
fn lost(mode: u32, attributes: Option<&[Attribute]>) -> u32 {
    let acl = attributes.unwrap_or_default().iter().find(|it| it.name == ACL);
    acl.map_or(mode, |acl| without_acl(mode, &acl.value))
}

/// Returns the permission bits that a file or directory has that lacks the ACL of its header, if that has one.
pub(super) fn mode_without_acl(header: &FileHeader) -> u32 {
    lost(header.mode.into(), header.attributes.as_deref())
}

/// Returns whether permission bits are those of a header, with its ACL or without it.
pub(super) fn is_mode(mode: u32, header: &FileHeader) -> bool {
    mode == u32::from(header.mode) || mode == mode_without_acl(header)
}

/// What of a header a file or directory has got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// Whether it has all attributes.
    pub(super) all: bool,
    /// Whether it has the owner and the group.
    pub(super) owned: bool,
    /// The permission bits that it is to have.
    pub(super) mode: u32,
}

/// Returns of an owner and a group what this process may give to something that was found: root all, and others a group of theirs.
pub(super) fn owner_for(wanted: Option<(u32, u32)>, found: &Stat) -> (u32, u32) {
    let Some((user, group)) = wanted else { return found.owner };
    if rustix::process::geteuid().is_root() {
        return (user, group);
    }
    let is_member = || {
        rustix::process::getegid().as_raw() == group
            || rustix::process::getgroups()
                .is_ok_and(|all| all.iter().any(|it| it.as_raw() == group))
    };
    let group = if found.is_own && is_member() { group } else { found.owner.1 };
    (found.owner.0, group)
}

/// Gives something an owner and a group. Returns whether it has both.
fn give(
    wanted: Option<(u32, u32)>,
    found: Option<Stat>,
    set: impl FnOnce((u32, u32)) -> io::Result<()>,
) -> bool {
    let Some(to) = wanted else { return true };
    let Some(found) = found else { return false };
    let possible = owner_for(wanted, &found);
    (possible == found.owner || set(possible).is_ok()) && possible == to
}

/// Gives a file or directory an owner and a group, if there are some to give. Returns whether it has both. The mode may change.
pub(super) fn own(file: &dyn DiskFile, wanted: Option<(u32, u32)>) -> bool {
    give(wanted, file.stat().ok(), |owner| file.set_owner(owner))
}

/// As [`own`], of a symbolic link.
pub(super) fn own_link(link: &Entry, wanted: Option<(u32, u32)>) -> bool {
    give(wanted, link.stat(), |owner| link.set_link_owner(owner))
}

/// Gives a file or directory the owner and the attributes of its header. The mode may change: callers set it afterwards.
pub(super) fn keep(file: &dyn DiskFile, header: &FileHeader) -> Kept {
    let owned = own(file, header.owner);
    Kept { owned, ..keep_attributes(file, header.attributes.as_deref(), header.mode.into()) }
}

/// Gives a file or directory attributes, if there are some to give. The mode may change: callers set it afterwards.
pub(super) fn keep_attributes(
    file: &dyn DiskFile,
    wanted: Option<&[Attribute]>,
    mode: u32,
) -> Kept {
    let owned = true;
    let Some(wanted) = wanted else { return Kept { all: true, owned, mode } };
    let lost = lost(mode, Some(wanted));
    let Ok(found) = file.attributes() else {
        return Kept { all: wanted.is_empty(), owned, mode: lost };
    };
    let is_there =
        |it: &&Attribute| found.iter().any(|(name, value)| (name, value) == (&it.name, &it.value));
    let set = wanted.iter().filter(|it| !is_there(it)).map(|it| (&it.name, Some(&it.value[..])));
    let is_gone = |name: &[u8]| is_kept(name) && wanted.iter().all(|it| it.name != name);
    let gone = found.iter().filter(|it| is_gone(&it.0)).map(|it| (&it.0, None));
    let changes: Vec<_> = gone.chain(set).collect();
    if let Some(mode) = file.stat().ok().map(|it| it.mode).filter(|mode| mode & 0o200 == 0)
        && !changes.is_empty()
    {
        // Not even its owner may change those of a file that it may not write.
        let _ = file.set_mode(mode | 0o200);
    }
    let is_root = rustix::process::geteuid().is_root();
    let change = |(name, value): (&Vec<u8>, Option<&[u8]>)| {
        may_set(name, is_root) && file.set_attribute(name, value).is_ok()
    };
    let failed: Vec<_> = changes.into_iter().filter(|it| !change(*it)).collect();
    let is_lost = failed.iter().any(|(name, value)| *name == ACL && value.is_some());
    Kept { all: failed.is_empty(), owned, mode: if is_lost { lost } else { mode } }
}

/// Returns the attributes of a file that are sent and taken.
///
/// # Errors
/// If the system refuses, or the file system has none.
pub(crate) fn of(file: &dyn DiskFile) -> io::Result<Vec<Attribute>> {
    let found = file.attributes()?.into_iter().filter(|(name, _)| is_kept(name));
    let mut found: Vec<_> = found.map(|(name, value)| Attribute { name, value }).collect();
    found.sort();
    Ok(found)
}

/// As [`keep`], of a directory and what its header says.
pub(super) fn keep_of(dir: &Dir, header: &FileHeader) -> Kept {
    let FileHeader { attributes, owner, mode, .. } = header;
    let mode = u32::from(*mode);
    if attributes.is_none() && owner.is_none() {
        return Kept { all: true, owned: true, mode };
    }
    match dir.handle() {
        Ok(file) => keep(&*file, header),
        Err(_) => Kept {
            all: attributes.as_ref().is_none_or(Vec::is_empty),
            owned: owner.is_none(),
            mode: mode_without_acl(header),
        },
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the ACL of the owner, a named user, the owning group, the mask and all others.
    pub(crate) fn acl(rights: [u8; 5]) -> Vec<u8> {
        let mut acl = 2_u32.to_le_bytes().to_vec();
        for ((tag, id), rights) in
            [(1, !0), (2, 1234), (4, !0), (16, !0), (32, !0_u32)].into_iter().zip(rights)
        {
            acl.extend([tag, 0, rights, 0]);
            acl.extend(id.to_le_bytes());
        }
        acl
    }

    /// Root gave them to files: a capability, a label or an overlay's attribute lets whoever runs or mounts it do what only root may.
    #[test]
    fn what_gives_rights_is_not_kept_and_that_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(folder.path().join("x")).unwrap();
        let attribute = |name: &[u8]| Attribute { name: name.to_vec(), value: vec![1; 20] };
        let refused = [
            "security.capability",
            "security.ima",
            "security.evm",
            "security.selinux",
            "security.SMACK64EXEC",
            "security.other",
            "trusted.overlay.opaque",
            "trusted.x",
            "system.nfs4_acl",
            "system.posix_acl_other",
        ];
        let before = DiskFile::attributes(&file).unwrap_or_default();
        for name in refused {
            assert!(!is_kept(name.as_bytes()) && !may_set(name.as_bytes(), true), "{name}");
            assert!(
                !keep_attributes(&file, Some(&[attribute(name.as_bytes())]), 0o600).all,
                "{name}"
            );
        }
        assert_eq!(DiskFile::attributes(&file).unwrap_or_default(), before);
        for (name, by_others) in [(&b"user.x"[..], true), (ACL, false), (DEFAULT_ACL, false)] {
            assert_eq!((may_set(name, true), may_set(name, false)), (true, by_others));
        }
        let keep = |wanted| keep_attributes(&file, wanted, 0o600);
        assert!(keep(None).all && keep(Some(&[])).all);
        // Where the file system has attributes, those of users are kept.
        let can = file.set_attribute(b"user.one", Some(b"1")).is_ok();
        assert_eq!(keep(Some(&[attribute(b"user.two")])).all, can);
        let found = DiskFile::attributes(&file).unwrap_or_default();
        assert!(found.iter().all(|(name, _)| name != b"user.one"), "{found:?}");
    }

    /// The group of a file got what its ACL gave to a named user.
    #[test]
    fn without_its_acl_a_file_gives_its_group_no_more() {
        assert_eq!(without_acl(0o670, &acl([6, 7, 4, 7, 0])), 0o640);
        assert_eq!(without_acl(0o640, &acl([6, 7, 7, 4, 0])), 0o640);
        assert_eq!(without_acl(0o604, &[]), 0o604);
        assert_eq!(without_acl(0o670, &[2, 0, 0, 0, 4, 0, 0]), 0o670, "an ACL that was cut");
        let folder = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(folder.path().join("x")).unwrap();
        let attribute = |value| Attribute { name: ACL.to_vec(), value };
        let kept = keep_attributes(&file, Some(&[attribute(acl([6, 7, 4, 7, 0]))]), 0o670);
        assert_eq!(kept.mode, if kept.all { 0o670 } else { 0o640 });
        // The system refuses an ACL of an unknown version.
        let mut wrong = acl([6, 7, 4, 7, 0]);
        wrong[0] = 9;
        let kept = keep_attributes(&file, Some(&[attribute(wrong)]), 0o670);
        assert_eq!((kept.all, kept.mode), (false, 0o640));
    }
}
