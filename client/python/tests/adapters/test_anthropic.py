"""Tools for Anthropic's models, and the worker of a self-hosted environment."""

from __future__ import annotations

import asyncio
import os
import runpy
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from anthropic.lib.environments import EnvironmentWorker
from anthropic.lib.tools import ToolError
from control_plane import ENVIRONMENT, ControlPlane
from workspaces import Workspaces

import jig
from jig.adapters.anthropic import (
    AgentToolset,
    BashTool,
    TextEditorTool,
    agent_toolset,
    workspace_name,
)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "adapters"
KEY = "environment-key"


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    plane = ControlPlane()
    yield plane
    plane.close()


@contextmanager
def worker_process(plane: ControlPlane, workspace: str) -> Generator[None, None, None]:
    """The worker of the example, which is killed at the end."""
    environment = {
        **os.environ,
        "ANTHROPIC_BASE_URL": plane.url,
        "ANTHROPIC_ENVIRONMENT_ID": ENVIRONMENT,
        "ANTHROPIC_ENVIRONMENT_KEY": KEY,
        "JIG_WORKSPACE": workspace,
        "PYTHONPATH": str(Path(jig.__file__).parent.parent),
    }
    command = [sys.executable, str(EXAMPLES / "anthropic_worker.py")]
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield
        finally:
            process.kill()


async def in_thread(function: Any, *args: Any) -> None:
    await asyncio.to_thread(function, *args)


async def test_tools_with_their_own_type(client: jig.AsyncClient) -> None:
    bash, editor = BashTool(client), TextEditorTool(client)
    assert bash.to_dict() == {"type": "bash_20250124", "name": "bash"}
    assert "hello" in await bash.call({"command": "echo hello"})
    create = {"command": "create", "path": "/workspace/a.txt", "file_text": "one\n"}
    await editor.call(create)
    assert "one" in await editor.call({"command": "view", "path": "/workspace/a.txt"})
    with pytest.raises(ToolError):
        await editor.call({"command": "view", "path": "/workspace/missing"})


async def test_the_shell_keeps_its_state(client: jig.AsyncClient) -> None:
    toolset = AgentToolset(client, client.workspace, ttl_sec=None, is_created=True)
    async with toolset.bash() as bash:
        assert await bash("cd /tmp; x=1; f() { echo f$x; }") == ""
        assert await bash("pwd; f") == "/tmp\nf1"
        with pytest.raises(ToolError, match=r"^out$"):
            await bash("echo out; false")
        with pytest.raises(ToolError, match=r"exceeded 0\.5 s"):
            await bash("sleep 60", timeout_ms=500)
        assert await bash("pwd; echo $x") == "/workspace"
        with pytest.raises(ToolError, match="exit code 3"):
            await bash("exit 3")
        assert await bash("read line; echo EOF") == "EOF"
        output = await bash("seq 100000")
        assert output.startswith("[output truncated]") and output.endswith("100000")
        assert await bash(restart=True) == "bash session restarted"


async def test_a_worker_serves_a_session(plane: ControlPlane, workspaces: Workspaces) -> None:
    work = plane.start_session(
        "sesn_A1",
        ("bash", {"command": "pwd; echo x > made"}),
        ("write", {"file_path": "d/f.txt", "content": "one\ntwo\n"}),
        ("edit", {"file_path": "d/f.txt", "old_string": "two", "new_string": "2"}),
        ("read", {"file_path": "d/f.txt", "view_range": [2, 2]}),
        ("glob", {"pattern": "**/*.txt"}),
        ("grep", {"pattern": "^o.e"}),
        ("read", {"file_path": "missing"}),
        ("read", {"file_path": "/etc/passwd"}),
    )
    async with (
        jig.AsyncClient() as client,
        AsyncAnthropic(auth_token=KEY, base_url=plane.url) as anthropic,
    ):
        worker = EnvironmentWorker(
            anthropic,
            environment_id=ENVIRONMENT,
            environment_key=KEY,
            tools=agent_toolset(client),
        )
        running = asyncio.create_task(worker.run())
        await in_thread(plane.wait, lambda: work.state == "stopped")
        running.cancel()
        results = work.results()
        assert results[:6] == [
            ("/workspace", False),
            ("wrote 8 bytes to d/f.txt", False),
            ("edited d/f.txt (1 replacement(s))", False),
            ("2\n", False),
            ("d/f.txt", False),
            ("d/f.txt:1:one", False),
        ]
        assert [is_error for _, is_error in results[6:]] == [True, True]
        assert (work.claims, work.forced_stops) == (1, 1)
        assert len(workspaces.used) == 1
        await client.delete_workspace(workspaces.used.copy().pop())


async def test_a_session_is_stopped_after_its_running_call(
    plane: ControlPlane, client: jig.AsyncClient
) -> None:
    work = plane.start_session(
        "sesn_B",
        ("bash", {"command": "touch begun; sleep 6; echo ended"}),
        ("bash", {"command": "touch never"}),
    )
    with worker_process(plane, client.workspace):
        while not await client.exists("begun"):
            await asyncio.sleep(0.1)
        work.stop_requested = True
        await in_thread(plane.wait, lambda: work.state == "stopped")
    # The runner of the package does not interrupt a tool call.
    assert work.results() == [("ended", False)]
    assert not await client.exists("never") and work.forced_stops == 1


async def test_another_worker_reclaims_the_session_of_a_killed_one(
    plane: ControlPlane, client: jig.AsyncClient
) -> None:
    command = "echo begun >> log; sleep 3; echo ended >> log; cat kept"
    work = plane.start_session(
        "sesn_C", ("write", {"file_path": "kept", "content": "x"}), ("bash", {"command": command})
    )
    with worker_process(plane, client.workspace):
        while not await client.exists("log"):
            await asyncio.sleep(0.1)
    # The first worker was killed in the middle of the command, and its lease ends.
    with worker_process(plane, client.workspace):
        await in_thread(plane.wait, lambda: work.state == "stopped")
    # The command of the first worker ended with it, so that only the second one reached its end.
    assert (await client.read_file("log")).content == "begun\nbegun\nended\n"
    assert work.results() == [("wrote 1 bytes to kept", False), ("x", False)]
    assert work.claims == 2


async def test_a_worker_that_lost_its_lease_does_not_stop_the_item(
    plane: ControlPlane, client: jig.AsyncClient
) -> None:
    work = plane.start_session("sesn_D", ("bash", {"command": "touch begun; sleep 7"}))
    with worker_process(plane, client.workspace):
        while not await client.exists("begun"):
            await asyncio.sleep(0.1)
        with plane.lock:
            # Another worker holds the item.
            work.last_heartbeat, work.lease_end = "other", float("inf")
        await asyncio.sleep(9)
    assert (work.state, work.forced_stops, work.claims) == ("active", 0, 1)


async def test_toolsets_of_a_session_share_its_workspace(address: str) -> None:
    async with jig.AsyncClient(address) as client:
        name = workspace_name("sesn_E")
        first, second = (AgentToolset(client, name, ttl_sec=60, is_created=False) for _ in range(2))
        await first.write("a.txt", "x")
        assert await second.read("a.txt") == "x"
        await client.delete_workspace(name)


def test_names_of_workspaces() -> None:
    first, second = workspace_name("sesn_01AbC"), workspace_name("sesn_01abc")
    assert first.startswith("session-sesn-01abc-") and first != second
    for name in (first, workspace_name("x" * 200), workspace_name("--")):
        assert len(name) <= 63 and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_example(capsys: pytest.CaptureFixture[str], workspaces: Workspaces) -> None:
    runpy.run_path(str(EXAMPLES / "anthropic_agent.py"))
    assert capsys.readouterr().out.splitlines() == ["bash: hello from the sandbox", "Done."]
    assert not workspaces.used
