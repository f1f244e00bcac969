//! Targets: what they refuse, and how they go on after an interruption.

use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};

use rackweave_image::{Image, ImageError, Packing, Progress, Target, TargetConfig, pack};

use crate::common::{DISK, Disk, packing, unpack};

fn open(disk: &Disk, image: &Image) -> Result<Target, ImageError> {
    let (copy, progress) = (disk.path("copy"), Progress::default());
    Target::open(&copy, image.manifest().clone(), &TargetConfig::default(), &progress)
}

#[test]
fn a_damaged_chunk_is_refused_and_nothing_is_written() {
    let disk = Disk::new();
    let image = disk.pack();
    let mut target = open(&disk, &image).unwrap();
    let mut stored = Vec::new();
    image.read(0, &mut stored).unwrap();
    let message = |target: &mut Target, chunk, stored: &[u8]| {
        target.write(chunk, stored).unwrap_err().to_string()
    };
    assert!(message(&mut target, 1, &stored).starts_with("chunk 1 of "));
    assert!(message(&mut target, 0, &stored[1..]).contains("has 65535 bytes instead of 65536"));
    assert!(message(&mut target, 1000, &stored).ends_with("the image has no such chunk"));
    stored[7] ^= 1;
    assert!(message(&mut target, 0, &stored).contains("is damaged"));
    assert!(target.have().is_empty());
    assert!(fs::read(disk.path("copy.part")).unwrap().iter().all(|byte| *byte == 0));
    stored[7] ^= 1;
    target.write(0, &stored).unwrap();
    // A chunk that is there is not read again.
    target.write(0, &[]).unwrap();
    let error = target.finish(&Progress::default()).unwrap_err();
    assert!(error.to_string().ends_with("copy is not complete: chunk 1 is missing"), "{error}");
    assert!(!disk.path("copy").exists());
}

#[test]
fn what_is_on_disk_is_checked_before_it_counts() {
    let disk = Disk::new();
    let image = disk.pack();
    let mut target = open(&disk, &image).unwrap();
    let mut stored = Vec::new();
    for chunk in [0, 2, 3] {
        image.read(chunk, &mut stored).unwrap();
        target.write(chunk, &stored).unwrap();
    }
    drop(target);
    let part = fs::OpenOptions::new().write(true).open(disk.path("copy.part")).unwrap();
    part.write_all_at(b"xyz", 3 * 65_536 + 10).unwrap();
    // A torn and a wrong record.
    let chunks = disk.path("copy.part.chunks");
    let mut record = fs::read(&chunks).unwrap();
    let (len, mut wrong) = (record.len(), record[record.len() - 16..].to_vec());
    wrong[0] = 1;
    record.extend_from_slice(&wrong);
    record.extend_from_slice(&wrong[..7]);
    fs::write(&chunks, &record).unwrap();
    let target = open(&disk, &image).unwrap();
    let have: Vec<_> =
        (0..image.manifest().chunks()).filter(|it| target.have().contains(*it)).collect();
    assert_eq!(have, [0, 2]);
    assert_eq!(fs::read(&chunks).unwrap().len(), len - 16);
    drop(target);
    assert_eq!(
        unpack(&image, &disk.path("copy"), &TargetConfig::default()).unwrap() as u32,
        image.manifest().chunks() - 2
    );
    assert!(fs::read(disk.path("copy")).unwrap() == disk.bytes());
}

#[test]
fn an_incomplete_file_of_another_image_is_not_used() {
    let disk = Disk::new();
    let image = disk.pack();
    let mut target = open(&disk, &image).unwrap();
    let mut stored = Vec::new();
    image.read(0, &mut stored).unwrap();
    target.write(0, &stored).unwrap();
    drop(target);
    fs::write(&disk.disk, vec![0; 65_536]).unwrap();
    fs::remove_file(&disk.image).unwrap();
    let zeros = disk.pack();
    assert!(open(&disk, &zeros).unwrap().have().is_empty());
    unpack(&zeros, &disk.path("copy"), &TargetConfig::default()).unwrap();
    assert!(fs::read(disk.path("copy")).unwrap() == vec![0; 65_536]);
}

#[test]
fn two_processes_do_not_write_the_same_file() {
    let disk = Disk::new();
    let image = disk.pack();
    let first = open(&disk, &image).unwrap();
    let error = open(&disk, &image).unwrap_err();
    assert!(error.to_string().starts_with("another process is writing "), "{error}");
    drop(first);
    open(&disk, &image).unwrap();
}

#[test]
fn somebody_elses_files_are_left_alone() {
    let disk = Disk::new();
    let image = disk.pack();
    fs::write(disk.path("copy.part"), "mine").unwrap();
    assert!(matches!(open(&disk, &image), Err(ImageError::Exists(_))));
    assert_eq!(fs::read(disk.path("copy.part")).unwrap(), b"mine");
    fs::remove_file(disk.path("copy.part")).unwrap();
    symlink(disk.path("elsewhere"), disk.path("copy.part")).unwrap();
    assert!(open(&disk, &image).is_err());
    assert!(!disk.path("elsewhere").exists());
    fs::remove_file(disk.path("copy.part")).unwrap();
    fs::create_dir(disk.path("copy")).unwrap();
    let error = open(&disk, &image).unwrap_err().to_string();
    assert!(error.contains("copy is a directory"), "{error}");
    // A link to a file is followed, so that the file is replaced and not the link.
    fs::remove_dir(disk.path("copy")).unwrap();
    fs::write(disk.path("old"), "old").unwrap();
    symlink(disk.path("old"), disk.path("copy")).unwrap();
    let config = TargetConfig { overwrite: true, ..TargetConfig::default() };
    unpack(&image, &disk.path("copy"), &config).unwrap();
    assert!(disk.path("copy").is_symlink());
    assert!(fs::read(disk.path("old")).unwrap() == disk.bytes());
}

#[test]
fn what_an_incomplete_file_has_in_place_of_zeros_is_removed() {
    let disk = Disk::new();
    let image = disk.pack();
    let mut target = open(&disk, &image).unwrap();
    let mut stored = Vec::new();
    image.read(0, &mut stored).unwrap();
    target.write(0, &stored).unwrap();
    drop(target);
    let part = fs::OpenOptions::new().write(true).open(disk.path("copy.part")).unwrap();
    // A chunk of zeros, the zeros of a chunk with data, and beyond the end.
    for at in [12 * 65_536, 900_000 + 20_000, DISK + 10] {
        part.write_all_at(b"xyz", at).unwrap();
    }
    assert!(open(&disk, &image).unwrap().have().contains(0));
    unpack(&image, &disk.path("copy"), &TargetConfig::default()).unwrap();
    assert!(fs::read(disk.path("copy")).unwrap() == disk.bytes());
}

#[test]
fn the_file_that_is_read_is_not_overwritten() {
    let disk = Disk::new();
    let bytes = disk.bytes();
    let part = disk.path("x.part");
    fs::copy(&disk.disk, &part).unwrap();
    fs::set_permissions(&part, fs::Permissions::from_mode(0o600)).unwrap();
    let over = Packing { overwrite: true, ..packing() };
    for target in ["x", "x.part"] {
        let error = pack(&part, &disk.path(target), &over, &Progress::default()).unwrap_err();
        assert!(matches!(error, ImageError::Same(_)), "{error}");
        assert!(fs::read(&part).unwrap() == bytes);
    }
    pack(&disk.disk, &disk.path("y.part"), &packing(), &Progress::default()).unwrap();
    let image = Image::open(&disk.path("y.part"), &Progress::default()).unwrap();
    let before = fs::read(image.path()).unwrap();
    fs::set_permissions(image.path(), fs::Permissions::from_mode(0o600)).unwrap();
    let config = TargetConfig {
        overwrite: true,
        image: Some(image.id().unwrap()),
        ..TargetConfig::default()
    };
    for target in ["y", "y.part"] {
        let error = unpack(&image, &disk.path(target), &config).unwrap_err();
        assert!(matches!(error, ImageError::Same(_)), "{error}");
        assert!(fs::read(image.path()).unwrap() == before);
    }
    // Somebody's file in the place of the record.
    fs::write(disk.path("copy.part.chunks"), "mine").unwrap();
    let error = open(&disk, &image).unwrap_err().to_string();
    assert!(error.contains("copy.part.chunks exists already"), "{error}");
    assert_eq!(fs::read(disk.path("copy.part.chunks")).unwrap(), b"mine");
}

#[test]
fn an_incomplete_file_of_another_attempt_does_not_get_the_name() {
    let disk = Disk::new();
    let image = disk.pack();
    let mut first = open(&disk, &image).unwrap();
    let mut stored = Vec::new();
    for chunk in 0..image.manifest().chunks() {
        image.read(chunk, &mut stored).unwrap();
        first.write(chunk, &stored).unwrap();
    }
    fs::remove_file(disk.path("copy.part")).unwrap();
    let second = open(&disk, &image).unwrap();
    first.finish(&Progress::default()).unwrap_err();
    assert!(!disk.path("copy").exists() && disk.path("copy.part").exists());
    drop(second);
}

#[test]
fn a_file_that_is_replaced_keeps_its_mode() {
    let disk = Disk::new();
    let image = disk.pack();
    fs::write(disk.path("copy"), "secret").unwrap();
    fs::set_permissions(disk.path("copy"), fs::Permissions::from_mode(0o640)).unwrap();
    let config = TargetConfig { overwrite: true, ..TargetConfig::default() };
    unpack(&image, &disk.path("copy"), &config).unwrap();
    assert_eq!(disk.path("copy").metadata().unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn no_file_is_created_among_the_devices() {
    let disk = Disk::new();
    let image = disk.pack();
    symlink("/dev", disk.path("link")).unwrap();
    for target in ["/dev/rackweave-nosuch".into(), disk.path("link").join("rackweave-nosuch")] {
        let config = TargetConfig { overwrite: true, ..TargetConfig::default() };
        let opened = Target::open(&target, image.manifest().clone(), &config, &Progress::default());
        let error = opened.unwrap_err();
        assert!(matches!(error, ImageError::NoDevice(_)), "{error}");
        assert!(error.to_string().starts_with("there is no device "), "{error}");
        assert!(!target.exists() && !target.with_extension("part").exists());
    }
}
