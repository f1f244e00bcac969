//! Regression tests for cases that once did not end: repetitions filled the queue in front of the receiver that needed
//! them, or data for which it had no room arrived before the data that it needed.

use rackweave_core::{Rate, Span, Time};

use super::super::network::{Action, App, Link, Network};
use super::super::{FlowConfig, SlowPolicy};

fn ms(n: u64) -> Time {
    Time::ZERO + Span::from_ms(n)
}

/// Asserts that all receivers finish within seconds, and that repetitions are limited to a small multiple of the
/// stream.
fn ends_soon(net: &mut Network) {
    net.run(ms(5000));
    for end in &net.ends {
        assert!(end.ended.is_some() && end.closed.is_some(), "{} bytes are here", end.read);
    }
    let source = &net.sources[0];
    let summary = source.machine.summary();
    let repaired = summary.repaired_all + summary.repaired_one;
    assert!(repaired < 8 * summary.sent, "{repaired} repaired of {}", summary.sent);
}

/// The sender's burst overflows short queues of slow links. Receivers track few gaps, and no receiver is detached.
#[test]
fn bursts_into_short_queues() {
    let config = FlowConfig {
        payload: 600,
        window: 697_295,
        slow: SlowPolicy::Wait,
        max_gaps: 5,
        ..FlowConfig::default()
    };
    let mut net = Network::new(11_854_642_749_415_275_119, 100, config);
    net.source(None);
    net.at(ms(36), Action::Offer(34_811));
    net.at(ms(51), Action::Offer(319_734));
    net.at(ms(95), Action::Offer(842_716));
    net.at(ms(96), Action::Finish);
    for (buffer, delay, room) in [(20_182, 37, 184_200), (35_672, 1478, 187_800)] {
        let link = Link { buffer, delay: Span::from_us(delay), ..Link::new(10) };
        let end = net.end(0, link, App { room, ..App::default() });
        net.invite(end);
    }
    ends_soon(&mut net);
}

/// A receiver that tracks few gaps.
#[test]
fn few_gaps() {
    let config = FlowConfig {
        payload: 112,
        window: 295_680,
        slow: SlowPolicy::Wait,
        max_gaps: 4,
        max_rate: Some(Rate(465_000_000)),
        ..FlowConfig::default()
    };
    let mut net = Network::new(14_123_147_416_762_741_616, 100, config);
    net.source(None);
    net.at(ms(0), Action::Offer(142_446));
    net.at(ms(1), Action::Finish);
    let link = Link {
        buffer: 20_000,
        delay: Span::from_us(1),
        lost: 28_079,
        twice: 55_135,
        late: 16_354,
        late_by: Span::from_ms(7),
        noise: Span::from_us(718),
        ..Link::new(10)
    };
    let end = net.end(0, link, App { room: 295_456, ..App::default() });
    net.invite(end);
    ends_soon(&mut net);
}
