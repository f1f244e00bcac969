//! Images of disks and partitions, in chunks that are requested, verified, served and resumed one by one. There is no
//! network here: a server reads stored chunks through [`Image`], a client checks them by the [`Manifest`] and writes
//! them to a file or a block device through [`Target`].
//!
//! Two formats are read: Rackweave's own (`.rwi`, laid out in `src/manifest`), which [`pack()`] writes, and Frisbee's `.ndz`
//! ([`ndz`]), which [`pack_ndz`] writes.
//!
//! ```
//! use rackweave_image::{Image, Packing, Progress, Target, TargetConfig, pack};
//!
//! # fn main() -> Result<(), rackweave_image::ImageError> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let (disk, file, copy) = ["disk", "disk.rwi", "copy"].map(|it| folder.path().join(it)).into();
//! # std::fs::write(&disk, vec![7; 3_000_000]).unwrap();
//! let progress = Progress::default();
//! pack(&disk, &file, &Packing::new("disk"), &progress)?;
//! let image = Image::open(&file, &progress)?;
//! let mut target = Target::open(&copy, image.manifest().clone(), &TargetConfig::default(), &progress)?;
//! let mut stored = Vec::new();
//! // A client requests the missing chunks in any order, from anybody.
//! for chunk in target.missing() {
//!     image.read(chunk, &mut stored)?;
//!     target.write(chunk, &stored)?;
//! }
//! target.finish(&progress)?;
//! assert_eq!(std::fs::read(&copy).unwrap(), std::fs::read(&disk).unwrap());
//! # Ok(())
//! # }
//! ```

mod error;
mod expand;
pub mod free;
mod gpt;
mod image;
mod incoming;
mod keys;
mod manifest;
pub mod ndz;
mod pack;
mod pack_ndz;
mod parallel;
mod part;
mod progress;
mod scan;
mod source;
mod stored;
mod target;

pub use self::error::ImageError;
pub use self::expand::{ChunkError, Expander, Piece, recompress};
pub use self::gpt::{GptCopy, gpt_copy};
pub use self::image::{Image, Verified};
pub use self::incoming::{IncomingNdz, WrittenNdz};
pub use self::keys::{KeyError, PublicKey, SecretKey};
pub use self::manifest::{
    Chunk, Codec, Extent, Format, Hash, Head, MAX_CHUNK, MIN_CHUNK, Manifest, ManifestError,
    Signature,
};
pub use self::pack::{Packed, Packing, SkipFree, pack};
pub use self::pack_ndz::{PackedNdz, pack_ndz};
pub use self::progress::Progress;
pub use self::scan::scan;
pub use self::stored::StoredChunk;
pub use self::target::{Target, TargetConfig, TargetReader};

/// The number of bytes that are read or written at once where a chunk may be much larger.
const PIECE: usize = 256 << 10;
