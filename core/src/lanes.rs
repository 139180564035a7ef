//! Several pools of different sizes replayed over one trace, side by side.
//!
//! The states of a page in all L pools lie next to each other, so that one access reads and raises all of
//! them at once (the compiler makes vector instructions of the loop over L); only pools that miss take
//! the long way. Accesses with flags take a path of their own, pool by pool.

// Measured: the loop over accesses must hold everything that a miss does.
#![allow(clippy::inline_always)]

use std::collections::HashMap;

use crate::buffers::{page_states, BufferPool, Contents, Lane, ABSENT, NO_PAGE, USAGE_1};
use crate::chunk;
use crate::ring::StrategyRing;
use crate::rules::{Rules, Strategy};
use crate::trace::{Trace, BULKREAD, DROP, EXTENSION, REPEAT, STRATEGY_MASK, UNCOUNTED};

/// What one access came to, see [`crate::replay::outcomes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// The page was in the pool.
    Hit = 0,
    /// The page had to be read.
    Miss = 1,
    /// The page was made.
    Extension = 2,
    /// The page was dropped: not an access.
    Drop = 3,
}

/// The most pools that a block can have.
pub(crate) const MOST_LANES: usize = 8;

/// Sees every access of a replay of one pool.
pub(crate) trait Observer {
    /// An access, and the page that had to go for it (or [`NO_PAGE`]).
    fn see(&mut self, outcome: Outcome, evicted: u32);

    /// Whether it wants to see anything.
    const SEES: bool = true;
}

/// Every outcome and the page that went for it.
#[derive(Default)]
pub(crate) struct Seen {
    pub outcomes: Vec<u8>,
    pub evicted: Vec<u32>,
}

/// Sees nothing and costs nothing.
pub(crate) struct NullObserver;

impl Observer for NullObserver {
    const SEES: bool = false;

    #[inline]
    fn see(&mut self, _: Outcome, _: u32) {}
}

impl Observer for Seen {
    #[inline]
    fn see(&mut self, outcome: Outcome, evicted: u32) {
        self.outcomes.push(outcome as u8);
        self.evicted.push(evicted);
    }
}

/// What does not change during a replay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting<'a> {
    pub rules: Rules,
    pub trace: Trace<'a>,
    pub n_pages: u32,
    pub drops: bool,
    /// Last access of each ring's owner, as an index into `trace.owners.access`.
    pub last_of_owner: &'a [u64],
    pub groups: Option<&'a [u32]>,
    pub n_groups: u32,
}

/// Misses of one pool: by window, and by group over all windows.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneResult {
    pub misses: Vec<u64>,
    pub group_misses: Vec<u64>,
    pub hand: u32,
    pub passes: u64,
    /// Buffers and their usage counts at the end; only where asked for.
    pub final_pages: Vec<u32>,
    pub final_usage: Vec<u8>,
}

/// One pool among the lanes.
pub(crate) struct OnePool {
    pub buffers: BufferPool,
    rings: HashMap<u32, StrategyRing>,
    /// Buffers of a ring by strategy class at this size.
    ring_buffers: [u32; 4],
    misses: u64,
    group_misses: Vec<u64>,
}

/// `L` pools over one table of page states.
pub(crate) struct Lanes<'a, const L: usize> {
    setting: Setting<'a>,
    states: Vec<[u8; L]>,
    pools: Vec<OnePool>,
    /// Next entry of `trace.owners`.
    owned: usize,
}

impl<'a, const L: usize> Lanes<'a, L> {
    /// Pools of at most `L` sizes.
    pub fn new(setting: Setting<'a>, sizes: &[u32], warm: &[Option<Contents<'_>>]) -> Self {
        debug_assert!(sizes.len() <= L);
        // Columns that no pool uses are never absent, so that they never call for the long way.
        let column = |lane| if lane < sizes.len() { ABSENT } else { USAGE_1 };
        let mut states = page_states(setting.n_pages, column);
        let pools = sizes
            .iter()
            .zip(warm)
            .enumerate()
            .map(|(lane, (&n, warm))| {
                let rules = &setting.rules;
                let mut buffers = BufferPool::new(n, setting.n_pages, rules, setting.drops);
                if let Some(contents) = warm {
                    buffers.warm(&mut states, lane, contents);
                }
                let ring = |class| {
                    Strategy::from_class(class)
                        .map_or(0, |strategy| rules.ring_buffers(strategy, n))
                };
                OnePool {
                    buffers,
                    rings: HashMap::new(),
                    ring_buffers: [ring(0), ring(1), ring(2), ring(3)],
                    misses: 0,
                    group_misses: vec![0; setting.n_groups as usize],
                }
            });
        let pools = pools.collect();
        Self {
            setting,
            states,
            pools,
            owned: 0,
        }
    }

    /// Replay all windows in turn: `bounds` are the ends of the first part, which is not counted, and of
    /// each window.
    pub fn run<O: Observer>(
        mut self,
        bounds: &[u64],
        keep: bool,
        observer: &mut O,
    ) -> Vec<LaneResult> {
        let mut results = vec![LaneResult::default(); self.pools.len()];
        let mut begin = 0;
        for (k, &end) in bounds.iter().enumerate() {
            self.replay(begin..end as usize, observer);
            begin = end as usize;
            for (lane, result) in self.pools.iter_mut().zip(&mut results) {
                let misses = std::mem::take(&mut lane.misses);
                if k == 0 {
                    lane.group_misses.fill(0);
                } else {
                    result.misses.push(misses);
                }
            }
        }
        let states = &self.states;
        for (k, (lane, result)) in self.pools.iter_mut().zip(&mut results).enumerate() {
            result.group_misses = std::mem::take(&mut lane.group_misses);
            result.hand = lane.buffers.hand();
            result.passes = lane.buffers.passes();
            if keep {
                let usage = |&page: &u32| states.get(page as usize).map_or(0, |s| s[k] - 1);
                result.final_pages = lane.buffers.pages();
                result.final_usage = result.final_pages.iter().map(usage).collect();
            }
        }
        results
    }

    fn replay<O: Observer>(&mut self, range: std::ops::Range<usize>, observer: &mut O) {
        let trace = self.setting.trace;
        let pages = &trace.pages[range.clone()];
        let flags = trace.flags.map(|flags| &flags[range]);
        if O::SEES {
            for (k, &page) in pages.iter().enumerate() {
                self.access(page, flags.map_or(0, |flags| flags[k]), observer);
            }
            return;
        }
        let smallest = self.pools.iter().map(|pool| pool.buffers.n_buffers()).min();
        let most_reads = chunk::most_reads(smallest.unwrap_or(0));
        let Some(flags) = flags else {
            pages.chunks(most_reads).for_each(|pages| self.chunk(pages));
            return;
        };
        let mut begin = 0;
        let mut ordinary = [0; chunk::MOST_READS];
        while begin < pages.len() {
            let ordinary = &mut ordinary[..most_reads];
            let (passed, n) = chunk::gather(&pages[begin..], &flags[begin..], ordinary);
            self.chunk(&ordinary[..n]);
            begin += passed;
            if n < most_reads && begin < pages.len() {
                self.access(pages[begin], flags[begin], observer);
                begin += 1;
            }
        }
    }

    /// Ordinary reads that nothing wants to see one by one.
    #[inline(always)]
    fn chunk(&mut self, pages: &[u32]) {
        let top = self.setting.rules.usage_cap() + 1;
        chunk::read(
            &mut self.states,
            &mut self.pools,
            pages,
            top,
            self.setting.groups,
        );
    }

    /// One access of any kind.
    #[inline(always)]
    fn access<O: Observer>(&mut self, page: u32, flag: u8, observer: &mut O) {
        match flag {
            0 => self.reads(&[page], true, observer),
            REPEAT => observer.see(Outcome::Hit, NO_PAGE),
            UNCOUNTED => self.reads(&[page], false, observer),
            _ => self.special(page, flag, observer),
        }
    }

    /// Ordinary reads, in all pools.
    #[inline(always)]
    fn reads<O: Observer>(&mut self, pages: &[u32], counted: bool, observer: &mut O) {
        let top = self.setting.rules.usage_cap() + 1;
        let groups = self.setting.groups;
        let states = self.states.as_mut_slice();
        let pools = self.pools.as_mut_slice();
        for &page in pages {
            let row = &mut states[page as usize];
            let mut absent = false;
            let mut evicted = NO_PAGE;
            for state in row.iter_mut() {
                absent |= *state == ABSENT;
                // An absent page stays absent here.
                *state = (*state + u8::from(*state != ABSENT)).min(top);
            }
            if absent {
                let mut lanes = absent_lanes(row);
                while lanes != 0 {
                    let lane = lanes.trailing_zeros() as usize / 8;
                    lanes &= lanes - 1;
                    evicted = pools[lane].buffers.load(states, lane, page);
                    pools[lane].count_miss(page, counted, groups);
                }
            }
            let outcome = if absent { Outcome::Miss } else { Outcome::Hit };
            observer.see(outcome, evicted);
        }
    }

    /// An access with flags: drop, extension, ring.
    fn special<O: Observer>(&mut self, page: u32, flag: u8, observer: &mut O) {
        let class = flag & STRATEGY_MASK;
        let mut owner = None;
        if class != 0 {
            let owners = &self.setting.trace.owners;
            let id = owners.owner[self.owned];
            let last = self.setting.last_of_owner[id as usize] == self.owned as u64;
            let blocks = owners.blocks.get(id as usize).copied().unwrap_or(0);
            owner = Some(Owner { id, blocks, last });
            self.owned += 1;
        }
        let mut seen = (Outcome::Hit, NO_PAGE);
        for k in 0..self.pools.len() {
            seen = self.special_in(k, page, flag, owner);
        }
        observer.see(seen.0, seen.1);
    }

    fn special_in(&mut self, k: Lane, page: u32, flag: u8, owner: Option<Owner>) -> (Outcome, u32) {
        let states = &mut self.states;
        let lane = &mut self.pools[k];
        let rules = &self.setting.rules;
        if flag & DROP != 0 {
            lane.buffers.invalidate(states, k, page);
            return (Outcome::Drop, NO_PAGE);
        }
        let class = flag & STRATEGY_MASK;
        let ring = owner.filter(|owner| {
            class != BULKREAD || rules.scan_uses_ring(owner.blocks, lane.buffers.n_buffers())
        });
        let ring = ring.filter(|_| lane.ring_buffers[class as usize] > 0);
        let resident = states[page as usize][k] != ABSENT;
        let mut evicted = NO_PAGE;
        if flag & REPEAT != 0 {
            // Pinned since before: it cannot be absent on a server, so nothing is loaded here either.
        } else if resident {
            let state = &mut states[page as usize][k];
            *state = if ring.is_some() {
                (*state).max(USAGE_1)
            } else {
                (*state + 1).min(rules.usage_cap() + 1)
            };
        } else if let Some(owner) = ring {
            let buffers = lane.ring_buffers[class as usize];
            let ring = lane
                .rings
                .entry(owner.id)
                .or_insert_with(|| StrategyRing::new(buffers));
            evicted = ring.load(&mut lane.buffers, states, k, page);
        } else {
            evicted = lane.buffers.load(states, k, page);
        }
        if let Some(owner) = owner.filter(|owner| owner.last) {
            lane.rings.remove(&owner.id);
        }
        if flag & EXTENSION != 0 {
            return (Outcome::Extension, evicted);
        }
        if resident || flag & REPEAT != 0 {
            return (Outcome::Hit, NO_PAGE);
        }
        lane.count_miss(page, flag & UNCOUNTED == 0, self.setting.groups);
        (Outcome::Miss, evicted)
    }
}

/// A word with bit 7 set in the byte of every lane that is absent, and has no [`MARK`].
#[inline(always)]
pub(crate) fn absent_lanes<const L: usize>(row: &[u8; L]) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    if L == 1 {
        return u64::from(row[0] == ABSENT) << 7;
    }
    let mut states = [USAGE_1; MOST_LANES];
    states[..L].copy_from_slice(row);
    let states = u64::from_le_bytes(states);
    // No byte carries into the next: bit 7 is set where one of the others is.
    !(((states & LOW) + LOW) | states) & !LOW
}

/// The ring owner of one access.
#[derive(Clone, Copy)]
struct Owner {
    id: u32,
    blocks: u32,
    last: bool,
}

impl OnePool {
    #[inline]
    pub fn count_miss(&mut self, page: u32, counted: bool, groups: Option<&[u32]>) {
        self.misses += u64::from(counted);
        if let Some(groups) = groups {
            self.group_misses[groups[page as usize] as usize] += u64::from(counted);
        }
    }
}
