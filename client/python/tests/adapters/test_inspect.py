"""The sandbox of Inspect, beyond Inspect's own checks."""

from __future__ import annotations

import runpy
from pathlib import Path

import anyio
import pytest
from inspect_ai.util import (
    ExecCompleted,
    ExecRemoteAwaitableOptions,
    ExecRemoteStreamingOptions,
    ExecStderr,
    ExecStdout,
    SandboxUnavailableError,
)
from workspaces import Workspaces

import jig
from jig.adapters.inspect import JigSandboxConfig, JigSandboxEnvironment, attach

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "adapters"


async def test_each_sample_has_a_workspace(workspaces: Workspaces) -> None:
    config = JigSandboxConfig()
    samples = [await JigSandboxEnvironment.sample_init("task", config, {}) for _ in range(3)]
    used = set(workspaces.used)
    for number, sample in enumerate(samples):
        await sample["default"].write_file("number", str(number))
    for number, sample in enumerate(samples):
        assert await sample["default"].read_file("number") == str(number)
        await JigSandboxEnvironment.sample_cleanup("task", config, sample, False)
    assert len(used) == 3 and not workspaces.used
    await JigSandboxEnvironment.task_cleanup("task", config, True)


async def test_exec_remote_streams(client: jig.AsyncClient) -> None:
    sandbox = await attach(client)
    options = ExecRemoteStreamingOptions(stdin_open=True)
    process = await sandbox.exec_remote(
        ["sh", "-c", "read x; echo $x; echo e >&2; exit 3"], options
    )
    await process.write_stdin("hello\n")
    events = [event async for event in process]
    assert sorted(events[:2], key=str) == [ExecStderr("e\n"), ExecStdout("hello\n")]
    assert events[2] == ExecCompleted(3)
    whole = ExecRemoteAwaitableOptions(input="x", timeout=5)
    result = await sandbox.exec_remote(["cat"], whole, stream=False)
    assert (result.success, result.stdout) == (True, "x")


async def test_a_cancelled_command_is_killed(client: jig.AsyncClient) -> None:
    sandbox = await attach(client)
    with anyio.move_on_after(1):
        await sandbox.exec(["sh", "-c", "sleep 3; echo > made"])
    await anyio.sleep(3)
    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("made")


async def test_files_of_the_system_are_read_only(client: jig.AsyncClient) -> None:
    sandbox = await attach(client)
    assert "agent" in await sandbox.read_file("/etc/passwd")
    with pytest.raises(PermissionError):
        await sandbox.write_file("/etc/passwd", "")


async def test_a_daemon_that_is_gone_is_unavailable(client: jig.AsyncClient) -> None:
    sandbox = JigSandboxEnvironment(client.with_options(workspace="gone"), "/workspace")
    with pytest.raises(SandboxUnavailableError):
        await sandbox.exec(["true"])


def test_example(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        runpy.run_path(str(EXAMPLES / "inspect_eval.py"))
    assert capfd.readouterr().out.splitlines()[-4:] == [
        "word 0",
        "word 1",
        "word 2",
        "success, accuracy 1.0",
    ]
