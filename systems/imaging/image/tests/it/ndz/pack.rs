//! What is packed in Frisbee's format, and read again.

use std::fs;

use rackweave_image::{Format, Image, ImageError, Packing, Progress, TargetConfig, pack_ndz};

use crate::common::{DISK, Disk, unpack};

fn packed(disk: &Disk, name: &str, packing: &Packing) -> Result<Image, ImageError> {
    let path = disk.path(name);
    pack_ndz(&disk.disk, &path, packing, &Progress::default())?;
    Image::open(&path, &Progress::default())
}

#[test]
fn a_disk_is_packed_and_unpacked_the_same_each_time() {
    let disk = Disk::new();
    let packing = Packing::new("");
    let image = packed(&disk, "one.ndz", &packing).unwrap();
    let head = image.manifest().head();
    assert_eq!((head.format, head.size, head.name.as_str()), (Format::Ndz, DISK, "one.ndz"));
    assert_eq!(image.verify(&Progress::default()).unwrap().unchecked_signatures, 0);
    let copy = disk.path("copy");
    unpack(&image, &copy, &TargetConfig::default()).unwrap();
    assert!(fs::read(&copy).unwrap() == fs::read(&disk.disk).unwrap());
    packed(&disk, "two.ndz", &Packing { threads: 3, ..packing.clone() }).unwrap();
    let read = |name: &str| fs::read(disk.path(name)).unwrap();
    assert!(read("one.ndz") == read("two.ndz"));
    assert!(matches!(packed(&disk, "one.ndz", &packing), Err(ImageError::Exists(_))));
}

#[test]
fn what_the_format_cannot_hold_is_refused() {
    let disk = Disk::new();
    let refused = |packing: &Packing| packed(&disk, "no.ndz", packing).unwrap_err().to_string();
    assert!(refused(&Packing { level: 10, ..Packing::new("") }).contains("from 1 to 9"));
    fs::write(&disk.disk, "").unwrap();
    assert!(refused(&Packing::new("")).contains("without content"));
    fs::File::create(&disk.disk).unwrap().set_len(1 << 41).unwrap();
    assert!(refused(&Packing::new("")).contains("2 TiB"));
    assert!(!disk.path("no.ndz.part").exists());
}
