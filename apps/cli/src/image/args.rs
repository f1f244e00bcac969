//! Arguments of `rackweave image`.

use std::path::PathBuf;

use clap::ValueEnum;
use rackweave_image::SkipFree;

/// Make an image of a disk, a partition or a file.
///
/// The source is divided into chunks, which are compressed one by one, so that they can be requested, verified, served and
/// resumed one by one. Holes and zeros are not stored. The same source and options give the same file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave image pack disk.img --to debian-13.rwi\n  \
    rackweave image pack /dev/sda --to golden.rwi --sign images.key\n  \
    rackweave image pack /dev/sda --to golden.ndz --format ndz\n\n\
    Exit codes: 0 done, 1 failed, 2 wrong usage, or refused, 130 interrupted.")]
pub(crate) struct PackArgs {
    /// Disk image, partition image, block device, or any other file.
    #[arg(value_name = "SOURCE")]
    pub(crate) source: PathBuf,
    /// The image file. It appears when it is complete.
    #[arg(long, value_name = "FILE")]
    pub(crate) to: PathBuf,
    /// Format of the file: `ndz` is Frisbee's, without name, signature and choice of chunks.
    #[arg(long, value_name = "FORMAT", default_value = "rwi")]
    pub(crate) format: FormatArg,
    /// Name of the image (default: the file's name without its extension).
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Bytes of the source in a chunk, a power of two from 64KiB to 16MiB (default: 256KiB for a source of up to 512MiB,
    /// 512KiB up to 1GiB, else 1MiB).
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) chunk_size: Option<u32>,
    /// Level of zstd: 1 is the fastest, 22 the smallest. With --format ndz of zlib, up to 9.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=22))]
    pub(crate) level: u8,
    /// Unused blocks of ext2, ext3 and ext4 that are skipped, in partitions too.
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub(crate) skip_free: SkipFreeArg,
    /// Sign the image with this key (see `rackweave image keygen`).
    #[arg(long, value_name = "FILE.key")]
    pub(crate) sign: Option<PathBuf>,
    /// Threads that compress (default: one per core). The image is the same with any number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Option<u16>,
    /// Replace an existing file.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Read a device although it is mounted for writing: the image may be inconsistent.
    #[arg(long)]
    pub(crate) live: bool,
    /// Pack the bytes of a file that holds a disk in another format, such as qcow2, gzip or zip.
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print the result as one line of JSON on standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print neither progress nor a report.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatArg {
    /// Rackweave's.
    Rwi,
    /// Frisbee's.
    Ndz,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SkipFreeArg {
    /// Unused blocks are stored.
    None,
    /// They are skipped where they can be determined.
    Auto,
    /// They are skipped; it is an error if they cannot be determined.
    Ext4,
}

impl From<SkipFreeArg> for SkipFree {
    fn from(arg: SkipFreeArg) -> Self {
        match arg {
            SkipFreeArg::None => Self::No,
            SkipFreeArg::Auto => Self::Auto,
            SkipFreeArg::Ext4 => Self::Ext4,
        }
    }
}

/// Show what an image is.
///
/// Reads Frisbee's .ndz files too; these have no index, so all of the file is read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    rackweave image inspect debian-13.rwi --chunks --json | jq '.chunks[] | select(.stored == 0)'")]
pub(crate) struct InspectArgs {
    /// An .rwi or .ndz file.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// List all chunks.
    #[arg(long)]
    pub(crate) chunks: bool,
    /// Print one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check every chunk of an image, its root hash and its signature.
///
/// Names the first chunk that is damaged. Frisbee's .ndz files are checked by their SHA-1 and zlib checksums.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 all is correct, 1 something is not, 2 wrong usage, 130 interrupted."
)]
pub(crate) struct VerifyArgs {
    /// An .rwi or .ndz file.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Require a signature by this key (default: any signature, or none).
    #[arg(long, value_name = "FILE.pub")]
    pub(crate) key: Option<PathBuf>,
    /// Print the result as one line of JSON on standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print neither progress nor a report.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Write an image to a file or a block device.
///
/// A file appears when it is complete, with holes where the image has zeros. A block device must not be in use; unused
/// blocks keep their content. What the target holds already is not written again, so the command can be interrupted and
/// repeated.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave image unpack debian-13.rwi --to vm.img\n  \
    rackweave image unpack golden.rwi --to /dev/nvme0n1 --key images.pub\n\n\
    Exit codes: 0 every byte is there, 1 failed, 2 wrong usage, or refused, 130 interrupted.")]
pub(crate) struct UnpackArgs {
    /// An .rwi or .ndz file.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// A file or a block device.
    #[arg(long, value_name = "TARGET")]
    pub(crate) to: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Overwrite the unused blocks of a device with zeros.
    #[arg(long)]
    pub(crate) zero: bool,
    /// Write an image to a device whose sectors have another size than those of its disk: it will not boot.
    #[arg(long)]
    pub(crate) force_sector_size: bool,
    /// Move the copy of the partition table to the end of a device that is larger than the image.
    #[arg(long)]
    pub(crate) fix_gpt: bool,
    /// Require a signature by this key (default: any signature, or none).
    #[arg(long, value_name = "FILE.pub")]
    pub(crate) key: Option<PathBuf>,
    /// Print the result as one line of JSON on standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print neither progress nor a report.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Make a key pair that signs images: NAME.key, which stays secret, and NAME.pub.
#[derive(Debug, clap::Args)]
pub(crate) struct KeygenArgs {
    /// Path of the files without extension.
    #[arg(value_name = "NAME")]
    pub(crate) name: PathBuf,
}

/// Parses a number of bytes such as "1MiB", "64K" or "65536".
fn bytes(text: &str) -> Result<u32, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit: u32 = match text[digits.len()..].trim() {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        _ => return Err("expected a size such as 64KiB or 1MiB".to_owned()),
    };
    let number = digits.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    number.ok_or_else(|| "expected a size such as 64KiB or 1MiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(
            ["65536", "64K", "64KiB", "0.1"].map(bytes)[..3],
            [Ok(65_536), Ok(65_536), Ok(65_536)]
        );
        assert_eq!(bytes("1MiB"), Ok(1 << 20));
        assert!(
            ["", "MiB", "1GB", "5000M", "0.5M", "1 MB"].iter().all(|text| bytes(text).is_err())
        );
    }
}
