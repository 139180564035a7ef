//! One piece of work shared by a few threads, as many as there may be.

use std::num::NonZero;
use std::panic;
use std::thread::{self, Builder};

/// Return the number of processors that this process may use, at most `most`.
pub fn processors(most: usize) -> usize {
    thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(most)
}

/// Do `work` in this thread and in `threads - 1` others at the same time, and return what each has returned.
///
/// The work is something that they share: each goes on until nothing is left of it. So where the kernel refuses a thread
/// (RLIMIT_NPROC, a cgroup's pids.max), those that there are do it all.
pub fn share<T: Send>(threads: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let mut others = Vec::new();
        for _ in 1..threads {
            match Builder::new().spawn_scoped(scope, work) {
                Ok(other) => others.push(other),
                Err(_) => break,
            }
        }
        let mut results = vec![work()];
        for other in others {
            match other.join() {
                Ok(result) => results.push(result),
                Err(panic) => panic::resume_unwind(panic),
            }
        }
        results
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn all_is_done_once_by_as_many_threads_as_asked_for() {
        for threads in [1, 2, 5] {
            let next = AtomicUsize::new(0);
            let parts = share(threads, || {
                let mut mine = Vec::new();
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= 1000 {
                        return mine;
                    }
                    mine.push(at);
                }
            });
            assert_eq!(parts.len(), threads);
            let mut all: Vec<_> = parts.into_iter().flatten().collect();
            all.sort_unstable();
            assert_eq!(all, (0..1000).collect::<Vec<_>>());
        }
    }
}
