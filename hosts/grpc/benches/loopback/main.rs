//! Compares short calls and bulk transfer over loopback in one table, for all systems that one would consider.
//!
//! `cargo bench -p rackweave-grpc --bench loopback -- [ROW]... [--seconds S] [--link-gbps G] [--json]
//! [--outstanding N,N...] [--threads N]`
//!
//! With `--outstanding`, only short calls are measured, with each of these numbers of outstanding calls.
//!
//! Client and server are two processes with one thread each (or a multi-thread runtime of `--threads`), the same for all
//! rows. The server of a row is another
//! process of this program, which also reports how much CPU time it has used.

#[path = "../../examples/services/mod.rs"]
mod services;

mod rows;
mod server;
mod sweep;

use std::future::Future;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use rows::{Row, Session};
use serde_json::{Value, json};
use tokio::time::Instant;

/// An error of any kind, which ends the row.
type Error = Box<dyn std::error::Error + Send + Sync>;

/// The length in bytes of a short request, and of its response.
const SHORT: usize = 100;
/// The number of outstanding short calls when the peak rate is measured.
const OUTSTANDING: usize = 64;
/// The length in bytes of a long request, and of its response.
const LONG: usize = 1 << 20;
/// The number of outstanding long calls.
const LONG_OUTSTANDING: usize = 8;
/// The length in bytes of the pieces of the bulk stream.
const PIECE: usize = 64 << 10;

#[derive(Clone, Debug)]
struct Options {
    rows: Vec<Row>,
    time: Duration,
    link_gbps: u64,
    json: bool,
    /// The numbers of outstanding calls of a sweep; the usual table if it is empty.
    outstanding: Vec<usize>,
    /// The worker threads of each side; 0: a current-thread runtime.
    threads: usize,
}

fn options() -> Result<Options, Error> {
    let mut options = Options {
        rows: Vec::new(),
        time: Duration::from_secs(3),
        link_gbps: 40,
        json: false,
        outstanding: Vec::new(),
        threads: 0,
    };
    let mut benched = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--bench" => benched = true,
            "--json" => options.json = true,
            "--seconds" => options.time = Duration::from_secs_f64(value()?.parse()?),
            "--link-gbps" => options.link_gbps = value()?.parse()?,
            "--threads" => options.threads = value()?.parse()?,
            "--outstanding" => {
                let numbers = value()?.split(',').map(str::parse).collect::<Result<_, _>>();
                options.outstanding = numbers?;
            }
            name => options.rows.push(Row::named(name)?),
        }
    }
    if options.rows.is_empty() {
        options.rows = Row::ALL.to_vec();
    }
    // When run as a test (`cargo test --benches`), the program only shows that it works.
    if !benched {
        options.time = Duration::from_millis(100);
    }
    Ok(options)
}

fn runtime(threads: usize) -> std::io::Result<tokio::runtime::Runtime> {
    if threads == 0 {
        return tokio::runtime::Builder::new_current_thread().enable_all().build();
    }
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()
}

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some("--serve") {
        let mut next = || args.next().ok_or("an argument is missing");
        let (row, link, threads) = (next()?, next()?, next()?);
        return runtime(threads.parse()?)?
            .block_on(server::serve(Row::named(&row)?, link.parse()?));
    }
    let options = options()?;
    if !options.outstanding.is_empty() {
        return sweep::run(&options);
    }
    let mut results = Vec::new();
    if !options.json {
        println!("{HEAD}");
    }
    for &row in &options.rows {
        let result = runtime(options.threads)?.block_on(measure(row, &options));
        let result = result.unwrap_or_else(|error| json!({ "error": error.to_string() }));
        if !options.json {
            println!("{}", line(row, &result));
        }
        results.push(json!({ "row": row.name(), "what": row.what(), "result": result }));
    }
    if options.json {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let document = json!({
            "cores": cores,
            "seconds": options.time.as_secs_f64(),
            "link_gbps": options.link_gbps,
            "rows": results,
        });
        println!("{document:#}");
    }
    Ok(())
}

/// A server process and its control pipes.
struct Served {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Served {
    /// Starts a server, and waits until it prints its address.
    fn start(row: Row, options: &Options) -> Result<(Self, String), Error> {
        let (link, threads) = (options.link_gbps.to_string(), options.threads.to_string());
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--serve", row.name(), &link, &threads])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let ask = child.stdin.take().ok_or("no stdin")?;
        let answers = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let mut served = Self { child, ask, answers };
        let place = served.answer()?;
        Ok((served, place))
    }

    fn answer(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.is_empty() {
            return Err("the server has ended".into());
        }
        Ok(line.trim_end().to_owned())
    }

    fn cpu(&mut self) -> Result<Cpu, Error> {
        self.ask.write_all(b"cpu\n")?;
        let answer = self.answer()?;
        let (used, waited) = answer.split_once(' ').ok_or("not two numbers")?;
        Ok(Cpu { used: used.parse()?, waited: waited.parse()? })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time of this process in nanoseconds: the user and system time of all threads, and the time for which the main
/// thread, which does the work, waited while other processes had the core.
#[derive(Clone, Copy, Debug)]
struct Cpu {
    used: u64,
    waited: u64,
}

impl Cpu {
    fn now() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        // The value is the second number; a kernel without schedstat does not provide it.
        let waited = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
        let waited = waited.split_whitespace().nth(1).and_then(|ns| ns.parse().ok());
        Self {
            used: time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64,
            waited: waited.unwrap_or(0),
        }
    }

    fn since(self, before: Self) -> (f64, f64) {
        let seconds = |now: u64, before: u64| now.saturating_sub(before) as f64 * 1e-9;
        (seconds(self.used, before.used), seconds(self.waited, before.waited))
    }
}

/// The CPU time of both sides during a measurement.
struct Spent {
    wall: f64,
    client: f64,
    server: f64,
    /// The share of the time for which each side waited for a core.
    client_waited: f64,
    server_waited: f64,
}

impl Spent {
    async fn during<T>(
        served: &mut Served,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<(T, Self), Error> {
        let (server, client, began) = (served.cpu()?, Cpu::now(), Instant::now());
        let result = tokio::time::timeout(Duration::from_secs(120), work);
        let result = result.await.map_err(|_| "not done after 120 s")??;
        let wall = began.elapsed().as_secs_f64();
        let (client, client_waited) = Cpu::now().since(client);
        let (server, server_waited) = served.cpu()?.since(server);
        Ok((result, Self { wall, client, server, client_waited, server_waited }))
    }

    /// Returns what limits the result. Each side has one thread: a side that is busy for more than nine tenths of the
    /// time, including the time for which it waited for a core, is the limit. "cores" means that the machine was busy
    /// with other work.
    fn limit(&self) -> &'static str {
        let busy = |used: f64, waited: f64| (used + waited) / self.wall > 0.9;
        let client = busy(self.client, self.client_waited);
        let server = busy(self.server, self.server_waited);
        if self.client_waited + self.server_waited > 0.2 * self.wall {
            return "cores (busy)";
        }
        match (client, server) {
            (true, true) => "both threads",
            (true, false) => "client thread",
            (false, true) => "server thread",
            (false, false) if self.client + self.server > 0.9 * self.wall => "both, in turn",
            (false, false) => "waiting",
        }
    }

    fn json(&self) -> Value {
        json!({
            "wall_s": self.wall,
            "client_cpu_s": self.client,
            "server_cpu_s": self.server,
            "client_waited_for_core_s": self.client_waited,
            "server_waited_for_core_s": self.server_waited,
            "limit": self.limit(),
        })
    }
}

async fn measure(row: Row, options: &Options) -> Result<Value, Error> {
    let (mut served, place) = Served::start(row, options)?;
    let session = Session::open(row, &place, options.link_gbps).await?;
    let short = Bytes::from(vec![7; SHORT]);

    let warm_up = options.time / 4;
    calls(&session, &short, 1, warm_up).await?;
    let (mut latencies, unloaded) =
        Spent::during(&mut served, latencies(&session, &short, options.time)).await?;
    latencies.sort_unstable();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];

    calls(&session, &short, OUTSTANDING, warm_up).await?;
    let (peak, loaded) =
        Spent::during(&mut served, calls(&session, &short, OUTSTANDING, options.time)).await?;

    let long = Bytes::from(vec![7; LONG]);
    let (longs, long_spent) =
        Spent::during(&mut served, calls(&session, &long, LONG_OUTSTANDING, options.time)).await?;
    let long_bytes = longs as f64 * LONG as f64;

    let bulk = if session.has_streams() {
        let (bytes, spent) = Spent::during(&mut served, session.bulk(options.time)).await?;
        let bytes = bytes as f64;
        json!({
            "gbps": bytes * 8e-9 / spent.wall,
            "cpu_s_per_gb": (spent.client + spent.server) / bytes * 1e9,
            "spent": spent.json(),
        })
    } else {
        Value::Null
    };
    Ok(json!({
        "unloaded": {
            "calls": latencies.len(),
            "p50_us": at(0.5).as_secs_f64() * 1e6,
            "p99_us": at(0.99).as_secs_f64() * 1e6,
            "cpu_us_per_call": (unloaded.client + unloaded.server) * 1e6 / latencies.len() as f64,
            "spent": unloaded.json(),
        },
        "peak": {
            "calls_per_s": peak as f64 / loaded.wall,
            "cpu_us_per_call": (loaded.client + loaded.server) * 1e6 / peak as f64,
            "spent": loaded.json(),
        },
        "long_calls": {
            "gbps_each_way": long_bytes * 8e-9 / long_spent.wall,
            "cpu_s_per_gb": (long_spent.client + long_spent.server) / (2.0 * long_bytes) * 1e9,
            "spent": long_spent.json(),
        },
        "bulk": bulk,
    }))
}

/// Makes calls one after the other, and returns their latencies.
async fn latencies(
    session: &Session,
    bytes: &Bytes,
    time: Duration,
) -> Result<Vec<Duration>, Error> {
    let mut caller = session.caller().await?;
    let mut latencies = Vec::with_capacity(1 << 18);
    let end = Instant::now() + time;
    loop {
        let began = Instant::now();
        if began > end {
            return Ok(latencies);
        }
        check(bytes, &caller.call(bytes.clone()).await?)?;
        latencies.push(began.elapsed());
    }
}

/// Keeps a number of calls outstanding, and returns how many were answered.
async fn calls(
    session: &Session,
    bytes: &Bytes,
    outstanding: usize,
    time: Duration,
) -> Result<u64, Error> {
    let mut tasks = tokio::task::JoinSet::new();
    let end = Instant::now() + time;
    for _ in 0..outstanding {
        let mut caller = session.caller().await?;
        let bytes = bytes.clone();
        tasks.spawn(async move {
            let mut calls = 0;
            while calls == 0 || Instant::now() < end {
                check(&bytes, &caller.call(bytes.clone()).await?)?;
                calls += 1;
            }
            Ok::<u64, Error>(calls)
        });
    }
    let mut sum = 0;
    while let Some(calls) = tasks.join_next().await {
        sum += calls??;
    }
    Ok(sum)
}

/// Checks that a response is the echo of its request, since a wrong echo could be faster.
fn check(sent: &Bytes, got: &Bytes) -> Result<(), Error> {
    let same = sent.len() == got.len() && sent.first() == got.first() && sent.last() == got.last();
    if same {
        Ok(())
    } else {
        Err(format!("{} bytes came back of {}", got.len(), sent.len()).into())
    }
}

const HEAD: &str = "                      | one call, 100 B |  64 calls at a time, 100 B       | 8 calls of 1 MB    | one stream, bulk\n\
 row                  | p50 us   p99 us |  calls/s  us CPU  limit          | Gbps/way  CPU s/GB |  Gbps  CPU s/GB  limit";

fn line(row: Row, result: &Value) -> String {
    if let Some(error) = result["error"].as_str() {
        return format!(" {:<20} | {error}", row.what());
    }
    let number = |at: &str| result.pointer(at).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let text = |at: &str| result.pointer(at).and_then(Value::as_str).unwrap_or("-").to_owned();
    let bulk = if result["bulk"].is_null() {
        "no streams".to_owned()
    } else {
        let limit = text("/bulk/spent/limit");
        format!("{:>5.2}  {:>8.2}  {limit}", number("/bulk/gbps"), number("/bulk/cpu_s_per_gb"))
    };
    format!(
        " {:<20} | {:>6.1}  {:>7.1} | {:>8.0}  {:>6.1}  {:<14} | {:>8.2}  {:>8.2} | {bulk}",
        row.what(),
        number("/unloaded/p50_us"),
        number("/unloaded/p99_us"),
        number("/peak/calls_per_s"),
        number("/peak/cpu_us_per_call"),
        text("/peak/spent/limit"),
        number("/long_calls/gbps_each_way"),
        number("/long_calls/cpu_s_per_gb"),
    )
}
