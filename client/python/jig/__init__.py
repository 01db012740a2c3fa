"""Client of jig: sandboxed commands and files for AI agents.

    import jig

    with jig.Client.embedded("project") as client:
        print(client.run("ls").stdout)
        results = client.handle(reply)  # runs the tool calls of a model's reply

`AsyncClient` has the same methods as coroutines. Results are dataclasses of `jig.v1.messages`.
Errors are classes of `jig.v1.reasons`, one for each reason of the contract, and have the base
`CallError`.
"""

from jig.client import AsyncClient, Client
from jig.connection import ClientOptions
from jig.daemon import Daemon
from jig.errors import (
    CallError,
    ConfigurationError,
    DaemonStartError,
    FieldViolation,
    JigError,
    Unavailable,
)
from jig.ports import AsyncPortForward, PortForward
from jig.process import AsyncProcess, Process, ProcessEvent
from jig.results import CommandFailed, Output
from jig.steps import AsyncStream, Stream
from jig.tools import CallOutcome, InvokeEvent, ToolResults
from jig.v1.messages import Edit, LowerLimits, TerminalSize
from jig.vendors import ToolCall, Vendor, parse_reply

__all__ = [
    "AsyncClient",
    "AsyncPortForward",
    "AsyncProcess",
    "AsyncStream",
    "CallError",
    "CallOutcome",
    "Client",
    "ClientOptions",
    "CommandFailed",
    "ConfigurationError",
    "Daemon",
    "DaemonStartError",
    "Edit",
    "FieldViolation",
    "InvokeEvent",
    "JigError",
    "LowerLimits",
    "Output",
    "PortForward",
    "Process",
    "ProcessEvent",
    "Stream",
    "TerminalSize",
    "ToolCall",
    "ToolResults",
    "Unavailable",
    "Vendor",
    "parse_reply",
]
