//! Independent pieces of work shared by a few threads, fewer where the system refuses some.

use std::num::NonZero;
use std::thread;

use rayon::prelude::*;
use rayon::ThreadPoolBuilder;

/// Return the number of processors that this process may use, at most `most`.
pub fn processors(most: usize) -> usize {
    thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(most)
}

/// Do the task for all items, and return the results in their order.
///
/// Where the kernel refuses threads (RLIMIT_NPROC, a cgroup's pids.max) this thread does it all.
pub fn map<I: Sync, T: Send>(items: &[I], threads: usize, task: impl Fn(&I) -> T + Sync) -> Vec<T> {
    if threads > 1 {
        // A pool of its own, for as long as the work takes: looks are seconds apart.
        if let Ok(pool) = ThreadPoolBuilder::new().num_threads(threads).build() {
            return pool.install(|| items.par_iter().map(&task).collect());
        }
    }
    items.iter().map(task).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_done_once_and_in_order() {
        let items: Vec<_> = (0..1000).collect();
        for threads in [0, 1, 2, 5] {
            let doubled = map(&items, threads, |item| 2 * item);
            assert_eq!(doubled, (0..1000).map(|item| 2 * item).collect::<Vec<_>>());
        }
    }
}
