//! The result of a job, and what was saved.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rackweave_lab::report::number;
use rackweave_reduce::lines::write_line;
use rackweave_reduce::{Outcome, Stats};

/// Where a result is written. A file is written aside and appears when it is whole.
pub(super) enum Sink {
    Stdout,
    /// What is no regular file, such as a pipe.
    Direct(PathBuf),
    File(Part),
}

/// A file that is being written under another name, and removed if it does not become whole.
pub(super) struct Part {
    path: PathBuf,
    target: PathBuf,
    file: Option<File>,
}

impl Sink {
    /// Opens what the result is written to, so that a path that cannot be written is known before the job starts.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, String> {
        let Some(path) = path else { return Ok(Self::Stdout) };
        match std::fs::metadata(path) {
            Ok(about) if about.is_dir() => {
                return Err(format!("{} is a directory", path.display()));
            }
            Ok(about) if !about.is_file() => return Ok(Self::Direct(path.to_owned())),
            _ => {}
        }
        // A link stays one: what it leads to is replaced.
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Part::open(&target).map(Self::File)
    }

    /// Writes the result.
    pub(super) fn write(self, totals: &[(Box<[u8]>, u64)]) -> Result<(), String> {
        let lines = |out: &mut dyn Write| {
            let mut out = BufWriter::with_capacity(1 << 20, out);
            totals.iter().try_for_each(|(key, value)| write_line(&mut out, key, *value))?;
            out.flush()
        };
        match self {
            Self::Stdout => match lines(&mut io::stdout().lock()) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                result => {
                    result.map_err(|error| format!("cannot write to standard output: {error}"))
                }
            },
            Self::Direct(path) => {
                let file = OpenOptions::new().write(true).open(&path);
                let written = file.and_then(|mut file| lines(&mut file));
                written.map_err(|error| format!("cannot write to {}: {error}", path.display()))
            }
            Self::File(mut part) => {
                let failed = |error| format!("cannot write {}: {error}", part.target.display());
                let Some(mut file) = part.file.take() else { return Ok(()) };
                lines(&mut file).and_then(|()| file.sync_all()).map_err(failed)?;
                std::fs::rename(&part.path, &part.target).map_err(failed)?;
                let folder = part.target.parent().filter(|it| !it.as_os_str().is_empty());
                let folder = File::open(folder.unwrap_or(Path::new(".")));
                folder.and_then(|folder| folder.sync_all()).map_err(failed)
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
        let mut part = name.to_owned();
        part.push(".part");
        let path = target.with_file_name(part);
        loop {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
            let file = file.map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(format!("another process is writing {}", target.display()));
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // Between opening and locking, the file may have become another process's result.
            let (ours, there) = (file.metadata().map_err(failed)?, std::fs::metadata(&path));
            if there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
                file.set_len(0).map_err(failed)?;
                return Ok(Self { path, target: target.to_owned(), file: Some(file) });
            }
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // After the file has got its name, there is nothing to remove. A file that remains is overwritten by the next attempt.
        let _ = std::fs::remove_file(&self.path);
    }
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
    let seconds = stats.upload.0 as f64 / 1e12;
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
#[expect(clippy::cast_precision_loss, reason = "a number of seconds")]
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
        "upload_s": stats.upload.0 as f64 / 1e12,
        "restarts": stats.restarts,
        "stale": stats.stale,
        "refused": stats.refused,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_when_it_is_whole_and_one_process_writes_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counts");
        std::fs::write(&path, "old").unwrap();
        let sink = Sink::open(Some(&path)).unwrap();
        assert!(Sink::open(Some(&path)).err().unwrap().contains("another process"));
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        drop(sink);
        let sink = Sink::open(Some(&path)).unwrap();
        sink.write(&[(Box::from(&b"a\tb"[..]), 3), (Box::from(&b"c"[..]), 4)]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"a\\tb\t3\nc\t4\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(Sink::open(Some(folder.path())).err().unwrap().contains("is a directory"));
    }
}
