//! Pages of results that are on the disk, without running anything again.

use std::path::{Component, Path, PathBuf};

use super::session::ClaimResults;

/// Why results on the disk cannot be drawn.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum SheetError {
    /// No directory was named.
    #[error("no directory of results is named")]
    Nothing,
    /// A directory has no `claims.json`, or it cannot be read.
    #[error("cannot read `{path}`: {source}")]
    #[diagnostic(help("name directories that `rackweave paper` has written (--out)"))]
    Read {
        /// The path of the file.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// It is no `claims.json` of this version.
    #[error("`{path}` is no result of this version of `rackweave paper`: {source}")]
    #[diagnostic(help("run the claims again"))]
    Parse {
        /// The path of the file.
        path: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// Reads the results of several directories as one, for a page in the directory `out`, which exists. A claim that is in
/// several has the last one's result, in the place of the first.
///
/// # Errors
/// If a directory has no results, or not of this version.
pub fn merge(folders: &[PathBuf], out: &Path) -> Result<ClaimResults, SheetError> {
    let read = folders.iter().map(|folder| read(folder, out)).collect::<Result<Vec<_>, _>>()?;
    let mut read = read.into_iter();
    let mut all = read.next().ok_or(SheetError::Nothing)?;
    for results in read {
        all.quick |= results.quick;
        all.interrupted |= results.interrupted;
        all.wall_s += results.wall_s;
        all.version = results.version;
        for paper in results.papers {
            match all.papers.iter_mut().find(|known| known.name == paper.name) {
                Some(known) => *known = paper,
                None => all.papers.push(paper),
            }
        }
        for claim in results.claims {
            match all.claims.iter_mut().find(|known| known.id == claim.id) {
                Some(known) => *known = claim,
                None => all.claims.push(claim),
            }
        }
    }
    Ok(all)
}

/// Reads the results of a directory, whose runs are linked from `out`.
fn read(folder: &Path, out: &Path) -> Result<ClaimResults, SheetError> {
    let path = folder.join("claims.json");
    let shown = || path.display().to_string();
    let text = std::fs::read_to_string(&path)
        .map_err(|source| SheetError::Read { path: shown(), source })?;
    let mut results: ClaimResults = serde_json::from_str(&text)
        .map_err(|source| SheetError::Parse { path: shown(), source })?;
    let way = way(out, folder);
    for result in results.claims.iter_mut().flat_map(|claim| &mut claim.results) {
        *result = way.join(&*result).to_string_lossy().into_owned();
    }
    Ok(results)
}

/// Returns the path of a directory as seen from another one.
fn way(from: &Path, to: &Path) -> PathBuf {
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (from, to) = (whole(from), whole(to));
    let common = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(common).map(|_| Component::ParentDir);
    up.chain(to.components().skip(common)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_leads_from_one_directory_to_another() {
        let way = |from: &str, to: &str| way(Path::new(from), Path::new(to)).display().to_string();
        assert_eq!(way("/none/a/b", "/none/a/c/d"), "../c/d");
        assert_eq!(way("/none/a", "/none/a"), "");
        assert_eq!(way("/none/a", "/none/a/b"), "b");
    }
}
