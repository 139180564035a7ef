//! Replay and page numbering for Python: numpy arrays in and out, the GIL released meanwhile.

use numpy::ndarray::{Array1, Array2};
use numpy::{IntoPyArray, PyReadonlyArray1};
use pgsweep_core::dense::{DenseIds, Page};
use pgsweep_core::pool::Contents;
use pgsweep_core::replay::{outcomes, replay as core_replay, Request};
use pgsweep_core::rules::{Policy, RingSettings, Rules as CoreRules, Strategy};
use pgsweep_core::trace::{Owners, Trace};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::{copied, maybe_copied};

/// Rows that are copied at once where not all need be.
const PART_ROWS: usize = 1 << 16;

type U8<'py> = PyReadonlyArray1<'py, u8>;
type U32<'py> = PyReadonlyArray1<'py, u32>;
type U64<'py> = PyReadonlyArray1<'py, u64>;

/// Return the error for parts that do not fit together.
pub(crate) fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// How one version of the server with given settings treats its buffers.
#[pyclass(frozen, eq, skip_from_py_object, module = "pgsweep._native")]
#[derive(Clone, Copy, PartialEq)]
pub struct Rules(pub(crate) CoreRules);

#[pymethods]
impl Rules {
    #[new]
    #[pyo3(signature = (
        version, *, usage_cap=None, admission=None, hands=None, free_list=None, max_backends=136,
        io_combine_limit_blocks=16, effective_io_concurrency=16, vacuum_buffer_usage_limit_kb=None
    ))]
    #[allow(clippy::too_many_arguments)] // Python calls it by keywords.
    fn new(
        version: u32,
        usage_cap: Option<u8>,
        admission: Option<u8>,
        hands: Option<u32>,
        free_list: Option<bool>,
        max_backends: u32,
        io_combine_limit_blocks: u32,
        effective_io_concurrency: u32,
        vacuum_buffer_usage_limit_kb: Option<u32>,
    ) -> PyResult<Self> {
        let settings = RingSettings {
            max_backends,
            io_combine_limit_blocks,
            effective_io_concurrency,
            vacuum_buffer_usage_limit_kb,
        };
        let rules = CoreRules::new(version, settings)
            .and_then(|rules| {
                let own = rules.policy();
                rules.with_policy(Policy {
                    usage_cap: usage_cap.unwrap_or(own.usage_cap),
                    admission: admission.unwrap_or(own.admission),
                    hands: hands.unwrap_or(own.hands),
                    free_list: free_list.unwrap_or(own.free_list),
                })
            })
            .map_err(value_error)?;
        Ok(Self(rules))
    }

    /// The major version.
    #[getter]
    fn version(&self) -> u32 {
        self.0.version()
    }

    /// The highest usage count.
    #[getter]
    fn usage_cap(&self) -> u8 {
        self.0.usage_cap()
    }

    /// The usage count of a page just read.
    #[getter]
    fn admission(&self) -> u8 {
        self.0.policy().admission
    }

    /// The number of clock hands.
    #[getter]
    fn hands(&self) -> u32 {
        self.0.policy().hands
    }

    /// Whether dropped buffers are listed and taken before the sweep.
    #[getter]
    fn free_list(&self) -> bool {
        self.0.policy().free_list
    }

    /// Return the buffers of a new ring (strategy 1 BULKREAD, 2 BULKWRITE, 3 VACUUM); 0 is none.
    fn ring_buffers(&self, strategy: u8, size_blocks: u32) -> PyResult<u32> {
        let strategy = Strategy::from_class(strategy)
            .ok_or_else(|| value_error(format!("no strategy has the number {strategy}")))?;
        Ok(self.0.ring_buffers(strategy, size_blocks))
    }

    /// Return whether a scan of a table of that number of blocks uses a ring in a pool of this size.
    fn scan_uses_ring(&self, table_blocks: u32, size_blocks: u32) -> bool {
        self.0.scan_uses_ring(table_blocks, size_blocks)
    }

    fn __repr__(&self) -> String {
        let (policy, settings) = (self.0.policy(), self.0.settings());
        let vacuum = settings.vacuum_buffer_usage_limit_kb;
        format!(
            "Rules({}, usage_cap={}, admission={}, hands={}, free_list={}, max_backends={}, io_combine_limit_blocks={}, \
             effective_io_concurrency={}, vacuum_buffer_usage_limit_kb={})",
            self.0.version(),
            policy.usage_cap,
            policy.admission,
            policy.hands,
            if policy.free_list { "True" } else { "False" },
            settings.max_backends,
            settings.io_combine_limit_blocks,
            settings.effective_io_concurrency,
            vacuum.map_or_else(|| "None".to_owned(), |kb| kb.to_string())
        )
    }
}

/// What a pool holds at the start of a replay.
#[pyclass(frozen, skip_from_py_object, module = "pgsweep._native")]
pub struct PoolContents {
    pages: Vec<u32>,
    usage_counts: Vec<u8>,
    buffers: Option<Vec<u32>>,
    hand: u32,
}

#[pymethods]
impl PoolContents {
    #[new]
    #[pyo3(signature = (pages, usage_counts, *, buffers=None, hand=0))]
    fn new(
        pages: U32<'_>,
        usage_counts: U8<'_>,
        buffers: Option<U32<'_>>,
        hand: u32,
    ) -> PyResult<Self> {
        Ok(Self {
            pages: copied(&pages)?,
            usage_counts: copied(&usage_counts)?,
            buffers: maybe_copied(buffers.as_ref())?,
            hand,
        })
    }
}

impl PoolContents {
    pub(crate) fn contents(&self) -> Contents<'_> {
        Contents {
            pages: &self.pages,
            usage_counts: &self.usage_counts,
            buffers: self.buffers.as_deref(),
            hand: self.hand,
        }
    }
}

/// The parts of a trace as Python gives them, copied (see [`crate::arrays`]).
pub(crate) struct TraceArrays {
    pages: Vec<u32>,
    flags: Option<Vec<u8>>,
    owner_access: Vec<u64>,
    owner: Vec<u32>,
    owner_blocks: Vec<u32>,
}

impl TraceArrays {
    pub(crate) fn copied(
        pages: U32<'_>,
        flags: Option<U8<'_>>,
        owner_access: Option<U64<'_>>,
        owner: Option<U32<'_>>,
        owner_blocks: Option<U32<'_>>,
    ) -> PyResult<Self> {
        Ok(Self {
            pages: copied(&pages)?,
            flags: maybe_copied(flags.as_ref())?,
            owner_access: maybe_copied(owner_access.as_ref())?.unwrap_or_default(),
            owner: maybe_copied(owner.as_ref())?.unwrap_or_default(),
            owner_blocks: maybe_copied(owner_blocks.as_ref())?.unwrap_or_default(),
        })
    }

    pub(crate) fn trace(&self) -> Trace<'_> {
        Trace {
            pages: &self.pages,
            flags: self.flags.as_deref(),
            owners: Owners {
                access: &self.owner_access,
                owner: &self.owner,
                blocks: &self.owner_blocks,
            },
        }
    }
}

fn contents(warm: Option<&Py<PoolContents>>) -> Option<Contents<'_>> {
    warm.map(|warm| warm.get().contents())
}

/// Return a number of blocks as the simulator counts them.
pub(crate) fn block_count(size: u64) -> PyResult<u32> {
    u32::try_from(size).map_err(|_| {
        value_error(format!(
            "a pool of {size} blocks is larger than any server accepts"
        ))
    })
}

fn blocks(sizes: &[u64]) -> PyResult<Vec<u32>> {
    sizes.iter().copied().map(block_count).collect()
}

/// Replay a trace through pools of many sizes and count their misses.
#[pyfunction]
#[pyo3(signature = (
    pages, sizes_blocks, rules, *, flags=None, owner_access=None, owner=None, owner_blocks=None,
    windows=None, groups=None, warm=None, threads=None
))]
pub fn replay<'py>(
    py: Python<'py>,
    pages: U32<'py>,
    sizes_blocks: Vec<u64>,
    rules: &Rules,
    flags: Option<U8<'py>>,
    owner_access: Option<U64<'py>>,
    owner: Option<U32<'py>>,
    owner_blocks: Option<U32<'py>>,
    windows: Option<U64<'py>>,
    groups: Option<U32<'py>>,
    warm: Option<Vec<Option<Py<PoolContents>>>>,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyDict>> {
    let arrays = TraceArrays::copied(pages, flags, owner_access, owner, owner_blocks)?;
    let sizes = blocks(&sizes_blocks)?;
    let warm = warm.unwrap_or_default();
    let warm: Vec<_> = warm.iter().map(|warm| contents(warm.as_ref())).collect();
    if threads == Some(0) {
        return Err(value_error("0 threads cannot replay anything"));
    }
    let windows = maybe_copied(windows.as_ref())?;
    let groups = maybe_copied(groups.as_ref())?;
    let request = Request {
        trace: arrays.trace(),
        rules: rules.0,
        sizes: &sizes,
        windows: windows.as_deref(),
        groups: groups.as_deref(),
        warm: &warm,
        threads,
    };
    let counts = py.detach(|| core_replay(&request)).map_err(value_error)?;

    let rows = sizes.len();
    let table = |counts: Vec<u64>, columns: usize| {
        Array2::from_shape_vec((rows, columns), counts).map_err(value_error)
    };
    let windows = counts.accesses.len();
    let groups = counts.group_accesses.len();
    let result = PyDict::new(py);
    result.set_item("accesses", Array1::from(counts.accesses).into_pyarray(py))?;
    result.set_item(
        "extensions",
        Array1::from(counts.extensions).into_pyarray(py),
    )?;
    result.set_item("misses", table(counts.misses, windows)?.into_pyarray(py))?;
    result.set_item(
        "group_accesses",
        Array1::from(counts.group_accesses).into_pyarray(py),
    )?;
    result.set_item(
        "group_misses",
        table(counts.group_misses, groups)?.into_pyarray(py),
    )?;
    result.set_item("hands", Array1::from(counts.hands).into_pyarray(py))?;
    result.set_item("passes", Array1::from(counts.passes).into_pyarray(py))?;
    Ok(result)
}

/// Replay a trace through one pool and return the outcome of every access.
#[pyfunction]
#[pyo3(signature = (
    pages, size_blocks, rules, *, flags=None, owner_access=None, owner=None, owner_blocks=None,
    warm=None
))]
pub fn replay_outcomes<'py>(
    py: Python<'py>,
    pages: U32<'py>,
    size_blocks: u64,
    rules: &Rules,
    flags: Option<U8<'py>>,
    owner_access: Option<U64<'py>>,
    owner: Option<U32<'py>>,
    owner_blocks: Option<U32<'py>>,
    warm: Option<Py<PoolContents>>,
) -> PyResult<Bound<'py, PyDict>> {
    let arrays = TraceArrays::copied(pages, flags, owner_access, owner, owner_blocks)?;
    let sizes = blocks(&[size_blocks])?;
    let warm = [contents(warm.as_ref())];
    let request = Request {
        trace: arrays.trace(),
        rules: rules.0,
        sizes: &sizes,
        windows: None,
        groups: None,
        warm: &warm,
        threads: None,
    };
    let seen = py.detach(|| outcomes(&request)).map_err(value_error)?;
    let result = PyDict::new(py);
    result.set_item("outcomes", Array1::from(seen.outcomes).into_pyarray(py))?;
    result.set_item(
        "evicted_pages",
        Array1::from(seen.evicted_pages).into_pyarray(py),
    )?;
    result.set_item(
        "buffer_pages",
        Array1::from(seen.buffer_pages).into_pyarray(py),
    )?;
    result.set_item(
        "buffer_usage_counts",
        Array1::from(seen.buffer_usage_counts).into_pyarray(py),
    )?;
    result.set_item("hand", seen.hand)?;
    Ok(result)
}

/// Number pages densely in the order of first appearance; also return the table of their names.
#[pyfunction]
pub fn dense_ids<'py>(
    py: Python<'py>,
    spc: U32<'py>,
    db: U32<'py>,
    rel: U32<'py>,
    fork: U8<'py>,
    block: U32<'py>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyDict>)> {
    let (spc, db, rel) = (spc.as_slice()?, db.as_slice()?, rel.as_slice()?);
    let (fork, block) = (fork.as_slice()?, block.as_slice()?);
    let n = block.len();
    if [spc.len(), db.len(), rel.len(), fork.len()]
        .iter()
        .any(|&len| len != n)
    {
        return Err(value_error(
            "spc, db, rel, fork and block must have the same length",
        ));
    }
    let mut ids = DenseIds::new();
    let mut pages = Vec::with_capacity(n);
    let mut part = Vec::with_capacity(n.min(PART_ROWS));
    for first in (0..n).step_by(PART_ROWS) {
        part.clear();
        part.extend((first..n.min(first + PART_ROWS)).map(|k| Page {
            relation: (spc[k], db[k], rel[k], fork[k]),
            block: block[k],
        }));
        py.detach(|| {
            for page in &part {
                pages.push(ids.id(*page)?);
            }
            Ok::<_, pgsweep_core::trace::InputError>(())
        })
        .map_err(value_error)?;
    }
    let names = ids.pages();
    let column = |of: fn(&Page) -> u32| Array1::from_iter(names.iter().map(of)).into_pyarray(py);
    let table = PyDict::new(py);
    table.set_item("spc", column(|page| page.relation.0))?;
    table.set_item("db", column(|page| page.relation.1))?;
    table.set_item("rel", column(|page| page.relation.2))?;
    let forks = Array1::from_iter(names.iter().map(|page| page.relation.3));
    table.set_item("fork", forks.into_pyarray(py))?;
    table.set_item("block", column(|page| page.block))?;
    Ok((Array1::from(pages).into_pyarray(py).into_any(), table))
}
