//! Reads of many pages at once, exact, without a branch on what a processor cannot predict.
//!
//! Whether a page is in a pool, and how far the clock hand goes for a buffer, follows no pattern: read by
//! read, a processor mispredicts both for nearly every missing page, and each misprediction costs more than
//! all the rest. So the reads of a chunk are passed through three times:
//!
//! 1. The pages that are absent are listed, and the states of all are marked.
//! 2. Each pool's hand finds as many buffers as it lacks pages, and the pages are put there.
//! 3. The states of all are raised as by a hit, and lose their marks.
//!
//! The order of reads matters to the hand alone, and only where it meets a page that the chunk reads: at its
//! mark it stops. From the page for which it was looking, this pool goes on read by read.

// Measured: a replay spends its time here, in loops of some dozen rounds.
#![allow(clippy::inline_always)]

use crate::buffers::{Lane, ABSENT, MARK};
use crate::lanes::{absent_lanes, OnePool};
use crate::trace::REPEAT;

/// The most reads of a chunk.
pub(crate) const MOST_READS: usize = 64;

/// Chunks are shorter for small pools, whose hand passes more of what it has: buffers, reads.
const SHORTER: [(u32, usize); 2] = [(1000, 16), (5000, 32)];

/// Return how many reads a chunk has where the smallest of the pools has that many buffers.
pub(crate) fn most_reads(n_buffers: u32) -> usize {
    let shorter = SHORTER.iter().find(|(below, _)| n_buffers < *below);
    shorter.map_or(MOST_READS, |&(_, reads)| reads)
}

/// Copy the pages of ordinary reads until the chunk is full or another kind of access comes; return how many
/// accesses these are, and how many pages. Reads of pages that are pinned since before are passed over.
pub(crate) fn gather(pages: &[u32], flags: &[u8], chunk: &mut [u32]) -> (usize, usize) {
    let mut n = 0;
    for (k, (&page, &flag)) in pages.iter().zip(flags).enumerate() {
        if n == chunk.len() || flag & !REPEAT != 0 {
            return (k, n);
        }
        chunk[n] = page;
        n += usize::from(flag == 0);
    }
    (pages.len().min(flags.len()), n)
}

/// Read a chunk of pages in all pools: ordinary reads, all counted.
#[inline(always)]
pub(crate) fn read<const L: usize>(
    states: &mut [[u8; L]],
    pools: &mut [OnePool],
    pages: &[u32],
    top: u8,
    groups: Option<&[u32]>,
) {
    let (mut absent, mut absent_in) = ([0; MOST_READS], [0; MOST_READS]);
    let mut n_absent = 0;
    for &page in pages {
        let row = &mut states[page as usize];
        let lanes = absent_lanes(row);
        for state in row.iter_mut() {
            *state |= MARK;
        }
        absent[n_absent % MOST_READS] = page;
        // One pool lacks what is listed.
        if L > 1 {
            absent_in[n_absent % MOST_READS] = lanes;
        }
        n_absent += usize::from(lanes != 0);
    }
    let absent = &absent[..n_absent.min(MOST_READS)];
    let mut raise = [1; L];
    for (lane, pool) in pools.iter_mut().enumerate() {
        let mut missing = [0; MOST_READS];
        let mut n = 0;
        if L > 1 {
            for (&page, &lanes) in absent.iter().zip(&absent_in) {
                missing[n % MOST_READS] = page;
                n += (lanes >> (8 * lane + 7) & 1) as usize;
            }
        }
        let missing = if L > 1 {
            &missing[..n.min(MOST_READS)]
        } else {
            absent
        };
        let loaded = load(states, pool, lane, missing, groups);
        if let Some(&page) = missing.get(loaded) {
            let before = pages.iter().position(|&p| p == page).unwrap_or(0);
            raise_lane(states, lane, &pages[..before], top);
            one_by_one(states, pool, lane, &pages[before..], top, groups);
            raise[lane] = 0;
        }
    }
    for &page in pages {
        for (state, more) in states[page as usize].iter_mut().zip(raise) {
            *state = ((*state & !MARK) + more).min(top);
        }
    }
}

/// Load the pages in their order while the hand meets no mark; return how many. They keep their marks, and
/// want the raise of the read that found them absent.
#[inline(always)]
fn load<const L: usize>(
    states: &mut [[u8; L]],
    pool: &mut OnePool,
    lane: Lane,
    missing: &[u32],
    groups: Option<&[u32]>,
) -> usize {
    let mut found = [0; MOST_READS];
    let loaded = pool
        .buffers
        .victims(states, lane, missing.len(), &mut found);
    for (&page, &buffer) in missing.iter().zip(&found).take(loaded) {
        let before_raise = pool.buffers.loaded() - 1;
        pool.buffers.place(page, buffer);
        states[page as usize][lane] = before_raise | MARK;
        pool.count_miss(page, true, groups);
    }
    loaded
}

/// Raise the states of pages that are in the pool, and take their marks, in one lane.
fn raise_lane<const L: usize>(states: &mut [[u8; L]], lane: Lane, pages: &[u32], top: u8) {
    for &page in pages {
        let state = &mut states[page as usize][lane];
        *state = ((*state & !MARK) + 1).min(top);
    }
}

/// Read pages one by one in one pool; they lose their marks before.
#[cold]
#[inline(never)]
fn one_by_one<const L: usize>(
    states: &mut [[u8; L]],
    pool: &mut OnePool,
    lane: Lane,
    pages: &[u32],
    top: u8,
    groups: Option<&[u32]>,
) {
    for &page in pages {
        states[page as usize][lane] &= !MARK;
    }
    for &page in pages {
        let state = &mut states[page as usize][lane];
        if *state == ABSENT {
            pool.buffers.load(states, lane, page);
            pool.count_miss(page, true, groups);
        } else {
            *state = (*state + 1).min(top);
        }
    }
}
