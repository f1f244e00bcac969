//! The rules of the matching and of tokens, at a single host.

use std::iter;

use rackweave_core::{HostId, Kind, Node as _, Packet, Rng, Span, Submit, Time, Transport as _};
use rackweave_wire::Id64;
use rackweave_wire::dcpim::{Body, Channels, Header};

use super::{Config, DcPim, DrivenSubject as _, with_delay};
use crate::Profile as _;
use crate::dcpim::Host;
use crate::tests::suite::{at, id};

/// The parameters for which these tests are written: rounds of 10 us, in epochs of four.
fn config() -> Config {
    let usual = with_delay(Span::from_us(5));
    let round = Span::from_us(10);
    Config { epoch: round * 4, round, rounds: 4, ..usual }
}

fn host(config: &Config) -> Host {
    config.check().unwrap();
    Host::new(HostId(0), config.clone().into())
}

/// Host 0 starts to send message `n` to host `n`, with this number of packets.
fn send(host: &mut Host, now: Time, n: u64, packets: u64) {
    let bytes = packets * 1_460;
    let peer = HostId(n as u32);
    host.submit(now, Submit { id: id(n), peer, bytes, kind: Kind::OneWay }).unwrap();
    sent(host, now);
}

/// Host 0 gets a packet of message `n` from host `n`.
fn receive(host: &mut Host, now: Time, n: u64, body: Body) {
    run(host, now);
    let header = Header { id: Id64::new(id(n).0), one_way: true, body };
    let _ = host.handle_packet(now, 0, &Packet::new(HostId(n as u32), HostId(0), 100, header));
}

/// Message `n`, with this number of packets, is announced by host `n`.
fn notify(host: &mut Host, now: Time, n: u64, packets: u32) {
    receive(host, now, n, Body::Notify { message_length: packets * 1_460, free: 0 });
    sent(host, now);
}

fn rts(missing: u32, total: u8, prompt: u8) -> Body {
    Body::Rts { epoch: 0, missing, channels: Channels { total, prompt } }
}

fn grant(total: u8, prompt: u8) -> Body {
    Body::Grant { epoch: 0, sender_epoch: 7, channels: Channels { total, prompt } }
}

fn accept(sender_epoch: u32, total: u8, prompt: u8) -> Body {
    Body::Accept { epoch: 9, sender_epoch, channels: Channels { total, prompt } }
}

/// Runs all timers up to a time.
fn run(host: &mut Host, until: Time) {
    while let Some(now) = host.poll_timeout().filter(|now| *now <= until) {
        host.handle_timeout(now);
        host.check_bounds();
    }
}

/// What the host sends at this time.
fn sent(host: &mut Host, now: Time) -> Vec<String> {
    iter::from_fn(|| host.poll_transmit(now, 0)).map(|packet| DcPim::line(&packet)).collect()
}

/// What the host sends until this time, as it is due.
fn until(host: &mut Host, until: Time) -> Vec<(u64, String)> {
    let mut all = Vec::new();
    while let Some(now) = host.poll_timeout().filter(|now| *now <= until) {
        host.handle_timeout(now);
        let us = now.since(Time::ZERO).as_us();
        all.extend(sent(host, now).into_iter().map(|line| (us, line)));
    }
    all
}

fn us(n: u64) -> Time {
    at(Span::from_us(n))
}

/// docs/protocols/dcpim.md#dcpim-matching: requests wait for the middle of the round; in the first round the shortest messages are offered
/// channels.
#[test]
fn a_sender_offers_its_channels_to_the_shortest_messages_first() {
    let mut host = host(&config());
    for (n, packets) in [(1, 300), (2, 100), (3, 200)] {
        send(&mut host, us(0), n, packets);
    }
    receive(&mut host, us(1), 1, rts(300, 4, 4));
    receive(&mut host, us(1), 2, rts(100, 1, 1));
    receive(&mut host, us(1), 3, rts(200, 2, 2));
    assert_eq!(
        until(&mut host, us(20)),
        [
            (5, "h0>h2 p7 GRANT 2 of 0 1+1".to_owned()),
            (5, "h0>h3 p7 GRANT 3 of 0 2+2".to_owned()),
            (5, "h0>h1 p7 GRANT 1 of 0 1+1".to_owned()),
        ]
    );
}

/// In later rounds offers are made at random.
#[test]
fn later_rounds_choose_at_random() {
    let mut shortest = 0;
    for first in [false, true] {
        for number in 0..200 {
            let mut host = Host::new(HostId(1_000 + number), config().into());
            let now = us(if first { 1 } else { 11 });
            for n in 1..=4 {
                let peer = HostId(n as u32);
                let bytes = 100 * n * 1_460;
                host.submit(now, Submit { id: id(n), peer, bytes, kind: Kind::OneWay }).unwrap();
            }
            for n in 1..=4 {
                let header = Header {
                    id: Id64::new(id(n).0),
                    one_way: true,
                    body: rts(100 * n as u32, 4, 0),
                };
                let packet = Packet::new(HostId(n as u32), HostId(1_000 + number), 100, header);
                let _ = host.handle_packet(now, 0, &packet);
            }
            sent(&mut host, now);
            let grants = until(&mut host, now + Span::from_us(10));
            assert_eq!(grants.len(), 1, "all channels to one of them: {grants:?}");
            let is_shortest = grants[0].1.contains("GRANT 1 of");
            assert!(is_shortest || !first, "{grants:?}");
            shortest += u32::from(is_shortest && !first);
        }
    }
    // 50 of 200 are expected, with a standard deviation of 6.
    assert!((25..75).contains(&shortest), "{shortest}");
}

/// A sender has its channels once in each epoch. What is accepted beyond that is released by RELEASE.
#[test]
fn accepted_channels_are_counted_in_their_epochs() {
    let mut host = host(&config());
    for n in 1..=3 {
        send(&mut host, us(0), n, 100);
    }
    receive(&mut host, us(12), 1, accept(0, 3, 3));
    assert_eq!(sent(&mut host, us(12)), [""; 0]);
    receive(&mut host, us(12), 2, accept(0, 2, 1));
    assert_eq!(sent(&mut host, us(12)), ["h0>h2 p7 RELEASE 2 epoch 9 1+0"]);
    // There is none left in this epoch.
    receive(&mut host, us(13), 3, rts(1, 1, 1));
    assert_eq!(until(&mut host, us(30)), []);
    // The next epoch has all of them, but none is idle in its current data phase, which the last round of the previous epoch fills.
    receive(&mut host, us(41), 3, rts(1, 4, 4));
    assert_eq!(until(&mut host, us(50)), [(45, "h0>h3 p7 GRANT 3 of 1 4+0".to_owned())]);
    receive(&mut host, us(52), 3, accept(1, 4, 0));
    assert_eq!(sent(&mut host, us(52)), [""; 0]);
    // An acceptance of the previous epoch counts there, which is full.
    receive(&mut host, us(53), 1, accept(0, 1, 0));
    assert_eq!(sent(&mut host, us(53)), ["h0>h1 p7 RELEASE 1 epoch 9 1+0"]);
    // Two epochs later everything is idle again.
    receive(&mut host, us(121), 1, rts(1, 4, 4));
    assert_eq!(until(&mut host, us(130)), [(125, "h0>h1 p7 GRANT 1 of 3 4+4".to_owned())]);
}

/// docs/protocols/dcpim.md#dcpim-matching: a receiver requests channels for what is missing, a tenth of the epoch's 32 packets each; it accepts
/// the offers of the round when the next one starts, and requests the rest.
#[test]
fn a_receiver_requests_what_its_messages_need() {
    let config = config();
    assert_eq!(config.channel_packets(), 8);
    let mut host = host(&config);
    notify(&mut host, us(35), 1, 12);
    notify(&mut host, us(36), 2, 100);
    // The last stage of epoch 0 and the first of epoch 1 are at the same time.
    assert_eq!(
        until(&mut host, us(49)),
        [
            (40, "h0>h1 p7 RTS 1 missing 12 2+2".to_owned()),
            (40, "h0>h2 p7 RTS 2 missing 100 4+4".to_owned()),
        ]
    );
    // Both are offered all that they asked for: the shorter message has them, and the other what is left.
    receive(&mut host, us(49), 2, grant(4, 4));
    receive(&mut host, us(49), 1, grant(2, 1));
    assert_eq!(
        until(&mut host, us(50)),
        [
            (50, "h0>h1 p7 ACCEPT 1 epoch 1 of 7 2+1".to_owned()),
            (50, "h0>h2 p7 ACCEPT 2 epoch 1 of 7 2+2".to_owned()),
            // Channels that are not in use can send at once.
            (50, "h0>h1 p7 TOKEN 1 0 for 0 p7".to_owned()),
            (50, "h0>h2 p7 TOKEN 2 0 for 0 p7".to_owned()),
        ]
    );
}

/// Without offers, a receiver asks again in each round; without room it does not.
#[test]
fn requests_end_when_all_channels_are_matched() {
    let mut host = host(&Config { prompt: false, ..config() });
    notify(&mut host, us(35), 1, 100);
    let requests = |host: &mut Host, until_us| until(host, us(until_us)).len();
    assert_eq!([40, 50].map(|us| requests(&mut host, us)), [1, 1]);
    receive(&mut host, us(55), 1, grant(3, 0));
    assert_eq!(
        until(&mut host, us(60)),
        [
            (60, "h0>h1 p7 ACCEPT 1 epoch 1 of 7 3+0".to_owned()),
            (60, "h0>h1 p7 RTS 1 missing 100 1+0".to_owned()),
        ]
    );
    receive(&mut host, us(65), 1, grant(2, 0));
    assert_eq!(until(&mut host, us(79)), [(70, "h0>h1 p7 ACCEPT 1 epoch 1 of 7 1+0".to_owned())]);
}

/// A match has its share of the link for one epoch, and then ends.
#[test]
fn tokens_are_paced_by_channels_until_the_data_phase_ends() {
    let mut host = host(&Config { prompt: false, token_window: 1_000, ..config() });
    notify(&mut host, us(35), 1, 1_000);
    run(&mut host, us(40));
    receive(&mut host, us(45), 1, grant(2, 0));
    run(&mut host, us(50));
    sent(&mut host, us(50));
    let tokens: Vec<u64> = until(&mut host, us(200))
        .into_iter()
        .filter(|(_, line)| line.contains("TOKEN"))
        .map(|(us, _)| us)
        .collect();
    // The data phase is from 80 to 120 us; a token on two of four channels is due every 2.46 us.
    assert_eq!((tokens.first(), tokens.last()), (Some(&80), Some(&119)));
    assert_eq!(tokens.len(), 17, "{tokens:?}");
}

/// docs/protocols/dcpim.md#dcpim-tokens: tokens of the match with the shortest message are used first, and those of channels that are used
/// early last; a token is void a slack after the data phase has ended.
#[test]
fn a_sender_uses_tokens_by_their_priority_and_in_time() {
    let mut host = host(&config());
    for n in 1..=3 {
        send(&mut host, us(0), n, 100);
    }
    let token = |packet, priority, lifetime_us: u16| Body::Token {
        packet,
        number: packet,
        missing: 100 - packet,
        lifetime: lifetime_us * 10,
        priority,
    };
    // Message 4 is sent without tokens, before all others.
    let free = Submit { id: id(4), peer: HostId(4), bytes: 100, kind: Kind::OneWay };
    host.submit(us(0), free).unwrap();
    receive(&mut host, us(1), 1, token(5, 7, 10));
    receive(&mut host, us(1), 2, token(3, 4, 10));
    receive(&mut host, us(1), 3, token(1, 2, 10));
    receive(&mut host, us(1), 3, token(2, 2, 3));
    let mut next = |now| host.poll_transmit(now, 0).map(|packet| DcPim::line(&packet));
    let all: Vec<_> = [1, 1, 3, 5, 11, 11].into_iter().map(|now| next(us(now))).collect();
    let data = |line: &str| Some(format!("h0>h{line}"));
    assert_eq!(
        all,
        [
            data("4 p7 NOTIFY 4 of 100"),
            data("4 p6 DATA 4 0 +100 token 0"),
            data("3 p4 DATA 3 1 +1460 token 1"),
            // The second token of message 3 was valid until 4 us.
            data("2 p4 DATA 2 3 +1460 token 3"),
            data("1 p4 DATA 1 5 +1460 token 5"),
            None,
        ]
    );
}

/// docs/protocols/dcpim.md#dcpim-tokens: while the free packets of a short message arrive, the receiver sends no tokens.
#[test]
fn short_messages_hold_tokens_back() {
    let config = Config { prompt: false, ..config() };
    let mut host = host(&config);
    notify(&mut host, us(35), 1, 100);
    run(&mut host, us(40));
    receive(&mut host, us(45), 1, grant(4, 0));
    run(&mut host, us(79));
    sent(&mut host, us(79));
    receive(&mut host, us(79), 2, Body::Notify { message_length: 10 * 1_460, free: 10 });
    let first = until(&mut host, us(119)).into_iter().find(|(_, line)| line.contains("TOKEN"));
    // Ten packets take 12.3 us.
    assert_eq!(first, Some((91, "h0>h1 p7 TOKEN 1 0 for 0 p2".to_owned())));
}

/// docs/protocols/dcpim.md#dcpim-tokens: a window of tokens is unused at most; then one each time the window's timeout expires.
#[test]
fn a_sender_that_uses_no_tokens_gets_a_window_of_them() {
    let config = Config { prompt: false, ..config() };
    let mut host = host(&config);
    notify(&mut host, us(35), 1, 1_000);
    run(&mut host, us(40));
    receive(&mut host, us(45), 1, grant(2, 0));
    run(&mut host, us(79));
    sent(&mut host, us(79));
    let tokens = until(&mut host, us(119)).into_iter().filter(|(_, line)| line.contains("TOKEN"));
    let tokens: Vec<u64> = tokens.map(|(us, _)| us).collect();
    let window = config.window(2) as usize + 1;
    let gaps: Vec<u64> = tokens.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps[..window - 1].iter().all(|gap| *gap <= 3), "{tokens:?}");
    let timeout = config.window_timeout.as_us();
    assert!(
        gaps[window - 1..].iter().all(|gap| gap.abs_diff(timeout) <= 1),
        "{tokens:?} {timeout}"
    );
    assert!(tokens.len() > window, "{tokens:?}");
}

/// With more senders than requests fit into a round, all are asked in turn.
#[test]
fn many_senders_are_asked_in_turn() {
    let config = Config { requests_per_round: 8, ..config() };
    let mut host = host(&config);
    for n in 1..=20 {
        notify(&mut host, us(35), n, 100);
    }
    let mut asked = Vec::new();
    for (now, line) in until(&mut host, us(60)) {
        let peer: u32 = line.split(['>', ' ']).nth(1).unwrap()[1..].parse().unwrap();
        asked.push((now, peer));
    }
    let expected = (0..24).map(|n| (40 + n / 8 * 10, n as u32 % 20 + 1));
    assert_eq!(asked, expected.collect::<Vec<_>>());
}

/// A released channel carries no more tokens, and can be matched with another sender.
#[test]
fn released_channels_are_free() {
    let config = Config { prompt: false, ..config() };
    let mut host = host(&config);
    notify(&mut host, us(35), 1, 100);
    notify(&mut host, us(35), 2, 100);
    run(&mut host, us(40));
    receive(&mut host, us(45), 1, grant(4, 0));
    run(&mut host, us(50));
    sent(&mut host, us(50));
    receive(
        &mut host,
        us(55),
        1,
        Body::Release { epoch: 1, channels: Channels { total: 3, prompt: 0 } },
    );
    // Message 1 has a channel for 8 of its 100 packets.
    assert_eq!(
        until(&mut host, us(60)),
        [
            (60, "h0>h1 p7 RTS 1 missing 100 3+0".to_owned()),
            (60, "h0>h2 p7 RTS 2 missing 100 3+0".to_owned()),
        ]
    );
    // A release of another epoch, or of a host without a match, has no effect.
    receive(
        &mut host,
        us(61),
        1,
        Body::Release { epoch: 0, channels: Channels { total: 1, prompt: 0 } },
    );
    receive(
        &mut host,
        us(61),
        2,
        Body::Release { epoch: 1, channels: Channels { total: 1, prompt: 0 } },
    );
    receive(&mut host, us(65), 2, grant(3, 0));
    assert_eq!(until(&mut host, us(70)), [(70, "h0>h2 p7 ACCEPT 2 epoch 1 of 7 3+0".to_owned())]);
    let tokens = until(&mut host, us(100));
    let of = |host: &str| {
        tokens.iter().filter(|(_, line)| line.contains(&format!("{host} p7 TOKEN"))).count()
    };
    // One channel and three, until the windows of tokens are full.
    assert_eq!(
        (of("h0>h1"), of("h0>h2")),
        (config.window(1) as usize + 1, config.window(3) as usize + 1)
    );
}

/// Packets of any kind at any time leave counts consistent.
#[test]
fn any_order_of_the_matchings_packets_is_consistent() {
    let mut rng = Rng::stream(1, 0, 0, "dcpim");
    for skew in [0, 100] {
        let config = Config { clock_skew: Span::from_us(skew), ..config() };
        let mut host = host(&config);
        let mut now = us(0);
        for n in 1..=6 {
            send(&mut host, now, n, 5_000);
        }
        for n in 11..=16 {
            notify(&mut host, now, n, 5_000);
        }
        for _ in 0..20_000 {
            now += Span::from_ns(rng.below(4_000));
            let channels = |rng: &mut Rng| (rng.below(6) as u8, rng.below(6) as u8);
            let (total, prompt) = channels(&mut rng);
            let epoch = (now.since(Time::ZERO).ticks() / config.epoch.ticks()) as u32;
            let epoch = epoch.wrapping_sub(rng.below(3) as u32);
            let channels = Channels { total, prompt };
            match rng.below(4) {
                0 => receive(
                    &mut host,
                    now,
                    1 + rng.below(6),
                    rts(rng.below(100) as u32, total, prompt),
                ),
                1 => receive(&mut host, now, 1 + rng.below(6), accept(epoch, total, prompt)),
                2 => receive(&mut host, now, 11 + rng.below(6), grant(total, prompt)),
                _ => receive(&mut host, now, 11 + rng.below(6), Body::Release { epoch, channels }),
            }
            host.check_bounds();
            for line in sent(&mut host, now) {
                assert!(!line.contains(" 0+"), "nothing is offered, accepted or released: {line}");
            }
        }
        // Each message is with a host that is alive, so none has failed.
        assert_eq!(host.exchanges_under_way(), 12);
    }
}
