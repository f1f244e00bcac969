//! `rackweave calibrate`.

use std::path::Path;
use std::sync::Arc;

use rackweave_lab::output::OutputDir;
use rackweave_testbed::calibrate::{CalibrateError, Calibration, Measured, Request};

use crate::args::CalibrateArgs;
use crate::progress::Progress;
use crate::run::warn;
use crate::shell::signal::stop_on_ctrl_c;
use crate::shell::{exit, print};
use crate::testbed::worker_command;

pub(crate) fn calibrate(args: &CalibrateArgs) -> miette::Result<u8> {
    if let Some(file) = &args.file {
        // A directory that cannot be written to is found before a minute of measuring.
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        OutputDir::probe(folder.unwrap_or(Path::new(".")))?;
    }
    let command = worker_command()?;
    let request =
        Request { overlay: args.overlay, rounds: args.rounds, load_ms: args.load_ms, command };
    let calibration = Arc::new(Calibration::new(request));
    stop_on_ctrl_c(&calibration, Calibration::cancel)?;
    let watched = Arc::clone(&calibration);
    let progress = Progress::drawn(!args.quiet, move |_| {
        let (fraction, load) = watched.progress();
        (fraction, load.to_owned())
    });
    let measured = calibration.run();
    drop(progress);
    let measured = match measured {
        Ok(Some(measured)) => measured,
        Ok(None) => {
            warn("Interrupted: nothing was written.");
            return Ok(exit::INTERRUPTED);
        }
        Err(
            error @ (CalibrateError::Spread(_)
            | CalibrateError::Undivided(_)
            | CalibrateError::NoWork(_)),
        ) => {
            warn(&format!("{:?}", miette::Report::new(error)));
            warn("Nothing was written.");
            return Ok(exit::FAILED);
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(file) = &args.file {
        measured.write(file)?;
    }
    for missing in &measured.missing {
        warn(&format!("note: missing: {missing}"));
    }
    if args.json {
        return print(&measured.to_json()?);
    }
    match &args.file {
        None => print(&measured.to_toml()?),
        Some(_) if args.quiet => Ok(exit::DONE),
        Some(file) => print(&summary(&measured, file)),
    }
}

fn summary(measured: &Measured, file: &Path) -> String {
    format!(
        "{}\nspread over rounds: {:.0} % at most\nwritten: {}\n",
        measured.to_text(),
        measured.spread * 100.0,
        file.display()
    )
}
