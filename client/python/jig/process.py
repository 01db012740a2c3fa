"""Processes: commands with live output, standard input, signals and terminals."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, overload

from jig.caller import Caller, close_later
from jig.contract import decode_event
from jig.errors import CallError, Unavailable
from jig.results import Output
from jig.steps import (
    AsyncDriver,
    AsyncStream,
    Emit,
    Steps,
    Stream,
    StreamClosed,
    StreamSteps,
    SyncDriver,
    next_item,
    operation,
)
from jig.v1.messages import (
    ProcessExited,
    ProcessGap,
    ProcessStarted,
    ResizeTerminalResponse,
    SendSignalResponse,
    WriteStdinResponse,
)

P = ParamSpec("P")
MAX_STDIN_WRITE_BYTES = 1 << 20
ProcessEvent: TypeAlias = ProcessStarted | Output | ProcessGap | ProcessExited


class Position:
    """How much of the output of a process was received."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.process_id: str = values.get("process_id", "")
        self.sequence: int = values.get("after_sequence", 0)
        self.offsets = {name: values.get(f"{name}_offset", 0) for name in ("stdout", "stderr")}
        self.has_exited = False

    def advance(self, event: ProcessEvent, sequence: int) -> None:
        if isinstance(event, ProcessStarted):
            self.process_id = event.process_id
        elif isinstance(event, Output):
            self.sequence = sequence
            self.offsets[event.stream] = event.offset + len(event.data)
        elif isinstance(event, ProcessGap):
            self.sequence = event.next_sequence - 1
            self.offsets = {"stdout": event.stdout_offset, "stderr": event.stderr_offset}
        else:
            self.has_exited = True

    def attach_values(self) -> dict[str, object]:
        """The request of `Attach` that continues here."""
        return {
            "process_id": self.process_id,
            "after_sequence": self.sequence,
            "stdout_offset": self.offsets["stdout"],
            "stderr_offset": self.offsets["stderr"],
        }


def process_events(
    caller: Caller, rpc: str, values: Mapping[str, Any], *, is_owner: bool
) -> StreamSteps[ProcessEvent]:
    """Streams the events of a process, over lost connections.

    `is_owner` says that closing the stream kills the process.
    """
    position = Position(values)
    was_started = False

    def next_request() -> tuple[str, Mapping[str, object]]:
        # Before `started`, a repeated `Start` has the same request id, and so starts nothing new.
        return ("Attach", position.attach_values()) if position.process_id else (rpc, values)

    try:
        with close_later(caller._messages(next_request)) as messages:
            while (message := (yield from next_item(messages))) is not None:
                event = decode_event(message)
                if event is None:
                    continue
                chunk = getattr(message, message.WhichOneof("event"))
                position.advance(event, getattr(chunk, "sequence", 0))
                is_repeated = isinstance(event, ProcessStarted) and was_started
                was_started |= isinstance(event, ProcessStarted)
                if not is_repeated:
                    yield Emit(event)
        if not position.has_exited:
            raise Unavailable("the stream of the process ended before the process")
    except StreamClosed:
        if is_owner and position.process_id and not position.has_exited:
            yield from kill(caller, position.process_id)
        raise


def kill(caller: Caller, process_id: str) -> Steps[None]:
    """Kills a process, which can have ended."""
    try:
        # The request id of the caller is that of `Start`.
        yield from caller._with(request_id="")._call(
            "SendSignal", SendSignalResponse, process_id=process_id, signal="SIGKILL"
        )
    except CallError as error:
        if error.reason not in ("PROCESS_ENDED", "PROCESS_NOT_FOUND"):
            raise


@dataclass(frozen=True)
class StartedProcess:
    """A process, and its events after its start."""

    started: ProcessStarted | None
    events: StreamSteps[ProcessEvent]


def wait_for_start(events: StreamSteps[ProcessEvent]) -> Steps[StartedProcess]:
    """Waits until a command was executed, or killed before."""
    event = yield from next_item(events)
    if isinstance(event, ProcessStarted):
        return StartedProcess(event, events)
    return StartedProcess(None, with_first(event, events))


def with_first(
    first: ProcessEvent | None, events: StreamSteps[ProcessEvent]
) -> StreamSteps[ProcessEvent]:
    if first is not None:
        yield Emit(first)
    yield from events


class ProcessOperations:
    """A process: its output is in a loop over it, and ends with `ProcessExited`.

    Closing it, or the end of its `with` block, kills it unless it was started with
    `on_disconnect="KEEP"` or attached to.
    """

    _client: Caller
    process_id: str
    """Id of the process for `attach`. Empty if it was killed before its start."""
    exited: ProcessExited | None
    """How the process ended. None before the end of the loop over it."""

    def _call(self, rpc: str, result: type[Any], **values: object) -> Steps[Any]:
        return self._client._call(rpc, result, process_id=self.process_id, **values)

    @operation
    def write(self, data: str | bytes) -> Steps[None]:
        """Writes to the standard input. Waits while 1 MiB of it is unread.

        Raises `StdinClosed` or `ProcessEnded`.
        """
        content = data.encode() if isinstance(data, str) else bytes(data)
        for start in range(0, len(content), MAX_STDIN_WRITE_BYTES):
            part = content[start : start + MAX_STDIN_WRITE_BYTES]
            yield from self._call(
                "WriteStdin", WriteStdinResponse, data=part, write_id=uuid.uuid4().hex
            )

    @operation
    def close_stdin(self) -> Steps[None]:
        """Closes the standard input. A terminal gets its end-of-file character, Ctrl-D."""
        yield from self._call("WriteStdin", WriteStdinResponse, eof=True, write_id=uuid.uuid4().hex)

    @operation
    def resize(self, cols: int, rows: int) -> Steps[None]:
        """Sets the size of the terminal, in characters (1 to 65,535).

        Raises `InvalidParams` (a process without a terminal) or `ProcessEnded`.
        """
        yield from self._call("ResizeTerminal", ResizeTerminalResponse, cols=cols, rows=rows)

    @operation
    def send_signal(self, signal: str) -> Steps[None]:
        """Sends a signal, such as `SIGTERM`, to the process group. Raises `ProcessEnded`."""
        yield from self._call("SendSignal", SendSignalResponse, signal=signal)


class Process(ProcessOperations, Stream[ProcessEvent], SyncDriver):
    """A process of `Client`. See `ProcessOperations`."""

    def __init__(self, client: Any, process: StartedProcess) -> None:
        super().__init__(client, process.events)
        self._client = client._with(request_id="")
        self._channel = client._channel
        self.process_id = process.started.process_id if process.started else ""
        self.exited = None

    def __next__(self) -> ProcessEvent:
        event = super().__next__()
        self.exited = event if isinstance(event, ProcessExited) else None
        return event

    def wait(self) -> ProcessExited:
        """Reads the rest of the output, drops it, and returns how the process ended."""
        for _ in self:
            pass
        return ended(self)


class AsyncProcess(ProcessOperations, AsyncStream[ProcessEvent], AsyncDriver):
    """A process of `AsyncClient`. See `ProcessOperations`."""

    def __init__(self, client: Any, process: StartedProcess) -> None:
        super().__init__(client, process.events)
        self._client = client._with(request_id="")
        self._channel = client._channel
        self.process_id = process.started.process_id if process.started else ""
        self.exited = None

    async def __anext__(self) -> ProcessEvent:
        event = await super().__anext__()
        self.exited = event if isinstance(event, ProcessExited) else None
        return event

    async def wait(self) -> ProcessExited:
        """Reads the rest of the output, drops it, and returns how the process ended."""
        async for _ in self:
            pass
        return ended(self)


def ended(process: ProcessOperations) -> ProcessExited:
    if process.exited is None:
        raise Unavailable("the process was closed before it ended")
    return process.exited


class starting(Generic[P]):  # noqa: N801 (a decorator)
    """Makes a method that returns a `Process` in `Client`, an `AsyncProcess` in `AsyncClient`."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[StartedProcess]]) -> None:
        self.steps = steps

    @overload
    def __get__(
        self, instance: None, owner: type
    ) -> Callable[Concatenate[Any, P], Steps[StartedProcess]]: ...
    @overload
    def __get__(self, instance: SyncDriver, owner: type) -> Callable[P, Process]: ...
    @overload
    def __get__(
        self, instance: AsyncDriver, owner: type
    ) -> Callable[P, Coroutine[Any, Any, AsyncProcess]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            # For `help` and programs that write documentation.
            return self.steps

        @functools.wraps(self.steps)
        def method(*args: Any, **kwargs: Any) -> Any:
            return Process(instance, instance._drive(self.steps(instance, *args, **kwargs)))

        @functools.wraps(self.steps)
        async def async_method(*args: Any, **kwargs: Any) -> Any:
            started = await instance._drive(self.steps(instance, *args, **kwargs))
            return AsyncProcess(instance, started)

        return method if isinstance(instance, SyncDriver) else async_method
