//! Verdicts for a terminal.

use std::fmt::Write;

use crate::session::{ClaimResults, Remarks};

impl ClaimResults {
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
                ("rules", &claim.rules_set()),
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
