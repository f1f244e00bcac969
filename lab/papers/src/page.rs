//! Verdicts on claims as a page, a JSON document and a text for a terminal.

use std::fmt::Write;

use rackweave_lab::report::svg::{Theme, escape, swatch};
use rackweave_lab::report::{figures, html, number};

use super::figure::Picture;
use super::rule::Ruling;
use super::session::{ClaimResult, ClaimResults, Remarks, Verdict};

/// The most rules whose numbers an overview has for a claim.
const MAX_BRIEFS: usize = 3;

/// Styles that only this page needs.
const STYLE: &str = "
.claim { border-top: 1px solid var(--axis); margin-top: 36px; }
.claim dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 16px; margin: 0 0 14px; }
.claim dt { color: var(--soft); }
.claim dd { margin: 0; max-width: 90ch; }
aside { border-left: 3px solid var(--axis); padding: 2px 0 2px 14px; margin: 0 0 14px; }
.claims td, .claims th { white-space: normal; text-align: left; vertical-align: top; }
.claims td:nth-child(2) { white-space: nowrap; font-weight: 600; }
.numbers td:first-child, .numbers th:first-child { text-align: left; white-space: normal; max-width: 50ch; }
";

impl ClaimResult {
    /// Returns the verdict in one or two words.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self.verdict {
            Verdict::Holds => "holds",
            Verdict::Fails => "does not hold",
            Verdict::Undecided => "not decided",
            Verdict::Explored => "explored",
        }
    }

    /// Returns what was measured in a few words: of the rules that decide, or of all if none does.
    fn brief(&self) -> String {
        let decides = |ruling: &&Ruling| ruling.decides || self.verdict == Verdict::Explored;
        let briefs: Vec<String> =
            self.rules.iter().filter(decides).map(Ruling::brief).take(MAX_BRIEFS + 1).collect();
        let more = if briefs.len() > MAX_BRIEFS { "; ..." } else { "" };
        let shown = briefs.iter().take(MAX_BRIEFS).map(String::as_str).collect::<Vec<_>>();
        if shown.is_empty() { "nothing was measured".into() } else { shown.join("; ") + more }
    }

    /// Returns how many points were not tried; empty if all were.
    fn not_tried(&self) -> String {
        match self.points_not_tried {
            0 => String::new(),
            1 => "1 point not tried".to_owned(),
            n => format!("{n} points not tried"),
        }
    }
}

impl ClaimResults {
    /// Returns the contents of `claims.json`.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Returns whether every claim could be decided.
    #[must_use]
    pub fn all_decided(&self) -> bool {
        self.claims.iter().all(|claim| claim.verdict != Verdict::Undecided)
    }

    /// Returns the verdicts as text for a terminal of this width in columns.
    #[must_use]
    pub fn to_text(&self, width: usize) -> String {
        let mut text = String::new();
        for claim in &self.claims {
            let _ = writeln!(text, "{}: {}", claim.id, claim.word().to_uppercase());
            for (name, words) in [
                ("claim", &claim.claim),
                ("paper", &claim.paper),
                ("here", &claim.here),
                ("why", &claim.why),
            ] {
                text += &wrapped(&format!("  {name:<6} "), words, width);
            }
            for note in &claim.notes {
                text += &wrapped("  note   ", note, width);
            }
            for warning in &claim.warnings {
                text += &wrapped("  !      ", warning, width);
            }
            let Remarks { deviations, cause, .. } = &claim.remarks;
            if !deviations.is_empty() || cause.is_some() {
                text += &wrapped("  -- ", &format!("{}:", claim.remarks.origin()), width);
            }
            if let Some(cause) = cause {
                text += &wrapped("  cause  ", cause, width);
            }
            for deviation in deviations {
                text += &wrapped("  differs ", deviation, width);
            }
            text.push('\n');
        }
        let widest = self.claims.iter().map(|claim| claim.id.len()).max().unwrap_or(0);
        let of_words = self.claims.iter().map(|claim| claim.word().len()).max().unwrap_or(0);
        for claim in &self.claims {
            let not_tried = match claim.not_tried() {
                none if none.is_empty() => none,
                some => format!(" ({some})"),
            };
            let head = format!("{:<widest$}  {:<of_words$}  ", claim.id, claim.word());
            text += &wrapped(&head, &(claim.brief() + &not_tried), width);
        }
        let _ = writeln!(
            text,
            "{}; {:.1} s{}",
            self.counts(),
            self.wall_s,
            if self.quick { " with the sizes of --quick" } else { "" },
        );
        text
    }

    /// Counts the verdicts: "3 claims: 2 hold, 1 is not decided".
    fn counts(&self) -> String {
        let count = |wanted| self.claims.iter().filter(|claim| claim.verdict == wanted).count();
        let verdicts = [
            (Verdict::Holds, "holds", "hold"),
            (Verdict::Fails, "does not hold", "do not hold"),
            (Verdict::Undecided, "is not decided", "are not decided"),
        ];
        let explored = count(Verdict::Explored);
        let claims = self.claims.len() - explored;
        let verdicts = verdicts.into_iter().filter(|(verdict, ..)| count(*verdict) > 0);
        let said = verdicts.map(|(verdict, one, several)| match (claims, count(verdict)) {
            (1, _) => format!("1 claim, which {one}"),
            (_, 1) => format!("1 {one}"),
            (_, n) => format!("{n} {several}"),
        });
        let said = said.collect::<Vec<_>>().join(", ");
        let mut parts = Vec::new();
        match claims {
            0 => (),
            1 => parts.push(said),
            n => parts.push(format!("{n} claims: {said}")),
        }
        match explored {
            0 => (),
            1 => parts.push("1 exploration".to_owned()),
            n => parts.push(format!("{n} explorations")),
        }
        parts.join(", and ")
    }

    /// Returns all files of the directory except the results of the runs.
    pub(crate) fn files(&self, command: &str) -> Vec<(String, String)> {
        let mut files = vec![
            ("claims.json".to_owned(), self.to_json()),
            ("index.html".to_owned(), self.to_html(command)),
        ];
        for claim in &self.claims {
            let charts = claim.figures.iter().zip(&claim.charts);
            files.extend(
                charts.map(|(name, chart)| (name.clone(), chart.render(Theme::Standalone))),
            );
        }
        files
    }

    fn to_html(&self, command: &str) -> String {
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\"><head>\
             <meta charset=\"utf-8\"/>\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
             <meta name=\"color-scheme\" content=\"light dark\"/>\
             {}<title>Claims</title>\n<style>{}\n{}{STYLE}</style></head>\n{}\
             <header><h1>What papers claim, and whether it holds here</h1>",
            figures::policy(),
            html::colours(),
            html::STYLE,
            figures::body(),
        );
        for (title, source) in &self.titles {
            let _ = write!(page, "<p>{}: {}</p>", escape(title), escape(source));
        }
        if self.quick {
            page.push_str(
                "<p class=\"alert\">These runs are smaller than the papers': see `quick` in the \
                 files of claims.</p>",
            );
        }
        page.push_str(
            "</header>\n<main><div class=\"scroll\"><table class=\"claims\"><thead><tr>\
             <th scope=\"col\"></th><th scope=\"col\"></th><th scope=\"col\">claim</th>\
             <th scope=\"col\">measured here</th></tr></thead><tbody>\n",
        );
        for claim in &self.claims {
            let not_tried = match claim.not_tried() {
                none if none.is_empty() => none,
                some => format!("<br/>{some}"),
            };
            let _ = writeln!(
                page,
                "<tr><th scope=\"row\"><a href=\"#{id}\">{id}</a></th><td>{}</td><td>{}</td>\
                 <td>{}{not_tried}</td></tr>",
                claim.word(),
                escape(&claim.claim),
                escape(&claim.brief()),
                id = escape(&claim.id),
            );
        }
        page.push_str(
            "</tbody></table></div>\n<p class=\"note\">Measured here: for each rule that decides, how many of its \
             comparisons hold, and the two sides of the closest one.</p>\n",
        );
        for claim in &self.claims {
            section(&mut page, claim);
        }
        let _ = write!(
            page,
            "<section><h2>Reproduce these results</h2><pre><code>{}</code></pre></section></main>\n\
             <footer>Written by Rackweave {}.</footer>\n{}</body></html>\n",
            escape(command),
            escape(self.version),
            figures::script(),
        );
        page
    }
}

fn section(page: &mut String, claim: &ClaimResult) {
    let _ = write!(
        page,
        "<section class=\"claim\" id=\"{id}\"><h2>{id}: {}</h2>\n<dl>",
        claim.word(),
        id = escape(&claim.id),
    );
    let mut entry = |name: &str, text: &str| {
        let _ = write!(page, "<dt>{name}</dt><dd>{}</dd>", escape(text));
    };
    entry("claim", &claim.claim);
    entry("source", &claim.source);
    entry("paper", &claim.paper);
    entry("holds when", &claim.rule);
    entry("here", &claim.here);
    entry("why", &claim.why);
    for note in &claim.notes {
        entry("this run", note);
    }
    for warning in &claim.warnings {
        entry("warning", warning);
    }
    page.push_str("<dt>results</dt><dd>");
    for folder in &claim.results {
        let _ = write!(page, "<a href=\"{0}/report.html\">{0}</a> ", escape(folder));
    }
    page.push_str("</dd></dl>\n");
    remarks(page, &claim.remarks);
    let marked = |picture: &Picture| {
        if picture.series().is_empty() {
            return String::new();
        }
        let mut legend = String::from("<ul class=\"legend\">");
        for series in picture.series() {
            let swatch = swatch(series.look, series.marked);
            let _ = write!(legend, "<li>{swatch}{}</li>", escape(&series.label));
        }
        legend + "</ul>"
    };
    if !claim.charts.is_empty() {
        let is_pod = |chart: &Picture| matches!(chart, Picture::Pod(_));
        let columns = if claim.charts.iter().any(is_pod) { 1 } else { claim.charts.len().min(2) };
        let _ = write!(page, "<div class=\"charts of-{columns}\">");
        for chart in &claim.charts {
            match chart {
                Picture::Lines(lines) => figures::figure(page, lines, "", &marked(chart)),
                Picture::Pod(pod) => {
                    let _ = write!(
                        page,
                        "<figure><figcaption>{}</figcaption>{}</figure>",
                        escape(&pod.title),
                        pod.render(Theme::Page)
                    );
                }
            }
        }
        page.push_str("</div>\n");
    }
    numbers(page, claim);
    page.push_str("</section>\n");
}

/// Writes what the file of claims says, separately from what was measured.
fn remarks(page: &mut String, remarks: &Remarks) {
    if remarks.deviations.is_empty() && remarks.cause.is_none() {
        return;
    }
    let _ = write!(page, "<aside><p class=\"note\">{}</p>\n<dl>", escape(&remarks.origin()));
    let cause = remarks.cause.iter().map(|cause| ("cause", cause));
    let others = remarks.deviations.iter().map(|deviation| ("not as there", deviation));
    for (name, text) in cause.chain(others) {
        let _ = write!(page, "<dt>{name}</dt><dd>{}</dd>", escape(text));
    }
    page.push_str("</dl></aside>\n");
}

/// Writes the table of all comparisons of a claim.
fn numbers(page: &mut String, claim: &ClaimResult) {
    page.push_str(
        "<details><summary>Numbers</summary><div class=\"scroll\"><table class=\"numbers\"><thead>\
         <tr><th></th><th scope=\"col\">case</th><th scope=\"col\">left</th><th></th>\
         <th scope=\"col\">right</th><th scope=\"col\">ratio</th><th></th></tr></thead><tbody>\n",
    );
    for rule in &claim.rules {
        for check in &rule.checks {
            let ratio = if check.right == 0.0 { f64::NAN } else { check.left / check.right };
            let _ = writeln!(
                page,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(&rule.rule),
                escape(&check.case),
                number::short(check.left),
                escape(&check.relation),
                number::short(check.right),
                number::short(ratio),
                if check.holds { "yes" } else { "no" },
            );
        }
    }
    page.push_str("</tbody></table></div></details>\n");
}

/// Returns `text` wrapped, with continuation lines indented to the first word after `head`.
fn wrapped(head: &str, text: &str, width: usize) -> String {
    let room = width.saturating_sub(head.len()).max(20);
    let (mut out, mut line) = (String::new(), String::new());
    let mut head = head.to_owned();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            let _ = writeln!(out, "{head}{line}");
            head = " ".repeat(head.len());
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    let _ = writeln!(out, "{head}{line}");
    out
}
