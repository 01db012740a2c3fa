//! Executes a shell that stops before its first instruction and waits for its command: see
//! `warm_shell.c`, which runs in it.

use std::{ffi::CStr, ptr::null};

use super::{Errno, exec::execute};

/// The library that the shell's dynamic loader loads and unloads again. Empty on architectures
/// without one.
pub(crate) const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/warm_shell.so"));
/// Room for environment variables of the command.
pub(crate) const MAX_VARIABLES: usize = 256;

/// Executes `shell` so that it waits. Returns only if that fails.
///
/// Its descriptors from number 3 on must be: the control socket of the sandbox, [`LIBRARY`] as a
/// file, the pipe of the init's requests, and the pipe of its own replies.
pub(crate) fn execute_waiting(shell: &CStr) -> Errno {
    // Without the library, the shell exits with this status.
    let arguments = [shell.as_ptr(), c"-c".as_ptr(), c"exit 125".as_ptr(), null()];
    let mut variables = [c"".as_ptr(); MAX_VARIABLES + 1];
    variables[0] = c"LD_AUDIT=/proc/self/fd/4".as_ptr();
    variables[MAX_VARIABLES] = null();
    // SAFETY: both lists are of NUL-terminated strings, and end with null.
    unsafe { execute(shell, arguments.as_ptr() as usize, variables.as_ptr() as usize) }
}
