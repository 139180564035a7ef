//! The probed functions, and attaching the probes to them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bpf::{self, Attached, Attachment, ProbePoint};
use crate::elf::Symbol;
use crate::error::{ProbeError, Result};
use crate::event::Kind;
use crate::pool;
use crate::programs::{self, Common, Words};
use crate::server::Server;
use crate::site::{self, Calls, Site};

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
    /// Whether hits read the states of their buffers; not where the server's memory is not as its version has it.
    pub buffer_states: bool,
}

/// One probe as it was attached.
#[derive(Debug, Clone)]
pub struct ProbeInfo {
    /// What the probe observes.
    pub kind: Kind,
    /// The function.
    pub function: String,
    /// How far into the function the probed instruction lies, in bytes.
    pub offset_bytes: u64,
    /// Whether the kernel emulates the probed instruction.
    pub emulated: bool,
}

impl ProbeInfo {
    fn of_entry(server: &Server, kind: Kind, function: &str, symbol: Symbol) -> Self {
        Self {
            kind,
            function: function.to_owned(),
            offset_bytes: 0,
            emulated: site::entry_is_emulated(&server.executable, symbol),
        }
    }
}

/// The functions probed at their beginning besides those that show accesses and misses: names by version, and where the
/// words of their events are.
#[rustfmt::skip]
const RARE: &[(Kind, &[&str], Words)] = &[
    (Kind::ScanBegin, &["heap_beginscan"], Words::ScanBegin),
    (Kind::ScanAgain, &["heap_rescan"], Words::ScanRelation),
    (Kind::ScanEnd, &["heap_endscan"], Words::ScanRelation),
    (Kind::StrategyMade, &["GetAccessStrategy"], Words::Number),
    (Kind::StrategyFreed, &["FreeAccessStrategy"], Words::Address),
    (Kind::VacuumBegin, &["heap_vacuum_rel"], Words::Locator),
    (Kind::BulkBegin, &["GetBulkInsertState"], Words::Nothing),
    (Kind::BulkEnd, &["FreeBulkInsertState"], Words::Nothing),
    (Kind::Reset, &["AbortCurrentTransaction"], Words::Nothing),
    (Kind::Reset, &["proc_exit"], Words::Nothing),
    (Kind::Drop, &["DropRelationBuffers", "DropRelFileNodeBuffers"], Words::Forks),
    (Kind::DropAll, &["DropRelationsAllBuffers", "DropRelFileNodesAllBuffers"], Words::Relations),
    (Kind::DropDatabase, &["DropDatabaseBuffers"], Words::Database),
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

/// Return the code (addresses as loaded, sizes in bytes) whose lookups are not accesses.
pub fn ignored_callers(server: &Server) -> Vec<(u64, u64)> {
    NO_ACCESS
        .iter()
        .filter_map(|name| server.executable.symbol(name))
        .map(|function| (server.loaded(function.vaddr), function.size_bytes))
        .collect()
}

/// All probes of a tracer; taken away when dropped.
#[derive(Debug)]
pub struct Probes {
    attached: Mutex<Vec<Attached>>,
    infos: Vec<ProbeInfo>,
    attachment: Attachment,
}

impl Probes {
    /// Attach all probes to a server.
    ///
    /// # Errors
    /// A function that is needed is missing, or the kernel refuses.
    pub fn attach(
        server: &Server,
        common: &Common,
        options: &Options,
        attachment: Attachment,
    ) -> Result<Self> {
        let mut probes = Self {
            attached: Mutex::default(),
            infos: Vec::new(),
            attachment,
        };
        probes.attach_all(server, common, options)?;
        Ok(probes)
    }

    /// Return what is probed.
    pub fn infos(&self) -> &[ProbeInfo] {
        &self.infos
    }

    /// Return how the programs are attached.
    pub fn attachment(&self) -> Attachment {
        self.attachment
    }

    /// Remove the probes.
    pub fn detach(&self) {
        self.attached().clear();
    }

    fn attached(&self) -> MutexGuard<'_, Vec<Attached>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attach_all(&mut self, server: &Server, common: &Common, options: &Options) -> Result<()> {
        // The rare ones first, so that no access is seen before what explains it.
        for &(kind, names, words) in RARE {
            if let Some((name, symbol)) = find(server, names) {
                self.attach_entry(server, common, kind, name, symbol, words)?;
            }
        }
        if let Some(vacuum) = server.executable.symbol("heap_vacuum_rel") {
            let info = ProbeInfo::of_entry(server, Kind::VacuumEnd, "heap_vacuum_rel", vacuum);
            self.attach_at(
                server,
                common,
                info,
                Words::Nothing,
                vacuum.vaddr,
                ProbePoint::Return,
            )?;
        }
        // Extending a relation looks like a miss up to version 15, where it goes through BufferAlloc.
        if options.version_num < 160_000 {
            if let Some((name, symbol)) = find(server, &["smgrextend"]) {
                self.attach_entry(
                    server,
                    common,
                    Kind::Extend,
                    name,
                    symbol,
                    Words::LocatorForkBlock,
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
            let descriptors = options
                .buffer_states
                .then(|| pool::descriptors(server, options.version_num))
                .flatten();
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
            offset_bytes: site.vaddr.wrapping_sub(function.vaddr),
            emulated: site.emulated,
        };
        self.attach_at(
            server,
            common,
            info,
            words,
            site.vaddr,
            ProbePoint::Instruction,
        )
    }

    fn attach_entry(
        &mut self,
        server: &Server,
        common: &Common,
        kind: Kind,
        name: &str,
        symbol: Symbol,
        words: Words,
    ) -> Result<()> {
        let info = ProbeInfo::of_entry(server, kind, name, symbol);
        self.attach_at(
            server,
            common,
            info,
            words,
            symbol.vaddr,
            ProbePoint::Instruction,
        )
    }

    fn attach_at(
        &mut self,
        server: &Server,
        common: &Common,
        info: ProbeInfo,
        words: Words,
        vaddr: u64,
        point: ProbePoint,
    ) -> Result<()> {
        let offset = server.executable.file_offset(vaddr).ok_or_else(|| {
            ProbeError::missing(
                format!("the code of {} is not in the server's file", info.function),
                "use --source sql",
            )
        })?;
        let code = programs::build(common, info.kind, words);
        let attached = bpf::attach(
            &code,
            self.attachment,
            &server.executable_path(),
            offset,
            point,
        )?;
        self.attached().push(attached);
        self.infos.push(info);
        Ok(())
    }
}

fn find<'a>(server: &Server, names: &[&'a str]) -> Option<(&'a str, Symbol)> {
    names
        .iter()
        .find_map(|name| Some((*name, server.executable.symbol(name)?)))
}
