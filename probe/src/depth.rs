//! How long random reads of a device take while a number of them are in flight.
//!
//! Each thread keeps one read in flight, past the page cache (`O_DIRECT`), so what is timed is the device with the file
//! system above it. Files are opened for reading only.

use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What `O_DIRECT` asks of memory: the largest logical block of devices (open(2)).
const ALIGNMENT: usize = 4096;
/// More than this would not be a measurement but a load.
pub const MOST_DEPTH: usize = 64;
const STACK_BYTES: usize = 64 << 10;

/// One block of a file.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    /// Index of the file among the paths.
    pub file: usize,
    /// Where it begins.
    pub offset: u64,
}

/// One read that came back whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedRead {
    /// When it began, since the first could.
    pub begin_ns: u64,
    /// How long it took.
    pub took_ns: u64,
}

/// Memory that a device can write to directly.
struct Aligned {
    memory: NonNull<u8>,
    layout: Layout,
}

impl Aligned {
    fn new(bytes: usize) -> io::Result<Self> {
        let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT)
            .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: the layout's size is not 0.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Self { memory, layout })
    }

    /// Read a block; return the number of bytes that came.
    fn read(&mut self, file: &File, offset: u64) -> io::Result<usize> {
        // SAFETY: the memory is ours, and as long as is said.
        let came = unsafe {
            libc::pread64(
                file.as_raw_fd(),
                self.memory.as_ptr().cast(),
                self.layout.size(),
                offset as i64,
            )
        };
        usize::try_from(came).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// Read blocks, `depth` at once, until all are read or the time is over; return the reads in the order of their beginning.
///
/// A block that is not there any more is passed over.
///
/// # Errors
/// A file cannot be opened with `O_DIRECT`, or not be read so; or `depth` is 0 or more than [`MOST_DEPTH`].
pub fn timed_reads(
    paths: &[PathBuf],
    blocks: &[Block],
    block_bytes: usize,
    depth: usize,
    limit: Duration,
) -> io::Result<Vec<TimedRead>> {
    if !(1..=MOST_DEPTH).contains(&depth) || blocks.iter().any(|block| block.file >= paths.len()) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let files = paths
        .iter()
        .map(|path| {
            OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC)
                .open(path)
        })
        .collect::<io::Result<Vec<_>>>()?;
    let (next, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let start = Instant::now();
    let read = || -> io::Result<Vec<TimedRead>> {
        let mut buffer = Aligned::new(block_bytes)?;
        let mut done = Vec::new();
        while !over.load(Ordering::Relaxed) && start.elapsed() < limit {
            let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) else {
                break;
            };
            let begin = Instant::now();
            match buffer.read(&files[block.file], block.offset) {
                Ok(came) if came == block_bytes => done.push(TimedRead {
                    begin_ns: begin.duration_since(start).as_nanos() as u64,
                    took_ns: begin.elapsed().as_nanos() as u64,
                }),
                Ok(_) => {}
                Err(error) => {
                    over.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        Ok(done)
    };
    let mut all = thread::scope(|scope| {
        let mut threads = Vec::with_capacity(depth);
        for _ in 0..depth {
            let spawned = thread::Builder::new()
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, read);
            // With fewer threads than were asked for it would be another depth.
            over.fetch_or(spawned.is_err(), Ordering::Relaxed);
            threads.push(spawned);
        }
        threads
            .into_iter()
            .map(|spawned| spawned.and_then(|thread| thread.join().expect("no panic in a reader")))
            .collect::<io::Result<Vec<_>>>()
    })?
    .concat();
    all.sort_by_key(|read| read.begin_ns);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const BLOCK: usize = 8192;

    /// A file of blocks that are on disk, where the file system knows `O_DIRECT`.
    fn file_of(blocks: usize) -> Option<PathBuf> {
        let path =
            std::env::temp_dir().join(format!("pgsweep-depth-{}-{blocks}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![7; blocks * BLOCK]).unwrap();
        file.sync_all().unwrap();
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path);
        direct.is_ok().then_some(path)
    }

    fn blocks_of(count: usize) -> Vec<Block> {
        let offset = |index: usize| (index * BLOCK) as u64;
        (0..count)
            .map(|index| Block {
                file: 0,
                offset: offset(index),
            })
            .collect()
    }

    #[test]
    fn each_block_is_read_once_and_never_more_than_asked_for_at_once() {
        let Some(path) = file_of(200) else { return };
        let paths = [path.clone()];
        for depth in [1, 3, 16] {
            let reads = timed_reads(
                &paths,
                &blocks_of(200),
                BLOCK,
                depth,
                Duration::from_secs(30),
            )
            .unwrap();
            assert_eq!(reads.len(), 200);
            let ends = |read: &TimedRead| read.begin_ns + read.took_ns;
            for read in &reads {
                let at = read.begin_ns;
                let flying = reads
                    .iter()
                    .filter(|r| r.begin_ns <= at && at < ends(r))
                    .count();
                assert!(
                    (1..=depth).contains(&flying),
                    "{flying} at once, asked for {depth}"
                );
            }
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_is_beyond_the_end_is_not_counted_and_time_ends_it() {
        let Some(path) = file_of(20) else { return };
        let paths = [path.clone()];
        let reads = timed_reads(&paths, &blocks_of(30), BLOCK, 2, Duration::from_secs(30)).unwrap();
        assert_eq!(reads.len(), 20);
        let none = timed_reads(&paths, &blocks_of(20), BLOCK, 2, Duration::ZERO).unwrap();
        assert!(none.is_empty());
        for depth in [0, MOST_DEPTH + 1] {
            assert!(timed_reads(&paths, &[], BLOCK, depth, Duration::ZERO).is_err());
        }
        assert!(timed_reads(&[], &blocks_of(1), BLOCK, 1, Duration::ZERO).is_err());
        std::fs::remove_file(path).unwrap();
    }
}
