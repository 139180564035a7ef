//! PostgreSQL's buffer pool: frames, usage counts, the clock sweep, the free list, rings.
//!
//! A page's state is one byte: 0 while it is absent, usage_count + 1 while it is in the pool. So a hit
//! touches this byte and nothing else. The bytes do not belong to [`Frames`] but to its caller, as
//! `[[u8; L]]`, page by page, with one column (`lane`) for each of L pools that are replayed together:
//! see [`crate::replay`]. [`Pool`] is the case of one pool.

use crate::rules::{Rules, Strategy};

/// No page: the content of an unused or invalidated frame.
pub const NO_PAGE: u32 = u32::MAX;
/// State of a page that is not in the pool.
pub const ABSENT: u8 = 0;
/// State of a page with usage_count 0: the next look of the sweep takes it.
const USAGE_0: u8 = 1;
/// State of a page just read (`bufmgr.c`, `BufferAlloc`: usage_count 1).
pub(crate) const LOADED: u8 = 2;

/// Which of the pools that share a table of page states.
pub(crate) type Lane = usize;

/// The states of pages `0..n_pages`, `column` telling the first state in each lane, and of no page.
pub(crate) fn page_states<const L: usize>(
    n_pages: u32,
    column: impl FnMut(Lane) -> u8,
) -> Vec<[u8; L]> {
    let mut states = vec![std::array::from_fn(column); n_pages as usize];
    states.push([USAGE_0; L]);
    states
}

/// The frames of one pool, its hand and its free list; the states of pages lie outside.
#[derive(Clone, Debug)]
pub(crate) struct Frames {
    /// Page of each frame that was ever used, at most `n_buffers`; the rest is free, in order.
    page_of: Vec<u32>,
    n_buffers: u32,
    hand: u32,
    passes: u64,
    /// Head of the list is the end of the vector. Empty in servers without one.
    free: Vec<u32>,
    /// Whether a frame is on the list; as long as is needed.
    listed: Vec<bool>,
    has_free_list: bool,
    /// The content of an empty frame: a row of `states` behind all pages, always at usage_count 0, so
    /// that the sweep need not ask.
    none: u32,
    /// Frame of each page; kept only where pages can be dropped.
    frame_of: Vec<u32>,
}

impl Frames {
    pub fn new(n_buffers: u32, n_pages: u32, rules: &Rules, drops: bool) -> Self {
        Self {
            page_of: Vec::with_capacity(n_buffers.min(n_pages) as usize),
            n_buffers,
            hand: 0,
            passes: 0,
            free: Vec::new(),
            listed: Vec::new(),
            has_free_list: rules.has_free_list(),
            none: n_pages,
            frame_of: if drops {
                vec![0; n_pages as usize]
            } else {
                Vec::new()
            },
        }
    }

    /// Make the pool what `contents` says instead of empty.
    pub fn warm<const L: usize>(
        &mut self,
        states: &mut [[u8; L]],
        lane: Lane,
        contents: &Contents<'_>,
    ) {
        let n_buffers = self.n_buffers as usize;
        if contents.frames.is_some() {
            self.page_of = vec![self.none; n_buffers];
        } else {
            self.page_of = vec![self.none; contents.pages.len()];
        }
        for (k, (&page, &usage)) in contents.pages.iter().zip(contents.usage_counts).enumerate() {
            let frame = contents.frames.map_or(k as u32, |frames| frames[k]);
            self.place(page, frame);
            states[page as usize][lane] = usage + 1;
        }
        if self.has_free_list {
            // The list of a started server is ascending; its head is taken first.
            let page_of = &self.page_of;
            let unused = |f: &u32| page_of[*f as usize] == self.none;
            self.free = (0..page_of.len() as u32).rev().filter(unused).collect();
            self.listed = page_of.iter().map(|&p| p == self.none).collect();
        }
        self.hand = contents.hand;
    }

    pub fn n_buffers(&self) -> u32 {
        self.n_buffers
    }

    pub fn hand(&self) -> u32 {
        self.hand
    }

    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// Page of each frame used so far, [`NO_PAGE`] if it holds none now.
    pub fn pages(&self) -> Vec<u32> {
        let name = |&page: &u32| if page == self.none { NO_PAGE } else { page };
        self.page_of.iter().map(name).collect()
    }

    /// Note that a frame holds a page.
    #[inline]
    fn place(&mut self, page: u32, frame: u32) {
        self.page_of[frame as usize] = page;
        if !self.frame_of.is_empty() {
            self.frame_of[page as usize] = frame;
        }
    }

    /// Bring an absent page into the pool with usage_count 1 (`bufmgr.c`, `BufferAlloc`).
    #[inline(always)]
    pub fn load<const L: usize>(&mut self, states: &mut [[u8; L]], lane: Lane, page: u32) {
        let frame = self.victim(states, lane);
        self.place(page, frame);
        states[page as usize][lane] = LOADED;
    }

    /// Bring an absent page into the pool through a ring.
    pub fn load_through<const L: usize>(
        &mut self,
        states: &mut [[u8; L]],
        lane: Lane,
        page: u32,
        ring: &mut Ring,
    ) {
        let frame = ring.next(self, states, lane);
        self.place(page, frame);
        states[page as usize][lane] = LOADED;
    }

    /// Take a page out (DROP, TRUNCATE): `bufmgr.c`, `InvalidateBuffer`.
    pub fn invalidate<const L: usize>(&mut self, states: &mut [[u8; L]], lane: Lane, page: u32) {
        let state = &mut states[page as usize][lane];
        if *state == ABSENT {
            return;
        }
        *state = ABSENT;
        let frame = self.frame_of[page as usize];
        self.page_of[frame as usize] = self.none;
        if self.has_free_list {
            let frame = frame as usize;
            if self.listed.len() <= frame {
                self.listed.resize(frame + 1, false);
            }
            // A ring may use a listed frame meanwhile; the server then leaves it where it is.
            if !self.listed[frame] {
                self.listed[frame] = true;
                self.free.push(frame as u32);
            }
        }
    }

    /// Choose a frame and empty it: `freelist.c`, `StrategyGetBuffer` without a ring.
    #[inline(always)]
    fn victim<const L: usize>(&mut self, states: &mut [[u8; L]], lane: Lane) -> u32 {
        if !self.free.is_empty() {
            if let Some(frame) = self.listed_victim(states, lane) {
                return frame;
            }
        }
        // Never-used frames come in order from the initial free list, and where there is none, from the
        // sweep's first pass, which finds them all at usage_count 0 and so ends where it began.
        if self.page_of.len() < self.n_buffers as usize {
            self.page_of.push(self.none);
            return self.page_of.len() as u32 - 1;
        }
        self.sweep(states, lane)
    }

    /// Let the hand go round until it takes a frame: decrement what it passes, take what is at 0.
    #[inline(always)]
    fn sweep<const L: usize>(&mut self, states: &mut [[u8; L]], lane: Lane) -> u32 {
        let mut hand = self.hand as usize;
        // Four looks at a time without a branch on what is seen, which no processor could predict.
        while let Some(&[a, b, c, d]) = self.page_of[hand..].first_chunk::<4>() {
            let [a, b, c, d] = [a as usize, b as usize, c as usize, d as usize];
            let s0 = states[a][lane];
            let s1 = states[b][lane];
            let s2 = states[c][lane];
            let s3 = states[d][lane];
            let taken = u32::from(s0 == USAGE_0)
                | u32::from(s1 == USAGE_0) << 1
                | u32::from(s2 == USAGE_0) << 2
                | u32::from(s3 == USAGE_0) << 3;
            let passed = (taken | 16).trailing_zeros();
            states[a][lane] = s0 - 1;
            states[b][lane] = s1 - u8::from(passed >= 1);
            states[c][lane] = s2 - u8::from(passed >= 2);
            states[d][lane] = s3 - u8::from(passed >= 3);
            if passed < 4 {
                return self.take(states, lane, hand + passed as usize);
            }
            hand += 4;
        }
        loop {
            if hand == self.page_of.len() {
                hand = 0;
                self.passes += 1;
            }
            let state = &mut states[self.page_of[hand] as usize][lane];
            *state -= 1;
            if *state == ABSENT {
                return self.take(states, lane, hand);
            }
            hand += 1;
        }
    }

    #[inline(always)]
    fn take<const L: usize>(&mut self, states: &mut [[u8; L]], lane: Lane, frame: usize) -> u32 {
        let page = self.page_of[frame];
        if page == self.none {
            states[page as usize][lane] = USAGE_0;
        }
        self.hand = frame as u32 + 1;
        if self.hand == self.n_buffers {
            self.hand = 0;
            self.passes += 1;
        }
        frame as u32
    }

    /// Take the first frame of the free list that nothing uses; skip, for good, those in use.
    #[cold]
    fn listed_victim<const L: usize>(&mut self, states: &mut [[u8; L]], lane: Lane) -> Option<u32> {
        while let Some(frame) = self.free.pop() {
            self.listed[frame as usize] = false;
            let page = self.page_of[frame as usize];
            if page == self.none {
                return Some(frame);
            }
            let state = &mut states[page as usize][lane];
            if *state == USAGE_0 {
                *state = ABSENT;
                return Some(frame);
            }
        }
        None
    }
}

/// The ring of one scan or command: `freelist.c`, `GetBufferFromRing` and `AddBufferToRing`.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    /// Frames, filled one by one during the first round.
    slots: Vec<u32>,
    capacity: u32,
    next: usize,
}

impl Ring {
    pub fn new(capacity: u32) -> Self {
        Self {
            slots: Vec::new(),
            capacity,
            next: 0,
        }
    }

    /// The frame for the next miss: the slot's own if it is little used, else a normal victim.
    fn next<const L: usize>(
        &mut self,
        frames: &mut Frames,
        states: &mut [[u8; L]],
        lane: Lane,
    ) -> u32 {
        if self.next == self.slots.len() && self.slots.len() < self.capacity as usize {
            let frame = frames.victim(states, lane);
            self.slots.push(frame);
            self.next = self.slots.len() % self.capacity as usize;
            return frame;
        }
        let slot = self.next;
        self.next = (slot + 1) % self.slots.len();
        let frame = self.slots[slot];
        let page = frames.page_of[frame as usize];
        if page == frames.none {
            return frame;
        }
        let state = &mut states[page as usize][lane];
        if *state <= LOADED {
            *state = ABSENT;
            return frame;
        }
        // Others used it since: it stays in the pool, "escapes", and the slot gets another.
        let frame = frames.victim(states, lane);
        self.slots[slot] = frame;
        frame
    }
}

/// What a pool holds at the start of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// The resident pages, each once.
    pub pages: &'a [u32],
    /// Their usage counts.
    pub usage_counts: &'a [u8],
    /// Their frames, from 0; without, they fill the frames from 0 in the order given.
    pub frames: Option<&'a [u32]>,
    /// The frame that the sweep looks at next.
    pub hand: u32,
}

/// One buffer pool of one size.
///
/// ```
/// use pgsweep_core::pool::Pool;
/// use pgsweep_core::rules::{RingSettings, Rules};
///
/// let rules = Rules::new(18, RingSettings::default()).unwrap();
/// let mut pool = Pool::new(16, 100, rules);
/// assert!(!pool.read(7));
/// assert!(pool.read(7));
/// assert_eq!(pool.usage_count(7), Some(2));
/// ```
#[derive(Clone, Debug)]
pub struct Pool {
    states: Vec<[u8; 1]>,
    frames: Frames,
    rules: Rules,
}

impl Pool {
    /// An empty pool of `n_buffers` for pages `0..n_pages`.
    pub fn new(n_buffers: u32, n_pages: u32, rules: Rules) -> Self {
        Self {
            states: page_states(n_pages, |_| ABSENT),
            frames: Frames::new(n_buffers, n_pages, &rules, true),
            rules,
        }
    }

    /// Read a page without a ring; true if it was there.
    pub fn read(&mut self, page: u32) -> bool {
        let state = &mut self.states[page as usize][0];
        if *state == ABSENT {
            self.frames.load(&mut self.states, 0, page);
            return false;
        }
        *state = (*state + 1).min(self.rules.usage_cap() + 1);
        true
    }

    /// Read a page through a ring; true if it was there.
    pub fn read_through(&mut self, page: u32, ring: &mut ScanRing) -> bool {
        let state = &mut self.states[page as usize][0];
        if *state == ABSENT {
            self.frames
                .load_through(&mut self.states, 0, page, &mut ring.0);
            return false;
        }
        *state = (*state).max(LOADED);
        true
    }

    /// A new ring for a strategy, unless the pool is such that it gets none.
    pub fn ring(&self, strategy: Strategy) -> Option<ScanRing> {
        match self.rules.ring_buffers(strategy, self.frames.n_buffers) {
            0 => None,
            buffers => Some(ScanRing(Ring::new(buffers))),
        }
    }

    /// Take a page out of the pool, as DROP and TRUNCATE do.
    pub fn invalidate(&mut self, page: u32) {
        self.frames.invalidate(&mut self.states, 0, page);
    }

    /// A resident page's usage count.
    pub fn usage_count(&self, page: u32) -> Option<u8> {
        self.states[page as usize][0].checked_sub(1)
    }

    /// Page of each frame that was used so far, [`NO_PAGE`] if it holds none now.
    pub fn pages(&self) -> Vec<u32> {
        self.frames.pages()
    }

    /// The frame that the sweep looks at next.
    pub fn hand(&self) -> u32 {
        self.frames.hand
    }
}

/// A ring that belongs to one scan or command.
#[derive(Clone, Debug)]
pub struct ScanRing(Ring);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::RingSettings;

    fn pool(version: u32, n_buffers: u32) -> Pool {
        let rules = Rules::new(version, RingSettings::default()).unwrap();
        Pool::new(n_buffers, 10_000, rules)
    }

    fn filled(version: u32, n_buffers: u32) -> Pool {
        let mut pool = pool(version, n_buffers);
        for page in 0..n_buffers {
            pool.read(page);
        }
        pool
    }

    #[test]
    fn a_loaded_page_has_usage_count_1_and_hits_raise_it_to_5() {
        let mut pool = pool(18, 16);
        let seen: Vec<_> = (0..7)
            .map(|_| {
                pool.read(3);
                pool.usage_count(3).unwrap()
            })
            .collect();
        assert_eq!(seen, [1, 2, 3, 4, 5, 5, 5]);
    }

    #[test]
    fn frames_fill_in_order_and_the_hand_stays_at_0() {
        for version in [15, 18, 19] {
            let pool = filled(version, 16);
            assert_eq!(pool.pages(), (0..16).collect::<Vec<_>>());
            assert_eq!(pool.hand(), 0);
        }
    }

    #[test]
    fn the_sweep_decrements_and_takes_the_first_at_0() {
        let mut pool = filled(18, 16);
        pool.read(0);
        assert!(!pool.read(100));
        // One lap takes every count from 1 to 0 (page 0: from 2 to 1); the second reaches frame 0
        // (1 to 0) and takes frame 1.
        assert_eq!(pool.usage_count(0), Some(0));
        assert_eq!(pool.usage_count(1), None);
        assert_eq!(pool.pages()[1], 100);
        assert_eq!(pool.usage_count(15), Some(0));
        assert_eq!(pool.hand(), 2);
    }

    #[test]
    fn a_page_at_5_survives_five_visits() {
        let mut pool = filled(18, 16);
        for _ in 0..4 {
            pool.read(0);
        }
        let mut page = 100;
        let mut laps = 0;
        while pool.usage_count(0).is_some() {
            pool.read(page);
            page += 1;
            laps = pool.frames.passes();
        }
        // Visited at the start of each lap: five decrements, and taken by the sixth visit.
        assert_eq!(laps, 5);
        assert_eq!(pool.hand(), 1);
    }

    #[test]
    fn dropped_frames_are_taken_last_in_first_out_up_to_18() {
        let mut pool = filled(18, 16);
        pool.invalidate(3);
        pool.invalidate(9);
        pool.read(100);
        pool.read(101);
        assert_eq!((pool.pages()[9], pool.pages()[3]), (100, 101));
        assert_eq!(pool.hand(), 0);
    }

    #[test]
    fn dropped_frames_wait_for_the_hand_from_19() {
        let mut pool = filled(19, 16);
        pool.invalidate(9);
        pool.invalidate(3);
        pool.read(100);
        assert_eq!(pool.pages()[3], 100);
        assert_eq!(pool.usage_count(2), Some(0));
        assert_eq!(pool.hand(), 4);
        pool.read(101);
        assert_eq!(pool.pages()[9], 101);
    }

    #[test]
    fn a_listed_frame_in_use_is_passed_over() {
        let mut pool = filled(18, 32);
        let mut ring = pool.ring(Strategy::BulkRead).unwrap(); // 4 slots
        for page in 100..104 {
            pool.read_through(page, &mut ring);
        }
        let frame = pool.pages().iter().position(|&p| p == 100).unwrap();
        pool.invalidate(100);
        pool.read_through(104, &mut ring); // the ring reuses the frame though it is on the list
        assert_eq!(pool.pages()[frame], 104);
        pool.read(105);
        assert_eq!(
            pool.usage_count(104),
            Some(1),
            "in use: not taken from the list"
        );
        assert!(pool.usage_count(105).is_some());
    }

    #[test]
    fn a_scan_keeps_to_its_ring() {
        let mut pool = filled(15, 1024);
        let mut ring = pool.ring(Strategy::BulkRead).unwrap();
        for page in 2000..3000 {
            assert!(!pool.read_through(page, &mut ring));
        }
        let resident = pool.pages().iter().filter(|&&p| p >= 2000).count();
        assert_eq!(resident, 32);
    }

    #[test]
    fn a_ring_page_that_others_use_escapes() {
        let mut pool = filled(15, 1024);
        let mut ring = pool.ring(Strategy::BulkRead).unwrap();
        for page in 2000..2032 {
            pool.read_through(page, &mut ring);
        }
        pool.read(2000); // usage_count 2
        pool.read_through(2032, &mut ring);
        assert_eq!(pool.usage_count(2000), Some(2));
        pool.read_through(2033, &mut ring);
        assert_eq!(pool.usage_count(2001), None);
        let resident = pool.pages().iter().filter(|&&p| p >= 2000).count();
        assert_eq!(resident, 33);
    }

    #[test]
    fn a_ring_hit_lifts_0_to_1_and_no_more() {
        let mut pool = filled(18, 16);
        let mut ring = pool.ring(Strategy::BulkRead).unwrap();
        pool.read(100); // a lap: all others are at 0 now
        assert_eq!(pool.usage_count(5), Some(0));
        assert!(pool.read_through(5, &mut ring));
        assert!(pool.read_through(5, &mut ring));
        assert_eq!(pool.usage_count(5), Some(1));
        pool.read(6);
        pool.read(6);
        assert!(pool.read_through(6, &mut ring));
        assert_eq!(pool.usage_count(6), Some(2));
    }

    #[test]
    fn a_warm_pool_continues_where_the_server_was() {
        let rules = Rules::new(18, RingSettings::default()).unwrap();
        let mut frames = Frames::new(16, 100, &rules, true);
        let mut states: Vec<[u8; 1]> = page_states(100, |_| ABSENT);
        let contents = Contents {
            pages: &[10, 11, 12],
            usage_counts: &[0, 3, 5],
            frames: Some(&[4, 2, 7]),
            hand: 2,
        };
        frames.warm(&mut states, 0, &contents);
        assert_eq!(states[12][0], 6);
        for page in 20..33 {
            frames.load(&mut states, 0, page); // the 13 free frames, ascending
        }
        assert_eq!(frames.pages()[..5], [20, 21, 11, 22, 10]);
        frames.load(&mut states, 0, 40);
        assert_eq!(frames.pages()[4], 40);
        assert_eq!(frames.hand(), 5);
        assert_eq!(states[11][0], 3);
    }
}
