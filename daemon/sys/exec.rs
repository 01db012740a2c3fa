//! Executes a program from an image of its arguments that is already in memory.

use std::ffi::CStr;

use super::{Errno, syscall::syscall};

/// The arguments of execve(2), in place: lists of addresses of NUL-terminated strings. Each list
/// ends with 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExecImage<'a> {
    memory: &'a [u8],
    argv: usize,
    envp: usize,
}

impl<'a> ExecImage<'a> {
    /// Converts offsets in `memory` to addresses, in place, in two lists: `argc` offsets at `argv`,
    /// and `envc` at `envp`.
    ///
    /// Returns `None` if a list does not fit or is not aligned to 8, or if an offset does not point
    /// to a NUL-terminated string inside.
    pub(crate) fn relocate(
        memory: &'a mut [u8],
        argv: usize,
        argc: usize,
        envp: usize,
        envc: usize,
    ) -> Option<Self> {
        relocate_list(memory, argv, argc)?;
        relocate_list(memory, envp, envc)?;
        Some(Self { memory, argv, envp })
    }

    /// The NUL-terminated string at `offset`.
    pub(crate) fn string(&self, offset: usize) -> Option<&CStr> {
        CStr::from_bytes_until_nul(self.memory.get(offset..)?).ok()
    }

    /// Executes `program`. Returns only if that fails.
    pub(crate) fn execute(&self, program: &CStr) -> Errno {
        let base = self.memory.as_ptr() as usize;
        // SAFETY: `relocate` has made both lists arrays of pointers to NUL-terminated strings, ended
        // by null.
        unsafe { execute(program, base + self.argv, base + self.envp) }
    }
}

/// Executes `program` with the lists at these addresses. Returns only if that fails.
///
/// # Safety
///
/// Both lists must be arrays of pointers to NUL-terminated strings, ended by null.
pub(super) unsafe fn execute(program: &CStr, argv: usize, envp: usize) -> Errno {
    let arguments = [program.as_ptr() as usize, argv, envp, 0, 0, 0];
    // SAFETY: `program` is NUL-terminated; the caller guarantees the lists.
    match unsafe { syscall(libc::SYS_execve, arguments) } {
        Ok(_) => Errno::INVAL, // impossible: a successful execve(2) does not return
        Err(errno) => errno,
    }
}

fn relocate_list(memory: &mut [u8], list: usize, count: usize) -> Option<()> {
    let base = memory.as_ptr() as usize;
    if !(base + list).is_multiple_of(8) {
        return None;
    }
    let end = list.checked_add(count.checked_add(1)?.checked_mul(8)?)?;
    if end > memory.len() || *memory.last()? != 0 {
        return None; // a final NUL bounds every string
    }

    for index in 0..count {
        let entry = list + index * 8;
        let bytes: [u8; 8] = memory.get(entry..entry + 8)?.try_into().ok()?;
        let offset = usize::from_ne_bytes(bytes);
        if offset >= memory.len() {
            return None;
        }
        memory.get_mut(entry..entry + 8)?.copy_from_slice(&(base + offset).to_ne_bytes());
    }
    memory.get_mut(end - 8..end)?.fill(0);
    Some(())
}
