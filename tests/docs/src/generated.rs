//! Blocks that a generator writes: from `<!-- generated: KIND ARGUMENTS -->` to `<!-- end -->`.

const BEGIN: &str = "<!-- generated: ";
const CLOSE: &str = "-->";
const END: &str = "<!-- end -->";

/// The first line of a generated block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The line, from 1.
    pub line: usize,
    /// The generator.
    pub kind: String,
    /// What it generates.
    pub arguments: String,
}

/// Returns the markers of a document, without those in code blocks.
#[must_use]
pub fn markers(text: &str) -> Vec<Marker> {
    let mut fenced = false;
    let mut markers = Vec::new();
    for (index, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        if !fenced {
            markers.extend(marker(index + 1, line));
        }
    }
    markers
}

fn marker(line: usize, text: &str) -> Option<Marker> {
    let inner = text.trim().strip_prefix(BEGIN)?.strip_suffix(CLOSE)?.trim();
    let (kind, arguments) = inner.split_once(' ').unwrap_or((inner, ""));
    Some(Marker { line, kind: kind.into(), arguments: arguments.trim().into() })
}

/// Returns the text with what `generate` returns in each block, and for each block that differed or is wrong, the line of
/// its marker and a message. Blocks for which it returns `None` belong to another generator.
pub fn replace(
    text: &str,
    mut generate: impl FnMut(&Marker) -> Option<Result<String, String>>,
) -> (String, Vec<(usize, String)>) {
    let mut written = String::new();
    let mut problems = Vec::new();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let markers = markers(text);
    let mut index = 0;
    while index < lines.len() {
        written.push_str(lines[index]);
        index += 1;
        let Some(marker) = markers.iter().find(|marker| marker.line == index) else { continue };
        let is_next = |line: &&str| line.trim_end() == END || line.starts_with(BEGIN);
        let Some(length) = lines[index..].iter().position(is_next) else {
            problems.push((marker.line, format!("no `{END}` follows this block")));
            continue;
        };
        if lines[index + length].trim_end() != END {
            problems.push((marker.line, format!("no `{END}` before the next block")));
            continue;
        }
        match generate(marker) {
            None => continue,
            Some(Err(message)) => {
                problems.push((marker.line, message));
                continue;
            }
            Some(Ok(block)) => {
                let found = lines[index..index + length].concat();
                if found != block {
                    let message = format!(
                        "`{} {}` differs from the code: RACKWEAVE_BLESS=1 writes it",
                        marker.kind, marker.arguments
                    );
                    problems.push((marker.line, message));
                }
                written.push_str(&block);
                index += length;
            }
        }
    }
    (written, problems)
}

/// Returns a table with these titles and rows, or nothing without rows.
#[must_use]
pub fn table<const N: usize>(titles: [&str; N], rows: &[[String; N]]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let line = |cells: &[String; N]| format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |");
    let escaped = rows.iter().map(|cells| cells.clone().map(|cell| cell.replace('|', "\\|")));
    let mut table = line(&titles.map(str::to_owned));
    table.push_str(&format!("|{}\n", "---|".repeat(N)));
    table.extend(escaped.map(|cells| line(&cells)));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str) -> (String, Vec<(usize, String)>) {
        replace(text, |marker| match marker.kind.as_str() {
            "a" => Some(Ok(format!("{}!\n", marker.arguments))),
            "wrong" => Some(Err("wrong".into())),
            _ => None,
        })
    }

    #[test]
    fn a_block_that_differs_is_a_problem_and_is_written() {
        let right = "x\n<!-- generated: a b c -->\nb c!\n<!-- end -->\ny\n";
        assert_eq!(run(right), (right.to_owned(), vec![]));
        let (text, problems) = run(&right.replace("b c!", "b d!"));
        assert_eq!(text, right);
        assert_eq!(problems[0].0, 2);
        let (text, problems) = run(&right.replace("b c!\n", ""));
        assert_eq!((text.as_str(), problems.len()), (right, 1));
    }

    #[test]
    fn blocks_of_others_stay() {
        let text = "<!-- generated: b -->\nx\n<!-- end -->\n```\n<!-- generated: a -->\n```\n";
        assert_eq!(run(text), (text.to_owned(), vec![]));
    }

    #[test]
    fn a_block_without_an_end_is_a_problem_and_stays() {
        let text = "<!-- generated: a b -->\nx\n";
        assert_eq!(run(text).0, text);
        assert_eq!(run(text).1.len(), 1);
        let text = "<!-- generated: a b -->\n<!-- generated: a b -->\nb!\n<!-- end -->\n";
        assert_eq!(run(text).0, text);
        assert_eq!(run(text).1, [(1, "no `<!-- end -->` before the next block".into())]);
        assert_eq!(run("<!-- generated: wrong -->\n<!-- end -->\n").1, [(1, "wrong".into())]);
    }

    #[test]
    fn cells_escape_bars() {
        let rows = [["a|b".to_owned(), String::new()]];
        assert_eq!(table(["k", "v"], &rows), "| k | v |\n|---|---|\n| a\\|b | |\n");
    }
}
