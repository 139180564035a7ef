//! Pages that scans visit repeatedly, without a ring: in which state the beginning of a trace finds them.
//!
//! Such visits come at nearly equal distances, for which the law of a page ([`super::clock`]) does not hold. So single pages are
//! followed: the scans before the trace are drawn from the gaps seen in it, visits outside scans come at random at the page's
//! own rate, and the hand comes once a clock pass.

use crate::model::clock::Batch;
use crate::parallel;
use crate::random::Random;
use crate::rules::Policy;

/// A page that is visited about once a pass takes so many to forget with which usage count it began.
const PASSES_OF_MEMORY: f64 = 40.0;
/// Scans followed into the past; more than these keep a page at the highest count.
const MOST_SCANS: usize = 32;
/// Loads and passes followed: no more than two a pass, but for the last.
const MOST_STEPS: usize = 4 * PASSES_OF_MEMORY as usize;
/// A gap that was not seen is at most so many times as long as what was seen of it.
const LONGEST_GAP: f64 = 1e3;
/// The number of observed gaps that weigh as much as the chance of a longer one.
const DOUBT: f64 = 0.2;
/// Pages that one thread takes at a time.
const PART: usize = 4096;

/// What was seen of the scans, and what a visit outside them brings.
#[derive(Debug, Clone, Copy)]
pub struct Scans<'a> {
    /// Seconds between two scans of a page, ascending.
    pub gaps_seconds: &'a [f64],
    /// How many scans were seen.
    pub rounds: f64,
    /// Seconds of the trace.
    pub duration_seconds: f64,
    /// With which probability a visit outside scans brings 1, 2, 3, 4, and 5 or more accesses.
    pub batch: Batch,
    /// Of the pool.
    pub policy: Policy,
}

/// One page.
#[derive(Debug, Clone, Copy)]
pub struct ScannedPage {
    /// When a scan first visits it in the trace.
    pub first_seconds: f64,
    /// Visits per second outside scans.
    pub rate: f64,
    /// Seconds of a clock pass.
    pub pass_seconds: f64,
}

/// Draw the state of pages when the trace begins: 0 for absent, or 1 plus the usage count.
///
/// The same seed gives the same states, whatever the number of threads.
pub fn states_before(pages: &[ScannedPage], scans: Scans<'_>, seed: u64) -> Vec<u8> {
    let parts: Vec<(usize, &[ScannedPage])> = pages.chunks(PART).enumerate().collect();
    let found = parallel::map(&parts, None, |&(number, part)| {
        let mut random = Random::new(seed, number as u64);
        part.iter()
            .map(|page| scans.state_of(*page, &mut random))
            .collect::<Vec<u8>>()
    });
    found.concat()
}

impl Scans<'_> {
    fn state_of(&self, page: ScannedPage, random: &mut Random) -> u8 {
        let cap = self.policy.usage_cap;
        let mut scans = Past::new();
        // Where the hand is when the trace begins is not known.
        let oldest = -(PASSES_OF_MEMORY + random.uniform()) * page.pass_seconds;
        let mut now = oldest;
        let mut count = None;
        if !self.draw(page.first_seconds, oldest, &mut scans, random) {
            // If the drawn scans do not reach back so far, they raise the count more than a clock pass lowers it.
            now = scans.next();
            count = Some(cap);
        }
        for _ in 0..MOST_STEPS {
            if now >= 0.0 {
                break;
            }
            let Some(held) = count else {
                let visit = now + random.wait(page.rate);
                let arrival = visit.min(scans.next());
                if arrival >= 0.0 {
                    break;
                }
                let more = if scans.next() <= visit {
                    0
                } else {
                    self.accesses(random) - 1
                };
                count = Some((self.policy.admission + more).min(cap));
                now = arrival;
                scans.take_until(now);
                continue;
            };
            // To the next pass, or to the beginning of the trace.
            let until = (now + page.pass_seconds).min(0.0);
            let mut raised = usize::from(held) + scans.take_until(until);
            let mut at = now;
            for _ in 0..cap {
                at += random.wait(page.rate);
                if at > until {
                    break;
                }
                raised += usize::from(self.accesses(random));
            }
            let raised = raised.min(usize::from(cap)) as u8;
            count = if now + page.pass_seconds < 0.0 {
                raised.checked_sub(1)
            } else {
                Some(raised)
            };
            now = until;
        }
        count.map_or(0, |count| count + 1)
    }

    /// Draw when a page was scanned before the trace, back to a time at least; return whether that was reached.
    ///
    /// The gap into which the beginning of the trace falls is one of those seen that are long enough. How far the few observed
    /// gaps are relied on follows from their number: the gap may also be longer than all observed ones, by an unknown amount;
    /// it always is where none was observed.
    fn draw(&self, first_seconds: f64, oldest: f64, scans: &mut Past, random: &mut Random) -> bool {
        let gaps = self.gaps_seconds;
        // At least this long was no scan: until the first one, or from the only one to the end.
        let quiet = if self.rounds < 2.0 {
            first_seconds.max(self.duration_seconds - first_seconds)
        } else {
            first_seconds
        };
        let doubt = DOUBT / (self.rounds.max(1.0) - 1.0 + DOUBT);
        let mut at = first_seconds;
        for number in 0..MOST_SCANS {
            let seen = if gaps.is_empty() {
                None
            } else if number == 0 {
                let enough = &gaps[gaps.partition_point(|gap| *gap < first_seconds)..];
                Some(random.one_of(enough).unwrap_or(first_seconds))
            } else {
                random.one_of(gaps)
            };
            // Once the first gap is known to be an ordinary one there is no reason to doubt the others.
            let doubted = number == 0 || self.rounds < 2.0;
            at -= match seen {
                Some(gap) if !doubted || random.uniform() >= doubt => gap,
                other => {
                    let long = quiet / random.uniform().max(1.0 / LONGEST_GAP);
                    other.map_or(long, |gap| gap.max(long))
                }
            };
            if at <= oldest {
                return true;
            }
            scans.add(at);
        }
        false
    }

    fn accesses(&self, random: &mut Random) -> u8 {
        1 + random.place(&self.batch) as u8
    }
}

/// Times of scans before the trace, drawn backwards and followed forwards.
struct Past {
    times: [f64; MOST_SCANS],
    left: usize,
}

impl Past {
    fn new() -> Self {
        Self {
            times: [0.0; MOST_SCANS],
            left: 0,
        }
    }

    fn add(&mut self, earlier: f64) {
        self.times[self.left] = earlier;
        self.left += 1;
    }

    /// Return when the next scan comes.
    fn next(&self) -> f64 {
        match self.left {
            0 => f64::INFINITY,
            left => self.times[left - 1],
        }
    }

    /// Pass over the scans up to a time, and return how many they are.
    fn take_until(&mut self, time: f64) -> usize {
        let before = self.left;
        while self.left > 0 && self.times[self.left - 1] <= time {
            self.left -= 1;
        }
        before - self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::clock::stationary_table;

    const POLICY: Policy = Policy {
        usage_cap: 5,
        admission: 1,
        hands: 1,
        free_list: true,
    };
    const SINGLE: Batch = [1.0, 0.0, 0.0, 0.0, 0.0];
    const PAGES: usize = 40_000;

    fn drawn(page: ScannedPage, gaps: &[f64], rounds: f64, batch: Batch) -> [f64; 7] {
        let scans = Scans {
            gaps_seconds: gaps,
            rounds,
            duration_seconds: 100.0,
            batch,
            policy: POLICY,
        };
        let mut shares = [0.0; 7];
        for state in states_before(&vec![page; PAGES], scans, 7) {
            shares[usize::from(state)] += 1.0 / PAGES as f64;
        }
        shares
    }

    #[test]
    fn without_scans_it_is_the_law_of_the_clock() {
        // The last scan was so long ago that nothing is left of it.
        let batch = [0.5, 0.3, 0.1, 0.1, 0.0];
        for (rate, batch) in [
            (0.3, SINGLE),
            (1.0, SINGLE),
            (0.5, batch),
            (3.0, SINGLE),
            (3.0, batch),
        ] {
            let page = ScannedPage {
                first_seconds: 90.0,
                rate,
                pass_seconds: 1.0,
            };
            let shares = drawn(page, &[1000.0], 1e9, batch);
            let law = stationary_table(&[rate], &batch, POLICY);
            for (share, expected) in shares.iter().zip(&law) {
                assert!((share - expected).abs() < 0.01, "{shares:?} not {law:?}");
            }
        }
    }

    #[test]
    fn without_other_visits_the_distance_of_scans_decides() {
        let page = |pass_seconds| ScannedPage {
            first_seconds: 4.0,
            rate: 0.0,
            pass_seconds,
        };
        // Scans every 10 s, the last one 6 s ago. A pass of 4 s lets no page stay until the next scan: it was read at usage
        // count 1, and the first pass took that away, the second the page, unless it has not come yet.
        let gaps = [10.0; 5];
        let many = 1e9;
        assert!((drawn(page(4.0), &gaps, many, SINGLE)[1] - 1.0).abs() < 1e-9);
        assert!((drawn(page(2.0), &gaps, many, SINGLE)[0] - 1.0).abs() < 1e-9);
        // Two scans in a pass raise the count by more than the pass takes.
        let high = drawn(page(21.0), &gaps, many, SINGLE);
        assert!(high[5] + high[6] > 0.999, "{high:?}");
        // So do more scans than are followed.
        let crowded = drawn(page(2000.0), &gaps, many, SINGLE);
        assert!(crowded[5] + crowded[6] > 0.999, "{crowded:?}");
    }

    #[test]
    fn a_seed_gives_the_same_again() {
        let scans = Scans {
            gaps_seconds: &[3.0, 5.0],
            rounds: 3.0,
            duration_seconds: 20.0,
            batch: [0.6, 0.4, 0.0, 0.0, 0.0],
            policy: POLICY,
        };
        let pages: Vec<ScannedPage> = (0..10_000)
            .map(|n| ScannedPage {
                first_seconds: f64::from(n) / 2000.0,
                rate: f64::from(n % 7) / 10.0,
                pass_seconds: 4.0,
            })
            .collect();
        let first = states_before(&pages, scans, 1);
        assert_eq!(first, states_before(&pages, scans, 1));
        assert_ne!(first, states_before(&pages, scans, 2));
        assert!(states_before(&[], scans, 1).is_empty());
    }
}
