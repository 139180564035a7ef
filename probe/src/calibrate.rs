//! What one event costs on this machine, measured briefly on our own process before a server is touched.
//!
//! The cost is nearly all the processor's trap, which differs tenfold between machines (a virtual machine whose host must
//! see every trap is the worst). So a function of our own is probed with the very program that a server gets, and
//! called with and without. It is written for x86-64, as the probes are.

use std::arch::global_asm;
use std::fs;
use std::hint::black_box;
use std::path::PathBuf;

use crate::bpf::{self, Attachment, ProbePoint};
use crate::call_times::{self, Counters, Functions, TimedCall};
use crate::clock::thread_processor_ns;
use crate::error::{ProbeError, Result};
use crate::event::Kind;
use crate::programs::{build, Common, Words};
use crate::ring::RingBuffer;
use iced_x86::Register;

// A function that begins as BufTableLookup does in most servers, with an instruction that the kernel emulates.
global_asm!(
    ".pushsection .text.pgsweep_probe_target,\"ax\",@progbits",
    ".balign 16",
    ".hidden pgsweep_probe_target",
    ".globl pgsweep_probe_target",
    ".type pgsweep_probe_target,@function",
    "pgsweep_probe_target:",
    "push rbp",
    "mov rbp, rsp",
    "pop rbp",
    "ret",
    ".size pgsweep_probe_target, .-pgsweep_probe_target",
    ".popsection",
);

extern "C" {
    fn pgsweep_probe_target(tag: *const u32);
}

/// Stands for the variable that identifies a cluster.
static IDENTITY: u64 = 0x7067_7377_6565_7021;

const CALLS: u32 = 4_000;
const ROUNDS: u32 = 5;
const RING_BYTES: u32 = 1 << 21;

/// Return the processor time of a call, the mean of the quickest round.
///
/// A clock on the wall would count what other programs run meanwhile: on a busy host each round is interrupted.
fn nanoseconds_a_call() -> f64 {
    let tag = [1u32, 2, 3, 0, 5];
    let round = || {
        let begin = thread_processor_ns();
        for _ in 0..CALLS {
            // SAFETY: the function above follows the C calling convention and does not use its argument; the program
            // probes read 20 bytes behind the pointer, which `tag` has.
            unsafe { pgsweep_probe_target(black_box(tag.as_ptr())) };
        }
        (thread_processor_ns() - begin) as f64 / f64::from(CALLS)
    };
    (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// Time a function of our own as reads of a server are.
///
/// # Errors
/// The kernel does not allow probes.
pub fn timed_call(attachment: Attachment) -> Result<TimedCall> {
    let (path, counted_offset) = file_offset_of(pgsweep_probe_target as *const () as u64)?;
    let functions = Functions {
        identity: (std::ptr::from_ref(&IDENTITY) as u64, IDENTITY),
        path,
        counted_offset,
        before_offset: None,
    };
    let counters = Counters::new()?;
    nanoseconds_a_call();
    let without = nanoseconds_a_call();
    let probes = call_times::attach(&functions, &counters, attachment)?;
    let with = nanoseconds_a_call();
    drop(probes);
    let seen = counters.histogram()?;
    // The median: what interrupted one of them is not what timing takes.
    let middle = CALLS * ROUNDS / 2;
    let mut before = 0;
    let bucket = seen.calls.iter().position(|calls| {
        before += calls;
        before >= u64::from(middle)
    });
    let counted_ns = bucket.map_or(0.0, |at| seen.ns[at] as f64 / seen.calls[at] as f64);
    Ok(TimedCall {
        counted_ns,
        cost_ns: (with - without).max(0.0),
    })
}

/// Return what one event costs the probed process, in nanoseconds.
///
/// # Errors
/// The kernel does not allow probes.
pub fn event_cost_ns(attachment: Attachment) -> Result<f64> {
    let address = pgsweep_probe_target as *const () as u64;
    let (path, offset) = file_offset_of(address)?;
    let ring = RingBuffer::map(bpf::create_ring(RING_BYTES)?, RING_BYTES)?;
    let counters = bpf::create_counters(1)?;
    let common = Common {
        ring_fd: ring.fd(),
        counters_fd: std::os::fd::AsRawFd::as_raw_fd(&counters),
        identity_address: std::ptr::from_ref(&IDENTITY) as u64,
        identity: IDENTITY,
        databases: Vec::new(),
        // Nobody calls from address zero; it is there so that the return address is looked at as on a server.
        ignored_callers: vec![(address.wrapping_sub(1 << 20), 1)],
    };
    let code = build(
        &common,
        Kind::Lookup,
        Words::TagWithCaller(Register::RDI, 0),
    );
    nanoseconds_a_call();
    let without = nanoseconds_a_call();
    let probe = bpf::attach(&code, attachment, &path, offset, ProbePoint::Instruction)?;
    nanoseconds_a_call();
    let with = nanoseconds_a_call();
    drop(probe);
    Ok((with - without).max(0.0))
}

/// Return the file that an address of our own was loaded from, and the offset in it.
fn file_offset_of(address: u64) -> Result<(PathBuf, u64)> {
    let maps = fs::read_to_string("/proc/self/maps")
        .map_err(|e| ProbeError::system("cannot read /proc/self/maps", e))?;
    maps.lines()
        .find_map(|line| {
            let mut fields = line.split_whitespace();
            let (start, end) = fields.next()?.split_once('-')?;
            let start = u64::from_str_radix(start, 16).ok()?;
            let end = u64::from_str_radix(end, 16).ok()?;
            let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
            let path = line.find('/').map(|at| PathBuf::from(&line[at..]))?;
            (start..end)
                .contains(&address)
                .then(|| (path, address - start + offset))
        })
        .ok_or_else(|| ProbeError::missing("our own code is in no file", "use --source sql"))
}
