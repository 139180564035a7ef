//! Where the clock sweep stands: `BufferStrategyControl` (src/backend/storage/buffer/freelist.c), read without its lock.
//!
//! The server counts victims in `nextVictimBuffer`, past the number of buffers, until the process that began the new pass
//! folds the counter back and adds one to `completePasses`, under a spinlock (`ClockSweepTick`). Between the two the position
//! looks a whole pass too small, and one that is read in the middle of the fold may look a pass too large. So it is
//! read until two readings agree in the number of passes, without the lock being held at either.
//!
//! One error is left that no single reading shows: a process that is to fold and is not running while others begin another
//! pass folds two passes at once and counts one; the other one is counted when the next process gets the lock. Until then
//! the server's own `StrategySyncStart` is a pass behind, too. Therefore a position behind the one before is read again.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::error::Result;
use crate::server::Server;

/// Readings that follow each other at once: a fold takes less than a microsecond.
const QUICK_READINGS: u32 = 32;
/// Readings with a pause before each, for a process that is to fold and is not running.
const PATIENT_READINGS: u32 = 200;
const PAUSE: Duration = Duration::from_micros(100);
/// The part of `BufferStrategyControl` that is read.
const CONTROL_BYTES: usize = 28;
/// Passes by which the counter is past the pool, at most: it is folded back within microseconds of each pass.
const MOST_PASSES_AHEAD: u32 = 64;
/// Above every index of a process: MAX_BACKENDS is 2^18 - 1, and some hundred thousand may be prepared transactions.
const PROCESSES: i32 = 1 << 20;

/// The result of reading the hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reading {
    /// This server's executable does not show where the hand is, or another layout is there than is known.
    #[default]
    Unknown,
    /// No two readings agreed: the server was always in the middle of a fold.
    Unsettled,
    /// It stands there.
    At(Hand),
}

/// A position of the clock hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hand {
    /// Index, from 0, of the buffer that is looked at next.
    pub next_victim: u32,
    /// How often the hand went around.
    pub complete_passes: u32,
    /// Head of the list of free buffers, -1 when it is empty.
    pub first_free: i32,
}

impl Hand {
    /// Read the hand of a server with `buffers` buffers. Positions of one `Server` never go backwards.
    pub fn read(server: &Server, version_num: u32, buffers: u32) -> Reading {
        let Some(variable) = server.strategy_control() else {
            return Reading::Unknown;
        };
        let mut possible = true;
        let look = || {
            let mut pointer = [0; 8];
            server.read_linked(variable, &mut pointer)?;
            let mut bytes = [0; CONTROL_BYTES];
            server.read(u64::from_le_bytes(pointer), &mut bytes)?;
            let control = Control::of_bytes(&bytes, version_num);
            possible &= control.is_possible(buffers);
            Ok(control)
        };
        let least = server.hand_position.load(Ordering::Relaxed);
        let Ok(settled) = settle(look, buffers, least, || thread::sleep(PAUSE)) else {
            return Reading::Unknown;
        };
        if !possible {
            return Reading::Unknown;
        }
        let Some(hand) = settled else {
            return Reading::Unsettled;
        };
        server
            .hand_position
            .fetch_max(hand.position(buffers), Ordering::Relaxed);
        Reading::At(hand)
    }

    /// Return how many buffers the hand has passed since the server made its shared memory.
    pub fn position(&self, buffers: u32) -> u64 {
        u64::from(self.complete_passes) * u64::from(buffers) + u64::from(self.next_victim)
    }
}

/// What lies in the server's memory.
#[derive(Debug, Clone, Copy)]
struct Control {
    locked: bool,
    /// Not folded: it may be past the number of buffers.
    next_victim: u32,
    complete_passes: u32,
    first_free: i32,
    /// Index of the process that the next allocation wakes up, the background writer; -1 for none.
    woken: i32,
}

impl Control {
    fn of_bytes(bytes: &[u8; CONTROL_BYTES], version_num: u32) -> Self {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        // Version 19 has no list of free buffers, so that what came after it moved up (commit 2c789405275).
        let (complete_passes, first_free, woken) = if version_num < 190_000 {
            (word(16), word(8) as i32, word(24) as i32)
        } else {
            (word(8), -1, word(16) as i32)
        };
        Self {
            // slock_t has one byte on x86-64, four elsewhere, the first of which is not zero while it is held (s_lock.h).
            locked: bytes[0] != 0,
            next_victim: word(4),
            complete_passes,
            first_free,
            woken,
        }
    }

    /// Return whether the words can be what they are taken for; else the layout is another one.
    fn is_possible(&self, buffers: u32) -> bool {
        let first = u32::try_from(self.first_free);
        (self.first_free == -1 || first.is_ok_and(|first| first < buffers))
            && (-1..PROCESSES).contains(&self.woken)
            && self.next_victim / buffers.max(1) <= MOST_PASSES_AHEAD
    }

    /// Return whether the hand cannot have been folded back between this reading and the later one.
    fn agrees_with(&self, later: &Self) -> bool {
        !self.locked
            && !later.locked
            && self.complete_passes == later.complete_passes
            && self.next_victim <= later.next_victim
    }

    fn hand(&self, buffers: u32) -> Option<Hand> {
        Some(Hand {
            next_victim: self.next_victim.checked_rem(buffers)?,
            complete_passes: self
                .complete_passes
                .wrapping_add(self.next_victim.checked_div(buffers)?),
            first_free: self.first_free,
        })
    }
}

/// Read until two readings agree on a position that is not before `least`; nothing if they never do.
fn settle(
    mut look: impl FnMut() -> Result<Control>,
    buffers: u32,
    least: u64,
    mut pause: impl FnMut(),
) -> Result<Option<Hand>> {
    let mut before = look()?;
    for reading in 0..QUICK_READINGS + PATIENT_READINGS {
        if reading >= QUICK_READINGS {
            pause();
        }
        let now = look()?;
        if before.agrees_with(&now) {
            if let Some(hand) = now.hand(buffers) {
                if hand.position(buffers) >= least {
                    return Ok(Some(hand));
                }
            }
        }
        before = now;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

    use super::*;
    use crate::memory::Memory;

    const BUFFERS: u32 = 16;

    fn control(locked: u8, next_victim: u32, complete_passes: u32) -> Control {
        let mut bytes = [0; CONTROL_BYTES];
        bytes[0] = locked;
        bytes[4..8].copy_from_slice(&next_victim.to_le_bytes());
        bytes[8..12].copy_from_slice(&(-1i32).to_le_bytes());
        bytes[16..20].copy_from_slice(&complete_passes.to_le_bytes());
        Control::of_bytes(&bytes, 180_000)
    }

    /// Settle on these readings, the last of which repeats; return the position and how many readings it took.
    fn settled(readings: &[Control], least: u64) -> (Option<u64>, usize) {
        let mut taken = 0;
        let look = || {
            let reading = readings[taken.min(readings.len() - 1)];
            taken += 1;
            Ok(reading)
        };
        let hand = settle(look, BUFFERS, least, || ()).expect("readable");
        (hand.map(|h| h.position(BUFFERS)), taken)
    }

    #[test]
    fn a_hand_that_stands_or_moves_is_read_twice() {
        assert_eq!(settled(&[control(0, 3, 7)], 0), (Some(115), 2));
        let moved = [control(0, 3, 7), control(0, 9, 7)];
        assert_eq!(settled(&moved, 0), (Some(121), 2));
        // Not folded yet: 18 is the next pass's third buffer.
        assert_eq!(settled(&[control(0, 18, 7)], 0), (Some(130), 2));
    }

    #[test]
    fn a_fold_in_the_middle_is_waited_for() {
        let folding = [
            control(1, 17, 7), // about to fold
            control(1, 1, 7),  // folded, not counted: a pass too small
            control(1, 1, 7),
            control(0, 1, 8),
            control(0, 2, 8),
        ];
        assert_eq!(settled(&folding, 0), (Some(130), 5));
        // Folded between the readings of its two words: a pass too large.
        let torn = [control(0, 17, 8), control(0, 2, 8)];
        assert_eq!(settled(&torn, 0), (Some(130), 3));
    }

    #[test]
    fn a_position_before_the_last_one_is_not_believed() {
        let behind = [control(0, 3, 6), control(0, 4, 6), control(0, 4, 7)];
        assert_eq!(settled(&behind, 116), (Some(116), 4));
        let (hand, taken) = settled(&behind[..2], 116);
        assert_eq!(hand, None);
        assert_eq!(taken as u32, 1 + QUICK_READINGS + PATIENT_READINGS);
    }

    #[test]
    fn words_that_cannot_be_show_another_layout() {
        let right = control(0, 3, 7);
        assert!(right.is_possible(BUFFERS));
        for (first_free, possible) in [(-1, true), (0, true), (15, true), (16, false), (-2, false)]
        {
            let control = Control {
                first_free,
                ..right
            };
            assert_eq!(control.is_possible(BUFFERS), possible);
        }
        for (woken, possible) in [(-1, true), (120, true), (-2, false), (PROCESSES, false)] {
            let control = Control { woken, ..right };
            assert_eq!(control.is_possible(BUFFERS), possible);
        }
        for (next_victim, possible) in [(40, true), (65 * BUFFERS, false), (u32::MAX, false)] {
            let control = Control {
                next_victim,
                ..right
            };
            assert_eq!(control.is_possible(BUFFERS), possible);
        }
    }

    #[test]
    fn version_19_has_its_passes_where_the_free_list_was() {
        let mut bytes = [0; CONTROL_BYTES];
        bytes[4] = 5;
        bytes[8] = 9;
        let control = Control::of_bytes(&bytes, 190_000);
        let hand = control.hand(BUFFERS).expect("buffers");
        assert_eq!((hand.position(BUFFERS), hand.first_free), (149, -1));
        assert_eq!(control.hand(0), None);
    }

    /// The server's `BufferStrategyControl` with the words that its clock sweep uses.
    #[repr(C)]
    #[derive(Default)]
    struct Shared {
        lock: AtomicU32,
        next_victim: AtomicU32,
        first_free: u32,
        last_free: u32,
        complete_passes: AtomicU32,
        allocations: u32,
        woken: u32,
    }

    impl Shared {
        /// Do as `ClockSweepTick`; `delay` is somewhere between its steps.
        fn tick(&self, delay: impl Fn()) {
            let victim = self.next_victim.fetch_add(1, Ordering::SeqCst);
            if victim < BUFFERS || victim % BUFFERS != 0 {
                return;
            }
            delay();
            let mut expected = victim + 1;
            loop {
                while self.lock.swap(1, Ordering::Acquire) != 0 {
                    std::hint::spin_loop();
                }
                let folded = self.next_victim.compare_exchange(
                    expected,
                    expected % BUFFERS,
                    Ordering::SeqCst,
                    Ordering::SeqCst,
                );
                delay();
                if folded.is_ok() {
                    self.complete_passes.fetch_add(1, Ordering::Relaxed);
                }
                self.lock.store(0, Ordering::Release);
                match folded {
                    Ok(_) => return,
                    Err(found) => expected = found,
                }
            }
        }
    }

    fn spin(rounds: u32) {
        for _ in 0..rounds {
            std::hint::spin_loop();
        }
    }

    /// Ends the threads that look at it when it goes, also when a test fails.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn positions_of_a_fast_hand_never_go_backwards_and_never_ahead() {
        let shared = Shared::default();
        let memory =
            Memory::open(std::process::id(), Path::new("/proc/self/mem")).expect("our own memory");
        let (stop, begun) = (AtomicBool::new(false), AtomicU64::new(0));
        let look = || {
            let mut bytes = [0; CONTROL_BYTES];
            memory.read(std::ptr::from_ref(&shared) as u64, &mut bytes)?;
            Ok(Control::of_bytes(&bytes, 180_000))
        };
        let plain = |control: Control| control.hand(BUFFERS).expect("buffers").position(BUFFERS);
        let (mut settled_last, mut plain_last) = (0, 0);
        let (mut settled_read, mut plain_backwards) = (0, 0);
        thread::scope(|scope| {
            let _stop = Stop(&stop);
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        begun.fetch_add(1, Ordering::SeqCst);
                        shared.tick(|| spin(50));
                        // Without a pause several passes begin during most folds, and then nothing agrees for long.
                        spin(10);
                    }
                });
            }
            while settled_read < 20_000 || plain_backwards == 0 {
                let position = plain(look().expect("readable"));
                plain_backwards += u32::from(position < plain_last);
                plain_last = position;
                let hand = settle(look, BUFFERS, settled_last, || thread::sleep(PAUSE));
                if let Some(hand) = hand.expect("readable") {
                    let position = hand.position(BUFFERS);
                    assert!(position >= settled_last, "{position} after {settled_last}");
                    let most = begun.load(Ordering::SeqCst);
                    assert!(position <= most, "{position} of {most}");
                    settled_last = position;
                    settled_read += 1;
                }
            }
        });
        assert!(settled_last > 1000);
    }
}
