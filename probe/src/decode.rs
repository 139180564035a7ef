//! From single events to page accesses: hit or miss, extension, ring strategy, scan.
//!
//! An access is a `BufTableLookup`: a hit, or, where the page is absent, a miss, whose page is in the `BufTableInsert`
//! that follows. A `BufTableInsert` alone is a new page; up to version 15 a new page looks like a miss until its file is
//! extended. Where a server is built so that the result of `BufTableLookup` cannot be seen, an access is a miss if the next
//! thing its process does is a `BufTableInsert` of the same page. Rows that the next event of their process may still
//! change are held back until it comes (or for two seconds, for a process that fell idle).
//!
//! Which ring strategy an access has cannot be seen on a hit. It follows from what its process is doing: the heap scans
//! it has open, the relation it vacuums, the bulk load it runs; and, on misses, from the strategy that
//! `StrategyGetBuffer` was really given.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::backend_state::{BackendState, Begin};
use crate::columns::{
    Accesses, Drops, Row, Scans, EXTEND, FLAG_PINNED, FLAG_STRATEGY_KNOWN, HIT, MISS,
};
use crate::event::{Event, Kind, ScanOptions, Tag};

/// How long a process may be silent before its last access is taken as what it seems, a hit.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Rows in a chunk.
const CHUNK_ROWS: usize = 1 << 16;

/// What the decoder gives out.
#[derive(Debug, Default)]
pub struct Decoded {
    /// Page accesses.
    pub accesses: Accesses,
    /// Scans, vacuums and bulk loads that have ended.
    pub scans: Scans,
    /// Relations dropped or truncated.
    pub drops: Drops,
}

/// Counts over the whole trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events of all kinds.
    pub events: u64,
    /// Accesses decided as hits.
    pub hits: u64,
    /// Accesses decided as misses.
    pub misses: u64,
    /// New pages.
    pub extends: u64,
    /// Accesses whose process did nothing more within the patience, taken as hits.
    pub undecided: u64,
}

/// Decodes a stream of events.
pub struct Decoder {
    start_ns: u64,
    scan_options: ScanOptions,
    extends_by_misses: bool,
    chunks: VecDeque<(u64, Accesses)>,
    rows: u64,
    handed: u64,
    processes: FxHashMap<u32, BackendState>,
    next_scan: u32,
    scans: Scans,
    drops: Drops,
    counts: Counts,
    latest_ns: u64,
}

impl Decoder {
    /// Begin; times will be relative to `start_ns` of the monotonic clock.
    pub fn new(start_ns: u64, version_num: u32) -> Self {
        Self {
            start_ns,
            scan_options: ScanOptions::of_version(version_num),
            extends_by_misses: version_num < 160_000,
            chunks: VecDeque::new(),
            rows: 0,
            handed: 0,
            processes: FxHashMap::default(),
            next_scan: 1,
            scans: Scans::default(),
            drops: Drops::default(),
            counts: Counts::default(),
            latest_ns: start_ns,
        }
    }

    /// Return the counts so far; rows still held back count as what they seem.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Take one event.
    pub fn event(&mut self, event: &Event) {
        self.counts.events += 1;
        self.latest_ns = self.latest_ns.max(event.time_ns);
        let time_ns = event.time_ns.saturating_sub(self.start_ns);
        match event.kind {
            Kind::Hit => return self.hit(event, time_ns),
            Kind::Lookup => return self.lookup(event, time_ns),
            Kind::Insert => return self.insert(event, time_ns),
            _ => {}
        }
        let process = self.processes.entry(event.pid).or_default();
        let begin = Begin {
            id: self.next_scan,
            pid: event.pid,
            time_ns,
        };
        match event.kind {
            Kind::Hit | Kind::Lookup | Kind::Insert => {}
            Kind::Absent => process.absent(),
            Kind::Ring => process.ring = Some((event.address(), event.tag.block as u8)),
            Kind::ScanBegin => {
                let flags = event.tag.block;
                let options = self.scan_options;
                if process.begin_scan(begin, event.tag, flags, options, &mut self.scans) {
                    self.next_scan += 1;
                }
            }
            Kind::ScanAgain => process.again(event.tag),
            Kind::ScanEnd => process.end_scan(event.tag, time_ns, &mut self.scans),
            Kind::StrategyMade => process.strategy_made(event.tag.block as u8),
            Kind::StrategyFreed => process.strategy_freed(event.address()),
            Kind::VacuumBegin => {
                process.begin_vacuum(begin, event.tag, &mut self.scans);
                self.next_scan += 1;
            }
            Kind::VacuumEnd => process.end_vacuum(time_ns, &mut self.scans),
            Kind::BulkBegin => {
                process.begin_bulk(begin, &mut self.scans);
                self.next_scan += 1;
            }
            Kind::BulkEnd => process.end_bulk(time_ns, &mut self.scans),
            Kind::Reset => process.reset(time_ns, &mut self.scans),
            Kind::Extend => {
                process.decided();
                // A page that was found although its file does not reach so far, as an extension that failed leaves it, stays
                // the hit that the server counts (bufmgr.c up to 15: ReadBuffer_common).
                if let Some((row, tag)) = process.last {
                    if tag == event.tag && change(&mut self.chunks, row, MISS, EXTEND, |_, _| ()) {
                        self.counts.misses -= 1;
                        self.counts.extends += 1;
                    }
                }
            }
            Kind::Drop | Kind::DropAll | Kind::DropDatabase => {
                process.decided();
                self.drops.push(time_ns, self.rows, event);
            }
        }
    }

    fn hit(&mut self, event: &Event, time_ns: u64) {
        let process = self.processes.entry(event.pid).or_default();
        let (strategy, mut flags, scan) = process.context(&event.tag);
        if process.pins(&event.tag, event.buffer) {
            flags |= FLAG_PINNED;
        }
        process.begin_access();
        process.accessed(self.rows, event.tag);
        self.counts.hits += 1;
        self.push(&Row {
            time_ns,
            pid: event.pid,
            tag: event.tag,
            kind: HIT,
            strategy,
            flags,
            scan,
        });
    }

    fn lookup(&mut self, event: &Event, time_ns: u64) {
        self.hit(event, time_ns);
        if let Some(process) = self.processes.get_mut(&event.pid) {
            process.pending = Some((self.rows - 1, event.tag, event.time_ns));
        }
    }

    fn insert(&mut self, event: &Event, time_ns: u64) {
        let process = self.processes.entry(event.pid).or_default();
        let (_, mut flags, scan) = if process.is_undecided(&event.tag) {
            (0, 0, 0)
        } else {
            process.context(&event.tag)
        };
        let (strategy, learned) = process.missed(&event.tag);
        let scan = if learned == 0 { scan } else { learned };
        if let Some((row, _, _)) = process.pending.filter(|(_, tag, _)| *tag == event.tag) {
            process.pending = None;
            let known = change(&mut self.chunks, row, HIT, MISS, |rows, i| {
                rows.strategy[i] = strategy;
                rows.flags[i] |= FLAG_STRATEGY_KNOWN;
                if scan != 0 {
                    rows.scan[i] = scan;
                }
            });
            if known {
                self.counts.hits -= 1;
                self.counts.misses += 1;
            }
            return;
        }
        let kind = if process.take_absent() {
            MISS
        } else if process.last.is_some_and(|(_, tag)| tag == event.tag) {
            // Up to version 15 BufferAlloc inserts the page again when its victim was taken from it meanwhile.
            return;
        } else {
            EXTEND
        };
        process.decided();
        process.accessed(self.rows, event.tag);
        if kind == MISS && self.extends_by_misses {
            process.pending = Some((self.rows, Tag::default(), event.time_ns));
        }
        *(if kind == MISS {
            &mut self.counts.misses
        } else {
            &mut self.counts.extends
        }) += 1;
        flags |= FLAG_STRATEGY_KNOWN;
        self.push(&Row {
            time_ns,
            pid: event.pid,
            tag: event.tag,
            kind,
            strategy,
            flags,
            scan,
        });
    }

    fn push(&mut self, row: &Row) {
        if self
            .chunks
            .back()
            .map_or(true, |(_, rows)| rows.len() >= CHUNK_ROWS)
        {
            self.chunks
                .push_back((self.rows, Accesses::with_capacity(CHUNK_ROWS)));
        }
        if let Some((_, rows)) = self.chunks.back_mut() {
            rows.push(row);
        }
        self.rows += 1;
    }

    /// Hand out what is decided; all, if the trace has `ended`.
    ///
    /// `now_ns` is the present time of the monotonic clock.
    pub fn take(&mut self, now_ns: u64, ended: bool) -> Decoded {
        let mut undecided = 0;
        let mut first_undecided = self.rows;
        for process in self.processes.values_mut() {
            if let Some((row, _, since_ns)) = process.pending {
                if ended || now_ns.saturating_sub(since_ns) > PATIENCE_NS {
                    process.pending = None;
                    undecided += 1;
                } else {
                    first_undecided = first_undecided.min(row);
                }
            }
            if ended {
                process.reset(now_ns.saturating_sub(self.start_ns), &mut self.scans);
            }
        }
        self.counts.undecided += undecided;
        let mut accesses = Accesses::default();
        while let Some((base, mut rows)) = self.chunks.pop_front() {
            // The last chunk is still being filled: what of it is decided goes when the oldest has waited long enough.
            let full = rows.len() >= CHUNK_ROWS || ended;
            let old = rows
                .time_ns
                .first()
                .is_some_and(|t| now_ns.saturating_sub(self.start_ns + t) > PATIENCE_NS);
            let decided = rows
                .len()
                .min(first_undecided.saturating_sub(base) as usize);
            if decided == 0 || !(full || old) {
                self.chunks.push_front((base, rows));
                break;
            }
            let rest = rows.split_off(decided);
            self.handed += decided as u64;
            if accesses.is_empty() {
                accesses = rows;
            } else {
                accesses.append(&mut rows);
            }
            if !rest.is_empty() {
                self.chunks.push_front((base + decided as u64, rest));
                break;
            }
        }
        Decoded {
            accesses,
            scans: std::mem::take(&mut self.scans),
            drops: std::mem::take(&mut self.drops),
        }
    }

    /// Return how many rows there have been, handed out or held back.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Return how many rows are held back.
    pub fn held_rows(&self) -> u64 {
        self.rows - self.handed
    }
}

/// Make a row of one kind one of another, unless it has been handed out; return whether it was such a row and still here.
fn change(
    chunks: &mut VecDeque<(u64, Accesses)>,
    row: u64,
    from: u8,
    to: u8,
    more: impl FnOnce(&mut Accesses, usize),
) -> bool {
    for (base, rows) in chunks.iter_mut().rev() {
        if row >= *base {
            let i = (row - *base) as usize;
            if rows.kind.get(i) != Some(&from) {
                return false;
            }
            rows.kind[i] = to;
            more(rows, i);
            return true;
        }
    }
    false
}
