//! Errors in files of results.

use std::path::{Path, PathBuf};

use miette::Diagnostic;
pub use rackweave_scenario::error::{ScenarioError, nearest};

/// Why results cannot be written or read.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum OutputError {
    /// The directory cannot be created or written to.
    #[error("cannot write results to `{}`", .path.display())]
    #[diagnostic(help("name another directory with --out DIR"))]
    Folder {
        /// The path of the directory.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A directory has no results.
    #[error("`{}` has no results", .path.display())]
    #[diagnostic(help(
        "name a directory that `rackweave run` has written, in which summary.json is"
    ))]
    NoResults {
        /// The path of the directory.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read `{}`", .path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file has no table of results.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Table(#[from] crate::tables::TableError),
    /// This build writes no Parquet files.
    #[error("this rackweave was built without Parquet")]
    #[diagnostic(help(
        "build it with `--features parquet`, or read the CSV files, which have the same tables"
    ))]
    NoParquet,
    /// A file cannot be written.
    #[error("cannot write `{}`", .path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

impl OutputError {
    pub(crate) fn file(path: &Path, source: impl Into<std::io::Error>) -> Self {
        Self::File { path: path.to_owned(), source: source.into() }
    }
}
