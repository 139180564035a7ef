//! How many buffers each relation has, at which usage counts: the pool's contents without the names of its pages.
//!
//! The same descriptors as in [`crate::pool`], counted where they are read, in pieces that stay in a processor's cache.
//! A few threads share the pieces; the server does nothing, and no list of pages is made.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::clock::monotonic_ns;
use crate::descriptor::{for_each_used, Array, Relation, DESCRIPTOR_BYTES};
use crate::error::Result;
use crate::hand::{self, Hand};
use crate::parallel;
use crate::server::Server;

/// Usage counts are 0 to 5.
pub const USAGE_COUNTS: usize = 6;
/// Descriptors read at once: 256 kB of them.
const PIECE_BUFFERS: usize = 1 << 12;
/// More threads than this would take memory bandwidth from the server and gain little.
const DEFAULT_MAX_THREADS: usize = 4;

/// The relations that have buffers; all vectors are parallel.
#[derive(Debug, Default, Clone)]
pub struct Relations {
    /// Tablespace.
    pub spc: Vec<u32>,
    /// Database.
    pub db: Vec<u32>,
    /// Relation file number.
    pub rel: Vec<u32>,
    /// Fork.
    pub fork: Vec<u8>,
    /// Buffers at each usage count, `USAGE_COUNTS` numbers a relation.
    pub usage_counts: Vec<i64>,
    /// Buffers whose page differs from the one on disk.
    pub dirty: Vec<i64>,
    /// Buffers that somebody uses right now.
    pub pinned: Vec<i64>,
    /// Number of buffers, used or not.
    pub buffers: u32,
    /// The clock hand.
    pub hand: hand::Reading,
    /// When reading began, in nanoseconds of the monotonic clock.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// Count the buffers of a server by relation.
///
/// Args: `threads` is how many share the work; None is one per processor, at most 4.
///
/// # Errors
/// A version whose descriptors are different, memory that cannot be read, or a server that ended.
pub fn relations(server: &Server, version_num: u32, threads: Option<usize>) -> Result<Relations> {
    let array = Array::of(server, version_num)?;
    let begin_ns = monotonic_ns();
    let hand = Hand::read(server, version_num, array.buffers);
    let threads = threads.unwrap_or_else(|| parallel::processors(DEFAULT_MAX_THREADS));
    let stretches = stretches(array.buffers as usize, threads);
    let tallies = parallel::map(&stretches, threads, |stretch| {
        count(server, array, stretch.clone())
    });
    let mut total = Tally::default();
    for tally in tallies {
        total.add_all(&tally?);
    }
    let mut relations = total.into_columns();
    relations.buffers = array.buffers;
    relations.hand = hand;
    relations.begin_ns = begin_ns;
    relations.end_ns = monotonic_ns();
    Ok(relations)
}

/// Whole pieces of the pool, a few for each thread, so that one that is held up does not hold up all.
fn stretches(buffers: usize, threads: usize) -> Vec<Range<usize>> {
    let pieces = buffers.div_ceil(PIECE_BUFFERS);
    let step = pieces.div_ceil(threads.max(1) * 4).max(1) * PIECE_BUFFERS;
    let stretch = |first| first..buffers.min(first + step);
    (0..buffers).step_by(step).map(stretch).collect()
}

fn count(server: &Server, array: Array, stretch: Range<usize>) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut bytes = vec![0; PIECE_BUFFERS.min(stretch.len()) * DESCRIPTOR_BYTES];
    for first in stretch.clone().step_by(PIECE_BUFFERS) {
        let part = &mut bytes[..PIECE_BUFFERS.min(stretch.end - first) * DESCRIPTOR_BYTES];
        array.read(server, first, part)?;
        for_each_used(part, first, |_, descriptor| {
            let counts = tally.counts_of(descriptor.relation());
            counts.usage[descriptor.usage_count() as usize] += 1;
            counts.dirty += i64::from(descriptor.is_dirty());
            counts.pinned += i64::from(descriptor.is_pinned());
        })?;
    }
    Ok(tally)
}

#[derive(Debug, Default, Clone)]
struct Counts {
    usage: [i64; USAGE_COUNTS],
    dirty: i64,
    pinned: i64,
}

/// Counts by relation, in the order of first appearance.
#[derive(Debug, Default)]
struct Tally {
    places: FxHashMap<Relation, usize>,
    rows: Vec<(Relation, Counts)>,
    /// The row counted last: neighbours in the pool often belong to one relation.
    last: usize,
}

impl Tally {
    fn counts_of(&mut self, relation: Relation) -> &mut Counts {
        let known = self.rows.get(self.last).is_some_and(|r| r.0 == relation);
        if !known {
            self.last = *self.places.entry(relation).or_insert_with(|| {
                self.rows.push((relation, Counts::default()));
                self.rows.len() - 1
            });
        }
        &mut self.rows[self.last].1
    }

    fn add_all(&mut self, other: &Self) {
        for (relation, counts) in &other.rows {
            let sum = self.counts_of(*relation);
            for (total, count) in sum.usage.iter_mut().zip(counts.usage) {
                *total += count;
            }
            sum.dirty += counts.dirty;
            sum.pinned += counts.pinned;
        }
    }

    fn into_columns(mut self) -> Relations {
        self.rows
            .sort_unstable_by_key(|(r, _)| (r.spc, r.db, r.rel, r.fork));
        let mut columns = Relations::default();
        for (relation, counts) in self.rows {
            columns.spc.push(relation.spc);
            columns.db.push(relation.db);
            columns.rel.push(relation.rel);
            columns.fork.push(relation.fork as u8);
            columns.usage_counts.extend(counts.usage);
            columns.dirty.push(counts.dirty);
            columns.pinned.push(counts.pinned);
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relation(rel: u32) -> Relation {
        Relation {
            spc: 1663,
            db: 5,
            rel,
            fork: 0,
        }
    }

    #[test]
    fn tallies_of_threads_add_up_and_come_sorted() {
        let (mut one, mut two) = (Tally::default(), Tally::default());
        for rel in [9, 7, 9, 9] {
            one.counts_of(relation(rel)).usage[5] += 1;
        }
        two.counts_of(relation(8)).dirty += 1;
        two.counts_of(relation(9)).usage[5] += 10;
        two.counts_of(relation(9)).pinned += 2;
        one.add_all(&two);
        let columns = one.into_columns();
        assert_eq!(columns.rel, [7, 8, 9]);
        assert_eq!(
            columns
                .usage_counts
                .chunks(USAGE_COUNTS)
                .map(|c| c[5])
                .collect::<Vec<_>>(),
            [1, 0, 13]
        );
        assert_eq!(
            (columns.dirty, columns.pinned),
            (vec![0, 1, 0], vec![0, 0, 2])
        );
    }

    #[test]
    fn stretches_are_whole_pieces_and_all_of_the_pool() {
        for buffers in [
            1,
            16,
            PIECE_BUFFERS,
            PIECE_BUFFERS + 1,
            100 * PIECE_BUFFERS + 7,
        ] {
            for threads in [0, 1, 2, 5] {
                let found = stretches(buffers, threads);
                assert_eq!(found.iter().cloned().flatten().count(), buffers);
                assert!(found.iter().all(|s| s.start % PIECE_BUFFERS == 0));
                assert!(found.len() <= 4 * threads.max(1));
            }
        }
    }

    #[test]
    fn many_relations_keep_apart() {
        let mut tally = Tally::default();
        for turn in 1..=3 {
            for rel in 0..50_000 {
                tally.counts_of(relation(rel * 2)).usage[0] += turn;
            }
        }
        let columns = tally.into_columns();
        assert_eq!(columns.rel.len(), 50_000);
        assert!(columns.usage_counts.chunks(USAGE_COUNTS).all(|c| c[0] == 6));
    }
}
