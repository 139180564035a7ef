//! The buffers of a pool: usage counts, the clock sweep, the free list.
//!
//! A page's state is one byte: 0 while it is absent, usage_count + 1 while it is in the pool. So a hit
//! touches this byte and nothing else. The bytes do not belong to [`BufferPool`] but to its caller, as
//! `[[u8; L]]`, page by page, with one column (`lane`) for each of L pools that are replayed together:
//! see [`crate::lanes`].

// Measured: a call for every miss costs a replay a fifth of its speed.
#![allow(clippy::inline_always)]

use crate::rules::Rules;

/// What a pool holds at the start of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// The resident pages, each once.
    pub pages: &'a [u32],
    /// Their usage counts.
    pub usage_counts: &'a [u8],
    /// Their buffers, from 0; without, they fill the buffers from 0 in the order given.
    pub buffers: Option<&'a [u32]>,
    /// The buffer that the sweep examines next.
    pub hand: u32,
}

/// No page: the content of an unused or invalidated buffer.
pub const NO_PAGE: u32 = u32::MAX;
/// State of a page that is not in the pool.
pub const ABSENT: u8 = 0;
/// State of a page with usage_count 0: the sweep takes it when it comes next.
const USAGE_0: u8 = 1;
/// State of a page with usage_count 1.
pub(crate) const USAGE_1: u8 = 2;
/// Set in the state of a page that [`crate::chunk`] is about to read; states are below.
pub(crate) const MARK: u8 = 0x80;

/// Which of the pools that share a table of page states.
pub(crate) type Lane = usize;

/// The states of pages `0..n_pages`, `column` giving the first state in each lane, and of no page.
pub(crate) fn page_states<const L: usize>(
    n_pages: u32,
    column: impl FnMut(Lane) -> u8,
) -> Vec<[u8; L]> {
    let mut states = vec![std::array::from_fn(column); n_pages as usize + 1];
    states[n_pages as usize] = [USAGE_0; L];
    states
}

/// A part of the pool with its own clock hand.
#[derive(Clone, Copy, Debug)]
struct Part {
    begin: u32,
    end: u32,
    hand: u32,
}

impl Part {
    /// `hands` parts of a pool, as equal as can be; none for one hand.
    fn of(n_buffers: u32, hands: u32) -> Vec<Self> {
        if hands == 1 {
            return Vec::new();
        }
        let cut = |k: u32| (u64::from(n_buffers) * u64::from(k) / u64::from(hands)) as u32;
        let part = |k| Self {
            begin: cut(k),
            end: cut(k + 1),
            hand: cut(k),
        };
        (0..hands).map(part).collect()
    }
}

/// The buffers of one pool, its hand and its free list; the states of pages lie outside.
#[derive(Clone, Debug)]
pub(crate) struct BufferPool {
    /// Page of each buffer that was ever used, at most `n_buffers`; the rest is free, in order.
    page_of: Vec<u32>,
    n_buffers: u32,
    /// Buffers that were used and are empty now.
    emptied: usize,
    /// Buffers in use from which on the one hand sweeps: all, or more than there are where there are several
    /// hands, so that the usual case has no branch for them.
    swept_from: usize,
    /// State of a page just read: the policy's admission.
    loaded: u8,
    hand: u32,
    passes: u64,
    /// Where there are several hands, each with its part of the pool; empty with one.
    parts: Vec<Part>,
    /// The part whose hand is moved next.
    turn: usize,
    /// Head of the list is the end of the vector. Empty in servers without one.
    free: Vec<u32>,
    /// Whether a buffer is on the list; as long as is needed.
    listed: Vec<bool>,
    has_free_list: bool,
    /// The content of an empty buffer: a row of `states` behind all pages, always at usage_count 0, so
    /// that the sweep need not ask.
    none: u32,
    /// Buffer of each page; kept only where pages can be dropped.
    buffer_of: Vec<u32>,
}

impl BufferPool {
    pub fn new(n_buffers: u32, n_pages: u32, rules: &Rules, drops: bool) -> Self {
        let policy = rules.policy();
        let mut pool = Self {
            page_of: Vec::with_capacity(n_buffers.min(n_pages) as usize),
            n_buffers,
            emptied: 0,
            swept_from: if policy.hands == 1 {
                n_buffers as usize
            } else {
                usize::MAX
            },
            loaded: policy.admission + 1,
            hand: 0,
            passes: 0,
            parts: Part::of(n_buffers, policy.hands),
            turn: 0,
            free: Vec::new(),
            listed: Vec::new(),
            has_free_list: policy.free_list,
            none: n_pages,
            buffer_of: if drops {
                vec![0; n_pages as usize]
            } else {
                Vec::new()
            },
        };
        pool.open_to_hands();
        pool
    }

    /// With several hands and no free list, let the hands find the unused buffers.
    fn open_to_hands(&mut self) {
        if !self.parts.is_empty() && !self.has_free_list {
            self.page_of.resize(self.n_buffers as usize, self.none);
        }
        let empty = self.page_of.iter().filter(|&&page| page == self.none);
        self.emptied = empty.count();
    }

    /// Make the pool what `contents` says instead of empty.
    pub fn warm<const L: usize>(
        &mut self,
        states: &mut [[u8; L]],
        lane: Lane,
        contents: &Contents<'_>,
    ) {
        let n_buffers = self.n_buffers as usize;
        if contents.buffers.is_some() {
            self.page_of = vec![self.none; n_buffers];
        } else {
            self.page_of = vec![self.none; contents.pages.len()];
        }
        self.emptied = self.page_of.len();
        for (k, (&page, &usage)) in contents.pages.iter().zip(contents.usage_counts).enumerate() {
            let buffer = contents.buffers.map_or(k as u32, |buffers| buffers[k]);
            self.place(page, buffer);
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
        self.open_to_hands();
        for part in &mut self.parts {
            if (part.begin..part.end).contains(&contents.hand) {
                part.hand = contents.hand;
            }
        }
    }

    /// State of a page just read.
    pub fn loaded(&self) -> u8 {
        self.loaded
    }

    pub fn n_buffers(&self) -> u32 {
        self.n_buffers
    }

    /// Where the hand is; the first one where there are several.
    pub fn hand(&self) -> u32 {
        self.parts.first().map_or(self.hand, |part| part.hand)
    }

    /// Full rounds of that hand.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// Page of each buffer used so far, [`NO_PAGE`] if it holds none now.
    pub fn pages(&self) -> Vec<u32> {
        let name = |&page: &u32| if page == self.none { NO_PAGE } else { page };
        self.page_of.iter().map(name).collect()
    }

    /// Record that a buffer holds a page; return the page that it held, [`NO_PAGE`] if none.
    #[inline]
    pub fn place(&mut self, page: u32, buffer: u32) -> u32 {
        let evicted = std::mem::replace(&mut self.page_of[buffer as usize], page);
        if !self.buffer_of.is_empty() {
            self.buffer_of[page as usize] = buffer;
        }
        if evicted == self.none {
            self.emptied -= 1;
            NO_PAGE
        } else {
            evicted
        }
    }

    /// Bring an absent page into the pool with the policy's admission (`bufmgr.c`, `BufferAlloc`); return the
    /// page that goes, as [`BufferPool::place`] does.
    #[inline(always)]
    pub fn load<const L: usize>(&mut self, states: &mut [[u8; L]], lane: Lane, page: u32) -> u32 {
        let buffer = self.victim(states, lane);
        self.admit(states, lane, page, buffer)
    }

    /// Put an absent page into a buffer that was emptied; return the page that goes, as [`BufferPool::place`] does.
    #[inline(always)]
    pub fn admit<const L: usize>(
        &mut self,
        states: &mut [[u8; L]],
        lane: Lane,
        page: u32,
        buffer: u32,
    ) -> u32 {
        let evicted = self.place(page, buffer);
        states[page as usize][lane] = self.loaded;
        evicted
    }

    /// Empty a buffer of a ring for the ring's next page, unless others used its page since.
    pub fn reclaim<const L: usize>(
        &mut self,
        states: &mut [[u8; L]],
        lane: Lane,
        buffer: u32,
    ) -> bool {
        let page = self.page_of[buffer as usize];
        if page == self.none {
            return true;
        }
        let state = &mut states[page as usize][lane];
        let little_used = *state <= USAGE_1;
        if little_used {
            *state = ABSENT;
        }
        little_used
    }

    /// Take a page out (DROP, TRUNCATE): `bufmgr.c`, `InvalidateBuffer`.
    pub fn invalidate<const L: usize>(&mut self, states: &mut [[u8; L]], lane: Lane, page: u32) {
        let state = &mut states[page as usize][lane];
        if *state == ABSENT {
            return;
        }
        *state = ABSENT;
        let buffer = self.buffer_of[page as usize];
        self.page_of[buffer as usize] = self.none;
        self.emptied += 1;
        if self.has_free_list {
            let buffer = buffer as usize;
            if self.listed.len() <= buffer {
                self.listed.resize(buffer + 1, false);
            }
            // A ring may use a listed buffer meanwhile; the server then leaves it where it is.
            if !self.listed[buffer] {
                self.listed[buffer] = true;
                self.free.push(buffer as u32);
            }
        }
    }

    /// Choose a buffer and empty it: `freelist.c`, `StrategyGetBuffer` without a ring.
    #[inline(always)]
    pub fn victim<const L: usize>(&mut self, states: &mut [[u8; L]], lane: Lane) -> u32 {
        if !self.free.is_empty() {
            if let Some(buffer) = self.listed_victim(states, lane) {
                return buffer;
            }
        }
        if self.page_of.len() < self.swept_from {
            return self.unswept_victim(states, lane);
        }
        self.sweep(states, lane)
    }

    /// Take a buffer that was never used, or what the hand finds that has its turn, where there are several.
    #[cold]
    #[inline(never)]
    fn unswept_victim<const L: usize>(&mut self, states: &mut [[u8; L]], lane: Lane) -> u32 {
        // Never-used buffers come in order from the initial free list, and where there is none, from the
        // sweep's first pass, which finds them all at usage_count 0 and so ends where it began.
        if self.page_of.len() < self.n_buffers as usize {
            return self.open_next();
        }
        self.sweep_part(states, lane)
    }

    /// Take the next buffer that was never used.
    fn open_next(&mut self) -> u32 {
        self.page_of.push(self.none);
        self.emptied += 1;
        self.page_of.len() as u32 - 1
    }

    /// Choose buffers and empty them, as [`BufferPool::victim`] does one by one; return how many: as many as are wanted, or
    /// fewer where the hand meets a page with a [`MARK`], or has gone round.
    #[inline(always)]
    pub fn victims<const L: usize>(
        &mut self,
        states: &mut [[u8; L]],
        lane: Lane,
        wanted: usize,
        found: &mut [u32],
    ) -> usize {
        let usual = self.free.is_empty() && self.parts.is_empty() && self.emptied == 0;
        if !usual {
            return 0;
        }
        let mut n = 0;
        if self.page_of.len() < self.n_buffers as usize {
            while n < wanted && self.page_of.len() < self.n_buffers as usize {
                found[n] = self.open_next();
                n += 1;
            }
            return n;
        }
        // One round at most: what is found here holds its new page only when all are found.
        let mut hand = self.hand as usize;
        for _ in 0..self.page_of.len() {
            if n == wanted {
                break;
            }
            let state = &mut states[self.page_of[hand] as usize][lane];
            if *state >= MARK {
                break;
            }
            *state -= 1;
            found[n] = hand as u32;
            n += usize::from(*state == ABSENT);
            hand += 1;
            if hand == self.page_of.len() {
                hand = 0;
                self.passes += 1;
            }
        }
        self.hand = hand as u32;
        n
    }

    /// Let the hand go round that has its turn, within its part of the pool.
    fn sweep_part<const L: usize>(&mut self, states: &mut [[u8; L]], lane: Lane) -> u32 {
        let first = self.turn == 0;
        let next = self.turn + 1;
        let part = &mut self.parts[self.turn];
        loop {
            let buffer = part.hand;
            part.hand += 1;
            if part.hand == part.end {
                part.hand = part.begin;
                self.passes += u64::from(first);
            }
            let page = self.page_of[buffer as usize];
            let state = &mut states[page as usize][lane];
            *state -= 1;
            if *state == ABSENT {
                if page == self.none {
                    *state = USAGE_0;
                }
                self.turn = if next == self.parts.len() { 0 } else { next };
                return buffer;
            }
        }
    }

    /// Let the hand go round until it takes a buffer: decrement what it passes, take what is at 0.
    #[inline(always)]
    fn sweep<const L: usize>(&mut self, states: &mut [[u8; L]], lane: Lane) -> u32 {
        let mut hand = self.hand as usize;
        // Four buffers at a time without a branch on their contents, which no processor could predict.
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
    fn take<const L: usize>(&mut self, states: &mut [[u8; L]], lane: Lane, buffer: usize) -> u32 {
        let page = self.page_of[buffer];
        if page == self.none {
            states[page as usize][lane] = USAGE_0;
        }
        self.hand = buffer as u32 + 1;
        if self.hand == self.n_buffers {
            self.hand = 0;
            self.passes += 1;
        }
        buffer as u32
    }

    /// Take the first buffer of the free list that nothing uses; skip, for good, those in use.
    #[cold]
    fn listed_victim<const L: usize>(&mut self, states: &mut [[u8; L]], lane: Lane) -> Option<u32> {
        while let Some(buffer) = self.free.pop() {
            self.listed[buffer as usize] = false;
            let page = self.page_of[buffer as usize];
            if page == self.none {
                return Some(buffer);
            }
            let state = &mut states[page as usize][lane];
            if *state == USAGE_0 {
                *state = ABSENT;
                return Some(buffer);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::RingSettings;

    #[test]
    fn a_warm_pool_continues_where_the_server_was() {
        let rules = Rules::new(18, RingSettings::default()).unwrap();
        let mut buffers = BufferPool::new(16, 100, &rules, true);
        let mut states: Vec<[u8; 1]> = page_states(100, |_| ABSENT);
        let contents = Contents {
            pages: &[10, 11, 12],
            usage_counts: &[0, 3, 5],
            buffers: Some(&[4, 2, 7]),
            hand: 2,
        };
        buffers.warm(&mut states, 0, &contents);
        assert_eq!(states[12][0], 6);
        for page in 20..33 {
            buffers.load(&mut states, 0, page); // the 13 free buffers, ascending
        }
        assert_eq!(buffers.pages()[..5], [20, 21, 11, 22, 10]);
        buffers.load(&mut states, 0, 40);
        assert_eq!(buffers.pages()[4], 40);
        assert_eq!(buffers.hand(), 5);
        assert_eq!(states[11][0], 3);
    }
}
