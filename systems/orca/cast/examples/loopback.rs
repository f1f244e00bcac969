//! What a key costs. Sends a file of some MiB to some receivers over loopback, in turns without and with a key, and
//! prints how long each cast takes. Then it prints what BLAKE3 takes by length, and what copying to a place in memory
//! and hashing there takes: at once in pieces, or later, when the bytes have left the cache.
//! `cargo run --release -p rackweave-cast --example loopback -- 512 4 3`

use std::error::Error;
use std::hint::black_box;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rackweave_cast::orca::{Accept, Decision, Engine, EngineConfig, EngineEvent};
use rackweave_cast::sink::{PipeSink, Sink};
use rackweave_cast::source::Files;
use rackweave_cast::store::Cancel;
use rackweave_core::Span;
use rackweave_orca::flow::{FlowConfig, ReceiverStatus};
use rackweave_orca::host::Spread;

fn config(secret: Option<&[u8]>) -> Result<EngineConfig, Box<dyn Error>> {
    let config = EngineConfig::new("127.0.0.1:0".parse()?);
    Ok(EngineConfig { secret: secret.map(<[u8]>::to_vec), ..config })
}

/// A receiver in a thread of its own, which discards what it has received.
struct Receiver {
    address: SocketAddr,
    thread: JoinHandle<io::Result<()>>,
    waker: rackweave_cast::Waker,
}

fn receiver(secret: Option<&[u8]>, stop: &Arc<AtomicBool>) -> Result<Receiver, Box<dyn Error>> {
    let accept: Accept = Box::new(|_| {
        let make = |_: &Cancel| Ok(Box::new(PipeSink::new(io::sink())) as Box<dyn Sink>);
        Decision::Accept(Box::new(make))
    });
    let mut engine = Engine::new(config(secret)?, Some(accept))?;
    let (address, waker, stop) = (engine.local_addr(), engine.waker(), Arc::clone(stop));
    let thread = std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let until = engine.turn()?;
            while engine.poll_event().is_some() {}
            engine.wait(until)?;
        }
        Ok(())
    });
    Ok(Receiver { address, thread, waker })
}

/// Sends a file to receivers that are started for it; returns how long it took.
fn cast(path: &Path, count: usize, secret: Option<&[u8]>) -> Result<Span, Box<dyn Error>> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut receivers = Vec::new();
    for _ in 0..count {
        receivers.push(receiver(secret, &stop)?);
    }
    let mut engine = Engine::new(config(secret)?, None)?;
    let hosts: Vec<_> = receivers.iter().map(|it| engine.add_peer(it.address)).collect();
    let files = Box::new(Files::new(&[path.to_owned()])?);
    let began = engine.clock().now();
    engine.open(files, &hosts, Spread::Unicast, FlowConfig::default())?;
    let (took, view) = 'sent: loop {
        let until = engine.turn()?;
        while let Some(event) = engine.poll_event() {
            if let EngineEvent::Sent { view, .. } = event {
                break 'sent (engine.clock().now().since(began), view);
            }
        }
        engine.wait(until)?;
    };
    let complete = |it: &&_| -> bool {
        let it: &rackweave_cast::orca::ReceiverProgress = it;
        it.status == ReceiverStatus::Completed
    };
    let completed = view.receivers.iter().filter(complete).count();
    stop.store(true, Ordering::Relaxed);
    for receiver in receivers {
        receiver.waker.wake();
        receiver.thread.join().map_err(|_| "a receiver panicked")??;
    }
    if completed == count { Ok(took) } else { Err(format!("{completed} complete").into()) }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|it| it.parse::<usize>());
    let mib = numbers.next().transpose()?.unwrap_or(512);
    let count = numbers.next().transpose()?.unwrap_or(4);
    let runs = numbers.next().transpose()?.unwrap_or(3);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file");
    let mut content = vec![0; mib << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut content);
    std::fs::write(&path, &content)?;
    for _ in 0..runs {
        let without = cast(&path, count, None)?;
        let with = cast(&path, count, Some(b"the key of an example"))?;
        println!(
            "{mib} MiB to {count}: {:.3} s without a key, {:.3} s with one",
            without.as_secs_f64(),
            with.as_secs_f64()
        );
    }
    hashing(&content);
    Ok(())
}

/// Prints microseconds for each MiB.
fn hashing(content: &[u8]) {
    let clock = rackweave_linux::Clock::start();
    let mib = content.len() as f64 / f64::from(1 << 20);
    let timed = |work: &mut dyn FnMut()| {
        let began = clock.now();
        work();
        clock.now().since(began).as_secs_f64() * 1e6 / mib
    };
    for (length, name) in [(1 << 20, "1 MiB"), (64 << 10, "64 KiB"), (1408, "a packet, 1408 bytes")]
    {
        let us = timed(&mut || {
            content.chunks(length).for_each(|block| {
                black_box(blake3::hash(block));
            });
        });
        println!("BLAKE3 of {name}: {us:.0} us/MiB");
    }
    let mut place = vec![1; content.len()];
    for (length, name) in [(64 << 10, "64 KiB"), (1 << 20, "1 MiB"), (64 << 20, "64 MiB")] {
        let us = timed(&mut || {
            for (from, to) in content.chunks(length).zip(place.chunks_mut(length)) {
                to.copy_from_slice(from);
                to.chunks(1 << 20).for_each(|block| {
                    black_box(blake3::hash(block));
                });
            }
        });
        println!("copied {name} at a time, and then hashed: {us:.0} us/MiB");
    }
}
