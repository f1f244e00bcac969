//! How many round trips does a message take with each transport, where the network itself takes none of the time?
//!
//! `cargo run -p rackweave-transport --example round_trips`

use rackweave_core::{Event, HostId, Kind, MessageId, Node, Rate, Span, Submit, Time, Transport};
use rackweave_transport::{TransportConfig, homa, ndp, phost, tcp};

const LINK: Rate = Rate::from_gbps(10);
const ONE_WAY: Span = Span::from_us(5);

/// The time until a message between two hosts is delivered, over wires with a delay and any number of packets on them.
fn time_of(config: &TransportConfig, bytes: u64) -> Span {
    let mut hosts = [0, 1].map(|host| config.machine(HostId(host)));
    let (id, kind) = (MessageId::request(1), Kind::OneWay);
    let message = Submit { id, peer: HostId(1), bytes, kind };
    hosts[0].submit(Time::ZERO, message).expect("an idle host takes a message");
    let (mut now, mut on_wires) = (Time::ZERO, Vec::new());
    loop {
        for (host, peer) in [(0, 1), (1, 0)] {
            while let Some(event) = hosts[host].poll_event() {
                if host == 1 && matches!(event, Event::Delivered { .. }) {
                    return now.since(Time::ZERO);
                }
            }
            while let Some(packet) = hosts[host].poll_transmit(now, 0) {
                on_wires.push((now + ONE_WAY, peer, packet));
            }
        }
        // What happens next: a packet arrives, or a timer expires.
        let timers = hosts.iter().filter_map(Node::poll_timeout);
        let next = on_wires.iter().map(|(at, ..)| *at).chain(timers).min();
        now = next.expect("the message is under way").max(now);
        let (due, later): (Vec<_>, Vec<_>) = on_wires.into_iter().partition(|(at, ..)| *at <= now);
        on_wires = later;
        for (_, to, packet) in due {
            let _ = hosts[to].handle_packet(now, 0, &packet);
        }
        for host in &mut hosts {
            if host.poll_timeout().is_some_and(|at| at <= now) {
                host.handle_timeout(now);
            }
        }
    }
}

/// Prints a table of round trips by transport and size.
pub(crate) fn main() {
    let bdp = LINK.bytes_in(ONE_WAY * 2) as u32;
    let transports: [(&str, TransportConfig); 5] = [
        ("homa", homa::Config::fabric(LINK, bdp).into()),
        ("dctcp", tcp::Config::dctcp().into()),
        ("tcp", tcp::Config::tcp().into()),
        ("ndp", ndp::Config::paper(LINK).into()),
        ("phost", phost::Config::paper(LINK).for_round_trip(ONE_WAY * 2).into()),
    ];
    let sizes = [100, 10_000, 100_000, 1_000_000];
    println!("{:>7} {sizes:>10?} bytes", "");
    for (name, config) in &transports {
        let trips =
            sizes.map(|bytes| time_of(config, bytes).ticks() as f64 / (ONE_WAY * 2).ticks() as f64);
        println!("{name:>7} {trips:>10.2?} round trips");
        // The first packets of a message need no permission, and longer messages take no less time.
        assert_eq!(trips[0], 0.5, "{name}");
        assert!(trips.is_sorted(), "{name}");
    }
    // Homa sends a bandwidth-delay product without a grant, and TCP begins with ten segments.
    let of = |transport: usize, bytes| time_of(&transports[transport].1, bytes);
    assert_eq!((of(0, 10_000), of(2, 10_000)), (ONE_WAY, ONE_WAY));
    assert!(of(2, 100_000) >= ONE_WAY * 5);
}
