//! Tables of keys, read from the structs that declare them.
//!
//! A struct is a table if it refuses unknown keys (`#[serde(deny_unknown_fields)]`), or if the macro `keys!` declares it. The
//! doc comment of a field says what the key means, and ends with `Default: ...` or `Required.`. Declarations are read line by
//! line, as rustfmt writes them; a line that is not understood is an error.

use crate::Problem;
use crate::generated::{self, Marker};
use crate::prose::long_sentences;

/// A table of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTable {
    /// The file that declares it.
    pub file: String,
    /// The line of the declaration, from 1.
    pub line: usize,
    /// The name of the struct.
    pub name: String,
    /// The keys, in the order of their declaration.
    pub keys: Vec<Key>,
}

/// A key of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The line of the declaration, from 1.
    pub line: usize,
    /// The name in scenarios.
    pub name: String,
    /// The type in the code.
    pub kind: String,
    /// The doc comment, in one line.
    pub doc: String,
}

impl Key {
    /// The doc comment without the default, and the default.
    fn meaning_and_default(&self) -> (&str, &str) {
        if let Some(meaning) = self.doc.strip_suffix("Required.") {
            return (meaning.trim_end(), "required");
        }
        match self.doc.rsplit_once("Default: ") {
            Some((meaning, default)) => (meaning.trim_end(), default.trim_end_matches('.')),
            None => (&self.doc, ""),
        }
    }
}

/// Reads the tables that a file declares.
///
/// # Errors
/// The line of a declaration that is not understood, and why.
pub fn read(file: &str, text: &str) -> Result<Vec<KeyTable>, (usize, String)> {
    let mut tables = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    let mut refuses_unknown = false;
    let mut in_macro = false;
    while let Some((index, line)) = lines.next() {
        let code = line.trim();
        if code == "keys! {" {
            in_macro = true;
        } else if line == "}" {
            in_macro = false;
        } else if code.starts_with("#[") {
            // rustfmt divides long attributes into lines.
            let mut attribute = code.to_owned();
            while !attribute.ends_with(']') {
                let Some((_, line)) = lines.next() else { break };
                attribute.push_str(line.trim());
            }
            refuses_unknown |= attribute.contains("deny_unknown_fields");
        } else if let Some(name) = struct_name(code).filter(|_| refuses_unknown || in_macro) {
            let indent = &line[..line.len() - line.trim_start().len()];
            let end = format!("{indent}}}");
            let body = lines.by_ref().take_while(|(_, line)| *line != end);
            let keys = read_keys(body.map(|(index, line)| (index + 1, line.trim())))?;
            refuses_unknown = false;
            if keys.is_empty() {
                return Err((index + 1, format!("the table `{name}` has no keys")));
            }
            tables.push(KeyTable { file: file.into(), line: index + 1, name, keys });
        } else if !code.starts_with("//") {
            // The declaration of a macro has no keys of its own.
            if refuses_unknown && code.contains("struct ") && !code.contains('$') {
                return Err((index + 1, format!("a table that is not understood: {code}")));
            }
            refuses_unknown = false;
        }
    }
    Ok(tables)
}

/// The name of a struct whose fields follow.
fn struct_name(code: &str) -> Option<String> {
    let (before, after) = code.split_once("struct ")?;
    let is_declared = before.is_empty() || before.starts_with("pub");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name: String = after.chars().take_while(|c| is_name(*c)).collect();
    (is_declared && !name.is_empty() && code.ends_with('{')).then_some(name)
}

fn read_keys<'a>(
    lines: impl Iterator<Item = (usize, &'a str)>,
) -> Result<Vec<Key>, (usize, String)> {
    let mut keys = Vec::new();
    let mut doc: Vec<&str> = Vec::new();
    let mut is_skipped = false;
    for (line, code) in lines {
        if let Some(text) = code.strip_prefix("///") {
            doc.push(text.trim());
        } else if code.starts_with("#[") && code.ends_with(']') {
            is_skipped |= code == "#[serde(skip)]";
            let changed = ["rename", "flatten", "alias"].iter().find(|word| code.contains(*word));
            if let Some(word) = changed {
                return Err((line, format!("keys with `{word}` are not understood here")));
            }
        } else if !code.is_empty() && !code.starts_with("//") {
            let Some((name, kind)) = code.strip_suffix(',').and_then(|code| code.split_once(": "))
            else {
                return Err((line, format!("a key that is not understood: {code}")));
            };
            let name = name.rsplit(' ').next().unwrap_or(name).trim_start_matches("r#");
            let kind = kind.split(" => ").next().unwrap_or(kind);
            let doc = std::mem::take(&mut doc).join(" ");
            if !std::mem::take(&mut is_skipped) {
                keys.push(Key { line, name: name.into(), kind: kind.into(), doc });
            }
        }
    }
    Ok(keys)
}

/// Returns the table of an argument such as `allreduce::SwitchKeys`: its name, and words of the path of its file.
fn find<'a>(tables: &'a [KeyTable], argument: &str) -> Result<&'a KeyTable, String> {
    let mut path: Vec<&str> = argument.split("::").collect();
    let name = path.pop().unwrap_or("");
    let is_in = |table: &&KeyTable| {
        let mut parts = table.file.split(['/', '.']);
        table.name == name && path.iter().all(|word| parts.any(|part| part == *word))
    };
    let found: Vec<&KeyTable> = tables.iter().filter(is_in).collect();
    match found[..] {
        [table] => Ok(table),
        [] => Err(format!("there is no table `{argument}` in the code")),
        _ => Err(format!("`{argument}` is the name of {} tables in the code", found.len())),
    }
}

/// The arguments of a marker: the prefix of the keys, and the name of a table.
fn arguments(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split_whitespace().map(|argument| argument.split_once('=').unwrap_or(("", argument)))
}

/// Returns the rows of tables. `Switch trim=TrimQueues` are the keys of `Switch`, and then those of `TrimQueues` with
/// `trim.` before them. Keys with the same doc comment share a row.
///
/// # Errors
/// A table is not there, or the name is that of several.
pub fn render(tables: &[KeyTable], text: &str) -> Result<String, String> {
    let mut rows: Vec<[String; 3]> = Vec::new();
    for (prefix, argument) in arguments(text) {
        for key in &find(tables, argument)?.keys {
            let (meaning, default) = key.meaning_and_default();
            let dot = if prefix.is_empty() { "" } else { "." };
            let name = format!("`{prefix}{dot}{}`", key.name);
            let meaning = meaning.trim_end_matches('.');
            match rows.iter_mut().find(|row| row[1] == meaning && row[2] == default) {
                Some([names, ..]) if names.split(", ").any(|other| other == name) => {}
                Some([names, ..]) => *names = format!("{names}, {name}"),
                None => rows.push([name, meaning.to_owned(), default.to_owned()]),
            }
        }
    }
    if rows.is_empty() {
        return Err("a block of keys names a table of the code".into());
    }
    Ok(generated::table(["key", "meaning", "default"], &rows))
}

/// Returns whether every key of a table is a table itself.
fn encloses_only(tables: &[KeyTable], table: &KeyTable) -> bool {
    let is_table = |key: &Key| {
        let inner = key.kind.trim_start_matches("Option<").trim_end_matches('>');
        tables.iter().any(|table| inner.rsplit("::").next() == Some(table.name.as_str()))
    };
    !table.keys.is_empty() && table.keys.iter().all(is_table)
}

/// Returns the tables that no document shows. What only encloses other tables needs none.
#[must_use]
pub fn missing(tables: &[KeyTable], shown: &[Marker]) -> Vec<Problem> {
    let shown = shown.iter().filter(|marker| marker.kind == "keys");
    let shown: Vec<&KeyTable> = shown
        .flat_map(|marker| arguments(&marker.arguments))
        .filter_map(|(_, argument)| find(tables, argument).ok())
        .collect();
    let is_shown = |table: &&KeyTable| shown.contains(table) || encloses_only(tables, table);
    let missing = tables.iter().filter(|table| !is_shown(table));
    missing
        .map(|table| Problem {
            file: table.file.clone(),
            line: table.line,
            message: format!("no document shows the keys of `{}`", table.name),
        })
        .collect()
}

/// Returns the keys without a doc comment, and the doc comments with sentences that are too long.
#[must_use]
pub fn undocumented(tables: &[KeyTable]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for table in tables {
        for key in table.keys.iter().filter(|_| !encloses_only(tables, table)) {
            let (meaning, default) = key.meaning_and_default();
            let mut messages = long_sentences(meaning);
            messages.extend(long_sentences(default));
            if meaning.is_empty() {
                messages.push(format!("`{}` of `{}` has no doc comment", key.name, table.name));
            }
            problems.extend(messages.into_iter().map(|message| Problem {
                file: table.file.clone(),
                line: key.line,
                message,
            }));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
keys! {
    /// Keys.
    struct AKeys for a::Config {
        /// How many. Default: 3, or
        /// `b` if it is set.
        count: AtLeast<1, u16> => of.count,
        // Why.
        /// The mark of a | b. Required.
        r#in: bool,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Table {
    /// The name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<Unit<Span>>,
    #[serde(skip)]
    cast: Option<u8>,
}

#[derive(Deserialize)]
struct Other {
    x: u8,
}

#[serde(
    deny_unknown_fields,
    default
)]
struct Around {
    inner: Option<a::Table>,
}
"#;

    fn tables() -> Vec<KeyTable> {
        read("lab/lab/src/x.rs", SOURCE).unwrap()
    }

    fn marker(arguments: &str) -> Marker {
        Marker { line: 1, kind: "keys".into(), arguments: arguments.into() }
    }

    #[test]
    fn tables_are_the_structs_that_refuse_unknown_keys() {
        let names: Vec<String> = tables().into_iter().map(|table| table.name).collect();
        assert_eq!(names, ["AKeys", "Table", "Around"]);
        assert_eq!(tables()[1].keys.len(), 1);
        assert_eq!(tables()[0].keys[1].line, 10);
    }

    #[test]
    fn rows_have_the_meaning_and_the_default() {
        let expected = "| key | meaning | default |\n|---|---|---|\n\
                        | `count` | How many | 3, or `b` if it is set |\n\
                        | `in` | The mark of a \\| b | required |\n\
                        | `t.name` | The name | |\n";
        assert_eq!(render(&tables(), "AKeys t=x::Table").unwrap(), expected);
        assert!(render(&tables(), "y::Table").is_err());
        assert!(render(&tables(), "").is_err());
        let twice = [tables(), tables()].concat();
        assert_eq!(
            render(&twice, "AKeys").unwrap_err(),
            "`AKeys` is the name of 2 tables in the code"
        );
    }

    #[test]
    fn keys_with_the_same_comment_share_a_row() {
        let both = [tables(), read("y.rs", &SOURCE.replace("AKeys", "BKeys")).unwrap()].concat();
        let row = |text| render(&both, text).unwrap().lines().nth(2).unwrap().to_owned();
        assert_eq!(
            row("AKeys b=BKeys"),
            "| `count`, `b.count` | How many | 3, or `b` if it is set |"
        );
        assert_eq!(row("AKeys BKeys"), "| `count` | How many | 3, or `b` if it is set |");
        let other = read("y.rs", &SOURCE.replace("AKeys", "BKeys").replace("3, or", "4, or"));
        let both = [tables(), other.unwrap()].concat();
        assert_eq!(render(&both, "AKeys b=BKeys").unwrap().lines().count(), 5);
    }

    #[test]
    fn a_table_that_no_document_shows_is_a_problem() {
        assert_eq!(missing(&tables(), &[marker("AKeys"), marker("Table")]), []);
        let missing = missing(&tables(), &[marker("AKeys")]);
        assert_eq!(
            missing[0].to_string(),
            "lab/lab/src/x.rs:16: no document shows the keys of `Table`"
        );
    }

    #[test]
    fn a_table_without_keys_encloses_nothing() {
        let of = |keys| KeyTable { file: "x.rs".into(), line: 1, name: "Empty".into(), keys };
        assert_eq!(missing(&[of(vec![])], &[]).len(), 1);
        let enclosing = tables().pop().unwrap();
        assert!(encloses_only(&tables(), &enclosing));
    }

    #[test]
    fn a_key_without_a_comment_is_a_problem() {
        assert_eq!(undocumented(&tables()), []);
        let text = SOURCE.replace("    /// The name.\n", "");
        let problems = undocumented(&read("x.rs", &text).unwrap());
        assert_eq!(problems[0].to_string(), "x.rs:18: `name` of `Table` has no doc comment");
        let text = SOURCE.replace("The name.", &"Word ".repeat(46));
        assert_eq!(undocumented(&read("x.rs", &text).unwrap()).len(), 1);
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for (from, to) in [
            ("r#in: bool,", "r#in: Vec<\n"),
            ("#[serde(skip)]", "#[serde(rename = \"d\")]"),
            ("#[serde(skip)]", "#[serde(flatten)]"),
            ("struct Around {\n", "struct Around\n{\n"),
            ("    inner: Option<a::Table>,\n", ""),
        ] {
            assert!(read("x.rs", &SOURCE.replace(from, to)).is_err(), "{to}");
        }
    }
}
