//! What an observed server can make its executable and its memory look like must not hurt who looks at it: no panic, no
//! endless work, no unbounded memory, whatever the bytes are.
//!
//! This program plays the server itself: it exports the symbols of one, and is looked at through /proc as a server is.
//! `PGSWEEP_FUZZ_TIME` is how long each test goes on, such as 60s, 20min or 1h (2s by default); `PGSWEEP_FUZZ_SEED` repeats
//! one look. `make fuzz TIME=60s` runs them among others.

use std::arch::global_asm;
use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pgsweep_probe::ability::{pool_buffers, server_can_be_traced};
use pgsweep_probe::clock::thread_processor_ns;
use pgsweep_probe::elf::Executable;
use pgsweep_probe::event::Kind;
use pgsweep_probe::hand::Hand;
use pgsweep_probe::peek::{relations, USAGE_COUNTS};
use pgsweep_probe::pool;
use pgsweep_probe::programs::{build, Common, Words};
use pgsweep_probe::server::Server;
use pgsweep_probe::site::{self, Calls};

/// The most processor time that one look may take.
const MOST_SECONDS: f64 = 5.0;
/// The most memory that this process may ever have had.
const MOST_KB: u64 = 500_000;

/// Random numbers by which a run can be repeated (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }
}

/// Do `look` with ever other random numbers, each time within its limits.
fn fuzz(what: &str, mut look: impl FnMut(&mut Random)) {
    let seconds = std::env::var("PGSWEEP_FUZZ_TIME").map_or(2.0, |text| seconds_of(&text));
    let seed = std::env::var("PGSWEEP_FUZZ_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let begin = Instant::now();
    let mut looks = 0_u64;
    let mut slowest = 0.0_f64;
    let mut source = Random(seed.unwrap_or_else(|| RandomState::new().build_hasher().finish()));
    loop {
        let seed = seed.unwrap_or_else(|| source.next());
        // Processor time, lest a busy machine makes a look slow.
        let since_ns = thread_processor_ns();
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            look(&mut Random(seed));
        }));
        assert!(looked.is_ok(), "{what}: PGSWEEP_FUZZ_SEED={seed} panics");
        let took = (thread_processor_ns() - since_ns) as f64 / 1e9;
        slowest = slowest.max(took);
        assert!(
            took < MOST_SECONDS,
            "{what}: PGSWEEP_FUZZ_SEED={seed} took {took} s"
        );
        let most_kb = memory_kb();
        assert!(
            most_kb < MOST_KB,
            "{what}: PGSWEEP_FUZZ_SEED={seed} took {most_kb} kB"
        );
        looks += 1;
        if begin.elapsed().as_secs_f64() > seconds {
            break;
        }
    }
    let ran = format!(
        "{what}: {looks} looks in {:.0} s, the slowest {slowest:.3} s, {} kB at most\n",
        begin.elapsed().as_secs_f64(),
        memory_kb()
    );
    // Not captured, as a test's own output is.
    let _ = std::io::stderr().write_all(ran.as_bytes());
}

fn seconds_of(text: &str) -> f64 {
    let unit_at = text.find(char::is_alphabetic).unwrap_or(text.len());
    let unit = match &text[unit_at..] {
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        unit => panic!("PGSWEEP_FUZZ_TIME has no unit {unit}: use s, min or h"),
    };
    text[..unit_at].trim().parse::<f64>().expect("a number") * unit
}

/// Return the most memory that this process has had.
fn memory_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|value| value.trim().trim_end_matches(" kB").parse().ok())
        .expect("VmHWM")
}

// ---- executables

const FUNCTIONS: [&str; 8] = [
    "PgStartTime",
    "NBuffers",
    "BufferDescriptors",
    "BufTableLookup",
    "BufTableInsert",
    "StrategyGetBuffer",
    "StrategySyncStart",
    "heap_beginscan",
];

/// Code as functions begin: a stepped prologue before a call, a test of the argument, a call whose result is tested.
const CODE: [&[u8]; 3] = [
    &[
        0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 0x08, 0x89, 0xf2, 0x48, 0x89, 0xfe, 0x48, 0x8b,
        0x3d, 0, 1, 0, 0, 0x31, 0xc9, 0xe8, 0, 0, 0, 0, 0xc3,
    ],
    &[
        0x41, 0x57, 0x49, 0x89, 0xfd, 0x48, 0x85, 0xff, 0x74, 0x20, 0x8b, 0x47, 0x08, 0x83, 0xc0,
        0x01, 0x3b, 0x47, 0x04, 0x7c, 0x02, 0x5d, 0xc3,
    ],
    &[
        0x48, 0x83, 0xec, 8, 0x48, 0x89, 0xfe, 0xe8, 0, 0, 0, 0, 0x48, 0x85, 0xc0, 0x74, 8, 0x8b,
        0x40, 0x14, 0xc3,
    ],
];

/// Return a small executable that has the symbols of a server, in both tables.
fn small_executable() -> Vec<u8> {
    let mut names: Vec<u8> = vec![0];
    let mut symbols: Vec<u8> = vec![0; 24];
    let mut code: Vec<u8> = Vec::new();
    let code_at = 64 + 56;
    for (number, function) in FUNCTIONS.iter().enumerate() {
        let body = CODE[number % CODE.len()];
        symbols.extend((names.len() as u32).to_le_bytes());
        symbols.extend([0x12, 0, 1, 0]); // global, function, section 1
        symbols.extend((code_at as u64 + code.len() as u64).to_le_bytes());
        symbols.extend((body.len() as u64).to_le_bytes());
        names.extend(function.as_bytes());
        names.push(0);
        code.extend(body);
    }
    let symbols_at = code_at + code.len();
    let names_at = symbols_at + symbols.len();
    let sections_at = names_at + names.len();
    let total = sections_at + 4 * 64;
    let mut file = Vec::new();
    file.extend([0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.extend([3, 0, 62, 0, 1, 0, 0, 0]); // ET_DYN, x86-64
    file.extend(
        [0, 64, sections_at as u64]
            .iter()
            .flat_map(|n| n.to_le_bytes()),
    ); // entry, headers
    file.extend([0; 4]);
    for number in [64_u16, 56, 1, 64, 4, 0] {
        file.extend(number.to_le_bytes());
    }
    file.extend([1, 0, 0, 0, 5, 0, 0, 0]); // PT_LOAD
    for number in [0, 0, 0, total as u64, total as u64, 4096] {
        file.extend(u64::to_le_bytes(number));
    }
    file.extend(code);
    file.extend(&symbols);
    file.extend(&names);
    file.extend([0; 64]);
    for (kind, at, size, link) in [
        (11_u32, symbols_at, symbols.len(), 2_u32), // SHT_DYNSYM
        (3, names_at, names.len(), 0),              // SHT_STRTAB
        (2, symbols_at, symbols.len(), 2),          // SHT_SYMTAB
    ] {
        file.extend(0_u32.to_le_bytes());
        file.extend(kind.to_le_bytes());
        for number in [0, 0, at as u64, size as u64] {
            file.extend(number.to_le_bytes());
        }
        file.extend(link.to_le_bytes());
        file.extend([0; 4]);
        file.extend([8_u64, 24].iter().flat_map(|n| n.to_le_bytes()));
    }
    assert_eq!(file.len(), total);
    file
}

/// Change a few places, most of them by numbers at which something ends or overflows.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(8) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(8) {
            0 => bytes[at] = random.next() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => {
                let number = random.one_of(&[
                    0,
                    1,
                    u64::MAX,
                    u64::MAX - 63,
                    i64::MAX as u64,
                    1 << 32,
                    u64::from(u32::MAX),
                    bytes.len() as u64,
                    16 << 20,
                    64 << 20,
                ]);
                put(bytes, at & !7, &number.to_le_bytes());
            }
            3 => {
                let number = random.one_of(&[0, 1, u32::MAX, i32::MAX as u32, 0xffff, 1 << 16]);
                put(bytes, at & !3, &number.to_le_bytes());
            }
            4 => put(
                bytes,
                at & !1,
                &random
                    .one_of(&[0, 1, u16::MAX, 0xff00, 24, 64])
                    .to_le_bytes(),
            ),
            5 => bytes.truncate(at),
            6 => {
                let (from, length) = (random.below(bytes.len()), random.below(64));
                let part = bytes[from..bytes.len().min(from + length)].to_vec();
                put(bytes, at, &part);
            }
            _ => {
                let number = random.next() >> random.below(64);
                put(bytes, at & !7, &number.to_le_bytes());
            }
        }
    }
}

fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    let end = bytes.len().min(at + part.len());
    if at < end {
        bytes[at..end].copy_from_slice(&part[..end - at]);
    }
}

/// A file in memory, as large as wished: what is not written takes none.
fn file_in_memory(bytes: &[u8], length_bytes: u64) -> File {
    // SAFETY: the name ends with a zero byte, and the descriptor is new and nobody else's.
    let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"executable".as_ptr(), 0)) };
    file.write_all(bytes).expect("memory");
    if length_bytes > bytes.len() as u64 {
        file.set_len(length_bytes).expect("memory");
    }
    file
}

/// Do with an executable what a recording does before it attaches anything.
fn look_at_executable(path: &Path) -> bool {
    let Ok(executable) = Executable::read(path) else {
        return false;
    };
    for name in FUNCTIONS {
        let Some(function) = executable.symbol(name) else {
            continue;
        };
        assert!(executable.bytes_at(function.vaddr, 100).len() <= 100);
        site::entry_is_emulated(&executable, function);
        let mut words = vec![Words::Nothing];
        for calls in [Calls::All, Calls::ArgumentNotNull] {
            if let Ok(site) = site::choose(&executable, function, calls) {
                words.push(Words::TagWithCaller(
                    site.argument,
                    site.return_address_offset,
                ));
            }
        }
        if let Some(site) = site::choose_at_result(&executable, function) {
            words.push(Words::Entry(
                site.argument,
                site.return_address_offset,
                None,
            ));
        }
        let common = Common {
            ring_fd: 3,
            counters_fd: 4,
            identity_address: function.vaddr,
            identity: 1,
            databases: vec![5],
            ignored_callers: vec![(function.vaddr, function.size_bytes)],
        };
        for words in words {
            assert!(!build(&common, Kind::Lookup, words).is_empty());
        }
        executable.file_offset(function.vaddr);
    }
    executable.lowest_vaddr();
    true
}

#[test]
fn executables() {
    let seeds = [
        small_executable(),
        fs::read("/bin/true").unwrap_or_default(),
    ];
    let whole = file_in_memory(&seeds[0], 0);
    let path = PathBuf::from(format!("/proc/self/fd/{}", whole.as_raw_fd()));
    assert!(look_at_executable(&path), "the seed is an executable");
    let executable = Executable::read(&path).expect("the seed");
    let lookup = executable.symbol("BufTableLookup").expect("a symbol");
    assert_eq!(executable.bytes_at(lookup.vaddr, CODE[0].len()), CODE[0]);
    fuzz("executables", |random| {
        let mut bytes = seeds[usize::from(random.below(8) == 0)].clone();
        mutate(random, &mut bytes);
        let length_bytes = random.one_of(&[0, 0, 0, 1 << 20, 80 << 20, 1 << 40]);
        let file = file_in_memory(&bytes, length_bytes);
        look_at_executable(&PathBuf::from(format!(
            "/proc/self/fd/{}",
            file.as_raw_fd()
        )));
    });
}

// ---- memory

// A server's variables, by its own names.
#[no_mangle]
#[used]
static NBuffers: AtomicU32 = AtomicU32::new(0);
#[no_mangle]
#[used]
static BufferDescriptors: AtomicU64 = AtomicU64::new(0);
#[no_mangle]
#[used]
static PgStartTime: AtomicU64 = AtomicU64::new(0);
#[no_mangle]
#[used]
static PgsweepFuzzControl: AtomicU64 = AtomicU64::new(0);

// The function by which the clock hand is found; never called.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.StrategySyncStart,\"axR\",@progbits",
    ".globl StrategySyncStart",
    ".type StrategySyncStart,@function",
    "StrategySyncStart:",
    "push rbp",
    "mov rax, qword ptr [rip + {control}]",
    "pop rbp",
    "ret",
    ".size StrategySyncStart, .-StrategySyncStart",
    ".popsection",
    control = sym PgsweepFuzzControl,
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.StrategySyncStart,\"axR\",@progbits",
    ".globl StrategySyncStart",
    ".type StrategySyncStart,@function",
    "StrategySyncStart:",
    "adrp x0, {control}",
    "ldr x0, [x0, :lo12:{control}]",
    "ret",
    ".size StrategySyncStart, .-StrategySyncStart",
    ".popsection",
    control = sym PgsweepFuzzControl,
);

extern "C" {
    fn StrategySyncStart();
}

const WORDS: usize = 16;
const BUFFERS: usize = 6000;

/// Memory for descriptors, with nothing mapped behind it.
struct Descriptors {
    words: &'static [AtomicU32],
}

impl Descriptors {
    fn new() -> Self {
        let bytes = (BUFFERS * WORDS * 4).next_multiple_of(4096);
        // SAFETY: a new mapping, never unmapped; its last page is taken away again so that reading over the end fails.
        let words = unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                bytes + 4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::munmap(start.byte_add(bytes), 4096), 0);
            std::slice::from_raw_parts(start.cast::<AtomicU32>(), bytes / 4)
        };
        let descriptors = Self { words };
        for index in 0..bytes / 4 / WORDS {
            descriptors.make_whole(index);
        }
        descriptors
    }

    fn make_whole(&self, index: usize) {
        let number = index as u32;
        let state = 3 << 24 | (number % 6) << 18;
        let tag = [1663, 5, 16384 + number % 300, 0, number];
        for (at, word) in tag.into_iter().chain([number, state]).enumerate() {
            self.words[index * WORDS + at].store(word, Ordering::Relaxed);
        }
    }

    fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }
}

/// Return an address: of what is there, of something else of ours, or of nothing.
fn anywhere(random: &mut Random, descriptors: &Descriptors, mappings: &[(u64, u64)]) -> u64 {
    match random.below(8) {
        0 => random.next(),
        1 => random.next() >> random.below(64),
        2 => random.one_of(&[
            0,
            1,
            64,
            u64::MAX,
            u64::MAX - 63,
            u64::MAX - 19,
            1 << 47,
            1 << 63,
        ]),
        3 | 4 => {
            let (start, end) = random.one_of(mappings);
            start + random.next() % (end - start)
        }
        5 => {
            let (start, end) = random.one_of(mappings);
            let edge = random.one_of(&[start, end]);
            edge.wrapping_add(random.below(128) as u64).wrapping_sub(64)
        }
        _ => {
            let index = random.below(BUFFERS) as u64;
            descriptors.address() + random.one_of(&[0, 64 * index, 64 * index + 4])
        }
    }
}

fn mappings() -> Vec<(u64, u64)> {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    maps.lines()
        .filter_map(|line| {
            let (start, end) = line.split_whitespace().next()?.split_once('-')?;
            Some((
                u64::from_str_radix(start, 16).ok()?,
                u64::from_str_radix(end, 16).ok()?,
            ))
        })
        .collect()
}

fn look_at_memory(server: &Server, version_num: u32, threads: usize) -> bool {
    let buffers = NBuffers.load(Ordering::Relaxed);
    Hand::read(server, version_num, buffers);
    let _ = pool_buffers(server, version_num);
    pool::descriptors(server, version_num);
    let listed = pool::read(server, version_num, None);
    if let Ok(pool) = &listed {
        assert!(pool.rel.len() <= buffers as usize);
        assert!(pool.usage_count.iter().all(|count| *count <= 5));
    }
    if let Ok(counted) = relations(server, version_num, Some(threads)) {
        assert_eq!(counted.usage_counts.len(), counted.rel.len() * USAGE_COUNTS);
        let used: i64 = counted.usage_counts.iter().sum();
        assert!(used <= i64::from(buffers));
    }
    listed.is_ok()
}

/// Ends the threads that look at it when it goes.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn memories() {
    // Named here, because what nobody uses is not linked.
    std::hint::black_box(StrategySyncStart as unsafe extern "C" fn());
    PgStartTime.store(42, Ordering::Relaxed);
    let mut server = Server::open(std::process::id()).expect("ourselves");
    server.require_start_time(42).expect("our start time");
    assert!(server.require_start_time(43).is_err());
    assert!(server.strategy_control().is_some());
    let _ = server_can_be_traced(&server);
    let descriptors = Descriptors::new();
    let control: &'static [AtomicU32; 8] = Box::leak(Box::default());
    NBuffers.store(BUFFERS as u32, Ordering::Relaxed);
    BufferDescriptors.store(descriptors.address(), Ordering::Relaxed);
    PgsweepFuzzControl.store(control.as_ptr() as u64, Ordering::Relaxed);
    assert!(look_at_memory(&server, 180_000, 2), "the seed is a pool");

    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        // The memory changes while it is read: now and then a word of a descriptor, or of the hand.
        scope.spawn(|| {
            let mut random = Random(7);
            while !stop.load(Ordering::Relaxed) {
                let index = random.below(BUFFERS);
                let word = &descriptors.words[index * WORDS + random.below(8)];
                word.store(random.next() as u32, Ordering::Relaxed);
                thread::sleep(Duration::from_micros(random.below(2000) as u64));
                descriptors.make_whole(index);
                control[1].fetch_add(random.below(3) as u32, Ordering::Relaxed);
            }
        });
        fuzz("memories", |random| {
            let mappings = mappings();
            let buffers = match random.below(6) {
                0 => random.next() as u32,
                1 => random.one_of(&[0, 1, 15, 16, 17, (1 << 30) - 1, 1 << 30, u32::MAX]),
                2 => random.below(BUFFERS) as u32,
                _ => BUFFERS as u32,
            };
            NBuffers.store(buffers, Ordering::Relaxed);
            let array = if random.below(3) == 0 {
                descriptors.address()
            } else {
                anywhere(random, &descriptors, &mappings)
            };
            BufferDescriptors.store(array, Ordering::Relaxed);
            let strange = random.below(64) == 0;
            let hand = if strange {
                anywhere(random, &descriptors, &mappings)
            } else {
                control.as_ptr() as u64
            };
            PgsweepFuzzControl.store(hand, Ordering::Relaxed);
            let version_num = random.one_of(&[120_000, 150_018, 180_000, 190_000, 200_000, 0]);
            look_at_memory(&server, version_num, 1 + random.below(4));
            if strange {
                // What it took for a position holds it back from then on.
                server = Server::open(std::process::id()).expect("ourselves");
            }
        });
    });
}
