//! Circuits over time as SVG text: which server is below which `ToR`, with the phases of jobs above.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::super::ticks::{Quantity, Scale};
use super::{Axis, CHARACTER, Map, Theme, escape, lay_out, look, px, readable};

/// What a row shows in a stretch of time, both ends in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    /// When it begins.
    pub from: f64,
    /// When it ends.
    pub to: f64,
    /// The index of its colour.
    pub colour: usize,
    /// What it is, as written into it if there is room.
    pub name: String,
}

/// A row for a server, or for two `ToR`s that circuits join.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lane {
    /// The name of the row.
    pub name: String,
    /// What it is connected to, in the order of time.
    pub stretches: Vec<Stretch>,
}

/// A phase of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobPhase {
    /// The data are on their way, or are mapped and sorted.
    Map,
    /// The workers wait for the switch.
    Wait,
    /// The pairs are on their way to the master.
    Upload,
    /// The master computes the result.
    Reduce,
}

impl JobPhase {
    const ALL: [Self; 4] = [Self::Map, Self::Wait, Self::Upload, Self::Reduce];

    const fn name(self) -> &'static str {
        match self {
            Self::Map => "data, map and local shuffle",
            Self::Wait => "waits for the switch",
            Self::Upload => "upload",
            Self::Reduce => "reduce",
        }
    }

    /// The height of its bar as a share of the row's, and its opacity.
    const fn bar(self) -> (f64, f64) {
        match self {
            Self::Map => (0.35, 0.35),
            Self::Wait => (0.1, 0.5),
            Self::Upload => (0.9, 1.0),
            Self::Reduce => (0.55, 0.6),
        }
    }
}

/// A row for a job: its phases with their ends in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRow {
    /// The name of the row.
    pub name: String,
    /// The index of its colour.
    pub colour: usize,
    /// The phases in the order of time.
    pub phases: Vec<(JobPhase, f64, f64)>,
}

/// The circuits of a run over time, and its jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodChart {
    /// The title of the chart.
    pub title: String,
    /// The jobs, above the circuits.
    pub jobs: Vec<JobRow>,
    /// The servers or pairs of `ToR`s.
    pub lanes: Vec<Lane>,
    /// The end of the time axis in microseconds.
    pub until: f64,
}

const WIDTH: f64 = 760.0;
/// The width of the names of rows.
const LEFT: f64 = 90.0;
const RIGHT: f64 = 18.0;
/// The heights of a row of a job and of a circuit, and the gap between both kinds.
const JOB_HEIGHT: f64 = 12.0;
const LANE_HEIGHT: f64 = 16.0;
const GAP: f64 = 10.0;
/// The heights of the title, of the legend of phases, and of the axis.
const TITLE: f64 = 28.0;
const LEGEND: f64 = 22.0;
const BOTTOM: f64 = 42.0;

impl PodChart {
    /// Returns the chart as one `<svg>` element.
    #[must_use]
    pub fn render(&self, theme: Theme) -> String {
        let head = if theme == Theme::Standalone { TITLE } else { 0.0 };
        let legend = if self.jobs.is_empty() { 0.0 } else { LEGEND };
        let top = head + legend + 4.0;
        let jobs = self.jobs.len() as f64 * JOB_HEIGHT;
        let lanes_top = top + jobs + if self.jobs.is_empty() { 0.0 } else { GAP };
        let bottom = lanes_top + self.lanes.len() as f64 * LANE_HEIGHT;
        let height = bottom + BOTTOM;
        let mut svg = String::new();
        let (class, style) = match theme {
            Theme::Page => (" class=\"chart\"".to_owned(), String::new()),
            Theme::Standalone => (
                format!(
                    " width=\"{WIDTH}\" height=\"{height}\" \
                     font-family=\"Helvetica, Arial, sans-serif\""
                ),
                look::standalone_style(),
            ),
        };
        let _ = write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\"{class} \
             role=\"img\" aria-label=\"{}\" font-size=\"12\">{style}",
            escape(&self.title)
        );
        if theme == Theme::Standalone {
            let _ = write!(
                svg,
                "<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\
                 <text class=\"ink\" x=\"8\" y=\"20\" font-size=\"14\" font-weight=\"600\" \
                 fill=\"currentColor\">{}</text>",
                escape(&self.title)
            );
        }
        if !self.jobs.is_empty() {
            legend_of_phases(&mut svg, head + 14.0);
        }
        let until = if self.until.is_finite() && self.until > 0.0 { self.until } else { 1.0 };
        let axis = Axis::new("time", Scale::Linear, Quantity::Micros).between(0.0, until);
        let laid = lay_out(&axis, (0.0, until), (LEFT, WIDTH - RIGHT), 8, false);
        let mut grid = String::new();
        let mut names = String::new();
        for (value, name) in readable(&laid.marks, laid.map) {
            let at = px(laid.map.at(*value));
            let _ = write!(grid, "M{at} {}V{}", px(top), px(bottom));
            let _ = write!(
                names,
                "<text x=\"{at}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                px(bottom + 16.0),
                escape(name)
            );
        }
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"{grid}\" stroke=\"currentColor\"/>\
             <g class=\"soft\" fill=\"currentColor\">{names}\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text></g>",
            px(f64::midpoint(LEFT, WIDTH - RIGHT)),
            px(height - 8.0),
            escape(&laid.title),
        );
        for (row, job) in self.jobs.iter().enumerate() {
            draw_job(&mut svg, job, top + row as f64 * JOB_HEIGHT, laid.map);
        }
        for (row, lane) in self.lanes.iter().enumerate() {
            draw_lane(&mut svg, lane, lanes_top + row as f64 * LANE_HEIGHT, laid.map);
        }
        svg.push_str("</svg>");
        svg
    }
}

fn legend_of_phases(svg: &mut String, y: f64) {
    let mut x = LEFT;
    for phase in JobPhase::ALL {
        bar(svg, phase, (x, x + 24.0), y - 10.0, "");
        let _ = write!(
            svg,
            "<text class=\"ink\" x=\"{}\" y=\"{}\" fill=\"currentColor\">{}</text>",
            px(x + 30.0),
            px(y),
            phase.name()
        );
        #[expect(clippy::cast_precision_loss, reason = "the length of a name")]
        let width = phase.name().len() as f64 * CHARACTER;
        x += 48.0 + width;
    }
}

/// Draws the bar of a phase in a row that begins at `top`.
fn bar(svg: &mut String, phase: JobPhase, (from, to): (f64, f64), top: f64, note: &str) {
    let (share, opacity) = phase.bar();
    let height = share * JOB_HEIGHT;
    let _ = write!(
        svg,
        "<rect class=\"ink\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"currentColor\" \
         fill-opacity=\"{opacity}\"",
        px(from),
        px(top + (JOB_HEIGHT - height) / 2.0),
        px((to - from).max(0.5)),
        px(height),
    );
    if note.is_empty() {
        svg.push_str("/>");
    } else {
        let _ = write!(svg, "><title>{}</title></rect>", escape(note));
    }
}

fn row_name(svg: &mut String, name: &str, y: f64, size: f64) {
    let _ = write!(
        svg,
        "<text class=\"soft\" x=\"{}\" y=\"{}\" font-size=\"{size}\" text-anchor=\"end\" \
         fill=\"currentColor\">{}</text>",
        px(LEFT - 6.0),
        px(y),
        escape(name)
    );
}

fn draw_job(svg: &mut String, job: &JobRow, top: f64, map: Map) {
    row_name(svg, &job.name, top + JOB_HEIGHT - 2.5, 10.0);
    let _ = write!(svg, "<g class=\"s{}\">", job.colour % look::LIGHT.len());
    for (phase, from, to) in &job.phases {
        if from.is_finite() && to.is_finite() && to > from {
            let note = format!("{}: {}", job.name, phase.name());
            let mut drawn = String::new();
            bar(&mut drawn, *phase, (map.at(*from), map.at(*to)), top, &note);
            // The colour is that of the row, not of text.
            svg.push_str(&drawn.replacen(" class=\"ink\"", "", 1));
        }
    }
    svg.push_str("</g>");
}

fn draw_lane(svg: &mut String, lane: &Lane, top: f64, map: Map) {
    row_name(svg, &lane.name, top + LANE_HEIGHT - 4.5, 11.0);
    for stretch in &lane.stretches {
        let (from, to) = (map.at(stretch.from), map.at(stretch.to));
        if !(from.is_finite() && to.is_finite() && to > from) {
            continue;
        }
        let _ = write!(
            svg,
            "<g class=\"s{}\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"currentColor\" \
             fill-opacity=\"0.3\" stroke=\"currentColor\" stroke-width=\"0.6\"><title>{}: {}</title></rect></g>",
            stretch.colour % look::LIGHT.len(),
            px(from),
            px(top + 1.0),
            px(to - from),
            px(LANE_HEIGHT - 2.0),
            escape(&lane.name),
            escape(&stretch.name),
        );
        #[expect(clippy::cast_precision_loss, reason = "the length of a name")]
        let width = stretch.name.chars().count() as f64 * CHARACTER;
        if to - from > width {
            let _ = write!(
                svg,
                "<text class=\"ink\" x=\"{}\" y=\"{}\" font-size=\"10\" text-anchor=\"middle\" \
                 fill=\"currentColor\">{}</text>",
                px(f64::midpoint(from, to)),
                px(top + LANE_HEIGHT - 4.5),
                escape(&stretch.name)
            );
        }
    }
}
