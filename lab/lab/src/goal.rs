//! The schedules of a scenario's collectives as files.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use rackweave_workload::collective::goal::Goal;

use crate::error::OutputError;
use crate::results::collective::collective_of;
use crate::scenario::Scenario;

/// Writes the schedules of the measured collectives in the language GOAL: one file if all are alike, and otherwise one for each point,
/// with its number in front of the extension. Returns their paths; none if no point has a collective.
///
/// # Errors
/// If a file cannot be written.
pub fn export(scenario: &Scenario, path: &Path) -> Result<Vec<PathBuf>, OutputError> {
    let all: Vec<_> = (0..)
        .zip(&scenario.points)
        .filter_map(|(point, spec): (usize, _)| {
            let stream = spec.config.streams.first().filter(|_| spec.study.is_messages())?;
            Some((point, collective_of(&stream.workload)?.schedule()))
        })
        .collect();
    let first = all.first().map(|(_, schedule)| schedule.digest());
    let is_one = all.iter().all(|(_, schedule)| Some(schedule.digest()) == first);
    if path.file_name().is_none() {
        let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, "it names no file");
        return Err(OutputError::file(path, error));
    }
    let mut paths = Vec::new();
    for (point, schedule) in all.into_iter().take(if is_one { 1 } else { usize::MAX }) {
        let path = if is_one { path.to_owned() } else { numbered(path, point) };
        let write = || {
            let mut file = BufWriter::new(File::create(&path)?);
            write!(file, "{}", Goal(schedule))?;
            file.flush()
        };
        write().map_err(|error| OutputError::file(&path, error))?;
        paths.push(path);
    }
    Ok(paths)
}

fn numbered(path: &Path, point: usize) -> PathBuf {
    let stem = path.file_stem().map_or_else(String::new, |it| it.to_string_lossy().into_owned());
    let extension = path.extension().map_or_else(String::new, |it| format!(".{}", it.display()));
    path.with_file_name(format!("{stem}-{point}{extension}"))
}
