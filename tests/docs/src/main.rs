//! `docs/check`: checks the documents of the repository, or writes the tables of keys into them.

use std::path::PathBuf;
use std::process::ExitCode;

use rackweave_docs::{check, generate, read, tables};

const USAGE: &str = "usage: docs/check [ROOT]

Checks the documents below ROOT (default: the current folder). The rules are those of tests/docs/src/lib.rs.
With RACKWEAVE_BLESS=1, writes the generated tables of keys first; `RACKWEAVE_BLESS=1 cargo test -p rackweave
documents` writes those of options.";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let root = match (arguments.next(), arguments.next()) {
        // Not the folder of this crate: the binary may have been built in another checkout.
        (None, _) => PathBuf::from("."),
        (Some(root), None) if !root.starts_with('-') => PathBuf::from(root),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&root) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot read {}: {error}", root.display());
            ExitCode::from(2)
        }
    }
}

/// Prints all problems, and returns their number.
fn run(root: &std::path::Path) -> std::io::Result<usize> {
    let mut files = read(root)?;
    if std::env::var_os("RACKWEAVE_BLESS").is_some() {
        let (tables, _) = tables(&files);
        for file in files.iter_mut().filter(|file| file.is_document()) {
            let (text, _) = generate(file, &tables);
            if text != file.text {
                std::fs::write(root.join(&file.path), &text)?;
                file.text = text;
            }
        }
    }
    let problems = check(&files);
    for problem in &problems {
        println!("{problem}");
    }
    let documents = files.iter().filter(|file| file.is_document()).count();
    println!("{documents} documents, {} problems", problems.len());
    Ok(problems.len())
}
