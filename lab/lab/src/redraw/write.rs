//! The files of a report on finished results.

use std::path::Path;

use super::{RedrawError, Redrawn};
use crate::error::OutputError;
use crate::output::{OutputDir, Staged, is_linked};
use crate::results::PointResult;
use crate::tables::{self, Lead};

impl Redrawn {
    /// Writes the report. Of one result, it replaces the page and the pictures, and leaves all else as it is; in
    /// another directory it is written next to copies of the files. Of several, it is written with the summary and the
    /// tables of all.
    ///
    /// # Errors
    /// If a file cannot be read or written, or the directory is that of one of several results.
    pub fn write(&self, out: &OutputDir) -> Result<(), RedrawError> {
        let real = |path: &Path| path.canonicalize().ok();
        let is_out = |folder: &Path| real(folder) == real(out.path());
        if let [only] = &self.sources[..] {
            if !is_out(&only.folder) {
                only.saved.copy_to(out)?;
            }
            let names = only.saved.names()?.into_iter();
            let files = names.filter(|name| is_linked(name)).collect();
            let mut staged = Staged::new(out.path());
            self.draw(&mut staged, files)?;
            staged.finish()?;
            return Ok(());
        }
        if let Some(source) = self.sources.iter().find(|source| is_out(&source.folder)) {
            return Err(RedrawError::Among(source.folder.clone()));
        }
        let mut staged = Staged::new(out.path());
        staged.add("summary.json", self.results.to_json().as_bytes())?;
        for name in tables::names() {
            self.table(name, &mut staged)?;
        }
        tables::write_over_seeds(&self.results.points, &mut staged)?;
        let files = staged.names().map(str::to_owned).collect();
        self.captures(&mut staged)?;
        self.draw(&mut staged, files)?;
        let written = staged.finish()?;
        out.remove_optional(&written);
        Ok(())
    }

    /// Copies the captures of all results, under the indices that their points have among all.
    fn captures(&self, staged: &mut Staged<'_>) -> Result<(), RedrawError> {
        for source in &self.sources {
            for (nth, own) in source.indices.iter().enumerate() {
                let from = format!("capture-{own}.pcapng");
                if source.folder.join(&from).exists() {
                    let to = format!("capture-{}.pcapng", source.first + nth);
                    source.saved.copy_file(&from, staged, &to)?;
                }
            }
        }
        Ok(())
    }

    fn draw(&self, staged: &mut Staged<'_>, files: Vec<String>) -> Result<(), OutputError> {
        let mut files = files;
        for name in self.results.pictures(staged)? {
            if !files.iter().any(|file| file == name) {
                files.push(name.to_owned());
            }
        }
        files.sort_unstable();
        staged.add("report.html", self.html(files).as_bytes())
    }

    /// Writes a table of all results: their rows as they are, after columns that identify the points among all.
    fn table(&self, name: &str, staged: &mut Staged<'_>) -> Result<(), RedrawError> {
        let file = format!("{name}.csv");
        let is_there = |folder: &Path| folder.join(&file).exists();
        if !self.sources.iter().any(|source| is_there(&source.folder)) {
            return Ok(());
        }
        let lead = Lead::of(&self.results.points);
        let columns = tables::columns_of(name);
        let (path, out) = staged.file(&file)?;
        let mut writer = csv::Writer::from_writer(out);
        let cannot = |error: csv::Error| OutputError::file(&path, std::io::Error::other(error));
        let head = lead.names().chain(columns.iter().copied());
        writer.write_record(head).map_err(cannot)?;
        for source in self.sources.iter().filter(|source| is_there(&source.folder)) {
            let from = source.folder.join(&file);
            let unreadable = |error: csv::Error| OutputError::Read {
                path: from.clone(),
                source: std::io::Error::other(error),
            };
            let mut reader = csv::Reader::from_path(&from).map_err(unreadable)?;
            let names = reader.headers().map_err(unreadable)?.clone();
            let place = |column: &str| names.iter().position(|name| name == column);
            let point_at = place("point").ok_or_else(|| RedrawError::Column {
                path: from.clone(),
                column: "point".to_owned(),
            })?;
            let places: Vec<Option<usize>> = columns.iter().map(|column| place(column)).collect();
            for record in reader.records() {
                let record = record.map_err(unreadable)?;
                let index = record.get(point_at).and_then(|cell| cell.parse::<u64>().ok());
                let nth = source.indices.iter().position(|own| Some(*own) == index);
                let point = nth.and_then(|nth| self.results.points.get(source.first + nth));
                let Some(point): Option<&PointResult> = point else { continue };
                let values = lead.values(point);
                let cells = places.iter().map(|at| at.and_then(|at| record.get(at)).unwrap_or(""));
                let row = values.iter().map(String::as_str).chain(cells);
                writer.write_record(row).map_err(cannot)?;
            }
        }
        writer.flush().map_err(|error| OutputError::file(&path, error))?;
        Ok(())
    }
}
