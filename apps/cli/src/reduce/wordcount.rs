//! `rackweave reduce wordcount`: all hosts of a job in one process.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use miette::miette;
use rackweave_core::{Destination, HostId, Span};
use rackweave_reduce::words::{Piece, Split, WordsError, divide, files, not_text};
use rackweave_reduce::{
    Aggregation, Attachment, Encoder, Master, MasterAt, MasterConfig, MasterEvent, MemberEvent,
    Operator, ReduceError, WorkerConfig, run_worker,
};

use super::hosts_args::WordCountArgs;
use super::local::{LOOPBACK, Local, watch};
use super::master::{conclude, show};
use super::output::Sink;
use super::worker::count;
use super::{ended, failed};
use crate::shell::escaped;
use crate::shell::signal::Interrupt;

pub(super) fn wordcount(args: &WordCountArgs) -> miette::Result<u8> {
    let stop = Interrupt::watch()?;
    let files = files(&args.paths).map_err(|error| miette!("{}", escaped(&error.to_string())))?;
    let sink = match Sink::open(args.output.out.as_deref()) {
        Ok(sink) => sink,
        Err(why) => return ended(&why),
    };
    if !args.output.quiet {
        match (not_text(&files), files.len()) {
            (0, _) => {}
            (some, all) => crate::run::warn(&format!(
                "note: {some} of {all} files are no text (archives, programs): their bytes count as words"
            )),
        }
    }
    let pieces = divide(&files, args.workers);
    let switch = if args.no_switch {
        None
    } else {
        Some(Local::start(u32::from(args.workers) + 1, args.slots)?)
    };
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
        let watched = scope.spawn(|| watch(stop.flag(), &over));
        let result = master.run(&over, &mut |event| match &event {
            // They are threads that read.
            MasterEvent::Member(MemberEvent::Waiting { .. }) => {}
            event => show(event, quiet),
        });
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
        Ok(outcome) => match sink.write(&outcome.totals) {
            Ok(()) => conclude(&outcome, &args.output, args.workers),
            Err(why) => ended(&why),
        },
        Err(error) => failed(&error),
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
    run_worker(config, pairs, over, &mut |_| {}).map(|_| ()).map_err(|error| {
        // The master would wait for the worker.
        over.store(true, Ordering::Relaxed);
        Trouble::Reduce(error)
    })
}
