//! Replay one trace through pools of many sizes, in parallel.
//!
//! The clock is not a stack algorithm, so every size is simulated. Sizes are dealt to blocks of lanes
//! ([`crate::lanes`]), and blocks to threads.

use crate::lanes::{LaneResult, Lanes, NullObserver, Observer, Seen, Setting, MOST_LANES};
use crate::parallel;
use crate::pool::{Contents, NO_PAGE};
use crate::rules::{Rules, MAX_BUFFERS, MIN_BUFFERS};
use crate::trace::{refuse, InputError, Trace, DROP, EXTENSION, UNCOUNTED};

/// A block gets as many pools as keep its table of page states near a processor's second-level cache:
/// a hit costs the same for one pool or eight, but misses look at pages all over the table.
const TABLE_BYTES: u64 = 4 << 20;

/// What to replay, and how to count it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The accesses.
    pub trace: Trace<'a>,
    /// How the server works.
    pub rules: Rules,
    /// Pool sizes in blocks.
    pub sizes: &'a [u32],
    /// Positions in the trace, ascending, where windows begin; the last is where the last one ends.
    /// What lies before and behind is replayed (before) or left out (behind), and not counted.
    /// Nothing means one window over all.
    pub windows: Option<&'a [u64]>,
    /// A group (such as a relation) of each page, to count misses by.
    pub groups: Option<&'a [u32]>,
    /// What each pool holds at the start, by size; nothing means all empty.
    pub warm: &'a [Option<Contents<'a>>],
    /// Threads; nothing means one per processor.
    pub threads: Option<usize>,
}

/// What a replay counted. Arrays over sizes and windows are row by row, a row per size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads by window: hits and misses, without extensions; the same at every size.
    pub accesses: Vec<u64>,
    /// Pages made by extension, by window.
    pub extensions: Vec<u64>,
    /// Misses by size and window.
    pub misses: Vec<u64>,
    /// Reads by group, over all windows.
    pub group_accesses: Vec<u64>,
    /// Misses by size and group, over all windows.
    pub group_misses: Vec<u64>,
    /// Where each pool's hand ended.
    pub hands: Vec<u32>,
    /// Full rounds of each pool's hand since the beginning.
    pub passes: Vec<u64>,
}

/// The replay of one pool, event by event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// An [`crate::lanes::Outcome`] for every access.
    pub outcomes: Vec<u8>,
    /// By access, the page that was evicted for it, [`NO_PAGE`] if none was.
    pub evicted_pages: Vec<u32>,
    /// Page of each buffer used so far at the end, [`NO_PAGE`] where there is none.
    pub buffer_pages: Vec<u32>,
    /// Usage count of each of these buffers.
    pub buffer_usage_counts: Vec<u8>,
    /// Where the hand ended.
    pub hand: u32,
}

/// Count the misses of every size.
///
/// # Errors
/// Where the parts of the request do not fit together or a server would not accept a size.
pub fn replay(request: &Request<'_>) -> Result<Counts, InputError> {
    let (setting, last) = prepare(request)?;
    let setting = Setting {
        last_of_owner: &last,
        ..setting
    };
    let bounds = bounds(request)?;
    let mut counts = Counts::default();
    count_accesses(request, &setting, &bounds, &mut counts);

    let threads = request.threads.unwrap_or_else(parallel::wanted);
    let blocks = deal(request.sizes, setting.n_pages, threads);
    let run = |(lanes, block): &(usize, Vec<usize>)| {
        let results = run_block(*lanes, setting, request, block, &bounds);
        block.iter().copied().zip(results).collect::<Vec<_>>()
    };
    let done = parallel::map(&blocks, request.threads, run);
    let mut results: Vec<(usize, LaneResult)> = done.into_iter().flatten().collect();
    results.sort_by_key(|(size, _)| *size);
    for (_, result) in results {
        counts.misses.extend(result.misses);
        counts.group_misses.extend(result.group_misses);
        counts.hands.push(result.hand);
        counts.passes.push(result.passes);
    }
    Ok(counts)
}

/// Replay one size and return the outcome of every access.
///
/// # Errors
/// As [`replay`]; the request must have exactly one size.
pub fn outcomes(request: &Request<'_>) -> Result<Outcomes, InputError> {
    if request.sizes.len() != 1 {
        refuse!(
            "outcomes are returned for one size, not {}",
            request.sizes.len()
        );
    }
    let warm = request.warm.first().copied().flatten();
    let mut seen = Seen::default();
    seen.outcomes.reserve_exact(request.trace.pages.len());
    seen.evicted.reserve_exact(request.trace.pages.len());
    let result = observe(
        request.trace,
        request.rules,
        request.sizes[0],
        warm,
        &mut seen,
    )?;
    Ok(Outcomes {
        outcomes: seen.outcomes,
        evicted_pages: seen.evicted,
        buffer_pages: result.final_pages,
        buffer_usage_counts: result.final_usage,
        hand: result.hand,
    })
}

/// Replay one pool, and show every access; what it holds at the end is kept.
///
/// # Errors
/// As [`replay`].
pub(crate) fn observe<O: Observer>(
    trace: Trace<'_>,
    rules: Rules,
    size: u32,
    warm: Option<Contents<'_>>,
    observer: &mut O,
) -> Result<LaneResult, InputError> {
    let warm = [warm];
    let request = Request {
        trace,
        rules,
        sizes: &[size],
        windows: None,
        groups: None,
        warm: &warm,
        threads: None,
    };
    let (setting, last) = prepare(&request)?;
    let setting = Setting {
        last_of_owner: &last,
        ..setting
    };
    let end = trace.pages.len() as u64;
    let mut results = Lanes::<1>::new(setting, &[size], &warm).run(&[0, end], true, observer);
    Ok(results.remove(0))
}

/// Check a request; also find the last access of each ring's owner.
fn prepare<'a>(request: &Request<'a>) -> Result<(Setting<'a>, Vec<u64>), InputError> {
    let summary = request.trace.check()?;
    for &size in request.sizes {
        if !(MIN_BUFFERS..=MAX_BUFFERS).contains(&size) {
            refuse!(
                "no server has shared_buffers of {size} blocks: allowed are {MIN_BUFFERS} (128 kB) to \
                 {MAX_BUFFERS} blocks"
            );
        }
    }
    if !request.warm.is_empty() && request.warm.len() != request.sizes.len() {
        refuse!(
            "{} warm starts for {} sizes",
            request.warm.len(),
            request.sizes.len()
        );
    }
    let mut n_pages = summary.n_pages;
    for (warm, &size) in request.warm.iter().zip(request.sizes) {
        if let Some(contents) = warm {
            check_contents(contents, size, &request.rules)?;
            let largest = contents.pages.iter().copied().max();
            n_pages = n_pages.max(largest.map_or(0, |page| page + 1));
        }
    }
    let mut n_groups = 0;
    if let Some(groups) = request.groups {
        if groups.len() < n_pages as usize {
            refuse!(
                "groups are given for {} pages, but the trace has ids up to {}",
                groups.len(),
                n_pages - 1
            );
        }
        n_groups = groups.iter().copied().max().map_or(0, |group| group + 1);
    }
    let owners = request.trace.owners.owner;
    let n_owners = owners.iter().copied().max().map_or(0, |id| id as usize + 1);
    let mut last = vec![0; n_owners];
    for (k, &id) in owners.iter().enumerate() {
        last[id as usize] = k as u64;
    }
    let setting = Setting {
        rules: request.rules,
        trace: request.trace,
        n_pages,
        drops: summary.drops,
        last_of_owner: &[],
        groups: request.groups,
        n_groups,
    };
    Ok((setting, last))
}

fn check_contents(contents: &Contents<'_>, size: u32, rules: &Rules) -> Result<(), InputError> {
    let n = contents.pages.len();
    if contents.usage_counts.len() != n || contents.buffers.is_some_and(|f| f.len() != n) {
        refuse!(
            "a warm start needs one usage count, and one buffer if any, for each of its {n} pages"
        );
    }
    if n > size as usize {
        refuse!("a pool of {size} blocks cannot start with {n} pages");
    }
    if contents.hand >= size {
        refuse!(
            "the hand of a pool of {size} blocks cannot be at {}",
            contents.hand
        );
    }
    if contents
        .usage_counts
        .iter()
        .any(|&usage| usage > rules.usage_cap())
    {
        refuse!(
            "a usage count of a warm start is above {}",
            rules.usage_cap()
        );
    }
    let twice = |ids: &[u32]| {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.windows(2).any(|pair| pair[0] == pair[1])
    };
    if contents.pages.contains(&NO_PAGE) || twice(contents.pages) {
        refuse!("a warm start names a page twice, or the id 4294967295");
    }
    if let Some(buffers) = contents.buffers {
        if twice(buffers) || buffers.iter().any(|&buffer| buffer >= size) {
            refuse!("a warm start names a buffer twice, or one outside the pool of {size} blocks");
        }
    }
    Ok(())
}

/// End of the uncounted beginning and of each window.
fn bounds(request: &Request<'_>) -> Result<Vec<u64>, InputError> {
    let end = request.trace.pages.len() as u64;
    let Some(windows) = request.windows else {
        return Ok(vec![0, end]);
    };
    if windows.len() < 2 || windows.windows(2).any(|w| w[0] > w[1]) || windows.last() > Some(&end) {
        refuse!(
            "windows need at least two ascending positions within the {end} accesses of the trace"
        );
    }
    Ok(windows.to_vec())
}

/// Count what is the same at every size.
fn count_accesses(
    request: &Request<'_>,
    setting: &Setting<'_>,
    bounds: &[u64],
    counts: &mut Counts,
) {
    counts.group_accesses = vec![0; setting.n_groups as usize];
    for window in bounds.windows(2) {
        let range = window[0] as usize..window[1] as usize;
        let pages = &request.trace.pages[range.clone()];
        let flags = request.trace.flags.map(|flags| &flags[range]);
        let mut reads = pages.len() as u64;
        let mut extensions = 0;
        for &flag in flags.unwrap_or_default() {
            let apart = flag & (DROP | EXTENSION | UNCOUNTED);
            reads -= u64::from(apart != 0);
            extensions += u64::from(apart == EXTENSION);
        }
        counts.accesses.push(reads);
        counts.extensions.push(extensions);
        if let Some(groups) = request.groups {
            for (k, &page) in pages.iter().enumerate() {
                let flag = flags.map_or(0, |flags| flags[k]);
                let read = flag & (DROP | EXTENSION | UNCOUNTED) == 0;
                counts.group_accesses[groups[page as usize] as usize] += u64::from(read);
            }
        }
    }
}

/// Deal sizes to blocks, as (lanes, positions in `sizes`), so that blocks cost about the same.
fn deal(sizes: &[u32], n_pages: u32, threads: usize) -> Vec<(usize, Vec<usize>)> {
    let fitting = (TABLE_BYTES / u64::from(n_pages.max(1))).clamp(1, MOST_LANES as u64) as usize;
    let wanted = sizes.len().div_ceil(threads.max(1));
    let lanes = wanted.next_power_of_two().min(1 << fitting.ilog2());
    let n_blocks = sizes.len().div_ceil(lanes);
    // Small pools miss more and so cost more: each block gets of all kinds.
    let mut by_size: Vec<usize> = (0..sizes.len()).collect();
    by_size.sort_by_key(|&k| sizes[k]);
    let mut blocks = vec![Vec::new(); n_blocks];
    for (rank, k) in by_size.into_iter().enumerate() {
        blocks[rank % n_blocks].push(k);
    }
    let lanes = |block: &Vec<usize>| block.len().next_power_of_two();
    blocks
        .into_iter()
        .map(|block| (lanes(&block), block))
        .collect()
}

fn run_block(
    lanes: usize,
    setting: Setting<'_>,
    request: &Request<'_>,
    block: &[usize],
    bounds: &[u64],
) -> Vec<LaneResult> {
    let sizes: Vec<u32> = block.iter().map(|&k| request.sizes[k]).collect();
    let warm = |&k: &usize| request.warm.get(k).copied().flatten();
    let warm: Vec<_> = block.iter().map(warm).collect();
    match lanes {
        1 => Lanes::<1>::new(setting, &sizes, &warm).run(bounds, false, &mut NullObserver),
        2 => Lanes::<2>::new(setting, &sizes, &warm).run(bounds, false, &mut NullObserver),
        4 => Lanes::<4>::new(setting, &sizes, &warm).run(bounds, false, &mut NullObserver),
        _ => Lanes::<MOST_LANES>::new(setting, &sizes, &warm).run(bounds, false, &mut NullObserver),
    }
}
