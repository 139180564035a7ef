//! The eBPF programs that run at the probes.
//!
//! Each is as short as it can be, since it runs at every page access: is this our server (other clusters may run the
//! same file), is the caller one that accesses the page, is the database wanted; then one event into the ring buffer,
//! without waking anybody. A full ring buffer is counted.
//!
//! Addresses are those of the wanted cluster, whose processes are all forks of one postmaster and so have the same; in
//! another cluster's process they lead to nothing or to another value.
//!
//! Register use: r6 the context (`struct pt_regs`), r9 the event.
//! Stack: 20 bytes of words at -32, a scratch word at -8.

use iced_x86::Register;

use crate::asm::{Assembler, Helper, If, Label, Reg, Width};
use crate::event::{
    Kind, BUFFER_KNOWN, BUFFER_OFFSET, BUFFER_PINNED, EVENT_BYTES, KIND_OFFSET, PID_OFFSET,
    TIME_OFFSET,
};
use crate::site::pt_regs_offset;

const WORDS: i16 = -32;
const SCRATCH: i16 = -8;
const BPF_RB_NO_WAKEUP: i32 = 1;

// `BufferDesc.state` (src/include/storage/buf_internals.h): the lower half of its 64 bits from 19 on, see descriptor.rs.
const PINS: i32 = (1 << 18) - 1;
const USAGE_COUNT_SHIFT: i32 = 18;

/// What all programs of one tracer have in common.
#[derive(Debug, Clone)]
pub struct Common {
    /// Descriptor of the ring buffer.
    pub ring_fd: i32,
    /// Descriptor of the array whose first word counts lost events.
    pub counters_fd: i32,
    /// Address of a variable that identifies the cluster.
    pub identity_address: u64,
    /// Its value in the wanted cluster (8 bytes).
    pub identity: u64,
    /// Databases wanted; all if empty.
    pub databases: Vec<u32>,
    /// Code (first address, size in bytes) whose calls are not page accesses.
    pub ignored_callers: Vec<(u64, u64)>,
}

/// Where the states of buffers lie in the server's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// Address, as loaded, of the first descriptor; every server process has them at the same one.
    pub address: u64,
    /// Size of one as a power of two.
    pub size_bits: i32,
    /// Offset of the state word.
    pub state_offset: i32,
}

/// Where a program finds the words of its event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Words {
    /// A buffer tag of 20 bytes lies where the register points.
    Tag(Register),
    /// A buffer tag, and callers are distinguished: the return address lies this far above the stack pointer.
    TagWithCaller(Register, i32),
    /// The register points to an entry of the buffer mapping table, tag and buffer number, or is null where there is none;
    /// and callers as above.
    Entry(Register, i32, Option<Descriptors>),
    /// The locator (12 bytes) lies where the first argument points; fork and block are the second and third argument.
    LocatorForkBlock,
    /// The locator lies where the first argument points; word 4 is the sixth argument, bit 31 set if the fifth is
    /// not null.
    ScanBegin,
    /// The first argument points to a structure that begins with a pointer to the locator.
    ScanRelation,
    /// The locator lies where the first argument points.
    Locator,
    /// Words 0 and 1 are the register; word 4 is the number it points to.
    Strategy(Register),
    /// Words 0 and 1 are the first argument.
    Address,
    /// Word 4 is the first argument.
    Number,
    /// Word 1 is the first argument.
    Database,
    /// None.
    Nothing,
    /// An event for each fork: the locator lies where the first argument points, the fork numbers where the second
    /// does, their count is the third, their first blocks lie where the fourth points.
    Forks,
    /// An event for each relation: the first argument points to an array of pointers to locators, the second is
    /// their count.
    Relations,
}

/// The largest number of relations recorded of one transaction's drops. If the list is truncated, a simulator keeps
/// some pages too long.
const MOST_RELATIONS: i32 = 64;

struct Builder<'a> {
    a: Assembler,
    common: &'a Common,
    kind: Kind,
    out: Label,
    lost: Label,
}

/// Assemble the program of one probe.
pub fn build(common: &Common, kind: Kind, words: Words) -> Vec<u64> {
    let mut a = Assembler::new();
    let (out, lost) = (a.label(), a.label());
    let mut b = Builder {
        a,
        common,
        kind,
        out,
        lost,
    };
    b.a.copy(Reg::R6, Reg::R1);
    let identity = (common.identity_address, common.identity);
    only_cluster(&mut b.a, identity, SCRATCH, out);
    b.body(words);
    b.finish()
}

fn offset(register: Register) -> i16 {
    pt_regs_offset(register).expect("a general register")
}

/// `*(frame + to) = *user(r3)`, or on to `unread`: the helper takes no page fault, so that it cannot read what this
/// process has not touched yet.
fn read_user_or(a: &mut Assembler, to: i16, size_bytes: i32, unread: Label) {
    a.copy(Reg::R1, Reg::Frame);
    a.add(Reg::R1, i32::from(to));
    a.set(Reg::R2, size_bytes);
    a.call(Helper::ProbeReadUser);
    a.jump_if(If::NotEqual, Reg::R0, 0, unread);
}

/// Go on in processes of one cluster only, and on to `out` in all others.
///
/// # Arguments
/// `identity` is the address of the variable that identifies a cluster, and its value in the wanted one (8 bytes); at
/// `scratch` there is room for it on the stack.
pub(crate) fn only_cluster(a: &mut Assembler, identity: (u64, u64), scratch: i16, out: Label) {
    a.set_wide(Reg::R3, identity.0);
    read_user_or(a, scratch, 8, out);
    a.load(Width::Double, Reg::R1, Reg::Frame, scratch);
    a.set_wide(Reg::R2, identity.1);
    a.jump_if_register(If::NotEqual, Reg::R1, Reg::R2, out);
}

impl Builder<'_> {
    /// As `read_user_or`; an event that cannot be read is lost.
    fn read_user(&mut self, to: i16, size_bytes: i32) {
        read_user_or(&mut self.a, to, size_bytes, self.lost);
    }

    fn register(&mut self, to: Reg, register: Register) {
        self.a.load(Width::Double, to, Reg::R6, offset(register));
    }

    fn only_accessing_callers(&mut self, return_address_offset: i32) {
        if self.common.ignored_callers.is_empty() {
            return;
        }
        self.register(Reg::R3, Register::RSP);
        self.a.add(Reg::R3, return_address_offset);
        self.read_user(SCRATCH, 8);
        self.a.load(Width::Double, Reg::R1, Reg::Frame, SCRATCH);
        for &(start, size_bytes) in &self.common.ignored_callers {
            // A return address is past its call's first byte, so that it lies in (start, start + size].
            self.a.set_wide(Reg::R2, start.wrapping_add(1));
            self.a.copy(Reg::R3, Reg::R1);
            self.a.subtract_register(Reg::R3, Reg::R2);
            // A size that no function has would be taken for a negative number, below which all callers are.
            let size_bytes = i32::try_from(size_bytes).unwrap_or(0);
            self.a.jump_if(If::Lower, Reg::R3, size_bytes, self.out);
        }
    }

    fn only_wanted_databases(&mut self) {
        if self.common.databases.is_empty() {
            return;
        }
        let wanted = self.a.label();
        self.a.load(Width::Word, Reg::R1, Reg::Frame, WORDS + 4);
        for &database in &self.common.databases {
            // A 32-bit oid was loaded zero-extended while an immediate is sign-extended: compare by register.
            self.a.set_wide(Reg::R2, u64::from(database));
            self.a.jump_if_register(If::Equal, Reg::R1, Reg::R2, wanted);
        }
        self.a.jump(self.out);
        self.a.bind(wanted);
    }

    fn clear_words(&mut self) {
        self.a.store_value(Width::Double, Reg::Frame, WORDS, 0);
        self.a.store_value(Width::Double, Reg::Frame, WORDS + 8, 0);
        self.a.store_value(Width::Word, Reg::Frame, WORDS + 16, 0);
    }

    /// Write the event, or count it as lost.
    fn emit(&mut self) {
        self.a.set_map(Reg::R1, self.common.ring_fd);
        self.a.set(Reg::R2, EVENT_BYTES as i32);
        self.a.set(Reg::R3, 0);
        self.a.call(Helper::RingbufReserve);
        self.a.jump_if(If::Equal, Reg::R0, 0, self.lost);
        self.a.copy(Reg::R9, Reg::R0);
        for (width, at) in [(Width::Double, 0), (Width::Double, 8), (Width::Word, 16)] {
            self.a.load(width, Reg::R1, Reg::Frame, WORDS + at);
            self.a.store(width, Reg::R9, at, Reg::R1);
        }
        self.a
            .store_value(Width::Byte, Reg::R9, KIND_OFFSET, self.kind as i32);
        self.a.call(Helper::GetCurrentPidTgid);
        self.a.shift_right(Reg::R0, 32);
        self.a.store(Width::Word, Reg::R9, PID_OFFSET, Reg::R0);
        self.a.call(Helper::KtimeGetNs);
        self.a.store(Width::Double, Reg::R9, TIME_OFFSET, Reg::R0);
        self.a.copy(Reg::R1, Reg::R9);
        self.a.set(Reg::R2, BPF_RB_NO_WAKEUP);
        self.a.call(Helper::RingbufSubmit);
    }

    fn finish(mut self) -> Vec<u64> {
        self.a.bind(self.out);
        self.a.set(Reg::R0, 0);
        self.a.exit();
        self.a.bind(self.lost);
        self.a.set_map_value(Reg::R1, self.common.counters_fd, 0);
        self.a.set(Reg::R2, 1);
        self.a.atomic_add(Reg::R1, 0, Reg::R2);
        self.a.jump(self.out);
        self.a.finish()
    }

    fn locator_at_first_argument(&mut self) {
        self.register(Reg::R3, Register::RDI);
        self.read_user(WORDS, 12);
        self.only_wanted_databases();
    }

    fn body(&mut self, words: Words) {
        if !matches!(
            words,
            Words::Tag(_) | Words::TagWithCaller(..) | Words::Entry(..)
        ) {
            self.clear_words();
        }
        match words {
            Words::Tag(register) => self.tag(register),
            Words::TagWithCaller(register, return_address_offset) => {
                self.only_accessing_callers(return_address_offset);
                self.tag(register);
            }
            Words::Entry(register, return_address_offset, descriptors) => {
                self.only_accessing_callers(return_address_offset);
                return self.entry(register, descriptors);
            }
            Words::LocatorForkBlock => {
                self.locator_at_first_argument();
                self.register(Reg::R1, Register::RSI);
                self.a.store(Width::Byte, Reg::Frame, WORDS + 12, Reg::R1);
                self.register(Reg::R1, Register::RDX);
                self.a.store(Width::Word, Reg::Frame, WORDS + 16, Reg::R1);
            }
            Words::ScanBegin => {
                self.locator_at_first_argument();
                let serial = self.a.label();
                self.register(Reg::R1, Register::R9);
                self.a.store(Width::Word, Reg::Frame, WORDS + 16, Reg::R1);
                self.register(Reg::R1, Register::R8);
                self.a.jump_if(If::Equal, Reg::R1, 0, serial);
                // Bit 31 of word 4 is the top bit of its last byte; no scan option is that high.
                self.a
                    .store_value(Width::Byte, Reg::Frame, WORDS + 19, 0x80);
                self.a.bind(serial);
            }
            Words::ScanRelation => {
                self.register(Reg::R3, Register::RDI);
                self.read_user(SCRATCH, 8);
                self.a.load(Width::Double, Reg::R3, Reg::Frame, SCRATCH);
                self.read_user(WORDS, 12);
                self.only_wanted_databases();
            }
            Words::Locator => self.locator_at_first_argument(),
            Words::Strategy(register) => {
                self.register(Reg::R3, register);
                self.a.jump_if(If::Equal, Reg::R3, 0, self.out);
                self.a.store(Width::Double, Reg::Frame, WORDS, Reg::R3);
                self.read_user(WORDS + 16, 4);
            }
            Words::Address => {
                self.register(Reg::R1, Register::RDI);
                self.a.store(Width::Double, Reg::Frame, WORDS, Reg::R1);
            }
            Words::Number | Words::Database => {
                let at = if words == Words::Number { 16 } else { 4 };
                self.register(Reg::R1, Register::RDI);
                self.a.store(Width::Word, Reg::Frame, WORDS + at, Reg::R1);
            }
            Words::Nothing => {}
            Words::Forks => return self.forks(),
            Words::Relations => return self.relations(),
        }
        self.emit();
    }

    fn tag(&mut self, register: Register) {
        self.register(Reg::R3, register);
        self.read_user(WORDS, 20);
        self.only_wanted_databases();
    }

    /// A hit reads its tag from the table's entry, and the state of its buffer; an absent page is sent without a tag.
    fn entry(&mut self, register: Register, descriptors: Option<Descriptors>) {
        let (found, done) = (self.a.label(), self.a.label());
        self.register(Reg::R3, register);
        self.a.jump_if(If::NotEqual, Reg::R3, 0, found);
        self.clear_words();
        self.kind = Kind::Absent;
        self.emit();
        self.a.jump(done);
        self.a.bind(found);
        self.kind = Kind::Hit;
        self.read_user(WORDS, 24);
        self.only_wanted_databases();
        if let Some(at) = descriptors {
            self.a.load(Width::Word, Reg::R1, Reg::Frame, WORDS + 20);
            self.a.shift_left(Reg::R1, at.size_bits);
            self.a
                .set_wide(Reg::R3, at.address.wrapping_add(at.state_offset as u64));
            self.a.add_register(Reg::R3, Reg::R1);
            let (free, untouched) = (self.a.label(), self.a.label());
            read_user_or(&mut self.a, SCRATCH, 4, untouched);
            self.a.load(Width::Word, Reg::R1, Reg::Frame, SCRATCH);
            self.a.copy(Reg::R2, Reg::R1);
            self.a.shift_right(Reg::R2, USAGE_COUNT_SHIFT);
            self.a.and(Reg::R2, 0xf);
            self.a.or(Reg::R2, i32::from(BUFFER_KNOWN));
            self.a.and(Reg::R1, PINS);
            self.a.jump_if(If::Equal, Reg::R1, 0, free);
            self.a.or(Reg::R2, i32::from(BUFFER_PINNED));
            self.a.bind(free);
            self.a
                .store(Width::Byte, Reg::Frame, WORDS + BUFFER_OFFSET, Reg::R2);
            // A descriptor in a page of memory that this process never touched: the event goes without the state.
            self.a.bind(untouched);
        }
        self.emit();
        self.a.bind(done);
    }

    fn forks(&mut self) {
        self.locator_at_first_argument();
        for i in 0..4 {
            self.register(Reg::R1, Register::RDX);
            self.a.jump_if(If::LowerOrEqual, Reg::R1, i, self.out);
            self.register(Reg::R3, Register::RSI);
            self.a.add(Reg::R3, 4 * i);
            self.read_user(WORDS + 12, 4);
            self.register(Reg::R3, Register::RCX);
            self.a.add(Reg::R3, 4 * i);
            self.read_user(WORDS + 16, 4);
            self.emit();
        }
    }

    fn relations(&mut self) {
        for i in 0..MOST_RELATIONS {
            self.register(Reg::R1, Register::RSI);
            self.a.jump_if(If::LowerOrEqual, Reg::R1, i, self.out);
            self.register(Reg::R3, Register::RDI);
            self.a.add(Reg::R3, 8 * i);
            self.read_user(SCRATCH, 8);
            self.a.load(Width::Double, Reg::R3, Reg::Frame, SCRATCH);
            self.read_user(WORDS, 12);
            self.emit();
        }
    }
}
