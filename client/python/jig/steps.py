"""Operations that do not know whether their caller blocks or awaits.

An operation is a generator that yields steps, such as a call of an RPC, and receives their
results. It is written once. `Client` performs its steps in the calling thread, and `AsyncClient`
awaits them.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

import grpc
from google.protobuf.message import Message

from jig.contract import Method
from jig.errors import CallError, error_from_rpc

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Metadata: TypeAlias = tuple[tuple[str, str], ...]


class Step:
    """Work that a driver does for an operation."""

    def perform(self, channel: grpc.Channel) -> object:
        """Does the work in this thread."""
        raise NotImplementedError

    async def perform_async(self, channel: grpc.aio.Channel) -> object:
        """Does the work without blocking."""
        raise NotImplementedError


Steps: TypeAlias = Generator[Step, Any, T]


@dataclass(frozen=True)
class Emit(Generic[T_co]):
    """An element of a stream for its reader."""

    item: T_co


StreamSteps: TypeAlias = Generator[Step | Emit[T], Any, None]


@dataclass(frozen=True)
class Sleep(Step):
    """Waits. 0 seconds let other tasks run."""

    seconds: float

    def perform(self, channel: grpc.Channel) -> None:
        if self.seconds > 0:
            time.sleep(self.seconds)

    async def perform_async(self, channel: grpc.aio.Channel) -> None:
        await asyncio.sleep(self.seconds)


@dataclass(frozen=True)
class CallBack(Step):
    """Calls a function of the program, which can be a coroutine function for `AsyncClient`."""

    function: Callable[..., object]
    argument: object

    def perform(self, channel: grpc.Channel) -> object:
        return self.function(self.argument)

    async def perform_async(self, channel: grpc.aio.Channel) -> object:
        result = self.function(self.argument)
        return await result if inspect.isawaitable(result) else result


@dataclass(frozen=True)
class Unary(Step):
    """Calls an RPC with one request, or a stream of them, and one response."""

    method: Method
    request: Message | Iterator[Message]
    metadata: Metadata
    timeout_sec: float | None

    def perform(self, channel: grpc.Channel) -> object:
        kind = channel.unary_unary if isinstance(self.request, Message) else channel.stream_unary
        call = cast(Any, kind)(self.method.path, **self.method.coders)
        return call(self.request, timeout=self.timeout_sec, metadata=self.metadata)

    async def perform_async(self, channel: grpc.aio.Channel) -> object:
        kind = channel.unary_unary if isinstance(self.request, Message) else channel.stream_unary
        call = cast(Any, kind)(self.method.path, **self.method.coders)
        response = call(self.request, timeout=self.timeout_sec, metadata=self.metadata)
        return await wait_for(response, response)


@dataclass(frozen=True)
class Open(Step):
    """Calls an RPC with a stream of responses. Its result is the open stream for `Read`."""

    method: Method
    request: Message
    metadata: Metadata
    timeout_sec: float | None

    def perform(self, channel: grpc.Channel) -> Any:
        call = cast(Any, channel.unary_stream)(self.method.path, **self.method.coders)
        return call(self.request, timeout=self.timeout_sec, metadata=self.metadata)

    async def perform_async(self, channel: grpc.aio.Channel) -> Any:
        call = cast(Any, channel.unary_stream)(self.method.path, **self.method.coders)
        return call(self.request, timeout=self.timeout_sec, metadata=self.metadata)


@dataclass(frozen=True)
class Read(Step):
    """Reads the next message of an open stream. Its result is None at the end."""

    call: Any

    def perform(self, channel: grpc.Channel) -> Message | None:
        return next(self.call, None)

    async def perform_async(self, channel: grpc.aio.Channel) -> Message | None:
        message = await wait_for(self.call, self.call.read())
        return None if message is grpc.aio.EOF else message


async def wait_for(call: Any, result: Awaitable[T]) -> T:
    """Awaits a part of a call. A cancellation cancels the call.

    `grpc.aio` would raise an error of its own in place of that of the cancellation. Cancel scopes
    of anyio, which frameworks use, recognize theirs by its message.
    """
    waiting = asyncio.ensure_future(result)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        call.cancel()
        raise


class Progress:
    """Who may advance the steps of a stream: its reader, or from then on who closes it."""

    def __init__(self) -> None:
        self.is_closed = False
        # A generator cannot run in two threads at a time.
        self._lock = threading.Lock()

    def advance(self, action: Callable[[], T]) -> T:
        """Does `action` of the reader. Raises StopIteration if the stream is closed."""
        with self._lock:
            if self.is_closed:
                raise StopIteration
            return action()

    def close(self, action: Callable[[], T]) -> T:
        """Does the first `action` after the reader's. Raises StopIteration if it is closed."""
        with self._lock:
            if self.is_closed:
                raise StopIteration
            self.is_closed = True
            return action()


def next_item(stream: StreamSteps[T], progress: Progress | None = None) -> Steps[T | None]:
    """Performs the steps of a stream up to its next element. Returns None at the end."""
    progress = progress or Progress()
    step: Step | Emit[T]
    try:
        step = progress.advance(functools.partial(next, stream))
        while not isinstance(step, Emit):
            try:
                result = yield step
            except Exception as error:
                step = progress.advance(functools.partial(stream.throw, error))
            else:
                step = progress.advance(functools.partial(stream.send, result))
        return step.item
    except StopIteration:
        return None


class SyncDriver:
    """Performs operations in the calling thread."""

    _channel: grpc.Channel

    def _drive(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    result = step.perform(self._channel)
                except grpc.RpcError as error:
                    step = steps.throw(error_from_rpc(error))
                else:
                    step = steps.send(result)
        except StopIteration as stop:
            return cast(T, stop.value)
        finally:
            steps.close()


class AsyncDriver:
    """Performs operations without blocking."""

    _channel: grpc.aio.Channel

    async def _drive(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    result = await step.perform_async(self._channel)
                except grpc.RpcError as error:
                    step = steps.throw(error_from_rpc(error))
                else:
                    step = steps.send(result)
        except StopIteration as stop:
            return cast(T, stop.value)
        finally:
            steps.close()


class StreamClosed(Exception):
    """Thrown into a stream that its reader closes, so that it can end its work in the daemon."""


def end_stream(stream: StreamSteps[T], progress: Progress) -> Steps[None]:
    """Performs the last steps of a stream."""
    try:
        step = progress.close(functools.partial(stream.throw, StreamClosed()))
        while not isinstance(step, Emit):
            try:
                result = yield step
            except Exception as error:
                step = stream.throw(error)
            else:
                step = stream.send(result)
    except (StopIteration, StreamClosed):
        pass


class Stream(Generic[T]):
    """Elements of a stream, in a `for` loop. `close`, or the end of a `with` block, cancels it."""

    def __init__(self, driver: SyncDriver, steps: StreamSteps[T]) -> None:
        self._driver = driver
        self._steps = steps
        self._progress = Progress()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            item = self._driver._drive(next_item(self._steps, self._progress))
        except CallError:
            # Another thread has closed the stream.
            if not self._progress.is_closed:
                raise
            item = None
        if item is None:
            raise StopIteration
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels the stream. Another thread that reads it then reaches its end."""
        self._driver._drive(end_stream(self._steps, self._progress))


class AsyncStream(Generic[T]):
    """Elements of a stream, in an `async for` loop. `close` cancels it, as `async with` does."""

    def __init__(self, driver: AsyncDriver, steps: StreamSteps[T]) -> None:
        self._driver = driver
        self._steps = steps
        self._progress = Progress()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            item = await self._driver._drive(next_item(self._steps, self._progress))
        except (CallError, asyncio.CancelledError):
            # Another task has closed the stream.
            if not self._progress.is_closed:
                raise
            item = None
        if item is None:
            raise StopAsyncIteration
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancels the stream. Another task that reads it then reaches its end."""
        await self._driver._drive(end_stream(self._steps, self._progress))


class operation(Generic[P, T]):  # noqa: N801 (a decorator)
    """Makes a method of an operation: blocking in `Client`, a coroutine in `AsyncClient`."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self.steps = steps

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Any, P], Steps[T]]: ...
    @overload
    def __get__(self, instance: SyncDriver, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, instance: AsyncDriver, owner: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            # For `help` and programs that write documentation.
            return self.steps

        @functools.wraps(self.steps)
        def method(*args: Any, **kwargs: Any) -> Any:
            return instance._drive(self.steps(instance, *args, **kwargs))

        return method


class streaming(Generic[P, T]):  # noqa: N801 (a decorator)
    """Makes a method that returns a `Stream` in `Client`, and an `AsyncStream` in `AsyncClient`."""

    def __init__(self, steps: Callable[Concatenate[Any, P], StreamSteps[T]]) -> None:
        self.steps = steps

    @overload
    def __get__(
        self, instance: None, owner: type
    ) -> Callable[Concatenate[Any, P], StreamSteps[T]]: ...
    @overload
    def __get__(self, instance: SyncDriver, owner: type) -> Callable[P, Stream[T]]: ...
    @overload
    def __get__(self, instance: AsyncDriver, owner: type) -> Callable[P, AsyncStream[T]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            # For `help` and programs that write documentation.
            return self.steps
        kind: Any = Stream if isinstance(instance, SyncDriver) else AsyncStream

        @functools.wraps(self.steps)
        def method(*args: Any, **kwargs: Any) -> Any:
            return kind(instance, self.steps(instance, *args, **kwargs))

        return method
