//! Rings: the few buffers to which a large scan, a bulk write or VACUUM is confined.

use crate::buffers::{BufferPool, Lane};

/// The ring of one scan or command: `freelist.c`, `GetBufferFromRing` and `AddBufferToRing`.
#[derive(Clone, Debug)]
pub(crate) struct StrategyRing {
    /// Buffers, filled one by one during the first round.
    slots: Vec<u32>,
    capacity: u32,
    next: usize,
}

impl StrategyRing {
    pub fn new(capacity: u32) -> Self {
        Self {
            slots: Vec::new(),
            capacity,
            next: 0,
        }
    }

    /// Bring an absent page into the pool, into a buffer of the ring where possible; return the
    /// evicted page, as [`BufferPool::place`] does.
    pub fn load<const L: usize>(
        &mut self,
        buffers: &mut BufferPool,
        states: &mut [[u8; L]],
        lane: Lane,
        page: u32,
    ) -> u32 {
        let slot = self.next;
        let filled = slot < self.slots.len();
        let buffer = if filled && buffers.reclaim(states, lane, self.slots[slot]) {
            self.slots[slot]
        } else {
            // The slot is empty, or its page "escapes": it stays in the pool.
            buffers.victim(states, lane)
        };
        if filled {
            self.slots[slot] = buffer;
        } else {
            self.slots.push(buffer);
        }
        self.next = (slot + 1) % self.capacity as usize;
        buffers.admit(states, lane, page, buffer)
    }
}
