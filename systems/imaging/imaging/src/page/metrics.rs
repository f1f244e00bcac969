//! A server's status in Prometheus' text format, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::status::{ClientView, ImageView, MulticastView, ServerStatus};

/// The content type of the format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The most clients that have series of their own: first clients that are not over, then by
/// address.
const MOST_CLIENTS: usize = 1000;
/// The most images that have series of their own.
const MOST_IMAGES: usize = 1000;

/// Samples of one name, which the format wants together.
struct Family<'a> {
    out: &'a mut String,
    name: &'static str,
}

impl<'a> Family<'a> {
    fn new(out: &'a mut String, name: &'static str, kind: &str, help: &str) -> Self {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP rackweave_image_{name} {help}");
        let _ = writeln!(out, "# TYPE rackweave_image_{name} {kind}");
        Self { out, name }
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let _ = write!(self.out, "rackweave_image_{}", self.name);
        for (number, (label, content)) in labels.iter().enumerate() {
            let before = if number == 0 { '{' } else { ',' };
            let _ = write!(self.out, "{before}{label}=\"{}\"", escaped(content));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.out, "{after} {value}");
    }
}

/// Escapes the value of a label.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

/// Returns the metrics of a server.
pub(super) fn text(status: &ServerStatus) -> String {
    let mut out = String::new();
    server(&mut out, status);
    images(&mut out, &status.images[..status.images.len().min(MOST_IMAGES)]);
    phases(&mut out, &status.clients);
    let mut shown: Vec<&ClientView> = status.clients.iter().collect();
    shown.sort_by_key(|client| (client.status.phase.is_over(), client.address));
    shown.truncate(MOST_CLIENTS);
    clients(&mut out, &shown);
    let omitted = status.clients.len() - shown.len();
    let help = "Clients that have no series of their own, because there are too many.";
    Family::new(&mut out, "clients_omitted", "gauge", help).sample(&[], omitted);
    out
}

fn server(out: &mut String, status: &ServerStatus) {
    let mut one = |name, kind, help, value: u64| {
        Family::new(out, name, kind, help).sample(&[], value);
    };
    one("sent_bytes_total", "counter", "Stored bytes that the server has sent.", status.bytes_sent);
    one("requests_total", "counter", "Requests for batches of chunks.", status.requests);
    let help = "Chunks whose requests were redirected to clients.";
    one("redirected_chunks_total", "counter", help, status.redirected);
    let help = "Chunks that clients returned because they do not have them.";
    one("returned_chunks_total", "counter", help, status.returned);
    let help = "Chunks that clients have named as damaged.";
    one("damaged_chunks_total", "counter", help, status.damaged);
    let help = "Clients that were barred because of damaged chunks from them.";
    one("barred_clients_total", "counter", help, status.barred);
    let help =
        "Control messages that were refused: malformed, with a wrong tag, or without a session.";
    one("refused_messages_total", "counter", help, status.refused);
    let help = "Control messages that the system did not accept for sending.";
    one("unsent_messages_total", "counter", help, status.unsent);
    let help = "Hosts that an image is for and that have not been here.";
    one("absent_hosts", "gauge", help, status.absent.len() as u64);
    let slow = status.clients.iter().filter(|client| client.slow.is_some()).count();
    one("slow_clients", "gauge", "Clients that are slow, have failed, or are gone.", slow as u64);
    Family::new(out, "uptime_seconds", "gauge", "Time since the server started.")
        .sample(&[], seconds(status.elapsed_ms));
}

fn images(out: &mut String, images: &[ImageView]) {
    let help = "An image, with its root hash.";
    let mut info = Family::new(out, "info", "gauge", help);
    for image in images {
        info.sample(&[("image", &image.name), ("root", &image.root)], 1);
    }
    let mut each = |name, kind, help, value: fn(&ImageView) -> u64| {
        let mut family = Family::new(out, name, kind, help);
        for image in images {
            family.sample(&[("image", &image.name)], value(image));
        }
    };
    each("disk_bytes", "gauge", "Size of the disk.", |image| image.bytes);
    each("stored_bytes", "gauge", "Stored bytes of all chunks.", |image| image.stored);
    each("chunks", "gauge", "Number of chunks.", |image| image.chunks.into());
    let help = "Chunks of an image that the server has sent.";
    each("sent_chunks_total", "counter", help, |image| image.chunks_sent);
    let help = "Stored bytes of these; divided by stored_bytes, the copies that were sent.";
    each("sent_stored_bytes_total", "counter", help, |image| image.bytes_sent);
    let sessions = || images.iter().filter_map(|it| Some((it, it.multicast.as_ref()?)));
    let mut of_session = |name, help, value: fn(&MulticastView) -> u64| {
        let mut family = Family::new(out, name, "counter", help);
        for (image, session) in sessions() {
            family.sample(&[("image", &image.name), ("group", &session.group)], value(session));
        }
    };
    let help = "Blocks of an image that were multicast.";
    of_session("multicast_blocks_total", help, |session| session.blocks_sent);
    let help = "Requests for blocks that hosts have sent to the group.";
    of_session("multicast_requests_total", help, |session| session.requests);
    let help = "Those for less than a chunk, most of them because packets were lost.";
    of_session("multicast_partial_requests_total", help, |session| session.partial_requests);
    let help = "Messages of the group that were refused.";
    of_session("multicast_refused_total", help, |session| session.refused);
    let help = "Blocks that the system did not accept for sending.";
    of_session("multicast_unsent_total", help, |session| session.unsent);
}

fn phases(out: &mut String, clients: &[ClientView]) {
    let mut counts: BTreeMap<(&str, _), u64> = BTreeMap::new();
    for client in clients {
        *counts.entry((&client.image, client.status.phase)).or_insert(0) += 1;
    }
    let mut family = Family::new(out, "clients", "gauge", "Clients by image and phase.");
    for ((image, phase), count) in counts.into_iter().take(MOST_IMAGES * 8) {
        family.sample(&[("image", image), ("phase", phase.name())], count);
    }
}

fn clients(out: &mut String, clients: &[&ClientView]) {
    let names: Vec<String> = clients.iter().map(|client| client.address.to_string()).collect();
    let named = || clients.iter().zip(&names);
    let help = "Chunks of a client: all of the image, those it has, those it had when it started, those without content, and those that are written.";
    let mut family = Family::new(out, "client_chunks", "gauge", help);
    for (client, name) in named() {
        let status = &client.status;
        let states = [
            ("all", status.chunks),
            ("have", status.have),
            ("kept", status.kept),
            ("empty", status.empty),
            ("written", status.written),
        ];
        for (state, chunks) in states {
            let labels = [("client", &**name), ("image", &client.image), ("state", state)];
            family.sample(&labels, chunks);
        }
    }
    let mut each = |name, kind, help, value: fn(&ClientView) -> f64| {
        let mut family = Family::new(out, name, kind, help);
        for (client, name) in named() {
            family.sample(&[("client", name), ("image", &client.image)], value(client));
        }
    };
    let help = "Stored bytes that a client has received.";
    each("client_received_bytes_total", "counter", help, |it| it.status.bytes as f64);
    let help = "Bytes that a client received in the last second.";
    each("client_receive_bytes_per_second", "gauge", help, |it| it.status.receive_rate as f64);
    let help = "Bytes that a client sent to others in the last second.";
    each("client_send_bytes_per_second", "gauge", help, |it| it.status.send_rate as f64);
    let help = "Chunks that a client requested again.";
    each("client_retries_total", "counter", help, |it| it.status.retries.into());
    let help = "Damaged chunks that a client received.";
    each("client_damaged_chunks_total", "counter", help, |it| it.status.damaged.into());
    let help = "Control messages that a client refused: malformed, with a wrong tag, or from another host than they say.";
    each("client_refused_messages_total", "counter", help, |it| it.status.refused as f64);
    let help = "Control messages that the system of a client did not accept for sending.";
    each("client_unsent_messages_total", "counter", help, |it| it.status.unsent as f64);
    let help = "Time since a client's last report.";
    each("client_report_age_seconds", "gauge", help, |it| seconds(it.age_ms));
    let help = "1 if every byte of the image is on a client's target.";
    each("client_complete", "gauge", help, |it| f64::from(u8::from(it.status.phase.is_complete())));
    let help = "1 if a client is slow, has failed, or is gone.";
    each("client_slow", "gauge", help, |it| f64::from(u8::from(it.slow.is_some())));
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::page::tests::{client, parsed, status};
    use crate::status::{ClientStatus, Phase};

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("a\\b\"c\nd\u{e9}{}"), "a\\\\b\\\"c\\nd\u{e9}{}");
        let mut one = client(Ipv4Addr::LOCALHOST, ClientStatus::default());
        "x\"} 1\nevil{y=\"\\".clone_into(&mut one.image);
        let samples = parsed(&text(&status(vec![one])));
        let (_, labels, value) =
            samples.iter().find(|(name, ..)| name == "rackweave_image_client_slow").unwrap();
        assert_eq!((labels["image"].as_str(), *value), ("x\"} 1\nevil{y=\"\\", 0.0));
        assert!(!samples.iter().any(|(name, ..)| name == "evil"));
    }

    #[test]
    fn the_number_of_series_has_a_limit() {
        let at = |number: u32| Ipv4Addr::from_bits(0x0a00_0000 + number);
        let of = |number| {
            let phase = if number < 3000 { Phase::Gone } else { Phase::Fetching };
            client(at(number), ClientStatus { phase, ..ClientStatus::default() })
        };
        let samples = parsed(&text(&status((0..3500).map(of).collect())));
        assert!(samples.len() < 16_000, "{}", samples.len());
        let value = |name: &str, label: &str, is: &str| {
            let has =
                |labels: &BTreeMap<String, String>| labels.get(label).is_some_and(|it| it == is);
            samples
                .iter()
                .find(|(it, labels, _)| it == name && has(labels))
                .map(|(.., value)| *value)
        };
        assert_eq!(value("rackweave_image_clients", "phase", "gone"), Some(3000.0));
        let complete = "rackweave_image_client_complete";
        assert_eq!(value(complete, "client", "10.0.13.171"), Some(0.0), "the last that fetches");
        assert_eq!(value(complete, "client", "10.0.11.183"), None, "one that is gone");
        let omitted = samples.iter().find(|(name, ..)| name.ends_with("_omitted")).unwrap();
        assert_eq!(omitted.2, 2500.0);
    }
}
