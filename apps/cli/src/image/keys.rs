//! `rackweave image keygen`.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use miette::miette;
use rackweave_image::SecretKey;

use super::args::KeygenArgs;
use crate::shell::print;

/// Creates a file that nobody else can read; an existing one is never replaced.
fn create(path: &Path, mode: u32, text: &str) -> miette::Result<()> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(mode).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => exists(path),
        _ => miette!("cannot create the key file {}: {error}", path.display()),
    })
}

fn exists(path: &Path) -> miette::Report {
    miette!(
        "the key file {} exists already, and keys are never replaced: choose another name, or move it away first",
        path.display()
    )
}

fn with_extension(name: &Path, extension: &str) -> PathBuf {
    let mut path = name.as_os_str().to_owned();
    path.push(extension);
    path.into()
}

pub(super) fn keygen(args: &KeygenArgs) -> miette::Result<u8> {
    let mut seed = [0; 32];
    let (first, second) = seed.split_at_mut(16);
    first.copy_from_slice(&rackweave_linux::random().to_ne_bytes());
    second.copy_from_slice(&rackweave_linux::random().to_ne_bytes());
    let key = SecretKey::from_seed(&seed);
    let (secret, public) = (with_extension(&args.name, ".key"), with_extension(&args.name, ".pub"));
    // Both before either is made: half a pair would be in the way of the next attempt.
    for path in [&secret, &public] {
        if path.symlink_metadata().is_ok() {
            return Err(exists(path));
        }
    }
    create(&secret, 0o600, &key.to_text())?;
    create(&public, 0o644, &key.public().to_text())?;
    print(&format!("{} signs images, {} checks them\n", secret.display(), public.display()))
}
