//! Traces: parsing, order, and invalid input.

use proptest::prelude::*;
use rackweave_core::{HostId, Span, Time};
use rackweave_workload::{
    Generator, LineProblem, Pattern, Trace, TraceEntry, TraceError, WorkloadConfig, WorkloadError,
};

const HEADER: &str = "time_us,source,destination,bytes\n";

fn entry(at: Span, src: u32, dst: u32, bytes: u64) -> TraceEntry {
    TraceEntry { at, src: HostId(src), dst: HostId(dst), bytes }
}

#[test]
fn reads_and_sorts() {
    let text = "# from two hosts\r\nbytes,time_us,source,destination,comment\r\n\
                100,2.5,0,1,late\r\n200,0.000001,3,1,early\r\n300,2.5,1,0,\r\n400,1e1,0,2";
    let trace = Trace::from_csv(text).unwrap();
    let expected = [
        entry(Span::from_ps(1), 3, 1, 200),
        entry(Span::from_ns(2500), 0, 1, 100),
        entry(Span::from_ns(2500), 1, 0, 300),
        entry(Span::from_us(10), 0, 2, 400),
    ];
    assert_eq!(trace.entries(), expected);
}

#[test]
fn other_units_of_time() {
    for (unit, at) in [("ps", 7), ("ns", 7_000), ("ms", 7_000_000_000), ("s", 7_000_000_000_000)] {
        let text = format!("time_{unit},source,destination,bytes\n7,0,1,5\n");
        assert_eq!(Trace::from_csv(text).unwrap().entries(), [entry(Span::from_ps(at), 0, 1, 5)]);
    }
}

#[test]
fn faults_name_the_line() {
    let time = "it must be a time from 0 to 100 days";
    for (rows, message) in [
        ("x,0,1,5\n", format!("line 2: `x` is not a value for `time_us`: {time}")),
        ("1,0,1,5\n\n# c\n-1,0,1,5\n", format!("line 5: `-1` is not a value for `time_us`: {time}")),
        ("inf,0,1,5\n", format!("line 2: `inf` is not a value for `time_us`: {time}")),
        ("1e300,0,1,5\n", format!("line 2: `1e300` is not a value for `time_us`: {time}")),
        ("1,0,1\n", "line 2: there is no value for `bytes`".into()),
        ("1,0,1,0\n", "line 2: `0` is not a value for `bytes`: it must be a whole number of bytes from 1 to 2^40".into()),
        ("1,0,0,5\n", "line 2: host 0 sends to itself".into()),
        ("1,0,4294967296,5\n", "line 2: `4294967296` is not a value for `destination`: it must be the number of a host, from 0".into()),
        ("1;0;1;5\n", "line 2: `1;0;1;5` is not a value for `time_us`: it must be a time from 0 to 100 days".into()),
    ] {
        let error = Trace::from_csv(format!("{HEADER}{rows}")).unwrap_err();
        assert_eq!(error.to_string(), message, "{rows:?}");
    }
    for (text, message) in [
        ("", "the trace has no messages"),
        (HEADER, "the trace has no messages"),
        (
            "time,source,destination,bytes\n",
            "line 1: the header has no column `time_us`; it must have time_us,source,destination,bytes",
        ),
        (
            "\ntime_ns,src,destination,bytes\n",
            "line 2: the header has no column `source`; it must have time_us,source,destination,bytes",
        ),
    ] {
        assert_eq!(Trace::from_csv(text).unwrap_err().to_string(), message, "{text:?}");
    }
    let binary = Trace::from_csv(b"\x7fELF\x02\x01\x01\xff\xfe\x00\x00");
    assert_eq!(binary, Err(TraceError::Line { line: 1, problem: LineProblem::NotText }));
    let itself = Trace::new(vec![entry(Span::from_ps(0), 2, 2, 1)]);
    assert_eq!(itself.unwrap_err().to_string(), "message 0 of the trace: host 2 sends to itself");
}

#[test]
fn unknown_hosts_are_found_when_hosts_are_known() {
    let trace = Trace::from_csv(format!("{HEADER}1,0,1,5\n0,9,1,5\n2,1,9,5\n")).unwrap();
    let config = WorkloadConfig::new(Pattern::Trace(trace));
    assert!(Generator::new(&config, 10, None, 1, 0, 0).is_ok());
    let error = Generator::new(&config, 9, None, 1, 0, 0).unwrap_err();
    assert_eq!(error.to_string(), "line 3: host 9 does not exist: the fabric has hosts 0 to 8");
}

#[test]
fn replays_each_host_in_order() {
    let entries = vec![
        entry(Span::from_ps(50), 1, 0, 1),
        entry(Span::from_ps(10), 0, 1, 2),
        entry(Span::from_ps(30), 1, 2, 3),
        entry(Span::from_ps(90), 1, 2, 4),
    ];
    let mut config = WorkloadConfig::new(Pattern::Trace(Trace::new(entries).unwrap()));
    config.start = Span::from_ps(1000);
    config.stop = Span::from_ps(1060);
    let mut generator = Generator::new(&config, 3, None, 1, 0, 0).unwrap();
    assert_eq!(generator.total(), Some(3));
    let mut replay = |host| {
        let next = || generator.next(HostId(host)).map(|m| (m.at, m.dst.0, m.bytes));
        std::iter::from_fn(next).collect::<Vec<_>>()
    };
    assert_eq!(replay(1), [(Time::from_ps(1030), 2, 3), (Time::from_ps(1050), 0, 1)]);
    assert_eq!(replay(0), [(Time::from_ps(1010), 1, 2)]);
    assert_eq!(replay(2), []);
    config.senders = Some(0..1);
    assert_eq!(
        Generator::new(&config, 3, None, 1, 0, 0).unwrap_err(),
        WorkloadError::NotApplicable { what: "senders", pattern: "trace" }
    );
}

#[test]
fn a_huge_trace_is_read() {
    let mut text = String::from(HEADER);
    for i in 0..200_000_u32 {
        text += &format!("{}.5,{},{},{}\n", 200_000 - i, i % 7, 7 + i % 3, 1 + i);
    }
    let trace = Trace::from_csv(&text).unwrap();
    assert_eq!(trace.entries().len(), 200_000);
    assert!(trace.entries().is_sorted_by_key(|entry| entry.at));
    text += "oops,0,1,5\n";
    let error = Trace::from_csv(&text).unwrap_err().to_string();
    assert!(error.starts_with("line 200002: `oops`"), "{error}");
    // One long line must not cause an equally long error message.
    let error = Trace::from_csv(format!("{HEADER}{}", "9".repeat(3 << 20))).unwrap_err();
    assert!(error.to_string().len() < 200, "{error}");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Trace::from_csv(&bytes);
        let mut with_header = HEADER.as_bytes().to_vec();
        with_header.extend(&bytes);
        let _ = Trace::from_csv(&with_header);
    }

    #[test]
    fn near_misses_are_read_or_refused(text in "([0-9]{1,3}|-|\"|#|1e9|,|,|,|\r|\n){0,60}") {
        let _ = Trace::from_csv(format!("{HEADER}{text}"));
    }

    #[test]
    fn what_was_written_is_read(
        rows in proptest::collection::vec((0_u64..1 << 50, 0_u32..50, 50_u32..99, 1_u64..1 << 40), 1..50),
    ) {
        let mut text = String::from("time_ps,source,destination,bytes\n");
        let mut entries = Vec::new();
        for (at, src, dst, bytes) in rows {
            text += &format!("{at},{src},{dst},{bytes}\n");
            entries.push(entry(Span::from_ps(at), src, dst, bytes));
        }
        let (read, made) = (Trace::from_csv(text).unwrap(), Trace::new(entries).unwrap());
        prop_assert_eq!(read.entries(), made.entries());
    }
}
