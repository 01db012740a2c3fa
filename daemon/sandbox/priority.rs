//! What share of the CPUs commands have: less than the daemon and whoever calls it, so that those are
//! answered in time beside commands that want all there is.
//!
//! Linux gives each process a share by its nice value; but where sessions are scheduled as groups,
//! that only counts within a session, each of which has a share by a nice value of its own (sched(7),
//! "The autogroup feature"). There a command that makes sessions has a share for each, and it can raise
//! that of its own again: what this is meant for is many processes, not malice. Cgroups with the controller `cpu` come before both.

use std::{fs, path::Path, sync::OnceLock};

use rustix::process::{Pid, getpriority_process, getsid, setpriority_process};

/// How much nicer than the daemon a command is: it has a tenth of its share.
const COMMAND_NICE_INCREMENT: i32 = 10;

/// Lowers the share of this process, which is to become a command. Allocates nothing.
pub(super) fn lower_own_share() {
    // As far as it goes: one that is as nice as can be stays as it is.
    let _best_effort = getpriority_process(None)
        .and_then(|nice| setpriority_process(None, nice + COMMAND_NICE_INCREMENT));
}

/// Whether sessions have shares here.
pub(super) fn has_autogroups() -> bool {
    static HAVE: OnceLock<bool> = OnceLock::new();
    *HAVE.get_or_init(|| Path::new("/proc/self/autogroup").exists())
}

/// Lowers the share of the session that a command leads, unless it is as low already. Who has no
/// CAP_SYS_ADMIN may do so ten times a second, of all sessions of the machine.
pub(super) fn lower_session_share(command: Pid) {
    let path = format!("/proc/{}/autogroup", command.as_raw_nonzero());
    // As in "/autogroup-17 nice 0".
    let text = fs::read_to_string(&path).unwrap_or_default();
    let nice = text.rsplit(' ').next().and_then(|nice| nice.trim().parse::<i32>().ok());
    if nice.is_some_and(|nice| nice < COMMAND_NICE_INCREMENT)
        && getsid(Some(command)) == Ok(command)
    {
        let _best_effort = fs::write(path, COMMAND_NICE_INCREMENT.to_string());
    }
}
