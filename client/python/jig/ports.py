"""Local addresses that lead to ports of processes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import grpc

from jig.caller import Attempts, Caller
from jig.contract import METHODS
from jig.errors import CallError, error_from_rpc
from jig.v1.process_service_pb2 import (
    EndOfPortData,
    ForwardPortRequest,
    ForwardPortResponse,
    ForwardPortStart,
)

CHUNK_BYTES = 64 << 10
LOCALHOST = "127.0.0.1"
# A closed socket then sends a reset: its peer does not take the end for a complete one.
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class PortTarget:
    """A port of a process, and how it is called."""

    def __init__(self, caller: Caller, process_id: str, port: int) -> None:
        self.caller = caller
        self.start = ForwardPortRequest(start=ForwardPortStart(process_id=process_id, port=port))

    def open(self, requests: Any) -> Any:
        """Calls `ForwardPort`, without a deadline: a connection lasts as long as its users."""
        method = METHODS["ForwardPort"]
        metadata = Attempts(self.caller._options, method).metadata(method)
        channel = cast(Any, self.caller)._channel
        call = channel.stream_stream(method.path, **method.coders)
        return call(requests, metadata=metadata)


class PortForward:
    """Forwards connections to a local address, within a `with` block.

    Each connection has two threads. `error` is that of the last connection that failed.
    """

    def __init__(self, caller: Caller, process_id: str, port: int, local_port: int) -> None:
        self._target = PortTarget(caller, process_id, port)
        self._local_port = local_port
        self._lock = threading.Lock()
        self._is_closed = False
        self._open: dict[socket.socket, Any] = {}
        self._threads: list[threading.Thread] = []
        self.error: CallError | None = None

    def __enter__(self) -> str:
        self._listener = socket.create_server((LOCALHOST, self._local_port))
        host, port = self._listener.getsockname()
        self._start(self._accept)
        return f"{host}:{port}"

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_closed = True
            # Wakes the threads.
            for local, call in self._open.items():
                if call is not None:
                    call.cancel()
                end(local)
        end(self._listener)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _start(self, function: Any, *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                local, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_closed:
                    local.close()
                    return
                self._open[local] = None
            self._start(self._forward, local)

    def _forward(self, local: socket.socket) -> None:
        with local:
            try:
                self._copy(local)
            except grpc.RpcError as error:
                self.error = error_from_rpc(error)
            except OSError:
                pass  # the local client has gone
            finally:
                with self._lock:
                    call = self._open.pop(local)
                if call is not None:
                    call.cancel()
                end(local)

    def _copy(self, local: socket.socket) -> None:
        call: Any = None

        def requests() -> Iterator[ForwardPortRequest]:
            # gRPC reads this in a thread of its own.
            yield self._target.start
            try:
                while data := local.recv(CHUNK_BYTES):
                    yield ForwardPortRequest(data=data)
                yield ForwardPortRequest(end_of_data=EndOfPortData())
            except OSError:
                call.cancel()

        local.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        call = self._target.open(requests())
        with self._lock:
            self._open[local] = call
            if self._is_closed:
                call.cancel()
        for message in cast(Iterator[ForwardPortResponse], call):
            if message.HasField("end_of_data"):
                local.shutdown(socket.SHUT_WR)
                # The output is complete: a reset could cut it.
                local.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8))
            elif message.data:
                local.sendall(message.data)


def end(local: socket.socket) -> None:
    """Ends both directions, which wakes a thread that waits for one."""
    with contextlib.suppress(OSError):
        local.shutdown(socket.SHUT_RDWR)


class AsyncPortForward:
    """As `PortForward`, in an `async with` block."""

    def __init__(self, caller: Caller, process_id: str, port: int, local_port: int) -> None:
        self._target = PortTarget(caller, process_id, port)
        self._local_port = local_port
        self._tasks: set[asyncio.Task[None]] = set()
        self.error: CallError | None = None

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._accept, LOCALHOST, self._local_port)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call: Any = None
        is_complete = False

        async def requests() -> AsyncIterator[ForwardPortRequest]:
            yield self._target.start
            try:
                while data := await reader.read(CHUNK_BYTES):
                    yield ForwardPortRequest(data=data)
                yield ForwardPortRequest(end_of_data=EndOfPortData())
            except OSError:
                call.cancel()

        call = self._target.open(requests())
        try:
            async for message in call:
                if message.HasField("end_of_data"):
                    writer.write_eof()
                    is_complete = True
                elif message.data:
                    writer.write(message.data)
                    await writer.drain()
        except grpc.RpcError as error:
            self.error = error_from_rpc(error)
        except OSError:
            pass  # the local client has gone
        finally:
            call.cancel()
            if is_complete:
                writer.close()
            else:
                local = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    local.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                writer.transport.abort()
