"""RPCs of the contract by name, and conversion between its messages and Python values."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar, cast

from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import (
    EnumDescriptor,
    FieldDescriptor,
    FileDescriptor,
    MethodDescriptor,
)
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

import jig.v1.messages as messages
from jig.results import Output
from jig.v1 import (
    approval_service_pb2,
    artifact_service_pb2,
    catalog_service_pb2,
    daemon_service_pb2,
    event_service_pb2,
    invoke_service_pb2,
    job_service_pb2,
    process_service_pb2,
    tool_service_pb2,
    transfer_service_pb2,
    watch_service_pb2,
    workspace_service_pb2,
)

R = TypeVar("R")
# Whole numbers below it are exact as 64-bit floating point.
MAX_EXACT_INTEGER = 2.0**53

FILES: tuple[FileDescriptor, ...] = tuple(
    module.DESCRIPTOR
    for module in (
        approval_service_pb2,
        artifact_service_pb2,
        catalog_service_pb2,
        daemon_service_pb2,
        event_service_pb2,
        invoke_service_pb2,
        job_service_pb2,
        process_service_pb2,
        tool_service_pb2,
        transfer_service_pb2,
        watch_service_pb2,
        workspace_service_pb2,
    )
)


@dataclass(frozen=True)
class Method:
    """An RPC of the contract."""

    path: str
    request: type[Message]
    response: type[Message]
    only_reads: bool
    """Whether a repeated call has no effect, so that it needs no request id."""

    @functools.cached_property
    def coders(self) -> dict[str, Any]:
        """The functions with which gRPC encodes requests and decodes responses."""
        return {
            "request_serializer": self.request.SerializeToString,
            "response_deserializer": self.response.FromString,
        }


def to_method(descriptor: MethodDescriptor) -> Method:
    options = descriptor.GetOptions()
    service: Any = descriptor.containing_service
    return Method(
        path=f"/{service.full_name}/{descriptor.name}",
        request=message_factory.GetMessageClass(descriptor.input_type),
        response=message_factory.GetMessageClass(descriptor.output_type),
        only_reads=options.idempotency_level == MethodOptions.NO_SIDE_EFFECTS,
    )


# Names of RPCs are unique in the contract.
METHODS: dict[str, Method] = {
    method.name: to_method(method)
    for file in FILES
    for service in file.services_by_name.values()
    for method in service.methods
}


def encode(kind: type[Message], values: Mapping[str, object]) -> Message:
    """Makes a message. None leaves a field unset, and enum values have no prefix."""
    message = kind()
    for name, value in values.items():
        if value is None:
            continue
        field = cast(FieldDescriptor, kind.DESCRIPTOR.fields_by_name[name])
        if field.message_type and field.message_type.GetOptions().map_entry:
            getattr(message, name).update(value)
        elif field.is_repeated:
            items = cast(Sequence[object], value)
            getattr(message, name).extend(encode_value(field, item) for item in items)
        elif field.message_type:
            getattr(message, name).CopyFrom(encode_value(field, value))
        else:
            setattr(message, name, encode_value(field, value))
    return message


def encode_value(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type:
        return encode_enum(field.name, field.enum_type, value)
    if field.message_type and field.message_type.full_name == Struct.DESCRIPTOR.full_name:
        return json_format.ParseDict(value, Struct())
    if field.message_type:
        kind = message_factory.GetMessageClass(field.message_type)
        return encode(kind, vars(value) if is_dataclass(value) else value)
    return value


def encode_enum(name: str, enum: EnumDescriptor, value: object) -> int:
    prefix = enum_prefix(enum)
    known = enum.values_by_name.get(f"{prefix}{value}")
    if known is None or known.number == 0:
        names = [known.name.removeprefix(prefix) for known in enum.values if known.number]
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(names)}")
    return known.number


def enum_prefix(enum: EnumDescriptor) -> str:
    """The prefix of the values of an enum: `FILE_TYPE_` of `FILE_TYPE_UNSPECIFIED`."""
    return enum.values_by_number[0].name.removesuffix("UNSPECIFIED")


def decode(kind: type[R], message: Message) -> R:
    """Converts a message to the dataclass of the same name.

    Enum values are names without their prefix. An absent message, an unset optional field and an
    unset enum are None.
    """
    return kind(
        **{field.name: decode_field(message, field.name) for field in fields(cast(Any, kind))}
    )


def decode_field(message: Message, name: str) -> object:
    field = cast(FieldDescriptor, message.DESCRIPTOR.fields_by_name[name])
    value = getattr(message, name)
    if field.message_type and field.message_type.GetOptions().map_entry:
        return dict(value)
    if field.is_repeated:
        return [decode_value(field, item) for item in value]
    if field.has_presence and not message.HasField(name):
        return None
    return decode_value(field, value)


def decode_value(field: FieldDescriptor, value: Any) -> object:
    if field.enum_type:
        return decode_enum(field.enum_type, value)
    if not field.message_type:
        return value
    match field.message_type.full_name:
        case "google.protobuf.Timestamp":
            return value.ToDatetime(datetime.timezone.utc)
        case "google.protobuf.Duration":
            return value.ToNanoseconds() / 1e9
        case "google.protobuf.Struct":
            return to_integers(json_format.MessageToDict(value))
        case _:
            return decode(getattr(messages, field.message_type.name), value)


def to_integers(value: Any) -> Any:
    """Writes whole numbers as `int`: JSON, and so `Struct`, has one type of numbers."""
    match value:
        case dict():
            values = cast(dict[str, object], value)
            return {name: to_integers(item) for name, item in values.items()}
        case list():
            return [to_integers(item) for item in cast(list[object], value)]
        case float() if value.is_integer() and abs(value) < MAX_EXACT_INTEGER:
            return int(value)
        case _:
            return value


def decode_enum(enum: EnumDescriptor, number: int) -> str | None:
    if number == 0:
        return None
    value = enum.values_by_number.get(number)
    # A newer daemon can have values that this package does not know.
    return value.name.removeprefix(enum_prefix(enum)) if value else str(number)


def decode_event(message: Message) -> Any:
    """Converts a message of a stream by its `oneof`. Returns None for messages without content."""
    name = message.WhichOneof(next(iter(message.DESCRIPTOR.oneofs_by_name)))
    if name is None or name == "keep_alive":
        return None
    value = getattr(message, name)
    if name in ("stdout", "stderr"):
        return Output(name, value.offset, value.data)
    return decode(getattr(messages, value.DESCRIPTOR.name), value)
