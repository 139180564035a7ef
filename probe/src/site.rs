//! Which instruction of a function to probe.
//!
//! A uprobe replaces an instruction by a breakpoint. The kernel then executes the replaced instruction in one of two
//! ways (Linux, arch/x86/kernel/uprobes.c: `branch_setup_xol_ops`, `push_setup_xol_ops`): `nop`, `push reg`,
//! `call rel32`, `jmp` and the conditional jumps are emulated inside the breakpoint's trap; anything else is copied aside
//! and single-stepped, which costs a second trap. A function's first instruction is often a stepped one
//! (`sub $8,%rsp`), while an emulated one follows a few bytes later, still before any branch, with the argument in some
//! register. This module finds that instruction.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};

use crate::elf::{Executable, Symbol};
use crate::error::{ProbeError, Result};

/// Where in `struct pt_regs` (x86-64: arch/x86/include/uapi/asm/ptrace.h) a register is saved, in bytes.
pub fn pt_regs_offset(register: Register) -> Option<i16> {
    Some(match register {
        Register::R15 => 0,
        Register::R14 => 8,
        Register::R13 => 16,
        Register::R12 => 24,
        Register::RBP => 32,
        Register::RBX => 40,
        Register::R11 => 48,
        Register::R10 => 56,
        Register::R9 => 64,
        Register::R8 => 72,
        Register::RAX => 80,
        Register::RCX => 88,
        Register::RDX => 96,
        Register::RSI => 104,
        Register::RDI => 112,
        Register::RIP => 128,
        Register::RSP => 152,
        _ => return None,
    })
}

/// The instruction chosen in a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Its linked address.
    pub vaddr: u64,
    /// A register that holds the function's first argument there.
    pub argument: Register,
    /// How far above the stack pointer the return address lies there, in bytes.
    pub return_address_offset: i32,
    /// Whether the kernel emulates the instruction (if not, it is stepped: about twice as slow).
    pub emulated: bool,
}

/// On which calls of the function the instruction must be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// On every call.
    All,
    /// On those whose first argument is not a null pointer: calls with a null pointer then cost nothing,
    /// if the function tests its argument early. Where it does not, on every call.
    ArgumentNotNull,
}

/// How far from a function's start to look: prologues are far shorter.
const WALK_BYTES: usize = 160;

/// Choose the instruction to probe in a function.
///
/// # Errors
/// The function's code is not in the file.
pub fn choose(executable: &Executable, function: Symbol, calls: Calls) -> Result<Site> {
    let limit = match usize::try_from(function.size_bytes) {
        Ok(0) | Err(_) => WALK_BYTES,
        Ok(size) => size.min(WALK_BYTES),
    };
    let code = executable.bytes_at(function.vaddr, limit);
    if code.is_empty() {
        return Err(ProbeError::missing(
            "the server's executable does not hold the code of a function to be probed",
            "use --source sql",
        ));
    }
    Ok(choose_in(&code, function.vaddr, calls))
}

/// Return whether the kernel emulates a function's first instruction.
pub fn entry_is_emulated(executable: &Executable, function: Symbol) -> bool {
    let code = executable.bytes_at(function.vaddr, 16);
    let first = Decoder::with_ip(64, &code, function.vaddr, DecoderOptions::NONE).decode();
    is_emulated(&first)
}

/// Choose the instruction to probe in code that begins a function at `vaddr`.
pub fn choose_in(code: &[u8], vaddr: u64, calls: Calls) -> Site {
    let mut first_emulated = None;
    let mut walk = Walk::default();
    let mut tested = false;
    for instruction in &mut Decoder::with_ip(64, code, vaddr, DecoderOptions::NONE) {
        if instruction.is_invalid() || walk.arguments.is_empty() {
            break;
        }
        let site = Site {
            vaddr: instruction.ip(),
            argument: walk.arguments[0],
            return_address_offset: walk.pushed_bytes,
            emulated: true,
        };
        if is_emulated(&instruction) {
            match calls {
                Calls::All => return site,
                Calls::ArgumentNotNull if walk.not_null => return site,
                Calls::ArgumentNotNull => {
                    first_emulated.get_or_insert(site);
                }
            }
        }
        // Only the straight line from the entry is followed: past a branch an instruction need not be executed. The one
        // exception is the branch taken for a null argument, whose fall-through is the line for the others.
        if calls == Calls::ArgumentNotNull
            && tested
            && matches!(instruction.code(), Code::Je_rel8_64 | Code::Je_rel32_64)
        {
            walk.not_null = true;
            tested = false;
            continue;
        }
        tested = walk.tests_argument(&instruction);
        if !walk.step(&instruction) {
            break;
        }
    }
    first_emulated.unwrap_or(Site {
        vaddr,
        argument: Register::RDI,
        return_address_offset: 0,
        emulated: false,
    })
}

/// Find where a function has called another one and branches on whether the result is a null pointer: there the result is
/// at hand, and the branch is an instruction that the kernel emulates.
///
/// Nothing is returned if the function is built differently.
pub fn choose_at_result(executable: &Executable, function: Symbol) -> Option<Site> {
    choose_at_result_in(
        &executable.bytes_at(function.vaddr, WALK_BYTES),
        function.vaddr,
    )
}

/// As `choose_at_result`, in code that begins a function at `vaddr`.
pub fn choose_at_result_in(code: &[u8], vaddr: u64) -> Option<Site> {
    let mut walk = Walk::default();
    let mut called = false;
    let mut tested = false;
    for instruction in &mut Decoder::with_ip(64, code, vaddr, DecoderOptions::NONE) {
        match instruction.flow_control() {
            FlowControl::Next if !instruction.is_invalid() => {
                tested = called && walk.tests_argument(&instruction);
                if !walk.step(&instruction) {
                    return None;
                }
            }
            FlowControl::Call | FlowControl::IndirectCall if !called => {
                called = true;
                walk.arguments = vec![Register::RAX];
            }
            FlowControl::ConditionalBranch if tested && is_emulated(&instruction) => {
                return Some(Site {
                    vaddr: instruction.ip(),
                    argument: *walk.arguments.first()?,
                    return_address_offset: walk.pushed_bytes,
                    emulated: true,
                });
            }
            _ => return None,
        }
    }
    None
}

/// Return whether every kernel with uprobes and eBPF emulates this instruction.
fn is_emulated(instruction: &Instruction) -> bool {
    match instruction.code() {
        Code::Nopd | Code::Nopq => instruction.len() == 1,
        Code::Push_r64 => !matches!(instruction.op0_register(), Register::RSP),
        Code::Call_rel32_64 | Code::Jmp_rel32_64 | Code::Jmp_rel8_64 => true,
        code => code.is_jcc_short_or_near(),
    }
}

/// What is known on the straight line from a function's entry.
struct Walk {
    arguments: Vec<Register>,
    pushed_bytes: i32,
    not_null: bool,
    infos: InstructionInfoFactory,
}

impl Default for Walk {
    fn default() -> Self {
        Self {
            arguments: vec![Register::RDI],
            pushed_bytes: 0,
            not_null: false,
            infos: InstructionInfoFactory::new(),
        }
    }
}

impl Walk {
    fn tests_argument(&self, instruction: &Instruction) -> bool {
        instruction.code() == Code::Test_rm64_r64
            && instruction.op0_kind() == OpKind::Register
            && instruction.op0_register() == instruction.op1_register()
            && self.arguments.contains(&instruction.op0_register())
    }

    /// Follow one instruction; return whether the line goes on.
    fn step(&mut self, instruction: &Instruction) -> bool {
        if instruction.flow_control() != FlowControl::Next {
            return false;
        }
        let copied_to = (instruction.code() == Code::Mov_rm64_r64
            || instruction.code() == Code::Mov_r64_rm64)
            .then(|| (instruction.op0_kind(), instruction.op1_kind()))
            .filter(|kinds| *kinds == (OpKind::Register, OpKind::Register))
            .filter(|_| self.arguments.contains(&instruction.op1_register()))
            .map(|_| instruction.op0_register());
        let written: Vec<Register> = self
            .infos
            .info(instruction)
            .used_registers()
            .iter()
            .filter(|used| {
                matches!(
                    used.access(),
                    OpAccess::Write
                        | OpAccess::CondWrite
                        | OpAccess::ReadWrite
                        | OpAccess::ReadCondWrite
                )
            })
            .map(|used| used.register().full_register())
            .collect();
        self.arguments.retain(|r| !written.contains(r));
        if let Some(register) = copied_to {
            self.arguments.push(register);
        }
        if written.contains(&Register::RSP) {
            match stack_growth(instruction) {
                // Beyond what fits it is not a prologue.
                Some(bytes) => match self.pushed_bytes.checked_add(bytes) {
                    Some(sum) => self.pushed_bytes = sum,
                    None => return false,
                },
                None => return false,
            }
        }
        true
    }
}

/// Return by how many bytes the instruction moves the stack pointer down, if that is a constant.
fn stack_growth(instruction: &Instruction) -> Option<i32> {
    match instruction.mnemonic() {
        Mnemonic::Push | Mnemonic::Pop => Some(-instruction.stack_pointer_increment()),
        Mnemonic::Sub | Mnemonic::Add if instruction.op0_register() == Register::RSP => {
            let bytes = i32::try_from(instruction.try_immediate(1).ok()? as i64).ok()?;
            if instruction.mnemonic() == Mnemonic::Sub {
                Some(bytes)
            } else {
                bytes.checked_neg()
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{choose_at_result_in, choose_in, Calls, Site};
    use iced_x86::Register;

    #[test]
    fn a_push_at_the_entry_is_taken_as_it_is() {
        // push %rbp; mov %esi,%edx
        let site = choose_in(&[0x55, 0x89, 0xf2], 0x1000, Calls::All);
        assert_eq!(
            site,
            Site {
                vaddr: 0x1000,
                argument: Register::RDI,
                return_address_offset: 0,
                emulated: true
            }
        );
    }

    #[test]
    fn the_call_behind_a_stepped_prologue_is_found_with_its_register() {
        // endbr64; sub $8,%rsp; mov %esi,%edx; mov %rdi,%rsi; mov 0x100(%rip),%rdi; xor %ecx,%ecx; call +0
        let code = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 0x08, 0x89, 0xf2, 0x48, 0x89, 0xfe, 0x48,
            0x8b, 0x3d, 0, 1, 0, 0, 0x31, 0xc9, 0xe8, 0, 0, 0, 0,
        ];
        let site = choose_in(&code, 0x2000, Calls::All);
        assert_eq!(
            site,
            Site {
                vaddr: 0x2000 + 22,
                argument: Register::RSI,
                return_address_offset: 8,
                emulated: true
            }
        );
    }

    #[test]
    fn without_an_emulated_instruction_the_entry_is_stepped() {
        // sub $8,%rsp; xor %edi,%edi; ret
        let site = choose_in(&[0x48, 0x83, 0xec, 8, 0x31, 0xff, 0xc3], 0x10, Calls::All);
        assert_eq!(
            site,
            Site {
                vaddr: 0x10,
                argument: Register::RDI,
                return_address_offset: 0,
                emulated: false
            }
        );
    }

    #[test]
    fn calls_with_a_null_argument_can_be_left_alone() {
        // push %r15; mov %rdi,%r13; test %rdi,%rdi; je +0x20; mov 8(%rdi),%eax; add $1,%eax; cmp 4(%rdi),%eax; jl +2
        let code = [
            0x41, 0x57, 0x49, 0x89, 0xfd, 0x48, 0x85, 0xff, 0x74, 0x20, 0x8b, 0x47, 0x08, 0x83,
            0xc0, 0x01, 0x3b, 0x47, 0x04, 0x7c, 0x02,
        ];
        let site = choose_in(&code, 0, Calls::ArgumentNotNull);
        assert_eq!(
            site,
            Site {
                vaddr: 19,
                argument: Register::RDI,
                return_address_offset: 8,
                emulated: true
            }
        );
    }

    #[test]
    fn a_function_that_never_tests_its_argument_is_probed_on_every_call() {
        let site = choose_in(&[0x55, 0x48, 0x89, 0xe5, 0xc3], 0, Calls::ArgumentNotNull);
        assert_eq!((site.vaddr, site.emulated), (0, true));
    }

    #[test]
    fn the_branch_on_the_result_of_a_call_is_found() {
        // sub $8,%rsp; mov %rdi,%rsi; call +0; test %rax,%rax; je +8; mov 0x14(%rax),%eax
        let code = [
            0x48, 0x83, 0xec, 8, 0x48, 0x89, 0xfe, 0xe8, 0, 0, 0, 0, 0x48, 0x85, 0xc0, 0x74, 8,
            0x8b, 0x40, 0x14,
        ];
        assert_eq!(
            choose_at_result_in(&code, 0x100),
            Some(Site {
                vaddr: 0x10f,
                argument: Register::RAX,
                return_address_offset: 8,
                emulated: true
            })
        );
        assert_eq!(choose_at_result_in(&code[..12], 0), None);
    }
}
