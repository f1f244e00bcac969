//! What the program in the kernel does where that in Rust does otherwise, and with frames that are not what they pretend to be.

use rackweave_wire::frisbee::{Auth, Direction, Key};

use super::*;

/// The hosts 1 to `count`, which have joined and have these chunks.
fn joined(tor: &mut Tor, count: u8, chunks: &[u32]) -> Vec<Host> {
    let hosts: Vec<Host> = (1..=count).map(Host::number).collect();
    for host in &hosts {
        assert_eq!(redirected(tor, host, &host.enter(1), 0), None);
        assert_eq!(redirected(tor, host, &host.report(0, chunks), 0), None);
    }
    hosts
}

#[test]
fn a_client_is_bound_to_its_port_and_addresses_until_it_is_silent() {
    let Some(mut tor) = load(|_| {}) else { return };
    let hosts = joined(&mut tor, 2, &[]);
    let (holder, other) = (hosts[0], hosts[1]);
    // None of these may report in the holder's name, nor request, nor make it leave.
    let elsewhere = [
        Host { interface: 7, ..holder },
        Host { mac: [2, 0, 0, 0, 0, 9], ..holder },
        Host { port: 6724, ..holder },
    ];
    for forged in &elsewhere {
        for frame in [forged.report(0, &[5]), forged.batch(5, 1, 0), forged.exit(), forged.enter(9)]
        {
            assert_eq!(redirected(&mut tor, forged, &frame, 1), None);
        }
    }
    assert_eq!(redirected(&mut tor, &other, &other.batch(5, 1, 0), 1), None);
    assert_eq!(tor.counters().unwrap().spoofed, 12);
    assert_eq!(tor.clients().unwrap().len(), 2);
    // After the silence it may have moved. What it had is forgotten.
    redirected(&mut tor, &holder, &holder.report(0, &[5]), 1);
    let moved = elsewhere[0];
    redirected(&mut tor, &moved, &moved.report(0, &[6]), 5002);
    assert_eq!(redirected(&mut tor, &other, &other.batch(5, 1, 0), 5002), None);
    assert_eq!(redirected(&mut tor, &other, &other.batch(6, 1, 0), 5002), Some(holder.ip));
    assert_eq!(tor.clients().unwrap()[0].interface, 7);
    // Only from the address that the message itself names.
    let mut frame = other.report(0, &[9]);
    frame[26..30].copy_from_slice(&holder.ip);
    redirected(&mut tor, &moved, &frame, 5003);
    assert_eq!(redirected(&mut tor, &other, &other.batch(9, 1, 0), 5003), None);
}

#[test]
fn addresses_that_no_host_has_and_a_port_with_too_many_are_refused() {
    let Some(mut tor) = load(|config| config.clients_per_port = 3) else { return };
    for ip in [[0, 0, 0, 1], [127, 0, 0, 1], [224, 0, 0, 1], [255, 255, 255, 255]] {
        let host = Host { ip, ..Host::number(1) };
        redirected(&mut tor, &host, &host.report(0, &[1]), 0);
    }
    // Nor does the server become a client, nor anybody by a frame from a group's MAC address.
    let group = Host { mac: [1, 0, 0x5e, 0, 0, 1], ..Host::number(1) };
    for host in [Host { ip: SERVER, ..Host::number(1) }, group] {
        redirected(&mut tor, &host, &host.report(0, &[1]), 0);
    }
    assert_eq!(tor.clients().unwrap(), []);
    assert_eq!(tor.counters().unwrap().refused, 4);
    for number in 1..100 {
        let host = Host { interface: 5, ..Host::number(number) };
        redirected(&mut tor, &host, &host.enter(1), 0);
    }
    assert_eq!(tor.clients().unwrap().len(), 3);
    let elsewhere = Host::number(200);
    redirected(&mut tor, &elsewhere, &elsewhere.enter(1), 0);
    assert_eq!(tor.clients().unwrap().len(), 4);
    assert_eq!(tor.counters().unwrap().refused, 4 + 96);
}

#[test]
fn chunks_of_different_images_do_not_mix() {
    let Some(mut tor) = load(|_| {}) else { return };
    let hosts = joined(&mut tor, 3, &[5]);
    let (a, b, c) = (hosts[0], hosts[1], hosts[2]);
    redirected(&mut tor, &a, &a.report_of(9, 0, &[5, 6]), 1);
    assert_eq!(tor.clients().unwrap()[0].image, Some(9));
    for turn in 0..4 {
        assert_eq!(redirected(&mut tor, &b, &b.batch(5, 1, 0), 1), Some(c.ip), "{turn}");
    }
    assert_eq!(redirected(&mut tor, &b, &b.batch(6, 1, 0), 1), None);
    // It comes back to the first image, and has nothing of it.
    redirected(&mut tor, &a, &a.report(0, &[6]), 1);
    redirected(&mut tor, &c, &c.exit(), 1);
    assert_eq!(redirected(&mut tor, &b, &b.batch(5, 1, 0), 1), None);
    assert_eq!(redirected(&mut tor, &b, &b.batch(6, 1, 0), 1), Some(a.ip));
}

#[test]
fn a_client_that_has_restarted_has_nothing_and_owes_nothing() {
    let Some(mut tor) = load(|config| config.pending = 0) else { return };
    let hosts = joined(&mut tor, 3, &[]);
    let (a, b, c) = (hosts[0], hosts[1], hosts[2]);
    redirected(&mut tor, &a, &a.report(0, &[5, 6]), 1);
    assert_eq!(redirected(&mut tor, &b, &b.batch(5, 1, 0), 1), Some(a.ip));
    assert_eq!(redirected(&mut tor, &c, &c.batch(5, 1, 0), 1), Some(a.ip));
    let loads = |tor: &Tor| tor.clients().unwrap().iter().map(|c| c.load).collect::<Vec<_>>();
    assert_eq!(loads(&tor), [2, 0, 0]);
    // The join is repeated until it is answered.
    redirected(&mut tor, &c, &c.enter(1), 2);
    assert_eq!(loads(&tor), [2, 0, 0]);
    redirected(&mut tor, &c, &c.enter(2), 2);
    assert_eq!(loads(&tor), [1, 0, 0]);
    redirected(&mut tor, &a, &a.enter(2), 3);
    assert_eq!(loads(&tor), [0, 0, 0]);
    assert_eq!(redirected(&mut tor, &b, &b.batch(6, 1, 0), 3), None);
    // A late report of the request's end changes no load.
    redirected(&mut tor, &b, &b.report(0, &[5]), 3);
    assert_eq!(loads(&tor), [0, 0, 0]);
    redirected(&mut tor, &a, &a.report(0, &[6]), 4);
    assert_eq!(redirected(&mut tor, &c, &c.batch(6, 1, 0), 4), Some(a.ip));
}

#[test]
fn a_batch_goes_to_a_client_that_has_all_of_it() {
    let Some(mut tor) = load(|config| config.pending = 0) else { return };
    let hosts = joined(&mut tor, 4, &[]);
    let [a, b, c, d] = hosts[..] else { unreachable!() };
    redirected(&mut tor, &a, &a.report(0, &[1, 2, 3]), 1);
    redirected(&mut tor, &b, &b.report(0, &[2, 3, 4, 5]), 1);
    redirected(&mut tor, &c, &c.report(0, &[3, 4]), 1);
    assert_eq!(redirected(&mut tor, &d, &d.batch(1, 3, 0), 1), Some(a.ip));
    assert_eq!(tor.clients().unwrap()[0].load, 3);
    assert_eq!(redirected(&mut tor, &d, &d.batch(2, 4, 0), 1), Some(b.ip));
    // The chunks that were asked for again are not counted twice.
    assert_eq!(tor.clients().unwrap().iter().map(|c| c.load).collect::<Vec<_>>(), [1, 4, 0, 0]);
    assert_eq!(redirected(&mut tor, &d, &d.batch(1, 4, 0), 1), None, "nobody has all");
    assert_eq!(redirected(&mut tor, &d, &d.batch(1, 65, 0), 1), None, "too many");
    let last = tor.counters().unwrap();
    assert_eq!((last.to_holders, last.to_server, last.refused), (2, 1, 1));
    let all: Vec<u32> = (100..164).collect();
    redirected(&mut tor, &c, &c.report(0, &all), 2);
    assert_eq!(redirected(&mut tor, &d, &d.batch(100, 64, 0), 2), Some(c.ip));
}

#[test]
fn as_many_pending_holders_follow_one_another_as_configured() {
    for pending in 0..=MOST_PENDING {
        let Some(mut tor) = load(|config| config.pending = pending) else { return };
        let hosts = joined(&mut tor, 5, &[]);
        let [a, b, c, d, e] = hosts[..] else { unreachable!() };
        let mut to =
            |from: &Host, tries: u16| redirected(&mut tor, from, &from.batch(5, 1, tries), 1);
        // To wait at `b` is better than at `a`, at which `b` waits; to wait at `c` would be best.
        let expected = match pending {
            0 => [None; 4],
            1 => [None, Some(a.ip), Some(a.ip), Some(a.ip)],
            _ => [None, Some(a.ip), Some(b.ip), Some(a.ip)],
        };
        assert_eq!([to(&a, 0), to(&b, 0), to(&c, 0), to(&d, 0)], expected, "{pending}");
        // Nobody waits for itself: all others wait for `a`, at once or at last.
        assert_eq!(to(&a, 1), None, "{pending}");
        // Without `a`, what the others wait for will not come.
        redirected(&mut tor, &a, &a.exit(), 2);
        assert_eq!(redirected(&mut tor, &e, &e.batch(5, 1, 0), 2), None, "{pending}");
        let counters = tor.counters().unwrap();
        assert_eq!((counters.to_holders, counters.returned), (0, 0));
    }
}

#[test]
fn of_equally_loaded_holders_that_with_the_fewest_chunks_serves() {
    for policy in [Policy::LeastLoaded, Policy::RoundRobin] {
        let Some(mut tor) = load(|config| (config.policy, config.pending) = (policy, 0)) else {
            return;
        };
        let hosts = joined(&mut tor, 5, &[]);
        let [a, b, c, d, e] = hosts[..] else { unreachable!() };
        redirected(&mut tor, &a, &a.report(0, &[1, 2]), 1);
        redirected(&mut tor, &b, &b.report(0, &[1, 2, 3]), 1);
        redirected(&mut tor, &c, &c.report(0, &[1]), 1);
        let mut to = |from: &Host, chunk: u32| {
            let frame = from.batch(chunk, 1, 0);
            redirected(&mut tor, from, &frame, 1).unwrap()
        };
        let chosen = [to(&d, 1), to(&e, 1), to(&d, 3), to(&d, 2), to(&e, 2)];
        let expected = match policy {
            // The load comes first: `b` is last chosen because it has one request, and `a` has two.
            Policy::LeastLoaded => [c.ip, a.ip, b.ip, a.ip, b.ip],
            Policy::RoundRobin => [b.ip, c.ip, b.ip, a.ip, b.ip],
        };
        assert_eq!(chosen, expected, "{policy:?}");
    }
}

#[test]
fn the_number_of_chunks_of_a_client_is_known() {
    let Some(mut tor) = load(|_| {}) else { return };
    let hosts = joined(&mut tor, 2, &[1, 2, 3]);
    let (a, b) = (hosts[0], hosts[1]);
    let held = |tor: &Tor| tor.clients().unwrap().iter().map(|c| c.held).collect::<Vec<_>>();
    assert_eq!(held(&tor), [3, 3]);
    // A report counts only with what it changes, in each window.
    redirected(&mut tor, &a, &a.report(0, &[1, 2, 3]), 1);
    redirected(&mut tor, &b, &b.report(0, &[2, 70]), 1);
    redirected(&mut tor, &b, &b.report(1, &[0, WINDOW - 1]), 1);
    assert_eq!(held(&tor), [3, 4]);
    // What it lacks does not count, once.
    assert_eq!(redirected(&mut tor, &a, &a.batch(70, 1, 0), 2), Some(b.ip));
    for _ in 0..2 {
        assert_eq!(redirected(&mut tor, &b, &b.give_back(70, 1, &a), 2), None);
    }
    assert_eq!(held(&tor), [3, 3]);
    redirected(&mut tor, &b, &b.report(0, &[2, 70]), 3);
    assert_eq!(held(&tor), [3, 4]);
    // Neither does what it had of another image, before it has restarted, or whoever was in its slot.
    redirected(&mut tor, &a, &a.report_of(9, 0, &[6]), 4);
    redirected(&mut tor, &b, &b.enter(2), 4);
    assert_eq!(held(&tor), [1, 0]);
    redirected(&mut tor, &b, &b.report(0, &[2]), 5);
    redirected(&mut tor, &a, &a.report(0, &[]), 5);
    redirected(&mut tor, &a, &a.report(0, &[7, 8]), 5);
    assert_eq!(held(&tor), [2, 1]);
    redirected(&mut tor, &a, &a.exit(), 6);
    let c = Host::number(3);
    redirected(&mut tor, &c, &c.report(0, &[7]), 6);
    assert_eq!(held(&tor), [1, 1]);
}

#[test]
fn a_client_is_read_as_the_program_has_written_it() {
    let Some(mut tor) = load(|config| config.accusers = 1) else { return };
    let hosts = joined(&mut tor, 2, &[]);
    let (a, b) = (hosts[0], hosts[1]);
    redirected(&mut tor, &b, &b.report(0, &[5, 6, 7]), 1);
    redirected(&mut tor, &a, &a.report(0, &[9]), 1);
    for chunk in [5, 6] {
        assert_eq!(redirected(&mut tor, &a, &a.batch(chunk, 1, 0), 1), Some(b.ip));
    }
    redirected(&mut tor, &a, &a.damaged(5, &b), 1);
    let read = |host: Host, load, held, is_barred| {
        let Host { mac, interface, .. } = host;
        let (ip, image) = (host.ip.into(), Some(IMAGE));
        TorClient { ip, mac, interface, image, load, held, is_barred }
    };
    assert_eq!(tor.clients().unwrap(), [read(a, 0, 1, false), read(b, 2, 3, true)]);
}

#[test]
fn accusations_end_and_count_from_those_that_have_chunks_against_few() {
    let Some(mut tor) = load(|config| (config.accusers, config.pending) = (2, 0)) else { return };
    let hosts = joined(&mut tor, 7, &[]);
    let [a, b, c, ref holders @ ..] = hosts[..] else { unreachable!() };
    for (chunk, holder) in (0..).zip(holders) {
        redirected(&mut tor, holder, &holder.report(0, &[chunk, chunk + 10]), 1);
    }
    let mut accuse = |by: &Host, now| {
        for (chunk, holder) in (0..).zip(holders) {
            let sent_to = redirected(&mut tor, by, &by.batch(chunk, 1, 0), now);
            if sent_to == Some(holder.ip) {
                redirected(&mut tor, by, &by.damaged(chunk, holder), now);
            }
        }
        // Others keep the directory alive, and ask for the second chunks.
        let of = |chunk: u32| redirected(&mut tor, &c, &c.batch(chunk + 10, 1, 0), now).is_some();
        (0..4).map(of).collect::<Vec<_>>()
    };
    assert_eq!(accuse(&a, 1), [true; 4]);
    assert_eq!(accuse(&b, 1), [true; 4], "they have received nothing");
    for by in [a, b] {
        redirected(&mut tor, &by, &by.report(0, &[20]), 1);
    }
    let mut accuse = |by: &Host, now| {
        for (chunk, holder) in (0..).zip(holders) {
            redirected(&mut tor, holder, &holder.report(0, &[chunk, chunk + 10]), now);
            redirected(&mut tor, by, &by.batch(chunk, 1, 0), now);
            redirected(&mut tor, by, &by.damaged(chunk, holder), now);
        }
        let of = |chunk: u32| redirected(&mut tor, &c, &c.batch(chunk + 10, 1, 0), now).is_some();
        (0..4).map(of).collect::<Vec<_>>()
    };
    assert_eq!(accuse(&a, 1), [true; 4], "one is not enough");
    assert_eq!(accuse(&b, 1), [false, false, true, true]);
    assert_eq!(accuse(&c, 59_000), [false, false, true, true]);
    assert_eq!(accuse(&c, 61_000), [true; 4]);
}

/// A server that knows Frisbee only sees what no client has, and whatever is for its group.
#[test]
fn requests_of_frisbee_go_to_clients_that_have_the_whole_chunk() {
    let Some(mut tor) = load(|_| {}) else { return };
    let hosts = joined(&mut tor, 2, &[5]);
    let asking = Host::number(9);
    let to = redirected(&mut tor, &asking, &asking.request(5, 0), 1).unwrap();
    assert!(hosts.iter().any(|host| host.ip == to));
    let other = redirected(&mut tor, &asking, &asking.request(5, 1), 2).unwrap();
    assert!(other != to && hosts.iter().any(|host| host.ip == other), "a repeated one");
    let server = [asking.request(6, 0), asking.request(5, 3), asking.request(0x8000_0005, 0)];
    let part = |block, count| asking.frame(Body::Request { chunk: 5, block, count }, &[]);
    let map = [0xff; CHUNK_MAP_BYTES as usize];
    let missing = asking.frame(Body::PartialRequest { chunk: 5, retries: 0 }, &map);
    let to_group = frame(
        &asking,
        [239, 0, 0, 1],
        &asking.message(Body::Request { chunk: 5, block: 0, count: CHUNK_BLOCKS }, &[]),
    );
    let parts = [part(0, 1023), part(1, CHUNK_BLOCKS), missing, to_group];
    for frame in server.iter().chain(&parts) {
        assert_eq!(redirected(&mut tor, &asking, frame, 3), None);
    }
    assert_eq!(tor.counters().unwrap().requests, 4);
}

#[test]
fn a_returned_batch_goes_on_as_it_is() {
    let Some(mut tor) = load(|config| config.pending = 0) else { return };
    let hosts = joined(&mut tor, 4, &[1, 2]);
    let [a, b, c, d] = hosts[..] else { unreachable!() };
    let first = redirected(&mut tor, &d, &d.batch(1, 2, 0), 1).unwrap();
    let holder = *hosts.iter().find(|host| host.ip == first).unwrap();
    // Nobody else may return it, nor may the holder return what it was not asked for.
    for wrong in [a, b, c].iter().filter(|host| **host != holder) {
        assert_eq!(redirected(&mut tor, wrong, &wrong.give_back(1, 2, &d), 1), None);
    }
    assert_eq!(redirected(&mut tor, &holder, &holder.give_back(7, 1, &d), 1), None);
    assert_eq!(tor.counters().unwrap().returned, 0);
    let frame = holder.give_back(1, 2, &d);
    let second = redirected(&mut tor, &holder, &frame, 1).unwrap();
    assert!(second != holder.ip && second != d.ip);
    assert_eq!(redirected(&mut tor, &holder, &frame, 1), None, "it was returned before");
    // One of two chunks: the server serves it, and the other one still comes from the holder.
    let second = *hosts.iter().find(|host| host.ip == second).unwrap();
    assert!(redirected(&mut tor, &second, &second.give_back(1, 1, &d), 1).is_some());
    let counters = tor.counters().unwrap();
    assert_eq!((counters.returned, counters.to_server), (2, 0));
}

#[test]
fn a_report_that_changes_very_much_takes_effect_over_several() {
    let Some(mut tor) = load(|_| {}) else { return };
    let hosts = joined(&mut tor, 2, &[]);
    let (a, b) = (hosts[0], hosts[1]);
    let all: Vec<u32> = (0..WINDOW).collect();
    let mut known = Vec::new();
    for time in 1..=8 {
        redirected(&mut tor, &a, &a.report(0, &all), time);
        let has = |chunk: u32, tor: &mut Tor| {
            redirected(tor, &b, &b.batch(chunk, 1, 0), time) == Some(a.ip)
        };
        known.push((has(1023, &mut tor), has(1024, &mut tor), has(WINDOW - 1, &mut tor)));
    }
    assert_eq!(known[0], (true, false, false));
    assert_eq!(known[1], (true, true, false));
    assert_eq!(known[7], (true, true, true));
}

#[test]
fn a_redirected_message_keeps_its_tag_and_a_datagram_without_checksum_none() {
    let Some(mut tor) = load(|_| {}) else { return };
    let hosts = joined(&mut tor, 2, &[5]);
    let key = Key::derive(b"secret");
    let chunks = Chunks { image: IMAGE, first: 5, count: 1, tries: 0 };
    let mut message = hosts[0].message(Body::Batch(chunks), &[]);
    Auth::Key(key).seal(&mut message, 0, 7, Direction::ToServer);
    let mut frame = frame(&hosts[0], SERVER, &message);
    let (interface, after) = run(&mut tor, &frame, hosts[0].interface, 1, 0);
    assert_eq!(interface, hosts[1].interface);
    assert_eq!(Auth::Key(key).session(&after[42..], Direction::ToServer), Some(7));
    frame[40..42].fill(0);
    assert_eq!(redirected(&mut tor, &hosts[0], &frame, 1), Some(hosts[1].ip));
}

#[test]
fn packets_of_several_messages_and_with_a_vlan_pass() {
    let Some(mut tor) = load(|_| {}) else { return };
    let hosts = joined(&mut tor, 2, &[5]);
    let batch = hosts[0].batch(5, 1, 0);
    let (interface, after) = run(&mut tor, &batch, hosts[0].interface, 1, 28);
    assert_eq!((interface, after), (0, batch.clone()));
    assert_eq!(tor.counters().unwrap().super_packets, 1);
    let mut tagged = batch;
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    assert_eq!(run(&mut tor, &tagged, hosts[0].interface, 1, 0).0, 0);
    assert_eq!(tor.counters().unwrap().requests, 0);
}

#[test]
fn the_server_may_have_another_port_and_clients_any() {
    let Some(mut tor) = load(|config| config.server_port = 7000) else { return };
    let hosts = [Host { port: 1024, ..Host::number(1) }, Host { port: 1025, ..Host::number(2) }];
    let to_server = |mut frame: Vec<u8>| {
        frame[36..38].copy_from_slice(&7000_u16.to_be_bytes());
        frame[40..42].fill(0);
        let check = !udp_sum(&frame);
        frame[40..42].copy_from_slice(&check.to_be_bytes());
        frame
    };
    for host in &hosts {
        redirected(&mut tor, host, &to_server(host.report(0, &[5])), 0);
    }
    assert_eq!(redirected(&mut tor, &hosts[0], &hosts[0].batch(5, 1, 0), 1), None);
    let frame = to_server(hosts[0].batch(5, 1, 0));
    let (interface, after) = run(&mut tor, &frame, hosts[0].interface, 1, 0);
    assert_eq!(interface, hosts[1].interface);
    assert_eq!(after[34..38], [1024_u16.to_be_bytes(), 1025_u16.to_be_bytes()].concat());
}

/// As many clients as a switch of SWP2P has, which all want all chunks at the same time: the server gets one request for each, and
/// all others wait at the client that has asked first. The times are printed, not judged.
#[test]
fn clients_that_start_together_take_one_copy() {
    let Some(mut tor) = load(|_| {}) else { return };
    let hosts = joined(&mut tor, 48, &[]);
    let (mut requests, mut reports) = (Vec::new(), Vec::new());
    let mut has: Vec<Vec<u32>> = vec![Vec::new(); hosts.len()];
    for chunk in 0..100 {
        let mut to_server = 0;
        for turn in 0..hosts.len() {
            let host = &hosts[(turn + chunk as usize) % hosts.len()];
            let frame = host.batch(chunk, 1, 0);
            let (interface, _, time) = timed(&mut tor, &frame, host.interface, 1, 0);
            to_server += u32::from(interface == 0);
            requests.push(time);
        }
        assert_eq!(to_server, 1, "chunk {chunk}");
        for (host, has) in hosts.iter().zip(&mut has) {
            has.push(chunk);
            let frame = host.report(0, has);
            let (interface, _, time) = timed(&mut tor, &frame, host.interface, 2, 0);
            assert_eq!(interface, 0);
            reports.push(time);
        }
    }
    // All have all: turns are even, also where requests are never answered.
    let mut turns = vec![0; hosts.len()];
    for _ in 0..47 {
        let (interface, _, time) = timed(&mut tor, &hosts[0].batch(7, 1, 0), 101, 3, 0);
        turns[interface as usize - 101] += 1;
        requests.push(time);
    }
    assert_eq!(turns[0], 0);
    assert!(turns[1..].iter().all(|turns| *turns == 1), "{turns:?}");
    assert!(tor.clients().unwrap()[1..].iter().map(|client| client.load).sum::<u32>() == 1);
    for (what, mut times) in [("request", requests), ("report", reports)] {
        times.sort_unstable();
        println!("a {what}: median {:?}, of {}", times[times.len() / 2], times.len());
    }
}

#[test]
fn wrong_configurations_are_refused() {
    assert_eq!(PORT, frisbee::PORT);
    assert_eq!(WINDOW, frisbee::REPORT_CHUNKS);
    let config = TorConfig::new(vec!["p0".into()], SERVER.into());
    assert!(config.check().is_ok());
    let refused = |config: TorConfig| config.check().unwrap_err().to_string();
    assert!(refused(TorConfig { ports: vec![], ..config.clone() }).contains("1 to 1024 ports"));
    for chunks in [0, 1000, WINDOW + 1, MOST_CHUNKS + WINDOW] {
        assert!(refused(TorConfig { chunks, ..config.clone() }).contains(&chunks.to_string()));
    }
    for pending in [3, u8::MAX] {
        let expected =
            format!("0 to 2 clients that wait for a chunk may follow one another, not {pending}");
        assert_eq!(refused(TorConfig { pending, ..config.clone() }), expected);
    }
    let anyone = Ipv4Addr::UNSPECIFIED;
    assert!(refused(TorConfig { server: anyone, ..config.clone() }).contains("0.0.0.0"));
    assert!(refused(TorConfig { server_port: 0, ..config.clone() }).contains("port"));
    assert!(refused(TorConfig { clients_per_port: 0, ..config }).contains("clients"));
}
