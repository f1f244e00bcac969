//! Checks the documents of a repository, and generates their tables from the code.
//!
//! [`check`] applies every rule below. What it skips, it skips for all documents alike.
//!
//! - **Sentences** have at most [`prose::MAX_WORDS`] words. A code span or a link's text in code counts as one word. Code
//!   blocks and tables have no sentences; the end of a list item, a heading or a paragraph ends one.
//! - **Dates** (`2026-11-28`, `28 November`) and **commit hashes** do not stand in documents. [`prose::DATED`] may have one
//!   line with both, and [`prose::SOURCES`] hashes of other repositories. Code blocks are not read for them.
//! - **Idioms** for which there are simpler words (`IDIOMS` in [`prose`]) do not stand in documents, nor in comments of Rust
//!   code ([`comments`]). Code spans and code blocks are not read for them.
//! - **Links** lead to a file, an anchor or a definition that exist, and so does what code, scenarios and scripts cite. Their comments
//!   name pages that exist, and cite sections by anchors.
//! - **Generated blocks** equal what their generator writes, every key of a table in the code has a doc comment, and every
//!   such table stands in a document.

pub mod comments;
pub mod generated;
pub mod keys;
pub mod links;
pub mod markdown;
pub mod prose;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use generated::Marker;
use keys::KeyTable;

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file, relative to the repository.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The violation in words.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// A file of the repository.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// The path relative to the repository, with `/`.
    pub path: String,
    /// The content; nothing if the file is no text.
    pub text: String,
}

impl SourceFile {
    /// Returns whether the file is a document.
    #[must_use]
    pub fn is_document(&self) -> bool {
        is_document(&self.path)
    }

    fn problem(&self, line: usize, message: String) -> Problem {
        Problem { file: self.path.clone(), line, message }
    }
}

fn is_document(path: &str) -> bool {
    path.ends_with(".md")
}

/// Endings of the files whose citations are checked. Scripts have none.
const ENDINGS: [&str; 14] = [
    "md", "rs", "toml", "py", "sh", "c", "h", "java", "xml", "yml", "yaml", "cff", "json", "proto",
];

/// Folders that contain no sources: what is built, results, and inputs of fuzz targets.
const SKIPPED: [&str; 3] = ["target", "out", "corpus"];

/// The longest file that is read. Longer ones are data.
const MAX_BYTES: u64 = 1 << 20;

/// Reads the documents and sources below `root`.
///
/// # Errors
/// A folder or file could not be read.
pub fn read(root: &Path) -> io::Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let mut entries: Vec<_> = fs::read_dir(root.join(&folder))?.collect::<Result<_, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = folder.join(&name);
            let kind = entry.file_type()?;
            if kind.is_dir() {
                let is_hidden = name.starts_with('.') && name != ".ci" && name != ".github";
                if !is_hidden && !SKIPPED.contains(&name.as_str()) {
                    folders.push(path);
                }
                continue;
            }
            let ending = path.extension().map(|ending| ending.to_string_lossy().into_owned());
            let is_text = ending.is_none_or(|ending| ENDINGS.contains(&ending.as_str()));
            let text = if kind.is_file() && is_text && entry.metadata()?.len() <= MAX_BYTES {
                // What is not UTF-8 is no text.
                fs::read_to_string(root.join(&path)).unwrap_or_default()
            } else {
                String::new()
            };
            files.push(SourceFile { path: path.to_string_lossy().replace('\\', "/"), text });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// The folders with the tables of scenarios, and a file in them with other tables: those of a workload that only tests have.
const TABLES: ([&str; 2], &str) =
    (["lab/scenario/src/", "lab/lab/src/"], "lab/lab/src/study/probe.rs");

/// Returns the tables of keys that the code declares, and what is wrong with their declarations.
#[must_use]
pub fn tables(files: &[SourceFile]) -> (Vec<KeyTable>, Vec<Problem>) {
    let (within, without) = TABLES;
    let is_declaring = |file: &&SourceFile| {
        within.iter().any(|folder| file.path.starts_with(folder))
            && file.path != without
            && file.path.ends_with(".rs")
    };
    let mut tables = Vec::new();
    let mut problems = Vec::new();
    for file in files.iter().filter(is_declaring) {
        match keys::read(&file.path, &file.text) {
            Ok(found) => tables.extend(found),
            Err((line, message)) => problems.push(file.problem(line, message)),
        }
    }
    (tables, problems)
}

/// Applies all rules, and returns what violates them in the order of files and lines.
#[must_use]
pub fn check(files: &[SourceFile]) -> Vec<Problem> {
    let (tables, mut problems) = tables(files);
    for file in files.iter().filter(|file| file.is_document()) {
        problems.extend(prose::check(file));
        let (_, stale) = generate(file, &tables);
        problems.extend(stale);
    }
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        problems.extend(prose::check_comments(file));
    }
    problems.extend(links::check(files));
    problems.extend(keys::undocumented(&tables));
    let markers = |file: &SourceFile| generated::markers(&file.text);
    let shown: Vec<Marker> =
        files.iter().filter(|file| file.is_document()).flat_map(markers).collect();
    problems.extend(keys::missing(&tables, &shown));
    problems.sort();
    problems.dedup();
    problems
}

/// Returns the document with its blocks of keys generated, and a problem for each block that differed.
#[must_use]
pub fn generate(file: &SourceFile, tables: &[KeyTable]) -> (String, Vec<Problem>) {
    let (text, problems) = generated::replace(&file.text, |marker| match marker.kind.as_str() {
        "keys" => Some(keys::render(tables, &marker.arguments)),
        // The test `documents` of the command has these.
        "help" | "exit-codes" => None,
        other => Some(Err(format!("there is no generator `{other}`"))),
    });
    let problems = problems.into_iter().map(|(line, message)| file.problem(line, message));
    (text, problems.collect())
}
