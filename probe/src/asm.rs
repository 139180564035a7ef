//! A small eBPF assembler, so that no C compiler is needed on the machine that traces.
//!
//! Encoding: RFC 9669 (BPF instruction set), 8 bytes an instruction: opcode, registers, offset, immediate.

/// An eBPF register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reg {
    /// Return value of calls and of the program.
    R0 = 0,
    /// First argument of calls; the context on entry.
    R1 = 1,
    /// Second argument.
    R2 = 2,
    /// Third argument.
    R3 = 3,
    /// Fourth argument.
    R4 = 4,
    /// Kept over calls.
    R6 = 6,
    /// Kept over calls.
    R7 = 7,
    /// Kept over calls.
    R9 = 9,
    /// Frame pointer, read only; 512 bytes of stack lie below it.
    Frame = 10,
}

/// Width of a load or store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// 4 bytes.
    Word = 0x00,
    /// 1 byte.
    Byte = 0x10,
    /// 8 bytes.
    Double = 0x18,
}

/// Condition of a jump; comparisons are unsigned, over 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum If {
    /// Equal.
    Equal = 0x10,
    /// Not equal.
    NotEqual = 0x50,
    /// Lower.
    Lower = 0xa0,
    /// Lower or equal.
    LowerOrEqual = 0xb0,
}

/// Kernel functions a program calls (include/uapi/linux/bpf.h, `enum bpf_func_id`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Helper {
    /// `bpf_map_lookup_elem`.
    MapLookupElem = 1,
    /// `bpf_map_update_elem`.
    MapUpdateElem = 2,
    /// `bpf_map_delete_elem`.
    MapDeleteElem = 3,
    /// `bpf_ktime_get_ns`.
    KtimeGetNs = 5,
    /// `bpf_get_current_pid_tgid`.
    GetCurrentPidTgid = 14,
    /// `bpf_probe_read_user`.
    ProbeReadUser = 112,
    /// `bpf_ringbuf_reserve`.
    RingbufReserve = 131,
    /// `bpf_ringbuf_submit`.
    RingbufSubmit = 132,
}

/// A place in the program to jump to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label(usize);

/// A program in the making.
#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<u64>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

const fn encode(opcode: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> u64 {
    opcode as u64
        | ((dst as u64) << 8)
        | ((src as u64) << 12)
        | ((offset as u16 as u64) << 16)
        | ((immediate as u32 as u64) << 32)
}

impl Assembler {
    /// Begin an empty program.
    pub fn new() -> Self {
        Self::default()
    }

    fn emit(&mut self, opcode: u8, dst: u8, src: u8, offset: i16, immediate: i32) {
        self.code.push(encode(opcode, dst, src, offset, immediate));
    }

    /// Name a place that comes later (or is `bind` here).
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Put a label here.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// `dst = src`
    pub fn copy(&mut self, dst: Reg, src: Reg) {
        self.emit(0xbf, dst as u8, src as u8, 0, 0);
    }

    /// `dst = value` (sign-extended)
    pub fn set(&mut self, dst: Reg, value: i32) {
        self.emit(0xb7, dst as u8, 0, 0, value);
    }

    fn wide(&mut self, dst: Reg, kind: u8, low: u32, high: u32) {
        self.emit(0x18, dst as u8, kind, 0, low as i32);
        self.emit(0, 0, 0, 0, high as i32);
    }

    /// `dst = value` (64 bits)
    pub fn set_wide(&mut self, dst: Reg, value: u64) {
        self.wide(dst, 0, value as u32, (value >> 32) as u32);
    }

    /// `dst =` the map with this descriptor (`BPF_PSEUDO_MAP_FD`)
    pub fn set_map(&mut self, dst: Reg, map_fd: i32) {
        self.wide(dst, 1, map_fd as u32, 0);
    }

    /// `dst =` address of a byte in the only value of an array map (`BPF_PSEUDO_MAP_VALUE`)
    pub fn set_map_value(&mut self, dst: Reg, map_fd: i32, offset: u32) {
        self.wide(dst, 2, map_fd as u32, offset);
    }

    /// `dst += value`
    pub fn add(&mut self, dst: Reg, value: i32) {
        self.emit(0x07, dst as u8, 0, 0, value);
    }

    /// `dst += src`
    pub fn add_register(&mut self, dst: Reg, src: Reg) {
        self.emit(0x0f, dst as u8, src as u8, 0, 0);
    }

    /// `dst -= src`
    pub fn subtract_register(&mut self, dst: Reg, src: Reg) {
        self.emit(0x1f, dst as u8, src as u8, 0, 0);
    }

    /// `dst &= value`
    pub fn and(&mut self, dst: Reg, value: i32) {
        self.emit(0x57, dst as u8, 0, 0, value);
    }

    /// `dst |= value`
    pub fn or(&mut self, dst: Reg, value: i32) {
        self.emit(0x47, dst as u8, 0, 0, value);
    }

    /// `dst <<= bits`
    pub fn shift_left(&mut self, dst: Reg, bits: i32) {
        self.emit(0x67, dst as u8, 0, 0, bits);
    }

    /// `dst >>= bits`
    pub fn shift_right(&mut self, dst: Reg, bits: i32) {
        self.emit(0x77, dst as u8, 0, 0, bits);
    }

    /// `dst = *(src + offset)`
    pub fn load(&mut self, width: Width, dst: Reg, src: Reg, offset: i16) {
        self.emit(0x61 | width as u8, dst as u8, src as u8, offset, 0);
    }

    /// `*(dst + offset) = src`
    pub fn store(&mut self, width: Width, dst: Reg, offset: i16, src: Reg) {
        self.emit(0x63 | width as u8, dst as u8, src as u8, offset, 0);
    }

    /// `*(dst + offset) = value`
    pub fn store_value(&mut self, width: Width, dst: Reg, offset: i16, value: i32) {
        self.emit(0x62 | width as u8, dst as u8, 0, offset, value);
    }

    /// `atomically *(u64 *)(dst + offset) += src`
    pub fn atomic_add(&mut self, dst: Reg, offset: i16, src: Reg) {
        self.emit(0xdb, dst as u8, src as u8, offset, 0);
    }

    /// Jump to the label if the register compares so with the value (sign-extended).
    pub fn jump_if(&mut self, condition: If, dst: Reg, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.emit(0x05 | condition as u8, dst as u8, 0, 0, value);
    }

    /// Jump to the label if the registers compare so.
    pub fn jump_if_register(&mut self, condition: If, dst: Reg, src: Reg, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.emit(0x0d | condition as u8, dst as u8, src as u8, 0, 0);
    }

    /// Jump to the label.
    pub fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.emit(0x05, 0, 0, 0, 0);
    }

    /// `r0 = helper(r1..r5)`
    pub fn call(&mut self, helper: Helper) {
        self.emit(0x85, 0, 0, 0, helper as i32);
    }

    /// Return r0.
    pub fn exit(&mut self) {
        self.emit(0x95, 0, 0, 0, 0);
    }

    /// Resolve the jumps and return the instructions.
    ///
    /// # Panics
    /// A label was used and never bound, or lies too far: a mistake in this crate.
    pub fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let target = self.labels[label.0].expect("every label is bound");
            let distance =
                i16::try_from(target as i64 - at as i64 - 1).expect("programs are short");
            self.code[at] |= u64::from(distance as u16) << 16;
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::{Assembler, If, Reg, Width};

    #[test]
    fn instructions_are_encoded_as_the_standard_says() {
        let mut a = Assembler::new();
        let out = a.label();
        a.load(Width::Double, Reg::R7, Reg::R1, 112);
        a.jump_if(If::Equal, Reg::R7, -1, out);
        a.set_wide(Reg::R2, 0x1122_3344_5566_7788);
        a.store(Width::Byte, Reg::R9, -3, Reg::R2);
        a.bind(out);
        a.set(Reg::R0, 0);
        a.exit();
        assert_eq!(
            a.finish(),
            [
                0x0000_0000_0070_1779,
                0xffff_ffff_0003_0715,
                0x5566_7788_0000_0218,
                0x1122_3344_0000_0000,
                0x0000_0000_fffd_2973,
                0x0000_0000_0000_00b7,
                0x0000_0000_0000_0095,
            ]
        );
    }
}
