//! `index.html`: the state of the papers in one look, and below it each paper's figures in the paper's order.

use std::fmt::Write;

use rackweave_lab::report::svg::escape;

use super::{counts, foot, head, pictures};
use crate::claim::{Original, RuleSet};
use crate::figure::Picture;
use crate::session::{ClaimResult, ClaimResults, DrawnFigure, PaperResult, Verdict};

/// Styles that only this page needs. Each mark has a form of its own for readers who cannot distinguish the colours.
const STYLE: &str = "
:root { --holds: #1a7f4b; --fails: #b3261e; --open: #6b7480; --explored: #2f5fb3; }
@media (prefers-color-scheme: dark) {
  :root { --holds: #1f9d5c; --fails: #d9534a; --open: #6b7480; --explored: #4a7fdb; }
}
.v { display: inline-block; padding: 0 8px; border-radius: 3px; color: #fff; font-weight: 600; font-size: 13px; line-height: 22px; text-decoration: none; white-space: nowrap; }
.holds { background: var(--holds); }
.fails { background: var(--fails); }
.undecided { background: var(--open); }
.explored { background: var(--explored); }
.state .v { width: 22px; padding: 0; margin: 1px; text-align: center; }
.state td, .state th, .said td, .said th { text-align: left; white-space: normal; vertical-align: top; }
.state td:nth-child(3), .state td:nth-child(4) { white-space: nowrap; }
header .alert { margin-bottom: 18px; }
.key { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0 10px; padding: 0; list-style: none; font-size: 13px; color: var(--soft); }
.key .v { width: 22px; padding: 0; text-align: center; }
.paper { border-top: 2px solid var(--axis); margin-top: 44px; }
.paper > h2 { margin-top: 14px; font-size: 21px; }
h3 { font-size: 16px; margin: 24px 0 10px; }
.said { width: 100%; }
.said th { min-width: 11em; }
.sheet { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 20px; align-items: start; }
.original { border: 1px solid var(--grid); border-radius: 4px; padding: 10px 14px 12px; }
.original.wide { grid-column: 1 / -1; }
.original h4 { margin: 0 0 6px; font-size: 15px; }
.original h4 span { color: var(--soft); font-weight: 500; }
.original p { margin: 6px 0 0; }
.original .marks { display: flex; flex-wrap: wrap; gap: 4px 8px; margin: 0 0 8px; }
.original.without { border-style: dashed; background: var(--raised); }
.original figcaption { font-size: 13px; font-weight: 500; color: var(--soft); }
.original .charts.of-1 { grid-template-columns: minmax(0, 1fr); }
@media (max-width: 640px) {
  .sheet { grid-template-columns: minmax(0, 1fr); }
  .said thead { display: none; }
  .said tr { display: block; padding: 6px 0; border-bottom: 1px solid var(--grid); }
  .said td:nth-child(3)::before { content: \"paper: \"; color: var(--soft); }
  .said td:nth-child(4)::before { content: \"here: \"; color: var(--soft); }
  .said td, .said tbody th { display: block; max-width: none; border: 0; padding: 1px 0; }
  .state td:nth-child(4), .state th:nth-child(4) { display: none; }
}
@media print {
  section.paper { break-inside: auto; margin-top: 18px; }
  section.paper + section.paper { break-before: page; margin-top: 0; }
  h3 { break-after: avoid; }
  .original, .said tr { break-inside: avoid; }
  .said, .state, .said .note, .key { font-size: 9px; }
  .original .note { font-size: 10px; }
  .v { font-size: 9px; line-height: 15px; padding: 0 5px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .state .v, .key .v { width: 15px; }
  .sheet { gap: 10px; }
  .original { padding: 6px 8px; font-size: 11px; }
  .original h4 { font-size: 12px; }
  .legend li, .original figcaption { font-size: 10px; }
  .legend { gap: 0 10px; margin-bottom: 2px; }
  .chart { font-size: 13px; }
}
";

impl Verdict {
    /// The class of its mark.
    const fn class(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "fails",
            Self::Undecided => "undecided",
            Self::Explored => "explored",
        }
    }

    /// Its mark.
    const fn sign(self) -> &'static str {
        match self {
            Self::Holds => "\u{2713}",
            Self::Fails => "\u{2715}",
            Self::Undecided => "?",
            Self::Explored => "\u{2022}",
        }
    }
}

/// An original with what the results have of it.
struct Shown<'a> {
    original: &'a Original,
    claims: Vec<&'a ClaimResult>,
    figures: Vec<&'a DrawnFigure>,
}

impl Shown<'_> {
    /// Whether its claims were not part of the run.
    fn is_left_out(&self) -> bool {
        self.claims.is_empty() && !self.original.here.is_empty()
    }
}

impl ClaimResults {
    pub(super) fn overview(&self, command: &str) -> String {
        let mut page = head("Papers, figure by figure", STYLE);
        let _ = write!(
            page,
            "<header><h1>Papers, figure by figure</h1>\n<p>What papers claim, and what Rackweave measures. {}.</p>\n",
            escape(&self.counts()),
        );
        let quick = self.claims.iter().filter(|claim| claim.quick).count();
        if quick > 0 {
            let which =
                if quick == self.claims.len() { "All".to_owned() } else { quick.to_string() };
            let _ = writeln!(
                page,
                "<p class=\"alert\">{which} of the {} claims were run with smaller sizes than the papers' \
                 (--quick), which do not count.</p>",
                self.claims.len(),
            );
        }
        page.push_str("</header>\n<main>\n");
        self.state(&mut page);
        for paper in &self.papers {
            self.paper(&mut page, paper);
        }
        let _ = writeln!(
            page,
            "<section><h2>Reproduce these results</h2><pre><code>{}</code></pre></section></main>",
            escape(command),
        );
        foot(&mut page, self);
        page
    }

    /// Writes a row of marks for each paper.
    fn state(&self, page: &mut String) {
        page.push_str(
            "<div class=\"scroll\"><table class=\"state\"><thead><tr><th scope=\"col\">paper</th>\
             <th scope=\"col\">claims</th><th scope=\"col\">hold</th><th scope=\"col\">figures</th></tr></thead><tbody>\n",
        );
        for paper in &self.papers {
            let claims = self.of(paper);
            let decide = claims.iter().filter(|claim| claim.verdict != Verdict::Explored).count();
            let hold = claims.iter().filter(|claim| claim.verdict == Verdict::Holds).count();
            let _ = write!(
                page,
                "<tr><th scope=\"row\"><a href=\"#{name}\">{name}</a></th><td>",
                name = escape(&paper.name)
            );
            for claim in &claims {
                let _ = write!(
                    page,
                    "<a class=\"v {}\" href=\"claims.html#{id}\" title=\"{id}: {}\">{}</a>",
                    claim.verdict.class(),
                    claim.word(),
                    claim.verdict.sign(),
                    id = escape(&claim.id),
                );
            }
            let _ = writeln!(
                page,
                "</td><td>{hold} of {decide}</td><td>{}</td></tr>",
                escape(&self.of_figures(paper))
            );
        }
        page.push_str("</tbody></table></div>\n<ul class=\"key\">");
        for verdict in [Verdict::Holds, Verdict::Fails, Verdict::Undecided, Verdict::Explored] {
            let _ = write!(
                page,
                "<li><span class=\"v {}\">{}</span> {}</li>",
                verdict.class(),
                verdict.sign(),
                verdict.word()
            );
        }
        page.push_str("</ul>\n");
    }

    /// Says how many of a paper's figures are drawn, and how many over the authors' numbers.
    fn of_figures(&self, paper: &PaperResult) -> String {
        let shown: Vec<Shown<'_>> = self.shown(paper);
        let run = shown.iter().filter(|shown| !shown.is_left_out());
        let (all, drawn) = run.fold((0, 0), |(all, drawn), shown| {
            (all + 1, drawn + usize::from(!shown.figures.is_empty()))
        });
        let is_over =
            |shown: &&Shown<'_>| shown.figures.iter().any(|figure| figure.is_over_published);
        let over = shown.iter().filter(is_over).count();
        match (all, over) {
            (0, _) => String::new(),
            (_, 0) => format!("{drawn} of {all} drawn"),
            _ => format!("{drawn} of {all} drawn, {over} over the authors' numbers"),
        }
    }

    /// Returns the claims of a paper.
    fn of(&self, paper: &PaperResult) -> Vec<&ClaimResult> {
        self.claims.iter().filter(|claim| claim.system == paper.name).collect()
    }

    /// Returns the originals of a paper with what these results have of them.
    fn shown<'a>(&'a self, paper: &'a PaperResult) -> Vec<Shown<'a>> {
        let of = |original: &'a Original| {
            let mut shown = Shown { original, claims: Vec::new(), figures: Vec::new() };
            for here in &original.here {
                let (id, figure) = match here.split_once('/') {
                    Some((id, figure)) => (id, Some(figure)),
                    None => (here.as_str(), None),
                };
                let Some(claim) = self.claims.iter().find(|claim| claim.id == id) else { continue };
                if shown.claims.iter().all(|known| known.id != id) {
                    shown.claims.push(claim);
                }
                let is_it = |drawn: &&DrawnFigure| Some(&*drawn.name) == figure;
                shown.figures.extend(claim.figures.iter().filter(is_it));
            }
            shown
        };
        paper.originals.iter().map(of).collect()
    }

    /// Writes a paper: its claims, its figures, and further figures of its claims.
    fn paper(&self, page: &mut String, paper: &PaperResult) {
        let claims = self.of(paper);
        let _ = write!(
            page,
            "<section class=\"paper\" id=\"{}\"><h2>{}</h2>\n<p class=\"note\">{}. {}.</p>\n",
            escape(&paper.name),
            escape(&paper.title),
            escape(&paper.source),
            escape(&counts(&claims)),
        );
        said(page, &claims);
        let (shown, left_out): (Vec<Shown<'_>>, Vec<Shown<'_>>) =
            self.shown(paper).into_iter().partition(|shown| !shown.is_left_out());
        if !shown.is_empty() {
            let _ =
                write!(page, "<h3>The paper's figures</h3>\n<p>{}</p>\n", escape(&paper.numbers));
            page.push_str("<div class=\"sheet\">\n");
            for shown in &shown {
                original(page, shown);
            }
            page.push_str("</div>\n");
        }
        if !left_out.is_empty() {
            let places: Vec<&str> = left_out.iter().map(|shown| &*shown.original.place).collect();
            let _ = writeln!(
                page,
                "<p class=\"note\">Of claims that were not run: {}.</p>",
                escape(&places.join(", "))
            );
        }
        let named = |drawn: &&DrawnFigure, claim: &ClaimResult| {
            let name = format!("{}/{}", claim.id, drawn.name);
            paper.originals.iter().any(|original| original.here.contains(&name))
        };
        let others: Vec<(&ClaimResult, Vec<&DrawnFigure>)> = claims
            .iter()
            .map(|claim| (*claim, claim.figures.iter().filter(|it| !named(it, claim)).collect()))
            .filter(|(_, figures): &(_, Vec<_>)| !figures.is_empty())
            .collect();
        if !others.is_empty() {
            let title = if shown.is_empty() { "Figures" } else { "Drawn in addition" };
            let _ = write!(page, "<h3>{title}</h3>\n<div class=\"sheet\">\n");
            for (claim, figures) in others {
                let _ = write!(page, "<article class=\"original{}\">", width(&figures));
                marks(page, &[claim]);
                pictures(page, &figures);
                page.push_str("</article>\n");
            }
            page.push_str("</div>\n");
        }
        page.push_str("</section>\n");
    }
}

/// Writes what a paper says and what was measured, a row for each claim.
fn said(page: &mut String, claims: &[&ClaimResult]) {
    page.push_str(
        "<table class=\"said\"><thead><tr><th scope=\"col\"></th><th scope=\"col\">claim</th>\
         <th scope=\"col\">the paper's numbers</th><th scope=\"col\">measured here</th></tr></thead><tbody>\n",
    );
    for claim in claims {
        let _ = write!(
            page,
            "<tr><th scope=\"row\"><a class=\"v {class}\" href=\"claims.html#{id}\">{sign} {word}</a><br/>{id}</th>\
             <td>{}</td><td>{}</td><td>{}",
            escape(&claim.claim),
            escape(&claim.paper),
            escape(&claim.brief()),
            id = escape(&claim.id),
            class = claim.verdict.class(),
            sign = claim.verdict.sign(),
            word = claim.word(),
        );
        let quick = if claim.quick { "--quick".to_owned() } else { String::new() };
        let rules = if claim.rules.iter().any(|rule| rule.set == Some(RuleSet::After)) {
            format!("rules: {}", claim.rules_set())
        } else {
            String::new()
        };
        let notes = [rules, claim.not_tried(), quick];
        let notes: Vec<&str> =
            notes.iter().map(String::as_str).filter(|note| !note.is_empty()).collect();
        if !notes.is_empty() {
            let _ = write!(page, "<br/><span class=\"note\">{}</span>", notes.join("; "));
        }
        page.push_str("</td></tr>\n");
    }
    page.push_str("</tbody></table>\n");
}

/// Writes an original with its verdicts and what shows it here.
fn original(page: &mut String, shown: &Shown<'_>) {
    let Shown { original, claims, figures } = shown;
    let without = if figures.is_empty() { " without" } else { "" };
    let _ = writeln!(
        page,
        "<article class=\"original{}{without}\"><h4><span>{}</span> {}</h4>",
        width(figures),
        escape(&original.place),
        escape(&original.title),
    );
    marks(page, claims);
    pictures(page, figures);
    if figures.is_empty() {
        for claim in claims {
            let _ = write!(page, "<p>Measured: {}</p>", escape(&claim.brief()));
        }
        if claims.is_empty() {
            page.push_str("<p><strong>Not reproduced.</strong></p>");
        }
    }
    if !original.note.is_empty() {
        let _ = write!(page, "<p class=\"note\">{}</p>", escape(&original.note));
    }
    page.push_str("</article>\n");
}

/// Returns the class of an original whose pictures need the width of the page.
fn width(figures: &[&DrawnFigure]) -> &'static str {
    let is_wide = |drawn: &&DrawnFigure| matches!(drawn.picture, Picture::Pod(_));
    if figures.len() > 1 || figures.iter().any(is_wide) { " wide" } else { "" }
}

/// Writes the verdicts of claims as links to their rules.
fn marks(page: &mut String, claims: &[&ClaimResult]) {
    if claims.is_empty() {
        return;
    }
    page.push_str("<p class=\"marks\">");
    for claim in claims {
        let _ = write!(
            page,
            "<a class=\"v {}\" href=\"claims.html#{id}\">{} {id}: {}</a>",
            claim.verdict.class(),
            claim.verdict.sign(),
            claim.word(),
            id = escape(&claim.id),
        );
    }
    page.push_str("</p>\n");
}
