//! Work shared by as many threads as the system allows.

use std::sync::OnceLock;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// The pool of all work whose caller names no number of threads.
static POOL: OnceLock<ThreadPool> = OnceLock::new();

/// How many threads [`map`] would like to have.
pub(crate) fn wanted() -> usize {
    POOL.get().map_or_else(
        || std::thread::available_parallelism().map_or(1, usize::from),
        ThreadPool::current_num_threads,
    )
}

/// What `work` makes of every item, in their order.
///
/// Where the system refuses a thread (RLIMIT_NPROC, a cgroup's pids.max) there are fewer, in the end none but the caller's. The
/// pool that rayon makes by itself panics then.
pub(crate) fn map<T: Sync, R: Send>(
    items: &[T],
    threads: Option<usize>,
    work: impl Fn(&T) -> R + Sync + Send,
) -> Vec<R> {
    let made;
    let pool = match threads {
        Some(1) => None,
        Some(threads) => {
            made = build(threads);
            made.as_ref()
        }
        None => shared(),
    };
    match pool {
        Some(pool) => pool.install(|| items.par_iter().map(&work).collect()),
        None => items.iter().map(work).collect(),
    }
}

fn shared() -> Option<&'static ThreadPool> {
    if let Some(pool) = POOL.get() {
        return Some(pool);
    }
    // Of two that are made at the same time one is dropped again.
    let made = build(0)?;
    Some(POOL.get_or_init(|| made))
}

/// Return a pool of that number of threads, 0 for one per processor, or of fewer; `None` if not even two can start.
fn build(threads: usize) -> Option<ThreadPool> {
    let mut threads = threads;
    loop {
        if let Ok(pool) = ThreadPoolBuilder::new().num_threads(threads).build() {
            return Some(pool);
        }
        threads = if threads == 0 { wanted() } else { threads } / 2;
        if threads < 2 {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stay_in_order_whatever_the_number_of_threads() {
        let items: Vec<u64> = (0..10_000).collect();
        let squares: Vec<u64> = items.iter().map(|item| item * item).collect();
        for threads in [None, Some(1), Some(2), Some(5)] {
            assert_eq!(map(&items, threads, |item| item * item), squares);
        }
    }
}
