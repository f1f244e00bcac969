//! A map of the links' utilisation.

use std::collections::BTreeMap;
use std::fmt::Write;

use rackweave_sim::result::LinkStats;

use super::svg::escape;
use super::{charts, html};
use crate::results::PointResult;

/// The most points whose links are drawn, and the most links of a point: a cell is some 90 bytes of the page.
const MAX_POINTS: usize = 6;
const MAX_LINKS: usize = 1600;
/// The number of cells in a row, and the size of a cell in pixels.
const PER_ROW: usize = 64;
const CELL: usize = 12;
/// The width of the names of tiers in pixels.
const NAMES: usize = 130;

/// Writes the links of each point as cells, by tier: the stronger the colour, the busier, in light and in dark.
pub(super) fn links(page: &mut String, points: &[PointResult]) {
    let is_drawn = |point: &&PointResult| (1..=MAX_LINKS).contains(&point.links.len());
    let drawn: Vec<(usize, &PointResult)> =
        points.iter().enumerate().filter(|(_, point)| is_drawn(point)).collect();
    if drawn.is_empty() {
        return;
    }
    let is_folded = html::folds(points);
    html::begin(page, "Links", is_folded);
    page.push_str(
        "<p>Each cell is one direction of a link, in the order of the fabric; the stronger its colour, the larger the \
         share of the measured time in which it was sending. A cell shows its name and number under the pointer; links.csv has all \
         of them.</p>\n",
    );
    let looks = charts::looks(points);
    let mut folded = false;
    for (nth, (index, point)) in drawn.iter().take(MAX_POINTS).enumerate() {
        if nth == 2 {
            page.push_str("<details><summary>Other points</summary>");
            folded = true;
        }
        let class = looks[*index].map_or_else(|| "ink".to_owned(), |look| look.class());
        let _ = writeln!(
            page,
            "<figure><figcaption>{}</figcaption>{}</figure>",
            escape(&point.label),
            map(&point.links, &class)
        );
    }
    if folded {
        page.push_str("</details>\n");
    }
    if drawn.len() > MAX_POINTS {
        let _ = writeln!(
            page,
            "<p class=\"note\">The first {MAX_POINTS} of {} points are shown.</p>",
            drawn.len()
        );
    }
    html::end(page, is_folded);
}

/// Returns the kinds of a link's ends: "leaf to spine" of "leaf0->spine3".
fn tier(link: &LinkStats) -> String {
    let kind = |end: &str| match end.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "h" => "host".to_owned(),
        other => other.to_owned(),
    };
    let (from, to) = link.name.split_once("->").unwrap_or((&link.name, ""));
    format!("{} to {}", kind(from), kind(to))
}

fn map(links: &[LinkStats], class: &str) -> String {
    let mut tiers: BTreeMap<String, Vec<&LinkStats>> = BTreeMap::new();
    for link in links {
        tiers.entry(tier(link)).or_default().push(link);
    }
    let rows: usize = tiers.values().map(|links| links.len().div_ceil(PER_ROW)).sum();
    let widest = tiers.values().map(|links| links.len().min(PER_ROW)).max().unwrap_or(0);
    let (width, height) = (NAMES + widest * CELL, rows * CELL + tiers.len() * 6);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"heat {class}\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         role=\"img\" aria-label=\"utilisation of links\" font-size=\"11\">"
    );
    let mut top = 0;
    for (tier, links) in &tiers {
        let _ = write!(
            svg,
            "<text class=\"soft\" x=\"0\" y=\"{}\" fill=\"currentColor\">{}</text>",
            top + CELL - 2,
            escape(tier)
        );
        for (nth, link) in links.iter().enumerate() {
            let (x, y) = (NAMES + nth % PER_ROW * CELL, top + nth / PER_ROW * CELL);
            let share =
                if link.utilisation.is_finite() { link.utilisation.clamp(0.0, 1.0) } else { 0.0 };
            let _ = write!(
                svg,
                "<rect class=\"cell\" x=\"{x}\" y=\"{y}\" width=\"{0}\" height=\"{0}\" fill=\"currentColor\" \
                 fill-opacity=\"{1:.2}\"><title>{2}: {3:.1} %</title></rect>",
                CELL - 1,
                0.06 + 0.94 * share,
                escape(&link.name),
                share * 100.0
            );
        }
        top += links.len().div_ceil(PER_ROW) * CELL + 6;
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_in_rows_by_tier() {
        let link = |name: &str, utilisation: f64| LinkStats {
            name: name.to_owned(),
            utilisation,
            mean_queue_bytes: 0.0,
            max_queue_bytes: 0,
            drops: 0,
            queue_bytes: 0,
            frames: 0,
            bytes: 0,
            pauses: 0,
            paused: 0.0,
        };
        let links =
            [link("h0->leaf0", 0.5), link("leaf0->h0", f64::NAN), link("leaf0->spine1", 1.0)];
        let svg = map(&links, "s0");
        for text in ["host to leaf", "leaf to host", "leaf to spine", "h0-&gt;leaf0: 50.0 %"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert_eq!(svg.matches("<rect").count(), 3);
        assert!(roxmltree::Document::parse(&svg).is_ok());
    }
}
