//! The tables of keys in this repository's documents.

use std::path::Path;

use rackweave_docs::generated::markers;
use rackweave_docs::{generate, keys, read, tables};

/// `docs/check` has the other rules, and with `RACKWEAVE_BLESS=1` writes these tables.
#[test]
fn documents_have_every_key_as_the_code_declares_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = read(&root).unwrap();
    let (tables, mut problems) = tables(&files);
    assert!(tables.len() > 40, "{}", tables.len());
    let documents: Vec<_> = files.iter().filter(|file| file.is_document()).collect();
    problems.extend(documents.iter().flat_map(|file| generate(file, &tables).1));
    problems.extend(keys::undocumented(&tables));
    let shown: Vec<_> = documents.iter().flat_map(|file| markers(&file.text)).collect();
    problems.extend(keys::missing(&tables, &shown));
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert!(problems.is_empty(), "{}", lines.join("\n"));
}
