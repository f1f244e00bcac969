//! `image serve --multicast`: hosts that fetch by multicast, without it, late, killed and returning, and where it does not arrive.

use std::fs;

use super::{Place, Process, SERVER, chunks};
use crate::common::until;

/// The rate that makes the transfer of an image of 16 MiB last for seconds.
const SLOW: &str = "40 Mbps";

impl Place {
    /// Starts a server that multicasts. Tests have different groups.
    fn multicast(&self, group: &str, rate: &str, more: &[&str]) -> Process {
        self.serve(&[&["--multicast", group, "--rate", rate][..], more].concat())
    }
}

/// Waits until a client has this many chunks on its disk.
fn has_written(place: &Place, client: u8, at_least: u64) {
    let record = place.path(&format!("copy{client}.part.chunks"));
    // Each chunk has 16 bytes behind a header.
    until("chunks are written", || {
        fs::metadata(&record).is_ok_and(|found| found.len() >= 96 + 16 * at_least)
    });
}

/// Every byte came from the server, and by multicast.
fn came_by_multicast(client: &mut Process) {
    assert!(client.found("multicast").is_some(), "{:?}", client.events);
    assert!(client.found("no-multicast").is_none(), "{:?}", client.events);
    let written = client.found("written").unwrap();
    assert_eq!(written["from"][SERVER], written["fetched"], "{written}");
}

#[test]
fn clients_at_once_share_what_is_multicast_and_one_may_do_without() {
    let place = Place::new(128);
    fs::write(place.path("key"), "a secret of this cluster").unwrap();
    let key = ["--key-file", "key"];
    let server = place.multicast("239.255.98.1", "200 Mbps", &key);
    let mut clients: Vec<Process> = (2..6).map(|client| place.fetch(client, &key)).collect();
    for client in &mut clients {
        assert_eq!(client.end(), 0, "{:?}", client.events);
        came_by_multicast(client);
    }
    let mut alone = place.fetch(6, &[&["--no-multicast"][..], &key].concat());
    assert_eq!(alone.end(), 0);
    assert!(alone.found("multicast").is_none());
    assert!((2..7).all(|client| place.is_complete(client, "disk")));
    let ended = server.interrupted();
    let image = &ended["images"][0];
    let session = &image["multicast"];
    assert!(session["group"].as_str().unwrap().starts_with("239.255.98.1:"), "{image}");
    assert!(chunks(session, "blocks_sent") >= 128 * 64, "{image}");
    // One copy for four, and one for the last. A busy machine loses packets, which are sent a second time.
    assert!((1.9..4.0).contains(&image["copies"].as_f64().unwrap()), "{image}");
    let by_multicast = ended["clients"].as_array().unwrap().iter();
    assert_eq!(by_multicast.filter(|client| client["multicast"] == true).count(), 4, "{ended}");
}

#[test]
fn a_client_that_is_killed_goes_on_where_it_was_and_one_comes_late() {
    let place = Place::new(256);
    let server = place.multicast("239.255.98.2", SLOW, &[]);
    let mut clients = [place.fetch(2, &[]), place.fetch(3, &[])];
    has_written(&place, 2, 20);
    clients[0].signal("-KILL");
    clients[0].end();
    assert!(!place.path("copy2").exists(), "an incomplete file has another name");
    let [_, mut other] = clients;
    let (mut again, mut late) = (place.fetch(2, &[]), place.fetch(4, &[]));
    for client in [&mut other, &mut again, &mut late] {
        assert_eq!(client.end(), 0, "{:?}", client.events);
        came_by_multicast(client);
    }
    let written = again.found("written").unwrap();
    assert!(chunks(&written, "kept") >= 20, "{written}");
    assert_eq!(chunks(&written, "kept") + chunks(&written, "fetched"), 256);
    assert!((2..5).all(|client| place.is_complete(client, "disk")));
    server.interrupted();
}

#[test]
fn clients_go_on_when_their_server_is_killed_and_returns() {
    let place = Place::new(256);
    let mut server = place.multicast("239.255.98.3", SLOW, &[]);
    let mut clients: Vec<Process> = (2..4).map(|client| place.fetch(client, &[])).collect();
    has_written(&place, 2, 20);
    server.signal("-KILL");
    server.end();
    clients[0].event("server-lost");
    let server = place.multicast("239.255.98.3", "200 Mbps", &[]);
    for (client, process) in [2, 3].into_iter().zip(&mut clients) {
        assert_eq!(process.end(), 0, "{:?}", process.events);
        assert!(process.found("server-back").is_some());
        came_by_multicast(process);
        assert!(place.is_complete(client, "disk"));
    }
    server.interrupted();
}

/// It returns without multicast: what is missing comes from the server and the other client.
#[test]
fn clients_go_on_without_multicast_when_their_server_returns_without() {
    let place = Place::new(256);
    let mut server = place.multicast("239.255.98.4", SLOW, &[]);
    let mut clients: Vec<Process> = (2..4).map(|client| place.fetch(client, &[])).collect();
    has_written(&place, 2, 20);
    server.signal("-KILL");
    server.end();
    let server = place.serve(&[]);
    for (client, process) in [2, 3].into_iter().zip(&mut clients) {
        assert_eq!(process.end(), 0, "{:?}", process.events);
        let why = process.found("no-multicast").unwrap()["error"].to_string();
        assert!(why.contains("has come from 239.255.98.4:"), "{why}");
        let written = process.found("written").unwrap();
        assert_eq!(chunks(&written, "fetched"), 256, "what came by multicast counts: {written}");
        assert!(place.is_complete(client, "disk"));
    }
    let sent = chunks(&server.interrupted(), "chunks_sent");
    assert!(sent <= 2 * 256 - 20, "what was there was not fetched a second time: {sent}");
}

#[test]
fn an_interrupted_client_and_one_that_gives_up_say_so() {
    let place = Place::new(256);
    let mut server = place.multicast("239.255.98.5", SLOW, &[]);
    let (mut stopped, mut patient) = (place.fetch(2, &[]), place.fetch(3, &["--give-up", "2 s"]));
    has_written(&place, 2, 5);
    stopped.signal("-INT");
    assert_eq!(stopped.end(), 130);
    server.signal("-KILL");
    server.end();
    assert_eq!(patient.end(), 1);
    let why = patient.found("failed").unwrap()["error"].as_str().unwrap().to_owned();
    assert!(why.contains("no chunk has arrived for too long"), "{why}");
    assert!(place.is_clean(2) && place.is_clean(3));
}

#[test]
fn groups_that_are_not_scoped_are_refused() {
    let place = Place::new(1);
    for group in ["224.0.0.1", "239.1.2.3:0", "239.1.2.3:x", "192.0.2.1", "host"] {
        let arguments = ["serve", "golden.rwi", "--multicast", group];
        let output = place.command(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains("is not a group of 239.0.0.0/8"), "{stderr}");
    }
}
