"""The sandbox of Inspect, beyond Inspect's own checks."""

from __future__ import annotations

import runpy
from pathlib import Path

import anyio
import pytest
from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.solver import Generate, Solver, TaskState, solver
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


async def test_files_of_the_persistent_tmp(client: jig.AsyncClient) -> None:
    sandbox = await attach(client)
    for data in (b"", bytes(range(256)) * 100, b"\0\xff\r\n" * (3 << 20)):
        await sandbox.write_file("/tmp/new/deep/file", data)
        assert await sandbox.read_file("/tmp/new/deep/file", text=False) == data
    with pytest.raises(IsADirectoryError):
        await sandbox.write_file("/tmp/new/deep", "")
    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("/tmp/new/none")


@solver
def do_nothing() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        return state

    return solve


def test_samples_have_a_setup(tmp_path: Path) -> None:
    samples = [
        Sample("a", setup="echo hi > s.txt"),
        Sample("b", setup="#!/bin/bash\nset -e; false"),
    ]
    task = Task(dataset=samples, solver=do_nothing(), sandbox="jig")
    [log] = evaluate(
        task, model="mockllm/model", display="none", log_dir=str(tmp_path), fail_on_error=False
    )
    assert log.samples is not None
    first, second = log.samples
    assert first.error is None
    assert second.error is not None and "setup script" in second.error.message


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
