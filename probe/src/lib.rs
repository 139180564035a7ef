//! What a running PostgreSQL server does, seen from outside (Linux).
//!
//! All `unsafe` code of the project lives in this crate.
//!
//! Tracing, from the kernel up: [`elf`] reads the server's executable and [`site`] chooses instructions in it; [`asm`] and
//! [`programs`] make the eBPF programs that [`bpf`] attaches there; they write [`event`]s into a [`ring`] buffer, from
//! which [`decode`] makes page accesses; [`probes`] names the functions, and [`tracer`] holds it all together. [`read_timer`]
//! probes reads alone, for how long they take, by [`call_times`].
//!
//! Looking: [`loads`] finds a variable that has no symbol, [`memory`] reads the server's memory, [`descriptor`] knows its buffers there, [`pool`] lists and [`peek`] counts
//! them, [`hand`] follows the clock sweep, [`parallel`] shares the work among threads; [`residency`] asks the kernel what of a file is in the page cache;
//! [`depth`] times reads from the disk.

pub mod ability;
pub mod asm;
pub mod backend_state;
pub mod bpf;
#[cfg(target_arch = "x86_64")]
pub mod calibrate;
pub mod call_times;
pub mod clock;
pub mod columns;
pub mod decode;
pub mod depth;
pub mod descriptor;
pub mod elf;
pub mod error;
pub mod event;
pub mod hand;
pub mod loads;
pub mod memory;
pub mod parallel;
pub mod peek;
pub mod pool;
pub mod probes;
pub mod programs;
pub mod read_timer;
pub mod residency;
pub mod ring;
pub mod server;
pub mod sibling;
pub mod site;
pub mod tracer;
