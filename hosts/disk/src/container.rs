//! Files that hold something else than what their bytes are: compressed streams, archives, and the disks of virtual machines.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use crate::{DiskFile, read_exact_at};

/// A format in which a file holds other content than its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Container {
    /// What the file is, such as "a qcow2 disk".
    pub name: &'static str,
    /// The command that makes its content, as a template of [`command`].
    pub convert: &'static str,
    /// How it is compressed, if it is one compressed stream.
    pub stream: Option<Stream>,
}

/// How a stream is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
    /// Anything else.
    Other,
}

/// Returns the command of a template for a shell: its word `FILE` is the file, and `TO` the file that it makes.
#[must_use]
pub fn command(template: &str, file: &Path, to: &Path) -> String {
    let quoted = |path: &Path| {
        let text = path.to_string_lossy();
        // A name that begins like an option is none.
        let text = if text.starts_with('-') { format!("./{text}").into() } else { text };
        // No path of a file has the byte zero, which a shell cannot have in a word.
        shlex::try_quote(&text).map_or_else(|_| "FILE".to_owned(), Cow::into_owned)
    };
    let word = |word| match word {
        "FILE" => quoted(file),
        "TO" => quoted(to),
        other => other.to_owned(),
    };
    template.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// A mark: where it is, from the beginning or, if negative, from the end; and its bytes.
type Mark = (i64, &'static [u8]);

const fn compressed(
    name: &'static str,
    convert: &'static str,
    stream: Stream,
    mark: &'static [u8],
) -> (Mark, Container) {
    ((0, mark), Container { name, convert, stream: Some(stream) })
}

const fn holds(
    name: &'static str,
    convert: &'static str,
    at: i64,
    mark: &'static [u8],
) -> (Mark, Container) {
    ((at, mark), Container { name, convert, stream: None })
}

const QEMU: &str = "qemu-img convert -O raw FILE TO";

/// The formats, by the marks that `file` (libmagic) and `qemu-img` know them by.
const KNOWN: &[(Mark, Container)] = &[
    compressed("compressed by gzip", "gunzip -c < FILE > TO", Stream::Gzip, b"\x1f\x8b\x08"),
    compressed("compressed by zstd", "zstd -dc < FILE > TO", Stream::Zstd, b"\x28\xb5\x2f\xfd"),
    compressed("compressed by xz", "unxz -c < FILE > TO", Stream::Other, b"\xfd7zXZ\0"),
    compressed("compressed by bzip2", "bunzip2 -c < FILE > TO", Stream::Other, b"BZh11AY&SY"),
    compressed("compressed by lz4", "lz4 -dc < FILE > TO", Stream::Other, b"\x04\x22\x4d\x18"),
    compressed("compressed by lz4", "lz4 -dc < FILE > TO", Stream::Other, b"\x02\x21\x4c\x18"),
    compressed("compressed by lzip", "lzip -dc < FILE > TO", Stream::Other, b"LZIP\x01"),
    compressed("compressed by lzop", "lzop -dc < FILE > TO", Stream::Other, b"\x89LZO\0\r\n\x1a\n"),
    compressed("compressed by lrzip", "lrzip -d -o TO FILE", Stream::Other, b"LRZI\0"),
    compressed(
        "compressed by compress",
        "uncompress -c < FILE > TO",
        Stream::Other,
        b"\x1f\x9d\x90",
    ),
    compressed(
        "compressed by lzma",
        "unlzma -c < FILE > TO",
        Stream::Other,
        b"\x5d\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff",
    ),
    compressed("a Snappy stream", "snzip -dc < FILE > TO", Stream::Other, b"\xff\x06\0\0sNaPpY"),
    holds("a zip archive", "unzip FILE", 0, b"PK\x03\x04"),
    holds("a 7-Zip archive", "7z x FILE", 0, b"7z\xbc\xaf\x27\x1c"),
    holds("a RAR archive", "unrar x FILE", 0, b"Rar!\x1a\x07"),
    holds("a tar archive", "tar -xf FILE", 257, b"ustar"),
    holds("a qcow2 disk", QEMU, 0, b"QFI\xfb"),
    holds("a QED disk", QEMU, 0, b"QED\0"),
    holds("a VMDK disk", QEMU, 0, b"KDMV"),
    holds("a VMDK disk", QEMU, 0, b"COWD"),
    holds("the description of a VMDK disk", QEMU, 0, b"# Disk DescriptorFile"),
    holds("a VDI disk", QEMU, 64, &[0x7f, 0x10, 0xda, 0xbe]),
    holds("a VHD disk", QEMU, 0, b"conectix"),
    holds("a VHD disk", QEMU, -512, b"conectix"),
    holds("a VHD disk", QEMU, -511, b"conectix"),
    holds("a VHDX disk", QEMU, 0, b"vhdxfile"),
    holds("a Parallels disk", QEMU, 0, b"WithoutFreeSpace"),
    holds("a Parallels disk", QEMU, 0, b"WithouFreSpacExt"),
    holds("a Bochs disk", QEMU, 0, b"Bochs Virtual HD Image"),
    holds("an Apple disk image", "dmg2img FILE TO", -512, b"koly"),
    holds("an Apple sparse image", "hdiutil convert FILE -format UDTO -o disk", 0, b"sprs"),
    holds("an Android sparse image", "simg2img FILE TO", 0, &[0x3a, 0xff, 0x26, 0xed]),
    holds("a Windows image (WIM)", "wimapply FILE", 0, b"MSWIM\0\0\0"),
    holds("an EWF image", "ewfexport FILE", 0, b"EVF\x09\x0d\x0a\xff\0"),
    holds("an EWF image", "ewfexport FILE", 0, b"EVF2\x0d\x0a\x81\0"),
    holds("a partclone image", "partclone.restore -C -s FILE -o TO", 0, b"partclone-image"),
    holds("a partimage image", "partimage restore", 0, b"PaRtImAgE-VoLuMe"),
    holds("an FSArchiver archive", "fsarchiver restfs FILE", 0, b"FsA"),
    holds("a Proxmox backup (VMA)", "vma extract FILE folder", 0, b"VMA\0"),
    holds("an NTFS clone", "ntfsclone --restore-image -O TO FILE", 0, b"\0ntfsclone-image"),
];

/// Returns the format of a file of this length by its marks, if it is one of those known; `None` also if the file is too short.
///
/// # Errors
/// If it cannot be read.
pub fn container(file: &dyn DiskFile, len: u64) -> io::Result<Option<Container>> {
    let mut found = [0; 32];
    for ((at, mark), container) in KNOWN {
        let place = match u64::try_from(*at) {
            Ok(at) => Some(at),
            Err(_) => len.checked_sub(at.unsigned_abs()),
        };
        let Some(place) = place.filter(|place| place + mark.len() as u64 <= len) else { continue };
        let found = &mut found[..mark.len()];
        match read_exact_at(file, found, place) {
            Ok(()) if is_mark(found, mark) => return Ok(Some(*container)),
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            _ => {}
        }
    }
    Ok(None)
}

/// Whether bytes are a mark. That of bzip2 has the size of its blocks in its fourth byte.
fn is_mark(found: &[u8], mark: &[u8]) -> bool {
    if mark.starts_with(b"BZh") {
        return found[..3] == mark[..3] && found[3].is_ascii_digit() && found[4..] == mark[4..];
    }
    found == mark
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn the_command_for_a_stream_runs_whatever_its_file_is_called() {
        let folder = tempfile::tempdir().unwrap();
        let run = |script: &str| {
            let mut shell = std::process::Command::new("sh");
            assert!(shell.arg("-c").arg(script).current_dir(&folder).status().unwrap().success());
        };
        let tools = [("gzip", "gunzip"), ("xz", "unxz"), ("bzip2", "bunzip2"), ("zstd -q", "zstd")];
        for (compress, expand) in tools {
            let has = ["/bin", "/usr/bin"].map(|it| Path::new(it).join(expand).exists());
            if !has.contains(&true) {
                continue;
            }
            for name in ["x.img", "-x y", "it's $(touch bad); touch bad `touch bad`", "x;touch bad"]
            {
                run(&format!("echo content | {compress} -c > packed; rm -f made"));
                let path = folder.path().join(name);
                fs::rename(folder.path().join("packed"), &path).unwrap();
                let file = File::open(&path).unwrap();
                let found = container(&file, file.metadata().unwrap().len()).unwrap().unwrap();
                run(&command(found.convert, Path::new(name), Path::new("made")));
                assert_eq!(fs::read(folder.path().join("made")).unwrap(), b"content\n", "{name}");
                assert!(!folder.path().join("bad").exists(), "{name}");
            }
        }
        assert_eq!(command("lz4 FILE TO", Path::new("TO"), Path::new("FILE")), "lz4 TO FILE");
    }

    #[test]
    fn each_format_is_known_by_its_mark_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let of = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            container(&File::open(&path).unwrap(), bytes.len() as u64).unwrap()
        };
        for ((at, mark), known) in KNOWN {
            let mut bytes = vec![b'x'; 2000];
            let start = usize::try_from(*at).unwrap_or_else(|_| 2000 - at.unsigned_abs() as usize);
            bytes[start..start + mark.len()].copy_from_slice(mark);
            assert_eq!(of(&bytes).unwrap().name, known.name);
            bytes[start] ^= 1;
            assert_eq!(of(&bytes), None, "{}", known.name);
        }
        assert_eq!(of(b"BZh91AY&SY  ").unwrap().name, "compressed by bzip2");
        for plain in [&b""[..], b"PK", b"BZhello, bees", &[0; 700], &[0xff; 700]] {
            assert_eq!(of(plain), None);
        }
    }
}
