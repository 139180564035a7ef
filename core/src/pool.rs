//! One buffer pool of one size, access by access.

use crate::frames::{page_states, Frames, ABSENT, LOADED};
use crate::ring::Ring;
use crate::rules::{Rules, Strategy};

pub use crate::frames::{Contents, NO_PAGE};

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
            ring.0.load(&mut self.frames, &mut self.states, 0, page);
            return false;
        }
        *state = (*state).max(LOADED);
        true
    }

    /// A new ring for a strategy, unless the pool is such that it gets none.
    pub fn ring(&self, strategy: Strategy) -> Option<ScanRing> {
        match self.rules.ring_buffers(strategy, self.frames.n_buffers()) {
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
        self.frames.hand()
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
}
