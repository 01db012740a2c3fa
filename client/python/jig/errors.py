"""Errors of calls. Each reason of the contract has a class in `jig.v1.reasons`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import grpc
from google.rpc import error_details_pb2, status_pb2

STATUS_METADATA = "grpc-status-details-bin"
CALL_ID_METADATA = "jig-call-id"


class JigError(Exception):
    """Base class of all errors of this package."""


class ConfigurationError(JigError, ValueError):
    """An address, option or environment variable has an invalid value."""


class DaemonStartError(JigError):
    """The embedded daemon did not start. The message has the end of its log."""


@dataclass(frozen=True)
class FieldViolation:
    """A field of a request that violates its rules."""

    field: str
    """Path of the field in the request, such as `edits[0].old_string`."""
    description: str
    """The rule that the value violates."""


class CallError(JigError):
    """A call that failed. Subclasses have one reason each, such as `FileNotFound`.

    A reason that this version of the package does not know has this class itself.
    """

    reason: str = ""
    """Reason in the contract, such as `FILE_NOT_FOUND`. Empty if the daemon gave none."""
    code: str
    """gRPC code, such as `NOT_FOUND`."""
    message: str
    """What happened, and what to do."""
    metadata: Mapping[str, str]
    """Values in the message, by name."""
    violations: tuple[FieldViolation, ...]
    """Invalid fields of the request, of `InvalidParams`."""
    retry_delay_sec: float | None
    """Seconds after which a retry can succeed. None if the daemon suggests no retry."""
    call_id: str
    """Id of the call in the log of the daemon. Empty if the daemon was not reached."""

    _classes: ClassVar[dict[str, type[CallError]]] = {}

    def __init_subclass__(cls, *, reason: str = "") -> None:
        super().__init_subclass__()
        if reason:
            cls.reason = reason
            cls._classes[reason] = cls

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        reason: str | None = None,
        metadata: Mapping[str, str] | None = None,
        violations: Iterable[FieldViolation] = (),
        retry_delay_sec: float | None = None,
        call_id: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = self.reason if reason is None else reason
        self.metadata = metadata or {}
        self.violations = tuple(violations)
        self.retry_delay_sec = retry_delay_sec
        self.call_id = call_id

    @classmethod
    def of_reason(cls, reason: str) -> type[CallError]:
        """Returns the class of a reason, such as `FILE_NOT_FOUND`."""
        return cls._classes.get(reason, CallError)


class Unavailable(CallError, ConnectionError):
    """The daemon cannot be reached, or the connection was lost. Code: `UNAVAILABLE`."""


def to_dict(metadata: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str | bytes]:
    # Not `dict(metadata)`: some versions of `grpc.aio.Metadata` iterate over pairs and over keys.
    return {name: value for name, value in metadata or ()}


def error_from_rpc(error: grpc.RpcError) -> CallError:
    """Converts the error of a gRPC call."""
    # Errors of both kinds of channels have the methods of `grpc.Call`.
    assert isinstance(error, (grpc.Call, grpc.aio.AioRpcError))
    code = error.code().name
    if code == "INTERNAL" and error.details() == "Internal error from Core":
        # `grpc.aio` reports a request that it cannot write to a lost connection so.
        code = "UNAVAILABLE"
    trailers = to_dict(error.trailing_metadata())
    headers = to_dict(error.initial_metadata())
    call_id = headers.get(CALL_ID_METADATA) or trailers.get(CALL_ID_METADATA) or ""

    reason: str | None = None
    metadata: dict[str, str] = {}
    violations: list[FieldViolation] = []
    retry_delay_sec: float | None = None
    encoded = trailers.get(STATUS_METADATA, b"")
    details = status_pb2.Status.FromString(encoded if isinstance(encoded, bytes) else b"").details
    for detail in details:
        info = error_details_pb2.ErrorInfo()
        bad_request = error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(bad_request):
            violations += [
                FieldViolation(violation.field, violation.description)
                for violation in bad_request.field_violations
            ]
        elif detail.Unpack(retry):
            retry_delay_sec = retry.retry_delay.ToNanoseconds() / 1e9

    if reason is None and code == "DEADLINE_EXCEEDED":
        reason = "TIMEOUT"
    kind = CallError.of_reason(reason or "")
    if not reason and code == "UNAVAILABLE":
        kind = Unavailable
    return kind(
        error.details() or code,
        code=code,
        reason=reason,
        metadata=metadata,
        violations=violations,
        retry_delay_sec=retry_delay_sec,
        call_id=call_id if isinstance(call_id, str) else call_id.decode(),
    )
