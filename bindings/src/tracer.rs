//! Probes on a running server, for Python.

use std::time::Duration;

use numpy::IntoPyArray;
use pgsweep_probe::ability::{self, event_cost_ns};
use pgsweep_probe::bpf::Attachment;
use pgsweep_probe::decode::Decoded;
use pgsweep_probe::error::ProbeError;
use pgsweep_probe::probes::Options;
use pgsweep_probe::server::Server;
use pgsweep_probe::tracer::Tracer as Inner;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Map an error of the probes: `RuntimeError(what, hint)` for a missing ability, `OSError(errno, what)` otherwise.
pub fn to_python(error: ProbeError) -> PyErr {
    match error {
        ProbeError::Missing { what, hint } => PyRuntimeError::new_err((what, hint)),
        ProbeError::System { ref source, .. } => match source.raw_os_error() {
            Some(number) => PyOSError::new_err((number, error.to_string())),
            None => PyOSError::new_err(error.to_string()),
        },
    }
}

/// Open a server; where the start time is given, the one that started then.
pub fn open(postmaster_pid: u32, start_time: Option<i64>) -> Result<Server, ProbeError> {
    let server = Server::open(postmaster_pid)?;
    start_time.map_or(Ok(()), |at| server.require_start_time(at))?;
    Ok(server)
}

macro_rules! columns {
    ($py:expr, $table:expr, $($field:ident),+) => {{
        let table = PyDict::new($py);
        $(table.set_item(stringify!($field), $table.$field.into_pyarray($py))?;)+
        table
    }};
}
pub(crate) use columns;

fn tables(py: Python<'_>, batch: Decoded) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    let (a, s, d) = (batch.accesses, batch.scans, batch.drops);
    all.set_item(
        "accesses",
        columns!(py, a, time_ns, pid, spc, db, rel, fork, block, kind, strategy, flags, scan),
    )?;
    all.set_item(
        "scans",
        columns!(
            py,
            s,
            scan,
            pid,
            begin_ns,
            end_ns,
            spc,
            db,
            rel,
            strategy,
            allow_strategy,
            parallel
        ),
    )?;
    all.set_item(
        "drops",
        columns!(py, d, time_ns, row, pid, spc, db, rel, fork, first_block),
    )?;
    Ok(all)
}

/// Probes on a running server: they record every page access until `stop`, and die with the process.
///
/// Frozen: threads may poll and stop at the same time.
#[pyclass(frozen, module = "pgsweep._native")]
pub struct Tracer {
    inner: Inner,
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // Taking probes away and reading the rest takes a while, in which other threads of Python go on. When the
        // interpreter is ending there is nothing to let go of; `Inner` stops by itself then.
        Python::try_attach(|py| py.detach(|| self.inner.stop()));
    }
}

#[pymethods]
impl Tracer {
    /// Put the probes on the server whose postmaster has this process id.
    #[new]
    #[pyo3(signature = (
        postmaster_pid, version_num, *, databases, ring_bytes, attachment, start_time=None,
        buffer_states=true
    ))]
    fn new(
        py: Python<'_>,
        postmaster_pid: u32,
        version_num: u32,
        databases: Vec<u32>,
        ring_bytes: u32,
        attachment: &str,
        start_time: Option<i64>,
        buffer_states: bool,
    ) -> PyResult<Self> {
        let attachment = attachment_named(attachment)?;
        if !ring_bytes.is_power_of_two() || ring_bytes < 4096 {
            return Err(PyValueError::new_err(
                "ring_bytes is a power of two of at least 4096",
            ));
        }
        let options = Options {
            version_num,
            databases,
            ring_bytes,
            attachment,
            buffer_states,
        };
        py.detach(|| {
            let server = open(postmaster_pid, start_time)?;
            Inner::start(&server, &options)
        })
        .map(|inner| Self { inner })
        .map_err(to_python)
    }

    /// Wait at most this long for a batch of decoded tables; None when there is none.
    fn poll<'py>(
        &self,
        py: Python<'py>,
        timeout_seconds: f64,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let timeout = Duration::try_from_secs_f64(timeout_seconds)
            .map_err(|e| PyValueError::new_err(e.to_string()))?;
        py.detach(|| self.inner.poll(timeout))
            .map_err(to_python)?
            .map(|batch| tables(py, batch))
            .transpose()
    }

    /// Take the probes away; `poll` then gives what is left.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.inner.stop());
    }

    /// Return the events that the kernel could not write because its ring buffer was full.
    fn lost(&self) -> PyResult<u64> {
        self.inner.lost().map_err(to_python)
    }

    /// Return the events that were not read because reading ended early, which `poll` raises an error for.
    fn unread(&self) -> u64 {
        self.inner.unread()
    }

    /// Return the counts so far: events, hits, misses, extends, undecided.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.inner.counts();
        let all = PyDict::new(py);
        all.set_item("events", counts.events)?;
        all.set_item("hits", counts.hits)?;
        all.set_item("misses", counts.misses)?;
        all.set_item("extends", counts.extends)?;
        all.set_item("undecided", counts.undecided)?;
        Ok(all)
    }

    /// Return the processor time that reading has taken, in seconds.
    fn reader_processor_seconds(&self) -> f64 {
        self.inner.reader_processor_ns() as f64 / 1e9
    }

    /// Return the monotonic clock's time, in nanoseconds, that the times of rows are relative to.
    fn start_ns(&self) -> u64 {
        self.inner.start_ns()
    }

    /// Return how the programs are attached: link or perf_event.
    fn attachment(&self) -> &'static str {
        match self.inner.probes().attachment() {
            Attachment::Link => "link",
            Attachment::PerfEvent => "perf_event",
        }
    }

    /// Return what is probed: kind, function, offset of the instruction in it in bytes, whether it is emulated.
    fn probes(&self) -> Vec<(String, String, u64, bool)> {
        self.inner
            .probes()
            .infos()
            .iter()
            .map(|p| {
                (
                    format!("{:?}", p.kind),
                    p.function.clone(),
                    p.offset_bytes,
                    p.emulated,
                )
            })
            .collect()
    }
}

pub fn attachment_named(name: &str) -> PyResult<Option<Attachment>> {
    match name {
        "auto" => Ok(None),
        "link" => Ok(Some(Attachment::Link)),
        "perf_event" => Ok(Some(Attachment::PerfEvent)),
        _ => Err(PyValueError::new_err(
            "attachment is auto, link or perf_event",
        )),
    }
}

/// Measure what one event costs a probed process on this machine, in seconds.
#[pyfunction]
pub fn trace_event_cost_seconds(py: Python<'_>, attachment: &str) -> PyResult<f64> {
    let attachment = attachment_named(attachment)?.unwrap_or(Attachment::Link);
    py.detach(|| event_cost_ns(attachment))
        .map(|ns| ns / 1e9)
        .map_err(to_python)
}

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
