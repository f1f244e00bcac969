//! Packet traces of whole conversations.

use rackweave_core::{HostId, Kind, Node as _, Packet, Span, Time};
use rackweave_wire::Id64;
use rackweave_wire::phost::Body;

use super::{Config, DrivenSubject as _, LINK, PHost};
use crate::phost::Host;
use crate::tests::driven::{lost, trace};
use crate::tests::suite::{at, events, id, network, submit};

const US: fn(u64) -> Span = Span::from_us;
const MS: fn(u64) -> Span = Span::from_ms;

/// Two free packets, so that tokens start early, and at most two unused tokens.
pub(super) fn small() -> Config {
    // One unused token more than the free ones: a round trip here is longer than two packets.
    Config { token_window: 3, ..Config::paper(LINK).with_free_tokens(2) }
}

#[test]
fn a_short_request() {
    let mut network = network::<PHost>(&Config::paper(LINK), 2, US(1));
    submit(&mut network, 0, 1, 1, 2_000, Kind::Request);
    network.run_until(at(US(100)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p7 RTS 1 of 2000",
            "h0>h1 p6 DATA 1 0 +1460 token 0",
            "h0>h1 p6 DATA 1 1 +540 token 1",
            "h1>h0 p7 ACK 1",
            "h1>h0 p7 RTS 1r of 2000",
            "h1>h0 p6 DATA 1r 0 +1460 token 0",
            "h1>h0 p6 DATA 1r 1 +540 token 1",
            "h0>h1 p7 ACK 1r",
        ]
    );
    assert_eq!(
        events(&mut network),
        [
            "h1: Request 1 of 2000 bytes from h0",
            "h0: 1 sent to h1",
            "h0: Response 1r of 2000 bytes from h1",
            "h1: 1r sent to h0",
        ]
    );
}

/// YAPS, `init_capa_size`: eight packets are too many for the seven free tokens, so the first waits for a token.
#[test]
fn in_yaps_long_messages_have_no_free_packets() {
    let first = |packets: u64| {
        let mut network = network::<PHost>(&Config::yaps(LINK), 2, US(1));
        submit(&mut network, 0, 1, 1, packets * 1_460, Kind::OneWay);
        network.run_until(at(MS(1)));
        let sent_to = format!("h1: OneWay 1 of {} bytes from h0", packets * 1_460);
        assert_eq!(events(&mut network), [sent_to, "h0: 1 sent to h1".to_owned()]);
        trace(&mut network).into_iter().nth(1).unwrap()
    };
    assert_eq!(first(7), "h0>h1 p5 DATA 1 0 +1460 token 0");
    assert!(first(8).starts_with("h1>h0 p7 TOKEN 1"));
}

#[test]
fn tokens_follow_the_free_packets() {
    let mut network = network::<PHost>(&small(), 2, Span::ZERO);
    submit(&mut network, 0, 1, 1, 5 * 1_460, Kind::OneWay);
    network.run_until(at(US(100)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p7 RTS 1 of 7300",
            "h0>h1 p5 DATA 1 0 +1460 token 0",
            "h0>h1 p5 DATA 1 1 +1460 token 1",
            "h1>h0 p7 TOKEN 1 2 for 2",
            "h0>h1 p5 DATA 1 2 +1460 token 2",
            "h1>h0 p7 TOKEN 1 3 for 3",
            "h0>h1 p5 DATA 1 3 +1460 token 3",
            "h1>h0 p7 TOKEN 1 4 for 4",
            "h0>h1 p5 DATA 1 4 +1460 token 4",
            "h1>h0 p7 ACK 1",
        ]
    );
}

#[test]
fn a_lost_packet_gets_another_token_when_all_have_had_theirs() {
    let mut network = network::<PHost>(&small(), 2, Span::ZERO);
    network.lose = Some(|packet| matches!(packet.header.body, Body::Data { token: 2, .. }));
    submit(&mut network, 0, 1, 1, 5 * 1_460, Kind::OneWay);
    network.run_until(at(US(100)));
    assert_eq!(
        trace(&mut network)[9..],
        ["h1>h0 p7 TOKEN 1 5 for 2", "h0>h1 p5 DATA 1 2 +1460 token 5", "h1>h0 p7 ACK 1",]
    );
    // Nine packet times after the last token, which was the third after two free packets.
    let config = small();
    // Each packet crosses two links: the request to send, the token and the data.
    let resent_at = config.token_spacing * (2 + 2 + 9) + LINK.span_of(2 * 84);
    let delivered = resent_at + LINK.span_of(2 * (84 + 1_538));
    assert_eq!(network.events[0].0, at(delivered));
}

#[test]
fn a_sender_that_uses_no_tokens_is_asked_rarely() {
    let config = small();
    let mut network = network::<PHost>(&config, 3, Span::ZERO);
    // Host 1 starts a long message and is cut off; host 2 has a longer one.
    submit(&mut network, 1, 0, 1, 100 * 1_460, Kind::OneWay);
    network.run_until(at(Span::from_ns(100)));
    network.set_down(1, true);
    submit(&mut network, 2, 0, 2, 1_000 * 1_460, Kind::OneWay);
    network.run_until(at(US(500)));
    let tokens = |dst: u32| -> Vec<Time> {
        let is_token = |packet: &Packet<super::Header>| {
            matches!(packet.header.body, Body::Token { .. }) && packet.dst == HostId(dst)
        };
        network.packets.iter().filter(|(_, p)| is_token(p)).map(|(at, _)| *at).collect()
    };
    let (silent, alive) = (tokens(1), tokens(2));
    // Three are unused at most, of two free packets one has arrived: two tokens, and then one per 25 packet times.
    assert_eq!(silent.len(), 2 + 500_000 / (25 * 1_230), "{silent:?}");
    for pair in silent[1..].windows(2) {
        let gap = pair[1].since(pair[0]);
        assert!(gap >= config.window_timeout && gap < config.window_timeout + US(3), "{gap}");
    }
    assert!(alive.len() > 350, "{}", alive.len());
}

#[test]
fn tokens_that_are_not_used_at_once_expire() {
    let config = small();
    let mut host = Host::new(HostId(0), config.clone().into());
    use rackweave_core::Transport as _;
    for n in [1, 2] {
        let message = rackweave_core::Submit {
            id: id(n),
            peer: HostId(1),
            bytes: 10 * 1_460,
            kind: Kind::OneWay,
        };
        host.submit(Time::ZERO, message).unwrap();
    }
    // The free tokens have expired.
    let now = at(US(100));
    assert_eq!(std::iter::from_fn(|| host.poll_transmit(now, 0)).count(), 2, "the requests");
    for (n, packet, missing) in [(1, 3, 7), (1, 4, 7), (2, 2, 8)] {
        let body = Body::Token { packet, number: packet, missing };
        let header = super::Header { id: Id64::new(id(n).0), one_way: true, body };
        host.handle_packet(now, 0, &Packet::new(HostId(1), HostId(0), 100, header));
    }
    // Fewest missing packets first, according to the tokens.
    let first = host.poll_transmit(now, 0).map(|packet| PHost::line(&packet));
    assert_eq!(first.as_deref(), Some("h0>h1 p5 DATA 1 3 +1460 token 3"));
    let in_time = now + config.token_expiry;
    let second = host.poll_transmit(in_time, 0).map(|packet| PHost::line(&packet));
    assert_eq!(second.as_deref(), Some("h0>h1 p5 DATA 1 4 +1460 token 4"));
    assert_eq!(
        host.poll_transmit(in_time + Span::from_ticks(1), 0),
        None,
        "message 2's has expired"
    );
}

#[test]
fn a_lost_request_is_repeated() {
    let mut network = network::<PHost>(&small(), 2, US(1));
    lost(&mut network, |network| {
        submit(network, 0, 1, 1, 100, Kind::OneWay);
        network.run_until(at(US(10)));
    });
    network.run_until(at(MS(10)));
    assert_eq!(
        trace(&mut network),
        [
            "h0>h1 p7 RTS 1 of 100",
            "h0>h1 p6 DATA 1 0 +100 token 0",
            "h0>h1 p7 RTS 1 of 100",
            // The free packet counts as lost when it and nine more could have arrived.
            "h1>h0 p7 TOKEN 1 1 for 0",
            "h0>h1 p6 DATA 1 0 +100 token 1",
            "h1>h0 p7 ACK 1",
        ]
    );
}
