//! Where the live page of `rackweave image serve` is. What is on it is tested in the crate of imaging.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use super::{Place, Process, SERVER};

fn get(page: &str, path: &str) -> String {
    let host = page.strip_prefix("http://").unwrap().strip_suffix('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_page_shows_clients_and_ends_with_the_server() {
    let place = Place::new(16);
    let mut server = place.serve(&["--status", "127.0.0.1:0", "--to", "127.0.0.2,127.0.0.3"]);
    let page = server.event("listening")["page"].as_str().unwrap().to_owned();
    assert!(get(&page, "/").contains("<!DOCTYPE html>"));
    assert_eq!(place.fetch(2, &[]).end(), 0);
    crate::common::until("the page shows it", || {
        let metrics = get(&page, "/metrics");
        let done = "rackweave_image_clients{image=\"golden\",phase=\"done\"} 1\n";
        metrics.contains(done) && metrics.contains("rackweave_image_absent_hosts 1\n")
    });
    assert_eq!(place.fetch(3, &[]).end(), 0);
    assert_eq!(server.end(), 0);
    let address = page.strip_prefix("http://").unwrap().strip_suffix('/').unwrap();
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_port_that_is_taken_is_an_error_if_it_was_chosen() {
    let place = Place::new(1);
    let listen = format!("{SERVER}:{}", place.port);
    let serve = ["serve", "golden.rwi", "--listen", &listen, "--json"];
    let taken = TcpListener::bind((SERVER, 0)).unwrap();
    let status = taken.local_addr().unwrap().to_string();
    let output = place.command(&[&serve[..], &["--status", &status]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("cannot serve the page at"), "{stderr}");
    for wrong in ["nowhere.invalid:80", "127.0.0.1:70000", "70000"] {
        let output = place.command(&[&serve[..], &["--status", wrong]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong}: {output:?}");
    }
    // If this fails somebody else has the default port, which is as good.
    let _taken = TcpListener::bind((SERVER, 6780));
    let mut server = Process::start(place.command(&serve));
    assert_eq!(server.event("listening")["page"], serde_json::Value::Null);
    assert_eq!(place.fetch(2, &[]).end(), 0, "images are served all the same");
    server.interrupted();
}
