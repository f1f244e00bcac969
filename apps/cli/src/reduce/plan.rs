//! `rackweave reduce plan`.

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::Path;

use miette::miette;
use rackweave_core::{Rng, Span};
use rackweave_rackless::config::Configuration;
use rackweave_rackless::fabric::{Architecture, Fabric};
use rackweave_rackless::plan::{Algorithm, EXACT_LIMIT, Options, Plan};
use rackweave_rackless::pod::{Pod, Tor};
use rackweave_rackless::trace::Trace;
use rackweave_rackless::{podfile, trace};

use super::args::{Format, PlanArgs};
use super::show;
use crate::shell::{escaped, print};

/// The longest file of a pod.
const MAX_POD_BYTES: u64 = 1 << 20;
/// Up to this number of configurations and periods multiplied, the exact plan is computed for comparison. It takes a few seconds.
const COMPARED: usize = 1_000_000;

/// A plan with what it is compared with.
pub(super) struct Report<'a> {
    pub(super) fabric: &'a Fabric,
    pub(super) trace: &'a Trace,
    pub(super) options: &'a Options,
    pub(super) plan: Plan,
    pub(super) fixed: Span,
    pub(super) exact: Option<Span>,
    /// The totals of all architectures, if they are asked for.
    pub(super) architectures: Vec<(Architecture, Span, u64)>,
}

pub(super) fn plan(args: &PlanArgs) -> miette::Result<u8> {
    let (pod, racks) = pod(args)?;
    let trace = read_trace(&args.trace, pod.servers(), args.period)?;
    let fabric = |architecture: Architecture| {
        let fabric = Fabric::new(pod.clone(), architecture).starting_from(racks.clone());
        // Circuits between ToRs are there for the detour.
        let has_circuits = architecture.has_circuits();
        if has_circuits { fabric } else { fabric.with_reach(args.planner.reach) }
    };
    let options = args.options();
    let planned = |fabric: &Fabric, algorithm: Algorithm| {
        let mut rng = Rng::stream(args.seed, 0, 0, "reduce plan");
        let options = Options { algorithm, ..options };
        rackweave_rackless::plan::plan(fabric, &trace.periods, &options, &mut rng)
    };
    let chosen = fabric(args.architecture.into());
    let plan = planned(&chosen, options.algorithm).map_err(|error| miette!("{error}"))?;
    let fixed = planned(&chosen, Algorithm::Fixed).map_err(|error| miette!("{error}"))?.total;
    let configurations = chosen.configurations(EXACT_LIMIT).map(|all| all.len());
    let few = configurations.is_some_and(|it| it.saturating_mul(trace.periods.len()) <= COMPARED);
    let exact = match options.algorithm {
        Algorithm::Exact => Some(plan.total),
        _ if few => planned(&chosen, Algorithm::Exact).ok().map(|plan| plan.total),
        _ => None,
    };
    let mut architectures = Vec::new();
    for architecture in Architecture::ALL.into_iter().filter(|_| args.compare) {
        let plan = planned(&fabric(architecture), options.algorithm);
        let plan = plan.map_err(|error| miette!("{}: {error}", architecture.name()))?;
        architectures.push((architecture, plan.total, plan.absorbed()));
    }
    let (fabric, trace, options) = (&chosen, &trace, &options);
    let report = Report { fabric, trace, options, plan, fixed, exact, architectures };
    match args.format {
        Format::Table => print(&show::table(&report)),
        Format::Json => print(&format!("{:#}\n", show::json(&report))),
        Format::Csv => print(&show::csv(&report)),
    }
}

fn read_trace(path: &Path, servers: u32, period: Span) -> miette::Result<Trace> {
    let name = escaped(&path.to_string_lossy());
    let file =
        File::open(path).map_err(|error| miette!("cannot open the trace {name}: {error}"))?;
    trace::read(BufReader::new(file), servers, period).map_err(|error| miette!("{name}:{error}"))
}

/// Reads the file of a pod, with its first circuits.
pub(crate) fn read_pod(path: &Path) -> miette::Result<(Pod, Configuration)> {
    let name = escaped(&path.to_string_lossy());
    let unread = |error| miette!("cannot read the pod {name}: {error}");
    let file = File::open(path).map_err(unread)?;
    let mut text = String::new();
    file.take(MAX_POD_BYTES + 1).read_to_string(&mut text).map_err(unread)?;
    if text.len() as u64 > MAX_POD_BYTES {
        return Err(miette!("the pod {name} is longer than {MAX_POD_BYTES} bytes"));
    }
    podfile::read(&text).map_err(|error| miette!("{name}:{error}"))
}

fn pod(args: &PlanArgs) -> miette::Result<(Pod, Configuration)> {
    if let Some(path) = &args.pod {
        return read_pod(path);
    }
    let mut slots = vec![0; args.tors.len()];
    for text in args.programmable.iter().filter(|text| *text != "none") {
        let tor = text.parse::<usize>().ok().and_then(|tor| slots.get_mut(tor));
        let wrong = || {
            let last = args.tors.len().saturating_sub(1);
            miette!("--programmable {}: not the number of a ToR, from 0 to {last}", escaped(text))
        };
        *tor.ok_or_else(wrong)? = args.slots;
    }
    if !args.uplinks.is_empty() && args.uplinks.len() != args.tors.len() {
        let (uplinks, tors) = (args.uplinks.len(), args.tors.len());
        return Err(miette!("--uplinks has {uplinks} numbers, but there are {tors} ToRs"));
    }
    let tor = |(index, &ports): (usize, &u32)| Tor {
        ports,
        uplinks: args.uplinks.get(index).copied().unwrap_or_else(|| ports.div_ceil(2)),
        uplink_rate: args.uplink_link.unwrap_or(args.link),
        slots: slots[index],
    };
    let tors: Vec<Tor> = args.tors.iter().enumerate().map(tor).collect();
    let ports = tors.iter().fold(0_u32, |sum, tor| sum.saturating_add(tor.ports));
    let pod = Pod::new(args.servers.unwrap_or(ports), args.link, tors);
    let pod = pod.map_err(|error| miette!("{error}"))?;
    let racks = Configuration::in_order(&pod);
    Ok((pod, racks))
}
