//! Pages by name mapped to dense numbers, in the order of first appearance.

use std::collections::HashMap;

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

/// Gives each page the next number when it first appears.
///
/// Per relation a two-level table: leaves of 64 blocks exist only where blocks were seen, so that a
/// sparse trace of a huge table stays small while a dense one costs four bytes a block and no hashing.
#[derive(Clone, Debug, Default)]
pub struct DenseIds {
    relations: HashMap<Relation, usize>,
    /// Leaf of each 64 blocks, by relation.
    tops: Vec<Vec<u32>>,
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
        let top = &mut self.tops[relation];
        let at = (page.block >> LEAF_BITS) as usize;
        if top.len() <= at {
            top.resize(at + 1, NONE);
        }
        if top[at] == NONE {
            top[at] = self.leaves.len() as u32;
            self.leaves.push([NONE; 1 << LEAF_BITS]);
        }
        let leaf = &mut self.leaves[top[at] as usize];
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
            self.tops.push(Vec::new());
        }
        self.latest = Some((relation, index));
        index
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

    proptest! {
        #[test]
        fn ids_are_a_bijection(names in prop::collection::vec((0..4u32, 0..2u8, 0..500u32), 0..300)) {
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
