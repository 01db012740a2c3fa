"""The clients: `Client` blocks, and `AsyncClient` awaits. Both have the same operations."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import grpc

import jig.v1.reasons as reasons
from jig.approvals import ApprovalOperations
from jig.commands import CommandOperations
from jig.connection import ClientOptions, Options, PathText, channel_arguments, with_environment
from jig.daemon import Daemon
from jig.files import FileOperations
from jig.jobs import JobOperations
from jig.ports import AsyncPortForward, PortForward
from jig.records import RecordOperations
from jig.steps import AsyncDriver, SyncDriver
from jig.tools import ToolOperations
from jig.transfer import TransferOperations
from jig.trees import TreeOperations
from jig.watches import WatchOperations
from jig.workspaces import WorkspaceOperations

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

# The classes of errors must be known before the first error.
assert reasons
# The environment variables that a client of an embedded daemon uses.
EMBEDDED_VARIABLES = ("JIG_SESSION", "JIG_DEADLINE", "TRACEPARENT")


class Connection:
    """A channel that a client and its copies share, and their embedded daemon."""

    def __init__(self, options: Options) -> None:
        self.arguments = channel_arguments(options)
        self.channel: Any = None
        self.opening = threading.Lock()
        self.daemon: Daemon | None = None

    def open(self, transport: Any) -> Any:
        """Returns the channel. `transport` is `grpc` or `grpc.aio`."""
        with self.opening:
            if self.channel is None:
                is_secure = "credentials" in self.arguments
                make = transport.secure_channel if is_secure else transport.insecure_channel
                self.channel = make(**self.arguments)
            return self.channel

    def close_daemon(self) -> None:
        if self.daemon is not None:
            self.daemon.close()


class Operations(
    FileOperations,
    CommandOperations,
    TransferOperations,
    TreeOperations,
    ToolOperations,
    JobOperations,
    ApprovalOperations,
    RecordOperations,
    WatchOperations,
    WorkspaceOperations,
):
    """All operations of a client."""

    def __init__(self, address: str = "", **options: Unpack[ClientOptions]) -> None:
        self._connect(with_environment(Options(address=address, **options)))

    def _connect(self, options: Options) -> None:
        options.metadata()
        self._options = options
        self._connection = Connection(options)

    @property
    def address(self) -> str:
        """Address of the daemon."""
        return self._options.address

    @property
    def workspace(self) -> str:
        """Name of the workspace of the calls. Empty for the first one of the daemon."""
        return self._options.workspace

    def with_options(self, **changes: Unpack[ClientOptions]) -> Self:
        """Returns a client with other options and the same connection.

        `client.with_options(session="review", deadline_sec=60)` is for a conversation, and
        `client.with_options(request_id="nightly-7").run(…)` for one call. Closing either closes
        the connection of both. Changes of `ca`, `client_cert` and `client_key` have no effect.
        """
        return self._with(**changes)

    @classmethod
    def _with_daemon(cls, daemon: Daemon, options: ClientOptions) -> Self:
        environ = {name: os.environ.get(name, "") for name in EMBEDDED_VARIABLES}
        client = cls.__new__(cls)
        try:
            client._connect(with_environment(Options(address=daemon.address, **options), environ))
        except BaseException:
            daemon.close()
            raise
        client._connection.daemon = daemon
        return client


class Client(Operations, SyncDriver):
    """Client of a daemon at `address`, by default that of `JIG_ADDRESS`.

    An address is `host:port`, `http://host:port`, `https://host:port` (TLS) or `unix:/path`.
    Several threads can use a client. Use it in a `with` block, or close it.

    Raises `ConfigurationError`. The first call connects.
    """

    @classmethod
    def embedded(
        cls,
        directory: PathText = ".",
        *,
        program: PathText | None = None,
        minimum_level: str | None = None,
        **options: Unpack[ClientOptions],
    ) -> Self:
        """Starts a daemon that serves `directory` and ends with this client.

        `program` and `minimum_level` are those of `Daemon`, which has more parameters:
        `Client(daemon.address)` calls it.

        Raises `DaemonStartError`.
        """
        daemon = Daemon(directory, program=program, minimum_level=minimum_level)
        return cls._with_daemon(daemon, options)

    @property
    def _channel(self) -> grpc.Channel:  # type: ignore[override]
        channel: grpc.Channel = self._connection.open(grpc)
        return channel

    def forward_port(self, process_id: str, port: int, *, local_port: int = 0) -> PortForward:
        """Forwards a local address to a TCP port of a process, in the network of its run.

            with client.forward_port(process.process_id, 3000) as address:
                urllib.request.urlopen(f"http://{address}/")

        The address is on 127.0.0.1, with a free port unless `local_port` names one. Each connection
        to it is one to the server, which can start later. It is reset if the call fails. `error`
        of the returned object is then a `PortRefused`, `ProcessEnded` or another `CallError`.
        """
        return PortForward(self, process_id, port, local_port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection, and ends an embedded daemon."""
        if self._connection.channel is not None:
            self._connection.channel.close()
        self._connection.close_daemon()


class AsyncClient(Operations, AsyncDriver):
    """As `Client`, with coroutines. It belongs to the event loop of its first call."""

    @classmethod
    async def embedded(
        cls,
        directory: PathText = ".",
        *,
        program: PathText | None = None,
        minimum_level: str | None = None,
        **options: Unpack[ClientOptions],
    ) -> Self:
        """Starts a daemon, as `Client.embedded`."""
        daemon = await asyncio.to_thread(
            Daemon, directory, program=program, minimum_level=minimum_level
        )
        return cls._with_daemon(daemon, options)

    @property
    def _channel(self) -> grpc.aio.Channel:  # type: ignore[override]
        channel: grpc.aio.Channel = self._connection.open(grpc.aio)
        return channel

    def forward_port(self, process_id: str, port: int, *, local_port: int = 0) -> AsyncPortForward:
        """Forwards a local address, as `Client.forward_port`, in an `async with` block."""
        return AsyncPortForward(self, process_id, port, local_port)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection, and ends an embedded daemon."""
        if self._connection.channel is not None:
            await self._connection.channel.close()
        await asyncio.to_thread(self._connection.close_daemon)
