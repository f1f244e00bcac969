//! Real block devices, which are files in loop devices.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rackweave_image::{GptCopy, Image, Packing, Progress, TargetConfig, gpt_copy, pack};

use crate::free::{guid, partitioned};

use crate::common::{DISK, Disk, noise, packing, sparse, unpack};

/// A loop device, until it is dropped.
struct Device(PathBuf);

impl Device {
    fn new(file: &Path, size: u64) -> Self {
        if !file.exists() {
            fs::write(file, vec![0xff; size as usize]).unwrap();
        }
        Self::open(file, &[])
    }

    fn open(file: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new("losetup");
        let made = command.args(["-f", "--show"]).args(arguments).arg(file).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Self(String::from_utf8(made.stdout).unwrap().trim().into())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// Lets one test at a time have devices or start programs: a program that another test starts holds for a moment what is open here, so that the kernel
/// refuses exclusive access.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(program: &str, arguments: &[&Path]) {
    let done = Command::new(program).args(arguments).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn a_device_gets_the_image_and_nothing_beyond_it() {
    rackweave_testing::needs!(Loop);
    let _alone = alone();
    let disk = Disk::new();
    let image = disk.pack();
    let file = disk.path("device");
    let size = 2 << 20;
    let device = Device::new(&file, size);
    let chunks = image.manifest().chunks() as usize;
    assert_eq!(unpack(&image, &device.0, &TargetConfig::default()).unwrap(), chunks);
    // Zeros of the image were written, since the device had other content.
    let found = fs::read(&device.0).unwrap();
    assert!(found[..DISK as usize] == disk.bytes());
    assert!(found[DISK as usize..].iter().all(|byte| *byte == 0xff));
    // All of it is there already.
    assert_eq!(unpack(&image, &device.0, &TargetConfig::default()).unwrap(), 0);
    let config = TargetConfig { scan_device: false, ..TargetConfig::default() };
    assert_eq!(unpack(&image, &device.0, &config).unwrap(), chunks);
    // A device can be a source, too; it has no holes, and the image is the same.
    drop(device);
    let packed = fs::read(&disk.image).unwrap();
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(1 << 20).unwrap();
    let (device, copy) = (Device::new(&file, size), disk.path("again.rwi"));
    let again = pack(&device.0, &copy, &packing(), &Progress::default()).unwrap().manifest;
    assert_eq!(again.head().size, 1 << 20);
    assert_eq!(again.differing(image.manifest()).next(), None);
    assert_ne!(fs::read(&copy).unwrap(), packed);
    // The image is larger than this device.
    let error = unpack(&image, &device.0, &TargetConfig::default()).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("the image has {DISK} bytes, but {} only {}", device.0.display(), 1 << 20)
    );
}

#[test]
fn unused_ranges_keep_their_content_or_become_zeros() {
    rackweave_testing::needs!(Loop);
    let _alone = alone();
    rackweave_testing::needs!(Ext4);
    let disk = Disk::new();
    fs::remove_file(&disk.disk).unwrap();
    fs::write(&disk.disk, vec![0; 8 << 20]).unwrap();
    run("mkfs.ext4", &["-q".as_ref(), &disk.disk]);
    let skip = rackweave_image::SkipFree::Ext4;
    let packing = Packing { skip_free: skip, ..packing() };
    pack(&disk.disk, &disk.image, &packing, &Progress::default()).unwrap();
    let image = Image::open(&disk.image, &Progress::default()).unwrap();
    let unused = image.manifest().unused();
    let bytes: u64 = unused.iter().map(|it| it.end - it.start).sum();
    assert!(bytes > 4 << 20, "{bytes}");
    let device = Device::new(&disk.path("device"), 9 << 20);
    unpack(&image, &device.0, &TargetConfig::default()).unwrap();
    let found = fs::read(&device.0).unwrap();
    let at = |range: &std::ops::Range<u64>| range.start as usize..range.end as usize;
    assert!(unused.iter().all(|it| found[at(it)].iter().all(|byte| *byte == 0xff)));
    run("e2fsck", &["-fn".as_ref(), &device.0]);
    let config = TargetConfig { zero_unused: true, ..TargetConfig::default() };
    assert_eq!(unpack(&image, &device.0, &config).unwrap(), 0);
    let found = fs::read(&device.0).unwrap();
    assert!(unused.iter().all(|it| found[at(it)].iter().all(|byte| *byte == 0)));
    assert!(found[8 << 20..].iter().all(|byte| *byte == 0xff));
}

#[test]
fn a_disk_is_written_to_a_device_with_sectors_of_its_size() {
    rackweave_testing::needs!(Loop);
    let _alone = alone();
    let disk = Disk::new();
    let parts = [(1 << 20, 2 << 20), (2 << 20, 3 << 20)];
    for sector in [512, 4096] {
        let bytes = partitioned(|disk| guid(disk, sector, &parts), &[], 4 << 20);
        fs::write(&disk.disk, &bytes).unwrap();
        let _ = fs::remove_file(&disk.image);
        let image = disk.pack();
        assert_eq!(image.manifest().head().sector_size, Some(sector as u32));
        for other in [512, 4096] {
            let file = disk.path("device");
            fs::write(&file, vec![0xff; 6 << 20]).unwrap();
            let device = Device::open(&file, &["-b", &other.to_string()]);
            let written = unpack(&image, &device.0, &TargetConfig::default());
            if other == sector {
                written.unwrap();
                the_copy_of_the_table_moves(&device.0, sector, &bytes);
                continue;
            }
            let error = written.unwrap_err().to_string();
            let sizes =
                format!("of {sector} bytes, and those of {} have {other}", device.0.display());
            assert!(error.contains(&sizes), "{error}");
            assert!(fs::read(&device.0).unwrap().iter().all(|byte| *byte == 0xff));
            let config = TargetConfig { force_sector_size: true, ..TargetConfig::default() };
            unpack(&image, &device.0, &config).unwrap();
        }
    }
}

/// The device is larger than the disk that was written to it.
fn the_copy_of_the_table_moves(device: &Path, sector: usize, bytes: &[u8]) {
    let sees = || rackweave_image::free::file_systems(&&fs::read(device).unwrap()[..]);
    assert_eq!(gpt_copy(device, false).unwrap(), GptCopy::Early);
    assert!(fs::read(device).unwrap().starts_with(bytes), "nothing was changed");
    assert_eq!(gpt_copy(device, true).unwrap(), GptCopy::Moved);
    assert_eq!(gpt_copy(device, true).unwrap(), GptCopy::InPlace);
    // Both headers and tables are intact, and name each other and the new end.
    let found = fs::read(device).unwrap();
    sees().unwrap();
    let last = found.len() - sector;
    let word = |at: usize| u64::from_le_bytes(*found[at..].first_chunk().unwrap()) as usize;
    assert_eq!(&found[last..last + 8], b"EFI PART");
    assert_eq!(
        [word(sector + 32), word(last + 24), word(last + 32)],
        [last / sector, last / sector, 1]
    );
    let (table, copy) = (word(sector + 72) * sector, word(last + 72) * sector);
    assert!(found[table..table + 16384] == found[copy..copy + 16384]);
    assert_eq!(word(sector + 48) * sector + sector, copy);
    assert!(copy + 16384 <= last && copy >= bytes.len());
}

#[test]
fn a_copy_of_a_table_is_not_moved_over_a_partition_nor_made_of_a_damaged_table() {
    rackweave_testing::needs!(Loop);
    let _alone = alone();
    let disk = Disk::new();
    let file = disk.path("device");
    let size = 4 << 20;
    for sector in [512, 4096] {
        let end = size as u64 - sector as u64;
        let room = size as u64 - (sector + (128_usize * 128).next_multiple_of(sector)) as u64;
        let whole = (1 << 20, end);
        let good = (1 << 20, 2 << 20);
        let put = |disk: &mut [u8], at: usize, value: u64| {
            disk[sector + at..][..8].copy_from_slice(&value.to_le_bytes());
            crate::free::seal(&mut disk[sector..]);
        };
        let early = |part: (u64, u64)| {
            let mut bytes = partitioned(|disk| guid(disk, sector, &[part]), &[], size);
            put(&mut bytes, 32, 300);
            bytes
        };
        let with = |change: &dyn Fn(&mut [u8])| {
            let mut bytes = early(good);
            change(&mut bytes);
            bytes
        };
        let cases = [
            ("a partition is in the last", early(whole)),
            ("a partition is in the last", early((1 << 20, room + sector as u64))),
            ("its GUID partition table is damaged", with(&|disk| disk[2 * sector + 140] ^= 1)),
            ("its GUID partition table is damaged", with(&|disk| put(disk, 72, (1 << 62) + 5))),
            ("its GUID partition table is damaged", with(&|disk| put(disk, 72, size as u64))),
            ("its partition table is not understood", with(&|disk| put(disk, 48, 300))),
        ];
        let run = |bytes: &[u8]| {
            fs::write(&file, bytes).unwrap();
            let device = Device::open(&file, &["-b", &sector.to_string()]);
            let moved = gpt_copy(&device.0, true);
            drop(device);
            (moved, fs::read(&file).unwrap() == bytes)
        };
        for (why, bytes) in cases {
            let (moved, same) = run(&bytes);
            let error = moved.unwrap_err().to_string();
            assert!(error.contains(why) && same, "{sector}: {why}: {error}");
        }
        // The partition ends where the copy begins.
        assert_eq!(run(&early((1 << 20, room))).0.unwrap(), GptCopy::Moved);
        // A device that is hardly larger than its table, and usable sectors that begin nowhere.
        let mut empty = partitioned(|disk| guid(disk, sector, &[]), &[], size);
        put(&mut empty, 32, 3);
        let mut tiny = empty.clone();
        tiny.truncate((2 * sector + 128 * 128).next_multiple_of(4096) + 4096);
        put(&mut empty, 40, u64::MAX);
        for bytes in [tiny, empty] {
            let (moved, same) = run(&bytes);
            let error = moved.unwrap_err().to_string();
            assert!(error.contains("the partition table itself is in the last") && same, "{error}");
        }
    }
}

/// A loop device whose file is on a disk that is full refuses what does not fit at the sync, and the system shows it nevertheless.
#[test]
fn a_device_that_others_hold_open_does_not_hide_a_sync_that_failed() {
    rackweave_testing::needs!(Loop);
    let _alone = alone();
    let disk = Disk::new();
    fs::write(&disk.disk, noise(7, 6 << 20)).unwrap();
    let image = disk.pack();
    let small = disk.path("small");
    fs::create_dir(&small).unwrap();
    let kind = ["-t", "tmpfs", "-o", "size=2m", "none"].map(Path::new);
    run("mount", &[&kind[..], &[&small]].concat());
    let file = small.join("device");
    sparse(&file, 8 << 20, &[]);
    let device = Device::open(&file, &[]);
    let holder = fs::File::open(&device.0).unwrap();
    let attempts = [(); 3].map(|()| unpack(&image, &device.0, &TargetConfig::default()));
    drop((holder, device));
    run("umount", &["-l".as_ref(), &small]);
    assert!(attempts.iter().all(Result::is_err), "{attempts:?}");
}

#[test]
fn a_device_that_is_read_only_is_refused_by_name() {
    rackweave_testing::needs!(Loop);
    let _alone = alone();
    let disk = Disk::new();
    let image = disk.pack();
    fs::write(disk.path("device"), vec![0; 4 << 20]).unwrap();
    let device = Device::open(&disk.path("device"), &["-r"]);
    let error = unpack(&image, &device.0, &TargetConfig::default()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{} is read-only: ", device.0.display())), "{error}");
}

#[test]
fn a_device_in_use_is_neither_overwritten_nor_read_while_it_changes() {
    rackweave_testing::needs!(Loop);
    let _alone = alone();
    rackweave_testing::needs!(Ext4);
    let disk = Disk::new();
    let image = disk.pack();
    let (file, mount) = (disk.path("device"), disk.path("mount"));
    fs::create_dir(&mount).unwrap();
    let device = Device::new(&file, 4 << 20);
    run("mkfs.ext4", &["-q".as_ref(), &device.0]);
    let before = fs::read(&file).unwrap();
    run("mount", &[&device.0, &mount]);
    let refused = unpack(&image, &device.0, &TargetConfig::default());
    let read = pack(&device.0, &disk.path("x.rwi"), &packing(), &Progress::default());
    let live = Packing { live: true, ..packing() };
    let live = pack(&device.0, &disk.path("live.rwi"), &live, &Progress::default());
    run("umount", &[&mount]);
    let sentence =
        format!("{} is in use: it is mounted at {}", device.0.display(), mount.display());
    assert_eq!(refused.unwrap_err().to_string(), sentence);
    assert_eq!(read.unwrap_err().to_string(), sentence);
    assert_eq!(live.unwrap().manifest.head().size, 4 << 20);
    assert_eq!(fs::read(&file).unwrap().len(), before.len());
    run("e2fsck", &["-fn".as_ref(), &device.0]);
    unpack(&image, &device.0, &TargetConfig::default()).unwrap();
}

#[test]
fn a_device_that_is_mounted_in_another_namespace_is_in_use() {
    rackweave_testing::needs!(Loop);
    let _alone = alone();
    rackweave_testing::needs!(Ext4);
    let disk = Disk::new();
    let device = Device::new(&disk.path("backing"), 8 << 20);
    run("mkfs.ext4", &["-q".as_ref(), &device.0]);
    fs::create_dir(disk.path("mounted")).unwrap();
    let script = "mount \"$0\" \"$1\" && touch \"$1/ready\" && echo && read end";
    let mut mounting = Command::new("unshare");
    mounting.args(["-m", "sh", "-c", script]).arg(&device.0).arg(disk.path("mounted"));
    let mut child = mounting.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let ready = child.stdout.as_mut().unwrap().read(&mut [0]).unwrap();
    let found = pack(&device.0, &disk.image, &packing(), &Progress::default());
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(ready, 1, "it was not mounted");
    let error = found.unwrap_err().to_string();
    assert!(error.contains("refuses exclusive access"), "{error}");
    pack(&device.0, &disk.image, &packing(), &Progress::default()).unwrap();
}

#[test]
fn a_device_without_a_medium_has_no_image() {
    rackweave_testing::needs!(Loop);
    let _alone = alone();
    let disk = Disk::new();
    let device = Device::new(&disk.path("backing"), 0);
    let error = pack(&device.0, &disk.image, &packing(), &Progress::default()).unwrap_err();
    assert!(error.to_string().contains("the device has no medium"), "{error}");
}
