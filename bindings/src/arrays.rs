//! Python's arrays, copied before the GIL is released.
//!
//! After that, another Python thread may write into an array, or resize it, while it is read here: a data race that the
//! types do not prevent, and numbers may change after they were checked. A copy takes 0.1 ns a byte and is ours alone.

use numpy::ndarray::Dimension;
use numpy::{Element, PyReadonlyArray, PyReadonlyArray1};
use pyo3::PyResult;

/// Return what an array holds, row by row.
pub fn copied<T: Element + Copy, D: Dimension>(
    array: &PyReadonlyArray<'_, T, D>,
) -> PyResult<Vec<T>> {
    Ok(array.as_slice()?.to_vec())
}

/// Return what an array holds, if there is one.
pub fn maybe_copied<T: Element + Copy>(
    array: Option<&PyReadonlyArray1<'_, T>>,
) -> PyResult<Option<Vec<T>>> {
    array.map(copied).transpose()
}
