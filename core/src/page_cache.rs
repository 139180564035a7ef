//! The lists in which Linux keeps the pages of files, and what it evicts from them.
//!
//! | what | rule | source (Linux 6.18) |
//! |---|---|---|
//! | a page is added | inactive list, not referenced | `mm/swap.c`, `folio_add_lru` |
//! | a read of an inactive page | the first sets the referenced flag, the second activates and clears it | `mm/swap.c`, `folio_mark_accessed` |
//! | a read of an active page | sets the flag; the page does not move | the same |
//! | a write | neither flag nor list | `bbddabe2e436` |
//! | a page is evicted | from the inactive list's tail, referenced or not; the age of the group's list is remembered in its place, then raised by one | `mm/vmscan.c`, `folio_check_references`; `mm/workingset.c`, `workingset_eviction` |
//! | an evicted page is read again | active at once if the age has risen by no more than there are active pages | `workingset_refault`, `workingset_test_recent` |
//! | the same, by a write | as a page never seen | `f0281a00fe80`; `mm/filemap.c`, `filemap_add_folio` |
//! | an activation, of either kind | raises the age by one | `workingset_age_nonresident` |
//! | active pages are moved back | from the tail, keeping the flag, while the inactive list is too short or pages were activated on return since the last reclaim | `prepare_scan_control`, `inactive_is_low`, `shrink_active_list` |
//! | how much is reclaimed at a time | 32 pages, both lists in proportion to their lengths | `SWAP_CLUSTER_MAX`, `get_scan_count`, `shrink_lruvec` |
//!
//! Lengths of lists and counts of activations are compared as the kernel knows them: a memory cgroup's statistics
//! are gathered every 2 s (`mm/memcontrol.c`, `flush_memcg_stats_dwork`, `mem_cgroup_flush_stats_ratelimited`).
//! How much of each list is scanned depends on its true length (`lruvec_lru_size`).
//!
//! What lies on the lists are folios: one page, or several that readahead brought in together and that are
//! flagged, moved and evicted as one. They are known by their first page; a folio of 2^k pages begins at a
//! multiple of 2^k.
//!
//! Not modelled: dirty pages that reclaim meets before they were written back, pages that processes have
//! mapped, swap.

/// Which pages are evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The active and the inactive list, with refaults: Linux without MGLRU.
    TwoLists,
    /// In the order in which pages came. With [`Policy::Clock`] it bounds MGLRU.
    Fifo,
    /// As [`Policy::Fifo`], but a page that was read again since gets another round.
    Clock,
}

/// The largest folio is of 2^9 pages (`MAX_PAGECACHE_ORDER`).
pub const MAX_FOLIO_ORDER: u8 = 9;
/// Pages that are reclaimed at a time at least (`SWAP_CLUSTER_MAX`).
const CLUSTER_PAGES: u32 = 32;
/// Reclaim begins with this share of the lists, 2^-12 (`DEF_PRIORITY`), and doubles it.
const FIRST_PRIORITY: u32 = 12;
/// Pages of 4 kB in a gigabyte, as a power of two.
const GIGABYTE_SHIFT: u32 = 18;
/// The smallest cache that can be simulated.
pub const MIN_CAPACITY_PAGES: u32 = 256;

const PRESENT: u8 = 1;
const ACTIVE: u8 = 2;
const REFERENCED: u8 = 4;
/// Set where readahead goes on when the page is read (`PG_readahead`).
const MARKED: u8 = 8;
/// Absent, and `next` holds the age at its eviction.
const SHADOW: u8 = 16;

const INACTIVE: usize = 0;

/// What is known of a page, side by side: what looks at one part of it looks at others too.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// Of a folio's first page, the one towards the tail; of an evicted page, the age at its eviction.
    next: u32,
    /// Of a folio's first page, the one towards the head.
    previous: u32,
    /// Whether a page is there or was, and on a folio's first page its flags.
    state: u8,
    /// The order of the folio of a page that is there.
    order: u8,
}

/// The pages of all files in one page cache of limited size.
#[derive(Clone, Debug)]
pub(crate) struct PageLists {
    policy: Policy,
    capacity: u32,
    /// How many pages each one stands for.
    each: f64,
    /// All pages, and behind them the head of each list's ring.
    pages: Vec<Page>,
    /// Pages on each list.
    length: [u32; 2],
    /// `lruvec->nonresident_age`; differences only are used, so it may wrap.
    age: u32,
    /// Pages activated when they came back (`WORKINGSET_ACTIVATE_FILE`), and how many at the last reclaim.
    activated: u64,
    activated_before: u64,
    refaulted: u64,
    /// What the kernel compares with, where it is not what is: lengths of the lists, and `activated`.
    known: Option<([u32; 2], u64)>,
}

impl PageLists {
    pub fn new(n_pages: u32, capacity: u32, policy: Policy, each: f64) -> Self {
        let mut pages = vec![Page::default(); n_pages as usize + 2];
        for head in n_pages..n_pages + 2 {
            pages[head as usize].next = head;
            pages[head as usize].previous = head;
        }
        Self {
            policy,
            capacity,
            each,
            pages,
            length: [0; 2],
            age: 0,
            activated: 0,
            activated_before: 0,
            refaulted: 0,
            known: None,
        }
    }

    /// From now on the kernel goes by its statistics as they are at this moment.
    pub fn gather_statistics(&mut self) {
        self.known = Some((self.length, self.activated));
    }

    fn known_length(&self) -> [u32; 2] {
        self.known.map_or(self.length, |known| known.0)
    }

    fn known_activated(&self) -> u64 {
        self.known.map_or(self.activated, |known| known.1)
    }

    #[inline]
    pub fn has(&self, page: u32) -> bool {
        self.pages[page as usize].state & PRESENT != 0
    }

    /// Pages that came back after an eviction (`WORKINGSET_REFAULT_FILE`).
    pub fn refaulted(&self) -> u64 {
        self.refaulted
    }

    /// Length of the active list.
    pub fn active(&self) -> u32 {
        self.length[1]
    }

    /// The first page of the folio of a present page, and how many it has.
    #[inline]
    pub fn folio(&self, page: u32) -> (u32, u32) {
        let size = 1 << self.pages[page as usize].order;
        (page & !(size - 1), size)
    }

    /// Note that readahead goes on when the folio that begins here is read.
    pub fn mark(&mut self, first: u32) {
        self.pages[first as usize].state |= MARKED;
    }

    /// Whether readahead goes on at a page's folio; only once.
    #[inline]
    pub fn take_mark(&mut self, page: u32) -> bool {
        let (first, _) = self.folio(page);
        let state = &mut self.pages[first as usize].state;
        let marked = *state & MARKED != 0;
        *state &= !MARKED;
        marked
    }

    /// The folio of a present page is read.
    #[inline]
    pub fn access(&mut self, page: u32) {
        let (first, size) = self.folio(page);
        let state = self.pages[first as usize].state;
        let twice = state & (REFERENCED | ACTIVE) == REFERENCED;
        if !twice || self.policy != Policy::TwoLists {
            self.pages[first as usize].state = state | REFERENCED;
            return;
        }
        self.unlink(first);
        self.pages[first as usize].state = (state & !REFERENCED) | ACTIVE;
        self.link(first);
        self.age = self.age.wrapping_add(size);
    }

    /// Bring in a folio of absent pages, after making room for it.
    pub fn add(&mut self, first: u32, order: u8, by_write: bool) {
        let size = 1 << order;
        while self.length[0] + self.length[1] + size > self.capacity {
            self.reclaim(size);
        }
        let mut shadow = None;
        for page in first as usize..(first + size) as usize {
            let page = &mut self.pages[page];
            if page.state & SHADOW != 0 {
                shadow = Some(page.next);
            }
            page.state = PRESENT;
            page.order = order;
        }
        if let Some(evicted_at) = shadow.filter(|_| !by_write) {
            self.refaulted += u64::from(size);
            let distance = self.age.wrapping_sub(evicted_at);
            if self.policy == Policy::TwoLists && distance <= self.known_length()[1] {
                self.pages[first as usize].state |= ACTIVE;
                self.age = self.age.wrapping_add(size);
                self.activated += u64::from(size);
            }
        }
        self.link(first);
    }

    /// Take out a page whose file is dropped or truncated; a folio goes with its first page that does.
    pub fn remove(&mut self, page: u32) {
        if self.has(page) {
            let (first, size) = self.folio(page);
            self.unlink(first);
            self.pages[first as usize..(first + size) as usize].fill(Page::default());
        }
        self.pages[page as usize].state = 0;
    }

    fn list_of(&self, first: u32) -> usize {
        usize::from(self.pages[first as usize].state & ACTIVE != 0)
    }

    fn head(&self, list: usize) -> usize {
        self.pages.len() - 2 + list
    }

    fn link(&mut self, first: u32) {
        let list = self.list_of(first);
        let head = self.head(list);
        let second = self.pages[head].next;
        self.pages[first as usize].next = second;
        self.pages[first as usize].previous = head as u32;
        self.pages[head].next = first;
        self.pages[second as usize].previous = first;
        self.length[list] += 1 << self.pages[first as usize].order;
    }

    fn unlink(&mut self, first: u32) {
        let (before, after) = (
            self.pages[first as usize].previous,
            self.pages[first as usize].next,
        );
        self.pages[before as usize].next = after;
        self.pages[after as usize].previous = before;
        self.length[self.list_of(first)] -= 1 << self.pages[first as usize].order;
    }

    /// The inactive list is shorter than the active one allows (`inactive_is_low`).
    fn inactive_is_low(&self) -> bool {
        let [inactive, active] = self.known_length().map(u64::from);
        let gigabytes = ((inactive + active) as f64 * self.each) as u64 >> GIGABYTE_SHIFT;
        let ratio = if gigabytes == 0 {
            1
        } else {
            ((10 * gigabytes) as f64).sqrt() as u64
        };
        inactive * ratio < active
    }

    /// `do_try_to_free_pages` of a memory cgroup without anonymous memory to swap.
    #[cold]
    fn reclaim(&mut self, wanted: u32) {
        let wanted = wanted.max(CLUSTER_PAGES);
        let reclaimed = self.reclaim_by_priority(wanted, false);
        self.activated_before = self.known_activated();
        if reclaimed == 0 {
            // Nothing is inactive, and the statistics do not say so yet (`force_deactivate`).
            self.reclaim_by_priority(wanted, true);
        }
    }

    fn reclaim_by_priority(&mut self, wanted: u32, force: bool) -> u32 {
        let mut reclaimed = 0;
        for priority in (0..=FIRST_PRIORITY).rev() {
            let returned = self.known_activated() != self.activated_before;
            let deactivate = force || returned || self.inactive_is_low();
            // In proportion to the lists as they are, where a page stands for many.
            let scanned = |pages: u32| {
                ((f64::from(pages) * self.each) as u64 >> priority).min(u64::from(pages))
            };
            let mut left = self.length.map(|pages| scanned(pages) as u32);
            let mut here = 0;
            while left != [0, 0] && here < wanted {
                let part = left.map(|pages| pages.min(CLUSTER_PAGES));
                here += self.shrink_inactive(part[0]);
                if deactivate {
                    self.shrink_active(part[1]);
                }
                left = [left[0] - part[0], left[1] - part[1]];
            }
            reclaimed += here;
            if reclaimed >= wanted {
                break;
            }
        }
        reclaimed
    }

    fn shrink_inactive(&mut self, scan: u32) -> u32 {
        let head = self.head(INACTIVE);
        let scan = scan.min(self.length[INACTIVE]);
        let mut scanned = 0;
        let mut evicted = 0;
        while scanned < scan {
            let first = self.pages[head].previous;
            let (_, size) = self.folio(first);
            scanned += size;
            self.unlink(first);
            let state = self.pages[first as usize].state;
            if self.policy == Policy::Clock && state & REFERENCED != 0 {
                self.pages[first as usize].state = state & !REFERENCED;
                self.link(first);
                continue;
            }
            for page in first as usize..(first + size) as usize {
                self.pages[page].state = SHADOW;
                self.pages[page].next = self.age;
            }
            self.age = self.age.wrapping_add(size);
            evicted += size;
        }
        evicted
    }

    fn shrink_active(&mut self, scan: u32) {
        let head = self.head(1);
        let scan = scan.min(self.length[1]);
        let mut scanned = 0;
        while scanned < scan {
            let first = self.pages[head].previous;
            scanned += self.folio(first).1;
            self.unlink(first);
            self.pages[first as usize].state &= !ACTIVE;
            self.link(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_may_be_active_where_each_page_stands_for_many() {
        let active = |each| {
            let mut lists = PageLists::new(4096, 1024, Policy::TwoLists, each);
            for page in 0..4096 {
                lists.add(page, 0, false);
                lists.access(page);
                lists.access(page);
            }
            lists.active()
        };
        // Half of a cache below a gigabyte; of 16 GB all but a 13th.
        assert!((470..=540).contains(&active(1.0)), "{}", active(1.0));
        assert!((900..=990).contains(&active(4096.0)), "{}", active(4096.0));
    }
}
