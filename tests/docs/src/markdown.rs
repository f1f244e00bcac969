//! The parts of Markdown that the rules need: paragraphs, headings, and text without code.

/// A heading, a paragraph or an item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first line, from 1.
    pub line: usize,
    /// The lines, joined by spaces, without the marks of headings, items and quotations.
    pub text: String,
    /// Whether it is a heading.
    pub is_heading: bool,
}

/// Returns the lines with their numbers, without code blocks and comments.
#[must_use]
pub fn lines(text: &str) -> Vec<(usize, String)> {
    let mut fence: Option<String> = None;
    let mut in_comment = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start().trim_start_matches(['>', ' ']);
        if let Some(open) = &fence {
            if trimmed.starts_with(open.as_str())
                && trimmed.trim_end().trim_matches(['`', '~']).is_empty()
            {
                fence = None;
            }
            found.push((index + 1, String::new()));
            continue;
        }
        let mark = trimmed.chars().next().filter(|mark| ['`', '~'].contains(mark) && !in_comment);
        if let Some(mark) = mark {
            let run: String = trimmed.chars().take_while(|c| *c == mark).collect();
            // An inline code span may begin a line with three marks, and ends on it.
            if run.len() >= 3 && !trimmed[run.len()..].contains(mark) {
                fence = Some(run);
                found.push((index + 1, String::new()));
                continue;
            }
        }
        found.push((index + 1, without_comments(line, &mut in_comment)));
    }
    found
}

fn without_comments(line: &str, in_comment: &mut bool) -> String {
    let mut kept = String::new();
    let mut rest = line;
    loop {
        let end = if *in_comment { "-->" } else { "<!--" };
        let Some(at) = rest.find(end) else {
            if !*in_comment {
                kept.push_str(rest);
            }
            return kept;
        };
        if !*in_comment {
            kept.push_str(&rest[..at]);
        }
        rest = &rest[at + end.len()..];
        *in_comment = !*in_comment;
    }
}

/// Returns headings, paragraphs and items, without tables, code blocks and comments.
#[must_use]
pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (line, text) in lines(text) {
        let text = text.trim().trim_start_matches(['>', ' ']);
        let is_rule = text.len() >= 3 && text.trim_matches(['-', '=', '*', '_', ' ']).is_empty();
        if text.is_empty() || text.starts_with('|') || is_rule {
            is_open = false;
            continue;
        }
        let hashes = text.chars().take_while(|c| *c == '#').count();
        if (1..=6).contains(&hashes) && text[hashes..].starts_with(' ') {
            let text = text[hashes..].trim().to_owned();
            blocks.push(Block { line, text, is_heading: true });
            is_open = false;
            continue;
        }
        let item = after_item_mark(text);
        match blocks.last_mut() {
            Some(last) if is_open && item.is_none() => {
                last.text.push(' ');
                last.text.push_str(text);
            }
            _ => {
                let text = item.unwrap_or(text).to_owned();
                blocks.push(Block { line, text, is_heading: false });
                is_open = true;
            }
        }
    }
    blocks
}

/// Returns the text of an item of a list.
fn after_item_mark(text: &str) -> Option<&str> {
    let digits = text.chars().take_while(char::is_ascii_digit).count();
    let mark = if digits > 0 { digits + 1 } else { 1 };
    let is_mark = match text.as_bytes().get(mark - 1)? {
        b'-' | b'*' | b'+' => digits == 0,
        b'.' | b')' => (1..=3).contains(&digits),
        _ => false,
    };
    let rest = text.get(mark..).filter(|_| is_mark)?;
    rest.starts_with(' ').then(|| rest.trim_start())
}

/// Takes the place of a code span.
pub const CODE: char = '\u{1}';

/// Returns the text with each code span replaced by [`CODE`], and with the lines that it had.
#[must_use]
pub fn without_code(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('`') {
        let marks = rest[at..].chars().take_while(|c| *c == '`').count();
        let inner = &rest[at + marks..];
        let close = "`".repeat(marks);
        // A mark that nothing closes is text.
        let end = inner
            .match_indices(&close)
            .map(|(end, _)| end)
            .find(|end| !inner[end + marks..].starts_with('`') && !inner[..*end].ends_with('`'));
        kept.push_str(&rest[..at]);
        match end {
            Some(end) => {
                kept.push(CODE);
                kept.extend(inner[..end].chars().filter(|c| *c == '\n'));
                rest = &inner[end + marks..];
            }
            None => {
                kept.push_str(&close);
                rest = inner;
            }
        }
    }
    kept.push_str(rest);
    kept
}

/// Returns the text that a reader sees: links and images by their text, without emphasis.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("](") {
        let Some(open) = rest[..at].rfind('[') else {
            plain.push_str(&rest[..at + 2]);
            rest = &rest[at + 2..];
            continue;
        };
        plain.push_str(rest[..open].trim_end_matches('!'));
        plain.push_str(&rest[open + 1..at]);
        rest = rest[at + 2..].find(')').map_or("", |end| &rest[at + 2 + end + 1..]);
    }
    plain.push_str(rest);
    plain.replace("**", "").replace("<br>", " ")
}

/// Returns the anchors of a document's headings, as GitHub makes them, and the anchors that HTML
/// names.
#[must_use]
pub fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for block in blocks(text).into_iter().filter(|block| block.is_heading) {
        let slug = slug(&block.text);
        let again = (1..).map(|n| format!("{slug}-{n}"));
        let free = std::iter::once(slug.clone()).chain(again).find(|a| !anchors.contains(a));
        anchors.extend(free);
    }
    for name in ["<a id=\"", "<a name=\""] {
        let named = text.split(name).skip(1).filter_map(|rest| rest.split('"').next());
        anchors.extend(named.map(str::to_owned));
    }
    anchors
}

fn slug(heading: &str) -> String {
    let text = plain(heading).to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        blocks(text).into_iter().map(|block| block.text).collect()
    }

    #[test]
    fn blocks_are_headings_paragraphs_and_items() {
        let text =
            "# A\nb\nc\n\n- d\n  e\n- f\n\n1. g\n\n| t | u |\n|---|---|\n\n```sh\nx. Y\n```\n> q\n";
        assert_eq!(texts(text), ["A", "b c", "d e", "f", "g", "q"]);
        assert_eq!(blocks("a\n\n- b\n").pop().unwrap().line, 3);
    }

    #[test]
    fn comments_and_their_lines_are_no_text() {
        assert_eq!(texts("a <!-- b --> c\n\n<!-- d\ne\n-->\nf\n"), ["a  c", "f"]);
    }

    #[test]
    fn code_spans_are_one_character() {
        assert_eq!(without_code("a `b c` ``d ` e`` f `g"), "a \u{1} \u{1} f `g");
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text = "# What hosts cost: `[host]`\n## A & B, c_d\n## A & B, c_d\n<a id=\"x\"></a>\n";
        let expected = ["what-hosts-cost-host", "a--b-c_d", "a--b-c_d-1", "x"];
        assert_eq!(anchors(text), expected);
        assert_eq!(anchors("## The [cast](a.md#b) page\n"), ["the-cast-page"]);
    }

    #[test]
    fn links_are_their_texts() {
        assert_eq!(plain("see [the **page**](a.md#b) and ![x](y.svg)."), "see the page and x.");
    }
}
