//! `rackweave image inspect` and `verify`.

use std::fmt::Write as _;

use rackweave_image::{Codec, Format, Image, Manifest};
use serde_json::{Value, json};

use super::args::{InspectArgs, VerifyArgs};
use super::{bar, check_signer, failed, watched};
use crate::shell::{escaped, events, exit, hex, print, size, status};

const fn codec(codec: Codec) -> &'static str {
    match codec {
        Codec::Empty => "empty",
        Codec::Raw => "raw",
        Codec::Zstd => "zstd",
        Codec::Ndz => "ndz",
    }
}

const fn format(format: Format) -> &'static str {
    match format {
        Format::Rackweave => "rwi",
        Format::Ndz => "ndz",
    }
}

/// Bytes of an image by what they are.
struct Totals {
    stored: u64,
    data: u64,
    zero: u64,
    unused: u64,
}

impl Totals {
    fn new(manifest: &Manifest) -> Self {
        let mut this = Self { stored: 0, data: 0, zero: 0, unused: 0 };
        for number in 0..manifest.chunks() {
            this.stored += manifest.chunk(number).map_or(0, |chunk| u64::from(chunk.stored));
            this.data += manifest.data(number);
            let zero = manifest.extents(number).iter().filter(|it| it.zero);
            this.zero += zero.map(|it| it.len).sum::<u64>();
        }
        this.unused = manifest.head().size - this.data - this.zero;
        this
    }
}

pub(super) fn inspect(args: &InspectArgs) -> miette::Result<u8> {
    let progress = watched()?;
    let shown = bar(&progress, args.json);
    let image = Image::open(&args.file, &progress);
    drop(shown);
    match image {
        Ok(image) if args.json => events::emit("result", document(&image, args.chunks)),
        Ok(image) => print(&table(image.manifest(), args.chunks)),
        Err(error) => failed(error),
    }
}

fn document(image: &Image, chunks: bool) -> Value {
    let manifest = image.manifest();
    let (head, totals) = (manifest.head(), Totals::new(manifest));
    let mut document = json!({
        "file": image.path().to_string_lossy(),
        "format": format(head.format),
        "name": head.name,
        "size": head.size,
        "chunk_size": head.chunk_size,
        "chunk_count": head.chunks,
        "sector_size": head.sector_size,
        "level": (head.level > 0).then_some(head.level),
        "skipped_free": head.skipped_free,
        "stored_bytes": totals.stored,
        "data_bytes": totals.data,
        "zero_bytes": totals.zero,
        "unused_bytes": totals.unused,
        "root": hex(manifest.root()),
        "signed_by": manifest.signature().map(|it| it.key.to_string()),
    });
    if chunks {
        let chunk = |number| {
            let chunk = manifest.chunk(number)?;
            let extents = manifest.extents(number).iter();
            Some(json!({
                "chunk": number,
                "offset": chunk.offset,
                "stored": chunk.stored,
                "codec": codec(chunk.codec),
                "hash": hex(&chunk.hash),
                "content": hex(&chunk.content),
                "extents": extents
                    .map(|it| json!({ "start": it.start, "length": it.len, "zero": it.zero }))
                    .collect::<Vec<_>>(),
            }))
        };
        document["chunks"] = (0..head.chunks).map(chunk).collect();
    }
    document
}

fn table(manifest: &Manifest, chunks: bool) -> String {
    let (head, totals) = (manifest.head(), Totals::new(manifest));
    let mut text = String::new();
    let what = match head.format {
        Format::Rackweave => format!("Rackweave image, zstd level {}", head.level),
        Format::Ndz => "Frisbee image".to_owned(),
    };
    let signed = manifest.signature().map_or("no".to_owned(), |it| format!("by {}", it.key));
    let rows = [
        ("name", escaped(&head.name)),
        ("format", what),
        ("size", format!("{} bytes ({})", head.size, size(head.size))),
        ("sectors", head.sector_size.map_or("unknown".to_owned(), |it| format!("{it} bytes"))),
        ("chunks", format!("{} of {}", head.chunks, size(u64::from(head.chunk_size)))),
        ("stored", format!("{} for {} of data", size(totals.stored), size(totals.data))),
        ("zeros", size(totals.zero)),
        ("unused", size(totals.unused)),
        ("root", hex(manifest.root())),
        ("signed", signed),
    ];
    for (key, value) in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{key:<12} {value}");
    }
    if chunks {
        text += "\n   chunk       offset    stored  codec      data     zeros  extents  content\n";
    }
    for number in (0..head.chunks).take_while(|_| chunks) {
        let Some(chunk) = manifest.chunk(number) else { break };
        let extents = manifest.extents(number);
        let zero: u64 = extents.iter().filter(|it| it.zero).map(|it| it.len).sum();
        let _ = writeln!(
            text,
            "{number:>8} {:>12} {:>9}  {:<5} {:>9} {zero:>9} {:>8}  {}",
            chunk.offset,
            chunk.stored,
            codec(chunk.codec),
            manifest.data(number),
            extents.len(),
            &hex(&chunk.content)[..16]
        );
    }
    text
}

pub(super) fn verify(args: &VerifyArgs) -> miette::Result<u8> {
    let progress = watched()?;
    let shown = bar(&progress, args.quiet);
    let image = match Image::open(&args.file, &progress) {
        Ok(image) => image,
        Err(error) => {
            drop(shown);
            return failed(error);
        }
    };
    let verified = match check_signer(&image, args.key.as_deref())? {
        Ok(()) => image.verify(&progress),
        Err(error) => Err(error),
    };
    drop(shown);
    let verified = match verified {
        Ok(verified) => verified,
        Err(error) => return failed(error),
    };
    let signer = image.manifest().signature().map(|it| it.key.to_string());
    if args.json {
        return events::emit(
            "result",
            json!({
                "file": args.file.to_string_lossy(),
                "chunks": verified.chunks,
                "data_bytes": verified.data,
                "root": hex(image.manifest().root()),
                "signed_by": signer,
                "unchecked_signatures": verified.unchecked_signatures,
            }),
        );
    }
    if args.quiet {
        return Ok(exit::DONE);
    }
    if verified.unchecked_signatures > 0 {
        let count = verified.unchecked_signatures;
        status(&format!(
            "{count} chunks have an RSA signature of Frisbee's, which is not checked\n"
        ));
    }
    let signed = signer.map_or("it is not signed".to_owned(), |key| format!("signed by {key}"));
    let (chunks, data) = (verified.chunks, size(verified.data));
    print(&format!(
        "{}: all {chunks} chunks are correct, {data} of data; {signed}\n",
        escaped(&args.file.to_string_lossy())
    ))
}
