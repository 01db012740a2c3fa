"""Tool calls in the replies of models, in the form of each vendor."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from jig.errors import JigError

Vendor: TypeAlias = Literal["anthropic", "openai-responses", "openai-chat", "gemini", "mcp"]
ToolFormatName: TypeAlias = Vendor | Literal["json-schema", "function"]

# Where the parts of a reply are, in the reply itself or in one of its messages.
PARTS: tuple[tuple[str | int, ...], ...] = (
    ("choices", 0, "message", "tool_calls"),
    ("tool_calls",),
    ("candidates", 0, "content", "parts"),
    ("parts",),
    ("output",),
    ("content",),
)


class UnknownReply(JigError, TypeError):
    """Tool calls of several vendors in one reply."""


@dataclass(frozen=True)
class ToolCall:
    """A tool call of a model."""

    vendor: Vendor
    call_id: str
    """Id that the model gave the call. Empty if it gave none."""
    name: str
    arguments_json: str


def parse_reply(reply: object) -> list[ToolCall]:
    """Returns the tool calls of a reply. Other parts, such as texts, are ignored.

    A reply is the response of a vendor's package, its message, or a list of its parts, as objects
    or as JSON values.
    """
    calls = [call for part in parts_of(reply) if (call := parse_part(part))]
    if len({call.vendor for call in calls}) > 1:
        raise UnknownReply("the tool calls have the forms of several vendors")
    return calls


def parts_of(reply: object) -> Iterable[object]:
    if is_list(reply):
        return cast(Sequence[object], reply)
    for path in PARTS:
        parts = follow(reply, path)
        if is_list(parts):
            return cast(Sequence[object], parts)
    return [reply]


def parse_part(part: object) -> ToolCall | None:
    kind = get(part, "type")
    if kind == "tool_use":
        return to_call("anthropic", get(part, "id"), part, "input")
    if kind == "function_call":
        return to_call("openai-responses", get(part, "call_id"), part, "arguments")
    if (function := get(part, "function")) is not None:
        return to_call("openai-chat", get(part, "id"), function, "arguments")
    if (function := get(part, "functionCall") or get(part, "function_call")) is not None:
        return to_call("gemini", get(function, "id"), function, "args")
    if get(part, "args") is not None:
        return to_call("gemini", get(part, "id"), part, "args")
    if kind is None and get(part, "name") is not None:
        return to_call("mcp", None, part, "arguments")
    return None


def to_call(vendor: Vendor, call_id: object, function: object, arguments: str) -> ToolCall:
    values = get(function, arguments)
    text = values if isinstance(values, str) else json.dumps(values or {})
    return ToolCall(vendor, str(call_id or ""), str(get(function, "name")), text or "{}")


def follow(value: object, path: tuple[str | int, ...]) -> object:
    for name in path:
        if isinstance(name, str):
            value = get(value, name)
        else:
            value = cast(Sequence[object], value)[name] if is_list(value) and value else None
    return value


def get(value: object, name: str) -> Any:
    if isinstance(value, Mapping):
        return cast(Mapping[str, Any], value).get(name)
    return getattr(value, name, None)


def is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def to_messages(
    vendor: Vendor, calls: Sequence[ToolCall], results: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The messages with which the conversation continues."""
    if vendor == "anthropic":
        return [{"role": "user", "content": results}]
    if vendor == "gemini":
        for call, result in zip(calls, results, strict=True):
            if not call.call_id:
                del result["functionResponse"]["id"]
        return [{"role": "user", "parts": results}]
    return results
