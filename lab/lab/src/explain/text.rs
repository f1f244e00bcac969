//! What `--explain` prints: of one point a line for each fact, of several what they share and a table of what differs.

use unicode_width::UnicodeWidthStr;

use super::Explanation;
use crate::offered::{NEARLY_FULL, Tier};
use crate::report::number::{bytes, micros, seconds, short};
use crate::report::wrap::{PLAIN_WIDTH, hanging, wrap};
use crate::results::{plain, short_key};

/// The mark of a load from [`NEARLY_FULL`] on, and of a run that lasts long after its last start.
const FULL: &str = " !";
const DRAINS: &str = " *";

/// A cell of the table.
#[derive(Clone, Debug)]
struct Cell {
    column: &'static str,
    value: f64,
    unit: fn(f64) -> String,
    /// [`FULL`], [`DRAINS`] or empty.
    mark: &'static str,
}

impl Cell {
    fn new(column: &'static str, value: f64, unit: fn(f64) -> String) -> Self {
        Self { column, value, unit, mark: "" }
    }

    fn text(&self) -> String {
        (self.unit)(self.value) + self.mark
    }

    fn is_as(&self, other: &Self) -> bool {
        self.column == other.column && self.text() == other.text()
    }
}

/// A fact of a point.
#[derive(Debug)]
struct Fact {
    name: &'static str,
    /// All of it.
    text: String,
    /// Its numbers, where points differ in them; a fact without is a note where they differ.
    cells: Vec<Cell>,
}

fn whole(number: f64) -> String {
    format!("{number:.0}")
}

fn gbps(rate: f64) -> String {
    format!("{} Gbps", short(rate))
}

fn percent(share: f64) -> String {
    format!("{} %", short(share * 100.0))
}

impl Explanation {
    /// As text, in lines of at most 100 columns.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.to_lines(PLAIN_WIDTH).join("\n")
    }

    fn to_lines(&self, width: usize) -> Vec<String> {
        let mut lines = vec![hanging("", &self.heading(), width)];
        lines.retain(|heading| !heading.is_empty());
        lines.extend(self.facts().into_iter().map(|fact| line(fact.name, &fact.text, width)));
        lines
    }

    /// The swept keys with their values.
    fn heading(&self) -> String {
        let set = self.swept().map(|(key, value)| format!("{key} = {}", plain(value)));
        set.collect::<Vec<_>>().join(", ")
    }

    fn swept(&self) -> impl Iterator<Item = (&String, &serde_json::Value)> {
        self.set.iter().filter(|(key, _)| *key != "measure.size_buckets")
    }

    fn facts(&self) -> Vec<Fact> {
        let mut facts = vec![self.fabric_fact()];
        let mut add = |name, text: String, cells: Vec<Cell>| facts.push(Fact { name, text, cells });
        add("switches", self.switch_rules.clone(), Vec::new());
        add(
            "longest path",
            format!(
                "{} links, base RTT {:.2} us, BDP {} bytes",
                self.longest_path_links, self.base_rtt_us, self.bdp_bytes
            ),
            vec![
                Cell::new("base RTT", self.base_rtt_us, micros),
                Cell::new("BDP", f64::from(self.bdp_bytes), bytes),
            ],
        );
        add("transport", self.transport.clone(), Vec::new());
        facts.push(self.workload_fact());
        facts.push(self.measured_fact());
        let mut add = |name, text: String, cells: Vec<Cell>| facts.push(Fact { name, text, cells });
        if let Some(collective) = &self.collective {
            add("collective", collective.clone(), Vec::new());
        }
        for stream in &self.background {
            add("background", stream.clone(), Vec::new());
        }
        if let Some(offered) = &self.offered {
            let lines = offered.tiers.chunks(2).zip(offered.lines());
            for (tiers, text) in lines {
                add("offered", text, vec![offered_cell(tiers)]);
            }
            // What has no rate has no number.
            for text in offered.lines().into_iter().skip(offered.tiers.len().div_ceil(2)) {
                add("offered", text, Vec::new());
            }
            offered.warnings().for_each(|text| add(WARNING, text, Vec::new()));
        }
        for fault in &self.faults {
            add("fault", fault.clone(), Vec::new());
        }
        if let (Some(hops), Some(cpu), Some(memory)) =
            (self.packet_hops, self.cpu_s, self.memory_bytes)
        {
            let cost = format!("{} packet-hops, {} on one core", short(hops), seconds(cpu));
            let cells =
                vec![Cell::new("one core", cpu, seconds), Cell::new("memory", memory, bytes)];
            let without =
                if self.loses_packets { ", without what is sent again for faults" } else { "" };
            add("estimate", format!("{cost} and {} of memory{without}", bytes(memory)), cells);
        }
        let threads = self.one_thread.as_ref().map_or_else(
            || "as many as --threads says, with the same results".into(),
            |reason| format!("one: {reason}"),
        );
        add("threads", threads, Vec::new());
        if let Some(warning) = &self.warning {
            add(WARNING, warning.clone(), Vec::new());
        }
        facts
    }

    fn fabric_fact(&self) -> Fact {
        let switches = if self.switches == 1 { "switch" } else { "switches" };
        let mut text = format!(
            "{} hosts at {} Gbps, {} {switches}, {} links",
            self.hosts, self.host_link_gbps, self.switches, self.links
        );
        let mut cells = vec![
            Cell::new("hosts", self.hosts as f64, whole),
            Cell::new("host link", self.host_link_gbps, gbps),
            Cell::new("switches", self.switches as f64, whole),
        ];
        if let Some(core) = self.core_link_gbps {
            text += &format!("; core links of {} Gbps", short(core));
            cells.push(Cell::new("core link", core, gbps));
        }
        if let Some(times) = self.oversubscription {
            text += &match short(times).as_str() {
                "1.00" => ", no oversubscription".to_owned(),
                times => format!(", oversubscribed {times} times"),
            };
            cells.push(Cell::new("oversubscribed", times, short));
        }
        Fact { name: "fabric", text, cells }
    }

    fn workload_fact(&self) -> Fact {
        let mean = self.mean_message_bytes;
        let mut text = format!("messages of {mean:.0} bytes on average");
        let mut cells = vec![Cell::new("message", mean, bytes)];
        if let (Some(each), Some(all)) = (self.messages_per_s_per_host, self.messages_per_s) {
            text += &format!(", {}/s per host, {}/s over all hosts", short(each), short(all));
            cells.push(Cell::new("messages/s", all, short));
        }
        Fact { name: "workload", text, cells }
    }

    fn measured_fact(&self) -> Fact {
        let mut text =
            self.messages.map_or("as many messages as the time limit allows".into(), |messages| {
                format!("{messages} messages")
            });
        match (self.started_us, self.simulated_us) {
            (Some(started), Some(simulated)) if simulated > 1.05 * started => {
                text += &format!(
                    ", which start within {} and have ended after about {} of simulated time",
                    micros(started),
                    micros(simulated)
                );
            }
            (_, Some(simulated)) => {
                text += &format!(" in about {} of simulated time", micros(simulated));
            }
            _ => {}
        }
        let mark = if self.warning.is_some() { DRAINS } else { "" };
        let cells = [
            self.messages.map(|n| Cell::new("messages", n as f64, whole)),
            self.started_us.map(|us| Cell::new("started by", us, micros)),
            self.simulated_us.map(|us| Cell { mark, ..Cell::new("ended by", us, micros) }),
        ];
        Fact { name: "measured", text, cells: cells.into_iter().flatten().collect() }
    }
}

const WARNING: &str = "warning";

/// The fuller direction of a tier.
fn offered_cell(tiers: &[Tier]) -> Cell {
    let most = tiers.iter().map(|tier| tier.most).fold(0.0, f64::max);
    let mark = if most >= NEARLY_FULL { FULL } else { "" };
    let column = tiers.first().map_or("", |tier| tier.group);
    Cell { mark, ..Cell::new(column, most, percent) }
}

fn line(name: &str, text: &str, width: usize) -> String {
    hanging(&format!("  {name:<13} "), text, width)
}

/// Rows that differ in the seed only.
struct Row<'a> {
    set: Vec<(&'a str, String)>,
    seeds: Vec<String>,
    points: Vec<&'a [Fact]>,
}

impl Row<'_> {
    /// The text in a column: of several seeds the range.
    fn cell(&self, column: &str) -> String {
        let all = self.points.iter().flat_map(|facts| facts.iter());
        let cells: Vec<&Cell> =
            all.flat_map(|fact| &fact.cells).filter(|cell| cell.column == column).collect();
        let least = cells.iter().min_by(|a, b| a.value.total_cmp(&b.value));
        let most = cells.iter().max_by(|a, b| a.value.total_cmp(&b.value));
        match (least, most) {
            (Some(least), Some(most)) if (least.unit)(least.value) == (most.unit)(most.value) => {
                most.text()
            }
            (Some(least), Some(most)) => {
                format!("{} to {}", (least.unit)(least.value), most.text())
            }
            _ => "-".to_owned(),
        }
    }
}

/// The text of points, in lines of at most `width` columns.
pub(super) fn points(points: &[Explanation], width: usize) -> String {
    if let [only] = points {
        return only.to_lines(width).join("\n");
    }
    let facts: Vec<Vec<Fact>> = points.iter().map(Explanation::facts).collect();
    let Some(first) = facts.first() else { return String::new() };
    let is_common = |fact: &Fact| {
        facts
            .iter()
            .all(|other| other.iter().any(|it| it.name == fact.name && it.text == fact.text))
    };
    let is_common_cell = |cell: &Cell| {
        facts
            .iter()
            .all(|other| other.iter().any(|fact| fact.cells.iter().any(|it| it.is_as(cell))))
    };
    let mut lines = vec!["all runs".to_owned()];
    for fact in first {
        if is_common(fact) {
            lines.push(line(fact.name, &fact.text, width));
            continue;
        }
        let shared: Vec<String> = (fact.cells.iter())
            .filter(|cell| is_common_cell(cell))
            .map(|cell| format!("{} {}", cell.column, cell.text()))
            .collect();
        if !shared.is_empty() {
            lines.push(line(fact.name, &shared.join(", "), width));
        }
    }
    let mut columns: Vec<&'static str> = Vec::new();
    for fact in facts.iter().flatten().filter(|fact| !is_common(fact)) {
        for cell in fact.cells.iter().filter(|cell| !is_common_cell(cell)) {
            if !columns.contains(&cell.column) {
                columns.push(cell.column);
            }
        }
    }
    let rows = rows(points, &facts);
    let notes = notes(&rows, &is_common);
    lines.push(String::new());
    lines.extend(draw(&rows, &columns, &notes, width));
    lines.extend(explained_marks(points, width));
    let notes = notes.into_iter().enumerate();
    lines.extend(
        notes.map(|(nth, note)| hanging(&format!("  {}  ", letter(nth)), &note.text, width)),
    );
    lines.join("\n")
}

fn rows<'a>(points: &'a [Explanation], facts: &'a [Vec<Fact>]) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for (point, facts) in points.iter().zip(facts) {
        let of = |(key, value): (&'a String, &serde_json::Value)| (key.as_str(), plain(value));
        let (seed, set): (Vec<_>, Vec<_>) =
            point.swept().map(of).partition(|(key, _)| *key == "seed");
        let row = match rows.iter().position(|row| row.set == set) {
            Some(known) => &mut rows[known],
            None => {
                rows.push(Row { set, seeds: Vec::new(), points: Vec::new() });
                let last = rows.len() - 1;
                &mut rows[last]
            }
        };
        row.seeds.extend(seed.into_iter().map(|(_, seed)| seed));
        row.points.push(facts);
    }
    rows
}

/// What has no number and is not the same in all points.
struct Note {
    text: String,
    rows: Vec<usize>,
}

fn notes(rows: &[Row<'_>], is_common: &dyn Fn(&Fact) -> bool) -> Vec<Note> {
    let mut notes: Vec<Note> = Vec::new();
    for (nth, row) in rows.iter().enumerate() {
        let facts = row.points.iter().flat_map(|facts| facts.iter());
        // Marks say what warnings do, and the table has the transports that are swept.
        let swept = row.set.iter().any(|(key, _)| *key == "transport.name");
        let told = |fact: &&Fact| {
            fact.cells.is_empty()
                && fact.name != WARNING
                && !(swept && fact.name == "transport")
                && !is_common(fact)
        };
        for fact in facts.filter(told) {
            let text = format!("{}: {}", fact.name, fact.text);
            match notes.iter_mut().find(|note| note.text == text) {
                Some(note) if note.rows.last() == Some(&nth) => {}
                Some(note) => note.rows.push(nth),
                None => notes.push(Note { text, rows: vec![nth] }),
            }
        }
    }
    notes
}

/// The name of a note: a, b, ... z, a26, ...
fn letter(nth: usize) -> String {
    let letter = char::from(b'a' + (nth % 26) as u8);
    if nth < 26 { letter.to_string() } else { format!("{letter}{nth}") }
}

/// The name of a swept key in the heading.
fn last(key: &str) -> &str {
    match key {
        "transport.name" => "transport",
        key => short_key(key),
    }
}

/// Seeds as a list in which more than two that follow each other are a range: "1 to 30, 77".
fn listed(seeds: &[String]) -> String {
    let numbers: Option<Vec<u64>> = seeds.iter().map(|seed| seed.parse().ok()).collect();
    let Some(numbers) = numbers.filter(|numbers| numbers.len() > MOST_SEEDS) else {
        return seeds.join(", ");
    };
    let ranges = numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b)).map(|range| match range {
        [first, .., last] if range.len() > 2 => format!("{first} to {last}"),
        _ => range.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
    });
    ranges.collect::<Vec<_>>().join(", ")
}

/// The most seeds that are listed one by one.
const MOST_SEEDS: usize = 4;

/// The cells of the table, with its heading; and how many of its columns say which row it is.
fn cells(rows: &[Row<'_>], columns: &[&'static str], notes: &[Note]) -> (Vec<Vec<String>>, usize) {
    let mut keys: Vec<&str> = Vec::new();
    for (key, _) in rows.iter().flat_map(|row| &row.set) {
        if !keys.contains(key) {
            keys.push(key);
        }
    }
    let mut table: Vec<Vec<String>> = Vec::new();
    let has_seeds = rows.iter().any(|row| !row.seeds.is_empty());
    // The last part of a key, where that is enough to tell it from the others.
    let heading = |key: &&str| {
        let short = last(key);
        let is_alone = keys.iter().filter(|other| last(other) == short).count() == 1;
        (if is_alone { short } else { key }).to_owned()
    };
    let mut heading: Vec<String> = keys.iter().map(heading).collect();
    heading.extend(has_seeds.then(|| "seed".to_owned()));
    heading.extend(columns.iter().map(|&column| column.to_owned()));
    heading.extend((!notes.is_empty()).then(|| "notes".to_owned()));
    table.push(heading);
    for (nth, row) in rows.iter().enumerate() {
        let value = |key: &str| {
            let of = row.set.iter().find(|(own, _)| *own == key);
            of.map_or_else(|| "-".to_owned(), |(_, value)| value.clone())
        };
        let mut cells: Vec<String> = keys.iter().map(|key| value(key)).collect();
        cells.extend(has_seeds.then(|| listed(&row.seeds)));
        cells.extend(columns.iter().map(|column| row.cell(column)));
        if !notes.is_empty() {
            let of = notes.iter().enumerate().filter(|(_, note)| note.rows.contains(&nth));
            cells.push(of.map(|(nth, _)| letter(nth)).collect::<Vec<_>>().join(" "));
        }
        table.push(cells);
    }
    (table, keys.len() + usize::from(has_seeds))
}

/// The rows of the table, with its heading. Texts that say which row it is are wrapped where they would take more than half of the width;
/// columns for which there is no room follow in a further table.
fn draw(rows: &[Row<'_>], columns: &[&'static str], notes: &[Note], width: usize) -> Vec<String> {
    /// Between columns, and before the first.
    const GAP: usize = 2;
    let (table, lead) = cells(rows, columns, notes);
    let widest = |column: usize| table.iter().map(|row| row[column].width()).max().unwrap_or(0);
    let mut widths: Vec<usize> = (0..table[0].len()).map(widest).collect();
    // At least the widest of the other columns has room next to them.
    let widest_other = widths[lead..].iter().max().map_or(0, |width| width + GAP);
    let room = (width.max(2 * MIN_HALF) / 2).min(width.saturating_sub(widest_other + GAP));
    if widths[..lead].iter().map(|width| width + GAP).sum::<usize>() > room {
        let each = (room / lead.max(1)).saturating_sub(GAP).max(LEAST_CELL);
        widths[..lead].iter_mut().for_each(|width| *width = (*width).min(each));
    }
    let used = widths[..lead].iter().map(|width| width + GAP).sum::<usize>();
    let mut lines = Vec::new();
    let mut next = lead;
    loop {
        let (first, mut taken) = (next, used);
        while next < widths.len() && (next == first || taken + widths[next] + GAP <= width) {
            taken += widths[next] + GAP;
            next += 1;
        }
        if first > lead {
            lines.push(String::new());
        }
        let shown: Vec<usize> = (0..lead).chain(first..next).collect();
        for row in &table {
            let cells: Vec<Vec<String>> =
                shown.iter().map(|&column| wrap(&row[column], widths[column])).collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(0);
            for nth in 0..height {
                let line = cells.iter().zip(&shown).map(|(lines, &column)| {
                    let text = lines.get(nth).map_or("", String::as_str);
                    let space = " ".repeat((widths[column] + GAP).saturating_sub(text.width()));
                    format!("{text}{space}")
                });
                lines.push(format!("  {}", line.collect::<String>()).trim_end().to_owned());
            }
        }
        if next >= widths.len() {
            return lines;
        }
    }
}

/// Half of the narrowest table, and the narrowest column of texts.
const MIN_HALF: usize = 24;
const LEAST_CELL: usize = 4;

/// What the marks of the table mean.
fn explained_marks(points: &[Explanation], width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let offered = points.iter().filter_map(|point| point.offered.as_ref());
    if offered.flat_map(|of| &of.tiers).any(|tier| tier.most >= NEARLY_FULL) {
        lines.push(hanging(
            "  !  ",
            "offered to a link what it hardly carries, or more; without a steady state the run ends as overloaded, or at its time limit",
            width,
        ));
    }
    let mut drains: Vec<&str> = points.iter().filter_map(|point| point.drain.as_deref()).collect();
    drains.dedup();
    if let [first, ..] = drains[..] {
        let text = format!(
            "most of the simulated time passes after the last measured message has started, {first}"
        );
        lines.push(hanging("  *  ", &text, width));
    }
    lines
}

/// Returns the estimate for all runs of a sweep; empty for a single run.
pub(super) fn total(points: &[Explanation]) -> String {
    let known: Vec<f64> = points.iter().filter_map(|point| point.cpu_s).collect();
    if points.len() < 2 || known.is_empty() {
        return String::new();
    }
    let (sum, longest) = (known.iter().sum::<f64>(), known.iter().copied().fold(0.0, f64::max));
    let unknown = match points.len() - known.len() {
        0 => String::new(),
        n => format!(", without {n} whose length is not known"),
    };
    let runs = points.len();
    let (sum, longest) = (seconds(sum), seconds(longest));
    format!("\nall {runs} runs: {sum} on one core{unknown}; the longest takes {longest}\n")
}
