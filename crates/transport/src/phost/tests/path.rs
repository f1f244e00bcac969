//! Times on an idle path, and of an incast.

use rackweave_core::{Event, HostId, Kind, Span, Time};

use super::{Config, Host, LINK, at, id, network, submit};

/// What a request to send takes on the link.
fn rts() -> Span {
    LINK.span_of(84)
}

/// One packet there and a token back, both with the delay.
fn covering(config: Config, delay: Span) -> Config {
    let rtt = LINK.span_of(1_538 + 84) + delay * 2;
    config.for_round_trip(rtt)
}

#[test]
fn a_message_on_an_idle_path_goes_back_to_back() {
    for delay in [Span::ZERO, Span::from_us(2), Span::from_us(20)] {
        for config in [Config::paper(LINK), Config::polo_slides(LINK)] {
            let config = covering(config, delay);
            for bytes in [1, 100, 1_460, 1_461, 9_329, 11_680, 11_681, 50_000, 999_999] {
                let mut network = network(&config, 2, delay);
                submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
                assert!(network.run_until(at(Span::from_secs(1))));
                let ideal = LINK.span_of(config.framing().message_wire_bytes(bytes)) + delay;
                let delivered =
                    Event::Delivered { peer: HostId(0), id: id(1), bytes, kind: Kind::OneWay };
                let sent = Event::Sent { peer: HostId(1), id: id(1) };
                // The request to send goes first; nothing else is in the way.
                assert_eq!(network.events[0], (Time::ZERO + rts() + ideal, HostId(1), delivered));
                assert_eq!(network.events[1].2, sent);
                assert_eq!(network.events.len(), 2);
                assert!(network.hosts.iter().all(Host::is_idle));
            }
        }
    }
}

#[test]
fn holding_back_costs_a_long_message_a_round_trip() {
    let delay = Span::from_us(2);
    let config = Config { token_lead: Span::ZERO, ..covering(Config::paper(LINK), delay) };
    let mut network = network(&config, 2, delay);
    let bytes = 200_000;
    submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
    network.run_until(at(Span::from_secs(1)));
    let ideal = rts() + LINK.span_of(config.framing().message_wire_bytes(bytes)) + delay;
    let lost = network.events[0].0.since(Time::ZERO + ideal);
    assert!(lost >= delay * 2 && lost < delay * 2 + Span::from_us(2), "{lost}");
}

#[test]
fn a_request_and_its_response_take_both_ideal_times() {
    let delay = Span::from_us(2);
    let config = covering(Config::paper(LINK), delay);
    for bytes in [1, 1_460, 9_329, 100_000] {
        let mut network = network(&config, 2, delay);
        submit(&mut network, 0, 1, 1, bytes, Kind::Request);
        assert!(network.run_until(at(Span::from_secs(1))));
        let one_way = rts() + LINK.span_of(config.framing().message_wire_bytes(bytes)) + delay;
        let delivered: Vec<_> = network
            .events
            .iter()
            .filter(|(.., event)| matches!(event, Event::Delivered { .. }))
            .map(|(time, host, _)| (*time, host.0))
            .collect();
        // The server's acknowledgement goes before its response.
        let (there, back) = (Time::ZERO + one_way, Time::ZERO + one_way * 2 + rts());
        assert_eq!(delivered, [(there, 1), (back, 0)]);
        assert!(network.hosts.iter().all(Host::is_idle));
    }
}

#[test]
fn the_papers_window_below_the_round_trip_leaves_gaps() {
    let config = Config::paper(LINK);
    let mut network = network(&config, 2, Span::from_us(20));
    submit(&mut network, 0, 1, 1, 100_000, Kind::OneWay);
    network.run_until(at(Span::from_secs(1)));
    let ideal = LINK.span_of(config.framing().message_wire_bytes(100_000));
    assert!(network.events[0].0 > Time::ZERO + ideal * 2, "the time above is not always ideal");
}

/// The kit's receivers have no queue before them: free packets of all are there at once, and the
/// rest comes at the pace of tokens: message by message, or all of them together.
#[test]
fn an_incast_gets_tokens_at_the_receivers_pace() {
    let (senders, packets) = (40_u64, 100);
    for profile in [Config::paper(LINK), Config::polo_slides(LINK)] {
        let round_robin = profile.order == super::super::TokenOrder::RoundRobin;
        let config = covering(profile, Span::from_us(2));
        let mut network = network(&config, senders as u32 + 1, Span::from_us(2));
        for n in 1..=senders {
            submit(&mut network, n as u32, 0, n, packets * 1_460, Kind::OneWay);
        }
        assert!(network.run_until(at(Span::from_secs(1))));
        let delivered: Vec<Time> = network
            .events
            .iter()
            .filter(|(.., event)| matches!(event, Event::Delivered { .. }))
            .map(|(at, ..)| *at)
            .collect();
        assert_eq!(delivered.len(), senders as usize);
        let tokens = senders * (packets - u64::from(config.free_tokens));
        let pace = config.token_spacing * tokens;
        let last = delivered[senders as usize - 1];
        assert!(last >= at(pace) && last < at(pace + Span::from_us(50)), "{last} for {pace}");
        let together = last.since(delivered[0]) < config.token_spacing * (senders + 30);
        assert_eq!(together, round_robin, "shortest first, equal messages end one by one");
    }
}
