//! The result of a job, and what was saved.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rackweave_disk::{self as disk, Writing};
use rackweave_lab::report::number;
use rackweave_reduce::lines::write_line;
use rackweave_reduce::{Outcome, Stats};

/// Where a result is written. A file is written aside and appears when it is whole.
pub(super) enum Sink {
    Stdout(File),
    /// What is no regular file, such as a pipe.
    Direct(PathBuf),
    File(Part),
}

/// A file that is being written under a name that nobody has, and removed if it does not become whole.
pub(super) struct Part {
    target: PathBuf,
    part: disk::Part,
    /// The bytes that were written.
    length: u64,
}

impl Sink {
    /// Opens what the result is written to, so that a path that cannot be written is known before the job starts.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, String> {
        let Some(path) = path else {
            let output = rackweave_linux::sys::standard_output();
            return output
                .map(Self::Stdout)
                .map_err(|error| format!("cannot write to standard output: {error}"));
        };
        match std::fs::metadata(path) {
            Ok(about) if about.is_dir() => {
                return Err(format!("{} is a directory", path.display()));
            }
            Ok(about) if !about.is_file() => return Ok(Self::Direct(path.to_owned())),
            _ => {}
        }
        // A link to a file stays one: what it leads to is replaced.
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Part::open(&target).map(Self::File)
    }

    /// Names what the result is written to.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Stdout(_) => "standard output".to_owned(),
            Self::Direct(path) => path.display().to_string(),
            Self::File(part) => part.target.display().to_string(),
        }
    }

    /// Writes the combined values of keys.
    pub(super) fn write(mut self, totals: &[(Box<[u8]>, u64)]) -> Result<(), String> {
        let lines = |out: &mut dyn Write| {
            let mut out = BufWriter::with_capacity(1 << 20, out);
            totals.iter().try_for_each(|(key, value)| write_line(&mut out, key, *value))?;
            out.flush()
        };
        self.prepare(lines)?;
        self.finish(lines)
    }

    /// Writes the result aside, if it goes to a file: [`Sink::finish`] then only gives it its name.
    pub(super) fn prepare(
        &mut self,
        result: impl Fn(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), String> {
        let Self::File(Part { target, part, length }) = self else { return Ok(()) };
        let mut to = Writing(part.file(), 0);
        let written = result(&mut to);
        *length = to.1;
        let prepared = written.and_then(|()| {
            part.prepare(Some(*length), true)?;
            Ok(())
        });
        prepared.map_err(|error| format!("cannot write {}: {error}", target.display()))
    }

    /// Publishes a result that has been prepared.
    pub(super) fn finish(
        self,
        result: impl Fn(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), String> {
        match self {
            // A reader that goes away early has not got the result: not 0.
            Self::Stdout(mut output) => result(&mut output)
                .map_err(|error| format!("cannot write to standard output: {error}")),
            Self::Direct(path) => {
                let file = OpenOptions::new().write(true).open(&path);
                let written = file.and_then(|mut file| result(&mut file));
                written.map_err(|error| format!("cannot write to {}: {error}", path.display()))
            }
            Self::File(Part { target, part, length }) => {
                let name = target.file_name().unwrap_or_default();
                part.publish(name, true, Some(length), true)
                    .map_err(|error| format!("cannot write {}: {error}", target.display()))
            }
        }
    }
}

impl Part {
    fn open(target: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("cannot write {}: {error}", target.display());
        let Some(name) = target.file_name() else {
            return Err(format!("{} is not the name of a file", target.display()));
        };
        // A result that is replaced keeps its mode.
        let mode = std::fs::metadata(target).map(|about| about.mode() & 0o777);
        let part = disk::open_existing(folder_of(target))
            .and_then(|folder| disk::Part::create(folder, name))
            .map_err(failed)?;
        part.file().set_mode(mode.unwrap_or_else(|_| disk::new_mode())).map_err(failed)?;
        Ok(Self { target: target.to_owned(), part, length: 0 })
    }
}

fn folder_of(target: &Path) -> &Path {
    target.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A share in percent.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn percent(part: u64, of: u64) -> f64 {
    if of == 0 { 100.0 } else { part as f64 * 100.0 / of as f64 }
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub(super) fn summary(outcome: &Outcome, workers: u8) -> String {
    let stats = &outcome.stats;
    let Stats { sent, pairs, sums, records, keys, restarts, .. } = *stats;
    let reached = stats.reached();
    let count = number::grouped;
    let seconds = stats.upload.as_secs_f64();
    let how = if stats.slots > 0 {
        format!(
            "{} sums from {} slots in {} ranges of keys, {} pairs without a slot, {} long keys",
            count(sums),
            count(u64::from(stats.slots)),
            stats.epochs,
            count(pairs),
            count(records)
        )
    } else {
        "no switch added up".to_owned()
    };
    let again = match restarts {
        0 => String::new(),
        n => format!(", {n} times with what was not yet collected sent again"),
    };
    format!(
        "{} keys; {workers} workers sent {} pairs, and {} ({:.1} %) reached the master; at least {:.1} % must\n\
         {how}; {} at the master, {seconds:.2} s{again}\n",
        count(keys),
        count(sent),
        count(reached),
        percent(reached, sent),
        percent(keys, sent),
        number::bytes(stats.received_bytes as f64),
    )
}

/// What was sent and received, as a JSON document.
pub(super) fn json(outcome: &Outcome, workers: u8) -> serde_json::Value {
    let stats = &outcome.stats;
    serde_json::json!({
        "workers": workers,
        "keys": stats.keys,
        "pairs_sent": stats.sent,
        "pairs_reached": stats.reached(),
        "pairs_without_slot": stats.pairs,
        "sums": stats.sums,
        "long_keys": stats.records,
        "reached_percent": percent(stats.reached(), stats.sent),
        "least_percent": percent(stats.keys, stats.sent),
        "slots": stats.slots,
        "epochs": stats.epochs,
        "master_bytes": stats.received_bytes,
        "upload_s": stats.upload.as_secs_f64(),
        "restarts": stats.restarts,
        "moves": stats.moves,
        "stopped_s": stats.stopped.as_secs_f64(),
        "stale": stats.stale,
        "refused": stats.refused,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_when_it_is_whole_and_two_that_are_written_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counts");
        std::fs::write(&path, "old").unwrap();
        let sink = Sink::open(Some(&path)).unwrap();
        let other = Sink::open(Some(&path)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        drop(Sink::open(Some(&path)).unwrap());
        other.write(&[(Box::from(&b"other"[..]), 1)]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"other\t1\n");
        sink.write(&[(Box::from(&b"a\tb"[..]), 3), (Box::from(&b"c"[..]), 4)]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"a\\tb\t3\nc\t4\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(Sink::open(Some(folder.path())).err().unwrap().contains("is a directory"));
    }
}
