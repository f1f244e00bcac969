//! `rackweave image`: images of disks.

mod args;
mod fetch;
mod fetch_frisbee;
mod hosts;
mod inspect;
mod keys;
mod pack;
mod serve;
mod switch;
mod switch_bpf;
mod unpack;

use std::path::Path;
use std::sync::Arc;

use clap::Subcommand;
use miette::miette;
use rackweave_image::{GptCopy, Image, ImageError, Progress, PublicKey, SecretKey, gpt_copy};

use crate::progress;
use crate::shell::signal::stop_on_ctrl_c;
use crate::shell::{escaped, exit, size, status};

// Descriptions are those of the arguments' types: a doc comment here would replace them, and hide their long form.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    Pack(args::PackArgs),
    Inspect(args::InspectArgs),
    Verify(args::VerifyArgs),
    Unpack(args::UnpackArgs),
    Serve(Box<serve::ServeArgs>),
    Fetch(Box<fetch::FetchArgs>),
    Switch(Box<switch::SwitchArgs>),
    Keygen(args::KeygenArgs),
}

pub(crate) fn image(command: ImageCommand) -> miette::Result<u8> {
    // If the system refuses, exceeding the file size limit ends the process, which loses nothing.
    let _ = rackweave_linux::sys::outlive_file_limit();
    match command {
        ImageCommand::Pack(args) => pack::pack(&args),
        ImageCommand::Inspect(args) => inspect::inspect(&args),
        ImageCommand::Verify(args) => inspect::verify(&args),
        ImageCommand::Unpack(args) => unpack::unpack(&args),
        ImageCommand::Serve(args) => serve::serve(&args),
        ImageCommand::Fetch(args) => fetch::fetch(&args),
        ImageCommand::Switch(args) => switch::switch(&args),
        ImageCommand::Keygen(args) => keys::keygen(&args),
    }
}

/// Creates the progress of a command, which Ctrl-C or SIGTERM stops. A second signal ends the process.
fn watched() -> miette::Result<Arc<Progress>> {
    let progress = Arc::new(Progress::default());
    stop_on_ctrl_c(&progress, Progress::stop)?;
    Ok(progress)
}

/// Shows the bytes that a command has processed, on a terminal.
fn bar(progress: &Arc<Progress>, quiet: bool) -> progress::Progress {
    let work = Arc::clone(progress);
    progress::Progress::drawn(!quiet, move |_| {
        let (done, total) = work.bytes();
        #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
        let fraction = if total == 0 { 0.0 } else { done as f64 / total as f64 };
        (fraction, format!("{} of {}", size(done), size(total)))
    })
}

/// Reports an error: as wrong usage if nothing was attempted, otherwise as a failure.
fn failed(error: ImageError) -> miette::Result<u8> {
    match error {
        ImageError::Option(_)
        | ImageError::Exists(_)
        | ImageError::Same(_)
        | ImageError::NoDevice(_)
        | ImageError::Container { .. }
        | ImageError::ReadOnly(_)
        | ImageError::SectorSize { .. }
        | ImageError::Kind { .. }
        | ImageError::InUse { .. }
        | ImageError::TooSmall { .. } => Err(miette!("{}", escaped(&error.to_string()))),
        ImageError::Interrupted => {
            status("interrupted\n");
            Ok(exit::INTERRUPTED)
        }
        error => {
            status(&format!("error: {}\n", escaped(&error.to_string())));
            Ok(exit::FAILED)
        }
    }
}

/// Says where the copy of the partition table is, if that is not the end of the device; `fix` moves it there.
fn end_of_gpt(device: &Path, fix: bool, quiet: bool) -> Result<(), ImageError> {
    let place = escaped(&device.to_string_lossy());
    let note = match gpt_copy(device, fix) {
        Ok(GptCopy::InPlace) => return Ok(()),
        Ok(GptCopy::Early) => {
            "is not at its end, which is that of a larger disk: --fix-gpt moves it"
        }
        Ok(GptCopy::Moved) => "was moved to its end",
        Err(error) if fix => return Err(error),
        // All that was asked for is done.
        Err(_) => return Ok(()),
    };
    if !quiet {
        status(&format!("note: the copy of the partition table of {place} {note}\n"));
    }
    Ok(())
}

/// Permits as many open files as the system does: each host that is served or that serves is one.
fn allow_many_files() {
    // If the system refuses, fewer hosts are connected at a time, and it is reported if these are too few.
    let _ = rackweave_linux::sys::raise_open_file_limit();
}

/// Says that the system refuses connections.
fn not_accepted(why: &str) -> String {
    format!("error: cannot accept connections: {why}; trying again\n")
}

/// Reads a key file.
fn read_key<T>(
    path: &Path,
    parse: fn(&str) -> Result<T, rackweave_image::KeyError>,
) -> miette::Result<T> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| miette!("cannot read the key file {}: {error}", path.display()))?;
    parse(&text).map_err(|error| miette!("{} is not a key file: {error}", path.display()))
}

fn secret_key(path: &Path) -> miette::Result<SecretKey> {
    read_key(path, SecretKey::from_text)
}

/// Checks that an image was signed by the key in a file, if one is given.
fn check_signer(image: &Image, key: Option<&Path>) -> miette::Result<Result<(), ImageError>> {
    let Some(path) = key else { return Ok(Ok(())) };
    let key = read_key(path, PublicKey::from_text)?;
    let path = image.path().to_owned();
    let checked = image.manifest().require_signer(&key);
    Ok(checked.map_err(|source| ImageError::Manifest { path, source }))
}
