//! Tables of results as Arrow record batches.

use std::ffi::CStr;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::ffi::FFI_ArrowSchema;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{
    Array as _, ArrayRef, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray,
};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use pyo3::exceptions::{PyImportError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList};
use rackweave_lab::tables::{Values, signed};

/// The names of capsules in Arrow's PyCapsule interface.
const SCHEMA: &CStr = c"arrow_schema";
const STREAM: &CStr = c"arrow_array_stream";

/// A table of results, whose columns other libraries read without a copy.
#[pyclass(frozen, module = "rackweave._native")]
pub(crate) struct Table {
    name: String,
    batch: RecordBatch,
}

impl Table {
    pub(crate) fn new(table: rackweave_lab::tables::Table) -> PyResult<Self> {
        let (mut fields, mut arrays) = (Vec::new(), Vec::new());
        for column in table.columns {
            let array = array(column.values);
            fields.push(Field::new(column.name, array.data_type().clone(), true));
            arrays.push(array);
        }
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays);
        Ok(Self { name: table.name, batch: batch.map_err(failed)? })
    }
}

fn failed(error: ArrowError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

fn array(values: Values) -> ArrayRef {
    match values {
        Values::Counts(values) => {
            let counts = values.into_iter().map(|count| count.map(signed));
            Arc::new(counts.collect::<Int64Array>())
        }
        Values::Reals(values) => Arc::new(Float64Array::from(values)),
        Values::Texts(values) => Arc::new(values.into_iter().collect::<StringArray>()),
    }
}

#[pymethods]
impl Table {
    /// The name of its CSV file, without `.csv`.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The headings of its columns, with units.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.batch.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    /// The numbers of rows and columns.
    #[getter]
    fn shape(&self) -> (usize, usize) {
        (self.batch.num_rows(), self.batch.num_columns())
    }

    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    fn __repr__(&self) -> String {
        let (rows, columns) = self.shape();
        format!("<rackweave.Table {}: {rows} rows, {columns} columns>", self.name)
    }

    /// Its schema, for Arrow's PyCapsule interface.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(&*self.batch.schema()).map_err(failed)?;
        PyCapsule::new_with_value(py, schema, SCHEMA)
    }

    /// Its rows, for Arrow's PyCapsule interface. The schema is always the table's own, which the interface permits.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let batches = std::iter::once(Ok(self.batch.clone()));
        let reader = RecordBatchIterator::new(batches, self.batch.schema());
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), STREAM)
    }

    /// The columns as lists by heading; `None` where a value is missing.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let columns = PyDict::new(py);
        for (field, array) in self.batch.schema().fields().iter().zip(self.batch.columns()) {
            let list = match array.data_type() {
                DataType::Int64 => PyList::new(py, array.as_primitive::<Int64Type>())?,
                DataType::Float64 => PyList::new(py, array.as_primitive::<Float64Type>())?,
                _ => PyList::new(py, array.as_string::<i32>().iter().collect::<Vec<_>>())?,
            };
            columns.set_item(field.name(), list)?;
        }
        Ok(columns)
    }

    /// The table as a polars frame.
    fn to_polars<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("polars")?.getattr("DataFrame")?.call1((slf,))
    }

    /// The table as a pandas frame, through pyarrow if it is installed.
    fn to_pandas<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let pandas = py.import("pandas")?;
        match py.import("pyarrow") {
            Ok(pyarrow) => {
                let options = PyDict::new(py);
                // Otherwise columns of one type are copied into one block.
                options.set_item("split_blocks", true)?;
                pyarrow.call_method1("table", (slf,))?.call_method("to_pandas", (), Some(&options))
            }
            Err(error) if error.is_instance_of::<PyImportError>(py) => {
                pandas.getattr("DataFrame")?.call1((slf.get().to_dict(py)?,))
            }
            Err(error) => Err(error),
        }
    }
}
