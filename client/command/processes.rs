//! `jig ps` and `jig kill`: list and signal the processes of the workspace.

use std::{
    io,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use clap::Args;
use jig::{
    api::v1::{
        ListProcessesResponse, OnDisconnect, Outcome, ProcessInfo, ProcessState, SendSignalRequest,
    },
    client::Client,
};
use rustix::termios::{isatty, tcgetwinsize};
use serde_json::{Value, json};

use super::{columns::align_columns, report_and_exit, try_each};
use crate::{cli_error::CliError, connection, escape, global::GlobalArgs, json::enum_name, output};

/// Minimum terminal width for all columns of the table.
const MIN_WIDE_COLUMNS: u16 = 120;

/// List the running processes of the workspace that `jig run` and `jig exec` started, newest first.
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Also list processes that have ended, for 15 minutes unless the operator sets another time.
    #[arg(short, long)]
    all: bool,
    /// Default since `jig ps` lists running processes only.
    #[arg(long, hide = true, conflicts_with = "all")]
    running: bool,
    /// Also show session and working directory. Default on terminals of at least 120 columns.
    #[arg(short, long)]
    long: bool,
}

/// Send a signal to processes that `jig run` and `jig exec` started, and to their process groups.
#[derive(Debug, Args)]
pub(crate) struct KillArgs {
    /// Signal to send: `TERM`, `SIGKILL` or `9`.
    #[arg(short, long, value_name = "SIGNAL", default_value = "TERM")]
    signal: String,
    /// Ids of the processes, as `jig ps` lists them.
    #[arg(value_name = "PROCESS", required = true)]
    processes: Vec<String>,
}

pub(crate) fn ps(global: &GlobalArgs, args: PsArgs) -> ExitCode {
    let result = global.require_address().and_then(|address| {
        let listed = connection::call_address(address, global, async |client: Client| {
            Ok(client.list_processes().await?)
        })?;
        print(listed, &args, global.json)
    });
    report_and_exit(result, global.json)
}

pub(crate) fn kill(global: &GlobalArgs, args: KillArgs) -> ExitCode {
    let result = global.require_address().and_then(|address| {
        connection::call_address(address, global, async |client: Client| {
            try_each(args.processes, global.json, async |process_id| {
                let request = SendSignalRequest { process_id, signal: args.signal.clone() };
                Ok(client.send_signal(request).await.map(drop)?)
            })
            .await
        })
    });
    report_and_exit(result, global.json)
}

fn print(listed: ListProcessesResponse, args: &PsArgs, as_json: bool) -> Result<(), CliError> {
    let mut processes = listed.processes;
    processes.retain(|process| args.all || process.state() != ProcessState::Ended);
    processes.reverse();

    if as_json {
        let list: Vec<Value> = processes.iter().map(process_json).collect();
        return output::write_json(&json!({ "processes": list }));
    }
    let is_long = args.long || is_wide();
    output::write_stdout(processes_table(&processes, is_long, SystemTime::now()).as_bytes())
}

/// Returns whether standard output is a terminal that is wide enough for all columns.
fn is_wide() -> bool {
    let stdout = io::stdout();
    isatty(&stdout) && tcgetwinsize(&stdout).is_ok_and(|size| size.ws_col >= MIN_WIDE_COLUMNS)
}

/// Formats a header and a line per process.
fn processes_table(processes: &[ProcessInfo], is_long: bool, now: SystemTime) -> String {
    let plain = |text: &str| escape::text(text).replace('\n', " ");
    let row = |cells: [String; 6]| {
        let [id, state, time, session, cwd, command] = cells;
        if is_long {
            vec![id, state, time, session, cwd, command]
        } else {
            vec![id, state, time, command]
        }
    };

    let header = ["PROCESS", "STATE", "TIME", "SESSION", "CWD", "COMMAND"];
    let mut rows = vec![row(header.map(str::to_owned))];
    rows.extend(processes.iter().map(|process| {
        row([
            process.process_id.clone(),
            state_text(process),
            format_run_time(process, now),
            plain(&process.session),
            plain(&process.cwd),
            plain(&process.command),
        ])
    }));

    align_columns(&rows)
}

fn state_text(process: &ProcessInfo) -> String {
    match process.state() {
        ProcessState::Starting => "starting".to_owned(),
        ProcessState::Running if process.attached == 0 => "running, detached".to_owned(),
        ProcessState::Running => "running".to_owned(),
        ProcessState::Ended => match (process.outcome(), process.exit_code) {
            (Outcome::Exited, Some(code)) => format!("exit {code}"),
            (Outcome::Unspecified, _) => "lost".to_owned(),
            (Outcome::Signaled, _) => process.signal.clone(),
            (outcome, _) => outcome
                .as_str_name()
                .trim_start_matches("OUTCOME_")
                .to_lowercase()
                .replace('_', " "),
        },
        ProcessState::Unspecified => "?".to_owned(),
    }
}

/// Formats the run time: `12s`, `3m05s`, `2h07m`.
fn format_run_time(process: &ProcessInfo, now: SystemTime) -> String {
    let time = |stamp: Option<_>| stamp.and_then(|stamp| SystemTime::try_from(stamp).ok());
    let Some(start) = time(process.start_time) else {
        return "-".to_owned();
    };
    let end = time(process.end_time).unwrap_or(now);
    let seconds = end.duration_since(start).unwrap_or(Duration::ZERO).as_secs();

    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{:02}s", seconds % 60),
        _ => format!("{hours}h{minutes:02}m"),
    }
}

fn process_json(process: &ProcessInfo) -> Value {
    let time = |stamp: Option<prost_types::Timestamp>| stamp.map(|stamp| stamp.to_string());
    let state = ProcessState::try_from(process.state).map(|state| state.as_str_name());
    let outcome = Outcome::try_from(process.outcome).map(|outcome| outcome.as_str_name());
    let on_disconnect =
        OnDisconnect::try_from(process.on_disconnect).map(|policy| policy.as_str_name());
    json!({
        "process_id": process.process_id,
        "state": enum_name(state, process.state),
        "command": process.command,
        "cwd": process.cwd,
        "has_terminal": process.has_terminal,
        "on_disconnect": enum_name(on_disconnect, process.on_disconnect),
        "session": process.session,
        "start_time": time(process.start_time),
        "end_time": time(process.end_time),
        "outcome": enum_name(outcome, process.outcome),
        "exit_code": process.exit_code,
        "signal": process.signal,
        "last_sequence": process.last_sequence,
        "attached": process.attached,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_one_word_or_exit_code() {
        let running = ProcessInfo {
            state: ProcessState::Running.into(),
            attached: 1,
            ..ProcessInfo::default()
        };
        let ended = |outcome: Outcome, exit_code, signal: &str| ProcessInfo {
            state: ProcessState::Ended.into(),
            outcome: outcome.into(),
            exit_code,
            signal: signal.to_owned(),
            ..ProcessInfo::default()
        };
        assert_eq!(state_text(&running), "running");
        assert_eq!(state_text(&ProcessInfo { attached: 0, ..running }), "running, detached");
        for (process, expected) in [
            (ended(Outcome::Exited, Some(3), ""), "exit 3"),
            (ended(Outcome::Signaled, None, "SIGKILL"), "SIGKILL"),
            (ended(Outcome::TimedOut, None, "SIGTERM"), "timed out"),
            (ended(Outcome::Unspecified, None, ""), "lost"),
        ] {
            assert_eq!(state_text(&process), expected);
        }
    }

    #[test]
    fn wide_table_has_session_and_directory() {
        let process = ProcessInfo {
            process_id: "01ABC".into(),
            command: "make\nall".into(),
            cwd: "/workspace/a".into(),
            session: "s".into(),
            state: ProcessState::Starting.into(),
            ..ProcessInfo::default()
        };
        let processes = [process];
        let now = SystemTime::UNIX_EPOCH;
        assert_eq!(
            processes_table(&processes, false, now),
            "PROCESS  STATE     TIME  COMMAND\n01ABC    starting  -     make all\n"
        );
        assert_eq!(
            processes_table(&processes, true, now),
            "PROCESS  STATE     TIME  SESSION  CWD           COMMAND\n\
             01ABC    starting  -     s        /workspace/a  make all\n"
        );
    }

    #[test]
    fn run_times_are_short() {
        let start = SystemTime::UNIX_EPOCH;
        let process = ProcessInfo { start_time: Some(start.into()), ..ProcessInfo::default() };
        for (seconds, expected) in [(0, "0s"), (59, "59s"), (185, "3m05s"), (7620, "2h07m")] {
            assert_eq!(format_run_time(&process, start + Duration::from_secs(seconds)), expected);
        }
        assert_eq!(format_run_time(&ProcessInfo::default(), start), "-");
    }
}
