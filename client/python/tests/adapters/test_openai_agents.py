"""Tools and sandboxes of the OpenAI Agents SDK.

The SDK ships no suite for editors or sandboxes. These tests use its own runner with a scripted
model.
"""

from __future__ import annotations

import io
import runpy
from pathlib import Path
from typing import Any

import pytest
from agents import ApplyPatchOperation, RunContextWrapper, ShellCommandRequest
from agents.sandbox.entries import File
from agents.sandbox.errors import ExecTimeoutError, WorkspaceReadNotFoundError
from agents.sandbox.manifest import Manifest
from agents.tool import ShellActionRequest, ShellCallData
from workspaces import Workspaces

import jig
from jig.adapters.openai_agents import (
    JigSandboxClient,
    JigSandboxClientOptions,
    JigSandboxSessionState,
    PatchEditor,
    ShellExecutor,
)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "adapters"


async def execute(client: jig.AsyncClient, *commands: str, **options: Any) -> list[Any]:
    action = ShellActionRequest(list(commands), **options)
    request = ShellCommandRequest(RunContextWrapper(None), ShellCallData("call", action))
    outputs = (await ShellExecutor(client)(request)).output
    return [(output.stdout, output.stderr, output.status, output.exit_code) for output in outputs]


async def test_shell(client: jig.AsyncClient) -> None:
    results = await execute(client, "echo 1", "echo 2 >&2; exit 3", "kill -TERM $$")
    assert results == [
        ("1\n", "", "completed", 0),
        ("", "2\n", "completed", 3),
        ("", "", "completed", 143),
    ]
    assert await execute(client, "echo x; sleep 60", "echo never", timeout_ms=500) == [
        ("x\n", "", "timeout", None)
    ]
    short = await execute(client, "seq 100000", max_output_length=1000)
    assert len(short[0][0]) < 2000


async def test_editor(client: jig.AsyncClient) -> None:
    editor = PatchEditor(client)
    created = await editor.create_file(ApplyPatchOperation("create_file", "a/b.txt", "+one\n+two"))
    assert created.status == "completed"
    assert await client.read_bytes("a/b.txt") == b"one\ntwo"
    again = await editor.create_file(ApplyPatchOperation("create_file", "a/b.txt", "+x"))
    assert again.status == "failed" and "already exists" in str(again.output)

    diff = "@@\n one\n-two\n+2"
    await client.run("chmod 755 a/b.txt")
    operation = ApplyPatchOperation("update_file", "a/b.txt", diff, move_to="c.txt")
    assert (await editor.update_file(operation)).status == "completed"
    assert (await client.run("cat c.txt; stat -c %a c.txt; ls a")).stdout == "one\n2755\n"
    wrong = await editor.update_file(ApplyPatchOperation("update_file", "c.txt", diff))
    assert wrong.status == "failed" and "Invalid Context" in str(wrong.output)

    assert (await editor.delete_file(ApplyPatchOperation("delete_file", "c.txt"))).status
    assert not await client.exists("c.txt")
    outside = await editor.delete_file(ApplyPatchOperation("delete_file", "../x"))
    assert outside.status == "failed"


async def test_sandbox(address: str, workspaces: Workspaces) -> None:
    async with jig.AsyncClient(address) as client:
        sandboxes = JigSandboxClient(client)
        manifest = Manifest(entries={"notes/a.txt": File(content=b"hello\n")})
        session = await sandboxes.create(manifest=manifest, options=JigSandboxClientOptions())
        async with session:
            result = await session.exec("cat notes/a.txt; printf '\\377' >&2; exit 3")
            assert (result.stdout, result.stderr, result.exit_code) == (b"hello\n", b"\xff", 3)
            assert (await session.exec("no-such-program", shell=False)).exit_code == 127
            with pytest.raises(ExecTimeoutError):
                await session.exec("sleep 60", timeout=0.5)

            await session.write(Path("b.bin"), io.BytesIO(b"\x00\xff"))
            assert (await session.read(Path("b.bin"))).read() == b"\x00\xff"
            with pytest.raises(WorkspaceReadNotFoundError):
                await session.read(Path("missing"))
            await session.mkdir(Path("d/e"), parents=True)
            await session.mv(Path("b.bin"), Path("d/e/b.bin"))
            assert [entry.path for entry in await session.ls(Path("d/e"))] == [
                "/workspace/d/e/b.bin"
            ]
            await session.rm(Path("d"), recursive=True)
            assert await session.running()
        assert not workspaces.used


async def test_a_workspace_is_persisted_and_resumed(address: str, workspaces: Workspaces) -> None:
    async with jig.AsyncClient(address) as client:
        sandboxes = JigSandboxClient(client)
        first = await sandboxes.create(options=JigSandboxClientOptions(keep=True))
        async with first:
            await first.exec(
                "mkdir d; echo x > d/x; ln -s x d/link; head -c 20000000 /dev/zero > big"
            )
            archive = await first.persist_workspace()

        payload = sandboxes.serialize_session_state(first.state)
        state = sandboxes.deserialize_session_state(payload)
        assert isinstance(state, JigSandboxSessionState)
        async with await sandboxes.resume(state) as resumed:
            assert (await resumed.exec("cat d/link")).stdout == b"x\n"
        await sandboxes.delete(resumed)

        async with await sandboxes.create(options=JigSandboxClientOptions()) as copy:
            await copy.hydrate_workspace(archive)
            assert (await copy.exec("cat d/link; wc -c < big")).stdout == b"x\n20000000\n"
        assert not workspaces.used


def test_example(capsys: pytest.CaptureFixture[str], workspaces: Workspaces) -> None:
    runpy.run_path(str(EXAMPLES / "openai_agent.py"))
    assert capsys.readouterr().out == "$ sh greet.sh\nhello from the sandbox\n"
    assert not workspaces.used
