//! `pgsweep._native`: the Rust crates as one Python module.
//!
//! This crate converts arguments, maps errors and releases the GIL; it has no logic of its own.

// pyo3 hands arguments over by value, and Python's keyword arguments are many.
#![allow(clippy::needless_pass_by_value, clippy::too_many_arguments)]

mod arrays;
mod both_caches;
mod files;
mod interchange;
#[cfg(all(feature = "probe", target_os = "linux"))]
mod look;
mod model;
#[cfg(not(all(feature = "probe", target_os = "linux")))]
mod no_probe;
#[cfg(all(feature = "probe", target_os = "linux"))]
mod pool;
#[cfg(all(feature = "probe", target_os = "linux"))]
mod read_timer;
mod replay;
mod split;
#[cfg(all(feature = "probe", target_os = "linux"))]
mod tracer;

use pyo3::prelude::*;

/// The Rust half of pgsweep.
#[pymodule(gil_used = false)]
mod _native {
    use super::{pyfunction, Bound, PyModule, PyResult};
    use pgsweep_core::trace;
    use pyo3::types::PyModuleMethods;

    #[pymodule_export]
    use crate::both_caches::{both_caches, FileCache, FileSpace, Past};
    #[pymodule_export]
    use crate::files::access_files;
    #[pymodule_export]
    use crate::interchange::{NextAccesses, ObjectIds};
    #[cfg(all(feature = "probe", target_os = "linux"))]
    #[pymodule_export]
    use crate::look::{drop_page_cache, page_cache, timed_reads};
    #[pymodule_export]
    use crate::model::{
        clock_law, drawn_accesses, mixture_weights, mixture_weights_many, path_likelihoods,
        states_before_trace,
    };
    #[cfg(not(all(feature = "probe", target_os = "linux")))]
    #[pymodule_export]
    use crate::no_probe::__getattr__;
    #[cfg(all(feature = "probe", target_os = "linux"))]
    #[pymodule_export]
    use crate::pool::{peek_relations, postmaster_start_time, PoolReader};
    #[cfg(all(feature = "probe", target_os = "linux"))]
    #[pymodule_export]
    use crate::read_timer::ReadTimer;
    #[pymodule_export]
    use crate::replay::{dense_ids, replay, replay_outcomes, PoolContents, Rules};
    #[pymodule_export]
    use crate::split::RecordSplitter;
    #[cfg(all(feature = "probe", target_os = "linux"))]
    #[pymodule_export]
    use crate::tracer::{check_tracing, trace_event_cost_seconds, Tracer};

    /// Return the build profile, `release` or `debug`, so that a benchmark can refuse a debug build.
    #[pyfunction]
    fn build_profile() -> &'static str {
        if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        }
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("STRATEGY_MASK", trace::STRATEGY_MASK)?;
        module.add("BULKREAD", trace::BULKREAD)?;
        module.add("BULKWRITE", trace::BULKWRITE)?;
        module.add("VACUUM", trace::VACUUM)?;
        module.add("REPEAT", trace::REPEAT)?;
        module.add("EXTENSION", trace::EXTENSION)?;
        module.add("DROP", trace::DROP)?;
        module.add("UNCOUNTED", trace::UNCOUNTED)
    }
}
