//! A server's executable: its symbols, and where its code lies in the file and in memory.
//!
//! Nothing is assumed about addresses: functions come from `.dynsym` (present even in a stripped server, because
//! extensions link against it) and from `.symtab` where there is one.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

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

/// An executable read into memory.
#[derive(Debug)]
pub struct Executable {
    data: Vec<u8>,
    symbols: HashMap<String, Symbol>,
    segments: Vec<Segment>,
    position_independent: bool,
}

impl Executable {
    /// Read an x86-64 executable.
    ///
    /// # Errors
    /// The file cannot be read, is no ELF file, or is for another machine.
    pub fn read(path: &Path) -> Result<Self> {
        let data = fs::read(path)
            .map_err(|e| ProbeError::system(format!("cannot read {}", path.display()), e))?;
        Self::parse(data).map_err(|what| {
            ProbeError::missing(
                format!("{}: {what}", path.display()),
                "tracing needs a PostgreSQL server built for x86-64; use --source sql",
            )
        })
    }

    fn parse(data: Vec<u8>) -> std::result::Result<Self, String> {
        let file = object::File::parse(&*data).map_err(|e| format!("not an executable ({e})"))?;
        if file.architecture() != object::Architecture::X86_64 {
            return Err(format!("built for {:?}", file.architecture()));
        }
        let mut symbols = HashMap::new();
        for symbol in file.dynamic_symbols().chain(file.symbols()) {
            if symbol.is_definition() {
                if let Ok(name) = symbol.name() {
                    symbols.entry(name.to_owned()).or_insert(Symbol {
                        vaddr: symbol.address(),
                        size_bytes: symbol.size(),
                    });
                }
            }
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
            symbols,
            segments,
            position_independent,
        })
    }

    /// Return a symbol, or nothing.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        self.symbols.get(name).copied()
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
