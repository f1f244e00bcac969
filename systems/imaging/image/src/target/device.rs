//! Who uses a block device, so that nobody's disk is overwritten.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::ImageError;

/// Which uses are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Any.
    Any,
    /// A file system that is mounted for writing, and swap: what changes a device while it is read.
    Writing,
}

/// Where the kernel describes devices and mounts.
struct System {
    /// `/sys/dev/block`.
    devices: PathBuf,
    /// `/proc/self/mountinfo`.
    mounts: String,
    /// `/proc/swaps`.
    swaps: String,
}

/// Checks that neither a device nor a partition of it is in use.
pub(crate) fn check_unused(path: &Path, device: u64, which: Use) -> Result<(), ImageError> {
    let text = |file| fs::read_to_string(file).map_err(ImageError::read(Path::new(file)));
    let system = System {
        devices: "/sys/dev/block".into(),
        mounts: text("/proc/self/mountinfo")?,
        // Kernels without swap have no such file.
        swaps: fs::read_to_string("/proc/swaps").unwrap_or_default(),
    };
    let number = number(device);
    match system.user(&number, which) {
        Some(why) => Err(ImageError::InUse { device: path.to_owned(), why }),
        None => Ok(()),
    }
}

/// Opens a device that nothing uses, and keeps it so.
pub(crate) fn open_exclusively(path: &Path, options: &mut OpenOptions) -> Result<File, ImageError> {
    // For devices, O_EXCL without O_CREAT refuses one that is mounted or part of another device.
    let opened = options.custom_flags(OFlags::EXCL.bits() as i32).open(path);
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => ImageError::InUse {
            device: path.to_owned(),
            why:
                "the kernel refuses exclusive access, so it is mounted or a part of another device"
                    .to_owned(),
        },
        _ => ImageError::write(path)(error),
    })
}

/// Returns a device's number as the kernel prints it, such as "8:1".
fn number(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

/// Returns the sector of its disk at which a partition starts; 0 for a device that is no partition.
pub(super) fn partition_start(device: u64) -> u64 {
    let start = fs::read_to_string(format!("/sys/dev/block/{}/start", number(device)));
    start.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Returns whether a device accepts no writes.
pub(super) fn is_read_only(device: u64) -> bool {
    let path = format!("/sys/dev/block/{}/ro", number(device));
    fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
}

/// Returns the bytes of a device's logical sector, if it has such.
pub(crate) fn sector_size(device: &File) -> Option<u32> {
    rustix::fs::ioctl_blksszget(device).ok()
}

/// Returns a field with the escapes of spaces and others undone.
fn unescape(field: &str) -> String {
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

impl System {
    /// Returns a user of the device, as half a sentence.
    fn user(&self, number: &str, which: Use) -> Option<String> {
        if let Some(user) = self.user_of_one(number, which, "it") {
            return Some(user);
        }
        let device = self.devices.join(number);
        for (name, partition) in partitions(&device) {
            if let Some(user) =
                self.user_of_one(&partition, which, &format!("its partition {name}"))
            {
                return Some(user);
            }
        }
        None
    }

    fn user_of_one(&self, number: &str, which: Use, what: &str) -> Option<String> {
        let device = self.devices.join(number);
        let name = device.canonicalize().ok();
        let name = name.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        for mount in self.mounts.lines().filter_map(Mount::parse) {
            // Some file systems, such as Btrfs, have a number that is not that of a device.
            let same = mount.number == number || name.is_some() && mount.source.as_deref() == name;
            if same && (mount.writable || which == Use::Any) {
                let how = if mount.writable { "" } else { ", although only for reading" };
                return Some(format!("{what} is mounted at {}{how}", mount.place));
            }
        }
        let swap = |line: &str| {
            let file = line.split_whitespace().next().unwrap_or_default();
            file.strip_prefix("/dev/").is_some_and(|device| Some(device) == name)
        };
        if self.swaps.lines().any(swap) {
            return Some(format!("{what} is used for swapping"));
        }
        let holders = fs::read_dir(device.join("holders")).ok().into_iter().flatten().flatten();
        for holder in holders {
            let name = called(&holder.path(), &holder.file_name().to_string_lossy());
            if which == Use::Any {
                return Some(format!("{what} is used by {name}"));
            }
            // What is mounted may be on a device on a device, such as an encrypted volume of LVM.
            let number = fs::read_to_string(holder.path().join("dev")).unwrap_or_default();
            let what = format!("{what} is used by {name}, which");
            if let Some(user) = self.user_of_one(number.trim(), which, &what) {
                return Some(user);
            }
        }
        None
    }
}

/// Returns the name of a device, with the one that its owner has given it: that of a volume of LVM, or of LUKS.
fn called(device: &Path, name: &str) -> String {
    let given = fs::read_to_string(device.join("dm/name")).unwrap_or_default();
    match given.trim() {
        "" => name.to_owned(),
        given => format!("{name} ({given})"),
    }
}

/// A line of `mountinfo`.
struct Mount<'a> {
    number: &'a str,
    place: String,
    writable: bool,
    /// The name of the device in `/dev`.
    source: Option<String>,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (fields, system) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(2);
        let (number, _, place) = (fields.next()?, fields.next()?, fields.next()?);
        let writable = fields.next()?.split(',').any(|option| option == "rw");
        let source = system.split(' ').nth(1).map(unescape).filter(|it| it.starts_with("/dev/"));
        let source = source.map(|it| fs::canonicalize(&it).unwrap_or_else(|_| it.into()));
        let source = source.and_then(|it| Some(it.file_name()?.to_str()?.to_owned()));
        Some(Self { number, place: unescape(place), writable, source })
    }
}

/// Returns the names and numbers of a device's partitions.
fn partitions(device: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(device).ok().into_iter().flatten().flatten();
    let partitions = entries.filter(|entry| entry.path().join("partition").exists());
    let mut found: Vec<_> = partitions
        .filter_map(|entry| {
            let number = fs::read_to_string(entry.path().join("dev")).ok()?;
            Some((entry.file_name().to_string_lossy().into_owned(), number.trim().to_owned()))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(folder: &Path, mounts: &str, swaps: &str) -> System {
        let disk = folder.join("real/sda");
        for (name, number) in [("sda1", "8:1"), ("sda2", "8:2")] {
            fs::create_dir_all(disk.join(name).join("holders")).unwrap();
            fs::write(disk.join(name).join("partition"), "1\n").unwrap();
            fs::write(disk.join(name).join("dev"), format!("{number}\n")).unwrap();
        }
        fs::create_dir_all(disk.join("holders")).unwrap();
        let devices = folder.join("block");
        fs::create_dir_all(&devices).unwrap();
        let link =
            |from: &Path, name| std::os::unix::fs::symlink(from, devices.join(name)).unwrap();
        link(&disk, "8:0");
        link(&disk.join("sda1"), "8:1");
        link(&disk.join("sda2"), "8:2");
        System { devices, mounts: mounts.to_owned(), swaps: swaps.to_owned() }
    }

    const MOUNTS: &str = "22 1 8:2 / /srv/my\\040disk ro,relatime shared:1 - ext4 /dev/sda2 rw\n\
                          23 1 0:5 / /proc rw - proc proc rw\n";

    #[test]
    fn a_mounted_partition_protects_its_disk() {
        let folder = tempfile::tempdir().unwrap();
        let system = system(folder.path(), MOUNTS, "Filename Type\n");
        let why = "is mounted at /srv/my disk, although only for reading";
        assert_eq!(system.user("8:2", Use::Any).unwrap(), format!("it {why}"));
        assert_eq!(system.user("8:0", Use::Any).unwrap(), format!("its partition sda2 {why}"));
        assert_eq!(system.user("8:1", Use::Any), None);
        // Btrfs has no device's number.
        let btrfs = MOUNTS.replace(" 8:2 ", " 0:40 ").replace("ext4", "btrfs");
        let (folder, why) = (tempfile::tempdir().unwrap(), format!("it {why}"));
        let of_btrfs = self::system(folder.path(), &btrfs, "");
        assert_eq!(of_btrfs.user("8:2", Use::Any), Some(why));
        // Reading is safe while nothing is written.
        assert_eq!(system.user("8:0", Use::Writing), None);
    }

    #[test]
    fn swap_and_holders_protect_their_device() {
        let folder = tempfile::tempdir().unwrap();
        let system = system(folder.path(), "", "Filename Type\n/dev/sda1 partition 100 0 -2\n");
        assert_eq!(system.user("8:1", Use::Writing).unwrap(), "it is used for swapping");
        fs::create_dir(folder.path().join("real/sda/sda2/holders/dm-0")).unwrap();
        assert_eq!(system.user("8:2", Use::Any).unwrap(), "it is used by dm-0");
        let found = system.user("8:0", Use::Any).unwrap();
        assert_eq!(found, "its partition sda1 is used for swapping");
    }

    #[test]
    fn what_is_mounted_on_a_device_of_the_device_mapper_protects_its_disk() {
        let folder = tempfile::tempdir().unwrap();
        let system = system(folder.path(), "22 1 252:0 / /srv rw - ext4 /dev/mapper/x rw\n", "");
        assert_eq!(system.user("8:0", Use::Writing), None);
        let holder = folder.path().join("real/sda/sda2/holders/dm-0");
        fs::create_dir(&holder).unwrap();
        fs::write(holder.join("dev"), "252:0\n").unwrap();
        let why = "its partition sda2 is used by dm-0, which is mounted at /srv";
        assert_eq!(system.user("8:0", Use::Writing).unwrap(), why);
        assert!(system.user("8:1", Use::Writing).is_none());
    }
}
