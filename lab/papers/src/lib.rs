//! Claims of papers, and whether they hold in Rackweave.
//!
//! Claims are data: `scenarios/papers/NAME/claims.toml` states what the paper claims, which scenario is run, by which
//! rules the claim holds, and which figures are redrawn. No claim is hard-coded here; see `docs/papers.md`.
//!
//! - `claim`: the file format.
//! - `select`, `path`: the selection of points and of their numbers.
//! - `rule`: comparisons of numbers.
//! - `figure`: charts.
//! - `plan`, `session`: running each scenario once, and deciding the claims.
//! - [`RealHosts`]: how scenarios of both worlds run on real hosts, which is the caller's.
//! - `page`: `index.html`, `claims.html`, `claims.json` and the table for a terminal.
//! - `sheet`: pages of results that are on the disk.

mod claim;
mod figure;
mod page;
mod path;
mod plan;
mod real;
mod rule;
mod select;
mod session;
mod sheet;
#[cfg(test)]
mod tests;

use rackweave_lab::builtin;
use rackweave_lab::error::ScenarioError;
use rackweave_lab::list::{self, Item};
use serde_json::{Value, json};

use self::claim::Claim;
pub use self::claim::{Original, Paper, RuleSet};
pub use self::plan::Request;
pub use self::real::{RealHosts, RealRun};
pub use self::rule::{Check, Ruling};
pub use self::session::{
    ClaimResult, ClaimResults, DrawnFigure, PaperError, PaperResult, Remarks, Session, Verdict,
};
pub use self::sheet::{SheetError, merge};

/// Returns the papers whose claims are compiled into the command.
///
/// # Errors
/// If a file of claims is invalid.
pub fn papers() -> Result<Vec<Paper>, ScenarioError> {
    let files = builtin::CLAIMS.iter();
    files.map(|file| Paper::parse(file.file, file.text, None)).collect()
}

/// Returns the claims of papers as entries of a list.
#[must_use]
pub fn items(papers: &[Paper]) -> Vec<Item> {
    let of = |paper: &Paper| -> Vec<Item> {
        let scenario = |claim: &Claim| paper.scenario(&claim.scenario).map(|spec| &*spec.file);
        let claims = paper.content.claims.iter();
        claims.map(|claim| item(paper.name(), claim, scenario(claim).unwrap_or(""))).collect()
    };
    papers.iter().flat_map(of).collect()
}

/// Returns a claim as an entry of a list.
fn item(system: &str, claim: &Claim, scenario: &str) -> Item {
    let facts = json!({
        "id": claim.id,
        "system": system,
        "claim": claim.claim,
        "paper": claim.paper,
        "source": claim.source,
        "rule": claim.holds_when,
        "scenario": scenario,
    });
    Item::new(&claim.id, &claim.claim, &facts)
}

/// Returns a list of claims for a terminal.
#[must_use]
pub fn to_text(items: &[Item]) -> String {
    let fact = |item: &Item, key: &str| match item.facts.get(key) {
        Some(Value::String(text)) => text.clone(),
        _ => String::new(),
    };
    list::text_of(
        items,
        |item| item.description.clone(),
        |item| {
            vec![
                format!("paper: {}", fact(item, "paper")),
                format!("holds when: {}", fact(item, "rule")),
                format!("scenario: {}", fact(item, "scenario")),
            ]
        },
    )
}

impl Session {
    /// Returns the planned claims as entries of a list.
    #[must_use]
    pub fn items(&self) -> Vec<Item> {
        let claims = self.claims();
        claims.map(|(system, claim, scenario)| item(system, claim, scenario)).collect()
    }
}
