//! The likelihood of pages' whole paths through snapshots that are close together.
//!
//! Between two snapshots a page's state is a Markov chain: it is absent, or resident at a usage count and a number of
//! steps of a clock pass after the hand's last visit to its buffer. From step to step that number rises by one, visits
//! raise the count, and only in the last step the hand comes. So a page that is resident keeps to its usage count until
//! then, and all that can happen follows from what becomes of a page that is absent or in its last step: seven rows of
//! the matrix of a number of steps, not all of them, and each step a few small products.

use rustc_hash::FxHashMap;

use super::clock::stationary_of;

/// Steps of a clock pass.
pub const STEPS: usize = 8;

/// Usage counts, from 0.
pub const COUNTS: usize = 6;

/// States in which a page is absent, or at a usage count when the hand comes.
pub const TURNS: usize = 1 + COUNTS;

/// After so many steps the chain is taken to be stationary.
const FORGOTTEN_STEPS: usize = 60 * STEPS;

/// The probability of what the model excludes: a buffer is pinned when the hand comes, a page is dropped.
const LEAST: f64 = 1e-7;

/// Absent, then each usage count with each number of steps since the hand's last visit.
const STATES: usize = 1 + COUNTS * STEPS;

/// In a path, the state of a block that does not exist yet; others stand for themselves plus one.
const NOT_YET: u32 = 0;
const ABSENT: u32 = 1;

/// A number for each of a few points of the grid of rates: what a processor multiplies at once.
type Lanes = [f64; 8];

fn add_product(sum: &mut Lanes, one: &Lanes, other: &Lanes) {
    for ((sum, one), other) in sum.iter_mut().zip(one).zip(other) {
        *sum += one * other;
    }
}

/// What happens in a step, at each point of a grid of rates, row by row.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// From each usage count to each, by visits: [`COUNTS`] times [`COUNTS`] numbers a point.
    pub visits: &'a [f64],
    /// In the last step, and of a page that is absent: from absent and each count to absent and each count in the first
    /// step, [`TURNS`] times [`TURNS`] numbers a point.
    pub turns: &'a [f64],
}

/// What snapshots show of pages, row by row: a page a row.
#[derive(Debug, Clone, Copy)]
pub struct Sightings<'a> {
    /// The usage count in each snapshot, -1 where the page is absent.
    pub counts: &'a [i16],
    /// Its buffer.
    pub buffers: &'a [i32],
    /// Whether the page was made meanwhile. Its path begins where it is first seen: it was not absent before.
    pub created: &'a [bool],
    /// How many pages each row stands for.
    pub weights: &'a [f64],
    /// How many buffers the hand had passed at each snapshot, ascending.
    pub hands: &'a [i64],
    /// Buffers of the pool.
    pub pool: i64,
}

/// The likelihoods of distinct paths at each point of the grid, row by row, the largest of each row 1.
#[derive(Debug, Clone)]
pub struct Likely {
    /// A path a row, in the order of their states.
    pub like: Vec<f64>,
    /// How many pages took each.
    pub pages: Vec<f64>,
}

/// A transition that a path takes, by the states before and after it.
#[derive(Debug, Clone, Copy)]
struct Move {
    steps: usize,
    from: usize,
    to: usize,
}

impl Move {
    /// The steps until a page that is resident is in its last one.
    fn until_turn(self) -> usize {
        match self.from {
            0 => 0,
            resident => STEPS - 1 - (resident - 1) % STEPS,
        }
    }

    /// The steps after that.
    fn after_turn(self) -> usize {
        match self.steps {
            FORGOTTEN_STEPS.. => 0,
            steps => steps.saturating_sub(self.until_turn()),
        }
    }
}

/// A page's distribution over the states.
#[derive(Clone, Copy)]
struct Law {
    absent: Lanes,
    resident: [[Lanes; COUNTS]; STEPS],
}

impl Law {
    const NOWHERE: Self = Self {
        absent: [0.0; 8],
        resident: [[[0.0; 8]; COUNTS]; STEPS],
    };

    fn at(&self, state: usize) -> &Lanes {
        match state.checked_sub(1) {
            None => &self.absent,
            Some(resident) => &self.resident[resident % STEPS][resident / STEPS],
        }
    }

    fn advance(&mut self, visits: &[[Lanes; COUNTS]; COUNTS], turns: &[[Lanes; TURNS]; TURNS]) {
        let mut turned = [[0.0; 8]; TURNS];
        let before = [&self.absent].into_iter().chain(&self.resident[STEPS - 1]);
        for (share, row) in before.zip(turns) {
            for (sum, turn) in turned.iter_mut().zip(row) {
                add_product(sum, share, turn);
            }
        }
        for since in (1..STEPS).rev() {
            self.resident[since] = visited(&self.resident[since - 1], visits);
        }
        self.absent = turned[0];
        self.resident[0].copy_from_slice(&turned[1..]);
    }
}

/// Return the distribution over usage counts after visits, which never lower one.
fn visited(counts: &[Lanes; COUNTS], visits: &[[Lanes; COUNTS]; COUNTS]) -> [Lanes; COUNTS] {
    let mut found = [[0.0; 8]; COUNTS];
    for (before, (share, row)) in counts.iter().zip(visits).enumerate() {
        for (sum, visit) in found[before..].iter_mut().zip(&row[before..]) {
            add_product(sum, share, visit);
        }
    }
    found
}

/// The chain at a few points of the grid.
struct Chain {
    turns: [[Lanes; TURNS]; TURNS],
    /// From each usage count to each by the visits of no step, one step, and so on.
    visits: Vec<[[Lanes; COUNTS]; COUNTS]>,
    rest: Law,
}

impl Chain {
    /// Read the numbers of the points from the first on; behind the last, those of the last are repeated.
    fn new(step: Step<'_>, first: usize, points: usize) -> Self {
        let number = |all: &[f64], each: usize, at: usize| -> Lanes {
            std::array::from_fn(|lane| all[(first + lane).min(points - 1) * each + at])
        };
        let turns = std::array::from_fn(|from| {
            std::array::from_fn(|to| number(step.turns, TURNS * TURNS, from * TURNS + to))
        });
        let once: [[Lanes; COUNTS]; COUNTS] = std::array::from_fn(|from| {
            std::array::from_fn(|to| number(step.visits, COUNTS * COUNTS, from * COUNTS + to))
        });
        let mut none = [[[0.0; 8]; COUNTS]; COUNTS];
        for (count, row) in none.iter_mut().enumerate() {
            row[count] = [1.0; 8];
        }
        let more =
            |before: &[[Lanes; COUNTS]; COUNTS]| Some(before.map(|row| visited(&row, &once)));
        let visits: Vec<_> = std::iter::successors(Some(none), more)
            .take(STEPS)
            .collect();
        let rest = at_rest(&turns, &visits);
        Self {
            turns,
            visits,
            rest,
        }
    }

    /// Return the probability of each move, of which those with fewer steps after the turn come first.
    fn probabilities(&self, moves: &[Move]) -> Vec<Lanes> {
        // What becomes of a page that is absent, and of one at each count in its last step.
        let mut later = vec![Law::NOWHERE; TURNS];
        later[0].absent = [1.0; 8];
        for count in 0..COUNTS {
            later[1 + count].resident[STEPS - 1][count] = [1.0; 8];
        }
        let mut now = 0;
        let mut found = Vec::with_capacity(moves.len());
        for one in moves {
            while now < one.after_turn() {
                for law in &mut later {
                    law.advance(&self.visits[1], &self.turns);
                }
                now += 1;
            }
            found.push(self.probability(*one, &later));
        }
        found
    }

    fn probability(&self, one: Move, later: &[Law]) -> Lanes {
        if one.steps >= FORGOTTEN_STEPS {
            return *self.rest.at(one.to);
        }
        if one.from == 0 {
            return later[0].at(one.to).map(|p| p.max(LEAST));
        }
        let (count, since) = ((one.from - 1) / STEPS, (one.from - 1) % STEPS);
        let mut sum = [0.0; 8];
        if one.steps >= one.until_turn() {
            let before = &self.visits[one.until_turn()][count];
            for (share, law) in before.iter().zip(&later[1..]) {
                add_product(&mut sum, share, law.at(one.to));
            }
        } else if one.to > 0 && (one.to - 1) % STEPS == since + one.steps {
            sum = self.visits[one.steps][count][(one.to - 1) / STEPS];
        }
        sum.map(|p| p.max(LEAST))
    }
}

/// Return the law of the states long after the beginning.
///
/// It follows from that of the chain seen only where a page is absent or in its last step.
fn at_rest(turns: &[[Lanes; TURNS]; TURNS], visits: &[[[Lanes; COUNTS]; COUNTS]]) -> Law {
    let mut law = Law::NOWHERE;
    for lane in 0..8 {
        let mut seen = [[0.0; TURNS]; TURNS];
        for (row, turn) in seen.iter_mut().zip(turns) {
            row[0] = turn[0][lane];
            for (loaded, until) in turn[1..].iter().zip(&visits[STEPS - 1]) {
                for (sum, visit) in row[1..].iter_mut().zip(until) {
                    *sum += loaded[lane] * visit[lane];
                }
            }
        }
        let seen = stationary_of(seen);
        law.absent[lane] = seen[0];
        for (share, turn) in seen.iter().zip(turns) {
            for (sum, turned) in law.resident[0].iter_mut().zip(&turn[1..]) {
                sum[lane] += share * turned[lane];
            }
        }
    }
    for since in 1..STEPS {
        law.resident[since] = visited(&law.resident[since - 1], &visits[1]);
    }
    let mut total = law.absent;
    for sum in law.resident.iter().flatten() {
        add_product(&mut total, sum, &[1.0; 8]);
    }
    let scaled = |mut share: Lanes| {
        for (share, total) in share.iter_mut().zip(&total) {
            *share = (*share / total).max(LEAST * LEAST);
        }
        share
    };
    Law {
        absent: scaled(law.absent),
        resident: law.resident.map(|counts| counts.map(scaled)),
    }
}

/// Paths as products: of the numbers of two factors, then of two such products, and so on.
///
/// Many paths have parts in common, and each is multiplied once.
struct Products {
    /// Of each round, which two numbers of the round before each product is of.
    rounds: Vec<Vec<(u32, u32)>>,
    /// Which product of the last round each path is.
    paths: Vec<u32>,
}

impl Products {
    /// Take in rows of factors, `width` of each path, which is a power of 2.
    fn new(mut factors: Vec<u32>, mut width: usize) -> Self {
        let mut rounds = Vec::new();
        while width > 1 {
            let mut numbers = FxHashMap::default();
            let mut pairs = Vec::new();
            factors = factors
                .chunks_exact(2)
                .map(|pair| {
                    *numbers.entry((pair[0], pair[1])).or_insert_with(|| {
                        pairs.push((pair[0], pair[1]));
                        pairs.len() as u32 - 1
                    })
                })
                .collect();
            rounds.push(pairs);
            width /= 2;
        }
        Self {
            rounds,
            paths: factors,
        }
    }

    fn of(&self, mut values: Vec<Lanes>) -> Vec<Lanes> {
        for pairs in &self.rounds {
            values = pairs
                .iter()
                .map(|(one, other)| {
                    let (one, other) = (&values[*one as usize], &values[*other as usize]);
                    std::array::from_fn(|lane| one[lane] * other[lane])
                })
                .collect();
        }
        values
    }
}

/// Return the likelihoods of the paths of pages, and how many took each.
///
/// # Panics
///
/// If the lengths do not fit, or a number is out of range.
pub fn path_likelihoods(seen: Sightings<'_>, step: Step<'_>) -> Likely {
    let points = step.turns.len() / (TURNS * TURNS);
    let snapshots = seen.hands.len();
    let (paths, pages) = distinct(seen);
    // A path is the product of 1, the law of its first state, and its moves.
    let (moves, factors) = numbered(&paths, snapshots);
    let products = Products::new(factors, snapshots.next_power_of_two());
    let mut like = vec![0.0; pages.len() * points];
    for first in (0..points).step_by(8) {
        let chain = Chain::new(step, first, points);
        let mut values = vec![[1.0; 8]];
        values.extend((0..STATES).map(|state| *chain.rest.at(state)));
        values.extend(chain.probabilities(&moves));
        let values = products.of(values);
        let end = (first + 8).min(points);
        for (row, number) in like.chunks_exact_mut(points).zip(&products.paths) {
            row[first..end].copy_from_slice(&values[*number as usize][..end - first]);
        }
    }
    for row in like.chunks_exact_mut(points) {
        let largest = row.iter().copied().fold(0.0, f64::max);
        for likelihood in row {
            *likelihood /= largest;
        }
    }
    Likely { like, pages }
}

/// Return the moves of paths, those with fewer steps after the turn first, and the factors that each path is of.
///
/// Factor 0 is 1, then follow the states in which a path may begin, then the moves; as many to a path as the power of 2
/// that holds its snapshots.
fn numbered(paths: &[u32], snapshots: usize) -> (Vec<Move>, Vec<u32>) {
    let width = snapshots.next_power_of_two();
    let mut codes = Vec::with_capacity(width * paths.len() / (2 * snapshots - 1));
    for path in paths.chunks_exact(2 * snapshots - 1) {
        let (states, steps) = path.split_at(snapshots);
        codes.push(states[0] as usize);
        for (pair, steps) in states.windows(2).zip(steps) {
            let before = match pair[0] {
                NOT_YET => 0,
                _ => ((*steps as usize).min(FORGOTTEN_STEPS) + 1) * STATES + pair[0] as usize - 1,
            };
            codes.push(if before == 0 {
                0
            } else {
                before * STATES + pair[1] as usize - 1
            });
        }
        codes.resize(codes.len().next_multiple_of(width), 0);
    }
    let mut numbers = vec![0; codes.iter().max().map_or(0, |code| code + 1)];
    for code in &codes {
        numbers[*code] = 1;
    }
    let mut moves: Vec<(Move, usize)> = (STATES * STATES..numbers.len())
        .filter(|code| numbers[*code] == 1)
        .map(|code| {
            let one = Move {
                steps: code / (STATES * STATES) - 1,
                from: code / STATES % STATES,
                to: code % STATES,
            };
            (one, code)
        })
        .collect();
    moves.sort_by_key(|(one, _)| one.after_turn());
    for (number, (_, code)) in moves.iter().enumerate() {
        numbers[*code] = (1 + STATES + number) as u32;
    }
    let factor = |code: usize| {
        if code <= STATES {
            code as u32
        } else {
            numbers[code]
        }
    };
    let factors = codes.into_iter().map(factor).collect();
    (moves.into_iter().map(|(one, _)| one).collect(), factors)
}

/// Return distinct paths in their order, one after the other, and how many pages took each.
///
/// A path is the state in each snapshot, then how many steps end between each two of them. These depend on the buffer;
/// where the page is in none, any will do.
fn distinct(seen: Sightings<'_>) -> (Vec<u32>, Vec<f64>) {
    let snapshots = seen.hands.len();
    let length = 2 * snapshots - 1;
    let rows = seen
        .counts
        .chunks_exact(snapshots)
        .zip(seen.buffers.chunks_exact(snapshots));
    let mut paths = Vec::with_capacity(seen.weights.len() * length);
    for ((counts, buffers), created) in rows.zip(seen.created) {
        let steps = |at: usize, buffer: i32| {
            ((seen.hands[at] - i64::from(buffer)) * STEPS as i64).div_euclid(seen.pool)
        };
        let mut there = !created;
        for (at, (count, buffer)) in counts.iter().zip(buffers).enumerate() {
            there |= *count >= 0;
            paths.push(match usize::try_from(*count) {
                Ok(count) => {
                    let since = steps(at, *buffer).rem_euclid(STEPS as i64) as usize;
                    ABSENT + 1 + (count * STEPS + since) as u32
                }
                Err(_) if there => ABSENT,
                Err(_) => NOT_YET,
            });
        }
        for at in 0..snapshots - 1 {
            let buffer = buffers[if counts[at] >= 0 { at } else { at + 1 }];
            paths.push((steps(at + 1, buffer) - steps(at, buffer)) as u32);
        }
    }
    let mut rows: Vec<(&[u32], f64)> = paths
        .chunks_exact(length)
        .zip(seen.weights.iter().copied())
        .collect();
    rows.sort_by_key(|(path, _)| *path);
    rows.dedup_by(|(later, more), (kept, weight)| {
        let same = later == kept;
        *weight += if same { *more } else { 0.0 };
        same
    });
    let (rows, pages): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    (rows.concat(), pages)
}
