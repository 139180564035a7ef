//! A server's executable: its symbols, and where its code lies in the file and in memory.
//!
//! Nothing is assumed about addresses: functions come from `.dynsym` (present even in a stripped server, because
//! extensions link against it) and from `.symtab` where there is one.
//!
//! The file is read and not mapped. A mapping ends this process with SIGBUS when somebody cuts the file short, and a
//! private one shows the breakpoints of live probes (kernel/events/uprobes.c: `valid_vma`). The file may belong to anybody,
//! so each table is read up to a limit only, and each number in it is checked before it is used.

use std::fs::File;
use std::hash::BuildHasher;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use hashbrown::hash_table::{Entry, HashTable};
use object::elf::{
    FileHeader64, ProgramHeader64, SectionHeader64, Sym64, ELFCLASS64, ELFDATA2LSB, ELFMAG,
    EM_AARCH64, EM_X86_64, ET_DYN, ET_EXEC, PT_LOAD, SHT_DYNSYM, SHT_SYMTAB,
};
use object::pod::{from_bytes, slice_from_all_bytes, Pod};
use object::read::elf::Sym as _;
use object::LittleEndian as LE;
use rustc_hash::FxBuildHasher;

use crate::error::{ProbeError, Result};

/// Headers and symbol tables larger than this are refused: 700,000 symbols, where PostgreSQL has some 60,000.
const MOST_TABLE_BYTES: u64 = 16 << 20;
/// Tables of names larger than this are refused.
const MOST_NAMES_BYTES: u64 = 64 << 20;
/// Longer names are not kept: no function that is looked for has one.
const MOST_NAME_BYTES: usize = 64;

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

/// What a file's code is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// x86-64.
    X86_64,
    /// arm64 (ELF calls it aarch64).
    Arm64,
}

/// An executable: its symbols, and its open file, from which code is read when it is asked for.
#[derive(Debug)]
pub struct Executable {
    /// What its code is for.
    pub machine: Machine,
    file: File,
    symbols: Symbols,
    segments: Vec<Segment>,
    position_independent: bool,
}

/// What is wrong with a file, in the middle of a sentence.
type Refusal = String;

impl Executable {
    /// Read an executable for x86-64 or arm64.
    ///
    /// # Errors
    /// The file cannot be read, is not an ELF file, or is for another machine.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        // Not blocking: what stands there may be a FIFO.
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map_err(|e| ProbeError::system(format!("cannot read {name}"), e))?;
        Self::of_file(file, &name)
    }

    /// Read an executable that is open; `name` is what errors call it.
    ///
    /// # Errors
    /// As `read`.
    pub fn of_file(file: File, name: &str) -> Result<Self> {
        let about = file
            .metadata()
            .map_err(|e| ProbeError::system(format!("cannot read {name}"), e))?;
        if !about.is_file() {
            return Err(refused(name, "not a regular file"));
        }
        Self::parse(file).map_err(|what| refused(name, &what))
    }

    fn parse(file: File) -> std::result::Result<Self, Refusal> {
        let header = table(
            &file,
            0,
            size_of::<FileHeader64<LE>>() as u64,
            MOST_TABLE_BYTES,
        )
        .map_err(|_| "not an executable (it is too short)")?;
        let (header, _) = from_bytes::<FileHeader64<LE>>(&header)
            .map_err(|()| "not an executable (it is too short)")?;
        let ident = &header.e_ident;
        if ident.magic != ELFMAG {
            return Err("not an executable (not an ELF file)".into());
        }
        if ident.class != ELFCLASS64 || ident.data != ELFDATA2LSB {
            return Err("not an executable of 64 bits, little-endian".into());
        }
        let machine = match header.e_machine.get(LE) {
            EM_X86_64 => Machine::X86_64,
            EM_AARCH64 => Machine::Arm64,
            other => return Err(format!("built for another machine (ELF number {other})")),
        };
        let kind = header.e_type.get(LE);
        if kind != ET_DYN && kind != ET_EXEC {
            return Err("not an executable (another kind of ELF file)".into());
        }
        let segments = entries::<ProgramHeader64<LE>>(
            &file,
            header.e_phoff.get(LE),
            header.e_phnum.get(LE),
            header.e_phentsize.get(LE),
        )?
        .iter()
        .filter(|segment| segment.p_type.get(LE) == PT_LOAD)
        .map(|segment| Segment {
            vaddr: segment.p_vaddr.get(LE),
            offset: segment.p_offset.get(LE),
            size_bytes: segment.p_filesz.get(LE),
        })
        .collect();
        let sections = entries::<SectionHeader64<LE>>(
            &file,
            header.e_shoff.get(LE),
            header.e_shnum.get(LE),
            header.e_shentsize.get(LE),
        )?;
        let mut symbols = Symbols::default();
        // What is exported comes first: a local function of the same name is another one.
        for kind in [SHT_DYNSYM, SHT_SYMTAB] {
            if let Some(section) = sections.iter().find(|s| s.sh_type.get(LE) == kind) {
                symbols.add(&file, &sections, section)?;
            }
        }
        Ok(Self {
            machine,
            symbols,
            segments,
            position_independent: kind == ET_DYN,
            file,
        })
    }

    /// Return a symbol, or nothing.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        self.symbols.get(name.as_bytes())
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
            .and_then(|s| (vaddr - s.vaddr).checked_add(s.offset))
    }

    /// Return at most `count` bytes of code at a linked address; fewer, or none, where the file has no more.
    pub fn bytes_at(&self, vaddr: u64, count: usize) -> Vec<u8> {
        let Some(offset) = self.file_offset(vaddr) else {
            return Vec::new();
        };
        let mut bytes = vec![0; count];
        let mut filled = 0;
        while filled < count {
            let Some(at) = offset.checked_add(filled as u64) else {
                break;
            };
            match self.file.read_at(&mut bytes[filled..], at) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        bytes.truncate(filled);
        bytes
    }
}

fn refused(name: &str, what: &str) -> ProbeError {
    ProbeError::missing(
        format!("{name}: {what}"),
        "this needs a PostgreSQL server built for x86-64 or arm64; a connection by SQL always works",
    )
}

/// Read a part of the file as a whole.
fn table(
    file: &File,
    offset: u64,
    size_bytes: u64,
    most_bytes: u64,
) -> std::result::Result<Vec<u8>, Refusal> {
    if size_bytes > most_bytes {
        return Err(format!(
            "a table in it has {size_bytes} bytes, more than any server's"
        ));
    }
    let mut bytes = vec![0; size_bytes as usize];
    file.read_exact_at(&mut bytes, offset)
        .map_err(|e| format!("damaged or cut short ({e})"))?;
    Ok(bytes)
}

/// Read the file's program or section headers.
fn entries<T: Pod + Copy>(
    file: &File,
    offset: u64,
    count: u16,
    entry_bytes: u16,
) -> std::result::Result<Vec<T>, Refusal> {
    if count > 0 && usize::from(entry_bytes) != size_of::<T>() {
        return Err("damaged (its headers have another size)".into());
    }
    let size_bytes = u64::from(count) * size_of::<T>() as u64;
    let bytes = table(file, offset, size_bytes, MOST_TABLE_BYTES)?;
    let all = slice_from_all_bytes::<T>(&bytes).map_err(|()| "damaged")?;
    Ok(all.to_vec())
}

/// Symbols by name. Names stay where they were read: to copy each would take as long as all else that a look does.
#[derive(Debug, Default)]
struct Symbols {
    names: Vec<Vec<u8>>,
    places: HashTable<Place>,
}

/// A symbol, and where its name is.
#[derive(Debug)]
struct Place {
    table: usize,
    start: usize,
    symbol: Symbol,
}

impl Symbols {
    /// Add the symbols of a section; of those with one name the first stays.
    fn add(
        &mut self,
        file: &File,
        sections: &[SectionHeader64<LE>],
        section: &SectionHeader64<LE>,
    ) -> std::result::Result<(), Refusal> {
        let size_bytes = section.sh_size.get(LE);
        let entry_bytes = size_of::<Sym64<LE>>() as u64;
        let bytes = table(
            file,
            section.sh_offset.get(LE),
            size_bytes - size_bytes % entry_bytes,
            MOST_TABLE_BYTES,
        )?;
        let names = sections
            .get(section.sh_link.get(LE) as usize)
            .ok_or("damaged (symbols without names)")?;
        let names = table(
            file,
            names.sh_offset.get(LE),
            names.sh_size.get(LE),
            MOST_NAMES_BYTES,
        )?;
        let found = slice_from_all_bytes::<Sym64<LE>>(&bytes).map_err(|()| "damaged")?;
        let table = self.names.len();
        self.names.push(names);
        let Self { names, places } = self;
        let name_of = |place: &Place| name_at(&names[place.table], place.start).unwrap_or_default();
        places.reserve(found.len(), |place| FxBuildHasher.hash_one(name_of(place)));
        for symbol in found.iter().filter(|symbol| symbol.is_definition(LE)) {
            let start = symbol.st_name.get(LE) as usize;
            let Some(name) = name_at(&names[table], start) else {
                continue;
            };
            let hash = FxBuildHasher.hash_one(name);
            if let Entry::Vacant(vacant) = places.entry(
                hash,
                |place| name_of(place) == name,
                |place| FxBuildHasher.hash_one(name_of(place)),
            ) {
                vacant.insert(Place {
                    table,
                    start,
                    symbol: Symbol {
                        vaddr: symbol.st_value.get(LE),
                        size_bytes: symbol.st_size.get(LE),
                    },
                });
            }
        }
        Ok(())
    }

    fn get(&self, name: &[u8]) -> Option<Symbol> {
        let hash = FxBuildHasher.hash_one(name);
        self.places
            .find(hash, |place| {
                name_at(&self.names[place.table], place.start) == Some(name)
            })
            .map(|place| place.symbol)
    }
}

/// Return the name that begins there, unless it is longer than any that is looked for.
fn name_at(names: &[u8], start: usize) -> Option<&[u8]> {
    let end = names.len().min(start.saturating_add(MOST_NAME_BYTES + 1));
    let part = names.get(start..end)?;
    let length = memchr::memchr(0, part)?;
    (length > 0).then(|| &part[..length])
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use super::*;

    struct Copied(PathBuf);

    impl Copied {
        /// Return a copy of this test's own executable, which is a real one with many symbols.
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("pgsweep-elf-{name}-{}", std::process::id()));
            std::fs::copy("/proc/self/exe", &path).expect("copy");
            Self(path)
        }
    }

    impl Drop for Copied {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_file_cut_short_while_it_is_open_does_no_harm() {
        let copied = Copied::new("cut");
        let executable = Executable::read(&copied.0).expect("an executable");
        let main = executable.symbol("main").expect("main");
        assert_eq!(executable.bytes_at(main.vaddr, 16).len(), 16);
        File::options()
            .write(true)
            .open(&copied.0)
            .and_then(|file| file.set_len(0))
            .expect("cut");
        assert_eq!(executable.symbol("main"), Some(main));
        assert!(executable.bytes_at(main.vaddr, 16).is_empty());
        assert!(Executable::read(&copied.0).is_err());
    }

    #[test]
    fn what_is_no_executable_is_refused_in_words() {
        for (bytes, said) in [
            (&b""[..], "too short"),
            (&[b'x'; 100], "not an ELF file"),
            (&[0x7f, b'E', b'L', b'F'].repeat(40), "64 bits"),
        ] {
            let path = std::env::temp_dir().join(format!(
                "pgsweep-elf-none-{}-{}",
                bytes.len(),
                std::process::id()
            ));
            File::create(&path)
                .and_then(|mut file| file.write_all(bytes))
                .expect("write");
            let error = Executable::read(&path).expect_err("refused").to_string();
            std::fs::remove_file(&path).expect("remove");
            assert!(error.contains(said), "{error}");
        }
        let error = Executable::read(Path::new("/proc/self/fd"))
            .expect_err("a folder")
            .to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn names_end_inside_their_table() {
        let names = b"\0one\0two";
        assert_eq!(name_at(names, 1), Some(&b"one"[..]));
        assert_eq!(name_at(names, 0), None, "empty");
        assert_eq!(name_at(names, 5), None, "without an end");
        assert_eq!(name_at(names, 99), None);
        assert_eq!(name_at(&[b'a'; 200], 0), None, "too long");
    }
}
