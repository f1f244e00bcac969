//! Verdicts on claims as pages, a JSON document and a text for a terminal.

mod details;
mod overview;
mod text;

use std::fmt::Write;

use rackweave_lab::error::OutputError;
use rackweave_lab::output::OutputDir;
use rackweave_lab::report::svg::{Theme, escape, swatch};
use rackweave_lab::report::{figures, html};

use super::claim::RuleSet;
use super::figure::Picture;
use super::rule::Ruling;
use super::session::{ClaimResult, ClaimResults, DrawnFigure, Verdict};

/// The most rules whose numbers an overview has for a claim.
const MAX_BRIEFS: usize = 3;

impl Verdict {
    /// Returns the verdict in one or two words.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "does not hold",
            Self::Undecided => "not decided",
            Self::Explored => "explored",
        }
    }
}

impl ClaimResult {
    /// Returns the verdict in one or two words.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        self.verdict.word()
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

    /// Says how many of its deciding rules were settled before its first run.
    fn rules_set(&self) -> String {
        let deciding = || self.rules.iter().filter(|rule| rule.decides);
        let after = deciding().filter(|rule| rule.set == Some(RuleSet::After)).count();
        match (after, deciding().count()) {
            (_, 0) => "none decides".to_owned(),
            (0, _) => "set before the first run".to_owned(),
            (after, all) if after == all => "set after a run".to_owned(),
            (after, all) => {
                format!("{after} of {all} set after a run, the others before the first")
            }
        }
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

    /// Counts the verdicts: "3 claims: 2 hold, 1 is not decided".
    fn counts(&self) -> String {
        counts(&self.claims.iter().collect::<Vec<_>>())
    }

    /// Writes the pages, the figures and `claims.json`. `command` reproduces them.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, out: &OutputDir, command: &str) -> Result<(), OutputError> {
        out.write_all(&self.files(command))
    }

    /// Returns all files of the directory except the results of the runs.
    fn files(&self, command: &str) -> Vec<(String, String)> {
        let mut files = vec![
            ("claims.json".to_owned(), self.to_json()),
            ("index.html".to_owned(), self.overview(command)),
            ("claims.html".to_owned(), self.details()),
        ];
        let figures = self.claims.iter().flat_map(|claim| &claim.figures);
        files.extend(figures.map(|it| (it.file.clone(), it.picture.render(Theme::Standalone))));
        files
    }
}

/// Counts the verdicts of claims.
fn counts(claims: &[&ClaimResult]) -> String {
    let count = |wanted| claims.iter().filter(|claim| claim.verdict == wanted).count();
    let verdicts = [
        (Verdict::Holds, "holds", "hold"),
        (Verdict::Fails, "does not hold", "do not hold"),
        (Verdict::Undecided, "is not decided", "are not decided"),
    ];
    let explored = count(Verdict::Explored);
    let claims = claims.len() - explored;
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

/// Returns the beginning of a page, up to its body.
fn head(title: &str, style: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\"><head>\
         <meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <meta name=\"color-scheme\" content=\"light dark\"/>\
         {}<title>{title}</title>\n<style>{}\n{}{style}</style></head>\n{}",
        figures::policy(),
        html::colours(),
        html::STYLE,
        figures::body(),
    )
}

/// Writes the end of a page.
fn foot(page: &mut String, results: &ClaimResults) {
    let _ = write!(
        page,
        "<footer>Written by Rackweave {}.</footer>\n{}</body></html>\n",
        escape(&results.version),
        figures::script(),
    );
}

/// Writes pictures next to each other, each with its legend.
fn pictures(page: &mut String, drawn: &[&DrawnFigure]) {
    if drawn.is_empty() {
        return;
    }
    let is_pod = |drawn: &&DrawnFigure| matches!(drawn.picture, Picture::Pod(_));
    let columns = if drawn.iter().any(is_pod) { 1 } else { drawn.len().min(2) };
    let _ = write!(page, "<div class=\"charts of-{columns}\">");
    for drawn in drawn {
        match &drawn.picture {
            Picture::Lines(lines) => figures::figure(page, lines, "", &legend(&drawn.picture)),
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

/// Returns the names of a picture's lines.
fn legend(picture: &Picture) -> String {
    if picture.series().is_empty() {
        return String::new();
    }
    let mut legend = String::from("<ul class=\"legend\">");
    for series in picture.series() {
        let swatch = swatch(series.look, series.marked);
        let _ = write!(legend, "<li>{swatch}{}</li>", escape(&series.label));
    }
    legend + "</ul>"
}
