//! What a running PostgreSQL server does, seen from outside (Linux).
//!
//! All `unsafe` code of the project lives in this crate.
//!
//! Tracing, from the kernel up: [`elf`] reads the server's executable and [`site`] chooses instructions in it; [`asm`] and
//! [`programs`] make the eBPF programs that [`bpf`] attaches there; they write [`event`]s into a [`ring`] buffer, from
//! which [`decode`] makes page accesses; [`probes`] names the functions, and [`tracer`] holds it all together.

pub mod asm;
pub mod bpf;
pub mod calibrate;
pub mod clock;
pub mod columns;
pub mod decode;
pub mod elf;
pub mod error;
pub mod event;
pub mod pool;
pub mod probes;
pub mod process;
pub mod programs;
pub mod ring;
pub mod server;
pub mod site;
pub mod tracer;
