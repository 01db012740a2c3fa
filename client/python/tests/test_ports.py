"""Ports: local addresses that lead to servers in sandboxes."""

import asyncio
import contextlib
import socket
import threading
import urllib.request
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest

import jig
from jig.v1 import reasons

ECHO = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 8000))
print("ready", flush=True)
def echo(stream):
    while data := stream.recv(65536):
        stream.sendall(data)
    stream.close()
while True:
    threading.Thread(target=echo, args=[listener.accept()[0]]).start()
"""


@pytest.fixture(params=["sync", "async"])
def address(request: pytest.FixtureRequest, daemon: jig.Daemon) -> Iterator[str]:
    """The local address of a server in a sandbox, by each kind of client."""
    with jig.Client(daemon.address) as client, client.start(["python3", "-c", ECHO]) as process:
        wait_until_ready(process)
        if request.param == "sync":
            with client.forward_port(process.process_id, 8000) as address:
                yield address
            return
        with background_loop() as run:
            other = jig.AsyncClient(daemon.address)
            forward = other.forward_port(process.process_id, 8000)
            yield run(forward.__aenter__())
            run(forward.__aexit__(None, None, None))
            run(other.close())


def wait_until_ready(process: jig.Process) -> None:
    received = b""
    while b"ready" not in received:
        event = next(iter(process))
        received += event.data if isinstance(event, jig.Output) else b""


@contextlib.contextmanager
def background_loop() -> Generator[Callable[[Coroutine[Any, Any, Any]], Any], None, None]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    yield run
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def connect(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def receive_all(stream: socket.socket) -> bytes:
    received = bytearray()
    while data := stream.recv(1 << 20):
        received += data
    return bytes(received)


def test_bytes_pass_in_both_directions(address: str) -> None:
    sent = bytes(range(256)) * 20_000
    for _ in range(3):
        with connect(address) as stream:

            def send(stream: socket.socket = stream) -> None:
                stream.sendall(sent)
                stream.shutdown(socket.SHUT_WR)

            sending = threading.Thread(target=send)
            sending.start()
            assert receive_all(stream) == sent
            sending.join()


def test_connections_are_kept_apart(address: str) -> None:
    with contextlib.ExitStack() as open_streams:
        streams = [open_streams.enter_context(connect(address)) for _ in range(20)]
        for number, stream in enumerate(streams):
            stream.sendall(b"%d" % number)
        for number, stream in reversed(list(enumerate(streams))):
            stream.shutdown(socket.SHUT_WR)
            assert receive_all(stream) == b"%d" % number


def test_http_server_is_reached(daemon: jig.Daemon) -> None:
    with jig.Client(daemon.address) as client:
        client.write_file("served.txt", "text")
        command = "python3 -m http.server 3000 2>&1 & sleep 0.1; echo ready; wait"
        with client.start(command) as process:
            wait_until_ready(process)
            forward = client.forward_port(process.process_id, 3000)
            with forward as address:
                for _ in range(600):
                    with contextlib.suppress(OSError):
                        with urllib.request.urlopen(f"http://{address}/served.txt") as response:
                            assert response.read() == b"text"
                        break
                else:
                    pytest.fail(str(forward.error))


def test_refused_port_resets_the_local_connection(daemon: jig.Daemon) -> None:
    with jig.Client(daemon.address) as client, client.start("echo ready; sleep 60") as process:
        wait_until_ready(process)
        forward = client.forward_port(process.process_id, 9)
        reset = contextlib.suppress(ConnectionResetError)
        with forward as address, connect(address) as stream, reset:
            assert stream.recv(1) == b""
        assert isinstance(forward.error, reasons.PortRefused)


def test_end_of_the_block_closes_connections(daemon: jig.Daemon) -> None:
    with jig.Client(daemon.address) as client, client.start(["python3", "-c", ECHO]) as process:
        wait_until_ready(process)
        with client.forward_port(process.process_id, 8000) as address:
            stream = connect(address)
            stream.sendall(b"x")
            assert stream.recv(1) == b"x"
        with stream, contextlib.suppress(ConnectionResetError):
            assert stream.recv(1) == b""
        with pytest.raises(OSError, match="refused"):
            connect(address)
