//! `rackweave reduce worker`.

use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use miette::miette;
use rackweave_core::HostId;
use rackweave_disk::container;
use rackweave_reduce::words::{Input, Piece, Split, WordsError, files, words};
use rackweave_reduce::{
    Attachment, Encoder, MasterAt, Waits, WorkerConfig, WorkerReport, lines, run_worker,
};

use super::failed;
use super::hosts_args::{OverlayArgs, WorkerArgs, address};
use super::master::attachment;
use crate::shell::signal::Interrupt;
use crate::shell::{escaped, events, exit, status};

pub(super) fn worker(args: &WorkerArgs) -> miette::Result<u8> {
    let config = config(args)?;
    let stop = Interrupt::watch()?;
    let mut pairs = Encoder::new(args.job.operator.into());
    // Nothing has been sent yet.
    let read = stop.ends_during(|| match &args.pairs {
        Some(path) => read_pairs(path, args.complete, stop.flag(), &mut pairs),
        None => Ok(files(&args.paths).and_then(|files| {
            count(
                files.into_iter().map(Input::whole),
                args.words.split.into(),
                stop.flag(),
                &mut pairs,
            )
        })),
    })?;
    match read {
        Ok(()) => {}
        Err(WordsError::Interrupted) => {
            status("interrupted\n");
            return Ok(exit::INTERRUPTED);
        }
        // What a user names and cannot be read is wrong usage: nothing was sent.
        Err(error) => return Err(miette!("{}", escaped(&error.to_string()))),
    }
    if !args.quiet {
        let (added, keys) = (pairs.added(), pairs.len());
        let what = if args.pairs.is_some() { "pairs" } else { "words" };
        status(&format!("read {added} {what} with {keys} keys\n"));
    }
    let report = &mut |waits| waiting(waits, &args.master, args.worker, args.quiet);
    match run_worker(config, pairs, stop.flag(), report) {
        Ok(report) => {
            show(&report, args)?;
            Ok(exit::DONE)
        }
        Err(error) => failed(&error),
    }
}

/// Says what a worker waits for.
pub(super) fn waiting(waits: Waits, master: &str, worker: u8, quiet: bool) {
    let text = match waits {
        _ if quiet => return,
        Waits::Master => {
            format!("waiting for the master at {} to take worker {worker}\n", escaped(master))
        }
        Waits::Workers => "waiting for other workers to join\n".to_owned(),
        Waits::Result => "waiting for the master to write the result\n".to_owned(),
    };
    status(&text);
}

fn show(report: &WorkerReport, args: &WorkerArgs) -> miette::Result<u8> {
    let WorkerReport { pairs, packets, retransmitted, restarts } = *report;
    if args.json {
        let document = serde_json::json!({
            "worker": args.worker,
            "pairs": pairs,
            "packets": packets,
            "retransmitted": retransmitted,
            "restarts": restarts,
        });
        return events::emit("result", document);
    }
    if !args.quiet {
        status(&format!(
            "the master has the sums of all {pairs} pairs; {packets} packets, {retransmitted} of them sent again\n"
        ));
    }
    Ok(exit::DONE)
}

/// Counts the words of pieces.
pub(super) fn count(
    pieces: impl IntoIterator<Item = Piece>,
    split: Split,
    stop: &AtomicBool,
    pairs: &mut Encoder,
) -> Result<(), WordsError> {
    pieces.into_iter().try_for_each(|piece| words(&piece, split, stop, |word| pairs.add(word, 1)))
}

/// Reads pairs from a file or standard input.
fn read_pairs(
    path: &Path,
    is_ended: bool,
    stop: &AtomicBool,
    pairs: &mut Encoder,
) -> miette::Result<Result<(), WordsError>> {
    let shown = escaped(&path.display().to_string());
    let add = |key: &[u8], value| pairs.add(key, value);
    let read = if path == Path::new("-") {
        let input = rackweave_linux::sys::standard_input()
            .map_err(|error| miette!("cannot read standard input: {error}"))?;
        lines::read_lines(BufReader::with_capacity(1 << 20, input), is_ended, add)
    } else {
        let failed = |error| miette!("cannot read {shown}: {error}");
        let file = File::open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        let other = if about.is_file() { container(&file, about.len()) } else { Ok(None) };
        if let Some(other) = other.map_err(failed)? {
            return Err(miette!("{shown} is {}: pairs are lines of text", other.name));
        }
        lines::read_lines(BufReader::with_capacity(1 << 20, file), is_ended, add)
    };
    if stop.load(Ordering::Relaxed) {
        return Ok(Err(WordsError::Interrupted));
    }
    match read {
        Ok(()) => Ok(Ok(())),
        Err((line, error)) if error.kind() == ErrorKind::InvalidData => {
            Err(miette!("{shown}:{line}: {error}"))
        }
        Err((_, error)) => Err(miette!("cannot read {shown}: {error}")),
    }
}

fn config(args: &WorkerArgs) -> miette::Result<WorkerConfig> {
    let master = master_at(&args.master, args.overlay, args.bind)?;
    let (job, patience) = (args.job.number, args.job.patience);
    let of_number = WorkerConfig::new(args.worker, SocketAddr::from(([127, 0, 0, 1], 0)));
    Ok(WorkerConfig { master, job, patience, ..of_number })
}

/// How a worker reaches its master.
pub(super) fn master_at(
    text: &str,
    overlay: OverlayArgs,
    bind: Option<SocketAddr>,
) -> miette::Result<MasterAt> {
    if let Some(Attachment::Overlay { port, me }) = attachment(overlay)? {
        let number = text.parse::<u32>().ok().filter(|number| *number < 1 << 24);
        let master = number.ok_or_else(|| {
            miette!("--master {text}: with --overlay, the number of the master's host")
        })?;
        return Ok(MasterAt::Overlay { master: HostId(master), port, me });
    }
    if text.parse::<u32>().is_ok() {
        return Err(miette!("--master {text}: the number of a host needs --overlay"));
    }
    let master = address(text).map_err(|error| miette!("--master: {error}"))?;
    let any = || if master.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let any = || any().parse::<SocketAddr>().map_err(|error| miette!("{error}"));
    Ok(MasterAt::Udp { master, bind: bind.map_or_else(any, Ok)? })
}
