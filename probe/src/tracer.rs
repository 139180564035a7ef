//! Tracing a server: the probes, and the thread that reads what they write.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::bpf::{self, Attachment};
use crate::clock::monotonic_ns;
use crate::decode::{Counts, Decoded, Decoder};
use crate::error::{ProbeError, Result};
use crate::probes::{self, Probes};
use crate::programs::Common;
use crate::ring::Ring;
use crate::server::Server;

/// How often the ring buffer is looked at: the kernel wakes nobody, which would cost it more than the event itself.
const POLL: Duration = Duration::from_millis(10);
/// Rows that may wait for whoever writes them; beyond, the ring buffer fills and the kernel counts what it loses.
const MOST_WAITING_ROWS: u64 = 16 << 20;
/// Events taken before the waiting rows are looked at again.
const DRAIN_EVENTS: usize = 1 << 18;

/// What to trace and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server's version, such as 150018.
    pub version_num: u32,
    /// Databases wanted; all if empty.
    pub databases: Vec<u32>,
    /// Size of the kernel's ring buffer in bytes, a power of two.
    pub ring_bytes: u32,
    /// How the programs are attached; nothing: the fastest that this kernel has.
    pub attachment: Option<Attachment>,
}

#[derive(Debug, Default)]
struct Queue {
    batches: VecDeque<Decoded>,
    rows: u64,
    counts: Counts,
    finished: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    stop: AtomicBool,
    processor_ns: AtomicU64,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Probes on a running server. They are gone when this is dropped, and when its process ends, however it ends.
pub struct Tracer {
    probes: Probes,
    counters: std::os::fd::OwnedFd,
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    start_ns: u64,
}

impl Tracer {
    /// Put probes on a server and begin to read.
    ///
    /// # Errors
    /// The server cannot be understood, or the kernel does not allow probes.
    pub fn start(server: &Server, options: &Options) -> Result<Self> {
        let attachments = match options.attachment {
            Some(one) => vec![one],
            None => vec![Attachment::Link, Attachment::PerfEvent],
        };
        let mut failure = None;
        for attachment in attachments {
            match Self::start_with(server, options, attachment) {
                Ok(tracer) => return Ok(tracer),
                // The last failure tells most: perf events are what every kernel with uprobes has.
                Err(error) => failure = Some(error),
            }
        }
        Err(failure
            .unwrap_or_else(|| ProbeError::missing("no way to attach probes", "use --source sql")))
    }

    fn start_with(server: &Server, options: &Options, attachment: Attachment) -> Result<Self> {
        let ring = Ring::map(bpf::create_ring(options.ring_bytes)?, options.ring_bytes)?;
        let counters = bpf::create_counters(1)?;
        let (identity_address, identity) = server.identity()?;
        let common = Common {
            ring_fd: ring.fd(),
            counters_fd: std::os::fd::AsRawFd::as_raw_fd(&counters),
            identity_address,
            identity,
            databases: options.databases.clone(),
            ignored_callers: probes::ignored_callers(server),
        };
        let probes = Probes::attach(server, &common, options.version_num, attachment)?;
        let mut tracer = Self {
            probes,
            counters,
            shared: Arc::default(),
            reader: None,
            start_ns: monotonic_ns(),
        };
        let decoder = Decoder::new(tracer.start_ns, options.version_num);
        let shared = Arc::clone(&tracer.shared);
        tracer.reader = Some(
            std::thread::Builder::new()
                .name("pgsweep-trace".into())
                .spawn(move || read(ring, decoder, &shared))
                .map_err(|e| ProbeError::system("cannot start a thread", e))?,
        );
        Ok(tracer)
    }

    /// Wait at most `timeout` for rows; return nothing when there are none, or when all has been handed out.
    pub fn poll(&self, timeout: Duration) -> Option<Decoded> {
        let queue = self.shared.queue();
        let (mut queue, _) = self
            .shared
            .filled
            .wait_timeout_while(queue, timeout, |q| q.batches.is_empty() && !q.finished)
            .unwrap_or_else(PoisonError::into_inner);
        let batch = queue.batches.pop_front()?;
        queue.rows -= batch.accesses.len() as u64;
        Some(batch)
    }

    /// Take the probes away and read what they have written; `poll` then gives the rest.
    pub fn stop(&mut self) {
        self.probes.detach();
        self.shared.stop.store(true, Ordering::Release);
        if let Some(reader) = self.reader.take() {
            // A panic of the reader shows as a trace that ends early; `finished` says so below.
            let _ = reader.join();
        }
        self.shared.queue().finished = true;
    }

    /// Return how many events the kernel could not write because the ring buffer was full.
    ///
    /// # Errors
    /// The counter cannot be read.
    pub fn lost(&self) -> Result<u64> {
        bpf::read_counter(&self.counters)
    }

    /// Return the counts so far.
    pub fn counts(&self) -> Counts {
        self.shared.queue().counts
    }

    /// Return the processor time of the reading thread in nanoseconds.
    pub fn reader_processor_ns(&self) -> u64 {
        self.shared.processor_ns.load(Ordering::Relaxed)
    }

    /// Return the monotonic clock's time, in nanoseconds, to which the times of rows are relative.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Return the probes.
    pub fn probes(&self) -> &Probes {
        &self.probes
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Read the ring buffer until told to stop, then once more to its end.
fn read(mut ring: Ring, mut decoder: Decoder, shared: &Shared) {
    loop {
        let stopping = shared.stop.load(Ordering::Acquire);
        let room = stopping || shared.queue().rows + decoder.held_rows() < MOST_WAITING_ROWS;
        let taken = if room {
            ring.drain(DRAIN_EVENTS, |event| decoder.event(&event))
        } else {
            0
        };
        let ended = stopping && taken < DRAIN_EVENTS;
        let batch = decoder.take(monotonic_ns(), ended);
        let mut queue = shared.queue();
        queue.counts = decoder.counts();
        if batch.accesses.len() + batch.scans.scan.len() + batch.drops.row.len() > 0 {
            queue.rows += batch.accesses.len() as u64;
            queue.batches.push_back(batch);
            shared.filled.notify_one();
        }
        drop(queue);
        shared
            .processor_ns
            .store(crate::clock::thread_processor_ns(), Ordering::Relaxed);
        if ended {
            return;
        }
        if taken < DRAIN_EVENTS && !stopping {
            std::thread::sleep(POLL);
        }
    }
}
