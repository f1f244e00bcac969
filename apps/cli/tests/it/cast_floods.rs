//! Floods of forged packets at a `rackweave cast receive`: its memory, what it answers, and whether it still serves a sender.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rackweave_core::{HostId, Rng};
use rackweave_testing::SetOnDrop;
use rackweave_wire::orca::{self, Body, Control, Data, Header, Label, Labelled, Place, Session};

use crate::casts::{Receiver, content, rackweave};
use crate::common::{now, status_of};

/// The bytes of the IPv4 and UDP headers.
const HEADERS: u64 = 28;

const LENGTH: usize = 20_000_000;

/// The memory that a flood may cost, in addition to that of a cast without one.
const MORE_KIB: u64 = 16 << 10;

fn peak_kib(receiver: &Receiver) -> u64 {
    let peak = status_of(receiver.child.id(), "VmHWM:").unwrap();
    peak.strip_suffix(" kB").unwrap().trim().parse().unwrap()
}

/// A datagram of somebody who has neither the key nor receives anything: an invitation, data, a message of the handshake, or noise.
fn forged(rng: &mut Rng) -> Vec<u8> {
    let session = Session(rng.next_u64() as u32);
    let mut bytes = Vec::new();
    match rng.below(5) {
        0 | 1 => {
            let body = Body::Invite {
                stream: 7,
                place: Place::default(),
                payload: 1400,
                via_agent: false,
            };
            let control = Control { from: HostId(0), to: HostId(0), session, body };
            orca::encode_header(&Header::Control(control), 1, None, &[], &mut bytes);
        }
        2 => {
            let data = Data {
                labelled: Labelled::Host,
                label: Label(0),
                session,
                offset: rng.below(1 << 40),
                len: 1400,
                repair: false,
                end: false,
                parity: None,
            };
            let counter = rng.below(1 << 48);
            let check = orca::Check::Sealed { counter, tag: [rng.next_u64() as u8; 16] };
            orca::encode_relayed(&data, 1, check, &mut bytes);
            bytes.resize(bytes.len() + 1400, 5);
        }
        3 => {
            bytes.extend([0xa2, rng.below(7) as u8]);
            bytes.resize([30, 32, 92][rng.below(3) as usize], rng.next_u64() as u8);
        }
        _ => bytes.resize(1 + rng.below(1400) as usize, rng.next_u64() as u8),
    }
    bytes
}

/// Sends forged packets until the end; returns the bytes that were sent, and the bytes that came back.
fn flood(to: &str, end: &AtomicBool) -> (u64, u64) {
    let mut rng = Rng::stream(1, 0, 0, "flood");
    let sockets: Vec<UdpSocket> =
        (0..20).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let (mut sent, mut back, mut buffer) = (0, 0, vec![0; 1 << 16]);
    let mut receive = |socket: &UdpSocket| {
        while let Ok(len) = socket.recv(&mut buffer) {
            back += len as u64 + HEADERS;
        }
    };
    for socket in &sockets {
        socket.set_nonblocking(true).unwrap();
    }
    while !end.load(Ordering::Relaxed) {
        for socket in &sockets {
            let bytes = forged(&mut rng);
            if socket.send_to(&bytes, to).is_ok() {
                sent += bytes.len() as u64 + HEADERS;
            }
            receive(socket);
        }
    }
    let until = now() + Duration::from_secs(1);
    while now() < until {
        sockets.iter().for_each(&mut receive);
    }
    (sent, back)
}

fn send(file: &Path, to: &str, key: &[&str]) {
    let mut command = rackweave(&["send", "--to", to, file.to_str().unwrap()]);
    let output = command.args(key).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_flood_costs_little_memory_is_not_amplified_and_locks_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, [7; 32]).unwrap();
    let with = ["--key", key.to_str().unwrap()];
    for key in [&[][..], &with[..]] {
        let place = tempfile::tempdir().unwrap();
        let receiver = Receiver::into(place.path(), key);
        let file = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, content(LENGTH)).unwrap();
            path
        };
        send(&file("before"), &receiver.address, key);
        let (before, end) = (peak_kib(&receiver), AtomicBool::new(false));
        let (sent, back) = std::thread::scope(|scope| {
            let flood = scope.spawn(|| flood(&receiver.address, &end));
            let stop = SetOnDrop(&end);
            let began = now();
            let mut casts = 0;
            while casts < 3 || began.elapsed() < Duration::from_secs(5) {
                let name = format!("during{casts}");
                send(&file(&name), &receiver.address, key);
                assert!(std::fs::read(place.path().join(&name)).unwrap() == content(LENGTH));
                casts += 1;
            }
            drop(stop);
            flood.join().unwrap()
        });
        let more = peak_kib(&receiver).saturating_sub(before);
        println!("{key:?}: {sent} bytes forged, {back} answered, {more} KiB more than {before}");
        assert!(sent > 1_000_000 && back > 0 && back <= sent, "{sent} {back}");
        assert!(more <= MORE_KIB, "{more} KiB");
        // Nothing but the files of the sender was written.
        let all = std::fs::read_dir(place.path()).unwrap().map(|it| it.unwrap().file_name());
        assert!(all.into_iter().all(|name| {
            let name = name.to_string_lossy().into_owned();
            name == "before" || name.starts_with("during")
        }));
    }
}
