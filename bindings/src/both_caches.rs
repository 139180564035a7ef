//! A pool in front of page caches, for numpy arrays; the GIL is released meanwhile.

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadonlyArray2};
use pgsweep_core::both_caches::{run, Accesses, Behind, Caches, Reads};
use pgsweep_core::files::PageCache as CorePageCache;
use pgsweep_core::past::{Known, Length, Past as CorePast, Rows};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::{copied, maybe_copied};
use crate::files::policy_of;
use crate::replay::{block_count, value_error, PoolContents, Rules, TraceArrays};

/// Of 4 kB in a block of 8 kB.
const PAGES_PER_BLOCK: u32 = 2;

type F64<'py> = PyReadonlyArray1<'py, f64>;
type U32<'py> = PyReadonlyArray1<'py, u32>;
type U64<'py> = PyReadonlyArray1<'py, u64>;
type U8<'py> = PyReadonlyArray1<'py, u8>;

/// A page cache, what is in it, and whether it is written to.
#[pyclass(frozen, skip_from_py_object, module = "pgsweep._native")]
pub struct FileCache {
    cache: CorePageCache,
    resident: Vec<u32>,
    writes: bool,
}

#[pymethods]
impl FileCache {
    #[new]
    #[pyo3(signature = (
        capacity_pages, readahead_pages, *, folio_order=0, policy="two-lists", resident=None, writes=true,
        pages_each=1.0
    ))]
    fn new(
        capacity_pages: u32,
        readahead_pages: u32,
        folio_order: u8,
        policy: &str,
        resident: Option<U32<'_>>,
        writes: bool,
        pages_each: f64,
    ) -> PyResult<Self> {
        Ok(Self {
            cache: CorePageCache {
                pages_per_block: PAGES_PER_BLOCK,
                capacity_pages,
                readahead_pages,
                folio_order,
                policy: policy_of(policy)?,
                pages_each,
            },
            resident: maybe_copied(resident.as_ref())?.unwrap_or_default(),
            writes,
        })
    }
}

/// Where blocks lie, which are dirty when they are evicted, and what is behind the pool.
#[pyclass(frozen, skip_from_py_object, module = "pgsweep._native")]
pub struct FileSpace {
    files: Vec<u32>,
    groups: Vec<u32>,
    dirty: Vec<f64>,
    gather_seconds: f64,
}

#[pymethods]
impl FileSpace {
    #[new]
    #[pyo3(signature = (files, groups, dirty, *, gather_seconds))]
    fn new(files: U32<'_>, groups: U32<'_>, dirty: F64<'_>, gather_seconds: f64) -> PyResult<Self> {
        Ok(Self {
            files: copied(&files)?,
            groups: copied(&groups)?,
            dirty: copied(&dirty)?,
            gather_seconds,
        })
    }
}

/// Call with both caches; the GIL is released.
fn with_caches(
    py: Python<'_>,
    space: &FileSpace,
    pool: (u64, &Rules),
    behind: &[Py<FileCache>],
    seed: u64,
    work: impl FnOnce(&Caches<'_>) -> Result<Vec<Reads>, pgsweep_core::trace::InputError> + Send,
) -> PyResult<Vec<Py<PyDict>>> {
    let behind: Vec<Behind<'_>> = behind
        .iter()
        .map(|one| {
            let one = one.get();
            Behind {
                cache: one.cache,
                resident: &one.resident,
                writes: one.writes,
            }
        })
        .collect();
    let caches = Caches {
        rules: pool.1 .0,
        pool_blocks: block_count(pool.0)?,
        files: &space.files,
        groups: &space.groups,
        dirty: &space.dirty,
        behind: &behind,
        gather_seconds: space.gather_seconds,
        seed,
    };
    let found = py.detach(|| work(&caches)).map_err(value_error)?;
    found.into_iter().map(|reads| as_dict(py, reads)).collect()
}

fn as_dict(py: Python<'_>, reads: Reads) -> PyResult<Py<PyDict>> {
    let result = PyDict::new(py);
    result.set_item("misses", reads.misses.into_pyarray(py))?;
    result.set_item("waited", reads.waited.into_pyarray(py))?;
    result.set_item("disk_pages", reads.disk_pages.into_pyarray(py))?;
    result.set_item("refaulted_pages", reads.refaulted_pages)?;
    result.set_item("blocks_before", reads.blocks_before)?;
    result.set_item("twice_blocks", reads.twice_blocks)?;
    Ok(result.into())
}

/// Run accesses through a pool, and through the page caches behind it.
#[pyfunction]
#[pyo3(signature = (
    blocks, seconds, space, pool_blocks, rules, behind, *, counted_from, seed, flags=None, owner_access=None,
    owner=None, owner_blocks=None, warm=None
))]
pub fn both_caches<'py>(
    py: Python<'py>,
    blocks: U32<'py>,
    seconds: F64<'py>,
    space: &FileSpace,
    pool_blocks: u64,
    rules: &Rules,
    behind: Vec<Py<FileCache>>,
    counted_from: usize,
    seed: u64,
    flags: Option<U8<'py>>,
    owner_access: Option<U64<'py>>,
    owner: Option<U32<'py>>,
    owner_blocks: Option<U32<'py>>,
    warm: Option<Py<PoolContents>>,
) -> PyResult<Vec<Py<PyDict>>> {
    let arrays = TraceArrays::copied(blocks, flags, owner_access, owner, owner_blocks)?;
    let seconds = copied(&seconds)?;
    let warm = warm.as_ref().map(Py::get);
    with_caches(py, space, (pool_blocks, rules), &behind, seed, |caches| {
        let accesses = Accesses {
            trace: arrays.trace(),
            seconds: &seconds,
            streams: None,
        };
        run(
            caches,
            accesses,
            warm.map(PoolContents::contents),
            counted_from,
        )
    })
}

/// A trace over blocks of files, and what came before it.
#[pyclass(frozen, skip_from_py_object, module = "pgsweep._native")]
pub struct Past(CorePast);

#[pymethods]
impl Past {
    #[new]
    #[pyo3(signature = (
        blocks, flags, seconds, streams, *, owner_access, owner, owner_blocks, forks, visits, new, rates, weights,
        duration_seconds, visit_gap_seconds, seed
    ))]
    fn new(
        py: Python<'_>,
        blocks: U32<'_>,
        flags: U8<'_>,
        seconds: F64<'_>,
        streams: U32<'_>,
        owner_access: U64<'_>,
        owner: U32<'_>,
        owner_blocks: U32<'_>,
        forks: U32<'_>,
        visits: U32<'_>,
        new: PyReadonlyArray1<'_, bool>,
        rates: F64<'_>,
        weights: PyReadonlyArray2<'_, f64>,
        duration_seconds: f64,
        visit_gap_seconds: f64,
        seed: u64,
    ) -> PyResult<Self> {
        let rows = Rows {
            blocks: copied(&blocks)?,
            flags: copied(&flags)?,
            owner_access: copied(&owner_access)?,
            owner: copied(&owner)?,
            owner_blocks: copied(&owner_blocks)?,
            seconds: copied(&seconds)?,
            streams: copied(&streams)?,
        };
        let (forks, visits, new) = (copied(&forks)?, copied(&visits)?, copied(&new)?);
        let (rates, weights) = (copied(&rates)?, weights.as_slice()?.to_vec());
        py.detach(|| {
            CorePast::new(
                rows,
                &Known {
                    forks: &forks,
                    visits: &visits,
                    new: &new,
                    rates: &rates,
                    weights: &weights,
                    duration_seconds,
                    visit_gap_seconds,
                    seed,
                },
            )
        })
        .map(Self)
        .map_err(value_error)
    }

    /// Draw what a page cache holds at first.
    #[pyo3(signature = (absent, most_blocks, *, seed))]
    fn residents<'py>(
        &self,
        py: Python<'py>,
        absent: PyReadonlyArray2<'py, f64>,
        most_blocks: usize,
        seed: u64,
    ) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let absent = absent.as_slice()?.to_vec();
        let found = py
            .detach(|| self.0.residents(&absent, most_blocks, seed))
            .map_err(value_error)?;
        Ok(found.into_pyarray(py))
    }

    /// Run the past and then the trace through both caches.
    #[pyo3(signature = (space, pool_blocks, rules, behind, warm, *, turnovers, most_accesses, seed))]
    fn both_caches(
        &self,
        py: Python<'_>,
        space: &FileSpace,
        pool_blocks: u64,
        rules: &Rules,
        behind: Vec<Py<FileCache>>,
        warm: Py<PoolContents>,
        turnovers: f64,
        most_accesses: usize,
        seed: u64,
    ) -> PyResult<Vec<Py<PyDict>>> {
        let length = Length {
            turnovers,
            accesses: most_accesses,
        };
        let warm = warm.get();
        with_caches(py, space, (pool_blocks, rules), &behind, seed, |caches| {
            self.0.run(caches, warm.contents(), length)
        })
    }
}
