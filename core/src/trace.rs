//! A sequence of page accesses to replay, and what must hold of it.

use std::fmt;

/// Bits 0 to 2 of a flag byte: the access strategy's class, see [`crate::rules::Strategy::from_class`].
pub const STRATEGY_MASK: u8 = 0b0000_0111;
/// Class: a scan of a table that is large for some pools.
pub const BULKREAD: u8 = 1;
/// Class: COPY, CREATE TABLE AS and other bulk writes.
pub const BULKWRITE: u8 = 2;
/// Class: VACUUM and ANALYZE.
pub const VACUUM: u8 = 3;
/// The same backend already pins the page: counted as a hit, usage_count stays
/// (`bufmgr.c`, `PinBuffer`, the branch of a private reference).
pub const REPEAT: u8 = 0b0000_1000;
/// The page is new, made by extending the relation; counted apart, neither a hit nor a miss.
pub const EXTENSION: u8 = 0b0001_0000;
/// Not an access: the page is dropped or truncated away.
pub const DROP: u8 = 0b0010_0000;
/// Moves the pool but is not counted: an access of another database.
pub const UNCOUNTED: u8 = 0b0100_0000;
const KNOWN_FLAGS: u8 = STRATEGY_MASK | REPEAT | EXTENSION | DROP | UNCOUNTED;

/// What is wrong with a replay's input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputError(pub(crate) String);

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InputError {}

macro_rules! refuse {
    ($($message:tt)*) => { return Err(crate::trace::InputError(format!($($message)*))) };
}
pub(crate) use refuse;

/// Accesses in the order in which they happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trace<'a> {
    /// The dense id of each access's page.
    pub pages: &'a [u32],
    /// What is special about each access; nothing means that none is special.
    pub flags: Option<&'a [u8]>,
    /// Which ring the accesses with a strategy belong to.
    pub owners: Owners<'a>,
}

/// The scans and commands that own rings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owners<'a> {
    /// Positions in the trace, ascending, of every access that has a strategy.
    pub access: &'a [u64],
    /// The owner of each of them. A ring is made at its owner's first access and dies after its last.
    pub owner: &'a [u32],
    /// Blocks of the table that each owner scans: decides whether BULKREAD applies at a pool size.
    pub blocks: &'a [u32],
}

/// What one pass over a trace finds out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// One more than the largest page id.
    pub n_pages: u32,
    /// Whether any page is dropped.
    pub drops: bool,
}

impl Trace<'_> {
    /// Check the parts against each other.
    ///
    /// # Errors
    /// Where lengths differ, a flag is unknown, or accesses with a strategy and the owners do not match.
    pub fn check(&self) -> Result<Summary, InputError> {
        let largest = self
            .pages
            .iter()
            .fold(0, |largest, &page| largest.max(page));
        if largest == u32::MAX {
            refuse!("page ids are dense and below 4294967295, which marks an empty buffer");
        }
        let n_pages = if self.pages.is_empty() {
            0
        } else {
            largest + 1
        };
        let mut drops = false;
        match self.flags {
            None if !self.owners.access.is_empty() => {
                refuse!("owners are given for accesses, but no flags say which strategy they use")
            }
            None => {}
            Some(flags) => {
                if flags.len() != self.pages.len() {
                    refuse!(
                        "{} flags for {} accesses: one per access is needed",
                        flags.len(),
                        self.pages.len()
                    );
                }
                let all = flags.iter().fold(0, |all, flag| all | flag);
                if all & !KNOWN_FLAGS != 0 {
                    refuse!("flag bit {:#04x} is not known", all & !KNOWN_FLAGS);
                }
                drops = all & DROP != 0;
                self.check_owners(flags)?;
            }
        }
        Ok(Summary { n_pages, drops })
    }

    fn check_owners(&self, flags: &[u8]) -> Result<(), InputError> {
        let Owners {
            access,
            owner,
            blocks,
        } = self.owners;
        if access.len() != owner.len() {
            refuse!(
                "{} owned accesses but {} owners of them",
                access.len(),
                owner.len()
            );
        }
        let mut owned = access.iter().zip(owner);
        for (position, &flag) in flags.iter().enumerate() {
            let class = flag & STRATEGY_MASK;
            if class == 0 {
                continue;
            }
            if class > VACUUM {
                refuse!("access {position} has strategy class {class}: 0 to 3 are known");
            }
            match owned.next() {
                Some((&at, &id)) if at == position as u64 => {
                    if class == BULKREAD && id as usize >= blocks.len() {
                        refuse!(
                            "access {position} is part of scan {id}, but owner_blocks gives the \
                             table's blocks only of the first {}",
                            blocks.len()
                        );
                    }
                }
                _ => refuse!(
                    "access {position} has a strategy but no owner: owned positions must ascend \
                     and name every such access"
                ),
            }
        }
        if let Some((at, _)) = owned.next() {
            refuse!("owned access {at} has no strategy in its flags, or is named twice");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_trace_is_summed_up() {
        let trace = Trace {
            pages: &[3, 0, 3],
            ..Trace::default()
        };
        let summary = trace.check().unwrap();
        assert_eq!((summary.n_pages, summary.drops), (4, false));
        assert_eq!(Trace::default().check().unwrap().n_pages, 0);
    }

    #[test]
    fn mismatched_parts_are_refused() {
        let refused = |flags: &'static [u8], access: &'static [u64], owner: &'static [u32]| {
            let owners = Owners {
                access,
                owner,
                blocks: &[9],
            };
            let trace = Trace {
                pages: &[1, 2, 3],
                flags: Some(flags),
                owners,
            };
            trace.check().unwrap_err().to_string()
        };
        assert!(refused(&[0, 0], &[], &[]).contains("one per access"));
        assert!(refused(&[0x80, 0, 0], &[], &[]).contains("0x80"));
        assert!(refused(&[4, 0, 0], &[], &[]).contains("class 4"));
        assert!(refused(&[1, 0, 0], &[], &[]).contains("no owner"));
        assert!(refused(&[0, 1, 0], &[2], &[0]).contains("no owner"));
        assert!(refused(&[0, 1, 0], &[1], &[1]).contains("owner_blocks"));
        assert!(refused(&[0, 1, 0], &[1, 1], &[0, 0]).contains("named twice"));
        assert!(refused(&[0, 1, 0], &[1], &[]).contains("1 owned accesses but 0"));
    }
}
