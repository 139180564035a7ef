//! Pages by name mapped to dense numbers, in the order of first appearance.

use std::collections::HashMap;

use rustc_hash::FxHashMap;

use crate::trace::{refuse, InputError};

/// Which fork of which relation: tablespace, database, relfilenode, fork.
pub type Relation = (u32, u32, u32, u8);

/// A page's name, as PostgreSQL's `BufferTag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Tablespace, database, relfilenode, fork.
    pub relation: Relation,
    /// Block number within the fork.
    pub block: u32,
}

/// Blocks of a relation whose numbers differ only in the low bits share a leaf.
const LEAF_BITS: u32 = 6;
const NONE: u32 = u32::MAX;

/// How many entries a table of leaves may have at first, and for each leaf of its relation.
const TOP_AT_FIRST: usize = 1024;
const TOP_A_LEAF: usize = 16;

/// Where a relation's leaves are.
#[derive(Clone, Debug, Default)]
struct Leaves {
    /// Leaf of each 64 blocks.
    top: Vec<u32>,
    /// How many leaves there are, in `top` or among the scattered ones.
    count: usize,
    /// Whether some are among the scattered ones.
    scattered: bool,
}

/// Gives each page the next number when it first appears.
///
/// Per relation a two-level table: leaves of 64 blocks exist only where blocks were seen, and the table of
/// leaves is only as long as their number warrants; leaves beyond are found by hashing. So a dense trace
/// costs four bytes a block and no hashing, and memory follows the number of pages, never the block numbers.
#[derive(Clone, Debug, Default)]
pub struct DenseIds {
    relations: HashMap<Relation, usize>,
    tops: Vec<Leaves>,
    /// Leaves beyond the table of their relation: its number times 2^32, plus the leaf's.
    scattered: FxHashMap<u64, u32>,
    leaves: Vec<[u32; 1 << LEAF_BITS]>,
    latest: Option<(Relation, usize)>,
    pages: Vec<Page>,
}

impl DenseIds {
    /// No page yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of a page.
    ///
    /// # Errors
    /// Where all of the four billion numbers are given.
    pub fn id(&mut self, page: Page) -> Result<u32, InputError> {
        let relation = match self.latest {
            Some((latest, index)) if latest == page.relation => index,
            _ => self.relation(page.relation),
        };
        let at = (page.block >> LEAF_BITS) as usize;
        let leaf = match self.tops[relation].top.get(at) {
            Some(&leaf) if leaf != NONE => leaf,
            _ => self.leaf(relation, at),
        };
        let leaf = &mut self.leaves[leaf as usize];
        let id = &mut leaf[(page.block % (1 << LEAF_BITS)) as usize];
        if *id == NONE {
            if self.pages.len() as u64 >= u64::from(NONE) {
                refuse!("more than 4294967294 distinct pages");
            }
            *id = self.pages.len() as u32;
            self.pages.push(page);
        }
        Ok(*id)
    }

    /// The pages numbered so far; a page's number is its position.
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    #[cold]
    fn relation(&mut self, relation: Relation) -> usize {
        let next = self.tops.len();
        let index = *self.relations.entry(relation).or_insert(next);
        if index == next {
            self.tops.push(Leaves::default());
        }
        self.latest = Some((relation, index));
        index
    }

    /// Find a leaf that the relation's table does not have, or make it.
    #[cold]
    fn leaf(&mut self, relation: usize, at: usize) -> u32 {
        let own = &mut self.tops[relation];
        let key = (relation as u64) << 32 | at as u64;
        if own.scattered {
            if let Some(&leaf) = self.scattered.get(&key) {
                return leaf;
            }
        }
        let leaf = self.leaves.len() as u32;
        self.leaves.push([NONE; 1 << LEAF_BITS]);
        own.count += 1;
        if at < TOP_AT_FIRST + TOP_A_LEAF * own.count {
            if own.top.len() <= at {
                own.top.resize(at + 1, NONE);
            }
            own.top[at] = leaf;
        } else {
            own.scattered = true;
            self.scattered.insert(key, leaf);
        }
        leaf
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page(rel: u32, fork: u8, block: u32) -> Page {
        Page {
            relation: (1663, 5, rel, fork),
            block,
        }
    }

    #[test]
    fn ids_count_first_appearances() {
        let mut ids = DenseIds::new();
        let names = [
            page(1, 0, 9),
            page(1, 1, 9),
            page(1, 0, 9),
            page(2, 0, u32::MAX - 1),
            page(1, 1, 9),
        ];
        let got: Vec<_> = names.iter().map(|&p| ids.id(p).unwrap()).collect();
        assert_eq!(got, [0, 1, 0, 2, 1]);
        assert_eq!(ids.pages(), [names[0], names[1], names[3]]);
    }

    #[test]
    fn memory_follows_the_pages_and_not_their_numbers() {
        let mut ids = DenseIds::new();
        for rel in 0..100 {
            for block in [0, 7_000_000, 3_000_000_000, u32::MAX - 1, 3_000_000_001] {
                ids.id(page(rel, 0, block)).unwrap();
            }
        }
        assert_eq!(ids.pages().len(), 500);
        let entries: usize = ids.tops.iter().map(|own| own.top.capacity()).sum();
        assert!(
            entries <= 100 * 2 * (TOP_AT_FIRST + 8 * TOP_A_LEAF),
            "{entries} entries"
        );
        assert_eq!(ids.leaves.len(), 400);
    }

    #[test]
    fn scattered_blocks_keep_their_numbers_when_the_table_reaches_them() {
        let mut ids = DenseIds::new();
        let far = 5000 << LEAF_BITS;
        assert_eq!(ids.id(page(1, 0, far)).unwrap(), 0);
        for leaf in 0..1000 {
            ids.id(page(1, 0, leaf << LEAF_BITS)).unwrap();
        }
        ids.id(page(1, 0, 5001 << LEAF_BITS)).unwrap();
        assert!(ids.tops[0].top.len() > 5000);
        assert_eq!(ids.id(page(1, 0, far)).unwrap(), 0);
        assert_eq!(ids.id(page(1, 0, far + 1)).unwrap(), 1002);
    }

    proptest! {
        #[test]
        fn ids_are_a_bijection(names in prop::collection::vec((0..4u32, 0..2u8, prop_oneof![0..500u32, any::<u32>()]), 0..300)) {
            let mut ids = DenseIds::new();
            for &(rel, fork, block) in &names {
                let id = ids.id(page(rel, fork, block)).unwrap();
                prop_assert_eq!(ids.pages()[id as usize], page(rel, fork, block));
            }
            let distinct: std::collections::HashSet<_> = names.iter().collect();
            prop_assert_eq!(distinct.len(), ids.pages().len());
        }
    }
}
