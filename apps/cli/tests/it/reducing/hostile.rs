//! Senders that are no part of the job.

use std::net::SocketAddr;

use rackweave_core::HostId;
use rackweave_wire::Id64;
use rackweave_wire::overlay;
use rackweave_wire::reduce::{Body, Header, KIND, Operator, Pairs, Phase, State, encode};

use super::*;

/// Messages of a sender that knows the job's number, and neither its token nor the addresses of its hosts.
fn forged(round: u64) -> Vec<Vec<u8>> {
    let (seq, epoch) = (round as u32 % 300, round as u16 % 4);
    let state = State {
        version: u32::MAX,
        instance: round as u32,
        aggregator: HostId(7),
        epochs: 1,
        drained: 1,
        window: 1,
        copies: 1,
        phase: [Phase::Done, Phase::Failed][round as usize % 2],
        operator: Operator::Sum,
    };
    let bodies = [
        Body::Data(Pairs { seq, epoch, count: 2 }),
        Body::Residual(Pairs { seq, epoch, count: 2 }),
        Body::Long { seq, epoch, offset: 0, len: 40 },
        Body::Fin { seq, epoch, long_bytes: 0, pairs: 0 },
        Body::Join { instance: round as u32, cookie: Id64::new(round), digest: Id64::new(3) },
        Body::State(state),
        Body::Confirm { version: seq, idle: true },
        Body::Opened { slots: 1, instance: 1 },
        Body::Values { epoch, first: 0, sums: 3 },
        Body::Cleared { epoch },
        Body::Close,
        Body::Unknown,
        Body::Ack { seq, marked: false },
    ];
    let worker = (round % 3) as u8;
    let message = |body: &Body| {
        let token = Id64::new(if round.is_multiple_of(2) { 0 } else { round });
        let header = Header { job: 1, attempt: 0, worker, token, body: *body };
        let mut bytes = Vec::new();
        encode(&header, &mut bytes);
        bytes.resize(bytes.len() + header.payload_len() as usize, round as u8);
        bytes
    };
    let mut all: Vec<_> = bodies.iter().map(message).collect();
    all.push(vec![round as u8; round as usize % 90]);
    all
}

#[test]
fn a_stranger_changes_nothing_at_a_master_without_a_switch() {
    let texts = Texts::new(3, 8_000, 21);
    let port = free_ports(1);
    let listen = format!("--listen 127.0.0.1:{port}");
    let mut master = texts.master(3, &format!("{listen} --out counts --json"));
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to: SocketAddr = ([127, 0, 0, 1], port).into();
    let flood = |rounds: std::ops::Range<u64>| {
        for message in rounds.flat_map(forged) {
            let _ = stranger.send_to(&message, to);
        }
    };
    flood(0..300);
    let start = |number| {
        texts.start(&format!("reduce worker --master {to} --worker {number} text{number}"))
    };
    let mut workers: Vec<_> = (0..3).map(start).collect();
    let mut round = 300;
    until("the job ends", || {
        flood(round..round + 20);
        round += 20;
        master.child.try_wait().unwrap().is_some()
    });
    let stats = master.done();
    for worker in &mut workers {
        worker.done();
    }
    assert_eq!(texts.result("counts"), texts.expected());
    assert!(
        stats["refused"].as_u64().unwrap() > 0 && stats["stale"].as_u64().unwrap() > 0,
        "{stats}"
    );
}

#[test]
fn another_host_of_the_switch_can_neither_add_nor_end() {
    let texts = Texts::new(2, 8_000, 22);
    let overlay = Overlay::new(4, "--slots 1024 --link 20_Mbps");
    let more = format!("{} --switch 0 --slots 1024 --out counts --json", overlay.host(0));
    let mut master = texts.master(2, &more);
    let mut workers = overlay.workers(&texts, "");
    // Host 3 sends to the master, the workers and the switch.
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut round = 0;
    until("the job ends", || {
        let hosts = [0, 1, 2, 1 << 31];
        let each = |message: Vec<u8>| hosts.map(|dst| (message.clone(), dst));
        for (message, dst) in forged(round).into_iter().flat_map(each) {
            let mut bytes = Vec::new();
            overlay::encode_group(KIND, HostId(3), HostId(dst), message.len() as u16, &mut bytes);
            bytes.extend_from_slice(&message);
            let _ = stranger.send_to(&bytes, ("127.0.0.1", overlay.port + 3));
        }
        round += 1;
        master.child.try_wait().unwrap().is_some()
    });
    master.done();
    for worker in &mut workers {
        worker.done();
    }
    assert_eq!(texts.result("counts"), texts.expected());
    let counters = overlay.counters();
    assert!(counters["program"]["stale"].as_u64().unwrap() > 0, "{counters}");
}

#[test]
fn a_second_process_with_the_number_of_a_living_worker_is_not_taken() {
    let texts = Texts::new(2, 20_000, 23);
    let overlay = Overlay::new(4, "--slots 1024 --link 1_Mbps");
    let more = format!("{} --switch 0 --slots 1024 --out counts --json", overlay.host(0));
    let mut master = texts.master(2, &more);
    let mut workers = overlay.workers(&texts, "");
    master.says("started");
    let third = format!("reduce worker --master 0 --worker 1 {} text0", overlay.host(3));
    let mut third = texts.start(&third);
    for worker in &mut workers {
        worker.done();
    }
    assert_eq!(master.done()["restarts"], 0);
    let (code, said) = third.end();
    assert_eq!(code, 1);
    let why = "the master at host 0 does not take this process as worker 1";
    assert!(said.contains(why), "{said}");
    assert_eq!(texts.result("counts"), texts.expected());
}
