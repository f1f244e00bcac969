//! `rackweave reduce allreduce worker`.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use miette::miette;
use rackweave_lab::report::number;
use rackweave_reduce::{AllReduce, AllReduceConfig, AllReduceReport, Element, ReduceError, digest};

use super::super::output::Sink;
use super::super::worker::{master_at, waiting};
use super::super::{ended, failed};
use super::args::{TypeArg, WorkerArgs};
use crate::shell::signal::Interrupt;
use crate::shell::{escaped, events, exit, status};

pub(super) fn worker(args: &WorkerArgs) -> miette::Result<u8> {
    match args.kind {
        TypeArg::I64 => add::<i64>(args),
        TypeArg::F32 => add::<f32>(args),
    }
}

fn add<T: Element>(args: &WorkerArgs) -> miette::Result<u8> {
    let master = master_at(&args.master, args.overlay, args.bind)?;
    let stop = Interrupt::watch()?;
    let sink = match Sink::open(args.output.out.as_deref()) {
        Ok(sink) => sink,
        Err(why) => return ended(&why),
    };
    // What a user names and cannot be read is wrong usage: nothing was sent.
    let mut vector = stop.ends_during(|| read::<T>(&args.file))?;
    let config = AllReduceConfig {
        master,
        job: args.job.number,
        digest: digest(&vector),
        patience: args.job.patience,
        ..AllReduceConfig::new(args.worker, SocketAddr::from(([127, 0, 0, 1], 0)))
    };
    if !args.output.quiet {
        status(&format!("read {} values\n", number::grouped(vector.len() as u64)));
    }
    let place = escaped(&sink.place());
    match sum(config, &mut vector, sink, Arc::clone(stop.flag()), args) {
        Ok(shown) => shown,
        Err(Failed::Job(ReduceError::Over { digest })) if is_there::<T>(args, digest) => {
            if !args.output.quiet {
                status(&format!("{place} has the sum already\n"));
            }
            show(&AllReduceReport::default(), args)
        }
        Err(Failed::Job(error)) => failed(&error),
        Err(Failed::Output(why)) => ended(&why),
        Err(Failed::Named(error)) => {
            status(&format!(
                "note: {place} has the sum; whether the other workers have it is not known\n"
            ));
            failed(&error)
        }
    }
}

/// Whether the file for the result is the one that an earlier process of this worker has named.
fn is_there<T: Element>(args: &WorkerArgs, expected: Option<u64>) -> bool {
    let path = args.output.out.as_deref().filter(|path| path.is_file());
    let values = path.and_then(|path| read::<T>(path).ok());
    values.is_some_and(|values| expected == Some(digest(&values)))
}

/// Why a worker does not end well.
enum Failed {
    Job(ReduceError),
    Output(String),
    /// The result has its name, and the job does not end.
    Named(ReduceError),
}

impl From<ReduceError> for Failed {
    fn from(error: ReduceError) -> Self {
        Self::Job(error)
    }
}

/// Replaces a vector by the sum, and writes it.
fn sum<T: Element>(
    config: AllReduceConfig,
    vector: &mut [T],
    mut sink: Sink,
    stop: Arc<AtomicBool>,
    args: &WorkerArgs,
) -> Result<miette::Result<u8>, Failed> {
    let report = &mut |waits| waiting(waits, &args.master, args.worker, args.output.quiet);
    let mut group = AllReduce::<T>::join_and_report(config, vector.len(), stop, report)?;
    if group.steps() != 1 {
        let why = format!("the job adds up {} vectors, and a worker has one file", group.steps());
        return Err(ReduceError::Config(why).into());
    }
    if !args.output.quiet {
        status("all workers have joined\n");
    }
    group.allreduce(vector)?;
    let write = |out: &mut dyn Write| write(out, vector);
    let place = escaped(&sink.place());
    let say = |text: &str| {
        if !args.output.quiet {
            status(text);
        }
    };
    // The file is whole before any is named, and the job goes on until all are: until then this worker can be started again.
    sink.prepare(write).map_err(Failed::Output)?;
    say("the sum is whole: waiting until all workers have it\n");
    group.commit()?;
    sink.finish(write).map_err(Failed::Output)?;
    say(&format!("{place} has the sum: waiting until all workers say so\n"));
    group.finish_after(|report| show(&report, args)).map_err(Failed::Named)
}

fn read<T: Element>(path: &Path) -> miette::Result<Vec<T>> {
    let shown = escaped(&path.display().to_string());
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        rackweave_linux::sys::standard_input().and_then(|mut input| input.read_to_end(&mut bytes))
    } else {
        File::open(path).and_then(|mut file| file.read_to_end(&mut bytes))
    };
    read.map_err(|error| miette!("cannot read {shown}: {error}"))?;
    let (len, each) = (bytes.len(), T::BYTES);
    if len == 0 {
        return Err(miette!("{shown} is empty: a vector has at least one value"));
    }
    if !len.is_multiple_of(each) {
        return Err(miette!("{shown} has {len} bytes, which are not whole values of {each} bytes"));
    }
    Ok(bytes.chunks_exact(each).map(T::from_le).collect())
}

fn write<T: Element>(out: &mut dyn Write, vector: &[T]) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, out);
    let mut bytes = Vec::new();
    for values in vector.chunks(8_192) {
        bytes.clear();
        values.iter().for_each(|value| value.put_le(&mut bytes));
        out.write_all(&bytes)?;
    }
    out.flush()
}

fn show(report: &AllReduceReport, args: &WorkerArgs) -> miette::Result<u8> {
    let AllReduceReport { chunks, retransmitted, restarts, received_bytes, .. } = *report;
    if args.output.json {
        let document = serde_json::json!({
            "worker": args.worker,
            "chunks": chunks,
            "retransmitted": retransmitted,
            "restarts": restarts,
            "received_bytes": received_bytes,
        });
        return events::emit("result", document);
    }
    if !args.output.quiet {
        status(&format!(
            "all workers have the sum; {chunks} chunks, {retransmitted} of them sent again\n"
        ));
    }
    Ok(exit::DONE)
}
