//! Line charts as SVG text.
//!
//! It does not use a plotting crate. `plotters`, the best maintained one, rounds coordinates to whole pixels. It writes
//! colours and fonts into every element, so that a page's light and dark styles cannot affect them. It draws a dashed
//! line as one element per dash, and supports neither gaps in a line nor ticks by unit. Only one kind of chart is
//! needed here.
//!
//! A chart has one of two themes. Inside a page, the style sheet colours the classes; a separate file has its own
//! style, for a white background (an image in a README).

mod data;
mod look;
mod pod;
#[cfg(test)]
mod tests;

use std::fmt::Write;

pub use look::{DARK, DASHES, LIGHT, Look, MARKERS, swatch};
pub use pod::{JobPhase, JobRow, Lane, PodChart, Stretch};

use serde::{Deserialize, Serialize};

use super::ticks::{self, Quantity, Scale};

/// Where a chart is embedded, which decides where its colours come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// The chart is part of a page that has a legend and a style for the classes.
    Page,
    /// The chart is a separate file, with title, legend and colours of its own.
    Standalone,
}

/// One axis of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// The title, to which the unit is added if all marks have the same unit.
    pub title: String,
    /// The scale along which values are placed.
    pub scale: Scale,
    /// The kind of its values, which determines their unit.
    pub quantity: Quantity,
    /// A value that the axis must include: 0 for a queue, 1 for a slowdown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include: Option<f64>,
    /// Both ends of the axis; `None` if they follow from the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<(f64, f64)>,
    /// The marks and their names; if empty, the marks are round numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<(f64, String)>,
    /// The bytes that ascending places of the axis stand for, if its values are shares of messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<(f64, u64)>,
}

impl Axis {
    /// Returns an axis whose ends follow from its data.
    #[must_use]
    pub fn new(title: impl Into<String>, scale: Scale, quantity: Quantity) -> Self {
        let title = title.into();
        Self {
            title,
            scale,
            quantity,
            include: None,
            ends: None,
            names: Vec::new(),
            sizes: Vec::new(),
        }
    }

    /// Returns the same axis, extended to include `value`.
    #[must_use]
    pub fn including(mut self, value: f64) -> Self {
        self.include = Some(value);
        self
    }

    /// Returns the same axis with fixed ends.
    #[must_use]
    pub fn between(mut self, low: f64, high: f64) -> Self {
        self.ends = Some((low, high));
        self
    }

    /// Returns the same axis with these marks.
    #[must_use]
    pub fn named(mut self, names: Vec<(f64, String)>) -> Self {
        self.names = names;
        self
    }

    /// Returns whether a value can be placed on the axis. With values beyond what any measurement gives, arithmetic on
    /// the ends of the axis would overflow or lose all its digits.
    fn shows(&self, value: f64) -> bool {
        match self.scale {
            Scale::Linear => value.abs() < 1e30 && (value == 0.0 || value.abs() > 1e-30),
            Scale::Log => value > 1e-30 && value < 1e30,
        }
    }
}

/// One line of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The name of the line in the legend.
    pub label: String,
    /// The colour, dash and marker of the line.
    pub look: Look,
    /// The points in the order of x. The line has a gap where a value is not finite.
    #[serde(with = "data::points")]
    pub points: Vec<(f64, f64)>,
    /// The width of the line in pixels.
    pub stroke: f64,
    /// Whether the value holds until the next point, as in a distribution function.
    pub step: bool,
    /// Whether points are marked. Each mark has the note with the same index as its tooltip.
    pub marked: bool,
    /// Notes on the points; may be empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A line chart, which results on the disk keep as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// The title of the chart, which names the measure.
    pub title: String,
    /// The horizontal axis, left to right.
    pub x: Axis,
    /// The vertical axis, bottom to top.
    pub y: Axis,
    /// The lines in the order of the legend. The first is drawn last, on top of the others.
    pub series: Vec<Series>,
    /// Width and height in pixels at which text is readable.
    pub size: (f64, f64),
    /// Its place among charts that a page shows one at a time; `None` if it is always shown.
    #[serde(skip)]
    pub choice: Option<Choice>,
}

/// The place of a chart among adjacent ones that a page shows one at a time, as its reader chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What is chosen: "percentile".
    pub of: &'static str,
    /// The name of this chart in the choice: "p99".
    pub name: &'static str,
    /// Whether it is the one that is shown first.
    pub first: bool,
}

/// The margins left of, above, right of and below the plot, in pixels.
const LEFT: f64 = 50.0;
const TOP: f64 = 28.0;
const RIGHT: f64 = 18.0;
const BOTTOM: f64 = 46.0;
/// The width of a character of a label in pixels, rather too large than too small.
const CHARACTER: f64 = 6.8;
/// The same on a narrow screen, where the page's style enlarges letters.
const PHONE_CHARACTER: f64 = 8.5;
/// The number of places at which a page shows the values of a line without marks.
const VALUES: usize = 16;
/// The height of a row of the legend in pixels.
const LEGEND_ROW: f64 = 20.0;

/// A linear map from the values of an axis to pixels.
#[derive(Clone, Copy)]
struct Map {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Map {
    fn at(&self, value: f64) -> f64 {
        let position = |v: f64| match self.scale {
            Scale::Linear => v,
            Scale::Log => libm::log10(v),
        };
        let (low, high) = (position(self.low), position(self.high));
        self.from + (position(value) - low) / (high - low) * (self.to - self.from)
    }
}

/// A laid-out axis: its map, the positions and names of its marks, and its title with the unit.
struct AxisLayout {
    map: Map,
    marks: Vec<(f64, String)>,
    title: String,
}

impl Chart {
    /// Returns the chart as one `<svg>` element.
    #[must_use]
    pub fn render(&self, theme: Theme) -> String {
        let (width, height) = self.size;
        let head = match theme {
            Theme::Page => 0.0,
            Theme::Standalone => 24.0 + self.legend_rows() * LEGEND_ROW,
        };
        let height = height + head;
        let mut svg = String::new();
        let _ = write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\"{} \
             role=\"img\" aria-label=\"{}\" font-size=\"12\">",
            if theme == Theme::Page {
                " class=\"chart\"".to_owned()
            } else {
                format!(
                    " width=\"{width}\" height=\"{height}\" \
                     font-family=\"Helvetica, Arial, sans-serif\""
                )
            },
            escape(&self.title)
        );
        if theme == Theme::Standalone {
            svg.push_str(&look::standalone_style());
            let _ = write!(svg, "<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>");
            let _ = write!(
                svg,
                "<text class=\"ink\" x=\"8\" y=\"20\" font-size=\"14\" font-weight=\"600\" \
                 fill=\"currentColor\">{}</text>",
                escape(&self.title)
            );
            self.legend(&mut svg);
        }
        self.plot(&mut svg, head, height, theme);
        svg.push_str("</svg>");
        svg
    }

    /// Draws frame, marks and lines, between the vertical positions `head` and `height`.
    fn plot(&self, svg: &mut String, head: f64, height: f64, theme: Theme) {
        let (left, right) = (LEFT, self.size.0 - RIGHT);
        let (top, bottom) = (head + TOP, height - BOTTOM);
        let Some((x, y)) = self.layout(head, height) else {
            let _ = write!(
                svg,
                "<rect class=\"grid\" x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{}\" \
                 fill=\"none\" stroke=\"currentColor\"/><text class=\"soft\" x=\"{}\" y=\"{}\" \
                 text-anchor=\"middle\" fill=\"currentColor\">no data</text>",
                px(right - left),
                px(bottom - top),
                px(f64::midpoint(left, right)),
                px(f64::midpoint(top, bottom)),
            );
            return;
        };
        // Draws the grid and the names of the marks.
        let mut grid = String::new();
        let mut names = String::new();
        for (value, name) in &y.marks {
            let at = y.map.at(*value);
            let _ = write!(grid, "M{} {}H{}", px(left), px(at), px(right));
            let _ = write!(
                names,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                px(left - 6.0),
                px(at + 4.0),
                escape(name)
            );
        }
        let shown = readable(&x.marks, x.map);
        let crowded = !clear(shown.iter().copied(), x.map, PHONE_CHARACTER);
        for (index, (value, name)) in shown.into_iter().enumerate() {
            let at = x.map.at(*value);
            let _ = write!(grid, "M{} {}V{}", px(at), px(top), px(bottom));
            // A narrow screen has larger text and hides every other name.
            let every_other = if crowded && index % 2 == 1 { " class=\"alt\"" } else { "" };
            let _ = write!(
                names,
                "<text{every_other} x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                px(at),
                px(bottom + 18.0),
                escape(name)
            );
        }
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"{grid}\" stroke=\"currentColor\"/>\
             <path class=\"axis\" d=\"M{} {}H{}\" stroke=\"currentColor\"/>\
             <g class=\"soft\" fill=\"currentColor\">{names}\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text></g>\
             <text class=\"ink\" x=\"8\" y=\"{}\" fill=\"currentColor\">{}</text>",
            px(left),
            px(bottom),
            px(right),
            px(f64::midpoint(left, right)),
            px(height - 8.0),
            escape(&x.title),
            px(top - 12.0),
            escape(&y.title),
        );
        for series in self.series.iter().rev() {
            self.line(svg, series, (x.map, y.map), theme);
        }
    }

    /// Returns whether there is anything to draw.
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.x_range().zip(self.y_range()).is_some()
    }

    /// Lays out both axes, between the vertical positions `head` and `height`; `None` if there is nothing to draw.
    fn layout(&self, head: f64, height: f64) -> Option<(AxisLayout, AxisLayout)> {
        let (x_range, y_range) = self.x_range().zip(self.y_range())?;
        let pixels = (LEFT, self.size.0 - RIGHT);
        // The axis gets as many marks as leave their names readable.
        let x = (3..=8)
            .rev()
            .map(|most| lay_out(&self.x, x_range, pixels, most, false))
            .find(|laid| !self.x.names.is_empty() || clear(laid.marks.iter(), laid.map, CHARACTER))
            .unwrap_or_else(|| lay_out(&self.x, x_range, pixels, 2, false));
        let y = lay_out(&self.y, y_range, (height - BOTTOM, head + TOP), 6, true);
        Some((x, y))
    }

    /// Returns the range of the x axis that the data require; `None` if no point can be shown.
    pub(super) fn x_range(&self) -> Option<(f64, f64)> {
        self.range(&self.x, |p| p.0)
    }

    /// Returns the same range for the y axis.
    pub(super) fn y_range(&self) -> Option<(f64, f64)> {
        self.range(&self.y, |p| p.1)
    }

    /// Returns the ends of an axis from the data; `None` if no point can be shown.
    fn range(&self, axis: &Axis, of: impl Fn(&(f64, f64)) -> f64) -> Option<(f64, f64)> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for point in self.series.iter().flat_map(|s| &s.points) {
            if self.x.shows(point.0) && self.y.shows(point.1) {
                low = low.min(of(point));
                high = high.max(of(point));
            }
        }
        if low > high {
            return None;
        }
        if axis.ends.is_some() {
            return axis.ends;
        }
        if let Some(value) = axis.include {
            low = low.min(value);
            high = high.max(value);
        }
        // A range that overflows cannot be mapped.
        (high - low).is_finite().then_some((low, high))
    }

    /// Returns the indices of the points of a line that are drawn, in parts between gaps.
    fn drawn(&self, series: &Series, (x, y): (Map, Map)) -> Vec<Vec<usize>> {
        let mut parts: Vec<Vec<usize>> = Vec::new();
        let mut last: Option<(f64, f64)> = None;
        let least = if series.step { 1.0 } else { 0.5 };
        for (index, point) in series.points.iter().enumerate() {
            if !(self.x.shows(point.0) && self.y.shows(point.1)) {
                last = None;
                continue;
            }
            let at = (x.at(point.0), y.at(point.1));
            match (last, parts.last_mut()) {
                // Invisible steps only cost bytes, and a distribution has thousands.
                (Some(last), Some(_))
                    if index + 1 < series.points.len()
                        && !series.marked
                        && (at.0 - last.0).abs() < least
                        && (at.1 - last.1).abs() < least =>
                {
                    continue;
                }
                (Some(_), Some(part)) => part.push(index),
                _ => parts.push(vec![index]),
            }
            last = Some(at);
        }
        parts
    }

    /// Draws one line with its marks.
    fn line(&self, svg: &mut String, series: &Series, (x, y): (Map, Map), theme: Theme) {
        let mut path = String::new();
        let mut marks = String::new();
        for part in self.drawn(series, (x, y)) {
            for (nth, index) in part.into_iter().enumerate() {
                let point = series.points[index];
                let (across, up) = (x.at(point.0), y.at(point.1));
                let _ = match nth {
                    0 => write!(path, "M{} {}", px(across), px(up)),
                    _ if series.step => write!(path, "H{}V{}", px(across), px(up)),
                    _ => write!(path, "L{} {}", px(across), px(up)),
                };
                // A single point would not draw a line.
                if series.marked || series.points.len() == 1 {
                    let note = series.notes.get(index).map(String::as_str);
                    series.look.mark(&mut marks, (across, up), note);
                }
            }
        }
        let mut class = series.look.class();
        if theme == Theme::Page {
            class = format!("line {class} {}", series.look.line_class());
            if marks.is_empty() {
                self.values(&mut marks, series, (x, y));
            }
        }
        let _ = write!(
            svg,
            "<g class=\"{class}\"><path d=\"{path}\" fill=\"none\" stroke=\"currentColor\" \
             stroke-width=\"{}\" stroke-linejoin=\"round\"{}/>{marks}</g>",
            series.stroke,
            series.look.dash_attribute(),
        );
    }

    /// Adds places of a line without marks at which a page shows its values.
    fn values(&self, svg: &mut String, series: &Series, (x, y): (Map, Map)) {
        let shown: Vec<&(f64, f64)> =
            series.points.iter().filter(|p| self.x.shows(p.0) && self.y.shows(p.1)).collect();
        if shown.is_empty() {
            return;
        }
        for nth in 0..VALUES.min(shown.len()) {
            // The values are spread over the width of the chart, and the last of them is the line's last.
            let at = x.from + (x.to - x.from) * (nth + 1) as f64 / VALUES as f64;
            let index = shown.partition_point(|point| x.at(point.0) < at).min(shown.len() - 1);
            let point = shown[index];
            let value = |axis: &Axis, value: f64| {
                let (names, unit) = ticks::labels(&[value], axis.scale, axis.quantity);
                let name = names.into_iter().next().unwrap_or_default();
                let name = if name.is_empty() { super::number::short(value) } else { name };
                if unit.is_empty() { name } else { format!("{name} {unit}") }
            };
            let _ = write!(
                svg,
                "<circle class=\"value\" cx=\"{}\" cy=\"{}\" r=\"6\"><title>{}: {}, {}</title></circle>",
                px(x.at(point.0)),
                px(y.at(point.1)),
                escape(&series.label),
                escape(&value(&self.x, point.0)),
                escape(&value(&self.y, point.1)),
            );
        }
    }

    /// Returns the position of each entry of the legend, as (column, row).
    fn legend_places(&self) -> Vec<(f64, f64)> {
        let (mut x, mut row) = (8.0, 0.0);
        let mut places = Vec::with_capacity(self.series.len());
        for series in &self.series {
            #[expect(clippy::cast_precision_loss, reason = "the length of a name")]
            let width = 46.0 + series.label.chars().count() as f64 * CHARACTER;
            if x + width > self.size.0 && x > 8.0 {
                (x, row) = (8.0, row + 1.0);
            }
            places.push((x, row));
            x += width;
        }
        places
    }

    fn legend_rows(&self) -> f64 {
        self.legend_places().last().map_or(0.0, |place| place.1 + 1.0)
    }

    fn legend(&self, svg: &mut String) {
        for (series, (x, row)) in self.series.iter().zip(self.legend_places()) {
            let y = 38.0 + row * LEGEND_ROW;
            let _ = write!(svg, "<g transform=\"translate({} {})\">", px(x), px(y - 5.0));
            series.look.draw_swatch(svg, series.marked);
            let _ = write!(
                svg,
                "</g><text class=\"ink\" x=\"{}\" y=\"{}\" fill=\"currentColor\">{}</text>",
                px(x + 34.0),
                px(y + 4.0),
                escape(&series.label)
            );
        }
    }
}

/// Determines the ends and the marks of an axis.
fn lay_out(
    axis: &Axis,
    (low, high): (f64, f64),
    pixels: (f64, f64),
    most: usize,
    round: bool,
) -> AxisLayout {
    let (low, high) = if axis.ends.is_some() && low < high {
        (low, high)
    } else if round || low >= high {
        // The y axis ends at round numbers; the x axis ends where the data end.
        ticks::widen(low, high, axis.scale, most - 1)
    } else {
        (low, high)
    };
    let map = Map { scale: axis.scale, low, high, from: pixels.0, to: pixels.1 };
    if !axis.names.is_empty() {
        let marks = axis
            .names
            .iter()
            .filter(|(value, _)| axis.shows(*value) && (low..=high).contains(value))
            .cloned()
            .collect();
        return AxisLayout { map, marks, title: axis.title.clone() };
    }
    let values = match axis.scale {
        Scale::Linear => ticks::linear(low, high, most),
        Scale::Log => ticks::log(low, high, most),
    };
    let (names, unit) = ticks::labels(&values, axis.scale, axis.quantity);
    let title =
        if unit.is_empty() { axis.title.clone() } else { format!("{} ({unit})", axis.title) };
    // The digits of a name may not tell a mark from the one before.
    let mut marks: Vec<(f64, String)> = values.into_iter().zip(names).collect();
    marks.dedup_by(|mark, before| mark.1 == before.1);
    AxisLayout { map, marks, title }
}

/// Returns whether names with letters of that width do not overlap.
fn clear<'a>(marks: impl Iterator<Item = &'a (f64, String)>, map: Map, character: f64) -> bool {
    let mut free_from = f64::NEG_INFINITY;
    for (value, name) in marks {
        #[expect(clippy::cast_precision_loss, reason = "the length of a name")]
        let half = name.chars().count() as f64 * character / 2.0;
        let at = map.at(*value);
        if at - half < free_from {
            return false;
        }
        free_from = at + half + 4.0;
    }
    true
}

/// Returns the marks whose names can be read: all, every second one, or the ones that have room.
fn readable(marks: &[(f64, String)], map: Map) -> Vec<&(f64, String)> {
    for stride in [1, 2] {
        if clear(marks.iter().step_by(stride), map, CHARACTER) {
            return marks.iter().step_by(stride).collect();
        }
    }
    let mut shown: Vec<&(f64, String)> = Vec::new();
    for mark in marks {
        let last = shown.last().copied();
        if clear(last.into_iter().chain([mark]), map, CHARACTER) {
            shown.push(mark);
        }
    }
    shown
}

/// Formats a coordinate with at most one decimal.
fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

/// Escapes `text` for XML and HTML, in content and in quoted attributes. Characters that XML forbids even when escaped
/// become U+FFFD.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                escaped.push(char::REPLACEMENT_CHARACTER);
            }
            c => escaped.push(c),
        }
    }
    escaped
}
