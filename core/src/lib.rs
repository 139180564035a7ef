//! PostgreSQL's buffer pool, exactly, the mathematics around it, and the record boundaries of what it loads.
//!
//! Pure algorithms: no Python, no SQL, no system calls, no printing.
#![forbid(unsafe_code)]

pub mod both_caches;
mod buffers;
mod chunk;
pub mod dense;
pub mod files;
pub mod lanes;
pub mod model;
pub mod objects;
pub mod page_cache;
mod parallel;
pub mod past;
mod random;
/// What a pool holds.
pub mod pool {
    pub use crate::buffers::{Contents, NO_PAGE};
}
pub mod replay;
mod ring;
pub mod rules;
pub mod split;
pub mod trace;
