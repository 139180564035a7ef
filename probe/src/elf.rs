//! A server's executable: its symbols, and where its code lies in the file and in memory.
//!
//! Nothing is assumed about addresses: functions come from `.dynsym` (present even in a stripped server, because
//! extensions link against it) and from `.symtab` where there is one.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::slice;

use object::{Object, ObjectKind, ObjectSegment, ObjectSymbol};

use crate::error::{ProbeError, Result};

/// A function or variable of the executable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// Address as linked.
    pub vaddr: u64,
    /// Size in bytes, 0 where the symbol table does not say.
    pub size_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    vaddr: u64,
    offset: u64,
    size_bytes: u64,
}

/// A file's bytes in our address space, of which only those looked at are read. A running executable cannot be written
/// (ETXTBSY), and an upgrade puts another file in its place, so that they stay as they are.
#[derive(Debug)]
struct Mapped {
    start: NonNull<u8>,
    length_bytes: usize,
}

/// An executable, mapped into memory.
#[derive(Debug)]
pub struct Executable {
    data: Mapped,
    segments: Vec<Segment>,
    position_independent: bool,
}

impl Mapped {
    fn read(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length_bytes = file.metadata()?.len() as usize;
        // SAFETY: a new mapping at an address of the kernel's choice, unmapped when this object is dropped.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length_bytes,
                libc::PROT_READ,
                // Not private: the kernel puts the breakpoints of live probes, ours and others', into private mappings
                // of the file (kernel/events/uprobes.c: valid_vma), and the code read here would have them.
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(address.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self {
            start,
            length_bytes,
        })
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is as long as said, readable, and lives as long as this object.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.length_bytes) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: exactly what `read` mapped, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length_bytes) };
    }
}

// SAFETY: the mapping is plain memory that nobody writes.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Executable {
    /// Read an x86-64 executable.
    ///
    /// # Errors
    /// The file cannot be read, is no ELF file, or is for another machine.
    pub fn read(path: &Path) -> Result<Self> {
        let data = Mapped::read(path)
            .map_err(|e| ProbeError::system(format!("cannot read {}", path.display()), e))?;
        Self::parse(data).map_err(|what| {
            ProbeError::missing(
                format!("{}: {what}", path.display()),
                "this needs a PostgreSQL server built for x86-64; a connection by SQL always works",
            )
        })
    }

    fn parse(data: Mapped) -> std::result::Result<Self, String> {
        let file = object::File::parse(&*data).map_err(|e| format!("not an executable ({e})"))?;
        if file.architecture() != object::Architecture::X86_64 {
            return Err(format!("built for {:?}", file.architecture()));
        }
        let segments = file
            .segments()
            .map(|segment| {
                let (offset, size_bytes) = segment.file_range();
                Segment {
                    vaddr: segment.address(),
                    offset,
                    size_bytes,
                }
            })
            .collect();
        let position_independent = file.kind() == ObjectKind::Dynamic;
        Ok(Self {
            data,
            segments,
            position_independent,
        })
    }

    /// Return a symbol, or nothing.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        let file = object::File::parse(&*self.data).ok()?;
        let symbol = file
            .dynamic_symbols()
            .chain(file.symbols())
            .find(|s| s.name_bytes() == Ok(name.as_bytes()) && s.is_definition())?;
        Some(Symbol {
            vaddr: symbol.address(),
            size_bytes: symbol.size(),
        })
    }

    /// Return the first of these symbols that exists.
    pub fn first_symbol(&self, names: &[&str]) -> Option<Symbol> {
        names.iter().find_map(|name| self.symbol(name))
    }

    /// Return whether the executable is loaded at an address of the kernel's choice.
    pub fn is_position_independent(&self) -> bool {
        self.position_independent
    }

    /// Return the lowest linked address of a loaded segment.
    pub fn lowest_vaddr(&self) -> u64 {
        self.segments.iter().map(|s| s.vaddr).min().unwrap_or(0)
    }

    /// Return the offset in the file of a linked address, if the file holds it.
    pub fn file_offset(&self, vaddr: u64) -> Option<u64> {
        self.segments
            .iter()
            .find(|s| vaddr >= s.vaddr && vaddr - s.vaddr < s.size_bytes)
            .map(|s| vaddr - s.vaddr + s.offset)
    }

    /// Return at most `count` bytes of code at a linked address.
    pub fn bytes_at(&self, vaddr: u64, count: usize) -> &[u8] {
        let Some(offset) = self.file_offset(vaddr) else {
            return &[];
        };
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(self.data.len());
        let end = start.saturating_add(count).min(self.data.len());
        &self.data[start..end]
    }
}
