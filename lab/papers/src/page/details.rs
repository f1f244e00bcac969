//! `claims.html`: each claim with its rules, numbers and figures.

use std::fmt::Write;

use rackweave_lab::report::number;
use rackweave_lab::report::svg::escape;

use super::{foot, head, pictures};
use crate::claim::RuleSet;
use crate::session::{ClaimResult, ClaimResults, Remarks};

/// Styles that only this page needs.
const STYLE: &str = "
.claim { border-top: 1px solid var(--axis); margin-top: 36px; }
.claim dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 16px; margin: 0 0 14px; }
.claim dt { color: var(--soft); }
.claim dd { margin: 0; max-width: 90ch; }
aside { border-left: 3px solid var(--axis); padding: 2px 0 2px 14px; margin: 0 0 14px; }
.numbers td:first-child, .numbers th:first-child { text-align: left; white-space: normal; max-width: 50ch; }
@media print { .claim { break-inside: auto; } }
";

impl ClaimResults {
    pub(super) fn details(&self) -> String {
        let mut page = head("Claims and their rules", STYLE);
        page.push_str(
            "<header><h1>Claims and their rules</h1>\n<p><a href=\"index.html\">All papers, figure by figure</a></p>\
             </header>\n<main>\n",
        );
        for claim in &self.claims {
            section(&mut page, claim);
        }
        page.push_str("</main>\n");
        foot(&mut page, self);
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
    entry("rules", &claim.rules_set());
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
    pictures(page, &claim.figures.iter().collect::<Vec<_>>());
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
         <th scope=\"col\">right</th><th scope=\"col\">ratio</th><th></th><th scope=\"col\">rule set</th></tr></thead><tbody>\n",
    );
    for rule in &claim.rules {
        for check in &rule.checks {
            let ratio = if check.right == 0.0 { f64::NAN } else { check.left / check.right };
            let _ = writeln!(
                page,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(&rule.rule),
                escape(&check.case),
                number::short(check.left),
                escape(&check.relation),
                number::short(check.right),
                number::short(ratio),
                if check.holds { "yes" } else { "no" },
                match rule.set {
                    Some(RuleSet::Before) => "before the first run",
                    Some(RuleSet::After) => "after a run",
                    None => "only reports",
                },
            );
        }
    }
    page.push_str("</tbody></table></div></details>\n");
}
