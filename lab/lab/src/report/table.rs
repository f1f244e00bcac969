//! The comparison as text for the terminal.
//!
//! It does not use a table crate, because those wrap the text of cells where space is scarce, and numbers must not be
//! wrapped. Here columns of low rank are left out instead, and size buckets continue in a further table.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::compare::{
    self, best_in, best_in_bucket, bucket, bucket_edges, measures, with_equal_buckets,
};
use super::{number, verdict};
use crate::results::columns;
use crate::results::{PointResult, SizeBucket, StreamSummary, Weight, grouped};
use crate::study::{self, Kind, TerminalTable};

/// The capabilities of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Whether the best values are bold, by ANSI escapes.
    pub color: bool,
    /// Whether lines are box-drawing characters instead of ASCII.
    pub unicode: bool,
}

/// The smallest width in columns for which tables are laid out.
const MIN_WIDTH: usize = 64;
/// The length beyond which the label of a point is shortened.
const MAX_LABEL: usize = 32;
/// The width of the columns that are always shown, including their lines.
const CORE_WIDTH: usize = 52;

/// The text of a cell, and whether it is the best value.
#[derive(Clone)]
struct Cell {
    text: String,
    best: bool,
}

/// A column with its cells. Adjacent strips with the same heading share it.
struct Strip {
    heading: String,
    name: String,
    cells: Vec<Cell>,
    left: bool,
}

/// Returns the tables of a comparison: overall, then by message size, then warnings about points. No line is wider than
/// `width`, or 64 if that is larger.
#[must_use]
pub fn render(
    points: &[PointResult],
    incomplete: Option<&str>,
    width: usize,
    style: Style,
) -> String {
    if points.is_empty() {
        return "no points\n".to_owned();
    }
    let width = width.max(MIN_WIDTH);
    let labels = labels(points, width);
    let mut text = summary(points, &labels, width, style);
    text.push_str(&by_size(points, &labels, width, style));
    for kind in study::KINDS {
        text.push_str(&(kind.terminal)(points, width, style));
    }
    text.push_str(&streams(points, width, style));
    let weights = [(Weight::Warning, "! "), (Weight::Note, "* "), (Weight::Window, "* ")];
    let remarks = weights.map(|(weight, mark)| (grouped(points, weight), mark));
    let incomplete = incomplete.map(|text| (vec![text.to_owned()], "! "));
    let remarks: Vec<_> = incomplete.into_iter().chain(remarks).collect();
    if remarks.iter().any(|(lines, _)| !lines.is_empty()) {
        text.push('\n');
    }
    for (remark, mark) in
        remarks.iter().flat_map(|(lines, mark)| lines.iter().map(move |it| (it, mark)))
    {
        for (nth, line) in wrap(&printable(remark), width - 2).into_iter().enumerate() {
            text.push_str(if nth == 0 { mark } else { "  " });
            text.push_str(&line);
            text.push('\n');
        }
    }
    if let Some(verdict) = verdict::verdict(points) {
        text.push('\n');
        for line in wrap(&printable(&verdict), width) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

/// Returns the first column, with the names of the points.
fn labels(points: &[PointResult], width: usize) -> Strip {
    let most = MAX_LABEL.min(width - CORE_WIDTH);
    let cells = points
        .iter()
        .map(|point| Cell { text: shorten(&printable(&point.label), most), best: false })
        .collect();
    Strip { heading: String::new(), name: String::new(), cells, left: true }
}

fn summary(points: &[PointResult], labels: &Strip, width: usize, style: Style) -> String {
    let mut columns = measures(points);
    loop {
        let strips: Vec<Strip> = columns
            .iter()
            .map(|(column, shown)| {
                let text = |p: &PointResult| {
                    let text = compare::measure(&p.summary, (column, *shown));
                    if style.unicode { text } else { text.replace('\u{b1}', "+-") }
                };
                let best = best_in(points, (column, *shown));
                let cells = points.iter().zip(best).map(|(p, best)| Cell { text: text(p), best });
                let (heading, name) = (shown.group.to_owned(), shown.name.to_owned());
                Strip { heading, name, cells: cells.collect(), left: false }
            })
            .collect();
        let all: Vec<&Strip> = std::iter::once(labels).chain(&strips).collect();
        let rank = columns.iter().map(|(_, shown)| shown.rank).max().unwrap_or(0);
        if total_width(&all) <= width || rank == 0 {
            return draw(&all, style);
        }
        columns.retain(|(_, shown)| shown.rank < rank);
    }
}

/// Returns the table of a kind of workload; empty if it has none, or no point is of the kind.
pub(crate) fn kind_table<K: Kind>(points: &[PointResult], width: usize, style: Style) -> String {
    let Some(TerminalTable(title, columns)) = K::TERMINAL else { return String::new() };
    let rows = || points.iter().filter_map(|p| p.summary.of::<K>().map(|of| (p, of)));
    if rows().next().is_none() {
        return String::new();
    }
    let most = MAX_LABEL.min(width - CORE_WIDTH);
    let label = |p: &PointResult| Cell { text: shorten(&printable(&p.label), most), best: false };
    let points = Strip {
        heading: String::new(),
        name: String::new(),
        cells: rows().map(|(p, _)| label(p)).collect(),
        left: true,
    };
    let mut columns: Vec<_> = compare::shown(columns).collect();
    loop {
        let strips = columns.iter().map(|(column, shown)| {
            let text = |of| compare::text(&(column.get)(of), shown.unit);
            let cells = rows().map(|(_, of)| Cell { text: text(of), best: false });
            let (heading, name) = (shown.group.to_owned(), shown.name.to_owned());
            Strip { heading, name, cells: cells.collect(), left: false }
        });
        let strips: Vec<Strip> = strips.collect();
        let all: Vec<&Strip> = std::iter::once(&points).chain(&strips).collect();
        let rank = columns.iter().map(|(_, shown)| shown.rank).max().unwrap_or(0);
        if total_width(&all) <= width || rank == 0 {
            return format!("\n{title}\n{}", draw(&all, style));
        }
        columns.retain(|(_, shown)| shown.rank < rank);
    }
}

/// Returns the table of the background streams, by point.
fn streams(points: &[PointResult], width: usize, style: Style) -> String {
    let columns_of = points;
    let rows = || points.iter().flat_map(|p| compare::streams(p).map(move |stream| (p, stream)));
    if rows().next().is_none() {
        return String::new();
    }
    let most = MAX_LABEL.min(width - CORE_WIDTH);
    let label = |(point, _): (&PointResult, &StreamSummary)| Cell {
        text: shorten(&printable(&point.label), most),
        best: false,
    };
    let points = Strip {
        heading: String::new(),
        name: String::new(),
        cells: rows().map(label).collect(),
        left: true,
    };
    let strips = compare::stream_columns(columns_of).into_iter().map(|(column, shown)| {
        let cell = |(_, stream): (&PointResult, &StreamSummary)| {
            let text = compare::text(&(column.get)(stream), shown.unit);
            Cell { text: printable(&text), best: false }
        };
        let (heading, name) = (String::new(), shown.name.to_owned());
        let left = column.kind == columns::Kind::Text;
        Strip { heading, name, cells: rows().map(cell).collect(), left }
    });
    let strips: Vec<Strip> = strips.collect();
    let mut all: Vec<&Strip> = std::iter::once(&points).chain(&strips).collect();
    while all.len() > 2 && total_width(&all) > width {
        all.pop();
    }
    format!("\nBeside the measured workload\n{}", draw(&all, style))
}

/// A function that returns a number of a bucket.
type Measure = fn(&SizeBucket) -> f64;

fn by_size(points: &[PointResult], labels: &Strip, width: usize, style: Style) -> String {
    let mut text = String::new();
    for alike in with_equal_buckets(points) {
        let cells = alike.clone().map(|index| labels.cells[index].clone()).collect();
        let labels = Strip { heading: String::new(), name: String::new(), cells, left: true };
        text.push_str(&by_size_of(&points[alike], &labels, width, style));
    }
    if !text.is_empty() {
        text.insert_str(0, "\nSlowdown by message size");
    }
    text
}

/// Returns the tables of points that have the same buckets.
fn by_size_of(points: &[PointResult], labels: &Strip, width: usize, style: Style) -> String {
    let mut strips: Vec<Strip> = Vec::new();
    for edge in bucket_edges(points) {
        let measures: [(&str, Measure); 2] = [("p50", |b| b.p50), ("p99", |b| b.p99)];
        for (name, of) in measures {
            let value = |p: &PointResult| bucket(p, edge).map_or(f64::NAN, of);
            let best = best_in_bucket(points, edge, of);
            let cells = points
                .iter()
                .zip(best)
                .map(|(p, best)| Cell { text: number::short(value(p)), best })
                .collect();
            let (heading, name) = (number::bucket(edge), name.to_owned());
            strips.push(Strip { heading, name, cells, left: false });
        }
    }
    let mut text = String::new();
    let mut rest: &[Strip] = &strips;
    while !rest.is_empty() {
        // The two columns of a bucket stay together.
        let mut take = 2;
        let fits = |n: usize| {
            let all: Vec<&Strip> = std::iter::once(labels).chain(&rest[..n]).collect();
            total_width(&all) <= width
        };
        while take + 2 <= rest.len() && fits(take + 2) {
            take += 2;
        }
        let (now, later) = rest.split_at(take);
        text.push('\n');
        let all: Vec<&Strip> = std::iter::once(labels).chain(now).collect();
        text.push_str(&draw(&all, style));
        rest = later;
    }
    text
}

/// Groups adjacent strips with the same heading, with the width of each.
fn groups<'a>(strips: &'a [&'a Strip]) -> Vec<(&'a [&'a Strip], Vec<usize>)> {
    strips
        .chunk_by(|a, b| a.heading == b.heading && !a.heading.is_empty())
        .map(|group| {
            let mut widths: Vec<usize> = group
                .iter()
                .map(|strip| {
                    let cells = strip.cells.iter().map(|cell| cell.text.width());
                    cells.chain([strip.name.width()]).max().unwrap_or(0)
                })
                .collect();
            // A heading wider than its columns widens the last one.
            let inner = inner_width(&widths);
            if let Some(last) = widths.last_mut() {
                *last += group[0].heading.width().saturating_sub(inner);
            }
            (group, widths)
        })
        .collect()
}

/// Returns the width of a group, whose columns are two spaces apart.
fn inner_width(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)
}

/// Returns the width of all groups, which are separated by a line with a space on each side.
fn total_width(strips: &[&Strip]) -> usize {
    let groups = groups(strips);
    groups.iter().map(|(_, widths)| inner_width(widths)).sum::<usize>() + 3 * (groups.len() - 1)
}

fn draw(strips: &[&Strip], style: Style) -> String {
    let groups = groups(strips);
    let (bar, rule, cross) =
        if style.unicode { (" │ ", "─", "─┼─") } else { (" | ", "-", "-+-") };
    let bold = |text: String, on: bool| {
        if on && style.color { format!("\u{1b}[1m{text}\u{1b}[0m") } else { text }
    };
    let line = |cells: Vec<String>, between: &str| cells.join(between).trim_end().to_owned() + "\n";

    let mut text = String::new();
    if strips.iter().any(|s| !s.heading.is_empty()) {
        let headings = groups
            .iter()
            .map(|(group, widths)| pad(&group[0].heading, inner_width(widths), true))
            .collect();
        text.push_str(&line(headings, bar));
    }
    let row = |cell: &dyn Fn(&Strip) -> Cell| -> String {
        let parts = groups
            .iter()
            .map(|(group, widths)| {
                let cells = group.iter().zip(widths).map(|(strip, width)| {
                    let cell = cell(strip);
                    bold(pad(&cell.text, *width, strip.left), cell.best)
                });
                cells.collect::<Vec<_>>().join("  ")
            })
            .collect();
        line(parts, bar)
    };
    text.push_str(&row(&|strip| Cell { text: strip.name.clone(), best: false }));
    let rules = groups.iter().map(|(_, widths)| rule.repeat(inner_width(widths))).collect();
    text.push_str(&line(rules, cross));
    for index in 0..strips[0].cells.len() {
        text.push_str(&row(&|strip| strip.cells[index].clone()));
    }
    text
}

fn pad(text: &str, width: usize, left: bool) -> String {
    let spaces = " ".repeat(width.saturating_sub(text.width()));
    if left { format!("{text}{spaces}") } else { format!("{spaces}{text}") }
}

/// Returns `text` without control characters, so that a name from a file cannot control the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Shortens `text` to at most `width` columns. Two dots mark the cut.
fn shorten(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for c in text.chars() {
        if short.width() + c.width().unwrap_or(0) + 2 > width {
            break;
        }
        short.push(c);
    }
    short + ".."
}

/// Wraps `text` to lines of at most `width` columns, at spaces where possible.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word = word.to_owned();
        loop {
            let line = lines.last_mut().expect("starts with one, only grows");
            let gap = usize::from(!line.is_empty());
            if line.width() + gap + word.width() <= width {
                if gap == 1 {
                    line.push(' ');
                }
                line.push_str(&word);
                break;
            }
            if gap == 0 {
                // The word is wider than a line.
                let mut used = 0;
                let at = word
                    .char_indices()
                    .find(|(_, c)| {
                        used += c.width().unwrap_or(0);
                        used > width
                    })
                    .map_or(word.len(), |(at, _)| at);
                let rest = word.split_off(at);
                line.push_str(&word);
                word = rest;
            }
            lines.push(String::new());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicode_width::UnicodeWidthStr;

    use super::{super::demo, *};

    const ASCII: Style = Style { color: false, unicode: false };

    #[test]
    fn three_transports() {
        let style = Style { color: false, unicode: true };
        insta::assert_snapshot!(render(&demo::transports().points, None, 100, style));
    }

    #[test]
    fn a_sweep_in_ascii_and_80_columns() {
        insta::assert_snapshot!(render(&demo::sweep().points, None, 80, ASCII));
    }

    #[test]
    fn streams_beside_the_measured_ones() {
        insta::assert_snapshot!(render(&demo::incast().points, None, 100, ASCII));
    }

    #[test]
    fn bold_where_best() {
        let style = Style { color: true, unicode: false };
        let text = render(&demo::transports().points, None, 100, style);
        let plain = render(&demo::transports().points, None, 100, ASCII);
        assert!(text.contains("\u{1b}[1m"));
        assert_eq!(text.replace("\u{1b}[1m", "").replace("\u{1b}[0m", ""), plain);
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        let mut point = demo::transports().points.remove(0);
        point.label = "\u{1b}[2Jgone\r\n".to_owned();
        point.summary.messages.unfinished = 1;
        let text = render(&[point], None, 100, ASCII);
        assert!(!text.contains('\u{1b}') && !text.contains('\r'), "{text}");
    }

    #[test]
    fn nothing_known() {
        assert_eq!(render(&[], None, 100, ASCII), "no points\n");
        let text = render(&[demo::unknown()], None, 100, ASCII);
        assert!(text.contains('-'), "{text}");
    }

    proptest! {
        #[test]
        fn fits(width in 0..160_usize, labels in proptest::collection::vec(".{0,60}", 1..6)) {
            let mut points = demo::transports().points;
            for (point, label) in points.iter_mut().zip(labels) {
                point.label = label;
                point.summary.messages.failed = 7;
            }
            let text = render(&points, None, width, ASCII);
            for line in text.lines() {
                prop_assert!(line.width() <= width.max(64), "{width}: {line}");
            }
        }
    }
}
