//! Probes on a running server, for Python.

use std::time::Duration;

use numpy::IntoPyArray;
use pgsweep_probe::bpf::Attachment;
use pgsweep_probe::calibrate::event_cost_ns;
use pgsweep_probe::decode::Decoded;
use pgsweep_probe::error::ProbeError;
use pgsweep_probe::pool::read;
use pgsweep_probe::server::Server;
use pgsweep_probe::tracer::{Options, Tracer as Inner};
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

macro_rules! columns {
    ($py:expr, $table:expr, $($field:ident),+) => {{
        let table = PyDict::new($py);
        $(table.set_item(stringify!($field), $table.$field.into_pyarray($py))?;)+
        table
    }};
}

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
#[pyclass(module = "pgsweep._native")]
pub struct Tracer {
    inner: Inner,
}

#[pymethods]
impl Tracer {
    /// Put the probes on the server whose postmaster has this process id.
    #[new]
    #[pyo3(signature = (postmaster_pid, version_num, *, databases, ring_bytes, attachment))]
    fn new(
        py: Python<'_>,
        postmaster_pid: u32,
        version_num: u32,
        databases: Vec<u32>,
        ring_bytes: u32,
        attachment: &str,
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
        };
        py.detach(|| {
            let server = Server::open(postmaster_pid)?;
            Inner::start(&server, &options)
        })
        .map(|inner| Self { inner })
        .map_err(to_python)
    }

    /// Wait at most so long for a batch of decoded tables; None when there is none.
    fn poll<'py>(
        &self,
        py: Python<'py>,
        timeout_seconds: f64,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let timeout = Duration::try_from_secs_f64(timeout_seconds)
            .map_err(|e| PyValueError::new_err(e.to_string()))?;
        py.detach(|| self.inner.poll(timeout))
            .map(|batch| tables(py, batch))
            .transpose()
    }

    /// Take the probes away; `poll` then gives what is left.
    fn stop(&mut self, py: Python<'_>) {
        py.detach(|| self.inner.stop());
    }

    /// Return the events that the kernel could not write because its ring buffer was full.
    fn lost(&self) -> PyResult<u64> {
        self.inner.lost().map_err(to_python)
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

fn attachment_named(name: &str) -> PyResult<Option<Attachment>> {
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

/// Return when the postmaster with this process id started, in microseconds since 2000-01-01, from its memory.
#[pyfunction]
pub fn postmaster_start_time(py: Python<'_>, postmaster_pid: u32) -> PyResult<i64> {
    py.detach(|| Server::open(postmaster_pid)?.identity())
        .map(|(_, value)| value as i64)
        .map_err(to_python)
}

/// Read what lies in the buffers of a server from its memory.
#[pyfunction]
pub fn read_pool(
    py: Python<'_>,
    postmaster_pid: u32,
    version_num: u32,
) -> PyResult<Bound<'_, PyDict>> {
    PoolReader::new(py, postmaster_pid, version_num)?.read(py)
}

/// [`read_pool`] again and again: the server's executable is looked at once, which takes far longer than a reading.
#[pyclass(frozen)]
pub struct PoolReader {
    server: Server,
    version_num: u32,
}

#[pymethods]
impl PoolReader {
    #[new]
    fn new(py: Python<'_>, postmaster_pid: u32, version_num: u32) -> PyResult<Self> {
        let server = py
            .detach(|| Server::open(postmaster_pid))
            .map_err(to_python)?;
        Ok(Self {
            server,
            version_num,
        })
    }

    /// Read what lies in the buffers now.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let pool = py
            .detach(|| read(&self.server, self.version_num))
            .map_err(to_python)?;
        let hand = pool.hand;
        let scalars = (pool.buffers, pool.begin_ns, pool.end_ns);
        let all = columns!(
            py,
            pool,
            frame,
            spc,
            db,
            rel,
            fork,
            block,
            usage_count,
            dirty,
            pinned
        );
        all.set_item("buffers", scalars.0)?;
        all.set_item("begin_ns", scalars.1)?;
        all.set_item("end_ns", scalars.2)?;
        all.set_item(
            "hand",
            hand.map(|h| (h.next_victim, h.complete_passes, h.first_free)),
        )?;
        Ok(all)
    }
}
