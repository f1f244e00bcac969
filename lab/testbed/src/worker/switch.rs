//! The switches of the fabric in one process.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use rackweave_core::{Span, Time};
use rackweave_lab::results::capture_layout;
use rackweave_lab::scenario::PointSpec;
use rackweave_linux::Clock;
use rackweave_linux::switch::{Control, Edge, Report, Switch, SwitchConfig};
use rackweave_sim::result::{Counters, QueueSample};

use crate::protocol::{Bind, Command, Setup, SwitchEnd, SwitchWork, WireCircuits, WorkerMessage};
use crate::systems::Systems;

/// The largest number of queue samples that the switch is asked for, because all are kept.
const MAX_SAMPLES: u64 = 100_000;

pub(super) fn run(
    setup: &Setup,
    point: &PointSpec,
    bind: &Bind,
    commands: &Receiver<Command>,
) -> Result<(), String> {
    let start = Span::from_ticks(bind.start_ticks);
    let config = &point.config;
    let hosts = config.fabric.topology.hosts();
    let edge = |host: u32| {
        if setup.overlay {
            Edge::Udp { bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), host: None }
        } else {
            Edge::Interface { name: super::super::space::switch_end(host) }
        }
    };
    // The delays of hosts before and after their links are real ones here.
    let fabric = config.fabric.clone().without_host_delays();
    let kind = crate::kinds::of(&point.study).and_then(Result::ok);
    let systems = kind.map_or_else(Systems::default, |kind| kind.systems());
    let edges = (0..hosts).map(edge).collect();
    let mut wanted = SwitchConfig::new(fabric, edges).with_system(systems);
    wanted.seed = config.seed;
    wanted.run = config.run;
    wanted.clock = Clock::with_origin(bind.origin_ns);
    wanted.sample_every = sample_every(point);
    wanted.busy_poll = point.testbed.busy_poll > Span::ZERO;
    wanted.batch_window = point.testbed.switch_window;
    wanted.faults = config.faults.clone();
    for fault in &mut wanted.faults {
        fault.from = fault.from.saturating_add(start);
        fault.until = fault.until.saturating_add(start);
    }
    wanted.moves = config.moves.clone();
    for change in &mut wanted.moves {
        change.at = change.at.saturating_add(start);
    }
    let mut switch = Switch::new(wanted).map_err(|error| error.to_string())?;
    let ports_from = config.measure.ports_from.unwrap_or(config.measure.warmup);
    switch.measure_from(Time::ZERO + start + ports_from);
    let links = super::super::captured_links(point, switch.fabric());
    switch.capture(&links, Time::ZERO + start, config.measure.capture_limit);
    super::send(&WorkerMessage::Bound(switch.udp_ports()));
    let control = Control::default();
    let (began, cpu_before) = (switch.clock().now(), super::process_cpu_s());
    let slept = super::sleeps();
    let mut sleeps = 0;
    let mut refused = None;
    let ended = std::thread::scope(|threads| {
        let control = &control;
        let running = threads.spawn(|| switch.run(control));
        // Whatever ends the run ends this process, so this thread may wait until it is killed.
        while !running.is_finished() {
            let command = commands.recv_timeout(std::time::Duration::from_millis(50));
            match command {
                Ok(Command::Stop) => break,
                Ok(Command::Move(circuits)) => match control.reconfigure(circuits.into()) {
                    Ok(change) => super::send(&WorkerMessage::Moved(change.up.ticks())),
                    Err(error) => {
                        refused = Some(format!("it cannot change its circuits: {error}"));
                        break;
                    }
                },
                _ => {}
            }
        }
        // The switch's thread is counted while it still runs.
        sleeps = super::sleeps().saturating_sub(slept);
        control.stop.store(true, Ordering::Relaxed);
        running.join()
    });
    if let Some(why) = refused {
        return Err(why);
    }
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err("it failed: this is an error in Rackweave".into()),
    }
    let report = switch.report();
    let work = SwitchWork {
        seconds: report.at.since(began).as_secs_f64(),
        cpu_s: super::process_cpu_s() - cpu_before,
        turns: report.turns,
        sleeps,
        packets: report.counters.forwarded,
        bytes: report.counters.forwarded_bytes,
        received: report.counters.received,
        pairs: report.program.get("pairs").copied().unwrap_or_default(),
    };
    let end = SwitchEnd {
        work,
        capture: switch.take_capture(capture_layout(point)),
        ..summary(&report, start)
    };
    super::send(&WorkerMessage::SwitchEnd(Box::new(end)));
    Ok(())
}

/// Returns the scenario's interval, or a longer one if there would be more samples than a run can keep.
fn sample_every(point: &PointSpec) -> Span {
    let measure = &point.config.measure;
    match measure.sample_every {
        Span::ZERO => Span::ZERO,
        wanted => wanted.max(measure.time_limit / MAX_SAMPLES),
    }
}

/// Returns the switch's report. Times are since the start of the load.
fn summary(report: &Report, start: Span) -> SwitchEnd {
    let counters = &report.counters;
    let samples = report.queue_series.iter().filter(|sample| sample.at.ticks() >= start.ticks());
    let since_load = |sample: &QueueSample| QueueSample {
        at: Time::from_ticks(sample.at.ticks() - start.ticks()),
        ..*sample
    };
    SwitchEnd {
        cpu_s: super::process_cpu_s(),
        work: SwitchWork::default(),
        counters: Counters {
            packet_hops: report.links.iter().map(|link| link.frames).sum(),
            drops: counters.drops,
            ecn_marks: counters.ecn_marks,
            trims: counters.trims,
            returned_to_sender: counters.returned_to_sender,
            ..Counters::default()
        },
        queues: samples.map(since_load).collect(),
        links: report.links.clone(),
        capture: Vec::new(),
        program: report.program.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
        circuits: circuits(report, start),
        lost: lost(report),
        late_p99: report.lateness.p99,
        late_max: report.lateness.max,
    }
}

/// Returns the circuits over time. Those at the start of the switch are those at the start of the load.
fn circuits(report: &Report, start: Span) -> Vec<(u64, WireCircuits)> {
    let since = |at: Time| at.ticks().saturating_sub(start.ticks());
    report.circuits.iter().map(|(at, circuits)| (since(*at), circuits.into())).collect()
}

/// Returns the losses that the machine caused, and not the fabric.
fn lost(report: &Report) -> Vec<(String, u64)> {
    let counters = &report.counters;
    [
        ("in the kernel before the switch", counters.kernel_drops),
        ("in the kernel behind the switch", counters.send_refused),
        ("for want of memory in the switch", counters.no_memory),
        ("because they were longer than a frame", counters.oversized),
        ("because a NIC was to finish their checksums", counters.unfinished_checksums),
    ]
    .map(|(place, packets)| (place.to_owned(), packets))
    .into()
}
