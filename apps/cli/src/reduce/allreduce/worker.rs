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
use super::super::worker::master_at;
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
    match sum(config, &mut vector, sink, Arc::clone(stop.flag()), args.output.quiet) {
        Ok(report) => show(&report, args),
        Err(Failed::Job(error)) => failed(&error),
        Err(Failed::Output(why)) => ended(&why),
    }
}

/// Why there is no sum.
enum Failed {
    Job(ReduceError),
    Output(String),
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
    quiet: bool,
) -> Result<AllReduceReport, Failed> {
    let mut group = AllReduce::<T>::join(config, vector.len(), stop)?;
    if group.steps() != 1 {
        let why = format!("the job adds up {} vectors, and a worker has one file", group.steps());
        return Err(ReduceError::Config(why).into());
    }
    if !quiet {
        status("all workers have joined\n");
    }
    group.allreduce(vector)?;
    let write = |out: &mut dyn Write| write(out, vector);
    // The file is whole before the others are allowed to end: until then this worker can be started again.
    sink.prepare(write).map_err(Failed::Output)?;
    let report = group.finish()?;
    sink.finish(write).map_err(Failed::Output)?;
    Ok(report)
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
