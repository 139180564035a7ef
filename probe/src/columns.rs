//! The tables that a trace yields, by columns.

use crate::event::{Event, Kind, Tag};

/// Kinds of accesses, as in the evidence's table `accesses`.
pub const HIT: u8 = 0;
/// The page was not in a buffer.
pub const MISS: u8 = 1;
/// The page was new.
pub const EXTEND: u8 = 2;

/// Flag: made by a heap sequential scan that allows a ring, at its position.
pub const FLAG_SCAN: u8 = 1;
/// Flag: the process still pins the page, so that its usage count stays as it is.
pub const FLAG_PINNED: u8 = 2;
/// Flag: the strategy is known.
pub const FLAG_STRATEGY_KNOWN: u8 = 4;

/// One page access.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Nanoseconds since the start.
    pub time_ns: u64,
    /// Process id.
    pub pid: u32,
    /// The page.
    pub tag: Tag,
    /// Hit, miss or extension.
    pub kind: u8,
    /// 0 none, 1 bulk read, 2 bulk write, 3 vacuum.
    pub strategy: u8,
    /// The flags above.
    pub flags: u8,
    /// The scan, vacuum or load that it belongs to, 0 for none.
    pub scan: u32,
}

macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Default, Clone)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: Vec<$type>,)+
        }

        impl $name {
            /// Make room for rows.
            pub fn with_capacity(rows: usize) -> Self {
                Self { $($field: Vec::with_capacity(rows),)+ }
            }

            /// Move all rows of another table to the end of this one.
            pub fn append(&mut self, other: &mut Self) {
                $(self.$field.append(&mut other.$field);)+
            }

            /// Keep the first rows, and return the others.
            #[must_use]
            pub fn split_off(&mut self, rows: usize) -> Self {
                Self { $($field: self.$field.split_off(rows),)+ }
            }
        }
    };
}

table! {
    /// Page accesses, in the order of their time.
    Accesses {
        /// Nanoseconds since the start.
        time_ns: u64,
        /// Process id.
        pid: u32,
        /// Tablespace.
        spc: u32,
        /// Database, 0 for shared catalogs.
        db: u32,
        /// Relation file number.
        rel: u32,
        /// Fork.
        fork: u8,
        /// Block.
        block: u32,
        /// Hit, miss or extension.
        kind: u8,
        /// Ring strategy.
        strategy: u8,
        /// The flags above.
        flags: u8,
        /// Scan, vacuum or load; 0 for none.
        scan: u32,
    }
}

impl Accesses {
    /// Return the number of rows.
    pub fn len(&self) -> usize {
        self.time_ns.len()
    }

    /// Return whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.time_ns.is_empty()
    }

    /// Add a row.
    pub fn push(&mut self, row: &Row) {
        self.time_ns.push(row.time_ns);
        self.pid.push(row.pid);
        self.spc.push(row.tag.spc);
        self.db.push(row.tag.db);
        self.rel.push(row.tag.rel);
        self.fork.push(row.tag.fork);
        self.block.push(row.tag.block);
        self.kind.push(row.kind);
        self.strategy.push(row.strategy);
        self.flags.push(row.flags);
        self.scan.push(row.scan);
    }
}

table! {
    /// Heap scans, vacuums and bulk loads.
    Scans {
        /// The number by which accesses refer to it.
        scan: u32,
        /// Process id.
        pid: u32,
        /// Nanoseconds since the start.
        begin_ns: u64,
        /// Nanoseconds since the start.
        end_ns: u64,
        /// Tablespace.
        spc: u32,
        /// Database.
        db: u32,
        /// Relation file number; 0 for a load whose target was never seen.
        rel: u32,
        /// The ring strategy it had, 0 for none.
        strategy: u8,
        /// Whether it is a sequential scan that takes a ring if the table is large.
        allow_strategy: bool,
        /// Whether it is one of a parallel scan's participants.
        parallel: bool,
    }
}

table! {
    /// Relations (or the tails of relations) that were dropped or truncated.
    Drops {
        /// Nanoseconds since the start.
        time_ns: u64,
        /// How many accesses came before.
        row: u64,
        /// Process id.
        pid: u32,
        /// Tablespace; 0 when a whole database was dropped.
        spc: u32,
        /// Database.
        db: u32,
        /// Relation file number; 0 when a whole database was dropped.
        rel: u32,
        /// Fork; 255 for all.
        fork: u8,
        /// First block dropped.
        first_block: u32,
    }
}

impl Drops {
    /// Add a drop before which there were `row` accesses.
    pub fn push(&mut self, time_ns: u64, row: u64, event: &Event) {
        let one_fork = event.kind == Kind::Drop;
        self.time_ns.push(time_ns);
        self.row.push(row);
        self.pid.push(event.pid);
        self.spc.push(event.tag.spc);
        self.db.push(event.tag.db);
        self.rel.push(event.tag.rel);
        self.fork
            .push(if one_fork { event.tag.fork } else { u8::MAX });
        self.first_block
            .push(if one_fork { event.tag.block } else { 0 });
    }
}
