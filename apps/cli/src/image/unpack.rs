//! `rackweave image unpack`.

use rackweave_image::{Image, ImageError, Progress, Target, TargetConfig};
use serde_json::json;

use super::args::UnpackArgs;
use super::{bar, check_signer, end_of_gpt, failed, watched};
use crate::shell::{escaped, events, exit, hex, print, size};

/// What was written.
#[derive(Default)]
struct Written {
    chunks: u32,
    data: u64,
}

pub(super) fn unpack(args: &UnpackArgs) -> miette::Result<u8> {
    let progress = watched()?;
    let shown = bar(&progress, args.quiet);
    let image = match Image::open(&args.file, &progress) {
        Ok(image) => image,
        Err(error) => {
            drop(shown);
            return failed(error);
        }
    };
    let written = match check_signer(&image, args.key.as_deref())? {
        Ok(()) => write(args, &image, &progress),
        Err(error) => Err(error),
    };
    drop(shown);
    let written = written.and_then(|written| {
        end_of_gpt(&args.to, args.fix_gpt, args.quiet || args.json).map(|()| written)
    });
    let written = match written {
        Ok(written) => written,
        Err(error) => return failed(error),
    };
    let head = image.manifest().head();
    if args.json {
        return events::emit(
            "result",
            json!({
                "target": args.to.to_string_lossy(),
                "size": head.size,
                "chunks": head.chunks,
                "written_chunks": written.chunks,
                "written_bytes": written.data,
                "root": hex(image.manifest().root()),
            }),
        );
    }
    if args.quiet {
        return Ok(exit::DONE);
    }
    let to = escaped(&args.to.to_string_lossy());
    print(&match written.chunks {
        0 => format!("{to}: it holds the image already\n"),
        some => format!(
            "{to}: {} in {} chunks, {some} of them written with {} of data\n",
            size(head.size),
            head.chunks,
            size(written.data)
        ),
    })
}

fn write(args: &UnpackArgs, image: &Image, progress: &Progress) -> Result<Written, ImageError> {
    let config = TargetConfig {
        overwrite: args.overwrite,
        zero_unused: args.zero,
        force_sector_size: args.force_sector_size,
        image: Some(image.id()?),
        ..TargetConfig::default()
    };
    let manifest = image.manifest();
    let mut target = Target::open(&args.to, manifest.clone(), &config, progress)?;
    let missing = target.missing();
    progress.start(missing.as_slice().iter().map(|chunk| manifest.data(*chunk)).sum());
    let mut written = Written::default();
    let mut stored = Vec::new();
    for chunk in missing {
        if progress.is_stopped() {
            return Err(ImageError::Interrupted);
        }
        image.read(chunk, &mut stored)?;
        // A damaged chunk is one of the image, not of the target.
        target.write(chunk, &stored).map_err(|error| match error {
            ImageError::Chunk { chunk, source, .. } => {
                ImageError::Chunk { path: args.file.clone(), chunk, source }
            }
            other => other,
        })?;
        written.chunks += 1;
        written.data += manifest.data(chunk);
        progress.advance(manifest.data(chunk));
    }
    target.finish(progress)?;
    Ok(written)
}
