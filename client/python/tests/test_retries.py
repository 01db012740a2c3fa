"""Retries: with a server that fails as it is told, and over connections that are cut."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any

import conftest
import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

import jig
from jig.contract import METHODS
from jig.v1 import reasons
from jig.v1.messages import ProcessExited, ProcessGap, ProcessStarted

Failure = tuple[grpc.StatusCode, str, float | None]


class FailingServer(grpc.GenericRpcHandler):
    """Answers unary calls with the given failures, one after the other, and then with success."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.request_ids: list[str] = []

    def service(self, handler_call_details: Any) -> Any:
        metadata = dict(handler_call_details.invocation_metadata)
        self.request_ids.append(metadata.get("jig-request-id", ""))
        method = METHODS[handler_call_details.method.rpartition("/")[2]]
        failure = self.failures.pop(0) if self.failures else None

        def answer(request: Any, context: Any) -> Any:
            if failure is not None:
                code, reason, delay_sec = failure
                context.set_trailing_metadata(((STATUS, status(reason, delay_sec)),))
                context.abort(code, f"failed: {reason}")
            return method.response()

        return grpc.unary_unary_rpc_method_handler(
            answer, method.request.FromString, method.response.SerializeToString
        )


STATUS = "grpc-status-details-bin"


def status(reason: str, delay_sec: float | None) -> bytes:
    info = error_details_pb2.ErrorInfo(reason=reason, domain="jig.v1")
    details: list[Any] = [info] if reason else []
    if delay_sec is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(delay_sec * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed: list[any_pb2.Any] = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    encoded: bytes = status_pb2.Status(details=packed).SerializeToString()
    return encoded


@pytest.fixture
def server() -> FailingServer:
    return FailingServer()


@pytest.fixture(params=["sync", "async"])
def failing(request: pytest.FixtureRequest, server: FailingServer) -> Iterator[jig.Client]:
    """A client of the failing server."""
    grpc_server = grpc.server(futures.ThreadPoolExecutor(2))
    grpc_server.add_generic_rpc_handlers((server,))
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    grpc_server.start()
    yield from conftest.connect(request.param, f"127.0.0.1:{port}")
    grpc_server.stop(None)


EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def test_retries_wait_and_keep_the_request_id(failing: jig.Client, server: FailingServer) -> None:
    server.failures = [
        (EXHAUSTED, "RESOURCE_EXHAUSTED", 0.2),
        (UNAVAILABLE, "DRAINING", None),
        (UNAVAILABLE, "", None),
    ]
    begin = time.monotonic()
    failing.run("true")
    assert time.monotonic() - begin >= 0.2
    first, *others = server.request_ids
    assert len(first) == 32 and others == [first] * 3
    failing.run("true")
    assert server.request_ids[-1] not in (first, "")
    failing.with_options(request_id="own").run("true")
    assert server.request_ids[-1] == "own"


def test_calls_that_only_read_have_no_request_id(
    failing: jig.Client, server: FailingServer
) -> None:
    server.failures = [(UNAVAILABLE, "", None)]
    failing.with_options(request_id="own").get_info()
    assert server.request_ids == ["", ""]


def test_retries_are_bounded(failing: jig.Client, server: FailingServer) -> None:
    server.failures = [(EXHAUSTED, "RESOURCE_EXHAUSTED", 0.001)] * 9
    with pytest.raises(reasons.ResourceExhausted) as error:
        failing.run("true")
    assert len(server.request_ids) == 6 and error.value.retry_delay_sec == 0.001

    server.failures = [(EXHAUSTED, "RESOURCE_EXHAUSTED", 0.001)] * 9
    with pytest.raises(reasons.ResourceExhausted):
        failing.with_options(retries=0).run("true")
    assert server.request_ids[6:] == [""]


def test_the_deadline_bounds_retries(failing: jig.Client, server: FailingServer) -> None:
    server.failures = [(EXHAUSTED, "RESOURCE_EXHAUSTED", 60.0)]
    begin = time.monotonic()
    with pytest.raises(reasons.ResourceExhausted):
        failing.with_options(deadline_sec=5).run("true")
    assert time.monotonic() - begin < 4 and len(server.request_ids) == 1


@pytest.mark.parametrize(
    "failure",
    [
        (EXHAUSTED, "RESOURCE_EXHAUSTED", None),
        (UNAVAILABLE, "STATE_LOST", None),
        (grpc.StatusCode.ABORTED, "DAEMON_LOST", None),
        (grpc.StatusCode.INTERNAL, "A_REASON_OF_THE_FUTURE", None),
    ],
)
def test_other_errors_are_final(
    failing: jig.Client, server: FailingServer, failure: Failure
) -> None:
    server.failures = [failure]
    with pytest.raises(jig.CallError) as error:
        failing.run("true")
    assert (error.value.code, error.value.reason) == (failure[0].name, failure[1])
    assert len(server.request_ids) == 1


def test_an_expired_deadline_is_a_timeout(client: jig.Client) -> None:
    with pytest.raises(TimeoutError) as error:
        client.with_options(deadline_sec=0.2, retries=0).run("sleep 60")
    assert isinstance(error.value, reasons.Timeout)


def test_no_daemon_is_unavailable(tmp_path: Path) -> None:
    client = jig.Client(f"unix:{tmp_path}/none.sock", retries=1)
    with client, pytest.raises(ConnectionError) as error:
        client.get_info()
    assert isinstance(error.value, jig.Unavailable)


def test_calls_wait_for_a_restarted_daemon(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    address = f"unix:{tmp_path}/again.sock"

    def start() -> jig.Daemon:
        listen = f"--listen={address}"
        return jig.Daemon(tmp_path / "workspace", program=conftest.PROGRAM, arguments=[listen])

    with jig.Client(address) as client:
        with start():
            assert client.run("echo before").ok
        with futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(client.run, "echo after")
            time.sleep(0.3)  # Several attempts fail.
            with start():
                assert running.result().stdout == "after\n"


@pytest.mark.parametrize("call", ["run", "stream"])
def test_a_cancellation_keeps_its_error(daemon: jig.Daemon, call: str) -> None:
    """Cancel scopes of anyio recognize the errors of their cancellations by the message."""

    async def work(client: jig.AsyncClient) -> None:
        if call == "run":
            await client.run("sleep 60")
        else:
            async for _ in client.stream("sleep 60"):
                pass

    async def check() -> None:
        async with jig.AsyncClient(daemon.address, session="message", retries=0) as client:
            task = asyncio.create_task(work(client))
            await asyncio.sleep(0.3)
            task.cancel("by scope 7")
            with pytest.raises(asyncio.CancelledError, match="by scope 7"):
                await task

    asyncio.run(check())


def test_a_cancelled_call_ends_its_command(daemon: jig.Daemon) -> None:
    async def check() -> None:
        async with jig.AsyncClient(daemon.address, session="cancelled", retries=0) as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.run("sleep 600"), 0.5)
            for _ in range(100):
                last = await client.last_command()
                if not last.running:
                    assert last.outcome == "CANCELLED"
                    return
                await asyncio.sleep(0.05)
            raise AssertionError("the command is still running")

    asyncio.run(check())


def test_threads_share_a_client(daemon: jig.Daemon) -> None:
    with jig.Client(daemon.address) as client, futures.ThreadPoolExecutor(8) as pool:
        results = pool.map(client.run, [f"echo {number}" for number in range(40)])
        assert [result.stdout for result in results] == [f"{number}\n" for number in range(40)]


class CuttingProxy:
    """Forwards connections to a daemon, and cuts each after some bytes."""

    def __init__(self, target: str, cut_after: Callable[[], int]) -> None:
        self.target = target
        self.cut_after = cut_after
        self.cuts = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self.target)
            budget = [self.cut_after()]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(
                    target=self.forward, args=(source, sink, budget), daemon=True
                ).start()

    def forward(self, source: socket.socket, sink: socket.socket, budget: list[int]) -> None:
        with contextlib.suppress(OSError):
            while budget[0] > 0 and (data := source.recv(min(16384, budget[0]))):
                budget[0] -= len(data)
                sink.sendall(data)
            self.cuts += budget[0] <= 0
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture(params=["sync", "async"])
def cut_client(
    request: pytest.FixtureRequest, daemon: jig.Daemon
) -> Iterator[tuple[jig.Client, CuttingProxy]]:
    """A client whose connections are cut after about 1.2 MB."""
    numbers = random.Random(1)
    proxy = CuttingProxy(
        daemon.address.removeprefix("unix:"), partial(numbers.randrange, 1_000_000, 1_500_000)
    )
    for client in conftest.connect(request.param, proxy.address, session="cut", retries=10):
        yield client, proxy
    proxy.listener.close()


def test_streams_and_copies_continue_after_cuts(
    cut_client: tuple[jig.Client, CuttingProxy],
) -> None:
    client, proxy = cut_client
    content = random.Random(2).randbytes(8 << 20)
    assert client.upload(content, "cut").size_bytes == len(content)
    uploads = proxy.cuts
    assert client.read_bytes("cut") == content
    downloads = proxy.cuts - uploads
    check_output(list(client.stream("cat cut")), content)
    job = client.submit_job("run", {"command": "cat cut"})
    received = b"".join(
        event.data for event in client.watch_job(job.job_id) if isinstance(event, jig.Output)
    )
    assert received == content
    assert uploads > 3 and downloads > 3 and proxy.cuts > 12
    client.delete_path("cut")


def test_copies_of_trees_start_again_after_cuts(
    cut_client: tuple[jig.Client, CuttingProxy], tmp_path: Path
) -> None:
    client, proxy = cut_client
    content = random.Random(3).randbytes(400_000)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(content)
    for number in range(8):
        assert client.upload_tree(tmp_path / "tree", f"cut-tree-{number}").files == 1
        back = tmp_path / str(number)
        client.download_tree(f"cut-tree-{number}", back)
        assert (back / "file").read_bytes() == content
        client.delete_path(f"cut-tree-{number}", recursive=True)
    assert proxy.cuts > 3


def check_output(events: list[jig.ProcessEvent], content: bytes) -> None:
    """Checks that all output was received once, except what a gap stands for."""
    assert isinstance(events[0], ProcessStarted) and isinstance(events[-1], ProcessExited)
    offset = 0
    for event in events[1:-1]:
        if isinstance(event, ProcessGap):
            # While the connection was lost, the command wrote more than the daemon holds.
            assert event.stdout_offset > offset
            offset = event.stdout_offset
        else:
            assert isinstance(event, jig.Output) and event.offset == offset
            assert content.startswith(event.data, offset)
            offset += len(event.data)
    assert offset == len(content)
