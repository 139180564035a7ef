//! Random reads, writes and drops against a plain, slow page cache written for this test alone: lists of folios
//! that are searched from end to end, pages looked up one by one.

use std::collections::HashMap;

use pgsweep_core::files::{access_files, FileRequest, PageCache};
use pgsweep_core::page_cache::Policy;
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Folio {
    /// Number of the file, first page in it, pages.
    file: usize,
    first: u64,
    size: u64,
    referenced: bool,
    marked: bool,
}

impl Folio {
    fn holds(&self, file: usize, page: u64) -> bool {
        self.file == file && (self.first..self.first + self.size).contains(&page)
    }
}

#[derive(Default)]
struct Window {
    start: u64,
    size: u64,
    ahead: u64,
    order: u32,
    position: Option<u64>,
}

struct Reference {
    policy: Policy,
    capacity: u64,
    readahead: u64,
    largest_order: u32,
    file_pages: Vec<u64>,
    /// Newest folio first.
    inactive: Vec<Folio>,
    active: Vec<Folio>,
    shadows: HashMap<(usize, u64), u64>,
    age: u64,
    activations: u64,
    activations_before: u64,
    refaults: u64,
    statistics: Option<(u64, u64, u64)>,
    windows: HashMap<(u32, usize), Window>,
    disk: u32,
}

fn pages(list: &[Folio]) -> u64 {
    list.iter().map(|folio| folio.size).sum()
}

impl Reference {
    fn has(&self, file: usize, page: u64) -> bool {
        let mut all = self.inactive.iter().chain(&self.active);
        all.any(|folio| folio.holds(file, page))
    }

    fn folio(&mut self, file: usize, page: u64) -> &mut Folio {
        let mut all = self.inactive.iter_mut().chain(&mut self.active);
        all.find(|folio| folio.holds(file, page)).unwrap()
    }

    /// Inactive pages, active pages and activations, as the kernel knows them.
    fn known(&self) -> (u64, u64, u64) {
        let now = (pages(&self.inactive), pages(&self.active), self.activations);
        self.statistics.unwrap_or(now)
    }

    fn scan_inactive(&mut self, scan: u64) -> u64 {
        let (mut scanned, mut evicted) = (0, 0);
        let scan = scan.min(pages(&self.inactive));
        while scanned < scan {
            let mut folio = self.inactive.pop().unwrap();
            scanned += folio.size;
            if self.policy == Policy::Clock && folio.referenced {
                folio.referenced = false;
                self.inactive.insert(0, folio);
                continue;
            }
            for page in folio.first..folio.first + folio.size {
                self.shadows.insert((folio.file, page), self.age);
            }
            self.age += folio.size;
            evicted += folio.size;
        }
        evicted
    }

    fn scan_active(&mut self, scan: u64) {
        let mut scanned = 0;
        let scan = scan.min(pages(&self.active));
        while scanned < scan {
            let folio = self.active.pop().unwrap();
            scanned += folio.size;
            self.inactive.insert(0, folio);
        }
    }

    fn reclaim(&mut self, wanted: u64) {
        for force in [false, true] {
            let mut all = 0;
            for shift in (0..13).rev() {
                let (inactive, active, activations) = self.known();
                // Below a gigabyte the lists are to be of equal length.
                let deactivate =
                    force || activations != self.activations_before || inactive < active;
                let mut left = (pages(&self.inactive) >> shift, pages(&self.active) >> shift);
                let mut here = 0;
                while (left.0 > 0 || left.1 > 0) && here < wanted {
                    let part = (left.0.min(32), left.1.min(32));
                    here += self.scan_inactive(part.0);
                    if deactivate {
                        self.scan_active(part.1);
                    }
                    left = (left.0 - part.0, left.1 - part.1);
                }
                all += here;
                if all >= wanted {
                    break;
                }
            }
            if !force {
                self.activations_before = self.known().2;
            }
            if all > 0 {
                break;
            }
        }
    }

    fn add(&mut self, file: usize, first: u64, size: u64, write: bool) {
        while pages(&self.inactive) + pages(&self.active) + size > self.capacity {
            self.reclaim(size.max(32));
        }
        let mut shadow = None;
        for page in first..first + size {
            shadow = self.shadows.remove(&(file, page)).or(shadow);
        }
        let folio = Folio {
            file,
            first,
            size,
            referenced: false,
            marked: false,
        };
        if let (Some(then), false) = (shadow, write) {
            self.refaults += size;
            if self.policy == Policy::TwoLists && self.age - then <= self.known().1 {
                self.age += size;
                self.activations += size;
                self.active.insert(0, folio);
                return;
            }
        }
        self.inactive.insert(0, folio);
    }

    fn read_from_disk(&mut self, file: usize, first: u64, size: u64) {
        self.add(file, first, size, false);
        self.disk += size as u32;
    }

    fn touch(&mut self, file: usize, page: u64) {
        let two_lists = self.policy == Policy::TwoLists;
        let at = self.inactive.iter().position(|f| f.holds(file, page));
        match at {
            Some(k) if two_lists && self.inactive[k].referenced => {
                let mut folio = self.inactive.remove(k);
                folio.referenced = false;
                self.age += folio.size;
                self.active.insert(0, folio);
            }
            _ => self.folio(file, page).referenced = true,
        }
    }

    fn page_by_page(&mut self, file: usize, start: u64, size: u64, ahead: u64) {
        for k in 0..size {
            let page = start + k;
            if page < self.file_pages[file] && !self.has(file, page) {
                self.read_from_disk(file, page, 1);
                if k + ahead == size {
                    self.folio(file, page).marked = true;
                }
            }
        }
    }

    fn window(&mut self, file: usize, window: &mut Window) {
        let last = self.file_pages[file];
        if window.start >= last {
            return;
        }
        if self.largest_order == 0 {
            return self.page_by_page(file, window.start, window.size, window.ahead);
        }
        let largest = window.order.min(self.largest_order);
        window.order = (0..=largest).rfind(|o| 1 << o <= window.size).unwrap();
        let end = (window.start + window.size).min(last);
        let mark = window.start + window.size - window.ahead;
        let mut page = window.start;
        while page < end {
            let mut order = window.order;
            while page % (1 << order) != 0 && (page >> order) << order != page {
                order -= 1;
            }
            while page + (1 << order) > end {
                order -= 1;
            }
            let size = 1 << order;
            if (0..size).any(|k| self.has(file, page + k)) {
                let left = window.size - (page - window.start);
                return self.page_by_page(file, page, left, window.ahead);
            }
            self.read_from_disk(file, page, size);
            if mark / size * size == page {
                self.folio(file, page).marked = true;
            }
            page += size;
        }
    }

    fn miss(&mut self, file: usize, window: &mut Window, page: u64, wanted: u64) {
        let most = self.readahead;
        if most == 0 {
            return self.page_by_page(file, page, wanted, 0);
        }
        let follows = window.position.is_some_and(|p| p == page || p + 1 == page);
        if page == 0 || wanted > most || follows {
            let mut size = 1;
            while size < wanted {
                size *= 2;
            }
            window.size = match size {
                _ if size * 32 <= most => size * 4,
                _ if size * 4 <= most => size * 2,
                _ => most,
            };
            let more = window.size.saturating_sub(wanted);
            window.ahead = if more > 0 { more } else { window.size / 2 };
        } else {
            let mut history = 0;
            while history < page && history < most && self.has(file, page - history - 1) {
                history += 1;
            }
            if history <= wanted {
                return self.page_by_page(file, page, wanted, 0);
            }
            if history == page {
                history *= 2;
            }
            window.size = most.min(history + wanted);
            window.ahead = 1;
        }
        window.start = page;
        window.order = 0;
        self.window(file, window);
    }

    fn go_on(&mut self, file: usize, window: &mut Window, folio: &Folio, wanted: u64) {
        let most = self.readahead;
        let next = |size: u64| match size {
            _ if size < most / 16 => size * 4,
            _ if size <= most / 2 => size * 2,
            _ => most,
        };
        let expected = (window.start + window.size).saturating_sub(window.ahead);
        if expected / folio.size * folio.size == folio.first {
            window.start += window.size;
            window.size = next(window.size).max(window.size);
        } else {
            let mut hole = folio.first + 1;
            while hole < self.file_pages[file] && hole - folio.first <= most && self.has(file, hole)
            {
                hole += 1;
            }
            if hole - folio.first > most {
                return;
            }
            window.start = hole;
            window.size = next(hole - folio.first + wanted);
        }
        window.ahead = window.size;
        window.order += 2;
        self.window(file, window);
    }

    fn read(&mut self, file: usize, first: u64, end: u64, stream: u32) {
        let mut window = self.windows.remove(&(stream, file)).unwrap_or_default();
        let before = window.position.map(|position| position - 1);
        let mut page = first;
        while page < end {
            if !self.has(file, page) {
                self.miss(file, &mut window, page, end - page);
                if !self.has(file, page) {
                    self.read_from_disk(file, page, 1);
                }
            }
            let mut batch: Vec<Folio> = Vec::new();
            let begin = page;
            while page < end && self.has(file, page) {
                let found = self.folio(file, page);
                let marked = std::mem::take(&mut found.marked);
                let folio = found.clone();
                page = folio.first + folio.size;
                batch.push(folio.clone());
                if marked {
                    let wanted = end.saturating_sub(folio.first);
                    self.go_on(file, &mut window, &folio, wanted);
                    break;
                }
            }
            for folio in batch {
                let at = folio.first.max(begin);
                let same = before.is_some_and(|last| folio.holds(file, last));
                if self.has(file, at) && !(same && folio.holds(file, begin)) {
                    self.touch(file, at);
                }
            }
        }
        window.position = Some(end);
        self.windows.insert((stream, file), window);
    }

    fn drop(&mut self, file: usize, page: u64) {
        self.inactive.retain(|folio| !folio.holds(file, page));
        self.active.retain(|folio| !folio.holds(file, page));
        self.shadows.remove(&(file, page));
    }
}

#[derive(Clone, Debug)]
struct Case {
    sizes: Vec<u32>,
    per_block: u32,
    capacity: u32,
    readahead: u32,
    folio_order: u8,
    policy: Policy,
    gathered: Option<Vec<u64>>,
    /// Block, operation, stream.
    steps: Vec<(u32, u8, u32)>,
    resident: Vec<u32>,
}

/// Steps that jump, and steps that go on from the last block.
fn steps(blocks: u32) -> impl Strategy<Value = Vec<(u32, u8, u32)>> {
    let operation = prop_oneof![30 => Just(0_u8), 3 => Just(1), 1 => Just(2)];
    let run = (0..blocks, 1..12_u32, operation, 0..3_u32);
    prop::collection::vec(run, 0..400).prop_map(move |runs| {
        let mut steps = Vec::new();
        for (first, length, operation, stream) in runs {
            let length = if length < 9 { 1 } else { length * 3 };
            steps.extend((first..blocks.min(first + length)).map(|b| (b, operation, stream)));
        }
        steps
    })
}

fn cases() -> impl Strategy<Value = Case> {
    let policy = prop_oneof![
        4 => Just(Policy::TwoLists), 1 => Just(Policy::Fifo), 1 => Just(Policy::Clock)
    ];
    let shape = (
        prop::collection::vec(0..400_u32, 1..4),
        prop_oneof![Just(1_u32), Just(2), Just(4)],
        256..700_u32,
        prop_oneof![Just(0_u32), Just(8), Just(32), Just(100), Just(256)],
        prop_oneof![Just(0_u8), Just(2), Just(4)],
        policy,
        any::<bool>(),
    );
    shape.prop_flat_map(
        |(mut sizes, per_block, capacity, readahead, folio_order, policy, late)| {
            sizes.push(200);
            let blocks = sizes.iter().sum();
            let resident = prop::sample::subsequence((0..blocks).collect::<Vec<_>>(), 0..100);
            (steps(blocks), resident.prop_shuffle()).prop_map(move |(steps, resident)| Case {
                sizes: sizes.clone(),
                per_block,
                capacity,
                readahead,
                folio_order,
                policy,
                gathered: late.then(|| (0..steps.len() as u64).step_by(90).collect()),
                steps,
                resident,
            })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_operation_ends_as_in_the_reference(case in cases()) {
        let mut begins = vec![0];
        for size in &case.sizes {
            begins.push(begins[begins.len() - 1] + size);
        }
        let column = |of: fn(&(u32, u8, u32)) -> u32| -> Vec<u32> { case.steps.iter().map(of).collect() };
        let (blocks, streams) = (column(|s| s.0), column(|s| s.2));
        let operations: Vec<u8> = case.steps.iter().map(|s| s.1).collect();
        let found = access_files(&FileRequest {
            blocks: &blocks,
            operations: Some(&operations),
            streams: Some(&streams),
            files: &begins,
            cache: PageCache {
                pages_per_block: case.per_block,
                capacity_pages: case.capacity,
                readahead_pages: case.readahead,
                folio_order: case.folio_order,
                policy: case.policy,
                pages_each: 1.0,
            },
            gathered: case.gathered.as_deref(),
            resident: &case.resident,
            refaulted_from: case.steps.len() as u64 / 3,
        }).unwrap();

        let per_block = u64::from(case.per_block);
        let mut reference = Reference {
            policy: case.policy,
            capacity: u64::from(case.capacity),
            readahead: u64::from(case.readahead),
            largest_order: u32::from(case.folio_order),
            file_pages: case.sizes.iter().map(|&size| u64::from(size) * per_block).collect(),
            inactive: Vec::new(),
            active: Vec::new(),
            shadows: HashMap::new(),
            age: 0,
            activations: 0,
            activations_before: 0,
            refaults: 0,
            statistics: None,
            windows: HashMap::new(),
            disk: 0,
        };
        let place = |block: u32| {
            let file = begins.iter().rposition(|&begin| begin <= block).unwrap();
            (file, u64::from(block - begins[file]) * per_block)
        };
        for &block in &case.resident {
            let (file, first) = place(block);
            for page in first..first + per_block {
                reference.add(file, page, 1, false);
                reference.touch(file, page);
            }
        }
        if case.gathered.is_some() {
            reference.statistics = Some(reference.known());
        }
        for (k, &(block, operation, stream)) in case.steps.iter().enumerate() {
            if k == case.steps.len() / 3 {
                reference.refaults = 0;
            }
            if case.gathered.as_ref().is_some_and(|all| all.contains(&(k as u64))) {
                reference.statistics = None;
                reference.statistics = Some(reference.known());
            }
            let (file, first) = place(block);
            reference.disk = 0;
            let mut missing = 0;
            for page in first..first + per_block {
                let there = reference.has(file, page);
                match operation {
                    0 => missing += u8::from(!there),
                    1 if !there => reference.add(file, page, 1, true),
                    1 => {}
                    _ => reference.drop(file, page),
                }
            }
            if operation == 0 {
                reference.read(file, first, first + per_block, stream);
            }
            prop_assert_eq!(found.missing_pages[k], missing, "operation {}", k);
            prop_assert_eq!(found.disk_pages[k], reference.disk, "operation {}", k);
        }
        for (block, &cached) in found.cached_pages.iter().enumerate() {
            let (file, first) = place(block as u32);
            let there = (first..first + per_block).filter(|&page| reference.has(file, page)).count();
            prop_assert_eq!(usize::from(cached), there, "block {}", block);
        }
        prop_assert_eq!(found.refaulted_pages, reference.refaults);
        prop_assert_eq!(u64::from(found.active_pages), pages(&reference.active));
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let fine = FileRequest {
        blocks: &[0],
        operations: None,
        streams: None,
        files: &[0, 10],
        cache: PageCache {
            pages_per_block: 2,
            capacity_pages: 256,
            readahead_pages: 32,
            folio_order: 0,
            policy: Policy::TwoLists,
            pages_each: 1.0,
        },
        gathered: None,
        resident: &[],
        refaulted_from: 0,
    };
    assert_eq!(access_files(&fine).unwrap().missing_pages, [2]);
    let refused = |request: &FileRequest<'_>| access_files(request).unwrap_err().to_string();
    let too_small = FileRequest {
        cache: PageCache {
            capacity_pages: 255,
            ..fine.cache
        },
        ..fine
    };
    assert!(refused(&too_small).contains("too small"));
    let outside = FileRequest {
        blocks: &[10],
        ..fine
    };
    assert!(refused(&outside).contains("not below 10"));
    let descending = FileRequest {
        files: &[0, 10, 5],
        ..fine
    };
    assert!(refused(&descending).contains("ascend"));
    let unknown = FileRequest {
        operations: Some(&[3]),
        ..fine
    };
    assert!(refused(&unknown).contains("0 (read)"));
    let shorter = FileRequest {
        streams: Some(&[]),
        ..fine
    };
    assert!(refused(&shorter).contains("one entry"));
    let huge = FileRequest {
        files: &[0, u32::MAX],
        ..fine
    };
    assert!(refused(&huge).contains("more than"));
}
