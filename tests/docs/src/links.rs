//! Links and citations: their files and anchors exist.

use std::collections::BTreeMap;

use crate::markdown::{anchors, lines, without_code};
use crate::prose::SOURCES;
use crate::{Problem, SourceFile, is_document};

/// Whose citations are not of this repository: the checker's tests have examples, and the sources name files of others.
const OF_OTHERS: [&str; 2] = ["tests/docs/src/", SOURCES];

/// Checks the links of documents, and what other files cite of documents.
#[must_use]
pub fn check(files: &[SourceFile]) -> Vec<Problem> {
    let known: BTreeMap<&str, Option<Vec<String>>> = files
        .iter()
        .map(|file| (file.path.as_str(), file.is_document().then(|| anchors(&file.text))))
        .collect();
    let mut problems = Vec::new();
    for file in files {
        if file.is_document() {
            for (line, target) in links(&file.text) {
                let message = dead_link(&known, &file.path, &target);
                problems.extend(message.map(|message| file.problem(line, message)));
            }
            problems.extend(undefined(&file.text).into_iter().map(|(line, name)| {
                file.problem(line, format!("a link without a definition: [{name}]"))
            }));
        }
        if OF_OTHERS.iter().any(|path| file.path.starts_with(path)) {
            continue;
        }
        for (index, text) in file.text.lines().enumerate() {
            let comment = comment(file, text);
            for (at, citation) in citations(text) {
                let is_prose = comment.is_some_and(|from| at >= from);
                let message = dead_citation(&known, &file.path, citation)
                    .or_else(|| {
                        dead_name(&known, citation).filter(|_| is_prose && !file.is_document())
                    })
                    .or_else(|| quoted_section(&text[at + citation.len()..]).filter(|_| is_prose));
                problems.extend(message.map(|message| file.problem(index + 1, message)));
            }
        }
    }
    problems
}

/// Returns the text of a document without code and comments, with the lines that it had.
fn visible(text: &str) -> String {
    let visible: Vec<String> = lines(text).into_iter().map(|(_, line)| line).collect();
    without_code(&visible.join("\n"))
}

/// Returns the names that links such as `[text][name]` or `[name][]` use and no line `[name]: target` defines.
fn undefined(text: &str) -> Vec<(usize, String)> {
    let visible = visible(text);
    let key = |name: &str| name.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    let definition =
        |line: &str| line.strip_prefix('[')?.split_once("]: ").map(|(name, _)| key(name));
    let defined: Vec<String> = visible.lines().filter_map(definition).collect();
    let mut found = Vec::new();
    for (at, _) in visible.match_indices("][") {
        let name = visible[at + 2..].split(']').next().unwrap_or("");
        let own = visible[..at].rsplit('[').next().unwrap_or("");
        let name = if name.is_empty() { own } else { name };
        if !defined.contains(&key(name)) {
            found.push((visible[..at].matches('\n').count() + 1, name.to_owned()));
        }
    }
    found
}

/// Returns the targets of a document's links and images, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let visible = visible(text);
    let line_of = |at: usize| visible[..at].matches('\n').count() + 1;
    let mut found = Vec::new();
    for (at, _) in visible.match_indices("](") {
        let rest = &visible[at + 2..];
        let end = rest.find([')', '\n']).unwrap_or(rest.len());
        // A title may follow the target.
        let target = rest[..end].split_whitespace().next().unwrap_or("");
        found.push((line_of(at), target.trim_matches(['<', '>']).to_owned()));
    }
    for (index, line) in visible.lines().enumerate() {
        let definition = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        let target = definition.and_then(|(_, target)| target.split_whitespace().next());
        found.extend(target.map(|target| (index + 1, target.to_owned())));
    }
    found
}

type Known<'a> = BTreeMap<&'a str, Option<Vec<String>>>;

fn dead_link(known: &Known<'_>, from: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() { from.to_owned() } else { resolve(from, path)? };
    let Some(anchors) = known.get(path.as_str()) else {
        let folder = format!("{}/", path.trim_end_matches('/'));
        let is_there = known.keys().any(|file| file.starts_with(&folder));
        return (!is_there).then(|| format!("a dead link: {target}"));
    };
    dead_anchor(anchors.as_deref(), anchor, target)
}

fn dead_anchor(anchors: Option<&[String]>, anchor: &str, target: &str) -> Option<String> {
    let is_there = match anchors {
        _ if anchor.is_empty() => true,
        Some(anchors) => anchors.iter().any(|known| known == anchor),
        None => false,
    };
    (!is_there).then(|| format!("a dead anchor: {target}"))
}

/// Returns the path of a link relative to the repository.
fn resolve(from: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Returns where the prose of a line begins: a document is prose, and of other files their comments are.
fn comment(file: &SourceFile, line: &str) -> Option<usize> {
    let code = line.trim_start();
    let start = line.len() - code.len();
    if file.is_document() {
        return Some(0);
    }
    let ending = file.path.rsplit(['.', '/']).next().unwrap_or("");
    if !["rs", "c", "h", "java", "proto"].contains(&ending) {
        return line.find('#');
    }
    let is_text = |at: &usize| line[..*at].ends_with(':');
    let marks = line.match_indices("//").map(|(at, _)| at).find(|at| !is_text(at));
    if code.starts_with('*') { Some(start) } else { marks }
}

/// Returns what a line cites of documents, as in `docs/sources.md#polo`, and where.
fn citations(line: &str) -> Vec<(usize, &str)> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || ['_', '.', '/', '-'].contains(&c);
    let mut found = Vec::new();
    for (at, ending) in line.match_indices(".md") {
        let end = at + ending.len();
        if line[end..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            continue;
        }
        let start = line[..at]
            .rfind(|c| !is_path(c))
            .map_or(0, |before| before + line[before..].chars().next().map_or(1, char::len_utf8));
        if line[..start].ends_with(':') && line[start..].starts_with("//") {
            continue;
        }
        let anchor = line[end..].strip_prefix('#').map_or(0, |rest| {
            let is_anchor = |c: char| c.is_alphanumeric() || ['_', '-'].contains(&c);
            1 + rest.find(|c| !is_anchor(c)).unwrap_or(rest.len())
        });
        let anchor = if anchor == 1 { 0 } else { anchor };
        found.push((start, &line[start..end + anchor]));
    }
    found
}

fn dead_citation(known: &Known<'_>, from: &str, citation: &str) -> Option<String> {
    let (path, anchor) = citation.split_once('#').unwrap_or((citation, ""));
    let bare = path.trim_start_matches(['.', '/']);
    let is_of_repository = bare.starts_with("docs/")
        || (!bare.contains('/')
            && bare.trim_end_matches(".md").chars().all(|c| c.is_ascii_uppercase()))
        || (!anchor.is_empty() && !is_document(from));
    if !is_of_repository {
        return None;
    }
    let nearby = resolve(from, path);
    let anchors = known.get(bare).or_else(|| known.get(nearby?.as_str()));
    match anchors {
        Some(anchors) => dead_anchor(anchors.as_deref(), anchor, citation),
        None => Some(format!("cites what is not there: {citation}")),
    }
}

/// A page that is cited by its name only, such as `cast.md`, is somewhere in the repository.
fn dead_name(known: &Known<'_>, citation: &str) -> Option<String> {
    let name = citation.split('#').next().unwrap_or(citation);
    let is_it = |path: &&str| path.rsplit('/').next() == Some(name);
    // What begins with a point is an ending or a glob.
    if name.contains('/') || name.starts_with('.') || known.keys().any(is_it) {
        return None;
    }
    Some(format!("cites what is not there: {citation}"))
}

/// A section is cited by its anchor: nothing would find that a title in quotation marks has gone.
fn quoted_section(after: &str) -> Option<String> {
    let after = after.strip_prefix('`').unwrap_or(after);
    let is_quoted = [", \"", " (\""].iter().any(|start| {
        let title = after.strip_prefix(start);
        title.is_some_and(|title| title.starts_with(|c: char| c.is_uppercase()))
    });
    is_quoted.then(|| "cites a section by its title: use its anchor".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        let file =
            |(path, text): &(&str, &str)| SourceFile { path: (*path).into(), text: (*text).into() };
        let files: Vec<SourceFile> = files.iter().map(file).collect();
        check(&files).into_iter().map(|problem| problem.to_string()).collect()
    }

    const PAGE: (&str, &str) = ("docs/ops/a.md", "# One two\n");

    #[test]
    fn dead_links_and_anchors_are_problems() {
        let page = |link: &str| problems(&[PAGE, ("docs/b.md", &format!("# B\n\n[x]({link})\n"))]);
        for link in
            ["ops/a.md", "ops/a.md#one-two", "#b", "ops/", "../docs/b.md", "https://a.b/c.md#d"]
        {
            assert_eq!(page(link), [""; 0], "{link}");
        }
        assert_eq!(page("a.md"), ["docs/b.md:3: a dead link: a.md"]);
        assert_eq!(page("ops/a.md#one"), ["docs/b.md:3: a dead anchor: ops/a.md#one"]);
        assert_eq!(page("#one-two"), ["docs/b.md:3: a dead anchor: #one-two"]);
        assert_eq!(page("other/"), ["docs/b.md:3: a dead link: other/"]);
    }

    #[test]
    fn definitions_and_links_over_lines_are_links_and_code_is_none() {
        let text = "[a\nb](c.md)\n\n[d]: e.md\n\n`[f](g.md)`\n\n```\n[h](i.md)\n```\n";
        let found = problems(&[("a.md", text)]);
        assert_eq!(found, ["a.md:2: a dead link: c.md", "a.md:4: a dead link: e.md"]);
    }

    #[test]
    fn a_link_by_a_name_that_nothing_defines_is_a_problem() {
        let text =
            "[a][One  two] [b][] [c\nd][gone] `[e][gone]` a[0]\n\n[one two]: x.md\n[B]: x.md\n";
        let found = problems(&[("x.md", text)]);
        assert_eq!(found, ["x.md:2: a link without a definition: [gone]"]);
        assert_eq!(
            problems(&[("x.md", "# X\n\n[y][]\n")])[0],
            "x.md:3: a link without a definition: [y]"
        );
    }

    #[test]
    fn dead_citations_of_code_scenarios_and_scripts_are_problems() {
        let cited = |path: &str, text: &str| problems(&[PAGE, (path, text)]);
        for text in [
            "// docs/ops/a.md#one-two: why",
            "include_str!(\"../../docs/ops/a.md\")",
            "https://x.org/docs/none.md#x",
            "let file = \"x.md\";",
            "let files = [\"https://x.org\", \"x.md\"];",
            "// the page a.md, https://x.org/x.md and *.md",
            "// docs/ops/a.md (\"two\")",
        ] {
            assert_eq!(cited("engine/x/src/lib.rs", text), [""; 0], "{text}");
        }
        let dead = "engine/x.rs:1: a dead anchor: docs/ops/a.md#one";
        assert_eq!(cited("engine/x.rs", "(docs/ops/a.md#one)"), [dead]);
        let gone = "scenarios/x.toml:1: cites what is not there: docs/a.md";
        assert_eq!(cited("scenarios/x.toml", "# docs/a.md"), [gone]);
        for (path, text) in
            [("x.rs", "let x; // see x.md"), ("x.toml", "# x.md"), ("x.c", " * x.md")]
        {
            let gone = format!("{path}:1: cites what is not there: x.md");
            assert_eq!(cited(path, text), [gone]);
        }
        let title = "x.rs:1: cites a section by its title: use its anchor";
        assert_eq!(cited("x.rs", "// `docs/ops/a.md`, \"One two\""), [title]);
        assert_eq!(cited("x.rs", "// docs/ops/a.md (\"One\")"), [title]);
        let other = problems(&[PAGE, (SOURCES, "`docs/none.md` of TigerBeetle, [x](none.md)")]);
        assert_eq!(other, ["docs/sources.md:1: a dead link: none.md"]);
        let gone = ".ci/run:1: cites what is not there: ARCHITECTURE.md#x";
        assert_eq!(cited(".ci/run", "# ARCHITECTURE.md#x"), [gone]);
    }
}
