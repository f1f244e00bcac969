//! Short calls over tarpc (bincode over TCP), in the manner of `cargo bench -p rackweave-grpc --bench loopback`: two processes with one
//! thread each, an echo of 100 bytes, one call at a time and then 64, and the processor time of both.
//!
//! `cargo run --release --manifest-path bench/tarpc/Cargo.toml -- [SECONDS]`

use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, future};
use tarpc::server::{BaseChannel, Channel as _};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::{client, context, serde_transport};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BYTES: usize = 100;
const OUTSTANDING: usize = 64;

#[tarpc::service]
trait Echo {
    async fn echo(bytes: Vec<u8>) -> Vec<u8>;
}

#[derive(Clone)]
struct Server;

impl Echo for Server {
    async fn echo(self, _: context::Context, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }
}

/// Serves one connection after the other, and prints its processor time for each line of input.
async fn serve() -> Result<()> {
    let mut listener = serde_transport::tcp::listen("127.0.0.1:0", Bincode::default).await?;
    println!("{}", listener.local_addr());
    std::thread::spawn(|| {
        for _ in std::io::stdin().lines() {
            println!("{}", cpu_ns());
        }
    });
    while let Some(connection) = listener.next().await {
        let channel = BaseChannel::with_defaults(connection?);
        channel.execute(Server.serve()).for_each_concurrent(None, |call| call).await;
    }
    Ok(())
}

fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The server's process.
struct Served {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Served {
    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn cpu_ns(&mut self) -> Result<u64> {
        writeln!(self.ask)?;
        Ok(self.answer()?.parse()?)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes calls one after the other until `end`, and returns their latencies.
async fn calls(client: &EchoClient, end: Instant) -> Result<Vec<Duration>> {
    let mut latencies = Vec::with_capacity(1 << 18);
    loop {
        let began = Instant::now();
        if began > end {
            return Ok(latencies);
        }
        let bytes = client.echo(context::current(), vec![7; BYTES]).await?;
        assert_eq!(bytes, [7; BYTES]);
        latencies.push(began.elapsed());
    }
}

async fn measure(seconds: f64) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("--serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let ask = child.stdin.take().ok_or("no stdin")?;
    let answers = BufReader::new(child.stdout.take().ok_or("no stdout")?);
    let mut served = Served { child, ask, answers };
    let address = served.answer()?;
    let connection = serde_transport::tcp::connect(address, Bincode::default).await?;
    let client = EchoClient::new(client::Config::default(), connection).spawn();
    let time = Duration::from_secs_f64(seconds);

    calls(&client, Instant::now() + time / 4).await?;
    let mut latencies = calls(&client, Instant::now() + time).await?;
    latencies.sort_unstable();
    let us =
        |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;

    let many = async |time: Duration| -> Result<usize> {
        let end = Instant::now() + time;
        let all = future::try_join_all((0..OUTSTANDING).map(|_| calls(&client, end))).await?;
        Ok(all.iter().map(Vec::len).sum())
    };
    many(time / 4).await?;
    let (cpu, began) = (served.cpu_ns()? + cpu_ns(), Instant::now());
    let done = many(time).await?;
    let (wall, cpu) = (began.elapsed().as_secs_f64(), served.cpu_ns()? + cpu_ns() - cpu);
    println!(
        " {:<20} | {:>6.1}  {:>7.1} | {:>8.0}  {:>6.1}",
        "tarpc over TCP",
        us(0.5),
        us(0.99),
        done as f64 / wall,
        cpu as f64 / 1e3 / done as f64
    );
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("--serve") => serve().await,
        None => measure(3.0).await,
        Some(seconds) => measure(seconds.parse()?).await,
    }
}
