use std::path::Path;

use rackweave_core::Time;
use rackweave_sim::Control;
use rackweave_sim::result::End;

use super::*;
use crate::Batch;
use crate::scenario::Scenario;

fn scenario(text: &str) -> Scenario {
    Scenario::parse("test.toml", text, Path::new("."), &[], None).unwrap()
}

fn offered(text: &str) -> Offered {
    Offered::of(&scenario(text).points[0]).unwrap()
}

const LEAF: &str = "fabric = { topology = 'leaf-spine', leaves = 3, hosts_per_leaf = 4, spines = 2, host_link = '10 Gbps', core_link = '10 Gbps' }\n\
    transport.name = 'TRANSPORT'\n\
    workload = { arrivals = 'poisson', sizes = '30 KB', load = 0.3, exchange = 'EXCHANGE' }\n\
    measure = { warmup = '2 ms', duration = '40 ms', sample_every = '0 s' }\n\
    [[background]]\narrivals = 'incast'\nsizes = '10 KB'\nsenders = 6\nreceiver = 1\nevery = '200 us'\n";

/// Returns the mean utilisation of each tier of a leaf-spine fabric in a run, with what was offered to it. Per-flow paths are
/// uneven, so that of a tier its mean is compared.
fn tiers(text: &str) -> (Vec<(Tier, f64)>, Vec<rackweave_sim::result::LinkStats>) {
    let scenario = scenario(text);
    let Offered { tiers, .. } = Offered::of(&scenario.points[0]).unwrap();
    let results = Batch::new(scenario).run(Some(1)).unwrap();
    let links = results.points.into_iter().next().unwrap().links;
    let mean = |of: &dyn Fn(&str) -> bool| {
        let of: Vec<f64> =
            links.iter().filter(|it| of(&it.name)).map(|it| it.utilisation).collect();
        assert!(!of.is_empty());
        of.iter().sum::<f64>() / of.len() as f64
    };
    let measured = [
        mean(&|name| name.starts_with('h')),
        mean(&|name| name.contains("->h")),
        mean(&|name| name.starts_with("leaf") && name.contains("->spine")),
        mean(&|name| name.starts_with("spine")),
    ];
    let names: Vec<&str> = tiers.iter().map(|tier| tier.links).collect();
    assert_eq!(names, ["hosts send", "hosts receive", "leaves up", "leaves down"]);
    (tiers.into_iter().zip(measured).collect(), links)
}

#[test]
fn links_carry_what_is_offered() {
    for (transport, exchange) in
        [("homa", "one-way"), ("homa", "rpc"), ("dctcp", "one-way"), ("dctcp", "rpc")]
    {
        let text = LEAF.replace("TRANSPORT", transport).replace("EXCHANGE", exchange);
        let (tiers, links) = tiers(&text);
        for (tier, measured) in &tiers {
            let factor = tier.mean / measured;
            assert!((0.94..1.06).contains(&factor), "{transport} {exchange}: {tier:?} {measured}");
        }
        let busiest = links.iter().find(|it| it.name == "leaf0->h1").unwrap().utilisation;
        let (receive, _) = &tiers[1];
        assert_eq!(receive.at, "host 1");
        let factor = receive.most / busiest;
        assert!((0.93..1.07).contains(&factor), "{transport}: {receive:?} {busiest}");
    }
}

/// Messages of a packet, and of 21, at a constant rate: announcements, grants and acknowledgements are counted for every transport.
#[test]
fn control_packets_of_all_transports_are_offered_too() {
    const TRIM: &str = ", switch.trim.header_queue = '128 KB'";
    const RANKED: &str = ", switch.pfabric = true, switch.buffer = '36 KB'";
    const NSCC: &str = "transport.profile = 'uet-nscc'\n";
    const EQDS: &str = "transport.profile = 'eqds'\n";
    let transports = [
        ("homa", "", ""),
        ("dctcp", "", ""),
        ("tcp", "", ""),
        ("ndp", TRIM, ""),
        ("phost", "", ""),
        ("polo", "", ""),
        ("sird", "", ""),
        ("pfabric", RANKED, ""),
        ("swift", "", ""),
        ("dcpim", "", ""),
        ("dcqcn", "", ""),
        ("hpcc", "", ""),
        ("uet", TRIM, ""),
        ("uet", TRIM, NSCC),
        ("uet", TRIM, EQDS),
        ("datagram", "", ""),
    ];
    for (transport, switch, keys) in transports {
        for (exchange, sizes, rate, duration, tolerance) in [
            ("one-way", "300 B", "1 Gbps", "2 ms", 0.06),
            ("rpc", "300 B", "500 Mbps", "2 ms", 0.06),
            ("one-way", "30 KB", "2 Gbps", "30 ms", 0.03),
            ("rpc", "30 KB", "1 Gbps", "30 ms", 0.03),
        ] {
            if transport == "datagram" && exchange == "rpc" {
                continue;
            }
            let text = LEAF
                .split("[[")
                .next()
                .unwrap()
                .replace("TRANSPORT", transport)
                .replace("EXCHANGE", exchange)
                .replace("30 KB", sizes)
                .replace("poisson", "periodic")
                .replace("load = 0.3", &format!("rate = '{rate}'"))
                .replace("40 ms", duration)
                .replace(" }\ntransport", &format!("{switch} }}\n{keys}transport"));
            // An acknowledgement of TCP is for two messages, for one, or travels with the response. One of Polo's three is for
            // messages that wait in queues.
            let is_varied = transport == "polo" || transport == "tcp" || transport == "dctcp";
            let tolerance = if is_varied && sizes == "300 B" { 0.16 } else { tolerance };
            // Those of leaves depend on which receivers are drawn, and what is trimmed is sent again.
            let hosts = if switch == TRIM { 1..2 } else { 0..2 };
            for (tier, measured) in &tiers(&text).0[hosts] {
                let factor = tier.mean / measured;
                assert!(
                    (factor - 1.0).abs() < tolerance,
                    "{transport} {keys} {exchange} {sizes}: {tier:?} {measured}"
                );
            }
        }
    }
}

/// The trial's scenario: 40 times 256 KB to host 0 every 5 ms, of a link of 25 Gbps, are two thirds of it, and calls a third.
#[test]
fn overload_of_a_receiver_is_found_before_the_run() {
    let text = "fabric = { topology = 'leaf-spine', leaves = 6, hosts_per_leaf = 16, spines = 2, host_link = '25 Gbps', oversubscription = 3 }\n\
        transport.name = 'homa'\n\
        workload = { arrivals = 'poisson', sizes = 'W2', exchange = 'rpc', load = 0.3 }\n\
        [[background]]\narrivals = 'incast'\nsizes = '256 KB'\nsenders = 40\nreceiver = 0\nevery = '5 ms'\n";
    let found = offered(text);
    let warnings: Vec<String> = found.warnings().collect();
    assert!(warnings[0].starts_with("offered to host 0: 1.08 times its link"), "{warnings:?}");
    // 83 % of what all hosts send goes to other leaves, over a third of the capacity.
    let up = found.tiers.iter().find(|tier| tier.links == "leaves up").unwrap();
    assert!((0.9..1.0).contains(&up.mean), "{up:?}");
    let less = text.replace("'5 ms'", "'8 ms'").replace("0.3", "0.2");
    let less = offered(&less);
    assert_eq!(less.warnings().count(), 0, "{less:?}");
}

#[test]
fn streams_without_a_rate_are_named() {
    let text = LEAF
        .replace("TRANSPORT", "tcp")
        .replace("EXCHANGE", "one-way")
        .replace("every = '200 us'", "start = '200 us'");
    assert_eq!(offered(&text).without_rate, ["incast"]);
    let only = "fabric = { topology = 'single-switch', hosts = 4 }\ntransport.name = 'tcp'\n\
                workload = { arrivals = 'permutation', sizes = '1 MB' }";
    assert_eq!(Offered::of(&scenario(only).points[0]), None);
}

/// The control packets of a run: of senders, and of receivers.
#[derive(Debug)]
struct ControlBytes {
    /// The bytes that links carried over the bytes that were calculated for its messages.
    ratio: [f64; 2],
    /// The calculated ones over those of data.
    share: [f64; 2],
}

/// Half of the hosts send to the other half, so that links of receivers carry nothing but what they send back.
fn control_bytes(text: &str) -> ControlBytes {
    let scenario = scenario(text);
    let point = &scenario.points[0];
    let result = rackweave_sim::run(&point.config, &Control::default()).unwrap();
    assert_eq!(result.end, End::AllDone, "{text}");
    let stream = &point.config.streams[0];
    let (at, framing) = (surroundings(stream, &point.fabric), stream.transport.framing());
    let (mut sent, mut calculated) = (0.0, [0.0; 2]);
    for message in &result.messages {
        let data = framing.message_wire_bytes(message.bytes) as f64;
        let [there, back] = stream.transport.wire_bytes_of(message.bytes, &at(Part::Request));
        sent += data;
        calculated = [calculated[0] + there - data, calculated[1] + back];
    }
    // Packets of paths with queues, which some transports take for lost, or which switches trim.
    let again = result.recovery.first().map_or(0, |of| of.counters.retransmissions) as f64;
    let again = again * f64::from(framing.packet_wire_bytes(framing.max_payload));
    let seconds = result.ended_at.since(Time::ZERO).as_secs_f64();
    let carried = |hosts: Range<u32>| {
        let of = hosts.map(|host| {
            let name = format!("h{host}->");
            let link = result.links.iter().find(|it| it.name.starts_with(&name)).unwrap();
            link.utilisation * seconds * point.fabric.host_rate().0 as f64 / 8.0
        });
        of.sum::<f64>()
    };
    let half = point.fabric.hosts() / 2;
    let carried = [carried(0..half) - sent - again, carried(half..2 * half)];
    let of = |nth: usize| carried[nth] / calculated[nth];
    ControlBytes { ratio: [of(0), of(1)], share: calculated.map(|bytes| bytes / sent) }
}

/// Announcements, grants, tokens, acknowledgements and rounds of matching, as transports send them without losses: one packet a message, W3
/// at 10 Gbps, and W4 at 100 Gbps at a load of 0.7. The limits are what each of them differs by, and a little to spare; packets of
/// senders count where they are a thousandth of the data at least.
#[test]
fn control_packets_are_those_of_links() {
    const TRIM: &str = "switch.trim.header_queue = '128 KB'";
    const RANKED: &str = "switch = { pfabric = true, buffer = '10 MB' }";
    const DROP: &str = "switch.buffer = 'unlimited'";
    let transports = [
        ("homa", DROP, [0.0, 0.02, 0.02]),
        // What is trimmed is answered by one packet more. A pull travels with an acknowledgement if none waits.
        ("ndp", TRIM, [0.01, 0.12, 0.06]),
        // A token that its sender cannot use at once is replaced by another one, more of them the faster the link.
        ("phost", DROP, [0.01, 0.13, 0.5]),
        ("polo", DROP, [0.41, 0.14, 0.33]),
        ("sird", DROP, [0.01, 0.01, 0.01]),
        ("pfabric", RANKED, [0.01, 0.01, 0.04]),
        ("swift", DROP, [0.01, 0.01, 0.01]),
        ("dcpim", DROP, [0.01, 0.04, 0.03]),
        ("uet", TRIM, [0.01, 0.04, 0.14]),
        ("uet-nscc", TRIM, [0.01, 0.02, 0.12]),
        ("uet-rccc", TRIM, [0.01, 0.04, 0.06]),
        ("eqds", TRIM, [0.01, 0.11, 0.1]),
    ];
    let runs = [("300 B", 10, 0.4, 0.07), ("W3", 10, 0.4, 0.7), ("W4", 100, 0.7, 1.3)];
    let mut wrong = Vec::new();
    for (name, switch, limits) in transports {
        let profile = matches!(name, "uet-nscc" | "uet-rccc" | "eqds");
        let transport = if profile { "uet" } else { name };
        let profile = if profile { format!("profile = '{name}'") } else { String::new() };
        for ((sizes, gbps, load, stop_ms), limit) in runs.into_iter().zip(limits) {
            let text = format!(
                "fabric = {{ topology = 'leaf-spine', leaves = 4, hosts_per_leaf = 4, spines = 2, host_link = '{gbps} Gbps', \
                 core_link = '{} Gbps', {switch} }}\n\
                 measure = {{ warmup = '0 s', queues_from = '0 s', messages = 'unlimited', sample_every = '0 s' }}\n\
                 [transport]\nname = '{transport}'\n{profile}\n\
                 [workload]\narrivals = 'poisson'\nsizes = '{sizes}'\ntruncate = '1 MB'\nload = {load}\n\
                 senders = '0-7'\nreceivers = '8-15'\nstop = '{stop_ms} ms'\n",
                4 * gbps
            );
            let text =
                if sizes == "300 B" { text.replace("truncate = '1 MB'\n", "") } else { text };
            let found = control_bytes(&text);
            println!("{name} {sizes} {gbps} Gbps {load}: {found:?}");
            for (ratio, share) in found.ratio.into_iter().zip(found.share) {
                if share > 1e-3 && (ratio - 1.0).abs() >= limit {
                    wrong.push(format!("{name} {sizes}: {found:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Messages of a segment and of three from one host to another, some 150, 19 and 5 us apart: at first each is acknowledged alone after the
/// delay of 200 us, and in the end two messages share an acknowledgement.
#[test]
fn delayed_acknowledgements_are_shared_as_on_links() {
    for (bytes, gap_us) in
        [(300, 150.0), (300, 19.0), (300, 5.0), (4380, 150.0), (4380, 19.0), (4380, 5.0)]
    {
        let load = f64::from(bytes) * 8.0 / (gap_us * 1e4);
        let stop_ms = 4.0 * gap_us;
        let text = format!(
            "fabric = {{ topology = 'single-switch', hosts = 2, host_link = '10 Gbps' }}\n\
             measure = {{ warmup = '0 s', queues_from = '0 s', messages = 'unlimited', sample_every = '0 s' }}\n\
             transport.name = 'tcp'\n\
             workload = {{ arrivals = 'poisson', sizes = '{bytes} B', load = {load:.8}, senders = '0-0', receivers = '1-1', \
             stop = '{stop_ms} ms' }}\n"
        );
        let found = control_bytes(&text);
        println!("{bytes} B {gap_us} us: {found:?}");
        assert!((found.ratio[1] - 1.0).abs() < 0.06, "{bytes} B {gap_us} us: {found:?}");
    }
}
