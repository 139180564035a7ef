//! How long reads of a running server take, by probes on the function that waits for them ([`crate::call_times`]). It is, by
//! version:
//! - up to 16 `mdread` (src/backend/storage/smgr/md.c), the read of one block from its file;
//! - from 17 on `WaitReadBuffers` (src/backend/storage/buffer/bufmgr.c), in which a process waits for the blocks of one
//!   read, up to `io_combine_limit` of them;
//! - from 18 on `mdstartreadv` (md.c) as well, where a process begins a read, and carries it
//!   out where it is not left to others (`io_method`). What it took counts to what the process waits for next. A read
//!   that was begun ahead and has ended by then takes next to nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ability::{machine_can_be_traced, timed_call};
use crate::bpf::{Attached, Attachment};
use crate::call_times::{attach, Counters, Functions, Histogram, TimedCall};
use crate::elf::Symbol;
use crate::error::{ProbeError, Result};
use crate::server::Server;

/// The functions that wait for a read; a server has one of them.
const FUNCTIONS: [&str; 2] = ["WaitReadBuffers", "mdread"];
/// The function that begins one before, where there is such.
const STARTS: &str = "mdstartreadv";
/// `endbr64`, which the kernel does not emulate; at a probe behind it the stack is as at the function's beginning.
const LANDING: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Times the reads of a server while its probes are attached; they are gone when this is dropped, and when its process
/// ends, however it ends.
pub struct ReadTimer {
    // The path of its executable is valid as long as it lives.
    _server: Server,
    function: &'static str,
    functions: Functions,
    counters: Counters,
    attachment: Attachment,
    attached: Mutex<Vec<Attached>>,
    own: TimedCall,
}

impl ReadTimer {
    /// Find where the server waits for reads; nothing is attached to it yet.
    ///
    /// # Errors
    /// The server cannot be understood, or the kernel does not allow probes.
    pub fn new(server: Server, attachment: Option<Attachment>) -> Result<Self> {
        machine_can_be_traced(&server)?;
        let (function, symbol) = FUNCTIONS
            .into_iter()
            .find_map(|name| Some((name, server.executable.symbol(name)?)))
            .ok_or_else(|| {
                ProbeError::missing(
                    format!(
                        "the server's executable has no symbol {}",
                        FUNCTIONS.join(" or ")
                    ),
                    "set track_io_timing = on",
                )
            })?;
        let in_file = |symbol: Symbol| {
            let code = server.executable.bytes_at(symbol.vaddr, LANDING.len());
            let landing = if code == LANDING { LANDING.len() } else { 0 };
            let beginning = server.executable.file_offset(symbol.vaddr)?;
            Some(beginning + landing as u64)
        };
        let functions = Functions {
            identity: server.identity()?,
            path: server.executable_path(),
            counted_offset: in_file(symbol).ok_or_else(|| {
                ProbeError::missing(
                    format!("the code of {function} is not in the server's file"),
                    "set track_io_timing = on",
                )
            })?,
            before_offset: server.executable.symbol(STARTS).and_then(in_file),
        };
        let (attachment, own) = match attachment {
            Some(one) => (one, timed_call(one)?),
            None => timed_call(Attachment::Link)
                .map(|own| (Attachment::Link, own))
                .or_else(|_| {
                    timed_call(Attachment::PerfEvent).map(|own| (Attachment::PerfEvent, own))
                })?,
        };
        Ok(Self {
            _server: server,
            function,
            functions,
            counters: Counters::new()?,
            attachment,
            attached: Mutex::default(),
            own,
        })
    }

    /// Return the function whose time is counted.
    pub fn function(&self) -> &'static str {
        self.function
    }

    /// Return what timing a read adds to its time as counted, and what it costs the process, in nanoseconds.
    pub fn own_ns(&self) -> (f64, f64) {
        let pairs = 1.0 + f64::from(u8::from(self.functions.before_offset.is_some()));
        (pairs * self.own.counted_ns, pairs * self.own.cost_ns)
    }

    /// Attach the probes, if they are not.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn attach(&self) -> Result<()> {
        let mut attached = self.attached();
        if attached.is_empty() {
            *attached = attach(&self.functions, &self.counters, self.attachment)?;
        }
        Ok(())
    }

    /// Remove the probes.
    pub fn detach(&self) {
        self.attached().clear();
    }

    fn attached(&self) -> MutexGuard<'_, Vec<Attached>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Return what was timed since this was made.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn histogram(&self) -> Result<Histogram> {
        self.counters.histogram()
    }
}
