//! `rackweave image pack`.

use std::path::Path;

use rackweave_image::Packing;
use serde_json::json;

use super::args::PackArgs;
use super::{bar, failed, secret_key, watched};
use crate::shell::{escaped, events, exit, hex, print, size, status};

/// Returns the name of the image: the file's, without the extension.
fn name(to: &Path) -> String {
    to.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

pub(super) fn pack(args: &PackArgs) -> miette::Result<u8> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let packing = Packing {
        chunk_size: args.chunk_size,
        level: args.level,
        skip_free: args.skip_free.into(),
        key: args.sign.as_deref().map(secret_key).transpose()?,
        threads: args.threads.map_or(cores, usize::from),
        overwrite: args.overwrite,
        live: args.live,
        raw: args.raw,
        ..Packing::new(&args.name.clone().unwrap_or_else(|| name(&args.to)))
    };
    let progress = watched()?;
    let shown = bar(&progress, args.quiet);
    let packed = rackweave_image::pack(&args.source, &args.to, &packing, &progress);
    drop(shown);
    let packed = match packed {
        Ok(packed) => packed,
        Err(error) => return failed(error),
    };
    let (head, manifest) = (packed.manifest.head(), &packed.manifest);
    if args.json {
        return events::emit(
            "result",
            json!({
                "file": args.to.to_string_lossy(),
                "name": head.name,
                "size": head.size,
                "chunks": head.chunks,
                "chunk_size": head.chunk_size,
                "length": packed.length,
                "root": hex(manifest.root()),
                "signed_by": manifest.signature().map(|it| it.key.to_string()),
                "notes": packed.notes,
            }),
        );
    }
    if args.quiet {
        return Ok(exit::DONE);
    }
    packed.notes.iter().for_each(|note| status(&format!("{note}\n")));
    print(&format!(
        "{}: {} in {} chunks, {} stored\nroot {}\n",
        escaped(&args.to.to_string_lossy()),
        size(head.size),
        head.chunks,
        size(packed.length),
        hex(manifest.root())
    ))
}
