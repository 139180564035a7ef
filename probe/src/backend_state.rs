//! What one server process is doing, as far as it decides the ring strategy of its accesses.

use std::collections::VecDeque;

use crate::columns::{Scans, FLAG_SCAN, FLAG_STRATEGY_KNOWN};
use crate::event::{ScanOptions, Tag, BUFFER_KNOWN, BUFFER_PINNED};

/// `BufferAccessStrategyType` (src/include/storage/bufmgr.h).
const BULKREAD: u8 = 1;
const BULKWRITE: u8 = 2;
const VACUUM: u8 = 3;

/// First relation file number of a user's relation (`FirstNormalObjectId`).
const FIRST_USER_RELATION: u32 = 16384;

/// How many accesses back a process is thought to still hold what it pinned.
const RECENT: usize = 32;

/// How many scans of one process are thought to be open.
const MOST_SCANS: usize = 256;

/// Bit that the probe puts into a scan's options: it takes part in a parallel scan.
const PARALLEL: u32 = 1 << 31;

/// What a heap scan may do about a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RingUse {
    /// It reads with the strategy of its ANALYZE.
    Analyze,
    /// It takes a ring of its own if the table is large.
    IfLarge,
    /// It never takes one.
    Never,
}

#[derive(Debug, Clone, Copy)]
struct Scan {
    id: u32,
    pid: u32,
    relation: Tag,
    begin_ns: u64,
    strategy: u8,
    ring_use: RingUse,
    parallel: bool,
    /// Whether it may leave blocks out: a parallel scan's participant, a sample.
    jumps: bool,
    /// The block that a walk in order accesses next; nothing before the first access.
    next_block: Option<u32>,
    /// Whether block 0 came out of order, as when a scan wraps around; block 1 would confirm it.
    wrapped: bool,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    id: u32,
    pid: u32,
    relation: Option<Tag>,
    begin_ns: u64,
    /// What its misses showed: whether it uses its ring.
    ring: Option<bool>,
}

/// What a scan, a vacuum or a bulk load begins with.
#[derive(Debug, Clone, Copy)]
pub struct Begin {
    /// Its number.
    pub id: u32,
    /// The process that does it.
    pub pid: u32,
    /// Nanoseconds since the start of the trace.
    pub time_ns: u64,
}

/// One server process.
#[derive(Debug, Default)]
pub struct BackendState {
    /// The last lookup, while it is not known whether it is a hit: row, page, time.
    pub pending: Option<(u64, Tag, u64)>,
    /// The last access: row and page.
    pub last: Option<(u64, Tag)>,
    /// The strategy that `StrategyGetBuffer` was given since the last lookup: address and type.
    pub ring: Option<(u64, u8)>,
    absent: bool,
    recent: VecDeque<Tag>,
    scans: Vec<Scan>,
    vacuum: Option<Span>,
    bulk: Option<Span>,
    /// Relations seen under a strategy whose creation was not seen: strategy's address, relation, type.
    others: Vec<(u64, Tag, u8)>,
}

impl BackendState {
    /// Note that the process went on, so that its last lookup was a hit.
    pub fn decided(&mut self) {
        self.pending = None;
    }

    /// A lookup did not find its page.
    pub fn absent(&mut self) {
        self.begin_access();
        self.absent = true;
    }

    /// A lookup begins. The strategy seen before is not its own; while one without a lookup serves all the pages by
    /// which a relation is extended at once.
    pub fn begin_access(&mut self) {
        self.decided();
        self.ring = None;
    }

    /// Return whether a lookup has not found its page, and forget it.
    pub fn take_absent(&mut self) -> bool {
        std::mem::take(&mut self.absent)
    }

    /// Return whether the page's lookup was seen, and not yet its outcome.
    pub fn is_undecided(&self, tag: &Tag) -> bool {
        self.pending.is_some_and(|(_, pending, _)| pending == *tag)
    }

    /// Note an access.
    pub fn accessed(&mut self, row: u64, tag: Tag) {
        self.absent = false;
        self.last = Some((row, tag));
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(tag);
    }

    /// Return whether this process pins a page that it finds, from the state of its buffer.
    ///
    /// Pins of all processes are counted in one number. Where it is zero the answer is sure; where it is not, the
    /// process that used the page last is the likeliest to hold it. Where the number is not known, only a page
    /// that is accessed twice in a row is taken as pinned.
    pub fn pins(&self, tag: &Tag, buffer: u8) -> bool {
        if buffer & BUFFER_KNOWN == 0 {
            return self.last.is_some_and(|(_, last)| last == *tag);
        }
        buffer & BUFFER_PINNED != 0 && self.recent.contains(tag)
    }

    /// Begin a heap scan; return whether it is of a kind that matters here.
    pub fn begin_scan(
        &mut self,
        begin: Begin,
        relation: Tag,
        flags: u32,
        options: ScanOptions,
        ended: &mut Scans,
    ) -> bool {
        self.decided();
        let analyze = flags & options.analyze != 0;
        if flags & options.sequential == 0 && !analyze {
            return false;
        }
        let ring_use = if analyze {
            RingUse::Analyze
        } else if flags & options.allow_strategy != 0 {
            RingUse::IfLarge
        } else {
            RingUse::Never
        };
        // A scan left open by an error that we did not see must not pile up.
        if self.scans.len() >= MOST_SCANS {
            note_scan(&self.scans.remove(0), begin.time_ns, ended);
        }
        self.scans.push(Scan {
            id: begin.id,
            pid: begin.pid,
            relation,
            begin_ns: begin.time_ns,
            strategy: if analyze { VACUUM } else { 0 },
            ring_use,
            parallel: flags & PARALLEL != 0,
            jumps: flags & (PARALLEL | options.sample) != 0,
            next_block: None,
            wrapped: false,
        });
        true
    }

    /// A strategy of the given type was made; a bulk-read one belongs to the scan just begun.
    pub fn strategy_made(&mut self, strategy: u8) {
        self.decided();
        if strategy == BULKREAD {
            if let Some(scan) = self.scans.last_mut() {
                if scan.ring_use == RingUse::IfLarge && scan.next_block.is_none() {
                    scan.strategy = BULKREAD;
                }
            }
        }
    }

    /// A strategy was freed: nothing is under it any more.
    pub fn strategy_freed(&mut self, address: u64) {
        self.others.retain(|(at, _, _)| *at != address);
    }

    /// A scan starts from its beginning again.
    pub fn again(&mut self, relation: Tag) {
        self.decided();
        if let Some(scan) = self
            .scans
            .iter_mut()
            .rev()
            .find(|s| s.relation.same_relation(&relation))
        {
            scan.next_block = None;
            scan.wrapped = false;
        }
    }

    /// A scan of the relation ends.
    pub fn end_scan(&mut self, relation: Tag, time_ns: u64, ended: &mut Scans) {
        self.decided();
        if let Some(at) = self
            .scans
            .iter()
            .rposition(|s| s.relation.same_relation(&relation))
        {
            let scan = self.scans.remove(at);
            note_scan(&scan, time_ns, ended);
        }
    }

    /// `heap_vacuum_rel` begins.
    pub fn begin_vacuum(&mut self, begin: Begin, relation: Tag, ended: &mut Scans) {
        // One whose end was lost ends here, so that the accesses that name it are of a scan that is known.
        self.end_vacuum(begin.time_ns, ended);
        self.vacuum = Some(Span::of(begin, Some(relation)));
    }

    /// `heap_vacuum_rel` returned.
    pub fn end_vacuum(&mut self, time_ns: u64, ended: &mut Scans) {
        self.decided();
        if let Some(span) = self.vacuum.take() {
            note_span(&span, VACUUM, time_ns, ended);
        }
    }

    /// A bulk load begins.
    pub fn begin_bulk(&mut self, begin: Begin, ended: &mut Scans) {
        self.end_bulk(begin.time_ns, ended);
        self.bulk = Some(Span::of(begin, None));
    }

    /// A bulk load ends.
    pub fn end_bulk(&mut self, time_ns: u64, ended: &mut Scans) {
        self.decided();
        if let Some(span) = self.bulk.take() {
            note_span(&span, BULKWRITE, time_ns, ended);
        }
    }

    /// The transaction failed, or the process ends.
    pub fn reset(&mut self, time_ns: u64, ended: &mut Scans) {
        self.decided();
        for scan in std::mem::take(&mut self.scans) {
            note_scan(&scan, time_ns, ended);
        }
        self.end_vacuum(time_ns, ended);
        self.end_bulk(time_ns, ended);
        self.others.clear();
        self.ring = None;
    }

    /// Return strategy, flags and scan of an access that begins.
    pub fn context(&mut self, tag: &Tag) -> (u8, u8, u32) {
        if tag.fork != 0 {
            // Free space map and visibility map are always read without a strategy (freespace.c, visibilitymap.c).
            return (0, FLAG_STRATEGY_KNOWN, 0);
        }
        if let Some(span) = &self.vacuum {
            if span.ring != Some(false) && vacuums(span, tag) {
                return (
                    VACUUM,
                    if span.ring.is_some() {
                        FLAG_STRATEGY_KNOWN
                    } else {
                        0
                    },
                    span.id,
                );
            }
        }
        if let Some(span) = &self.bulk {
            if span.relation.is_some_and(|r| r.same_relation(tag)) {
                return (BULKWRITE, FLAG_STRATEGY_KNOWN, span.id);
            }
        }
        for scan in self.scans.iter_mut().rev() {
            let analyzed = scan.ring_use == RingUse::Analyze;
            if tag.is_in_main_fork_of(&scan.relation) && (analyzed || scan.at_position(tag.block)) {
                let mut flags = FLAG_STRATEGY_KNOWN;
                if scan.ring_use == RingUse::IfLarge {
                    flags |= FLAG_SCAN;
                }
                return (scan.strategy, flags, scan.id);
            }
        }
        if let Some((_, _, strategy)) = self
            .others
            .iter()
            .find(|(_, relation, _)| relation.same_relation(tag))
        {
            return (*strategy, 0, 0);
        }
        (0, 0, 0)
    }

    /// Learn from a miss or a new page; return its strategy, and its scan where that is learned only here.
    pub fn missed(&mut self, tag: &Tag) -> (u8, u32) {
        if tag.fork != 0 {
            // Without a strategy, as in `context`; what `StrategyGetBuffer` was given last was for another page.
            return (0, 0);
        }
        let ring = self.ring;
        let strategy = ring.map_or(0, |(_, strategy)| strategy);
        if let Some(span) = &mut self.vacuum {
            if vacuums(span, tag) {
                // Some index pages (a B-tree's metapage) are read without it, so that one such miss proves nothing.
                span.ring = Some(span.ring == Some(true) || strategy == VACUUM);
                return (strategy, span.id);
            }
        }
        if strategy == BULKWRITE {
            if let Some(span) = &mut self.bulk {
                span.relation = Some(*tag);
                span.ring = Some(true);
                return (strategy, span.id);
            }
        }
        let scanned = self.scans.iter().any(|s| s.relation.same_relation(tag));
        if let (Some((address, strategy)), false) = (ring, scanned) {
            if !self
                .others
                .iter()
                .any(|(_, relation, _)| relation.same_relation(tag))
            {
                if self.others.len() >= 64 {
                    self.others.remove(0);
                }
                self.others.push((address, *tag, strategy));
            }
        }
        (strategy, 0)
    }
}

impl Span {
    fn of(begin: Begin, relation: Option<Tag>) -> Self {
        Self {
            id: begin.id,
            pid: begin.pid,
            relation,
            begin_ns: begin.time_ns,
            ring: None,
        }
    }
}

impl Scan {
    /// Return whether a block is the one that the scan reads next, and go past it.
    ///
    /// A scan walks in order, may begin anywhere (synchronized scans) and wraps around once; a participant of a parallel
    /// scan jumps forward from chunk to chunk, a sample scan from block to block.
    fn at_position(&mut self, block: u32) -> bool {
        let fits = match self.next_block {
            None => true,
            Some(next) => {
                block == next || (self.jumps && block > next) || (self.wrapped && block == 1)
            }
        };
        if fits {
            self.next_block = Some(block.wrapping_add(1));
        }
        // Block 0 out of order may be the scan wrapping around, or another access to the table's first page.
        self.wrapped = block == 0 && !fits;
        fits
    }
}

/// Return whether a vacuum reads this page's relation with its strategy: the table, and its indexes, which are the other
/// relations that it reads except for catalogs.
fn vacuums(span: &Span, tag: &Tag) -> bool {
    span.relation
        .is_some_and(|r| r.same_relation(tag) || (tag.db == r.db && tag.rel >= FIRST_USER_RELATION))
}

fn note_scan(scan: &Scan, time_ns: u64, ended: &mut Scans) {
    note_span(
        &Span {
            id: scan.id,
            pid: scan.pid,
            relation: Some(scan.relation),
            begin_ns: scan.begin_ns,
            ring: None,
        },
        scan.strategy,
        time_ns,
        ended,
    );
    if let (Some(allow), Some(parallel)) =
        (ended.allow_strategy.last_mut(), ended.parallel.last_mut())
    {
        *allow = scan.ring_use == RingUse::IfLarge;
        *parallel = scan.parallel;
    }
}

fn note_span(span: &Span, strategy: u8, time_ns: u64, ended: &mut Scans) {
    let relation = span.relation.unwrap_or_default();
    ended.scan.push(span.id);
    ended.pid.push(span.pid);
    ended.begin_ns.push(span.begin_ns);
    ended.end_ns.push(time_ns);
    ended.spc.push(relation.spc);
    ended.db.push(relation.db);
    ended.rel.push(relation.rel);
    ended.strategy.push(if span.ring == Some(false) {
        0
    } else {
        strategy
    });
    ended.allow_strategy.push(false);
    ended.parallel.push(false);
}
