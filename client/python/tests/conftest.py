"""Daemons and clients of the tests. `JIG_TEST_JIGD` is the path of `jigd`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import jig

PROGRAM = os.environ.get("JIG_TEST_JIGD", "jigd")
# The directory of README.md, the examples and the generator. An installed package comes first.
SOURCE = Path(__file__).resolve().parent.parent
sys.path.append(str(SOURCE))
# For programs that tests start.
os.environ["PYTHONPATH"] = str(Path(jig.__file__).parent.parent)


class Blocking:
    """Lets a test use an `AsyncClient`, or what its methods return, as it uses a `Client`."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return self._blocking(value) if callable(value) else value

    def _blocking(self, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if asyncio.iscoroutine(result):
                result = self._loop.run_until_complete(result)
            is_wrapped = isinstance(result, (jig.AsyncClient, jig.AsyncStream))
            return Blocking(result, self._loop) if is_wrapped else result

        return call

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._target.close())

    def __iter__(self) -> Blocking:
        return self

    def __next__(self) -> Any:
        try:
            return self._loop.run_until_complete(self._target.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None


def connect(kind: str, address: str, **options: Any) -> Iterator[jig.Client]:
    """Connects a client of a kind, `sync` or `async`, for one test."""
    if kind == "sync":
        with jig.Client(address, **options) as client:
            yield client
        return
    loop = asyncio.new_event_loop()
    with Blocking(jig.AsyncClient(address, **options), loop) as client:
        yield cast(jig.Client, client)
    loop.close()


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture(scope="session")
def daemon(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[jig.Daemon]:
    config = tmp_path_factory.mktemp("config") / "jigd.toml"
    config.write_text(CONFIG)
    with jig.Daemon(workspace, program=PROGRAM, arguments=[f"--config={config}"]) as daemon:
        yield daemon


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, daemon: jig.Daemon) -> Iterator[jig.Client]:
    """A client of each kind, in a session of its own."""
    session = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    yield from connect(request.param, daemon.address, session=session, deadline_sec=30)


CONFIG = """
[[tools]]
name = "count_word"
description = "Counts a word."
argv = ["sh", "-c", "grep -c \\"$1\\" words.txt", "sh", "{word}"]
[tools.schema]
required = ["word"]
properties.word = { type = "string", description = "The word." }

[[policy.rules]]
name = "removal"
tool = "run"
pattern = 'needs-approval'
action = "ask"
"""
