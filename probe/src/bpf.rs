//! The bpf(2) system call: maps, programs, and attaching them to instructions of a running server.
//!
//! Everything made here is a file descriptor and nothing else: when the process ends, in any way, the kernel
//! removes the probes. They are attached and removed in a separate process (`sibling`), so that a kill leaves no breakpoint.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use crate::error::{ProbeError, Result};
use crate::sibling::in_sibling;

// include/uapi/linux/bpf.h
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_MAP_TYPE_HASH: u32 = 1;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_RINGBUF: u32 = 27;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
const BPF_F_UPROBE_MULTI_RETURN: u32 = 1;
// include/uapi/linux/perf_event.h
const PERF_EVENT_IOC_ENABLE: libc::c_ulong = 0x2400;
const PERF_EVENT_IOC_SET_BPF: libc::c_ulong = 0x4004_2408;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_ATTR_SIZE_VER1: u64 = 72;

/// `union bpf_attr` as 64-bit words; commands read the part they know.
type Attributes = [u64; 18];

fn call_bpf(command: libc::c_long, attributes: &mut Attributes) -> libc::c_long {
    // SAFETY: the pointer and the size describe `attributes`, which outlives the call; addresses inside it are made by
    // the callers from buffers that outlive the call too. The kernel checks everything else.
    unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            attributes.as_mut_ptr(),
            std::mem::size_of::<Attributes>(),
        )
    }
}

fn bpf(command: libc::c_long, attributes: &mut Attributes) -> io::Result<i32> {
    let result = call_bpf(command, attributes);
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as i32)
    }
}

fn bpf_fd(command: libc::c_long, attributes: &mut Attributes) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    // SAFETY: the command has just returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | ((high as u64) << 32)
}

fn no_bpf(what: &str, source: io::Error) -> ProbeError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => ProbeError::missing(
            format!("the kernel does not let us {what}: {source}"),
            "run as root (or with CAP_BPF and CAP_PERFMON), outside of a container's restrictions; or use --source sql",
        ),
        Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP) => ProbeError::missing(
            format!("this kernel cannot {what}: {source}"),
            "tracing needs Linux 5.8 or newer with CONFIG_BPF_SYSCALL and CONFIG_UPROBES; use --source sql",
        ),
        _ => ProbeError::system(format!("cannot {what}"), source),
    }
}

/// Make a ring buffer map of the given size in bytes (a power of two, at least a page).
///
/// # Errors
/// The kernel is too old, or we are not privileged, or there is too little memory.
pub fn create_ring(size_bytes: u32) -> Result<OwnedFd> {
    let mut attributes = Attributes::default();
    attributes[0] = pair(BPF_MAP_TYPE_RINGBUF, 0);
    attributes[1] = pair(0, size_bytes);
    bpf_fd(BPF_MAP_CREATE, &mut attributes).map_err(|e| no_bpf("make an eBPF ring buffer", e))
}

/// Make an array map with one value of `words` 64-bit counters.
///
/// # Errors
/// As `create_ring`.
pub fn create_counters(words: u32) -> Result<OwnedFd> {
    let mut attributes = Attributes::default();
    attributes[0] = pair(BPF_MAP_TYPE_ARRAY, 4);
    attributes[1] = pair(words * 8, 1);
    bpf_fd(BPF_MAP_CREATE, &mut attributes).map_err(|e| no_bpf("make an eBPF array", e))
}

/// Make a hash map from 64-bit keys to 64-bit values.
///
/// # Errors
/// As `create_ring`.
pub fn create_hash(most_entries: u32) -> Result<OwnedFd> {
    let mut attributes = Attributes::default();
    attributes[0] = pair(BPF_MAP_TYPE_HASH, 8);
    attributes[1] = pair(8, most_entries);
    bpf_fd(BPF_MAP_CREATE, &mut attributes).map_err(|e| no_bpf("make an eBPF hash map", e))
}

/// Read the counters of an array map made by `create_counters(WORDS)`.
///
/// # Errors
/// The descriptor is no such map.
pub fn read_counters<const WORDS: usize>(map: &OwnedFd) -> Result<[u64; WORDS]> {
    let key = 0u32;
    let mut values = [0u64; WORDS];
    let mut attributes = Attributes::default();
    attributes[0] = pair(map.as_raw_fd() as u32, 0);
    attributes[1] = std::ptr::from_ref(&key) as u64;
    attributes[2] = values.as_mut_ptr() as u64;
    bpf(BPF_MAP_LOOKUP_ELEM, &mut attributes)
        .map_err(|e| ProbeError::system("cannot read the counters of the probes", e))?;
    Ok(values)
}

/// How a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// `BPF_LINK_CREATE` with `uprobe_multi` (Linux 6.6): nothing between the breakpoint and the program.
    Link,
    /// `perf_event_open` on the uprobe PMU (Linux 4.17): through the tracing layer.
    PerfEvent,
}

/// Load a program for the given kind of attachment.
///
/// # Errors
/// Not privileged, or the kernel's verifier refused it (its log is in the message).
pub fn load_program(code: &[u64], attachment: Attachment) -> Result<OwnedFd> {
    // Some of the helpers are offered to programs under a GPL-compatible licence only; these programs are offered under
    // the GPL as well as under the project's own licence.
    let licence = c"Dual BSD/GPL";
    let mut log = vec![0u8; 64 * 1024];
    let mut attributes = Attributes::default();
    attributes[0] = pair(BPF_PROG_TYPE_KPROBE, code.len() as u32);
    attributes[1] = code.as_ptr() as u64;
    attributes[2] = licence.as_ptr() as u64;
    attributes[6] = 0x0070_6565_7773_6770; // prog_name: "pgsweep", so that bpftool shows whose it is
    if attachment == Attachment::Link {
        attributes[8] = pair(0, BPF_TRACE_UPROBE_MULTI); // prog_ifindex, expected_attach_type
    }
    match bpf_fd(BPF_PROG_LOAD, &mut attributes) {
        Ok(program) => Ok(program),
        Err(first) => {
            // Once more, now with the verifier's log, to say why.
            attributes[3] = pair(1, log.len() as u32);
            attributes[4] = log.as_mut_ptr() as u64;
            let _ = bpf_fd(BPF_PROG_LOAD, &mut attributes);
            let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
            let text = String::from_utf8_lossy(&log[..end]);
            let last_lines: Vec<&str> = text.lines().rev().take(4).collect();
            Err(no_bpf(
                &format!(
                    "load an eBPF program ({})",
                    last_lines.into_iter().rev().collect::<Vec<_>>().join("; ")
                ),
                first,
            ))
        }
    }
}

/// Which point of a function's execution is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbePoint {
    /// The instruction at the offset is about to be executed.
    Instruction,
    /// The function that begins at the offset has returned.
    Return,
}

/// A program attached to an instruction; detached when dropped.
#[derive(Debug)]
pub struct Attached {
    _program: OwnedFd,
    _event: Probe,
}

/// The descriptor of a uprobe.
#[derive(Debug)]
struct Probe(RawFd);

impl Probe {
    /// Attach a probe by a system call that returns its descriptor.
    ///
    /// # Safety
    /// As for `in_sibling`.
    unsafe fn attach(call: impl FnOnce() -> libc::c_long) -> io::Result<Self> {
        // SAFETY: the caller's; what follows the call reads errno.
        unsafe {
            in_sibling(|| match call() {
                failed if failed < 0 => Err(io::Error::last_os_error()),
                descriptor => Ok(Self(descriptor as RawFd)),
            })
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // SAFETY: a system call alone, and the descriptor is ours.
        unsafe { in_sibling(|| libc::close(self.0)) };
    }
}

/// Load a program and attach it to the instruction at an offset of a file, in all processes that execute it.
///
/// # Errors
/// Not privileged, or a kernel without uprobes, or the verifier's refusal.
pub fn attach(
    code: &[u64],
    attachment: Attachment,
    executable: &Path,
    file_offset: u64,
    point: ProbePoint,
) -> Result<Attached> {
    let program = load_program(code, attachment)?;
    let path = CString::new(executable.as_os_str().as_encoded_bytes()).map_err(|e| {
        ProbeError::system("the server's path has a null byte", io::Error::other(e))
    })?;
    let event = match attachment {
        Attachment::Link => link(&program, &path, file_offset, point)?,
        Attachment::PerfEvent => perf_event(&program, &path, file_offset, point)?,
    };
    Ok(Attached {
        _program: program,
        _event: event,
    })
}

fn link(program: &OwnedFd, path: &CString, file_offset: u64, point: ProbePoint) -> Result<Probe> {
    let offsets = [file_offset];
    let flags = match point {
        ProbePoint::Instruction => 0,
        ProbePoint::Return => BPF_F_UPROBE_MULTI_RETURN,
    };
    let mut attributes = Attributes::default();
    attributes[0] = pair(program.as_raw_fd() as u32, 0);
    attributes[1] = pair(BPF_TRACE_UPROBE_MULTI, 0);
    attributes[2] = path.as_ptr() as u64;
    attributes[3] = offsets.as_ptr() as u64;
    attributes[6] = pair(1, flags);
    // SAFETY: a system call alone.
    unsafe { Probe::attach(|| call_bpf(BPF_LINK_CREATE, &mut attributes)) }
        .map_err(|e| no_bpf("attach an eBPF program to a uprobe", e))
}

/// Return the type number of the kernel's uprobe PMU.
///
/// # Errors
/// The kernel has none.
pub fn uprobe_pmu() -> Result<u32> {
    let file = "/sys/bus/event_source/devices/uprobe/type";
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(ProbeError::system(format!("cannot read {file}"), error));
        }
        other => other.unwrap_or_default(),
    };
    text.trim().parse().map_err(|_| {
        ProbeError::missing(
            format!("this kernel has no uprobes ({file} is not there)"),
            "tracing needs a kernel with CONFIG_UPROBES; use --source sql",
        )
    })
}

fn perf_event(
    program: &OwnedFd,
    path: &CString,
    file_offset: u64,
    point: ProbePoint,
) -> Result<Probe> {
    // struct perf_event_attr: type, size; config (bit 0: return probe, see the PMU's format/retprobe); ...;
    // config1 = path, config2 = offset.
    let mut attributes = [0u64; PERF_ATTR_SIZE_VER1 as usize / 8];
    attributes[0] = pair(uprobe_pmu()?, PERF_ATTR_SIZE_VER1 as u32);
    attributes[1] = u64::from(point == ProbePoint::Return);
    attributes[7] = path.as_ptr() as u64;
    attributes[8] = file_offset;
    // SAFETY: a system call alone; the attributes say their own size, and the path they point to outlives the call.
    // Process -1 and processor 0: the program runs for every process on every processor, because it hangs on the
    // probe, not on the event.
    let event = unsafe {
        Probe::attach(|| {
            libc::syscall(
                libc::SYS_perf_event_open,
                attributes.as_mut_ptr(),
                -1 as libc::pid_t,
                0 as libc::c_int,
                -1 as libc::c_int,
                PERF_FLAG_FD_CLOEXEC,
            )
        })
    }
    .map_err(|e| no_bpf("open a uprobe event", e))?;
    for (request, argument, what) in [
        (
            PERF_EVENT_IOC_SET_BPF,
            program.as_raw_fd(),
            "attach an eBPF program to a uprobe event",
        ),
        (PERF_EVENT_IOC_ENABLE, 0, "enable a uprobe event"),
    ] {
        // SAFETY: both requests take an integer argument.
        if unsafe { libc::ioctl(event.0, request, argument) } < 0 {
            return Err(no_bpf(what, io::Error::last_os_error()));
        }
    }
    Ok(event)
}
