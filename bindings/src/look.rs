//! The operating system's page cache, and the disk below it, for Python.

use std::path::PathBuf;
use std::time::Duration;

use numpy::{IntoPyArray, PyArray1};
use pgsweep_probe::depth::{self, Block};
use pgsweep_probe::residency::{self, Method, Request, Residency};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Return how much of each file lies in the page cache.
#[pyfunction]
#[pyo3(signature = (paths, *, maps=false, block_bytes=8192, threads=None, method=None))]
pub fn page_cache<'py>(
    py: Python<'py>,
    paths: Vec<PathBuf>,
    maps: bool,
    block_bytes: u64,
    threads: Option<usize>,
    method: Option<&str>,
) -> PyResult<Bound<'py, PyDict>> {
    if !block_bytes.is_power_of_two() || !(1024..=65536).contains(&block_bytes) {
        return Err(PyValueError::new_err(
            "block_bytes is a power of two from 1024 to 65536",
        ));
    }
    let request = Request {
        block_bytes: maps.then_some(block_bytes),
        method: method.map(method_named).transpose()?,
        threads,
    };
    let files = py.detach(|| residency::page_cache(&paths, request));
    let column = |value: fn(&Residency) -> i64| -> Vec<i64> { files.iter().map(value).collect() };
    let all = PyDict::new(py);
    all.set_item("size_bytes", column(|f| f.size_bytes).into_pyarray(py))?;
    all.set_item("cached_bytes", column(|f| f.cached_bytes).into_pyarray(py))?;
    all.set_item("dirty_bytes", column(|f| f.dirty_bytes).into_pyarray(py))?;
    all.set_item(
        "writeback_bytes",
        column(|f| f.writeback_bytes).into_pyarray(py),
    )?;
    all.set_item(
        "evicted_bytes",
        column(|f| f.evicted_bytes).into_pyarray(py),
    )?;
    let errors: Vec<i32> = files.iter().map(|f| f.error).collect();
    all.set_item("error", errors.into_pyarray(py))?;
    if maps {
        let mut first_block = vec![0_i64];
        let mut cached_pages = Vec::new();
        for file in &files {
            cached_pages.extend_from_slice(&file.cached_pages);
            first_block.push(cached_pages.len() as i64);
        }
        all.set_item("first_block", first_block.into_pyarray(py))?;
        all.set_item("cached_pages", cached_pages.into_pyarray(py))?;
    }
    all.set_item(
        "method",
        match request.effective_method() {
            Method::Cachestat => "cachestat",
            Method::Mincore => "mincore",
        },
    )?;
    Ok(all)
}

fn method_named(name: &str) -> PyResult<Method> {
    match name {
        "cachestat" => Ok(Method::Cachestat),
        "mincore" => Ok(Method::Mincore),
        _ => Err(PyValueError::new_err("method is cachestat or mincore")),
    }
}

/// Ask the kernel to forget the pages of these files that are written; return each file's errno.
#[pyfunction]
pub fn drop_page_cache(py: Python<'_>, paths: Vec<PathBuf>) -> Bound<'_, PyArray1<i32>> {
    py.detach(|| residency::drop_page_cache(&paths))
        .into_pyarray(py)
}

/// Read blocks of files past the page cache, `depth` of them at once; return how long each took, by their beginning.
#[pyfunction]
#[pyo3(signature = (paths, files, offsets, *, block_bytes, depth, seconds))]
pub fn timed_reads(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    files: Vec<usize>,
    offsets: Vec<u64>,
    block_bytes: usize,
    depth: usize,
    seconds: f64,
) -> PyResult<Bound<'_, PyArray1<f64>>> {
    let limit = Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err("seconds is not a time"))?;
    let blocks: Vec<Block> = files
        .into_iter()
        .zip(offsets)
        .map(|(file, offset)| Block { file, offset })
        .collect();
    let reads = py.detach(|| depth::timed_reads(&paths, &blocks, block_bytes, depth, limit))?;
    let took: Vec<f64> = reads.iter().map(|r| r.took_ns as f64 / 1e9).collect();
    Ok(took.into_pyarray(py))
}
