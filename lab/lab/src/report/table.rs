//! The comparison as text for the terminal.
//!
//! It does not use a table crate, because those wrap the text of cells where space is scarce, and numbers must not be
//! wrapped. Here only texts are wrapped. Columns of low rank are left out and named, and what is still too wide continues
//! in a further table.

use unicode_width::UnicodeWidthStr;

use super::compare::{self, with_equal_buckets};
use super::strips::{self, Strip, divide, plain};
use super::verdict;
use super::wrap::{wrap, wrap_parts};
use crate::results::{PointResult, Weight, grouped};
use crate::study::{self, Kind, TerminalTable};

/// How tables are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Whether the best values are bold, by ANSI escapes.
    pub color: bool,
    /// Whether lines are box-drawing characters instead of ASCII.
    pub unicode: bool,
    /// Whether tables have all columns, in lines as long as it takes.
    pub wide: bool,
}

/// The smallest width in columns for which tables are laid out.
const MIN_WIDTH: usize = 64;
/// The width beyond which texts in a table are wrapped.
const MAX_TEXT: usize = 32;
/// The width of the columns that are always shown, including their lines.
const CORE_WIDTH: usize = 52;

/// Returns the tables of a comparison: overall, then by message size, then warnings about points. Unless the tables are
/// wide, no line is wider than `width`, or 64 if that is larger.
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
    let mut text = table(points.iter(), strips::of_points(points), width, style);
    let by_size = with_equal_buckets(points).into_iter().map(|alike| {
        let points = &points[alike];
        table(points.iter(), strips::of_sizes(points), width, style)
    });
    let by_size: Vec<String> = by_size.filter(|table| !table.is_empty()).collect();
    text.push_str(&titled("Slowdown by message size", by_size.join("\n")));
    for kind in study::KINDS {
        text.push_str(&(kind.terminal)(points, width, style));
    }
    let rows = points.iter().flat_map(|point| compare::streams(point).map(move |_| point));
    let streams = table(rows, strips::of_streams(points), width, style);
    text.push_str(&titled("Background streams", streams));
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

/// Returns the table of a kind of workload; empty if it has none, or no point is of the kind.
pub(crate) fn kind_table<K: Kind>(points: &[PointResult], width: usize, style: Style) -> String {
    let Some(TerminalTable(title, columns)) = K::TERMINAL else { return String::new() };
    let (points, rows): (Vec<_>, Vec<_>) =
        points.iter().filter_map(|p| p.summary.of::<K>().map(|of| (p, of))).unzip();
    let columns: Vec<_> = compare::shown(columns).collect();
    titled(title, table(points.into_iter(), strips::of_rows(&columns, &rows), width, style))
}

/// Puts a title above tables, if there are any.
fn titled(title: &str, tables: String) -> String {
    if tables.is_empty() { tables } else { format!("\n{title}\n{tables}") }
}

/// Returns a table whose rows are named by their points, and the tables in which it goes on; empty without rows or columns.
fn table<'a>(
    rows: impl Iterator<Item = &'a PointResult>,
    mut strips: Vec<Strip>,
    width: usize,
    style: Style,
) -> String {
    let labels = rows.map(|point| plain(point.label.clone())).collect::<Vec<_>>();
    if labels.is_empty() || strips.is_empty() {
        return String::new();
    }
    let mut labels = Strip::new("", "", labels).of_texts();
    for cell in strips.iter_mut().chain([&mut labels]).flat_map(|strip| &mut strip.cells) {
        cell.text = printable(&cell.text);
        if !style.unicode {
            cell.text = cell.text.replace('\u{b1}', "+-");
        }
    }
    let labels = Laid::of(&labels, width, style);
    if style.wide {
        return draw(&labels, &strips, width, style);
    }
    let fits = |strips: &[Strip]| {
        let laid = strips.iter().map(|strip| Laid::of(strip, width, style));
        let all: Vec<Laid> = std::iter::once(labels.clone()).chain(laid).collect();
        total_width(&all) <= width
    };
    let mut left_out: Vec<Strip> = Vec::new();
    loop {
        let rank = strips.iter().map(|strip| strip.rank).max().unwrap_or(0);
        if rank == 0 || fits(&strips) {
            break;
        }
        left_out.extend(strips.extract_if(.., |strip| strip.rank == rank));
    }
    let tables = divide(&strips, fits).into_iter();
    let tables: Vec<String> = tables.map(|strips| draw(&labels, strips, width, style)).collect();
    tables.join("\n") + &note(&left_out, width)
}

/// Names the columns that are left out; empty if there are none.
fn note(left_out: &[Strip], width: usize) -> String {
    if left_out.is_empty() {
        return String::new();
    }
    let names: Vec<String> = left_out.iter().rev().map(Strip::full_name).collect();
    let columns = if names.len() == 1 { "column" } else { "columns" };
    let text = format!("{} {columns} left out ({}): --wide", names.len(), names.join(", "));
    wrap(&text, width).iter().fold(String::new(), |text, line| text + line + "\n")
}

/// A column whose cells are wrapped into lines.
#[derive(Clone)]
struct Laid {
    heading: String,
    name: String,
    left: bool,
    cells: Vec<Vec<String>>,
    best: Vec<bool>,
}

impl Laid {
    fn of(strip: &Strip, width: usize, style: Style) -> Self {
        let lines = |text: &String| {
            if strip.left && !style.wide {
                wrap_parts(text, MAX_TEXT.min(width - CORE_WIDTH))
            } else {
                vec![text.clone()]
            }
        };
        Self {
            heading: strip.heading.clone(),
            name: strip.name.clone(),
            left: strip.left,
            cells: strip.cells.iter().map(|cell| lines(&cell.text)).collect(),
            best: strip.cells.iter().map(|cell| cell.best).collect(),
        }
    }

    fn width(&self) -> usize {
        let lines = self.cells.iter().flatten().map(|line| line.width());
        lines.chain([self.name.width()]).max().unwrap_or(0)
    }
}

/// Groups adjacent columns with the same heading, with the width of each.
fn groups(columns: &[Laid]) -> Vec<(&[Laid], Vec<usize>)> {
    columns
        .chunk_by(|a, b| a.heading == b.heading && !a.heading.is_empty())
        .map(|group| {
            let mut widths: Vec<usize> = group.iter().map(Laid::width).collect();
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
fn total_width(columns: &[Laid]) -> usize {
    let groups = groups(columns);
    groups.iter().map(|(_, widths)| inner_width(widths)).sum::<usize>() + 3 * (groups.len() - 1)
}

fn draw(labels: &Laid, strips: &[Strip], width: usize, style: Style) -> String {
    let laid = strips.iter().map(|strip| Laid::of(strip, width, style));
    let columns: Vec<Laid> = std::iter::once(labels.clone()).chain(laid).collect();
    let groups = groups(&columns);
    let (bar, rule, cross) =
        if style.unicode { (" │ ", "─", "─┼─") } else { (" | ", "-", "-+-") };
    let bold = |text: String, on: bool| {
        if on && style.color { format!("\u{1b}[1m{text}\u{1b}[0m") } else { text }
    };
    let line = |cells: Vec<String>, between: &str| cells.join(between).trim_end().to_owned() + "\n";

    let mut text = String::new();
    if columns.iter().any(|column| !column.heading.is_empty()) {
        let headings = groups
            .iter()
            .map(|(group, widths)| pad(&group[0].heading, inner_width(widths), true))
            .collect();
        text.push_str(&line(headings, bar));
    }
    let row = |cell: &dyn Fn(&Laid) -> (String, bool)| -> String {
        let parts = groups
            .iter()
            .map(|(group, widths)| {
                let cells = group.iter().zip(widths).map(|(column, width)| {
                    let (text, best) = cell(column);
                    bold(pad(&text, *width, column.left), best)
                });
                cells.collect::<Vec<_>>().join("  ")
            })
            .collect();
        line(parts, bar)
    };
    text.push_str(&row(&|column| (column.name.clone(), false)));
    let rules = groups.iter().map(|(_, widths)| rule.repeat(inner_width(widths))).collect();
    text.push_str(&line(rules, cross));
    for index in 0..labels.cells.len() {
        let height = columns.iter().map(|column| column.cells[index].len()).max().unwrap_or(0);
        for nth in 0..height {
            text.push_str(&row(&|column| {
                let line = column.cells[index].get(nth);
                (line.cloned().unwrap_or_default(), line.is_some() && column.best[index])
            }));
        }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicode_width::UnicodeWidthStr;

    use super::{super::demo, *};

    const ASCII: Style = Style { color: false, unicode: false, wide: false };

    #[test]
    fn three_transports() {
        let style = Style { color: false, unicode: true, wide: false };
        insta::assert_snapshot!(render(&demo::transports().points, None, 100, style));
    }

    #[test]
    fn a_sweep_in_ascii_and_80_columns() {
        insta::assert_snapshot!(render(&demo::sweep().points, None, 80, ASCII));
    }

    #[test]
    fn background_streams() {
        insta::assert_snapshot!(render(&demo::incast().points, None, 100, ASCII));
    }

    #[test]
    fn bold_where_best() {
        let style = Style { color: true, unicode: false, wide: false };
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

    /// The first table, and the line that names what it leaves out.
    fn first(points: &[PointResult], width: usize, style: Style) -> String {
        let text = render(points, None, width, style);
        text.split("\nSlowdown by").next().unwrap().to_owned()
    }

    #[test]
    fn wide_tables_have_every_column() {
        let points = demo::transports().points;
        let wide = first(&points, 64, Style { wide: true, ..ASCII });
        for strip in strips::of_points(&points) {
            assert!(wide.contains(&strip.heading) && wide.contains(&strip.name), "{wide}");
        }
        assert!(!wide.contains("left out"), "{wide}");
        let name = "a name that is too long for a column of a terminal".to_owned();
        let points = [PointResult { label: name.clone(), ..points[0].clone() }];
        assert!(first(&points, 64, Style { wide: true, ..ASCII }).contains(&name));
        assert!(!first(&points, 64, ASCII).contains(&name));
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

        /// Names of points are wrapped and never cut, so that what distinguishes them is there.
        #[test]
        fn names_are_whole(
            width in 0..160_usize,
            names in proptest::collection::vec("[a-z' %]{1,40}(, [a-z]{1,40} [0-9]{1,6}){0,3}", 3),
        ) {
            let mut points = demo::transports().points;
            for (point, name) in points.iter_mut().zip(&names) {
                point.label.clone_from(name);
            }
            let table = first(&points, width, ASCII);
            let rows = table.lines().skip_while(|line| !line.contains("-+-")).skip(1);
            let shown: String = rows.filter_map(|line| Some(line.split_once(" |")?.0)).collect();
            let words = |text: &str| text.replace(' ', "");
            prop_assert_eq!(words(&shown), words(&names.concat()), "{}", table);
        }

        /// A column is there, or it is named as left out.
        #[test]
        fn no_column_vanishes(width in 0..260_usize) {
            let points = demo::transports().points;
            let table = first(&points, width, ASCII);
            let headings = table.lines().nth(1).unwrap_or_default();
            let shown = headings.split_whitespace().filter(|word| *word != "|").count();
            let note = table.split_once("left out (").map_or("", |(_, note)| note).replace('\n', " ");
            let (note, _) = note.split_once(')').unwrap_or_default();
            let left_out: Vec<&str> = note.split(", ").filter(|name| !name.is_empty()).collect();
            let all = strips::of_points(&points);
            prop_assert_eq!(shown + left_out.len(), all.len(), "{}", table);
            let names: Vec<String> = all.iter().map(Strip::full_name).collect();
            prop_assert!(left_out.iter().all(|name| names.iter().any(|it| it == name)), "{table}");
        }
    }
}
