//! One buffer as it lies in the server's memory, and where the array of them is.
//!
//! `struct BufferDesc` (src/include/storage/buf_internals.h), padded to 64 bytes: the tag in 20 bytes, the buffer's own
//! number at 20, and at 24 the state: pins in bits 0 to 17, usage count in 18 to 21, dirty 23, valid 24, tag valid 25.
//! So it is in versions 12 to 19. From 19 on the state has 64 bits, because the content lock moved into it (commit
//! dac328c8a68); its lower half, the first on little-endian machines, kept the places of all that is read here.

use std::io;
use std::ops::Range;

use crate::error::{ProbeError, Result};
use crate::server::Server;

/// Size of a descriptor (`BUFFERDESC_PAD_TO_SIZE`).
pub const DESCRIPTOR_BYTES: usize = 64;
/// Where the buffer's own number, from 0, lies in it.
pub const BUFFER_NUMBER: usize = 20;
/// Where the state lies in it.
pub const STATE: usize = 24;
/// Versions whose descriptors are as described, as `server_version_num`.
pub const KNOWN_VERSIONS: Range<u32> = 120_000..200_000;

const DIRTY: u32 = 1 << 23;
/// `BM_VALID | BM_TAG_VALID`: what pg_buffercache asks for before it shows a buffer as used (pg_buffercache_pages.c).
const USED: u32 = 3 << 24;
const PINS: u32 = (1 << 18) - 1;
/// `BM_MAX_USAGE_COUNT`.
const MAX_USAGE_COUNT: u32 = 5;
/// The range of `shared_buffers` (src/backend/utils/misc/guc_tables.c).
const PLAUSIBLE_BUFFERS: Range<u32> = 16..1 << 30;

/// The relation's fork that a buffer holds a block of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Relation {
    /// Tablespace.
    pub spc: u32,
    /// Database.
    pub db: u32,
    /// Relation file number.
    pub rel: u32,
    /// Fork.
    pub fork: u32,
}

/// A descriptor's bytes.
#[derive(Debug, Clone, Copy)]
pub struct Descriptor<'a>(&'a [u8; DESCRIPTOR_BYTES]);

impl<'a> Descriptor<'a> {
    /// Take the bytes of the descriptor at this index.
    ///
    /// # Errors
    /// They are not a descriptor: each knows its own number, a check of the whole layout that costs nothing.
    pub fn checked(bytes: &'a [u8; DESCRIPTOR_BYTES], index: usize) -> Result<Self> {
        let descriptor = Self(bytes);
        if descriptor.word(BUFFER_NUMBER) as usize != index
            || descriptor.usage_count() > MAX_USAGE_COUNT
        {
            return Err(unknown_layout());
        }
        Ok(descriptor)
    }

    /// Return whether the server has not given it its number yet.
    ///
    /// After a crash the postmaster makes new shared memory, which begins as zeros. A descriptor's tag is cleared first,
    /// to a fork and a block that are not zero, its number is set a moment later (buf_init.c, `BufferManagerShmemInit`).
    fn is_being_made(self) -> bool {
        [0, 4, 8, BUFFER_NUMBER, STATE]
            .iter()
            .all(|at| self.word(*at) == 0)
    }

    fn word(self, at: usize) -> u32 {
        let b = self.0;
        u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
    }

    /// Return whether the buffer holds a page.
    pub fn is_used(self) -> bool {
        self.word(STATE) & USED == USED
    }

    /// Return what relation's page it holds.
    pub fn relation(self) -> Relation {
        Relation {
            spc: self.word(0),
            db: self.word(4),
            rel: self.word(8),
            fork: self.word(12),
        }
    }

    /// Return the block.
    pub fn block(self) -> u32 {
        self.word(16)
    }

    /// Return the usage count.
    pub fn usage_count(self) -> u32 {
        self.word(STATE) >> 18 & 0xf
    }

    /// Return whether the page differs from the one on disk.
    pub fn is_dirty(self) -> bool {
        self.word(STATE) & DIRTY != 0
    }

    /// Return whether somebody uses the page right now.
    pub fn is_pinned(self) -> bool {
        self.word(STATE) & PINS != 0
    }
}

/// Where a server's descriptors lie.
#[derive(Debug, Clone, Copy)]
pub struct Array {
    /// Address of the first.
    pub address: u64,
    /// How many there are.
    pub buffers: u32,
}

impl Array {
    /// Find the descriptors of a server.
    ///
    /// # Errors
    /// A version whose descriptors are not known, no symbols, or a server that is only just starting.
    pub fn of(server: &Server, version_num: u32) -> Result<Self> {
        if !KNOWN_VERSIONS.contains(&version_num) {
            return Err(unknown_version(version_num));
        }
        let buffers = server.variable_u32("NBuffers")?;
        let address = server.variable_pointer("BufferDescriptors")?;
        if address == 0 {
            return Err(still_starting());
        }
        if !PLAUSIBLE_BUFFERS.contains(&buffers) {
            return Err(unknown_layout());
        }
        Ok(Self { address, buffers })
    }

    /// Fill `bytes` with the descriptors from index `first` on.
    ///
    /// # Errors
    /// The server has ended or restarted.
    pub fn read(&self, server: &Server, first: usize, bytes: &mut [u8]) -> Result<()> {
        // Where the pointer is not a pointer, the sum need not be an address: reading fails then.
        server.read(
            self.address.wrapping_add((first * DESCRIPTOR_BYTES) as u64),
            bytes,
        )
    }
}

/// Check what `Array::read` gave from index `first` on, and pass each used buffer on with its index.
///
/// # Errors
/// These are not descriptors.
pub fn for_each_used(
    bytes: &[u8],
    first: usize,
    mut visit: impl FnMut(usize, Descriptor<'_>),
) -> Result<()> {
    for (i, part) in bytes.chunks_exact(DESCRIPTOR_BYTES).enumerate() {
        let Ok(bytes) = part.try_into() else { continue };
        let descriptor = Descriptor::checked(bytes, first + i).map_err(|e| {
            if Descriptor(bytes).is_being_made() {
                still_starting()
            } else {
                e
            }
        })?;
        if descriptor.is_used() {
            visit(first + i, descriptor);
        }
    }
    Ok(())
}

fn still_starting() -> ProbeError {
    ProbeError::system(
        "the server has no buffers yet: it is still starting",
        io::Error::from_raw_os_error(libc::EAGAIN),
    )
}

fn unknown_layout() -> ProbeError {
    ProbeError::missing(
        "this server's buffer descriptors are not laid out as its version's source has them",
        "read the buffers by SQL: CREATE EXTENSION pg_buffercache",
    )
}

fn unknown_version(version_num: u32) -> ProbeError {
    ProbeError::missing(
        format!(
            "the layout of buffer descriptors is known for PostgreSQL 12 to 19, and this is {}",
            version_num / 10_000
        ),
        "read the buffers by SQL: CREATE EXTENSION pg_buffercache",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A descriptor of relation 1663/5/16384, fork 2, block 77.
    fn bytes(index: u32, state: u32) -> Vec<u8> {
        let mut words = vec![1663, 5, 16384, 2, 77, index, state];
        words.resize(DESCRIPTOR_BYTES / 4, 0xdead_beef);
        words.iter().flat_map(|w: &u32| w.to_le_bytes()).collect()
    }

    fn used(bytes: &[u8], first: usize) -> Result<Vec<(usize, u32, bool, bool)>> {
        let mut seen = Vec::new();
        for_each_used(bytes, first, |index, d| {
            assert_eq!(
                (d.relation().rel, d.relation().fork, d.block()),
                (16384, 2, 77)
            );
            seen.push((index, d.usage_count(), d.is_dirty(), d.is_pinned()));
        })?;
        Ok(seen)
    }

    #[test]
    fn states_are_distinguished() {
        let all: Vec<u8> = [
            bytes(40, USED | 3 << 18),
            bytes(41, 0),
            bytes(42, USED | DIRTY | 5 << 18 | 1),
            // Tag set, page not read yet; and valid without a tag, which never stays: neither is shown by pg_buffercache.
            bytes(43, 1 << 25 | 1),
            bytes(44, 1 << 24),
        ]
        .concat();
        let seen = used(&all, 40).expect("descriptors");
        assert_eq!(seen, [(40, 3, false, false), (42, 5, true, true)]);
    }

    #[test]
    fn what_is_no_descriptor_is_refused() {
        assert!(used(&bytes(7, USED), 8).is_err(), "another number");
        assert!(used(&bytes(7, USED | 6 << 18), 7).is_err(), "usage count 6");
    }

    #[test]
    fn memory_just_made_is_reported_as_a_starting_server() {
        let zeros = vec![0; 2 * DESCRIPTOR_BYTES];
        let mut cleared = vec![0; DESCRIPTOR_BYTES];
        cleared[12..20].fill(0xff);
        for made in [zeros, [bytes(7, 0), cleared].concat()] {
            let first = usize::from(made[BUFFER_NUMBER]);
            let error = used(&made, first).expect_err("no number yet");
            assert!(error.to_string().contains("still starting"), "{error}");
        }
    }
}
