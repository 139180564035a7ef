//! Tracing a server: the probes, and the thread that reads what they write.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::ability::machine_can_be_traced;
use crate::bpf::{self, Attachment};
use crate::clock::monotonic_ns;
use crate::decode::{Counts, Decoded, Decoder};
use crate::error::{ProbeError, Result};
use crate::event::Event;
use crate::probes::{self, Options, Probes};
use crate::programs::Common;
use crate::ring::RingBuffer;
use crate::server::Server;

/// How often the ring buffer is read: the kernel wakes nobody, which would cost it more than the event itself.
const POLL: Duration = Duration::from_millis(10);
/// How often rows are handed over: each batch has a cost of its own where it is stored.
const HAND_OVER: Duration = Duration::from_millis(200);
/// Rows that are handed over at once.
const MANY_ROWS: u64 = 1 << 18;
/// Rows that may wait to be written; beyond, the ring buffer fills and the kernel counts what it loses.
const MOST_WAITING_ROWS: u64 = 16 << 20;
/// Events taken before the waiting rows are checked again.
const DRAIN_EVENTS: usize = 1 << 18;

#[derive(Debug, Default)]
struct Queue {
    batches: VecDeque<Decoded>,
    /// Rows that wait.
    rows: u64,
    /// Rows that were put here since the beginning.
    delivered: u64,
    counts: Counts,
    finished: bool,
    /// Why reading ended early.
    failure: Option<String>,
    /// Events and decoded accesses that were lost by it.
    unread: u64,
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
    reader: Mutex<Option<JoinHandle<()>>>,
    start_ns: u64,
}

impl Tracer {
    /// Attach probes to a server and begin to read.
    ///
    /// # Errors
    /// The server cannot be understood, or the kernel does not allow probes.
    pub fn start(server: &Server, options: &Options) -> Result<Self> {
        machine_can_be_traced(server)?;
        let attachments = match options.attachment {
            Some(one) => vec![one],
            None => vec![Attachment::Link, Attachment::PerfEvent],
        };
        let mut failure = None;
        for attachment in attachments {
            match Self::start_with(server, options, attachment) {
                Ok(tracer) => return Ok(tracer),
                // The last failure is the most informative: perf events are what every kernel with uprobes has.
                Err(error) => failure = Some(error),
            }
        }
        Err(failure
            .unwrap_or_else(|| ProbeError::missing("no way to attach probes", "use --source sql")))
    }

    fn start_with(server: &Server, options: &Options, attachment: Attachment) -> Result<Self> {
        let ring = RingBuffer::map(bpf::create_ring(options.ring_bytes)?, options.ring_bytes)?;
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
        let probes = Probes::attach(server, &common, options, attachment)?;
        let start_ns = monotonic_ns();
        let shared = Arc::<Shared>::default();
        let decoder = Decoder::new(start_ns, options.version_num);
        let reader = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("pgsweep-trace".into())
                .spawn(move || read(ring, decoder, &shared))
                .map_err(|e| ProbeError::system("cannot start a thread", e))?
        };
        Ok(Self {
            probes,
            counters,
            shared,
            reader: Mutex::new(Some(reader)),
            start_ns,
        })
    }

    /// Wait at most `timeout` for rows; return nothing when there are none, or when all has been handed out.
    ///
    /// # Errors
    /// Reading ended early; what was read before has been handed out.
    pub fn poll(&self, timeout: Duration) -> Result<Option<Decoded>> {
        let queue = self.shared.queue();
        let (mut queue, _) = self
            .shared
            .filled
            .wait_timeout_while(queue, timeout, |q| {
                q.batches.is_empty() && !q.finished && q.failure.is_none()
            })
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(batch) = queue.batches.pop_front() {
            queue.rows -= batch.accesses.len() as u64;
            return Ok(Some(batch));
        }
        match &queue.failure {
            None => Ok(None),
            Some(what) => Err(ProbeError::system(
                "reading what the probes write has failed",
                io::Error::other(what.clone()),
            )),
        }
    }

    /// Remove the probes and read what they have written; `poll` then gives the rest. All of it has happened when this
    /// returns, also where another thread stops at the same time.
    pub fn stop(&self) {
        self.probes.detach();
        self.shared.stop.store(true, Ordering::Release);
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reader) = reader.take() {
            // What panicked in it has been kept as `failure`.
            let _ = reader.join();
        }
        self.shared.queue().finished = true;
        self.shared.filled.notify_all();
    }

    /// Return how many events the kernel could not write because the ring buffer was full.
    ///
    /// # Errors
    /// The counter cannot be read.
    pub fn lost(&self) -> Result<u64> {
        let [lost] = bpf::read_counters(&self.counters)?;
        Ok(lost)
    }

    /// Return how many events were not read, or read in vain, because reading ended early: all of them once it is stopped.
    pub fn unread(&self) -> u64 {
        self.shared.queue().unread
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

/// Where events come from.
trait Source {
    /// Give at most `most` events, oldest first, to `take`; return how many there were.
    fn drain(&mut self, most: usize, take: impl FnMut(Event)) -> usize;
}

impl Source for RingBuffer {
    fn drain(&mut self, most: usize, take: impl FnMut(Event)) -> usize {
        RingBuffer::drain(self, most, take)
    }
}

/// Read events until the stop, then once more to the end. Where that panics, the reason is kept, and from then on
/// events are counted as lost.
fn read(mut source: impl Source, mut decoder: Decoder, shared: &Shared) {
    let reading = panic::catch_unwind(AssertUnwindSafe(|| {
        decode_all(&mut source, &mut decoder, shared);
    }));
    let Err(panicked) = reading else { return };
    {
        let mut queue = shared.queue();
        queue.failure = Some(message(&*panicked));
        // The event that was being decoded, and the accesses that were decoded and not handed over.
        queue.unread = 1 + decoder.rows().saturating_sub(queue.delivered);
        shared.filled.notify_all();
    }
    loop {
        let stopping = shared.stop.load(Ordering::Acquire);
        let mut unread = 0;
        while source.drain(DRAIN_EVENTS, |_| unread += 1) > 0 {}
        shared.queue().unread += unread;
        if stopping {
            return;
        }
        std::thread::sleep(POLL);
    }
}

fn message(panicked: &(dyn Any + Send)) -> String {
    let text = panicked
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panicked.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "an error without words".to_owned())
}

fn decode_all(source: &mut impl Source, decoder: &mut Decoder, shared: &Shared) {
    let mut handed_over = Instant::now();
    loop {
        let stopping = shared.stop.load(Ordering::Acquire);
        let room = stopping || shared.queue().rows + decoder.held_rows() < MOST_WAITING_ROWS;
        let taken = if room {
            source.drain(DRAIN_EVENTS, |event| decoder.event(&event))
        } else {
            0
        };
        let ended = stopping && taken < DRAIN_EVENTS;
        let due = ended || handed_over.elapsed() >= HAND_OVER || decoder.held_rows() >= MANY_ROWS;
        let batch = if due {
            handed_over = Instant::now();
            decoder.take(monotonic_ns(), ended)
        } else {
            Decoded::default()
        };
        let mut queue = shared.queue();
        queue.counts = decoder.counts();
        if batch.accesses.len() + batch.scans.scan.len() + batch.drops.row.len() > 0 {
            let rows = batch.accesses.len() as u64;
            queue.rows += rows;
            queue.delivered += rows;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Kind, Tag, BUFFER_KNOWN};

    /// Gives hits of ever higher blocks; panics at one, as an error in decoding would, and goes on afterwards.
    struct Events {
        next: u32,
        most: u32,
        panics_at: u32,
    }

    impl Source for Events {
        fn drain(&mut self, most: usize, mut take: impl FnMut(Event)) -> usize {
            let mut taken = 0;
            while taken < most && self.next < self.most {
                let block = self.next;
                self.next += 1;
                assert_ne!(block, self.panics_at, "an index out of bounds");
                taken += 1;
                take(Event {
                    tag: Tag {
                        rel: 16384,
                        block,
                        ..Tag::default()
                    },
                    kind: Kind::Hit,
                    buffer: BUFFER_KNOWN,
                    pid: 1,
                    time_ns: u64::from(block),
                });
            }
            taken
        }
    }

    fn tracer(panics_at: u32) -> (Arc<Shared>, JoinHandle<()>) {
        let events = Events {
            next: 0,
            most: 1000,
            panics_at,
        };
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        let reader = std::thread::spawn(move || read(events, Decoder::new(0, 180_000), &theirs));
        (shared, reader)
    }

    fn ended(shared: &Shared, reader: JoinHandle<()>) {
        shared.stop.store(true, Ordering::Release);
        reader.join().expect("no panic leaves the thread");
    }

    #[test]
    fn all_events_are_handed_over() {
        let (shared, reader) = tracer(u32::MAX);
        ended(&shared, reader);
        let queue = shared.queue();
        assert_eq!(
            (&queue.failure, queue.unread, queue.delivered),
            (&None, 0, 1000)
        );
        assert_eq!(queue.counts.hits, 1000);
    }

    #[test]
    fn a_panic_is_kept_and_what_is_not_handed_over_is_counted_as_unread() {
        for panics_at in [0, 1, 700, 999] {
            let (shared, reader) = tracer(panics_at);
            let failed = |q: &mut Queue| q.failure.is_none();
            let waited = shared.filled.wait_while(shared.queue(), failed);
            drop(waited);
            ended(&shared, reader);
            let queue = shared.queue();
            let said = queue.failure.clone().expect("a failure");
            assert!(said.contains("an index out of bounds"), "{said}");
            assert_eq!(queue.delivered + queue.unread, 1000);
        }
    }
}
