"""Behaviour of results beside their fields, which `jig.v1.messages` has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from jig.errors import CallError, JigError

if TYPE_CHECKING:
    from jig.v1.messages import InvokeStatus, Outcome, ToolError


class CommandFailed(JigError):
    """A command that did not exit with 0. `CommandResult.check` raises it."""

    def __init__(self, result: CommandResult) -> None:
        ending = f"exit code {result.exit_code}"
        if result.outcome != "EXITED":
            ending = " ".join(filter(None, [str(result.outcome), result.signal, result.limit]))
        output = (result.stderr or result.stdout).strip()
        super().__init__(f"the command ended with {ending}" + (f": {output}" if output else ""))
        self.result = result


class CommandResult:
    """A command that has ended."""

    if TYPE_CHECKING:
        outcome: Outcome | None
        exit_code: int | None
        signal: str
        limit: str
        stdout: str
        stderr: str

    @property
    def ok(self) -> bool:
        """Whether the command exited with 0."""
        return self.outcome == "EXITED" and self.exit_code == 0

    @property
    def shell_exit_code(self) -> int:
        """Exit code as a shell and `jig run` report it.

        128 + n after signal n, 124 after a timeout, 130 after a cancellation, and 125 if the end
        of the command is unknown.
        """
        if self.exit_code is not None:
            return self.exit_code
        if self.outcome in ("TIMED_OUT", "CANCELLED"):
            return 124 if self.outcome == "TIMED_OUT" else 130
        return 128 + signal_number(self.signal) if self.signal else 125

    def check(self) -> None:
        """Raises `CommandFailed` unless the command exited with 0."""
        if not self.ok:
            raise CommandFailed(self)


def signal_number(name: str) -> int:
    """Returns the number of a signal of Linux, such as `SIGKILL`, or 0 if it is unknown."""
    import signal

    if name.isdigit():
        return int(name)
    return int(getattr(signal, name, 0))


class ToolResult:
    """Result of a tool that was called by its name."""

    if TYPE_CHECKING:
        status: InvokeStatus | None
        error: ToolError | None
        text: str

    @property
    def ok(self) -> bool:
        """Whether the tool succeeded. A command that ran is a success, whatever its exit code."""
        return self.status == "SUCCESS"

    def check(self) -> None:
        """Raises the `CallError` of the reason unless the tool succeeded."""
        if self.ok:
            return
        if self.error is None:
            raise CallError(self.text)
        reason = self.error.error_type.upper()
        metadata = {name: str(value) for name, value in (self.error.details or {}).items()}
        raise CallError.of_reason(reason)(self.error.message, reason=reason, metadata=metadata)


@dataclass(frozen=True)
class Output:
    """Bytes that a command wrote."""

    stream: Literal["stdout", "stderr"]
    """Stream of the bytes. All output of a terminal is `stdout`."""
    offset: int
    """Position of the first byte in its stream."""
    data: bytes
    """The bytes: 1 byte to 64 KiB. They can end within a character."""
