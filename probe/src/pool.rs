//! What lies in the buffers, read from the server's memory: no work for the server, and 64 bytes a buffer for us.
//!
//! No lock is taken: a descriptor is consistent in itself but for the instant in which its page is exchanged, the whole is
//! not a picture of one moment.

use iced_x86::{Code, Decoder, DecoderOptions};

use crate::clock::monotonic_ns;
use crate::descriptor::{
    for_each_used, Array, Descriptor, BUFFER_NUMBER, DESCRIPTOR_BYTES, KNOWN_VERSIONS, STATE,
};
use crate::error::Result;
use crate::programs::Descriptors;
use crate::server::Server;

const CHUNK_BUFFERS: usize = 1 << 12;

/// The used buffers at one moment; all vectors are parallel.
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
    /// The clock hand, where it can be found.
    pub hand: Option<Hand>,
    /// When reading began, in nanoseconds of the monotonic clock.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// Where the clock sweep stands (`BufferStrategyControl`, src/backend/storage/buffer/freelist.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hand {
    /// Index, from 0, of the buffer that is looked at next.
    pub next_victim: u32,
    /// How often the hand went around.
    pub complete_passes: u32,
    /// Head of the list of free buffers, -1 when it is empty.
    pub first_free: i32,
}

/// Read the pool of a server.
///
/// # Errors
/// A version whose descriptors are different, or the memory cannot be read.
pub fn read(server: &Server, version_num: u32) -> Result<Pool> {
    let array = Array::of(server, version_num)?;
    let mut pool = Pool {
        buffers: array.buffers,
        begin_ns: monotonic_ns(),
        hand: hand(server, version_num, array.buffers),
        ..Pool::default()
    };
    let mut bytes = vec![0; CHUNK_BUFFERS.min(array.buffers as usize) * DESCRIPTOR_BYTES];
    let mut first = 0;
    while first < array.buffers as usize {
        let count = CHUNK_BUFFERS.min(array.buffers as usize - first);
        let part = &mut bytes[..count * DESCRIPTOR_BYTES];
        array.read(server, first, part)?;
        for_each_used(part, first, |index, descriptor| pool.add(descriptor, index))?;
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
    let at = address + (DESCRIPTOR_BYTES + BUFFER_NUMBER) as u64;
    server.read(at, &mut second).ok()?;
    (u32::from_le_bytes(second) == 1).then_some(Descriptors {
        address,
        size_bits: DESCRIPTOR_BYTES.trailing_zeros() as i32,
        state_offset: STATE as i32,
    })
}

impl Pool {
    fn add(&mut self, descriptor: Descriptor<'_>, index: usize) {
        let relation = descriptor.relation();
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

/// Find the clock hand. `StrategyControl` is private to freelist.c, so that a stripped server has no symbol for it; but
/// `StrategySyncStart` is exported, and the first thing it does is to lock what `StrategyControl` points to.
pub fn hand(server: &Server, version_num: u32, buffers: u32) -> Option<Hand> {
    let function = server.executable.symbol("StrategySyncStart")?;
    let code = server.executable.bytes_at(function.vaddr, 64);
    let variable = Decoder::with_ip(64, code, function.vaddr, DecoderOptions::NONE)
        .into_iter()
        .find(|i| i.code() == Code::Mov_r64_rm64 && i.is_ip_rel_memory_operand())?
        .ip_rel_memory_address();
    let mut pointer = [0; 8];
    server.read_linked(variable, &mut pointer).ok()?;
    let mut control = [0; 20];
    server
        .read(u64::from_le_bytes(pointer), &mut control)
        .ok()?;
    let word = |at: usize| {
        u32::from_le_bytes([
            control[at],
            control[at + 1],
            control[at + 2],
            control[at + 3],
        ])
    };
    // Version 19 has no list of free buffers, so that what came after it moved up (commit 2c789405275).
    let (passes, first_free) = if version_num < 190_000 {
        (word(16), word(8) as i32)
    } else {
        (word(8), -1)
    };
    // The counter runs past the number of buffers until somebody folds it back.
    Some(Hand {
        next_victim: word(4).checked_rem(buffers)?,
        complete_passes: passes.wrapping_add(word(4) / buffers),
        first_free,
    })
}
