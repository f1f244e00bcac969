//! `rackweave tune`.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use miette::{IntoDiagnostic as _, WrapErr as _};
use rackweave_lab::output::OutputDir;
use rackweave_lab::report::wrap::hanging;
use rackweave_lab::scenario::ScenarioText;
use rackweave_lab::search::{Search, SearchError};
use rackweave_lab::tune::{self, Outcome, Tuned};

use crate::args::{SearchArgs, TuneArgs};
use crate::progress::Progress;
use crate::run::warn;
use crate::shell::signal::stop_on_ctrl_c;
use crate::shell::{exit, print, text_width};

impl SearchArgs {
    /// A search over the scenario that has run nothing.
    ///
    /// # Errors
    /// If the scenario cannot be read.
    pub(crate) fn begin(&self) -> miette::Result<Arc<Search>> {
        let text = ScenarioText::load(&self.scenario)?;
        Ok(Arc::new(Search::new(text, &self.sets, self.seed, self.jobs.map(usize::from))))
    }
}

/// Returns each name once, in their order.
pub(crate) fn each_once(names: &[String]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    names.iter().filter(|name| seen.insert(*name)).cloned().collect()
}

pub(crate) fn tune(args: &TuneArgs) -> miette::Result<u8> {
    let search = args.search.begin()?;
    stop_on_ctrl_c(&search, Search::cancel)?;
    let mut found = Vec::new();
    let mut code = exit::DONE;
    let transports = each_once(&args.transport);
    // What the last one lacks, and a file that cannot be written, are known before the first is searched.
    for transport in &transports {
        tune::check(&search, transport)?;
    }
    if let Some(file) = &args.out {
        OutputDir::probe(folder_of(file))?;
    }
    for transport in &transports {
        let progress = Progress::start(&search, Search::progress, !args.search.quiet);
        let tuned = tune::tune(&search, transport);
        drop(progress);
        match tuned {
            Ok(tuned) => {
                print(&described(&tuned, text_width()))?;
                if !tuned.is_complete {
                    code = exit::INTERRUPTED;
                } else if tuned.after.unfinished > 0 && code == exit::DONE {
                    code = exit::FAILED;
                }
                found.push(tuned);
            }
            Err(SearchError::Interrupted) => code = exit::INTERRUPTED,
            Err(error) => return Err(error.into()),
        }
        if code == exit::INTERRUPTED {
            warn("Interrupted: the search did not come to its end.");
            break;
        }
    }
    if found.is_empty() {
        return Ok(code);
    }
    let cases: String = found.iter().map(|tuned| format!("    {},\n", tuned.case())).collect();
    let cases = format!("[\n{cases}]");
    let sweep = format!("[sweep]\ncases = {cases}\n");
    match &args.out {
        // What an earlier search has found is worth more than half of this one.
        Some(file) if code != exit::INTERRUPTED => {
            let scenario = search.with_cases(&cases).map_err(miette::Report::from);
            let written = scenario.and_then(|text| write(file, &text).into_diagnostic());
            if written.is_err() {
                print(&sweep)?;
            }
            written.wrap_err_with(|| format!("cannot write {}", file.display()))?;
        }
        _ => drop(print(&sweep)?),
    }
    Ok(code)
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a file that appears when it is whole, in place of what a link names. What is no regular file, such as a device, is written to.
fn write(file: &Path, text: &str) -> std::io::Result<()> {
    let target = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let file = target.as_path();
    if file.metadata().is_ok_and(|about| !about.is_file()) {
        return std::fs::OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes());
    }
    let mut builder = tempfile::Builder::new();
    // Readable for others, as far as the process permits: `tempfile` gives a file to its owner only.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut part = builder.tempfile_in(folder_of(file))?;
    part.write_all(text.as_bytes())?;
    part.persist(file)?;
    Ok(())
}

/// Compares a transport's parameters before and after the search.
fn described(tuned: &Tuned, width: usize) -> String {
    let Tuned {
        transport,
        own: _,
        cases,
        values,
        given,
        notes,
        before,
        after,
        runs,
        refused,
        is_complete,
    } = tuned;
    let how = match is_complete {
        true => format!("{runs} runs"),
        false => format!("{runs} runs, with fewer messages than the scenario has"),
    };
    let line = |name: &str, outcome: &Outcome| {
        let Outcome { p99, p50, goodput_gbps, unfinished, background_p99 } = outcome;
        let background =
            background_p99.map_or_else(String::new, |p99| format!("; background p99 {p99:.3}"));
        let text = format!(
            "slowdown p50 {p50:.3}, p99 {p99:.3}; goodput {goodput_gbps:.1} Gbit/s; {unfinished} unfinished{background}"
        );
        hanging(&format!("  {name:<13} "), &text, width) + "\n"
    };
    let how = match cases {
        0 | 1 => how,
        n => format!("{how}; its {n} cases are searched together"),
    };
    let mut text = format!("{transport}: {how}\n{}", line("as given", before));
    if values.is_empty() {
        text += "  nothing that was tried is better\n";
    } else {
        text += &line("tuned", after);
    }
    for (key, value) in values {
        let before = given.iter().find(|(it, _)| it == key);
        let before = before.map_or_else(String::new, |(_, before)| {
            // A value that differs by link.
            let of_all = if before.contains(" at ") { " on all links," } else { "," };
            format!("{of_all} in place of {before}")
        });
        text += &(hanging("    ", &format!("{key} = {value}{before}"), width) + "\n");
    }
    for told in refused {
        text += &(hanging("  not tried     ", told, width) + "\n");
    }
    for note in notes {
        text += &(hanging("  * ", note, width) + "\n");
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_link_stays_and_what_it_names_is_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        std::fs::write(&target, "before, and longer").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        write(&link, "after").unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "after");
        let fresh = folder.path().join("fresh");
        write(&fresh, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&fresh).unwrap(), "new");
    }

    /// A pipe that somebody reads gets the text, and is no file afterwards.
    #[cfg(unix)]
    #[test]
    fn a_pipe_is_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let read = {
            let pipe = pipe.clone();
            std::thread::spawn(move || std::fs::read_to_string(pipe).unwrap())
        };
        write(&pipe, "text").unwrap();
        assert_eq!(read.join().unwrap(), "text");
        assert!(!pipe.metadata().unwrap().is_file());
    }
}
