//! Files with the names that receivers give to incomplete files.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::Path;

use crate::casts::{Receiver, rackweave, sent, write};

fn send(source: &Path, to: &str, options: &[&str]) {
    let mut command = rackweave(&["send", source.to_str().unwrap(), "--to", to, "--json"]);
    sent(command.args(options));
}

fn is_same(source: &Path, place: &Path, names: &[&str]) {
    for name in names {
        let read = |folder: &Path| fs::read(folder.join(name)).ok();
        assert_eq!(read(&place.join("p")), read(source), "{name} at {}", place.display());
    }
    let count = |folder: &Path| fs::read_dir(folder).unwrap().count();
    assert_eq!(count(&place.join("p")), count(source));
    assert_eq!(count(place), 1);
}

/// `x.part` became the beginning of `x`, and the result was "complete".
#[test]
fn a_file_that_is_called_as_a_part_outlives_the_file_of_which_it_could_be_one() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("p");
    fs::create_dir(&source).unwrap();
    write(&source.join("x"), b"x", 1_000_000);
    for (name, bytes) in [("x.part", "part"), ("y.part", "part of y")] {
        write(&source.join(name), bytes.as_bytes(), 1_000_000);
        // The mode of a file that is incomplete.
        fs::set_permissions(source.join(name), PermissionsExt::from_mode(0o600)).unwrap();
    }
    write(&source.join("z"), b"z", 1_000_000);
    fs::hard_link(source.join("z"), source.join("z.part")).unwrap();
    let names = ["x", "x.part", "y", "y.part", "z", "z.part"];
    let places = ["r0", "r1"].map(|it| folder.path().join(it));
    let receivers = places.each_ref().map(|place| Receiver::into(place, &["--overwrite"]));
    let to = format!("{},{}", receivers[0].address, receivers[1].address);
    send(&source, &to, &[]);
    places.iter().for_each(|place| is_same(&source, place, &names));
    write(&source.join("x"), b"changed", 2_000_000);
    write(&source.join("y"), b"new", 1_000_000);
    send(&source, &to, &[]);
    places.iter().for_each(|place| is_same(&source, place, &names));
    // One session for both, though only one lacks the file.
    fs::remove_file(places[1].join("p/x")).unwrap();
    send(&source, &to, &["--rate", "400 Mbps"]);
    places.iter().for_each(|place| is_same(&source, place, &names));
    // The name `z` becomes another file.
    fs::remove_file(source.join("z")).unwrap();
    write(&source.join("z"), b"other", 2_000_000);
    send(&source, &to, &[]);
    places.iter().for_each(|place| is_same(&source, place, &names));
    assert_eq!(fs::metadata(places[0].join("p/z")).unwrap().nlink(), 1);
}

/// As above, at a receiver that replaces no file.
#[test]
fn a_new_file_takes_no_other_one_for_its_part() {
    let folder = tempfile::tempdir().unwrap();
    let (source, place) = (folder.path().join("p"), folder.path().join("r"));
    fs::create_dir(&source).unwrap();
    write(&source.join("x.part"), b"part", 1_000_000);
    fs::set_permissions(source.join("x.part"), PermissionsExt::from_mode(0o600)).unwrap();
    let receiver = Receiver::into(&place, &[]);
    send(&source, &receiver.address, &[]);
    write(&source.join("x"), b"x", 1_000_000);
    send(&source, &receiver.address, &[]);
    is_same(&source, &place, &["x", "x.part"]);
}

/// The dry run succeeded, and the cast was refused, after content, or without a cause.
#[test]
fn a_dry_run_and_a_cast_succeed_whatever_has_the_name_of_the_part() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("p");
    fs::create_dir(&source).unwrap();
    write(&source.join("x"), b"x", 1_000_000);
    for is_directory in [false, true] {
        let place = folder.path().join(is_directory.to_string());
        let part = place.join("p/x.part");
        fs::create_dir_all(place.join("p")).unwrap();
        match is_directory {
            true => fs::create_dir(&part).unwrap(),
            false => write(&part, b"another", 1_000_000),
        }
        let receiver = Receiver::into(&place, &[]);
        send(&source, &receiver.address, &["--dry-run"]);
        send(&source, &receiver.address, &[]);
        assert_eq!(fs::read(place.join("p/x")).unwrap(), b"x");
        assert_eq!(fs::read(&part).ok().as_deref(), (!is_directory).then_some(&b"another"[..]));
        assert_eq!(fs::read_dir(place.join("p")).unwrap().count(), 2);
    }
}
