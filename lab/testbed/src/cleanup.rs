//! A journal of what runs create, written beforehand, so that the next run can remove what a killed run has left.
//!
//! Each run has a file in the runtime directory, named after its id, which lists the coordinator and the processes that
//! it has started. If the coordinator is gone, the run is over: its processes are killed, the namespaces with its id in
//! their names are removed, and finally the file is removed.

use std::path::PathBuf;

use rackweave_linux::netns;
use rackweave_linux::sys::{make_runtime_folder, runtime_folder};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::TestbedError;
use super::space::PREFIX;

/// The directory of the journal files of running testbeds.
#[derive(Debug)]
pub(super) struct CleanupJournal {
    folder: PathBuf,
}

/// A process. Numbers are reused, but not with the same start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Process {
    pid: u32,
    /// The start time in clock ticks since boot.
    start: u64,
}

impl Process {
    fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may contain anything. The fields after it begin with the third.
        let (_, fields) = stat.rsplit_once(')')?;
        let start = fields.split_whitespace().nth(19)?.parse().ok()?;
        Some(Self { pid, start })
    }

    fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    fn kill(self) {
        if self.is_alive()
            && let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The contents of a run's journal file.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Entry {
    id: String,
    coordinator: Process,
    #[serde(rename = "parts")]
    workers: Vec<Process>,
}

/// The journal entry of a running run, whose file is removed on drop.
#[derive(Debug)]
pub(super) struct RunEntry {
    entry: Entry,
    path: PathBuf,
}

impl CleanupJournal {
    /// Opens the directory and removes what dead runs have left.
    pub(super) fn open() -> Result<Self, TestbedError> {
        // Processes that the journal names are killed, so nobody else may write it.
        let folder = make_runtime_folder().map_err(|source| TestbedError::CleanupJournal {
            path: runtime_folder().unwrap_or_default(),
            source,
        })?;
        Ok(Self::at(folder))
    }

    fn at(folder: PathBuf) -> Self {
        let journal = Self { folder };
        journal.clean();
        journal
    }

    fn clean(&self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let Ok(entry) = serde_json::from_str::<Entry>(&text) else { continue };
            if entry.coordinator.is_alive() || !is_id(&entry.id) {
                continue;
            }
            for worker in &entry.workers {
                worker.kill();
            }
            super::image::remove(&format!("{PREFIX}{}", entry.id));
            // Without privileges nothing was created that needs them. If something cannot be removed, the file remains
            // too.
            if netns::remove(&format!("{PREFIX}{}-", entry.id)).is_ok() {
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    /// Creates the entry of a new run.
    pub(super) fn begin(&self) -> Result<RunEntry, TestbedError> {
        let pid = std::process::id();
        let id = format!("{pid:x}{:08x}", rackweave_linux::random() as u32);
        let path = self.folder.join(format!("{id}.json"));
        let coordinator = Process::of(pid).unwrap_or(Process { pid, start: 0 });
        let run = RunEntry { entry: Entry { id, coordinator, workers: Vec::new() }, path };
        run.write()?;
        Ok(run)
    }
}

impl RunEntry {
    /// Returns the prefix of the names of everything that the run creates.
    pub(super) fn prefix(&self) -> String {
        format!("{PREFIX}{}", self.entry.id)
    }

    /// Adds a started process to the entry.
    pub(super) fn add_process(&mut self, pid: u32) -> Result<(), TestbedError> {
        self.entry.workers.extend(Process::of(pid));
        self.write()
    }

    /// Writes a temporary file and renames it, so that the file is never partial.
    fn write(&self) -> Result<(), TestbedError> {
        let text = serde_json::to_string(&self.entry).unwrap_or_default();
        let aside = self.path.with_extension("part");
        let written =
            std::fs::write(&aside, text).and_then(|()| std::fs::rename(&aside, &self.path));
        written.map_err(|source| TestbedError::CleanupJournal { path: self.path.clone(), source })
    }
}

impl Drop for RunEntry {
    fn drop(&mut self) {
        // The file remains as long as the run's namespaces, to identify their owner.
        if netns::named(&format!("{}-", self.prefix())).is_empty() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Ids become part of names that are removed, so a file may contain nothing else.
fn is_id(id: &str) -> bool {
    id.len() >= 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_dead_runs_processes_are_killed_and_a_living_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let journal = CleanupJournal::at(folder.path().to_owned());
        let sleeper = || Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().unwrap();
        let (mut mine, mut orphan) = (sleeper(), sleeper());
        let mut run = journal.begin().unwrap();
        run.add_process(mine.id()).unwrap();
        let workers = vec![Process::of(orphan.id()).unwrap()];
        let gone = Process { pid: 1, start: u64::MAX };
        let entry = Entry { id: "deadbeef99".into(), coordinator: gone, workers };
        let path = folder.path().join("deadbeef99.json");
        std::fs::write(&path, serde_json::to_string(&entry).unwrap()).unwrap();
        // A foreign file remains, and the names in it are not used.
        let foreign = folder.path().join("x.json");
        let text = serde_json::to_string(&Entry { id: "../x".into(), ..entry }).unwrap();
        std::fs::write(&foreign, text).unwrap();

        drop(CleanupJournal::at(folder.path().to_owned()));
        assert!(!orphan.wait().unwrap().success(), "killed");
        assert!(!path.exists() && foreign.exists());
        assert!(mine.try_wait().unwrap().is_none(), "its run incarnations");
        let own = run.path.clone();
        assert!(own.exists());
        drop(run);
        assert!(!own.exists());
        mine.kill().unwrap();
        mine.wait().unwrap();
    }
}
