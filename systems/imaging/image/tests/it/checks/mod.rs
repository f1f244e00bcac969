//! Properties that must hold for any bytes, shared by the fuzz target and the replay of its corpus.

use rackweave_image::free::file_systems;
use rackweave_image::ndz::{CHUNK, ChunkHeader};
use rackweave_image::{Manifest, Piece};

/// Decodes any bytes as what their first byte selects: a manifest, a chunk of an `.ndz` file, or a disk with file systems.
/// Returns whether they were one.
pub(crate) fn image(bytes: &[u8]) -> bool {
    let Some((kind, bytes)) = bytes.split_first() else { return false };
    match kind % 3 {
        0 => manifest(bytes),
        1 => ndz(bytes),
        _ => disk(bytes),
    }
}

/// A manifest that decodes encodes to the same bytes, and all of it is in bounds.
fn manifest(bytes: &[u8]) -> bool {
    let Ok(manifest) = Manifest::decode(bytes) else { return false };
    assert_eq!(manifest.encode(), bytes);
    assert_eq!(Manifest::encoded_length(bytes.first_chunk().unwrap()).unwrap(), bytes.len() as u64);
    let size = manifest.head().size;
    for chunk in 0..manifest.chunks() {
        let extents = manifest.extents(chunk);
        assert!(extents.iter().all(|it| it.len > 0 && it.end() <= size));
        let mut expander = rackweave_image::Expander::new().unwrap();
        // The chunks of a manifest without a file are wrong, and that is all that happens.
        let result = expander.expand(&manifest, chunk, bytes, &mut |offset, piece| {
            let len = match piece {
                Piece::Data(bytes) => bytes.len() as u64,
                Piece::Zero(len) => len,
            };
            assert!(offset + len <= size);
            Ok(())
        });
        drop(result);
    }
    let unused: u64 = manifest.unused().iter().map(|it| it.end - it.start).sum();
    assert!(unused <= size);
    true
}

fn ndz(bytes: &[u8]) -> bool {
    let Ok(header) = ChunkHeader::decode(bytes) else { return false };
    assert!(header.stored() <= CHUNK && header.stored() <= bytes.len());
    let Ok(extents) = header.extents() else { return false };
    assert!(extents.windows(2).all(|pair| pair[0].end() < pair[1].start));
    header.end().is_ok() && header.verify_checksum(bytes).is_ok()
}

fn disk(bytes: &[u8]) -> bool {
    let Ok(found) = file_systems(&bytes) else { return false };
    for system in &found {
        assert!(system.range.end <= bytes.len() as u64);
        let Ok(unused) = &system.unused else { continue };
        assert!(unused.iter().all(|it| it.start < it.end && it.end <= system.range.end));
        assert!(unused.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }
    found.iter().any(|system| system.unused.is_ok())
}
