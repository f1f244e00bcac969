//! The tables of the page. A table that is wider than the page goes on in a further one, so that no column is hidden at its edge.

use std::fmt::Write;

use super::strips::{Cell, Strip, divide};
use super::svg::{self, Look, escape};
use crate::results::PointResult;

/// The width of the page in pixels on a desktop.
const PAGE: f64 = 1112.0;
/// The number of rows above which all but the first of several tables are folded.
const MAX_ROWS: usize = 20;
/// The width of a character in pixels, rather too large than too small, and that of the space around a cell.
const CHARACTER: f64 = 8.2;
const PADDING: f64 = 12.0;
/// The space before a group of columns.
const BEFORE_GROUP: f64 = 7.0;
/// The width of the sample of a line in the first column.
const SWATCH: f64 = 36.0;
/// The number of characters beyond which texts are wrapped, as in the style of the page.
const MAX_TEXT: usize = 46;

/// The point of a row, and the look of its line in charts.
pub(super) type Row<'a> = (&'a PointResult, Option<Look>);

/// Writes a table, and those in which it goes on.
pub(super) fn write(page: &mut String, rows: &[Row<'_>], strips: &[Strip]) {
    let labels = rows.iter().map(|(point, _)| point.label.chars().count().min(MAX_TEXT));
    let head = pixels(labels.max().unwrap_or(0)) + SWATCH;
    let tables = divide(strips, |strips| head + width(strips) <= PAGE);
    for (nth, strips) in tables.into_iter().enumerate() {
        let is_folded = nth > 0 && rows.len() > MAX_ROWS;
        if is_folded {
            let names: Vec<String> = strips.iter().map(Strip::full_name).collect();
            let names = escape(&names.join(", "));
            let _ = write!(page, "<details><summary>More columns: {names}</summary>");
        }
        table(page, rows, strips);
        if is_folded {
            page.push_str("</details>\n");
        }
    }
}

fn pixels(characters: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "the length of a text")]
    let text = characters as f64 * CHARACTER;
    text + PADDING
}

/// Returns the width of adjacent columns in pixels.
fn width(strips: &[Strip]) -> f64 {
    let column = |strip: &Strip| {
        let texts = strip.cells.iter().map(|cell| &cell.text).chain([&strip.name]);
        let most = texts.map(|text| text.chars().count()).max().unwrap_or(0);
        pixels(if strip.left { most.min(MAX_TEXT) } else { most })
    };
    let of_group = |group: &[Strip]| -> f64 {
        let columns: f64 = group.iter().map(column).sum();
        BEFORE_GROUP + columns.max(pixels(group[0].heading.chars().count()))
    };
    groups(strips).map(of_group).sum()
}

fn groups(strips: &[Strip]) -> impl Iterator<Item = &[Strip]> {
    strips.chunk_by(|a, b| a.heading == b.heading && !a.heading.is_empty())
}

fn table(page: &mut String, rows: &[Row<'_>], strips: &[Strip]) {
    page.push_str("<div class=\"scroll\"><table><thead>");
    if strips.iter().any(|strip| !strip.heading.is_empty()) {
        page.push_str("<tr><th></th>");
        for group in groups(strips) {
            let heading = escape(&group[0].heading.replace("<=", "\u{2264}"));
            let _ = write!(
                page,
                "<th colspan=\"{}\" scope=\"colgroup\" class=\"first\">{heading}</th>",
                group.len()
            );
        }
        page.push_str("</tr>");
    }
    page.push_str("<tr><th></th>");
    let classes: Vec<String> =
        groups(strips).flat_map(|group| group.iter().enumerate().map(class)).collect();
    for (strip, class) in strips.iter().zip(&classes) {
        let _ = write!(page, "<th scope=\"col\"{}>{}</th>", attribute(class), escape(&strip.name));
    }
    page.push_str("</tr></thead><tbody>\n");
    for (index, (point, look)) in rows.iter().enumerate() {
        row_head(page, point, *look);
        for (strip, class) in strips.iter().zip(&classes) {
            cell(page, &strip.cells[index], class);
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}

/// Returns the class of a column by its position in its group.
fn class((nth, strip): (usize, &Strip)) -> String {
    let first = if nth == 0 { "first" } else { "" };
    let text = if strip.left { "text" } else { "" };
    format!("{first} {text}").trim().to_owned()
}

fn attribute(class: &str) -> String {
    if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") }
}

/// Writes the first cell of a point's row.
fn row_head(page: &mut String, point: &PointResult, look: Option<Look>) {
    let swatch = look.map_or_else(String::new, |look| svg::swatch(look, true));
    let missing = if point.summary.is_complete() {
        ""
    } else {
        " <span class=\"missing\" title=\"messages are missing\">!</span>"
    };
    let _ = write!(page, "<tr><th scope=\"row\">{swatch}{}{missing}</th>", escape(&point.label));
}

fn cell(page: &mut String, cell: &Cell, class: &str) {
    let title = match cell.note.as_str() {
        "" => String::new(),
        note => format!(" title=\"{}\"", escape(note)),
    };
    let text = escape(&units(&cell.text));
    let content = if cell.best { format!("<b>{text}</b>") } else { text };
    let few = if cell.few { "few" } else { "" };
    let class = attribute(format!("{class} {few}").trim());
    let _ = write!(page, "<td{class}{title}>{content}</td>");
}

/// Replaces the "u" of micro units by "µ".
fn units(text: &str) -> String {
    let unit = |word| if word == "us" { "\u{b5}s" } else { word };
    text.split(' ').map(unit).collect::<Vec<_>>().join(" ")
}
