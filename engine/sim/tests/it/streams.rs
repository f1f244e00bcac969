//! Messages on streams over the real transports, with applications that take time.

use std::num::NonZeroU16;

use rackweave_core::{HostId, Rate, Span, Time};
use rackweave_sim::config::{Fault, FaultKind, FaultPlace, RunConfig};
use rackweave_sim::result::Outcome;
use rackweave_sim::{BuildError, Control, run};
use rackweave_transport::{TransportConfig, phost};
use rackweave_workload::{
    Application, Exchange, LoadCounts, Pattern, SizeDist, StreamMode, Streaming,
};

use crate::common::{LEAF_SPINE, config, cubic, dctcp, fabric, homa, rpc, run_to_completion};

const APPLICATION: Application = Application {
    copy_rate: Some(Rate::from_gbps(20)),
    per_message: Span::from_us(1),
    per_rpc: Span::from_us(2),
};

fn sizes() -> SizeDist {
    SizeDist::uniform(1, 60_000).unwrap()
}

fn streams(transport: TransportConfig, mode: StreamMode, exchange: Exchange) -> RunConfig {
    let pattern = Pattern::OpenLoop { sizes: sizes(), load: 0.3, counts: LoadCounts::Payload };
    let mut stream = rpc(transport, pattern, exchange);
    stream.workload.streaming = Some(Streaming { mode, per_pair: NonZeroU16::MIN });
    stream.workload.application = APPLICATION;
    let mut config = config(fabric(LEAF_SPINE), vec![stream]);
    config.measure.messages = 2000;
    config
}

/// All transports, with each mode in which they can carry streams.
fn all() -> Vec<(&'static str, TransportConfig, StreamMode)> {
    let transports =
        [("homa", homa(&fabric(LEAF_SPINE), &sizes())), ("dctcp", dctcp()), ("tcp", cubic())];
    let both = transports.into_iter().flat_map(|(name, transport)| {
        [StreamMode::Unary, StreamMode::OneId].map(|mode| (name, transport.clone(), mode))
    });
    both.filter(|(_, transport, mode)| *mode == StreamMode::Unary || transport.has_streams())
        .collect()
}

#[test]
fn streams_over_lossy_links_deliver_all_in_order() {
    for (name, transport, mode) in all() {
        for exchange in [Exchange::OneWay, Exchange::Echo] {
            let mut config = streams(transport.clone(), mode, exchange);
            let (from, until, place) = (Time::ZERO, Time::MAX, FaultPlace::AllLinks);
            let delay = Span::from_us(30);
            config.faults = [
                FaultKind::Loss(0.003),
                FaultKind::Corruption(0.001),
                FaultKind::Duplication(0.01),
                FaultKind::Reordering { probability: 0.01, delay },
            ]
            .map(|kind| Fault { from, until, place, kind })
            .to_vec();
            let result = run_to_completion(&config);
            assert!(result.verified_messages >= 2000);
            let mut last = std::collections::BTreeMap::new();
            for message in &result.messages {
                let Outcome::Completed(at) = message.outcome else {
                    panic!("{name} {mode:?} {exchange:?}: {message:?}");
                };
                let before = last.insert((message.src, message.dst), at);
                assert!(before <= Some(at), "{name} {mode:?} {exchange:?}: out of order");
            }
        }
    }
}

/// A host crashes and restarts: its messages and those sent to it arrive, or fail with a reason.
#[test]
fn crashes_leave_no_message_in_between() {
    for (name, transport, mode) in all() {
        for exchange in [Exchange::OneWay, Exchange::Echo] {
            for kind in [FaultKind::Crash, FaultKind::Pause] {
                let mut config = streams(transport.clone(), mode, exchange);
                let ms = |n| Time::ZERO + Span::from_ms(n);
                let place = FaultPlace::Host(HostId(3));
                config.faults = vec![Fault { from: ms(1), until: ms(3), place, kind }];
                let result = run_to_completion(&config);
                let case = format!("{name} {mode:?} {exchange:?} {kind:?}");
                let is_failed = |outcome| matches!(outcome, Outcome::Failed(_));
                let failed = result.messages.iter().filter(|m| is_failed(m.outcome));
                for message in failed {
                    assert_eq!(kind, FaultKind::Crash, "{case}: {message:?}");
                    let touches = message.src == HostId(3) || message.dst == HostId(3);
                    assert!(touches, "{case}: {message:?}");
                }
            }
        }
    }
}

#[test]
fn the_same_run_gives_the_same_result() {
    for (name, transport, mode) in all() {
        let config = streams(transport, mode, Exchange::Echo);
        let (one, two) = (run_to_completion(&config), run_to_completion(&config));
        assert_eq!(one.messages, two.messages, "{name} {mode:?}");
        assert_eq!(one.counters, two.counters, "{name} {mode:?}");
    }
}

#[test]
fn streams_over_a_transport_without_are_refused() {
    let phost =
        TransportConfig::PHost(std::sync::Arc::new(phost::Config::paper(Rate::from_gbps(10))));
    let config = streams(phost, StreamMode::OneId, Exchange::Echo);
    let error = run(&config, &Control::default()).unwrap_err();
    assert_eq!(error, BuildError::NoSuchExchange { stream: 0 });
}
