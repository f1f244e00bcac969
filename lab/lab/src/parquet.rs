//! Tables of results as Parquet files.
//!
//! Parquet's own column writers are used and not Arrow's record batches: the three types of a table are three of Parquet's, and Arrow
//! would make the build of `parquet` four times as long.

use std::borrow::Borrow;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use ::parquet::basic::{Compression, ConvertedType, LogicalType, Repetition, Type as Physical};
use ::parquet::column::writer::ColumnWriterImpl;
use ::parquet::data_type::{ByteArrayType, DataType, DoubleType, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::types::{Type, TypePtr};

use crate::error::OutputError;
use crate::output::Staged;
use crate::results::PointResult;
use crate::results::columns::Column;
use crate::tables::{Sink, Table, Values, collected, signed};

/// The largest number of rows of a row group, which readers load as a whole: the default of Arrow's writers.
const ROWS_OF_GROUP: usize = 1 << 20;

impl Table {
    /// Writes the table as a Parquet file. Counts are INT64, numbers DOUBLE and texts STRING, as in the frames of the Python package; every column
    /// may have nulls, which stand for missing values.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_parquet<W: Write + Send>(&self, to: W) -> Result<(), ParquetError> {
        // Readers look for `NAME version X.Y.Z`: statistics of columns by an unknown writer are ignored.
        let writer = format!("rackweave version {}", env!("CARGO_PKG_VERSION"));
        let properties =
            WriterProperties::builder().set_created_by(writer).set_compression(Compression::SNAPPY);
        let properties = Arc::new(properties.build());
        let mut file = SerializedFileWriter::new(to, self.schema()?, properties)?;
        for first in (0..self.rows()).step_by(ROWS_OF_GROUP) {
            let rows = first..self.rows().min(first + ROWS_OF_GROUP);
            let mut group = file.next_row_group()?;
            for column in &self.columns {
                let Some(mut writer) = group.next_column()? else { break };
                match &column.values {
                    Values::Counts(values) => {
                        put(writer.typed::<Int64Type>(), values, &rows, |n| signed(*n))?;
                    }
                    Values::Reals(values) => {
                        put(writer.typed::<DoubleType>(), values, &rows, |x| *x)?;
                    }
                    Values::Texts(values) => {
                        put(writer.typed::<ByteArrayType>(), values, &rows, |text| {
                            text.as_str().into()
                        })?;
                    }
                }
                writer.close()?;
            }
            group.close()?;
        }
        file.close()?;
        Ok(())
    }

    fn schema(&self) -> Result<TypePtr, ParquetError> {
        let field = |name: &str, values: &Values| {
            let (physical, text) = match values {
                Values::Counts(_) => (Physical::INT64, false),
                Values::Reals(_) => (Physical::DOUBLE, false),
                Values::Texts(_) => (Physical::BYTE_ARRAY, true),
            };
            let field = Type::primitive_type_builder(name, physical)
                .with_repetition(Repetition::OPTIONAL)
                .with_logical_type(text.then_some(LogicalType::String))
                .with_converted_type(if text { ConvertedType::UTF8 } else { ConvertedType::NONE });
            field.build().map(Arc::new)
        };
        let fields = self.columns.iter().map(|column| field(&column.name, &column.values));
        let fields = fields.collect::<Result<_, _>>()?;
        Ok(Arc::new(Type::group_type_builder(&self.name).with_fields(fields).build()?))
    }
}

/// Writes these rows of a column: the values that are there, and for each row whether it has one.
fn put<T: DataType, V>(
    writer: &mut ColumnWriterImpl<'_, T>,
    values: &[Option<V>],
    rows: &Range<usize>,
    value: impl Fn(&V) -> T::T,
) -> Result<(), ParquetError> {
    let values = &values[rows.clone()];
    let is_there: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let present: Vec<T::T> = values.iter().flatten().map(value).collect();
    writer.write_batch(&present, Some(&is_there), None)?;
    Ok(())
}

/// Writes the tables as Parquet files, one after the other, so that memory holds one table at a time.
pub(crate) struct ParquetFiles<'s, 'f>(pub(crate) &'s mut Staged<'f>);

impl Sink for ParquetFiles<'_, '_> {
    type Error = OutputError;

    fn table<'a, T: 'static, R: IntoIterator<Item: Borrow<T>>>(
        &mut self,
        name: &'static str,
        wanted: bool,
        points: &'a [PointResult],
        columns: &'static [Column<T>],
        rows: impl Fn(&'a PointResult) -> R,
    ) -> Result<(), OutputError> {
        if !wanted {
            return Ok(());
        }
        let (path, mut file) = self.0.file(&format!("{name}.parquet"))?;
        let table = collected(name, points, columns, rows);
        let written = table.write_parquet(&mut file).map_err(std::io::Error::other);
        written.and_then(|()| file.flush()).map_err(|error| OutputError::file(&path, error))
    }
}
