//! Real block devices, which are files in loop devices.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rackweave_image::{Image, Packing, Progress, TargetConfig, pack};

use crate::common::{DISK, Disk, packing, unpack};

/// A loop device, until it is dropped.
struct Device(PathBuf);

impl Device {
    fn new(file: &Path, size: u64) -> Self {
        if !file.exists() {
            fs::write(file, vec![0xff; size as usize]).unwrap();
        }
        let made = Command::new("losetup").args(["-f", "--show"]).arg(file).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Self(String::from_utf8(made.stdout).unwrap().trim().into())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

fn run(program: &str, arguments: &[&Path]) {
    let done = Command::new(program).args(arguments).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn a_device_gets_the_image_and_nothing_beyond_it() {
    rackweave_testing::needs!(Loop);
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
fn a_device_in_use_is_neither_overwritten_nor_read_while_it_changes() {
    rackweave_testing::needs!(Loop);
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
    let disk = Disk::new();
    let device = Device::new(&disk.path("backing"), 0);
    let error = pack(&device.0, &disk.image, &packing(), &Progress::default()).unwrap_err();
    assert!(error.to_string().contains("the device has no medium"), "{error}");
}
