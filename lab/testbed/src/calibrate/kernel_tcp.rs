//! The costs of the kernel's TCP, in whose place a transport in a process would cost something else.
//!
//! The kernel sends, acknowledges and repeats in interrupts. On the testbed these follow from the system calls of the switch process, which
//! pays for them; a host's process only writes and reads. So the costs of a packet are found in the switch process, and those of a byte, a
//! message and a wake-up in the hosts.

use rackweave_scenario::host::{KernelTcpTable, Nanoseconds};

use super::fit::{Observation, median, non_negative_costs};
use super::{Load, awake_ns, noise, rounded, typical};
use crate::{HostWork, PointWork, SwitchWork};

/// The loads, each over the kernel's TCP. Most are of long messages: as long as its window limits it, the kernel sends when an
/// acknowledgement arrives, in the switch process's time, which costs twice as much there as packets that a host's own write sends. In two
/// of them several calls are in progress at a time, which keeps the switch process busy: there it matters most what a packet costs.
pub(super) const LOADS: [Load; 7] = [
    Load {
        name: "frequent full packets over the kernel's TCP",
        workload: "arrivals = 'periodic'\nsizes = '1300 B'\nrate = '80 Mbps'",
    },
    Load {
        name: "messages of 300 KB over the kernel's TCP",
        workload: "arrivals = 'periodic'\nsizes = '300 KB'\nrate = '200 Mbps'",
    },
    Load {
        name: "messages of 1 MB over the kernel's TCP",
        workload: "arrivals = 'periodic'\nsizes = '1 MB'\nrate = '300 Mbps'",
    },
    Load {
        name: "messages of 4 MB over the kernel's TCP",
        workload: "arrivals = 'periodic'\nsizes = '4 MB'\nrate = '640 Mbps'",
    },
    Load {
        name: "8 calls of 300 KB at a time over the kernel's TCP",
        workload: "arrivals = 'closed-loop'\nsizes = '300 KB'\noutstanding = 8\nexchange = 'rpc'",
    },
    Load {
        name: "4 calls of 1 MB at a time over the kernel's TCP",
        workload: "arrivals = 'closed-loop'\nsizes = '1 MB'\noutstanding = 4\nexchange = 'rpc'",
    },
    Load {
        name: "8 calls at a time over the kernel's TCP",
        workload: "arrivals = 'closed-loop'\nsizes = '100 B'\noutstanding = 8\nexchange = 'rpc'\nthink = '1 ms'",
    },
];

/// The loads of long messages. What a packet costs the switch process is the median over these, because packets of short ones cost
/// less, and no division into packets and bytes fits both.
const LONG: std::ops::Range<usize> = 1..6;

/// The transport of these loads.
pub(super) const TRANSPORT: &str = "name = 'tcp'\npatience = '2 s'";

/// What a host did: seconds, wake-ups, messages sent and received, bytes sent and received.
fn of_host(work: &HostWork, wake_ns: f64) -> Observation<6> {
    let counts =
        [work.sleeps, work.submitted, work.delivered, work.sent_bytes, work.received_bytes];
    let [wakes, sent, received, sent_bytes, received_bytes] = counts.map(|count| count as f64);
    Observation {
        work: [work.seconds, wakes, sent, received, sent_bytes, received_bytes],
        time_ns: awake_ns(work.cpu_s, work.sleeps, wake_ns),
    }
}

/// What a packet has cost the switch process in nanoseconds, beyond its sleeps and its turns, which cost what they cost under other loads.
fn of_packet(work: &SwitchWork, wake_ns: f64, turn_ns: f64) -> f64 {
    let time_ns = awake_ns(work.cpu_s, work.sleeps, wake_ns) - work.turns as f64 * turn_ns;
    time_ns.max(0.0) / work.packets.max(1) as f64
}

/// Derives the costs from the work of all rounds of all loads, what it costs a host and the switch process to sleep and wake up, and what
/// a turn of the switch process costs. `None` if by these figures a packet costs nothing, so that they cannot be used.
pub(super) fn costs(
    works: &[Vec<PointWork>],
    [wake_ns, switch_wake_ns]: [f64; 2],
    turn_ns: f64,
) -> Option<KernelTcpTable> {
    let (mut hosts, mut of_hosts) = (Vec::new(), Vec::new());
    for rounds in works {
        for host in 0..2 {
            let of_rounds: Vec<_> = rounds.iter().map(|work| &work.hosts[host]).collect();
            let cost = |work: &&HostWork| {
                work.cpu_s / (work.sent_bytes + work.received_bytes).max(1) as f64
            };
            let (work, spread) = typical(of_rounds, cost)?;
            hosts.push(of_host(work, wake_ns));
            of_hosts.push(spread);
        }
    }
    let rounds = works.iter().map(Vec::len).min()?;
    let [_, wake, send, receive, send_byte, receive_byte] =
        non_negative_costs(&hosts, noise(&of_hosts, rounds));
    let of_long = works.get(LONG)?.iter().flatten();
    let packets: Vec<f64> =
        of_long.map(|work| of_packet(&work.switch, switch_wake_ns, turn_ns)).collect();
    let packet = median(&packets);
    let ns = |x: f64| Nanoseconds(rounded(x));
    (packet >= super::LEAST_PACKET_NS).then(|| KernelTcpTable {
        send_call_ns: ns(send),
        send_byte_ns: ns(send_byte),
        receive_system_call_ns: ns(wake),
        receive_call_ns: ns(receive),
        receive_byte_ns: ns(receive_byte),
        switch_packet_ns: ns(packet),
        switch_byte_ns: ns(0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAKES: [f64; 2] = [4000.0, 3000.0];
    const TURN: f64 = 20_000.0;

    /// Messages, wake-ups for each, packets of data and of acknowledgement, and bytes of a load.
    const WORK: [[u64; 5]; LOADS.len()] = [
        [7700, 1, 7700, 3900, 11_000_000],
        [83, 50, 17_000, 8500, 26_000_000],
        [37, 200, 26_000, 13_000, 39_500_000],
        [20, 900, 55_000, 27_000, 84_000_000],
        [270, 40, 115_000, 30_000, 190_000_000],
        [75, 160, 105_000, 27_000, 168_000_000],
        [8000, 1, 8000, 200, 1_500_000],
    ];

    fn round(load: usize, slower: f64) -> PointWork {
        let [messages, wakes, data, acknowledgements, bytes] = WORK[load];
        let answers = u64::from(load >= 4);
        let host = |sends: u64, receives: u64| {
            let mut work = HostWork { seconds: 1.0, ..HostWork::default() };
            work.sleeps = messages * wakes;
            (work.submitted, work.delivered) = (messages * sends, messages * receives);
            let own = 66 * acknowledgements;
            work.sent_bytes = if sends == 1 { bytes } else { own };
            work.received_bytes = if receives == 1 { bytes } else { own };
            let ns = 1500.0 * work.sleeps as f64
                + 900.0 * work.submitted as f64
                + 700.0 * work.delivered as f64
                + 0.3 * work.sent_bytes as f64
                + 0.5 * work.received_bytes as f64
                + WAKES[0] * work.sleeps as f64;
            work.cpu_s = slower * ns / 1e9;
            work
        };
        let packets = data + acknowledgements;
        let turns = packets / 3;
        let ns = 6000.0 * packets as f64 + TURN * turns as f64 + WAKES[1] * turns as f64;
        let switch = SwitchWork {
            seconds: 1.0,
            cpu_s: slower * ns / 1e9,
            turns,
            sleeps: turns,
            packets,
            bytes,
            ..SwitchWork::default()
        };
        PointWork { hosts: vec![host(answers, 1), host(1, answers)], switch }
    }

    fn rounds(slower: &[f64]) -> Vec<Vec<PointWork>> {
        (0..LOADS.len())
            .map(|load| slower.iter().map(|slower| round(load, *slower)).collect())
            .collect()
    }

    #[test]
    fn known_costs_are_found() {
        let found = costs(&rounds(&[1.0, 1.0, 1.0, 1.0, 3.0]), WAKES, TURN).unwrap();
        for (found, cost) in [
            (found.send_call_ns, 900.0),
            (found.send_byte_ns, 0.3),
            (found.receive_system_call_ns, 1500.0),
            (found.receive_call_ns, 700.0),
            (found.receive_byte_ns, 0.5),
            (found.switch_packet_ns, 6000.0),
        ] {
            assert!((found.0 / cost - 1.0_f64).abs() < 0.2, "{} for {cost}", found.0);
        }
    }

    #[test]
    fn figures_by_which_packets_cost_nothing_are_not_used() {
        let mut works = rounds(&[1.0, 1.0, 1.0]);
        for work in works.iter_mut().flatten() {
            work.switch.cpu_s = work.switch.turns as f64 * (TURN + WAKES[1]) / 1e9;
        }
        assert_eq!(costs(&works, WAKES, TURN), None);
        assert_eq!(costs(&[Vec::new()], WAKES, TURN), None);
    }

    #[test]
    fn every_load_is_a_scenario_that_namespaces_take() {
        use rackweave_lab::scenario::World;
        for load in &LOADS {
            let scenario =
                super::super::scenario_text(load, TRANSPORT, 1000).read(World::Testbed, &[], None);
            let scenario = scenario.unwrap();
            assert_eq!(scenario.points[0].kernel_tcp.len(), 1, "{}", load.name);
            assert!(scenario.points[0].kernel_tcp[0].is_some(), "{}", load.name);
        }
    }
}
