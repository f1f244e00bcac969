//! `rackweave reduce allreduce master`.

use miette::miette;
use rackweave_lab::report::number;
use rackweave_reduce::{
    Attachment, ReduceError, VectorMaster, VectorMasterConfig, VectorMasterEvent, VectorStats,
};

use super::super::master::{attachment, numbers, of_members, switch};
use super::super::{ended, failed};
use super::args::MasterArgs;
use crate::shell::signal::Interrupt;
use crate::shell::{events, exit, status};

pub(super) fn master(args: &MasterArgs) -> miette::Result<u8> {
    let config = config(args)?;
    let stop = Interrupt::watch()?;
    let master = match VectorMaster::bind(config) {
        Ok(master) => master,
        Err(error @ ReduceError::Config(_)) => return Err(miette!("{error}")),
        Err(error) => return ended(&error.to_string()),
    };
    let (workers, job) = (config.workers, config.job);
    status(&format!("ready at {} for {workers} workers of job {job}\n", master.local_addr()));
    match master.run(stop.flag(), &mut |event| show(&event, args.quiet)) {
        Ok(stats) => {
            if args.json {
                events::emit("result", json(&stats, workers))?;
            } else if !args.quiet {
                status(&summary(&stats, workers));
            }
            Ok(exit::DONE)
        }
        Err(error) => failed(&error),
    }
}

fn config(args: &MasterArgs) -> miette::Result<VectorMasterConfig> {
    let attachment = attachment(args.overlay)?.unwrap_or(Attachment::Udp(args.listen));
    let switch = args.switch.as_deref().map(|text| switch(text, args.overlay)).transpose()?;
    Ok(VectorMasterConfig {
        attachment,
        job: args.job.number,
        switch,
        requires_switch: args.require_switch,
        chunk_bytes: args.pool.chunk,
        pool: args.pool.pool,
        patience: args.job.patience,
        join_within: args.wait,
        ..VectorMasterConfig::new(args.listen, args.workers)
    })
}

fn show(event: &VectorMasterEvent, quiet: bool) {
    let text = match event {
        // What the user should know even if nothing else is shown.
        VectorMasterEvent::WithoutSwitch(why) => {
            return status(&format!("note: {why}; the master adds up instead\n"));
        }
        VectorMasterEvent::Refused { worker, found, expected } => {
            return status(&format!(
                "note: worker {worker} is refused: it has {} values of type {}, and the first worker {} of type {}\n",
                found.length, found.format, expected.length, expected.format
            ));
        }
        VectorMasterEvent::Unnamed { workers, has_failed: true } => {
            return status(&format!(
                "note: {} {} not confirmed the result; the others have theirs\n",
                numbers(workers),
                if workers.len() == 1 { "has" } else { "have" },
            ));
        }
        _ if quiet => return,
        VectorMasterEvent::Member(event) => of_members(event),
        VectorMasterEvent::Started { shape, pool, switch } => {
            let by = switch.as_deref().unwrap_or("the master");
            let values = number::grouped(shape.length);
            format!(
                "started: {by} adds up {values} values of type {}, with {pool} chunks of each worker in flight\n",
                shape.format
            )
        }
        VectorMasterEvent::Replaced { worker } => {
            format!("worker {worker} has been replaced: the vector begins again\n")
        }
        VectorMasterEvent::Repeated => {
            "sums that not all workers have are added up again\n".to_owned()
        }
        VectorMasterEvent::Committed => {
            "all workers have the sum, and give their files their names\n".to_owned()
        }
        VectorMasterEvent::Unnamed { workers, .. } => {
            format!("waiting for {} to confirm the result\n", numbers(workers))
        }
        VectorMasterEvent::Summed { chunks, of } => {
            format!(
                "all workers have {} of {} chunks\n",
                number::grouped(*chunks),
                number::grouped(*of)
            )
        }
    };
    status(&text);
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn summary(stats: &VectorStats, workers: u8) -> String {
    let by = if stats.by_switch { "the switch" } else { "the master" };
    let again = match stats.restarts {
        0 => String::new(),
        n => format!(", {n} times with what not all had added up again"),
    };
    format!(
        "{} values of type {} of {workers} workers, added up by {by}; {} at the master, {:.2} s{again}\n",
        number::grouped(stats.length),
        stats.format,
        number::bytes(stats.received_bytes as f64),
        stats.elapsed.as_secs_f64(),
    )
}

fn json(stats: &VectorStats, workers: u8) -> serde_json::Value {
    serde_json::json!({
        "workers": workers,
        "length": stats.length,
        "type": stats.format.to_string(),
        "pool": stats.pool,
        "by_switch": stats.by_switch,
        "sums_here": stats.sums_here,
        "master_bytes": stats.received_bytes,
        "elapsed_s": stats.elapsed.as_secs_f64(),
        "restarts": stats.restarts,
        "stale": stats.stale,
        "refused": stats.refused,
    })
}
