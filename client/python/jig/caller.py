"""Calls of RPCs with metadata, deadline, request id and retries: the base of all operations."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from jig.connection import Options
from jig.contract import METHODS, Method, decode, encode
from jig.errors import CallError
from jig.steps import Emit, Metadata, Open, Read, Sleep, Steps, StreamSteps, Unary

if TYPE_CHECKING:
    from typing_extensions import Self

R = TypeVar("R")

# Bounds of the delay before a retry without `RetryInfo`. Each delay is twice the one before.
MIN_RETRY_DELAY_SEC = 0.1
MAX_RETRY_DELAY_SEC = 2.0


class Attempts:
    """The attempts of one call: its request id, its deadline and the delays between them."""

    def __init__(self, options: Options, method: Method) -> None:
        self.options = options
        self.deadline = options.deadline_sec and time.monotonic() + options.deadline_sec
        self.count = 0
        self.request_id = ""
        if not method.only_reads:
            generated = uuid.uuid4().hex if options.retries > 0 else ""
            self.request_id = options.request_id or generated

    def metadata(self, method: Method) -> Metadata:
        """The metadata of an attempt."""
        pairs = self.options.metadata()
        if self.request_id and not method.only_reads:
            pairs += (("jig-request-id", self.request_id),)
        return pairs

    def remaining_sec(self) -> float | None:
        """Seconds until the deadline. None without one."""
        return max(self.deadline - time.monotonic(), 0.001) if self.deadline else None

    def progress(self) -> None:
        """Starts to count retries anew, after an attempt that had an effect."""
        self.count = 0

    def next_delay(self, error: CallError, method: Method) -> Sleep:
        """The wait before the next attempt. Raises the error if there must be none."""
        delay = retry_delay_sec(error, self.count)
        is_safe = method.only_reads or bool(self.request_id)
        if delay is None or not is_safe or self.count >= self.options.retries:
            raise error
        remaining = self.remaining_sec()
        if remaining is not None and delay >= remaining:
            raise error
        self.count += 1
        return Sleep(delay)


def retry_delay_sec(error: CallError, attempt: int) -> float | None:
    """Seconds to wait before a retry. None if a retry does not help."""
    if error.retry_delay_sec is not None:
        # Clients that were rejected together do not come back together.
        return error.retry_delay_sec * random.uniform(1, 1.2)
    if error.code == "UNAVAILABLE" and error.reason in ("", "DRAINING"):
        delay = min(MIN_RETRY_DELAY_SEC * 2.0**attempt, MAX_RETRY_DELAY_SEC)
        return delay * random.uniform(0.5, 1)
    return None


class Caller:
    """Calls RPCs. The classes of operations extend it."""

    _options: Options

    def _with(self, **changes: Any) -> Self:
        """Returns a copy with other options."""
        other = copy.copy(self)
        other._options = dataclasses.replace(self._options, **changes)
        other._options.metadata()
        return other

    def _call(self, rpc: str, result: type[R], **values: object) -> Steps[R]:
        """Calls an RPC by its name in the contract, with retries. Returns the decoded response."""
        message = yield from self._call_raw(rpc, values)
        return decode(result, message)

    def _call_raw(self, rpc: str, values: Mapping[str, object]) -> Steps[Any]:
        """Calls an RPC. Returns the message of the response."""
        method = METHODS[rpc]
        request = encode(method.request, values)
        attempts = Attempts(self._options, method)
        return (yield from self._attempt(attempts, method, lambda: request))

    def _attempt(
        self,
        attempts: Attempts,
        method: Method,
        request: Callable[[], Message | Iterator[Message]],
    ) -> Steps[Any]:
        """Calls an RPC until it succeeds, or until no retry helps."""
        while True:
            try:
                metadata = attempts.metadata(method)
                return (yield Unary(method, request(), metadata, attempts.remaining_sec()))
            except CallError as error:
                delay = attempts.next_delay(error, method)
            yield delay

    def _messages(
        self, position: Callable[[], tuple[str, Mapping[str, object]]]
    ) -> StreamSteps[Any]:
        """Streams the messages of an RPC.

        If the stream is interrupted, it continues with the RPC and request that `position` then
        returns.
        """
        rpc, values = position()
        attempts = Attempts(self._options, METHODS[rpc])
        while True:
            method = METHODS[rpc]
            call: Any = None
            try:
                call = yield Open(
                    method,
                    encode(method.request, values),
                    attempts.metadata(method),
                    attempts.remaining_sec(),
                )
                while (message := (yield Read(call))) is not None:
                    attempts.progress()
                    yield Emit(message)
                return
            except CallError as error:
                delay = attempts.next_delay(error, method)
            finally:
                if call is not None:
                    call.cancel()
            yield delay
            rpc, values = position()

    def _pages(self, rpc: str, result: type[R], items: str, **values: object) -> Steps[list[R]]:
        """Calls an RPC for each of its pages. Returns the elements of all pages."""
        elements: list[R] = []
        page_token = None
        while True:
            page = yield from self._call_raw(rpc, {**values, "page_token": page_token})
            elements += [decode(result, element) for element in getattr(page, items)]
            page_token = page.next_page_token
            if not page_token:
                return elements


def close_later(stream: StreamSteps[R]) -> contextlib.closing[StreamSteps[R]]:
    """Closes a stream with the operation that reads it."""
    return contextlib.closing(stream)
