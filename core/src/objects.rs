//! Traces of other systems: objects under 64-bit names, and the distance to their next access.

use rustc_hash::FxHashMap;

use crate::trace::{refuse, InputError};

/// Gives each object the next number when it first appears; accesses may come in any number of pieces.
#[derive(Clone, Debug, Default)]
pub struct ObjectIds {
    numbers: FxHashMap<u64, u32>,
}

impl ObjectIds {
    /// No object yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Objects numbered so far.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether no object was numbered yet.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The numbers of the next accesses' objects.
    ///
    /// # Errors
    /// Where all of the four billion numbers are given.
    pub fn ids(&mut self, objects: &[u64]) -> Result<Vec<u32>, InputError> {
        let mut ids = Vec::with_capacity(objects.len());
        for &object in objects {
            let next = self.numbers.len();
            if next >= u32::MAX as usize && !self.numbers.contains_key(&object) {
                refuse!("more than 4294967295 distinct objects");
            }
            ids.push(*self.numbers.entry(object).or_insert(next as u32));
        }
        Ok(ids)
    }
}

/// Finds for each access the position of the next one to the same object, going backwards in pieces.
#[derive(Clone, Debug)]
pub struct NextAccesses {
    upcoming: Vec<i64>,
}

impl NextAccesses {
    /// Starts behind the last access to any of `objects` objects.
    pub fn new(objects: usize) -> Self {
        Self {
            upcoming: vec![-1; objects],
        }
    }

    /// The next accesses (or -1) of the piece that begins at position `first`; pieces come last one first.
    ///
    /// # Errors
    /// Where a number is not below the count of objects.
    pub fn piece(&mut self, ids: &[u32], first: u64) -> Result<Vec<i64>, InputError> {
        let mut next = vec![-1; ids.len()];
        for (k, &id) in ids.iter().enumerate().rev() {
            let Some(upcoming) = self.upcoming.get_mut(id as usize) else {
                refuse!("object {id} is not below {}", self.upcoming.len());
            };
            next[k] = *upcoming;
            *upcoming = (first + k as u64) as i64;
        }
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_follow_first_appearance() {
        let mut ids = ObjectIds::new();
        assert_eq!(ids.ids(&[u64::MAX, 0, u64::MAX]).unwrap(), [0, 1, 0]);
        assert_eq!(ids.ids(&[7, 0]).unwrap(), [2, 1]);
        assert_eq!(ids.len(), 3);
        assert!(NextAccesses::new(3).piece(&[3], 0).is_err());
    }

    proptest! {
        #[test]
        fn next_accesses_are_those_found_by_looking(
            ids in prop::collection::vec(0..20u32, 0..200), piece in 1..50usize
        ) {
            let mut finder = NextAccesses::new(20);
            let mut next = vec![0; ids.len()];
            let begins: Vec<usize> = (0..ids.len()).step_by(piece).collect();
            for &begin in begins.iter().rev() {
                let end = ids.len().min(begin + piece);
                next[begin..end].copy_from_slice(&finder.piece(&ids[begin..end], begin as u64).unwrap());
            }
            for (k, &id) in ids.iter().enumerate() {
                let looked = ids[k + 1..].iter().position(|&other| other == id);
                prop_assert_eq!(next[k], looked.map_or(-1, |ahead| (k + 1 + ahead) as i64));
            }
        }

        #[test]
        fn equal_numbers_mean_equal_names(names in prop::collection::vec(any::<u64>(), 0..300)) {
            let names: Vec<u64> = names.iter().map(|name| name % 100 * 0x1_0000_0001).collect();
            let ids = ObjectIds::new().ids(&names).unwrap();
            for (a, x) in names.iter().zip(&ids) {
                for (b, y) in names.iter().zip(&ids) {
                    prop_assert_eq!(a == b, x == y);
                }
            }
        }
    }
}
