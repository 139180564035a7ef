//! Object numbering and next accesses for Python.

use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pgsweep_core::objects;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::copied;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives each object (a 64-bit name) the next number when it first appears.
#[pyclass(frozen, module = "pgsweep._native")]
pub struct ObjectIds(Mutex<objects::ObjectIds>);

#[pymethods]
impl ObjectIds {
    #[new]
    fn new() -> Self {
        Self(Mutex::new(objects::ObjectIds::new()))
    }

    fn __len__(&self) -> usize {
        locked(&self.0).len()
    }

    /// Return the numbers of the next accesses' objects.
    fn ids<'py>(
        &self,
        py: Python<'py>,
        objects: PyReadonlyArray1<'py, u64>,
    ) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let names = copied(&objects)?;
        let ids = py
            .detach(|| locked(&self.0).ids(&names))
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(ids.into_pyarray(py))
    }
}

/// Finds the next access to the same object, going backwards through a trace in pieces.
#[pyclass(frozen, module = "pgsweep._native")]
pub struct NextAccesses(Mutex<objects::NextAccesses>);

#[pymethods]
impl NextAccesses {
    #[new]
    fn new(objects: usize) -> Self {
        Self(Mutex::new(objects::NextAccesses::new(objects)))
    }

    /// Return positions of next accesses, -1 for none, of the piece that begins at position `first`.
    fn piece<'py>(
        &self,
        py: Python<'py>,
        ids: PyReadonlyArray1<'py, u32>,
        first: u64,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let numbers = copied(&ids)?;
        let next = py
            .detach(|| locked(&self.0).piece(&numbers, first))
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(next.into_pyarray(py))
    }
}
