//! The aggregating switch in the kernel at the ports of a Linux bridge, and of a router, between namespaces that the test creates and
//! removes. Hosts are workers and masters of `rackweave_reduce` over the kernel's UDP.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rackweave_bpf::TorError;
use rackweave_bpf::reduce::{PORT, Tor, TorConfig, TorCounters};
use rackweave_bpf::tc::TcError;
use rackweave_linux::netns;
use rackweave_reduce::{
    Aggregation, Encoder, Master, MasterConfig, MasterEvent, Operator, Outcome, WorkerConfig,
    WorkerReport, run_worker,
};
use rackweave_wire::reduce::number_of;

use crate::namespaces::{Namespaces, inside, ip};

/// The master, and the workers.
const HOSTS: u8 = 4;
const WORKERS: u8 = HOSTS - 1;

/// The namespaces of a switch and of its hosts. Host 0 is the master.
struct Rack {
    namespaces: Namespaces,
    is_routed: bool,
}

impl Rack {
    /// Returns `None` if this process may not create namespaces. The switch is a bridge with an address, or a router with a network at
    /// each port.
    fn make(test: &str, is_routed: bool) -> Option<Self> {
        let rack = Self { namespaces: Namespaces::make(test)?, is_routed };
        let switch = rack.namespaces.switch();
        if is_routed {
            // A namespace has its own value, which the thread's own folder of /proc shows.
            inside(&switch, || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        } else {
            ip(&format!("-n {switch} link add br0 type bridge"));
            ip(&format!("-n {switch} addr add {}/24 dev br0", rack.aggregator()));
            ip(&format!("-n {switch} link set br0 up"));
        }
        for host in 0..HOSTS {
            rack.namespaces.add_host(host, "");
            let (name, address) = (rack.namespaces.host(host), rack.address(host));
            ip(&format!("-n {name} link set eth0 gso_max_segs 1"));
            ip(&format!("-n {name} addr add {address}/24 dev eth0"));
            if is_routed {
                let gateway = Ipv4Addr::from(address.to_bits() & !0xff | 1);
                ip(&format!("-n {switch} addr add {gateway}/24 dev p{host}"));
                ip(&format!("-n {name} route add default via {gateway}"));
            } else {
                ip(&format!("-n {switch} link set p{host} master br0"));
            }
        }
        Some(rack)
    }

    fn address(&self, host: u8) -> Ipv4Addr {
        if self.is_routed {
            Ipv4Addr::new(198, 18, host, 10)
        } else {
            Ipv4Addr::new(192, 0, 2, 200 - 10 * host)
        }
    }

    /// The switch's address: of the bridge, or of the router's port to the master.
    fn aggregator(&self) -> Ipv4Addr {
        if self.is_routed { Ipv4Addr::new(198, 18, 0, 1) } else { Ipv4Addr::new(192, 0, 2, 1) }
    }

    fn config(&self) -> TorConfig {
        let ports = (0..HOSTS).map(|host| format!("p{host}")).collect();
        let secret = rackweave_linux::random() as u64;
        TorConfig { slots: 4096, ..TorConfig::new(ports, self.aggregator(), secret) }
    }

    fn attach(&self) -> Result<Tor, TorError> {
        inside(&self.namespaces.switch(), || Tor::attach(&self.config()))
    }

    fn tor(&self) -> Tor {
        self.attach().unwrap()
    }

    /// Counts the words of the workers. `collected` is called with the number of epochs that the master has.
    fn count(
        &self,
        words: u32,
        mut collected: impl FnMut(u16) + Send,
    ) -> (Outcome, Vec<WorkerReport>) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let workers: Vec<_> = (0..WORKERS)
                .map(|worker| {
                    let (name, master) = (self.namespaces.host(worker + 1), self.address(0));
                    let stop = &stop;
                    threads.spawn(move || {
                        netns::enter(&name).unwrap();
                        let mut pairs = Encoder::new(Operator::Sum);
                        for (word, count) in words_of(worker, words) {
                            pairs.add(&word, count);
                        }
                        let report = run_worker(
                            WorkerConfig::new(worker, (master, PORT).into()),
                            pairs,
                            stop,
                            &mut |_| {},
                        );
                        if let Err(error) = &report {
                            println!("worker {worker}: {error}");
                            stop.store(true, Ordering::Relaxed);
                        }
                        report
                    })
                })
                .collect();
            let outcome = inside(&self.namespaces.host(0), || {
                let config = MasterConfig::new((self.address(0), PORT).into(), WORKERS);
                let switch = number_of(self.aggregator()).unwrap();
                let aggregation = Some(Aggregation::new(switch, 4096));
                let master =
                    Master::bind(MasterConfig { aggregation, requires_switch: true, ..config });
                master.unwrap().run(&stop, &mut |event| {
                    if let MasterEvent::Collected { epochs, .. } = event {
                        collected(epochs);
                    }
                })
            });
            if outcome.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            let reports = workers.into_iter().map(|worker| worker.join().unwrap());
            let reports = reports.collect::<Result<Vec<_>, _>>();
            (outcome.unwrap(), reports.unwrap())
        })
    }
}

/// The words of a worker: half of them are those of all workers, some are too long for a slot, and some values are too large for a packet.
fn words_of(worker: u8, words: u32) -> Vec<(Vec<u8>, u64)> {
    let word = |number: u32| {
        let text = match number % 50 {
            0 => format!("a word too long for a slot, {number}"),
            _ if number.is_multiple_of(2) => format!("common{number}"),
            _ => format!("{worker} only {number}"),
        };
        let count =
            if number.is_multiple_of(97) { 1 << 40 } else { u64::from(number) + u64::from(worker) };
        (text.into_bytes(), count)
    };
    (0..words).map(word).collect()
}

fn expected(words: u32) -> Vec<(Box<[u8]>, u64)> {
    let mut sums = BTreeMap::<Box<[u8]>, u64>::new();
    for (word, count) in (0..WORKERS).flat_map(|worker| words_of(worker, words)) {
        *sums.entry(word.into()).or_default() += count;
    }
    sums.into_iter().collect()
}

fn check(rack: &Rack, tor: &Tor, words: u32) -> TorCounters {
    let (outcome, _) = rack.count(words, |_| ());
    assert_eq!(outcome.totals, expected(words));
    let counters = tor.counters().unwrap();
    println!("{counters:?} {:?}", outcome.stats);
    assert!(counters.absorbed > counters.residual, "{counters:?}");
    assert_eq!(counters.wrong_checksums + counters.super_packets + counters.malformed, 0);
    assert!(outcome.stats.reached() < outcome.stats.sent, "{:?}", outcome.stats);
    assert_eq!(tor.jobs().unwrap(), [], "the master has closed its job");
    counters
}

#[test]
fn words_are_counted_at_a_bridge() {
    let Some(rack) = Rack::make("reduce-b", false) else { return };
    let tor = rack.tor();
    check(&rack, &tor, 20_000);
}

#[test]
fn words_are_counted_at_a_router() {
    let Some(rack) = Rack::make("reduce-r", true) else { return };
    let tor = rack.tor();
    check(&rack, &tor, 20_000);
}

#[test]
fn a_switch_that_restarts_is_used_again_and_nothing_counts_twice() {
    let Some(rack) = Rack::make("reduce-x", false) else { return };
    let mut tor = Some(rack.tor());
    let (outcome, _) = rack.count(100_000, |epochs| {
        if [20, 60, 61, 150].contains(&epochs) {
            drop(tor.take());
            tor = Some(rack.tor());
        }
    });
    assert_eq!(outcome.totals, expected(100_000));
    assert_eq!(outcome.stats.restarts, 4, "{:?}", outcome.stats);
}

#[test]
fn everything_else_crosses_the_bridge_and_ports_are_free_afterwards() {
    let Some(rack) = Rack::make("reduce-o", false) else { return };
    let tor = rack.tor();
    assert!(matches!(rack.attach(), Err(TorError::Tc(TcError::Taken(_)))));
    let socket = |host: u8, port: u16| {
        inside(&rack.namespaces.host(host), || UdpSocket::bind((rack.address(host), port)).unwrap())
    };
    // Hosts may talk to one another on the same port, and to the switch on other ports.
    let (a, b) = (socket(1, PORT), socket(2, PORT));
    a.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    b.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    a.send_to(&[0xa6; 40], (rack.address(2), PORT)).unwrap();
    let mut buffer = [0; 64];
    assert_eq!(b.recv_from(&mut buffer).unwrap(), (40, (rack.address(1), PORT).into()));
    let at_switch =
        inside(&rack.namespaces.switch(), || UdpSocket::bind((rack.aggregator(), 9000)).unwrap());
    at_switch.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    a.send_to(&[0xa6; 30], (rack.aggregator(), 9000)).unwrap();
    assert_eq!(at_switch.recv_from(&mut buffer).unwrap().0, 30);
    // What is for the switch but is none of its messages is dropped.
    a.send_to(&[0xa6; 50], (rack.aggregator(), PORT)).unwrap();
    b.send_to(&[1; 20], (rack.address(1), PORT)).unwrap();
    assert_eq!(a.recv_from(&mut buffer).unwrap().0, 20);
    assert_eq!(tor.counters().unwrap().malformed, 1);
    drop((tor, a, b));
    check(&rack, &rack.tor(), 2000);
}
