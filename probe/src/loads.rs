//! The address from which code loads a variable: the only thing that peeking reads from machine code.

use iced_x86::{Code, Decoder, DecoderOptions};

use crate::elf::Machine;

/// Return the address, as linked, of the first variable of eight bytes that this code loads.
///
/// `code` is the beginning of a function that was linked at `vaddr`. Only loads at a distance from the instruction itself
/// are found, which is how position-independent code reads a variable of its own file.
#[must_use]
pub fn first_variable(machine: Machine, code: &[u8], vaddr: u64) -> Option<u64> {
    match machine {
        Machine::X86_64 => Decoder::with_ip(64, code, vaddr, DecoderOptions::NONE)
            .into_iter()
            .find(|i| i.code() == Code::Mov_r64_rm64 && i.is_ip_rel_memory_operand())
            .map(|i| i.ip_rel_memory_address()),
        Machine::Arm64 => first_variable_arm64(code, vaddr),
    }
}

/// Follow `adrp`, which puts the address of a page of 4 kB into a register, to the `ldr` that adds the offset in it
/// (Arm Architecture Reference Manual for A-profile, C6.2 "ADRP" and "LDR (immediate)", unsigned offset).
fn first_variable_arm64(code: &[u8], vaddr: u64) -> Option<u64> {
    let mut pages: [Option<u64>; 32] = [None; 32];
    for (number, word) in code.chunks_exact(4).enumerate() {
        let at = vaddr.wrapping_add(4 * number as u64);
        let instruction = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        let target = (instruction & 0x1f) as usize;
        if instruction & 0x9f00_0000 == 0x9000_0000 {
            let low = i64::from(instruction >> 29 & 3);
            let high = i64::from(instruction >> 5 & 0x7_ffff);
            // 21 bits with a sign.
            let distance = (high << 2 | low) << 43 >> 43;
            pages[target] = Some((at & !0xfff).wrapping_add_signed(distance << 12));
        } else if instruction & 0xffc0_0000 == 0xf940_0000 {
            let base = (instruction >> 5 & 0x1f) as usize;
            if let Some(page) = pages[base] {
                return Some(page.wrapping_add(u64::from(instruction >> 10 & 0xfff) * 8));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginning of `StrategySyncStart` in Debian's PostgreSQL 15.20 for arm64, which is linked at 0x3ffcc4.
    const ARM64: [u32; 8] = [
        0xa9bc_7bfd, // stp x29, x30, [sp, #-64]!
        0x9100_03fd, // mov x29, sp
        0xa902_5bf5, // stp x21, x22, [sp, #32]
        0xf000_2455, // adrp x21, 88a000
        0xa901_53f3, // stp x19, x20, [sp, #16]
        0xaa01_03f4, // mov x20, x1
        0xaa00_03f3, // mov x19, x0
        0xf945_aaa1, // ldr x1, [x21, #2896]
    ];

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn the_page_and_the_offset_in_it_make_the_address() {
        assert_eq!(
            first_variable(Machine::Arm64, &bytes(&ARM64), 0x3f_fcc4),
            Some(0x88_a000 + 2896)
        );
        assert_eq!(
            first_variable(Machine::Arm64, &bytes(&ARM64[..7]), 0x3f_fcc4),
            None
        );
    }

    #[test]
    fn a_page_may_lie_before_the_code() {
        // adrp x1, -1 page; ldr x1, [x1, #8]
        let code = bytes(&[0xf0ff_ffe1, 0xf940_0421]);
        assert_eq!(first_variable(Machine::Arm64, &code, 0x5000), Some(0x4008));
    }

    #[test]
    fn x86_64_reads_it_at_a_distance_from_the_next_instruction() {
        // push rbp; mov rax, [rip + 0x10]
        let code = [0x55, 0x48, 0x8b, 0x05, 0x10, 0, 0, 0];
        assert_eq!(
            first_variable(Machine::X86_64, &code, 0x1000),
            Some(0x1008 + 0x10)
        );
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        for seed in 0..2000u32 {
            let code: Vec<u8> = (0..64)
                .map(|i| (seed.wrapping_mul(2_654_435_761).rotate_left(i) >> (i % 24)) as u8)
                .collect();
            for machine in [Machine::X86_64, Machine::Arm64] {
                let _ = first_variable(machine, &code, u64::MAX - 32);
            }
        }
    }
}
