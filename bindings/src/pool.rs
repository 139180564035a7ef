//! A server's buffers, read from its memory, for Python.

use numpy::{IntoPyArray, PyArrayMethods};
use pgsweep_probe::hand::Reading;
use pgsweep_probe::peek::{relations, USAGE_COUNTS};
use pgsweep_probe::pool::{read, Sample};
use pgsweep_probe::server::Server;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::tracer::{columns, open, to_python};

/// Return when the postmaster with this process id started, in microseconds since 2000-01-01, from its memory.
#[pyfunction]
pub fn postmaster_start_time(py: Python<'_>, postmaster_pid: u32) -> PyResult<i64> {
    py.detach(|| Server::open(postmaster_pid)?.identity())
        .map(|(_, value)| value as i64)
        .map_err(to_python)
}

/// Count the buffers of a server by relation once.
#[pyfunction]
#[pyo3(signature = (postmaster_pid, version_num, *, threads=None))]
pub fn peek_relations(
    py: Python<'_>,
    postmaster_pid: u32,
    version_num: u32,
    threads: Option<usize>,
) -> PyResult<Bound<'_, PyDict>> {
    PoolReader::new(py, postmaster_pid, version_num, None)?.relations(py, threads)
}

/// Reads a server's buffers again and again: the server is opened and its executable looked at once, which takes longer than
/// a reading.
#[pyclass(frozen, module = "pgsweep._native")]
pub struct PoolReader {
    server: Server,
    version_num: u32,
}

#[pymethods]
impl PoolReader {
    #[new]
    #[pyo3(signature = (postmaster_pid, version_num, *, start_time=None))]
    fn new(
        py: Python<'_>,
        postmaster_pid: u32,
        version_num: u32,
        start_time: Option<i64>,
    ) -> PyResult<Self> {
        let server = py
            .detach(|| open(postmaster_pid, start_time))
            .map_err(to_python)?;
        Ok(Self {
            server,
            version_num,
        })
    }

    /// Read what lies in the buffers now, or in a sample of them.
    #[pyo3(signature = (*, modulus=1, offsets=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        modulus: usize,
        offsets: Option<Vec<usize>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let sample = offsets.map(|offsets| Sample::new(modulus, &offsets));
        let pool = py
            .detach(|| read(&self.server, self.version_num, sample.as_ref()))
            .map_err(to_python)?;
        let (buffers, begin_ns, end_ns, hand) =
            (pool.buffers, pool.begin_ns, pool.end_ns, pool.hand);
        let (used, zero) = (pool.used, pool.zero);
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
        all.set_item("used", used)?;
        all.set_item("zero", zero)?;
        add_moment(&all, buffers, (begin_ns, end_ns), hand)?;
        Ok(all)
    }

    /// Count the buffers by relation now.
    #[pyo3(signature = (*, threads=None))]
    fn relations<'py>(
        &self,
        py: Python<'py>,
        threads: Option<usize>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let found = py
            .detach(|| relations(&self.server, self.version_num, threads))
            .map_err(to_python)?;
        let rows = found.rel.len();
        let (buffers, begin_ns, end_ns, hand) =
            (found.buffers, found.begin_ns, found.end_ns, found.hand);
        let usage_counts = found.usage_counts.into_pyarray(py);
        let all = columns!(py, found, spc, db, rel, fork, dirty, pinned);
        all.set_item("usage_counts", usage_counts.reshape([rows, USAGE_COUNTS])?)?;
        add_moment(&all, buffers, (begin_ns, end_ns), hand)?;
        Ok(all)
    }
}

/// Add what is known of the pool as a whole and of the time of reading it.
fn add_moment(
    all: &Bound<'_, PyDict>,
    buffers: u32,
    (begin_ns, end_ns): (u64, u64),
    hand: Reading,
) -> PyResult<()> {
    all.set_item("buffers", buffers)?;
    all.set_item("begin_ns", begin_ns)?;
    all.set_item("end_ns", end_ns)?;
    let at = match hand {
        Reading::At(hand) => Some((hand.next_victim, hand.complete_passes, hand.first_free)),
        Reading::Unknown | Reading::Unsettled => None,
    };
    all.set_item("hand", at)?;
    all.set_item("hand_settled", hand != Reading::Unsettled)
}
