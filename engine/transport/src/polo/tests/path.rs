//! Times of long messages.

use rackweave_core::{HostId, Kind, Rate, Span, Time};

use super::{Config, Polo};
use crate::tests::driven::through_a_narrow_core;
use crate::tests::suite::{LINK, at, network, submit};

/// Beyond the first window, adjoint packets cost 84 bytes per epoch.
#[test]
fn a_long_message_fills_the_link_but_for_adjoint_packets() {
    let config = Config::slides();
    let mut network = network::<Polo>(&config, 2, Span::from_us(2));
    let bytes = 50_000_000;
    submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
    assert!(network.run_until(at(Span::from_secs(1))));
    let adjoints = network
        .packets
        .iter()
        .filter(|(_, packet)| packet.src == HostId(0) && packet.priority == 7);
    let adjoints = LINK.span_of(84) * adjoints.count() as u64;
    let ideal = network.ideal(bytes, config.common.framing());
    let took = network.events[0].0.since(Time::ZERO);
    assert!(took >= ideal && took <= ideal + adjoints, "{took}: {ideal} and {adjoints}");
    assert!(adjoints * 50 < ideal, "{adjoints} of {ideal}");
}

/// Packets that wait in the core for longer than the timeout, or than two epochs, are not requested again as if they were
/// lost, which would make its queues longer. Senders of 1 Gbps are paused at marks above 65 packets.
#[test]
fn queues_of_the_core_do_not_multiply_packets() {
    let (config, link) = (Config::slides(), Rate::from_gbps(1));
    let (sent, needed) = through_a_narrow_core::<Polo>(&config, 3, link, Some(99_970), 10);
    assert!(sent < needed * 2, "{sent} packets for {needed}");
}
