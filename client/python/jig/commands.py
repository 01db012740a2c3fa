"""Operations that run commands: to their end, with live output, or with a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from jig.caller import Caller
from jig.process import ProcessEvent, StartedProcess, process_events, starting, wait_for_start
from jig.steps import Steps, StreamSteps, operation, streaming
from jig.v1.messages import (
    LastCommandResponse,
    ListProcessesResponse,
    LowerLimits,
    OnDisconnect,
    ProcessInfo,
    RunResponse,
    TerminalSize,
)

Command: TypeAlias = str | Sequence[str]


class CommandOperations(Caller):
    """Runs commands in sandboxes of their own.

    A command is shell text for `/bin/sh -c`, or a sequence of a program and its arguments, without
    a shell. `cwd` is relative to the workspace. `env` adds variables. `limits` are at or below
    those of the operator.
    """

    @operation
    def run(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout_sec: int | None = None,
        max_output_bytes: int | None = None,
        limits: LowerLimits | None = None,
        shell: str | None = None,
        restart_shell: bool | None = None,
    ) -> Steps[RunResponse]:
        """Runs a command to its end. Its result says truthfully how it ended.

        A command that ran is never an error: see `outcome`, `exit_code`, `ok` and `check()`. After
        `timeout_sec` (120; 1 to 86,400) it is killed. `stdin` has at most 8 MiB. Each stream
        returns at most `max_output_bytes` (100 KiB; up to 10 MiB), its beginning and its end.

        In a `shell`, a command has the directory, variables, functions and options that the last
        command with this name left. `restart_shell` forgets them before the command.

        Raises, if nothing was run: `CommandNotFound`, `CommandNotExecutable`, `DirectoryNotFound`
        (of `cwd`), `PermissionDenied`, `SandboxUnavailable` or `SandboxError`.
        """
        return self._call(
            "Run",
            RunResponse,
            **command_values(command, cwd, env, stdin, timeout_sec, max_output_bytes, limits),
            shell=shell,
            restart_shell=restart_shell,
        )

    @operation
    def last_command(self) -> Steps[LastCommandResponse]:
        """Returns the last command of the session. Raises `NoCommandHistory` without one."""
        return self._call("LastCommand", LastCommandResponse)

    @streaming
    def stream(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout_sec: int | None = None,
        max_output_bytes: int | None = None,
        limits: LowerLimits | None = None,
    ) -> StreamSteps[ProcessEvent]:
        """Runs a command and streams its output while it runs, then `ProcessExited`.

        The parameters are those of `run`, but without `timeout_sec` there is no timeout, and
        `ProcessExited` repeats at most `max_output_bytes` (0) of each stream. The stream continues
        after a lost connection; `ProcessGap` stands for output that the daemon has dropped until
        then. Closing the stream kills the command.

        Raises the errors of `run`.
        """
        values = command_values(command, cwd, env, stdin, timeout_sec, max_output_bytes, limits)
        return process_events(self, "Start", {**values, "stdin_open": False}, is_owner=True)

    @starting
    def start(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout_sec: int | None = None,
        max_output_bytes: int | None = None,
        limits: LowerLimits | None = None,
        pty: TerminalSize | None = None,
        on_disconnect: OnDisconnect | None = None,
        stdin_open: bool | None = None,
        keep_alive_sec: int | None = None,
    ) -> Steps[StartedProcess]:
        """Starts a command and returns it as a process, with its input open.

        `pty` gives it a terminal, whose output is all `stdout`. With `on_disconnect="KEEP"`, it
        continues when its streams have ended, and `attach` finds it. Without `timeout_sec`, it has
        no timeout.

        Raises the errors of `run`, and `ProcessEnded` if a signal ended it before its start.
        """
        values = command_values(command, cwd, env, stdin, timeout_sec, max_output_bytes, limits)
        values |= {
            "pty": pty,
            "on_disconnect": on_disconnect,
            "stdin_open": stdin_open,
            "keep_alive_sec": keep_alive_sec,
        }
        is_owner = on_disconnect != "KEEP"
        return wait_for_start(process_events(self, "Start", values, is_owner=is_owner))

    @starting
    def attach(
        self,
        process_id: str,
        *,
        after_sequence: int = 0,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
    ) -> Steps[StartedProcess]:
        """Attaches to a running process, or one that ended within 15 minutes.

        Its output begins after the given numbers of bytes. `ProcessGap` stands for output that the
        daemon has dropped. Closing the process does not kill it.

        Raises `ProcessNotFound`.
        """
        values = {
            "process_id": process_id,
            "after_sequence": after_sequence,
            "stdout_offset": stdout_offset,
            "stderr_offset": stderr_offset,
        }
        return wait_for_start(process_events(self, "Attach", values, is_owner=False))

    @operation
    def list_processes(self) -> Steps[list[ProcessInfo]]:
        """Lists the started processes of the workspace, oldest first, with recently ended ones."""
        response = yield from self._call("ListProcesses", ListProcessesResponse)
        return response.processes


def command_values(
    command: Command,
    cwd: str | None,
    env: Mapping[str, str] | None,
    stdin: str | bytes | None,
    timeout_sec: int | None,
    max_output_bytes: int | None,
    limits: LowerLimits | None,
) -> dict[str, Any]:
    """The fields that `RunRequest` and `StartRequest` have in common."""
    is_shell = isinstance(command, str)
    return {
        "command": command if is_shell else None,
        "argv": None if is_shell else command,
        "cwd": cwd,
        "env": env,
        "stdin": stdin.encode() if isinstance(stdin, str) else stdin,
        "timeout_sec": timeout_sec,
        "max_output_bytes": max_output_bytes,
        "limits": limits,
    }
