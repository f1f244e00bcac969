//! The circuits of a run over time, from its results.

use rackweave_sim::config::Circuits;

use super::svg::{JobPhase, JobRow, Lane, PodChart, Stretch};
use crate::reduce::JobSummary;
use crate::results::PointResult;

/// The most jobs that are drawn.
const MAX_JOBS: usize = 24;

/// Returns the chart of a point's circuits and jobs; `None` if its fabric has no optical circuit switch.
pub(crate) fn chart(point: &PointResult, title: &str) -> Option<PodChart> {
    let last = point.circuits.last()?;
    let jobs: &[JobSummary] =
        point.summary.reduce.as_ref().map_or(&[], |reduce| &reduce.jobs[..]);
    let ends = jobs.iter().map(|job| job.finished_us).filter(|at| at.is_finite());
    let until = ends.fold(0.0, f64::max);
    let until = if until > 0.0 { until } else { point.summary.simulated_us };
    let lanes = match &last.1 {
        Circuits::None => return None,
        Circuits::Servers(tor_of) => {
            (0..tor_of.len()).map(|server| server_lane(point, server, until)).collect()
        }
        Circuits::Tors(_) => tor_lanes(point, until),
    };
    let jobs = jobs.iter().take(MAX_JOBS).map(job_row).collect();
    Some(PodChart { title: title.to_owned(), jobs, lanes, until })
}

/// The `ToR` of a server over time; nothing while its port is dark.
fn server_lane(point: &PointResult, server: usize, until: f64) -> Lane {
    let mut stretches: Vec<Stretch> = Vec::new();
    let mut before = None;
    for (at, circuits) in &point.circuits {
        let Circuits::Servers(tor_of) = circuits else { continue };
        let Some(&tor) = tor_of.get(server) else { continue };
        let is_first = before.is_none();
        let goes_dark = before != Some(tor) || point.is_all_dark;
        before = Some(tor);
        if !is_first && !goes_dark {
            continue;
        }
        let at = at.as_us_f64();
        if let Some(last) = stretches.last_mut() {
            last.to = last.to.min(at);
        }
        let dark = if is_first { 0.0 } else { point.dark.as_us_f64() };
        let name = format!("ToR {tor}");
        stretches.push(Stretch { from: at + dark, to: until, colour: usize::from(tor), name });
    }
    stretches.retain(|stretch| stretch.from < stretch.to);
    Lane { name: format!("server {server}"), stretches }
}

/// For each two `ToR`s that are joined at some time, how many circuits join them.
fn tor_lanes(point: &PointResult, until: f64) -> Vec<Lane> {
    let mut pairs: Vec<(u16, u16)> = Vec::new();
    let sorted = |(a, b): (u16, u16)| (a.min(b), a.max(b));
    for (_, circuits) in &point.circuits {
        if let Circuits::Tors(joined) = circuits {
            pairs.extend(joined.iter().copied().map(sorted));
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    let lane = |pair: (u16, u16)| {
        let mut stretches: Vec<Stretch> = Vec::new();
        let mut before = 0;
        for (index, (at, circuits)) in point.circuits.iter().enumerate() {
            let Circuits::Tors(joined) = circuits else { continue };
            let count = joined.iter().filter(|other| sorted(**other) == pair).count();
            if count == before && index > 0 {
                continue;
            }
            before = count;
            let at = at.as_us_f64();
            if let Some(last) = stretches.last_mut() {
                last.to = last.to.min(at);
            }
            if count > 0 {
                let dark = if index == 0 { 0.0 } else { point.dark.as_us_f64() };
                let name = if count == 1 { "1 circuit".into() } else { format!("{count} circuits") };
                stretches.push(Stretch { from: at + dark, to: until, colour: count - 1, name });
            }
        }
        stretches.retain(|stretch| stretch.from < stretch.to);
        Lane { name: format!("ToR {} - {}", pair.0, pair.1), stretches }
    };
    pairs.into_iter().map(lane).collect()
}

fn job_row(job: &JobSummary) -> JobRow {
    let phases = vec![
        (JobPhase::Map, job.start_us, job.ready_us),
        (JobPhase::Wait, job.ready_us, job.granted_us),
        (JobPhase::Upload, job.granted_us, job.uploaded_us),
        (JobPhase::Reduce, job.uploaded_us, job.finished_us),
    ];
    JobRow { name: format!("job {}", job.job), colour: usize::from(job.job), phases }
}
