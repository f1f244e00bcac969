//! The copy of a GUID partition table, which belongs at the end of the disk (UEFI specification 2.10, section 5.3.2): that of an
//! image is in the middle of a larger device.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::Path;

use crate::ImageError;
use crate::free::{GuidHeader, GuidTable, OpenDisk};
use crate::target::device;

/// Where the copy of a device's partition table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GptCopy {
    /// There is no table, or its copy is at the end.
    InPlace,
    /// It is before the end.
    Early,
    /// It was before the end, and is there now.
    Moved,
}

/// Looks where the copy of a device's GUID partition table is, and with `fix` moves it to the end. Nothing is done to what is no
/// block device.
///
/// # Errors
/// If the device is in use, or the system refuses; or if the table is damaged, or a partition is where its copy belongs, in which
/// case nothing is written.
pub fn gpt_copy(path: &Path, fix: bool) -> Result<GptCopy, ImageError> {
    let wrong = ImageError::read(path);
    let found = path.metadata().map_err(&wrong)?;
    if !found.file_type().is_block_device() {
        return Ok(GptCopy::InPlace);
    }
    let file = match fix {
        true => device::open_exclusively(path, OpenOptions::new().read(true).write(true))?,
        false => File::open(path).map_err(&wrong)?,
    };
    let size = crate::source::size(&file).map_err(&wrong)?;
    let disk = OpenDisk(&file, size, None);
    let Some(header) = GuidHeader::primary(&disk) else { return Ok(GptCopy::InPlace) };
    let last = (size / header.sector).saturating_sub(1);
    if header.copy >= last {
        return Ok(GptCopy::InPlace);
    }
    if !fix {
        return Ok(GptCopy::Early);
    }
    let refused = |why| ImageError::PartitionTable { device: path.to_owned(), why };
    let moving = Moving::new(&disk, &header, last).map_err(refused)?;
    moving.write(&file).map_err(ImageError::write(path)).map(|()| GptCopy::Moved)
}

/// What is written to move the copy: bytes, and where.
struct Moving {
    /// The copy of the table, and its header.
    copy: [(u64, Vec<u8>); 2],
    /// The header that names the new place.
    header: (u64, Vec<u8>),
}

impl Moving {
    /// Determines what is written so that the copy's header is in the sector `last`.
    ///
    /// # Errors
    /// If the table is not one that may be copied, or its copy has no room, as half a sentence.
    fn new(disk: &OpenDisk<'_>, header: &GuidHeader, last: u64) -> Result<Self, String> {
        let unit = header.sector;
        let GuidTable { mut bytes, used } = header.table(disk)?;
        bytes.resize(bytes.len().next_multiple_of(unit as usize), 0);
        let sectors = bytes.len() as u64 / unit;
        let no_room =
            |what: &str| format!("{what} in the last {} sectors, where it belongs", sectors + 1);
        let free_from = (header.table + sectors).max(header.usable.start.saturating_add(1));
        let table = last.checked_sub(sectors).filter(|table| free_from <= *table);
        let table = table.ok_or_else(|| no_room("the partition table itself is"))?;
        if used.iter().any(|it| it.sectors.end > table) {
            return Err(no_room("a partition is"));
        }
        let [own, copy] = header.moved(last, table).map(|header| {
            let mut sector = header.to_vec();
            sector.resize(unit as usize, 0);
            sector
        });
        Ok(Self { copy: [(table * unit, bytes), (last * unit, copy)], header: (unit, own) })
    }

    /// Writes the copy, and then the header that names its new place: whoever is killed meanwhile leaves the old one.
    fn write(self, file: &File) -> io::Result<()> {
        for (at, bytes) in &self.copy {
            file.write_all_at(bytes, *at)?;
        }
        file.sync_all()?;
        let ((unit, header), [_, (end, _)]) = (self.header, self.copy);
        file.write_all_at(&header, unit)?;
        // The partition that protects the table has all sectors that its field can count.
        let mut boot = vec![0; header.len()];
        file.read_exact_at(&mut boot, 0)?;
        if boot[450] == 0xee {
            let sectors = u32::try_from(end / unit).unwrap_or(u32::MAX);
            boot[458..462].copy_from_slice(&sectors.to_le_bytes());
            file.write_all_at(&boot, 0)?;
        }
        file.sync_all()
    }
}
