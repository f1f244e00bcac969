//! The line comments of Rust code, `//`, `///` and `//!`, as texts for the rules. Strings are no comments.

/// Adjacent comments with the same mark, or one behind code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// The first line, from 1.
    pub line: usize,
    /// The lines without their marks.
    pub text: String,
}

/// Returns the comments of a source.
#[must_use]
pub fn comments(code: &str) -> Vec<Comment> {
    let mut found: Vec<Comment> = Vec::new();
    // The line that would continue the last comment, and its mark.
    let mut next = (0, "");
    let (mut line, mut counted) = (1, 0);
    for start in starts(code) {
        line += code[counted..start].matches('\n').count();
        counted = start;
        let whole = code[start..].lines().next().unwrap_or("");
        let mark = ["///", "//!"].into_iter().find(|mark| whole.starts_with(mark)).unwrap_or("//");
        let text = &whole[mark.len()..];
        let before = code[..start].rsplit('\n').next().unwrap_or("");
        let is_alone = before.trim().is_empty();
        match found.last_mut() {
            Some(last) if is_alone && next == (line, mark) => {
                last.text.push('\n');
                last.text.push_str(text);
            }
            _ => found.push(Comment { line, text: text.to_owned() }),
        }
        next = if is_alone { (line + 1, mark) } else { (0, "") };
    }
    found
}

/// Returns where comments start, in bytes.
fn starts(code: &str) -> Vec<usize> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        // ASCII bytes are characters of their own, so that the text can be divided there.
        at += match byte {
            b'/' if code[at..].starts_with("//") => {
                found.push(at);
                code[at..].find('\n').unwrap_or(code.len() - at)
            }
            b'"' => string(&code[..at], &code[at..]),
            b'\'' => character(&code[at..]),
            _ => 1,
        };
    }
    found
}

/// The length of a string with its quotes; `before` tells whether it is a raw one.
fn string(before: &str, rest: &str) -> usize {
    let name = before.trim_end_matches('#');
    if name.ends_with('r') {
        let end = format!("\"{}", &before[name.len()..]);
        return rest[1..].find(&end).map_or(rest.len(), |at| 1 + at + end.len());
    }
    let mut escaped = false;
    let end = rest.bytes().skip(1).position(|byte| {
        let is_end = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        is_end
    });
    end.map_or(rest.len(), |at| at + 2)
}

/// The length of a character with its quotes, or of the quote of a lifetime.
fn character(rest: &str) -> usize {
    let mut inner = rest[1..].char_indices();
    let (_, first) = inner.next().unwrap_or_default();
    let Some((at, second)) = inner.next() else { return 1 };
    if first == '\\' {
        // The second one is escaped, and may be a quote.
        return inner.find(|(_, c)| *c == '\'').map_or(1, |(at, _)| at + 2);
    }
    if second == '\'' { at + 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &str) -> Vec<(usize, String)> {
        comments(code).into_iter().map(|comment| (comment.line, comment.text)).collect()
    }

    #[test]
    fn lines_with_the_same_mark_are_one_comment() {
        let code = "//! a\n//! b\n\n/// c\n// d\n// e\nlet f = 1; // g\n// h\n\n    // i\n";
        let expected = [
            (1, " a\n b".to_owned()),
            (4, " c".to_owned()),
            (5, " d\n e".to_owned()),
            (7, " g".to_owned()),
            (8, " h".to_owned()),
            (10, " i".to_owned()),
        ];
        assert_eq!(found(code), expected);
    }

    #[test]
    fn strings_and_characters_are_no_comments() {
        for code in [
            r#""http://a" // b"#,
            r#""a\\" // b"#,
            r#""a\" // c" // b"#,
            "\"a\n// c\"; // b",
            "r\"\\\" // b",
            "br##\"\"# // c\"## // b",
            "'\"' // b",
            r"'\'' // b",
            r"'\\' // b",
            r"'\u{22}' // b",
            "'é' // b",
            "fn f<'a>(_: &'a str) {} // b",
            "'/' / 'é' // b",
        ] {
            let texts: Vec<String> = found(code).into_iter().map(|(_, text)| text).collect();
            assert_eq!(texts, [" b"], "{code}");
        }
        assert_eq!(found("\"// a\n// b"), []);
        assert_eq!(found("\"// a\";\n'"), []);
    }
}
