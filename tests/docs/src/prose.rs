//! Rules about sentences, dates and commit hashes.

use crate::comments::comments;
use crate::markdown::{self, CODE, blocks, plain, without_code};
use crate::{Problem, SourceFile};

/// The most words of a sentence.
pub const MAX_WORDS: usize = 45;

/// The document that may have one line with a date and a commit.
pub const DATED: &str = "docs/benchmarks.md";

/// The document that may name commits of other repositories.
pub const SOURCES: &str = "docs/sources.md";

/// Checks one document.
#[must_use]
pub fn check(file: &SourceFile) -> Vec<Problem> {
    let mut problems = Vec::new();
    for block in blocks(&file.text) {
        for message in long_sentences(&block.text) {
            problems.push(file.problem(block.line, message));
        }
    }
    for (line, idiom) in idioms(&file.text) {
        problems.push(file.problem(line, format!("an idiom that documents avoid: {idiom}")));
    }
    let mut dated = usize::from(file.path == DATED);
    for (line, text) in markdown::lines(&file.text) {
        let date = date(&text).map(|date| format!("a date: {date}"));
        let hash = (file.path != SOURCES).then(|| hash(&text)).flatten();
        let hash = hash.map(|hash| format!("a commit hash: {hash}"));
        let found: Vec<String> = date.into_iter().chain(hash).collect();
        if !found.is_empty() && dated > 0 {
            dated -= 1;
            continue;
        }
        problems.extend(found.into_iter().map(|message| file.problem(line, message)));
    }
    problems
}

/// Checks the comments of a Rust source.
#[must_use]
pub fn check_comments(file: &SourceFile) -> Vec<Problem> {
    let mut problems = Vec::new();
    for comment in comments(&file.text) {
        for (line, idiom) in idioms(&comment.text) {
            let message = format!("an idiom that comments avoid: {idiom}");
            problems.push(file.problem(comment.line + line - 1, message));
        }
    }
    problems
}

/// Words that have simpler ones.
const IDIOMS: [&str; 9] = [
    "beside",
    "of which",
    "those that",
    "anew",
    "ours",
    "as it was",
    "what is there",
    "who asks",
    "is told",
];

/// Returns the idioms of a text with their lines; one that a line break divides belongs to the first line.
fn idioms(text: &str) -> Vec<(usize, &'static str)> {
    let visible: Vec<String> = markdown::lines(text).into_iter().map(|(_, line)| line).collect();
    let visible = without_code(&visible.join("\n")).to_lowercase();
    let words: Vec<(usize, &str)> = visible
        .lines()
        .enumerate()
        .flat_map(|(index, line)| line.split_whitespace().map(move |word| (index + 1, word)))
        .collect();
    let mut found = Vec::new();
    for (at, (line, _)) in words.iter().enumerate() {
        let begins = |idiom: &&str| begins_with(words[at..].iter().map(|(_, word)| *word), idiom);
        found.extend(IDIOMS.into_iter().filter(begins).map(|idiom| (*line, idiom)));
    }
    found
}

/// Returns whether words begin with an idiom. Marks may stand around it, not within it.
fn begins_with<'a>(mut words: impl Iterator<Item = &'a str>, idiom: &str) -> bool {
    let is_mark = |c: char| !c.is_alphanumeric();
    let last = idiom.split(' ').count() - 1;
    idiom.split(' ').enumerate().all(|(index, part)| {
        let word = words.next().unwrap_or("");
        let word = if index == 0 { word.trim_start_matches(is_mark) } else { word };
        part == if index == last { word.trim_end_matches(is_mark) } else { word }
    })
}

/// Returns a message for each sentence that is too long.
#[must_use]
pub fn long_sentences(text: &str) -> Vec<String> {
    let sentences = sentences(text).into_iter();
    let long = sentences.map(|sentence| (word_count(&sentence), sentence));
    long.filter(|(words, _)| *words > MAX_WORDS)
        .map(|(words, sentence)| {
            let start: Vec<&str> = sentence.split_whitespace().take(6).collect();
            let start = start.join(" ").replace(CODE, "`...`");
            format!("a sentence of {words} words (at most {MAX_WORDS}): {start} ...")
        })
        .collect()
}

fn word_count(sentence: &str) -> usize {
    let is_word = |word: &&str| word.contains(|c: char| c.is_alphanumeric() || c == CODE);
    sentence.split_whitespace().filter(is_word).count()
}

/// After these a sentence goes on.
const ABBREVIATIONS: [&str; 12] = [
    "e.g.", "i.e.", "vs.", "fig.", "figs.", "sec.", "cf.", "al.", "approx.", "no.", "resp.",
    "incl.",
];

/// Splits a block into its sentences, without code and marks.
#[must_use]
pub fn sentences(text: &str) -> Vec<String> {
    let text = plain(&without_code(text));
    let mut sentences = Vec::new();
    let mut current: Vec<&str> = Vec::new();
    let words: Vec<&str> = text.split_whitespace().collect();
    for (index, word) in words.iter().enumerate() {
        current.push(word);
        let next = words.get(index + 1);
        if next.is_none_or(|next| ends_sentence(word) && begins_sentence(next)) {
            sentences.push(current.join(" "));
            current.clear();
        }
    }
    sentences
}

fn ends_sentence(word: &str) -> bool {
    let core = word.trim_end_matches([')', ']', '"', '\'', '\u{201d}', '*', '_']);
    let bare = core.trim_start_matches(['(', '[', '"', '*', '_']).to_lowercase();
    core.ends_with(['.', '!', '?']) && !ABBREVIATIONS.contains(&bare.as_str())
}

fn begins_sentence(word: &str) -> bool {
    let mut rest = word.trim_start_matches(['(', '[', '"', '\'', '\u{201c}', '*', '_']).chars();
    rest.next().is_none_or(|first| !first.is_lowercase())
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Returns the first date with a day. A month and a year may name a version or a publication.
fn date(text: &str) -> Option<String> {
    let is_between = |c: char| !(c.is_alphanumeric() || c == '-');
    let words: Vec<&str> = text.split(is_between).filter(|word| !word.is_empty()).collect();
    let is_month = |word: &str| {
        MONTHS.iter().any(|month| *month == word || (month.len() > 4 && month[..3] == *word))
    };
    let is_day = |word: &str| {
        let digits = word.trim_end_matches(|c: char| c.is_ascii_lowercase());
        digits.len() <= 2 && digits.parse().is_ok_and(|day: u8| (1..=31).contains(&day))
    };
    if let Some(iso) = words.iter().find(|word| is_iso_date(word)) {
        return Some((*iso).to_owned());
    }
    let pair = words.windows(2).find(|pair| {
        (is_day(pair[0]) && is_month(pair[1])) || (is_month(pair[0]) && is_day(pair[1]))
    })?;
    Some(pair.join(" "))
}

/// Returns whether the word is a date, or begins with one, as in `2026-11-28T12`.
fn is_iso_date(word: &str) -> bool {
    let bytes = word.as_bytes();
    let digits = |range: std::ops::Range<usize>| {
        bytes.get(range).is_some_and(|part| part.iter().all(u8::is_ascii_digit))
    };
    (word.starts_with("19") || word.starts_with("20"))
        && digits(0..4)
        && digits(5..7)
        && digits(8..10)
        && bytes.get(4) == Some(&b'-')
        && bytes.get(7) == Some(&b'-')
}

/// Names that look like hashes.
const NAMES: [&str; 1] = ["ed25519"];

/// Returns the first commit hash: 7 to 40 hexadecimal digits, some of them letters and some not.
fn hash(text: &str) -> Option<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric()).find(|word| {
        (7..=40).contains(&word.len())
            && word.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
            && word.bytes().any(|c| c.is_ascii_digit())
            && word.bytes().any(|c| c.is_ascii_lowercase())
            && !is_number(word)
            && !NAMES.contains(word)
    })
}

/// Returns whether the word is a number with an exponent, or a round one with a unit, such as `2000000b`.
fn is_number(word: &str) -> bool {
    let is_round = word.trim_end_matches(|c: char| c.is_ascii_lowercase()).ends_with("000");
    word.parse::<f64>().is_ok() || (is_round && word.ends_with('b'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> Vec<String> {
        let file = SourceFile { path: path.into(), text: text.into() };
        check(&file).into_iter().map(|problem| problem.to_string()).collect()
    }

    fn words(count: usize) -> String {
        format!("A{}.", " word".repeat(count - 1))
    }

    #[test]
    fn a_sentence_above_the_limit_is_a_problem() {
        assert_eq!(problems("a.md", &words(45)), [""; 0]);
        let long = problems("a.md", &format!("# A\n\n{}", words(46)));
        assert_eq!(
            long,
            ["a.md:3: a sentence of 46 words (at most 45): A word word word word word ..."]
        );
    }

    #[test]
    fn lists_tables_and_code_blocks_divide_sentences() {
        let half = " word".repeat(30);
        let list = format!("A{half}:\n\n- a{half}\n- a{half}\n");
        assert_eq!(problems("a.md", &list), [""; 0]);
        let table = format!("A{half}\n\n| a{half}{half} |\n|---|\n");
        assert_eq!(problems("a.md", &table), [""; 0]);
        let code = format!("A{half}\n```\n{half}{half}\n```\nA{half}\n");
        assert_eq!(problems("a.md", &code), [""; 0]);
        let item = format!("- A{half}\n  {half}\n");
        assert_eq!(problems("a.md", &item).len(), 1);
    }

    #[test]
    fn abbreviations_and_code_end_no_sentence() {
        let text = "See Fig. 3, e.g. This (i.e. That) vs. The other. `a. B` is code. (So.) Then.";
        let expected = [
            "See Fig. 3, e.g. This (i.e. That) vs. The other.",
            "\u{1} is code.",
            "(So.)",
            "Then.",
        ];
        assert_eq!(sentences(text), expected);
        assert_eq!(sentences("Names in a.toml. go on. Not 1.5 here.").len(), 2);
    }

    #[test]
    fn a_code_span_and_the_target_of_a_link_count_as_no_more_than_they_show() {
        let text = format!("A{} `a b c d` [x](y.md \"t u v\").", " word".repeat(42));
        assert_eq!(problems("a.md", &text), [""; 0]);
    }

    #[test]
    fn idioms_are_a_problem() {
        for (idiom, text) in [
            ("beside", "Beside it."),
            ("of which", "x\n\n| a | two, of which one |\n|---|---|"),
            ("those that", "those\nthat end"),
            ("anew", "it begins anew,"),
            ("ours", "The choice is ours."),
            ("as it was", "(as it\nwas)"),
            ("what is there", "omits what is there already"),
            ("who asks", "the one who asks."),
            ("is told", "The sender is told:"),
        ] {
            let found = problems("a.md", text);
            assert!(found.len() == 1 && found[0].ends_with(idiom), "{found:?}");
        }
        let text =
            "`beside` besides cast-beside-traffic those. That hours, as it. Was what is, there";
        assert_eq!(problems("a.md", text), [""; 0]);
    }

    #[test]
    fn idioms_of_comments_are_a_problem() {
        let problems = |text: &str| {
            let file = SourceFile { path: "a.rs".into(), text: text.into() };
            crate::check(&[file]).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let code =
            "//! A of which.\n\n/// B\n/// beside it: those\n/// that c.\nlet ours = 1; // Ours.\n";
        let expected = [(1, "of which"), (4, "beside"), (4, "those that"), (6, "ours")];
        let expected = expected
            .map(|(line, idiom)| format!("a.rs:{line}: an idiom that comments avoid: {idiom}"));
        assert_eq!(problems(code), expected);
        // Neither code nor strings, and no comments that code divides.
        for text in [
            "let ours = \"// beside\";",
            "// `ours`",
            "/// ```\n/// beside(a);\n/// ```",
            "// those\nlet a = 1; // that",
            "/// those\n// that",
        ] {
            assert_eq!(problems(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn dates_with_a_day_are_a_problem() {
        for date in ["26 November 2026", "November 26", "2026-11-26", "3 Sep", "on the 5th May"] {
            assert_eq!(problems("docs/a.md", date).len(), 1, "{date}");
        }
        for text in ["July 2026", "linux-2026", "it may 5 times", "NSDI 2022", "1-2-3"] {
            assert_eq!(problems("docs/a.md", text), [""; 0]);
        }
        assert_eq!(problems("docs/a.md", "| run | 26 Nov |")[0], "docs/a.md:1: a date: 26 Nov");
    }

    #[test]
    fn commit_hashes_are_a_problem() {
        assert_eq!(problems("a.md", "at `4eee581`")[0], "a.md:1: a commit hash: 4eee581");
        assert_eq!(problems("a.md", "https://x.org/commit/26319da8/").len(), 1);
        for text in ["1234567", "defaced", "0x4eee581", "4eee58", "1000e100", "2000000b", "ed25519"]
        {
            assert_eq!(problems("a.md", text), [""; 0]);
        }
        assert_eq!(problems(SOURCES, "HomaModule at 4eee581"), [""; 0]);
        assert_eq!(problems(SOURCES, "26 November").len(), 1);
    }

    #[test]
    fn the_benchmarks_have_one_dated_line() {
        let one = "Measured at 4eee581 on 26 November.\n";
        assert_eq!(problems(DATED, one), [""; 0]);
        assert_eq!(problems(DATED, &one.repeat(2)).len(), 2);
    }
}
