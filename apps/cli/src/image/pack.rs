//! `rackweave image pack`.

use std::path::Path;

use miette::miette;
use rackweave_image::Packing;
use serde_json::json;

use super::args::{FormatArg, PackArgs};
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
    if args.format == FormatArg::Ndz {
        return pack_ndz(args, &packing);
    }
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

/// Makes an image in Frisbee's format.
fn pack_ndz(args: &PackArgs, packing: &Packing) -> miette::Result<u8> {
    let options = [
        ("name", args.name.is_some()),
        ("chunk-size", args.chunk_size.is_some()),
        ("sign", args.sign.is_some()),
    ];
    if let Some((option, _)) = options.iter().find(|(_, is_given)| *is_given) {
        return Err(miette!("--{option} has no place in Frisbee's format (--format ndz)"));
    }
    let progress = watched()?;
    let shown = bar(&progress, args.quiet);
    let packed = rackweave_image::pack_ndz(&args.source, &args.to, packing, &progress);
    drop(shown);
    let packed = match packed {
        Ok(packed) => packed,
        Err(error) => return failed(error),
    };
    let (file, length) = (args.to.to_string_lossy(), u64::from(packed.chunks) << 20);
    if args.json {
        let fields = json!({
            "file": file, "size": packed.size, "chunks": packed.chunks, "length": length, "notes": packed.notes,
        });
        return events::emit("result", fields);
    }
    if args.quiet {
        return Ok(exit::DONE);
    }
    packed.notes.iter().for_each(|note| status(&format!("{note}\n")));
    let (chunks, from, to) = (packed.chunks, size(packed.size), size(length));
    print(&format!("{}: {from} in {chunks} chunks, {to} stored\n", escaped(&file)))
}
