//! Record boundaries for Python.

use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::{IntoPyArray, PyArray1};
use pgsweep_core::split::{Rule, Splitter};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Finds where records end in the text formats of COPY, by the server's own rules.
#[pyclass(frozen, module = "pgsweep._native")]
pub struct RecordSplitter(Mutex<Splitter>);

impl RecordSplitter {
    fn locked(&self) -> MutexGuard<'_, Splitter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl RecordSplitter {
    #[new]
    #[pyo3(signature = (rule, *, quote=b'"', escape=b'"', terminator=b'\n'))]
    fn new(rule: &str, quote: u8, escape: u8, terminator: u8) -> PyResult<Self> {
        let rule = match rule {
            "csv" => Rule::Csv { quote, escape },
            "text" => Rule::Text,
            "lines" => Rule::Lines,
            _ => return Err(PyValueError::new_err("rule is csv, text or lines")),
        };
        Ok(Self(Mutex::new(Splitter::new(rule, terminator))))
    }

    /// Return the end of the last record that ends in the block, -1 for none, and the records and lines up to there.
    fn feed(&self, py: Python<'_>, block: &[u8]) -> (i64, u64, u64) {
        let scan = py.detach(|| self.locked().feed(block));
        (
            scan.end.map_or(-1, |end| end as i64),
            scan.records,
            scan.lines,
        )
    }

    /// Return where each record that ends in the block ends.
    fn ends<'py>(&self, py: Python<'py>, block: &[u8]) -> Bound<'py, PyArray1<u64>> {
        let ends: Vec<u64> = py.detach(|| {
            let found = self.locked().ends(block);
            found.into_iter().map(|end| end as u64).collect()
        });
        ends.into_pyarray(py)
    }

    /// Whether the bytes so far end within quotes or after an escape.
    #[getter]
    fn is_open(&self) -> bool {
        self.locked().is_open()
    }
}
