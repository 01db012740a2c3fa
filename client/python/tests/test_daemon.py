"""Embedded daemons."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import conftest
import pytest

import jig


def test_a_client_can_start_a_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Variables for other daemons and clients have no effect.
    for name in ("JIG_ADDRESS", "JIG_LISTEN", "JIG_WORKSPACE", "JIG_KEYS", "JIG_KEY"):
        monkeypatch.setenv(name, "wrong")
    with jig.Client.embedded(tmp_path, program=conftest.PROGRAM, session="s") as client:
        assert client.run("echo x > made; echo hello").stdout == "hello\n"
        pid = client.get_info().pid
        socket = Path(client.address.removeprefix("unix:"))
        assert socket.exists()
    assert (tmp_path / "made").read_text() == "x\n"
    assert not is_alive(pid) and not socket.parent.exists()


def test_the_daemon_does_not_wait_for_running_commands(tmp_path: Path) -> None:
    client = jig.Client.embedded(tmp_path, program=conftest.PROGRAM)
    client.submit_job("run", {"command": "sleep 600"})
    begin = time.monotonic()
    client.close()
    assert time.monotonic() - begin < 10


def test_an_async_client_can_start_a_daemon(tmp_path: Path) -> None:
    async def check() -> int:
        async with await jig.AsyncClient.embedded(tmp_path, program=conftest.PROGRAM) as client:
            results = await asyncio.gather(*(client.run(f"echo {number}") for number in range(4)))
            assert [result.stdout for result in results] == ["0\n", "1\n", "2\n", "3\n"]
            return (await client.get_info()).pid

    assert not is_alive(asyncio.run(check()))


def test_a_daemon_that_cannot_start_is_reported(tmp_path: Path) -> None:
    with pytest.raises(jig.DaemonStartError, match="no-such-directory"):
        jig.Daemon(tmp_path / "no-such-directory", program=conftest.PROGRAM)
    with pytest.raises(jig.DaemonStartError, match="not found"):
        jig.Daemon(tmp_path, program=tmp_path / "no-such-program")


def test_the_daemon_is_found_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(jig.DaemonStartError, match="neither jigd nor jig is in PATH"):
        jig.Daemon(tmp_path)


PROGRAM = """
import sys, time, jig
daemon = jig.Daemon(sys.argv[1], program=sys.argv[2])
print(jig.Client(daemon.address).get_info().pid, flush=True)
time.sleep(60)
"""


def test_the_daemon_ends_with_a_killed_program(tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, "-c", PROGRAM, tmp_path, conftest.PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        assert is_alive(pid)
        program.kill()
    for _ in range(100):
        if not is_alive(pid):
            return
        time.sleep(0.1)
    raise AssertionError("the daemon is still running")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
