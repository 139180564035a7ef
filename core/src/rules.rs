//! What PostgreSQL's buffer manager does differently from version to version, in one table.
//!
//! | rule | 12..15 | 16 | 17 | 18 | 19.. | source |
//! |---|---|---|---|---|---|---|
//! | highest usage count | 5 | 5 | 5 | 5 | 5 | `buf_internals.h`, `BM_MAX_USAGE_COUNT` |
//! | usage count of a page just read | 1 | 1 | 1 | 1 | 1 | `bufmgr.c`, `BufferAlloc` |
//! | clock hands | 1 | 1 | 1 | 1 | 1 | `freelist.c`, `nextVictimBuffer` |
//! | ring of BAS_BULKREAD | 256 kB | 256 kB | 256 kB | 256 kB + combined reads in flight, within the pin limit | as 18 | `freelist.c`, `GetAccessStrategy` |
//! | ring of BAS_BULKWRITE | 16 MB | 16 MB | 16 MB | 16 MB | 16 MB | the same |
//! | ring of BAS_VACUUM | 256 kB | `vacuum_buffer_usage_limit`, 256 kB | the same, 2 MB | the same | the same | the same, `globals.c` |
//! | no ring is larger than | NBuffers/8 | NBuffers/8 | NBuffers/8 | NBuffers/8 | NBuffers/8 | `GetAccessStrategyWithSize` |
//! | a scan uses BAS_BULKREAD | nblocks > NBuffers/4 | the same | the same | the same | the same | `heapam.c`, `initscan` |
//! | dropped buffers go to the head of a free list | yes | yes | yes | yes | no free list | `freelist.c`, `StrategyFreeBuffer` |
//!
//! All sizes here are in blocks of 8 kB, the block size of every packaged server.

use std::fmt;

use crate::trace::{BULKREAD, BULKWRITE, VACUUM};

/// Bytes of a block: PostgreSQL's BLCKSZ as all packagers build it.
pub const BLOCK_BYTES: u64 = 8192;
/// The highest usage count that can be simulated: a page's state is a byte below 128.
const MOST_USAGE_CAP: u8 = 100;
/// `BM_MAX_USAGE_COUNT` (`buf_internals.h`), the same in every version.
pub const MAX_USAGE_COUNT: u8 = 5;
/// The least `shared_buffers` that the server accepts, in blocks: 128 kB (`guc_tables.c`).
pub const MIN_BUFFERS: u32 = 16;
/// The largest `shared_buffers` that the server accepts, in blocks (`guc_tables.c`: INT_MAX / 2).
pub const MAX_BUFFERS: u32 = (i32::MAX / 2) as u32;
/// `NUM_AUXILIARY_PROCS` of 18 and later: 6 and up to 32 I/O workers (`proc.h`).
const AUXILIARY_PROCS: u32 = 38;
const KB_PER_BLOCK: u32 = (BLOCK_BYTES / 1024) as u32;
const BULKREAD_KB: u32 = 256;
const BULKWRITE_KB: u32 = 16 * 1024;
/// Bounds of `vacuum_buffer_usage_limit` (`miscadmin.h`: MIN/MAX_BAS_VAC_RING_SIZE_KB).
const VACUUM_KB_RANGE: std::ops::RangeInclusive<u32> = 128..=16 * 1024 * 1024;
const VERSIONS: std::ops::RangeInclusive<u32> = 12..=20;

/// Which buffers an access asks for: PostgreSQL's `BufferAccessStrategyType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// No ring: the whole pool.
    Normal,
    /// A scan of a large table; the pool's size decides whether it gets a ring.
    BulkRead,
    /// COPY, CREATE TABLE AS and other bulk writes.
    BulkWrite,
    /// VACUUM and ANALYZE.
    Vacuum,
}

impl Strategy {
    /// The strategy of a trace's class number (0..=3), if it is one.
    pub fn from_class(class: u8) -> Option<Self> {
        match class {
            0 => Some(Self::Normal),
            BULKREAD => Some(Self::BulkRead),
            BULKWRITE => Some(Self::BulkWrite),
            VACUUM => Some(Self::Vacuum),
            _ => None,
        }
    }
}

/// A rule set cannot be made from the given settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError(String);

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RuleError {}

/// The settings of a server that decide the sizes of rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSettings {
    /// `MaxBackends`: in 18 and later `max_connections` + `autovacuum_worker_slots` +
    /// `max_worker_processes` + `max_wal_senders` + 2 (`postinit.c`, `InitializeMaxBackends`).
    pub max_backends: u32,
    /// `io_combine_limit`, in blocks (17 and later; sizes rings from 18 on).
    pub io_combine_limit_blocks: u32,
    /// `effective_io_concurrency`.
    pub effective_io_concurrency: u32,
    /// `vacuum_buffer_usage_limit` in kB (16 and later); 0 means no ring, nothing the default.
    pub vacuum_buffer_usage_limit_kb: Option<u32>,
}

impl Default for RingSettings {
    /// The settings of an untouched server 18: 100 connections, 16 + 8 + 10 workers and senders.
    fn default() -> Self {
        Self {
            max_backends: 136,
            io_combine_limit_blocks: 16,
            effective_io_concurrency: 16,
            vacuum_buffer_usage_limit_kb: None,
        }
    }
}

/// How a pool chooses the page to evict: a clock over its buffers, as a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The highest usage count; 1 is a clock with one second-chance bit.
    pub usage_cap: u8,
    /// The usage count of a page just read.
    pub admission: u8,
    /// Clock hands: each goes round in its own part of the pool, the parts being of equal size, and misses take
    /// the hands in turn.
    pub hands: u32,
    /// Whether dropped buffers are listed and taken before the sweep.
    pub free_list: bool,
}

impl Policy {
    /// The policy of a major version: the table above.
    pub const fn of_version(version: u32) -> Self {
        Self {
            usage_cap: MAX_USAGE_COUNT,
            admission: 1,
            hands: 1,
            // Removed in 19, 2c789405275.
            free_list: version <= 18,
        }
    }

    fn check(self) -> Result<Self, RuleError> {
        if !(1..=MOST_USAGE_CAP).contains(&self.usage_cap) {
            return Err(RuleError(format!(
                "the highest usage count lies within 1 to {MOST_USAGE_CAP}, not {}",
                self.usage_cap
            )));
        }
        if self.admission > self.usage_cap {
            return Err(RuleError(format!(
                "a page just read cannot have the usage count {}, the highest is {}",
                self.admission, self.usage_cap
            )));
        }
        if !(1..=MIN_BUFFERS).contains(&self.hands) {
            return Err(RuleError(format!(
                "a pool has 1 to {MIN_BUFFERS} clock hands, not {}",
                self.hands
            )));
        }
        Ok(self)
    }
}

/// How one version of the server with given settings treats its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    version: u32,
    policy: Policy,
    settings: RingSettings,
}

impl Rules {
    /// The rules of a major version.
    ///
    /// # Errors
    /// Where the version is not known or a setting lies outside what the server accepts.
    pub fn new(version: u32, settings: RingSettings) -> Result<Self, RuleError> {
        if !VERSIONS.contains(&version) {
            return Err(RuleError(format!(
                "major version {version} is not known: {} to {} are",
                VERSIONS.start(),
                VERSIONS.end()
            )));
        }
        if let Some(kb) = settings.vacuum_buffer_usage_limit_kb {
            if kb != 0 && !VACUUM_KB_RANGE.contains(&kb) {
                return Err(RuleError(format!(
                    "vacuum_buffer_usage_limit is 0 or {} to {} kB, not {kb} kB",
                    VACUUM_KB_RANGE.start(),
                    VACUUM_KB_RANGE.end()
                )));
            }
        }
        Ok(Self {
            version,
            policy: Policy::of_version(version),
            settings,
        })
    }

    /// The same rules with another replacement policy.
    ///
    /// No released server has one; caps of 3 and 7 are what other simulators can express, so that they can be
    /// oracles.
    ///
    /// # Errors
    /// Where the cap is not within 1 to 100, the admission above it, or the number of hands not within 1 to 16.
    pub fn with_policy(self, policy: Policy) -> Result<Self, RuleError> {
        Ok(Self {
            policy: policy.check()?,
            ..self
        })
    }

    /// The major version.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// How the pool chooses the page to evict.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The highest usage count.
    pub fn usage_cap(&self) -> u8 {
        self.policy.usage_cap
    }

    /// The settings that size the rings.
    pub fn settings(&self) -> RingSettings {
        self.settings
    }

    /// Whether a scan of a table of `table_blocks` gets a ring in a pool of `n_buffers`
    /// (`heapam.c`, `initscan`: strictly more than a quarter).
    pub fn scan_uses_ring(&self, table_blocks: u32, n_buffers: u32) -> bool {
        table_blocks > n_buffers / 4
    }

    /// The buffers of a new ring in a pool of `n_buffers`, or 0 where the access gets no ring.
    pub fn ring_buffers(&self, strategy: Strategy, n_buffers: u32) -> u32 {
        let kb = match strategy {
            Strategy::Normal => 0,
            Strategy::BulkRead => self.bulkread_kb(n_buffers),
            Strategy::BulkWrite => BULKWRITE_KB,
            Strategy::Vacuum => self.vacuum_kb(),
        };
        (kb / KB_PER_BLOCK).min(n_buffers / 8)
    }

    fn bulkread_kb(&self, n_buffers: u32) -> u32 {
        if self.version < 18 {
            return BULKREAD_KB;
        }
        // 15f0cb26b53: room for the reads in flight, but no more than a backend's share of the pins.
        let settings = &self.settings;
        let pin_limit = n_buffers / settings.max_backends.saturating_add(AUXILIARY_PROCS);
        let most = BULKREAD_KB.max(pin_limit.saturating_mul(KB_PER_BLOCK));
        let in_flight = KB_PER_BLOCK
            .saturating_mul(settings.io_combine_limit_blocks)
            .saturating_mul(settings.effective_io_concurrency);
        BULKREAD_KB.saturating_add(in_flight).min(most)
    }

    fn vacuum_kb(&self) -> u32 {
        match self.version {
            ..=15 => 256,
            16 => self.settings.vacuum_buffer_usage_limit_kb.unwrap_or(256),
            // 98f320eb2ef
            _ => self.settings.vacuum_buffer_usage_limit_kb.unwrap_or(2048),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(version: u32) -> Rules {
        Rules::new(version, RingSettings::default()).unwrap()
    }

    #[test]
    fn bulkread_rings_of_every_version() {
        for version in 12..=17 {
            assert_eq!(rules(version).ring_buffers(Strategy::BulkRead, 1 << 20), 32);
        }
        for version in 18..=20 {
            // 32 + 16 x 16 where the pin limit allows; a stock server of 128 MB allows 94.
            assert_eq!(
                rules(version).ring_buffers(Strategy::BulkRead, 1 << 20),
                288
            );
            assert_eq!(rules(version).ring_buffers(Strategy::BulkRead, 16384), 94);
        }
    }

    #[test]
    fn bulkread_ring_measured_on_18() {
        // 64 MB, max_connections 20: 87 pages of a large table were resident after its scan.
        let settings = RingSettings {
            max_backends: 20 + 16 + 8 + 10 + 2,
            ..RingSettings::default()
        };
        let rules = Rules::new(18, settings).unwrap();
        assert_eq!(rules.ring_buffers(Strategy::BulkRead, 8192), 87);
    }

    #[test]
    fn bulkread_ring_never_falls_below_256_kb() {
        let settings = RingSettings {
            max_backends: 10_000,
            effective_io_concurrency: 0,
            ..RingSettings::default()
        };
        let rules = Rules::new(18, settings).unwrap();
        assert_eq!(rules.ring_buffers(Strategy::BulkRead, 16384), 32);
    }

    #[test]
    fn bulkwrite_ring_is_16_mb_within_an_eighth() {
        for version in 12..=20 {
            assert_eq!(
                rules(version).ring_buffers(Strategy::BulkWrite, 1 << 20),
                2048
            );
            assert_eq!(
                rules(version).ring_buffers(Strategy::BulkWrite, 8192),
                8192 / 8
            );
            assert_eq!(rules(version).ring_buffers(Strategy::BulkWrite, 16), 2);
        }
    }

    #[test]
    fn vacuum_rings_and_their_setting() {
        let of = |version| rules(version).ring_buffers(Strategy::Vacuum, 1 << 20);
        assert_eq!(
            [of(14), of(15), of(16), of(17), of(18), of(19)],
            [32, 32, 32, 256, 256, 256]
        );
        let limited = |version, kb| {
            let settings = RingSettings {
                vacuum_buffer_usage_limit_kb: Some(kb),
                ..RingSettings::default()
            };
            Rules::new(version, settings).map(|r| r.ring_buffers(Strategy::Vacuum, 1 << 20))
        };
        assert_eq!(limited(16, 128), Ok(16));
        assert_eq!(limited(17, 0), Ok(0));
        assert_eq!(limited(18, 16 * 1024 * 1024), Ok((1 << 20) / 8));
        assert_eq!(limited(15, 1024), Ok(32), "15 has no such setting");
        assert!(limited(17, 64).is_err());
    }

    #[test]
    fn a_scan_gets_a_ring_above_a_quarter_strictly() {
        assert!(!rules(18).scan_uses_ring(4096, 16384));
        assert!(rules(18).scan_uses_ring(4097, 16384));
    }

    #[test]
    fn the_free_list_ends_with_18() {
        assert!(rules(18).policy().free_list);
        assert!(!rules(19).policy().free_list);
    }

    #[test]
    fn unknown_versions_are_refused() {
        assert!(Rules::new(11, RingSettings::default()).is_err());
        assert!(Rules::new(21, RingSettings::default()).is_err());
    }

    #[test]
    fn every_version_has_one_policy_and_others_can_be_set() {
        for version in 12..=20 {
            let policy = rules(version).policy();
            assert_eq!(
                (policy.usage_cap, policy.admission, policy.hands),
                (5, 1, 1)
            );
        }
        let of = Policy::of_version(18);
        let set = |policy| rules(18).with_policy(policy).map(|r| r.policy());
        let seven = Policy { usage_cap: 7, ..of };
        assert_eq!(set(seven), Ok(seven));
        for wrong in [
            Policy { usage_cap: 0, ..of },
            Policy {
                usage_cap: 101,
                ..of
            },
            Policy { admission: 6, ..of },
            Policy { hands: 0, ..of },
            Policy { hands: 17, ..of },
        ] {
            assert!(set(wrong).is_err(), "{wrong:?}");
        }
    }
}
