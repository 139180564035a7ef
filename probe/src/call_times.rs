//! How long calls of a function take: a histogram that the kernel keeps, and nothing else.
//!
//! Two probes, where the function begins and where it has returned; the time between them is counted in a map, so that a
//! call costs two traps and no event.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use crate::asm::{Assembler, Helper, If, Reg, Width};
use crate::bpf::{self, Attached, Attachment, ProbePoint};
use crate::error::Result;
use crate::programs::only_cluster;

/// Buckets to each doubling of the time, as a power of two.
const PARTS_BITS: i32 = 2;
const PARTS: u64 = 1 << PARTS_BITS;
/// Doublings from `PARTS` nanoseconds on: to 17 seconds, beyond which all is in the last bucket.
const DOUBLINGS: usize = 32;
/// Number of buckets.
pub const BUCKETS: usize = DOUBLINGS << PARTS_BITS;
const WORDS: usize = 2 * BUCKETS;
/// Processes that are in the function at the same time; those beyond are not counted.
const MOST_CALLERS: u32 = 16 << 10;

const SCRATCH: i16 = -8;
const CALLER: i16 = -16;
const TIME: i16 = -24;

/// Return the times that a bucket holds, in nanoseconds: at least, and less than.
pub fn bucket_ns(bucket: usize) -> (u64, u64) {
    let lowest = |bucket: usize| match bucket {
        0 => 0,
        _ => (PARTS + bucket as u64 % PARTS) << (bucket >> PARTS_BITS),
    };
    let end = if bucket + 1 == BUCKETS {
        u64::MAX
    } else {
        lowest(bucket + 1)
    };
    (lowest(bucket), end)
}

/// Calls that were timed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// How many, by bucket.
    pub calls: [u64; BUCKETS],
    /// The nanoseconds of all of them, by bucket.
    pub ns: [u64; BUCKETS],
}

/// What timing a function means for a call of it that does nothing, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimedCall {
    /// How long it takes as counted.
    pub counted_ns: f64,
    /// How much longer it takes than without.
    pub cost_ns: f64,
}

/// Where functions begin in a file, and what identifies the processes in which they are timed.
#[derive(Debug, Clone)]
pub struct Functions {
    /// Address of a variable, and its value in these processes (8 bytes).
    pub identity: (u64, u64),
    /// The file.
    pub path: PathBuf,
    /// Offset of the function whose time is counted.
    pub counted_offset: u64,
    /// Offset of another function, where there is such: its time counts to the next call of the first by the same process.
    pub before_offset: Option<u64>,
}

/// The counters of a histogram in the kernel.
#[derive(Debug)]
pub struct Counters(OwnedFd);

impl Counters {
    /// Make counters that are 0.
    ///
    /// # Errors
    /// The kernel does not let us.
    pub fn new() -> Result<Self> {
        bpf::create_counters(WORDS as u32).map(Self)
    }

    /// Return what was counted.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn histogram(&self) -> Result<Histogram> {
        let words: [u64; WORDS] = bpf::read_counters(&self.0)?;
        let mut found = Histogram {
            calls: [0; BUCKETS],
            ns: [0; BUCKETS],
        };
        found.calls.copy_from_slice(&words[..BUCKETS]);
        found.ns.copy_from_slice(&words[BUCKETS..]);
        Ok(found)
    }
}

/// Time functions until what is returned is dropped. Calls that have begun already are not counted.
///
/// # Errors
/// The kernel refuses.
pub fn attach(
    functions: &Functions,
    counters: &Counters,
    attachment: Attachment,
) -> Result<Vec<Attached>> {
    let identity = functions.identity;
    // Maps for each time, so that nothing is left over from the time before.
    let (before, counted, spent) = (hash()?, hash()?, hash()?);
    let taken = Taken::Counted {
        counters_fd: counters.0.as_raw_fd(),
        spent_fd: functions.before_offset.map(|_| spent.as_raw_fd()),
    };
    let offset = functions.counted_offset;
    let mut programs = vec![
        (
            returned(identity, &counted, taken),
            offset,
            ProbePoint::Return,
        ),
        (begun(identity, &counted), offset, ProbePoint::Instruction),
    ];
    if let Some(offset) = functions.before_offset {
        let taken = Taken::Spent(spent.as_raw_fd());
        programs.push((
            returned(identity, &before, taken),
            offset,
            ProbePoint::Return,
        ));
        programs.push((begun(identity, &before), offset, ProbePoint::Instruction));
    }
    programs
        .into_iter()
        .map(|(code, offset, point)| bpf::attach(&code, attachment, &functions.path, offset, point))
        .collect()
}

fn hash() -> Result<OwnedFd> {
    bpf::create_hash(MOST_CALLERS)
}

/// What is made of the time that a function took.
#[derive(Debug, Clone, Copy)]
enum Taken {
    /// It is counted, with what its process has spent before.
    Counted {
        counters_fd: i32,
        spent_fd: Option<i32>,
    },
    /// Its process has spent it.
    Spent(i32),
}

/// Keep the process and thread at `CALLER`.
fn caller(a: &mut Assembler) {
    a.call(Helper::GetCurrentPidTgid);
    a.store(Width::Double, Reg::Frame, CALLER, Reg::R0);
}

fn pointer(a: &mut Assembler, to: Reg, at: i16) {
    a.copy(to, Reg::Frame);
    a.add(to, i32::from(at));
}

/// `r0 =` address of the caller's value in a map, null where it has none.
fn lookup(a: &mut Assembler, map_fd: i32) {
    a.set_map(Reg::R1, map_fd);
    pointer(a, Reg::R2, CALLER);
    a.call(Helper::MapLookupElem);
}

fn delete(a: &mut Assembler, map_fd: i32) {
    a.set_map(Reg::R1, map_fd);
    pointer(a, Reg::R2, CALLER);
    a.call(Helper::MapDeleteElem);
}

/// Make what lies at `TIME` the caller's value in a map.
fn update(a: &mut Assembler, map_fd: i32) {
    a.set_map(Reg::R1, map_fd);
    pointer(a, Reg::R2, CALLER);
    pointer(a, Reg::R3, TIME);
    a.set(Reg::R4, 0);
    a.call(Helper::MapUpdateElem);
}

/// Assemble what runs where a function begins: keep the time.
fn begun(identity: (u64, u64), begins: &OwnedFd) -> Vec<u64> {
    let mut a = Assembler::new();
    let out = a.label();
    only_cluster(&mut a, identity, SCRATCH, out);
    caller(&mut a);
    a.call(Helper::KtimeGetNs);
    a.store(Width::Double, Reg::Frame, TIME, Reg::R0);
    update(&mut a, begins.as_raw_fd());
    a.bind(out);
    a.set(Reg::R0, 0);
    a.exit();
    a.finish()
}

/// Assemble what runs where it has returned; r9 is the time that it took, in nanoseconds.
fn returned(identity: (u64, u64), begins: &OwnedFd, taken: Taken) -> Vec<u64> {
    let mut a = Assembler::new();
    let out = a.label();
    only_cluster(&mut a, identity, SCRATCH, out);
    caller(&mut a);
    lookup(&mut a, begins.as_raw_fd());
    a.jump_if(If::Equal, Reg::R0, 0, out);
    a.load(Width::Double, Reg::R7, Reg::R0, 0);
    a.call(Helper::KtimeGetNs);
    a.copy(Reg::R9, Reg::R0);
    a.subtract_register(Reg::R9, Reg::R7);
    delete(&mut a, begins.as_raw_fd());
    match taken {
        Taken::Spent(spent_fd) => {
            let first = a.label();
            lookup(&mut a, spent_fd);
            a.jump_if(If::Equal, Reg::R0, 0, first);
            a.load(Width::Double, Reg::R1, Reg::R0, 0);
            a.add_register(Reg::R9, Reg::R1);
            a.bind(first);
            a.store(Width::Double, Reg::Frame, TIME, Reg::R9);
            update(&mut a, spent_fd);
        }
        Taken::Counted {
            counters_fd,
            spent_fd,
        } => {
            if let Some(spent_fd) = spent_fd {
                let nothing = a.label();
                lookup(&mut a, spent_fd);
                a.jump_if(If::Equal, Reg::R0, 0, nothing);
                a.load(Width::Double, Reg::R1, Reg::R0, 0);
                a.add_register(Reg::R9, Reg::R1);
                delete(&mut a, spent_fd);
                a.bind(nothing);
            }
            count(&mut a, counters_fd);
        }
    }
    a.bind(out);
    a.set(Reg::R0, 0);
    a.exit();
    a.finish()
}

/// Count the time in r9 in its bucket: r7 is the same, shifted to its `PARTS_BITS` + 1 highest bits, r6 by how much.
fn count(a: &mut Assembler, counters_fd: i32) {
    let (longest, shortest, known) = (a.label(), a.label(), a.label());
    a.copy(Reg::R7, Reg::R9);
    a.shift_right(Reg::R7, DOUBLINGS as i32 + PARTS_BITS);
    a.jump_if(If::NotEqual, Reg::R7, 0, longest);
    a.copy(Reg::R7, Reg::R9);
    a.set(Reg::R6, 0);
    a.jump_if(If::Lower, Reg::R7, PARTS as i32, shortest);
    for bits in [16, 8, 4, 2, 1] {
        let next = a.label();
        a.jump_if(If::Lower, Reg::R7, (PARTS as i32) << bits, next);
        a.shift_right(Reg::R7, bits);
        a.add(Reg::R6, bits);
        a.bind(next);
    }
    a.shift_left(Reg::R6, PARTS_BITS);
    a.add_register(Reg::R6, Reg::R7);
    a.add(Reg::R6, -(PARTS as i32));
    a.jump_if(If::Lower, Reg::R6, BUCKETS as i32, known);
    a.bind(longest);
    a.set(Reg::R6, BUCKETS as i32 - 1);
    a.jump(known);
    a.bind(shortest);
    a.set(Reg::R6, 0);
    a.bind(known);
    a.shift_left(Reg::R6, 3);
    a.set(Reg::R2, 1);
    for (first, added) in [(0, Reg::R2), (8 * BUCKETS as u32, Reg::R9)] {
        a.set_map_value(Reg::R1, counters_fd, first);
        a.add_register(Reg::R1, Reg::R6);
        a.atomic_add(Reg::R1, 0, added);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_one_another_and_are_a_quarter_wide_at_most() {
        for bucket in 0..BUCKETS - 1 {
            let ((low, high), (next, _)) = (bucket_ns(bucket), bucket_ns(bucket + 1));
            assert_eq!(high, next);
            assert!(low < high);
            assert!(
                bucket == 0 || (high - low) * PARTS <= low,
                "{low} to {high}"
            );
        }
        assert_eq!(bucket_ns(0), (0, PARTS + 1));
        assert_eq!(bucket_ns(BUCKETS - 1).1, u64::MAX);
        // 100 microseconds lie in [98.3, 114.7): 6 << 14 to 7 << 14 nanoseconds.
        assert_eq!(bucket_ns(4 * 14 + 2), (6 << 14, 7 << 14));
    }
}
