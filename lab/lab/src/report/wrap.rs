//! Lines of text that fit a terminal.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The width of text that is written to a file or pipe.
pub const PLAIN_WIDTH: usize = 100;
/// The smallest width for which text is wrapped.
const MIN_WIDTH: usize = 40;
/// The indentation of text below a heading that leaves no room next to it.
const INDENT: &str = "      ";

/// Returns `text` next to `head`, wrapped to lines of at most `width` columns, or 40 if that is larger. Further lines begin below the
/// text's first, unless the heading takes more than half of the width.
#[must_use]
pub fn hanging(head: &str, text: &str, width: usize) -> String {
    let width = width.max(MIN_WIDTH);
    if head.width() + text.width() <= width {
        return format!("{head}{text}").trim_end().to_owned();
    }
    let is_short = head.width() <= width / 2;
    let (mut lines, indent) = if is_short {
        (Vec::new(), " ".repeat(head.width()))
    } else {
        (wrap_parts(head.trim_end(), width), INDENT.to_owned())
    };
    for (nth, line) in wrap(text, width - indent.width()).into_iter().enumerate() {
        let before = if nth == 0 && is_short { head } else { &indent };
        lines.push(format!("{before}{line}").trim_end().to_owned());
    }
    lines.join("\n")
}

/// Wraps the parts of a name, which commas separate, to lines of at most `width` columns.
pub(crate) fn wrap_parts(name: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in name.split_inclusive(", ") {
        match lines.last_mut() {
            Some(line) if line.width() + part.trim_end().width() <= width => line.push_str(part),
            _ => lines.extend(
                wrap(part.trim_end(), width)
                    .into_iter()
                    .map(|line| if part.ends_with(' ') { line + " " } else { line }),
            ),
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// Wraps `text` to lines of at most `width` columns, at spaces where possible.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word = word.to_owned();
        loop {
            let line = lines.last_mut().expect("starts with one, only grows");
            let gap = usize::from(!line.is_empty());
            if line.width() + gap + word.width() <= width {
                if gap == 1 {
                    line.push(' ');
                }
                line.push_str(&word);
                break;
            }
            if gap == 0 {
                // The word is wider than a line.
                let mut used = 0;
                let at = word
                    .char_indices()
                    .find(|(_, c)| {
                        used += c.width().unwrap_or(0);
                        used > width
                    })
                    .map_or(word.len(), |(at, _)| at);
                let rest = word.split_off(at);
                line.push_str(&word);
                word = rest;
            }
            lines.push(String::new());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn further_lines_begin_below_the_first() {
        let text = "one two three four five six seven eight nine";
        assert_eq!(
            hanging("  name  ", text, 40),
            "  name  one two three four five six\n        seven eight nine"
        );
        let head = "a heading that takes more than half of it";
        assert_eq!(
            hanging(head, "and what it says", 44),
            format!("{head}\n      and what it says")
        );
        assert_eq!(hanging("- ", "short", 0), "- short");
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_every_line_fits(
            head in "[a-z]{0,60}( [a-z]{1,9}){0,3}", text in "[a-z]{1,90}( [a-z]{1,12}){0,40}", width in 0..160_usize,
        ) {
            let lines = hanging(&head, &text, width);
            prop_assert!(lines.lines().all(|line| line.width() <= width.max(MIN_WIDTH)), "{width}:\n{lines}");
            let words = |text: &str| text.split_whitespace().collect::<String>();
            prop_assert_eq!(words(&lines), words(&head) + &words(&text));
        }
    }
}
