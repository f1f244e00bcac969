//! Streams: dialogues packet by packet, flow control, priorities, failures.

use std::fmt::Write as _;

use rackweave_core::{MessageId, Span, Time};
use rackweave_wire::homa::stream::{Stream, UNSCHEDULED, flags};

use super::{Config, Host, LINK, at, events, id, network, trace};
use crate::testkit::Network;

/// A packet's own part as text. Tags depend on the time and are left out.
pub(super) fn write_line(
    text: &mut String,
    message: MessageId,
    stream: &Stream,
) -> std::fmt::Result {
    let names = |bits: u8| {
        let names = [
            (flags::END, " end"),
            (flags::END_RECEIVED, " end-received"),
            (flags::ASK, " ask"),
            (flags::OPENING, " opening"),
            (flags::AGAIN, " again"),
        ];
        names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect::<String>()
    };
    let level = |priority| match priority {
        UNSCHEDULED => String::new(),
        level => format!(" at p{level}"),
    };
    match *stream {
        Stream::Data { offset, len, written, credit, flags, .. } => {
            let end = offset.wrapping_add(u32::from(len));
            write!(text, "STREAM {message} {offset}..{end} of {written}{}", names(flags))?;
            write!(text, ", received {}", credit.received)
        }
        Stream::Credit { credit, flags, .. } => {
            write!(text, "CREDIT {message} ..{}{}", credit.allowed, level(credit.priority))?;
            write!(text, "{}, received {}", names(flags), credit.received)
        }
        Stream::Missing { offset, length, .. } => {
            write!(text, "MISSING {message} {offset}..{}", offset.wrapping_add(length))
        }
        Stream::Reset { reason, .. } => write!(text, "RESET {message} {reason:?}"),
    }
}

fn paper() -> Config {
    Config::sigcomm18(LINK, 10_000)
}

fn open(network: &mut Network<Host>, n: u64) {
    network.open(0, 1, id(n), Time::MAX).expect("taken");
}

fn write(network: &mut Network<Host>, from: u32, n: MessageId, bytes: u64, end: bool) {
    network.write(from, 1 - from, n, bytes, end).expect("taken");
}

#[test]
fn a_unary_rpc_is_a_stream_that_is_written_once_each_way() {
    let mut network = network(&paper(), 2, Span::from_us(1));
    open(&mut network, 1);
    write(&mut network, 0, id(1), 100, true);
    network.run_until(at(Span::from_us(10)));
    assert_eq!(trace(&mut network), ["h0>h1 p7 STREAM 1 0..100 of 100 end opening, received 0"]);
    assert_eq!(
        events(&mut network),
        [
            "h1: Opened { peer: HostId(0), id: MessageId(2) }",
            "h1: Readable { peer: HostId(0), id: MessageId(2), bytes: 100, end: true }",
        ]
    );
    write(&mut network, 1, id(1).response(), 2000, true);
    assert!(network.run_until(at(Span::from_ms(10))));
    assert_eq!(
        trace(&mut network),
        [
            "h1>h0 p6 STREAM 1r 0..1442 of 2000 end end-received, received 100",
            "h1>h0 p6 STREAM 1r 1442..2000 of 2000 end end-received, received 100",
            "h0>h1 p7 CREDIT 1 ..10094 end-received, received 2000",
        ]
    );
    assert_eq!(
        events(&mut network),
        [
            "h0: Acked { peer: HostId(1), id: MessageId(2), bytes: 100 }",
            "h0: Readable { peer: HostId(1), id: MessageId(3), bytes: 1442, end: false }",
            "h0: Readable { peer: HostId(1), id: MessageId(3), bytes: 558, end: true }",
            "h0: Closed { peer: HostId(1), id: MessageId(2) }",
            "h1: Acked { peer: HostId(0), id: MessageId(3), bytes: 2000 }",
            "h1: Closed { peer: HostId(0), id: MessageId(2) }",
        ]
    );
    assert!(network.hosts.iter().all(Host::is_idle));
}

mod chaos {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::{Config, Host, LINK, paper};
    use crate::common::stream_chaos::{run, schedules};

    const WINDOW: u32 = 50_000;

    fn survives(
        schedule: &crate::common::stream_chaos::Schedule,
        mut config: Config,
    ) -> Result<(), TestCaseError> {
        config.streams.window_bytes = WINDOW;
        config.streams.ping_ticks = 50;
        let config = Arc::new(config);
        run(schedule, |id| Host::new(id, Arc::clone(&config)), Host::is_idle, Host::check_bounds)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn any_schedule_as_in_the_paper(schedule in schedules(WINDOW.into())) {
            survives(&schedule, paper())?;
        }

        #[test]
        fn any_schedule_as_on_linux(schedule in schedules(WINDOW.into())) {
            survives(&schedule, Config::linux(LINK))?;
        }
    }
}
