//! How long a server's reads take, for Python.

use numpy::IntoPyArray;
use pgsweep_probe::call_times::{bucket_ns, BUCKETS};
use pgsweep_probe::read_timer::ReadTimer as Inner;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::tracer::{attachment_named, open, to_python};

/// Times the reads of a running server while its probes are attached, which die with the process.
#[pyclass(frozen, module = "pgsweep._native")]
pub struct ReadTimer {
    inner: Inner,
}

#[pymethods]
impl ReadTimer {
    /// Find where the server whose postmaster has this process id waits for reads.
    #[new]
    #[pyo3(signature = (postmaster_pid, *, attachment="auto", start_time=None))]
    fn new(
        py: Python<'_>,
        postmaster_pid: u32,
        attachment: &str,
        start_time: Option<i64>,
    ) -> PyResult<Self> {
        let attachment = attachment_named(attachment)?;
        py.detach(|| Inner::new(open(postmaster_pid, start_time)?, attachment))
            .map(|inner| Self { inner })
            .map_err(to_python)
    }

    /// Return the function that is probed.
    #[getter]
    fn function(&self) -> &'static str {
        self.inner.function()
    }

    /// Return what timing a read adds to its time as counted, and what it costs the process, in seconds.
    #[getter]
    fn own_seconds(&self) -> (f64, f64) {
        let (counted, cost) = self.inner.own_ns();
        (counted / 1e9, cost / 1e9)
    }

    /// Attach the probes.
    fn attach(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.attach()).map_err(to_python)
    }

    /// Remove the probes; they can be attached again.
    fn detach(&self, py: Python<'_>) {
        py.detach(|| self.inner.detach());
    }

    /// Return what was timed so far: `reads` and their `nanoseconds`, by bucket; buckets go from `from_ns` to `below_ns`.
    fn histogram<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = self.inner.histogram().map_err(to_python)?;
        let (from_ns, below_ns): (Vec<u64>, Vec<u64>) = (0..BUCKETS).map(bucket_ns).unzip();
        let all = PyDict::new(py);
        all.set_item("from_ns", from_ns.into_pyarray(py))?;
        all.set_item("below_ns", below_ns.into_pyarray(py))?;
        all.set_item("reads", found.calls.to_vec().into_pyarray(py))?;
        all.set_item("nanoseconds", found.ns.to_vec().into_pyarray(py))?;
        Ok(all)
    }
}
