//! CPU shares of commands: lower than those of the daemon and of clients on this machine, so that
//! the daemon responds in time while commands use all CPUs.
//!
//! Linux gives each process a share by its nice value. Where sessions are scheduled as groups, nice
//! values only count within a session, and each session has a share by a nice value of its own
//! (sched(7), "The autogroup feature"). There, a command that starts sessions has a share for each,
//! and can raise its own again: this mechanism handles many processes, not malice. Cgroups with the
//! controller `cpu` take precedence over both.

use std::{ffi::CStr, fs, sync::OnceLock};

use rustix::{
    fs::{Access, access},
    process::{Pid, getpriority_process, getsid, setpriority_process},
};

/// Nice increment of commands: it gives a tenth of the daemon's share.
const COMMAND_NICE_INCREMENT: i32 = 10;
/// The session's share of this process.
pub(super) const AUTOGROUP_PATH: &CStr = c"/proc/self/autogroup";

/// Lowers the share of this process before it becomes a command. Allocates nothing.
pub(super) fn lower_own_share() {
    // A process that is at the maximum stays as it is.
    let _best_effort = getpriority_process(None)
        .and_then(|nice| setpriority_process(None, nice + COMMAND_NICE_INCREMENT));
}

/// Whether this host schedules sessions as groups.
pub(super) fn has_autogroups() -> bool {
    static HAS_AUTOGROUPS: OnceLock<bool> = OnceLock::new();
    *HAS_AUTOGROUPS.get_or_init(|| access(AUTOGROUP_PATH, Access::EXISTS).is_ok())
}

/// The nice value in the text of [`AUTOGROUP_PATH`], such as `/autogroup-17 nice 0`. Allocates
/// nothing.
pub(super) fn session_nice(text: &str) -> Option<i32> {
    let (_, nice) = text.lines().next()?.rsplit_once(' ')?;
    nice.parse().ok()
}

/// Lowers the share of a command's session, unless it is low enough. Without CAP_SYS_ADMIN the
/// kernel permits ten such writes a second, over all sessions of the machine.
pub(super) fn lower_session_share(command: Pid) {
    let path = format!("/proc/{}/autogroup", command.as_raw_nonzero());
    let text = fs::read_to_string(&path).unwrap_or_default();
    let nice = session_nice(&text);

    if nice.is_some_and(|nice| nice < COMMAND_NICE_INCREMENT)
        && getsid(Some(command)) != getsid(None)
    {
        let _best_effort = fs::write(path, COMMAND_NICE_INCREMENT.to_string());
    }
}
