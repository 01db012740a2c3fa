//! Assembles a seccomp filter: a binary search over ranges of system call numbers with the same
//! action.
//!
//! Each sandbox loads a filter of its own, and the kernel checks and compiles every instruction
//! each time. A tree of ranges costs about half of a chain of comparisons (measured: 70 against 111
//! µs for 61 calls). The crate `seccompiler` makes chains, and supports only one action per filter.

use crate::daemon::sys::{Errno, arch::AUDIT_ARCH, bpf::Instruction};

// Classic BPF (linux/bpf_common.h).
const LOAD_WORD: u16 = 0x20;
const RETURN: u16 = 0x06;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER_OR_EQUAL: u16 = 0x35;
const JUMP_BITS_SET: u16 = 0x45;
const AND: u16 = 0x54;
const XOR: u16 = 0xa4;
const OR_INDEX: u16 = 0x4c;
const COPY_TO_INDEX: u16 = 0x07;

// struct seccomp_data (linux/seccomp.h), little-endian: the low half of an argument comes first.
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const fn argument_offset(index: u32) -> u32 {
    16 + 8 * index
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyscallAction {
    Allow,
    Refuse(Errno),
    Report,
    /// Decides by the arguments. Seccomp sees their values, but not what they point to.
    Decide(ArgumentDecision),
}

/// Tests in order. The first that matches decides, else `otherwise`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ArgumentDecision {
    pub(super) tests: &'static [ArgumentTest],
    /// The verdict if no test matches.
    pub(super) otherwise: SyscallVerdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ArgumentTest {
    /// The test matches if all conditions hold.
    pub(super) all: &'static [ArgumentCondition],
    /// The verdict if the test matches.
    pub(super) then: SyscallVerdict,
}

/// A condition on the lower half of one argument. The kernel uses only that half of the arguments
/// compared here. Comparing all 64 bits could be evaded by setting the others (CVE-2019-10063).
///
/// The first number is always the index of the argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentCondition {
    /// The argument has this value.
    Equals(u32, u32),
    /// The argument, masked with the first number, has the second as its value.
    MaskedEquals(u32, u32, u32),
    /// The argument has one of these bits set.
    AnyOf(u32, u32),
    /// The upper halves of two arguments, which the kernel ignores, have these values. The time of the
    /// comparison does not tell whether one of them has.
    UpperHalvesEqual([(u32, u32); 2]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyscallVerdict {
    Allow,
    Refuse(Errno),
    /// Reports the call to the process that loaded the filter, which lets it continue.
    Report,
}

pub(super) const REFUSE_EPERM: SyscallVerdict = SyscallVerdict::Refuse(Errno::PERM);

/// Refuses a call if one of these conditions holds.
macro_rules! refuse_if {
    ($($condition:expr),+ $(,)?) => {
        SyscallAction::Decide(ArgumentDecision { tests: &[$(ArgumentTest { all: &[$condition], then: REFUSE_EPERM }),+], otherwise: SyscallVerdict::Allow })
    };
}
pub(super) use refuse_if;

/// Reports a call if one of these conditions holds, and allows it.
macro_rules! report_if {
    ($($condition:expr),+ $(,)?) => {
        SyscallAction::Decide(ArgumentDecision { tests: &[$(ArgumentTest { all: &[$condition], then: SyscallVerdict::Report }),+], otherwise: SyscallVerdict::Allow })
    };
}
pub(super) use report_if;

/// Assembles the filter that applies `actions[n]` to call number n, and `beyond` to higher numbers.
/// A call of another architecture kills the process, because its numbers mean something else.
pub(super) fn assemble(actions: &[SyscallAction], beyond: SyscallAction) -> Vec<Instruction> {
    let mut ranges: Vec<(u32, SyscallAction)> = Vec::new();
    for (number, action) in (0..).zip(actions.iter().copied().chain([beyond])) {
        if ranges.last().is_none_or(|(_, previous)| *previous != action) {
            ranges.push((number, action));
        }
    }

    let mut program = vec![
        load(ARCHITECTURE_OFFSET),
        jump(JUMP_EQUAL, AUDIT_ARCH, 1, 0),
        instruction(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        load(NUMBER_OFFSET),
    ];
    program.extend(search_tree(&ranges));
    program
}

fn search_tree(ranges: &[(u32, SyscallAction)]) -> Vec<Instruction> {
    match ranges {
        [] => Vec::new(),
        [(_, action)] => action_program(*action),
        _ => {
            let (low, high) = ranges.split_at(ranges.len() / 2);
            let boundary = high.first().map_or(0, |(number, _)| *number);
            let low = search_tree(low);
            // A conditional jump reaches 255 instructions, an unconditional one any number.
            let distance = u32::try_from(low.len()).unwrap_or(u32::MAX);
            let mut code =
                vec![jump(JUMP_GREATER_OR_EQUAL, boundary, 0, 1), instruction(JUMP, distance)];
            code.extend(low);
            code.extend(search_tree(high));
            code
        }
    }
}

fn action_program(action: SyscallAction) -> Vec<Instruction> {
    match action {
        SyscallAction::Allow => vec![verdict_instruction(SyscallVerdict::Allow)],
        SyscallAction::Refuse(errno) => vec![verdict_instruction(SyscallVerdict::Refuse(errno))],
        SyscallAction::Report => vec![verdict_instruction(SyscallVerdict::Report)],
        SyscallAction::Decide(decision) => {
            let mut code: Vec<Instruction> = decision.tests.iter().flat_map(test_program).collect();
            code.push(verdict_instruction(decision.otherwise));
            code
        }
    }
}

fn test_program(test: &ArgumentTest) -> Vec<Instruction> {
    let mut code = vec![verdict_instruction(test.then)];
    for condition in test.all.iter().rev() {
        let skipped = u8::try_from(code.len()).unwrap_or(u8::MAX);
        let mut check = match *condition {
            ArgumentCondition::Equals(index, value) => {
                vec![load(argument_offset(index)), jump(JUMP_EQUAL, value, 0, skipped)]
            }
            ArgumentCondition::MaskedEquals(index, mask, value) => {
                vec![
                    load(argument_offset(index)),
                    instruction(AND, mask),
                    jump(JUMP_EQUAL, value, 0, skipped),
                ]
            }
            ArgumentCondition::AnyOf(index, bits) => {
                vec![load(argument_offset(index)), jump(JUMP_BITS_SET, bits, 0, skipped)]
            }
            ArgumentCondition::UpperHalvesEqual([first, second]) => {
                vec![
                    load(argument_offset(first.0) + 4),
                    instruction(XOR, first.1),
                    instruction(COPY_TO_INDEX, 0),
                    load(argument_offset(second.0) + 4),
                    instruction(XOR, second.1),
                    instruction(OR_INDEX, 0),
                    jump(JUMP_EQUAL, 0, 0, skipped),
                ]
            }
        };
        check.extend(code);
        code = check;
    }
    code
}

fn verdict_instruction(verdict: SyscallVerdict) -> Instruction {
    match verdict {
        SyscallVerdict::Allow => instruction(RETURN, libc::SECCOMP_RET_ALLOW),
        SyscallVerdict::Report => instruction(RETURN, libc::SECCOMP_RET_USER_NOTIF),
        SyscallVerdict::Refuse(errno) => instruction(
            RETURN,
            libc::SECCOMP_RET_ERRNO | (errno.raw_os_error().unsigned_abs() & 0xffff),
        ),
    }
}

fn load(offset: u32) -> Instruction {
    instruction(LOAD_WORD, offset)
}

fn jump(code: u16, operand: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code, jump_true, jump_false, operand }
}

fn instruction(code: u16, operand: u32) -> Instruction {
    jump(code, operand, 0, 0)
}
