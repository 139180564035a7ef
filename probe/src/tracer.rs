//! Tracing a server: the probes, and the thread that reads what they write.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::bpf::{self, Attached, Attachment, Moment};
use crate::clock::monotonic_ns;
use crate::decode::{Counts, Decoded, Decoder};
use crate::elf::Symbol;
use crate::error::{ProbeError, Result};
use crate::event::Kind;
use crate::pool;
use crate::programs::{self, Common, Words};
use crate::ring::Ring;
use crate::server::Server;
use crate::site::{self, Calls, Site};

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

/// What one probe turned out to be.
#[derive(Debug, Clone)]
pub struct ProbeInfo {
    /// What it tells.
    pub kind: Kind,
    /// The function.
    pub function: String,
    /// How far into the function the probed instruction lies, in bytes.
    pub offset_bytes: u64,
    /// Whether the kernel emulates the probed instruction.
    pub emulated: bool,
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
    probes: Vec<Attached>,
    infos: Vec<ProbeInfo>,
    attachment: Attachment,
    counters: std::os::fd::OwnedFd,
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    start_ns: u64,
}

/// The functions probed besides the two that tell accesses and misses: kind, names by version, where its words are, and
/// the moment.
const RARE: &[(Kind, &[&str], Words, Moment)] = &[
    (
        Kind::ScanBegin,
        &["heap_beginscan"],
        Words::ScanBegin,
        Moment::Instruction,
    ),
    (
        Kind::ScanAgain,
        &["heap_rescan"],
        Words::ScanRelation,
        Moment::Instruction,
    ),
    (
        Kind::ScanEnd,
        &["heap_endscan"],
        Words::ScanRelation,
        Moment::Instruction,
    ),
    (
        Kind::StrategyMade,
        &["GetAccessStrategy"],
        Words::Number,
        Moment::Instruction,
    ),
    (
        Kind::StrategyFreed,
        &["FreeAccessStrategy"],
        Words::Address,
        Moment::Instruction,
    ),
    (
        Kind::VacuumBegin,
        &["heap_vacuum_rel"],
        Words::Locator,
        Moment::Instruction,
    ),
    (
        Kind::VacuumEnd,
        &["heap_vacuum_rel"],
        Words::Nothing,
        Moment::Return,
    ),
    (
        Kind::BulkBegin,
        &["GetBulkInsertState"],
        Words::Nothing,
        Moment::Instruction,
    ),
    (
        Kind::BulkEnd,
        &["FreeBulkInsertState"],
        Words::Nothing,
        Moment::Instruction,
    ),
    (
        Kind::Reset,
        &["AbortCurrentTransaction"],
        Words::Nothing,
        Moment::Instruction,
    ),
    (
        Kind::Reset,
        &["proc_exit"],
        Words::Nothing,
        Moment::Instruction,
    ),
    (
        Kind::Drop,
        &["DropRelationBuffers", "DropRelFileNodeBuffers"],
        Words::Forks,
        Moment::Instruction,
    ),
    (
        Kind::DropAll,
        &["DropRelationsAllBuffers", "DropRelFileNodesAllBuffers"],
        Words::Relations,
        Moment::Instruction,
    ),
    (
        Kind::DropDatabase,
        &["DropDatabaseBuffers"],
        Words::Database,
        Moment::Instruction,
    ),
];

/// Functions that look pages up without accessing them.
const NO_ACCESS: &[&str] = &[
    "PrefetchSharedBuffer",
    "PrefetchBuffer",
    "DropRelationBuffers",
    "DropRelationsAllBuffers",
    "DropRelFileNodeBuffers",
    "DropRelFileNodesAllBuffers",
    "FindAndDropRelationBuffers",
    "FindAndDropRelFileNodeBuffers",
];

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
        let ignored_callers = NO_ACCESS
            .iter()
            .filter_map(|name| server.executable.symbol(name))
            .map(|function| (server.loaded(function.vaddr), function.size_bytes))
            .collect();
        let common = Common {
            ring_fd: ring.fd(),
            counters_fd: std::os::fd::AsRawFd::as_raw_fd(&counters),
            identity_address,
            identity,
            databases: options.databases.clone(),
            ignored_callers,
        };
        let mut tracer = Self {
            probes: Vec::new(),
            infos: Vec::new(),
            attachment,
            counters,
            shared: Arc::default(),
            reader: None,
            start_ns: 0,
        };
        tracer.attach_all(server, &common, options.version_num)?;
        tracer.start_ns = monotonic_ns();
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

    fn attach_all(&mut self, server: &Server, common: &Common, version_num: u32) -> Result<()> {
        // The rare ones first, so that no access is seen before what explains it.
        for &(kind, names, words, moment) in RARE {
            if let Some((name, symbol)) = find(server, names) {
                self.attach_entry(server, common, kind, name, symbol, words, moment)?;
            }
        }
        // Extending a relation looks like a miss up to version 15, where it goes through BufferAlloc.
        if version_num < 160_000 {
            if let Some((name, symbol)) = find(server, &["smgrextend"]) {
                self.attach_entry(
                    server,
                    common,
                    Kind::Extend,
                    name,
                    symbol,
                    Words::LocatorForkBlock,
                    Moment::Instruction,
                )?;
            }
        }
        self.attach_chosen(server, common, Kind::Ring, "StrategyGetBuffer", |f| {
            let site = site::choose(&server.executable, f, Calls::ArgumentNotNull)?;
            Ok((site, Words::Strategy(site.argument)))
        })?;
        self.attach_chosen(server, common, Kind::Insert, "BufTableInsert", |f| {
            let site = site::choose(&server.executable, f, Calls::All)?;
            Ok((site, Words::Tag(site.argument)))
        })?;
        let lookup = server.require(&["BufTableLookup"])?;
        if let Some(site) = site::choose_at_result(&server.executable, lookup) {
            let descriptors = pool::descriptors(server, version_num);
            let words = Words::Entry(site.argument, site.return_address_offset, descriptors);
            return self.attach_chosen(server, common, Kind::Hit, "BufTableLookup", |_| {
                Ok((site, words))
            });
        }
        self.attach_chosen(server, common, Kind::Lookup, "BufTableLookup", |f| {
            let site = site::choose(&server.executable, f, Calls::All)?;
            Ok((
                site,
                Words::TagWithCaller(site.argument, site.return_address_offset),
            ))
        })
    }

    fn attach_chosen(
        &mut self,
        server: &Server,
        common: &Common,
        kind: Kind,
        name: &str,
        choose: impl FnOnce(Symbol) -> Result<(Site, Words)>,
    ) -> Result<()> {
        let function = server.require(&[name])?;
        let (site, words) = choose(function)?;
        let info = ProbeInfo {
            kind,
            function: name.to_owned(),
            offset_bytes: site.vaddr - function.vaddr,
            emulated: site.emulated,
        };
        self.attach_at(server, common, info, words, site.vaddr, Moment::Instruction)
    }

    #[allow(clippy::too_many_arguments)]
    fn attach_entry(
        &mut self,
        server: &Server,
        common: &Common,
        kind: Kind,
        name: &str,
        symbol: Symbol,
        words: Words,
        moment: Moment,
    ) -> Result<()> {
        let info = ProbeInfo {
            kind,
            function: name.to_owned(),
            offset_bytes: 0,
            emulated: site::entry_is_emulated(&server.executable, symbol),
        };
        self.attach_at(server, common, info, words, symbol.vaddr, moment)
    }

    fn attach_at(
        &mut self,
        server: &Server,
        common: &Common,
        info: ProbeInfo,
        words: Words,
        vaddr: u64,
        moment: Moment,
    ) -> Result<()> {
        let offset = server.executable.file_offset(vaddr).ok_or_else(|| {
            ProbeError::missing(
                format!("the code of {} is not in the server's file", info.function),
                "use --source sql",
            )
        })?;
        let code = programs::build(common, info.kind, words);
        self.probes.push(bpf::attach(
            &code,
            self.attachment,
            &server.executable_path,
            offset,
            moment,
        )?);
        self.infos.push(info);
        Ok(())
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
        self.probes.clear();
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

    /// Return what is probed.
    pub fn probes(&self) -> &[ProbeInfo] {
        &self.infos
    }

    /// Return how the programs are attached.
    pub fn attachment(&self) -> Attachment {
        self.attachment
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn find<'a>(server: &Server, names: &[&'a str]) -> Option<(&'a str, Symbol)> {
    names
        .iter()
        .find_map(|name| Some((*name, server.executable.symbol(name)?)))
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
