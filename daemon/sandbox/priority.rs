//! CPU shares of commands: lower than those of the daemon and of clients on this machine, so that
//! the daemon responds in time while commands use all CPUs. A run that takes long has less than a
//! short one.
//!
//! Linux gives each process a share by its nice value. Where sessions are scheduled as groups, nice
//! values only count within a session, and each session has a share by a nice value of its own
//! (sched(7), "The autogroup feature"). The commands of a workspace are in one session, so their nice
//! values count among them. A command with a terminal leads a session of its own.
//!
//! A command that starts sessions has a share for each: this mechanism handles many processes, not
//! malice. Cgroups with the controller `cpu` take precedence over both.

use std::fs;

use rustix::process::{Pid, getpriority_process, getsid, setpriority_pgrp, setpriority_process};

/// Nice increment of commands: it gives a tenth of the daemon's share.
const COMMAND_NICE_INCREMENT: i32 = 10;
/// Nice value of runs that take long: a seventh of the share of a command that has just started.
const LONG_RUN_NICE: i32 = 19;

/// Lowers the share of this process before it becomes a command. Allocates nothing.
pub(super) fn lower_own_share() {
    // A process that is at the maximum stays as it is.
    let _best_effort = getpriority_process(None)
        .and_then(|nice| setpriority_process(None, nice + COMMAND_NICE_INCREMENT));
}

/// The nice value in the text of `/proc/PID/autogroup`, such as `/autogroup-17 nice 0`.
fn session_nice(text: &str) -> Option<i32> {
    let (_, nice) = text.lines().next()?.rsplit_once(' ')?;
    nice.parse().ok()
}

/// Lowers the share of a run that takes long: that of the command's process group, and that of its
/// session if it leads one. If it does not, undoes what a command has done to the share of the session,
/// in which others run too.
///
/// Without CAP_SYS_ADMIN the kernel permits ten changes of a session's share a second, over all
/// sessions of the machine.
pub(super) fn lower_share_of_long_run(command: Pid) {
    let _best_effort = setpriority_pgrp(Some(command), LONG_RUN_NICE);
    let leads_session = getsid(Some(command)) == Ok(command);
    let wanted = if leads_session { COMMAND_NICE_INCREMENT } else { 0 };

    let path = format!("/proc/{}/autogroup", command.as_raw_nonzero());
    let text = fs::read_to_string(&path).unwrap_or_default();
    let is_wrong = |nice| if leads_session { nice < wanted } else { nice != wanted };
    if session_nice(&text).is_some_and(is_wrong) {
        let _best_effort = fs::write(path, wanted.to_string());
    }
}
