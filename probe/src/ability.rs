//! Whether tracing and peeking would work, determined without attaching a probe or reading the whole pool.
//!
//! The kernel is asked for what a trace needs of it: a ring buffer, and a program that does nothing, loaded and not
//! attached. The server's executable is read for the functions that would be probed.

use crate::bpf::{self, Attachment};
use crate::call_times::TimedCall;
use crate::descriptor::{for_each_used, Array, DESCRIPTOR_BYTES};
use crate::elf::Machine;
use crate::error::{ProbeError, Result};
use crate::server::Server;

/// `r0 = 0; exit` (include/uapi/linux/bpf.h: `BPF_ALU64 | BPF_MOV | BPF_K`, `BPF_JMP | BPF_EXIT`).
const NOTHING: [u64; 2] = [0xb7, 0x95];
/// The smallest ring buffer: one page.
const RING_BYTES: u32 = 4096;
/// Without these no access is seen; the other probes only add detail.
const NEEDED: [&str; 4] = [
    "PgStartTime",
    "BufTableLookup",
    "BufTableInsert",
    "StrategyGetBuffer",
];

/// Ask the kernel whether it lets us trace.
///
/// # Errors
/// It is too old, has no uprobes, is not for x86-64, or we are not privileged.
pub fn kernel_allows_tracing() -> Result<()> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(needs_x86_64());
    }
    bpf::create_ring(RING_BYTES)?;
    if bpf::load_program(&NOTHING, Attachment::Link).is_ok() {
        return Ok(());
    }
    bpf::load_program(&NOTHING, Attachment::PerfEvent)?;
    bpf::uprobe_pmu().map(|_| ())
}

/// Check whether the server has the functions that a trace probes.
///
/// # Errors
/// One is missing, or the server is not for x86-64.
pub fn server_can_be_traced(server: &Server) -> Result<()> {
    machine_can_be_traced(server)?;
    for name in NEEDED {
        server.require(&[name])?;
    }
    Ok(())
}

pub(crate) fn machine_can_be_traced(server: &Server) -> Result<()> {
    if cfg!(not(target_arch = "x86_64")) || server.executable.machine != Machine::X86_64 {
        return Err(needs_x86_64());
    }
    Ok(())
}

/// Return what one event costs the probed process, in nanoseconds; see [`crate::calibrate`].
///
/// # Errors
/// The kernel does not allow probes, or is not for x86-64.
pub fn event_cost_ns(attachment: Attachment) -> Result<f64> {
    #[cfg(target_arch = "x86_64")]
    return crate::calibrate::event_cost_ns(attachment);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = attachment;
        Err(needs_x86_64())
    }
}

/// Return what timing a function means for a call of it; see [`crate::calibrate`].
///
/// # Errors
/// As `event_cost_ns`.
pub fn timed_call(attachment: Attachment) -> Result<TimedCall> {
    #[cfg(target_arch = "x86_64")]
    return crate::calibrate::timed_call(attachment);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = attachment;
        Err(needs_x86_64())
    }
}

/// Where probes go, and which register holds what there, is found by decoding the server's instructions; which of them the
/// kernel emulates, so that a probe costs one trap and not two, is known for x86-64 only.
fn needs_x86_64() -> ProbeError {
    ProbeError::missing(
        "tracing needs a server and a kernel for x86-64",
        "use --source peek on the server's host, or --source sql",
    )
}

/// Return the number of buffers, after checking the first and the last descriptor.
///
/// # Errors
/// The descriptors are not laid out as known, or the server's memory cannot be read.
pub fn pool_buffers(server: &Server, version_num: u32) -> Result<u32> {
    let array = Array::of(server, version_num)?;
    for index in [0, array.buffers as usize - 1] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        array.read(server, index, &mut bytes)?;
        for_each_used(&bytes, index, |_, _| ())?;
    }
    Ok(array.buffers)
}
