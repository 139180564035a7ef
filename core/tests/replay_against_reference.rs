//! Replays of random traces against a plain, slow pool written for this test alone: buffers with headers,
//! a hash table, a linked order of free buffers, as PostgreSQL's own sources describe them.

use std::collections::{HashMap, VecDeque};

use pgsweep_core::pool::{Contents, NO_PAGE};
use pgsweep_core::replay::{outcomes, replay, Request};
use pgsweep_core::rules::{self, Policy, RingSettings, Rules};
use pgsweep_core::trace::{Owners, Trace, DROP, EXTENSION, REPEAT, UNCOUNTED};
use proptest::prelude::*;

#[derive(Clone, Default)]
struct Buffer {
    page: Option<u32>,
    usage: u8,
    in_free_list: bool,
}

struct Reference {
    rules: Rules,
    buffers: Vec<Buffer>,
    table: HashMap<u32, usize>,
    free: VecDeque<usize>,
    /// The next buffer of each hand, from the first of its part.
    hands: Vec<usize>,
    turn: usize,
    /// Slots and the current one, by owner.
    rings: HashMap<u32, (Vec<Option<usize>>, usize)>,
    /// The page that went for the last one that came.
    evicted: u32,
}

impl Reference {
    fn new(n: usize, rules: Rules) -> Self {
        let mut buffers = vec![Buffer::default(); n];
        let mut free = VecDeque::new();
        if rules.policy().free_list {
            free.extend(0..n);
            for buffer in &mut buffers {
                buffer.in_free_list = true;
            }
        }
        Self {
            rules,
            buffers,
            table: HashMap::new(),
            free,
            hands: vec![0; rules.policy().hands as usize],
            turn: 0,
            rings: HashMap::new(),
            evicted: NO_PAGE,
        }
    }

    fn normal_victim(&mut self) -> usize {
        while let Some(k) = self.free.pop_front() {
            self.buffers[k].in_free_list = false;
            if self.buffers[k].usage == 0 {
                return k;
            }
        }
        let begin = self.turn * self.buffers.len() / self.hands.len();
        let end = (self.turn + 1) * self.buffers.len() / self.hands.len();
        let hand = &mut self.hands[self.turn];
        self.turn = (self.turn + 1) % self.rules.policy().hands as usize;
        loop {
            let k = begin + *hand;
            *hand = (*hand + 1) % (end - begin);
            if self.buffers[k].usage == 0 {
                return k;
            }
            self.buffers[k].usage -= 1;
        }
    }

    fn ring_victim(&mut self, owner: u32, size: u32) -> usize {
        let new = || (vec![None; size as usize], 0);
        let (slots, current) = self.rings.entry(owner).or_insert_with(new);
        *current = (*current + 1) % slots.len();
        let at = *current;
        if let Some(k) = slots[at] {
            if self.buffers[k].usage <= 1 {
                return k;
            }
        }
        let k = self.normal_victim();
        self.rings.get_mut(&owner).unwrap().0[at] = Some(k);
        k
    }

    /// Read or make a page; true if it was there.
    fn access(&mut self, page: u32, ring: Option<(u32, u32)>) -> bool {
        if let Some(&k) = self.table.get(&page) {
            let usage = &mut self.buffers[k].usage;
            if ring.is_some() {
                *usage = (*usage).max(1);
            } else if *usage < self.rules.usage_cap() {
                *usage += 1;
            }
            return true;
        }
        let k = match ring {
            Some((owner, size)) => self.ring_victim(owner, size),
            None => self.normal_victim(),
        };
        if let Some(old) = self.buffers[k].page {
            self.table.remove(&old);
            self.evicted = old;
        }
        self.buffers[k].page = Some(page);
        self.buffers[k].usage = self.rules.policy().admission;
        self.table.insert(page, k);
        false
    }

    fn drop(&mut self, page: u32) {
        let Some(k) = self.table.remove(&page) else {
            return;
        };
        self.buffers[k].page = None;
        self.buffers[k].usage = 0;
        if self.rules.policy().free_list && !self.buffers[k].in_free_list {
            self.buffers[k].in_free_list = true;
            self.free.push_front(k);
        }
    }

    fn step(&mut self, access: &Access, owner_blocks: &[u32]) -> u8 {
        self.evicted = NO_PAGE;
        if access.flag & DROP != 0 {
            self.drop(access.page);
            return 3;
        }
        let n = self.buffers.len() as u32;
        let strategy = rules::Strategy::from_class(access.flag & 7).unwrap();
        let mut size = self.rules.ring_buffers(strategy, n);
        if strategy == rules::Strategy::BulkRead && owner_blocks[access.owner as usize] <= n / 4 {
            size = 0;
        }
        let ring = (size > 0).then_some((access.owner, size));
        let hit = access.flag & REPEAT != 0 || self.access(access.page, ring);
        assert!(self.table.len() <= n as usize);
        assert!(self
            .buffers
            .iter()
            .all(|b| b.usage <= self.rules.usage_cap()));
        match (access.flag & EXTENSION != 0, hit) {
            (true, _) => 2,
            (false, true) => 0,
            (false, false) => 1,
        }
    }
}

#[derive(Clone, Debug)]
struct Access {
    page: u32,
    flag: u8,
    owner: u32,
}

const PAGES: u32 = 300;

fn accesses() -> impl Strategy<Value = Vec<Access>> {
    let flag = prop_oneof![
        12 => Just(0u8),
        1 => Just(REPEAT),
        1 => Just(UNCOUNTED),
        1 => Just(EXTENSION),
        1 => Just(DROP),
        4 => Just(1u8),
        2 => Just(2u8),
        2 => Just(3u8),
        1 => Just(2 | EXTENSION),
        1 => Just(1 | UNCOUNTED),
        1 => Just(3 | REPEAT),
    ];
    // Squared: few pages are hot, many are cold.
    let page = (0..PAGES).prop_map(|p| p * p / PAGES);
    let access = (page, flag, 0..4u32);
    let access = access.prop_map(|(page, flag, owner)| Access { page, flag, owner });
    prop::collection::vec(access, 0..1500)
}

/// The parts of a trace as arrays. Owners 4 k to 4 k + 3 own the rings of part k of the trace, so that
/// rings also die on the way.
struct Arrays {
    pages: Vec<u32>,
    flags: Vec<u8>,
    at: Vec<u64>,
    owner: Vec<u32>,
}

fn arrays(accesses: &mut [Access]) -> Arrays {
    for (k, access) in accesses.iter_mut().enumerate() {
        access.owner += 4 * (k as u32 / 400);
    }
    let owned = || accesses.iter().enumerate().filter(|(_, a)| a.flag & 7 != 0);
    Arrays {
        pages: accesses.iter().map(|a| a.page).collect(),
        flags: accesses.iter().map(|a| a.flag).collect(),
        at: owned().map(|(k, _)| k as u64).collect(),
        owner: owned().map(|(_, a)| a.owner).collect(),
    }
}

impl Arrays {
    fn trace<'a>(&'a self, blocks: &'a [u32]) -> Trace<'a> {
        Trace {
            pages: &self.pages,
            flags: Some(&self.flags),
            owners: Owners {
                access: &self.at,
                owner: &self.owner,
                blocks,
            },
        }
    }
}

fn request<'a>(trace: Trace<'a>, rules: Rules, sizes: &'a [u32]) -> Request<'a> {
    Request {
        trace,
        rules,
        sizes,
        windows: None,
        groups: None,
        warm: &[],
        threads: Some(1),
    }
}

fn rules(version: u32) -> Rules {
    Rules::new(version, RingSettings::default()).unwrap()
}

fn policies() -> impl Strategy<Value = (u32, Policy)> {
    let own = (15..20u32).prop_map(|version| (version, Policy::of_version(version)));
    let cap = prop_oneof![Just(1u8), Just(3), Just(5), Just(7)];
    let other = (15..20u32, cap, 0..=3u8, 1..=5u32, any::<bool>());
    let other = other.prop_map(|(version, usage_cap, admission, hands, free_list)| {
        let admission = admission.min(usage_cap);
        (
            version,
            Policy {
                usage_cap,
                admission,
                hands,
                free_list,
            },
        )
    });
    prop_oneof![own, other]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_access_and_the_final_pool_agree(
        mut accesses in accesses(),
        blocks in prop::collection::vec(0..100u32, 16),
        n in 16..200u32,
        (version, policy) in policies(),
    ) {
        let arrays = arrays(&mut accesses);
        let rules = rules(version).with_policy(policy).unwrap();
        let got = outcomes(&request(arrays.trace(&blocks), rules, &[n])).unwrap();
        let mut reference = Reference::new(n as usize, rules);
        let step = |access| (reference.step(access, &blocks), reference.evicted);
        let (expected, evicted): (Vec<u8>, Vec<u32>) = accesses.iter().map(step).unzip();
        prop_assert_eq!(&got.outcomes, &expected);
        prop_assert_eq!(&got.evicted_pages, &evicted);
        for (k, buffer) in reference.buffers.iter().enumerate() {
            let page = got.buffer_pages.get(k).copied().unwrap_or(NO_PAGE);
            prop_assert_eq!(page, buffer.page.unwrap_or(NO_PAGE), "buffer {}", k);
            if buffer.page.is_some() {
                prop_assert_eq!(got.buffer_usage_counts[k], buffer.usage, "buffer {}", k);
            }
        }
        if reference.free.is_empty() && got.buffer_pages.len() == n as usize {
            prop_assert_eq!(got.hand as usize, reference.hands[0]);
        }
    }

    #[test]
    fn many_sizes_windows_and_groups_agree_with_one_at_a_time(
        mut accesses in accesses(),
        blocks in prop::collection::vec(0..100u32, 16),
        sizes in prop::collection::vec(16..400u32, 1..20),
        cuts in prop::collection::vec(0..1500u64, 2..6),
        threads in 1..4usize,
    ) {
        let arrays = arrays(&mut accesses);
        let rules = rules(18);
        let mut windows: Vec<u64> = cuts.iter().map(|&c| c.min(accesses.len() as u64)).collect();
        windows.sort_unstable();
        let groups: Vec<u32> = (0..PAGES).map(|p| p % 5).collect();
        let request = Request {
            windows: Some(&windows),
            groups: Some(&groups),
            threads: Some(threads),
            ..request(arrays.trace(&blocks), rules, &sizes)
        };
        let counts = replay(&request).unwrap();
        let n_groups = counts.group_accesses.len();
        for (row, &n) in sizes.iter().enumerate() {
            let seen = outcomes(&Request { sizes: &[n], windows: None, groups: None, ..request }).unwrap();
            let mut by_group = vec![0; n_groups];
            for (w, window) in windows.windows(2).enumerate() {
                let range = window[0] as usize..window[1] as usize;
                let counted = |k: &usize| accesses[*k].flag & UNCOUNTED == 0;
                let of = |outcome: u8| {
                    let counted = range.clone().filter(counted);
                    counted.filter(|&k| seen.outcomes[k] == outcome).collect::<Vec<_>>()
                };
                for k in of(1) {
                    by_group[groups[accesses[k].page as usize] as usize] += 1;
                }
                let misses = counts.misses[row * (windows.len() - 1) + w];
                prop_assert_eq!(misses, of(1).len() as u64);
                prop_assert_eq!(counts.accesses[w], (of(0).len() + of(1).len()) as u64);
                prop_assert_eq!(counts.extensions[w], of(2).len() as u64);
            }
            let got = &counts.group_misses[row * n_groups..(row + 1) * n_groups];
            prop_assert_eq!(got, &by_group[..]);
            // What lies behind the last window is not replayed.
            if windows.last() == Some(&(accesses.len() as u64)) {
                prop_assert_eq!(counts.hands[row], seen.hand);
            }
        }
    }

    #[test]
    fn a_replay_can_be_cut_and_continued(
        pages in prop::collection::vec(0..200u32, 500..1500),
        n in 16..100u32,
        cut in 450..500usize,
    ) {
        let rules = rules(18);
        let sizes = [n];
        let trace = |pages| Trace { pages, ..Trace::default() };
        let whole = outcomes(&request(trace(&pages), rules, &sizes)).unwrap();
        let first = outcomes(&request(trace(&pages[..cut]), rules, &sizes)).unwrap();
        prop_assume!(first.buffer_pages.len() == n as usize);
        let buffers: Vec<u32> = (0..n).collect();
        let warm = [Some(Contents {
            pages: &first.buffer_pages,
            usage_counts: &first.buffer_usage_counts,
            buffers: Some(&buffers),
            hand: first.hand,
        })];
        let rest = Request { warm: &warm, ..request(trace(&pages[cut..]), rules, &sizes) };
        let rest = outcomes(&rest).unwrap();
        prop_assert_eq!(&rest.outcomes[..], &whole.outcomes[cut..]);
        prop_assert_eq!(rest.buffer_pages, whole.buffer_pages);
        prop_assert_eq!(rest.buffer_usage_counts, whole.buffer_usage_counts);
    }
}
