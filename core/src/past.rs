//! An assumed past of a workload before its trace: the trace itself, with other blocks of the same kinds.
//!
//! A page cache remembers minutes to hours, a trace lasts seconds. So the trace is repeated several times before its
//! beginning, each time with other blocks: what sessions visited is drawn anew among all blocks of the same fork, by rates
//! that the numbers of visits make likely; scans, vacuums and drops stay as they are; and where relations grow, their new
//! blocks lie further back.

use crate::both_caches::{Accesses, BroughtIn, Caches, Flow, Left, Reads};
use crate::model::visits::Guide;
use crate::pool::Contents;
use crate::random::Random;
use crate::replay::observe;
use crate::trace::{refuse, InputError, Owners, Trace, DROP, STRATEGY_MASK};
use rustc_hash::FxHashMap;

/// What is no visit, because its block is not drawn.
const NO_VISIT: u32 = u32::MAX;
/// The class of what is made during the trace: it was never visited before.
const NEVER: u8 = u8::MAX;
const MOST_CLASSES: usize = NEVER as usize;
/// The longest that a page cache can keep a block, and the shortest.
const KEPT_SECONDS: (f64, f64) = (1e-6, 1e9);
const BISECTIONS: usize = 50;
/// The past is at most this long, in repetitions of the trace.
const MOST_TIMES: usize = 100;

/// A trace over blocks of files, in the form in which it is kept.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Block of each access.
    pub blocks: Vec<u32>,
    /// As [`Trace::flags`].
    pub flags: Vec<u8>,
    /// As [`Owners::access`].
    pub owner_access: Vec<u64>,
    /// As [`Owners::owner`].
    pub owner: Vec<u32>,
    /// As [`Owners::blocks`].
    pub owner_blocks: Vec<u32>,
    /// When each access is.
    pub seconds: Vec<f64>,
    /// Which open file each goes through.
    pub streams: Vec<u32>,
}

/// What is known of the blocks of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// First block of each fork, and where the last one ends.
    pub forks: &'a [u32],
    /// How often each block was visited.
    pub visits: &'a [u32],
    /// Which blocks were made during the trace.
    pub new: &'a [bool],
    /// Rates in visits per second, one a class.
    pub rates: &'a [f64],
    /// How many blocks of each fork have each of the rates, in any unit: row by row, a row per fork.
    pub weights: &'a [f64],
    /// How long the trace is.
    pub duration_seconds: f64,
    /// Accesses to a block that lie closer belong to one visit.
    pub visit_gap_seconds: f64,
    /// Of all draws.
    pub seed: u64,
}

/// How much past there must be.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// How many blocks are to be brought in, for each that the page cache has room for.
    pub turnovers: f64,
    /// The most accesses of it.
    pub accesses: usize,
}

/// The blocks of a fork by their rates.
#[derive(Clone, Debug)]
struct Fork {
    begin: u32,
    /// Blocks made during the trace.
    made: u32,
    /// The classes that have blocks, and where they end in `Past::by_class`.
    classes: Vec<u8>,
    begins: Vec<usize>,
    visits_a_block: Vec<f64>,
    guide: Option<Guide>,
}

/// A trace, and what is drawn from to make what came before it.
#[derive(Clone, Debug)]
pub struct Past {
    rows: Rows,
    /// By access, which visit it is part of.
    visit: Vec<u32>,
    /// Of each visit, and of the new block of each access that has one.
    fork_of_visit: Vec<u32>,
    forks: Vec<Fork>,
    /// All blocks, those of a fork and a class side by side.
    by_class: Vec<u32>,
    rates: Vec<f64>,
    new: Vec<bool>,
    fork_begins: Vec<u32>,
    duration_seconds: f64,
}

impl Past {
    /// Draw a rate for each block, and find the visits.
    ///
    /// # Errors
    /// Where the parts do not fit together.
    pub fn new(rows: Rows, known: &Known<'_>) -> Result<Self, InputError> {
        check(&rows, known)?;
        let (forks, by_class) = draw_rates(known);
        let mut past = Self {
            visit: Vec::with_capacity(rows.blocks.len()),
            rows,
            fork_of_visit: Vec::new(),
            forks,
            by_class,
            rates: known.rates.to_vec(),
            new: known.new.to_vec(),
            fork_begins: known.forks.to_vec(),
            duration_seconds: known.duration_seconds,
        };
        past.find_visits(known.visit_gap_seconds);
        Ok(past)
    }

    /// Number the visits in the order of their first accesses.
    fn find_visits(&mut self, gap_seconds: f64) {
        let mut last = vec![(NO_VISIT, 0.0); self.new.len()];
        for (k, &block) in self.rows.blocks.iter().enumerate() {
            let apart = self.rows.flags[k] & (STRATEGY_MASK | DROP) != 0;
            if apart || self.new[block as usize] {
                self.visit.push(NO_VISIT);
                continue;
            }
            let now = self.rows.seconds[k];
            let (visit, at) = &mut last[block as usize];
            if *visit == NO_VISIT || now - *at > gap_seconds {
                *visit = self.fork_of_visit.len() as u32;
                self.fork_of_visit
                    .push(self.fork_begins.partition_point(|&begin| begin <= block) as u32 - 1);
            }
            *at = now;
            self.visit.push(*visit);
        }
    }

    /// The blocks of the accesses, so many times before the trace.
    fn blocks_before(&self, times: u32, random: &mut Random) -> Vec<u32> {
        let mut drawn: Vec<u32> = Vec::with_capacity(self.fork_of_visit.len());
        let rows = self.rows.blocks.iter().zip(&self.visit);
        let blocks = rows.map(|(&block, &visit)| {
            if visit == NO_VISIT {
                return if self.new[block as usize] {
                    self.made_before(block, times)
                } else {
                    block
                };
            }
            if let Some(&there) = drawn.get(visit as usize) {
                return there;
            }
            let fork = &self.forks[self.fork_of_visit[visit as usize] as usize];
            let other = fork.draw(&self.by_class, random).unwrap_or(block);
            drawn.push(other);
            other
        });
        blocks.collect()
    }

    /// A block made so many times before that; where the fork did not exist yet, the same one.
    fn made_before(&self, block: u32, times: u32) -> u32 {
        let fork = self.fork_begins.partition_point(|&begin| begin <= block) - 1;
        let fork = &self.forks[fork];
        let earlier = u64::from(times) * u64::from(fork.made);
        if u64::from(block - fork.begin) >= earlier {
            block - earlier as u32
        } else {
            block
        }
    }

    /// Draw what a page cache holds at first: one in which each block stays for the same time after it was read.
    ///
    /// A block that is visited at rate l and absent from the pool with probability a is read at rate l a, and is cached with
    /// probability 1 - exp(-l a t), where t is such that so many blocks are. If no time is long enough for that, all are cached
    /// that were ever read: also what has lain in the pool since.
    ///
    /// `absent` is by fork and class, row by row.
    ///
    /// # Errors
    /// Where `absent` has another shape.
    pub fn residents(
        &self,
        absent: &[f64],
        most: usize,
        seed: u64,
    ) -> Result<Vec<u32>, InputError> {
        let classes = self.rates.len();
        if absent.len() != self.forks.len() * classes {
            refuse!("how likely blocks are absent is needed for each fork and rate");
        }
        let mut groups: Vec<(f64, &[u32])> = Vec::new();
        for (fork, absent) in self.forks.iter().zip(absent.chunks(classes)) {
            for (k, &class) in fork.classes.iter().enumerate() {
                let members = &self.by_class[fork.begins[k]..fork.begins[k + 1]];
                groups.push((self.rates[class as usize] * absent[class as usize], members));
            }
        }
        let chance = |reads: f64, seconds: f64| -(-reads * seconds).exp_m1();
        let held = |seconds: f64| -> f64 {
            let each = groups
                .iter()
                .map(|(reads, members)| chance(*reads, seconds) * members.len() as f64);
            each.sum()
        };
        let (mut low, mut high) = KEPT_SECONDS;
        let for_ever = held(high) <= most as f64;
        for _ in 0..BISECTIONS {
            let middle = (low * high).sqrt();
            if held(middle) > most as f64 {
                high = middle;
            } else {
                low = middle;
            }
        }
        let mut random = Random::new(seed, 0);
        let mut cached: Vec<u32> = Vec::new();
        for (reads, members) in groups {
            let chance = if for_ever { 1.0 } else { chance(reads, low) };
            let there = members.iter().filter(|_| random.uniform() < chance);
            cached.extend(there);
        }
        random.shuffle(&mut cached);
        cached.truncate(most);
        Ok(cached)
    }

    /// Run the past and then the trace through both caches; misses of the trace are counted.
    ///
    /// # Errors
    /// Where the parts do not fit together.
    pub fn run(
        &self,
        caches: &Caches<'_>,
        warm: Contents<'_>,
        length: Length,
    ) -> Result<Vec<Reads>, InputError> {
        let mut random = Random::new(caches.seed, 1);
        let mut flow = Flow::new(caches)?;
        // Once for the pool alone, which also shows how often it takes to fill the page cache.
        let blocks = self.blocks_before(1, &mut random);
        let mut brought = BroughtIn::default();
        let (rules, pool_blocks) = (caches.rules, caches.pool_blocks);
        let first = observe(
            self.trace(&blocks),
            rules,
            pool_blocks,
            Some(warm),
            &mut brought,
        )?;
        let mut left = Left::of(&first, pool_blocks);
        let times = self.times(caches, brought.0, length);
        for number in (0..=times).rev() {
            let blocks = if number > 0 {
                self.blocks_before(number, &mut random)
            } else {
                self.rows.blocks.clone()
            };
            let accesses = Accesses {
                trace: self.trace(&blocks),
                seconds: &self.rows.seconds,
                streams: Some(&self.rows.streams),
            };
            let since = f64::from(times - number) * self.duration_seconds;
            let counted_from = (number == 0).then_some(0);
            left = flow.pass(accesses, Some(left.contents()), since, counted_from)?;
        }
        Ok(flow.reads(&left.pages))
    }

    fn trace<'a>(&'a self, blocks: &'a [u32]) -> Trace<'a> {
        Trace {
            pages: blocks,
            flags: Some(&self.rows.flags),
            owners: Owners {
                access: &self.rows.owner_access,
                owner: &self.rows.owner,
                blocks: &self.rows.owner_blocks,
            },
        }
    }

    /// How often the trace is repeated so that the first page cache is brought in as often as wanted.
    fn times(&self, caches: &Caches<'_>, brought_blocks: u64, length: Length) -> u32 {
        let Some(first) = caches.behind.first() else {
            return 1;
        };
        let room = f64::from(first.cache.capacity_pages) / f64::from(first.cache.pages_per_block);
        let wanted = (length.turnovers * room / brought_blocks.max(1) as f64).ceil() as usize;
        let most = (length.accesses / self.rows.blocks.len().max(1)).clamp(1, MOST_TIMES);
        wanted.clamp(1, most) as u32
    }
}

impl Fork {
    /// A block, each as likely as it is visited; nothing where none is.
    fn draw(&self, by_class: &[u32], random: &mut Random) -> Option<u32> {
        let (class, visit) = self.guide.as_ref()?.class_of(random.uniform());
        let (begin, end) = (self.begins[class], self.begins[class + 1]);
        let at = begin + (visit / self.visits_a_block[class]) as usize;
        Some(by_class[at.min(end - 1)])
    }
}

fn check(rows: &Rows, known: &Known<'_>) -> Result<(), InputError> {
    let (n, blocks) = (rows.blocks.len(), known.visits.len());
    if [rows.flags.len(), rows.seconds.len(), rows.streams.len()] != [n; 3] {
        refuse!("flags, seconds and streams need one entry for each of the {n} accesses");
    }
    let ends = known.forks.last().copied().unwrap_or(0) as usize;
    if known.forks.first() != Some(&0)
        || ends != blocks
        || known.forks.windows(2).any(|pair| pair[0] > pair[1])
    {
        refuse!("the first blocks of forks ascend from 0 to {blocks}, where the last one ends");
    }
    if known.new.len() != blocks || rows.blocks.iter().any(|&block| block as usize >= blocks) {
        refuse!("visits, and whether it is new, are needed for each block of the trace");
    }
    let (forks, classes) = (known.forks.len() - 1, known.rates.len());
    if classes == 0 || classes > MOST_CLASSES || known.weights.len() != forks * classes {
        refuse!("1 to {MOST_CLASSES} rates are needed, and a weight for each fork and rate");
    }
    if known
        .rates
        .iter()
        .any(|&rate| !rate.is_finite() || rate <= 0.0)
    {
        refuse!("rates must be positive and finite");
    }
    Ok(())
}

/// Draw a rate for each block by how often it was visited; return the forks, and the blocks by fork and class.
fn draw_rates(known: &Known<'_>) -> (Vec<Fork>, Vec<u32>) {
    let mut random = Random::new(known.seed, 2);
    let classes = known.rates.len();
    let means: Vec<f64> = known
        .rates
        .iter()
        .map(|rate| rate * known.duration_seconds)
        .collect();
    let mut by_class = Vec::with_capacity(known.visits.len());
    let mut forks = Vec::with_capacity(known.forks.len() - 1);
    for (bounds, weights) in known.forks.windows(2).zip(known.weights.chunks(classes)) {
        let mut posteriors: FxHashMap<u32, Vec<f64>> = FxHashMap::default();
        let mut class_of = Vec::with_capacity((bounds[1] - bounds[0]) as usize);
        let mut counts = vec![0_usize; MOST_CLASSES + 1];
        for block in bounds[0] as usize..bounds[1] as usize {
            let class = if known.new[block] {
                NEVER
            } else {
                let visits = known.visits[block];
                let below = posteriors
                    .entry(visits)
                    .or_insert_with(|| posterior(visits, weights, &means));
                let at = random.uniform() * below[classes - 1];
                below.partition_point(|&sum| sum < at).min(classes - 1) as u8
            };
            counts[usize::from(class)] += 1;
            class_of.push(class);
        }
        forks.push(Fork::new(bounds[0], &counts, known.rates, by_class.len()));
        // Counted, so that those of a class come side by side, and what is new behind all.
        let mut places = vec![0; counts.len()];
        let mut place = by_class.len();
        for (class, &count) in counts.iter().enumerate() {
            places[class] = place;
            place += count;
        }
        by_class.resize(place, 0);
        for (block, class) in (bounds[0]..bounds[1]).zip(class_of) {
            by_class[places[usize::from(class)]] = block;
            places[usize::from(class)] += 1;
        }
    }
    (forks, by_class)
}

impl Fork {
    /// A fork whose blocks lie by class from `place` on.
    fn new(begin: u32, counts: &[usize], rates: &[f64], place: usize) -> Self {
        let mut fork = Self {
            begin,
            made: counts[usize::from(NEVER)] as u32,
            classes: Vec::new(),
            begins: vec![place],
            visits_a_block: Vec::new(),
            guide: None,
        };
        let (mut end, mut below, mut ends) = (place, 0.0, Vec::new());
        for (class, (&rate, &count)) in rates.iter().zip(counts).enumerate() {
            if count > 0 {
                end += count;
                below += rate * count as f64;
                ends.push(below);
                fork.classes.push(class as u8);
                fork.begins.push(end);
                fork.visits_a_block.push(rate);
            }
        }
        fork.guide = (!ends.is_empty()).then(|| Guide::new(ends));
        fork
    }
}

/// Sums of how likely each rate is, for a block that was visited so often: Poisson, by weights; the sums may have any unit.
fn posterior(visits: u32, weights: &[f64], means: &[f64]) -> Vec<f64> {
    let likely = |(weight, mean): (&f64, &f64)| {
        f64::from(visits) * mean.ln() - mean + weight.max(1e-300).ln()
    };
    let logs: Vec<f64> = weights.iter().zip(means).map(likely).collect();
    let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut below = 0.0;
    let sums = logs.iter().map(|log| {
        below += (log - most).exp();
        below
    });
    sums.collect()
}

#[cfg(test)]
mod tests;
