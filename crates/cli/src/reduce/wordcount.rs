//! `rackweave reduce wordcount`: all hosts of a job in one process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use miette::miette;
use rackweave_core::{Bytes, Destination, HostId, Rate, Span};
use rackweave_lab::systems::{ProgramName, ProgramOptions};
use rackweave_linux::switch::{Control, Edge, Switch, SwitchConfig};
use rackweave_reduce::words::{Piece, Split, WordsError, divide, files};
use rackweave_reduce::{
    Aggregation, Attachment, Encoder, Master, MasterAt, MasterConfig, Operator, ReduceError,
    WorkerConfig, run_worker,
};

use super::hosts_args::WordCountArgs;
use super::master::{finish, show};
use super::output::Sink;
use super::worker::count;
use super::{ended, interrupted, status};
use crate::switch::args::LinkArgs;
use crate::switch::{one_switch, with_program};
use crate::{escaped, exit};

/// The rate of a link between threads; faster ones would be paced by the processor anyway.
const LINK: Rate = Rate::from_gbps(10);
const LOOPBACK: [u8; 4] = [127, 0, 0, 1];

pub(super) fn wordcount(args: &WordCountArgs) -> miette::Result<u8> {
    let stop = interrupted()?;
    let files = files(&args.paths).map_err(|error| miette!("{}", escaped(&error.to_string())))?;
    let sink = match Sink::open(args.output.out.as_deref()) {
        Ok(sink) => sink,
        Err(why) => return ended(&why),
    };
    let pieces = divide(&files, args.workers);
    let switch = if args.no_switch { None } else { Some(Local::start(args)?) };
    let any = SocketAddr::from((LOOPBACK, 0));
    let attachment = |host: usize| match &switch {
        Some(switch) => Attachment::Overlay { port: switch.ports[host], me: HostId(host as u32) },
        None => Attachment::Udp(any),
    };
    let wanted = Aggregation::new(Destination::Switch(0).address(), args.slots);
    let config = MasterConfig {
        attachment: attachment(0),
        aggregation: switch.is_some().then_some(wanted),
        // Workers join when they have read their parts, however long that takes.
        join_within: Span::from_secs(1_000_000),
        ..MasterConfig::new(any, args.workers)
    };
    let master = match Master::bind(config) {
        Ok(master) => master,
        Err(error) => return ended(&error.to_string()),
    };
    let at = master.local_addr();
    let quiet = args.output.quiet;
    let split = args.words.split.into();
    // If one ends early, the others need not go on.
    let over = AtomicBool::new(false);
    let (result, read) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..)
            .zip(pieces)
            .map(|(number, pieces)| {
                let place = attachment(usize::from(number) + 1);
                let over = &over;
                scope.spawn(move || work(number, pieces, split, place, at, over))
            })
            .collect();
        let watched = scope.spawn(|| watch(&stop, &over));
        let result = master.run(&over, &mut |event| show(&event, quiet));
        over.store(true, Ordering::Relaxed);
        let read: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        let _ = watched.join();
        (result, read)
    });
    drop(switch);
    for worker in read {
        match worker {
            Ok(Err(Trouble::Words(WordsError::Interrupted))) | Ok(Ok(())) => {}
            Ok(Err(Trouble::Words(error))) => return ended(&escaped(&error.to_string())),
            Ok(Err(Trouble::Reduce(error))) if result.is_err() => {
                if !matches!(error, ReduceError::Interrupted | ReduceError::Refused { .. }) {
                    return ended(&error.to_string());
                }
            }
            // The master has all sums, whatever a worker has heard of it.
            Ok(Err(Trouble::Reduce(_))) => {}
            Err(_) => return ended("a worker has failed: this is an error in Rackweave"),
        }
    }
    match result {
        Ok(outcome) => finish(&outcome, sink, &args.output, args.workers),
        Err(ReduceError::Interrupted) => {
            status("interrupted\n");
            Ok(exit::INTERRUPTED)
        }
        Err(error) => ended(&error.to_string()),
    }
}

/// Why a worker has ended early.
enum Trouble {
    Words(WordsError),
    Reduce(ReduceError),
}

/// A worker: reads its part of the text, and sends its pairs.
fn work(
    number: u8,
    pieces: Vec<Piece>,
    split: Split,
    place: Attachment,
    master: SocketAddr,
    over: &AtomicBool,
) -> Result<(), Trouble> {
    let mut pairs = Encoder::new(Operator::Sum);
    if let Err(error) = count(pieces, split, over, &mut pairs) {
        over.store(true, Ordering::Relaxed);
        return Err(Trouble::Words(error));
    }
    let master = match place {
        Attachment::Overlay { port, me } => MasterAt::Overlay { master: HostId(0), port, me },
        Attachment::Udp(bind) => MasterAt::Udp { master, bind },
    };
    let config =
        WorkerConfig { master, ..WorkerConfig::new(number, SocketAddr::from((LOOPBACK, 0))) };
    run_worker(config, pairs, over).map_err(Trouble::Reduce)?;
    Ok(())
}

/// Passes Ctrl-C on to all hosts.
fn watch(stop: &AtomicBool, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        if stop.load(Ordering::Relaxed) {
            over.store(true, Ordering::Relaxed);
        }
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
}

/// A switch in a thread of this process.
struct Local {
    ports: Vec<SocketAddr>,
    control: Arc<Control>,
    running: Option<JoinHandle<()>>,
}

impl Local {
    /// Starts a switch with a port for the master and for each worker.
    fn start(args: &WordCountArgs) -> miette::Result<Self> {
        let hosts = u32::from(args.workers) + 1;
        let links = LinkArgs::of(LINK, Bytes(4 << 20));
        let edge = |_| Edge::Udp { bind: SocketAddr::from((LOOPBACK, 0)), host: None };
        let config = SwitchConfig::new(one_switch(hosts, &links), (0..hosts).map(edge).collect());
        let options = ProgramOptions { slots: Some(args.slots), ..ProgramOptions::default() };
        let config = with_program(config, ProgramName::Reduce, options, None)?;
        let mut switch = Switch::new(config).map_err(|error| miette!("{error}"))?;
        let ports = switch.udp_ports().into_iter().flatten().collect();
        let control = Arc::new(Control::default());
        let shared = Arc::clone(&control);
        // If it fails, the master goes on without it, and says so.
        let running = std::thread::spawn(move || drop(switch.run(&shared)));
        Ok(Self { ports, control, running: Some(running) })
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.control.stop.store(true, Ordering::Relaxed);
        if let Some(running) = self.running.take() {
            let _ = running.join();
        }
    }
}
