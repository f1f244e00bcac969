//! Differences as text for a terminal.

use std::fmt::Write as _;

use super::read::Origin;
use super::{Difference, Finding, Measure, Point, name_of};
use crate::report::number;
use crate::report::wrap::{PLAIN_WIDTH, hanging};

impl Difference {
    /// Returns the comparison as text: settings that differ, then for each point the measures that do, then what that is worth. With
    /// `all` the measures that do not differ are listed too.
    #[must_use]
    pub fn to_text(&self, all: bool) -> String {
        self.to_text_within(all, PLAIN_WIDTH)
    }

    /// As [`Difference::to_text`], which has 100 columns, in lines of at most `width` columns.
    #[must_use]
    pub fn to_text_within(&self, all: bool, width: usize) -> String {
        let columns = width;
        let mut text = String::new();
        for (name, origin) in ["A", "B"].iter().zip(&self.of) {
            text.push_str(&origin_line(name, origin, columns));
        }
        if !self.settings.is_empty() {
            text.push_str("\nSettings that differ\n");
            let width = self.settings.iter().map(|it| it.key.chars().count()).max().unwrap_or(0);
            for setting in &self.settings {
                let value =
                    |value: &Option<String>| value.clone().unwrap_or_else(|| "(none)".to_owned());
                let (a, b) = (value(&setting.a), value(&setting.b));
                let head = format!("  {:width$}  ", setting.key);
                let _ = writeln!(text, "{}", hanging(&head, &format!("{a} -> {b}"), columns));
            }
        }
        for point in &self.points {
            text.push_str(&point_text(point, all, columns));
        }
        for (name, points) in [("A", &self.only_in_a), ("B", &self.only_in_b)] {
            if !points.is_empty() {
                let head = format!("Only in {name}: ");
                let _ = writeln!(text, "\n{}", hanging(&head, &points.join("; "), columns));
            }
        }
        text.push('\n');
        for line in self.conclusion().lines() {
            text.push_str(&hanging("", line, columns));
            text.push('\n');
        }
        text
    }

    /// Says how many measures differ, and what chance has to do with it.
    fn conclusion(&self) -> String {
        if self.points.is_empty() {
            return "The results have no point in common.\n".to_owned();
        }
        let count = |finding| self.count(finding);
        let (differ, within) = (count(Finding::Differs), count(Finding::WithinNoise));
        let (unknown, same) = (count(Finding::Unknown), count(Finding::Same));
        let uncorrected = count(Finding::Uncorrected);
        let total = differ + uncorrected + within + unknown + same;
        let measures = self.points.iter().flat_map(|point| &point.measures);
        let tested = measures.filter(|measure| !measure.p_value.is_nan()).count();
        let mut text = String::new();
        if differ + uncorrected + within > 0 {
            let _ = writeln!(
                text,
                "{differ} of {tested} measures differ beyond the noise of the seeds, with Holm's correction for their number: that any of them does by chance has a probability of 5 % at most."
            );
        }
        if uncorrected > 0 {
            let _ = writeln!(
                text,
                "{uncorrected} of {tested} more would differ at 95 % by themselves, and do not with the correction: more seeds would tell."
            );
        }
        if unknown > 0 {
            let _ = writeln!(
                text,
                "{unknown} of {total} measures are not known to differ: one seed says nothing of noise, and seeds without results leave no mean; sweep `seed` over three or more values in both."
            );
        }
        if same > 0 {
            let _ = writeln!(text, "{same} of {total} measures are the same in every run.");
        }
        text
    }
}

fn origin_line(name: &str, origin: &Origin, width: usize) -> String {
    let runs = if origin.runs == 1 { "1 run".to_owned() } else { format!("{} runs", origin.runs) };
    let partial = match (origin.is_partial, origin.missing.len()) {
        (false, _) => String::new(),
        (true, 0) => "partial: points have no results".to_owned(),
        (true, _) => format!("partial, no results: {}", origin.missing.join("; ")),
    };
    let (path, scenario) = (origin.path.display(), &origin.scenario);
    let of = format!("{path}: {scenario}, {runs}, rackweave {}", origin.version);
    let lines = [(format!("{name}  "), of), ("   ".to_owned(), partial)];
    let lines = lines.iter().filter(|(_, text)| !text.is_empty());
    lines.map(|(head, text)| hanging(head, text, width) + "\n").collect()
}

fn point_text(point: &Point, all: bool, columns: usize) -> String {
    let rows = point.measures.iter();
    let shown = |it: &&Measure| {
        use Finding::{Differs, Uncorrected, Unknown};
        all || matches!(it.finding, Differs | Uncorrected | Unknown)
    };
    let rows: Vec<[String; 5]> = rows.filter(shown).map(row).collect();
    if rows.is_empty() && point.incomplete.is_empty() {
        return String::new();
    }
    let seeds = match point.seeds {
        [1, 1] => "one seed".to_owned(),
        [a, b] if a == b && point.paired => format!("{a} seeds, compared one by one"),
        [a, b] => format!("{a} and {b} seeds"),
    };
    let name = format!("{} ({seeds})", name_of(&point.label, &point.set));
    let mut text = format!("\n{}\n", hanging("", &name, columns));
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    for [name, a, b, change, note] in &rows {
        let head = format!(
            "  {name:0$}  {a:>1$} -> {b:>2$}  {change:>3$}  ",
            widths[0], widths[1], widths[2], widths[3]
        );
        let is_short = head.chars().count() + note.chars().count() <= columns;
        // A line that is too long is one of words.
        let line = match is_short {
            true => format!("{head}{note}"),
            false => hanging("  ", &format!("{name}  {a} -> {b}  {change}  {note}"), columns),
        };
        text.push_str(line.trim_end());
        text.push('\n');
    }
    for (side, seeds) in ["A", "B"].iter().zip(&point.missing_seeds) {
        let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
        if !seeds.is_empty() {
            let seeds = seeds.join(", ");
            let told =
                format!("no results of seed {seeds} in {side}: the means are not comparable");
            let _ = writeln!(text, "{}", hanging("  ", &told, columns));
        }
    }
    if let Some(first) = point.incomplete.first() {
        let more = match point.incomplete.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let told =
            format!("not compared, because one side has no value of some seed: {first}{more}");
        let _ = writeln!(text, "{}", hanging("  ", &told, columns));
    }
    text
}

fn row(measure: &Measure) -> [String; 5] {
    let change = match measure.change() {
        _ if measure.finding == Finding::Same => String::new(),
        Some(change) => percent(change, true),
        None => "from zero".to_owned(),
    };
    let interval = match measure.a {
        _ if measure.half_width.is_nan() => String::new(),
        0.0 => format!(" (+-{})", number::short(measure.half_width)),
        a => format!(" (+-{})", percent(measure.half_width / a.abs(), false)),
    };
    let note = match measure.finding {
        Finding::Same => "the same".to_owned(),
        Finding::Differs => interval,
        Finding::Uncorrected => format!("{interval} by itself"),
        Finding::WithinNoise => format!("{interval} within noise"),
        Finding::Unknown => String::new(),
    };
    let [a, b] = [measure.a, measure.b].map(number::short);
    [measure.name.clone(), a, b, change, note.trim_start().to_owned()]
}

/// Formats a share in per cent with three significant digits.
fn percent(share: f64, signed: bool) -> String {
    let sign = if signed && share > 0.0 { "+" } else { "" };
    format!("{sign}{} %", number::short(share * 100.0))
}
