//! What the program in the kernel does beyond the rules that it shares with the program in Rust: frames, checksums, sizes, time.

use super::*;

const MASTER: u8 = 1;
const TOKEN: u64 = 99;

fn header(worker: u8, body: Body) -> Header {
    Header { job: 7, attempt: 0, worker, token: Id64::new(TOKEN), body }
}

fn open(slots: u32) -> Open {
    Open {
        cookie: Id64::new(0),
        slots,
        first_epoch: 0,
        window: 64,
        copies: 2,
        operator: Operator::Sum,
        workers: 2,
        rule: Rule::Exact,
    }
}

fn key(number: u32) -> [u8; 16] {
    let mut key = [0; 16];
    key[..12].copy_from_slice(format!("word{number:08}").as_bytes());
    key
}

fn pairs(numbers: impl IntoIterator<Item = u32>, value: u32) -> Vec<u8> {
    let pair = |number| [&key(number)[..], &value.to_be_bytes()].concat();
    numbers.into_iter().flat_map(pair).collect()
}

/// A switch with a job of a master and two workers, hosts 2 and 3.
struct Bench(Tor, u16);

impl Bench {
    fn new(slots: u32, change: impl FnOnce(&mut TorConfig)) -> Option<Self> {
        let mut bench = Self(load(change)?, 0);
        let addresses =
            [2, 3].map(|worker| Host::number(worker).id().0.to_be_bytes()).as_flattened().to_vec();
        let master = Host::number(MASTER);
        let request = master.frame(header(0, Body::Open(open(slots))), &addresses);
        let Some(Answer { header: challenge, .. }) = bench.reply(&master, &request) else {
            panic!("no challenge")
        };
        let Body::Challenge { cookie, .. } = challenge.body else { panic!("{challenge:?}") };
        let request = Open { cookie, ..open(slots) };
        let request = master.frame(header(0, Body::Open(request)), &addresses);
        let opened = bench.reply(&master, &request).unwrap();
        let Body::Opened { instance, .. } = opened.header.body else { panic!("{opened:?}") };
        bench.1 = instance as u16;
        Some(bench)
    }

    fn outcome(&mut self, from: &Host, frame: &[u8]) -> Outcome {
        run(&mut self.0, frame, from.interface, 1000, 0).0
    }

    fn reply(&mut self, from: &Host, frame: &[u8]) -> Option<Answer> {
        match self.outcome(from, frame) {
            Outcome::Reply(_, frame) => Some(read(&frame)),
            Outcome::Dropped => None,
            Outcome::Passed => panic!("it passed"),
        }
    }

    fn data(&self, worker: u8, seq: u32, pairs: &[u8]) -> Vec<u8> {
        let count = (pairs.len() / 20) as u8;
        let body = Body::Data(Pairs { seq, epoch: 0, count });
        Host::number(2 + worker).frame(header(worker, body), pairs)
    }

    /// Returns the sums of epoch 0, in the order of their keys.
    fn sums(&mut self, slots: u32) -> Vec<(String, u64)> {
        let master = Host::number(MASTER);
        let mut sums = Vec::new();
        for first in (0..slots / 2).step_by(reduce::FETCH_SLOTS as usize) {
            let request =
                master.frame(header(0, Body::Fetch { epoch: 0, reservation: self.1, first }), &[]);
            let values = self.reply(&master, &request).unwrap();
            for sum in values.payload.chunks(24) {
                let key = String::from_utf8(sum[..12].to_vec()).unwrap();
                sums.push((key, u64::from_be_bytes(sum[16..].try_into().unwrap())));
            }
        }
        sums.sort();
        sums
    }
}

#[test]
fn frames_for_others_pass_as_they_are() {
    let Some(mut bench) = Bench::new(64, |_| ()) else { return };
    let host = Host::number(2);
    let ours = bench.data(0, 0, &pairs([1], 1));
    type Change = fn(&mut Vec<u8>);
    let changes: [(&str, Change); 6] = [
        ("another host", |frame| frame[33] = 9),
        ("another port", |frame| frame[37] ^= 1),
        ("TCP", |frame| frame[23] = 6),
        ("IP options", |frame| frame[14] = 0x46),
        ("ARP", |frame| frame[12..14].copy_from_slice(&[8, 6])),
        ("an IPv6 packet", |frame| frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60])),
    ];
    for (what, change) in changes {
        let mut frame = ours.clone();
        change(&mut frame);
        assert_eq!(bench.outcome(&host, &frame), Outcome::Passed, "{what}");
    }
    assert_eq!(bench.0.counters().unwrap().packets, 0);
    assert!(bench.reply(&host, &ours).is_some());
}

#[test]
fn what_is_damaged_is_not_added_up() {
    let Some(mut bench) = Bench::new(1024, |_| ()) else { return };
    let host = Host::number(2);
    let ours = bench.data(0, 0, &pairs(1..=20, 5));
    for at in 34..ours.len() {
        // Address and port decide whose frame it is; the length has a test below.
        if [36, 37, 38, 39].contains(&at) {
            continue;
        }
        let mut frame = ours.clone();
        frame[at] ^= 0x10;
        assert_eq!(bench.outcome(&host, &frame), Outcome::Dropped, "byte {at}");
    }
    let counters = bench.0.counters().unwrap();
    assert_eq!((counters.packets, counters.stale), (0, 0));
    assert_eq!(counters.wrong_checksums, ours.len() as u64 - 34 - 4);
    assert_eq!(bench.sums(1024), []);
    assert!(bench.reply(&host, &ours).is_some());
    assert_eq!(bench.sums(1024).len(), 20);
}

#[test]
fn a_datagram_may_have_no_checksum_or_leave_it_to_the_interface() {
    let Some(mut bench) = Bench::new(64, |_| ()) else { return };
    let host = Host::number(2);
    let mut none = bench.data(0, 0, &pairs([1, 2], 1));
    none[40..42].fill(0);
    let Outcome::Reply(_, reply) = bench.outcome(&host, &none) else { panic!("no reply") };
    assert_eq!(reply[40..42], [0, 0]);
    let mut left = bench.data(0, 1, &pairs([1, 2], 1));
    let check = sum(&pseudo_header(&left));
    left[40..42].copy_from_slice(&check.to_be_bytes());
    assert!(bench.reply(&host, &left).is_some());
    assert_eq!(bench.sums(64), [("word00000001".into(), 2), ("word00000002".into(), 2)]);
}

#[test]
fn lengths_that_cannot_be_are_dropped() {
    let Some(mut bench) = Bench::new(64, |_| ()) else { return };
    let host = Host::number(2);
    let ours = bench.data(0, 0, &pairs([1, 2, 3], 1));
    // The datagram is longer than the packet, shorter than a message, or the packet is longer than the frame; a fragment; a group's.
    let changes: [(usize, u8); 6] = [(39, 0xff), (39, 20), (17, 0xff), (20, 0x20), (21, 1), (0, 3)];
    for (at, value) in changes {
        let mut frame = ours.clone();
        frame[at] = value;
        assert_eq!(bench.outcome(&host, &frame), Outcome::Dropped, "byte {at}");
    }
    for len in 42..ours.len() {
        assert_eq!(bench.outcome(&host, &ours[..len]), Outcome::Dropped, "{len} bytes");
    }
    let counters = bench.0.counters().unwrap();
    assert_eq!((counters.packets, counters.malformed), (0, 6 + ours.len() as u64 - 42));
    // Ethernet pads frames.
    assert!(bench.reply(&host, &[&ours[..], &[0; 9]].concat()).is_some());
    let large = bench.data(0, 1, &pairs([1], 1));
    let (outcome, _) = run(&mut bench.0, &large, host.interface, 1000, 500);
    assert_eq!((outcome, bench.0.counters().unwrap().super_packets), (Outcome::Dropped, 1));
}

#[test]
fn a_rest_goes_to_the_master_where_its_last_message_came_from() {
    // One bucket of one slot for each copy.
    let Some(mut bench) = Bench::new(2, |config| (config.slots, config.ways) = (2, 1)) else {
        return;
    };
    let (worker, mut master) = (Host::number(2), Host::number(MASTER));
    let frame = bench.data(0, 0, &pairs(1..=64, 3));
    let Outcome::Reply(interface, reply) = bench.outcome(&worker, &frame) else { panic!() };
    assert_eq!((interface, &reply[..6]), (master.interface, &master.mac[..]));
    let answer = read(&reply);
    assert_eq!((answer.src, answer.dst), (worker.ip, master.ip));
    assert_eq!(answer.payload, pairs(2..=64, 3));
    assert!(matches!(answer.header.body, Body::Residual(Pairs { seq: 0, epoch: 0, count: 63 })));
    // The master moves to another port of the switch and another UDP port.
    (master.interface, master.mac[5], master.port) = (300, 77, 7000);
    let fetch =
        master.frame(header(0, Body::Fetch { epoch: 0, reservation: bench.1, first: 0 }), &[]);
    let values = bench.reply(&master, &fetch).unwrap();
    assert_eq!((values.ports, values.payload.len()), ([PORT, 7000], 24));
    let Outcome::Reply(interface, reply) = bench.outcome(&worker, &frame) else { panic!() };
    assert_eq!((interface, reply[5], read(&reply).ports), (300, 77, [PORT, 7000]));
    let job = bench.0.jobs().unwrap();
    let expected =
        TorJob { number: 7, attempt: 0, master: master.ip.into(), workers: 2, slots: 2, epoch: 0 };
    assert_eq!(job, [expected]);
}

#[test]
fn configurations_without_a_sense_are_refused() {
    let good = TorConfig::new(vec!["p".into()], SWITCH.into(), 1);
    assert!(good.check().is_ok());
    type Change = fn(&mut TorConfig);
    let wrong: [(Change, &str); 8] = [
        (|config| config.ports.clear(), "1 to 1024 ports"),
        (|config| config.ways = 0, "1 to 16 slots"),
        (|config| config.ways = 17, "1 to 16 slots"),
        (|config| config.slots = 65_535, "multiple of 8"),
        (|config| config.share = 0, "the share of an address is 1 to 100"),
        (|config| config.records = 0, "records 1 to"),
        (|config| config.address = [224, 0, 0, 1].into(), "not the address of a switch"),
        (|config| config.lease_ms = 300, "at least 2000 ms"),
    ];
    for (change, expected) in wrong {
        let mut config = good.clone();
        change(&mut config);
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn the_largest_tables_fit() {
    let Some(mut bench) = Bench::new(MOST_SLOTS, |config| {
        (config.slots, config.ways, config.records) = (MOST_SLOTS, MOST_WAYS, 1 << 20);
    }) else {
        return;
    };
    let frame = bench.data(1, 0, &pairs(1..=64, 3));
    let answer = bench.reply(&Host::number(3), &frame).unwrap();
    assert_eq!(answer.header.body, Body::Ack { seq: 0, marked: false });
    assert_eq!(bench.0.jobs().unwrap()[0].slots, MOST_SLOTS);
}

/// Prints how long packets take. The sums at the end show that they were added up.
#[test]
fn packets_are_timed() {
    const SLOTS: u32 = 1 << 17;
    let Some(mut bench) = Bench::new(SLOTS, |config| config.slots = SLOTS) else { return };
    let host = Host::number(2);
    for (what, keys) in [("few words", 64), ("30,000 words", 30_000_u32)] {
        for count in [1, 64_u32] {
            let mut times = Vec::new();
            for number in 0..4000 {
                let seq =
                    times.len() as u32 + if keys == 64 { 0 } else { 8000 } + (count / 64) * 4000;
                let words = (0..count).map(|pair| (number * count + pair) * 7919 % keys);
                let frame = bench.data(0, seq, &pairs(words, 1));
                let (outcome, time) = run(&mut bench.0, &frame, host.interface, 1000, 0);
                assert!(matches!(outcome, Outcome::Reply(..)));
                times.push(time.as_nanos());
            }
            times.sort_unstable();
            let median = times[times.len() / 2];
            println!(
                "{count} pairs, {what}: median {median} ns a packet, {:.1} million pairs/s",
                f64::from(count) * 1e3 / median as f64
            );
        }
    }
    let total: u64 = bench.sums(SLOTS).iter().map(|(_, value)| value).sum();
    let counters = bench.0.counters().unwrap();
    assert_eq!((counters.pairs, total), (2 * 4000 * 65, counters.absorbed));
}
