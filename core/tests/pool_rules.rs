//! The rules of one buffer pool, access by access, as the replay that runs knows them.

use pgsweep_core::replay::{outcomes, replay, Outcomes, Request};
use pgsweep_core::rules::{RingSettings, Rules};
use pgsweep_core::trace::{Owners, Trace, DROP};

const BULKREAD: u8 = 1;
/// Blocks of a table so large that every scan of it has a ring.
const LARGE: u32 = 1 << 20;
const HIT: u8 = 0;

/// Accesses made one after the other, all of which are replayed whenever something is asked.
struct Pool {
    rules: Rules,
    buffers: [u32; 1],
    pages: Vec<u32>,
    flags: Vec<u8>,
    ringed: Vec<u64>,
    owner: Vec<u32>,
    rings: Vec<u32>,
}

impl Pool {
    fn new(version: u32, buffers: u32) -> Self {
        Self {
            rules: Rules::new(version, RingSettings::default()).unwrap(),
            buffers: [buffers],
            pages: Vec::new(),
            flags: Vec::new(),
            ringed: Vec::new(),
            owner: Vec::new(),
            rings: Vec::new(),
        }
    }

    fn filled(version: u32, buffers: u32) -> Self {
        let mut pool = Self::new(version, buffers);
        for page in 0..buffers {
            pool.read(page);
        }
        pool
    }

    fn access(&mut self, page: u32, flag: u8) {
        self.pages.push(page);
        self.flags.push(flag);
    }

    fn read(&mut self, page: u32) {
        self.access(page, 0);
    }

    fn drop(&mut self, page: u32) {
        self.access(page, DROP);
    }

    /// A ring for a scan.
    fn ring(&mut self) -> u32 {
        self.rings.push(LARGE);
        self.rings.len() as u32 - 1
    }

    fn read_through(&mut self, page: u32, ring: u32) {
        self.ringed.push(self.pages.len() as u64);
        self.owner.push(ring);
        self.access(page, BULKREAD);
    }

    fn request(&self) -> Request<'_> {
        Request {
            trace: Trace {
                pages: &self.pages,
                flags: Some(&self.flags),
                owners: Owners {
                    access: &self.ringed,
                    owner: &self.owner,
                    blocks: &self.rings,
                },
            },
            rules: self.rules,
            sizes: &self.buffers,
            windows: None,
            groups: None,
            warm: &[],
            threads: Some(1),
        }
    }

    fn end(&self) -> Outcomes {
        outcomes(&self.request()).unwrap()
    }

    /// Whether the last access found its page.
    fn hit(&self) -> bool {
        self.end().outcomes.last() == Some(&HIT)
    }

    fn buffer_of(&self, page: u32) -> Option<usize> {
        self.end().buffer_pages.iter().position(|&p| p == page)
    }

    fn usage_count(&self, page: u32) -> Option<u8> {
        let buffer = self.buffer_of(page)?;
        Some(self.end().buffer_usage_counts[buffer])
    }

    fn passes(&self) -> u64 {
        replay(&self.request()).unwrap().passes[0]
    }
}

#[test]
fn a_loaded_page_has_usage_count_1_and_hits_raise_it_to_5() {
    let mut pool = Pool::new(18, 16);
    let seen: Vec<_> = (0..7)
        .map(|_| {
            pool.read(3);
            pool.usage_count(3).unwrap()
        })
        .collect();
    assert_eq!(seen, [1, 2, 3, 4, 5, 5, 5]);
}

#[test]
fn buffers_fill_in_order_and_the_hand_stays_at_0() {
    for version in [15, 18, 19] {
        let end = Pool::filled(version, 16).end();
        assert_eq!(end.buffer_pages, (0..16).collect::<Vec<_>>());
        assert_eq!(end.hand, 0);
    }
}

#[test]
fn the_sweep_decrements_and_takes_the_first_at_0() {
    let mut pool = Pool::filled(18, 16);
    pool.read(0);
    pool.read(100);
    assert!(!pool.hit());
    // One pass takes every count from 1 to 0 (page 0: from 2 to 1); the second reaches buffer 0 (1 to 0) and takes
    // buffer 1.
    assert_eq!(pool.usage_count(0), Some(0));
    assert_eq!(pool.usage_count(1), None);
    assert_eq!(pool.buffer_of(100), Some(1));
    assert_eq!(pool.usage_count(15), Some(0));
    assert_eq!(pool.end().hand, 2);
}

#[test]
fn a_page_at_5_survives_five_visits() {
    let mut pool = Pool::filled(18, 16);
    for _ in 0..4 {
        pool.read(0);
    }
    let mut page = 100;
    let mut passes = 0;
    while pool.usage_count(0).is_some() {
        pool.read(page);
        page += 1;
        passes = pool.passes();
    }
    // Visited at the start of each pass: five decrements, and taken by the sixth visit.
    assert_eq!(passes, 5);
    assert_eq!(pool.end().hand, 1);
}

#[test]
fn dropped_buffers_are_taken_last_in_first_out_up_to_18() {
    let mut pool = Pool::filled(18, 16);
    pool.drop(3);
    pool.drop(9);
    pool.read(100);
    pool.read(101);
    assert_eq!(
        (pool.buffer_of(100), pool.buffer_of(101)),
        (Some(9), Some(3))
    );
    assert_eq!(pool.end().hand, 0);
}

#[test]
fn dropped_buffers_wait_for_the_hand_from_19() {
    let mut pool = Pool::filled(19, 16);
    pool.drop(9);
    pool.drop(3);
    pool.read(100);
    assert_eq!(pool.buffer_of(100), Some(3));
    assert_eq!(pool.usage_count(2), Some(0));
    assert_eq!(pool.end().hand, 4);
    pool.read(101);
    assert_eq!(pool.buffer_of(101), Some(9));
}

#[test]
fn a_listed_buffer_in_use_is_passed_over() {
    let mut pool = Pool::filled(18, 32);
    let ring = pool.ring(); // 4 slots
    for page in 100..104 {
        pool.read_through(page, ring);
    }
    let buffer = pool.buffer_of(100);
    pool.drop(100);
    pool.read_through(104, ring); // the ring reuses the buffer though it is on the list
    assert_eq!(pool.buffer_of(104), buffer);
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
    let mut pool = Pool::filled(15, 1024);
    let ring = pool.ring();
    for page in 2000..3000 {
        pool.read_through(page, ring);
    }
    let end = pool.end();
    assert!(end.outcomes[1024..].iter().all(|&outcome| outcome != HIT));
    assert_eq!(end.buffer_pages.iter().filter(|&&p| p >= 2000).count(), 32);
}

#[test]
fn a_ring_page_that_others_use_escapes() {
    let mut pool = Pool::filled(15, 1024);
    let ring = pool.ring();
    for page in 2000..2032 {
        pool.read_through(page, ring);
    }
    pool.read(2000); // usage_count 2
    pool.read_through(2032, ring);
    assert_eq!(pool.usage_count(2000), Some(2));
    pool.read_through(2033, ring);
    assert_eq!(pool.usage_count(2001), None);
    let end = pool.end();
    assert_eq!(end.buffer_pages.iter().filter(|&&p| p >= 2000).count(), 33);
}

#[test]
fn a_ring_hit_lifts_0_to_1_and_no_more() {
    let mut pool = Pool::filled(18, 16);
    let ring = pool.ring();
    pool.read(100); // a pass: all others are at 0 now
    assert_eq!(pool.usage_count(5), Some(0));
    for _ in 0..2 {
        pool.read_through(5, ring);
        assert!(pool.hit());
    }
    assert_eq!(pool.usage_count(5), Some(1));
    pool.read(6);
    pool.read(6);
    pool.read_through(6, ring);
    assert!(pool.hit());
    assert_eq!(pool.usage_count(6), Some(2));
}
