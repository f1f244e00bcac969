//! Writes the seeds of the fuzz targets to `fuzz/corpus`. Run it after a change of a layout.

#[path = "../tests/it/headers/mod.rs"]
mod headers;
#[path = "../tests/it/seeds/mod.rs"]
mod seeds;

use std::path::PathBuf;
use std::{fs, io};

fn main() -> io::Result<()> {
    let root: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "fuzz", "corpus"].iter().collect();
    let seeds = seeds::all();
    for (target, name, bytes) in &seeds {
        let folder = root.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), bytes)?;
    }
    println!("{} seeds", seeds.len());
    Ok(())
}
