//! A running server seen through /proc: its executable and its memory.
//!
//! All that is opened of the process is opened through one descriptor of its folder `/proc/PID`, which the kernel binds to
//! the process and not to its number (fs/proc/base.c: `get_proc_task`): a process that gets the same number later is not
//! read by mistake.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::OnceLock;

use crate::elf::{Executable, Symbol};
use crate::error::{ProbeError, Result};
use crate::loads::first_variable;
use crate::memory::Memory;

/// The variable that identifies a cluster: when its postmaster started, in microseconds; every server process
/// inherits it (src/backend/utils/adt/timestamp.c). Process ids would not do: in containers every postmaster is 1.
const IDENTITY: &str = "PgStartTime";

/// A postmaster with its executable and its memory.
#[derive(Debug)]
pub struct Server {
    /// Process id of the postmaster.
    pub postmaster_pid: u32,
    /// The executable.
    pub executable: Executable,
    folder: Folder,
    bias: u64,
    memory: Memory,
    strategy_control: OnceLock<Option<u64>>,
    /// The hand's last position, see [`crate::hand`].
    pub(crate) hand_position: AtomicU64,
}

/// The folder of one process below /proc.
#[derive(Debug)]
struct Folder {
    pid: u32,
    file: File,
}

impl Folder {
    fn open(pid: u32) -> Result<Self> {
        File::open(format!("/proc/{pid}"))
            .map(|file| Self { pid, file })
            .map_err(|e| {
                if e.kind() == io::ErrorKind::NotFound {
                    no_such_process(pid)
                } else {
                    ProbeError::system(format!("cannot open /proc/{pid}"), e)
                }
            })
    }

    /// Return the path of a file in it, valid for this process as long as the folder is open.
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.file.as_raw_fd()))
    }

    /// Return the error for a file in it.
    fn explain(&self, name: &str, error: io::Error) -> ProbeError {
        let pid = self.pid;
        // The files of a process that has ended are no longer there (ENOENT), or cannot be read (ESRCH).
        if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) {
            return no_such_process(pid);
        }
        ProbeError::system(format!("cannot read /proc/{pid}/{name}"), error)
    }
}

fn no_such_process(pid: u32) -> ProbeError {
    ProbeError::system(
        format!("there is no process {pid} (any more)"),
        io::Error::from_raw_os_error(libc::ESRCH),
    )
}

impl Server {
    /// Open the server whose postmaster has this process id.
    ///
    /// # Errors
    /// No such process, no permission, or an executable that cannot be understood.
    pub fn open(postmaster_pid: u32) -> Result<Self> {
        let folder = Folder::open(postmaster_pid)?;
        // First, because its error shows best what is missing: permission.
        let memory = Memory::open(postmaster_pid, &folder.path("mem"))
            .map_err(|e| folder.explain("mem", e))?;
        let file = File::open(folder.path("exe")).map_err(|e| folder.explain("exe", e))?;
        let executable = Executable::of_file(file, &format!("/proc/{postmaster_pid}/exe"))?;
        let bias = load_bias(&folder, &executable)?;
        Ok(Self {
            postmaster_pid,
            executable,
            folder,
            bias,
            memory,
            strategy_control: OnceLock::new(),
            hand_position: AtomicU64::new(0),
        })
    }

    /// Require that it is the server that started then, in microseconds since 2000-01-01.
    ///
    /// # Errors
    /// It is another one, or its memory cannot be read.
    pub fn require_start_time(&self, microseconds: i64) -> Result<()> {
        let (_, found) = self.identity()?;
        if found as i64 == microseconds {
            return Ok(());
        }
        Err(ProbeError::system(
            format!(
                "process {} is another server now: the one that was found has ended",
                self.postmaster_pid
            ),
            io::Error::from_raw_os_error(libc::ESRCH),
        ))
    }

    /// Return the path by which the kernel finds the executable, whatever has become of its name; it is valid as long as
    /// this object lives.
    pub fn executable_path(&self) -> PathBuf {
        self.folder.path("exe")
    }

    /// Return a symbol of the executable.
    ///
    /// # Errors
    /// It has none of these symbols.
    pub fn require(&self, names: &[&str]) -> Result<Symbol> {
        self.executable.first_symbol(names).ok_or_else(|| {
            ProbeError::missing(
                format!(
                    "the server's executable has no symbol {}",
                    names.join(" or ")
                ),
                "it may have been linked without exported symbols; use a connection by SQL",
            )
        })
    }

    /// Fill the buffer from the server's memory at an address as linked.
    ///
    /// # Errors
    /// The memory cannot be read; the server has ended.
    pub fn read_linked(&self, vaddr: u64, buffer: &mut [u8]) -> Result<()> {
        self.read(self.loaded(vaddr), buffer)
    }

    /// Fill the buffer from the server's memory at an address as loaded.
    ///
    /// # Errors
    /// As `read_linked`.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        self.memory.read(address, buffer)
    }

    /// Return the address as loaded of a linked one.
    pub fn loaded(&self, vaddr: u64) -> u64 {
        self.bias.wrapping_add(vaddr)
    }

    /// Return address (as loaded) and value of the variable that identifies the cluster.
    ///
    /// # Errors
    /// The executable does not export it, or it cannot be read.
    pub fn identity(&self) -> Result<(u64, u64)> {
        let symbol = self.require(&[IDENTITY])?;
        let mut bytes = [0; 8];
        self.read_linked(symbol.vaddr, &mut bytes)?;
        Ok((self.loaded(symbol.vaddr), u64::from_le_bytes(bytes)))
    }

    /// Return the address as linked of `StrategyControl`. It is private to freelist.c, so that a stripped server has no
    /// symbol for it; but `StrategySyncStart` is exported, and the first thing it does is to lock what `StrategyControl`
    /// points to.
    pub fn strategy_control(&self) -> Option<u64> {
        *self.strategy_control.get_or_init(|| {
            let function = self.executable.symbol("StrategySyncStart")?;
            let code = self.executable.bytes_at(function.vaddr, 64);
            first_variable(self.executable.machine, &code, function.vaddr)
        })
    }

    /// Read a 32-bit variable.
    ///
    /// # Errors
    /// The executable does not export it, or it cannot be read.
    pub fn variable_u32(&self, name: &str) -> Result<u32> {
        let mut bytes = [0; 4];
        self.read_linked(self.require(&[name])?.vaddr, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Read a pointer variable.
    ///
    /// # Errors
    /// The executable does not export it, or it cannot be read.
    pub fn variable_pointer(&self, name: &str) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read_linked(self.require(&[name])?.vaddr, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// Return what to add to a linked address to get the loaded one.
fn load_bias(folder: &Folder, executable: &Executable) -> Result<u64> {
    if !executable.is_position_independent() {
        return Ok(0);
    }
    let maps = fs::read(folder.path("maps")).map_err(|e| folder.explain("maps", e))?;
    // Names of files need not be UTF-8; what is looked for stands before them.
    let maps = String::from_utf8_lossy(&maps);
    let inode = fs::metadata(folder.path("exe"))
        .map_err(|e| folder.explain("exe", e))?
        .ino()
        .to_string();
    // "start-end perms offset device inode path": the mapping of the file's beginning.
    maps.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|fields| {
            fields.len() > 4 && fields[4] == inode && fields[2].bytes().all(|b| b == b'0')
        })
        .and_then(|fields| u64::from_str_radix(fields[0].split('-').next()?, 16).ok())
        .map(|start| start.wrapping_sub(executable.lowest_vaddr() & !0xfff))
        .ok_or_else(|| {
            ProbeError::missing(
                format!(
                    "/proc/{}/maps does not show where the server's code is loaded",
                    folder.pid
                ),
                "use a connection by SQL",
            )
        })
}
