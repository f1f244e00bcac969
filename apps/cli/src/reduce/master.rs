//! `rackweave reduce master`.

use miette::miette;
use rackweave_core::{Destination, HostId};
use rackweave_reduce::{
    Aggregation, Attachment, Master, MasterConfig, MasterEvent, MemberEvent, Moves, Outcome,
    ReduceError,
};
use rackweave_wire::reduce::number_of;
use serde_json::json;

use super::circuits::Controller;
use super::hosts_args::{MasterArgs, OutputArgs, OverlayArgs};
use super::output::{Sink, json, summary};
use super::pod::Place;
use super::{ended, failed};
use crate::shell::signal::Interrupt;
use crate::shell::{events, exit, status};

pub(super) fn master(args: &MasterArgs) -> miette::Result<u8> {
    let mut config = config(args)?;
    let moves = args.circuits.moves.clone();
    let ocs = args.circuits.ocs.as_deref();
    let mut ocs = ocs.map(|path| Controller::connect(path, &moves)).transpose()?;
    let quiesce = !args.circuits.no_quiesce;
    let moves = ocs.as_mut().map(|switch: &mut Controller| Moves { list: moves, quiesce, switch });
    let stop = Interrupt::watch()?;
    let sink = match Sink::open(args.output.out.as_deref()) {
        Ok(sink) => sink,
        Err(why) => return ended(&why),
    };
    let (workers, named) = (config.workers, config.aggregation);
    let mut place = Place::open(&args.pod, args.overlay, workers, named, stop.flag())?;
    if let Some(place) = &place {
        config.job = place.job();
    }
    let master = match Master::bind(config) {
        Ok(master) => master.delivering(move |outcome| sink.write(&outcome.totals)),
        Err(error @ ReduceError::Config(_)) => return Err(miette!("{error}")),
        Err(error) => return ended(&error.to_string()),
    };
    let (workers, job) = (config.workers, config.job);
    let address = master.local_addr();
    status(&format!("ready at {address} for {workers} workers of job {job}\n"));
    if args.output.json {
        let address = address.to_string();
        events::emit("ready", json!({ "address": address, "workers": workers, "job": job }))?;
    }
    let quiet = args.output.quiet;
    let mut report = |event| show(&event, quiet);
    let result = match (moves, &mut place) {
        (Some(moves), _) => master.run_with_moves(stop.flag(), moves, &mut report),
        (None, Some(place)) => master.run_coordinated(stop.flag(), place, &mut report),
        (None, None) => master.run(stop.flag(), &mut report),
    };
    drop(place);
    match result {
        Ok(outcome) => conclude(&outcome, &args.output, workers),
        Err(error) => failed(&error),
    }
}

/// Says what the job has saved. Its result is written.
pub(super) fn conclude(outcome: &Outcome, output: &OutputArgs, workers: u8) -> miette::Result<u8> {
    if output.json {
        events::emit("result", json(outcome, workers))?;
    } else if !output.quiet {
        status(&summary(outcome, workers));
    }
    Ok(exit::DONE)
}

/// Says what has become of a job's workers.
pub(super) fn of_members(event: &MemberEvent) -> String {
    match event {
        MemberEvent::Joined { worker, address } => {
            format!("worker {worker} has joined from {address}\n")
        }
        MemberEvent::Left { worker } => {
            format!("worker {worker} has left; another process can take its place\n")
        }
        MemberEvent::NotTaken { worker, address, why } => {
            format!("note: {address} is not taken as worker {worker}: {why}\n")
        }
        MemberEvent::Waiting { workers } => format!("waiting for {} to join\n", numbers(workers)),
    }
}

/// Names workers.
pub(super) fn numbers(workers: &[u8]) -> String {
    let numbers: Vec<String> = workers.iter().map(u8::to_string).collect();
    let noun = if workers.len() == 1 { "worker" } else { "workers" };
    format!("{noun} {}", numbers.join(", "))
}

pub(super) fn show(event: &MasterEvent, quiet: bool) {
    let text = match event {
        // What the user should know even if nothing else is shown.
        MasterEvent::WithoutSwitch(why) => {
            return status(&format!("note: {why}; the master adds up instead\n"));
        }
        _ if quiet => return,
        MasterEvent::Member(event) => of_members(event),
        MasterEvent::Started { slots: 0, keys, .. } => {
            format!("started: about {keys} keys, which the master adds up\n")
        }
        MasterEvent::Started { slots, epochs, keys } => {
            format!("started: about {keys} keys in {epochs} ranges, {slots} slots\n")
        }
        MasterEvent::Delivers => "all sums are here; the result is being written\n".to_owned(),
        MasterEvent::Waits => "all workers have joined; the upload waits for its turn\n".to_owned(),
        MasterEvent::Granted { slots: 0 } => "the upload begins, without a switch\n".to_owned(),
        MasterEvent::Granted { slots } => format!("the upload begins, with {slots} slots\n"),
        MasterEvent::Repeated { worker: Some(worker) } => {
            format!("worker {worker} has been replaced: what was not yet collected is sent again\n")
        }
        MasterEvent::Repeated { worker: None } => {
            "the switch has lost its sums: what was not yet collected is sent again\n".to_owned()
        }
        MasterEvent::NotMoved(why) => {
            return status(&format!("note: circuits have not changed: {why}\n"));
        }
        MasterEvent::Moved { changes } => format!("circuits have changed ({changes})\n"),
        MasterEvent::Collected { epochs, of } => {
            // Ten lines at most.
            let tenth = |epochs: u16| u32::from(epochs) * 10 / u32::from(*of);
            if *epochs > 0 && tenth(*epochs) == tenth(epochs - 1) {
                return;
            }
            format!("collected {epochs} of {of} ranges\n")
        }
    };
    status(&text);
}

fn config(args: &MasterArgs) -> miette::Result<MasterConfig> {
    let attachment = attachment(args.overlay)?.unwrap_or(Attachment::Udp(args.listen));
    let switch = args.switch.as_deref().map(|text| switch(text, args.overlay)).transpose()?;
    Ok(MasterConfig {
        attachment,
        job: args.job.number,
        operator: args.job.operator.into(),
        aggregation: switch.map(|switch| Aggregation::new(switch, args.slots)),
        requires_switch: args.require_switch,
        patience: args.job.patience,
        join_within: args.wait,
        ..MasterConfig::new(args.listen, args.workers)
    })
}

/// How a host in the overlay is attached.
pub(super) fn attachment(args: OverlayArgs) -> miette::Result<Option<Attachment>> {
    let (Some(mut port), Some(me)) = (args.overlay, args.me) else { return Ok(None) };
    let number = u32::from(port.port()) + me;
    let number = u16::try_from(number).map_err(|_| {
        miette!("--me {me}: its port at the switch would be {number}, beyond 65535")
    })?;
    port.set_port(number);
    Ok(Some(Attachment::Overlay { port, me: HostId(me) }))
}

/// The number of the switch that adds up.
pub(super) fn switch(text: &str, overlay: OverlayArgs) -> miette::Result<HostId> {
    if overlay.overlay.is_some() {
        let number = text.parse::<u32>().ok().filter(|number| *number < 1 << 20);
        let number = number.ok_or_else(|| {
            miette!("--switch {text}: with --overlay, the number of a switch from 0")
        })?;
        return Ok(Destination::Switch(number).address());
    }
    let address = text.parse().map_err(|_| miette!("--switch {text}: not an IPv4 address"))?;
    number_of(address).ok_or_else(|| miette!("--switch {text}: no switch can have this address"))
}
