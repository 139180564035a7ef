//! A pool in front of page caches: what it misses is read through them.
//!
//! What the pool evicts and was dirty is written into the page caches before the page that takes its buffer is read, and so is
//! what extends a relation. All page caches are behind the same pool, and none knows of the others.
//!
//! Not modelled: what checkpoints write while the page stays in the pool, blocks that several reads ask for in one call, and
//! files that are not the server's.

use crate::files::{check_blocks, FileCache, PageCache};
use crate::lanes::{LaneResult, Observer, Outcome};
use crate::pool::{Contents, NO_PAGE};
use crate::random::Random;
use crate::replay::observe;
use crate::rules::Rules;
use crate::trace::{refuse, InputError, Trace, UNCOUNTED};

/// Accesses to blocks of files, in the order of time.
#[derive(Clone, Copy, Debug)]
pub struct Accesses<'a> {
    /// Pages are blocks: those of all files are numbered one after the other.
    pub trace: Trace<'a>,
    /// When each access is.
    pub seconds: &'a [f64],
    /// By access, which open file it goes through; nothing means that each file is opened once.
    pub streams: Option<&'a [u32]>,
}

/// A page cache behind the pool.
#[derive(Clone, Copy, Debug)]
pub struct Behind<'a> {
    /// What it is.
    pub cache: PageCache,
    /// Blocks that are there at the beginning, each once, in the order in which they were read.
    pub resident: &'a [u32],
    /// Whether what the pool evicts dirty is written into it.
    pub writes: bool,
}

/// A pool, files, and page caches.
#[derive(Clone, Copy, Debug)]
pub struct Caches<'a> {
    /// How the server works.
    pub rules: Rules,
    /// The size of the pool.
    pub pool_blocks: u32,
    /// The first block of each file, ascending from 0, and where the last one ends.
    pub files: &'a [u32],
    /// The first block of each group (such as a relation), likewise; what is found out is counted by group.
    pub groups: &'a [u32],
    /// How likely a block of each group is dirty when it is evicted.
    pub dirty: &'a [f64],
    /// The page caches.
    pub behind: &'a [Behind<'a>],
    /// How often the kernel gathers its statistics.
    pub gather_seconds: f64,
    /// Of what is dirty.
    pub seed: u64,
}

/// What a page cache made of the pool's misses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// By group, misses that are counted.
    pub misses: Vec<u64>,
    /// By group, those of them that waited for the disk.
    pub waited: Vec<u64>,
    /// By group, pages that came from disk with them, readahead included.
    pub disk_pages: Vec<u64>,
    /// Pages that came back after an eviction, while misses were counted.
    pub refaulted_pages: u64,
    /// Blocks that were read or written before misses were counted.
    pub blocks_before: u64,
    /// Blocks of the pool that are in the page cache too, at the end.
    pub twice_blocks: u64,
}

/// Run accesses through both caches; misses are counted from one of them on.
///
/// # Errors
/// Where the parts do not fit together.
pub fn run(
    caches: &Caches<'_>,
    accesses: Accesses<'_>,
    warm: Option<Contents<'_>>,
    counted_from: usize,
) -> Result<Vec<Reads>, InputError> {
    let mut flow = Flow::new(caches)?;
    let left = flow.pass(accesses, warm, 0.0, Some(counted_from))?;
    Ok(flow.reads(&left.pages))
}

/// What a pool holds after a replay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Left {
    pub pages: Vec<u32>,
    usage_counts: Vec<u8>,
    buffers: Vec<u32>,
    hand: u32,
}

impl Left {
    pub fn of(result: &LaneResult, pool_blocks: u32) -> Self {
        let mut left = Self {
            hand: result.hand % pool_blocks,
            ..Self::default()
        };
        let buffers = result.final_pages.iter().zip(&result.final_usage);
        for (buffer, (&page, &usage)) in buffers.enumerate() {
            if page != NO_PAGE {
                left.pages.push(page);
                left.usage_counts.push(usage);
                left.buffers.push(buffer as u32);
            }
        }
        left
    }

    pub fn contents(&self) -> Contents<'_> {
        Contents {
            pages: &self.pages,
            usage_counts: &self.usage_counts,
            buffers: Some(&self.buffers),
            hand: self.hand,
        }
    }
}

/// So many operations go through one page cache before they go through the next: what is known of its pages stays in the
/// processor's cache meanwhile.
const BATCH: usize = 1 << 16;
/// What is known of the blocks of so many operations is looked at before.
const LOOKED_AT: usize = 32;
/// The group of what is not counted.
const UNCOUNTED_GROUP: u32 = u32::MAX;

/// What one access does to the page caches.
#[derive(Clone, Copy, Debug)]
struct Operation {
    outcome: Outcome,
    /// The kernel gathers its statistics before.
    gather: bool,
    block: u32,
    stream: u32,
    /// What is written before, or [`NO_PAGE`].
    dirty: u32,
    group: u32,
}

/// Takes what the pool does to the page caches.
pub(crate) struct Flow<'a> {
    caches: &'a Caches<'a>,
    behind: Vec<(FileCache<'a>, bool, Reads)>,
    random: Random,
    any_dirty: bool,
    gathered_until: f64,
    refaulted_before: Vec<u64>,
    operations: Vec<Operation>,
    counting: bool,
}

impl<'a> Flow<'a> {
    /// Page caches as they are at the beginning.
    ///
    /// # Errors
    /// Where files, groups, and what is in the page caches do not fit together.
    pub fn new(caches: &'a Caches<'a>) -> Result<Self, InputError> {
        let groups = caches.dirty.len();
        if caches.groups.len() != groups + 1
            || caches.groups.windows(2).any(|pair| pair[0] > pair[1])
            || caches.groups.first() != Some(&0)
            || caches.groups.last() != caches.files.last()
        {
            refuse!("the first blocks of groups ascend from 0 to where the last file ends");
        }
        let mut behind = Vec::with_capacity(caches.behind.len());
        for one in caches.behind {
            let reads = Reads {
                misses: vec![0; groups],
                waited: vec![0; groups],
                disk_pages: vec![0; groups],
                ..Reads::default()
            };
            let mut files = FileCache::new(caches.files, one.cache, one.resident)?;
            files.gather_statistics();
            behind.push((files, one.writes, reads));
        }
        Ok(Self {
            caches,
            refaulted_before: vec![0; behind.len()],
            behind,
            random: Random::new(caches.seed, 0),
            any_dirty: caches.dirty.iter().any(|&share| share > 0.0),
            gathered_until: caches.gather_seconds,
            operations: Vec::with_capacity(BATCH),
            counting: false,
        })
    }

    /// Run accesses that begin after so many seconds; nothing is counted, or all from one of them on.
    ///
    /// # Errors
    /// Where parts of the accesses do not fit together, or one is of a block that lies in no file.
    pub fn pass(
        &mut self,
        accesses: Accesses<'_>,
        warm: Option<Contents<'_>>,
        since: f64,
        counted_from: Option<usize>,
    ) -> Result<Left, InputError> {
        let n = accesses.trace.pages.len();
        if accesses.seconds.len() != n || accesses.streams.is_some_and(|all| all.len() != n) {
            refuse!("seconds and streams need one entry for each of the {n} accesses");
        }
        check_blocks(self.caches.files, accesses.trace.pages)?;
        check_blocks(self.caches.files, warm.map_or(&[], |warm| warm.pages))?;
        let (rules, pool_blocks) = (self.caches.rules, self.caches.pool_blocks);
        let mut pass = Pass {
            flow: self,
            accesses,
            since,
            counted_from: counted_from.unwrap_or(usize::MAX),
            at: 0,
        };
        let result = observe(accesses.trace, rules, pool_blocks, warm, &mut pass)?;
        self.flush();
        Ok(Left::of(&result, pool_blocks))
    }

    /// Take all operations so far through each page cache.
    fn flush(&mut self) {
        for (files, writes, reads) in &mut self.behind {
            for (at, one) in self.operations.iter().enumerate() {
                if at % LOOKED_AT == 0 {
                    let next = self.operations[at..].iter().take(LOOKED_AT);
                    files.look_at(next.map(|one| one.block));
                }
                if one.gather {
                    files.gather_statistics();
                }
                if one.dirty != NO_PAGE && *writes {
                    files.write(one.dirty);
                    reads.blocks_before += u64::from(!self.counting);
                }
                let moved = !self.counting && one.outcome != Outcome::Drop;
                reads.blocks_before += u64::from(moved);
                let (missing, pages) = match one.outcome {
                    Outcome::Miss => files.read(one.block, one.stream),
                    Outcome::Extension => files.write(one.block),
                    Outcome::Drop => files.drop_block(one.block),
                    Outcome::Hit => (0, 0),
                };
                if one.group != UNCOUNTED_GROUP {
                    let group = one.group as usize;
                    reads.misses[group] += 1;
                    reads.waited[group] += u64::from(missing > 0);
                    reads.disk_pages[group] += u64::from(pages);
                }
            }
        }
        self.operations.clear();
    }

    /// From now on misses are counted.
    fn count(&mut self) {
        self.flush();
        self.counting = true;
        let refaulted = self.behind.iter().map(|(files, ..)| files.refaulted());
        self.refaulted_before = refaulted.collect();
    }

    /// What each page cache made of it; `pool` is what the pool holds at the end.
    pub fn reads(self, pool: &[u32]) -> Vec<Reads> {
        let refaulted = self.refaulted_before;
        let finished = self.behind.into_iter().zip(refaulted);
        let reads = finished.map(|((files, _, mut reads), before)| {
            let whole = |&&block: &&u32| files.is_cached(block);
            reads.twice_blocks = pool.iter().filter(whole).count() as u64;
            reads.refaulted_pages = files.refaulted() - before;
            reads
        });
        reads.collect()
    }

    fn group_of(&self, block: u32) -> usize {
        self.caches.groups.partition_point(|&first| first <= block) - 1
    }

    /// Whether it is time for the kernel to gather its statistics.
    fn gathers(&mut self, now: f64) -> bool {
        let gathers = now >= self.gathered_until;
        if gathers {
            let every = self.caches.gather_seconds;
            self.gathered_until = ((now / every).floor() + 1.0) * every;
        }
        gathers
    }

    fn is_dirty(&mut self, block: u32) -> bool {
        if !self.any_dirty || block == NO_PAGE {
            return false;
        }
        let share = self.caches.dirty[self.group_of(block)];
        share > 0.0 && self.random.uniform() < share
    }
}

/// One pass over accesses, seen by the page caches.
struct Pass<'f, 'a, 'b> {
    flow: &'f mut Flow<'a>,
    accesses: Accesses<'b>,
    since: f64,
    counted_from: usize,
    at: usize,
}

impl Observer for Pass<'_, '_, '_> {
    fn see(&mut self, outcome: Outcome, evicted: u32) {
        let at = self.at;
        self.at += 1;
        if at == self.counted_from {
            self.flow.count();
        }
        if outcome == Outcome::Hit {
            return;
        }
        let gather = self.flow.gathers(self.since + self.accesses.seconds[at]);
        let block = self.accesses.trace.pages[at];
        let counted = self.flow.counting
            && outcome == Outcome::Miss
            && self.accesses.trace.flags.map_or(0, |flags| flags[at]) & UNCOUNTED == 0;
        let operation = Operation {
            outcome,
            gather,
            block,
            stream: self.accesses.streams.map_or(0, |streams| streams[at]),
            dirty: if self.flow.is_dirty(evicted) {
                evicted
            } else {
                NO_PAGE
            },
            group: if counted {
                self.flow.group_of(block) as u32
            } else {
                UNCOUNTED_GROUP
            },
        };
        self.flow.operations.push(operation);
        if self.flow.operations.len() == BATCH {
            self.flow.flush();
        }
    }
}

/// Counts what a pool brings in.
#[derive(Default)]
pub(crate) struct BroughtIn(pub u64);

impl Observer for BroughtIn {
    fn see(&mut self, outcome: Outcome, _: u32) {
        self.0 += u64::from(matches!(outcome, Outcome::Miss | Outcome::Extension));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_cache::Policy;
    use crate::rules::RingSettings;
    use crate::trace::EXTENSION;

    const CACHE: PageCache = PageCache {
        pages_per_block: 2,
        capacity_pages: 256,
        readahead_pages: 0,
        folio_order: 0,
        policy: Policy::Fifo,
        pages_each: 1.0,
    };

    fn caches<'a>(dirty: &'a [f64], groups: &'a [u32], behind: &'a [Behind<'a>]) -> Caches<'a> {
        Caches {
            rules: Rules::new(18, RingSettings::default()).unwrap(),
            pool_blocks: 16,
            files: groups,
            groups,
            dirty,
            behind,
            gather_seconds: 2.0,
            seed: 1,
        }
    }

    fn accesses<'a>(pages: &'a [u32], flags: &'a [u8], seconds: &'a [f64]) -> Accesses<'a> {
        Accesses {
            trace: Trace {
                pages,
                flags: Some(flags),
                ..Trace::default()
            },
            seconds,
            streams: None,
        }
    }

    #[test]
    fn what_the_pool_misses_is_read_and_counted_by_group() {
        let empty = Behind {
            cache: CACHE,
            resident: &[],
            writes: true,
        };
        let filled = Behind {
            resident: &[0, 1],
            ..empty
        };
        // Two rounds of 20 blocks through a pool of 16: all are missed, the second time with the page cache full of them.
        let pages: Vec<u32> = (0..40).map(|k| k % 20).collect();
        let seconds: Vec<f64> = (0..40).map(f64::from).collect();
        let mut flags = vec![0; 40];
        flags[39] = UNCOUNTED;
        let behind = [empty, filled];
        let setting = caches(&[0.0, 0.0], &[0, 15, 30], &behind);
        let all = run(&setting, accesses(&pages, &flags, &seconds), None, 0).unwrap();
        assert_eq!(all[0].misses, [30, 9]);
        assert_eq!(all[0].waited, [15, 5]);
        assert_eq!(all[0].disk_pages, [30, 10]);
        assert_eq!((all[0].blocks_before, all[0].twice_blocks), (0, 16));
        assert_eq!(all[1].waited, [13, 5]);
        let late = run(&setting, accesses(&pages, &flags, &seconds), None, 20).unwrap();
        assert_eq!(
            (&late[0].misses[..], &late[0].waited[..]),
            (&[15, 4][..], &[0, 0][..])
        );
        assert_eq!(late[0].blocks_before, 20);
    }

    #[test]
    fn what_is_evicted_dirty_or_made_is_written() {
        let writes = Behind {
            cache: CACHE,
            resident: &[],
            writes: true,
        };
        let behind = [
            writes,
            Behind {
                writes: false,
                ..writes
            },
        ];
        // Blocks of the second group are made; when they come back, the page cache has them.
        let pages: Vec<u32> = (200..230).chain(0..140).chain(200..230).collect();
        let flags: Vec<u8> = (0..200)
            .map(|k| if k < 30 { EXTENSION } else { 0 })
            .collect();
        let seconds = vec![0.0; 200];
        let setting = caches(&[0.0, 1.0], &[0, 200, 230], &behind);
        let found = run(&setting, accesses(&pages, &flags, &seconds), None, 170).unwrap();
        assert_eq!(found[0].misses, [0, 30]);
        // Room for 128 blocks, 32 pages reclaimed at a time: what was made is gone, and the last 16 evicted were written later.
        assert!(found[0].waited[1] < found[1].waited[1] || found[1].waited[1] == 30);
        assert_eq!(found[0].blocks_before, 170 + 30);
        assert_eq!(found[1].blocks_before, 170);
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let behind = [Behind {
            cache: CACHE,
            resident: &[30],
            writes: false,
        }];
        let refused = |setting: &Caches<'_>, pages: &[u32], seconds: &[f64]| {
            let flags = vec![0; pages.len()];
            let accesses = accesses(pages, &flags, seconds);
            run(setting, accesses, None, 0).unwrap_err().to_string()
        };
        let outside = caches(&[0.0], &[0, 30], &behind);
        assert!(refused(&outside, &[0], &[0.0]).contains("not below 30"));
        let fine = caches(&[0.0], &[0, 30], &[]);
        assert!(refused(&fine, &[31], &[0.0]).contains("not below 30"));
        assert!(refused(&fine, &[3], &[]).contains("one entry"));
        let fewer = caches(&[0.0, 0.0], &[0, 30], &[]);
        assert!(refused(&fewer, &[0], &[0.0]).contains("ascend from 0"));
    }
}
