//! A load drawn from rates: pages are visited at random times, each independently of the others.

use crate::model::clock::Batch;
use crate::random::Random;

/// Pages in classes; those of a class are visited equally often.
#[derive(Debug, Clone, Copy)]
pub struct Classes<'a> {
    /// How often the pages of each class are visited together, in any unit; not negative.
    pub visits: &'a [f64],
    /// The first page of each class, and behind the last: ascending, one more than there are classes.
    pub begins: &'a [usize],
    /// With which probability a visit brings 1, 2, 3, 4, and 5 or more accesses, by class.
    pub batches: &'a [Batch],
    /// The address of each page.
    pub addresses: &'a [u32],
}

/// Accesses in the order of time.
#[derive(Debug, Default, PartialEq)]
pub struct Accesses {
    /// The address of each.
    pub addresses: Vec<u32>,
    /// When, in seconds from the beginning.
    pub seconds: Vec<f64>,
}

/// Draw visits at equal distances in a number of seconds; all accesses of a visit have its time.
///
/// The same seed gives the same accesses. Classes without a visit or without a page are never drawn.
pub fn draw_accesses(classes: Classes<'_>, visits: usize, seconds: f64, seed: u64) -> Accesses {
    let mut below = 0.0;
    let ends: Vec<f64> = classes
        .visits
        .iter()
        .zip(classes.begins.windows(2))
        .map(|(visits, pages)| {
            below += if pages[0] < pages[1] { *visits } else { 0.0 };
            below
        })
        .collect();
    if below <= 0.0 {
        return Accesses::default();
    }
    let guide = Guide::new(ends);
    let pages_a_visit: Vec<f64> = classes
        .visits
        .iter()
        .zip(classes.begins.windows(2))
        .map(|(visits, pages)| (pages[1] - pages[0]) as f64 / visits)
        .collect();
    let single = classes
        .batches
        .iter()
        .all(|batch| batch[1..].iter().all(|p| *p <= 0.0));
    let step = seconds / visits as f64;
    let mut random = Random::new(seed, 0);
    let mut found = Accesses {
        addresses: Vec::with_capacity(visits),
        seconds: Vec::with_capacity(visits),
    };
    for number in 0..visits {
        let (class, visit) = guide.class_of(random.uniform());
        let begin = classes.begins[class];
        let last = classes.begins[class + 1] - 1;
        let page = (begin + (visit * pages_a_visit[class]) as usize).min(last);
        let times = if single {
            1
        } else {
            1 + random.place(&classes.batches[class])
        };
        let at = (number as f64 + 0.5) * step;
        for _ in 0..times {
            found.addresses.push(classes.addresses[page]);
            found.seconds.push(at);
        }
    }
    found
}

/// Finds the class of a random number in about one look.
#[derive(Clone, Debug)]
pub(crate) struct Guide {
    ends: Vec<f64>,
    /// The last class that has visits.
    last: usize,
    /// The first class that a number can have, by its leading bits.
    first: Vec<u32>,
}

impl Guide {
    pub fn new(ends: Vec<f64>) -> Self {
        let size = (16 * ends.len()).next_power_of_two();
        let total = ends[ends.len() - 1];
        let first = (0..size)
            .map(|number| {
                let begin = number as f64 / size as f64 * total;
                ends.partition_point(|end| *end <= begin) as u32
            })
            .collect();
        let last = ends.partition_point(|end| *end < total);
        Self { ends, last, first }
    }

    /// Return the class of a number from 0 to less than 1, and how many visits of the class lie before it.
    pub fn class_of(&self, number: f64) -> (usize, f64) {
        let total = self.ends[self.ends.len() - 1];
        let wanted = number * total;
        let mut class = self.first[(number * self.first.len() as f64) as usize] as usize;
        // Rounding may have made it the total.
        while class < self.last && self.ends[class] <= wanted {
            class += 1;
        }
        let begin = if class > 0 { self.ends[class - 1] } else { 0.0 };
        (class, wanted - begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONE: Batch = [1.0, 0.0, 0.0, 0.0, 0.0];

    #[test]
    fn pages_are_visited_by_their_rates_and_as_often_as_their_batches_say() {
        let classes = Classes {
            visits: &[1.0, 0.0, 6.0, 5.0, 2.0],
            begins: &[0, 10, 20, 23, 23, 24],
            batches: &[
                ONE,
                ONE,
                [0.5, 0.0, 0.25, 0.0, 0.25],
                ONE,
                [0.0, 0.0, 0.0, 0.0, 1.0],
            ],
            addresses: &(100..124).rev().collect::<Vec<u32>>(),
        };
        let visits = 900_000;
        let found = draw_accesses(classes, visits, 60.0, 7);
        let mut counts = [0.0; 24];
        for address in &found.addresses {
            counts[(123 - address) as usize] += 1.0 / visits as f64;
        }
        // Nine parts are drawn: the class of 5 has no page. Six parts make 2.5 accesses on average, two make 5.
        for (page, count) in counts.iter().enumerate() {
            let expected = match page {
                0..=9 => 1.0 / 9.0 / 10.0,
                10..=19 => 0.0,
                20..=22 => 6.0 / 9.0 * 2.5 / 3.0,
                _ => 2.0 / 9.0 * 5.0,
            };
            assert!(
                (count - expected).abs() < 0.01,
                "page {page}: {count}, not {expected}"
            );
        }
        assert!(found.seconds.windows(2).all(|pair| pair[0] <= pair[1]));
        assert!(found.seconds[0] > 0.0 && found.seconds[found.seconds.len() - 1] < 60.0);
        assert_eq!(found, draw_accesses(classes, visits, 60.0, 7));
        assert_ne!(found, draw_accesses(classes, visits, 60.0, 8));
    }

    #[test]
    fn without_visits_there_is_no_access() {
        let nothing = Classes {
            visits: &[],
            begins: &[0],
            batches: &[],
            addresses: &[],
        };
        assert_eq!(draw_accesses(nothing, 10, 1.0, 1), Accesses::default());
        let never = Classes {
            visits: &[0.0],
            begins: &[0, 1],
            batches: &[ONE],
            addresses: &[5],
        };
        assert_eq!(draw_accesses(never, 10, 1.0, 1), Accesses::default());
    }

    proptest! {
        #[test]
        fn the_guide_finds_the_class_that_a_search_finds(
            visits in prop::collection::vec(prop_oneof![Just(0.0), 1e-9..1e9], 1..60),
            number in 0.0..1.0,
        ) {
            let mut below = 0.0;
            let ends: Vec<f64> = visits.iter().map(|visits| { below += visits; below }).collect();
            prop_assume!(below > 0.0);
            let (class, visit) = Guide::new(ends.clone()).class_of(number);
            let searched = ends.partition_point(|end| *end <= number * below);
            prop_assert_eq!(class, searched.min(ends.partition_point(|end| *end < below)));
            prop_assert!((0.0..=ends[class]).contains(&visit));
        }
    }
}
