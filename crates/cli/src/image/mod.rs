//! `rackweave image`: images of disks.

mod args;
mod fetch;
mod hosts;
mod inspect;
mod keys;
mod pack;
mod serve;
mod switch;
mod switch_bpf;
mod unpack;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use clap::Subcommand;
use miette::miette;
use rackweave_core::is_hidden;
use rackweave_image::{Image, ImageError, Progress, PublicKey, SecretKey};

use crate::escaped;
use crate::exit;
use crate::progress;

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

/// Returns a JSON document as text. Characters that are not seen as themselves can only be in its strings, and are escaped there: a terminal shows
/// the document too.
fn json_text(document: &serde_json::Value, is_pretty: bool) -> String {
    let text = if is_pretty { format!("{document:#}") } else { document.to_string() };
    if !text.contains(|letter| letter != '\n' && is_hidden(letter)) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter == '\n' || !is_hidden(letter) {
            escaped.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    escaped
}

/// Creates the progress of a command, which Ctrl-C or SIGTERM stops. A second signal ends the process.
fn watched() -> miette::Result<Arc<Progress>> {
    let progress = Arc::new(Progress::default());
    let stopped = Arc::clone(&progress);
    let handler = move || {
        if stopped.is_stopped() {
            std::process::exit(i32::from(exit::INTERRUPTED));
        }
        stopped.stop();
    };
    ctrlc::set_handler(handler).map_err(|error| miette!("cannot listen for Ctrl-C: {error}"))?;
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

fn status(text: &str) {
    use std::io::Write as _;
    // If stderr is closed, the text cannot be reported anywhere.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
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

/// A number of bytes with three significant digits, such as "12.3 MB".
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn size(bytes: u64) -> String {
    rackweave_lab::report::number::bytes(bytes as f64)
}

fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_for_people_says_the_same_and_hides_nothing() {
        let document =
            serde_json::json!({ "name": "a\u{202e}b\u{e0041}\u{1b}", "other": ["ß", 1] });
        for is_pretty in [false, true] {
            let text = json_text(&document, is_pretty);
            assert!(!text.contains(|letter| letter != '\n' && is_hidden(letter)), "{text}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), document);
        }
    }
}
