//! Two endpoints on loopback.

use crate::common::{
    PATIENCE, bytes, config, drive, leverage, open_to_local, pair, patient, run_for, transports,
};
use bytes::Bytes;
use rackweave_core::{HostId, Kind, Rate, Span, Time};
use rackweave_linux::{Clock, Endpoint, EndpointConfig, Event, Key, SendError};
use rackweave_transport::TransportConfig;

#[test]
fn requests_are_answered_over_every_transport() {
    for (name, transport) in patient() {
        requests_are_answered(name, pair(&transport));
    }
}

/// Time is 64 bits of ticks of 10 ps, which is enough for 5.8 years. A process of 214 days is older than 64 bits of
/// picoseconds could say.
#[test]
fn requests_are_answered_by_processes_of_214_days_and_of_five_years() {
    for days in [214, 5 * 365] {
        let clock = Clock::aged(Span::from_secs(days * 86_400));
        for (name, transport) in patient() {
            for key in [None, Some(Key::derive(&[7; 32]).unwrap())] {
                let ends = [0, 1].map(|host| {
                    let config = config(host, &transport, clock);
                    Endpoint::new(EndpointConfig { key: key.clone(), ..config }).unwrap()
                });
                requests_are_answered(name, ends);
            }
        }
    }
}

fn requests_are_answered(name: &str, mut ends: [Endpoint; 2]) {
    let address = ends[1].local_addr();
    let server = ends[0].add_peer(address);
    let sizes = [1, 100, 1500, 20_000, 300_000];
    for len in sizes {
        ends[0].send(server, Kind::Request, bytes(0, len)).unwrap();
    }
    let mut answers = Vec::new();
    drive(&mut ends, |ends| {
        while let Some(event) = ends[1].poll_event() {
            if let Event::Message { peer, id, kind: Kind::Request, bytes } = event {
                let answer = Bytes::from(bytes.iter().map(|b| !b).collect::<Vec<_>>());
                ends[1].respond(peer, id, answer).unwrap();
            }
        }
        while let Some(event) = ends[0].poll_event() {
            match event {
                Event::Message { kind: Kind::Response, bytes, .. } => answers.push(bytes),
                Event::Failed { reason, .. } => panic!("{name}: {reason}"),
                _ => {}
            }
        }
        answers.len() == sizes.len()
    });
    answers.sort_by_key(Bytes::len);
    for (answer, len) in answers.iter().zip(sizes) {
        let expected: Vec<u8> = bytes(0, len).iter().map(|b| !b).collect();
        assert!(answer[..] == expected, "{name}: {len} bytes");
    }
}

#[test]
fn a_stream_carries_megabytes_in_bounded_memory() {
    const TOTAL: usize = 64 << 20;
    for (name, transport) in patient().into_iter().filter(|t| ["homa", "tcp"].contains(&t.0)) {
        let mut ends = pair(&transport);
        let address = ends[1].local_addr();
        let server = ends[0].add_peer(address);
        let stream = ends[0].open(server, Time::MAX).unwrap();
        let block = bytes(0, 251 * 1024);
        let (mut written, mut read, mut closed) = (0, 0, false);
        drive(&mut ends, |ends| {
            while written < TOTAL && ends[0].unacknowledged(server, stream) < 4 << 20 {
                let piece = block.slice(..block.len().min(TOTAL - written));
                written += piece.len();
                ends[0].write(server, stream, piece, written == TOTAL).unwrap();
            }
            while let Some(event) = ends[1].poll_event() {
                match event {
                    Event::Readable { peer, id, pieces, end } => {
                        for piece in pieces {
                            let at = read % block.len();
                            let known = block.len().min(at + piece.len()) - at;
                            assert!(piece[..known] == block[at..at + known], "{name} at {read}");
                            assert!(piece[known..] == block[..piece.len() - known]);
                            read += piece.len();
                            ends[1].consume(peer, id, piece.len() as u64);
                        }
                        if end {
                            ends[1].write(peer, id.response(), Bytes::new(), true).unwrap();
                        }
                    }
                    Event::Failed { reason, .. } => panic!("{name}: {reason}"),
                    _ => {}
                }
            }
            while let Some(event) = ends[0].poll_event() {
                match event {
                    Event::Failed { reason, .. } => panic!("{name}: {reason}"),
                    Event::Closed { .. } => closed = true,
                    _ => {}
                }
            }
            assert!(ends[1].memory().1 < 8 << 20 && ends[0].memory().0 < 8 << 20);
            closed
        });
        assert_eq!(read, TOTAL, "{name}");
        assert_eq!(ends[0].memory(), (0, 0), "{name}");
    }
}

/// Sends one request of `len` bytes and waits for its echo.
fn echo(ends: &mut [Endpoint; 2], len: usize) {
    let address = ends[1].local_addr();
    let server = ends[0].add_peer(address);
    let sent = ends[0].send(server, Kind::Request, bytes(7, len)).unwrap();
    drive(ends, |ends| {
        while let Some(event) = ends[1].poll_event() {
            if let Event::Message { peer, id, kind: Kind::Request, bytes } = event {
                ends[1].respond(peer, id, bytes).unwrap();
            }
        }
        while let Some(event) = ends[0].poll_event() {
            match event {
                Event::Message { id, kind: Kind::Response, bytes: answer, .. }
                    if id == sent.response() =>
                {
                    assert!(answer == bytes(7, len));
                    return true;
                }
                Event::Failed { reason, .. } => panic!("{reason}"),
                _ => {}
            }
        }
        false
    });
}

#[test]
fn over_ipv6() {
    rackweave_testing::needs!(Ipv6);
    let clock = Clock::start();
    let mut ends = [0, 1].map(|host| {
        let bind = "[::1]:0".parse().unwrap();
        let config = EndpointConfig::new(HostId(host), bind, open_to_local(), &leverage());
        Endpoint::new(EndpointConfig { clock, ..config }).unwrap()
    });
    echo(&mut ends, 300_000);
    assert_eq!(ends[0].stats().malformed + ends[1].stats().malformed, 0);
}

#[test]
fn packets_leave_in_trains() {
    let mut ends = pair(&leverage());
    echo(&mut ends, 1_000_000);
    let stats = ends[0].stats();
    assert!(stats.sent > 700, "{stats:?}");
    assert!(stats.trains * 2 < stats.sent && stats.send_calls <= stats.trains, "{stats:?}");
}

#[test]
fn who_sends_too_much_is_told_so() {
    let clock = Clock::start();
    let mut ends = [0, 1].map(|host| {
        let config = config(host, &leverage(), clock);
        Endpoint::new(EndpointConfig { send_bytes: 100_000, ..config }).unwrap()
    });
    let address = ends[1].local_addr();
    let server = ends[0].add_peer(address);
    let (mut sent, mut arrived, mut full) = (0, 0, 0);
    drive(&mut ends, |ends| {
        while sent < 100 {
            // The last message is longer than the whole send buffer: it is accepted because nothing else waits.
            let len = if sent == 99 { 150_000 } else { 30_000 };
            match ends[0].send(server, Kind::OneWay, bytes(sent, len)) {
                Ok(_) => sent += 1,
                Err(SendError::Full { waiting }) => {
                    assert!(waiting > 0);
                    full += 1;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
            assert!(ends[0].memory().0 <= 150_000);
        }
        while ends[0].poll_event().is_some() {}
        while let Some(event) = ends[1].poll_event() {
            arrived += u64::from(matches!(event, Event::Message { .. }));
        }
        arrived == 100
    });
    assert!(full > 10, "{full}");
}

#[test]
fn what_has_no_room_comes_later() {
    let clock = Clock::start();
    let mut ends = [0, 1].map(|host| {
        let config = config(host, &leverage(), clock);
        Endpoint::new(EndpointConfig { receive_bytes: 300_000, ..config }).unwrap()
    });
    let address = ends[1].local_addr();
    let server = ends[0].add_peer(address);
    for n in 0..8 {
        ends[0].send(server, Kind::OneWay, bytes(n, 200_000)).unwrap();
    }
    let (mut arrived, mut failed) = (0, 0);
    drive(&mut ends, |ends| {
        assert!(ends[1].memory().1 <= 300_000);
        while let Some(event) = ends[0].poll_event() {
            failed += u32::from(matches!(event, Event::Failed { .. }));
        }
        while let Some(event) = ends[1].poll_event() {
            arrived += u32::from(matches!(event, Event::Message { .. }));
        }
        arrived + failed == 8
    });
    assert!(arrived > 0);
    assert!(ends[1].stats().no_room > 0);
}

/// Makes twenty calls from a client that then calls `finish` and does nothing more. Returns how many of the answers the
/// server knows to have arrived, and how many it gave up.
fn calls_of_a_client_that_finishes(name: &str, transport: &TransportConfig) -> (u32, u32) {
    let [mut client, mut server] = pair(transport);
    let address = server.local_addr();
    let until = client.clock().now() + PATIENCE;
    let mut outcomes = (0, 0);
    std::thread::scope(|scope| {
        let (outcomes, server) = (&mut outcomes, &mut server);
        scope.spawn(move || {
            while outcomes.0 + outcomes.1 < 20 && server.clock().now() < until {
                let next = server.turn().unwrap().unwrap_or(Time::MAX);
                while let Some(event) = server.poll_event() {
                    match event {
                        Event::Message { peer, id, kind: Kind::Request, bytes } => {
                            server.respond(peer, id, bytes).unwrap();
                        }
                        Event::Sent { id, .. } if id.is_response() => outcomes.0 += 1,
                        Event::Failed { .. } => outcomes.1 += 1,
                        _ => {}
                    }
                }
                let soon = server.clock().now() + Span::from_ms(1);
                server.wait(Some(next.min(soon))).unwrap();
            }
        });
        let peer = client.add_peer(address);
        for n in 0..20 {
            client.send(peer, Kind::Request, bytes(n, 100 + n as usize * 1000)).unwrap();
        }
        let mut answers = 0;
        drive(std::slice::from_mut(&mut client), |ends| {
            while let Some(event) = ends[0].poll_event() {
                answers += u32::from(matches!(event, Event::Message { kind: Kind::Response, .. }));
            }
            answers == 20
        });
        assert!(client.finish(until).unwrap(), "{name}: {:?}", client.stats());
        assert!(client.poll_event().is_none(), "{name}: there is nothing more");
    });
    assert_eq!((client.memory(), server.memory()), ((0, 0), (0, 0)), "{name}");
    outcomes
}

#[test]
fn a_client_that_finishes_leaves_nothing_open() {
    for (name, transport) in transports() {
        let transport = transport.patient(Span::from_secs(2));
        // If the server is not scheduled for longer than the client stays, it has to give up its answers.
        let tries = (0..10).map(|_| calls_of_a_client_that_finishes(name, &transport));
        let outcomes: Vec<_> = tries.take_while(|outcomes| *outcomes != (20, 0)).collect();
        assert!(
            outcomes.len() < 10,
            "{name}: the server knows that all answers have arrived: {outcomes:?}"
        );
        assert!(
            outcomes.iter().all(|outcomes| outcomes.0 + outcomes.1 == 20),
            "{name}: {outcomes:?}"
        );
        // The peer does not exist, so the time limit is reached.
        let [mut client, _] = pair(&transport);
        let absent = client.add_peer("127.0.0.1:9".parse().unwrap());
        client.send(absent, Kind::OneWay, bytes(0, 10)).unwrap();
        let until = client.clock().now() + Span::from_ms(20);
        assert!(!client.finish(until).unwrap());
    }
}

#[test]
fn a_cancelled_message_has_no_events() {
    for (name, transport) in patient() {
        let mut ends = pair(&transport);
        let address = ends[1].local_addr();
        let server = ends[0].add_peer(address);
        // One call that was answered, without the answer being polled, and one that is in progress in both directions.
        let first = ends[0].send(server, Kind::Request, bytes(1, 100)).unwrap();
        drive(&mut ends, |ends| {
            while let Some(event) = ends[1].poll_event() {
                if let Event::Message { peer, id, bytes, .. } = event {
                    ends[1].respond(peer, id, bytes).unwrap();
                }
            }
            ends[0].events_waiting() > 0 && ends[0].memory().0 == 0
        });
        ends[0].cancel(server, first);
        let second = ends[0].send(server, Kind::Request, bytes(2, 900_000)).unwrap();
        drive(&mut ends, |ends| ends[1].memory().1 > 0);
        ends[0].cancel(server, second);
        drive(&mut ends, |ends| ends[0].memory() == (0, 0));
        run_for(&mut ends, Span::from_ms(30));
        let event = ends[0].poll_event();
        assert!(event.is_none(), "{name}: {event:?}");
        echo(&mut ends, 5000);
    }
}

/// A sender dies in the middle of messages; the receiver's application has had no event of them.
#[test]
fn memory_for_messages_of_the_dead_is_freed() {
    let clock = Clock::start();
    let mut all: Vec<(&str, Endpoint)> = Vec::new();
    for (name, transport) in transports() {
        let slow = EndpointConfig { link: Rate(200_000_000), ..config(0, &transport, clock) };
        let receiver = Endpoint::new(config(1, &transport, clock)).unwrap();
        let mut ends = [Endpoint::new(slow).unwrap(), receiver];
        let address = ends[1].local_addr();
        let server = ends[0].add_peer(address);
        for n in 0..3 {
            let kind = if n == 0 { Kind::Request } else { Kind::OneWay };
            ends[0].send(server, kind, bytes(n, 900_000)).unwrap();
        }
        drive(&mut ends, |ends| ends[1].memory().1 > 0);
        let [_, receiver] = ends;
        all.push((name, receiver));
    }
    let until = clock.now() + PATIENCE;
    while all.iter().any(|(_, end)| end.memory().1 > 0) {
        for (name, end) in &mut all {
            end.turn().unwrap();
            assert!(end.poll_event().is_none(), "{name}");
            assert!(clock.now() < until, "{name}: {:?} {:?}", end.memory(), end.stats());
        }
        let soon = clock.now() + Span::from_ms(10);
        all[0].1.wait(Some(soon)).unwrap();
    }
}

/// A message that TCP has begun to send is part of its byte stream. If a call is cancelled in the middle of it, the
/// connection stays usable for others, and its bytes are freed when they have been sent.
#[test]
fn cancelling_in_the_middle_of_a_message_disturbs_no_other() {
    let bytes_of: Vec<_> = (0..8).map(|n| bytes(n, 900_000)).collect();
    for (name, transport) in patient() {
        let clock = Clock::start();
        let client = Endpoint::new(config(0, &transport, clock)).unwrap();
        let server = Endpoint::new(config(1, &transport, clock)).unwrap();
        let address = server.local_addr();
        let mut ends = [client, server];
        let peer = ends[0].add_peer(address);
        let echo = |ends: &mut [Endpoint]| {
            while let Some(event) = ends[1].poll_event() {
                if let Event::Message { peer, id, kind: Kind::Request, bytes: got } = event {
                    // The cancelled message may still arrive; its content must then be correct.
                    assert!(bytes_of.contains(&got) || got == bytes(99, 30_000), "{name}");
                    ends[1].respond(peer, id, got).unwrap();
                }
            }
        };
        for doomed in &bytes_of {
            let before = ends[0].stats().sent;
            let doomed = ends[0].send(peer, Kind::Request, doomed.clone()).unwrap();
            drive(&mut ends, |ends| {
                echo(ends);
                ends[0].stats().sent > before + 5
            });
            ends[0].cancel(peer, doomed);
            let kept = ends[0].send(peer, Kind::Request, bytes(99, 30_000)).unwrap();
            let mut answer = None;
            drive(&mut ends, |ends| {
                echo(ends);
                while let Some(event) = ends[0].poll_event() {
                    match event {
                        Event::Message { id, bytes, .. } if id == kept.response() => {
                            answer = Some(bytes);
                        }
                        Event::Sent { .. } => {}
                        other => panic!("{name}: {other:?}"),
                    }
                }
                answer.is_some()
            });
            assert!(answer.unwrap() == bytes(99, 30_000), "{name}");
        }
        drive(&mut ends, |ends| {
            echo(ends);
            ends[0].memory().0 == 0
        });
        assert_eq!(ends[0].stats().stale, 0, "{name}: no packet without its bytes");
    }
}
