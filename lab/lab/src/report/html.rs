//! The comparison as one self-contained HTML page without fonts or network access, whose charts a script makes interactive.
//!
//! The page is whole without the script, and well-formed XML, which the tests check.

use std::fmt::Write;
use std::marker::PhantomData;

use rackweave_sim::result::End;

use super::charts::{self, Section};
use super::compare::{self, shown};
use super::grid::{self, Row};
use super::strips::{self, FEW, Strip};
use super::svg::{self, PodChart, Theme, escape};
use super::{Head, figures, heat, number, pods, verdict};
use crate::command_line;
use crate::results::columns::Column;
use crate::results::{PointResult, StreamSummary, Weight, end_name, grouped};
use crate::study::{self, Kind};

/// The style sheet of the page, without the lines' colours.
pub const STYLE: &str = include_str!("report.css");

/// The most points whose circuits are drawn, and those of them that are not folded.
const MAX_PODS: usize = 12;
const MAX_OPEN_PODS: usize = 2;

/// The most points whose details are not folded.
const MAX_UNFOLDED: usize = 4;

/// Returns the page of a comparison.
#[must_use]
pub fn render(head: &Head, points: &[PointResult]) -> String {
    let title = if head.title.is_empty() { "Comparison" } else { &head.title };
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\"><head>\
         <meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <meta name=\"color-scheme\" content=\"light dark\"/>\
         {}<title>{}</title>\n<style>{}\n{}</style></head>\n{}",
        figures::policy(),
        escape(title),
        colours(),
        STYLE,
        figures::body(),
    );
    header(&mut page, head, points, title);
    page.push_str("<main>\n");
    if let Some(incomplete) = &head.incomplete {
        const PARTIAL: &str = "<strong>These results are partial.</strong> Where a point is missing, nothing is called the best.";
        alert(&mut page, "alert", PARTIAL, std::slice::from_ref(incomplete));
    }
    if points.is_empty() {
        page.push_str("<p class=\"alert\">There are no points to compare.</p>\n");
    } else {
        warnings(&mut page, points);
        summary(&mut page, points);
        kinds(&mut page, points, false);
        circuits(&mut page, points);
        let folded = folds(points);
        if let Some(section) = charts::traffic_section(points) {
            charts_section(&mut page, &section, folded);
        }
        kinds(&mut page, points, true);
        let mut sections = charts::sections(points).into_iter().peekable();
        while let Some(section) = sections.next_if(|s| s.title != charts::LATENCY_TITLE) {
            charts_section(&mut page, &section, false);
        }
        by_size(&mut page, points);
        streams(&mut page, points);
        if let Some(section) = charts::goodput_section(points) {
            charts_section(&mut page, &section, folded);
        }
        for section in sections {
            charts_section(&mut page, &section, folded);
        }
        heat::links(&mut page, points);
        drops(&mut page, points);
    }
    files(&mut page, head);
    reproduce(&mut page, head, points);
    terms(&mut page, points);
    page.push_str("</main>\n");
    let _ = write!(
        page,
        "<footer>Written by Rackweave {}.</footer>\n{}</body></html>\n",
        escape(&head.version),
        figures::script()
    );
    page
}

/// Returns the lines' colours as classes, for the light and the dark theme.
pub fn colours() -> String {
    let rules = |palette: &[&str]| {
        palette.iter().enumerate().fold(String::new(), |mut rules, (index, colour)| {
            let _ = write!(rules, ".s{index}{{color:{colour}}}");
            rules
        })
    };
    format!(
        "{}\n@media (prefers-color-scheme:dark){{{}}}\n@media print{{{}}}\n{}",
        rules(&svg::LIGHT),
        rules(&svg::DARK),
        rules(&svg::LIGHT),
        toggles() + &choices()
    )
}

/// Returns rules by which the legend of a section hides its lines, without a script.
fn toggles() -> String {
    charts::all_looks().fold(String::new(), |mut rules, look| {
        let class = look.line_class();
        let _ =
            write!(rules, "section:has(input.{class}:not(:checked)) .line.{class}{{display:none}}");
        rules
    })
}

/// Returns rules by which readers choose among charts, without a script.
fn choices() -> String {
    (0..charts::STATISTICS.len()).fold(String::new(), |mut rules, nth| {
        let _ =
            write!(rules, ".panel:has(input.o{nth}:checked) > figure:not(.o{nth}){{display:none}}");
        rules
    })
}

fn header(page: &mut String, head: &Head, points: &[PointResult], title: &str) {
    let _ = writeln!(page, "<header><h1>{}</h1>", escape(title));
    if !head.description.is_empty() {
        let _ = writeln!(page, "<p>{}</p>", escape(&head.description));
    }
    page.push_str("<dl class=\"facts\">");
    let messages: u64 = points.iter().map(|p| p.summary.messages.started).sum();
    let own = [
        ("Points", number::grouped(points.len() as u64)),
        ("Messages", number::grouped(messages)),
        ("Seed", seeds(head, points)),
        ("Version", head.version.clone()),
    ];
    let given = head.facts.iter().map(|(name, value)| (name.as_str(), value.clone()));
    for (name, value) in given.chain(own) {
        let _ = write!(page, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(&value));
    }
    page.push_str("</dl></header>\n");
}

/// Names the seeds of the points: those of means over seeds, or else the scenario's.
fn seeds(head: &Head, points: &[PointResult]) -> String {
    let spread = points.iter().find_map(|point| point.summary.over_seeds.as_ref());
    let swept = spread.map(|spread| spread.seeds.iter().map(u64::to_string).collect::<Vec<_>>());
    swept.map_or_else(|| head.seed.to_string(), |seeds| seeds.join(", "))
}

fn warnings(page: &mut String, points: &[PointResult]) {
    const MISSING: &str = "<strong>Messages are missing.</strong> What these runs say of slowdown and latency does not cover every \
         message, so it is never marked as the best.";
    const NOTES: &str = "<strong>Before you quote a number:</strong>";
    alert(page, "alert", MISSING, &grouped(points, Weight::Warning));
    let notes = [Weight::Note, Weight::Window].into_iter().flat_map(|it| grouped(points, it));
    alert(page, "alert remark", NOTES, &notes.collect::<Vec<_>>());
}

/// Writes a box with a heading, which may have markup, and lines; nothing without lines.
fn alert(page: &mut String, class: &str, heading: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = write!(page, "<div class=\"{class}\" role=\"note\"><p>{heading}</p><ul>");
    for line in lines {
        let _ = write!(page, "<li>{}</li>", marked_up(line));
    }
    page.push_str("</ul></div>\n");
}

/// Escapes a line, with what it has between backticks as code.
fn marked_up(line: &str) -> String {
    let mut text = String::new();
    let parts: Vec<&str> = line.split('`').collect();
    for (nth, part) in parts.iter().enumerate() {
        text += &match (nth % 2, nth + 1 == parts.len()) {
            (0, _) => escape(part),
            // Without its end it is no code.
            (_, true) => format!("`{}", escape(part)),
            (_, false) => format!("<code>{}</code>", escape(part)),
        };
    }
    text
}

fn summary(page: &mut String, points: &[PointResult]) {
    page.push_str("<section><h2>Summary</h2>\n");
    if let Some(verdict) = verdict::verdict(points) {
        let _ = writeln!(page, "<p class=\"verdict\">{}</p>", escape(&verdict));
    }
    let all_done = points.iter().all(|p| p.summary.end == end_name(End::AllDone));
    let mut strips = strips::of_points(points);
    if !all_done {
        let ends = points.iter().map(|point| strips::plain(point.summary.end.to_owned()));
        strips.push(Strip::new("", "end", ends.collect()).of_texts());
    }
    grid::write(page, &rows(points), &strips);
    page.push_str(
        "<p class=\"note\">Bold: the best of the points that differ in nothing but the transport.",
    );
    let whole = points.iter().all(|it| it.summary.warning().is_none() && !it.lacks_rivals);
    if whole && all_done {
        page.push_str(" All runs went on until every measured message had ended.");
    }
    if let Some(spread) = points.iter().find_map(|point| point.summary.over_seeds.as_ref()) {
        let _ = write!(
            page,
            " Measures are means over {} seeds, with 95 % confidence intervals of the means; values whose intervals meet do \
             not count as different. Messages, drops, trims and marks are sums. Queues over time, circuits and what is shown of \
             casts, images, jobs and all-reduces are those of the first seed.",
            points
                .iter()
                .filter_map(|it| it.summary.over_seeds.as_ref())
                .map(|it| it.seeds.len())
                .max()
                .unwrap_or(spread.seeds.len())
        );
    }
    page.push_str("</p></section>\n");
}

/// Writes the sections of the kinds of workload that precede the circuits and the traffic over time, or follow them.
fn kinds(page: &mut String, points: &[PointResult], after_traffic: bool) {
    for kind in study::KINDS.iter().filter(|kind| kind.section_after_traffic == after_traffic) {
        (kind.section)(page, points);
    }
}

/// The section of the page on the points of a kind of workload.
pub(crate) struct KindSection<'a, K> {
    page: &'a mut String,
    points: &'a [PointResult],
    kind: PhantomData<K>,
}

impl<'a, K: Kind> KindSection<'a, K> {
    /// Writes the section, if there is a point of the kind.
    pub(crate) fn write(page: &mut String, points: &[PointResult]) {
        if points.iter().all(|point| point.summary.of::<K>().is_none()) {
            return;
        }
        let before = page.len();
        K::section(&mut KindSection { page, points, kind: PhantomData });
        if page.len() > before {
            page.push_str("</section>\n");
        }
    }

    pub(crate) const fn points(&self) -> &'a [PointResult] {
        self.points
    }

    /// Writes the heading, and a text that says what the measures are, with markup.
    pub(crate) fn head(&mut self, title: &str, text: &str) {
        let _ = writeln!(self.page, "<section><h2>{title}</h2>\n<p>{text}</p>");
    }

    /// Writes a table with a row for each point.
    pub(crate) fn table(&mut self, columns: &'static [Column<K::Summary>]) {
        let rows = rows(self.points).into_iter();
        let (heads, rows): (Vec<_>, Vec<_>) =
            rows.filter_map(|row| Some((row, row.0.summary.of::<K>()?))).unzip();
        let columns: Vec<_> = shown(columns).collect();
        grid::write(self.page, &heads, &strips::of_rows(&columns, &rows));
    }

    /// Writes a table with any number of rows for each point, which is folded.
    pub(crate) fn each<T: 'static>(
        &mut self,
        title: &str,
        columns: &'static [Column<T>],
        rows: fn(&K::Summary) -> &[T],
    ) {
        let _ = write!(self.page, "<details><summary>{title}</summary>");
        let rows = self.points.iter().flat_map(|point| {
            let rows = point.summary.of::<K>().into_iter().flat_map(rows);
            rows.map(move |row| ((point, None), row))
        });
        let (heads, rows): (Vec<_>, Vec<_>) = rows.unzip();
        let columns: Vec<_> = shown(columns).collect();
        grid::write(self.page, &heads, &strips::of_rows(&columns, &rows));
        self.page.push_str("</details>\n");
    }

    /// Writes the names of the lines of charts.
    pub(crate) fn legend(&mut self, charts: &Section) {
        figures::legend(self.page, charts);
    }

    /// Writes charts.
    pub(crate) fn charts(&mut self, charts: &Section) {
        figures::rows(self.page, charts);
    }
}

/// Writes the charts of circuits over time.
fn circuits(page: &mut String, points: &[PointResult]) {
    let mut charts = points
        .iter()
        .filter_map(|point| pods::chart(point, &point.label))
        .take(MAX_PODS)
        .peekable();
    if charts.peek().is_none() {
        return;
    }
    page.push_str(
        "<section><h2>The pod and its circuits</h2>\n<p>What each port of the optical circuit switch is joined to, \
         over simulated time, and above it the phases of jobs. A gap is the time in which a port is dark.</p>\n",
    );
    let figure = |page: &mut String, chart: &PodChart| {
        let _ = writeln!(
            page,
            "<div class=\"charts of-1\"><figure><figcaption>{}</figcaption>{}</figure></div>",
            escape(&chart.title),
            chart.render(Theme::Page)
        );
    };
    for chart in charts.by_ref().take(MAX_OPEN_PODS) {
        figure(page, &chart);
    }
    if charts.peek().is_some() {
        page.push_str("<details><summary>Other points</summary>");
        for chart in charts {
            figure(page, &chart);
        }
        page.push_str("</details>\n");
    }
    page.push_str("</section>\n");
}

/// Writes the table of the background streams.
fn streams(page: &mut String, points: &[PointResult]) {
    if points.iter().all(|point| point.summary.background.is_empty()) {
        return;
    }
    page.push_str("<section><h2>Background streams</h2>\n");
    let heads: Vec<_> = rows(points)
        .into_iter()
        .flat_map(|row| compare::streams(row.0).map(move |_| row))
        .collect();
    grid::write(page, &heads, &strips::of_streams(points));
    let counted = |stream: &StreamSummary| stream.messages.unfinished > stream.messages.left_out;
    if points.iter().flat_map(compare::streams).any(counted) {
        page.push_str(
            "<p class=\"note\">A message that had not arrived when the run ended counts with the time until then: the latency and \
             the slowdown of its stream are at least those shown.</p>\n",
        );
    }
    if let Some(section) = charts::streams_section(points) {
        figures::legend(page, &section);
        figures::rows(page, &section);
    }
    page.push_str("</section>\n");
}

fn by_size(page: &mut String, points: &[PointResult]) {
    if compare::bucket_edges(points).is_empty() {
        return;
    }
    let folded = folds(points);
    begin(page, "Slowdown by size, in numbers", folded);
    let rows = rows(points);
    let mut any_few = false;
    for alike in compare::with_equal_buckets(points) {
        let strips = strips::of_sizes(&points[alike.clone()]);
        any_few |= strips.iter().flat_map(|strip| &strip.cells).any(|cell| cell.few);
        grid::write(page, &rows[alike], &strips);
    }
    if any_few {
        let _ = writeln!(
            page,
            "<p class=\"note\">In italics: fewer than {FEW} messages, so the 99th percentile \
             is the slowest message.</p>"
        );
    }
    end(page, folded);
}

/// Returns the rows of points.
fn rows(points: &[PointResult]) -> Vec<Row<'_>> {
    points.iter().zip(charts::looks(points)).collect()
}

/// Writes the heading of a section, which may be folded.
pub(super) fn begin(page: &mut String, title: &str, folded: bool) {
    let title = escape(title);
    page.push_str("<section>");
    let _ = if folded {
        writeln!(page, "<details class=\"section\"><summary><h2>{title}</h2></summary>")
    } else {
        writeln!(page, "<h2>{title}</h2>")
    };
}

/// Ends a section that [`begin`] has begun.
pub(super) fn end(page: &mut String, folded: bool) {
    page.push_str(if folded { "</details></section>\n" } else { "</section>\n" });
}

/// Returns whether details of points are folded, because they would make a long page.
pub(super) fn folds(points: &[PointResult]) -> bool {
    points.len() > MAX_UNFOLDED
}

fn charts_section(page: &mut String, section: &Section, folded: bool) {
    if !figures::has_charts(section) {
        return;
    }
    begin(page, &section.title, folded);
    let _ = writeln!(page, "<p>{}</p>", escape(&section.text));
    figures::legend(page, section);
    figures::rows(page, section);
    if !section.note.is_empty() {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(&section.note));
    }
    end(page, folded);
}

fn drops(page: &mut String, points: &[PointResult]) {
    let is_none = points.iter().all(|p| p.summary.drops == 0);
    let folded = folds(points) && !is_none;
    begin(page, "Dropped packets", folded);
    if is_none {
        page.push_str("<p>No packet was dropped.</p>");
    } else {
        grid::write(page, &rows(points), &strips::of_drops(points));
    }
    end(page, folded);
}

/// Writes links to the files next to the page.
fn files(page: &mut String, head: &Head) {
    if head.files.is_empty() {
        return;
    }
    page.push_str("<section><h2>Files</h2>\n<p>The numbers behind this page, in the same directory:</p>\n<ul class=\"files\">");
    for file in &head.files {
        let _ = write!(page, "<li><a href=\"{0}\">{0}</a></li>", escape(file));
    }
    page.push_str("</ul></section>\n");
}

fn reproduce(page: &mut String, head: &Head, points: &[PointResult]) {
    page.push_str("<section><h2>Reproduce this run</h2>\n");
    if !head.command.is_empty() {
        let _ = writeln!(page, "<pre><code>{}</code></pre>", escape(&head.command));
    }
    if let Some(explore) = command_line::explore(&head.command) {
        let _ = writeln!(
            page,
            "<p>Watch it, step by step and packet by packet, on a local page:</p><pre><code>{}</code></pre>",
            escape(&explore)
        );
    }
    let _ = writeln!(
        page,
        "<p>Rackweave {}, seed {}: the same version, scenario and seed give the same numbers on any \
         machine.</p>",
        escape(&head.version),
        seeds(head, points)
    );
    if !head.scenario_toml.is_empty() {
        let _ = writeln!(
            page,
            "<details><summary>The scenario, all defaults filled in</summary>\
             <pre><code>{}</code></pre></details>",
            escape(&head.scenario_toml)
        );
    }
    page.push_str("</section>\n");
}

/// The terms of the page and their explanations.
const TERMS: [(&str, &str); 9] = [
    (
        "Slowdown",
        "A message's latency divided by the time that it would take on the same path with nothing \
         else in the network, headers and store-and-forward included. 1 is the best possible.",
    ),
    (
        "Latency",
        "From the moment a message is submitted at its sender until its last byte has arrived at \
         its receiver; of a request, until its response has arrived.",
    ),
    (
        "p50, p99, p99.9, max",
        "The median, the 99th and the 99.9th percentile (50 or 99 of 100, or 999 of 1000 messages do no worse), and the worst message.",
    ),
    (
        "Goodput",
        "Payload bytes that arrived in the measured time, over that time, for all hosts together; \
         headers and what was sent twice do not count.",
    ),
    (
        "Missing",
        "Messages that failed, or were under way when the run ended. The run ends with \u{201c}all \
         done\u{201d} if every measured message ended, \u{201c}time limit\u{201d} if time ran out, \
         \u{201c}stalled\u{201d} if no event was left, \u{201c}overloaded\u{201d} if \
         the bytes of unfinished messages grew with time, \u{201c}starved\u{201d} if messages waited 200 times as long as all took to start, \u{201c}cut off\u{201d} if faults kept the rest from ending, and \u{201c}packet limit\u{201d} if 50 million packets were under way at once.",
    ),
    ("Drops", "Packets that a queue, a fault or a host threw away, during the whole run."),
    (
        "Trims and marks",
        "Packets cut to their headers by a full queue, and packets that got an ECN mark.",
    ),
    (
        "Sent again and timeouts",
        "Data packets that a host of the transport had sent before, and expired timers after which it sent again, or requested \
         again, what had not arrived. A column with zeros only is left out.",
    ),
    (
        "Queue",
        "Bytes that wait at a switch port: the mean over all ports and the measured time, and the \
         most that ever waited at one. A KB is 1000 bytes.",
    ),
];

/// A further term, which is explained only where it is used.
const LEFT_OUT: (&str, &str) = (
    "Left out",
    "In this scenario, messages under way when the run ended are counted as missing and enter no \
     statistic, as in simulations that record messages when they complete and stop after a fixed \
     time. What a slow message took is known only if it ended in time: the longest messages look \
     better than they are. Otherwise they would count with the time until the end of the run.",
);

fn terms(page: &mut String, points: &[PointResult]) {
    let folded = folds(points);
    begin(page, "Terms", folded);
    page.push_str("<dl class=\"terms\">");
    let left_out = points.iter().any(|point| point.summary.messages.left_out > 0);
    for (term, meaning) in TERMS.into_iter().chain(left_out.then_some(LEFT_OUT)) {
        let _ = write!(page, "<dt>{}</dt><dd>{}</dd>", escape(term), escape(meaning));
    }
    page.push_str("</dl>");
    end(page, folded);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_between_backticks_is_code() {
        assert_eq!(marked_up("a `b<c` d `e`"), "a <code>b&lt;c</code> d <code>e</code>");
        assert_eq!(marked_up("5 ` 6 & 7"), "5 ` 6 &amp; 7");
    }
}
