//! The contents of the buffers, read from the server's memory: no work for the server, 64 bytes a buffer for us.
//!
//! No lock is taken: a descriptor is consistent in itself except while its page is exchanged; the whole is
//! not the state at one instant.

use crate::clock::monotonic_ns;
use crate::descriptor::{
    for_each_used, Array, Descriptor, BUFFER_NUMBER, DESCRIPTOR_BYTES, KNOWN_VERSIONS, STATE,
};
use crate::error::Result;
use crate::hand::{self, Hand};
use crate::programs::Descriptors;
use crate::server::Server;

const CHUNK_BUFFERS: usize = 1 << 12;

/// Which blocks are kept: those whose number, shifted by that of their relation, is among the taken ones
/// (python/pgsweep/evidence/sampling.py). So what is read of a pool of any size stays small.
#[derive(Debug, Clone)]
pub struct Sample {
    taken: Vec<bool>,
}

impl Sample {
    /// Take these of each `modulus` blocks; numbers that are not below it take nothing.
    #[must_use]
    pub fn new(modulus: usize, offsets: &[usize]) -> Self {
        let mut taken = vec![false; modulus.max(1)];
        for &offset in offsets {
            if let Some(one) = taken.get_mut(offset) {
                *one = true;
            }
        }
        Self { taken }
    }

    fn holds(&self, rel: u32, block: u32) -> bool {
        self.taken[(u64::from(rel) + u64::from(block)) as usize % self.taken.len()]
    }
}

/// The used buffers at one time, or a sample of them; all vectors are parallel.
#[derive(Debug, Default, Clone)]
pub struct Pool {
    /// Number of the buffer as pg_buffercache has it, from 1.
    pub frame: Vec<i32>,
    /// Tablespace.
    pub spc: Vec<u32>,
    /// Database.
    pub db: Vec<u32>,
    /// Relation file number.
    pub rel: Vec<u32>,
    /// Fork.
    pub fork: Vec<u8>,
    /// Block.
    pub block: Vec<u32>,
    /// Usage count.
    pub usage_count: Vec<u8>,
    /// Whether the page differs from the one on disk.
    pub dirty: Vec<bool>,
    /// Whether somebody uses it right now.
    pub pinned: Vec<bool>,
    /// Number of buffers, used or not.
    pub buffers: u32,
    /// Number of used buffers, in the sample or not.
    pub used: u32,
    /// Number of those with usage count 0.
    pub zero: u32,
    /// The clock hand.
    pub hand: hand::Reading,
    /// When reading began, in nanoseconds of the monotonic clock.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// Read the pool of a server, or a sample of its blocks.
///
/// # Errors
/// A version whose descriptors are different, or the memory cannot be read.
pub fn read(server: &Server, version_num: u32, sample: Option<&Sample>) -> Result<Pool> {
    let array = Array::of(server, version_num)?;
    let mut pool = Pool {
        buffers: array.buffers,
        begin_ns: monotonic_ns(),
        hand: Hand::read(server, version_num, array.buffers),
        ..Pool::default()
    };
    let mut bytes = vec![0; CHUNK_BUFFERS.min(array.buffers as usize) * DESCRIPTOR_BYTES];
    let mut first = 0;
    while first < array.buffers as usize {
        let count = CHUNK_BUFFERS.min(array.buffers as usize - first);
        let part = &mut bytes[..count * DESCRIPTOR_BYTES];
        array.read(server, first, part)?;
        for_each_used(part, first, |index, descriptor| {
            pool.add(descriptor, index, sample);
        })?;
        first += count;
    }
    pool.end_ns = monotonic_ns();
    Ok(pool)
}

/// Return where the states of buffers lie, if the layout of descriptors is the one known here.
pub fn descriptors(server: &Server, version_num: u32) -> Option<Descriptors> {
    if !KNOWN_VERSIONS.contains(&version_num) || server.variable_u32("NBuffers").ok()? < 2 {
        return None;
    }
    let address = server.variable_pointer("BufferDescriptors").ok()?;
    let mut second = [0; 4];
    let at = address.wrapping_add((DESCRIPTOR_BYTES + BUFFER_NUMBER) as u64);
    server.read(at, &mut second).ok()?;
    (u32::from_le_bytes(second) == 1).then_some(Descriptors {
        address,
        size_bits: DESCRIPTOR_BYTES.trailing_zeros() as i32,
        state_offset: STATE as i32,
    })
}

impl Pool {
    fn add(&mut self, descriptor: Descriptor<'_>, index: usize, sample: Option<&Sample>) {
        let relation = descriptor.relation();
        self.used += 1;
        self.zero += u32::from(descriptor.usage_count() == 0);
        if sample.is_some_and(|sample| !sample.holds(relation.rel, descriptor.block())) {
            return;
        }
        self.frame.push(index as i32 + 1);
        self.spc.push(relation.spc);
        self.db.push(relation.db);
        self.rel.push(relation.rel);
        self.fork.push(relation.fork as u8);
        self.block.push(descriptor.block());
        self.usage_count.push(descriptor.usage_count() as u8);
        self.dirty.push(descriptor.is_dirty());
        self.pinned.push(descriptor.is_pinned());
    }
}
