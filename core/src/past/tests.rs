//! What the past of a trace draws and counts, in small cases.

use super::*;
use crate::both_caches::Behind;
use crate::files::PageCache;
use crate::page_cache::Policy;
use crate::rules::{RingSettings, Rules};
use crate::trace::{EXTENSION, VACUUM};

const BLOCKS: u32 = 4000;

fn rows(blocks: Vec<u32>, flags: Vec<u8>) -> Rows {
    let n = blocks.len();
    Rows {
        blocks,
        flags,
        seconds: (0..n).map(|k| k as f64 * 0.001).collect(),
        streams: vec![0; n],
        ..Rows::default()
    }
}

fn known<'a>(visits: &'a [u32], new: &'a [bool]) -> Known<'a> {
    Known {
        forks: &[0, 3000, BLOCKS],
        visits,
        new,
        rates: &[0.01, 1.0, 100.0],
        weights: &[1000.0, 1000.0, 1000.0, 500.0, 500.0, 0.0],
        duration_seconds: 1.0,
        visit_gap_seconds: 0.005,
        seed: 3,
    }
}

/// Blocks of the first thousand were visited 100 times each, those of the second fork once, all others never.
fn visited() -> Vec<u32> {
    let count = |block| match block {
        0..=999 => 100,
        3000.. => 1,
        _ => 0,
    };
    (0..BLOCKS).map(count).collect()
}

#[test]
fn visits_are_drawn_by_rates_within_their_forks() {
    let visits = visited();
    let new = vec![false; BLOCKS as usize];
    let blocks: Vec<u32> = (0..20_000).map(|k| k * 7 % BLOCKS).collect();
    let flags = vec![0; blocks.len()];
    let past = Past::new(rows(blocks.clone(), flags), &known(&visits, &new)).unwrap();
    let mut random = Random::new(1, 0);
    let before = past.blocks_before(1, &mut random);
    let same_fork = |(one, other): (&u32, &u32)| (*one < 3000) == (*other < 3000);
    assert!(blocks.iter().zip(&before).all(same_fork));
    // 1000 blocks at 100 a second, and 2000 that have 0.01 by 73%, else 1: P(none | 1) = exp(-1), P(none | 0.01) = exp(-0.01).
    let first: Vec<&u32> = before.iter().filter(|block| **block < 3000).collect();
    let often = first.iter().filter(|block| ***block < 1000).count() as f64 / first.len() as f64;
    let rare = (-1.0_f64).exp() / ((-1.0_f64).exp() + (-0.01_f64).exp());
    let others = 2000.0 * (rare + 0.01 * (1.0 - rare));
    let expected = 100_000.0 / (100_000.0 + others);
    assert!((often - expected).abs() < 0.003, "{often}, not {expected}");
    assert_ne!(before, past.blocks_before(1, &mut random));
    // The hot blocks are all drawn, each about as often.
    let mut counts = vec![0; 1000];
    before
        .iter()
        .filter(|block| **block < 1000)
        .for_each(|block| counts[*block as usize] += 1);
    assert!(counts.iter().all(|&count| (1..50).contains(&count)));
}

#[test]
fn a_visit_keeps_together_and_what_is_no_visit_stays() {
    let mut visits = vec![0; BLOCKS as usize];
    visits[5] = 2;
    let new = vec![false; BLOCKS as usize];
    let blocks = vec![5, 5, 9, 5, 5, 5, 5, 5, 5, 5, 5];
    let mut flags = vec![0; blocks.len()];
    flags[2] = VACUUM;
    let mut rows = rows(blocks, flags);
    (rows.owner_access, rows.owner, rows.owner_blocks) = (vec![2], vec![0], vec![9]);
    // From the second visit on after more than 5 ms.
    rows.seconds[8..]
        .iter_mut()
        .for_each(|seconds| *seconds += 0.006);
    let past = Past::new(rows, &known(&visits, &new)).unwrap();
    assert_eq!(past.visit[..4], [0, 0, NO_VISIT, 0]);
    assert_eq!(past.visit[7..9], [0, 1]);
    let before = past.blocks_before(3, &mut Random::new(2, 0));
    assert_eq!(before[2], 9);
    assert!(before[3..8].iter().all(|&block| block == before[0]));
    assert!(before[9..].iter().all(|&block| block == before[8]));
    assert_ne!(before[0], before[8]);
}

#[test]
fn new_blocks_lie_further_back_each_time_before() {
    let visits = vec![0; BLOCKS as usize];
    let mut new = vec![false; BLOCKS as usize];
    new[2900..3000].fill(true);
    let blocks: Vec<u32> = (2900..3000).collect();
    let past = Past::new(rows(blocks, vec![EXTENSION; 100]), &known(&visits, &new)).unwrap();
    let mut random = Random::new(2, 0);
    assert_eq!(past.blocks_before(1, &mut random)[..2], [2800, 2801]);
    assert_eq!(past.blocks_before(29, &mut random)[..2], [0, 1]);
    // There were none of them yet.
    assert_eq!(past.blocks_before(30, &mut random)[..2], [2900, 2901]);
}

#[test]
fn a_page_cache_holds_at_first_what_is_read_most_often() {
    let visits = visited();
    let new = vec![false; BLOCKS as usize];
    let past = Past::new(rows(vec![0], vec![0]), &known(&visits, &new)).unwrap();
    let held = past.residents(&[1.0; 6], 1000, 1).unwrap();
    let often = held.iter().filter(|block| **block < 1000).count();
    assert!((930..=1000).contains(&held.len()), "{}", held.len());
    assert!(often > 900, "{often} of {}", held.len());
    // What lies in the pool is not read: then the others are.
    let absent = [1.0, 1.0, 0.0, 1.0, 1.0, 1.0];
    let held = past.residents(&absent, 1000, 1).unwrap();
    assert_eq!(held.iter().filter(|block| **block < 1000).count(), 0);
    // With room for all it holds all, also that.
    assert_eq!(
        past.residents(&absent, 9000, 1).unwrap().len(),
        BLOCKS as usize
    );
    assert!(past.residents(&[1.0], 9000, 1).is_err());
}

#[test]
fn the_past_fills_the_page_cache_and_only_the_trace_is_counted() {
    let visits = visited();
    let new = vec![false; BLOCKS as usize];
    let blocks: Vec<u32> = (0..2000).map(|k| 3000 + k * 7 % 1000).collect();
    let past = Past::new(rows(blocks, vec![0; 2000]), &known(&visits, &new)).unwrap();
    let behind = [Behind {
        cache: PageCache {
            pages_per_block: 2,
            capacity_pages: 6000,
            readahead_pages: 0,
            folio_order: 0,
            policy: Policy::TwoLists,
            pages_each: 1.0,
        },
        resident: &[],
        writes: true,
    }];
    let caches = Caches {
        rules: Rules::new(18, RingSettings::default()).unwrap(),
        pool_blocks: 100,
        files: &[0, 3000, BLOCKS],
        groups: &[0, 3000, BLOCKS],
        dirty: &[0.0, 0.0],
        behind: &behind,
        gather_seconds: 2.0,
        seed: 5,
    };
    let warm = Contents {
        pages: &[],
        usage_counts: &[],
        buffers: None,
        hand: 0,
    };
    let length = Length {
        turnovers: 1.5,
        accesses: 100_000,
    };
    let found = past.run(&caches, warm, length).unwrap().remove(0);
    // A loop, of which the pool misses all but what it holds from before; the page cache has room for it whole.
    assert_eq!(found.misses[0], 0);
    assert!(
        (1900..=2000).contains(&found.misses[1]),
        "{:?}",
        found.misses
    );
    assert!(found.waited[1] < 100, "{}", found.waited[1]);
    assert!(found.blocks_before >= 4500, "{}", found.blocks_before);
    assert_eq!(found.twice_blocks, 100);
    let brief = Length {
        accesses: 2000,
        ..length
    };
    let found = past.run(&caches, warm, brief).unwrap().remove(0);
    assert!((1500..2001).contains(&found.blocks_before));
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let visits = visited();
    let new = vec![false; BLOCKS as usize];
    let fine = known(&visits, &new);
    let refused = |rows: Rows, known: &Known<'_>| Past::new(rows, known).unwrap_err().to_string();
    assert!(refused(rows(vec![BLOCKS], vec![0]), &fine).contains("each block"));
    assert!(refused(rows(vec![0], vec![]), &fine).contains("one entry"));
    let fewer = Known {
        weights: &[1.0],
        ..fine
    };
    assert!(refused(rows(vec![0], vec![0]), &fewer).contains("weight"));
    let shorter = Known {
        forks: &[0, 10],
        ..fine
    };
    assert!(refused(rows(vec![0], vec![0]), &shorter).contains("ascend"));
}
