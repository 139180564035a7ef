//! Which parts of files lie in the operating system's page cache.
//!
//! `cachestat(2)` (Linux 6.5) counts a file's pages without naming them; `mincore(2)` names them, for any mapping, more
//! slowly: it is asked only about stretches of a file of which some pages are cached and some are not. Neither reads a
//! page of the file, starts read-ahead, or counts as an access to the cache.
//!
//! Both can be wrong without saying so, and here they must not be:
//! - `mincore` reports every page of a file as resident to a caller who neither owns the file nor may write to it
//!   (`can_do_mincore`, mm/mincore.c). Opening with `O_NOATIME` is allowed to owners and CAP_FOWNER by the very same test
//!   (`inode_owner_or_capable`, fs/namei.c), so that opening shows it. Where the answer would be made up, the file gets
//!   EPERM; newer kernels' `cachestat` says EPERM by itself (`can_do_cachestat`, mm/filemap.c).
//! - `cachestat` finds no page at all for a file of overlayfs, whose pages belong to the file below; there a mapping is
//!   of the file below, and `mincore` knows.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

use crate::parallel;

/// `__NR_cachestat`, the same on every architecture but alpha.
const SYS_CACHESTAT: libc::c_long = 451;
/// How much of a file is asked about at once before its pages are.
const STRETCH_BYTES: u64 = 4 << 20;
/// How much of a file is mapped at once; its answer is a byte a page.
const MAPPING_BYTES: u64 = 1 << 30;
/// More threads than this would contend for the one lock of our own address space.
const DEFAULT_MAX_THREADS: usize = 8;
/// `OVERLAYFS_SUPER_MAGIC` and `FUSE_SUPER_MAGIC` (include/uapi/linux/magic.h): pages may belong to a file below.
const STACKED: [i64; 2] = [0x794c_7630, 0x6573_5546];

/// How page caches are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Count by `cachestat`.
    Cachestat,
    /// Look at every page by `mincore`.
    Mincore,
}

/// One file's share of the page cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residency {
    /// Size of the file, -1 where it cannot be opened.
    pub size_bytes: i64,
    /// How much of it is cached; 0 where `error` says that it is not known.
    pub cached_bytes: i64,
    /// How much of that was changed and is not on disk yet; -1 where `cachestat` did not count it.
    pub dirty_bytes: i64,
    /// How much is being written to disk; -1 likewise.
    pub writeback_bytes: i64,
    /// How much was evicted so recently that it would become active if it were read again; -1 likewise.
    pub evicted_bytes: i64,
    /// `errno`, 0 where all went well.
    pub error: i32,
    /// By block, how many of its pages are cached; empty unless asked for.
    pub cached_pages: Vec<u8>,
}

impl Default for Residency {
    fn default() -> Self {
        Self {
            size_bytes: -1,
            cached_bytes: 0,
            dirty_bytes: -1,
            writeback_bytes: -1,
            evicted_bytes: -1,
            error: 0,
            cached_pages: Vec::new(),
        }
    }
}

/// What to look at, and how.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Whether to distinguish blocks, and their size in bytes.
    pub block_bytes: Option<u64>,
    /// How; None is `cachestat` where it exists, `mincore` for blocks.
    pub method: Option<Method>,
    /// Threads; None is one per processor, at most 8.
    pub threads: Option<usize>,
}

impl Request {
    /// Return the method that this kernel and request come to.
    pub fn effective_method(&self) -> Method {
        if self.block_bytes.is_some() || !has_cachestat() {
            Method::Mincore
        } else {
            self.method.unwrap_or(Method::Cachestat)
        }
    }
}

/// Look at all files, in parallel; the results are parallel to the paths. A file that vanished or that cannot be looked
/// at has its error, the others are not affected.
pub fn page_cache(paths: &[PathBuf], request: Request) -> Vec<Residency> {
    let method = request.effective_method();
    let count_stretches = request.method != Some(Method::Mincore);
    in_parallel(paths, request.threads, |path| {
        let mut residency = Residency::default();
        if let Err(error) = look(
            path,
            method,
            count_stretches,
            request.block_bytes,
            &mut residency,
        ) {
            residency.error = error.raw_os_error().unwrap_or(libc::EIO);
            residency.cached_bytes = 0;
            residency.cached_pages = Vec::new();
        }
        residency
    })
}

/// Ask the kernel to forget the files' pages; pages not yet written stay (posix_fadvise(2)). Return each file's `errno`.
pub fn drop_page_cache(paths: &[PathBuf]) -> Vec<i32> {
    in_parallel(paths, None, |path| match File::open(path) {
        // SAFETY: no memory is involved, and the descriptor is open.
        Ok(file) => unsafe {
            libc::posix_fadvise(file.fd.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED)
        },
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    })
}

fn in_parallel<T: Send>(
    paths: &[PathBuf],
    threads: Option<usize>,
    task: impl Fn(&Path) -> T + Sync,
) -> Vec<T> {
    let threads = threads.unwrap_or_else(|| parallel::processors(DEFAULT_MAX_THREADS));
    parallel::map(paths, threads.min(paths.len()), |path| task(path))
}

fn look(
    path: &Path,
    method: Method,
    count_stretches: bool,
    block_bytes: Option<u64>,
    residency: &mut Residency,
) -> io::Result<()> {
    let file = File::open(path)?;
    residency.size_bytes = file.size_bytes as i64;
    if method == Method::Cachestat && !file.is_stacked()? {
        match cachestat(file.fd.as_raw_fd(), 0, 0) {
            Ok(counts) => {
                let bytes = |pages: u64| (pages * page_bytes()).min(file.size_bytes) as i64;
                residency.cached_bytes = bytes(counts.cached);
                residency.dirty_bytes = bytes(counts.dirty);
                residency.writeback_bytes = bytes(counts.writeback);
                residency.evicted_bytes = bytes(counts.recently_evicted);
                return Ok(());
            }
            // A container's filter of system calls may refuse it in these words too: then the other may do.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {}
            Err(e) => return Err(e),
        }
    }
    if !file.mincore_is_honest() {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    // Where nobody insists on `mincore`, `cachestat` says of each stretch whether it is cached as a whole or not at all,
    // much faster than all its pages are gone through.
    let stretch_bytes = if count_stretches && has_cachestat() && !file.is_stacked()? {
        STRETCH_BYTES
    } else {
        MAPPING_BYTES
    };
    let mut blocks = block_bytes.map(|bytes| Blocks::new(bytes, file.size_bytes));
    let mut pages = 0;
    let mut offset = 0;
    while offset < file.size_bytes {
        let length = stretch_bytes.min(file.size_bytes - offset);
        let resident = match file.uniform(offset, length, stretch_bytes == STRETCH_BYTES) {
            Some(resident) => resident,
            None => file.resident(offset, length)?,
        };
        pages += resident.iter().map(|r| u64::from(r & 1)).sum::<u64>();
        if let Some(blocks) = &mut blocks {
            blocks.add(offset, &resident);
        }
        offset += stretch_bytes;
    }
    residency.cached_bytes = (pages * page_bytes()).min(file.size_bytes) as i64;
    residency.cached_pages = blocks.map(|b| b.cached_pages).unwrap_or_default();
    Ok(())
}

/// Pages that are cached, by block of a file.
struct Blocks {
    block_bytes: u64,
    cached_pages: Vec<u8>,
}

impl Blocks {
    fn new(block_bytes: u64, size_bytes: u64) -> Self {
        Self {
            block_bytes,
            cached_pages: vec![0; size_bytes.div_ceil(block_bytes) as usize],
        }
    }

    /// Add the pages from this offset on, a multiple of the block's and the page's size.
    fn add(&mut self, offset: u64, resident: &[u8]) {
        let page = page_bytes();
        let first = (offset / self.block_bytes) as usize;
        if self.block_bytes >= page {
            let pages = resident.chunks((self.block_bytes / page) as usize);
            for (block, pages) in self.cached_pages[first..].iter_mut().zip(pages) {
                *block = pages.iter().map(|r| r & 1).sum();
            }
        } else {
            // Pages of 16 or 64 kB, on other architectures: a block is cached as its page is.
            let blocks = (page / self.block_bytes) as usize;
            for (block, at) in self.cached_pages[first..].iter_mut().zip(0..) {
                let Some(r) = resident.get(at / blocks) else {
                    break;
                };
                *block = r & 1;
            }
        }
    }
}

/// A regular file, open for looking.
struct File {
    fd: OwnedFd,
    size_bytes: u64,
    /// Whether the kernel took us for its owner.
    owned: bool,
}

impl File {
    /// Open without being noticed: no access time where we may, no waiting if it is not a file at all.
    fn open(path: &Path) -> io::Result<Self> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        let (fd, owned) = match open(&name, flags | libc::O_NOATIME) {
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => (open(&name, flags)?, false),
            opened => (opened?, true),
        };
        // SAFETY: a stat is plain numbers, for which zeros are valid.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a stat that outlives the call.
        check(unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) })?;
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => {}
            libc::S_IFDIR => return Err(io::Error::from_raw_os_error(libc::EISDIR)),
            _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
        Ok(Self {
            fd,
            size_bytes: stat.st_size as u64,
            owned,
        })
    }

    /// Return whether the file's pages may belong to a file of another file system.
    fn is_stacked(&self) -> io::Result<bool> {
        // SAFETY: a statfs is plain numbers, for which zeros are valid.
        let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a statfs that outlives the call.
        check(unsafe { libc::fstatfs(self.fd.as_raw_fd(), &mut stat) })?;
        Ok(STACKED.contains(&(stat.f_type as i64)))
    }

    /// Return whether `mincore` reports the true state of this file, as `can_do_mincore` decides it.
    fn mincore_is_honest(&self) -> bool {
        let flags = libc::AT_EACCESS;
        let Ok(path) = CString::new(format!("/proc/self/fd/{}", self.fd.as_raw_fd())) else {
            return false;
        };
        // SAFETY: the path ends with a zero byte and outlives the call.
        self.owned
            || unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, flags) } == 0
    }

    /// Return what `resident` does for a range that is cached as a whole or not at all, if asked and so found.
    fn uniform(&self, offset: u64, length: u64, ask: bool) -> Option<Vec<u8>> {
        let pages = length.div_ceil(page_bytes());
        let cached = ask
            .then(|| cachestat(self.fd.as_raw_fd(), offset, length))?
            .ok()?
            .cached;
        let all_or_none = cached == 0 || cached == pages;
        all_or_none.then(|| vec![u8::from(cached > 0); pages as usize])
    }

    /// Return a byte for each page of this range: bit 0 says whether it is cached. Nothing is touched, so that a file cut
    /// short meanwhile does no harm: its lost pages are not cached.
    fn resident(&self, offset: u64, length: u64) -> io::Result<Vec<u8>> {
        let mut pages = vec![0; length.div_ceil(page_bytes()) as usize];
        // SAFETY: a new mapping at an address of the kernel's choice, never accessed.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length as usize,
                libc::PROT_NONE,
                libc::MAP_SHARED,
                self.fd.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping is ours and as long as said; the answer has a byte for each of its pages.
        let result =
            check(unsafe { libc::mincore(address, length as usize, pages.as_mut_ptr().cast()) });
        // SAFETY: the mapping was made above, and nothing refers to it.
        unsafe { libc::munmap(address, length as usize) };
        result.map(|()| pages)
    }
}

fn open(name: &CString, flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the name ends with a zero byte and outlives the call.
    let fd = unsafe { libc::open(name.as_ptr(), flags) };
    check(fd)?;
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Pages of a file's range, as `cachestat(2)` counts them.
struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    recently_evicted: u64,
}

/// Count the pages of a file's range by `cachestat(2)`; a length of 0 is up to the end.
fn cachestat(fd: libc::c_int, offset: u64, length: u64) -> io::Result<Counts> {
    // struct cachestat_range {off, len}; struct cachestat {nr_cache, nr_dirty, nr_writeback,
    // nr_evicted, nr_recently_evicted} (include/uapi/linux/mman.h).
    let range = [offset, length];
    let mut counts = [0_u64; 5];
    // SAFETY: both arrays are as large as the structs and outlive the call.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, fd, range.as_ptr(), counts.as_mut_ptr(), 0) };
    check(result as libc::c_int)?;
    let [cached, dirty, writeback, _, recently_evicted] = counts;
    Ok(Counts {
        cached,
        dirty,
        writeback,
        recently_evicted,
    })
}

/// Return whether this kernel has `cachestat`: with it a descriptor of no file is EBADF.
fn has_cachestat() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER
        .get_or_init(|| cachestat(-1, 0, 0).is_err_and(|e| e.raw_os_error() == Some(libc::EBADF)))
}

fn page_bytes() -> u64 {
    static ANSWER: OnceLock<u64> = OnceLock::new();
    // SAFETY: a question without memory.
    *ANSWER.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
