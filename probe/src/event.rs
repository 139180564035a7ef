//! What the probes write into the ring buffer: 32 bytes an event.

/// Size of an event in bytes.
pub const EVENT_BYTES: usize = 32;

/// Offset of the byte that says the kind; it lies in the word of the fork number, which needs one byte only.
pub const KIND_OFFSET: i16 = 13;
/// Offset of the byte that says the state of the buffer in which a page was found, before this access: usage count in
/// bits 0 to 3; `BUFFER_KNOWN` if it could be read, `BUFFER_PINNED` if somebody pinned it.
pub const BUFFER_OFFSET: i16 = 14;
/// The state of the buffer is known.
pub const BUFFER_KNOWN: u8 = 0x40;
/// Somebody pins the buffer.
pub const BUFFER_PINNED: u8 = 0x80;
/// Offset of the process id.
pub const PID_OFFSET: i16 = 20;
/// Offset of the time.
pub const TIME_OFFSET: i16 = 24;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// `BufTableLookup`: a page is accessed. Words: tablespace, database, relation, fork, block.
    Lookup = 0,
    /// `BufTableInsert`: a page gets a buffer (a miss, or a new page). Words as above.
    Insert = 1,
    /// `StrategyGetBuffer` for a strategy: words 0 and 1 the strategy's address, word 4 its type.
    Ring = 2,
    /// `heap_beginscan`: words tablespace, database, relation; word 4 the scan's options, bit 31: parallel.
    ScanBegin = 3,
    /// `heap_rescan`: words tablespace, database, relation.
    ScanAgain = 4,
    /// `heap_endscan`: words tablespace, database, relation.
    ScanEnd = 5,
    /// `GetAccessStrategy`: word 4 the type.
    StrategyMade = 6,
    /// `FreeAccessStrategy`: words 0 and 1 the strategy's address.
    StrategyFreed = 7,
    /// `heap_vacuum_rel` begins: words tablespace, database, relation.
    VacuumBegin = 8,
    /// `heap_vacuum_rel` has returned.
    VacuumEnd = 9,
    /// `GetBulkInsertState`.
    BulkBegin = 10,
    /// `FreeBulkInsertState`.
    BulkEnd = 11,
    /// `AbortCurrentTransaction`, `proc_exit`: what was open in this process is not any more.
    Reset = 12,
    /// `smgrextend` (used up to version 15): words tablespace, database, relation, fork, block.
    Extend = 13,
    /// `DropRelationBuffers`: words tablespace, database, relation, fork, first block dropped.
    Drop = 14,
    /// `DropRelationsAllBuffers`: words tablespace, database, relation.
    DropAll = 15,
    /// `DropDatabaseBuffers`: word 1 the database.
    DropDatabase = 16,
    /// `BufTableLookup` has found the page: it is accessed, and it is a hit. Words: tablespace, database, relation, fork,
    /// block; `BUFFER_OFFSET` says the state of its buffer.
    Hit = 17,
    /// `BufTableLookup` has not found the page; the `Insert` that follows says which.
    Absent = 18,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 19] = [
        Self::Lookup,
        Self::Insert,
        Self::Ring,
        Self::ScanBegin,
        Self::ScanAgain,
        Self::ScanEnd,
        Self::StrategyMade,
        Self::StrategyFreed,
        Self::VacuumBegin,
        Self::VacuumEnd,
        Self::BulkBegin,
        Self::BulkEnd,
        Self::Reset,
        Self::Extend,
        Self::Drop,
        Self::DropAll,
        Self::DropDatabase,
        Self::Hit,
        Self::Absent,
    ];
}

/// A page: tablespace, database, relation file number, fork and block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tag {
    /// Tablespace oid.
    pub spc: u32,
    /// Database oid, 0 for shared catalogs.
    pub db: u32,
    /// Relation file number.
    pub rel: u32,
    /// Fork: main 0, free space map 1, visibility map 2, init 3.
    pub fork: u8,
    /// Block number.
    pub block: u32,
}

impl Tag {
    /// Return whether both are of the same relation.
    pub fn same_relation(&self, other: &Self) -> bool {
        (self.rel, self.db, self.spc) == (other.rel, other.db, other.spc)
    }

    /// Return whether this is a page of a relation's main fork.
    pub fn is_in_main_fork_of(&self, relation: &Self) -> bool {
        self.fork == 0 && self.same_relation(relation)
    }
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The page, or what the kind says the words mean.
    pub tag: Tag,
    /// What happened.
    pub kind: Kind,
    /// For `Kind::Hit`, the state of the buffer: see `BUFFER_OFFSET`.
    pub buffer: u8,
    /// Process id, as in the initial PID namespace.
    pub pid: u32,
    /// Time in nanoseconds of the kernel's monotonic clock.
    pub time_ns: u64,
}

impl Event {
    /// Read an event from its 32 bytes; nothing if the kind is unknown.
    pub fn read(bytes: &[u8; EVENT_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Some(Self {
            tag: Tag {
                spc: word(0),
                db: word(4),
                rel: word(8),
                fork: bytes[12],
                block: word(16),
            },
            kind: *Kind::ALL.get(usize::from(bytes[KIND_OFFSET as usize]))?,
            buffer: bytes[BUFFER_OFFSET as usize],
            pid: word(PID_OFFSET as usize),
            time_ns: u64::from(word(24)) | (u64::from(word(28)) << 32),
        })
    }

    /// Return words 0 and 1 as one address.
    pub fn address(&self) -> u64 {
        u64::from(self.tag.spc) | (u64::from(self.tag.db) << 32)
    }
}

/// The bits of `enum ScanOptions` (src/include/access/tableam.h); version 14 put TIDRANGESCAN among the types.
#[derive(Debug, Clone, Copy)]
pub struct ScanOptions {
    /// Scan of all blocks, or of a sample.
    pub sequential: u32,
    /// Scan of a sample.
    pub sample: u32,
    /// `ANALYZE`.
    pub analyze: u32,
    /// May use a ring.
    pub allow_strategy: u32,
}

impl ScanOptions {
    /// Return the bits of a server version such as 150018.
    pub fn of_version(version_num: u32) -> Self {
        let shift = u32::from(version_num >= 140_000);
        Self {
            sequential: 1 | (1 << 2),
            sample: 1 << 2,
            analyze: 1 << (4 + shift),
            allow_strategy: 1 << (5 + shift),
        }
    }
}
