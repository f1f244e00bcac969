//! Output: `cp_node`'s lines, its dump, and the summary.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use hdrhistogram::Histogram;
use rackweave_core::Bytes;
use serde_json::{Value, json};

use crate::config::{BenchConfig, Load, Mode};
use crate::measure::{Interval, Summary};
use crate::server::Served;

/// The first line of a dump, as `cp_node dump_times` writes it.
pub const DUMP_HEADER: &str = "# Length   RTT (usec)\n";

/// Returns a line of a dump: a request's length, and its round trip.
#[must_use]
pub fn dump_row(len: u64, rtt_ns: u64) -> String {
    format!("{len:8} {:12.2}\n", rtt_ns as f64 / 1e3)
}

fn us(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e3
}

fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// Returns `cp_node`'s line of clients, followed by lines about problems.
#[must_use]
pub fn clients_line(name: &str, interval: &Interval) -> String {
    let seconds = interval.span.as_secs_f64();
    let gbps = |bytes: u64| per_second(bytes, seconds) * 8e-9;
    let calls = interval.calls();
    let mut text = format!(
        "{name} clients: {:.2} Kops/sec, {:.2} Gbps out, {:.2} Gbps in, RTT (us) P50 {:.2} P99 {:.2} P99.9 {:.2}, \
         avg. req. length {:.1} bytes\n",
        per_second(calls, seconds) / 1e3,
        gbps(interval.bytes_out),
        gbps(interval.bytes_in),
        us(&interval.rtt_ns, 0.5),
        us(&interval.rtt_ns, 0.99),
        us(&interval.rtt_ns, 0.999),
        interval.bytes_out as f64 / calls.max(1) as f64,
    );
    // Smaller values are the resolution at which threads wake up.
    if interval.lag_ns > 1_000_000 {
        let _ = writeln!(text, "  Lag due to overload: {:.1} ms", interval.lag_ns as f64 / 1e6);
    }
    if interval.backed_up > 0 {
        let (backed_up, sent) = (interval.backed_up, interval.sent);
        let share = 100.0 * backed_up as f64 / sent.max(1) as f64;
        let _ = writeln!(text, "  Backed-up sends: {backed_up}/{sent} ({share:.1}%)");
    }
    if interval.outstanding > 0 {
        let _ = writeln!(text, "  Outstanding client RPCs: {}", interval.outstanding);
    }
    for (reason, count) in &interval.failures {
        let _ = writeln!(text, "  Failed ({reason}): {count}");
    }
    text
}

/// Returns the line of streams.
#[must_use]
pub fn stream_line(name: &str, interval: &Interval) -> String {
    let gbps = per_second(interval.bytes_out, interval.span.as_secs_f64()) * 8e-9;
    format!("{name} streams: {gbps:.2} Gbps out, {} in all\n", Bytes(interval.bytes_out))
}

/// Returns `cp_node`'s line of servers.
#[must_use]
pub fn servers_line(name: &str, before: Served, now: Served, seconds: f64) -> String {
    let rate = |now: u64, before: u64| per_second(now - before, seconds);
    let mut text = format!(
        "{name} servers: {:.2} Kops/sec, {:.2} Gbps in, {:.2} Gbps out\n",
        rate(now.requests, before.requests) / 1e3,
        rate(now.bytes_in, before.bytes_in) * 8e-9,
        rate(now.bytes_out, before.bytes_out) * 8e-9,
    );
    if now.failed > before.failed {
        let _ = writeln!(text, "  Failed: {}", now.failed - before.failed);
    }
    text
}

fn group_name(most: u64) -> String {
    if most == u64::MAX { "longer".into() } else { format!("up to {}", Bytes(most)) }
}

/// Returns the summary as text.
#[must_use]
pub fn summary(config: &BenchConfig, summary: &Summary) -> String {
    let all = &summary.all;
    let name = config.setup.name();
    let mut text = String::from("\n");
    text += &if config.mode == Mode::Stream {
        stream_line(name, all)
    } else {
        clients_line(name, &Interval { lag_ns: 0, outstanding: 0, ..all.clone() })
    };
    if config.mode != Mode::Stream {
        let _ = writeln!(
            text,
            "{} calls in {:.2} s, {} failed",
            all.calls(),
            all.span.as_secs_f64(),
            all.failures.values().sum::<u64>()
        );
        if let Some((took, early)) = summary.first {
            let before = if early { ", sent before the handshake" } else { "" };
            let _ = writeln!(text, "first call (a greeting): {:.1} us{before}", took.as_us_f64());
        }
        if let Load::Open { .. } = config.load {
            let _ = writeln!(
                text,
                "latency from when requests were due (us): P50 {:.2} P99 {:.2} P99.9 {:.2}",
                us(&all.latency_ns, 0.5),
                us(&all.latency_ns, 0.99),
                us(&all.latency_ns, 0.999)
            );
        }
        let _ = writeln!(
            text,
            "\n{:>14} {:>10} {:>12} {:>12} {:>12}",
            "length", "calls", "P50 us", "P99 us", "max us"
        );
        for (most, histogram) in &summary.groups {
            let _ = writeln!(
                text,
                "{:>14} {:>10} {:>12.2} {:>12.2} {:>12.2}",
                group_name(*most),
                histogram.len(),
                us(histogram, 0.5),
                us(histogram, 0.99),
                histogram.max() as f64 / 1e3
            );
        }
    }
    for digests in &summary.digests {
        let verdict = if digests.sent == digests.back { "as sent" } else { "NOT as sent" };
        let _ = writeln!(
            text,
            "\nBLAKE3 of {}: {verdict}\n  sent {}\n  back {}",
            Bytes(digests.bytes),
            digests.sent,
            digests.back
        );
    }
    if all.rows_lost > 0 {
        let _ = writeln!(text, "\nThe dump lacks {} round trips: too many at once.", all.rows_lost);
    }
    text
}

fn distribution(histogram: &Histogram<u64>) -> Value {
    json!({
        "min": histogram.min() as f64 / 1e3,
        "mean": histogram.mean() / 1e3,
        "p50": us(histogram, 0.5),
        "p99": us(histogram, 0.99),
        "p999": us(histogram, 0.999),
        "max": histogram.max() as f64 / 1e3,
    })
}

/// Returns the summary as JSON.
#[must_use]
pub fn to_json(config: &BenchConfig, summary: &Summary) -> Value {
    let all = &summary.all;
    let seconds = all.span.as_secs_f64();
    let gbps = |bytes: u64| per_second(bytes, seconds) * 8e-9;
    let by_size: Vec<Value> = summary
        .groups
        .iter()
        .map(|(most, histogram)| {
            let most = (*most != u64::MAX).then_some(*most);
            json!({ "max_bytes": most, "calls": histogram.len(), "rtt_us": distribution(histogram) })
        })
        .collect();
    let digests: Vec<Value> = summary
        .digests
        .iter()
        .map(
            |digests| json!({ "bytes": digests.bytes, "sent": digests.sent, "back": digests.back }),
        )
        .collect();
    let failed: BTreeMap<String, u64> =
        all.failures.iter().map(|(reason, count)| (reason.to_string(), *count)).collect();
    let (load, gbps_asked) = match config.load {
        Load::Closed => ("closed", None),
        Load::Open { gbps } => ("open", Some(gbps)),
        Load::Unloaded { .. } => ("unloaded", None),
    };
    json!({
        "transport": config.setup.name(),
        "servers": config.servers,
        "mode": match config.mode { Mode::Echo => "echo", Mode::OneWay => "one-way", Mode::Stream => "stream" },
        "workload": (config.mode != Mode::Stream).then(|| config.sizes.name()),
        "load": load,
        "gbps_asked": gbps_asked,
        "ports": config.ports,
        "outstanding": config.outstanding,
        "wall_s": seconds,
        "calls": all.calls(),
        "failed": failed,
        "kops": per_second(all.calls(), seconds) / 1e3,
        "bytes_out": all.bytes_out,
        "bytes_in": all.bytes_in,
        "gbps_out": gbps(all.bytes_out),
        "gbps_in": gbps(all.bytes_in),
        "goodput_gbps": gbps(all.payload()),
        "rtt_us": distribution(&all.rtt_ns),
        "latency_us": distribution(&all.latency_ns),
        "first_call_us": summary.first.map(|(took, _)| took.as_us_f64()),
        "first_call_early": summary.first.is_some_and(|(_, early)| early),
        "by_size": by_size,
        "lag_ms": all.lag_ns as f64 / 1e6,
        "backed_up": all.backed_up,
        "corrupt": summary.corrupt,
        "blake3": digests,
        "errors": summary.troubles.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "good": summary.is_good(),
        "peak_rss_bytes": summary.peak_rss_bytes,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rackweave_core::{FailReason, HostId, Span, Time};
    use rackweave_workload::app::{MessageEnd, MessageStart};

    use super::*;
    use crate::measure::Ended;

    #[test]
    fn a_dump_is_written_as_cp_node_does() {
        let text: String =
            [(100, 23_456), (1_000_000, 12_345_678)].map(|row| dump_row(row.0, row.1)).concat();
        let expected = "     100        23.46\n 1000000     12345.68\n";
        assert_eq!(text, expected);
        assert_eq!(DUMP_HEADER, "# Length   RTT (usec)\n");
    }

    #[test]
    fn the_line_is_cp_nodes() {
        let mut interval = Interval { span: Duration::from_secs(2), ..Interval::default() };
        let (src, dst) = (HostId(0), HostId(1));
        // Due 10 us before it was sent, and answered 25 us after that.
        let start = MessageStart { stream: 0, src, dst, bytes: 500_000, at: Time::ZERO };
        let (sent, at) = (Time::ZERO + Span::from_us(10), Time::ZERO + Span::from_us(35));
        let answered = Ended { start, sent, at, end: MessageEnd::Completed, response: 100 };
        for _ in 0..4000 {
            interval.ended(&answered, false);
        }
        let line = clients_line("homa", &interval);
        let expected = "homa clients: 2.00 Kops/sec, 8.00 Gbps out, 0.00 Gbps in, RTT (us) P50 25.01 P99 25.01 \
                        P99.9 25.01, avg. req. length 500000.0 bytes\n";
        assert_eq!(line, expected);
        assert_eq!(us(&interval.latency_ns, 0.5).round(), 35.0);
        assert_eq!(interval.payload(), 4000 * 500_100);
        let end = MessageEnd::Failed(FailReason::PeerSilent);
        interval.ended(&Ended { end, ..answered }, false);
        assert_eq!(interval.calls(), 4000);
        interval.backed_up = 10;
        interval.sent = 4000;
        let line = clients_line("homa", &interval);
        assert!(line.ends_with("  Backed-up sends: 10/4000 (0.2%)\n  Failed (peer silent): 1\n"));
    }
}
