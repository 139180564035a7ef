//! Reads and writes of blocks of files through a page cache, with readahead.
//!
//! Readahead is decided by open file, as `mm/readahead.c` of Linux 6.18 does (`page_cache_sync_ra`,
//! `page_cache_async_ra`): a read that begins where the last one ended, or at the beginning of the file, opens a
//! window; a lone read is read as it is, unless more pages before it are cached than it has itself. A window that
//! goes on has larger folios each time, where the file system allows them.

use std::hint::black_box;
use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::page_cache::{PageLists, Policy, MAX_FOLIO_ORDER, MIN_CAPACITY_PAGES};
use crate::trace::{refuse, InputError};

/// 1 GB.
const MAX_READAHEAD_PAGES: u32 = 1 << 18;

/// What happens to a block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// It is read.
    Read = 0,
    /// It is written whole.
    Write = 1,
    /// Its file is dropped or truncated before it.
    Drop = 2,
}

/// A page cache, and how its kernel reads.
#[derive(Clone, Copy, Debug)]
pub struct PageCache {
    /// Kernel pages in a block: 2 for 8 kB.
    pub pages_per_block: u32,
    /// The size of the page cache.
    pub capacity_pages: u32,
    /// `read_ahead_kb` in pages; 0 means none.
    pub readahead_pages: u32,
    /// The largest folio of the file system, as a power of two; 0 where all are of one page.
    pub folio_order: u8,
    /// What is evicted.
    pub policy: Policy,
    /// How many pages each one stands for, where a sample is simulated: how long the inactive list must be depends on the
    /// size of the whole page cache.
    pub pages_each: f64,
}

/// What to do, to which page cache.
#[derive(Clone, Copy, Debug)]
pub struct FileRequest<'a> {
    /// By operation, the number of its block: blocks of all files are numbered one after the other.
    pub blocks: &'a [u32],
    /// What is done: see [`Operation`]. Nothing means that all are read.
    pub operations: Option<&'a [u8]>,
    /// By operation, which open file it goes through; nothing means that each file is opened once.
    pub streams: Option<&'a [u32]>,
    /// The first block of each file, ascending from 0, and where the last one ends.
    pub files: &'a [u32],
    /// What they go through.
    pub cache: PageCache,
    /// Before which operations, ascending, the kernel gathers its statistics (every 2 s); nothing means that they are
    /// never old.
    pub gathered: Option<&'a [u64]>,
    /// Blocks that are there at the beginning, each once, in the order in which they were read.
    pub resident: &'a [u32],
    /// From which operation on pages that come back are counted; 0 counts all.
    pub refaulted_from: u64,
}

/// The outcome of the operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileOutcomes {
    /// By operation, how many of the block's pages a read did not find.
    pub missing_pages: Vec<u8>,
    /// By operation, how many pages were read from disk, readahead included.
    pub disk_pages: Vec<u32>,
    /// By block, how many of its pages are cached at the end.
    pub cached_pages: Vec<u8>,
    /// Pages that came back after an eviction, from the operation on that the request names.
    pub refaulted_pages: u64,
    /// Pages on the active list at the end.
    pub active_pages: u32,
}

/// An open file's window (`struct file_ra_state`).
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    start: u32,
    size: u32,
    ahead: u32,
    order: u8,
    /// The page behind the last read.
    next: Option<u32>,
}

/// A file: its first page, and the page behind its last one.
#[derive(Clone, Copy, Debug)]
struct File {
    first: u32,
    end: u32,
}

/// Files read through a page cache.
pub(crate) struct FileCache<'a> {
    cache: PageCache,
    /// The first block of each file, and where the last one ends.
    begins: &'a [u32],
    lists: PageLists,
    files: Vec<File>,
    windows: Vec<Window>,
    /// Where the window of a stream and a file is.
    window_of: FxHashMap<(u32, u32), usize>,
    disk_pages: u32,
}

/// Do all operations one after the other.
///
/// # Errors
/// Where the parts of the request do not fit together.
pub fn access_files(request: &FileRequest<'_>) -> Result<FileOutcomes, InputError> {
    let mut files = FileCache::new(request.files, request.cache, request.resident)?;
    check_operations(request)?;
    let n = request.blocks.len();
    let mut outcomes = FileOutcomes {
        missing_pages: Vec::with_capacity(n),
        disk_pages: Vec::with_capacity(n),
        ..FileOutcomes::default()
    };
    let mut refaulted_before = files.refaulted();
    if request.gathered.is_some() {
        files.gather_statistics();
    }
    let mut gathered = request.gathered.unwrap_or_default();
    for (k, &block) in request.blocks.iter().enumerate() {
        while let Some((_, later)) = gathered.split_first().filter(|&(&at, _)| at <= k as u64) {
            files.gather_statistics();
            gathered = later;
        }
        if k as u64 == request.refaulted_from {
            refaulted_before = files.refaulted();
        }
        let operation = request.operations.map_or(0, |operations| operations[k]);
        let (missing, disk) = if operation == Operation::Drop as u8 {
            files.drop_block(block)
        } else if operation == Operation::Write as u8 {
            files.write(block)
        } else {
            files.read(block, request.streams.map_or(0, |streams| streams[k]))
        };
        outcomes.missing_pages.push(missing);
        outcomes.disk_pages.push(disk);
    }
    let n_blocks = request.files.last().copied().unwrap_or(0);
    outcomes.cached_pages = (0..n_blocks).map(|block| files.cached(block)).collect();
    outcomes.refaulted_pages = if request.refaulted_from < n as u64 {
        files.refaulted() - refaulted_before
    } else {
        0
    };
    outcomes.active_pages = files.lists.active();
    Ok(outcomes)
}

/// Check what is asked for, apart from the cache and its files.
fn check_operations(request: &FileRequest<'_>) -> Result<(), InputError> {
    let n = request.blocks.len();
    if request.operations.is_some_and(|all| all.len() != n)
        || request.streams.is_some_and(|all| all.len() != n)
    {
        refuse!("operations and streams need one entry for each of the {n} blocks");
    }
    let known = |all: &[u8]| all.iter().all(|&one| one <= Operation::Drop as u8);
    if !request.operations.map_or(true, known) {
        refuse!("an operation is 0 (read), 1 (write) or 2 (drop)");
    }
    check_blocks(request.files, request.blocks)
}

/// Check that blocks lie in files that begin there.
pub(crate) fn check_blocks(begins: &[u32], blocks: &[u32]) -> Result<(), InputError> {
    let n_blocks = begins.last().copied().unwrap_or(0);
    if blocks.iter().any(|&block| block >= n_blocks) {
        refuse!("a block is not below {n_blocks}, where the last file ends");
    }
    Ok(())
}

/// Number the pages of files, each from where the largest folio may begin.
fn lay_out(begins: &[u32], cache: &PageCache) -> Result<Vec<File>, InputError> {
    let n_blocks = match (begins.first(), begins.last()) {
        (Some(0), Some(&n)) if begins.windows(2).all(|w| w[0] <= w[1]) => n,
        _ => refuse!("the first blocks of files ascend from 0"),
    };
    if !(1..=64).contains(&cache.pages_per_block) || cache.folio_order > MAX_FOLIO_ORDER {
        refuse!(
            "blocks of {} pages, or folios of 2^{} pages, do not exist",
            cache.pages_per_block,
            cache.folio_order
        );
    }
    let least = MIN_CAPACITY_PAGES.max(4 << cache.folio_order);
    if cache.capacity_pages < least {
        refuse!(
            "a page cache of {} pages is too small: {least} are the least",
            cache.capacity_pages
        );
    }
    if !cache.pages_each.is_finite() || cache.pages_each <= 0.0 {
        refuse!("a page cannot stand for {} pages", cache.pages_each);
    }
    if cache.readahead_pages > MAX_READAHEAD_PAGES {
        refuse!(
            "{} pages are more than any kernel reads ahead",
            cache.readahead_pages
        );
    }
    let align = 1 << cache.folio_order;
    let mut end = 0_u64;
    let mut files = Vec::with_capacity(begins.len() - 1);
    for pair in begins.windows(2) {
        let first = end.next_multiple_of(align);
        end = first + u64::from(pair[1] - pair[0]) * u64::from(cache.pages_per_block);
        if end > u64::from(u32::MAX - 4 * MAX_READAHEAD_PAGES) {
            refuse!("{n_blocks} blocks are more than can be simulated");
        }
        files.push(File {
            first: first as u32,
            end: end as u32,
        });
    }
    Ok(files)
}

impl<'a> FileCache<'a> {
    /// Files of which some blocks are cached already, each named once, in the order in which they were read.
    ///
    /// # Errors
    /// Where there is no such page cache, or a block lies in no file.
    pub fn new(begins: &'a [u32], cache: PageCache, resident: &[u32]) -> Result<Self, InputError> {
        let files = lay_out(begins, &cache)?;
        check_blocks(begins, resident)?;
        let n_pages = files.last().map_or(0, |file| file.end);
        let mut all = Self {
            cache,
            begins,
            lists: PageLists::new(
                n_pages,
                cache.capacity_pages,
                cache.policy,
                cache.pages_each,
            ),
            files,
            windows: Vec::new(),
            window_of: FxHashMap::default(),
            disk_pages: 0,
        };
        for &block in resident {
            for page in all.pages(block) {
                if !all.lists.has(page) {
                    all.lists.add(page, 0, false);
                    all.lists.access(page);
                }
            }
        }
        Ok(all)
    }

    /// The file of a block, and its first page.
    fn place(&self, block: u32) -> (usize, u32) {
        let file = self.begins.partition_point(|&first| first <= block) - 1;
        let within = (block - self.begins[file]) * self.cache.pages_per_block;
        (file, self.files[file].first + within)
    }

    fn pages(&self, block: u32) -> Range<u32> {
        let (_, first) = self.place(block);
        first..first + self.cache.pages_per_block
    }

    /// Look at blocks that are about to be read: memory gives several at a time faster than one after the other.
    pub fn look_at(&self, blocks: impl Iterator<Item = u32>) {
        let there = blocks.filter(|&block| self.lists.has(self.place(block).1));
        black_box(there.count());
    }

    /// Whether all pages of a block are cached.
    pub fn is_cached(&self, block: u32) -> bool {
        self.pages(block).all(|page| self.lists.has(page))
    }

    /// How many pages of a block are cached.
    fn cached(&self, block: u32) -> u8 {
        let there = |&page: &u32| self.lists.has(page);
        self.pages(block).filter(there).count() as u8
    }

    /// From now on the kernel goes by its statistics as they are at this moment.
    pub fn gather_statistics(&mut self) {
        self.lists.gather_statistics();
    }

    /// Pages that came back after an eviction.
    pub fn refaulted(&self) -> u64 {
        self.lists.refaulted()
    }

    /// Drop a block with its file, or truncate it; nothing is missing and nothing read, as by [`Self::write`].
    pub fn drop_block(&mut self, block: u32) -> (u8, u32) {
        for page in self.pages(block) {
            self.lists.remove(page);
        }
        (0, 0)
    }

    /// Write a whole block.
    pub fn write(&mut self, block: u32) -> (u8, u32) {
        for page in self.pages(block) {
            if !self.lists.has(page) {
                self.lists.add(page, 0, true);
            }
        }
        (0, 0)
    }

    /// Read a block through an open file: how many of its pages are missing, and how many come from disk.
    pub fn read(&mut self, block: u32, stream: u32) -> (u8, u32) {
        let (file, first) = self.place(block);
        let pages = first..first + self.cache.pages_per_block;
        let missing = pages.filter(|&page| !self.lists.has(page)).count();
        self.disk_pages = 0;
        self.read_pages(file, first, stream);
        (missing as u8, self.disk_pages)
    }

    /// `filemap_read` of one block.
    fn read_pages(&mut self, file: usize, first: u32, stream: u32) {
        let end = first + self.cache.pages_per_block;
        let unused = self.windows.len();
        let at = *self
            .window_of
            .entry((stream, file as u32))
            .or_insert(unused);
        if at == unused {
            self.windows.push(Window::default());
        }
        // Where it is, not a copy: what was just written in parts is slow to copy as a whole.
        let mut windows = std::mem::take(&mut self.windows);
        let window = &mut windows[at];
        let file = self.files[file];
        let before = window.next.map(|next| next.wrapping_sub(1));
        let mut page = first;
        while page < end {
            if !self.lists.has(page) {
                self.sync_readahead(window, page, end - page, file);
                if !self.lists.has(page) {
                    self.fetch(page, 0);
                }
            }
            // Up to a folio at which readahead goes on (`filemap_get_read_batch`).
            let begin = page;
            loop {
                let (folio, size) = self.lists.folio(page);
                page = folio + size;
                if self.lists.take_mark(folio) {
                    let wanted = end.saturating_sub(folio);
                    self.async_readahead(window, (folio, size), wanted, file);
                    break;
                }
                if page >= end || !self.lists.has(page) {
                    break;
                }
            }
            self.read_folios(begin, page.min(end), before);
        }
        window.next = Some(end);
        self.windows = windows;
    }

    /// Mark folios as read, but the first one where the last read ended in it (`pos_same_folio`).
    fn read_folios(&mut self, begin: u32, end: u32, before: Option<u32>) {
        let mut page = begin;
        while page < end {
            // Reclaim leaves pages alone that are being read; here a tiny cache may have dropped them.
            if !self.lists.has(page) {
                page += 1;
                continue;
            }
            let (folio, size) = self.lists.folio(page);
            let same = |last: u32| (folio..folio + size).contains(&last);
            if page != begin || !before.is_some_and(same) {
                self.lists.access(folio);
            }
            page = folio + size;
        }
    }

    fn fetch(&mut self, page: u32, order: u8) {
        self.lists.add(page, order, false);
        self.disk_pages += 1 << order;
    }

    /// Read what is not there of `size` pages, page by page, and mark where to go on (`do_page_cache_ra`).
    fn fetch_pages(&mut self, start: u32, size: u32, ahead: u32, file: File) {
        let mark = if ahead <= size {
            start + size - ahead
        } else {
            u32::MAX
        };
        for page in start..start.saturating_add(size).min(file.end) {
            if !self.lists.has(page) {
                self.fetch(page, 0);
                if page == mark {
                    self.lists.mark(page);
                }
            }
        }
    }

    /// Read a window in folios, until one meets a page that is there (`page_cache_ra_order`).
    fn fetch_window(&mut self, window: &mut Window, file: File) {
        if window.start >= file.end {
            return;
        }
        if self.cache.folio_order == 0 {
            return self.fetch_pages(window.start, window.size, window.ahead, file);
        }
        let largest = window.order.min(self.cache.folio_order);
        window.order = largest.min(window.size.ilog2() as u8);
        let limit = window.start.saturating_add(window.size).min(file.end);
        let mark = window.start + window.size - window.ahead;
        let mut page = window.start;
        while page < limit {
            let mut order = window.order;
            let within = page - file.first;
            if within & ((1 << order) - 1) != 0 {
                order = within.trailing_zeros() as u8;
            }
            while order > 0 && page + (1 << order) > limit {
                order -= 1;
            }
            let size = 1 << order;
            if (page..page + size).any(|page| self.lists.has(page)) {
                let left = window.size - (page - window.start);
                return self.fetch_pages(page, left, window.ahead, file);
            }
            self.fetch(page, order);
            if page == mark & !(size - 1) {
                self.lists.mark(page);
            }
            page += size;
        }
    }

    /// `page_cache_sync_ra`: a page is missing.
    fn sync_readahead(&mut self, window: &mut Window, page: u32, wanted: u32, file: File) {
        let most = self.cache.readahead_pages;
        if most == 0 {
            return self.fetch_pages(page, wanted, 0, file);
        }
        let follows = |next: u32| page == next || page == next + 1;
        if page == file.first || wanted > most || window.next.is_some_and(follows) {
            window.size = first_size(wanted, most);
            window.ahead = if window.size > wanted {
                window.size - wanted
            } else {
                window.size >> 1
            };
        } else {
            let before = (file.first..page).rev().take(most as usize);
            let mut history = before.take_while(|&page| self.lists.has(page)).count() as u32;
            if history <= wanted {
                return self.fetch_pages(page, wanted, 0, file);
            }
            if history == page - file.first {
                history *= 2;
            }
            window.size = (history + wanted).min(most);
            window.ahead = 1;
        }
        window.start = page;
        window.order = 0;
        self.fetch_window(window, file);
    }

    /// `page_cache_async_ra`: a folio is read at which readahead is to go on.
    fn async_readahead(
        &mut self,
        window: &mut Window,
        (page, size): (u32, u32),
        wanted: u32,
        file: File,
    ) {
        let most = self.cache.readahead_pages;
        if most == 0 {
            return;
        }
        let expected = (window.start + window.size).wrapping_sub(window.ahead) & !(size - 1);
        if page == expected {
            window.start += window.size;
            window.size = next_size(window.size, most).max(window.size);
        } else {
            let behind = (page + 1..file.end).take(most as usize);
            let cached = behind.take_while(|&page| self.lists.has(page)).count() as u32;
            if cached == most {
                return;
            }
            window.start = page + 1 + cached;
            window.size = next_size(cached + 1 + wanted, most);
        }
        window.ahead = window.size;
        window.order += 2;
        self.fetch_window(window, file);
    }
}

/// `get_init_ra_size`.
fn first_size(wanted: u32, most: u32) -> u32 {
    let size = wanted.next_power_of_two();
    if size <= most / 32 {
        size * 4
    } else if size <= most / 4 {
        size * 2
    } else {
        most
    }
}

/// `get_next_ra_size`.
fn next_size(size: u32, most: u32) -> u32 {
    if size < most / 16 {
        size * 4
    } else if size <= most / 2 {
        size * 2
    } else {
        most
    }
}
