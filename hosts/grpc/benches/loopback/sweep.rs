//! Short calls with several numbers of them outstanding: rate, CPU time and latency.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::rows::{Row, Session};
use crate::{Error, Options, SHORT, Served, Spent, check, runtime};

const HEAD: &str =
    " row                  | outstanding |  calls/s  us CPU | p50 us   p99 us  p99.9 us | limit";

/// Measures all rows with all numbers of outstanding calls, and prints a line for each.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let mut results = Vec::new();
    if !options.json {
        println!("{HEAD}");
    }
    for &row in &options.rows {
        for result in runtime(options.threads)?.block_on(measure(row, options))? {
            if !options.json {
                println!("{}", line(row, &result));
            }
            results.push(result);
        }
    }
    if options.json {
        println!("{:#}", Value::from(results));
    }
    Ok(())
}

async fn measure(row: Row, options: &Options) -> Result<Vec<Value>, Error> {
    let (mut served, place) = Served::start(row, options)?;
    let session = Session::open(row, &place, options.link_gbps).await?;
    let mut results = Vec::new();
    for &outstanding in &options.outstanding {
        calls(&session, outstanding, options.time / 4).await?;
        let work = calls(&session, outstanding, options.time);
        let (mut latencies, spent) = Spent::during(&mut served, work).await?;
        latencies.sort_unstable();
        let at = |share: f64| {
            let index = ((latencies.len() - 1) as f64 * share) as usize;
            latencies[index].as_secs_f64() * 1e6
        };
        let count = latencies.len() as f64;
        results.push(json!({
            "row": row.name(),
            "outstanding": outstanding,
            "calls": latencies.len(),
            "calls_per_s": count / spent.wall,
            "cpu_us_per_call": (spent.client + spent.server) * 1e6 / count,
            "p50_us": at(0.5),
            "p99_us": at(0.99),
            "p999_us": at(0.999),
            "spent": spent.json(),
        }));
    }
    Ok(results)
}

/// Keeps a number of short calls outstanding, and returns the latencies of all.
async fn calls(
    session: &Session,
    outstanding: usize,
    time: Duration,
) -> Result<Vec<Duration>, Error> {
    let mut tasks = tokio::task::JoinSet::new();
    let end = Instant::now() + time;
    for _ in 0..outstanding {
        let mut caller = session.caller().await?;
        let bytes = Bytes::from(vec![7; SHORT]);
        tasks.spawn(async move {
            let mut latencies = Vec::with_capacity(1 << 16);
            let mut began = Instant::now();
            while latencies.is_empty() || began < end {
                check(&bytes, &caller.call(bytes.clone()).await?)?;
                let now = Instant::now();
                latencies.push(now - began);
                began = now;
            }
            Ok::<_, Error>(latencies)
        });
    }
    let mut all = Vec::new();
    while let Some(latencies) = tasks.join_next().await {
        all.extend(latencies??);
    }
    Ok(all)
}

fn line(row: Row, result: &Value) -> String {
    let number = |name: &str| result[name].as_f64().unwrap_or(f64::NAN);
    format!(
        " {:<20} | {:>11} | {:>8.0}  {:>6.2} | {:>6.1}  {:>7.1}  {:>8.1} | {}",
        row.what(),
        number("outstanding"),
        number("calls_per_s"),
        number("cpu_us_per_call"),
        number("p50_us"),
        number("p99_us"),
        number("p999_us"),
        result["spent"]["limit"].as_str().unwrap_or("-"),
    )
}
