//! The page cache for Python: numpy arrays in and out, the GIL released meanwhile.

use numpy::ndarray::Array1;
use numpy::{IntoPyArray, PyReadonlyArray1};
use pgsweep_core::files::{access_files as core_access_files, FileRequest, PageCache};
use pgsweep_core::page_cache::Policy;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::{copied, maybe_copied};

/// Return the policy of a name.
pub fn policy_of(name: &str) -> PyResult<Policy> {
    match name {
        "two-lists" => Ok(Policy::TwoLists),
        "fifo" => Ok(Policy::Fifo),
        "clock" => Ok(Policy::Clock),
        _ => Err(PyValueError::new_err(format!(
            "no policy is called `{name}`: two-lists, fifo and clock are"
        ))),
    }
}

/// Take blocks of files through a page cache.
#[pyfunction]
#[pyo3(signature = (
    blocks, files, *, capacity_pages, readahead_pages, operations=None, streams=None,
    pages_per_block=2, folio_order=0, policy="two-lists", gathered=None, resident=None,
    refaulted_from=0
))]
pub fn access_files<'py>(
    py: Python<'py>,
    blocks: PyReadonlyArray1<'py, u32>,
    files: PyReadonlyArray1<'py, u32>,
    capacity_pages: u32,
    readahead_pages: u32,
    operations: Option<PyReadonlyArray1<'py, u8>>,
    streams: Option<PyReadonlyArray1<'py, u32>>,
    pages_per_block: u32,
    folio_order: u8,
    policy: &str,
    gathered: Option<PyReadonlyArray1<'py, u64>>,
    resident: Option<PyReadonlyArray1<'py, u32>>,
    refaulted_from: u64,
) -> PyResult<Bound<'py, PyDict>> {
    let blocks = copied(&blocks)?;
    let files = copied(&files)?;
    let operations = maybe_copied(operations.as_ref())?;
    let streams = maybe_copied(streams.as_ref())?;
    let gathered = maybe_copied(gathered.as_ref())?;
    let resident = maybe_copied(resident.as_ref())?.unwrap_or_default();
    let request = FileRequest {
        blocks: &blocks,
        operations: operations.as_deref(),
        streams: streams.as_deref(),
        files: &files,
        cache: PageCache {
            pages_per_block,
            capacity_pages,
            readahead_pages,
            folio_order,
            policy: policy_of(policy)?,
            pages_each: 1.0,
        },
        gathered: gathered.as_deref(),
        resident: &resident,
        refaulted_from,
    };
    let seen = py
        .detach(|| core_access_files(&request))
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    let result = PyDict::new(py);
    result.set_item(
        "missing_pages",
        Array1::from(seen.missing_pages).into_pyarray(py),
    )?;
    result.set_item("disk_pages", Array1::from(seen.disk_pages).into_pyarray(py))?;
    result.set_item(
        "cached_pages",
        Array1::from(seen.cached_pages).into_pyarray(py),
    )?;
    result.set_item("refaulted_pages", seen.refaulted_pages)?;
    result.set_item("active_pages", seen.active_pages)?;
    Ok(result)
}
