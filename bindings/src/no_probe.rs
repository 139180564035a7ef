//! What stands in the place of the probe where it is left out, on macOS for example.
//!
//! Modules import its names even if they never call them. So each name exists, and raises an error when it is called.

use pyo3::exceptions::{PyAttributeError, PyOSError};
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};

const NAMES: [&str; 10] = [
    "check_tracing",
    "drop_page_cache",
    "page_cache",
    "peek_relations",
    "PoolReader",
    "postmaster_start_time",
    "ReadTimer",
    "timed_reads",
    "trace_event_cost_seconds",
    "Tracer",
];
/// ENOSYS of macOS.
const NOT_IMPLEMENTED: i32 = 78;

/// Return what refuses, for a name of the probe; Python asks here for what the module does not have (PEP 562).
#[pyfunction]
pub fn __getattr__<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyCFunction>> {
    if !NAMES.contains(&name) {
        return Err(PyAttributeError::new_err(format!(
            "pgsweep._native has no {name}"
        )));
    }
    let refuse = |_: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| -> PyResult<()> {
        Err(PyOSError::new_err((
            NOT_IMPLEMENTED,
            "this build of pgsweep cannot look at processes and the page cache: that takes Linux",
        )))
    };
    PyCFunction::new_closure(py, None, None, refuse)
}
