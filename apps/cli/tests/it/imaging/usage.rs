//! What is refused before anything is done, and what commands say of it.

use std::fs;
use std::net::TcpListener;
use std::process::Output;

use super::{Place, SERVER};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Checks that a command was refused as wrong usage, and says why.
fn refused(output: &Output, why: &str) {
    let stderr = text(&output.stderr).replace(" │", "");
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(why), "{stderr}");
}

#[test]
fn a_server_says_what_it_cannot_serve() {
    let place = Place::new(1);
    let run = |arguments: &[&str]| {
        place.command(&[&["serve", "--status", "none"], arguments].concat()).output().unwrap()
    };
    refused(&run(&["nosuch.rwi"]), "cannot read");
    refused(&run(&["disk"]), "disk");
    refused(&run(&["golden.rwi", "golden.rwi"]), "is given twice");
    let pack = ["pack", "disk", "--to", "silver.rwi", "-q"];
    assert!(place.command(&pack).output().unwrap().status.success());
    refused(&run(&["golden.rwi", "silver.rwi", "--to", "127.0.0.2"]), "these are 2 images");
    refused(&run(&["golden.rwi", "--to", "127.0.0.2:6723"]), "without a port");
}

#[test]
fn a_target_that_is_no_device_and_a_key_that_exists_are_refused() {
    let place = Place::new(1);
    let run = |arguments: &[&str]| place.command(arguments).output().unwrap();
    let no_device = "there is no device /dev/rackweave-nosuch";
    refused(&run(&["unpack", "golden.rwi", "--to", "/dev/rackweave-nosuch"]), no_device);
    let server = place.serve(&[]);
    let from = format!("{SERVER}:{}", place.port);
    let fetch = ["fetch", "golden", "--from", &from, "--bind", "127.0.0.2", "--to"];
    refused(&run(&[&fetch[..], &["/dev/rackweave-nosuch"]].concat()), no_device);
    server.interrupted();
    assert_eq!(run(&["keygen", "key"]).status.code(), Some(0));
    fs::remove_file(place.path("key.key")).unwrap();
    refused(&run(&["keygen", "key"]), "choose another name");
    assert!(!place.path("key.key").exists(), "half a pair is of no use");
}

#[test]
fn addresses_of_a_client_are_checked_before_anything_is_written() {
    let place = Place::new(1);
    let server = place.serve(&[]);
    let _taken = TcpListener::bind(("127.0.0.3", place.port)).unwrap();
    let from = format!("{SERVER}:{}", place.port);
    for (bind, why) in [
        ("127.0.0.3", "needs an address of its own (--bind)"),
        ("192.0.2.77", "--bind must name an address of this host"),
        ("127.0.0.3:6723", "without a port"),
    ] {
        let fetch = ["fetch", "golden", "--from", &from, "--to", "copy3", "--bind", bind];
        refused(&place.command(&fetch).output().unwrap(), why);
        assert!(!place.path("copy3").exists() && !place.path("copy3.part").exists());
    }
    assert_eq!(server.interrupted()["clients"], serde_json::json!([]));
}

#[test]
fn a_client_lists_images_and_reports_empty_chunks() {
    let place = Place::new(4);
    let mut disk = fs::read(place.path("disk")).unwrap();
    disk[64 << 10..192 << 10].fill(0);
    fs::write(place.path("disk"), disk).unwrap();
    place.pack("disk", "golden.rwi");
    let server = place.serve(&[]);
    let from = format!("{SERVER}:{}", place.port);
    let run = |arguments: &[&str]| {
        place.command(&[&["fetch", "--from", &from], arguments].concat()).output().unwrap()
    };
    let listed = run(&["--list"]);
    assert_eq!(listed.status.code(), Some(0), "{listed:?}");
    let stdout = text(&listed.stdout);
    assert!(stdout.starts_with("golden: 262 KB in 4 chunks, 131 KB to fetch"), "{stdout}");
    let listed: serde_json::Value =
        serde_json::from_slice(&run(&["--list", "--json"]).stdout).unwrap();
    assert_eq!(
        (&listed["images"][0]["name"], &listed["images"][0]["chunks"]),
        (&"golden".into(), &4.into())
    );
    assert_eq!(run(&["golden", "--list"]).status.code(), Some(2));
    assert_eq!(run(&["golden"]).status.code(), Some(2), "--to is required");
    let fetched = run(&["golden", "--bind", "127.0.0.2", "--to", "copy2"]);
    let stdout = text(&fetched.stdout);
    assert!(stdout.contains("2 chunks with 131 KB"), "{stdout}");
    assert!(stdout.contains("0 were there, 2 are empty"), "{stdout}");
    assert!(place.is_complete(2, "disk"));
    let ended = server.interrupted();
    assert_eq!(
        (&ended["images"][0]["copies"], &ended["clients"][0]["empty"]),
        (&1.0.into(), &2.into())
    );
}
