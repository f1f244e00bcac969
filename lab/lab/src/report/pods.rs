//! The circuits of a run over time, from its results.

use rackweave_sim::config::Circuits;

use super::svg::{JobPhase, JobRow, Lane, PodChart, Stretch};
use crate::results::PointResult;
use crate::study::reduce::{JobSummary, ReduceConfig};

/// The most jobs that are drawn.
const MAX_JOBS: usize = 24;

/// Returns the chart of a point's circuits and jobs; `None` if its fabric has no optical circuit switch.
pub fn chart(point: &PointResult, title: &str) -> Option<PodChart> {
    let last = point.circuits.last()?;
    let jobs = point.summary.of::<ReduceConfig>();
    let jobs: &[JobSummary] = jobs.map_or(&[], |reduce| &reduce.jobs);
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
                let name =
                    if count == 1 { "1 circuit".into() } else { format!("{count} circuits") };
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

#[cfg(test)]
mod tests {
    use rackweave_core::{Span, Time};

    use super::super::svg::Theme;
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_ms(ms)
    }

    fn point(circuits: Vec<(Time, Circuits)>) -> PointResult {
        let mut point = super::super::demo::unknown();
        point.summary.simulated_us = 100_000.0;
        (point.circuits, point.dark) = (circuits, Span::from_ms(10));
        point
    }

    #[test]
    fn servers_are_below_their_tors_and_dark_while_they_move() {
        let moves = vec![
            (at(0), Circuits::Servers(vec![0, 1, 1])),
            (at(40), Circuits::Servers(vec![1, 0, 1])),
        ];
        let mut point = point(moves);
        let lanes = |point: &PointResult| -> Vec<Vec<(f64, f64, usize)>> {
            let of = |lane: Lane| lane.stretches.into_iter().map(|s| (s.from, s.to, s.colour));
            chart(point, "t").unwrap().lanes.into_iter().map(|lane| of(lane).collect()).collect()
        };
        let (first, second) = (0.0..40_000.0, 50_000.0..100_000.0);
        assert_eq!(lanes(&point)[0], [(first.start, first.end, 0), (second.start, second.end, 1)]);
        assert_eq!(lanes(&point)[2], [(0.0, 100_000.0, 1)]);
        point.is_all_dark = true;
        assert_eq!(lanes(&point)[2], [(0.0, 40_000.0, 1), (50_000.0, 100_000.0, 1)]);
        let svg = chart(&point, "The pod").unwrap().render(Theme::Standalone);
        roxmltree::Document::parse(&svg).unwrap();
        insta::assert_snapshot!(svg.replace("><", ">\n<"));
    }

    #[test]
    fn circuits_between_tors_are_counted_and_no_circuits_are_no_chart() {
        let moves = vec![
            (at(0), Circuits::Tors(vec![(0, 1), (2, 0)])),
            (at(20), Circuits::Tors(vec![(1, 0), (0, 1)])),
        ];
        let chart = chart(&point(moves), "t").unwrap();
        let names: Vec<&str> = chart.lanes.iter().map(|lane| &*lane.name).collect();
        assert_eq!(names, ["ToR 0 - 1", "ToR 0 - 2"]);
        let second: Vec<&str> = chart.lanes[0].stretches.iter().map(|s| &*s.name).collect();
        assert_eq!(second, ["1 circuit", "2 circuits"]);
        assert_eq!(chart.lanes[1].stretches[0].to, 20_000.0);
        assert!(super::chart(&point(Vec::new()), "t").is_none());
        assert!(super::chart(&point(vec![(at(0), Circuits::None)]), "t").is_none());
    }
}
