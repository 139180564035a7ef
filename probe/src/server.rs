//! A running server seen through /proc: its executable and its memory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::elf::{Executable, Symbol};
use crate::error::{ProbeError, Result};
use crate::memory::Memory;

/// The variable that tells one cluster from another: when its postmaster started, in microseconds; every server process
/// inherits it (src/backend/utils/adt/timestamp.c). Process ids would not do: in containers every postmaster is 1.
const IDENTITY: &str = "PgStartTime";

/// A postmaster with its executable and its memory.
#[derive(Debug)]
pub struct Server {
    /// Process id of the postmaster.
    pub postmaster_pid: u32,
    /// Path by which the executable can be opened, whatever has become of its name.
    pub executable_path: PathBuf,
    /// The executable.
    pub executable: Executable,
    bias: u64,
    memory: Memory,
}

impl Server {
    /// Look at the server whose postmaster has this process id.
    ///
    /// # Errors
    /// No such process, no permission, or an executable that cannot be understood.
    pub fn open(postmaster_pid: u32) -> Result<Self> {
        let executable_path = PathBuf::from(format!("/proc/{postmaster_pid}/exe"));
        let executable = Executable::read(&executable_path)?;
        let bias = load_bias(postmaster_pid, &executable)?;
        let memory = Memory::open(postmaster_pid)?;
        Ok(Self {
            postmaster_pid,
            executable_path,
            executable,
            bias,
            memory,
        })
    }

    /// Read the memory through /proc/PID/mem only, as where `process_vm_readv` is refused.
    #[must_use]
    pub fn by_file(mut self) -> Self {
        self.memory = self.memory.by_file();
        self
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
fn load_bias(pid: u32, executable: &Executable) -> Result<u64> {
    if !executable.is_position_independent() {
        return Ok(0);
    }
    let file = format!("/proc/{pid}/maps");
    let maps = fs::read_to_string(&file)
        .map_err(|e| ProbeError::system(format!("cannot read {file}"), e))?;
    let inode = fs::metadata(format!("/proc/{pid}/exe"))
        .map_err(|e| ProbeError::system(format!("cannot look at /proc/{pid}/exe"), e))?
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
                format!("cannot tell where the server's code is loaded from {file}"),
                "use a connection by SQL",
            )
        })
}
