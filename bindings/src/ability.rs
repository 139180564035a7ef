//! What could be done with a server, for Python, without doing it.

use pgsweep_probe::ability;
use pgsweep_probe::server::Server;
use pyo3::prelude::*;

use crate::tracer::to_python;

/// Find out, without putting a probe anywhere, whether this kernel and this server could be traced.
#[pyfunction]
#[pyo3(signature = (postmaster_pid = None))]
pub fn check_tracing(py: Python<'_>, postmaster_pid: Option<u32>) -> PyResult<()> {
    py.detach(|| {
        ability::kernel_allows_tracing()?;
        match postmaster_pid {
            Some(pid) => ability::server_can_be_traced(&Server::open(pid)?),
            None => Ok(()),
        }
    })
    .map_err(to_python)
}

/// Return the number of buffers from the server's memory, if descriptors have the layout known here.
#[pyfunction]
pub fn pool_buffers(py: Python<'_>, postmaster_pid: u32, version_num: u32) -> PyResult<u32> {
    py.detach(|| ability::pool_buffers(&Server::open(postmaster_pid)?, version_num))
        .map_err(to_python)
}
